//! `tokens`: shows, finds, expires and deletes tokens.

use std::io::BufRead as _;
use std::time::Duration;

use clap::Subcommand;
use sealwire_client::{
    Client, CollectionTarget, Counted, Listing, Sweep, Token, TokenSearch, Tokens,
};
use sealwire_payload::{WalkLimits, json};
use sealwire_service::output::{errln, outln};
use sealwire_wire::{EXPIRES_S_MAX, TOKENS_MAX};

use super::connect::ConnectArgs;
use super::documents::{DocumentProgress, explained};
use super::operator::unix_s;
use super::{Failure, dev_folder};

/// Arguments of `tokens`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: TokensCommand,
}

#[derive(Debug, Subcommand)]
enum TokensCommand {
    /// Show the metadata of tokens, without their values
    Get {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        common: Common,
    },
    /// Find the token of a value, in a collection where equal values have equal tokens
    Find {
        /// The value, a string; `-` reads it from standard input, which other users and the shell's
        /// history do not see
        value: String,
        /// Read the value as JSON: a number, true, false, or a value that was tokenized as a whole
        #[arg(long)]
        as_json: bool,
        /// The context of the tokenization
        #[arg(long, default_value = "", hide_default_value = true)]
        context: String,
        /// The person for whom the value was tokenized
        #[arg(long, value_name = "NAME")]
        subject: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// List the tokens of a collection, in no particular order
    List {
        /// Only those with this tag
        #[arg(long, value_name = "TAG")]
        tag: Option<String>,
        /// Only those that have expired
        #[arg(long, conflicts_with = "archived")]
        expired: bool,
        /// Only those that were archived
        #[arg(long)]
        archived: bool,
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 1_000)]
        limit: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Delete tokens and their values for good
    Delete {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        common: Common,
    },
    /// Set when tokens expire
    Expire {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        when: When,
        #[command(flatten)]
        common: Common,
    },
    /// Archive expired tokens of the whole collection, so that they can no longer be used
    Archive {
        /// Only tokens that expired at least this many seconds ago
        #[arg(long, value_name = "N", default_value_t = 0)]
        expired_s: u64,
        #[command(flatten)]
        sweeping: Sweeping,
    },
    /// Delete archived tokens of the whole collection, and their values, for good
    Prune {
        /// Only tokens that were archived at least this many seconds ago
        #[arg(long, value_name = "N", default_value_t = 2_592_000)]
        archived_s: u64,
        #[command(flatten)]
        sweeping: Sweeping,
    },
}

/// The tokens to change.
#[derive(Debug, clap::Args)]
struct Named {
    /// Tokens; `-` reads them from standard input, one per line
    #[arg(required = true, value_name = "TOKEN")]
    tokens: Vec<String>,
}

/// The time at which tokens or objects expire.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct When {
    /// Expire in this many seconds; 0 expires now
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=EXPIRES_S_MAX))]
    pub(super) in_s: Option<u64>,
    /// Never expire
    #[arg(long)]
    never: bool,
}

/// Options of a request on the whole collection.
#[derive(Debug, clap::Args)]
pub(super) struct Sweeping {
    /// Count without changing anything
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

/// A collection, and options of every request on its tokens or objects.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    /// The app
    #[arg(long, short, default_value = dev_folder::DEMO_APP)]
    app: String,
    /// Collection; `sealwire collections list APP` shows all
    #[arg(long, value_name = "NAME")]
    collection: String,
    /// Reason, for the audit log; a role may require it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        TokensCommand::Get { named, common } => get(named, common),
        TokensCommand::Find {
            value,
            as_json,
            context,
            subject,
            common,
        } => find(value, *as_json, (context, subject.as_deref()), common),
        TokensCommand::List {
            tag,
            expired,
            archived,
            limit,
            common,
        } => {
            let expired_before = expired.then(unix_s).transpose()?;
            list(
                common,
                Listing::new()
                    .tag(tag.as_deref())
                    .expired_before(expired_before)
                    .archived(*archived),
                *limit,
            )
        }
        TokensCommand::Delete { named, common } => {
            change_named_tokens(named, common, "removed", async |client, map, tokens| {
                Ok(client.tokens_delete(map, tokens).await?)
            })
        }
        TokensCommand::Expire {
            named,
            when,
            common,
        } => change_named_tokens(named, common, "changed", async |client, map, tokens| {
            Ok(client
                .tokens_expire(map, tokens, when.in_s.map(Duration::from_secs))
                .await?)
        }),
        TokensCommand::Archive {
            expired_s,
            sweeping,
        } => sweep(
            sweeping,
            "archived",
            *expired_s,
            async |client, map, sweep| Ok(client.tokens_archive(map, sweep).await?),
        ),
        TokensCommand::Prune {
            archived_s,
            sweeping,
        } => sweep(
            sweeping,
            "removed",
            *archived_s,
            async |client, map, sweep| Ok(client.tokens_prune(map, sweep).await?),
        ),
    }
}

impl Common {
    pub(super) fn map(&self) -> CollectionTarget<'_> {
        CollectionTarget::new(&self.app, &self.collection).reason(self.reason.as_deref())
    }

    fn run<T>(&self, calls: impl AsyncFnOnce(Client) -> Result<T, Failure>) -> Result<T, Failure> {
        self.connect
            .run(async { calls(self.connect.client().await?).await })
            .map_err(explained)
    }
}

/// Returns the names from the arguments. A single `-` reads them from standard input, one per line.
pub(super) fn read_names(given: &[String]) -> Result<Vec<String>, Failure> {
    if given != ["-"] {
        return Ok(given.to_vec());
    }
    let lines = std::io::stdin().lock().lines();
    let names = lines.filter(|line| line.as_ref().map_or(true, |line| !line.trim().is_empty()));
    Ok(names
        .map(|line| line.map(|line| line.trim().to_owned()))
        .collect::<Result<_, _>>()?)
}

fn get(named: &Named, common: &Common) -> Result<(), Failure> {
    let tokens = read_names(&named.tokens)?;
    let found = common.run(async |client| {
        let mut found = Vec::new();
        for part in tokens.chunks(TOKENS_MAX) {
            let part: Vec<&str> = part.iter().map(String::as_str).collect();
            found.extend(client.tokens_get(common.map(), &part).await?.tokens);
        }
        Ok(found)
    })?;
    if common.json {
        outln!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    let there: Vec<Token> = found.iter().flatten().cloned().collect();
    print_tokens(&there);
    for (token, _) in tokens
        .iter()
        .zip(&found)
        .filter(|(_, found)| found.is_none())
    {
        errln!("{token}: not found");
    }
    Ok(())
}

fn find(
    value: &str,
    as_json: bool,
    (context, subject): (&str, Option<&str>),
    common: &Common,
) -> Result<(), Failure> {
    let mut value = value.to_owned();
    if value == "-" {
        value = std::io::read_to_string(std::io::stdin())?;
        // The final newline from a terminal or from `echo` is not part of the value.
        let kept = value
            .strip_suffix("\r\n")
            .or(value.strip_suffix('\n'))
            .map_or(value.len(), str::len);
        value.truncate(kept);
    }
    let document = if as_json {
        value
    } else {
        serde_json::Value::from(value).to_string()
    };
    let value = json::to_msgpack(document.as_bytes(), WalkLimits::default())?;
    let search = TokenSearch::new(&value)
        .context(context.as_bytes())
        .subject(subject);
    let found = common.run(async |client| Ok(client.tokens_find(common.map(), search).await?))?;
    if common.json {
        outln!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    outln!("{}", found.token.ok_or("the value has no token there")?);
    Ok(())
}

fn list(common: &Common, listing: Listing<'_>, limit: usize) -> Result<(), Failure> {
    let found = common.run(async |client| {
        let (mut found, mut after): (Vec<Token>, Option<String>) = (Vec::new(), None);
        while found.len() < limit {
            let limit = u32::try_from((limit - found.len()).min(TOKENS_MAX)).ok();
            let listing = listing.after(after.as_deref()).limit(limit);
            let Tokens { tokens, next, .. } = client.tokens_list(common.map(), listing).await?;
            found.extend(tokens.into_iter().flatten());
            after = next;
            if after.is_none() {
                break;
            }
        }
        Ok((found, after.is_some()))
    });
    let (found, more) = found?;
    if common.json {
        outln!("{}", serde_json::to_string(&found)?);
    } else {
        print_tokens(&found);
    }
    if more {
        errln!("more tokens can exist; --limit sets the number of listed tokens");
    }
    Ok(())
}

/// Changes named tokens, in requests of bounded size.
fn change_named_tokens(
    named: &Named,
    common: &Common,
    done: &str,
    change: impl AsyncFn(&Client, CollectionTarget<'_>, &[&str]) -> Result<Counted, Failure>,
) -> Result<(), Failure> {
    let tokens = read_names(&named.tokens)?;
    let progress = DocumentProgress::start();
    let (count, missing) = common.run(async |client| {
        let mut count = 0;
        let mut missing = Vec::new();
        for (part, tokens) in tokens.chunks(TOKENS_MAX).enumerate() {
            let names: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let counted = change(&client, common.map(), &names).await?;
            count += counted.count;
            missing.extend(
                counted
                    .missing
                    .into_iter()
                    .map(|at| part * TOKENS_MAX + at as usize),
            );
            progress.say(&format!("{count} {done}"));
        }
        Ok((count, missing))
    })?;
    progress.end();
    for token in missing.iter().filter_map(|at| tokens.get(*at)) {
        errln!("{token}: not found");
    }
    print_count(common, done, count, false)
}

/// Processes the whole collection in bounded steps.
pub(super) fn sweep(
    args: &Sweeping,
    done: &str,
    older_s: u64,
    step: impl AsyncFn(&Client, CollectionTarget<'_>, Sweep<'_>) -> Result<Counted, Failure>,
) -> Result<(), Failure> {
    let common = &args.common;
    let progress = DocumentProgress::start();
    let count = common.run(async |client| {
        let (mut count, mut after): (u64, Option<String>) = (0, None);
        loop {
            let older_s = Some(older_s);
            let sweep = Sweep::new()
                .older(older_s.map(Duration::from_secs))
                .dry_run(args.dry_run)
                .after(after.as_deref());
            let counted = step(&client, common.map(), sweep).await?;
            count += counted.count;
            progress.say(&format!("{count} {done}"));
            after = counted.next;
            if after.is_none() {
                return Ok(count);
            }
        }
    })?;
    progress.end();
    print_count(common, done, count, args.dry_run)
}

/// Prints how many tokens or objects were changed, or with `dry_run` would have been.
pub(super) fn print_count(
    common: &Common,
    done: &str,
    count: u64,
    dry_run: bool,
) -> Result<(), Failure> {
    if common.json {
        outln!(
            "{}",
            serde_json::json!({ "count": count, "dry_run": dry_run })
        );
    } else if dry_run {
        outln!("{count} would be {done}");
    } else {
        outln!("{count} {done}");
    }
    Ok(())
}

fn time_or_dash(unix_s: Option<u64>) -> String {
    unix_s.map_or("-".to_owned(), |unix_s| unix_s.to_string())
}

fn print_tokens(tokens: &[Token]) {
    outln!(
        "{:<40} {:<12} {:<12} {:<12} TAGS",
        "TOKEN",
        "CREATED",
        "EXPIRES",
        "ARCHIVED"
    );
    for token in tokens {
        let created = token.created;
        let expires = time_or_dash(token.expires);
        let archived = time_or_dash(token.archived);
        outln!(
            "{:<40} {created:<12} {expires:<12} {archived:<12} {}",
            token.token,
            token.tags.join(" ")
        );
    }
}
