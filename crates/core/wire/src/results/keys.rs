//! The results of the methods on the rows of key versions.

use sealwire_msgpack::Malformed;
use serde::{Deserialize, Serialize};

use super::maps;

/// The result of `keys.census`: a page of a count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// The rows of this page, by key version and collection. Add up the counts of all pages.
    pub counts: Vec<CensusCount>,
    /// The app's key versions, on the first page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<CensusKey>,
    /// True if no engine could write under an older key version when the count began.
    pub proven: bool,
    /// Where to go on; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The number of rows of a collection under a key version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusCount {
    /// `objects`, `tokens` or `subjects`.
    pub kind: String,
    /// The collection. Empty: it was deleted, and its rows are not removed yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub collection: String,
    /// Number of the collection.
    pub number: u32,
    /// The key version, as requests name it.
    pub key: String,
    /// Rows in every state: live, expired and archived.
    pub rows: u64,
}

/// A key version that can have sealed rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusKey {
    /// The key version, as requests name it.
    pub key: String,
    /// The suite; empty for the token key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suite: String,
    /// Counts the app's versions of this kind from 1.
    pub version: u32,
    /// `active`, `disabled` or `deleting`.
    pub state: String,
    /// True if it is the newest one of its kind. That of the token key seals rows.
    pub newest: bool,
}

/// The result of `keys.rewrap`: a page of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewrappedRows {
    /// Rows that were rewrapped.
    pub rewrapped: u64,
    /// Rows that were changed or removed meanwhile, and so were left alone.
    pub changed: u64,
    /// Rows that do not open. They are as they were.
    pub unopened: u64,
    /// Objects in an old format, which does not prove who sealed them. They are as they were:
    /// `collections.migrate` looks at them.
    #[serde(default)]
    pub unauthenticated: u64,
    /// The collection of this page; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub collection: String,
    /// Where to go on; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of `collections.migrate`: a page of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratedObjects {
    /// Objects whose records are authenticated now, or would be without `dry_run`.
    pub migrated: u64,
    /// Objects that were changed or removed meanwhile.
    pub changed: u64,
    /// Ids of objects in an old format of which nobody can tell who sealed them. With
    /// `accept_unauthenticated` they are migrated; otherwise they are as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unauthenticated: Vec<String>,
    /// Ids of objects in an old format that do not open. They are as they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unopened: Vec<String>,
    /// Ids of objects in an old format whose row says that the key of their subject was erased.
    /// They do not open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erased: Vec<String>,
    /// True if the collection reads authenticated records only.
    pub finished: bool,
    /// Where to go on; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

maps!(Census, RewrappedRows, MigratedObjects);
