//! Metrics of spans.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::labels::TraceLabel;
use super::register;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SpanLabels {
    outcome: TraceLabel,
}

/// See the module.
pub struct TraceMetrics {
    spans: [Counter; TraceLabel::ALL.len()],
    waiting: Gauge,
}

impl TraceMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let spans = Family::<SpanLabels, Counter>::default();
        register(registry, "sealwire_spans_total", spans.clone());
        let waiting = register(registry, "sealwire_spans_waiting", Gauge::default());
        Self { spans: TraceLabel::ALL.map(|outcome| spans.get_or_create_owned(&SpanLabels { outcome })), waiting }
    }

    /// That became of so many spans which did not wait.
    pub fn spans(&self, outcome: TraceLabel, spans: u64) {
        self.spans[outcome as usize].inc_by(spans);
    }

    /// One more waits. How many do now, those on their way among them.
    pub fn waits(&self) -> usize {
        usize::try_from(self.waiting.inc() + 1).unwrap_or_default()
    }

    /// That became of so many that waited.
    pub fn over(&self, outcome: TraceLabel, spans: u64) {
        self.waiting.dec_by(i64::try_from(spans).unwrap_or(i64::MAX));
        self.spans(outcome, spans);
    }
}
