//! Bodies of every format, in every cut.

use hyper::StatusCode;
use hyper::body::Bytes;

use crate::e2e::harness::{Dice, run};
use crate::relay::site::Site;

/// Routes that encrypt on the way in and decrypt on the way out, held and streamed, and one that
/// masks.
const ROUTES: &str = r#"
[[route]]
name = "orders"
listen = "public"
path = "/orders/{*rest}"
upstream = "shop"
app = "shop"
[[route.request]]
action = "encrypt"
unneeded = "deny"
types = ["application/json", "application/x-ndjson", "text/event-stream"]
select = ["$.card.number", "$.pan", "$[*].pan"]
[[route.request]]
action = "encrypt"
unneeded = "deny"
types = ["application/x-www-form-urlencoded", "multipart/form-data"]
select = ["$.pan"]
[[route.response]]
action = "decrypt"
select = ["$.card.number", "$.pan", "$[*].pan"]

[[route]]
name = "streams"
listen = "public"
path = "/streams/{*rest}"
upstream = "shop"
app = "shop"
request_stream = true
[[route.request]]
action = "encrypt"
unneeded = "deny"
types = ["application/json", "application/x-ndjson", "text/event-stream"]
select = ["$.pan", "$[*].pan"]
[[route.request]]
action = "encrypt"
unneeded = "deny"
types = ["application/x-www-form-urlencoded", "multipart/form-data"]
select = ["$.pan"]
[[route.response]]
action = "decrypt"
select = ["$.pan", "$[*].pan"]

[[route]]
name = "masks"
listen = "public"
path = "/masks/{*rest}"
upstream = "shop"
app = "shop"
request_stream = true
[[route.request]]
action = "mask"
types = ["application/json", "application/x-ndjson", "text/event-stream"]
select = ["$.pan", "$[*].pan", "$.card.number"]
mask = "partial(last=4)"
[[route.request]]
action = "mask"
types = ["application/x-www-form-urlencoded", "multipart/form-data"]
select = ["$.pan"]
mask = "partial(last=4)"
"#;

const CANARY: &str = "4111111111111111";

fn bodies() -> Vec<(&'static str, String)> {
    vec![
        (
            "application/json",
            format!("{{ \"card\" : {{\"number\":\"{CANARY}\"}}, \"x\":[1.50, \"\\u00e4\"] }}\n"),
        ),
        (
            "application/vnd.api+json; charset=utf-8",
            format!("[{{\"pan\":\"{CANARY}\"}},{{\"pan\":null}},{{\"pan\":true}},{{}}]"),
        ),
        (
            "application/x-ndjson",
            format!("{{\"pan\":\"{CANARY}\"}}\r\n\n{{\"pan\":17,\"y\":{{}}}}\n"),
        ),
        (
            "application/x-www-form-urlencoded",
            format!("a=%20b&pan={CANARY}&pan=x%26y&&z"),
        ),
        (
            "text/event-stream",
            format!(": hi\nid: 7\ndata: {{\"pan\":\ndata: \"{CANARY}\"}}\n\nevent: end\n\n"),
        ),
        (
            "multipart/form-data; boundary=xyz",
            format!(
                "--xyz\r\nContent-Disposition: form-data; name=\"pan\"\r\n\r\n{CANARY}\r\n--xyz\r\nContent-Disposition: form-data; \
                 name=\"file\"; filename=\"a.bin\"\r\nContent-Type: application/octet-stream\r\n\r\n\u{1}\r\n-\r\n--xyz--\r\n"
            ),
        ),
    ]
}

#[test]
fn formats_are_sealed_at_the_upstream_and_come_back_byte_for_byte() {
    run(async {
        let site = Site::start(ROUTES).await;
        for route in ["orders", "streams"] {
            for (content_type, body) in bodies() {
                if route == "streams" && body.contains("\"card\"") {
                    continue;
                }
                let (status, headers, back) =
                    site.post(&format!("/{route}/1"), content_type, &body).await;
                let shown = String::from_utf8_lossy(&back);
                assert_eq!(status, StatusCode::OK, "{route} {content_type}: {shown}");
                // An envelope opens to the value in its type, and a form has no types but text.
                assert_eq!(shown, body, "{route} {content_type}");
                assert!(
                    !headers.contains_key("etag") && headers["cache-control"] == "no-store",
                    "{headers:?}"
                );
                let sealed = String::from_utf8(site.upstream.last_body().to_vec()).unwrap();
                assert!(
                    (sealed.contains("sw1:") || sealed.contains("sw1%3A"))
                        && !sealed.contains(CANARY),
                    "{sealed}"
                );
            }
        }
        site.upstream.never_saw(CANARY);
    });
}

#[test]
fn compressed_bodies_are_read_and_forwarded_plain() {
    run(async {
        let site = Site::start(ROUTES).await;
        let body = format!("{{\"card\":{{\"number\":\"{CANARY}\"}}}}");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut gzip, body.as_bytes()).unwrap();
        let headers = [
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
        ];
        let (status, _, back) = site
            .send_parts(
                "POST",
                "/orders/1",
                &headers,
                vec![gzip.finish().unwrap().into()],
            )
            .await;
        assert_eq!((status, back), (StatusCode::OK, body.into()));
        let (_, _, headers, _) = site.upstream.last.lock().unwrap().clone().unwrap();
        assert!(
            !headers.contains_key("content-encoding") && headers["accept-encoding"] == "identity",
            "{headers:?}"
        );
        site.upstream.never_saw(CANARY);
    });
}

/// A body that cannot be read, cut where its decoder still holds output, passes whole or not at
/// all.
#[test]
fn a_malformed_body_that_passes_is_complete() {
    run(async {
        let routes = ROUTES.replace(
            "path = \"/orders/{*rest}\"",
            "path = \"/orders/{*rest}\"\nrequest_unparsed = \"pass\"",
        );
        let site = Site::start(&routes).await;
        let numbers: String = (0..8_000_u64)
            .map(|at| format!("[{} ", at.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .collect();
        let body = format!("{{\"a\":{numbers}");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut gzip, body.as_bytes()).unwrap();
        let whole = gzip.finish().unwrap();
        let headers = [
            ("content-type", "application/json"),
            ("content-encoding", "gzip"),
        ];
        for (len, expected) in [
            (whole.len(), StatusCode::BAD_GATEWAY),
            (whole.len() - 5, StatusCode::UNPROCESSABLE_ENTITY),
        ] {
            site.upstream.last.lock().unwrap().take();
            let sent = Bytes::copy_from_slice(&whole[..len]);
            let (status, _, problem) = site
                .send_parts("POST", "/orders/1", &headers, vec![sent])
                .await;
            // The upstream's echo of it cannot be read either, which is 502 after the upstream was
            // called.
            assert_eq!(status, expected, "{}", String::from_utf8_lossy(&problem));
            let seen = site
                .upstream
                .last
                .lock()
                .unwrap()
                .take()
                .map(|(_, _, _, seen)| seen);
            assert_eq!(seen.is_some(), expected == StatusCode::BAD_GATEWAY);
            assert!(
                seen.is_none_or(|seen| seen == body.as_bytes()),
                "the body passed in part"
            );
        }
    });
}

/// Masking gives equal masks for equal values, so the output of two cuts can be compared byte for
/// byte.
#[test]
fn the_output_does_not_depend_on_the_cuts() {
    run(async {
        let site = Site::start(ROUTES).await;
        let mut dice = Dice::new(22);
        let rounds = std::env::var("SEALWIRE_RELAY_CUTS")
            .ok()
            .and_then(|cuts| cuts.parse().ok())
            .unwrap_or(300_u32);
        let mut whole = Vec::new();
        for (content_type, body) in bodies() {
            // The masking function takes texts alone.
            let body = body.replace("true", "\"true\"").replace(":17", ":\"17\"");
            let (status, _, back) = site.post("/masks/1", content_type, &body).await;
            assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&back));
            assert!(!String::from_utf8_lossy(&back).contains(CANARY));
            whole.push((content_type, body, back));
        }
        for round in 0..rounds {
            let (content_type, body, expected) = &whole[round as usize % whole.len()];
            let mut ends: Vec<usize> = (0..1 + dice.roll(8))
                .map(|_| dice.roll(body.len() as u64 + 1) as usize)
                .collect();
            ends.extend([0, body.len()]);
            ends.sort_unstable();
            let parts = ends
                .windows(2)
                .map(|ends| Bytes::copy_from_slice(&body.as_bytes()[ends[0]..ends[1]]))
                .collect();
            let (_, _, back) = site
                .send_parts("POST", "/masks/1", &[("content-type", content_type)], parts)
                .await;
            assert_eq!(back, expected, "{content_type} {ends:?}");
        }
        site.upstream.never_saw(CANARY);
    });
}

#[test]
fn large_bodies_stream_in_many_batches() {
    run(async {
        let site = Site::start(ROUTES).await;
        let record = format!(
            "{{\"pan\":\"{CANARY}\",\"filler\":\"{}\"}}",
            "x".repeat(200)
        );
        let body = format!("[{}]", vec![record; 6_000].join(",\n"));
        let parts = body
            .as_bytes()
            .chunks(10_007)
            .map(Bytes::copy_from_slice)
            .collect();
        let (status, _, back) = site
            .send_parts(
                "POST",
                "/streams/1",
                &[("content-type", "application/json")],
                parts,
            )
            .await;
        assert_eq!((status, back.len()), (StatusCode::OK, body.len()));
        assert!(back == body.as_bytes(), "the large body changed");
        assert_eq!(
            String::from_utf8_lossy(&site.upstream.last_body())
                .matches("sw1:")
                .count(),
            6_000
        );
        site.upstream.never_saw(CANARY);
        // A route that holds bodies rejects this one for its length.
        let (status, _, problem) = site.post("/orders/1", "application/json", &body).await;
        assert_eq!(
            status,
            StatusCode::PAYLOAD_TOO_LARGE,
            "{}",
            String::from_utf8_lossy(&problem)
        );
    });
}
