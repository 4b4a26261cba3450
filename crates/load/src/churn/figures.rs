//! Converts the counts of a churn load to results.

use super::ChurnSettings;
use super::counts::{ChurnCounts, Kind};
use super::usage::UsageReading;
use crate::fault::Fault;
use crate::load::Call;
use crate::results::{ChurnFigures, Generator, RUN, Run, ServerCpu, Totals};
use crate::validation;

/// Totals when all clients have ended.
pub(super) struct Ended {
    /// At the start of the window, of the churn, and at the end.
    pub(super) usage: [UsageReading; 3],
    /// Connections that were due and not opened.
    pub(super) unsent: u64,
    pub(super) nice: Option<i32>,
    pub(super) tls: String,
    pub(super) version: String,
    pub(super) started: String,
}

/// Computes the results of a load.
///
/// # Errors
/// Fails if no new connection was served.
pub(super) fn figures(
    settings: &ChurnSettings,
    name: &str,
    counts: &ChurnCounts,
    ended: Ended,
) -> Result<Run, Fault> {
    if counts.done == 0 {
        let reasons = counts.rejected.iter().chain(&counts.failed);
        let reasons: Vec<String> = reasons
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        return Err(match &*reasons {
            [] => Fault::Failed("no connection was due: raise --rate or --seconds".to_owned()),
            reasons => Fault::Unanswered(format!(
                "no new connection was served: {}",
                reasons.join(", ")
            )),
        });
    }
    let load = settings.load();
    let Ended {
        usage: [begin, churn, end],
        unsent,
        nice,
        tls,
        version,
        started,
    } = ended;
    let (alone, beside) = (
        begin.cores(churn, settings.alone_s),
        churn.cores(end, settings.churn_s),
    );
    let (engine_cores, own_cores) = begin.cores(end, load.duration_s);
    let requests: Vec<_> = Kind::ALL[1..].iter().map(|kind| counts.of(*kind)).collect();
    let sent: u64 = requests.iter().map(|counts| counts.sent).sum();
    let ok: u64 = requests.iter().map(|counts| counts.ok).sum();
    let per_s = |count: u64| count as f64 / load.duration_s;
    let fields = ok * u64::from(settings.fields);
    let why = bottleneck(settings, counts, unsent);
    let churn = ChurnFigures {
        per_s: settings.per_s,
        calls_per_connection: settings.calls,
        at_once_max: settings.at_once_max,
        resume: settings.resume,
        alone_s: settings.alone_s,
        churn_s: settings.churn_s,
        steady_per_s: settings.steady_per_s,
        done: counts.done,
        resumed: counts.resumed,
        rejected: counts.rejected.clone(),
        failed: counts.failed.clone(),
        latencies: counts.latencies(),
        engine_cores_alone: alone.0.filter(|_| settings.alone_s > 0.0),
        engine_cores_beside: beside.0,
        seconds: counts.seconds.clone(),
    };
    let classes = load
        .calls
        .iter()
        .zip(Kind::ALL)
        .filter(|(_, kind)| counts.of(*kind).sent > 0);
    let class = |(call, kind): (&Call, Kind)| {
        let mut class = validation::class(call, counts.of(kind), 1.0, 1.0);
        class.weight =
            counts.of(kind).sent as f64 / (sent + counts.of(Kind::Handshake).sent) as f64;
        if kind == Kind::Handshake {
            (class.method, class.fields, class.field_bytes) = ("handshake".to_owned(), 0, 0);
        }
        class
    };
    Ok(Run {
        schema: RUN.to_owned(),
        tool: concat!("sealwire-load ", env!("CARGO_PKG_VERSION")).to_owned(),
        name: name.to_owned(),
        started,
        conditions: validation::conditions(&load, 1, (&tls, &version)),
        classes: classes.map(class).collect(),
        totals: Totals {
            offered_per_s: settings.offered_per_s(),
            sent_per_s: per_s(sent),
            ok_per_s: per_s(ok),
            fields_per_s: per_s(fields),
            errors: Kind::ALL
                .iter()
                .flat_map(|kind| counts.of(*kind).errors.values())
                .sum(),
            bytes_out_per_s: per_s(end.sent - begin.sent),
            bytes_in_per_s: per_s(end.received - begin.received),
        },
        server_cpu: engine_cores.map(|cores| ServerCpu {
            us_per_field: cores * load.duration_s * 1e6 / (fields as f64).max(1.0),
            cores,
        }),
        generator: Generator {
            cpu_cores: own_cores.unwrap_or_default(),
            us_per_call: own_cores.unwrap_or_default() * load.duration_s * 1e6
                / (sent as f64).max(1.0),
            lag_p99_us: counts.lag.quantile_us(0.99),
            lag_max_us: counts.lag.max_us(),
            nice,
            was_bottleneck: why.is_some(),
            why,
        },
        vault: None,
        churn: Some(churn),
    })
}

/// Returns the evidence that the generator was the bottleneck, if there is any.
fn bottleneck(settings: &ChurnSettings, counts: &ChurnCounts, unsent: u64) -> Option<String> {
    if unsent > 0 {
        return Some(format!(
            "{unsent} connections were due and never opened, because {} were open at once; raise --at-once, or lower \
             --rate",
            settings.at_once_max
        ));
    }
    validation::late(
        &counts.lag,
        counts.of(Kind::Handshake).latency.quantile_us(0.99),
        Kind::Handshake.name(),
    )
}
