//! The sample of one column, and its values as text and as MessagePack.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use sealwire_columns::{Leaf, SchemaLeaf, check, check_function, with_values};
use sealwire_mask_rules::{Column, Function};
use sealwire_msgpack::{Token, TokenReader, write};

use crate::FieldClass;
use crate::path::PathPart;
use crate::sample::{Sample, ValueType};

/// Longest text of a value that is neither text nor binary.
const SCALAR_BYTES_MAX: usize = 64;

/// A column with its sample.
pub(super) struct SampledLeaf {
    pub(super) leaf: SchemaLeaf,
    pub(super) sample: Sample,
    /// The reason why the column cannot be masked.
    pub(super) obstacle: Option<String>,
    /// Number of sampled binary values that are not text.
    pub(super) binary_values: usize,
}

impl SampledLeaf {
    pub(super) fn parts(&self) -> Vec<PathPart> {
        self.leaf
            .keys
            .iter()
            .map(|key| key.clone().map_or(PathPart::Any, PathPart::Key))
            .collect()
    }

    pub(super) fn add(&mut self, leaf: &Leaf) {
        let rows = (0..leaf.rows()).filter(|row| leaf.is_present(*row));
        let values = leaf.values();
        if !matches!(values.data_type(), DataType::Dictionary(..)) {
            return self.add_rows(values, rows);
        }
        let dictionary = values.as_any_dictionary();
        if !dictionary.values().is_empty() {
            let entries = dictionary.values();
            let keys = dictionary.normalized_keys();
            self.add_rows(
                entries,
                rows.map(|row| keys[row])
                    .filter(|entry| entries.is_valid(*entry)),
            );
        }
    }

    fn add_rows(&mut self, values: &ArrayRef, mut rows: impl Iterator<Item = usize>) {
        if check("", values.data_type()).is_err() {
            return;
        }
        let Self {
            sample,
            binary_values,
            ..
        } = self;
        let mut scalar = Vec::new();
        with_values(values, &mut |append| {
            for row in rows.by_ref() {
                sample.offer(bytes_max(values, row), || {
                    scalar.clear();
                    append(row, &mut scalar);
                    text_of(&scalar, binary_values)
                });
            }
        });
    }

    pub(super) fn class(&self) -> FieldClass {
        fn class(data_type: &DataType, is_text: bool) -> FieldClass {
            match data_type {
                DataType::Dictionary(_, values) => class(values, is_text),
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => {
                    FieldClass::Text {
                        characters_max: None,
                    }
                }
                DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_) => {
                    if is_text {
                        FieldClass::Text {
                            characters_max: None,
                        }
                    } else {
                        FieldClass::Bytes
                    }
                }
                DataType::Boolean => FieldClass::Boolean,
                DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => FieldClass::Date,
                data_type if data_type.is_numeric() => FieldClass::Number,
                data_type if data_type.is_nested() => FieldClass::Array,
                _ => FieldClass::Other,
            }
        }
        match (self.leaf.field.data_type(), &self.obstacle) {
            (DataType::Dictionary(..), _) | (_, None) => {}
            // Only the name can decide.
            (_, Some(_)) => return FieldClass::Array,
        }
        // Old writers of Parquet do not mark text as such, and some texts are in an older encoding
        // than UTF-8.
        class(
            self.leaf.field.data_type(),
            self.sample.texts().count() > self.binary_values,
        )
    }

    pub(super) fn fits_type(&self, function: &Function) -> bool {
        check_function("", &self.leaf.field, function).is_ok()
    }

    /// Returns the sampled values in the form that functions take.
    pub(super) fn column(&self) -> Column {
        let data_type = self.leaf.field.data_type();
        let mut column = Column {
            count: self.sample.values.len(),
            ..Column::default()
        };
        self.sample
            .values
            .iter()
            .for_each(|(_, text)| append_scalar(data_type, text, &mut column.values));
        column
    }
}

/// Returns the maximum number of bytes of a value's text.
fn bytes_max(values: &ArrayRef, row: usize) -> usize {
    match values.data_type() {
        DataType::Utf8 => values.as_string::<i32>().value(row).len(),
        DataType::LargeUtf8 => values.as_string::<i64>().value(row).len(),
        DataType::Utf8View => values.as_string_view().value(row).len(),
        DataType::Binary => values.as_binary::<i32>().value(row).len(),
        DataType::LargeBinary => values.as_binary::<i64>().value(row).len(),
        DataType::BinaryView => values.as_binary_view().value(row).len(),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap_or(usize::MAX),
        _ => SCALAR_BYTES_MAX,
    }
}

/// Returns a MessagePack scalar as text. The content of binary values that are not text is not
/// kept.
fn text_of(scalar: &[u8], binary_values: &mut usize) -> (ValueType, Box<str>) {
    match TokenReader::new(scalar).token() {
        Ok(Token::Str(bytes)) => (ValueType::Text, String::from_utf8_lossy(bytes).into()),
        Ok(Token::Bool(flag)) => (ValueType::Boolean, flag.to_string().into()),
        Ok(Token::Uint(number)) => (ValueType::Number, number.to_string().into()),
        Ok(Token::Int(number)) => (ValueType::Number, number.to_string().into()),
        Ok(Token::F32(number)) => (ValueType::Number, number.to_string().into()),
        Ok(Token::F64(number)) => (ValueType::Number, float_text(number).into()),
        Ok(Token::Bin(bytes)) => {
            let text = std::str::from_utf8(bytes);
            *binary_values += usize::from(text.is_err());
            (ValueType::Text, text.unwrap_or_default().into())
        }
        _ => (ValueType::Text, "".into()),
    }
}

/// Formats a number. Large numbers get an exponent instead of many digits.
fn float_text(number: f64) -> String {
    if number.abs() < 1e15 {
        number.to_string()
    } else {
        format!("{number:?}")
    }
}

/// Appends a sampled value as the MessagePack scalar that a job sends.
fn append_scalar(data_type: &DataType, text: &str, out: &mut Vec<u8>) {
    match data_type {
        DataType::Boolean => write::bool(out, text == "true"),
        DataType::Float32 => write::f32(out, text.parse().unwrap_or_default()),
        DataType::Float64 => write::f64(out, text.parse().unwrap_or_default()),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => {
            write::bin(out, text.as_bytes());
        }
        data_type if data_type.is_integer() => match text.parse() {
            Ok(number) => write::int(out, number),
            Err(_) => write::uint(out, text.parse().unwrap_or_default()),
        },
        _ => write::str(out, text),
    }
}
