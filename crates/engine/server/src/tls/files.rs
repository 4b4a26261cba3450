//! The PEM files of a configuration as one look found them, told apart from another look by what is
//! in them.
//!
//! Contents, not times: names that are swapped (a rename, a symlink as Kubernetes moves it), a
//! clock too coarse for two writes, a file put back as it was, all come out right. They are few and
//! small, so a look costs well under a millisecond, and a list of the longest size some ten.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use sealwire_service::tls_files::{self, PEM_BYTES_MAX};
use sealwire_service::trusted_file::{Exposure, FileErrorReason, FileKind};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::TlsError;
use sealwire_settings::{ControlListen, Tls};

/// The bytes of a file, or why it cannot be used. Wiped: one of them is a private key.
type FileContent = Result<Zeroizing<Vec<u8>>, FileProblem>;

/// Why a file cannot be used.
enum FileProblem {
    /// It cannot be read.
    Unreadable(io::ErrorKind, String),
    /// Other users can get at it.
    Exposed(Arc<Exposure>),
}

/// Contents of all files.
pub(crate) struct Files {
    found: Vec<(PathBuf, FileContent)>,
    digest: [u8; 32],
}

impl Files {
    /// Reads each file once. Blocks.
    pub(crate) fn look(tls: &Tls, control: Option<&ControlListen>) -> Self {
        let data = [
            Some(&tls.certificate),
            Some(&tls.key),
            Some(&tls.client_ca),
            tls.client_crl.as_ref(),
        ];
        let control =
            control.map(|control| [control.client_ca.as_ref(), control.client_crl.as_ref()]);
        let mut found: Vec<(PathBuf, FileContent)> = Vec::new();
        let mut hash = Sha256::new();
        for path in data
            .into_iter()
            .chain(control.into_iter().flatten())
            .flatten()
        {
            if found.iter().any(|(known, _)| known == path) {
                continue;
            }
            let kind = if *path == tls.key {
                FileKind::Secret
            } else {
                FileKind::Public
            };
            let content = read(path, kind);
            match &content {
                Ok(bytes) => {
                    hash.update([1]);
                    hash.update((bytes.len() as u64).to_be_bytes());
                    hash.update(bytes);
                }
                Err(FileProblem::Unreadable(..)) => hash.update([0]),
                Err(FileProblem::Exposed(exposure)) => {
                    hash.update([2]);
                    hash.update(exposure.to_string());
                }
            }
            found.push((path.clone(), content));
        }
        Self {
            found,
            digest: hash.finalize().into(),
        }
    }

    /// Returns a digest of the files' content, to detect changes. Must not be shown: it covers a
    /// private key.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Returns the bytes of a file.
    pub(super) fn content(&self, key: &'static str, file: &Path) -> Result<&[u8], TlsError> {
        let unreadable = |source| TlsError::Unreadable {
            key,
            file: file.to_owned(),
            source,
        };
        match self.found.iter().find(|(path, _)| path == file) {
            Some((_, Ok(bytes))) => Ok(bytes),
            Some((_, Err(FileProblem::Exposed(exposure)))) => Err(TlsError::Exposed {
                key,
                file: file.to_owned(),
                exposure: Arc::clone(exposure),
            }),
            Some((_, Err(FileProblem::Unreadable(kind, text)))) => {
                Err(unreadable(io::Error::new(*kind, text.clone())))
            }
            None => Err(unreadable(io::ErrorKind::NotFound.into())),
        }
    }

    /// Every item of one kind in a PEM file; at least one.
    pub(super) fn items<T: PemObject>(
        &self,
        key: &'static str,
        file: &Path,
        wanted: &'static str,
    ) -> Result<Vec<T>, TlsError> {
        tls_files::items(self.content(key, file)?, wanted)
            .map_err(|error| TlsError::pem(key, file, error))
    }

    /// The private key in a PEM file.
    pub(super) fn private_key(
        &self,
        key: &'static str,
        file: &Path,
    ) -> Result<PrivateKeyDer<'static>, TlsError> {
        tls_files::key_of(self.content(key, file)?).map_err(|error| TlsError::pem(key, file, error))
    }
}

/// Reads a whole file of bounded size. Inspects the file that it opened, so that no other file can
/// take its place.
fn read(file: &Path, kind: FileKind) -> FileContent {
    sealwire_service::trusted_file::read(file, kind, PEM_BYTES_MAX).map_err(|error| {
        match error.reason {
            FileErrorReason::Io(error) => FileProblem::Unreadable(error.kind(), error.to_string()),
            FileErrorReason::Exposed(exposure) => FileProblem::Exposed(Arc::new(exposure)),
            FileErrorReason::NotRegular | FileErrorReason::TooLong(_) => FileProblem::Unreadable(
                io::ErrorKind::Other,
                format!("not a file of at most {PEM_BYTES_MAX} bytes"),
            ),
        }
    })
}
