//! National ids of persons. Only forms that are hard to mistake are recognized: forms with check
//! characters, or with separators and forbidden ranges. Numbers without either, such as nine bare
//! digits, are left out on purpose.

mod more;

pub(super) fn is_national_id(text: &[u8]) -> bool {
    match text.len() {
        9 => is_spanish(text) || is_british(text),
        11 => {
            is_american(text)
                || more::is_german(text)
                || more::is_polish(text)
                || more::is_norwegian(text)
                || more::is_swedish(text)
                || more::is_finnish(text)
                || more::is_dutch(text)
                || more::is_danish(text)
                || more::is_chilean(text)
        }
        12 => more::is_chilean(text),
        13 => is_british_grouped(text) || more::is_swedish(text),
        14 => is_brazilian(text) || more::is_german(text) || more::is_indian(text),
        15 => is_french(text) || more::is_belgian(text),
        16 => is_italian(text) || more::is_swiss(text),
        18 => more::is_chinese(text),
        _ => false,
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |number, digit| {
        digit.is_ascii_digit().then(|| {
            number
                .wrapping_mul(10)
                .wrapping_add(u64::from(digit - b'0'))
        })
    })
}

/// US Social Security number, `219-09-9999`. Areas 000, 666 and from 900, group 00, and serial 0000
/// are invalid.
fn is_american(text: &[u8]) -> bool {
    let [a, b, c, b'-', d, e, b'-', f, g, h, i] = text else {
        return false;
    };
    let area = number(&[*a, *b, *c]);
    let group = number(&[*d, *e]);
    let serial = number(&[*f, *g, *h, *i]);
    matches!(area, Some(1..=665 | 667..=899))
        && matches!(group, Some(1..))
        && matches!(serial, Some(1..))
}

/// UK National Insurance number, `AB123456C`, or in pairs, `AB 12 34 56 C`. The number has no check
/// character.
fn is_british(text: &[u8]) -> bool {
    let [a, b, digits @ .., end] = text else {
        return false;
    };
    is_british_letter(a)
        && is_british_letter(b)
        && *b != b'O'
        && ![b"BG", b"GB", b"KN", b"NK", b"NT", b"TN", b"ZZ"].contains(&&[*a, *b])
        && number(digits).is_some()
        && matches!(end, b'A'..=b'D')
}

fn is_british_letter(c: &u8) -> bool {
    c.is_ascii_uppercase() && !b"DFIQUV".contains(c)
}

fn is_british_grouped(text: &[u8]) -> bool {
    let [a, b, b' ', c, d, b' ', e, f, b' ', g, h, b' ', i] = text else {
        return false;
    };
    is_british(&[*a, *b, *c, *d, *e, *f, *g, *h, *i])
}

/// Spanish DNI, `12345678Z`, and NIE, `X1234567L`. The last letter encodes the remainder modulo 23.
fn is_spanish(text: &[u8]) -> bool {
    let [first, rest @ .., letter] = text else {
        return false;
    };

    let first = match first {
        b'X' => b'0',
        b'Y' => b'1',
        b'Z' => b'2',
        other => *other,
    };

    let (Some(first), Some(rest)) = (number(&[first]), number(rest)) else {
        return false;
    };

    b"TRWAGMYFPDXBNJZSQVHLCKE"[((first * 10_000_000 + rest) % 23) as usize] == *letter
}

/// French NIR, `255081416802538`: sex, year, month, place, order, and a check number (97 minus the
/// remainder modulo 97).
fn is_french(text: &[u8]) -> bool {
    let mut body = [0; 13];
    body.copy_from_slice(&text[..13]);
    // Corsica: 2A counts as 19, 2B as 18.
    match &body[5..7] {
        b"2A" => body[5..7].copy_from_slice(b"19"),
        b"2B" => body[5..7].copy_from_slice(b"18"),
        _ => {}
    }

    let is_month = matches!(number(&body[3..5]), Some(1..=12 | 20..=42 | 50..=99));
    match (number(&body), number(&text[13..])) {
        (Some(body), Some(key)) => {
            is_month && matches!(text[0], b'1'..=b'4' | b'7' | b'8') && key == 97 - body % 97
        }
        _ => false,
    }
}

/// Italian codice fiscale, `RSSMRA85T10A562S`. The last letter is a checksum over the other fifteen
/// characters.
fn is_italian(text: &[u8]) -> bool {
    const ODD: [u32; 26] = [
        1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24,
        23,
    ];
    let is_shaped = text.iter().enumerate().all(|(at, c)| match at {
        // Letters L to V can replace digits, to distinguish codes that would otherwise be equal.
        6 | 7 | 9 | 10 | 12..=14 => c.is_ascii_digit() || b"LMNPQRSTUV".contains(c),
        8 => b"ABCDEHLMPRST".contains(c),
        _ => c.is_ascii_uppercase(),
    });
    if !is_shaped {
        return false;
    }

    let sum: u32 = text[..15]
        .iter()
        .enumerate()
        .map(|(at, c): (usize, &u8)| {
            if at % 2 == 0 {
                ODD[alphanumeric_value(*c) as usize]
            } else {
                alphanumeric_value(*c)
            }
        })
        .sum();
    u32::from(text[15] - b'A') == sum % 26
}

/// Returns the position of a digit or of an upper-case letter among its kind.
fn alphanumeric_value(c: u8) -> u32 {
    let first = if c.is_ascii_digit() { b'0' } else { b'A' };
    u32::from(c - first)
}

/// Brazilian CPF with its separators, `529.982.247-25`. The last two digits are check digits.
fn is_brazilian(text: &[u8]) -> bool {
    let [a, b, c, b'.', d, e, f, b'.', g, h, i, b'-', j, k] = text else {
        return false;
    };

    let digits = [*a, *b, *c, *d, *e, *f, *g, *h, *i, *j, *k];
    if number(&digits).is_none() || digits.iter().all(|digit| *digit == digits[0]) {
        return false;
    }

    usize::from(digits[9] - b'0') == brazilian_check_digit(&digits[..9])
        && usize::from(digits[10] - b'0') == brazilian_check_digit(&digits[..10])
}

/// Returns the check digit that follows `digits`.
fn brazilian_check_digit(digits: &[u8]) -> usize {
    let sum: usize = digits
        .iter()
        .enumerate()
        .map(|(at, d)| usize::from(d - b'0') * (digits.len() + 1 - at))
        .sum();
    sum * 10 % 11 % 10
}
