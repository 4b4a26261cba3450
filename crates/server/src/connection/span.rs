//! Spans of requests.

use sealwire_wire::Call;

use super::Connection;
use super::audit::{Refused, RequestSummary, Subject};
use super::request::needs_place;
use sealwire_engine::cancel_token::CancelToken;
use sealwire_telemetry::metrics::{CallCode, CallTimes};
use sealwire_telemetry::traces::{Ended, Traced};

impl Connection {
    /// Ends the span of a call that is kept.
    pub(super) fn end_span(&self, traced: Traced, facts: &RequestSummary<'_>, times: Option<CallTimes>) {
        let RequestSummary { method, subject, bytes, ticket, code, arrived } = facts;
        let ended = Ended {
            method: *method,
            code: *code,
            principal: &self.principal,
            app: subject.app(),
            collection: subject.collection(),
            fields: ticket.map_or((0, 0), CancelToken::done),
            bytes: *bytes as u64,
            times,
            took: arrived.elapsed(),
        };
        self.engine.traces.ended(traced, ended);
    }

    /// Ends the span of a request that did not begin. A request that cannot be decoded has no span.
    pub(super) fn end_span_refused(&self, call: &Refused<'_>, code: CallCode) {
        let Some((frame, boundary)) = call.message.filter(|_| self.engine.traces.is_on()) else { return };
        let Ok(decoded) = Call::decode(frame, boundary) else { return };
        if !needs_place(decoded.method()) {
            return;
        }
        let Some(traced) = self.engine.traces.sample(&decoded) else { return };
        let (Refused { method, bytes, arrived, .. }, subject) = (call, &Subject::of(&decoded, frame));
        let facts = RequestSummary { method: *method, subject, bytes: *bytes, ticket: None, code, arrived: *arrived };
        self.end_span(traced, &facts, None);
    }
}
