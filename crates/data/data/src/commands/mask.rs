//! `mask`: masks files and databases by rules, proposes and explains rules, and looks for leaks.
//!
//! A job is an ordinary client. The job finds the values that rules name and sends only these
//! values to the engine for masking, so that keys stay in the engine. `check`, `discover` and
//! `verify` need no engine.

mod check;
mod discover;
mod engine;
mod show;

use std::path::{Component, Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::mask_job::{
    Database, DatabaseJob, FileFormat, FileJob, Input, JobError, LeakLimits, LeakReport, Limits,
    Output, Progress, Report, mask_database, mask_file, verify_databases, verify_files,
};
use clap::{Subcommand, ValueEnum};
use sealwire_mask::{MaskSecret, Rules};
use sealwire_service::output::errln;
use sealwire_wire::{MASK_ENTRIES_MAX, MASK_LISTS_BYTES_MAX, MASK_LISTS_MAX};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use zeroize::Zeroizing;

use super::text_file::read_text_file;
use crate::commands::files;
use engine::Remote;
use sealwire_command_line::connect::ConnectArgs;
use sealwire_command_line::object_store::{ObjectStoreArgs, is_object};
use sealwire_command_line::program::StopSignals;
use sealwire_command_line::{Failure, dev_folder};
use sealwire_service::output_file;
use show::ProgressLine;

const EXAMPLES: &str = "\
Rules are TOML: which function masks which fields, and what becomes of all others.

  unknown = \"refuse\"                  # or \"keep\"

  [[rule]]
  column = \"email\"                    # a CSV or table column, or a key at any depth of JSON
  mask = \"email\"
  [[rule]]
  path = \"$.card.number\"              # in JSON
  mask = \"card(first=6, last=4)\"
  [[rule]]
  kind = \"phone\"                      # strings that look like one, wherever they are
  mask = \"phone(last=2)\"
  [[rule]]
  column = \"id\"
  mask = \"keep\"

Examples:
  sealwire mask discover orders.ndjson --out rules.toml
  sealwire mask check --rules rules.toml sample.json
  sealwire mask file orders.ndjson --out masked.ndjson --rules rules.toml --app shop
  sealwire mask verify file orders.ndjson masked.ndjson --rules rules.toml
  sealwire mask file s3://lake/orders.parquet --out s3://test/orders.parquet --rules rules.toml --s3-ca ca.pem
  sealwire mask database --from postgres://app@db/shop --from-ca ca.pem \\
      --to postgres://app@test/shop --to-ca ca.pem --rules rules.toml --verify

docs/masking.md lists the functions and the properties that each keeps.";

/// Maximum size in bytes of a list's file, with line ends and white space. All lists together have
/// at most 256 KiB of entries.
const LIST_BYTES_MAX: usize = 1 << 20;

/// Arguments of `mask`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    command: MaskCommand,
}

#[derive(Debug, Subcommand)]
enum MaskCommand {
    /// Mask a file of NDJSON, JSON, CSV or Parquet; the output appears only when it is complete
    File(Box<FileArgs>),
    /// Copy a PostgreSQL database, masked, into another database, which must be empty
    Database(Box<DatabaseArgs>),
    /// Show for each field of a sample the rule that masks it, if any; fails if the rules reject a
    /// field. Needs no engine
    Check(check::Args),
    /// Propose rules for a file or a PostgreSQL database, with the evidence for each. Prints and
    /// keeps no sampled value; needs no engine
    Discover(Box<discover::Args>),
    /// Look for originals of masked values in the output; fails if there are any. Needs no engine
    Verify(Box<VerifyArgs>),
}

/// The rules file.
#[derive(Debug, clap::Args)]
struct RulesFile {
    /// Rules, a TOML file; `sealwire mask --help` shows one
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
}

/// Format of a file.
#[derive(Debug, clap::Args)]
struct FormatArgs {
    /// Format of the file [default: by the extension of its name]
    #[arg(long, value_enum)]
    format: Option<FormatName>,
    /// Separator of CSV fields, one ASCII character [default: a comma, or a tab in .tsv]
    #[arg(long, value_name = "CHAR")]
    delimiter: Option<char>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatName {
    /// One JSON document per line
    Ndjson,
    /// One JSON document
    Json,
    /// Comma-separated values with a header
    Csv,
    /// Apache Parquet
    Parquet,
}

/// The app whose keys mask, and the engine.
#[derive(Debug, clap::Args)]
struct EngineArgs {
    /// App whose keys mask; equal values give equal masks everywhere
    #[arg(long, short, default_value = dev_folder::DEMO_APP)]
    app: String,
    /// Reason, for the audit log; a role may require it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Longest time of a batch, with its waits for an engine that is overloaded, restarts or cannot
    /// be reached
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=86_400))]
    retry_timeout: u64,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `mask file`.
#[derive(Debug, clap::Args)]
struct FileArgs {
    /// File to mask; `-` reads standard input. A Parquet file can be an object,
    /// s3://bucket/file.parquet
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// File for the masked output, or for Parquet an object; `-` writes standard output, where a
    /// failure leaves partial output
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Replace an existing output once the new one is complete
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    rules: RulesFile,
    /// Continue if a rule for a path or key matches nothing in JSON; otherwise that is an error, as
    /// it is for columns of CSV and Parquet
    #[arg(long)]
    allow_unmatched: bool,
    #[command(flatten)]
    format_options: FormatArgs,
    #[command(flatten)]
    object_store: ObjectStoreArgs,
    /// Look for originals of masked values in the output afterwards
    #[arg(long)]
    verify: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Source and target database.
#[derive(Debug, clap::Args)]
struct Databases {
    /// Database to copy, which is only read: postgres://USER@HOST:PORT/NAME, or over a socket
    /// postgres:///NAME?host=/FOLDER
    #[arg(long, value_name = "URL")]
    from: String,
    /// File with its password (mode 600)
    #[arg(long, value_name = "FILE")]
    from_password_file: Option<PathBuf>,
    /// Authority that its certificate must come from
    #[arg(long, value_name = "FILE")]
    from_ca: Option<PathBuf>,
    /// Database to fill
    #[arg(long, value_name = "URL")]
    to: String,
    /// File with its password (mode 600)
    #[arg(long, value_name = "FILE")]
    to_password_file: Option<PathBuf>,
    /// Authority that its certificate must come from
    #[arg(long, value_name = "FILE")]
    to_ca: Option<PathBuf>,
    /// Client certificate for both databases
    #[arg(long, value_name = "FILE", requires = "database_key")]
    database_cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "database_cert")]
    database_key: Option<PathBuf>,
    /// Connect without TLS; only to this machine
    #[arg(long)]
    plain: bool,
}

/// Arguments of `mask database`.
#[derive(Debug, clap::Args)]
struct DatabaseArgs {
    #[command(flatten)]
    databases: Databases,
    /// First drop the contents of the database to fill
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    rules: RulesFile,
    /// Look for originals of masked values in the copy afterwards
    #[arg(long)]
    verify: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Arguments of `mask verify`.
#[derive(Debug, clap::Args)]
struct VerifyArgs {
    #[command(subcommand)]
    command: VerifyCommand,
}

#[derive(Debug, Subcommand)]
enum VerifyCommand {
    /// Compare a masked file with its original
    File {
        /// The original file. A Parquet file can be an object, s3://bucket/file.parquet
        #[arg(value_name = "FILE")]
        original: PathBuf,
        /// The masked file or database
        #[arg(value_name = "MASKED")]
        masked: PathBuf,
        #[command(flatten)]
        format_options: FormatArgs,
        #[command(flatten)]
        object_store: ObjectStoreArgs,
        #[command(flatten)]
        common: VerifyOptions,
    },
    /// Compare a masked database with its original
    Database {
        #[command(flatten)]
        databases: Databases,
        #[command(flatten)]
        common: VerifyOptions,
    },
}

/// Rules for a verification, which name the sensitive values. The rules can differ from the rules
/// of the job.
#[derive(Debug, clap::Args)]
struct VerifyOptions {
    #[command(flatten)]
    rules: RulesFile,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Creates a random secret that masks samples. The secret belongs to no app, and its masks are
/// discarded.
fn trial_secret() -> MaskSecret {
    MaskSecret::new(Zeroizing::new(rand::random()))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        MaskCommand::File(args) => mask_one_file(args),
        MaskCommand::Database(args) => mask_one_database(args),
        MaskCommand::Check(args) => check::run(args),
        MaskCommand::Discover(args) => discover::run(args),
        MaskCommand::Verify(args) => verify_masks(args),
    }
}

impl RulesFile {
    /// Loads the rules, and the lists from their folder.
    fn load(&self) -> Result<Arc<Rules>, Failure> {
        Ok(self.load_with_files()?.0)
    }

    /// Loads the rules. Returns the files that were read, too.
    fn load_with_files(&self) -> Result<(Arc<Rules>, Vec<PathBuf>), Failure> {
        let path = self.rules.display();
        let text = read_text_file(&self.rules, sealwire_mask::limits::FILE_BYTES_MAX)?;
        let folder = self.rules.parent().unwrap_or(Path::new(""));
        let mut files = vec![self.rules.clone()];

        let rules = Rules::from_toml_with(&text, |name| {
            let list = list_path(folder, name)?;
            files.push(list.clone());
            read_text_file(&list, LIST_BYTES_MAX).map_err(|error| error.to_string())
        });
        let rules = rules.map_err(|error| format!("{path}: {error}"))?;

        check_list_sizes(&rules).map_err(|why| format!("{path}: {why}"))?;
        if rules.iter().len() == 0 {
            return Err(format!("{path} has no [[rule]], so nothing would be masked").into());
        }
        Ok((Arc::new(rules), files))
    }
}

/// Returns the path of a list. Lists must be in the folder of the rules or below it.
fn list_path(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let is_in_folder = Path::new(name)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if is_in_folder {
        Ok(folder.join(name))
    } else {
        Err(format!(
            "list {name}: lists are in the folder of the rules, or in a folder below it"
        ))
    }
}

/// Checks that the custom lists of the rules fit in one request, since a batch may need all of
/// them.
fn check_list_sizes(rules: &Rules) -> Result<(), String> {
    let lists: Vec<Vec<&str>> = rules
        .lists()
        .filter(|(name, _)| rules.iter().any(|rule| rule.function.list() == Some(*name)))
        .map(|(_, entries)| entries.collect())
        .collect();
    let entries = lists.iter().flatten().count();
    let bytes = lists.iter().flatten().map(|entry| entry.len()).sum();

    for (what, has, max) in [
        ("lists", lists.len(), MASK_LISTS_MAX),
        ("entries of lists", entries, MASK_ENTRIES_MAX),
        ("bytes of lists", bytes, MASK_LISTS_BYTES_MAX),
    ] {
        if has > max {
            return Err(format!(
                "the rules use {has} {what}, and one call takes {max}: shorten the lists"
            ));
        }
    }
    Ok(())
}

impl FormatArgs {
    fn format(&self, file: &Path) -> Result<FileFormat, Failure> {
        let by_name = file
            .file_name()
            .and_then(|name| FileFormat::from_name(&name.to_string_lossy()));
        let format = match (self.format, by_name) {
            (Some(FormatName::Ndjson), _) => FileFormat::Ndjson,
            (Some(FormatName::Json), _) => FileFormat::Json,
            (Some(FormatName::Parquet), _) => FileFormat::Parquet,
            (Some(FormatName::Csv), Some(csv @ FileFormat::Csv { .. })) => csv,
            (Some(FormatName::Csv), _) => FileFormat::Csv { delimiter: b',' },
            (None, Some(format)) => format,
            (None, None) => {
                return Err(format!(
                    "{}: the extension is not that of a known format; give --format",
                    file.display()
                )
                .into());
            }
        };
        match (format, self.delimiter) {
            (FileFormat::Csv { .. }, Some(delimiter)) => {
                let delimiter = u8::try_from(delimiter).ok().filter(u8::is_ascii);
                let delimiter = delimiter.filter(|byte| !b"\"\r\n".contains(byte));
                let delimiter = delimiter.ok_or(
                    "--delimiter must be one ASCII character other than a quote or a line end",
                )?;
                Ok(FileFormat::Csv { delimiter })
            }
            (_, Some(_)) => Err("--delimiter is for CSV".into()),
            (format, None) => Ok(format),
        }
    }
}

impl Databases {
    fn database_at(
        &self,
        url: &str,
        password_file: &Option<PathBuf>,
        ca: &Option<PathBuf>,
    ) -> Database {
        Database {
            url: url.to_owned(),
            password: None,
            password_file: password_file.clone(),
            ca: ca.clone(),
            client_certificate: self.database_cert.clone(),
            client_key: self.database_key.clone(),
            plain: self.plain,
        }
    }

    fn source(&self) -> Database {
        self.database_at(&self.from, &self.from_password_file, &self.from_ca)
    }

    fn target(&self) -> Database {
        self.database_at(&self.to, &self.to_password_file, &self.to_ca)
    }
}

/// Results of a job and of its leak check.
#[derive(serde::Serialize)]
struct JobResult {
    #[serde(flatten)]
    report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaks: Option<LeakReport>,
}

fn mask_one_file(args: &FileArgs) -> Result<(), Failure> {
    let (rules, files) = args.rules.load_with_files()?;
    let format = args.format_options.format(&args.input)?;
    let from_pipe = args.input == Path::new("-");
    let to_pipe = args.out == Path::new("-");
    if args.verify && (from_pipe || to_pipe) {
        return Err("--verify reads both files again: name them".into());
    }

    // The output is checked before work that can take hours.
    if !to_pipe && !is_object(&args.out) {
        let read = args
            .engine
            .connect
            .files()
            .into_iter()
            .chain(args.object_store.files())
            .collect::<Vec<_>>();
        let inputs: Vec<&Path> = files
            .iter()
            .chain(&read)
            .chain([&args.input])
            .map(PathBuf::as_path)
            .collect();
        output_file::check(&args.out, args.replace, &inputs)?;
    }

    let store = &args.object_store;
    let job = FileJob {
        input: if from_pipe {
            Input::Stdin
        } else {
            files::parse_input(store, &args.input)?
        },
        output: if to_pipe {
            Output::Stdout
        } else {
            files::parse_output(store, &args.out, args.replace)?
        },
        format,
        limits: Limits::default(),
        allow_unmatched: args.allow_unmatched,
    };
    let limits = job.limits;
    let original = job.input.clone();
    let has_object = is_object(&args.input) || is_object(&args.out);

    let bar = ProgressLine::new("masking");
    let result = run_job(async {
        let engine = Remote::connect(&args.engine, &rules, &bar).await?;
        let job = mask_file(
            job,
            Arc::clone(&rules),
            Arc::new(engine),
            Arc::clone(&bar.progress),
        );
        let mut signals = StopSignals::listen()?;
        let report =
            unless_stopped(&mut signals, &bar.progress, has_object, bar.run_async(job)).await?;

        if !args.verify {
            return Ok(JobResult {
                report,
                leaks: None,
            });
        }
        if bar.progress.is_stopped() {
            return Err(NOT_VERIFIED.into());
        }
        let masked = files::parse_input(store, &args.out)?;
        let bar = ProgressLine::new("looking for originals");
        let verification = spawn_blocking(move || {
            bar.run_blocking(|progress| {
                verify_files(
                    &original,
                    &masked,
                    format,
                    rules,
                    limits,
                    LeakLimits::default(),
                    progress,
                )
            })
        });
        tokio::select! {
            leaks = verification => Ok(JobResult { report, leaks: Some(leaks??) }),
            () = signals.next() => Err(NOT_VERIFIED.into()),
        }
    })?;
    show::print_result(&result, args.json, to_pipe)
}

fn mask_one_database(args: &DatabaseArgs) -> Result<(), Failure> {
    let rules = args.rules.load()?;
    let result = run_job(async {
        let bar = ProgressLine::new("masking");
        let engine = Arc::new(Remote::connect(&args.engine, &rules, &bar).await?);
        let job = DatabaseJob {
            source: args.databases.source(),
            target: args.databases.target(),
            replace: args.replace,
            limits: Limits::default(),
        };
        let progress = Arc::clone(&bar.progress);
        let mut signals = StopSignals::listen()?;
        let report = mask_database(job, Arc::clone(&rules), engine, progress, signals.next());
        let report = bar.run_async(report).await?;
        drop(bar);

        if !args.verify {
            return Ok(JobResult {
                report,
                leaks: None,
            });
        }
        tokio::select! {
            leaks = verify_copy(&args.databases, &rules) => Ok(JobResult { report, leaks: Some(leaks?) }),
            () = signals.next() => Err(NOT_VERIFIED.into()),
        }
    })?;
    show::print_result(&result, args.json, false)
}

async fn verify_copy(databases: &Databases, rules: &Arc<Rules>) -> Result<LeakReport, Failure> {
    let bar = ProgressLine::new("looking for originals");
    let verification = verify_databases(
        databases.source(),
        databases.target(),
        Arc::clone(rules),
        LeakLimits::default(),
        &bar.progress,
    );
    Ok(bar.run_async(verification).await?)
}

fn verify_masks(args: &VerifyArgs) -> Result<(), Failure> {
    let (report, common) = match &args.command {
        VerifyCommand::Database { databases, common } => (
            run_job(verify_copy(databases, &common.rules.load()?))?,
            common,
        ),
        VerifyCommand::File {
            original,
            masked,
            format_options,
            object_store,
            common,
        } => {
            let rules = common.rules.load()?;
            let format = format_options.format(original)?;
            let original = files::parse_input(object_store, original)?;
            let masked = files::parse_input(object_store, masked)?;

            let bar = ProgressLine::new("looking for originals");
            let report = bar.run_blocking(|progress| {
                verify_files(
                    &original,
                    &masked,
                    format,
                    rules,
                    Limits::default(),
                    LeakLimits::default(),
                    progress,
                )
            })?;
            (report, common)
        }
    };
    show::print_leaks(&report, common.json)
}

/// Longest time for which leftover tasks of a failed job delay the end of the program.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time for which a stopped job with an object delays the end of the program. The job
/// itself waits at most 25 s for an object store.
const STOP_TIMEOUT: Duration = Duration::from_secs(28);

/// Error of a command that was stopped between its job and the end of the verification.
const NOT_VERIFIED: &str = "stopped: the output is complete, but was not verified";

/// Runs a job on all cores.
pub(super) fn run_job<T>(job: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(job);
    runtime.shutdown_timeout(LEFTOVER_TIMEOUT);
    outcome
}

/// Runs a job for a file. Ctrl-C or SIGTERM stops the job. The job's result is still awaited,
/// because only the job knows whether the output was complete, and what remains.
///
/// A second signal ends this wait, and so does a timeout. The timeout is short for a job without an
/// object: such a job waits only for its input, a reader of its output, or the disk.
pub(super) async fn unless_stopped<T>(
    signals: &mut StopSignals,
    progress: &Progress,
    has_object: bool,
    job: impl Future<Output = Result<T, JobError>>,
) -> Result<T, Failure> {
    let mut job = pin!(job);
    tokio::select! {
        done = &mut job => return Ok(done?),
        () = signals.next() => progress.stop(),
    }
    tokio::select! {
        done = &mut job => {
            let done = done?;
            errln!("sealwire: the output was already complete when the signal arrived");
            Ok(done)
        }
        () = signals.next() => Err(unknown_outcome("stopped by a second signal", has_object)),
        () = sleep(if has_object { STOP_TIMEOUT } else { LEFTOVER_TIMEOUT }) => Err(unknown_outcome("stopped", has_object)),
    }
}

/// Creates the error for a stopped job whose result was not awaited.
fn unknown_outcome(why: &str, has_object: bool) -> Failure {
    let upload = if has_object {
        ", and an unfinished upload can remain"
    } else {
        ""
    };
    format!("{why} before the job ended: check whether the output exists{upload}").into()
}
