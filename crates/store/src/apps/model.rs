//! What apps, keys and collections are to those who use them: everything unwrapped that calls need, and for people
//! everything that is no secret.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sealwire_crypto::{self as crypto, AppId, AppKeys, Curve, EpochLifetime, KeyId, KeyState, TokenKeys};

use crate::{MapId, StoreError};

/// Everything that is served, as it was at one generation.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Grows by one with every change.
    pub generation: u64,
    /// The apps, by name; those that wait for their removal too.
    pub apps: Vec<App>,
    /// When there is something for [`Control::maintain`](crate::Control::maintain) to remove, seconds since 1970-01-01
    /// UTC.
    pub removal_unix_s: Option<u64>,
    /// Records under `role/` and `access/`, by key, as they are: who may do what is another's to read.
    pub access: BTreeMap<String, Vec<u8>>,
}

/// An app as it is served.
#[derive(Clone, Debug)]
pub struct App {
    /// Never used twice.
    pub number: u32,
    /// Whether calls may use it.
    pub state: AppState,
    /// Its key pairs, unwrapped.
    pub keys: Arc<AppKeys>,
    /// The keys of its tokens, unwrapped.
    pub token_keys: Arc<TokenKeys>,
    /// What its operator chose.
    pub settings: Settings,
    /// Its collections by name.
    pub collections: BTreeMap<CollectionName, Collection>,
}

/// Whether calls may use an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppState {
    /// They may.
    Active,
    /// They are refused until it is enabled or restored.
    Disabled,
}

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

/// Names a collection of an app: 1 to 64 of `A-Z a-z 0-9 . _ -`, not beginning with a dot. Safe to log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CollectionName(Arc<str>);

impl CollectionName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for any other length or character.
    pub fn new(name: &str) -> Result<Self, StoreError> {
        // The alphabet is that of apps.
        match AppId::new(name) {
            Ok(_) => Ok(Self(name.into())),
            Err(_) => Err(StoreError::Invalid(
                "a collection name is 1 to 64 letters, digits, dots, underscores or hyphens".into(),
            )),
        }
    }

    /// The name.
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
    /// Names its rows; never used twice in its app.
    pub number: u32,
    /// What was chosen for it.
    pub rules: Rules,
    /// When it was made, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

impl App {
    /// Where the rows of one of its collections are.
    #[must_use]
    pub fn map(&self, collection: &Collection) -> MapId {
        MapId { app: self.number, collection: collection.number }
    }
}

/// The rules of a collection. Kind, format and scope never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether equal values get equal tokens, and whether a token leads back.
    pub kind: CollectionKind,
    /// What tokens look like.
    pub format: crypto::Format,
    /// How far equal values have equal tokens.
    pub scope: Scope,
    /// When new tokens expire that name no time, in seconds: 1 to [`Rules::EXPIRES_S_MAX`]. `None`: never.
    pub expires_s: Option<u64>,
    /// Seconds for which an archived row is kept before the sweep removes it: 0 to [`Rules::EXPIRES_S_MAX`]. `None`: an
    /// archived row stays until an operator prunes it.
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
    /// The longest time until a token expires by default: a hundred years.
    pub const EXPIRES_S_MAX: u64 = 3_155_760_000;
}

/// Whether equal values get equal tokens, and whether a token leads back to its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionKind {
    /// Every call makes new tokens.
    Random,
    /// Equal values have one token in their scope.
    Deterministic,
    /// As deterministic, and no token leads back: nothing of the value is kept.
    OneWay,
}

impl CollectionKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Random, Self::Deterministic, Self::OneWay];

    /// The name in files and on the command line, the same as on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Deterministic => "deterministic",
            Self::OneWay => "one_way",
        }
    }

    /// The kind of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// How far equal values have equal tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// In the whole collection.
    #[default]
    Collection,
    /// Under one context of it.
    Context,
}

impl Scope {
    /// Both, the default first.
    pub const ALL: [Self; 2] = [Self::Collection, Self::Context];

    /// The name in files and on the command line, the same as on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Collection => "collection",
            Self::Context => "context",
        }
    }

    /// The scope of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// What is publicly known of one app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSummary {
    /// Its name.
    pub app: AppId,
    /// Its number, never used twice.
    pub number: u32,
    /// Whether calls may use it: not while it waits for its removal.
    pub state: AppState,
    /// When it is removed, seconds since 1970-01-01 UTC; `None`: it stays.
    pub delete_unix_s: Option<u64>,
    /// What its operator chose.
    pub settings: Settings,
    /// Its key versions, oldest first.
    pub keys: Vec<KeySummary>,
    /// The versions of its token key, oldest first.
    pub token_keys: Vec<TokenKeySummary>,
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
    /// Whether it may be used: not while it waits for its removal.
    pub state: KeyState,
    /// Whether it may seal, or only opens.
    pub seals: bool,
    /// When it was made, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// When it is removed, seconds since 1970-01-01 UTC; `None`: it stays.
    pub delete_unix_s: Option<u64>,
}

/// What is publicly known of one version of an app's token key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenKeySummary {
    /// Counts from 1. The newest active one seals.
    pub number: u32,
    /// Whether it seals and opens.
    pub state: KeyState,
    /// When it was made, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// What is known of one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionSummary {
    /// Its app.
    pub app: AppId,
    /// Its name.
    pub name: CollectionName,
    /// The rest.
    pub collection: Collection,
}

/// Which of an app's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// The key pair on this curve.
    Pair(Curve),
    /// The key of its tokens.
    Token,
}

/// What a change is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The app.
    App,
    /// One of its key versions.
    Key(KeyId),
    /// One version of its token key, by number.
    TokenKey(u32),
}

/// An app that was changed, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppChange {
    /// From this generation on.
    pub generation: u64,
    /// The app.
    pub app: AppSummary,
    /// What of it was made or changed.
    pub target: Target,
}

impl AppChange {
    /// The key version that was made or changed, if it was one.
    #[must_use]
    pub fn key(&self) -> Option<&KeySummary> {
        self.app.keys.iter().find(|key| self.target == Target::Key(key.id))
    }
}

/// A collection that was changed, as it is now, or was when it was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionChange {
    /// From this generation on.
    pub generation: u64,
    /// The collection.
    pub collection: CollectionSummary,
}
