//! Number texts of Evervault strings.

use sealwire_crypto::evervault::fuzzing::number;
use sealwire_crypto::evervault::{Number, NumberText};

use crate::Seed;
use crate::input::text;
use crate::seed::{numbered, words as list};

/// Parses a number and writes it again.
pub(crate) fn check_input(input: &[u8]) {
    let text = text(input);
    let Some(Some(number)) = self::number(text) else {
        return;
    };
    let printed = NumberText::new(number);
    let again = self::number(printed.as_str());
    match (number, again) {
        (Number::Float(one), Some(Some(Number::Float(two)))) => {
            assert!(
                one.to_bits() == two.to_bits() || one.is_nan() && two.is_nan(),
                "{text} {one} {two}"
            );
            // A float is exact only if the text is in one of the forms that printing produces.
            let parsed: Result<f64, _> = text.parse();
            assert!(
                parsed.is_ok_and(|parsed| parsed == one || one.is_nan()),
                "{text} {one}"
            );
        }
        (Number::Unsigned(value), Some(Some(again))) => {
            assert_eq!(again, number);
            assert_eq!(text, value.to_string(), "a whole number has one text");
        }
        (Number::Signed(value), Some(Some(again))) => {
            assert_eq!(again, number);
            assert!(value < 0 && text == value.to_string(), "{text} {value}");
        }
        _ => panic!(
            "{text}: {number:?} prints as {}, which reads as {again:?}",
            printed.as_str()
        ),
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let texts = [
        "0",
        "-0",
        "1",
        "-1",
        "007",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "-9223372036854775809",
        "1.0",
        "1e+21",
        "1E5",
        "0.1",
        "5e-324",
        "1.7976931348623157e308",
        "1e309",
        "nan",
        "+Inf",
        "-inf",
        "null",
        " 1",
        "+1",
        ".5",
        "5.",
        "0.30000000000000004",
        "123456789012345680000",
        "9007199254740993",
        "1e",
        "0.000001",
        "100000000000000000000000000000000",
        "4111111111111111",
        "-1.5e-7",
        "0e99999999999999999999",
    ];
    numbered("number", &[], texts)
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "e+", "e-", "E", ".0", "-0", "00000000", "99999999", "e308", "e-324", "nan", "NaN", "+Inf",
        "-Inf", "null", "\u{b}",
    ])
}
