//! A connection that carries many concurrent requests over one byte stream of any kind.
//!
//! A driver task reads responses and writes requests concurrently. Request futures communicate with
//! the driver through [`State`] and never touch the stream. A connection does not reconnect or
//! retry: once ended, it stays ended, and the pool opens another.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use sealwire_wire::{
    Disposition, ErrorCode, Limits, MessageHeader, Notification, Response, Scan, Scanner,
    decode_protocol_error,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{Error, certificate_alert, printable, rejected_certificate};
use crate::state::{CloseReason, Failure, State};

/// Buffer space in bytes reserved for each read.
const READ_BYTES: usize = 16 << 10;
/// Responses up to this length are copied, so that a small response does not keep a large buffer
/// alive.
const COPY_BYTES_MAX: usize = 4 << 10;
/// An empty read buffer larger than this is freed.
const SPARE_BYTES_MAX: usize = 1 << 20;
/// Timeout for writing the last bytes when a connection is closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// Bounds of one connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) request_bytes_max: usize,
    pub(crate) response_bytes_max: usize,
}

impl Bounds {
    /// Returns the scanner limits. Only the length of a response is bounded. The request determines
    /// depth and element count of its response, so these limits only need to be as large as any
    /// server's. A server allows at most 1,024 levels, and a result adds no levels to those of its
    /// request.
    fn limits(self) -> Limits {
        let message_bytes_max = self.response_bytes_max as u64;
        Limits {
            message_bytes_max,
            depth_max: 1_024,
            elements_max: message_bytes_max,
            discard_bytes_max: message_bytes_max.saturating_mul(4),
        }
    }
}

/// A live connection. Dropping the last handle closes it.
pub(crate) struct Connection {
    state: Arc<State>,
    bounds: Bounds,
    farewell: Arc<Notify>,
    in_flight: AtomicUsize,
}

impl Connection {
    /// Starts the driver task on a stream whose TLS handshake is complete.
    pub(crate) fn start(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        bounds: Bounds,
    ) -> Self {
        let state = Arc::new(State::new());
        let farewell = Arc::new(Notify::new());
        tokio::spawn(drive(
            stream,
            Arc::clone(&state),
            Arc::clone(&farewell),
            bounds,
        ));
        Self {
            state,
            bounds,
            farewell,
            in_flight: AtomicUsize::new(0),
        }
    }

    /// Returns true if it accepts new requests.
    pub(crate) fn is_usable(&self) -> bool {
        self.state.is_open() && !self.state.is_silent() && !self.state.is_retired()
    }

    /// Returns the reason why the connection takes no new requests, as an error.
    pub(crate) fn end_error(&self) -> Error {
        let why = match self.state.close_reason() {
            Some(CloseReason::Rejected(alert)) => return rejected_certificate(alert),
            Some(CloseReason::Ended(why)) => why,
            None if self.state.is_retired() => {
                "the server does not accept this certificate any more".into()
            }
            None => "the server went silent".into(),
        };
        Error::Disconnected { why }
    }

    /// Returns true if requests were waiting when it ended.
    pub(crate) fn lost_calls(&self) -> bool {
        self.state.lost_calls()
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Returns the number of requests on this connection, as counted by the pool.
    pub(crate) fn in_flight(&self) -> &AtomicUsize {
        &self.in_flight
    }

    /// Sends the request that `encode` appends for the given msgid, and waits for its result.
    ///
    /// Cancel-safe: a future dropped before its request is written writes nothing. A future dropped
    /// later sends a `cancel` to the server. In both cases, the entry of the request is removed
    /// immediately.
    pub(crate) async fn call(
        &self,
        deadline: Instant,
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> Result<Bytes, Failure> {
        let (entry, answer) = self.state.open()?;
        let mut request = Vec::new();
        encode(&mut request, entry.msgid());
        if request.len() > self.bounds.request_bytes_max {
            return Err(Failure::TooLong);
        }
        self.state.queue(entry.msgid(), request.into());
        let message = match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => {
                entry.settle();
                answer?
            }
            // The sender is dropped unused only when the runtime shuts down.
            Ok(Err(_)) => return Err(Failure::Disconnected("the runtime is shutting down".into())),
            Err(_) => return Err(Failure::Deadline),
        };
        match Response::decode(&message) {
            Ok(response) => {
                if matches!(&response.outcome, Err(error) if error.code == ErrorCode::Unauthenticated)
                {
                    // The certificate is expired or revoked. Requests in flight are still
                    // completed.
                    self.state.retire();
                }
                response
                    .outcome
                    .map(|result| message.slice_ref(result))
                    .map_err(Failure::Rpc)
            }
            Err(malformed) => {
                self.state
                    .close("the server sent a malformed response".into());
                self.farewell.notify_one();
                Err(Failure::Protocol(malformed))
            }
        }
    }

    /// Returns the shared state, which can outlive the connection.
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.farewell.notify_one();
    }
}

/// Runs a connection until the peer closes it, an error occurs, or the last handle is dropped.
async fn drive(
    stream: impl AsyncRead + AsyncWrite,
    state: Arc<State>,
    farewell: Arc<Notify>,
    bounds: Bounds,
) {
    let (reader, mut writer) = tokio::io::split(Box::pin(stream));
    let mut reading = pin!(read_answers(reader, &state, bounds.limits()));
    let reason = tokio::select! {
        reason = &mut reading => reason,
        failed = write_requests(&mut writer, &state) => {
            state.stop_writes(failed.clone());
            // Responses or the reason for the close can still be unread.
            timeout(FAREWELL, reading).await.unwrap_or(failed)
        }
        () = farewell.notified() => "closed by this side".into(),
    };
    tracing::debug!(?reason, "connection ended");
    state.close(reason);
    // The peer can be gone or not reading, so the shutdown has a time limit.
    let _ = timeout(FAREWELL, writer.shutdown()).await;
}

/// Writes all queued data and flushes after each batch, because a buffered request would never
/// arrive.
async fn write_requests(writer: &mut (impl AsyncWrite + Unpin), state: &State) -> CloseReason {
    loop {
        let mut bytes = state.next_write();
        if bytes.is_empty() {
            state.work.notified().await;
            continue;
        }
        let written = async {
            while bytes.has_remaining() {
                if writer.write_buf(&mut bytes).await? == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                if bytes.has_remaining() {
                    state.wrote();
                }
            }
            writer.flush().await
        };
        if let Err(error) = written.await {
            return io_reason(&error);
        }
    }
}

/// Returns the reason of a connection that ended with this error.
fn io_reason(error: &io::Error) -> CloseReason {
    certificate_alert(error)
        .map_or_else(|| error.to_string().as_str().into(), CloseReason::Rejected)
}

async fn read_answers(
    mut reader: impl AsyncRead + Unpin,
    state: &State,
    limits: Limits,
) -> CloseReason {
    let mut scanner = Scanner::for_replies(limits);
    let mut buffer = BytesMut::new();
    loop {
        if let Err(why) = hand_out(&mut scanner, &mut buffer, state) {
            return why.as_str().into();
        }
        if buffer.is_empty() && buffer.capacity() > SPARE_BYTES_MAX {
            buffer = BytesMut::new();
        }
        buffer.reserve(READ_BYTES);
        match reader.read_buf(&mut buffer).await {
            Ok(0) => return "the server closed the connection".into(),
            Ok(_) => state.heard(),
            Err(error) => return io_reason(&error),
        }
    }
}

/// Processes every complete message in the buffer. An error ends the connection.
fn hand_out(scanner: &mut Scanner, buffer: &mut BytesMut, state: &State) -> Result<(), String> {
    loop {
        match scanner.scan(buffer) {
            Scan::Incomplete => return Ok(()),
            Scan::Discard { bytes, .. } => buffer.advance(bytes),
            Scan::Message(boundary) => {
                let message = take(buffer, boundary.bytes);
                match boundary.header {
                    MessageHeader::Response { msgid } => state.answer(msgid, Ok(message)),
                    MessageHeader::Notification {
                        notice: Some(Notification::Error),
                    } => {
                        return Err(match decode_protocol_error(&message) {
                            Ok(error) => format!("the server said {}", printable(error)),
                            Err(_) => "the server sent a malformed error notification".to_owned(),
                        });
                    }
                    MessageHeader::Notification { .. } | MessageHeader::Request { .. } => {}
                }
            }
            Scan::Rejected {
                header,
                error,
                disposition,
            } => {
                if let Some(MessageHeader::Response { msgid }) = header {
                    state.answer(msgid, Err(Failure::Refused(error)));
                }
                if disposition == Disposition::Close {
                    if buffer.starts_with(b"HTTP/1.") {
                        return Err("the port serves HTTP. Is it the port of http.address? Use that of listen.address".to_owned());
                    }
                    return Err(error.to_string());
                }
            }
        }
    }
}

fn take(buffer: &mut BytesMut, bytes: usize) -> Bytes {
    if bytes > COPY_BYTES_MAX {
        return buffer.split_to(bytes).freeze();
    }
    let message = Bytes::copy_from_slice(&buffer[..bytes]);
    buffer.advance(bytes);
    message
}
