//! Reads files with certificates and credentials, bounded in size.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::Path;

use zeroize::Zeroizing;

use crate::ProviderError;

/// Longest file that is read, in bytes. A bundle of every public authority has 250 KB.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file that is no secret, such as a certificate. Blocks.
pub(crate) fn read_public(path: &Path) -> Result<Vec<u8>, ProviderError> {
    let (file, metadata) = open(path)?;
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    read(path, file, &metadata, &mut bytes)?;
    Ok(bytes)
}

/// Reads a file with a secret, which other users must not be able to read. Blocks.
pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, ProviderError> {
    let (file, metadata) = open(path)?;
    if let Some(mode) = exposed_mode(&metadata) {
        let text =
            format!("{}: mode {mode:03o} lets others read or write this secret; use 0600 or 0440", path.display());
        return Err(ProviderError::Settings(text));
    }
    // One allocation of the full size: a growing buffer would leave copies of the secret behind, unwiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len() as usize));
    read(path, file, &metadata, &mut bytes)?;
    Ok(bytes)
}

/// Reads a secret of one line of printable ASCII, such as a token. Blank space around it is dropped. Blocks.
pub(crate) fn read_secret_line(path: &Path) -> Result<Zeroizing<String>, ProviderError> {
    line_of(path, &read_secret(path)?)
}

/// Like [`read_secret_line`], whatever the mode of the file is. Blocks.
#[cfg(feature = "awskms")]
pub(crate) fn read_token_line(path: &Path) -> Result<Zeroizing<String>, ProviderError> {
    line_of(path, &Zeroizing::new(read_public(path)?))
}

fn line_of(path: &Path, bytes: &[u8]) -> Result<Zeroizing<String>, ProviderError> {
    let line = bytes.trim_ascii();
    match std::str::from_utf8(line) {
        Ok(text) if !line.is_empty() && line.iter().all(u8::is_ascii_graphic) => Ok(Zeroizing::new(text.to_owned())),
        _ => Err(ProviderError::Settings(format!("{}: must hold one line without spaces", path.display()))),
    }
}

/// Inspects the file that it opened, so that no other file can take its place.
fn open(path: &Path) -> Result<(File, Metadata), ProviderError> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        let text = format!("{}: is not a file of at most {FILE_BYTES_MAX} bytes", path.display());
        return Err(ProviderError::Settings(text));
    }
    Ok((file, metadata))
}

fn read(path: &Path, file: File, metadata: &Metadata, into: &mut Vec<u8>) -> Result<(), ProviderError> {
    file.take(metadata.len()).read_to_end(into).map_err(|error| unreadable(path, &error))?;
    Ok(())
}

fn unreadable(path: &Path, error: &io::Error) -> ProviderError {
    ProviderError::Settings(format!("{}: {error}", path.display()))
}

/// Returns the mode of a file that too many users can access. The owner and the group may read, the owner may write.
#[cfg(unix)]
fn exposed_mode(metadata: &Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o027 != 0).then_some(mode)
}

#[cfg(not(unix))]
fn exposed_mode(_: &Metadata) -> Option<u32> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secrets_are_one_private_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        for (content, mode, expected) in [
            ("s.token\n", 0o600, Ok("s.token")),
            (" s.token \r\n", 0o440, Ok("s.token")),
            ("s.token", 0o644, Err("mode 644")),
            ("s.token", 0o660, Err("mode 660")),
            ("s.token", 0o604, Err("mode 604")),
            ("", 0o600, Err("one line")),
            ("\n", 0o600, Err("one line")),
            ("s.token\nhunter2", 0o600, Err("one line")),
            ("hunter 2", 0o600, Err("one line")),
            ("hunter\u{e9}2", 0o600, Err("one line")),
        ] {
            let _ = fs::remove_file(&path);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = read_secret_line(&path);
            match (read, expected) {
                (Ok(read), Ok(expected)) => assert_eq!(*read, expected),
                (Err(error), Err(part)) => {
                    let text = error.to_string();
                    assert!(text.contains(part) && !text.contains("hunter") && !text.contains("s.token"), "{text}");
                }
                (read, _) => panic!("{content:?} {mode:o}: {read:?}"),
            }
        }
    }

    #[test]
    fn folders_long_files_and_missing_files_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("long");
        File::create(&long).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        for path in [folder.path(), &long, &folder.path().join("none")] {
            assert!(matches!(read_public(path), Err(ProviderError::Settings(_))), "{path:?}");
        }
    }
}
