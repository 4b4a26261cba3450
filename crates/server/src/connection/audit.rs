//! Audit records of requests, and responses that wait for them.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_audit::Record;
use sealwire_wire::{Boundary, Call, Method};
use tokio::time::Instant;

use super::Connection;
use sealwire_engine::access::Target;
use sealwire_engine::audit::{Recording, kind};
use sealwire_engine::cancel_token::CancelToken;
use sealwire_telemetry::metrics::{CallCode, MethodLabel};

/// Names in a request, as parts of its message.
#[derive(Clone, Debug, Default)]
pub(super) struct Subject {
    app: Option<Bytes>,
    collection: Option<Bytes>,
    /// Why, in its caller's words.
    reason: Option<Bytes>,
}

impl Subject {
    pub(super) fn of(call: &Call<'_>, frame: &Bytes) -> Self {
        let Target { app, collection, reason } = Target::by_call(call);
        let part = |text: &str| frame.slice_ref(text.as_bytes());
        Self { app: app.map(part), collection: collection.map(part), reason: reason.map(part) }
    }

    pub(super) fn app(&self) -> Option<&str> {
        text(&self.app)
    }

    pub(super) fn collection(&self) -> Option<&str> {
        text(&self.collection)
    }

    /// Reads the names of a rejected message, if it can be decoded.
    fn of_message(frame: &Bytes, boundary: &Boundary) -> Self {
        Call::decode(frame, boundary).map_or_else(|_| Self::default(), |call| Self::of(&call, frame))
    }
}

/// A request that is answered without having begun.
pub(super) struct Refused<'a> {
    pub(super) msgid: u32,
    pub(super) method: MethodLabel,
    /// Its message, if it is whole.
    pub(super) message: Option<(&'a Bytes, &'a Boundary)>,
    /// Bytes of it that were there.
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
}

/// Summary of a request at its end.
pub(super) struct RequestSummary<'a> {
    pub(super) method: MethodLabel,
    pub(super) subject: &'a Subject,
    pub(super) bytes: usize,
    /// Knows what was done, of a call that began.
    pub(super) ticket: Option<&'a CancelToken>,
    pub(super) code: CallCode,
    pub(super) arrived: Instant,
}

impl Connection {
    /// Takes the record of a call.
    pub(super) fn record(&self, facts: &RequestSummary<'_>) -> Recording {
        let RequestSummary { method, subject, bytes, ticket, code, arrived } = facts;
        let (fields, errors) = ticket.map_or((0, 0), CancelToken::done);
        let planned = ticket.and_then(CancelToken::planned_under);
        // Nothing was done for it, and whoever sends it can send as many as the network carries.
        let is_refused = *code != CallCode::OK && planned.is_none();
        let record = Record {
            principal: self.principal.as_str(),
            kind: kind(self.principal.kind()),
            method: method.as_str(),
            app: subject.app(),
            collection: subject.collection(),
            reason: text(&subject.reason),
            mask: ticket.and_then(CancelToken::shown_through),
            change: &[],
            fields,
            errors,
            bytes_in: *bytes as u64,
            outcome: code.as_str(),
            generation: planned.unwrap_or_else(|| self.engine.apps.generation()),
            took: arrived.elapsed(),
        };
        if is_refused { self.engine.audit.refused(&record) } else { self.engine.audit.record(&record) }
    }

    /// The record of a request that did not begin; none of one that is never recorded.
    pub(super) fn record_refused(&self, call: &Refused<'_>, code: CallCode) -> Recording {
        if !self.engine.audit.is_on() || is_unrecorded(call.method) {
            return Recording::none();
        }
        let subject = call.message.map(|(frame, boundary)| Subject::of_message(frame, boundary)).unwrap_or_default();
        let (Refused { method, bytes, arrived, .. }, subject) = (call, &subject);
        self.record(&RequestSummary { method: *method, subject, bytes: *bytes, ticket: None, code, arrived: *arrived })
    }

    /// Queues a reply that holds no seat, once its record is kept. Waits while too many wait for theirs.
    pub(super) async fn send_recorded(self: &Arc<Self>, msgid: u32, bytes: Vec<u8>, recording: Recording) {
        match recording.now() {
            Some(kept) => self.send(kept.map_or_else(|failure| self.error_reply(msgid, &failure), |()| bytes)).await,
            None => {
                let Ok(permit) = Arc::clone(&self.recordings).acquire_owned().await else { return };
                let connection = Arc::clone(self);
                // Not in the reader's way: a cancel may stand behind it.
                tokio::spawn(async move {
                    let kept = recording.kept().await;
                    connection
                        .send(kept.map_or_else(|failure| connection.error_reply(msgid, &failure), |()| bytes))
                        .await;
                    drop(permit);
                });
            }
        }
    }
}

/// All parts are of a text that was checked.
fn text(part: &Option<Bytes>) -> Option<&str> {
    part.as_deref().and_then(|part| std::str::from_utf8(part).ok())
}

/// `health` and `info` say nothing of anybody's data.
fn is_unrecorded(method: MethodLabel) -> bool {
    method == Method::Health.into() || method == Method::Info.into()
}
