//! The span of a call, and what a collector is told of it: names, counts, times and who called. Never a value, token,
//! path, context or reason.
//!
//! In the words of OpenTelemetry's conventions for RPC where those have one; what is ours begins with `sealwire.`.
//! Times in queue and at work are attributes and no spans of their own: they are sums over slices, between which other
//! calls had their turn.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire_wire::{ErrorCode, TraceContext};
use serde_json::{Value, json};

use crate::metrics::{CallCode, CallTimes, MethodLabel};
use sealwire_access::Principal;

/// Facts about a request at its end.
#[derive(Debug)]
pub struct RequestEnd<'a> {
    /// Method.
    pub method: MethodLabel,
    /// How it ended.
    pub code: CallCode,
    /// Principal.
    pub principal: &'a Principal,
    /// The app it named.
    pub app: Option<&'a str>,
    /// The collection it named.
    pub collection: Option<&'a str>,
    /// Fields worked on, and of them those that were refused.
    pub fields: (u64, u64),
    /// Bytes of its message.
    pub bytes: u64,
    /// Set if the job ended by itself.
    pub times: Option<CallTimes>,
    /// Since its last byte was there.
    pub took: Duration,
}

/// A span to send. It holds nothing of the request's message.
#[derive(Debug)]
pub(super) struct Span {
    trace_id: u128,
    span_id: u64,
    parent_id: Option<u64>,
    method: MethodLabel,
    code: CallCode,
    principal: Principal,
    app: Option<Box<str>>,
    collection: Option<Box<str>>,
    fields: (u64, u64),
    bytes: u64,
    times: Option<(Duration, Duration)>,
    /// Since 1970.
    begun: Duration,
    ended: Duration,
}

impl Span {
    /// A span of its own under the caller's, or of a trace of its own.
    pub(super) fn new(caller: Option<TraceContext>, call: RequestEnd<'_>) -> Self {
        let ended = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let trace_id = caller.map_or_else(
            || u128::from(rand::random::<u64>()) << 64 | u128::from(not_zero()),
            |caller| u128::from_be_bytes(caller.trace_id),
        );
        Self {
            trace_id,
            span_id: not_zero(),
            parent_id: caller.map(|caller| u64::from_be_bytes(caller.parent_id)),
            method: call.method,
            code: call.code,
            principal: call.principal.clone(),
            app: call.app.map(Into::into),
            collection: call.collection.map(Into::into),
            fields: call.fields,
            bytes: call.bytes,
            times: call.times.map(|times| (times.queue, times.work)),
            begun: ended.saturating_sub(call.took),
            ended,
        }
    }

    fn encode(&self) -> Value {
        let mut attributes = vec![
            text("rpc.system.name", "sealwire"),
            text("rpc.method", self.method.as_str()),
            text("rpc.response.status_code", self.code.as_str()),
            text("sealwire.principal", self.principal.as_str()),
            number("sealwire.fields", self.fields.0),
            number("sealwire.field_errors", self.fields.1),
            number("sealwire.request_bytes", self.bytes),
        ];
        attributes.extend(self.app.as_deref().map(|app| text("sealwire.app", app)));
        attributes.extend(self.collection.as_deref().map(|collection| text("sealwire.collection", collection)));
        if let Some((queue, work)) = self.times {
            attributes.extend([seconds("sealwire.queue_seconds", queue), seconds("sealwire.work_seconds", work)]);
        }
        let fails = is_ours(self.code);
        attributes.extend(fails.then(|| text("error.type", self.code.as_str())));
        let mut span = json!({
            "traceId": format!("{:032x}", self.trace_id),
            "spanId": format!("{:016x}", self.span_id),
            "flags": SAMPLED | PARENT_KNOWN | if self.parent_id.is_some() { PARENT_REMOTE } else { 0 },
            "name": self.method.as_str(),
            "kind": KIND_SERVER,
            "startTimeUnixNano": self.begun.as_nanos().to_string(),
            "endTimeUnixNano": self.ended.as_nanos().to_string(),
            "attributes": attributes,
            "status": if fails { json!({ "code": STATUS_ERROR }) } else { json!({}) },
        });
        if let Some(parent) = self.parent_id {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        span
    }
}

/// `SPAN_KIND_SERVER`, and the flags of `opentelemetry/proto/trace/v1`.
const KIND_SERVER: u32 = 2;
const STATUS_ERROR: u32 = 2;
const SAMPLED: u32 = 1;
const PARENT_KNOWN: u32 = 0x100;
const PARENT_REMOTE: u32 = 0x200;

/// An id, which must not be zero.
fn not_zero() -> u64 {
    rand::random::<u64>().max(1)
}

/// Returns true if the engine caused the failure. A client's mistake is no error of a server's span.
fn is_ours(code: CallCode) -> bool {
    [ErrorCode::Internal, ErrorCode::Unavailable, ErrorCode::Overloaded, ErrorCode::DeadlineExceeded]
        .into_iter()
        .any(|ours| code == ours.into())
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// A 64-bit number is text in the JSON of protocol buffers.
fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": i64::try_from(value).unwrap_or(i64::MAX).to_string() } })
}

fn seconds(key: &str, value: Duration) -> Value {
    json!({ "key": key, "value": { "doubleValue": value.as_secs_f64() } })
}

/// An `ExportTraceServiceRequest` of this engine, in JSON.
pub(super) fn request(instance: &str, spans: &[Span]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let resource = json!({ "attributes": [
        text("service.name", "sealwire"),
        text("service.version", version),
        text("service.instance.id", instance),
    ] });
    let spans: Vec<Value> = spans.iter().map(Span::encode).collect();
    let scope = json!({ "name": "sealwire", "version": version });
    let request =
        json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": [{ "scope": scope, "spans": spans }] }] });
    request.to_string().into_bytes()
}

#[cfg(test)]
pub(super) mod tests {
    use sealwire_schedule::Class;
    use sealwire_wire::Method;

    use super::*;

    pub(in crate::traces) fn span(caller: Option<TraceContext>, code: CallCode) -> Span {
        let times = CallTimes {
            class: Class::default(),
            queue: Duration::from_micros(250),
            work: Duration::from_millis(2),
            predicted: Duration::ZERO,
            took: None,
        };
        let principal = Principal::from_text("relay.internal").unwrap();
        let call = RequestEnd {
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
        Span::new(caller, call)
    }

    #[test]
    fn a_span_says_what_the_conventions_ask_for_and_ours() {
        let caller = TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut span = span(caller, ErrorCode::Overloaded.into());
        (span.span_id, span.begun, span.ended) =
            (0xab, Duration::new(1_700_000_000, 5), Duration::new(1_700_000_000, 9));
        let request: Value = serde_json::from_slice(&request("e-1", &[span])).unwrap();
        let string = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        let expected = json!({ "resourceSpans": [{
            "resource": { "attributes": [
                string("service.name", "sealwire"),
                string("service.version", env!("CARGO_PKG_VERSION")),
                string("service.instance.id", "e-1"),
            ] },
            "scopeSpans": [{
                "scope": { "name": "sealwire", "version": env!("CARGO_PKG_VERSION") },
                "spans": [{
                    "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
                    "spanId": "00000000000000ab",
                    "parentSpanId": "00f067aa0ba902b7",
                    "flags": 0x301,
                    "name": "tokenize",
                    "kind": 2,
                    "startTimeUnixNano": "1700000000000000005",
                    "endTimeUnixNano": "1700000000000000009",
                    "attributes": [
                        string("rpc.system.name", "sealwire"),
                        string("rpc.method", "tokenize"),
                        string("rpc.response.status_code", "overloaded"),
                        string("sealwire.principal", "relay.internal"),
                        { "key": "sealwire.fields", "value": { "intValue": "7" } },
                        { "key": "sealwire.field_errors", "value": { "intValue": "2" } },
                        { "key": "sealwire.request_bytes", "value": { "intValue": "1099511627776" } },
                        string("sealwire.app", "shop"),
                        string("sealwire.collection", "people"),
                        { "key": "sealwire.queue_seconds", "value": { "doubleValue": 0.00025 } },
                        { "key": "sealwire.work_seconds", "value": { "doubleValue": 0.002 } },
                        string("error.type", "overloaded"),
                    ],
                    "status": { "code": 2 },
                }],
            }],
        }] });
        assert_eq!(request, expected);
    }

    #[test]
    fn a_trace_of_its_own_has_ids_of_its_own_and_no_parent() {
        let (one, other) = (span(None, CallCode::OK), span(None, CallCode::OK));
        assert!(one.trace_id != other.trace_id && one.span_id != other.span_id && one.trace_id != 0);
        let shown = one.encode();
        assert_eq!((&shown["parentSpanId"], &shown["flags"]), (&Value::Null, &json!(0x101)));
        assert!(one.ended - one.begun == Duration::from_millis(3) && one.begun > Duration::from_secs(1_700_000_000));
    }

    #[test]
    fn only_what_is_the_engines_doing_is_an_error_of_its_span() {
        for code in CallCode::ALL {
            let shown = span(None, code).encode();
            let fails = ["internal", "unavailable", "overloaded", "deadline_exceeded"].contains(&code.as_str());
            let named =
                shown["attributes"].as_array().unwrap().iter().any(|attribute| attribute["key"] == "error.type");
            assert_eq!((shown["status"]["code"] == 2, named), (fails, fails), "{}", code.as_str());
        }
    }
}
