//! Every bound of the wire, in one place, with the sum behind it.
//!
//! [`Limits`] are those an operator may turn; the constants are part of the contract and the same
//! everywhere. Nothing here is about time or about many requests at once: that is admission, and it
//! lives in the server.

/// Limits of a [`crate::Scanner`]. Sizes in bytes, the rest in counts. A message is rejected when
/// it announces too much, not after it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest message, head and all. Default 64 MiB: a document of 2 million fields of 16 bytes
    /// with its keys.
    pub message_bytes_max: u64,
    /// Deepest nesting, counting the message's own array as 1, so a payload may nest 3 less.
    /// Default 64: real documents stay below 20, parsers of JSON stop between 64 and 512.
    pub depth_max: u32,
    /// Most values in one message: scalars, map keys and containers alike, the message itself
    /// included. Default 4,000,000: 64 MiB at 16 bytes each.
    pub elements_max: u64,
    /// Longest refused message whose bytes are read and dropped to keep the connection. Default 256
    /// MiB: about two seconds of a gigabit line, four times the longest accepted message.
    pub discard_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes_max: 64 << 20,
            depth_max: 64,
            elements_max: 4_000_000,
            discard_bytes_max: 256 << 20,
        }
    }
}

/// Longest method name that can be known, in bytes. A longer one is unknown without being read.
pub const METHOD_BYTES_MAX: usize = 64;
/// Longest name of an app or a collection, in bytes, all of `[A-Za-z0-9._-]`.
pub const APP_BYTES_MAX: usize = 64;
/// Most paths in `select`.
pub const SELECT_PATHS_MAX: usize = 64;
/// Longest path in `select`, in bytes.
pub const SELECT_PATH_BYTES_MAX: usize = 1_024;
/// Longest `context`, in bytes. It is hashed once per field, so it also bounds that work.
pub const CONTEXT_BYTES_MAX: usize = 4_096;
/// Contexts that begin so belong to the engine. No request can name one.
pub const CONTEXT_RESERVED: &str = "sealwire/";
/// Longest `reason`, in bytes.
pub const REASON_BYTES_MAX: usize = 256;
/// Longest `traceparent`, in bytes. The W3C's first version has 55; later ones may add to it.
pub const TRACEPARENT_BYTES_MAX: usize = 256;
/// Longest name of a principal, in bytes: that of a SPIFFE ID.
pub const PRINCIPAL_BYTES_MAX: usize = 2_048;
/// Longest `after` that names a principal or a record of one.
pub const LONG_CURSOR_BYTES_MAX: usize = 2_112;
/// Most slots of a root key.
pub(crate) const SLOTS_MAX: usize = 8;
/// Most grants of a role.
pub const GRANTS_MAX: usize = 64;
/// Longest grant, in bytes of text: a thousand names of apps.
pub const GRANT_BYTES_MAX: usize = 65_536;
/// Longest `deadline_ms`: one hour.
pub const DEADLINE_MS_MAX: u32 = 3_600_000;
/// Longest data role.
pub const ROLE_BYTES_MAX: usize = 20;
/// Most entries in a reply's `errors`; the rest are counted in `errors_omitted`.
pub const FIELD_ERRORS_MAX: usize = 1_000;
/// Longest `path` in a reply's `errors`, in bytes. A path repeats every key above its field, so
/// without this bound one long key over many broken fields would multiply into a reply far larger
/// than its request.
pub const FIELD_PATH_BYTES_MAX: usize = 1_024;
/// Most rules of a `mask`. They are read before the call is admitted.
pub const MASK_RULES_MAX: usize = 256;
/// Longest text in a rule of a `mask`, in bytes: a path, a column, a kind or a function.
pub const MASK_BYTES_MAX: usize = 1_024;
/// Most lists of a `mask`.
pub const MASK_LISTS_MAX: usize = 16;
/// Most texts in all lists of a `mask`.
pub const MASK_ENTRIES_MAX: usize = 10_000;
/// Longest text in a list of a `mask`, in bytes.
pub const MASK_ENTRY_BYTES_MAX: usize = 256;
/// Most bytes in all lists of a `mask`: 26 for each of the most texts.
pub const MASK_LISTS_BYTES_MAX: usize = 262_144;
/// Most `encapsulations` of a call. Each one that a field refers to costs an opening key agreement.
pub const ENCAPSULATIONS_MAX: usize = 32;
/// Longest text of an encapsulation, in bytes. All of them have this length.
pub const ENCAPSULATION_BYTES_MAX: usize = 1_551;
/// Most tags of a token.
pub const TAGS_MAX: usize = 16;
/// Longest tag, in bytes of visible ASCII.
pub const TAG_BYTES_MAX: usize = 64;
/// Longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 64;
/// Farthest expiry, in seconds from now: 100 years. A token without one never expires.
pub const EXPIRES_S_MAX: u64 = 3_155_760_000;
/// Most tokens in one `tokens.*` call, and in one answer.
pub const TOKENS_MAX: usize = 1_000;
/// Longest token in a `tokens.*` call, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1_024;
/// Longest value that `tokens.find` looks up, in bytes of MessagePack. It is read before the call
/// is admitted.
pub const VALUE_BYTES_MAX: usize = 65_536;
/// Longest `after`, in bytes.
pub const CURSOR_BYTES_MAX: usize = 128;
/// Most rows that one `tokens.archive` or `tokens.prune` looks at.
pub const SWEEP_ROWS_MAX: usize = 10_000;
/// Longest private key that `apps.import` takes, in bytes. PEM of one takes 300.
pub const PRIVATE_KEY_BYTES_MAX: usize = 65_536;
/// Longest time between `apps.delete` and the removal, in seconds: a year.
pub const DELAY_S_MAX: u64 = 31_536_000;
/// That time where the call names none: a week.
pub const DELAY_S_DEFAULT: u64 = 604_800;
/// Longest epoch of an app's `epoch` key scope, in milliseconds.
pub const EPOCH_MS_MAX: u32 = 15_000;
/// Objects in an `objects.*` call or result.
pub const OBJECTS_MAX: usize = 500;
/// Bytes of the name of a data subject.
pub const SUBJECT_BYTES_MAX: usize = 256;
/// Clauses of an `objects.query`.
pub const CLAUSES_MAX: usize = 8;
/// Properties of a collection.
pub const PROPERTIES_MAX: usize = 64;
/// Bytes of a property's `description`.
pub const DESCRIPTION_BYTES_MAX: usize = 256;
/// Prefix lengths of a property.
pub const PREFIXES_MAX: usize = 4;
/// No name of the contract is longer, and no more of a peer's is repeated.
pub(crate) const NAME_BYTES_MAX: usize = 64;
