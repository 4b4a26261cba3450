//! Entry points for fuzzing the parser of control records.

use sealwire_crypto::Kek;

use super::record::{Contents, SIGNING_KEY, SigningKeyEntry, app_key, collection_key};
use super::record_index::{HEAD, RecordIndex, head, is_of_index};
use super::{ROOT_RECORD, State, keys};
use sealwire_store::{Snapshot, StoreError};

/// Parses all records and serializes them again.
///
/// # Errors
/// [`StoreError::Damaged`].
pub fn records(snapshot: &Snapshot) -> Result<Snapshot, StoreError> {
    let Contents {
        generation,
        apps,
        collections,
        signing_key,
        root,
        access,
    } = Contents::read(snapshot)?;
    let apps = apps
        .into_iter()
        .map(|(app, entry)| (app_key(&app), entry.into_bytes()));
    let collections = collections.into_iter().flat_map(|(app, all)| {
        all.into_iter()
            .map(move |(name, entry)| (collection_key(&app, &name), entry.into_bytes()))
    });
    let signing_key = signing_key.map(|record| {
        (
            SIGNING_KEY.into(),
            SigningKeyEntry::Live(record).into_bytes(),
        )
    });
    let root = root
        .map(|record| Ok::<_, StoreError>((ROOT_RECORD.into(), record.to_bytes()?)))
        .transpose()?;
    let records = apps
        .chain(collections)
        .chain(signing_key)
        .chain(root)
        .chain(access)
        .collect();
    Ok(Snapshot {
        generation,
        records,
    })
}

/// Parses all records and unwraps their keys.
///
/// # Errors
/// Any [`StoreError`].
pub fn load(kek: &Kek, snapshot: &Snapshot) -> Result<State, StoreError> {
    keys::unwrap_state(kek, &Contents::read(snapshot)?)
}

/// Adds an index, authenticated with a root key, to records without an index. Returns `None` if the
/// records already have an index.
pub fn authenticated(kek: &Kek, snapshot: &Snapshot) -> Option<Snapshot> {
    let key = kek.state_key()?;
    if snapshot.records.keys().any(|key| is_of_index(key)) {
        return None;
    }
    let index = RecordIndex::of(&snapshot.records);
    let mut records = snapshot.records.clone();
    records.insert(
        HEAD.into(),
        head(snapshot.generation, &index.code(key, snapshot.generation)),
    );
    records.extend(index.into_rows());
    Some(Snapshot {
        generation: snapshot.generation,
        records,
    })
}

/// Verifies the records that a store with a root key loaded, and returns them without the index.
///
/// # Errors
/// [`StoreError::NotAuthentic`] or [`StoreError::Damaged`].
pub fn verified(kek: &Kek, loaded: &Snapshot) -> Result<Snapshot, StoreError> {
    let key = kek
        .state_key()
        .ok_or_else(|| StoreError::RootKey("not the key of a root key".into()))?;
    RecordIndex::open(key, loaded.clone()).map(|(snapshot, _)| snapshot)
}
