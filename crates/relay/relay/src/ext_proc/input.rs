//! Messages of the proxy, split into the bodies of request and response.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{mpsc, oneshot};

use super::grpc::{Reader, Received};
use super::mutation::check_size;
use super::proto::{HeaderMap, HttpBody, HttpHeaders, HttpTrailers, Part, ProcessingRequest};
use crate::error::{Failure, Phase, Reason};
use crate::memory::Reservation;

/// Most parts of a body that were received but not read.
const QUEUE_MAX: usize = 1;

/// Next part of a body.
enum FeedItem {
    Data(Bytes, Option<Reservation>),
    End(Option<HeaderMap>),
}

/// Trailers of a body, set after its end was read. `None` if the proxy sent no trailers.
pub(super) type End = Arc<OnceLock<Option<HeaderMap>>>;

/// A body that the proxy sends in parts. A queue that closes without an explicit end is a failure.
pub(super) struct Feed {
    items: mpsc::Receiver<FeedItem>,
    end: End,
    phase: Phase,
    /// Memory of the part that was read last.
    memory: Option<Reservation>,
}

/// The sender's side of a [`Feed`].
pub(super) struct Sink {
    /// The sender. `None` after the end.
    items: Option<mpsc::Sender<FeedItem>>,
    end: End,
}

/// Creates both sides of a body.
pub(super) fn feed(phase: Phase) -> (Sink, Feed) {
    let (sender, items) = mpsc::channel(QUEUE_MAX);
    let end = End::default();
    let feed = Feed {
        items,
        end: Arc::clone(&end),
        phase,
        memory: None,
    };
    (
        Sink {
            items: Some(sender),
            end,
        },
        feed,
    )
}

impl Feed {
    /// Returns the cell that receives the trailers at the end.
    pub(super) fn end_cell(&self) -> End {
        Arc::clone(&self.end)
    }
}

impl Body for Feed {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        self.memory = None;
        if self.end.get().is_some() {
            return Poll::Ready(None);
        }
        match ready!(self.items.poll_recv(cx)) {
            Some(FeedItem::Data(bytes, memory)) => {
                self.memory = memory;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(FeedItem::End(trailers)) => {
                let _ = self.end.set(trailers);
                Poll::Ready(None)
            }
            None => Poll::Ready(Some(Err(truncated_body_failure(self.phase)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.end.get().is_some()
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() {
            SizeHint::with_exact(0)
        } else {
            SizeHint::default()
        }
    }
}

fn truncated_body_failure(phase: Phase) -> Failure {
    match phase {
        Phase::Request => Failure::request(Reason::Ambiguous("the body is malformed or broke off")),
        Phase::Response => Failure::response(Reason::UpstreamBroken(
            "the proxy ended the stream within the body",
        )),
    }
}

impl Sink {
    /// Records that the message has no body.
    pub(super) fn set_no_body(&mut self) {
        let _ = self.end.set(None);
        self.items = None;
    }

    const fn is_complete(&self) -> bool {
        self.items.is_none()
    }

    /// Forwards bytes. Waits until the previous part was read. Parts after the end are ignored,
    /// because Envoy can send the last part twice (envoyproxy/envoy#46237).
    async fn forward_data(&mut self, body: HttpBody, memory: Option<Reservation>) {
        if let Some(items) = &self.items
            && !body.body.is_empty()
        {
            // An error means that the reader needs no more bytes, such as for a response to HEAD.
            let _ = items.send(FeedItem::Data(body.body, memory)).await;
        }
        if body.end_of_stream {
            self.send_end(None).await;
        }
    }

    async fn forward_trailers(&mut self, trailers: HttpTrailers) -> Result<(), Failure> {
        let trailers = trailers.trailers.unwrap_or_default();
        // Trailers are stored until the end of the body was sent.
        check_size(&trailers).map_err(Failure::request)?;
        self.send_end(Some(trailers)).await;
        Ok(())
    }

    async fn send_end(&mut self, trailers: Option<HeaderMap>) {
        if let Some(items) = self.items.take() {
            let _ = items.send(FeedItem::End(trailers)).await;
        }
    }
}

/// Messages of the proxy after the first one, split by direction.
pub(super) struct Demux<B> {
    /// The messages.
    pub(super) reader: Reader<B>,
    /// The request's body.
    pub(super) request: Sink,
    /// The response's body.
    pub(super) response: Sink,
    /// Receives the headers of the response.
    pub(super) response_headers: Option<oneshot::Sender<HttpHeaders>>,
}

impl<B: Body<Data = Bytes> + Unpin> Demux<B> {
    /// Reads until both directions have ended.
    ///
    /// # Errors
    /// The proxy ended the stream early, or violated the protocol.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        while !(self.request.is_complete() && self.response.is_complete()) {
            let received = self.reader.next_message().await?.ok_or_else(|| {
                protocol_violation(
                    "the proxy ended the stream before request and response were complete",
                )
            })?;
            self.forward_part(received).await?;
        }
        Ok(())
    }

    async fn forward_part(
        &mut self,
        Received { message, memory }: Received,
    ) -> Result<(), Failure> {
        match take_part(message)? {
            Part::RequestHeaders(_) => {
                return Err(protocol_violation(
                    "the proxy sent the request's headers twice",
                ));
            }
            Part::RequestBody(body) => self.request.forward_data(body, memory).await,
            Part::RequestTrailers(trailers) => self.request.forward_trailers(trailers).await?,
            Part::ResponseHeaders(headers) => {
                let sender = self.response_headers.take().ok_or_else(|| {
                    protocol_violation("the proxy sent the response's headers twice")
                })?;
                if headers.end_of_stream {
                    self.response.set_no_body();
                }
                let _ = sender.send(headers);
            }
            Part::ResponseBody(_) | Part::ResponseTrailers(_)
                if self.response_headers.is_some() =>
            {
                return Err(protocol_violation(
                    "the proxy sent a response's body before its headers",
                ));
            }
            Part::ResponseBody(body) => self.response.forward_data(body, memory).await,
            Part::ResponseTrailers(trailers) => self.response.forward_trailers(trailers).await?,
        }
        Ok(())
    }
}

/// Takes the part out of a message.
///
/// # Errors
/// The message has no part, or the proxy ignores the responses.
pub(super) fn take_part(message: ProcessingRequest) -> Result<Part, Failure> {
    if message.observability_mode {
        return Err(protocol_violation(
            "observability_mode must be off: the relay changes messages",
        ));
    }
    message.request.ok_or_else(|| {
        protocol_violation("a message of the proxy has no part that the relay supports")
    })
}

/// Creates a failure for wrong settings of the proxy, or for a message out of order.
pub(super) const fn protocol_violation(detail: &'static str) -> Failure {
    Failure::request(Reason::Ambiguous(detail))
}
