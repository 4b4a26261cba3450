//! The span of a request to the engine: names, counts, times and the principal. Never a value,
//! token, path, context or reason.
//!
//! Attributes follow OpenTelemetry's conventions for RPC where these have a name; others begin with
//! `sealwire.`. Queue time and processing time are attributes instead of spans: each is a sum over
//! slices, between which other requests ran.

use std::time::Duration;

use sealwire_access::Principal;
use sealwire_service::spans::{Attribute, SpanEnd};
use sealwire_wire::ErrorCode;

use crate::metrics::{MethodLabel, RequestTimes, ResponseCode};

/// Facts about a request at its end.
#[derive(Debug)]
pub struct RequestEnd<'a> {
    /// Method.
    pub method: MethodLabel,
    /// Outcome.
    pub code: ResponseCode,
    /// Principal.
    pub principal: &'a Principal,
    /// The app that the request named.
    pub app: Option<&'a str>,
    /// The collection that the request named.
    pub collection: Option<&'a str>,
    /// Number of processed fields, and the number of those that failed.
    pub fields: (u64, u64),
    /// Bytes of the request.
    pub bytes: u64,
    /// Set if the job ended by itself.
    pub times: Option<RequestTimes>,
    /// Time since the last byte of the request arrived.
    pub took: Duration,
}

impl RequestEnd<'_> {
    /// Returns the data that completes the request's span.
    pub fn span(&self) -> SpanEnd {
        let mut attributes = vec![
            Attribute::text("rpc.system.name", "sealwire"),
            Attribute::text("rpc.method", self.method.as_str()),
            Attribute::text("rpc.response.status_code", self.code.as_str()),
            Attribute::text("sealwire.principal", self.principal.as_str().to_owned()),
            Attribute::number("sealwire.fields", self.fields.0),
            Attribute::number("sealwire.field_errors", self.fields.1),
            Attribute::number("sealwire.request_bytes", self.bytes),
        ];
        attributes.extend(
            self.app
                .map(|app| Attribute::text("sealwire.app", app.to_owned())),
        );
        let collection = self
            .collection
            .map(|name| Attribute::text("sealwire.collection", name.to_owned()));
        attributes.extend(collection);
        if let Some(times) = &self.times {
            attributes.push(Attribute::seconds("sealwire.queue_seconds", times.queue));
            attributes.push(Attribute::seconds("sealwire.work_seconds", times.work));
        }
        let failure = is_engine_failure(self.code).then(|| self.code.as_str());
        SpanEnd {
            name: self.method.as_str().into(),
            took: self.took,
            attributes,
            failure,
        }
    }
}

/// Returns true if the engine caused the failure. A server span is not marked as an error for a
/// client's mistake.
fn is_engine_failure(code: ResponseCode) -> bool {
    [
        ErrorCode::Internal,
        ErrorCode::Unavailable,
        ErrorCode::Overloaded,
        ErrorCode::DeadlineExceeded,
    ]
    .into_iter()
    .any(|ours| code == ours.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_schedule::Class;
    use sealwire_wire::Method;

    fn end(code: ResponseCode) -> SpanEnd {
        let times = RequestTimes {
            class: Class::default(),
            queue: Duration::from_micros(250),
            work: Duration::from_millis(2),
            predicted: Duration::ZERO,
            took: None,
        };
        let principal = Principal::from_text("relay.internal").unwrap();
        let request = RequestEnd {
            method: Method::Tokenize.into(),
            code,
            principal: &principal,
            app: Some("shop"),
            collection: Some("people"),
            fields: (7, 2),
            bytes: 1 << 40,
            times: Some(times),
            took: Duration::from_millis(3),
        };
        request.span()
    }

    #[test]
    fn span_has_standard_and_sealwire_attributes() {
        let end = end(ErrorCode::Overloaded.into());
        let expected = [
            Attribute::text("rpc.system.name", "sealwire"),
            Attribute::text("rpc.method", "tokenize"),
            Attribute::text("rpc.response.status_code", "overloaded"),
            Attribute::text("sealwire.principal", "relay.internal"),
            Attribute::number("sealwire.fields", 7),
            Attribute::number("sealwire.field_errors", 2),
            Attribute::number("sealwire.request_bytes", 1 << 40),
            Attribute::text("sealwire.app", "shop"),
            Attribute::text("sealwire.collection", "people"),
            Attribute::seconds("sealwire.queue_seconds", Duration::from_micros(250)),
            Attribute::seconds("sealwire.work_seconds", Duration::from_millis(2)),
        ];
        assert_eq!(
            (&*end.name, end.took, end.failure),
            ("tokenize", Duration::from_millis(3), Some("overloaded"))
        );
        assert_eq!(end.attributes, expected);
    }

    #[test]
    fn span_failures_are_only_engine_failures() {
        for code in ResponseCode::ALL {
            let fails = ["internal", "unavailable", "overloaded", "deadline_exceeded"]
                .contains(&code.as_str());
            assert_eq!(end(code).failure, fails.then(|| code.as_str()));
        }
    }
}
