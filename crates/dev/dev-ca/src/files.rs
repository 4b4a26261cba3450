//! Writes a file completely or not at all, with its permissions set from the first byte.
//!
//! The text goes to a new file in the same folder, is synced, and is renamed or linked to the
//! target in one step. A reader sees the old file or the new one, and a secret is never readable by
//! others.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Read access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only the owner: mode 0600. For private keys.
    Owner,
    /// Everybody, subject to the umask: mode 0644. For certificates.
    Everyone,
}

/// Handling of an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Keep the old file and fail.
    Keep,
    /// Replace the old file with the new one.
    Replace,
}

/// The reason why a file was not written. An old file, if any, is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file exists, and replacing it was not requested.
    #[error("{}: exists and is not overwritten", .0.display())]
    Exists(PathBuf),
    /// The system returned an error.
    #[error("{}: cannot be written", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Writes `contents` to `file`, atomically, and syncs it and its folder.
///
/// # Errors
///
/// The file exists and must be kept, or the system returns an error.
pub fn write(
    file: &Path,
    contents: &[u8],
    access: Access,
    existing: Existing,
) -> Result<(), FileError> {
    let failed = |source| FileError::Io {
        file: file.to_owned(),
        source,
    };
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let beside = beside(folder, file).map_err(failed)?;
    let done = put(&beside, contents, access).and_then(|()| match existing {
        Existing::Replace => fs::rename(&beside, file),
        // A hard link fails atomically if the name exists. A rename would replace the file.
        Existing::Keep => fs::hard_link(&beside, file).and_then(|()| fs::remove_file(&beside)),
    });
    if let Err(source) = done {
        // A failure to remove the file is ignored, because the first error is the one to report.
        let _ = fs::remove_file(&beside);
        return Err(match source.kind() {
            io::ErrorKind::AlreadyExists => FileError::Exists(file.to_owned()),
            _ => failed(source),
        });
    }
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed)
}

/// Returns a name in the target's folder that no other writer uses.
fn beside(folder: &Path, file: &Path) -> io::Result<PathBuf> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let name = file.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}-{count}.new", std::process::id()));
    Ok(folder.join(beside))
}

fn put(path: &Path, contents: &[u8], access: Access) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(match access {
            Access::Owner => 0o600,
            Access::Everyone => 0o644,
        });
    }
    #[cfg(not(unix))]
    let _ = access;
    let mut file = options.open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_files_are_kept_unless_asked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        write(&file, b"first", Access::Owner, Existing::Keep).unwrap();
        let error = write(&file, b"second", Access::Owner, Existing::Keep).unwrap_err();
        assert!(matches!(error, FileError::Exists(_)), "{error}");
        assert_eq!(fs::read(&file).unwrap(), b"first");
        write(&file, b"third", Access::Owner, Existing::Replace).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"third");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_is_its_owners_also_when_it_replaces_a_public_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        for (access, others) in [(Access::Everyone, true), (Access::Owner, false)] {
            write(&file, b"text", access, Existing::Replace).unwrap();
            let mode = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o077 != 0, others, "{mode:o}");
            assert_eq!(mode & 0o600, 0o600, "{mode:o}");
        }
    }

    #[test]
    fn a_missing_folder_or_name_is_said() {
        let folder = tempfile::tempdir().unwrap();
        for file in [
            folder.path().join("none/key.pem"),
            PathBuf::from("/"),
            folder.path().join(".."),
        ] {
            assert!(matches!(
                write(&file, b"", Access::Owner, Existing::Keep),
                Err(FileError::Io { .. } | FileError::Exists(_))
            ));
        }
    }
}
