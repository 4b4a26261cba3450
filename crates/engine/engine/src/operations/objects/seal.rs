//! An object between its values and its row: sealed with its index terms, and opened.

use std::sync::Arc;

use crate::jobs::error::RequestFailure;
use crate::jobs::objects::OBJECT_BYTES_MAX;
use bytes::Bytes;
use sealwire_crypto::CannotOpen;
use sealwire_records::objects::{
    ObjectBinding, OpenedObject, Property, RecordFormat, Values, old, open, seal, token_key_id,
};
use sealwire_records::token::SubjectKey;
use sealwire_store::{ObjectId, ObjectRow, SubjectId, Term};
use sealwire_wire::{ErrorCode, ItemError};

use super::payload::{Assignments, invalid_item, property_path};
use crate::objects::ObjectCollection;
use crate::subjects::ReadableRow;

/// The fields of a row besides its values.
pub(super) struct RowHead {
    pub(super) id: ObjectId,
    pub(super) version: u64,
    pub(super) created: u64,
    pub(super) updated: u64,
    pub(super) expires: Option<u64>,
    pub(super) tags: Vec<String>,
    /// Hash of the request that added the object, if it had an idempotency key.
    pub(super) creation: Option<[u8; 16]>,
    /// Key of the data subject, if the object names one.
    pub(super) subject: Option<Arc<SubjectKey>>,
}

/// Seals objects of a collection.
#[derive(Clone)]
pub(crate) struct ObjectSealer {
    pub(super) collection: Arc<ObjectCollection>,
    key: [u8; 5],
}

impl ObjectSealer {
    /// Seals under the newest active version of the app's token key.
    ///
    /// # Errors
    /// [`RequestFailure::NoTokenKey`].
    pub(crate) fn new(collection: Arc<ObjectCollection>) -> Result<Self, RequestFailure> {
        let number = collection
            .token_keys
            .newest()
            .ok_or(RequestFailure::NoTokenKey)?;
        Ok(Self {
            collection,
            key: token_key_id(number),
        })
    }

    /// Seals the values of an object. `kept`: terms of a schema that is not known here.
    ///
    /// # Errors
    /// The errors of the object at `path`; [`SealError::Library`].
    pub(super) fn row(
        &self,
        path: &str,
        head: RowHead,
        values: &Values,
        kept: KeptTerms,
    ) -> Result<ObjectRow, SealError> {
        self.check(path, values)?;
        let RowHead {
            id,
            version,
            created,
            updated,
            expires,
            tags,
            creation,
            subject,
        } = head;

        let binding = self.collection.binding(id, version, created);
        let sealed = self
            .sealed(&binding, values, creation, subject.as_deref())
            .map_err(|_| SealError::Library)?;
        let KeptTerms {
            mut unique,
            terms: mut shared,
        } = kept;

        for property in &self.collection.schema.properties {
            if let Some(value) = values.get(property.number) {
                self.collection
                    .terms(property, value, &mut unique, &mut shared);
            }
        }

        for terms in [&mut unique, &mut shared] {
            terms.sort_unstable();
            terms.dedup();
        }

        let sealed = Bytes::from(sealed);
        let archived = None;
        let subject = subject.map(|subject| SubjectId(*subject.id()));
        Ok(ObjectRow {
            id,
            version,
            created,
            updated,
            expires,
            archived,
            subject,
            key: self.key,
            tags,
            unique,
            terms: shared,
            sealed,
        })
    }

    /// Returns the most index terms that an object has: of whole values and of their prefixes.
    pub(super) fn terms_max(&self) -> u64 {
        let indexes = self
            .collection
            .schema
            .properties
            .iter()
            .filter_map(|property| property.index.as_ref());
        indexes.map(|index| 1 + index.prefixes.len() as u64).sum()
    }

    /// Returns the id under which rows name the key version that seals.
    pub(crate) fn key(&self) -> [u8; 5] {
        self.key
    }

    /// Opens a row and seals its values again, without those of dropped properties. Returns `None`
    /// if the row does not open.
    ///
    /// Important: the new record is authenticated even if the old record was not. The caller
    /// decides which old records may be resealed.
    ///
    /// # Errors
    /// As for [`seal`].
    pub(crate) fn reseal(
        &self,
        readable: &ReadableRow,
    ) -> Result<Option<Vec<u8>>, sealwire_records::objects::SealError> {
        let Ok(subject) = self.collection.subject_key(readable) else {
            return Ok(None);
        };
        let row = &readable.row;
        let opened = self.collection.open_with(row, subject.as_deref());
        let Ok(OpenedObject {
            mut values,
            creation,
        }) = opened
        else {
            return Ok(None);
        };

        assign(&self.collection, &mut values, Assignments::new());
        let binding = self.collection.binding(row.id, row.version, row.created);
        self.sealed(&binding, &values, creation, subject.as_deref())
            .map(Some)
    }

    fn sealed(
        &self,
        binding: &ObjectBinding,
        values: &Values,
        creation: Option<[u8; 16]>,
        subject: Option<&SubjectKey>,
    ) -> Result<Vec<u8>, sealwire_records::objects::SealError> {
        let schema = &self.collection.schema;
        seal(
            binding,
            values,
            |number| {
                schema
                    .property_of_number(number)
                    .is_some_and(|property| !property.encrypted)
            },
            creation,
            subject,
            &self.collection.token_keys,
        )
    }

    /// Checks that no required value is missing, and the size.
    fn check(&self, path: &str, values: &Values) -> Result<(), SealError> {
        let required = self
            .collection
            .schema
            .properties
            .iter()
            .filter(|property| !property.nullable);
        let missing = required.filter(|property| values.get(property.number).is_none());
        let missing = missing.map(|property| {
            invalid_item(
                property_path(path, property.name.as_str()),
                "must have a value",
            )
        });
        let mut errors: Vec<ItemError> = missing.collect();

        if values.encoded_bytes() > OBJECT_BYTES_MAX {
            let message =
                format!("the values of an object must have at most {OBJECT_BYTES_MAX} bytes")
                    .into();
            errors.push(ItemError {
                path: path.to_owned(),
                code: ErrorCode::TooLarge,
                message,
            });
        }

        if errors.is_empty() {
            Ok(())
        } else {
            Err(SealError::Invalid(errors))
        }
    }
}

/// Why an object is not sealed.
pub(super) enum SealError {
    /// Parts of the request are to blame.
    Invalid(Vec<ItemError>),
    /// The object does not open: another key, or changed in the store.
    CannotOpen,
    /// The crypto library failed.
    Library,
}

/// Terms of indexes that the schema in use does not know, because it is older than the row.
#[derive(Default)]
pub(super) struct KeptTerms {
    unique: Vec<Term>,
    terms: Vec<Term>,
}

impl KeptTerms {
    /// Returns the terms of a row that an older schema must keep.
    pub(super) fn of(collection: &ObjectCollection, row: &ObjectRow) -> Self {
        let next_index = collection.schema.next_number;
        Self {
            unique: terms_from(next_index, &row.unique),
            terms: terms_from(next_index, &row.terms),
        }
    }
}

/// Returns the terms of the indexes from `next_index` on.
fn terms_from(next_index: u32, terms: &[Term]) -> Vec<Term> {
    terms
        .iter()
        .filter(|term| term.index >= next_index)
        .copied()
        .collect()
}

impl ObjectCollection {
    fn binding(&self, id: ObjectId, version: u64, created: u64) -> ObjectBinding {
        let app = self.map.app;
        let collection = self.map.collection;
        ObjectBinding {
            app,
            collection,
            id: id.0,
            version,
            created,
        }
    }

    /// Appends the index terms of a value.
    fn terms(
        &self,
        property: &Property,
        value: &[u8],
        unique: &mut Vec<Term>,
        shared: &mut Vec<Term>,
    ) {
        let terms = self
            .object_keys
            .terms_of(self.map.collection, property, value);
        let mut terms = terms.into_iter().map(|term| Term {
            index: term.index,
            hash: term.hash,
        });
        // Only the term of the whole value is unique.
        if property.unique {
            unique.extend(terms.next());
        }
        shared.extend(terms);
    }

    /// Opens the key of a row's subject, if it names one.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    pub(super) fn subject_key(
        &self,
        row: &ReadableRow,
    ) -> Result<Option<Arc<SubjectKey>>, CannotOpen> {
        row.subject
            .as_ref()
            .map(|subject| subject.open(&self.token_keys).map(Arc::new))
            .transpose()
    }

    /// Opens a row.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    pub(in crate::operations) fn open(
        &self,
        row: &ReadableRow,
    ) -> Result<OpenedObject, CannotOpen> {
        self.open_with(&row.row, self.subject_key(row)?.as_deref())
    }

    /// Opens a row with the key of its subject. Old records open only in a collection that was not
    /// migrated yet.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    pub(super) fn open_with(
        &self,
        row: &ObjectRow,
        subject: Option<&SubjectKey>,
    ) -> Result<OpenedObject, CannotOpen> {
        let binding = self.binding(row.id, row.version, row.created);
        match RecordFormat::of(&row.sealed) {
            Some(RecordFormat::Authenticated) => {
                open(&binding, &row.sealed, subject, &self.token_keys)
            }
            Some(RecordFormat::Old | RecordFormat::OldOfSubject)
                if self.schema.records.has_old() =>
            {
                old::open(&binding, &row.sealed, subject, Arc::clone(&self.keys))
            }
            _ => Err(CannotOpen),
        }
    }
}

/// Applies assignments to the values of an object. Values of dropped properties are removed.
///
/// Note: a schema forgets its oldest dropped properties. So every number counts as dropped that the
/// schema has given out and that no property has. Numbers of a newer schema stay.
pub(super) fn assign(collection: &ObjectCollection, values: &mut Values, assignments: Assignments) {
    for (number, value) in assignments {
        match value {
            Some(value) => drop(values.insert(number, value)),
            None => drop(values.remove(number)),
        }
    }

    let schema = &collection.schema;
    let dropped: Vec<u32> = values
        .iter()
        .map(|(number, _)| number)
        .filter(|number| {
            *number < schema.next_number && schema.property_of_number(*number).is_none()
        })
        .collect();

    for number in dropped {
        values.remove(number);
    }
}

/// Creates the values of a new object.
pub(super) fn values_of(assignments: Assignments) -> Values {
    let mut values = Values::new();
    for (number, value) in assignments {
        if let Some(value) = value {
            values.insert(number, value);
        }
    }
    values
}
