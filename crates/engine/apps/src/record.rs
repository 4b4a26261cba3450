//! Serialization of apps and collections as versioned JSON records. Unknown fields are rejected.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_crypto::{AppId, EpochLifetime, KeyId, KeyState, Origin, Suite, SuiteSet};
use sealwire_records::objects::Schema;
use sealwire_records::token::CardEnds;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::model::{
    AppState, AppSummary, Collection, CollectionContent, CollectionKind, CollectionName,
    CollectionRules, DefaultFormat, KeySummary, Scope, Settings, TokenKeySummary,
};
use super::root_record::{ROOT_RECORD, RootRecord};
use super::schema_record::{OBJECTS, SchemaRecord};
use sealwire_store::{ERASURES_COLLECTION, Snapshot, StoreError, copy};

/// Format number of the records.
const FORMAT: u32 = 1;

/// A stored record: a live object or a tombstone.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record<T, D> {
    format: u32,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    live: Option<T>,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    deleted: Option<D>,
}

#[derive(Deserialize)]
struct Shape {
    format: u32,
}

/// A parsed record.
#[derive(Clone, Debug)]
pub(super) enum Entry<T, D> {
    Live(T),
    Deleted(D),
}

impl<T, D> Entry<T, D> {
    pub(super) fn live(&self) -> Option<&T> {
        match self {
            Self::Live(live) => Some(live),
            Self::Deleted(_) => None,
        }
    }
}

impl<T: DeserializeOwned, D: DeserializeOwned> Entry<T, D> {
    pub(super) fn read(key: &str, record: &[u8]) -> Result<Self, StoreError> {
        let Shape { format } = parse_json(key, record)?;
        if format != FORMAT {
            return Err(damaged(key, format!("format {format} is not {FORMAT}")));
        }

        match parse_json(key, record)? {
            Record {
                live: Some(live),
                deleted: None,
                ..
            } => Ok(Self::Live(live)),
            Record {
                live: None,
                deleted: Some(deleted),
                ..
            } => Ok(Self::Deleted(deleted)),
            _ => Err(damaged(key, "neither live nor deleted".into())),
        }
    }
}

fn parse_json<T: DeserializeOwned>(key: &str, record: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(record).map_err(|error| damaged(key, error.to_string()))
}

impl<T: Serialize, D: Serialize> Entry<T, D> {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let (live, deleted) = match self {
            Self::Live(live) => (Some(live), None),
            Self::Deleted(deleted) => (None, Some(deleted)),
        };
        serde_json::to_vec(&Record {
            format: FORMAT,
            live,
            deleted,
        })
        .expect("its maps have text for keys")
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AppRecord {
    pub(super) app: String,
    pub(super) number: u32,
    pub(super) state: StateName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) delete_unix_s: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) settings: SettingsRecord,
    /// The highest version number ever assigned, by [`suite_name`]. Numbers are never reused.
    pub(super) highest: BTreeMap<String, u32>,
    pub(super) keys: Vec<KeyRecord>,
    pub(super) token_keys: Vec<TokenKeyRecord>,
}

/// The record of a removed app.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AppTombstone {
    pub(super) number: u32,
    /// Generation of the removal. An instance that serves an older generation can still serve the
    /// app.
    pub(super) generation: u64,
}

/// The settings of an app. Default values are not written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettingsRecord {
    /// Lifetime of an epoch key in milliseconds. 0 means off.
    #[serde(default, skip_serializing_if = "is_default")]
    epoch_ms: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    format: FormatName,
    /// A [`suite_name`]. Empty means [`Suite::UNNAMED`], in records that are older than other
    /// suites or choose it.
    #[serde(default, skip_serializing_if = "is_default")]
    write_suite: String,
    /// Names by [`suite_name`]. Empty means all suites.
    #[serde(default, skip_serializing_if = "is_default")]
    read_suites: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FormatName {
    #[default]
    Native,
    Evervault,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRecord {
    pub(super) id: String,
    /// A [`suite_name`].
    #[serde(rename = "curve")]
    pub(super) suite: String,
    pub(super) number: u32,
    pub(super) state: StateName,
    /// True if the key was imported only to open, and never seals.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) opens_only: bool,
    /// True if the public key is published, and others seal to it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) outside: bool,
    pub(super) created_unix_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) delete_unix_s: Option<u64>,
    /// Base64 of the published public key of a key pair (SEC 1, compressed) or of the check value
    /// of a symmetric key; empty for other keys. Older records contain the public key of every key
    /// pair. Only the check value is read.
    pub(super) public_key: String,
    /// The private scalar, the secret of a symmetric key, or a seed, wrapped under the KEK, base64.
    pub(super) wrapped: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenKeyRecord {
    pub(super) number: u32,
    pub(super) state: StateName,
    pub(super) created_unix_s: u64,
    /// The secret wrapped under the KEK, base64.
    pub(super) wrapped: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StateName {
    Active,
    Disabled,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CollectionRecord {
    pub(super) app: String,
    /// Number of the app that contains the collection. A later app with the same name has another
    /// number.
    pub(super) app_number: u32,
    pub(super) name: String,
    pub(super) number: u32,
    kind: String,
    #[serde(default, skip_serializing_if = "is_default")]
    format: String,
    /// For the format `card`: digits kept at the start and at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keeps: Option<(u8, u8)>,
    #[serde(default, skip_serializing_if = "is_default")]
    scope: String,
    /// The schema of a collection of objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<SchemaRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) retention_s: Option<u64>,
    created_unix_s: u64,
}

/// The record of a removed collection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CollectionTombstone {
    pub(super) app_number: u32,
    pub(super) number: u32,
    /// Generation of the removal. An instance that serves an older generation can still serve the
    /// collection.
    pub(super) generation: u64,
}

/// The record of the key that signs published public keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SigningKeyRecord {
    /// The public half, base64.
    pub(super) public_key: String,
    pub(super) created_unix_s: u64,
    /// The seed wrapped under the KEK, base64.
    pub(super) wrapped: String,
}

pub(super) type SigningKeyEntry = Entry<SigningKeyRecord, ()>;
pub(super) type AppEntry = Entry<AppRecord, AppTombstone>;
pub(super) type CollectionEntry = Entry<CollectionRecord, CollectionTombstone>;

impl AppEntry {
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Live(app) => app.number,
            Self::Deleted(tombstone) => tombstone.number,
        }
    }
}

impl CollectionEntry {
    pub(super) fn app_number(&self) -> u32 {
        match self {
            Self::Live(collection) => collection.app_number,
            Self::Deleted(tombstone) => tombstone.app_number,
        }
    }

    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Live(collection) => collection.number,
            Self::Deleted(tombstone) => tombstone.number,
        }
    }
}

/// All records of one generation, parsed.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) generation: u64,
    pub(super) apps: BTreeMap<AppId, AppEntry>,
    pub(super) collections: BTreeMap<AppId, BTreeMap<CollectionName, CollectionEntry>>,
    pub(super) signing_key: Option<SigningKeyRecord>,
    /// `None`: a plain KEK wraps the keys.
    pub(super) root: Option<RootRecord>,
    /// Unparsed records about access, by key. The access crate interprets them.
    pub(super) access: BTreeMap<String, Vec<u8>>,
}

/// Key of the [`SigningKeyRecord`].
pub(super) const SIGNING_KEY: &str = "signing-key";

pub(super) fn app_key(app: &AppId) -> String {
    format!("app/{app}")
}

pub(super) fn collection_key(app: &AppId, name: &CollectionName) -> String {
    format!("collection/{app}/{name}")
}

impl Contents {
    pub(super) fn read(snapshot: &Snapshot) -> Result<Self, StoreError> {
        let mut contents = Self {
            generation: snapshot.generation,
            ..Self::default()
        };

        for (key, record) in &snapshot.records {
            match key.split('/').collect::<Vec<_>>()[..] {
                ["app", app] => {
                    let entry = AppEntry::read(key, record)?;
                    if entry.live().is_some_and(|live| live.app != app) {
                        return Err(damaged(key, "the key is not its app's".into()));
                    }
                    contents.apps.insert(app_id(key, app)?, entry);
                }
                ["collection", app, name] => {
                    let entry = CollectionEntry::read(key, record)?;
                    if entry
                        .live()
                        .is_some_and(|live| live.app != app || live.name != name)
                    {
                        return Err(damaged(key, "the key is not its collection's".into()));
                    }
                    let name = CollectionName::new(name)
                        .map_err(|error| damaged(key, error.to_string()))?;
                    contents
                        .collections
                        .entry(app_id(key, app)?)
                        .or_default()
                        .insert(name, entry);
                }
                [SIGNING_KEY] => {
                    contents.signing_key = SigningKeyEntry::read(key, record)?.live().cloned()
                }
                [ROOT_RECORD] => contents.root = Some(RootRecord::parse(record)?),
                ["role" | "access", ..] => {
                    contents.access.insert(key.clone(), record.clone());
                }
                [copy::MARK] => {
                    return Err(damaged(
                        key,
                        "a copy to this store was not finished; run it again".into(),
                    ));
                }
                _ => return Err(damaged(key, "not a key of this program".into())),
            }
        }
        Ok(contents)
    }

    /// Returns an app that exists. The app can be waiting for its removal.
    pub(super) fn app(&self, app: &AppId) -> Result<&AppRecord, StoreError> {
        self.apps
            .get(app)
            .and_then(Entry::live)
            .ok_or_else(|| StoreError::NoApp { app: app.clone() })
    }

    /// Returns an app that exists and does not wait for its removal.
    pub(super) fn staying(&self, app: &AppId) -> Result<&AppRecord, StoreError> {
        let found = self.app(app)?;
        found
            .delete_unix_s
            .is_none()
            .then_some(found)
            .ok_or_else(|| StoreError::Deleted {
                name: format!("app {app}"),
            })
    }

    /// Returns the generation in which the object at `key` was removed, if it was removed.
    /// Tombstones of collections are ignored if their app was removed. This is safe, because a new
    /// app of that name is created only when no instance can serve the removed app.
    pub(super) fn tombstone(&self, key: &str) -> Option<u64> {
        let app = self
            .apps
            .iter()
            .find(|(app, _)| app_key(app) == key)
            .map(|(_, entry)| entry);

        if let Some(Entry::Deleted(tombstone)) = app {
            return Some(tombstone.generation);
        }

        let mut all = self
            .collections
            .iter()
            .flat_map(|(app, of)| of.iter().map(move |(name, entry)| (app, name, entry)));

        match all.find(|(app, name, _)| collection_key(app, name) == key) {
            Some((app, _, Entry::Deleted(tombstone))) => {
                let current = self
                    .apps
                    .get(app)
                    .is_some_and(|app| app.number() == tombstone.app_number);
                current.then_some(tombstone.generation)
            }
            _ => None,
        }
    }

    /// Returns an app's collections, including tombstones.
    pub(super) fn collections(
        &self,
        app: &AppId,
        number: u32,
    ) -> impl Iterator<Item = (&CollectionName, &CollectionEntry)> {
        self.collections
            .get(app)
            .into_iter()
            .flatten()
            .filter(move |(_, entry)| entry.app_number() == number)
    }
}

fn app_id(key: &str, app: &str) -> Result<AppId, StoreError> {
    AppId::new(app).map_err(|error| damaged(key, error.to_string()))
}

impl AppRecord {
    /// Creates an app without keys. Requests without a suite write `write_suite`.
    pub(super) fn new(app: &AppId, number: u32, write_suite: Suite) -> Self {
        Self {
            app: app.as_str().into(),
            number,
            state: StateName::Active,
            delete_unix_s: None,
            settings: Settings {
                write_suite,
                ..Settings::default()
            }
            .into(),
            highest: BTreeMap::new(),
            keys: Vec::new(),
            token_keys: Vec::new(),
        }
    }

    pub(super) fn summary(&self, app: &AppId) -> Result<AppSummary, StoreError> {
        let key = app_key(app);
        Ok(AppSummary {
            app: app.clone(),
            number: self.number,
            state: match self.state {
                StateName::Active if self.delete_unix_s.is_none() => AppState::Active,
                _ => AppState::Disabled,
            },
            delete_unix_s: self.delete_unix_s,
            settings: self.settings.read(&key)?,
            keys: self
                .keys
                .iter()
                .map(|record| record.summary(&key))
                .collect::<Result<_, _>>()?,
            token_keys: self
                .token_keys
                .iter()
                .map(TokenKeyRecord::summary)
                .collect(),
        })
    }
}

impl SettingsRecord {
    pub(super) fn read(&self, key: &str) -> Result<Settings, StoreError> {
        let epoch = match self.epoch_ms {
            0 => None,
            ms => {
                Some(EpochLifetime::from_ms(ms).map_err(|error| damaged(key, error.to_string()))?)
            }
        };
        let format = match self.format {
            FormatName::Native => DefaultFormat::Native,
            FormatName::Evervault => DefaultFormat::Evervault,
        };
        let write_suite = match self.write_suite.as_str() {
            "" => Suite::UNNAMED,
            name => named_suite(key, name)?,
        };
        let read_suites = match self.read_suites.as_slice() {
            [] => SuiteSet::ALL,
            names => names
                .iter()
                .map(|name| named_suite(key, name))
                .collect::<Result<_, _>>()?,
        };

        Ok(Settings {
            epoch,
            format,
            write_suite,
            read_suites,
        })
    }
}

impl From<Settings> for SettingsRecord {
    fn from(settings: Settings) -> Self {
        let format = match settings.format {
            DefaultFormat::Native => FormatName::Native,
            DefaultFormat::Evervault => FormatName::Evervault,
        };
        let is_unnamed = settings.write_suite == Suite::UNNAMED;
        let write_suite = if is_unnamed {
            ""
        } else {
            suite_name(settings.write_suite)
        };
        let restricted = Some(settings.read_suites).filter(|suites| *suites != SuiteSet::ALL);
        Self {
            epoch_ms: settings.epoch.map_or(0, EpochLifetime::as_ms),
            format,
            write_suite: write_suite.into(),
            read_suites: restricted
                .iter()
                .flat_map(|suites| suites.iter())
                .map(|suite| suite_name(suite).into())
                .collect(),
        }
    }
}

/// Returns the name of a suite in records. The names of the first two suites are older than the
/// concept of suites.
pub(super) fn suite_name(suite: Suite) -> &'static str {
    match suite {
        Suite::P256 => "r1",
        Suite::Secp256k1 => "k1",
        Suite::Xaes => "xaes",
        Suite::P256MlKem768 | Suite::P256Psk | Suite::Secp256k1Psk => suite.name(),
    }
}

pub(super) fn named_suite(key: &str, name: &str) -> Result<Suite, StoreError> {
    let found = Suite::ALL
        .into_iter()
        .find(|suite| suite_name(*suite) == name);
    found.ok_or_else(|| damaged(key, format!("unknown suite {name:?}")))
}

impl KeyRecord {
    /// Removes the public key, unless the key is published or the field contains the check value of
    /// a symmetric key.
    pub(super) fn drop_unread_public_key(&mut self) {
        if !self.outside && self.suite != suite_name(Suite::Xaes) {
            self.public_key.clear();
        }
    }

    pub(super) fn summary(&self, key: &str) -> Result<KeySummary, StoreError> {
        let suite = named_suite(key, &self.suite)?;
        let id = self
            .id
            .parse()
            .map_err(|error: sealwire_crypto::Error| damaged(key, error.to_string()))?;
        let state = if self.delete_unix_s.is_some() {
            KeyState::Disabled
        } else {
            self.state.into()
        };
        let Self {
            number,
            opens_only,
            outside,
            created_unix_s,
            delete_unix_s,
            ..
        } = *self;

        let origin = if outside {
            Origin::Outside
        } else {
            Origin::Inside
        };
        Ok(KeySummary {
            id,
            suite,
            number,
            state,
            seals: !opens_only,
            origin,
            created_unix_s,
            delete_unix_s,
        })
    }

    pub(super) fn is(&self, key: KeyId) -> bool {
        self.id.parse() == Ok(key)
    }
}

impl TokenKeyRecord {
    pub(super) fn summary(&self) -> TokenKeySummary {
        TokenKeySummary {
            number: self.number,
            state: self.state.into(),
            created_unix_s: self.created_unix_s,
        }
    }
}

impl From<StateName> for KeyState {
    fn from(state: StateName) -> Self {
        match state {
            StateName::Active => Self::Active,
            StateName::Disabled => Self::Disabled,
        }
    }
}

impl CollectionRecord {
    pub(super) fn new(
        app: &AppId,
        app_number: u32,
        name: &CollectionName,
        of: &Collection,
    ) -> Self {
        let Collection {
            number,
            ref content,
            created_unix_s,
        } = *of;
        let CollectionRules {
            kind,
            format,
            scope,
            expires_s,
            retention_s,
        } = match content {
            CollectionContent::Tokens(rules) => *rules,
            CollectionContent::Objects(schema) => {
                return Self {
                    app: app.as_str().into(),
                    app_number,
                    name: name.as_str().into(),
                    number,
                    kind: OBJECTS.into(),
                    format: String::new(),
                    keeps: None,
                    scope: String::new(),
                    schema: Some(SchemaRecord::from(&**schema)),
                    expires_s: schema.expires_s,
                    retention_s: schema.retention_s,
                    created_unix_s,
                };
            }
        };

        let (format, keeps) = match format {
            sealwire_records::token::Format::Opaque => ("opaque", None),
            sealwire_records::token::Format::Uuid => ("uuid", None),
            sealwire_records::token::Format::Digits => ("digits", None),
            sealwire_records::token::Format::Card(ends) => {
                ("card", Some((ends.first(), ends.last())))
            }
            sealwire_records::token::Format::Email => ("email", None),
        };

        let app = app.as_str().into();
        let name = name.as_str().into();
        let kind = kind.name().into();
        let format = format.into();
        let scope = scope.name().into();
        let schema = None;
        Self {
            app,
            app_number,
            name,
            number,
            kind,
            format,
            keeps,
            scope,
            schema,
            expires_s,
            retention_s,
            created_unix_s,
        }
    }

    /// Replaces the schema of a collection of objects.
    pub(super) fn set_schema(&mut self, schema: &Schema) {
        self.schema = Some(SchemaRecord::from(schema));
        (self.expires_s, self.retention_s) = (schema.expires_s, schema.retention_s);
    }

    pub(super) fn read(&self) -> Result<Collection, StoreError> {
        if self.number >= ERASURES_COLLECTION {
            // Keys of data subjects are stored in the format of tokens. Only this number
            // distinguishes them from tokens.
            return Err(damaged(
                &self.key(),
                "the number is one of the engine's own".into(),
            ));
        }

        if let Some(schema) = &self.schema {
            if self.kind != OBJECTS
                || !self.format.is_empty()
                || !self.scope.is_empty()
                || self.keeps.is_some()
            {
                return Err(self.unknown("kind"));
            }
            let schema = schema.read(&self.key(), self.expires_s, self.retention_s)?;
            let content = CollectionContent::Objects(Arc::new(schema));
            return Ok(Collection {
                number: self.number,
                content,
                created_unix_s: self.created_unix_s,
            });
        }

        let format = match (&*self.format, self.keeps) {
            ("opaque", None) => sealwire_records::token::Format::Opaque,
            ("uuid", None) => sealwire_records::token::Format::Uuid,
            ("digits", None) => sealwire_records::token::Format::Digits,
            ("email", None) => sealwire_records::token::Format::Email,
            ("card", Some((first, last))) => sealwire_records::token::Format::Card(
                CardEnds::new(first, last)
                    .map_err(|error| damaged(&self.key(), error.to_string()))?,
            ),
            _ => return Err(self.unknown("format")),
        };

        let rules = CollectionRules {
            kind: CollectionKind::from_name(&self.kind).ok_or_else(|| self.unknown("kind"))?,
            format,
            scope: Scope::from_name(&self.scope).ok_or_else(|| self.unknown("scope"))?,
            expires_s: self.expires_s,
            retention_s: self.retention_s,
        };

        let content = CollectionContent::Tokens(rules);
        Ok(Collection {
            number: self.number,
            content,
            created_unix_s: self.created_unix_s,
        })
    }
}

impl CollectionRecord {
    fn key(&self) -> String {
        format!("collection/{}/{}", self.app, self.name)
    }

    fn unknown(&self, what: &str) -> StoreError {
        damaged(&self.key(), format!("unknown {what}"))
    }
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(super) fn base64(key: &str, text: &str) -> Result<Vec<u8>, StoreError> {
    STANDARD
        .decode(text)
        .map_err(|_| damaged(key, "wrapped is not base64".into()))
}

pub(super) fn damaged(key: &str, what: String) -> StoreError {
    StoreError::Damaged {
        place: key.to_owned(),
        what,
    }
}
