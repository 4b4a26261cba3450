//! Settings of providers, read from a table of strings.
//!
//! Settings never contain secrets: they name files and environment variables that hold secrets. An
//! unknown setting is an error, which shows the setting's name if that has 1 to 32 characters of a
//! to z and `_`. Errors of parsing never repeat a value. A value of 64 hexadecimal digits is
//! rejected as the name of a variable or as the last part of a path. Other secrets that are
//! configured as a name or path are not recognised: later errors and
//! [`ProviderSettings::public_fields`] show them.
//!
//! | kind | settings |
//! | --- | --- |
//! | `file` | `path` |
//! | `environment` | `variable` |
//! | `pkcs11` | `module`, `token` or `serial` or both, `key`, `key_id` (optional), `pin_file` |
//! | `awskms` | `key_id`, `region`, `endpoint_url` (optional), `ca`, `credentials` (`environment`), timeouts; for `credentials` = `file`: `credentials_file`, `profile` (`default`); `web_identity`: `role_arn`, `web_identity_token_file`, `sts_endpoint_url` (optional) |
//! | `transit` | `address`, `ca`, `namespace` (optional), `mount` (`transit`), `key`, `client_certificate` and `client_key` (optional), `auth`, timeouts; for `auth` = `token`: `token_file`; `approle`: `approle_mount` (`approle`), `role_id`, and `secret_id_file` or `wrapped_secret_id_file` with `wrapped_creation_path`; `certificate`: `cert_mount` (`cert`), `cert_role` (optional) |
//! | `shares` | `public_key` |
//!
//! Defaults are in parentheses. Timeouts are `connect_timeout_ms` (2000) and `request_timeout_ms`
//! (5000), in milliseconds from 100 to 60000. `ca` is required unless every URL is `http://`, which
//! is allowed only for hosts on this machine. See [`Pkcs11Options`], [`AwsKmsOptions`] and
//! [`TransitOptions`] for the meaning of each setting.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER_PERMISSIVE;
use sealwire_service::settings::{ends_in_key, is_key};
use sealwire_service::trusted_file::FileKind;

use crate::{
    AwsCredentials, AwsKmsOptions, EnvironmentProvider, FileProvider, Pkcs11Options,
    Pkcs11Provider, Provider, ProviderError, ProviderKind, SecretIdSource, SharesProvider, Transit,
    TransitLogin, TransitOptions,
};

/// Longest name of a provider, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest value of a setting, in bytes.
pub const VALUE_BYTES_MAX: usize = 4 << 10;
/// Longest label of a PKCS #11 token, in bytes.
const TOKEN_LABEL_BYTES_MAX: usize = 32;
/// Longest serial number of a PKCS #11 token, in bytes.
const TOKEN_SERIAL_BYTES_MAX: usize = 16;
/// Longest id of a PKCS #11 key, in bytes.
const KEY_ID_BYTES_MAX: usize = 64;

/// Settings of one provider. Settings should not contain secrets; the module documentation lists
/// the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderSettings {
    /// A KEK in a file.
    File {
        /// The path of the file, which contains 64 hexadecimal digits.
        path: PathBuf,
    },
    /// A KEK in an environment variable.
    Environment {
        /// The variable's name, of A to Z, 0 to 9 and `_`. The variable contains 64 hexadecimal
        /// digits.
        variable: String,
    },
    /// A KEK on a PKCS #11 token.
    Pkcs11(Pkcs11Options),
    /// A KEK in AWS Key Management Service. The provider needs the feature `awskms`.
    AwsKms(AwsKmsOptions),
    /// A KEK in the transit engine of Vault or OpenBao.
    Transit(TransitOptions),
    /// A recovery public key, whose private key is split into shares.
    Shares {
        /// The path of the file with the public key.
        public_key: PathBuf,
    },
}

/// The problem of a setting. Texts never contain a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// The provider's name, or `?` if it is not a name.
    pub provider: String,
    /// The setting's name, if the error concerns one setting and its name can be shown.
    pub setting: Option<String>,
    /// The problem, as a sentence without the value.
    pub problem: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "provider `{}`: ", self.provider)?;
        if let Some(setting) = &self.setting {
            write!(f, "{setting}: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl ProviderSettings {
    /// Reads settings of the provider `name`. Relative paths are joined to `folder`.
    ///
    /// # Errors
    /// Fails if a name, kind or setting is unknown, missing or malformed.
    pub fn parse(
        name: &str,
        kind: &str,
        table: &BTreeMap<String, String>,
        folder: &Path,
    ) -> Result<Self, SettingsError> {
        let provider = if is_name(name) { name } else { "?" };
        let error = |problem: &str| SettingsError {
            provider: provider.into(),
            setting: None,
            problem: problem.to_owned(),
        };
        if !is_name(name) {
            return Err(error(
                "the name must be of 1 to 64 characters of a to z, 0 to 9, `-` and `_`",
            ));
        }
        let kind = ProviderKind::from_name(kind).ok_or_else(|| {
            error("the kind must be one of: file, environment, pkcs11, awskms, transit, shares")
        })?;
        let mut reader = SettingsReader {
            provider: name,
            kind,
            table,
            folder,
            known: Vec::new(),
        };
        let settings = match kind {
            ProviderKind::File => Self::File {
                path: reader.path("path")?,
            },
            ProviderKind::Environment => Self::Environment {
                variable: reader.checked("variable", variable)?,
            },
            ProviderKind::Pkcs11 => Self::Pkcs11(reader.pkcs11()?),
            ProviderKind::AwsKms => Self::AwsKms(reader.aws_kms()?),
            ProviderKind::Transit => Self::Transit(reader.transit()?),
            ProviderKind::Shares => Self::Shares {
                public_key: reader.path("public_key")?,
            },
        };
        reader.reject_unknown()?;
        Ok(settings)
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ProviderKind {
        match self {
            Self::File { .. } => ProviderKind::File,
            Self::Environment { .. } => ProviderKind::Environment,
            Self::Pkcs11(_) => ProviderKind::Pkcs11,
            Self::AwsKms(_) => ProviderKind::AwsKms,
            Self::Transit(_) => ProviderKind::Transit,
            Self::Shares { .. } => ProviderKind::Shares,
        }
    }

    /// Returns the settings that locate the KEK, for records and lists. Omits credentials and the
    /// files that hold them.
    #[must_use]
    pub fn public_fields(&self) -> BTreeMap<&'static str, String> {
        let path = |path: &Path| Some(path.display().to_string());
        let text = |text: &str| Some(text.to_owned());
        let fields = match self {
            Self::File { path: file } => vec![("path", path(file))],
            Self::Environment { variable } => vec![("variable", text(variable))],
            Self::Pkcs11(Pkcs11Options {
                module,
                token,
                serial,
                key,
                key_id,
                pin_file: _,
            }) => vec![
                ("module", path(module)),
                ("token", token.clone()),
                ("serial", serial.clone()),
                ("key", text(key)),
                (
                    "key_id",
                    key_id.as_ref().map(|id| HEXLOWER_PERMISSIVE.encode(id)),
                ),
            ],
            Self::AwsKms(options) => vec![
                ("key_id", text(&options.key_id)),
                ("region", text(&options.region)),
                ("endpoint_url", options.endpoint_url.clone()),
                ("credentials", text(credentials_name(&options.credentials))),
            ],
            Self::Transit(options) => vec![
                ("address", text(&options.address)),
                ("key", text(&options.key)),
                ("mount", text(&options.mount)),
                ("namespace", options.namespace.clone()),
                ("auth", text(login_name(&options.login))),
            ],
            Self::Shares { public_key } => vec![("public_key", path(public_key))],
        };
        fields
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }

    /// Returns the files that the provider reads, each with its setting's name and its kind.
    /// Callers use the kind to check the access rights of the file. A web identity token counts as
    /// public, because Kubernetes makes such files readable by every user of the container.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, &Path, FileKind)> {
        let secret = |name: &'static str, file| Some((name, file, FileKind::Secret));
        let public = |name: &'static str, file| Some((name, file, FileKind::Public));
        let files = match self {
            Self::File { path } => vec![secret("path", Some(path))],
            Self::Environment { .. } => Vec::new(),
            Self::Shares { public_key } => vec![public("public_key", Some(public_key))],
            Self::Pkcs11(options) => vec![secret("pin_file", Some(&options.pin_file))],
            Self::AwsKms(options) => {
                let credentials = match &options.credentials {
                    AwsCredentials::File { path, .. } => secret("credentials_file", Some(path)),
                    AwsCredentials::WebIdentity { token_file, .. } => {
                        public("web_identity_token_file", Some(token_file))
                    }
                    AwsCredentials::Environment => None,
                };
                vec![credentials, public("ca", options.ca.as_ref())]
            }
            Self::Transit(options) => {
                let login = match &options.login {
                    TransitLogin::TokenFile(file) => secret("token_file", Some(file)),
                    TransitLogin::AppRole {
                        secret_id: SecretIdSource::File(file),
                        ..
                    } => secret("secret_id_file", Some(file)),
                    TransitLogin::AppRole {
                        secret_id: SecretIdSource::Wrapped { file, .. },
                        ..
                    } => secret("wrapped_secret_id_file", Some(file)),
                    TransitLogin::Certificate { .. } => None,
                };
                vec![
                    login,
                    secret("client_key", options.client_key.as_ref()),
                    public("ca", options.ca.as_ref()),
                ]
            }
        };
        let files = files.into_iter().flatten();
        files
            .filter_map(|(name, file, kind)| Some((name, file?.as_path(), kind)))
            .collect()
    }

    /// Creates the provider. Opens no file and no connection.
    ///
    /// # Errors
    /// [`ProviderError::Settings`] if an option is out of its limits, or if this program was built
    /// without the kind.
    pub fn provider(&self) -> Result<Arc<dyn Provider>, ProviderError> {
        Ok(match self {
            Self::File { path } => Arc::new(FileProvider::new(path.clone())),
            Self::Environment { variable } => Arc::new(EnvironmentProvider::new(variable.clone())),
            Self::Pkcs11(options) => Arc::new(Pkcs11Provider::new(options.clone())),
            #[cfg(feature = "awskms")]
            Self::AwsKms(options) => Arc::new(crate::AwsKms::new(options.clone())?),
            #[cfg(not(feature = "awskms"))]
            Self::AwsKms(_) => {
                let text = "kind awskms: this program was built without it (feature awskms)";
                return Err(ProviderError::Settings(text.into()));
            }
            Self::Transit(options) => Arc::new(Transit::new(options.clone())?),
            Self::Shares { public_key } => Arc::new(SharesProvider::new(public_key.clone())),
        })
    }
}

/// Returns the value of `credentials`.
fn credentials_name(credentials: &AwsCredentials) -> &'static str {
    match credentials {
        AwsCredentials::Environment => "environment",
        AwsCredentials::File { .. } => "file",
        AwsCredentials::WebIdentity { .. } => "web_identity",
    }
}

/// Returns the value of `auth`.
fn login_name(login: &TransitLogin) -> &'static str {
    match login {
        TransitLogin::TokenFile(_) => "token",
        TransitLogin::AppRole { .. } => "approle",
        TransitLogin::Certificate { .. } => "certificate",
    }
}

/// Reads settings of one kind and records their names, to find unknown settings.
struct SettingsReader<'a> {
    provider: &'a str,
    kind: ProviderKind,
    table: &'a BTreeMap<String, String>,
    folder: &'a Path,
    known: Vec<&'static str>,
}

/// Checks a value. The error describes valid values.
type ValueCheck = fn(&str) -> Result<(), &'static str>;

impl<'a> SettingsReader<'a> {
    fn error(&self, setting: &str, problem: impl Into<String>) -> SettingsError {
        SettingsError {
            provider: self.provider.to_owned(),
            setting: Some(setting.to_owned()),
            problem: problem.into(),
        }
    }

    fn missing(&self, setting: &str) -> SettingsError {
        self.error(setting, format!("missing, and kind {} needs it", self.kind))
    }

    fn optional(&mut self, setting: &'static str) -> Result<Option<&'a str>, SettingsError> {
        self.known.push(setting);
        let Some(value) = self.table.get(setting) else {
            return Ok(None);
        };
        if value.is_empty() || value.len() > VALUE_BYTES_MAX || value.chars().any(char::is_control)
        {
            return Err(self.error(
                setting,
                "must be a text of 1 to 4,096 bytes without control characters",
            ));
        }
        Ok(Some(value))
    }

    fn optional_checked(
        &mut self,
        setting: &'static str,
        check: ValueCheck,
    ) -> Result<Option<String>, SettingsError> {
        let Some(value) = self.optional(setting)? else {
            return Ok(None);
        };
        check(value).map_err(|problem| self.error(setting, problem))?;
        Ok(Some(value.to_owned()))
    }

    fn checked(
        &mut self,
        setting: &'static str,
        check: ValueCheck,
    ) -> Result<String, SettingsError> {
        self.optional_checked(setting, check)?
            .ok_or_else(|| self.missing(setting))
    }

    fn optional_path(&mut self, setting: &'static str) -> Result<Option<PathBuf>, SettingsError> {
        let path = self.optional_checked(setting, file_path)?;
        Ok(path.map(|path| self.folder.join(path)))
    }

    fn text(&mut self, setting: &'static str) -> Result<String, SettingsError> {
        self.checked(setting, |_| Ok(()))
    }

    fn optional_text(&mut self, setting: &'static str) -> Result<Option<String>, SettingsError> {
        self.optional_checked(setting, |_| Ok(()))
    }

    fn text_or(&mut self, setting: &'static str, default: &str) -> Result<String, SettingsError> {
        Ok(self
            .optional_text(setting)?
            .unwrap_or_else(|| default.to_owned()))
    }

    /// Reads a number of milliseconds. The options check its limits.
    fn milliseconds(
        &mut self,
        setting: &'static str,
        default: Duration,
    ) -> Result<Duration, SettingsError> {
        let Some(value) = self.optional(setting)? else {
            return Ok(default);
        };
        let digits = value
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| value.parse().ok())
            .flatten();
        digits
            .map(Duration::from_millis)
            .ok_or_else(|| self.error(setting, "must be a whole number of milliseconds"))
    }

    /// Converts an error of options, `KIND.SETTING PROBLEM`.
    fn option_error(&self, error: &ProviderError) -> SettingsError {
        let text = error.to_string();
        let parts = text
            .strip_prefix(self.kind.name())
            .and_then(|text| text.strip_prefix('.'));
        match parts.and_then(|text| text.split_once(' ')) {
            Some((setting, problem)) => self.error(setting, problem),
            None => SettingsError {
                provider: self.provider.to_owned(),
                setting: None,
                problem: text,
            },
        }
    }

    fn path(&mut self, setting: &'static str) -> Result<PathBuf, SettingsError> {
        self.optional_path(setting)?
            .ok_or_else(|| self.missing(setting))
    }

    fn pkcs11(&mut self) -> Result<Pkcs11Options, SettingsError> {
        let options = Pkcs11Options {
            module: self.path("module")?,
            token: self.optional_checked("token", |label| {
                at_most(label, TOKEN_LABEL_BYTES_MAX, "must be of at most 32 bytes")
            })?,
            serial: self.optional_checked("serial", |number| {
                at_most(
                    number,
                    TOKEN_SERIAL_BYTES_MAX,
                    "must be of at most 16 bytes",
                )
            })?,
            key: self.checked("key", |_| Ok(()))?,
            key_id: self
                .optional_checked("key_id", |id| key_id(id).map(|_| ()))?
                .and_then(|id| key_id(&id).ok()),
            pin_file: self.path("pin_file")?,
        };
        if options.token.is_none() && options.serial.is_none() {
            return Err(self.error(
                "token",
                "missing: give the token's label, or its serial number as `serial`",
            ));
        }
        Ok(options)
    }

    fn aws_kms(&mut self) -> Result<AwsKmsOptions, SettingsError> {
        let (key_id, region) = (self.text("key_id")?, self.text("region")?);
        let credentials = match self.optional("credentials")?.unwrap_or("environment") {
            "environment" => AwsCredentials::Environment,
            "file" => AwsCredentials::File {
                path: self.path("credentials_file")?,
                profile: self.text_or("profile", "default")?,
            },
            "web_identity" => AwsCredentials::WebIdentity {
                role_arn: self.text("role_arn")?,
                token_file: self.path("web_identity_token_file")?,
                sts_endpoint_url: self.optional_text("sts_endpoint_url")?,
            },
            _ => {
                return Err(self.error(
                    "credentials",
                    "must be one of: environment, file, web_identity",
                ));
            }
        };
        let mut options = AwsKmsOptions::new(key_id, region, credentials);
        options.endpoint_url = self.optional_text("endpoint_url")?;
        options.ca = self.optional_path("ca")?;
        options.connect_timeout =
            self.milliseconds("connect_timeout_ms", options.connect_timeout)?;
        options.request_timeout =
            self.milliseconds("request_timeout_ms", options.request_timeout)?;
        options.check().map_err(|error| self.option_error(&error))?;
        Ok(options)
    }

    fn transit(&mut self) -> Result<TransitOptions, SettingsError> {
        let (address, key) = (self.text("address")?, self.text("key")?);
        let login = match &*self.text("auth")? {
            "token" => TransitLogin::TokenFile(self.path("token_file")?),
            "approle" => TransitLogin::AppRole {
                mount: self.text_or("approle_mount", "approle")?,
                role_id: self.text("role_id")?,
                secret_id: self.secret_id()?,
            },
            "certificate" => TransitLogin::Certificate {
                mount: self.text_or("cert_mount", "cert")?,
                role: self.optional_text("cert_role")?,
            },
            _ => return Err(self.error("auth", "must be one of: token, approle, certificate")),
        };
        let mut options = TransitOptions::new(address, key, login);
        options.ca = self.optional_path("ca")?;
        options.client_certificate = self.optional_path("client_certificate")?;
        options.client_key = self.optional_path("client_key")?;
        options.namespace = self.optional_text("namespace")?;
        options.mount = self.text_or("mount", &options.mount)?;
        options.connect_timeout =
            self.milliseconds("connect_timeout_ms", options.connect_timeout)?;
        options.request_timeout =
            self.milliseconds("request_timeout_ms", options.request_timeout)?;
        options.check().map_err(|error| self.option_error(&error))?;
        Ok(options)
    }

    fn secret_id(&mut self) -> Result<SecretIdSource, SettingsError> {
        let (file, wrapped) = (
            self.optional_path("secret_id_file")?,
            self.optional_path("wrapped_secret_id_file")?,
        );
        let creation_path = self.optional_text("wrapped_creation_path")?;
        match (file, wrapped, creation_path) {
            (Some(file), None, None) => Ok(SecretIdSource::File(file)),
            (None, Some(file), Some(creation_path)) => Ok(SecretIdSource::Wrapped {
                file,
                creation_path,
            }),
            (None, Some(_), None) => Err(self.missing("wrapped_creation_path")),
            (None, None, _) => Err(self.missing("secret_id_file")),
            (Some(_), _, _) => Err(self.error(
                "secret_id_file",
                "excludes wrapped_secret_id_file and wrapped_creation_path",
            )),
        }
    }

    fn reject_unknown(&self) -> Result<(), SettingsError> {
        let Some(setting) = self
            .table
            .keys()
            .find(|setting| !self.known.contains(&setting.as_str()))
        else {
            return Ok(());
        };
        let has = format!("kind {} has {}", self.kind, self.known.join(", "));
        // The name can be a secret that was entered in the wrong place.
        if (1..=32).contains(&setting.len())
            && setting
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        {
            return Err(self.error(setting, format!("unknown; {has}")));
        }
        let problem = format!("a setting is unknown, and its name is not one to show; {has}");
        Err(SettingsError {
            provider: self.provider.to_owned(),
            setting: None,
            problem,
        })
    }
}

fn ensure(holds: bool, problem: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(problem) }
}

fn at_most(value: &str, bytes: usize, problem: &'static str) -> Result<(), &'static str> {
    ensure(value.len() <= bytes, problem)
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(allowed)
}

fn variable(name: &str) -> Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let holds = name.len() <= 128
        && name.chars().all(allowed)
        && !name.starts_with(|c: char| c.is_ascii_digit());
    ensure(
        holds && !is_key(name),
        "must be the name of an environment variable (A to Z, 0 to 9, _), not a key itself",
    )
}

fn file_path(path: &str) -> Result<(), &'static str> {
    ensure(!ends_in_key(path), "must be a path, not a key itself")
}

fn key_id(text: &str) -> Result<Vec<u8>, &'static str> {
    match HEXLOWER_PERMISSIVE.decode(text.as_bytes()) {
        Ok(id) if (1..=KEY_ID_BYTES_MAX).contains(&id.len()) => Ok(id),
        _ => Err("must be 1 to 64 bytes as hexadecimal digits"),
    }
}

#[cfg(test)]
mod tests;
