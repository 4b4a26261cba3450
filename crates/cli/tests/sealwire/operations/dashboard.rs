//! Checks that panels and alerts use only existing metrics, and that every metric is used by one of
//! them.

use std::collections::BTreeSet;
use std::process::Command;

use sealwire_telemetry::metrics::Metrics;
use serde_json::Value;

use crate::operations::promql::Checker;
use crate::operations::{read, repository};
use crate::relay::site::{not_tried, program};

const DASHBOARD: &str = "ops/grafana/sealwire.json";
const RULES: &str = "ops/prometheus/sealwire.rules.yml";
const TESTS: &str = "ops/prometheus/sealwire.tests.yml";
const RELAY_RULES: &str = "ops/prometheus/sealwire-relay.rules.yml";
const RELAY_TESTS: &str = "ops/prometheus/sealwire-relay.tests.yml";

/// Returns the labels between `{{` and `}}`.
fn shown(text: &str) -> impl Iterator<Item = &str> {
    text.split("{{")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("}}")?.0.trim()))
}

#[test]
fn panels_query_existing_metrics() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let checker = Checker::new();
    let (mut asked, mut rows, mut ids) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "{title}: its id is another's"
        );
        if panel["type"] == "row" {
            rows.push(title);
            continue;
        }
        assert!(
            !panel["description"].as_str().unwrap().is_empty(),
            "{title}"
        );
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            let found = checker
                .check(expression)
                .unwrap_or_else(|error| panic!("{DASHBOARD}, {title}: {error}"));
            for label in shown(target["legendFormat"].as_str().unwrap()) {
                assert!(
                    found.labels.contains(label),
                    "{title}: {label} is not in what {expression} gives"
                );
            }
            asked.extend(found.metrics);
        }
    }
    for row in [
        "Traffic", "Latency", "Refusals", "Fairness", "Store", "Tokens", "Process",
    ] {
        assert!(
            rows.iter().any(|title| title.starts_with(row)),
            "no row {row} in {rows:?}"
        );
    }
    let left: Vec<_> = Metrics::docs()
        .iter()
        .map(|metric| metric.name)
        .filter(|name| {
            !asked
                .iter()
                .any(|asked| asked.strip_suffix("_bucket").unwrap_or(asked) == *name)
        })
        .filter(|name| !["process_virtual_memory_bytes", "process_threads"].contains(name))
        .collect();
    assert!(
        left.is_empty(),
        "{left:?} are in no panel: add one to {DASHBOARD}"
    );
}

/// A rule of an alert.
#[derive(Debug, Default)]
struct Alert {
    name: String,
    expression: String,
    /// Summary and description.
    texts: Vec<String>,
}

/// Reads the alerts of a file of rules.
fn alerts(file: &str) -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    for line in read(file).lines() {
        let Some((field, value)) = line.trim().trim_start_matches("- ").split_once(": ") else {
            continue;
        };
        match (field, alerts.last_mut()) {
            ("alert", _) => alerts.push(Alert {
                name: value.to_owned(),
                ..Alert::default()
            }),
            ("expr", Some(alert)) => alert.expression = value.to_owned(),
            ("summary" | "description", Some(alert)) => alert.texts.push(value.to_owned()),
            _ => {}
        }
    }
    assert!(
        alerts.len() >= 10,
        "{file}: {} alerts were read",
        alerts.len()
    );
    alerts
}

#[test]
fn alerts_query_existing_metrics_and_are_in_the_guide() {
    let guide = read("docs/operators/incident-alerts.md");
    let checker = Checker::new();
    for Alert {
        name,
        expression,
        texts,
    } in alerts(RULES)
    {
        assert!(
            guide.contains(&format!("`{name}`")),
            "{name} is not in docs/operators/incident-alerts.md: say what to do about it"
        );
        let labels = checker
            .check(&expression)
            .unwrap_or_else(|error| panic!("{RULES}, {name}: {error}"))
            .labels;
        for shown in texts.iter().flat_map(|text| shown(text)) {
            let label = shown.strip_prefix("$labels.");
            assert!(
                shown == "$value" || label.is_some_and(|it| labels.contains(it)),
                "{name}: {shown}"
            );
        }
    }
}

#[test]
fn relay_alerts_query_existing_metrics_and_are_in_the_guide() {
    let guide = read("docs/operators/relay-run.md");
    // A test of the relay compares this document with the program.
    let metrics = read("docs/relay-metrics.md");
    for Alert {
        name, expression, ..
    } in alerts(RELAY_RULES)
    {
        assert!(
            guide.contains(&format!("`{name}`")),
            "{name} is not in docs/operators/relay-run.md: say what to do about it"
        );
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for metric in words.filter(|word| word.starts_with("sealwire_")) {
            assert!(
                metrics.contains(&format!("| `{metric}` |")),
                "{name}: no metric {metric}"
            );
        }
    }
}

#[test]
fn alerts_fire_only_on_time_series_of_their_failure() {
    for (rules, tests) in [(RULES, TESTS), (RELAY_RULES, RELAY_TESTS)] {
        let cases = read(tests);
        for Alert { name, .. } in alerts(rules) {
            assert!(
                cases.contains(&format!("alertname=\"{name}\"")),
                "{tests} has no time series for {name}"
            );
        }
        let Some(promtool) = program("promtool") else {
            return not_tried("promtool");
        };
        let output = Command::new(promtool)
            .args(["test", "rules"])
            .arg(repository(tests))
            .output()
            .unwrap();
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "{text}");
    }
}
