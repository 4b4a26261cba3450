//! Errors of requests.
//!
//! Every variant states whether the request may have reached a server. An error is the outcome of
//! the last attempt, after all retries that the configuration, the deadline and the budget allowed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::AlertDescription;
use sealwire_wire::{Malformed, RpcError, ScanError};

/// The reason why a request has no result. Cheap to clone, because requests that waited for one
/// connection share its failure.
///
/// ```no_run
/// use sealwire_client::{Client, Decrypt, Error, ErrorCode};
///
/// # async fn example(client: Client, sealed: Vec<u8>) {
/// match client.decrypt(Decrypt::new("shop", &sealed).context("orders")).await {
///     Ok(opened) => println!("{} bytes", opened.payload.len()),
///     Err(Error::Rpc(error)) => match error.code {
///         ErrorCode::CannotOpen => println!("another context, another key, or changed bytes"),
///         ErrorCode::Forbidden => println!("ask the operator for a role: {}", error.message),
///         code if code.is_retryable() => println!("still {code} after all retries"),
///         code => println!("{code}: {}", error.message),
///     },
///     Err(Error::Deadline) => println!("no response in time"),
///     Err(Error::Disconnected { why, .. }) => println!("the work may have been done: {why}"),
///     Err(error) => println!("{error}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "workspace"), non_exhaustive)]
pub enum Error {
    /// The server responded with an error. The code tells whose fault the error is and whether a
    /// retry can help.
    #[error(transparent)]
    Rpc(RpcError),
    /// The request's deadline passed, here or at the server. If the request was sent, the server
    /// received a cancel.
    #[error("deadline exceeded")]
    Deadline,
    /// The connection ended after it took the request and before the response arrived. The server
    /// may or may not have done the work.
    #[error("disconnected: {why}")]
    #[cfg_attr(not(feature = "workspace"), non_exhaustive)]
    Disconnected {
        /// The reason, for people.
        why: Arc<str>,
    },
    /// No connection could be made. Nothing was sent.
    #[error("cannot connect")]
    Connect(#[source] Arc<io::Error>),
    /// The certificates or the key are unusable, or the server rejected this client's certificate
    /// before any response. A retry helps only after the certificate was replaced, here or in the
    /// server's configuration.
    #[error("{}", tls_text(.0))]
    Tls(#[source] TlsError),
    /// The configuration is invalid, or one of its files cannot be read.
    #[error("configuration: {0}")]
    Config(Arc<str>),
    /// The payload to send is not one MessagePack value. Nothing was sent.
    #[error("the payload is not one MessagePack value: {0}")]
    Payload(InvalidMessage),
    /// The request is longer than this client's `request_bytes_max`. Nothing was sent.
    #[error("the request is longer than {max} bytes")]
    #[cfg_attr(not(feature = "workspace"), non_exhaustive)]
    RequestTooLong {
        /// The limit in bytes.
        max: usize,
    },
    /// The response exceeds this client's limits and was discarded. The server did the work.
    #[error("the response exceeds this client's limits ({0}); the server has done the work")]
    ResponseTooLarge(ResponseLimit),
    /// The server violated the protocol. The connection was closed.
    #[error("protocol: {0}")]
    Protocol(InvalidMessage),
    /// A Rust value could not be serialized to a payload, or a payload not deserialized to the
    /// requested type. The text can quote the value, so treat it as sensitive data.
    #[error("value and payload do not fit")]
    Value(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

/// The reason why TLS cannot be used. The text is for people.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct TlsError(Arc<rustls::Error>);

/// The reason why bytes are not the expected MessagePack value. The text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct InvalidMessage(Malformed);

/// The limit that a response exceeds. The text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct ResponseLimit(pub(crate) ScanError);

/// Returns a server's error with a message that is safe to show on a terminal. A server must not
/// move the cursor, start a line or change the direction of the text.
pub(crate) fn printable(mut error: RpcError) -> RpcError {
    if error.message.chars().any(is_control) {
        let mut message = String::with_capacity(error.message.len());
        for character in error.message.chars() {
            if is_control(character) {
                message.extend(character.escape_unicode());
            } else {
                message.push(character);
            }
        }
        error.message = message.into();
    }
    error
}

fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl Error {
    /// Returns the error for a payload that is not one MessagePack value.
    pub(crate) fn payload(malformed: Malformed) -> Self {
        Self::Payload(InvalidMessage(malformed))
    }

    /// Returns the error for a message that violates the protocol.
    pub(crate) fn protocol(malformed: Malformed) -> Self {
        Self::Protocol(InvalidMessage(malformed))
    }

    /// Returns the error of a TLS library.
    pub(crate) fn tls(error: rustls::Error) -> Self {
        Self::Tls(TlsError(Arc::new(error)))
    }

    /// Returns the error for a document that lacks values of the request. Programs of this
    /// workspace that decode documents themselves return it.
    #[cfg(feature = "workspace")]
    #[doc(hidden)]
    #[must_use]
    pub fn incomplete_document() -> Self {
        Self::protocol(Malformed::Truncated)
    }

    /// Returns the error of the server, if the server responded with one.
    ///
    /// ```no_run
    /// # fn example(error: sealwire_client::Error) {
    /// use sealwire_client::ErrorCode;
    ///
    /// let is_missing = error.rpc().is_some_and(|error| error.code == ErrorCode::NotFound);
    /// # }
    /// ```
    #[must_use]
    pub fn rpc(&self) -> Option<&RpcError> {
        match self {
            Self::Rpc(error) => Some(error),
            _ => None,
        }
    }

    /// Returns how long to wait before the next attempt, if the server named a time. The client has
    /// already waited and retried within the deadline of the request.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) {
    /// if let Err(error) = client.health().await
    ///     && let Some(pause) = error.retry_after()
    /// {
    ///     tokio::time::sleep(pause).await;
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let pause_ms = self.rpc()?.retry_after_ms?;
        Some(Duration::from_millis(pause_ms.into()))
    }

    /// Returns true if no connection can be made until a certificate is replaced, here or at the
    /// server.
    pub(crate) fn is_about_certificates(&self) -> bool {
        match self {
            Self::Tls(_) => true,
            // The TLS handshake failed because one side's certificate was rejected.
            Self::Connect(error) => error.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }
}

/// Returns the alert by which a server rejected this client's certificate, if the error is such an
/// alert.
pub(crate) fn certificate_alert(error: &io::Error) -> Option<AlertDescription> {
    let tls_error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let rustls::Error::AlertReceived(alert) = tls_error else {
        return None;
    };
    certificate_advice(*alert).map(|_| *alert)
}

/// Returns the error for a certificate that the server rejected with this alert.
pub(crate) fn rejected_certificate(alert: AlertDescription) -> Error {
    Error::tls(rustls::Error::AlertReceived(alert))
}

fn tls_text(error: &TlsError) -> &'static str {
    match &*error.0 {
        rustls::Error::AlertReceived(alert) => {
            certificate_advice(*alert).unwrap_or("the server ended the TLS handshake")
        }
        rustls::Error::InconsistentKeys(_) => {
            "the private key does not belong to this client's certificate"
        }
        _ => "the certificates of this client cannot be used",
    }
}

/// Returns the meaning of an alert about this client's certificate, and what to do. Returns `None`
/// for an alert about something else.
fn certificate_advice(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateExpired => {
            "the server rejected this client's certificate because it has expired, or is not valid yet by the server's clock: \
             install a new certificate and its key"
        }
        AlertDescription::CertificateRevoked => {
            "the server rejected this client's certificate because it was revoked: install a new certificate and its key"
        }
        // Another authority can have the same name with a different key.
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the server does not trust the issuer of this client's certificate: use a certificate of the authority that the \
             server is configured with for clients of this listener"
        }
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            "the server got no certificate from this client: configure a certificate and its key"
        }
        AlertDescription::AccessDenied => {
            "the server denies access to this client's certificate: use a certificate that the server admits"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => {
            "the server rejected this client's certificate: check that it is a client certificate with a valid name, and that \
             all intermediate certificates follow it in its file"
        }
        _ => return None,
    })
}
