//! Telemetry of an engine: metrics, spans, readiness, and throttled log lines.
//!
//! Nothing here decides anything. Other crates record events; the admin listener and the exporter
//! of spans read them.

pub mod metrics;
pub mod panics;
mod readiness;
pub mod traces;

use std::sync::Arc;

use metrics::Metrics;
pub use readiness::{Condition, Phase, Readiness, State};
pub use sealwire_service::log_throttle::LogThrottle;

/// Readiness and metrics of one engine, as the admin listener serves them.
#[derive(Debug, Default)]
pub struct Telemetry {
    /// Says whether requests should be sent here.
    pub readiness: Readiness,
    /// The content of `/metrics`.
    pub metrics: Arc<Metrics>,
}

impl Telemetry {
    /// Returns the body of `/metrics`.
    pub fn exposition(&self) -> String {
        self.metrics.readiness(&self.readiness);
        self.metrics.encode()
    }
}
