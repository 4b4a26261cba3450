//! The highest generation of the store that this machine has seen, in a file outside the store.
//!
//! A store that was put back as a whole is authentic, so only memory of a later generation tells. The file is protected
//! by its permissions alone: who can write it can make the engine accept an older state, or refuse the present one.
//! A later state that continues from an older one is not noticed.
//!
//! Engines write the file when they verify a later state. Every process writes it when it commits one, before anybody hears
//! of the commit. The file is never lowered, also where an engine and a command write it at the same time.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use data_encoding::HEXLOWER;
use sealwire_apps::StateId;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::{FileOwner, read_bounded, replace_file_of};
use crate::kek::KekError;

/// Name of the file in the folder of the audit log, unless `state.anchor_file` names another one.
const ANCHOR_FILE: &str = "anchor.json";
/// Maximum bytes that are read of it.
const ANCHOR_BYTES_MAX: u64 = 4 << 10;
/// Format number of the file.
const FORMAT: u32 = 2;
/// Format number of files without ids of root keys, which are still read.
const FORMAT_WITHOUT_ROOTS: u32 = 1;
/// Longest wait for a write after a load. It goes on in the background.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a write after a commit, whose response needs it.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Attempts to lock the folder, and the pause between two.
const LOCK_TRIES: u32 = 100;
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
    /// Ids of the root keys: the active one, then the incoming one. Empty in files of an earlier format.
    pub(super) roots: Vec<[u8; 16]>,
}

impl AnchoredState {
    /// Returns true if this state takes the place of one that is noted. A state of another set of root keys does, and one
    /// of the same generation does if it tells the root keys.
    fn replaces(&self, noted: &Self) -> bool {
        let tells_more = self.id == noted.id && noted.roots.is_empty() && !self.roots.is_empty();
        self.id.set != noted.id.set || noted.id.generation < self.id.generation || tells_more
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Anchor {
    /// Content of the file when it was opened, unless it is ignored. Concurrent operations can verify an older generation
    /// last, so states that are seen later are no bound; see [`sealwire_apps::AuthenticatedStore`].
    at_start: Option<AnchoredState>,
    file: Arc<AnchorFile>,
}

#[derive(Debug)]
struct AnchorFile {
    path: PathBuf,
    /// True if `state.anchor_file` names the file. Otherwise a missing folder, which the audit log creates, is no error.
    is_named: bool,
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
    /// True while a write goes on that nobody has to wait for.
    is_writing: bool,
}

impl Anchor {
    /// Reads the file. A missing file, or one that this user cannot read, counts as no anchor. `is_named`: the configuration
    /// names the file, and its folder must exist when it is written.
    ///
    /// # Errors
    /// The file cannot be read, or is not an anchor.
    pub(super) fn open(path: PathBuf, is_named: bool) -> Result<Self, KekError> {
        let at_start = read(&path)?;
        let state = AnchorState { seen: at_start.clone(), written: at_start.clone(), ..AnchorState::default() };
        let file = AnchorFile { path, is_named, state: Mutex::new(state), writing: Mutex::default() };
        Ok(Self { at_start, file: Arc::new(file) })
    }

    /// Returns the content of the file at start, unless it is ignored.
    pub(super) fn at_start(&self) -> Option<&AnchoredState> {
        self.at_start.as_ref()
    }

    /// Returns the content of the file at start, and accepts earlier states from now on. Later ones still raise the file.
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

    /// Notes a state that was verified.
    pub(super) async fn raise(&self, state: AnchoredState) {
        self.file.note(state);
        self.write().await;
    }

    /// Notes a state that was committed. The file is on disk when this returns.
    ///
    /// # Errors
    /// The file, and why it was not written within 10 seconds.
    pub(super) async fn commit(&self, state: AnchoredState) -> Result<(), String> {
        self.file.note(state);
        let file = Arc::clone(&self.file);
        let writing = tokio::task::spawn_blocking(move || file.write());
        let late = || io::Error::new(io::ErrorKind::TimedOut, "not written within 10 seconds");
        let written = match tokio::time::timeout(COMMIT_WAIT_MAX, writing).await {
            Ok(ended) => ended.map_err(io::Error::other).flatten(),
            Err(_) => Err(late()),
        };
        written.map_err(|error| format!("the anchor file {} was not written: {error}", self.file.path.display()))
    }

    /// Waits a while for the file to be written.
    async fn write(&self) {
        if let Some(writing) = self.begin_write() {
            let _ = tokio::time::timeout(WRITE_WAIT_MAX, writing).await;
        }
    }

    /// Begins to write the file, unless that goes on already or is not needed. A file that cannot be written is logged and
    /// tried again at the next load.
    fn begin_write(&self) -> Option<JoinHandle<()>> {
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
                        file = %file.path.display(), %error, "the anchor of the store's generation is not written"
                    );
                    file.state().is_writing = false;
                    return;
                }
            }
        }))
    }
}

impl AnchorFile {
    fn note(&self, new: AnchoredState) {
        let mut state = self.state();
        if state.seen.as_ref().is_none_or(|seen| new.replaces(seen)) {
            state.seen = Some(new);
        }
    }

    /// Writes what was seen last. Returns `None`, and ends the background write, if that is written.
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

    /// Writes what was seen last, unless the file is of a later generation. Blocks.
    fn write(&self) -> io::Result<()> {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.state().seen.clone();
        let Some(state) = &seen else { return Ok(()) };
        let folder = self.path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        match File::open(folder) {
            Ok(folder) => {
                lock_folder(&folder);
                self.write_locked(state, &folder.metadata()?)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.is_named => {
                tracing::warn!(
                    file = %self.path.display(), "the anchor of the store's generation is not written: its folder is missing"
                );
            }
            Err(error) => return Err(error),
        }
        self.state().written = seen;
        Ok(())
    }

    /// Replaces the file by `state`, or keeps a later one that another process has written.
    fn write_locked(&self, state: &AnchoredState, folder: &std::fs::Metadata) -> io::Result<()> {
        let present = match read_bounded(&self.path, ANCHOR_BYTES_MAX) {
            Ok(text) => parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // A file of another user, which this process replaces if it can.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(error),
        };
        if present.is_some_and(|present| !state.replaces(&present)) {
            return Ok(());
        }
        // A command that root runs must leave a file that the engine's user can read.
        let like = std::fs::metadata(&self.path);
        let like = like.as_ref().unwrap_or(folder);
        replace_file_of(&self.path, Some(&to_bytes(state)), Some(FileOwner { user: like.uid(), group: like.gid() }))
    }

    fn state(&self) -> MutexGuard<'_, AnchorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes other processes that write the file wait. Goes on without the lock where the file system has none, and after a
/// second, since anyone who can read the folder can hold it: two writers can then disagree for one write.
fn lock_folder(folder: &File) {
    for _ in 0..LOCK_TRIES {
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Ok(()) | Err(TryLockError::Error(_)) => return,
        }
    }
}

/// Reads an anchor. Returns `None` for a missing file and for one that this user cannot read.
///
/// # Errors
/// The file cannot be read, or is not an anchor.
pub(super) fn read(path: &Path) -> Result<Option<AnchoredState>, KekError> {
    let wrong = |what: &dyn std::fmt::Display| KekError(format!("{}: {what}", path.display()));
    match read_bounded(path, ANCHOR_BYTES_MAX) {
        Ok(text) => Ok(Some(parse(&text).ok_or_else(|| wrong(&"not an anchor of this program"))?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::warn!(file = %path.display(), "the anchor of the store's generation cannot be read");
            Ok(None)
        }
        Err(error) => Err(wrong(&error)),
    }
}

fn parse(text: &[u8]) -> Option<AnchoredState> {
    let AnchorFields { format, set, generation, code, roots } = serde_json::from_slice(text).ok()?;
    let roots = match (format, roots) {
        (FORMAT_WITHOUT_ROOTS, None) => Vec::new(),
        (FORMAT, Some(roots)) => roots.iter().map(|root| bytes(root)).collect::<Option<_>>()?,
        _ => return None,
    };
    Some(AnchoredState { id: StateId { set: bytes(&set)?, generation, code: bytes(&code)? }, roots })
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

fn to_bytes(AnchoredState { id, roots }: &AnchoredState) -> Vec<u8> {
    let (set, code) = (HEXLOWER.encode(&id.set), HEXLOWER.encode(&id.code));
    let roots = Some(roots.iter().map(|root| HEXLOWER.encode(root)).collect());
    let fields = AnchorFields { format: FORMAT, set, generation: id.generation, code, roots };
    serde_json::to_vec(&fields).expect("it has no maps")
}

/// Returns where the anchor of a configuration is, if it has one.
pub(super) fn anchor_path(config: &sealwire_config::Config) -> Option<PathBuf> {
    let beside_audit = || config.audit.folder.as_deref().map(|folder: &Path| folder.join(ANCHOR_FILE));
    config.state.anchor_file.clone().or_else(beside_audit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(generation: u64) -> AnchoredState {
        AnchoredState { id: StateId { set: [1; 16], generation, code: [2; 32] }, roots: vec![[3; 16]] }
    }

    fn content(path: &Path) -> Option<AnchoredState> {
        read(path).unwrap()
    }

    #[test]
    fn an_anchor_is_read_as_it_was_written_and_nothing_else_is_one() {
        let id = StateId { set: [0xab; 16], generation: u64::MAX, code: [0xcd; 32] };
        for roots in [vec![], vec![[0xef; 16]], vec![[0xef; 16], [1; 16]]] {
            let state = AnchoredState { id, roots };
            assert_eq!(parse(&to_bytes(&state)), Some(state));
        }
        let (set, code) = ("ab".repeat(16), "cd".repeat(32));
        // A file of an earlier version.
        let earlier = format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":{},\"code\":\"{code}\"}}", u64::MAX);
        assert_eq!(parse(earlier.as_bytes()), Some(AnchoredState { id, roots: vec![] }));
        for wrong in [
            String::new(),
            "{}".into(),
            format!("{{\"format\":2,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\"}}"),
            format!("{{\"format\":2,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\",\"roots\":[\"ab\"]}}"),
            format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\",\"roots\":[]}}"),
            format!("{{\"format\":3,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\",\"roots\":[]}}"),
            format!("{{\"format\":1,\"set\":\"{set}00\",\"generation\":1,\"code\":\"{code}\"}}"),
            format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":-1,\"code\":\"{code}\"}}"),
            format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":1,\"code\":\"cd\"}}"),
            format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\",\"more\":1}}"),
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn an_anchor_is_kept_at_the_highest_generation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANCHOR_FILE);
        let anchor = Anchor::open(path.clone(), true).unwrap();
        anchor.raise(state(5)).await;
        assert!(!path.exists(), "a command does not write what it only verified");
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
        let open = || Anchor::open(path.clone(), true).unwrap();
        let (engine, mut command) = (open(), open());
        engine.keep().await;
        command.commit(state(9)).await.unwrap();
        assert_eq!(content(&path), Some(state(9)), "also of a process that keeps no anchor");
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
        std::fs::write(&path, String::from_utf8(to_bytes(&state(11))).unwrap().replace("\"format\":2", "\"format\":1"))
            .unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.split(",\"roots\"").next().unwrap().to_owned() + "}").unwrap();
        let upgraded = open();
        assert_eq!(upgraded.at_start().unwrap().roots, Vec::<[u8; 16]>::new());
        upgraded.commit(state(11)).await.unwrap();
        assert_eq!(content(&path), Some(state(11)));
    }

    #[tokio::test]
    async fn a_commit_whose_anchor_is_not_written_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing").join(ANCHOR_FILE);
        let failed = Anchor::open(missing.clone(), true).unwrap().commit(state(1)).await.unwrap_err();
        assert!(failed.contains("missing/anchor.json was not written: No such file"), "{failed}");
        Anchor::open(missing, false).unwrap().commit(state(1)).await.unwrap();
        // A folder in the place of the file cannot be replaced by a file.
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        let anchor = Anchor {
            at_start: None,
            file: Arc::new(AnchorFile {
                path: taken,
                is_named: true,
                state: Mutex::default(),
                writing: Mutex::default(),
            }),
        };
        anchor.commit(state(1)).await.unwrap_err();
        anchor.commit(state(1)).await.unwrap_err();
    }

    #[test]
    fn a_file_that_is_no_anchor_is_refused_and_a_missing_one_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANCHOR_FILE);
        assert_eq!(content(&path), None);
        std::fs::write(&path, b"{}").unwrap();
        let error = Anchor::open(path.clone(), true).unwrap_err();
        assert!(error.0.contains("anchor.json") && error.0.contains("not an anchor"), "{}", error.0);
        std::fs::write(&path, vec![b' '; 5_000]).unwrap();
        Anchor::open(path, true).unwrap_err();
    }
}
