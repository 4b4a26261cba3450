//! AWS Key Management Service as a provider.
//!
//! The root key is encrypted under a symmetric KMS key, with the slot as encryption context:
//! `sealwire-set` and `sealwire-root` in hexadecimal, `sealwire-slot` in decimal. KMS authenticates
//! the context and writes it to its audit log. A policy can require the context by the condition
//! `kms:EncryptionContext:sealwire-set`. Decryption requests name the key, so a copy of another key
//! does not decrypt. The identity needs `kms:Encrypt` and `kms:Decrypt` on the key.
//!
//! The SDK signs requests and parses responses. The HTTPS client of this crate sends the requests
//! and trusts only the configured authority. The SDK keeps short-lived copies of the plaintext that
//! are not wiped.

mod credentials;
#[cfg(test)]
mod tests;

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_kms::config::http::{HttpRequest, HttpResponse};
use aws_sdk_kms::config::retry::RetryConfig;
use aws_sdk_kms::config::timeout::TimeoutConfig;
use aws_sdk_kms::config::{
    AsyncSleep, BehaviorVersion, HttpClient, IdentityCache, Region, RuntimeComponents, Sleep,
    StalledStreamProtectionConfig,
};
use aws_sdk_kms::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_kms::primitives::Blob;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use http_body_util::Full;
use hyper::{Request, Response};
use sealwire_service::http_client::HttpClientError;
use tracing::Dispatch;
use tracing::instrument::{WithDispatch, WithSubscriber as _};
use zeroize::Zeroizing;

use crate::https::{HttpError, HttpsClient, ProviderOrigin, TRIES_MAX, TlsFiles};
use crate::{
    AwsKmsOptions, Provider, ProviderError, ProviderKind, RootBytes, WRAPPED_BYTES_MAX, WrapSlot,
    reject_long,
};
use credentials::CredentialsSource;

/// Longest ciphertext that KMS accepts, in bytes.
const CIPHERTEXT_BYTES_MAX: usize = 6_144;
/// Upper bound of a provider call, as a multiple of `request_timeout`. Includes credentials and
/// retries.
const CALL_TIMEOUTS: u32 = 4;

/// Wraps root keys with AWS KMS.
///
/// Credentials are read again for each request, so rotated credentials take effect with the next
/// call.
pub struct AwsKms {
    options: AwsKmsOptions,
    client: aws_sdk_kms::Client,
}

impl AwsKms {
    /// Creates a provider. Reads no file and opens no connection.
    ///
    /// # Errors
    /// [`ProviderError::Settings`] if an option is missing or out of its limits.
    pub fn new(options: AwsKmsOptions) -> Result<Self, ProviderError> {
        options.check()?;
        let endpoint = options.endpoint_url.as_deref();
        let connector = SdkConnector {
            files: TlsFiles::new(options.ca.clone(), None),
            connect_timeout: options.connect_timeout,
            request_timeout: options.request_timeout,
        };

        let credentials = CredentialsSource {
            credentials: options.credentials.clone(),
            region: options.region.clone(),
            connector: connector.clone(),
        };

        let retries = RetryConfig::standard()
            .with_max_attempts(TRIES_MAX)
            .with_initial_backoff(Duration::from_millis(200))
            .with_max_backoff(Duration::from_secs(1));
        let timeouts = TimeoutConfig::builder()
            .operation_attempt_timeout(options.request_timeout)
            .operation_timeout(options.request_timeout * CALL_TIMEOUTS)
            .build();
        let mut config = aws_sdk_kms::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(options.region.clone()))
            .credentials_provider(credentials)
            .identity_cache(IdentityCache::no_cache())
            .http_client(connector)
            .sleep_impl(TokioSleep)
            .retry_config(retries)
            .timeout_config(timeouts)
            // The connector bounds bodies in size and time.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        config.set_endpoint_url(endpoint.map(|url| url.trim_end_matches('/').to_owned()));
        Ok(Self {
            options,
            client: aws_sdk_kms::Client::from_conf(config.build()),
        })
    }
}

impl fmt::Debug for AwsKms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AwsKms").field(&self.options).finish()
    }
}

#[async_trait]
impl Provider for AwsKms {
    fn kind(&self) -> ProviderKind {
        ProviderKind::AwsKms
    }

    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        let mut request = self
            .client
            .encrypt()
            .key_id(&self.options.key_id)
            .plaintext(Blob::new(root.as_slice()));
        for (name, value) in encryption_context(slot) {
            request = request.encryption_context(name, value);
        }

        let response = without_logs(request.send())
            .await
            .map_err(|error| provider_error("encrypt", &error))?;
        let wrapped = response
            .ciphertext_blob
            .map(Blob::into_inner)
            .unwrap_or_default();
        if wrapped.is_empty() || wrapped.len() > CIPHERTEXT_BYTES_MAX.min(WRAPPED_BYTES_MAX) {
            return Err(wrong_answer("encrypt"));
        }

        Ok(wrapped)
    }

    async fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError> {
        reject_long(wrapped)?;
        if wrapped.is_empty() || wrapped.len() > CIPHERTEXT_BYTES_MAX {
            let text = format!("awskms decrypt: a copy has 1 to {CIPHERTEXT_BYTES_MAX} bytes");
            return Err(ProviderError::DoesNotUnwrap(text));
        }

        let mut request = self
            .client
            .decrypt()
            .key_id(&self.options.key_id)
            .ciphertext_blob(Blob::new(wrapped));
        for (name, value) in encryption_context(slot) {
            request = request.encryption_context(name, value);
        }

        let response = without_logs(request.send())
            .await
            .map_err(|error| provider_error("decrypt", &error))?;
        let plaintext =
            Zeroizing::new(response.plaintext.map(Blob::into_inner).unwrap_or_default());
        let mut root = RootBytes::default();
        if plaintext.len() != root.len() {
            return Err(wrong_answer("decrypt"));
        }

        root.copy_from_slice(&plaintext);
        Ok(root)
    }
}

/// Runs a future of the SDK without its log events. At level `trace` these events contain requests,
/// and so the root key.
fn without_logs<T: Future>(future: T) -> WithDispatch<T> {
    future.with_subscriber(Dispatch::none())
}

/// Returns the encryption context of a slot.
fn encryption_context(slot: &WrapSlot) -> [(&'static str, String); 3] {
    [
        ("sealwire-set", HEXLOWER.encode(&slot.set)),
        ("sealwire-root", HEXLOWER.encode(&slot.root)),
        ("sealwire-slot", slot.number.to_string()),
    ]
}

fn wrong_answer(what: &str) -> ProviderError {
    ProviderError::WrongAnswer(format!(
        "awskms {what}: the response does not have the form that the KMS API specifies"
    ))
}

/// The meaning of an error code of AWS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodeMeaning {
    Denied,
    Clock,
    NotFound,
    DoesNotUnwrap,
    Settings,
    Unavailable,
}

/// Known error codes of KMS and STS. Unknown codes are not quoted, because they are text of the
/// server.
const CODES: &[(&str, CodeMeaning)] = &[
    ("AccessDenied", CodeMeaning::Denied),
    ("AccessDeniedException", CodeMeaning::Denied),
    ("ExpiredToken", CodeMeaning::Denied),
    ("ExpiredTokenException", CodeMeaning::Denied),
    ("IDPRejectedClaim", CodeMeaning::Denied),
    ("IncompleteSignature", CodeMeaning::Denied),
    ("IncompleteSignatureException", CodeMeaning::Denied),
    ("InvalidClientTokenId", CodeMeaning::Denied),
    ("InvalidIdentityToken", CodeMeaning::Denied),
    ("MissingAuthenticationToken", CodeMeaning::Denied),
    ("MissingAuthenticationTokenException", CodeMeaning::Denied),
    ("NotAuthorized", CodeMeaning::Denied),
    ("OptInRequired", CodeMeaning::Denied),
    ("UnrecognizedClientException", CodeMeaning::Denied),
    ("InvalidSignatureException", CodeMeaning::Clock),
    ("RequestExpired", CodeMeaning::Clock),
    ("RequestTimeTooSkewed", CodeMeaning::Clock),
    ("SignatureDoesNotMatch", CodeMeaning::Clock),
    ("DisabledException", CodeMeaning::NotFound),
    ("KMSInvalidStateException", CodeMeaning::NotFound),
    ("NotFoundException", CodeMeaning::NotFound),
    ("IncorrectKeyException", CodeMeaning::DoesNotUnwrap),
    ("InvalidCiphertextException", CodeMeaning::DoesNotUnwrap),
    ("InvalidArnException", CodeMeaning::Settings),
    ("InvalidKeyUsageException", CodeMeaning::Settings),
    ("ValidationError", CodeMeaning::Settings),
    ("ValidationException", CodeMeaning::Settings),
    ("DependencyTimeoutException", CodeMeaning::Unavailable),
    ("IDPCommunicationError", CodeMeaning::Unavailable),
    ("InternalFailure", CodeMeaning::Unavailable),
    ("KMSInternalException", CodeMeaning::Unavailable),
    ("KeyUnavailableException", CodeMeaning::Unavailable),
    ("LimitExceededException", CodeMeaning::Unavailable),
    ("RequestLimitExceeded", CodeMeaning::Unavailable),
    ("RequestTimeout", CodeMeaning::Unavailable),
    ("RequestTimeoutException", CodeMeaning::Unavailable),
    ("ServiceUnavailable", CodeMeaning::Unavailable),
    ("ServiceUnavailableException", CodeMeaning::Unavailable),
    ("SlowDown", CodeMeaning::Unavailable),
    ("Throttling", CodeMeaning::Unavailable),
    ("ThrottlingException", CodeMeaning::Unavailable),
    ("TooManyRequestsException", CodeMeaning::Unavailable),
];

/// Returns the error for a response. Quotes only known codes and the status.
fn response_error(what: &str, status: u16, code: Option<&str>) -> ProviderError {
    let known = CODES.iter().find(|(known, _)| Some(*known) == code);
    let meaning = match known {
        // A failure of the server is temporary, whatever its code says.
        _ if status >= 500 || status == 429 => Some(CodeMeaning::Unavailable),
        Some((_, meaning)) => Some(*meaning),
        None if matches!(status, 401 | 403) => Some(CodeMeaning::Denied),
        None => None,
    };

    let code = known.map_or("an unknown error", |(code, _)| *code);
    let phrase = match meaning {
        Some(CodeMeaning::Denied) => "the credentials do not permit this",
        Some(CodeMeaning::Clock) => "the secret access key or this machine's clock is wrong",
        Some(CodeMeaning::NotFound) => "the key is missing, disabled or to be deleted",
        Some(CodeMeaning::DoesNotUnwrap) => "the copy does not unwrap",
        Some(CodeMeaning::Settings) => "the key must be symmetric, for encryption",
        Some(CodeMeaning::Unavailable) => "the service failed or throttles",
        None => "an unexpected response",
    };

    let text = format!("awskms {what}: status {status}, {code}: {phrase}");
    match meaning {
        Some(CodeMeaning::Denied | CodeMeaning::Clock) => ProviderError::Denied(text),
        Some(CodeMeaning::NotFound) => ProviderError::NotFound(text),
        Some(CodeMeaning::DoesNotUnwrap) => ProviderError::DoesNotUnwrap(text),
        Some(CodeMeaning::Settings) => ProviderError::Settings(text),
        Some(CodeMeaning::Unavailable) => ProviderError::Unavailable(text),
        None => ProviderError::WrongAnswer(text),
    }
}

/// Converts an error of the SDK. Texts of the SDK can quote the service, so they are dropped.
fn provider_error<E>(what: &str, error: &SdkError<E, HttpResponse>) -> ProviderError
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    if let SdkError::ServiceError(service) = error {
        return response_error(what, service.raw().status().as_u16(), service.err().code());
    }

    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<ConnectorFailure>() {
            return error.0.clone();
        }
        source = cause.source();
    }

    match error {
        SdkError::TimeoutError(_) | SdkError::DispatchFailure(_) => {
            ProviderError::Unavailable(format!("awskms {what}: no response in time"))
        }
        SdkError::ConstructionFailure(_) => {
            ProviderError::Settings(format!("awskms {what}: no request can be made"))
        }
        _ => wrong_answer(what),
    }
}

/// Carries an error of this crate through the SDK.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ConnectorFailure(ProviderError);

/// Implements sleep for the SDK, which uses it for timeouts and pauses.
#[derive(Debug)]
struct TokioSleep;

impl AsyncSleep for TokioSleep {
    fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(tokio::time::sleep(duration))
    }
}

/// Sends the SDK's requests with the HTTPS client of this crate.
#[derive(Clone, Debug)]
struct SdkConnector {
    files: TlsFiles,
    connect_timeout: Duration,
    request_timeout: Duration,
}

impl SdkConnector {
    /// Sends a request whose URI has a scheme and a host.
    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<crate::https::HttpResponse, HttpError> {
        let uri = request.uri();
        let origin = format!(
            "{}://{}",
            uri.scheme_str().unwrap_or_default(),
            uri.authority().map_or("", |authority| authority.as_str())
        );
        let origin =
            ProviderOrigin::parse(&origin, "awskms.endpoint_url").map_err(HttpError::Settings)?;
        let client = HttpsClient {
            origin,
            files: self.files.clone(),
            connect_timeout: self.connect_timeout,
            request_timeout: self.request_timeout,
        };

        client.send(request).await
    }

    async fn call_sdk(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let request = request
            .try_into_http1x()
            .map_err(|_| invalid_sdk_request())?;
        let (parts, body) = request.into_parts();
        // Wiped on drop, because the body of an encryption request contains the root key.
        let body = Zeroizing::new(body.bytes().ok_or_else(invalid_sdk_request)?.to_vec());
        let request = Request::from_parts(parts, Full::new(Bytes::from_owner(body)));
        let response = self.send(request).await.map_err(connector_error)?;
        let mut converted = Response::new(SdkBody::from(Bytes::from_owner(response.body)));
        *converted.status_mut() = response.status;
        *converted.headers_mut() = response.headers;
        HttpResponse::try_from(converted)
            .map_err(|_| connector_error(HttpClientError::NotHttp.into()))
    }
}

fn invalid_sdk_request() -> ConnectorError {
    let text = "awskms: the SDK made a request that cannot be sent".to_owned();
    ConnectorError::user(Box::new(ConnectorFailure(ProviderError::Settings(text))))
}

/// Converts an error for the SDK, which retries temporary errors.
fn connector_error(error: HttpError) -> ConnectorError {
    let is_transient = error.is_transient();
    let is_timeout = matches!(
        error,
        HttpError::Exchange(HttpClientError::Timeout(_) | HttpClientError::ConnectTimeout(_))
    );
    let failure = Box::new(ConnectorFailure(error.into_provider_error("awskms")));
    match (is_transient, is_timeout) {
        (_, true) => ConnectorError::timeout(failure),
        (true, false) => ConnectorError::io(failure),
        (false, false) => ConnectorError::other(failure, None),
    }
}

impl HttpConnector for SdkConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(self.clone().call_sdk(request))
    }
}

impl HttpClient for SdkConnector {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}
