//! Apps, their key versions and their collections: what may be done to them, over any [`ControlStore`].
//!
//! Every change loads all records, makes one of them new, and commits it on the generation it was made from. Where
//! another change came first it is made again from what is there then, so two changes at once are one after the other.
//! Private keys and token secrets rest under a key-encryption key (KEK); nothing unwrapped is written, logged or put
//! into an error.
//!
//! The fact a reader would get wrong: what is deleted leaves a tombstone. It keeps the number from being used again,
//! and its generation says from when on an instance cannot serve the old thing under its name any more.

mod collections;
pub(crate) mod fuzzing;
mod keys;
mod maps;
mod model;
mod record;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire_crypto::{AppId, Curve, Kek, KeyPair};

pub use maps::{MapState, MapStates};
pub use model::{
    App, AppChange, AppState, AppSummary, Collection, CollectionChange, CollectionKind, CollectionName,
    CollectionSummary, Format, KeyKind, KeySummary, Rules, RulesChange, Scope, Settings, State, Target,
    TokenKeySummary,
};
use record::{AppEntry, AppRecord, AppTombstone, Contents, Entry, StateName, app_key, collection_key, damaged};

use crate::{Commit, ControlStore, Instance, StoreError, part_of};

/// How often an instance asks for the generation and says that it lives, where the store does not tell it more often.
pub const POLL: Duration = Duration::from_secs(30);
/// Since when an instance that lives has said so at the latest: it may miss two polls.
pub const LIVE_AGE_MAX: Duration = Duration::from_secs(90);
/// How long what is deleted can be restored, unless told otherwise.
pub const DELETE_DELAY: Duration = Duration::from_secs(7 * 24 * 3_600);

/// How often a change is made again when others come first. Of any number at once one succeeds each time.
const TRIES_MAX: u32 = 64;
/// The longest pause before one is made again.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Removals in one call of [`Control::maintain`].
const REMOVALS_MAX: u64 = 1_024;

/// See the module. Every change is durable when it returns; after an error of the store it may have been made or not,
/// and may be repeated.
#[derive(Clone)]
pub struct Control {
    store: Arc<dyn ControlStore>,
    kek: Arc<Kek>,
}

/// A change of one record, and what its maker learns.
struct Edit<T> {
    key: String,
    record: Option<Vec<u8>>,
    made: T,
}

impl Edit<(AppSummary, Target)> {
    fn app(app: &AppId, record: AppRecord, target: Target) -> Result<Self, StoreError> {
        let made = (record.summary(app)?, target);
        Ok(Self { key: app_key(app), record: Some(AppEntry::Live(record).into_bytes()), made })
    }
}

impl Control {
    /// Over a store whose keys rest under `kek`.
    #[must_use]
    pub fn new(store: Arc<dyn ControlStore>, kek: Kek) -> Self {
        Self { store, kek: Arc::new(kek) }
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn ControlStore> {
        &self.store
    }

    /// The present generation.
    ///
    /// # Errors
    /// What the store says.
    pub async fn generation(&self) -> Result<u64, StoreError> {
        self.store.generation().await
    }

    /// Returns when the generation may have moved, as [`ControlStore::changed`].
    pub async fn changed(&self) {
        self.store.changed().await;
    }

    /// Everything, unwrapped.
    ///
    /// # Errors
    /// Any [`StoreError`]; one app that cannot be read fails the whole, so that no app silently disappears.
    pub async fn load(&self) -> Result<State, StoreError> {
        let snapshot = self.store.load().await?;
        let kek = Arc::clone(&self.kek);
        blocking(move || keys::unwrap_all(&kek, &Contents::read(&snapshot)?)).await
    }

    /// Every app, by name, without touching keys, and the generation this is true of.
    ///
    /// # Errors
    /// What the store says, or [`StoreError::Damaged`].
    pub async fn apps(&self) -> Result<(u64, Vec<AppSummary>), StoreError> {
        self.read(|contents| {
            let live = contents.apps.iter().filter_map(|(app, entry)| Some((app, entry.live()?)));
            Ok((contents.generation, live.map(|(app, record)| record.summary(app)).collect::<Result<_, _>>()?))
        })
        .await
    }

    /// One app, as [`Control::apps`].
    ///
    /// # Errors
    /// As there; [`StoreError::NoApp`].
    pub async fn app(&self, app: &AppId) -> Result<AppSummary, StoreError> {
        let app = app.clone();
        self.read(move |contents| contents.app(&app)?.summary(&app)).await
    }

    /// Makes an app with one key version per curve and a token key.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when the name is taken; the app there is untouched. [`StoreError::Conflict`] while an
    /// instance may serve another app of that name. [`StoreError::WrongKek`] when other apps' keys are under another.
    pub async fn create(&self, app: &AppId, curves: &[Curve]) -> Result<AppChange, StoreError> {
        let (app, curves, kek) = (app.clone(), curves.to_owned(), Arc::clone(&self.kek));
        let edit = move |contents: &Contents| {
            if contents.apps.get(&app).is_some_and(|entry| entry.live().is_some()) {
                return Err(StoreError::Exists { app: app.clone() });
            }
            keys::check_kek_of_all(&kek, contents)?;
            let highest = contents.apps.values().map(AppEntry::number).max().unwrap_or(0);
            let number = highest.checked_add(1).ok_or_else(|| damaged(&app_key(&app), "no number left".into()))?;
            let mut record = AppRecord::new(&app, number);
            for curve in &curves {
                record.add_new(&kek, &app, *curve)?;
            }
            record.add_token_key(&kek, &app)?;
            Edit::app(&app, record, Target::App)
        };
        self.change_app(edit).await
    }

    /// Makes the next version of one of an app's keys: it seals from then on, and the older ones go on opening. However
    /// it ends, no version that was there is lost; after a failure the new one is there or not, and a retry makes another.
    ///
    /// # Errors
    /// [`StoreError::NoApp`]; [`StoreError::Deleted`] while the app waits for its removal; [`StoreError::WrongKek`] when
    /// the app's other keys are under another one.
    pub async fn rotate(&self, app: &AppId, kind: KeyKind) -> Result<AppChange, StoreError> {
        self.add(app, move |kek, app, record| match kind {
            KeyKind::Pair(curve) => record.add_new(kek, app, curve).map(Target::Key),
            KeyKind::Token => record.add_token_key(kek, app).map(Target::TokenKey),
        })
        .await
    }

    /// Adds a key pair that was made elsewhere as the app's next version on its curve. Unless `seals` it only opens:
    /// others may hold it. Safe as [`Control::rotate`] is.
    ///
    /// # Errors
    /// As for [`Control::rotate`]; [`StoreError::KeyTaken`] when the app has a key of that id.
    pub async fn import(&self, app: &AppId, pair: KeyPair, seals: bool) -> Result<AppChange, StoreError> {
        self.add(app, move |kek, app, record| record.add(kek, app, &pair, seals).map(Target::Key)).await
    }

    /// Stops an app, whose calls are then refused, or a key version: nothing opens or seals under it any more. The newest
    /// active one that is left of its kind seals instead; if none is, that stops, because a key that leaked must be
    /// stopped at once. Safe to repeat.
    ///
    /// # Errors
    /// [`StoreError::NoApp`], [`StoreError::NoKey`] or [`StoreError::NoTokenKey`].
    pub async fn disable(&self, app: &AppId, target: Target) -> Result<AppChange, StoreError> {
        self.amend(app, target, |_, part| {
            *part.state = StateName::Disabled;
            Ok(())
        })
        .await
    }

    /// Takes a mistaken [`Control::disable`] back.
    ///
    /// # Errors
    /// As for [`Control::disable`]; [`StoreError::Deleted`] of what waits for its removal: it is restored first.
    pub async fn enable(&self, app: &AppId, target: Target) -> Result<AppChange, StoreError> {
        self.amend(app, target, |name, part| {
            if part.delete_unix_s.as_deref().is_some_and(Option::is_some) {
                return Err(StoreError::Deleted { name });
            }
            *part.state = StateName::Active;
            Ok(())
        })
        .await
    }

    /// Stops an app or a key version as [`Control::disable`] does, and has it removed for good after `delay`, by
    /// [`Control::maintain`]. Repeated, the last delay counts.
    ///
    /// # Errors
    /// As for [`Control::disable`]; [`StoreError::Invalid`] of a token key, under which rows would be left that nothing
    /// opens.
    pub async fn delete(&self, app: &AppId, target: Target, delay: Duration) -> Result<AppChange, StoreError> {
        self.amend(app, target, move |_, part| {
            let due = part.delete_unix_s.ok_or_else(|| StoreError::Invalid("a token key is never deleted".into()))?;
            *due = Some(unix_s().saturating_add(delay.as_secs()));
            Ok(())
        })
        .await
    }

    /// Takes a [`Control::delete`] back: what it was before, it is again.
    ///
    /// # Errors
    /// As for [`Control::disable`]; [`StoreError::Deleted`] once its time has come.
    pub async fn restore(&self, app: &AppId, target: Target) -> Result<AppChange, StoreError> {
        self.amend(app, target, |name, part| {
            let Some(due) = part.delete_unix_s else { return Ok(()) };
            if due.is_some_and(|due| due <= unix_s()) {
                return Err(StoreError::Deleted { name });
            }
            *due = None;
            Ok(())
        })
        .await
    }

    /// Changes an app's settings; what `change` leaves alone stays. Safe to repeat; `change` may be called again.
    ///
    /// # Errors
    /// [`StoreError::NoApp`].
    pub async fn configure(
        &self,
        app: &AppId,
        change: impl Fn(&mut Settings) + Send + Sync + 'static,
    ) -> Result<AppChange, StoreError> {
        let app = app.clone();
        self.change_app(move |contents| {
            let mut record = contents.app(&app)?.clone();
            let mut settings = record.settings.read(&app_key(&app))?;
            change(&mut settings);
            record.settings = settings.into();
            Edit::app(&app, record, Target::App)
        })
        .await
    }

    /// Removes what is past its time: apps, which leave a tombstone, key versions, and collections whose app is gone. At
    /// most 1,024 changes; gives how many were made. Several instances may do this at once.
    ///
    /// # Errors
    /// What the store says, or [`StoreError::Damaged`].
    pub async fn maintain(&self, now_unix_s: u64) -> Result<u64, StoreError> {
        let mut removals = 0;
        while removals < REMOVALS_MAX {
            match self.try_change(move |contents| Ok(removal(contents, now_unix_s))).await? {
                Some(_) => removals += 1,
                None => break,
            }
        }
        Ok(removals)
    }

    /// Says that an instance lives and which generation it serves. It does so with generation 0 before it first loads.
    ///
    /// # Errors
    /// What the store says.
    pub async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        self.store.beat(instance).await
    }

    /// Takes an instance out, at the end of its drain.
    ///
    /// # Errors
    /// What the store says.
    pub async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.store.leave(id).await
    }

    /// The instances that live, by id.
    ///
    /// # Errors
    /// What the store says.
    pub async fn instances(&self) -> Result<Vec<Instance>, StoreError> {
        self.store.instances(LIVE_AGE_MAX).await
    }

    /// What `of` makes of all records, which are many perhaps: read off the network threads.
    async fn read<T: Send + 'static>(
        &self,
        of: impl FnOnce(&Contents) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let snapshot = self.store.load().await?;
        blocking(move || of(&Contents::read(&snapshot)?)).await
    }

    /// Adds a key version to an app that stays, under the KEK of the others.
    async fn add(
        &self,
        app: &AppId,
        add: impl Fn(&Kek, &AppId, &mut AppRecord) -> Result<Target, StoreError> + Send + Sync + 'static,
    ) -> Result<AppChange, StoreError> {
        let (app, kek) = (app.clone(), Arc::clone(&self.kek));
        self.change_app(move |contents| {
            let mut record = contents.staying(&app)?.clone();
            keys::check_kek(&kek, &app, &record)?;
            let target = add(&kek, &app, &mut record)?;
            Edit::app(&app, record, target)
        })
        .await
    }

    /// Changes whether something of an app may be used. Also when it is so already, so that a retry is as good as a first
    /// try.
    async fn amend(
        &self,
        app: &AppId,
        target: Target,
        amend: impl Fn(String, Part<'_>) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Result<AppChange, StoreError> {
        let app = app.clone();
        self.change_app(move |contents| {
            let mut record = contents.app(&app)?.clone();
            let (name, part) = record.part(&app, target)?;
            amend(name, part)?;
            Edit::app(&app, record, target)
        })
        .await
    }

    async fn change_app(
        &self,
        edit: impl Fn(&Contents) -> Result<Edit<(AppSummary, Target)>, StoreError> + Send + Sync + 'static,
    ) -> Result<AppChange, StoreError> {
        let (generation, (app, target)) = self.change(edit).await?;
        Ok(AppChange { generation, app, target })
    }

    async fn change<T: Send + 'static>(
        &self,
        edit: impl Fn(&Contents) -> Result<Edit<T>, StoreError> + Send + Sync + 'static,
    ) -> Result<(u64, T), StoreError> {
        let made = self.try_change(move |contents| edit(contents).map(Some)).await?;
        Ok(made.expect("the edit always makes a change"))
    }

    /// Makes a change from what is there, as often as another one comes first. `None` when there is nothing to change.
    async fn try_change<T: Send + 'static>(
        &self,
        edit: impl Fn(&Contents) -> Result<Option<Edit<T>>, StoreError> + Send + Sync + 'static,
    ) -> Result<Option<(u64, T)>, StoreError> {
        let edit = Arc::new(edit);
        for tries in 0..TRIES_MAX {
            let edit = Arc::clone(&edit);
            // Keys are made and unwrapped in it, of all apps perhaps.
            let made = self.read(move |contents| {
                let Some(edit) = edit(contents)? else { return Ok(None) };
                Ok(Some((contents.generation, contents.tombstone(&edit.key), edit)))
            });
            let Some((base, tombstone, Edit { key, record, made })) = made.await? else { return Ok(None) };
            self.check_reuse(tombstone, &key).await?;
            match self.store.commit(base, &key, record.as_deref()).await? {
                Commit::Done(generation) => return Ok(Some((generation, made))),
                Commit::Moved => tokio::time::sleep(pause(tries)).await,
            }
        }
        Err(StoreError::Unavailable("other changes always came first".into()))
    }

    /// Refuses to put something where something else was while an instance that lives may not know that it is gone.
    async fn check_reuse(&self, tombstone: Option<u64>, key: &str) -> Result<(), StoreError> {
        let Some(generation) = tombstone else { return Ok(()) };
        let behind: Vec<_> = self.instances().await?.into_iter().filter(|it| it.generation < generation).collect();
        if behind.is_empty() {
            return Ok(());
        }
        let instances = behind.into_iter().map(|instance| instance.id).collect();
        Err(StoreError::Conflict { key: key.to_owned(), generation, instances })
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// What says of an app or a key whether it may be used.
struct Part<'a> {
    state: &'a mut StateName,
    /// `None`: it is never deleted.
    delete_unix_s: Option<&'a mut Option<u64>>,
}

impl AppRecord {
    /// What `target` is of this app, and its name for people.
    fn part(&mut self, app: &AppId, target: Target) -> Result<(String, Part<'_>), StoreError> {
        match target {
            Target::App => {
                let part = Part { state: &mut self.state, delete_unix_s: Some(&mut self.delete_unix_s) };
                Ok((format!("app {app}"), part))
            }
            Target::Key(key) => {
                let found = self.keys.iter_mut().find(|record| record.is(key));
                let found = found.ok_or_else(|| StoreError::NoKey { app: app.clone(), key })?;
                let part = Part { state: &mut found.state, delete_unix_s: Some(&mut found.delete_unix_s) };
                Ok((format!("key {key} of app {app}"), part))
            }
            Target::TokenKey(number) => {
                let found = self.token_keys.iter_mut().find(|record| record.number == number);
                let found = found.ok_or_else(|| StoreError::NoTokenKey { app: app.clone(), number })?;
                Ok((format!("token key {number} of app {app}"), Part { state: &mut found.state, delete_unix_s: None }))
            }
        }
    }
}

/// The first thing that is past its time.
fn removal(contents: &Contents, now_unix_s: u64) -> Option<Edit<()>> {
    let due = |delete: Option<u64>| delete.is_some_and(|due| due <= now_unix_s);
    for (app, record) in contents.apps.iter().filter_map(|(app, entry)| Some((app, entry.live()?))) {
        let entry = if due(record.delete_unix_s) {
            AppEntry::Deleted(AppTombstone { number: record.number, generation: contents.generation + 1 })
        } else if record.keys.iter().any(|key| due(key.delete_unix_s)) {
            let mut record = record.clone();
            record.keys.retain(|key| !due(key.delete_unix_s));
            AppEntry::Live(record)
        } else {
            continue;
        };
        return Some(Edit { key: app_key(app), record: Some(entry.into_bytes()), made: () });
    }
    let orphan = orphans(contents).next();
    orphan.map(|(app, name)| Edit { key: collection_key(app, name), record: None, made: () })
}

/// When [`removal`] first finds something.
fn first_removal(contents: &Contents) -> Option<u64> {
    if orphans(contents).next().is_some() {
        return Some(0);
    }
    let live = contents.apps.values().filter_map(Entry::live);
    live.flat_map(|app| app.keys.iter().map(|key| key.delete_unix_s).chain([app.delete_unix_s])).flatten().min()
}

/// Collections whose app is gone.
fn orphans(contents: &Contents) -> impl Iterator<Item = (&AppId, &CollectionName)> {
    contents.collections.iter().flat_map(|(app, collections)| {
        let number = contents.apps.get(app).and_then(Entry::live).map(|live| live.number);
        let orphans = collections.iter().filter(move |(_, entry)| number != Some(entry.app_number()));
        orphans.map(move |(name, _)| (app, name))
    })
}

/// Chance spreads those who were too late, so that they do not meet again.
fn pause(tries: u32) -> Duration {
    part_of(Duration::from_millis(1 << tries.min(10)).min(PAUSE_MAX))
}

/// Off the network threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let failed = |_| StoreError::Unavailable("the work on its keys ended early".into());
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
