//! Apps, their settings and their key versions at rest. Private keys lie there wrapped under a key-encryption key (KEK).
//!
//! One trait, [`AppStore`]; today one implementation, [`FolderStore`]. Calls block: the engine makes them off
//! its network threads and keeps what it loaded in memory, watching [`AppStore::generation`] for change.
//! Nothing unwrapped is ever written, logged or put into an error.

mod coalesce;
mod control;
pub mod embedded;
mod folder;
mod memory;
#[cfg(test)]
mod suite;
mod tokens;

pub use coalesce::{
    BYTES_TOGETHER, CallError, Coalescer, Flight, KEYS_TOGETHER, Kind, Lanes, Observer, ROWS_TOGETHER, Waiting,
};
pub use control::{Commit, ControlStore, Instance, Snapshot};
pub use embedded::EmbeddedStore;
pub use folder::FolderStore;
pub use memory::MemoryStore;
pub use tokens::{Filter, Fingerprint, Group, MapId, Page, Row, SECONDS_MAX, TokenId, TokenStore, Written};

use std::path::PathBuf;
use std::sync::Arc;

use sealwire_crypto::{AppId, AppKeys, Curve, EpochLifetime, KeyId, KeyPair, KeyState};

/// What an operator chose for an app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// How long one ephemeral key serves the calls that ask for epoch scope; without it they are refused.
    pub epoch: Option<EpochLifetime>,
    /// What is written for calls that name no format.
    pub format: Format,
}

/// A format that an app may write by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Native envelopes.
    #[default]
    Native,
    /// Evervault strings with metadata.
    Evervault,
}

impl Format {
    /// Both, the default first.
    pub const ALL: [Self; 2] = [Self::Native, Self::Evervault];

    /// The name in files and on the command line, the same as on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Evervault => "evervault",
        }
    }

    /// The format of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// An app as it is served.
#[derive(Clone, Debug)]
pub struct App {
    /// Its keys, unwrapped.
    pub keys: Arc<AppKeys>,
    /// What its operator chose.
    pub settings: Settings,
}

/// What is publicly known of one key version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySummary {
    /// Names it in envelopes.
    pub id: KeyId,
    /// Its curve.
    pub curve: Curve,
    /// Counts the app's versions on this curve from 1.
    pub number: u32,
    /// Whether it may be used.
    pub state: KeyState,
    /// Whether it may seal, or only opens.
    pub seals: bool,
    /// When it was made, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// What is publicly known of one app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSummary {
    /// Its name.
    pub app: AppId,
    /// What its operator chose.
    pub settings: Settings,
    /// Its key versions, oldest first.
    pub keys: Vec<KeySummary>,
}

/// Where apps, their settings and their key versions rest.
pub trait AppStore: Send + Sync {
    /// Grows by at least one with every change. An equal generation means equal content.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`].
    fn generation(&self) -> Result<u64, StoreError>;

    /// Every app with its keys unwrapped, and the generation they belong to.
    ///
    /// # Errors
    /// Any [`StoreError`]; one app that cannot be read fails the whole, so that no app silently disappears.
    fn load(&self) -> Result<(u64, Vec<App>), StoreError>;

    /// Every app, by name, without touching private keys.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`].
    fn list(&self) -> Result<Vec<AppSummary>, StoreError>;

    /// Makes an app with one key version per curve. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when the name is taken; the app there is untouched. [`StoreError::WrongKek`] when the
    /// other apps' keys are under another one.
    fn create(&self, app: &AppId, curves: &[Curve]) -> Result<AppSummary, StoreError>;

    /// Makes the next key version of an app on `curve`: it seals from then on, and the older ones go on opening.
    /// Durable when it returns. However it ends, no version that was there is lost; after a failure the new one is
    /// there or not, and a retry makes another.
    ///
    /// # Errors
    /// [`StoreError::NoApp`]; [`StoreError::WrongKek`] when the app's other keys are under another one.
    fn rotate(&self, app: &AppId, curve: Curve) -> Result<KeySummary, StoreError>;

    /// Adds a key pair that was made elsewhere as the app's next version on its curve. Unless `seals` it only opens:
    /// others may hold it. Durable and safe as [`AppStore::rotate`] is.
    ///
    /// # Errors
    /// As for [`AppStore::rotate`]; [`StoreError::KeyTaken`] when the app has a key of that id.
    fn import(&self, app: &AppId, pair: &KeyPair, seals: bool) -> Result<KeySummary, StoreError>;

    /// Stops a key version: nothing opens or seals under it any more. The newest active one that is left on its curve
    /// seals instead; if none is, sealing on that curve stops, because a key that leaked must be stopped at once.
    /// Durable when it returns, and safe to repeat.
    ///
    /// # Errors
    /// [`StoreError::NoApp`] or [`StoreError::NoKey`].
    fn disable(&self, app: &AppId, key: KeyId) -> Result<KeySummary, StoreError>;

    /// Takes a mistaken [`AppStore::disable`] back.
    ///
    /// # Errors
    /// As for [`AppStore::disable`].
    fn enable(&self, app: &AppId, key: KeyId) -> Result<KeySummary, StoreError>;

    /// Changes an app's settings; what `change` leaves alone stays. Durable when it returns, and safe to repeat.
    ///
    /// # Errors
    /// [`StoreError::NoApp`].
    fn configure(&self, app: &AppId, change: &dyn Fn(&mut Settings)) -> Result<AppSummary, StoreError>;
}

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
    /// Key material failed.
    #[error(transparent)]
    Crypto(#[from] sealwire_crypto::Error),
}
