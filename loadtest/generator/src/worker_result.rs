//! Results of one process, before they are merged with those of other processes.

use serde::{Deserialize, Serialize};

use crate::histograms::{RequestCounts, Spread};

/// Results of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Counts per kind, in the order of the load's requests.
    pub(crate) tallies: Vec<RequestCounts>,
    /// Delay between the due time and the send time of requests.
    pub(crate) lag: Spread,
    /// Bytes sent on the wire in the measurement window.
    pub(crate) bytes_out: u64,
    /// Bytes received on the wire in the measurement window.
    pub(crate) bytes_in: u64,
    /// CPU seconds of the sending thread in the measurement window.
    pub(crate) cpu_s: f64,
    /// CPU use of the busiest sending thread, as a share of one core.
    pub(crate) busiest: f64,
    /// Share of the window in which a ready sending thread waited for a core, if readable; the
    /// maximum of all threads.
    pub(crate) queued: Option<f64>,
    /// Nice value of the sending thread; the maximum of several threads.
    pub(crate) nice: Option<i32>,
    /// CPU seconds of the engine in the measurement window, if they could be read.
    pub(crate) engine_cpu_s: Option<f64>,
    /// Actual length of the measurement window, in seconds.
    pub(crate) wall_s: f64,
    /// Due requests that were not sent because the generator was too late.
    pub(crate) unsent: u64,
    /// An error that the engine returned.
    pub(crate) last_error: Option<String>,
    /// Negotiated TLS parameters.
    pub(crate) tls: String,
    /// The engine's version.
    pub(crate) version: String,
    /// Start of the measurement window, RFC 3339 in UTC.
    pub(crate) started: String,
}

impl Part {
    /// Adds the results of another process for the same window.
    pub(crate) fn add(&mut self, other: &Self) {
        self.tallies
            .iter_mut()
            .zip(&other.tallies)
            .for_each(|(ours, theirs)| ours.add(theirs));
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
