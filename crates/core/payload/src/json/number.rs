//! Converts JSON number text to the 64-bit value with the same decimal value.
//!
//! A float is accepted only if its shortest text has the digits and exponent of the input. `0.1` is
//! accepted, since its float is written as 0.1. `0.1234567890123456789012` is rejected, because it
//! would lose digits.

use sealwire_msgpack::write;

/// Appends `text`, a number in JSON's grammar, as an integer or a 64-bit float. Returns `false` and
/// leaves `out` unchanged if neither type holds the value.
pub fn append(text: &str, out: &mut Vec<u8>) -> bool {
    let is_integer = !text.contains(['.', 'e', 'E']);
    if is_integer && text != "-0" {
        if let Ok(value) = text.parse() {
            write::uint(out, value);
            return true;
        }
        if let Ok(value) = text.parse() {
            write::int(out, value);
            return true;
        }
    }
    // `f64` parses all of JSON's grammar, so the only remaining failure is a value that the float
    // does not preserve.
    let Ok(value) = text.parse::<f64>() else {
        return false;
    };
    let survives = value.is_finite()
        && Decimal::of(text) == Decimal::of(shortest(value, &mut zmij::Buffer::new()));
    if survives {
        write::f64(out, value);
    }
    survives
}

/// Returns the shortest digits that parse to the finite `value`, always with a point or an
/// exponent. Of two texts with equal length and distance, the even one is chosen, as in JavaScript,
/// Python and serde_json. Their texts must be accepted, and the output must be one of their texts.
pub(super) fn shortest(value: f64, buffer: &mut zmij::Buffer) -> &str {
    buffer.format_finite(value)
}

/// Appends the finite `value` as JSON text that parses to the same float.
pub fn write_float(value: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(shortest(value, &mut zmij::Buffer::new()).as_bytes());
}

/// A decimal value in normal form: 0.d1d2d3... times ten to the exponent, without leading or
/// trailing zeros.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Parses a number. Returns `None` if the exponent is out of range.
    fn of(text: &str) -> Option<Self> {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        let Some(first) = digits.iter().position(|d| *d != b'0') else {
            // The exponent of zero is irrelevant; only the sign matters.
            return Some(Self {
                is_negative,
                digits: Vec::new(),
                exponent: 0,
            });
        };
        let last = digits.iter().rposition(|d| *d != b'0').unwrap_or(first);
        let shift = i64::try_from(whole.len()).ok()? - i64::try_from(first).ok()?;
        Some(Self {
            is_negative,
            digits: digits[first..=last].to_vec(),
            exponent: exponent.parse::<i64>().ok()?.checked_add(shift)?,
        })
    }
}

/// Returns true if two JSON numbers have the same decimal value. Implemented independently of
/// [`Decimal`].
#[cfg(test)]
pub(super) fn same_decimal(a: &str, b: &str) -> bool {
    // Digits scaled to an integer by ten to the power of 1,200, with sign, as text: slow, but
    // obviously correct.
    fn scaled(text: &str) -> (bool, String) {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let is_negative = mantissa.starts_with('-');
        let mantissa = mantissa.trim_start_matches('-');
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let exponent: i64 = exponent.parse().expect("a short exponent");
        let zeros = 1200 + exponent - i64::try_from(fraction.len()).expect("a short fraction");
        let zeros = usize::try_from(zeros).expect("the scale covers every exponent");
        let digits = format!("{whole}{fraction}{}", "0".repeat(zeros));
        (is_negative, digits.trim_start_matches('0').to_owned())
    }
    scaled(a) == scaled(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_msgpack::{Token, TokenReader};

    fn check(text: &str, expected: Option<Token<'_>>) {
        let mut out = Vec::new();
        assert_eq!(append(text, &mut out), expected.is_some(), "{text}");
        match expected {
            Some(Token::F64(value)) => {
                let Ok(Token::F64(found)) = TokenReader::new(&out).token() else {
                    panic!("{text} is no float");
                };
                assert_eq!(found.to_bits(), value.to_bits(), "{text}");
            }
            Some(token) => assert_eq!(TokenReader::new(&out).token(), Ok(token), "{text}"),
            None => assert!(out.is_empty(), "{text}"),
        }
    }

    #[test]
    fn integers_of_64_bits_stay_integers() {
        check("0", Some(Token::Uint(0)));
        check("-1", Some(Token::Int(-1)));
        check("9223372036854775807", Some(Token::Uint(i64::MAX as u64)));
        check("-9223372036854775808", Some(Token::Int(i64::MIN)));
        check("18446744073709551615", Some(Token::Uint(u64::MAX)));
    }

    #[test]
    fn numbers_become_floats_when_their_decimal_value_survives() {
        check("-0", Some(Token::F64(-0.0)));
        check("-0.0", Some(Token::F64(-0.0)));
        check("0.0", Some(Token::F64(0.0)));
        check("0e999999999999999999999", Some(Token::F64(0.0)));
        check("1.0", Some(Token::F64(1.0)));
        check("1.10", Some(Token::F64(1.1)));
        check("0.1", Some(Token::F64(0.1)));
        check("1E5", Some(Token::F64(1e5)));
        check("1e+5", Some(Token::F64(1e5)));
        check("0.00012e+07", Some(Token::F64(1200.0)));
        check("1e20", Some(Token::F64(1e20)));
        check("100000000000000000000", Some(Token::F64(1e20)));
        // Halfway between ....2 and ....3, which are the same float and equally near: the even one
        // is the shortest text.
        check(
            "606072328954555.2",
            Some(Token::F64(606_072_328_954_555.0 + 0.25)),
        );
        check("5e-324", Some(Token::F64(5e-324)));
        check("1.7976931348623157e308", Some(Token::F64(f64::MAX)));
    }

    #[test]
    fn numbers_that_would_change_are_rejected() {
        check("18446744073709551616", None);
        check("-9223372036854775809", None);
        check("12345678901234567890123", None);
        check("0.1234567890123456789012", None);
        check("9007199254740993.0", None);
        check("606072328954555.3", None);
        check("1e400", None);
        check("-1e400", None);
        check("1e-400", None);
        check("4e-324", None);
        check("1e99999999999999999999", None);
        check("1e-99999999999999999999", None);
    }
}
