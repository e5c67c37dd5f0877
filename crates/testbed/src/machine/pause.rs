// SPDX-License-Identifier: GPL-2.0-or-later
//! Pause-loop exits: whether KVM takes a spinning vCPU out of its guest. This is a setting of the
//! vendor's KVM module, so all guests that run at the same time share it.

use holdfast_agent::protocol::{Reply, Request};

use super::spec::child_name;
use super::{Machine, confused};
use crate::error::{Error, Result};

/// The setting, and the lab's change to it.
#[derive(Debug, Default)]
pub(super) struct PauseExits {
    now: Option<bool>,
    /// Module that the lab loaded with another setting.
    changed: Option<&'static Vendor>,
}

/// How to recognise a vendor's module.
#[derive(Debug)]
struct Vendor {
    cpu_flag: &'static str,
    module: &'static str,
    /// Parameter that is 0 without such exits.
    parameter: &'static str,
    off: &'static str,
}

const VENDORS: [Vendor; 2] = [
    Vendor {
        cpu_flag: "svm",
        module: "kvm_amd",
        parameter: "pause_filter_count",
        off: "pause_filter_count=0 pause_filter_thresh=0",
    },
    Vendor { cpu_flag: "vmx", module: "kvm_intel", parameter: "ple_gap", off: "ple_gap=0" },
];

impl Machine {
    /// Has KVM intercept PAUSE as by default, or not at all; loads the module if need be.
    pub fn set_pause_exits(&self, wanted: bool) -> Result<()> {
        let mut setting = self.pause_exits.lock().expect("no holder panics");
        if setting.now == Some(wanted) {
            return Ok(());
        }
        if !self.guests.lock().expect("no holder panics").is_empty() {
            return Err(Error::Unsupported(
                "pause-loop exits are a setting of the host's KVM: all guests that run at the same \
                 time need the same"
                    .into(),
            ));
        }
        let cpuinfo = self.read_file("/proc/cpuinfo")?;
        let has = |flag: &str| cpuinfo.split_ascii_whitespace().any(|word| word == flag);
        let vendor = VENDORS.iter().find(|v| has(v.cpu_flag)).ok_or_else(|| {
            Error::Unsupported("the host's CPUs cannot run guests (no svm, no vmx)".into())
        })?;
        let name = vendor.module.to_owned();
        self.request(Request::LoadModule { name: name.clone(), params: String::new() })?;
        if self.pause_exits(vendor)? != wanted {
            // The module holds no state without guests, and takes the parameter only when it is
            // loaded.
            self.request(Request::UnloadModule { name: name.clone() })?;
            setting.changed = Some(vendor);
            let params = if wanted { "" } else { vendor.off }.to_owned();
            self.request(Request::LoadModule { name, params })?;
        }
        if self.pause_exits(vendor)? != wanted {
            return Err(Error::Unsupported(format!(
                "the host's CPUs offer no pause-loop exits: {} stays at {}",
                vendor.parameter,
                if wanted { "0" } else { "another value than 0" }
            )));
        }
        setting.now = Some(wanted);
        Ok(())
    }

    /// Loads the running machine's module with its first setting again. Its guests are gone.
    pub(super) fn restore_pause_exits(&self) {
        let mut setting = self.pause_exits.lock().expect("no holder panics");
        let Some(vendor) = setting.changed.take() else { return };
        let mut requests = Vec::new();
        for guest in self.guests.lock().expect("no holder panics").iter() {
            let name = child_name(guest);
            requests.push(Request::Kill { name: name.clone(), signal: libc::SIGKILL });
            requests.push(Request::Wait { name, timeout_ms: 10_000 });
        }
        let name = vendor.module.to_owned();
        requests.push(Request::UnloadModule { name: name.clone() });
        requests.push(Request::LoadModule { name, params: String::new() });
        // Nothing is left to report a failure to, and the next lab applies its own setting anyway.
        let _ = self.channel.request_whatever_happens(Request::Batch { requests });
    }

    fn pause_exits(&self, vendor: &Vendor) -> Result<bool> {
        let path = format!("/sys/module/{}/parameters/{}", vendor.module, vendor.parameter);
        Ok(self.read_file(&path)?.trim() != "0")
    }

    fn read_file(&self, path: &str) -> Result<String> {
        let request = Request::ReadFile { path: path.to_owned(), max_bytes: 1 << 16 };
        match self.request(request)? {
            Reply::ReadFile { data, .. } => Ok(String::from_utf8_lossy(&data).into_owned()),
            answer => Err(confused("read_file", &answer)),
        }
    }
}
