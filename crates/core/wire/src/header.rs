//! Reads a MessagePack value header: its length, the length of its body, the number of values in
//! it.
//!
//! The bytes can stop anywhere. The scanner does not use the reader of the msgpack crate, since
//! that reader needs complete values. This module reads lengths only: it checks no UTF-8 and
//! decodes no number.

/// A decoded value header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes from the marker to the body, 1..=5.
    pub(crate) bytes: u64,
    /// Length of the body in bytes. The scanner skips a body unread. 0 for containers.
    pub(crate) body: u64,
    /// The kind of value.
    pub(crate) shape: Shape,
}

/// The kind of value that a header opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A value that contains no other values.
    Scalar,
    /// An array with its number of values.
    Array(u64),
    /// A map with its number of pairs.
    Map(u64),
}

impl Shape {
    /// Returns the number of direct child values, keys included.
    pub(crate) const fn children(self) -> u64 {
        match self {
            Self::Scalar => 0,
            Self::Array(values) => values,
            Self::Map(pairs) => 2 * pairs,
        }
    }
}

/// The reason why no header was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// The buffer ends inside the header, which has this length in bytes.
    Short(usize),
    /// The marker is 0xc1, which the format reserves.
    Reserved,
}

/// Reads the header at the start of `bytes`.
#[inline]
pub(crate) fn read(bytes: &[u8]) -> Result<Header, NoHeader> {
    let Some(&marker) = bytes.first() else {
        return Err(NoHeader::Short(1));
    };
    match marker {
        0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => Ok(fixed_scalar(0)),
        0x80..=0x8f => Ok(container(1, Shape::Map(u64::from(marker & 0x0f)))),
        0x90..=0x9f => Ok(container(1, Shape::Array(u64::from(marker & 0x0f)))),
        0xa0..=0xbf => Ok(fixed_scalar(u64::from(marker & 0x1f))),
        0xc1 => Err(NoHeader::Reserved),
        0xc4 | 0xd9 => sized_scalar(bytes, 1, 0),
        0xc5 | 0xda => sized_scalar(bytes, 2, 0),
        0xc6 | 0xdb => sized_scalar(bytes, 4, 0),
        // An extension's type byte is counted as body.
        0xc7 => sized_scalar(bytes, 1, 1),
        0xc8 => sized_scalar(bytes, 2, 1),
        0xc9 => sized_scalar(bytes, 4, 1),
        0xcc | 0xd0 => Ok(fixed_scalar(1)),
        0xcd | 0xd1 => Ok(fixed_scalar(2)),
        0xca | 0xce | 0xd2 => Ok(fixed_scalar(4)),
        0xcb | 0xcf | 0xd3 => Ok(fixed_scalar(8)),
        0xd4..=0xd8 => Ok(fixed_scalar(1 + (1 << (marker - 0xd4)))),
        0xdc => Ok(container(3, Shape::Array(big_endian(bytes, 2)?))),
        0xdd => Ok(container(5, Shape::Array(big_endian(bytes, 4)?))),
        0xde => Ok(container(3, Shape::Map(big_endian(bytes, 2)?))),
        0xdf => Ok(container(5, Shape::Map(big_endian(bytes, 4)?))),
    }
}

#[inline]
const fn container(bytes: u64, shape: Shape) -> Header {
    Header {
        bytes,
        body: 0,
        shape,
    }
}

/// Returns the header of a scalar whose marker implies the length of the body.
#[inline]
const fn fixed_scalar(body: u64) -> Header {
    Header {
        bytes: 1,
        body,
        shape: Shape::Scalar,
    }
}

/// Reads the header of a scalar whose body length follows the marker in `width` bytes. `extra`
/// bytes of the body are not counted in that length.
#[inline]
fn sized_scalar(bytes: &[u8], width: usize, extra: u64) -> Result<Header, NoHeader> {
    let body = big_endian(bytes, width)? + extra;
    Ok(Header {
        bytes: 1 + width as u64,
        body,
        shape: Shape::Scalar,
    })
}

/// Reads the big-endian number of `width` bytes behind the marker.
#[inline]
fn big_endian(bytes: &[u8], width: usize) -> Result<u64, NoHeader> {
    let digits = bytes.get(1..1 + width).ok_or(NoHeader::Short(1 + width))?;
    Ok(digits
        .iter()
        .fold(0, |number, &digit| (number << 8) | u64::from(digit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expect: Result<(u64, u64, Shape), NoHeader>) {
        assert_eq!(
            read(bytes).map(|h| (h.bytes, h.body, h.shape)),
            expect,
            "{bytes:02x?}"
        );
    }

    #[test]
    fn header_of_each_marker_has_its_size() {
        use Shape::{Array, Map, Scalar};
        check(&[0x00], Ok((1, 0, Scalar)));
        check(&[0x7f], Ok((1, 0, Scalar)));
        check(&[0x82], Ok((1, 0, Map(2))));
        check(&[0x9f], Ok((1, 0, Array(15))));
        check(&[0xbf], Ok((1, 31, Scalar)));
        check(&[0xc0], Ok((1, 0, Scalar)));
        check(&[0xc3], Ok((1, 0, Scalar)));
        check(&[0xc4, 5], Ok((2, 5, Scalar)));
        check(&[0xc5, 1, 0], Ok((3, 256, Scalar)));
        check(&[0xc6, 0, 0, 1, 0], Ok((5, 256, Scalar)));
        check(&[0xc7, 5], Ok((2, 6, Scalar)));
        check(&[0xc8, 0, 5], Ok((3, 6, Scalar)));
        check(&[0xc9, 0, 0, 0, 5], Ok((5, 6, Scalar)));
        check(&[0xca], Ok((1, 4, Scalar)));
        check(&[0xcb], Ok((1, 8, Scalar)));
        for (marker, body) in (0xcc_u8..=0xd3).zip([1, 2, 4, 8, 1, 2, 4, 8]) {
            check(&[marker], Ok((1, body, Scalar)));
        }
        for (marker, body) in (0xd4_u8..=0xd8).zip([2, 3, 5, 9, 17]) {
            check(&[marker], Ok((1, body, Scalar)));
        }
        check(&[0xd9, 200], Ok((2, 200, Scalar)));
        check(&[0xda, 2, 0], Ok((3, 512, Scalar)));
        check(
            &[0xdb, 0xff, 0xff, 0xff, 0xff],
            Ok((5, u64::from(u32::MAX), Scalar)),
        );
        check(&[0xdc, 0, 3], Ok((3, 0, Array(3))));
        check(&[0xdd, 0, 0, 0, 3], Ok((5, 0, Array(3))));
        check(&[0xde, 0, 3], Ok((3, 0, Map(3))));
        check(
            &[0xdf, 0xff, 0xff, 0xff, 0xff],
            Ok((5, 0, Map(u64::from(u32::MAX)))),
        );
        check(&[0xff], Ok((1, 0, Scalar)));
    }

    #[test]
    fn header_read_reports_missing_bytes_and_the_reserved_marker() {
        check(&[], Err(NoHeader::Short(1)));
        check(&[0xd9], Err(NoHeader::Short(2)));
        check(&[0xda, 1], Err(NoHeader::Short(3)));
        check(&[0xdb, 1, 2, 3], Err(NoHeader::Short(5)));
        check(&[0xdf], Err(NoHeader::Short(5)));
        check(&[0xc1], Err(NoHeader::Reserved));
    }
}
