//! Values of a payload: validated against the schema, with the errors of each part.

use crate::jobs::error::RequestFailure;
use bytes::Bytes;
use sealwire_access::PropertyAccess;
use sealwire_msgpack::TokenReader;
use sealwire_records::objects::{check, check_indexed};
use sealwire_store::ObjectId;
use sealwire_wire::{ErrorCode, ItemError};
use zeroize::Zeroizing;

use crate::objects::{ObjectCollection, parse_id};

/// New values by property number; `None` removes a value.
pub(super) type Assignments = Vec<Assignment>;
type Assignment = (u32, Option<Zeroizing<Vec<u8>>>);

/// Errors of one request that are collected; a response lists no more.
///
/// Note: a map can have millions of names. Without a bound, the errors of one request would take
/// gigabytes.
pub(super) const ERRORS_MAX: usize = 64;
const MAP_RULE: &str = "must be a map of property names to values";
const CHANGE_RULE: &str = "must be a map of id, set, and optionally if_version";
/// Longest key of a map that an error repeats, in characters.
const KEY_CHARS_MAX: usize = 64;

/// Splits an array into its items, which stay parts of the message.
pub(super) fn split_items(payload: &Bytes) -> Result<Vec<Bytes>, RequestFailure> {
    let mut reader = TokenReader::new(payload);
    let count = reader.array_len().map_err(malformed)?;
    (0..count)
        .map(|_| Ok(payload.slice_ref(reader.value().map_err(malformed)?)))
        .collect()
}

fn malformed(error: sealwire_msgpack::Malformed) -> RequestFailure {
    RequestFailure::Payload(error.to_string())
}

/// Validates the values of properties.
pub(super) struct ValueReader<'a> {
    pub(super) collection: &'a ObjectCollection,
    /// Properties that the request may write.
    pub(super) access: &'a PropertyAccess,
}

impl ValueReader<'_> {
    /// Reads a map of property names to values. `path` is its place in the payload.
    ///
    /// # Errors
    /// The first [`ERRORS_MAX`] parts of the map that are invalid or not permitted.
    pub(super) fn read(&self, path: &str, map: &[u8]) -> Result<Assignments, Vec<ItemError>> {
        let mut reader = TokenReader::new(map);
        let Ok(pairs) = reader.map_len() else {
            return Err(vec![invalid_item(path, MAP_RULE)]);
        };
        let mut assignments = Assignments::new();
        let mut errors = Vec::new();

        for _ in 0..pairs {
            let (Ok(name), Ok(value)) = (reader.str_utf8(), reader.value()) else {
                return Err(vec![invalid_item(path, MAP_RULE)]);
            };
            match self.parse_assignment(path, name, value) {
                Ok((number, _)) if assignments.iter().any(|(other, _)| *other == number) => {
                    errors.push(invalid_item(property_path(path, name), "is given twice"));
                }
                Ok(assignment) => assignments.push(assignment),
                Err(error) => errors.push(error),
            }
            if errors.len() == ERRORS_MAX {
                break;
            }
        }

        if errors.is_empty() {
            Ok(assignments)
        } else {
            Err(errors)
        }
    }

    fn parse_assignment(
        &self,
        path: &str,
        name: &str,
        value: &[u8],
    ) -> Result<Assignment, ItemError> {
        if !self.access.uses(name) {
            let message = "no role of this principal grants this property".into();
            return Err(ItemError {
                path: property_path(path, name),
                code: ErrorCode::Forbidden,
                message,
            });
        }

        let property = self.collection.schema.property(name).ok_or_else(|| {
            invalid_item(
                property_path(path, name),
                "is not a property of the collection",
            )
        })?;

        if TokenReader::new(value).take_nil() {
            return Ok((property.number, None));
        }

        let checked = check(property.property_type, value).and_then(|canonical| {
            if property.index.is_some() {
                check_indexed(property.property_type, &canonical)?;
            }
            Ok(canonical)
        });
        let canonical =
            checked.map_err(|error| invalid_item(property_path(path, name), error.to_string()))?;
        Ok((property.number, Some(canonical)))
    }
}

/// A change of one object.
pub(super) struct ObjectChange<'a> {
    pub(super) id: ObjectId,
    pub(super) if_version: Option<u64>,
    /// A map of property names to values.
    pub(super) set: &'a [u8],
}

/// Reads a change `{id, set, if_version?}`.
///
/// # Errors
/// The first part that is invalid.
pub(super) fn parse_change<'a>(path: &str, item: &'a [u8]) -> Result<ObjectChange<'a>, ItemError> {
    let mut reader = TokenReader::new(item);
    let mut id = None;
    let mut set = None;
    let mut if_version = None;

    for _ in 0..reader
        .map_len()
        .map_err(|_| invalid_item(path, CHANGE_RULE))?
    {
        let twice = match reader
            .str_utf8()
            .map_err(|_| invalid_item(path, CHANGE_RULE))?
        {
            "id" => id
                .replace(
                    reader
                        .str_utf8()
                        .map_err(|_| invalid_item(path, CHANGE_RULE))?,
                )
                .is_some(),
            "set" => set
                .replace(
                    reader
                        .value()
                        .map_err(|_| invalid_item(path, CHANGE_RULE))?,
                )
                .is_some(),
            "if_version" => if_version
                .replace(reader.u64().map_err(|_| invalid_item(path, CHANGE_RULE))?)
                .is_some(),
            _ => true,
        };
        if twice {
            return Err(invalid_item(path, CHANGE_RULE));
        }
    }

    let (Some(id), Some(set)) = (id, set) else {
        return Err(invalid_item(path, CHANGE_RULE));
    };
    Ok(ObjectChange {
        id: parse_id(id).ok_or_else(|| ItemError {
            path: path.to_owned(),
            code: ErrorCode::NotFound,
            message: "no such object".into(),
        })?,
        if_version,
        set,
    })
}

/// The path of a property. A long name is cut.
pub(super) fn property_path(path: &str, name: &str) -> String {
    let name: String = name
        .chars()
        .filter(|char| !char.is_control())
        .take(KEY_CHARS_MAX)
        .collect();
    format!("{path}.{name}")
}

pub(super) fn invalid_item(
    path: impl Into<String>,
    message: impl Into<std::borrow::Cow<'static, str>>,
) -> ItemError {
    ItemError {
        path: path.into(),
        code: ErrorCode::BadRequest,
        message: message.into(),
    }
}
