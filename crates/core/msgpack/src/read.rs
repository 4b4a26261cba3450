//! Reads one token at a time from borrowed bytes.
//!
//! Rejects only bytes that are not MessagePack. Strings are returned unchecked unless a method's
//! name contains `utf8`. Integers can have longer encodings than needed, because peers use them.
//! After an error, the reader stays at the first byte of the offending value, so
//! [`TokenReader::position`] is the offset to report.

use thiserror::Error;

/// The head of one MessagePack value, borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq)]
// A discriminant of a whole word keeps the variants' contents aligned alike. With one byte, a copy
// of a token of unknown variant is made of overlapping loads of bytes that were just stored, which
// the processor cannot forward: 27 of 49 ns per field.
#[repr(u64)]
pub enum Token<'a> {
    /// nil.
    Nil,
    /// Reads a boolean.
    Bool(bool),
    /// An integer in one of the unsigned encodings.
    Uint(u64),
    /// An integer in one of the signed encodings. Not necessarily negative, because peers can
    /// encode 5 as `d0 05`.
    Int(i64),
    /// A 32-bit float, bit for bit.
    F32(f32),
    /// A 64-bit float, bit for bit.
    F64(f64),
    /// The bytes of a string, not yet validated as UTF-8.
    Str(&'a [u8]),
    /// Reads binary data.
    Bin(&'a [u8]),
    /// An extension: its type and its bytes.
    Ext(i8, &'a [u8]),
    /// An array's header; this many values follow.
    Array(u32),
    /// A map's header; this many pairs follow, key before value.
    Map(u32),
}

impl Token<'_> {
    /// Returns the kind of value with its article, for messages: "a string", "an integer".
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "a boolean",
            Self::Uint(_) | Self::Int(_) => "an integer",
            Self::F32(_) | Self::F64(_) => "a float",
            Self::Str(_) => "a string",
            Self::Bin(_) => "binary",
            Self::Ext(..) => "an extension",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
        }
    }

    /// Returns the number of values that follow this token and belong to it: n for an array, 2n for
    /// a map, otherwise 0.
    #[inline]
    pub const fn children(&self) -> u64 {
        match *self {
            Self::Array(len) => len as u64,
            Self::Map(len) => len as u64 * 2,
            _ => 0,
        }
    }
}

/// The reason why bytes could not be read as the requested value. An error of the peer; retrying
/// does not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The input ends inside the value.
    #[error("truncated MessagePack")]
    Truncated,
    /// The byte 0xc1, which MessagePack never uses.
    #[error("reserved MessagePack marker 0xc1")]
    ReservedMarker,
    /// A string whose bytes are not UTF-8.
    #[error("string is not UTF-8")]
    NotUtf8,
    /// A well-formed value of a different kind or out of range.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// The expected type, with its article.
        expected: &'static str,
        /// The type that was found, with its article.
        found: &'static str,
    },
}

/// A cursor over MessagePack bytes.
#[derive(Clone, Copy, Debug)]
pub struct TokenReader<'a> {
    input: &'a [u8],
    position: usize,
}

impl<'a> TokenReader<'a> {
    /// Creates a reader at the first byte of `input`.
    #[inline]
    pub const fn new(input: &'a [u8]) -> Self {
        Self { input, position: 0 }
    }

    /// Creates a reader of `input` at byte `position`. A position after the end reads as truncated.
    #[inline]
    pub const fn at(input: &'a [u8], position: usize) -> Self {
        Self { input, position }
    }

    /// Returns the offset of the next unread byte in the input.
    #[inline]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Returns true if nothing is left to read.
    #[inline]
    pub const fn is_at_end(&self) -> bool {
        self.position >= self.input.len()
    }

    /// Reads the next token and advances: past the whole value for a scalar, past the header for a
    /// container.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] and [`Malformed::ReservedMarker`]; the position is then unchanged.
    #[inline(always)] // Out of line, its result goes through memory: 4 ns a token of a walk.
    pub fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let rest = self.input.get(self.position..).unwrap_or_default();
        let (token, tail) = split_token(rest)?;
        self.position += rest.len() - tail.len();
        Ok(token)
    }

    /// Reads the next token without advancing.
    ///
    /// # Errors
    /// As [`TokenReader::token`].
    #[inline]
    pub fn peek(&self) -> Result<Token<'a>, Malformed> {
        TokenReader::at(self.input, self.position).token()
    }

    /// Advances past one whole value of any depth, in constant memory. Strings inside are not
    /// validated.
    ///
    /// # Errors
    /// As [`TokenReader::token`]; the position is then unchanged.
    pub fn skip_value(&mut self) -> Result<(), Malformed> {
        let mut ahead = *self;
        let mut pending: u64 = 1;
        while pending > 0 {
            // Saturation is safe: no input holds that many values, so the loop ends with a
            // truncation error.
            pending = (pending - 1).saturating_add(ahead.token()?.children());
        }
        *self = ahead;
        Ok(())
    }

    /// Returns the raw bytes of one whole value, including header and children. Strings inside are
    /// not validated.
    ///
    /// # Errors
    /// As [`TokenReader::token`]; the position is then unchanged.
    pub fn value(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.position;
        self.skip_value()?;
        Ok(&self.input[start..self.position])
    }

    /// Reads a string and validates it as UTF-8.
    ///
    /// # Errors
    /// [`Malformed::NotUtf8`], [`Malformed::Expected`] for any other kind, or as
    /// [`TokenReader::token`]; the position is unchanged on each.
    #[inline]
    pub fn str_utf8(&mut self) -> Result<&'a str, Malformed> {
        let mut ahead = *self;
        let Token::Str(bytes) = ahead.token()? else {
            return Err(self.expected("a string"));
        };
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed::NotUtf8)?;
        *self = ahead;
        Ok(text)
    }

    /// Reads binary data.
    ///
    /// # Errors
    /// As [`TokenReader::bool`].
    pub fn bin(&mut self) -> Result<&'a [u8], Malformed> {
        self.typed("binary", |token| match token {
            Token::Bin(bytes) => Some(bytes),
            _ => None,
        })
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// [`Malformed::Expected`] for any other value, or as [`TokenReader::token`]; the position is
    /// unchanged on each.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        self.typed("a boolean", |token| match token {
            Token::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// Reads an integer in `0..=u64::MAX`, in any encoding.
    ///
    /// # Errors
    /// As [`TokenReader::bool`].
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.typed("a non-negative integer", |token| match token {
            Token::Uint(value) => Some(value),
            Token::Int(value) => u64::try_from(value).ok(),
            _ => None,
        })
    }

    /// Reads an integer in `0..=u32::MAX`, in any encoding.
    ///
    /// # Errors
    /// As [`TokenReader::bool`].
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.typed("an integer from 0 to 4294967295", |token| match token {
            Token::Uint(value) => u32::try_from(value).ok(),
            Token::Int(value) => u32::try_from(value).ok(),
            _ => None,
        })
    }

    /// Reads an integer in `i64::MIN..=i64::MAX`, in any encoding.
    ///
    /// # Errors
    /// As [`TokenReader::bool`].
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.typed("a 64-bit signed integer", |token| match token {
            Token::Uint(value) => i64::try_from(value).ok(),
            Token::Int(value) => Some(value),
            _ => None,
        })
    }

    /// Reads an array's header. Returns the number of values that follow.
    ///
    /// # Errors
    /// As [`TokenReader::bool`].
    pub fn array_len(&mut self) -> Result<u32, Malformed> {
        self.typed("an array", |token| match token {
            Token::Array(len) => Some(len),
            _ => None,
        })
    }

    /// Reads a map's header. Returns the number of pairs that follow.
    ///
    /// # Errors
    /// As [`TokenReader::bool`].
    pub fn map_len(&mut self) -> Result<u32, Malformed> {
        self.typed("a map", |token| match token {
            Token::Map(len) => Some(len),
            _ => None,
        })
    }

    /// Advances past a nil if it is next, and returns true if so. For optional values.
    pub fn take_nil(&mut self) -> bool {
        let is_nil = self.peek() == Ok(Token::Nil);
        self.position += usize::from(is_nil);
        is_nil
    }

    #[inline]
    fn typed<T>(
        &mut self,
        expected: &'static str,
        pick: impl FnOnce(Token<'a>) -> Option<T>,
    ) -> Result<T, Malformed> {
        let mut ahead = *self;
        let Some(value) = pick(ahead.token()?) else {
            return Err(self.expected(expected));
        };
        *self = ahead;
        Ok(value)
    }

    /// Creates the error for a well-formed next value of another kind.
    #[cold]
    fn expected(&self, expected: &'static str) -> Malformed {
        match self.peek() {
            Ok(Token::Int(value)) if value < 0 => Malformed::Expected {
                expected,
                found: "a negative integer",
            },
            Ok(token) => Malformed::Expected {
                expected,
                found: token.kind(),
            },
            Err(malformed) => malformed,
        }
    }
}

/// Splits `input` into its first token and the remaining bytes.
#[inline]
fn split_token(input: &[u8]) -> Result<(Token<'_>, &[u8]), Malformed> {
    let (&marker, rest) = input.split_first().ok_or(Malformed::Truncated)?;
    Ok(match marker {
        0x00..=0x7f => (Token::Uint(marker.into()), rest),
        0x80..=0x8f => (Token::Map((marker & 0x0f).into()), rest),
        0x90..=0x9f => (Token::Array((marker & 0x0f).into()), rest),
        0xa0..=0xbf => str(rest, usize::from(marker & 0x1f))?,
        0xc0 => (Token::Nil, rest),
        0xc1 => return Err(Malformed::ReservedMarker),
        0xc2 => (Token::Bool(false), rest),
        0xc3 => (Token::Bool(true), rest),
        0xc4 => be(rest, u8::from_be_bytes).and_then(|(len, rest)| bin(rest, len.into()))?,
        0xc5 => be(rest, u16::from_be_bytes).and_then(|(len, rest)| bin(rest, len.into()))?,
        0xc6 => be(rest, u32::from_be_bytes).and_then(|(len, rest)| bin(rest, len as usize))?,
        0xc7 => be(rest, u8::from_be_bytes).and_then(|(len, rest)| ext(rest, len.into()))?,
        0xc8 => be(rest, u16::from_be_bytes).and_then(|(len, rest)| ext(rest, len.into()))?,
        0xc9 => be(rest, u32::from_be_bytes).and_then(|(len, rest)| ext(rest, len as usize))?,
        0xca => {
            be(rest, u32::from_be_bytes).map(|(bits, r)| (Token::F32(f32::from_bits(bits)), r))?
        }
        0xcb => {
            be(rest, u64::from_be_bytes).map(|(bits, r)| (Token::F64(f64::from_bits(bits)), r))?
        }
        0xcc => be(rest, u8::from_be_bytes).map(|(n, r)| (Token::Uint(n.into()), r))?,
        0xcd => be(rest, u16::from_be_bytes).map(|(n, r)| (Token::Uint(n.into()), r))?,
        0xce => be(rest, u32::from_be_bytes).map(|(n, r)| (Token::Uint(n.into()), r))?,
        0xcf => be(rest, u64::from_be_bytes).map(|(n, r)| (Token::Uint(n), r))?,
        0xd0 => be(rest, i8::from_be_bytes).map(|(n, r)| (Token::Int(n.into()), r))?,
        0xd1 => be(rest, i16::from_be_bytes).map(|(n, r)| (Token::Int(n.into()), r))?,
        0xd2 => be(rest, i32::from_be_bytes).map(|(n, r)| (Token::Int(n.into()), r))?,
        0xd3 => be(rest, i64::from_be_bytes).map(|(n, r)| (Token::Int(n), r))?,
        0xd4..=0xd8 => ext(rest, 1 << (marker - 0xd4))?,
        0xd9 => be(rest, u8::from_be_bytes).and_then(|(len, rest)| str(rest, len.into()))?,
        0xda => be(rest, u16::from_be_bytes).and_then(|(len, rest)| str(rest, len.into()))?,
        0xdb => be(rest, u32::from_be_bytes).and_then(|(len, rest)| str(rest, len as usize))?,
        0xdc => be(rest, u16::from_be_bytes).map(|(len, r)| (Token::Array(len.into()), r))?,
        0xdd => be(rest, u32::from_be_bytes).map(|(len, r)| (Token::Array(len), r))?,
        0xde => be(rest, u16::from_be_bytes).map(|(len, r)| (Token::Map(len.into()), r))?,
        0xdf => be(rest, u32::from_be_bytes).map(|(len, r)| (Token::Map(len), r))?,
        0xe0..=0xff => (Token::Int((marker as i8).into()), rest),
    })
}

#[inline]
fn be<const N: usize, T>(input: &[u8], from: fn([u8; N]) -> T) -> Result<(T, &[u8]), Malformed> {
    let (bytes, rest) = input.split_first_chunk::<N>().ok_or(Malformed::Truncated)?;
    Ok((from(*bytes), rest))
}

#[inline]
fn str(input: &[u8], len: usize) -> Result<(Token<'_>, &[u8]), Malformed> {
    let (bytes, rest) = input.split_at_checked(len).ok_or(Malformed::Truncated)?;
    Ok((Token::Str(bytes), rest))
}

#[inline]
fn bin(input: &[u8], len: usize) -> Result<(Token<'_>, &[u8]), Malformed> {
    let (bytes, rest) = input.split_at_checked(len).ok_or(Malformed::Truncated)?;
    Ok((Token::Bin(bytes), rest))
}

/// Reads an extension. `len` counts the data without its type byte.
#[inline]
fn ext(input: &[u8], len: usize) -> Result<(Token<'_>, &[u8]), Malformed> {
    let (kind, rest) = be(input, i8::from_be_bytes)?;
    let (bytes, rest) = rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
    Ok((Token::Ext(kind, bytes), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rmp::Marker;

    use super::*;

    fn check(bytes: &[u8], expected: Result<Token<'_>, Malformed>) {
        let mut reader = TokenReader::new(bytes);
        // Compares bits instead of using `==`, so that NaN and -0.0 are distinguished.
        assert_eq!(
            format!("{:?}", reader.token()),
            format!("{expected:?}"),
            "{bytes:02x?}"
        );
        let position = if expected.is_ok() { bytes.len() } else { 0 };
        assert_eq!(reader.position(), position, "{bytes:02x?}");
        if expected.is_ok() {
            for len in 0..bytes.len() {
                assert_eq!(
                    TokenReader::new(&bytes[..len]).token(),
                    Err(Malformed::Truncated),
                    "{bytes:02x?}"
                );
            }
        }
    }

    #[test]
    fn encodings_read_as_their_token() {
        check(&[0x00], Ok(Token::Uint(0)));
        check(&[0x7f], Ok(Token::Uint(127)));
        check(&[0xcc, 5], Ok(Token::Uint(5)));
        check(&[0xcd, 1, 0], Ok(Token::Uint(256)));
        check(&[0xce, 0, 0, 0, 1], Ok(Token::Uint(1)));
        check(
            &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255],
            Ok(Token::Uint(u64::MAX)),
        );
        check(&[0xe0], Ok(Token::Int(-32)));
        check(&[0xff], Ok(Token::Int(-1)));
        check(&[0xd0, 0x05], Ok(Token::Int(5)));
        check(&[0xd1, 0x80, 0], Ok(Token::Int(-32_768)));
        check(&[0xd2, 0x80, 0, 0, 0], Ok(Token::Int(i32::MIN.into())));
        check(&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], Ok(Token::Int(i64::MIN)));
        check(&[0xca, 0x80, 0, 0, 0], Ok(Token::F32(-0.0)));
        check(&[0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0], Ok(Token::F64(1.0)));
        check(&[0xc0], Ok(Token::Nil));
        check(&[0xc2], Ok(Token::Bool(false)));
        check(&[0xc3], Ok(Token::Bool(true)));
        check(&[0xa0], Ok(Token::Str(b"")));
        check(&[0xa1, b'a'], Ok(Token::Str(b"a")));
        check(&[0xd9, 1, b'a'], Ok(Token::Str(b"a")));
        check(&[0xda, 0, 1, b'a'], Ok(Token::Str(b"a")));
        check(&[0xdb, 0, 0, 0, 1, 0xff], Ok(Token::Str(&[0xff])));
        check(&[0xc4, 1, 7], Ok(Token::Bin(&[7])));
        check(&[0xc5, 0, 1, 7], Ok(Token::Bin(&[7])));
        check(&[0xc6, 0, 0, 0, 0], Ok(Token::Bin(&[])));
        check(&[0xd4, 0xff, 7], Ok(Token::Ext(-1, &[7])));
        check(&[0xd5, 3, 7, 8], Ok(Token::Ext(3, &[7, 8])));
        check(&[0xd6, 3, 1, 2, 3, 4], Ok(Token::Ext(3, &[1, 2, 3, 4])));
        check(
            &[0xd7, 3, 1, 2, 3, 4, 5, 6, 7, 8],
            Ok(Token::Ext(3, &[1, 2, 3, 4, 5, 6, 7, 8])),
        );
        check(
            &[&[0xd8, 3], &[9; 16][..]].concat(),
            Ok(Token::Ext(3, &[9; 16])),
        );
        check(&[0xc7, 0, 3], Ok(Token::Ext(3, &[])));
        check(&[0xc8, 0, 1, 3, 7], Ok(Token::Ext(3, &[7])));
        check(&[0xc9, 0, 0, 0, 1, 3, 7], Ok(Token::Ext(3, &[7])));
        check(&[0x90], Ok(Token::Array(0)));
        check(&[0x9f], Ok(Token::Array(15)));
        check(&[0xdc, 1, 0], Ok(Token::Array(256)));
        check(&[0xdd, 255, 255, 255, 255], Ok(Token::Array(u32::MAX)));
        check(&[0x8f], Ok(Token::Map(15)));
        check(&[0xde, 0, 1], Ok(Token::Map(1)));
        check(&[0xdf, 255, 255, 255, 255], Ok(Token::Map(u32::MAX)));
        check(&[0xc1], Err(Malformed::ReservedMarker));
        check(&[0xdb, 255, 255, 255, 255, 0], Err(Malformed::Truncated));
    }

    #[test]
    fn float_bits_survive() {
        for bits in [
            0x7ff8_0000_0000_0001,
            0xfff0_0000_0000_0001,
            1,
            0x8000_0000_0000_0000_u64,
        ] {
            let bytes = [&[0xcb][..], &bits.to_be_bytes()].concat();
            let Ok(Token::F64(value)) = TokenReader::new(&bytes).token() else {
                panic!("{bits:x} is no float");
            };
            assert_eq!(value.to_bits(), bits);
        }
    }

    #[test]
    fn typed_readers_say_what_they_expected() {
        fn check<T: std::fmt::Debug + PartialEq>(
            bytes: &[u8],
            read: impl FnOnce(&mut TokenReader<'_>) -> Result<T, Malformed>,
            expected: Result<T, &str>,
        ) {
            let mut reader = TokenReader::new(bytes);
            let found = read(&mut reader).map_err(|e| e.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{bytes:02x?}");
            assert_eq!(reader.position() == 0, found.is_err(), "{bytes:02x?}");
        }
        check(
            &[0xa1, b'a'],
            |r| r.str_utf8().map(str::to_owned),
            Ok("a".to_owned()),
        );
        check(
            &[0xa1, 0xff],
            |r| r.str_utf8().map(str::to_owned),
            Err("string is not UTF-8"),
        );
        check(
            &[0xc0],
            |r| r.str_utf8().map(str::to_owned),
            Err("expected a string, found nil"),
        );
        check(
            &[0xa2, b'a'],
            |r| r.str_utf8().map(str::to_owned),
            Err("truncated MessagePack"),
        );
        check(&[0xc4, 1, 2], |r| r.bin().map(<[u8]>::to_vec), Ok(vec![2]));
        check(
            &[0xa0],
            |r| r.bin().map(<[u8]>::to_vec),
            Err("expected binary, found a string"),
        );
        check(&[0xc3], |r| r.bool(), Ok(true));
        check(
            &[0x01],
            |r| r.bool(),
            Err("expected a boolean, found an integer"),
        );
        check(&[0xd0, 5], |r| r.u64(), Ok(5));
        check(
            &[0xff],
            |r| r.u64(),
            Err("expected a non-negative integer, found a negative integer"),
        );
        check(
            &[0xca, 0, 0, 0, 0],
            |r| r.u64(),
            Err("expected a non-negative integer, found a float"),
        );
        check(&[0xce, 255, 255, 255, 255], |r| r.u32(), Ok(u32::MAX));
        check(
            &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0],
            |r| r.u32(),
            Err("expected an integer from 0 to 4294967295, found an integer"),
        );
        check(&[0xff], |r| r.i64(), Ok(-1));
        check(&[0x7f], |r| r.i64(), Ok(127));
        check(
            &[0xcf, 255, 0, 0, 0, 0, 0, 0, 0],
            |r| r.i64(),
            Err("expected a 64-bit signed integer, found an integer"),
        );
        check(&[0x92, 1, 2], |r| r.array_len(), Ok(2));
        check(
            &[0x80],
            |r| r.array_len(),
            Err("expected an array, found a map"),
        );
        check(&[0x81], |r| r.map_len(), Ok(1));
        check(
            &[0xc7, 0, 1],
            |r| r.map_len(),
            Err("expected a map, found an extension"),
        );
        check(
            &[0xc1],
            |r| r.map_len(),
            Err("reserved MessagePack marker 0xc1"),
        );
        check(&[], |r| r.map_len(), Err("truncated MessagePack"));
    }

    #[test]
    fn take_nil_takes_only_nil() {
        let mut reader = TokenReader::new(&[0xc0, 0xc2]);
        assert!(reader.take_nil());
        assert!(!reader.take_nil());
        assert_eq!(reader.position(), 1);
        assert!(!TokenReader::new(&[]).take_nil());
        assert!(TokenReader::at(&[0xc0], 7).token().is_err());
    }

    #[test]
    fn value_is_one_whole_value_however_deep() {
        let mut deep = vec![0x91; 1_000_000];
        deep.push(0xc0);
        let mut reader = TokenReader::new(&deep);
        assert_eq!(reader.value().map(<[u8]>::len), Ok(deep.len()));
        assert!(reader.is_at_end());

        let bytes = [0x82, 0x92, 1, 2, 0xa1, b'a', 0xc0, 0x80, 0x05];
        let mut reader = TokenReader::new(&bytes);
        assert_eq!(reader.value(), Ok(&bytes[..8]));
        assert_eq!(reader.u64(), Ok(5));

        for broken in [
            &[0x92, 1][..],
            &[0x81, 1],
            &[0x92, 1, 0xc1],
            &[0xdf, 255, 255, 255, 255, 1],
        ] {
            let mut reader = TokenReader::new(broken);
            assert!(reader.value().is_err(), "{broken:02x?}");
            assert_eq!(reader.position(), 0, "{broken:02x?}");
        }
    }

    #[test]
    fn markers_are_those_of_rmp() {
        for byte in 0..=u8::MAX {
            let bytes = [&[byte][..], &[0; 17]].concat();
            let kind = TokenReader::new(&bytes).token().map(|token| token.kind());
            let expected = match Marker::from_u8(byte) {
                Marker::Null => Ok("nil"),
                Marker::True | Marker::False => Ok("a boolean"),
                Marker::FixPos(_) | Marker::FixNeg(_) => Ok("an integer"),
                Marker::U8 | Marker::U16 | Marker::U32 | Marker::U64 => Ok("an integer"),
                Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => Ok("an integer"),
                Marker::F32 | Marker::F64 => Ok("a float"),
                Marker::FixStr(len) if len > 17 => Err(Malformed::Truncated),
                Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => Ok("a string"),
                Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Ok("binary"),
                Marker::FixExt1
                | Marker::FixExt2
                | Marker::FixExt4
                | Marker::FixExt8
                | Marker::FixExt16 => Ok("an extension"),
                Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => Ok("an extension"),
                Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => Ok("an array"),
                Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => Ok("a map"),
                Marker::Reserved => Err(Malformed::ReservedMarker),
            };
            assert_eq!(kind, expected, "{byte:02x}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_read_or_fail_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = TokenReader::new(&bytes);
            while reader.token().is_ok() {}
            prop_assert!(reader.position() <= bytes.len());
            let mut reader = TokenReader::new(&bytes);
            while reader.skip_value().is_ok() {}
            prop_assert!(reader.position() <= bytes.len());
        }

        #[test]
        fn values_of_serde_survive_decoding(
            value in any::<(u64, i64, bool, String, Vec<Option<i32>>, std::collections::BTreeMap<String, u16>)>(),
        ) {
            let bytes = rmp_serde::to_vec(&value).expect("serializes");
            let mut reader = TokenReader::new(&bytes);
            prop_assert_eq!(reader.array_len(), Ok(6));
            prop_assert_eq!(reader.u64(), Ok(value.0));
            prop_assert_eq!(reader.i64(), Ok(value.1));
            prop_assert_eq!(reader.bool(), Ok(value.2));
            prop_assert_eq!(reader.str_utf8(), Ok(value.3.as_str()));
            prop_assert_eq!(reader.array_len(), Ok(value.4.len() as u32));
            for item in &value.4 {
                match item {
                    Some(item) => prop_assert_eq!(reader.i64(), Ok(i64::from(*item))),
                    None => prop_assert!(reader.take_nil()),
                }
            }
            prop_assert_eq!(reader.map_len(), Ok(value.5.len() as u32));
            for (key, item) in &value.5 {
                prop_assert_eq!(reader.str_utf8(), Ok(key.as_str()));
                prop_assert_eq!(reader.u32(), Ok(u32::from(*item)));
            }
            prop_assert!(reader.is_at_end());
        }
    }
}
