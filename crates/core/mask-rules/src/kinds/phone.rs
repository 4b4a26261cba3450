//! Telephone numbers: ITU-T E.164 after `+` or `00`, and North American numbers.

/// Allowed separators between digits.
const BETWEEN: &[u8] = b" -.()/";

pub(super) fn is_phone(text: &[u8]) -> bool {
    if !(8..=32).contains(&text.len()) {
        return false;
    }
    match text {
        [b'+', rest @ ..] | [b'0', b'0', rest @ ..] => is_international(rest),
        _ => is_north_american(text),
    }
}

/// Returns true for 8 to 15 digits that begin with a calling code.
fn is_international(text: &[u8]) -> bool {
    let Some((digits, len)) = spread(text) else {
        return false;
    };
    (8..=15).contains(&len)
        && text[0].is_ascii_digit()
        && calling_code_digits(&digits[..len]).is_some()
}

/// Returns true for `415-555-2671` or `(415) 555-2671`: ten digits with separators. Area and
/// exchange must be at least 200 and not end in 11.
fn is_north_american(text: &[u8]) -> bool {
    let is_shaped =
        matches!(text, [b'(', _, _, _, b')', ..]) || matches!(text, [_, _, _, b'-' | b'.', ..]);
    let Some((digits, 10)) = spread(text) else {
        return false;
    };
    is_shaped && is_office(&digits[..3]) && is_office(&digits[3..6])
}

/// Returns true if three digits can be an area or an exchange.
fn is_office(digits: &[u8]) -> bool {
    matches!(digits[0], b'2'..=b'9') && &digits[1..3] != b"11"
}

/// Extracts the digits. At most two separators stand between two digits, and brackets must be
/// paired.
fn spread(text: &[u8]) -> Option<([u8; 15], usize)> {
    let mut digits = [0; 15];
    let mut len = 0;
    let mut gap = 0;
    let mut open = false;
    for byte in text {
        match byte {
            b'0'..=b'9' => {
                *digits.get_mut(len)? = *byte;
                len += 1;
                gap = 0;
                continue;
            }
            b'(' if !open => open = true,
            b')' if open => open = false,
            b'(' | b')' => return None,
            _ if BETWEEN.contains(byte) => {}
            _ => return None,
        }

        gap += 1;
        if gap > 2 {
            return None;
        }
    }

    (gap == 0 && !open).then_some((digits, len))
}

/// Returns the length of the calling code at the start of a number, by the zones of ITU-T's list of
/// codes.
pub fn calling_code_digits(digits: &[u8]) -> Option<usize> {
    match digits {
        [b'1' | b'7', ..] => Some(1),
        [b'2', b'0' | b'7', ..]
        | [b'3', b'0'..=b'4' | b'6' | b'9', ..]
        | [b'4', b'0' | b'1' | b'3'..=b'9', ..]
        | [b'5', b'1'..=b'8', ..]
        | [b'6', b'0'..=b'6', ..]
        | [b'8', b'1' | b'2' | b'4' | b'6', ..]
        | [b'9', b'0'..=b'5' | b'8', ..] => Some(2),
        [b'2'..=b'9', _, _, ..] => Some(3),
        _ => None,
    }
}
