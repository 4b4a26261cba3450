//! Values made of digits: decimals, phone numbers, card numbers, bank accounts and national ids.

use sealwire_msgpack::Token;
use zeroize::Zeroizing;

use super::{Checked, stored, stored_display, string_text};

/// Most digits of a decimal, before and behind the point together.
const DECIMAL_DIGITS_MAX: usize = 38;
/// Longest phone number in bytes, with its separators.
const PHONE_BYTES_MAX: usize = 64;

/// Stores a decimal as text without `+` and without needless zeros in front. Digits behind the
/// point are kept.
pub(super) fn check_decimal(token: Token<'_>) -> Checked {
    const FORM: &str = "be an integer, or a string like -12.50";
    let text = match token {
        Token::Uint(value) => return Ok(stored_display(&value)),
        Token::Int(value) => return Ok(stored_display(&value)),
        token => string_text(token, FORM)?,
    };
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => ("-", &text[1..]),
        Some(b'+') => ("", &text[1..]),
        _ => ("", text),
    };
    let (whole, fraction) = digits
        .split_once('.')
        .map_or((digits, None), |(whole, part)| (whole, Some(part)));
    if !is_digits(whole) || !fraction.is_none_or(is_digits) {
        return Err(FORM);
    }
    if whole.len() + fraction.map_or(0, str::len) > DECIMAL_DIGITS_MAX {
        return Err("have at most 38 digits");
    }
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    let mut out = Zeroizing::new(String::with_capacity(text.len() + 1));
    out.push_str(sign);
    out.push_str(whole);
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    Ok(stored(&out))
}

/// Stores a phone number as given. Only a number with its country code names one telephone.
pub(super) fn check_phone(text: &str) -> Checked {
    const DIGITS: &str = "have 7 to 15 digits, with only spaces and -./() between them";
    let Some(rest) = text.strip_prefix('+').or_else(|| text.strip_prefix("00")) else {
        return Err("begin with + or 00 and the country code, like +49 or 0049");
    };
    // "(0)" is not dialled from abroad, but the digits alone do not show that.
    if rest.contains("(0)") {
        return Err("leave out (0) behind the country code");
    }
    if text.len() > PHONE_BYTES_MAX
        || !rest
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b" -./()".contains(&byte))
    {
        return Err(DIGITS);
    }
    let mut digits = rest.bytes().filter(u8::is_ascii_digit);
    match (digits.next(), digits.count()) {
        (Some(b'0'), _) => Err("have a country code, which never begins with 0"),
        (Some(_), 6..=14) => Ok(stored(text)),
        _ => Err(DIGITS),
    }
}

/// Stores a card number as its digits.
pub(super) fn check_card(text: &str) -> Checked {
    const FORM: &str = "be 12 to 19 digits with at most one space or hyphen between two of them";
    let mut digits = Zeroizing::new(String::with_capacity(19));
    let mut was_digit = false;
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' if digits.len() < 19 => digits.push(byte.into()),
            b' ' | b'-' if was_digit => {}
            _ => return Err(FORM),
        }
        was_digit = byte.is_ascii_digit();
    }
    if !was_digit || digits.len() < 12 {
        return Err(FORM);
    }
    if !passes_luhn(digits.as_bytes()) {
        return Err("pass the Luhn check");
    }
    Ok(stored(&digits))
}

/// Returns true if the sum of the digits, every second one from the right doubled, is a multiple of
/// ten.
fn passes_luhn(digits: &[u8]) -> bool {
    let sum = digits.iter().rev().enumerate().map(|(at, digit)| {
        let value = u32::from(digit - b'0');
        if at % 2 == 0 {
            value
        } else {
            value * 2 / 10 + value * 2 % 10
        }
    });
    sum.sum::<u32>() % 10 == 0
}

/// Stores a bank account number in upper case without spaces.
pub(super) fn check_iban(text: &str) -> Checked {
    const FORM: &str =
        "be two letters, two check digits, and 11 to 30 letters or digits, with or without spaces";
    const CHECK: &str = "have the right check digits";
    let mut compact = Zeroizing::new(String::with_capacity(34));
    for byte in text.bytes().filter(|byte| *byte != b' ') {
        if !byte.is_ascii_alphanumeric() || compact.len() == 34 {
            return Err(FORM);
        }
        compact.push(byte.to_ascii_uppercase().into());
    }
    let bytes = compact.as_bytes();
    let is_formed = bytes.len() >= 15
        && bytes[..2].iter().all(u8::is_ascii_uppercase)
        && bytes[2..4].iter().all(u8::is_ascii_digit);
    if !is_formed {
        return Err(FORM);
    }
    // Check digits are 98 minus a remainder, so these three never occur although they have a valid
    // remainder.
    if matches!(&bytes[2..4], b"00" | b"01" | b"99") || remainder_by_97(bytes) != 1 {
        return Err(CHECK);
    }
    Ok(stored(&compact))
}

/// Returns the remainder modulo 97, with the first four characters moved to the end and letters as
/// 10 to 35.
fn remainder_by_97(compact: &[u8]) -> u32 {
    compact[4..]
        .iter()
        .chain(&compact[..4])
        .fold(0, |rest, byte| match byte {
            b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
            _ => (rest * 100 + u32::from(byte - b'A') + 10) % 97,
        })
}

fn is_digits(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Stores a national id as given.
pub(super) fn check_national_id(text: &str) -> Checked {
    const FORM: &str =
        "be 4 to 32 letters, digits, spaces and .-/, of which at least 4 letters or digits";
    let mut all = 0;
    let mut kept = 0;
    // The 33rd character shows that there are too many.
    for char in text.chars().take(33) {
        all += 1;
        match char {
            ' ' | '.' | '-' | '/' => {}
            char if char.is_alphanumeric() => kept += 1,
            _ => return Err(FORM),
        }
    }
    if all > 32 || kept < 4 {
        return Err(FORM);
    }
    Ok(stored(text))
}
