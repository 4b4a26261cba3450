//! `mask discover`: proposes rules for a file or a database, with the evidence for each.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::mask_job::{
    Database, FileFormat, FileJob, Input, JobError, Limits, Output, Progress, discover_database,
    discover_file, mask_file,
};
use sealwire_discover::{DiscoverOptions, Discovery, FieldVerdict};
use sealwire_mask::{Function, Mask, MaskSecret, Rules, Value};
use sealwire_service::output::errln;

use super::check::Trial;
use super::show::{ProgressLine, format_count};
use super::{FormatArgs, run_job, trial_secret};
use crate::commands::files;
use sealwire_command_line::Failure;
use sealwire_command_line::object_store::ObjectStoreArgs;
use sealwire_command_line::program::StopSignals;
use sealwire_service::output_file::{self, OutputFileError};

/// Maximum number of times that rules are tried on the whole file.
const TRIALS_MAX: usize = 3;

const HELP: &str = "\
Discovery samples each column or field and takes votes:
  by name          `email`, `geburtsdatum`, `name` in a table of customers, but not in one of products
  by form          the share of values with the form of an e-mail address, a card number and so on
  by distribution  names and places of the bundled lists, dates 18 to 100 years ago
  by reference     columns that a foreign key joins get one function

Of Parquet files, columns get rules that their types can hold, and large files are read in parts: 64 MiB of up to
16 row groups. Of other files the first 64 MiB are read.

The result is a rules file. Above each rule stand the evidence and a confidence. Comments at its end list
uncertain fields, for you to decide, and fields judged harmless. No sampled value is printed or kept.

Examples:
  sealwire mask discover orders.ndjson --out rules.toml
  sealwire mask check --rules rules.toml orders.ndjson

  sealwire mask discover s3://lake/orders.parquet --s3-ca ca.pem --out rules.toml

  sealwire mask discover --database postgres://app@db/shop --ca ca.pem --out rules.toml
  sealwire mask database --from postgres://app@db/shop --from-ca ca.pem \\
      --to postgres://app@test/shop --to-ca ca.pem --rules rules.toml --verify

Discovery can miss data: read its result before you rely on it.";

/// Arguments of `mask discover`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(super) struct Args {
    /// File of NDJSON, JSON, CSV or Parquet to sample. A Parquet file can be an object,
    /// s3://bucket/file.parquet
    #[arg(value_name = "FILE", conflicts_with = "database")]
    file: Option<PathBuf>,
    #[command(flatten)]
    format_options: FormatArgs,
    #[command(flatten)]
    object_store: ObjectStoreArgs,
    /// Database to sample, which is only read: postgres://USER@HOST:PORT/NAME, or over a socket
    /// postgres:///NAME?host=/FOLDER
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// File with its password
    #[arg(long, value_name = "FILE", requires = "database")]
    password_file: Option<PathBuf>,
    /// Authority that its certificate must come from
    #[arg(long, value_name = "FILE", requires = "database")]
    ca: Option<PathBuf>,
    /// Client certificate for the database
    #[arg(long, value_name = "FILE", requires_all = ["database", "database_key"])]
    database_cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, value_name = "FILE", requires = "database_cert")]
    database_key: Option<PathBuf>,
    /// Connect without TLS; only to this machine
    #[arg(long, requires = "database")]
    plain: bool,
    /// Rules file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace an existing rules file
    #[arg(long, requires = "out")]
    replace: bool,
    /// Most values of a field, or rows of a table, to judge by
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    sample: u32,
    /// Confidence from which a field gets a rule; below it, the field is listed as uncertain
    #[arg(long, value_name = "0..1", default_value_t = 0.7, value_parser = parse_confidence)]
    min_confidence: f64,
    /// Seed of the sample: equal input and seed give equal rules
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print all fields with evidence and confidence as JSON; rules go to --out alone
    #[arg(long)]
    json: bool,
}

fn parse_confidence(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| "a number from 0 to 1".to_owned())?;
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err("a number from 0 to 1".to_owned())
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // The output is checked before work that can take minutes.
    if let Some(out) = &args.out {
        let database = [
            &args.password_file,
            &args.ca,
            &args.database_cert,
            &args.database_key,
        ];
        let store = args.object_store.files();
        let inputs: Vec<&Path> = database
            .into_iter()
            .flatten()
            .chain(&args.file)
            .chain(&store)
            .map(PathBuf::as_path)
            .collect();
        output_file::check(out, args.replace, &inputs).map_err(|error| match error {
            OutputFileError::Exists(_) => exists_error(out),
            error => error.into(),
        })?;
    }

    let mut options = DiscoverOptions::new(time::OffsetDateTime::now_utc().year());
    options.sample = args.sample as usize;
    options.min_confidence = args.min_confidence;
    options.seed = args.seed;

    let masks = TrialMasks::new();
    let discovery = match (&args.file, &args.database) {
        (Some(file), _) => {
            let format = args.format_options.format(file)?;
            let input = files::parse_input(&args.object_store, file)?;
            let bar = ProgressLine::new("sampling");
            let mut discovery = bar.run_blocking(|progress| {
                discover_file(
                    &input,
                    format,
                    options,
                    &|function, value, out| masks.apply(function, value, out),
                    progress,
                )
            })?;
            drop(bar);
            redact_unfit_fields(
                &mut discovery,
                || files::parse_input(&args.object_store, file),
                format,
            )?;
            discovery
        }
        (None, Some(url)) => {
            let database = Database {
                url: url.clone(),
                password: None,
                password_file: args.password_file.clone(),
                ca: args.ca.clone(),
                client_certificate: args.database_cert.clone(),
                client_key: args.database_key.clone(),
                plain: args.plain,
            };
            run_job(sample_database(database, options, &masks))?
        }
        (None, None) => return Err("name a file, or a database with --database".into()),
    };
    write_result(args, &discovery)
}

/// Masks under a throw-away secret, by function. Creating a mask is slow, so masks are kept.
struct TrialMasks {
    secret: MaskSecret,
    masks: Mutex<Vec<(Function, Option<Arc<Mask>>)>>,
}

impl TrialMasks {
    fn new() -> Self {
        Self {
            secret: trial_secret(),
            masks: Mutex::default(),
        }
    }

    /// Appends the masked value to `out`. Returns false if the function does not fit the value.
    fn apply(&self, function: &Function, value: Value<'_>, out: &mut Vec<u8>) -> bool {
        self.mask_for(function)
            .is_some_and(|mask| mask.apply(value, None, out).is_ok())
    }

    fn mask_for(&self, function: &Function) -> Option<Arc<Mask>> {
        let mut masks = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mask)) = masks.iter().find(|(known, _)| known == function) {
            return mask.clone();
        }
        let mask = Mask::new(function, &self.secret).map(Arc::new);
        masks.push((function.clone(), mask.clone()));
        mask
    }
}

async fn sample_database(
    database: Database,
    options: DiscoverOptions,
    masks: &TrialMasks,
) -> Result<Discovery, Failure> {
    let bar = ProgressLine::new("sampling");
    let mut signals = StopSignals::listen()?;
    let trial: &(dyn Fn(&Function, Value<'_>, &mut Vec<u8>) -> bool + Sync) =
        &|function, value, out| masks.apply(function, value, out);
    tokio::select! {
        discovery = bar.run_async(discover_database(database, options, trial, &bar.progress)) => Ok(discovery?),
        () = signals.next() => Err("stopped".into()),
    }
}

/// Tries the rules on the file as `mask check` does, and redacts fields whose function does not fit
/// all values.
fn redact_unfit_fields(
    discovery: &mut Discovery,
    input: impl Fn() -> Result<Input, Failure>,
    format: FileFormat,
) -> Result<(), Failure> {
    // The sample covers only the start of a longer file, so `mask file` can still report values
    // that do not fit.
    if !discovery.read_whole {
        return Ok(());
    }
    let mut trials = 0;
    while trials < TRIALS_MAX {
        let rules = Rules::from_toml(&discovery.to_toml())?;
        let trial = Arc::new(Trial::new(&rules)?);
        let job = FileJob {
            input: input()?,
            output: Output::Nowhere,
            format,
            limits: Limits::default(),
            allow_unmatched: true,
        };
        let rules = Arc::new(rules);
        let masked = run_job(async {
            Ok(mask_file(job, rules, Arc::clone(&trial), Arc::<Progress>::default()).await)
        })?;
        match masked {
            // The type of a Parquet column does not hold a mask. Each column can fail in this way
            // once.
            Err(JobError::Row { column, .. }) if discovery.redact_column(&column) => continue,
            masked => masked?,
        };

        let unfit = trial.unfit_rules();
        if unfit.is_empty() {
            return Ok(());
        }
        discovery.redact(&unfit);
        trials += 1;
    }
    Ok(())
}

fn exists_error(out: &Path) -> Failure {
    format!("{} exists already: --replace replaces it", out.display()).into()
}

fn count_fields(discovery: &Discovery, verdict: FieldVerdict) -> usize {
    discovery
        .fields
        .iter()
        .filter(|field| field.verdict == verdict)
        .count()
}

/// Writes the rules to a temporary file, makes it durable, and renames it to `out`.
fn write_rules_file(out: &Path, rules: &str, replace: bool) -> std::io::Result<()> {
    let folder = out
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(rules.as_bytes())?;
    file.as_file().sync_all()?;

    let persisted = if replace {
        file.persist(out)
    } else {
        file.persist_noclobber(out)
    };
    persisted.map(drop).map_err(|error| error.error)
}

fn write_result(args: &Args, discovery: &Discovery) -> Result<(), Failure> {
    let rules = discovery.to_toml();
    // Rules that do not parse are a bug. Such rules must not be written to a file.
    Rules::from_toml(&rules)?;
    if let Some(out) = &args.out {
        write_rules_file(out, &rules, args.replace).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => exists_error(out),
            _ => format!("{}: {error}", out.display()).into(),
        })?;
    }

    let mut stdout = sealwire_service::output::Output;
    if args.json {
        writeln!(stdout, "{}", serde_json::to_string(discovery)?)?;
    } else if args.out.is_none() {
        stdout.write_all(rules.as_bytes())?;
    }

    errln!(
        "{}: {} to mask, {} uncertain, {} harmless",
        format_count(discovery.fields.len() as u64, "field"),
        count_fields(discovery, FieldVerdict::Sensitive),
        count_fields(discovery, FieldVerdict::Uncertain),
        count_fields(discovery, FieldVerdict::Harmless)
    );
    if let (Some(out), Some(file)) = (&args.out, &args.file) {
        errln!(
            "next: sealwire mask check --rules {} {}",
            out.display(),
            file.display()
        );
    }
    Ok(())
}
