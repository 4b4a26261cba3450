//! What a load used in the time that counts: read at its beginning and at its end.

use std::time::Duration;

use crate::host;
use crate::session::Link;

/// What was used up to a moment.
#[derive(Debug)]
pub(crate) struct Meter {
    at: u64,
    bytes_out: u64,
    bytes_in: u64,
    cpu: Duration,
    queued: Option<Duration>,
    engine: Option<Duration>,
}

/// The beginning and the end of the time that counts.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// When it began, RFC 3339 in UTC.
    pub(crate) started: String,
    pub(crate) first: Option<Meter>,
    pub(crate) last: Option<Meter>,
    /// Calls that were due and not sent, once nothing is sent any more.
    pub(crate) unsent: Option<u64>,
}

/// What was used between two moments.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) wall_s: f64,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    /// Of the thread that sends.
    pub(crate) cpu_s: f64,
    /// That it was ready and had no core, where it could be read.
    pub(crate) queued_s: Option<f64>,
    /// Of the engine, where it could be read.
    pub(crate) engine_cpu_s: Option<f64>,
}

impl Meter {
    /// Now, which is that many nanoseconds of the generator's clock. `engine` is its process on this machine.
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

    /// What was used from this moment to a later one.
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
