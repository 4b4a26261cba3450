//! The highest generation of the store that this machine has seen, in a file outside the store.
//!
//! A store that was put back as a whole is authentic, so only the memory of a later generation
//! reveals it. Only file permissions protect the file: a user who can write it can make the engine
//! accept an older state, or reject the current one. A later state that continues from an older one
//! is not noticed.
//!
//! Engines write the file when they verify a later state. Every process writes it when it commits
//! one, before it reports the commit. The file is never lowered, also where an engine and a command
//! write it at the same time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use rustix::fs::OFlags;
use sealwire_apps::StateId;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::{FileOwner, file_error, read_bounded, replace_file_of};
use crate::kek::KekError;

/// Name of the file in the folder of the audit log, unless `state.anchor_file` names another one.
const ANCHOR_FILE: &str = "anchor.json";
/// Maximum bytes that are read of it.
const ANCHOR_BYTES_MAX: u64 = 4 << 10;
/// Format number of the file.
const FORMAT: u32 = 2;
/// Format number of files without ids of root keys, which are still read.
const FORMAT_WITHOUT_ROOTS: u32 = 1;
/// Longest wait for a write after a load. The write continues in the background.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a write after a commit, whose response needs it.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the lock of the file, and the pause between two attempts. Below the wait after
/// a commit.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(4);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnchorFields {
    format: u32,
    set: String,
    generation: u64,
    code: String,
    /// Absent in files of [`FORMAT_WITHOUT_ROOTS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    roots: Option<Vec<String>>,
}

/// A state that was verified or committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnchoredState {
    pub(super) id: StateId,
    /// Ids of the root keys: the active one, then the incoming one. Empty in files of an earlier
    /// format.
    pub(super) roots: Vec<[u8; 16]>,
}

impl AnchoredState {
    /// Returns true if this state takes the place of one that is noted. A state of another set of
    /// root keys does, and one of the same generation does if it tells the root keys.
    fn replaces(&self, noted: &Self) -> bool {
        let tells_more = self.id == noted.id && noted.roots.is_empty() && !self.roots.is_empty();
        self.id.set != noted.id.set || noted.id.generation < self.id.generation || tells_more
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Anchor {
    /// Content of the file when it was opened, unless it is ignored. Concurrent operations can
    /// verify an older generation last, so states that are seen later must not be used as a bound;
    /// see [`sealwire_apps::AuthenticatedStore`].
    at_start: Option<AnchoredState>,
    file: Arc<AnchorFile>,
}

#[derive(Debug)]
struct AnchorFile {
    path: PathBuf,
    /// True if the folder is that of the audit log. A first command can come before the engine that
    /// creates it.
    makes_folder: bool,
    state: Mutex<AnchorState>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct AnchorState {
    /// The state of the highest generation that was verified or committed.
    seen: Option<AnchoredState>,
    written: Option<AnchoredState>,
    /// True in engines, which write states that they only verified.
    is_kept: bool,
    /// True while a background write is running.
    is_writing: bool,
}

impl Anchor {
    /// Reads the file. A missing file counts as no anchor. `makes_folder`: a missing folder is
    /// created when the file is written, within a folder that exists.
    ///
    /// # Errors
    /// The file cannot be read, or is not an anchor.
    pub(super) fn open(path: PathBuf, makes_folder: bool) -> Result<Self, KekError> {
        let at_start = read_anchor(&path)?;
        let state = AnchorState {
            seen: at_start.clone(),
            written: at_start.clone(),
            ..AnchorState::default()
        };
        let file = AnchorFile {
            path,
            makes_folder,
            state: Mutex::new(state),
            writing: Mutex::default(),
        };
        Ok(Self {
            at_start,
            file: Arc::new(file),
        })
    }

    /// Returns the content of the file at start, unless it is ignored.
    pub(super) fn at_start(&self) -> Option<&AnchoredState> {
        self.at_start.as_ref()
    }

    /// Returns the content of the file at start, and accepts earlier states from now on. Later ones
    /// still raise the file.
    pub(super) fn ignore(&mut self) -> Option<StateId> {
        self.at_start.take().map(|state| state.id)
    }

    /// Removes the file.
    pub(super) fn remove(&self) -> io::Result<()> {
        super::replace_file(&self.file.path, None)
    }

    /// Writes the file from now on whenever a later state was verified.
    pub(super) async fn keep(&self) {
        self.file.state().is_kept = true;
        self.write().await;
    }

    /// Raises the anchor to a state that was verified.
    pub(super) async fn raise(&self, state: AnchoredState) {
        self.file.record_state(state);
        self.write().await;
    }

    /// Raises the anchor to a state that was committed. The file is on disk when this returns.
    ///
    /// # Errors
    /// The file, and why it was not written within 10 seconds.
    pub(super) async fn commit(&self, state: AnchoredState) -> Result<(), String> {
        self.file.record_state(state);
        let file = Arc::clone(&self.file);
        let writing = tokio::task::spawn_blocking(move || file.write());
        let written = match tokio::time::timeout(COMMIT_WAIT_MAX, writing).await {
            Ok(written) => written.map_err(io::Error::other).flatten(),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "not written within 10 seconds",
            )),
        };

        written.map_err(|error| {
            format!(
                "the anchor file {} was not written: {error}",
                self.file.path.display()
            )
        })
    }

    /// Waits a while for the file to be written.
    async fn write(&self) {
        if let Some(writing) = self.start_write() {
            let _ = tokio::time::timeout(WRITE_WAIT_MAX, writing).await;
        }
    }

    /// Starts to write the file, unless a write runs already or is not needed. A failed write is
    /// logged and retried at the next load.
    fn start_write(&self) -> Option<JoinHandle<()>> {
        let mut state = self.file.state();
        if !state.is_kept || state.is_writing || state.seen == state.written {
            return None;
        }

        state.is_writing = true;
        drop(state);
        let file = Arc::clone(&self.file);
        Some(tokio::task::spawn_blocking(move || {
            while let Some(written) = file.write_once() {
                if let Err(error) = written {
                    tracing::warn!(
                        file = %file.path.display(), %error,
                        "the anchor file was not written; an older state that is put back may go unnoticed"
                    );
                    file.state().is_writing = false;
                    return;
                }
            }
        }))
    }
}

impl AnchorFile {
    fn record_state(&self, new: AnchoredState) {
        let mut state = self.state();
        if state.seen.as_ref().is_none_or(|seen| new.replaces(seen)) {
            state.seen = Some(new);
        }
    }

    /// Writes the state that was seen last. Returns `None`, and ends the background write, if that
    /// state is written already.
    fn write_once(&self) -> Option<io::Result<()>> {
        {
            let mut state = self.state();
            if state.seen == state.written {
                state.is_writing = false;
                return None;
            }
        }
        Some(self.write())
    }

    /// Writes the state that was seen last, unless the file is of a later generation. Blocks.
    fn write(&self) -> io::Result<()> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.state().seen.clone();
        let Some(state) = &seen else { return Ok(()) };
        self.make_folder()?;
        // Before the lock, which another user waits for in vain.
        self.owner()?;
        let _lock = self.lock()?;
        self.write_locked(state)?;
        self.state().written = seen;
        Ok(())
    }

    /// Replaces the file by `state`, or keeps a later one that another process has written.
    fn write_locked(&self, state: &AnchoredState) -> io::Result<()> {
        let present = match read_bounded(&self.path, ANCHOR_BYTES_MAX) {
            Ok(text) => Some(
                parse_anchor(&text)
                    .ok_or_else(|| io::Error::other("it is not an anchor of this program"))?,
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // The unreadable file can contain a later generation, so it must not be replaced.
            Err(error) => return Err(error),
        };
        if present.is_some_and(|present| !state.replaces(&present)) {
            return Ok(());
        }
        replace_file_of(&self.path, Some(&to_bytes(state)), Some(self.owner()?))
    }

    /// Returns the owner of the file, or the one that a new file gets. A command that root runs
    /// must leave a file that the engine's user can read.
    ///
    /// # Errors
    /// The file belongs to another user, who could not read one of this user.
    fn owner(&self) -> io::Result<FileOwner> {
        let user = rustix::process::geteuid();
        match std::fs::metadata(&self.path) {
            Ok(file) if user.is_root() || file.uid() == user.as_raw() => Ok(FileOwner {
                user: file.uid(),
                group: file.gid(),
            }),
            Ok(file) => {
                let what = format!(
                    "it belongs to user {}, and this process runs as {}",
                    file.uid(),
                    user.as_raw()
                );
                Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = std::fs::metadata(self.folder())?;
                Ok(FileOwner {
                    user: folder.uid(),
                    group: folder.gid(),
                })
            }
            Err(error) => Err(error),
        }
    }

    fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Creates the folder as an engine does, for the owner of the folder above.
    fn make_folder(&self) -> io::Result<()> {
        let folder = self.folder();
        if !self.makes_folder || folder.exists() {
            return Ok(());
        }

        let above = File::open(folder_of(folder))?;
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            created => created?,
        }

        let owner = above.metadata()?;
        // Whoever owns the folder above can put a link in its place meanwhile.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let made = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(folder)?;

        if made.metadata()?.uid() == rustix::process::geteuid().as_raw() {
            FileOwner {
                user: owner.uid(),
                group: owner.gid(),
            }
            .give(&made)?;
        }
        above.sync_all()
    }

    /// Makes other processes that write the file wait, by a lock of a file that only its owner can
    /// open: whoever can read a file can hold its lock.
    ///
    /// # Errors
    /// Another process holds the lock all the time; the lock file cannot be opened.
    fn lock(&self) -> io::Result<File> {
        let path = self.path.with_added_extension("lock");
        let began = Instant::now();
        loop {
            let last = match self.open_lock(&path) {
                Ok(file) => match file.try_lock() {
                    Ok(()) => return Ok(file),
                    Err(TryLockError::WouldBlock) => io::ErrorKind::WouldBlock.into(),
                    // A file system without locks. Two writers can then disagree for one write.
                    Err(TryLockError::Error(error)) if has_no_locks(&error) => return Ok(file),
                    Err(TryLockError::Error(error)) => return Err(error),
                },
                // Another process has created it and not given it away yet, or it exists since the
                // look before.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::PermissionDenied | io::ErrorKind::AlreadyExists
                    ) =>
                {
                    error
                }
                Err(error) => return Err(error),
            };
            if began.elapsed() >= LOCK_WAIT_MAX {
                let path = path.display();
                let what = match last.kind() {
                    io::ErrorKind::WouldBlock => {
                        format!("another process holds the lock of {path}")
                    }
                    io::ErrorKind::PermissionDenied => format!(
                        "{path}: {last}. A command of another user was killed and left this lock file, which is empty: \
                         give it the owner of the anchor file, which must stay as it is"
                    ),
                    _ => format!("{path}: {last}"),
                };
                return Err(io::Error::new(last.kind(), what));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// Opens the lock file, or creates it with the owner that the anchor has.
    fn open_lock(&self, path: &Path) -> io::Result<File> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        match OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path)
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let owner = self.owner()?;
                let file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(path)?;
                owner.give(&file)?;
                Ok(file)
            }
            opened => opened,
        }
    }

    fn state(&self) -> MutexGuard<'_, AnchorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the file system has no locks, as NFS without its lock service.
fn has_no_locks(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error() == Some(rustix::io::Errno::NOLCK.raw_os_error())
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| *folder != Path::new(""))
        .unwrap_or(Path::new("."))
}

/// Reads an anchor. Returns `None` for a missing file. A file that this user cannot read is an
/// error: otherwise an older state would be accepted, and a commit would lower the anchor.
///
/// # Errors
/// The file cannot be read, or is not an anchor.
pub(super) fn read_anchor(path: &Path) -> Result<Option<AnchoredState>, KekError> {
    match read_bounded(path, ANCHOR_BYTES_MAX) {
        Ok(text) => {
            Ok(Some(parse_anchor(&text).ok_or_else(|| {
                file_error(path, "not an anchor of this program")
            })?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(file_error(
            path,
            format_args!("{error}; run this as the engine's user or as root"),
        )),
        Err(error) => Err(file_error(path, error)),
    }
}

fn parse_anchor(text: &[u8]) -> Option<AnchoredState> {
    let AnchorFields {
        format,
        set,
        generation,
        code,
        roots,
    } = serde_json::from_slice(text).ok()?;

    let roots = match (format, roots) {
        (FORMAT_WITHOUT_ROOTS, None) => Vec::new(),
        (FORMAT, Some(roots)) => roots
            .iter()
            .map(|root| parse_hex(root))
            .collect::<Option<_>>()?,
        _ => return None,
    };

    Some(AnchoredState {
        id: StateId {
            set: parse_hex(&set)?,
            generation,
            code: parse_hex(&code)?,
        },
        roots,
    })
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

fn to_bytes(AnchoredState { id, roots }: &AnchoredState) -> Vec<u8> {
    let fields = AnchorFields {
        format: FORMAT,
        set: HEXLOWER.encode(&id.set),
        generation: id.generation,
        code: HEXLOWER.encode(&id.code),
        roots: Some(roots.iter().map(|root| HEXLOWER.encode(root)).collect()),
    };
    serde_json::to_vec(&fields).expect("a struct without maps can always be encoded")
}

/// Returns the path of the configuration's anchor file, if it has one.
pub(super) fn anchor_path(config: &sealwire_settings::Config) -> Option<PathBuf> {
    config.state.anchor_file.clone().or_else(|| {
        config
            .audit
            .folder
            .as_deref()
            .map(|folder| folder.join(ANCHOR_FILE))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(generation: u64) -> AnchoredState {
        AnchoredState {
            id: StateId {
                set: [1; 16],
                generation,
                code: [2; 32],
            },
            roots: vec![[3; 16]],
        }
    }

    fn content(path: &Path) -> Option<AnchoredState> {
        read_anchor(path).unwrap()
    }

    #[test]
    fn an_anchor_is_read_as_it_was_written_and_nothing_else_is_one() {
        let id = StateId {
            set: [0xab; 16],
            generation: u64::MAX,
            code: [0xcd; 32],
        };
        for roots in [vec![], vec![[0xef; 16]], vec![[0xef; 16], [1; 16]]] {
            let state = AnchoredState { id, roots };
            assert_eq!(parse_anchor(&to_bytes(&state)), Some(state));
        }
        let set = "ab".repeat(16);
        let code = "cd".repeat(32);
        // A file of an earlier version.
        let earlier = format!(
            "{{\"format\":1,\"set\":\"{set}\",\"generation\":{},\"code\":\"{code}\"}}",
            u64::MAX
        );
        assert_eq!(
            parse_anchor(earlier.as_bytes()),
            Some(AnchoredState { id, roots: vec![] })
        );
        for wrong in [
            String::new(),
            "{}".into(),
            format!("{{\"format\":2,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\"}}"),
            format!(
                "{{\"format\":2,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\",\"roots\":[\"ab\"]}}"
            ),
            format!(
                "{{\"format\":1,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\",\"roots\":[]}}"
            ),
            format!(
                "{{\"format\":3,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\",\"roots\":[]}}"
            ),
            format!("{{\"format\":1,\"set\":\"{set}00\",\"generation\":1,\"code\":\"{code}\"}}"),
            format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":-1,\"code\":\"{code}\"}}"),
            format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":1,\"code\":\"cd\"}}"),
            format!(
                "{{\"format\":1,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\",\"more\":1}}"
            ),
        ] {
            assert_eq!(parse_anchor(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn an_anchor_is_kept_at_the_highest_generation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANCHOR_FILE);
        let anchor = Anchor::open(path.clone(), false).unwrap();
        anchor.raise(state(5)).await;
        assert!(
            !path.exists(),
            "a command does not write what it only verified"
        );
        anchor.keep().await;
        for (generation, expected) in [(4, 5), (7, 7), (6, 7)] {
            anchor.raise(state(generation)).await;
            assert_eq!(content(&path), Some(state(expected)));
        }
        assert_eq!(anchor.at_start(), None, "what is seen later is no bound");
        anchor.remove().unwrap();
        assert!(!path.exists());
    }

    /// A command and an engine have the file open at the same time.
    #[tokio::test]
    async fn a_commit_raises_the_anchor_at_once_and_nobody_lowers_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANCHOR_FILE);
        let open = || Anchor::open(path.clone(), false).unwrap();
        let engine = open();
        let mut command = open();
        engine.keep().await;
        command.commit(state(9)).await.unwrap();
        assert_eq!(
            content(&path),
            Some(state(9)),
            "also of a process that keeps no anchor"
        );
        engine.raise(state(8)).await;
        engine.commit(state(8)).await.unwrap();
        assert_eq!(content(&path), Some(state(9)), "the engine has not seen 9");

        // An ignored anchor is still raised, and never lowered.
        command = open();
        assert_eq!(command.ignore(), Some(state(9).id));
        assert_eq!(command.at_start(), None);
        command.commit(state(4)).await.unwrap();
        assert_eq!(content(&path), Some(state(9)));
        command.commit(state(10)).await.unwrap();
        assert_eq!(content(&path), Some(state(10)));

        // The file of an earlier version gets the ids of the root keys of the same state.
        std::fs::write(
            &path,
            String::from_utf8(to_bytes(&state(11)))
                .unwrap()
                .replace("\"format\":2", "\"format\":1"),
        )
        .unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            &path,
            text.split(",\"roots\"").next().unwrap().to_owned() + "}",
        )
        .unwrap();
        let upgraded = open();
        assert_eq!(upgraded.at_start().unwrap().roots, Vec::<[u8; 16]>::new());
        upgraded.commit(state(11)).await.unwrap();
        assert_eq!(content(&path), Some(state(11)));
    }

    #[tokio::test]
    async fn a_commit_whose_anchor_is_not_written_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing").join(ANCHOR_FILE);
        let anchor = Anchor::open(missing.clone(), false).unwrap();
        for _ in 0..2 {
            let failed = anchor.commit(state(1)).await.unwrap_err();
            assert!(
                failed.contains("missing/anchor.json was not written: No such file"),
                "{failed}"
            );
            assert_eq!(
                anchor.file.state().written,
                None,
                "it is written again at the next load"
            );
        }
        // An engine logs that, and goes on.
        anchor.keep().await;
        std::fs::create_dir(folder.path().join("missing")).unwrap();
        anchor.raise(state(1)).await;
        assert_eq!(content(&missing), Some(state(1)));
        // The folder of the audit log is created, within one that exists.
        let audit = folder.path().join("audit").join(ANCHOR_FILE);
        Anchor::open(audit.clone(), true)
            .unwrap()
            .commit(state(1))
            .await
            .unwrap();
        assert_eq!(content(&audit), Some(state(1)));
        assert_eq!(
            std::fs::metadata(folder_of(&audit)).unwrap().mode() & 0o777,
            0o700
        );
        let deeper = folder.path().join("none/audit").join(ANCHOR_FILE);
        Anchor::open(deeper, true)
            .unwrap()
            .commit(state(1))
            .await
            .unwrap_err();
        // A folder in the place of the file cannot be replaced by a file.
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        let anchor = Anchor {
            at_start: None,
            file: Arc::new(AnchorFile {
                path: taken,
                makes_folder: false,
                state: Mutex::default(),
                writing: Mutex::default(),
            }),
        };
        anchor.commit(state(1)).await.unwrap_err();
        anchor.commit(state(1)).await.unwrap_err();
    }

    /// A process that must not see the anchor, or cannot leave one for the engine, changes nothing.
    #[tokio::test]
    async fn an_anchor_of_another_user_is_neither_ignored_nor_replaced() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANCHOR_FILE);
        Anchor::open(path.clone(), false)
            .unwrap()
            .commit(state(9))
            .await
            .unwrap();
        assert_eq!(
            std::fs::metadata(path.with_added_extension("lock"))
                .unwrap()
                .mode()
                & 0o777,
            0o600
        );
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "an_anchor_of_another_user_is_neither_ignored_nor_replaced: needs root; not run in full"
            );
            return;
        }
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
        };
        chmod(folder.path(), 0o777);
        // As another user: this thread alone gives up its rights.
        let as_user = |mode: u32, work: fn(&AnchorFile) -> String| {
            chmod(&path, mode);
            let file = path.clone();
            let thread = std::thread::spawn(move || {
                use rustix::thread::{Uid, set_thread_res_uid};
                let user = Uid::from_raw(12_345);
                set_thread_res_uid(user, user, user).unwrap();
                let later = AnchorState {
                    seen: Some(state(10)),
                    ..AnchorState::default()
                };
                work(&AnchorFile {
                    path: file,
                    makes_folder: false,
                    state: Mutex::new(later),
                    writing: Mutex::default(),
                })
            });
            thread.join().unwrap()
        };
        let opened = as_user(0o600, |file| {
            Anchor::open(file.path.clone(), false).unwrap_err().0
        });
        assert!(
            opened.contains("Permission denied") && opened.contains("engine's user"),
            "{opened}"
        );
        let unread = as_user(0o600, |file| {
            file.write_locked(&state(10)).unwrap_err().to_string()
        });
        assert!(unread.contains("Permission denied"), "{unread}");
        let readable = as_user(0o644, |file| {
            file.write_locked(&state(10)).unwrap_err().to_string()
        });
        assert!(readable.contains("belongs to user 0"), "{readable}");
        let locked = as_user(0o644, |file| file.write().unwrap_err().to_string());
        assert!(locked.contains("belongs to user 0"), "{locked}");
        assert_eq!(content(&path), Some(state(9)));
    }

    /// A lock of the folder, which everyone can take who can read it, is nobody's lock.
    #[tokio::test]
    async fn writers_wait_for_the_lock_file_and_do_not_go_on_without_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANCHOR_FILE);
        let foreign = File::open(folder.path()).unwrap();
        foreign.lock().unwrap();
        let anchor = Anchor::open(path.clone(), false).unwrap();
        anchor.commit(state(1)).await.unwrap();

        let lock = File::open(path.with_added_extension("lock")).unwrap();
        lock.lock().unwrap();
        let failed = anchor.commit(state(2)).await.unwrap_err();
        assert!(
            failed.contains("another process holds the lock of")
                && failed.contains("anchor.json.lock"),
            "{failed}"
        );
        assert_eq!(content(&path), Some(state(1)));
        drop(lock);
        anchor.commit(state(3)).await.unwrap();
        assert_eq!(content(&path), Some(state(3)));

        // The file of a later version of this program.
        let later = String::from_utf8(to_bytes(&state(9)))
            .unwrap()
            .replace("\"format\":2", "\"format\":3");
        std::fs::write(&path, &later).unwrap();
        let failed = anchor.commit(state(4)).await.unwrap_err();
        assert!(failed.contains("not an anchor of this program"), "{failed}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), later);

        // A link in its place is not followed.
        let link = path.with_added_extension("lock");
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(folder.path().join("victim"), &link).unwrap();
        anchor.commit(state(4)).await.unwrap_err();
        assert!(!folder.path().join("victim").exists());
    }

    #[test]
    fn a_file_that_is_no_anchor_is_refused_and_a_missing_one_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANCHOR_FILE);
        assert_eq!(content(&path), None);
        std::fs::write(&path, b"{}").unwrap();
        let error = Anchor::open(path.clone(), false).unwrap_err();
        assert!(
            error.0.contains("anchor.json") && error.0.contains("not an anchor"),
            "{}",
            error.0
        );
        std::fs::write(&path, vec![b' '; 5_000]).unwrap();
        Anchor::open(path, false).unwrap_err();
    }
}
