//! The check of a file that a command is about to write.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A file cannot be the output of a command.
#[derive(Debug, thiserror::Error)]
pub enum OutputFileError {
    /// The command reads it.
    #[error("{path} is a file that is read: write the output to another file", path = .0.display())]
    SameFile(PathBuf),
    /// It exists already.
    #[error("{path} is there already: remove it, or say that it is to be replaced", path = .0.display())]
    Exists(PathBuf),
    /// It is a device, a pipe or a socket.
    #[error("{path} is not a regular file, and is not replaced: name another file", path = .0.display())]
    NotRegular(PathBuf),
    /// It cannot be examined, or is a folder.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The output.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Checks that a command can write the output `path`: it is none of the files that the command
/// reads, by any name, and it replaces a regular file only, on request. Commands check their
/// outputs before they begin their work.
///
/// # Errors
/// [`OutputFileError`] if the output cannot be written.
pub fn check(path: &Path, replace: bool, inputs: &[&Path]) -> Result<(), OutputFileError> {
    // A missing input is an error elsewhere.
    let inputs: Vec<Metadata> = inputs
        .iter()
        .filter_map(|input| fs::metadata(input).ok())
        .collect();
    check_against(path, replace, &inputs)
}

/// As [`check`], for inputs that are open.
///
/// # Errors
/// [`OutputFileError`] if the output cannot be written.
pub fn check_against(
    path: &Path,
    replace: bool,
    inputs: &[Metadata],
) -> Result<(), OutputFileError> {
    let failed = |source| OutputFileError::Io {
        path: path.to_owned(),
        source,
    };
    let existing = match fs::metadata(path) {
        Ok(existing) => Some(existing),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let is_read = |output: &Metadata| {
        inputs.iter().any(|input| {
            input.is_file() && (output.dev(), output.ino()) == (input.dev(), input.ino())
        })
    };
    if existing.as_ref().is_some_and(is_read) {
        return Err(OutputFileError::SameFile(path.to_owned()));
    }
    if path.symlink_metadata().is_ok() && !replace {
        return Err(OutputFileError::Exists(path.to_owned()));
    }
    match existing {
        Some(existing) if existing.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
        Some(existing) if !existing.is_file() => Err(OutputFileError::NotRegular(path.to_owned())),
        _ => Ok(()),
    }
}
