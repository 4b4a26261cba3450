//! The results of the methods on the rows of key versions.

use sealwire_msgpack::Malformed;
use serde::{Deserialize, Serialize};

use super::maps;

/// The result of `keys.census`: a page of a count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// The row counts of this page, by key version and collection. Add up the counts of all pages.
    pub counts: Vec<CensusCount>,
    /// The app's key versions, on the first page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<CensusKey>,
    /// True if no engine could write under an older key version when the count started.
    pub proven: bool,
    /// Cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The number of rows of a collection under a key version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusCount {
    /// `objects`, `tokens` or `subjects`.
    pub kind: String,
    /// The collection. Empty if it was deleted and its rows are not removed yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub collection: String,
    /// Number of the collection.
    pub number: u32,
    /// The key version, as requests name it.
    pub key: String,
    /// Number of rows in every state: live, expired and archived.
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
    /// The version number among the app's keys of this kind, from 1.
    pub version: u32,
    /// `active`, `disabled` or `deleting`.
    pub state: String,
    /// True if this is the newest version of its kind. The newest version of the token key seals
    /// rows.
    pub newest: bool,
}

/// The result of `keys.rewrap`: one page of the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewrappedRows {
    /// Number of rewrapped rows.
    pub rewrapped: u64,
    /// Number of rows that were not rewrapped because another request changed or removed them.
    pub changed: u64,
    /// Number of rows that do not open, and that are unchanged.
    pub unopened: u64,
    /// Number of objects in an old format that does not authenticate the sealer. Such
    /// objects are unchanged; `collections.migrate` handles them.
    #[serde(default)]
    pub unauthenticated: u64,
    /// The collection of this page; empty if the page has no rows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub collection: String,
    /// Cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of `collections.migrate`: one page of the objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratedObjects {
    /// Number of objects whose records were migrated to the authenticated format, or would be
    /// without `dry_run`.
    pub migrated: u64,
    /// Number of objects that another request changed or removed in the meantime.
    pub changed: u64,
    /// Ids of objects in an old format that does not authenticate the sealer. Such objects
    /// are migrated with `accept_unauthenticated` and unchanged otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unauthenticated: Vec<String>,
    /// Ids of objects in an old format that do not open, and that are unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unopened: Vec<String>,
    /// Ids of objects in an old format that do not open because, according to their row, the key of
    /// their subject was erased.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erased: Vec<String>,
    /// True if the engine reads only authenticated records of the collection.
    pub finished: bool,
    /// Cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

maps!(Census, RewrappedRows, MigratedObjects);
