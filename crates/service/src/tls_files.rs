//! Reads certificates and private keys for TLS from PEM files.
//!
//! All programs read their TLS files with this module, so the same limits and rules apply. A file
//! has at most [`PEM_BYTES_MAX`] bytes. Other users can neither read nor replace a key
//! ([`trusted_file`]). Errors never quote the content of a file.
//!
//! Callers that must know who can replace a certificate first open it with
//! [`trusted_file::TrustedFile`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::trusted_file::{self, FileError, FileKind};

/// Maximum length of a PEM file, in bytes. A certificate has about 1 KB, and a bundle of all public
/// authorities has about 250 KB.
pub const PEM_BYTES_MAX: u64 = 4 << 20;

/// The reason why a PEM text cannot be used. The message never quotes the text, which can be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// The text contains no item of the expected kind.
    #[error("contains no {wanted}")]
    Missing {
        /// The kind of item, such as "PEM certificate".
        wanted: &'static str,
    },
    /// An item is malformed.
    #[error("{wanted} {item} is malformed")]
    Malformed {
        /// The kind of item.
        wanted: &'static str,
        /// Position of the item, counted from 1.
        item: usize,
    },
}

/// The reason why a file cannot be used. The text names the file and never quotes its content.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// The file cannot be read or is too long, or other users have access to it.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not have the expected content.
    #[error("{}: {reason}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: PemError,
    },
    /// The TLS library rejects the content. For example, the key does not belong to the
    /// certificate.
    #[error("{}: {reason}", file.display())]
    Rejected {
        /// The file.
        file: PathBuf,
        /// The library's reason.
        reason: String,
    },
}

impl TlsFileError {
    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &Path {
        match self {
            Self::File(error) => &error.path,
            Self::Pem { file, .. } | Self::Rejected { file, .. } => file,
        }
    }

    /// Creates the error for a file that the TLS library rejects.
    pub fn rejected(file: &Path, reason: impl fmt::Display) -> Self {
        Self::Rejected {
            file: file.to_owned(),
            reason: reason.to_string(),
        }
    }
}

/// Name of certificates in errors.
pub const CERTIFICATE: &str = "PEM certificate";
/// Name of private keys in errors.
pub const PRIVATE_KEY: &str = "unencrypted PEM private key";

/// Returns every item of one kind in a PEM text. Fails if there is no such item. `wanted` names the
/// kind.
///
/// # Errors
///
/// [`PemError`].
pub fn items<T: PemObject>(pem: &[u8], wanted: &'static str) -> Result<Vec<T>, PemError> {
    let mut found = Vec::new();
    for item in T::pem_slice_iter(pem) {
        let number = found.len() + 1;
        found.push(item.map_err(|_| PemError::Malformed {
            wanted,
            item: number,
        })?);
    }
    if found.is_empty() {
        return Err(PemError::Missing { wanted });
    }
    Ok(found)
}

/// Returns the first private key of a PEM text.
///
/// # Errors
///
/// [`PemError`]. Encrypted keys are not supported.
pub fn key_of(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    // The library's error can quote the text, so it is not used.
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        pem::Error::NoItemsFound => PemError::Missing {
            wanted: PRIVATE_KEY,
        },
        _ => PemError::Malformed {
            wanted: PRIVATE_KEY,
            item: 1,
        },
    })
}

/// Reads all certificates of a file. Fails if the file contains none. Blocks.
///
/// # Errors
///
/// [`TlsFileError`].
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let pem = read_pem(file)?;
    items(&pem, CERTIFICATE).map_err(|reason| TlsFileError::Pem {
        file: file.to_owned(),
        reason,
    })
}

/// Reads the certificates of a file as trusted authorities. Blocks.
///
/// # Errors
///
/// [`TlsFileError`].
pub fn authorities(file: &Path) -> Result<RootCertStore, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|error| TlsFileError::rejected(file, error))?;
    }
    Ok(roots)
}

/// Reads the private key of a file. Only the owner and the group can have access to the file.
/// Blocks.
///
/// # Errors
///
/// [`TlsFileError`].
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsFileError> {
    let pem = trusted_file::read(file, FileKind::Secret, PEM_BYTES_MAX)?;
    key_of(&pem).map_err(|reason| TlsFileError::Pem {
        file: file.to_owned(),
        reason,
    })
}

/// Returns the cryptography of TLS in all programs. It is passed explicitly, so that no
/// process-wide default can replace it.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Creates the TLS settings of a client that trusts only the authorities in the file `ca`. Without
/// this file the client trusts no server. `identity` contains the files of the client's certificate
/// and key. Blocks.
///
/// # Errors
///
/// [`TlsFileError`].
pub fn client_config(
    ca: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, TlsFileError> {
    let roots = ca.map_or_else(|| Ok(RootCertStore::empty()), authorities)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsFileError::rejected(ca.unwrap_or(Path::new("TLS")), error))?
        .with_root_certificates(roots);
    let Some((certificate, key)) = identity else {
        return Ok(builder.with_no_client_auth());
    };

    builder
        .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsFileError::rejected(
                key,
                format_args!("is not the key of {}", certificate.display()),
            ),
            error => TlsFileError::rejected(key, error),
        })
}

/// A digest of the contents of files, which detects changes.
///
/// Modification times are not reliable for a file that is replaced within the clock's resolution,
/// swapped by a symbolic link (as Kubernetes does) or restored. `Debug` prints no digest, since one
/// of the files is a private key.
#[derive(Clone, PartialEq, Eq)]
pub struct ContentDigest([u8; 32]);

impl ContentDigest {
    /// Reads the files. All unreadable files have the same fixed digest. Blocks.
    pub fn of<'f>(files: impl IntoIterator<Item = &'f Path>) -> Self {
        let mut digest = Sha256::new();
        for file in files {
            match read_pem(file) {
                Ok(content) => {
                    digest.update([1]);
                    digest.update((content.len() as u64).to_be_bytes());
                    digest.update(&*content);
                }
                Err(_) => digest.update([0]),
            }
        }
        Self(digest.finalize().into())
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContentDigest")
    }
}

/// Reads a file without checking which users can access it. Blocks.
///
/// # Errors
///
/// [`FileError`], which names the file.
pub fn read_pem(file: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    trusted_file::read_unchecked(file, PEM_BYTES_MAX)
}

#[cfg(test)]
mod tests;
