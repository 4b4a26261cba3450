//! The results of the methods on tokens. Times are seconds since 1970-01-01 UTC.

use sealwire_msgpack::Malformed;
use serde::{Deserialize, Serialize};

use super::maps;

/// The metadata of a token, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The token.
    pub token: String,
    /// When it was made.
    pub created: u64,
    /// When it expires or has expired; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// When it was archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<u64>,
    /// Its tags, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// The result of `tokens.get` and `tokens.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// In the order asked; `None` where there is no such token.
    pub tokens: Vec<Option<Token>>,
    /// Cursor of the next page of a list; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of `tokens.find`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The value's token; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of `tokens.delete`, `tokens.expire`, `tokens.archive` and `tokens.prune`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// How many tokens it concerned.
    pub count: u64,
    /// Of named tokens: the positions of those that are not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<u32>,
    /// Cursor of the next step of a walk; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

maps!(Tokens, Found, Counted);
