//! `apps`: creates and lists apps, and changes their keys and settings, at an engine's control
//! listener or in a file.

use sealwire_client::control::{AppOperation, AppSettings};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use sealwire_client::{Error, ErrorCode, Format, Pem, Suite};
use sealwire_command_line::failure::reworded;
use sealwire_crypto::{EpochLifetime, KeyId};
use sealwire_service::output::{errln, outln};
use sealwire_store::{ControlStore as _, Snapshot};
use sealwire_store_embedded::FileStore;
use sealwire_wire::control::{App, AppChanged, Key, RotateKind};
use sealwire_wire::{DELAY_S_DEFAULT, DELAY_S_MAX, RpcError};
use zeroize::Zeroizing;

use super::Failure;
use super::operator::{ControlTarget, EngineArgs, TargetArgs, explain_error, export_records};
use sealwire_service::trusted_file::FileKind;

/// Arguments of `apps`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: AppsCommand,
}

#[derive(Debug, Subcommand)]
enum AppsCommand {
    /// Create an app with a key of each suite and a key for its tokens
    Create {
        /// 1 to 64 letters, digits, dots, underscores or hyphens; the first is not a dot
        name: String,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Create an app's next key, which seals all new data; older keys can still open
    Rotate {
        /// The app
        name: String,
        /// Rotate only the key of this suite: p256-psk, p256, xaes, secp256k1-psk, secp256k1 or,
        /// experimental, p256-mlkem768. Creates the first key of a suite that the app has no key of
        /// [default: the key of each suite that the app has keys of]
        #[arg(long, value_parser = parse_suite)]
        suite: Option<Suite>,
        /// Rotate the key that seals the values of tokens instead of the key of a suite
        #[arg(long, conflicts_with = "suite")]
        token: bool,
        /// Create the app's next key to which others seal: its public key is published, see
        /// `public-keys`. Engines do not seal to it. With --suite p256 or p256-mlkem768 [default:
        /// p256]. All engines must be new enough to know such keys
        #[arg(long, conflicts_with = "token")]
        outside: bool,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Show the signed public keys to which others seal for an app, and the key that signed, which
    /// clients compare
    PublicKeys {
        /// The app
        name: String,
        #[command(flatten)]
        engine: EngineArgs,
    },
    /// Import a key that was created elsewhere, to open data that was encrypted to it
    Import(ImportArgs),
    /// Disable an app or one of its keys. Requests of a disabled app are denied; a disabled key
    /// neither opens nor seals, even if it is the last key
    Disable(AppOrKeyArgs),
    /// Undo a mistaken `disable`
    Enable(AppOrKeyArgs),
    /// Disable an app or one of its keys, and delete it after a delay. All data sealed under it is
    /// then lost
    Delete {
        /// Seconds until the deletion; until then, `restore` undoes it
        #[arg(long, value_name = "N", default_value_t = DELAY_S_DEFAULT,
            value_parser = clap::value_parser!(u64).range(0..=DELAY_S_MAX))]
        delay_s: u64,
        #[command(flatten)]
        args: AppOrKeyArgs,
    },
    /// Undo a `delete` before its delay is over
    Restore(AppOrKeyArgs),
    /// Change an app's settings; settings that are not given stay as they are
    Set {
        /// The app
        name: String,
        #[command(flatten)]
        settings: SettingArgs,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// List apps with their settings and key versions
    List {
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Write an engine's apps to a file for engines with `state.mode` "stateless"; keys stay
    /// encrypted
    Export {
        /// The file, which must not exist
        file: PathBuf,
        #[command(flatten)]
        engine: EngineArgs,
    },
}

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
struct ImportArgs {
    /// The app
    name: String,
    /// Suite of the key pair: p256 or secp256k1
    #[arg(long, value_parser = suite_of_key_pairs)]
    suite: Suite,
    /// The private key: PEM without a password (SEC 1 or PKCS #8), or its 32 bytes in hexadecimal
    /// or base64; `-` reads standard input. The file must not be readable by other users
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// Also seal with this key from now on, as after `rotate`. Without this option the key only
    /// opens, because other systems can also have it
    #[arg(long)]
    seals: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// The settings that `set` changes.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct SettingArgs {
    /// Allow requests with key scope `epoch`, which share one ephemeral key per suite for this many
    /// milliseconds, 1 to 15000. A request with few fields then takes a fraction of the CPU time,
    /// but a leaked ephemeral key exposes all fields sealed under it. 0 forbids such requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(EpochLifetime::MS_MAX)))]
    epoch_ms: Option<u32>,
    /// Format for requests without a format: native or evervault
    #[arg(long, value_parser = parse_format)]
    format: Option<Format>,
    /// Suite for requests without a suite: p256-psk, p256, xaes, secp256k1-psk, secp256k1 or
    /// p256-mlkem768. The app must have a key of it. All engines must be new enough to know it
    #[arg(long, value_name = "SUITE", value_parser = parse_suite)]
    write_suite: Option<Suite>,
    /// Suites whose envelopes open and which requests may name, with commas between. Rewrap all
    /// data of a suite before you leave it out
    #[arg(long, value_name = "SUITES", value_parser = parse_suite, value_delimiter = ',')]
    read_suites: Option<Vec<Suite>>,
}

/// An app, or one of its keys.
#[derive(Debug, clap::Args)]
struct AppOrKeyArgs {
    /// The app
    name: String,
    /// Id of one of the app's keys, as `apps list` and `inspect` show it: 10 hexadecimal digits, or
    /// token-N [default: the whole app]
    #[arg(value_name = "KEY", value_parser = key_id)]
    key_id: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // This process can hold the key-encryption key, and exported keys.
    super::serve::no_core_dumps();
    match &args.command {
        AppsCommand::Create { name, target } => {
            let change = target
                .run(async |control| control.change_app(name, AppOperation::create()).await)?;
            print_apps(target.engine.json, change.app.as_slice())
        }
        AppsCommand::Rotate {
            name,
            outside: true,
            suite,
            target,
            ..
        } => rotate_keys(name, &[outside_kind(suite.unwrap_or(Suite::P256))?], target),
        AppsCommand::Rotate {
            name,
            token: true,
            target,
            ..
        } => rotate_keys(name, &[RotateKind::Token], target),
        AppsCommand::Rotate {
            name,
            suite: Some(suite),
            target,
            ..
        } => rotate_keys(name, &[rotate_kind(*suite)], target),
        AppsCommand::Rotate { name, target, .. } => rotate_keys(name, &[], target),
        AppsCommand::PublicKeys { name, engine } => {
            super::public_keys::run_as_operator(name, engine)
        }
        AppsCommand::Import(args) => import_key(args),
        AppsCommand::Disable(args) => args.change(AppOperation::disable),
        AppsCommand::Enable(args) => args.change(AppOperation::enable),
        AppsCommand::Delete { args, delay_s } => {
            args.change(|key| AppOperation::delete(key, Duration::from_secs(*delay_s)))
        }
        AppsCommand::Restore(args) => args.change(AppOperation::restore),
        AppsCommand::Set {
            name,
            settings,
            target,
        } => {
            let SettingArgs {
                epoch_ms,
                format,
                write_suite,
                read_suites,
            } = settings.clone();
            let mut changes = AppSettings::new()
                .format(format)
                .epoch(epoch_ms.map(|time| Duration::from_millis(time.into())))
                .write_suite(write_suite);
            if let Some(suites) = read_suites {
                changes = changes.read_suites(suites);
            }
            let operation = AppOperation::set(changes);
            let change = target.run(async |control| control.change_app(name, operation).await)?;
            print_apps(target.engine.json, change.app.as_slice())
        }
        AppsCommand::List { target } => print_apps(
            target.engine.json,
            &target.run(async |control| control.apps().await)?,
        ),
        AppsCommand::Export { file, engine } => write_export(file, engine),
    }
}

fn parse_format(name: &str) -> Result<Format, String> {
    let found = Format::from_name(name).filter(|format| *format != Format::EvervaultBare);
    found.ok_or_else(|| "the format must be native or evervault".into())
}

fn parse_suite(name: &str) -> Result<Suite, String> {
    Suite::from_name(name).ok_or_else(|| {
        "the suites are p256-psk, p256, xaes, secp256k1-psk, secp256k1 and p256-mlkem768".into()
    })
}

fn suite_of_key_pairs(name: &str) -> Result<Suite, String> {
    let found =
        Suite::from_name(name).filter(|suite| matches!(suite, Suite::P256 | Suite::Secp256k1));
    found.ok_or_else(|| "the suites of key pairs are p256 and secp256k1".into())
}

fn key_id(id: &str) -> Result<String, String> {
    let is_token_key = id
        .strip_prefix("token-")
        .is_some_and(|number| number.parse::<u32>().is_ok());
    let is_valid = is_token_key || id.parse::<KeyId>().is_ok();
    if is_valid {
        Ok(id.to_owned())
    } else {
        Err("a key's id is 10 hexadecimal digits, or token-N".into())
    }
}

/// Rotates the given kinds of key, or without any kind the key of each suite of the app. Prints the
/// new keys.
fn rotate_keys(name: &str, kinds: &[RotateKind], target: &TargetArgs) -> Result<(), Failure> {
    if !kinds.is_empty() {
        let changes = target.run(async |control| {
            let mut changes = Vec::new();
            for &kind in kinds {
                changes.push(control.change_app(name, AppOperation::rotate(kind)).await?);
            }
            Ok(changes)
        })?;
        return print_keys(target.engine.json, &changes);
    }
    let (changes, failed) = target.run(async |control| {
        let suites = suites_of_app(&control, name).await?;
        let mut changes = Vec::new();
        for (done, &suite) in suites.iter().enumerate() {
            match control
                .change_app(name, AppOperation::rotate(rotate_kind(suite)))
                .await
            {
                Ok(change) => changes.push(change),
                Err(failure) => {
                    return Ok((changes, Some((failure, suite, suites[done + 1..].to_vec()))));
                }
            }
        }
        Ok((changes, None))
    })?;
    let Some((failure, suite, left)) = failed else {
        return print_keys(target.engine.json, &changes);
    };
    // The new keys are printed even after a failure, because a repetition of the command would
    // rotate them again.
    if !changes.is_empty() {
        print_keys(target.engine.json, &changes)?;
    }
    let failure = explain_error(failure);
    let text = rotation_ended(&failure.to_string(), suite, &left);
    Err(reworded(&*failure, text))
}

/// Returns the error of a rotation of several suites that stopped at one suite.
fn rotation_ended(error: &str, suite: Suite, left: &[Suite]) -> String {
    let name = suite.name();
    if left.is_empty() {
        return format!("suite {name}: {error}");
    }
    let left = left
        .iter()
        .map(|suite| suite.name())
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "suite {name}: {error}. Not rotated: {left}. Do not repeat the whole command; rotate each of these with --suite"
    )
}

/// Returns the suites that an app has keys of.
async fn suites_of_app(control: &ControlTarget, name: &str) -> Result<Vec<Suite>, Failure> {
    let apps = control.apps().await?;
    let app = apps.iter().find(|app| app.app == name).ok_or_else(|| {
        let text = format!("app {name} does not exist; `sealwire apps list` shows which do");
        Error::Rpc(RpcError::new(ErrorCode::NotFound, text))
    })?;
    let suites = Suite::ALL.iter().copied().filter(|suite| {
        app.keys
            .iter()
            .any(|key| key.suite == suite.name() && !key.outside)
    });
    Ok(suites.collect())
}

fn rotate_kind(suite: Suite) -> RotateKind {
    match suite {
        Suite::P256 => RotateKind::P256,
        Suite::Secp256k1 => RotateKind::Secp256k1,
        Suite::Xaes => RotateKind::Xaes,
        Suite::P256MlKem768 => RotateKind::P256MlKem768,
        Suite::P256Psk => RotateKind::P256Psk,
        Suite::Secp256k1Psk => RotateKind::Secp256k1Psk,
    }
}

fn outside_kind(suite: Suite) -> Result<RotateKind, Failure> {
    match suite {
        Suite::P256 => Ok(RotateKind::P256Outside),
        Suite::P256MlKem768 => Ok(RotateKind::P256MlKem768Outside),
        Suite::Secp256k1 | Suite::Xaes | Suite::P256Psk | Suite::Secp256k1Psk => Err(format!(
            "no public keys of suite {} are published; p256 and p256-mlkem768 are",
            suite.name()
        )
        .into()),
    }
}

fn import_key(args: &ImportArgs) -> Result<(), Failure> {
    if Pem::is_content(&args.key_file) {
        return Err(
            "the private key must be in a file or come from standard input (-): other users can read arguments".into(),
        );
    }
    let file = args.key_file.display();
    let key = read_key(&args.key_file).map_err(|error| format!("{file}: {error}"))?;
    let text = std::str::from_utf8(&key).map_err(|_| format!("{file}: not a private key"))?;
    let operation = AppOperation::import(args.suite, text, args.seals);
    let change = args
        .target
        .run(async |control| control.change_app(&args.name, operation).await)?;
    print_keys(args.target.engine.json, &[change])
}

/// Maximum size of a private key file. A key in PEM takes about 300 bytes.
const KEY_FILE_BYTES_MAX: usize = 64 << 10;

/// Reads a file with a private key, or standard input. Errors contain none of its text.
fn read_key(file: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    if file != Path::new("-") {
        let read =
            sealwire_service::trusted_file::read(file, FileKind::Secret, KEY_FILE_BYTES_MAX as u64);
        return read.map_err(|error| error.reason.into());
    }
    // Allocates the full size once. A growing buffer would leave copies of the key behind that are
    // not wiped.
    let mut text = Zeroizing::new(Vec::with_capacity(KEY_FILE_BYTES_MAX + 1));
    // Does not use `Stdin`, because its buffer is never wiped.
    let source = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    source
        .take(KEY_FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)?;
    if text.len() > KEY_FILE_BYTES_MAX {
        Err("too long for a private key".into())
    } else {
        Ok(text)
    }
}

impl AppOrKeyArgs {
    /// Changes an app or a key, and prints it.
    fn change<'a>(
        &'a self,
        operation: impl FnOnce(Option<&'a str>) -> AppOperation<'a>,
    ) -> Result<(), Failure> {
        let operation = operation(self.key_id.as_deref());
        let change = self
            .target
            .run(async |control| control.change_app(&self.name, operation).await)?;
        if self.key_id.is_some() {
            return print_keys(self.target.engine.json, &[change]);
        }
        print_apps(self.target.engine.json, change.app.as_slice())
    }
}

fn write_export(file: &Path, engine: &EngineArgs) -> Result<(), Failure> {
    if file.exists() {
        return Err(format!("{}: exists and is not overwritten", file.display()).into());
    }
    engine.run(async |client| {
        let exported = export_records(&client).await?;
        let records = exported.records.into_iter().map(|record| (record.key, record.record.into_bytes())).collect();
        let snapshot = Snapshot { generation: exported.generation, records };
        FileStore::open(file)?.replace(0, &snapshot).await?;
        if engine.json {
            outln!("{}", serde_json::json!({ "generation": snapshot.generation, "records": snapshot.records.len() }));
        } else {
            outln!("{} records of generation {} in {}", snapshot.records.len(), snapshot.generation, file.display());
        }
        Ok(())
    })
}

/// Maximum number of active key pairs of a suite without a warning. Each active key that does not
/// open an Evervault value costs 0.25 ms.
const ACTIVE_KEYS_WITHOUT_WARNING: usize = 4;

/// Warns if the suite of the changed key has too many active key pairs, or no active key that
/// seals. An Evervault value does not name its key, so all active keys may be tried.
fn warn_about_active_keys(app: &App, changed_key: &str) {
    let Some(key) = app.keys.iter().find(|key| key.id == changed_key) else {
        return;
    };
    let app_name = &app.app;
    let suite = &key.suite;
    let active_keys = app.keys.iter().filter(|other| {
        other.suite == *suite && other.outside == key.outside && other.state == "active"
    });
    let active = active_keys.clone().count();
    if key.outside {
        if active == 0 {
            errln!(
                "{app_name} publishes no key of suite {suite} now: `apps rotate {app_name} --outside --suite {suite}` creates one"
            );
        }
        return;
    }
    if key.state == "active"
        && suite_of_key_pairs(suite).is_ok()
        && active > ACTIVE_KEYS_WITHOUT_WARNING
    {
        errln!(
            "{app_name} has {active} active keys of suite {suite}: each new ephemeral key in Evervault values may be tried \
             with all of them; disable the keys that no data needs"
        );
    }
    if key.state != "active" && !active_keys.clone().any(|key| key.seals) {
        errln!(
            "{app_name} has no active key of suite {suite} now: requests to encrypt with {suite} fail with not_found \
             until a key is created or enabled"
        );
    }
}

/// Prints the changed app, with only its changed keys.
fn print_keys(as_json: bool, changes: &[AppChanged]) -> Result<(), Failure> {
    let changed_keys: Vec<&str> = changes
        .iter()
        .filter_map(|change| change.key.as_deref())
        .collect();
    let Some(mut app) = changes.last().and_then(|change| change.app.clone()) else {
        return print_apps(as_json, &[]);
    };
    for key in &changed_keys {
        warn_about_active_keys(&app, key);
    }
    app.keys.retain(|key| changed_keys.contains(&&*key.id));
    app.token_keys
        .retain(|key| changed_keys.contains(&&*token_key_id(key.version)));
    print_apps(as_json, &[app])
}

fn token_key_id(version: u32) -> String {
    format!("token-{version}")
}

fn print_apps(as_json: bool, apps: &[App]) -> Result<(), Failure> {
    if as_json {
        outln!("{}", serde_json::to_string(apps)?);
        return Ok(());
    }
    outln!(
        "{:<24} {:<10} {:<13} {:<8} {:<13} {:<8} {:<11} STATE",
        "APP",
        "FORMAT",
        "WRITES",
        "EPOCH_MS",
        "KEY OF",
        "VERSION",
        "KEY"
    );
    for app in apps {
        let app_state = if app.state == "active" {
            String::new()
        } else {
            format!(", app {}", app.state)
        };
        for key in &app.keys {
            let opens_only = match key {
                Key { outside: true, .. } => ", outside",
                Key { seals: false, .. } => ", opens only",
                _ => "",
            };
            let suite_off = if app.read_suites.contains(&key.suite) {
                ""
            } else {
                ", suite off"
            };
            print_key(
                app,
                &key.suite,
                key.version,
                &key.id,
                &format!("{}{opens_only}{suite_off}{app_state}", key.state),
            );
        }
        for key in &app.token_keys {
            let state = format!("{}{app_state}", key.state);
            print_key(
                app,
                "token",
                key.version,
                &token_key_id(key.version),
                &state,
            );
        }
    }
    Ok(())
}

/// Prints the line of one key.
fn print_key(app: &App, key_of: &str, version: u32, id: &str, state: &str) {
    let App {
        app: name,
        format,
        write_suite,
        epoch_ms,
        ..
    } = app;
    outln!(
        "{name:<24} {format:<10} {write_suite:<13} {epoch_ms:<8} {key_of:<13} {version:<8} {id:<11} {state}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_that_ended_early_names_what_is_left() {
        let said = rotation_ended(
            "the change was made; do not repeat it",
            Suite::P256,
            &[Suite::Xaes, Suite::P256Psk],
        );
        assert!(
            said.starts_with("suite p256: the change was made"),
            "{said}"
        );
        assert!(
            said.contains("Not rotated: xaes, p256-psk.") && said.contains("--suite"),
            "{said}"
        );
        assert_eq!(
            rotation_ended("denied", Suite::Xaes, &[]),
            "suite xaes: denied"
        );
    }
}
