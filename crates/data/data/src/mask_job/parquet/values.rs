//! Values of a column in the forms of Parquet and Arrow.
//!
//! Parquet stores the values without nulls, and separate levels that give the positions of the
//! values.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, Decimal128Builder, FixedSizeBinaryBuilder, StringBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, BooleanArray, PrimitiveArray};
use arrow_schema::{DataType, TimeUnit};
use bytes::Bytes;
use parquet::basic::Type;
use parquet::column::reader::ColumnReader;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use parquet::errors::ParquetError;

/// Days between the Julian epoch and 1970.
const JULIAN_1970: i64 = 2_440_588;
const NANOSECONDS_PER_DAY: i64 = 86_400_000_000_000;

/// Values of a column.
#[derive(Clone, Debug)]
pub(super) enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Int96(Vec<Int96>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

/// Levels of a column's entries. Empty if the column needs none.
#[derive(Clone, Debug, Default)]
pub(super) struct Levels {
    pub(super) definitions: Vec<i16>,
    pub(super) repetitions: Vec<i16>,
}

impl Levels {
    /// Returns the levels of some entries.
    pub(super) fn range(&self, entries: Range<usize>) -> Self {
        Self {
            definitions: self
                .definitions
                .get(entries.clone())
                .map_or(Vec::new(), <[i16]>::to_vec),
            repetitions: self
                .repetitions
                .get(entries)
                .map_or(Vec::new(), <[i16]>::to_vec),
        }
    }
}

/// Reads up to `records` whole records and appends them. Returns the number of records and of
/// entries.
pub(super) fn read(
    reader: &mut ColumnReader,
    records: usize,
    levels: &mut Levels,
    values: &mut Values,
) -> Result<(usize, usize), ParquetError> {
    let definitions = Some(&mut levels.definitions);
    let repetitions = Some(&mut levels.repetitions);
    macro_rules! read {
        ($reader:expr, $values:expr) => {{
            let (records, _, entries) =
                $reader.read_records(records, definitions, repetitions, $values)?;
            Ok((records, entries))
        }};
    }
    match (reader, values) {
        (ColumnReader::BoolColumnReader(reader), Values::Bool(values)) => read!(reader, values),
        (ColumnReader::Int32ColumnReader(reader), Values::Int32(values)) => read!(reader, values),
        (ColumnReader::Int64ColumnReader(reader), Values::Int64(values)) => read!(reader, values),
        (ColumnReader::Int96ColumnReader(reader), Values::Int96(values)) => read!(reader, values),
        (ColumnReader::FloatColumnReader(reader), Values::Float(values)) => read!(reader, values),
        (ColumnReader::DoubleColumnReader(reader), Values::Double(values)) => read!(reader, values),
        (ColumnReader::ByteArrayColumnReader(reader), Values::Bytes(values)) => {
            read!(reader, values)
        }
        (ColumnReader::FixedLenByteArrayColumnReader(reader), Values::Fixed(values)) => {
            read!(reader, values)
        }
        _ => Err(ParquetError::General(
            "the values are of another type than the column".to_owned(),
        )),
    }
}

/// Writes entries.
pub(super) fn write(
    writer: &mut ColumnWriter<'_>,
    values: &Values,
    levels: &Levels,
) -> Result<(), ParquetError> {
    let definitions = Some(&levels.definitions[..]).filter(|levels| !levels.is_empty());
    let repetitions = Some(&levels.repetitions[..]).filter(|levels| !levels.is_empty());
    match (writer, values) {
        (ColumnWriter::BoolColumnWriter(writer), Values::Bool(values)) => {
            writer.write_batch(values, definitions, repetitions)?;
        }
        (ColumnWriter::Int32ColumnWriter(writer), Values::Int32(values)) => {
            writer.write_batch(values, definitions, repetitions)?;
        }
        (ColumnWriter::Int64ColumnWriter(writer), Values::Int64(values)) => {
            writer.write_batch(values, definitions, repetitions)?;
        }
        (ColumnWriter::Int96ColumnWriter(writer), Values::Int96(values)) => {
            writer.write_batch(values, definitions, repetitions)?;
        }
        (ColumnWriter::FloatColumnWriter(writer), Values::Float(values)) => {
            writer.write_batch(values, definitions, repetitions)?;
        }
        (ColumnWriter::DoubleColumnWriter(writer), Values::Double(values)) => {
            writer.write_batch(values, definitions, repetitions)?;
        }
        (ColumnWriter::ByteArrayColumnWriter(writer), Values::Bytes(values)) => {
            writer.write_batch(values, definitions, repetitions)?;
        }
        (ColumnWriter::FixedLenByteArrayColumnWriter(writer), Values::Fixed(values)) => {
            writer.write_batch(values, definitions, repetitions)?;
        }
        _ => {
            return Err(ParquetError::General(
                "the values are of another type than the column".to_owned(),
            ));
        }
    }
    Ok(())
}

fn primitive_array<T: ArrowPrimitiveType>(
    values: impl Iterator<Item = T::Native>,
    data_type: &DataType,
) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(values).with_data_type(data_type.clone()))
}

/// Copies values into one new buffer, which they share.
fn share_new_buffer<'v>(
    values: impl Iterator<Item = &'v [u8]> + Clone,
) -> impl Iterator<Item = ByteArray> {
    let mut all = Vec::with_capacity(values.clone().map(<[u8]>::len).sum());
    let ends: Vec<usize> = values
        .map(|value| {
            all.extend_from_slice(value);
            all.len()
        })
        .collect();
    let all = Bytes::from(all);
    let mut start = 0;
    ends.into_iter().map(move |end| {
        let value = all.slice(start..end);
        start = end;
        ByteArray::from(value)
    })
}

/// Returns a big-endian number of up to 16 bytes.
fn decimal(bytes: &[u8]) -> Option<i128> {
    let negative = bytes.first().is_some_and(|first| *first >= 0x80);
    let mut wide = if negative { [0xff; 16] } else { [0; 16] };
    wide.get_mut(16_usize.checked_sub(bytes.len())?..)?
        .copy_from_slice(bytes);
    Some(i128::from_be_bytes(wide))
}

impl Values {
    /// Returns an empty sequence of values of a type.
    pub(super) fn empty(physical: Type) -> Self {
        match physical {
            Type::BOOLEAN => Self::Bool(Vec::new()),
            Type::INT32 => Self::Int32(Vec::new()),
            Type::INT64 => Self::Int64(Vec::new()),
            Type::INT96 => Self::Int96(Vec::new()),
            Type::FLOAT => Self::Float(Vec::new()),
            Type::DOUBLE => Self::Double(Vec::new()),
            Type::BYTE_ARRAY => Self::Bytes(Vec::new()),
            Type::FIXED_LEN_BYTE_ARRAY => Self::Fixed(Vec::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bool(values) => values.len(),
            Self::Int32(values) => values.len(),
            Self::Int64(values) => values.len(),
            Self::Int96(values) => values.len(),
            Self::Float(values) => values.len(),
            Self::Double(values) => values.len(),
            Self::Bytes(values) => values.len(),
            Self::Fixed(values) => values.len(),
        }
    }

    /// Adds a placeholder value, such as 0 or an empty string.
    pub(super) fn push_empty(&mut self) {
        match self {
            Self::Bool(values) => values.push(false),
            Self::Int32(values) => values.push(0),
            Self::Int64(values) => values.push(0),
            Self::Int96(values) => values.push(int96(0)),
            Self::Float(values) => values.push(0.0),
            Self::Double(values) => values.push(0.0),
            Self::Bytes(values) => values.push(ByteArray::from("")),
            Self::Fixed(values) => {
                let width = values.first().map_or(0, |value| value.len());
                values.push(FixedLenByteArray::from(vec![0; width]));
            }
        }
    }

    /// Returns the bytes of all values.
    pub(super) fn bytes(&self) -> usize {
        (0..self.len()).map(|at| self.value_bytes(at)).sum()
    }

    /// Returns the bytes of a value.
    pub(super) fn value_bytes(&self, at: usize) -> usize {
        match self {
            Self::Bool(_) => 1,
            Self::Int32(_) | Self::Float(_) => 4,
            Self::Int64(_) | Self::Double(_) => 8,
            Self::Int96(_) => 12,
            Self::Bytes(values) => values[at].len(),
            Self::Fixed(values) => values[at].len(),
        }
    }

    /// Returns some of the values. The result shares the buffers of the original values.
    pub(super) fn range(&self, range: Range<usize>) -> Self {
        match self {
            Self::Bool(values) => Self::Bool(values[range].to_vec()),
            Self::Int32(values) => Self::Int32(values[range].to_vec()),
            Self::Int64(values) => Self::Int64(values[range].to_vec()),
            Self::Int96(values) => Self::Int96(values[range].to_vec()),
            Self::Float(values) => Self::Float(values[range].to_vec()),
            Self::Double(values) => Self::Double(values[range].to_vec()),
            Self::Bytes(values) => Self::Bytes(values[range].to_vec()),
            Self::Fixed(values) => Self::Fixed(values[range].to_vec()),
        }
    }

    /// Returns the values with separate memory, which no other values share.
    pub(super) fn detached(self) -> Self {
        match self {
            Self::Bytes(values) => {
                Self::Bytes(share_new_buffer(values.iter().map(ByteArray::data)).collect())
            }
            Self::Fixed(values) => Self::Fixed(
                share_new_buffer(values.iter().map(|value| value.data()))
                    .map(FixedLenByteArray::from)
                    .collect(),
            ),
            other => other,
        }
    }

    /// Returns an array of a type. `Err` describes the problem with a value, and contains the
    /// value's index if known.
    pub(super) fn to_arrow(&self, data_type: &DataType) -> Result<ArrayRef, (usize, &'static str)> {
        const TYPE: &str = "its Parquet type cannot be masked";
        Ok(match (self, data_type) {
            (Self::Bool(values), DataType::Boolean) => Arc::new(BooleanArray::from(values.clone())),
            (Self::Float(values), DataType::Float32) => {
                primitive_array::<Float32Type>(values.iter().copied(), data_type)
            }
            (Self::Double(values), DataType::Float64) => {
                primitive_array::<Float64Type>(values.iter().copied(), data_type)
            }
            (Self::Int32(values), _) => {
                let values = values.iter().copied();
                match data_type {
                    DataType::Int8 => {
                        primitive_array::<Int8Type>(values.map(|value| value as i8), data_type)
                    }
                    DataType::Int16 => {
                        primitive_array::<Int16Type>(values.map(|value| value as i16), data_type)
                    }
                    DataType::Int32 => primitive_array::<Int32Type>(values, data_type),
                    DataType::UInt8 => {
                        primitive_array::<UInt8Type>(values.map(|value| value as u8), data_type)
                    }
                    DataType::UInt16 => {
                        primitive_array::<UInt16Type>(values.map(|value| value as u16), data_type)
                    }
                    DataType::UInt32 => {
                        primitive_array::<UInt32Type>(values.map(|value| value as u32), data_type)
                    }
                    DataType::Date32 => primitive_array::<Date32Type>(values, data_type),
                    DataType::Decimal128(..) => {
                        primitive_array::<Decimal128Type>(values.map(i128::from), data_type)
                    }
                    _ => return Err((0, TYPE)),
                }
            }
            (Self::Int64(values), _) => {
                let values = values.iter().copied();
                match data_type {
                    DataType::Int64 => primitive_array::<Int64Type>(values, data_type),
                    DataType::UInt64 => {
                        primitive_array::<UInt64Type>(values.map(|value| value as u64), data_type)
                    }
                    DataType::Decimal128(..) => {
                        primitive_array::<Decimal128Type>(values.map(i128::from), data_type)
                    }
                    DataType::Timestamp(TimeUnit::Millisecond, _) => {
                        primitive_array::<TimestampMillisecondType>(values, data_type)
                    }
                    DataType::Timestamp(TimeUnit::Microsecond, _) => {
                        primitive_array::<TimestampMicrosecondType>(values, data_type)
                    }
                    DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                        primitive_array::<TimestampNanosecondType>(values, data_type)
                    }
                    _ => return Err((0, TYPE)),
                }
            }
            (Self::Int96(values), DataType::Timestamp(TimeUnit::Nanosecond, _)) => {
                let instants = values
                    .iter()
                    .enumerate()
                    .map(|(at, value)| nanoseconds_of(value).ok_or((at, OUT_OF_RANGE)));
                let instants = instants.collect::<Result<Vec<_>, _>>()?;
                primitive_array::<TimestampNanosecondType>(instants.into_iter(), data_type)
            }
            (Self::Bytes(values), DataType::Utf8) => {
                let mut builder = StringBuilder::with_capacity(values.len(), self.bytes());
                for (at, value) in values.iter().enumerate() {
                    builder.append_value(
                        std::str::from_utf8(value.data()).map_err(|_| (at, "it is not UTF-8"))?,
                    );
                }
                Arc::new(builder.finish())
            }
            (Self::Bytes(values), DataType::Binary) => {
                let mut builder = BinaryBuilder::with_capacity(values.len(), self.bytes());
                values
                    .iter()
                    .for_each(|value| builder.append_value(value.data()));
                Arc::new(builder.finish())
            }
            (Self::Fixed(values), DataType::FixedSizeBinary(width)) => {
                let mut builder = FixedSizeBinaryBuilder::with_capacity(values.len(), *width);
                for (at, value) in values.iter().enumerate() {
                    builder
                        .append_value(value.data())
                        .map_err(|_| (at, "it has another length than its type"))?;
                }
                Arc::new(builder.finish())
            }
            (Self::Bytes(values), DataType::Decimal128(..)) => {
                decimal_array(values.iter().map(ByteArray::data), data_type)?
            }
            (Self::Fixed(values), DataType::Decimal128(..)) => {
                decimal_array(values.iter().map(|value| value.data()), data_type)?
            }
            _ => return Err((0, TYPE)),
        })
    }

    /// Returns the values as texts. A value that is not UTF-8 becomes an empty text.
    pub(super) fn to_texts(&self) -> Option<ArrayRef> {
        let Self::Bytes(values) = self else {
            return None;
        };
        let mut builder = StringBuilder::with_capacity(values.len(), self.bytes());
        values.iter().for_each(|value| {
            builder.append_value(std::str::from_utf8(value.data()).unwrap_or(""))
        });
        Some(Arc::new(builder.finish()))
    }

    /// Puts values that are not UTF-8 back among the texts made from the other values. `present`
    /// returns true for the values that are not null.
    pub(super) fn restore_binary(&mut self, originals: &Self, present: impl Fn(usize) -> bool) {
        let (Self::Bytes(values), Self::Bytes(originals)) = (self, originals) else {
            return;
        };
        let places = originals
            .iter()
            .enumerate()
            .filter(|(at, _)| present(*at))
            .map(|(_, original)| original);
        for (value, original) in values.iter_mut().zip(places) {
            if std::str::from_utf8(original.data()).is_err() {
                *value = original.clone();
            }
        }
    }

    /// Returns the non-null values of an array, in the form of the values from which the array was
    /// made. `width` is the length of values of fixed length. Returns `None` if a value does not
    /// fit.
    pub(super) fn convert_array(&self, array: &ArrayRef, width: i32) -> Option<Self> {
        macro_rules! numbers {
            ($type:ty, $as:ty) => {
                array
                    .as_primitive::<$type>()
                    .iter()
                    .flatten()
                    .map(|value| value as $as)
                    .collect()
            };
        }
        Some(match (self, array.data_type()) {
            (Self::Bool(_), DataType::Boolean) => {
                Self::Bool(array.as_boolean().iter().flatten().collect())
            }
            (Self::Float(_), DataType::Float32) => Self::Float(numbers!(Float32Type, f32)),
            (Self::Double(_), DataType::Float64) => Self::Double(numbers!(Float64Type, f64)),
            (Self::Int32(_), data_type) => Self::Int32(match data_type {
                DataType::Int8 => numbers!(Int8Type, i32),
                DataType::Int16 => numbers!(Int16Type, i32),
                DataType::Int32 => numbers!(Int32Type, i32),
                DataType::UInt8 => numbers!(UInt8Type, i32),
                DataType::UInt16 => numbers!(UInt16Type, i32),
                DataType::UInt32 => numbers!(UInt32Type, i32),
                DataType::Date32 => numbers!(Date32Type, i32),
                DataType::Decimal128(..) => decimal_values(array)
                    .map(|value| value.try_into().ok())
                    .collect::<Option<_>>()?,
                _ => return None,
            }),
            (Self::Int64(_), data_type) => Self::Int64(match data_type {
                DataType::Int64 => numbers!(Int64Type, i64),
                DataType::UInt64 => numbers!(UInt64Type, i64),
                DataType::Timestamp(TimeUnit::Millisecond, _) => {
                    numbers!(TimestampMillisecondType, i64)
                }
                DataType::Timestamp(TimeUnit::Microsecond, _) => {
                    numbers!(TimestampMicrosecondType, i64)
                }
                DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                    numbers!(TimestampNanosecondType, i64)
                }
                DataType::Decimal128(..) => decimal_values(array)
                    .map(|value| value.try_into().ok())
                    .collect::<Option<_>>()?,
                _ => return None,
            }),
            (Self::Int96(_), DataType::Timestamp(TimeUnit::Nanosecond, _)) => Self::Int96(
                array
                    .as_primitive::<TimestampNanosecondType>()
                    .iter()
                    .flatten()
                    .map(int96)
                    .collect(),
            ),
            (Self::Bytes(_), DataType::Utf8) => {
                let array = array.as_string::<i32>();
                Self::Bytes(shared_values(
                    array.value_data(),
                    array.value_offsets(),
                    array,
                ))
            }
            (Self::Bytes(_), DataType::Binary) => {
                let array = array.as_binary::<i32>();
                Self::Bytes(shared_values(
                    array.value_data(),
                    array.value_offsets(),
                    array,
                ))
            }
            (Self::Bytes(_), DataType::Decimal128(..)) => Self::Bytes(
                decimal_values(array)
                    .map(|value| ByteArray::from(shortest(value).to_vec()))
                    .collect(),
            ),
            (Self::Fixed(_), DataType::FixedSizeBinary(_)) => {
                let values = array.as_fixed_size_binary().iter().flatten();
                Self::Fixed(
                    values
                        .map(|value| FixedLenByteArray::from(value.to_vec()))
                        .collect(),
                )
            }
            (Self::Fixed(_), DataType::Decimal128(..)) => {
                let width = usize::try_from(width).ok()?;
                Self::Fixed(
                    decimal_values(array)
                        .map(|value| fixed_width(value, width))
                        .collect::<Option<_>>()?,
                )
            }
            _ => return None,
        })
    }
}

const OUT_OF_RANGE: &str = "its instant is out of the range of nanoseconds since 1970";

fn decimal_array<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    data_type: &DataType,
) -> Result<ArrayRef, (usize, &'static str)> {
    let mut builder = Decimal128Builder::new().with_data_type(data_type.clone());
    for (at, value) in values.enumerate() {
        builder.append_value(decimal(value).ok_or((at, "its decimal number is too long"))?);
    }
    Ok(Arc::new(builder.finish()))
}

fn decimal_values(array: &ArrayRef) -> impl Iterator<Item = i128> {
    array.as_primitive::<Decimal128Type>().iter().flatten()
}

/// Returns a number in two's complement with `width` bytes, or `None` if it needs more bytes.
fn fixed_width(value: i128, width: usize) -> Option<FixedLenByteArray> {
    let short = shortest(value);
    let fill = if value < 0 { 0xff } else { 0 };
    let mut bytes = vec![fill; width.checked_sub(short.len())?];
    bytes.extend_from_slice(&short);
    Some(FixedLenByteArray::from(bytes))
}

/// Returns a number in two's complement without superfluous bytes.
fn shortest(value: i128) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let fill = if value < 0 { 0xff } else { 0 };
    // A leading fill byte is superfluous if the next byte has the same sign bit.
    let start = (0..15)
        .find(|at| bytes[*at] != fill || (bytes[at + 1] ^ fill) >= 0x80)
        .unwrap_or(15);
    bytes[start..].to_vec()
}

/// Returns the non-null values of an array, which share one buffer.
fn shared_values(data: &[u8], offsets: &[i32], array: &dyn Array) -> Vec<ByteArray> {
    let first = offsets.first().copied().unwrap_or(0);
    let last = offsets.last().copied().unwrap_or(0);
    let buffer = Bytes::copy_from_slice(&data[first as usize..last as usize]);
    let rows = (0..array.len()).filter(|row| array.is_valid(*row));
    rows.map(|row| {
        let start = (offsets[row] - first) as usize;
        let end = (offsets[row + 1] - first) as usize;
        ByteArray::from(buffer.slice(start..end))
    })
    .collect()
}

/// Returns an instant as nanoseconds since 1970, or `None` if it is out of range.
fn nanoseconds_of(value: &Int96) -> Option<i64> {
    let [low, high, day] = value.data() else {
        return None;
    };
    let nanoseconds = i64::try_from(u64::from(*high) << 32 | u64::from(*low)).ok()?;
    let days = i64::from(*day) - JULIAN_1970;
    i64::try_from(i128::from(days) * i128::from(NANOSECONDS_PER_DAY) + i128::from(nanoseconds)).ok()
}

fn int96(nanoseconds: i64) -> Int96 {
    let day = nanoseconds.div_euclid(NANOSECONDS_PER_DAY) + JULIAN_1970;
    let rest = nanoseconds.rem_euclid(NANOSECONDS_PER_DAY) as u64;
    let mut value = Int96::new();
    value.set_data(rest as u32, (rest >> 32) as u32, day as u32);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_keep_their_number_in_both_forms() {
        for value in [
            0,
            1,
            -1,
            127,
            128,
            -128,
            -129,
            255,
            256,
            i64::MAX.into(),
            i64::MIN.into(),
            i128::MAX,
            i128::MIN,
        ] {
            let short = shortest(value);
            assert_eq!(decimal(&short), Some(value));
            assert!(
                short.len() == 1 || decimal(&short[1..]) != Some(value),
                "{value}"
            );
        }
        assert_eq!(decimal(&[0; 17]), None);
        assert_eq!(decimal(&[]), Some(0));
    }

    #[test]
    fn instants_keep_their_nanoseconds() {
        for value in [0, -1, 1, 1_773_480_413_589_793_238, i64::MAX, i64::MIN] {
            assert_eq!(nanoseconds_of(&int96(value)), Some(value));
        }
        let mut value = Int96::new();
        value.set_data(0, 0, u32::MAX);
        assert_eq!(nanoseconds_of(&value), None);
    }
}
