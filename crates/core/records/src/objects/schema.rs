//! Schemas of collections of objects, and the rules by which they change.
//!
//! A single counter numbers properties and indexes, and no number is ever used twice. Stored values
//! and terms name numbers only. So data of a dropped property never appears under another property
//! of the same name.

mod change;
mod error;
mod property;
mod property_name;
mod spec;

use std::collections::HashSet;

use sealwire_crypto::Suite;

pub use change::{Changed, SchemaChange};
pub use error::SchemaError;
pub use property::{DroppedProperty, Index, Property};
pub use property_name::PropertyName;
pub use spec::PropertySpec;

/// Maximum number of properties of a schema.
pub const PROPERTIES_MAX: usize = 64;
/// Maximum number of properties with an index.
pub const INDEXES_MAX: usize = 16;
/// Maximum number of dropped properties that a schema remembers: the latest ones.
pub const DROPPED_MAX: usize = 256;

/// The records that a collection reads. A collection changes in this order only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AcceptedRecords {
    /// All formats. The collection is older than authenticated records.
    #[default]
    All,
    /// All formats, while an operator migrates the old ones. Engines that write old formats cannot
    /// load this state.
    Migrating,
    /// Authenticated ones only.
    Authenticated,
}

impl AcceptedRecords {
    /// Returns true if records of the old formats are read.
    #[must_use]
    pub fn has_old(self) -> bool {
        self < Self::Authenticated
    }
}

/// The properties of the objects of one collection, and how long objects live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// The suite that older engines sealed values under. Without effect on new records.
    pub suite: Suite,
    /// The records that are read.
    pub records: AcceptedRecords,
    /// Seconds after its creation at which an object expires, unless its creation says otherwise.
    /// `None`: never.
    pub expires_s: Option<u64>,
    /// Seconds for which an archived object is kept. `None`: the default of the engine.
    pub retention_s: Option<u64>,
    /// The properties, by number.
    pub properties: Vec<Property>,
    /// Dropped properties, oldest first.
    pub dropped: Vec<DroppedProperty>,
    /// The next number of a property or an index. All numbers below are used.
    pub next_number: u32,
}

impl Schema {
    /// Creates the first schema of a collection. Properties are numbered from 1, each before its
    /// index.
    ///
    /// # Errors
    /// [`SchemaError`] if a property breaks a rule. The operator must correct the request.
    pub fn new(suite: Suite, specs: &[PropertySpec]) -> Result<Self, SchemaError> {
        let mut schema = Self {
            suite,
            records: AcceptedRecords::Authenticated,
            expires_s: None,
            retention_s: None,
            properties: Vec::new(),
            dropped: Vec::new(),
            next_number: 1,
        };
        for spec in specs {
            schema.add(spec)?;
        }
        schema.check()?;
        Ok(schema)
    }

    /// Returns the property with a name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties
            .iter()
            .find(|property| property.name.as_str() == name)
    }

    /// Returns the property with a number.
    #[must_use]
    pub fn property_of_number(&self, number: u32) -> Option<&Property> {
        let at = self
            .properties
            .binary_search_by_key(&number, |property| property.number)
            .ok()?;
        self.properties.get(at)
    }

    /// Checks every rule that a stored schema must obey.
    ///
    /// # Errors
    /// [`SchemaError`] for the first rule that is broken. The stored schema is then damaged or of a
    /// later engine.
    pub fn check(&self) -> Result<(), SchemaError> {
        if self.properties.len() > PROPERTIES_MAX {
            return Err(SchemaError::TooManyProperties);
        }
        if self
            .properties
            .iter()
            .filter(|property| property.index.is_some())
            .count()
            > INDEXES_MAX
        {
            return Err(SchemaError::TooManyIndexes);
        }
        if self.dropped.len() > DROPPED_MAX {
            return Err(SchemaError::TooManyDropped);
        }
        let mut names = HashSet::new();
        for property in &self.properties {
            property.check()?;
            if !names.insert(&property.name) {
                return Err(SchemaError::Repeated(property.name.clone()));
            }
        }
        self.check_numbers()
    }

    /// Checks that each number below the next one is used at most once, and no other.
    fn check_numbers(&self) -> Result<(), SchemaError> {
        let of_properties = self.properties.iter().map(|property| property.number);
        let of_indexes = self
            .properties
            .iter()
            .filter_map(|property| property.index.as_ref())
            .map(|index| index.number);
        let of_dropped = self.dropped.iter().map(|dropped| dropped.number);

        let mut seen = HashSet::new();
        let are_new = of_properties
            .chain(of_indexes)
            .chain(of_dropped)
            .all(|number| number > 0 && number < self.next_number && seen.insert(number));
        let is_sorted = self.properties.is_sorted_by_key(|property| property.number);
        if is_sorted && are_new {
            Ok(())
        } else {
            Err(SchemaError::InvalidNumbers)
        }
    }

    /// Takes the next number.
    fn take_number(&mut self) -> Result<u32, SchemaError> {
        let number = self.next_number;
        self.next_number = number.checked_add(1).ok_or(SchemaError::NumbersUsedUp)?;
        Ok(number)
    }

    /// Adds a property under the next numbers.
    fn add(&mut self, spec: &PropertySpec) -> Result<(), SchemaError> {
        spec.check()?;
        if self.property(spec.name.as_str()).is_some() {
            return Err(SchemaError::Repeated(spec.name.clone()));
        }
        let number = self.take_number()?;
        let index = match spec.is_indexed() {
            true => Some(Index {
                number: self.take_number()?,
                bits: spec.bits,
                prefixes: spec.prefixes.clone(),
                was_unique: false,
            }),
            false => None,
        };
        self.properties.push(Property {
            number,
            name: spec.name.clone(),
            property_type: spec.property_type,
            nullable: spec.nullable,
            unique: spec.unique,
            index,
            encrypted: spec.encrypted,
            description: spec.description.clone(),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
