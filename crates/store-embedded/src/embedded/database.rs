//! The database in its folder: opening under a lock, keyspaces and keys, and the meaning of database errors.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _, Slice, Snapshot};

use super::{Options, manifest, row};
use sealwire_store::{Fingerprint, MapId, Row, SINGLE, StoreError, TokenId};

/// Version of the keyspaces and keys. The row format has its own version.
const LAYOUT: u32 = 1;
const LAYOUT_KEY: &str = "layout";
pub(super) const GENERATION_KEY: &str = "generation";
/// Journal size above which the database flushes the data that keeps journals alive. Also bounds the bytes to read at
/// the next start.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;
/// Write buffer for control state, which changes rarely.
const CONTROL_BUFFER_BYTES: u64 = 1 << 20;

/// Number of attempts to take a held lock, and the pause between them: half a second in total.
const LOCK_TRIES: u32 = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The bytes `app u32 | collection u32 | id or fingerprint 16`, in the order of maps and ids.
pub(super) type Key = [u8; 24];

pub(super) fn row_key(map: MapId, id: TokenId) -> Key {
    key(map, id.0)
}

pub(super) fn fingerprint_key(map: MapId, fingerprint: Fingerprint) -> Key {
    key(map, fingerprint.0)
}

fn key(map: MapId, last: [u8; 16]) -> Key {
    let mut key = [0; 24];
    key[..4].copy_from_slice(&map.app.to_be_bytes());
    key[4..8].copy_from_slice(&map.collection.to_be_bytes());
    key[8..].copy_from_slice(&last);
    key
}

/// Returns the database key of a record. The prefix keeps the key from being empty, which the database does not allow.
pub(super) fn record_key(key: &str) -> String {
    format!("/{key}")
}

/// Returns the first key after all keys that begin with `prefix`. The last byte of `prefix` must be ASCII.
fn behind(prefix: &str) -> String {
    let (kept, last) = prefix.split_at(prefix.len() - 1);
    format!("{kept}{}", char::from(last.as_bytes()[0] + 1))
}

/// Splits a row key into map and id. Returns `None` if the length is wrong.
fn parts(key: &[u8]) -> Option<(MapId, TokenId)> {
    let (app, rest) = key.split_first_chunk()?;
    let (collection, id) = rest.split_first_chunk()?;
    let map = MapId { app: u32::from_be_bytes(*app), collection: u32::from_be_bytes(*collection) };
    Some((map, TokenId(id.try_into().ok()?)))
}

/// The folder lock, held while the database is open. The operating system releases the lock when the process ends.
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    /// Releases the lock also if a forked child still holds a copy of the file: until its exec, which can be long on a busy
    /// machine.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

impl Lock {
    /// Creates the folder, readable only by its owner, and takes its lock.
    pub(super) fn take(folder: &Path) -> Result<Self, StoreError> {
        let io = |path: &Path, source| StoreError::Io { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| io(folder, error))?;
        let path = folder.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| io(&path, error))?;
        let mut tries = 0;
        while let Err(refused) = file.try_lock() {
            tries += 1;
            match refused {
                // A process that is ending, or a forked child before its exec, can hold the lock a moment longer.
                TryLockError::WouldBlock if tries < LOCK_TRIES => std::thread::sleep(LOCK_PAUSE),
                TryLockError::WouldBlock => {
                    let mut process = String::new();
                    // The process id of the holder is included if it can be read.
                    let _ = file.take(20).read_to_string(&mut process);
                    return Err(StoreError::InUse { folder: folder.to_owned(), process: process.trim().parse().ok() });
                }
                TryLockError::Error(error) => return Err(io(&path, error)),
            }
        }
        let named =
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        named.map_err(|error| io(&path, error))?;
        Ok(Self { file })
    }
}

/// An open database.
pub(super) struct Database {
    inner: fjall::Database,
    folder: PathBuf,
    /// Map and id -> the rest of the row.
    pub(super) rows: Keyspace,
    /// Map and fingerprint -> id of the row with the fingerprint.
    pub(super) fingerprints: Keyspace,
    /// Control records by key.
    pub(super) records: Keyspace,
    /// Metadata of the store: layout version and generation.
    pub(super) facts: Keyspace,
}

impl Database {
    /// Opens or creates the database in `folder`, and reads its journals. Blocks.
    pub(super) fn open(folder: &Path, options: &Options) -> Result<Self, StoreError> {
        let folder = folder.join("database");
        let failed = |error| opening_failed(&folder, error);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .and_then(|()| std::fs::set_permissions(&folder, Permissions::from_mode(0o700)))
            .map_err(|error| failed(error.into()))?;
        manifest::check(&folder)?;
        let inner = fjall::Database::builder(&folder)
            .cache_size(options.cache_bytes)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .open()
            .map_err(failed)?;
        let keyspace = |name, bytes| {
            inner.keyspace(name, || KeyspaceCreateOptions::default().max_memtable_size(bytes)).map_err(failed)
        };
        let database = Self {
            rows: keyspace("rows", options.write_buffer_bytes)?,
            fingerprints: keyspace("fingerprints", options.write_buffer_bytes)?,
            records: keyspace("records", CONTROL_BUFFER_BYTES)?,
            facts: keyspace("facts", CONTROL_BUFFER_BYTES)?,
            inner,
            folder: folder.clone(),
        };
        database.check_layout()?;
        Ok(database)
    }

    fn check_layout(&self) -> Result<(), StoreError> {
        match self.fact(&self.snapshot(), LAYOUT_KEY)?.map(u32::from_be_bytes) {
            Some(LAYOUT) => Ok(()),
            Some(_) => {
                Err(self.damaged("its layout is not one that this program knows; was it written by a newer one?"))
            }
            None => {
                let mut batch = self.batch();
                batch.insert(&self.facts, LAYOUT_KEY, LAYOUT.to_be_bytes());
                batch.commit().map_err(|error| opening_failed(&self.folder, error))
            }
        }
    }

    /// Starts a batch of changes to any keyspace. They become durable and visible together.
    pub(super) fn batch(&self) -> fjall::OwnedWriteBatch {
        // fdatasync also makes the journal's length durable; other file metadata is not needed.
        self.inner.batch().durability(Some(PersistMode::SyncData))
    }

    /// Returns a consistent snapshot of all keyspaces.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }

    pub(super) fn generation(&self, at: &Snapshot) -> Result<u64, StoreError> {
        Ok(self.fact(at, GENERATION_KEY)?.map_or(0, u64::from_be_bytes))
    }

    fn fact<const N: usize>(&self, at: &Snapshot, key: &str) -> Result<Option<[u8; N]>, StoreError> {
        let value = at.get(&self.facts, key).map_err(|error| self.failed(error))?;
        value.map(|value| (*value).try_into()).transpose().map_err(|_| self.damaged("a number of another length"))
    }

    /// Returns every record.
    pub(super) fn records(&self, at: &Snapshot) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        at.iter(&self.records).map(|entry| self.named(entry)).collect()
    }

    /// Returns every record except the individually read ones.
    pub(super) fn records_together(&self, at: &Snapshot) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let (first, behind) = (record_key(SINGLE), record_key(&behind(SINGLE)));
        let sides = at.range(&self.records, ..first).chain(at.range(&self.records, behind..));
        sides.map(|entry| self.named(entry)).collect()
    }

    /// Returns a page of the individually read records.
    pub(super) fn records_single(
        &self,
        at: &Snapshot,
        after: Option<&str>,
        limit: usize,
    ) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let from = after.filter(|after| *after >= SINGLE);
        let from = from.map_or(Bound::Included(record_key(SINGLE)), |after| Bound::Excluded(record_key(after)));
        let behind = record_key(&behind(SINGLE));
        if matches!(&from, Bound::Excluded(after) if *after >= behind) {
            return Ok(BTreeMap::new());
        }
        let range = at.range(&self.records, (from, Bound::Excluded(behind)));
        range.take(limit).map(|entry| self.named(entry)).collect()
    }

    pub(super) fn record(&self, at: &Snapshot, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let found = at.get(&self.records, record_key(key)).map_err(|error| self.failed(error))?;
        Ok(found.map(|record| record.to_vec()))
    }

    fn named(&self, entry: fjall::Guard) -> Result<(String, Vec<u8>), StoreError> {
        let (key, record) = entry.into_inner().map_err(|error| self.failed(error))?;
        let key = str::from_utf8(&key).ok().and_then(|key| key.strip_prefix('/'));
        let key = key.ok_or_else(|| self.damaged("a record under a key of another form"))?;
        Ok((key.to_owned(), record.to_vec()))
    }

    pub(super) fn row(&self, at: &Snapshot, key: &Key) -> Result<Option<Row>, StoreError> {
        let value = at.get(&self.rows, key).map_err(|error| self.failed(error))?;
        value.map(|value| self.decoded(key, &value).map(|(_, row)| row)).transpose()
    }

    pub(super) fn holder(&self, at: &Snapshot, key: &Key) -> Result<Option<TokenId>, StoreError> {
        let value = at.get(&self.fingerprints, key).map_err(|error| self.failed(error))?;
        let id = value.map(|value| (*value).try_into().map(TokenId)).transpose();
        id.map_err(|_| self.damaged("a fingerprint leads to no id"))
    }

    /// Decodes an entry of `rows`.
    pub(super) fn decoded(&self, key: &[u8], value: &Slice) -> Result<(MapId, Row), StoreError> {
        let (map, id) = parts(key).ok_or_else(|| self.damaged("a row under a key of another length"))?;
        let row = row::decode(id, value).map_err(|error| self.damaged(&error.to_string()))?;
        Ok((map, row))
    }

    /// Returns the number of unflushed memtables and of unmerged runs, each of the keyspace with the largest backlog.
    pub(super) fn backlog(&self) -> (usize, usize) {
        use fjall::AbstractTree as _;
        let of = |keyspace: &Keyspace| (keyspace.sealed_memtable_count(), keyspace.tree.l0_run_count());
        let ((a, b), (c, d)) = (of(&self.rows), of(&self.fingerprints));
        (a.max(c), b.max(d))
    }

    /// Returns an error if any write has failed, including background writes. After that, the database does not write
    /// any more.
    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        self.inner.persist(PersistMode::Buffer).map_err(|error| self.failed(error))
    }

    /// Converts a runtime error of the database.
    pub(super) fn failed(&self, error: fjall::Error) -> StoreError {
        match opening_failed(&self.folder, error) {
            StoreError::Io { path, source } => StoreError::Unavailable(format!("{}: {source}", path.display())),
            other => other,
        }
    }

    pub(super) fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged { place: self.folder.display().to_string(), what: what.to_owned() }
    }
}

/// Converts an error of opening the database.
fn opening_failed(folder: &Path, error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            StoreError::Io { path: folder.to_owned(), source }
        }
        fjall::Error::Locked => {
            StoreError::InUse { folder: folder.parent().unwrap_or(folder).to_owned(), process: None }
        }
        fjall::Error::Poisoned => StoreError::Unavailable(format!(
            "{}: an earlier write failed; free space or mend the disk",
            folder.display()
        )),
        // The debug form tells which check failed and at most the file. It does not contain stored content.
        other => StoreError::Damaged { place: folder.display().to_string(), what: format!("{other:?}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_although_a_child_holds_a_copy() {
        let folder = tempfile::tempdir().expect("makes one");
        let lock = Lock::take(folder.path()).expect("free");
        let copy = lock.file.try_clone().expect("as a fork makes one");
        assert!(matches!(Lock::take(folder.path()), Err(StoreError::InUse { .. })));
        drop(lock);
        Lock::take(folder.path()).expect("free again");
        drop(copy);
    }
}
