//! Kinds of values that are recognized by their form. The whole string must match.
//!
//! Detection is a heuristic. Values with check digits are rarely mistaken; values without check
//! digits must pass strict checks. A text that contains a card number among other words is not a
//! card number.

mod card;
mod email;
mod iban;
mod ip_address;
mod national_id;
mod phone;
mod secret;

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

pub use card::{check_digit, luhn};
pub use iban::iban_check_digits;
pub use phone::calling_code_digits;

use crate::limits::{KIND_BYTES_MAX, SECRET_BYTES_MAX};

/// A kind of value that a string can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A payment card number: 13 to 19 digits with spaces or hyphens between them, and a valid Luhn
    /// sum.
    Card,
    /// An e-mail address.
    Email,
    /// An international bank account number, ISO 13616, with a valid modulo-97 checksum.
    Iban,
    /// A telephone number in international or North American form.
    Phone,
    /// A national id of one of 19 countries, with check characters or in a strict form.
    NationalId,
    /// An IPv4 or IPv6 address.
    IpAddress,
    /// A private key in PEM, a JSON web token, or an access key with the prefix of a known service.
    Secret,
}

impl Kind {
    /// All kinds, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Card,
        Self::Email,
        Self::Iban,
        Self::Phone,
        Self::NationalId,
        Self::IpAddress,
        Self::Secret,
    ];

    /// Returns the name as written in rules.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Email => "email",
            Self::Iban => "iban",
            Self::Phone => "phone",
            Self::NationalId => "national_id",
            Self::IpAddress => "ip_address",
            Self::Secret => "secret",
        }
    }

    /// Returns the length of the longest string that is checked for this kind.
    #[must_use]
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Secret => SECRET_BYTES_MAX,
            Self::Card
            | Self::Email
            | Self::Iban
            | Self::Phone
            | Self::NationalId
            | Self::IpAddress => KIND_BYTES_MAX,
        }
    }

    /// Returns true if the whole string has the form of this kind.
    #[must_use]
    pub fn knows(self, text: &str) -> bool {
        if text.len() > self.bytes_max() {
            return false;
        }

        match self {
            Self::Card => card::is_card(text.as_bytes()),
            Self::Email => email::is_email(text),
            Self::Iban => iban::is_iban(text.as_bytes()),
            Self::Phone => phone::is_phone(text.as_bytes()),
            Self::NationalId => national_id::is_national_id(text.as_bytes()),
            Self::IpAddress => ip_address::is_ip_address(text),
            Self::Secret => secret::is_secret(text.as_bytes()),
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
        let names = Self::ALL
            .map(|kind| format!("`{}`", kind.name()))
            .join(", ");
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("`{name}` is not a kind: write one of {names}"))
    }
}

/// Extracts the digits of a text that has only single separators from `between` between digits.
/// Returns `None` for any other text.
fn digits<const N: usize>(text: &[u8], between: &[u8]) -> Option<([u8; N], usize)> {
    let mut digits = [0; N];
    let mut len = 0;
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
