// SPDX-License-Identifier: GPL-2.0-or-later
//! What the operator calls a VM: from its VMM's command line, else from its control group.

use std::fs::{self, File};
use std::io::{self, Read};

use holdfast_checks::steers;

/// Longest name that is shown.
pub(crate) const NAME_CHARS: usize = 64;

/// Of a command line so much is looked at: how long it is its process decides, up to all of its memory.
const CMDLINE_MAX: u64 = 128 << 10;

/// Name of the VM whose VMM is this process, where it has one.
pub(crate) fn vm_name(pid: u32) -> Option<String> {
    let cmdline = beginning(&format!("/proc/{pid}/cmdline"), CMDLINE_MAX).unwrap_or_default();
    let args: Vec<_> = cmdline
        .split(|byte| *byte == 0)
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .collect();
    from_cmdline(&args).or_else(|| {
        let groups = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        from_cgroup(&String::from_utf8_lossy(&groups))
    })
}

/// The first bytes of a file, up to `max`.
fn beginning(path: &str, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Name of the program (`/proc/PID/comm`).
pub(crate) fn vmm(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/comm")).map_or_else(
        |_| "(ended)".into(),
        |comm| printable(String::from_utf8_lossy(&comm).trim(), NAME_CHARS),
    )
}

fn from_cmdline(args: &[String]) -> Option<String> {
    let value_of = |wanted: &[&str]| {
        args.iter().enumerate().skip(1).find_map(|(i, arg)| {
            wanted.iter().find_map(|option| match arg.strip_prefix(option)? {
                "" => args.get(i + 1).cloned(),
                rest => rest.strip_prefix('=').map(str::to_owned),
            })
        })
    };
    // QEMU, also as libvirt starts it: -name guest=NAME,debug-threads=on.
    let qemu = value_of(&["-name"]).and_then(|value| {
        let mut parts = value.split(',');
        let first = parts.clone().next().filter(|part| !part.contains('='));
        first.or_else(|| parts.find_map(|part| part.strip_prefix("guest="))).map(str::to_owned)
    });
    // Firecracker and its jailer: --id; crosvm: --name.
    let named = qemu.or_else(|| value_of(&["--id", "--name"]));
    // cloud-hypervisor has no name; its socket is how one speaks of it.
    let found = named.or_else(|| {
        let socket = value_of(&["--api-socket", "--api-sock"])?;
        let socket = socket.strip_prefix("path=").unwrap_or(&socket);
        let file = socket.split(',').next()?.rsplit('/').next()?;
        Some(file.rsplit_once('.').map_or(file, |(stem, _)| stem).to_owned())
    });
    found.map(|name| printable(&name, NAME_CHARS)).filter(|name| !name.is_empty())
}

/// systemd-machined, which libvirt registers its VMs with: machine-qemu\x2d1\x2dNAME.scope.
fn from_cgroup(text: &str) -> Option<String> {
    let scope = text
        .lines()
        .flat_map(|line| line.split('/'))
        .find_map(|part| part.strip_prefix("machine-"))?;
    let name = unescape(scope.split(".scope").next()?);
    Some(printable(&name, NAME_CHARS)).filter(|name| !name.is_empty())
}

/// As systemd-escape(1) --unescape, but for slashes: \xNN is a byte.
fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = rest.strip_prefix(b"\\x").and_then(|hex| {
            let hex = hex.get(..2).filter(|hex| hex.iter().all(u8::is_ascii_hexdigit))?;
            u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok()
        });
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &rest[4..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Text of other programs, of guests and in files: nothing in it may steer a terminal, reorder a line
/// or fill the screen.
pub(crate) fn printable(text: &str, max_chars: usize) -> String {
    text.chars().map(|c| if steers(c) { '?' } else { c }).take(max_chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(cmdline: &str) -> Option<String> {
        from_cmdline(&cmdline.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn knows_the_names_that_vmms_are_given() {
        for (cmdline, name) in [
            ("qemu-system-x86_64 -name web1 -m 512", Some("web1")),
            ("/usr/bin/kvm -name guest=db,debug-threads=on -S", Some("db")),
            ("qemu-system-x86_64 -name debug-threads=on,guest=x", Some("x")),
            ("qemu-system-x86_64 -nodefaults", None),
            ("firecracker --id fc-7 --api-sock /run/fc.sock", Some("fc-7")),
            ("firecracker --api-sock /run/fc9.sock", Some("fc9")),
            ("cloud-hypervisor --api-socket=path=/run/ch/vm3.sock --cpus boot=2", Some("vm3")),
            ("cloud-hypervisor --api-socket /run/vm4-socket", Some("vm4-socket")),
            ("crosvm run --name=arc", Some("arc")),
            ("qemu -name", None),
        ] {
            assert_eq!(named(cmdline).as_deref(), name, "{cmdline}");
        }
    }

    #[test]
    fn falls_back_to_the_machine_scope() {
        let text = "0::/machine.slice/machine-qemu\\x2d3\\x2dbuild.scope/libvirt/emulator\n";
        assert_eq!(from_cgroup(text).as_deref(), Some("qemu-3-build"));
        assert_eq!(from_cgroup("0::/user.slice/session-1.scope"), None);
        for (scope, name) in [
            (r"machine-a\x20b\x5bc\x5D.scope", "a b[c]"),
            (r"machine-caf\xc3\xa9.scope", "caf\u{e9}"),
            (r"machine-\x1b\xff\x0.scope", "?\u{fffd}\\x0"),
            (r"machine-\x\x+1\", r"\x\x+1\"),
        ] {
            assert_eq!(from_cgroup(&format!("0::/machine.slice/{scope}")).as_deref(), Some(name));
        }
    }

    #[test]
    fn no_more_is_read_than_is_looked_at() {
        assert_eq!(beginning("/dev/zero", 1000).unwrap(), [0; 1000]);
        assert!(beginning("/proc/self/nosuch", 1000).is_err());
    }

    #[test]
    fn a_program_whose_name_is_not_utf8_has_not_ended() {
        let (named, done) = std::sync::mpsc::channel::<()>();
        let (send_tid, tid) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            fs::write("/proc/thread-self/comm", b"q\xff\x1bx").unwrap();
            let link = fs::read_link("/proc/thread-self").unwrap();
            let tid = link.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap();
            send_tid.send(tid).unwrap();
            let _ = done.recv();
        });
        let tid = tid.recv().unwrap();
        assert_eq!(vmm(tid), "q\u{fffd}?x");
        assert!(crate::host::process_begin(tid).is_some());
        drop(named);
        thread.join().unwrap();
        assert_eq!(vmm(u32::MAX), "(ended)");
    }

    #[test]
    fn a_name_cannot_steer_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n\u{9b}", 64), "a?[2Jb??");
        for c in "\u{202a}\u{202e}\u{2066}\u{2069}\u{200f}\u{2028}\u{feff}\u{ad}".chars() {
            assert_eq!(printable(&format!("a{c}b"), 64), "a?b", "{c:?}");
        }
        assert_eq!(printable("wéb 7 \u{4e2d}", 64), "wéb 7 \u{4e2d}");
        assert_eq!(printable(&"a".repeat(1000), 64).len(), 64);
    }
}
