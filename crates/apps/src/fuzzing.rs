//! Entry points for fuzzing the parser of control records.

use sealwire_crypto::Kek;

use super::record::{Contents, SIGNING_KEY, SigningKeyEntry, app_key, collection_key};
use super::{ROOT_RECORD, State, keys};
use sealwire_store::{Snapshot, StoreError};

/// Parses all records and serializes them again.
///
/// # Errors
/// [`StoreError::Damaged`].
pub fn records(snapshot: &Snapshot) -> Result<Snapshot, StoreError> {
    let Contents { generation, apps, collections, signing_key, root, access } = Contents::read(snapshot)?;
    let apps = apps.into_iter().map(|(app, entry)| (app_key(&app), entry.into_bytes()));
    let collections = collections.into_iter().flat_map(|(app, all)| {
        all.into_iter().map(move |(name, entry)| (collection_key(&app, &name), entry.into_bytes()))
    });
    let signing_key = signing_key.map(|record| (SIGNING_KEY.into(), SigningKeyEntry::Live(record).into_bytes()));
    let root = root.map(|record| Ok::<_, StoreError>((ROOT_RECORD.into(), record.to_bytes()?))).transpose()?;
    let records = apps.chain(collections).chain(signing_key).chain(root).chain(access).collect();
    Ok(Snapshot { generation, records })
}

/// Parses all records and unwraps their keys.
///
/// # Errors
/// Any [`StoreError`].
pub fn load(kek: &Kek, snapshot: &Snapshot) -> Result<State, StoreError> {
    keys::unwrap_state(kek, &Contents::read(snapshot)?)
}
