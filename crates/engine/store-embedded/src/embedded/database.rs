//! The database in its folder: opening under a lock, keyspaces and keys, and the meaning of
//! database errors.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _, Slice, Snapshot};

use super::keys::{
    FENCE, Key, PostingKey, TermKey, fence_key, map_and_id, parse_map, past_prefix, record_key,
    subject_key,
};
use super::manifest::{damage_in, io_error};
use super::{Options, manifest, object_row, row};
use sealwire_store::{MapId, ObjectId, ObjectRow, Row, SINGLE, StoreError, TokenId};

/// Version of the keyspaces and keys. The row formats have their own versions. Layout 1 had no
/// objects, layout 2 no index of the objects of subjects, and layout 3 no index of their tokens. A
/// program that knows only an older layout would copy a store without its objects or ignore fences.
/// Such a program would also write rows without their entry in the index of subjects.
const LAYOUT: u32 = 4;
const LAYOUT_KEY: &str = "layout";
const FACTS: &str = "facts";
pub(super) const GENERATION_KEY: &str = "generation";
/// Journal size above which the database flushes the data that keeps journals alive. Also bounds
/// the bytes to read at the next start.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;
/// Write buffer for control state, which changes rarely.
const CONTROL_BUFFER_BYTES: u64 = 1 << 20;

/// Number of attempts to take a held lock, and the pause between them: half a second in total.
const LOCK_TRIES: u32 = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The folder lock, held while the database is open. The operating system releases the lock when
/// the process ends.
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    /// Unlocks explicitly, because a forked child can hold a copy of the file until its exec, which
    /// can take long on a busy machine.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

impl Lock {
    /// Creates the folder, readable only by its owner, and takes its lock.
    pub(super) fn acquire(folder: &Path) -> Result<Self, StoreError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| io_error(folder, error))?;
        let path = folder.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| io_error(&path, error))?;
        let mut tries = 0;
        while let Err(error) = file.try_lock() {
            tries += 1;
            match error {
                // A process that is exiting, or a forked child before its exec, can hold the lock a
                // moment longer.
                TryLockError::WouldBlock if tries < LOCK_TRIES => std::thread::sleep(LOCK_PAUSE),
                TryLockError::WouldBlock => {
                    let mut process = String::new();
                    // The process id of the holder is included if it can be read.
                    let _ = file.take(20).read_to_string(&mut process);
                    return Err(StoreError::InUse {
                        folder: folder.to_owned(),
                        process: process.trim().parse().ok(),
                    });
                }
                TryLockError::Error(error) => return Err(io_error(&path, error)),
            }
        }

        let recorded = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        recorded.map_err(|error| io_error(&path, error))?;
        Ok(Self { file })
    }
}

/// Opens or creates keyspaces.
struct KeyspaceOpener<'a> {
    database: &'a fjall::Database,
    folder: &'a Path,
}

impl KeyspaceOpener<'_> {
    /// Opens a keyspace. `bytes`: size of a memtable that is flushed to a file.
    fn open(&self, name: &str, bytes: u64) -> Result<Keyspace, StoreError> {
        self.database
            .keyspace(name, || {
                KeyspaceCreateOptions::default().max_memtable_size(bytes)
            })
            .map_err(|error| opening_error(self.folder, error))
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
    /// App, subject, collection and id of each row that names a subject -> nothing.
    pub(super) token_subjects: Keyspace,
    /// Control records by key.
    pub(super) records: Keyspace,
    /// Metadata of the store: layout version, generation and fences.
    pub(super) facts: Keyspace,
    /// Map and id -> the rest of the object.
    pub(super) objects: Keyspace,
    /// Map and unique term -> id of the object that holds the term.
    pub(super) object_unique: Keyspace,
    /// Map, term and id of each object that holds the term -> nothing.
    pub(super) object_terms: Keyspace,
    /// App, subject, collection and id of each object that names a subject -> nothing.
    pub(super) object_subjects: Keyspace,
}

impl Database {
    /// Opens or creates the database in `folder`, and reads its journals. Blocks.
    pub(super) fn open(folder: &Path, options: &Options) -> Result<Self, StoreError> {
        let folder = folder.join("database");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .and_then(|()| std::fs::set_permissions(&folder, Permissions::from_mode(0o700)))
            .map_err(|error| opening_error(&folder, error.into()))?;
        manifest::check(&folder)?;
        let inner = fjall::Database::builder(&folder)
            .cache_size(options.cache_bytes)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .open()
            .map_err(|error| opening_error(&folder, error))?;
        let opener = KeyspaceOpener {
            database: &inner,
            folder: &folder,
        };

        // Rejects an unknown layout before a keyspace is created in the folder.
        let is_old = inner.keyspace_exists(FACTS);
        let layout = if is_old {
            known_layout(&folder, &opener.open(FACTS, CONTROL_BUFFER_BYTES)?)?
        } else {
            None
        };

        let database = Self {
            rows: opener.open("rows", options.write_buffer_bytes)?,
            fingerprints: opener.open("fingerprints", options.write_buffer_bytes)?,
            token_subjects: opener.open("token_subjects", options.write_buffer_bytes)?,
            records: opener.open("records", CONTROL_BUFFER_BYTES)?,
            facts: opener.open(FACTS, CONTROL_BUFFER_BYTES)?,
            objects: opener.open("objects", options.write_buffer_bytes)?,
            object_unique: opener.open("object_unique", options.write_buffer_bytes)?,
            object_terms: opener.open("object_terms", options.write_buffer_bytes)?,
            object_subjects: opener.open("object_subjects", options.write_buffer_bytes)?,
            inner,
            folder: folder.clone(),
        };

        // Older layouts lack keyspaces and the entries of the index of subjects.
        if layout != Some(LAYOUT) {
            let mut batch = database.start_batch();
            database.index_subjects(&mut batch)?;
            batch.insert(&database.facts, LAYOUT_KEY, LAYOUT.to_be_bytes());
            batch
                .commit()
                .map_err(|error| opening_error(&database.folder, error))?;
        }

        Ok(database)
    }

    /// Adds an entry for each object that names a subject. Required because a program with an older
    /// layout can have copied such objects to this store.
    fn index_subjects(&self, batch: &mut fjall::OwnedWriteBatch) -> Result<(), StoreError> {
        for entry in self.snapshot().iter(&self.objects) {
            let (key, value) = entry
                .into_inner()
                .map_err(|error| self.database_error(error))?;
            let (map, row) = self.decode_object(&key, &value)?;
            if let Some(subject) = row.subject {
                batch.insert(
                    &self.object_subjects,
                    subject_key(map, subject, row.id.0),
                    [],
                );
            }
        }

        Ok(())
    }

    /// Starts a batch of changes to any keyspaces. The changes of a batch become durable and
    /// visible together.
    pub(super) fn start_batch(&self) -> fjall::OwnedWriteBatch {
        // fdatasync also makes the journal's length durable; other file metadata is not needed.
        self.inner.batch().durability(Some(PersistMode::SyncData))
    }

    /// Returns a consistent snapshot of all keyspaces.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }

    pub(super) fn generation(&self, at: &Snapshot) -> Result<u64, StoreError> {
        Ok(self
            .read_fact(at, GENERATION_KEY)?
            .map_or(0, u64::from_be_bytes))
    }

    /// Returns the lowest generation that can use the objects of a map, if the map has a fence.
    pub(super) fn fence(&self, at: &Snapshot, map: MapId) -> Result<Option<u64>, StoreError> {
        Ok(self.read_fact(at, fence_key(map))?.map(u64::from_be_bytes))
    }

    /// Returns the fences of all maps that have one.
    pub(super) fn fences(&self, at: &Snapshot) -> Result<Vec<(MapId, u64)>, StoreError> {
        at.prefix(&self.facts, FENCE)
            .map(|entry: fjall::Guard| {
                let (key, value) = entry
                    .into_inner()
                    .map_err(|error| self.database_error(error))?;
                let map = key.strip_prefix(FENCE).and_then(parse_map);
                let generation = (*value).try_into().map(u64::from_be_bytes).ok();
                map.zip(generation)
                    .ok_or_else(|| self.damage("a fence has an invalid form"))
            })
            .collect()
    }

    fn read_fact<const N: usize>(
        &self,
        at: &Snapshot,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<[u8; N]>, StoreError> {
        let value = at
            .get(&self.facts, key)
            .map_err(|error| self.database_error(error))?;
        value
            .map(|value| (*value).try_into())
            .transpose()
            .map_err(|_| self.damage("a number has an invalid length"))
    }

    /// Returns every record.
    pub(super) fn records(&self, at: &Snapshot) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        at.iter(&self.records)
            .map(|entry| self.decode_record(entry))
            .collect()
    }

    /// Returns every record except the individually read ones.
    pub(super) fn records_together(
        &self,
        at: &Snapshot,
    ) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let first = record_key(SINGLE);
        let past = record_key(&past_prefix(SINGLE));
        let sides = at
            .range(&self.records, ..first)
            .chain(at.range(&self.records, past..));
        sides.map(|entry| self.decode_record(entry)).collect()
    }

    /// Returns a page of the individually read records.
    pub(super) fn records_single(
        &self,
        at: &Snapshot,
        after: Option<&str>,
        limit: usize,
    ) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let from = after.filter(|after| *after >= SINGLE);
        let from = from.map_or(Bound::Included(record_key(SINGLE)), |after| {
            Bound::Excluded(record_key(after))
        });
        let past = record_key(&past_prefix(SINGLE));
        if matches!(&from, Bound::Excluded(after) if *after >= past) {
            return Ok(BTreeMap::new());
        }

        let range = at.range(&self.records, (from, Bound::Excluded(past)));
        range
            .take(limit)
            .map(|entry| self.decode_record(entry))
            .collect()
    }

    pub(super) fn find_record(
        &self,
        at: &Snapshot,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let found = at
            .get(&self.records, record_key(key))
            .map_err(|error| self.database_error(error))?;
        Ok(found.map(|record| record.to_vec()))
    }

    fn decode_record(&self, entry: fjall::Guard) -> Result<(String, Vec<u8>), StoreError> {
        let (key, record) = entry
            .into_inner()
            .map_err(|error| self.database_error(error))?;
        let key = str::from_utf8(&key)
            .ok()
            .and_then(|key| key.strip_prefix('/'));
        let key = key.ok_or_else(|| self.damage("the key of a record has an invalid form"))?;
        Ok((key.to_owned(), record.to_vec()))
    }

    pub(super) fn find_row(&self, at: &Snapshot, key: &Key) -> Result<Option<Row>, StoreError> {
        let value = at
            .get(&self.rows, key)
            .map_err(|error| self.database_error(error))?;
        value
            .map(|value| self.decode_row(key, &value).map(|(_, row)| row))
            .transpose()
    }

    pub(super) fn fingerprint_holder(
        &self,
        at: &Snapshot,
        key: &Key,
    ) -> Result<Option<TokenId>, StoreError> {
        let value = at
            .get(&self.fingerprints, key)
            .map_err(|error| self.database_error(error))?;
        let id = value
            .map(|value| (*value).try_into().map(TokenId))
            .transpose();
        id.map_err(|_| self.damage("the entry of a fingerprint is not an id"))
    }

    /// Decodes an entry of `rows`.
    pub(super) fn decode_row(&self, key: &[u8], value: &Slice) -> Result<(MapId, Row), StoreError> {
        let (map, id) =
            map_and_id(key).ok_or_else(|| self.damage("the key of a row has an invalid length"))?;
        let row =
            row::decode(TokenId(id), value).map_err(|error| self.damage(&error.to_string()))?;
        Ok((map, row))
    }

    pub(super) fn find_object(
        &self,
        at: &Snapshot,
        key: &Key,
    ) -> Result<Option<ObjectRow>, StoreError> {
        let value = at
            .get(&self.objects, key)
            .map_err(|error| self.database_error(error))?;
        value
            .map(|value| self.decode_object(key, &value).map(|(_, row)| row))
            .transpose()
    }

    /// Returns the object that holds a unique term.
    pub(super) fn unique_holder(
        &self,
        at: &Snapshot,
        key: &TermKey,
    ) -> Result<Option<ObjectId>, StoreError> {
        let value = at
            .get(&self.object_unique, key)
            .map_err(|error| self.database_error(error))?;
        let id = value
            .map(|value| (*value).try_into().map(ObjectId))
            .transpose();
        id.map_err(|_| self.damage("the entry of a unique term is not an id"))
    }

    /// Returns true if an object holds a term that is not unique.
    pub(super) fn holds_term(&self, at: &Snapshot, key: &PostingKey) -> Result<bool, StoreError> {
        at.contains_key(&self.object_terms, key)
            .map_err(|error| self.database_error(error))
    }

    /// Decodes an entry of `objects`.
    pub(super) fn decode_object(
        &self,
        key: &[u8],
        value: &Slice,
    ) -> Result<(MapId, ObjectRow), StoreError> {
        let (map, id) = map_and_id(key)
            .ok_or_else(|| self.damage("the key of an object has an invalid length"))?;
        let row = object_row::decode(ObjectId(id), value)
            .map_err(|error| self.damage(&error.to_string()))?;
        Ok((map, row))
    }

    /// Returns the number of unflushed memtables and the number of unmerged runs. Each number is
    /// the maximum of all keyspaces.
    pub(super) fn backlog(&self) -> (usize, usize) {
        use fjall::AbstractTree as _;
        let large = [
            &self.rows,
            &self.fingerprints,
            &self.token_subjects,
            &self.objects,
            &self.object_unique,
            &self.object_terms,
            &self.object_subjects,
        ];
        let backlogs = large.map(|keyspace| {
            (
                keyspace.sealed_memtable_count(),
                keyspace.tree.l0_run_count(),
            )
        });
        backlogs
            .into_iter()
            .fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)))
    }

    /// Returns an error if any write has failed, including background writes. After such a failure,
    /// the database rejects writes.
    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        self.inner
            .persist(PersistMode::Buffer)
            .map_err(|error| self.database_error(error))
    }

    /// Converts an error of an open database.
    pub(super) fn database_error(&self, error: fjall::Error) -> StoreError {
        match opening_error(&self.folder, error) {
            StoreError::Io { path, source } => {
                StoreError::Unavailable(format!("{}: {source}", path.display()))
            }
            other => other,
        }
    }

    pub(super) fn damage(&self, what: &str) -> StoreError {
        damage_in(&self.folder, what)
    }
}

/// Returns the layout that `facts` names. Returns `None` if the store was not completely created.
fn known_layout(folder: &Path, facts: &Keyspace) -> Result<Option<u32>, StoreError> {
    let Some(value) = facts
        .get(LAYOUT_KEY)
        .map_err(|error| opening_error(folder, error))?
    else {
        return Ok(None);
    };
    let layout = (*value)
        .try_into()
        .map(u32::from_be_bytes)
        .map_err(|_| damage_in(folder, "the number of the layout has an invalid length"))?;
    match layout {
        1..=LAYOUT => Ok(Some(layout)),
        _ => Err(damage_in(
            folder,
            "the layout is unknown to this version of sealwire; a newer version may have written it",
        )),
    }
}

/// Converts an error of opening the database.
fn opening_error(folder: &Path, error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            StoreError::Io {
                path: folder.to_owned(),
                source,
            }
        }
        fjall::Error::Locked => StoreError::InUse {
            folder: folder.parent().unwrap_or(folder).to_owned(),
            process: None,
        },
        fjall::Error::Poisoned => StoreError::Unavailable(format!(
            "{}: an earlier write failed; free space or repair the disk",
            folder.display()
        )),
        // The debug format shows the failed check and possibly the file, but never stored content.
        other => StoreError::Damaged {
            place: folder.display().to_string(),
            what: format!("{other:?}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lock_is_free_although_a_child_holds_a_copy() {
        let folder = tempfile::tempdir().expect("makes one");
        let lock = Lock::acquire(folder.path()).expect("free");
        let copy = lock.file.try_clone().expect("as a fork makes one");
        assert!(matches!(
            Lock::acquire(folder.path()),
            Err(StoreError::InUse { .. })
        ));
        drop(lock);
        Lock::acquire(folder.path()).expect("free again");
        drop(copy);
    }
}
