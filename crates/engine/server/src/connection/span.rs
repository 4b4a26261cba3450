//! The tracing spans of requests.

use super::Connection;
use super::audit::{RejectedRequest, RequestSummary};
use sealwire_engine::jobs::cancel_token::CancelToken;
use sealwire_engine::operation::RequestOptions;
use sealwire_service::spans::Traced;
use sealwire_telemetry::metrics::{RequestTimes, ResponseCode};
use sealwire_telemetry::traces::RequestEnd;

impl Connection {
    /// Ends the span of a sampled request.
    pub(super) fn end_span(
        &self,
        traced: Traced,
        summary: &RequestSummary<'_>,
        times: Option<RequestTimes>,
    ) {
        let RequestSummary {
            method,
            options,
            bytes,
            cancel,
            code,
            arrived,
        } = summary;

        let ended = RequestEnd {
            method: *method,
            code: *code,
            principal: &self.principal,
            app: options.map(|options| options.app.as_str()),
            collection: options.and_then(RequestOptions::collection),
            fields: cancel.map_or((0, 0), CancelToken::field_counts),
            bytes: *bytes as u64,
            times,
            took: arrived.elapsed(),
        };
        self.engine.traces.ended(traced, ended.span());
    }

    /// Ends the span of a request that did not start. A request that cannot be decoded has no span.
    pub(super) fn end_span_rejected(&self, request: &RejectedRequest<'_>, code: ResponseCode) {
        let Some(options) = request.options.filter(|_| self.engine.traces.is_on()) else {
            return;
        };
        let Some(traced) = self.engine.traces.sample(options.traceparent()) else {
            return;
        };
        self.end_span(traced, &request.summary(code), None);
    }
}
