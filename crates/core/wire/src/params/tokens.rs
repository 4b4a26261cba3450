//! The params of the token methods without a document.

use super::CommonParams;
use super::declare::{
    BytesValue, Own, Parameter, Parameters, Source, TextValue, Writer, field, operations, own,
    params, rows,
};
use super::rule::{
    CONTEXT, CURSOR, ENTRIES, FLAG, NAME, NUMBER, OBJECTS, Param, Part, ROWS, SECONDS_OR_NIL,
    SUBJECT, TAG, TOKENS, VALUE,
};
use crate::invalid_request::InvalidRequest;
use crate::method::{Method, Methods};
use crate::reading::Params;

params! {
    /// A request on the tokens of a collection, without a document.
    #[derive(Clone, Debug, PartialEq, Eq)]
    TokensRequest<'a> {
        /// The app and collection.
        map: TokenMap<'a> = part;
        /// The operation on the tokens.
        operation: TokensOperation<&'a str, &'a [u8]> = operation;
    }
}

params! {
    /// The collection of a request on tokens or objects, and the options of the request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    TokenMap<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The collection of the app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        collection: &'a str = required(NAME);
        /// Options of the request.
        options: CommonParams<'a> = options;
    }
}

impl<'a> TokenMap<'a> {
    /// Names a collection, with the default options.
    pub fn new(app: &'a str, collection: &'a str) -> Self {
        Self {
            app,
            collection,
            ..Self::default()
        }
    }
}

operations! {
    /// An operation of a [`TokensRequest`]. Lists of tokens hold 1 to 1,000 of 1 to 1,024 bytes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    TokensOperation<Text: TextValue, Bytes: BytesValue> {
        /// Returns the metadata of tokens, without their values.
        Get = TokensGet {
            /// The tokens.
            tokens: Vec<Text> = required(TOKENS);
        },
        /// Returns the token of a value, in a collection where equal values have equal tokens.
        Find(search: TokenSearch<Text, Bytes>) = TokensFind,
        /// Returns a page of the collection's tokens.
        List(listing: Listing<Text>) = TokensList,
        /// Removes tokens for good.
        Delete = TokensDelete {
            /// The tokens.
            tokens: Vec<Text> = required(TOKENS);
        },
        /// Sets when tokens expire.
        Expire = TokensExpire {
            /// The tokens.
            tokens: Vec<Text> = required(TOKENS);
            /// Time until they expire, in seconds from now, 0 to 3,155,760,000; `None`: never.
            expires_s: Option<u64> = required(SECONDS_OR_NIL);
        },
        /// Archives the tokens that expired at least `older_s` seconds ago.
        Archive(sweep: Sweep<Text>) = TokensArchive,
        /// Removes for good the tokens that were archived at least `older_s` seconds ago.
        Prune(sweep: Sweep<Text>) = TokensPrune,
    }
}

params! {
    /// The params of `tokens.find`: the value whose token is returned.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    TokenSearch<Text: TextValue, Bytes: BytesValue> {
        /// The value in MessagePack, at most 65,536 bytes.
        value: Bytes = required(VALUE);
        /// The context under which the value was tokenized, 0 to 4,096 bytes.
        context: Bytes = default(CONTEXT "empty");
        /// Name of the data subject for whom the value was tokenized, 1 to 256 bytes.
        subject: Option<Text> = optional(SUBJECT "none");
    }
}

params! {
    /// The filter and page of `tokens.list` and `objects.list`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Listing<Text: TextValue> {
        /// Only entries with this tag.
        tag: Option<Text> = optional(TAG "any");
        /// Only entries that expired before this time, in seconds since 1970-01-01 UTC.
        expired_before: Option<u64> = optional(NUMBER "expired or not");
        /// True for archived entries only; false for entries that are not archived.
        archived: bool = default(FLAG "false");
        /// The `next` of the previous page.
        after: Option<Text> = optional(CURSOR "the beginning");
        /// Most tokens on the page, 1 to 1,000, or objects, 1 to 500; `None` is 100.
        limit: Option<u32> = optional(OBJECTS "100" in ObjectsList | ENTRIES "100");
    }
}

params! {
    /// A bounded step of archiving or pruning.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Sweep<Text: TextValue> {
        /// Least time since expiry or archiving, in seconds; `None` is 0 for `tokens.archive` and
        /// 30 days for `tokens.prune`.
        older_s: Option<u64> = optional(NUMBER "0" as "expired_s" in TokensArchive ObjectsArchive
            | NUMBER "2592000" as "archived_s" in TokensPrune ObjectsPrune);
        /// Only count the rows, without a change.
        dry_run: bool = default(FLAG "false");
        /// The `next` of the previous step.
        after: Option<Text> = optional(CURSOR "the beginning");
        /// Most rows to examine, 1 to 10,000; `None` is 1,000.
        limit: Option<u32> = optional(ROWS "1000");
    }
}

/// Omits the value, and the name of the subject.
impl<Text, Bytes> std::fmt::Debug for TokenSearch<Text, Bytes> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSearch")
            .field("subject", &self.subject.is_some())
            .finish_non_exhaustive()
    }
}
