//! Content of the control state file.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use sealwire_store::Snapshot;

const FORMAT: u32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read<'a> {
    #[serde(rename = "format")]
    _format: u32,
    generation: u64,
    #[serde(borrow)]
    records: BTreeMap<String, &'a RawValue>,
}

#[derive(Serialize)]
struct Write<'a> {
    format: u32,
    generation: u64,
    records: BTreeMap<&'a str, ContentValue<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContentValue<'a> {
    Json(&'a RawValue),
    Bytes(Base64),
}

/// The form of records that are not JSON, or that would otherwise be confused with this form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Base64 {
    base64: String,
}

#[derive(Deserialize)]
struct ContentShape {
    format: u32,
}

/// Parses the text of a file.
///
/// # Errors
/// Description of the defect.
pub fn read(text: &str) -> Result<Snapshot, String> {
    let ContentShape { format } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if format != FORMAT {
        return Err(format!("format {format} is not {FORMAT}"));
    }

    let Read {
        generation,
        records,
        ..
    } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let records = records.into_iter().map(|(key, value)| {
        let record = match serde_json::from_str::<Base64>(value.get()) {
            Ok(Base64 { base64 }) => STANDARD
                .decode(base64)
                .map_err(|_| format!("{key:?} is not base64"))?,
            Err(_) => value.get().as_bytes().to_vec(),
        };

        Ok((key, record))
    });
    Ok(Snapshot {
        generation,
        records: records.collect::<Result<_, String>>()?,
    })
}

/// Serializes a state to the text of a file.
#[must_use]
pub fn write(state: &Snapshot) -> String {
    let records = state
        .records
        .iter()
        .map(|(key, record)| (&**key, ContentValue::from_record(record)));
    let file = Write {
        format: FORMAT,
        generation: state.generation,
        records: records.collect(),
    };
    serde_json::to_string_pretty(&file).expect("its maps have text for keys") + "\n"
}

impl<'a> ContentValue<'a> {
    fn from_record(record: &'a [u8]) -> Self {
        match serde_json::from_slice::<&RawValue>(record) {
            // Only without surrounding white space, which the JSON form would lose.
            Ok(raw)
                if raw.get().as_bytes() == record
                    && serde_json::from_slice::<Base64>(record).is_err() =>
            {
                Self::Json(raw)
            }
            _ => Self::Bytes(Base64 {
                base64: STANDARD.encode(record),
            }),
        }
    }
}
