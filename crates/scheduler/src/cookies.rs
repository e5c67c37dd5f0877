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
    /// None on a host without SMT, and where the kernel has no core scheduling. After it, no task
    /// has a cookie, and none gets one.
    pub(crate) fn enforce(
        host: &Host,
        object: &'a mut MaybeUninit<OpenObject>,
    ) -> Result<Option<Self>> {
        if !smt_is_active(host) {
            return Ok(None);
        }
        match attach(object) {
            Ok(skel) => {
                // A task may have got one since the first check.
                check_cookies(host)?;
                Ok(Some(Self { skel, reported: 0 }))
            }
            Err(error) if has_core_scheduling(host) => {
                Err(Refusal::to_let_cookies_be_set(&error).into())
            }
            Err(error) => {
                debug!("cannot refuse core-scheduling cookies, nor need to: {error:#}");
                Ok(None)
            }
        }
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

fn attach(object: &mut MaybeUninit<OpenObject>) -> Result<CookiesSkel<'_>> {
    let skel = CookiesSkelBuilder::default().open(object)?;
    let mut skel = skel.load().context("the kernel refuses a program for security_task_prctl()")?;
    skel.attach().context("cannot attach to security_task_prctl()")?;
    Ok(skel)
}
