//! Builds the TLS settings of the listeners from files. Listeners use TLS 1.3 by default, require a
//! client certificate, and prefer post-quantum key exchange. Only the HTTP listener does without a
//! certificate, if an issuer of tokens is configured; a certificate that a client sends is verified in
//! any case.
//!
//! Every error names the file and the correction. ALPN is not used, because each listener speaks
//! one protocol. This module caches nothing. When the files change, they are loaded in the same
//! way, and `certificates.rs` puts the result in service.
//!
//! Session resumption is off. A resumed session keeps the client's identity from the first
//! handshake and skips the certificate check. An expired or revoked certificate would therefore
//! stay usable through a ticket. Clients keep their connections open, and a full handshake takes
//! only about 0.2 ms of CPU.
//!
//! Without tickets there are also no ticket keys to rotate, no early data and no replay.
//!
//! A revocation list stays in force after its `nextUpdate`. Rejecting all clients instead would
//! turn one missed delivery of a file into an outage of every relay. The log warns before and after
//! `nextUpdate`, and a metric shows the time.

mod certificate_info;
mod files;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientCertVerifierBuilder, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use sealwire_service::bearer::IssuerError;
use sealwire_service::tls_files::{self, PemError};
use sealwire_service::trusted_file::Exposure;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;

pub(crate) use certificate_info::second;
pub use certificate_info::{CertificateInfo, ExpiryStage};
pub(crate) use files::Files;
use sealwire_settings::{ControlListen, Tls};
use sealwire_telemetry::metrics::CertificateLabel;

/// TLS settings of a listener.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// Configuration for `tokio_rustls::TlsAcceptor`.
    pub config: Arc<ServerConfig>,
    /// Settings of a listener whose clients may send no certificate. A certificate that a client sends
    /// must be valid.
    pub config_optional_certificate: Arc<ServerConfig>,
    /// Verifies client certificates in handshakes, and again while clients are connected.
    pub verifier: Arc<dyn ClientCertVerifier>,
}

/// TLS settings from the files of a configuration, all read at one time.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Settings of the data listener.
    pub data: ServerTls,
    /// Settings of the control listener, if it is configured.
    pub control: Option<ServerTls>,
    /// Every certificate and revocation list in the files.
    pub certificates: Vec<CertificateInfo>,
}

impl Loaded {
    /// Returns the earliest expiry in the server's certificate chain. Every certificate was valid
    /// when this value was created.
    pub fn server_expiry(&self) -> Option<OffsetDateTime> {
        self.expiry(CertificateLabel::Server)
    }

    /// Returns the earliest expiry of the certificates or lists with this label.
    pub fn expiry(&self, label: CertificateLabel) -> Option<OffsetDateTime> {
        self.certificates
            .iter()
            .filter(|certificate| certificate.label == label)
            .filter_map(|certificate| certificate.expires_at)
            .min()
    }
}

/// Errors in the TLS files. The operator must correct each of them.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file is missing, unreadable or far too large.
    #[error("{key}: {}: cannot be read", file.display())]
    Unreadable {
        /// The configuration key.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read the private key, or change the file.
    #[error("{key}: {}: {exposure}", file.display())]
    Exposed {
        /// The configuration key.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// Which users have access, and how to remove their access.
        exposure: Arc<Exposure>,
    },
    /// The file contains no item of the expected kind.
    #[error("{key}: {}: has no {wanted}", file.display())]
    Lacking {
        /// The configuration key.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// Expected content.
        wanted: &'static str,
    },
    /// The PEM is malformed, or a certificate or list in it cannot be parsed.
    #[error("{key}: {}: item {item} is malformed", file.display())]
    Malformed {
        /// The configuration key.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// Position of the item in the file, counted from 1.
        item: usize,
    },
    /// The key has an algorithm or a form that cannot sign.
    #[error("tls.key: {}: is not a key that TLS can use; take ECDSA P-256, ECDSA P-384, Ed25519 or RSA", file.display())]
    KeyUnusable {
        /// The file.
        file: PathBuf,
    },
    /// The certificate and the key do not belong together.
    #[error("tls.key: {}: does not belong to the first certificate in {}", key.display(), certificate.display())]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The server's certificate has expired or is not valid yet, so every client would reject it.
    #[error("tls.certificate: {}: is not valid now, only from {not_before} to {not_after}; install a valid certificate", file.display())]
    NotNow {
        /// The file.
        file: PathBuf,
        /// Start of the validity period.
        not_before: OffsetDateTime,
        /// End of the validity period.
        not_after: OffsetDateTime,
    },
    /// The authority of operators also issues certificates to other clients, which could then act
    /// as operators.
    #[error(
        "control.client_ca: {}: contains an authority of tls.client_ca, or its issuer, so any client could change the keys; \
         set control.principals, or use a separate control.client_ca", file.display()
    )]
    NotOwn {
        /// The file.
        file: PathBuf,
    },
    /// The files change at every read, or cannot be read.
    #[error("tls: the files keep changing while they are read; retry when they are complete")]
    Restless,
    /// The file with the keys of a token issuer cannot be used.
    #[error("{0}; the earlier keys stay in use")]
    IssuerKeys(IssuerError),
    /// The TLS library rejects the combination.
    #[error("tls: {0}")]
    Library(String),
}

impl TlsError {
    /// Describes why the file of the setting `key` is not a PEM file of the expected kind.
    fn pem(key: &'static str, file: &Path, error: PemError) -> Self {
        let file = file.to_owned();
        match error {
            PemError::Missing { wanted } => Self::Lacking { key, file, wanted },
            PemError::Malformed { item, .. } => Self::Malformed { key, file, item },
        }
    }
}

impl TlsError {
    /// Returns the error, followed by its cause if there is one.
    pub(crate) fn with_cause(&self) -> String {
        match self {
            Self::Unreadable { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }
}

/// Returns the cryptography of TLS. Callers pass it explicitly, so that no process-wide default
/// applies.
///
/// The preferred key exchange is X25519 with ML-KEM-768, so that a future quantum computer cannot
/// decrypt traffic that is recorded today. X25519 and P-256 follow for clients that do not support
/// it.
pub fn provider() -> CryptoProvider {
    use aws_lc_rs::kx_group::{SECP256R1, X25519, X25519MLKEM768};
    CryptoProvider {
        kx_groups: vec![X25519MLKEM768, X25519, SECP256R1],
        ..aws_lc_rs::default_provider()
    }
}

/// Client authorities of a listener: files, their configuration keys, and their names in logs and
/// metrics.
struct Clients<'a> {
    ca: (&'static str, &'a Path, CertificateLabel),
    crl: Option<(&'static str, &'a Path, CertificateLabel)>,
}

impl<'a> Clients<'a> {
    fn of_data(tls: &'a Tls) -> Self {
        let crl = tls
            .client_crl
            .as_deref()
            .map(|crl| ("tls.client_crl", crl, CertificateLabel::ClientCrl));
        Self {
            ca: ("tls.client_ca", &tls.client_ca, CertificateLabel::ClientCa),
            crl,
        }
    }

    fn of_control(tls: &'a Tls, control: &'a ControlListen) -> Self {
        let crl = control.client_crl.as_deref();
        let crl = crl.map(|crl| {
            (
                "control.client_crl",
                crl,
                CertificateLabel::ControlClientCrl,
            )
        });

        match &control.client_ca {
            // Revocation lists of `[tls]` do not cover certificates of another authority. With
            // these lists, the verifier would reject all clients of `control.client_ca`.
            Some(ca) => Self {
                ca: ("control.client_ca", ca, CertificateLabel::ControlClientCa),
                crl,
            },
            None => {
                let data = Self::of_data(tls);
                Self {
                    crl: crl.or(data.crl),
                    ..data
                }
            }
        }
    }
}

/// Reads the files of a configuration and builds the TLS settings.
///
/// # Errors
///
/// A file is missing, malformed or exposed, or does not match the others. [`TlsError::NotOwn`].
pub fn load(tls: &Tls, control: Option<&ControlListen>) -> Result<Loaded, TlsError> {
    load_from(&Files::read(tls, control), tls, control)
}

/// Builds the TLS settings from files that were already read.
///
/// # Errors
///
/// The same as for [`load`].
pub(crate) fn load_from(
    files: &Files,
    tls: &Tls,
    control: Option<&ControlListen>,
) -> Result<Loaded, TlsError> {
    let mut infos = Vec::new();
    let provider = Arc::new(provider());
    let server = Server::load(files, tls, &provider, &mut infos)?;
    let data = server.listen(files, &Clients::of_data(tls), &mut infos)?;
    let control = control
        .map(|control| {
            if let (Some(ca), true) = (&control.client_ca, control.principals.is_empty()) {
                check_own(files, tls, ca)?;
            }
            server.listen(files, &Clients::of_control(tls, control), &mut infos)
        })
        .transpose()?;

    Ok(Loaded {
        data,
        control,
        certificates: infos,
    })
}

/// Fails if an authority for operators also accepts certificates of other clients. This happens if
/// both authorities have the same key, or if the authority for operators signed the other
/// authority.
fn check_own(files: &Files, tls: &Tls, operators: &Path) -> Result<(), TlsError> {
    const OPERATORS: &str = "control.client_ca";
    let client_chain = certificates(files, "tls.client_ca", &tls.client_ca)?;
    let client_authorities = parsed("tls.client_ca", &tls.client_ca, &client_chain)?;
    let operator_chain = certificates(files, OPERATORS, operators)?;
    let operator_authorities = parsed(OPERATORS, operators, &operator_chain)?;

    if client_authorities.iter().any(|client| {
        operator_authorities
            .iter()
            .any(|operator| accepts_clients_of(operator, client))
    }) {
        return Err(TlsError::NotOwn {
            file: operators.to_owned(),
        });
    }
    Ok(())
}

/// Returns true if the `operator` authority accepts certificates that the `client` authority issued.
fn accepts_clients_of(operator: &X509Certificate<'_>, client: &X509Certificate<'_>) -> bool {
    let is_issuer = client.issuer() == operator.subject() && client.issuer() != client.subject();
    is_issuer || client.public_key().raw == operator.public_key().raw
}

fn parsed<'a>(
    key: &'static str,
    file: &Path,
    all: &'a [CertificateDer<'_>],
) -> Result<Vec<X509Certificate<'a>>, TlsError> {
    all.iter()
        .enumerate()
        .map(|(index, der)| {
            x509_parser::parse_x509_certificate(der)
                .map(|(_, parsed)| parsed)
                .map_err(|_| TlsError::Malformed {
                    key,
                    file: file.to_owned(),
                    item: index + 1,
                })
        })
        .collect()
}

const TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
const TLS13_AND_12: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

/// The server's own certificate chain, key and TLS versions, which the listeners share.
struct Server<'a> {
    provider: &'a Arc<CryptoProvider>,
    versions: &'static [&'static SupportedProtocolVersion],
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl<'a> Server<'a> {
    fn load(
        files: &Files,
        tls: &Tls,
        provider: &'a Arc<CryptoProvider>,
        infos: &mut Vec<CertificateInfo>,
    ) -> Result<Self, TlsError> {
        let chain = server_chain(files, &tls.certificate, infos)?;
        let key = files.private_key("tls.key", &tls.key)?;
        // Checked here as well as in rustls, to distinguish a key that does not match from a key
        // that cannot be used.
        CertifiedKey::from_der(chain.clone(), key.clone_key(), provider).map_err(|error| {
            match error {
                rustls::Error::InconsistentKeys(_) => TlsError::KeyMismatch {
                    key: tls.key.clone(),
                    certificate: tls.certificate.clone(),
                },
                _ => TlsError::KeyUnusable {
                    file: tls.key.clone(),
                },
            }
        })?;
        let versions = if tls.tls12 { TLS13_AND_12 } else { TLS13 };
        Ok(Self {
            provider,
            versions,
            chain,
            key,
        })
    }

    /// Builds the settings of a listener for these clients.
    fn listen(
        &self,
        files: &Files,
        clients: &Clients<'_>,
        infos: &mut Vec<CertificateInfo>,
    ) -> Result<ServerTls, TlsError> {
        let builder = client_verifier(files, clients, self.provider, infos)?;
        let optional = builder.clone().allow_unauthenticated();
        let verifier = builder.build().map_err(library_error)?;
        let optional = optional.build().map_err(library_error)?;
        Ok(ServerTls {
            config: self.config(Arc::clone(&verifier))?,
            config_optional_certificate: self.config(optional)?,
            verifier,
        })
    }

    fn config(&self, verifier: Arc<dyn ClientCertVerifier>) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(self.provider))
            .with_protocol_versions(self.versions)
            .map_err(library_error)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(library_error)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }
}

fn library_error(error: impl std::fmt::Display) -> TlsError {
    TlsError::Library(error.to_string())
}

fn client_verifier(
    files: &Files,
    clients: &Clients<'_>,
    provider: &Arc<CryptoProvider>,
    infos: &mut Vec<CertificateInfo>,
) -> Result<ClientCertVerifierBuilder, TlsError> {
    let (key, file, label) = clients.ca;
    let mut roots = RootCertStore::empty();
    for (index, authority) in certificates(files, key, file)?.into_iter().enumerate() {
        add_new(infos, CertificateInfo::certificate(label, &authority));
        roots.add(authority).map_err(|_| TlsError::Malformed {
            key,
            file: file.to_owned(),
            item: index + 1,
        })?;
    }

    let mut builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if let Some((key, file, label)) = clients.crl {
        // If an authority has no list, its clients are rejected. A lost list must not restore
        // access to clients with a revoked certificate.
        let lists: Vec<CertificateRevocationListDer<'static>> =
            files.items(key, file, "PEM revocation list")?;
        for list in &lists {
            add_new(infos, CertificateInfo::list(label, list));
        }
        builder = builder.with_crls(lists).only_check_end_entity_revocation();
    }
    Ok(builder)
}

/// Adds a certificate that is not in the list yet. The control listener can use the same
/// authorities and lists as the data listener.
fn add_new(infos: &mut Vec<CertificateInfo>, new: Option<CertificateInfo>) {
    infos.extend(new.filter(|new| !infos.contains(new)));
}

fn server_chain(
    files: &Files,
    file: &Path,
    infos: &mut Vec<CertificateInfo>,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    const KEY: &str = "tls.certificate";
    let chain = certificates(files, KEY, file)?;
    for certificate in parsed(KEY, file, &chain)? {
        let validity = certificate.validity();
        let not_before = validity.not_before.to_datetime();
        let not_after = validity.not_after.to_datetime();
        if !(not_before..=not_after).contains(&OffsetDateTime::now_utc()) {
            return Err(TlsError::NotNow {
                file: file.to_owned(),
                not_before,
                not_after,
            });
        }
    }

    infos.extend(chain.iter().filter_map(|certificate| {
        CertificateInfo::certificate(CertificateLabel::Server, certificate)
    }));
    Ok(chain)
}

fn certificates(
    files: &Files,
    key: &'static str,
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    files.items(key, file, tls_files::CERTIFICATE)
}

#[cfg(test)]
pub(crate) mod tests;
