//! `apps`: make and list apps, change their keys and settings, in the store of a configuration. Works beside a running engine,
//! which follows within a second.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use sealwire_crypto::{AppId, Curve, EpochLifetime, KeyId, KeyPair, KeyState};
use sealwire_store::{AppChange, AppSummary, Control, Format, KeyKind, KeySummary, Settings, StoreError, Target};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{ConfigArgs, Failure};
use crate::config::Config;
use crate::server::open_control;
use crate::tls::exposed_mode;

/// Arguments of `apps`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an app with a key on each curve; a running engine serves it within a second
    Create {
        /// 1 to 64 letters, digits, dots, underscores or hyphens, no dot in front
        name: String,
        #[command(flatten)]
        common: Common,
    },
    /// Make an app's next key, which seals from then on; the older ones go on opening
    Rotate {
        /// The app
        name: String,
        /// Only on this curve; each curve that the app has keys on if left out
        #[arg(long, value_parser = curve)]
        curve: Option<Curve>,
        #[command(flatten)]
        common: Common,
    },
    /// Add a key that was made elsewhere, so that what was encrypted to it opens here
    Import(ImportArgs),
    /// Stop a key: nothing opens or seals under it any more, not even if it is the last
    Disable(KeyArgs),
    /// Take a mistaken `disable` back
    Enable(KeyArgs),
    /// Change an app's settings; what is not named stays. A running engine follows within a second
    Set {
        /// The app
        name: String,
        #[command(flatten)]
        settings: SettingArgs,
        #[command(flatten)]
        common: Common,
    },
    /// List apps with their settings and key versions
    List {
        #[command(flatten)]
        common: Common,
    },
}

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
struct ImportArgs {
    /// The app
    name: String,
    /// r1 is P-256, k1 is secp256k1
    #[arg(long, value_parser = curve)]
    curve: Curve,
    /// The private key, which others must not be able to read: PEM without a password (SEC 1 or PKCS #8), or its 32
    /// bytes in hexadecimal or base64; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// Also seal with it from now on, as after `rotate`; it only opens otherwise, since others may hold it
    #[arg(long)]
    seals: bool,
    #[command(flatten)]
    common: Common,
}

/// The settings that `set` changes.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct SettingArgs {
    /// Allow calls of key scope `epoch`: they share one ephemeral key per curve for this many milliseconds, 1 to 15000.
    /// A call of few fields then costs a fraction; whoever learns that key reads all fields sealed under it. 0 forbids it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(EpochLifetime::MS_MAX)))]
    epoch_ms: Option<u32>,
    /// What is written for calls that name no format: native or evervault
    #[arg(long, value_parser = format)]
    format: Option<Format>,
}

/// Arguments of `disable` and `enable`.
#[derive(Debug, clap::Args)]
struct KeyArgs {
    /// The app
    name: String,
    /// The key's id, as `apps list` and `inspect` show it: 10 hexadecimal digits
    key: KeyId,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // It holds the key-encryption key, and exported ones.
    super::serve::no_core_dumps();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args.command {
            Command::Create { name, common } => {
                let app = AppId::new(name)?;
                common.change(async |control| Ok(vec![control.create(&app, &Curve::ALL).await?.app])).await
            }
            Command::Rotate { name, curve, common } => {
                let app = AppId::new(name)?;
                common.change(async |control| Ok(vec![rotate(control, &app, *curve).await?])).await
            }
            Command::Import(args) => import(args).await,
            Command::Disable(args) => {
                set_state(args, async |control, app, target| control.disable(app, target).await).await
            }
            Command::Enable(args) => {
                set_state(args, async |control, app, target| control.enable(app, target).await).await
            }
            Command::Set { name, settings, common } => {
                let (app, settings) = (AppId::new(name)?, settings.clone());
                let change = move |of: &mut Settings| settings.apply(of);
                common.change(async |control| Ok(vec![control.configure(&app, change.clone()).await?.app])).await
            }
            Command::List { common } => common.change(async |control| Ok(control.apps().await?.1)).await,
        }
    })
}

impl Common {
    /// Does something to the apps of the configuration, and prints the apps that come of it.
    async fn change(
        &self,
        change: impl AsyncFnOnce(&Control) -> Result<Vec<AppSummary>, Failure>,
    ) -> Result<(), Failure> {
        let config: Config = self.config.load()?;
        let (control, stores) = open_control(&config).await?;
        let made = change(&control).await;
        stores.close().await;
        print(self.json, &made?);
        Ok(())
    }
}

impl SettingArgs {
    fn apply(&self, settings: &mut Settings) {
        if let Some(ms) = self.epoch_ms {
            settings.epoch = EpochLifetime::from_ms(ms).ok(); // Only 0 is none: the rest is refused before.
        }
        if let Some(format) = self.format {
            settings.format = format;
        }
    }
}

fn format(name: &str) -> Result<Format, String> {
    Format::from_name(name).ok_or_else(|| "native or evervault".into())
}

fn curve(name: &str) -> Result<Curve, String> {
    Curve::from_name(name).ok_or_else(|| "r1 is P-256, k1 is secp256k1".into())
}

/// Rotates one curve, or each that the app has keys on. Gives the new keys.
async fn rotate(control: &Control, app: &AppId, curve: Option<Curve>) -> Result<AppSummary, StoreError> {
    let mut found = control.app(app).await?;
    let rotates = |wanted: &Curve| match curve {
        Some(curve) => curve == *wanted,
        None => found.keys.iter().any(|key| key.curve == *wanted),
    };
    let curves: Vec<Curve> = Curve::ALL.into_iter().filter(rotates).collect();
    let mut keys = Vec::new();
    for curve in curves {
        let made = control.rotate(app, KeyKind::Pair(curve)).await?;
        keys.extend(made.key());
        found = made.app;
    }
    warn_of_many(&found, &keys);
    Ok(AppSummary { keys, ..found })
}

async fn import(args: &ImportArgs) -> Result<(), Failure> {
    let app = AppId::new(&args.name)?;
    let named = |error: Failure| -> Failure { format!("{}: {error}", args.key_file.display()).into() };
    args.common
        .change(async |control| {
            let text = read_key(&args.key_file).map_err(named)?;
            let pair = KeyPair::import(args.curve, &text).map_err(|error| named(error.into()))?;
            let added = control.import(&app, pair, args.seals).await?;
            let keys: Vec<KeySummary> = added.key().copied().into_iter().collect();
            warn_of_many(&added.app, &keys);
            Ok(vec![AppSummary { keys, ..added.app }])
        })
        .await
}

/// Active keys on a curve beyond which an app is warned of: 0.25 ms for each Evervault key that opens nothing.
const ACTIVE_KEYS_FINE: usize = 4;

/// Says so where a curve of one of the `changed` keys has many active keys: an Evervault value names none of them.
fn warn_of_many(app: &AppSummary, changed: &[KeySummary]) {
    for curve in Curve::ALL.into_iter().filter(|curve| changed.iter().any(|key| key.curve == *curve)) {
        let active = app.keys.iter().filter(|key| key.curve == curve && key.state == KeyState::Active).count();
        if active > ACTIVE_KEYS_FINE {
            let (app, curve) = (&app.app, curve.name());
            eprintln!(
                "{app} has {active} active keys on {curve}: each new key in Evervault values may be tried with all of \
                 them; disable those that no data needs"
            );
        }
    }
}

/// Longest file that holds a private key. PEM of one takes 300 bytes.
const KEY_FILE_BYTES_MAX: usize = 64 << 10;

/// Reads a file with a private key, or standard input. Errors repeat nothing of it.
fn read_key(file: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    // One allocation of the full size: a growing buffer would leave copies of the key behind, unwiped.
    let mut text = Zeroizing::new(Vec::with_capacity(KEY_FILE_BYTES_MAX + 1));
    let open = if file == Path::new("-") {
        // Not through `Stdin`, whose buffer is never wiped.
        File::from(io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        let open = File::open(file)?;
        if let Some(mode) = exposed_mode(&open.metadata()?) {
            return Err(format!("others may read it (mode {mode:03o}); run `chmod 600` on it").into());
        }
        open
    };
    open.take(KEY_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    if text.len() > KEY_FILE_BYTES_MAX { Err("too long for a private key".into()) } else { Ok(text) }
}

/// Changes one key's state, and says so where a curve has no key left to seal with.
async fn set_state(
    args: &KeyArgs,
    change: impl AsyncFnOnce(&Control, &AppId, Target) -> Result<AppChange, StoreError>,
) -> Result<(), Failure> {
    let app = AppId::new(&args.name)?;
    args.common
        .change(async |control| {
            let changed = change(control, &app, Target::Key(args.key)).await?;
            let keys: Vec<KeySummary> = changed.key().copied().into_iter().collect();
            let found = changed.app;
            for key in &keys {
                let curve = key.curve;
                let seals = |key: &KeySummary| key.curve == curve && key.state == KeyState::Active && key.seals;
                if !found.keys.iter().any(seals) {
                    let curve = curve.name();
                    eprintln!(
                        "{app} has no active key on {curve} now: encrypting on {curve} is answered not_found until one \
                         is made"
                    );
                }
                if key.state == KeyState::Active {
                    warn_of_many(&found, &keys);
                }
            }
            Ok(vec![AppSummary { keys, ..found }])
        })
        .await
}

fn print(as_json: bool, apps: &[AppSummary]) {
    let state = |state| match state {
        KeyState::Active => "active",
        KeyState::Disabled => "disabled",
    };
    let epoch_ms = |app: &AppSummary| app.settings.epoch.map_or(0, EpochLifetime::as_ms);
    if as_json {
        let key = |key: &KeySummary| {
            json!({
                "id": key.id.to_string(),
                "curve": key.curve.name(),
                "version": key.number,
                "state": state(key.state),
                "seals": key.seals,
                "created_unix_s": key.created_unix_s,
            })
        };
        let list: Vec<Value> = apps
            .iter()
            .map(|app| {
                json!({
                    "app": app.app.as_str(),
                    "epoch_ms": epoch_ms(app),
                    "format": app.settings.format.name(),
                    "keys": app.keys.iter().map(key).collect::<Vec<_>>(),
                })
            })
            .collect();
        println!("{}", Value::from(list));
        return;
    }
    println!("{:<24} {:<10} {:<8} {:<6} {:<8} {:<11} STATE", "APP", "FORMAT", "EPOCH_MS", "CURVE", "VERSION", "KEY");
    for app in apps {
        for key in &app.keys {
            let (name, epoch_ms) = (app.app.as_str(), epoch_ms(app));
            let (curve, number, id, state) = (key.curve.name(), key.number, key.id.to_string(), state(key.state));
            let opens_only = if key.seals { "" } else { ", opens only" };
            let format = app.settings.format.name();
            println!("{name:<24} {format:<10} {epoch_ms:<8} {curve:<6} {number:<8} {id:<11} {state}{opens_only}");
        }
    }
}
