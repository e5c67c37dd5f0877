// SPDX-License-Identifier: GPL-2.0-or-later
//! PID 1: from a bare root file system to a machine the lab can talk to.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use holdfast_agent::protocol::{PORT, Role};

use crate::children::check;
use crate::{modules, serve};

/// Mounts that programs expect. A kernel may lack some, which is no reason to give up.
const MOUNTS: &[(&str, &str, &str)] = &[
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", ""),
    ("devpts", "/dev/pts", ""),
    ("tmpfs", "/dev/shm", ""),
    ("tmpfs", "/tmp", ""),
    ("tmpfs", "/run", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("bpf", "/sys/fs/bpf", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
    ("debugfs", "/sys/kernel/debug", ""),
];

/// Time the virtio-serial port may take to appear.
const PORT_PATIENCE: Duration = Duration::from_secs(20);

/// Serves until the machine is switched off; returns only on failure.
pub(crate) fn run() -> Result<Infallible, String> {
    for (kind, at, options) in MOUNTS {
        if let Err(e) = mount(kind, at, options) {
            eprintln!("holdfast-agent: mounting {kind} at {at}: {e}");
        }
    }
    for (name, target) in
        [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")]
    {
        let _ = std::os::unix::fs::symlink(target, format!("/dev/{name}"));
    }
    if let Err(e) = loopback_up() {
        eprintln!("holdfast-agent: bringing up lo: {e}");
    }
    // SAFETY: no other thread runs yet.
    unsafe {
        std::env::set_var("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        std::env::set_var("HOME", "/root");
    }
    // Samples are due at a moment, not after the load has had its slices. The agent works for
    // microseconds at a time and only on request. Later threads inherit the policy; children do
    // not.
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: plain system call with a valid pointer; a refusal leaves an ordinary task.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &first) };
    raise(libc::RLIMIT_NOFILE, 1 << 20);
    raise(libc::RLIMIT_MEMLOCK, libc::RLIM_INFINITY);

    modules::load_at_boot()?;
    let role = role(&fs::read_to_string("/proc/cmdline").unwrap_or_default())?;
    if role == Role::Host {
        stop_collapsing();
    }
    let path = find_port()?;
    let port = OpenOptions::new().read(true).write(true).open(&path);
    let port: File = port.map_err(|e| format!("opening {}: {e}", path.display()))?;
    serve::as_init(port, role).map_err(|e| format!("serving on {}: {e}", path.display()))
}

/// Puts khugepaged to sleep for 50 days. At nice 19 it collapses pages of a QEMU and locks QEMU's
/// memory. Where CPUs are scarce QEMU then waits half a second, under any scheduler, and so does a
/// request to a guest.
fn stop_collapsing() {
    const SLEEP: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";
    if let Err(e) = fs::write(SLEEP, u32::MAX.to_string()) {
        eprintln!("holdfast-agent: {SLEEP}: {e}");
    }
}

fn mount(kind: &str, at: &str, options: &str) -> std::io::Result<()> {
    fs::create_dir_all(at)?;
    let [kind, at, options] = [kind, at, options].map(|s| CString::new(s).expect("no NUL"));
    // SAFETY: plain system call; the strings live through it.
    check(unsafe {
        libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
    })
}

/// Every machine has a loopback network (netdevice(7)).
fn loopback_up() -> std::io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: a C structure of numbers and bytes.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: plain system call; the descriptor is open and the pointer valid.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) })
}

fn raise(resource: libc::__rlimit_resource_t, limit: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: plain system call with a valid pointer; a refusal leaves the old limit.
    unsafe { libc::setrlimit(resource, &limit) };
}

fn role(cmdline: &str) -> Result<Role, String> {
    let word = cmdline.split_ascii_whitespace().find_map(|w| w.strip_prefix("holdfast.role="));
    match word {
        Some("host") => Ok(Role::Host),
        Some("guest") => Ok(Role::Guest),
        other => Err(format!("holdfast.role={other:?} on the command line; host or guest needed")),
    }
}

fn find_port() -> Result<PathBuf, String> {
    const CLASS: &str = "/sys/class/virtio-ports";
    let deadline = Instant::now() + PORT_PATIENCE;
    loop {
        for entry in fs::read_dir(CLASS).into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            let device = PathBuf::from("/dev").join(entry.file_name());
            if name.trim_end() == PORT && device.exists() {
                return Ok(device);
            }
        }
        if Instant::now() > deadline {
            let secs = PORT_PATIENCE.as_secs();
            return Err(format!("no virtio-serial port called {PORT} in {CLASS} after {secs} s"));
        }
        // Device probing has no event an initial program could wait for without netlink.
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_its_role_from_the_command_line() {
        assert_eq!(role("quiet holdfast.role=guest panic=-1").unwrap(), Role::Guest);
        assert_eq!(role("holdfast.role=host\n").unwrap(), Role::Host);
        assert!(role("quiet").is_err());
        assert!(role("holdfast.role=other").is_err());
    }
}
