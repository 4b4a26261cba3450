//! Results and errors of each function for chosen values. For keyed functions only the form is
//! checked here. `reference` checks the table's claims, and `vectors` the exact bytes.

use std::time::Duration;

use zeroize::Zeroizing;

use super::Unfit;
use crate::{Mask, MaskSecret, Value};

fn mask(function: &str) -> Mask {
    Mask::new(
        &function.parse().expect(function),
        &MaskSecret::new(Zeroizing::new([7; 32])),
    )
    .expect("a list that comes along")
}

fn masked(function: &str, value: Value<'_>, subject: Option<Value<'_>>) -> Result<Vec<u8>, Unfit> {
    let mut out = Vec::new();
    mask(function).apply(value, subject, &mut out).map(|()| out)
}

/// Returns the masked string for a string.
fn text(function: &str, text: &str) -> String {
    match masked(function, Value::Str(text), None)
        .as_deref()
        .map(Value::read)
    {
        Ok(Some(Value::Str(text))) => text.to_owned(),
        other => panic!("{function} {text}: {other:?}"),
    }
}

#[track_caller]
fn check(function: &str, value: Value<'_>, expected: Value<'_>) {
    let found = masked(function, value, None);
    assert_eq!(
        found.as_deref().map(Value::read),
        Ok(Some(expected)),
        "{function} {value:?}"
    );
}

#[track_caller]
fn check_texts(function: &str, cases: &[(&str, &str)]) {
    for (value, expected) in cases {
        check(function, Value::Str(value), Value::Str(expected));
    }
}

#[track_caller]
fn refused(function: &str, value: Value<'_>, needle: &str) {
    let unfit = masked(function, value, None).expect_err(function);
    assert!(
        unfit.to_string().contains(needle),
        "{function} {value:?}: {unfit}"
    );
}

#[test]
fn redact_keeps_the_type_and_fixed_does_not() {
    for (value, expected) in [
        (Value::Str("Ann"), Value::Str("[redacted]")),
        (Value::Str(""), Value::Str("[redacted]")),
        (Value::Int(-7), Value::Uint(0)),
        (Value::Uint(7), Value::Uint(0)),
        (Value::Single(1.5), Value::Single(0.0)),
        (Value::Float(1.5), Value::Float(0.0)),
        (Value::Bool(true), Value::Bool(false)),
        (Value::Bin(b"x"), Value::Bin(b"")),
        (Value::Ext(1, b"x"), Value::Nil),
    ] {
        check("redact", value, expected);
        check("null", value, Value::Nil);
        check("fixed(\"n/a\")", value, Value::Str("n/a"));
        check("fixed(-7)", value, Value::Int(-7));
        check("fixed(1.5)", value, Value::Float(1.5));
        check("fixed(true)", value, Value::Bool(true));
    }
    check("redact(with=\"\")", Value::Str("Ann"), Value::Str(""));
    check("redact(with=\"X\")", Value::Uint(7), Value::Uint(0));
}

#[test]
fn partial_shows_ends_and_hides_what_would_be_shown_whole() {
    check_texts(
        "partial(first=1, last=4)",
        &[
            ("4111111111111111", "4***********1111"),
            ("123456", "1*3456"),
            ("12345", "*****"),
            ("1", "*"),
            ("", ""),
        ],
    );
    check_texts("partial(first=2)", &[("Hello", "He***"), ("He", "**")]);
    check_texts(
        "partial(last=1, with=\"•\")",
        &[("Hello", "••••o"), ("o", "•")],
    );
    // A letter with its accent, a flag, and a family emoji are one character each.
    check_texts(
        "partial(first=1)",
        &[
            ("e\u{301}te\u{301}", "e\u{301}**"),
            ("🇪🇸🇫🇷", "🇪🇸*"),
            ("👨‍👩‍👧x", "👨‍👩‍👧*"),
            ("漢字", "漢*"),
        ],
    );
    check_texts(
        "partial(last=2)",
        &[("ae\u{301}🇪🇸", "*e\u{301}🇪🇸"), ("\r\nab", "*ab")],
    );
    refused(
        "partial(first=1)",
        Value::Uint(12345),
        "values of this type",
    );
    refused(
        "partial(first=1)",
        Value::Bin(b"12345"),
        "values of this type",
    );
}

/// Time limit of the test. Masking that takes quadratic time would take hours.
const HANGS: Duration = Duration::from_secs(600);

#[test]
fn characters_that_never_end_are_walked_a_bounded_number_of_times() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for piece in [
            "\u{1f1ea}",
            "\u{301}",
            "\u{200d}",
            "\u{1f468}\u{200d}",
            "\u{915}\u{94d}",
            "\u{1100}",
            "\r",
            "\u{600}",
        ] {
            let text = piece.repeat((1 << 20) / piece.len());
            for function in [
                "partial(first=64, last=64)",
                "partial(last=1)",
                "generalize(keep=64)",
            ] {
                assert!(
                    masked(function, Value::Str(&text), None).is_ok(),
                    "{piece:?}"
                );
            }
        }
        done.send(()).unwrap();
    });
    is_done
        .recv_timeout(HANGS)
        .expect("a text fails or takes for ever");
}

#[test]
fn email_tells_case_apart_and_keeps_equal_what_is_equal_but_for_case() {
    let lower = text("email", "ann@example.com");
    assert_eq!(lower, lower.to_lowercase());
    let mut spellings = vec![lower.clone()];
    for spelling in [
        "Ann@example.com",
        "ANN@EXAMPLE.COM",
        "ann@Example.com",
        "aNN@example.com",
    ] {
        let masked = text("email", spelling);
        assert_eq!(masked.to_lowercase(), lower, "{spelling}");
        spellings.push(masked);
    }
    spellings.sort_unstable();
    spellings.dedup();
    assert_eq!(spellings.len(), 5);
    assert_eq!(
        text("email", "ÉVA@b.co").to_lowercase(),
        text("email", "éva@b.co")
    );
    assert_ne!(text("email", "ann@example.org"), lower);
    assert!(text("email(keep=domain)", "ann@Firm.Example").ends_with("@Firm.Example"));
    assert_ne!(
        text("email(keep=domain)", "a@b.co").split('@').next(),
        text("email(keep=domain)", "a@c.co").split('@').next()
    );
    for wrong in ["", "ann", "@", "ann@", "@b.co", "ann@b co", "ann@b\n"] {
        refused("email", Value::Str(wrong), "not an e-mail address");
    }
    refused(
        "email",
        Value::Str(&format!("{}@b.co", "x".repeat(320))),
        "longer than the 320",
    );
    refused("email", Value::Uint(7), "values of this type");
}

#[test]
fn phone_keeps_the_calling_code_and_the_form() {
    for (number, kept, last) in [
        ("+34 600 123 456", "+34 ", 0),
        ("+1 (415) 555-2671", "+1 (", 2),
        ("+353 1 234 5678", "+353 ", 0),
        ("0034 600 123 456", "0034 ", 0),
        ("0171 2345678", "0", 3),
    ] {
        let function = if last == 0 {
            "phone".to_owned()
        } else {
            format!("phone(last={last})")
        };
        let masked = text(&function, number);
        assert!(
            masked.starts_with(kept) && masked.len() == number.len(),
            "{number}: {masked}"
        );
        assert!(
            masked.ends_with(&number[number.len() - last..]),
            "{number}: {masked}"
        );
        assert_ne!(masked, number);
    }
    let digits = |text: String| text.replace([' ', '-', '(', ')', '.', '/'], "");
    assert_eq!(
        digits(text("phone", "+34 600 123 456")),
        text("phone", "+34600123456")
    );
    assert_eq!(
        digits(text("phone", "(0171) 234.56/78")),
        text("phone", "017123456 78").replace(' ', "")
    );
    // Too short to keep any digit.
    assert_ne!(text("phone(last=8)", "112"), "112");
    assert_ne!(text("phone(last=8)", "12345678"), "12345678");
    for wrong in [
        "",
        "12",
        "123456789012345678901",
        "+0 600 123 456",
        "000 123 456",
        "600x123",
        "600+123",
        "six",
    ] {
        refused("phone", Value::Str(wrong), "not a telephone number");
    }
    refused("phone", Value::Uint(600_123_456), "values of this type");
}

/// Numbers of up to 5 replaced digits never map to themselves; for longer numbers the mapping is
/// one-to-one.
#[test]
fn short_numbers_always_change() {
    for number in 100..1000 {
        let number = number.to_string();
        assert_ne!(text("phone", &number), number);
    }
    for middle in 0..200 {
        let card = format!("411111{middle:06}1111");
        assert_ne!(text("card(first=6)", &card)[..11], card[..11]);
    }
}

#[test]
fn card_keeps_length_ends_and_separators() {
    for (card, first, last) in [
        ("4111 1111 1111 1111", 0, 4),
        ("4111-1111-1111-1111", 6, 4),
        ("378282246310005", 6, 4),
        ("123456789012", 6, 4),
        ("6304000000000000000", 0, 0),
        ("4111111111111111", 4, 0),
    ] {
        for luhn in ["valid", "invalid"] {
            let masked = text(
                &format!("card(first={first}, last={last}, luhn={luhn})"),
                card,
            );
            let digits = |text: &str| text.bytes().filter(u8::is_ascii_digit).collect::<Vec<_>>();
            let (of, from) = (digits(&masked), digits(card));
            assert_eq!(masked.len(), card.len());
            assert_eq!(of[..first], from[..first], "{masked}");
            assert_eq!(of[of.len() - last..], from[from.len() - last..], "{masked}");
            assert_eq!(
                sealwire_mask_rules::luhn(&of).is_multiple_of(10),
                luhn == "valid",
                "{masked}"
            );
            assert_ne!(of, from);
        }
    }
    assert_eq!(
        text("card", "4111 1111 1111 1111").replace(' ', ""),
        text("card", "4111111111111111")
    );
    for wrong in [
        "",
        "41111111111",
        "41111111111111111111",
        "4111.1111.1111.1111",
        "4111 1111 1111 111x",
    ] {
        refused("card", Value::Str(wrong), "not a card number");
    }
    refused(
        "card",
        Value::Uint(4_111_111_111_111_111),
        "values of this type",
    );
}

#[test]
fn integers_and_their_digits_are_masked_alike() {
    for function in [
        "hash",
        "pseudonym(list=cities)",
        "pseudonym(list=full_names)",
    ] {
        for (integer, digits) in [
            (Value::Uint(17), "17"),
            (Value::Int(17), "17"),
            (Value::Int(-17), "-17"),
            (Value::Int(i64::MIN), "-9223372036854775808"),
            (Value::Uint(u64::MAX), "18446744073709551615"),
            (Value::Uint(0), "0"),
        ] {
            assert_eq!(
                masked(function, integer, None),
                masked(function, Value::Str(digits), None),
                "{digits}"
            );
        }
        assert_ne!(
            masked(function, Value::Bin(b"17"), None),
            masked(function, Value::Str("17"), None)
        );
        refused(function, Value::Bool(true), "values of this type");
        refused(function, Value::Float(1.5), "values of this type");
        refused(
            function,
            Value::Bin(&vec![0; (1 << 20) + 1]),
            "longer than the 1048576",
        );
    }
    assert_eq!(text("hash(length=64)", "x")[..32], text("hash", "x"));
}

#[test]
fn fpe_keeps_separators_and_refuses_small_domains_and_other_characters() {
    assert_eq!(
        text("fpe", "123-45-6789").replace('-', ""),
        text("fpe", "123456789")
    );
    assert_eq!(
        text("fpe", "12 34.56"),
        text("fpe", "12-34-56")
            .replacen('-', " ", 1)
            .replacen('-', ".", 1)
    );
    for (function, value, needle) in [
        ("fpe", Value::Str("12345"), "fewer than 1,000,000"),
        ("fpe", Value::Str(""), "fewer than 1,000,000"),
        ("fpe", Value::Str("---------"), "fewer than 1,000,000"),
        ("fpe", Value::Str("12345a"), "not of the alphabet"),
        ("fpe", Value::Str("123456é"), "not of the alphabet"),
        (
            "fpe(alphabet=alphanumeric)",
            Value::Str("a1Z"),
            "fewer than 1,000,000",
        ),
        (
            "fpe(alphabet=lower)",
            Value::Str("abcDef"),
            "not of the alphabet",
        ),
        (
            "fpe(alphabet=hex)",
            Value::Str("00ff0g"),
            "not of the alphabet",
        ),
        (
            "fpe(alphabet=hex)",
            Value::Uint(12_345_678),
            "values of this type",
        ),
        ("fpe", Value::Uint(999_999), "fewer than 1,000,000"),
        ("fpe", Value::Uint(u64::MAX), "out of range"),
        ("fpe", Value::Int(i64::MIN), "out of range"),
        ("fpe", Value::Float(1e7), "values of this type"),
    ] {
        refused(function, value, needle);
    }
    refused("fpe", Value::Str(&"1".repeat(57)), "longer than the 56");
    refused(
        "fpe(alphabet=alphanumeric)",
        Value::Str(&"1".repeat(33)),
        "longer than the 32",
    );
    refused("fpe", Value::Str(&"-".repeat(129)), "longer than the 128");
}

#[test]
fn fpe_maps_integers_to_integers_of_as_many_digits_one_to_one() {
    let integer = |value: i64| match masked("fpe", Value::Int(value), None)
        .as_deref()
        .map(Value::read)
    {
        Ok(Some(Value::Int(masked))) => masked,
        Ok(Some(Value::Uint(masked))) => i64::try_from(masked).expect("a signed one"),
        other => panic!("{value}: {other:?}"),
    };
    let mut seen = std::collections::HashSet::new();
    let starts = [
        1_000_000,
        9_999_000,
        10_000_000,
        999_999_999_000,
        1_000_000_000_000_000_000,
        i64::MAX - 499,
    ];
    for value in starts
        .into_iter()
        .flat_map(|start| start..=start.saturating_add(499))
    {
        for value in [value, -value] {
            let masked = integer(value);
            assert_eq!(
                masked.unsigned_abs().ilog10(),
                value.unsigned_abs().ilog10(),
                "{value}: {masked}"
            );
            assert_eq!(masked < 0, value < 0);
            assert!(seen.insert(masked), "{value}: {masked}");
        }
    }
}

#[test]
fn dates_are_shifted_in_the_calendar_and_their_text_stays() {
    check_texts(
        "date_shift(days=1)",
        &[
            ("2024-02-28", "2024-02-29"),
            ("2023-02-28", "2023-03-01"),
            ("2024-12-31T23:59:59Z", "2025-01-01T23:59:59Z"),
            ("2024-12-31t23:59:60z", "2025-01-01t23:59:60z"),
            ("2024-02-29 10:00:00+00", "2024-03-01 10:00:00+00"),
            (
                "2024-02-29 10:00:00.123456-07:30",
                "2024-03-01 10:00:00.123456-07:30",
            ),
            ("2024-02-29 10:00:00 +0530", "2024-03-01 10:00:00 +0530"),
            (
                "1883-11-18 12:03:58-04:56:02",
                "1883-11-19 12:03:58-04:56:02",
            ),
            ("2024-02-29T10:00", "2024-03-01T10:00"),
            ("0001-01-01", "0001-01-02"),
        ],
    );
    check_texts(
        "date_shift(days=-366)",
        &[("2024-12-31", "2023-12-31"), ("2024-03-01", "2023-03-01")],
    );
    check_texts(
        "date_shift(days=30)",
        &[
            ("infinity", "infinity"),
            ("-infinity", "-infinity"),
            ("0044-03-15 BC", "0044-04-14 BC"),
            ("0044-03-15 10:00:00.5+00 BC", "0044-04-14 10:00:00.5+00 BC"),
            ("0002-12-31 BC", "0001-01-30 BC"),
            ("0001-02-01 BC", "0001-03-02 BC"),
            ("12024-02-01", "12024-03-02"),
            ("294276-01-31 04:00:00", "294276-03-01 04:00:00"),
            ("5874897-11-30", "5874897-12-30"),
        ],
    );
    check_texts(
        "date_shift(days=-1)",
        &[("2000-03-01", "2000-02-29"), ("1900-03-01", "1900-02-28")],
    );
    check_texts(
        "date_shift(days=-1)",
        &[
            ("0005-03-01 BC", "0005-02-29 BC"),
            ("10001-01-01", "10000-12-31"),
        ],
    );
    check_texts(
        "generalize(date=year)",
        &[
            ("0044-03-15 10:00 BC", "0044-01-01 00:00 BC"),
            ("infinity", "infinity"),
        ],
    );
    for beyond in ["0001-12-31 BC", "99999-12-31"] {
        refused("date_shift(days=1)", Value::Str(beyond), "out of range");
    }
    refused(
        "date_shift(days=-1)",
        Value::Str("10000-01-01"),
        "out of range",
    );
    for wrong in [
        "0000-01-01 BC",
        "02024-01-01",
        "Infinity",
        "infinity BC",
        "2024-01-01 AD",
        "12345678-01-01",
        "2023-02-29",
    ] {
        refused("date_shift(days=1)", Value::Str(wrong), "not a date");
    }
    refused(
        "date_shift(days=1)",
        Value::Str("9999-12-31"),
        "out of range",
    );
    refused(
        "date_shift(days=-1)",
        Value::Str("0001-01-01"),
        "out of range",
    );
    for wrong in [
        "",
        "2024",
        "2024-2-29",
        "2023-02-29",
        "2024-13-01",
        "2024-00-01",
        "2024-01-00",
        "0000-01-01",
        "24-01-01",
        "2024/01/01",
        "2024-01-01 ",
        "2024-01-01x",
        "2024-01-01T",
        "2024-01-01T25:00:00",
        "2024-01-01T10:60:00",
        "2024-01-01T10:00:61",
        "2024-01-01T10:00:00.",
        "2024-01-01T10:00:00,5",
        "2024-01-01T10:00:00+",
        "2024-01-01T10:00:00+1",
        "2024-01-01T10:00:00 Z ",
        "2024-01-01T10:00:00ZZ",
        "2024-01-01Z",
        "-2024-01-01",
        "2024-01-01T10:00:00[Europe/Paris]",
        "２０２４-01-01",
    ] {
        refused("date_shift(days=1)", Value::Str(wrong), "not a date");
        refused("generalize(date=month)", Value::Str(wrong), "not a date");
    }
    refused(
        "date_shift(days=1)",
        Value::Uint(1_700_000_000),
        "values of this type",
    );
}

#[test]
fn the_intervals_of_one_subject_survive() {
    let function = "date_shift(within=365, subject=id)";
    let days = |date: &str, subject: Value<'_>| {
        let out = masked(function, Value::Str(date), Some(subject)).expect("a date and a subject");
        let Some(Value::Str(text)) = Value::read(&out) else {
            panic!("no string")
        };
        let number = |text: &str| text.parse::<i32>().expect("a number");
        let month = time::Month::try_from(number(&text[5..7]) as u8).expect("a month");
        time::Date::from_calendar_date(number(&text[..4]), month, number(&text[8..10]) as u8)
            .expect("a date")
            .to_julian_day()
    };
    let mut shifts = Vec::new();
    for subject in 0..200_u64 {
        let born = days("1980-02-29", Value::Uint(subject));
        let died = days("2024-03-01 10:00:00", Value::Str(&subject.to_string()));
        assert_eq!(died - born, 16_072, "{subject}");
        let shift = born - days("1980-02-29", Value::Uint(0));
        shifts.push(shift);
    }
    shifts.sort_unstable();
    assert!(shifts[199] - shifts[0] <= 730);
    shifts.dedup();
    assert!(
        shifts.len() > 100,
        "{} shifts of 200 subjects",
        shifts.len()
    );
    for subject in [
        None,
        Some(Value::Nil),
        Some(Value::Bool(true)),
        Some(Value::Float(1.0)),
        Some(Value::Bin(b"x")),
    ] {
        let unfit = masked(function, Value::Str("2024-01-01"), subject).expect_err("no subject");
        assert_eq!(unfit, Unfit::NoSubject);
    }
}

#[test]
fn date_shifts_are_nonzero_and_bounded() {
    for day in 1..=28 {
        for (within, range) in [(1, 1..=1), (3, 1..=3), (36_500, 1..=36_500)] {
            let date = format!("2024-02-{day:02}");
            let masked = text(&format!("date_shift(within={within})"), &date);
            let number = |text: &str| text.parse::<i32>().expect("a number");
            let month = time::Month::try_from(number(&masked[5..7]) as u8).expect("a month");
            let masked = time::Date::from_calendar_date(
                number(&masked[..4]),
                month,
                number(&masked[8..]) as u8,
            )
            .expect("a date");
            let before =
                time::Date::from_calendar_date(2024, time::Month::February, day).expect("a date");
            assert!(
                range.contains(&(masked - before).whole_days().abs()),
                "{date} {masked}"
            );
        }
    }
}

#[test]
fn generalized_values_are_coarser_and_of_their_form() {
    check_texts(
        "generalize(date=month)",
        &[
            ("2024-02-29", "2024-02-01"),
            ("2024-12-31T23:59:59.5+01:00", "2024-12-01T00:00:00.0+01:00"),
        ],
    );
    check_texts(
        "generalize(date=year)",
        &[
            ("2024-02-29 10:11", "2024-01-01 00:00"),
            ("1999-12-31", "1999-01-01"),
        ],
    );
    check_texts(
        "generalize(keep=3)",
        &[
            ("28013", "280"),
            ("28", "28"),
            ("", ""),
            ("e\u{301}té!", "e\u{301}té"),
        ],
    );
    check_texts("generalize(keep=0)", &[("28013", "")]);
    check_texts(
        "generalize(step=10)",
        &[
            ("37", "30"),
            ("37.5", "30.0"),
            ("-37.25", "-40.00"),
            ("-30", "-30"),
            ("0", "0"),
            ("-0.5", "-10.0"),
            ("9", "0"),
        ],
    );
    for (value, expected) in [
        (Value::Uint(37), Value::Uint(30)),
        (Value::Int(-37), Value::Int(-40)),
        (Value::Uint(u64::MAX), Value::Uint(u64::MAX - 5)),
        (Value::Float(37.5), Value::Float(30.0)),
        (Value::Single(37.5), Value::Single(30.0)),
        (Value::Float(-0.25), Value::Float(-10.0)),
    ] {
        check("generalize(step=10)", value, expected);
    }
    refused(
        "generalize(step=10)",
        Value::Int(i64::MIN + 1),
        "out of range",
    );
    refused(
        "generalize(keep=3)",
        Value::Uint(28013),
        "values of this type",
    );
    for wrong in [
        "",
        "-",
        ".",
        "1.",
        ".5",
        "+1",
        "01",
        "00",
        "1e3",
        "1,000",
        " 1",
        "0x10",
        "NaN",
        "１",
        &"1".repeat(31),
        &"9".repeat(40),
    ] {
        refused("generalize(step=10)", Value::Str(wrong), "plain decimal");
        refused("noise(percent=10)", Value::Str(wrong), "plain decimal");
    }
    refused("generalize(step=10)", Value::Float(f64::NAN), "finite");
    // At this magnitude, adding the step gives the same float, so the mask would not change the
    // value.
    for (function, needle) in [
        ("generalize(step=1000)", "out of range"),
        ("noise(by=1000)", "no other number"),
    ] {
        refused(function, Value::Float(1e89), needle);
        refused(function, Value::Float(-1e40), needle);
        refused(function, Value::Single(1e35), needle);
    }
    refused("noise(by=1)", Value::Single(f32::INFINITY), "finite");
}

#[test]
fn noise_stays_within_its_reach_on_its_side_of_zero_and_in_its_type() {
    let float = |function: &str, value: f64| match masked(function, Value::Float(value), None)
        .as_deref()
        .map(Value::read)
    {
        Ok(Some(Value::Float(masked))) => masked,
        other => panic!("{value}: {other:?}"),
    };
    let integer = |function: &str, value: i64| match masked(function, Value::Int(value), None)
        .as_deref()
        .map(Value::read)
    {
        Ok(Some(Value::Int(masked))) => masked,
        Ok(Some(Value::Uint(masked))) => i64::try_from(masked).expect("a signed one"),
        other => panic!("{value}: {other:?}"),
    };
    for value in (1..300).map(|n| n * 37) {
        let masked = integer("noise(percent=10)", value);
        assert!((masked - value).abs() <= value / 10, "{value}: {masked}");
        assert_eq!(integer("noise(percent=10)", -value).signum(), -1);
        let masked = integer("noise(by=40)", value);
        assert!(
            (masked - value).abs() <= 40 && masked >= 0,
            "{value}: {masked}"
        );
        let masked = float("noise(percent=10)", value as f64 + 0.25);
        assert!(
            (masked - value as f64 - 0.25).abs() <= value as f64 / 10.0 + 0.03,
            "{value}: {masked}"
        );
        assert!(
            (masked * 100.0 - (masked * 100.0).round()).abs() < 1e-6,
            "{value}: {masked} has more digits"
        );
        assert_eq!(
            float("noise(percent=10)", value as f64).fract(),
            0.0,
            "a whole float stays whole"
        );
    }
    let moved: std::collections::HashSet<i64> = (1000..1200)
        .map(|value| integer("noise(by=40)", value) - value)
        .collect();
    assert!(moved.len() > 50, "{} of 81 differences in 200", moved.len());
    for value in [
        f64::MAX,
        f64::MIN,
        1e300,
        -1e-300,
        f64::MIN_POSITIVE,
        5e-324,
    ] {
        let masked = float("noise(percent=100)", value);
        assert!(
            masked.is_finite() && masked.abs() <= value.abs() * 2.0,
            "{value}: {masked}"
        );
    }
    assert!(integer("noise(percent=100)", i64::MIN) <= 0);
    assert!(integer("noise(percent=100)", i64::MAX) >= 0);
    assert_eq!(
        masked("noise(percent=10)", Value::Float(1234.5), None)
            .map(|out| Value::read(&out).map(|v| format!("{v:?}")))
            .ok()
            .flatten(),
        Some(format!("Float({})", text("noise(percent=10)", "1234.5")))
    );
    for subject in [Value::Uint(1), Value::Uint(2)] {
        assert!(
            masked(
                "noise(percent=10, subject=id)",
                Value::Uint(1_000_000),
                Some(subject)
            )
            .is_ok()
        );
    }
    assert_ne!(
        masked(
            "noise(percent=10, subject=id)",
            Value::Uint(1_000_000),
            Some(Value::Uint(1))
        ),
        masked(
            "noise(percent=10, subject=id)",
            Value::Uint(1_000_000),
            Some(Value::Uint(2))
        ),
    );
}

/// Returns the number as a text, without zeros that do not change it.
fn plain(out: Result<Vec<u8>, Unfit>) -> String {
    let out = out.expect("a number that fits");
    let text = match Value::read(&out) {
        Some(Value::Int(value)) => value.to_string(),
        Some(Value::Uint(value)) => value.to_string(),
        Some(Value::Single(value)) => value.to_string(),
        Some(Value::Float(value)) => value.to_string(),
        Some(Value::Str(value)) => value.to_owned(),
        other => panic!("{other:?}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[test]
fn noise_is_the_same_for_equal_numbers_of_every_type() {
    for (function, values) in [
        (
            "noise(by=50)",
            &[
                Value::Uint(10),
                Value::Int(10),
                Value::Float(1e1),
                Value::Single(10.0),
            ][..],
        ),
        (
            "noise(by=50)",
            &[
                Value::Str("10"),
                Value::Str("10.0"),
                Value::Str("10.00"),
                Value::Uint(10),
            ],
        ),
        (
            "noise(by=2)",
            &[
                Value::Float(10.5),
                Value::Single(10.5),
                Value::Str("10.5"),
                Value::Str("10.500"),
            ],
        ),
        (
            "noise(percent=10)",
            &[Value::Float(5.0), Value::Str("5.0"), Value::Str("5.00")],
        ),
        (
            "noise(percent=10)",
            &[
                Value::Uint(10_u64.pow(15)),
                Value::Float(1e15),
                Value::Str("1000000000000000.0"),
            ],
        ),
        (
            "noise(percent=90)",
            &[Value::Float(1e-7), Value::Str("0.00000010")],
        ),
        (
            "noise(percent=50)",
            &[Value::Int(-40), Value::Float(-40.0), Value::Str("-40.000")],
        ),
    ] {
        let expected = plain(masked(function, values[0], None));
        for value in values {
            assert_eq!(
                plain(masked(function, *value, None)),
                expected,
                "{function} of {value:?}"
            );
        }
    }
}

#[test]
fn noise_never_returns_the_value_itself() {
    for function in [
        "noise(by=1)",
        "noise(by=3)",
        "noise(percent=10)",
        "noise(percent=100)",
    ] {
        for n in 1..400_i32 {
            let scaled = format!("{}.{:02}", n / 7 + 1, n % 100);
            for value in [
                Value::Int(i64::MAX - i64::from(n) + 1),
                Value::Int(i64::MIN + i64::from(n) - 1),
                Value::Uint(u64::MAX - n as u64 + 1),
                Value::Uint(n as u64 + 9),
                Value::Float(f64::from(n) / 3.0),
                Value::Single(n as f32 / 3.0),
                Value::Single(8_388_608.0 + n as f32),
                Value::Float(9_007_199_254_740_000.0 - f64::from(n)),
                Value::Str(&scaled),
            ] {
                match masked(function, value, None) {
                    Err(unfit) => panic!("{function} of {value:?}: {unfit}"),
                    Ok(out) => {
                        let mut same = Vec::new();
                        value.write(&mut same);
                        assert_ne!(out, same, "{function} of {value:?}");
                    }
                }
            }
        }
    }
    for (function, value) in [
        ("noise(percent=10)", Value::Float(5e-324)),
        ("noise(by=1)", Value::Single(33_554_432.0)),
        ("noise(by=1)", Value::Float(1e20)),
        ("noise(by=1000)", Value::Float(1e89)),
    ] {
        refused(function, value, "no other number");
    }
}

#[test]
fn noise_without_another_number_in_reach_gives_the_next_one() {
    for (function, value, expected) in [
        ("noise(percent=10)", Value::Uint(9), &["8", "10"][..]),
        ("noise(percent=10)", Value::Int(-3), &["-2", "-4"]),
        ("noise(percent=10)", Value::Uint(0), &["1"]),
        ("noise(percent=10)", Value::Str("0.00"), &["0.01"]),
        ("noise(percent=10)", Value::Str("0.09"), &["0.08", "0.10"]),
        ("noise(percent=100)", Value::Float(0.0), &["1"]),
        ("noise(percent=10, max=9)", Value::Uint(9), &["8"]),
    ] {
        let out = plain(masked(function, value, None));
        assert!(
            expected.contains(&out.as_str()),
            "{function} {value:?}: {out}"
        );
    }
    refused(
        "noise(percent=10, min=9, max=9)",
        Value::Uint(9),
        "no other number",
    );
    refused(
        "noise(percent=10, max=0)",
        Value::Uint(0),
        "no other number",
    );
}

#[test]
fn noise_stays_within_its_bounds() {
    for n in -900..=900_i32 {
        let value = f64::from(n) / 10.0;
        let out: f64 = plain(masked(
            "noise(by=1, min=-90, max=90)",
            Value::Float(value),
            None,
        ))
        .parse()
        .expect("a float");
        assert!(
            (-90.0..=90.0).contains(&out) && out != value && (out - value).abs() < 1.000_001,
            "{value}: {out}"
        );
        let text = format!("{value:.4}");
        let out = masked("noise(percent=50, max=20)", Value::Str(&text), None);
        if value > 40.0 {
            assert_eq!(out, Err(Unfit::NoOther), "{text}");
        } else {
            let out: f64 = plain(out).parse().expect("a float");
            assert!(
                out <= 20.0 && (out - value).abs() <= (value.abs() / 2.0).max(0.0001) + 1e-9,
                "{text}: {out}"
            );
        }
    }
    refused(
        "noise(by=1, min=-90, max=90)",
        Value::Float(200.5),
        "no other number",
    );
    refused(
        "noise(by=1, min=0, max=90)",
        Value::Int(-7),
        "no other number",
    );
    check("noise(by=1, min=7)", Value::Uint(7), Value::Uint(8));
    check("noise(by=1, max=90)", Value::Uint(90), Value::Uint(89));
}

#[test]
fn mac_keeps_form_and_kind_of_an_address() {
    for given in [
        "08:00:2b:01:02:03",
        "0A-00-2B-01-02-FF",
        "0800.2b01.0203",
        "33:33:00:00:00:01",
        "08002b0102030405",
    ] {
        let made = text("mac", given);
        let form = |text: &str| text.replace(|c: char| c.is_ascii_hexdigit(), "f");
        assert!(form(&made) == form(given) && made != given, "{made}");
        let kind = |text: &str| u8::from_str_radix(&text[1..2], 16).expect("a digit") & 3;
        assert_eq!(kind(&made), kind(given), "{made}");
    }
    assert_eq!(
        text("mac", "0A:00:2B:01:02:FF").to_lowercase(),
        text("mac", "0a-00-2b-01-02-ff").replace('-', ":")
    );
    for wrong in [
        "",
        "08:00:2b:01:02",
        "08:00:2b:01:02:03:04",
        "08:00:2b:01:02:0g",
        "08 00 2b 01 02 03",
    ] {
        refused("mac", Value::Str(wrong), "a hardware address");
    }
    refused("mac", Value::Uint(1), "values of this type");
}

#[test]
fn postal_code_keeps_letters_and_digits_in_their_places() {
    for given in [
        "10115",
        "SW1A 1AA",
        "sw1a1aa",
        "12345-6789",
        "D02 AF30",
        "00",
        "ZZ9",
    ] {
        let made = text("postal_code", given);
        let form = |text: &str| {
            text.chars()
                .map(|c| {
                    if c.is_ascii_digit() {
                        '9'
                    } else if c.is_ascii_uppercase() {
                        'A'
                    } else if c.is_ascii_lowercase() {
                        'a'
                    } else {
                        c
                    }
                })
                .collect::<String>()
        };
        assert!(
            form(&made) == form(given) && made != given,
            "{given}: {made}"
        );
    }
    // One code in three spellings.
    let compact = |given: &str| text("postal_code", given).to_uppercase().replace(' ', "");
    assert_eq!(
        (compact("SW1A 1AA"), compact("sw1a1aa")),
        (compact("SW1A1AA"), compact("SW1A1AA"))
    );
    for wrong in ["", "1", "1234567890123", "101,15", "１０１１５"] {
        refused("postal_code", Value::Str(wrong), "a postal code");
    }
    refused("postal_code", Value::Uint(10115), "values of this type");
}

#[test]
fn iban_keeps_country_form_and_valid_check_digits() {
    for given in [
        "DE89 3704 0044 0532 0130 00",
        "GB82WEST12345698765432",
        "NO9386011117947",
        "FR1420041010050500013M02606",
    ] {
        let made = text("iban", given);
        assert!(crate::Kind::Iban.knows(&made), "{made}");
        let letters = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "9");
        assert!(letters(&made) == letters(given) && made != given, "{made}");
    }
    for wrong in [
        "DE88370400440532013000",
        "de89370400440532013000",
        "",
        "DE89",
        "DE89\u{a0}3704 0044 0532 0130 00",
    ] {
        refused("iban", Value::Str(wrong), "an IBAN");
    }
    refused("iban", Value::Uint(1), "values of this type");
}
