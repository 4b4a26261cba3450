//! A canonical encoding of values, so that equal values have equal hashes.

use crate::{Malformed, Token, TokenReader, write};

/// Appends the canonical encoding of a value. Integers, lengths and extensions get their shortest
/// encoding, and 32-bit floats become 64-bit floats. Everything else is preserved, including key
/// order and the bits of a float; 5 and 5.0 remain different. The result is at most twice as long
/// as the input.
///
/// # Errors
/// As [`TokenReader::token`]; `out` keeps the bytes that were appended before the error.
pub fn canonical(value: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let mut reader = TokenReader::new(value);
    let mut pending: u64 = 1;
    while pending > 0 {
        let token = reader.token()?;
        // Saturation is safe: no input holds that many values, so the loop ends with a truncation
        // error.
        pending = (pending - 1).saturating_add(token.children());
        match token {
            Token::Nil => write::nil(out),
            Token::Bool(value) => write::bool(out, value),
            Token::Uint(value) => write::uint(out, value),
            Token::Int(value) => write::int(out, value),
            Token::F32(value) => write::f64(out, value.into()),
            Token::F64(value) => write::f64(out, value),
            Token::Str(text) => {
                write::str_header(out, text.len());
                out.extend_from_slice(text);
            }
            Token::Bin(bytes) => write::bin(out, bytes),
            Token::Ext(kind, bytes) => write::ext(out, kind, bytes),
            Token::Array(len) => write::array_len(out, len),
            Token::Map(len) => write::map_len(out, len),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        canonical(value, &mut out).unwrap();
        out
    }

    #[test]
    fn equal_values_have_one_encoding_and_others_have_their_own() {
        let fives: [&[u8]; 9] = [
            &[5],
            &[0xcc, 5],
            &[0xcd, 0, 5],
            &[0xce, 0, 0, 0, 5],
            &[0xcf, 0, 0, 0, 0, 0, 0, 0, 5],
            &[0xd0, 5],
            &[0xd1, 0, 5],
            &[0xd2, 0, 0, 0, 5],
            &[0xd3, 0, 0, 0, 0, 0, 0, 0, 5],
        ];
        for five in fives {
            assert_eq!(of(five), [5], "{five:x?}");
            // Also within containers, including those with wide headers.
            let inside = [
                &[0xde, 0, 1, 0xdb, 0, 0, 0, 1, b'a', 0xdd, 0, 0, 0, 2][..],
                five,
                &[0xc6, 0, 0, 0, 1, 7],
            ]
            .concat();
            assert_eq!(of(&inside), [0x81, 0xa1, b'a', 0x92, 5, 0xc4, 1, 7]);
        }
        let halves = [
            &[0xca, 0x3f, 0, 0, 0][..],
            &[0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(of(halves[0]), of(halves[1]));
        assert_eq!(of(&[0xc7, 1, 9, 7]), [0xd4, 9, 7]);
        let apart: [&[u8]; 9] = [
            &[5],
            &[0xfb],
            &[0xcb, 0x40, 0x14, 0, 0, 0, 0, 0, 0],
            &[0xa1, b'5'],
            &[0xc4, 1, b'5'],
            &[0xc0],
            &[0x90],
            &[0x82, 1, 2, 3, 4],
            &[0x82, 3, 4, 1, 2],
        ];
        let all: std::collections::HashSet<_> = apart.iter().map(|value| of(value)).collect();
        assert_eq!(all.len(), apart.len());
        assert!(canonical(&[0x92, 1], &mut Vec::new()).is_err());
    }

    proptest! {
        #[test]
        fn canonical_encoding_is_short_and_idempotent(bytes: Vec<u8>) {
            let mut out = Vec::new();
            if canonical(&bytes, &mut out).is_ok() {
                let mut reader = TokenReader::new(&bytes);
                let len = reader.value().unwrap().len();
                prop_assert!(out.len() <= 2 * len);
                prop_assert_eq!(of(&out), out);
            }
        }
    }
}
