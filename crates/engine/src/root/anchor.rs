//! The highest generation of the store that this machine has seen, in a file outside the store.
//!
//! A store that was put back as a whole is authentic, so only memory of a later generation tells. The file is protected
//! by its permissions alone: who can write it can make the engine accept an older state, or refuse the present one.
//! A later state that continues from an older one is not noticed.

use std::io;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use sealwire_apps::RootRecord;
use serde::{Deserialize, Serialize};

use super::{read_bounded, replace_file};
use crate::kek::KekError;

/// Name of the file in the folder of the audit log, unless `state.anchor_file` names another one.
pub const ANCHOR_FILE: &str = "anchor.json";
/// Maximum bytes that are read of it.
const ANCHOR_BYTES_MAX: u64 = 4 << 10;
/// Format number of the file.
const FORMAT: u32 = 1;

/// A generation of a set of root keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchored {
    /// Names the set.
    pub set: [u8; 16],
    /// The generation.
    pub generation: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnchorFields {
    format: u32,
    set: String,
    generation: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Anchor {
    path: PathBuf,
    /// What the file said when it was opened. Operations side by side can verify an older generation last, so what is seen
    /// later is no bound; see [`sealwire_apps::AuthenticatedStore`].
    at_start: Option<Anchored>,
    /// The highest generation that was verified.
    seen: Option<Anchored>,
    written: Option<Anchored>,
    /// Only engines write the file.
    is_kept: bool,
}

impl Anchor {
    /// Reads the file. A missing file says nothing.
    ///
    /// # Errors
    /// The file cannot be read, or is not an anchor.
    pub(super) fn open(path: PathBuf) -> Result<Self, KekError> {
        let wrong = |what: &dyn std::fmt::Display| KekError(format!("{}: {what}", path.display()));
        let at_start = match read_bounded(&path, ANCHOR_BYTES_MAX) {
            Ok(text) => Some(Anchored::parse(&text).ok_or_else(|| wrong(&"not an anchor of this program"))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(wrong(&error)),
        };
        Ok(Self { path, at_start, seen: at_start, written: at_start, is_kept: false })
    }

    /// Returns what the file said at start.
    pub(super) fn at_start(&self) -> Option<Anchored> {
        self.at_start
    }

    /// Writes the file from now on.
    pub(super) async fn keep(&mut self) {
        self.is_kept = true;
        self.write().await;
    }

    /// Notes a generation that was verified.
    pub(super) async fn raise(&mut self, root: &RootRecord, generation: u64) {
        let is_later = |seen: Anchored| seen.set != root.set || seen.generation < generation;
        if self.seen.is_none_or(is_later) {
            self.seen = Some(Anchored { set: root.set, generation });
        }
        self.write().await;
    }

    /// A file that cannot be written is logged and tried again at the next load.
    async fn write(&mut self) {
        let Some(seen) = self.seen.filter(|_| self.is_kept && self.seen != self.written) else { return };
        let path = self.path.clone();
        let write = move || replace_file(&path, Some(&seen.to_bytes()));
        match tokio::task::spawn_blocking(write).await.map_err(io::Error::other).flatten() {
            Ok(()) => self.written = Some(seen),
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "the anchor of the store's generation is not written");
            }
        }
    }
}

impl Anchored {
    fn parse(text: &[u8]) -> Option<Self> {
        let AnchorFields { format, set, generation } = serde_json::from_slice(text).ok()?;
        let set = HEXLOWER.decode(set.as_bytes()).ok()?.try_into().ok()?;
        (format == FORMAT).then_some(Self { set, generation })
    }

    fn to_bytes(self) -> Vec<u8> {
        let fields = AnchorFields { format: FORMAT, set: HEXLOWER.encode(&self.set), generation: self.generation };
        serde_json::to_vec(&fields).expect("it has no maps")
    }
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
        let anchored = Anchored { set: [0xab; 16], generation: u64::MAX };
        assert_eq!(Anchored::parse(&anchored.to_bytes()), Some(anchored));
        let set = "ab".repeat(16);
        for wrong in [
            String::new(),
            "{}".into(),
            format!("{{\"format\":2,\"set\":\"{set}\",\"generation\":1}}"),
            format!("{{\"format\":1,\"set\":\"{set}00\",\"generation\":1}}"),
            format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":-1}}"),
            format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":1,\"more\":1}}"),
        ] {
            assert_eq!(Anchored::parse(wrong.as_bytes()), None, "{wrong}");
        }
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
