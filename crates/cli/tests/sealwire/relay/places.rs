//! All actions, and values outside of bodies.

use hyper::StatusCode;
use hyper::body::Bytes;

use crate::e2e::harness::run;
use crate::relay::site::Site;

const ROUTES: &str = r#"
[[route]]
name = "users"
listen = "public"
path = "/users/{id}/card"
methods = ["PUT"]
upstream = "shop"
app = "shop"
[[route.request]]
action = "encrypt"
unneeded = "deny"
segments = ["id"]
query = ["ssn"]
headers = ["x-secret"]
[[route.request]]
action = "tokenize"
collection = "people"
select = ["$.name"]
[[route.request]]
action = "mask"
mask = "partial(last=4)"
select = ["$.phone"]
[[route.response]]
action = "detokenize"
collection = "people"
select = ["$.name"]

[[route]]
name = "bound"
listen = "public"
path = "/bound/{tenant}"
upstream = "shop"
app = "shop"
[[route.request]]
action = "encrypt"
unneeded = "deny"
select = ["$.a"]
context = { segment = "tenant" }
[[route.response]]
action = "decrypt"
select = ["$.a"]
context = { header = "x-tenant" }

[[route]]
name = "open"
listen = "public"
path = "/{id}/open"
strip_prefix = ""
methods = ["GET"]
upstream = "shop"
app = "shop"
[[route.request]]
action = "decrypt"
segments = ["id"]
headers = ["x-secret"]

[[route]]
name = "passed"
listen = "public"
path = "/passed/{*rest}"
strip_prefix = "/passed"
upstream = "shop"
pass = true
"#;

#[test]
fn values_in_path_query_and_headers_are_replaced() {
    run(async {
        let site = Site::start(&ROUTES.replace("strip_prefix = \"\"\n", "")).await;
        let body = r#"{"name":"Ada","phone":"+15550001234"}"#;
        let headers = [
            ("content-type", "application/json"),
            ("x-secret", "canary-header"),
            ("x-secret", "canary-two"),
        ];
        let path = "/users/canary%20path/card?a=1&ssn=canary%26query&b";
        let (status, _, back) = site
            .send_parts(
                "PUT",
                path,
                &headers,
                vec![Bytes::from_static(body.as_bytes())],
            )
            .await;
        let back = String::from_utf8_lossy(&back).into_owned();
        assert_eq!(status, StatusCode::OK, "{back}");
        assert!(
            back.contains("\"name\":\"Ada\"") && back.contains("1234") && !back.contains("+1555"),
            "{back}"
        );
        let (_, target, headers, sealed) = site.upstream.last.lock().unwrap().clone().unwrap();
        let sealed = String::from_utf8_lossy(&sealed).into_owned();
        assert!(
            !sealed.contains("Ada") && sealed.contains("1234"),
            "{sealed}"
        );
        assert!(
            target.starts_with("/users/sw1%3A")
                && target.contains("/card?a=1&ssn=sw1%3A")
                && target.ends_with("&b"),
            "{target}"
        );
        let secrets: Vec<&str> = headers
            .get_all("x-secret")
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect();
        assert!(
            secrets.len() == 2 && secrets.iter().all(|value| value.starts_with("sw1:")),
            "{secrets:?}"
        );
        site.upstream.never_saw("canary");
        // The other way round: an envelope in the path opens for the upstream.
        let envelope = target.split('/').nth(2).unwrap();
        let (status, _, _) = site
            .send_parts(
                "GET",
                &format!("/{envelope}/open"),
                &[("x-secret", secrets[0])],
                vec![Bytes::new()],
            )
            .await;
        let (_, target, headers, _) = site.upstream.last.lock().unwrap().clone().unwrap();
        assert_eq!(
            (status, target.as_str()),
            (StatusCode::OK, "/canary%20path/open")
        );
        assert_eq!(headers["x-secret"], "canary-header");
    });
}

#[test]
fn a_context_binds_values() {
    run(async {
        let site = Site::start(&ROUTES.replace("strip_prefix = \"\"\n", "")).await;
        let send = async |tenant: &str| {
            let headers = [("content-type", "application/json"), ("x-tenant", tenant)];
            site.send_parts(
                "POST",
                "/bound/one",
                &headers,
                vec![Bytes::from_static(b"{\"a\":\"canary\"}")],
            )
            .await
        };
        let (status, _, back) = send("one").await;
        assert_eq!(
            (status, &back[..]),
            (StatusCode::OK, &b"{\"a\":\"canary\"}"[..])
        );
        let (status, headers, problem) = send("two").await;
        assert_eq!(
            (status, headers["sealwire-relay-error"].to_str().unwrap()),
            (StatusCode::BAD_GATEWAY, "cannot_open")
        );
        let problem: serde_json::Value = serde_json::from_slice(&problem).unwrap();
        assert_eq!(
            (
                &problem["field"],
                &problem["phase"],
                &problem["upstream_called"]
            ),
            (&"$.a".into(), &"response".into(), &true.into())
        );
        // Without the header there is no context to open with, and the upstream is not called.
        let before = site.upstream.received.lock().unwrap().len();
        let (status, _, _) = site
            .post("/bound/one", "application/json", "{\"a\":\"canary\"}")
            .await;
        assert_eq!(
            (status, site.upstream.received.lock().unwrap().len()),
            (StatusCode::UNPROCESSABLE_ENTITY, before)
        );
    });
}

#[test]
fn a_passing_route_changes_nothing() {
    run(async {
        let site = Site::start(&ROUTES.replace("strip_prefix = \"\"\n", "")).await;
        let body: Vec<u8> = (0..=255).collect();
        let headers = [
            ("content-type", "application/grpc-web+proto"),
            ("x-secret", "plain"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
        ];
        let (status, headers, back) = site
            .send_parts(
                "POST",
                "/passed/a%20b?q=%zz",
                &headers,
                vec![body.clone().into()],
            )
            .await;
        assert_eq!(
            (status, &back[..], headers["etag"].to_str().unwrap()),
            (StatusCode::OK, &body[..], "\"1\"")
        );
        let (_, target, headers, _) = site.upstream.last.lock().unwrap().clone().unwrap();
        assert_eq!(
            (target.as_str(), headers["x-secret"].to_str().unwrap()),
            ("/a%20b?q=%zz", "plain")
        );
        assert!(
            !headers.contains_key("x-hop")
                && headers.contains_key("via")
                && headers.contains_key("x-forwarded-for"),
            "{headers:?}"
        );
        assert_eq!(
            site.post("/nowhere", "text/plain", "x").await.0,
            StatusCode::NOT_FOUND
        );
        assert_eq!(
            site.post("/users/1/card", "text/plain", "x").await.0,
            StatusCode::METHOD_NOT_ALLOWED
        );
    });
}
