//! Telemetry of an engine: metrics, spans, readiness, and throttled log lines.
//!
//! This crate makes no decisions. The engine's crates record events, which the admin listener and
//! the span exporter read.

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
    /// Readiness of the engine for requests.
    pub readiness: Readiness,
    /// The content of `/metrics`.
    pub metrics: Arc<Metrics>,
}

impl Telemetry {
    /// Returns the body of `/metrics`.
    pub fn exposition(&self) -> String {
        self.metrics.update_readiness(&self.readiness);
        self.metrics.encode()
    }
}
