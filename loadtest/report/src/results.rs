//! Measurement results as JSON: the format shared by the generator, the scenarios and the report.
//!
//! Request times are in microseconds, rates are per second. An unknown number is `null`, never 0.
//! Readers ignore unknown keys, so that writers can add keys.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// The `schema` value of a [`Run`].
pub const RUN: &str = "sealwire.load/1";
/// The `schema` value of a [`Sweep`].
pub const SWEEP: &str = "sealwire.sweep/1";

/// A results file of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Figures {
    /// A single load.
    Run(Box<Run>),
    /// Loads of rising rates.
    Sweep(Sweep),
}

impl Figures {
    /// Reads a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or its schema is unknown to this build. The error names the
    /// file.
    pub fn read(file: &Path) -> io::Result<Self> {
        fs::read_to_string(file)
            .and_then(|text| Self::parse(&text))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    }

    /// Parses a results file from text.
    ///
    /// # Errors
    /// Fails if the text is not valid JSON or its schema is unknown to this build.
    pub fn parse(text: &str) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Schema {
            schema: String,
        }
        Ok(
            match serde_json::from_str::<Schema>(text)?.schema.as_str() {
                RUN => Self::Run(serde_json::from_str(text)?),
                SWEEP => Self::Sweep(serde_json::from_str(text)?),
                other => return Err(io::Error::other(format!("unknown schema {other:?}"))),
            },
        )
    }
}

/// The results of one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`RUN`].
    pub schema: String,
    /// Name and version of the measuring tool.
    pub tool: String,
    /// Name of the load in tables and plots.
    pub name: String,
    /// Start time, RFC 3339 in UTC.
    pub started: String,
    /// Conditions of the measurement.
    pub conditions: Conditions,
    /// Results per kind of request, in the order of the mix.
    pub classes: Vec<Class>,
    /// All classes together.
    pub totals: Totals,
    /// CPU use of the engine, if it could be read.
    pub server_cpu: Option<ServerCpu>,
    /// Resource use of the generator, and whether the generator was the bottleneck.
    pub generator: Generator,
}

/// Conditions of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The engine that was measured.
    pub engine: EngineUsage,
    /// The machine of the generator.
    pub machine: Machine,
    /// Negotiated TLS version, cipher suite and key exchange.
    pub tls: String,
    /// True if engine and generator ran on one machine.
    pub same_machine: bool,
    /// Connections of all processes together.
    pub connections: u32,
    /// Number of sending processes.
    pub processes: u32,
    /// Open or closed loop.
    pub mode: Mode,
    /// Target request rate per second, in an open loop.
    pub offered_per_s: Option<f64>,
    /// Number of requests always in flight, in a closed loop.
    pub callers: Option<u32>,
    /// Length of the measurement window, in seconds.
    pub duration_s: f64,
    /// Length of the warm-up before the measurement window, in seconds.
    pub warm_up_s: f64,
}

/// The engine, from its `info` response and, if possible, from its machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineUsage {
    /// Version of the engine's program.
    pub version: String,
    /// Address of the engine's listener.
    pub address: String,
    /// CPU cores of the engine's machine.
    pub cores: Option<u32>,
    /// Kind of state store: `embedded`, `stateless` or `postgres`.
    pub state: Option<String>,
    /// The cipher suites of the requests: `p256`, `secp256k1`, `xaes`, or several with a plus
    /// between.
    pub suites: Option<String>,
    /// The ephemeral key scope of the requests.
    pub scope: Option<String>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Number of CPU cores.
    pub cores: u32,
    /// Model name of the processor.
    pub cpu: String,
    /// Operating system and release.
    pub os: String,
}

/// Rule that decides when requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By a clock, regardless of responses.
    Open,
    /// By responses: a client sends a request when the response to its previous request has
    /// arrived.
    Closed,
}

/// Results for requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Name of the kind.
    pub name: String,
    /// Name of the method.
    pub method: String,
    /// Fields per request.
    pub fields: u32,
    /// Bytes per field.
    pub field_bytes: u32,
    /// Share of all requests, 0 to 1.
    pub weight: f64,
    /// Requests that were due in the measurement window.
    pub sent: u64,
    /// Requests that got a result.
    pub ok: u64,
    /// Requests without a result, per error code of the protocol or of the generator (`unanswered`,
    /// `paused`, `unsent`).
    pub errors: BTreeMap<String, u64>,
    /// Requests that were sent more than 1 ms after their due time.
    pub late: u64,
    /// Results that were compared with the document sent; sealed results were opened again for
    /// this.
    pub checked: u64,
    /// Latency of results, from the time when the request was due to the last byte.
    pub latency_us: Times,
    /// Service time of results, from the time when the request was sent.
    pub service_us: Times,
    /// Histogram of `latency_us`: upper bound and count per range, ascending, at most 200 ranges,
    /// none empty.
    pub histogram_us: Vec<(f64, u64)>,
    /// Progress over time.
    pub over_time: Vec<IntervalFigures>,
}

/// Distribution of a set of times, in microseconds. All 0 if the set is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The minimum.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The maximum.
    pub max: f64,
    /// The mean.
    pub mean: f64,
}

/// An interval of the measurement window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalFigures {
    /// End of the interval, in seconds from the start of the window.
    pub t_s: f64,
    /// Results received in the interval.
    pub ok: u64,
    /// Errors received in the interval.
    pub errors: u64,
    /// Median latency of the interval's results.
    pub p50_us: f64,
    /// 99th percentile of the latency of the interval's results.
    pub p99_us: f64,
    /// Fields in the interval's results, per second.
    pub fields_per_s: f64,
}

/// Totals of all classes. Rates are per second of the measurement window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Target request rate; in a closed loop the rate of requests sent.
    pub offered_per_s: f64,
    /// Rate of requests sent.
    pub sent_per_s: f64,
    /// Rate of results received.
    pub ok_per_s: f64,
    /// Rate of fields in those results.
    pub fields_per_s: f64,
    /// Requests of the measurement window that got no result.
    pub errors: u64,
    /// Bytes sent on the wire.
    pub bytes_out_per_s: f64,
    /// Bytes received on the wire.
    pub bytes_in_per_s: f64,
}

/// CPU use of the engine in the measurement window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerCpu {
    /// CPU time per field of a result. The fields include those that were opened again for
    /// comparison.
    pub us_per_field: f64,
    /// Average number of cores in use.
    pub cores: f64,
}

/// Resource use of the generator in the measurement window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// Average number of cores in use.
    pub cpu_cores: f64,
    /// CPU time per request.
    pub us_per_call: f64,
    /// 99th percentile of the delay between the due time and the send time of a request.
    pub lag_p99_us: f64,
    /// Maximum of that delay.
    pub lag_max_us: f64,
    /// Nice value of the sending thread. Below 0 the thread has precedence over an engine on the
    /// same core. `None` if the writer does not report it.
    #[serde(default)]
    pub nice: Option<i32>,
    /// True if the generator was the bottleneck, so that the figures do not describe the engine.
    pub was_bottleneck: bool,
    /// Evidence that the generator was the bottleneck.
    pub why: Option<String>,
}

/// Loads of rising rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// [`SWEEP`].
    pub schema: String,
    /// The loads, by ascending rate.
    pub runs: Vec<Run>,
    /// The greatest load that was served well; `None` if the engine's limit was not reached.
    pub knee: Option<Knee>,
}

/// The load beyond which more requests give no more results, or late results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// The greatest rate that was served well.
    pub offered_per_s: f64,
    /// Result rate at that load.
    pub ok_per_s: f64,
    /// Effect of higher rates.
    pub why: String,
}

/// Returns the current time, RFC 3339 in UTC, to the second.
pub fn now() -> String {
    let now = time::OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    now.format(&time::format_description::well_known::Rfc3339)
        .unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests;
