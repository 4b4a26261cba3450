//! `rewrap database`: runs a job over the columns of a PostgreSQL database, and prints its progress
//! and report.

use std::io::{IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use crate::rewrap_job::{Database, Progress, Report, RewrapJob, RuleReport, Rules};
use indicatif::{ProgressBar, ProgressStyle};
use sealwire_client::{Pacer, Suite};
use sealwire_service::output::errln;

mod engine;

use engine::Remote;
use sealwire_command_line::Failure;
use sealwire_command_line::connect::ConnectArgs;
use sealwire_command_line::documents::SuiteName;

/// Interval at which the progress line is updated.
const TICK: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Rules are TOML: which columns of which tables hold envelopes, and of which app.

  [[rule]]
  table = \"shop.customers\"
  column = \"ssn\"                          # text, varchar or bytea
  app = \"shop\"
  context = \"customers.ssn.{id}\"          # as given to encrypt; {id} is a column of the row
  # key = [\"tenant\", \"id\"]                # columns of a unique index [default: the primary key]

Example: rotate the key of an app, move all values to it, then disable the old key.

  sealwire apps rotate shop
  sealwire rewrap database --database postgres://app@db/shop --database-ca db-ca.pem \\
      --database-password-file password --rules rewrap.toml --dry-run
  sealwire rewrap database --database postgres://app@db/shop --database-ca db-ca.pem \\
      --database-password-file password --rules rewrap.toml
  sealwire apps disable shop KEY_ID

Values are changed while applications use them: a value that an application changes at the same time is never
overwritten. The command can be stopped at any time; the next run continues. Exit status 1: some values are not under
the newest key. docs/rewrap.md describes the guarantees.";

/// Arguments of `rewrap database`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Move the envelopes in columns of a PostgreSQL database to the newest keys of their apps, in place, while \
             applications use them",
    long_about = None,
    after_long_help = EXAMPLES
)]
pub(super) struct DatabaseArgs {
    /// Database to change: postgres://USER@HOST:PORT/NAME, or over a socket
    /// postgres:///NAME?user=USER&host=/FOLDER
    #[arg(long, value_name = "URL")]
    database: String,
    /// File with its password (mode 600)
    #[arg(long, value_name = "FILE")]
    database_password_file: Option<PathBuf>,
    /// Authority that its certificate must come from
    #[arg(long, value_name = "FILE")]
    database_ca: Option<PathBuf>,
    /// Client certificate for the database
    #[arg(long, value_name = "FILE", requires = "database_key")]
    database_cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "database_cert")]
    database_key: Option<PathBuf>,
    /// Connect to the database without TLS; only to this machine
    #[arg(long)]
    plain: bool,
    /// Rules, a TOML file; `sealwire rewrap database --help` shows one
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// Rewrap at most this many values per second; 0 for no limit
    #[arg(long, value_name = "ROWS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    rate: u64,
    /// Write nothing; count the envelopes by key version
    #[arg(long)]
    dry_run: bool,
    /// Cipher suite to move to [default: the app's]
    #[arg(long, value_enum)]
    suite: Option<SuiteName>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Reason, for the audit log; a role may require it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Longest time of a request, with its waits for an engine that is overloaded, restarts or
    /// cannot be reached
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=86_400))]
    retry_timeout: u64,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) fn run(args: &DatabaseArgs) -> Result<(), Failure> {
    let path = args.rules.display();
    let text = std::fs::read_to_string(&args.rules).map_err(|error| format!("{path}: {error}"))?;
    let rules = Rules::from_toml(&text).map_err(|error| format!("{path}: {error}"))?;
    let report = args.connect.run(run_job(args, rules))?;

    let mut out = sealwire_service::output::Output;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        print_report(&mut out, &report)?;
    }
    out.flush()?;
    check_complete(&report)
}

async fn run_job(args: &DatabaseArgs, rules: Rules) -> Result<Report, Failure> {
    let database = Database {
        url: args.database.clone(),
        password: None,
        password_file: args.database_password_file.clone(),
        ca: args.database_ca.clone(),
        client_certificate: args.database_cert.clone(),
        client_key: args.database_key.clone(),
        plain: args.plain,
    };
    let job = RewrapJob {
        database,
        rules,
        rate: args.rate,
        dry_run: args.dry_run,
    }
    .prepare()
    .await?;
    for warning in job.warnings() {
        errln!("warning: {warning}");
    }

    let bar = Bar::new();
    let engine = Remote {
        client: args.connect.client().await?,
        reason: args.reason.clone(),
        suite: args.suite.map(Suite::from),
        retry_timeout: Duration::from_secs(args.retry_timeout),
        pacer: Pacer::default(),
        bar: bar.0.clone(),
    };
    let progress = Progress::default();
    tokio::select! {
        report = job.run(&engine, &progress) => Ok(report?),
        () = bar.show_progress(&progress) => unreachable!("progress is shown until the job ends"),
    }
}

/// A progress line on a terminal. Prints nothing elsewhere.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::no_length()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template(
            "{msg} {wide_bar} {human_pos} of {human_len} rows, {eta} left",
        ) {
            bar.set_style(style);
        }
        Self(bar)
    }

    async fn show_progress(&self, progress: &Progress) {
        loop {
            let rows = progress.rows();
            self.0.set_message(format!(
                "pass {}, {} rewrapped",
                progress.pass(),
                progress.rewrapped()
            ));
            self.0.set_length(progress.rows_expected().max(rows));
            self.0.set_position(rows);
            tokio::time::sleep(TICK).await;
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Prints the report of each rule.
fn print_report(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    for (at, rule) in report.rules.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        print_rule(out, rule, report.dry_run)?;
    }
    Ok(())
}

fn print_rule(out: &mut dyn Write, rule: &RuleReport, dry_run: bool) -> std::io::Result<()> {
    let RuleReport {
        table,
        column,
        app,
        rows,
        nulls,
        plain,
        ..
    } = rule;
    writeln!(
        out,
        "{table}.{column} of app {app}: {rows} rows, {nulls} null, {plain} not encrypted"
    )?;
    for count in &rule.keys {
        let state = match count.newest {
            Some(true) => "newest",
            Some(false) => "older",
            None => "none of them opens",
        };
        writeln!(out, "  key {}  {:>10}  {state}", count.key_id, count.values)?;
    }

    if !dry_run {
        let passes = match rule.passes {
            1 => "1 pass".to_owned(),
            passes => format!("{passes} passes"),
        };
        let contended = match rule.contended {
            0 => String::new(),
            contended => format!("; {contended} were locked or changing at first"),
        };
        writeln!(out, "  rewrapped {} in {passes}{contended}", rule.rewrapped)?;
    }

    for (reason, count) in &rule.left {
        writeln!(out, "  left {count}: {}", reason.description())?;
    }
    for value in &rule.left_values {
        writeln!(
            out,
            "    {table} key {}: {}",
            value.key,
            value.reason.name()
        )?;
    }
    let more = rule.left_count() - rule.left_values.len() as u64;
    if more > 0 {
        writeln!(out, "    and {more} more")?;
    }
    Ok(())
}

/// Returns an error if values remain that are not under the newest key.
fn check_complete(report: &Report) -> Result<(), Failure> {
    if report.dry_run {
        return Ok(());
    }
    let left: u64 = report.rules.iter().map(RuleReport::left_count).sum();
    if let Some(rule) = report.rules.iter().find(|rule| !rule.complete) {
        let RuleReport { table, column, .. } = rule;
        let what = "rows are locked by open transactions or keep changing";
        return Err(format!("{table}.{column} is not done: {what}; run the command again").into());
    }
    if left > 0 {
        let what = "keep the old keys enabled until these values are repaired or removed";
        return Err(
            format!("{left} values were left and are not under the newest key: {what}").into(),
        );
    }
    Ok(())
}
