//! Certificates and keys from PEM files. An error names the file and never quotes it.

use std::fmt::Display;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::fault::Fault;

pub(crate) fn unusable(file: &Path, error: impl Display) -> Fault {
    Fault::Failed(format!("{}: {error}", file.display()))
}

/// All certificates of a file, at least one.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let text = std::fs::read(file).map_err(|error| unusable(file, error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(unusable(file, "no certificate in PEM")),
    }
}

/// The certificates of a file as those that others must come from.
pub(crate) fn roots(file: &Path) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    for root in certificates(file)? {
        roots.add(root).map_err(|error| unusable(file, error))?;
    }
    Ok(roots)
}

/// The private key of a file.
pub(crate) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, Fault> {
    let text = std::fs::read(file).map_err(|error| unusable(file, error))?;
    // The parser's error may quote the text, which is the key.
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| unusable(file, "no private key in PEM"))
}
