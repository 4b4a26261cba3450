//! WebSocket sessions (RFC 6455): each text message is one JSON document.
//!
//! Messages are joined from their fragments, edited, and sent as one frame. Extensions are not negotiated, so no
//! message is compressed. A message that cannot be edited ends the session on both sides: 1003 and 1007 for its form,
//! 1009 for its length, 1011 for the engine. The reason of a close is a text that no rule can be applied to, so it is
//! dropped where rules are.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, Stream, StreamExt as _};
use http::header::{
    CONNECTION, CONTENT_LENGTH, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE,
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
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::body::Outgoing;
use crate::edit::{EXPANSION_MAX, Editor, Extent};
use crate::engine::{Scope, joined};
use crate::error::{Failure, Reason};
use crate::memory::{Account, Reservation};
use crate::message::scanner_limits;
use crate::relay::{Peer, Relay, stops};
use crate::shares::{ClientId, ClientShares};
use crate::upstream::body::UpstreamBody;

/// Time to tell both sides that a session ends.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Longest header of a control frame: two bytes, and a mask.
const CONTROL_FRAME_BYTES: usize = 6;
/// Bytes of a message that are read at once.
const READ_BYTES: usize = 16 << 10;

/// The WebSockets of a route.
#[derive(Debug)]
pub struct Sessions {
    /// Allowed values of `Origin`; `None` denies upgrades.
    origins: Option<Vec<String>>,
    /// Permits of all clients together, and of each.
    permits: Arc<Semaphore>,
    clients: ClientShares,
}

impl Default for Sessions {
    /// No WebSockets.
    fn default() -> Self {
        Self::new(None, 1, 1)
    }
}

impl Sessions {
    /// Creates the sessions of a route: their origins, most of them at once, and most of one client.
    pub fn new(origins: Option<Vec<String>>, max: usize, per_client_max: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { origins, permits, clients: ClientShares::new(per_client_max) }
    }

    /// Takes the permits of one session.
    ///
    /// # Errors
    /// All of the route or of the client are in use.
    pub fn permit(&self, client: &ClientId) -> Result<Permit, Failure> {
        let busy = |limit| move |_| Failure::request(Reason::Busy(limit));
        let share = self.clients.of(client).try_acquire_owned();
        let share = share.map_err(busy("websockets_per_client_max WebSockets of the client are open"))?;
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        Ok(Permit { _share: share, _permit: permit.map_err(busy("websockets_max WebSockets of the route are open"))? })
    }
}

/// The right to one session.
#[derive(Debug)]
pub struct Permit {
    _share: OwnedSemaphorePermit,
    _permit: OwnedSemaphorePermit,
}

/// A request for a WebSocket.
#[derive(Debug)]
pub struct Handshake {
    key: HeaderValue,
    /// The client's connection, once the response was sent.
    client: OnUpgrade,
    permit: Permit,
}

/// Takes the handshake out of a request that asks for a WebSocket.
///
/// A handshake has no body (RFC 6455, section 4.1): an upstream that speaks WebSocket already would take the bytes of a
/// body for frames, which no rule was applied to.
///
/// # Errors
/// The handshake is malformed or has a body, the route or the origin does not allow it, or too many sessions are open.
pub fn handshake(
    sessions: &Sessions,
    parts: &mut Parts,
    has_body: bool,
    client: &ClientId,
) -> Result<Option<Handshake>, Failure> {
    if !is_handshake(sessions, parts, has_body)? {
        return Ok(None);
    }
    let (key, upgrade) = (parts.headers.get(SEC_WEBSOCKET_KEY).cloned(), parts.extensions.remove::<OnUpgrade>());
    let Some((key, client_upgrade)) = key.zip(upgrade) else { return Err(malformed()) };
    Ok(Some(Handshake { key, client: client_upgrade, permit: sessions.permit(client)? }))
}

const fn malformed() -> Failure {
    Failure::request(Reason::Ambiguous("the WebSocket handshake is malformed"))
}

/// Returns true if a request asks for a WebSocket.
fn is_handshake(sessions: &Sessions, parts: &Parts, has_body: bool) -> Result<bool, Failure> {
    let headers = &parts.headers;
    let asks = headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !asks {
        return Ok(false);
    }
    let Some(origins) = &sessions.origins else {
        return Err(Failure::request(Reason::Forbidden("the route allows no WebSocket")));
    };
    let only = |name: HeaderName| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    let is_valid = parts.method == Method::GET
        && parts.version == Version::HTTP_11
        && only(SEC_WEBSOCKET_VERSION).is_some_and(|value| value == "13")
        && only(SEC_WEBSOCKET_KEY).is_some_and(|value| value.len() == 24);
    if !is_valid {
        return Err(malformed());
    }
    let has_length = headers.get_all(CONTENT_LENGTH).iter().any(|length| length != "0");
    if has_body || has_length || headers.contains_key(TRANSFER_ENCODING) {
        return Err(Failure::request(Reason::Ambiguous("a WebSocket handshake with a body")));
    }
    // A client that is no browser sends no origin.
    let mut sent = headers.get_all(ORIGIN).iter();
    if !sent.all(|origin| origins.iter().any(|allowed| origin == allowed.as_str() || allowed == "*")) {
        return Err(Failure::request(Reason::Forbidden("the origin is not in websocket_origins")));
    }
    Ok(true)
}

/// Sets the headers of a handshake to the upstream, from which hop-by-hop headers were removed.
pub fn ask_upstream(headers: &mut HeaderMap) {
    headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Checks that the upstream accepted the handshake with that key, and sets the headers of the response to the client.
///
/// # Errors
/// The response does not belong to the handshake.
fn accept(key: &HeaderValue, headers: &mut HeaderMap) -> Result<(), Failure> {
    let expected = derive_accept_key(key.as_bytes());
    let accepted = headers.get(SEC_WEBSOCKET_ACCEPT).is_some_and(|sent| sent.as_bytes() == expected.as_bytes());
    if !accepted || headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
        return Err(Failure::response(Reason::UpstreamBroken("the WebSocket handshake was not accepted")));
    }
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    Ok(())
}

/// Accepts the upstream's 101 and starts the session.
///
/// # Errors
/// [`Reason::UpstreamBroken`] if the upstream did not accept; [`Reason::Busy`] without a connection left.
pub fn start(
    relay: &Arc<Relay>,
    peer: &Arc<Peer>,
    (request, response_scope): (Arc<Scope>, Arc<Scope>),
    handshake: Handshake,
    mut response: Response<UpstreamBody>,
    account: Account,
) -> Result<Response<Outgoing>, Failure> {
    let upstream = hyper::upgrade::on(&mut response);
    let Handshake { key, client, permit } = handshake;
    let (mut parts, body) = response.into_parts();
    crate::headers::forward_response(&mut parts.headers, &request.route.via, "1.1");
    if response_scope.direction().reveals() {
        crate::headers::revealed(&mut parts.headers);
    }
    accept(&key, &mut parts.headers)?;
    // A session is no longer a connection of hyper's, so it has a permit of its own, which a drain waits for.
    let connection =
        relay.connection_permit().ok_or_else(|| Failure::response(Reason::Busy("limits.connections_max are open")))?;
    // Each call of a session has the engine's own deadline, not that of the handshake.
    let endless = |scope: &Scope| Arc::new(Scope { deadline: None, ..scope.clone() });
    let (request, response_scope) = (endless(&request), endless(&response_scope));
    let session = Session {
        relay: Arc::clone(relay),
        request,
        response: response_scope,
        account,
        last_message: LastMessage::now(),
        stop: peer.stop.clone(),
    };
    tokio::spawn(async move {
        let _permits = (permit, connection);
        let _open = session.relay.metrics.websocket();
        let upgraded = tokio::try_join!(client, upstream);
        // The connection leaves the pool: a session takes the place of no request.
        drop(body);
        match upgraded {
            Ok((client, upstream)) => session.run(client, upstream).await,
            Err(error) => tracing::debug!(%error, "a WebSocket did not start"),
        }
    });
    parts.extensions.clear();
    Ok(Response::from_parts(parts, Outgoing::empty()))
}

/// One session.
struct Session {
    /// Shared state.
    relay: Arc<Relay>,
    /// Rules for messages to the upstream.
    request: Arc<Scope>,
    /// Rules for messages to the client.
    response: Arc<Scope>,
    /// Memory that its messages may take.
    account: Account,
    /// Time of the last message in either direction.
    last_message: LastMessage,
    /// Changes when the relay drains.
    stop: watch::Receiver<bool>,
}

impl Session {
    /// Carries messages until one side ends, a message cannot be edited, or the relay drains.
    async fn run(self, client: Upgraded, upstream: Upgraded) {
        let config = WebSocketConfig::default()
            .max_message_size(Some(self.message_bytes_max()))
            .max_frame_size(Some(self.message_bytes_max()))
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(0)
            .max_write_buffer_size(EXPANSION_MAX * self.message_bytes_max() + 1);
        let (client, client_memory) = Counted::new(TokioIo::new(client), self.account.clone());
        let (upstream, upstream_memory) = Counted::new(TokioIo::new(upstream), self.account.clone());
        let client = WebSocketStream::from_raw_socket(client, Role::Server, Some(config)).await;
        let upstream = WebSocketStream::from_raw_socket(upstream, Role::Client, Some(config)).await;
        let (mut to_client, mut from_client) = client.split();
        let (mut to_upstream, mut from_upstream) = upstream.split();
        let mut stop = self.stop.clone();
        let ended = {
            let outward = self.carry(&self.request, &client_memory, &mut from_client, &mut to_upstream);
            let inward = self.carry(&self.response, &upstream_memory, &mut from_upstream, &mut to_client);
            tokio::select! {
                ended = outward => ended,
                ended = inward => ended,
                () = self.last_message.ages(self.relay.limits.websocket_idle()) => close(CloseCode::Away, "idle"),
                () = stops(&mut stop) => close(CloseCode::Away, "the relay is shutting down"),
            }
        };
        let frame = Message::Close(Some(ended));
        let _ =
            timeout(CLOSE_MAX, async { tokio::join!(to_client.send(frame.clone()), to_upstream.send(frame)) }).await;
    }

    fn message_bytes_max(&self) -> usize {
        self.request.direction().body_bytes_max.max(self.response.direction().body_bytes_max)
    }

    /// Carries messages in one direction. Returns the reason of the end.
    async fn carry(
        &self,
        scope: &Arc<Scope>,
        memory: &MessageMemory,
        from: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
        to: &mut (impl futures_util::Sink<Message, Error = Error> + Unpin),
    ) -> CloseFrame {
        loop {
            let message = match from.next().await {
                None => return close(CloseCode::Normal, ""),
                Some(Err(Error::Capacity(_))) => return close(CloseCode::Size, "the message is too long"),
                Some(Err(Error::Io(error))) if error.kind() == io::ErrorKind::OutOfMemory => {
                    return close(CloseCode::Again, "the relay is at its limit");
                }
                Some(Err(_)) => return close(CloseCode::Protocol, "the connection broke off"),
                Some(Ok(Message::Close(frame))) => return forwarded(scope, frame),
                Some(Ok(message)) => message,
            };
            if matches!(message, Message::Text(_) | Message::Binary(_)) {
                self.last_message.comes();
            } else {
                memory.took_control(message.len());
            }
            let edited = match self.edit(scope, message).await {
                Ok(Some(edited)) => edited,
                Ok(None) => continue,
                Err(frame) => return frame,
            };
            match timeout(self.relay.limits.body_idle(), to.send(edited)).await {
                Ok(Ok(())) => memory.release(),
                _ => return close(CloseCode::Away, "the other side is gone or does not read"),
            }
        }
    }

    /// Edits one message. Returns `None` for control frames, which each side handles alone.
    async fn edit(&self, scope: &Arc<Scope>, message: Message) -> Result<Option<Message>, CloseFrame> {
        let direction = scope.direction();
        let has_rules = direction.rules.iter().any(|rule| rule.body.is_some());
        let text = match message {
            Message::Text(text) if has_rules => text,
            Message::Text(_) => return Ok(Some(message)),
            Message::Binary(_) if has_rules && !direction.pass_unparsed => {
                return Err(close(CloseCode::Unsupported, "binary messages cannot be read"));
            }
            Message::Binary(_) => return Ok(Some(message)),
            _ => return Ok(None),
        };
        let Some(rules) = direction.body_rules(&Format::Json) else {
            return if direction.pass_unparsed {
                Ok(Some(Message::Text(text)))
            } else {
                Err(close(CloseCode::Unsupported, "no rule for messages"))
            };
        };
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let source = http_body_util::Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
        let scanner = Scanner::new(Format::Json, rules, scanner_limits(&self.relay, false));
        let extent = Extent::Held { bytes_max: direction.body_bytes_max };
        let (engine, memory) = (self.relay.engine.clone(), self.account.clone().reservation());
        let mut editor = Editor::new(source, None, scanner, engine, Arc::clone(scope), extent, memory);
        match editor.collect().await {
            Ok(frames) => match String::from_utf8(joined(frames).into()) {
                Ok(text) => Ok(Some(Message::Text(text.into()))),
                Err(_) => Err(close(CloseCode::Invalid, "the message is not UTF-8")),
            },
            Err(failure) if direction.pass_unparsed && matches!(failure.reason, Reason::Malformed(_)) => {
                Ok(Some(Message::Text(text)))
            }
            Err(failure) => Err(close_for(&failure)),
        }
    }
}

/// The close frame for the other side. Its reason passes where no rule is applied to texts of its direction.
fn forwarded(scope: &Scope, frame: Option<CloseFrame>) -> CloseFrame {
    let Some(frame) = frame else { return close(CloseCode::Normal, "") };
    if scope.direction().rules.is_empty() { frame } else { close(frame.code, "") }
}

/// Time of the last message of a session, in either direction. Pings, and messages that do not end, are none.
#[derive(Debug)]
struct LastMessage(Mutex<Instant>);

impl LastMessage {
    fn now() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn comes(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until the last message is so old. Safe to drop.
    async fn ages(&self, time: Duration) {
        loop {
            let due = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + time;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }
}

/// Memory of the messages that one side has sent in part.
#[derive(Clone, Debug)]
struct MessageMemory(Arc<Mutex<(usize, Reservation)>>);

impl MessageMemory {
    /// Counts bytes that arrived.
    fn add(&self, bytes: usize) -> io::Result<()> {
        let (total, reservation) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *total += bytes;
        // Frames, and the message that they are joined to.
        reservation.at_least(2 * *total).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// Notes that a control frame is no longer held. It can come between two frames of a message.
    fn took_control(&self, bytes: usize) {
        let (total, _) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *total = total.saturating_sub(bytes + CONTROL_FRAME_BYTES);
    }

    /// Notes that a message was passed on.
    fn release(&self) {
        let (total, reservation) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *total = 0;
        reservation.release();
    }
}

/// I/O whose incoming bytes are counted until their message is complete.
#[derive(Debug)]
struct Counted<T> {
    io: T,
    memory: MessageMemory,
}

impl<T> Counted<T> {
    fn new(io: T, account: Account) -> (Self, MessageMemory) {
        let memory = MessageMemory(Arc::new(Mutex::new((0, account.reservation()))));
        (Self { io, memory: memory.clone() }, memory)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

fn close(code: CloseCode, reason: &'static str) -> CloseFrame {
    CloseFrame { code, reason: reason.into() }
}

fn close_for(failure: &Failure) -> CloseFrame {
    let code = match failure.reason {
        Reason::TooLarge(..) => CloseCode::Size,
        Reason::Malformed(_) | Reason::Invalid(_) | Reason::Missing | Reason::CannotOpen | Reason::Unreadable(_) => {
            CloseCode::Invalid
        }
        Reason::Overloaded | Reason::Busy(_) => CloseCode::Again,
        _ => CloseCode::Error,
    };
    close(code, failure.reason.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Budget;

    #[tokio::test(start_paused = true)]
    async fn messages_of_either_direction_keep_a_session_open() {
        let last = LastMessage::now();
        let begun = Instant::now();
        let messages = async {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(10)).await;
                last.comes();
            }
        };
        let ages = async {
            last.ages(Duration::from_secs(15)).await;
            begun.elapsed().as_secs()
        };
        assert_eq!(tokio::join!(messages, ages).1, 115);
    }

    #[test]
    fn messages_take_memory_until_they_are_passed_on() {
        let budget = Budget::new(1 << 20, "test");
        let account = Account { budgets: std::array::from_fn(|_| budget.clone()) };
        let (_, memory) = Counted::new((), account);
        // Three budgets count here.
        let used = || budget.used(1 << 20) / 3;
        // Pings between the frames of a message are not held, however many there are.
        memory.add(50_000).unwrap();
        let before = used();
        assert!((100_000..110_000).contains(&before), "{before}");
        for _ in 0..10_000 {
            memory.add(125 + CONTROL_FRAME_BYTES).unwrap();
            memory.took_control(125);
        }
        assert_eq!(used(), before);
        assert_eq!(memory.add(1 << 20).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        memory.release();
        assert_eq!(used(), 0);
    }
}
