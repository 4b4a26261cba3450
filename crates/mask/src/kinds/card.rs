//! Payment card numbers, ISO/IEC 7812-1.

/// 13 to 19 digits of an industry that issues cards, spaces or hyphens between them.
pub(super) fn is_card(text: &[u8]) -> bool {
    // Cheap first: nearly every string ends here.
    if !matches!(text.first(), Some(b'2'..=b'6')) || !(13..=40).contains(&text.len()) {
        return false;
    }
    let Some((digits, len)) = super::digits::<19>(text, b" -") else { return false };
    let digits = &digits[..len];
    len >= 13 && luhn(digits).is_multiple_of(10) && digits.iter().any(|digit| *digit != digits[0])
}

/// Luhn's sum (ISO/IEC 7812-1, annex B) over ASCII digits; a valid number's is a multiple of ten.
pub(crate) fn luhn(digits: &[u8]) -> u32 {
    digits.iter().rev().enumerate().map(|(at, digit)| weight(*digit, !at.is_multiple_of(2))).sum()
}

/// The digit that takes the place of `digits[at]` so that Luhn's sum comes out.
pub(crate) fn check_digit(digits: &[u8], at: usize) -> u8 {
    let is_doubled = (digits.len() - at).is_multiple_of(2);
    let others = luhn(digits) - weight(digits[at], is_doubled);
    let missing = (10 - others % 10) % 10;
    // What a digit adds to the sum is a permutation of 0..10 in either parity, so exactly one fits.
    (b'0'..=b'9').find(|digit| weight(*digit, is_doubled) == missing).unwrap_or(b'0')
}

fn weight(digit: u8, is_doubled: bool) -> u32 {
    match (u32::from(digit - b'0'), is_doubled) {
        (digit, false) => digit,
        (digit @ 0..5, true) => 2 * digit,
        (digit, true) => 2 * digit - 9,
    }
}
