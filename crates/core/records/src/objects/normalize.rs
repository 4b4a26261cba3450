//! Normalization of values, so that values of one meaning have equal index terms.
//!
//! Terms are stored, so a rule here never changes. Another rule or other Unicode data is another
//! [`NORMALIZATION_VERSION`], and terms of both versions are written until the old ones are gone.
//!
//! Nothing here removes accents, dots or tags: `José` and `Jose`, `a.b@example.com` and
//! `ab@example.com` are different people.

mod prefix;

use std::net::IpAddr;

use icu_casemap::CaseMapperBorrowed;
use icu_normalizer::ComposingNormalizerBorrowed;
use zeroize::Zeroizing;

pub use prefix::normalize_prefix;

use crate::objects::PropertyType;
use crate::objects::value::{EmailParts, is_zero_width, text_of};

/// Version of the rules of [`normalize()`]. Part of the input of every index term.
pub const NORMALIZATION_VERSION: u8 = 1;

/// Returns the bytes that stand for the meaning of a stored value, which [`check`](crate::objects::check)
/// returned.
///
/// Strings, integers and types without an index stand for themselves. Bytes that are not a stored
/// value of this type give an unspecified result, but no panic.
#[must_use]
pub fn normalize(property_type: PropertyType, canonical: &[u8]) -> Zeroizing<Vec<u8>> {
    let Some(text) = text_of(canonical) else {
        return Zeroizing::new(canonical.to_vec());
    };
    let normalized = match property_type {
        PropertyType::Name => normalize_name(text),
        PropertyType::Email => normalize_email(text),
        PropertyType::Phone => normalize_phone(text),
        PropertyType::Decimal => normalize_decimal(text),
        PropertyType::Timestamp => normalize_timestamp(text),
        PropertyType::NationalId => normalize_national_id(text),
        PropertyType::Ip => normalize_ip(text),
        PropertyType::String | PropertyType::Card | PropertyType::Iban | PropertyType::Date => {
            return Zeroizing::new(text.as_bytes().to_vec());
        }
        _ => return Zeroizing::new(canonical.to_vec()),
    };
    Zeroizing::new(normalized.as_bytes().to_vec())
}

/// Returns the Unicode normalization form C.
fn nfc(text: &str) -> Zeroizing<String> {
    Zeroizing::new(
        ComposingNormalizerBorrowed::new_nfc()
            .normalize(text)
            .into_owned(),
    )
}

/// Returns the Unicode normalization form KC.
fn nfkc(text: &str) -> Zeroizing<String> {
    Zeroizing::new(
        ComposingNormalizerBorrowed::new_nfkc()
            .normalize(text)
            .into_owned(),
    )
}

/// Returns the full case folding of Unicode, without the rules of a language.
fn fold(text: &str) -> Zeroizing<String> {
    Zeroizing::new(CaseMapperBorrowed::new().fold_string(text).into_owned())
}

/// Folds compatibility forms and case, removes characters without width, and leaves one space
/// between words.
fn normalize_name(text: &str) -> Zeroizing<String> {
    let visible: Zeroizing<String> =
        Zeroizing::new(text.chars().filter(|char| !is_zero_width(*char)).collect());
    let folded = nfkc(&fold(&nfkc(&visible)));
    let mut out = Zeroizing::new(String::with_capacity(folded.len()));
    for word in folded.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// Folds the case of the part before the `@`, and writes the domain in ASCII.
fn normalize_email(text: &str) -> Zeroizing<String> {
    let Some(EmailParts { local, domain }) = EmailParts::of(text) else {
        return Zeroizing::new(text.to_owned());
    };
    let local = nfc(&fold(&nfc(local)));
    let mut out = Zeroizing::new(String::with_capacity(local.len() + 1 + domain.len()));
    out.push_str(&local);
    out.push('@');
    out.push_str(&domain);
    out
}

/// Keeps the digits behind one `+`.
fn normalize_phone(text: &str) -> Zeroizing<String> {
    let rest = text.strip_prefix("00").unwrap_or(text);
    let mut out = Zeroizing::new(String::with_capacity(1 + rest.len()));
    out.push('+');
    out.extend(rest.chars().filter(char::is_ascii_digit));
    out
}

/// Removes zeros at the end of the fraction, zeros in front, and the sign of zero.
fn normalize_decimal(text: &str) -> Zeroizing<String> {
    let (sign, digits) = text
        .strip_prefix('-')
        .map_or(("", text), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');

    let mut out = Zeroizing::new(String::with_capacity(text.len() + 1));
    if !(whole.is_empty() && fraction.is_empty()) {
        out.push_str(sign);
    }
    out.push_str(if whole.is_empty() { "0" } else { whole });
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// Removes zeros at the end of the fraction.
fn normalize_timestamp(text: &str) -> Zeroizing<String> {
    let Some((seconds, fraction)) = text.strip_suffix('Z').and_then(|text| text.split_once('.'))
    else {
        return Zeroizing::new(text.to_owned());
    };
    let fraction = fraction.trim_end_matches('0');
    let mut out = Zeroizing::new(String::with_capacity(text.len()));
    out.push_str(seconds);
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out.push('Z');
    out
}

/// Keeps letters and digits, in upper case.
fn normalize_national_id(text: &str) -> Zeroizing<String> {
    let folded = nfkc(text);
    let mapper = CaseMapperBorrowed::new();
    let upper: Zeroizing<String> = Zeroizing::new(
        folded
            .chars()
            .map(|char| mapper.simple_uppercase(char))
            .collect(),
    );
    let upper = nfkc(&upper);
    // Only the separators that a value can have: the letters of Unicode grow with every version of
    // Rust.
    Zeroizing::new(
        upper
            .chars()
            .filter(|char| !" .-/".contains(*char))
            .collect(),
    )
}

/// Writes an IPv4 address in an IPv6 address as the IPv4 address.
fn normalize_ip(text: &str) -> Zeroizing<String> {
    let canonical = text
        .parse()
        .map(|address: IpAddr| address.to_canonical().to_string());
    Zeroizing::new(canonical.unwrap_or_else(|_| text.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sealwire_msgpack::write;

    use super::*;
    use crate::objects::check;
    use crate::objects::value::tests::packed;

    pub(super) fn of(property_type: PropertyType, text: &str) -> String {
        let stored =
            check(property_type, &packed(text)).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        String::from_utf8(normalize(property_type, &stored).to_vec()).unwrap()
    }

    #[test]
    fn values_of_one_meaning_are_equal() {
        use PropertyType::*;
        let cases: &[(PropertyType, &[&str], &str)] = &[
            (Name, &["Straße", "STRASSE", "strasse"], "strasse"),
            (Name, &["ﬁ", "fi", "FI"], "fi"),
            (Name, &["ſ", "s", "S"], "s"),
            (Name, &["Ⅷ", "viii"], "viii"),
            (Name, &["Ｊａｎｅ", "jane", "JANE"], "jane"),
            (Name, &["José", "Jose\u{301}", "JOSÉ"], "josé"),
            (
                Name,
                &[
                    "Ma\u{200B}ry",
                    "Mary\u{FEFF}",
                    "M\u{200C}a\u{200D}r\u{2060}y",
                ],
                "mary",
            ),
            (Name, &[" Mary \u{A0} Ann\u{3000}", "mary ann"], "mary ann"),
            (Name, &["Σίσυφος", "ΣΊΣΥΦΟΣ"], "σίσυφοσ"),
            (
                Email,
                &["Jane@Example.COM", "jane@example.com"],
                "jane@example.com",
            ),
            (
                Email,
                &["jörg@MÜNCHEN.example", "Jo\u{308}rg@xn--mnchen-3ya.example"],
                "jörg@xn--mnchen-3ya.example",
            ),
            (Email, &["a@ｅxample。com"], "a@example.com"),
            (
                Phone,
                &["+49 151 2345678", "0049-151/234.5678", "+49 (151) 2345678"],
                "+491512345678",
            ),
            (
                Phone,
                &["+1 001 555 0100", "001 001 555 0100"],
                "+10015550100",
            ),
            (Phone, &["+39 06 6982 11"], "+3906698211"),
            (Decimal, &["1", "1.0", "+01.000"], "1"),
            (Decimal, &["0", "-0", "0.00", "-0.0"], "0"),
            (Decimal, &["-12.50", "-012.5"], "-12.5"),
            (Decimal, &["0.05", "00.050"], "0.05"),
            (Decimal, &["100"], "100"),
            (
                Timestamp,
                &["2026-01-31T12:00:00.500+01:00", "2026-01-31T11:00:00.5Z"],
                "2026-01-31T11:00:00.5Z",
            ),
            (
                Timestamp,
                &["2026-01-31T11:00:00.000Z", "2026-01-31T11:00:00Z"],
                "2026-01-31T11:00:00Z",
            ),
            (
                Card,
                &["4242 4242 4242 4242", "4242-4242-4242-4242"],
                "4242424242424242",
            ),
            (
                Iban,
                &["de89 3704 0044 0532 0130 00", "DE89370400440532013000"],
                "DE89370400440532013000",
            ),
            (
                NationalId,
                &["ab 12-34.56/c", "AB123456C", "ＡＢ１２３４５６Ｃ"],
                "AB123456C",
            ),
            (
                Ip,
                &["192.0.2.1", "::ffff:192.0.2.1", "::FFFF:c000:201"],
                "192.0.2.1",
            ),
            (Ip, &["2001:db8:0::1", "2001:DB8::0:1"], "2001:db8::1"),
            (Date, &["2026-01-31"], "2026-01-31"),
            (String, &["Mary "], "Mary "),
        ];
        for (property_type, texts, expected) in cases {
            for text in *texts {
                assert_eq!(
                    of(*property_type, text),
                    *expected,
                    "{property_type} {text:?}"
                );
            }
        }
    }

    #[test]
    fn values_of_other_meanings_differ() {
        use PropertyType::*;
        let pairs = [
            (Name, "İ", "i"),
            (Name, "O’Neil", "O'Neil"),
            (Name, "Müller", "Mueller"),
            (Name, "José", "Jose"),
            (Name, "Mary Ann", "Maryann"),
            (Email, "a.b@example.com", "ab@example.com"),
            (Email, "a+tag@example.com", "a@example.com"),
            (Email, "a@example.com", "a@example.org"),
            (Phone, "+39 06 6982 11", "+39 6 6982 11"),
            (Decimal, "1", "-1"),
            (Decimal, "10", "1"),
            (
                Timestamp,
                "2026-01-31T11:00:00.5Z",
                "2026-01-31T11:00:00.05Z",
            ),
            (String, "Mary", "mary"),
            (String, "é", "e\u{301}"),
            (Ip, "192.0.2.1", "::c000:201"),
        ];
        for (property_type, one, other) in pairs {
            assert_ne!(
                of(property_type, one),
                of(property_type, other),
                "{property_type} {one:?} {other:?}"
            );
        }
    }

    #[test]
    fn an_integer_and_a_decimal_stay_apart() {
        let integer = check(PropertyType::Integer, &[1]).unwrap();
        let decimal = check(PropertyType::Decimal, &[1]).unwrap();
        assert_ne!(
            normalize(PropertyType::Integer, &integer),
            normalize(PropertyType::Decimal, &decimal)
        );
    }

    proptest! {
        /// Uses text of few characters, so that compatibility forms and separators meet often.
        #[test]
        fn a_normalized_name_is_normalized(text in "[a-zA-ZßſﬁⅧİéａ\u{301}\u{200b}\u{a0}’ ]{1,12}") {
            if let Ok(stored) = check(PropertyType::Name, &packed(&text)) {
                let once = normalize(PropertyType::Name, &stored);
                prop_assert!(!once.is_empty());
                let again = packed(std::str::from_utf8(&once).unwrap());
                prop_assert_eq!(normalize(PropertyType::Name, &again), once);
            }
        }

        #[test]
        fn decimals_are_equal_as_numbers(units in -99_999i64..=99_999, scale in 0usize..4, zeros in 0usize..3) {
            let digits = format!("{:0width$}", units.unsigned_abs(), width = scale + 1);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            let sign = if units < 0 { "-" } else { "" };
            let plain = format!("{sign}{whole}.{fraction}0");
            let padded = format!("{sign}00{whole}.{fraction}0{}", "0".repeat(zeros));
            prop_assert_eq!(of(PropertyType::Decimal, &plain), of(PropertyType::Decimal, &padded));
            let normal: f64 = of(PropertyType::Decimal, &plain).parse().unwrap();
            prop_assert_eq!(normal, units as f64 / 10f64.powi(scale as i32));
        }

        #[test]
        fn normalization_accepts_any_bytes(bytes: Vec<u8>, text: String) {
            let mut string = Vec::new();
            write::str(&mut string, &text);
            for property_type in PropertyType::ALL {
                let _ = normalize(property_type, &bytes);
                let _ = normalize(property_type, &string);
                let is_empty = normalize_prefix(property_type, &text).is_ok_and(|prefix| prefix.is_empty());
                prop_assert!(!is_empty);
            }
        }
    }
}
