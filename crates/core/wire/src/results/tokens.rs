//! The results of the methods on tokens. Times are seconds since 1970-01-01 UTC.

use serde::{Deserialize, Serialize};

use super::maps;

/// The metadata of a token, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Token {
    /// The token.
    pub token: String,
    /// When the token was created.
    pub created: u64,
    /// The time of expiry, which can be in the past; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// The time of archiving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<u64>,
    /// The tags, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// The result of `tokens.get` and `tokens.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Tokens {
    /// The tokens in the order of the request; `None` for a token that does not exist.
    pub tokens: Vec<Option<Token>>,
    /// Cursor of the next page of a list; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of `tokens.find`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Found {
    /// The token of the value; `None` if the value has no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of `tokens.delete`, `tokens.expire`, `tokens.archive` and `tokens.prune`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Counted {
    /// Number of affected tokens.
    pub count: u64,
    /// Positions of named tokens that do not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<u32>,
    /// Cursor of the next page; `None` at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

maps!(Tokens, Found, Counted);
