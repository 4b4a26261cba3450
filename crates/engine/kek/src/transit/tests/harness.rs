//! Starts a transit server and sets it up, by the same requests for each kind.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request};
use sealwire_testkit::child::HANG;
use sealwire_testkit::{Certificates, ROOT_TOKEN, TransitServer, free_ports};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::super::{SecretIdSource, Transit, TransitLogin, TransitOptions};
use crate::https::{HttpsClient, ProviderOrigin, TlsFiles};
use crate::{RootBytes, WrapSlot};

/// The name of the transit key.
pub(super) const KEY: &str = "sealwire";
pub(super) const SLOT: WrapSlot = WrapSlot {
    set: [1; 16],
    root: [2; 16],
    number: 3,
};

pub(super) fn root_key() -> RootBytes {
    Box::new(zeroize::Zeroizing::new(std::array::from_fn(|index| {
        index as u8
    })))
}

enum HarnessServer {
    TestKit(TransitServer),
    Real(Child),
}

pub(super) struct TransitHarness {
    folder: TempDir,
    certificates: Certificates,
    server: HarnessServer,
    address: String,
    root_token: String,
    namespace: Option<String>,
}

impl TransitHarness {
    /// Starts the server that the environment selects, with a transit key.
    pub(super) async fn start() -> Self {
        Self::start_as(
            env::var_os("SEALWIRE_TEST_OPENBAO").map(PathBuf::from),
            None,
        )
        .await
    }

    pub(super) async fn start_in_namespace(namespace: &str) -> Self {
        Self::start_as(
            env::var_os("SEALWIRE_TEST_OPENBAO").map(PathBuf::from),
            Some(namespace),
        )
        .await
    }

    /// Starts the server of the test kit, unless the tests are to run against a real one, which has
    /// no faults.
    pub(super) async fn start_with_faults() -> Option<Self> {
        match env::var_os("SEALWIRE_TEST_OPENBAO") {
            None => Some(Self::start_as(None, None).await),
            Some(_) => None,
        }
    }

    async fn start_as(program: Option<PathBuf>, namespace: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Certificates::make(folder.path(), "sealwire").unwrap();
        let (server, address) = match &program {
            None => {
                let server = TransitServer::start(&certificates).unwrap();
                let address = server.address();
                (HarnessServer::TestKit(server), address)
            }
            Some(program) => {
                let ports = free_ports();
                let child = start_real(program, folder.path(), &certificates, ports);
                (
                    HarnessServer::Real(child),
                    format!("https://127.0.0.1:{}", ports[0]),
                )
            }
        };
        let ran = program
            .as_ref()
            .map_or("recorded protocol".into(), |program| {
                program.display().to_string()
            });
        // Not by a macro, so that the harness of tests does not hide it.
        let _ = writeln!(io::stderr(), "transit: tested against {ran}");
        let mut harness = Self {
            folder,
            certificates,
            server,
            address,
            root_token: ROOT_TOKEN.into(),
            namespace: None,
        };
        if program.is_some() {
            harness.initialize().await;
        }
        if let Some(namespace) = namespace {
            harness
                .admin("POST", &format!("sys/namespaces/{namespace}"), json!({}))
                .await;
            harness.namespace = Some(namespace.into());
        }
        harness.set_up().await;
        harness
    }

    /// Initializes and unseals a real server.
    async fn initialize(&mut self) {
        until(async || {
            self.try_admin("GET", "sys/seal-status", json!({}), false)
                .await
                .is_ok()
        })
        .await;
        let init = self
            .admin(
                "PUT",
                "sys/init",
                json!({ "secret_shares": 1, "secret_threshold": 1 }),
            )
            .await;
        self.admin("PUT", "sys/unseal", json!({ "key": init["keys"][0] }))
            .await;
        self.root_token = init["root_token"].as_str().unwrap().to_owned();
        until(async || {
            self.try_admin("GET", "sys/health", json!({}), false)
                .await
                .is_ok()
        })
        .await;
    }

    async fn set_up(&self) {
        self.admin("POST", "sys/mounts/transit", json!({ "type": "transit" }))
            .await;
        self.admin(
            "POST",
            &format!("transit/keys/{KEY}"),
            json!({ "type": "aes256-gcm96" }),
        )
        .await;
        self.admin("POST", "sys/auth/approle", json!({ "type": "approle" }))
            .await;
        self.admin("POST", "sys/auth/cert", json!({ "type": "cert" }))
            .await;
        let certificate = fs::read_to_string(&self.certificates.client).unwrap();
        self.policy(&[KEY]).await;
        let role = json!({ "certificate": certificate, "token_policies": [KEY], "token_ttl": 600 });
        self.admin("POST", "auth/cert/certs/sealwire", role).await;
    }

    pub(super) fn server(&self) -> &TransitServer {
        match &self.server {
            HarnessServer::TestKit(server) => server,
            HarnessServer::Real(_) => panic!("a real server has no faults"),
        }
    }

    /// Returns and forgets the requests so far, if the server tells.
    pub(super) fn take_requests(&self) -> Option<Vec<String>> {
        match &self.server {
            HarnessServer::TestKit(server) => Some(server.take_requests()),
            HarnessServer::Real(_) => None,
        }
    }

    /// Sends a request with the root token.
    pub(super) async fn admin(&self, method: &str, path: &str, body: Value) -> Value {
        let result = self.try_admin(method, path, body, false).await;
        result.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    async fn try_admin(
        &self,
        method: &str,
        path: &str,
        body: Value,
        wrap: bool,
    ) -> Result<Value, String> {
        let client = HttpsClient {
            origin: ProviderOrigin::parse(&self.address, "address").unwrap(),
            files: TlsFiles::new(Some(self.certificates.ca.clone()), None),
            connect_timeout: HANG,
            request_timeout: HANG,
        };
        let body = if method == "GET" {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        let mut request = Request::builder()
            .method(method.parse::<Method>().unwrap())
            .uri(format!("/v1/{path}"))
            .header("x-vault-token", &self.root_token);
        if let Some(namespace) = &self.namespace {
            request = request.header("x-vault-namespace", namespace);
        }
        if wrap {
            request = request.header("x-vault-wrap-ttl", "300");
        }
        let response = client
            .send(request.body(Full::new(body)).unwrap())
            .await
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&response.body);
        if !response.status.is_success() {
            return Err(format!("{}: {text}", response.status));
        }
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Permits the use of these keys by a policy of the name of the first one.
    async fn policy(&self, keys: &[&str]) {
        let paths = keys
            .iter()
            .flat_map(|key| ["encrypt", "decrypt"].map(|action| format!("transit/{action}/{key}")));
        let paths: serde_json::Map<_, _> = paths
            .map(|path| (path, json!({ "capabilities": ["update"] })))
            .collect();
        let policy = json!({ "policy": json!({ "path": paths }).to_string() });
        self.admin("POST", &format!("sys/policies/acl/{}", keys[0]), policy)
            .await;
    }

    /// Creates a token that lives for so many seconds.
    pub(super) async fn token(&self, keys: &[&str], ttl: u64) -> String {
        self.token_with(keys, json!({ "ttl": ttl })).await
    }

    /// Creates a token with these settings.
    pub(super) async fn token_with(&self, keys: &[&str], mut settings: Value) -> String {
        self.policy(keys).await;
        settings["policies"] = json!([keys[0]]);
        let created = self.admin("POST", "auth/token/create", settings).await;
        created["auth"]["client_token"].as_str().unwrap().to_owned()
    }

    pub(super) async fn revoke(&self, token: &str) {
        self.admin("POST", "auth/token/revoke", json!({ "token": token }))
            .await;
    }

    pub(super) fn secret_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        write_secret(&path, text);
        path
    }

    fn options(&self, login: TransitLogin) -> TransitOptions {
        let mut options = TransitOptions::new(&self.address, KEY, login);
        options.ca = Some(self.certificates.ca.clone());
        options.namespace.clone_from(&self.namespace);
        // The machine may be slow.
        options.connect_timeout = Duration::from_secs(60);
        options.request_timeout = Duration::from_secs(60);
        options
    }

    pub(super) fn by_root_token(&self) -> TransitOptions {
        self.options(TransitLogin::TokenFile(
            self.secret_file("root-token", &self.root_token),
        ))
    }

    pub(super) async fn by_token(&self, keys: &[&str]) -> TransitOptions {
        let token = self.token(keys, 600).await;
        self.options(TransitLogin::TokenFile(self.secret_file("token", &token)))
    }

    pub(super) async fn by_approle(&self, keys: &[&str]) -> TransitOptions {
        self.by_approle_with(keys, 600, 0).await
    }

    /// Makes a role whose tokens have this lifetime and maximum lifetime in seconds.
    pub(super) async fn by_approle_with(
        &self,
        keys: &[&str],
        ttl: u64,
        max_ttl: u64,
    ) -> TransitOptions {
        self.policy(keys).await;
        let role =
            json!({ "token_policies": [keys[0]], "token_ttl": ttl, "token_max_ttl": max_ttl });
        self.admin("POST", "auth/approle/role/sealwire", role).await;
        let secret_id = self
            .admin("POST", "auth/approle/role/sealwire/secret-id", json!({}))
            .await;
        let secret_id = secret_id["data"]["secret_id"].as_str().unwrap().to_owned();
        let secret_id = SecretIdSource::File(self.secret_file("secret-id", &secret_id));
        self.options(TransitLogin::AppRole {
            mount: "approle".into(),
            role_id: self.role_id().await,
            secret_id,
        })
    }

    pub(super) async fn by_wrapped_approle(&self, keys: &[&str]) -> TransitOptions {
        self.policy(keys).await;
        let role = json!({ "token_policies": [keys[0]], "token_ttl": 600 });
        self.admin("POST", "auth/approle/role/sealwire", role).await;
        let file = self.secret_file("wrapping-token", &self.wrapping_token().await);
        let secret_id = SecretIdSource::Wrapped {
            file,
            creation_path: "auth/approle/role/sealwire/secret-id".into(),
        };
        self.options(TransitLogin::AppRole {
            mount: "approle".into(),
            role_id: self.role_id().await,
            secret_id,
        })
    }

    async fn role_id(&self) -> String {
        let role = self
            .admin("GET", "auth/approle/role/sealwire/role-id", json!({}))
            .await;
        role["data"]["role_id"].as_str().unwrap().to_owned()
    }

    pub(super) async fn wrapping_token(&self) -> String {
        let path = "auth/approle/role/sealwire/secret-id";
        let wrapped = self.try_admin("POST", path, json!({}), true).await.unwrap();
        wrapped["wrap_info"]["token"].as_str().unwrap().to_owned()
    }

    pub(super) async fn by_certificate(&self, role: Option<&str>) -> TransitOptions {
        let login = TransitLogin::Certificate {
            mount: "cert".into(),
            role: role.map(str::to_owned),
        };
        let mut options = self.options(login);
        options.client_certificate = Some(self.certificates.client.clone());
        options.client_key = Some(self.certificates.client_key.clone());
        options
    }

    /// Returns options with a certificate that no role knows: the server's.
    pub(super) async fn by_strange_certificate(&self) -> TransitOptions {
        let folder = self.folder.path().join("strange-client");
        fs::create_dir(&folder).unwrap();
        let strange = Certificates::make(&folder, "stranger").unwrap();
        let mut options = self.by_certificate(None).await;
        (options.client_certificate, options.client_key) =
            (Some(strange.client), Some(strange.client_key));
        options
    }

    /// Returns the certificate of an authority that did not issue the server's.
    pub(super) fn strange_ca(&self) -> Vec<u8> {
        let folder = self.folder.path().join("strange-ca");
        fs::create_dir(&folder).unwrap();
        fs::read(Certificates::make(&folder, "stranger").unwrap().ca).unwrap()
    }
}

impl Drop for TransitHarness {
    fn drop(&mut self) {
        if let HarnessServer::Real(child) = &mut self.server {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let log = fs::read_to_string(self.folder.path().join("server.log"));
                let _ = writeln!(io::stderr(), "{}", log.unwrap_or_default());
            }
        }
    }
}

/// Starts `bao server` or `vault server` on ports of 127.0.0.1, with TLS and its store in memory.
fn start_real(
    program: &Path,
    folder: &Path,
    certificates: &Certificates,
    [port, cluster_port]: [u16; 2],
) -> Child {
    let config = json!({
        "storage": { "inmem": {} },
        "listener": { "tcp": {
            "address": format!("127.0.0.1:{port}"),
            "cluster_address": format!("127.0.0.1:{cluster_port}"),
            "tls_cert_file": certificates.server,
            "tls_key_file": certificates.server_key,
        } },
        "api_addr": format!("https://127.0.0.1:{port}"),
        "disable_mlock": true,
    });
    let path = folder.join("server.json");
    fs::write(&path, config.to_string()).unwrap();
    let log = fs::File::create(folder.join("server.log")).unwrap();
    Command::new(program)
        .args(["server", "-config"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("SEALWIRE_TEST_OPENBAO={}: {error}", program.display()))
}

pub(super) fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

pub(super) async fn token_of(transit: &Transit) -> String {
    transit
        .inner
        .login
        .lock()
        .await
        .current_secret()
        .unwrap_or_default()
}

/// Returns the time when the current token was issued or renewed.
pub(super) async fn granted(transit: &Transit) -> Option<Instant> {
    transit.inner.login.lock().await.granted()
}

/// Moves the clock of this runtime ahead.
pub(super) async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Waits for a condition. A condition that does not come true is a failure.
pub(super) async fn until(condition: impl AsyncFn() -> bool) {
    let start = std::time::Instant::now();
    while !condition().await {
        assert!(start.elapsed() < HANG, "a condition did not come true");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
