//! Appends MessagePack values to a `Vec<u8>`, each in its shortest encoding.
//!
//! rmp does the encoding; these wrappers only remove the `Result`, because writing to a `Vec`
//! cannot fail. The headers of strings and binary are implemented here. Every sealed field has such
//! a header, and rmp's byte-wise writes take four times as long. MessagePack has no lengths above
//! `u32::MAX`. Functions that take a longer length panic, so callers must limit their input first.
//! Every frame is limited to far less.

use std::fmt::Debug;

use rmp::encode;

/// Appends nil.
#[inline]
pub fn nil(out: &mut Vec<u8>) {
    sure(encode::write_nil(out));
}

/// Appends a boolean.
#[inline]
pub fn bool(out: &mut Vec<u8>, value: bool) {
    sure(encode::write_bool(out, value));
}

/// Appends an unsigned integer in its shortest encoding.
#[inline]
pub fn uint(out: &mut Vec<u8>, value: u64) {
    sure(encode::write_uint(out, value));
}

/// Appends a signed integer in its shortest encoding. A non-negative value becomes an unsigned
/// integer.
#[inline]
pub fn int(out: &mut Vec<u8>, value: i64) {
    sure(encode::write_sint(out, value));
}

/// Appends a 32-bit float, bit for bit.
#[inline]
pub fn f32(out: &mut Vec<u8>, value: f32) {
    sure(encode::write_f32(out, value));
}

/// Appends a 64-bit float, bit for bit.
#[inline]
pub fn f64(out: &mut Vec<u8>, value: f64) {
    sure(encode::write_f64(out, value));
}

/// Appends a string.
///
/// # Panics
/// If it is longer than `u32::MAX` bytes.
#[inline]
pub fn str(out: &mut Vec<u8>, text: &str) {
    str_header(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// Appends binary.
///
/// # Panics
/// If it is longer than `u32::MAX` bytes.
#[inline]
pub fn bin(out: &mut Vec<u8>, bytes: &[u8]) {
    bin_header(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends an extension of type `kind`.
///
/// # Panics
/// If it is longer than `u32::MAX` bytes.
#[inline]
pub fn ext(out: &mut Vec<u8>, kind: i8, bytes: &[u8]) {
    sure(encode::write_ext_meta(out, length(bytes.len()), kind));
    out.extend_from_slice(bytes);
}

/// Appends the header of a string of `len` bytes; the caller appends exactly that many bytes of
/// UTF-8.
///
/// # Panics
/// If `len` exceeds `u32::MAX`.
#[inline]
pub fn str_header(out: &mut Vec<u8>, len: usize) {
    match length(len) {
        len @ 0..32 => out.push(0xa0 | len as u8),
        len @ 32..256 => out.extend_from_slice(&[0xd9, len as u8]),
        len => wide_header(out, 0xda, len),
    }
}

/// Appends the header of binary of `len` bytes; the caller appends exactly that many bytes.
///
/// # Panics
/// If `len` exceeds `u32::MAX`.
#[inline]
pub fn bin_header(out: &mut Vec<u8>, len: usize) {
    match length(len) {
        len @ 0..256 => out.extend_from_slice(&[0xc4, len as u8]),
        len => wide_header(out, 0xc5, len),
    }
}

/// Appends an array's header; the caller appends `len` values.
#[inline]
pub fn array_len(out: &mut Vec<u8>, len: u32) {
    sure(encode::write_array_len(out, len));
}

/// Appends a map's header; the caller appends `len` pairs, key before value.
#[inline]
pub fn map_len(out: &mut Vec<u8>, len: u32) {
    sure(encode::write_map_len(out, len));
}

/// Appends a header with a length of at least 256: `marker16` and two bytes, or the next marker and
/// four bytes.
#[inline]
fn wide_header(out: &mut Vec<u8>, marker16: u8, len: u32) {
    let [a, b, c, d] = len.to_be_bytes();
    if len < 1 << 16 {
        out.extend_from_slice(&[marker16, c, d]);
    } else {
        out.extend_from_slice(&[marker16 + 1, a, b, c, d]);
    }
}

#[inline]
fn length(len: usize) -> u32 {
    u32::try_from(len).expect("MessagePack lengths end at u32::MAX; callers bound their input")
}

#[inline]
fn sure<T, E: Debug>(written: Result<T, E>) {
    written.expect("writing to a Vec cannot fail");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Token, TokenReader};

    fn check(append: impl FnOnce(&mut Vec<u8>), expected: &[u8]) {
        let mut out = vec![0xaa];
        append(&mut out);
        assert_eq!(out[0], 0xaa);
        assert_eq!(&out[1..], expected);
    }

    #[test]
    fn values_get_their_shortest_encoding() {
        check(nil, &[0xc0]);
        check(|out| bool(out, true), &[0xc3]);
        check(|out| bool(out, false), &[0xc2]);
        check(|out| uint(out, 127), &[0x7f]);
        check(|out| uint(out, 128), &[0xcc, 0x80]);
        check(|out| uint(out, 256), &[0xcd, 1, 0]);
        check(|out| uint(out, 65_536), &[0xce, 0, 1, 0, 0]);
        check(|out| uint(out, 1 << 32), &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0]);
        check(|out| int(out, 5), &[5]);
        check(|out| int(out, -32), &[0xe0]);
        check(|out| int(out, -33), &[0xd0, 0xdf]);
        check(|out| int(out, -129), &[0xd1, 0xff, 0x7f]);
        check(|out| int(out, -32_769), &[0xd2, 0xff, 0xff, 0x7f, 0xff]);
        check(|out| int(out, i64::MIN), &[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        check(|out| f32(out, -0.0), &[0xca, 0x80, 0, 0, 0]);
        check(|out| f64(out, 1.0), &[0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]);
        check(|out| str(out, "a"), &[0xa1, b'a']);
        check(|out| str_header(out, 31), &[0xbf]);
        check(|out| str_header(out, 32), &[0xd9, 32]);
        check(|out| str_header(out, 256), &[0xda, 1, 0]);
        check(|out| str_header(out, 65_536), &[0xdb, 0, 1, 0, 0]);
        check(|out| bin(out, &[7]), &[0xc4, 1, 7]);
        check(|out| bin_header(out, 256), &[0xc5, 1, 0]);
        check(|out| bin_header(out, 65_536), &[0xc6, 0, 1, 0, 0]);
        check(|out| ext(out, -1, &[7]), &[0xd4, 0xff, 7]);
        check(|out| ext(out, 1, &[1, 2, 3]), &[0xc7, 3, 1, 1, 2, 3]);
        check(|out| array_len(out, 15), &[0x9f]);
        check(|out| array_len(out, 16), &[0xdc, 0, 16]);
        check(|out| array_len(out, 65_536), &[0xdd, 0, 1, 0, 0]);
        check(|out| map_len(out, 15), &[0x8f]);
        check(|out| map_len(out, 16), &[0xde, 0, 16]);
        check(|out| map_len(out, 65_536), &[0xdf, 0, 1, 0, 0]);
    }

    #[test]
    fn our_own_headers_are_those_of_rmp() {
        for len in (0..70_000).chain([1 << 24, u32::MAX]) {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            str_header(&mut ours, len as usize);
            bin_header(&mut ours, len as usize);
            sure(encode::write_str_len(&mut theirs, len));
            sure(encode::write_bin_len(&mut theirs, len));
            assert_eq!(ours, theirs, "{len}");
        }
    }

    #[test]
    #[should_panic(expected = "MessagePack lengths end at u32::MAX")]
    fn a_length_beyond_32_bits_panics() {
        str_header(&mut Vec::new(), u32::MAX as usize + 1);
    }

    proptest! {
        #[test]
        fn written_values_survive_decoding(
            unsigned: u64, signed: i64, single: u32, double: u64, text: String, bytes: Vec<u8>, kind: i8,
        ) {
            let mut out = Vec::new();
            uint(&mut out, unsigned);
            int(&mut out, signed);
            f32(&mut out, f32::from_bits(single));
            f64(&mut out, f64::from_bits(double));
            str(&mut out, &text);
            bin(&mut out, &bytes);
            ext(&mut out, kind, &bytes);
            let mut reader = TokenReader::new(&out);
            prop_assert_eq!(reader.u64(), Ok(unsigned));
            prop_assert_eq!(reader.i64(), Ok(signed));
            let Ok(Token::F32(value)) = reader.token() else { panic!("no f32") };
            prop_assert_eq!(value.to_bits(), single);
            let Ok(Token::F64(value)) = reader.token() else { panic!("no f64") };
            prop_assert_eq!(value.to_bits(), double);
            prop_assert_eq!(reader.str_utf8(), Ok(text.as_str()));
            prop_assert_eq!(reader.bin(), Ok(bytes.as_slice()));
            prop_assert_eq!(reader.token(), Ok(Token::Ext(kind, &bytes)));
            prop_assert!(reader.is_at_end());
        }
    }
}
