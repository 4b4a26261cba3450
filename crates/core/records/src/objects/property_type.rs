//! The types that a property can have.

use std::fmt;

/// The type of a property, which decides which values are valid, how values are compared, and which
/// indexes are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PropertyType {
    /// Text of at most [`VALUE_BYTES_MAX`](crate::objects::VALUE_BYTES_MAX) bytes. Compared byte for byte.
    String,
    /// An integer from -2^63 to 2^64 - 1.
    Integer,
    /// A decimal number of at most 38 digits, as text.
    Decimal,
    /// True or false.
    Boolean,
    /// A date of the Gregorian calendar, `YYYY-MM-DD`.
    Date,
    /// A point in time: RFC 3339 with an offset.
    Timestamp,
    /// Any MessagePack value without extensions.
    Json,
    /// Bytes.
    Blob,
    /// An email address.
    Email,
    /// A phone number with its country code.
    Phone,
    /// A payment card number that passes Luhn.
    Card,
    /// An international bank account number.
    Iban,
    /// A number of an identity document or of a taxpayer, of any country.
    NationalId,
    /// The name of a person.
    Name,
    /// A postal address.
    Address,
    /// An IPv4 or IPv6 address.
    Ip,
}

impl PropertyType {
    /// All types, in the order of the documentation.
    pub const ALL: [Self; 16] = [
        Self::String,
        Self::Integer,
        Self::Decimal,
        Self::Boolean,
        Self::Date,
        Self::Timestamp,
        Self::Json,
        Self::Blob,
        Self::Email,
        Self::Phone,
        Self::Card,
        Self::Iban,
        Self::NationalId,
        Self::Name,
        Self::Address,
        Self::Ip,
    ];

    /// Returns the name used on the wire, in stored schemas and by commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Decimal => "decimal",
            Self::Boolean => "boolean",
            Self::Date => "date",
            Self::Timestamp => "timestamp",
            Self::Json => "json",
            Self::Blob => "blob",
            Self::Email => "email",
            Self::Phone => "phone",
            Self::Card => "card",
            Self::Iban => "iban",
            Self::NationalId => "national_id",
            Self::Name => "name",
            Self::Address => "address",
            Self::Ip => "ip",
        }
    }

    /// Returns the type with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|property_type| property_type.name() == name)
    }

    /// Returns the mask that shows little of a value, in the grammar of `docs/masking.md`.
    ///
    /// The mask works without a key. Types whose values are guessed easily are redacted.
    #[must_use]
    pub const fn default_mask(self) -> &'static str {
        match self {
            Self::Card | Self::Iban => "partial(first=0, last=4)",
            Self::Phone | Self::NationalId => "partial(first=0, last=2)",
            Self::Email | Self::Name => "partial(first=1, last=0)",
            Self::Date | Self::Timestamp => "generalize(date=year)",
            Self::String
            | Self::Integer
            | Self::Decimal
            | Self::Boolean
            | Self::Json
            | Self::Blob
            | Self::Address
            | Self::Ip => "redact",
        }
    }

    /// Returns true if a property of this type can have an index.
    ///
    /// The terms of a boolean would show its value by their counts alone. JSON, blobs and addresses
    /// have no form in which equal values are written alike.
    #[must_use]
    pub const fn can_index(self) -> bool {
        !matches!(
            self,
            Self::Boolean | Self::Json | Self::Blob | Self::Address
        )
    }

    /// Returns true if an index of this type can have prefixes.
    #[must_use]
    pub const fn can_prefix(self) -> bool {
        matches!(
            self,
            Self::String
                | Self::Name
                | Self::Email
                | Self::Phone
                | Self::Card
                | Self::Iban
                | Self::NationalId
        )
    }

    /// Returns true if every property of this type must be encrypted.
    #[must_use]
    pub const fn must_encrypt(self) -> bool {
        matches!(self, Self::Card | Self::Iban | Self::NationalId)
    }
}

impl fmt::Display for PropertyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use sealwire_mask::{Function, Mask, MaskSecret, Value};
    use zeroize::Zeroizing;

    use super::*;
    use crate::objects::check;
    use crate::objects::value::tests::packed;

    #[test]
    fn type_names_are_distinct() {
        for property_type in PropertyType::ALL {
            assert_eq!(
                PropertyType::from_name(property_type.name()),
                Some(property_type)
            );
        }
        for name in ["", "String", "national-id", "text", "bytes"] {
            assert_eq!(PropertyType::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn prefixes_need_an_index() {
        assert!(
            PropertyType::ALL
                .into_iter()
                .all(|of| of.can_index() || !of.can_prefix())
        );
    }

    #[test]
    fn the_contract_lists_every_type_with_its_mask_and_index() {
        let page = include_str!("../../../../../proto/README.md");
        let table = page
            .split("### Property types\n")
            .nth(1)
            .unwrap()
            .split("\n### ")
            .next()
            .unwrap();
        let rows = table
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| {
                let cells: Vec<String> = line
                    .split('|')
                    .map(|cell| cell.trim().replace('`', ""))
                    .collect();
                (
                    cells[1].clone(),
                    cells[4].clone(),
                    !cells[3].starts_with("never"),
                )
            });
        let types = PropertyType::ALL.map(|of| {
            (
                of.name().to_owned(),
                of.default_mask().to_owned(),
                of.can_index(),
            )
        });
        assert!(rows.eq(types), "{table}");
    }

    #[test]
    fn default_masks_fit_their_types() {
        let cases: [(PropertyType, Vec<u8>, Option<&str>); 16] = [
            (
                PropertyType::String,
                packed("internal note"),
                Some("[redacted]"),
            ),
            (PropertyType::Integer, vec![7], None),
            (PropertyType::Decimal, packed("12.50"), Some("[redacted]")),
            (PropertyType::Boolean, vec![0xc3], None),
            (PropertyType::Date, packed("1985-10-26"), Some("1985-01-01")),
            (
                PropertyType::Timestamp,
                packed("1985-10-26T01:21:00+02:00"),
                Some("1985-01-01T00:00:00Z"),
            ),
            (PropertyType::Json, vec![7], None),
            (PropertyType::Blob, vec![0xc4, 1, 7], None),
            (
                PropertyType::Email,
                packed("jane@example.com"),
                Some("j***************"),
            ),
            (
                PropertyType::Phone,
                packed("+49 151 2345678"),
                Some("*************78"),
            ),
            (
                PropertyType::Card,
                packed("4242 4242 4242 4242"),
                Some("************4242"),
            ),
            (
                PropertyType::Iban,
                packed("DE89 3704 0044 0532 0130 00"),
                Some("******************3000"),
            ),
            (
                PropertyType::NationalId,
                packed("078-05-1120"),
                Some("*********20"),
            ),
            (PropertyType::Name, packed("Jane"), Some("J***")),
            (
                PropertyType::Address,
                packed("1 Main Street"),
                Some("[redacted]"),
            ),
            (PropertyType::Ip, packed("192.0.2.1"), Some("[redacted]")),
        ];
        let secret = MaskSecret::new(Zeroizing::new([7; 32]));
        for ((property_type, raw, expected), listed) in cases.into_iter().zip(PropertyType::ALL) {
            assert_eq!(property_type, listed);
            let function: Function = property_type.default_mask().parse().unwrap();
            let stored = check(property_type, &raw).unwrap();
            let mut out = Vec::new();
            let mask = Mask::new(&function, &secret).unwrap();
            mask.apply(Value::read(&stored).unwrap(), None, &mut out)
                .unwrap();
            if let Some(expected) = expected {
                assert_eq!(out, packed(expected), "{property_type}");
            }
            assert_ne!(out, *stored, "{property_type} shows the value");
        }
    }
}
