//! Random schemas and tables.

use std::sync::Arc;

use arrow_array::builder::{Int64Builder, StringBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array,
    LargeListArray, LargeStringArray, ListArray, MapArray, RecordBatch, StringArray,
    StringViewArray, StructArray, TimestampMicrosecondArray, UInt8Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};

/// A generator of numbers.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn nulls(&mut self, rows: usize) -> Option<NullBuffer> {
        (self.below(2) == 0).then(|| {
            (0..rows)
                .map(|_| self.below(4) > 0)
                .collect::<Vec<bool>>()
                .into()
        })
    }

    fn offsets(&mut self, rows: usize) -> Vec<usize> {
        (0..rows).map(|_| self.below(4)).collect()
    }
}

const LEAVES: usize = 9;

/// Returns a type of at most `depth` levels.
fn some_type(numbers: &mut Numbers, depth: usize) -> DataType {
    let item =
        |numbers: &mut Numbers| Arc::new(Field::new("item", some_type(numbers, depth - 1), true));
    match numbers.below(if depth > 0 { LEAVES + 4 } else { LEAVES }) {
        0 => DataType::Utf8,
        1 => DataType::LargeUtf8,
        2 => DataType::Utf8View,
        3 => DataType::Int64,
        4 => DataType::Binary,
        5 => DataType::Date32,
        6 => DataType::Timestamp(TimeUnit::Microsecond, None),
        7 => DataType::Decimal128(9, 2),
        8 => [DataType::Boolean, DataType::Float64, DataType::UInt8][numbers.below(3)].clone(),
        9 => DataType::List(item(numbers)),
        10 => DataType::LargeList(item(numbers)),
        11 => DataType::Struct(some_fields(numbers, depth - 1)),
        _ => {
            let key = Field::new("key", DataType::Utf8, false);
            let value = Field::new("value", some_type(numbers, depth - 1), true);
            let entries = Field::new(
                "entries",
                DataType::Struct(Fields::from(vec![key, value])),
                false,
            );
            DataType::Map(Arc::new(entries), false)
        }
    }
}

fn some_fields(numbers: &mut Numbers, depth: usize) -> Fields {
    let count = 1 + numbers.below(3);
    (0..count)
        .map(|at| Field::new(["a", "b", "c"][at], some_type(numbers, depth), true))
        .collect()
}

fn text(numbers: &mut Numbers) -> String {
    [
        "",
        "ann",
        "ann@mail.test",
        "4111 1111 1111 1111",
        "🦀",
        "+49 30 901820",
    ][numbers.below(6)]
    .to_owned()
}

/// Returns an array of random values. Values under nulls are random too.
fn array(numbers: &mut Numbers, data_type: &DataType, rows: usize, nullable: bool) -> ArrayRef {
    let nulls = if nullable { numbers.nulls(rows) } else { None };
    let mut texts = || (0..rows).map(|_| text(numbers)).collect::<Vec<_>>();
    let is_valid = |row: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
    match data_type {
        DataType::Utf8 => {
            let mut builder = StringBuilder::new();
            let texts = texts();
            (0..rows).for_each(|row| builder.append_option(is_valid(row).then_some(&texts[row])));
            Arc::new(builder.finish())
        }
        DataType::LargeUtf8 => Arc::new(LargeStringArray::from(texts())),
        DataType::Utf8View => Arc::new(StringViewArray::from_iter_values(texts())),
        DataType::Binary => Arc::new(BinaryArray::from_iter_values(texts())),
        DataType::Int64 => {
            let mut builder = Int64Builder::new();
            (0..rows).for_each(|row| {
                builder.append_option(is_valid(row).then_some(numbers.below(1 << 30) as i64))
            });
            Arc::new(builder.finish())
        }
        DataType::UInt8 => Arc::new(
            (0..rows)
                .map(|_| Some(numbers.below(256) as u8))
                .collect::<UInt8Array>(),
        ),
        DataType::Boolean => Arc::new(
            (0..rows)
                .map(|_| Some(numbers.below(2) > 0))
                .collect::<BooleanArray>(),
        ),
        DataType::Float64 => Arc::new(
            (0..rows)
                .map(|_| Some(numbers.below(999) as f64 / 8.0))
                .collect::<Float64Array>(),
        ),
        DataType::Date32 => Arc::new(
            (0..rows)
                .map(|_| Some(numbers.below(1 << 22) as i32))
                .collect::<Date32Array>(),
        ),
        DataType::Timestamp(..) => {
            let values =
                (0..rows).map(|_| Some(numbers.below(1 << 31) as i64 * (1 << 20) - (1 << 49)));
            Arc::new(values.collect::<TimestampMicrosecondArray>())
        }
        DataType::Decimal128(precision, scale) => {
            let values = (0..rows)
                .map(|_| Some(numbers.below(1 << 20) as i128 - 9))
                .collect::<Decimal128Array>();
            Arc::new(
                values
                    .with_precision_and_scale(*precision, *scale)
                    .expect("fits"),
            )
        }
        DataType::Struct(fields) => {
            let columns = fields
                .iter()
                .map(|field| array(numbers, field.data_type(), rows, field.is_nullable()));
            let columns: Vec<_> = columns.collect();
            Arc::new(StructArray::new(fields.clone(), columns, nulls))
        }
        DataType::List(item) => {
            let (offsets, values) = items(numbers, item, rows);
            Arc::new(ListArray::new(
                FieldRef::clone(item),
                OffsetBuffer::from_lengths(offsets),
                values,
                nulls,
            ))
        }
        DataType::LargeList(item) => {
            let (offsets, values) = items(numbers, item, rows);
            Arc::new(LargeListArray::new(
                FieldRef::clone(item),
                OffsetBuffer::from_lengths(offsets),
                values,
                nulls,
            ))
        }
        DataType::Map(entries, _) => {
            let lengths = numbers.offsets(rows);
            let count = lengths.iter().sum();
            let pairs = array(numbers, entries.data_type(), count, false);
            let pairs = pairs
                .as_any()
                .downcast_ref::<StructArray>()
                .expect("a struct");
            let pairs = StructArray::new(pairs.fields().clone(), pairs.columns().to_vec(), None);
            let offsets = OffsetBuffer::from_lengths(lengths);
            Arc::new(MapArray::new(
                FieldRef::clone(entries),
                offsets,
                pairs,
                nulls,
                false,
            ))
        }
        other => Arc::new(StringArray::from(vec![format!("{other}"); rows])),
    }
}

fn items(numbers: &mut Numbers, item: &FieldRef, rows: usize) -> (Vec<usize>, ArrayRef) {
    let lengths = numbers.offsets(rows);
    let count = lengths.iter().sum();
    let values = array(numbers, item.data_type(), count, item.is_nullable());
    (lengths, values)
}

/// Returns a random table, at times a slice of a longer one.
pub(crate) fn batch(numbers: &mut Numbers) -> RecordBatch {
    let fields = some_fields(numbers, 3);
    let rows = numbers.below(9);
    let columns = fields
        .iter()
        .map(|field| array(numbers, field.data_type(), rows, field.is_nullable()))
        .collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("a batch");
    let from = numbers.below(rows + 1);
    if numbers.below(2) == 0 {
        batch
    } else {
        batch.slice(from, rows - from)
    }
}
