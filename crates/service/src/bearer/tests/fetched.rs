//! Keys that are fetched from a URL.

use std::sync::Mutex as StdMutex;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sealwire_dev_ca::{Authority, Leaf, Name, Usage, Validity};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A server of keys whose response tests set.
struct KeyServer {
    folder: tempfile::TempDir,
    port: u16,
    response: Arc<StdMutex<(u16, Vec<u8>)>>,
    served: Arc<AtomicU64>,
}

impl KeyServer {
    async fn start(response: (u16, String)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("keys", Validity::days(10)).unwrap();
        let issued = authority
            .issue(&Leaf {
                common_name: "keys".into(),
                names: vec![Name::Dns("localhost".into())],
                usage: Usage::Server,
                validity: Validity::days(1),
            })
            .unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.cert_pem()).unwrap();
        let certificate = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.expose().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(crate::tls_files::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            folder,
            port: listener.local_addr().unwrap().port(),
            response: Arc::new(StdMutex::new((response.0, response.1.into_bytes()))),
            served: Arc::default(),
        };

        let response = Arc::clone(&server.response);
        let served = Arc::clone(&server.served);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                // A client that does not trust the certificate ends the handshake.
                let Ok(mut stream) = acceptor.accept(socket).await else {
                    continue;
                };
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
                }
                let request = String::from_utf8(request).unwrap();
                assert!(
                    request.starts_with("GET /keys?a=b HTTP/1.1\r\n"),
                    "{request}"
                );
                let (status, body) = response.lock().unwrap().clone();
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nlocation: /keys\r\n\r\n",
                    body.len()
                );
                served.fetch_add(1, Ordering::Relaxed);
                // The client can close the connection before it has read everything.
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
                let _ = stream.shutdown().await;
            }
        });
        server
    }

    fn set(&self, status: u16, body: impl Into<Vec<u8>>) {
        *self.response.lock().unwrap() = (status, body.into());
    }

    /// A verifier that fetches its keys here.
    fn verifier(&self, clock: &TestClock) -> Arc<TokenVerifier> {
        let url = format!("https://localhost:{}/keys?a=b", self.port);
        let keys = KeySource::Url {
            url: JwksUrl::parse(&url).unwrap(),
            ca: self.folder.path().join("ca.pem"),
            refresh: Duration::from_secs(300),
            stale: Duration::from_secs(3_600),
        };
        TokenVerifier::open(&[options("main", MAIN, keys)], clock.clock()).unwrap()
    }

    /// Waits until the server has sent this number of responses and the verifier has read the last.
    async fn wait_for(&self, responses: u64, loads: &watch::Receiver<u64>) {
        let mut loads = loads.clone();
        loads.wait_for(|loads| *loads >= responses).await.unwrap();
    }
}

fn jwks(key: &EcdsaKeyPair, kid: &str) -> String {
    json!({"keys": [ec_jwk(key, "P-256", Some(kid))]}).to_string()
}

/// Runs the verifier. Returns the number of loads that have ended.
fn run(verifier: &Arc<TokenVerifier>) -> watch::Receiver<u64> {
    let (sender, loads) = watch::channel(0);
    let verifier = Arc::clone(verifier);
    tokio::spawn(verifier.run(None, move |_| sender.send_modify(|loads| *loads += 1)));
    loads
}

/// Moves the time. The clock of tests stands still only here, because sockets need real time.
async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn fetched_keys_are_refreshed_and_become_stale() {
    let (first, second) = (p256(), p256());
    let server = KeyServer::start((500, "{}".into())).await;
    let clock = TestClock::new();
    let verifier = server.verifier(&clock);
    let of_first = token_with(r#"{"alg":"ES256","kid":"first"}"#, &first);
    let of_second = token_with(r#"{"alg":"ES256","kid":"second"}"#, &second);

    // Before the first fetch, and after one that failed.
    for _ in 0..2 {
        let error = verifier.verify(&of_first).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
    let loads = run(&verifier);
    server.wait_for(1, &loads).await;
    assert!(
        verifier
            .verify(&of_first)
            .await
            .unwrap_err()
            .is_unavailable()
    );
    assert_eq!(verifier.failing(), 1);

    // The next attempt follows after 30 s.
    server.set(200, jwks(&first, "first"));
    advance(Duration::from_secs(31)).await;
    server.wait_for(2, &loads).await;
    assert_eq!(verifier.failing(), 0);
    verifier.verify(&of_first).await.unwrap();

    // An unknown key is not looked for within 30 s, and then it is.
    server.set(200, jwks(&second, "second"));
    let error = verifier.verify(&of_second).await.unwrap_err();
    assert_eq!(error.kind(), "unknown_key");
    assert_eq!(server.served.load(Ordering::Relaxed), 2);
    advance(Duration::from_secs(31)).await;
    verifier.verify(&of_second).await.unwrap();
    assert_eq!(server.served.load(Ordering::Relaxed), 3);
    let error = verifier.verify(&of_first).await.unwrap_err();
    assert_eq!(error.kind(), "unknown_key", "its key was removed");
    assert_eq!(verifier.cached(&of_first), None);

    // A forged token with a random key causes no second fetch.
    for kid in 0..100 {
        let header = format!(r#"{{"alg":"ES256","kid":"{kid}"}}"#);
        verifier
            .verify(&token_with(&header, &first))
            .await
            .unwrap_err();
    }
    assert_eq!(server.served.load(Ordering::Relaxed), 3);

    // Keys stay while the server fails, and not for ever.
    server.set(503, "{}");
    advance(Duration::from_secs(301)).await;
    server.wait_for(4, &loads).await;
    assert_eq!(verifier.failing(), 1);
    verifier.verify(&of_second).await.unwrap();
    advance(Duration::from_secs(3_600)).await;
    assert_eq!(verifier.cached(&of_second), None);
    assert!(
        verifier
            .verify(&of_second)
            .await
            .unwrap_err()
            .is_unavailable()
    );
}

#[tokio::test]
async fn unusable_responses_leave_the_keys() {
    let key = p256();
    let long = format!("{{\"keys\":[]{}}}", " ".repeat(JWKS_BYTES_MAX));
    let server = KeyServer::start((200, jwks(&key, "es"))).await;
    let clock = TestClock::new();
    let verifier = server.verifier(&clock);
    let loads = run(&verifier);
    server.wait_for(1, &loads).await;
    let token = token_with(HEADER, &key);
    verifier.verify(&token).await.unwrap();
    for (at, (status, body)) in [
        (200, "<html></html>".to_owned()),
        (200, long),
        (302, jwks(&p256(), "es")),
        (201, jwks(&p256(), "es")),
        (404, String::new()),
        (200, String::new()),
    ]
    .into_iter()
    .enumerate()
    {
        server.set(status, body);
        advance(Duration::from_secs(301)).await;
        server.wait_for(2 + at as u64, &loads).await;
        assert_eq!(verifier.failing(), 1, "{at}");
        verifier.verify(&token).await.unwrap();
    }
}

#[tokio::test]
async fn untrusted_server_gives_no_keys() {
    let key = p256();
    let server = KeyServer::start((200, jwks(&key, "es"))).await;
    let other = Authority::create("other", Validity::days(1)).unwrap();
    std::fs::write(server.folder.path().join("ca.pem"), other.cert_pem()).unwrap();
    let clock = TestClock::new();
    let verifier = server.verifier(&clock);
    let loads = run(&verifier);
    server.wait_for(1, &loads).await;
    let error = verifier
        .verify(&token_with(HEADER, &key))
        .await
        .unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(server.served.load(Ordering::Relaxed), 0);

    std::fs::remove_file(server.folder.path().join("ca.pem")).unwrap();
    let url = JwksUrl::parse("https://localhost/keys").unwrap();
    let keys = KeySource::Url {
        url,
        ca: server.folder.path().join("ca.pem"),
        refresh: Duration::from_secs(300),
        stale: Duration::from_secs(3_600),
    };
    let opened = TokenVerifier::open(&[options("main", MAIN, keys)], clock.clock());
    assert!(opened.unwrap_err().to_string().contains("ca.pem"));
}

#[test]
fn urls_of_keys_are_https_without_credentials() {
    for (text, shown) in [
        (
            "https://issuer.example/keys",
            Some("https://issuer.example/keys"),
        ),
        ("https://issuer.example", Some("https://issuer.example/")),
        ("https://[::1]:8443/a?token=b", Some("https://[::1]:8443/a")),
        ("http://issuer.example/keys", None),
        ("https://user:secret@issuer.example/", None),
        ("https://issuer.example:0/", None),
        ("issuer.example/keys", None),
        ("file:///etc/passwd", None),
        ("", None),
    ] {
        let url = JwksUrl::parse(text).map(|url| url.to_string());
        assert_eq!(url.as_deref(), shown, "{text}");
    }
}
