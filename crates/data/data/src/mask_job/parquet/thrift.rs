//! Reads the parts of a footer and of a page's header that must be known before the `parquet` crate
//! reads them.
//!
//! The feature for encryption of the `parquet` crate needs a second cryptographic library, so it is
//! disabled. Without this feature, the crate skips the encryption field of a plain-text footer. A
//! copy of such a file would contain columns that nobody can read. The crate also walks the schema
//! recursively, and allocates as much memory as the header of a page announces.

/// The field `schema` of the struct `FileMetaData`.
const SCHEMA: i16 = 2;
/// The field `column_orders` of the struct `FileMetaData`.
const COLUMN_ORDERS: i16 = 7;
/// The field `encryption_algorithm` of the struct `FileMetaData`.
const ENCRYPTION_ALGORITHM: i16 = 8;
/// The field `name` of the struct `SchemaElement`.
const NAME: i16 = 4;
/// The field `num_children` of the struct `SchemaElement`.
const NUM_CHILDREN: i16 = 5;

/// Maximum nesting of structs. Deeper structs are invalid.
const DEPTH_MAX: usize = 32;

/// Maximum nesting of groups in a schema. Deeper schemas are invalid, since walks over a schema are
/// recursive.
const SCHEMA_DEPTH_MAX: usize = 128;

/// Number of bytes after a footer: four for the length of the footer, and four for the magic
/// number.
const FOOTER_TAIL_LEN: usize = 8;

// Types of values in the compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I32: u8 = 5;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Properties of a footer that are known before the `parquet` crate reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FooterSummary {
    pub(super) is_encrypted: bool,
    /// Number of structs in lists: elements of the schema, row groups, column chunks and so on.
    pub(super) structs: u64,
    /// Bytes of the paths of all columns. In memory, each path repeats the names of all groups
    /// above the column.
    pub(super) path_bytes: u64,
}

/// Reads a footer. Returns `None` unless the footer is a struct in Thrift's compact protocol within
/// the nesting limit.
pub(super) fn footer_summary(footer: &[u8]) -> Option<FooterSummary> {
    let mut reader = Compact {
        bytes: footer,
        structs: 0,
    };
    let mut summary = FooterSummary::default();
    reader.visit_fields(0, &mut |reader, field, kind| {
        summary.is_encrypted |= field == ENCRYPTION_ALGORITHM;
        if (field, kind) != (SCHEMA, LIST) {
            return Some(false);
        }
        summary.path_bytes = summary.path_bytes.saturating_add(reader.read_schema()?);
        Some(true)
    })?;
    summary.structs = reader.structs;
    Some(summary)
}

/// Replaces the orders of columns in the footer at the end of a file. `orders` has a field of the
/// union `ColumnOrder` for each column; `None` removes the orders. Returns `None` if the bytes do
/// not end with a footer whose last field is the orders.
pub(super) fn with_column_orders(mut end: Vec<u8>, orders: &Option<Vec<u8>>) -> Option<Vec<u8>> {
    let tail_at = end.len().checked_sub(FOOTER_TAIL_LEN)?;
    let (length, magic) = end[tail_at..].split_first_chunk::<4>()?;
    let magic = magic.to_vec();
    let footer_at = tail_at.checked_sub(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;

    let footer = &end[footer_at..tail_at];
    // Positions before and after the header of the last field.
    let mut last = (COLUMN_ORDERS, 0, 0);
    let mut reader = Compact {
        bytes: footer,
        structs: 0,
    };
    let mut at = 0;
    reader.visit_fields(0, &mut |reader, field, kind| {
        let after_header = footer.len() - reader.bytes.len();
        last = (field, at, after_header);
        if !matches!(kind, TRUE | FALSE) {
            reader.skip_value(kind, 0)?;
        }
        at = footer.len() - reader.bytes.len();
        Some(true)
    })?;
    let (field, before_header, after_header) = last;
    (field == COLUMN_ORDERS && reader.bytes.is_empty()).then_some(())?;

    match orders {
        Some(orders) => {
            end.truncate(footer_at + after_header);
            match u8::try_from(orders.len()) {
                Ok(count @ 0..15) => end.push(count << 4 | STRUCT),
                _ => {
                    end.push(0xf0 | STRUCT);
                    push_varint(orders.len() as u64, &mut end);
                }
            }
            // A union with one field, which is an empty struct.
            end.extend(orders.iter().flat_map(|order| [order << 4 | STRUCT, 0, 0]));
        }
        None => end.truncate(footer_at + before_header),
    }
    end.push(0);
    let length = u32::try_from(end.len() - footer_at).ok()?;
    end.extend_from_slice(&length.to_le_bytes());
    end.extend_from_slice(&magic);
    Some(end)
}

/// Appends an unsigned number of variable length (ULEB128).
fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The header of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// 0: data of version 1, 1: index, 2: dictionary, 3: data of version 2.
    pub(super) kind: i32,
    /// Bytes of the page after decompression.
    pub(super) uncompressed_bytes: i32,
    /// Bytes of the page in the file, without the header.
    pub(super) compressed_bytes: i32,
    /// Number of values. For data pages, this includes nulls.
    pub(super) values: i32,
    /// Bytes of the levels of data of version 2, which are uncompressed.
    pub(super) level_bytes: (i32, i32),
}

/// Reads a page's header. Returns the header and its length, or `None` if the bytes do not hold a
/// valid header.
pub(super) fn page_header(bytes: &[u8]) -> Option<(PageHeader, usize)> {
    let mut reader = Compact { bytes, structs: 0 };
    let mut header = PageHeader {
        kind: -1,
        uncompressed_bytes: -1,
        compressed_bytes: -1,
        values: -1,
        ..PageHeader::default()
    };
    reader.visit_fields(0, &mut |reader, field, kind| {
        let of = match (field, header.kind) {
            (1, _) => &mut header.kind,
            (2, _) => &mut header.uncompressed_bytes,
            (3, _) => &mut header.compressed_bytes,
            (5, 0) | (7, 2) | (8, 3) => {
                (kind == STRUCT).then_some(())?;
                header.values = -1;
                reader.visit_fields(1, &mut |reader, inner, kind| {
                    let of = match (field, inner) {
                        (_, 1) => &mut header.values,
                        (8, 5) => &mut header.level_bytes.0,
                        (8, 6) => &mut header.level_bytes.1,
                        _ => return Some(false),
                    };
                    *of = reader.i32(kind)?;
                    Some(true)
                })?;
                return Some(true);
            }
            // The struct of another kind of page. The `parquet` crate would treat it as the struct
            // of version 2.
            (5 | 7 | 8, _) => return None,
            _ => return Some(false),
        };
        *of = reader.i32(kind)?;
        Some(true)
    })?;
    Some((header, bytes.len() - reader.bytes.len()))
}

/// Returns the length of a bloom filter with its header, or `None` if the bytes do not begin with a
/// valid header.
pub(super) fn bloom_filter_len(bytes: &[u8]) -> Option<u64> {
    let mut reader = Compact { bytes, structs: 0 };
    let mut filter_bytes = None;
    reader.visit_fields(0, &mut |reader, field, kind| {
        if field == 1 {
            filter_bytes = u64::try_from(reader.i32(kind)?).ok();
        }
        Some(field == 1)
    })?;
    Some((bytes.len() - reader.bytes.len()) as u64 + filter_bytes?)
}

/// Takes an unsigned number of variable length (ULEB128) from the start of some bytes.
pub(super) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Takes a signed number of variable length, in zigzag form, from the start of some bytes.
pub(super) fn take_zigzag(bytes: &mut &[u8]) -> Option<i64> {
    let value = take_varint(bytes)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

struct Compact<'a> {
    bytes: &'a [u8],
    /// Number of structs in the lists that were read.
    structs: u64,
}

/// A callback for the number and type of a field. Returns true if it read the value, and `None` if
/// the value is invalid.
type Visit<'v, 'a> = &'v mut dyn FnMut(&mut Compact<'a>, i16, u8) -> Option<bool>;

impl<'a> Compact<'a> {
    fn take_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn skip(&mut self, count: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    fn take_varint(&mut self) -> Option<u64> {
        take_varint(&mut self.bytes)
    }

    fn take_zigzag(&mut self) -> Option<i64> {
        take_zigzag(&mut self.bytes)
    }

    fn i32(&mut self, kind: u8) -> Option<i32> {
        (kind == I32).then_some(())?;
        i32::try_from(self.take_zigzag()?).ok()
    }

    /// Reads the type of a list's elements and their number.
    fn list_header(&mut self) -> Option<(u8, u64)> {
        let header = self.take_byte()?;
        let count = if header >> 4 == 0xf {
            self.take_varint()?
        } else {
            u64::from(header >> 4)
        };
        if header & 0xf == STRUCT {
            self.structs = self.structs.saturating_add(count);
        }
        Some((header & 0xf, count))
    }

    /// Reads a struct, and calls `visit` for each field.
    fn visit_fields(&mut self, depth: usize, visit: Visit<'_, 'a>) -> Option<()> {
        let mut field = 0_i16;
        loop {
            let header = self.take_byte()?;
            if header == 0 {
                return Some(());
            }
            field = match header >> 4 {
                0 => i16::try_from(self.take_zigzag()?).ok()?,
                delta => field.checked_add(i16::from(delta))?,
            };
            let kind = header & 0xf;
            // The value of a boolean field is in its header.
            if !visit(self, field, kind)? && !matches!(kind, TRUE | FALSE) {
                self.skip_value(kind, depth)?;
            }
        }
    }

    fn skip_value(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match kind {
            1..=3 => self.skip(1),
            4..=6 => self.take_varint().map(drop),
            7 => self.skip(8),
            8 => {
                let length = self.take_varint()?;
                self.skip(length)
            }
            LIST | 10 => {
                let (kind, count) = self.list_header()?;
                (0..count).try_for_each(|_| self.skip_value(kind, depth + 1))
            }
            11 => {
                let count = self.take_varint()?;
                let kinds = if count > 0 { self.take_byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.skip_value(kinds >> 4, depth + 1)?;
                    self.skip_value(kinds & 0xf, depth + 1)
                })
            }
            STRUCT => self.visit_fields(depth + 1, &mut |_, _, _| Some(false)),
            _ => None,
        }
    }

    /// Reads the elements of a schema, which are in depth-first order. Returns the bytes of the
    /// paths of all elements.
    fn read_schema(&mut self) -> Option<u64> {
        let (kind, count) = self.list_header()?;
        (kind == STRUCT).then_some(())?;
        // For each group above the next element: the number of its remaining children, and the
        // length of its path.
        let mut open: Vec<(i32, u64)> = Vec::new();
        let mut path_bytes = 0_u64;
        for _ in 0..count {
            let mut children = 0;
            let mut path = open.last().map_or(0, |(_, path)| *path);
            self.visit_fields(1, &mut |reader, field, kind| match (field, kind) {
                (NUM_CHILDREN, _) => {
                    children = reader.i32(kind)?;
                    Some(true)
                }
                (NAME, BINARY) => {
                    let length = reader.take_varint()?;
                    path = path.saturating_add(length);
                    reader.skip(length)?;
                    Some(true)
                }
                _ => Some(false),
            })?;
            path_bytes = path_bytes.saturating_add(path);
            if let Some((left, _)) = open.last_mut() {
                *left -= 1;
            }
            if children > 0 {
                open.push((children, path));
            }
            while open.last().is_some_and(|(left, _)| *left == 0) {
                open.pop();
            }
            if open.len() > SCHEMA_DEPTH_MAX {
                return None;
            }
        }
        Some(path_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_encrypted_in(footer: &[u8]) -> Option<bool> {
        footer_summary(footer).map(|summary| summary.is_encrypted)
    }

    #[test]
    fn footers_are_summed_up_before_memory_is_taken() {
        // A schema of a root "ab", a group "cde" and two leaves "f" and "gh", then a list of 70
        // empty row groups.
        let element = |name: &[u8], children: u8| {
            let rest: &[u8] = if children > 0 {
                &[0x15, children << 1, 0]
            } else {
                &[0]
            };
            [&[0x48, name.len() as u8], name, rest].concat()
        };
        let schema = [
            element(b"ab", 1),
            element(b"cde", 2),
            element(b"f", 0),
            element(b"gh", 0),
        ]
        .concat();
        let footer = [
            &[0x29, 0x4c],
            &schema[..],
            &[0x29, 0xfc, 70],
            &[0; 70],
            &[0],
        ]
        .concat();
        let path_bytes = 2 + 5 + 6 + 7;
        assert_eq!(
            footer_summary(&footer),
            Some(FooterSummary {
                is_encrypted: false,
                structs: 74,
                path_bytes
            })
        );
        // A list announces more than there is.
        assert_eq!(footer_summary(&footer[..footer.len() - 2]), None);
    }

    #[test]
    fn encryption_field_is_found_among_others() {
        // i32 1, list of two structs (bool, binary), binary, and the field 8 as an empty struct in
        // a union.
        let before = [
            0x15, 0x04, 0x19, 0x2c, 0x11, 0x18, 0x01, b'x', 0x00, 0x12, 0x00, 0x48, 0x02, b'a',
            b'b',
        ];
        for (after, expected) in [
            (&[0x2c, 0x1c, 0x00, 0x00, 0x00][..], Some(true)),
            (&[0x0c, 0x10, 0x1c, 0x00, 0x00, 0x00], Some(true)),
            (&[0x3c, 0x1c, 0x00, 0x00, 0x00], Some(false)),
            (&[0x00], Some(false)),
            (&[], None),
            (&[0x28, 0xff, 0xff, 0xff, 0xff, 0x7f], None),
            (&[0x29, 0xf9, 0xff, 0xff, 0xff, 0x7f], None),
        ] {
            assert_eq!(
                is_encrypted_in(&[&before[..], after].concat()),
                expected,
                "{after:02x?}"
            );
        }
        assert_eq!(
            is_encrypted_in(&[0x19, 0x19].repeat(99)),
            None,
            "nested without end"
        );
    }

    #[test]
    fn schemas_nest_within_a_bound() {
        // Groups of one child each, as a list with a long count, then a leaf.
        let schema = |groups: u8| {
            let count = u16::from(groups) + 1;
            let list = [0x29, 0xfc, (count & 0x7f) as u8 | 0x80, (count >> 7) as u8];
            [
                &list[..],
                &[0x55, 0x02, 0x00].repeat(usize::from(groups)),
                &[0x00, 0x00],
            ]
            .concat()
        };
        for (groups, expected) in [
            (0, Some(false)),
            (1, Some(false)),
            (128, Some(false)),
            (129, None),
            (255, None),
        ] {
            assert_eq!(is_encrypted_in(&schema(groups)), expected, "{groups}");
        }
        // Many siblings are one level.
        let siblings = [
            &[0x29, 0xfc, 0xc9, 0x01, 0x55, 0x90, 0x03, 0x00][..],
            &[0; 200],
            &[0x00],
        ]
        .concat();
        assert_eq!(is_encrypted_in(&siblings), Some(false));
    }

    #[test]
    fn bloom_filters_have_the_length_of_their_header_and_bits() {
        // The number of bytes, and the three unions with an empty struct each.
        let rest = [0x1c, 0x1c, 0, 0, 0x1c, 0x1c, 0, 0, 0x1c, 0x1c, 0, 0, 0];
        for (number, expected) in [
            (&[0x15, 0x40][..], Some(15 + 32)),
            (&[0x15, 0x3f], None),
            (&[0x16, 0x40], None),
            (&[0x25, 0x40], None),
        ] {
            assert_eq!(
                bloom_filter_len(&[number, &rest[..], &[9; 40]].concat()),
                expected,
                "{number:02x?}"
            );
        }
        assert_eq!(bloom_filter_len(&[]), None);
    }

    #[test]
    fn column_orders_replace_the_last_field_of_a_footer() {
        // Some bytes of the file, the field 6 (a text), and the field 7 with an order for each of
        // two columns.
        let footer = |fields: &[u8]| {
            let length = u32::try_from(fields.len()).expect("short").to_le_bytes();
            [b"index", fields, &length, b"PAR1"].concat()
        };
        let text = [0x68, 0x01, b'x'];
        let with = |orders: &[u8]| footer(&[&text[..], &[0x19], orders, &[0x00]].concat());
        let before = with(&[0x2c, 0x1c, 0, 0, 0x2c, 0, 0]);
        let sixteen = [&[0xfc, 16][..], &[0x3c, 0, 0].repeat(16)].concat();
        for (orders, expected) in [
            (Some(vec![1, 1]), with(&[0x2c, 0x1c, 0, 0, 0x1c, 0, 0])),
            (Some(vec![15]), with(&[0x1c, 0xfc, 0, 0])),
            (Some(vec![3; 16]), with(&sixteen)),
            (None, footer(&[&text[..], &[0x00]].concat())),
        ] {
            assert_eq!(
                with_column_orders(before.clone(), &orders),
                Some(expected),
                "{orders:?}"
            );
        }
        let no_footer = [
            footer(&[0x68, 0x01, b'x', 0]),
            footer(&[0x78, 0x01]),
            b"\xff\0\0\0PAR1".to_vec(),
            vec![0; 3],
        ];
        for end in no_footer {
            assert_eq!(
                with_column_orders(end.clone(), &Some(vec![1])),
                None,
                "{end:02x?}"
            );
        }
    }

    #[test]
    fn page_headers_are_read() {
        let header = |kind, values, level_bytes| {
            Some(PageHeader {
                kind,
                uncompressed_bytes: 100,
                compressed_bytes: 50,
                values,
                level_bytes,
            })
        };
        // Type, uncompressed and compressed size.
        let sizes = |kind: u8| [0x15, kind << 1, 0x15, 0xc8, 0x01, 0x15, 0x64];
        let with = |kind: u8, rest: &[u8]| [&sizes(kind)[..], rest, &[0xaa]].concat();
        for (bytes, expected) in [
            // Data with a number of values, encodings, and statistics with a text.
            (
                with(
                    0,
                    &[
                        0x2c, 0x15, 0x0e, 0x15, 0, 0x15, 0, 0x15, 0, 0x1c, 0x18, 1, b'x', 0, 0, 0,
                    ],
                ),
                header(0, 7, (0, 0)),
            ),
            (
                with(2, &[0x4c, 0x15, 0x06, 0x15, 0, 0x11, 0, 0]),
                header(2, 3, (0, 0)),
            ),
            (
                with(
                    3,
                    &[
                        0x5c, 0x15, 0x08, 0x15, 0, 0x15, 8, 0x15, 0, 0x15, 4, 0x15, 2, 0x12, 0, 0,
                    ],
                ),
                header(3, 4, (2, 1)),
            ),
            // Without the struct of its kind, and with that of another.
            (with(0, &[0]), header(0, -1, (0, 0))),
            (with(0, &[0x4c, 0x15, 0x06, 0, 0]), None),
            // A number in another type, one beyond 32 bits, and an end within.
            (vec![0x16, 0x00, 0x00], None),
            (vec![0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x00], None),
            (sizes(0).to_vec(), None),
        ] {
            let found = page_header(&bytes);
            assert_eq!(found.map(|(header, _)| header), expected, "{bytes:02x?}");
            assert!(found.is_none_or(|(_, length)| length == bytes.len() - 1));
        }
    }
}
