//! The contents of the PEM files that a configuration names, read one after the other.
//!
//! Changes are detected by a digest of the contents, not by modification times. This detects a
//! rename, a symlink that Kubernetes moves, and two writes within the clock's resolution. Files
//! that have their earlier content again count as unchanged. The files are few and small, so a read
//! takes much less than 1 ms, and about 10 ms with a revocation list of maximum size.

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

/// The bytes of a file, or the reason why the file cannot be used. The bytes are wiped on drop,
/// because one of the files is a private key.
type FileContent = Result<Zeroizing<Vec<u8>>, FileProblem>;

/// The reason why a file cannot be used.
enum FileProblem {
    /// The file cannot be read.
    Unreadable(io::ErrorKind, String),
    /// Other users have access to the file.
    Exposed(Arc<Exposure>),
}

/// The contents of all files.
pub(crate) struct Files {
    contents: Vec<(PathBuf, FileContent)>,
    digest: [u8; 32],
}

impl Files {
    /// Reads each file once. Blocks on the file system.
    pub(crate) fn read(tls: &Tls, control: Option<&ControlListen>) -> Self {
        let data = [
            Some(&tls.certificate),
            Some(&tls.key),
            Some(&tls.client_ca),
            tls.client_crl.as_ref(),
        ];
        let control =
            control.map(|control| [control.client_ca.as_ref(), control.client_crl.as_ref()]);
        let mut contents: Vec<(PathBuf, FileContent)> = Vec::new();
        let mut hash = Sha256::new();

        for path in data
            .into_iter()
            .chain(control.into_iter().flatten())
            .flatten()
        {
            if contents.iter().any(|(known, _)| known == path) {
                continue;
            }
            let kind = if *path == tls.key {
                FileKind::Secret
            } else {
                FileKind::Public
            };
            let content = read_file(path, kind);
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
            contents.push((path.clone(), content));
        }

        Self {
            contents,
            digest: hash.finalize().into(),
        }
    }

    /// Returns a digest of the contents, which detects changes. The digest must not be logged,
    /// since it covers a private key.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Returns the bytes of a file.
    pub(super) fn content(&self, key: &'static str, file: &Path) -> Result<&[u8], TlsError> {
        let source = match self.contents.iter().find(|(path, _)| path == file) {
            Some((_, Ok(bytes))) => return Ok(bytes),
            Some((_, Err(FileProblem::Exposed(exposure)))) => {
                return Err(TlsError::Exposed {
                    key,
                    file: file.to_owned(),
                    exposure: Arc::clone(exposure),
                });
            }
            Some((_, Err(FileProblem::Unreadable(kind, text)))) => {
                io::Error::new(*kind, text.clone())
            }
            None => io::ErrorKind::NotFound.into(),
        };

        Err(TlsError::Unreadable {
            key,
            file: file.to_owned(),
            source,
        })
    }

    /// Returns every item of one kind in a PEM file. Fails if the file contains no such item.
    pub(super) fn items<T: PemObject>(
        &self,
        key: &'static str,
        file: &Path,
        wanted: &'static str,
    ) -> Result<Vec<T>, TlsError> {
        tls_files::items(self.content(key, file)?, wanted)
            .map_err(|error| TlsError::pem(key, file, error))
    }

    /// Returns the private key in a PEM file.
    pub(super) fn private_key(
        &self,
        key: &'static str,
        file: &Path,
    ) -> Result<PrivateKeyDer<'static>, TlsError> {
        tls_files::key_of(self.content(key, file)?).map_err(|error| TlsError::pem(key, file, error))
    }
}

/// Reads a whole file of bounded size. Checks the open file and not the path, so that the file
/// cannot be replaced in between.
fn read_file(file: &Path, kind: FileKind) -> FileContent {
    sealwire_service::trusted_file::read(file, kind, PEM_BYTES_MAX).map_err(|error| {
        match error.reason {
            FileErrorReason::Io(error) => FileProblem::Unreadable(error.kind(), error.to_string()),
            FileErrorReason::Exposed(exposure) => FileProblem::Exposed(Arc::new(exposure)),
            FileErrorReason::NotRegular | FileErrorReason::TooLong(_) => FileProblem::Unreadable(
                io::ErrorKind::Other,
                format!("must be a regular file of at most {PEM_BYTES_MAX} bytes"),
            ),
        }
    })
}
