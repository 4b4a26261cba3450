//! `collections`: creates, changes and lists collections of tokens or objects, over an engine's
//! control listener or in a file.

mod migrate;
mod schema;

pub(super) use schema::repeat_safely;

use clap::{Subcommand, ValueEnum};
use sealwire_service::output::outln;
use sealwire_wire::EXPIRES_S_MAX;
use sealwire_wire::control::{
    Collection, CollectionOperation, CollectionRequest, CreateCollection, Kind, Scope, TokenFormat,
};

use super::operator::{EngineArgs, TargetArgs};
use super::{Failure, properties};
use schema::{ObjectRules, SchemaChanges};

/// Arguments of `collections`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: CollectionsCommand,
}

#[derive(Debug, Subcommand)]
enum CollectionsCommand {
    /// Create a collection, which stores tokens and the values that they stand for, or with
    /// --objects typed objects
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The app
        app: String,
        /// 1 to 64 letters, digits, dots, underscores or hyphens, no dot in front
        name: String,
        #[command(flatten)]
        rules: Rules,
        #[command(flatten)]
        objects: ObjectRules,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// List an app's collections. The properties of objects are below their collection
    List {
        /// The app
        app: String,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Change the schema of a collection of objects at once, in one step
    #[command(after_help = ALTER_EXAMPLE)]
    Alter {
        /// The app
        app: String,
        /// The collection
        name: String,
        #[command(flatten)]
        changes: SchemaChanges,
        /// Repeat while live engines do not serve an earlier change yet, which frees the name of a
        /// dropped property
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Seal old records of a collection of objects again, so that each proves that an engine sealed
    /// it
    ///
    /// Collections that an older version created also read records that anyone with write access to
    /// the database can forge. This command converts each old record that proves that an engine
    /// sealed it, lists the other records, and leaves them unchanged. Compare those with their
    /// source before you accept them with --accept-unauthenticated. Upgrade every engine first. The
    /// command can be repeated. Exit status 1 if old records are left, unless --dry-run is given.
    #[command(after_help = MIGRATE_EXAMPLE)]
    Migrate {
        /// The app
        app: String,
        /// The collection
        name: String,
        /// Also convert records that do not prove who sealed them. From then on they count as
        /// authentic
        #[arg(long)]
        accept_unauthenticated: bool,
        /// Change nothing. Name the records that cannot be authenticated and those that do not open
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        engine: EngineArgs,
    },
    /// Change when new tokens or objects expire, or how long archived ones are kept
    Set {
        /// The app
        app: String,
        /// The collection
        name: String,
        #[command(flatten)]
        times: Times,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Delete a collection at once, with all of its tokens or objects. This cannot be undone
    Delete {
        /// The app
        app: String,
        /// The collection
        name: String,
        /// Confirm the deletion. Without this option, the command only reports the loss
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        target: TargetArgs,
    },
}

const CREATE_EXAMPLES: &str = "\
Examples:
  sealwire collections create shop cards --kind deterministic --format card
  sealwire collections create shop people --objects --property 'email:email unique required' \\
    --property 'name:name index' --property 'note:string description=\"From the form\"'";

const ALTER_EXAMPLE: &str = "\
Example:
  sealwire collections alter shop people --add 'phone:phone index' --drop note";

const MIGRATE_EXAMPLE: &str = "\
Example:
  sealwire collections migrate shop people --dry-run
  sealwire collections migrate shop people";

/// Settings of a new collection. Only the two times can be changed later.
#[derive(Debug, clap::Args)]
struct Rules {
    /// random: every request makes new tokens. deterministic: equal values have equal tokens, so
    /// tokens reveal which values are equal. one-way: like deterministic, and no token can be
    /// detokenized
    #[arg(long, value_enum, required_unless_present = "objects")]
    kind: Option<KindName>,
    /// Format of tokens: tok_ and 22 letters and digits, a UUID, as many digits as the value, a
    /// card number with the value's ends, an address that gets no mail
    #[arg(long, value_enum, default_value = "opaque")]
    format: TokenFormatName,
    /// First digits of a card number that its token keeps, 0 to 6 [default: 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=6))]
    first: Option<u8>,
    /// Last digits of a card number that its token keeps, 0 to 4 [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=4))]
    last: Option<u8>,
    /// Scope in which equal values have equal tokens: the whole collection, or one context
    #[arg(long, value_enum, default_value = "collection")]
    scope: ScopeName,
    /// Seconds after which tokens or objects expire, unless the request names a time [default:
    /// never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=EXPIRES_S_MAX))]
    expires_s: Option<u64>,
    /// Seconds for which an archived token or object is kept before the engine deletes it for good
    /// [default: for ever]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=EXPIRES_S_MAX))]
    retention_s: Option<u64>,
}

/// Times that can be changed.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Times {
    /// Seconds after which new tokens or objects expire, unless the request names a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=EXPIRES_S_MAX))]
    expires_s: Option<u64>,
    /// New tokens or objects do not expire, unless the request names a time
    #[arg(long, conflicts_with = "expires_s")]
    never: bool,
    /// Seconds for which an archived token or object is kept before the engine deletes it for good
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=EXPIRES_S_MAX))]
    retention_s: Option<u64>,
    /// Archived tokens or objects are kept until an operator prunes them
    #[arg(long, conflicts_with = "retention_s")]
    keep_archived: bool,
}

impl Times {
    fn to_operation(&self) -> CollectionOperation<'_> {
        CollectionOperation::Set {
            expires_s: self.expires_s.map(Some).or(self.never.then_some(None)),
            retention_s: self
                .retention_s
                .map(Some)
                .or(self.keep_archived.then_some(None)),
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindName {
    Random,
    Deterministic,
    OneWay,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TokenFormatName {
    Opaque,
    Uuid,
    Digits,
    Card,
    Email,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScopeName {
    Collection,
    Context,
}

impl Rules {
    fn to_operation(&self, kind: KindName) -> CollectionOperation<'_> {
        CollectionOperation::Create(CreateCollection {
            format: match self.format {
                TokenFormatName::Opaque => TokenFormat::Opaque,
                TokenFormatName::Uuid => TokenFormat::Uuid,
                TokenFormatName::Digits => TokenFormat::Digits,
                TokenFormatName::Card => TokenFormat::Card,
                TokenFormatName::Email => TokenFormat::Email,
            },
            first: self.first,
            last: self.last,
            scope: match self.scope {
                ScopeName::Collection => Scope::Collection,
                ScopeName::Context => Scope::Context,
            },
            expires_s: self.expires_s,
            retention_s: self.retention_s,
            ..CreateCollection::new(match kind {
                KindName::Random => Kind::Random,
                KindName::Deterministic => Kind::Deterministic,
                KindName::OneWay => Kind::OneWay,
            })
        })
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    super::serve::no_core_dumps();
    match &args.command {
        CollectionsCommand::Create {
            app,
            name,
            rules,
            objects,
            target,
        } => match rules.kind {
            Some(kind) => change_collection(app, name, rules.to_operation(kind), target),
            None => {
                let properties = objects.properties()?;
                change_collection(
                    app,
                    name,
                    objects.to_operation(&properties, rules.expires_s, rules.retention_s),
                    target,
                )
            }
        },
        CollectionsCommand::Alter {
            app,
            name,
            changes,
            wait,
            target,
        } => {
            let call = CollectionRequest {
                app,
                collection: name,
                operation: changes.to_operation(),
            };
            let changed =
                target.run(async |control| schema::alter_schema(&control, call, *wait).await)?;
            print_collections(target.engine.json, changed.collection.as_slice())
        }
        CollectionsCommand::Migrate {
            app,
            name,
            accept_unauthenticated,
            dry_run,
            engine,
        } => {
            let migration = migrate::Migration {
                app,
                collection: name,
                accept_unauthenticated: *accept_unauthenticated,
                dry_run: *dry_run,
            };
            migrate::run(&migration, engine)
        }
        CollectionsCommand::List { app, target } => print_collections(
            target.engine.json,
            &target.run(async |control| control.collections(app).await)?,
        ),
        CollectionsCommand::Set {
            app,
            name,
            times,
            target,
        } => change_collection(app, name, times.to_operation(), target),
        CollectionsCommand::Delete {
            app,
            name,
            yes,
            target,
        } => {
            super::check_confirmed(
                *yes,
                "all tokens or objects of the collection are lost, and this cannot be undone",
            )?;
            change_collection(app, name, CollectionOperation::Delete, target)
        }
    }
}

fn change_collection(
    app: &str,
    collection: &str,
    operation: CollectionOperation,
    target: &TargetArgs,
) -> Result<(), Failure> {
    let call = CollectionRequest {
        app,
        collection,
        operation,
    };
    let changed = target.run(async |control| control.change_collection(call).await)?;
    print_collections(target.engine.json, changed.collection.as_slice())
}

fn text_or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn seconds_text(seconds: Option<u64>) -> String {
    seconds.map_or("never".to_owned(), |seconds| seconds.to_string())
}

fn print_collections(as_json: bool, collections: &[Collection]) -> Result<(), Failure> {
    if as_json {
        outln!("{}", serde_json::to_string(collections)?);
        return Ok(());
    }
    if collections.is_empty() {
        return Ok(());
    }
    outln!(
        "{:<24} {:<24} {:<14} {:<10} {:<11} {:<10} RETENTION_S",
        "APP",
        "COLLECTION",
        "KIND",
        "FORMAT",
        "SCOPE",
        "EXPIRES_S"
    );
    for found in collections {
        let Collection {
            app,
            collection,
            kind,
            scope,
            ..
        } = found;
        let format = match (found.first, found.last) {
            (Some(first), Some(last)) => format!("{} {first}/{last}", found.format),
            _ => text_or_dash(&found.format).to_owned(),
        };
        let scope = text_or_dash(scope);
        let expires_s = seconds_text(found.expires_s);
        let retention_s = seconds_text(found.retention_s);
        outln!(
            "{app:<24} {collection:<24} {kind:<14} {format:<10} {scope:<11} {expires_s:<10} {retention_s}"
        );
        match found.records.as_str() {
            "" | "authenticated" => {}
            "migrating" => {
                outln!("  being migrated; old records are still read: repeat `collections migrate`")
            }
            _ => outln!(
                "  reads old records, which do not prove who sealed them: run `collections migrate`"
            ),
        }
        for property in &found.properties {
            outln!("  {}", properties::text_of(property));
        }
    }
    Ok(())
}
