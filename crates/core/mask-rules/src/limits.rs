//! The limits of this crate.

/// Maximum length of a function's text.
pub const FUNCTION_BYTES_MAX: usize = 1_024;

/// Maximum length of a text within a function: a replacement, a domain, a subject, or a list's
/// name.
pub const TEXT_BYTES_MAX: usize = 256;

/// Maximum size of a rules file.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// Maximum number of rules. For rules with paths, the total number of path steps is also bounded:
/// [`sealwire_payload::Selection::ranked`].
pub const RULES_MAX: usize = 1_000;

/// Maximum number of custom lists, equal to the limit of one request.
pub const LISTS_MAX: usize = 16;

/// Maximum number of entries of a list, equal to the limit for all lists of one request.
pub const LIST_ENTRIES_MAX: usize = 10_000;

/// Maximum length of a list entry.
pub const LIST_ENTRY_BYTES_MAX: usize = 256;

/// Maximum length of a string or binary value for a keyed function. Hashing that many bytes takes
/// about a millisecond.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Maximum length of a string for `email`. RFC 5321 allows 64 bytes before the `@` and 255 after
/// it.
pub const EMAIL_BYTES_MAX: usize = 320;

/// Maximum length of a string for `card`, `phone`, dates and numbers, including separators.
pub const SHORT_BYTES_MAX: usize = 64;

/// Maximum length of a string for `fpe`, including separators.
pub const FPE_BYTES_MAX: usize = 128;

/// Maximum length of a string that is checked for kinds.
pub const KIND_BYTES_MAX: usize = 320;

/// Maximum length of a string that is checked for kind `secret`. PEM text of a 16,384-bit RSA key
/// has about 13,000 bytes.
pub const SECRET_BYTES_MAX: usize = 16 << 10;

/// Maximum distance from the first byte of a map within which a subject is searched for.
pub const SUBJECT_BYTES_MAX: usize = 64 << 10;
