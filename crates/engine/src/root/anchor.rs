//! The highest generation of the store that this machine has seen, in a file outside the store.
//!
//! A store that was put back as a whole is authentic, so only memory of a later generation tells. The file is protected
//! by its permissions alone: who can write it can make the engine accept an older state, or refuse the present one.
//! A later state that continues from an older one is not noticed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use data_encoding::HEXLOWER;
use sealwire_apps::StateId;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::{read_bounded, replace_file};
use crate::kek::KekError;

/// Name of the file in the folder of the audit log, unless `state.anchor_file` names another one.
const ANCHOR_FILE: &str = "anchor.json";
/// Maximum bytes that are read of it.
const ANCHOR_BYTES_MAX: u64 = 4 << 10;
/// Format number of the file.
const FORMAT: u32 = 1;
/// Longest wait for a write. It goes on in the background.
const WRITE_WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnchorFields {
    format: u32,
    set: String,
    generation: u64,
    code: String,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Anchor {
    path: PathBuf,
    /// Content of the file when it was opened. Concurrent operations can verify an older generation last, so states that are
    /// seen later are no bound; see [`sealwire_apps::AuthenticatedStore`].
    at_start: Option<StateId>,
    state: Arc<Mutex<AnchorState>>,
}

#[derive(Debug, Default)]
struct AnchorState {
    /// The state of the highest generation that was verified.
    seen: Option<StateId>,
    written: Option<StateId>,
    /// Only engines write the file.
    is_kept: bool,
    is_writing: bool,
}

impl Anchor {
    /// Reads the file. A missing file, or one that this user cannot read, counts as no anchor.
    ///
    /// # Errors
    /// The file cannot be read, or is not an anchor.
    pub(super) fn open(path: PathBuf) -> Result<Self, KekError> {
        let wrong = |what: &dyn std::fmt::Display| KekError(format!("{}: {what}", path.display()));
        let at_start = match read_bounded(&path, ANCHOR_BYTES_MAX) {
            Ok(text) => Some(parse(&text).ok_or_else(|| wrong(&"not an anchor of this program"))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::warn!(file = %path.display(), "the anchor of the store's generation cannot be read");
                None
            }
            Err(error) => return Err(wrong(&error)),
        };
        let state = AnchorState { seen: at_start, written: at_start, ..AnchorState::default() };
        Ok(Self { path, at_start, state: Arc::new(Mutex::new(state)) })
    }

    /// Returns the content of the file at start.
    pub(super) fn at_start(&self) -> Option<StateId> {
        self.at_start
    }

    /// Removes the file.
    pub(super) fn remove(&self) -> io::Result<()> {
        replace_file(&self.path, None)
    }

    /// Writes the file from now on.
    pub(super) async fn keep(&self) {
        lock(&self.state).is_kept = true;
        self.write().await;
    }

    /// Notes a state that was verified.
    pub(super) async fn raise(&self, id: &StateId) {
        {
            let mut state = lock(&self.state);
            if state.seen.is_none_or(|seen| seen.set != id.set || seen.generation < id.generation) {
                state.seen = Some(*id);
            }
        }
        self.write().await;
    }

    /// Waits a while for the file to be written.
    async fn write(&self) {
        if let Some(writing) = self.begin_write() {
            let _ = tokio::time::timeout(WRITE_WAIT_MAX, writing).await;
        }
    }

    /// Begins to write the file, unless that goes on already or is not needed.
    fn begin_write(&self) -> Option<JoinHandle<()>> {
        let mut state = lock(&self.state);
        if !state.is_kept || state.is_writing || state.seen == state.written {
            return None;
        }
        state.is_writing = true;
        drop(state);
        let (path, state) = (self.path.clone(), Arc::clone(&self.state));
        Some(tokio::task::spawn_blocking(move || while write_one(&path, &state) {}))
    }
}

/// Writes what was seen last. Returns true if more was seen meanwhile. A file that cannot be written is logged and tried
/// again at the next load.
fn write_one(path: &Path, state: &Mutex<AnchorState>) -> bool {
    let seen = lock(state).seen;
    let written = seen.map_or(Ok(()), |seen| replace_file(path, Some(&to_bytes(&seen))));
    let mut state = lock(state);
    match written {
        Ok(()) => state.written = seen,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "the anchor of the store's generation is not written");
            state.is_writing = false;
            return false;
        }
    }
    state.is_writing = state.seen != state.written;
    state.is_writing
}

fn lock(state: &Mutex<AnchorState>) -> MutexGuard<'_, AnchorState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parse(text: &[u8]) -> Option<StateId> {
    let AnchorFields { format, set, generation, code } = serde_json::from_slice(text).ok()?;
    let set = HEXLOWER.decode(set.as_bytes()).ok()?.try_into().ok()?;
    let code = HEXLOWER.decode(code.as_bytes()).ok()?.try_into().ok()?;
    (format == FORMAT).then_some(StateId { set, generation, code })
}

fn to_bytes(id: &StateId) -> Vec<u8> {
    let (set, code) = (HEXLOWER.encode(&id.set), HEXLOWER.encode(&id.code));
    let fields = AnchorFields { format: FORMAT, set, generation: id.generation, code };
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

    #[test]
    fn an_anchor_is_read_as_it_was_written_and_nothing_else_is_one() {
        let id = StateId { set: [0xab; 16], generation: u64::MAX, code: [0xcd; 32] };
        assert_eq!(parse(&to_bytes(&id)), Some(id));
        let (set, code) = ("ab".repeat(16), "cd".repeat(32));
        for wrong in [
            String::new(),
            "{}".into(),
            format!("{{\"format\":2,\"set\":\"{set}\",\"generation\":1,\"code\":\"{code}\"}}"),
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
        let anchor = Anchor::open(path.clone()).unwrap();
        let id = |generation: u64| StateId { set: [1; 16], generation, code: [2; 32] };
        anchor.raise(&id(5)).await;
        assert!(!path.exists(), "commands do not write it");
        anchor.keep().await;
        for (generation, expected) in [(4, 5), (7, 7), (6, 7)] {
            anchor.raise(&id(generation)).await;
            assert_eq!(Anchor::open(path.clone()).unwrap().at_start(), Some(id(expected)));
        }
        assert_eq!(anchor.at_start(), None, "what is seen later is no bound");
        anchor.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_no_anchor_is_refused_and_a_missing_one_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANCHOR_FILE);
        assert_eq!(Anchor::open(path.clone()).unwrap().at_start(), None);
        std::fs::write(&path, b"{}").unwrap();
        let error = Anchor::open(path.clone()).unwrap_err();
        assert!(error.0.contains("anchor.json") && error.0.contains("not an anchor"), "{}", error.0);
        std::fs::write(&path, vec![b' '; 5_000]).unwrap();
        Anchor::open(path).unwrap_err();
    }
}
