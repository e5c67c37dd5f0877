// SPDX-License-Identifier: GPL-2.0-or-later
//! Tests the rules for Prometheus and the dashboard for Grafana in `packaging/`: they name exported
//! series only.

use std::collections::BTreeSet;
use std::process::Command;

use super::metrics::{Series, render};
use super::scheduler::tests::loaded;
use crate::sample::tests::sample;
use crate::tools;

const PROMETHEUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus");
const RULES: &str = include_str!("../../../../packaging/prometheus/holdfast.rules.yml");
const DASHBOARD: &str = include_str!("../../../../packaging/grafana/holdfast.json");

/// All series: those that are exported, those that rules record, and the one that Prometheus makes
/// for each target.
fn series() -> BTreeSet<String> {
    let page = render(&sample(1, 7, 30), Series::All, "a", Some(&loaded()));
    let mut names = BTreeSet::new();
    for (name, kind) in
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
    {
        names.insert(name.to_owned());
        if kind == "histogram" {
            names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        }
    }
    names.insert("up".into());
    let recorded = RULES.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
    names.extend(recorded.map(str::to_owned));
    names
}

/// Expressions of the rules: the text after `expr:` on its line, or the lines below it that are
/// indented further.
fn expressions_of_rules() -> Vec<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = RULES.lines().collect();
    let of = |(at, line): (usize, &&str)| {
        let rest = line.trim().strip_prefix("expr: ")?;
        let block = lines[at + 1..].iter().take_while(|below| indent(below) > indent(line));
        Some(if rest == "|" { block.copied().collect::<Vec<_>>().join(" ") } else { rest.into() })
    };
    lines.iter().enumerate().filter_map(of).collect()
}

/// Expressions of the dashboard's panels, with a window for the variable that Grafana fills in.
fn expressions_of_panels() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|it| it["expr"].as_str().unwrap().replace("$__rate_interval", "5m")).collect()
}

/// Queries of the dashboard's menus: `label_values(SERIES, LABEL)`.
fn series_of_menus() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let menus = dashboard["templating"]["list"].as_array().unwrap().iter();
    let queries = menus.filter_map(|menu| menu["query"]["query"].as_str());
    let of =
        |query: &str| query.strip_prefix("label_values(")?.rsplit_once(',').map(|x| x.0.into());
    queries.map(|query| of(query).unwrap()).collect()
}

/// Names in an expression that are neither functions, labels nor words of the language.
fn names(expression: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
        let past = |close: char| rest.find(close).map_or(rest.len(), |at| at + 1);
        let len = match c {
            '{' => past('}'),
            '[' => past(']'),
            c if is_of_name(c) => rest.find(|c| !is_of_name(c)).unwrap_or(rest.len()),
            _ => 1,
        };
        let (word, after) = rest.split_at(len);
        rest = after.trim_start();
        if !is_of_name(c) || c.is_ascii_digit() {
            continue;
        }
        if ["by", "without", "on", "ignoring"].contains(&word) {
            rest = &rest[rest.find(')').map_or(0, |at| at + 1)..];
        } else if word == "and" {
            continue;
        } else if !["(", "by ", "without "].iter().any(|next| rest.starts_with(next)) {
            names.push(word.to_owned());
        }
    }
    names
}

#[test]
fn names_of_an_expression_are_its_series() {
    let expression = "sum by (le) (rate(a:b_c{vm=~\"x\"}[5m])) / on (vm) d > 0.5 + \
                      sum(rate(e[1m])) and on (f) g";
    assert_eq!(names(expression), ["a:b_c", "d", "e", "g"]);
}

#[test]
fn rules_and_dashboard_name_only_what_is_exported() {
    let series = series();
    let (rules, panels, menus) =
        (expressions_of_rules(), expressions_of_panels(), series_of_menus());
    assert_eq!(rules.len(), RULES.matches("expr:").count());
    for expression in rules.iter().chain(&panels).chain(&menus) {
        let names = names(expression);
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            assert!(series.contains(&name), "{name} of {expression} is none of {series:#?}");
        }
    }
}

/// The server's configuration chooses the labels that distinguish hosts, so only the exporter's own
/// labels may be dropped.
#[test]
fn rules_and_dashboard_keep_hosts_apart() {
    let merges = |expression: &str| expression.contains("by (") || expression.contains("on (");
    for expression in expressions_of_rules() {
        assert!(!merges(&expression), "{expression}");
    }
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    // A repeated panel shows one host.
    let panels = dashboard["panels"].as_array().unwrap().iter();
    for panel in panels.filter(|panel| panel["repeat"] != "instance") {
        for target in panel["targets"].as_array().unwrap() {
            let [expression, legend] = ["expr", "legendFormat"].map(|key| target[key].as_str());
            assert!(!merges(expression.unwrap()), "{target}");
            assert!(legend.unwrap().contains("{{instance}}"), "{target}");
        }
    }
}

/// The rules, their tests, the server's configuration, and the dashboard's expressions as if they
/// were rules.
#[test]
fn promtool_accepts_the_packaged_files() {
    let Some(promtool) = tools::find("promtool", &["--version"], "promtool") else { return };
    let dir = tempfile::tempdir().unwrap();
    let rule = |(i, expr)| serde_json::json!({ "record": format!("panel:{i}"), "expr": expr });
    let rules: Vec<_> = expressions_of_panels().into_iter().enumerate().map(rule).collect();
    let groups = serde_json::json!({ "groups": [{ "name": "panels", "rules": rules }] });
    let panels = dir.path().join("panels.yml");
    std::fs::write(&panels, groups.to_string()).unwrap();
    let panels = panels.to_str().unwrap();
    for args in [
        ["check", "rules", "holdfast.rules.yml"],
        ["test", "rules", "holdfast.rules.test.yml"],
        ["check", "config", "prometheus.yml"],
        ["check", "rules", panels],
    ] {
        let output = Command::new(&promtool).args(args).current_dir(PROMETHEUS).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("SUCCESS"), "{args:?}: {output:?}");
    }
}
