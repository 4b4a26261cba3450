//! Results of a churn load, besides those of any load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Figures of a churn load besides those of any load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChurnFigures {
    /// New connections per second.
    pub per_s: f64,
    /// Requests per connection.
    pub calls_per_connection: u32,
    /// Maximum number of new connections at once.
    pub at_once_max: u32,
    /// True if clients offered to resume TLS sessions.
    pub resume: bool,
    /// Length of the first part, in which only the steady client sends, in seconds.
    pub alone_s: f64,
    /// Length of the part with new connections, in seconds.
    pub churn_s: f64,
    /// Requests per second of the steady client.
    pub steady_per_s: f64,
    /// Connections with a complete handshake and a first response.
    pub done: u64,
    /// Number of them that resumed a TLS session.
    pub resumed: u64,
    /// Connections that the engine closed at one of its limits, by the name of the limit.
    pub rejected: BTreeMap<String, u64>,
    /// Other connections without a first response, by reason.
    pub failed: BTreeMap<String, u64>,
    /// Latencies of handshakes, of the churn's requests and of the steady client.
    pub latencies: Vec<ChurnLatency>,
    /// Average number of cores that the engine used while only the steady client sent.
    pub engine_cores_alone: Option<f64>,
    /// Average number of cores that the engine used beside the churn.
    pub engine_cores_beside: Option<f64>,
    /// Connections and CPU use per second.
    pub seconds: Vec<ChurnSecond>,
}

/// Latencies of one kind, in microseconds. 0 without a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChurnLatency {
    /// Name of the kind.
    pub name: String,
    /// Number of results.
    pub ok: u64,
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The maximum.
    pub max_us: f64,
}

/// Connections that ended their handshake in one second, and the engine's CPU use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChurnSecond {
    /// End of the second, from the start of the measurement window.
    pub t_s: f64,
    /// Connections with a complete handshake and a first response.
    pub done: u64,
    /// Connections that the engine closed at one of its limits.
    pub rejected: u64,
    /// Other connections without a first response.
    pub failed: u64,
    /// Average number of cores that the engine used, if it could be read.
    pub engine_cores: Option<f64>,
}
