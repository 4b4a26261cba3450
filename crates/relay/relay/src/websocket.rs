//! WebSocket sessions (RFC 6455): each text message is one JSON document.
//!
//! Fragments are joined to messages, which are edited and sent in frames of at most 32 KiB.
//! Extensions are not negotiated, so messages are never compressed. A message that cannot be edited
//! closes the session on both sides. The status is 1003 or 1007 for an error of form, 1009 for a
//! message that is too long, and 1011 for the engine. No rule can be applied to the reason text of
//! a close frame, so a direction with rules drops it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use http::header::{
    CONNECTION, CONTENT_LENGTH, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, Version};
use http_body_util::BodyExt as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sealwire_relay_body::{Format, Scanner};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data as OpData, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::body::Outgoing;
use crate::edit::{Editor, Extent};
use crate::engine::{Scope, join_frames};
use crate::error::{Failure, Reason};
use crate::memory::{Account, Reservation};
use crate::message::scanner_limits;
use crate::relay::{Peer, Relay, wait_for_stop};
use crate::shares::{ClientId, ClientShares};
use crate::upstream::body::UpstreamBody;
use sealwire_service::http_server::stall::Offer;
use sealwire_service::memory::GrowError;

/// Longest time for the close frames of both sides.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Length of the header of a control frame from a server.
const CONTROL_HEADER_BYTES: usize = 2;
/// Length of the header of a control frame from a client, which includes the mask.
const MASKED_CONTROL_HEADER_BYTES: usize = 6;
/// Longest payload of a sent frame. The library keeps a buffer for the longest frame of a session.
const FRAME_BYTES_MAX: usize = 32 << 10;
/// Most bytes that wait in that buffer: a frame, its header, and control frames.
const WRITE_BYTES_MAX: usize = FRAME_BYTES_MAX + 1_024;
/// Most bytes of a message in one read.
const READ_BYTES: usize = 16 << 10;

/// The WebSockets of a route.
#[derive(Debug)]
pub struct Sessions {
    /// Allowed values of `Origin`. `None` denies all upgrades.
    origins: Option<Vec<String>>,
    /// Permits of all clients together and of each client.
    permits: Arc<Semaphore>,
    clients: ClientShares,
}

impl Default for Sessions {
    /// Permits no WebSockets.
    fn default() -> Self {
        Self::new(None, 1, 1)
    }
}

impl Sessions {
    /// Creates the sessions of a route with the allowed origins, the most sessions of all clients
    /// and the most sessions of one client.
    pub fn new(origins: Option<Vec<String>>, max: usize, per_client_max: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self {
            origins,
            permits,
            clients: ClientShares::new(per_client_max),
        }
    }

    /// Takes the permits of one session.
    ///
    /// # Errors
    /// All permits of the route, of the client or of the upstream are in use.
    pub fn take_permits(
        &self,
        client: &ClientId,
        upstream: &Arc<Semaphore>,
    ) -> Result<Permit, Failure> {
        Ok(Permit([
            take_permit(
                self.clients.share_of(client),
                "websockets_per_client_max WebSockets of the client are open",
            )?,
            take_permit(
                Arc::clone(&self.permits),
                "websockets_max WebSockets of the route are open",
            )?,
            take_permit(
                Arc::clone(upstream),
                "websockets_max WebSockets of the upstream are open",
            )?,
        ]))
    }
}

fn take_permit(
    permits: Arc<Semaphore>,
    limit: &'static str,
) -> Result<OwnedSemaphorePermit, Failure> {
    permits
        .try_acquire_owned()
        .map_err(|_| Failure::request(Reason::Busy(limit)))
}

/// Permission for one session.
#[derive(Debug)]
pub struct Permit(
    #[expect(dead_code, reason = "held until the session ends")] [OwnedSemaphorePermit; 3],
);

/// A request for a WebSocket.
#[derive(Debug)]
pub struct Handshake {
    key: HeaderValue,
    /// The client's connection, available after the response was sent.
    client: OnUpgrade,
    permit: Permit,
}

/// Takes the handshake out of a request that asks for a WebSocket.
///
/// A handshake has no body (RFC 6455, section 4.1). An upstream that already speaks WebSocket would
/// parse the body as frames that no rule was applied to.
///
/// # Errors
/// The handshake is malformed or has a body, the route or the origin does not permit it, or too
/// many sessions are open.
pub fn take_handshake(
    sessions: &Sessions,
    upstream_permits: &Arc<Semaphore>,
    parts: &mut Parts,
    has_body: bool,
    client: &ClientId,
) -> Result<Option<Handshake>, Failure> {
    if !is_handshake(sessions, parts, has_body)? {
        return Ok(None);
    }
    let key = parts.headers.get(SEC_WEBSOCKET_KEY).cloned();
    let upgrade = parts.extensions.remove::<OnUpgrade>();
    let Some((key, client_upgrade)) = key.zip(upgrade) else {
        return Err(malformed_handshake());
    };
    Ok(Some(Handshake {
        key,
        client: client_upgrade,
        permit: sessions.take_permits(client, upstream_permits)?,
    }))
}

const fn malformed_handshake() -> Failure {
    Failure::request(Reason::Ambiguous("the WebSocket handshake is malformed"))
}

/// Returns true if a request asks for a WebSocket.
fn is_handshake(sessions: &Sessions, parts: &Parts, has_body: bool) -> Result<bool, Failure> {
    let headers = &parts.headers;
    let is_requested = headers
        .get(UPGRADE)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !is_requested {
        return Ok(false);
    }
    let Some(origins) = &sessions.origins else {
        return Err(Failure::request(Reason::Forbidden(
            "the route does not permit WebSockets: it has no websocket_origins",
        )));
    };

    let is_valid = parts.method == Method::GET
        && parts.version == Version::HTTP_11
        && only_value(headers, SEC_WEBSOCKET_VERSION).is_some_and(|value| value == "13")
        && only_value(headers, SEC_WEBSOCKET_KEY).is_some_and(|value| value.len() == 24);
    if !is_valid {
        return Err(malformed_handshake());
    }

    let has_length = headers
        .get_all(CONTENT_LENGTH)
        .iter()
        .any(|length| length != "0");
    if has_body || has_length || headers.contains_key(TRANSFER_ENCODING) {
        return Err(Failure::request(Reason::Ambiguous(
            "a WebSocket handshake with a body",
        )));
    }

    // A client other than a browser sends no origin.
    let mut sent = headers.get_all(ORIGIN).iter();
    if !sent.all(|origin| {
        origins
            .iter()
            .any(|allowed| origin == allowed.as_str() || allowed == "*")
    }) {
        return Err(Failure::request(Reason::Forbidden(
            "the origin is not in websocket_origins",
        )));
    }
    Ok(true)
}

/// Returns the value of a header that occurs once.
fn only_value(headers: &HeaderMap, name: HeaderName) -> Option<&HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Sets the headers of a handshake to the upstream. Hop-by-hop headers must already be removed.
pub fn set_upstream_headers(headers: &mut HeaderMap) {
    headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Checks that the upstream accepted the handshake with that key, and sets the headers of the
/// response to the client.
///
/// # Errors
/// The response does not match the handshake.
fn check_accepted(key: &HeaderValue, headers: &mut HeaderMap) -> Result<(), Failure> {
    let expected = derive_accept_key(key.as_bytes());
    let accepted = headers
        .get(SEC_WEBSOCKET_ACCEPT)
        .is_some_and(|sent| sent.as_bytes() == expected.as_bytes());
    if !accepted || headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
        return Err(Failure::response(Reason::UpstreamBroken(
            "the upstream did not accept the WebSocket handshake",
        )));
    }
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    Ok(())
}

/// Accepts the upstream's 101 and starts the session.
///
/// # Errors
/// [`Reason::UpstreamBroken`] if the upstream did not accept the handshake. [`Reason::Busy`] if no
/// connection permit is left.
pub fn start_session(
    relay: &Arc<Relay>,
    peer: &Arc<Peer>,
    (request, response_scope): (Arc<Scope>, Arc<Scope>),
    handshake: Handshake,
    mut response: Response<UpstreamBody>,
    account: Account,
) -> Result<Response<Outgoing>, Failure> {
    let upstream = hyper::upgrade::on(&mut response);
    let Handshake {
        key,
        client,
        permit,
    } = handshake;
    let (mut parts, body) = response.into_parts();
    crate::headers::forward_response(&mut parts.headers, &request.route.via, "1.1");
    if response_scope.direction().reveals() {
        crate::headers::forbid_caching(&mut parts.headers);
    }
    check_accepted(&key, &mut parts.headers)?;

    // hyper no longer manages the connection of a session. The session therefore has its own
    // permit, which a drain waits for.
    let connection = relay
        .connection_permit()
        .ok_or_else(|| Failure::response(Reason::Busy("limits.connections_max are open")))?;
    // Each engine request of a session has the engine's own deadline, not that of the handshake.
    let session = Session {
        relay: Arc::clone(relay),
        request: without_deadline(&request),
        response: without_deadline(&response_scope),
        account,
        last_message: LastMessage::now(),
        stop: peer.stop.clone(),
    };
    // Counted before the response is sent, so that every client with a response is counted. The
    // metric is dropped last: when it no longer counts a session, the permits are already released.
    let open = (permit, connection, relay.metrics.count_open_websocket());
    tokio::spawn(async move {
        let _open = open;
        let upgraded = tokio::try_join!(client, upstream);
        // Dropping the body removes the connection from the pool, so a session never occupies the
        // place of a request.
        drop(body);
        match upgraded {
            Ok((client, upstream)) => session.run(client, upstream).await,
            Err(error) => tracing::debug!(%error, "a WebSocket did not start"),
        }
    });
    parts.extensions.clear();
    Ok(Response::from_parts(parts, Outgoing::empty()))
}

fn without_deadline(scope: &Scope) -> Arc<Scope> {
    Arc::new(Scope {
        deadline: None,
        ..scope.clone()
    })
}

/// A session.
struct Session {
    /// Shared state.
    relay: Arc<Relay>,
    /// Rules for messages to the upstream.
    request: Arc<Scope>,
    /// Rules for messages to the client.
    response: Arc<Scope>,
    /// Memory for the messages of the session.
    account: Account,
    /// Time of the last message in either direction.
    last_message: LastMessage,
    /// Changes when the relay drains.
    stop: watch::Receiver<bool>,
}

impl Session {
    /// Forwards messages until one side closes, a message cannot be edited, or the relay drains.
    async fn run(self, client: Upgraded, upstream: Upgraded) {
        let config = WebSocketConfig::default()
            .max_message_size(Some(self.message_bytes_max()))
            .max_frame_size(Some(self.message_bytes_max()))
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(0)
            .max_write_buffer_size(WRITE_BYTES_MAX);
        let client = Counted::new(
            TokioIo::new(client),
            self.account.clone(),
            MASKED_CONTROL_HEADER_BYTES,
        );
        let upstream = Counted::new(
            TokioIo::new(upstream),
            self.account.clone(),
            CONTROL_HEADER_BYTES,
        );
        let client_memory = client.memory.clone();
        let client_offer = Arc::clone(&client.offer);
        let upstream_memory = upstream.memory.clone();
        let upstream_offer = Arc::clone(&upstream.offer);

        let client = WebSocketStream::from_raw_socket(client, Role::Server, Some(config)).await;
        let upstream = WebSocketStream::from_raw_socket(upstream, Role::Client, Some(config)).await;
        let (mut to_client, mut from_client) = client.split();
        let (mut to_upstream, mut from_upstream) = upstream.split();
        let mut stop = self.stop.clone();
        let ended = {
            let to_upstream = (&mut to_upstream, &*upstream_offer);
            let to_client = (&mut to_client, &*client_offer);
            let outward =
                self.forward_messages(&self.request, &client_memory, &mut from_client, to_upstream);
            let inward = self.forward_messages(
                &self.response,
                &upstream_memory,
                &mut from_upstream,
                to_client,
            );
            tokio::select! {
                ended = outward => ended,
                ended = inward => ended,
                () = self.last_message.wait_until_old(self.relay.limits.websocket_idle()) => close(CloseCode::Away, "idle"),
                () = wait_for_stop(&mut stop) => close(CloseCode::Away, "the relay is shutting down"),
            }
        };

        let frame = Message::Close(Some(ended));
        let _ = timeout(CLOSE_MAX, async {
            tokio::join!(to_client.send(frame.clone()), to_upstream.send(frame))
        })
        .await;
    }

    fn message_bytes_max(&self) -> usize {
        self.request
            .direction()
            .body_bytes_max
            .max(self.response.direction().body_bytes_max)
    }

    /// Forwards messages in one direction. Returns the reason of the end.
    async fn forward_messages(
        &self,
        scope: &Arc<Scope>,
        memory: &MessageMemory,
        from: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
        (to, offer): (&mut (impl Sink<Message, Error = Error> + Unpin), &Offer),
    ) -> CloseFrame {
        loop {
            let message = match from.next().await {
                None => return close(CloseCode::Normal, ""),
                Some(Err(error)) => return failed_read(&error),
                Some(Ok(Message::Close(frame))) => return close_frame_for(scope, frame),
                Some(Ok(message)) => message,
            };
            if matches!(message, Message::Text(_) | Message::Binary(_)) {
                self.last_message.update();
            } else {
                memory.release_control(message.len());
            }
            let edited = match self.edit_message(scope, message).await {
                Ok(Some(edited)) => edited,
                Ok(None) => continue,
                Err(frame) => return frame,
            };
            if send_message(
                to,
                offer,
                &self.last_message,
                edited,
                self.relay.limits.body_idle(),
            )
            .await
            .is_err()
            {
                return close(CloseCode::Away, "the other side is gone or does not read");
            }
            memory.release();
        }
    }

    /// Edits one message. Returns `None` for control frames, which each side handles separately.
    async fn edit_message(
        &self,
        scope: &Arc<Scope>,
        message: Message,
    ) -> Result<Option<Edited>, CloseFrame> {
        let direction = scope.direction();
        let has_rules = direction.rules.iter().any(|rule| rule.body.is_some());
        let text = match message {
            Message::Text(text) if has_rules => text,
            Message::Text(text) => return Ok(Some(Edited::unchanged(OpData::Text, text.into()))),
            Message::Binary(_) if has_rules && !direction.pass_unparsed => {
                return Err(close(
                    CloseCode::Unsupported,
                    "binary messages cannot be read",
                ));
            }
            Message::Binary(bytes) => return Ok(Some(Edited::unchanged(OpData::Binary, bytes))),
            _ => return Ok(None),
        };
        let Some(rules) = direction.body_rules(&Format::Json) else {
            return if direction.pass_unparsed {
                Ok(Some(Edited::unchanged(OpData::Text, text.into())))
            } else {
                Err(close(CloseCode::Unsupported, "no rule for messages"))
            };
        };

        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let source = http_body_util::Full::new(bytes)
            .map_err(|never| match never {})
            .boxed_unsync();
        let scanner = Scanner::new(Format::Json, rules, scanner_limits(&self.relay, false));
        let extent = Extent::Held {
            bytes_max: direction.body_bytes_max,
        };
        let engine = self.relay.engine.clone();
        let memory = self.account.clone().new_reservation();
        let mut editor = Editor::new(
            source,
            None,
            scanner,
            engine,
            Arc::clone(scope),
            extent,
            memory,
        );

        match editor.collect_frames().await {
            Ok(frames) => {
                let bytes = join_frames(frames);
                if std::str::from_utf8(&bytes).is_err() {
                    return Err(close(CloseCode::Invalid, "the message is not UTF-8"));
                }
                Ok(Some(Edited {
                    kind: OpData::Text,
                    bytes,
                    _memory: Some(editor.into_memory()),
                }))
            }
            Err(failure)
                if direction.pass_unparsed && matches!(failure.reason, Reason::Malformed(_)) =>
            {
                Ok(Some(Edited::unchanged(OpData::Text, text.into())))
            }
            Err(failure) => Err(close_for(&failure)),
        }
    }
}

/// A message to send.
struct Edited {
    kind: OpData,
    bytes: Bytes,
    /// Memory that the message holds until it was sent.
    _memory: Option<Reservation>,
}

impl Edited {
    /// Wraps a message whose memory is counted where it was received.
    const fn unchanged(kind: OpData, bytes: Bytes) -> Self {
        Self {
            kind,
            bytes,
            _memory: None,
        }
    }
}

/// Sends a message. Fails if the other side is gone, or does not read enough of the message within
/// `time`.
async fn send_message<S>(
    to: &mut S,
    offer: &Offer,
    last: &LastMessage,
    message: Edited,
    time: Duration,
) -> Result<(), ()>
where
    S: Sink<Message, Error = Error> + Unpin,
{
    let Edited {
        mut kind,
        mut bytes,
        ..
    } = message;
    loop {
        let part = bytes.split_to(bytes.len().min(FRAME_BYTES_MAX));
        let frame = Frame::message(part, OpCode::Data(kind), bytes.is_empty());
        offer.add_waiting(frame.len());
        tokio::select! {
            sent = to.send(Message::Frame(frame)) => sent.map_err(drop)?,
            () = offer.wait_until_stalled(time) => return Err(()),
        }
        // A slow reader can need more time for a long message than the idle timeout of the session.
        last.update();
        if bytes.is_empty() {
            return Ok(());
        }
        kind = OpData::Continue;
    }
}

/// Returns the close frame for the other side. The reason text passes only if no rules exist for
/// its direction.
fn close_frame_for(scope: &Scope, frame: Option<CloseFrame>) -> CloseFrame {
    let Some(frame) = frame else {
        return close(CloseCode::Normal, "");
    };
    if scope.direction().rules.is_empty() {
        frame
    } else {
        close(frame.code, "")
    }
}

/// Time of the last message of a session, in either direction. A received message and each sent
/// frame of a message update the time. Pings and incomplete messages do not.
#[derive(Debug)]
struct LastMessage(Mutex<Instant>);

impl LastMessage {
    fn now() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn update(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until the last message is `time` old. Safe to drop.
    async fn wait_until_old(&self, time: Duration) {
        loop {
            let due = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + time;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }
}

/// Counts the bytes that one side has sent.
#[derive(Debug)]
struct Received {
    /// Bytes of messages that were not yet forwarded.
    pending: usize,
    /// Bytes of the longest message. The library keeps its read buffer at the length of the longest
    /// frame. The relay does not know that length, but no frame is longer than its message.
    longest: usize,
    reservation: Reservation,
}

impl Received {
    /// Returns the bytes of the read buffer with the frames, and of the message that joins them.
    fn memory_bytes(&self) -> usize {
        self.longest.max(self.pending) + self.pending
    }
}

/// Memory of the incomplete messages of one side, and of the buffer that they were read into.
#[derive(Clone, Debug)]
struct MessageMemory {
    counted: Arc<Mutex<Received>>,
    /// Length of the header of a control frame.
    control_header_bytes: usize,
}

impl MessageMemory {
    /// Counts bytes that arrived.
    fn add(&self, bytes: usize) -> io::Result<()> {
        let received = &mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        received.pending += bytes;
        received
            .reservation
            .grow_to(received.memory_bytes())
            .map_err(|error| {
                let kind = if matches!(error, GrowError::TooLarge(..)) {
                    io::ErrorKind::FileTooLarge
                } else {
                    io::ErrorKind::OutOfMemory
                };
                kind.into()
            })
    }

    /// Records that a control frame is no longer held. A control frame can arrive between two
    /// frames of a message.
    fn release_control(&self, bytes: usize) {
        let received = &mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        received.pending = received
            .pending
            .saturating_sub(bytes + self.control_header_bytes);
    }

    /// Records that a message was forwarded.
    fn release(&self) {
        let received = &mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        received.longest = received.longest.max(received.pending);
        received.pending = 0;
        received.reservation.shrink_to(received.memory_bytes());
    }
}

/// I/O that counts incoming bytes until their message is complete, and reports written bytes.
#[derive(Debug)]
struct Counted<T> {
    io: T,
    memory: MessageMemory,
    offer: Arc<Offer>,
}

impl<T> Counted<T> {
    fn new(io: T, account: Account, control_header_bytes: usize) -> Self {
        let received = Received {
            pending: 0,
            longest: 0,
            reservation: account.new_reservation(),
        };
        let counted = Arc::new(Mutex::new(received));
        Self {
            io,
            memory: MessageMemory {
                counted,
                control_header_bytes,
            },
            offer: Arc::default(),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        if read > 0
            && let Err(error) = self.memory.add(read)
        {
            return Poll::Ready(Err(error));
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.offer.remove_waiting(written);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

fn close(code: CloseCode, reason: &'static str) -> CloseFrame {
    CloseFrame {
        code,
        reason: reason.into(),
    }
}

/// Returns the close frame after a failure to read a message.
fn failed_read(error: &Error) -> CloseFrame {
    match error {
        Error::Capacity(_) => close(CloseCode::Size, "the message is too long"),
        Error::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            close(CloseCode::Size, "the message is too long")
        }
        Error::Io(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            close(CloseCode::Again, "the relay is at its limit")
        }
        _ => close(CloseCode::Protocol, "the connection broke off"),
    }
}

fn close_for(failure: &Failure) -> CloseFrame {
    let code = match failure.reason {
        Reason::TooLarge(..) => CloseCode::Size,
        Reason::Malformed(_)
        | Reason::Invalid(_)
        | Reason::Missing
        | Reason::CannotOpen
        | Reason::Unreadable(_) => CloseCode::Invalid,
        Reason::Overloaded | Reason::Busy(_) => CloseCode::Again,
        _ => CloseCode::Error,
    };
    close(code, failure.reason.name())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::memory::Budget;

    #[tokio::test(start_paused = true)]
    async fn messages_of_either_direction_keep_a_session_open() {
        let last = LastMessage::now();
        let started = Instant::now();
        let messages = async {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(10)).await;
                last.update();
            }
        };
        let ages = async {
            last.wait_until_old(Duration::from_secs(15)).await;
            started.elapsed().as_secs()
        };
        assert_eq!(tokio::join!(messages, ages).1, 115);
    }

    /// Sends `len` bytes to a side that reads `taken` bytes at once, with pauses of `pause`
    /// seconds. The session ends after `idle` seconds without a message. Returns whether the
    /// message was sent, and the seconds until sending ended.
    async fn sends(len: usize, taken: usize, pause: u64, idle: u64) -> (bool, u64) {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let budget = Budget::new(1 << 20, "test");
        let account = Account {
            budgets: std::array::from_fn(|_| budget.clone()),
        };
        let near = Counted::new(near, account, CONTROL_HEADER_BYTES);
        let offer = Arc::clone(&near.offer);
        let config = WebSocketConfig::default()
            .write_buffer_size(0)
            .max_write_buffer_size(WRITE_BYTES_MAX);
        let mut to = WebSocketStream::from_raw_socket(near, Role::Server, Some(config)).await;
        let reading = async {
            let mut bytes = vec![0; taken];
            loop {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                far.read_exact(&mut bytes).await.unwrap();
            }
        };
        let started = Instant::now();
        let last = LastMessage::now();
        let message = Edited::unchanged(OpData::Text, Bytes::from(vec![b'x'; len]));
        let is_sent = tokio::select! {
            sent = send_message(&mut to, &offer, &last, message, Duration::from_secs(15)) => sent.is_ok(),
            () = last.wait_until_old(Duration::from_secs(idle)) => false,
            () = reading => unreachable!(),
        };
        (is_sent, started.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_of_messages_is_told_from_one_that_stalls() {
        assert_eq!(sends(100, 1_024, 1_000, 1_000).await, (true, 0));
        // Nine KiB wait for nine reads, which take longer than the limit.
        let (is_sent, seconds) = sends(10_000, 1_024, 10, 1_000).await;
        assert!(
            is_sent && (80..=100).contains(&seconds),
            "{is_sent} {seconds}"
        );
        assert_eq!(sends(10_000, 1_024, 16, 1_000).await, (false, 15));
        let (is_sent, seconds) = sends(10_000, 10, 1, 1_000).await;
        assert!(!is_sent && seconds <= 16, "{is_sent} {seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_of_messages_keeps_its_session_open() {
        // A frame takes 32 s, and the message more than the session may be idle.
        let (is_sent, seconds) = sends(100_000, 1_024, 1, 40).await;
        assert!(is_sent && seconds > 80, "{is_sent} {seconds}");
        assert_eq!(sends(100_000, 1_024, 1, 20).await, (false, 20));
    }

    #[tokio::test]
    async fn messages_leave_in_frames() {
        for len in [
            0,
            1,
            FRAME_BYTES_MAX,
            FRAME_BYTES_MAX + 1,
            10 * FRAME_BYTES_MAX,
        ] {
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut to = Box::pin(futures_util::sink::unfold(
                sender,
                async |sender, message: Message| {
                    sender.send(message).unwrap();
                    Ok::<_, Error>(sender)
                },
            ));
            let message = Edited::unchanged(OpData::Text, Bytes::from(vec![b'x'; len]));
            let last = LastMessage::now();
            send_message(
                &mut to,
                &Offer::default(),
                &last,
                message,
                Duration::from_secs(60),
            )
            .await
            .unwrap();
            let mut frames = Vec::new();
            while let Ok(Message::Frame(frame)) = receiver.try_recv() {
                frames.push((
                    frame.header().opcode,
                    frame.header().is_final,
                    frame.payload().len(),
                ));
            }
            assert_eq!(frames.iter().map(|(_, _, len)| len).sum::<usize>(), len);
            assert_eq!(frames.len(), len.div_ceil(FRAME_BYTES_MAX).max(1), "{len}");
            for (at, (code, is_final, _)) in frames.iter().enumerate() {
                assert_eq!(
                    *code,
                    OpCode::Data(if at == 0 {
                        OpData::Text
                    } else {
                        OpData::Continue
                    })
                );
                assert_eq!(*is_final, at + 1 == frames.len());
            }
        }
    }

    #[test]
    fn messages_take_memory_until_they_are_passed_on() {
        let budget = Budget::new(1 << 20, "test");
        let account = Account {
            budgets: std::array::from_fn(|_| budget.clone()),
        };
        let Counted { memory, .. } = Counted::new((), account, CONTROL_HEADER_BYTES);
        // Three budgets count here.
        let used = || budget.used_bytes(1 << 20) / 3;
        // Pings between the frames of a message are not held, however many there are.
        memory.add(50_000).unwrap();
        let before = used();
        assert!((100_000..110_000).contains(&before), "{before}");
        for _ in 0..10_000 {
            memory.add(125 + CONTROL_HEADER_BYTES).unwrap();
            memory.release_control(125);
        }
        assert_eq!(used(), before);
        // The buffer of a frame stays with its connection, for later frames too.
        memory.release();
        let kept = used();
        assert!((50_000..60_000).contains(&kept), "{kept}");
        memory.add(10_000).unwrap();
        assert!((60_000..70_000).contains(&used()), "{}", used());
        memory.release();
        assert_eq!(used(), kept);
        drop(memory);
        assert_eq!(used(), 0);
    }

    #[test]
    fn messages_that_never_fit_are_told_from_those_of_a_busy_relay() {
        let budget = Budget::new(1 << 20, "test");
        let account = Account {
            budgets: [Budget::new(1 << 16, "connection"), budget.clone(), budget],
        };
        let connection = || Counted::new((), account.clone(), CONTROL_HEADER_BYTES).memory;
        assert_eq!(
            connection().add(1 << 15).map_err(|error| error.kind()),
            Ok(())
        );
        let error = connection().add((1 << 15) + 1).unwrap_err();
        assert_eq!(failed_read(&Error::Io(error)).code, CloseCode::Size);
        let other = connection();
        other.add(1 << 14).unwrap();
        let error = connection().add(1 << 15).unwrap_err();
        assert_eq!(failed_read(&Error::Io(error)).code, CloseCode::Again);
    }
}
