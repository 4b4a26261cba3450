//! Params of the methods on documents, and the options of every request on data.

use super::declare::{
    BytesValue, Own, Parameter, Parameters, Source, TextValue, Writer, field, own, params, rows,
};
use super::masking::Masking;
use super::rule::{
    CONTEXT, DEADLINE, DOCUMENT, ENCAPSULATIONS, ENVELOPE, EXPIRY, IDEMPOTENCY_KEY, NAME, NUMBER,
    OUTSIDE_OF_READING, PATHS, Param, Part, REASON, ROLE, Rule, SUBJECT, TAGS, TRACEPARENT,
};
use super::{
    Encapsulation, Encoding, Format, KeyScope, OnError, Outside, Suite, Unbound, Unmatched,
};
use crate::call_error::CallError;
use crate::method::{Method, Methods};
use crate::reading::Params;

const SUITE: Rule = Suite::RULE;
const KEY_SCOPE: Rule = KeyScope::RULE;
const FORMAT: Rule = Format::RULE;
const ENCODING: Rule = Encoding::RULE;
const ENCAPSULATION: Rule = Encapsulation::RULE;
const ON_ERROR: Rule = OnError::RULE;
const UNMATCHED: Rule = Unmatched::RULE;
const UNBOUND: Rule = Unbound::RULE;
const OUTSIDE: Rule = Outside::RULE;

params! {
    /// The options of a request on data.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    CallOptions<'a> {
        /// Stop after this long, in milliseconds, 1 to 3,600,000.
        deadline_ms: Option<u32> = optional(DEADLINE "the server's" not AppsPublicKeys);
        /// Refuse with `conflict` if the server's generation is older.
        min_generation: Option<u64> = optional(NUMBER "0");
        /// Why the call is made, for who looks at it later: 1 to 256 bytes without control
        /// characters. A role may demand it.
        reason: Option<&'a str> = optional(REASON "none");
        /// The caller's span, as a W3C `traceparent` of at most 256 bytes: an engine that keeps
        /// traces puts its own beneath. One that is not valid is as good as none.
        traceparent: Option<&'a str> = optional(TRACEPARENT "none" not AppsPublicKeys);
    }
}

params! {
    /// The params of a call on a document. `W` is what its method asks for besides: [`Writing`] of
    /// envelopes, [`Reading`] of envelopes, [`TokenizeOptions`] of tokens, [`TokenLookupScope`]
    /// which collection tokens are looked up, or [`Masking`] by which rules.
    #[derive(Clone, Debug, PartialEq, Eq)]
    DocumentCall<'a, W: Parameters> {
        /// The app whose keys open and seal, or whose tokens they are. `[A-Za-z0-9._-]`, 1 to 64
        /// bytes.
        app: &'a str = required(NAME);
        /// The document: one MessagePack value. Its content has not been checked, and its extent
        /// by the scan alone.
        payload: &'a [u8] = required(DOCUMENT);
        /// Paths of what to work on; `None` for every leaf, envelope or token. 1 to 64 paths of 1
        /// to 1,024 bytes.
        select: Option<Vec<&'a str>> = optional(PATHS "every leaf" in Encrypt Tokenize
            | PATHS "every envelope" in Decrypt Rewrap | PATHS "every token" in Detokenize);
        /// Effect of a path that matches nothing.
        unmatched: Unmatched = default(UNMATCHED "\"report\"" not Mask);
        /// Parameters of the method's own.
        writing: W = part;
        /// Encapsulations of envelopes to open that have them apart: at most 32.
        encapsulations: Vec<&'a str> = default(ENCAPSULATIONS "none" in Decrypt Rewrap);
        /// Bytes that envelopes and tokens are bound to, 0 to 4,096; absent and empty are the same.
        context: &'a [u8] = default(CONTEXT "empty" not Mask);
        /// Effect of one bad field.
        on_error: OnError = default(ON_ERROR "\"fail\"");
        /// Options of the request.
        options: CallOptions<'a> = options;
    }
}

params! {
    /// How envelopes are written.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Writing<Text: TextValue> {
        /// Which of the app's keys seals; `None` is the app's. Those that open are named by the
        /// envelopes.
        suite: Option<Suite> = optional(SUITE "the app's");
        /// How far one ephemeral key reaches.
        key_scope: KeyScope = default(KEY_SCOPE "\"request\"");
        /// The format; `None` is the app's.
        format: Option<Format> = optional(FORMAT "the app's");
        /// The data role that Evervault strings carry. 1 to 20 of `a-z 0-9 -`.
        role: Option<Text> = optional(ROLE "none" in Encrypt);
        /// String or binary envelopes.
        encoding: Encoding = default(ENCODING "\"text\"");
        /// Where the encapsulation is, if the suite has one.
        encapsulation: Encapsulation = default(ENCAPSULATION "\"inline\"");
        /// Handling of values without a context, in a `rewrap` that names one.
        unbound: Unbound = default(UNBOUND "\"refuse\"" in Rewrap);
        /// Handling of values that were sealed outside, in a `rewrap`.
        outside: Outside = default(OUTSIDE "\"accept\"" in Rewrap);
    }
}

params! {
    /// Which envelopes are opened.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Reading {
        /// Handling of values that were sealed outside: [`Outside::Accept`] or [`Outside::Refuse`].
        outside: Outside = default(OUTSIDE_OF_READING "\"accept\"");
    }
}

params! {
    /// How `tokenize` makes tokens. Their kind and format are the collection's.
    #[derive(Clone, Default, PartialEq, Eq)]
    TokenizeOptions<Text: TextValue, Bytes: BytesValue> {
        /// Where they go. `[A-Za-z0-9._-]`, 1 to 64 bytes; required.
        collection: Text = required(NAME);
        /// In the clear beside each new token, to list by. At most 16 of 1 to 64 bytes of visible
        /// ASCII.
        tags: Vec<Text> = default(TAGS "none");
        /// When new tokens expire, in seconds from now, 1 to 3,155,760,000; `None` is the
        /// collection's.
        expires_s: Option<u64> = optional(EXPIRY "the collection's");
        /// A repeated request with this key, field and value gets the token of the first one. 1 to
        /// 64 bytes.
        idempotency_key: Option<Bytes> = optional(IDEMPOTENCY_KEY "none");
        /// Name of the data subject whom the document is about, 1 to 256 bytes. Equal values of two
        /// subjects have different tokens.
        subject: Option<Text> = optional(SUBJECT "none");
    }
}

params! {
    /// Where `detokenize` looks tokens up.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    TokenLookupScope<'a> {
        /// The collection. `[A-Za-z0-9._-]`, 1 to 64 bytes; required.
        collection: &'a str = required(NAME);
    }
}

params! {
    /// The params of `inspect`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Inspect<'a> {
        /// The envelope to describe.
        envelope: Envelope<'a> = required(ENVELOPE);
    }
}

impl CallOptions<'_> {
    /// These options with another deadline.
    #[must_use]
    pub fn with_deadline(self, deadline_ms: u32) -> Self {
        let deadline_ms = Some(deadline_ms);
        Self {
            deadline_ms,
            ..self
        }
    }
}

/// The params of `encrypt`.
pub type Encrypt<'a> = DocumentCall<'a, Writing<&'a str>>;
/// The params of `decrypt`.
pub type Decrypt<'a> = DocumentCall<'a, Reading>;
/// The params of `rewrap`.
pub type Rewrap<'a> = DocumentCall<'a, Writing<&'a str>>;
/// The params of `tokenize`.
pub type Tokenize<'a> = DocumentCall<'a, TokenizeOptions<&'a str, &'a [u8]>>;
/// The params of `detokenize`.
pub type Detokenize<'a> = DocumentCall<'a, TokenLookupScope<'a>>;
/// The params of `mask`. It takes neither `select` nor `context`: its rules say which fields.
pub type Mask<'a> = DocumentCall<'a, Masking<'a>>;

impl<'a, W: Default> DocumentCall<'a, W> {
    /// A call on all of `payload`, which is one MessagePack value, with the defaults.
    pub fn new(app: &'a str, payload: &'a [u8]) -> Self {
        Self {
            app,
            payload,
            select: None,
            unmatched: Unmatched::default(),
            writing: W::default(),
            encapsulations: Vec::new(),
            context: &[],
            on_error: OnError::default(),
            options: CallOptions::default(),
        }
    }
}

/// Omits the name of the subject.
impl<Text: std::fmt::Debug, Bytes> std::fmt::Debug for TokenizeOptions<Text, Bytes> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenizeOptions")
            .field("collection", &self.collection)
            .field("tags", &self.tags)
            .field("expires_s", &self.expires_s)
            .field("subject", &self.subject.is_some())
            .finish_non_exhaustive()
    }
}

/// An envelope in either encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope<'a> {
    /// As a string.
    Text(&'a str),
    /// As binary.
    Binary(&'a [u8]),
}
