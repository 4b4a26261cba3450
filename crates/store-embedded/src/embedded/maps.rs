//! The operations of the token store: reads of a database snapshot, and edits within a write batch.

use std::ops::Bound;

use fjall::{Readable as _, Snapshot};

use super::database::{Database, Key, fingerprint_key, row_key};
use super::write_batch::{RequestEdit, indexed};
use sealwire_store::{
    Filter, Fingerprint, Group, MapId, Page, Row, SECONDS_MAX, StoreError, TokenId, Written, check_time, fits_scan,
};

/// Maximum number of rows that a page of a walk looks at.
const LOOKED_MAX: usize = 10_000;

pub(super) fn write(edit: &mut RequestEdit<'_>, now: u64, group: Group) -> Result<Written, StoreError> {
    group.rows.iter().try_for_each(Row::check_times)?;
    let map = group.map;
    let (mut answers, mut taken) = (Vec::with_capacity(group.rows.len()), Vec::new());
    for (index, row) in group.rows.into_iter().enumerate() {
        let holder = row.fingerprint.map(|fingerprint| edit.holder(map, fingerprint)).transpose()?.flatten();
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
    edit.put(map, Some(row), Row { fingerprint: None, archived: Some(now.min(SECONDS_MAX)), ..row.clone() });
}

pub(super) fn delete(edit: &mut RequestEdit<'_>, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
    let rows = ids.iter().map(|id| edit.row(map, *id)).collect::<Result<Vec<_>, _>>()?;
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
    let rows = ids.iter().map(live).collect::<Result<Vec<_>, StoreError>>()?;
    for row in rows.iter().flatten() {
        edit.put(map, Some(row), Row { expires, ..row.clone() });
    }
    Ok(rows.iter().map(Option::is_some).collect())
}

pub(super) fn put(edit: &mut RequestEdit<'_>, rows: Vec<(MapId, Row)>) -> Result<(), StoreError> {
    rows.iter().try_for_each(|(_, row)| row.check_times())?;
    // First frees the fingerprints of replaced rows, because other new rows can have them.
    for (map, row) in &rows {
        if let Some(old) = edit.row(*map, row.id)? {
            edit.remove(*map, &old);
        }
    }
    for (map, row) in rows {
        let holder = indexed(&row).map(|fingerprint| edit.holder(map, fingerprint)).transpose()?.flatten();
        if holder.is_some() {
            let what = "two rows of a map have one fingerprint".to_owned();
            return Err(StoreError::Damaged { place: "rows to put".to_owned(), what });
        }
        edit.put(map, None, row);
    }
    Ok(())
}

pub(super) fn get(database: &Database, now: u64, keys: &[(MapId, TokenId)]) -> Result<Vec<Option<Row>>, StoreError> {
    let at = database.snapshot();
    keys.iter().map(|(map, id)| live(database, &at, now, *map, *id)).collect()
}

pub(super) fn find(
    database: &Database,
    now: u64,
    keys: &[(MapId, Fingerprint)],
) -> Result<Vec<Option<Row>>, StoreError> {
    let at = database.snapshot();
    let find = |(map, fingerprint): &(MapId, Fingerprint)| {
        let id = database.holder(&at, &fingerprint_key(*map, *fingerprint))?;
        id.map_or(Ok(None), |id| live(database, &at, now, *map, id))
    };
    keys.iter().map(find).collect()
}

fn live(database: &Database, at: &Snapshot, now: u64, map: MapId, id: TokenId) -> Result<Option<Row>, StoreError> {
    Ok(database.row(at, &row_key(map, id))?.filter(|row| row.is_live(now)))
}

pub(super) fn list(
    database: &Database,
    map: MapId,
    filter: &Filter,
    after: Option<TokenId>,
    limit: usize,
) -> Result<Page<Vec<Row>>, StoreError> {
    walk(database, map, after, (limit, LOOKED_MAX), |row| filter.lets_through(row))
}

/// Returns the wanted rows of a map that follow `after`. Stops at a maximum of found rows, or of rows looked at.
pub(super) fn walk(
    database: &Database,
    map: MapId,
    after: Option<TokenId>,
    (found_max, looked_max): (usize, usize),
    wanted: impl Fn(&Row) -> bool,
) -> Result<Page<Vec<Row>>, StoreError> {
    let first = after.map_or(Bound::Included(row_key(map, TokenId([0; 16]))), |id| Bound::Excluded(row_key(map, id)));
    let last = Bound::Included(row_key(map, TokenId([0xff; 16])));
    let (mut found, mut at) = (Vec::new(), None);
    for (looked, entry) in database.snapshot().range(&database.rows, (first, last)).enumerate() {
        if found.len() >= found_max.max(1) || looked >= looked_max.clamp(1, LOOKED_MAX) {
            return Ok(Page { found, next: at });
        }
        let (key, value) = entry.into_inner().map_err(|error| database.failed(error))?;
        let (_, row) = database.decoded(&key, &value)?;
        at = Some(row.id);
        if wanted(&row) {
            found.push(row);
        }
    }
    Ok(Page { found, next: None })
}

/// Returns the first map behind `after` that has a row.
pub(super) fn next_map(database: &Database, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
    let first = after.map_or(Bound::Unbounded, |map| Bound::Excluded(row_key(map, TokenId([0xff; 16]))));
    let mut rows = database.snapshot().range::<Key, _>(&database.rows, (first, Bound::Unbounded));
    let Some(entry) = rows.next() else { return Ok(None) };
    let (key, value) = entry.into_inner().map_err(|error| database.failed(error))?;
    Ok(Some(database.decoded(&key, &value)?.0))
}

pub(super) fn scan(
    database: &Database,
    after: Option<(MapId, TokenId)>,
    limit: usize,
) -> Result<Vec<(MapId, Row)>, StoreError> {
    let first = after.map_or(Bound::Unbounded, |(map, id)| Bound::Excluded(row_key(map, id)));
    let rows = database.snapshot().range::<Key, _>(&database.rows, (first, Bound::Unbounded));
    let (mut page, mut fits) = (Vec::new(), fits_scan());
    for entry in rows.take(limit.min(LOOKED_MAX)) {
        let (key, value) = entry.into_inner().map_err(|error| database.failed(error))?;
        let (map, row) = database.decoded(&key, &value)?;
        if !fits(&row) {
            break;
        }
        page.push((map, row));
    }
    Ok(page)
}
