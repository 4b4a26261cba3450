//! WebSocket sessions (RFC 6455): each text message is one JSON document.
//!
//! Messages are joined from their fragments, edited, and sent as one frame. Extensions are not negotiated, so no
//! message is compressed. A message that cannot be edited ends the session on both sides: 1003 and 1007 for its form,
//! 1009 for its length, 1011 for the engine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, Stream, StreamExt as _};
use http::header::{
    CONNECTION, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, Version};
use http_body_util::BodyExt as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sealwire_relay_body::{Format, Scanner};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::body::Outgoing;
use crate::edit::{EXPANSION_MAX, Editor};
use crate::engine::{Scope, joined};
use crate::error::{Failure, Reason};
use crate::message::scanner_limits;
use crate::relay::{Peer, Relay, stops};
use crate::route::Route;
use crate::upstream::body::UpstreamBody;

/// Time to tell both sides that a session ends.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Returns true if a request asks for a WebSocket.
///
/// # Errors
/// The handshake is malformed, or the route or the origin does not allow it.
pub fn is_handshake(route: &Route, method: &Method, version: Version, headers: &HeaderMap) -> Result<bool, Failure> {
    let asks = headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !asks {
        return Ok(false);
    }
    let Some(origins) = &route.websocket_origins else {
        return Err(Failure::request(Reason::Forbidden("the route allows no WebSocket")));
    };
    let only = |name: HeaderName| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    let is_valid = method == Method::GET
        && version == Version::HTTP_11
        && only(SEC_WEBSOCKET_VERSION).is_some_and(|value| value == "13")
        && only(SEC_WEBSOCKET_KEY).is_some_and(|value| value.len() == 24);
    if !is_valid {
        return Err(Failure::request(Reason::Ambiguous("the WebSocket handshake is malformed")));
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
pub fn accept(key: Option<&HeaderValue>, headers: &mut HeaderMap) -> Result<(), Failure> {
    let expected = key.map(|key| derive_accept_key(key.as_bytes()));
    let accepted = headers
        .get(SEC_WEBSOCKET_ACCEPT)
        .is_some_and(|sent| Some(sent.as_bytes()) == expected.as_deref().map(str::as_bytes));
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
/// As [`accept`].
pub fn start(
    relay: &Arc<Relay>,
    peer: &Arc<Peer>,
    (request, response_scope): (Arc<Scope>, Arc<Scope>),
    key: &HeaderValue,
    client: OnUpgrade,
    mut response: Response<UpstreamBody>,
) -> Result<Response<Outgoing>, Failure> {
    let upstream = hyper::upgrade::on(&mut response);
    let (mut parts, body) = response.into_parts();
    crate::headers::forward_response(&mut parts.headers, &request.route.via, "1.1");
    if response_scope.direction().reveals() {
        crate::headers::revealed(&mut parts.headers);
    }
    accept(Some(key), &mut parts.headers)?;
    // A session is no longer a connection of hyper's, so it has a permit of its own, which a drain waits for.
    let permit =
        relay.connection_permit().ok_or_else(|| Failure::response(Reason::Busy("limits.connections_max are open")))?;
    let message_bytes_max = request.direction().body_bytes_max.max(response_scope.direction().body_bytes_max);
    let memory = relay.memory(2 * message_bytes_max).map_err(Failure::response)?;
    // Each call of a session has the engine's own deadline, not that of the handshake.
    let endless = |scope: &Scope| Arc::new(Scope { deadline: None, ..scope.clone() });
    let (request, response_scope) = (endless(&request), endless(&response_scope));
    let session = Session { relay: Arc::clone(relay), request, response: response_scope, stop: peer.stop.clone() };
    tokio::spawn(async move {
        // The body holds the permit of the upstream's connection.
        let (_body, _permit, _memory) = (body, permit, memory);
        let _open = session.relay.metrics.websocket();
        match tokio::try_join!(client, upstream) {
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
    /// Changes when the relay drains.
    stop: watch::Receiver<bool>,
}

impl Session {
    /// Carries messages until one side ends, a message cannot be edited, or the relay drains.
    async fn run(self, client: Upgraded, upstream: Upgraded) {
        let config = WebSocketConfig::default()
            .max_message_size(Some(self.message_bytes_max()))
            .max_frame_size(Some(self.message_bytes_max()))
            .write_buffer_size(0)
            .max_write_buffer_size(EXPANSION_MAX * self.message_bytes_max() + 1);
        let client = WebSocketStream::from_raw_socket(TokioIo::new(client), Role::Server, Some(config)).await;
        let upstream = WebSocketStream::from_raw_socket(TokioIo::new(upstream), Role::Client, Some(config)).await;
        let (mut to_client, mut from_client) = client.split();
        let (mut to_upstream, mut from_upstream) = upstream.split();
        let mut stop = self.stop.clone();
        let ended = {
            let outward = self.carry(&self.request, &mut from_client, &mut to_upstream);
            let inward = self.carry(&self.response, &mut from_upstream, &mut to_client);
            tokio::select! {
                ended = outward => ended,
                ended = inward => ended,
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
        from: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
        to: &mut (impl futures_util::Sink<Message, Error = Error> + Unpin),
    ) -> CloseFrame {
        loop {
            let message = match timeout(self.relay.limits.websocket_idle(), from.next()).await {
                Err(_) => return close(CloseCode::Away, "idle"),
                Ok(None) => return close(CloseCode::Normal, ""),
                Ok(Some(Err(Error::Capacity(_)))) => return close(CloseCode::Size, "the message is too long"),
                Ok(Some(Err(_))) => return close(CloseCode::Protocol, "the connection broke off"),
                Ok(Some(Ok(Message::Close(frame)))) => return frame.unwrap_or_else(|| close(CloseCode::Normal, "")),
                Ok(Some(Ok(message))) => message,
            };
            let edited = match self.edit(scope, message).await {
                Ok(Some(edited)) => edited,
                Ok(None) => continue,
                Err(frame) => return frame,
            };
            match timeout(self.relay.limits.body_idle(), to.send(edited)).await {
                Ok(Ok(())) => {}
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
        let max = Some(direction.body_bytes_max);
        let mut editor = Editor::new(source, None, scanner, self.relay.engine.clone(), Arc::clone(scope), max);
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
