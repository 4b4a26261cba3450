//! Reads small files: secrets, tokens and certificates.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealwire_service::tls_files::TlsFileError;
use sealwire_service::trusted_file::{FileError, FileErrorReason, FileKind};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::ProviderError;

/// Longest secret file that is read, in bytes.
pub const SECRET_FILE_BYTES_MAX: u64 = 64 << 10;
/// Longest certificate file that is read, in bytes. A bundle of all public authorities has about
/// 250 KB.
pub(crate) const PUBLIC_FILE_BYTES_MAX: u64 = 1 << 20;

/// Longest wait for a read, in seconds, because a network file system can hang.
const READ_SECONDS_MAX: u64 = 5;

/// Reads files on a blocking thread, one read at a time. A read that hangs blocks one thread per
/// reader, and not one thread per call.
#[derive(Clone, Debug)]
pub(crate) struct FileReader {
    permit: Arc<Semaphore>,
}

impl Default for FileReader {
    fn default() -> Self {
        Self {
            permit: Arc::new(Semaphore::new(1)),
        }
    }
}

impl FileReader {
    /// Runs `read`, which can block, when earlier reads have ended. `place` names the files in
    /// errors.
    ///
    /// # Errors
    /// [`ProviderError::Unavailable`] if the wait for other reads and the read take longer than
    /// [`READ_SECONDS_MAX`] seconds, or if `read` panics; errors of `read`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        place: &str,
        read: impl FnOnce() -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let reading = async {
            let permit = Arc::clone(&self.permit)
                .acquire_owned()
                .await
                .map_err(|_| reading_aborted(place))?;
            tokio::task::spawn_blocking(move || {
                let result = read();
                // The thread holds the permit, because the read continues after its call timed out.
                drop(permit);
                result
            })
            .await
            .unwrap_or_else(|_| Err(reading_aborted(place)))
        };

        tokio::time::timeout(Duration::from_secs(READ_SECONDS_MAX), reading)
            .await
            .unwrap_or_else(|_| {
                Err(ProviderError::Unavailable(format!(
                    "{place} was not read within {READ_SECONDS_MAX} seconds; check its file system"
                )))
            })
    }

    /// Takes the permit of the reader, to simulate a read that hangs.
    #[cfg(test)]
    pub(crate) fn block(&self) -> tokio::sync::OwnedSemaphorePermit {
        Arc::clone(&self.permit).try_acquire_owned().unwrap()
    }
}

fn reading_aborted(place: &str) -> ProviderError {
    ProviderError::Unavailable(format!(
        "{place}: the read ended early; the engine shuts down, or see the log"
    ))
}

/// Reads a secret file of at most [`SECRET_FILE_BYTES_MAX`] bytes. Blocks on the file system.
///
/// # Errors
/// [`ProviderError::NotFound`], [`ProviderError::Denied`], [`ProviderError::Unavailable`], or
/// [`ProviderError::Settings`] if the file is not regular, is too long, or if other users can read
/// or replace it ([`sealwire_service::trusted_file`]). Errors name the file but contain none of its
/// bytes.
pub fn read_secret_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, ProviderError> {
    read(path, FileKind::Secret, SECRET_FILE_BYTES_MAX)
}

/// Reads a secret file that contains one word of ASCII, such as a token. White space around the
/// word is dropped. Blocks on the file system.
pub(crate) fn read_secret_line(path: &Path) -> Result<Zeroizing<String>, ProviderError> {
    line_of(path, &read_secret_file(path)?)
}

/// Like [`read_secret_line`], for a file that all users may read. Blocks on the file system.
#[cfg(feature = "awskms")]
pub(crate) fn read_line(path: &Path) -> Result<Zeroizing<String>, ProviderError> {
    line_of(path, &read(path, FileKind::Public, SECRET_FILE_BYTES_MAX)?)
}

/// Reads a file of at most [`PUBLIC_FILE_BYTES_MAX`] bytes that is not secret, such as a
/// certificate. Rejects a file that other users can change. Blocks.
pub(crate) fn read_public(path: &Path) -> Result<Vec<u8>, ProviderError> {
    Ok(std::mem::take(&mut *read(
        path,
        FileKind::Public,
        PUBLIC_FILE_BYTES_MAX,
    )?))
}

fn read(path: &Path, kind: FileKind, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, ProviderError> {
    Ok(sealwire_service::trusted_file::read(path, kind, bytes_max)?)
}

impl From<FileError> for ProviderError {
    fn from(error: FileError) -> Self {
        let text = error.to_string();
        match error.reason {
            FileErrorReason::Io(error) => match error.kind() {
                io::ErrorKind::NotFound => Self::NotFound(text),
                io::ErrorKind::PermissionDenied => Self::Denied(text),
                io::ErrorKind::InvalidInput => Self::Settings(text),
                _ => Self::Unavailable(text),
            },
            FileErrorReason::NotRegular
            | FileErrorReason::TooLong(_)
            | FileErrorReason::Exposed(_) => Self::Settings(text),
        }
    }
}

impl From<TlsFileError> for ProviderError {
    fn from(error: TlsFileError) -> Self {
        match error {
            TlsFileError::File(error) => error.into(),
            error => Self::Settings(error.to_string()),
        }
    }
}

fn line_of(path: &Path, bytes: &[u8]) -> Result<Zeroizing<String>, ProviderError> {
    let line = bytes.trim_ascii();
    match std::str::from_utf8(line) {
        Ok(text) if !line.is_empty() && line.iter().all(u8::is_ascii_graphic) => {
            Ok(Zeroizing::new(text.to_owned()))
        }
        _ => Err(ProviderError::Settings(format!(
            "{} must contain one line of visible ASCII without spaces",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn private_lines_are_readable_by_their_owner_and_group_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        for (content, mode, expected) in [
            ("s.token\n", 0o600, Ok("s.token")),
            ("s.token", 0o400, Ok("s.token")),
            (" s.token \r\n", 0o440, Ok("s.token")),
            ("s.token", 0o640, Ok("s.token")),
            ("s.token", 0o644, Err("mode 644")),
            ("s.token", 0o660, Err("mode 660")),
            ("s.token", 0o601, Err("mode 601")),
            ("", 0o600, Err("one line")),
            ("\n", 0o600, Err("one line")),
            ("s.token\nhunter2", 0o600, Err("one line")),
            ("hunter 2", 0o600, Err("one line")),
            ("hunter\u{e9}2", 0o600, Err("one line")),
        ] {
            let _ = fs::remove_file(&path);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match (read_secret_line(&path), expected) {
                (Ok(line), Ok(expected)) => assert_eq!(*line, expected),
                (Err(ProviderError::Settings(text)), Err(part)) => {
                    assert!(
                        text.contains(part)
                            && !text.contains("hunter")
                            && !text.contains("s.token"),
                        "{text}"
                    );
                }
                (line, _) => panic!("{content:?} {mode:o}: {line:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_read_that_hangs_keeps_the_permit_of_a_call_that_gave_up() {
        let reader = FileReader::default();
        let (started, is_started) = tokio::sync::oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hanging = reader.clone();
        let call = tokio::spawn(async move {
            let read = move || {
                let _ = started.send(());
                let _ = ended.recv();
                Ok(())
            };
            hanging.run("a file", read).await
        });
        is_started.await.unwrap();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(reader.permit.available_permits(), 0);
        drop(end);
        assert_eq!(reader.run("a file", || Ok(7)).await, Ok(7));
    }

    #[test]
    fn files_that_are_not_regular_or_too_long_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: u64| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o600))
                .unwrap();
            file.set_len(bytes).unwrap();
        };
        write("empty", 0);
        write("secret", SECRET_FILE_BYTES_MAX);
        write("long secret", SECRET_FILE_BYTES_MAX + 1);
        write("public", PUBLIC_FILE_BYTES_MAX);
        write("long public", PUBLIC_FILE_BYTES_MAX + 1);
        mknodat(
            CWD,
            folder.path().join("pipe"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let kind = |result: Result<usize, ProviderError>| match result {
            Ok(_) => "ok",
            Err(ProviderError::Settings(_)) => "settings",
            Err(ProviderError::NotFound(_)) => "not found",
            Err(_) => "other",
        };
        for (name, secret, public) in [
            ("empty", "ok", "ok"),
            ("secret", "ok", "ok"),
            ("long secret", "settings", "ok"),
            ("public", "settings", "ok"),
            ("long public", "settings", "settings"),
            ("pipe", "settings", "settings"),
            (".", "settings", "settings"),
            ("missing", "not found", "not found"),
        ] {
            let path = folder.path().join(name);
            let read = read_secret_file(&path).map(|bytes| bytes.len());
            assert_eq!(
                (
                    kind(read),
                    kind(read_public(&path).map(|bytes| bytes.len()))
                ),
                (secret, public),
                "{name}"
            );
        }
    }
}
