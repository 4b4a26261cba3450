//! The leak check that compares a file with its masked counterpart in the same format.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use sealwire_mask_rules::Rules;

use super::{Check, LeakLimits, LeakReport};
use crate::mask_job::batch::Batch;
use crate::mask_job::chunker::Cutter;
use crate::mask_job::error::JobError;
use crate::mask_job::file_format::FileFormat;
use crate::mask_job::limits::Limits;
use crate::mask_job::output::Input;
use crate::mask_job::parquet::verify as parquet;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Progress, RunningReport};
use crate::mask_job::scan::csv::Columns;
use crate::mask_job::scan::json::{Memory, Scan, Shown};
use crate::mask_job::scan::text::unescaped;
use crate::mask_job::scan::tree::{NodeId, PathRule, Tree};
use crate::mask_job::scan::{Fault, place};

/// Checks `target` for originals of the values that `rules` mask in `source`. Blocks while it reads
/// both files once, or several times if there are many values.
///
/// # Errors
/// [`JobError`] if a file cannot be read, or is invalid in `format`.
pub fn verify_files(
    source: &Input,
    target: &Input,
    format: FileFormat,
    rules: Arc<Rules>,
    limits: Limits,
    leak: LeakLimits,
    progress: &Progress,
) -> Result<LeakReport, JobError> {
    let mut check = Check::new(Arc::new(Plan::for_file(rules, format)?), leak);
    if format == FileFormat::Parquet {
        return parquet::verify(source, target, check, limits, progress);
    }
    let (source, target) = (source.text_file()?, target.text_file()?);
    let length = |path: &Path| {
        path.metadata()
            .map(|it| it.len())
            .map_err(JobError::io(path))
    };
    let bytes = length(source)? + length(target)?;
    for pass in 1.. {
        progress.expect(bytes * u64::from(pass), 0);
        let reading = Reading {
            format,
            limits,
            progress,
        };
        let ledger = RunningReport::default();
        let mut fields = Fields::default();
        reading.read(source, &mut check, &ledger, |check, field, text| {
            if field.shown == Shown::Key {
                return;
            }
            if let Some((rule, name)) = field.rule(check.plan(), text) {
                let at = fields.of(&name, rule, check);
                check.original(at, text);
            }
        })?;
        let mut fields = Names::default();
        reading.read(target, &mut check, &ledger, |check, field, text| {
            let (name, numbers) = fields.of(&field, check);
            match field.shown {
                Shown::Leaf => check.seen(name, numbers, text),
                Shown::Key => check.seen_key(name, text),
            }
        })?;
        if !check.end_pass() {
            return Ok(check.report(pass));
        }
    }
    Ok(LeakReport::default())
}

/// A value or key of a file, with its field.
struct FoundItem<'t> {
    /// The verdict of rules by path or column.
    verdict: PathRule,
    name: Name<'t>,
    /// A number that identifies the name.
    label: u32,
    shown: Shown,
}

enum Name<'t> {
    Node(&'t Tree, NodeId),
    Column(&'t str),
}

impl FoundItem<'_> {
    fn name(&self) -> String {
        match self.name {
            Name::Node(tree, node) => tree.path(node),
            Name::Column(name) => name.to_owned(),
        }
    }

    /// Returns the rule that masks a value, and the field's label and name.
    fn rule(&self, plan: &Plan, text: &str) -> Option<(usize, (u32, String))> {
        let rule = match self.verdict {
            PathRule::Mask(rule, _) => rule,
            PathRule::Keep => return None,
            PathRule::None => plan.kind_rule(text).filter(|rule| !plan.keeps(*rule))?,
        };
        Some((rule, (self.label, self.name())))
    }
}

/// Field numbers by label and rule.
#[derive(Default)]
struct Fields {
    known: std::collections::HashMap<(u32, usize), usize>,
}

impl Fields {
    fn of(&mut self, (label, name): &(u32, String), rule: usize, check: &mut Check) -> usize {
        *self
            .known
            .entry((*label, rule))
            .or_insert_with(|| check.field(name, rule))
    }
}

/// Field numbers by label.
#[derive(Default)]
struct Names {
    known: std::collections::HashMap<u32, (String, Vec<usize>)>,
}

impl Names {
    fn of(&mut self, met: &FoundItem<'_>, check: &Check) -> (&str, &[usize]) {
        let entry = self.known.entry(met.label).or_insert_with(|| {
            let name = met.name();
            let numbers = check.fields_named(&name);
            (name, numbers)
        });
        (&entry.0, &entry.1)
    }
}

struct Reading<'p> {
    format: FileFormat,
    limits: Limits,
    progress: &'p Progress,
}

impl Reading<'_> {
    /// Calls `met` for every key and every value of a file except nulls.
    fn read(
        &self,
        path: &Path,
        check: &mut Check,
        ledger: &RunningReport,
        mut met: impl FnMut(&mut Check, FoundItem<'_>, &str),
    ) -> Result<(), JobError> {
        let plan = Arc::clone(check.plan());
        let name = path.display().to_string();
        let file = File::open(path).map_err(JobError::io(path))?;
        let mut cutter = Cutter::new(file, self.format.cut(), self.limits, name.clone());
        let (mut memory, mut columns) = (Memory::new(), None);
        while let Some(chunk) = cutter.next()? {
            let broken = |fault: Fault| {
                let (line, column) = place(&chunk.bytes, chunk.first_line, fault.at);
                JobError::Broken {
                    name: name.clone(),
                    line,
                    column,
                    what: fault.what,
                }
            };
            if let FileFormat::Csv { delimiter } = self.format {
                let mut begin = chunk.skipped;
                let columns = match &columns {
                    Some(columns) => columns,
                    None => {
                        let read = Columns::read(&chunk.bytes, begin, delimiter, &plan, ledger)
                            .map_err(broken)?;
                        let (read, end) = read.map_err(JobError::Plan)?;
                        begin = end;
                        columns.insert(read)
                    }
                };
                let mut show = |at: usize, name: &str, verdict: PathRule, text: &str| {
                    met(
                        check,
                        FoundItem {
                            verdict,
                            name: Name::Column(name),
                            label: at as u32,
                            shown: Shown::Leaf,
                        },
                        text,
                    );
                };
                columns
                    .values(&chunk.bytes, begin, &mut show)
                    .map_err(broken)?;
            } else {
                let mut batch = Batch::new(self.limits);
                let mut show = |tree: &mut Tree, node: NodeId, shown: Shown, raw: &[u8]| {
                    let verdict = tree.verdict(node, &plan, ledger);
                    let label = tree.name_label(node, &plan, ledger);
                    met(
                        check,
                        FoundItem {
                            verdict,
                            name: Name::Node(tree, node),
                            label,
                            shown,
                        },
                        &text(raw),
                    );
                };
                let mut scan = Scan::new(&chunk.bytes, &plan, ledger, &mut memory, &mut batch)
                    .map_err(broken)?;
                scan.visitor = Some(&mut show);
                let scanned = match self.format {
                    FileFormat::Ndjson => scan.lines(chunk.skipped),
                    _ if chunk.is_array => {
                        scan.elements(chunk.skipped, chunk.first_record, chunk.is_last)
                    }
                    _ => scan.document(chunk.skipped),
                };
                scanned.map_err(broken)?;
            }
            self.progress.add(chunk.bytes.len() as u64, 0);
        }
        Ok(())
    }
}

/// Returns the text of a JSON scalar.
fn text(raw: &[u8]) -> Cow<'_, str> {
    match raw.first() {
        Some(b'"') => unescaped(&raw[1..raw.len() - 1]).unwrap_or(String::from_utf8_lossy(raw)),
        _ => String::from_utf8_lossy(raw),
    }
}
