//! Opens TLS connections: TLS 1.3 only, always with a client certificate, and always with
//! verification of the server.
//!
//! Nothing falls back on defaults of the process. The crypto provider is named here, and the only
//! trusted certificates are the configured ones, never the system's. Changed files are read again
//! before the next connection. While they do not load, for example because the key of a new
//! certificate is still missing, connections use the previous content.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, RootCertStore, version};
use sealwire_service::tls_files::{self, CERTIFICATE, ContentDigest};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

use crate::addresses::{Reached, interleave, race};
use crate::config::{ClientConfig, Endpoint, Pem};
use crate::error::Error;

/// Endpoints and TLS configuration. Shared by all connections, so that TLS sessions can be resumed.
pub(crate) struct Dialer {
    /// Address and name of each endpoint.
    endpoints: Vec<(String, ServerName<'static>)>,
    pems: [Pem; 3],
    current: Mutex<Current>,
}

/// The TLS settings of new connections.
struct Current {
    digest: ContentDigest,
    config: Arc<rustls::ClientConfig>,
    /// Time when this configuration replaced an earlier one, if it did.
    since: Option<Instant>,
    /// Why the files do not load now.
    error: Option<Arc<str>>,
}

impl Dialer {
    /// Reads and checks the certificates and the key. Blocks on file access.
    pub(crate) fn new(config: &ClientConfig) -> Result<Self, Error> {
        let pems = [
            config.ca.clone(),
            config.certificate.clone(),
            config.key.clone(),
        ];
        let named = |endpoint: &Endpoint| {
            let name = ServerName::try_from(endpoint.server_name.clone()).map_err(|_| {
                Error::Config("server_name must be a DNS name or an IP address".into())
            })?;
            Ok((endpoint.address.clone(), name))
        };
        let endpoints = config
            .endpoints
            .iter()
            .map(named)
            .collect::<Result<_, Error>>()?;
        let current = Mutex::new(Current {
            digest: digest(&pems),
            config: load(&pems)?,
            since: None,
            error: None,
        });
        Ok(Self {
            endpoints,
            pems,
            current,
        })
    }

    /// Returns true if the TLS settings can change.
    pub(crate) fn may_change(&self) -> bool {
        self.pems.iter().any(|pem| matches!(pem, Pem::File(_)))
    }

    /// Checks the files. Returns the time when their content last replaced an earlier
    /// configuration, if it ever did.
    pub(crate) async fn renewed(self: Arc<Self>) -> Option<Instant> {
        let look = move || {
            self.refreshed();
            self.current().since
        };
        tokio::task::spawn_blocking(look).await.ok().flatten()
    }

    /// Opens one connection to the endpoint with this index. Dropping the future closes the socket.
    pub(crate) async fn dial(
        self: &Arc<Self>,
        endpoint: usize,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let found = lookup_host(&self.endpoints[endpoint].0)
            .await
            .map_err(connect)?;
        self.dial_any(endpoint, interleave(found)).await
    }

    /// Opens one connection to an address of the endpoint with this index.
    async fn dial_any(
        self: &Arc<Self>,
        endpoint: usize,
        addresses: Vec<SocketAddr>,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let dialer = Arc::clone(self);
        let config = tokio::task::spawn_blocking(move || dialer.refreshed()).await;
        let config = config.map_err(|panicked| connect(io::Error::other(panicked)))?;
        let attempt = |address, reached: Reached| {
            let connector = TlsConnector::from(Arc::clone(&config));
            let server_name = self.endpoints[endpoint].1.clone();
            async move {
                let socket = TcpStream::connect(address).await?;
                // The receiver is gone if another attempt has won.
                let _ = reached.send(true);
                // A request is written completely before its response is awaited. Nagle's algorithm
                // would only delay the last packet.
                socket.set_nodelay(true)?;
                connector.connect(server_name, socket).await
            }
        };
        race(&addresses, attempt).await.map_err(connect)
    }

    /// Returns the TLS configuration, reloaded if a file has changed.
    fn refreshed(&self) -> Arc<rustls::ClientConfig> {
        let digest = digest(&self.pems);
        let mut current = self.current();
        if digest == current.digest {
            current.error = None;
            return Arc::clone(&current.config);
        }
        let loaded = load(&self.pems).map(|config| Current {
            digest,
            config,
            since: Some(Instant::now()),
            error: None,
        });
        match loaded {
            Ok(loaded) => *current = loaded,
            Err(error) => {
                tracing::warn!(%error, "certificate files do not load; those from before stay in use");
                let text = format!(
                    "the certificate files do not load, and those from before stay in use: {error}"
                );
                current.error = Some(text.into());
            }
        }
        Arc::clone(&current.config)
    }

    /// Returns why the files do not load, as of the last check.
    pub(crate) fn renewal_error(&self) -> Option<Arc<str>> {
        self.current().error.clone()
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(error: io::Error) -> Error {
    Error::Connect(Arc::new(explained(error)))
}

/// Replaces the terms of the TLS library and the resolver by the likely cause. The kind of the error
/// stays, because retries depend on it.
fn explained(error: io::Error) -> io::Error {
    let tls_error = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let text = match tls_error {
        Some(rustls::Error::InvalidMessage(_)) => {
            "the port does not speak TLS. Is it the port of admin.address? Use that of listen.address, or of control.address for operators"
                .to_owned()
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "this client does not trust the issuer of the server's certificate. Check the file of the authority (CA)"
                .to_owned()
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::BadSignature)) => {
            "the server's certificate is not signed by the authority (CA) of this client, but by another one with its name"
                .to_owned()
        }
        None if error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none() => {
            format!("{error}; an address is HOST:PORT")
        }
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

/// Error text for a client whose configuration has PEM text in place of a file name.
const NOT_A_PATH: &str = "the path of a certificate or key is the content of a file: give the path of a file, or the \
                          text as bytes";

/// Digests the files of certificates and key, to detect changes. Text in memory does not change.
fn digest(pems: &[Pem; 3]) -> ContentDigest {
    ContentDigest::of(pems.iter().filter_map(|pem| match pem {
        Pem::File(path) => Some(path.as_path()),
        Pem::Bytes(_) => None,
    }))
}

fn text(pem: &Pem) -> Result<Zeroizing<Vec<u8>>, Error> {
    match pem {
        Pem::File(path) if Pem::is_content(path) => Err(Error::Config(NOT_A_PATH.into())),
        Pem::File(path) => tls_files::read_pem(path).map_err(|error| unusable(pem, error.reason)),
        Pem::Bytes(bytes) => Ok(Zeroizing::new(bytes.clone())),
    }
}

fn load([ca, certificate, key]: &[Pem; 3]) -> Result<Arc<rustls::ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    for root in certificates(ca)? {
        roots.add(root).map_err(Error::tls)?;
    }
    let private_key = tls_files::key_of(&text(key)?).map_err(|error| unusable(key, error))?;

    let config = rustls::ClientConfig::builder_with_provider(tls_files::provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(Error::tls)?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(certificate)?, private_key)
        .map_err(Error::tls)?;
    Ok(Arc::new(config))
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, Error> {
    tls_files::items(&text(pem)?, CERTIFICATE).map_err(|error| unusable(pem, error))
}

fn unusable(pem: &Pem, error: impl fmt::Display) -> Error {
    let place = match pem {
        Pem::File(path) => path.display().to_string(),
        Pem::Bytes(_) => "a PEM text".to_owned(),
    };
    Error::Config(format!("{place}: {error}").into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::SupportedProtocolVersion;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::server::WebPkiClientVerifier;
    use sealwire_wire::response;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::Client;

    /// Creates a certificate authority with one leaf, as PEM: the CA, the leaf, the leaf's key.
    struct TestAuthority {
        ca: String,
        leaf: String,
        key: String,
        authority_key: String,
    }

    fn party() -> TestAuthority {
        party_of("Authority")
    }

    fn party_of(authority_name: &str) -> TestAuthority {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, authority_name);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let ca = authority.self_signed(&authority_key).unwrap().pem();
        let authority_text = authority_key.serialize_pem();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["localhost".to_owned()])
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap();
        TestAuthority {
            ca,
            leaf: leaf.pem(),
            key: key.serialize_pem(),
            authority_key: authority_text,
        }
    }

    fn pem(text: &str) -> Pem {
        Pem::Bytes(text.as_bytes().to_vec())
    }

    fn config(address: &str, server_name: &str, ca: &str, client: &TestAuthority) -> ClientConfig {
        let mut config = ClientConfig::new(
            address,
            server_name,
            pem(ca),
            pem(&client.leaf),
            pem(&client.key),
        );
        config.deadline = Duration::from_secs(10);
        config
    }

    /// Starts a server that trusts `clients` certificates and completes one `health` request per
    /// connection. Returns its address.
    async fn serve(
        server: &TestAuthority,
        clients: &TestAuthority,
        version: &'static SupportedProtocolVersion,
    ) -> String {
        serve_counted(server, clients, version).await.0
    }

    /// Starts a server as [`serve`] does. Returns the number of its connections too.
    async fn serve_counted(
        server: &TestAuthority,
        clients: &TestAuthority,
        version: &'static SupportedProtocolVersion,
    ) -> (String, Arc<AtomicUsize>) {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots
            .add(certificates(&pem(&clients.ca)).unwrap().remove(0))
            .unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                certificates(&pem(&server.leaf)).unwrap(),
                PrivateKeyDer::from_pem_slice(server.key.as_bytes()).unwrap(),
            )
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let handshake = acceptor.accept(socket);
                tokio::spawn(async move {
                    let Ok(mut stream) = handshake.await else {
                        return;
                    };
                    let mut request = [0; 64];
                    if stream.read(&mut request).await.is_ok() {
                        let mut out = Vec::new();
                        response::start(&mut out, 0);
                        crate::peer::encode_health(&mut out);
                        stream.write_all(&out).await.unwrap();
                        stream.flush().await.unwrap();
                        let _ = stream.read(&mut request).await;
                    }
                });
            }
        });
        (address, accepted)
    }

    #[tokio::test]
    async fn both_sides_prove_who_they_are_over_tls_1_3() {
        let (server, client) = (party(), party());
        let address = serve(&server, &client, &version::TLS13).await;
        let connected = Client::connect(config(&address, "localhost", &server.ca, &client)).await;
        assert!(connected.is_ok(), "{connected:?}");

        let refused = async |address: &str, name: &str, ca: &str, why: &str| {
            let outcome = Client::connect(config(address, name, ca, &client)).await;
            let Err(Error::Connect(error)) = outcome else {
                panic!("{outcome:?}")
            };
            assert!(error.to_string().contains(why), "{error}");
        };
        refused(
            &address,
            "localhost",
            &client.ca,
            "the server's certificate is not signed by the authority",
        )
        .await;
        refused(&address, "example.com", &server.ca, "not valid for name").await;
        // In TLS 1.3, the client handshake completes before the server checks the certificate, so
        // the first request reports the error.
        let stranger = Client::connect(config(&address, "localhost", &server.ca, &server)).await;
        assert!(matches!(stranger, Err(Error::Tls(_))), "{stranger:?}");

        let old = serve(&server, &client, &version::TLS12).await;
        refused(&old, "localhost", &server.ca, "alert").await;
    }

    /// Creates a client certificate that the server of `clients` rejects, by what is wrong with it.
    fn unusable_leaf(clients: &TestAuthority, year: Option<i32>) -> TestAuthority {
        let mut other = party();
        let Some(year) = year else { return other };
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        leaf.not_before = rcgen::date_time_ymd(year, 1, 1);
        leaf.not_after = rcgen::date_time_ymd(year + 1, 1, 1);
        let authority_key = KeyPair::from_pem(&clients.authority_key).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&clients.ca, authority_key).unwrap();
        other.leaf = leaf.signed_by(&key, &issuer).unwrap().pem();
        other.key = key.serialize_pem();
        other
    }

    #[tokio::test]
    async fn a_rejected_certificate_is_named_and_not_tried_again() {
        let (server, clients) = (party(), party());
        let (address, accepted) = serve_counted(&server, &clients, &version::TLS13).await;
        for (client, says) in [
            (
                unusable_leaf(&clients, Some(2001)),
                "because it has expired",
            ),
            (
                unusable_leaf(&clients, Some(2900)),
                "install a new certificate and its key",
            ),
            (
                unusable_leaf(&clients, None),
                "does not trust the issuer of this client's certificate",
            ),
            (
                party_of("Other authority"),
                "does not trust the issuer of this client's certificate",
            ),
        ] {
            let before = accepted.load(Ordering::Relaxed);
            let client = Client::lazy(config(&address, "localhost", &server.ca, &client)).unwrap();
            // More callers than one connection takes.
            let callers = (0..200).map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.health().await })
            });
            for outcome in callers.collect::<Vec<_>>() {
                let outcome = outcome.await.unwrap();
                let Err(error @ Error::Tls(_)) = outcome else {
                    panic!("{outcome:?}")
                };
                assert!(error.to_string().contains(says), "{error}");
                assert!(
                    std::error::Error::source(&error)
                        .is_some_and(|source| source.to_string().contains("alert"))
                );
            }
            let attempts = accepted.load(Ordering::Relaxed) - before;
            assert!(attempts <= 4, "{attempts} attempts to connect for {says}");
            assert!(client.stats().retries == 0);
        }
    }

    #[tokio::test]
    async fn an_address_that_drops_packets_does_not_hide_the_next_one() {
        let (server, client) = (party(), party());
        let address: std::net::SocketAddr = serve(&server, &client, &version::TLS13)
            .await
            .parse()
            .unwrap();
        // A queue of connections that is full drops further ones.
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = silent.listen(1).unwrap();
        let silent_address = silent.local_addr().unwrap();
        let mut fills = Vec::new();
        for _ in 0..8 {
            fills.push(tokio::spawn(TcpStream::connect(silent_address)));
        }
        let dialer = Arc::new(
            Dialer::new(&config("localhost:1", "localhost", &server.ca, &client)).unwrap(),
        );
        let stream = timeout(
            Duration::from_secs(60),
            dialer.dial_any(0, vec![silent_address, address]),
        )
        .await;
        assert_eq!(
            stream.unwrap().unwrap().get_ref().0.peer_addr().unwrap(),
            address
        );
    }

    #[test]
    fn unusable_tls_files_are_named_and_keys_never_shown() {
        let party = party();
        let check = |change: &dyn Fn(&mut ClientConfig), expect: &str| {
            let mut config = config("localhost:1", "localhost", &party.ca, &party);
            change(&mut config);
            let error = Client::lazy(config)
                .err()
                .map_or_else(String::new, |error| error.to_string());
            assert!(
                error.contains(expect) && error.is_empty() == expect.is_empty(),
                "{error:?}"
            );
            let secret = party.key.lines().nth(1).unwrap();
            assert!(!error.contains(secret));
        };
        check(&|_| (), "");
        check(
            &|config| config.endpoints[0].server_name = "not a name".to_owned(),
            "server_name must be",
        );
        check(
            &|config| config.ca = pem("nothing"),
            "a PEM text: contains no PEM certificate",
        );
        check(
            &|config| config.ca = pem(&party.key),
            "contains no PEM certificate",
        );
        check(
            &|config| config.certificate = pem(""),
            "a PEM text: contains no PEM certificate",
        );
        check(
            &|config| config.key = pem(&party.leaf),
            "contains no unencrypted PEM private key",
        );
        check(
            &|config| config.key = pem(&party.key.replace('M', "!")),
            "PEM private key 1 is malformed",
        );
        check(
            &|config| config.key = Pem::File("/nonexistent/key".into()),
            "/nonexistent/key: ",
        );
        // Text in place of a path: whole, without its last line break, on one line, a single line
        // of it, and its middle.
        let body: String = party
            .key
            .lines()
            .filter(|line| !line.starts_with("---"))
            .collect();
        for text in [
            party.key.clone(),
            party.key.trim().to_owned(),
            party.key.replace('\n', " "),
            party.key.replace('\n', "\r"),
            format!("/etc/{}", party.key),
            party.key.lines().skip(1).collect::<Vec<_>>().join("\n"),
            body.clone(),
            "M/".repeat(32),
            body.repeat(4).replace('/', "_"),
            "1f".repeat(32),
        ] {
            check(
                &|config| config.key = Pem::File(text.clone().into()),
                "give the path of a file, or the text as bytes",
            );
            assert_eq!(format!("{:?}", Pem::File(text.into())), "File(not a path)");
        }
        check(
            &|config| config.certificate = pem(&super::tests::party().leaf),
            "the private key does not belong to this client's certificate",
        );
    }

    #[test]
    fn a_renewed_file_is_read_again_and_an_unchanged_one_is_not() {
        let (old, new) = (party(), party());
        let folder = std::env::temp_dir().join(format!("sealwire-client-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [certificate, key] = ["leaf", "key"].map(|name| folder.join(name));
        let write = |party: &TestAuthority, tail: &str| {
            fs::write(&certificate, party.leaf.clone() + tail).unwrap();
            fs::write(&key, party.key.clone() + tail).unwrap();
        };
        write(&old, "");
        let mut config = config("localhost:1", "localhost", &old.ca, &old);
        config.certificate = Pem::File(certificate.clone());
        config.key = Pem::File(key.clone());
        let dialer = Dialer::new(&config).unwrap();
        let first = dialer.refreshed();
        assert!(Arc::ptr_eq(&first, &dialer.refreshed()) && dialer.current().since.is_none());
        // The length differs too, for file systems whose clock is too coarse to distinguish the two
        // writes.
        write(&new, "\n");
        let second = dialer.refreshed();
        assert!(!Arc::ptr_eq(&first, &second) && dialer.current().since.is_some());
        // A certificate without its key, and files that are gone: the previous configuration stays
        // in use.
        assert_eq!(dialer.renewal_error(), None);
        fs::write(&certificate, old.leaf.clone() + "\n\n").unwrap();
        assert!(Arc::ptr_eq(&second, &dialer.refreshed()));
        assert!(
            dialer
                .renewal_error()
                .is_some_and(|error| error.contains("the private key does not belong"))
        );
        fs::write(&key, old.key.clone() + "\n\n").unwrap();
        let third = dialer.refreshed();
        assert!(!Arc::ptr_eq(&second, &third));
        assert_eq!(dialer.renewal_error(), None);
        fs::remove_dir_all(&folder).unwrap();
        assert!(Arc::ptr_eq(&third, &dialer.refreshed()));
        assert!(
            dialer
                .renewal_error()
                .is_some_and(|error| error.contains("No such file"))
        );
    }
}
