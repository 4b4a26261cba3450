//! Audit records of requests, and responses that wait for them.

use std::sync::Arc;

use sealwire_audit::{Change, Record};
use sealwire_wire::Method;
use tokio::time::Instant;

use super::Connection;
use sealwire_engine::audit::{Recording, kind_name};
use sealwire_engine::jobs::cancel_token::CancelToken;
use sealwire_engine::operation::RequestOptions;
use sealwire_telemetry::metrics::{MethodLabel, ResponseCode};

/// A request that gets its response before it starts.
pub(super) struct RejectedRequest<'a> {
    pub(super) msgid: u32,
    pub(super) method: MethodLabel,
    /// The options of the request, if it was decoded.
    pub(super) options: Option<&'a RequestOptions>,
    /// Bytes of the message that had arrived.
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
}

/// Summary of a finished request.
pub(super) struct RequestSummary<'a> {
    pub(super) method: MethodLabel,
    /// The options of the request, if it was decoded.
    pub(super) options: Option<&'a RequestOptions>,
    pub(super) bytes: usize,
    /// Counters of the finished work, if the request started.
    pub(super) cancel: Option<&'a CancelToken>,
    pub(super) code: ResponseCode,
    pub(super) arrived: Instant,
}

impl<'a> RejectedRequest<'a> {
    pub(super) fn summary(&self, code: ResponseCode) -> RequestSummary<'a> {
        let Self {
            method,
            options,
            bytes,
            arrived,
            ..
        } = *self;

        RequestSummary {
            method,
            options,
            bytes,
            cancel: None,
            code,
            arrived,
        }
    }
}

impl Connection {
    /// Records a request. Rejected requests are aggregated.
    pub(super) fn record(&self, summary: &RequestSummary<'_>) -> Recording {
        let RequestSummary {
            method,
            options,
            bytes,
            cancel,
            code,
            arrived,
        } = summary;

        let (fields, errors) = cancel.map_or((0, 0), CancelToken::field_counts);
        let subjects = cancel.map(CancelToken::subjects).unwrap_or_default();
        let erasure = cancel.and_then(CancelToken::erasure);
        let change = erasure.map(|(version, created)| {
            [
                ("key_version", Change::Number(version)),
                ("key_created", Change::Number(created)),
            ]
        });
        let planned = cancel.and_then(CancelToken::planned_generation);
        // Only the network limits the number of these requests, since the engine does no work for
        // them.
        let is_rejected = *code != ResponseCode::OK && planned.is_none();
        let record = Record {
            principal: self.principal.as_str(),
            kind: kind_name(self.principal.kind()),
            method: method.as_str(),
            app: options.map(|options| options.app.as_str()),
            collection: options.and_then(RequestOptions::collection),
            reason: options.and_then(RequestOptions::reason),
            mask: cancel.and_then(CancelToken::mask_text),
            subjects: &subjects,
            change: change.as_ref().map_or(&[], |change| &change[..]),
            fields,
            errors,
            bytes_in: *bytes as u64,
            outcome: code.as_str(),
            generation: planned.unwrap_or_else(|| self.engine.apps.generation()),
            took: arrived.elapsed(),
        };

        if is_rejected {
            self.engine.audit.record_rejected(&record)
        } else {
            self.engine.audit.record(&record)
        }
    }

    /// Records a request that did not start. `health` and `info` are never recorded.
    pub(super) fn record_rejected(
        &self,
        request: &RejectedRequest<'_>,
        code: ResponseCode,
    ) -> Recording {
        if !self.engine.audit.is_on() || is_unrecorded(request.method) {
            return Recording::none();
        }
        self.record(&request.summary(code))
    }

    /// Queues a response that holds no in-flight permit, after its audit record is durable. Waits
    /// while too many responses wait for their records.
    pub(super) async fn send_recorded(
        self: &Arc<Self>,
        msgid: u32,
        bytes: Vec<u8>,
        recording: Recording,
    ) {
        let recorded = match recording.outcome() {
            Some(recorded) => recorded,
            // The records of other clients wait for this write, so the write must not wait for a
            // client.
            None if recording.is_writer() => recording.wait_until_durable(false).await,
            None => return self.send_after_record(msgid, bytes, recording).await,
        };
        self.send(recorded.map_or_else(|failure| self.error_response(msgid, &failure), |()| bytes))
            .await;
    }

    async fn send_after_record(self: &Arc<Self>, msgid: u32, bytes: Vec<u8>, recording: Recording) {
        let Ok(permit) = Arc::clone(&self.recordings).acquire_owned().await else {
            return;
        };
        let connection = Arc::clone(self);
        // A separate task, so that the reader can read a following `cancel`.
        self.spawn(async move {
            let recorded = recording.wait_until_durable(false).await; // Another task writes the record.
            connection
                .send(recorded.map_or_else(
                    |failure| connection.error_response(msgid, &failure),
                    |()| bytes,
                ))
                .await;
            drop(permit);
        });
    }
}

/// Returns true for `health` and `info`, which disclose no data.
fn is_unrecorded(method: MethodLabel) -> bool {
    method == Method::Health.into() || method == Method::Info.into()
}
