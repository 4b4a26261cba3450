//! `mask check`: shows the effect of rules on a sample, by a job with a throw-away key whose output
//! is discarded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::mask_job::{
    Column, Engine, EngineError, FieldReport, FileJob, Input, Limits, Output, Progress, mask_file,
};
use sealwire_mask::{Masks, RuleText, Rules, Target, Unknown, Value, redact};
use sealwire_msgpack::TokenReader;
use sealwire_service::output::outln;
use serde::Serialize;

use super::show::{self, format_count};
use super::{FormatArgs, RulesFile, run_job, trial_secret};
use crate::commands::files;
use sealwire_command_line::Failure;
use sealwire_command_line::object_store::ObjectStoreArgs;

/// Arguments of `mask check`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A file of the kind to mask, or a part of one; `-` reads standard input. A Parquet file can
    /// be an object, s3://bucket/file.parquet
    #[arg(value_name = "SAMPLE")]
    sample: PathBuf,
    #[command(flatten)]
    rules: RulesFile,
    #[command(flatten)]
    format_options: FormatArgs,
    #[command(flatten)]
    object_store: ObjectStoreArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Effect of the rules on the sample.
#[derive(Debug, Serialize)]
struct Explained {
    /// Fields by path or column, in order of appearance. Keys of maps are `[*]`.
    fields: Vec<Field>,
    /// Values that do not fit the function of their rule.
    unfit: Vec<Unfit>,
    /// Rules without a match in the sample, counted from 1.
    unused: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct Field {
    field: String,
    /// The outcome: `masked`, `kept` or `refused`.
    becomes: &'static str,
    /// Number of the rule that applies, counted from 1. Absent if no rule applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<usize>,
    /// The target of that rule: `path $.a`, `column a` or `kind card`.
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask: Option<String>,
    values: u64,
    nulls: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Unfit {
    /// The rule, counted from 1.
    rule: usize,
    mask: String,
    values: u64,
    /// The reason for the first of these values.
    why: String,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let rules = args.rules.load()?;
    let format = args.format_options.format(&args.sample)?;

    let is_pipe = args.sample == Path::new("-");
    let job = FileJob {
        input: if is_pipe {
            Input::Stdin
        } else {
            files::parse_input(&args.object_store, &args.sample)?
        },
        output: Output::Nowhere,
        format,
        limits: Limits::default(),
        // The report lists rules without a match, so such rules do not fail this job.
        allow_unmatched: true,
    };
    let keep_unknown = keep_unknown(&rules)?;
    let trial = Arc::new(Trial::new(&keep_unknown)?);
    let report = run_job(async {
        Ok(mask_file(
            job,
            Arc::new(keep_unknown),
            Arc::clone(&trial),
            Arc::<Progress>::default(),
        )
        .await?)
    })?;

    let rejects_unknown = rules.unknown() == Unknown::Refuse;
    let fields: Vec<_> = report
        .fields
        .into_iter()
        .map(|field| explain_field(&rules, rejects_unknown, field))
        .collect();
    let unused = (1..=rules.iter().len())
        .filter(|rule| fields.iter().all(|field| field.rule != Some(*rule)))
        .collect();
    let unfit = trial
        .unfit
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .values()
        .cloned()
        .collect();
    let explained = Explained {
        unused,
        fields,
        unfit,
    };

    if args.json {
        outln!("{}", serde_json::to_string(&explained)?);
    } else {
        print_explanation(&explained, &rules)?;
    }
    check_job_succeeds(&explained)
}

/// Returns the rules with unknown fields kept, so that the report lists every field.
fn keep_unknown(rules: &Rules) -> Result<Rules, Failure> {
    let texts = rules
        .iter()
        .map(|rule| RuleText {
            target: rule.target.clone(),
            mask: rule.function.to_string(),
        })
        .collect();
    let lists = rules
        .lists()
        .map(|(name, entries)| (name.to_owned(), entries.map(str::to_owned).collect()))
        .collect();
    Ok(Rules::new(Unknown::Keep, texts, lists)?)
}

fn explain_field(rules: &Rules, rejects_unknown: bool, field: FieldReport) -> Field {
    let rule = field.rule.and_then(|at| rules.get(at));
    let becomes = match rule {
        Some(rule) if rule.function.is_keep() => "kept",
        Some(_) => "masked",
        // Only nulls were found, which any rule keeps.
        None if rejects_unknown && field.masked + field.kept > 0 => "refused",
        None => "kept",
    };
    Field {
        field: field.field,
        becomes,
        rule: field.rule.map(|at| at + 1),
        names: rule.map(|rule| target_text(&rule.target)),
        mask: field.function,
        values: field.masked + field.kept,
        nulls: field.nulls,
    }
}

fn target_text(target: &Target) -> String {
    match target {
        Target::Path(path) => format!("path {path}"),
        Target::Column(column) => format!("column {column}"),
        Target::Kind(kind) => format!("kind {}", kind.name()),
    }
}

fn print_explanation(explained: &Explained, rules: &Rules) -> Result<(), Failure> {
    let rows: Vec<_> = explained.fields.iter().map(field_cells).collect();
    show::print_table(&["FIELD", "MASK", "BECAUSE OF", "VALUES", "NULL"], &rows)?;

    for Unfit {
        rule,
        mask,
        values,
        why,
    } in &explained.unfit
    {
        outln!(
            "rule {rule}: {mask} does not fit {}: {why}",
            format_count(*values, "value")
        );
    }
    for rule in &explained.unused {
        let target = rules
            .get(rule - 1)
            .map(|rule| target_text(&rule.target))
            .unwrap_or_default();
        outln!("rule {rule} names nothing here: {target}");
    }
    Ok(())
}

/// Returns the cells of a field's row in the table.
fn field_cells(field: &Field) -> Vec<String> {
    let (mask, reason) = match (&field.mask, field.rule, &field.names) {
        (Some(mask), Some(rule), Some(names)) => (mask.clone(), format!("rule {rule}, {names}")),
        _ if field.becomes == "refused" => ("refused".to_owned(), "no rule names it".to_owned()),
        _ => ("keep".to_owned(), "no rule names it".to_owned()),
    };
    vec![
        field.field.clone(),
        mask,
        reason,
        field.values.to_string(),
        field.nulls.to_string(),
    ]
}

/// Checks whether a job would succeed.
fn check_job_succeeds(explained: &Explained) -> Result<(), Failure> {
    let rejected = explained
        .fields
        .iter()
        .filter(|field| field.becomes == "refused")
        .count();
    let unfit: u64 = explained.unfit.iter().map(|unfit| unfit.values).sum();
    match (rejected, unfit) {
        (0, 0) => Ok(()),
        (0, unfit) => {
            Err(format!("a job would fail: its function does not fit {}", format_count(unfit, "value")).into())
        }
        (rejected, _) => Err(format!(
            "a job would fail: no rule names {}; name each in a rule (mask = \"keep\" keeps it) or say unknown = \"keep\"",
            format_count(rejected as u64, "field")
        )
        .into()),
    }
}

/// Masks under a random key, and records the values that do not fit.
pub(super) struct Trial {
    masks: Masks,
    unfit: Mutex<BTreeMap<usize, Unfit>>,
}

impl Trial {
    pub(super) fn new(rules: &Rules) -> Result<Self, Failure> {
        let secret = trial_secret();
        Ok(Self {
            masks: Masks::new(rules, &secret),
            unfit: Mutex::default(),
        })
    }

    fn mask_column(&self, column: &Column) -> Result<Vec<u8>, EngineError> {
        let mut out = Vec::with_capacity(column.values.len());
        let mut values = TokenReader::new(&column.values);
        let mut subjects = column.subjects.as_deref().map(TokenReader::new);

        for _ in 0..column.count {
            let value = Value::read(values.value().map_err(|_| invalid_batch())?);
            let subject = match &mut subjects {
                Some(subjects) => Value::read(subjects.value().map_err(|_| invalid_batch())?),
                None => None,
            };

            let before = out.len();
            if let Err(unfit) =
                self.masks
                    .apply(column.rule, value.unwrap_or(Value::Nil), subject, &mut out)
            {
                out.truncate(before);
                redact(value, &mut out);
                self.record_unfit(column.rule, &unfit.to_string());
            }
        }
        Ok(out)
    }

    /// Returns the rules whose function did not fit some values, by index, with the number of such
    /// values.
    pub(super) fn unfit_rules(&self) -> Vec<(usize, u64)> {
        let all = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .map(|(rule, unfit)| (*rule, unfit.values))
            .collect()
    }

    fn record_unfit(&self, rule: usize, why: &str) {
        let mut all = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        let unfit = all.entry(rule).or_insert_with(|| Unfit {
            rule: rule + 1,
            mask: self
                .masks
                .get(rule)
                .map(|mask| mask.function().to_string())
                .unwrap_or_default(),
            values: 0,
            why: why.to_owned(),
        });
        unfit.values += 1;
    }
}

/// Returns the error for a batch whose values do not match its counts.
fn invalid_batch() -> EngineError {
    EngineError::Failed("a batch has another number of values than it announces".to_owned())
}

impl Engine for Trial {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        columns
            .iter()
            .map(|column| self.mask_column(column))
            .collect()
    }
}
