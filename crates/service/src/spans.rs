//! Traces: selects the requests that are traced, and queues their spans for export. No function
//! here blocks, except [`Traces::close`].
//!
//! A request is traced if the `traceparent` of its client is sampled. Requests without a valid
//! `traceparent` are selected randomly. At most [`Settings::spans_per_s_max`] requests per second
//! are traced. The decision is made at the start of a request, and its span is created at the end.
//! If the queue is full, the span is dropped and counted.
//!
//! Without a collector, tracing costs one branch per request and starts no thread.

mod endpoint;
mod exporter;
mod metrics;
mod span;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sealwire_wire::TraceContext;

pub use endpoint::Endpoint;
use exporter::Exporter;
pub use metrics::{SpanMetrics, SpanOutcome};
use span::Span;
pub use span::{Attribute, Service, SpanEnd};

/// Denominator of [`Settings::sample_ppm`].
const MILLION: u64 = 1_000_000;

/// Settings of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The collector. `None` disables tracing.
    pub endpoint: Option<Endpoint>,
    /// Fraction of requests without a trace context that are traced, in millionths.
    pub sample_ppm: u32,
    /// Maximum number of spans per second.
    pub spans_per_s_max: u32,
    /// Maximum number of queued spans.
    pub queue_spans: usize,
    /// Maximum number of spans in a batch.
    pub batch_spans: usize,
    /// Time for which the first span of a batch waits for further spans.
    pub batch: Duration,
    /// Time limit for an attempt to send a batch. At shutdown, the time limit for all remaining
    /// spans.
    pub timeout: Duration,
}

/// The tracing of a program. Does nothing if no collector is configured.
#[derive(Debug, Default)]
pub struct Traces(Option<Arc<Tracer>>);

/// The ids of a traced request and its span.
#[derive(Clone, Copy, Debug)]
pub struct Traced {
    trace_id: u128,
    span_id: u64,
    /// Id of the client's span.
    parent_id: Option<u64>,
}

impl Traced {
    /// Creates the ids of a span in the client's trace, or in a new trace.
    fn new(client: Option<TraceContext>) -> Self {
        let trace_id = client.map_or_else(
            || u128::from(rand::random::<u64>()) << 64 | u128::from(not_zero()),
            |client| u128::from_be_bytes(client.trace_id),
        );
        let parent_id = client.map(|client| u64::from_be_bytes(client.parent_id));
        Self {
            trace_id,
            span_id: not_zero(),
            parent_id,
        }
    }

    /// Formats the span as a W3C `traceparent`, for requests that are sent on behalf of this
    /// request.
    pub fn traceparent(&self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace_id, self.span_id)
    }
}

/// Returns a random id. Ids must not be zero.
fn not_zero() -> u64 {
    rand::random::<u64>().max(1)
}

struct Tracer {
    sample_ppm: u32,
    rate: Rate,
    exporter: Exporter,
    metrics: SpanMetrics,
}

impl Traces {
    /// Starts the thread that sends spans, if a collector is configured.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread or create an event queue.
    pub fn start(settings: &Settings, service: Service, metrics: &SpanMetrics) -> io::Result<Self> {
        let Some(endpoint) = settings.endpoint.clone() else {
            return Ok(Self(None));
        };
        tracing::info!(collector = %endpoint.origin, "spans of requests are sent");
        Ok(Self(Some(Arc::new(Tracer {
            sample_ppm: settings.sample_ppm,
            rate: Rate::new(settings.spans_per_s_max),
            exporter: Exporter::start(settings, endpoint, service, metrics.clone())?,
            metrics: metrics.clone(),
        }))))
    }

    /// Returns true if requests can be traced.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Decides at the start of a request whether it is traced.
    #[inline]
    pub fn sample(&self, traceparent: Option<&str>) -> Option<Traced> {
        self.0.as_ref()?.sample(traceparent)
    }

    /// Queues the span of a traced request.
    pub fn ended(&self, traced: Traced, end: SpanEnd) {
        if let Some(tracer) = &self.0 {
            tracer.exporter.take(Span::new(traced, end));
        }
    }

    /// Sends the remaining spans. Blocks for at most [`Settings::timeout`].
    pub fn close(&self) {
        if let Some(tracer) = &self.0 {
            tracer.exporter.close();
        }
    }
}

impl Tracer {
    fn sample(&self, traceparent: Option<&str>) -> Option<Traced> {
        let client = traceparent.and_then(TraceContext::parse);
        let wanted = match &client {
            Some(client) => client.sampled,
            None => {
                self.sample_ppm > 0 && rand::random::<u64>() % MILLION < u64::from(self.sample_ppm)
            }
        };
        if !wanted {
            return None;
        }
        if !self.rate.take() {
            self.metrics.count(SpanOutcome::OverRate, 1);
            return None;
        }
        Some(Traced::new(client))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer")
            .field("sample_ppm", &self.sample_ppm)
            .finish_non_exhaustive()
    }
}

/// A limit of spans per second. Seconds are counted from its creation.
struct Rate {
    per_s: u32,
    begun: Instant,
    /// The upper half contains the second, and the lower half the number of spans in it.
    taken: AtomicU64,
}

impl Rate {
    fn new(per_s: u32) -> Self {
        Self {
            per_s,
            begun: Instant::now(),
            taken: AtomicU64::new(0),
        }
    }

    fn take(&self) -> bool {
        self.take_at(self.begun.elapsed())
    }

    fn take_at(&self, since: Duration) -> bool {
        let now = since.as_secs();
        // Relaxed, because the value guards no other memory.
        let take = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                // If another thread has already started a later second, this span counts in that
                // second.
                let (second, taken) = if last >> 32 >= now {
                    (last >> 32, last as u32)
                } else {
                    (now, 0)
                };
                (taken < self.per_s).then(|| second << 32 | u64::from(taken + 1))
            });
        take.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn tracer(sample_ppm: u32) -> Traces {
        let settings = Settings {
            // Nothing listens there, and nothing is sent.
            endpoint: Endpoint::parse("http://127.0.0.1:1/v1/traces"),
            sample_ppm,
            spans_per_s_max: 10_000,
            queue_spans: 1,
            batch_spans: 1,
            batch: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        };
        Traces::start(
            &settings,
            Service {
                name: "test",
                instance: String::new(),
            },
            &SpanMetrics::default(),
        )
        .unwrap()
    }

    #[test]
    fn the_client_decides_and_chance_where_there_is_no_valid_context() {
        let (never, always) = (tracer(0), tracer(1_000_000));
        for (traceparent, without, with) in [
            (Some(SAMPLED), Some(true), Some(true)),
            (Some(UNSAMPLED), None, None),
            (None, None, Some(false)),
            (Some("00-0"), None, Some(false)),
        ] {
            let kept = |traces: &Traces| {
                traces
                    .0
                    .as_ref()
                    .unwrap()
                    .sample(traceparent)
                    .map(|traced| traced.parent_id.is_some())
            };
            assert_eq!(
                (kept(&never), kept(&always)),
                (without, with),
                "{traceparent:?}"
            );
        }
        assert!(Traces::default().sample(None).is_none());
    }

    #[test]
    fn chance_keeps_about_its_part() {
        let traces = tracer(100_000);
        let tracer = traces.0.as_ref().unwrap();
        let kept = (0..10_000)
            .filter(|_| tracer.sample(None).is_some())
            .count();
        // Fair draws miss this once in 10^50 runs.
        assert!((500..1_500).contains(&kept), "{kept}");
    }

    #[test]
    fn a_second_has_so_many_and_no_more() {
        let rate = Rate::new(3);
        for (at_ms, taken) in [
            (0, true),
            (10, true),
            (999, true),
            (999, false),
            (1_000, true),
            // A clock that was read before another's.
            (999, true),
            (1_001, true),
            (999, false),
            (1_999, false),
            (9_000_000, true),
        ] {
            assert_eq!(rate.take_at(Duration::from_millis(at_ms)), taken, "{at_ms}");
        }
    }
}
