//! Spans over real calls, at a collector that reads them: beneath the caller's, with the right
//! numbers and nothing of what calls carry; and what callers see when it does not take them, which
//! is nothing.

use sealwire_client::{CollectionTarget, Decrypt, Detokenize, Encrypt, ErrorCode, Tokenize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire_apps::{CollectionKind, CollectionRules, Scope};
use sealwire_records::token::Format;
use sealwire_service::spans::Endpoint;
use sealwire_settings::Config;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::e2e::harness::{APP, Harness, code, fields, run};
use crate::e2e::raw::health;

/// A value that no span may contain.
const CANARY: &str = "canary-5d81c6";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// A collector that records received bytes and responds from a list. The last response repeats.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
    count: watch::Receiver<usize>,
}

/// Responses of a collector; `None`: it never responds.
type Answers = Vec<Option<(&'static str, &'static str)>>;

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::answering(vec![Some(("200 OK", "{}"))]).await
    }

    async fn answering(answers: Answers) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, requests) = (
            listener.local_addr().unwrap(),
            Arc::<Mutex<Vec<Vec<u8>>>>::default(),
        );
        let (counted, count) = watch::channel(0);
        let kept = Arc::clone(&requests);
        tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = read_request(&mut stream).await;
                let at = {
                    let mut kept = kept.lock().unwrap();
                    kept.push(request);
                    kept.len()
                };
                match answers[(at - 1).min(answers.len() - 1)] {
                    Some((status, body)) => {
                        let length = body.len();
                        let answer = format!(
                            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
                        );
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                    None => held.push(stream),
                }
                counted.send_replace(at);
            }
        });
        Self {
            address,
            requests,
            count,
        }
    }

    /// Waits until `requests` requests with spans were received.
    async fn has(&self, requests: usize) {
        self.count
            .clone()
            .wait_for(|count| *count >= requests)
            .await
            .unwrap();
    }

    /// Returns all received bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.requests.lock().unwrap().concat()
    }

    /// Returns all received spans, with the resource that they came from.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().unwrap();
        let bodies = requests.iter().map(|request| {
            let text = std::str::from_utf8(request).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("content-type: application/json"), "{head}");
            serde_json::from_str::<Value>(body).unwrap()
        });
        bodies.flat_map(|body| spans_of(&body)).collect()
    }
}

async fn read_request(stream: &mut TcpStream) -> Vec<u8> {
    let mut request = Vec::new();
    loop {
        let mut piece = [0; 8_192];
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "a request breaks off");
        request.extend_from_slice(&piece[..read]);
        let Some(head) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            continue;
        };
        let text = std::str::from_utf8(&request[..head])
            .unwrap()
            .to_lowercase();
        let length = text
            .split("content-length: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .parse::<usize>()
            .unwrap();
        if request.len() == head + 4 + length {
            return request;
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) resource: BTreeMap<String, Value>,
    attributes: BTreeMap<String, Value>,
    pub(crate) span: Value,
}

impl Span {
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.attributes.get(key)?["stringValue"].as_str()
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.attributes[key]["intValue"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    fn nanos(&self, key: &str) -> u128 {
        self.span[key].as_str().unwrap().parse().unwrap()
    }

    /// Returns name, outcome, app, collection, fields and failed fields.
    fn row(&self) -> Row {
        let own = |key| self.text(key).map(str::to_owned);
        let name = self.span["name"].as_str().unwrap();
        assert_eq!(self.text("rpc.method"), Some(name));
        let code = own("rpc.response.status_code").unwrap();
        let (fields, errors) = (
            self.number("sealwire.fields"),
            self.number("sealwire.field_errors"),
        );
        (
            name.into(),
            code,
            own("sealwire.app"),
            own("sealwire.collection"),
            fields,
            errors,
        )
    }
}

type Row = (String, String, Option<String>, Option<String>, u64, u64);

fn row(
    method: &str,
    code: &str,
    app: Option<&str>,
    collection: Option<&str>,
    fields: u64,
    errors: u64,
) -> Row {
    (
        method.into(),
        code.into(),
        app.map(Into::into),
        collection.map(Into::into),
        fields,
        errors,
    )
}

fn attributes(value: &Value) -> BTreeMap<String, Value> {
    let list = value["attributes"].as_array().unwrap();
    let pairs: Vec<_> = list
        .iter()
        .map(|pair| {
            (
                pair["key"].as_str().unwrap().to_owned(),
                pair["value"].clone(),
            )
        })
        .collect();
    let map: BTreeMap<_, _> = pairs.iter().cloned().collect();
    assert_eq!(map.len(), pairs.len(), "an attribute is given twice");
    map
}

fn spans_of(body: &Value) -> Vec<Span> {
    let resource = &body["resourceSpans"][0];
    let spans = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    let of = |span: &Value| Span {
        resource: attributes(&resource["resource"]),
        attributes: attributes(span),
        span: span.clone(),
    };
    spans.iter().map(of).collect()
}

impl Harness {
    /// Waits until no span is pending. A shutdown would interrupt a running attempt and send its
    /// spans again.
    pub(crate) async fn all_sent(&self) {
        self.metric_becomes("sealwire_spans_waiting", |waiting| waiting == 0.0)
            .await;
    }
}

/// Configures spans to be sent to the address soon.
pub(crate) fn to(address: SocketAddr) -> impl FnOnce(&mut Config) {
    move |config| {
        config.traces.endpoint = Endpoint::parse(&format!("http://{address}/v1/traces"));
        config.traces.batch = Duration::from_millis(20);
        config.traces.spans_per_s_max = 10_000;
        // Long timeout, because a repeated attempt would send its spans twice.
        config.traces.timeout = Duration::from_secs(60);
    }
}

/// Returns an address without a listener.
async fn nobody() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

fn doc(count: usize) -> Vec<u8> {
    let texts: Vec<String> = (0..count)
        .map(|field| format!("\"{CANARY}-{field}\""))
        .collect();
    let json = format!("[{}]", texts.join(","));
    sealwire_payload::json::to_msgpack(json.as_bytes(), sealwire_payload::WalkLimits::default())
        .unwrap()
}

fn outcome(name: &str) -> String {
    format!("sealwire_spans_total{{outcome=\"{name}\"}}")
}

#[test]
fn sampled_calls_are_spans_beneath_their_callers_and_hold_none_of_its_values() {
    run(async {
        let collector = Collector::start().await;
        let mut harness = Harness::with(to(collector.address)).await;
        let (kind, format) = (CollectionKind::Deterministic, Format::Opaque);
        harness
            .create_collection(
                APP,
                "people",
                CollectionRules {
                    kind,
                    format,
                    scope: Scope::Context,
                    expires_s: None,
                    retention_s: None,
                },
            )
            .await;
        let relay = harness.client().await;
        let payload = doc(7);
        let traceparent = Some(SAMPLED);
        let (context, reason) = (CANARY.as_bytes(), Some(CANARY));

        let sealed = relay
            .encrypt(
                Encrypt::new(APP, &payload)
                    .traceparent(traceparent)
                    .reason(reason)
                    .context(context),
            )
            .await
            .unwrap();
        let opened = Decrypt::new(APP, &sealed.payload)
            .traceparent(traceparent)
            .reason(reason)
            .context(context);
        relay.decrypt(opened).await.unwrap();
        let elsewhere = Decrypt::new(APP, &sealed.payload)
            .traceparent(traceparent)
            .context(b"elsewhere");
        assert_eq!(code(relay.decrypt(elsewhere).await), ErrorCode::CannotOpen);
        // Both requests fail before any work.
        let none = Encrypt::new("nobody", &payload).traceparent(traceparent);
        assert_eq!(code(relay.encrypt(none).await), ErrorCode::NotFound);
        let later = Encrypt::new(APP, &payload)
            .traceparent(traceparent)
            .min_generation(u64::MAX);
        assert_eq!(code(relay.encrypt(later).await), ErrorCode::Conflict);
        let tokens = relay
            .tokenize(
                Tokenize::new(APP, "people", &payload)
                    .traceparent(traceparent)
                    .tags([CANARY])
                    .context(context),
            )
            .await
            .unwrap();
        let names = strings(&tokens.payload);
        let back = Detokenize::new(APP, "people", &tokens.payload)
            .traceparent(traceparent)
            .context(context);
        assert_eq!(relay.detokenize(back).await.unwrap().payload, payload);
        let map = CollectionTarget::new(APP, "people")
            .traceparent(traceparent)
            .reason(reason);
        let some: Vec<&str> = names.iter().take(3).map(String::as_str).collect();
        relay.tokens_get(map, &some).await.unwrap();
        // These requests are not traced.
        relay
            .encrypt(Encrypt::new(APP, &payload).traceparent(UNSAMPLED))
            .await
            .unwrap();
        relay.encrypt(Encrypt::new(APP, &payload)).await.unwrap();
        relay
            .encrypt(Encrypt::new(APP, &payload).traceparent(CANARY))
            .await
            .unwrap();
        relay.health().await.unwrap();
        relay.info().await.unwrap();

        harness.all_sent().await;
        let server = harness.take_server();
        let instance = server.engine().apps.instance_id();
        server.shutdown().await;
        let (spans, app, people) = (collector.spans(), Some(APP), Some("people"));
        assert_eq!(
            spans.iter().map(Span::row).collect::<Vec<_>>(),
            [
                row("encrypt", "ok", app, None, 7, 0),
                row("decrypt", "ok", app, None, 7, 0),
                row("decrypt", "cannot_open", app, None, 1, 0),
                row("encrypt", "not_found", Some("nobody"), None, 0, 0),
                row("encrypt", "conflict", app, None, 0, 0),
                row("tokenize", "ok", app, people, 7, 0),
                row("detokenize", "ok", app, people, 7, 0),
                row("tokens.get", "ok", app, people, 3, 0),
            ]
        );
        let mut ids: Vec<&str> = spans
            .iter()
            .map(|span| span.span["spanId"].as_str().unwrap())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), spans.len(), "each has an id of its own");
        for span in &spans {
            assert_eq!(
                (&span.span["traceId"], &span.span["parentSpanId"]),
                (&TRACE.into(), &PARENT.into())
            );
            assert_eq!(
                (&span.span["kind"], &span.span["status"]["code"]),
                (&2.into(), &Value::Null)
            );
            assert_eq!(span.text("sealwire.principal"), Some("relay"));
            assert!(span.number("sealwire.request_bytes") > 100, "{span:?}");
            assert!(
                span.nanos("startTimeUnixNano") > 0
                    && span.nanos("endTimeUnixNano") >= span.nanos("startTimeUnixNano")
            );
            assert_eq!(
                span.resource["service.instance.id"]["stringValue"],
                instance
            );
            assert_eq!(span.resource["service.name"]["stringValue"], "sealwire");
            let began =
                ["ok", "cannot_open"].contains(&span.text("rpc.response.status_code").unwrap());
            let timed = began && span.span["name"] != "tokens.get";
            for key in ["sealwire.queue_seconds", "sealwire.work_seconds"] {
                let seconds = span
                    .attributes
                    .get(key)
                    .map(|value| value["doubleValue"].as_f64().unwrap());
                assert_eq!(
                    seconds.is_some_and(|seconds| seconds > 0.0),
                    timed,
                    "{span:?}"
                );
            }
        }
        let bytes = collector.bytes();
        let holds = |text: &str| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        assert!(
            holds("shop") && holds(TRACE),
            "the search finds what is there"
        );
        for secret in names
            .iter()
            .map(String::as_str)
            .chain([CANARY, "elsewhere", "sw1:", "tok_"])
        {
            assert!(!holds(secret), "{secret}");
        }
    });
}

/// Returns the strings in an array.
fn strings(payload: &[u8]) -> Vec<String> {
    let mut text = Vec::new();
    sealwire_payload::json::from_msgpack(
        payload,
        &mut text,
        false,
        sealwire_payload::WalkLimits::default(),
    )
    .unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn chance_begins_traces_where_the_caller_names_none_and_the_stop_sends_what_is_left() {
    run(async {
        let collector = Collector::start().await;
        let mut harness = Harness::with(|config| {
            to(collector.address)(config);
            // Nothing is sent before the shutdown.
            (config.traces.sample_ppm, config.traces.batch) = (1_000_000, Duration::from_secs(60));
        })
        .await;
        let (relay, payload) = (harness.client().await, fields(1));
        for traceparent in [
            None,
            Some("00-what-is-this"),
            Some(UNSAMPLED),
            Some(SAMPLED),
        ] {
            relay
                .encrypt(Encrypt::new(APP, &payload).traceparent(traceparent))
                .await
                .unwrap();
        }
        // Requests without data have no span.
        relay.health().await.unwrap();
        let mut raw = harness.raw().await;
        raw.send(&health(1)).await;
        raw.answer(1).await.unwrap();
        assert_eq!(collector.spans().len(), 0);
        harness.take_server().shutdown().await;
        let spans = collector.spans();
        let parents: Vec<&Value> = spans
            .iter()
            .map(|span| &span.span["parentSpanId"])
            .collect();
        assert_eq!(parents, [&Value::Null, &Value::Null, &PARENT.into()]);
        assert!(
            spans[0].span["traceId"] != spans[1].span["traceId"]
                && spans[0].span["traceId"] != TRACE
        );
    });
}

#[test]
fn a_collector_that_is_down_costs_spans_and_no_calls() {
    run(async {
        let deaf = Collector::answering(vec![None]).await;
        for address in [nobody().await, deaf.address] {
            let mut harness = Harness::with(|config| {
                to(address)(config);
                (config.traces.queue_spans, config.traces.batch_spans) = (4, 2);
                config.traces.timeout = Duration::from_millis(300);
            })
            .await;
            let (relay, payload) = (harness.client().await, fields(1));
            for _ in 0..40 {
                let call = Encrypt::new(APP, &payload).traceparent(SAMPLED);
                relay.encrypt(call).await.unwrap();
            }
            // Four spans wait and two are being sent. The others were dropped, or given up after
            // failed attempts.
            let mut kept = 40.0;
            for lost in ["no_room", "undelivered"] {
                kept -= harness.metric(&outcome(lost)).await;
            }
            assert!(kept <= 6.0, "{kept}");
            assert!(harness.metric("sealwire_spans_waiting").await <= 6.0);
            assert_eq!(harness.metric(&outcome("sent")).await, 0.0);
            // The shutdown does not wait for a collector that never responds.
            harness.take_server().shutdown().await;
        }
    });
}

#[test]
fn a_flood_of_sampled_calls_is_bounded() {
    run(async {
        let collector = Collector::start().await;
        let mut harness = Harness::with(|config| {
            to(collector.address)(config);
            config.traces.spans_per_s_max = 3;
        })
        .await;
        let (relay, payload) = (harness.client().await, fields(1));
        for call in 0..300 {
            let traceparent = Some(if call % 2 == 0 { SAMPLED } else { UNSAMPLED });
            relay
                .encrypt(Encrypt::new(APP, &payload).traceparent(traceparent))
                .await
                .unwrap();
        }
        harness.all_sent().await;
        let over = harness.metric(&outcome("over_rate")).await;
        harness.take_server().shutdown().await;
        let spans = collector.spans().len() as u64;
        assert_eq!(over, (150 - spans) as f64, "what is not sent is counted");
        assert!(spans >= 1);
    });
}

#[test]
fn answers_of_a_collector() {
    run(async {
        let busy = Some(("503 Service Unavailable", ""));
        for (answers, requests, sent, undelivered) in [
            // The response to a repeated attempt, and the number of spans that it accepted.
            (
                vec![busy, Some(("200 OK", "{\"partialSuccess\":{}}"))],
                2,
                2,
                0,
            ),
            (
                vec![Some((
                    "200 OK",
                    "{\"partialSuccess\":{\"rejectedSpans\":\"1\",\"errorMessage\":\"\"}}",
                ))],
                1,
                1,
                1,
            ),
            (
                vec![Some((
                    "200 OK",
                    "{\"partialSuccess\":{\"rejectedSpans\":9}}",
                ))],
                1,
                0,
                2,
            ),
            (vec![Some(("202 Accepted", "what"))], 1, 2, 0),
            // Errors that are not retried.
            (
                vec![Some(("400 Bad Request", "{}")), Some(("200 OK", "{}"))],
                1,
                0,
                2,
            ),
            (
                vec![
                    Some((
                        "307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/",
                        "",
                    )),
                    Some(("200 OK", "{}")),
                ],
                1,
                0,
                2,
            ),
        ] {
            let collector = Collector::answering(answers.clone()).await;
            let harness = Harness::with(|config| {
                to(collector.address)(config);
                // Both spans are sent together.
                (config.traces.batch_spans, config.traces.batch) = (2, Duration::from_secs(60));
            })
            .await;
            let (relay, payload) = (harness.client().await, fields(1));
            for _ in 0..2 {
                let call = Encrypt::new(APP, &payload).traceparent(SAMPLED);
                relay.encrypt(call).await.unwrap();
            }
            collector.has(requests).await;
            harness.all_sent().await;
            let counted = (
                harness.metric(&outcome("sent")).await,
                harness.metric(&outcome("undelivered")).await,
            );
            assert_eq!(
                counted,
                (f64::from(sent), f64::from(undelivered)),
                "{answers:?}"
            );
            assert_eq!(*collector.count.borrow(), requests, "{answers:?}");
        }
    });
}
