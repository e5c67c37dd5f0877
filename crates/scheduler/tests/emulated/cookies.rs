// SPDX-License-Identifier: GPL-2.0-or-later
//! Core-scheduling cookies on a host with SMT, which sched_ext would hang with.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use holdfast_testbed::machine::{Machine, MachineSpec, Topology};
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{
    assert_schedules, counting_spec, end_scheduler, shell, start_scheduler,
};

const SMT: Topology = Topology { sockets: 1, cores: 1, threads: 2 };

/// Prints the errno of making a cookie for itself, and of asking for it.
const PROGRAM: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>

int main(void)
{
	unsigned long cookie = 0;
	int made = prctl(62, 1, 0, 1, 0) ? errno : 0;
	int asked = prctl(62, 0, 0, 0, &cookie) ? errno : 0;

	printf("%d %d\n", made, asked);
	return 0;
}
"#;

/// Builds the program for a host without libraries.
fn build(directory: &std::path::Path) -> PathBuf {
    let (source, program) = (directory.join("cookie.c"), directory.join("cookie"));
    fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).status();
    assert!(built.unwrap().success());
    program
}

#[test]
fn no_cookie_is_made_while_it_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let extra = vec![(build(directory.path()), "/cookie".into())];
    let spec = MachineSpec { cpus: SMT.cpus(), topology: Some(SMT), extra, ..counting_spec() };
    let machine = Machine::boot(&spec, &Progress::stderr()).unwrap();
    let ask = || shell(&machine, "/cookie").trim().to_owned();
    let before = ask();
    start_scheduler(&machine, &["--no-guest-knowledge"]);
    let loaded = ask();
    assert_schedules(&machine);
    end_scheduler(&machine);
    let after = ask();
    machine.shut_down().unwrap();

    // The host's kernel is one for clouds, which has no core scheduling.
    let none = format!("{} {}", libc::EINVAL, libc::EINVAL);
    assert_eq!((&before, &after), (&none, &none));
    assert_eq!(loaded, format!("{} {}", libc::EBUSY, libc::EINVAL));
}
