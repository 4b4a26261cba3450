//! What the engine keeps: apps with their keys, settings and collections, and the rows of token maps.
//!
//! Two contracts, [`ControlStore`] and [`TokenStore`], which know nothing of keys or values; [`Control`] is what may be
//! done to apps, over any of the first. The engine keeps what it loaded in memory and watches the generation for change.
//! Private keys rest wrapped under a key-encryption key (KEK). Nothing unwrapped is ever written, logged or put into an
//! error.

mod apps;
mod coalesce;
mod control;
pub mod copy;
pub mod embedded;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod postgres;
#[cfg(test)]
mod suite;
mod throttle;
mod tokens;

pub use apps::{
    App, AppChange, AppState, AppSummary, Collection, CollectionChange, CollectionKind, CollectionName,
    CollectionSummary, Control, DELETE_DELAY, Format, KeyKind, KeySummary, LIVE_AGE_MAX, MapState, MapStates, POLL,
    Rules, RulesChange, Scope, Settings, State, Target, TokenKeySummary,
};
pub use coalesce::{
    BYTES_TOGETHER, CallError, Coalescer, Flight, KEYS_TOGETHER, Kind, Lanes, Observer, ROWS_TOGETHER, Waiting,
};
pub use control::{Commit, ControlStore, Instance, SINGLE, Snapshot, everything};
pub use embedded::EmbeddedStore;
pub use file::FileStore;
pub use memory::MemoryStore;
pub use postgres::{Examined, PostgresOptions, PostgresStore, PostgresTls, examine as examine_postgres};
pub use throttle::{Permit, Pressure, Reason, Refusal, ThrottleBounds, WriteThrottle};
pub use tokens::{Filter, Fingerprint, Group, MapId, Page, Row, SECONDS_MAX, Sweep, TokenId, TokenStore, Written};

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use sealwire_crypto::{AppId, KeyId};

/// Why the store could not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system said no. The operator's to mend.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The store does not answer now: it is down, cut off, full or too slow. What needs it may be tried again.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// Another process has the store open, or this one has it twice. Stop that one, or use another folder.
    #[error(
        "{}: in use by {}; one process at a time may use it: stop that one, or give this one another folder",
        folder.display(),
        process.map_or("another process".to_owned(), |id| format!("process {id}"))
    )]
    InUse {
        /// The store's folder.
        folder: PathBuf,
        /// Who has it, if it says so.
        process: Option<u32>,
    },
    /// This store is not written by this program.
    #[error("this store is read only")]
    ReadOnly,
    /// What lies there is not what this program writes. Restore it from a backup.
    #[error("{place}: damaged: {what}")]
    Damaged {
        /// The file, table or key.
        place: String,
        /// What is wrong, without the content.
        what: String,
    },
    /// A setting of the store cannot stand. The operator's to mend.
    #[error("{key}: {what}")]
    Setting {
        /// Its key.
        key: &'static str,
        /// What is wrong, without secrets.
        what: String,
    },
    /// A later program has brought the database forward.
    #[error("the database's schema is version {found} and this program knows {known}: upgrade the program")]
    Newer {
        /// The version that is there.
        found: i32,
        /// The newest that this program knows.
        known: i32,
    },
    /// A row names a time that stores need not hold. The caller's to mend.
    #[error("time {seconds} lies behind the year 9999")]
    TimeOutOfRange {
        /// The time, seconds since 1970-01-01 UTC.
        seconds: u64,
    },
    /// The KEK does not open the keys of this app.
    #[error("the key-encryption key does not open the keys of app {app}; is it the one they were made under?")]
    WrongKek {
        /// The app.
        app: AppId,
    },
    /// The name is taken.
    #[error("app {app} exists already")]
    Exists {
        /// The app.
        app: AppId,
    },
    /// There is no such app.
    #[error("there is no app {app}")]
    NoApp {
        /// The name.
        app: AppId,
    },
    /// The app has a key of this id already.
    #[error("app {app} has key {key} already")]
    KeyTaken {
        /// The app.
        app: AppId,
        /// The id.
        key: KeyId,
    },
    /// The app has no such key version.
    #[error("app {app} has no key {key}")]
    NoKey {
        /// The app.
        app: AppId,
        /// The id.
        key: KeyId,
    },
    /// The app has no such version of its token key.
    #[error("app {app} has no token key {number}")]
    NoTokenKey {
        /// The app.
        app: AppId,
        /// The version.
        number: u32,
    },
    /// The name is taken in the app.
    #[error("app {app} has collection {collection} already")]
    CollectionExists {
        /// The app.
        app: AppId,
        /// The collection.
        collection: CollectionName,
    },
    /// The app has no such collection.
    #[error("app {app} has no collection {collection}")]
    NoCollection {
        /// The app.
        app: AppId,
        /// The name.
        collection: CollectionName,
    },
    /// It waits for its removal, or its time has come. Until then it can be restored.
    #[error("{name} is deleted")]
    Deleted {
        /// What it is, and its name.
        name: String,
    },
    /// Something of that name was removed, and instances that live may still serve it. Within a poll they will not.
    #[error("{key} was removed in generation {generation}, and {} live instances serve an older one", instances.len())]
    Conflict {
        /// Its record.
        key: String,
        /// Which generation they must have reached.
        generation: u64,
        /// Their ids.
        instances: Vec<String>,
    },
    /// The change asked for is none that can be made. The operator's to mend.
    #[error("{0}")]
    Invalid(String),
    /// Key material failed.
    #[error(transparent)]
    Crypto(#[from] sealwire_crypto::Error),
}

impl StoreError {
    /// The same for another of those whom it befalls: of what keeps a store from answering as it is, else its text.
    pub(crate) fn repeated(&self) -> Self {
        match self {
            Self::Damaged { place, what } => Self::Damaged { place: place.clone(), what: what.clone() },
            Self::Io { path, source } => {
                Self::Io { path: path.clone(), source: std::io::Error::new(source.kind(), source.to_string()) }
            }
            Self::Unavailable(why) => Self::Unavailable(why.clone()),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

/// A time from nothing to all of `whole`, by the chance in the standard library's hash seeds.
pub(crate) fn part_of(whole: Duration) -> Duration {
    let chance = RandomState::new().hash_one(()) as u32;
    whole.mul_f64(f64::from(chance) / f64::from(u32::MAX))
}
