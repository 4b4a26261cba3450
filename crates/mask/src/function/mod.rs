//! A masking function as written in rules, requests and roles: `partial(first=1, last=4)`. The syntax is the same
//! everywhere. Functions hold no keys.
//!
//! A function is a name, and in parentheses its named arguments. Values are integers, numbers, `true` and `false`, bare
//! words, or "quoted strings" with `\"`, `\\`, `
//! `, `\r`, `\t` and `\u{1f600}`. Any other text is an error with its column.

mod arguments;
mod error;
mod print;
mod read;
mod scan;

pub use error::FunctionError;
#[cfg(test)]
pub(crate) use read::NAMES;

pub(crate) use scan::Literal;

/// A masking function, parsed from its text. `Display` prints the canonical text. The function holds no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub(crate) recipe: FunctionKind,
    /// The domain, if given. Only for keyed functions.
    domain: Option<Box<str>>,
    /// The map key of the subject: a value in the same map that the masking depends on.
    subject: Option<Box<str>>,
}

/// The kind of function, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FunctionKind {
    Keep,
    Redact { with: Option<Box<str>> },
    Fixed(Literal),
    Null,
    Partial { first: u16, last: u16, with: char },
    Email { keeps_domain: bool },
    Phone { last: u16 },
    Card { first: u16, last: u16, is_valid: bool },
    Hash { length: u16 },
    Pseudonym { list: Box<str> },
    Fpe(Alphabet),
    ShiftBy { days: i32 },
    ShiftWithin { days: i32 },
    Step { step: u64 },
    Truncate { keep: u16 },
    Coarsen(Period),
    NoisePercent { millionths: u32 },
    NoiseBy { by: u64 },
}

/// The precision to which dates are generalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Period {
    Month,
    Year,
}

/// A set of characters that format-preserving encryption permutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alphabet {
    Digits,
    Hex,
    Lower,
    Upper,
    Letters,
    AlphanumericLower,
    AlphanumericUpper,
    Alphanumeric,
}

impl Alphabet {
    pub(crate) const ALL: [Self; 8] = [
        Self::Digits,
        Self::Hex,
        Self::Lower,
        Self::Upper,
        Self::Letters,
        Self::AlphanumericLower,
        Self::AlphanumericUpper,
        Self::Alphanumeric,
    ];

    pub(crate) const fn name(self) -> &'static str {
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
    pub(crate) const fn chars(self) -> &'static [u8] {
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
    /// Returns the function's name, such as `partial`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.recipe {
            FunctionKind::Keep => "keep",
            FunctionKind::Redact { .. } => "redact",
            FunctionKind::Fixed(_) => "fixed",
            FunctionKind::Null => "null",
            FunctionKind::Partial { .. } => "partial",
            FunctionKind::Email { .. } => "email",
            FunctionKind::Phone { .. } => "phone",
            FunctionKind::Card { .. } => "card",
            FunctionKind::Hash { .. } => "hash",
            FunctionKind::Pseudonym { .. } => "pseudonym",
            FunctionKind::Fpe(_) => "fpe",
            FunctionKind::ShiftBy { .. } | FunctionKind::ShiftWithin { .. } => "date_shift",
            FunctionKind::Step { .. } | FunctionKind::Truncate { .. } | FunctionKind::Coarsen(_) => "generalize",
            FunctionKind::NoisePercent { .. } | FunctionKind::NoiseBy { .. } => "noise",
        }
    }

    /// Returns true if the function needs the app's secret.
    #[must_use]
    pub const fn is_keyed(&self) -> bool {
        match self.recipe {
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
        matches!(self.recipe, FunctionKind::Keep)
    }

    /// Returns the given domain, or else the function's name. In one domain, equal values have equal masked values.
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
        match &self.recipe {
            FunctionKind::Pseudonym { list } => Some(list),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
