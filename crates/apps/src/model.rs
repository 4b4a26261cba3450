//! The public form of apps, keys and collections: the unwrapped state that requests need, and summaries without secrets
//! for people.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sealwire_crypto::{AppId, AppKeys, Curve, EpochLifetime, KeyId, KeyState};
use sealwire_token::TokenKeys;

use sealwire_store::{MapId, StoreError};

/// Everything that is served, at one generation.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Generation of the records. Grows by one with every change.
    pub generation: u64,
    /// The apps, by name, including apps that wait for their removal.
    pub apps: Vec<App>,
    /// Time of the next removal by [`Control::maintain`](crate::Control::maintain), in seconds since 1970-01-01 UTC.
    pub removal_unix_s: Option<u64>,
    /// Unparsed records under `role/` and `access/`, by key. The access crate interprets them.
    pub access: BTreeMap<String, Vec<u8>>,
}

/// An app in the form that the engine serves.
#[derive(Clone, Debug)]
pub struct App {
    /// Number of the app; never reused.
    pub number: u32,
    /// The state, which decides if requests can use the app.
    pub state: AppState,
    /// The key pairs, unwrapped.
    pub keys: Arc<AppKeys>,
    /// The token keys, unwrapped.
    pub token_keys: Arc<TokenKeys>,
    /// Settings that the operator chose.
    pub settings: Settings,
    /// Collections by name.
    pub collections: BTreeMap<CollectionName, Collection>,
}

/// Decides if requests can use an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppState {
    /// Requests can use the app.
    Active,
    /// Requests are denied until the app is enabled or restored.
    Disabled,
}

/// Settings that an operator chose for an app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Lifetime of an ephemeral key that serves requests with epoch scope. If `None`, such requests are denied.
    pub epoch: Option<EpochLifetime>,
    /// Format for requests that name no format.
    pub format: Format,
}

/// A format that an app can write by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Native envelopes.
    #[default]
    Native,
    /// Evervault strings with metadata.
    Evervault,
}

impl Format {
    /// Both formats, the default first.
    pub const ALL: [Self; 2] = [Self::Native, Self::Evervault];

    /// Returns the name in files, on the command line and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Evervault => "evervault",
        }
    }

    /// Returns the format with that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// Names a collection of an app: 1 to 64 of `A-Z a-z 0-9 . _ -`, not starting with a dot. Safe to log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CollectionName(Arc<str>);

impl CollectionName {
    /// Checks and wraps a name.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for any other length or character.
    pub fn new(name: &str) -> Result<Self, StoreError> {
        // Collection names have the same alphabet as app names.
        match AppId::new(name) {
            Ok(_) => Ok(Self(name.into())),
            Err(_) => Err(StoreError::Invalid(
                "a collection name is 1 to 64 letters, digits, dots, underscores or hyphens".into(),
            )),
        }
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for CollectionName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CollectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A named token map of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Number that names the collection's rows; never reused in its app.
    pub number: u32,
    /// The rules that the operator chose.
    pub rules: Rules,
    /// Creation time, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

impl App {
    /// Returns the id of the token map that has the rows of one of the app's collections.
    #[must_use]
    pub fn map(&self, collection: &Collection) -> MapId {
        MapId { app: self.number, collection: collection.number }
    }
}

/// The rules of a collection. Kind, format and scope never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Decides if equal values get equal tokens, and if a token can be detokenized.
    pub kind: CollectionKind,
    /// Format of the tokens.
    pub format: sealwire_token::Format,
    /// Scope in which equal values have equal tokens.
    pub scope: Scope,
    /// Default lifetime of new tokens, in seconds: 1 to [`Rules::EXPIRES_S_MAX`]. `None`: tokens never expire.
    pub expires_s: Option<u64>,
    /// Seconds for which an archived row is kept before the sweep removes the row: 0 to [`Rules::EXPIRES_S_MAX`].
    /// `None`: an archived row stays until an operator prunes it.
    pub retention_s: Option<u64>,
}

/// A change of a collection's [`Rules`]; a field that is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesChange {
    /// See [`Rules::expires_s`].
    pub expires_s: Option<Option<u64>>,
    /// See [`Rules::retention_s`].
    pub retention_s: Option<Option<u64>>,
}

impl Rules {
    /// Maximum default lifetime of a token: a hundred years.
    pub const EXPIRES_S_MAX: u64 = 3_155_760_000;
}

/// Decides if equal values get equal tokens, and if a token can be detokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionKind {
    /// Every request creates new tokens.
    Random,
    /// Equal values have one token in their scope.
    Deterministic,
    /// Like deterministic, but no token can be detokenized: the value is not stored.
    OneWay,
}

impl CollectionKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Random, Self::Deterministic, Self::OneWay];

    /// Returns the name in files, on the command line and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Deterministic => "deterministic",
            Self::OneWay => "one_way",
        }
    }

    /// Returns the kind with that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Scope in which equal values have equal tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The whole collection.
    #[default]
    Collection,
    /// One context of the collection.
    Context,
}

impl Scope {
    /// Both scopes, the default first.
    pub const ALL: [Self; 2] = [Self::Collection, Self::Context];

    /// Returns the name in files, on the command line and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Collection => "collection",
            Self::Context => "context",
        }
    }

    /// Returns the scope with that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// Public information about one app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSummary {
    /// Name of the app.
    pub app: AppId,
    /// Number of the app, never reused.
    pub number: u32,
    /// The state. An app that waits for its removal is disabled.
    pub state: AppState,
    /// Time of the removal, seconds since 1970-01-01 UTC. `None`: no removal is scheduled.
    pub delete_unix_s: Option<u64>,
    /// Settings that the operator chose.
    pub settings: Settings,
    /// Key versions, oldest first.
    pub keys: Vec<KeySummary>,
    /// Token key versions, oldest first.
    pub token_keys: Vec<TokenKeySummary>,
}

/// Public information about one key version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySummary {
    /// Id that names the version in envelopes.
    pub id: KeyId,
    /// Curve of the key pair.
    pub curve: Curve,
    /// Number of this version among the app's versions on this curve, from 1.
    pub number: u32,
    /// The state. A version that waits for its removal is disabled.
    pub state: KeyState,
    /// True if the version can seal; false if it only opens.
    pub seals: bool,
    /// Creation time, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// Time of the removal, seconds since 1970-01-01 UTC. `None`: no removal is scheduled.
    pub delete_unix_s: Option<u64>,
}

/// Public information about one version of an app's token key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenKeySummary {
    /// Number of this version, from 1. The newest active version seals.
    pub number: u32,
    /// The state. Only an active version seals and opens.
    pub state: KeyState,
    /// Creation time, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// Public information about one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionSummary {
    /// App of the collection.
    pub app: AppId,
    /// Name of the collection.
    pub name: CollectionName,
    /// Number, rules and creation time.
    pub collection: Collection,
}

/// Names one of an app's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// The key pair on this curve.
    Pair(Curve),
    /// The token key.
    Token,
}

/// The object of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The app.
    App,
    /// One key version of the app.
    Key(KeyId),
    /// One version of the app's token key, by number.
    TokenKey(u32),
}

/// Result of changing an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppChange {
    /// Generation of the change.
    pub generation: u64,
    /// The app after the change.
    pub app: AppSummary,
    /// The part of the app that was created or changed.
    pub target: Target,
}

impl AppChange {
    /// Returns the key version that was created or changed, if the change was made to a key version.
    #[must_use]
    pub fn key(&self) -> Option<&KeySummary> {
        self.app.keys.iter().find(|key| self.target == Target::Key(key.id))
    }
}

/// Result of changing a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionChange {
    /// Generation of the change.
    pub generation: u64,
    /// The collection after the change, or before it was removed.
    pub collection: CollectionSummary,
}
