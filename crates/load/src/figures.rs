//! What was measured, as it is written and read: the contract between generator, scenarios and report.
//!
//! Times of calls are in microseconds, rates in units of a second. A number that could not be had is `null`, never 0.
//! A reader ignores keys it does not know, so that a writer may add some.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// The `schema` of a [`Run`].
pub const RUN: &str = "sealwire.load/1";
/// The `schema` of a [`Sweep`].
pub const SWEEP: &str = "sealwire.sweep/1";
/// The `schema` of [`Backends`].
pub const BACKENDS: &str = "sealwire.backends/1";

/// One file of figures, of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Figures {
    /// One load.
    Run(Box<Run>),
    /// Loads of rising rates.
    Sweep(Sweep),
    /// Stores compared.
    Backends(Backends),
}

impl Figures {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is not of a schema that this build knows. Names the file.
    pub fn read(file: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        fs::read_to_string(file).and_then(|text| Self::parse(&text)).map_err(named)
    }

    /// Reads text.
    ///
    /// # Errors
    /// As [`Figures::read`].
    pub fn parse(text: &str) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Schema {
            schema: String,
        }
        Ok(match serde_json::from_str::<Schema>(text)?.schema.as_str() {
            RUN => Self::Run(serde_json::from_str(text)?),
            SWEEP => Self::Sweep(serde_json::from_str(text)?),
            BACKENDS => Self::Backends(serde_json::from_str(text)?),
            other => return Err(io::Error::other(format!("unknown schema {other:?}"))),
        })
    }
}

/// One load, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`RUN`].
    pub schema: String,
    /// What measured it, with its version.
    pub tool: String,
    /// What it is called in tables and plots.
    pub name: String,
    /// When it began, RFC 3339 in UTC.
    pub started: String,
    /// What the figures depend on.
    pub conditions: Conditions,
    /// Calls by their kind, in the order of the mix.
    pub classes: Vec<Class>,
    /// All classes together.
    pub totals: Totals,
    /// What the engine used, where that could be read.
    pub server_cpu: Option<ServerCpu>,
    /// What the generator took itself, and whether that spoilt the figures.
    pub generator: Generator,
}

/// What figures depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Who answered.
    pub engine: Engine,
    /// Where the generator ran.
    pub machine: Machine,
    /// Version, suite and key exchange as negotiated.
    pub tls: String,
    /// Whether engine and generator shared the machine.
    pub same_machine: bool,
    /// Connections, of all processes together.
    pub connections: u32,
    /// Processes that sent.
    pub processes: u32,
    /// Who decided when a call was sent.
    pub mode: Mode,
    /// Calls that were to be sent each second, of an open loop.
    pub offered_per_s: Option<f64>,
    /// Calls that were always under way, of a closed loop.
    pub callers: Option<u32>,
    /// Seconds that count.
    pub duration_s: f64,
    /// Seconds before them that do not.
    pub warm_up_s: f64,
}

/// The engine, as it answered `info` and as far as its machine could be looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Its program's version.
    pub version: String,
    /// Where it listens.
    pub address: String,
    /// Cores of its machine.
    pub cores: Option<u32>,
    /// Where it keeps its state: `embedded`, `stateless` or `postgres`.
    pub state: Option<String>,
    /// The curve of the calls: `r1`, `k1`, or both with a plus between.
    pub curve: Option<String>,
    /// The key scope of the calls.
    pub scope: Option<String>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its cores.
    pub cores: u32,
    /// What its processor calls itself.
    pub cpu: String,
    /// System and release.
    pub os: String,
}

/// Who decided when a call was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A clock, whatever the answers did.
    Open,
    /// The answers: a caller sends when it has its last one.
    Closed,
}

/// Calls of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// What it is called.
    pub name: String,
    /// The method.
    pub method: String,
    /// Fields of a call.
    pub fields: u32,
    /// Bytes of a field.
    pub field_bytes: u32,
    /// Its share of all calls, 0 to 1.
    pub weight: f64,
    /// Calls that were due in the time that counts.
    pub sent: u64,
    /// Those that were answered with a result.
    pub ok: u64,
    /// The others by what they came to: a code of the contract, or one of ours (`unanswered`, `paused`, `unsent`).
    pub errors: BTreeMap<String, u64>,
    /// Calls that were sent more than 1 ms behind their time.
    pub late: u64,
    /// Results that were compared with what was sent, opened again where they were sealed.
    pub checked: u64,
    /// Of results, from when the call should have been sent to its last byte.
    pub latency_us: Times,
    /// Of results, from when the call was sent.
    pub service_us: Times,
    /// Of `latency_us`: the upper end of a range and how many were in it, rising, at most 200, none empty.
    pub histogram_us: Vec<(f64, u64)>,
    /// As it went.
    pub over_time: Vec<Moment>,
}

/// How a set of times was spread, in microseconds. All 0 without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The least.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// 90 of 100 were at most this.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    pub p999: f64,
    /// The greatest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
}

/// A part of the time that counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Its end, in seconds from the beginning.
    pub t_s: f64,
    /// Results that came in it.
    pub ok: u64,
    /// Errors that came in it.
    pub errors: u64,
    /// Median latency of those results.
    pub p50_us: f64,
    /// 99 of 100 of them.
    pub p99_us: f64,
    /// Fields of those results for each second of it.
    pub fields_per_s: f64,
}

/// All classes together, for each second that counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// What was to be sent; of a closed loop what was sent.
    pub offered_per_s: f64,
    /// What was sent.
    pub sent_per_s: f64,
    /// Results that came.
    pub ok_per_s: f64,
    /// Fields of those results.
    pub fields_per_s: f64,
    /// Calls of this time that got no result.
    pub errors: u64,
    /// Bytes that were sent, as on the wire.
    pub bytes_out_per_s: f64,
    /// Bytes that came.
    pub bytes_in_per_s: f64,
}

/// What the engine used in the time that counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerCpu {
    /// CPU time for each field of a result, those among them that were opened again to be compared.
    pub us_per_field: f64,
    /// Cores that were busy with it.
    pub cores: f64,
}

/// What the generator took in the time that counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// Cores that were busy with it.
    pub cpu_cores: f64,
    /// CPU time for each call.
    pub us_per_call: f64,
    /// 99 of 100 calls were sent at most this long behind their time.
    pub lag_p99_us: f64,
    /// The most that one was behind.
    pub lag_max_us: f64,
    /// Precedence of the thread that sent, as a nice value: below 0 it went before the engine where they shared a core. `None`
    /// where a writer does not tell.
    #[serde(default)]
    pub nice: Option<i32>,
    /// Whether the figures are its own rather than the engine's.
    pub was_bottleneck: bool,
    /// How that shows.
    pub why: Option<String>,
}

/// Loads of rising rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// [`SWEEP`].
    pub schema: String,
    /// Each load, in the order of their rates.
    pub runs: Vec<Run>,
    /// The greatest load that was served well; `None` if no end of the engine was found.
    pub knee: Option<Knee>,
}

/// Where more load gives no more answers, or late ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// The greatest rate that was served well.
    pub offered_per_s: f64,
    /// What came of it.
    pub ok_per_s: f64,
    /// What happened beyond it.
    pub why: String,
}

/// Now, RFC 3339 in UTC, to the second.
pub fn now() -> String {
    let now = time::OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// Stores compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backends {
    /// [`BACKENDS`].
    pub schema: String,
    /// One for each store and kind of durability.
    pub rows: Vec<Backend>,
    /// What the figures depend on: `machine`, versions and settings, by name.
    pub conditions: serde_json::Map<String, serde_json::Value>,
}

/// One store with one kind of durability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    /// `memory`, `embedded` or `postgres`.
    pub store: String,
    /// `sync`: on disk when acknowledged; `async`: soon after; `none`: never.
    pub durability: String,
    /// Secrets written.
    pub write: Operations,
    /// Secrets read.
    pub read: Operations,
    /// What a crash may lose of what was acknowledged, in words.
    #[serde(default)]
    pub loses: Option<String>,
}

/// Operations of one kind on a store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operations {
    /// How many.
    pub ops: u64,
    /// Threads that asked.
    pub threads: u32,
    /// How many each second.
    pub per_s: f64,
    /// Median time of one, in microseconds.
    pub p50_us: f64,
    /// 99 of 100, in microseconds.
    pub p99_us: f64,
}

#[cfg(test)]
pub(crate) mod tests;
