//! Shows that a replaced root key opens nothing, although its providers still unwrap it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sealwire_apps::{Control, FindKek as _, ROOT_RECORD, RootRecord, fuzzing};
use sealwire_engine::root::{Providers, Unsealer};
use sealwire_engine::stores::{Access, Stores};
use sealwire_settings::{Config, Environment};
use sealwire_store::{Commit, ControlStore as _, MemoryStore, Snapshot, StoreError, everything};

/// The store of a configuration, read without verification of its records.
pub(crate) struct RawStore {
    config: Config,
    stores: Stores,
}

impl RawStore {
    pub(crate) async fn open(config: &Path) -> Self {
        let config = Config::load(config, &Environment::default()).unwrap();
        let stores = Stores::open(&config, Access::Change).await.unwrap();
        Self { config, stores }
    }

    /// Closes the store, so that another process can open it.
    pub(crate) async fn close(self) {
        self.stores.close().await;
    }

    /// Returns all records as they are stored.
    pub(crate) async fn read(&self) -> Snapshot {
        everything(&*self.stores.control).await.unwrap()
    }

    /// Puts a whole state of a later generation in the place of the present one, without
    /// verification.
    pub(crate) async fn replace(&self, state: &Snapshot) {
        let base = self.stores.control.generation().await.unwrap();
        assert_eq!(
            self.stores.control.replace(base, state).await.unwrap(),
            Commit::Done(state.generation)
        );
    }

    /// Writes a whole state, with its generation, into a store without one.
    pub(crate) async fn put_into_new_store(&self, state: &Snapshot) {
        assert_eq!(
            self.stores.control.replace(0, state).await.unwrap(),
            Commit::Done(state.generation)
        );
    }

    /// Checks that the active root key of `before`, which is not the present one, opens no record
    /// of the present state. The providers must still unwrap each of its slots. Its record is
    /// refused in a copy of the present state.
    pub(crate) async fn opens_nothing_with_root_of(&self, before: &Snapshot) {
        let after = self.read().await;
        let (old, present) = (root_of(before), root_of(&after));
        assert!(old.set == present.set && old.active.id != present.active.id);
        let kek = Unsealer::open(&self.config)
            .unwrap()
            .find(Some(&present))
            .await
            .unwrap();
        let providers = Providers::load(&self.config).unwrap();
        for slot in &old.active.slots {
            let root = providers
                .unwrap_slot(old.set, &old.active, slot)
                .await
                .unwrap();
            let old_kek = root
                .kek_with_wrapped_audit(&old.set, &old.wrapped_audit)
                .unwrap();
            let mut apps = 0;
            for (key, record) in after
                .records
                .iter()
                .filter(|(key, _)| key.starts_with("app/"))
            {
                let app = Snapshot {
                    records: [(key.clone(), record.clone())].into(),
                    ..after
                };
                let opened = fuzzing::load(&old_kek, &app);
                assert!(
                    matches!(opened, Err(StoreError::WrongKek { .. })),
                    "slot {} opens {key}",
                    slot.number
                );
                fuzzing::load(&kek, &app).unwrap();
                apps += 1;
            }
            assert!(apps > 0);
        }
        self.load_copy(after.generation, after.records.clone())
            .await
            .unwrap();
        let mut records = after.records;
        records.insert(ROOT_RECORD.into(), before.records[ROOT_RECORD].clone());
        let refused = self.load_copy(after.generation, records).await.unwrap_err();
        assert!(
            refused.to_string().contains("record head is not authentic"),
            "{refused}"
        );
    }

    /// Loads a copy of the store with other records, as an engine does.
    async fn load_copy(
        &self,
        generation: u64,
        records: BTreeMap<String, Vec<u8>>,
    ) -> Result<(), StoreError> {
        let copy = MemoryStore::default();
        let commit = copy
            .replace(
                0,
                &Snapshot {
                    generation,
                    records,
                },
            )
            .await
            .unwrap();
        assert_eq!(commit, Commit::Done(generation));
        let unsealer = Unsealer::open(&self.config).unwrap();
        Control::with_finder(Arc::new(copy), Arc::new(unsealer))
            .load()
            .await
            .map(drop)
    }
}

/// Returns the root record of a store that has one.
pub(crate) fn root_of(snapshot: &Snapshot) -> RootRecord {
    RootRecord::of(snapshot).unwrap().unwrap()
}
