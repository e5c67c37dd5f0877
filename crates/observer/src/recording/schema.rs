// SPDX-License-Identifier: GPL-2.0-or-later
//! The columns of a recording, defined once for writing and reading.

/// Schema tag, and what the file's metadata is found by.
pub(super) const SCHEMA: &str = "holdfast.recording/2";
pub(super) const KEY: &str = "holdfast.recording";

/// Times are nanoseconds since 1970 in a plain integer, because not everything that reads Parquet
/// reads timestamps that fine. Columns in this order. The host and the begin of the VM's process
/// tell VMs apart that have the same number, in recordings that are looked at together.
pub(super) const COLUMNS: &str = "
message holdfast {
    required int64 begin_ns;
    required int64 end_ns;
    required binary event (STRING);
    required binary host (STRING);
    required int32 vm_pid;
    required int64 vm_begin_ns;
    required binary vm (STRING);
    required int32 tid;
    required int32 vcpu;
    required binary class (STRING);
    required int32 cpu;
    required int64 siblings;
    required boolean holder_off;
    required boolean head_off;
}";
