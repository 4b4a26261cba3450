//! Exports spans to a collector with OTLP/HTTP in JSON. The exporter has its own thread, so that
//! encoding and slow name servers take no time from the network threads.
//!
//! `opentelemetry-otlp` is not used. This crate and its SDK consist of eleven crates, of which only
//! the encoding would be needed. The processor of the SDK reports dropped spans only in its own log
//! and never retries a batch. The SDK also lets `OTEL_` environment variables change limits and
//! headers that the configuration sets. The JSON format of OTLP is specified, stable and small.
//!
//! Everything is bounded: the queue, a batch, the time of an attempt, the number of attempts, the
//! response and the shutdown. Each connection carries one batch. If an attempt is interrupted, its
//! batch can arrive twice, with the same ids. The exporter uses plain HTTP to a collector on the
//! same machine, which can forward the spans over HTTPS.

use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::http_client::{HttpClientError, HttpConnection, Transport, read_body, within};
use crate::spans::metrics::{SpanMetrics, SpanOutcome};
use crate::spans::span::{self, Service, Span};
use crate::spans::{Endpoint, Settings};

/// Maximum number of attempts to send a batch.
const ATTEMPTS_MAX: u32 = 4;
/// Pause after the first attempt. Each further pause doubles. Each pause is shortened randomly by
/// up to a half.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause that a collector can request.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of response bytes that are read. A complete response has a few hundred bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The queue to the exporter thread.
pub(crate) struct Exporter {
    queue: mpsc::Sender<Span>,
    batch_spans: usize,
    /// Notified when the queue contains a full batch.
    full: Arc<Notify>,
    metrics: SpanMetrics,
    /// Stops the thread, and waits for its end.
    thread: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Exporter {
    /// Starts the thread `sealwire-traces`.
    pub(crate) fn start(
        settings: &Settings,
        endpoint: Endpoint,
        service: Service,
        metrics: SpanMetrics,
    ) -> io::Result<Self> {
        let (queue, spans) = mpsc::channel(settings.queue_spans);
        let (stop, stopped) = oneshot::channel();
        let full = Arc::<Notify>::default();
        let sender = Sender {
            endpoint,
            service,
            settings: settings.clone(),
            full: Arc::clone(&full),
            metrics: metrics.clone(),
            is_failing: Cell::new(false),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = thread::Builder::new()
            .name("sealwire-traces".into())
            .spawn(move || {
                runtime.block_on(sender.run(spans, stopped));
                // Does not wait for a name server that does not respond.
                runtime.shutdown_background();
            })?;
        let batch_spans = settings.batch_spans.min(settings.queue_spans);
        Ok(Self {
            queue,
            batch_spans,
            full,
            metrics,
            thread: Mutex::new(Some((stop, thread))),
        })
    }

    /// Queues a span. Drops the span if the queue is full.
    pub(crate) fn take(&self, span: Span) {
        // The first span of a batch has already left the queue.
        let waiting = self.metrics.enter();
        if self.queue.try_send(span).is_err() {
            self.metrics.leave(SpanOutcome::NoRoom, 1);
        } else if waiting >= self.batch_spans {
            self.full.notify_one();
        }
    }

    /// Sends the queued spans and waits until they are sent, for at most the time of one attempt.
    pub(crate) fn close(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((stop, thread)) = thread {
            let _ = stop.send(());
            // A panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}

/// The part of the exporter that runs on the thread.
struct Sender {
    endpoint: Endpoint,
    service: Service,
    settings: Settings,
    full: Arc<Notify>,
    metrics: SpanMetrics,
    /// True after a batch that the collector did not accept.
    is_failing: Cell<bool>,
}

/// The reason why spans were not delivered.
#[derive(Debug, thiserror::Error)]
enum ExportFailure {
    #[error(transparent)]
    Http(#[from] HttpClientError),
    #[error("the collector answers {status}")]
    Status {
        status: StatusCode,
        retry_after: Option<Duration>,
    },
    #[error("the collector's answer cannot be read")]
    Unreadable,
}

impl ExportFailure {
    /// Returns true if OTLP permits a retry after this response.
    fn may_pass(&self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::Status { status, .. } => matches!(status.as_u16(), 429 | 502..=504),
            Self::Unreadable => false,
        }
    }
}

impl Sender {
    /// Sends batches until it is stopped, and then the queued spans.
    async fn run(self, mut queue: mpsc::Receiver<Span>, stopped: oneshot::Receiver<()>) {
        let mut batch = Vec::new();
        tokio::select! {
            // Dropping the engine without a stop request also ends this wait.
            _ = stopped => (),
            () = self.send_batches(&mut queue, &mut batch) => (),
        }
        queue.close();
        let left = async {
            loop {
                self.fill_batch(&mut queue, &mut batch);
                if batch.is_empty() {
                    return;
                }
                self.deliver_batch(&mut batch, 1).await;
            }
        };
        let in_time = timeout(self.settings.timeout, left).await.is_ok();
        let mut lost = batch.len() as u64;
        while queue.try_recv().is_ok() {
            lost += 1;
        }
        self.metrics.leave(SpanOutcome::Undelivered, lost);
        if !in_time {
            tracing::warn!(
                lost,
                "spans are left at the stop; the collector did not take them in time"
            );
        }
    }

    /// Sends one batch after another. If the future is dropped, unsent spans stay in `batch`.
    async fn send_batches(&self, queue: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
        while let Some(first) = queue.recv().await {
            batch.push(first);
            tokio::select! {
                () = sleep(self.settings.batch) => (),
                () = self.full.notified() => (),
            }
            self.fill_batch(queue, batch);
            self.deliver_batch(batch, ATTEMPTS_MAX).await;
        }
    }

    fn fill_batch(&self, queue: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
        while batch.len() < self.settings.batch_spans {
            let Ok(span) = queue.try_recv() else { return };
            batch.push(span);
        }
    }

    /// Sends a batch and empties it, whether the attempts succeed or fail.
    async fn deliver_batch(&self, batch: &mut Vec<Span>, attempts: u32) {
        let count = batch.len() as u64;
        let body = Bytes::from(span::export_request(&self.service, batch));
        let mut rejected = count;
        for attempt in 1..=attempts {
            let failure = match within(self.settings.timeout, self.post_batch(body.clone())).await {
                Ok(some) => {
                    rejected = some.min(count);
                    if self.is_failing.replace(false) {
                        tracing::info!("spans reach the collector again");
                    }
                    break;
                }
                Err(failure) => failure,
            };
            if !self.is_failing.replace(true) {
                tracing::warn!(fault = %failure, spans = count, "spans do not reach the collector");
            }
            if !failure.may_pass() || attempt == attempts {
                break;
            }
            sleep(match failure {
                ExportFailure::Status {
                    retry_after: Some(asked),
                    ..
                } => asked,
                _ => pause_after(attempt),
            })
            .await;
        }
        batch.clear();
        self.metrics.leave(SpanOutcome::Sent, count - rejected);
        self.metrics.leave(SpanOutcome::Undelivered, rejected);
    }

    /// Makes one attempt. Returns the number of spans that the collector rejected.
    async fn post_batch(&self, body: Bytes) -> Result<u64, ExportFailure> {
        let request = Request::post(&*self.endpoint.path)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("sealwire/", env!("CARGO_PKG_VERSION")))
            .header(CONNECTION, "close")
            .body(Full::new(body))
            .map_err(|_| ExportFailure::Unreadable)?;
        let mut connection = HttpConnection::open(
            &self.endpoint.origin,
            &Transport::Plain,
            self.settings.timeout,
        )
        .await?;
        let response = connection.send(request).await?;
        let status = response.status();
        if !status.is_success() {
            let seconds = response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|after| after.to_str().ok()?.parse().ok());
            let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(PAUSE_MAX));
            return Err(ExportFailure::Status {
                status,
                retry_after,
            });
        }
        // The spans have arrived. They are not sent again if only the response is incomplete.
        let response = read_body(response.into_body(), ANSWER_BYTES_MAX).await;
        Ok(rejected_spans(
            &response.map_err(|_| ExportFailure::Unreadable)?,
        ))
    }
}

/// Returns the pause after an attempt. The pause is random, so that several engines do not retry at
/// the same time.
fn pause_after(attempt: u32) -> Duration {
    let longest = PAUSE * (1 << (attempt - 1));
    longest - rand::random_range(Duration::ZERO..=longest / 2)
}

/// Returns the number of spans that an `ExportTraceServiceResponse` reports as rejected, or 0 if
/// the response reports none.
fn rejected_spans(response: &[u8]) -> u64 {
    let response: serde_json::Value = serde_json::from_slice(response).unwrap_or_default();
    let rejected = &response["partialSuccess"]["rejectedSpans"];
    rejected
        .as_u64()
        .or_else(|| rejected.as_str()?.parse().ok())
        .unwrap_or(0)
}
