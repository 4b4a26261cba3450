//! The settings of a store: its address, the account, and the authority of its certificate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::Uri;
use rustls::ClientConfig;
use sealwire_service::http_client::is_loopback;
use sealwire_service::tls_files::client_config;

use crate::mask_job::error::JobError;

/// The settings of an S3-compatible store.
#[derive(Clone, Default)]
pub struct S3Settings {
    /// `https://host[:port]` of the store. Default: the public endpoint of the region at AWS.
    pub endpoint: Option<String>,
    /// The region, such as `eu-central-1`. Required at AWS; other stores mostly ignore it.
    pub region: Option<String>,
    /// The id of the access key.
    pub access_key_id: Option<String>,
    /// The secret of the access key.
    pub secret_access_key: Option<String>,
    /// The token that belongs to a temporary access key.
    pub session_token: Option<String>,
    /// PEM certificates of the authorities that issue the store's certificate. Required for
    /// `https://`: the system's authorities are not trusted.
    pub ca: Option<PathBuf>,
    /// True if `http://` is permitted for hosts other than this machine.
    pub plain: bool,
}

impl S3Settings {
    /// Reads the standard environment variables of AWS through `variable`. An empty variable counts
    /// as missing.
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| variable(name).filter(|value| !value.is_empty()))
        };
        Self {
            endpoint: first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
            region: first(&["AWS_REGION", "AWS_DEFAULT_REGION"]),
            access_key_id: first(&["AWS_ACCESS_KEY_ID"]),
            secret_access_key: first(&["AWS_SECRET_ACCESS_KEY"]),
            session_token: first(&["AWS_SESSION_TOKEN"]),
            ca: first(&["AWS_CA_BUNDLE"]).map(PathBuf::from),
            plain: false,
        }
    }

    /// Checks the settings, and reads the certificates.
    pub(super) fn checked(&self) -> Result<S3Account, JobError> {
        let bad = |what: &str| JobError::Plan(what.to_owned());
        let missing = |what: &str| bad(&format!("no credentials for the object store: set {what}"));
        let region = match (&self.region, &self.endpoint) {
            (Some(region), _) => region.clone(),
            // Stores other than AWS accept this region, as the SDKs do.
            (None, Some(_)) => "us-east-1".to_owned(),
            (None, None) => {
                return Err(bad(
                    "no object store is named: set AWS_REGION, or AWS_ENDPOINT_URL for a store other than AWS",
                ));
            }
        };
        let is_in_region = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if region.len() > 64 || !region.bytes().all(is_in_region) {
            return Err(bad(
                "AWS_REGION must be the name of a region, such as eu-central-1",
            ));
        }
        let endpoint = self
            .endpoint
            .clone()
            .unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let is_encrypted = self.check_endpoint(&endpoint)?;
        let access_key_id = self
            .access_key_id
            .clone()
            .ok_or_else(|| missing("AWS_ACCESS_KEY_ID"))?;
        let secret_access_key = self
            .secret_access_key
            .clone()
            .ok_or_else(|| missing("AWS_SECRET_ACCESS_KEY"))?;
        // Credentials are sent as headers. Errors about invalid headers could quote them.
        let is_graphic = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let token = self.session_token.as_deref().unwrap_or_default();
        if ![&access_key_id, &secret_access_key, token]
            .into_iter()
            .all(is_graphic)
        {
            return Err(bad(
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN holds blanks or other characters",
            ));
        }
        let tls = match (&self.ca, is_encrypted) {
            (Some(ca), true) => Some(tls_config(ca)?),
            (None, true) => {
                let hint = "name the file with --s3-ca, or in AWS_CA_BUNDLE (the system's authorities are not trusted)";
                return Err(bad(&format!(
                    "the authority of the object store's certificate is not known: {hint}"
                )));
            }
            (_, false) => None,
        };
        let session_token = self.session_token.clone();
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(S3Account {
            endpoint,
            region,
            access_key_id,
            secret_access_key,
            session_token,
            tls,
        })
    }

    /// Checks the endpoint. Returns true if connections to it are encrypted.
    fn check_endpoint(&self, endpoint: &str) -> Result<bool, JobError> {
        let bad = |what: &str| JobError::Plan(format!("AWS_ENDPOINT_URL {what}"));
        let uri: Uri = endpoint
            .parse()
            .map_err(|_| bad("is no URL such as https://host:9000"))?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad("must begin with https://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad(
                "must not hold credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ));
        }
        let port = authority
            .as_str()
            .strip_prefix(authority.host())
            .unwrap_or_default();
        if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
            return Err(bad("has a port that is none"));
        }
        // The parser drops a fragment, so the text is checked.
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || endpoint.contains('#') {
            return Err(bad("must be https://host[:port] without more"));
        }
        if !is_encrypted && !self.plain && !is_loopback(authority.host()) {
            return Err(bad(
                "must begin with https:// unless the host is this machine; --s3-plain permits it, unprotected",
            ));
        }
        Ok(is_encrypted)
    }
}

impl fmt::Debug for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |value: &Option<String>| if value.is_some() { "set" } else { "not set" };
        f.debug_struct("S3Settings")
            .field("region", &self.region)
            .field("access_key_id", &has(&self.access_key_id))
            .field("secret_access_key", &has(&self.secret_access_key))
            .field("session_token", &has(&self.session_token))
            .field("ca", &self.ca)
            .field("plain", &self.plain)
            // An unchecked endpoint can contain credentials.
            .finish_non_exhaustive()
    }
}

/// Checked settings. `Debug` is not implemented, since the settings contain secrets.
pub(super) struct S3Account {
    pub(super) endpoint: String,
    pub(super) region: String,
    pub(super) access_key_id: String,
    pub(super) secret_access_key: String,
    pub(super) session_token: Option<String>,
    /// `None` if the endpoint is `http://`.
    pub(super) tls: Option<Arc<ClientConfig>>,
}

/// Creates TLS settings that trust only the authorities in one file.
fn tls_config(ca: &Path) -> Result<Arc<ClientConfig>, JobError> {
    let mut config =
        client_config(Some(ca), None).map_err(|error| JobError::Plan(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
