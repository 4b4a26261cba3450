//! Unseals a store: finds the key-encryption key (KEK) of its keys, by the root key or without one.
//!
//! The providers of the root record's slots are asked side by side, and the first right answer
//! counts. Unwrapped root keys stay in memory, so that the outage of a provider never stops a
//! running engine.
//!
//! The key of the audit log comes from the same record. The engine therefore keeps a copy of the
//! record in the folder of the audit log, where `sealwire audit verify` finds it while the engine
//! has the store.

mod admin;
mod anchor;
mod backoff;
mod known;
mod observe;
mod probe;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use data_encoding::HEXLOWER;
use sealwire_apps::{
    FindKek, Freshness, ROOT_RECORD, RootKeyCopies, RootRecord, RootSlot, StateId,
};
use sealwire_crypto::{Kek, RootKey};
use sealwire_kek::recovery::recovery_key_of;
use sealwire_kek::{Pkcs11Provider, Provider, ProviderError, ProviderSettings, WrapSlot};
use sealwire_service::trusted_file::{FileErrorReason, FileKind};
use sealwire_settings::{Config, KekSource};
use sealwire_store::StoreError;
use sealwire_telemetry::metrics::{Metrics, ProviderOperation, ProviderOutcome};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::audit::Audit;
use crate::kek::{KekError, read_kek};

pub use admin::RootAdmin;
use anchor::{Anchor, AnchoredState, anchor_path};
use backoff::Backoff;
pub use known::{KnownRoots, RootKnowledge};
pub use observe::USE_SECONDS_MAX;
use observe::{ProviderUses, SlotId, USE_TIME_MAX, UseError, late_text};
pub use probe::SlotProber;

/// Name of the provider that `kek.provider` configures.
pub const LOCAL_PROVIDER: &str = "local";
/// File with a copy of the root record, in the folder of the audit log.
pub const ROOT_COPY_FILE: &str = "root.json";
/// Maximum bytes of the file of `kek.providers`.
const PROVIDERS_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes that are read of [`ROOT_COPY_FILE`]. A record with all slots of two root keys is
/// below 200 KiB.
const COPY_BYTES_MAX: u64 = 1 << 20;

/// The configured providers, by name, and the observer of their uses.
#[derive(Debug)]
pub struct Providers(BTreeMap<String, ConfiguredProvider>, Arc<ProviderUses>);

#[derive(Debug)]
struct ConfiguredProvider {
    settings: ProviderSettings,
    /// An error for a kind that this build lacks.
    provider: Result<Arc<dyn Provider>, ProviderError>,
}

impl Providers {
    /// Reads the settings of all providers. Reaches none of them.
    ///
    /// # Errors
    /// The file of `kek.providers` cannot be read, or a setting is invalid.
    pub fn load(config: &Config) -> Result<Self, KekError> {
        let local = match &config.kek {
            KekSource::File(path) => ProviderSettings::File { path: path.clone() },
            KekSource::Environment(variable) => ProviderSettings::Environment {
                variable: variable.clone(),
            },
        };
        let mut all = BTreeMap::from([(LOCAL_PROVIDER.to_owned(), ConfiguredProvider::new(local))]);
        let Some(file) = &config.kek_providers else {
            return Ok(Self(all, Arc::default()));
        };
        // A user who can change the file decides which module is loaded and which server gets the
        // root key.
        let bytes =
            sealwire_service::trusted_file::read(file, FileKind::Public, PROVIDERS_BYTES_MAX)
                .map_err(|error| match error.reason {
                    FileErrorReason::Io(ref io) if io.kind() == io::ErrorKind::NotFound => file_error(
                        file,
                        "the file of the setting kek.providers does not exist. Restore it, or correct the setting. The stored \
                         keys are not affected",
                    ),
                    reason => file_error(file, reason),
                })?;
        let text = std::str::from_utf8(&bytes).map_err(|_| file_error(file, "must be text"))?;
        let tables: BTreeMap<String, BTreeMap<String, String>> =
            toml::from_str(text).map_err(|error| {
                let line = error
                    .span()
                    .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
                // The parser's text can contain a value.
                file_error(
                    file,
                    format_args!(
                        "line {line}: must be tables of providers, whose settings are texts"
                    ),
                )
            })?;

        let folder = file.parent().unwrap_or(Path::new(""));
        for (name, mut table) in tables {
            if name == LOCAL_PROVIDER {
                return Err(file_error(
                    file,
                    "the provider `local` is the one that `kek.provider` configures",
                ));
            }
            let kind = table.remove("kind").unwrap_or_default();
            let settings = ProviderSettings::parse(&name, &kind, &table, folder)
                .map_err(|error| file_error(file, error))?;
            all.insert(name, ConfiguredProvider::new(settings));
        }
        Ok(Self(all, Arc::default()))
    }

    /// Returns every provider's name and settings.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ProviderSettings)> {
        self.0
            .iter()
            .map(|(name, configured)| (&**name, &configured.settings))
    }

    /// Returns the observer of all uses.
    fn uses(&self) -> &Arc<ProviderUses> {
        &self.1
    }

    /// Counts every use in `metrics` and records it in `audit`, also the uses so far.
    pub fn observe(&self, metrics: Arc<Metrics>, audit: Audit) {
        for (name, settings) in self.iter() {
            metrics.providers.add(name, settings.kind().name());
        }
        self.uses().attach(metrics, audit);
    }

    /// Generates the key of a provider of kind `pkcs11` on its token.
    ///
    /// # Errors
    /// The name is not that of such a provider, the key is there already, or the token fails.
    pub async fn generate_key(&self, name: &str) -> Result<(), KekError> {
        match self.0.get(name).map(|configured| &configured.settings) {
            Some(ProviderSettings::Pkcs11(options)) => Pkcs11Provider::new(options.clone())
                .generate_key()
                .await
                .map_err(|error| KekError(provider_text(name, error))),
            Some(settings) => Err(KekError(format!(
                "provider {name}: keys of kind {} are made where they are kept",
                settings.kind()
            ))),
            None => Err(KekError(provider_text(
                name,
                "not configured here: kek.providers has no provider with this name",
            ))),
        }
    }

    /// Wraps a root key for a new slot, and unwraps the copy once, unless that needs the holders of
    /// shares.
    ///
    /// # Errors
    /// [`StoreError::RootKey`], which names the provider.
    pub async fn new_slot(
        &self,
        name: &str,
        set: [u8; 16],
        root: &RootKey,
        number: u32,
    ) -> Result<RootSlot, StoreError> {
        let configured = self.0.get(name).ok_or_else(|| {
            provider_error(
                name,
                "not configured here: kek.providers has no provider with this name",
            )
        })?;
        let provider = configured
            .provider
            .as_ref()
            .map_err(|error| provider_error(name, error))?;
        let place = WrapSlot {
            set,
            root: root.id(&set)?,
            number,
        };
        let id = SlotId {
            root: place.root,
            number,
        };

        let kind = configured.settings.kind().name();
        let running = self.uses().start(ProviderOperation::Wrap, id, name, kind);
        let wrapped = running.finish(
            provider
                .wrap(root.expose(), &place)
                .await
                .map_err(UseError::from),
        );
        let wrapped = wrapped.map_err(|error| provider_error(name, error.reason))?;

        let needs_holders = provider.kind().needs_holders();
        if !needs_holders {
            let running = self.uses().start(ProviderOperation::Unwrap, id, name, kind);
            let unwrapped = running.finish(unwrap_checked(&**provider, &wrapped, place).await);
            drop(unwrapped.map_err(|error| provider_error(name, error.reason))?);
        }

        let settings = configured.settings.public_fields().into_iter();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Ok(RootSlot {
            number,
            provider: name.to_owned(),
            kind: configured.settings.kind().name().to_owned(),
            settings: settings
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            wrapped,
            created_unix_s: now,
            verified_unix_s: if needs_holders { 0 } else { now },
        })
    }

    /// Returns true if the copy in a slot unwraps only with the holders of shares, so that
    /// [`Self::unwrap_slot`] fails.
    #[must_use]
    pub fn needs_holders(&self, slot: &RootSlot) -> bool {
        let configured = self.0.get(&slot.provider);
        configured.is_some_and(|configured| configured.settings.kind().needs_holders())
            && recovery_key_of(&slot.wrapped).is_some()
    }

    /// Unwraps the copy in one slot, and checks that it is the root key of the record.
    ///
    /// # Errors
    /// The reason, without the slot.
    pub async fn unwrap_slot(
        &self,
        set: [u8; 16],
        root: &RootKeyCopies,
        slot: &RootSlot,
    ) -> Result<RootKey, String> {
        let result = self
            .unwrap_slot_as(ProviderOperation::Unwrap, set, root, slot)
            .await;
        result.map_err(|error| error.reason)
    }

    /// Unwraps the copy in one slot, as [`Self::unwrap_slot`], for a purpose that metrics and audit
    /// records name.
    async fn unwrap_slot_as(
        &self,
        operation: ProviderOperation,
        set: [u8; 16],
        root: &RootKeyCopies,
        slot: &RootSlot,
    ) -> Result<RootKey, UseError> {
        let id = SlotId {
            root: root.id,
            number: slot.number,
        };
        let usable = match self.0.get(&slot.provider) {
            None => {
                Err("not configured here: kek.providers has no provider with this name".to_owned())
            }
            Some(configured) => configured.provider.as_ref().map_err(ToString::to_string),
        };
        let provider = usable.map_err(|reason| {
            let error = UseError {
                outcome: ProviderOutcome::Settings,
                reason,
            };
            self.uses().record_unusable(id, &slot.provider, &error);
            error
        })?;

        if provider.kind().needs_holders() {
            // This is expected at every start, so it counts neither as a use nor as a failure.
            return Err(ProviderError::NeedsHolders.into());
        }

        let running = self
            .uses()
            .start(operation, id, &slot.provider, provider.kind().name());
        let place = WrapSlot {
            set,
            root: root.id,
            number: slot.number,
        };
        running.finish(unwrap_checked(&**provider, &slot.wrapped, place).await)
    }
}

impl ConfiguredProvider {
    fn new(settings: ProviderSettings) -> Self {
        let provider = settings.provider();
        Self { settings, provider }
    }
}

/// Unwraps a copy. The root key's id in `place` must be that of the result.
async fn unwrap_checked(
    provider: &dyn Provider,
    wrapped: &[u8],
    place: WrapSlot,
) -> Result<RootKey, UseError> {
    let root = RootKey::from_bytes(provider.unwrap(wrapped, &place).await?);
    let reason = match root.id(&place.set) {
        Ok(id) if id == place.root => return Ok(root),
        Ok(_) => "the copy unwraps to another root key".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(UseError {
        outcome: ProviderOutcome::OtherRoot,
        reason,
    })
}

fn provider_text(name: &str, what: impl fmt::Display) -> String {
    format!("provider {name}: {what}")
}

fn provider_error(name: &str, what: impl fmt::Display) -> StoreError {
    StoreError::RootKey(provider_text(name, what))
}

fn file_error(path: &Path, what: impl fmt::Display) -> KekError {
    KekError(format!("{}: {what}", path.display()))
}

/// Finds the KEK of a store, with or without a root key.
pub struct Unsealer {
    providers: Arc<Providers>,
    source: KekSource,
    /// The KEK of a store without a root key. `None`: wiped, and read again when it is needed.
    plain: Mutex<Option<Result<Arc<Kek>, KekError>>>,
    /// True if a store without a root key is an error (`kek.root_key`).
    needs_root: bool,
    /// Unwrapped root keys, by id.
    unwrapped: Mutex<BTreeMap<[u8; 16], Arc<RootKey>>>,
    backoff: Backoff,
    /// Number of times that the keys were wiped. A search that started before the last wipe must
    /// not keep a key.
    wipes: AtomicU64,
    copy: tokio::sync::Mutex<RecordCopy>,
    /// True if a state that was put back is served, without changes (`state.on_rollback`).
    serves_rolled_back: bool,
    anchor: Option<Anchor>,
}

/// The copy of the root record beside the audit log.
#[derive(Default)]
struct RecordCopy {
    folder: Option<PathBuf>,
    /// The record that was found last. `None`: the store was found without one.
    latest: Option<Option<RootRecord>>,
    is_written: bool,
}

impl Unsealer {
    /// Reads the settings of all providers, and the KEK of the configuration.
    ///
    /// # Errors
    /// Settings of a provider are invalid. The KEK cannot be read, and no other provider is
    /// configured, or other users can get at its file. The anchor cannot be read.
    pub fn open(config: &Config) -> Result<Self, KekError> {
        let anchor = anchor_path(config)
            .map(|path| Anchor::open(path, config.state.anchor_file.is_none()))
            .transpose()?;
        Ok(Self {
            anchor,
            ..Self::open_without_anchor(config)?
        })
    }

    /// Opens an unsealer as [`Self::open`] does, which neither reads nor writes the anchor of the
    /// configuration: for another store than the configured one.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_without_anchor(config: &Config) -> Result<Self, KekError> {
        let providers = Arc::new(Providers::load(config)?);
        if let KekSource::File(path) = &config.kek {
            check_kek_file(path)?;
        }

        let plain = read_kek(&config.kek).map(Arc::new);
        if let (None, Err(error)) = (&config.kek_providers, &plain) {
            return Err(error.clone());
        }

        Ok(Self {
            providers,
            source: config.kek.clone(),
            plain: Mutex::new(Some(plain)),
            needs_root: config.kek_needs_root,
            unwrapped: Mutex::default(),
            wipes: AtomicU64::new(0),
            backoff: Backoff::default(),
            copy: tokio::sync::Mutex::default(),
            serves_rolled_back: config.state.serves_rolled_back,
            anchor: None,
        })
    }

    /// Returns the anchor of the configuration, and accepts an older state that was put back from
    /// now on. Commits still raise the anchor.
    pub fn ignore_anchor(&mut self) -> Option<StateId> {
        self.anchor.as_mut().and_then(Anchor::ignore)
    }

    /// Writes the anchor now and from now on, whenever a later generation was verified.
    pub async fn keep_anchor(&self) {
        if let Some(anchor) = &self.anchor {
            anchor.keep().await;
        }
    }

    /// Removes the file of the anchor, after the root key was removed.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove_anchor(&self) -> io::Result<()> {
        self.anchor.as_ref().map_or(Ok(()), Anchor::remove)
    }

    /// Returns the configured providers.
    #[must_use]
    pub fn providers(&self) -> &Arc<Providers> {
        &self.providers
    }

    /// Keeps a copy of the root record in this folder from now on, or none while the store has no
    /// root key. A copy that cannot be written is logged and tried again at the next load.
    pub async fn keep_copy(&self, folder: &Path) {
        let mut copy = self.copy.lock().await;
        copy.folder = Some(folder.to_owned());
        copy.write().await;
    }

    /// Lets the next load use the providers, even if the last load failed just before.
    pub fn retry_at_next_load(&self) {
        self.backoff.end_pauses();
    }

    /// Returns a root key of the record. After a failure the providers are not asked again for 1 to
    /// 60 seconds.
    ///
    /// # Errors
    /// [`StoreError::RootKey`] with each slot, its provider and the reason, after at most
    /// [`USE_SECONDS_MAX`] seconds.
    pub async fn unseal(
        &self,
        set: [u8; 16],
        root: &RootKeyCopies,
    ) -> Result<Arc<RootKey>, StoreError> {
        if let Some(root_key) = self.unwrapped().get(&root.id) {
            return Ok(Arc::clone(root_key));
        }

        self.backoff.check(root)?;
        let wipes = self.wipes.load(Ordering::SeqCst);
        match self.unwrap_any_slot(set, root).await {
            Ok(root_key) => {
                self.backoff.reset(root);
                let root_key = Arc::new(root_key);
                let mut unwrapped = self.unwrapped();
                if self.wipes.load(Ordering::SeqCst) == wipes {
                    unwrapped.insert(root.id, Arc::clone(&root_key));
                }
                Ok(root_key)
            }
            Err(reasons) => {
                self.backoff.record_failure(root, &reasons);
                Err(StoreError::RootKey(reasons))
            }
        }
    }

    /// Unwraps the copies in all slots concurrently. Returns the first root key that matches, or the
    /// failures of all slots.
    async fn unwrap_any_slot(
        &self,
        set: [u8; 16],
        root: &RootKeyCopies,
    ) -> Result<RootKey, String> {
        // A provider that does not respond in time keeps this reason.
        let mut reasons: BTreeMap<u32, (&str, String)> = root
            .slots
            .iter()
            .map(|slot| (slot.number, (&*slot.provider, late_text())))
            .collect();
        let mut tasks = JoinSet::new();
        let mut numbers = HashMap::new();
        for slot in root.slots.iter().cloned() {
            let providers = Arc::clone(&self.providers);
            let root = root.clone();
            let number = slot.number;
            let task = tasks.spawn(async move { providers.unwrap_slot(set, &root, &slot).await });
            numbers.insert(task.id(), number);
        }

        let deadline = Instant::now() + USE_TIME_MAX;
        while let Ok(Some(result)) =
            tokio::time::timeout_at(deadline, tasks.join_next_with_id()).await
        {
            let (task, reason) = match result {
                Ok((_, Ok(root_key))) => return Ok(root_key),
                Ok((task, Err(reason))) => (task, reason),
                Err(error) => (error.id(), "the provider panicked".to_owned()),
            };
            if let Some((_, slot_reason)) = numbers
                .get(&task)
                .and_then(|number| reasons.get_mut(number))
            {
                *slot_reason = reason;
            }
        }

        let reasons: Vec<String> = reasons
            .into_iter()
            .map(|(number, (provider, reason))| {
                format!("slot {number} (provider {provider}): {reason}")
            })
            .collect();
        Err(format!("no slot unwraps it: {}", reasons.join("; ")))
    }

    /// Rejects a store without the set of root keys that the anchor names.
    fn check_set(&self, set: Option<[u8; 16]>) -> Result<(), StoreError> {
        let Some(anchored) = self.anchored().filter(|anchored| set != Some(anchored.set)) else {
            return Ok(());
        };
        let what = format!(
            "this machine's anchor names the set of root keys {}, and the store has another one or none: it is another store, \
             an older one, or its root key was removed. Only if you removed or created its root key yourself, remove the anchor file",
            HEXLOWER.encode(&anchored.set)
        );
        Err(StoreError::NotAuthentic {
            key: ROOT_RECORD.into(),
            what,
        })
    }

    fn anchored(&self) -> Option<StateId> {
        self.anchor
            .as_ref()
            .and_then(Anchor::at_start)
            .map(|state| state.id)
    }

    fn check_may_lack_root(&self) -> Result<(), StoreError> {
        if !self.needs_root {
            return Ok(());
        }
        let what = "the store has no root key, but kek.root_key is \"required\": someone removed it, or put back an older \
                    state; if that was you, set it to \"optional\"";
        Err(StoreError::RootKey(what.into()))
    }

    /// Stores a root key of the record that was unwrapped in another way: by shares.
    ///
    /// # Errors
    /// [`StoreError::RootKey`] if it is not the root key of `root`.
    pub fn set_unwrapped(
        &self,
        set: [u8; 16],
        root: &RootKeyCopies,
        root_key: RootKey,
    ) -> Result<Arc<RootKey>, StoreError> {
        if root_key.id(&set)? != root.id {
            return Err(StoreError::RootKey(
                "the copy unwraps to another root key".into(),
            ));
        }
        let root_key = Arc::new(root_key);
        self.unwrapped().insert(root.id, Arc::clone(&root_key));
        Ok(root_key)
    }

    /// Returns the KEK of the configuration. Reads it again if it was wiped.
    fn plain(&self) -> Result<Arc<Kek>, KekError> {
        let mut plain = self.plain.lock().unwrap_or_else(PoisonError::into_inner);
        plain
            .get_or_insert_with(|| read_kek(&self.source).map(Arc::new))
            .clone()
    }

    fn unwrapped(&self) -> std::sync::MutexGuard<'_, BTreeMap<[u8; 16], Arc<RootKey>>> {
        self.unwrapped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a later record of the same set was found before. Operations load concurrently,
    /// and an operation with an older record must not drop the root keys of a newer one.
    async fn is_stale(&self, record: &RootRecord) -> bool {
        let copy = self.copy.lock().await;
        let latest = copy.latest.as_ref().and_then(Option::as_ref);
        latest.is_some_and(|latest| latest.set == record.set && latest.next_slot > record.next_slot)
    }

    async fn set_record(&self, root: Option<&RootRecord>) {
        self.providers
            .uses()
            .set_record(root, |slot| self.providers.needs_holders(slot));
        let mut copy = self.copy.lock().await;
        if copy
            .latest
            .as_ref()
            .is_none_or(|latest| latest.as_ref() != root)
        {
            copy.latest = Some(root.cloned());
            copy.is_written = false;
        }
        copy.write().await;
    }
}

#[async_trait]
impl FindKek for Unsealer {
    async fn find(&self, root: Option<&RootRecord>) -> Result<Arc<Kek>, StoreError> {
        let Some(record) = root else {
            self.check_may_lack_root()?;
            return self.plain().map_err(|error| StoreError::Setting {
                key: "kek",
                what: error.0,
            });
        };

        let active = self.unseal(record.set, &record.active).await?;
        if let Some(incoming) = &record.incoming {
            // An instance that serves this generation must hold both.
            self.unseal(record.set, &incoming.entry).await?;
        }

        let kek = active.kek_with_wrapped_audit(&record.set, &record.wrapped_audit);
        Ok(Arc::new(kek.map_err(|_| {
            StoreError::RootKey("the audit secret does not unwrap under the root key".into())
        })?))
    }

    async fn verified(
        &self,
        state: Option<(&RootRecord, &StateId)>,
        seen: Option<&StateId>,
    ) -> Result<Freshness, StoreError> {
        self.check_set(state.map(|(_, id)| id.set))?;
        let Some((record, id)) = state else {
            self.check_may_lack_root()?;
            self.unwrapped().clear();
            self.set_record(None).await;
            return Ok(Freshness::Latest);
        };
        let anchored = self.anchored();
        let contradicted = seen
            .into_iter()
            .chain(&anchored)
            .filter(|seen| id.contradicts(seen));

        if let Some(seen) = contradicted.map(|seen| seen.generation).max() {
            let generation = id.generation;
            if !self.serves_rolled_back {
                return Err(StoreError::RolledBack { generation, seen });
            }
            tracing::error!(
                generation,
                seen,
                "the store was restored to an older control state; this engine serves it without changes"
            );
            return Ok(Freshness::RolledBack { seen });
        }

        if !self.is_stale(record).await {
            // Root keys that the record no longer lists are wiped.
            self.unwrapped()
                .retain(|id, _| record.roots().any(|root| root.id == *id));
            self.set_record(Some(record)).await;
        }

        if let Some(anchor) = &self.anchor {
            anchor
                .raise(AnchoredState {
                    id: *id,
                    roots: record.ids().to_vec(),
                })
                .await;
        }
        Ok(Freshness::Latest)
    }

    async fn committed(&self, state: &StateId, roots: &[[u8; 16]]) -> Result<(), StoreError> {
        let Some(anchor) = &self.anchor else {
            return Ok(());
        };
        let committed = anchor
            .commit(AnchoredState {
                id: *state,
                roots: roots.to_vec(),
            })
            .await;
        committed.map_err(|what| StoreError::NotAnchored {
            generation: state.generation,
            what,
        })
    }

    fn wipe(&self) {
        let mut unwrapped = self.unwrapped();
        self.wipes.fetch_add(1, Ordering::SeqCst);
        unwrapped.clear();
        // No slot is checked while the store is sealed.
        self.providers.uses().set_record(None, |_| false);
        // This key could unwrap the slot of the provider `local`.
        *self.plain.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for Unsealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsealer")
            .field("providers", &self.providers)
            .finish_non_exhaustive()
    }
}

impl RecordCopy {
    async fn write(&mut self) {
        let (Some(folder), Some(latest), false) = (&self.folder, &self.latest, self.is_written)
        else {
            return;
        };
        let bytes = match latest.as_ref().map(RootRecord::to_bytes).transpose() {
            Ok(bytes) => bytes,
            Err(error) => {
                return tracing::warn!(%error, "the root record is not copied beside the audit log");
            }
        };
        let place = folder.clone();
        let written = tokio::task::spawn_blocking(move || {
            replace_file(&place.join(ROOT_COPY_FILE), bytes.as_deref())
        })
        .await;

        match written.map_err(io::Error::other).flatten() {
            Ok(()) => self.is_written = true,
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "the root record is not copied beside the audit log");
            }
        }
    }
}

/// Rejects a file of the KEK that other users can get at, also where another provider would start
/// the engine. A missing file fails its slot only.
fn check_kek_file(path: &Path) -> Result<(), KekError> {
    use sealwire_service::trusted_file::{FileErrorReason, TrustedFile};

    match TrustedFile::open(path, FileKind::Secret) {
        Err(error) if matches!(error.reason, FileErrorReason::Exposed(_)) => {
            Err(KekError(error.to_string()))
        }
        _ => Ok(()),
    }
}

/// The owner of a file.
#[derive(Clone, Copy)]
struct FileOwner {
    user: u32,
    group: u32,
}

impl FileOwner {
    /// Gives a file to this owner, if root runs this process.
    fn give(self, file: &std::fs::File) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        std::os::unix::fs::fchown(file, Some(self.user), Some(self.group))
    }
}

/// Replaces a file as a whole, readable by its owner only, or removes it.
fn replace_file(path: &Path, content: Option<&[u8]>) -> io::Result<()> {
    replace_file_of(path, content, None)
}

/// Replaces a file as [`replace_file`] does. If root runs this process, the new file belongs to
/// `owner`.
fn replace_file_of(
    path: &Path,
    content: Option<&[u8]>,
    owner: Option<FileOwner>,
) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let partial = path.with_added_extension("new");
    match content {
        None => remove_if_present(path)?,
        Some(content) => {
            remove_if_present(&partial)?;
            let mut file = std::fs::OpenOptions::new()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(&partial)?;
            owner.map_or(Ok(()), |owner| owner.give(&file))?;
            file.write_all(content)?;
            file.sync_all()?;
            std::fs::rename(&partial, path)?;
        }
    }
    let folder = path
        .parent()
        .filter(|folder| *folder != Path::new(""))
        .unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads at most `bytes_max` bytes of a file.
fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // The open must not block if a pipe is in place of the file.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }

    let mut content = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, bytes_max), &mut content)?;
    Ok(content)
}

/// Returns the root record as an engine copied it into `audit.folder`, if there is a copy.
///
/// # Errors
/// The copy cannot be read.
pub fn copied_record(config: &Config) -> Result<Option<RootRecord>, KekError> {
    let Some(folder) = &config.audit.folder else {
        return Ok(None);
    };
    read_copied_record(&folder.join(ROOT_COPY_FILE))
}

/// Reads a copied root record. Returns `None` if the file does not exist.
fn read_copied_record(path: &Path) -> Result<Option<RootRecord>, KekError> {
    match read_bounded(path, COPY_BYTES_MAX) {
        Ok(record) => RootRecord::parse(&record)
            .map(Some)
            .map_err(|error| file_error(path, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_error(path, error)),
    }
}

/// Returns the KEK whose audit secret made an audit log, without the store. The copy of the root
/// record is looked for in `folder`, then in `audit.folder`. Without a copy, the result is the KEK
/// of the configuration.
///
/// # Errors
/// The copy cannot be read, or no provider unwraps it; the KEK cannot be read.
pub async fn audit_kek(config: &Config, folder: Option<&Path>) -> Result<Arc<Kek>, KekError> {
    for folder in [folder, config.audit.folder.as_deref()]
        .into_iter()
        .flatten()
    {
        let path = folder.join(ROOT_COPY_FILE);
        let Some(record) = read_copied_record(&path)? else {
            continue;
        };
        // The audit secret is under the active root key.
        let record = RootRecord {
            incoming: None,
            ..record
        };
        return Unsealer::open_without_anchor(config)?
            .find(Some(&record))
            .await
            .map_err(|error| file_error(&path, error));
    }
    read_kek(&config.kek).map(Arc::new)
}

#[cfg(test)]
mod tests;
