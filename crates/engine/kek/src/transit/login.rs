//! Logins and the lifetime of tokens.

use std::path::Path;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde::Deserialize;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use zeroize::Zeroizing;

use super::{
    FailedRequest, LoginBudget, SecretIdSource, SecretText, TransitClient, TransitLogin, data_of,
    wrong_answer,
};
use crate::ProviderError;
use crate::secret_file::read_secret_line;

/// Shortest pause between two renewals of a token. Without it, a token of a very short lifetime
/// would be renewed without a pause.
const RENEWAL_PAUSE_MIN: Duration = Duration::from_secs(1);

/// A token and its lifetime.
pub(super) struct ClientToken {
    pub(super) secret: Zeroizing<String>,
    /// The lifetime at issue. Zero if the token does not expire or its lifetime is unknown.
    issued_ttl: Duration,
    /// The lifetime that the server granted at issue or at the last renewal.
    ttl: Duration,
    granted: Instant,
    renewable: bool,
}

/// The age of a token in relation to its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenState {
    /// Less than two thirds of the lifetime have passed, or the token does not expire.
    Fresh,
    /// Two thirds of the lifetime have passed. The token still works and is renewed.
    Due,
    /// The lifetime has ended.
    Expired,
}

impl ClientToken {
    fn new(secret: Zeroizing<String>, ttl: Duration, renewable: bool) -> Self {
        Self {
            secret,
            issued_ttl: ttl,
            ttl,
            granted: Instant::now(),
            renewable,
        }
    }

    fn state_at(&self, now: Instant) -> TokenState {
        if self.ttl.is_zero() || now < self.renewal_due() {
            TokenState::Fresh
        } else if now < self.granted + self.ttl {
            TokenState::Due
        } else {
            TokenState::Expired
        }
    }

    fn renewal_due(&self) -> Instant {
        self.granted + self.ttl * 2 / 3
    }

    /// Returns true if a renewal is worth a request. The server grants shorter and shorter
    /// lifetimes near the maximum lifetime of a token. Below half of the first lifetime, a login is
    /// better.
    fn can_renew(&self) -> bool {
        self.renewable && !self.ttl.is_zero() && self.ttl >= self.issued_ttl / 2
    }
}

/// The current token, and the secret id from which it was made if that came wrapped.
#[derive(Default)]
pub(super) struct LoginState {
    token: Option<Arc<ClientToken>>,
    /// The wrapping token that was unwrapped last, and its secret id. A wrapping token works only
    /// once, so the secret id is kept for later logins.
    unwrapped: Option<(Zeroizing<String>, Zeroizing<String>)>,
}

#[derive(Deserialize)]
struct AuthBody {
    auth: Auth,
}

#[derive(Deserialize)]
struct Auth {
    client_token: SecretText,
    lease_duration: u64,
    renewable: bool,
}

#[derive(Deserialize)]
struct LookupData {
    ttl: u64,
    #[serde(default)]
    renewable: bool,
}

#[derive(Deserialize)]
struct WrappingData {
    creation_path: String,
}

#[derive(Deserialize)]
struct SecretIdData {
    secret_id: SecretText,
}

/// Longer lifetimes are cut to ten years, so that sums of times cannot overflow.
const TTL_SECONDS_MAX: u64 = 10 * 365 * 86_400;

fn bounded_seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(TTL_SECONDS_MAX))
}

impl TransitClient {
    /// Returns a token. Logs in if no usable token exists.
    ///
    /// The login runs in a separate task, so a dropped call cannot lose an unwrapped secret id.
    pub(super) async fn obtain_token(
        self: &Arc<Self>,
        logins: &mut LoginBudget,
    ) -> Result<Arc<ClientToken>, FailedRequest> {
        let client = Arc::clone(self);
        let rejected = logins.rejected.take();
        let had_rejected = rejected.is_some();
        let result = tokio::spawn(async move { client.usable_token(rejected).await }).await;
        let (token, logged_in) = result.map_err(|_| {
            FailedRequest::from(ProviderError::Unavailable(
                "transit login: the login ended early; the engine shuts down, or see the log"
                    .into(),
            ))
        })??;
        // If the rejected token was replaced by a concurrent call, that login counts for this
        // request too.
        logins.used |= logged_in || had_rejected;
        Ok(token)
    }

    /// Returns a token other than the rejected one, and whether a login was made for it.
    async fn usable_token(
        self: &Arc<Self>,
        rejected: Option<Arc<ClientToken>>,
    ) -> Result<(Arc<ClientToken>, bool), FailedRequest> {
        let mut login = self.login.lock().await;
        let current = login.token.clone();
        let current = current.filter(|token| {
            rejected
                .as_ref()
                .is_none_or(|rejected| *rejected.secret != *token.secret)
        });
        let Some(token) = current else {
            login.token = None;
            return Ok((self.log_in(&mut login, rejected.as_deref()).await?, true));
        };

        let state = token.state_at(Instant::now());
        if state == TokenState::Fresh {
            return Ok((token, false));
        }

        if state == TokenState::Due && token.can_renew() {
            match self.renew_token(&token).await {
                Ok(renewed) => {
                    login.token = Some(Arc::clone(&renewed));
                    return Ok((renewed, false));
                }
                Err(failed) if !failed.responded => return Ok((token, false)),
                Err(_) => (),
            }
        }

        match self.log_in(&mut login, None).await {
            Ok(new) => Ok((new, true)),
            Err(failed) if state == TokenState::Due => {
                tracing::warn!(error = %failed.error, "the login to the transit provider failed; the current token is used until it expires");
                Ok((token, false))
            }
            Err(failed) => Err(failed),
        }
    }

    async fn log_in(
        self: &Arc<Self>,
        login: &mut LoginState,
        rejected: Option<&ClientToken>,
    ) -> Result<Arc<ClientToken>, FailedRequest> {
        let token = match &self.options.login {
            TransitLogin::TokenFile(file) => {
                let secret = self.read_line(file).await?;
                if rejected.is_some_and(|rejected| *rejected.secret == *secret) {
                    let text = format!(
                        "transit login: the server rejects the token in {}; write a new token to the file",
                        file.display()
                    );
                    return Err(FailedRequest::from_response(ProviderError::Denied(text)));
                }
                self.look_up(secret).await?
            }
            TransitLogin::AppRole {
                mount,
                role_id,
                secret_id,
            } => {
                let secret_id = match secret_id {
                    SecretIdSource::File(file) => self.read_line(file).await?,
                    SecretIdSource::Wrapped {
                        file,
                        creation_path,
                    } => self.unwrap_secret_id(login, file, creation_path).await?,
                };
                let fields = [("role_id", role_id.as_str()), ("secret_id", &secret_id)];
                self.log_in_at(mount, &fields).await?
            }
            TransitLogin::Certificate { mount, role } => {
                let fields = role.as_ref().map(|role| ("name", role.as_str()));
                self.log_in_at(mount, fields.as_slice()).await?
            }
        };

        let token = Arc::new(token);
        login.token = Some(Arc::clone(&token));
        let renewal = token
            .can_renew()
            .then(|| tokio::spawn(keep_renewed(Arc::downgrade(self))).abort_handle());
        self.replace_renewal(renewal);
        Ok(token)
    }

    /// Logs in at `auth/MOUNT/login`.
    async fn log_in_at(
        &self,
        mount: &str,
        fields: &[(&str, &str)],
    ) -> Result<ClientToken, FailedRequest> {
        let response = self
            .send_request(
                "login",
                Method::POST,
                &format!("auth/{mount}/login"),
                None,
                fields,
            )
            .await?;
        if response.status == StatusCode::BAD_REQUEST {
            let text = "transit login: status 400: the server rejects the credential; check the role and the secret id or certificate";
            return Err(FailedRequest::from_response(ProviderError::Denied(
                text.into(),
            )));
        }

        FailedRequest::from_status("login", response.status).map_or(Ok(()), Err)?;
        let auth = auth_of("login", &response.body)?;
        Ok(ClientToken::new(
            auth.client_token.0,
            bounded_seconds(auth.lease_duration),
            auth.renewable,
        ))
    }

    /// Looks up the lifetime of a token. If the policy forbids the lookup, the token is used with
    /// an unknown lifetime.
    async fn look_up(&self, secret: Zeroizing<String>) -> Result<ClientToken, FailedRequest> {
        let response = self
            .send_request(
                "login",
                Method::GET,
                "auth/token/lookup-self",
                Some(&secret),
                &[],
            )
            .await?;
        if response.status == StatusCode::FORBIDDEN {
            return Ok(ClientToken::new(secret, Duration::ZERO, false));
        }

        FailedRequest::from_status("login", response.status).map_or(Ok(()), Err)?;
        let data: LookupData =
            data_of("login", &response.body).map_err(FailedRequest::from_response)?;
        Ok(ClientToken::new(
            secret,
            bounded_seconds(data.ttl),
            data.renewable,
        ))
    }

    /// Renews a token. The server can grant a shorter lifetime than before.
    async fn renew_token(&self, token: &ClientToken) -> Result<Arc<ClientToken>, FailedRequest> {
        let response = self
            .send_request(
                "renew",
                Method::POST,
                "auth/token/renew-self",
                Some(&token.secret),
                &[],
            )
            .await?;
        if response.status == StatusCode::BAD_REQUEST {
            let text = "transit renew: status 400: the token cannot be renewed";
            return Err(FailedRequest::from_response(ProviderError::Denied(
                text.into(),
            )));
        }

        FailedRequest::from_status("renew", response.status).map_or(Ok(()), Err)?;
        let auth = auth_of("renew", &response.body)?;
        let renewed = ClientToken {
            secret: token.secret.clone(),
            issued_ttl: token.issued_ttl,
            ttl: bounded_seconds(auth.lease_duration),
            granted: Instant::now(),
            renewable: auth.renewable,
        };

        Ok(Arc::new(renewed))
    }

    /// Unwraps the secret id of the wrapping token in `file`. If the file is missing or still
    /// contains the token that was unwrapped last, returns the secret id that was kept. Checks
    /// first that the server created the token at `creation_path`, so that nobody can pass a token
    /// of their own.
    async fn unwrap_secret_id(
        &self,
        login: &mut LoginState,
        file: &Path,
        creation_path: &str,
    ) -> Result<Zeroizing<String>, FailedRequest> {
        let wrapping = match (self.read_line(file).await, &login.unwrapped) {
            // The file can be removed after its token was unwrapped.
            (Err(_), Some((_, secret_id))) => return Ok(secret_id.clone()),
            (Ok(wrapping), Some((used, secret_id))) if wrapping == *used => {
                return Ok(secret_id.clone());
            }
            (wrapping, _) => wrapping?,
        };

        let what = "unwrap";
        let fields = [("token", wrapping.as_str())];
        let response = self
            .send_request(what, Method::POST, "sys/wrapping/lookup", None, &fields)
            .await?;
        if matches!(
            response.status,
            StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::NO_CONTENT
        ) {
            return Err(used_token_error(what, file));
        }

        FailedRequest::from_status(what, response.status).map_or(Ok(()), Err)?;
        let data: WrappingData =
            data_of(what, &response.body).map_err(FailedRequest::from_response)?;
        if data.creation_path != creation_path {
            let text = format!(
                "{}: the wrapping token was not created at {creation_path}, so somebody can have replaced it; do not use it",
                file.display()
            );
            return Err(FailedRequest::from_response(ProviderError::Denied(
                format!("transit {what}: {text}"),
            )));
        }

        let response = self
            .send_request(
                what,
                Method::POST,
                "sys/wrapping/unwrap",
                Some(&wrapping),
                &[],
            )
            .await;
        // The server can have unwrapped the token although its response did not arrive, so this
        // request is not repeated.
        let response = response.map_err(|failed| FailedRequest {
            transient: false,
            ..failed
        })?;
        if matches!(
            response.status,
            StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::NO_CONTENT
        ) {
            return Err(used_token_error(what, file));
        }

        FailedRequest::from_status(what, response.status).map_or(Ok(()), Err)?;
        let data: SecretIdData =
            data_of(what, &response.body).map_err(FailedRequest::from_response)?;
        login.unwrapped = Some((wrapping, data.secret_id.0.clone()));
        Ok(data.secret_id.0)
    }

    async fn read_line(&self, file: &Path) -> Result<Zeroizing<String>, FailedRequest> {
        let place = file.display().to_string();
        let file = file.to_owned();
        let read = self
            .client
            .files
            .reader
            .run(&place, move || read_secret_line(&file))
            .await;
        read.map_err(FailedRequest::from)
    }

    /// Aborts the task that renews the previous token, and keeps the handle of the next task, if
    /// any.
    pub(super) fn replace_renewal(&self, renewal: Option<AbortHandle>) {
        let mut current = self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(previous) = std::mem::replace(&mut *current, renewal) {
            previous.abort();
        }
    }

    /// Renews the current token if its renewal is due. Returns the time of the next renewal, or
    /// `None` if a login is required.
    async fn renew_if_due(&self) -> Option<Instant> {
        let mut login = self.login.lock().await;
        let token = Arc::clone(login.token.as_ref()?);
        if !token.can_renew() {
            return None;
        }

        let now = Instant::now();
        match token.state_at(now) {
            TokenState::Fresh => return Some(token.renewal_due()),
            TokenState::Expired => return None,
            TokenState::Due => (),
        }

        match self.renew_token(&token).await {
            Ok(renewed) => {
                let next = renewed
                    .can_renew()
                    .then(|| renewed.renewal_due().max(now + RENEWAL_PAUSE_MIN));
                login.token = Some(renewed);
                next
            }
            Err(failed) => {
                tracing::warn!(error = %failed.error, "the transit token was not renewed");
                // Retries at a quarter of the remaining lifetime, unless the server rejected the
                // renewal.
                let left = (token.granted + token.ttl).saturating_duration_since(now);
                (!failed.responded || failed.transient)
                    .then(|| now + (left / 4).max(RENEWAL_PAUSE_MIN))
            }
        }
    }
}

/// Renews the token at two thirds of its lifetime, until it cannot be renewed or the provider is
/// dropped.
async fn keep_renewed(client: Weak<TransitClient>) {
    while let Some(current) = client.upgrade() {
        let Some(next) = current.renew_if_due().await else {
            return;
        };
        drop(current);
        sleep_until(next).await;
    }
}

fn auth_of(what: &str, body: &[u8]) -> Result<Auth, FailedRequest> {
    let auth = serde_json::from_slice(body).map(|body: AuthBody| body.auth);
    match auth {
        Ok(auth) if !auth.client_token.0.is_empty() => Ok(auth),
        _ => Err(FailedRequest::from_response(wrong_answer(what))),
    }
}

#[cfg(test)]
impl LoginState {
    pub(super) fn current_secret(&self) -> Option<String> {
        self.token.as_ref().map(|token| token.secret.to_string())
    }

    pub(super) fn granted(&self) -> Option<Instant> {
        self.token.as_ref().map(|token| token.granted)
    }
}

fn used_token_error(what: &str, file: &Path) -> FailedRequest {
    let text = "the wrapping token was already used, has expired or is unknown; if you did not use it, someone else has the secret id";
    FailedRequest::from_response(ProviderError::Denied(format!(
        "transit {what}: {}: {text}",
        file.display()
    )))
}
