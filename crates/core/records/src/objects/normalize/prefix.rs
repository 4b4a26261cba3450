//! Normalization of the beginnings of values, for searches.

use zeroize::Zeroizing;

use super::{fold, nfc, normalize_name, normalize_national_id, normalize_phone};
use crate::objects::{PropertyType, ValueError};

/// Longest text of a search by prefix in bytes.
const PREFIX_BYTES_MAX: usize = 1024;

/// Normalized text, or the rule that is broken.
type Prefix = Result<Zeroizing<String>, &'static str>;

/// Normalizes the beginning of a value, for a search. A value begins with it if its normalized form
/// does.
///
/// Rules of whole values, such as check digits and lengths, do not apply. Text that ends inside a
/// character sequence, such as a letter before its accent, does not find the composed character.
///
/// # Errors
/// [`ValueError`] if the type has no prefixes, or if no value of the type begins so. The client
/// must correct the search.
pub fn normalize_prefix(
    property_type: PropertyType,
    text: &str,
) -> Result<Zeroizing<Vec<u8>>, ValueError> {
    let normalized = match text.len() {
        0..=PREFIX_BYTES_MAX => normalized(property_type, text),
        _ => Err("have at most 1024 bytes, also as a prefix"),
    };
    match normalized {
        Ok(normalized) if !normalized.is_empty() => {
            Ok(Zeroizing::new(normalized.as_bytes().to_vec()))
        }
        Ok(_) => Err(ValueError {
            property_type,
            rule: "not be empty, also as a prefix",
        }),
        Err(rule) => Err(ValueError {
            property_type,
            rule,
        }),
    }
}

fn normalized(property_type: PropertyType, text: &str) -> Prefix {
    match property_type {
        PropertyType::String => Ok(Zeroizing::new(text.to_owned())),
        PropertyType::Name => Ok(normalize_name(text)),
        PropertyType::NationalId => Ok(normalize_national_id(text)),
        PropertyType::Email => email_prefix(text),
        PropertyType::Phone => phone_prefix(text),
        PropertyType::Card => {
            compact(text, " -", u8::is_ascii_digit).ok_or("be digits, also as a prefix")
        }
        PropertyType::Iban => compact(text, " ", u8::is_ascii_alphanumeric)
            .ok_or("be letters and digits, also as a prefix"),
        PropertyType::Integer
        | PropertyType::Decimal
        | PropertyType::Boolean
        | PropertyType::Date
        | PropertyType::Timestamp
        | PropertyType::Json
        | PropertyType::Blob
        | PropertyType::Address
        | PropertyType::Ip => Err("be searched as a whole, because the type has no prefixes"),
    }
}

/// Removes separators and writes letters in upper case. Returns `None` if a byte that is left is
/// not allowed.
fn compact(text: &str, separators: &str, is_allowed: fn(&u8) -> bool) -> Option<Zeroizing<String>> {
    let mut out = Zeroizing::new(String::with_capacity(text.len()));
    out.extend(text.chars().filter(|char| !separators.contains(*char)));
    out.make_ascii_uppercase();
    Some(out).filter(|out| out.bytes().all(|byte| is_allowed(&byte)))
}

/// Normalizes the beginning of a number, which has at least one digit of its country code.
fn phone_prefix(text: &str) -> Prefix {
    let rest = text
        .strip_prefix('+')
        .or_else(|| text.strip_prefix("00"))
        .unwrap_or_default();
    let is_digits = rest
        .chars()
        .all(|char| char.is_ascii_digit() || " -./()".contains(char));
    let has_digit = rest.contains(|char: char| char.is_ascii_digit());
    let is_begun = is_digits && has_digit;
    is_begun
        .then(|| normalize_phone(text))
        .ok_or("begin with + or 00 and the country code, also as a prefix")
}

/// Normalizes the beginning of an address. IDNA does not define a form for a part of a domain, so
/// that part must be ASCII.
fn email_prefix(text: &str) -> Prefix {
    let Some((local, domain)) = text.rsplit_once('@') else {
        return Ok(fold_local(text));
    };
    if !domain.is_ascii() {
        return Err("have an ASCII domain (xn--), as a prefix");
    }
    let local = fold_local(local);
    let mut out = Zeroizing::new(String::with_capacity(local.len() + 1 + domain.len()));
    out.push_str(&local);
    out.push('@');
    out.push_str(domain);
    // The local part is folded already, so this changes the domain alone.
    out.make_ascii_lowercase();
    Ok(out)
}

/// Normalizes and case-folds the local part of an address.
fn fold_local(local: &str) -> Zeroizing<String> {
    nfc(&fold(&nfc(local)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::of;
    use super::*;

    #[test]
    fn prefixes_of_values() {
        use PropertyType::*;
        // A type, a value, the beginning that is searched, and whether it is found. `None`: it is
        // invalid.
        let cases: &[(PropertyType, &str, &str, Option<bool>)] = &[
            (String, "Mary", "Ma", Some(true)),
            (String, "Mary", "ma", Some(false)),
            (String, "Mary", "", None),
            (Name, " Straße", "STRASS", Some(true)),
            (Name, "Mary Ann", "mary  a", Some(true)),
            (Name, "José", "Jos", Some(true)),
            (Name, "José", "Jose", Some(false)),
            (Name, "José", " \u{200b}", None),
            (Email, "Jane@Example.com", "JA", Some(true)),
            (Email, "Jane@Example.com", "jane@EX", Some(true)),
            (Email, "Jane@Example.com", "jane@", Some(true)),
            (Email, "j@münchen.example", "j@xn--m", Some(true)),
            (Email, "j@münchen.example", "j@mü", None),
            (Phone, "0049 151 2345678", "+49 (15", Some(true)),
            (Phone, "+49 151 2345678", "0049 1", Some(true)),
            (Phone, "+49 151 2345678", "49", None),
            (Phone, "+49 151 2345678", "+", None),
            (Phone, "+49 151 2345678", "00", None),
            (Phone, "+49 151 2345678", "+49x", None),
            (Card, "4242 4242 4242 4242", "42424-2", Some(true)),
            (Card, "4242 4242 4242 4242", "4x", None),
            (Iban, "DE89 3704 0044 0532 0130 00", "de 893", Some(true)),
            (Iban, "DE89 3704 0044 0532 0130 00", "de-8", None),
            (NationalId, "AB-12.34", "ab 1", Some(true)),
            (NationalId, "AB-12.34", "-", None),
            (Date, "2026-01-31", "2026", None),
            (Ip, "192.0.2.1", "192", None),
        ];
        for (property_type, value, searched, expected) in cases {
            let value = of(*property_type, value);
            let found = normalize_prefix(*property_type, searched)
                .map(|prefix| value.as_bytes().starts_with(&prefix));
            assert_eq!(
                found.ok(),
                *expected,
                "{property_type} {value:?} {searched:?}"
            );
        }
        assert!(normalize_prefix(Name, &"n".repeat(PREFIX_BYTES_MAX)).is_ok());
        assert!(normalize_prefix(Name, &"n".repeat(PREFIX_BYTES_MAX + 1)).is_err());
    }
}
