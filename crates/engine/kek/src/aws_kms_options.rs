//! Options of AWS KMS. Every build parses and checks these options; the provider needs the feature
//! `awskms`.

use std::path::PathBuf;
use std::time::Duration;

use crate::https::{ProviderOrigin, check_timeout};
use crate::{ProviderError, settings_error};

/// The KMS key that wraps, and the endpoint and credentials to use. Contains no secret: secrets are
/// in files or in the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsKmsOptions {
    /// The key: its ARN, its id, or an alias (`alias/name` or the alias's ARN), at most 2048 bytes.
    /// Prefer the ARN: when an alias is moved to another key, existing copies do not decrypt.
    pub key_id: String,
    /// The region, such as `eu-central-1`.
    pub region: String,
    /// `https://host[:port]` of KMS, such as a VPC endpoint. Default: the region's public endpoint.
    /// `http://` is allowed only for hosts on this machine.
    pub endpoint_url: Option<String>,
    /// PEM certificates of the authorities that issued the certificates of KMS and STS, at most 1
    /// MiB. Required for `https://`.
    pub ca: Option<PathBuf>,
    /// The source of the credentials.
    pub credentials: AwsCredentials,
    /// Longest time until a connection is established, with TLS: 100 ms to 60 s, default 2 s.
    pub connect_timeout: Duration,
    /// Longest time of one request, with its connection: 100 ms to 60 s, default 5 s. A provider
    /// call tries at most three times and takes at most four times this value.
    pub request_timeout: Duration,
}

impl AwsKmsOptions {
    /// Creates options with the defaults.
    #[must_use]
    pub fn new(
        key_id: impl Into<String>,
        region: impl Into<String>,
        credentials: AwsCredentials,
    ) -> Self {
        Self {
            key_id: key_id.into(),
            region: region.into(),
            endpoint_url: None,
            ca: None,
            credentials,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
        }
    }

    /// Checks the options. Errors name an option by its setting.
    pub(crate) fn check(&self) -> Result<(), ProviderError> {
        if self.key_id.is_empty() || self.key_id.len() > 2_048 || !is_graphic(&self.key_id) {
            return Err(settings_error(
                "awskms.key_id must have 1 to 2048 printable characters",
            ));
        }

        if self.region.is_empty()
            || self.region.len() > 64
            || !self
                .region
                .bytes()
                .all(|byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        {
            return Err(settings_error(
                "awskms.region must be the name of a region, such as eu-central-1",
            ));
        }
        let endpoint = self.endpoint_url.as_deref();
        let encrypted = endpoint.map_or(Ok::<_, ProviderError>(true), |url| {
            Ok(ProviderOrigin::parse(url, "awskms.endpoint_url")?.tls())
        })?;
        let encrypted_sts = self.credentials.check()?;
        if (encrypted || encrypted_sts) && self.ca.is_none() {
            return Err(settings_error("awskms.ca is required for https://"));
        }

        check_timeout("awskms.connect_timeout_ms", self.connect_timeout)?;
        check_timeout("awskms.request_timeout_ms", self.request_timeout)?;
        Ok(())
    }
}

/// The source of the AWS credentials, which are read again for each request.
///
/// Instance metadata, container credentials, SSO and `credential_process` are not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AwsCredentials {
    /// The variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, if set, `AWS_SESSION_TOKEN`.
    Environment,
    /// A file in the format of `~/.aws/credentials`, readable only by its owner or group, at most
    /// 64 KiB.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The profile. Usually `default`.
        profile: String,
    },
    /// A token of an identity provider, such as a Kubernetes service account, exchanged at STS for
    /// credentials.
    WebIdentity {
        /// The ARN of the role, as in `AWS_ROLE_ARN`.
        role_arn: String,
        /// The file with the token, as in `AWS_WEB_IDENTITY_TOKEN_FILE`. The file can be readable
        /// by other users: Kubernetes makes such files readable by every user of the container.
        token_file: PathBuf,
        /// `https://host[:port]` of STS. Default: the region's public endpoint. `http://` is
        /// allowed only for hosts on this machine.
        sts_endpoint_url: Option<String>,
    },
}

impl AwsCredentials {
    /// Checks the options. Returns true if they need a connection with TLS.
    fn check(&self) -> Result<bool, ProviderError> {
        match self {
            Self::Environment => Ok(false),
            Self::File { profile, .. }
                if profile.is_empty() || profile.contains(['[', ']', '\n']) =>
            {
                Err(settings_error(
                    "awskms.profile must be the name of a profile",
                ))
            }
            Self::File { .. } => Ok(false),
            Self::WebIdentity { role_arn, .. } if !(20..=2_048).contains(&role_arn.len()) => {
                Err(settings_error("awskms.role_arn must be the ARN of a role"))
            }
            Self::WebIdentity {
                sts_endpoint_url, ..
            } => {
                let url = sts_endpoint_url.as_deref();
                url.map_or(Ok(true), |url| {
                    Ok(ProviderOrigin::parse(url, "awskms.sts_endpoint_url")?.tls())
                })
            }
        }
    }
}

fn is_graphic(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
