//! What one process measured, before it is put together with the others' and becomes figures.

use serde::{Deserialize, Serialize};

use crate::tally::{Spread, Tally};

/// What one process measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// In the order of the load's calls.
    pub(crate) tallies: Vec<Tally>,
    /// How far sends were behind their time.
    pub(crate) lag: Spread,
    /// Bytes on the wire in the time that counts.
    pub(crate) bytes_out: u64,
    /// Bytes on the wire in the time that counts.
    pub(crate) bytes_in: u64,
    /// CPU seconds of the thread that sent, in the time that counts.
    pub(crate) cpu_s: f64,
    /// Of the busiest thread that sent, the share of a core.
    pub(crate) busiest: f64,
    /// Of the thread that waited longest for a core while it was ready, the share of the time, where that could be read.
    pub(crate) queued: Option<f64>,
    /// The nice value of the thread that sent; of several the greatest.
    pub(crate) nice: Option<i32>,
    /// CPU seconds of the engine in the same time, where they could be read.
    pub(crate) engine_cpu_s: Option<f64>,
    /// Seconds from its beginning to its end, as it was.
    pub(crate) wall_s: f64,
    /// Calls whose time came and that were not sent, since the generator was too far behind.
    pub(crate) unsent: u64,
    /// One of the errors that calls came to, as the engine said it.
    pub(crate) last_error: Option<String>,
    /// As negotiated.
    pub(crate) tls: String,
    /// The engine's version.
    pub(crate) version: String,
    /// When the time that counts began, RFC 3339 in UTC.
    pub(crate) started: String,
}

impl Part {
    /// Adds what another process measured at the same time.
    pub(crate) fn add(&mut self, other: &Self) {
        self.tallies.iter_mut().zip(&other.tallies).for_each(|(ours, theirs)| ours.add(theirs));
        self.lag.add(&other.lag);
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
        self.unsent += other.unsent;
        self.cpu_s += other.cpu_s;
        self.busiest = self.busiest.max(other.busiest);
        self.queued = self.queued.into_iter().chain(other.queued).reduce(f64::max);
        self.nice = self.nice.max(other.nice);
        self.last_error = self.last_error.take().or_else(|| other.last_error.clone());
    }
}
