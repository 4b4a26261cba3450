//! Params of the token methods without a document.

use super::CallOptions;
use super::declare::{
    BytesValue, Own, Parameter, Parameters, Source, TextValue, Writer, field, operations, own,
    params, rows,
};
use super::rule::{
    CONTEXT, CURSOR, ENTRIES, FLAG, NAME, NUMBER, OBJECTS, Param, Part, ROWS, SECONDS_OR_NIL,
    SUBJECT, TAG, TOKENS, VALUE,
};
use crate::call_error::CallError;
use crate::method::{Method, Methods};
use crate::reading::Params;

params! {
    /// A call on the tokens of a collection, without a document.
    #[derive(Clone, Debug, PartialEq, Eq)]
    TokensCall<'a> {
        /// The app and collection.
        map: TokenMap<'a> = part;
        /// The operation on them.
        ask: TokensOperation<&'a str, &'a [u8]> = operation;
    }
}

params! {
    /// The tokens or objects of one collection, and the options of a call on them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    TokenMap<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// Its collection; the same alphabet.
        collection: &'a str = required(NAME);
        /// Options of the call.
        options: CallOptions<'a> = options;
    }
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

operations! {
    /// An operation of a [`TokensCall`]. Lists of tokens hold 1 to 1,000 of 1 to 1,024 bytes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    TokensOperation<Text: TextValue, Bytes: BytesValue> {
        /// Returns the metadata of these tokens, without their values.
        Get = TokensGet {
            /// The tokens.
            tokens: Vec<Text> = required(TOKENS);
        },
        /// The token of a value, where equal values have equal tokens.
        Find(search: TokenSearch<Text, Bytes>) = TokensFind,
        /// A page of the collection's tokens.
        List(listing: Listing<Text>) = TokensList,
        /// Removes these for good.
        Delete = TokensDelete {
            /// The tokens.
            tokens: Vec<Text> = required(TOKENS);
        },
        /// Sets when these expire.
        Expire = TokensExpire {
            /// Which.
            tokens: Vec<Text> = required(TOKENS);
            /// In seconds from now, 0 to 3,155,760,000; `None`: never.
            expires_s: Option<u64> = required(SECONDS_OR_NIL);
        },
        /// Takes out of use what expired at least `older_s` seconds ago.
        Archive(sweep: Sweep<Text>) = TokensArchive,
        /// Removes for good what was archived at least `older_s` seconds ago.
        Prune(sweep: Sweep<Text>) = TokensPrune,
    }
}

params! {
    /// The value whose token `tokens.find` returns.
    #[derive(Clone, Copy, Default, PartialEq, Eq)]
    TokenSearch<Text: TextValue, Bytes: BytesValue> {
        /// One MessagePack value, at most 65,536 bytes.
        value: Bytes = required(VALUE);
        /// The context it was tokenized under, 0 to 4,096 bytes.
        context: Bytes = default(CONTEXT "empty");
        /// Name of the data subject it was tokenized for, 1 to 256 bytes.
        subject: Option<Text> = optional(SUBJECT "none");
    }
}

params! {
    /// Which tokens `tokens.list` gives, or which objects `objects.list`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Listing<Text: TextValue> {
        /// Only those with this tag.
        tag: Option<Text> = optional(TAG "any");
        /// Only those that expired before this, in seconds since 1970-01-01 UTC.
        expired_before: Option<u64> = optional(NUMBER "expired or not");
        /// Only what was archived; what was not, otherwise.
        archived: bool = default(FLAG "false");
        /// The `next` of the page before.
        after: Option<Text> = optional(CURSOR "the beginning");
        /// Most tokens on the page, 1 to 1,000, or objects, 1 to 500; `None` is 100.
        limit: Option<u32> = optional(OBJECTS "100" in ObjectsList | ENTRIES "100");
    }
}

params! {
    /// One bounded step of a walk that archives or prunes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Sweep<Text: TextValue> {
        /// How long ago at least, in seconds; `None` is 0 for `tokens.archive` and 30 days for
        /// `tokens.prune`.
        older_s: Option<u64> = optional(NUMBER "0" as "expired_s" in TokensArchive ObjectsArchive
            | NUMBER "2592000" as "archived_s" in TokensPrune ObjectsPrune);
        /// Only count.
        dry_run: bool = default(FLAG "false");
        /// The `next` of the step before.
        after: Option<Text> = optional(CURSOR "the beginning");
        /// Rows looked at, at most, 1 to 10,000; `None` is 1,000.
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
