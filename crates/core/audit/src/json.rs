//! Writes JSON for records as one line, with keys in a fixed order, without allocations.

/// Appends `"text"` with JSON escapes.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' && byte != 0x7f {
            continue;
        }
        out.extend_from_slice(&text.as_bytes()[from..at]);
        from = at + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ => {
                out.extend_from_slice(b"\\u00");
                hex(out, &[byte]);
            }
        }
    }

    out.extend_from_slice(&text.as_bytes()[from..]);
    out.push(b'"');
}

/// Appends `,"name":`. Names are fixed by this crate and need no escapes.
pub(crate) fn key(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Appends `,"name":"text"`.
pub(crate) fn text(out: &mut Vec<u8>, name: &str, value: &str) {
    key(out, name);
    string(out, value);
}

/// Appends `,"name":123`.
pub(crate) fn count(out: &mut Vec<u8>, name: &str, value: u64) {
    key(out, name);
    number(out, value);
}

/// Appends a number in decimal.
pub(crate) fn number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends bytes in lower-case hexadecimal.
pub(crate) fn hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.extend_from_slice(&[
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]);
    }
}

/// Parses the output of [`hex`] and rejects any other input.
pub(crate) fn unhex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    if digits.len() != 2 * N {
        return None;
    }

    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }

    Some(bytes)
}

/// Returns the value of a lower-case hexadecimal digit.
fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn another_library_reads_what_is_written(string_value in any::<String>(), value in any::<u64>()) {
            let mut out = b"{\"a\":0".to_vec();
            text(&mut out, "text", &string_value);
            count(&mut out, "count", value);
            out.push(b'}');
            prop_assert!(!out.contains(&b'\n'));
            let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
            prop_assert_eq!(read["text"].as_str(), Some(&*string_value));
            prop_assert_eq!(read["count"].as_u64(), Some(value));
        }

        #[test]
        fn hexadecimal_is_read_again(bytes in any::<[u8; 16]>()) {
            let mut out = Vec::new();
            hex(&mut out, &bytes);
            prop_assert_eq!(unhex::<16>(&out), Some(bytes));
            out[3] = b'A';
            prop_assert_eq!(unhex::<16>(&out), None);
            prop_assert_eq!(unhex::<15>(&out), None);
        }
    }
}
