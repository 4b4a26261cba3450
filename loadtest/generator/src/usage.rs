//! Resource use of a load in the measurement window, from readings at its start and end.

use std::time::Duration;

use crate::host;
use crate::session::Link;

/// A reading of cumulative resource use.
#[derive(Debug)]
pub(crate) struct UsageReading {
    at: u64,
    bytes_out: u64,
    bytes_in: u64,
    cpu: Duration,
    queued: Option<Duration>,
    engine: Option<Duration>,
}

/// Readings at the start and end of the measurement window.
#[derive(Debug, Default)]
pub(crate) struct UsageWindow {
    /// Start of the window, RFC 3339 in UTC.
    pub(crate) started: String,
    pub(crate) first: Option<UsageReading>,
    pub(crate) last: Option<UsageReading>,
    /// Number of due requests that were not sent; set when sending has stopped.
    pub(crate) unsent: Option<u64>,
}

/// Resource use between two readings.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) wall_s: f64,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    /// CPU time of the sending thread.
    pub(crate) cpu_s: f64,
    /// Time that the sending thread was ready without a core, if it could be read.
    pub(crate) queued_s: Option<f64>,
    /// CPU time of the engine, if it could be read.
    pub(crate) engine_cpu_s: Option<f64>,
}

impl UsageReading {
    /// Takes a reading at `now`, in nanoseconds of the generator's clock. `engine` is the engine's
    /// process on this machine.
    pub(crate) fn read(links: &[Link], now: u64, engine: Option<u32>) -> Self {
        let sum = |of: fn(&Link) -> u64| links.iter().map(of).sum();
        Self {
            at: now,
            bytes_out: sum(|link| link.stream.bytes_out),
            bytes_in: sum(|link| link.stream.bytes_in),
            cpu: host::thread_cpu(),
            queued: host::thread_queued(),
            engine: engine.and_then(host::process_cpu),
        }
    }

    /// Returns the resource use from this reading to a later reading.
    pub(crate) fn until(&self, last: &Self) -> Used {
        let used = |from: Option<Duration>, to: Option<Duration>| Some((to? - from?).as_secs_f64());
        Used {
            wall_s: Duration::from_nanos(last.at - self.at).as_secs_f64(),
            bytes_out: last.bytes_out - self.bytes_out,
            bytes_in: last.bytes_in - self.bytes_in,
            cpu_s: (last.cpu - self.cpu).as_secs_f64(),
            queued_s: used(self.queued, last.queued),
            engine_cpu_s: used(self.engine, last.engine),
        }
    }
}
