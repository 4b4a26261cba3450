//! Spans of the relay: beneath the client's, above the engine's, and without any of the values.

use std::time::Duration;

use hyper::body::Bytes;

use crate::e2e::harness::{Harness, run};
use crate::e2e::traces::{Collector, Span, to};
use crate::relay::site::Site;

const ROUTES: &str = r#"
[[route]]
name = "orders"
listen = "public"
path = "/orders/{id}"
upstream = "shop"
app = "shop"
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.pan", "$.cvc"]
[[route.response]]
action = "decrypt"
select = ["$.pan", "$.cvc"]
"#;

/// A value that no span may contain, in body, path, query and header.
const CANARY: &str = "canary-7f41";
const BODY: &str = r#"{"pan":"canary-7f41","cvc":"canary-7f41"}"#;
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Sends one document with a `traceparent`, and returns the one that the upstream received.
async fn post(site: &Site, traceparent: Option<&str>) -> Option<String> {
    let mut headers = vec![("content-type", "application/json"), ("x-note", CANARY)];
    headers.extend(traceparent.map(|text| ("traceparent", text)));
    let path = format!("/orders/{CANARY}?note={CANARY}");
    let (status, _, back) = site
        .send_parts(
            "POST",
            &path,
            &headers,
            vec![Bytes::from_static(BODY.as_bytes())],
        )
        .await;
    assert_eq!((status.as_u16(), &back[..]), (200, BODY.as_bytes()));
    let last = site.upstream.last.lock().unwrap();
    last.as_ref()?
        .2
        .get("traceparent")
        .map(|value| value.to_str().unwrap().to_owned())
}

/// Waits until the collector has this many spans, and returns them.
async fn spans(collector: &Collector, count: usize) -> Vec<Span> {
    while collector.spans().len() < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    collector.spans()
}

fn service(span: &Span) -> &str {
    span.resource["service.name"]["stringValue"]
        .as_str()
        .unwrap()
}

#[test]
fn an_exchange_is_a_span_between_those_of_client_and_engine() {
    run(async {
        let collector = Collector::start().await;
        let engine = Harness::with(to(collector.address)).await;
        let traces = format!(
            "[traces]\nendpoint = 'http://{}/v1/traces'\nbatch_ms = 20\ntimeout_ms = 30000\n",
            collector.address
        );
        let site = Site::over(engine, &format!("{traces}{ROUTES}")).await;

        let unsampled = format!("00-{TRACE}-{PARENT}-00");
        assert_eq!(post(&site, None).await, None);
        assert_eq!(
            post(&site, Some("00-0-0-01")).await.as_deref(),
            Some("00-0-0-01"),
            "an invalid one passes"
        );
        assert_eq!(
            post(&site, Some(&unsampled)).await.as_deref(),
            Some(&*unsampled),
            "without a span of the relay"
        );
        let received = post(&site, Some(&format!("00-{TRACE}-{PARENT}-01")))
            .await
            .unwrap();

        let spans = spans(&collector, 3).await;
        let relays: Vec<_> = spans
            .iter()
            .filter(|span| service(span) == "sealwire-relay")
            .collect();
        let engines: Vec<_> = spans
            .iter()
            .filter(|span| service(span) == "sealwire")
            .collect();
        let [relay] = relays[..] else {
            panic!("{spans:?}")
        };
        let id = relay.span["spanId"].as_str().unwrap();
        assert_eq!(received, format!("00-{TRACE}-{id}-01"));
        assert_eq!(
            (&relay.span["traceId"], &relay.span["parentSpanId"]),
            (&TRACE.into(), &PARENT.into())
        );
        assert_eq!(
            (&relay.span["name"], &relay.span["kind"]),
            (&"POST /orders/{id}".into(), &2.into())
        );
        assert_eq!(
            (relay.text("http.route"), relay.text("sealwire.route")),
            (Some("/orders/{id}"), Some("orders"))
        );
        assert_eq!(
            (
                relay.number("http.response.status_code"),
                relay.number("sealwire.fields")
            ),
            (200, 4)
        );
        assert_eq!(relay.number("http.request.body.size"), BODY.len() as u64);
        let mut names: Vec<_> = engines
            .iter()
            .map(|span| span.span["name"].as_str().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["decrypt", "encrypt"]);
        assert!(
            engines
                .iter()
                .all(|span| span.span["parentSpanId"] == id && span.span["traceId"] == TRACE)
        );

        // A failure of the engine is one of the relay's span.
        *site.upstream.mischief.lock().unwrap() = crate::relay::site::Mischief::Hangup;
        let traced = format!("00-{TRACE}-{PARENT}-01");
        let headers = [
            ("content-type", "application/json"),
            ("traceparent", traced.as_str()),
        ];
        let (status, ..) = site
            .send_parts(
                "POST",
                "/orders/1",
                &headers,
                vec![Bytes::from_static(b"{}")],
            )
            .await;
        assert_eq!(status.as_u16(), 502);
        let spans = self::spans(&collector, 4).await;
        assert_eq!(
            spans[3].text("error.type"),
            Some("upstream_broken"),
            "{:?}",
            spans[3]
        );
        assert_eq!(spans[3].span["status"]["code"], 2);

        let bytes = collector.bytes();
        assert!(
            !bytes
                .windows(CANARY.len())
                .any(|bytes| bytes == CANARY.as_bytes())
        );
        site.relay.shutdown().await;
    });
}
