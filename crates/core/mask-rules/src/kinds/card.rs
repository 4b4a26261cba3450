//! Payment card numbers, ISO/IEC 7812-1.

/// Returns true for 13 to 19 digits with spaces or hyphens between them, a first digit of card
/// issuers, and a valid Luhn sum.
pub(super) fn is_card(text: &[u8]) -> bool {
    // A cheap check first, since it rejects nearly every string.
    if !matches!(text.first(), Some(b'2'..=b'6')) || !(13..=40).contains(&text.len()) {
        return false;
    }
    let Some((digits, len)) = super::digits::<19>(text, b" -") else {
        return false;
    };
    let digits = &digits[..len];
    len >= 13 && luhn(digits).is_multiple_of(10) && digits.iter().any(|digit| *digit != digits[0])
}

/// Computes the Luhn sum (ISO/IEC 7812-1, annex B) over ASCII digits. The sum of a valid number is
/// a multiple of ten.
pub fn luhn(digits: &[u8]) -> u32 {
    digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| weight(*digit, !at.is_multiple_of(2)))
        .sum()
}

/// Returns the digit for position `at` that makes the Luhn sum valid.
pub fn check_digit(digits: &[u8], at: usize) -> u8 {
    let is_doubled = (digits.len() - at).is_multiple_of(2);
    let others = luhn(digits) - weight(digits[at], is_doubled);
    let missing = (10 - others % 10) % 10;
    // In both positions, a digit's share of the sum is a permutation of 0..10, so exactly one digit
    // fits.
    (b'0'..=b'9')
        .find(|digit| weight(*digit, is_doubled) == missing)
        .unwrap_or(b'0')
}

fn weight(digit: u8, is_doubled: bool) -> u32 {
    match (u32::from(digit - b'0'), is_doubled) {
        (digit, false) => digit,
        (digit @ 0..5, true) => 2 * digit,
        (digit, true) => 2 * digit - 9,
    }
}
