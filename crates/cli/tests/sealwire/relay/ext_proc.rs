//! External processing with a real engine, spoken to directly, so that a test can choose the cuts
//! of a body.

use sealwire_relay::ext_proc::proto::{Part, ResponsePart};

use crate::e2e::harness::run;
use crate::relay::processor::{
    Forwarded, Stream, forwarded, request, request_body, response, response_body, set, trailers,
};
use crate::relay::site::Site;

const CANARY: &str = "4111111111111111";

/// Routes that mask, because equal values have equal masks: bodies are held on one, and stream on
/// the other.
const ROUTES: &str = r#"
[listen.envoy]
address = "127.0.0.1:0"
kind = "ext_proc"
clients = "open"

[[route]]
name = "held"
listen = "envoy"
path = "/held"
app = "shop"
response_stream = false
[[route.request]]
action = "mask"
select = ["$.pan"]
headers = ["x-card"]
query = ["card"]
mask = "partial(last=4)"
[[route.response]]
action = "mask"
select = ["$.pan"]
mask = "partial(last=4)"

[[route]]
name = "streamed"
listen = "envoy"
path = "/streamed"
app = "shop"
request_stream = true
[[route.request]]
action = "mask"
select = ["$.pan"]
headers = ["x-card"]
query = ["card"]
mask = "partial(last=4)"
[[route.response]]
action = "mask"
select = ["$.pan"]
mask = "partial(last=4)"

[[route]]
name = "unused"
listen = "public"
path = "/"
upstream = "shop"
pass = true
"#;

/// Runs an exchange whose bodies are cut at a position. Trailers end them if `has_trailers`.
async fn exchange(
    site: &Site,
    route: &str,
    body: &str,
    cut: usize,
    has_trailers: bool,
) -> (Forwarded, Forwarded) {
    let headers = [
        ("content-type", "application/json"),
        ("x-card", CANARY),
        ("etag", "1"),
    ];
    let (head, tail) = body.split_at(cut);
    let mut stream = Stream::open(site.address("envoy")).await;
    stream
        .send(request(
            "POST",
            &format!("/{route}?card={CANARY}"),
            &headers,
            false,
        ))
        .await;
    stream.send(request_body(head, false)).await;
    stream.send(request_body(tail, !has_trailers)).await;
    if has_trailers {
        stream
            .send(Part::RequestTrailers(trailers(&[("x", CANARY)])))
            .await;
    }
    stream.send(response("200", &headers, false)).await;
    stream.send(response_body(head, false)).await;
    stream.send(response_body(tail, !has_trailers)).await;
    if has_trailers {
        stream
            .send(Part::ResponseTrailers(trailers(&[("x", CANARY)])))
            .await;
    }
    let (answers, status) = stream.rest().await;
    assert_eq!(status, Some(0), "{route} {cut}");
    let removed = |answer: &ResponsePart| {
        matches!(answer, ResponsePart::RequestTrailers(trailers) | ResponsePart::ResponseTrailers(trailers)
            if trailers.header_mutation.as_ref().is_some_and(|mutation| mutation.remove_headers == ["x"]))
    };
    assert_eq!(
        answers.iter().filter(|answer| removed(answer)).count(),
        if has_trailers { 2 } else { 0 }
    );
    let (request, response, immediate) = forwarded(answers);
    assert!(
        request.is_complete && response.is_complete && immediate.is_none(),
        "{route} {cut}"
    );
    (request, response)
}

#[test]
fn the_messages_that_a_proxy_gets_do_not_depend_on_the_cuts() {
    run(async {
        let site = Site::start(ROUTES).await;
        let body = format!("{{ \"pan\" : \"{CANARY}\", \"x\":[1.50] }}\n");
        let masked = body.replace(CANARY, "************1111");
        for route in ["held", "streamed"] {
            for cut in 0..=body.len() {
                let (request, response) = exchange(&site, route, &body, cut, cut % 2 == 1).await;
                assert_eq!(
                    String::from_utf8_lossy(&request.body),
                    masked,
                    "{route} {cut}"
                );
                assert_eq!(
                    String::from_utf8_lossy(&response.body),
                    masked,
                    "{route} {cut}"
                );
                let target = format!("/{route}?card={}1111", "%2A".repeat(12));
                assert_eq!(set(&request.headers, ":path"), Some(&*target));
                assert_eq!(set(&request.headers, "x-card"), Some("************1111"));
                assert_eq!(
                    (
                        request.headers.remove_headers,
                        response.headers.remove_headers
                    ),
                    (vec!["etag".to_owned()], vec!["etag".to_owned()])
                );
            }
        }
    });
}
