//! Requests to the engine: replaces the values of one batch.
//!
//! The values of a batch are sent as one flat array per action, app and context. The nesting depth
//! of a body therefore does not matter. Every failure of the engine is converted to a [`Failure`]
//! here. Dropping a future cancels its requests in the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use sealwire_client::{
    Client, CommonParams, Decrypt, DetailValue, Detokenize, Document, DocumentParams, Encrypt,
    Error, ErrorCode, Mask, MaskRule, Masking, RpcError, RuleFields, TokenLookupScope, Tokenize,
    TokenizeOptions,
};
use sealwire_msgpack::{TokenReader, write};
use sealwire_relay_body::{BodyError, Hole, Piece};
use tokio::time::Instant;

use crate::envelope;
use crate::error::{Failure, Phase, Reason};
use crate::metrics::Metrics;
use crate::route::{Action, Direction, Route, Rule, Unneeded};
use crate::usage::Usage;

/// Literals of at least this length are forwarded without a copy. Shorter pieces are copied into
/// one frame.
const COPY_BYTES_MAX: usize = 16 << 10;

/// Selects each element of a batch as a unit, so a container becomes one envelope or token.
const EACH_ELEMENT: &str = "$[*]";

/// The rules for one direction of an exchange, with the data that their engine requests need.
#[derive(Clone)]
pub struct Scope {
    /// The route.
    pub route: Arc<Route>,
    /// Direction of the rules.
    pub phase: Phase,
    /// Context bytes of each rule, in the order of the rules.
    pub contexts: Vec<Box<[u8]>>,
    /// The exchange's span, for the engine's trace.
    pub traceparent: Option<Box<str>>,
    /// Sums of the exchange.
    pub usage: Arc<Usage>,
    /// Deadline of the exchange. `None` in a streamed response, where each request has the engine's
    /// own deadline.
    pub deadline: Option<Instant>,
}

impl std::fmt::Debug for Scope {
    /// Omits the contexts, which can be values of the request.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope")
            .field("route", &self.route.name)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl Scope {
    /// Returns the route's rules for this direction.
    pub fn direction(&self) -> &Direction {
        match self.phase {
            Phase::Request => &self.route.request,
            Phase::Response => &self.route.response,
        }
    }

    /// Creates a failure in this direction.
    pub const fn failure(&self, reason: Reason) -> Failure {
        match self.phase {
            Phase::Request => Failure::request(reason),
            Phase::Response => Failure::response(reason),
        }
    }

    /// Creates a failure at a value of a rule.
    fn failure_at(&self, reason: Reason, rule: usize) -> Failure {
        Failure {
            field: self
                .direction()
                .rules
                .get(rule)
                .and_then(Rule::first_select),
            ..self.failure(reason)
        }
    }

    /// Returns the failure for a body that the scanner rejects.
    pub fn body_failure(&self, error: &BodyError) -> Failure {
        match error {
            BodyError::Malformed { reason, .. } => self.failure(Reason::Malformed(reason)),
            BodyError::Unsupported(reason) => self.failure(Reason::Unreadable(reason)),
            BodyError::TooLarge { limit, max } => self.failure(Reason::TooLarge(limit, *max)),
            BodyError::Value { rule, reason } => self.failure_at(Reason::Invalid(reason), *rule),
            BodyError::Missing { rule } => self.failure_at(Reason::Missing, *rule),
        }
    }

    /// Returns true if both rules can share one request.
    fn can_share_request(&self, one: usize, other: usize) -> bool {
        if one == other {
            return true;
        }
        let rules = &self.direction().rules;
        let (Some(first), Some(second)) = (rules.get(one), rules.get(other)) else {
            return false;
        };
        first.action == second.action
            && first.app == second.app
            && self.contexts.get(one) == self.contexts.get(other)
    }
}

/// The engine with the relay's settings. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    client: Client,
    /// Longest time of one request.
    deadline: Duration,
    metrics: Arc<Metrics>,
    /// Result of the last probe. False before the first one.
    is_ready: Arc<AtomicBool>,
}

/// Values of a batch that are sent in one request, as positions in the list of holes.
struct Group {
    rule: usize,
    holes: Vec<usize>,
}

impl Group {
    /// Returns the rule of an element of the request.
    fn rule_of(&self, at: usize, holes: &[&Hole]) -> Option<usize> {
        holes.get(*self.holes.get(at)?).map(|hole| hole.rule)
    }
}

/// The value that replaces a hole.
enum Replacement {
    /// A MessagePack value from the engine.
    Value(Bytes),
    /// The original bytes.
    Unchanged,
}

impl Engine {
    /// Wraps a client. `deadline` is the longest time of one request.
    pub fn new(client: Client, deadline: Duration, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            deadline,
            metrics,
            is_ready: Arc::default(),
        }
    }

    /// Makes one round trip. Returns true if an engine responds and is ready.
    pub async fn is_ready(&self) -> bool {
        let is_ready = self.client.health().await.is_ok();
        self.is_ready.store(is_ready, Ordering::Relaxed);
        is_ready
    }

    /// Replaces the holes among the pieces, and returns the bytes of all pieces in order.
    ///
    /// # Errors
    /// The first failure, in this direction. The caller must then forward nothing of the batch.
    pub async fn replace_values(
        &self,
        scope: &Scope,
        pieces: Vec<Piece>,
    ) -> Result<Vec<Bytes>, Failure> {
        let holes: Vec<&Hole> = pieces.iter().filter_map(Piece::hole).collect();
        let replacements = self.request_replacements(scope, &holes).await?;
        let mut frames = Frames::for_pieces(&pieces, &replacements);
        let mut replacements = replacements.iter();
        for piece in &pieces {
            match piece {
                Piece::Literal(bytes) => frames.push(bytes),
                Piece::Hole(hole) => match replacements.next() {
                    Some(Replacement::Value(value)) => {
                        hole.render(value, &mut frames.small).map_err(|error| {
                            scope.failure_at(Reason::Invalid(error.text()), hole.rule)
                        })?
                    }
                    Some(Replacement::Unchanged) | None => frames.push(&hole.source),
                },
            }
        }
        Ok(frames.into_frames())
    }

    async fn request_replacements(
        &self,
        scope: &Scope,
        holes: &[&Hole],
    ) -> Result<Vec<Replacement>, Failure> {
        let mut found: Vec<Replacement> = holes.iter().map(|_| Replacement::Unchanged).collect();
        let mut groups: Vec<Group> = Vec::new();
        for (at, hole) in holes.iter().enumerate() {
            if !is_needed(scope, hole)? {
                continue;
            }
            match groups
                .iter_mut()
                .find(|group| scope.can_share_request(group.rule, hole.rule))
            {
                Some(group) => group.holes.push(at),
                None => groups.push(Group {
                    rule: hole.rule,
                    holes: vec![at],
                }),
            }
        }
        let started = Instant::now();
        let requests = groups
            .iter()
            .map(|group| self.request_group(scope, group, holes));
        let results = match try_join_all(requests).await {
            Ok(results) => results,
            Err(failure) if self.may_fail_open(scope, &failure, started) => {
                self.metrics.count_failed_open(&scope.route.name);
                tracing::error!(route = %scope.route.name, reason = failure.reason.name(), "the engine is overloaded or does not respond: values of this request pass in the clear, because the route has fail = \"open\"");
                return Ok(found);
            }
            Err(failure) => return Err(failure),
        };

        for (group, values) in groups.iter().zip(results) {
            for (at, value) in group.holes.iter().zip(values) {
                if let Some(place) = found.get_mut(*at) {
                    *place = value;
                }
            }
        }
        Ok(found)
    }

    /// Sends the request of one group. Returns a replacement for each hole of the group.
    async fn request_group(
        &self,
        scope: &Scope,
        group: &Group,
        holes: &[&Hole],
    ) -> Result<Vec<Replacement>, Failure> {
        let Some(rule) = scope.direction().rules.get(group.rule) else {
            return Ok(Vec::new());
        };
        let sent: Vec<&[u8]> = group
            .holes
            .iter()
            .filter_map(|at| holes.get(*at))
            .map(|hole| &hole.value[..])
            .collect();

        let mut payload =
            Vec::with_capacity(8 + sent.iter().map(|value| value.len()).sum::<usize>());
        write::array_len(&mut payload, u32::try_from(sent.len()).unwrap_or(u32::MAX));
        sent.iter()
            .for_each(|value| payload.extend_from_slice(value));
        let started = Instant::now();

        // The deadline of the exchange passed, not that of the engine. The failure must not look
        // like an engine that does not respond.
        if scope.deadline.is_some_and(|end| started >= end) {
            return Err(scope.failure(Reason::ClientTimeout));
        }
        let outcome = self.send(scope, rule, group.rule, &payload).await;
        let time = started.elapsed();
        self.metrics.count_engine_request(
            &scope.route.name,
            rule.action.name(),
            sent.len(),
            time,
            outcome.is_ok(),
        );
        scope.usage.add_engine_request(sent.len(), time);
        let document = outcome.map_err(|error| {
            let failure = failure_of(scope, &error, |at| group.rule_of(at, holes));
            if failure.reason == Reason::EngineTimeout && !self.is_ready.load(Ordering::Relaxed) {
                // The request waited for a connection to an engine that is gone.
                return Failure {
                    reason: Reason::EngineUnavailable,
                    ..failure
                };
            }
            failure
        })?;

        let values = split_elements(&document.payload, sent.len()).ok_or_else(|| {
            scope.failure(Reason::EngineDenied(
                "the engine's result is not an array with an element per value",
            ))
        })?;

        let pairs = sent.iter().zip(values).zip(&group.holes);
        pairs
            .map(|((sent, value), at)| {
                if value != *sent {
                    return Ok(Replacement::Value(value));
                }
                // Rules that share a request can treat values that need no action differently.
                let at = holes.get(*at).map_or(group.rule, |hole| hole.rule);
                let own = scope.direction().rules.get(at).unwrap_or(rule);
                match (&own.action, own.unneeded) {
                    (Action::Mask { .. }, _) => Ok(Replacement::Value(value)),
                    (Action::Decrypt | Action::Detokenize { .. }, Unneeded::Pass) => {
                        Ok(Replacement::Unchanged)
                    }
                    (Action::Decrypt | Action::Detokenize { .. }, _) => Err(scope.failure_at(
                        Reason::Invalid("a selected value is neither an envelope nor a token"),
                        at,
                    )),
                    _ => Err(scope.failure_at(
                        Reason::EngineDenied("the engine returned a value unchanged"),
                        at,
                    )),
                }
            })
            .collect()
    }

    /// Returns true if values may pass in the clear. Fail-open is only for an engine that does not
    /// respond. An engine that rejects the request or had too little time does not count, and a
    /// rule that reveals never fails open.
    fn may_fail_open(&self, scope: &Scope, failure: &Failure, started: Instant) -> bool {
        let is_absent = match failure.reason {
            Reason::Overloaded | Reason::EngineUnavailable => true,
            Reason::EngineTimeout => scope
                .deadline
                .is_none_or(|end| started + self.deadline <= end),
            _ => false,
        };
        scope.route.fail_open && is_absent && !scope.direction().reveals()
    }

    async fn send(
        &self,
        scope: &Scope,
        rule: &Rule,
        at: usize,
        payload: &[u8],
    ) -> Result<Document, Error> {
        let left = scope.deadline.map_or(self.deadline, |end| {
            end.saturating_duration_since(Instant::now())
        });
        let deadline_ms = u32::try_from(left.min(self.deadline).as_millis()).unwrap_or(u32::MAX);
        if deadline_ms == 0 {
            return Err(Error::Deadline);
        }
        let select = Some(vec![EACH_ELEMENT]);
        let context = scope.contexts.get(at).map_or(&[][..], |context| context);
        let traceparent = scope.traceparent.as_deref();
        let base = DocumentParams::<()> {
            select,
            context,
            options: CommonParams {
                deadline_ms: Some(deadline_ms),
                traceparent,
                ..CommonParams::default()
            },
            ..DocumentParams::new(&rule.app, payload)
        };
        match &rule.action {
            Action::Encrypt => {
                self.client
                    .encrypt(with(base, Encrypt::new(&rule.app, payload).writing))
                    .await
            }
            Action::Decrypt => {
                self.client
                    .decrypt(with(base, Decrypt::new(&rule.app, payload).writing))
                    .await
            }
            Action::Tokenize { collection } => {
                let writing = TokenizeOptions {
                    collection,
                    ..Tokenize::new(&rule.app, payload).writing
                };
                self.client.tokenize(with(base, writing)).await
            }
            Action::Detokenize { collection } => {
                let writing = TokenLookupScope { collection };
                let call: Detokenize<'_> = with(base, writing);
                self.client.detokenize(call).await
            }
            Action::Mask { function } => {
                let rules = vec![MaskRule {
                    fields: RuleFields::Path(EACH_ELEMENT),
                    mask: function,
                }];
                let writing = Masking {
                    rules,
                    ..Masking::default()
                };
                let call: Mask<'_> = with(
                    DocumentParams {
                        select: None,
                        context: &[],
                        ..base
                    },
                    writing,
                );
                self.client.mask(call).await
            }
        }
    }
}

/// Adds the parameters of the method to a request.
fn with<'a, W>(base: DocumentParams<'a, ()>, writing: W) -> DocumentParams<'a, W> {
    DocumentParams {
        app: base.app,
        payload: base.payload,
        select: base.select,
        encapsulations: base.encapsulations,
        unmatched: base.unmatched,
        context: base.context,
        on_error: base.on_error,
        options: base.options,
        writing,
    }
}

/// Returns true if a value needs the action. Decided before the request.
fn is_needed(scope: &Scope, hole: &Hole) -> Result<bool, Failure> {
    let Some(rule) = scope.direction().rules.get(hole.rule) else {
        return Ok(false);
    };
    let text = hole.text().unwrap_or_default();
    let is_native = envelope::is_native(text);
    let is_envelope = is_native || envelope::is_evervault(text);
    match (&rule.action, rule.unneeded) {
        // A string in another format does not reveal its key, so the string passes only if the rule
        // permits it.
        (Action::Encrypt, Unneeded::Default) => Ok(!is_native),
        (Action::Encrypt, Unneeded::Pass) => Ok(!is_envelope),
        (Action::Encrypt, Unneeded::Deny) if is_envelope => Err(scope.failure_at(
            Reason::Invalid("a selected value is encrypted already"),
            hole.rule,
        )),
        (Action::Decrypt, Unneeded::Pass) => Ok(is_envelope),
        (Action::Decrypt, _) if !is_envelope => Err(scope.failure_at(
            Reason::Invalid("a selected value is not an envelope"),
            hole.rule,
        )),
        _ => Ok(true),
    }
}

/// Splits the engine's result into its elements.
fn split_elements(payload: &Bytes, expected: usize) -> Option<Vec<Bytes>> {
    let mut reader = TokenReader::new(payload);
    let len = usize::try_from(reader.array_len().ok()?).ok()?;
    if len != expected {
        return None;
    }
    let values = (0..len)
        .map(|_| reader.value().ok().map(|value| payload.slice_ref(value)))
        .collect::<Option<Vec<_>>>()?;
    reader.is_at_end().then_some(values)
}

/// Converts an error of the client. `rule_of` returns the rule of an element of the payload.
fn failure_of(scope: &Scope, error: &Error, rule_of: impl Fn(usize) -> Option<usize>) -> Failure {
    let reason = match error {
        Error::Rpc(error) => return failure_of_rpc(scope, error, rule_of),
        Error::Deadline => Reason::EngineTimeout,
        Error::Disconnected { .. } | Error::Connect(_) => Reason::EngineUnavailable,
        Error::RequestTooLong { max } => Reason::TooLarge("request to the engine", *max as u64),
        Error::Tls(_) | Error::Config(_) => {
            Reason::EngineDenied("the relay's certificate or configuration")
        }
        Error::Payload(_) | Error::ReplyRefused(_) | Error::Protocol(_) | Error::Value(_) => {
            Reason::EngineDenied("the engine's response violates the protocol")
        }
    };
    scope.failure(reason)
}

fn failure_of_rpc(
    scope: &Scope,
    error: &RpcError,
    rule_of: impl Fn(usize) -> Option<usize>,
) -> Failure {
    let field = field_of(error).and_then(rule_of);
    let reason = match error.code {
        ErrorCode::Overloaded => Reason::Overloaded,
        ErrorCode::Conflict if error.retry_after_ms.is_some() => Reason::Overloaded,
        ErrorCode::Unavailable | ErrorCode::Cancelled => Reason::EngineUnavailable,
        ErrorCode::DeadlineExceeded => Reason::EngineTimeout,
        ErrorCode::CannotOpen => Reason::CannotOpen,
        ErrorCode::NotFound if field.is_some() => Reason::CannotOpen,
        ErrorCode::BadRequest if field.is_some() => {
            Reason::Invalid("a selected value does not fit the action")
        }
        ErrorCode::TooLarge => Reason::TooLarge("limit of the engine", limit_of(error)),
        code => Reason::EngineDenied(code.name()),
    };
    let failure = match field {
        Some(rule) => scope.failure_at(reason, rule),
        None => scope.failure(reason),
    };
    Failure {
        retry_after_ms: error.retry_after_ms,
        ..failure
    }
}

/// Returns the position of the element that caused an error: `details.path` is `$[17]` or starts
/// with it.
fn field_of(error: &RpcError) -> Option<usize> {
    let path = error.details.iter().find(|detail| detail.key == "path")?;
    let DetailValue::Text(path) = &path.value else {
        return None;
    };
    path.strip_prefix("$[")?.split_once(']')?.0.parse().ok()
}

fn limit_of(error: &RpcError) -> u64 {
    let max = error.details.iter().find(|detail| detail.key == "max");
    max.map_or(0, |detail| {
        if let DetailValue::Number(max) = detail.value {
            max
        } else {
            0
        }
    })
}

/// Joins short pieces into one frame, and keeps long literals without a copy.
#[derive(Default)]
struct Frames {
    done: Vec<Bytes>,
    small: Vec<u8>,
}

impl Frames {
    /// Reserves about the bytes that the pieces take after the values are replaced.
    fn for_pieces(pieces: &[Piece], replacements: &[Replacement]) -> Self {
        let short = pieces
            .iter()
            .map(|piece| piece.source().len())
            .filter(|len| *len < COPY_BYTES_MAX);
        let values = replacements.iter().map(|replacement| match replacement {
            Replacement::Value(value) => value.len() + 2,
            Replacement::Unchanged => 0,
        });
        Self {
            done: Vec::new(),
            small: Vec::with_capacity(short.chain(values).sum()),
        }
    }

    fn push(&mut self, bytes: &Bytes) {
        if bytes.len() < COPY_BYTES_MAX {
            self.small.extend_from_slice(bytes);
        } else {
            self.close_small_frame();
            self.done.push(bytes.clone());
        }
    }

    fn close_small_frame(&mut self) {
        if !self.small.is_empty() {
            self.done.push(std::mem::take(&mut self.small).into());
        }
    }

    fn into_frames(mut self) -> Vec<Bytes> {
        self.close_small_frame();
        self.done
    }
}

/// Joins frames. A single frame is returned without a copy.
pub fn join_frames(mut frames: Vec<Bytes>) -> Bytes {
    if frames.len() < 2 {
        return frames.pop().unwrap_or_default();
    }
    let mut out = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
    frames.iter().for_each(|frame| out.extend_from_slice(frame));
    out.freeze()
}
