//! Envelopes of one place that a client sends to another, whose values it can read.

use hyper::StatusCode;

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
select = ["$.card", "$.ssn"]
[[route.response]]
action = "decrypt"
select = ["$.card"]

[[route]]
name = "again"
listen = "public"
path = "/again"
upstream = "shop"
app = "shop"
[[route.request]]
action = "encrypt"
unneeded = "apply"
select = ["$.card"]
[[route.response]]
action = "decrypt"
select = ["$.card"]
"#;

const SSN: &str = "078-05-1120";

#[test]
fn an_envelope_of_another_place_is_not_opened_for_clients() {
    run(async {
        let site = Site::start(ROUTES).await;
        let json = "application/json";
        let (status, _, body) = site
            .post(
                "/orders",
                json,
                &format!("{{\"card\":\"4242\",\"ssn\":\"{SSN}\"}}"),
            )
            .await;
        assert_eq!(status, StatusCode::OK);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let envelope = body["ssn"].as_str().unwrap();
        assert!(
            body["card"] == "4242" && envelope.starts_with("sw1:"),
            "{body}"
        );

        let sent = format!("{{\"card\":\"{envelope}\"}}");
        let (status, _, problem) = site.post("/orders", json, &sent).await;
        assert_eq!(
            status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{}",
            String::from_utf8_lossy(&problem)
        );
        // Sealed once more, it comes back as it was sent.
        let (status, _, back) = site.post("/again", json, &sent).await;
        assert_eq!(
            (status, String::from_utf8_lossy(&back).into_owned()),
            (StatusCode::OK, sent)
        );
        site.upstream.never_saw(SSN);

        // A text that only begins like an envelope is a value.
        let digits = format!("{{\"card\":\"sw1:{}\"}}", "4242424242424242".repeat(5));
        let (status, _, back) = site.post("/orders", json, &digits).await;
        assert_eq!(
            (status, String::from_utf8_lossy(&back).into_owned()),
            (StatusCode::OK, digits)
        );
        site.upstream.never_saw("4242424242424242");
    });
}
