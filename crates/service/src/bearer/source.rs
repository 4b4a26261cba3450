//! Reads key sets from files and URLs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::uri::PathAndQuery;
use http::{Request, StatusCode, Uri};
use http_body_util::Empty;

use super::issuer::digest_of;
use super::keys::{JwksError, KeySet};
use crate::http_client::{HttpClientError, HttpConnection, Origin, Transport, read_body, within};
use crate::tls_files::{self, TlsFileError};
use crate::trusted_file::{self, FileError, FileKind};

/// Longest key set, in bytes.
pub const JWKS_BYTES_MAX: usize = 256 << 10;
/// Time to connect to the server of a key set.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Time for the whole fetch.
const FETCH_TIME_MAX: Duration = Duration::from_secs(10);

/// The URL of a key set, with `https`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksUrl {
    origin: Origin,
    path: PathAndQuery,
}

impl JwksUrl {
    /// Parses a URL. Returns `None` for a text that is not an `https` URL, or has a user or password.
    pub fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        if uri.scheme_str() != Some("https") {
            return None;
        }
        let path = uri.path_and_query();
        Some(Self {
            origin: Origin::new(uri.authority()?, 443)?,
            path: path.cloned().unwrap_or(PathAndQuery::from_static("/")),
        })
    }
}

impl fmt::Display for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A query can contain a credential.
        write!(f, "https://{}{}", self.origin, self.path.path())
    }
}

/// The reason why the keys of an issuer cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum KeySourceError {
    /// The file cannot be read, is too long, or others can change it.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file with the authorities of the server cannot be used.
    #[error(transparent)]
    Ca(#[from] TlsFileError),
    /// The server does not respond, or its certificate is not trusted.
    #[error("{url}: {source}")]
    Fetch {
        /// The URL.
        url: String,
        /// The error of the connection.
        source: HttpClientError,
    },
    /// The server responds with something else than a key set.
    #[error("{url}: the server responds with status {status}, not 200")]
    Status {
        /// The URL.
        url: String,
        /// The status of the response.
        status: u16,
    },
    /// The content is not a key set.
    #[error("{place}: {reason}")]
    Jwks {
        /// The file or URL.
        place: String,
        /// The reason.
        reason: JwksError,
    },
    /// The program shuts down.
    #[error("the program shuts down")]
    Stopped,
}

/// A file in the settings of an issuer cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("issuer.{name}: {error}")]
pub struct IssuerError {
    pub(super) name: String,
    pub(super) error: KeySourceError,
}

/// Reads a file that others cannot change. Blocks.
pub(super) fn read_file(file: &Path) -> Result<Vec<u8>, KeySourceError> {
    let text = trusted_file::read(file, FileKind::Public, JWKS_BYTES_MAX as u64)?;
    Ok(text.to_vec())
}

/// Reads a key set from its text. Returns it with the digest of the text. Errors name the file or
/// URL.
pub(super) fn parse(
    text: &[u8],
    place: &impl fmt::Display,
) -> Result<(KeySet, [u8; 32]), KeySourceError> {
    let set = KeySet::parse(text).map_err(|reason| KeySourceError::Jwks {
        place: place.to_string(),
        reason,
    })?;
    Ok((set, digest_of(text)))
}

/// Fetches the text of a key set. The authorities are read anew each time, so that a changed file
/// takes effect. Redirects are not followed.
pub(super) async fn fetch(url: &JwksUrl, ca: &Path) -> Result<Vec<u8>, KeySourceError> {
    let ca = ca.to_owned();
    let config = tokio::task::spawn_blocking(move || tls_files::client_config(Some(&ca), None))
        .await
        .map_err(|_| KeySourceError::Stopped)??;
    let transport = Transport::Tls(Arc::new(config));
    let fetching = async {
        let mut connection: HttpConnection<Empty<Bytes>> =
            HttpConnection::open(&url.origin, &transport, CONNECT_TIME_MAX).await?;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::from(url.path.clone());
        request.headers_mut().insert(
            ACCEPT,
            http::HeaderValue::from_static("application/jwk-set+json, application/json"),
        );
        let response = connection.send(request).await?;
        let status = response.status();
        if status != StatusCode::OK {
            return Ok(Err(status));
        }
        let text = read_body(response.into_body(), JWKS_BYTES_MAX).await?;
        Ok(Ok(text.to_vec()))
    };
    let fetched = within(FETCH_TIME_MAX, fetching).await;
    match fetched {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(status)) => Err(KeySourceError::Status {
            url: url.to_string(),
            status: status.as_u16(),
        }),
        Err(source) => Err(KeySourceError::Fetch {
            url: url.to_string(),
            source,
        }),
    }
}
