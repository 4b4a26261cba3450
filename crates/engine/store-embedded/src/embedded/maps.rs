//! The operations of the token store: reads of a database snapshot, and edits within a write batch.

use std::collections::BTreeSet;

use fjall::Snapshot;

use super::database::Database;
use super::keys::{fingerprint_key, object_key, row_key};
use super::walk::subject_entries;
use super::write_batch::{RequestEdit, indexed};
use sealwire_store::{
    Fingerprint, FoundRow, Group, MapId, ObjectChanges as _, Reseal, ResealEffect, Row,
    SECONDS_MAX, StoreError, SubjectId, TokenId, Written, check_time, fits_scan_bytes,
};

pub(super) fn write(
    edit: &mut RequestEdit<'_>,
    now: u64,
    group: Group,
) -> Result<Written, StoreError> {
    group.rows.iter().try_for_each(Row::check_times)?;
    let map = group.map;
    let claims: BTreeSet<(SubjectId, u64)> = group.rows.iter().filter_map(Row::claim).collect();
    for (subject, version) in claims {
        let key = edit.object(MapId::of_subjects(map.app), subject.row())?;
        if version % 2 == 0 || key.is_none_or(|key| key.version != version) {
            return Ok(Written::SubjectsChanged);
        }
    }
    let (mut answers, mut taken) = (Vec::with_capacity(group.rows.len()), Vec::new());
    for (index, row) in group.rows.into_iter().enumerate() {
        let holder = row
            .fingerprint
            .map(|fingerprint| edit.fingerprint_holder(map, fingerprint))
            .transpose()?
            .flatten();
        match holder {
            Some(holder) if holder.is_live(now) => {
                answers.push(Some(holder));
                continue;
            }
            Some(holder) => archive(edit, now, map, &holder),
            None => {}
        }
        if edit.row(map, row.id)?.is_some() {
            taken.push(index);
        } else {
            edit.put(map, None, row);
        }
        answers.push(None);
    }
    if taken.is_empty() {
        return Ok(Written::Done(answers));
    }
    edit.forget();
    Ok(Written::Taken(taken))
}

pub(super) fn archive(edit: &mut RequestEdit<'_>, now: u64, map: MapId, row: &Row) {
    edit.put(
        map,
        Some(row),
        Row {
            fingerprint: None,
            archived: Some(now.min(SECONDS_MAX)),
            ..row.clone()
        },
    );
}

pub(super) fn delete(
    edit: &mut RequestEdit<'_>,
    map: MapId,
    ids: &[TokenId],
) -> Result<Vec<bool>, StoreError> {
    let rows = ids
        .iter()
        .map(|id| edit.row(map, *id))
        .collect::<Result<Vec<_>, _>>()?;
    rows.iter().flatten().for_each(|row| edit.remove(map, row));
    Ok(rows.iter().map(Option::is_some).collect())
}

pub(super) fn expire(
    edit: &mut RequestEdit<'_>,
    now: u64,
    map: MapId,
    ids: &[TokenId],
    expires: Option<u64>,
) -> Result<Vec<bool>, StoreError> {
    expires.map_or(Ok(()), check_time)?;
    let live = |id: &TokenId| Ok(edit.row(map, *id)?.filter(|row| row.is_live(now)));
    let rows = ids
        .iter()
        .map(live)
        .collect::<Result<Vec<_>, StoreError>>()?;
    for row in rows.iter().flatten() {
        edit.put(
            map,
            Some(row),
            Row {
                expires,
                ..row.clone()
            },
        );
    }
    Ok(rows.iter().map(Option::is_some).collect())
}

pub(super) fn reseal(
    edit: &mut RequestEdit<'_>,
    map: MapId,
    rows: &[Reseal<TokenId>],
) -> Result<Vec<bool>, StoreError> {
    let mut resealed = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(stored) = edit.row(map, row.id)? else {
            resealed.push(false);
            continue;
        };
        let effect = row.effect(&stored.sealed);
        if effect == Some(ResealEffect::Replace) {
            edit.put(
                map,
                Some(&stored),
                Row {
                    sealed: row.new.clone(),
                    ..stored.clone()
                },
            );
        }
        resealed.push(effect.is_some());
    }
    Ok(resealed)
}

pub(super) fn put(edit: &mut RequestEdit<'_>, rows: Vec<(MapId, Row)>) -> Result<(), StoreError> {
    rows.iter().try_for_each(|(_, row)| row.check_times())?;
    // First frees the fingerprints of replaced rows, because other new rows can have the same
    // fingerprints.
    for (map, row) in &rows {
        if let Some(old) = edit.row(*map, row.id)? {
            edit.remove(*map, &old);
        }
    }
    for (map, row) in rows {
        let holder = indexed(&row)
            .map(|fingerprint| edit.fingerprint_holder(map, fingerprint))
            .transpose()?
            .flatten();
        if holder.is_some() {
            let what = "two rows of a map have one fingerprint".to_owned();
            return Err(StoreError::Damaged {
                place: "rows to put".to_owned(),
                what,
            });
        }
        edit.put(map, None, row);
    }
    Ok(())
}

/// Returns a page of the rows of an app's subject after `after`.
pub(super) fn of_subject(
    database: &Database,
    (app, subject): (u32, SubjectId),
    after: Option<(MapId, TokenId)>,
    limit: usize,
) -> Result<Vec<(MapId, Row)>, StoreError> {
    let at = database.snapshot();
    let (mut page, mut fits) = (Vec::new(), fits_scan_bytes());
    let after = after.map(|(map, id)| (map, id.0));
    for entry in subject_entries(
        database,
        &database.token_subjects,
        &at,
        (app, subject),
        after,
        limit,
    ) {
        let (map, id) = entry?;
        let row = database.row(&at, &row_key(map, TokenId(id)))?;
        let row =
            row.ok_or_else(|| database.damaged("a subject leads to a row that is not there"))?;
        if !fits(row.sealed.len()) {
            break;
        }
        page.push((map, row));
    }
    Ok(page)
}

/// Removes the rows of `rows` that still belong to the subject under a key version below `version`.
/// Returns their number.
pub(super) fn erase(
    edit: &mut RequestEdit<'_>,
    subject: SubjectId,
    version: u64,
    rows: &[(MapId, TokenId)],
) -> Result<u64, StoreError> {
    let mut count = 0;
    for (map, id) in rows {
        let is_due = |row: &Row| row.subject == Some(subject) && row.subject_version() < version;
        let Some(row) = edit.row(*map, *id)?.filter(is_due) else {
            continue;
        };
        edit.remove(*map, &row);
        count += 1;
    }
    Ok(count)
}

pub(super) fn get(
    database: &Database,
    now: u64,
    keys: &[(MapId, TokenId)],
) -> Result<Vec<Option<FoundRow>>, StoreError> {
    let at = database.snapshot();
    keys.iter()
        .map(|(map, id)| live(database, &at, now, *map, *id))
        .collect()
}

pub(super) fn find(
    database: &Database,
    now: u64,
    keys: &[(MapId, Fingerprint)],
) -> Result<Vec<Option<FoundRow>>, StoreError> {
    let at = database.snapshot();
    let find = |(map, fingerprint): &(MapId, Fingerprint)| {
        let id = database.holder(&at, &fingerprint_key(*map, *fingerprint))?;
        id.map_or(Ok(None), |id| live(database, &at, now, *map, id))
    };
    keys.iter().map(find).collect()
}

/// Returns a live row, and the key of its subject. A row counts as absent if the key has another
/// version.
fn live(
    database: &Database,
    at: &Snapshot,
    now: u64,
    map: MapId,
    id: TokenId,
) -> Result<Option<FoundRow>, StoreError> {
    let Some(row) = database
        .row(at, &row_key(map, id))?
        .filter(|row| row.is_live(now))
    else {
        return Ok(None);
    };
    let Some(subject) = row.subject else {
        return Ok(Some(FoundRow {
            row,
            subject_key: None,
        }));
    };
    let key = database.object(at, &object_key(MapId::of_subjects(map.app), subject.row()))?;
    let key = key.filter(|key| row.has_key(Some(key.version)));
    Ok(key.map(|key| FoundRow {
        row,
        subject_key: Some(key.sealed),
    }))
}
