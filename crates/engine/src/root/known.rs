//! Ids of a store's root keys as this machine knows them, outside the store.
//!
//! A recovery key opens every copy that is sealed to it, and anyone can seal one: the public key is public. A root key that
//! only shares unwrap therefore proves nothing about who made it. Engines keep the ids of root keys with which they verified
//! a state, in the anchor and in the copy of the root record beside the audit log.

use std::path::PathBuf;

use sealwire_apps::RootRecord;
use sealwire_config::Config;

use super::anchor::{self, anchor_path};
use super::{ROOT_COPY_FILE, copied_record};
use crate::kek::KekError;

/// See the module.
#[derive(Debug)]
pub struct KnownRoots(Vec<KnownIn>);

#[derive(Debug)]
struct KnownIn {
    file: PathBuf,
    set: [u8; 16],
    roots: Vec<[u8; 16]>,
}

/// Whether this machine knows a root key.
#[derive(Debug, PartialEq, Eq)]
pub enum RootKnowledge {
    /// All files name it.
    Confirmed,
    /// No file of this machine names a root key.
    Unknown,
    /// This file names other root keys, or another set of them.
    Other(PathBuf),
}

impl KnownRoots {
    /// Reads the anchor and the copy of the root record. A missing file says nothing.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(config: &Config) -> Result<Self, KekError> {
        let mut known = Vec::new();
        if let Some(file) = anchor_path(config)
            && let Some(state) = anchor::read(&file)?
            && !state.roots.is_empty()
        {
            known.push(KnownIn { file, set: state.id.set, roots: state.roots });
        }
        if let (Some(folder), Some(record)) = (&config.audit.folder, copied_record(config)?) {
            known.push(KnownIn { file: folder.join(ROOT_COPY_FILE), set: record.set, roots: record.ids().to_vec() });
        }
        Ok(Self(known))
    }

    /// Tells whether this machine knows the active root key of a record that nobody has verified.
    #[must_use]
    pub fn look_up(&self, record: &RootRecord) -> RootKnowledge {
        let names = |known: &KnownIn| known.set == record.set && known.roots.contains(&record.active.id);
        match self.0.iter().find(|known| !names(known)) {
            Some(other) => RootKnowledge::Other(other.file.clone()),
            None if self.0.is_empty() => RootKnowledge::Unknown,
            None => RootKnowledge::Confirmed,
        }
    }
}
