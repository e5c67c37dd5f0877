// SPDX-License-Identifier: GPL-2.0-or-later
//! The live screen in a terminal of the lab's host: its keys, and that it leaves nothing behind.

use std::time::Duration;

use holdfast_agent::protocol::Request;
use holdfast_testbed::machine::Machine;
use holdfast_testbed::progress::Progress;
use holdfast_testbed::testing::{Lines, load_kvm, shell, spec};

/// Longest that a change of the screen may take: the first one includes loading the programs.
const LIMIT: Duration = Duration::from_secs(180);

/// The escape sequence that returns a terminal to its earlier screen.
const SCREEN_IS_LEFT: &str = "\x1b[?1049l";

#[test]
fn the_live_screen_obeys_keys_and_leaves_nothing_behind() {
    let machine = Machine::boot(&spec(), &Progress::stderr()).unwrap();
    load_kvm(&machine);
    let vm = [&machine.workload_path("hostile"), "--threads", "2"];
    machine.request(Request::spawn("vm", vm)).unwrap();
    // Only changed cells are written: all of the expected text has to be new.
    let mut screen = Screen::open(&machine, "first");
    screen.until("STEAL%");
    screen.press("h");
    screen.until("Ctrl-C");
    screen.press("h");
    screen.until("STEAL%");
    screen.press("p");
    screen.until("FROZEN");
    screen.press("\\r");
    screen.until("(pid");
    screen.press("\\177");
    screen.until("STEAL%");
    screen.press("q");
    screen.ends();

    let mut screen = Screen::open(&machine, "second");
    screen.until("STEAL%");
    shell(&machine, "kill -TERM $(pidof holdfast)");
    screen.ends();
    machine.shut_down().unwrap();
}

/// `top` in a terminal, which telnetd makes for it.
struct Screen<'m> {
    machine: &'m Machine,
    name: &'m str,
    output: Lines<'m>,
}

impl<'m> Screen<'m> {
    fn open(machine: &'m Machine, name: &'m str) -> Self {
        let program = machine.dist_path("holdfast");
        // telnetd drops unsent output when a session ends, so this session does not end.
        let session = format!(
            "#!/bin/sh\nstty rows 24 cols 100\nbefore=$(stty -g)\n{program} top\n\
             echo exit code $?\n[ \"$before\" = \"$(stty -g)\" ] && echo terminal as before\n\
             sleep 600\n"
        );
        shell(
            machine,
            &format!(
                "mkdir -p /dev/pts; mountpoint -q /dev/pts || mount -t devpts devpts /dev/pts\n\
                 mkfifo /tmp/{name}.keys\n\
                 cat > /tmp/{name}.sh <<'END'\n{session}END\nchmod +x /tmp/{name}.sh"
            ),
        );
        // The sleep keeps the pipe open while no key is pressed.
        let served = format!(
            "sleep 600 > /tmp/{name}.keys & \
             exec busybox telnetd -i -K -l /tmp/{name}.sh < /tmp/{name}.keys"
        );
        Screen { machine, name, output: Lines::of(machine, name, &["/bin/sh", "-ec", &served]) }
    }

    /// Waits for text that the program writes.
    fn until(&mut self, what: &str) -> String {
        self.output.until(LIMIT, what)
    }

    fn press(&self, key: &str) {
        shell(self.machine, &format!("printf '{key}' > /tmp/{}.keys", self.name));
    }

    /// It ends as it should, and restores the terminal.
    fn ends(mut self) {
        let text = self.until("terminal as before");
        let (left, code) = (text.find(SCREEN_IS_LEFT), text.find("exit code 0"));
        assert!(left.is_some() && left < code, "{text:?}");
    }
}
