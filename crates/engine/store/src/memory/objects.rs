//! Object collections in memory: objects in the order of maps and ids, and the index terms that
//! find them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{LOOK_MAX, MemoryStore, counted, page};
use crate::{
    Clause, Filter, FoundRow, MapId, MapView, ObjectChanges, ObjectGroup, ObjectId, ObjectRow,
    ObjectStore, ObjectsWritten, Page, Reseal, ResealEffect, Row, StoreError, SubjectId, Sweep,
    Term, apply_group, apply_put, apply_sweep, check_fence, fit_page, fits_scan_bytes,
};

const FIRST: ObjectId = ObjectId([0; 16]);
const LAST: ObjectId = ObjectId([0xff; 16]);

#[derive(Debug, Default)]
pub(super) struct Collections {
    rows: BTreeMap<(MapId, ObjectId), ObjectRow>,
    unique: BTreeMap<(MapId, Term), ObjectId>,
    terms: BTreeSet<(MapId, Term, ObjectId)>,
    fences: BTreeMap<MapId, u64>,
}

impl Collections {
    fn check(&self, view: MapView) -> Result<(), StoreError> {
        check_fence(view, self.fences.get(&view.map).copied())
    }

    fn write(&mut self, now: u64, group: &ObjectGroup) -> Result<ObjectsWritten, StoreError> {
        group.views().try_for_each(|view| self.check(view))?;
        let mut pending = PendingChanges::new(self);
        let written = apply_group(&mut pending, now, group)?;
        if written == ObjectsWritten::Done {
            let rows = pending.rows;
            self.commit(rows);
        }
        Ok(written)
    }

    /// Applies changes of objects. `None` removes an object.
    fn commit(&mut self, rows: BTreeMap<(MapId, ObjectId), Option<ObjectRow>>) {
        // Removes all old terms first, because a term can move from one object to another.
        for key in rows.keys() {
            let Some(old) = self.rows.remove(key) else {
                continue;
            };
            for term in old.unique {
                self.unique.remove(&(key.0, term));
            }
            for term in old.terms {
                self.terms.remove(&(key.0, term, key.1));
            }
        }

        for (key, row) in rows {
            let Some(row) = row else { continue };
            self.unique
                .extend(row.unique.iter().map(|term| ((key.0, *term), key.1)));
            self.terms
                .extend(row.terms.iter().map(|term| (key.0, *term, key.1)));
            self.rows.insert(key, row);
        }
    }

    /// Returns the holders of a clause after `after`. Ids are ascending within the unique and
    /// within the other holders of a term. An id can occur several times.
    fn holders<'a>(
        &'a self,
        map: MapId,
        clause: &'a Clause,
        after: Option<ObjectId>,
        limit: usize,
    ) -> impl Iterator<Item = ObjectId> + 'a {
        clause.terms.iter().flat_map(move |term| {
            let from = after.map_or(Bound::Included((map, *term, FIRST)), |id| {
                Bound::Excluded((map, *term, id))
            });
            let range = (from, Bound::Included((map, *term, LAST)));
            let shared = clause
                .shared
                .then(|| self.terms.range(range).map(|(_, _, id)| *id));
            let unique = self
                .unique
                .get(&(map, *term))
                .copied()
                .filter(|id| clause.unique && Some(*id) > after);
            shared.into_iter().flatten().take(limit).chain(unique)
        })
    }

    fn is_in(&self, map: MapId, clause: &Clause, id: ObjectId) -> bool {
        clause.terms.iter().any(|term| {
            clause.unique && self.unique.get(&(map, *term)) == Some(&id)
                || clause.shared && self.terms.contains(&(map, *term, id))
        })
    }

    /// Returns the sealed key of a row's subject: `Some(None)` if the row names none, and `None` if
    /// the stored key was erased or has another version than the row claims.
    pub(super) fn subject_key(&self, app: u32, row: &Row) -> Option<Option<Bytes>> {
        let Some(subject) = row.subject else {
            return Some(None);
        };
        let key = self.rows.get(&(MapId::of_subjects(app), subject.row()))?;
        row.has_key(Some(key.version))
            .then(|| Some(key.sealed.clone()))
    }

    /// Returns a row with its subject's key, or `None` if the row counts as absent.
    pub(super) fn found(&self, map: MapId, row: Row) -> Option<FoundRow> {
        let subject_key = self.subject_key(map.app, &row)?;
        Some(FoundRow { row, subject_key })
    }

    fn page(
        &self,
        map: MapId,
        after: Option<ObjectId>,
        bounds: (usize, usize),
        wanted: impl Fn(&ObjectRow) -> bool,
    ) -> Page<Vec<ObjectRow>, ObjectId> {
        let from = after.map_or(Bound::Included((map, FIRST)), |id| {
            Bound::Excluded((map, id))
        });
        page(&self.rows, map, from, bounds, wanted)
    }
}

/// Changes of one operation, on top of the stored objects.
struct PendingChanges<'a> {
    stored: &'a Collections,
    rows: BTreeMap<(MapId, ObjectId), Option<ObjectRow>>,
    unique: BTreeMap<(MapId, Term), Option<ObjectId>>,
}

impl<'a> PendingChanges<'a> {
    fn new(stored: &'a Collections) -> Self {
        Self {
            stored,
            rows: BTreeMap::new(),
            unique: BTreeMap::new(),
        }
    }
}

impl ObjectChanges for PendingChanges<'_> {
    fn object(&self, map: MapId, id: ObjectId) -> Result<Option<ObjectRow>, StoreError> {
        let key = (map, id);
        Ok(self
            .rows
            .get(&key)
            .cloned()
            .unwrap_or_else(|| self.stored.rows.get(&key).cloned()))
    }

    fn holder(&self, map: MapId, term: Term) -> Result<Option<ObjectRow>, StoreError> {
        let key = (map, term);
        let id = self
            .unique
            .get(&key)
            .copied()
            .unwrap_or_else(|| self.stored.unique.get(&key).copied());
        id.map_or(Ok(None), |id| self.object(map, id))
    }

    fn put_object(&mut self, map: MapId, old: Option<&ObjectRow>, new: ObjectRow) {
        let freed = old
            .into_iter()
            .flat_map(|old| &old.unique)
            .map(|term| ((map, *term), None));
        self.unique.extend(freed);
        self.unique
            .extend(new.unique.iter().map(|term| ((map, *term), Some(new.id))));
        self.rows.insert((map, new.id), Some(new));
    }

    fn remove_object(&mut self, map: MapId, old: &ObjectRow) {
        self.unique
            .extend(old.unique.iter().map(|term| ((map, *term), None)));
        self.rows.insert((map, old.id), None);
    }
}

impl MemoryStore {
    pub(super) fn objects(&self) -> MutexGuard<'_, Collections> {
        // No code in this file panics between two steps of a change.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the objects if no fence rejects `view`.
    fn objects_for(&self, view: MapView) -> Result<MutexGuard<'_, Collections>, StoreError> {
        let objects = self.objects();
        objects.check(view)?;
        Ok(objects)
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn write_objects(
        &self,
        now: u64,
        groups: Vec<ObjectGroup>,
    ) -> Vec<Result<ObjectsWritten, StoreError>> {
        let mut objects = self.objects();
        groups
            .iter()
            .map(|group| objects.write(now, group))
            .collect()
    }

    async fn get_objects(
        &self,
        now: u64,
        view: MapView,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<ObjectRow>>, StoreError> {
        let objects = self.objects_for(view)?;
        Ok(ids
            .iter()
            .map(|id: &ObjectId| {
                objects
                    .rows
                    .get(&(view.map, *id))
                    .filter(|row| row.is_live(now))
                    .cloned()
            })
            .collect())
    }

    async fn count_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        cap: u32,
    ) -> Result<Vec<u32>, StoreError> {
        let objects = self.objects_for(view)?;
        // The iterator is not longer than `cap`, so its count is a `u32`.
        Ok(clauses
            .iter()
            .map(|clause| {
                objects
                    .holders(view.map, clause, None, cap as usize)
                    .take(cap as usize)
                    .count() as u32
            })
            .collect())
    }

    async fn clause_ids(
        &self,
        view: MapView,
        clause: &Clause,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<ObjectId>, StoreError> {
        let objects = self.objects_for(view)?;
        let ids: BTreeSet<ObjectId> = objects.holders(view.map, clause, after, limit).collect();
        Ok(ids.into_iter().take(limit).collect())
    }

    async fn probe_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        ids: &[ObjectId],
    ) -> Result<Vec<bool>, StoreError> {
        let objects = self.objects_for(view)?;
        Ok(ids
            .iter()
            .map(|id| {
                clauses
                    .iter()
                    .all(|clause| objects.is_in(view.map, clause, *id))
            })
            .collect())
    }

    async fn list_objects(
        &self,
        view: MapView,
        filter: &Filter,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        let objects = self.objects_for(view)?;
        Ok(
            objects.page(view.map, after, (LOOK_MAX, limit), |row: &ObjectRow| {
                filter.matches(row.lifetime(), &row.tags)
            }),
        )
    }

    async fn subject_objects(
        &self,
        generation: u64,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        let objects = self.objects();
        let first = (MapId { app, collection: 0 }, FIRST);
        let last = (
            MapId {
                app,
                collection: u32::MAX,
            },
            LAST,
        );
        let from = after.map_or(Bound::Included(first), |after| {
            Bound::Excluded(first.max(after))
        });
        let of_subject = objects
            .rows
            .range((from, Bound::Included(last)))
            .filter(|(_, row)| row.subject == Some(subject));
        let mut fits = fits_scan_bytes();
        let page = of_subject
            .take(limit)
            .take_while(|(_, row)| fits(row.bytes()));
        let checked = page.map(|((map, _), row)| {
            objects.check(MapView {
                map: *map,
                generation,
            })?;
            Ok((*map, row.clone()))
        });
        checked.collect()
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
        let mut objects = self.objects();
        let Page { found, next } = objects.page(map, after, (limit, limit), |row| {
            row.lifetime().is_due(sweep, now)
        });
        if !dry_run {
            let mut pending = PendingChanges::new(&objects);
            found
                .iter()
                .for_each(|row| apply_sweep(&mut pending, now, map, sweep, row));
            let rows = pending.rows;
            objects.commit(rows);
        }

        Ok(Page {
            found: found.len() as u64,
            next,
        })
    }

    async fn count_object_keys(
        &self,
        map: MapId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<[u8; 5], u64>, ObjectId>, StoreError> {
        let Page { found, next } = self.objects().page(map, after, (limit, limit), |_| true);
        Ok(Page {
            found: counted(found.iter().map(|row| row.key)),
            next,
        })
    }

    async fn objects_of_other_keys(
        &self,
        view: MapView,
        key: [u8; 5],
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        let page = self
            .objects_for(view)?
            .page(view.map, after, (LOOK_MAX, limit), |row| row.key != key);
        Ok(fit_page(page, ObjectRow::bytes, |row| row.id))
    }

    async fn reseal_objects(
        &self,
        view: MapView,
        key: [u8; 5],
        rows: &[Reseal<ObjectId>],
    ) -> Result<Vec<bool>, StoreError> {
        let mut objects = self.objects_for(view)?;
        let mut resealed = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(stored) = objects.rows.get_mut(&(view.map, row.id)) else {
                resealed.push(false);
                continue;
            };
            let effect = row.effect(&stored.sealed);
            if effect == Some(ResealEffect::Replace) {
                stored.key = key;
                stored.sealed = row.new.clone();
            }
            resealed.push(effect.is_some());
        }

        Ok(resealed)
    }

    async fn next_object_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |map| Bound::Excluded((map, LAST)));
        let objects = self.objects();
        Ok(objects
            .rows
            .range((from, Bound::Unbounded))
            .next()
            .map(|((map, _), _)| *map))
    }

    async fn scan_objects(
        &self,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let objects = self.objects();
        let mut fits = fits_scan_bytes();
        let rows = objects
            .rows
            .range((from, Bound::Unbounded))
            .take(limit)
            .take_while(|(_, row)| fits(row.bytes()));
        Ok(rows.map(|((map, _), row)| (*map, row.clone())).collect())
    }

    async fn put_objects(&self, rows: &[(MapId, ObjectRow)]) -> Result<(), StoreError> {
        let mut objects = self.objects();
        let mut pending = PendingChanges::new(&objects);
        apply_put(&mut pending, rows)?;
        let rows = pending.rows;
        objects.commit(rows);
        Ok(())
    }

    async fn raise_fence(&self, map: MapId, generation: u64) -> Result<(), StoreError> {
        let mut objects = self.objects();
        let fence = objects.fences.entry(map).or_default();
        *fence = generation.max(*fence);
        Ok(())
    }

    async fn fences(&self) -> Result<Vec<(MapId, u64)>, StoreError> {
        Ok(self
            .objects()
            .fences
            .iter()
            .map(|(map, generation)| (*map, *generation))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::contract_tests;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn object_contract_holds() {
        contract_tests::object_store(Arc::new(MemoryStore::default())).await;
    }
}
