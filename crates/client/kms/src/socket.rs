//! The Unix socket for the API server.
//!
//! Whoever can connect can decrypt data keys. The socket therefore has mode 0600 in a folder that
//! only its owner can write. A lock on a file beside the socket tells whether another process serves
//! it. The lock ends with its process, so that the socket of a dead process is replaced, and never
//! that of a live one.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use sealwire_service::trusted_file::{self, FileError};

/// Longest path of a socket in bytes, without the zero at its end (unix(7)).
pub const PATH_BYTES_MAX: usize = 107;
/// Ending of the lock's file.
const LOCK_ENDING: &str = ".lock";
/// Ending of a socket that does not have its mode yet.
const NEW_ENDING: &str = ".new";
/// Longer of the endings, which a path must leave room for.
pub const ENDING_BYTES_MAX: usize = LOCK_ENDING.len();

/// The reason why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path has no folder or no name.
    #[error("{}: must be the path of a file, such as /run/sealwire-kms/kms.sock", .0.display())]
    NoName(PathBuf),
    /// The path is too long.
    #[error("{}: must have at most {} bytes", .0.display(), PATH_BYTES_MAX - ENDING_BYTES_MAX)]
    TooLong(PathBuf),
    /// The folder does not exist, or more users than its owner can write it.
    #[error("folder of the socket: {0}")]
    Folder(#[source] FileError),
    /// Another process serves the socket.
    #[error("{}: another process serves this socket: stop it, or set another plugin.socket", .0.display())]
    InUse(PathBuf),
    /// A file of another kind has this path.
    #[error("{}: a file that is not a socket has this name: move it away, or set another plugin.socket", .0.display())]
    NotSocket(PathBuf),
    /// A system call failed.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// A bound socket. Dropping it removes the file, unless another process has replaced it.
#[derive(Debug)]
pub struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
    _lock: File,
}

impl BoundSocket {
    /// Creates the socket. Replaces the socket of a process that has ended. Blocks.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |cause: io::Error| SocketError::Io {
            path: path.to_owned(),
            cause,
        };
        check_path(path)?;
        let lock = take_lock(path)?;
        check_replaceable(path)?;

        // The socket gets its mode under another name, so that no other user can connect before.
        let new = with_ending(path, NEW_ENDING);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&new).map_err(failed)?;
        fs::set_permissions(&new, Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        fs::rename(&new, path).map_err(failed)?;

        let identity = identity_of(path).map_err(failed)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            identity,
            _lock: lock,
        })
    }

    /// Returns another handle of the listener, which does not block.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if identity_of(&self.path).is_ok_and(|found| found == self.identity) {
            // The next start replaces a file that stays.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checks the length of a path, and its folder. Blocks.
///
/// # Errors
/// [`SocketError`].
pub fn check_path(path: &Path) -> Result<(), SocketError> {
    let (Some(folder), Some(_)) = (path.parent(), path.file_name()) else {
        return Err(SocketError::NoName(path.to_owned()));
    };
    if path.as_os_str().len() + ENDING_BYTES_MAX > PATH_BYTES_MAX {
        return Err(SocketError::TooLong(path.to_owned()));
    }
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    trusted_file::check_private_folder(folder).map_err(SocketError::Folder)
}

/// Takes the lock of a socket, which ends with this process.
fn take_lock(path: &Path) -> Result<File, SocketError> {
    let lock_path = with_ending(path, LOCK_ENDING);
    let failed = |cause: io::Error| SocketError::Io {
        path: lock_path.clone(),
        cause,
    };
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock_path)
        .map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(SocketError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Rejects a file of another kind, and the socket of another live program.
fn check_replaceable(path: &Path) -> Result<(), SocketError> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => {
            return Err(SocketError::Io {
                path: path.to_owned(),
                cause,
            });
        }
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::InUse(path.to_owned())),
        Err(_) => Ok(()),
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn sockets_are_private_and_removed_at_the_end() {
        let folder = folder();
        let path = folder.path().join("kms.sock");
        let socket = BoundSocket::bind(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(&folder.path().join("kms.sock.lock")), 0o600);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
        BoundSocket::bind(&path).unwrap();
    }

    #[test]
    fn live_sockets_are_not_replaced() {
        let folder = folder();
        let path = folder.path().join("kms.sock");
        let socket = BoundSocket::bind(&path).unwrap();
        let error = BoundSocket::bind(&path).unwrap_err();
        assert!(matches!(error, SocketError::InUse(_)), "{error}");
        UnixStream::connect(&path).unwrap();
        drop(socket);

        // A program that knows no lock.
        let _other = UnixListener::bind(&path).unwrap();
        let error = BoundSocket::bind(&path).unwrap_err();
        assert!(matches!(error, SocketError::InUse(_)), "{error}");
    }

    #[test]
    fn dead_sockets_are_replaced() {
        let folder = folder();
        let path = folder.path().join("kms.sock");
        // The file of a closed listener stays.
        for left in ["kms.sock", "kms.sock.new"] {
            drop(UnixListener::bind(folder.path().join(left)).unwrap());
        }
        let _socket = BoundSocket::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn replaced_sockets_stay() {
        let folder = folder();
        let path = folder.path().join("kms.sock");
        let socket = BoundSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }

    #[test]
    fn other_files_and_folders_are_rejected() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "kept").unwrap();
        symlink(at("file"), at("link")).unwrap();
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), Permissions::from_mode(0o777)).unwrap();
        for (path, expected) in [
            (at("file"), "a file that is not a socket has this name"),
            (at("link"), "a file that is not a socket has this name"),
            (at("open/kms.sock"), "other users can replace files in it"),
            (at("none/kms.sock"), "No such file or directory"),
            (at("file/kms.sock"), "ot a directory"),
            (at(&"x".repeat(108)), "must have at most 102 bytes"),
            ("/".into(), "must be the path of a file"),
            (
                "/tmp/sealwire-kms-test.sock".into(),
                "other users can replace files in it",
            ),
        ] {
            let error = BoundSocket::bind(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{}: {error}", path.display());
        }
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "kept");
    }
}
