// SPDX-License-Identifier: GPL-2.0-or-later
//! The columns of a recording, defined once for writing and reading.

/// Schema tag, and the key of the file's metadata.
pub(super) const SCHEMA: &str = "holdfast.recording/5";
pub(super) const KEY: &str = "holdfast.recording";

/// The columns, in this order. Times are nanoseconds since 1970 in a plain integer, because some
/// readers of Parquet lack timestamps of this resolution. The host and the start of the VM's
/// process distinguish VMs with the same number in a query over several recordings; the UUID stays
/// the same where a VM is started again, or on another host.
pub(super) const COLUMNS: &str = "
message holdfast {
    required int64 begin_ns;
    required int64 end_ns;
    required binary event (STRING);
    required binary host (STRING);
    required int32 vm_pid;
    optional int64 vm_begin_ns;
    required binary vm (STRING);
    optional binary vm_uuid (STRING);
    optional binary tier (STRING);
    required int32 tid;
    required int32 vcpu;
    required binary class (STRING);
    required int32 cpu;
    optional int64 siblings;
    optional boolean holder_off;
    optional boolean head_off;
}";
