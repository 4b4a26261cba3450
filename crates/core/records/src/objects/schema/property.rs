//! Properties of a schema and their indexes.

use super::{PropertyName, SchemaError};
use crate::objects::PropertyType;

/// Longest description in bytes.
pub(super) const DESCRIPTION_BYTES_MAX: usize = 256;
/// Most lengths of prefixes of an index.
const PREFIXES_MAX: usize = 4;
/// Longest prefix in characters.
const PREFIX_CHARS_MAX: u8 = 16;

/// A property of the objects of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// The number, which is never used again in this collection.
    pub number: u32,
    /// The name.
    pub name: PropertyName,
    /// The type of its values.
    pub property_type: PropertyType,
    /// True if an object can lack a value.
    pub nullable: bool,
    /// True if no two objects can have the same normalized value.
    pub unique: bool,
    /// The index by which values are found.
    pub index: Option<Index>,
    /// False if the value is stored readably beside the sealed values. A readable value is
    /// authenticated, too.
    pub encrypted: bool,
    /// Text for operators: at most 256 bytes without control characters.
    pub description: String,
}

/// An index of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// The number, which is never used again in this collection.
    pub number: u32,
    /// Bits of a term, 8 to 16, so that other values share it. `None`: 128 bits. Never of a unique
    /// property.
    pub bits: Option<u8>,
    /// Lengths of prefixes in characters, 1 to 16, ascending, at most 4.
    pub prefixes: Vec<u8>,
    /// True if the property was unique once, so that older objects can hold unique terms.
    pub was_unique: bool,
}

/// A property that was dropped, so that its name is not used again too early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedProperty {
    /// The name of the dropped property.
    pub name: PropertyName,
    /// The number of the dropped property.
    pub number: u32,
    /// The generation of the change that dropped it.
    pub generation: u64,
}

impl Property {
    /// Checks the rules of one property.
    pub(super) fn check(&self) -> Result<(), SchemaError> {
        if !is_description(&self.description) {
            return Err(SchemaError::InvalidDescription(self.name.clone()));
        }
        if !self.encrypted && self.property_type.must_encrypt() {
            return Err(SchemaError::MustEncrypt(
                self.name.clone(),
                self.property_type,
            ));
        }
        match &self.index {
            None if self.unique => Err(SchemaError::UniqueNeedsIndex(self.name.clone())),
            None => Ok(()),
            Some(_) if !self.property_type.can_index() => Err(SchemaError::CannotIndex(
                self.name.clone(),
                self.property_type,
            )),
            Some(index) => index.check(self),
        }
    }
}

impl Index {
    fn check(&self, property: &Property) -> Result<(), SchemaError> {
        let name = &property.name;
        if !self.bits.is_none_or(|bits| (8..=16).contains(&bits)) {
            return Err(SchemaError::InvalidBits(name.clone()));
        }
        if self.bits.is_some() && (property.unique || self.was_unique) {
            return Err(SchemaError::BitsOfUnique(name.clone()));
        }
        if self.prefixes.is_empty() {
            return Ok(());
        }
        if !property.property_type.can_prefix() {
            return Err(SchemaError::CannotPrefix(
                name.clone(),
                property.property_type,
            ));
        }
        let is_ascending = self.prefixes.windows(2).all(|pair| pair[0] < pair[1]);
        let is_bounded = self
            .prefixes
            .iter()
            .all(|length| (1..=PREFIX_CHARS_MAX).contains(length));
        if !is_ascending || !is_bounded || self.prefixes.len() > PREFIXES_MAX {
            return Err(SchemaError::InvalidPrefixes(name.clone()));
        }
        Ok(())
    }
}

/// Returns true for a valid description.
pub(super) fn is_description(text: &str) -> bool {
    text.len() <= DESCRIPTION_BYTES_MAX && !text.chars().any(char::is_control)
}
