//! Objects as the groups of a transaction see them: stored objects with the changes of earlier
//! groups.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::sqlstate::damaged;
use sealwire_store::{
    MapId, ObjectChanges, ObjectGroup, ObjectId, ObjectRow, ObjectWrite, StoreError, Term,
};

pub(super) type ObjectKey = (MapId, ObjectId);

/// Names of the objects and unique terms that a transaction needs, sorted.
#[derive(Debug, Default)]
pub(super) struct NeededKeys {
    pub(super) objects: BTreeSet<ObjectKey>,
    /// Objects whose sealed content decides whether they are written.
    pub(super) compared: BTreeSet<ObjectKey>,
    pub(super) unique: BTreeSet<(MapId, Term)>,
}

impl NeededKeys {
    pub(super) fn of_groups(groups: &[&ObjectGroup]) -> Self {
        let mut needed = Self::default();
        for group in groups {
            let subjects = MapId::of_subjects(group.view.map.app);
            needed.objects.extend(
                group
                    .subjects
                    .iter()
                    .map(|claim| (subjects, claim.row_id())),
            );
            for write in &group.writes {
                needed.objects.insert((group.view.map, write.id()));
                if matches!(write, ObjectWrite::Erase { .. }) {
                    needed.compared.insert((group.view.map, write.id()));
                }
                write
                    .row()
                    .into_iter()
                    .for_each(|row| needed.add_terms(group.view.map, row));
            }
        }

        needed
    }

    pub(super) fn of_rows(rows: &[(MapId, ObjectRow)]) -> Self {
        let mut needed = Self::default();
        for (map, row) in rows {
            needed.objects.insert((*map, row.id));
            needed.add_terms(*map, row);
        }
        needed
    }

    fn add_terms(&mut self, map: MapId, row: &ObjectRow) {
        self.unique
            .extend(row.unique.iter().map(|term| (map, *term)));
    }
}

/// Objects and holders of unique terms as they are stored.
#[derive(Debug, Default)]
pub(super) struct StoredObjects {
    /// Locked objects that the transaction names, and holders of unique terms. The sealed content
    /// can be missing: changes of such objects either replace the whole object or keep the content.
    pub(super) objects: HashMap<ObjectKey, ObjectRow>,
    pub(super) holders: HashMap<(MapId, Term), ObjectId>,
}

/// Changes on top of other objects. `None` stands for absence.
#[derive(Debug, Default)]
struct ChangeLayer {
    objects: BTreeMap<ObjectKey, Option<ObjectRow>>,
    holders: HashMap<(MapId, Term), Option<ObjectId>>,
}

/// Stored objects, the changes of earlier groups, and the changes of the current group.
#[derive(Debug)]
pub(super) struct ObjectOverlay<'a> {
    stored: &'a StoredObjects,
    kept: ChangeLayer,
    current: ChangeLayer,
}

impl<'a> ObjectOverlay<'a> {
    pub(super) fn new(stored: &'a StoredObjects) -> Self {
        Self {
            stored,
            kept: ChangeLayer::default(),
            current: ChangeLayer::default(),
        }
    }

    /// Keeps the changes of the current group.
    pub(super) fn keep_changes(&mut self) {
        let ChangeLayer { objects, holders } = std::mem::take(&mut self.current);
        self.kept.objects.extend(objects);
        self.kept.holders.extend(holders);
    }

    /// Discards the changes of the current group.
    pub(super) fn discard_changes(&mut self) {
        self.current = ChangeLayer::default();
    }

    /// Returns the stored and the new state of each changed object, by key. The two states can be
    /// equal.
    pub(super) fn changes(
        &self,
    ) -> impl Iterator<Item = (MapId, Option<&ObjectRow>, Option<&ObjectRow>)> {
        self.kept.objects.iter().map(|(key, new): (&ObjectKey, _)| {
            (key.0, self.stored.objects.get(key), Option::as_ref(new))
        })
    }

    fn find_object(&self, key: &ObjectKey) -> Option<&ObjectRow> {
        let changed = self
            .current
            .objects
            .get(key)
            .or_else(|| self.kept.objects.get(key));
        changed.map_or_else(|| self.stored.objects.get(key), Option::as_ref)
    }

    /// Returns true if an earlier attempt, whose response was lost, seems to have written the
    /// group. `later` has the writes of later groups of that attempt, which can have changed the
    /// objects again.
    ///
    /// A stored row that is equal to the byte counts as written by that attempt. An absent object
    /// counts as deleted by that attempt. If the object was absent before, the result is still the
    /// one that the client requested.
    pub(super) fn is_written(&self, group: &ObjectGroup, later: &[&ObjectGroup]) -> bool {
        let map = group.view.map;
        !group.writes.is_empty()
            && group.writes.iter().all(|write| {
                let later: Vec<&ObjectWrite> = later
                    .iter()
                    .filter(|group| group.view.map == map)
                    .flat_map(|group| &group.writes)
                    .filter(|later| later.id() == write.id())
                    .collect();
                match self.find_object(&(map, write.id())) {
                    Some(found) => is_written_as(write, found, &later),
                    None => is_absent_after(write, &later),
                }
            })
    }
}

/// Returns true if the write, followed by the later writes, can result in an absent object.
fn is_absent_after(write: &ObjectWrite, later: &[&ObjectWrite]) -> bool {
    match write {
        ObjectWrite::Delete { .. } | ObjectWrite::Erase { .. } => true,
        ObjectWrite::Add(_) => false,
        ObjectWrite::Replace(_) | ObjectWrite::Expire { .. } => later
            .iter()
            .any(|write| matches!(write, ObjectWrite::Delete { .. })),
    }
}

/// Returns true if the write, followed by the later writes, can result in the found object.
fn is_written_as(write: &ObjectWrite, found: &ObjectRow, later: &[&ObjectWrite]) -> bool {
    match write {
        ObjectWrite::Delete { .. } => false,
        ObjectWrite::Erase { sealed, .. } => *sealed != found.sealed,
        ObjectWrite::Expire { expires, .. } => {
            *expires == found.expires || has_become(found, later)
        }
        ObjectWrite::Add(row) | ObjectWrite::Replace(row) => {
            is_stored(row, found, later) || has_become(found, later)
        }
    }
}

/// Returns true if one of the writes results in the found object.
fn has_become(found: &ObjectRow, writes: &[&ObjectWrite]) -> bool {
    writes.iter().enumerate().any(|(at, write)| match write {
        ObjectWrite::Replace(row) => is_stored(row, found, &writes[at + 1..]),
        _ => false,
    })
}

/// Returns true if a written row equals the stored row. Ignores an expiry time that a later write
/// has set.
fn is_stored(row: &ObjectRow, found: &ObjectRow, later: &[&ObjectWrite]) -> bool {
    if row == found {
        return true;
    }

    let has_later_expiry = later.iter().any(|write| match write {
        ObjectWrite::Expire { expires, .. } => *expires == found.expires,
        _ => false,
    });
    has_later_expiry
        && ObjectRow {
            expires: found.expires,
            ..row.clone()
        } == *found
}

impl ObjectChanges for ObjectOverlay<'_> {
    fn object(&self, map: MapId, id: ObjectId) -> Result<Option<ObjectRow>, StoreError> {
        Ok(self.find_object(&(map, id)).cloned())
    }

    fn holder(&self, map: MapId, term: Term) -> Result<Option<ObjectRow>, StoreError> {
        let key = (map, term);
        let changed = self
            .current
            .holders
            .get(&key)
            .or_else(|| self.kept.holders.get(&key));
        let id = changed.map_or_else(|| self.stored.holders.get(&key), Option::as_ref);
        let Some(id) = id else { return Ok(None) };
        match self.find_object(&(map, *id)) {
            Some(row) if row.archived.is_none() && row.unique.contains(&term) => {
                Ok(Some(row.clone()))
            }
            _ => Err(damaged(
                "a unique term leads to an object that does not hold it",
            )),
        }
    }

    fn put_object(&mut self, map: MapId, old: Option<&ObjectRow>, new: ObjectRow) {
        let freed = old
            .into_iter()
            .flat_map(|old| &old.unique)
            .map(|term| ((map, *term), None));
        self.current.holders.extend(freed);
        self.current
            .holders
            .extend(new.unique.iter().map(|term| ((map, *term), Some(new.id))));
        self.current.objects.insert((map, new.id), Some(new));
    }

    fn remove_object(&mut self, map: MapId, old: &ObjectRow) {
        self.current
            .holders
            .extend(old.unique.iter().map(|term| ((map, *term), None)));
        self.current.objects.insert((map, old.id), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_store::contract_tests::objects::{id, object, term, unique};
    use sealwire_store::{MapView, ObjectsWritten, apply_group};

    const MAP: MapId = MapId {
        app: 1,
        collection: 1,
    };

    fn stored(rows: &[ObjectRow]) -> StoredObjects {
        let mut stored = StoredObjects::default();
        for row in rows {
            stored
                .holders
                .extend(row.unique.iter().map(|term| ((MAP, *term), row.id)));
            stored.objects.insert((MAP, row.id), row.clone());
        }
        stored
    }

    fn group(writes: Vec<ObjectWrite>) -> ObjectGroup {
        ObjectGroup {
            view: MapView {
                map: MAP,
                generation: 1,
            },
            writes,
            subjects: Vec::new(),
        }
    }

    fn add(row: &ObjectRow) -> ObjectWrite {
        ObjectWrite::Add(row.clone())
    }

    fn replace(row: &ObjectRow) -> ObjectWrite {
        ObjectWrite::Replace(row.clone())
    }

    fn delete(n: u128) -> ObjectWrite {
        ObjectWrite::Delete {
            id: id(n),
            version: None,
        }
    }

    fn expire(n: u128, expires: Option<u64>) -> ObjectWrite {
        ObjectWrite::Expire { id: id(n), expires }
    }

    #[test]
    fn discarded_groups_change_nothing() {
        let stored = stored(&[unique(1, &[(1, 1)])]);
        let mut overlay = ObjectOverlay::new(&stored);
        let takes = group(vec![delete(1), add(&unique(2, &[(1, 1)]))]);
        assert_eq!(
            apply_group(&mut overlay, 1, &takes).unwrap(),
            ObjectsWritten::Done
        );
        overlay.discard_changes();
        assert_eq!(overlay.changes().count(), 0);
        assert_eq!(overlay.holder(MAP, term(1, 1)).unwrap().unwrap().id, id(1));
        assert_eq!(
            apply_group(&mut overlay, 1, &takes).unwrap(),
            ObjectsWritten::Done
        );
        overlay.keep_changes();
        assert_eq!(overlay.holder(MAP, term(1, 1)).unwrap().unwrap().id, id(2));
        let states: Vec<_> = overlay
            .changes()
            .map(|(_, old, new)| (old.is_some(), new.is_some()))
            .collect();
        assert_eq!(states, [(true, false), (false, true)]);
    }

    #[test]
    fn a_term_without_its_object_is_damage() {
        let row = unique(1, &[(1, 1)]);
        let broken = [
            None,
            Some(object(1)),
            Some(ObjectRow {
                archived: Some(1),
                ..row.clone()
            }),
        ];
        for object in broken {
            let mut stored = stored(std::slice::from_ref(&row));
            match &object {
                Some(object) => stored.objects.insert((MAP, id(1)), object.clone()),
                None => stored.objects.remove(&(MAP, id(1))),
            };
            let error = ObjectOverlay::new(&stored)
                .holder(MAP, term(1, 1))
                .unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{object:?}");
        }
    }

    /// Checks the result for a stored object, a group, and the writes of a later group.
    fn check(
        found: Option<&ObjectRow>,
        writes: Vec<ObjectWrite>,
        later: Vec<ObjectWrite>,
        expected: bool,
    ) {
        let stored = stored(&found.cloned().into_iter().collect::<Vec<_>>());
        let overlay = ObjectOverlay::new(&stored);
        let (first, later) = (group(writes), group(later));
        assert_eq!(
            overlay.is_written(&first, &[&later]),
            expected,
            "{found:?} {first:?} {later:?}"
        );
    }

    #[test]
    fn writes_of_a_lost_attempt_are_recognized() {
        let one = object(1);
        let two = ObjectRow {
            version: 2,
            sealed: "2".into(),
            ..one.clone()
        };
        let short = ObjectRow {
            expires: Some(9),
            ..two.clone()
        };
        let other = ObjectRow {
            sealed: "other".into(),
            ..one.clone()
        };
        check(Some(&one), vec![add(&one)], vec![], true);
        check(Some(&other), vec![add(&one)], vec![], false);
        check(None, vec![add(&one)], vec![], false);
        // The later group applies to the object only after it was added again.
        check(None, vec![add(&one)], vec![delete(1)], false);
        check(Some(&two), vec![add(&one)], vec![replace(&two)], true);
        check(Some(&two), vec![add(&one)], vec![delete(1)], false);
        check(Some(&two), vec![add(&other)], vec![], false);
        check(Some(&two), vec![replace(&two)], vec![], true);
        check(Some(&one), vec![replace(&two)], vec![], false);
        check(None, vec![replace(&two)], vec![], false);
        check(None, vec![replace(&two)], vec![delete(1)], true);
        check(
            Some(&short),
            vec![replace(&two)],
            vec![expire(1, Some(9))],
            true,
        );
        check(
            Some(&short),
            vec![replace(&two)],
            vec![expire(1, Some(8))],
            false,
        );
        check(
            Some(&short),
            vec![add(&one)],
            vec![replace(&two), expire(1, Some(9))],
            true,
        );
        check(Some(&short), vec![expire(1, Some(9))], vec![], true);
        check(Some(&short), vec![expire(1, None)], vec![], false);
        check(None, vec![expire(1, None)], vec![], false);
        check(None, vec![delete(1)], vec![], true);
        check(Some(&one), vec![delete(1)], vec![], false);
        check(Some(&one), vec![add(&one), delete(2)], vec![], true);
        check(Some(&one), vec![add(&one), add(&object(2))], vec![], false);
        check(Some(&one), vec![], vec![], false);
    }
}
