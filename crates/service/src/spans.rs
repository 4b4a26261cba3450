//! Traces: the selection of requests that are kept as spans, and the queue to their exporter.
//! Nothing here waits.
//!
//! A request is kept if its client's `traceparent` is sampled or, without a valid `traceparent`, at
//! random; never more than [`Settings::spans_per_s_max`] per second. The decision is made when the
//! request begins. Its span is made at its end. A span that finds the queue full is dropped and
//! counted.
//!
//! Without a collector this costs one branch per request, and no thread.

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

/// A million, of which [`Settings::sample_ppm`] is a part.
const MILLION: u64 = 1_000_000;

/// Settings of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The collector; without one no spans are made.
    pub endpoint: Option<Endpoint>,
    /// Requests without a trace context that are kept, of a million.
    pub sample_ppm: u32,
    /// Most spans made in a second.
    pub spans_per_s_max: u32,
    /// Most spans that wait to be sent.
    pub queue_spans: usize,
    /// Most spans sent together.
    pub batch_spans: usize,
    /// Time for which the first span of a batch waits for others.
    pub batch: Duration,
    /// Time for one attempt to send a batch, and at the end for all spans that are left.
    pub timeout: Duration,
}

/// The traces, if there are any.
#[derive(Debug, Default)]
pub struct Traces(Option<Arc<Tracer>>);

/// A request that is kept, with the ids of its span.
#[derive(Clone, Copy, Debug)]
pub struct Traced {
    trace_id: u128,
    span_id: u64,
    /// The client's span.
    parent_id: Option<u64>,
}

impl Traced {
    /// Creates ids under the client's span, or of a new trace.
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

    /// The span as a W3C `traceparent`, for requests that are sent on behalf of this one.
    pub fn traceparent(&self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace_id, self.span_id)
    }
}

/// An id, which must not be zero.
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
    /// The system gives no thread or no event queue.
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

    /// Returns true if any request is kept.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Decides whether a request that begins is kept.
    #[inline]
    pub fn sample(&self, traceparent: Option<&str>) -> Option<Traced> {
        self.0.as_ref()?.sample(traceparent)
    }

    /// Takes the span of a request that was kept.
    pub fn ended(&self, traced: Traced, end: SpanEnd) {
        if let Some(tracer) = &self.0 {
            tracer.exporter.take(Span::new(traced, end));
        }
    }

    /// Sends what is left, within [`Settings::timeout`]. Blocks for as long.
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

/// A limit of spans per second, counted from the start.
struct Rate {
    per_s: u32,
    begun: Instant,
    /// The second in the upper half, and the number of spans in it.
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
        // Relaxed: it guards no other memory.
        let take = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                // A thread that read the clock first and arrives second counts with the later
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
