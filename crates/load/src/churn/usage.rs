//! Resource use of a churn load.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::connection::WireBytes;
use crate::host;

/// CPU time of the engine and of this process, and bytes of all connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageReading {
    engine: Option<Duration>,
    own: Option<Duration>,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// The readings' sources.
pub(super) struct UsageSource {
    /// The engine's process, if it is on this machine.
    pub(super) engine: Option<u32>,
    pub(super) bytes: Arc<WireBytes>,
}

impl UsageSource {
    /// Takes a reading.
    pub(super) fn read(&self) -> UsageReading {
        UsageReading {
            engine: self.engine.and_then(host::process_cpu),
            own: host::process_cpu(std::process::id()),
            sent: self.bytes.sent.load(Ordering::Relaxed),
            received: self.bytes.received.load(Ordering::Relaxed),
        }
    }
}

impl UsageReading {
    /// Returns the average number of cores used from this reading to a later one, by the engine and
    /// by this process.
    pub(super) fn cores(self, later: Self, seconds: f64) -> (Option<f64>, Option<f64>) {
        let cores = |from: Option<Duration>, to: Option<Duration>| {
            Some(to?.saturating_sub(from?).as_secs_f64() / seconds)
        };
        (cores(self.engine, later.engine), cores(self.own, later.own))
    }
}
