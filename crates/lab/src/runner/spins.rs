// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast spins` in the measured guest, for experiments that ask for it.

use holdfast_agent::protocol::{Reply, Request, Stream};

use super::session::{Outcome, Session, Trouble};
use crate::spins::SpinWaits;

const SPINS: &str = "spins";
/// Seconds between reports. Reports that lie within a window count for it.
const INTERVAL_S: &str = "0.25";
/// Loading BPF programs in an emulated guest takes long.
const LOAD_LIMIT_MS: u64 = 60_000;

impl Session<'_> {
    /// Starts it and waits for its first report; a freshly booted guest is idle.
    pub(super) fn start_spins(&mut self, guest: &str) -> Outcome<()> {
        let mut argv = self.host.holdfast_in_guest();
        argv.extend(["spins", INTERVAL_S, "--json"].map(str::to_owned));
        self.ask(Request::spawn(SPINS, argv).relayed_to(guest))?;
        self.spins_read = 0;
        let printed = self.printed(guest, LOAD_LIMIT_MS)?;
        if printed.is_empty() {
            let wait = Request::Wait { name: SPINS.into(), timeout_ms: 1000 };
            let how = self.ask(wait.relayed_to(guest)).map(|reply| format!("{reply:?}"));
            return Err(Trouble::Window(format!("the guest does not time its spinlocks: {how:?}")));
        }
        Ok(())
    }

    /// The waits of the measured guest between two moments of its clock.
    pub(super) fn spins(&mut self, from_ns: u64, to_ns: u64) -> Outcome<Option<SpinWaits>> {
        let Some(guest) = self.guests.first().cloned() else { return Ok(None) };
        let printed = self.printed(&guest, 0)?;
        Ok(SpinWaits::within(&printed, from_ns, to_ns))
    }

    /// Its output since the last request.
    fn printed(&mut self, guest: &str, timeout_ms: u64) -> Outcome<String> {
        let output = Request::Output {
            name: SPINS.into(),
            stream: Stream::Stdout,
            after: self.spins_read,
            timeout_ms,
        };
        match self.ask(output.relayed_to(guest))? {
            Reply::Relay { reply } => match *reply {
                Reply::Output { data, next, .. } => {
                    self.spins_read = next;
                    Ok(String::from_utf8_lossy(&data).into_owned())
                }
                other => Err(Trouble::Window(format!("unexpected answer {other:?}"))),
            },
            other => Err(Trouble::Window(format!("unexpected answer {other:?}"))),
        }
    }
}
