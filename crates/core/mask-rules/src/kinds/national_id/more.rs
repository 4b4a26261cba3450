//! National ids with check digits of twelve further countries. Each function cites the public
//! specification of its form.
//!
//! Forms without separators are recognized only if fewer than one in 100 numbers of that length has
//! the form.

/// Verhoeff's dihedral multiplication and permutations ("Error Detecting Decimal Codes", 1969).
const VERHOEFF_PRODUCT: [[u8; 10]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    [1, 2, 3, 4, 0, 6, 7, 8, 9, 5],
    [2, 3, 4, 0, 1, 7, 8, 9, 5, 6],
    [3, 4, 0, 1, 2, 8, 9, 5, 6, 7],
    [4, 0, 1, 2, 3, 9, 5, 6, 7, 8],
    [5, 9, 8, 7, 6, 0, 4, 3, 2, 1],
    [6, 5, 9, 8, 7, 1, 0, 4, 3, 2],
    [7, 6, 5, 9, 8, 2, 1, 0, 4, 3],
    [8, 7, 6, 5, 9, 3, 2, 1, 0, 4],
    [9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
];
const VERHOEFF_ORDER: [[u8; 10]; 8] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    [1, 5, 7, 6, 2, 8, 3, 0, 9, 4],
    [5, 8, 0, 3, 7, 9, 6, 1, 4, 2],
    [8, 9, 1, 6, 0, 4, 3, 5, 2, 7],
    [9, 4, 5, 3, 1, 2, 6, 8, 7, 0],
    [4, 2, 8, 6, 5, 7, 3, 9, 0, 1],
    [2, 7, 9, 3, 8, 0, 6, 4, 1, 5],
    [7, 0, 4, 6, 9, 1, 3, 2, 5, 8],
];

/// Extracts the digits of a text of a fixed form. In the form, `9` stands for a digit; all other
/// bytes stand for themselves.
fn shaped<const N: usize>(text: &[u8], form: &[u8]) -> Option<[u32; N]> {
    if text.len() != form.len() {
        return None;
    }

    let mut digits = [0; N];
    let mut len = 0;
    for (byte, expected) in text.iter().zip(form) {
        if *expected == b'9' {
            if !byte.is_ascii_digit() {
                return None;
            }
            *digits.get_mut(len)? = u32::from(byte - b'0');
            len += 1;
        } else if byte != expected {
            return None;
        }
    }

    (len == N).then_some(digits)
}

fn pair(digits: &[u32], at: usize) -> u32 {
    digits[at] * 10 + digits[at + 1]
}

fn weighted(digits: &[u32], weights: &[u32]) -> u32 {
    digits
        .iter()
        .zip(weights)
        .map(|(digit, weight)| digit * weight)
        .sum()
}

fn is_date(day: u32, month: u32) -> bool {
    let days = match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// German tax id (Steuer-IdNr.), `86095742719` or `86 095 742 719`: of the first ten digits one
/// occurs twice or three times and the others at most once; the last is the check digit of ISO 7064
/// MOD 11,10 (§ 139b AO, BZSt).
pub(super) fn is_german(text: &[u8]) -> bool {
    let Some(digits) =
        shaped::<11>(text, b"99999999999").or_else(|| shaped(text, b"99 999 999 999"))
    else {
        return false;
    };
    let mut counts = [0; 10];
    digits[..10]
        .iter()
        .for_each(|digit| counts[*digit as usize] += 1);
    let repeated = counts.iter().filter(|count| **count > 1).count();
    if digits[0] == 0 || repeated != 1 || counts.iter().any(|count| *count > 3) {
        return false;
    }

    let rest = digits[..10]
        .iter()
        .fold(10, |product, digit| match (digit + product) % 10 {
            0 => 20 % 11,
            sum => sum * 2 % 11,
        });
    (11 - rest) % 10 == digits[10]
}

/// Polish PESEL, `44051401359`: date of birth from 1900 to 2099 (months of the second century plus
/// 20), order, and a weighted sum modulo 10 (act on the population register of 24 September 2010).
pub(super) fn is_polish(text: &[u8]) -> bool {
    let Some(digits) = shaped::<11>(text, b"99999999999") else {
        return false;
    };
    let month = pair(&digits, 2);
    let month = if month > 20 { month - 20 } else { month };
    is_date(pair(&digits, 4), month)
        && weighted(&digits, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1]).is_multiple_of(10)
}

/// Norwegian fødselsnummer or D-number, `01010750160`: day (plus 40 in a D-number), month, year,
/// order, and two check digits modulo 11 (Skatteetaten).
pub(super) fn is_norwegian(text: &[u8]) -> bool {
    let Some(digits) = shaped::<11>(text, b"99999999999") else {
        return false;
    };
    let day = pair(&digits, 0);
    let day = if day > 40 { day - 40 } else { day };
    is_date(day, pair(&digits, 2))
        && weighted(&digits, &[3, 7, 6, 1, 8, 9, 4, 5, 2, 1]).is_multiple_of(11)
        && weighted(&digits, &[5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
}

/// Swedish personnummer, `811218-9876` or `19811218-9876`, `+` from the age of 100, day plus 60 in
/// a samordningsnummer. Luhn's check covers the ten digits (Skatteverket, SKV 704).
pub(super) fn is_swedish(text: &[u8]) -> bool {
    let short = match text {
        [b'1', b'8' | b'9', rest @ ..] | [b'2', b'0', rest @ ..] if text.len() == 13 => rest,
        _ => text,
    };

    let Some(digits) =
        shaped::<10>(short, b"999999-9999").or_else(|| shaped(short, b"999999+9999"))
    else {
        return false;
    };
    let day = pair(&digits, 4);
    let day = if day > 60 { day - 60 } else { day };
    let ascii = digits.map(|digit| b'0' + digit as u8);
    is_date(day, pair(&digits, 2)) && super::super::luhn(&ascii).is_multiple_of(10)
}

/// Finnish henkilötunnus, `131052-308T`: date, century sign, order, and a check character by the
/// remainder modulo 31 (Digital and Population Data Services Agency; signs as of 2023).
pub(super) fn is_finnish(text: &[u8]) -> bool {
    let [date @ .., sign, a, b, c, check] = text else {
        return false;
    };

    let (Some(date), Some(order)) = (
        shaped::<6>(date, b"999999"),
        shaped::<3>(&[*a, *b, *c], b"999"),
    ) else {
        return false;
    };

    let number = date
        .iter()
        .chain(&order)
        .fold(0, |number, digit| number * 10 + digit);
    b"+-YXWVUABCDEF".contains(sign)
        && is_date(pair(&date, 0), pair(&date, 2))
        && order.iter().fold(0, |number, digit| number * 10 + digit) >= 2
        && b"0123456789ABCDEFHJKLMNPRSTUVWXY"[(number % 31) as usize] == *check
}

/// Dutch burgerservicenummer as printed in passports, `1112.22.333`, with the sum modulo 11
/// ("elfproef", Logisch Ontwerp BSN). Nine bare digits have it too often by chance.
pub(super) fn is_dutch(text: &[u8]) -> bool {
    let Some(digits) = shaped::<9>(text, b"9999.99.999") else {
        return false;
    };
    let sum = weighted(&digits, &[9, 8, 7, 6, 5, 4, 3, 2]);
    digits[..8].iter().any(|digit| *digit != 0) && sum % 11 == digits[8]
}

/// Danish CPR number, `070761-4285`, with the sum modulo 11. Numbers issued since 2007 without a
/// valid sum are not recognized (CPR-kontoret, "Personnummeret i CPR").
pub(super) fn is_danish(text: &[u8]) -> bool {
    let Some(digits) = shaped::<10>(text, b"999999-9999") else {
        return false;
    };
    is_date(pair(&digits, 0), pair(&digits, 2))
        && weighted(&digits, &[4, 3, 2, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
}

/// Chilean RUN, `12.345.678-5` or `1.234.567-4`: the last character is the check digit modulo 11,
/// `K` for 10 (Registro Civil).
pub(super) fn is_chilean(text: &[u8]) -> bool {
    let [body @ .., b'-', check] = text else {
        return false;
    };

    let digits = shaped::<8>(body, b"99.999.999").or_else(|| {
        let [a, b, c, d, e, f, g] = shaped::<7>(body, b"9.999.999")?;
        Some([0, a, b, c, d, e, f, g])
    });
    let Some(digits) = digits else { return false };
    let expected = match 11 - weighted(&digits, &[3, 2, 7, 6, 5, 4, 3, 2]) % 11 {
        11 => b'0',
        10 => b'K',
        digit => b'0' + digit as u8,
    };

    digits[..2] != [0, 0] && *check == expected
}

/// Indian Aadhaar number in groups, `2341 2341 2346` or with hyphens. The last digit is Verhoeff's
/// check digit (UIDAI, "UID numbering scheme").
pub(super) fn is_indian(text: &[u8]) -> bool {
    let Some(digits) =
        shaped::<12>(text, b"9999 9999 9999").or_else(|| shaped(text, b"9999-9999-9999"))
    else {
        return false;
    };
    let sum = digits
        .iter()
        .rev()
        .enumerate()
        .fold(0_u8, |sum, (at, digit)| {
            VERHOEFF_PRODUCT[usize::from(sum)][usize::from(VERHOEFF_ORDER[at % 8][*digit as usize])]
        });
    digits[0] >= 2 && sum == 0
}

/// Belgian national number, `85.07.30-033.28`: date, order, and 97 minus the remainder modulo 97.
/// From 2000, a 2 stands before the number (royal decree of 3 April 1984).
pub(super) fn is_belgian(text: &[u8]) -> bool {
    let Some(digits) = shaped::<11>(text, b"99.99.99-999.99") else {
        return false;
    };
    let number = digits[..9]
        .iter()
        .fold(0_u64, |number, digit| number * 10 + u64::from(*digit));
    let check = u64::from(pair(&digits, 9));
    is_date(pair(&digits, 4), pair(&digits, 2))
        && (check == 97 - number % 97 || check == 97 - (2_000_000_000 + number) % 97)
}

/// Swiss AHV number, `756.9217.0769.85`: the country code 756, nine digits, and the check digit of
/// EAN-13 (Central Compensation Office).
pub(super) fn is_swiss(text: &[u8]) -> bool {
    let Some(digits) = shaped::<13>(text, b"999.9999.9999.99") else {
        return false;
    };
    digits[..3] == [7, 5, 6]
        && weighted(&digits, &[1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1]).is_multiple_of(10)
}

/// Chinese resident identity number, `11010519491231002X`: region, date of birth, order, and the
/// check character of ISO 7064 MOD 11-2 (GB 11643-1999).
pub(super) fn is_chinese(text: &[u8]) -> bool {
    let [body @ .., check] = text else {
        return false;
    };

    let Some(digits) = shaped::<17>(body, b"99999999999999999") else {
        return false;
    };

    let sum = weighted(
        &digits,
        &[7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2],
    );
    digits[0] != 0
        && digits[0] != 9
        && matches!(pair(&digits, 6), 19 | 20)
        && is_date(pair(&digits, 12), pair(&digits, 10))
        && b"10X98765432"[(sum % 11) as usize] == *check
}
