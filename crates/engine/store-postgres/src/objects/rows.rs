//! Conversion of objects and terms to statement parameters and from results.

use bytes::Bytes;
use tokio_postgres::types::ToSql;

use crate::rows::{
    array_literal, db_seconds, map_numbers, read_column, read_key, row_fault, to_key, to_time,
};
use crate::sqlstate::SqlFault;
use sealwire_store::{MapId, ObjectId, ObjectRow, StoreError, SubjectId, Term};

/// Bytes of a term in the column `terms`: the place, the number of the index, the hash.
const TERM_BYTES: usize = 21;
const SHARED: u8 = 0;
const UNIQUE: u8 = 1;

/// Columns of the table alias `t`, in the order that [`read_object`] expects. `bare` columns have an empty
/// sealed content, because the content can be large.
macro_rules! object_columns {
    () => {
        concat!(object_columns!(head), ", t.sealed")
    };
    (bare) => {
        concat!(object_columns!(head), ", ''::bytea")
    };
    (head) => {
        "t.id, t.version, t.created, t.updated, t.expires, t.archived, t.subject, t.key, t.tags, t.terms"
    };
}
pub(super) use object_columns;

/// Encodes the terms of an object, unique terms first.
pub(super) fn encode_terms(row: &ObjectRow) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TERM_BYTES * (row.unique.len() + row.terms.len()));
    for (place, terms) in [(UNIQUE, &row.unique), (SHARED, &row.terms)] {
        for term in terms {
            bytes.push(place);
            bytes.extend_from_slice(&term.index.to_be_bytes());
            bytes.extend_from_slice(&term.hash);
        }
    }
    bytes
}

/// Returns unique terms and other terms. Returns `None` for bytes that [`encode_terms`] never
/// returns.
pub(super) fn decode_terms(bytes: &[u8]) -> Option<(Vec<Term>, Vec<Term>)> {
    let mut unique = Vec::new();
    let mut shared = Vec::new();
    let (terms, rest) = bytes.as_chunks::<TERM_BYTES>();
    for [place, term @ ..] in terms {
        let (index, hash) = term.split_first_chunk()?;
        let term = Term {
            index: u32::from_be_bytes(*index),
            hash: hash.try_into().ok()?,
        };
        match *place {
            UNIQUE if shared.is_empty() => unique.push(term),
            SHARED => shared.push(term),
            _ => return None,
        }
    }

    rest.is_empty().then_some((unique, shared))
}

/// Converts a generation of control state. Generations count changes, so the maximum is never
/// reached.
pub(super) fn to_db_generation(generation: u64) -> i64 {
    generation.try_into().unwrap_or(i64::MAX)
}

/// Converts a version.
///
/// # Errors
/// [`StoreError::Invalid`] beyond `i64::MAX`.
pub(super) fn to_db_version(version: u64) -> Result<i64, StoreError> {
    version
        .try_into()
        .map_err(|_| StoreError::Invalid("the version of an object is too large".to_owned()))
}

/// Objects as parameters of `unnest`: app, collection, id, version, created, updated, expires,
/// archived, subject, key, tags, terms, sealed.
#[derive(Default)]
pub(super) struct ObjectColumns<'a> {
    apps: Vec<i32>,
    collections: Vec<i32>,
    ids: Vec<&'a [u8]>,
    versions: Vec<i64>,
    created: Vec<i64>,
    updated: Vec<i64>,
    expires: Vec<Option<i64>>,
    archived: Vec<Option<i64>>,
    subjects: Vec<Option<&'a [u8]>>,
    keys: Vec<&'a [u8]>,
    tags: Vec<Option<String>>,
    terms: Vec<Vec<u8>>,
    sealed: Vec<&'a [u8]>,
}

impl<'a> ObjectColumns<'a> {
    /// Converts objects in the given order. The caller must have checked the times.
    ///
    /// # Errors
    /// If the number of a map or a version is too large.
    pub(super) fn from_rows(
        rows: impl IntoIterator<Item = (MapId, &'a ObjectRow)>,
    ) -> Result<Self, StoreError> {
        let mut columns = Self::default();
        for (map, row) in rows {
            let (app, collection) = map_numbers(map)?;
            columns.apps.push(app);
            columns.collections.push(collection);
            columns.ids.push(&row.id.0);
            columns.versions.push(to_db_version(row.version)?);
            columns.created.push(db_seconds(row.created));
            columns.updated.push(db_seconds(row.updated));
            columns.expires.push(row.expires.map(db_seconds));
            columns.archived.push(row.archived.map(db_seconds));
            columns
                .subjects
                .push(row.subject.as_ref().map(|subject| subject.0.as_slice()));
            columns.keys.push(&row.key);
            columns.tags.push(array_literal(&row.tags));
            columns.terms.push(encode_terms(row));
            columns.sealed.push(&row.sealed);
        }

        Ok(columns)
    }

    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); 13] {
        [
            &self.apps,
            &self.collections,
            &self.ids,
            &self.versions,
            &self.created,
            &self.updated,
            &self.expires,
            &self.archived,
            &self.subjects,
            &self.keys,
            &self.tags,
            &self.terms,
            &self.sealed,
        ]
    }

    pub(super) fn apps(&self) -> &[i32] {
        &self.apps
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }
}

/// A term, and the object of a map that holds it. Sorts as the tables of terms do.
pub(super) type HeldTerm<'a> = (MapId, &'a Term, &'a ObjectId);

/// Held terms as parameters of `unnest`: app, collection, index number, hash, id.
#[derive(Default)]
pub(super) struct TermColumns<'a> {
    apps: Vec<i32>,
    collections: Vec<i32>,
    indexes: Vec<i64>,
    hashes: Vec<&'a [u8]>,
    ids: Vec<&'a [u8]>,
}

impl<'a> TermColumns<'a> {
    /// Converts terms in the order of their table, so that concurrent writers wait for each other
    /// and do not deadlock. Removes duplicates.
    pub(super) fn from_unsorted(mut terms: Vec<HeldTerm<'a>>) -> Result<Self, StoreError> {
        terms.sort_unstable();
        terms.dedup();
        let mut columns = Self::default();
        for (map, term, id) in terms {
            columns.push(map, term, id)?;
        }
        Ok(columns)
    }

    fn push(&mut self, map: MapId, term: &'a Term, id: &'a ObjectId) -> Result<(), StoreError> {
        let (app, collection) = map_numbers(map)?;
        self.apps.push(app);
        self.collections.push(collection);
        self.indexes.push(term.index.into());
        self.hashes.push(&term.hash);
        self.ids.push(&id.0);
        Ok(())
    }

    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); 5] {
        [
            &self.apps,
            &self.collections,
            &self.indexes,
            &self.hashes,
            &self.ids,
        ]
    }

    pub(super) fn apps(&self) -> &[i32] {
        &self.apps
    }
}

/// Reads the object whose [`object_columns`] start at index `at`.
pub(super) fn read_object(row: &tokio_postgres::Row, at: usize) -> Result<ObjectRow, SqlFault> {
    let (unique, terms) = decode_terms(read_column(row, at + 9)?).ok_or_else(row_fault)?;
    Ok(ObjectRow {
        id: ObjectId(read_key(row, at)?),
        version: read_column::<i64>(row, at + 1)?
            .try_into()
            .map_err(|_| row_fault())?,
        created: to_time(read_column(row, at + 2)?)?,
        updated: to_time(read_column(row, at + 3)?)?,
        expires: read_column::<Option<i64>>(row, at + 4)?
            .map(to_time)
            .transpose()?,
        archived: read_column::<Option<i64>>(row, at + 5)?
            .map(to_time)
            .transpose()?,
        subject: read_column::<Option<&[u8]>>(row, at + 6)?
            .map(to_key)
            .transpose()?
            .map(SubjectId),
        key: read_column::<&[u8]>(row, at + 7)?
            .try_into()
            .map_err(|_| row_fault())?,
        tags: read_column::<Option<Vec<String>>>(row, at + 8)?.unwrap_or_default(),
        unique,
        terms,
        sealed: Bytes::copy_from_slice(read_column(row, at + 10)?),
    })
}

/// Reads the term whose index number is at index `at`, followed by its hash.
pub(super) fn read_term(row: &tokio_postgres::Row, at: usize) -> Result<Term, SqlFault> {
    Ok(Term {
        index: read_column::<i64>(row, at)?
            .try_into()
            .map_err(|_| row_fault())?,
        hash: read_key(row, at + 1)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use sealwire_store::contract_tests::objects::object;

    fn terms() -> impl Strategy<Value = Vec<Term>> {
        vec(
            (any::<u32>(), any::<[u8; 16]>()).prop_map(|(index, hash)| Term { index, hash }),
            0..5,
        )
    }

    proptest! {
        #[test]
        fn terms_survive_encoding(unique in terms(), terms in terms()) {
            let row = ObjectRow { unique: unique.clone(), terms: terms.clone(), ..object(1) };
            prop_assert_eq!(decode_terms(&encode_terms(&row)), Some((unique, terms)));
        }

        #[test]
        fn decoded_terms_encode_to_the_same_bytes(mut bytes in vec(any::<u8>(), 0..90), places in vec(0_u8..3, 5)) {
            bytes.chunks_mut(TERM_BYTES).zip(places).for_each(|(term, place)| term[0] = place);
            if let Some((unique, terms)) = decode_terms(&bytes) {
                prop_assert_eq!(encode_terms(&ObjectRow { unique, terms, ..object(1) }), bytes);
            }
        }
    }

    #[test]
    fn terms_reject_other_bytes() {
        let term = |place: u8| [&[place][..], &[7; 20]].concat();
        let cases = [
            (vec![], true),
            (term(1), true),
            ([term(1), term(0)].concat(), true),
            ([term(0), term(1)].concat(), false),
            (term(2), false),
            (term(1)[..20].to_vec(), false),
            ([term(0), vec![0]].concat(), false),
        ];
        for (bytes, fits) in cases {
            assert_eq!(decode_terms(&bytes).is_some(), fits, "{bytes:?}");
        }
    }

    #[test]
    fn numbers_are_bounded() {
        for (number, expected) in [
            (0, Some(0)),
            (i64::MAX as u64, Some(i64::MAX)),
            (1 << 63, None),
            (u64::MAX, None),
        ] {
            assert_eq!(to_db_version(number).ok(), expected);
            assert_eq!(to_db_generation(number), expected.unwrap_or(i64::MAX));
        }
    }
}
