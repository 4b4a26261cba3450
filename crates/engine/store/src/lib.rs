//! Contracts of storage: control state, the rows of token maps, and the objects of collections.
//!
//! [`ControlStore`] keeps records, [`TokenStore`] keeps rows, and [`ObjectStore`] keeps objects. No
//! store sees keys or values. This crate contains the in-memory implementation. Separate crates
//! implement the traits on disk and in PostgreSQL, and run the tests in `contract_tests`. This crate also
//! joins lookups and writes of many requests into batches, throttles writes and copies one store to
//! another.

mod coalesce;
#[cfg(any(test, feature = "contract-tests"))]
#[doc(hidden)]
pub mod contract_tests;
mod control;
pub mod copy;
mod memory;
mod objects;
mod reseal;
mod throttle;
mod tokens;

pub use coalesce::{
    BYTES_TOGETHER, BatchError, BatchLimits, BatchStats, Coalescer, KEYS_TOGETHER, Kind,
    ObjectWriter, Observer, ROWS_TOGETHER, Waiting,
};
pub use control::{
    Changes, Commit, ControlStore, Instance, InstanceTable, LIVE_AGE_MAX, SINGLE, Snapshot, after,
    everything, is_single,
};
pub use memory::MemoryStore;
pub use objects::{
    CLAUSE_TERMS_MAX, Clause, ERASURES_COLLECTION, GROUP_WRITES_MAX, MapView, Matches,
    ObjectChanges, ObjectConflict, ObjectGroup, ObjectId, ObjectRow, ObjectStore, ObjectWrite,
    ObjectsWritten, QUERY_CLAUSES_MAX, QUERY_STATEMENTS_MAX, SUBJECTS_COLLECTION, SubjectClaim,
    SubjectId, Term, apply_group, apply_put, apply_sweep, archived, check_fence, matching,
};
pub use reseal::{RESEAL_ROWS_MAX, Reseal, ResealEffect, fit_page};
pub use throttle::{
    Permit, Pressure, ThrottleBounds, ThrottleReason, ThrottleRejection, WriteThrottle,
};
pub use tokens::{
    Filter, Fingerprint, FoundRow, Group, Lifetime, MapId, Page, Row, SCAN_BYTES, SECONDS_MAX,
    Sweep, TokenId, TokenStore, Written, check_time, fits_scan, fits_scan_bytes,
};

use std::path::PathBuf;
use std::time::Duration;

use sealwire_crypto::{AppId, KeyId};

/// Maximum number of instances that an error names.
const INSTANCES_SHOWN: usize = 10;

/// Lists the first instances and counts the others.
fn shown(instances: &[String]) -> String {
    let mut text = instances
        .iter()
        .take(INSTANCES_SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more @ 1..) = instances.len().checked_sub(INSTANCES_SHOWN) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// The reason why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file system operation failed. The operator must fix the cause.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The store does not respond now: it is down, unreachable, full or too slow. The operation can
    /// be retried.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// Another process has the store open, or this process opens the store twice. Stop the other
    /// process or use another folder.
    #[error(
        "{}: in use by {}; one process at a time may use it: stop that one, or give this one another folder",
        folder.display(),
        process.map_or("another process".to_owned(), |id| format!("process {id}"))
    )]
    InUse {
        /// The store's folder.
        folder: PathBuf,
        /// Id of the process that has the store open, if known.
        process: Option<u32>,
    },
    /// This program cannot write to this store.
    #[error("this store is read only")]
    ReadOnly,
    /// The stored data is not in the form that this program writes. Restore the store from a
    /// backup.
    #[error("{place}: damaged: {what}")]
    Damaged {
        /// The file, table or key.
        place: String,
        /// Description of the damage, without stored content.
        what: String,
    },
    /// A setting of the store is invalid. The operator must fix the setting.
    #[error("{key}: {what}")]
    Setting {
        /// Key of the setting.
        key: &'static str,
        /// Description of the problem, without secrets.
        what: String,
    },
    /// A later program version has migrated the database to a newer schema.
    #[error(
        "the database's schema is version {found} and this program knows {known}: upgrade the program"
    )]
    Newer {
        /// The schema version of the database.
        found: i32,
        /// The newest schema version that this program knows.
        known: i32,
    },
    /// A row contains a time beyond the range that stores support. The client must send another
    /// time.
    #[error("time {seconds} lies behind the year 9999")]
    TimeOutOfRange {
        /// The time, seconds since 1970-01-01 UTC.
        seconds: u64,
    },
    /// The KEK does not unwrap the keys of this app.
    #[error(
        "the key-encryption key does not open the keys of app {app}; is it the one they were made under?"
    )]
    WrongKek {
        /// The app.
        app: AppId,
    },
    /// The root key is not available, or a different root key is required.
    #[error("root key: {0}")]
    RootKey(String),
    /// A change was committed completely, but the file with the highest generation that this
    /// machine has seen was not updated. This machine would not detect a rollback to an older
    /// state. Do not repeat the change. See [`CommitSteps`].
    #[error(
        "the change was made, as generation {generation}; do not repeat it. But {what}: until this is repaired, an older \
         state that is put back is not noticed on this machine"
    )]
    NotAnchored {
        /// The generation of the change.
        generation: u64,
        /// The file, and the reason why it was not written.
        what: String,
    },
    /// Like [`StoreError::NotAnchored`], for an operation that must be repeated to continue. Repair
    /// the file first.
    #[error(
        "a part of the change was made, as generation {generation}, but {what}. Repair this, then repeat the command, which \
         continues: until then, an older state that is put back is not noticed on this machine"
    )]
    NotAnchoredUnfinished {
        /// The generation of the committed part.
        generation: u64,
        /// The file, and the reason why it was not written.
        what: String,
    },
    /// A record differs from the last record that a holder of the root key wrote. Someone else
    /// wrote to the store, or a part of the store was restored from another time. Restore the whole
    /// store.
    #[error(
        "record {key} is not authentic: {what}; someone wrote to the store without its root key, or restored a part of it"
    )]
    NotAuthentic {
        /// Key of the record.
        key: String,
        /// Description of the difference, without stored content.
        what: String,
    },
    /// The store has an older generation than was seen before, because someone restored an older
    /// state.
    #[error(
        "the store is of generation {generation}{}, and generation {seen} was seen before: an older state was put back; if \
         that was you, run `sealwire root accept-rollback --seen {seen}`",
        if generation == seen { " with other records" } else { "" }
    )]
    RolledBack {
        /// Generation of the store.
        generation: u64,
        /// Highest generation that was seen.
        seen: u64,
    },
    /// The store is sealed and serves nothing until an administrator unseals it.
    #[error(
        "the store is sealed: its keys are wiped from memory until an administrator runs `sealwire root unseal`"
    )]
    Sealed,
    /// Live instances serve an older generation than the change of the root key needs. Retry after
    /// a poll interval.
    #[error(
        "the incoming root key was added in generation {generation}, and {} live instances serve an older one: {}. \
         An engine that ended without notice counts as live for {} s",
        instances.len(),
        shown(instances),
        LIVE_AGE_MAX.as_secs()
    )]
    NotServed {
        /// Generation that every live instance must reach first.
        generation: u64,
        /// Addresses and ids of the instances that serve an older generation.
        instances: Vec<String>,
    },
    /// An app with this name exists.
    #[error("app {app} exists already")]
    Exists {
        /// The app.
        app: AppId,
    },
    /// No app has this name.
    #[error("there is no app {app}")]
    NoApp {
        /// The requested name.
        app: AppId,
    },
    /// The app already has a key with this id.
    #[error("app {app} has key {key} already")]
    KeyTaken {
        /// The app.
        app: AppId,
        /// Id of the key.
        key: KeyId,
    },
    /// The app has no key version with this id.
    #[error("app {app} has no key {key}")]
    NoKey {
        /// The app.
        app: AppId,
        /// Id of the key.
        key: KeyId,
    },
    /// The app has no such version of the token key.
    #[error("app {app} has no token key {number}")]
    NoTokenKey {
        /// The app.
        app: AppId,
        /// Number of the version.
        number: u32,
    },
    /// The app already has a collection with this name.
    #[error("app {app} has collection {collection} already")]
    CollectionExists {
        /// The app.
        app: AppId,
        /// The collection.
        collection: String,
    },
    /// The app has no collection with this name.
    #[error("app {app} has no collection {collection}")]
    NoCollection {
        /// The app.
        app: AppId,
        /// The requested name.
        collection: String,
    },
    /// The object is marked for removal, or its removal is due. Before the removal is due, the
    /// object can be restored.
    #[error("{name} is deleted")]
    Deleted {
        /// Kind and name of the object.
        name: String,
    },
    /// An object with this name was removed, and live instances can still serve the removed object.
    /// Retry after a poll interval.
    #[error(
        "{key} was removed in generation {generation}, and {} live instances serve an older one: {}",
        instances.len(),
        shown(instances)
    )]
    Conflict {
        /// Key of the record.
        key: String,
        /// Generation that every live instance must reach first.
        generation: u64,
        /// Addresses and ids of the instances that serve an older generation.
        instances: Vec<String>,
    },
    /// The collection's schema was changed, and the engine serves an older generation than the
    /// change. Load the control state and try again.
    #[error("the schema of this collection needs generation {needs} or later")]
    Fenced {
        /// The lowest generation that can use the collection.
        needs: u64,
    },
    /// The requested change is invalid. The operator must correct the request.
    #[error("{0}")]
    Invalid(String),
    /// A cryptographic operation failed.
    #[error(transparent)]
    Crypto(#[from] sealwire_crypto::Error),
}

impl StoreError {
    /// Copies the error for another waiter. Errors that cannot be copied become
    /// [`StoreError::Unavailable`] with their text.
    #[must_use]
    pub fn repeated(&self) -> Self {
        match self {
            Self::Damaged { place, what } => Self::Damaged {
                place: place.clone(),
                what: what.clone(),
            },
            Self::Io { path, source } => Self::Io {
                path: path.clone(),
                source: std::io::Error::new(source.kind(), source.to_string()),
            },
            Self::Unavailable(why) => Self::Unavailable(why.clone()),
            Self::Fenced { needs } => Self::Fenced { needs: *needs },
            other => Self::Unavailable(other.to_string()),
        }
    }

    /// Converts [`StoreError::NotAnchored`] to [`StoreError::NotAnchoredUnfinished`], for an
    /// operation that must be repeated. Returns other errors unchanged.
    #[must_use]
    pub fn unfinished(self) -> Self {
        match self {
            Self::NotAnchored { generation, what } => {
                Self::NotAnchoredUnfinished { generation, what }
            }
            other => other,
        }
    }
}

/// Collects the results of an operation with several commits. The operation continues after a
/// commit that was made but not anchored ([`StoreError::NotAnchored`]), because an anchored commit
/// also covers all earlier commits.
#[derive(Debug, Default)]
pub struct CommitSteps {
    unanchored: Option<StoreError>,
}

impl CommitSteps {
    /// Takes the result of a commit and returns the committed generation.
    ///
    /// # Errors
    /// Any error but [`StoreError::NotAnchored`].
    pub fn made(&mut self, commit: Result<u64, StoreError>) -> Result<u64, StoreError> {
        match commit {
            Ok(generation) => {
                self.unanchored = None;
                Ok(generation)
            }
            Err(StoreError::NotAnchored { generation, what }) => {
                self.unanchored = Some(StoreError::NotAnchored { generation, what });
                Ok(generation)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the operation.
    ///
    /// # Errors
    /// [`StoreError::NotAnchored`] of the last commit.
    pub fn end(self) -> Result<(), StoreError> {
        self.unanchored.map_or(Ok(()), Err)
    }
}

/// Returns a random duration between zero and `whole`.
pub fn part_of(whole: Duration) -> Duration {
    rand::random_range(Duration::ZERO..=whole)
}

#[cfg(test)]
mod commit_step_tests {
    use super::*;

    #[test]
    fn commit_steps_go_on_and_end_with_what_the_last_commit_lacks() {
        let unanchored = |generation| -> Result<u64, _> {
            Err(StoreError::NotAnchored {
                generation,
                what: "disk full".into(),
            })
        };
        for (commits, lacks) in [
            (vec![Ok(1), Ok(2)], false),
            (vec![unanchored(1), Ok(2)], false),
            (vec![Ok(1), unanchored(2)], true),
            (vec![unanchored(1), unanchored(2)], true),
        ] {
            let mut steps = CommitSteps::default();
            let made: Vec<u64> = commits
                .into_iter()
                .map(|commit| steps.made(commit).unwrap())
                .collect();
            assert_eq!(made, [1, 2]);
            match steps.end() {
                Ok(()) => assert!(!lacks),
                Err(error) => {
                    assert!(lacks && matches!(error, StoreError::NotAnchored { generation: 2, .. }))
                }
            }
        }
        assert!(matches!(
            CommitSteps::default().made(Err(StoreError::Sealed)),
            Err(StoreError::Sealed)
        ));
        let text = unanchored(7).unwrap_err().unfinished().to_string();
        assert!(
            text.contains("generation 7") && text.contains("repeat the command"),
            "{text}"
        );
        assert!(!text.contains("do not repeat"), "{text}");
    }
}
