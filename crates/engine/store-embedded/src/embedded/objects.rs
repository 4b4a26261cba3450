//! The operations of the object store: reads of a database snapshot, edits within a write batch,
//! and the threads on which they run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use async_trait::async_trait;
use fjall::{Readable as _, Snapshot};

use super::database::Database;
use super::keys::{object_key, posting_id, posting_key, term_key};
use super::walk::{count_by, list_page, next_map, scan_page, subject_entries};
use super::write_batch::{RequestEdit, WriteBatch};
use super::{EmbeddedStore, failed_groups};
use sealwire_store::{
    Clause, Filter, MapId, MapView, ObjectChanges as _, ObjectGroup, ObjectId, ObjectRow,
    ObjectStore, ObjectsWritten, Page, Reseal, ResealEffect, StoreError, SubjectId, Sweep, Term,
    apply_group, apply_put, check_fence, fit_page, fits_scan_bytes,
};

fn write_group(
    edit: &mut RequestEdit<'_>,
    now: u64,
    group: &ObjectGroup,
) -> Result<ObjectsWritten, StoreError> {
    group
        .views()
        .try_for_each(|view| check_fence(view, edit.fence(view.map)?))?;
    let written = apply_group(edit, now, group)?;
    if written != ObjectsWritten::Done {
        edit.discard_changes();
    }
    Ok(written)
}

fn reseal_objects(
    edit: &mut RequestEdit<'_>,
    view: MapView,
    key: [u8; 5],
    rows: &[Reseal<ObjectId>],
) -> Result<Vec<bool>, StoreError> {
    check_fence(view, edit.fence(view.map)?)?;
    let mut resealed = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(stored) = edit.object(view.map, row.id)? else {
            resealed.push(false);
            continue;
        };
        let effect = row.effect(&stored.sealed);
        if effect == Some(ResealEffect::Replace) {
            let new = ObjectRow {
                key,
                sealed: row.new.clone(),
                ..stored.clone()
            };
            edit.put_object(view.map, Some(&stored), new);
        }

        resealed.push(effect.is_some());
    }

    Ok(resealed)
}

/// Returns a snapshot. Fails if a fence rejects `view`.
fn checked_snapshot(database: &Database, view: MapView) -> Result<Snapshot, StoreError> {
    let at = database.snapshot();
    check_fence(view, database.fence(&at, view.map)?)?;
    Ok(at)
}

/// Iterates, in the order of ids, over the objects after `after` that hold a non-unique term.
fn term_holders<'a>(
    database: &'a Database,
    at: &Snapshot,
    map: MapId,
    term: Term,
    after: Option<ObjectId>,
) -> impl Iterator<Item = Result<ObjectId, StoreError>> + 'a {
    let first = after.map_or(
        Bound::Included(posting_key(map, term, ObjectId([0; 16]))),
        |id| Bound::Excluded(posting_key(map, term, id)),
    );
    let last = Bound::Included(posting_key(map, term, ObjectId([0xff; 16])));
    at.range(&database.object_terms, (first, last))
        .map(|entry| {
            let key = entry
                .key()
                .map_err(|error| database.database_error(error))?;
            posting_id(&key)
                .ok_or_else(|| database.damage("the key of a term has an invalid length"))
        })
}

fn count_clause(
    database: &Database,
    at: &Snapshot,
    map: MapId,
    clause: &Clause,
    cap: usize,
) -> Result<usize, StoreError> {
    let mut count = 0;
    for term in &clause.terms {
        if clause.unique
            && count < cap
            && database.unique_holder(at, &term_key(map, *term))?.is_some()
        {
            count += 1;
        }
        if clause.shared {
            for holder in term_holders(database, at, map, *term, None).take(cap - count) {
                holder?;
                count += 1;
            }
        }
    }

    Ok(count)
}

/// Returns the first `limit` ids of a clause after `after`. Reads at most `limit` ids per term.
fn clause_ids(
    database: &Database,
    at: &Snapshot,
    map: MapId,
    clause: &Clause,
    after: Option<ObjectId>,
    limit: usize,
) -> Result<Vec<ObjectId>, StoreError> {
    // The lowest ids so far. An id enters a full set only if it is below the last id.
    let mut lowest = BTreeSet::new();
    for term in &clause.terms {
        if clause.unique {
            let holder = database.unique_holder(at, &term_key(map, *term))?;
            lowest.extend(holder.filter(|id| Some(*id) > after && !is_beyond(&lowest, limit, *id)));
        }
        if clause.shared {
            for holder in term_holders(database, at, map, *term, after).take(limit) {
                let holder = holder?;
                if is_beyond(&lowest, limit, holder) {
                    break;
                }
                lowest.insert(holder);
            }
        }

        while lowest.len() > limit {
            lowest.pop_last();
        }
    }

    Ok(lowest.into_iter().collect())
}

/// Returns true if a set of `limit` lowest ids is full and all of them are below `id`.
fn is_beyond(lowest: &BTreeSet<ObjectId>, limit: usize, id: ObjectId) -> bool {
    lowest.len() >= limit && lowest.last() < Some(&id)
}

fn matches_clause(
    database: &Database,
    at: &Snapshot,
    map: MapId,
    clause: &Clause,
    id: ObjectId,
) -> Result<bool, StoreError> {
    for term in &clause.terms {
        if clause.unique && database.unique_holder(at, &term_key(map, *term))? == Some(id)
            || clause.shared && database.holds_term(at, &posting_key(map, *term, id))?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns a page of the objects of an app's subject after `after`.
fn subject_page(
    database: &Database,
    generation: u64,
    (app, subject): (u32, SubjectId),
    after: Option<(MapId, ObjectId)>,
    limit: usize,
) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
    let at = database.snapshot();
    let mut page = Vec::new();
    let mut fits = fits_scan_bytes();
    let after = after.map(|(map, id)| (map, id.0));
    for entry in subject_entries(
        database,
        &database.object_subjects,
        &at,
        (app, subject),
        after,
        limit,
    ) {
        let (map, id) = entry?;
        let id = ObjectId(id);
        check_fence(MapView { map, generation }, database.fence(&at, map)?)?;
        let row = database.find_object(&at, &object_key(map, id))?;
        let row =
            row.ok_or_else(|| database.damage("the index of subjects contains a missing object"))?;
        if !fits(row.sealed.len()) {
            break;
        }
        page.push((map, row));
    }

    Ok(page)
}

#[async_trait]
impl ObjectStore for EmbeddedStore {
    async fn write_objects(
        &self,
        now: u64,
        groups: Vec<ObjectGroup>,
    ) -> Vec<Result<ObjectsWritten, StoreError>> {
        let count = groups.len();
        self.run_write(move |batch: &mut WriteBatch<'_>| {
            groups
                .iter()
                .map(|group| batch.edit(|edit| write_group(edit, now, group)))
                .collect()
        })
        .await
        .unwrap_or_else(|error| failed_groups(count, error))
    }

    async fn get_objects(
        &self,
        now: u64,
        view: MapView,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<ObjectRow>>, StoreError> {
        let ids = ids.to_vec();
        self.run_read(move |database| {
            let at = checked_snapshot(database, view)?;
            ids.into_iter()
                .map(|id| {
                    let object = database.find_object(&at, &object_key(view.map, id))?;
                    Ok(object.filter(|row| row.is_live(now)))
                })
                .collect()
        })
        .await
    }

    async fn count_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        cap: u32,
    ) -> Result<Vec<u32>, StoreError> {
        let clauses = clauses.to_vec();
        self.run_read(move |database| {
            let at = checked_snapshot(database, view)?;
            clauses
                .iter()
                .map(|clause| {
                    let count = count_clause(database, &at, view.map, clause, cap as usize)?;
                    // A count is at most `cap`, which is a `u32`.
                    Ok(count as u32)
                })
                .collect()
        })
        .await
    }

    async fn clause_ids(
        &self,
        view: MapView,
        clause: &Clause,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<ObjectId>, StoreError> {
        let clause = clause.clone();
        self.run_read(move |database| {
            clause_ids(
                database,
                &checked_snapshot(database, view)?,
                view.map,
                &clause,
                after,
                limit,
            )
        })
        .await
    }

    async fn probe_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        ids: &[ObjectId],
    ) -> Result<Vec<bool>, StoreError> {
        let clauses = clauses.to_vec();
        let ids = ids.to_vec();
        self.run_read(move |database| {
            let at = checked_snapshot(database, view)?;
            let mut matches = vec![true; ids.len()];
            for clause in &clauses {
                for (id, is_match) in ids
                    .iter()
                    .zip(&mut matches)
                    .filter(|(_, is_match)| **is_match)
                {
                    *is_match = matches_clause(database, &at, view.map, clause, *id)?;
                }
            }

            Ok(matches)
        })
        .await
    }

    async fn list_objects(
        &self,
        view: MapView,
        filter: &Filter,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        let filter = filter.clone();
        self.run_read(move |database| {
            list_page(
                database,
                &checked_snapshot(database, view)?,
                view.map,
                after,
                limit,
                move |row: &ObjectRow| filter.matches(row.lifetime(), &row.tags),
            )
        })
        .await
    }

    async fn subject_objects(
        &self,
        generation: u64,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        self.run_read(move |database| {
            subject_page(database, generation, (app, subject), after, limit)
        })
        .await
    }

    async fn sweep_objects(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<ObjectId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64, ObjectId>, StoreError> {
        self.sweep_page::<ObjectRow>(now, map, sweep, after, limit, dry_run)
            .await
    }

    async fn count_object_keys(
        &self,
        map: MapId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<[u8; 5], u64>, ObjectId>, StoreError> {
        self.run_read(move |database| {
            count_by(database, map, after, limit, |row: &ObjectRow| row.key)
        })
        .await
    }

    async fn objects_of_other_keys(
        &self,
        view: MapView,
        key: [u8; 5],
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        let page = self.run_read(move |database| {
            list_page(
                database,
                &checked_snapshot(database, view)?,
                view.map,
                after,
                limit,
                move |row: &ObjectRow| row.key != key,
            )
        });
        Ok(fit_page(page.await?, ObjectRow::bytes, |row| row.id))
    }

    async fn reseal_objects(
        &self,
        view: MapView,
        key: [u8; 5],
        rows: &[Reseal<ObjectId>],
    ) -> Result<Vec<bool>, StoreError> {
        let rows = rows.to_vec();
        self.run_write(move |batch| batch.edit(|edit| reseal_objects(edit, view, key, &rows)))
            .await?
    }

    async fn next_object_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.run_read(move |database| next_map::<ObjectRow>(database, after))
            .await
    }

    async fn scan_objects(
        &self,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        self.run_read(move |database| scan_page(database, after, limit))
            .await
    }

    async fn put_objects(&self, rows: &[(MapId, ObjectRow)]) -> Result<(), StoreError> {
        let rows = rows.to_vec();
        self.run_write(move |batch| batch.edit(|edit| apply_put(edit, &rows)))
            .await?
    }

    async fn raise_fence(&self, map: MapId, generation: u64) -> Result<(), StoreError> {
        self.run_write(move |batch| batch.edit(|edit| edit.raise_fence(map, generation)))
            .await?
    }

    async fn fences(&self) -> Result<Vec<(MapId, u64)>, StoreError> {
        self.run_read(|database| database.fences(&database.snapshot()))
            .await
    }
}
