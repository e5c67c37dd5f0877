// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps core-scheduling cookies off a host with SMT, on which sched_ext can hang with one.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use anyhow::{Context, Result};
use holdfast_checks::{Host, has_core_scheduling, smt_is_active};
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use log::{debug, warn};

use crate::cookies_skel::{CookiesSkel, CookiesSkelBuilder};
use crate::preflight::{Refusal, check_cookies};

/// While it lives, `prctl(PR_SCHED_CORE)` makes and shares no cookie.
pub(crate) struct NoCookies<'a> {
    skel: CookiesSkel<'a>,
    reported: u64,
}

impl<'a> NoCookies<'a> {
    /// After it no task has a cookie, and none gets one. None on a host without SMT, and where it
    /// cannot be had on a kernel without core scheduling.
    pub(crate) fn enforce(
        host: &Host,
        object: &'a mut MaybeUninit<OpenObject>,
    ) -> Result<Option<Self>> {
        let attached = where_needed(host, || {
            let mut skel = load(object)?;
            skel.attach().context("cannot attach to security_task_prctl()")?;
            Ok(skel)
        })?;
        let Some(skel) = attached else { return Ok(None) };
        // A task may have got one since the first check.
        check_cookies(host)?;
        Ok(Some(Self { skel, reported: 0 }))
    }

    /// Whether it could be enforced, as far as that is known without doing so.
    pub(crate) fn try_load(host: &Host) -> Result<()> {
        where_needed(host, || load(&mut MaybeUninit::uninit()).map(drop)).map(drop)
    }

    /// Logs refusals since the last call.
    pub(crate) fn report(&mut self) {
        let Some(bss) = &self.skel.maps.bss_data else { return };
        let refused = &bss.refused;
        // SAFETY: it is valid and aligned. BPF programs write to it at any time.
        let nr = unsafe { (&raw const refused.nr).read_volatile() };
        if nr == self.reported {
            return;
        }
        let comm: Vec<u8> = refused.comm.iter().map(|c| c.cast_unsigned()).collect();
        let comm = CStr::from_bytes_until_nul(&comm).unwrap_or_default().to_string_lossy();
        warn!(
            "{} core-scheduling cookies refused, the last one to {comm} (pid {}): under sched_ext \
             one could hang this host. Turn core scheduling off there (cloud-hypervisor: --cpus \
             core_scheduling=off).",
            nr - self.reported,
            refused.pid
        );
        self.reported = nr;
    }
}

/// Does it on a host with SMT. On a kernel without core scheduling it need not succeed.
fn where_needed<T>(host: &Host, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    if !smt_is_active(host) {
        return Ok(None);
    }
    match work() {
        Ok(done) => Ok(Some(done)),
        Err(error) if has_core_scheduling(host) => {
            Err(Refusal::to_let_cookies_be_set(&error).into())
        }
        Err(error) => {
            debug!("cannot refuse core-scheduling cookies, nor need to: {error:#}");
            Ok(None)
        }
    }
}

fn load(object: &mut MaybeUninit<OpenObject>) -> Result<CookiesSkel<'_>> {
    let skel = CookiesSkelBuilder::default().open(object)?;
    skel.load().context("the kernel refuses a program for security_task_prctl()")
}
