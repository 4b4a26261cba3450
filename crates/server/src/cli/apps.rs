//! `apps`: make and list apps in the store of a configuration. Works beside a running engine.

use clap::Subcommand;
use sealwire_crypto::{AppId, Curve, KeyState};
use sealwire_store::{AppStore as _, AppSummary};
use serde_json::{Value, json};

use super::{ConfigArgs, Failure};
use crate::server::open_store;

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
        /// 1 to 64 letters, digits, dots, underscores or hyphens
        name: String,
        #[command(flatten)]
        common: Common,
    },
    /// List apps and their key versions
    List {
        #[command(flatten)]
        common: Common,
    },
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
    match &args.command {
        Command::Create { name, common } => {
            let app = AppId::new(name)?;
            let made = open_store(&common.config.load()?)?.create(&app, &Curve::ALL)?;
            print(common.json, &[made]);
        }
        Command::List { common } => print(common.json, &open_store(&common.config.load()?)?.list()?),
    }
    Ok(())
}

fn print(as_json: bool, apps: &[AppSummary]) {
    let state = |state| match state {
        KeyState::Active => "active",
        KeyState::Disabled => "disabled",
    };
    if as_json {
        let key = |key: &sealwire_store::KeySummary| {
            json!({
                "id": key.id.to_string(),
                "curve": key.curve.name(),
                "version": key.number,
                "state": state(key.state),
                "created_unix_s": key.created_unix_s,
            })
        };
        let list: Vec<Value> = apps
            .iter()
            .map(|app| json!({ "app": app.app.as_str(), "keys": app.keys.iter().map(key).collect::<Vec<_>>() }))
            .collect();
        println!("{}", Value::from(list));
        return;
    }
    println!("{:<24} {:<6} {:<8} {:<11} STATE", "APP", "CURVE", "VERSION", "KEY");
    for app in apps {
        for key in &app.keys {
            let (curve, id) = (key.curve.name(), key.id.to_string());
            println!("{:<24} {curve:<6} {:<8} {id:<11} {}", app.app.as_str(), key.number, state(key.state));
        }
    }
}
