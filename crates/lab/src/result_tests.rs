// SPDX-License-Identifier: GPL-2.0-or-later

use holdfast_policy::VcpuClass;
use serde_json::{Value, json};

use super::*;
use crate::testdata;

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../docs/reference/result.schema.json"))
        .expect("it is JSON")
}

/// The published schema lets later versions add fields; this version must not have any that the
/// schema does not document.
fn strict(mut schema: Value) -> Value {
    fn close(v: &mut Value) {
        match v {
            Value::Object(map) => {
                let is_struct = map.contains_key("properties");
                if is_struct && !map.contains_key("additionalProperties") {
                    map.insert("additionalProperties".into(), Value::Bool(false));
                }
                map.values_mut().for_each(close);
            }
            Value::Array(items) => items.iter_mut().for_each(close),
            _ => (),
        }
    }
    close(&mut schema);
    schema
}

fn errors(schema: &Value, result: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(schema).expect("the schema is one");
    validator.iter_errors(result).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

#[test]
fn a_result_is_as_the_schema_says_and_has_nothing_else() {
    for result in [testdata::result(), testdata::with_a_vm_beside()] {
        let result = serde_json::to_value(result).unwrap();
        let none: Vec<String> = Vec::new();
        assert_eq!(errors(&strict(schema()), &result), none);
        assert_eq!(errors(&schema(), &result), none);
    }
}

#[test]
fn the_schema_refuses_what_is_no_result() {
    let good = serde_json::to_value(testdata::result()).unwrap();
    let broken = |change: fn(&mut Value)| {
        let mut result = good.clone();
        change(&mut result);
        assert_ne!(result, good);
        !errors(&schema(), &result).is_empty()
    };
    assert!(broken(|r| r["schema"] = json!("holdfast.result/1")));
    assert!(broken(|r| r["comparisons"][0]["ratio"] = json!("1.2")));
    assert!(broken(|r| drop(r["comparisons"][0].as_object_mut().unwrap().remove("p"))));
    assert!(broken(|r| drop(r["provenance"].as_object_mut().unwrap().remove("accelerator"))));
    assert!(broken(|r| r["windows"][0]["metrics"]["no_such_metric"] = json!(1.0)));
}

#[test]
fn the_schema_knows_every_metric() {
    let names: Vec<String> = Metric::all().iter().map(|m| m.name()).collect();
    assert_eq!(schema()["$defs"]["metric"]["enum"], json!(names));
    let manual = include_str!("../../../docs/reference/result.md");
    for name in names {
        let class = VcpuClass::ALL
            .into_iter()
            .find_map(|class| name.strip_prefix(class.name())?.strip_prefix('_'));
        let name = class.map_or(name.clone(), |rest| format!("CLASS_{rest}"));
        assert!(manual.contains(&format!("`{name}`")), "docs/reference/result.md lacks {name}");
    }
}

#[test]
fn is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("result.json");
    let result = testdata::result();
    result.write(&path).unwrap();
    assert_eq!(RunResult::read(&path).unwrap(), result);
    assert_eq!(RunResult::read(dir.path()).unwrap(), result);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left there");
}

#[test]
fn another_schema_is_refused_by_its_tag() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("result.json");
    std::fs::write(&path, r#"{"schema": "holdfast.result/9", "news": []}"#).unwrap();
    let message = RunResult::read(&path).unwrap_err().to_string();
    assert!(message.contains("holdfast.result/9"), "{message}");
}

#[test]
fn verdicts_follow_from_the_figures() {
    let result = testdata::result();
    let [low, share, long] = &result.expectations[..] else { panic!("there are three") };
    let c =
        result.comparison("three-ways", "lock", "holdfast", Metric::WorkPerVmCpuSecond).unwrap();
    assert_eq!(low.measured, Some(c.low));
    assert!(low.met && share.met && !long.met);
    assert_eq!(c.baseline, "stock");
    assert_eq!(c.rounds, 8);
    // The window that failed takes its round out of the comparison, not the others.
    let failed =
        result.comparison("three-ways", "lock <pause>", "base", Metric::WorkPerVmCpuSecond);
    assert_eq!(failed.unwrap().rounds, 7);
}

/// Else the verdicts of a result that is read do not follow from its windows.
#[test]
fn figures_are_read_as_they_were_written() {
    for i in 1..20_000u32 {
        let figure = f64::from(i).sqrt() / 7.3;
        let text = serde_json::to_string(&figure).unwrap();
        let read: f64 = serde_json::from_str(&text).unwrap();
        assert_eq!(read.to_bits(), figure.to_bits(), "{text}");
    }
}
