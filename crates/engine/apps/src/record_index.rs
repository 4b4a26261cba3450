//! The index that authenticates the records of a store with a root key.
//!
//! Each record has an entry with its key and the SHA-256 of its bytes. The entries are in up to
//! 2,048 rows: a hash of the record's key chooses the row. The record [`HEAD`] has an
//! authentication code over the generation and the digests of all rows. So the index detects a
//! record that was changed, added, removed, swapped with another record, or restored from an
//! earlier generation. The head detects changes of the index. Rows and head are ordinary records of
//! the store: each commit writes its records, their rows and the head together.
//!
//! Only the code in the head depends on the root key. So a new root key requires only a new head.
//!
//! Authenticated message of the head: `sealwire/head/1`, the generation (8 bytes), then the rows in
//! order of keys. Each row has the length of its key (4 bytes), the key, and the SHA-256 of the
//! row's bytes. Integers are big endian. The key names the set of root keys ([`StateKey`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sealwire_crypto::StateKey;
pub(super) use sealwire_store::copy::HEAD;
use sealwire_store::{Changes, SINGLE, Snapshot, StoreError, is_single};
use serde::{Deserialize, Serialize};

use super::record::Entry;
use super::root_record::ROOT_RECORD;

/// Key prefix of rows about records that are loaded together.
const LOADED_ROWS: &str = "index/";
/// Key prefix of rows about records that are read individually.
const SINGLE_ROWS: &str = "single-index/";
/// Number of rows of each kind.
const ROWS: u64 = 1_024;
/// Prefix of the message that the head authenticates.
const LABEL: &[u8] = b"sealwire/head/1";

type Digest = [u8; 32];
/// Digests of records as base64, by key: the content of a row.
type Entries = BTreeMap<String, String>;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadFields {
    generation: u64,
    /// The authentication code, base64.
    code: String,
}

/// The index of all records of a store; see the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordIndex {
    rows: BTreeMap<String, IndexRow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct IndexRow {
    bytes: Arc<[u8]>,
    digest: Digest,
}

impl IndexRow {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            digest: sha256(&bytes),
            bytes: bytes.into(),
        }
    }

    fn of<K: Serialize + Ord>(entries: BTreeMap<K, String>) -> Self {
        Self::new(Entry::<_, ()>::Live(entries).into_bytes())
    }
}

/// Returns true if the record with this key belongs to the index itself.
pub(super) fn is_of_index(key: &str) -> bool {
    key == HEAD || key.starts_with(LOADED_ROWS) || key.starts_with(SINGLE_ROWS)
}

/// Rejects a store without a root record that has parts of an index.
pub(super) fn check_without_root(snapshot: &Snapshot) -> Result<(), StoreError> {
    match snapshot.records.keys().find(|key| is_of_index(key)) {
        Some(key) => Err(forged(
            ROOT_RECORD,
            format!("it is missing, and the record {key} of its index is there"),
        )),
        None => Ok(()),
    }
}

impl RecordIndex {
    /// Creates the index of all records, including individually read records.
    pub(super) fn of(records: &BTreeMap<String, Vec<u8>>) -> Self {
        Self {
            rows: rows_of(records),
        }
    }

    /// Verifies the records that a store loaded, and returns them without the index.
    ///
    /// # Errors
    /// [`StoreError::NotAuthentic`], which names the record; [`StoreError::Damaged`].
    pub(super) fn open(key: &StateKey, stored: Snapshot) -> Result<(Snapshot, Self), StoreError> {
        let Snapshot {
            generation,
            records,
        } = stored;
        let (rows, mut records): (BTreeMap<_, _>, BTreeMap<_, _>) = records
            .into_iter()
            .partition(|(key, _)| key.starts_with(LOADED_ROWS) || key.starts_with(SINGLE_ROWS));
        let head = records
            .remove(HEAD)
            .ok_or_else(|| forged(HEAD, "it is missing"))?;
        let index = Self {
            rows: rows
                .into_iter()
                .map(|(key, row)| (key, IndexRow::new(row)))
                .collect(),
        };
        index.check_head(key, generation, &head)?;
        index.check_loaded(&records)?;
        Ok((
            Snapshot {
                generation,
                records,
            },
            index,
        ))
    }

    /// Returns the authentication code of this index at a generation.
    pub(super) fn code(&self, key: &StateKey, generation: u64) -> [u8; 32] {
        key.code(&self.message(generation))
    }

    /// Returns the rows, as the store keeps them.
    pub(super) fn into_rows(self) -> impl Iterator<Item = (String, Vec<u8>)> {
        self.rows
            .into_iter()
            .map(|(key, row)| (key, row.bytes.to_vec()))
    }

    /// Applies a change of records. Returns the new index and the changes of its rows.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a change concerns the index itself.
    pub(super) fn changed(&self, changes: &Changes) -> Result<(Self, Changes), StoreError> {
        if let Some(key) = changes.keys().find(|key| is_of_index(key)) {
            return Err(StoreError::Invalid(format!(
                "the record {key} is written with other records only"
            )));
        }

        let mut edited: BTreeMap<String, Entries> = BTreeMap::new();
        for (key, record) in changes {
            let row_key = row_key(key);
            if !edited.contains_key(&row_key) {
                edited.insert(row_key.clone(), self.row(&row_key)?);
            }
            let row = edited.entry(row_key).or_default();
            match record {
                Some(record) => row.insert(key.clone(), encoded(&sha256(record))),
                None => row.remove(key),
            };
        }

        let mut after = self.rows.clone();
        let mut row_changes = Changes::new();
        for (key, entries) in edited {
            let row = (!entries.is_empty()).then(|| IndexRow::of(entries));
            row_changes.insert(key.clone(), row.as_ref().map(|row| row.bytes.to_vec()));
            match row {
                Some(row) => after.insert(key, row),
                None => after.remove(&key),
            };
        }
        Ok((Self { rows: after }, row_changes))
    }

    /// Verifies a record, or the absence of a record at a key.
    ///
    /// # Errors
    /// [`StoreError::NotAuthentic`].
    pub(super) fn check(&self, key: &str, record: Option<&[u8]>) -> Result<(), StoreError> {
        let row = self.row(&row_key(key))?;
        compare(key, row.get(key).map(String::as_str), record)
    }

    /// Returns the keys and digests of individually read records, for [`check_page`].
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub(super) fn singles(&self) -> Result<Entries, StoreError> {
        let mut all = Entries::new();
        for key in self.rows.keys().filter(|key| key.starts_with(SINGLE_ROWS)) {
            all.extend(self.row(key)?);
        }
        Ok(all)
    }

    fn row(&self, key: &str) -> Result<Entries, StoreError> {
        self.rows
            .get(key)
            .map_or(Ok(Entries::new()), |row| parsed(key, &row.bytes))
    }

    fn message(&self, generation: u64) -> Vec<u8> {
        let mut message = Vec::with_capacity(LABEL.len() + 8 + self.rows.len() * 64);
        message.extend_from_slice(LABEL);
        message.extend_from_slice(&generation.to_be_bytes());
        for (key, row) in &self.rows {
            message.extend_from_slice(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_be_bytes());
            message.extend_from_slice(key.as_bytes());
            message.extend_from_slice(&row.digest);
        }
        message
    }

    fn check_head(&self, key: &StateKey, generation: u64, head: &[u8]) -> Result<(), StoreError> {
        let (head, code) = read_head(head)?;
        if !key.verifies(&self.message(head.generation), &code) {
            return Err(forged(
                HEAD,
                "its code is not that of the index under the root key",
            ));
        }

        if head.generation != generation {
            let what = format!(
                "it is of generation {}, and the store is of generation {generation}",
                head.generation
            );
            return Err(forged(HEAD, what));
        }
        Ok(())
    }

    /// Compares the loaded records with their rows. The encoding of rows is canonical, so matching
    /// rows are recognized without parsing.
    fn check_loaded(&self, records: &BTreeMap<String, Vec<u8>>) -> Result<(), StoreError> {
        let expected = rows_of(records);
        let there = self
            .rows
            .iter()
            .filter(|(key, _)| key.starts_with(LOADED_ROWS));

        if there.clone().eq(expected.iter()) {
            return Ok(());
        }

        let mut entries = Entries::new();
        for (key, row) in there {
            entries.extend(parsed(key, &row.bytes)?);
        }

        let keys: BTreeSet<&str> = entries
            .keys()
            .chain(records.keys())
            .map(String::as_str)
            .collect();

        for key in keys {
            compare(
                key,
                entries.get(key).map(String::as_str),
                records.get(key).map(Vec::as_slice),
            )?;
        }
        Ok(())
    }
}

/// Returns the head with an authentication code.
pub(super) fn head(generation: u64, code: &[u8; 32]) -> Vec<u8> {
    Entry::<HeadFields, ()>::Live(HeadFields {
        generation,
        code: STANDARD_NO_PAD.encode(code),
    })
    .into_bytes()
}

/// Returns the authentication code of a head without verifying it.
///
/// # Errors
/// [`StoreError::NotAuthentic`] or [`StoreError::Damaged`].
pub(super) fn code_of(head: &[u8]) -> Result<Vec<u8>, StoreError> {
    Ok(read_head(head)?.1)
}

fn read_head(head: &[u8]) -> Result<(HeadFields, Vec<u8>), StoreError> {
    let Entry::Live(head) = Entry::<HeadFields, ()>::read(HEAD, head)? else {
        return Err(forged(HEAD, "it is not live"));
    };
    let code = STANDARD_NO_PAD
        .decode(&head.code)
        .map_err(|_| forged(HEAD, "its code is not base64"))?;
    Ok((head, code))
}

/// Verifies a page of individually read records. Checks its records, and that no record is missing
/// between `after` and the last record. If the page is not full, checks up to the end.
///
/// # Errors
/// [`StoreError::NotAuthentic`].
pub(super) fn check_page(
    singles: &Entries,
    after: Option<&str>,
    limit: usize,
    page: &BTreeMap<String, Vec<u8>>,
) -> Result<(), StoreError> {
    use std::ops::Bound;

    let from = after
        .filter(|after| *after >= SINGLE)
        .map_or(Bound::Included(SINGLE), Bound::Excluded);
    let is_full = page.len() >= limit;
    let last = page.keys().next_back();
    let entries = singles.range::<str, _>((from, Bound::Unbounded));
    let entries = entries.take_while(|(key, _)| !is_full || last.is_some_and(|last| *key <= last));
    let keys: BTreeSet<&str> = entries
        .map(|(key, _)| key)
        .chain(page.keys())
        .map(String::as_str)
        .collect();
    for key in keys {
        compare(
            key,
            singles.get(key).map(String::as_str),
            page.get(key).map(Vec::as_slice),
        )?;
    }
    Ok(())
}

fn compare(key: &str, entry: Option<&str>, record: Option<&[u8]>) -> Result<(), StoreError> {
    match (entry, record) {
        (None, None) => Ok(()),
        (Some(digest), Some(record)) if encoded(&sha256(record)) == digest => Ok(()),
        (Some(_), Some(_)) => Err(forged(key, "it is not the record that was written last")),
        (None, Some(_)) => Err(forged(key, "it was added without the root key")),
        (Some(_), None) => Err(forged(key, "it was removed without the root key")),
    }
}

/// Creates the rows of records.
fn rows_of(records: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, IndexRow> {
    let mut rows: BTreeMap<(bool, u16), BTreeMap<&str, String>> = BTreeMap::new();
    for (key, record) in records {
        rows.entry(row_number(key))
            .or_default()
            .insert(key, encoded(&sha256(record)));
    }
    rows.into_iter()
        .map(|(number, entries)| (row_name(number), IndexRow::of(entries)))
        .collect()
}

fn parsed(key: &str, row: &[u8]) -> Result<Entries, StoreError> {
    match Entry::<Entries, ()>::read(key, row)? {
        Entry::Live(entries) => Ok(entries),
        Entry::Deleted(()) => Err(forged(key, "it is not live")),
    }
}

fn row_key(key: &str) -> String {
    row_name(row_number(key))
}

/// Returns the row of a record: true if the record is read individually, and the number of the row.
fn row_number(key: &str) -> (bool, u16) {
    let number = xxhash_rust::xxh3::xxh3_64(key.as_bytes()) % ROWS;
    (
        is_single(key),
        u16::try_from(number).expect("there are 1,024 rows"),
    )
}

fn row_name((single, number): (bool, u16)) -> String {
    format!(
        "{}{number:03x}",
        if single { SINGLE_ROWS } else { LOADED_ROWS }
    )
}

fn sha256(bytes: &[u8]) -> Digest {
    digest(&SHA256, bytes)
        .as_ref()
        .try_into()
        .expect("SHA-256 has 32 bytes")
}

fn encoded(digest: &Digest) -> String {
    STANDARD_NO_PAD.encode(digest)
}

fn forged(key: &str, what: impl Into<String>) -> StoreError {
    StoreError::NotAuthentic {
        key: key.to_owned(),
        what: what.into(),
    }
}

#[cfg(test)]
mod tests;
