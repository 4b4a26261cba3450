//! `apps`: creates and lists apps, and changes their keys and settings, over an engine's control listener or in a file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use sealwire_client::{Curve, Format};
use sealwire_crypto::{EpochLifetime, KeyId};
use sealwire_store::{ControlStore as _, Snapshot};
use sealwire_store_embedded::FileStore;
use sealwire_wire::control::{App, AppChanged, AppOperation, RotateKind, Secret};
use sealwire_wire::{DELAY_S_DEFAULT, DELAY_S_MAX};
use zeroize::Zeroizing;

use super::Failure;
use super::operator::{ControlClient, ControlTarget, Place, export};
use sealwire_server::tls::exposed_mode;

/// Arguments of `apps`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: AppsCommand,
}

#[derive(Debug, Subcommand)]
enum AppsCommand {
    /// Create an app with a key on each curve and one for its tokens
    Create {
        /// 1 to 64 letters, digits, dots, underscores or hyphens, no dot in front
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Create an app's next key, which seals from then on; older keys still open
    Rotate {
        /// The app
        name: String,
        /// Only on this curve [default: each curve that the app has keys on]
        #[arg(long, value_parser = curve)]
        curve: Option<Curve>,
        /// Rotate the key that seals the values of tokens instead
        #[arg(long, conflicts_with = "curve")]
        token: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Import a key that was made elsewhere, so that data encrypted to it opens here
    Import(ImportArgs),
    /// Disable an app, whose requests are then denied, or one of its keys, which then neither opens nor seals, even if
    /// it is the last
    Disable(PartArgs),
    /// Undo a mistaken `disable`
    Enable(PartArgs),
    /// Disable an app or one of its keys, and delete it after a delay, with all data sealed under it
    Delete {
        /// Seconds until the deletion; until then, `restore` undoes it
        #[arg(long, value_name = "N", default_value_t = DELAY_S_DEFAULT,
            value_parser = clap::value_parser!(u64).range(0..=DELAY_S_MAX))]
        delay_s: u64,
        #[command(flatten)]
        part: PartArgs,
    },
    /// Undo a `delete` before its delay is over
    Restore(PartArgs),
    /// Change an app's settings; settings that are not named stay
    Set {
        /// The app
        name: String,
        #[command(flatten)]
        settings: SettingArgs,
        #[command(flatten)]
        place: Place,
    },
    /// List apps with their settings and key versions
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Write an engine's apps to a file for engines with `state.mode` "stateless"; keys stay sealed
    Export {
        /// The file, which must not exist
        file: PathBuf,
        #[command(flatten)]
        at: ControlTarget,
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
    /// The private key: PEM without a password (SEC 1 or PKCS #8), or its 32 bytes in hexadecimal or base64; `-` reads
    /// standard input. Other users must not be able to read the file
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// Also seal with this key from now on, as after `rotate`. Without this option the key only opens, because others
    /// may hold it
    #[arg(long)]
    seals: bool,
    #[command(flatten)]
    place: Place,
}

/// The settings that `set` changes.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct SettingArgs {
    /// Allow requests of key scope `epoch`, which share one ephemeral key per curve for this many milliseconds, 1 to
    /// 15000. A request of few fields then costs a fraction, but whoever learns that key can read all fields sealed
    /// under it. 0 forbids it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(EpochLifetime::MS_MAX)))]
    epoch_ms: Option<u32>,
    /// Format for requests that name none: native or evervault
    #[arg(long, value_parser = format)]
    format: Option<Format>,
}

/// An app, or one of its keys.
#[derive(Debug, clap::Args)]
struct PartArgs {
    /// The app
    name: String,
    /// Id of one of the app's keys, as `apps list` and `inspect` show it: 10 hexadecimal digits, or token-N [default:
    /// the whole app]
    /// left out
    #[arg(value_name = "KEY", value_parser = key_id)]
    key_id: Option<String>,
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // This process can hold the key-encryption key, and exported keys.
    super::serve::no_core_dumps();
    match &args.command {
        AppsCommand::Create { name, place } => {
            let made = place.run(async |desk| desk.change_app(name, AppOperation::Create).await)?;
            print(place.at.json, made.app.as_slice())
        }
        AppsCommand::Rotate { name, curve, token, place } => rotate(name, *curve, *token, place),
        AppsCommand::Import(args) => import(args),
        AppsCommand::Disable(args) => args.change(|key| AppOperation::Disable { key }),
        AppsCommand::Enable(args) => args.change(|key| AppOperation::Enable { key }),
        AppsCommand::Delete { part, delay_s } => {
            part.change(|key| AppOperation::Delete { key, delay_s: Some(*delay_s) })
        }
        AppsCommand::Restore(args) => args.change(|key| AppOperation::Restore { key }),
        AppsCommand::Set { name, settings, place } => {
            let ask = AppOperation::Set { format: settings.format, epoch_ms: settings.epoch_ms };
            let made = place.run(async |desk| desk.change_app(name, ask).await)?;
            print(place.at.json, made.app.as_slice())
        }
        AppsCommand::List { place } => print(place.at.json, &place.run(async |desk| desk.apps().await)?),
        AppsCommand::Export { file, at } => write_export(file, at),
    }
}

fn format(name: &str) -> Result<Format, String> {
    let found = Format::from_name(name).filter(|format| *format != Format::EvervaultBare);
    found.ok_or_else(|| "native or evervault".into())
}

fn curve(name: &str) -> Result<Curve, String> {
    Curve::from_name(name).ok_or_else(|| "r1 is P-256, k1 is secp256k1".into())
}

fn key_id(id: &str) -> Result<String, String> {
    let is_token_key = id.strip_prefix("token-").is_some_and(|number| number.parse::<u32>().is_ok());
    let known = is_token_key || id.parse::<KeyId>().is_ok();
    if known { Ok(id.to_owned()) } else { Err("a key's id is 10 hexadecimal digits, or token-N".into()) }
}

/// Rotates one kind of key, or the keys on each curve of the app. Prints the new keys.
fn rotate(name: &str, curve: Option<Curve>, token: bool, place: &Place) -> Result<(), Failure> {
    let changes = place.run(async |desk| {
        let kinds = match (token, curve) {
            (true, _) => vec![RotateKind::Token],
            (false, Some(curve)) => vec![of(curve)],
            (false, None) => curves(&desk, name).await?.into_iter().map(of).collect(),
        };
        let mut changes = Vec::new();
        for kind in kinds {
            changes.push(desk.change_app(name, AppOperation::Rotate { kind }).await?);
        }
        Ok(changes)
    })?;
    print_keys(place.at.json, &changes)
}

/// Returns the curves that an app has keys on.
async fn curves(desk: &ControlClient, name: &str) -> Result<Vec<Curve>, Failure> {
    let apps = desk.apps().await?;
    let app = apps.iter().find(|app| app.app == name).ok_or_else(|| format!("there is no app {name}"))?;
    let has = |curve: &&Curve| app.keys.iter().any(|key| key.curve == curve.name());
    Ok(Curve::ALL.iter().filter(has).copied().collect())
}

fn of(curve: Curve) -> RotateKind {
    match curve {
        Curve::R1 => RotateKind::R1,
        Curve::K1 => RotateKind::K1,
    }
}

fn import(args: &ImportArgs) -> Result<(), Failure> {
    let named = |error: Failure| -> Failure { format!("{}: {error}", args.key_file.display()).into() };
    let key = read_key(&args.key_file).map_err(named)?;
    let text = std::str::from_utf8(&key).map_err(|_| named("not a private key".into()))?;
    let ask = AppOperation::Import { curve: args.curve, private_key: Secret(text), seals: args.seals };
    let change = args.place.run(async |desk| desk.change_app(&args.name, ask).await)?;
    print_keys(args.place.at.json, &[change])
}

/// Longest accepted private key file. A key in PEM takes 300 bytes.
const KEY_FILE_BYTES_MAX: usize = 64 << 10;

/// Reads a file with a private key, or standard input. Errors contain none of its text.
fn read_key(file: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    // Allocates the full size once. A growing buffer would leave copies of the key behind that are not wiped.
    let mut text = Zeroizing::new(Vec::with_capacity(KEY_FILE_BYTES_MAX + 1));
    let open = if file == Path::new("-") {
        // Does not use `Stdin`, because its buffer is never wiped.
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

impl PartArgs {
    fn change<'a>(&'a self, ask: impl FnOnce(Option<&'a str>) -> AppOperation<'a>) -> Result<(), Failure> {
        let ask = ask(self.key_id.as_deref());
        let change = self.place.run(async |desk| desk.change_app(&self.name, ask).await)?;
        if self.key_id.is_some() {
            return print_keys(self.place.at.json, &[change]);
        }
        print(self.place.at.json, change.app.as_slice())
    }
}

fn write_export(file: &Path, at: &ControlTarget) -> Result<(), Failure> {
    if file.exists() {
        return Err(format!("{}: exists and is not overwritten", file.display()).into());
    }
    at.run(async |client| {
        let all = export(&client).await?;
        let records = all.records.into_iter().map(|record| (record.key, record.record.into_bytes())).collect();
        let snapshot = Snapshot { generation: all.generation, records };
        FileStore::open(file)?.replace(0, &snapshot).await?;
        if at.json {
            println!("{}", serde_json::json!({ "generation": snapshot.generation, "records": snapshot.records.len() }));
        } else {
            println!("{} records of generation {} in {}", snapshot.records.len(), snapshot.generation, file.display());
        }
        Ok(())
    })
}

/// Number of active keys on a curve above which a warning is printed. Each Evervault key that opens nothing costs 0.25
/// ms.
const ACTIVE_KEYS_FINE: usize = 4;

/// Warns if a curve of the changed key has too many active keys, or no active key that seals. An Evervault value does
/// not name its key, so all active keys may be tried.
fn warn(app: &App, changed: &str) {
    let Some(key) = app.keys.iter().find(|key| key.id == changed) else { return };
    let (app_name, curve) = (&app.app, &key.curve);
    let on_curve = || app.keys.iter().filter(|other| other.curve == *curve && other.state == "active");
    let active = on_curve().count();
    if key.state == "active" && active > ACTIVE_KEYS_FINE {
        eprintln!(
            "{app_name} has {active} active keys on {curve}: each new key in Evervault values may be tried with all of \
             them; disable those that no data needs"
        );
    }
    if key.state != "active" && !on_curve().any(|key| key.seals) {
        eprintln!(
            "{app_name} has no active key on {curve} now: encrypting on {curve} is answered not_found until one is made"
        );
    }
}

/// Prints an app with only the changed keys.
fn print_keys(as_json: bool, changes: &[AppChanged]) -> Result<(), Failure> {
    let changed = |id: &str| changes.iter().any(|change| change.key.as_deref() == Some(id));
    let Some(mut app) = changes.last().and_then(|change| change.app.clone()) else {
        return print(as_json, &[]);
    };
    changes.iter().filter_map(|change| change.key.as_deref()).for_each(|key| warn(&app, key));
    app.keys.retain(|key| changed(&key.id));
    app.token_keys.retain(|key| changed(&token_key_id(key.version)));
    print(as_json, &[app])
}

fn token_key_id(version: u32) -> String {
    format!("token-{version}")
}

fn print(as_json: bool, apps: &[App]) -> Result<(), Failure> {
    if as_json {
        println!("{}", serde_json::to_string(apps)?);
        return Ok(());
    }
    println!("{:<24} {:<10} {:<8} {:<6} {:<8} {:<11} STATE", "APP", "FORMAT", "EPOCH_MS", "KEY OF", "VERSION", "KEY");
    for app in apps {
        let whole = if app.state == "active" { String::new() } else { format!(", app {}", app.state) };
        let line = |of: &str, version: u32, id: &str, state: &str| {
            let (name, format, epoch_ms) = (&app.app, &app.format, app.epoch_ms);
            println!("{name:<24} {format:<10} {epoch_ms:<8} {of:<6} {version:<8} {id:<11} {state}{whole}");
        };
        for key in &app.keys {
            let opens_only = if key.seals { "" } else { ", opens only" };
            line(&key.curve, key.version, &key.id, &format!("{}{opens_only}", key.state));
        }
        for key in &app.token_keys {
            line("token", key.version, &token_key_id(key.version), &key.state);
        }
    }
    Ok(())
}
