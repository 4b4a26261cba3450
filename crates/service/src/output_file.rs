//! Checks a file before a command writes it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The reason why a file cannot be the output of a command.
#[derive(Debug, thiserror::Error)]
pub enum OutputFileError {
    /// The command also reads the file.
    #[error("{path} is an input of this command: write the output to another file", path = .0.display())]
    SameFile(PathBuf),
    /// The file already exists.
    #[error("{path} exists already: remove it, or add --replace", path = .0.display())]
    Exists(PathBuf),
    /// The path names a device, a pipe or a socket.
    #[error("{path} is not a regular file, so it cannot be replaced: choose another output file", path = .0.display())]
    NotRegular(PathBuf),
    /// The path cannot be examined, or names a folder.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The output path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Checks that a command can write the output `path`. The output must not be a file that the
/// command reads, under any name. An existing output must be a regular file, and `replace` must be
/// true. Commands check their outputs before they start to work.
///
/// # Errors
/// [`OutputFileError`] if the output cannot be written.
pub fn check(path: &Path, replace: bool, inputs: &[&Path]) -> Result<(), OutputFileError> {
    // A missing input is reported elsewhere.
    let inputs: Vec<Metadata> = inputs
        .iter()
        .filter_map(|input| fs::metadata(input).ok())
        .collect();
    check_against(path, replace, &inputs)
}

/// Same as [`check`], for inputs that are already open.
///
/// # Errors
/// [`OutputFileError`] if the output cannot be written.
pub fn check_against(
    path: &Path,
    replace: bool,
    inputs: &[Metadata],
) -> Result<(), OutputFileError> {
    let existing = match fs::metadata(path) {
        Ok(existing) => Some(existing),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error(path, error)),
    };
    if existing
        .as_ref()
        .is_some_and(|output| is_input(output, inputs))
    {
        return Err(OutputFileError::SameFile(path.to_owned()));
    }
    if path.symlink_metadata().is_ok() && !replace {
        return Err(OutputFileError::Exists(path.to_owned()));
    }
    match existing {
        Some(existing) if existing.is_dir() => {
            Err(io_error(path, io::ErrorKind::IsADirectory.into()))
        }
        Some(existing) if !existing.is_file() => Err(OutputFileError::NotRegular(path.to_owned())),
        _ => Ok(()),
    }
}

fn io_error(path: &Path, source: io::Error) -> OutputFileError {
    OutputFileError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Returns true if a file is one of the regular files among the inputs.
fn is_input(file: &Metadata, inputs: &[Metadata]) -> bool {
    inputs
        .iter()
        .any(|input| input.is_file() && (file.dev(), file.ino()) == (input.dev(), input.ino()))
}
