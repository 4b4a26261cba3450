//! The operations of the token store: reads of a database snapshot, and edits within a write batch.

use std::collections::BTreeSet;

use fjall::Snapshot;

use super::database::Database;
use super::keys::{fingerprint_key, object_key, row_key};
use super::walk::subject_entries;
use super::write_batch::{RequestEdit, indexed_fingerprint};
use sealwire_store::{
    Fingerprint, FoundRow, Group, MapId, ObjectChanges as _, Reseal, ResealEffect, Row,
    SECONDS_MAX, StoreError, SubjectId, TokenId, Written, check_time, fits_scan_bytes,
};

pub(super) fn write_group(
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

    let mut results = Vec::with_capacity(group.rows.len());
    let mut taken = Vec::new();
    for (index, row) in group.rows.into_iter().enumerate() {
        let holder = row
            .fingerprint
            .map(|fingerprint| edit.fingerprint_holder(map, fingerprint))
            .transpose()?
            .flatten();
        match holder {
            Some(holder) if holder.is_live(now) => {
                results.push(Some(holder));
                continue;
            }
            Some(holder) => archive_row(edit, now, map, &holder),
            None => {}
        }

        if edit.row(map, row.id)?.is_some() {
            taken.push(index);
        } else {
            edit.put_row(map, None, row);
        }

        results.push(None);
    }

    if taken.is_empty() {
        return Ok(Written::Done(results));
    }

    edit.discard_changes();
    Ok(Written::Taken(taken))
}

pub(super) fn archive_row(edit: &mut RequestEdit<'_>, now: u64, map: MapId, row: &Row) {
    edit.put_row(
        map,
        Some(row),
        Row {
            fingerprint: None,
            archived: Some(now.min(SECONDS_MAX)),
            ..row.clone()
        },
    );
}

pub(super) fn delete_rows(
    edit: &mut RequestEdit<'_>,
    map: MapId,
    ids: &[TokenId],
) -> Result<Vec<bool>, StoreError> {
    let rows = ids
        .iter()
        .map(|id| edit.row(map, *id))
        .collect::<Result<Vec<_>, _>>()?;
    rows.iter()
        .flatten()
        .for_each(|row| edit.remove_row(map, row));
    Ok(rows.iter().map(Option::is_some).collect())
}

pub(super) fn expire_rows(
    edit: &mut RequestEdit<'_>,
    now: u64,
    map: MapId,
    ids: &[TokenId],
    expires: Option<u64>,
) -> Result<Vec<bool>, StoreError> {
    expires.map_or(Ok(()), check_time)?;
    let rows = ids
        .iter()
        .map(|id: &TokenId| Ok(edit.row(map, *id)?.filter(|row| row.is_live(now))))
        .collect::<Result<Vec<_>, StoreError>>()?;
    for row in rows.iter().flatten() {
        edit.put_row(
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

pub(super) fn reseal_rows(
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
            edit.put_row(
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

pub(super) fn import_rows(
    edit: &mut RequestEdit<'_>,
    rows: Vec<(MapId, Row)>,
) -> Result<(), StoreError> {
    rows.iter().try_for_each(|(_, row)| row.check_times())?;
    // First frees the fingerprints of replaced rows, because other new rows can have the same
    // fingerprints.
    for (map, row) in &rows {
        if let Some(old) = edit.row(*map, row.id)? {
            edit.remove_row(*map, &old);
        }
    }

    for (map, row) in rows {
        let holder = indexed_fingerprint(&row)
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

        edit.put_row(map, None, row);
    }

    Ok(())
}

/// Returns a page of the rows of an app's subject after `after`.
pub(super) fn subject_page(
    database: &Database,
    (app, subject): (u32, SubjectId),
    after: Option<(MapId, TokenId)>,
    limit: usize,
) -> Result<Vec<(MapId, Row)>, StoreError> {
    let at = database.snapshot();
    let mut page = Vec::new();
    let mut fits = fits_scan_bytes();
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
        let row = database.find_row(&at, &row_key(map, TokenId(id)))?;
        let row =
            row.ok_or_else(|| database.damage("the index of subjects contains a missing row"))?;
        if !fits(row.sealed.len()) {
            break;
        }
        page.push((map, row));
    }

    Ok(page)
}

/// Removes the rows of `rows` that still belong to the subject under a key version below `version`.
/// Returns their number.
pub(super) fn erase_rows(
    edit: &mut RequestEdit<'_>,
    subject: SubjectId,
    version: u64,
    rows: &[(MapId, TokenId)],
) -> Result<u64, StoreError> {
    let mut count = 0;
    for (map, id) in rows {
        let Some(row) = edit.row(*map, *id)? else {
            continue;
        };
        if row.subject == Some(subject) && row.subject_version() < version {
            edit.remove_row(*map, &row);
            count += 1;
        }
    }
    Ok(count)
}

pub(super) fn get_rows(
    database: &Database,
    now: u64,
    keys: &[(MapId, TokenId)],
) -> Result<Vec<Option<FoundRow>>, StoreError> {
    let at = database.snapshot();
    keys.iter()
        .map(|(map, id)| live_row(database, &at, now, *map, *id))
        .collect()
}

pub(super) fn find_rows(
    database: &Database,
    now: u64,
    keys: &[(MapId, Fingerprint)],
) -> Result<Vec<Option<FoundRow>>, StoreError> {
    let at = database.snapshot();
    keys.iter()
        .map(|(map, fingerprint): &(MapId, Fingerprint)| {
            let id = database.fingerprint_holder(&at, &fingerprint_key(*map, *fingerprint))?;
            id.map_or(Ok(None), |id| live_row(database, &at, now, *map, id))
        })
        .collect()
}

/// Returns a live row, and the key of its subject. A row counts as absent if the key has another
/// version.
fn live_row(
    database: &Database,
    at: &Snapshot,
    now: u64,
    map: MapId,
    id: TokenId,
) -> Result<Option<FoundRow>, StoreError> {
    let Some(row) = database
        .find_row(at, &row_key(map, id))?
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

    let key = database.find_object(at, &object_key(MapId::of_subjects(map.app), subject.row()))?;
    let key = key.filter(|key| row.has_key(Some(key.version)));
    Ok(key.map(|key| FoundRow {
        row,
        subject_key: Some(key.sealed),
    }))
}
