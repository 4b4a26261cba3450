//! Other spellings of names, paths and methods: each is rejected or sealed, and none takes a value
//! past its rule.

use super::support::{CANARY, Relay, Reply, Upstream, send, send_until_closed};

/// Routes that seal, each beside one that passes. No engine answers, so a sealed request fails with
/// 503.
const ROUTES: &str = "[[route]]\nname = 'fields'\nlisten = 'public'\npath = '/fields'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.ssn', '$.token']\nquery = ['ssn']\nheaders = ['x-card']\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.card']\n\
    types = ['application/x-www-form-urlencoded', 'multipart/form-data']\n\
    [[route]]\nname = 'orders'\nlisten = 'public'\npath = '/v1/orders'\nupstream = 'u'\napp = 'a'\n\
    accepted_names = ['_id']\naccepted_query = ['id']\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.ssn', '$.id']\n\
    [[route]]\nname = 'charge'\nlisten = 'public'\npath = '/v1/orders:charge'\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.ssn']\n\
    [[route]]\nname = 'posted'\nlisten = 'public'\npath = '/method'\nmethods = ['POST']\nupstream = 'u'\napp = 'a'\n\
    [[route.request]]\naction = 'encrypt'\nselect = ['$.ssn']\n\
    [[route]]\nname = 'other-methods'\nlisten = 'public'\npath = '/method'\nupstream = 'u'\npass = true\n\
    [[route]]\nname = 'rest'\nlisten = 'public'\npath = '/v1/{*rest}'\nupstream = 'u'\npass = true\n";

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// A request with a type, further header lines, and a body.
fn request(line: &str, headers: &[&str], content_type: &str, body: &str) -> Vec<u8> {
    let mut head = format!("{line} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n");
    for header in headers {
        head += &format!("{header}\r\n");
    }
    if !content_type.is_empty() {
        head += &format!(
            "Content-Type: {content_type}\r\nContent-Length: {}\r\n",
            body.len()
        );
    }
    (head + "\r\n" + body).into_bytes()
}

/// The begin of a body of one part with a head of this kind, and its type.
fn multipart(parameters: &str, disposition: &str) -> (String, String) {
    let body = format!(
        "--waf\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{CANARY}\r\n--waf--\r\n"
    );
    (format!("multipart/form-data{parameters}"), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn alternative_spellings_are_rejected_or_sealed() {
    let mut requests = Vec::new();
    for key in [
        "\u{17f}sn",
        "\\u017fsn",
        "to\u{212a}en",
        "to\\u212aen",
        "ssn\\u0000",
        "s\\ud800sn",
        "SSN",
        "ssn",
    ] {
        requests.push(request(
            "POST /fields",
            &[],
            JSON,
            &format!("{{\"{key}\":\"{CANARY}\"}}"),
        ));
    }
    for query in [
        "ssn=",
        "token=",
        "card=",
        "card[]=",
        "a=1;ssn=",
        "SSN=",
        "ssn[]=",
        "%20ssn=",
        "+ssn=",
        "ssn%00x=",
        "?ssn=",
        "%73%FFsn=",
        "%u0073sn=",
    ] {
        requests.push(request(
            &format!("GET /fields?{query}{CANARY}"),
            &[],
            "",
            "",
        ));
    }
    for name in ["X-Card", "X_Card", "x.card", "XCard", "X*Card"] {
        requests.push(request(
            "GET /fields",
            &[&format!("{name}: {CANARY}")],
            "",
            "",
        ));
    }
    for key in ["card", "Card", "ssn.x", "items"] {
        let value = if key == "items" { "&card=" } else { "" };
        requests.push(request(
            "POST /fields",
            &[],
            JSON,
            &format!("{{\"{key}\":\"{value}{CANARY}\"}}"),
        ));
    }
    for name in [
        "ssn=",
        "token=",
        "card=",
        "+card=",
        "%20card=",
        "card%00x=",
        "Card=",
        "card[]=",
        "card.x=",
        "x=1;card=",
    ] {
        requests.push(request(
            "POST /fields",
            &[],
            FORM,
            &format!("{name}{CANARY}"),
        ));
    }
    requests.push(request(
        "POST /fields",
        &[],
        FORM,
        &format!("{{\"card\":\"{CANARY}\"}}"),
    ));
    requests.push(request(
        "POST /fields",
        &[],
        JSON,
        &format!("\"&card={CANARY}&\""),
    ));
    requests.push(request(
        "POST /fields",
        &[],
        JSON,
        &format!("{{\"a\":\"&Card={CANARY}&\"}}"),
    ));
    for parameters in [
        "; boundary=waf",
        "; xboundary=php; boundary=waf",
        "; boundary=waf,php",
        "; boundary=\"=?utf-8?Q?waf?=\"",
        "; boundary='waf'",
    ] {
        let (content_type, body) = multipart(parameters, "name=\"card\"");
        requests.push(request("POST /fields", &[], &content_type, &body));
    }
    for name in [
        "'card'",
        "\" card\"",
        "card,",
        "card\u{b}",
        "\"=?utf-8?B?Y2FyZA==?=\"",
        "\"Card\"",
        "\"card[]\"",
    ] {
        let (content_type, body) = multipart("; boundary=waf", &format!("name={name}"));
        requests.push(request("POST /fields", &[], &content_type, &body));
    }
    let secret = format!("{{\"ssn\":\"{CANARY}\"}}");
    for line in [
        "POST /v1/orders:charge",
        "POST /v1/orders%3Acharge",
        "POST /v1/orders%3acharge",
        "POST /v1/Orders:charge",
        "POST /v1/orders:charge/",
        "POST http://a.example/v1/orders%3Acharge",
        "POST /v1/orders.json",
        "POST /v1/orders/",
        "POST /v1/orders/index.php",
        "POST /v1/index.php/orders",
        "POST /v1/orders?ssn=1",
        "POST /method",
        "post /method",
        "Post /method",
        "GET /method?_method=POST",
    ] {
        requests.push(request(line, &[], JSON, &secret));
    }
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    let mut failed = Vec::new();
    for raw in requests {
        let text = String::from_utf8_lossy(&raw).into_owned();
        let bytes = send_until_closed(relay.address(), &raw).await;
        let status = Reply::of(&bytes).map_or(0, |reply| reply.status);
        if ![400, 415, 422, 503].contains(&status) || !upstream.take().is_empty() {
            failed.push(format!("{status}: {text}"));
        }
    }
    assert!(
        failed.is_empty(),
        "{} reached the upstream: {failed:#?}",
        failed.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_override_method_or_path_do_not_reach_the_upstream() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    for header in [
        "X-HTTP-Method-Override: POST",
        "x_http_method: POST",
        "X-Original-URL: /fields",
        "X-Rewrite-URL: /x",
    ] {
        for line in ["GET /method", "POST /v1/x"] {
            let reply = send(
                relay.address(),
                request(line, &[header, "X-Other: 1"], JSON, "{}"),
            )
            .await;
            let seen = upstream.take_text();
            assert!(
                reply.status == 200 && seen.contains("x-other: 1"),
                "{header} {seen}"
            );
            assert!(
                !seen
                    .to_ascii_lowercase()
                    .contains(header.split(':').next().unwrap()),
                "{header}: {seen}"
            );
            assert!(
                !seen.contains("override") && !seen.contains("url"),
                "{header}: {seen}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_requests_pass() {
    let upstream = Upstream::start().await;
    let relay = Relay::before(&upstream, "", "", ROUTES).await;
    let browser = "--waf\r\nContent-Disposition: form-data; name=\"größe\"\r\n\r\n1\r\n--waf\r\nContent-Disposition: \
        form-data; name=\"file\"; filename=\"C:\\x; 'y' %22z%22 \u{e4}.txt\"\r\nContent-Type: text/plain\r\n\r\na&card\r\n--waf--\r\n";
    for (line, content_type, body) in [
        (
            "POST /fields?a=%20&b[]=1&c.d=2&session=3",
            JSON,
            r#"{"größe":1,"名前":"a&b=c","Kartenſ":2}"#,
        ),
        (
            "POST /fields",
            FORM,
            "name=x+y&a%5Bb%5D=%C3%A4&discard=1&empty=&flag",
        ),
        ("POST /fields", "multipart/form-data; boundary=waf", browser),
        (
            "POST /fields",
            "multipart/form-data; charset=UTF-8; boundary=\"waf\"",
            browser,
        ),
        ("GET /v1/a%20b/%C3%A4/c@d/e:f?x=%2f;y", "", ""),
        ("GET /v1/jane%40a.example", "", ""),
        (
            "POST /v1/orders?id=7&user[ssn]=x",
            JSON,
            r#"{"_id":"1","user":{"id":2},"Ssns":3}"#,
        ),
        ("GET /v1/assets/app.js", "", ""),
        ("M-SEARCH /v1/x", "", ""),
        ("GET /method?method=POST", "", ""),
    ] {
        let reply = send(
            relay.address(),
            request(line, &["X-Cards: 1", "X_Other: 2"], content_type, body),
        )
        .await;
        let seen = upstream.take_text();
        assert!(
            reply.status == 200 && seen.starts_with(line) && seen.ends_with(body),
            "{reply:?}\n{seen}"
        );
    }
}
