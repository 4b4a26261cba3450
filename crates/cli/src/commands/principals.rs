//! `principals`: manages the roles of principals, over an engine's control listener or in a file.

use clap::Subcommand;
use sealwire_service::output::{errln, outln};
use sealwire_wire::control::{
    CheckRequest, Checked, Principal, PrincipalOperation, PrincipalRequest,
};

use super::operator::TargetArgs;
use super::{ConfigArgs, Failure, kek};
use sealwire_access::{ADMINISTRATOR, PrincipalKind};
use sealwire_engine::control;
use sealwire_settings::{Config, Mode};
use serde_json::json;

/// Arguments of `principals`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: PrincipalsCommand,
}

#[derive(Debug, Subcommand)]
enum PrincipalsCommand {
    /// List the principals that have a role
    List {
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Give a role to a principal
    Grant {
        /// The name in its certificate: a DNS name, a spiffe:// URI, or cn: and a common name
        principal: String,
        /// The role
        role: String,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Revoke a role from a principal, or all of its roles. On that engine, it no longer counts for
    /// requests that begin afterwards
    Revoke {
        /// The name in its certificate
        principal: String,
        /// The role [default: all]
        role: Option<String>,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Make a principal an administrator when nobody can grant roles any more, directly in the
    /// store
    ///
    /// For an emergency. The command changes the store that the configuration of this host names.
    /// It needs the same resources as an engine that starts there: the configuration, the store
    /// and, if the store has a root key, a key-encryption key. The command grants no client access
    /// to an app. Engines on a database follow at once; an engine whose store is a folder
    /// (`state.folder`) must be stopped first. The command writes no audit record: note who ran it, and
    /// why.
    Recover {
        /// The name in the certificate of the new administrator
        principal: String,
        #[command(flatten)]
        config: ConfigArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check whether the engine lets a request of a principal pass, by which role and in which
    /// access.mode; fails if it does not
    Check {
        /// The name in its certificate
        principal: String,
        /// Operation, such as encrypt, tokens.list or objects.get. Grants that ended at their
        /// `until=` do not count
        operation: String,
        /// The app [default: all]
        app: Option<String>,
        /// The collection [default: all]
        collection: Option<String>,
        /// Also check that a grant has this property of objects in its `properties=`, and name the
        /// mask that it is read through
        #[arg(long, value_name = "NAME")]
        property: Option<String>,
        /// The reason, as a request would give it
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        target: TargetArgs,
    },
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        PrincipalsCommand::List { target } => print_principals(
            target.engine.json,
            &target.run(async |control| control.principals().await)?,
        ),
        PrincipalsCommand::Grant {
            principal,
            role,
            target,
        } => change_principal(principal, PrincipalOperation::Grant { role }, target),
        PrincipalsCommand::Revoke {
            principal,
            role,
            target,
        } => change_principal(
            principal,
            PrincipalOperation::Revoke {
                role: role.as_deref(),
            },
            target,
        ),
        PrincipalsCommand::Recover {
            principal,
            config,
            json,
        } => create_administrator(principal, config.load()?, *json),
        PrincipalsCommand::Check {
            principal,
            operation,
            app,
            collection,
            property,
            reason,
            target,
        } => {
            let request = CheckRequest {
                principal,
                operation,
                app: app.as_deref(),
                collection: collection.as_deref(),
                property: property.as_deref(),
                reason: reason.as_deref(),
            };
            check_permission(request, target)
        }
    }
}

fn change_principal(
    principal: &str,
    operation: PrincipalOperation<'_>,
    target: &TargetArgs,
) -> Result<(), Failure> {
    let call = PrincipalRequest {
        principal,
        operation,
    };
    let changed = target.run(async |control| control.change_principal(call).await)?;
    print_principals(target.engine.json, changed.principal.as_slice())
}

/// Gives a principal the role administrator in the store of a configuration.
fn create_administrator(principal: &str, config: Config, json: bool) -> Result<(), Failure> {
    let place = match config.state.mode {
        Mode::Embedded => format!("state.folder {}", config.state.folder.display()),
        Mode::Stateless => format!("state.file {}", config.state.file.display()),
        Mode::Postgres => "the database of postgres.url".to_owned(),
    };
    let exists = match config.state.mode {
        Mode::Embedded => config.state.folder.exists(),
        Mode::Stateless => config.state.file.exists(),
        Mode::Postgres => true,
    };
    if !exists {
        return Err(format!(
            "{place} does not exist: give the configuration of the engine with --config"
        )
        .into());
    }
    let listed = config
        .control
        .as_ref()
        .map(|control| control.principals.clone())
        .unwrap_or_default();
    let generation = kek::on_store_of(config, false, async |store| {
        if store.control.generation().await? == 0 {
            return Err(format!(
                "{place} has no state: give the configuration of the engine with --config"
            )
            .into());
        }
        let operation = PrincipalOperation::Grant {
            role: ADMINISTRATOR,
        };
        control::change_principal(
            &**store.control.store(),
            PrincipalRequest {
                principal,
                operation,
            },
        )
        .await?;
        Ok(store.control.generation().await?)
    })?;
    if json {
        outln!(
            "{}",
            json!({"principal": principal, "role": ADMINISTRATOR, "generation": generation})
        );
    } else {
        outln!(
            "{principal} has the role {ADMINISTRATOR} in {place}, from generation {generation} on"
        );
    }
    if !listed.is_empty()
        && !listed
            .iter()
            .any(|(kind, name)| is_named(principal, *kind, name))
    {
        errln!(
            "warning: control.principals of this configuration does not list {principal}: add the name there, and to \
             access.administrators so that it can unseal the store, on each engine, and restart them"
        );
    }
    Ok(())
}

fn is_named(principal: &str, kind: PrincipalKind, name: &str) -> bool {
    sealwire_access::Principal::from_text(principal)
        .is_some_and(|principal| (principal.kind(), principal.as_str()) == (kind, name))
}

fn check_permission(call: CheckRequest<'_>, target: &TargetArgs) -> Result<(), Failure> {
    let checked = target.run(async |control| control.check(call).await)?;
    let text = description_of(&checked);
    if target.engine.json {
        outln!("{}", serde_json::to_string(&checked)?);
    } else if checked.permitted {
        outln!("{text}");
    }
    if checked.permitted {
        Ok(())
    } else {
        Err(text.into())
    }
}

/// Returns a sentence for people: whether the engine lets the request pass, why, and in which mode.
fn description_of(checked: &Checked) -> String {
    let Checked {
        permitted,
        role,
        mask,
        missing,
        mode,
        ..
    } = checked;
    let verdict = match (permitted, role, missing) {
        (true, Some(role), _) => format!("yes, by role {role}"),
        (true, None, Some(missing)) => format!("yes, although {missing}"),
        (true, None, None) => "yes, roles are not checked".to_owned(),
        (false, _, missing) => format!("no: {}", missing.as_deref().unwrap_or("not permitted")),
    };
    let through = mask
        .as_ref()
        .map_or_else(String::new, |mask| format!(", values through {mask}"));
    format!("{verdict}{through} (access.mode = \"{mode}\")")
}

fn print_principals(as_json: bool, principals: &[Principal]) -> Result<(), Failure> {
    if as_json {
        outln!("{}", serde_json::to_string(principals)?);
        return Ok(());
    }
    if principals.is_empty() {
        return Ok(());
    }
    outln!("{:<48} ROLES", "PRINCIPAL");
    for found in principals {
        outln!("{:<48} {}", found.principal, found.roles.join(","));
    }
    Ok(())
}
