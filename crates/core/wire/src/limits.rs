//! All limits of the wire, each with the calculation that led to it.
//!
//! An operator can set the [`Limits`]. The constants are part of the contract and the same in every
//! installation. Limits on time and on concurrent requests belong to admission, in the server.

/// Limits of a [`crate::Scanner`]. Sizes are in bytes, the other limits are counts. A message is
/// rejected as soon as it announces too much, before it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest message, including its header. Default 64 MiB: a document of 2 million fields of 16
    /// bytes with its keys.
    pub message_bytes_max: u64,
    /// Deepest nesting, counting the message's own array as 1, so a payload can nest 3 levels less.
    /// Default 64: real documents stay below 20, and JSON parsers stop between 64 and 512.
    pub depth_max: u32,
    /// Most values in one message: scalars, map keys and containers, including the message itself.
    /// Default 4,000,000: 64 MiB at 16 bytes each.
    pub elements_max: u64,
    /// Longest rejected message whose bytes are read and dropped to keep the connection. Default
    /// 256 MiB: about two seconds of a gigabit line, four times the longest accepted message.
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

/// Longest method name, in bytes. A longer name is unknown, and the scanner does not read it.
pub const METHOD_BYTES_MAX: usize = 64;
/// Longest name of an app or a collection, in bytes. Every byte is one of `[A-Za-z0-9._-]`.
pub const APP_BYTES_MAX: usize = 64;
/// Most paths in `select`.
pub const SELECT_PATHS_MAX: usize = 64;
/// Longest path in `select`, in bytes.
pub const SELECT_PATH_BYTES_MAX: usize = 1_024;
/// Longest `context`, in bytes. The context is hashed once per field, so the limit also bounds this
/// work.
pub const CONTEXT_BYTES_MAX: usize = 4_096;
/// Most `contexts` of a request that lists them. A server reads all of them before it admits the request.
pub const CONTEXTS_MAX: usize = 10_000;
/// Most bytes of all listed `contexts` of a request: 26 bytes per context at the greatest number.
pub const CONTEXTS_BYTES_MAX: usize = 262_144;
/// Contexts with this prefix belong to the engine. A request that names one is invalid.
pub const CONTEXT_RESERVED: &str = "sealwire/";
/// Longest `reason`, in bytes.
pub const REASON_BYTES_MAX: usize = 256;
/// Longest `traceparent`, in bytes. The first version of the W3C has 55 bytes; later versions can
/// be longer.
pub const TRACEPARENT_BYTES_MAX: usize = 256;
/// Longest name of a principal, in bytes: the greatest length of a SPIFFE ID.
pub const PRINCIPAL_BYTES_MAX: usize = 2_048;
/// Longest `after` that names a principal or a principal's record, in bytes.
pub const LONG_CURSOR_BYTES_MAX: usize = 2_112;
/// Most slots of a root key.
pub(crate) const SLOTS_MAX: usize = 8;
/// Most grants of a role.
pub const GRANTS_MAX: usize = 64;
/// Longest grant, in bytes of text: enough for a thousand names of apps.
pub const GRANT_BYTES_MAX: usize = 65_536;
/// Longest `deadline_ms`, in milliseconds: one hour.
pub const DEADLINE_MS_MAX: u32 = 3_600_000;
/// Longest data role, in bytes.
pub const ROLE_BYTES_MAX: usize = 20;
/// Most entries in the `errors` of a response. `errors_omitted` counts the rest.
pub const FIELD_ERRORS_MAX: usize = 1_000;
/// Longest `path` in the `errors` of a response, in bytes. A path repeats every key above its
/// field. Without this limit, one long key above many invalid fields would make the response far
/// larger than the request.
pub const FIELD_PATH_BYTES_MAX: usize = 1_024;
/// Most rules of a `mask`. The rules are read before the request is admitted.
pub const MASK_RULES_MAX: usize = 256;
/// Longest text in a rule of a `mask`, in bytes: a path, a column, a kind or a function.
pub const MASK_BYTES_MAX: usize = 1_024;
/// Most lists of a `mask`.
pub const MASK_LISTS_MAX: usize = 16;
/// Most texts in all lists of a `mask`.
pub const MASK_ENTRIES_MAX: usize = 10_000;
/// Longest text in a list of a `mask`, in bytes.
pub const MASK_ENTRY_BYTES_MAX: usize = 256;
/// Most bytes in all lists of a `mask`: 26 bytes per text at the greatest number of texts.
pub const MASK_LISTS_BYTES_MAX: usize = 262_144;
/// Most `encapsulations` of a request. Each encapsulation that a field refers to costs one
/// decapsulation.
pub const ENCAPSULATIONS_MAX: usize = 32;
/// Longest text of an encapsulation, in bytes. Every encapsulation has this length.
pub const ENCAPSULATION_BYTES_MAX: usize = 1_551;
/// Most tags of a token.
pub const TAGS_MAX: usize = 16;
/// Longest tag, in bytes of visible ASCII.
pub const TAG_BYTES_MAX: usize = 64;
/// Longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 64;
/// Farthest expiry, in seconds from now: 100 years. A token without expiry never expires.
pub const EXPIRES_S_MAX: u64 = 3_155_760_000;
/// Most tokens in one `tokens.*` request and in one response.
pub const TOKENS_MAX: usize = 1_000;
/// Longest token in a `tokens.*` request, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1_024;
/// Longest value that `tokens.find` looks up, in bytes of MessagePack. The value is read before the
/// request is admitted.
pub const VALUE_BYTES_MAX: usize = 65_536;
/// Longest `after`, in bytes.
pub const CURSOR_BYTES_MAX: usize = 128;
/// Most rows that one `tokens.archive` or `tokens.prune` examines.
pub const SWEEP_ROWS_MAX: usize = 10_000;
/// Longest private key that `apps.import` accepts, in bytes. A key in PEM takes about 300.
pub const PRIVATE_KEY_BYTES_MAX: usize = 65_536;
/// Longest time between `apps.delete` and the removal, in seconds: a year.
pub const DELAY_S_MAX: u64 = 31_536_000;
/// Default time between `apps.delete` and the removal, in seconds: a week.
pub const DELAY_S_DEFAULT: u64 = 604_800;
/// Longest epoch of an app's `epoch` key scope, in milliseconds.
pub const EPOCH_MS_MAX: u32 = 15_000;
/// Most objects in an `objects.*` request or result.
pub const OBJECTS_MAX: usize = 500;
/// Longest name of a data subject, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 256;
/// Most clauses of an `objects.query`.
pub const CLAUSES_MAX: usize = 8;
/// Most properties of a collection.
pub const PROPERTIES_MAX: usize = 64;
/// Longest `description` of a property, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 256;
/// Most prefix lengths of a property.
pub const PREFIXES_MAX: usize = 4;
/// Longest name of the contract, in bytes. A name from a peer is truncated to this length before it
/// is repeated.
pub(crate) const NAME_BYTES_MAX: usize = 64;
