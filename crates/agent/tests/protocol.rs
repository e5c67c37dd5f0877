// SPDX-License-Identifier: GPL-2.0-or-later
//! Each side reads what the other side writes.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_agent::protocol::*;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9-]{1,12}", any::<String>()]
}

fn spawn() -> impl Strategy<Value = Spawn> {
    let env = prop::collection::btree_map(name(), name(), 0..3);
    let cpus = prop::option::of(prop::collection::vec(0u32..64, 0..4));
    (name(), prop::collection::vec(name(), 1..4), env, cpus, any::<bool>())
        .prop_map(|(name, argv, env, cpus, stdin)| Spawn { name, argv, env, cpus, stdin })
}

fn request() -> impl Strategy<Value = Request> {
    let leaf = prop_oneof![
        Just(Request::Hello),
        Just(Request::Poweroff),
        spawn().prop_map(Request::Spawn),
        (name(), name(), any::<u64>()).prop_map(|(name, line, timeout_ms)| Request::Ask {
            name,
            line,
            timeout_ms
        }),
        (name(), any::<u64>()).prop_map(|(name, timeout_ms)| Request::Wait { name, timeout_ms }),
        (name(), any::<i32>()).prop_map(|(name, signal)| Request::Kill { name, signal }),
        (name(), any::<Vec<u8>>(), any::<u32>())
            .prop_map(|(path, data, mode)| Request::WriteFile { path, data, mode }),
        (name(), name()).prop_map(|(name, params)| Request::LoadModule { name, params }),
        prop::collection::vec(name(), 0..4).prop_map(|names| Request::CpuTimes { names }),
        (name(), name(), prop::option::of(name())).prop_map(|(guest, socket, qmp)| {
            Request::Connect(Connect { guest, socket, qmp, ..Connect::default() })
        }),
        (name(), name()).prop_map(|(guest, execute)| Request::Qmp {
            guest,
            command: serde_json::json!({ "execute": execute }),
        }),
        prop::collection::vec(name(), 0..4).prop_map(|symbols| Request::Witness { symbols }),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            (name(), inner.clone()).prop_map(|(guest, request)| request.relayed_to(guest)),
            prop::collection::vec(inner, 0..4).prop_map(|requests| Request::Batch { requests }),
        ]
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    let task = (name(), any::<(i32, i32, u64, u64, u64)>()).prop_map(|(name, t)| TaskTime {
        comm: name.clone(),
        name,
        pid: t.0,
        tid: t.1,
        run_ns: t.2,
        wait_ns: t.3,
        switches: t.4,
    });
    let status =
        any::<(Option<i32>, Option<i32>)>().prop_map(|(code, signal)| ExitStatus { code, signal });
    let leaf = prop_oneof![
        Just(Reply::Done),
        any::<i32>().prop_map(|pid| Reply::Spawn { pid }),
        name().prop_map(|line| Reply::Ask { line }),
        (status, name(), name()).prop_map(|(status, stdout_tail, stderr_tail)| Reply::Wait(
            Ended { status, stdout_tail, stderr_tail }
        )),
        (any::<Vec<u8>>(), any::<u64>(), any::<bool>())
            .prop_map(|(data, next, ended)| Reply::Output { data, next, lost: next, ended }),
        (any::<u64>(), prop::collection::vec(task, 0..4))
            .prop_map(|(t_ns, tasks)| Reply::CpuTimes(CpuTimes { t_ns, tasks })),
        (any::<u64>(), prop::collection::vec(any::<u64>(), 64))
            .prop_map(|(ops, hist)| Reply::Counters(Counters { t_ns: ops, ops, hist })),
        (any::<u32>(), prop::collection::btree_map(name(), any::<u64>(), 0..4)).prop_map(
            |(cpu, symbols)| Reply::Witness(Witness { cpus: vec![WitnessCpu { cpu, symbols }] })
        ),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let outcome = prop_oneof![
            inner.clone().prop_map(Outcome::Ok),
            (name(), name())
                .prop_map(|(message, console)| Outcome::Error(Failure { message, console })),
        ];
        prop_oneof![
            inner.prop_map(|reply| Reply::Relay { reply: Box::new(reply) }),
            prop::collection::vec(outcome, 0..4).prop_map(|responses| Reply::Batch { responses }),
        ]
    })
}

/// One line, and the same value again.
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let line = serde_json::to_string(value).unwrap();
    assert!(!line.contains('\n'), "{line}");
    assert_eq!(&serde_json::from_str::<T>(&line).unwrap(), value, "{line}");
}

proptest! {
    #[test]
    fn calls_survive_the_wire(id: u64, request in request()) {
        round_trip(&Call { id, request });
    }

    #[test]
    fn answers_survive_the_wire(id: u64, reply in reply()) {
        round_trip(&Answer { id, outcome: Outcome::Ok(reply) });
    }

    #[test]
    fn the_outermost_is_waited_for_longest(request in request(), guest in name()) {
        let inner = request.time_limit();
        prop_assert!(inner >= Duration::from_secs(1));
        let relayed = request.relayed_to(guest);
        // Saturated limits are as long as a limit can be.
        prop_assert!(relayed.time_limit() > inner || inner == Duration::from_millis(u64::MAX));
        let batch = Request::Batch { requests: vec![relayed.clone()] };
        let longest = Duration::from_millis(u64::MAX);
        prop_assert!(batch.time_limit() > relayed.time_limit() || batch.time_limit() == longest);
    }
}

#[test]
fn looks_on_the_wire_as_documented() {
    let spawn = Spawn {
        name: "hog0".into(),
        argv: vec!["/workloads/hog".into()],
        env: BTreeMap::new(),
        cpus: Some(vec![0, 1]),
        stdin: false,
    };
    let call = Call { id: 7, request: Request::Spawn(spawn).relayed_to("vm0") };
    assert_eq!(
        serde_json::to_value(&call).unwrap(),
        serde_json::json!({
            "id": 7, "op": "relay", "guest": "vm0",
            "request": { "op": "spawn", "name": "hog0", "argv": ["/workloads/hog"], "env": {},
                         "cpus": [0, 1], "stdin": false },
        })
    );
    let answer = Answer { id: 7, outcome: Outcome::Ok(Reply::Spawn { pid: 77 }) };
    let expected = r#"{"id":7,"ok":{"op":"spawn","pid":77}}"#;
    assert_eq!(serde_json::to_string(&answer).unwrap(), expected);
    let answer = Answer { id: 8, outcome: Outcome::Error(Failure::new("no child is called `x`")) };
    let expected = r#"{"id":8,"error":{"message":"no child is called `x`"}}"#;
    assert_eq!(serde_json::to_string(&answer).unwrap(), expected);
}
