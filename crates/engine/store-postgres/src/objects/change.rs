//! Writes the difference between two states of objects, with a bounded number of statements.
//!
//! Objects are changed first, so that their rows are locked before the rows of terms. Terms are
//! removed before new terms are inserted, because a unique term can move from one object to
//! another.

use std::collections::HashSet;

use super::add::{Conditions, insert_objects};
use super::overlay::ObjectOverlay;
use super::rows::{HeldTerm, ObjectColumns, TermColumns, encode_terms, to_db_version};
use crate::rows::{Keys, db_seconds, join_params, map_numbers, read_column};
use crate::session::{Params, Session};
use crate::sqlstate::SqlFault;
use crate::write::{conflict_fault, invalid_fault};
use sealwire_store::{MapId, ObjectId, ObjectRow, StoreError, Term};

/// Changes lifetime and terms of objects that are not archived, unless another transaction changed
/// an object after the read. `$4`: the known version, `$5`: the known expiry time.
pub(super) static CHANGE: &str =
    "UPDATE sealwire.objects t SET expires = i.expires, archived = i.archived, terms = i.terms
    FROM unnest($1::int4[], $2::int4[], $3::bytea[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::bytea[])
        AS i(app, collection, id, version, known, expires, archived, terms)
    WHERE t.app = i.app AND t.collection = i.collection AND t.id = i.id AND t.version = i.version
        AND t.expires IS NOT DISTINCT FROM i.known AND t.archived IS NULL";

/// Replaces objects, which the transaction must have locked.
pub(super) static REPLACE: &str = "WITH i AS NOT MATERIALIZED (
        SELECT i.app, i.collection, i.id, i.version, i.created, i.updated, i.expires, i.archived, i.subject, i.key,
            i.tags::text[] AS tags, i.terms, i.sealed
        FROM unnest($1::int4[], $2::int4[], $3::bytea[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[],
                $9::bytea[], $10::bytea[], $11::text[], $12::bytea[], $13::bytea[])
            AS i(app, collection, id, version, created, updated, expires, archived, subject, key, tags, terms, sealed)
    )
    UPDATE sealwire.objects t SET version = i.version, created = i.created, updated = i.updated, expires = i.expires,
        archived = i.archived, subject = i.subject, key = i.key, tags = i.tags, terms = i.terms, sealed = i.sealed
    FROM i WHERE t.app = i.app AND t.collection = i.collection AND t.id = i.id";

/// Removes objects and terms. Returns the number of objects.
pub(super) static REMOVE: &str = "WITH objects AS (
        DELETE FROM sealwire.objects t USING unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, id)
        WHERE t.app = i.app AND t.collection = i.collection AND t.id = i.id RETURNING 1
    ), unique_terms AS (
        DELETE FROM sealwire.object_unique t
        USING unnest($4::int4[], $5::int4[], $6::int8[], $7::bytea[], $8::bytea[])
            AS i(app, collection, index_number, hash, id)
        WHERE t.app = i.app AND t.collection = i.collection AND t.index_number = i.index_number AND t.hash = i.hash
            AND t.id = i.id RETURNING 1
    ), terms AS (
        DELETE FROM sealwire.object_terms t
        USING unnest($9::int4[], $10::int4[], $11::int8[], $12::bytea[], $13::bytea[])
            AS i(app, collection, index_number, hash, id)
        WHERE t.app = i.app AND t.collection = i.collection AND t.index_number = i.index_number AND t.hash = i.hash
            AND t.id = i.id RETURNING 1
    )
    SELECT (SELECT count(*) FROM objects), (SELECT count(*) FROM unique_terms), (SELECT count(*) FROM terms)";

/// Objects and terms to remove.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Removal<'a> {
    /// The objects, in the order of keys.
    pub(super) objects: Vec<(MapId, &'a ObjectId)>,
    pub(super) unique: Vec<HeldTerm<'a>>,
    pub(super) terms: Vec<HeldTerm<'a>>,
}

impl Removal<'_> {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.unique.is_empty() && self.terms.is_empty()
    }
}

/// The difference between two states of objects. Lists of objects are in the order of keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NetChange<'a> {
    pub(super) add: Vec<(MapId, &'a ObjectRow)>,
    replace: Vec<(MapId, &'a ObjectRow)>,
    /// Old and new states of objects that differ only in lifetime and terms.
    change: Vec<(MapId, &'a ObjectRow, &'a ObjectRow)>,
    remove: Removal<'a>,
    pub(super) unique: Vec<HeldTerm<'a>>,
    pub(super) terms: Vec<HeldTerm<'a>>,
}

impl<'a> NetChange<'a> {
    /// Collects the net changes of an overlay.
    pub(super) fn from_overlay(overlay: &'a ObjectOverlay<'_>) -> Self {
        let mut net = Self::default();
        for (map, old, new) in overlay.changes().filter(|(_, old, new)| old != new) {
            match (old, new) {
                (Some(old), Some(new)) if differs_in_lifetime(old, new) => {
                    net.change.push((map, old, new))
                }
                (Some(_), Some(new)) => net.replace.push((map, new)),
                (Some(old), None) => net.remove.objects.push((map, &old.id)),
                (None, Some(new)) => net.add.push((map, new)),
                (None, None) => {}
            }

            if let Some(ObjectRow { id, .. }) = new.or(old) {
                net.add_terms((map, id), old, new);
            }
        }

        net
    }

    /// Adds the differences between the terms of the old and the new state of an object.
    fn add_terms(
        &mut self,
        key: (MapId, &'a ObjectId),
        old: Option<&'a ObjectRow>,
        new: Option<&'a ObjectRow>,
    ) {
        let old_unique = old.map_or(&[][..], |row| &row.unique);
        let new_unique = new.map_or(&[][..], |row| &row.unique);
        self.remove
            .unique
            .extend(terms_only_in(key, old_unique, new_unique));
        self.unique
            .extend(terms_only_in(key, new_unique, old_unique));

        let old_terms = old.map_or(&[][..], |row| &row.terms);
        let new_terms = new.map_or(&[][..], |row| &row.terms);
        self.remove
            .terms
            .extend(terms_only_in(key, old_terms, new_terms));
        self.terms.extend(terms_only_in(key, new_terms, old_terms));
    }

    /// Writes the changes within the open transaction.
    pub(super) async fn write_changes(self, session: &Session) -> Result<(), SqlFault> {
        update_lifetimes(session, &self.change).await?;
        if !self.replace.is_empty() {
            let columns = ObjectColumns::from_rows(self.replace).map_err(invalid_fault)?;
            if session.execute(REPLACE, &columns.params()).await? != columns.len() as u64 {
                return Err(conflict_fault());
            }
        }

        remove_objects(session, self.remove).await?;
        if self.add.is_empty() && self.unique.is_empty() && self.terms.is_empty() {
            return Ok(());
        }

        let inserted = insert_objects(
            session,
            &Conditions::default(),
            self.add,
            self.unique,
            self.terms,
        )
        .await?;
        debug_assert!(inserted, "an insert without conditions writes");
        Ok(())
    }
}

/// Returns the terms of an object that are in `terms` and not in `other`.
fn terms_only_in<'a>(
    (map, id): (MapId, &'a ObjectId),
    terms: &'a [Term],
    other: &'a [Term],
) -> impl Iterator<Item = HeldTerm<'a>> {
    let other: HashSet<&Term> = other.iter().collect();
    terms
        .iter()
        .filter(move |term| !other.contains(term))
        .map(move |term| (map, term, id))
}

/// Returns true if the old state is not archived and the two states differ at most in lifetime and
/// terms.
fn differs_in_lifetime(old: &ObjectRow, new: &ObjectRow) -> bool {
    let ObjectRow {
        expires,
        archived,
        unique,
        terms,
        ..
    } = old.clone();
    old.archived.is_none()
        && ObjectRow {
            expires,
            archived,
            unique,
            terms,
            ..new.clone()
        } == *old
}

async fn update_lifetimes(
    session: &Session,
    rows: &[(MapId, &ObjectRow, &ObjectRow)],
) -> Result<(), SqlFault> {
    if rows.is_empty() {
        return Ok(());
    }

    let mut keys = Keys::default();
    rows.iter()
        .try_for_each(|(map, old, _)| keys.push(*map, &old.id.0))
        .map_err(invalid_fault)?;
    let versions: Result<Vec<i64>, StoreError> = rows
        .iter()
        .map(|(_, old, _)| to_db_version(old.version))
        .collect();
    let versions = versions.map_err(invalid_fault)?;
    let known: Vec<Option<i64>> = rows
        .iter()
        .map(|(_, old, _)| old.expires.map(db_seconds))
        .collect();
    let expires: Vec<Option<i64>> = rows
        .iter()
        .map(|(_, _, new)| new.expires.map(db_seconds))
        .collect();
    let archived: Vec<Option<i64>> = rows
        .iter()
        .map(|(_, _, new)| new.archived.map(db_seconds))
        .collect();
    let terms: Vec<Vec<u8>> = rows.iter().map(|(_, _, new)| encode_terms(new)).collect();
    let states: Params<'_> = &[&versions, &known, &expires, &archived, &terms];
    let changed = session
        .execute(CHANGE, &join_params(&[&keys.params(), states]))
        .await?;
    if changed == rows.len() as u64 {
        Ok(())
    } else {
        Err(conflict_fault())
    }
}

/// Removes objects, which the transaction must have locked, and terms.
pub(super) async fn remove_objects(
    session: &Session,
    removal: Removal<'_>,
) -> Result<(), SqlFault> {
    if removal.is_empty() {
        return Ok(());
    }

    let mut keys = Keys::default();
    removal
        .objects
        .iter()
        .try_for_each(|(map, id)| keys.push(*map, &id.0))
        .map_err(invalid_fault)?;
    let unique = TermColumns::from_unsorted(removal.unique).map_err(invalid_fault)?;
    let terms = TermColumns::from_unsorted(removal.terms).map_err(invalid_fault)?;
    let removed = session
        .query(
            REMOVE,
            &join_params(&[&keys.params(), &unique.params(), &terms.params()]),
        )
        .await?;
    match removed.first() {
        Some(row) if read_column::<i64>(row, 0)? == keys.len() as i64 => Ok(()),
        _ => Err(conflict_fault()),
    }
}

/// Checks that the database can represent the numbers of an object.
pub(super) fn check_numbers(map: MapId, row: Option<&ObjectRow>) -> Result<(), StoreError> {
    map_numbers(map)?;
    row.map_or(Ok(()), |row| to_db_version(row.version).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::overlay::StoredObjects;
    use sealwire_store::contract_tests::objects::{id, object, shared, unique};
    use sealwire_store::{MapView, ObjectGroup, ObjectWrite, ObjectsWritten, apply_group};

    const MAP: MapId = MapId {
        app: 1,
        collection: 1,
    };

    /// Numbers of added, replaced, changed and removed objects, of removed and of added terms in
    /// each place.
    fn check(
        there: &[ObjectRow],
        writes: Vec<ObjectWrite>,
        expected: ([usize; 4], [usize; 2], [usize; 2]),
    ) {
        let mut stored = StoredObjects::default();
        for row in there {
            stored
                .holders
                .extend(row.unique.iter().map(|term| ((MAP, *term), row.id)));
            stored.objects.insert((MAP, row.id), row.clone());
        }
        let mut overlay = ObjectOverlay::new(&stored);
        // Each write is a group, so that an object can be written twice.
        for write in writes {
            let group = ObjectGroup {
                view: MapView {
                    map: MAP,
                    generation: 1,
                },
                writes: vec![write],
                subjects: Vec::new(),
            };
            assert_eq!(
                apply_group(&mut overlay, 10, &group).unwrap(),
                ObjectsWritten::Done
            );
            overlay.keep_changes();
        }
        let net = NetChange::from_overlay(&overlay);
        let objects = [
            net.add.len(),
            net.replace.len(),
            net.change.len(),
            net.remove.objects.len(),
        ];
        let found = (
            objects,
            [net.remove.unique.len(), net.remove.terms.len()],
            [net.unique.len(), net.terms.len()],
        );
        assert_eq!(found, expected, "{net:?}");
    }

    #[test]
    fn only_differences_are_written() {
        use ObjectWrite::{Add, Delete, Expire, Replace};
        let delete = |n| Delete {
            id: id(n),
            version: None,
        };
        let expire = |n, expires| Expire { id: id(n), expires };
        let next = |row: ObjectRow| ObjectRow {
            version: 2,
            sealed: "next".into(),
            ..row
        };
        let expired = ObjectRow {
            expires: Some(10),
            ..unique(1, &[(1, 1), (1, 2)])
        };
        check(
            &[],
            vec![Add(unique(1, &[(1, 1)])), delete(1)],
            ([0; 4], [0; 2], [0; 2]),
        );
        check(
            &[],
            vec![Add(shared(1, &[(1, 1), (1, 2)]))],
            ([1, 0, 0, 0], [0; 2], [0, 2]),
        );
        check(
            &[object(1)],
            vec![expire(1, Some(20)), expire(1, None)],
            ([0; 4], [0; 2], [0; 2]),
        );
        check(
            &[unique(1, &[(1, 1)])],
            vec![expire(1, Some(20))],
            ([0, 0, 1, 0], [0; 2], [0; 2]),
        );
        let moved = Replace(next(shared(1, &[(1, 1), (2, 2)])));
        check(
            &[shared(1, &[(1, 1), (2, 1)])],
            vec![moved],
            ([0, 1, 0, 0], [0, 1], [0, 1]),
        );
        let again = vec![delete(1), Add(next(unique(1, &[(1, 1)])))];
        check(
            &[unique(1, &[(1, 1)])],
            again,
            ([0, 1, 0, 0], [0; 2], [0; 2]),
        );
        let given = vec![delete(1), Add(unique(2, &[(1, 1)]))];
        check(
            &[unique(1, &[(1, 1)])],
            given,
            ([1, 0, 0, 1], [1, 0], [1, 0]),
        );
        // An expired holder is archived and loses all its terms.
        check(
            &[expired],
            vec![Add(unique(2, &[(1, 1)]))],
            ([1, 0, 1, 0], [2, 0], [1, 0]),
        );
    }
}
