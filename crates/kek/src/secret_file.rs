//! Reads small files that hold a secret.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::Path;

use zeroize::Zeroizing;

use crate::ProviderError;

/// Longest secret file that is read, in bytes.
pub const SECRET_FILE_BYTES_MAX: u64 = 16 << 10;

/// The bytes of a secret file.
pub(crate) struct SecretFile {
    pub(crate) bytes: Zeroizing<Vec<u8>>,
    /// The file's mode, if others can read the file or its group can change it.
    pub(crate) exposed: Option<u32>,
}

/// Reads a file of at most [`SECRET_FILE_BYTES_MAX`] bytes. Blocks on the file system.
///
/// # Errors
/// [`ProviderError::NotFound`], [`ProviderError::Denied`], [`ProviderError::Unavailable`], or
/// [`ProviderError::Settings`] for a folder or a longer file. Errors name the file and none of its bytes.
pub(crate) fn read(path: &Path) -> Result<SecretFile, ProviderError> {
    let failed = |error: io::Error| {
        let text = format!("{}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::NotFound => ProviderError::NotFound(text),
            io::ErrorKind::PermissionDenied => ProviderError::Denied(text),
            io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput => ProviderError::Settings(text),
            _ => ProviderError::Unavailable(text),
        }
    };
    let file = File::open(path).map_err(failed)?;
    // Inspects the opened file, so that no other file can take its place in between.
    let metadata = file.metadata().map_err(failed)?;
    let too_long = || {
        ProviderError::Settings(format!("{}: must be a file of at most {SECRET_FILE_BYTES_MAX} bytes", path.display()))
    };
    if metadata.is_dir() || metadata.len() > SECRET_FILE_BYTES_MAX {
        return Err(too_long());
    }
    // One allocation of the longest size: a growing buffer would leave copies of the secret behind, unwiped.
    let mut bytes = Zeroizing::new(vec![0; SECRET_FILE_BYTES_MAX as usize + 1]);
    let mut length = 0;
    while length < bytes.len() {
        match (&file).read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    if length as u64 > SECRET_FILE_BYTES_MAX {
        return Err(too_long());
    }
    bytes.truncate(length);
    Ok(SecretFile { bytes, exposed: exposed_mode(&metadata) })
}

/// Like [`read`]. Rejects a file that others can read or whose group can change it.
///
/// # Errors
/// See [`read`]; [`ProviderError::Settings`] for such a file.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, ProviderError> {
    let file = read(path)?;
    match file.exposed {
        None => Ok(file.bytes),
        Some(mode) => Err(ProviderError::Settings(exposed_text(path, mode))),
    }
}

/// Describes an exposed file and its remedy.
pub(crate) fn exposed_text(path: &Path, mode: u32) -> String {
    let path = path.display();
    format!("{path}: mode {mode:03o} lets other users read it, or its group change it: run `chmod 600 {path}`")
}

/// Returns the mode of a file if others can read it or its group can change it. The group may read: container platforms
/// mount secrets with mode 0440.
#[cfg(unix)]
pub(crate) fn exposed_mode(metadata: &Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o027 != 0).then_some(mode)
}

#[cfg(not(unix))]
pub(crate) fn exposed_mode(_: &Metadata) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_private_file_is_readable_by_its_owner_and_group_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "content").unwrap();
        for (mode, private) in
            [(0o600, true), (0o400, true), (0o440, true), (0o640, true), (0o644, false), (0o660, false), (0o601, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(&*read(&path).unwrap().bytes, b"content");
            match read_private(&path) {
                Ok(bytes) => assert!(private && *bytes == b"content", "{mode:o}"),
                Err(ProviderError::Settings(text)) => {
                    assert!(!private && text.contains("chmod 600") && !text.contains("content"), "{mode:o}: {text}");
                }
                Err(error) => panic!("{mode:o}: {error}"),
            }
        }
    }

    #[test]
    fn what_is_no_short_file_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: u64| {
            fs::write(folder.path().join(name), vec![b'x'; usize::try_from(bytes).unwrap()]).unwrap();
        };
        write("empty", 0);
        write("longest", SECRET_FILE_BYTES_MAX);
        write("longer", SECRET_FILE_BYTES_MAX + 1);
        let read = |name: &str| read(&folder.path().join(name)).map(|file| file.bytes.len() as u64);
        assert_eq!(read("empty"), Ok(0));
        assert_eq!(read("longest"), Ok(SECRET_FILE_BYTES_MAX));
        assert!(matches!(read("longer"), Err(ProviderError::Settings(_))));
        assert!(matches!(read("."), Err(ProviderError::Settings(_))));
        assert!(matches!(read("missing"), Err(ProviderError::NotFound(_))));
    }
}
