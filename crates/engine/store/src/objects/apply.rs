//! Applies the writes of a group to objects in memory. All stores use this definition of the
//! semantics of writes.

use std::collections::HashSet;

use super::{
    ObjectConflict, ObjectGroup, ObjectId, ObjectRow, ObjectWrite, ObjectsWritten, SubjectClaim,
    Term,
};
use crate::tokens::{SECONDS_MAX, check_time};
use crate::{MapId, StoreError, Sweep};

/// Objects and holders of unique terms as a group sees them: the stored state with the changes of
/// earlier writes.
pub trait ObjectChanges {
    /// Returns an object in any state.
    ///
    /// # Errors
    /// Any error of the store.
    fn object(&self, map: MapId, id: ObjectId) -> Result<Option<ObjectRow>, StoreError>;

    /// Returns the object that holds a unique term, also if it has expired.
    ///
    /// # Errors
    /// Any error of the store; [`StoreError::Damaged`] if that object is missing.
    fn holder(&self, map: MapId, term: Term) -> Result<Option<ObjectRow>, StoreError>;

    /// Writes an object with its terms, in place of `old` with its terms.
    fn put_object(&mut self, map: MapId, old: Option<&ObjectRow>, new: ObjectRow);

    /// Removes an object with its terms.
    fn remove_object(&mut self, map: MapId, old: &ObjectRow);
}

/// Makes the writes of a group in sequence. The caller discards all changes of the group unless the
/// result is [`ObjectsWritten::Done`]. The caller has checked the fence.
///
/// An expired object that holds a unique term of a new row is archived.
///
/// # Errors
/// Any error of `changes`; [`StoreError::TimeOutOfRange`]; [`StoreError::Invalid`] for two writes
/// of one id, two claims of one subject, or an archived row. Also for a row whose creation time
/// differs from that of the replaced object.
pub fn apply_group(
    changes: &mut impl ObjectChanges,
    now: u64,
    group: &ObjectGroup,
) -> Result<ObjectsWritten, StoreError> {
    check(group)?;
    for claim in &group.subjects {
        if !apply_claim(changes, MapId::of_subjects(group.view.map.app), claim)? {
            return Ok(ObjectsWritten::SubjectsChanged);
        }
    }

    let mut conflicts = Vec::new();
    for (position, write) in group.writes.iter().enumerate() {
        if let Some(conflict) = apply(changes, now, group.view.map, write)? {
            conflicts.push((position, conflict));
        }
    }

    Ok(if conflicts.is_empty() {
        ObjectsWritten::Done
    } else {
        ObjectsWritten::Conflicts(conflicts)
    })
}

/// Returns false if the claim does not hold.
fn apply_claim(
    changes: &mut impl ObjectChanges,
    map: MapId,
    claim: &SubjectClaim,
) -> Result<bool, StoreError> {
    let found = changes.object(map, claim.row_id())?;
    let version = found.as_ref().map_or(0, |row| row.version);
    match claim {
        SubjectClaim::Current {
            version: claimed, ..
        } => Ok(version == *claimed && version % 2 == 1),
        SubjectClaim::New(row) if version % 2 == 0 && row.version == version + 1 => {
            changes.put_object(map, found.as_ref(), row.clone());
            Ok(true)
        }
        SubjectClaim::Erased(row) if version % 2 == 1 && row.version == version + 1 => {
            changes.put_object(map, found.as_ref(), row.clone());
            Ok(true)
        }
        SubjectClaim::New(_) | SubjectClaim::Erased(_) => Ok(false),
    }
}

fn check(group: &ObjectGroup) -> Result<(), StoreError> {
    let mut ids = HashSet::with_capacity(group.writes.len());
    if !group.writes.iter().all(|write| ids.insert(write.id())) {
        return Err(StoreError::Invalid(
            "a request names an object twice".to_owned(),
        ));
    }

    for write in &group.writes {
        match write {
            ObjectWrite::Add(row) | ObjectWrite::Replace(row) => {
                row.check_times()?;
                if row.archived.is_some() {
                    return Err(StoreError::Invalid(
                        "an archived object cannot be written".to_owned(),
                    ));
                }
            }
            ObjectWrite::Expire { expires, .. } => expires.map_or(Ok(()), check_time)?,
            ObjectWrite::Delete { .. } | ObjectWrite::Erase { .. } => {}
        }
    }

    let mut subjects = HashSet::with_capacity(group.subjects.len());
    for claim in &group.subjects {
        if !subjects.insert(claim.row_id()) {
            return Err(StoreError::Invalid(
                "a request claims a subject twice".to_owned(),
            ));
        }

        claim.row().map_or(Ok(()), ObjectRow::check_times)?;
    }

    Ok(())
}

fn apply(
    changes: &mut impl ObjectChanges,
    now: u64,
    map: MapId,
    write: &ObjectWrite,
) -> Result<Option<ObjectConflict>, StoreError> {
    let found = changes.object(map, write.id())?;
    if let ObjectWrite::Add(row) = write {
        return match found {
            Some(_) => Ok(Some(ObjectConflict::Exists)),
            None => put(changes, now, map, None, row),
        };
    }

    if let ObjectWrite::Erase { sealed, .. } = write {
        if let Some(old) = found.filter(|row| row.sealed == *sealed) {
            changes.remove_object(map, &old);
        }
        return Ok(None);
    }

    let Some(old) = found.filter(|row| row.is_live(now)) else {
        return Ok(Some(ObjectConflict::Absent));
    };

    let other_version = ObjectConflict::Version { found: old.version };
    match write {
        ObjectWrite::Add(_) | ObjectWrite::Erase { .. } => {}
        ObjectWrite::Replace(row) if old.version.checked_add(1) != Some(row.version) => {
            return Ok(Some(other_version));
        }
        ObjectWrite::Replace(row) if row.created != old.created => {
            return Err(StoreError::Invalid(
                "an object keeps its creation time".to_owned(),
            ));
        }
        ObjectWrite::Replace(row) => return put(changes, now, map, Some(&old), row),
        ObjectWrite::Delete { version, .. }
            if version.is_some_and(|version| version != old.version) =>
        {
            return Ok(Some(other_version));
        }
        ObjectWrite::Delete { .. } => changes.remove_object(map, &old),
        ObjectWrite::Expire { expires, .. } => {
            changes.put_object(
                map,
                Some(&old),
                ObjectRow {
                    expires: *expires,
                    ..old.clone()
                },
            );
        }
    }

    Ok(None)
}

/// Writes a row, unless another live object holds one of its unique terms.
fn put(
    changes: &mut impl ObjectChanges,
    now: u64,
    map: MapId,
    old: Option<&ObjectRow>,
    row: &ObjectRow,
) -> Result<Option<ObjectConflict>, StoreError> {
    let mut expired = Vec::new();
    for term in &row.unique {
        match changes.holder(map, *term)? {
            Some(holder) if holder.id == row.id => {}
            Some(holder) if holder.is_live(now) => {
                return Ok(Some(ObjectConflict::Unique { index: term.index }));
            }
            // An object can hold several of the terms.
            Some(holder)
                if expired
                    .iter()
                    .any(|other: &ObjectRow| other.id == holder.id) => {}
            Some(holder) => expired.push(holder),
            None => {}
        }
    }

    for holder in expired {
        let archived = archived(&holder, now);
        changes.put_object(map, Some(&holder), archived);
    }

    changes.put_object(map, old, row.clone());
    Ok(None)
}

/// Returns the archived form of the object.
#[must_use]
pub fn archived(row: &ObjectRow, now: u64) -> ObjectRow {
    ObjectRow {
        archived: Some(now.min(SECONDS_MAX)),
        unique: Vec::new(),
        terms: Vec::new(),
        ..row.clone()
    }
}

/// Writes rows as [`ObjectStore::put_objects`](super::ObjectStore::put_objects) specifies. If
/// several rows have the same id, the last row wins. The caller discards all changes if an error is
/// returned.
///
/// # Errors
/// Any error of `changes`; [`StoreError::TimeOutOfRange`]; [`StoreError::Damaged`] if two objects
/// of a map hold the same unique term, or if an archived object has terms.
pub fn apply_put(
    changes: &mut impl ObjectChanges,
    rows: &[(MapId, ObjectRow)],
) -> Result<(), StoreError> {
    for (_, row) in rows {
        row.check_times()?;
        if row.archived.is_some() && !(row.unique.is_empty() && row.terms.is_empty()) {
            return Err(damaged_input("an archived object has terms"));
        }
    }

    // First frees the unique terms of replaced objects, because other new objects can hold these
    // terms.
    for (map, row) in rows {
        if let Some(old) = changes.object(*map, row.id)? {
            changes.remove_object(*map, &old);
        }
    }

    for (map, row) in rows {
        for term in &row.unique {
            if changes
                .holder(*map, *term)?
                .is_some_and(|holder| holder.id != row.id)
            {
                return Err(damaged_input("two objects of a map hold one unique term"));
            }
        }

        let old = changes.object(*map, row.id)?;
        changes.put_object(*map, old.as_ref(), row.clone());
    }

    Ok(())
}

/// Archives or removes an object that is due for `sweep`.
pub fn apply_sweep(
    changes: &mut impl ObjectChanges,
    now: u64,
    map: MapId,
    sweep: Sweep,
    row: &ObjectRow,
) {
    match sweep {
        Sweep::Archive { .. } => changes.put_object(map, Some(row), archived(row, now)),
        Sweep::Prune { .. } | Sweep::Erase => changes.remove_object(map, row),
    }
}

fn damaged_input(what: &str) -> StoreError {
    StoreError::Damaged {
        place: "objects to put".to_owned(),
        what: what.to_owned(),
    }
}
