//! Bearer tokens on the HTTP listener.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sealwire_dev_ca::{Authority, TokenIssuer, Usage, Validity};
use sealwire_service::bearer::{Algorithm, IssuerOptions, JwksUrl, KeySource};
use sealwire_settings::{Config, Issuers};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::e2e::access::{FULL, enforcing, everything_on};
use crate::e2e::audit::records;
use crate::e2e::certificates::revoke;
use crate::e2e::harness::{Harness, leaf, run, until};
use crate::e2e::http::{Curl, Reply, with_http};
use crate::e2e::raw::tls_connect;

const ENCRYPT: &str = "/v1/apps/shop/encrypt";
const DOCUMENT: &str = "{\"a\":\"canary\"}";

/// An issuer of tokens with its key set in a folder.
pub(crate) struct Issuer {
    folder: tempfile::TempDir,
    key: TokenIssuer,
}

impl Issuer {
    pub(crate) fn new() -> Self {
        let issuer = Self {
            folder: tempfile::tempdir().unwrap(),
            key: TokenIssuer::create().unwrap(),
        };
        issuer.publish(&issuer.key);
        issuer
    }

    fn publish(&self, key: &TokenIssuer) {
        std::fs::write(self.folder.path().join("jwks.json"), key.jwks()).unwrap();
    }

    /// Adds the issuer to a configuration.
    pub(crate) fn configure(&self, config: &mut Config) {
        with_http(config);
        config.issuers = Issuers(vec![IssuerOptions {
            name: "ci".into(),
            issuer: "https://ci.example".into(),
            audiences: vec!["sealwire".into()],
            algorithms: vec![Algorithm::Es256],
            principal_claim: "sub".into(),
            skew_s: 60,
            keys: KeySource::File(self.folder.path().join("jwks.json")),
        }]);
    }

    /// A token with these claims instead of the usual ones.
    fn sign(&self, members: &Value) -> String {
        let mut claims = json!({
            "iss": "https://ci.example",
            "aud": "sealwire",
            "exp": 9_000_000_000_u64,
            "sub": "relay",
        });
        let members = members.as_object().unwrap();
        claims.as_object_mut().unwrap().extend(members.clone());
        self.key.sign(&claims).unwrap()
    }

    pub(crate) fn token(&self, subject: &str) -> String {
        self.sign(&json!({"sub": subject}))
    }
}

fn authorization(token: &str) -> String {
    format!("authorization: Bearer {token}")
}

async fn start(issuer: &Issuer) -> Harness {
    Harness::with(|config| issuer.configure(config)).await
}

fn with_audit(config: &mut Config) {
    config.audit.folder = Some(config.state.folder.parent().unwrap().join("audit"));
}

/// Waits for this number of records of `encrypt`. Returns principal, kind and outcome of each.
async fn encrypt_records(folder: &Path, count: usize) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    until("all records are written", async || {
        found = records(folder)
            .into_iter()
            .filter(|record| record.method.as_deref() == Some("encrypt"))
            .map(|record| {
                (
                    record.principal.unwrap(),
                    record.kind.unwrap(),
                    record.outcome.unwrap(),
                )
            })
            .collect();
        found.len() >= count
    })
    .await;
    found
}

#[test]
fn bearer_tokens_name_principals_with_roles_and_records() {
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::prepared(
            |config| {
                enforcing(config);
                issuer.configure(config);
                with_audit(config);
            },
            async |control| {
                everything_on(&**control.store(), FULL, "*").await;
                put_token_role(&**control.store()).await;
            },
        )
        .await;
        let curl = Curl::without_certificate(&harness);
        // `full` is a principal with a certificate, which a token with that name is not.
        for (subject, status) in [("web", 200), (FULL, 403), ("cn:full", 403)] {
            let header = authorization(&issuer.token(subject));
            for version in ["--http1.1", "--http2"] {
                let reply = curl
                    .post(ENCRYPT, DOCUMENT, &["-H", &header, version])
                    .await;
                assert_eq!(reply.status, status, "{subject} {}", reply.text());
            }
            let health = curl.send("/v1/health", &["-H", &header]).await;
            assert_eq!(health.status, 200);
        }
        let folder = harness.config.audit.folder.clone().unwrap();
        let found = encrypt_records(&folder, 4).await;
        let ok = ("ci:web".to_owned(), "jwt".to_owned(), "ok".to_owned());
        assert_eq!(found[..2], [ok.clone(), ok]);
        assert!(found[2..].iter().all(|(_, kind, outcome)| {
            (kind.as_str(), outcome.as_str()) == ("jwt", "forbidden")
        }));
        let verified = harness
            .metric("sealwire_bearer_tokens_total{outcome=\"verified\"}")
            .await;
        assert_eq!(verified, 3.0);
    });
}

/// Gives the principal `jwt:ci:web` a role.
async fn put_token_role(store: &dyn sealwire_store::ControlStore) {
    use crate::e2e::access::put;
    use sealwire_access::{Binding, Principal, RoleName, principal_key};
    let principal = Principal::from_text("jwt:ci:web").unwrap();
    let binding = Binding {
        principal: principal.clone(),
        roles: vec![RoleName::new(FULL).unwrap()],
    };
    put(store, &principal_key(&principal), binding.to_record()).await;
}

#[test]
fn requests_without_a_valid_token_get_401_and_the_reason() {
    run(async {
        let issuer = Issuer::new();
        let harness = start(&issuer).await;
        let curl = Curl::without_certificate(&harness);
        let valid = issuer.token("canary-subject");
        let stranger = TokenIssuer::create().unwrap();
        let forged = stranger
            .sign(&json!({"iss": "https://ci.example", "aud": "sealwire", "exp": 9_000_000_000_u64, "sub": "canary"}))
            .unwrap();
        let bearer = |token: &str| vec![authorization(token)];
        for (case, headers, says) in [
            ("no token", vec![], "send a token"),
            (
                "Basic",
                vec!["authorization: Basic YTpi".into()],
                "must be Bearer",
            ),
            (
                "no scheme",
                vec![format!("authorization: {valid}")],
                "must be Bearer",
            ),
            (
                "empty",
                vec!["authorization: Bearer ".into()],
                "must be Bearer",
            ),
            (
                "two spaces",
                vec![format!("authorization: Bearer  {valid}")],
                "must be Bearer",
            ),
            (
                "two headers",
                vec![authorization(&valid), authorization(&valid)],
                "one header Authorization",
            ),
            (
                "two tokens",
                bearer(&format!("{valid}, Bearer {valid}")),
                "must be Bearer",
            ),
            ("not a JWT", bearer("abc"), "three parts"),
            ("cut", bearer(&valid[..valid.len() - 4]), "signature"),
            ("forged", bearer(&forged), "no key with the kid"),
            (
                "expired",
                bearer(&issuer.sign(&json!({"exp": 1_000_000_000}))),
                "expired",
            ),
            (
                "other audience",
                bearer(&issuer.sign(&json!({"aud": "other"}))),
                "aud of the token must contain one of: sealwire",
            ),
            (
                "other issuer",
                bearer(&issuer.sign(&json!({"iss": "https://evil.example"}))),
                "none of the accepted issuers: https://ci.example",
            ),
            (
                "no subject",
                bearer(&issuer.sign(&json!({"sub": ""}))),
                "claim sub",
            ),
        ] {
            for version in ["--http1.1", "--http2"] {
                for path in [ENCRYPT, "/v1/apps/gone/encrypt", "/nothing"] {
                    let mut arguments = vec![version];
                    for header in &headers {
                        arguments.extend(["-H", header]);
                    }
                    let reply = curl.post(path, DOCUMENT, &arguments).await;
                    assert_401(case, &reply, says, !headers.is_empty());
                }
            }
        }
        // The scheme has any case.
        let header = format!("authorization: bEARER {valid}");
        let reply = curl.post(ENCRYPT, DOCUMENT, &["-H", &header]).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        // A web page gets no further than others.
        let header = authorization(&valid);
        let page = ["-H", "origin: https://localhost", "-H", &header];
        assert_eq!(curl.post(ENCRYPT, DOCUMENT, &page).await.status, 403);
    });
}

fn assert_401(case: &str, reply: &Reply, says: &str, has_error: bool) {
    assert_eq!(reply.status, 401, "{case}: {}", reply.text());
    let problem = reply.json();
    assert_eq!(problem["code"], "unauthenticated", "{case}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains(says), "{case}: {detail}");
    let challenge = reply.header("www-authenticate").unwrap();
    let expected = if has_error {
        format!(
            "Bearer realm=\"sealwire\", error=\"invalid_token\", error_description=\"{detail}\""
        )
    } else {
        "Bearer realm=\"sealwire\"".to_owned()
    };
    assert_eq!(challenge, expected, "{case}");
    let all = format!("{reply:?} {detail}");
    assert!(
        !all.contains("canary") && !all.contains("eyJ"),
        "{case}: {all}"
    );
}

#[test]
fn certificates_stay_the_identity_of_their_connections() {
    run(async {
        let issuer = Issuer::new();
        let mut harness = Harness::with(|config| {
            issuer.configure(config);
            with_audit(config);
        })
        .await;
        let header = authorization(&issuer.token("web"));
        let curl = Curl::new(&harness);
        for version in ["--http1.1", "--http2"] {
            let reply = curl.post(ENCRYPT, DOCUMENT, &[version]).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            for other in [&*header, "authorization: Basic YTpi", "authorization;"] {
                let reply = curl.post(ENCRYPT, DOCUMENT, &["-H", other, version]).await;
                assert_eq!(reply.status, 400, "{other}: {}", reply.text());
                let detail = reply.json()["detail"].as_str().unwrap().to_owned();
                assert!(detail.contains("names the principal"), "{detail}");
            }
        }
        let folder = harness.config.audit.folder.clone().unwrap();
        let found = encrypt_records(&folder, 2).await;
        assert!(
            found
                .iter()
                .all(|(name, kind, _)| (&**name, &**kind) == ("relay", "dns"))
        );

        // A certificate that is not valid is no reason to do without one.
        let stranger = Authority::create("e2e", Validity::days(1)).unwrap();
        let stranger = stranger.issue(&leaf(Usage::Client, "relay")).unwrap();
        let revoked = harness.another_caller("revoked");
        revoke(&mut harness, &[&revoked]).await;
        let expired = harness.expired_caller();
        for (case, issued) in [
            ("stranger", stranger),
            ("revoked", revoked),
            ("expired", expired),
        ] {
            let request = format!(
                "GET /v1/health HTTP/1.1\r\nhost: x\r\n{header}\r\nconnection: close\r\n\r\n"
            );
            let response = exchange(&harness, Some(&issued), &request).await;
            assert_eq!(response, "", "{case}");
        }

        // The data listener takes no client without a certificate.
        let ca = harness.authority.cert_pem();
        let mut stream = tls_connect(harness.address, ca, None).await.unwrap();
        let _ = stream.write_all(b"\x94\x00\x00\xa6health\x90").await;
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest).await;
        assert!(ended.is_err() && rest.is_empty(), "{ended:?} {rest:?}");
    });
}

/// Sends bytes on a new connection, and returns all that comes back.
async fn exchange(
    harness: &Harness,
    identity: Option<&sealwire_dev_ca::Issued>,
    request: &str,
) -> String {
    let ca = harness.authority.cert_pem();
    let mut response = Vec::new();
    // With TLS 1.3 a client learns of its rejected certificate only when it reads.
    if let Ok(mut stream) = tls_connect(harness.http_address(), ca, identity).await
        && stream.write_all(request.as_bytes()).await.is_ok()
    {
        let _ = stream.read_to_end(&mut response).await;
    }
    String::from_utf8(response).unwrap()
}

async fn connect(harness: &Harness) -> TlsStream<TcpStream> {
    tls_connect(harness.http_address(), harness.authority.cert_pem(), None)
        .await
        .unwrap()
}

/// Sends a request for `encrypt`, and returns the status.
async fn post(stream: &mut TlsStream<TcpStream>, token: &str) -> u16 {
    let request = format!(
        "POST {ENCRYPT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n{DOCUMENT}",
        DOCUMENT.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let end = loop {
        assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0);
        let end = response.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            break end + 4;
        }
    };
    let head = String::from_utf8(response[..end].to_vec()).unwrap();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .unwrap()
        .parse()
        .unwrap();
    while response.len() < end + length {
        assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0);
    }
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn requests_of_one_connection_belong_to_their_own_principals() {
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::with(|config| {
            issuer.configure(config);
            with_audit(config);
        })
        .await;
        let mut stream = connect(&harness).await;
        let mut expected = Vec::new();
        // More principals than sessions on a connection, each twice and in another order.
        for round in 0..2 {
            for number in 0..40 {
                let number = (number * (1 + 2 * round)) % 40;
                let subject = format!("client-{number}");
                assert_eq!(post(&mut stream, &issuer.token(&subject)).await, 200);
                expected.push(format!("ci:{subject}"));
            }
            // A rejected token between them changes nothing.
            assert_eq!(post(&mut stream, "abc").await, 401);
        }
        let rejected = "sealwire_http_rejections_total{status=\"401\"}";
        assert_eq!(harness.metric(rejected).await, 2.0);
        let folder = harness.config.audit.folder.clone().unwrap();
        let found = encrypt_records(&folder, expected.len()).await;
        let names: Vec<_> = found.into_iter().map(|(name, _, _)| name).collect();
        assert_eq!(names, expected);
    });
}

#[test]
fn concurrent_requests_of_one_connection_belong_to_their_own_principals() {
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::with(|config| {
            issuer.configure(config);
            with_audit(config);
        })
        .await;
        let curl = Curl::without_certificate(&harness);
        let base = format!("https://localhost:{}", harness.http_address().port());
        let mut arguments: Vec<String> = vec!["-Z".into(), "--http2".into()];
        let mut expected = Vec::new();
        for number in 0..12 {
            let subject = format!("client-{number}");
            let header = authorization(&issuer.token(&subject));
            arguments.extend(
                [
                    "-sS",
                    "--cacert",
                    "ca.pem",
                    "-o",
                    "/dev/null",
                    "--data-binary",
                    DOCUMENT,
                ]
                .map(String::from),
            );
            arguments.extend(["-H".into(), "content-type: application/json".into()]);
            arguments.extend(["-H".into(), header]);
            expected.push(format!("ci:{subject}"));
            if number < 11 {
                arguments.extend([format!("{base}{ENCRYPT}"), "--next".into()]);
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = curl.command(ENCRYPT, &arguments);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let folder = harness.config.audit.folder.clone().unwrap();
        let found = encrypt_records(&folder, expected.len()).await;
        let mut names: Vec<_> = found.into_iter().map(|(name, _, _)| name).collect();
        names.sort();
        expected.sort();
        assert_eq!(names, expected);
    });
}

#[test]
fn rejected_tokens_of_an_address_are_limited_before_their_check() {
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::with(|config| {
            issuer.configure(config);
            config.limits.rejected_per_s_max = 1;
            config.limits.handshake_ms_max = 300_000;
        })
        .await;
        let known = issuer.token("known");
        let mut stream = connect(&harness).await;
        assert_eq!(post(&mut stream, &known).await, 200);
        let wrong = issuer.sign(&json!({"aud": "other"}));
        // The requests come at once, however long the handshakes take.
        let mut streams = Vec::new();
        for _ in 0..10 {
            streams.push(connect(&harness).await);
        }
        let mut flood = tokio::task::JoinSet::new();
        for mut stream in streams {
            let wrong = wrong.clone();
            flood.spawn(async move { post(&mut stream, &wrong).await });
        }
        let statuses = flood.join_all().await;
        // One token per second is checked, and the others are not.
        assert!(
            statuses.contains(&401) && statuses.contains(&429),
            "{statuses:?}"
        );
        // A token that was verified before needs no check.
        assert_eq!(post(&mut stream, &known).await, 200);
        let limited = "sealwire_bearer_tokens_total{outcome=\"limited\"}";
        assert!(harness.metric(limited).await >= 1.0);
    });
}

#[test]
fn tokens_of_an_issuer_without_keys_are_limited() {
    run(async {
        let issuer = Issuer::new();
        let ca = issuer.folder.path().join("ca.pem");
        let authority = Authority::create("issuer", Validity::days(1)).unwrap();
        std::fs::write(&ca, authority.cert_pem()).unwrap();
        let harness = Harness::with(|config| {
            issuer.configure(config);
            config.limits.rejected_per_s_max = 1;
            config.issuers.0[0].keys = KeySource::Url {
                // Nothing listens there.
                url: JwksUrl::parse("https://127.0.0.1:1/keys").unwrap(),
                ca: ca.clone(),
                refresh: Duration::from_secs(3_600),
                stale: Duration::from_secs(3_600),
            };
        })
        .await;
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let mut stream = connect(&harness).await;
            let token = issuer.token("web");
            requests.spawn(async move { post(&mut stream, &token).await });
        }
        let statuses = requests.join_all().await;
        assert!(
            statuses.contains(&503) && statuses.contains(&429),
            "{statuses:?}"
        );
    });
}

#[test]
fn connections_without_a_valid_token_end() {
    const TIME_MAX: Duration = Duration::from_secs(10);
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::with(|config| {
            issuer.configure(config);
            config.limits.handshake_ms_max = 10_000;
        })
        .await;
        let mut stream = connect(&harness).await;
        let token = issuer.token("web");
        assert_eq!(post(&mut stream, &token).await, 200);

        let requests = [
            "",
            "GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n",
            "POST /v1/apps/shop/encrypt HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n{",
            "GET /v1/hea",
        ];
        let started = Instant::now();
        let harness = &harness;
        let exchanges = requests.map(|request| async move {
            let response = exchange(harness, None, request).await;
            (request, response, started.elapsed())
        });
        for (request, response, passed) in join_all(exchanges).await {
            assert!(
                response.is_empty() || response.starts_with("HTTP/1.1 401 "),
                "{request}: {response}"
            );
            // An incomplete head has the whole time.
            if !request.contains("\r\n\r\n") {
                assert!(passed >= TIME_MAX, "{request}: {passed:?}");
            }
        }

        // A connection with a valid token stays open for longer.
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 1.0)
            .await;
        assert_eq!(post(&mut stream, &token).await, 200);
    });
}

#[test]
fn removed_key_of_an_issuer_ends_its_tokens() {
    run(async {
        let issuer = Issuer::new();
        let harness = start(&issuer).await;
        let mut stream = connect(&harness).await;
        let token = issuer.token("web");
        assert_eq!(post(&mut stream, &token).await, 200);
        issuer.publish(&TokenIssuer::create().unwrap());
        harness.reload().await;
        assert_eq!(post(&mut stream, &token).await, 401);
        issuer.publish(&issuer.key);
        harness.reload().await;
        assert_eq!(post(&mut stream, &token).await, 200);

        // A broken certificate file does not keep a removed key in use.
        let certificate = std::fs::read(&harness.config.tls.certificate).unwrap();
        std::fs::write(&harness.config.tls.certificate, "").unwrap();
        issuer.publish(&TokenIssuer::create().unwrap());
        let reloaded = harness.try_reload().await.unwrap_err();
        assert!(!reloaded.contains("issuer.ci: "), "{reloaded}");
        assert_eq!(post(&mut stream, &token).await, 401);
        std::fs::write(&harness.config.tls.certificate, certificate).unwrap();
        issuer.publish(&issuer.key);
        harness.reload().await;
        assert_eq!(post(&mut stream, &token).await, 200);

        // A file that cannot be read changes nothing.
        std::fs::remove_file(issuer.folder.path().join("jwks.json")).unwrap();
        let reloaded = harness.try_reload().await.unwrap_err();
        assert!(reloaded.contains("issuer.ci: "), "{reloaded}");
        assert_eq!(post(&mut stream, &token).await, 200);
    });
}

#[test]
fn changed_key_set_is_noticed_by_its_content() {
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::with(|config| {
            issuer.configure(config);
            config.tls.watch_s = 1;
        })
        .await;
        let mut stream = connect(&harness).await;
        let token = issuer.token("web");
        assert_eq!(post(&mut stream, &token).await, 200);
        issuer.publish(&TokenIssuer::create().unwrap());
        until("the removed key is noticed", async || {
            post(&mut stream, &token).await != 200
        })
        .await;
        issuer.publish(&issuer.key);
        until("the key is there again", async || {
            post(&mut stream, &token).await == 200
        })
        .await;
    });
}

#[test]
fn connections_with_tokens_end_during_a_drain() {
    run(async {
        let issuer = Issuer::new();
        let mut harness = start(&issuer).await;
        let mut stream = connect(&harness).await;
        assert_eq!(post(&mut stream, &issuer.token("web")).await, 200);
        let mut unused = connect(&harness).await;
        let stopping = tokio::spawn(harness.take_server().shutdown());
        for stream in [&mut stream, &mut unused] {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            assert!(rest.is_empty(), "{rest:?}");
        }
        stopping.await.unwrap();
    });
}

#[test]
fn missing_key_set_stops_the_start() {
    run(async {
        let issuer = Issuer::new();
        let mut harness = start(&issuer).await;
        harness.take_server().shutdown().await;
        std::fs::write(issuer.folder.path().join("jwks.json"), "{}").unwrap();
        let error = sealwire_server::server::Server::start(&harness.config)
            .await
            .unwrap_err();
        assert!(error.to_string().starts_with("issuer.ci: "), "{error}");
    });
}

#[test]
fn principals_of_tokens_have_limits_of_their_own() {
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::with(|config| {
            issuer.configure(config);
            config.limits.connections_per_principal_max = 2;
        })
        .await;
        let token = issuer.token("web");
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut stream = connect(&harness).await;
            assert_eq!(post(&mut stream, &token).await, 200);
            streams.push(stream);
        }
        // A third connection of the address is closed after the handshake.
        let request = "GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n";
        assert_eq!(exchange(&harness, None, request).await, "");
        let refused = "sealwire_connections_total{outcome=\"origin_refused\"}";
        assert_eq!(harness.metric(refused).await, 1.0);
        // Certificates have their own limit.
        let reply = Curl::new(&harness).post(ENCRYPT, DOCUMENT, &[]).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        drop(streams);
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 0.0)
            .await;
        let mut stream = connect(&harness).await;
        assert_eq!(post(&mut stream, &token).await, 200);
    });
}

/// The control listener takes certificates only.
#[test]
fn control_listener_takes_no_tokens() {
    run(async {
        let issuer = Issuer::new();
        let harness = Harness::with(|config| {
            enforcing(config);
            issuer.configure(config);
        })
        .await;
        let control: SocketAddr = harness.control_address();
        let mut stream = tls_connect(control, harness.authority.cert_pem(), None)
            .await
            .unwrap();
        let header = authorization(&issuer.token("web"));
        let request = format!("GET / HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n");
        let _ = stream.write_all(request.as_bytes()).await;
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest).await;
        assert!(ended.is_err() && rest.is_empty(), "{ended:?} {rest:?}");
    });
}
