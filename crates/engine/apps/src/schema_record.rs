//! Serialization of the schemas of collections of objects, as a part of their records.

use sealwire_records::objects::{
    AcceptedRecords, DroppedProperty, Index, Property, PropertyName, PropertyType, Schema,
};
use sealwire_store::StoreError;
use serde::{Deserialize, Serialize};

use super::record::{damaged, is_default, named_suite, suite_name};

/// The kind of a collection of objects, in records.
pub(super) const OBJECTS: &str = "objects";

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SchemaRecord {
    suite: String,
    #[serde(default, skip_serializing_if = "is_default")]
    records: RecordsName,
    properties: Vec<PropertyRecord>,
    #[serde(default, skip_serializing_if = "is_default")]
    dropped: Vec<DroppedRecord>,
    /// The number of the next property or index. Numbers are never reused.
    next: u32,
}

/// Names of [`AcceptedRecords`]. Older engines, which do not know this field, reject a record with
/// a value other than the default. So they cannot serve a collection in a state that they do not
/// know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RecordsName {
    #[default]
    All,
    Migrating,
    Authenticated,
}

impl From<AcceptedRecords> for RecordsName {
    fn from(records: AcceptedRecords) -> Self {
        match records {
            AcceptedRecords::All => Self::All,
            AcceptedRecords::Migrating => Self::Migrating,
            AcceptedRecords::Authenticated => Self::Authenticated,
        }
    }
}

impl From<RecordsName> for AcceptedRecords {
    fn from(name: RecordsName) -> Self {
        match name {
            RecordsName::All => Self::All,
            RecordsName::Migrating => Self::Migrating,
            RecordsName::Authenticated => Self::Authenticated,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PropertyRecord {
    number: u32,
    name: String,
    #[serde(rename = "type")]
    property_type: String,
    #[serde(default, skip_serializing_if = "is_default")]
    nullable: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    unique: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index: Option<IndexRecord>,
    /// True if values are stored unencrypted.
    #[serde(default, skip_serializing_if = "is_default")]
    clear: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    description: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexRecord {
    number: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bits: Option<u8>,
    #[serde(default, skip_serializing_if = "is_default")]
    prefixes: Vec<u8>,
    #[serde(default, skip_serializing_if = "is_default")]
    was_unique: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DroppedRecord {
    name: String,
    number: u32,
    generation: u64,
}

impl From<&Schema> for SchemaRecord {
    fn from(schema: &Schema) -> Self {
        Self {
            suite: suite_name(schema.suite).into(),
            records: schema.records.into(),
            properties: schema
                .properties
                .iter()
                .map(|property| PropertyRecord {
                    number: property.number,
                    name: property.name.as_str().into(),
                    property_type: property.property_type.name().into(),
                    nullable: property.nullable,
                    unique: property.unique,
                    index: property.index.as_ref().map(IndexRecord::from),
                    clear: !property.encrypted,
                    description: property.description.clone(),
                })
                .collect(),
            dropped: schema.dropped.iter().map(DroppedRecord::from).collect(),
            next: schema.next_number,
        }
    }
}

impl From<&Index> for IndexRecord {
    fn from(index: &Index) -> Self {
        Self {
            number: index.number,
            bits: index.bits,
            prefixes: index.prefixes.clone(),
            was_unique: index.was_unique,
        }
    }
}

impl From<&IndexRecord> for Index {
    fn from(record: &IndexRecord) -> Self {
        Self {
            number: record.number,
            bits: record.bits,
            prefixes: record.prefixes.clone(),
            was_unique: record.was_unique,
        }
    }
}

impl From<&DroppedProperty> for DroppedRecord {
    fn from(dropped: &DroppedProperty) -> Self {
        Self {
            name: dropped.name.as_str().into(),
            number: dropped.number,
            generation: dropped.generation,
        }
    }
}

impl DroppedRecord {
    fn read(&self, key: &str) -> Result<DroppedProperty, StoreError> {
        Ok(DroppedProperty {
            name: property_name(key, &self.name)?,
            number: self.number,
            generation: self.generation,
        })
    }
}

fn property_name(key: &str, name: &str) -> Result<PropertyName, StoreError> {
    PropertyName::new(name).map_err(|error| damaged(key, error.to_string()))
}

impl SchemaRecord {
    /// Parses the schema of the record at `key`.
    pub(super) fn read(
        &self,
        key: &str,
        expires_s: Option<u64>,
        retention_s: Option<u64>,
    ) -> Result<Schema, StoreError> {
        let schema = Schema {
            suite: named_suite(key, &self.suite)?,
            records: self.records.into(),
            expires_s,
            retention_s,
            properties: self
                .properties
                .iter()
                .map(|record| {
                    Ok(Property {
                        number: record.number,
                        name: property_name(key, &record.name)?,
                        property_type: PropertyType::from_name(&record.property_type)
                            .ok_or_else(|| damaged(key, "unknown type of a property".into()))?,
                        nullable: record.nullable,
                        unique: record.unique,
                        index: record.index.as_ref().map(Index::from),
                        encrypted: !record.clear,
                        description: record.description.clone(),
                    })
                })
                .collect::<Result<_, StoreError>>()?,
            dropped: self
                .dropped
                .iter()
                .map(|record| record.read(key))
                .collect::<Result<_, StoreError>>()?,
            next_number: self.next,
        };

        schema
            .check()
            .map_err(|error| damaged(key, error.to_string()))?;
        Ok(schema)
    }
}
