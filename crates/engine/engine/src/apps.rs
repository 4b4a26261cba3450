//! The in-memory table of apps that requests use, and the task that follows the store.
//!
//! A lookup is a read lock and a hash. The store is read at start, when it notifies of a change, at
//! every poll, and after a change by this instance. If the store cannot be read, the last good
//! state stays in use and the engine reports the failure in its readiness.
//!
//! A sealed store is the exception: then all keys are dropped at once, and requests fail until the
//! store is unsealed. Running requests keep their keys until they end, at the latest at their
//! deadline.
//!
//! An instance reports the generation that it serves at every poll and whenever the generation
//! changes. Before its first load it reports generation 0. So no name is reused while an instance
//! can still serve its earlier meaning.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sealwire_access::{Permit, Role};
use sealwire_apps::{App, AppState, CollectionContent, Control, Scope, State};
use sealwire_crypto::{AppKeys, KeyId, OpenKeyCache, Origin, SigningKey, Suite};
use sealwire_public_keys as public_keys;
use sealwire_records::objects::ObjectKeys;
use sealwire_store::{ControlStore as _, Instance, StoreError};
use sealwire_wire::control::PublicKeys;
use tokio::sync::{Notify, watch};

use crate::jobs::error::RequestFailure;
use crate::jobs::masks::disclosure::{Disclosure, RoleMasks};
use crate::jobs::tokens::Collection;
use crate::objects::ObjectCollection;
use sealwire_telemetry::{Condition, Telemetry};

/// Interval at which cached key schedules and epochs age.
const AGE_PERIOD: Duration = Duration::from_secs(1);
/// Shortest time between two reads of the store, for any cause.
const READ_PAUSE: Duration = Duration::from_millis(20);
/// Shortest time between two reads that clients cause, since any client can name any generation.
const CLIENT_READ_PAUSE: Duration = Duration::from_secs(1);
/// Time between two reads while the store cannot be read.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// Time for which a signed text of public keys is reused, so that most requests for it need no
/// signature.
const SIGNED_AGE_MAX_S: u64 = 3_600;

/// Every app with its keys, settings and collections.
pub struct Apps {
    control: Control,
    table: RwLock<Arc<AppTable>>,
    /// Held while the table is loaded, so that an older table never replaces a newer one.
    loading: tokio::sync::Mutex<()>,
    /// Notified when a generation is known that is not served yet.
    behind: Notify,
    instance: Mutex<Instance>,
    /// True until the served generation and the address are reported to the store.
    is_unreported: AtomicBool,
    /// Cache of key schedules that requests opened. The schedules of an app are dropped when its
    /// keys change.
    opened: Option<Arc<OpenKeyCache>>,
    drop_caches: OnceLock<DropCaches>,
    /// The generation that was loaded last, or was tried and could not be loaded.
    tried: AtomicU64,
    /// Called before the first try to load another generation.
    before_first_try: OnceLock<BeforeFirstTry>,
    /// True from before the keys are dropped until after they are loaded again.
    is_sealed: AtomicBool,
    /// The value of `is_sealed`, for tasks that wait for a change.
    seal: watch::Sender<bool>,
}

/// Ends pauses that failures of earlier generations caused.
type BeforeFirstTry = Box<dyn Fn() + Send + Sync>;

/// Drops caches that were made from an earlier state.
type DropCaches = Box<dyn Fn() + Send + Sync>;

/// Roles by name, with their grants.
pub type Roles = Arc<HashMap<Box<str>, Arc<Role>>>;

/// An app with the keys and collections that requests use.
#[derive(Debug)]
pub struct CachedApp {
    app: App,
    token_collections: HashMap<Box<str>, Arc<Collection>>,
    object_collections: HashMap<Box<str>, Arc<ObjectCollection>>,
    object_keys: Arc<ObjectKeys>,
    masks: RoleMasks,
    /// Signs the app's public keys.
    signer: Option<Arc<SigningKey>>,
    /// The app's public keys that were signed last, and the time of the signature in seconds since
    /// 1970-01-01 UTC.
    signed: Mutex<Option<(u64, PublicKeys)>>,
}

impl CachedApp {
    /// Returns the app's signed public keys. `generation`: the generation of the app.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::NoPublicKey`].
    pub(crate) fn public_keys(
        &self,
        generation: u64,
        now_unix_s: u64,
    ) -> Result<PublicKeys, RequestFailure> {
        let mut signed = self.signed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, keys)) = &*signed
            && now_unix_s
                .checked_sub(*at)
                .is_some_and(|age| age < SIGNED_AGE_MAX_S)
        {
            return Ok(keys.clone());
        }

        let signer = self.signer.as_deref().ok_or(RequestFailure::NoPublicKey)?;
        let fresh = public_keys::publish(&self.app.keys, signer, generation, now_unix_s);
        let fresh = fresh.ok_or(RequestFailure::NoPublicKey)?;
        let (signature, signer) = fresh.to_base64();
        let keys = PublicKeys {
            keys: fresh.keys,
            signature,
            signer,
            generation,
        };
        *signed = Some((now_unix_s, keys.clone()));
        Ok(keys)
    }

    /// Returns the disclosure of values that the permit of a request allows.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::RoleMask`].
    pub fn disclosure_for(&self, permit: &Permit<'_>) -> Result<Disclosure, RequestFailure> {
        self.masks.disclosure_for(permit, &self.app.token_keys)
    }

    /// Returns the app's collection of tokens with this name.
    pub fn token_collection(&self, name: &str) -> Option<&Arc<Collection>> {
        self.token_collections.get(name)
    }

    /// Returns the collection of tokens with this number, and its name.
    pub(crate) fn token_collection_by_number(
        &self,
        number: u32,
    ) -> Option<(&str, &Arc<Collection>)> {
        let found = self
            .token_collections
            .iter()
            .find(|(_, collection)| collection.map.collection == number);
        found.map(|(name, collection)| (&**name, collection))
    }

    /// Returns the collection of objects with this name.
    pub(crate) fn object_collection(&self, name: &str) -> Option<&Arc<ObjectCollection>> {
        self.object_collections.get(name)
    }

    /// Returns the collection of objects with this number, and its name.
    pub(crate) fn object_collection_by_number(
        &self,
        number: u32,
    ) -> Option<(&str, &Arc<ObjectCollection>)> {
        let found = self
            .object_collections
            .iter()
            .find(|(_, collection)| collection.map.collection == number);
        found.map(|(name, collection)| (&**name, collection))
    }

    /// Returns the keys that hash the app's objects.
    pub(crate) fn object_keys(&self) -> &ObjectKeys {
        &self.object_keys
    }

    /// Returns the masks of roles, with the app's keys.
    pub(crate) fn role_masks(&self) -> &RoleMasks {
        &self.masks
    }
}

impl Deref for CachedApp {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

impl CachedApp {
    fn new(app: App, signer: Option<Arc<SigningKey>>) -> Self {
        let object_keys = Arc::new(ObjectKeys::new(
            app.number,
            &app.token_keys.object_index_secret(),
        ));
        let mut token_collections = HashMap::new();
        let mut object_collections = HashMap::new();

        for (name, found) in &app.collections {
            let name = name.as_str();
            let map = app.map(found);
            match &found.content {
                CollectionContent::Tokens(rules) => {
                    let collection = Collection {
                        keys: Arc::clone(&app.token_keys),
                        map,
                        kind: rules.kind,
                        format: rules.format,
                        per_context: rules.scope == Scope::Context,
                        expires_s: rules.expires_s,
                    };
                    token_collections.insert(name.into(), Arc::new(collection));
                }
                CollectionContent::Objects(schema) => {
                    let collection = ObjectCollection {
                        keys: Arc::clone(&app.keys),
                        object_keys: Arc::clone(&object_keys),
                        token_keys: Arc::clone(&app.token_keys),
                        map,
                        schema: Arc::clone(schema),
                    };
                    object_collections.insert(name.into(), Arc::new(collection));
                }
            }
        }

        let masks = RoleMasks::default();
        let signed = Mutex::default();
        Self {
            app,
            token_collections,
            object_collections,
            object_keys,
            masks,
            signer,
            signed,
        }
    }
}

#[derive(Default)]
struct AppTable {
    generation: u64,
    /// True if the store is sealed. Then the table has no apps.
    is_sealed: bool,
    apps: HashMap<Box<str>, Arc<CachedApp>>,
    /// Time at which the next deleted record can be removed, in seconds since 1970-01-01 UTC.
    removal_unix_s: Option<u64>,
    roles: Roles,
    /// Keys of [`Origin::Outside`]: their public part is published, so anyone can seal to them.
    published_keys: HashSet<(Suite, KeyId)>,
}

impl Apps {
    /// Loads every app. `address`: the address at which this instance listens, for operators.
    ///
    /// # Errors
    ///
    /// The store's error.
    pub async fn load(
        control: Control,
        address: String,
        opened: Option<Arc<OpenKeyCache>>,
    ) -> Result<Self, StoreError> {
        let id = format!("{:016x}", rand::random::<u64>());
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let instance = Instance {
            id,
            address,
            version,
            generation: 0,
            age: Duration::ZERO,
        };

        // The first report must precede the load, so that no name which the instance loads is
        // reused for something else.
        control.beat(&instance).await?;
        let id = instance.id.clone();
        let store = control.clone();
        let started = Self::start(control, instance, opened).await;

        if started.is_err() {
            // The instance never served, so the reuse of names need not wait for it.
            let _ = store.leave(&id).await;
        }
        started
    }

    async fn start(
        control: Control,
        instance: Instance,
        opened: Option<Arc<OpenKeyCache>>,
    ) -> Result<Self, StoreError> {
        let table = match control.load().await {
            Ok(state) => AppTable::new(state, &AppTable::default()),
            Err(StoreError::Sealed) => {
                tracing::error!(
                    "the store is sealed, so no request is served; once the reason for the seal is gone, run `sealwire root unseal`"
                );
                AppTable::sealed(0)
            }
            Err(error) => return Err(error),
        };

        let is_sealed = table.is_sealed;
        let tried = AtomicU64::new(table.generation);
        let apps = Self {
            control,
            table: RwLock::new(Arc::new(table)),
            loading: tokio::sync::Mutex::default(),
            behind: Notify::new(),
            instance: Mutex::new(instance),
            is_unreported: AtomicBool::new(false),
            opened,
            drop_caches: OnceLock::new(),
            tried,
            before_first_try: OnceLock::new(),
            is_sealed: AtomicBool::new(is_sealed),
            seal: watch::Sender::new(is_sealed),
        };

        apps.heartbeat().await?;
        Ok(apps)
    }

    /// Returns the cache of key schedules that requests opened, if it is enabled.
    pub fn opened(&self) -> Option<&Arc<OpenKeyCache>> {
        self.opened.as_ref()
    }

    /// Returns the app with this name, if it exists, and the generation of the table.
    pub fn find(&self, name: &str) -> (u64, Option<Arc<CachedApp>>) {
        let table = self.table();
        (table.generation, table.apps.get(name).cloned())
    }

    /// Returns true if the store was found sealed. Then this engine has only the keys of running
    /// requests.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed.load(Ordering::SeqCst)
    }

    /// Fails while the store is sealed.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Sealed`].
    pub fn check_unsealed(&self) -> Result<(), RequestFailure> {
        if self.is_sealed() {
            Err(RequestFailure::Sealed)
        } else {
            Ok(())
        }
    }

    /// Waits until the store is not sealed and its apps are loaded.
    pub async fn wait_until_unsealed(&self) {
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.seal.subscribe().wait_for(|is_sealed| !is_sealed).await;
    }

    /// Like [`Self::find`]. Fails while the store is sealed, because the table is then empty although
    /// apps exist.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Sealed`].
    pub(crate) fn find_unsealed(
        &self,
        name: &str,
    ) -> Result<(u64, Option<Arc<CachedApp>>), RequestFailure> {
        let table = self.table();
        if table.is_sealed {
            Err(RequestFailure::Sealed)
        } else {
            Ok((table.generation, table.apps.get(name).cloned()))
        }
    }

    /// Returns true if the key is one that an app publishes.
    pub(crate) fn is_published(&self, suite: Suite, key: KeyId) -> bool {
        self.table().published_keys.contains(&(suite, key))
    }

    /// Returns the roles and the generation of the table.
    pub fn roles(&self) -> (u64, Roles) {
        let table = self.table();
        (table.generation, Arc::clone(&table.roles))
    }

    /// Sets a function that drops caches that were made from an earlier state. The function is
    /// called when another state is served, before its generation is reported, and after every
    /// change by this instance, even if the new state could not be read. Must be called at most
    /// once.
    pub fn on_change(&self, drop_caches: DropCaches) {
        let _ = self.drop_caches.set(drop_caches);
    }

    /// Sets a function that is called before the first attempt to load another generation, but not
    /// before further attempts. Must be called at most once.
    pub fn before_first_try(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let _ = self.before_first_try.set(hook);
    }

    /// Returns the keys of every active app.
    pub fn active_keys(&self) -> Vec<Arc<AppKeys>> {
        let table = self.table();
        let active = table
            .apps
            .values()
            .filter(|app| app.state == AppState::Active);
        active.map(|app| Arc::clone(&app.keys)).collect()
    }

    /// Returns the served generation and its number of apps.
    pub fn generation_and_app_count(&self) -> (u64, usize) {
        let table = self.table();
        (table.generation, table.apps.len())
    }

    /// Returns the served generation.
    pub fn generation(&self) -> u64 {
        self.table().generation
    }

    /// Returns the control operations. After a change, the caller must call [`Apps::changed_here`].
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Loads the current state of the store at once. If the store cannot be read, the watch task
    /// retries and reports the failure.
    pub async fn changed_here(&self) {
        if let Err(error) = self.refresh().await {
            tracing::warn!(%error, "a change was made, and this engine does not serve it yet");
            self.behind.notify_one();
        }
        // Caches must be dropped even if the new state could not be read, so that revoked
        // permissions are no longer used.
        self.drop_caches();
    }

    fn drop_caches(&self) {
        if let Some(drop_caches) = self.drop_caches.get() {
            drop_caches();
        }
    }

    /// Makes the watch task read the store within a second, because a client named a later
    /// generation.
    pub fn request_refresh(&self) {
        self.behind.notify_one();
    }

    /// Sets the address at which this instance listens.
    pub fn set_listen_address(&self, address: String) {
        self.instance
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .address = address;
        self.is_unreported.store(true, Ordering::SeqCst);
    }

    /// Returns the id of this run of the engine.
    pub fn instance_id(&self) -> String {
        self.instance
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .id
            .clone()
    }

    /// Removes this instance from the store.
    ///
    /// # Errors
    ///
    /// The store's error. The store forgets the instance after a while anyway.
    pub async fn leave(&self) -> Result<(), StoreError> {
        self.control.leave(&self.instance_id()).await
    }

    /// Reports the served generation to the store.
    async fn heartbeat(&self) -> Result<(), StoreError> {
        // Cleared first, so that a change of the generation from here on is reported again.
        self.is_unreported.store(false, Ordering::SeqCst);
        let instance = {
            let mut instance = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
            // Without keys, an instance serves no generation, as before its first load.
            instance.generation = if self.is_sealed() {
                0
            } else {
                self.generation()
            };
            instance.clone()
        };

        let reported = self.control.beat(&instance).await;
        if reported.is_err() {
            self.is_unreported.store(true, Ordering::SeqCst);
        }
        reported
    }

    fn table(&self) -> Arc<AppTable> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads the apps again if the store's generation changed, or if the store was sealed. Returns
    /// true if another state is served now.
    pub(crate) async fn refresh(&self) -> Result<bool, StoreError> {
        let _guard = self.loading.lock().await;
        let before = self.table();
        let generation = self.control.generation().await?;
        // A sealed store was not verified: anybody who writes to the store can remove the mark
        // without a new generation.
        if !before.is_sealed && generation == before.generation {
            return Ok(false);
        }

        if self.tried.swap(generation, Ordering::Relaxed) != generation
            && let Some(hook) = self.before_first_try.get()
        {
            hook();
        }

        let state = match self.control.load().await {
            Err(StoreError::Sealed) => return Ok(self.seal(&before)),
            loaded => loaded?,
        };
        let table = Arc::new(AppTable::new(state, &before));
        tracing::info!(
            generation = table.generation,
            apps = table.apps.len(),
            "apps loaded"
        );
        self.replace(&before, &table);
        if before.is_sealed {
            tracing::warn!("the store is unsealed");
            self.is_sealed.store(false, Ordering::SeqCst);
            self.seal.send_replace(false);
        }
        Ok(true)
    }

    /// Drops every key. Returns false if the keys were dropped before.
    fn seal(&self, before: &AppTable) -> bool {
        if before.is_sealed {
            return false;
        }
        // Set first, so that a request that finds no apps learns the reason.
        self.is_sealed.store(true, Ordering::SeqCst);
        self.seal.send_replace(true);
        self.replace(before, &Arc::new(AppTable::sealed(before.generation)));
        tracing::error!(
            "the store is sealed and all keys were dropped, so no request is served; once the reason for the seal is gone, run `sealwire root unseal`"
        );
        true
    }

    /// Serves another state.
    fn replace(&self, before: &AppTable, table: &Arc<AppTable>) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(table);
        self.drop_caches();
        self.is_unreported.store(true, Ordering::SeqCst);
        self.purge_changed(before, table);
        // Ends the epochs of apps whose setting is off now.
        self.end_epochs(Instant::now());
    }

    /// Wipes cached and precomputed data of keys that changed, were removed, or must not be used
    /// now.
    fn purge_changed(&self, before: &AppTable, after: &AppTable) {
        for (name, old) in &before.apps {
            let stays = after.apps.get(name).is_some_and(|new| {
                Arc::ptr_eq(&old.keys, &new.keys) && new.state == AppState::Active
            });
            if !stays {
                old.keys
                    .versions()
                    .iter()
                    .for_each(|version| version.wipe_precomputed());
                if let Some(opened) = &self.opened {
                    opened.purge(old.keys.app());
                }
            }
        }
    }

    /// Wipes expired data until dropped, regardless of the store's response time.
    pub async fn age(self: Arc<Self>) {
        loop {
            tokio::time::sleep(AGE_PERIOD).await;
            if let Some(opened) = &self.opened {
                opened.tick();
                if self.is_sealed() {
                    // Requests that ran when the store was sealed can have added schedules.
                    opened.purge_all();
                }
            }
            self.end_epochs(Instant::now());
        }
    }

    /// Ends every epoch that would expire before the next check. An epoch can end early, but not
    /// late.
    fn end_epochs(&self, now: Instant) {
        for app in self.table().apps.values() {
            let lifetime = app.settings.epoch.filter(|_| app.state == AppState::Active);
            app.keys.end_epochs(lifetime, now + AGE_PERIOD);
        }
    }

    /// Follows the store until dropped. Reads it at once, when it notifies of a change, when a
    /// client names a later generation, and at every poll. `permissions_max_age`: time for which
    /// cached permissions are used while the store cannot be read; `None` if requests need no
    /// permission.
    pub async fn watch(
        self: Arc<Self>,
        poll: Duration,
        permissions_max_age: Option<Duration>,
        telemetry: Arc<Telemetry>,
    ) {
        let mut failing = false;
        let mut pause = Duration::ZERO;
        let mut last_read = tokio::time::Instant::now();
        // True if the records were not authentic at the last load.
        let mut is_unauthentic = false;
        let mut next_client_read = tokio::time::Instant::now();
        loop {
            let client_read = async {
                self.behind.notified().await;
                tokio::time::sleep_until(next_client_read).await;
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => self.is_unreported.store(true, Ordering::SeqCst),
                // A lost store can notify of possible changes without pause.
                () = self.control.changed(), if !failing => {}
                () = client_read, if !failing => next_client_read = tokio::time::Instant::now() + CLIENT_READ_PAUSE,
            }

            let read = self.read_store(is_unauthentic).await;
            if read.is_ok() {
                last_read = tokio::time::Instant::now();
            }
            let may_use_cached_permissions = read.is_ok()
                || permissions_max_age.is_none_or(|max_age| last_read.elapsed() < max_age);
            telemetry
                .readiness
                .set(Condition::Permissions, may_use_cached_permissions);
            let failure = match read {
                Ok(()) => self.maintain().await.err(),
                Err(error) => Some(error),
            };
            if let Some(error) = &failure
                && !failing
            {
                tracing::error!(%error, "the store cannot be read or written; the last good state stays in use");
            }

            failing = failure.is_some();
            pause = if failing {
                FAILED_PAUSE.min(poll)
            } else {
                jittered(poll)
            };
            telemetry.readiness.set(Condition::Store, !failing);
            match &failure {
                None => is_unauthentic = false,
                Some(StoreError::NotAuthentic { .. } | StoreError::RolledBack { .. }) => {
                    is_unauthentic = true
                }
                // The failure of a store that does not respond tells nothing about its records.
                Some(_) => {}
            }
            telemetry
                .readiness
                .set(Condition::ControlState, !is_unauthentic);
            telemetry
                .readiness
                .set(Condition::Unsealed, !self.is_sealed());
            tokio::time::sleep(READ_PAUSE).await;
        }
    }

    /// Loads a new state. `verify`: also verifies the records of a generation that is served
    /// already.
    async fn read_store(&self, verify: bool) -> Result<(), StoreError> {
        self.refresh().await?;
        if verify && !self.is_sealed() {
            self.control.store().load().await?;
        }
        Ok(())
    }

    /// Removes deleted records whose time is over, and reports the served generation.
    async fn maintain(&self) -> Result<(), StoreError> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();

        if self.table().removal_unix_s.is_some_and(|due| due <= now) {
            match self.control.maintain(now).await {
                Ok(removed) => tracing::info!(removed, "removed deleted records"),
                // An engine only reads a file of apps: the process that writes the file removes
                // deleted records. A state that was rolled back or is sealed is left as it is.
                Err(StoreError::ReadOnly | StoreError::RolledBack { .. } | StoreError::Sealed) => {}
                Err(error) => return Err(error),
            }
            self.refresh().await?;
        }

        if self.is_unreported.load(Ordering::SeqCst) {
            self.heartbeat().await
        } else {
            Ok(())
        }
    }
}

/// Returns a time between three quarters of `poll` and `poll`, so that instances do not poll at the
/// same moment.
pub(crate) fn jittered(poll: Duration) -> Duration {
    poll - rand::random_range(Duration::ZERO..=poll / 4)
}

impl AppTable {
    /// Creates the table of a sealed store, without any app, key or role.
    fn sealed(generation: u64) -> Self {
        Self {
            generation,
            is_sealed: true,
            ..Self::default()
        }
    }

    /// Creates the table of the store's state. Unchanged keys are taken from the table before, with
    /// their precomputed data.
    fn new(state: State, before: &Self) -> Self {
        let versions = state.apps.iter().flat_map(|app| app.keys.versions());
        let published_keys = versions
            .filter(|version| version.origin == Origin::Outside)
            .map(|version| (version.suite(), version.id))
            .collect();
        let mut apps = HashMap::new();
        for mut app in state.apps {
            let name: Box<str> = app.keys.app().as_str().into();
            if let Some(old) = before.apps.get(&name) {
                if old.keys.is_same(&app.keys) {
                    app.keys = Arc::clone(&old.keys);
                }
                if old.token_keys.is_same(&app.token_keys) {
                    app.token_keys = Arc::clone(&old.token_keys);
                }
            }
            let app = CachedApp::new(app, state.signing_key.clone());
            apps.insert(name, Arc::new(app));
        }

        let roles = Arc::new(readable_roles(&state.access));
        let removal_unix_s = state.removal_unix_s;
        Self {
            generation: state.generation,
            is_sealed: false,
            apps,
            removal_unix_s,
            roles,
            published_keys,
        }
    }
}

/// Returns the grants of roles. A role that cannot be read grants nothing and does not block the
/// rest of a change: that change may revoke a role.
pub(crate) fn readable_roles(records: &BTreeMap<String, Vec<u8>>) -> HashMap<Box<str>, Arc<Role>> {
    records
        .iter()
        .filter(|(key, _)| key.starts_with("role/"))
        .filter_map(|(key, record)| readable_role(key, record))
        .chain([Role::administrator()])
        .map(|role| (role.name().as_str().into(), Arc::new(role)))
        .collect()
}

fn readable_role(key: &str, record: &[u8]) -> Option<Role> {
    match Role::from_record(key, record) {
        Ok(role) => Some(role),
        Err(error) => {
            tracing::error!(key, %error, "a role cannot be read and grants nothing");
            None
        }
    }
}

impl std::fmt::Debug for Apps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Apps")
            .field("generation", &self.generation())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
