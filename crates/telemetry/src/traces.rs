//! Traces: the selection of requests that are kept as spans, and the queue to their exporter. Nothing here waits.
//!
//! A request is kept if its client's `traceparent` is sampled or, without a valid `traceparent`, at random; never more
//! than `traces.spans_per_s_max` per second. The decision is made when the request begins. Its span is made at its end,
//! beside its audit record. A span that finds the queue full is dropped and counted.
//!
//! Without a collector this costs one branch per request, and no thread.

mod exporter;
mod span;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sealwire_wire::TraceContext;

use crate::metrics::{Metrics, TraceLabel};
use exporter::Exporter;
pub use span::RequestEnd;
use span::Span;

/// A million, of which `traces.sample_ratio` is a part.
const MILLION: u64 = 1_000_000;

/// The traces, if there are any.
#[derive(Debug, Default)]
pub struct Traces(Option<Arc<Tracer>>);

/// A call that is kept, under its caller's span if it named one.
#[derive(Clone, Copy, Debug)]
pub struct Traced(Option<TraceContext>);

struct Tracer {
    sample_ppm: u32,
    rate: Rate,
    exporter: Exporter,
    metrics: Arc<Metrics>,
}

impl Traces {
    /// Starts what sends spans, if a collector is configured. `instance` names this engine.
    ///
    /// # Errors
    ///
    /// The system gives no thread or no event queue.
    pub fn start(config: &sealwire_config::Traces, instance: String, metrics: &Arc<Metrics>) -> io::Result<Self> {
        let Some(endpoint) = config.endpoint.clone() else { return Ok(Self(None)) };
        tracing::info!(collector = %endpoint.authority, "spans of calls are sent");
        Ok(Self(Some(Arc::new(Tracer {
            sample_ppm: config.sample_ppm,
            rate: Rate::new(config.spans_per_s_max),
            exporter: Exporter::start(config, endpoint, instance, Arc::clone(metrics))?,
            metrics: Arc::clone(metrics),
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

    /// Takes the span of a call that was kept.
    pub fn ended(&self, traced: Traced, ended: RequestEnd<'_>) {
        if let Some(tracer) = &self.0 {
            tracer.exporter.take(Span::new(traced.0, ended));
        }
    }

    /// Sends what is left, within `traces.timeout_ms`. Blocks for as long.
    pub fn close(&self) {
        if let Some(tracer) = &self.0 {
            tracer.exporter.close();
        }
    }
}

impl Tracer {
    fn sample(&self, traceparent: Option<&str>) -> Option<Traced> {
        let caller = traceparent.and_then(TraceContext::parse);
        let wanted = match &caller {
            Some(caller) => caller.sampled,
            None => self.sample_ppm > 0 && rand::random::<u64>() % MILLION < u64::from(self.sample_ppm),
        };
        if !wanted {
            return None;
        }
        if !self.rate.take() {
            self.metrics.traces.spans(TraceLabel::OverRate, 1);
            return None;
        }
        Some(Traced(caller))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("sample_ppm", &self.sample_ppm).finish_non_exhaustive()
    }
}

/// So many in each second, counted from the start.
struct Rate {
    per_s: u32,
    begun: Instant,
    /// The second in the upper half, and how many were taken in it.
    taken: AtomicU64,
}

impl Rate {
    fn new(per_s: u32) -> Self {
        Self { per_s, begun: Instant::now(), taken: AtomicU64::new(0) }
    }

    fn take(&self) -> bool {
        self.take_at(self.begun.elapsed())
    }

    fn take_at(&self, since: Duration) -> bool {
        let now = since.as_secs();
        // Relaxed: it guards no other memory.
        let take = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            // A thread that read the clock first and arrives second counts with the later second.
            let (second, taken) = if last >> 32 >= now { (last >> 32, last as u32) } else { (now, 0) };
            (taken < self.per_s).then(|| second << 32 | u64::from(taken + 1))
        });
        take.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use sealwire_config::{Config, Endpoint};

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn tracer(sample_ppm: u32) -> Traces {
        let mut config = Config::defaults(Path::new("")).traces;
        // Nothing listens there, and nothing is sent.
        config.endpoint = Endpoint::parse("http://127.0.0.1:1/v1/traces");
        (config.sample_ppm, config.spans_per_s_max) = (sample_ppm, 10_000);
        Traces::start(&config, "test".into(), &Arc::default()).unwrap()
    }

    #[test]
    fn the_caller_decides_and_chance_where_there_is_no_valid_context() {
        let (never, always) = (tracer(0), tracer(1_000_000));
        for (traceparent, without, with) in [
            (Some(SAMPLED), Some(true), Some(true)),
            (Some(UNSAMPLED), None, None),
            (None, None, Some(false)),
            (Some("00-0"), None, Some(false)),
        ] {
            let kept =
                |traces: &Traces| traces.0.as_ref().unwrap().sample(traceparent).map(|Traced(caller)| caller.is_some());
            assert_eq!((kept(&never), kept(&always)), (without, with), "{traceparent:?}");
        }
        assert!(Traces::default().sample(None).is_none());
    }

    #[test]
    fn chance_keeps_about_its_part() {
        let traces = tracer(100_000);
        let tracer = traces.0.as_ref().unwrap();
        let kept = (0..10_000).filter(|_| tracer.sample(None).is_some()).count();
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
