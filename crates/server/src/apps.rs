//! The apps in memory: what calls look up, and the watch on the store behind it.
//!
//! A look-up is a read lock and a hash; the store is only touched at start and when its generation moves, off the
//! network threads. If the store cannot be read, the last good state stays in use and readiness says so.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sealwire_crypto::{AppKeys, OpenedSchedules};
use sealwire_store::StoreError;
use sealwire_store::folder::{App, AppStore};

use crate::admin::{AdminState, Condition};

/// How often the store's generation is looked at. A change is served this much later at most.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// How often what is kept grows older.
const AGE_PERIOD: Duration = Duration::from_secs(1);

/// Every app with its keys and settings.
pub struct Apps {
    store: Arc<dyn AppStore>,
    table: RwLock<Arc<Table>>,
    /// Schedules that calls opened; those of an app go when its keys change.
    opened: Option<Arc<OpenedSchedules>>,
}

struct Table {
    generation: u64,
    apps: HashMap<Box<str>, App>,
}

impl Apps {
    /// Loads every app. Blocks on the store.
    ///
    /// # Errors
    ///
    /// What the store says.
    pub fn load(store: Arc<dyn AppStore>, opened: Option<Arc<OpenedSchedules>>) -> Result<Self, StoreError> {
        let table = RwLock::new(Arc::new(Table::load(&*store)?));
        Ok(Self { store, table, opened })
    }

    /// Schedules that calls opened, if they are kept.
    pub fn opened(&self) -> Option<&Arc<OpenedSchedules>> {
        self.opened.as_ref()
    }

    /// The app of that name, if there is one, and the generation this is true of.
    pub fn find(&self, name: &str) -> (u64, Option<App>) {
        let table = self.table();
        (table.generation, table.apps.get(name).cloned())
    }

    /// The keys of every app.
    pub fn all(&self) -> Vec<Arc<AppKeys>> {
        self.table().apps.values().map(|app| Arc::clone(&app.keys)).collect()
    }

    /// The generation that calls are served under.
    pub fn generation(&self) -> u64 {
        self.table().generation
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads the apps again if the store's generation moved. Blocks on the store.
    fn refresh(&self) -> Result<(), StoreError> {
        if self.store.generation()? != self.generation() {
            let mut table = Table::load(&*self.store)?;
            let before = self.table();
            table.keep_same(&before);
            let table = Arc::new(table);
            tracing::info!(generation = table.generation, apps = table.apps.len(), "apps loaded");
            *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&table);
            self.purge_changed(&before, &table);
            // Those of apps whose setting is off now.
            self.end_epochs(Instant::now());
        }
        Ok(())
    }

    /// Wipes what was kept and made ahead for keys that changed or went.
    fn purge_changed(&self, before: &Table, after: &Table) {
        for (name, old) in &before.apps {
            if after.apps.get(name).is_none_or(|new| !Arc::ptr_eq(&old.keys, &new.keys)) {
                old.keys.versions().iter().for_each(|version| version.cool());
                if let Some(opened) = &self.opened {
                    opened.purge(old.keys.app());
                }
            }
        }
    }

    /// Wipes what is past its time until dropped, however long the store takes to answer meanwhile.
    pub async fn age(self: Arc<Self>) {
        loop {
            tokio::time::sleep(AGE_PERIOD).await;
            if let Some(opened) = &self.opened {
                opened.tick();
            }
            self.end_epochs(Instant::now());
        }
    }

    /// Ends every epoch that would be over at the next look: rather early than late.
    fn end_epochs(&self, now: Instant) {
        for app in self.table().apps.values() {
            app.keys.end_epochs(app.settings.epoch, now + AGE_PERIOD);
        }
    }

    /// Follows the store until dropped.
    pub async fn watch(self: Arc<Self>, admin: Arc<AdminState>) {
        let mut failing = false;
        loop {
            tokio::time::sleep(WATCH_PERIOD).await;
            let apps = Arc::clone(&self);
            let refreshed = tokio::task::spawn_blocking(move || apps.refresh()).await;
            let failure = match refreshed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("loading the apps panicked".to_owned()),
            };
            if let (Some(error), false) = (&failure, failing) {
                tracing::error!(error, "the store cannot be read; the last good state stays in use");
            }
            failing = failure.is_some();
            admin.readiness.set(Condition::Store, !failing);
        }
    }
}

impl Table {
    fn load(store: &dyn AppStore) -> Result<Self, StoreError> {
        let (generation, apps) = store.load()?;
        let apps = apps.into_iter().map(|app| (app.keys.app().as_str().into(), app)).collect();
        Ok(Self { generation, apps })
    }

    /// Takes over the keys that did not change, with what was made ahead for them. Settings are the new ones.
    fn keep_same(&mut self, before: &Self) {
        for (name, app) in &mut self.apps {
            if let Some(old) = before.apps.get(name).filter(|old| old.keys.is_same(&app.keys)) {
                app.keys = Arc::clone(&old.keys);
            }
        }
    }
}

impl std::fmt::Debug for Apps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Apps").field("generation", &self.generation()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sealwire_crypto::{AppId, Curve, Encoding, EpochLifetime, Kek, Sealer};
    use sealwire_store::Settings;
    use sealwire_store::folder::FolderStore;

    use super::*;

    #[test]
    fn a_setting_changes_alone_and_what_was_made_ahead_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore::open(folder.path(), Kek::from_hex(&"5a".repeat(32)).unwrap()).unwrap();
        let (store, shop) = (Arc::new(store), AppId::new("shop").unwrap());
        store.create(&shop, &Curve::ALL).unwrap();
        let apps = Apps::load(store.clone(), None).unwrap();
        let find = || apps.find("shop").1.unwrap();
        let before = find();
        assert_eq!(before.settings, Settings::default());

        let epoch = EpochLifetime::from_ms(5).ok();
        store.configure(&shop, &|settings| settings.epoch = epoch).unwrap();
        apps.refresh().unwrap();
        assert_eq!((find().settings.epoch, apps.generation()), (epoch, 2));
        assert!(Arc::ptr_eq(&before.keys, &find().keys));

        store.rotate(&shop, Curve::P256).unwrap();
        apps.refresh().unwrap();
        assert_eq!(find().settings.epoch, epoch);
        assert!(!Arc::ptr_eq(&before.keys, &find().keys), "other keys are taken");
    }

    #[test]
    fn an_epoch_ends_with_its_keys_its_setting_and_rather_early_than_late() {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore::open(folder.path(), Kek::from_hex(&"5a".repeat(32)).unwrap()).unwrap();
        let (store, shop) = (Arc::new(store), AppId::new("shop").unwrap());
        store.create(&shop, &[Curve::P256]).unwrap();
        let lifetime = EpochLifetime::from_ms(15_000).unwrap();
        store.configure(&shop, &|settings| settings.epoch = Some(lifetime)).unwrap();
        let apps = Apps::load(store.clone(), None).unwrap();
        let begin = || {
            let keys = apps.find("shop").1.unwrap().keys;
            let newest = Arc::clone(keys.newest(Curve::P256).unwrap());
            Sealer::in_epoch(&shop, newest, lifetime, Instant::now, Encoding::Text, b"").unwrap();
            keys
        };
        let has_epoch = |keys: &AppKeys| format!("{keys:?}").contains("epoch: true");
        let keys = begin();
        let now = Instant::now();
        for (later_ms, lives) in [(0, true), (13_000, true), (14_000, false)] {
            apps.end_epochs(now + Duration::from_millis(later_ms));
            assert_eq!(has_epoch(&keys), lives, "{later_ms}");
        }

        store.configure(&shop, &|settings| settings.epoch = None).unwrap();
        begin();
        apps.refresh().unwrap();
        assert!(!has_epoch(&keys), "at once");

        let first = keys.versions()[0].id;
        for change in 0..2 {
            let keys = begin();
            assert!(has_epoch(&keys));
            match change {
                0 => store.rotate(&shop, Curve::P256).map(drop).unwrap(),
                _ => store.disable(&shop, first).map(drop).unwrap(),
            }
            apps.refresh().unwrap();
            assert!(!has_epoch(&keys), "at once");
        }
    }
}
