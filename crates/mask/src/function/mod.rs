//! A function as it is named in rules, calls and roles: `partial(first=1, last=4)`. One text syntax, no keys.
//!
//! A name, and in parentheses arguments with names: integers, numbers, `true` and `false`, bare words, or "quoted
//! strings" with `\"`, `\\`, `\n`, `\r`, `\t` and `\u{1f600}`. Whatever is not understood is refused with its column.

mod arguments;
mod error;
mod print;
mod read;
mod scan;

pub use error::FunctionError;
#[cfg(test)]
pub(crate) use read::NAMES;

pub(crate) use scan::Literal;

/// What replaces a value. Made from its text, gives it back canonically, knows no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub(crate) recipe: Recipe,
    /// As given. Keyed functions alone.
    domain: Option<Box<str>>,
    /// Key of the value beside it that the masking hangs on.
    subject: Option<Box<str>>,
}

/// What a function does, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recipe {
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

/// What dates are made coarser to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Period {
    Month,
    Year,
}

/// Characters that format-preserving encryption maps onto each other.
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

    /// In the order of their numerals.
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
    /// Its name: `partial`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.recipe {
            Recipe::Keep => "keep",
            Recipe::Redact { .. } => "redact",
            Recipe::Fixed(_) => "fixed",
            Recipe::Null => "null",
            Recipe::Partial { .. } => "partial",
            Recipe::Email { .. } => "email",
            Recipe::Phone { .. } => "phone",
            Recipe::Card { .. } => "card",
            Recipe::Hash { .. } => "hash",
            Recipe::Pseudonym { .. } => "pseudonym",
            Recipe::Fpe(_) => "fpe",
            Recipe::ShiftBy { .. } | Recipe::ShiftWithin { .. } => "date_shift",
            Recipe::Step { .. } | Recipe::Truncate { .. } | Recipe::Coarsen(_) => "generalize",
            Recipe::NoisePercent { .. } | Recipe::NoiseBy { .. } => "noise",
        }
    }

    /// Whether it needs the app's secret.
    #[must_use]
    pub const fn is_keyed(&self) -> bool {
        match self.recipe {
            Recipe::Keep
            | Recipe::Redact { .. }
            | Recipe::Fixed(_)
            | Recipe::Null
            | Recipe::Partial { .. }
            | Recipe::ShiftBy { .. }
            | Recipe::Step { .. }
            | Recipe::Truncate { .. }
            | Recipe::Coarsen(_) => false,
            Recipe::Email { .. }
            | Recipe::Phone { .. }
            | Recipe::Card { .. }
            | Recipe::Hash { .. }
            | Recipe::Pseudonym { .. }
            | Recipe::Fpe(_)
            | Recipe::ShiftWithin { .. }
            | Recipe::NoisePercent { .. }
            | Recipe::NoiseBy { .. } => true,
        }
    }

    /// Whether the field stays as it is.
    #[must_use]
    pub const fn is_keep(&self) -> bool {
        matches!(self.recipe, Recipe::Keep)
    }

    /// Values of one domain mask alike: the one asked for, or else its name.
    #[must_use]
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(self.name())
    }

    /// Key, in the same map, of the value that the masking hangs on.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// The list that it takes entries of.
    #[must_use]
    pub fn list(&self) -> Option<&str> {
        match &self.recipe {
            Recipe::Pseudonym { list } => Some(list),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
