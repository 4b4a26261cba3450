//! `kek` and `root`: the root key of the configured store, and its copies under the configured providers.

use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use sealwire_apps::{Control, FIRST_SLOT, RootEntry, RootRecord, RootSlot, SlotChange};
use sealwire_config::Config;
use sealwire_crypto::RootKey;
use sealwire_engine::kek::read_kek;
use sealwire_engine::root::{Providers, Unsealer};
use sealwire_engine::stores::{Access, Stores};
use sealwire_store::StoreError;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{ConfigArgs, Failure};

mod recovery;

pub(super) use recovery::{RecoveryArgs, run_recovery};

/// Time limit of the database for these commands, in milliseconds: the longest one. All apps are written in one statement.
const CHANGE_TIME_MS_MIN: u64 = 60_000;
/// Interval at which a rotation looks for engines that are behind.
const WAIT_PAUSE: Duration = Duration::from_secs(1);

/// Arguments of `kek`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: KekCommand,
}

/// Arguments of `root`.
#[derive(Debug, clap::Args)]
pub(super) struct RootArgs {
    #[command(subcommand)]
    command: RootCommand,
}

/// The store, and the output format.
#[derive(Debug, clap::Args)]
struct StoreArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum KekCommand {
    /// List the configured providers and the slots of the root key, and try which slots unwrap it now
    List {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Create the root key, with one slot per provider, and wrap all stored keys under it
    ///
    /// A random root key then wraps all keys. Each slot holds a copy of it that one provider can unwrap: `local` is the key
    /// of `kek.provider`, the others are in the file of `kek.providers`. Any one slot is enough to start an engine. Give every
    /// engine on this store the providers first. `root remove` reverts this.
    Init {
        #[command(flatten)]
        store: StoreArgs,
        /// Provider to give a slot; may be given again [default: all configured ones]
        #[arg(long = "provider", value_name = "NAME")]
        providers: Vec<String>,
    },
    /// Generate the key of a provider of kind `pkcs11` on its token: AES-256, sensitive, not extractable
    Generate {
        #[command(flatten)]
        config: ConfigArgs,
        /// Name of the provider
        #[arg(value_name = "PROVIDER")]
        name: String,
    },
    /// Add a slot for a configured provider
    Add {
        #[command(flatten)]
        store: StoreArgs,
        /// Name of the provider
        #[arg(value_name = "PROVIDER")]
        name: String,
    },
    /// Remove a slot. Another slot must unwrap the root key now
    Remove {
        #[command(flatten)]
        store: StoreArgs,
        /// Number of the slot, as `list` prints it
        #[arg(value_name = "SLOT")]
        number: u32,
    },
    /// Unwrap every slot, and record which ones are right. Fails if one is not
    ///
    /// A slot of kind `shares` is not tried: `recovery check` does that with its holders.
    Verify {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Replace every slot by a new copy of the same root key, after a provider made a new version of its key
    ///
    /// For providers that keep the old version. A key in a file or a variable must not be overwritten: give the new key another
    /// provider name, `kek add` it, and remove the old slot.
    Rotate {
        #[command(flatten)]
        store: StoreArgs,
    },
}

#[derive(Debug, Subcommand)]
enum RootCommand {
    /// Replace the root key, and wrap all stored keys under the new one
    ///
    /// The new root key gets a slot for each provider of the present one. All live engines must load it before it is used:
    /// the command waits for them. Interrupted, it continues when it is started again. Backups made before the rotation can
    /// only be opened with the provider keys of today's slots.
    Rotate {
        #[command(flatten)]
        store: StoreArgs,
        /// Longest wait for live engines, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 300)]
        wait: u64,
        /// Cancel an unfinished rotation and delete its new root key
        #[arg(long)]
        abandon: bool,
    },
    /// Accept an older state of the store that was put back, after a restore from a backup
    ///
    /// Engines refuse a store of an earlier generation than they have seen. This raises the store's generation above
    /// the one in the anchor file of this configuration, so that all engines accept the store again. Use it only if you
    /// restored the backup yourself: roles and keys that were removed since are back.
    AcceptRollback {
        #[command(flatten)]
        store: StoreArgs,
        /// Generation that engines have seen, if another machine's log names a higher one than the anchor here
        #[arg(long, value_name = "GENERATION")]
        seen: Option<u64>,
    },
    /// Unwrap the root key with shares of a recovery key, and give it a slot of a provider that is there
    ///
    /// For a store whose providers are all lost. Configure a new provider, or put a new key into the file of `kek.provider`
    /// (named `local`), and stop the engine if the state is a folder. Then give any shares that reach the threshold. A slot
    /// of the same provider that does not unwrap is replaced. Engines start again afterwards. Nothing is changed if a share is wrong.
    Recover {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        shares: recovery::ShareArgs,
        /// Provider to give a slot; may be given again
        #[arg(long = "provider", value_name = "NAME", required = true)]
        providers: Vec<String>,
    },
    /// Remove the root key, and wrap all stored keys under the configured key-encryption key, as before `kek init`
    ///
    /// Engines that run keep the last state and load no other: restart them, and remove their anchor files.
    Remove {
        #[command(flatten)]
        store: StoreArgs,
        /// Confirms that the key of `kek.provider` is to wrap the keys. It must be the one from before `kek init`
        #[arg(long, required = true)]
        to_local: bool,
    },
}

/// The opened store.
struct RootStore {
    config: Config,
    unsealer: Arc<Unsealer>,
    control: Control,
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    super::serve::no_core_dumps();
    match &args.command {
        KekCommand::List { store } => store.run(list),
        KekCommand::Init { store, providers } => store.run(async |store| init(store, providers).await),
        KekCommand::Generate { config, name } => generate(&config.load()?, name),
        KekCommand::Add { store, name } => store.run(async |store| add(store, name).await),
        KekCommand::Remove { store, number } => store.run(async |store| remove(store, *number).await),
        KekCommand::Verify { store } => store.run(verify),
        KekCommand::Rotate { store } => store.run(rotate),
    }
}

pub(super) fn run_root(args: &RootArgs) -> Result<(), Failure> {
    super::serve::no_core_dumps();
    match &args.command {
        RootCommand::Rotate { store, abandon: true, .. } => store.run(abandon),
        RootCommand::Rotate { store, wait, abandon: false } => {
            store.run(async |store| rotate_root(store, Duration::from_secs(*wait)).await)
        }
        RootCommand::AcceptRollback { store, seen } => store.run_with(
            |unsealer| unsealer.take_anchor().map(|anchored| anchored.generation),
            async |store, anchored| accept_rollback(store, anchored.max(*seen)).await,
        ),
        RootCommand::Recover { store, shares, providers } => {
            let shares = shares.read()?;
            store.run(async |store| recovery::recover(store, &shares, providers).await)
        }
        RootCommand::Remove { store, to_local: _ } => store.run(remove_root),
    }
}

impl StoreArgs {
    /// Runs a command on the configured store.
    fn run(&self, command: impl AsyncFnOnce(&RootStore) -> Result<(), Failure>) -> Result<(), Failure> {
        self.run_with(|_| (), async |store, ()| command(store).await)
    }

    /// Runs a command with what `prepare` returns.
    fn run_with<T>(
        &self,
        prepare: impl FnOnce(&mut Unsealer) -> T,
        command: impl AsyncFnOnce(&RootStore, T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut config = self.config.load()?;
        config.postgres.timeout_ms = config.postgres.timeout_ms.max(CHANGE_TIME_MS_MIN);
        // One runtime for PostgreSQL's worker tasks and for all waits.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let done = runtime.block_on(async {
            let mut unsealer = Unsealer::open(&config)?;
            let prepared = prepare(&mut unsealer);
            let unsealer = Arc::new(unsealer);
            let stores = Stores::open(&config, Access::Change).await.map_err(explained)?;
            let control = Control::with_finder(Arc::clone(&stores.control), Arc::<Unsealer>::clone(&unsealer));
            let done = command(&RootStore { config, unsealer, control, json: self.json }, prepared).await;
            stores.close().await;
            done
        });
        // A read of a key file that hangs must not keep the command from ending.
        runtime.shutdown_background();
        done
    }
}

impl RootStore {
    fn providers(&self) -> &Providers {
        self.unsealer.providers()
    }

    /// Returns the root record as it is stored, for a store that no provider unseals.
    async fn unverified_record(&self) -> Result<RootRecord, Failure> {
        let found = self.control.root().await?.1;
        found.ok_or_else(|| "the store has no root key; `sealwire kek init` creates one".into())
    }

    /// Returns the root record, which must exist.
    async fn record(&self) -> Result<RootRecord, Failure> {
        let found = self.control.verified_root().await?.1;
        found.ok_or_else(|| "the store has no root key; `sealwire kek init` creates one".into())
    }

    /// Returns the root record, which must have no incoming root key.
    async fn settled_record(&self) -> Result<RootRecord, Failure> {
        let record = self.record().await?;
        if record.incoming.is_some() {
            return Err("a rotation of the root key is not finished; run `sealwire root rotate` first".into());
        }
        Ok(record)
    }

    /// Creates one slot per provider, with the numbers from `first` on.
    async fn new_slots<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        set: [u8; 16],
        root: &RootKey,
        first: u32,
    ) -> Result<Vec<RootSlot>, Failure> {
        let mut slots = Vec::new();
        for (name, number) in names.zip(first..) {
            slots.push(self.providers().new_slot(name, set, root, number).await?);
        }
        Ok(slots)
    }

    fn say(&self, text: &str, values: &Value) {
        if self.json { println!("{values}") } else { println!("{text}") }
    }
}

async fn list(store: &RootStore) -> Result<(), Failure> {
    let (generation, record) = store.control.root().await?;
    let mut roots = Vec::new();
    for root in record.iter().flat_map(RootRecord::roots) {
        let set = record.as_ref().map_or([0; 16], |record| record.set);
        roots.push((root, unwrapped(store, set, root).await));
    }
    let without = |name: &str| roots.iter().all(|(root, _)| root.slots.iter().all(|slot| slot.provider != name));
    if store.json {
        let roots = roots.iter().enumerate().map(|(at, (root, results))| of_root(store, at, root, results));
        let roots: Vec<_> = roots.collect();
        let providers = store.providers().iter();
        let providers: Vec<_> = providers
            .map(|(name, settings)| {
                json!({"name": name, "kind": settings.kind().name(), "fields": settings.public_fields()})
            })
            .collect();
        println!("{}", json!({"generation": generation, "roots": roots, "providers": providers}));
        return Ok(());
    }
    for (at, (root, results)) in roots.iter().enumerate() {
        println!("root key {root}, {}, created {}", state_name(at), time_text(root.created_unix_s));
        println!("{:<5} {:<20} {:<12} {:<21} NOW", "SLOT", "PROVIDER", "KIND", "VERIFIED");
        for (slot, result) in root.slots.iter().zip(results) {
            let now = result.as_ref().err().map_or("unwraps", |reason| &**reason);
            let RootSlot { number, provider, kind, verified_unix_s, .. } = slot;
            println!("{number:<5} {provider:<20} {kind:<12} {:<21} {now}", time_text(*verified_unix_s));
        }
    }
    if roots.is_empty() {
        println!("the store has no root key: the key of kek.provider wraps its keys. `sealwire kek init` creates one");
    }
    for (name, settings) in store.providers().iter().filter(|(name, _)| without(name)) {
        println!("provider {name} ({}) has no slot", settings.kind());
    }
    Ok(())
}

/// Unwraps each slot of a root key. Returns the reasons of failures.
async fn unwrapped(store: &RootStore, set: [u8; 16], root: &RootEntry) -> Vec<Result<(), String>> {
    let mut results = Vec::new();
    for slot in &root.slots {
        results.push(store.providers().unwrap_slot(set, root, slot).await.map(drop));
    }
    results
}

/// Returns the numbers of the slots that unwrapped.
fn right_slots<'a>(root: &'a RootEntry, results: &'a [Result<(), String>]) -> impl Iterator<Item = u32> + 'a {
    root.slots.iter().zip(results).filter(|(_, result)| result.is_ok()).map(|(slot, _)| slot.number)
}

fn state_name(at: usize) -> &'static str {
    if at == 0 { "active" } else { "incoming" }
}

fn of_root(store: &RootStore, at: usize, root: &RootEntry, results: &[Result<(), String>]) -> Value {
    let slots: Vec<_> = root.slots.iter().zip(results).map(|(slot, result)| of_slot(store, slot, result)).collect();
    json!({"id": root.to_string(), "state": state_name(at), "created_unix_s": root.created_unix_s, "slots": slots})
}

fn of_slot(store: &RootStore, slot: &RootSlot, result: &Result<(), String>) -> Value {
    json!({
        "number": slot.number, "provider": slot.provider, "kind": slot.kind, "fields": slot.fields,
        "created_unix_s": slot.created_unix_s, "verified_unix_s": slot.verified_unix_s,
        "unwraps": result.is_ok(), "needs_holders": store.providers().needs_holders(slot), "error": result.as_ref().err(),
    })
}

async fn init(store: &RootStore, names: &[String]) -> Result<(), Failure> {
    if store.control.root().await?.1.is_some() {
        return Err("the store has a root key already; `sealwire kek list` shows its slots".into());
    }
    let all: Vec<&str> = match names {
        [] => store.providers().iter().map(|(name, _)| name).collect(),
        names => names.iter().map(String::as_str).collect(),
    };
    let (root, set) = (RootKey::generate()?, random_set()?);
    let slots = store.new_slots(all.into_iter(), set, &root, FIRST_SLOT).await?;
    let count = slots.len();
    let generation = store.control.create_root(set, &root, slots).await?;
    let text = format!(
        "all keys are wrapped under a root key with {count} slots, from generation {generation} on\n\
         Keep the key of kek.provider: backups from before need it."
    );
    if count == 1 {
        eprintln!("this slot is the only one: without its provider's key all data is lost. Add another with `kek add`");
    }
    store.say(&text, &json!({"generation": generation, "slots": count}));
    Ok(())
}

fn generate(config: &Config, name: &str) -> Result<(), Failure> {
    let providers = Providers::load(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let generated = runtime.block_on(providers.generate_key(name));
    runtime.shutdown_background();
    generated?;
    println!("generated the key of provider {name}; `sealwire kek add {name}` gives it a slot");
    Ok(())
}

/// Returns a random name for a store's set of root keys.
fn random_set() -> Result<[u8; 16], Failure> {
    // The id of a second random key is random, too, and this program needs no other source.
    Ok(RootKey::generate()?.id(&[0; 16])?)
}

async fn add(store: &RootStore, name: &str) -> Result<(), Failure> {
    let record = store.settled_record().await?;
    let root = store.unsealer.unseal(record.set, &record.active).await?;
    let slots = store.new_slots([name].into_iter(), record.set, &root, record.next_slot).await?;
    let change = SlotChange { add: slots, ..SlotChange::default() };
    let generation = store.control.set_slots(record.active.id, change).await?;
    let number = record.next_slot;
    store.say(
        &format!("added slot {number} (provider {name}), from generation {generation} on"),
        &json!({"generation": generation, "slot": number}),
    );
    Ok(())
}

async fn remove(store: &RootStore, number: u32) -> Result<(), Failure> {
    let record = store.record().await?;
    let has_slot = |root: &&RootEntry| root.slots.iter().any(|slot| slot.number == number);
    let root = record.roots().find(has_slot).ok_or_else(|| format!("the root key has no slot {number}"))?;
    let others =
        RootEntry { slots: root.slots.iter().filter(|slot| slot.number != number).cloned().collect(), ..root.clone() };
    if others.slots.is_empty() {
        return Err("the last slot cannot be removed; add another one first".into());
    }
    let results = unwrapped(store, record.set, &others).await;
    // The change names the slots that must stay, so that of two removals at once only one can rely on the other's slot.
    let verified: Vec<u32> = right_slots(&others, &results).collect();
    if verified.is_empty() {
        let reasons: Vec<String> = results.into_iter().filter_map(Result::err).collect();
        let reasons = reasons.join("; ");
        return Err(format!("no other slot unwraps the root key now, so slot {number} stays: {reasons}").into());
    }
    let change = SlotChange { remove: vec![number], verified, ..SlotChange::default() };
    let generation = store.control.set_slots(root.id, change).await?;
    store.say(
        &format!("removed slot {number}, from generation {generation} on; backups from before still have it"),
        &json!({"generation": generation}),
    );
    Ok(())
}

async fn verify(store: &RootStore) -> Result<(), Failure> {
    let record = store.unverified_record().await?;
    let (mut failed, mut shown) = (0, Vec::new());
    for (at, root) in record.roots().enumerate() {
        let results = unwrapped(store, record.set, root).await;
        let verified: Vec<u32> = right_slots(root, &results).collect();
        let held = root.slots.iter().filter(|slot| store.providers().needs_holders(slot)).count();
        failed += root.slots.len() - verified.len() - held;
        if !verified.is_empty() {
            store.control.set_slots(root.id, SlotChange { verified, ..SlotChange::default() }).await?;
        }
        shown.push(of_root(store, at, root, &results));
        for (slot, result) in root.slots.iter().zip(&results).filter(|_| !store.json) {
            let result = result.as_ref().err().map_or("unwraps the root key", |reason| &**reason);
            println!("slot {} (provider {}): {result}", slot.number, slot.provider);
        }
    }
    if store.json {
        println!("{}", json!({"roots": shown, "failed": failed}));
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} slots do not unwrap the root key").into()) }
}

async fn rotate(store: &RootStore) -> Result<(), Failure> {
    let record = store.settled_record().await?;
    let root = store.unsealer.unseal(record.set, &record.active).await?;
    let names = record.active.slots.iter().map(|slot| &*slot.provider);
    let add = store.new_slots(names, record.set, &root, record.next_slot).await?;
    recovery::check_same_keys(&record.active.slots, &add)?;
    let remove: Vec<u32> = record.active.slots.iter().map(|slot| slot.number).collect();
    let count = add.len();
    let generation =
        store.control.set_slots(record.active.id, SlotChange { add, remove, ..SlotChange::default() }).await?;
    store.say(
        &format!("{count} slots hold new copies of the root key, from generation {generation} on"),
        &json!({"generation": generation, "slots": count}),
    );
    Ok(())
}

async fn rotate_root(store: &RootStore, wait: Duration) -> Result<(), Failure> {
    let record = store.record().await?;
    let incoming = match &record.incoming {
        Some(incoming) => store.unsealer.unseal(record.set, &incoming.entry).await?,
        None => {
            let root = Arc::new(RootKey::generate()?);
            let names = record.active.slots.iter().map(|slot| &*slot.provider);
            let slots = store.new_slots(names, record.set, &root, record.next_slot).await?;
            recovery::check_same_keys(&record.active.slots, &slots)?;
            store.control.stage_root(&root, slots).await?;
            root
        }
    };
    let begun = tokio::time::Instant::now();
    let mut behind = Vec::new();
    let generation = loop {
        match store.control.activate_root(&incoming).await {
            Err(StoreError::NotServed { instances, .. }) if begun.elapsed() < wait => {
                if instances != behind {
                    eprintln!("waiting for engines to load the new root key: {}", instances.join(", "));
                    behind = instances;
                }
                tokio::time::sleep(WAIT_PAUSE).await;
            }
            Err(error @ StoreError::NotServed { .. }) => {
                return Err(format!(
                    "{error}; look at their logs, then run `sealwire root rotate` again, or with --abandon to give up"
                )
                .into());
            }
            done => break done?,
        }
    };
    store.say(
        &format!("all keys are wrapped under a new root key, from generation {generation} on"),
        &json!({"generation": generation}),
    );
    Ok(())
}

async fn abandon(store: &RootStore) -> Result<(), Failure> {
    let generation = store.control.abandon_root().await?;
    store.say(
        &format!("the store has no incoming root key, from generation {generation} on"),
        &json!({"generation": generation}),
    );
    Ok(())
}

async fn accept_rollback(store: &RootStore, seen: Option<u64>) -> Result<(), Failure> {
    let seen =
        seen.ok_or("this configuration has no anchor file; give --seen the generation that an engine's log names")?;
    let generation = store.control.skip_generations(seen).await?;
    store.say(
        &format!(
            "the state is accepted, from generation {generation} on; engines that refused it load it at their next start or poll"
        ),
        &json!({"generation": generation, "seen": seen}),
    );
    Ok(())
}

async fn remove_root(store: &RootStore) -> Result<(), Failure> {
    let plain = Arc::new(read_kek(&store.config.kek)?);
    let generation = store.control.remove_root(plain).await?;
    store.unsealer.remove_anchor()?;
    store.say(
        &format!("the key of kek.provider wraps all keys, from generation {generation} on"),
        &json!({"generation": generation}),
    );
    Ok(())
}

fn time_text(unix_s: u64) -> String {
    if unix_s == 0 {
        return "never".to_owned();
    }
    let time = i64::try_from(unix_s).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| unix_s.to_string())
}

/// Adds a hint to an error of opening the store.
fn explained(error: StoreError) -> Failure {
    match error {
        StoreError::InUse { folder, process } => {
            let by = process.map_or_else(|| "another process".to_owned(), |id| format!("process {id}"));
            format!("{}: in use by {by}; stop the engine, run this again, and start the engine", folder.display())
                .into()
        }
        other => other.into(),
    }
}
