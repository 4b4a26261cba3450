//! Kinds of values that are known by their look: a whole string, not a part of one.
//!
//! A detector never proves anything. What has a check digit is rarely taken for something else; what has none is looked
//! at closely. A text that holds a card number among other words is no card number here.

mod card;
mod email;
mod iban;
mod national_id;
mod phone;

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

pub(crate) use card::check_digit;
#[cfg(test)]
pub(crate) use card::luhn;
pub(crate) use phone::calling_code_digits;

use crate::limits::KIND_BYTES_MAX;

/// What a string looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A payment card number: 13 to 19 digits, spaces or hyphens between them, Luhn's sum comes out.
    Card,
    /// An e-mail address.
    Email,
    /// An international bank account number, ISO 13616: the remainder by 97 comes out.
    Iban,
    /// A telephone number in international form, or in that of North America.
    Phone,
    /// A number of one person: US SSN, UK NINO, Spanish DNI and NIE, French NIR, Italian codice fiscale, Brazilian CPF.
    NationalId,
}

impl Kind {
    /// All, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Card, Self::Email, Self::Iban, Self::Phone, Self::NationalId];

    /// As rules write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Email => "email",
            Self::Iban => "iban",
            Self::Phone => "phone",
            Self::NationalId => "national_id",
        }
    }

    /// Whether a string as a whole looks like it.
    #[must_use]
    pub fn knows(self, text: &str) -> bool {
        if text.len() > KIND_BYTES_MAX {
            return false;
        }
        match self {
            Self::Card => card::is_card(text.as_bytes()),
            Self::Email => email::is_email(text),
            Self::Iban => iban::is_iban(text.as_bytes()),
            Self::Phone => phone::is_phone(text.as_bytes()),
            Self::NationalId => national_id::is_national_id(text.as_bytes()),
        }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Self::ALL.map(|kind| format!("`{}`", kind.name())).join(", ");
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("`{name}` is no kind: write one of {names}"))
    }
}

/// The digits of a text that has, beside them, only single separators of `between`, neither first nor last.
fn digits<const N: usize>(text: &[u8], between: &[u8]) -> Option<([u8; N], usize)> {
    let (mut digits, mut len) = ([0; N], 0);
    let mut was_digit = false;
    for byte in text {
        let is_digit = byte.is_ascii_digit();
        if is_digit {
            *digits.get_mut(len)? = *byte;
            len += 1;
        } else if !was_digit || !between.contains(byte) {
            return None;
        }
        was_digit = is_digit;
    }
    was_digit.then_some((digits, len))
}

#[cfg(test)]
mod tests;
