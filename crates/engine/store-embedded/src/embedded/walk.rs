//! Bounded walks over token rows and objects, in the order of maps and ids.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;

use fjall::{Keyspace, Readable as _, Slice, Snapshot};

use super::database::Database;
use super::keys::{Key, map_entry_key, subject_key, subject_row};
use super::maps;
use super::write_batch::RequestEdit;
use sealwire_store::{
    MapId, ObjectChanges as _, ObjectId, ObjectRow, Page, Row, StoreError, SubjectId, Sweep,
    TokenId, apply_sweep, fits_scan_bytes,
};

/// Maximum number of rows that a page of a walk looks at.
pub(super) const LOOKED_MAX: usize = 10_000;
/// Size of the rows, in bytes, after which a page of a walk ends.
const LOOKED_BYTES_MAX: usize = 64 << 20;

/// A kind of row with its own keyspace, whose keys consist of map and id.
pub(super) trait Stored: Sized + Send + 'static {
    type Id: Copy + Send + 'static;

    fn keyspace(database: &Database) -> &Keyspace;
    fn decode(database: &Database, key: &[u8], value: &Slice) -> Result<(MapId, Self), StoreError>;
    fn bytes_of(id: Self::Id) -> [u8; 16];
    fn id(&self) -> Self::Id;
    fn is_due(&self, sweep: Sweep, now: u64) -> bool;
    /// Returns a row with the changes of an edit.
    fn load_from(
        edit: &RequestEdit<'_>,
        map: MapId,
        id: Self::Id,
    ) -> Result<Option<Self>, StoreError>;
    /// Archives or removes a row that is due.
    fn sweep(&self, edit: &mut RequestEdit<'_>, now: u64, map: MapId, sweep: Sweep);
}

impl Stored for Row {
    type Id = TokenId;

    fn keyspace(database: &Database) -> &Keyspace {
        &database.rows
    }

    fn decode(database: &Database, key: &[u8], value: &Slice) -> Result<(MapId, Self), StoreError> {
        database.decode_row(key, value)
    }

    fn bytes_of(id: TokenId) -> [u8; 16] {
        id.0
    }

    fn id(&self) -> TokenId {
        self.id
    }

    fn is_due(&self, sweep: Sweep, now: u64) -> bool {
        sweep.takes(now, self)
    }

    fn load_from(
        edit: &RequestEdit<'_>,
        map: MapId,
        id: TokenId,
    ) -> Result<Option<Self>, StoreError> {
        edit.row(map, id)
    }

    fn sweep(&self, edit: &mut RequestEdit<'_>, now: u64, map: MapId, sweep: Sweep) {
        match sweep {
            Sweep::Archive { .. } => maps::archive_row(edit, now, map, self),
            Sweep::Prune { .. } | Sweep::Erase => edit.remove_row(map, self),
        }
    }
}

impl Stored for ObjectRow {
    type Id = ObjectId;

    fn keyspace(database: &Database) -> &Keyspace {
        &database.objects
    }

    fn decode(database: &Database, key: &[u8], value: &Slice) -> Result<(MapId, Self), StoreError> {
        database.decode_object(key, value)
    }

    fn bytes_of(id: ObjectId) -> [u8; 16] {
        id.0
    }

    fn id(&self) -> ObjectId {
        self.id
    }

    fn is_due(&self, sweep: Sweep, now: u64) -> bool {
        self.lifetime().is_due(sweep, now)
    }

    fn load_from(
        edit: &RequestEdit<'_>,
        map: MapId,
        id: ObjectId,
    ) -> Result<Option<Self>, StoreError> {
        edit.object(map, id)
    }

    fn sweep(&self, edit: &mut RequestEdit<'_>, now: u64, map: MapId, sweep: Sweep) {
        apply_sweep(edit, now, map, sweep, self);
    }
}

/// Returns the wanted rows of a map that follow `after`. Stops at a maximum of found rows, or of
/// rows looked at.
pub(super) fn walk_map<R: Stored>(
    database: &Database,
    at: &Snapshot,
    map: MapId,
    after: Option<R::Id>,
    (found_max, looked_max): (usize, usize),
    wanted: impl Fn(&R) -> bool,
) -> Result<Page<Vec<R>, R::Id>, StoreError> {
    let looked_max = looked_max.clamp(1, LOOKED_MAX);
    let first = after.map_or(Bound::Included(map_entry_key(map, [0; 16])), |id| {
        Bound::Excluded(map_entry_key(map, R::bytes_of(id)))
    });
    let last = Bound::Included(map_entry_key(map, [0xff; 16]));
    let mut found = Vec::new();
    let mut next = None;
    let mut bytes = 0;
    for (looked, entry) in at.range(R::keyspace(database), (first, last)).enumerate() {
        if found.len() >= found_max.max(1) || looked >= looked_max || bytes >= LOOKED_BYTES_MAX {
            return Ok(Page { found, next });
        }
        let (key, value) = entry
            .into_inner()
            .map_err(|error| database.database_error(error))?;
        bytes += value.len();
        let (_, row) = R::decode(database, &key, &value)?;
        next = Some(row.id());
        if wanted(&row) {
            found.push(row);
        }
    }

    Ok(Page { found, next: None })
}

/// Returns the rows of a map that follow `after` and that a filter accepts.
pub(super) fn list_page<R: Stored>(
    database: &Database,
    at: &Snapshot,
    map: MapId,
    after: Option<R::Id>,
    limit: usize,
    wanted: impl Fn(&R) -> bool,
) -> Result<Page<Vec<R>, R::Id>, StoreError> {
    walk_map(database, at, map, after, (limit, LOOKED_MAX), wanted)
}

/// Counts the rows of a map that follow `after` by `key`. Looks at no more than `limit` rows.
pub(super) fn count_by<R: Stored, K: Ord>(
    database: &Database,
    map: MapId,
    after: Option<R::Id>,
    limit: usize,
    key: impl Fn(&R) -> K,
) -> Result<Page<BTreeMap<K, u64>, R::Id>, StoreError> {
    let counts = RefCell::new(BTreeMap::new());
    let Page { next, .. } = walk_map(
        database,
        &database.snapshot(),
        map,
        after,
        (1, limit),
        |row: &R| {
            *counts.borrow_mut().entry(key(row)).or_default() += 1;
            false // The rows are not collected.
        },
    )?;
    Ok(Page {
        found: counts.into_inner(),
        next,
    })
}

/// Iterates over map and id of at most `limit` rows or objects of a subject, after `after`.
pub(super) fn subject_entries<'a>(
    database: &'a Database,
    keyspace: &'a Keyspace,
    at: &Snapshot,
    (app, subject): (u32, SubjectId),
    after: Option<(MapId, [u8; 16])>,
    limit: usize,
) -> impl Iterator<Item = Result<(MapId, [u8; 16]), StoreError>> + 'a {
    let first = match after {
        None => Bound::Included(subject_key(MapId { app, collection: 0 }, subject, [0; 16])),
        Some((map, id)) => Bound::Excluded(subject_key(MapId { app, ..map }, subject, id)),
    };

    let last_map = MapId {
        app,
        collection: u32::MAX,
    };

    let last = Bound::Included(subject_key(last_map, subject, [0xff; 16]));
    at.range(keyspace, (first, last))
        .take(limit.min(LOOKED_MAX))
        .map(|entry| {
            let key = entry
                .key()
                .map_err(|error| database.database_error(error))?;
            subject_row(&key)
                .ok_or_else(|| database.damage("the key of a subject has an invalid length"))
        })
}

/// Returns the first map after `after` that has a row.
pub(super) fn next_map<R: Stored>(
    database: &Database,
    after: Option<MapId>,
) -> Result<Option<MapId>, StoreError> {
    let first = after.map_or(Bound::Unbounded, |map| {
        Bound::Excluded(map_entry_key(map, [0xff; 16]))
    });
    let mut rows = database
        .snapshot()
        .range::<Key, _>(R::keyspace(database), (first, Bound::Unbounded));
    let Some(entry) = rows.next() else {
        return Ok(None);
    };

    let (key, value) = entry
        .into_inner()
        .map_err(|error| database.database_error(error))?;
    Ok(Some(R::decode(database, &key, &value)?.0))
}

/// Returns a page of the rows of all maps that follow `after`.
pub(super) fn scan_page<R: Stored>(
    database: &Database,
    after: Option<(MapId, R::Id)>,
    limit: usize,
) -> Result<Vec<(MapId, R)>, StoreError> {
    let first = after.map_or(Bound::Unbounded, |(map, id)| {
        Bound::Excluded(map_entry_key(map, R::bytes_of(id)))
    });
    let rows = database
        .snapshot()
        .range::<Key, _>(R::keyspace(database), (first, Bound::Unbounded));
    let mut page = Vec::new();
    let mut fits = fits_scan_bytes();
    for entry in rows.take(limit.min(LOOKED_MAX)) {
        let (key, value) = entry
            .into_inner()
            .map_err(|error| database.database_error(error))?;
        if !fits(value.len()) {
            break;
        }
        page.push(R::decode(database, &key, &value)?);
    }

    Ok(page)
}
