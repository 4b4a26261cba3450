//! gRPC over HTTP/2: messages of a stream, and the status at its end.
//!
//! Only a complete exchange gives the outcome for which the status OK is written, in one place.
//! Dropping a response resets the stream. A stream therefore never appears successful by accident.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use prost::Message as _;
use tokio::sync::mpsc;

use super::proto::{ProcessingRequest, ProcessingResponse, ResponsePart};
use crate::error::{Failure, Reason};
use crate::memory::{Account, Reservation};

/// Longest message of the proxy in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Longer messages reserve memory within the limits as they arrive.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Length of the flag and the length field before each message.
const PREFIX_BYTES: usize = 5;
/// Most messages that wait to be sent.
const QUEUE_MAX: usize = 2;

/// Status codes of gRPC.
const OK: u8 = 0;
const INVALID_ARGUMENT: u8 = 3;
const DEADLINE_EXCEEDED: u8 = 4;
const RESOURCE_EXHAUSTED: u8 = 8;
const ABORTED: u8 = 10;
const UNAVAILABLE: u8 = 14;

/// A message of the proxy, with its reserved memory.
pub(super) struct Received {
    /// The message.
    pub(super) message: ProcessingRequest,
    /// Memory, if the message is long.
    pub(super) memory: Option<Reservation>,
}

/// Reads the messages of the proxy.
pub(super) struct Reader<B> {
    body: B,
    buffer: BytesMut,
    /// Memory of the arriving message, if it is long.
    memory: Option<Reservation>,
    memory_account: Account,
}

impl<B: Body<Data = Bytes> + Unpin> Reader<B> {
    /// Creates a reader of a body.
    pub(super) fn new(body: B, memory_account: Account) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            memory: None,
            memory_account,
        }
    }

    /// Returns the next message, or `None` after the proxy has closed its side. Safe to drop.
    ///
    /// # Errors
    /// The message is malformed or too long, or the stream ended early.
    pub(super) async fn next_message(&mut self) -> Result<Option<Received>, Failure> {
        loop {
            if let Some(received) = self.take_message()? {
                return Ok(Some(received));
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None | Some(Err(_)) => {
                    return Err(malformed_stream("the stream broke off within a message"));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// Takes a message out of the buffer, if it is complete.
    fn take_message(&mut self) -> Result<Option<Received>, Failure> {
        let Some((prefix, rest)) = self.buffer.split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let [flag, length @ ..] = *prefix;
        if flag != 0 {
            return Err(malformed_stream("a message is compressed"));
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(Failure::request(Reason::TooLarge(
                "message of the proxy",
                MESSAGE_BYTES_MAX as u64,
            )));
        }
        if length > SMALL_BYTES_MAX {
            let memory = self
                .memory
                .get_or_insert_with(|| self.memory_account.clone().new_reservation());
            memory
                .grow_to(self.buffer.len().min(PREFIX_BYTES + length))
                .map_err(|error| Failure::request(error.into()))?;
        }

        if rest.len() < length {
            return Ok(None);
        }
        self.buffer.advance(PREFIX_BYTES);

        let message = ProcessingRequest::decode(self.buffer.split_to(length).freeze());
        let message =
            message.map_err(|_| malformed_stream("a message of the proxy cannot be decoded"))?;
        if self.buffer.is_empty() {
            // An empty buffer would keep the memory of the message.
            self.buffer = BytesMut::new();
        }
        Ok(Some(Received {
            message,
            memory: self.memory.take(),
        }))
    }
}

const fn malformed_stream(detail: &'static str) -> Failure {
    Failure::request(Reason::Ambiguous(detail))
}

/// Sends messages to the proxy.
#[derive(Debug)]
pub(super) struct Output(mpsc::Sender<Bytes>);

impl Output {
    /// Sends a message. Waits while the proxy does not read.
    pub(super) async fn send(&self, part: ResponsePart) {
        let message = ProcessingResponse {
            response: Some(part),
        };
        let length = message.encoded_len();
        let mut frame = BytesMut::with_capacity(PREFIX_BYTES + length);
        frame.put_u8(0);
        frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        message.encode_raw(&mut frame);
        // The receiver polls this future, so the receiver exists and the send succeeds.
        let _ = self.0.send(frame.freeze()).await;
    }
}

/// Proof that both directions of an exchange are complete.
#[derive(Debug)]
pub(super) struct Complete(());

impl Complete {
    /// Creates the proof. The caller must have received, edited and sent every byte of both
    /// directions.
    pub(super) const fn both_directions() -> Self {
        Self(())
    }
}

/// The task of a stream, which ends with the status.
type StreamTask = BoxFuture<'static, Result<Complete, Failure>>;

/// The response of a stream: the messages of its task, then the status.
pub(super) struct Messages {
    task: Option<StreamTask>,
    messages: mpsc::Receiver<Bytes>,
    /// The final status, until it was sent.
    status: Option<HeaderMap>,
}

impl Messages {
    /// Creates a response whose task sends messages through the given output.
    pub(super) fn new(task: impl FnOnce(Output) -> StreamTask) -> Self {
        let (sender, messages) = mpsc::channel(QUEUE_MAX);
        Self {
            task: Some(task(Output(sender))),
            messages,
            status: None,
        }
    }
}

impl Body for Messages {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if let Some(task) = &mut self.task
            && let Poll::Ready(outcome) = task.as_mut().poll(cx)
        {
            // Dropping the task also drops the sender.
            self.task = None;
            self.status = Some(status_trailers(outcome.as_ref().err()));
        }
        match self.messages.poll_recv(cx) {
            Poll::Ready(Some(bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Poll::Ready(None) if self.task.is_none() => {
                Poll::Ready(self.status.take().map(|status| Ok(Frame::trailers(status))))
            }
            _ => Poll::Pending,
        }
    }
}

/// Returns trailers with the status of a stream.
fn status_trailers(failure: Option<&Failure>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", u16::from(failure.map_or(OK, code_of)).into());
    let message = failure.map(|failure| match failure.reason.detail() {
        "" => failure.reason.title(),
        detail => detail,
    });
    // All texts are visible ASCII without percent signs, so they need no escapes.
    if let Some(message) = message.and_then(|message| HeaderValue::from_str(message).ok()) {
        trailers.insert("grpc-message", message);
    }
    trailers
}

/// Returns the status code of a failure, which is never OK.
const fn code_of(failure: &Failure) -> u8 {
    match failure.reason {
        Reason::Ambiguous(_) => INVALID_ARGUMENT,
        Reason::ClientTimeout | Reason::EngineTimeout | Reason::UpstreamTimeout => {
            DEADLINE_EXCEEDED
        }
        Reason::TooLarge(..) | Reason::Busy(_) => RESOURCE_EXHAUSTED,
        Reason::Overloaded | Reason::EngineUnavailable | Reason::Draining => UNAVAILABLE,
        _ => ABORTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_never_have_the_status_of_success() {
        for reason in Reason::KINDS {
            for failure in [
                Failure::request(reason.clone()),
                Failure::response(reason.clone()),
            ] {
                let trailers = status_trailers(Some(&failure));
                assert_ne!(trailers["grpc-status"], "0", "{failure}");
                assert!(!trailers["grpc-message"].is_empty());
            }
        }
        assert_eq!(status_trailers(None)["grpc-status"], "0");
    }
}
