//! The figures of a churn load as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::results::{ChurnFigures, Class, Run};
use crate::table::{columns, number, time};

/// Formats a run of a churn load: handshakes, latencies, and both per second.
pub(super) fn churn(run: &Run, churn: &ChurnFigures) -> String {
    let mut text = String::new();
    let latencies = churn.latencies.iter().map(|latency| {
        let mut row = vec![latency.name.clone(), latency.ok.to_string()];
        let times = [
            latency.mean_us,
            latency.p50_us,
            latency.p95_us,
            latency.p99_us,
            latency.max_us,
        ];
        row.extend(times.map(|us| {
            if latency.ok > 0 {
                time(us)
            } else {
                "-".to_owned()
            }
        }));
        row
    });
    text += &columns(
        &["latency of", "ok", "average", "p50", "p95", "p99", "max"],
        &latencies.collect::<Vec<_>>(),
    );
    let _ = writeln!(
        text,
        "\n  {} connections/s for {} s after {} s without, {} requests each; a steady client beside them with {} requests/s",
        number(churn.per_s),
        churn.churn_s,
        churn.alone_s,
        churn.calls_per_connection,
        number(churn.steady_per_s),
    );
    let resumption = match (churn.resume, churn.resumed) {
        (false, _) => "TLS session resumption not offered".to_owned(),
        (true, 0) => "TLS session resumption offered, and the engine resumed none".to_owned(),
        (true, resumed) => format!("{resumed} of them resumed a TLS session"),
    };
    let _ = writeln!(
        text,
        "  handshakes: {} done, {} rejected ({}), {} failed ({}); {resumption}",
        churn.done,
        churn.rejected.values().sum::<u64>(),
        counts(&churn.rejected),
        churn.failed.values().sum::<u64>(),
        counts(&churn.failed),
    );
    let cores = |cores: Option<f64>| cores.map_or_else(|| "-".to_owned(), number);
    let (alone, beside) = (
        cores(churn.engine_cores_alone),
        cores(churn.engine_cores_beside),
    );
    let _ = writeln!(
        text,
        "  engine: {alone} cores before the churn, {beside} cores beside it\n"
    );
    text + &seconds(run, churn)
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    if parts.is_empty() {
        "none".to_owned()
    } else {
        parts.join(", ")
    }
}

/// Formats one row per second. Each class has the average and the 99th percentile of its latency.
fn seconds(run: &Run, churn: &ChurnFigures) -> String {
    let mut head: Vec<String> = ["to second", "done", "rejected", "failed", "engine cores"]
        .map(str::to_owned)
        .into();
    head.extend(
        run.classes
            .iter()
            .flat_map(|class| ["average", "p99"].map(|what| format!("{} {what}", class.name))),
    );
    let rows = churn.seconds.iter().enumerate().map(|(at, second)| {
        let mut row = vec![format!("{:.0}", second.t_s)];
        row.extend([second.done, second.rejected, second.failed].map(|count| count.to_string()));
        row.push(second.engine_cores.map_or_else(|| "-".to_owned(), number));
        let times = |class: &Class| {
            let moment = class.over_time.get(at).filter(|moment| moment.ok > 0);
            [
                moment.and_then(|moment| moment.mean_us),
                moment.map(|moment| moment.p99_us),
            ]
        };
        row.extend(
            run.classes
                .iter()
                .flat_map(times)
                .map(|us| us.map_or_else(|| "-".to_owned(), time)),
        );
        row
    });
    columns(
        &head.iter().map(String::as_str).collect::<Vec<_>>(),
        &rows.collect::<Vec<_>>(),
    )
}
