//! Formats of tokens, and their uniform distribution.

use proptest::prelude::*;

use crate::token::format::{below, luhn};
use crate::token::{CardEnds, Format, Unfit};
use sealwire_crypto::{Datatype, Error};

const VISA: &str = "4242424242424242";

fn card(first: u8, last: u8) -> Format {
    Format::Card(CardEnds::new(first, last).unwrap())
}

fn token(format: Format, value: &str) -> Result<String, Unfit> {
    let mut out = "what was there".to_owned();
    format
        .generate(Datatype::String, value.as_bytes(), &mut out)
        .map(|()| out)
}

#[test]
fn a_value_that_has_no_token_is_refused() {
    use Datatype::{Binary, String as Text, Value};
    let digits_65 = "1".repeat(65);
    for (format, datatype, value, expected) in [
        (Format::Digits, Text, "", Err(Unfit::NotDigits)),
        (Format::Digits, Text, "12a4", Err(Unfit::NotDigits)),
        (Format::Digits, Text, " 123", Err(Unfit::NotDigits)),
        (Format::Digits, Text, "-123", Err(Unfit::NotDigits)),
        (Format::Digits, Text, "\u{0661}", Err(Unfit::NotDigits)),
        (Format::Digits, Text, &digits_65, Err(Unfit::NotDigits)),
        (Format::Digits, Binary, "1234", Err(Unfit::NotDigits)),
        (Format::Digits, Value, "1234", Err(Unfit::NotDigits)),
        (Format::Digits, Text, "1", Ok(())),
        (Format::Digits, Text, &digits_65[1..], Ok(())),
        (card(6, 4), Text, "4242424242424241", Err(Unfit::NotCard)),
        (card(6, 4), Text, "4242 4242 4242 4242", Err(Unfit::NotCard)),
        (card(6, 4), Text, "00000000000", Err(Unfit::NotCard)),
        (
            card(6, 4),
            Text,
            "00000000000000000000",
            Err(Unfit::NotCard),
        ),
        (card(6, 4), Text, "", Err(Unfit::NotCard)),
        (card(6, 4), Text, "424242424242424x", Err(Unfit::NotCard)),
        (card(6, 4), Binary, VISA, Err(Unfit::NotCard)),
        (card(6, 4), Text, "000000000000", Ok(())),
        (card(6, 4), Text, "0000000000000000000", Ok(())),
        (card(0, 0), Text, "378282246310005", Ok(())),
        (Format::Opaque, Binary, "\0", Ok(())),
        (Format::Uuid, Value, "", Ok(())),
        (Format::Email, Text, "x@example.com", Ok(())),
    ] {
        let mut out = String::new();
        assert_eq!(
            format.generate(datatype, value.as_bytes(), &mut out),
            expected,
            "{format:?} {value:?}"
        );
        assert_eq!(format.has_shape(&out), expected.is_ok(), "{out}");
    }
    let mut out = String::new();
    assert_eq!(
        Format::Digits.generate(Datatype::String, &[0xff], &mut out),
        Err(Unfit::NotDigits)
    );
}

#[test]
fn values_of_another_shape_are_errors() {
    let opaque = token(Format::Opaque, "").unwrap();
    let uuid = token(Format::Uuid, "").unwrap();
    let email = token(Format::Email, "").unwrap();
    for (format, text) in [
        (Format::Opaque, ""),
        (Format::Opaque, "tok_"),
        (Format::Opaque, &opaque[..25]),
        (Format::Opaque, &format!("{opaque}a")),
        (Format::Opaque, &format!(" {opaque}")),
        (Format::Opaque, &opaque.replace("tok_", "TOK_")),
        (Format::Opaque, "tok_000000000000000000000-"),
        (Format::Opaque, "tok_00000000000000000000\u{e9}"),
        (Format::Opaque, &uuid),
        (Format::Uuid, &opaque),
        (Format::Uuid, &uuid.to_uppercase().replace('-', "A")),
        (Format::Uuid, "00000000-0000-1000-8000-000000000000"),
        (Format::Uuid, "00000000-0000-4000-7000-000000000000"),
        (Format::Uuid, "00000000-0000-4000-c000-000000000000"),
        (Format::Uuid, "A0000000-0000-4000-8000-000000000000"),
        (Format::Uuid, "0000000000000-4000-8000-000000000000"),
        (Format::Uuid, &uuid[1..]),
        (Format::Email, &email.replace("tokens", "token")),
        (Format::Email, &email.replace("tok-", "tok_")),
        (Format::Email, &email[..20]),
        (
            Format::Email,
            "tok-000000000000000000000000A@tokens.invalid",
        ),
        (Format::Email, "tok-@tokens.invalid"),
        (Format::Digits, ""),
        (Format::Digits, "1 "),
        (card(6, 4), "4242424242424241"),
        (card(6, 4), "00000000000"),
    ] {
        assert!(!format.has_shape(text), "{format:?} {text}");
    }
    assert!(Format::Uuid.has_shape("00000000-0000-4000-b000-00000000000f"));
}

#[test]
fn more_than_a_card_may_show_is_refused() {
    for (first, last, expected) in [
        (6, 4, None),
        (0, 0, None),
        (7, 4, Some(Error::InvalidCardEnds)),
        (6, 5, Some(Error::InvalidCardEnds)),
    ] {
        assert_eq!(CardEnds::new(first, last).err(), expected, "{first} {last}");
    }
    assert_eq!(Some(CardEnds::default()), CardEnds::new(6, 4).ok());
    assert_eq!(
        (CardEnds::default().first(), CardEnds::default().last()),
        (6, 4)
    );
}

/// The smallest spaces: every token but the value comes, and the value never.
#[test]
fn random_tokens_cover_all_but_the_value() {
    let cards: Vec<String> = (0..100)
        .map(|n| format!("424242{n:02}4242"))
        .filter(|card| luhn(card.as_bytes()).is_multiple_of(10))
        .collect();
    let digits: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    for (format, space, value) in [
        (Format::Digits, &digits, "7"),
        (card(6, 4), &cards, &cards[3]),
    ] {
        assert_eq!(space.len(), 10);
        let mut seen: Vec<String> = (0..1_000).map(|_| token(format, value).unwrap()).collect();
        seen.sort_unstable();
        seen.dedup();
        // Each of nine is missed by a thousand draws with a chance of 10^-51.
        let others: Vec<String> = space
            .iter()
            .filter(|token| *token != value)
            .cloned()
            .collect();
        assert_eq!(seen, others, "{format:?}");
    }
}

/// Pearson's statistic against equal shares.
fn chi_square(counts: &[u32]) -> f64 {
    let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
    counts
        .iter()
        .map(|count| (f64::from(*count) - expected).powi(2) / expected)
        .sum()
}

/// Sixteen standard deviations beyond its mean. From 9 degrees of freedom on, an even source
/// exceeds it with a chance below 10^-12.
fn bound(cells: usize) -> f64 {
    let freedom = cells as f64 - 1.0;
    freedom + 16.0 * (2.0 * freedom).sqrt()
}

#[test]
fn draws_are_even_and_a_biased_source_would_show() {
    const DRAWS: usize = 1_000_000;
    let mut bytes = vec![0; 1 << 16];
    let mut at = bytes.len();
    let mut random = || {
        if at == bytes.len() {
            aws_lc_rs::rand::fill(&mut bytes).unwrap();
            at = 0;
        }
        at += 1;
        Ok::<_, ()>(bytes[at - 1])
    };
    for cells in [10u8, 36, 62] {
        let statistic = |draw: &mut dyn FnMut() -> u8| {
            let mut counts = vec![0u32; cells.into()];
            (0..DRAWS).for_each(|_| counts[usize::from(draw())] += 1);
            chi_square(&counts)
        };
        let bound = bound(cells.into());
        let even = statistic(&mut || below(cells, &mut random).unwrap());
        assert!(even < bound, "{cells}: {even} of {bound}");
        let biased = statistic(&mut || random().unwrap() % cells);
        assert!(biased > bound, "{cells}: {biased} of {bound} must show");
    }
    for (bound, passed_over) in [(10, 250), (36, 252), (62, 248)] {
        let mut bytes = [passed_over, 255, passed_over - 1].into_iter();
        let drawn = below(bound, &mut || bytes.next().ok_or(()));
        assert_eq!(
            drawn,
            Ok(bound - 1),
            "beyond the last multiple it is drawn again"
        );
    }
}

/// Whole tokens, position by position, so that the generator and not only its draw is looked at.
#[test]
fn random_characters_are_uniform_in_all_positions() {
    const TOKENS: usize = 20_000;
    let table: [(Format, &str, std::ops::Range<usize>, usize); 6] = [
        (Format::Opaque, "", 4..26, 62),
        (Format::Email, "", 4..29, 36),
        (Format::Uuid, "", 20..23, 16),
        (Format::Digits, "123456789", 0..9, 10),
        (card(6, 4), VISA, 6..12, 10),
        (card(0, 0), VISA, 0..16, 10),
    ];
    for (format, value, positions, cells) in table {
        let tokens: Vec<String> = (0..TOKENS).map(|_| token(format, value).unwrap()).collect();
        for at in positions {
            let mut counts = std::collections::HashMap::new();
            tokens
                .iter()
                .for_each(|token| *counts.entry(token.as_bytes()[at]).or_insert(0u32) += 1);
            assert_eq!(counts.len(), cells, "{format:?} at {at}");
            let counts: Vec<u32> = counts.into_values().collect();
            assert!(
                chi_square(&counts) < bound(cells),
                "{format:?} at {at}: {}",
                chi_square(&counts)
            );
        }
    }
}

/// A number with the check digit that makes it pass.
fn valid_card(mut digits: String) -> String {
    digits.push('0');
    let missing = (10 - luhn(digits.as_bytes()) % 10) % 10;
    digits.pop();
    digits + &missing.to_string()
}

#[test]
fn luhn_is_the_published_one() {
    for (number, valid) in [
        ("79927398713", true),
        ("79927398710", false),
        ("4111111111111111", true),
        ("378282246310005", true),
        ("6011111111111117", true),
        ("4111111111111112", false),
        ("1411111111111111", false),
    ] {
        assert_eq!(
            luhn(number.as_bytes()).is_multiple_of(10),
            valid,
            "{number}"
        );
    }
}

proptest! {
    #[test]
    fn a_card_keeps_its_ends_and_passes_luhn(digits in "[0-9]{11,18}", first in 0u8..=6, last in 0u8..=4) {
        let value = valid_card(digits);
        let token = token(card(first, last), &value).unwrap();
        prop_assert!(card(first, last).has_shape(&token));
        prop_assert!(luhn(token.as_bytes()).is_multiple_of(10));
        prop_assert_eq!(token.len(), value.len());
        prop_assert_eq!(&token[..first.into()], &value[..first.into()]);
        let end = value.len() - usize::from(last);
        prop_assert_eq!(&token[end..], &value[end..]);
        prop_assert_ne!(token, value);
    }

    #[test]
    fn digits_keep_their_number(value in "[0-9]{1,64}") {
        let token = token(Format::Digits, &value).unwrap();
        prop_assert!(Format::Digits.has_shape(&token));
        prop_assert_eq!(token.len(), value.len());
        prop_assert_ne!(token, value);
    }

    #[test]
    fn formats_without_a_shape_accept_any_value(value: Vec<u8>, datatype in 0u8..3) {
        let datatype = Datatype::from_byte(datatype).unwrap();
        for (format, length) in [(Format::Opaque, 26), (Format::Uuid, 36), (Format::Email, 44)] {
            let mut out = String::new();
            format.generate(datatype, &value, &mut out).unwrap();
            prop_assert_eq!(out.len(), length);
            prop_assert!(format.has_shape(&out), "{}", out);
        }
    }

    #[test]
    fn random_strings_have_a_shape_or_not(text: String) {
        for format in [Format::Opaque, Format::Uuid, Format::Digits, card(6, 4), Format::Email] {
            let _ = format.has_shape(&text);
        }
    }
}
