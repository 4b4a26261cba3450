//! Every bound of this crate.

/// Longest text of a function.
pub const FUNCTION_BYTES_MAX: usize = 1_024;

/// Longest text within a function: a replacement, a domain, a subject, a list's name.
pub const TEXT_BYTES_MAX: usize = 256;

/// Longest rules file.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// Most rules. Those with paths are bounded further, by the steps of all paths together:
/// [`sealwire_payload::Selection::ranked`].
pub const RULES_MAX: usize = 1_000;

/// Most lists of one's own.
pub const LISTS_MAX: usize = 32;

/// Most entries of a list.
pub const LIST_ENTRIES_MAX: usize = 100_000;

/// Longest entry of a list.
pub const LIST_ENTRY_BYTES_MAX: usize = 256;

/// Longest string or binary that a keyed function takes; hashing one takes about a millisecond.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Longest string that `email` takes: RFC 5321's 64 before the sign, 255 behind it.
pub const EMAIL_BYTES_MAX: usize = 320;

/// Longest string that `card`, `phone`, dates and numbers take, separators included.
pub const SHORT_BYTES_MAX: usize = 64;

/// Longest string that `fpe` takes, separators included.
pub const FPE_BYTES_MAX: usize = 128;

/// Longest string that is looked at for kinds.
pub const KIND_BYTES_MAX: usize = 320;

/// Furthest from the first byte of a map that a subject is looked for.
pub const SUBJECT_BYTES_MAX: usize = 64 << 10;
