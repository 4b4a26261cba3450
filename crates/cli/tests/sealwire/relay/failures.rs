//! An engine that is gone, and responses that cannot be opened: no plaintext passes, and every
//! answer is honest.

use hyper::StatusCode;
use hyper::body::Bytes;

use crate::e2e::harness::run;
use crate::relay::site::Site;

const ROUTES: &str = r#"
[[route]]
name = "orders"
listen = "public"
path = "/orders"
upstream = "shop"
app = "shop"
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.pan"]
required = true
[[route.response]]
action = "decrypt"
select = ["$.pan"]

[[route]]
name = "leaky"
listen = "public"
path = "/leaky"
upstream = "shop"
app = "shop"
fail = "open"
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.pan"]

[[route]]
name = "unknown-app"
listen = "public"
path = "/unknown-app"
upstream = "shop"
app = "no-such-app"
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.pan"]
"#;

const CANARY: &str = "4111111111111111";

#[test]
fn requests_fail_while_the_engine_is_gone() {
    run(async {
        let mut site = Site::start(ROUTES).await;
        let body = format!("{{\"pan\":\"{CANARY}\"}}");
        assert_eq!(
            site.post("/orders", "application/json", &body).await.0,
            StatusCode::OK
        );
        let sealed = site.upstream.last_body();
        let prefixed = format!("{{\"pan\":\"ev:{CANARY}\"}}");
        assert_eq!(
            site.post("/orders", "application/json", &prefixed).await.2,
            prefixed,
            "a prefix makes no envelope"
        );
        site.upstream.store("application/json", &[&sealed]);
        assert_eq!(
            site.get("/orders").await.0,
            StatusCode::UNPROCESSABLE_ENTITY,
            "a required value is missing"
        );
        site.engine.take_server().shutdown().await;
        for _ in 0..5 {
            let (status, headers, problem) = site.post("/orders", "application/json", &body).await;
            assert_eq!(
                status,
                StatusCode::SERVICE_UNAVAILABLE,
                "{}",
                String::from_utf8_lossy(&problem)
            );
            assert!(
                headers.contains_key("retry-after")
                    && headers["content-type"] == "application/problem+json",
                "{headers:?}"
            );
            assert!(!String::from_utf8_lossy(&problem).contains(CANARY));
        }
        site.upstream.never_saw(CANARY);
        // The route that was told to fail open does, and is counted.
        let (status, _, _) = site.post("/leaky", "application/json", &body).await;
        assert_eq!(
            (status, site.upstream.last_body()),
            (StatusCode::OK, body.clone().into())
        );
        assert!(
            site.relay
                .metrics_text()
                .contains("sealwire_relay_failed_open_total{route=\"leaky\"} 1"),
            "{}",
            site.relay.metrics_text()
        );
        site.engine.restart().await;
    });
}

#[test]
fn engine_denials_are_errors_of_the_relay() {
    run(async {
        let site = Site::start(ROUTES).await;
        let (status, headers, _) = site
            .post(
                "/unknown-app",
                "application/json",
                &format!("{{\"pan\":\"{CANARY}\"}}"),
            )
            .await;
        assert_eq!(
            (status, headers["sealwire-relay-error"].to_str().unwrap()),
            (StatusCode::BAD_GATEWAY, "engine_denied")
        );
        site.upstream.never_saw(CANARY);
    });
}

#[test]
fn bodies_that_cannot_be_edited_do_not_pass() {
    run(async {
        let site = Site::start(ROUTES).await;
        for (content_type, body, expected) in [
            ("application/json", format!("{{\"pan\":\"{CANARY}\""), 422),
            (
                "application/json",
                format!("{{\"pan\":[\"{CANARY}\"]}}"),
                422,
            ),
            ("application/json", format!("{{\"PAN\":\"{CANARY}\"}}"), 422),
            (
                "application/json",
                format!("\u{feff}\u{feff}{{\"pan\":\"{CANARY}\"}}"),
                422,
            ),
            ("text/plain", format!("{{\"pan\":\"{CANARY}\"}}"), 415),
            (
                "application/json; charset=utf-16",
                format!("{{\"pan\":\"{CANARY}\"}}"),
                415,
            ),
            ("application/octet-stream", CANARY.to_owned(), 415),
            // A service that ignores the type would read JSON, and the relay another grammar.
            (
                "text/event-stream",
                format!("{{\"pan\":\"{CANARY}\"}}"),
                415,
            ),
            (
                "application/x-www-form-urlencoded",
                format!("{{\"pan\":\"{CANARY}\"}}"),
                415,
            ),
            // A prefix makes no envelope.
            (
                "application/json",
                format!("{{\"pan\":null,\"Pan\":\"{CANARY}\"}}"),
                422,
            ),
            ("multipart/mixed; boundary=x", CANARY.to_owned(), 415),
        ] {
            let (status, _, problem) = site.post("/orders", content_type, &body).await;
            assert_eq!(
                status.as_u16(),
                expected,
                "{content_type} {body}: {}",
                String::from_utf8_lossy(&problem)
            );
            assert!(!String::from_utf8_lossy(&problem).contains(CANARY));
        }
        for (name, value) in [
            ("content-encoding", "gzip, br"),
            ("content-encoding", "compress"),
        ] {
            let headers = [("content-type", "application/json"), (name, value)];
            let (status, _, _) = site
                .send_parts(
                    "POST",
                    "/orders",
                    &headers,
                    vec![Bytes::from_static(CANARY.as_bytes())],
                )
                .await;
            assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{value}");
        }
        site.upstream.never_saw(CANARY);
        assert!(
            site.upstream.received.lock().unwrap().is_empty(),
            "the upstream was called"
        );
    });
}

#[test]
fn responses_that_cannot_be_opened_do_not_pass() {
    run(async {
        let routes = ROUTES.replace("required = true\n", "");
        let site = Site::start(&routes).await;
        for (content_type, body, expected) in [
            ("application/json", "{\"pan\":\"sw1:AAAA\"}", 502),
            ("application/json", "{\"pan\":\"plain\"}", 502),
            ("application/json", "{\"pan\":", 502),
            ("text/html", "<p>", 502),
            ("", "{}", 502),
            ("application/json", "{\"other\":1}", 200),
        ] {
            site.upstream.store(content_type, &[body.as_bytes()]);
            let (status, _, back) = site.get("/orders").await;
            assert_eq!(
                status.as_u16(),
                expected,
                "{content_type} {body}: {}",
                String::from_utf8_lossy(&back)
            );
            assert_eq!(back == body, expected == 200, "{body}");
        }
    });
}
