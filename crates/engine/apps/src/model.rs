//! The public types of apps, keys and collections: the unwrapped state that requests need, and
//! summaries without secrets for operators.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sealwire_crypto::{
    AppId, AppKeys, EpochLifetime, KeyId, KeyState, Origin, SigningKey, Suite, SuiteSet,
};
use sealwire_records::objects::Schema;
use sealwire_records::token::TokenKeys;

use sealwire_store::{MapId, StoreError};

/// All apps and their keys as an engine serves them, at one generation.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Generation of the records. Each change increments it by one.
    pub generation: u64,
    /// The apps in the order of their names, including apps whose removal is scheduled.
    pub apps: Vec<App>,
    /// Time of the next removal by [`Control::maintain`](crate::Control::maintain), in seconds
    /// since 1970-01-01 UTC.
    pub removal_unix_s: Option<u64>,
    /// The key that signs published public keys. `None` before the first app publishes one.
    pub signing_key: Option<Arc<SigningKey>>,
    /// Unparsed records under `role/` and `access/`, by key. The access crate interprets them.
    pub access: BTreeMap<String, Vec<u8>>,
}

/// An app in the form that the engine serves.
#[derive(Clone, Debug)]
pub struct App {
    /// Number of the app; never reused.
    pub number: u32,
    /// The state, which determines if requests can use the app.
    pub state: AppState,
    /// The unwrapped keys.
    pub keys: Arc<AppKeys>,
    /// The unwrapped token keys.
    pub token_keys: Arc<TokenKeys>,
    /// Settings that the operator chose.
    pub settings: Settings,
    /// Collections by name.
    pub collections: BTreeMap<CollectionName, Collection>,
}

/// State of an app, which determines if requests can use the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppState {
    /// Requests can use the app.
    Active,
    /// Requests are denied until the app is enabled or restored.
    Disabled,
}

/// Settings that an operator chose for an app. The default is for a record without settings; a new
/// app gets another `write_suite` (`Control::create`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lifetime of an ephemeral key that requests with key scope `epoch` share. `None`: such
    /// requests are denied.
    pub epoch: Option<EpochLifetime>,
    /// Format for requests without a format.
    pub format: DefaultFormat,
    /// Suite for envelopes of requests without a suite.
    pub write_suite: Suite,
    /// Suites that requests may name, and whose envelopes can be opened. For suites with key pairs,
    /// Evervault values can be opened, too.
    pub read_suites: SuiteSet,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            epoch: None,
            format: DefaultFormat::default(),
            write_suite: Suite::UNNAMED,
            read_suites: SuiteSet::default(),
        }
    }
}

/// The format that an app writes for requests without a format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultFormat {
    /// Native envelopes.
    #[default]
    Native,
    /// Evervault strings with metadata.
    Evervault,
}

impl DefaultFormat {
    /// The formats, with the default first.
    pub const ALL: [Self; 2] = [Self::Native, Self::Evervault];

    /// Returns the name in files, on the command line and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Evervault => "evervault",
        }
    }

    /// Returns the format with this name, if it exists.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// Name of a collection of an app: 1 to 64 of the characters `A-Z a-z 0-9 . _ -`, not starting with
/// a dot. Safe to log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CollectionName(Arc<str>);

impl CollectionName {
    /// Checks and wraps a name.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the length or a character is not permitted.
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

/// A named collection of an app: a token map, or a collection of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Number that identifies the collection's rows in the store; never reused in its app.
    pub number: u32,
    /// The kind of its rows, with the operator's settings.
    pub content: CollectionContent,
    /// Creation time, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// The kind of the rows of a [`Collection`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectionContent {
    /// Tokens.
    Tokens(CollectionRules),
    /// Objects.
    Objects(Arc<Schema>),
}

impl Collection {
    /// Returns the rules of a token map. `None`: the collection has objects.
    #[must_use]
    pub fn rules(&self) -> Option<&CollectionRules> {
        match &self.content {
            CollectionContent::Tokens(rules) => Some(rules),
            CollectionContent::Objects(_) => None,
        }
    }

    /// Returns the schema of a collection of objects. `None`: the collection has tokens.
    #[must_use]
    pub fn schema(&self) -> Option<&Arc<Schema>> {
        match &self.content {
            CollectionContent::Tokens(_) => None,
            CollectionContent::Objects(schema) => Some(schema),
        }
    }
}

impl App {
    /// Returns the id of the map with the rows of one of the app's collections.
    #[must_use]
    pub fn map(&self, collection: &Collection) -> MapId {
        MapId {
            app: self.number,
            collection: collection.number,
        }
    }
}

/// Rules of a token map. Kind, format and scope never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectionRules {
    /// Determines if equal values get equal tokens, and if a token can be detokenized.
    pub kind: CollectionKind,
    /// Format of the tokens.
    pub format: sealwire_records::token::Format,
    /// Scope in which equal values have equal tokens.
    pub scope: Scope,
    /// Default lifetime of new tokens, in seconds: 1 to [`CollectionRules::EXPIRES_S_MAX`]. `None`:
    /// tokens never expire.
    pub expires_s: Option<u64>,
    /// Seconds for which an archived row is kept before the sweep removes the row: 0 to
    /// [`CollectionRules::EXPIRES_S_MAX`].
    /// `None`: an archived row stays until an operator prunes it.
    pub retention_s: Option<u64>,
}

/// A change of the times of a collection; a field that is `None` does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionRulesChange {
    /// New default lifetime of tokens or objects, as in [`CollectionRules::expires_s`].
    pub expires_s: Option<Option<u64>>,
    /// New retention, as in [`CollectionRules::retention_s`].
    pub retention_s: Option<Option<u64>>,
}

impl CollectionRules {
    /// Maximum default lifetime of a token, and maximum retention of an archived row, in seconds: a
    /// hundred years.
    pub const EXPIRES_S_MAX: u64 = 3_155_760_000;
}

/// Determines if equal values get equal tokens, and if a token can be detokenized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionKind {
    /// Every request creates new tokens.
    Random,
    /// Equal values have the same token within the scope.
    Deterministic,
    /// Like [`Self::Deterministic`], but no token can be detokenized, because the value is not
    /// stored.
    OneWay,
}

impl CollectionKind {
    /// All kinds.
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

    /// Returns the kind with this name, if it exists.
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
    /// A single context of the collection.
    Context,
}

impl Scope {
    /// The scopes, with the default first.
    pub const ALL: [Self; 2] = [Self::Collection, Self::Context];

    /// Returns the name in files, on the command line and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Collection => "collection",
            Self::Context => "context",
        }
    }

    /// Returns the scope with this name, if it exists.
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
    /// The state. An app whose removal is scheduled is disabled.
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
    /// Id that identifies the version in envelopes.
    pub id: KeyId,
    /// Suite of the key.
    pub suite: Suite,
    /// Number of this version among the app's versions of this suite, from 1.
    pub number: u32,
    /// The state. A version whose removal is scheduled is disabled.
    pub state: KeyState,
    /// True if the version can seal and open; false if it can only open.
    pub seals: bool,
    /// The party that seals to the version.
    pub origin: Origin,
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

/// Identifies one of an app's keys, regardless of the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// The key of this suite, which engines seal under.
    Suite(Suite),
    /// The key of this suite whose public key is published.
    Outside(Suite),
    /// The token key.
    Token,
}

/// The part of an app that a change created or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The app.
    App,
    /// A key version of the app.
    Key(KeyId),
    /// A version of the app's token key, by number.
    TokenKey(u32),
}

/// Result of changing an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppChange {
    /// Generation of the records after the change.
    pub generation: u64,
    /// The app after the change.
    pub app: AppSummary,
    /// The part that was created or changed.
    pub target: Target,
}

impl AppChange {
    /// Returns the key version that was created or changed. `None`: the target is not a key
    /// version.
    #[must_use]
    pub fn key(&self) -> Option<&KeySummary> {
        self.app
            .keys
            .iter()
            .find(|key| self.target == Target::Key(key.id))
    }
}

/// Result of changing a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionChange {
    /// Generation of the records after the change.
    pub generation: u64,
    /// The collection after the change, or before it was removed.
    pub collection: CollectionSummary,
}
