// SPDX-License-Identifier: GPL-2.0-or-later
//! The operator's name of a VM: from its VMM's command line, else from its control group.

use std::fs::{self, File};
use std::io::{self, Read};

use holdfast_checks::steers;

/// Longest name that is shown.
pub(crate) const NAME_CHARS: usize = 64;

/// Bytes of a command line that are read. The process chooses its length, up to all of its memory.
const CMDLINE_MAX: u64 = 128 << 10;

/// What is known of a VM by its process.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// The VM's name, if it has one.
    pub(crate) name: Option<String>,
    /// Its UUID, if QEMU is given one, as libvirt and Proxmox do.
    pub(crate) uuid: Option<String>,
    /// Name of the program that runs it.
    pub(crate) vmm: String,
}

impl Names {
    /// Reads them once.
    pub(crate) fn of(pid: u32) -> Self {
        let args = cmdline(pid);
        let executable = executable(pid);
        let program = program(executable.as_deref().unwrap_or_default(), &args);
        let groups = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        Self {
            name: name_of(&program, &args, &String::from_utf8_lossy(&groups)),
            uuid: uuid_of(&args),
            vmm: match executable {
                Some(_) => printable(&program, NAME_CHARS),
                None => "(ended)".into(),
            },
        }
    }
}

fn uuid_of(args: &[String]) -> Option<String> {
    let of_smbios = |value: String| {
        value.split(',').find_map(|part| part.strip_prefix("uuid=").map(str::to_owned))
    };
    let given = value_of(args, &["-uuid", "--uuid"]);
    let uuid = given.or_else(|| value_of(args, &["-smbios"]).and_then(of_smbios))?;
    Some(printable(&uuid, NAME_CHARS)).filter(|uuid| !uuid.is_empty())
}

fn cmdline(pid: u32) -> Vec<String> {
    beginning(&format!("/proc/{pid}/cmdline"), CMDLINE_MAX)
        .unwrap_or_default()
        .split(|byte| *byte == 0)
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .collect()
}

/// The first bytes of a file, up to `max`.
fn beginning(path: &str, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The file that a process executes. If that cannot be read, `comm`, which is cut off after 15
/// bytes and which the process may change (prctl(2), QEMU's `-name process=`).
fn executable(pid: u32) -> Option<String> {
    let exe = fs::read_link(format!("/proc/{pid}/exe"));
    let exe = exe.map(|path| path.to_string_lossy().into_owned());
    let comm = || fs::read(format!("/proc/{pid}/comm"));
    exe.or_else(|_| comm().map(|comm| String::from_utf8_lossy(&comm).trim().to_owned())).ok()
}

/// Name of the program in this file. For a dynamic loader (ld.so(8)) it is the loaded program.
fn program(executable: &str, args: &[String]) -> String {
    let path = executable.strip_suffix(" (deleted)").unwrap_or(executable);
    let is_loader =
        |name: &str| name.starts_with("ld-") || name.ends_with(".so") || name.contains(".so.");
    let mut name = file_name(path);
    if is_loader(name) {
        name = loaded(args).map_or(name, file_name);
    }
    // Wrappers of Nix rename the program.
    let wrapped = name.strip_prefix('.').and_then(|name| name.strip_suffix("-wrapped"));
    wrapped.unwrap_or(name).to_owned()
}

/// The program that a loader has loaded: the first argument after its own options.
fn loaded(args: &[String]) -> Option<&str> {
    /// Options of glibc's and musl's loaders with a value.
    const WITH_VALUE: [&str; 7] = [
        "--argv0",
        "--audit",
        "--glibc-hwcaps-mask",
        "--glibc-hwcaps-prepend",
        "--inhibit-rpath",
        "--library-path",
        "--preload",
    ];
    let mut args = args.iter().skip(1).map(String::as_str);
    loop {
        match args.next()? {
            "--" => return args.next(),
            option if WITH_VALUE.contains(&option) => _ = args.next()?,
            option if option.starts_with("--") => {}
            path => return Some(path),
        }
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The name on the command line; else the name of the machine's scope; else the name of the VMM's
/// control socket.
fn name_of(program: &str, args: &[String], groups: &str) -> Option<String> {
    let args = args.get(1..).unwrap_or_default();
    let is_some = |name: &String| !name.is_empty();
    let name = given_name(program, args).filter(is_some);
    let name = name.or_else(|| from_cgroup(groups).filter(is_some));
    let name = name.or_else(|| socket_name(program, args).filter(is_some));
    name.map(|name| printable(&name, NAME_CHARS))
}

fn given_name(program: &str, args: &[String]) -> Option<String> {
    let is_qemu = program.contains("qemu") || program == "kvm";
    let is_kvmtool = program.starts_with("lkvm") || program == "kvmtool" || program == "vm";
    // QEMU accepts two dashes for one, but no `=` after the option; of several names the last
    // counts.
    let is_qemu_name = |arg: &str| arg == "-name" || is_qemu && arg == "--name";
    let values = args.windows(2).filter(|pair| is_qemu_name(&pair[0])).map(|pair| &pair[1]);
    match values.filter_map(|value| qemu_guest(value)).next_back() {
        None if is_qemu => None,
        // Firecracker, whose jailer adds `--id=`.
        None => value_of(args, &["--id"])
            // crosvm, kvmtool.
            .or_else(|| value_of(args, &["--name"]))
            .or_else(|| value_of(args, &["-n"]).filter(|_| is_kvmtool)),
        name => name,
    }
}

/// The value of the last of these options: the next argument, or the text after a `=`.
fn value_of(args: &[String], options: &[&str]) -> Option<String> {
    args.iter().enumerate().rev().find_map(|(i, arg)| {
        options.iter().find_map(|option| match arg.strip_prefix(option)? {
            "" => args.get(i + 1).cloned(),
            rest => rest.strip_prefix('=').map(str::to_owned),
        })
    })
}

/// The guest's name in the value of QEMU's `-name`, `guest=NAME,debug-threads=on` or `NAME,...`. As
/// QEMU's get_opt_name_value() reads it: `guest=` is the key of a first value without one, a comma
/// ends a value, and two are a comma in it.
fn qemu_guest(text: &str) -> Option<String> {
    let (mut guest, mut rest) = (None, text);
    while !rest.is_empty() {
        let key_len = rest.find(['=', ',']).unwrap_or(rest.len());
        let key = match rest[key_len..].strip_prefix('=') {
            Some(value) => {
                let key = &rest[..key_len];
                rest = value;
                key
            }
            None if rest.len() == text.len() => "guest",
            None => "",
        };
        let mut value = String::new();
        let mut chars = rest.chars();
        while let Some(c) = chars.next() {
            if c == ',' && !chars.as_str().starts_with(',') {
                break;
            }
            if c == ',' {
                chars.next();
            }
            value.push(c);
        }
        rest = chars.as_str();
        if key == "guest" {
            guest = Some(value);
        }
    }
    guest
}

/// Name of the control socket, without its suffix: cloud-hypervisor has no names for VMs, and other
/// VMMs do not require them. A socket that is passed as a file descriptor has no name.
fn socket_name(program: &str, args: &[String]) -> Option<String> {
    let of_cloud_hypervisor = |value: String| {
        let mut parts = value.split(',');
        match parts.clone().find_map(|part| part.strip_prefix("path=")) {
            Some(path) => Some(path.to_owned()),
            None => (!parts.any(|part| part.starts_with("fd="))).then_some(value),
        }
    };
    let socket = value_of(args, &["--api-socket"])
        .and_then(of_cloud_hypervisor)
        // Firecracker; crosvm.
        .or_else(|| value_of(args, &["--api-sock"]))
        .or_else(|| value_of(args, &["-s", "--socket"]).filter(|_| program.contains("crosvm")))?;
    let file = file_name(&socket);
    Some(file.rsplit_once('.').map_or(file, |(stem, _)| stem).to_owned())
}

/// Scope of systemd-machined, at which libvirt registers its VMs: machine-qemu\x2d1\x2dNAME.scope.
fn from_cgroup(text: &str) -> Option<String> {
    let mut parts = text.lines().flat_map(|line| line.split('/'));
    let scope = parts.find_map(|part| part.strip_prefix("machine-")?.strip_suffix(".scope"))?;
    let machine = unescape(scope);
    Some(libvirt_domain(&machine).map(str::to_owned).unwrap_or(machine))
}

/// The domain of a machine that libvirt named: DRIVER-ID-NAME, with the user of a session or
/// `embed-HASH` before the ID (virDomainDriverGenerateMachineName()). NAME lacks characters that
/// are not allowed in host names, and its end if the whole is longer than 64 characters.
fn libvirt_domain(machine: &str) -> Option<&str> {
    let mut rest = machine.strip_prefix("qemu-").or_else(|| machine.strip_prefix("ch-"))?;
    loop {
        let (part, after) = rest.split_once('-')?;
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(after).filter(|name| !name.is_empty());
        }
        rest = after;
    }
}

/// As systemd-escape(1) --unescape, except for slashes: \xNN is a byte.
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

/// Makes text of other programs, guests and files safe: nothing in it steers a terminal, reorders a
/// line or fills the screen.
pub(crate) fn printable(text: &str, max_chars: usize) -> String {
    text.chars().map(|c| if steers(c) { '?' } else { c }).take(max_chars).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    fn split(cmdline: &str) -> Vec<String> {
        cmdline.split(' ').map(str::to_owned).collect()
    }

    fn named(cmdline: &str, groups: &str) -> Option<String> {
        let args = split(cmdline);
        name_of(&program(&args[0], &args), &args, groups)
    }

    #[test]
    fn reads_the_uuids_given_to_qemu() {
        let uuid = "0c24e29f-0000-4000-8000-000000000001";
        let of = |cmdline: String| uuid_of(&split(&cmdline));
        assert_eq!(of(format!("qemu -uuid {uuid} -m 1")).as_deref(), Some(uuid));
        assert_eq!(of(format!("kvm -smbios type=1,uuid={uuid}")).as_deref(), Some(uuid));
        assert_eq!(of("qemu -name x".into()), None);
        assert_eq!(of("qemu -uuid".into()), None);
    }

    #[test]
    fn reads_the_names_given_to_vmms() {
        for (cmdline, name) in [
            // QEMU, started by hand, by libvirt and by Proxmox.
            ("qemu-system-x86_64 -name web1 -m 512", Some("web1")),
            ("/usr/bin/qemu-system-x86_64 -name guest=db,debug-threads=on -S", Some("db")),
            ("/usr/bin/kvm -id 100 -name web,debug-threads=on -no-shutdown", Some("web")),
            ("qemu-system-x86_64 -name debug-threads=on,guest=x", Some("x")),
            ("qemu-system-x86_64 --name y,process=z", Some("y")),
            ("/usr/libexec/qemu-kvm --name guest=y", Some("y")),
            ("/lib64/ld-linux-x86-64.so.2 /usr/bin/qemu-system-x86_64 --name guest=y", Some("y")),
            ("qemu-system-x86_64 -name guest=a,,b", Some("a,b")),
            ("qemu-system-x86_64 -name a,,b=c,,,process=z", Some("a,b=c,")),
            ("qemu-system-x86_64 -name guest=a=b", Some("a=b")),
            ("qemu-system-x86_64 -name process=p,,guest=q", None),
            ("qemu-system-x86_64 -name guest=a,guest=b", Some("b")),
            ("qemu-system-x86_64 -name a -m 512 -name process=z -name b", Some("b")),
            ("qemu-system-x86_64 -nodefaults", None),
            ("qemu-system-x86_64 -name", None),
            ("qemu-system-x86_64 -name guest=", None),
            ("qemu-system-x86_64 -name guest=,debug-threads=on", None),
            // QEMU does not accept this form.
            ("qemu-system-x86_64 -name=x --id y", None),
            ("stratovirt -name s", Some("s")),
            ("firecracker --id fc-7 --api-sock /run/fc.sock", Some("fc-7")),
            (
                "/firecracker --id=551e7604 --start-time-us=7 --parent-cpu-time-us=9",
                Some("551e7604"),
            ),
            ("firecracker --api-sock /run/fc9.sock", Some("fc9")),
            ("cloud-hypervisor --api-socket=path=/run/ch/vm3.sock --cpus boot=2", Some("vm3")),
            ("cloud-hypervisor --api-socket /run/vm4-socket", Some("vm4-socket")),
            ("cloud-hypervisor --api-socket path=/run/vm5.sock,fd=12", Some("vm5")),
            ("cloud-hypervisor --api-socket fd=12,path=/run/vm5.sock", Some("vm5")),
            ("cloud-hypervisor --api-socket fd=12", None),
            ("cloud-hypervisor --api-socket=fd=12", None),
            ("cloud-hypervisor --api-socket path=", None),
            ("cloud-hypervisor --api-socket", None),
            ("crosvm run --name=arc -s /run/x.sock", Some("arc")),
            ("crosvm run -s /run/arcvm.sock", Some("arcvm")),
            ("crosvm run --name a,b", Some("a,b")),
            ("crosvm run --socket=/run/arcvm.sock", Some("arcvm")),
            ("lkvm run --name k", Some("k")),
            ("lkvm run -k bzImage -n k", Some("k")),
            ("lkvm-static run -n k", Some("k")),
            ("other -n x -s y", None),
            ("", None),
        ] {
            assert_eq!(named(cmdline, "").as_deref(), name, "{cmdline}");
        }
    }

    #[test]
    fn names_the_program_behind_loaders_and_wrappers() {
        for (executable, cmdline, name) in [
            ("/usr/bin/qemu-system-x86_64", "whatever -it says", "qemu-system-x86_64"),
            ("/usr/bin/qemu-system-x86_64 (deleted)", "", "qemu-system-x86_64"),
            ("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "ld.so /opt/bin/kvm -S", "kvm"),
            ("/lib/ld-musl-x86_64.so.1", "ld --library-path /opt -- ./qemu -S", "qemu"),
            ("/usr/lib/musl/lib/libc.so", "ld --argv0=kvm --preload x.so crosvm run", "crosvm"),
            (
                "/lib/ld-2.31.so",
                "ld.so --inhibit-cache --argv0 a --audit b q/firecracker",
                "firecracker",
            ),
            // `comm`, where the executable cannot be read.
            ("ld-linux-x86-64", "/lib64/ld-linux-x86-64.so.2 /bin/qemu-kvm -S", "qemu-kvm"),
            // A process may overwrite its arguments.
            ("/lib64/ld-linux-x86-64.so.2", "", "ld-linux-x86-64.so.2"),
            ("/lib64/ld-linux-x86-64.so.2", "x --preload", "ld-linux-x86-64.so.2"),
            (
                "/nix/store/q/bin/.qemu-system-x86_64-wrapped",
                "qemu-system-x86_64",
                "qemu-system-x86_64",
            ),
            ("firecracker", "", "firecracker"),
        ] {
            assert_eq!(program(executable, &split(cmdline)), name, "{executable} {cmdline}");
        }
    }

    #[test]
    fn falls_back_to_the_machine_scope() {
        let scope =
            |name: &str| format!("0::/machine.slice/machine-{name}.scope/libvirt/emulator\n");
        for (name, expected) in [
            // libvirt's names: of the system, of a session, of an embedded driver.
            (r"qemu\x2d3\x2dbuild", "build"),
            (r"ch\x2d1\x2dweb\x2d2", "web-2"),
            (r"qemu\x2dmary\x2dann\x2d3\x2dbuild", "build"),
            (r"qemu\x2dembed\x2d1f2e3d4c\x2d3\x2dbuild", "build"),
            (r"qemu\x2d3", "qemu-3"),
            (r"qemu\x2d3\x2d", "qemu-3-"),
            (r"qemu\x2dbuild", "qemu-build"),
            // Names of other programs.
            (r"vmspawn\x2d3\x2dx", "vmspawn-3-x"),
            (r"a\x20b\x5bc\x5D", "a b[c]"),
            (r"caf\xc3\xa9", "caf\u{e9}"),
            (r"\x1b\xff\x0", "?\u{fffd}\\x0"),
            (r"\x\x+1\", r"\x\x+1\"),
        ] {
            assert_eq!(named("qemu-kvm -S", &scope(name)).as_deref(), Some(expected), "{name}");
        }
        for none in [
            "0::/user.slice/session-1.scope",
            "0::/machine.slice/machine-web.slice",
            "0::/machine.slice/machine-.scope",
            "",
        ] {
            assert_eq!(named("qemu-kvm -S", none), None, "{none}");
        }
        let below =
            "1:name=systemd:/machine.slice/machine-web.slice/machine-ch\\x2d1\\x2dx.scope\n";
        assert_eq!(named("cloud-hypervisor --api-socket fd=12", below).as_deref(), Some("x"));
    }

    #[test]
    fn a_given_name_wins_over_the_scope_and_the_scope_over_the_socket() {
        let groups = r"0::/machine.slice/machine-ch\x2d1\x2dweb.scope";
        for (cmdline, name) in [
            ("cloud-hypervisor --api-socket fd=12", "web"),
            ("cloud-hypervisor --api-socket /run/libvirt/ch/web-socket", "web"),
            ("qemu-kvm -name guest=a", "a"),
            ("qemu-kvm -name guest=", "web"),
        ] {
            assert_eq!(named(cmdline, groups).as_deref(), Some(name), "{cmdline}");
        }
    }

    #[test]
    fn reads_a_bounded_part_of_a_command_line() {
        assert_eq!(beginning("/dev/zero", 1000).unwrap(), [0; 1000]);
        assert!(beginning("/proc/self/nosuch", 1000).is_err());
    }

    /// Starts it, and calls `look` while it runs.
    fn while_running(command: &mut Command, look: impl FnOnce(u32)) {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // `cat` has answered, so the program is loaded.
        let mut echo = [0; 1];
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut echo).unwrap();
        look(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_program_whose_name_is_not_utf8_has_not_ended() {
        let dir = tempfile::tempdir().unwrap();
        let cat = dir.path().join(OsStr::from_bytes(b"q\xff\x1bx"));
        fs::copy("/bin/cat", &cat).unwrap();
        while_running(&mut Command::new(&cat), |pid| {
            assert_eq!(Names::of(pid).vmm, "q\u{fffd}?x");
            fs::remove_file(&cat).unwrap();
            assert_eq!(Names::of(pid).vmm, "q\u{fffd}?x", "it runs on");
            assert!(crate::host::process_begin(pid).is_some());
        });
        let ended = Names::of(u32::MAX);
        assert_eq!((ended.vmm.as_str(), ended.name, ended.uuid), ("(ended)", None, None));
    }

    #[test]
    fn names_the_program_that_a_loader_runs() {
        const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
        let mut command = Command::new(LOADER);
        command.args(["--argv0", "qemu", "/bin/cat"]);
        if !Path::new(LOADER).exists() {
            eprintln!("skipped: no {LOADER}");
            return;
        }
        while_running(&mut command, |pid| assert_eq!(Names::of(pid).vmm, "cat"));
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
