//! The transit engine of HashiCorp Vault or OpenBao as a provider.
//!
//! The root key is encrypted under a named key of the transit engine, with [`WrapSlot::aad`] as
//! associated data. The wrapped copy is the engine's text, `vault:v1:...`, so a rotated transit key
//! still opens copies of its earlier versions.
//!
//! The key must be of a type with associated data (`aes256-gcm96`, `chacha20-poly1305`) and not
//! derived. The policy of the token needs `update` on `MOUNT/encrypt/KEY` and `MOUNT/decrypt/KEY`.
//! The policy should not have `create`: with this capability the engine creates a new key if the
//! configured name is wrong.
//!
//! The texts of error responses can repeat the input, so they select the error to return and are
//! never quoted.

mod login;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

use crate::https::{
    HttpError, HttpResponse, HttpsClient, ProviderOrigin, TRIES_MAX, TlsFiles, check_timeout,
    pause_after,
};
use crate::{
    Provider, ProviderError, ProviderKind, RootBytes, WRAPPED_BYTES_MAX, WrapSlot, reject_long,
    settings_error,
};
use login::{ClientToken, LoginState};

/// Upper bound of a provider call, as a multiple of `request_timeout`. Includes logins, retries and
/// waits for other calls.
const CALL_TIMEOUTS: u32 = 4;
/// Longest name of a key, and longest path of a mount or namespace, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// A file with a client certificate, and one with its private key.
type ClientFiles = Option<(PathBuf, PathBuf)>;

/// The address of a transit engine and the login method. Contains no secret: secrets are in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitOptions {
    /// `https://host[:port]` of the server; the default port is 443. `http://` is allowed only for
    /// hosts on this machine: localhost, 127.0.0.0/8, `::1`.
    pub address: String,
    /// PEM certificates of the authority that issued the server's certificate, at most 1 MiB.
    /// Required for `https://`.
    pub ca: Option<PathBuf>,
    /// PEM client certificate, at most 1 MiB. Required for [`TransitLogin::Certificate`].
    pub client_certificate: Option<PathBuf>,
    /// PEM private key of the client certificate, readable only by its owner or group, at most 64
    /// KiB.
    pub client_key: Option<PathBuf>,
    /// The namespace that holds the mounts, such as `team/payments`.
    pub namespace: Option<String>,
    /// The path of the transit engine. Default `transit`.
    pub mount: String,
    /// The name of the transit key. Letters, digits, `.`, `_`, `-`; at most 256 bytes.
    pub key: String,
    /// How to get a token.
    pub login: TransitLogin,
    /// Longest time until a connection is established, with TLS: 100 ms to 60 s, default 2 s.
    pub connect_timeout: Duration,
    /// Longest time of one request, with its connection: 100 ms to 60 s, default 5 s. A provider
    /// call tries at most three times and takes at most four times this value.
    pub request_timeout: Duration,
}

impl TransitOptions {
    /// Creates options with the defaults.
    #[must_use]
    pub fn new(address: impl Into<String>, key: impl Into<String>, login: TransitLogin) -> Self {
        Self {
            address: address.into(),
            ca: None,
            client_certificate: None,
            client_key: None,
            namespace: None,
            mount: "transit".into(),
            key: key.into(),
            login,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
        }
    }

    /// Checks the options. Returns the origin, and the client certificate with its key. Errors name
    /// an option by its setting.
    pub(crate) fn check(&self) -> Result<(ProviderOrigin, ClientFiles), ProviderError> {
        let origin = ProviderOrigin::parse(&self.address, "transit.address")?;
        if origin.tls() && self.ca.is_none() {
            return Err(settings_error("transit.ca is required for https://"));
        }

        let client = match (&self.client_certificate, &self.client_key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => {
                return Err(settings_error(
                    "transit.client_certificate and client_key must be set together",
                ));
            }
        };

        check_segment("transit.key", &self.key)?;
        check_path("transit.mount", &self.mount)?;
        if let Some(namespace) = &self.namespace {
            check_path("transit.namespace", namespace)?;
        }

        match &self.login {
            TransitLogin::TokenFile(_) => (),
            TransitLogin::AppRole {
                mount,
                role_id,
                secret_id,
            } => {
                check_path("transit.approle_mount", mount)?;
                if role_id.is_empty() || role_id.len() > 4_096 {
                    return Err(settings_error("transit.role_id must have 1 to 4096 bytes"));
                }
                if let SecretIdSource::Wrapped { creation_path, .. } = secret_id {
                    check_path("transit.wrapped_creation_path", creation_path)?;
                }
            }
            TransitLogin::Certificate { mount, role } => {
                check_path("transit.cert_mount", mount)?;
                if role
                    .as_ref()
                    .is_some_and(|role| role.is_empty() || role.len() > NAME_BYTES_MAX)
                {
                    return Err(settings_error("transit.cert_role must have 1 to 256 bytes"));
                }
                if client.is_none() || !origin.tls() {
                    return Err(settings_error(
                        "transit.client_certificate is required by this login, with client_key and https://",
                    ));
                }
            }
        }

        check_timeout("transit.connect_timeout_ms", self.connect_timeout)?;
        check_timeout("transit.request_timeout_ms", self.request_timeout)?;
        Ok((origin, client))
    }
}

/// The way to get a token. Files are read again for each login and must be readable only by their
/// owner or group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransitLogin {
    /// A file with a token, on one line. The token is renewed if it is renewable. The file is read
    /// again when the server no longer accepts the token.
    TokenFile(PathBuf),
    /// The auth method AppRole.
    AppRole {
        /// The path of the auth method below `auth/`. Usually `approle`.
        mount: String,
        /// The role id, which is a name and not a secret.
        role_id: String,
        /// The secret id.
        secret_id: SecretIdSource,
    },
    /// The auth method for TLS certificates, with the client certificate of [`TransitOptions`].
    Certificate {
        /// The path of the auth method below `auth/`. Usually `cert`.
        mount: String,
        /// The certificate role to log in to. Without a name, the server selects any role that
        /// matches the certificate.
        role: Option<String>,
    },
}

/// The source of the secret id of AppRole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretIdSource {
    /// A file with the secret id, on one line.
    File(PathBuf),
    /// A file with a wrapping token, which can be unwrapped only once. The secret id stays in
    /// memory, so each start of the process needs a new wrapping token. If the token was already
    /// unwrapped, someone else can have the secret id.
    Wrapped {
        /// The file with the wrapping token, on one line.
        file: PathBuf,
        /// The path that created the wrapping token, such as
        /// `auth/approle/role/sealwire/secret-id`. A token that another path created is not
        /// unwrapped.
        creation_path: String,
    },
}

/// Wraps root keys by a transit engine.
///
/// The token stays in memory. A task renews the token at two thirds of its lifetime, and is aborted
/// when this provider is dropped. If the token cannot be renewed or is no longer accepted, the next
/// provider call logs in again, at most once.
pub struct Transit {
    inner: Arc<TransitClient>,
}

struct TransitClient {
    options: TransitOptions,
    client: HttpsClient,
    login: tokio::sync::Mutex<LoginState>,
    /// True after a test has shown that the server checks associated data.
    associated_data_checked: AtomicBool,
    renewal: std::sync::Mutex<Option<tokio::task::AbortHandle>>,
}

impl Transit {
    /// Creates a provider. Reads no file and opens no connection.
    ///
    /// # Errors
    /// [`ProviderError::Settings`] if an option is missing or out of its limits.
    pub fn new(options: TransitOptions) -> Result<Self, ProviderError> {
        let (origin, client) = options.check()?;
        let client = HttpsClient {
            origin,
            files: TlsFiles::new(options.ca.clone(), client),
            connect_timeout: options.connect_timeout,
            request_timeout: options.request_timeout,
        };

        let inner = TransitClient {
            options,
            client,
            login: tokio::sync::Mutex::default(),
            associated_data_checked: AtomicBool::new(false),
            renewal: std::sync::Mutex::default(),
        };

        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

impl fmt::Debug for Transit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transit").field(&self.inner.options).finish()
    }
}

impl Drop for Transit {
    fn drop(&mut self) {
        self.inner.replace_renewal(None);
    }
}

impl Drop for TransitClient {
    /// Also aborts a renewal task that a login started after its provider was dropped.
    fn drop(&mut self) {
        self.replace_renewal(None);
    }
}

#[async_trait]
impl Provider for Transit {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Transit
    }

    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        let plaintext = Zeroizing::new(BASE64.encode(root.as_slice()));
        let aad = slot.aad();
        let fields = [
            ("plaintext", plaintext.as_str()),
            ("associated_data", &BASE64.encode(&aad)),
        ];
        let response = self
            .inner
            .call_engine(TransitAction::Encrypt, &fields)
            .await?;
        let CiphertextData { ciphertext } = data_of(TransitAction::Encrypt.name(), &response.body)?;
        if !is_ciphertext(&ciphertext) {
            return Err(wrong_answer(TransitAction::Encrypt.name()));
        }

        if !self.inner.associated_data_checked.load(Ordering::Relaxed) {
            self.inner.check_associated_data(&ciphertext, aad).await?;
            self.inner
                .associated_data_checked
                .store(true, Ordering::Relaxed);
        }

        Ok(ciphertext.into_bytes())
    }

    async fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError> {
        reject_long(wrapped)?;
        let ciphertext = std::str::from_utf8(wrapped)
            .ok()
            .filter(|text| is_ciphertext(text));
        let ciphertext = ciphertext.ok_or_else(|| {
            ProviderError::DoesNotUnwrap(
                "transit decrypt: the copy is not a text of transit".into(),
            )
        })?;
        let plaintext = self.inner.decrypt_copy(ciphertext, &slot.aad()).await?;
        // Large enough for the decoder's estimate of the decoded length.
        let mut decoded = Zeroizing::new([0; 48]);
        let length = BASE64.decode_slice(plaintext.0.as_bytes(), decoded.as_mut_slice());
        let mut root = RootBytes::default();
        match length {
            Ok(length) if length == root.len() => root.copy_from_slice(&decoded[..length]),
            _ => return Err(wrong_answer(TransitAction::Decrypt.name())),
        }

        Ok(root)
    }
}

/// An operation of the transit engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TransitAction {
    Encrypt,
    Decrypt,
}

impl TransitAction {
    const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
        }
    }

    /// Returns the error for status 400. `body` selects it and is not quoted.
    fn invalid_request_error(self, body: &[u8]) -> ProviderError {
        let text = String::from_utf8_lossy(body);
        let name = self.name();
        if contains_any(&text, &["key not found", "deleted"]) {
            ProviderError::NotFound(format!(
                "transit {name}: status 400: the transit key is missing"
            ))
        } else if contains_any(&text, &["non-AEAD", "not supported", "key derivation"])
            || self == Self::Encrypt
        {
            let text = "the transit key must be of type aes256-gcm96 or chacha20-poly1305, and not derived";
            ProviderError::Settings(format!("transit {name}: status 400: {text}"))
        } else {
            ProviderError::DoesNotUnwrap(format!(
                "transit {name}: status 400: the copy does not unwrap"
            ))
        }
    }
}

fn contains_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

/// A request failed.
struct FailedRequest {
    error: ProviderError,
    /// Sending the request again at once can help.
    transient: bool,
    /// The server responded.
    responded: bool,
}

impl FailedRequest {
    /// Returns the failure for a token or a path that HTTP cannot represent.
    fn unusable(what: &str) -> Self {
        ProviderError::Settings(format!(
            "transit {what}: the token or the path contains invalid characters"
        ))
        .into()
    }

    fn from_http(what: &str, error: HttpError) -> Self {
        let transient = error.is_transient();
        Self {
            error: error.into_provider_error(&format!("transit {what}")),
            transient,
            responded: false,
        }
    }

    fn from_response(error: ProviderError) -> Self {
        Self {
            error,
            transient: false,
            responded: true,
        }
    }

    /// Returns the failure for a status, or `None` for success. The meaning of status 400 depends
    /// on the request.
    fn from_status(what: &str, status: StatusCode) -> Option<Self> {
        let phrase = match status.as_u16() {
            200..=299 => return None,
            403 => "the credential does not permit this",
            404 => "check the mount, the key and the namespace",
            301 | 302 | 307 | 308 => "this node redirects to another, which is not followed",
            412 => "this node is behind the active node",
            429 => "too many requests",
            503 => "the server is sealed or in maintenance",
            500..=599 => "the server failed",
            _ => "an unexpected status",
        };

        let text = format!("transit {what}: status {}: {phrase}", status.as_u16());
        Some(match status.as_u16() {
            403 => Self::from_response(ProviderError::Denied(text)),
            404 => Self::from_response(ProviderError::NotFound(text)),
            301 | 302 | 307 | 308 | 412 | 429 | 500..=599 => Self {
                error: ProviderError::Unavailable(text),
                transient: true,
                responded: true,
            },
            _ => Self::from_response(ProviderError::WrongAnswer(text)),
        })
    }
}

impl From<ProviderError> for FailedRequest {
    fn from(error: ProviderError) -> Self {
        Self {
            error,
            transient: false,
            responded: false,
        }
    }
}

/// Limits one provider call to one login.
#[derive(Default)]
struct LoginBudget {
    /// This call has logged in.
    used: bool,
    /// The token that the server did not accept.
    rejected: Option<Arc<ClientToken>>,
}

impl TransitClient {
    /// Decrypts a ciphertext of the transit engine.
    async fn decrypt_copy(
        self: &Arc<Self>,
        ciphertext: &str,
        aad: &[u8],
    ) -> Result<SecretText, ProviderError> {
        let fields = [
            ("ciphertext", ciphertext),
            ("associated_data", &BASE64.encode(aad)),
        ];
        let response = self.call_engine(TransitAction::Decrypt, &fields).await?;
        let PlaintextData { plaintext } = data_of(TransitAction::Decrypt.name(), &response.body)?;
        Ok(plaintext)
    }

    /// Tests that the server checks associated data: decryption with the data of another slot must
    /// fail. Servers that are older than the field `associated_data` ignore it.
    async fn check_associated_data(
        self: &Arc<Self>,
        ciphertext: &str,
        mut aad: Vec<u8>,
    ) -> Result<(), ProviderError> {
        aad.push(0);
        match self.decrypt_copy(ciphertext, &aad).await {
            Err(ProviderError::DoesNotUnwrap(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(ProviderError::Settings(
                "transit encrypt: the server ignores associated_data; it is too old to bind a copy to its slot".into(),
            )),
        }
    }

    /// Calls the transit engine within the time limit of a provider call.
    async fn call_engine(
        self: &Arc<Self>,
        action: TransitAction,
        fields: &[(&str, &str)],
    ) -> Result<HttpResponse, ProviderError> {
        let limit = self.client.request_timeout * CALL_TIMEOUTS;
        timeout(limit, self.send_with_retries(action, fields))
            .await
            .unwrap_or_else(|_| {
                let text = format!(
                    "transit {}: no response within {} ms",
                    action.name(),
                    limit.as_millis()
                );
                Err(ProviderError::Unavailable(text))
            })
    }

    async fn send_with_retries(
        self: &Arc<Self>,
        action: TransitAction,
        fields: &[(&str, &str)],
    ) -> Result<HttpResponse, ProviderError> {
        let mut logins = LoginBudget::default();
        let mut tries = 1;
        loop {
            match self.send_with_token(action, fields, &mut logins).await {
                Ok(response) => return Ok(response),
                Err(failed) if failed.transient && tries < TRIES_MAX => {
                    sleep(pause_after(tries)).await
                }
                Err(failed) => return Err(failed.error),
            }

            tries += 1;
        }
    }

    /// Sends the request once, and once more after a new login if the server does not accept the
    /// token.
    async fn send_with_token(
        self: &Arc<Self>,
        action: TransitAction,
        fields: &[(&str, &str)],
        logins: &mut LoginBudget,
    ) -> Result<HttpResponse, FailedRequest> {
        let path = format!(
            "{}/{}/{}",
            self.options.mount,
            action.name(),
            self.options.key
        );
        loop {
            let token = self.obtain_token(logins).await?;
            let response = self
                .send_request(
                    action.name(),
                    Method::POST,
                    &path,
                    Some(&token.secret),
                    fields,
                )
                .await?;
            match response.status {
                StatusCode::FORBIDDEN if !logins.used => logins.rejected = Some(token),
                StatusCode::BAD_REQUEST => {
                    return Err(FailedRequest::from_response(
                        action.invalid_request_error(&response.body),
                    ));
                }
                status => {
                    return FailedRequest::from_status(action.name(), status)
                        .map_or(Ok(response), Err);
                }
            }
        }
    }

    /// Sends one request. Returns the response with any status.
    async fn send_request(
        &self,
        what: &str,
        method: Method,
        path: &str,
        token: Option<&str>,
        fields: &[(&str, &str)],
    ) -> Result<HttpResponse, FailedRequest> {
        let mut request = Request::builder()
            .method(&method)
            .uri(format!("/v1/{path}"))
            // Servers can be configured to require this header.
            .header("x-vault-request", "true");
        if let Some(namespace) = &self.options.namespace {
            request = request.header("x-vault-namespace", namespace);
        }

        if let Some(token) = token {
            let mut token =
                HeaderValue::from_str(token).map_err(|_| FailedRequest::unusable(what))?;
            token.set_sensitive(true);
            request = request.header("x-vault-token", token);
        }

        let body = if method == Method::GET {
            Bytes::new()
        } else {
            encode_json(fields)
        };

        let request = request
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|_| FailedRequest::unusable(what))?;
        self.client
            .send(request)
            .await
            .map_err(|error| FailedRequest::from_http(what, error))
    }
}

/// Encodes a JSON object of strings. The bytes are wiped on drop.
fn encode_json(fields: &[(&str, &str)]) -> Bytes {
    // An escaped byte needs at most six bytes. A single allocation leaves no copies in freed
    // memory.
    let capacity = fields
        .iter()
        .map(|(name, value)| name.len() + 6 * value.len() + 8)
        .sum::<usize>()
        + 2;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    bytes.push(b'{');
    for (index, (name, value)) in fields.iter().enumerate() {
        if index > 0 {
            bytes.push(b',');
        }
        for (text, end) in [(name, b':'), (value, b' ')] {
            // Writing to memory cannot fail.
            let _ = serde_json::to_writer(&mut *bytes, text);
            bytes.push(end);
        }
    }

    bytes.push(b'}');
    Bytes::from_owner(bytes)
}

/// A text that is wiped on drop.
struct SecretText(Zeroizing<String>);

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

#[derive(Deserialize)]
struct ResponseBody<T> {
    data: T,
}

#[derive(Deserialize)]
struct CiphertextData {
    ciphertext: String,
}

#[derive(Deserialize)]
struct PlaintextData {
    plaintext: SecretText,
}

/// Parses the field `data` of a response.
fn data_of<'de, T: Deserialize<'de>>(what: &str, body: &'de [u8]) -> Result<T, ProviderError> {
    // The parser's error can quote the text.
    serde_json::from_slice(body)
        .map(|body: ResponseBody<T>| body.data)
        .map_err(|_| wrong_answer(what))
}

fn wrong_answer(what: &str) -> ProviderError {
    ProviderError::WrongAnswer(format!(
        "transit {what}: the response does not have the form that the transit API specifies"
    ))
}

/// Returns true if a text is `vault:v`, a version, a colon and base64, each in canonical form.
/// Servers also accept `v0`, `v01`, line breaks and unused bits in base64. These forms are not
/// sent, because an altered copy must not decrypt.
fn is_ciphertext(text: &str) -> bool {
    let parts = text
        .strip_prefix("vault:v")
        .and_then(|rest| rest.split_once(':'));
    parts.is_some_and(|(version, sealed)| {
        let is_version =
            version.bytes().all(|byte| byte.is_ascii_digit()) && !version.starts_with('0');
        let is_base64 = BASE64.decode(sealed).is_ok_and(|bytes| !bytes.is_empty());
        text.len() <= WRAPPED_BYTES_MAX && !version.is_empty() && is_version && is_base64
    })
}

/// Checks one segment of a path.
fn check_segment(key: &str, text: &str) -> Result<(), ProviderError> {
    let usable = text
        .bytes()
        .all(|byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && text.bytes().any(|byte| byte != b'.')
        && text.len() <= NAME_BYTES_MAX;
    if usable {
        return Ok(());
    }

    let text = format!(
        "{key} must have 1 to {NAME_BYTES_MAX} letters, digits, dots, underscores and hyphens"
    );
    Err(ProviderError::Settings(text))
}

/// Checks a path of several segments, without a slash at either end.
fn check_path(key: &str, text: &str) -> Result<(), ProviderError> {
    if text.len() > NAME_BYTES_MAX {
        return Err(ProviderError::Settings(format!(
            "{key} must have at most {NAME_BYTES_MAX} bytes"
        )));
    }
    text.split('/')
        .try_for_each(|segment| check_segment(key, segment))
}
