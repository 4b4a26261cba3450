//! A span and its encoding in the JSON of OTLP.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::spans::Traced;

/// `SPAN_KIND_SERVER`, and the flags of `opentelemetry/proto/trace/v1`.
const KIND_SERVER: u32 = 2;
const STATUS_ERROR: u32 = 2;
const SAMPLED: u32 = 1;
const PARENT_KNOWN: u32 = 0x100;
const PARENT_REMOTE: u32 = 0x200;

/// Information about a finished request. A span must never contain a value, a token, the path of a
/// field, a context or a reason.
#[derive(Debug)]
pub struct SpanEnd {
    /// Name of the operation, from a closed set.
    pub name: Cow<'static, str>,
    /// Time since the request arrived.
    pub took: Duration,
    /// Attributes by name. The names follow OpenTelemetry's conventions where these define a name.
    pub attributes: Vec<Attribute>,
    /// The failure, if the server caused one. Client errors do not mark the span of a server as
    /// failed.
    pub failure: Option<&'static str>,
}

/// An attribute of a span.
#[derive(Debug, PartialEq)]
pub struct Attribute {
    key: &'static str,
    value: AttributeValue,
}

#[derive(Debug, PartialEq)]
enum AttributeValue {
    Text(Cow<'static, str>),
    Number(u64),
    Seconds(Duration),
}

impl Attribute {
    /// Creates a text attribute.
    pub fn text(key: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        Self {
            key,
            value: AttributeValue::Text(value.into()),
        }
    }

    /// Creates a number attribute.
    pub const fn number(key: &'static str, value: u64) -> Self {
        Self {
            key,
            value: AttributeValue::Number(value),
        }
    }

    /// Creates an attribute with a time in seconds.
    pub const fn seconds(key: &'static str, value: Duration) -> Self {
        Self {
            key,
            value: AttributeValue::Seconds(value),
        }
    }

    fn encode(&self) -> Value {
        let value = match &self.value {
            AttributeValue::Text(text) => json!({ "stringValue": text }),
            // The JSON encoding of protocol buffers represents 64-bit numbers as text.
            AttributeValue::Number(number) => {
                json!({ "intValue": i64::try_from(*number).unwrap_or(i64::MAX).to_string() })
            }
            AttributeValue::Seconds(time) => json!({ "doubleValue": time.as_secs_f64() }),
        };
        json!({ "key": self.key, "value": value })
    }
}

/// A finished span, ready for export.
#[derive(Debug)]
pub(crate) struct Span {
    traced: Traced,
    end: SpanEnd,
    /// Time since 1970.
    ended: Duration,
}

impl Span {
    pub(crate) fn new(traced: Traced, end: SpanEnd) -> Self {
        Self {
            traced,
            end,
            ended: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        }
    }

    fn encode(&self) -> Value {
        let Self { traced, end, ended } = self;
        let error = end
            .failure
            .map(|failure| Attribute::text("error.type", failure));
        let attributes: Vec<Value> = end
            .attributes
            .iter()
            .chain(&error)
            .map(Attribute::encode)
            .collect();
        let mut span = json!({
            "traceId": format!("{:032x}", traced.trace_id),
            "spanId": format!("{:016x}", traced.span_id),
            "flags": SAMPLED | PARENT_KNOWN | if traced.parent_id.is_some() { PARENT_REMOTE } else { 0 },
            "name": end.name,
            "kind": KIND_SERVER,
            "startTimeUnixNano": ended.saturating_sub(end.took).as_nanos().to_string(),
            "endTimeUnixNano": ended.as_nanos().to_string(),
            "attributes": attributes,
            "status": if end.failure.is_some() { json!({ "code": STATUS_ERROR }) } else { json!({}) },
        });
        if let Some(parent) = traced.parent_id {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        span
    }
}

/// The process that creates spans.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name of the program.
    pub name: &'static str,
    /// Unique name of this process.
    pub instance: String,
}

/// Returns an `ExportTraceServiceRequest` in JSON.
pub(crate) fn export_request(service: &Service, spans: &[Span]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = [
        Attribute::text("service.name", service.name),
        Attribute::text("service.version", version),
        Attribute::text("service.instance.id", service.instance.clone()),
    ];
    let attributes: Vec<Value> = attributes.iter().map(Attribute::encode).collect();
    let resource = json!({ "attributes": attributes });
    let spans: Vec<Value> = spans.iter().map(Span::encode).collect();
    let scope = json!({ "name": service.name, "version": version });
    let request = json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": [{ "scope": scope, "spans": spans }] }] });
    request.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use sealwire_wire::TraceContext;

    use super::*;

    fn span(context: Option<&str>, failure: Option<&'static str>) -> Span {
        let attributes = vec![
            Attribute::text("rpc.method", "tokenize"),
            Attribute::number("sealwire.request_bytes", 1 << 40),
            Attribute::seconds("sealwire.queue_seconds", Duration::from_micros(250)),
        ];
        let end = SpanEnd {
            name: "tokenize".into(),
            took: Duration::from_nanos(4),
            attributes,
            failure,
        };
        Span::new(Traced::new(context.and_then(TraceContext::parse)), end)
    }

    #[test]
    fn a_span_has_the_form_of_otlp() {
        let mut span = span(
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            Some("overloaded"),
        );
        (span.traced.span_id, span.ended) = (0xab, Duration::new(1_700_000_000, 9));
        let service = Service {
            name: "sealwire",
            instance: "e-1".into(),
        };
        let request: Value = serde_json::from_slice(&export_request(&service, &[span])).unwrap();
        let string =
            |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
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
                        string("rpc.method", "tokenize"),
                        { "key": "sealwire.request_bytes", "value": { "intValue": "1099511627776" } },
                        { "key": "sealwire.queue_seconds", "value": { "doubleValue": 0.00025 } },
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
        let (one, other) = (span(None, None), span(None, None));
        assert!(
            one.traced.trace_id != other.traced.trace_id
                && one.traced.span_id != other.traced.span_id
        );
        assert_ne!(one.traced.trace_id, 0);
        let shown = one.encode();
        assert_eq!(
            (&shown["parentSpanId"], &shown["flags"]),
            (&Value::Null, &json!(0x101))
        );
        assert_eq!(shown["status"], json!({}));
        assert!(one.ended > Duration::from_secs(1_700_000_000));
    }
}
