//! `objects`: adds, returns, changes, finds, expires and deletes the objects of a collection.
//!
//! | file | concern |
//! | --- | --- |
//! | `input.rs` | objects and changes in files: JSON, arrays, JSON lines, split into requests |
//! | `clauses.rs` | clauses of queries, as arguments |
//! | `write.rs` | requests that change objects, and the error of each part of them |
//! | `read.rs` | requests that return objects, page by page |
//! | `output.rs` | objects as text and as JSON lines |

mod clauses;
mod input;
mod output;
mod read;
mod write;

use std::path::PathBuf;

use clap::Subcommand;
use sealwire_client::PropertyDisclosure;
use sealwire_wire::EXPIRES_S_MAX;

use super::Failure;
use super::tokens::{Common, Sweeping, When, sweep};
use clauses::Clause;
pub(super) use output::{json_line, token_line};

/// Arguments of `objects`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: ObjectsCommand,
}

#[derive(Debug, Subcommand)]
enum ObjectsCommand {
    /// Add objects. Each request adds all of its objects or none; a file of more than 500 takes
    /// several requests
    #[command(after_help = "\
Example, with one object a line:
  printf '{\"email\":\"a@example.com\"}\\n{\"email\":\"b@example.com\"}\\n' | sealwire objects add - --collection people")]
    Add(AddArgs),
    /// Show objects
    #[command(after_help = "\
Example:
  sealwire objects get 0193a1b2-7c4d-7e8f-9a0b-1c2d3e4f5a6b --collection people --properties email,name --masked")]
    Get {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        disclosure: Disclosure,
        #[command(flatten)]
        common: Common,
    },
    /// Change properties of objects: a map of id, set, and optionally if_version for each. null
    /// removes a value
    #[command(after_help = "\
Example:
  echo '{\"id\":\"0193a1b2-7c4d-7e8f-9a0b-1c2d3e4f5a6b\",\"set\":{\"name\":\"Anna\"},\"if_version\":1}' |
    sealwire objects update - --collection people")]
    Update {
        #[command(flatten)]
        input: InputArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Delete objects for good
    #[command(after_help = "\
Example, of an object that nobody changed meanwhile:
  sealwire objects delete 0193a1b2-7c4d-7e8f-9a0b-1c2d3e4f5a6b --versions 2 --collection people")]
    Delete {
        #[command(flatten)]
        named: Named,
        /// The version that each object must have, in the order of the ids
        #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
        versions: Vec<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// Find objects by indexed properties. All clauses must hold
    #[command(after_help = "\
Example:
  sealwire objects query --collection people --where 'email=a@example.com' --where 'age:=41'")]
    Query {
        #[command(flatten)]
        wanted: Wanted,
        #[command(flatten)]
        page: PageArgs,
        #[command(flatten)]
        disclosure: Disclosure,
        #[command(flatten)]
        common: Common,
    },
    /// List the objects of a collection, by id. Values of expired and archived objects are not
    /// shown
    #[command(after_help = "\
Example:
  sealwire objects list --collection people --all --json > people.jsonl")]
    List {
        /// Only those with this tag
        #[arg(long, value_name = "TAG")]
        tag: Option<String>,
        /// Only those that expired before this time, in seconds since 1970-01-01 UTC
        #[arg(long, value_name = "SECONDS", conflicts_with = "archived")]
        expired_before: Option<u64>,
        /// Only those that were archived
        #[arg(long)]
        archived: bool,
        #[command(flatten)]
        page: PageArgs,
        #[command(flatten)]
        disclosure: Disclosure,
        #[command(flatten)]
        common: Common,
    },
    /// Set when objects expire
    #[command(after_help = "\
Example:
  sealwire objects expire 0193a1b2-7c4d-7e8f-9a0b-1c2d3e4f5a6b --in-s 86400 --collection people")]
    Expire {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        when: When,
        #[command(flatten)]
        common: Common,
    },
    /// Archive expired objects of the whole collection, so that nothing finds them and their unique
    /// values are free
    #[command(after_help = "\
Example:
  sealwire objects archive --collection people --expired-s 86400 --dry-run")]
    Archive {
        /// Only objects that expired at least this many seconds ago
        #[arg(long, value_name = "N", default_value_t = 0)]
        expired_s: u64,
        #[command(flatten)]
        sweeping: Sweeping,
    },
    /// Delete archived objects of the whole collection for good
    #[command(after_help = "\
Example:
  sealwire objects prune --collection people --archived-s 86400")]
    Prune {
        /// Only objects that were archived at least this many seconds ago
        #[arg(long, value_name = "N", default_value_t = 2_592_000)]
        archived_s: u64,
        #[command(flatten)]
        sweeping: Sweeping,
    },
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Tag to store with each object, in the clear, for `objects list`; repeat for more
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Seconds after which the objects expire [default: the collection's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=EXPIRES_S_MAX))]
    expires_s: Option<u64>,
    /// 1 to 50 bytes. If the command is repeated with the same key and file, nothing is added twice
    #[arg(long, value_name = "KEY", value_parser = write::key)]
    idempotency_key: Option<String>,
    /// Person whom all objects are about, by a name of 1 to 256 bytes that you choose. The objects
    /// can then be exported and erased by `sealwire subjects`
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// The text of this property names the person whom an object is about. Objects without it are
    /// refused
    #[arg(long, value_name = "PROPERTY", conflicts_with = "subject")]
    subject_from: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct InputArgs {
    /// JSON file of one object, of an array of objects, or of one object a line; `-` reads standard
    /// input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The objects of a request.
#[derive(Debug, clap::Args)]
struct Named {
    /// Ids of objects; `-` reads them from standard input, one per line
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// The properties to show, and their form.
#[derive(Debug, clap::Args)]
struct Disclosure {
    /// Only these properties [default: all that a role grants]
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    properties: Vec<String>,
    /// Show values through the mask of their type, also if a role would show more
    #[arg(long)]
    masked: bool,
}

impl Disclosure {
    fn ask(&self) -> PropertyDisclosure<'_> {
        let names = self.properties.iter().map(String::as_str).collect();
        PropertyDisclosure::new()
            .set_properties((!self.properties.is_empty()).then_some(names))
            .masked(self.masked)
    }
}

/// The clauses of a query.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Wanted {
    /// PROPERTY=TEXT or PROPERTY:=JSON: the property has this value; repeat for more clauses. Other
    /// users and the shell's history see arguments; --clauses - keeps values from them
    #[arg(long = "where", value_name = "CLAUSE", value_parser = Clause::equal)]
    equal: Vec<Clause>,
    /// PROPERTY=TEXT,TEXT, or PROPERTY:= and a JSON array: the property has one of these values
    #[arg(long, value_name = "CLAUSE", value_parser = Clause::one_of)]
    where_in: Vec<Clause>,
    /// PROPERTY=TEXT: the value begins so. The property needs an index of prefixes
    #[arg(long, value_name = "CLAUSE", value_parser = Clause::prefix)]
    where_prefix: Vec<Clause>,
    /// JSON array of clauses such as {"property": "email", "eq": "a@example.com"}, with eq, in or
    /// prefix; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["equal", "where_in", "where_prefix"])]
    clauses: Option<PathBuf>,
}

/// The number of objects to show.
#[derive(Debug, clap::Args)]
struct PageArgs {
    /// At most this many objects
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    limit: usize,
    /// All objects
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        ObjectsCommand::Add(args) => write::add(args),
        ObjectsCommand::Get {
            named,
            disclosure,
            common,
        } => read::get(named, disclosure, common),
        ObjectsCommand::Update { input, common } => write::update(input, common),
        ObjectsCommand::Delete {
            named,
            versions,
            common,
        } => write::delete(named, versions, common),
        ObjectsCommand::Query {
            wanted,
            page,
            disclosure,
            common,
        } => read::query(wanted, page, disclosure, common),
        ObjectsCommand::List {
            tag,
            expired_before,
            archived,
            page,
            disclosure,
            common,
        } => {
            let listing = sealwire_client::Listing::new()
                .tag(tag.as_deref())
                .expired_before(*expired_before)
                .archived(*archived);
            read::list(listing, page, disclosure, common)
        }
        ObjectsCommand::Expire {
            named,
            when,
            common,
        } => write::expire(named, when, common),
        ObjectsCommand::Archive {
            expired_s,
            sweeping,
        } => sweep(
            sweeping,
            "archived",
            *expired_s,
            async |client, map, sweep| Ok(client.objects_archive(map, sweep).await?),
        ),
        ObjectsCommand::Prune {
            archived_s,
            sweeping,
        } => sweep(
            sweeping,
            "removed",
            *archived_s,
            async |client, map, sweep| Ok(client.objects_prune(map, sweep).await?),
        ),
    }
}
