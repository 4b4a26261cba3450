//! Writes values of columns as MessagePack, cut into pieces of one request each.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use sealwire_msgpack::write;

use crate::path::Leaf;
use crate::timestamp::append_timestamp;
use crate::types::{append_date, append_date_time, per_second};

/// Bytes after which a piece takes no further value. Small enough that several are under way also of long values.
const PIECE_BYTES: usize = 1 << 20;

/// The header of an array whose length is not known yet: the marker, and four bytes for the length.
pub(crate) const ARRAY_32: [u8; 5] = [0xdd, 0, 0, 0, 0];

/// The values of one request.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Index of the leaf.
    pub leaf: usize,
    /// The first row of the leaf that the piece covers.
    pub first_row: usize,
    /// Number of values.
    pub count: usize,
    /// The values as an array.
    pub payload: Vec<u8>,
}

/// Cuts leaves into pieces, one after the other, so that only those under way take memory.
#[derive(Debug)]
pub struct Pieces<'a> {
    leaves: &'a [Leaf],
    fields_max: usize,
    leaf: usize,
    row: usize,
}

impl<'a> Pieces<'a> {
    /// Cuts `leaves` into pieces of at most `fields_max` values and about a mebibyte.
    #[must_use]
    pub fn new(leaves: &'a [Leaf], fields_max: usize) -> Self {
        Self { leaves, fields_max, leaf: 0, row: 0 }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            let leaves = self.leaves;
            let leaf = leaves.get(self.leaf)?;
            let (mut payload, mut count, first_row) = (ARRAY_32.to_vec(), 0_usize, self.row);
            append_values(&leaf.values, Instants::Timestamps, &mut |append| {
                while self.row < leaf.rows() && count < self.fields_max && payload.len() < PIECE_BYTES {
                    if leaf.is_present(self.row) {
                        append(self.row, &mut payload);
                        count += 1;
                    }
                    self.row += 1;
                }
            });
            let number = self.leaf;
            if self.row == leaf.rows() {
                (self.leaf, self.row) = (self.leaf + 1, 0);
            }
            if count > 0 {
                // At most `fields_max`, which is far below.
                payload[1..ARRAY_32.len()].copy_from_slice(&(count as u32).to_be_bytes());
                return Some(Piece { leaf: number, first_row, count, payload });
            }
        }
    }
}

/// Calls `met` with the row and the MessagePack scalar of each value that is there, in the form that masking functions take.
/// Columns of types that [`crate::check`] rejects give nothing.
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

/// Calls `rows` with a function that appends the MessagePack scalar of a row, in the form that masking functions take. For
/// columns of types that [`crate::check`] rejects the function appends nothing.
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

/// Calls `rows` with a function that writes the value of a row. Columns of other types were rejected before.
pub(crate) fn append_values(array: &ArrayRef, instants: Instants, rows: &mut dyn FnMut(&AppendRow<'_>)) {
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
        DataType::Timestamp(TimeUnit::Millisecond, _) => moments!(TimestampMillisecondType, TimeUnit::Millisecond),
        DataType::Timestamp(TimeUnit::Microsecond, _) => moments!(TimestampMicrosecondType, TimeUnit::Microsecond),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => moments!(TimestampNanosecondType, TimeUnit::Nanosecond),
        _ => rows(&|_, _| {}),
    }
}
