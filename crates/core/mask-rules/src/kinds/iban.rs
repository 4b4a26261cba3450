//! International bank account numbers, ISO 13616.

/// Returns true for two letters, two check digits, and 11 to 30 letters or digits, with a valid
/// checksum. Spaces stand after each group of four, or nowhere.
pub(super) fn is_iban(text: &[u8]) -> bool {
    if !(15..=42).contains(&text.len()) || !text[..2].iter().all(u8::is_ascii_uppercase) {
        return false;
    }

    let mut compact = [0; 34];
    let mut len = 0;
    let is_grouped = text[4] == b' ';
    for (at, byte) in text.iter().enumerate() {
        if is_grouped && at % 5 == 4 {
            if *byte != b' ' || at + 1 == text.len() {
                return false;
            }
        } else {
            let Some(slot) = compact.get_mut(len) else {
                return false;
            };
            *slot = *byte;
            len += 1;
        }
    }

    let compact = &compact[..len];
    len >= 15
        && compact[2..4].iter().all(u8::is_ascii_digit)
        && !matches!(&compact[2..4], b"00" | b"01" | b"99")
        && compact
            .iter()
            .all(|byte: &u8| byte.is_ascii_digit() || byte.is_ascii_uppercase())
        && remainder(compact) == 1
}

/// Computes the check digits of an account number with the check digits 00. Spaces are ignored.
#[must_use]
pub fn iban_check_digits(text: &[u8]) -> [u8; 2] {
    let mut compact = [0; 34];
    let mut len = 0;
    for (slot, byte) in compact
        .iter_mut()
        .zip(text.iter().filter(|byte| **byte != b' '))
    {
        *slot = *byte;
        len += 1;
    }
    let check = 98 - remainder(&compact[..len.max(4)]) as u8;
    [b'0' + check / 10, b'0' + check % 10]
}

/// Computes the remainder modulo 97, with the first four characters moved to the end and letters as
/// 10 to 35.
fn remainder(compact: &[u8]) -> u32 {
    compact[4..]
        .iter()
        .chain(&compact[..4])
        .fold(0, |rest, byte| match byte {
            b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
            _ => (rest * 100 + u32::from(byte - b'A') + 10) % 97,
        })
}
