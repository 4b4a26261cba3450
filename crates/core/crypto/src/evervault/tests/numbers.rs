//! Values of the number texts of known clients.

use proptest::prelude::*;

use super::super::number::{Parsed, parse};
use super::*;

fn check(text: &str, expected: Option<Number>) {
    let expected = expected.map_or(Parsed::Text, Parsed::Exact);
    // Debug tells -0.0 from 0.0 and holds for NaN.
    assert_eq!(
        format!("{:?}", parse(text)),
        format!("{expected:?}"),
        "{text}"
    );
}

#[test]
fn numbers_keep_their_type_and_every_digit() {
    use Number::{Float, Signed, Unsigned};
    for (text, number) in [
        ("0", Unsigned(0)),
        ("42", Unsigned(42)),
        ("-1", Signed(-1)),
        ("18446744073709551615", Unsigned(u64::MAX)),
        ("-9223372036854775808", Signed(i64::MIN)),
        ("1.5", Float(1.5)),
        ("1.0", Float(1.0)),
        ("1.50", Float(1.5)),
        ("-0", Float(-0.0)),
        ("-0.0", Float(-0.0)),
        ("0.1", Float(0.1)),
        ("1e+21", Float(1e21)),
        ("1e-7", Float(1e-7)),
        ("1E5", Float(1e5)),
        ("1e+16", Float(1e16)),
        ("5e-324", Float(5e-324)),
        ("1.7976931348623157e+308", Float(f64::MAX)),
        ("0.30000000000000004", Float(0.1 + 0.2)),
        // Printed with 17 digits rather than the fewest.
        ("0.10000000000000001", Float(0.1)),
        ("100000000000000000000", Float(1e20)),
        ("18446744073709551616", Float(18_446_744_073_709_551_616.0)),
        ("nan", Float(f64::NAN)),
        ("NaN", Float(f64::NAN)),
        ("inf", Float(f64::INFINITY)),
        ("-inf", Float(f64::NEG_INFINITY)),
        ("+Inf", Float(f64::INFINITY)),
        ("-Inf", Float(f64::NEG_INFINITY)),
    ] {
        check(text, Some(number));
    }
}

#[test]
fn numbers_that_64_bits_do_not_hold_stay_text() {
    for text in [
        "18446744073709551617",
        "-9223372036854775809",
        "123456789012345678901234567890",
        "1e400",
        "1e99999999999999999999",
        "0.12345678901234567890",
        "0.12345678901234567",
        "1e-400",
        "007",
        "-01",
        "00",
        "+1",
        " 1",
        "1 ",
        ".5",
        "5.",
        "1.2.3",
        "--1",
        "null",
    ] {
        check(text, None);
    }
}

#[test]
fn unusual_numbers_are_rejected() {
    for text in [
        "", "hello", "true", "-", ".", "e", "1,5", "0x10", "1_000", "\u{661}", "infinity", "1\0",
        "1n",
    ] {
        assert_eq!(parse(text), Parsed::Refused, "{text}");
    }
}

proptest! {
    #[test]
    fn numbers_survive_their_text(float: f64, signed: i64, unsigned: u64) {
        for number in [Number::Float(float), Number::Signed(signed.min(-1)), Number::Unsigned(unsigned)] {
            let text = NumberText::new(number);
            prop_assert_eq!(format!("{:?}", parse(text.as_str())), format!("{:?}", Parsed::Exact(number)));
        }
    }

    /// How other languages print the same float: the fewest digits or 17, with or without a sign in
    /// the exponent.
    #[test]
    fn a_float_is_known_in_any_print(float in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL) {
        for text in [format!("{float:e}"), format!("{float:.16e}"), format!("{float:?}")] {
            let signed = text.replace('e', "e+").replace("e+-", "e-");
            for text in [&text, &signed, &text.replace('e', "E")] {
                prop_assert_eq!(parse(text), Parsed::Exact(Number::Float(float)), "{}", text);
            }
        }
    }

    #[test]
    fn any_text_is_judged_without_panic(text: String, digits in "[-+0-9.eE]{0,40}") {
        let _ = parse(&text);
        let _ = parse(&digits);
    }
}
