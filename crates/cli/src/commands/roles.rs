//! `roles`: manages roles, which are named sets of permissions, over an engine's control listener
//! or in a file.

use clap::Subcommand;
use sealwire_access::{self as access, Grant};
use sealwire_client::control::RoleOperation;
use sealwire_service::output::{errln, outln};
use sealwire_wire::control::Role;

use super::Failure;
use super::operator::TargetArgs;

/// Arguments of `roles`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: RolesCommand,
}

#[derive(Debug, Subcommand)]
enum RolesCommand {
    /// List roles with their grants
    List {
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Create a role, or replace all of its grants
    Set {
        /// 1 to 64 letters, digits, dots, underscores or hyphens, no dot in front
        role: String,
        /// Operations, then `apps=` and `collections=` with names or `*`; several grants add up.
        /// `properties=` names the properties of objects, or `*`; adding, reading, changing and
        /// finding objects needs it. `reason` requires a reason in each request. For decrypt,
        /// detokenize and objects.get, `mask=` shows values through a function only. `hourly=`
        /// limits the fields per hour. `until=` ends the grant at a time in RFC 3339. Examples:
        /// 'encrypt,tokenize apps=shop collections=people', 'tokenize apps=shop hourly=1000',
        /// 'decrypt apps=* reason', 'decrypt apps=shop mask=partial(last=4)', 'objects.get
        /// apps=shop collections=people properties=name,email until=2027-01-01T00:00:00Z',
        /// 'apps.*,collections.* apps=*'
        #[arg(required = true, value_name = "GRANT")]
        grants: Vec<String>,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Delete a role that no principal has
    Delete {
        /// The role
        role: String,
        #[command(flatten)]
        target: TargetArgs,
    },
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        RolesCommand::List { target } => print(
            target.engine.json,
            &target.run(async |control| control.roles().await)?,
        ),
        RolesCommand::Set {
            role,
            grants,
            target,
        } => {
            let grants = grants.iter().map(String::as_str);
            change(role, RoleOperation::set(grants), target)
        }
        RolesCommand::Delete { role, target } => change(role, RoleOperation::delete(), target),
    }
}

fn change(role: &str, operation: RoleOperation<'_>, target: &TargetArgs) -> Result<(), Failure> {
    let changed = target.run(async |control| control.change_role(role, operation).await)?;
    if changed.role.as_ref().is_some_and(can_guess) {
        errln!(
            "warning: callers of this role see values through a mask and can find them out by guessing, about 10,000 values a call: \
             by how a guess masks that they encrypt or mask, or by the token that equal values share; give the grant hourly=N, or \
             mask=redact, or those operations to another role (docs/masking.md)"
        );
    }
    print(target.engine.json, changed.role.as_slice())
}

fn can_guess(role: &Role) -> bool {
    let grants: Result<_, _> = role
        .grants
        .iter()
        .map(|text| Grant::from_text(text))
        .collect();
    grants
        .and_then(|grants| access::Role::new(&role.role, grants))
        .is_ok_and(|role| role.can_guess())
}

fn print(as_json: bool, roles: &[Role]) -> Result<(), Failure> {
    if as_json {
        outln!("{}", serde_json::to_string(roles)?);
        return Ok(());
    }
    for role in roles {
        let built_in = if role.built_in { " (built in)" } else { "" };
        outln!("{}{built_in}", role.role);
        for grant in &role.grants {
            outln!("  {grant}");
        }
    }
    Ok(())
}
