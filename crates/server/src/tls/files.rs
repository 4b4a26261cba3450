//! The PEM files of a configuration as one look found them, told apart from another look by what is in them.
//!
//! Contents, not times: names that are swapped (a rename, a symlink as Kubernetes moves it), a clock too coarse for two
//! writes, a file put back as it was, all come out right. They are few and small, so a look costs well under a
//! millisecond, and a list of the longest size some ten.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::TlsError;
use sealwire_config::{ControlListen, Tls};

/// Longest PEM file, in bytes. A certificate has about 1 KB; a bundle of every public authority 250 KB.
pub(super) const PEM_BYTES_MAX: u64 = 4 << 20;

/// A file, or why it could not be read.
type Found = Result<Content, (io::ErrorKind, String)>;

/// Contents of all files.
pub(crate) struct Files {
    found: Vec<(PathBuf, Found)>,
    digest: [u8; 32],
}

/// Content of one file.
struct Content {
    /// Wiped: one of them is a private key.
    bytes: Zeroizing<Vec<u8>>,
    /// The mode, if it is one in which a private key is not private.
    exposed: Option<u32>,
}

impl Files {
    /// Reads each file once. Blocks.
    pub(crate) fn look(tls: &Tls, control: Option<&ControlListen>) -> Self {
        let data = [Some(&tls.certificate), Some(&tls.key), Some(&tls.client_ca), tls.client_crl.as_ref()];
        let control = control.map(|control| [control.client_ca.as_ref(), control.client_crl.as_ref()]);
        let mut found: Vec<(PathBuf, Found)> = Vec::new();
        let mut hash = Sha256::new();
        for path in data.into_iter().chain(control.into_iter().flatten()).flatten() {
            if found.iter().any(|(known, _)| known == path) {
                continue;
            }
            let content = read(path).map_err(|error| (error.kind(), error.to_string()));
            match &content {
                Ok(Content { bytes, exposed }) => {
                    hash.update([1, u8::from(exposed.is_some())]);
                    hash.update((bytes.len() as u64).to_be_bytes());
                    hash.update(bytes);
                }
                Err(_) => hash.update([0]),
            }
            found.push((path.clone(), content));
        }
        Self { found, digest: hash.finalize().into() }
    }

    /// Returns a digest of the files' content, to detect changes. Must not be shown: it covers a private
    /// key.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    fn content(&self, key: &'static str, file: &Path) -> Result<&Content, TlsError> {
        let unreadable = |source| TlsError::Unreadable { key, file: file.to_owned(), source };
        match self.found.iter().find(|(path, _)| path == file) {
            Some((_, Ok(content))) => Ok(content),
            Some((_, Err((kind, text)))) => Err(unreadable(io::Error::new(*kind, text.clone()))),
            None => Err(unreadable(io::ErrorKind::NotFound.into())),
        }
    }

    /// The bytes of a private key, which no other user could read.
    pub(super) fn private(&self, key: &'static str, file: &Path) -> Result<&[u8], TlsError> {
        let content = self.content(key, file)?;
        match content.exposed {
            Some(mode) => Err(TlsError::KeyExposed { file: file.to_owned(), mode }),
            None => Ok(&content.bytes),
        }
    }

    /// Every item of one kind in a PEM file; at least one.
    pub(super) fn items<T: PemObject>(
        &self,
        key: &'static str,
        file: &Path,
        wanted: &'static str,
    ) -> Result<Vec<T>, TlsError> {
        let mut items = Vec::new();
        for (index, item) in T::pem_slice_iter(&self.content(key, file)?.bytes).enumerate() {
            let malformed = |_| TlsError::Malformed { key, file: file.to_owned(), item: index + 1 };
            items.push(item.map_err(malformed)?);
        }
        if items.is_empty() {
            return Err(TlsError::Lacking { key, file: file.to_owned(), wanted });
        }
        Ok(items)
    }
}

/// Reads a whole file of bounded size. Inspects the file that it opened, so that no other file can take its place.
fn read(file: &Path) -> io::Result<Content> {
    let open = File::open(file)?;
    let metadata = open.metadata()?;
    if !metadata.is_file() || metadata.len() > PEM_BYTES_MAX {
        return Err(io::Error::other(format!("not a file of at most {PEM_BYTES_MAX} bytes")));
    }
    // One allocation of the full size: a growing buffer would leave copies of the key behind, unwiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
    open.take(metadata.len()).read_to_end(&mut bytes)?;
    Ok(Content { bytes, exposed: exposed_mode(&metadata) })
}

/// The mode of a file with a private key, if too many may read it. Owner and group may (container platforms mount
/// secrets as 0440); others nothing, and the group may not write.
#[cfg(unix)]
pub fn exposed_mode(metadata: &std::fs::Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o027 != 0).then_some(mode)
}

#[cfg(not(unix))]
pub fn exposed_mode(_: &std::fs::Metadata) -> Option<u32> {
    None
}
