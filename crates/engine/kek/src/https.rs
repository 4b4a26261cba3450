//! An HTTPS client for providers: one connection per request, bounded in time and size.
//!
//! Requests to providers are rare, so connections are not kept. Certificates are read again for
//! each connection, so a replaced file takes effect with the next request. Only the configured
//! authority is trusted, not the system's trust store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode, Uri};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sealwire_service::http_client::{
    HttpClientError, HttpConnection, Origin, Transport, is_loopback, read_body, within,
};
use sealwire_service::tls_files;
use sealwire_service::trusted_file::{FileKind, TrustedFile};
use zeroize::Zeroizing;

use crate::ProviderError;
use crate::secret_file::FileReader;

/// Longest accepted response body, in bytes. Responses of providers have at most a few kilobytes.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// Maximum number of tries of a request that fails temporarily.
pub(crate) const TRIES_MAX: u32 = 3;
/// Pause before the second try. The next pause is twice as long. Each pause is shortened by a
/// random part, up to a half.
const PAUSE: Duration = Duration::from_millis(200);

/// Lower and upper limit of `connect_timeout` and `request_timeout`.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Returns the pause after failed try number `tries`, counted from 1.
pub(crate) fn pause_after(tries: u32) -> Duration {
    let longest = PAUSE * (1 << tries.saturating_sub(1).min(4));
    longest - rand::random_range(Duration::ZERO..=longest / 2)
}

/// Checks a `connect_timeout` or `request_timeout`.
pub(crate) fn check_timeout(key: &str, value: Duration) -> Result<Duration, ProviderError> {
    if (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&value) {
        return Ok(value);
    }
    Err(ProviderError::Settings(format!(
        "{key} must be {} to {} ms",
        TIMEOUT_MIN.as_millis(),
        TIMEOUT_MAX.as_millis()
    )))
}

/// The origin of a provider: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderOrigin {
    tls: bool,
    origin: Origin,
}

impl ProviderOrigin {
    /// Parses `https://host[:port]`, or `http://` with a host on this machine.
    pub(crate) fn parse(url: &str, key: &str) -> Result<Self, ProviderError> {
        let uri: Uri = url
            .parse()
            .map_err(|_| invalid_url(key, "must be a URL such as https://host:8200"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid_url(key, "must start with https://")),
        };

        let authority = uri
            .authority()
            .ok_or_else(|| invalid_url(key, "must contain a host"))?;
        // The parser drops a fragment.
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || url.contains('#') {
            return Err(invalid_url(
                key,
                "must not have a path, a query or a fragment",
            ));
        }

        if authority.as_str().contains('@') {
            return Err(invalid_url(key, "must not contain a credential"));
        }

        if authority.host().is_empty() {
            return Err(invalid_url(key, "must contain a host"));
        }

        let default_port = if tls { 443 } else { 80 };
        let origin = Origin::new(authority, default_port)
            .ok_or_else(|| invalid_url(key, "must have a port from 1 to 65535"))?;
        if ServerName::try_from(origin.host.as_str()).is_err() {
            return Err(invalid_url(key, "must name a DNS name or an IP address"));
        }

        if !tls && !is_loopback(&origin.host) {
            return Err(invalid_url(
                key,
                "must start with https:// unless the host is localhost, 127.0.0.0/8 or ::1",
            ));
        }

        Ok(Self { tls, origin })
    }

    /// Returns true if requests are encrypted.
    pub(crate) fn tls(&self) -> bool {
        self.tls
    }
}

fn invalid_url(key: &str, what: &str) -> ProviderError {
    ProviderError::Settings(format!("{key} {what}"))
}

/// Certificate files of a client, all PEM.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// The trusted authorities. If absent, no server is trusted.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate and its private key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
    /// Reads these files and other files of the same provider.
    pub(crate) reader: FileReader,
}

impl TlsFiles {
    pub(crate) fn new(ca: Option<PathBuf>, client: Option<(PathBuf, PathBuf)>) -> Self {
        Self {
            ca,
            client,
            reader: FileReader::default(),
        }
    }

    /// Reads the files. Blocks.
    pub(crate) fn load(&self) -> Result<Arc<ClientConfig>, ProviderError> {
        // A user who can replace these files could impersonate the provider.
        let client = self.client.as_ref().map(|(certificate, _)| certificate);
        for file in self.ca.iter().chain(client) {
            TrustedFile::open(file, FileKind::Public)?;
        }
        let identity = self.client.as_ref();
        let identity = identity.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let mut config = tls_files::client_config(self.ca.as_deref(), identity)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// The reason why a request got no usable response. Texts never contain a header or a body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error(transparent)]
    Exchange(#[from] HttpClientError),
    #[error("{0}")]
    Settings(ProviderError),
}

impl HttpError {
    /// Returns true if the same request can succeed when it is sent again at once.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Exchange(error) if error.is_transient())
    }

    /// Converts the error. `subject` names the provider and the operation.
    pub(crate) fn into_provider_error(self, subject: &str) -> ProviderError {
        match self {
            Self::Settings(error) => error,
            Self::Exchange(error @ HttpClientError::NotLoopback) => {
                ProviderError::Settings(error.to_string())
            }
            Self::Exchange(error @ (HttpClientError::TooLong(_) | HttpClientError::NotHttp)) => {
                ProviderError::WrongAnswer(format!("{subject}: {error}"))
            }
            Self::Exchange(error) => ProviderError::Unavailable(format!("{subject}: {error}")),
        }
    }
}

/// A response whose body is wiped on drop.
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    /// Only the AWS SDK reads the headers.
    #[cfg(feature = "awskms")]
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// Sends requests to one origin.
#[derive(Clone, Debug)]
pub(crate) struct HttpsClient {
    pub(crate) origin: ProviderOrigin,
    pub(crate) files: TlsFiles,
    /// Longest time until a connection is established, with TLS.
    pub(crate) connect_timeout: Duration,
    /// Longest time of a request, including its connection.
    pub(crate) request_timeout: Duration,
}

impl HttpsClient {
    /// Sends a request whose URI is a path, and reads the whole response.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<HttpResponse, HttpError> {
        within(self.request_timeout, self.exchange(request)).await
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<HttpResponse, HttpError> {
        let transport = if self.origin.tls {
            let files = self.files.clone();
            let config = self
                .files
                .reader
                .run("the files for TLS", move || files.load())
                .await;
            Transport::Tls(config.map_err(HttpError::Settings)?)
        } else {
            Transport::Loopback
        };

        let mut connection =
            HttpConnection::open(&self.origin.origin, &transport, self.connect_timeout).await?;
        let (parts, body) = connection.send(request).await?.into_parts();
        Ok(HttpResponse {
            status: parts.status,
            #[cfg(feature = "awskms")]
            headers: parts.headers,
            body: read_body(body, BODY_BYTES_MAX).await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_https_unless_they_stay_on_this_machine() {
        for (url, host, port, tls) in [
            ("https://vault.example:8200", "vault.example", 8200, true),
            ("https://vault.example/", "vault.example", 443, true),
            ("https://10.1.2.3", "10.1.2.3", 443, true),
            ("https://[2001:db8::1]:8200", "2001:db8::1", 8200, true),
            ("http://127.0.0.1:8200", "127.0.0.1", 8200, false),
            ("http://127.9.9.9", "127.9.9.9", 80, false),
            ("http://[::1]:8200", "::1", 8200, false),
            ("http://localhost:8200", "localhost", 8200, false),
        ] {
            let origin = ProviderOrigin::parse(url, "address")
                .unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(
                (&*origin.origin.host, origin.origin.port, origin.tls),
                (host, port, tls),
                "{url}"
            );
        }
    }

    #[test]
    fn urls_must_be_https_origins() {
        for (url, part) in [
            ("", "must be a URL"),
            ("vault.example:8200", "must start"),
            ("/v1", "must start"),
            ("ftp://vault.example", "must start"),
            ("http://vault.example:8200", "unless the host"),
            ("http://10.0.0.1", "unless the host"),
            ("http://0.0.0.0", "unless the host"),
            ("http://[::ffff:127.0.0.1]", "unless the host"),
            ("http://127.0.0.1.example", "unless the host"),
            ("http://localhost.example", "unless the host"),
            ("https://vault.example/v1", "path"),
            ("https://vault.example/?x=1", "path"),
            ("https://vault.example/#hunter2", "fragment"),
            ("https://user:hunter2@vault.example", "credential"),
            ("https://vault.example:0", "port"),
            ("https://vault.example:", "port"),
            ("https://vault.example:70000", "port"),
            ("https://va_ult..example", "DNS name"),
        ] {
            let error = ProviderOrigin::parse(url, "address").expect_err(url);
            let text = error.to_string();
            assert!(
                matches!(error, ProviderError::Settings(_)) && text.contains(part),
                "{url}: {text}"
            );
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn pauses_double_and_are_shortened_by_at_most_half() {
        for (tries, longest) in [(0, 200), (1, 200), (2, 400), (3, 800), (u32::MAX, 3_200)] {
            for _ in 0..100 {
                let pause = pause_after(tries).as_millis();
                assert!((longest / 2..=longest).contains(&pause), "{tries}: {pause}");
            }
        }
    }
}
