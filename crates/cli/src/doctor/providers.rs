//! Checks of the providers of the root key: each provider must respond, each slot must unwrap, and
//! there must be more than one slot.
//!
//! A check wraps and unwraps test values, and unwraps slots. Nothing is stored, here or at a
//! provider. Results are not audited, because an engine can have the audit log open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire_apps::{RootEntry, RootRecord, RootSlot};
use sealwire_crypto::RootKey;
use sealwire_engine::root::{LOCAL_PROVIDER, Providers, USE_SECONDS_MAX};
use sealwire_kek::{Pkcs11Provider, ProviderSettings};
use sealwire_settings::Config;
use tokio::task::JoinSet;

use super::Report;

const CHECK: &str = "providers";
/// The effect of a provider or slot that does not work.
const DOWN: &str = "if the other slots fail too, an engine that starts cannot open any key";

/// Checks the configured providers, and the slots of a root record.
pub(super) async fn check_providers(
    report: &mut Report,
    config: &Config,
    providers: &Arc<Providers>,
    record: Option<&RootRecord>,
) {
    let Some(record) = record else {
        if config.kek_providers.is_some() {
            report.add_warning(
                CHECK,
                "kek.providers names providers, and the store has no root key",
                "only the key of kek.provider opens the keys",
                "run `sealwire kek init`",
            );
        }
        return;
    };
    if !config.kek_needs_root {
        report.add_warning(
            CHECK,
            "the store has a root key, and kek.root_key is not \"required\"",
            "a user with write access to the store could drop the root key and add keys under an earlier key-encryption key",
            "set kek.root_key = \"required\" for every engine on this store",
        );
    }
    for root in record.roots() {
        check_slots(report, providers, record.set, root).await;
    }

    let mut trials = JoinSet::new();
    for (name, settings) in providers.iter() {
        let has_slot = record.active.slots.iter().any(|slot| slot.provider == name);
        if has_slot {
            let providers = Arc::clone(providers);
            let name = name.to_owned();
            let settings = settings.clone();
            trials.spawn(async move {
                (
                    name.clone(),
                    within_time_limit(try_provider(&providers, &name, &settings)).await,
                )
            });
        } else if name != LOCAL_PROVIDER {
            report.add_warning(
                CHECK,
                format!("provider {name} ({}) has no slot", settings.kind()),
                "it cannot open any key",
                format!("run `sealwire kek add {name}`"),
            );
        }
    }

    let results: BTreeMap<_, _> = trials.join_all().await.into_iter().collect();
    for (name, result) in results {
        match result {
            Ok(()) => report.add_good(CHECK, format!("provider {name} works with a test value")),
            Err(reason) => report.add_warning(
                CHECK,
                format!("provider {name} does not work with a test value: {reason}"),
                "the provider cannot get a slot of a new root key, so `sealwire root rotate` stops",
                "correct the named cause; the slot and its key stay unchanged meanwhile",
            ),
        }
    }
}

/// Unwraps every slot of a root key, all at the same time.
async fn check_slots(
    report: &mut Report,
    providers: &Arc<Providers>,
    set: [u8; 16],
    root: &RootEntry,
) {
    let mut unwraps = JoinSet::new();
    for slot in root.slots.iter().cloned() {
        let providers = Arc::clone(providers);
        let root = root.clone();
        unwraps.spawn(async move {
            let unwrapped = async { providers.unwrap_slot(set, &root, &slot).await.map(drop) };
            (slot.number, within_time_limit(unwrapped).await)
        });
    }
    let results: BTreeMap<_, _> = unwraps.join_all().await.into_iter().collect();
    let works = results.values().any(Result::is_ok);
    for slot in &root.slots {
        let RootSlot {
            number,
            provider,
            kind,
            ..
        } = slot;
        let named = format!("slot {number} (provider {provider}, {kind})");
        if providers.needs_holders(slot) {
            report.add_good(
                CHECK,
                format!(
                    "{named} opens with the holders of shares; {}",
                    last_check(slot)
                ),
            );
            continue;
        }
        let remedy = "restore access to the provider and its permission for the key; `sealwire kek verify` checks it again";
        match results.get(number) {
            Some(Ok(())) => {
                let age = age_text(slot.verified_unix_s);
                report.add_good(
                    CHECK,
                    format!("{named} unwraps root key {root}; the last `kek verify` was {age} ago"),
                );
            }
            Some(Err(reason)) if works => {
                report.add_warning(
                    CHECK,
                    format!("{named} does not unwrap root key {root}: {reason}"),
                    DOWN,
                    remedy,
                );
            }
            Some(Err(reason)) => {
                let why =
                    "no slot unwraps this root key: an engine that starts cannot open any key";
                report.add_problem(
                    CHECK,
                    format!("{named} does not unwrap root key {root}: {reason}"),
                    why,
                    remedy,
                );
            }
            None => {}
        }
    }

    let mut alone = root
        .slots
        .iter()
        .filter(|slot| !providers.needs_holders(slot));
    if let (Some(slot), None) = (alone.next(), alone.next()) {
        report.add_warning(
            CHECK,
            format!(
                "root key {root} has one slot that starts an engine, of provider {}",
                slot.provider
            ),
            "if that provider loses its key, no sealed value can be opened again",
            "configure another provider, and add a slot with `sealwire kek add`",
        );
    }
}

/// Wraps a test value. Unwraps it, unless that needs the holders of shares.
async fn try_provider(
    providers: &Providers,
    name: &str,
    settings: &ProviderSettings,
) -> Result<(), String> {
    if let ProviderSettings::Pkcs11(options) = settings {
        // Also checks that the token rejects altered values.
        return Pkcs11Provider::new(options.clone())
            .check()
            .await
            .map_err(|error| error.to_string());
    }
    let root = RootKey::generate().map_err(|error| error.to_string())?;
    providers
        .new_slot(name, [0; 16], &root, 0)
        .await
        .map(drop)
        .map_err(|error| error.to_string())
}

fn last_check(slot: &RootSlot) -> String {
    match slot.verified_unix_s {
        0 => "the shares were never tested: run `sealwire recovery check`".into(),
        verified => format!("the last `recovery check` was {} ago", age_text(verified)),
    }
}

async fn within_time_limit(check: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    tokio::time::timeout(Duration::from_secs(USE_SECONDS_MAX), check)
        .await
        .unwrap_or_else(|_| Err(format!("no response within {USE_SECONDS_MAX} s")))
}

/// Prints the time since a moment, in days or, below two days, in hours.
fn age_text(unix_s: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    match now.saturating_sub(unix_s) / 3_600 {
        1 => "1 hour".to_owned(),
        hours @ 0..48 => format!("{hours} hours"),
        hours => format!("{} days", hours / 24),
    }
}
