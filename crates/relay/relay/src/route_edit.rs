//! Applies the rules of a route to a request and to its response. Does not depend on the protocol
//! that carries them.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::Instant;

use crate::body::{Outgoing, Source};
use crate::engine::Scope;
use crate::error::{Failure, Phase, Reason};
use crate::fields;
use crate::headers;
use crate::memory::{Account, Reservation};
use crate::message::{Edited, Message};
use crate::relay::Relay;
use crate::request_check::CheckedTarget;
use crate::route::{Direction, Route};
use crate::route_table::Segments;
use crate::usage::Usage;

/// Header with the id of the exchange.
pub const REQUEST_ID: &str = "x-request-id";
/// Header with the span of the exchange.
const TRACEPARENT: &str = "traceparent";

/// The rules of a route for one exchange.
#[derive(Clone, Debug)]
pub struct RouteEdit {
    /// Shared state.
    pub relay: Arc<Relay>,
    /// The route.
    pub route: Arc<Route>,
    /// Segments of the request's path.
    pub segments: Segments,
    /// Target of the request.
    pub target: CheckedTarget,
    /// True if path or method decided which rules apply, so that no header may override them.
    pub depends_on_target: bool,
    /// Deadline for the request and for the first bytes of the response.
    pub deadline: Instant,
    /// Id of the exchange.
    pub request_id: Box<str>,
    /// The relay's span.
    pub traceparent: Option<Box<str>>,
    /// Counters of the exchange.
    pub usage: Arc<Usage>,
    /// Memory for the bodies of the exchange.
    pub memory: Account,
}

/// A request after the rules were applied. Not `Debug`, because the target can contain values.
pub struct EditedRequest<'a> {
    /// Path and query.
    pub target: Cow<'a, str>,
    /// Body to send.
    pub body: EditedBody,
}

/// A response after the rules were applied.
#[derive(Debug)]
pub struct EditedResponse {
    /// Body to send.
    pub body: EditedBody,
    /// True if a rule replaced a header.
    headers_changed: bool,
    /// True if the response has no body, because of the request's method or as unmodified, but its
    /// headers describe a body that would be edited.
    describes_edited: bool,
}

/// A body after the rules were applied.
#[derive(Debug)]
pub struct EditedBody {
    /// The body.
    pub body: Outgoing,
    /// Memory that must be kept until the body was sent.
    pub memory: Option<Reservation>,
    /// True if rules were applied to the body.
    pub was_changed: bool,
}

impl RouteEdit {
    /// Returns the rules of one direction, with their contexts from the request's headers and path.
    ///
    /// # Errors
    /// A header with the context of a rule is absent or occurs twice.
    pub fn new_scope(
        &self,
        phase: Phase,
        request_headers: &HeaderMap,
    ) -> Result<Arc<Scope>, Failure> {
        let rules = match phase {
            Phase::Request => &self.route.request.rules,
            Phase::Response => &self.route.response.rules,
        };
        Ok(Arc::new(Scope {
            route: Arc::clone(&self.route),
            phase,
            contexts: fields::contexts(rules, request_headers, &self.segments)?,
            traceparent: self.traceparent.clone(),
            usage: Arc::clone(&self.usage),
            deadline: (phase == Phase::Request).then_some(self.deadline),
        }))
    }

    /// Replaces the values in a request's target, headers and body. Waits until the body is
    /// complete if the route holds bodies.
    ///
    /// # Errors
    /// The first failure. The caller must then forward nothing of the request.
    pub async fn edit_request<'a>(
        &'a self,
        scope: &Arc<Scope>,
        headers: &mut HeaderMap,
        source: Source,
    ) -> Result<EditedRequest<'a>, Failure> {
        let engine = &self.relay.engine;
        if self.depends_on_target {
            headers::remove_overrides(headers);
        }
        let path = &self.target.path;
        let query = self.target.query.as_deref();
        let target = fields::edit_target(engine, scope, &self.segments, path, query).await?;
        fields::edit_headers(engine, scope, headers).await?;
        let message = self.new_message(scope, headers, None);
        let edited = message.edit_body(source).await?;
        Ok(EditedRequest {
            target,
            body: self.to_outgoing(edited),
        })
    }

    /// Adjusts the headers of an edited request. Hop-by-hop headers must already be removed.
    pub fn finish_request_headers(&self, headers: &mut HeaderMap, was_changed: bool) {
        if was_changed {
            let was_decoded = headers.contains_key(CONTENT_ENCODING);
            headers::adjust_changed_request(headers, was_decoded);
        }
        if edits_bodies(&self.route.response) {
            headers::prepare_response_change(headers);
        }
        if let Some(traceparent) = self
            .traceparent
            .as_deref()
            .and_then(|text| HeaderValue::from_str(text).ok())
        {
            headers.insert(TRACEPARENT, traceparent);
        }
        set_request_id(headers, &self.request_id);
    }

    /// Replaces the values in a response's headers and body. Waits for the first edited bytes.
    ///
    /// # Errors
    /// The first failure. The caller must then forward nothing of the response.
    pub async fn edit_response(
        &self,
        scope: &Arc<Scope>,
        status: StatusCode,
        headers: &mut HeaderMap,
        source: Source,
        framing: ResponseFraming,
    ) -> Result<EditedResponse, Failure> {
        let ResponseFraming {
            has_body,
            must_hold,
            is_close_delimited,
        } = framing;
        if edits_bodies(&self.route.response) && has_body && status == StatusCode::PARTIAL_CONTENT {
            return Err(Failure::response(Reason::UpstreamBroken(
                "a partial body (206), which rules cannot change",
            )));
        }

        let headers_changed = fields::edit_headers(&self.relay.engine, scope, headers).await?;
        let message = Message {
            must_hold,
            is_close_delimited,
            ..self.new_message(scope, headers, Some(status))
        };
        let edited = match if has_body {
            message.edit_body(source).await?
        } else {
            Edited::Unchanged(source)
        } {
            Edited::Unchanged(source) if has_body && must_hold => message.hold_body(source).await?,
            edited => edited,
        };

        let mut body = self.to_outgoing(edited);
        if !has_body {
            // Over HTTP/2, such a response can carry bytes that no rule would check.
            body.body = Outgoing::empty();
        }

        let describes_edited =
            !has_body && status != StatusCode::NO_CONTENT && edits_bodies(&self.route.response);
        Ok(EditedResponse {
            body,
            headers_changed,
            describes_edited,
        })
    }

    /// Adjusts the headers of an edited response. Hop-by-hop headers must already be removed.
    pub fn finish_response_headers(&self, headers: &mut HeaderMap, edited: &EditedResponse) {
        // A response that only describes a body reveals nothing, but gets the same headers as with
        // the body.
        if edited.body.was_changed || edited.describes_edited {
            let was_decoded = headers.contains_key(CONTENT_ENCODING);
            headers::adjust_changed_response(headers, was_decoded);
        }
        if (edited.body.was_changed || edited.headers_changed) && self.route.response.reveals() {
            headers::forbid_caching(headers);
        }
    }

    fn new_message<'a>(
        &'a self,
        scope: &Arc<Scope>,
        headers: &'a HeaderMap,
        status: Option<StatusCode>,
    ) -> Message<'a> {
        Message {
            relay: &self.relay,
            scope: Arc::clone(scope),
            headers,
            status,
            must_hold: false,
            is_close_delimited: false,
            memory: &self.memory,
        }
    }

    fn to_outgoing(&self, edited: Edited) -> EditedBody {
        match edited {
            // No rule is applied to trailers, so only routes with `pass` forward them.
            Edited::Unchanged(source) => {
                let filter = if self.route.pass {
                    headers::filter_trailers
                } else {
                    HeaderMap::clear
                };
                EditedBody {
                    body: Outgoing::unchanged(source, filter),
                    memory: None,
                    was_changed: false,
                }
            }
            Edited::Held {
                bytes,
                memory,
                was_edited,
            } => EditedBody {
                body: Outgoing::from_bytes(bytes),
                memory: Some(memory),
                was_changed: was_edited,
            },
            Edited::Streams(body) => EditedBody {
                body: *body,
                memory: None,
                was_changed: true,
            },
        }
    }
}

/// How the body of a response ends on both sides of the relay.
#[derive(Clone, Copy, Debug)]
pub struct ResponseFraming {
    /// False for a response that cannot have a body.
    pub has_body: bool,
    /// If true, the client cannot distinguish a truncated body from a complete one, so the body
    /// must be held.
    pub must_hold: bool,
    /// If true, only the end of the upstream's connection ends the body, so a broken connection
    /// looks like an end.
    pub is_close_delimited: bool,
}

/// Sets the header with the id of the exchange.
pub fn set_request_id(headers: &mut HeaderMap, request_id: &str) {
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
}

/// Returns true if a rule of the direction selects values in bodies.
pub fn edits_bodies(direction: &Direction) -> bool {
    direction.rules.iter().any(|rule| rule.body.is_some())
}

/// Returns true if a response to a request can have a body.
pub fn has_body(is_head: bool, status: StatusCode) -> bool {
    !is_head && status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED
}
