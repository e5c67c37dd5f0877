// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::metric::Metric;

const GOOD: &str = r#"
name = "good"
[guests.main]
vcpus = 2
[[contenders]]
name = "stock"
[[contenders]]
name = "other"
command = ["scx_other"]
[[cases]]
name = "lock"
workload = "lock"
"#;

fn parse(text: &str) -> Result<Experiment, ExperimentError> {
    Experiment::parse(text, Path::new("x.toml"))
}

/// The message for [`GOOD`] after `from` was replaced by `to`.
fn error(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    parse(&GOOD.replace(from, to)).unwrap_err().to_string()
}

#[test]
fn what_a_clock_goes_by() {
    let with =
        |host: &str| GOOD.replace("[guests.main]", &format!("[host]\n{host}\n[guests.main]"));
    for (host, clock) in [
        ("pcpus = 2", Clock::Auto),
        ("clock = \"auto\"", Clock::Auto),
        ("clock = \"machine\"", Clock::Machine),
        ("clock = \"instructions\"", Clock::Instructions),
    ] {
        assert_eq!(parse(&with(host)).unwrap().host.clock, clock);
    }
    let unknown = parse(&with("clock = \"wall\"")).unwrap_err().to_string();
    assert!(unknown.contains("instructions"), "{unknown}");
}

#[test]
fn fills_in_what_is_left_out() {
    let e = parse(GOOD).unwrap();
    assert_eq!(e.host, Host::default());
    assert_eq!(e.baseline().name, "stock");
    let case = &e.cases[0];
    assert_eq!((e.threads_of(case), e.hogs_of(case), e.pause_exits_of(case)), (2, 0, false));
    let (name, guest) = e.guest_of(case).unwrap();
    assert_eq!((name, guest.cpu), ("main", CpuFeatures::default()));
    assert_eq!(e.length_ms_of(case), e.windows.length_ms);
}

#[test]
fn a_case_overrides_the_defaults() {
    let text = GOOD.replace("[[cases]]", "[defaults]\nhogs = 2\npause_exits = true\n[[cases]]");
    let e =
        parse(&(text + "hogs = 1\npause_exits = false\nthreads = 8\nlength_ms = 900\n")).unwrap();
    let case = &e.cases[0];
    assert_eq!((e.threads_of(case), e.hogs_of(case), e.pause_exits_of(case)), (8, 1, false));
    assert_eq!(e.length_ms_of(case), 900);
}

#[test]
fn writes_what_it_reads() {
    let e = parse(GOOD).unwrap();
    let json = serde_json::to_string(&e).unwrap();
    assert_eq!(serde_json::from_str::<Experiment>(&json).unwrap(), e);
    assert_eq!(parse(&toml::to_string(&e).unwrap()).unwrap(), e);
}

#[test]
fn an_unknown_key_is_shown_with_its_line_and_the_known_ones() {
    let message = error("vcpus = 2", "vcpu = 2");
    assert!(message.contains("line 4"), "{message}");
    assert!(message.contains("`vcpu`") && message.contains("`vcpus`"), "{message}");
    assert!(error("name = \"good\"", "name = \"good\"\nrounds = 3").contains("`rounds`"));
}

#[test]
fn a_value_of_another_type_is_refused_in_words_of_the_file() {
    for (from, to, wanted) in [
        ("vcpus = 2", "vcpus = \"4\"", "string \"4\", expected a whole number"),
        ("vcpus = 2", "vcpus = -4", "integer `-4`, expected a whole number that is not negative"),
        ("command = [\"scx_other\"]", "command = \"x\"", "expected an array, such as [\"a\""),
        ("vcpus = 2", "fixed = 1", "integer `1`, expected true or false"),
        ("name = \"good\"", "", "there has to be a key `name`"),
    ] {
        let said = error(from, to);
        assert!(said.contains(wanted) && said.contains("TOML parse error at line"), "{to}: {said}");
        assert!(!said.contains("u32") && !said.contains("invalid"), "{to}: {said}");
    }
}

#[test]
fn an_unknown_kernel_line_is_shown_with_the_known_ones() {
    let message = error("vcpus = 2", "kernel = \"5.15\"");
    assert!(message.contains("6.12") && message.contains("line 4"), "{message}");
}

#[test]
fn problems_name_the_key_and_what_to_write() {
    for (from, to, key, hint) in [
        ("name = \"good\"", "name = \"Not good\"", "name", "lower-case"),
        ("vcpus = 2", "vcpus = 0", "guests.main.vcpus", "1 to 64"),
        ("vcpus = 2", "memory_mib = 4096", "host.memory_mib", "at least 5120"),
        ("workload = \"lock\"", "workload = \"lok\"", "cases[0].workload", "\"lock\""),
        ("workload = \"lock\"", "workload = \"lock\"\nthreads = 65", "cases[0].threads", "64"),
        ("workload = \"lock\"", "workload = \"lock\"\nguest = \"g\"", "cases[0].guest", "\"main\""),
        ("workload = \"lock\"", "workload = \"lock\"\nhogs = 257", "cases[0].hogs", "0 to 256"),
        (
            "workload = \"lock\"",
            "workload = \"lock\"\nargs = [\"\\u0000\"]",
            "cases[0].args",
            "NUL",
        ),
        ("vcpus = 2", "pin = [2]", "guests.main.pin", "0 to 1"),
        ("vcpus = 2", "pin = [0]\npin_width = 3", "guests.main.pin", "2 is outside 0 to 1"),
        ("vcpus = 2", "pin_width = 0", "guests.main.pin_width", "1 to 64"),
        ("vcpus = 2", "cmdline = \"a\\nb\"", "guests.main.cmdline", "control"),
        ("name = \"other\"", "name = \"stock\"", "contenders[1].name", "already"),
        ("command = [\"scx_other\"]", "command = [\"\"]", "contenders[1].command", "leave out"),
        ("command = [\"scx_other\"]", "programs = [[]]", "contenders[1].programs[0]", "arguments"),
        ("[guests.main]", "baseline = \"base\"\n[guests.main]", "baseline", "\"other\""),
        ("[[cases]]", "[windows]\nrounds = 1\n[[cases]]", "windows.rounds", "2 to"),
        ("[[cases]]", "[guests.second]\n[[cases]]", "cases[0].guest", "which one"),
    ] {
        let message = error(from, to);
        assert!(message.contains(&format!("\n  {key}: ")), "{key}: {message}");
        assert!(message.contains(hint), "{hint}: {message}");
    }
}

const TWO: &str = r#"
name = "two"
[guests.first]
vcpus = 2
[guests.second]
vcpus = 3
[[contenders]]
name = "stock"
[[contenders]]
name = "other"
command = ["scx_other"]
[[cases]]
name = "both"
guest = "first"
workload = "lock"
[[cases.beside]]
on = "second"
workload = "hog"
[[cases.beside]]
on = "host"
workload = "hostile"
"#;

#[test]
fn workloads_may_run_beside_that_of_the_case() {
    let e = parse(TWO).unwrap();
    let case = &e.cases[0];
    assert_eq!(e.guests_of(case), ["first", "second"]);
    let threads: Vec<u32> = case.beside.iter().map(|b| e.threads_beside(b)).collect();
    assert_eq!(threads, [3, 2], "as many as vCPUs, and on the host as CPUs");
    assert_eq!(parse(&toml::to_string(&e).unwrap()).unwrap(), e);
}

#[test]
fn a_workload_may_run_on_the_host_without_any_guest() {
    let on_host = GOOD.replace("workload = \"lock\"", "workload = \"pipes\"\nguest = \"host\"");
    let e = parse(&on_host).unwrap();
    let case = &e.cases[0];
    assert!(e.guest_of(case).is_none() && e.guests_of(case).is_empty());
    assert_eq!(e.threads_of(case), e.host.pcpus);
    let message = parse(&on_host.replace("pipes", "build")).unwrap_err().to_string();
    assert!(message.contains("cases[0].workload") && message.contains("\"pipes\""), "{message}");
    let beside = "[[cases.beside]]\non = \"main\"\nworkload = \"hog\"\n";
    let e = parse(&(on_host + beside)).unwrap();
    assert_eq!(e.guests_of(&e.cases[0]), ["main"], "one may run beside it");
}

#[test]
fn what_runs_beside_has_to_exist_and_to_fit() {
    for (from, to, key, hint) in [
        ("on = \"second\"", "on = \"third\"", "cases[0].beside[0].on", "\"host\""),
        ("on = \"second\"", "on = \"first\"", "cases[0].beside[0].on", "another guest"),
        ("\"hog\"", "\"hostile\"", "cases[0].beside[0].workload", "\"hog\""),
        ("\"hostile\"", "\"build\"", "cases[0].beside[1].workload", "\"hostile\""),
        ("\"hog\"", "\"hog\"\nthreads = 0", "cases[0].beside[0].threads", "1 to 64"),
        ("vcpus = 3", "memory_mib = 3000", "host.memory_mib", "at least 4408"),
        ("guests.second", "guests.host", "guests.host", "another name"),
    ] {
        assert!(TWO.contains(from), "{from}");
        let message = parse(&TWO.replace(from, to)).unwrap_err().to_string();
        assert!(message.contains(&format!("\n  {key}: ")), "{key}: {message}");
        assert!(message.contains(hint), "{hint}: {message}");
    }
}

#[test]
fn an_expectation_may_be_written_for_several_at_once() {
    let text = TWO.replace(
        "name = \"other\"",
        "name = \"new\"\ncommand = [\"n\"]\n[[contenders]]\nname = \"other\"",
    );
    let expect = "[[expect]]\ncase = [\"both\"]\ncontender = \"new\"\n\
                  metric = [\"work_per_vm_cpu_second\", \"throughput_ops_per_second\"]\n\
                  over = [\"stock\", \"other\"]\nmin = 1.1\n";
    let e = parse(&(text.clone() + expect)).unwrap();
    let all: Vec<_> = e.expect.iter().map(|e| (e.metric, e.over.as_deref().unwrap())).collect();
    let (work, throughput) = (Metric::WorkPerVmCpuSecond, Metric::Throughput);
    assert_eq!(
        all,
        [(work, "stock"), (work, "other"), (throughput, "stock"), (throughput, "other")]
    );
    assert_eq!(parse(&toml::to_string(&e).unwrap()).unwrap(), e);
    for (from, to, hint) in [
        ("[\"both\"]", "[]", "empty"),
        ("\"throughput_ops_per_second\"", "\"throughput\"", "work_per_vm_cpu_second"),
        ("\"stock\", \"other\"", "\"stock\", \"new\"", "always 1"),
        ("min = 1.1", "of = \"sd\"\nmin = 1.1", "leave out"),
    ] {
        let message = parse(&(text.clone() + &expect.replace(from, to))).unwrap_err().to_string();
        assert!(message.contains(hint), "{hint}: {message}");
    }
}

#[test]
fn names_that_would_change_what_a_terminal_shows_are_refused() {
    for (from, key) in [
        ("name = \"lock\"", "cases[0].name"),
        ("name = \"other\"", "contenders[1].name"),
        ("name = \"good\"", "summary"),
    ] {
        let to = match key {
            "summary" => "name = \"good\"\nsummary = \"\\u001b[31mred\"",
            _ => "name = \"\\u001b[31mred\"",
        };
        let message = error(from, to);
        assert!(message.contains(&format!("\n  {key}: ")), "{message}");
        assert!(!message.contains('\u{1b}'), "{message:?}");
    }
}

#[test]
fn expectations_must_be_about_something() {
    let expect =
        |fields: &str| parse(&format!("{GOOD}[[expect]]\n{fields}")).map_err(|e| e.to_string());
    let good = "case = \"lock\"\ncontender = \"other\"\nmetric = \"vm_cpu_percent\"\nmin = 1.0\n";
    assert!(expect(good).is_ok());
    for (from, to, hint) in [
        ("\"lock\"", "\"lok\"", "there is \"lock\""),
        ("\"other\"", "\"base\"", "there is \"stock\", \"other\""),
        ("\"other\"", "\"stock\"", "always 1"),
        ("vm_cpu_percent", "vm_cpu", "throughput_ops_per_second"),
        ("vm_cpu_percent", "share_deviation_points", "of = \"mean\""),
        ("min = 1.0", "", "write min or max"),
        ("min = 1.0", "min = 2.0\nmax = 1.0", "larger than max"),
        ("min = 1.0", "min = nan", "finite"),
        ("min = 1.0", "min = 0\nmax = inf", "finite"),
    ] {
        let message = expect(&good.replace(from, to)).unwrap_err();
        assert!(message.contains(hint), "{hint}: {message}");
    }
}

#[test]
fn an_expectation_may_compare_with_another_case() {
    let two = GOOD.to_owned() + "[[cases]]\nname = \"alone\"\nworkload = \"lock\"\n";
    let expect = "[[expect]]\ncase = \"lock\"\ncontender = \"other\"\nmetric = \"time_per_op_us\"\n\
                  over_case = \"alone\"\nmax = 2.0\n";
    let e = parse(&(two.clone() + expect)).unwrap();
    assert_eq!(e.expect[0].over_case.as_deref(), Some("alone"));
    assert_eq!(parse(&toml::to_string(&e).unwrap()).unwrap(), e);
    // With itself, too: that is a ratio of two cases.
    for contender in ["contender = \"stock\"", "contender = \"other\"\nover = \"other\""] {
        parse(&(two.clone() + &expect.replace("contender = \"other\"", contender))).unwrap();
    }
    assert!(e.clone().only(&["lock".into()]).expect.is_empty(), "there is nothing to compare with");
    assert_eq!(e.only(&["lock".into(), "alone".into()]).expect.len(), 1);
    for (from, to, hint) in [
        ("\"alone\"", "\"alon\"", "there is \"lock\", \"alone\""),
        ("over_case = \"alone\"", "over_case = \"lock\"", "leave it out"),
        ("max = 2.0", "of = \"mean\"\nmax = 2.0", "leave out `over_case`"),
    ] {
        let message = parse(&(two.clone() + &expect.replace(from, to))).unwrap_err().to_string();
        assert!(message.contains(hint), "{hint}: {message}");
    }
}

#[test]
fn what_only_a_result_can_say_is_refused_in_a_file() {
    for (key, line) in [("host.cpus", "cpus = [0, 1]"), ("host.scaled_from", "scaled_from = 2")] {
        let message = error("[guests.main]", &format!("[host]\n{line}\n[guests.main]"));
        assert!(message.contains(&format!("\n  {key}: ")), "{message}");
    }
}

#[test]
fn every_experiment_that_is_shipped_is_sound() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let e = Experiment::read(&path).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(path.file_stem().unwrap().to_str(), Some(e.name.as_str()));
            names.push(e.name);
        }
    }
    for name in [
        "demo",
        "no-overcommit",
        "aa",
        "smoke",
        "workloads",
        "contention",
        "bound",
        "ablation",
        "overcommit",
        "others",
        "sharing",
        "vms",
    ] {
        assert!(names.iter().any(|n| n == name), "{name} is missing");
    }
}

#[test]
fn lists_that_multiply_to_too_many_expectations_are_refused_before_they_are_multiplied() {
    let names = |n: usize| format!("[{}]", vec!["\"lock\""; n].join(", "));
    let of = |n: usize, metrics: usize| {
        let metrics = vec!["\"op_p50_us\""; metrics].join(", ");
        let names = names(n);
        parse(&format!(
            "{GOOD}[[expect]]\ncase = {names}\ncontender = {names}\nover = {names}\n\
             metric = [{metrics}]\nmin = 1.0\n"
        ))
        .unwrap_err()
        .to_string()
    };
    assert!(of(4000, 4000).contains("256000000000000 expectations"));
    // These are few enough for their problems to be reported.
    assert!(of(2, 1).contains("there is no contender \"lock\""));
}

#[test]
fn a_list_has_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("good.toml"), GOOD).unwrap();
    std::fs::create_dir(path("dir.toml")).unwrap();
    let pipe = std::ffi::CString::new(path("pipe.toml").to_str().unwrap()).unwrap();
    // SAFETY: a plain system call with a string that is terminated.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    // A pipe would have been waited for without end.
    let listed = Experiment::list(dir.path()).unwrap();
    let paths: Vec<_> = listed.iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(paths, [path("good.toml")]);
}
