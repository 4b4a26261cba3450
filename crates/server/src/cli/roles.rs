//! `roles`: what may be done, under names, over an engine's control listener or in a file.

use clap::Subcommand;
use sealwire_wire::control::{Role, RoleAsk, RoleCall};

use super::Failure;
use super::operator::Place;

/// Arguments of `roles`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List roles with what they grant
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Make a role, or change what it grants: this and nothing else
    Set {
        /// 1 to 64 letters, digits, dots, underscores or hyphens, no dot in front
        role: String,
        /// Operations, then `apps=` and `collections=` with names or `*`, `reason` if each call must say why, and of decrypt and
        /// detokenize a `mask=` if values are shown through a function only: 'encrypt,tokenize apps=shop collections=people',
        /// 'decrypt apps=* reason', 'decrypt apps=shop mask=partial(last=4)', 'apps.*,collections.* apps=*'; several add up
        #[arg(required = true, value_name = "GRANT")]
        grants: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Remove a role that nobody has
    Delete {
        /// The role
        role: String,
        #[command(flatten)]
        place: Place,
    },
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::List { place } => print(place.at.json, &place.run(async |desk| desk.roles().await)?),
        Command::Set { role, grants, place } => {
            let grants = grants.iter().map(String::as_str).collect();
            change(RoleCall { role, ask: RoleAsk::Set { grants } }, place)
        }
        Command::Delete { role, place } => change(RoleCall { role, ask: RoleAsk::Delete }, place),
    }
}

fn change(call: RoleCall<'_>, place: &Place) -> Result<(), Failure> {
    let changed = place.run(async |desk| desk.change_role(call).await)?;
    print(place.at.json, changed.role.as_slice())
}

fn print(as_json: bool, roles: &[Role]) -> Result<(), Failure> {
    if as_json {
        println!("{}", serde_json::to_string(roles)?);
        return Ok(());
    }
    for role in roles {
        let built_in = if role.built_in { " (built in)" } else { "" };
        println!("{}{built_in}", role.role);
        for grant in &role.grants {
            println!("  {grant}");
        }
    }
    Ok(())
}
