//! A server that speaks the protocol of HashiCorp Vault and OpenBao, as far as a client of the
//! transit engine needs it.
//!
//! The server does real TLS, real AES-256-GCM with associated data and versions of keys. Policies,
//! lifetimes of tokens, secret ids, wrapping tokens and client certificates are checked. The same
//! requests set up this server and a real one, so one suite of tests runs on both. Statuses and
//! texts are those of OpenBao 2.6. Error texts repeat the request: a client must not quote them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::LOCATION;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::ports::listen_on;
use crate::{Certificates, free_ports};

/// The token that may do everything.
pub const ROOT_TOKEN: &str = "root-of-the-transit-server";

/// A fault of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransitFault {
    /// A status with an error text that repeats the token and the body of the request.
    Status(u16),
    /// Status 200 with a body that is not JSON.
    Garbage,
    /// This status and this body.
    Response(u16, String),
    /// Status 200 with a body of this many bytes.
    Long(usize),
    /// A response after this time.
    Slow(Duration),
    /// No response, ever.
    Hang,
    /// The connection ends without a response.
    Disconnect,
    /// The request is carried out, then the connection ends without a response.
    LoseResponse,
}

/// A server on a port of 127.0.0.1, stopped when this value is dropped.
pub struct TransitServer {
    port: u16,
    acceptor: TlsAcceptor,
    state: Arc<Mutex<ServerState>>,
    /// `None` between [`Self::stop`] and [`Self::restart`].
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl TransitServer {
    /// Starts a server with a certificate for `localhost`.
    ///
    /// # Errors
    /// If the certificates cannot be used or no port is free.
    pub fn start(certificates: &Certificates) -> io::Result<Self> {
        let acceptor = TlsAcceptor::from(Arc::new(server_config(certificates)?));
        let [port] = free_ports::<1>();
        let mut server = Self {
            port,
            acceptor,
            state: Arc::default(),
            running: None,
        };
        server.restart()?;
        Ok(server)
    }

    /// Starts the server again after [`Self::stop`], at the same address and with the same keys,
    /// policies and tokens. Does nothing if the server is running.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn restart(&mut self) -> io::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let listener = listen_on(self.port)?;
        listener.set_nonblocking(true)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (acceptor, state) = (self.acceptor.clone(), Arc::clone(&self.state));
        let thread = std::thread::Builder::new()
            .name("transit-server".into())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        _ = stopped => (),
                        () = accept(listener, acceptor, state) => (),
                    }
                });
            })?;
        self.running = Some((stop, thread));
        Ok(())
    }

    /// Stops the server like a kill: all connections end, even in the middle of a request, and
    /// nothing listens.
    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            // A panic of the thread is already printed.
            let _ = thread.join();
        }
    }

    /// Mounts a transit engine with a key, unless it is already mounted.
    pub fn add_key(&self, mount: &str, key: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.mounts.insert(mount.to_owned());
        state
            .keys
            .insert(format!("{mount}/{key}"), TransitKey::new(true));
    }

    /// Returns the address, such as `https://localhost:8200`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Returns the address to connect to.
    #[must_use]
    pub fn socket(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Makes the next `count` requests fail whose path contains `path`.
    pub fn fail(&self, path: &str, count: usize, fault: TransitFault) {
        self.state().faults.push((path.to_owned(), count, fault));
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.state().faults.clear();
    }

    /// Returns and forgets the requests so far, such as `POST transit/encrypt/key`.
    #[must_use]
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }

    /// Moves the server's clock ahead. Tokens expire by this clock.
    pub fn advance(&self, time: Duration) {
        self.state().ahead += time;
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        lock(&self.state)
    }
}

impl Drop for TransitServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(state: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn server_config(certificates: &Certificates) -> io::Result<ServerConfig> {
    let chain = |path: &Path| -> io::Result<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_slice_iter(&fs::read(path)?)
            .collect::<Result<_, _>>()
            .map_err(io::Error::other)
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(AnyClient(provider.signature_verification_algorithms));
    let key = PrivateKeyDer::from_pem_slice(&fs::read(&certificates.server_key)?)
        .map_err(io::Error::other)?;
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain(&certificates.server)?, key)
        .map_err(io::Error::other)
}

/// Requests a client certificate and accepts any, as real servers do: the login decides.
#[derive(Debug)]
struct AnyClient(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<Mutex<ServerState>>) {
    let listener =
        tokio::net::TcpListener::from_std(listener).expect("the listener is non-blocking");
    while let Ok((socket, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else {
                return;
            };
            let certificate = stream
                .get_ref()
                .1
                .peer_certificates()
                .and_then(<[_]>::first)
                .map(|der| der.to_vec());
            let certificate = Arc::new(certificate);
            let service = service_fn(move |request| {
                serve(request, Arc::clone(&state), Arc::clone(&certificate))
            });
            // An error ends the connection, as some faults require.
            let builder = hyper::server::conn::http1::Builder::new();
            let _ = builder
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn serve(
    request: Request<Incoming>,
    state: Arc<Mutex<ServerState>>,
    certificate: Arc<Option<Vec<u8>>>,
) -> Result<Response<Full<Bytes>>, io::Error> {
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    let namespace = header("x-vault-namespace")
        .map(|name| format!("{name}/"))
        .unwrap_or_default();
    let token = header("x-vault-token");
    let wrap = header("x-vault-wrap-ttl").is_some();
    let method = request.method().to_string();
    let path = request.uri().path().trim_start_matches("/v1/").to_owned();
    let body = request
        .into_body()
        .collect()
        .await
        .map_err(io::Error::other)?
        .to_bytes();
    let fault = lock(&state).fault(&format!("{method} {namespace}{path}"));
    match &fault {
        Some(TransitFault::Hang) => std::future::pending().await,
        Some(TransitFault::Disconnect) => return Err(io::ErrorKind::ConnectionAborted.into()),
        Some(TransitFault::Slow(time)) => tokio::time::sleep(*time).await,
        Some(TransitFault::Status(status)) => {
            let text = format!(
                "{} {}",
                token.unwrap_or_default(),
                String::from_utf8_lossy(&body)
            );
            return Ok(respond(*status, &json!({ "errors": [text] }).to_string()));
        }
        Some(TransitFault::Garbage) => return Ok(respond(200, "<html>hunter2</html>")),
        Some(TransitFault::Response(status, text)) => return Ok(respond(*status, text)),
        Some(TransitFault::Long(bytes)) => return Ok(respond(200, &" ".repeat(*bytes))),
        Some(TransitFault::LoseResponse) | None => (),
    }
    let body: Value = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).unwrap_or_default()
    };
    let parsed = ParsedRequest {
        namespace,
        token,
        path,
        method,
        body,
        wrap,
        certificate,
    };
    let outcome = lock(&state).handle(&parsed);
    if fault == Some(TransitFault::LoseResponse) {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    Ok(match outcome {
        Ok(Value::Null) => respond(204, ""),
        Ok(value) => respond(200, &value.to_string()),
        // Some texts of real servers repeat the input.
        Err((status, text)) => respond(
            status,
            &json!({ "errors": [format!("{text} {} {}", parsed.body, parsed.token())] })
                .to_string(),
        ),
    })
}

fn respond(status: u16, body: &str) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status);
    let body = if status == 204 { "" } else { body };
    let response = if (300..400).contains(&status) {
        response.header(LOCATION, "https://127.0.0.1:1/")
    } else {
        response
    };
    response
        .body(Full::new(Bytes::from(body.to_owned())))
        .expect("a status and text")
}

/// A request.
struct ParsedRequest {
    /// The namespace with a slash at its end, or nothing.
    namespace: String,
    token: Option<String>,
    path: String,
    method: String,
    body: Value,
    /// True if the response must be wrapped.
    wrap: bool,
    certificate: Arc<Option<Vec<u8>>>,
}

impl ParsedRequest {
    fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_default()
    }

    fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    fn names(&self, field: &str) -> Vec<String> {
        let names = self.body[field].as_array().cloned().unwrap_or_default();
        names
            .iter()
            .filter_map(Value::as_str)
            .map(|name| format!("{}{name}", self.namespace))
            .collect()
    }
}

type Outcome = Result<Value, (u16, &'static str)>;

const DENIED: Outcome = Err((403, "permission denied"));
const NO_HANDLER: Outcome = Err((404, "no handler for route"));
const NO_SECRET_ID: Outcome = Err((400, "invalid role or secret ID"));

/// A token of a client.
#[derive(Clone)]
struct IssuedToken {
    policies: Vec<String>,
    ttl: Duration,
    /// `None` if the token does not expire.
    expires: Option<Instant>,
    /// Latest time to which a renewal can extend the token.
    latest: Option<Instant>,
    renewable: bool,
}

/// A role of an auth method.
#[derive(Clone, Default)]
struct LoginRole {
    policies: Vec<String>,
    ttl: Duration,
    max_ttl: Duration,
    /// Number of times that a secret id can be used. Zero: without limit.
    secret_id_uses: u64,
    /// The certificate of a certificate role.
    certificate: Vec<u8>,
}

#[derive(Default)]
struct TransitKey {
    versions: Vec<[u8; 32]>,
    min_decryption_version: usize,
    is_aead: bool,
}

impl TransitKey {
    /// Creates a key with one version.
    fn new(is_aead: bool) -> Self {
        Self {
            versions: vec![random_key()],
            min_decryption_version: 1,
            is_aead,
        }
    }
}

/// The state of the server. Names start with their namespace.
#[derive(Default)]
struct ServerState {
    ahead: Duration,
    faults: Vec<(String, usize, TransitFault)>,
    requests: Vec<String>,
    mounts: HashSet<String>,
    keys: HashMap<String, TransitKey>,
    /// Path to capabilities, per policy.
    policies: HashMap<String, Value>,
    tokens: HashMap<String, IssuedToken>,
    roles: HashMap<String, LoginRole>,
    /// Role and remaining uses of a secret id.
    secret_ids: HashMap<String, (String, u64)>,
    /// Creation path and content of a wrapping token.
    wrapped: HashMap<String, (String, Value)>,
}

impl ServerState {
    fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }

    /// Records a request. Returns the fault that applies to it.
    fn fault(&mut self, request: &str) -> Option<TransitFault> {
        self.requests.push(request.to_owned());
        let (_, count, fault) = self
            .faults
            .iter_mut()
            .find(|(path, count, _)| *count > 0 && request.contains(&**path))?;
        *count -= 1;
        Some(fault.clone())
    }

    fn handle(&mut self, parsed: &ParsedRequest) -> Outcome {
        let segments: Vec<&str> = parsed.path.split('/').collect();
        match *segments {
            ["sys", "wrapping", "lookup"] => match self.wrapped.get(parsed.text("token")) {
                Some((path, _)) => {
                    Ok(json!({ "data": { "creation_path": path, "creation_ttl": 300 } }))
                }
                None => Err((400, "wrapping token is not valid or does not exist")),
            },
            ["sys", "wrapping", "unwrap"] => match self.wrapped.remove(parsed.token()) {
                Some((_, content)) => Ok(content),
                None => Err((400, "wrapping token is not valid or does not exist")),
            },
            ["auth", mount, "login"] => {
                self.log_in(&format!("{}auth/{mount}", parsed.namespace), parsed)
            }
            ["auth", "token", "lookup-self"] => self.look_up(parsed),
            ["auth", "token", "renew-self"] => self.renew(parsed),
            [mount, action @ ("encrypt" | "decrypt"), key] => {
                self.transit(mount, action, key, parsed)
            }
            // All further requests set the server up, and need the root token.
            _ if parsed.token() != ROOT_TOKEN => DENIED,
            _ => self.set_up(&segments, parsed),
        }
    }

    fn set_up(&mut self, segments: &[&str], parsed: &ParsedRequest) -> Outcome {
        let named = |name: &str| format!("{}{name}", parsed.namespace);
        let seconds =
            |field: &str| Duration::from_secs(parsed.body[field].as_u64().unwrap_or_default());
        match *segments {
            ["sys", "namespaces", _] => Ok(json!({ "data": {} })),
            ["sys", "mounts", mount] => {
                self.mounts.insert(named(mount));
                Ok(Value::Null)
            }
            ["sys", "auth", mount] => {
                self.mounts.insert(named(&format!("auth/{mount}")));
                Ok(Value::Null)
            }
            ["sys", "policies", "acl", name] => {
                let policy =
                    serde_json::from_str::<Value>(parsed.text("policy")).unwrap_or_default();
                self.policies.insert(named(name), policy["path"].clone());
                Ok(Value::Null)
            }
            ["auth", "token", "create"] => {
                let (ttl, max_ttl) = (seconds("ttl"), seconds("explicit_max_ttl"));
                let renewable = parsed.body["renewable"].as_bool().unwrap_or(true);
                self.issue(parsed.names("policies"), ttl, max_ttl, renewable)
            }
            ["auth", "token", "revoke"] => {
                self.tokens.remove(parsed.text("token"));
                Ok(Value::Null)
            }
            ["auth", "cert", "certs", name] => {
                let certificate =
                    CertificateDer::from_pem_slice(parsed.text("certificate").as_bytes());
                let certificate = certificate
                    .map_err(|_| (400, "failed to parse certificate"))?
                    .to_vec();
                let (ttl, max_ttl) = (seconds("token_ttl"), seconds("token_max_ttl"));
                let policies = parsed.names("token_policies");
                let role = LoginRole {
                    policies,
                    ttl,
                    max_ttl,
                    certificate,
                    ..LoginRole::default()
                };
                self.roles.insert(named(&format!("auth/cert/{name}")), role);
                Ok(Value::Null)
            }
            ["auth", mount, "role", name] => {
                let (ttl, max_ttl) = (seconds("token_ttl"), seconds("token_max_ttl"));
                let secret_id_uses = parsed.body["secret_id_num_uses"]
                    .as_u64()
                    .unwrap_or_default();
                let policies = parsed.names("token_policies");
                let role = LoginRole {
                    policies,
                    ttl,
                    max_ttl,
                    secret_id_uses,
                    ..LoginRole::default()
                };
                self.roles
                    .insert(named(&format!("auth/{mount}/{name}")), role);
                Ok(Value::Null)
            }
            // The role id is the role's name here.
            ["auth", _, "role", name, "role-id"] => Ok(json!({ "data": { "role_id": name } })),
            ["auth", mount, "role", name, "secret-id"] => {
                let role = named(&format!("auth/{mount}/{name}"));
                let uses = self.roles.get(&role).map_or(0, |role| role.secret_id_uses);
                let secret_id = random_name();
                self.secret_ids.insert(secret_id.clone(), (role, uses));
                let content = json!({ "data": { "secret_id": secret_id } });
                if !parsed.wrap {
                    return Ok(content);
                }
                let token = random_name();
                self.wrapped
                    .insert(token.clone(), (parsed.path.clone(), content));
                Ok(
                    json!({ "wrap_info": { "token": token, "ttl": 300, "creation_path": parsed.path } }),
                )
            }
            [mount, "keys", name] if parsed.method == "DELETE" => {
                self.keys.remove(&named(&format!("{mount}/{name}")));
                Ok(Value::Null)
            }
            [mount, "keys", name] => {
                let is_aead = !parsed.text("type").starts_with("rsa");
                self.keys
                    .insert(named(&format!("{mount}/{name}")), TransitKey::new(is_aead));
                Ok(Value::Null)
            }
            [mount, "keys", name, action] => {
                let Some(key) = self.keys.get_mut(&named(&format!("{mount}/{name}"))) else {
                    return NO_HANDLER;
                };
                if action == "rotate" {
                    key.versions.push(random_key());
                } else if let Some(version) = parsed.body["min_decryption_version"].as_u64() {
                    key.min_decryption_version = version as usize;
                }
                Ok(Value::Null)
            }
            _ => NO_HANDLER,
        }
    }

    fn issue(
        &mut self,
        policies: Vec<String>,
        ttl: Duration,
        max_ttl: Duration,
        renewable: bool,
    ) -> Outcome {
        let (token, now) = (random_name(), self.now());
        let latest = (!max_ttl.is_zero()).then(|| now + max_ttl);
        let expires =
            (!ttl.is_zero()).then(|| latest.map_or(now + ttl, |latest| latest.min(now + ttl)));
        self.tokens.insert(
            token.clone(),
            IssuedToken {
                policies,
                ttl,
                expires,
                latest,
                renewable,
            },
        );
        Ok(auth(
            &token,
            expires.map_or(Duration::ZERO, |expires| expires - now),
            renewable,
        ))
    }

    /// Returns a token that has not expired.
    fn valid(&self, token: &str) -> Option<&IssuedToken> {
        let found = self.tokens.get(token)?;
        found
            .expires
            .is_none_or(|expires| self.now() < expires)
            .then_some(found)
    }

    fn look_up(&self, parsed: &ParsedRequest) -> Outcome {
        let Some(token) = self.valid(parsed.token()) else {
            return DENIED;
        };
        let ttl = token
            .expires
            .map_or(0, |expires| (expires - self.now()).as_secs());
        Ok(json!({ "data": { "ttl": ttl, "renewable": token.renewable } }))
    }

    fn renew(&mut self, parsed: &ParsedRequest) -> Outcome {
        let now = self.now();
        let Some(token) = self.valid(parsed.token()) else {
            return DENIED;
        };
        if !token.renewable {
            return Err((400, "lease is not renewable"));
        }
        let until = now + token.ttl;
        let expires = token.latest.map_or(until, |latest| latest.min(until));
        if let Some(token) = self.tokens.get_mut(parsed.token()) {
            token.expires = Some(expires);
        }
        Ok(auth(parsed.token(), expires - now, true))
    }

    fn log_in(&mut self, mount: &str, parsed: &ParsedRequest) -> Outcome {
        if !self.mounts.contains(mount) {
            return NO_HANDLER;
        }
        let role = if mount.ends_with("auth/cert") {
            let Some(certificate) = &*parsed.certificate else {
                return Err((400, "invalid certificate or no client certificate supplied"));
            };
            let matches = |(name, role): &(&String, &LoginRole)| {
                role.certificate == *certificate
                    && (parsed.text("name").is_empty()
                        || **name == format!("{mount}/{}", parsed.text("name")))
            };
            match self.roles.iter().find(matches) {
                Some((_, role)) => role.clone(),
                None => return Err((400, "no chain matching all constraints could be found")),
            }
        } else {
            let role = format!("{mount}/{}", parsed.text("role_id"));
            match self.secret_ids.get_mut(parsed.text("secret_id")) {
                Some((owner, uses)) if *owner == role => {
                    if *uses == 1 {
                        self.secret_ids.remove(parsed.text("secret_id"));
                    } else if *uses > 1 {
                        *uses -= 1;
                    }
                }
                _ => return NO_SECRET_ID,
            }
            let Some(role) = self.roles.get(&role) else {
                return NO_SECRET_ID;
            };
            role.clone()
        };
        self.issue(role.policies, role.ttl, role.max_ttl, true)
    }

    fn may(&self, parsed: &ParsedRequest, capability: &str) -> bool {
        if parsed.token() == ROOT_TOKEN {
            return true;
        }
        let Some(token) = self.valid(parsed.token()) else {
            return false;
        };
        token.policies.iter().any(|name| {
            let in_namespace = name.starts_with(&parsed.namespace);
            let capabilities = self
                .policies
                .get(name)
                .map(|policy| &policy[&parsed.path]["capabilities"]);
            let capabilities = capabilities.and_then(Value::as_array);
            in_namespace
                && capabilities.is_some_and(|list| list.iter().any(|found| found == capability))
        })
    }

    fn transit(
        &mut self,
        mount: &str,
        action: &str,
        name: &str,
        parsed: &ParsedRequest,
    ) -> Outcome {
        let (mount, id) = (
            format!("{}{mount}", parsed.namespace),
            format!("{}{mount}/{name}", parsed.namespace),
        );
        let is_new = action == "encrypt" && !self.keys.contains_key(&id);
        if !self.may(parsed, if is_new { "create" } else { "update" }) {
            return DENIED;
        }
        if !self.mounts.contains(&mount) {
            return NO_HANDLER;
        }
        if is_new {
            let key = TransitKey {
                versions: vec![random_key()],
                min_decryption_version: 1,
                is_aead: true,
            };
            self.keys.insert(id.clone(), key);
        }
        let Some(key) = self.keys.get(&id) else {
            return Err((400, "encryption key not found"));
        };
        if !key.is_aead {
            return Err((
                400,
                "'[0].associated_data' provided for non-AEAD cipher suite",
            ));
        }
        let Ok(aad) = BASE64.decode(parsed.text("associated_data")) else {
            return Err((400, "failed to base64-decode associated_data"));
        };
        if action == "encrypt" {
            let Ok(plaintext) = BASE64.decode(parsed.text("plaintext")) else {
                return Err((400, "failed to base64-decode plaintext"));
            };
            let version = key.versions.len();
            let sealed = seal(&key.versions[version - 1], plaintext, aad);
            return Ok(
                json!({ "data": { "ciphertext": format!("vault:v{version}:{sealed}"), "key_version": version } }),
            );
        }
        let Some(rest) = parsed.text("ciphertext").strip_prefix("vault:v") else {
            return Err((400, "invalid ciphertext: no prefix"));
        };
        let Some((version, sealed)) = rest.split_once(':') else {
            return Err((400, "invalid ciphertext: wrong number of fields"));
        };
        let Ok(version) = version.parse::<usize>() else {
            return Err((
                400,
                "invalid ciphertext: version number could not be decoded",
            ));
        };
        if version == 0 || version > key.versions.len() {
            return Err((400, "invalid ciphertext: version is too new"));
        }
        if version < key.min_decryption_version {
            return Err((
                400,
                "ciphertext or signature version is disallowed by policy (too old)",
            ));
        }
        match open(&key.versions[version - 1], sealed, aad) {
            Ok(plaintext) => Ok(json!({ "data": { "plaintext": plaintext } })),
            Err(text) => Err((400, text)),
        }
    }
}

fn auth(token: &str, ttl: Duration, renewable: bool) -> Value {
    json!({ "auth": { "client_token": token, "lease_duration": ttl.as_secs(), "renewable": renewable } })
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("random numbers");
    bytes
}

fn random_key() -> [u8; 32] {
    random_bytes()
}

fn random_name() -> String {
    random_bytes::<16>()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn cipher(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes"))
}

fn seal(key: &[u8; 32], mut text: Vec<u8>, aad: Vec<u8>) -> String {
    let nonce = random_bytes::<NONCE_LEN>();
    cipher(key)
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(aad),
            &mut text,
        )
        .expect("a short text");
    BASE64.encode([&nonce[..], &text].concat())
}

fn open(key: &[u8; 32], sealed: &str, aad: Vec<u8>) -> Result<String, &'static str> {
    let mut sealed = BASE64
        .decode(sealed)
        .map_err(|_| "invalid ciphertext: could not decode base64")?;
    let Some((nonce, text)) = sealed.split_first_chunk_mut::<NONCE_LEN>() else {
        return Err("invalid ciphertext length");
    };
    let opened =
        cipher(key).open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(aad), text);
    opened
        .map(|text| BASE64.encode(text))
        .map_err(|_| "cipher: message authentication failed")
}
