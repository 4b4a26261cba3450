//! The params of the document methods, and the options of every request on data.

use super::declare::{
    BytesValue, Own, Parameter, Parameters, Source, TextValue, Writer, field, own, params, rows,
};
use super::masking::Masking;
use super::rule::{
    CONTEXT, CONTEXTS, DEADLINE, DOCUMENT, ENCAPSULATIONS, ENVELOPE, EXPIRY, IDEMPOTENCY_KEY, NAME,
    NUMBER, OUTSIDE_OF_READING, PATHS, Param, Part, REASON, ROLE, Rule, SUBJECT, TAGS, TRACEPARENT,
};
use super::{
    Contexts, Encapsulation, Encoding, Format, KeyScope, OnError, Outside, Suite, Unbound,
    Unmatched,
};
use crate::invalid_request::InvalidRequest;
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
    CommonParams<'a> {
        /// Deadline of the request, in milliseconds, 1 to 3,600,000.
        deadline_ms: Option<u32> = optional(DEADLINE "the server's" not AppsPublicKeys);
        /// The request fails with `conflict` if the server's generation is older.
        min_generation: Option<u64> = optional(NUMBER "0");
        /// Why the client makes the request, for a later audit: 1 to 256 bytes without control
        /// characters. A role can require a reason.
        reason: Option<&'a str> = optional(REASON "none");
        /// The client's span, as a W3C `traceparent` of at most 256 bytes. An engine that records
        /// traces makes it the parent of the engine's span. The engine ignores an invalid `traceparent`.
        traceparent: Option<&'a str> = optional(TRACEPARENT "none" not AppsPublicKeys);
    }
}

params! {
    /// The params of a document request. `W` has the parameters of the method: [`Writing`] or
    /// [`Reading`] of envelopes, [`TokenizeOptions`], the [`TokenLookupScope`] of `detokenize`, or
    /// [`Masking`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    DocumentParams<'a, W: Parameters> checked by has_one_kind_of_contexts {
        /// The app of the keys or tokens. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The document: one MessagePack value. The scan has found its extent; its content has not
        /// been checked.
        payload: &'a [u8] = required(DOCUMENT);
        /// Paths of the fields to process; `None` for every leaf, envelope or token. 1 to 64 paths
        /// of 1 to 1,024 bytes.
        select: Option<Vec<&'a str>> = optional(PATHS "every leaf" in Encrypt Tokenize
            | PATHS "every envelope" in Decrypt Rewrap | PATHS "every token" in Detokenize);
        /// The effect of a path that matches nothing.
        unmatched: Unmatched = default(UNMATCHED "\"report\"" not Mask);
        /// The parameters of the method.
        writing: W = part;
        /// Separate encapsulations of the envelopes to open: at most 32.
        encapsulations: Vec<&'a str> = default(ENCAPSULATIONS "none" in Decrypt Rewrap);
        /// The context to which envelopes and tokens are bound, 0 to 4,096 bytes. An absent and an
        /// empty context are the same.
        context: &'a [u8] = default(CONTEXT "empty" not Mask);
        /// A context for each item of the document instead of one for all.
        contexts: Option<Contexts<'a>> = optional(CONTEXTS "none" not Mask);
        /// The effect of one invalid field.
        on_error: OnError = default(ON_ERROR "\"fail\"");
        /// Options of the request.
        options: CommonParams<'a> = options;
    }
}

params! {
    /// The parameters of new envelopes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Writing<Text: TextValue> {
        /// The suite of the key that seals; `None` means the default of the app. Envelopes name the
        /// key that opens them.
        suite: Option<Suite> = optional(SUITE "the app's");
        /// The scope of an ephemeral key.
        key_scope: KeyScope = default(KEY_SCOPE "\"request\"");
        /// The format; `None` means the default of the app.
        format: Option<Format> = optional(FORMAT "the app's");
        /// The data role that Evervault strings carry. 1 to 20 of `a-z 0-9 -`.
        role: Option<Text> = optional(ROLE "none" in Encrypt);
        /// The encoding of the envelopes.
        encoding: Encoding = default(ENCODING "\"text\"");
        /// The position of the encapsulation, if the suite has one.
        encapsulation: Encapsulation = default(ENCAPSULATION "\"inline\"");
        /// How a `rewrap` with a context handles values without a context.
        unbound: Unbound = default(UNBOUND "\"refuse\"" in Rewrap);
        /// How a `rewrap` handles values that were sealed outside.
        outside: Outside = default(OUTSIDE "\"accept\"" in Rewrap);
    }
}

params! {
    /// The parameters of opened envelopes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Reading {
        /// How values that were sealed outside are handled: [`Outside::Accept`] or
        /// [`Outside::Refuse`].
        outside: Outside = default(OUTSIDE_OF_READING "\"accept\"");
    }
}

params! {
    /// The parameters of `tokenize`. The collection determines the kind and format of the tokens.
    #[derive(Clone, Default, PartialEq, Eq)]
    TokenizeOptions<Text: TextValue, Bytes: BytesValue> {
        /// The collection of the tokens. `[A-Za-z0-9._-]`, 1 to 64 bytes; required.
        collection: Text = required(NAME);
        /// Cleartext labels of each new token, by which tokens can be listed. At most 16 labels of
        /// 1 to 64 bytes of visible ASCII.
        tags: Vec<Text> = default(TAGS "none");
        /// Time until new tokens expire, in seconds from now, 1 to 3,155,760,000; `None` means the
        /// default of the collection.
        expires_s: Option<u64> = optional(EXPIRY "the collection's");
        /// A repeated request with this key, field and value gets the token of the first request. 1
        /// to 64 bytes.
        idempotency_key: Option<Bytes> = optional(IDEMPOTENCY_KEY "none");
        /// Name of the data subject whom the document is about, 1 to 256 bytes. Equal values of two
        /// subjects have different tokens.
        subject: Option<Text> = optional(SUBJECT "none");
    }
}

params! {
    /// The collection in which `detokenize` looks up tokens.
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

impl CommonParams<'_> {
    /// Returns these options with another deadline.
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
pub type Encrypt<'a> = DocumentParams<'a, Writing<&'a str>>;
/// The params of `decrypt`.
pub type Decrypt<'a> = DocumentParams<'a, Reading>;
/// The params of `rewrap`.
pub type Rewrap<'a> = DocumentParams<'a, Writing<&'a str>>;
/// The params of `tokenize`.
pub type Tokenize<'a> = DocumentParams<'a, TokenizeOptions<&'a str, &'a [u8]>>;
/// The params of `detokenize`.
pub type Detokenize<'a> = DocumentParams<'a, TokenLookupScope<'a>>;
/// The params of `mask`. The method has neither `select` nor `context`, since its rules select the
/// fields.
pub type Mask<'a> = DocumentParams<'a, Masking<'a>>;

impl<'a, W: Default> DocumentParams<'a, W> {
    /// Creates a request on the whole `payload`, one MessagePack value, with the defaults.
    pub fn new(app: &'a str, payload: &'a [u8]) -> Self {
        Self {
            app,
            payload,
            select: None,
            unmatched: Unmatched::default(),
            writing: W::default(),
            encapsulations: Vec::new(),
            context: &[],
            contexts: None,
            on_error: OnError::default(),
            options: CommonParams::default(),
        }
    }
}

/// Checks that a request has either one context for all fields or one for each item.
fn has_one_kind_of_contexts<W>(params: &DocumentParams<'_, W>) -> Result<(), InvalidRequest> {
    if params.contexts.is_some() && !params.context.is_empty() {
        return Err(InvalidRequest::BreaksRule {
            key: "contexts",
            rule: "absent if context is given",
        });
    }
    Ok(())
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
