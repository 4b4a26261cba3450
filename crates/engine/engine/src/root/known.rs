//! Ids of a store's root keys as this machine knows them, outside the store.
//!
//! Anyone can seal a root key to the public key of a recovery key. A root key that was unwrapped
//! with shares only is therefore not authenticated. The anchor has the ids of the root keys of the
//! last state that was verified or committed here. The copy of the root record beside the audit
//! log, which only engines write, stands in for an anchor that is missing or of an earlier version.

use std::path::PathBuf;

use sealwire_apps::RootRecord;
use sealwire_settings::Config;

use super::anchor::{self, anchor_path};
use super::{ROOT_COPY_FILE, copied_record};
use crate::kek::KekError;

/// Ids of root keys that a file of this machine names.
#[derive(Debug)]
pub struct KnownRoots(Option<KnownIn>);

#[derive(Debug)]
struct KnownIn {
    file: PathBuf,
    set: [u8; 16],
    roots: Vec<[u8; 16]>,
}

/// Whether this machine knows a root key.
#[derive(Debug, PartialEq, Eq)]
pub enum RootKnowledge {
    /// A file of this machine names it.
    Confirmed,
    /// No file of this machine names a root key.
    Unknown,
    /// This file names other root keys, or another set of them.
    Other(PathBuf),
}

impl KnownRoots {
    /// Reads the anchor, or else the copy of the root record. A missing file is not an error.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(config: &Config) -> Result<Self, KekError> {
        if let Some(file) = anchor_path(config)
            && let Some(state) = anchor::read_anchor(&file)?
            && !state.roots.is_empty()
        {
            return Ok(Self(Some(KnownIn {
                file,
                set: state.id.set,
                roots: state.roots,
            })));
        }

        let (Some(folder), Some(record)) = (&config.audit.folder, copied_record(config)?) else {
            return Ok(Self(None));
        };
        let file = folder.join(ROOT_COPY_FILE);
        Ok(Self(Some(KnownIn {
            file,
            set: record.set,
            roots: record.ids().to_vec(),
        })))
    }

    /// Tells whether this machine knows the active root key of a record that nobody has verified.
    #[must_use]
    pub fn look_up(&self, record: &RootRecord) -> RootKnowledge {
        match &self.0 {
            None => RootKnowledge::Unknown,
            Some(known) if known.set == record.set && known.roots.contains(&record.active.id) => {
                RootKnowledge::Confirmed
            }
            Some(known) => RootKnowledge::Other(known.file.clone()),
        }
    }
}
