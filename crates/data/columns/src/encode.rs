//! Writes values of columns as MessagePack, cut into pieces for one request each.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use bytes::Bytes;
use sealwire_msgpack::{TokenReader, write};

use crate::path::Leaf;
use crate::timestamp::append_timestamp;
use crate::types::{append_date, append_date_time, per_second};

/// Number of bytes after which a piece takes no further value. Small enough that several pieces can
/// be in flight even if values are long.
const PIECE_BYTES: usize = 1 << 20;

/// The header of an array whose length is not yet known: the marker, and four bytes for the length.
pub(crate) const ARRAY_32: [u8; 5] = [0xdd, 0, 0, 0, 0];

/// The values of one request: values of one column, from one or more leaves.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The leaves of the values, in order. At least one.
    pub parts: Vec<PiecePart>,
    /// Number of values of the column in earlier pieces.
    pub earlier: usize,
    /// Number of values.
    pub count: usize,
    /// The values as an array.
    pub payload: Vec<u8>,
}

/// The values of a piece that belong to one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PiecePart {
    /// Index of the leaf.
    pub leaf: usize,
    /// The first row of the leaf that the piece covers.
    pub first_row: usize,
    /// Number of values, at least 1.
    pub count: usize,
}

impl Piece {
    /// Returns the part that contains the value with this number, and the value's number within the
    /// part.
    #[must_use]
    pub fn part_of(&self, mut number: usize) -> Option<(PiecePart, usize)> {
        for part in &self.parts {
            if number < part.count {
                return Some((*part, number));
            }
            number -= part.count;
        }
        None
    }

    /// Divides the result of the request among the leaves. Returns an array for each part. Returns
    /// `None` unless the result is an array with as many values as were sent: a missing or
    /// additional value would shift all following rows.
    #[must_use]
    pub fn divide(&self, result: &Bytes) -> Option<Vec<(usize, Bytes)>> {
        let mut reader = TokenReader::new(result);
        if reader.array_len().ok()? as usize != self.count {
            return None;
        }
        if let [part] = &*self.parts {
            return Some(vec![(part.leaf, result.clone())]);
        }
        let mut divided = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let mut array = ARRAY_32.to_vec();
            array[1..].copy_from_slice(&(part.count as u32).to_be_bytes());
            for _ in 0..part.count {
                array.extend_from_slice(reader.value().ok()?);
            }
            divided.push((part.leaf, array.into()));
        }
        Some(divided)
    }
}

/// Cuts columns into pieces on demand, so that only the pieces in flight take memory. The division
/// of a column's rows among leaves does not affect the values of a piece.
#[derive(Debug)]
pub struct Pieces<'a> {
    leaves: &'a [Leaf],
    /// Number of leaves of each column.
    column_leaves: usize,
    fields_max: usize,
    leaf: usize,
    row: usize,
    /// Number of values of the column in earlier pieces.
    earlier: usize,
}

impl<'a> Pieces<'a> {
    /// Cuts columns of `column_leaves` leaves each into pieces of at most `fields_max` values and
    /// about a mebibyte.
    #[must_use]
    pub fn new(leaves: &'a [Leaf], column_leaves: usize, fields_max: usize) -> Self {
        Self {
            leaves,
            column_leaves: column_leaves.max(1),
            fields_max,
            leaf: 0,
            row: 0,
            earlier: 0,
        }
    }

    /// Adds values of the current leaf to a piece until the leaf ends or the piece is full.
    fn append_leaf(&mut self, leaf: &Leaf, piece: &mut Piece) {
        let first_row = self.row;
        let before = piece.count;
        append_values(&leaf.values, Instants::Timestamps, &mut |append| {
            while self.row < leaf.rows() && !self.is_full(piece) {
                if leaf.is_present(self.row) {
                    append(self.row, &mut piece.payload);
                    piece.count += 1;
                }
                self.row += 1;
            }
        });
        if piece.count > before {
            piece.parts.push(PiecePart {
                leaf: self.leaf,
                first_row,
                count: piece.count - before,
            });
        }
        if self.row == leaf.rows() {
            self.leaf += 1;
            self.row = 0;
        }
    }

    fn is_full(&self, piece: &Piece) -> bool {
        piece.count >= self.fields_max || piece.payload.len() >= PIECE_BYTES
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let leaves = self.leaves;
        loop {
            if self.row == 0 && self.leaf.is_multiple_of(self.column_leaves) {
                self.earlier = 0;
            }
            let column = self.leaf / self.column_leaves;
            let mut piece = Piece {
                parts: Vec::new(),
                earlier: self.earlier,
                count: 0,
                payload: ARRAY_32.to_vec(),
            };
            while self.leaf / self.column_leaves == column && !self.is_full(&piece) {
                let Some(leaf) = leaves.get(self.leaf) else {
                    break;
                };
                self.append_leaf(leaf, &mut piece);
            }
            if piece.count > 0 {
                // The count is at most `fields_max`, which is far below the limit of 32 bits.
                piece.payload[1..ARRAY_32.len()]
                    .copy_from_slice(&(piece.count as u32).to_be_bytes());
                self.earlier += piece.count;
                return Some(piece);
            }
            if self.leaf >= leaves.len() {
                return None;
            }
        }
    }
}

/// Calls `met` with the row and the MessagePack scalar of each value that is present, in the form
/// that masking functions take. Columns of types that [`crate::check`] rejects produce no values.
pub fn each_value(leaf: &Leaf, mut met: impl FnMut(usize, &[u8])) {
    let mut value = Vec::new();
    append_values(&leaf.values, Instants::Text, &mut |append| {
        for row in (0..leaf.rows()).filter(|row| leaf.is_present(*row)) {
            value.clear();
            append(row, &mut value);
            met(row, &value);
        }
    });
}

/// Calls `rows` with a function that appends the MessagePack scalar of a row, in the form that
/// masking functions take. The function appends nothing for columns of types that [`crate::check`]
/// rejects.
pub fn with_values(array: &ArrayRef, rows: &mut dyn FnMut(&AppendRow<'_>)) {
    append_values(array, Instants::Text, rows);
}

/// The form of instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instants {
    /// MessagePack timestamps.
    Timestamps,
    /// Text as in RFC 3339, which masking functions take.
    Text,
}

/// Writes the value of a row.
pub type AppendRow<'a> = dyn Fn(usize, &mut Vec<u8>) + 'a;

/// Calls `rows` with a function that writes the value of a row. Columns of other types were
/// rejected before.
pub(crate) fn append_values(
    array: &ArrayRef,
    instants: Instants,
    rows: &mut dyn FnMut(&AppendRow<'_>),
) {
    macro_rules! integers {
        ($type:ty, $write:path) => {{
            let array = array.as_primitive::<$type>();
            rows(&|row, out| $write(out, array.value(row).into()))
        }};
    }
    macro_rules! texts {
        ($array:expr) => {{
            let array = $array;
            rows(&|row, out| write::str(out, array.value(row)))
        }};
    }
    macro_rules! binaries {
        ($array:expr) => {{
            let array = $array;
            rows(&|row, out| write::bin(out, array.value(row)))
        }};
    }
    macro_rules! moments {
        ($type:ty, $unit:expr) => {{
            let array = array.as_primitive::<$type>();
            let per_second = per_second($unit);
            rows(&|row, out| {
                let value = array.value(row);
                if instants == Instants::Text {
                    return append_date_time(out, value, $unit);
                }
                let nanoseconds = value.rem_euclid(per_second) * (1_000_000_000 / per_second);
                append_timestamp(out, value.div_euclid(per_second), nanoseconds as u32);
            })
        }};
    }
    match array.data_type() {
        DataType::Boolean => {
            let array = array.as_boolean();
            rows(&|row, out| write::bool(out, array.value(row)));
        }
        DataType::Int8 => integers!(Int8Type, write::int),
        DataType::Int16 => integers!(Int16Type, write::int),
        DataType::Int32 => integers!(Int32Type, write::int),
        DataType::Int64 => integers!(Int64Type, write::int),
        DataType::UInt8 => integers!(UInt8Type, write::uint),
        DataType::UInt16 => integers!(UInt16Type, write::uint),
        DataType::UInt32 => integers!(UInt32Type, write::uint),
        DataType::UInt64 => integers!(UInt64Type, write::uint),
        DataType::Float32 => integers!(Float32Type, write::f32),
        DataType::Float64 => integers!(Float64Type, write::f64),
        DataType::Utf8 => texts!(array.as_string::<i32>()),
        DataType::LargeUtf8 => texts!(array.as_string::<i64>()),
        DataType::Utf8View => texts!(array.as_string_view()),
        DataType::Binary => binaries!(array.as_binary::<i32>()),
        DataType::LargeBinary => binaries!(array.as_binary::<i64>()),
        DataType::BinaryView => binaries!(array.as_binary_view()),
        DataType::FixedSizeBinary(_) => binaries!(array.as_fixed_size_binary()),
        DataType::Date32 => {
            let array = array.as_primitive::<Date32Type>();
            rows(&|row, out| append_date(out, array.value(row)));
        }
        DataType::Decimal128(..) => {
            let array = array.as_primitive::<Decimal128Type>();
            rows(&|row, out| write::str(out, &array.value_as_string(row)));
        }
        DataType::Timestamp(TimeUnit::Second, _) => moments!(TimestampSecondType, TimeUnit::Second),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            moments!(TimestampMillisecondType, TimeUnit::Millisecond)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            moments!(TimestampMicrosecondType, TimeUnit::Microsecond)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            moments!(TimestampNanosecondType, TimeUnit::Nanosecond)
        }
        _ => rows(&|_, _| {}),
    }
}
