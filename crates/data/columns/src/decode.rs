//! Builds columns from the values in results.

use std::sync::Arc;

use arrow_array::builder::{
    BinaryViewBuilder, BooleanBuilder, FixedSizeBinaryBuilder, GenericBinaryBuilder,
    GenericStringBuilder, PrimitiveBuilder, StringViewBuilder,
};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, OffsetSizeTrait};
use arrow_schema::{DataType, TimeUnit};
use bytes::Bytes;
use sealwire_msgpack::{Malformed, Token, TokenReader};

use crate::ColumnError;
use crate::path::Leaf;
use crate::timestamp::read_timestamp;
use crate::types::{parse_date_time, parse_decimal, per_second, read_date};

/// Builds a column of a type. Each row whose value was sent takes the next result, in order; other
/// rows are null. The results are arrays in MessagePack. `column` is the column's path for errors,
/// which never contain a value.
///
/// # Errors
/// [`ColumnError`] if a result does not fit the type, or if there are fewer results than values.
pub fn build(
    column: &str,
    data_type: &DataType,
    leaf: &Leaf,
    results: &[Bytes],
) -> Result<ArrayRef, ColumnError> {
    build_of(column, data_type, leaf, results, true, Removal::Allowed)
}

/// Whether a result may be nil. A mask can remove a value, but an envelope or token always replaces
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Allowed,
    Rejected,
}

/// Builds a column as [`build`] does. If `are_arrays` is false, the results are consecutive values
/// instead of arrays.
pub(crate) fn build_of(
    column: &str,
    data_type: &DataType,
    leaf: &Leaf,
    results: &[Bytes],
    are_arrays: bool,
    removal: Removal,
) -> Result<ArrayRef, ColumnError> {
    let reader = TokenReader::new(&[]);
    let mut values = Values {
        column,
        leaf,
        results: results.iter(),
        reader,
        left: 0,
        are_arrays,
        removal,
    };
    let values = &mut values;
    match data_type {
        DataType::Boolean => {
            let mut builder = BooleanBuilder::with_capacity(leaf.rows());
            values.each(data_type, |token| {
                let flag = match token {
                    Some(Token::Bool(flag)) => Some(flag),
                    None => None,
                    Some(_) => return false,
                };
                builder.append_option(flag);
                true
            })?;
            Ok(Arc::new(builder.finish()))
        }
        DataType::Int8 => {
            values.primitives::<Int8Type>(data_type, |token| integer(token)?.try_into().ok())
        }
        DataType::Int16 => {
            values.primitives::<Int16Type>(data_type, |token| integer(token)?.try_into().ok())
        }
        DataType::Int32 => {
            values.primitives::<Int32Type>(data_type, |token| integer(token)?.try_into().ok())
        }
        DataType::Int64 => {
            values.primitives::<Int64Type>(data_type, |token| integer(token)?.try_into().ok())
        }
        DataType::UInt8 => {
            values.primitives::<UInt8Type>(data_type, |token| integer(token)?.try_into().ok())
        }
        DataType::UInt16 => {
            values.primitives::<UInt16Type>(data_type, |token| integer(token)?.try_into().ok())
        }
        DataType::UInt32 => {
            values.primitives::<UInt32Type>(data_type, |token| integer(token)?.try_into().ok())
        }
        DataType::UInt64 => {
            values.primitives::<UInt64Type>(data_type, |token| integer(token)?.try_into().ok())
        }
        DataType::Float32 => values.primitives::<Float32Type>(data_type, |token| {
            let number = float(token)?;
            let single = number as f32;
            (f64::from(single) == number || number.is_nan()).then_some(single)
        }),
        DataType::Float64 => values.primitives::<Float64Type>(data_type, float),
        DataType::Date32 => values.primitives::<Date32Type>(data_type, read_date),
        DataType::Decimal128(precision, scale) => values
            .primitives::<Decimal128Type>(data_type, |token| {
                parse_decimal(text(token)?, *precision, *scale)
            }),
        DataType::Timestamp(TimeUnit::Second, _) => {
            values.moments::<TimestampSecondType>(data_type, TimeUnit::Second)
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            values.moments::<TimestampMillisecondType>(data_type, TimeUnit::Millisecond)
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            values.moments::<TimestampMicrosecondType>(data_type, TimeUnit::Microsecond)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            values.moments::<TimestampNanosecondType>(data_type, TimeUnit::Nanosecond)
        }
        DataType::Utf8 => values.texts::<i32>(data_type),
        DataType::LargeUtf8 => values.texts::<i64>(data_type),
        DataType::Binary => values.binaries::<i32>(data_type),
        DataType::LargeBinary => values.binaries::<i64>(data_type),
        DataType::Utf8View => {
            let mut builder = StringViewBuilder::with_capacity(leaf.rows());
            values.optional(data_type, text, |text| {
                builder.append_option(text);
                true
            })?;
            Ok(Arc::new(builder.finish()))
        }
        DataType::BinaryView => {
            let mut builder = BinaryViewBuilder::with_capacity(leaf.rows());
            values.optional(data_type, binary, |bytes| {
                builder.append_option(bytes);
                true
            })?;
            Ok(Arc::new(builder.finish()))
        }
        DataType::FixedSizeBinary(size) => {
            let mut builder = FixedSizeBinaryBuilder::with_capacity(leaf.rows(), *size);
            values.optional(data_type, binary, |bytes| match bytes {
                Some(bytes) => builder.append_value(bytes).is_ok(),
                None => {
                    builder.append_null();
                    true
                }
            })?;
            Ok(Arc::new(builder.finish()))
        }
        other => Err(ColumnError::Type {
            column: column.to_owned(),
            problem: format!("of type {other} cannot be built"),
        }),
    }
}

/// The consecutive values of a leaf's results.
struct Values<'a> {
    column: &'a str,
    leaf: &'a Leaf,
    results: std::slice::Iter<'a, Bytes>,
    reader: TokenReader<'a>,
    /// Number of values of the current result that have not been read.
    left: u32,
    are_arrays: bool,
    removal: Removal,
}

impl<'a> Values<'a> {
    fn next(&mut self) -> Result<Token<'a>, Malformed> {
        while !self.are_arrays && self.reader.is_at_end() {
            self.reader = TokenReader::new(self.results.next().ok_or(Malformed::Truncated)?);
        }
        while self.are_arrays && self.left == 0 {
            let result = self.results.next().ok_or(Malformed::Truncated)?;
            self.reader = TokenReader::new(result);
            self.left = self.reader.array_len()?;
        }
        self.left = self.left.saturating_sub(1);
        self.reader.token()
    }

    /// Calls `append` with the value of each row, or with `None` for null. `append` returns false
    /// for a value that does not fit.
    fn each(
        &mut self,
        data_type: &DataType,
        mut append: impl FnMut(Option<Token<'a>>) -> bool,
    ) -> Result<(), ColumnError> {
        for row in 0..self.leaf.rows() {
            if !self.leaf.is_present(row) {
                append(None);
                continue;
            }
            let token = self.next().map_err(|_| ColumnError::Shape {
                column: self.column.to_owned(),
            })?;
            let is_removed = token == Token::Nil;
            let kind = if is_removed { "nil" } else { token.kind() };
            let is_rejected = is_removed && self.removal == Removal::Rejected;
            if is_rejected || !append((!is_removed).then_some(token)) {
                return Err(ColumnError::Unfit {
                    column: self.column.to_owned(),
                    row,
                    found: kind,
                    data_type: data_type.clone(),
                });
            }
        }
        Ok(())
    }

    fn optional<T>(
        &mut self,
        data_type: &DataType,
        read: impl Fn(Token<'a>) -> Option<T>,
        mut append: impl FnMut(Option<T>) -> bool,
    ) -> Result<(), ColumnError> {
        self.each(data_type, |token| match token.map(&read) {
            Some(None) => false,
            value => append(value.flatten()),
        })
    }

    fn primitives<T: ArrowPrimitiveType>(
        &mut self,
        data_type: &DataType,
        read: impl Fn(Token<'a>) -> Option<T::Native>,
    ) -> Result<ArrayRef, ColumnError> {
        let mut builder = PrimitiveBuilder::<T>::with_capacity(self.leaf.rows())
            .with_data_type(data_type.clone());
        self.optional(data_type, read, |value| {
            builder.append_option(value);
            true
        })?;
        Ok(Arc::new(builder.finish()))
    }

    fn moments<T: ArrowPrimitiveType<Native = i64>>(
        &mut self,
        data_type: &DataType,
        unit: TimeUnit,
    ) -> Result<ArrayRef, ColumnError> {
        let per_second = per_second(unit);
        let nanoseconds_per_unit = 1_000_000_000 / per_second;
        self.primitives::<T>(data_type, |token| {
            let (seconds, nanoseconds) = match token {
                Token::Ext(code, data) => read_timestamp(code, data)?,
                Token::Str(text) => parse_date_time(std::str::from_utf8(text).ok()?)?,
                _ => return None,
            };
            let part = i64::from(nanoseconds);
            // Rejects instants finer than the column's unit.
            (part % nanoseconds_per_unit == 0).then_some(())?;
            // Computed in 128 bits: the first second of the range is only partly in the range.
            let value = i128::from(seconds) * i128::from(per_second)
                + i128::from(part / nanoseconds_per_unit);
            value.try_into().ok()
        })
    }

    fn texts<O: OffsetSizeTrait>(&mut self, data_type: &DataType) -> Result<ArrayRef, ColumnError> {
        let bytes = self.results.as_slice().iter().map(Bytes::len).sum();
        let mut builder = GenericStringBuilder::<O>::with_capacity(self.leaf.rows(), bytes);
        self.optional(data_type, text, |text| {
            builder.append_option(text);
            true
        })?;
        Ok(Arc::new(builder.finish()))
    }

    fn binaries<O: OffsetSizeTrait>(
        &mut self,
        data_type: &DataType,
    ) -> Result<ArrayRef, ColumnError> {
        let bytes = self.results.as_slice().iter().map(Bytes::len).sum();
        let mut builder = GenericBinaryBuilder::<O>::with_capacity(self.leaf.rows(), bytes);
        self.optional(data_type, binary, |bytes| {
            builder.append_option(bytes);
            true
        })?;
        Ok(Arc::new(builder.finish()))
    }
}

fn integer(token: Token<'_>) -> Option<i128> {
    match token {
        Token::Uint(number) => Some(number.into()),
        Token::Int(number) => Some(number.into()),
        _ => None,
    }
}

/// Reads a float or an integer, since Evervault's format does not distinguish them for whole
/// numbers.
fn float(token: Token<'_>) -> Option<f64> {
    match token {
        Token::F32(number) => Some(number.into()),
        Token::F64(number) => Some(number),
        other => {
            let number = integer(other)?;
            let float = number as f64;
            (float as i128 == number).then_some(float)
        }
    }
}

fn text(token: Token<'_>) -> Option<&str> {
    match token {
        Token::Str(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn binary(token: Token<'_>) -> Option<&[u8]> {
    match token {
        Token::Bin(bytes) => Some(bytes),
        _ => None,
    }
}
