//! One connection: many calls over one byte stream, whatever that stream is.
//!
//! A driver task reads answers and writes requests side by side; calls talk to it through [`State`] and never touch the
//! stream. It does not reconnect and does not retry: a connection that ends stays ended, and the pool makes another.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use sealwire_wire::{ErrorCode, Fate, Head, Limits, Notice, Reply, Scan, Scanner, decode_protocol_error};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::state::{Failure, State};

/// Room for each read.
const READ_BYTES: usize = 16 << 10;
/// Answers up to this long are copied out, so that a small one that is kept does not keep a large buffer.
const COPY_BYTES_MAX: usize = 4 << 10;
/// An empty read buffer beyond this is given back.
const SPARE_BYTES_MAX: usize = 1 << 20;
/// Time for the last bytes of a connection that is being closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// Bounds of one connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) request_bytes_max: usize,
    pub(crate) reply_bytes_max: usize,
}

impl Bounds {
    /// A reply's length is bounded; its depth and count follow from the request, so they only need to be as large as
    /// any server can be told to accept: 1,024 levels, which a result wraps in no more than the request had.
    fn limits(self) -> Limits {
        let message_bytes_max = self.reply_bytes_max as u64;
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
    /// Starts the driver task on a stream whose handshake is done.
    pub(crate) fn start(stream: impl AsyncRead + AsyncWrite + Send + 'static, bounds: Bounds) -> Self {
        let state = Arc::new(State::new());
        let farewell = Arc::new(Notify::new());
        tokio::spawn(drive(stream, Arc::clone(&state), Arc::clone(&farewell), bounds));
        Self { state, bounds, farewell, in_flight: AtomicUsize::new(0) }
    }

    /// Returns true if it accepts new requests.
    pub(crate) fn is_usable(&self) -> bool {
        self.state.is_open() && !self.state.is_silent() && !self.state.is_retired()
    }

    /// Why it takes no more calls, for people.
    pub(crate) fn why_ended(&self) -> Arc<str> {
        let lives = || match self.state.is_retired() {
            true => "the server does not accept this certificate any more".into(),
            false => "the server went silent".into(),
        };
        self.state.why_closed().unwrap_or_else(lives)
    }

    /// Returns true if requests were waiting when it ended.
    pub(crate) fn lost_calls(&self) -> bool {
        self.state.lost_calls()
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Calls placed on it, kept by the pool.
    pub(crate) fn in_flight(&self) -> &AtomicUsize {
        &self.in_flight
    }

    /// Sends what `encode` appends for the msgid it is given, and waits for that call's result.
    ///
    /// Cancel-safe: dropped before the request is written, nothing is written; dropped later, the server is sent a
    /// `cancel`. Either way the call's entry is gone at once.
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
            // The sender is dropped unused only together with the runtime.
            Ok(Err(_)) => return Err(Failure::Disconnected("the runtime is shutting down".into())),
            Err(_) => return Err(Failure::Deadline),
        };
        match Reply::decode(&message) {
            Ok(reply) => {
                if matches!(&reply.outcome, Err(error) if error.code == ErrorCode::Unauthenticated) {
                    // Its certificate is over or revoked; what is in flight is still answered.
                    self.state.retire();
                }
                reply.outcome.map(|result| message.slice_ref(result)).map_err(Failure::Rpc)
            }
            Err(malformed) => {
                self.state.close("the server sent a malformed response");
                self.farewell.notify_one();
                Err(Failure::Protocol(malformed))
            }
        }
    }

    /// Its books, which outlive it.
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.farewell.notify_one();
    }
}

/// Runs a connection to its end: the peer's, an error's, or its last handle's.
async fn drive(stream: impl AsyncRead + AsyncWrite, state: Arc<State>, farewell: Arc<Notify>, bounds: Bounds) {
    let (reader, mut writer) = tokio::io::split(Box::pin(stream));
    let why = tokio::select! {
        why = read_answers(reader, &state, bounds.limits()) => why,
        why = write_requests(&mut writer, &state) => why,
        () = farewell.notified() => "closed by this side".to_owned(),
    };
    tracing::debug!(why, "connection ended");
    state.close(&why);
    // The peer may be gone or may not read; it gets its chance and no more.
    let _ = timeout(FAREWELL, writer.shutdown()).await;
}

/// Writes whatever is queued, flushing each time: a request in a buffer is a request that never arrives.
async fn write_requests(writer: &mut (impl AsyncWrite + Unpin), state: &State) -> String {
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
            return error.to_string();
        }
    }
}

async fn read_answers(mut reader: impl AsyncRead + Unpin, state: &State, limits: Limits) -> String {
    let mut scanner = Scanner::for_replies(limits);
    let mut buffer = BytesMut::new();
    loop {
        if let Err(why) = hand_out(&mut scanner, &mut buffer, state) {
            return why;
        }
        if buffer.is_empty() && buffer.capacity() > SPARE_BYTES_MAX {
            buffer = BytesMut::new();
        }
        buffer.reserve(READ_BYTES);
        match reader.read_buf(&mut buffer).await {
            Ok(0) => return "the server closed the connection".to_owned(),
            Ok(_) => state.heard(),
            Err(error) => return error.to_string(),
        }
    }
}

/// Takes every complete message from the buffer. An error ends the connection.
fn hand_out(scanner: &mut Scanner, buffer: &mut BytesMut, state: &State) -> Result<(), String> {
    loop {
        match scanner.scan(buffer) {
            Scan::Incomplete => return Ok(()),
            Scan::Discard { bytes, .. } => buffer.advance(bytes),
            Scan::Message(boundary) => {
                let message = take(buffer, boundary.bytes);
                match boundary.head {
                    Head::Response { msgid } => state.answer(msgid, Ok(message)),
                    Head::Notification { notice: Some(Notice::Error) } => {
                        return Err(match decode_protocol_error(&message) {
                            Ok(error) => format!("the server said {error}"),
                            Err(_) => "the server sent a malformed error notification".to_owned(),
                        });
                    }
                    Head::Notification { .. } | Head::Request { .. } => {}
                }
            }
            Scan::Refused { head, error, fate } => {
                if let Some(Head::Response { msgid }) = head {
                    state.answer(msgid, Err(Failure::Refused(error)));
                }
                if fate == Fate::Close {
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
