//! Checks lengths in the encoding `DELTA_BINARY_PACKED`. Pages in the encodings
//! `DELTA_LENGTH_BYTE_ARRAY` and `DELTA_BYTE_ARRAY` begin with such lengths.
//!
//! The `parquet` crate allocates as much memory as such a stream announces, and relies on its
//! lengths. A page in `DELTA_BYTE_ARRAY` can announce values that are far longer than the page. So
//! the longest length is determined before any value is decoded.

use super::thrift::{take_varint, take_zigzag};

/// Maximum number of values of a page in these encodings. The `parquet` crate needs eight bytes for
/// each value, so 128 MiB in all.
const VALUES_MAX: usize = 1 << 24;
/// Maximum number of values in a block. Writers use 128.
const BLOCK_VALUES_MAX: u64 = 1 << 20;

/// Checks the header of a stream of `DELTA_BINARY_PACKED` numbers.
pub(super) fn check_numbers(data: &[u8]) -> Option<()> {
    Stream::read_header(data).map(drop)
}

/// Checks the values of a page in `DELTA_LENGTH_BYTE_ARRAY`. The page has at most `values_max`
/// values.
pub(super) fn check_lengths(data: &[u8], values_max: usize) -> Option<()> {
    let mut bytes = 0_usize;
    let (_, end) = read_lengths(data, values_max, |length| {
        bytes = bytes.checked_add(length)?;
        Some(())
    })?;
    (bytes <= data.len() - end).then_some(())
}

/// Checks the values of a page in `DELTA_BYTE_ARRAY`. The page has at most `values_max` values.
/// Returns the length of the longest value.
pub(super) fn longest_value(data: &[u8], values_max: usize) -> Option<usize> {
    let mut prefixes = Vec::new();
    let (count, end) = read_lengths(data, values_max, |length| {
        prefixes.push(u32::try_from(length).ok()?);
        Some(())
    })?;
    let suffixes = &data[end..];
    let mut at = 0;
    let mut length_before = 0;
    let mut longest = 0;
    let mut bytes = 0_usize;
    let (count_of_suffixes, end) = read_lengths(suffixes, values_max, |length| {
        let prefix = *prefixes.get(at)? as usize;
        (prefix <= length_before).then_some(())?;
        length_before = prefix.checked_add(length)?;
        longest = longest.max(length_before);
        bytes = bytes.checked_add(length)?;
        at += 1;
        Some(())
    })?;
    (count == count_of_suffixes && bytes <= suffixes.len() - end).then_some(longest)
}

/// Calls `visit` with each length of a stream. Returns the number of lengths, and the length of the
/// stream in bytes.
fn read_lengths(
    data: &[u8],
    values_max: usize,
    mut visit: impl FnMut(usize) -> Option<()>,
) -> Option<(usize, usize)> {
    let mut stream = Stream::read_header(data)?;
    let count = usize::try_from(stream.values)
        .ok()
        .filter(|count| *count <= values_max.min(VALUES_MAX))?;
    let mut last = i32::try_from(stream.first).ok()?;
    let mut left = count;
    if left > 0 {
        visit(usize::try_from(last).ok()?)?;
        left -= 1;
    }
    while left > 0 {
        let delta_min = i32::try_from(take_zigzag(&mut stream.data)?).ok()?;
        let widths = stream.take_bytes(stream.parts)?;
        for width in widths {
            if left == 0 {
                break;
            }
            let width = usize::from(*width);
            let packed =
                stream.take_bytes((width <= 32).then_some(width)? * (stream.part_values / 8))?;
            for at in 0..left.min(stream.part_values) {
                last = last.wrapping_add(delta_min).wrapping_add(unpack_number(
                    packed,
                    at * width,
                    width,
                ) as i32);
                visit(usize::try_from(last).ok()?)?;
            }
            left -= left.min(stream.part_values);
        }
    }
    Some((count, data.len() - stream.data.len()))
}

/// Returns the number of `width` bits that starts at the bit offset `bit`.
fn unpack_number(packed: &[u8], bit: usize, width: usize) -> u32 {
    let mut bytes = [0; 8];
    let from = &packed[(bit / 8).min(packed.len())..];
    let count = from.len().min(8);
    bytes[..count].copy_from_slice(&from[..count]);
    ((u64::from_le_bytes(bytes) >> (bit % 8)) & ((1 << width) - 1)) as u32
}

/// A stream after its header.
struct Stream<'a> {
    data: &'a [u8],
    /// Number of parts of a block. All numbers of a part have the same width.
    parts: usize,
    part_values: usize,
    values: u64,
    first: i64,
}

impl<'a> Stream<'a> {
    fn read_header(data: &'a [u8]) -> Option<Self> {
        let mut stream = Self {
            data,
            parts: 0,
            part_values: 0,
            values: 0,
            first: 0,
        };
        let block_values = take_varint(&mut stream.data)?;
        let parts = take_varint(&mut stream.data)?;
        stream.values = take_varint(&mut stream.data)?;
        stream.first = take_zigzag(&mut stream.data)?;
        let is_valid = (1..=BLOCK_VALUES_MAX).contains(&block_values)
            && parts > 0
            && block_values.is_multiple_of(parts)
            && (block_values / parts).is_multiple_of(32);
        is_valid.then_some(())?;
        stream.parts = usize::try_from(parts).ok()?;
        stream.part_values = usize::try_from(block_values / parts).ok()?;
        Some(stream)
    }

    fn take_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.data.split_at_checked(count)?;
        self.data = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes up to 33 numbers in blocks of 128 with parts of 32, each number in 32 bits.
    fn encoded(numbers: &[i32]) -> Vec<u8> {
        let mut out = vec![0x80, 0x01, 4, numbers.len() as u8];
        let zigzag = |number: i32| u64::from(((number << 1) ^ (number >> 31)) as u32);
        let mut first = zigzag(numbers.first().copied().unwrap_or(0));
        while first >= 0x80 {
            out.push(first as u8 | 0x80);
            first >>= 7;
        }
        out.push(first as u8);
        if numbers.len() > 1 {
            out.extend([0, 32, 0, 0, 0]);
            let mut packed: Vec<u8> = numbers
                .windows(2)
                .flat_map(|pair| (pair[1] - pair[0]).to_le_bytes())
                .collect();
            packed.resize(128, 0);
            out.extend(packed);
        }
        out
    }

    #[test]
    fn lengths_fit_their_page() {
        let page = |lengths: &[i32], bytes: usize| [encoded(lengths), vec![b'x'; bytes]].concat();
        for (data, values_max, expected) in [
            (page(&[], 0), 0, true),
            (page(&[3], 3), 1, true),
            (page(&[3, 0, 70_000, 1], 70_004), 4, true),
            (page(&[3, 0, 5], 7), 3, false),
            (page(&[3, -1], 9), 2, false),
            (page(&[-3], 9), 1, false),
            (page(&[3, 0], 3), 1, false),
            (page(&[1; 33], 33), 40, true),
            // Announced: 2^34 values, blocks of 2^34, no parts, and parts of 16.
            (
                vec![0x80, 0x01, 4, 0x80, 0x80, 0x80, 0x80, 0x40, 0],
                usize::MAX,
                false,
            ),
            (vec![0x80, 0x80, 0x80, 0x80, 0x40, 4, 1, 0], 9, false),
            (vec![0x80, 0x01, 0, 1, 0], 9, false),
            (vec![0x80, 0x01, 8, 1, 0], 9, false),
            (Vec::new(), 9, false),
        ] {
            assert_eq!(
                check_lengths(&data, values_max).is_some(),
                expected,
                "{data:02x?}"
            );
        }
        let whole = page(&[3, 0, 5], 8);
        assert!((0..whole.len()).all(|end| check_lengths(&whole[..end], 3).is_none()));
    }

    #[test]
    fn longest_value_counts_prefix_and_suffix() {
        let page = |prefixes: &[i32], suffixes: &[i32], bytes: usize| {
            [encoded(prefixes), encoded(suffixes), vec![b'x'; bytes]].concat()
        };
        for (data, expected) in [
            (page(&[0, 5, 6], &[5, 1, 1], 7), Some(7)),
            (page(&[0; 3], &[1, 9, 1], 11), Some(9)),
            (page(&[], &[], 0), Some(0)),
            (page(&[1], &[5], 5), None),
            (page(&[0, 6], &[5, 0], 5), None),
            (page(&[0, 5], &[5], 5), None),
            (page(&[0], &[5, 1], 6), None),
            (page(&[0, 5], &[5, 1], 5), None),
        ] {
            assert_eq!(longest_value(&data, 9), expected, "{data:02x?}");
        }
    }
}
