//! `subjects`: shows the stored data of a person and its readers, and erases the data.

use sealwire_client::{Client, Page, SubjectErased, SubjectErasure, SubjectExport, SubjectTarget};
use std::collections::BTreeSet;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use clap::Subcommand;
use sealwire_audit::{Filter, RecordView};
use sealwire_service::output::{errln, outln};
use serde_json::json;

use super::audit::{self, AuditSource};
use super::connect::ConnectArgs;
use super::objects::{json_line, token_line};
use super::tokens::read_names;
use super::{Failure, dev_folder};

/// Arguments of `subjects`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: SubjectsCommand,
}

#[derive(Debug, Subcommand)]
enum SubjectsCommand {
    /// Show the id by which the audit log knows a person, and whether the person was erased
    #[command(after_help = "\
Example:
  sealwire subjects find anna@example.com")]
    Find {
        #[command(flatten)]
        named: Named,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Print all objects and tokens of a person, of all collections, with all their values: one
    /// JSON object a line
    #[command(after_help = "\
Example:
  sealwire subjects export anna@example.com --reason 'request 4711' > anna.jsonl")]
    Export {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        common: Common,
    },
    /// Show the audit records of requests that read or changed objects or tokens of a person
    ///
    /// Each engine has a separate trail: run the command on each engine, or over a folder that
    /// collects the trails. Requests that delete objects or tokens, or change their expiry, do not
    /// name a person.
    #[command(after_help = "\
Example:
  sealwire subjects accesses anna@example.com --config /etc/sealwire.toml")]
    Accesses {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        trail: TrailArgs,
        /// Print the raw lines
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Erase a person: at once no engine opens an object or token of the person any more, and then
    /// they are removed
    ///
    /// This cannot be undone, but a backup of the database still has the key, the objects and the
    /// tokens. After a restore, `subjects erase-again` repeats the erasures of the audit log.
    #[command(after_help = "\
Example:
  sealwire subjects erase anna@example.com --reason 'request 4711' --yes")]
    Erase {
        #[command(flatten)]
        named: Named,
        /// Confirm the erasure. Without this option, the command only reports it
        #[arg(long)]
        yes: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Repeat all erasures that an audit log knows, before a restored database is used again
    #[command(after_help = "\
Example:
  sealwire subjects erase-again --trail /backup/audit --app shop --reason 'restored'")]
    EraseAgain {
        #[command(flatten)]
        trail: TrailArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        common: Common,
    },
}

/// Location of an audit log.
#[derive(Debug, clap::Args)]
struct TrailArgs {
    /// Folder of the trail [default: `audit.folder` of the configuration]
    #[arg(long, value_name = "FOLDER")]
    trail: Option<PathBuf>,
    /// Configuration file that names the folder [default: that of `sealwire dev`]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl TrailArgs {
    fn source(&self) -> AuditSource {
        AuditSource::new(self.trail.clone(), self.config.clone())
    }
}

/// A person.
#[derive(Debug, clap::Args)]
struct Named {
    /// Name that was given with objects and documents; `-` reads it from standard input, so that
    /// other users do not see it
    #[arg(value_name = "NAME")]
    name: String,
}

impl Named {
    fn read(&self) -> Result<String, Failure> {
        let names = read_names(std::slice::from_ref(&self.name))?;
        let [name] = <[String; 1]>::try_from(names).map_err(|_| "give one name")?;
        Ok(name)
    }
}

/// An app, and options of every request.
#[derive(Debug, clap::Args)]
struct Common {
    /// The app
    #[arg(long, short, default_value = dev_folder::DEMO_APP)]
    app: String,
    /// Reason, for the audit log; a role may require it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

impl Common {
    fn target<'a>(&'a self, name: &'a str) -> SubjectTarget<'a> {
        SubjectTarget::by_name(&self.app, name).reason(self.reason.as_deref())
    }

    fn run<T>(&self, calls: impl AsyncFnOnce(Client) -> Result<T, Failure>) -> Result<T, Failure> {
        self.connect
            .run(async { calls(self.connect.client().await?).await })
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        SubjectsCommand::Find {
            named,
            json,
            common,
        } => find(&named.read()?, *json, common),
        SubjectsCommand::Export { named, common } => export_subject(&named.read()?, common),
        SubjectsCommand::Accesses {
            named,
            trail,
            json,
            common,
        } => show_accesses(&named.read()?, trail, *json, common),
        SubjectsCommand::Erase {
            named,
            yes,
            json,
            common,
        } => {
            super::check_confirmed(
                *yes,
                "all objects and tokens of the person are lost in all collections of the app, for good",
            )?;
            let name = named.read()?;
            let erased = common.run(async |client| {
                let target = common.target(&name);
                // Names the version, so that a repeated request does not erase data of a person who
                // returned meanwhile.
                let version = client.subjects_find(target).await?.version;
                erase_key(&client, target, version, None).await
            })?;
            print_erasure(&erased, *json);
            Ok(())
        }
        SubjectsCommand::EraseAgain {
            trail,
            json,
            common,
        } => erase_again(trail, *json, common),
    }
}

fn find(name: &str, as_json: bool, common: &Common) -> Result<(), Failure> {
    let found = common.run(async |client| Ok(client.subjects_find(common.target(name)).await?))?;
    if as_json {
        outln!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    let state = match (found.known, found.erased) {
        (true, _) => "known".to_owned(),
        (false, Some(erased)) => format!("erased at {erased}, in seconds since 1970-01-01 UTC"),
        (false, None) => "nothing was ever stored under this name".to_owned(),
    };
    outln!("{}  {state}", found.id);
    Ok(())
}

fn export_subject(name: &str, common: &Common) -> Result<(), Failure> {
    common.run(async |client| {
        let mut out = BufWriter::new(sealwire_service::output::Output);
        let target = common.target(name);
        let mut after: Option<String> = None;
        let mut failed = 0;
        loop {
            let page = client
                .subjects_export(target, Page::new().after(after.as_deref()))
                .await?;
            let SubjectExport {
                collection,
                objects,
                tokens,
                unreadable,
                next,
                ..
            } = page;
            failed += unreadable.len();
            unreadable
                .iter()
                .for_each(|id| errln!("{collection}: {id} does not open"));
            let lines = objects
                .iter()
                .map(json_line)
                .chain(tokens.iter().map(token_line));
            for line in lines {
                let line = line?;
                // The line is a map, and the collection becomes its first key.
                let rest = line.strip_prefix('{').unwrap_or(&line);
                writeln!(
                    out,
                    "{{\"collection\":{},{rest}",
                    serde_json::to_string(&collection)?
                )?;
            }
            after = next;
            if after.is_none() {
                out.flush()?;
                return if failed == 0 {
                    Ok(())
                } else {
                    Err(format!("{failed} objects and tokens do not open").into())
                };
            }
        }
    })
}

fn show_accesses(
    name: &str,
    trail: &TrailArgs,
    as_json: bool,
    common: &Common,
) -> Result<(), Failure> {
    let found = common.run(async |client| Ok(client.subjects_find(common.target(name)).await?))?;
    let filter = Filter {
        subject: Some(found.id),
        app: Some(common.app.clone()),
        ..Filter::default()
    };
    let count = audit::print_selected(&trail.source(), &filter, as_json)?;
    errln!("{count} records in this trail");
    Ok(())
}

/// Erases a key of at most `version`, made at or before `created`. Repeats the request until
/// nothing is left.
async fn erase_key(
    client: &Client,
    target: SubjectTarget<'_>,
    version: u64,
    created: Option<u64>,
) -> Result<SubjectErased, Failure> {
    let mut all = SubjectErased::default();
    while !all.done {
        let found = client
            .subjects_erase(
                target,
                SubjectErasure::new().version(version).created(created),
            )
            .await?;
        all = SubjectErased {
            erased: all.erased || found.erased,
            objects: all.objects + found.objects,
            tokens: all.tokens + found.tokens,
            ..found
        };
    }
    Ok(all)
}

fn print_erasure(erased: &SubjectErased, as_json: bool) {
    let SubjectErased {
        id,
        erased,
        objects,
        tokens,
        ..
    } = erased;
    match (as_json, erased) {
        (true, _) => outln!(
            "{}",
            json!({"id": id, "erased": erased, "objects": objects, "tokens": tokens})
        ),
        (false, true) => outln!("{id}: erased, {objects} objects and {tokens} tokens removed"),
        (false, false) => {
            outln!("{id}: no key to erase, {objects} objects and {tokens} tokens removed")
        }
    }
}

/// An erasure that is recorded in an audit log.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KnownErasure {
    id: String,
    /// Version and creation time of the key that was erased.
    version: u64,
    created: u64,
}

impl KnownErasure {
    /// Returns the erasure of a record, whatever its outcome: a request that failed later had
    /// erased the key, or was about to. Returns `None` for a request that found no key.
    fn of(record: RecordView) -> Option<Self> {
        let change = record.change?;
        Some(Self {
            id: record.subjects.into_iter().next()?,
            version: change.get("key_version")?.as_u64()?,
            created: change.get("key_created")?.as_u64()?,
        })
    }
}

fn erase_again(trail: &TrailArgs, as_json: bool, common: &Common) -> Result<(), Failure> {
    let filter = Filter {
        app: Some(common.app.clone()),
        method: Some("subjects.erase".to_owned()),
        ..Filter::default()
    };
    let records = audit::selected(&trail.source(), &filter)?;
    let known: BTreeSet<KnownErasure> = records.into_iter().filter_map(KnownErasure::of).collect();
    common.run(async |client| {
        for KnownErasure {
            id,
            version,
            created,
        } in &known
        {
            let target = SubjectTarget::by_id(&common.app, id).reason(common.reason.as_deref());
            print_erasure(
                &erase_key(&client, target, *version, Some(*created)).await?,
                as_json,
            );
        }
        Ok(())
    })?;
    errln!(
        "{} erasures of app {} in this trail",
        known.len(),
        common.app
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_erasure_is_known_by_the_key_that_it_removed() {
        let record = |outcome: &str, change: serde_json::Value| RecordView {
            outcome: Some(outcome.to_owned()),
            subjects: vec!["ab".to_owned()],
            change: change.as_object().cloned(),
            ..RecordView::default()
        };
        let key = json!({"key_version": 3, "key_created": 7});
        let known = || {
            Some(KnownErasure {
                id: "ab".to_owned(),
                version: 3,
                created: 7,
            })
        };
        assert_eq!(KnownErasure::of(record("ok", key.clone())), known());
        assert_eq!(
            KnownErasure::of(record("deadline_exceeded", key.clone())),
            known()
        );
        assert_eq!(
            KnownErasure::of(record("ok", json!({"key_version": 3}))),
            None
        );
        assert_eq!(
            KnownErasure::of(record("ok", serde_json::Value::Null)),
            None
        );
        assert_eq!(
            KnownErasure::of(RecordView {
                subjects: Vec::new(),
                ..record("ok", key)
            }),
            None
        );
    }
}
