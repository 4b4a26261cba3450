//! Builds the TLS side of the listener from files: TLS 1.3, a client certificate always, post-quantum first.
//!
//! Every refusal names its file and what to do about it. No ALPN: the listener speaks one protocol.
//!
//! Session resumption is off. A resumed session carries the client's identity from the first handshake and skips the
//! look at its certificate, so an expired or revoked certificate would live on in a ticket. Callers keep their
//! connections, and a full handshake costs about 0.2 ms of CPU. No tickets also means no ticket keys to
//! rotate, no early data and nothing to replay.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use zeroize::Zeroizing;

use crate::config::{ControlListen, Tls};

/// Longest PEM file, in bytes. A certificate has about 1 KB; a bundle of every public authority 250 KB.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// What a listener needs to talk TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// For `tokio_rustls::TlsAcceptor`.
    pub config: Arc<ServerConfig>,
    /// When the server's own certificate ends; it was still good when this was made.
    pub not_after: OffsetDateTime,
}

/// Why the files cannot serve. All are the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Missing, unreadable or far too large.
    #[error("{key}: {}: cannot be read", file.display())]
    Unreadable {
        /// The configuration key.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Users beside the owner and its group can read the private key, or the group can change it.
    #[error("tls.key: {}: has mode {mode:03o}, so other users can get at it; run `chmod 600` on it", file.display())]
    KeyExposed {
        /// The file.
        file: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds nothing of the kind it should hold.
    #[error("{key}: {}: has no {wanted}", file.display())]
    Lacking {
        /// The configuration key.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// What it should hold.
        wanted: &'static str,
    },
    /// Broken PEM, or a certificate or list that cannot be parsed.
    #[error("{key}: {}: item {item} is malformed", file.display())]
    Malformed {
        /// The configuration key.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// Which item of the file, from 1.
        item: usize,
    },
    /// A key of an algorithm or form that cannot sign.
    #[error("tls.key: {}: is not a key that TLS can use; take ECDSA P-256, ECDSA P-384, Ed25519 or RSA", file.display())]
    KeyUnusable {
        /// The file.
        file: PathBuf,
    },
    /// Certificate and key are of different pairs.
    #[error("tls.key: {}: does not belong to the first certificate in {}", key.display(), certificate.display())]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The server's certificate is over or has not begun, so no caller would accept it.
    #[error("tls.certificate: {}: holds from {not_before} to {not_after}, which is not now", file.display())]
    NotNow {
        /// The file.
        file: PathBuf,
        /// When it begins.
        not_before: OffsetDateTime,
        /// When it ends.
        not_after: OffsetDateTime,
    },
    /// An authority that signs for all callers would name operators too.
    #[error(
        "control.client_ca: {}: holds an authority of tls.client_ca, or one above it, so any caller could change the keys; \
         name operators in control.principals, or give them an authority of their own", file.display()
    )]
    NotOwn {
        /// The file.
        file: PathBuf,
    },
    /// The TLS library refuses the combination.
    #[error("tls: {0}")]
    Library(String),
}

/// The cryptography behind TLS, passed explicitly so that no process-wide default matters.
///
/// Key exchange: X25519 with ML-KEM-768 first, so traffic recorded today stays closed to a quantum computer; then X25519
/// and P-256 for callers without it.
pub fn provider() -> CryptoProvider {
    use aws_lc_rs::kx_group::{SECP256R1, X25519, X25519MLKEM768};
    CryptoProvider { kx_groups: vec![X25519MLKEM768, X25519, SECP256R1], ..aws_lc_rs::default_provider() }
}

/// Whose certificates a listener takes: files, and the keys that name them.
struct Clients<'a> {
    ca: (&'static str, &'a Path),
    crl: Option<(&'static str, &'a Path)>,
}

/// Reads the files and makes the listener's TLS. Called again, it picks up changed files; nothing is cached.
///
/// # Errors
///
/// A file that is missing, malformed, exposed, or does not fit the others.
pub fn load(tls: &Tls) -> Result<ServerTls, TlsError> {
    load_for(tls, &data_clients(tls))
}

/// The same for the control listener: the server's certificate, and the callers of `control`.
///
/// # Errors
///
/// As for [`load`]; [`TlsError::NotOwn`].
pub fn load_control(tls: &Tls, control: &ControlListen) -> Result<ServerTls, TlsError> {
    let crl = control.client_crl.as_deref().map(|crl| ("control.client_crl", crl));
    let clients = match &control.client_ca {
        // Lists of an authority say nothing of another's certificates, and would refuse them all.
        Some(ca) => {
            if control.principals.is_empty() {
                check_own(tls, ca)?;
            }
            Clients { ca: ("control.client_ca", ca), crl }
        }
        None => {
            let data = data_clients(tls);
            Clients { crl: crl.or(data.crl), ..data }
        }
    };
    load_for(tls, &clients)
}

/// Refuses authorities of operators by which a certificate of any caller passes: the same key, or one that signed theirs.
fn check_own(tls: &Tls, operators: &Path) -> Result<(), TlsError> {
    let data = data_clients(tls);
    let (callers, own) = (certificates(data.ca.0, data.ca.1)?, certificates("control.client_ca", operators)?);
    let (callers, own) = (parsed(data.ca.0, data.ca.1, &callers)?, parsed("control.client_ca", operators, &own)?);
    let passes = |caller: &X509Certificate<'_>, own: &X509Certificate<'_>| {
        let signed = caller.issuer() == own.subject() && caller.issuer() != caller.subject();
        signed || caller.public_key().raw == own.public_key().raw
    };
    if callers.iter().any(|caller| own.iter().any(|own| passes(caller, own))) {
        return Err(TlsError::NotOwn { file: operators.to_owned() });
    }
    Ok(())
}

fn parsed<'a>(
    key: &'static str,
    file: &Path,
    all: &'a [CertificateDer<'_>],
) -> Result<Vec<X509Certificate<'a>>, TlsError> {
    let malformed = |item| TlsError::Malformed { key, file: file.to_owned(), item };
    let parse = |(index, der): (usize, &'a CertificateDer<'_>)| {
        x509_parser::parse_x509_certificate(der).map(|(_, parsed)| parsed).map_err(|_| malformed(index + 1))
    };
    all.iter().enumerate().map(parse).collect()
}

fn data_clients(tls: &Tls) -> Clients<'_> {
    let crl = tls.client_crl.as_deref().map(|crl| ("tls.client_crl", crl));
    Clients { ca: ("tls.client_ca", &tls.client_ca), crl }
}

fn load_for(tls: &Tls, clients: &Clients<'_>) -> Result<ServerTls, TlsError> {
    let provider = Arc::new(provider());
    let verifier = client_verifier(clients, &provider)?;
    let (chain, not_after) = server_chain(&tls.certificate)?;
    let key = server_key(&tls.key)?;
    // Checked here as well as in rustls, to tell a foreign key from an unusable one.
    CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::KeyMismatch { key: tls.key.clone(), certificate: tls.certificate.clone() }
        }
        _ => TlsError::KeyUnusable { file: tls.key.clone() },
    })?;
    let versions: &[&SupportedProtocolVersion] =
        if tls.tls12 { &[&rustls::version::TLS13, &rustls::version::TLS12] } else { &[&rustls::version::TLS13] };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|error| TlsError::Library(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| TlsError::Library(error.to_string()))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(ServerTls { config: Arc::new(config), not_after })
}

fn client_verifier(
    clients: &Clients<'_>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let (key, file) = clients.ca;
    let mut roots = RootCertStore::empty();
    for (index, authority) in certificates(key, file)?.into_iter().enumerate() {
        let malformed = |_| TlsError::Malformed { key, file: file.to_owned(), item: index + 1 };
        roots.add(authority).map_err(malformed)?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if let Some((key, file)) = clients.crl {
        // An authority without a list refuses its callers: a list that got lost must not let the revoked back in.
        let lists = items(key, file, "PEM revocation list")?;
        builder = builder.with_crls(lists).only_check_end_entity_revocation();
    }
    builder.build().map_err(|error| TlsError::Library(error.to_string()))
}

fn server_chain(file: &Path) -> Result<(Vec<CertificateDer<'static>>, OffsetDateTime), TlsError> {
    const KEY: &str = "tls.certificate";
    let chain = certificates(KEY, file)?;
    let malformed = |item| TlsError::Malformed { key: KEY, file: file.to_owned(), item };
    let mut ends = None;
    for (index, certificate) in chain.iter().enumerate() {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).map_err(|_| malformed(index + 1))?;
        let validity = certificate.validity();
        let (not_before, not_after) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
        if !(not_before..=not_after).contains(&OffsetDateTime::now_utc()) {
            return Err(TlsError::NotNow { file: file.to_owned(), not_before, not_after });
        }
        ends.get_or_insert(not_after);
    }
    let ends = ends.ok_or_else(|| malformed(1))?;
    Ok((chain, ends))
}

fn server_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    const KEY: &str = "tls.key";
    let pem = read(KEY, file, Some(refuse_exposed))?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(key) => Ok(key),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => {
            Err(TlsError::Lacking { key: KEY, file: file.to_owned(), wanted: "unencrypted PEM private key" })
        }
        Err(_) => Err(TlsError::Malformed { key: KEY, file: file.to_owned(), item: 1 }),
    }
}

fn certificates(key: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    items(key, file, "PEM certificate")
}

/// Every item of one kind in a PEM file; at least one.
fn items<T: PemObject>(key: &'static str, file: &Path, wanted: &'static str) -> Result<Vec<T>, TlsError> {
    let pem = read(key, file, None)?;
    let mut items = Vec::new();
    for (index, item) in T::pem_slice_iter(&pem).enumerate() {
        let malformed = |_| TlsError::Malformed { key, file: file.to_owned(), item: index + 1 };
        items.push(item.map_err(malformed)?);
    }
    if items.is_empty() {
        return Err(TlsError::Lacking { key, file: file.to_owned(), wanted });
    }
    Ok(items)
}

type Inspect = fn(&Path, &std::fs::Metadata) -> Result<(), TlsError>;

/// Reads a whole file of bounded size. What is inspected is what is read: one open file, not two looks at a path.
fn read(key: &'static str, file: &Path, inspect: Option<Inspect>) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let unreadable = |source| TlsError::Unreadable { key, file: file.to_owned(), source };
    let open = File::open(file).map_err(unreadable)?;
    let metadata = open.metadata().map_err(unreadable)?;
    if !metadata.is_file() || metadata.len() > PEM_BYTES_MAX {
        return Err(unreadable(io::Error::other(format!("not a file of at most {PEM_BYTES_MAX} bytes"))));
    }
    if let Some(inspect) = inspect {
        inspect(file, &metadata)?;
    }
    // One allocation of the full size: a growing buffer would leave copies of the key behind, unwiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
    open.take(metadata.len()).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn refuse_exposed(file: &Path, metadata: &std::fs::Metadata) -> Result<(), TlsError> {
    match exposed_mode(metadata) {
        Some(mode) => Err(TlsError::KeyExposed { file: file.to_owned(), mode }),
        None => Ok(()),
    }
}

/// The mode of a file with a private key, if too many may read it. Owner and group may (container platforms mount
/// secrets as 0440); others nothing, and the group may not write.
#[cfg(unix)]
pub(crate) fn exposed_mode(metadata: &std::fs::Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o027 != 0).then_some(mode)
}

#[cfg(not(unix))]
pub(crate) fn exposed_mode(_: &std::fs::Metadata) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests;
