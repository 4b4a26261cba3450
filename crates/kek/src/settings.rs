//! Settings of providers, read from a table of texts.
//!
//! A secret is never a setting: settings name files and environment variables that hold secrets. Every setting that a
//! kind does not know is an error, so a secret that was put here by mistake stops the program. No error repeats a value.
//!
//! | kind | settings |
//! | --- | --- |
//! | `file` | `path` |
//! | `environment` | `variable` |
//! | `pkcs11` | `module`, `token` or `serial` or both, `key`, `key_id` (optional), `pin_file` |
//! | `awskms` | `key`, `region`, `endpoint` (optional), `credentials_file` (optional) |
//! | `transit` | `address`, `key`, `mount` (`transit`), `ca`, `namespace` (optional), `auth`, `auth_mount` (optional), and for `auth` = `token`: `token_file`; `approle`: `role_id`, `secret_id_file`; `certificate`: `client_certificate`, `client_key` |

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::HEXLOWER_PERMISSIVE;

use crate::{EnvironmentProvider, FileProvider, Pkcs11Options, Pkcs11Provider, Provider, ProviderError, ProviderKind};

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

/// Settings of one provider. None of them is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderSettings {
    /// A KEK in a file.
    File {
        /// The file, with 64 hexadecimal digits.
        path: PathBuf,
    },
    /// A KEK in an environment variable.
    Environment {
        /// The variable's name, of A to Z, 0 to 9 and `_`. Its value is 64 hexadecimal digits.
        variable: String,
    },
    /// A KEK on a PKCS #11 token.
    Pkcs11(Pkcs11Options),
    /// A KEK in AWS Key Management Service.
    AwsKms {
        /// The key's id, ARN or alias.
        key: String,
        /// The region, such as `eu-central-1`.
        region: String,
        /// The service's URL, if it is not the region's own. HTTPS, or HTTP on loopback.
        endpoint: Option<String>,
        /// A file with credentials. Without it, they come from the usual environment variables or a web identity.
        credentials_file: Option<PathBuf>,
    },
    /// A KEK in the transit engine of Vault or OpenBao.
    Transit {
        /// The server's URL, without a path. HTTPS, or HTTP on loopback.
        address: String,
        /// The key's name in the engine.
        key: String,
        /// The path at which the engine is mounted; `transit` unless set.
        mount: String,
        /// A file with the certificates (PEM) that sign the server's. `None` only with HTTP.
        ca: Option<PathBuf>,
        /// The namespace.
        namespace: Option<String>,
        /// The way to log in.
        auth: TransitAuth,
        /// The path at which the way to log in is mounted, if it is not `approle` or `cert`.
        auth_mount: Option<String>,
    },
}

/// Ways to log in to Vault or OpenBao.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransitAuth {
    /// With a token that another program keeps valid.
    Token {
        /// The file with the token.
        token_file: PathBuf,
    },
    /// With a role and its secret.
    AppRole {
        /// The role's id.
        role_id: String,
        /// The file with the secret id, or with a wrapping token for the secret id.
        secret_id_file: PathBuf,
    },
    /// With a client certificate.
    Certificate {
        /// The certificate chain (PEM).
        client_certificate: PathBuf,
        /// The private key (PEM).
        client_key: PathBuf,
    },
}

impl TransitAuth {
    /// Returns the name in settings.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Token { .. } => "token",
            Self::AppRole { .. } => "approle",
            Self::Certificate { .. } => "certificate",
        }
    }
}

/// A setting cannot be used. No text contains a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// The provider's name; printable ASCII characters, others are replaced by `?`.
    pub provider: String,
    /// The setting's name, if the error is one setting's; likewise.
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
    /// A name, kind or setting that is unknown, missing or malformed.
    pub fn parse(
        name: &str,
        kind: &str,
        table: &BTreeMap<String, String>,
        folder: &Path,
    ) -> Result<Self, SettingsError> {
        let error = |problem: &str| SettingsError { provider: shown(name), setting: None, problem: problem.to_owned() };
        if !is_name(name) {
            return Err(error("the name must be of 1 to 64 characters of a to z, 0 to 9, `-` and `_`"));
        }
        let kind = ProviderKind::from_name(kind)
            .ok_or_else(|| error("the kind must be one of: file, environment, pkcs11, awskms, transit"))?;
        let mut reader = SettingsReader { provider: name, kind, table, folder, known: Vec::new() };
        let settings = match kind {
            ProviderKind::File => Self::File { path: reader.path("path")? },
            ProviderKind::Environment => Self::Environment { variable: reader.checked("variable", variable)? },
            ProviderKind::Pkcs11 => Self::Pkcs11(reader.pkcs11()?),
            ProviderKind::AwsKms => reader.aws_kms()?,
            ProviderKind::Transit => reader.transit()?,
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
            Self::AwsKms { .. } => ProviderKind::AwsKms,
            Self::Transit { .. } => ProviderKind::Transit,
        }
    }

    /// Returns the settings that say where the KEK is, for records and lists. Credentials, and the files that hold them,
    /// are left out.
    #[must_use]
    pub fn public_fields(&self) -> BTreeMap<&'static str, String> {
        let path = |path: &Path| Some(path.display().to_string());
        let text = |text: &str| Some(text.to_owned());
        let fields = match self {
            Self::File { path: file } => vec![("path", path(file))],
            Self::Environment { variable } => vec![("variable", text(variable))],
            Self::Pkcs11(Pkcs11Options { module, token, serial, key, key_id, pin_file: _ }) => vec![
                ("module", path(module)),
                ("token", token.clone()),
                ("serial", serial.clone()),
                ("key", text(key)),
                ("key_id", key_id.as_ref().map(|id| HEXLOWER_PERMISSIVE.encode(id))),
            ],
            Self::AwsKms { key, region, endpoint, credentials_file: _ } => {
                vec![("key", text(key)), ("region", text(region)), ("endpoint", endpoint.clone())]
            }
            Self::Transit { address, key, mount, ca: _, namespace, auth, auth_mount: _ } => vec![
                ("address", text(address)),
                ("key", text(key)),
                ("mount", text(mount)),
                ("namespace", namespace.clone()),
                ("auth", text(auth.name())),
            ],
        };
        fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Returns the files that hold secrets, each with its setting's name, to check their permissions.
    #[must_use]
    pub fn secret_files(&self) -> Vec<(&'static str, &Path)> {
        match self {
            Self::File { path } => vec![("path", path)],
            Self::Environment { .. } => Vec::new(),
            Self::Pkcs11(options) => vec![("pin_file", &options.pin_file)],
            Self::AwsKms { credentials_file, .. } => {
                credentials_file.iter().map(|file| ("credentials_file", file.as_path())).collect()
            }
            Self::Transit { auth: TransitAuth::Token { token_file }, .. } => vec![("token_file", token_file)],
            Self::Transit { auth: TransitAuth::AppRole { secret_id_file, .. }, .. } => {
                vec![("secret_id_file", secret_id_file)]
            }
            Self::Transit { auth: TransitAuth::Certificate { client_key, .. }, .. } => vec![("client_key", client_key)],
        }
    }

    /// Creates the provider. Nothing is opened or reached before its first call.
    ///
    /// # Errors
    /// [`ProviderError::Settings`] for a kind that this build does not have.
    pub fn provider(&self) -> Result<Arc<dyn Provider>, ProviderError> {
        match self {
            Self::File { path } => Ok(Arc::new(FileProvider::new(path.clone()))),
            Self::Environment { variable } => Ok(Arc::new(EnvironmentProvider::new(variable.clone()))),
            Self::Pkcs11(options) => Ok(Arc::new(Pkcs11Provider::new(options.clone()))),
            // The providers of these two kinds are created here.
            Self::AwsKms { .. } | Self::Transit { .. } => {
                Err(ProviderError::Settings(format!("kind {} is not in this build", self.kind())))
            }
        }
    }
}

/// Reads settings of one kind and remembers which ones the kind has.
struct SettingsReader<'a> {
    provider: &'a str,
    kind: ProviderKind,
    table: &'a BTreeMap<String, String>,
    folder: &'a Path,
    known: Vec<&'static str>,
}

/// Checks a value. The error says what the value must be.
type ValueCheck = fn(&str) -> Result<(), &'static str>;

impl<'a> SettingsReader<'a> {
    fn error(&self, setting: &str, problem: impl Into<String>) -> SettingsError {
        SettingsError { provider: shown(self.provider), setting: Some(shown(setting)), problem: problem.into() }
    }

    fn missing(&self, setting: &str) -> SettingsError {
        self.error(setting, format!("missing, and kind {} needs it", self.kind))
    }

    fn optional(&mut self, setting: &'static str) -> Result<Option<&'a str>, SettingsError> {
        self.known.push(setting);
        let Some(value) = self.table.get(setting) else { return Ok(None) };
        if value.is_empty() || value.len() > VALUE_BYTES_MAX || value.chars().any(char::is_control) {
            return Err(self.error(setting, "must be a text of 1 to 4,096 bytes without control characters"));
        }
        Ok(Some(value))
    }

    fn optional_checked(&mut self, setting: &'static str, check: ValueCheck) -> Result<Option<String>, SettingsError> {
        let Some(value) = self.optional(setting)? else { return Ok(None) };
        check(value).map_err(|problem| self.error(setting, problem))?;
        Ok(Some(value.to_owned()))
    }

    fn checked(&mut self, setting: &'static str, check: ValueCheck) -> Result<String, SettingsError> {
        self.optional_checked(setting, check)?.ok_or_else(|| self.missing(setting))
    }

    fn optional_path(&mut self, setting: &'static str) -> Result<Option<PathBuf>, SettingsError> {
        Ok(self.optional(setting)?.map(|path| self.folder.join(path)))
    }

    fn path(&mut self, setting: &'static str) -> Result<PathBuf, SettingsError> {
        self.optional_path(setting)?.ok_or_else(|| self.missing(setting))
    }

    fn pkcs11(&mut self) -> Result<Pkcs11Options, SettingsError> {
        let options = Pkcs11Options {
            module: self.path("module")?,
            token: self.optional_checked("token", |label| {
                at_most(label, TOKEN_LABEL_BYTES_MAX, "must be of at most 32 bytes")
            })?,
            serial: self.optional_checked("serial", |number| {
                at_most(number, TOKEN_SERIAL_BYTES_MAX, "must be of at most 16 bytes")
            })?,
            key: self.checked("key", |_| Ok(()))?,
            key_id: self.optional_checked("key_id", |id| key_id(id).map(|_| ()))?.and_then(|id| key_id(&id).ok()),
            pin_file: self.path("pin_file")?,
        };
        if options.token.is_none() && options.serial.is_none() {
            return Err(self.error("token", "missing: give the token's label, or its serial number as `serial`"));
        }
        Ok(options)
    }

    fn aws_kms(&mut self) -> Result<ProviderSettings, SettingsError> {
        Ok(ProviderSettings::AwsKms {
            key: self.checked("key", |key| {
                let allowed = |c: char| c.is_ascii_alphanumeric() || "-_/:.".contains(c);
                ensure(key.len() <= 2048 && key.chars().all(allowed), "must be a key's id, ARN or alias")
            })?,
            region: self.checked("region", |region| {
                let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
                ensure(region.len() <= 64 && region.chars().all(allowed), "must be a region, such as eu-central-1")
            })?,
            endpoint: self.optional_checked("endpoint", address)?,
            credentials_file: self.optional_path("credentials_file")?,
        })
    }

    fn transit(&mut self) -> Result<ProviderSettings, SettingsError> {
        let server = self.checked("address", address)?;
        let ca = self.optional_path("ca")?;
        if ca.is_none() && server.starts_with("https:") {
            return Err(self.missing("ca"));
        }
        Ok(ProviderSettings::Transit {
            address: server,
            key: self.checked("key", |key| {
                ensure(path(key).is_ok() && !key.contains('/'), "must be of A to Z, a to z, 0 to 9, `-`, `_` and `.`")
            })?,
            mount: self.optional_checked("mount", path)?.unwrap_or_else(|| "transit".to_owned()),
            ca,
            namespace: self.optional_checked("namespace", path)?,
            auth: self.transit_auth()?,
            auth_mount: self.optional_checked("auth_mount", path)?,
        })
    }

    fn transit_auth(&mut self) -> Result<TransitAuth, SettingsError> {
        match &*self.checked("auth", |_| Ok(()))? {
            "token" => Ok(TransitAuth::Token { token_file: self.path("token_file")? }),
            "approle" => Ok(TransitAuth::AppRole {
                role_id: self.checked("role_id", |_| Ok(()))?,
                secret_id_file: self.path("secret_id_file")?,
            }),
            "certificate" => Ok(TransitAuth::Certificate {
                client_certificate: self.path("client_certificate")?,
                client_key: self.path("client_key")?,
            }),
            _ => Err(self.error("auth", "must be one of: token, approle, certificate")),
        }
    }

    fn reject_unknown(&self) -> Result<(), SettingsError> {
        match self.table.keys().find(|setting| !self.known.contains(&setting.as_str())) {
            None => Ok(()),
            Some(setting) => {
                Err(self.error(setting, format!("unknown; kind {} has {}", self.kind, self.known.join(", "))))
            }
        }
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
    let holds = name.len() <= 128 && name.chars().all(allowed) && !name.starts_with(|c: char| c.is_ascii_digit());
    ensure(holds, "must be the name of an environment variable (A to Z, 0 to 9, _), not a key itself")
}

/// A path below `/v1/` of Vault's API.
fn path(path: &str) -> Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let part = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(allowed);
    ensure(
        path.split('/').all(part),
        "must be a path of A to Z, a to z, 0 to 9, `-`, `_` and `.`, without outer slashes",
    )
}

fn key_id(text: &str) -> Result<Vec<u8>, &'static str> {
    match HEXLOWER_PERMISSIVE.decode(text.as_bytes()) {
        Ok(id) if (1..=KEY_ID_BYTES_MAX).contains(&id.len()) => Ok(id),
        _ => Err("must be 1 to 64 bytes as hexadecimal digits"),
    }
}

/// A URL of a server: HTTPS, or HTTP on loopback, without user, path or query.
fn address(text: &str) -> Result<(), &'static str> {
    const PROBLEM: &str =
        "must be a URL such as https://host:8200, without user, path or query; http on loopback alone";
    let uri: http::Uri = text.parse().map_err(|_| PROBLEM)?;
    let authority = uri.authority().ok_or(PROBLEM)?;
    let host = authority.host();
    let numeric = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let loopback = host == "localhost" || numeric.is_ok_and(|address| address.is_loopback());
    let scheme = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => loopback,
        _ => false,
    };
    // A port is a number, and not 0; the parser takes any text of digits.
    let port = match authority.as_str().rsplit_once(':') {
        Some((_, port)) if !port.contains(']') => port.parse::<u16>().is_ok_and(|port| port != 0),
        _ => true,
    };
    let plain = !authority.as_str().contains('@') && matches!(uri.path(), "" | "/") && uri.query().is_none();
    ensure(scheme && port && plain && !host.is_empty() && !text.contains('#'), PROBLEM)
}

/// Makes a name printable and short: it can be a secret in the wrong place, or come from anywhere.
fn shown(name: &str) -> String {
    name.chars().take(NAME_BYTES_MAX).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests;
