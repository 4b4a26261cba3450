//! Requests of an operator for new properties.

use super::{PropertyName, SchemaError};
use crate::objects::PropertyType;

/// A property of a request to create or change a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertySpec {
    /// The name.
    pub name: PropertyName,
    /// The type of its values.
    pub property_type: PropertyType,
    /// True if an object can lack a value.
    pub nullable: bool,
    /// True if no two objects can have the same normalized value. Implies an index.
    pub unique: bool,
    /// True for an index of whole values.
    pub index: bool,
    /// Bits of a term, 8 to 16. `None`: 128.
    pub bits: Option<u8>,
    /// Lengths of prefixes in characters, ascending. Needs `accept_leak`.
    pub prefixes: Vec<u8>,
    /// True if the operator accepts what prefixes reveal to everyone who can read the store.
    pub accept_leak: bool,
    /// False if the value is stored readably.
    pub encrypted: bool,
    /// Text for operators.
    pub description: String,
}

impl PropertySpec {
    /// Makes the request for an encrypted property that can be null, without an index or a
    /// description.
    #[must_use]
    pub fn new(name: PropertyName, property_type: PropertyType) -> Self {
        Self {
            name,
            property_type,
            nullable: true,
            unique: false,
            index: false,
            bits: None,
            prefixes: Vec::new(),
            accept_leak: false,
            encrypted: true,
            description: String::new(),
        }
    }

    /// Returns true if the property gets an index.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.index || self.unique
    }

    /// Checks the rules that apply to requests only. [`Property`](super::Property) checks the other
    /// rules.
    pub(super) fn check(&self) -> Result<(), SchemaError> {
        if !self.is_indexed() && (self.bits.is_some() || !self.prefixes.is_empty()) {
            return Err(SchemaError::NeedsIndex(self.name.clone()));
        }
        if !self.prefixes.is_empty() && self.property_type.can_prefix() && !self.accept_leak {
            return Err(SchemaError::PrefixesLeak(self.name.clone()));
        }
        Ok(())
    }
}
