//! Token maps in memory: rows in the order of maps and ids, and an index of fingerprints.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{LOOK_MAX, MemoryStore, counted, page};
use crate::tokens::{SECONDS_MAX, check_time, fits_scan};
use crate::{
    Filter, Fingerprint, FoundRow, Group, MapId, Page, Reseal, ResealEffect, Row, StoreError,
    SubjectId, Sweep, TokenId, TokenStore, Written, fit_page,
};

const LAST: TokenId = TokenId([0xff; 16]);

#[derive(Debug, Default)]
pub(super) struct Maps {
    rows: BTreeMap<(MapId, TokenId), Row>,
    /// Fingerprints of the rows that are not archived.
    fingerprints: HashMap<(MapId, Fingerprint), TokenId>,
}

impl Maps {
    /// Writes a group. `has_key`: the key of a row's subject has the version that the row claims.
    fn write(
        &mut self,
        now: u64,
        group: Group,
        has_key: impl Fn(&Row) -> bool,
    ) -> Result<Written, StoreError> {
        group.rows.iter().try_for_each(Row::check_times)?;
        let map = group.map;
        if !group.rows.iter().all(has_key) {
            return Ok(Written::SubjectsChanged);
        }

        let known: Vec<Option<Row>> = group
            .rows
            .iter()
            .map(|row| self.find(now, map, row.fingerprint?))
            .collect();
        let taken: Vec<usize> = group
            .rows
            .iter()
            .zip(&known)
            .enumerate()
            .filter(|(_, (row, known))| known.is_none() && self.rows.contains_key(&(map, row.id)))
            .map(|(at, _)| at)
            .collect();
        if !taken.is_empty() {
            return Ok(Written::Taken(taken));
        }

        for (row, known) in group.rows.into_iter().zip(&known) {
            if known.is_none() {
                if let Some(expired) = row
                    .fingerprint
                    .and_then(|print| self.fingerprints.get(&(map, print)).copied())
                {
                    self.archive(now, map, expired);
                }
                self.set(map, row);
            }
        }

        Ok(Written::Done(known))
    }

    fn find(&self, now: u64, map: MapId, print: Fingerprint) -> Option<Row> {
        let id = self.fingerprints.get(&(map, print))?;
        self.get(now, map, *id)
    }

    fn get(&self, now: u64, map: MapId, id: TokenId) -> Option<Row> {
        self.rows
            .get(&(map, id))
            .filter(|row| row.is_live(now))
            .cloned()
    }

    fn set(&mut self, map: MapId, row: Row) {
        self.remove(map, row.id);
        if let (Some(print), None) = (row.fingerprint, row.archived) {
            self.fingerprints.insert((map, print), row.id);
        }
        self.rows.insert((map, row.id), row);
    }

    fn remove(&mut self, map: MapId, id: TokenId) {
        let row = self.rows.remove(&(map, id));
        if let Some(print) = row
            .filter(|row| row.archived.is_none())
            .and_then(|row| row.fingerprint)
        {
            self.fingerprints.remove(&(map, print));
        }
    }

    fn archive(&mut self, now: u64, map: MapId, id: TokenId) {
        if let Some(row) = self.rows.get_mut(&(map, id)) {
            row.archived = Some(now.min(SECONDS_MAX));
            if let Some(print) = row.fingerprint.take() {
                self.fingerprints.remove(&(map, print));
            }
        }
    }

    /// Returns a page of the rows that follow `after`; see [`page`]. `bounds` are the maximum
    /// numbers of rows to look at and to return.
    fn page(
        &self,
        map: MapId,
        after: Option<TokenId>,
        bounds: (usize, usize),
        wanted: impl Fn(&Row) -> bool,
    ) -> Page<Vec<Row>> {
        let from = after.map_or(Bound::Included((map, TokenId([0; 16]))), |id| {
            Bound::Excluded((map, id))
        });
        page(&self.rows, map, from, bounds, wanted)
    }

    /// Returns the rows of a subject in the maps of an app, after `after`.
    fn of_subject(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
    ) -> impl Iterator<Item = (&(MapId, TokenId), &Row)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.rows.range((from, Bound::Unbounded));
        rows.filter(move |((map, _), row)| map.app == app && row.subject == Some(subject))
    }

    fn put(&mut self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        rows.iter().try_for_each(|(_, row)| row.check_times())?;
        // Checks all index changes first, so that all rows are written or none.
        let mut prints: HashMap<(MapId, Fingerprint), Option<TokenId>> = HashMap::new();
        for (map, row) in rows {
            if let Some(old) = self
                .rows
                .get(&(*map, row.id))
                .and_then(|row| row.fingerprint)
            {
                prints.insert((*map, old), None);
            }
        }

        for (map, row) in rows.iter().filter(|(_, row)| row.archived.is_none()) {
            let Some(print) = row.fingerprint.map(|print| (*map, print)) else {
                continue;
            };
            let holder = prints
                .get(&print)
                .copied()
                .unwrap_or_else(|| self.fingerprints.get(&print).copied());
            if holder.is_some() {
                let what = "two rows of a map have one fingerprint".to_owned();
                return Err(StoreError::Damaged {
                    place: "rows to put".to_owned(),
                    what,
                });
            }

            prints.insert(print, Some(row.id));
        }

        for (map, row) in rows {
            self.set(*map, row.clone());
        }

        Ok(())
    }
}

impl MemoryStore {
    fn maps(&self) -> MutexGuard<'_, Maps> {
        // No code in this file panics between two steps of a change.
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl TokenStore for MemoryStore {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        let objects = self.objects();
        let mut maps = self.maps();
        groups
            .into_iter()
            .map(|group: Group| {
                let app = group.map.app;
                maps.write(now, group, |row| objects.subject_key(app, row).is_some())
            })
            .collect()
    }

    async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        let objects = self.objects();
        let maps = self.maps();
        Ok(keys
            .iter()
            .map(|(map, id)| objects.found(*map, maps.get(now, *map, *id)?))
            .collect())
    }

    async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        let objects = self.objects();
        let maps = self.maps();
        Ok(keys
            .iter()
            .map(|(map, print)| objects.found(*map, maps.find(now, *map, *print)?))
            .collect())
    }

    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        let mut maps = self.maps();
        let found = ids
            .iter()
            .map(|id| maps.rows.contains_key(&(map, *id)))
            .collect();
        ids.iter().for_each(|id| maps.remove(map, *id));
        Ok(found)
    }

    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        expires: Option<u64>,
    ) -> Result<Vec<bool>, StoreError> {
        expires.map_or(Ok(()), check_time)?;
        let mut maps = self.maps();
        let found: Vec<bool> = ids
            .iter()
            .map(|id| {
                maps.rows
                    .get(&(map, *id))
                    .is_some_and(|row| row.is_live(now))
            })
            .collect();
        for (id, _) in ids.iter().zip(&found).filter(|(_, found)| **found) {
            maps.rows
                .entry((map, *id))
                .and_modify(|row| row.expires = expires);
        }

        Ok(found)
    }

    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        Ok(self.maps().page(map, after, (LOOK_MAX, limit), |row| {
            filter.lets_through(row)
        }))
    }

    async fn archive(
        &self,
        now: u64,
        map: MapId,
        expired_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        let mut maps = self.maps();
        let page = maps.page(map, after, (limit, limit), |row| {
            row.is_expired(now, expired_before)
        });
        if !dry_run {
            page.found
                .iter()
                .for_each(|row| maps.archive(now, map, row.id));
        }

        Ok(Page {
            found: page.found.len() as u64,
            next: page.next,
        })
    }

    async fn prune(
        &self,
        map: MapId,
        archived_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        let mut maps = self.maps();
        let page = maps.page(map, after, (limit, limit), |row| {
            row.is_archived(archived_before)
        });
        if !dry_run {
            page.found.iter().for_each(|row| maps.remove(map, row.id));
        }
        Ok(Page {
            found: page.found.len() as u64,
            next: page.next,
        })
    }

    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError> {
        let mut maps = self.maps();
        let page = maps.page(map, after, (limit, limit), |row| sweep.takes(now, row));
        for row in &page.found {
            match sweep {
                Sweep::Archive { .. } => maps.archive(now, map, row.id),
                Sweep::Prune { .. } | Sweep::Erase => maps.remove(map, row.id),
            }
        }

        Ok(Page {
            found: page.found.len() as u64,
            next: page.next,
        })
    }

    async fn count_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError> {
        let Page { found, next } = self.maps().page(map, after, (limit, limit), |_| true);
        Ok(Page {
            found: counted(found.iter().map(Row::key_number)),
            next,
        })
    }

    async fn rows_of_other_keys(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        let page = self.maps().page(map, after, (LOOK_MAX, limit), |row| {
            row.key_number() != number
        });
        Ok(fit_page(page, Row::bytes, |row| row.id))
    }

    async fn reseal(&self, map: MapId, rows: &[Reseal<TokenId>]) -> Result<Vec<bool>, StoreError> {
        let mut maps = self.maps();
        let mut resealed = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(stored) = maps.rows.get_mut(&(map, row.id)) else {
                resealed.push(false);
                continue;
            };
            let effect = row.effect(&stored.sealed);
            if effect == Some(ResealEffect::Replace) {
                stored.sealed = row.new.clone();
            }
            resealed.push(effect.is_some());
        }

        Ok(resealed)
    }

    async fn subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        let maps = self.maps();
        let mut fits = fits_scan();
        let rows = maps
            .of_subject(app, subject, after)
            .take(limit)
            .take_while(|(_, row)| fits(row));
        Ok(rows.map(|((map, _), row)| (*map, row.clone())).collect())
    }

    async fn erase_subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        let mut maps = self.maps();
        let looked: Vec<_> = maps
            .of_subject(app, subject, after)
            .take(limit)
            .map(|(key, row)| (*key, row.subject_version()))
            .collect();
        let next = looked
            .last()
            .filter(|_| looked.len() == limit)
            .map(|(key, _)| *key);
        let erased: Vec<_> = looked
            .into_iter()
            .filter(|(_, of)| *of < version)
            .map(|(key, _)| key)
            .collect();
        erased.iter().for_each(|(map, id)| maps.remove(*map, *id));
        Ok(Page {
            found: erased.len() as u64,
            next,
        })
    }

    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        let from = after.map_or(Bound::Unbounded, |map| Bound::Excluded((map, LAST)));
        let maps = self.maps();
        Ok(maps
            .rows
            .range((from, Bound::Unbounded))
            .next()
            .map(|((map, _), _)| *map))
    }

    async fn scan(
        &self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let maps = self.maps();
        let mut fits = fits_scan();
        let rows = maps
            .rows
            .range((from, Bound::Unbounded))
            .take(limit)
            .take_while(|(_, row)| fits(row));
        Ok(rows.map(|((map, _), row)| (*map, row.clone())).collect())
    }

    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        self.maps().put(rows)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::contract_tests;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn token_contract_holds() {
        contract_tests::token_store(Arc::new(MemoryStore::default())).await;
        contract_tests::token_subjects(Arc::new(MemoryStore::default())).await;
    }
}
