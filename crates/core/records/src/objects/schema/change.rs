//! Changes of a schema.
//!
//! A change can only add properties, remove them, or relax constraints, so that every stored object
//! stays valid. All else needs a new property and a copy of the values
//! ([`SchemaError::NotInPlace`]).

use std::collections::HashSet;

use sealwire_crypto::Suite;

use super::{DROPPED_MAX, DroppedProperty, PropertyName, PropertySpec, Schema, SchemaError};

/// A change of a schema, applied as a whole. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchemaChange {
    /// Properties to add. Each must be nullable.
    pub add: Vec<PropertySpec>,
    /// Properties to drop. Their values and terms are swept later.
    pub drop: Vec<PropertyName>,
    /// Unique properties that stop being unique, and keep their index.
    pub relax_unique: Vec<PropertyName>,
    /// Properties that become nullable.
    pub relax_not_null: Vec<PropertyName>,
    /// Properties that lose their index.
    pub drop_index: Vec<PropertyName>,
    /// New descriptions.
    pub describe: Vec<(PropertyName, String)>,
    /// The new [`Schema::expires_s`]. Affects objects that are added later.
    pub expires_s: Option<Option<u64>>,
    /// The new [`Schema::retention_s`].
    pub retention_s: Option<Option<u64>>,
    /// The new suite, which has no effect on new records.
    pub suite: Option<Suite>,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The new schema.
    pub schema: Schema,
    /// Highest generation at which a name that is added can have been dropped before. The caller
    /// must check that every live engine has reached it, because an older engine would use the
    /// number of the dropped property.
    pub reused: Option<u64>,
}

impl Schema {
    /// Returns the changed schema. `generation` is the generation of the change. Does not modify
    /// this schema.
    ///
    /// # Errors
    /// [`SchemaError`] if the change breaks a rule. The operator must correct the request.
    pub fn change(&self, change: &SchemaChange, generation: u64) -> Result<Changed, SchemaError> {
        change.check_names()?;
        let mut schema = self.clone();
        schema.relax(change)?;
        schema.remove(&change.drop, generation)?;
        let reused = schema.reused(&change.add);
        for spec in &change.add {
            if !spec.nullable {
                return Err(SchemaError::AddedNotNullable(spec.name.clone()));
            }
            schema.add(spec)?;
        }
        schema.expires_s = change.expires_s.unwrap_or(schema.expires_s);
        schema.retention_s = change.retention_s.unwrap_or(schema.retention_s);
        schema.suite = change.suite.unwrap_or(schema.suite);
        schema.check()?;
        Ok(Changed { schema, reused })
    }

    /// Applies the changes of existing properties.
    fn relax(&mut self, change: &SchemaChange) -> Result<(), SchemaError> {
        for name in &change.relax_unique {
            let property = self.property_mut(name)?;
            if !std::mem::take(&mut property.unique) {
                return Err(SchemaError::NothingToChange(name.clone(), "is not unique"));
            }
            if let Some(index) = &mut property.index {
                index.was_unique = true;
            }
        }
        for name in &change.relax_not_null {
            let property = self.property_mut(name)?;
            if std::mem::replace(&mut property.nullable, true) {
                return Err(SchemaError::NothingToChange(name.clone(), "is nullable"));
            }
        }
        for name in &change.drop_index {
            let property = self.property_mut(name)?;
            if property.unique {
                return Err(SchemaError::IndexOfUnique(name.clone()));
            }
            property
                .index
                .take()
                .ok_or_else(|| SchemaError::NothingToChange(name.clone(), "has no index"))?;
        }
        for (name, text) in &change.describe {
            self.property_mut(name)?.description.clone_from(text);
        }
        Ok(())
    }

    fn property_mut(&mut self, name: &PropertyName) -> Result<&mut super::Property, SchemaError> {
        let found = self
            .properties
            .iter_mut()
            .find(|property| property.name == *name);
        found.ok_or_else(|| SchemaError::Unknown(name.clone()))
    }

    fn remove(&mut self, names: &[PropertyName], generation: u64) -> Result<(), SchemaError> {
        for name in names {
            let number = self.property_mut(name)?.number;
            self.properties.retain(|property| property.number != number);
            self.dropped.push(DroppedProperty {
                name: name.clone(),
                number,
                generation,
            });
        }
        self.dropped
            .drain(..self.dropped.len().saturating_sub(DROPPED_MAX));
        Ok(())
    }

    /// Returns the highest generation at which one of the added names can have been dropped.
    fn reused(&self, added: &[PropertySpec]) -> Option<u64> {
        let known = self
            .dropped
            .iter()
            .filter(|dropped| added.iter().any(|spec| spec.name == dropped.name))
            .map(|dropped| dropped.generation)
            .max();

        // A full list can have lost the name, which was then dropped no later than the oldest
        // entry.
        let is_full = self.dropped.len() == DROPPED_MAX && !added.is_empty();
        let lost = self
            .dropped
            .first()
            .filter(|_| is_full)
            .map(|dropped| dropped.generation);
        known.max(lost)
    }
}

impl SchemaChange {
    /// Checks that no list names a property twice, and that no dropped property is changed
    /// otherwise.
    fn check_names(&self) -> Result<(), SchemaError> {
        let added: Vec<&PropertyName> = self.add.iter().map(|spec| &spec.name).collect();
        let described: Vec<&PropertyName> = self.describe.iter().map(|(name, _)| name).collect();
        let changed = [&self.relax_unique, &self.relax_not_null, &self.drop_index]
            .map(|names| names.iter().collect());
        let [relaxed, nullable, without_index] = changed;
        let dropped: Vec<&PropertyName> = self.drop.iter().collect();
        for names in [
            &added,
            &described,
            &relaxed,
            &nullable,
            &without_index,
            &dropped,
        ] {
            let mut seen = HashSet::new();
            if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
                return Err(SchemaError::Repeated((**twice).clone()));
            }
        }
        if let Some(name) = added.iter().find(|name| dropped.contains(name)) {
            return Err(SchemaError::DroppedAndAdded((**name).clone()));
        }
        let mut changed = described
            .iter()
            .chain(&relaxed)
            .chain(&nullable)
            .chain(&without_index);
        match changed.find(|name| dropped.contains(name)) {
            Some(name) => Err(SchemaError::DroppedAndChanged((**name).clone())),
            None => Ok(()),
        }
    }
}
