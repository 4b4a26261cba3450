//! `docs/metrics.md`: every metric, and every value that a label can have, as a fresh engine prints
//! them.

use std::collections::BTreeMap;
use std::fmt::Write;

use sealwire_service::metrics::rows;

use super::{Metrics, exposition};

const HEAD: &str = "\
# Metrics

`/metrics` on `admin.address`, in the OpenMetrics text that Prometheus reads. A name is given as it is scraped; a histogram adds
`_bucket`, `_sum` and `_count`. Labels are closed sets, or names of providers in the configuration: no app, caller, key or value
is ever one, so the number of series is fixed at start, and all of them are there from the start. `ops/grafana/sealwire.json` is a dashboard of them and
`ops/prometheus/sealwire.rules.yml` has alerts; `docs/operators/incident-alerts.md` says what to do about each.

Written by `sealwire config template --metrics`; a test compares it with the program.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
";

/// Returns the whole document.
pub fn reference() -> String {
    let families = exposition::parse(&Metrics::example().encode());
    let mut text = String::from(HEAD);
    // Names of the metrics by label and its values.
    let mut sets: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    let docs = Metrics::docs();
    text.push_str(&rows(&docs));
    for metric in &docs {
        for (label, values) in families
            .get(metric.name)
            .into_iter()
            .flat_map(|family| &family.labels)
        {
            let values = match (metric.kind, &**label) {
                ("info", _) => "of the program that runs".to_owned(),
                (_, "provider") => {
                    "`local` and the names in the file of `kek.providers`".to_owned()
                }
                (_, "kind") => "kind of the provider".to_owned(),
                _ => values
                    .iter()
                    .map(|value| format!("`{value}`"))
                    .collect::<Vec<_>>()
                    .join(", "),
            };
            sets.entry((label, values)).or_default().push(metric.name);
        }
    }
    text.push_str("\n## Labels\n\n| label | values | of |\n| --- | --- | --- |\n");
    for ((label, values), metrics) in sets {
        let metrics = metrics
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", ");
        let _ = writeln!(text, "| `{label}` | {values} | {metrics} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_document_matches_the_exposition() {
        sealwire_testkit::check_document(
            "docs/metrics.md",
            &reference(),
            "config template --metrics",
        );
    }
}
