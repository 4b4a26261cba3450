//! Certificates and keys from PEM files. An error names the file and never quotes its content.

use std::fmt::Display;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::fault::Fault;

pub(crate) fn unusable(file: &Path, error: impl Display) -> Fault {
    Fault::Failed(format!("{}: {error}", file.display()))
}

/// Reads all certificates of a file, at least one.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let text = std::fs::read(file).map_err(|error| unusable(file, error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(unusable(file, "no certificate in PEM")),
    }
}

/// Reads the certificates of a file as trust anchors.
pub(crate) fn roots(file: &Path) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    for root in certificates(file)? {
        roots.add(root).map_err(|error| unusable(file, error))?;
    }
    Ok(roots)
}

/// Reads the private key of a file.
pub(crate) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, Fault> {
    let text = std::fs::read(file).map_err(|error| unusable(file, error))?;
    // The parser's error can quote the text, which is the key.
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| unusable(file, "no private key in PEM"))
}
