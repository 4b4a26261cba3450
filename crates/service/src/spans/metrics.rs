//! Metrics of spans.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::ByLabel;

crate::label! {
    /// Outcome of a span.
    pub enum SpanOutcome = "outcome" {
        /// The collector has it.
        Sent = "sent",
        /// The queue was full.
        NoRoom = "no_room",
        /// The collector did not take it.
        Undelivered = "undelivered",
        /// Not made: the second had as many as there may be.
        OverRate = "over_rate",
    }
}

/// Counters of spans. A clone shares the counters.
#[derive(Clone, Debug, Default)]
pub struct SpanMetrics {
    /// Spans by outcome.
    pub spans: ByLabel<SpanOutcome, Counter>,
    /// Spans queued or being sent.
    pub waiting: Gauge,
}

impl SpanMetrics {
    /// Counts spans that were not queued.
    pub(crate) fn count(&self, outcome: SpanOutcome, spans: u64) {
        self.spans.of(outcome).inc_by(spans);
    }

    /// Counts a span that enters the queue. Returns the number of queued spans.
    pub(crate) fn enter(&self) -> usize {
        usize::try_from(self.waiting.inc() + 1).unwrap_or_default()
    }

    /// Counts spans that leave the queue.
    pub(crate) fn leave(&self, outcome: SpanOutcome, spans: u64) {
        self.waiting
            .dec_by(i64::try_from(spans).unwrap_or(i64::MAX));
        self.count(outcome, spans);
    }
}
