//! `kek` and `root`: the root key of the configured store, and its copies under the configured
//! providers.

use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use sealwire_apps::{Control, StateId};
use sealwire_client::{Error, ErrorCode};
use sealwire_engine::kek::read_kek;
use sealwire_engine::root::{Providers, RootAdmin, Unsealer};
use sealwire_engine::stores::{Access, Stores};
use sealwire_kek::ProviderKind;
use sealwire_service::output::{errln, outln};
use sealwire_settings::Config;
use sealwire_store::StoreError;
use sealwire_wire::control::{RootKeyState, RootOperation, RootSlotState, RootState};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::operator::EngineArgs;
use super::{ConfigArgs, Failure};

mod recovery;

pub(super) use recovery::{RecoveryArgs, run_recovery};

/// Minimum time limit of the database for these commands, in milliseconds. All apps are written in
/// one statement.
const CHANGE_TIME_MS_MIN: u64 = 60_000;

/// Pause before the next request for a rotation, while engines are behind.
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

/// The store, or the engine that has it, and the output format.
#[derive(Debug, clap::Args)]
struct StoreArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Subcommand)]
enum KekCommand {
    /// List the configured providers and the slots of the root key, and try which slots unwrap it
    /// now
    List {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Create the root key, with one slot per provider, and wrap all stored keys under it
    ///
    /// A random root key then wraps all keys. Each slot holds a copy of it that one provider can
    /// unwrap: `local` is the key of `kek.provider`, the others are in the file of `kek.providers`.
    /// Any one slot is enough to start an engine. Give every engine on this store the providers
    /// first. `root remove` reverts this.
    Init {
        #[command(flatten)]
        store: StoreArgs,
        /// Provider to give a slot; may be given again [default: all configured ones]
        #[arg(long = "provider", value_name = "NAME")]
        providers: Vec<String>,
    },
    /// Generate the key of a provider of kind `pkcs11` on its token: AES-256, sensitive, not
    /// extractable
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
        /// Confirm the removal. Without this option, the command only reports the loss
        #[arg(long)]
        yes: bool,
    },
    /// Unwrap every slot, and record the slots that work. Fails if a slot does not unwrap
    Verify {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Replace every slot by a new copy of the same root key, after a provider made a new version
    /// of its key
    ///
    /// For providers that keep the old version. A key in a file or a variable must not be
    /// overwritten: give the new key another provider name, `kek add` it, and remove the old slot.
    Rotate {
        #[command(flatten)]
        store: StoreArgs,
    },
}

#[derive(Debug, Subcommand)]
enum RootCommand {
    /// Replace the root key, and wrap all stored keys under the new one
    ///
    /// The new root key gets a slot for each provider of the present one. All live engines must
    /// load it before it is used: the command waits for them. Interrupted, it continues when it is
    /// started again. Backups made before the rotation can only be opened with the provider keys of
    /// today's slots.
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
    /// Wipe all keys from the memory of every engine on the store, and stop serving until
    /// `root unseal`
    ///
    /// For a compromised machine or administrator. Engines on a database follow within a second, or
    /// within their poll interval if the notification is lost. Requests that run end at their
    /// deadline. The stored data does not change. An engine that starts on a sealed store sends no
    /// request to a provider. Without --connect, one slot must unwrap, to sign the mark.
    Seal {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Revert `root seal`: engines load their keys again by themselves
    ///
    /// At least one slot must unwrap, here or at the engine of --connect. The command verifies that
    /// nobody else wrote to the store meanwhile.
    Unseal {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Accept an older state of the store that was put back, after a restore from a backup
    ///
    /// Engines reject a store of an earlier generation than they have seen. This command raises the
    /// store's generation above the one in the anchor file of this configuration, so that all
    /// engines accept the store again. Use it only if you restored the backup yourself: roles and
    /// keys that were removed since the backup exist again.
    AcceptRollback {
        #[command(flatten)]
        store: StoreArgs,
        /// Generation that engines have seen, if another machine's log names a higher one than the
        /// anchor here
        #[arg(long, value_name = "GENERATION")]
        seen: Option<u64>,
    },
    /// Unwrap the root key with shares of a recovery key, and give it a slot of a provider that
    /// works
    ///
    /// For a store whose providers are all lost. Configure a new provider, or put a new key into
    /// the file of `kek.provider` (named `local`), and stop the engine if the state is a folder.
    /// Then give any shares that reach the threshold. A slot of the same provider that does not
    /// unwrap is replaced. A sealed store is unsealed. Engines start again afterwards. Nothing is
    /// changed if a share is wrong. If neither the anchor file nor root.json of this machine
    /// confirms the root key, give its id with --root-key-id.
    Recover {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        shares: recovery::ShareArgs,
        #[command(flatten)]
        root: recovery::RootKeyArgs,
        /// Provider to give a slot; may be given again
        #[arg(long = "provider", value_name = "NAME", required = true)]
        providers: Vec<String>,
    },
    /// Remove the root key, and wrap all stored keys under the configured key-encryption key, as
    /// before `kek init`
    ///
    /// Engines that run keep the last state and load no other: restart them, and remove their
    /// anchor files.
    Remove {
        #[command(flatten)]
        store: StoreArgs,
        /// Confirms that the key of `kek.provider` will wrap the keys. This must be the key that was
        /// used before `kek init`
        #[arg(long, required = true)]
        to_local: bool,
    },
}

/// The result of a command, as text and as JSON.
type CommandOutput = (String, Value);

/// The opened store.
pub(super) struct RootStore {
    config: Config,
    /// The state in the anchor file, if the file is ignored.
    anchored: Option<StateId>,
    pub(super) control: Control,
    admin: RootAdmin,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    super::serve::no_core_dumps();
    match &args.command {
        KekCommand::List { store } => store.print_list(),
        KekCommand::Init { store, providers } => store.create_root(providers),
        KekCommand::Generate { config, name } => generate_key(&config.load()?, name),
        KekCommand::Add { store, name } => store.add_slot(name),
        KekCommand::Remove { store, number, yes } => {
            super::check_confirmed(
                *yes,
                "the copy of the root key in this slot is lost, and its provider can no longer open the store",
            )?;
            store.remove_slot(*number)
        }
        KekCommand::Verify { store } => store.verify_slots(),
        KekCommand::Rotate { store } => {
            let state = store.run_operation(RootOperation::RotateSlots)?;
            let generation = state.generation;
            let count = state.roots.first().map_or(0, |root| root.slots.len());
            store.print_result(
                &format!(
                    "{count} slots hold new copies of the root key, from generation {generation} on"
                ),
                &json!({"generation": generation, "slots": count}),
            );
            Ok(())
        }
    }
}

pub(super) fn run_root(args: &RootArgs) -> Result<(), Failure> {
    super::serve::no_core_dumps();
    match &args.command {
        RootCommand::Rotate {
            store,
            wait,
            abandon,
        } => store.rotate_root(*abandon, Duration::from_secs(*wait)),
        RootCommand::Seal { store } => {
            let RootState { generation, .. } = store.run_operation(RootOperation::Seal)?;
            store.print_result(
                &format!("the store is sealed, from generation {generation} on; `sealwire root unseal` reverts this"),
                &json!({"generation": generation, "sealed": true}),
            );
            Ok(())
        }
        RootCommand::Unseal { store } => {
            let RootState { generation, .. } = store.run_operation(RootOperation::Unseal)?;
            store.print_result(
                &format!("the store is not sealed, from generation {generation} on"),
                &json!({"generation": generation, "sealed": false}),
            );
            Ok(())
        }
        RootCommand::AcceptRollback { store, seen } => store.accept_rollback(*seen),
        RootCommand::Recover {
            store,
            shares,
            root,
            providers,
        } => {
            let shares = shares.read()?;
            store.run_and_print(async |store| {
                recovery::recover_root(store, &shares, root, providers).await
            })
        }
        RootCommand::Remove { store, to_local: _ } => store.remove_root(),
    }
}

fn print_engines_behind(engines: &[String]) {
    errln!(
        "waiting for engines to load the new root key: {}",
        engines.join(", ")
    );
}

impl StoreArgs {
    /// Runs a command on the configured store.
    fn on_store<T>(
        &self,
        command: impl AsyncFnOnce(&RootStore) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.on_store_as(false, command)
    }

    /// Runs a command on the configured store, and accepts an older state if the anchor is ignored.
    fn on_store_as<T>(
        &self,
        ignores_anchor: bool,
        command: impl AsyncFnOnce(&RootStore) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        on_store_of(self.config.load()?, ignores_anchor, command)
    }

    /// Runs a command on the configured store, and prints its result.
    fn run_and_print(
        &self,
        command: impl AsyncFnOnce(&RootStore) -> Result<CommandOutput, Failure>,
    ) -> Result<(), Failure> {
        self.check_direct()?;
        let (text, values) = self.on_store(command)?;
        self.print_result(&text, &values);
        Ok(())
    }

    fn check_direct(&self) -> Result<(), Failure> {
        if self.engine.is_named() {
            return Err(
                "this command changes the store directly: run it without --connect and the other options of the connection"
                    .into(),
            );
        }
        Ok(())
    }

    /// Runs an operation at the engine if the arguments name one, otherwise on the store.
    fn run_operation(&self, operation: RootOperation<'_>) -> Result<RootState, Failure> {
        self.run_operation_within(operation, Duration::ZERO)
    }

    /// Runs an operation that can wait for engines.
    fn run_operation_within(
        &self,
        operation: RootOperation<'_>,
        wait: Duration,
    ) -> Result<RootState, Failure> {
        if !self.engine.is_named() {
            return self.on_store(async |store| {
                Ok(store
                    .admin
                    .run(&operation, wait, print_engines_behind)
                    .await?)
            });
        }
        if wait.is_zero() {
            return self
                .engine
                .run(async |client| Ok(client.root(operation).await?));
        }
        self.engine.run_without_retries(async |client| {
            let end = tokio::time::Instant::now() + wait;
            loop {
                match client.root(operation.clone()).await {
                    Err(Error::Rpc(error))
                        if error.code == ErrorCode::Conflict
                            && error.retry_after_ms.is_some()
                            && tokio::time::Instant::now() < end =>
                    {
                        errln!("{error}; waiting");
                        tokio::time::sleep(WAIT_PAUSE).await;
                    }
                    done => return Ok(done?),
                }
            }
        })
    }

    fn print_result(&self, text: &str, values: &Value) {
        if self.engine.json {
            outln!("{values}")
        } else {
            outln!("{text}")
        }
    }

    fn print_list(&self) -> Result<(), Failure> {
        let state = if self.engine.is_named() {
            self.run_operation(RootOperation::Status)?
        } else {
            self.on_store(async |store| Ok(store.admin.inspect().await?))?
        };
        if self.engine.json {
            let roots: Vec<_> = state.roots.iter().map(root_json).collect();
            outln!(
                "{}",
                json!({
                    "generation": state.generation, "roots": roots, "providers": state.providers,
                    "sealed_unix_s": state.sealed_unix_s, "verified": state.verified,
                    "unverified_reason": state.unverified_reason,
                })
            );
            return Ok(());
        }
        if !state.verified {
            outln!(
                "NOT VERIFIED: the following lines are not authenticated; anyone who can write to the store can forge them"
            );
            outln!(
                "reason: {}",
                state
                    .unverified_reason
                    .as_deref()
                    .unwrap_or("this engine is older and reports no reason")
            );
        }
        for root in &state.roots {
            let mark = if state.verified { "" } else { ", not verified" };
            outln!(
                "root key {}, {}, created {}{mark}",
                root.id,
                root.state,
                time_text(root.created_unix_s)
            );
            outln!(
                "{:<5} {:<20} {:<12} {:<21} NOW",
                "SLOT",
                "PROVIDER",
                "KIND",
                "VERIFIED"
            );
            for RootSlotState {
                number,
                provider,
                kind,
                verified_unix_s,
                unwraps,
                error,
                ..
            } in &root.slots
            {
                let untried = if unwraps.is_some() {
                    "unwraps"
                } else {
                    "not tried"
                };
                let now = error.as_deref().unwrap_or(untried);
                outln!(
                    "{number:<5} {provider:<20} {kind:<12} {:<21} {now}",
                    time_text(*verified_unix_s)
                );
            }
        }
        if let Some(sealed) = state.sealed_unix_s {
            let mark = if state.verified {
                ""
            } else {
                " (not verified)"
            };
            outln!(
                "sealed since {}{mark}; `sealwire root unseal` makes engines serve again",
                time_text(sealed)
            );
        }
        if state.roots.is_empty() {
            outln!(
                "the store has no root key: the key of kek.provider wraps its keys. `sealwire kek init` creates one"
            );
        }
        for provider in state
            .providers
            .iter()
            .filter(|provider| !has_slot(&state, &provider.name))
        {
            outln!("provider {} ({}) has no slot", provider.name, provider.kind);
        }
        Ok(())
    }

    fn create_root(&self, names: &[String]) -> Result<(), Failure> {
        let providers = (!names.is_empty()).then(|| names.iter().map(String::as_str).collect());
        let state = self.run_operation(RootOperation::Init { providers })?;
        let generation = state.generation;
        let count = state.roots.first().map_or(0, |root| root.slots.len());
        if count == 1 {
            errln!(
                "this slot is the only one: if its provider loses its key, all data is lost. Add another slot with `kek add`"
            );
        }
        let id = state.roots.first().map_or("", |root| &*root.id);
        let text = format!(
            "all keys are wrapped under a root key with {count} slots, from generation {generation} on\n\
             Keep the key of kek.provider: backups from before need it.\n\
             Note the root key's id {id} outside the store: `root recover` elsewhere asks for it."
        );
        self.print_result(
            &text,
            &json!({"generation": generation, "slots": count, "root_key_id": id}),
        );
        Ok(())
    }

    fn add_slot(&self, provider: &str) -> Result<(), Failure> {
        let RootState {
            generation, slot, ..
        } = self.run_operation(RootOperation::AddSlot { provider })?;
        let number = slot.unwrap_or_default();
        self.print_result(
            &format!("added slot {number} (provider {provider}), from generation {generation} on"),
            &json!({"generation": generation, "slot": number}),
        );
        Ok(())
    }

    fn remove_slot(&self, slot: u32) -> Result<(), Failure> {
        let RootState { generation, .. } =
            self.run_operation(RootOperation::RemoveSlot { slot })?;
        self.print_result(
            &format!("removed slot {slot}, from generation {generation} on; backups from before still have it"),
            &json!({"generation": generation}),
        );
        Ok(())
    }

    fn verify_slots(&self) -> Result<(), Failure> {
        let state = self.run_operation(RootOperation::Verify)?;
        let slots = state.roots.iter().flat_map(|root| &root.slots);
        let failed = slots
            .clone()
            .filter(|slot| slot.unwraps != Some(true) && !needs_holders(slot))
            .count();
        if self.engine.json {
            let shown: Vec<_> = state.roots.iter().map(root_json).collect();
            outln!("{}", json!({"roots": shown, "failed": failed}));
        } else {
            for RootSlotState {
                number,
                provider,
                error,
                ..
            } in slots
            {
                let result = error.as_deref().unwrap_or("unwraps the root key");
                outln!("slot {number} (provider {provider}): {result}");
            }
        }
        if failed == 0 {
            Ok(())
        } else {
            Err(match failed {
                1 => "1 slot does not unwrap the root key".into(),
                failed => format!("{failed} slots do not unwrap the root key").into(),
            })
        }
    }

    fn rotate_root(&self, abandon: bool, wait: Duration) -> Result<(), Failure> {
        let rotated = self.run_operation_within(RootOperation::Rotate { abandon }, wait).map_err(|failure| {
            let is_late = matches!(failure.downcast_ref(), Some(StoreError::NotServed { .. }))
                || matches!(failure.downcast_ref(), Some(Error::Rpc(error)) if error.code == ErrorCode::Conflict);
            if !is_late {
                return failure;
            }
            format!(
                "{failure}. A rotation that has started is not finished: check the logs of the engines that are named, then run `sealwire root rotate` again to continue it, or with --abandon to cancel it"
            )
            .into()
        });
        let RootState {
            generation, roots, ..
        } = rotated?;
        let id = roots.first().map_or("", |root| &*root.id);
        let text = if abandon {
            format!("the store has no incoming root key, from generation {generation} on")
        } else {
            format!(
                "all keys are wrapped under a new root key, from generation {generation} on\n\
                 Note the root key's id {id} outside the store: `root recover` elsewhere asks for it."
            )
        };
        self.print_result(&text, &json!({"generation": generation, "root_key_id": id}));
        Ok(())
    }

    fn accept_rollback(&self, seen: Option<u64>) -> Result<(), Failure> {
        self.check_direct()?;
        let (generation, seen) = self.on_store_as(true, async |store| {

            let now = store.control.state_id().await?;
            if let (Some(now), Some(anchored)) = (now, store.anchored) {
                check_set(&now, &anchored)?;
            }
            if let (Some(now), Some(anchored)) = (now, store.anchored)
                && seen.is_none_or(|seen| seen < now.generation)
                && !now.contradicts(&anchored)
            {
                return Err(format!(
                    "nothing to accept: the store has generation {}, which the configured anchor file accepts",
                    now.generation
                )
                .into());
            }
            let seen = store.anchored.map(|anchored| anchored.generation).max(seen);
            let seen = seen.ok_or(
                "this configuration has no anchor file; give --seen the generation that an engine's log names",
            )?;
            Ok((store.control.skip_generations(seen).await?, seen))
        })?;
        self.print_result(
            &format!(
                "the state is accepted, from generation {generation} on; engines that rejected it load it at their next start or poll"
            ),
            &json!({"generation": generation, "seen": seen}),
        );
        Ok(())
    }

    fn remove_root(&self) -> Result<(), Failure> {
        self.check_direct()?;
        let generation = self.on_store(async |store| {
            let plain = Arc::new(read_kek(&store.config.kek)?);
            let generation = store.control.remove_root(plain).await?;
            store.admin.unsealer().remove_anchor()?;
            Ok(generation)
        })?;
        self.print_result(
            &format!("the key of kek.provider wraps all keys, from generation {generation} on"),
            &json!({"generation": generation}),
        );
        Ok(())
    }
}

/// Returns true if a provider has a slot of a root key.
fn has_slot(state: &RootState, provider: &str) -> bool {
    state
        .roots
        .iter()
        .any(|root| root.slots.iter().any(|slot| slot.provider == provider))
}

/// Rejects a store whose set of root keys differs from the set that the anchor names. No later
/// generation makes it the same store.
fn check_set(now: &StateId, anchored: &StateId) -> Result<(), Failure> {
    if now.set == anchored.set {
        return Ok(());
    }
    Err(format!(
        "the store has the set of root keys {:032x}, and the anchor of this configuration names {:032x}: it is another store, or one from \
         before the root key was created again, and not an older state of this store. Nothing was changed. Only if you created its \
         root key yourself, remove the anchor file",
        u128::from_be_bytes(now.set),
        u128::from_be_bytes(anchored.set)
    )
    .into())
}

fn root_json(root: &RootKeyState) -> Value {
    let slots: Vec<_> = root.slots.iter().map(slot_json).collect();
    json!({"id": root.id, "state": root.state, "created_unix_s": root.created_unix_s, "slots": slots})
}

/// Returns true if only holders of shares unwrap the slot.
fn needs_holders(slot: &RootSlotState) -> bool {
    ProviderKind::from_name(&slot.kind).is_some_and(ProviderKind::needs_holders)
}

fn slot_json(slot: &RootSlotState) -> Value {
    json!({
        "number": slot.number, "provider": slot.provider, "kind": slot.kind, "fields": slot.fields,
        "created_unix_s": slot.created_unix_s, "verified_unix_s": slot.verified_unix_s,
        "unwraps": slot.unwraps, "needs_holders": needs_holders(slot), "error": slot.error,
    })
}

fn generate_key(config: &Config, name: &str) -> Result<(), Failure> {
    let providers = Providers::load(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let generated = runtime.block_on(providers.generate_key(name));
    runtime.shutdown_background();
    generated?;
    outln!("generated the key of provider {name}; `sealwire kek add {name}` gives it a slot");
    Ok(())
}

fn time_text(unix_s: u64) -> String {
    if unix_s == 0 {
        return "never".into();
    }
    let time = i64::try_from(unix_s)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_else(|| unix_s.to_string())
}

/// Runs a command on the store of a configuration, and accepts an older state if the anchor is
/// ignored.
pub(super) fn on_store_of<T>(
    mut config: Config,
    ignores_anchor: bool,
    command: impl AsyncFnOnce(&RootStore) -> Result<T, Failure>,
) -> Result<T, Failure> {
    config.postgres.timeout_ms = config.postgres.timeout_ms.max(CHANGE_TIME_MS_MIN);
    // PostgreSQL's worker tasks and all waits share a runtime.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        let mut unsealer = Unsealer::open(&config)?;
        let anchored = if ignores_anchor {
            unsealer.ignore_anchor()
        } else {
            None
        };
        let unsealer = Arc::new(unsealer);
        let stores = Stores::open(&config, Access::Change)
            .await
            .map_err(explain_error)?;
        let control = Control::with_finder(
            Arc::clone(&stores.control),
            Arc::<Unsealer>::clone(&unsealer),
        );
        let admin = RootAdmin::new(control.clone(), unsealer);
        let done = command(&RootStore {
            config,
            anchored,
            control,
            admin,
        })
        .await;
        stores.close().await;
        done
    });
    // A hanging read of a key file must not prevent the end of the command.
    runtime.shutdown_background();
    done
}

/// Adds a hint to an error of opening the store.
fn explain_error(error: StoreError) -> Failure {
    match error {
        StoreError::InUse { folder, process } => {
            let by = process.map_or_else(
                || "another process".to_owned(),
                |id| format!("process {id}"),
            );
            format!(
                "{}: in use by {by}; stop the engine, or name its control listener with --connect",
                folder.display()
            )
            .into()
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollbacks_are_accepted_within_one_set_of_root_keys() {
        let id = |set, generation: u8| StateId {
            set: [set; 16],
            generation: generation.into(),
            code: [generation; 32],
        };
        for generation in [1, 5, 9] {
            check_set(&id(1, generation), &id(1, 5)).unwrap();
            let said = check_set(&id(2, generation), &id(1, 5))
                .unwrap_err()
                .to_string();
            assert!(
                said.contains(&"02".repeat(16)) && said.contains(&"01".repeat(16)),
                "{said}"
            );
            assert!(said.contains("Nothing was changed"), "{said}");
        }
    }
}
