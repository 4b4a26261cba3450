//! Metrics of spans.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Outcome of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanOutcome {
    /// The collector has it.
    Sent,
    /// The queue was full.
    NoRoom,
    /// The collector did not take it.
    Undelivered,
    /// Not made: the second had as many as there may be.
    OverRate,
}

impl SpanOutcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Sent, Self::NoRoom, Self::Undelivered, Self::OverRate];

    /// Name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::NoRoom => "no_room",
            Self::Undelivered => "undelivered",
            Self::OverRate => "over_rate",
        }
    }
}

impl EncodeLabelValue for SpanOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.as_str().encode(encoder)
    }
}

/// Label of the counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SpanLabels {
    outcome: SpanOutcome,
}

/// Counters of spans. A clone shares them.
#[derive(Clone, Debug)]
pub struct SpanMetrics {
    /// Spans by outcome, to register.
    pub spans: Family<SpanLabels, Counter>,
    /// Spans queued or being sent, to register.
    pub waiting: Gauge,
    outcomes: [Counter; SpanOutcome::ALL.len()],
}

impl Default for SpanMetrics {
    fn default() -> Self {
        let spans = Family::<SpanLabels, Counter>::default();
        let outcomes =
            SpanOutcome::ALL.map(|outcome| spans.get_or_create_owned(&SpanLabels { outcome }));
        Self {
            spans,
            waiting: Gauge::default(),
            outcomes,
        }
    }
}

impl SpanMetrics {
    /// Counts spans that were not queued.
    pub(crate) fn count(&self, outcome: SpanOutcome, spans: u64) {
        self.outcomes[outcome as usize].inc_by(spans);
    }

    /// Counts a span into the queue. Returns the number of spans that wait.
    pub(crate) fn enter(&self) -> usize {
        usize::try_from(self.waiting.inc() + 1).unwrap_or_default()
    }

    /// Counts spans out of the queue.
    pub(crate) fn leave(&self, outcome: SpanOutcome, spans: u64) {
        self.waiting
            .dec_by(i64::try_from(spans).unwrap_or(i64::MAX));
        self.count(outcome, spans);
    }
}
