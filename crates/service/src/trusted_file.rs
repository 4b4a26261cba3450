//! Opens files that contain secrets, and files that other users must not replace, such as
//! certificates. Rejects files that other users can replace, and secrets that other users can read.
//!
//! The following rules cover the opened file, every folder above it and every symbolic link in its
//! path:
//!
//! * File, folders and links belong to root or to the user of this process.
//! * Only the owner can write the file. A folder that other users can write must have the sticky
//!   bit, like `/tmp`.
//! * A file with a secret ([`FileKind::Secret`]) is not accessible to other users. A group can read
//!   the file if it is root's group or a group of this process. A process of root accepts every
//!   group, because it reads files for engines of other users.
//!
//! Secrets that Kubernetes mounts with `defaultMode: 0440` and `fsGroup` meet these rules, and so
//! do credentials of systemd. The check uses only the user ids and mode bits of this machine. The
//! rules of a file server, and access control lists beyond the mode, are ignored.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// Maximum number of symbolic links in a path, as in Linux.
const LINKS_MAX: u32 = 40;
/// Maximum number of attempts to open a file that is replaced at the same time.
const TRIES_MAX: u32 = 5;
/// Text before a command that stops later changes by another user, but does not undo earlier ones.
const CHECK_FIRST: &str = "check its content first: that user could write it";
/// The sticky bit.
const STICKY: u32 = 0o1000;

/// Kind of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A key, a password or a token.
    Secret,
    /// Not secret, but trusted, such as the certificate of an authority or a public key. Whoever
    /// can replace the file decides whom this process trusts.
    Public,
}

/// The reason why a file cannot be used. The text names the file and never quotes its content.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    #[source]
    pub reason: FileErrorReason,
}

/// The reason in a [`FileError`].
#[derive(Debug, thiserror::Error)]
pub enum FileErrorReason {
    /// The file cannot be opened or read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The path names a folder, a pipe or a device.
    #[error("must be a regular file")]
    NotRegular,
    /// The file is longer than the caller allows.
    #[error("must have at most {0} bytes")]
    TooLong(u64),
    /// Other users have access to the file.
    #[error("{0}")]
    Exposed(Exposure),
}

/// Describes who has access to a file, and the command that removes this access. The text never
/// proposes to replace or remove the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The problem, with the actual owner and mode.
    pub problem: String,
    /// A shell command that solves the problem, if such a command exists that does not affect other
    /// users.
    pub remedy: Option<String>,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.remedy {
            Some(command) => write!(f, "{}: run `{command}`", self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

/// A file that was opened and checked.
#[derive(Debug)]
pub struct TrustedFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
}

impl TrustedFile {
    /// Opens a file and checks the open file, so that the file cannot be replaced between check and
    /// use. Does not wait for a named pipe. Blocks on the file system.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn open(path: &Path, kind: FileKind) -> Result<Self, FileError> {
        Self::open_checked(path, kind).map_err(|reason| FileError {
            path: path.to_owned(),
            reason,
        })
    }

    fn open_checked(path: &Path, kind: FileKind) -> Result<Self, FileErrorReason> {
        let process = Process::current();
        for _ in 0..TRIES_MAX {
            let (file, metadata) = open_regular(path)?;
            let (end, found) = process.follow_path(path)?;
            // The file was replaced between the two steps, as Kubernetes does with a symbolic link.
            // The file is opened again.
            if (found.dev(), found.ino()) != (metadata.dev(), metadata.ino()) {
                continue;
            }
            // The error names the file by its path without symbolic links, because the commands do
            // not follow them.
            if let Some(problem) = process.check_file(&end, kind, &Attributes::of(&metadata)) {
                return Err(FileErrorReason::Exposed(problem));
            }
            return Ok(Self {
                path: path.to_owned(),
                file,
                metadata,
            });
        }
        Err(FileErrorReason::Io(io::Error::other(
            "the file was replaced during each attempt to open it; retry when its writer has finished",
        )))
    }

    /// Reads the file into one allocation. A growing buffer would leave unwiped copies of a secret
    /// behind.
    ///
    /// # Errors
    /// [`FileErrorReason::TooLong`] for more than `bytes_max` bytes; [`FileErrorReason::Io`].
    pub fn read(self, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, FileError> {
        read_bounded(self.path, self.file, &self.metadata, bytes_max)
    }
}

/// Checks that only root and the user of this process can create, replace or remove files in a
/// folder, and that the folders above and symbolic links in its path are trusted as those of a file.
/// Blocks on the file system.
///
/// # Errors
/// [`FileError`].
pub fn check_private_folder(path: &Path) -> Result<(), FileError> {
    let checked = Process::current().check_private_folder(path);
    checked.map_err(|reason| FileError {
        path: path.to_owned(),
        reason,
    })
}

/// Reads a regular file of at most `bytes_max` bytes without checking which users can access it. A
/// named pipe does not block. Blocks on the file system.
///
/// # Errors
/// Any [`FileError`] but [`FileErrorReason::Exposed`].
pub fn read_unchecked(path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let path = path.to_owned();
    match open_regular(&path) {
        Ok((file, metadata)) => read_bounded(path, file, &metadata, bytes_max),
        Err(reason) => Err(FileError { path, reason }),
    }
}

/// Reads a file into one allocation.
fn read_bounded(
    path: PathBuf,
    mut file: File,
    metadata: &Metadata,
    bytes_max: u64,
) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let length = metadata.len();
    if length > bytes_max {
        return Err(FileError {
            path,
            reason: FileErrorReason::TooLong(bytes_max),
        });
    }
    // An additional byte detects a file that grew. A file that reports a length of 0 can have
    // up to `bytes_max` bytes.
    let room = if length == 0 { bytes_max } else { length };
    let mut bytes = Zeroizing::new(vec![0; room as usize + 1]);
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(FileError {
                    path,
                    reason: error.into(),
                });
            }
        }
    }
    if filled as u64 > room {
        let reason = if filled as u64 > bytes_max {
            FileErrorReason::TooLong(bytes_max)
        } else {
            io::Error::other("the file grew while it was read; retry").into()
        };
        return Err(FileError { path, reason });
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Opens a file, checks it as [`TrustedFile::open`] does, and reads it.
///
/// # Errors
/// [`FileError`].
pub fn read(path: &Path, kind: FileKind, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, FileError> {
    TrustedFile::open(path, kind)?.read(bytes_max)
}

/// Maximum length of a password file, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4 << 10;

/// Reads the password in a secret file, without the line break at its end.
///
/// # Errors
/// [`FileError`]; [`FileErrorReason::Io`] if the content is not UTF-8.
pub fn read_password(path: &Path) -> Result<String, FileError> {
    let bytes = read(path, FileKind::Secret, PASSWORD_BYTES_MAX)?;
    // The error contains no part of the password.
    let text = std::str::from_utf8(&bytes).map_err(|error| FileError {
        path: path.to_owned(),
        reason: io::Error::new(io::ErrorKind::InvalidData, error).into(),
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Quotes a path for a shell, so that the path is a single argument and not an option.
#[must_use]
pub fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text = if text.starts_with('-') {
        format!("./{text}")
    } else {
        text.into_owned()
    };
    let is_plain = !text.is_empty()
        && text
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || "/._-+:@%,=".contains(character));
    if is_plain {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Opens a regular file. Does not wait for the other end of a named pipe.
fn open_regular(path: &Path) -> Result<(File, Metadata), FileErrorReason> {
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok((file, metadata))
    } else {
        Err(FileErrorReason::NotRegular)
    }
}

/// The user and the groups with which this process reads files.
#[derive(Debug)]
struct Process {
    user: u32,
    /// The effective group, followed by the other groups.
    groups: Vec<u32>,
}

/// Owner and mode of a file or folder.
#[derive(Clone, Copy, Debug)]
struct Attributes {
    user: u32,
    group: u32,
    /// Permission bits, including the sticky bit.
    mode: u32,
}

impl Attributes {
    fn of(metadata: &Metadata) -> Self {
        Self {
            user: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode() & 0o7777,
        }
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, group, mode } = self;
        write!(f, "mode {:03o}, owner {user}:{group}", mode & !0o6000)
    }
}

impl Process {
    fn current() -> Self {
        use rustix::process::{getegid, geteuid, getgroups};
        let others = getgroups()
            .unwrap_or_default()
            .into_iter()
            .map(rustix::process::Gid::as_raw);
        Self {
            user: geteuid().as_raw(),
            groups: std::iter::once(getegid().as_raw()).chain(others).collect(),
        }
    }

    /// Returns true for users who have full control of this process in any case.
    fn is_trusted(&self, user: u32) -> bool {
        user == 0 || user == self.user
    }

    fn is_member(&self, group: u32) -> bool {
        group == 0 || self.groups.contains(&group)
    }

    fn check_owner(&self, path: &Path, found: &Attributes, is_folder: bool) -> Option<Exposure> {
        if self.is_trusted(found.user) {
            return None;
        }
        let user = self.user;
        let or_user = if user == 0 {
            String::new()
        } else {
            format!(" or to user {user}, the user of this process")
        };
        let problem = format!(
            "{} ({found}) can be changed by its owner, user {}; it must belong to root{or_user}",
            path.display(),
            found.user
        );
        if is_folder {
            // The owner needs the folder for other files, too.
            let advice = format!(
                "leave the folder to its owner, and put the file into one of root{or_user}"
            );
            return Some(Exposure {
                problem: format!("{problem}; {advice}; {CHECK_FIRST}"),
                remedy: None,
            });
        }
        let other_reader = match user {
            0 => format!(
                "; if an engine of user {} reads it, run this command as that user instead",
                found.user
            ),
            _ => String::new(),
        };
        Some(Exposure {
            problem: format!("{problem}{other_reader}; {CHECK_FIRST}"),
            // `-h` changes the symbolic link itself, because its owner chose its target.
            remedy: Some(format!("chown -h {user} {}", quoted(path))),
        })
    }

    fn check_file(&self, path: &Path, kind: FileKind, found: &Attributes) -> Option<Exposure> {
        if let Some(problem) = self.check_owner(path, found, false) {
            return Some(problem);
        }
        let mode = found.mode;
        let quoted_path = quoted(path);
        match kind {
            FileKind::Public if mode & 0o022 != 0 => Some(Exposure {
                problem: format!(
                    "{found}: other users can change it; only its owner may; {CHECK_FIRST}"
                ),
                remedy: Some(format!("chmod go-w {quoted_path}")),
            }),
            FileKind::Public => None,
            FileKind::Secret => {
                let is_readable_by_strangers =
                    mode & 0o040 != 0 && self.user != 0 && !self.is_member(found.group);
                let problem = if mode & 0o007 != 0 {
                    "other users can read or change it"
                } else if mode & 0o030 != 0 {
                    "its group can change it"
                } else if is_readable_by_strangers {
                    "its group can read it, and this process is not a member of the group"
                } else {
                    return None;
                };
                // Only the group lets a process of another user read a file of root.
                let remedy = if found.user == self.user {
                    format!("chmod 600 {quoted_path}")
                } else if self.is_member(found.group) && found.group != 0 {
                    format!("chmod 640 {quoted_path}")
                } else {
                    let group = self.groups.first().unwrap_or(&0);
                    format!("chgrp {group} {quoted_path} && chmod 640 {quoted_path}")
                };
                let check_first = if mode & 0o022 != 0 {
                    format!("; {CHECK_FIRST}")
                } else {
                    String::new()
                };
                Some(Exposure {
                    problem: format!(
                        "{found}: {problem}{check_first}. A secret file has mode 600, or 640 if the engine's group reads it (in Kubernetes: \
                         defaultMode 0440 and fsGroup)"
                    ),
                    remedy: Some(remedy),
                })
            }
        }
    }

    fn check_folder(&self, path: &Path, found: &Attributes) -> Option<Exposure> {
        if let Some(problem) = self.check_owner(path, found, true) {
            return Some(problem);
        }
        if found.mode & STICKY != 0 {
            return None;
        }
        let (by, bit) = if found.mode & 0o002 != 0 {
            ("other users", 'o')
        } else if found.mode & 0o020 != 0 && !self.is_member(found.group) {
            ("its group, of which this process is not a member,", 'g')
        } else {
            return None;
        };
        Some(Exposure {
            problem: format!(
                "{by} can replace files in the folder {} ({found}); {CHECK_FIRST}",
                path.display()
            ),
            remedy: Some(format!("chmod {bit}-w {}", quoted(path))),
        })
    }

    fn check_private_folder(&self, path: &Path) -> Result<(), FileErrorReason> {
        let (end, metadata) = self.follow_path(path)?;
        if !metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory).into());
        }
        let found = Attributes::of(&metadata);
        reject_exposure(self.check_owner(&end, &found, true))?;
        if found.mode & 0o022 == 0 {
            return Ok(());
        }
        Err(FileErrorReason::Exposed(Exposure {
            problem: format!("{found}: other users can replace files in it; only its owner may"),
            // Programs of other users need a shared folder such as /tmp.
            remedy: (found.mode & STICKY == 0).then(|| format!("chmod go-w {}", quoted(&end))),
        }))
    }

    /// Follows a path from the root folder, and checks every folder and symbolic link in it.
    /// Returns the target's path without symbolic links, and its metadata.
    fn follow_path(&self, path: &Path) -> Result<(PathBuf, Metadata), FileErrorReason> {
        let mut at = PathBuf::from("/");
        let mut links = 0;
        let mut metadata = std::fs::symlink_metadata(&at)?;
        let mut steps = steps_of(&std::path::absolute(path)?);
        while let Some(step) = steps.pop_front() {
            reject_exposure(self.check_folder(&at, &Attributes::of(&metadata)))?;
            if step == ".." {
                at.pop();
                metadata = std::fs::symlink_metadata(&at)?;
                continue;
            }
            let next = at.join(&step);
            let found = std::fs::symlink_metadata(&next)?;
            if !found.is_symlink() {
                at = next;
                metadata = found;
                continue;
            }
            reject_exposure(self.check_owner(&next, &Attributes::of(&found), false))?;
            links += 1;
            if links > LINKS_MAX {
                return Err(io::Error::other("too many symbolic links").into());
            }
            let target = std::fs::read_link(&next)?;
            if target.is_absolute() {
                at = PathBuf::from("/");
                metadata = std::fs::symlink_metadata(&at)?;
            }
            let mut rest = steps_of(&target);
            rest.append(&mut steps);
            steps = rest;
        }
        Ok((at, metadata))
    }
}

fn reject_exposure(problem: Option<Exposure>) -> Result<(), FileErrorReason> {
    problem.map_or(Ok(()), |problem| Err(FileErrorReason::Exposed(problem)))
}

/// Returns the names of a path, `..` included, without its root.
fn steps_of(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
