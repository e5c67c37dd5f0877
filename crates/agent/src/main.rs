// SPDX-License-Identifier: GPL-2.0-or-later
//! `holdfast-agent`: PID 1 of the lab's virtual hosts and guests, one static binary for both.
//!
//! As PID 1 it mounts what programs expect, loads modules and serves the protocol of
//! [`holdfast_agent::protocol`] on the virtio-serial port `holdfast.agent`. `holdfast.role=host` or
//! `holdfast.role=guest` on the kernel's command line gives its role. As an ordinary child
//! (`holdfast-agent --fd N --role host`) it serves the same on an inherited socket. It ends, with
//! all its children, when the other end is closed.

mod children;
mod files;
mod groups;
mod guests;
mod init;
mod measure;
mod modules;
mod perf;
mod ring;
mod serve;
mod sockets;
mod witness;

use std::fs::File;
use std::os::fd::{FromRawFd, RawFd};
use std::process::ExitCode;

use holdfast_agent::protocol::Role;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        // Returning would be a kernel panic, which reports a broken image to the lab.
        let result = init::run();
        eprintln!("holdfast-agent: {}", result.unwrap_err());
        return ExitCode::FAILURE;
    }
    match arguments(std::env::args().skip(1)) {
        Ok((fd, role)) => {
            // SAFETY: the descriptor was inherited for this purpose and nothing else owns it.
            let port = unsafe { File::from_raw_fd(fd) };
            match serve::ordinary_child(port, role) {
                Ok(()) => ExitCode::SUCCESS,
                Err(e) => {
                    eprintln!("holdfast-agent: serving on descriptor {fd}: {e}");
                    ExitCode::FAILURE
                }
            }
        }
        Err(usage) => {
            eprintln!("holdfast-agent: {usage}");
            ExitCode::from(2)
        }
    }
}

const USAGE: &str =
    "this is PID 1 of the lab's machines, or: holdfast-agent --fd N --role host|guest";

fn arguments(mut args: impl Iterator<Item = String>) -> Result<(RawFd, Role), String> {
    let (mut fd, mut role) = (None, None);
    while let Some(arg) = args.next() {
        let value = args.next().ok_or(USAGE)?;
        match (arg.as_str(), value.as_str()) {
            ("--fd", n) => fd = n.parse().ok().filter(|&n| n > 2),
            ("--role", "host") => role = Some(Role::Host),
            ("--role", "guest") => role = Some(Role::Guest),
            _ => return Err(format!("unexpected {arg} {value}; {USAGE}")),
        }
    }
    Ok((fd.ok_or(USAGE)?, role.ok_or(USAGE)?))
}
