//! Operations on apps, their key versions and their collections, over any [`ControlStore`].
//!
//! Every change loads all records, edits one of them, and commits the edit on the generation that
//! was loaded. If another change was committed first, the edit is repeated on the new records.
//! Concurrent changes therefore take effect one after the other. Private keys and token secrets are
//! stored wrapped under a key-encryption key (KEK), which is given or derived from the store's root
//! key ([`RootRecord`]). The root key also authenticates all records ([`AuthenticatedStore`]).
//! Unwrapped keys are never written, logged or put into an error.
//!
//! Note: deleting an app or a collection leaves a tombstone. The tombstone keeps the number from
//! being reused. The generation of the tombstone shows when no instance can serve the deleted
//! object any more.

mod authenticated;
mod collections;
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod maps;
mod model;
mod record;
mod record_index;
mod root;
mod root_record;
mod schema_record;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire_crypto::{AppId, Kek, KeyPair, KeyState, Origin, Suite};

pub use authenticated::{AuthenticatedStore, StateId};
pub use maps::{MapState, MapStates};
pub use model::{
    App, AppChange, AppState, AppSummary, Collection, CollectionChange, CollectionContent,
    CollectionKind, CollectionName, CollectionRules, CollectionRulesChange, CollectionSummary,
    DefaultFormat, KeyKind, KeySummary, Scope, Settings, State, Target, TokenKeySummary,
};
pub use root::{FIRST_SLOT, FindKek, Freshness, SlotChange};
pub use root_record::{IncomingRoot, ROOT_RECORD, RootEntry, RootRecord, RootSlot, SLOTS_MAX};

use record::{
    AppEntry, AppRecord, AppTombstone, Contents, Entry, SIGNING_KEY, SigningKeyEntry, StateName,
    app_key, collection_key, damaged,
};

use sealwire_store::{Commit, ControlStore, Instance, LIVE_AGE_MAX, StoreError, part_of};

/// Characters of an instance's address and of its id in an error.
const INSTANCE_CHARS_SHOWN: usize = 64;
/// Interval at which an instance polls the generation and reports that it is alive, if the store
/// does not notify it earlier.
pub const POLL: Duration = Duration::from_secs(30);
/// Default time for which a deleted app or key can be restored.
pub const DELETE_DELAY: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Maximum number of attempts for a change when other changes are committed first. In each round,
/// one of the concurrent changes succeeds.
const TRIES_MAX: u32 = 64;
/// Maximum pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Maximum number of removals in one call of [`Control::maintain`].
const REMOVALS_MAX: u64 = 1_024;

/// The operations on apps, keys and collections; see the module documentation. A change is durable
/// when its method returns. After a store error, the change may or may not have been made, and can
/// be repeated.
#[derive(Clone)]
pub struct Control {
    store: Arc<AuthenticatedStore>,
    keks: Arc<dyn FindKek>,
}

/// A change of one record, and the result for the method that made it.
struct RecordEdit<T> {
    key: String,
    record: Option<Vec<u8>>,
    made: T,
    /// Generation of the removal of an object whose name the edit reuses.
    reused: Option<u64>,
}

/// An edit of the records of generation `base`.
struct PreparedEdit<T> {
    base: u64,
    /// Generation in which the record at the key was removed, if any.
    tombstone: Option<u64>,
    edit: RecordEdit<T>,
}

impl<T> PreparedEdit<T> {
    fn new(contents: &Contents, edit: RecordEdit<T>) -> Self {
        let tombstone = contents.tombstone(&edit.key).max(edit.reused);
        Self {
            base: contents.generation,
            tombstone,
            edit,
        }
    }
}

impl RecordEdit<(AppSummary, Target)> {
    fn app(app: &AppId, record: AppRecord, target: Target) -> Result<Self, StoreError> {
        let made = (record.summary(app)?, target);
        Ok(Self {
            key: app_key(app),
            record: Some(AppEntry::Live(record).into_bytes()),
            made,
            reused: None,
        })
    }
}

impl Control {
    /// Creates a control over a store without a root key, whose keys are wrapped under `kek`.
    #[must_use]
    pub fn new(store: Arc<dyn ControlStore>, kek: Kek) -> Self {
        Self::with_finder(store, Arc::new(Arc::new(kek)))
    }

    /// Creates a control over a store. `keks` supplies the KEK whenever keys are wrapped or
    /// unwrapped.
    #[must_use]
    pub fn with_finder(store: Arc<dyn ControlStore>, keks: Arc<dyn FindKek>) -> Self {
        Self {
            store: Arc::new(AuthenticatedStore::new(store, Arc::clone(&keks))),
            keks,
        }
    }

    /// Returns the underlying store, whose records are verified.
    #[must_use]
    pub fn store(&self) -> &Arc<AuthenticatedStore> {
        &self.store
    }

    /// Returns the current generation.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn generation(&self) -> Result<u64, StoreError> {
        self.store.generation().await
    }

    /// Waits until the generation may have changed, as [`ControlStore::changed`] does.
    pub async fn changed(&self) {
        self.store.changed().await;
    }

    /// Loads the state of all apps, with unwrapped keys.
    ///
    /// # Errors
    /// Any [`StoreError`]. A single unreadable app fails the whole load, so that no app disappears
    /// silently.
    pub async fn load(&self) -> Result<State, StoreError> {
        self.read_with_kek(keys::unwrap_state).await
    }

    /// Returns every app, by name, and the generation of the records. Does not unwrap keys. If the
    /// store has a root key, it is required to verify the records.
    ///
    /// # Errors
    /// Any error of the store, or [`StoreError::Damaged`]. As in every method,
    /// [`StoreError::RootKey`], [`StoreError::NotAuthentic`] and [`StoreError::RolledBack`].
    pub async fn apps(&self) -> Result<(u64, Vec<AppSummary>), StoreError> {
        self.read(|contents| {
            let live = contents
                .apps
                .iter()
                .filter_map(|(app, entry)| Some((app, entry.live()?)));
            Ok((
                contents.generation,
                live.map(|(app, record)| record.summary(app))
                    .collect::<Result<_, _>>()?,
            ))
        })
        .await
    }

    /// Returns one app, as [`Control::apps`] does.
    ///
    /// # Errors
    /// As for [`Control::apps`]; [`StoreError::NoApp`].
    pub async fn app(&self, app: &AppId) -> Result<AppSummary, StoreError> {
        let app = app.clone();
        self.read(move |contents| contents.app(&app)?.summary(&app))
            .await
    }

    /// Creates an app with one key version per suite and a token key. The app writes
    /// [`Suite::OF_NEW_APPS`] if `suites` contains it, otherwise [`Suite::UNNAMED`].
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the name is taken; the existing app is not changed.
    /// [`StoreError::Conflict`] while an instance can still serve a removed app of that name.
    /// [`StoreError::WrongKek`] if the keys of other apps are wrapped under another KEK.
    pub async fn create(&self, app: &AppId, suites: &[Suite]) -> Result<AppChange, StoreError> {
        let app = app.clone();
        let suites = suites.to_owned();
        self.change_app_keys(move |kek, contents| {
            if contents
                .apps
                .get(&app)
                .is_some_and(|entry| entry.live().is_some())
            {
                return Err(StoreError::Exists { app: app.clone() });
            }
            keys::check_kek_for_all(kek, contents)?;
            let highest = contents
                .apps
                .values()
                .map(AppEntry::number)
                .max()
                .unwrap_or(0);
            let number = highest
                .checked_add(1)
                .ok_or_else(|| damaged(&app_key(&app), "no number left".into()))?;
            let write_suite = suites
                .iter()
                .find(|suite| **suite == Suite::OF_NEW_APPS)
                .unwrap_or(&Suite::UNNAMED);
            let mut record = AppRecord::new(&app, number, *write_suite);
            for suite in &suites {
                record.add_generated_key(kek, &app, *suite, Origin::Inside)?;
            }
            record.add_token_key(kek, &app)?;
            RecordEdit::app(&app, record, Target::App)
        })
        .await
    }

    /// Creates the next version of one of an app's keys. Afterwards the new version seals, and the
    /// older versions still open. Existing versions are never lost. After a failure the new version
    /// may or may not exist, and a retry creates another version.
    ///
    /// # Errors
    /// [`StoreError::NoApp`]; [`StoreError::Deleted`] while the app waits for its removal;
    /// [`StoreError::WrongKek`] if the other keys of the app are wrapped under another KEK;
    /// [`StoreError::Invalid`] if the suite of [`KeyKind::Outside`] does not publish public keys.
    pub async fn rotate(&self, app: &AppId, kind: KeyKind) -> Result<AppChange, StoreError> {
        if let KeyKind::Outside(suite) = kind {
            if !Suite::PUBLISHED.contains(&suite) {
                return Err(StoreError::Invalid(format!(
                    "no public keys of suite {} are published",
                    suite.name()
                )));
            }
            self.create_signing_key(app).await?;
        }

        self.add(app, move |kek, app, record| match kind {
            KeyKind::Suite(suite) => record
                .add_generated_key(kek, app, suite, Origin::Inside)
                .map(Target::Key),
            KeyKind::Outside(suite) => record
                .add_generated_key(kek, app, suite, Origin::Outside)
                .map(Target::Key),
            KeyKind::Token => record.add_token_key(kek, app).map(Target::TokenKey),
        })
        .await
    }

    /// Adds an external key pair as the app's next version of its suite. If `seals` is false the
    /// version only opens, because others can hold the key. A failure has the same effects as in
    /// [`Control::rotate`].
    ///
    /// # Errors
    /// As for [`Control::rotate`]; [`StoreError::KeyTaken`] if the app has a key with that id.
    pub async fn import(
        &self,
        app: &AppId,
        pair: KeyPair,
        seals: bool,
    ) -> Result<AppChange, StoreError> {
        self.add(app, move |kek, app, record| {
            record
                .add_key_pair(kek, app, &pair, seals, Origin::Inside)
                .map(Target::Key)
        })
        .await
    }

    /// Creates the key that signs published public keys, unless it exists. The KEK must be the KEK
    /// of the app's keys.
    async fn create_signing_key(&self, app: &AppId) -> Result<(), StoreError> {
        let app = app.clone();
        self.try_change_keys(move |kek, contents| {
            if contents.signing_key.is_some() {
                return Ok(None);
            }
            keys::check_kek(kek, &app, contents.staying(&app)?)?;
            let record = SigningKeyEntry::Live(keys::new_signing_key(kek)?).into_bytes();
            Ok(Some(RecordEdit {
                key: SIGNING_KEY.into(),
                record: Some(record),
                made: (),
                reused: None,
            }))
        })
        .await
        .map(drop)
    }

    /// Disables an app, whose requests are then denied, or a key version, which then neither opens
    /// nor seals. The newest remaining active version of the kind seals instead. If no version
    /// remains, sealing stops, because a leaked key must be disabled at once. This method is
    /// idempotent.
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

    /// Reverts a mistaken [`Control::disable`].
    ///
    /// # Errors
    /// As for [`Control::disable`]; [`StoreError::Deleted`] if the target waits for its removal and
    /// must be restored first.
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

    /// Disables an app or a key version as [`Control::disable`] does, and schedules its permanent
    /// removal after `delay`. [`Control::maintain`] removes it. If this method is called again, the
    /// last delay applies.
    ///
    /// # Errors
    /// As for [`Control::disable`]; [`StoreError::Invalid`] for a token key, because nothing could
    /// open the remaining rows.
    pub async fn delete(
        &self,
        app: &AppId,
        target: Target,
        delay: Duration,
    ) -> Result<AppChange, StoreError> {
        self.amend(app, target, move |_, part| {
            let due = part
                .delete_unix_s
                .ok_or_else(|| StoreError::Invalid("a token key is never deleted".into()))?;
            *due = Some(unix_s().saturating_add(delay.as_secs()));
            Ok(())
        })
        .await
    }

    /// Reverts a [`Control::delete`]. Restores the state before the deletion.
    ///
    /// # Errors
    /// As for [`Control::disable`]; [`StoreError::Deleted`] if the removal is due.
    pub async fn restore(&self, app: &AppId, target: Target) -> Result<AppChange, StoreError> {
        self.amend(app, target, |name, part| {
            let Some(due) = part.delete_unix_s else {
                return Ok(());
            };
            if due.is_some_and(|due| due <= unix_s()) {
                return Err(StoreError::Deleted { name });
            }
            *due = None;
            Ok(())
        })
        .await
    }

    /// Changes an app's settings. Settings that `change` does not modify are kept. Idempotent if
    /// `change` is; `change` can be called several times.
    ///
    /// # Errors
    /// [`StoreError::NoApp`]; [`StoreError::Invalid`] if requests would write a suite that cannot
    /// be opened, or for which the app has no key that seals.
    pub async fn configure(
        &self,
        app: &AppId,
        change: impl Fn(&mut Settings) + Send + Sync + 'static,
    ) -> Result<AppChange, StoreError> {
        let app = app.clone();
        self.change_app(move |contents| {
            let mut record = contents.app(&app)?.clone();
            let mut settings = record.settings.read(&app_key(&app))?;
            let before = settings;
            change(&mut settings);
            if settings != before {
                check_suites(&app, &record, &settings)?;
            }
            record.settings = settings.into();
            RecordEdit::app(&app, record, Target::App)
        })
        .await
    }

    /// Removes everything whose removal is due: apps, which leave a tombstone, key versions, and
    /// collections of removed apps. Makes at most 1,024 changes, and returns the number of changes
    /// made. Several instances can run this method concurrently.
    ///
    /// # Errors
    /// Any error of the store, or [`StoreError::Damaged`].
    pub async fn maintain(&self, now_unix_s: u64) -> Result<u64, StoreError> {
        let mut removals = 0;
        while removals < REMOVALS_MAX {
            match self
                .try_change(move |contents| Ok(removal(contents, now_unix_s)))
                .await?
            {
                Some(_) => removals += 1,
                None => break,
            }
        }
        Ok(removals)
    }

    /// Reports that an instance is alive and which generation it serves. Before its first load an
    /// instance reports generation 0.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        self.store.beat(instance).await
    }

    /// Removes an instance at the end of its drain.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.store.leave(id).await
    }

    /// Returns the live instances, by id.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn instances(&self) -> Result<Vec<Instance>, StoreError> {
        self.store.instances(LIVE_AGE_MAX).await
    }

    /// Applies `of` to all records. There can be many records, so parsing runs off the network
    /// threads.
    async fn read<T: Send + 'static>(
        &self,
        of: impl FnOnce(&Contents) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let snapshot = self.store.load().await?;
        blocking(move || of(&Contents::read(&snapshot)?)).await
    }

    /// Applies `of` to all records and the KEK of their keys.
    async fn read_with_kek<T: Send + 'static>(
        &self,
        of: impl FnOnce(&Kek, &Contents) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (snapshot, kek) = self.store.load_with_kek().await?;
        blocking(move || of(&kek, &Contents::read(&snapshot)?)).await
    }

    /// Adds a key version under the KEK of the other keys. The app must not wait for its removal.
    async fn add(
        &self,
        app: &AppId,
        add: impl Fn(&Kek, &AppId, &mut AppRecord) -> Result<Target, StoreError> + Send + Sync + 'static,
    ) -> Result<AppChange, StoreError> {
        let app = app.clone();
        self.change_app_keys(move |kek, contents| {
            let mut record = contents.staying(&app)?.clone();
            keys::check_kek(kek, &app, &record)?;
            let target = add(kek, &app, &mut record)?;
            RecordEdit::app(&app, record, target)
        })
        .await
    }

    /// Changes the state or the deletion time of an app or a key. Commits even if nothing changes,
    /// so that a retry has the same result as the first attempt.
    async fn amend(
        &self,
        app: &AppId,
        target: Target,
        amend: impl Fn(String, StateFields<'_>) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Result<AppChange, StoreError> {
        let app = app.clone();
        self.change_app(move |contents| {
            let mut record = contents.app(&app)?.clone();
            let (name, part) = record.part(&app, target)?;
            amend(name, part)?;
            RecordEdit::app(&app, record, target)
        })
        .await
    }

    async fn change_app(
        &self,
        edit: impl Fn(&Contents) -> Result<RecordEdit<(AppSummary, Target)>, StoreError>
        + Send
        + Sync
        + 'static,
    ) -> Result<AppChange, StoreError> {
        let (generation, (app, target)) = self.change(edit).await?;
        Ok(AppChange {
            generation,
            app,
            target,
        })
    }

    async fn change_app_keys(
        &self,
        edit: impl Fn(&Kek, &Contents) -> Result<RecordEdit<(AppSummary, Target)>, StoreError>
        + Send
        + Sync
        + 'static,
    ) -> Result<AppChange, StoreError> {
        let made = self
            .try_change_keys(move |kek, contents| edit(kek, contents).map(Some))
            .await?;
        let (generation, (app, target)) = made.expect("the edit always makes a change");
        Ok(AppChange {
            generation,
            app,
            target,
        })
    }

    async fn change<T: Send + 'static>(
        &self,
        edit: impl Fn(&Contents) -> Result<RecordEdit<T>, StoreError> + Send + Sync + 'static,
    ) -> Result<(u64, T), StoreError> {
        let made = self
            .try_change(move |contents| edit(contents).map(Some))
            .await?;
        Ok(made.expect("the edit always makes a change"))
    }

    /// Makes a change, and retries if another change was committed first. Returns `None` if nothing
    /// must be changed.
    async fn try_change<T: Send + 'static>(
        &self,
        edit: impl Fn(&Contents) -> Result<Option<RecordEdit<T>>, StoreError> + Send + Sync + 'static,
    ) -> Result<Option<(u64, T)>, StoreError> {
        let edit = Arc::new(edit);
        for tries in 0..TRIES_MAX {
            let edit = Arc::clone(&edit);
            let Some(edit) = self
                .read(move |contents| {
                    Ok(edit(contents)?.map(|edit| PreparedEdit::new(contents, edit)))
                })
                .await?
            else {
                return Ok(None);
            };
            if let Some(done) = self.commit(edit, tries).await? {
                return Ok(Some(done));
            }
        }
        Err(always_late())
    }

    /// Makes a change that wraps or unwraps keys, as [`Control::try_change`] does.
    async fn try_change_keys<T: Send + 'static>(
        &self,
        edit: impl Fn(&Kek, &Contents) -> Result<Option<RecordEdit<T>>, StoreError>
        + Send
        + Sync
        + 'static,
    ) -> Result<Option<(u64, T)>, StoreError> {
        let edit = Arc::new(edit);
        for tries in 0..TRIES_MAX {
            let edit = Arc::clone(&edit);
            let Some(edit) = self
                .read_with_kek(move |kek, contents| {
                    Ok(edit(kek, contents)?.map(|edit| PreparedEdit::new(contents, edit)))
                })
                .await?
            else {
                return Ok(None);
            };
            if let Some(done) = self.commit(edit, tries).await? {
                return Ok(Some(done));
            }
        }
        Err(always_late())
    }

    /// Commits an edit. Returns `None`, after a pause, if another change was committed first.
    async fn commit<T>(
        &self,
        edit: PreparedEdit<T>,
        tries: u32,
    ) -> Result<Option<(u64, T)>, StoreError> {
        let PreparedEdit {
            base,
            tombstone,
            edit:
                RecordEdit {
                    key,
                    record,
                    made,
                    reused,
                },
        } = edit;

        let property = reused.map(|_| dropped_property(&key));
        self.check_reuse(tombstone, property.as_deref().unwrap_or(&key))
            .await?;
        match self.store.commit(base, &key, record.as_deref()).await? {
            Commit::Done(generation) => Ok(Some((generation, made))),
            Commit::Moved => {
                tokio::time::sleep(pause(tries)).await;
                Ok(None)
            }
        }
    }

    /// Rejects the reuse of a removed record's key while a live instance can still serve the
    /// removed object.
    async fn check_reuse(&self, tombstone: Option<u64>, key: &str) -> Result<(), StoreError> {
        let Some(generation) = tombstone else {
            return Ok(());
        };
        let instances = self.behind(generation).await?;
        if instances.is_empty() {
            return Ok(());
        }
        Err(StoreError::Conflict {
            key: key.to_owned(),
            generation,
            instances,
        })
    }

    /// Returns the live instances that serve an older generation, each as its address and id.
    async fn behind(&self, generation: u64) -> Result<Vec<String>, StoreError> {
        // The texts come from the database, where others can write any text.
        fn shortened(text: &str) -> String {
            text.chars()
                .take(INSTANCE_CHARS_SHOWN)
                .flat_map(char::escape_debug)
                .collect()
        }
        let live = self.instances().await?.into_iter();
        let behind = live.filter(|instance| instance.generation < generation);
        Ok(behind
            .map(|Instance { address, id, .. }| {
                format!("{} ({})", shortened(&address), shortened(&id))
            })
            .collect())
    }
}

/// Returns the name of a dropped property for errors.
fn dropped_property(collection_key: &str) -> String {
    format!("a property of {collection_key} with this name")
}

/// Rejects settings under which requests without a suite could not be encrypted, or the results not
/// be decrypted.
fn check_suites(app: &AppId, record: &AppRecord, settings: &Settings) -> Result<(), StoreError> {
    let suite = settings.write_suite;
    if !settings.read_suites.contains(suite) {
        return Err(StoreError::Invalid(format!(
            "read_suites must have the write_suite {}",
            suite.name()
        )));
    }

    let keys = record.summary(app)?.keys;
    if suite != Suite::UNNAMED
        && !keys.iter().any(|key| {
            key.suite == suite
                && key.seals
                && key.origin == Origin::Inside
                && key.state == KeyState::Active
        })
    {
        let name = suite.name();
        return Err(StoreError::Invalid(format!(
            "app {app} has no active {name} key; rotate {name} first"
        )));
    }
    Ok(())
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// The fields of an app or a key that decide its state.
struct StateFields<'a> {
    state: &'a mut StateName,
    /// `None` if the target can never be deleted.
    delete_unix_s: Option<&'a mut Option<u64>>,
}

impl AppRecord {
    /// Returns the display name and the state fields of `target`.
    fn part(
        &mut self,
        app: &AppId,
        target: Target,
    ) -> Result<(String, StateFields<'_>), StoreError> {
        match target {
            Target::App => {
                let part = StateFields {
                    state: &mut self.state,
                    delete_unix_s: Some(&mut self.delete_unix_s),
                };
                Ok((format!("app {app}"), part))
            }
            Target::Key(key) => {
                let found = self.keys.iter_mut().find(|record| record.is(key));
                let found = found.ok_or_else(|| StoreError::NoKey {
                    app: app.clone(),
                    key,
                })?;
                let part = StateFields {
                    state: &mut found.state,
                    delete_unix_s: Some(&mut found.delete_unix_s),
                };
                Ok((format!("key {key} of app {app}"), part))
            }
            Target::TokenKey(number) => {
                let found = self
                    .token_keys
                    .iter_mut()
                    .find(|record| record.number == number);
                let found = found.ok_or_else(|| StoreError::NoTokenKey {
                    app: app.clone(),
                    number,
                })?;
                Ok((
                    format!("token key {number} of app {app}"),
                    StateFields {
                        state: &mut found.state,
                        delete_unix_s: None,
                    },
                ))
            }
        }
    }
}

/// Returns the first removal that is due.
fn removal(contents: &Contents, now_unix_s: u64) -> Option<RecordEdit<()>> {
    for (app, record) in contents
        .apps
        .iter()
        .filter_map(|(app, entry)| Some((app, entry.live()?)))
    {
        let entry = if is_due(record.delete_unix_s, now_unix_s) {
            AppEntry::Deleted(AppTombstone {
                number: record.number,
                generation: contents.generation + 1,
            })
        } else if record
            .keys
            .iter()
            .any(|key| is_due(key.delete_unix_s, now_unix_s))
        {
            let mut record = record.clone();
            record
                .keys
                .retain(|key| !is_due(key.delete_unix_s, now_unix_s));
            AppEntry::Live(record)
        } else {
            continue;
        };
        return Some(RecordEdit {
            key: app_key(app),
            record: Some(entry.into_bytes()),
            made: (),
            reused: None,
        });
    }

    let orphan = orphans(contents).next();
    orphan.map(|(app, name)| RecordEdit {
        key: collection_key(app, name),
        record: None,
        made: (),
        reused: None,
    })
}

fn is_due(removal_unix_s: Option<u64>, now_unix_s: u64) -> bool {
    removal_unix_s.is_some_and(|time| time <= now_unix_s)
}

/// Returns the time at which [`removal`] first finds something.
fn first_removal(contents: &Contents) -> Option<u64> {
    if orphans(contents).next().is_some() {
        return Some(0);
    }
    let live = contents.apps.values().filter_map(Entry::live);
    live.flat_map(|app| {
        app.keys
            .iter()
            .map(|key| key.delete_unix_s)
            .chain([app.delete_unix_s])
    })
    .flatten()
    .min()
}

/// Returns the collections whose app was removed.
fn orphans(contents: &Contents) -> impl Iterator<Item = (&AppId, &CollectionName)> {
    contents.collections.iter().flat_map(|(app, collections)| {
        let number = contents
            .apps
            .get(app)
            .and_then(Entry::live)
            .map(|live| live.number);
        let orphans = collections
            .iter()
            .filter(move |(_, entry)| number != Some(entry.app_number()));
        orphans.map(move |(name, _)| (app, name))
    })
}

/// Returns the pause before another attempt. The pause is random, so that competing changes do not
/// collide again.
fn pause(tries: u32) -> Duration {
    part_of(Duration::from_millis(1 << tries.min(10)).min(PAUSE_MAX))
}

/// Returns the error after [`TRIES_MAX`] attempts.
fn always_late() -> StoreError {
    StoreError::Unavailable("other changes always came first".into())
}

/// Runs `work` off the network threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| StoreError::Unavailable("the work on its keys ended early".into()))?
}

fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
