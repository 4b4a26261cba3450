//! A masking function as written in rules, requests and roles: `partial(first=1, last=4)`. The
//! syntax is the same everywhere. Functions contain no keys.
//!
//! A function is a name, followed by its named arguments in parentheses. Values are integers,
//! numbers, `true` and `false`, bare words, or "quoted strings" with `\"`, `\\`, `\n`, `\r`, `\t`
//! and `\u{1f600}`. Any other text is an error with its column.

mod arguments;
mod error;
mod print;
mod read;
mod scan;

use sealwire_payload::ExtraWork;

pub use error::FunctionError;
pub use read::NAMES as FUNCTION_NAMES;
pub use scan::Literal;

/// Work of format-preserving encryption of a value, in fields, in addition to the work of a
/// function of medium cost.
const FPE_WORK: u64 = 15;
/// The same additional work for `mac`. On average one encryption in four keeps the bits that must
/// stay.
const MAC_WORK: u64 = 4 * FPE_WORK;
/// Additional work per byte of a function that examines characters, in bytes.
const CHARACTER_WORK: u64 = 6;

/// Returns a lower bound of the [work](Function::work) of the function with this text on `fields`
/// fields with `bytes` bytes in all. The text can be invalid.
#[must_use]
pub fn work_of_text(text: &str, fields: u64, bytes: u64) -> ExtraWork {
    let name = text.trim_start();
    let work = if name.starts_with("mac") {
        MAC_WORK
    } else if starts_with_any(name, &["fpe", "card", "phone", "iban"]) {
        FPE_WORK
    } else {
        0
    };

    let fields = fields.saturating_mul(work);
    let bytes = if starts_with_any(name, &["partial", "generalize"]) {
        bytes.saturating_mul(CHARACTER_WORK)
    } else {
        0
    };

    ExtraWork { fields, bytes }
}

fn starts_with_any(text: &str, names: &[&str]) -> bool {
    names.iter().any(|name| text.starts_with(name))
}

/// The text that `redact` gives for a string, unless the function names another.
pub const REDACTED: &str = "[redacted]";

/// A masking function, parsed from its text. `Display` prints the canonical text. Functions contain
/// no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    kind: FunctionKind,
    /// The domain, if given. Only for keyed functions.
    domain: Option<Box<str>>,
    /// The map key of the subject: a value in the same map that the masking depends on.
    subject: Option<Box<str>>,
}

/// The kind of function, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// Keeps the value.
    Keep,
    /// Writes a constant of the value's type.
    Redact {
        /// The text in place of a string, unless it is the usual one.
        with: Option<Box<str>>,
    },
    /// Writes a constant.
    Fixed(Literal),
    /// Writes nil.
    Null,
    /// Shows the first and last characters.
    Partial {
        /// Number of characters shown at the start.
        first: u16,
        /// Number of characters shown at the end.
        last: u16,
        /// The character in place of the others.
        with: char,
    },
    /// Replaces an e-mail address.
    Email {
        /// True if the domain stays.
        keeps_domain: bool,
    },
    /// Replaces a telephone number.
    Phone {
        /// Number of last digits that are kept.
        last: u16,
    },
    /// Replaces a card number.
    Card {
        /// Number of first digits that are kept.
        first: u16,
        /// Number of last digits that are kept.
        last: u16,
        /// True if the result passes Luhn's check; otherwise it fails the check.
        is_valid: bool,
    },
    /// Replaces an international bank account number.
    Iban,
    /// Replaces a hardware address.
    Mac,
    /// Replaces the letters and digits of a postal code.
    PostalCode,
    /// Writes hexadecimal digits.
    Hash {
        /// Number of digits.
        length: u16,
    },
    /// Chooses an entry of a list.
    Pseudonym {
        /// The list's name.
        list: Box<str>,
    },
    /// Permutes strings of an alphabet.
    Fpe(Alphabet),
    /// Shifts a date by this many days.
    ShiftBy {
        /// Number of days.
        days: i32,
    },
    /// Shifts a date by a keyed number of days.
    ShiftWithin {
        /// The most days to either side.
        days: i32,
    },
    /// Rounds a number down to a multiple.
    Step {
        /// The step, in units of the number.
        step: u64,
    },
    /// Keeps the first characters.
    Truncate {
        /// Number of characters.
        keep: u16,
    },
    /// Rounds a date down.
    Coarsen(Period),
    /// Changes a number by a keyed part of it.
    NoisePercent {
        /// The greatest change, in millionths of the number.
        millionths: u32,
        /// The bounds of the result.
        bounds: NumberBounds,
    },
    /// Changes a number by a keyed amount.
    NoiseBy {
        /// The greatest change.
        by: u64,
        /// The bounds of the result.
        bounds: NumberBounds,
    },
}

/// The smallest and the largest number that a mask can return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumberBounds {
    /// The smallest number, if bounded.
    pub min: Option<i64>,
    /// The largest number, if bounded.
    pub max: Option<i64>,
}

/// The precision to which dates are generalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// The first of the month.
    Month,
    /// The first of January.
    Year,
}

/// A set of characters that format-preserving encryption permutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// `0` to `9`.
    Digits,
    /// `0` to `9` and `a` to `f`.
    Hex,
    /// `a` to `z`.
    Lower,
    /// `A` to `Z`.
    Upper,
    /// Letters of both cases.
    Letters,
    /// Digits and lower-case letters.
    AlphanumericLower,
    /// Digits and upper-case letters.
    AlphanumericUpper,
    /// Digits and letters of both cases.
    Alphanumeric,
}

impl Alphabet {
    /// All alphabets.
    pub const ALL: [Self; 8] = [
        Self::Digits,
        Self::Hex,
        Self::Lower,
        Self::Upper,
        Self::Letters,
        Self::AlphanumericLower,
        Self::AlphanumericUpper,
        Self::Alphanumeric,
    ];

    /// Returns the name as written in functions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Digits => "digits",
            Self::Hex => "hex",
            Self::Lower => "lower",
            Self::Upper => "upper",
            Self::Letters => "letters",
            Self::AlphanumericLower => "alphanumeric_lower",
            Self::AlphanumericUpper => "alphanumeric_upper",
            Self::Alphanumeric => "alphanumeric",
        }
    }

    /// Returns the characters in the order of their numerals.
    #[must_use]
    pub const fn chars(self) -> &'static [u8] {
        const ALL: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        match self {
            Self::Digits => ALL.split_at(10).0,
            Self::Hex => ALL.split_at(16).0,
            Self::Lower => ALL.split_at(36).0.split_at(10).1,
            Self::Upper => ALL.split_at(36).1,
            Self::Letters => ALL.split_at(10).1,
            Self::AlphanumericLower => ALL.split_at(36).0,
            Self::AlphanumericUpper => b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
            Self::Alphanumeric => ALL,
        }
    }
}

impl Function {
    /// Returns the work on a value of `bytes` bytes, in addition to the work of a function of
    /// medium cost.
    #[must_use]
    pub const fn work(&self, bytes: usize) -> ExtraWork {
        match self.kind {
            FunctionKind::Fpe(_)
            | FunctionKind::Card { .. }
            | FunctionKind::Phone { .. }
            | FunctionKind::Iban => ExtraWork {
                fields: FPE_WORK,
                bytes: 0,
            },
            FunctionKind::Mac => ExtraWork {
                fields: MAC_WORK,
                bytes: 0,
            },
            FunctionKind::Partial { .. } | FunctionKind::Truncate { .. } => ExtraWork {
                fields: 0,
                bytes: (bytes as u64).saturating_mul(CHARACTER_WORK),
            },
            _ => ExtraWork {
                fields: 0,
                bytes: 0,
            },
        }
    }

    /// Returns the function's name, such as `partial`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.kind {
            FunctionKind::Keep => "keep",
            FunctionKind::Redact { .. } => "redact",
            FunctionKind::Fixed(_) => "fixed",
            FunctionKind::Null => "null",
            FunctionKind::Partial { .. } => "partial",
            FunctionKind::Email { .. } => "email",
            FunctionKind::Phone { .. } => "phone",
            FunctionKind::Card { .. } => "card",
            FunctionKind::Iban => "iban",
            FunctionKind::Mac => "mac",
            FunctionKind::PostalCode => "postal_code",
            FunctionKind::Hash { .. } => "hash",
            FunctionKind::Pseudonym { .. } => "pseudonym",
            FunctionKind::Fpe(_) => "fpe",
            FunctionKind::ShiftBy { .. } | FunctionKind::ShiftWithin { .. } => "date_shift",
            FunctionKind::Step { .. }
            | FunctionKind::Truncate { .. }
            | FunctionKind::Coarsen(_) => "generalize",
            FunctionKind::NoisePercent { .. } | FunctionKind::NoiseBy { .. } => "noise",
        }
    }

    /// Returns the kind of function, with its settings.
    #[must_use]
    pub const fn kind(&self) -> &FunctionKind {
        &self.kind
    }

    /// Returns true if the function needs the app's secret.
    #[must_use]
    pub const fn is_keyed(&self) -> bool {
        match self.kind {
            FunctionKind::Keep
            | FunctionKind::Redact { .. }
            | FunctionKind::Fixed(_)
            | FunctionKind::Null
            | FunctionKind::Partial { .. }
            | FunctionKind::ShiftBy { .. }
            | FunctionKind::Step { .. }
            | FunctionKind::Truncate { .. }
            | FunctionKind::Coarsen(_) => false,
            FunctionKind::Email { .. }
            | FunctionKind::Phone { .. }
            | FunctionKind::Card { .. }
            | FunctionKind::Iban
            | FunctionKind::Mac
            | FunctionKind::PostalCode
            | FunctionKind::Hash { .. }
            | FunctionKind::Pseudonym { .. }
            | FunctionKind::Fpe(_)
            | FunctionKind::ShiftWithin { .. }
            | FunctionKind::NoisePercent { .. }
            | FunctionKind::NoiseBy { .. } => true,
        }
    }

    /// Returns true if the function keeps the field unchanged.
    #[must_use]
    pub const fn is_keep(&self) -> bool {
        matches!(self.kind, FunctionKind::Keep)
    }

    /// Returns the given domain, or else the function's name. In one domain, equal values have
    /// equal masked values.
    #[must_use]
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(self.name())
    }

    /// Returns the map key of the subject: the value in the same map that the masking depends on.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// Returns the name of the list that the function takes entries from.
    #[must_use]
    pub fn list(&self) -> Option<&str> {
        match &self.kind {
            FunctionKind::Pseudonym { list } => Some(list),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
