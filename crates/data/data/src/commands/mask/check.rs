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

use super::show::{self, counted};
use super::{Holds, RulesFile, run_job, trial_secret};
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
    holds: Holds,
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
    let format = args.holds.format(&args.sample)?;
    let is_pipe = args.sample == Path::new("-");
    let job = FileJob {
        input: if is_pipe {
            Input::Stdin
        } else {
            files::input(&args.object_store, &args.sample)?
        },
        output: Output::Nowhere,
        format,
        limits: Limits::default(),
        // Rules without a match are no error here: the report lists them.
        allow_unmatched: true,
    };
    let keeping = keeping(&rules)?;
    let trial = Arc::new(Trial::new(&keeping)?);
    let report = run_job(async {
        Ok(mask_file(
            job,
            Arc::new(keeping),
            Arc::clone(&trial),
            Arc::<Progress>::default(),
        )
        .await?)
    })?;
    let refuses = rules.unknown() == Unknown::Refuse;
    let fields: Vec<_> = report
        .fields
        .into_iter()
        .map(|field| explained(&rules, refuses, field))
        .collect();
    let used = |rule: &usize| fields.iter().any(|field| field.rule == Some(*rule));
    let unused = (1..=rules.iter().len())
        .filter(|rule| !used(rule))
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
        print(&explained, &rules)?;
    }
    verdict(&explained)
}

/// Returns the rules with unknown fields kept, so that the report lists every field.
fn keeping(rules: &Rules) -> Result<Rules, Failure> {
    let text = |rule: &sealwire_mask::Rule| RuleText {
        target: rule.target.clone(),
        mask: rule.function.to_string(),
    };
    let list = |(name, entries): (&str, _)| {
        (
            name.to_owned(),
            Iterator::map(entries, str::to_owned).collect(),
        )
    };
    Ok(Rules::new(
        Unknown::Keep,
        rules.iter().map(text).collect(),
        rules.lists().map(list).collect(),
    )?)
}

fn explained(rules: &Rules, refuses: bool, field: FieldReport) -> Field {
    let rule = field.rule.and_then(|at| rules.get(at));
    let becomes = match rule {
        Some(rule) if rule.function.is_keep() => "kept",
        Some(_) => "masked",
        // Only nulls were found, which any rule keeps.
        None if refuses && field.masked + field.kept > 0 => "refused",
        None => "kept",
    };
    Field {
        field: field.field,
        becomes,
        rule: field.rule.map(|at| at + 1),
        names: rule.map(|rule| named(&rule.target)),
        mask: field.function,
        values: field.masked + field.kept,
        nulls: field.nulls,
    }
}

fn named(target: &Target) -> String {
    match target {
        Target::Path(path) => format!("path {path}"),
        Target::Column(column) => format!("column {column}"),
        Target::Kind(kind) => format!("kind {}", kind.name()),
    }
}

fn print(explained: &Explained, rules: &Rules) -> Result<(), Failure> {
    let row = |field: &Field| {
        let (mask, by) = match (&field.mask, field.rule, &field.names) {
            (Some(mask), Some(rule), Some(names)) => {
                (mask.clone(), format!("rule {rule}, {names}"))
            }
            _ if field.becomes == "refused" => {
                ("refused".to_owned(), "no rule names it".to_owned())
            }
            _ => ("keep".to_owned(), "no rule names it".to_owned()),
        };
        vec![
            field.field.clone(),
            mask,
            by,
            field.values.to_string(),
            field.nulls.to_string(),
        ]
    };
    let rows: Vec<_> = explained.fields.iter().map(row).collect();
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
            counted(*values, "value")
        );
    }
    for rule in &explained.unused {
        let target = rules
            .get(rule - 1)
            .map(|rule| named(&rule.target))
            .unwrap_or_default();
        outln!("rule {rule} names nothing here: {target}");
    }
    Ok(())
}

/// Checks whether a job would succeed.
fn verdict(explained: &Explained) -> Result<(), Failure> {
    let refused = explained
        .fields
        .iter()
        .filter(|field| field.becomes == "refused")
        .count();
    let unfit: u64 = explained.unfit.iter().map(|unfit| unfit.values).sum();
    match (refused, unfit) {
        (0, 0) => Ok(()),
        (0, unfit) => {
            Err(format!("a job would fail: its function does not fit {}", counted(unfit, "value")).into())
        }
        (refused, _) => Err(format!(
            "a job would fail: no rule names {}; name each in a rule (mask = \"keep\" keeps it) or say unknown = \"keep\"",
            counted(refused as u64, "field")
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

    fn column(&self, column: &Column) -> Result<Vec<u8>, EngineError> {
        let odd = |_| EngineError::Failed("a batch is not what it says".to_owned());
        let mut out = Vec::with_capacity(column.values.len());
        let mut values = TokenReader::new(&column.values);
        let mut subjects = column.subjects.as_deref().map(TokenReader::new);
        for _ in 0..column.count {
            let value = Value::read(values.value().map_err(odd)?);
            let subject = match &mut subjects {
                Some(subjects) => Value::read(subjects.value().map_err(odd)?),
                None => None,
            };
            let before = out.len();
            if let Err(unfit) =
                self.masks
                    .apply(column.rule, value.unwrap_or(Value::Nil), subject, &mut out)
            {
                out.truncate(before);
                redact(value, &mut out);
                self.note(column.rule, &unfit.to_string());
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

    fn note(&self, rule: usize, why: &str) {
        let mask = || {
            self.masks
                .get(rule)
                .map(|mask| mask.function().to_string())
                .unwrap_or_default()
        };
        let mut all = self.unfit.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Unfit {
            rule: rule + 1,
            mask: mask(),
            values: 0,
            why: why.to_owned(),
        };
        all.entry(rule).or_insert_with(new).values += 1;
    }
}

impl Engine for Trial {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        columns.iter().map(|column| self.column(column)).collect()
    }
}
