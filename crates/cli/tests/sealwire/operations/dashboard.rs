//! Checks that panels and alerts use only existing metrics, and that every metric is used by one of them.

use std::collections::BTreeSet;

use sealwire_telemetry::metrics::METRICS;
use serde_json::Value;

use crate::operations::promql::Checker;
use crate::operations::read;

const DASHBOARD: &str = "ops/grafana/sealwire.json";
const RULES: &str = "ops/prometheus/sealwire.rules.yml";

/// Returns the labels between `{{` and `}}`.
fn shown(text: &str) -> impl Iterator<Item = &str> {
    text.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim()))
}

#[test]
fn every_panel_asks_for_what_there_is() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let checker = Checker::new();
    let (mut asked, mut rows, mut ids) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another's");
        if panel["type"] == "row" {
            rows.push(title);
            continue;
        }
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            let found = checker.check(expression).unwrap_or_else(|error| panic!("{DASHBOARD}, {title}: {error}"));
            for label in shown(target["legendFormat"].as_str().unwrap()) {
                assert!(found.labels.contains(label), "{title}: {label} is not in what {expression} gives");
            }
            asked.extend(found.metrics);
        }
    }
    for row in ["Traffic", "Latency", "Refusals", "Fairness", "Store", "Tokens", "Process"] {
        assert!(rows.iter().any(|title| title.starts_with(row)), "no row {row} in {rows:?}");
    }
    let left: Vec<_> = METRICS
        .iter()
        .map(|metric| metric.name)
        .filter(|name| !asked.iter().any(|asked| asked.strip_suffix("_bucket").unwrap_or(asked) == *name))
        .filter(|name| !["process_virtual_memory_bytes", "process_threads"].contains(name))
        .collect();
    assert!(left.is_empty(), "{left:?} are in no panel: add one to {DASHBOARD}");
}

#[test]
fn every_alert_asks_for_what_there_is_and_is_in_the_guide() {
    let (rules, guide, checker) = (read(RULES), read("docs/operations.md"), Checker::new());
    let field = |line: &str, name: &str| {
        line.trim().trim_start_matches("- ").strip_prefix(name)?.strip_prefix(": ").map(str::to_owned)
    };
    let (mut alert, mut labels, mut count) = (String::new(), BTreeSet::new(), 0);
    for line in rules.lines() {
        if let Some(name) = field(line, "alert") {
            assert!(
                guide.contains(&format!("`{name}`")),
                "{name} is not in docs/operations.md: say what to do about it"
            );
            alert = name;
        } else if let Some(expression) = field(line, "expr") {
            labels = checker.check(&expression).unwrap_or_else(|error| panic!("{RULES}, {alert}: {error}")).labels;
            count += 1;
        } else if let Some(text) = field(line, "summary").or_else(|| field(line, "description")) {
            for shown in shown(&text) {
                let label = shown.strip_prefix("$labels.");
                assert!(shown == "$value" || label.is_some_and(|it| labels.contains(it)), "{alert}: {shown}");
            }
        }
    }
    assert!(count >= 10, "{count} alerts were read");
}
