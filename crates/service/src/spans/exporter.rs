//! Takes spans to a collector: OTLP/HTTP in JSON, from a thread of its own, so that neither making
//! JSON nor a slow name server takes time of the network threads.
//!
//! Written here and not taken from `opentelemetry-otlp`: that and its SDK are eleven crates, of
//! which the encoding would be used. Its processor counts what it drops where only its own log sees
//! it, keeps a batch for no second attempt, and lets `OTEL_` variables of the environment change
//! limits and headers that our configuration states. The JSON of OTLP is specified, stable and
//! small.
//!
//! Everything has a bound: the queue, a batch, the time for one attempt, attempts, the answer that
//! is read, the stop. A connection carries one batch. A batch of which an attempt was cut off may
//! arrive twice, with the same ids. Plain HTTP to a collector beside the engine; HTTPS is that
//! collector's to speak.

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

/// How often a batch is sent, if the collector may take it another time.
const ATTEMPTS_MAX: u32 = 4;
/// The first pause between two; the next are twice as long each, and each is cut by up to a half by
/// chance.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest that a collector may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How much of an answer is read. A full one has some hundred bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The way to the collector.
pub(crate) struct Exporter {
    queue: mpsc::Sender<Span>,
    batch_spans: usize,
    /// A batch is there.
    full: Arc<Notify>,
    metrics: SpanMetrics,
    /// To stop the thread, and to wait for it.
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
                // A name server that does not answer is not waited for.
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

    /// Queues a span, or drops it where there is no room.
    pub(crate) fn take(&self, span: Span) {
        // The first of a batch is out of the queue already.
        let waiting = self.metrics.enter();
        if self.queue.try_send(span).is_err() {
            self.metrics.leave(SpanOutcome::NoRoom, 1);
        } else if waiting >= self.batch_spans {
            self.full.notify_one();
        }
    }

    /// Has what is left sent, and waits for it, no longer than one attempt may take.
    pub(crate) fn close(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((stop, thread)) = thread {
            let _ = stop.send(());
            // A panic there was printed there.
            let _ = thread.join();
        }
    }
}

/// The thread's half.
struct Sender {
    endpoint: Endpoint,
    service: Service,
    settings: Settings,
    full: Arc<Notify>,
    metrics: SpanMetrics,
    /// True after a batch that the collector did not take.
    is_failing: Cell<bool>,
}

/// Why spans did not arrive.
#[derive(Debug, thiserror::Error)]
enum ExportFault {
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

impl ExportFault {
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
    /// Sends batches until it is stopped, then what is left.
    async fn run(self, mut queue: mpsc::Receiver<Span>, stopped: oneshot::Receiver<()>) {
        let mut batch = Vec::new();
        tokio::select! {
            // An engine that goes without a word stops it too.
            _ = stopped => (),
            () = self.work(&mut queue, &mut batch) => (),
        }
        queue.close();
        let left = async {
            loop {
                self.fill(&mut queue, &mut batch);
                if batch.is_empty() {
                    return;
                }
                self.deliver(&mut batch, 1).await;
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
    async fn work(&self, queue: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
        while let Some(first) = queue.recv().await {
            batch.push(first);
            tokio::select! {
                () = sleep(self.settings.batch) => (),
                () = self.full.notified() => (),
            }
            self.fill(queue, batch);
            self.deliver(batch, ATTEMPTS_MAX).await;
        }
    }

    fn fill(&self, queue: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
        while batch.len() < self.settings.batch_spans {
            let Ok(span) = queue.try_recv() else { return };
            batch.push(span);
        }
    }

    /// Sends a batch and empties it, whatever comes of it.
    async fn deliver(&self, batch: &mut Vec<Span>, attempts: u32) {
        let (count, body) = (
            batch.len() as u64,
            Bytes::from(span::request(&self.service, batch)),
        );
        let mut refused = count;
        for attempt in 1..=attempts {
            let fault = match within(self.settings.timeout, self.post(body.clone())).await {
                Ok(some) => {
                    refused = some.min(count);
                    if self.is_failing.replace(false) {
                        tracing::info!("spans reach the collector again");
                    }
                    break;
                }
                Err(fault) => fault,
            };
            if !self.is_failing.replace(true) {
                tracing::warn!(%fault, spans = count, "spans do not reach the collector");
            }
            if !fault.may_pass() || attempt == attempts {
                break;
            }
            sleep(match fault {
                ExportFault::Status {
                    retry_after: Some(asked),
                    ..
                } => asked,
                _ => pause_after(attempt),
            })
            .await;
        }
        batch.clear();
        self.metrics.leave(SpanOutcome::Sent, count - refused);
        self.metrics.leave(SpanOutcome::Undelivered, refused);
    }

    /// One attempt. How many of the spans the collector refused.
    async fn post(&self, body: Bytes) -> Result<u64, ExportFault> {
        let request = Request::post(&*self.endpoint.path)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("sealwire/", env!("CARGO_PKG_VERSION")))
            .header(CONNECTION, "close")
            .body(Full::new(body))
            .map_err(|_| ExportFault::Unreadable)?;
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
            return Err(ExportFault::Status {
                status,
                retry_after,
            });
        }
        // Spans that arrived are not sent again because the rest of the answer did not.
        let answer = read_body(response.into_body(), ANSWER_BYTES_MAX).await;
        Ok(rejected(&answer.map_err(|_| ExportFault::Unreadable)?))
    }
}

/// How long to wait after an attempt, by chance, so that engines do not come in step.
fn pause_after(attempt: u32) -> Duration {
    let longest = PAUSE * (1 << (attempt - 1));
    longest - rand::random_range(Duration::ZERO..=longest / 2)
}

/// The spans that an `ExportTraceServiceResponse` says were refused. One that says nothing refused
/// none.
fn rejected(answer: &[u8]) -> u64 {
    let answer: serde_json::Value = serde_json::from_slice(answer).unwrap_or_default();
    let rejected = &answer["partialSuccess"]["rejectedSpans"];
    rejected
        .as_u64()
        .or_else(|| rejected.as_str()?.parse().ok())
        .unwrap_or(0)
}
