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
        Self {
            endpoint: first_set(&variable, &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
            region: first_set(&variable, &["AWS_REGION", "AWS_DEFAULT_REGION"]),
            access_key_id: first_set(&variable, &["AWS_ACCESS_KEY_ID"]),
            secret_access_key: first_set(&variable, &["AWS_SECRET_ACCESS_KEY"]),
            session_token: first_set(&variable, &["AWS_SESSION_TOKEN"]),
            ca: first_set(&variable, &["AWS_CA_BUNDLE"]).map(PathBuf::from),
            plain: false,
        }
    }

    /// Checks the settings, and reads the certificates.
    pub(super) fn checked(&self) -> Result<S3Account, JobError> {
        let region = match (&self.region, &self.endpoint) {
            (Some(region), _) => region.clone(),
            // Stores other than AWS accept this region, as the SDKs do.
            (None, Some(_)) => "us-east-1".to_owned(),
            (None, None) => {
                return Err(plan_error(
                    "no object store is named: set AWS_REGION, or AWS_ENDPOINT_URL for a store other than AWS",
                ));
            }
        };
        let is_region = region.len() <= 64
            && region
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_region {
            return Err(plan_error(
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
            .ok_or_else(|| missing_credential("AWS_ACCESS_KEY_ID"))?;
        let secret_access_key = self
            .secret_access_key
            .clone()
            .ok_or_else(|| missing_credential("AWS_SECRET_ACCESS_KEY"))?;
        // Credentials are sent as headers. Errors about invalid headers could quote them.
        let token = self.session_token.as_deref().unwrap_or_default();
        let is_printable = [&access_key_id, &secret_access_key, token]
            .into_iter()
            .all(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
        if !is_printable {
            return Err(plan_error(
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN holds blanks or other characters",
            ));
        }

        let tls = match (&self.ca, is_encrypted) {
            (Some(ca), true) => Some(tls_config(ca)?),
            (None, true) => {
                let hint = "name the file with --s3-ca, or in AWS_CA_BUNDLE (the system's authorities are not trusted)";
                return Err(plan_error(&format!(
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
        self.parse_endpoint(endpoint)
            .map_err(|what| JobError::Plan(format!("AWS_ENDPOINT_URL {what}")))
    }

    fn parse_endpoint(&self, endpoint: &str) -> Result<bool, &'static str> {
        let uri: Uri = endpoint
            .parse()
            .map_err(|_| "must be a URL such as https://host:9000")?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("must begin with https://"),
        };
        let authority = uri.authority().ok_or("must name a host")?;
        if authority.as_str().contains('@') {
            return Err(
                "must not hold credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            );
        }
        let port = authority
            .as_str()
            .strip_prefix(authority.host())
            .unwrap_or_default();
        if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
            return Err("must have a port from 1 to 65535");
        }
        // The parser drops a fragment, so the text is checked.
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || endpoint.contains('#') {
            return Err("must be https://host[:port] without more");
        }
        if !is_encrypted && !self.plain && !is_loopback(authority.host()) {
            return Err(
                "must begin with https:// unless the host is this machine; --s3-plain permits it, unprotected",
            );
        }
        Ok(is_encrypted)
    }
}

impl fmt::Debug for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Settings")
            .field("region", &self.region)
            .field("access_key_id", &set_or_not(&self.access_key_id))
            .field("secret_access_key", &set_or_not(&self.secret_access_key))
            .field("session_token", &set_or_not(&self.session_token))
            .field("ca", &self.ca)
            .field("plain", &self.plain)
            // An unchecked endpoint can contain credentials.
            .finish_non_exhaustive()
    }
}

/// Returns the first variable of these names that is set to a text.
fn first_set(variable: impl Fn(&str) -> Option<String>, names: &[&str]) -> Option<String> {
    names
        .iter()
        .find_map(|name| variable(name).filter(|value| !value.is_empty()))
}

fn plan_error(what: &str) -> JobError {
    JobError::Plan(what.to_owned())
}

fn missing_credential(variable: &str) -> JobError {
    JobError::Plan(format!(
        "no credentials for the object store: set {variable}"
    ))
}

/// Returns a description that does not show the value.
fn set_or_not(value: &Option<String>) -> &'static str {
    if value.is_some() { "set" } else { "not set" }
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
