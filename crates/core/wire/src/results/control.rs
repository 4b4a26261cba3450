//! The results of the control methods. Names are strings, so that an older client can print names
//! that it does not know.

use sealwire_msgpack::Malformed;
use serde::{Deserialize, Serialize};

use super::maps;

/// The public description of an app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct App {
    /// The name of the app.
    pub app: String,
    /// `active`, `disabled` or `deleting`.
    pub state: String,
    /// When the app will be removed, in seconds since 1970-01-01 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_unix_s: Option<u64>,
    /// Default format of requests.
    pub format: String,
    /// How long one ephemeral key serves requests with key scope `epoch`, in milliseconds; 0: such
    /// requests are rejected.
    pub epoch_ms: u32,
    /// Default suite of requests.
    pub write_suite: String,
    /// Suites whose envelopes open, and which requests can name.
    pub read_suites: Vec<String>,
    /// The key versions of the app, oldest first.
    pub keys: Vec<Key>,
    /// The versions of the key that seals the values of the app's tokens, oldest first.
    pub token_keys: Vec<TokenKey>,
}

/// The public description of a key version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The id in envelopes and requests: 10 hexadecimal digits.
    pub id: String,
    /// The suite: `p256`, `secp256k1` or `xaes`.
    pub suite: String,
    /// The version number among the app's keys of this suite, from 1.
    pub version: u32,
    /// `active`, `disabled` or `deleting`.
    pub state: String,
    /// True if the key can seal; false if it only opens.
    pub seals: bool,
    /// True if the public key is published. Clients seal to the key, and engines do not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
    /// When it was created, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// When the key version will be removed, in seconds since 1970-01-01 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_unix_s: Option<u64>,
}

/// The public description of a version of an app's token key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenKey {
    /// The version number, from 1. The newest active version seals.
    pub version: u32,
    /// `active` or `disabled`.
    pub state: String,
    /// When it was created, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// The result of `apps.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apps {
    /// The apps, by name.
    pub apps: Vec<App>,
    /// Cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of every method that changes an app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppChanged {
    /// The app after the change; `None` if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<App>,
    /// The key version that was created or changed. For a token key, its version number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The generation of the change.
    pub generation: u64,
}

/// The result of `apps.public_keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicKeys {
    /// The keys in JSON. The signature is over exactly these bytes.
    pub keys: String,
    /// The signature of `keys`, in base64.
    pub signature: String,
    /// The Ed25519 public key of the signature, in base64. Compare it with a copy from another
    /// channel.
    pub signer: String,
    /// The generation of the keys.
    pub generation: u64,
}

/// The description of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collection {
    /// The app of the collection.
    pub app: String,
    /// The name of the collection.
    pub collection: String,
    /// `random`, `deterministic`, `one_way` or `objects`.
    pub kind: String,
    /// For tokens: `opaque`, `uuid`, `digits`, `card` or `email`. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// For `card`: number of leading digits that tokens keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u8>,
    /// For `card`: number of trailing digits that tokens keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u8>,
    /// For tokens: `collection` or `context`. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scope: String,
    /// For objects: the suite under which older engines sealed objects. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suite: String,
    /// For objects: the records that the engine reads: `all`, `migrating` (all, while an operator
    /// migrates old records) or `authenticated`. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub records: String,
    /// For objects: the properties.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<Property>,
    /// Default time until new tokens expire, in seconds; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// Seconds for which an archived row is kept; `None`: until an operator prunes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_s: Option<u64>,
    /// When it was created, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// A property of a collection of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Property {
    /// The name of the property.
    pub name: String,
    /// The name of the property's type.
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
    /// Cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of every method that changes a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionChanged {
    /// The collection after the change; `None` if it was removed.
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
    /// Cursor of the next page; `None` at the end. Pages of different generations must not be
    /// combined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The generation of the records.
    pub generation: u64,
}

/// A stored record of the control state. Keys are wrapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The key of the record.
    pub key: String,
    /// The content of the record in JSON.
    pub record: String,
}

/// An instance that serves this control state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// The id of this process of the instance.
    pub id: String,
    /// The address on which the instance accepts requests.
    pub address: String,
    /// The version of the program.
    pub version: String,
    /// The generation that the instance serves; 0 before it has loaded one.
    pub generation: u64,
    /// Time since the last report of the instance, in milliseconds.
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
    /// The name of the role.
    pub role: String,
    /// Each grant as operators write it.
    pub grants: Vec<String>,
    /// True if every engine has the role and no administrator can change it.
    pub built_in: bool,
}

/// The result of `roles.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// The roles, by name.
    pub roles: Vec<Role>,
    /// Cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of every method that changes a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleChanged {
    /// The role after the change; `None` if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The generation of the change.
    pub generation: u64,
}

/// A principal and its roles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// A DNS name, a `spiffe://` URI, or `cn:` and a common name.
    pub principal: String,
    /// The roles of the principal, by name. A role that does not exist grants nothing.
    pub roles: Vec<String>,
}

/// The result of `principals.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principals {
    /// The principals that have a role, common names first, then DNS names, then SPIFFE IDs, each
    /// by name.
    pub principals: Vec<Principal>,
    /// Cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of every method that changes the roles of a principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalChanged {
    /// The principal after the change; `None` if it has no role left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
    /// The generation of the change.
    pub generation: u64,
}

/// The result of every method on the root key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootState {
    /// When the store was sealed, in seconds since 1970-01-01 UTC; `None` if the store is not
    /// sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_unix_s: Option<u64>,
    /// True if the root key authenticated the records of root keys and of the seal. Otherwise
    /// anybody with write access to the store can have forged them.
    #[serde(default)]
    pub verified: bool,
    /// The reason why the records are not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified_reason: Option<String>,
    /// The active root key, then the incoming root key. Empty if the store has no root key.
    pub roots: Vec<RootKeyState>,
    /// The engine's providers, by name.
    pub providers: Vec<RootProvider>,
    /// Number of the new slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The generation of the change. For other requests, the store's generation when the server
    /// handled the request.
    pub generation: u64,
}

/// A root key and its slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootKeyState {
    /// A commitment to the root key: 32 hexadecimal digits.
    pub id: String,
    /// `active` or `incoming`.
    pub state: String,
    /// When it was created, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// The wrapped copies of the root key, by number.
    pub slots: Vec<RootSlotState>,
}

/// A wrapped copy of a root key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootSlotState {
    /// The number of the slot.
    pub number: u32,
    /// Name of the slot's provider.
    pub provider: String,
    /// Kind of the provider.
    pub kind: String,
    /// Settings of the provider that locate its key.
    pub fields: std::collections::BTreeMap<String, String>,
    /// When it was created, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// When the slot was last unwrapped with the correct result, in seconds since 1970-01-01 UTC.
    pub verified_unix_s: u64,
    /// True if this request unwrapped the slot with the correct result; `None` if it did not try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwraps: Option<bool>,
    /// The reason why the slot did not unwrap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A provider that can have a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootProvider {
    /// The provider's name in the configuration.
    pub name: String,
    /// The kind of the provider.
    pub kind: String,
    /// The provider's settings that locate its key.
    pub fields: std::collections::BTreeMap<String, String>,
}

/// The result of `principals.check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// True if the engine permits the request in its current mode.
    pub permitted: bool,
    /// The role that grants the permission. Absent if no role does, or the engine does not read
    /// roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The mask that is applied to values, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// The missing permission, in the words of the error that the principal gets. In mode
    /// "observe", the engine can permit the request nevertheless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The engine's `access.mode`: "enforce", "observe" or "off".
    pub mode: String,
    /// The generation of the response.
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
