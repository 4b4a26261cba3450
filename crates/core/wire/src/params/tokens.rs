//! Params of the token methods.

use crate::method::Method;

/// How `tokenize` makes tokens. Their kind and format are the collection's.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TokenizeOptions<'a> {
    /// Where they go. `[A-Za-z0-9._-]`, 1 to 64 bytes; required.
    pub collection: &'a str,
    /// In the clear beside each new token, to list by. At most 16 of 1 to 64 bytes of visible
    /// ASCII.
    pub tags: Vec<&'a str>,
    /// When new tokens expire, in seconds from now, 1 to 3,155,760,000; `None` is the collection's.
    pub expires_s: Option<u64>,
    /// A repeated request with this key, field and value gets the token of the first one. 1 to 64
    /// bytes.
    pub idempotency_key: Option<&'a [u8]>,
    /// Name of the data subject whom the document is about, 1 to 256 bytes. Equal values of two
    /// subjects have different tokens.
    pub subject: Option<&'a str>,
}

/// Omits the name of the subject.
impl std::fmt::Debug for TokenizeOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenizeOptions")
            .field("collection", &self.collection)
            .field("tags", &self.tags)
            .field("expires_s", &self.expires_s)
            .field("subject", &self.subject.is_some())
            .finish_non_exhaustive()
    }
}

/// Where `detokenize` looks tokens up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenLookupScope<'a> {
    /// The collection. `[A-Za-z0-9._-]`, 1 to 64 bytes; required.
    pub collection: &'a str,
}

/// A call on the tokens of a collection, without a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokensCall<'a> {
    /// The app and collection.
    pub map: TokenMap<'a>,
    /// The operation on them.
    pub ask: TokensOperation<'a>,
}

/// The tokens of one collection, and the params that every call on them has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenMap<'a> {
    /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// Its collection; the same alphabet.
    pub collection: &'a str,
    /// Stop after this long, in milliseconds, 1 to 3,600,000.
    pub deadline_ms: Option<u32>,
    /// Refuse with `conflict` if the server's generation is older.
    pub min_generation: Option<u64>,
    /// Why the call is made, as in [`DocumentCall::reason`](crate::DocumentCall::reason).
    pub reason: Option<&'a str>,
    /// The caller's span, as in [`DocumentCall::traceparent`](crate::DocumentCall::traceparent).
    pub traceparent: Option<&'a str>,
}

impl<'a> TokenMap<'a> {
    /// A collection, with the defaults.
    pub fn new(app: &'a str, collection: &'a str) -> Self {
        Self {
            app,
            collection,
            ..Self::default()
        }
    }
}

impl TokensOperation<'_> {
    /// Which method asks it.
    pub const fn method(&self) -> Method {
        match self {
            Self::Get(_) => Method::TokensGet,
            Self::Find(_) => Method::TokensFind,
            Self::List(_) => Method::TokensList,
            Self::Delete(_) => Method::TokensDelete,
            Self::Expire { .. } => Method::TokensExpire,
            Self::Archive(_) => Method::TokensArchive,
            Self::Prune(_) => Method::TokensPrune,
        }
    }
}

/// An operation of a [`TokensCall`]. Lists of tokens hold 1 to 1,000 of 1 to 1,024 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokensOperation<'a> {
    /// Returns the metadata of these tokens, without their values.
    Get(Vec<&'a str>),
    /// The token of a value, where equal values have equal tokens.
    Find(TokenSearch<'a>),
    /// A page of the collection's tokens.
    List(Listing<'a>),
    /// Removes these for good.
    Delete(Vec<&'a str>),
    /// Sets when these expire.
    Expire {
        /// Which.
        tokens: Vec<&'a str>,
        /// In seconds from now, 0 to 3,155,760,000; `None`: never.
        expires_s: Option<u64>,
    },
    /// Takes out of use what expired at least `older_s` seconds ago.
    Archive(Sweep<'a>),
    /// Removes for good what was archived at least `older_s` seconds ago.
    Prune(Sweep<'a>),
}

/// The value whose token `tokens.find` returns.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenSearch<'a> {
    /// One MessagePack value, at most 65,536 bytes.
    pub value: &'a [u8],
    /// The context it was tokenized under, 0 to 4,096 bytes.
    pub context: &'a [u8],
    /// Name of the data subject it was tokenized for, 1 to 256 bytes.
    pub subject: Option<&'a str>,
}

/// Omits the value, and the name of the subject.
impl std::fmt::Debug for TokenSearch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSearch")
            .field("subject", &self.subject.is_some())
            .finish_non_exhaustive()
    }
}

/// Which tokens `tokens.list` gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing<'a> {
    /// Only those with this tag.
    pub tag: Option<&'a str>,
    /// Only those that expired before this, in seconds since 1970-01-01 UTC.
    pub expired_before: Option<u64>,
    /// Only what was archived; what was not, otherwise.
    pub archived: bool,
    /// The `next` of the page before.
    pub after: Option<&'a str>,
    /// Tokens on the page at most, 1 to 1,000; `None` is 100.
    pub limit: Option<u32>,
}

/// One bounded step of a walk that archives or prunes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep<'a> {
    /// How long ago at least, in seconds; `None` is 0 for `tokens.archive` and 30 days for
    /// `tokens.prune`.
    pub older_s: Option<u64>,
    /// Only count.
    pub dry_run: bool,
    /// The `next` of the step before.
    pub after: Option<&'a str>,
    /// Rows looked at, at most, 1 to 10,000; `None` is 1,000.
    pub limit: Option<u32>,
}
