//! The results of the control methods. Names are strings, so that an older client can print what it
//! does not know.

use sealwire_msgpack::Malformed;
use serde::{Deserialize, Serialize};

use super::maps;

/// The public description of an app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct App {
    /// Its name.
    pub app: String,
    /// `active`, `disabled` or `deleting`.
    pub state: String,
    /// When it will be removed, in seconds since 1970-01-01 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_unix_s: Option<u64>,
    /// Format for requests that name none.
    pub format: String,
    /// How long one ephemeral key serves calls of key scope `epoch`, in milliseconds; 0: such calls
    /// are refused.
    pub epoch_ms: u32,
    /// Suite for requests that name none.
    pub write_suite: String,
    /// Suites whose envelopes open, and which requests may name.
    pub read_suites: Vec<String>,
    /// Its key versions, oldest first.
    pub keys: Vec<Key>,
    /// The versions of the key that seals the values of its tokens, oldest first.
    pub token_keys: Vec<TokenKey>,
}

/// The public description of a key version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Names it in envelopes and in calls: 10 hexadecimal digits.
    pub id: String,
    /// The suite: `p256`, `secp256k1` or `xaes`.
    pub suite: String,
    /// Counts the app's versions of this suite from 1.
    pub version: u32,
    /// `active`, `disabled` or `deleting`.
    pub state: String,
    /// True if it can seal; false if it only opens.
    pub seals: bool,
    /// True if its public key is published, so that others seal to it and engines do not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
    /// When it was made, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// When it will be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_unix_s: Option<u64>,
}

/// The public description of a version of an app's token key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenKey {
    /// Counts from 1. The newest active one seals.
    pub version: u32,
    /// `active` or `disabled`.
    pub state: String,
    /// When it was made, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// The result of `apps.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apps {
    /// The apps, by name.
    pub apps: Vec<App>,
    /// Where to go on; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of every method that changes an app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppChanged {
    /// The app as it is now; `None` once it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<App>,
    /// The key version that was made or changed; of a token key its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The generation of the change.
    pub generation: u64,
}

/// The result of `apps.public_keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicKeys {
    /// The keys: JSON, to be checked as these bytes.
    pub keys: String,
    /// The signature of the text, base64.
    pub signature: String,
    /// The Ed25519 public key that signed it, base64. Compare it with one that came another way.
    pub signer: String,
    /// The generation that the keys are from.
    pub generation: u64,
}

/// The description of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collection {
    /// Its app.
    pub app: String,
    /// Its name.
    pub collection: String,
    /// `random`, `deterministic`, `one_way` or `objects`.
    pub kind: String,
    /// Of tokens: `opaque`, `uuid`, `digits`, `card` or `email`. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// Of `card`: digits kept in front.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u8>,
    /// Of `card`: digits kept at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u8>,
    /// Of tokens: `collection` or `context`. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scope: String,
    /// Of objects: the suite that older engines sealed objects under. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suite: String,
    /// Of objects: the records that are read: `all`, `migrating` (all, while an operator migrates
    /// old ones) or `authenticated`. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub records: String,
    /// Of objects: the properties.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<Property>,
    /// When new tokens expire that name no time, in seconds; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// Seconds for which an archived row is kept; `None`: until an operator prunes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_s: Option<u64>,
    /// When it was made, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// A property of a collection of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Property {
    /// Its name.
    pub name: String,
    /// Name of its type.
    #[serde(rename = "type")]
    pub property_type: String,
    /// True if an object can be without a value.
    pub nullable: bool,
    /// True if at most one object can have a value.
    pub unique: bool,
    /// True if objects can be found by a value.
    pub index: bool,
    /// Bits of a truncated index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// Lengths, in characters, of prefixes by which objects can be found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<u8>,
    /// False if values are stored in the clear.
    pub encrypted: bool,
    /// A text for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// The result of `collections.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collections {
    /// The app's collections, by name.
    pub collections: Vec<Collection>,
    /// Where to go on; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of every method that changes a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionChanged {
    /// The collection as it is now; `None` once it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection: Option<Collection>,
    /// The generation of the change.
    pub generation: u64,
}

/// The result of `apps.export`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records {
    /// The records, by key.
    pub records: Vec<Record>,
    /// Where to go on; `None` at the end. Pages of another generation do not belong together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The generation they belong to.
    pub generation: u64,
}

/// One record of the control state, as it rests: keys are wrapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its key.
    pub key: String,
    /// Its content, as JSON.
    pub record: String,
}

/// An instance that serves this control state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Names this run of it.
    pub id: String,
    /// Where it takes calls.
    pub address: String,
    /// Its program's version.
    pub version: String,
    /// The generation that it serves; 0 while it has none.
    pub generation: u64,
    /// Since it last said so, in milliseconds.
    pub age_ms: u64,
}

/// The result of `instances.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instances {
    /// The instances, by id.
    pub instances: Vec<Instance>,
    /// The generation of the store.
    pub generation: u64,
}

/// A role and its grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// Its name.
    pub role: String,
    /// Each grant as operators write it.
    pub grants: Vec<String>,
    /// True if every engine has the role and nobody can change it.
    pub built_in: bool,
}

/// The result of `roles.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// The roles, by name.
    pub roles: Vec<Role>,
    /// Where to go on; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of every method that changes a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleChanged {
    /// The role as it is now; `None` once it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The generation of the change.
    pub generation: u64,
}

/// Which roles a principal has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// A DNS name, a `spiffe://` URI, or `cn:` and a common name.
    pub principal: String,
    /// Its roles, by name; one that is not there grants nothing.
    pub roles: Vec<String>,
}

/// The result of `principals.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principals {
    /// The principals that have a role, common names first, then DNS names, then SPIFFE IDs, each
    /// by name.
    pub principals: Vec<Principal>,
    /// Where to go on; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of every method that changes the roles of a principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalChanged {
    /// The principal as it is now; `None` once it has no role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
    /// The generation of the change.
    pub generation: u64,
}

/// The result of every method on the root key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootState {
    /// When the store was sealed, in seconds since 1970-01-01 UTC; `None`: it is not sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_unix_s: Option<u64>,
    /// True if the root key authenticated what is said of root keys and of the seal. Otherwise
    /// anyone who can write to the store can have made it.
    #[serde(default)]
    pub verified: bool,
    /// Why it is not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified_reason: Option<String>,
    /// The active root key, then the incoming one. Empty: the store has none.
    pub roots: Vec<RootKeyState>,
    /// The providers that the engine has, by name.
    pub providers: Vec<RootProvider>,
    /// Number of the slot that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The generation of the change, or the store's when the server worked.
    pub generation: u64,
}

/// A root key and its slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootKeyState {
    /// Commits to the root key: 32 hexadecimal digits.
    pub id: String,
    /// `active` or `incoming`.
    pub state: String,
    /// When it was made, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// Its wrapped copies, by number.
    pub slots: Vec<RootSlotState>,
}

/// A wrapped copy of a root key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootSlotState {
    /// Its number.
    pub number: u32,
    /// Name of its provider.
    pub provider: String,
    /// Kind of the provider.
    pub kind: String,
    /// Settings of the provider that tell where its key is.
    pub fields: std::collections::BTreeMap<String, String>,
    /// When it was made, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// When it was last unwrapped and found right, in seconds since 1970-01-01 UTC.
    pub verified_unix_s: u64,
    /// True if it was unwrapped for this request and is right; `None`: it was not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwraps: Option<bool>,
    /// Why it did not unwrap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A provider that can have a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootProvider {
    /// Its name in the configuration.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Its settings that tell where its key is.
    pub fields: std::collections::BTreeMap<String, String>,
}

/// The result of `principals.check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// True if the engine lets the request pass in its mode.
    pub permitted: bool,
    /// The role that grants it. Absent if none does, or the engine does not read roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The mask through which values are shown, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// The missing permission, in the words of the principal's own error. Mode "observe" can let
    /// the request pass all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The engine's `access.mode`: "enforce", "observe" or "off".
    pub mode: String,
    /// The generation of the answer.
    pub generation: u64,
}

maps!(
    Apps,
    AppChanged,
    Checked,
    Collections,
    CollectionChanged,
    Instances,
    PrincipalChanged,
    Principals,
    PublicKeys,
    Records,
    RoleChanged,
    Roles,
    RootState
);
