//! Types of columns: the types that can be sent, and the notes that preserve a type while the
//! column is text.
//!
//! A column that is encrypted or tokenized becomes text. The column's field then notes the type
//! under `sealwire:type`, in the notation of the Arrow C data interface. The note survives in files
//! that keep a field's metadata, such as Parquet and Arrow IPC. Names of extension types are stored
//! in the same way, since they do not apply to the text.

use std::sync::Arc;

use arrow_array::temporal_conversions::timestamp_s_to_datetime;
use arrow_array::types::{Date32Type, Decimal128Type, validate_decimal_precision_and_scale};
use arrow_data::decimal::is_validate_decimal_precision;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{DataType, Field, FieldRef, Metadata, TimeUnit};
use bytes::Bytes;
use sealwire_msgpack::{Token, TokenReader, write};

use crate::ColumnError;
use crate::path::Leaf;
use crate::replace::Direction;
use crate::timestamp::append_timestamp;

const TYPE: &str = "sealwire:type";
/// Prefix of the keys under which metadata of extension types is stored.
const ASIDE: &str = "sealwire:";
const EXTENSION: &str = "ARROW:extension:";

/// Number of bytes above which a column of text needs offsets of 64 bits.
const OFFSETS_32: usize = i32::MAX as usize;

/// Longest name of a time zone, in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// Largest width of a noted type of fixed size, in bytes. No engine takes larger values.
const WIDTH_MAX: i32 = 1 << 20;

/// Returns the field of the new column. `work` contains the leaves of the column with their
/// results.
///
/// # Errors
/// [`ColumnError::Note`] if the field notes a type that cannot be restored.
pub fn new_field(
    old: &FieldRef,
    named: Option<&DataType>,
    direction: Direction,
    work: &[(Leaf, Vec<Bytes>)],
) -> Result<FieldRef, ColumnError> {
    let mut metadata = old.metadata().clone();
    let data_type = match direction {
        Direction::Seal => {
            put_aside(&mut metadata, old.data_type())?;
            sealed_type(old.data_type(), work)
        }
        Direction::Open => {
            let noted = bring_back(&mut metadata)?;
            noted.map_or_else(
                || text_type(old.data_type(), work),
                |noted| wide(noted, work),
            )
        }
        Direction::Keep => old.data_type().clone(),
    };
    let data_type = named.cloned().unwrap_or(data_type);
    // Items to which no list refers become null.
    let nullable = old.is_nullable() || work.iter().any(|(leaf, _)| leaf.has_nulls());
    Ok(Arc::new(
        Field::new(old.name(), data_type, nullable).with_metadata(metadata),
    ))
}

/// Rejects types that cannot be sent.
///
/// # Errors
/// [`ColumnError::Type`].
pub fn check(column: &str, data_type: &DataType) -> Result<(), ColumnError> {
    let problem = match data_type {
        DataType::Struct(fields) => {
            let first = fields.first().map_or("", |field| field.name());
            format!("is a struct: name a field of it, such as .{first}")
        }
        DataType::List(_) | DataType::LargeList(_) => {
            "is a list: name its items with [*]".to_owned()
        }
        DataType::Dictionary(..) => "is a dictionary: cast it to the type of its values".to_owned(),
        _ if is_sent(data_type) => return Ok(()),
        _ => format!("has type {data_type}, which cannot be sent"),
    };
    Err(ColumnError::Type {
        column: column.to_owned(),
        problem,
    })
}

fn is_sent(data_type: &DataType) -> bool {
    data_type.is_integer()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Float32
                | DataType::Float64
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_)
                | DataType::Date32
                | DataType::Decimal128(..)
                | DataType::Timestamp(..)
        )
}

fn put_aside(metadata: &mut Metadata, data_type: &DataType) -> Result<(), ColumnError> {
    // A type that could not be restored is rejected before its values are sealed.
    check_noted(data_type)?;
    let schema = FFI_ArrowSchema::try_from(data_type)?;
    *metadata = std::mem::take(metadata)
        .into_iter()
        .map(|(key, value)| {
            if key.starts_with(EXTENSION) {
                (format!("{ASIDE}{key}"), value)
            } else {
                (key, value)
            }
        })
        .collect();
    metadata.insert(TYPE, schema.format());
    Ok(())
}

fn bring_back(metadata: &mut Metadata) -> Result<Option<DataType>, ColumnError> {
    let Some(format) = metadata.remove(TYPE) else {
        return Ok(None);
    };
    *metadata = std::mem::take(metadata)
        .into_iter()
        .map(|(key, value)| match key.strip_prefix(ASIDE) {
            Some(extension) if extension.starts_with(EXTENSION) => (extension.to_owned(), value),
            _ => (key, value),
        })
        .collect();
    // The metadata of a file is untrusted. Nested types begin with a plus, and the `arrow` crate
    // panics if their members are missing.
    if format.starts_with('+') {
        return Err(ColumnError::Note(
            "the noted type is nested, and cannot be restored".to_owned(),
        ));
    }
    let noted = FFI_ArrowSchema::try_new(&format, Vec::new(), None)
        .and_then(|schema| DataType::try_from(&schema));
    let noted = noted.map_err(|_| ColumnError::Note("the noted type is invalid".to_owned()))?;
    check_noted(&noted)?;
    Ok(Some(noted))
}

/// Returns the type with a name in the notation of pyarrow: `int64`, `timestamp[us, tz=UTC]`,
/// `decimal128(10, 2)`.
///
/// # Errors
/// [`ColumnError::Note`] if the type does not exist, or if columns of the type cannot be restored.
pub fn named_type(name: &str) -> Result<DataType, ColumnError> {
    let known = match name {
        "bool" => Some(DataType::Boolean),
        "int8" => Some(DataType::Int8),
        "int16" => Some(DataType::Int16),
        "int32" => Some(DataType::Int32),
        "int64" => Some(DataType::Int64),
        "uint8" => Some(DataType::UInt8),
        "uint16" => Some(DataType::UInt16),
        "uint32" => Some(DataType::UInt32),
        "uint64" => Some(DataType::UInt64),
        "float" | "float32" => Some(DataType::Float32),
        "double" | "float64" => Some(DataType::Float64),
        "string" => Some(DataType::Utf8),
        "large_string" => Some(DataType::LargeUtf8),
        "binary" => Some(DataType::Binary),
        "large_binary" => Some(DataType::LargeBinary),
        "date32" | "date32[day]" => Some(DataType::Date32),
        name => named_with_parameters(name),
    };
    let data_type = known.ok_or_else(|| {
        ColumnError::Note(format!(
            "there is no type {name:?} to restore: write it as pyarrow does"
        ))
    })?;
    check_noted(&data_type)?;
    Ok(data_type)
}

fn named_with_parameters(name: &str) -> Option<DataType> {
    let (kind, parameters) = name.strip_suffix([']', ')'])?.split_once(['[', '('])?;
    let (first, second) = match parameters.split_once(',') {
        Some((first, second)) => (first.trim(), Some(second.trim())),
        None => (parameters.trim(), None),
    };
    match (kind, second) {
        ("timestamp", zone) => {
            let unit = match first {
                "s" => TimeUnit::Second,
                "ms" => TimeUnit::Millisecond,
                "us" => TimeUnit::Microsecond,
                "ns" => TimeUnit::Nanosecond,
                _ => return None,
            };
            let zone = match zone {
                Some(zone) => Some(zone.strip_prefix("tz=")?.into()),
                None => None,
            };
            Some(DataType::Timestamp(unit, zone))
        }
        ("decimal128", Some(scale)) => Some(DataType::Decimal128(
            first.parse().ok()?,
            scale.parse().ok()?,
        )),
        ("fixed_size_binary", None) => Some(DataType::FixedSizeBinary(first.parse().ok()?)),
        _ => None,
    }
}

/// Rejects types that cannot be restored from a note.
fn check_noted(noted: &DataType) -> Result<(), ColumnError> {
    let is_sound = match noted {
        DataType::FixedSizeBinary(width) => (0..=WIDTH_MAX).contains(width),
        DataType::Decimal128(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal128Type>(*precision, *scale).is_ok()
        }
        // Readers open a file with the zone's name, so the name is checked.
        DataType::Timestamp(_, Some(zone)) if !is_zone(zone) => {
            return Err(ColumnError::Note(
                "the noted time zone is not the name of one".to_owned(),
            ));
        }
        noted => is_sent(noted),
    };
    if is_sound {
        Ok(())
    } else {
        Err(ColumnError::Note(format!(
            "the noted type {noted} cannot be restored"
        )))
    }
}

/// Returns true if a text has the form of a time zone's name, such as `Europe/Berlin`, or of an
/// offset, such as `+02:00`.
fn is_zone(zone: &str) -> bool {
    zone.len() <= ZONE_BYTES_MAX && zone.split('/').all(is_zone_part)
}

fn is_zone_part(part: &str) -> bool {
    !part.is_empty()
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_+-:".contains(&byte))
}

/// Returns the type text, or binary if the results are binary envelopes.
fn sealed_type(old: &DataType, work: &[(Leaf, Vec<Bytes>)]) -> DataType {
    let first = work.iter().find_map(|(_, results)| results.first());
    let is_binary = first.is_some_and(|result| {
        let mut reader = TokenReader::new(result);
        reader.array_len().is_ok() && matches!(reader.token(), Ok(Token::Bin(_)))
    });
    match (is_binary, text_type(old, work)) {
        (true, DataType::LargeUtf8) => DataType::LargeBinary,
        (true, _) => DataType::Binary,
        (false, text) => text,
    }
}

/// Returns true if the results of a batch need offsets of 64 bits.
fn is_wide(work: &[(Leaf, Vec<Bytes>)]) -> bool {
    work.iter()
        .map(|(_, results)| results.iter().map(Bytes::len).sum::<usize>())
        .any(|bytes| bytes > OFFSETS_32)
}

/// Returns a noted type, or its form with wide offsets if the values need them.
fn wide(noted: DataType, work: &[(Leaf, Vec<Bytes>)]) -> DataType {
    match noted {
        DataType::Utf8 if is_wide(work) => DataType::LargeUtf8,
        DataType::Binary if is_wide(work) => DataType::LargeBinary,
        noted => noted,
    }
}

/// Returns the type of text that is wide enough for the results.
fn text_type(old: &DataType, work: &[(Leaf, Vec<Bytes>)]) -> DataType {
    if matches!(old, DataType::LargeUtf8 | DataType::LargeBinary) || is_wide(work) {
        DataType::LargeUtf8
    } else {
        DataType::Utf8
    }
}

/// Returns the number of units per second.
pub(crate) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Writes a date as `2026-03-14`, or as its days since 1970 if its year has more than six digits.
pub(crate) fn append_date(out: &mut Vec<u8>, days: i32) {
    match Date32Type::to_naive_date_opt(days) {
        Some(date) => write::str(out, &date.to_string()),
        None => write::int(out, days.into()),
    }
}

/// Reads a date in the form that [`append_date`] writes.
pub(crate) fn read_date(token: Token<'_>) -> Option<i32> {
    match token {
        Token::Str(text) => std::str::from_utf8(text)
            .ok()?
            .parse()
            .ok()
            .map(Date32Type::from_naive_date),
        Token::Uint(days) => days.try_into().ok(),
        Token::Int(days) => days.try_into().ok(),
        _ => None,
    }
}

/// Writes an instant as RFC 3339, such as `2026-03-14T09:26:53.589Z`: the form that masking
/// functions take.
pub(crate) fn append_date_time(out: &mut Vec<u8>, value: i64, unit: TimeUnit) {
    let per_second = per_second(unit);
    let seconds = value.div_euclid(per_second);
    let part = value.rem_euclid(per_second);
    let Some(time) = timestamp_s_to_datetime(seconds) else {
        return append_timestamp(out, seconds, 0);
    };
    let time = time.format("%Y-%m-%dT%H:%M:%S");
    let text = match unit {
        TimeUnit::Second => format!("{time}Z"),
        TimeUnit::Millisecond => format!("{time}.{part:03}Z"),
        TimeUnit::Microsecond => format!("{time}.{part:06}Z"),
        TimeUnit::Nanosecond => format!("{time}.{part:09}Z"),
    };
    write::str(out, &text);
}

/// Reads an instant in the form that [`append_date_time`] writes. Returns seconds since 1970 and
/// nanoseconds.
pub(crate) fn parse_date_time(text: &str) -> Option<(i64, u32)> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let days: i64 = date.parse().ok().map(Date32Type::from_naive_date)?.into();
    let (whole, part) = time.split_once('.').unwrap_or((time, ""));
    let mut fields = whole
        .split(':')
        .map(|field| field.parse::<i64>().ok().filter(|_| field.len() == 2));
    let hours = fields.next()??;
    let minutes = fields.next()??;
    let seconds = fields.next()??;
    let is_time =
        (0..24).contains(&hours) && (0..60).contains(&minutes) && (0..60).contains(&seconds);
    let is_part = part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
    if fields.next().is_some() || !is_time || !is_part {
        return None;
    }
    let nanoseconds = format!("{part:0<9}").parse().ok()?;
    Some((
        ((days * 24 + hours) * 60 + minutes) * 60 + seconds,
        nanoseconds,
    ))
}

/// Reads a decimal number such as `-12.50` at a scale. Returns `None` if the number has more digits
/// than the type can hold.
pub(crate) fn parse_decimal(text: &str, precision: u8, scale: i8) -> Option<i128> {
    let (negative, digits) = text
        .strip_prefix('-')
        .map_or((false, text), |digits| (true, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut bytes = whole.bytes().chain(fraction.bytes());
    if whole.is_empty() || !bytes.all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: i128 = format!("{whole}{fraction}").parse().ok()?;
    let missing = i32::from(scale) - i32::try_from(fraction.len()).ok()?;
    let power = 10_i128.checked_pow(missing.unsigned_abs())?;
    let number = if missing >= 0 {
        number.checked_mul(power)?
    } else {
        (number % power == 0).then_some(number / power)?
    };
    let number = if negative { -number } else { number };
    is_validate_decimal_precision(number, precision).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the type that a column with a note gets when it is opened.
    fn opened(note: &str) -> Result<DataType, String> {
        let metadata = Metadata::from([(TYPE.to_owned(), note.to_owned())]);
        let field: FieldRef =
            Arc::new(Field::new("a", DataType::Utf8, true).with_metadata(metadata));
        let field =
            new_field(&field, None, Direction::Open, &[]).map_err(|error| error.to_string())?;
        Ok(field.data_type().clone())
    }

    #[test]
    fn types_are_named_in_the_words_of_pyarrow() {
        let utc = Some("UTC".into());
        for (name, expected) in [
            ("int64", Some(DataType::Int64)),
            ("double", Some(DataType::Float64)),
            ("bool", Some(DataType::Boolean)),
            ("date32[day]", Some(DataType::Date32)),
            (
                "timestamp[us]",
                Some(DataType::Timestamp(TimeUnit::Microsecond, None)),
            ),
            (
                "timestamp[ms, tz=UTC]",
                Some(DataType::Timestamp(TimeUnit::Millisecond, utc.clone())),
            ),
            ("decimal128(10, 2)", Some(DataType::Decimal128(10, 2))),
            ("decimal128(10,-2)", Some(DataType::Decimal128(10, -2))),
            ("fixed_size_binary[16]", Some(DataType::FixedSizeBinary(16))),
            ("decimal128(39, 2)", None),
            ("decimal128(10)", None),
            ("timestamp[min]", None),
            ("timestamp[us, UTC]", None),
            ("timestamp[us, tz=../UTC]", None),
            ("fixed_size_binary[-1]", None),
            ("list<item: int64>", None),
            ("INT64", None),
            ("", None),
        ] {
            assert_eq!(named_type(name).ok(), expected, "{name}");
        }
    }

    #[test]
    fn noted_types_are_restored_or_rejected() {
        let zoned = |zone: &str| DataType::Timestamp(TimeUnit::Microsecond, Some(zone.into()));
        for data_type in [
            DataType::Int64,
            DataType::FixedSizeBinary(16),
            DataType::Decimal128(38, 38),
            DataType::Decimal128(10, -2),
            DataType::Timestamp(TimeUnit::Second, None),
            zoned("UTC"),
            zoned("America/Argentina/Buenos_Aires"),
            zoned("Etc/GMT+3"),
            zoned("-03:30"),
        ] {
            let field: FieldRef = Arc::new(Field::new("a", data_type.clone(), true));
            let sealed = new_field(&field, None, Direction::Seal, &[]).expect("is sealed");
            assert_eq!(opened(&sealed.metadata()[TYPE]), Ok(data_type));
        }
        for note in [
            "",
            "x",
            "n",
            "+l",
            "+L",
            "+s",
            "+m",
            "+r",
            "+w:3",
            "+ud:0",
            "+us:0",
            "+vl",
            "w:",
            "w:-1",
            "w:9999999",
            "d:",
            "d:0,0",
            "d:39,0",
            "d:99,2",
            "d:5,9",
            "d:5,2,256",
            "tsu:../../x",
            "tsu:/etc/passwd",
            "tsu:a//b",
            "tsu:a b",
            "tsu:\u{1b}[2J",
            "tsu:a\0b",
        ] {
            let error = opened(note).expect_err(note);
            assert!(
                !error.contains("..") && !error.contains('\u{1b}'),
                "{note:?}: {error}"
            );
        }
        // A type that does not come back is not sealed.
        let field: FieldRef = Arc::new(Field::new("a", zoned("../../x"), true));
        assert!(new_field(&field, None, Direction::Seal, &[]).is_err());
    }
}
