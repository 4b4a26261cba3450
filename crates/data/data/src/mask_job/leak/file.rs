//! The leak check that compares a file with its masked counterpart in the same format.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use sealwire_mask_rules::Rules;

use super::{Check, LeakLimits, LeakReport};
use crate::mask_job::batch::Batch;
use crate::mask_job::chunker::ChunkReader;
use crate::mask_job::error::JobError;
use crate::mask_job::file_format::FileFormat;
use crate::mask_job::limits::Limits;
use crate::mask_job::output::Input;
use crate::mask_job::parquet::verify as parquet;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Progress, RunningReport};
use crate::mask_job::scan::csv::Columns;
use crate::mask_job::scan::json::{ItemKind, Memory, Scan, Visitor};
use crate::mask_job::scan::text::unescaped;
use crate::mask_job::scan::tree::{NodeId, PathRule, Tree};

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
    let source = source.text_file()?;
    let target = target.text_file()?;
    let bytes = file_length(source)? + file_length(target)?;

    for pass in 1.. {
        progress.set_totals(bytes * u64::from(pass), 0);
        let reading = Reading {
            format,
            limits,
            progress,
        };
        let running_report = RunningReport::default();
        let mut fields = Fields::default();
        reading.read(source, &mut check, &running_report, |check, field, text| {
            if field.kind == ItemKind::Key {
                return;
            }
            if let Some((rule, name)) = field.rule(check.plan(), text) {
                let at = fields.lookup(&name, rule, check);
                check.add_original(at, text);
            }
        })?;
        let mut fields = Names::default();
        reading.read(target, &mut check, &running_report, |check, field, text| {
            let (name, numbers) = fields.lookup(&field, check);
            match field.kind {
                ItemKind::Leaf => check.check_value(name, numbers, text),
                ItemKind::Key => check.check_key(name, text),
            }
        })?;
        if !check.end_pass() {
            return Ok(check.into_report(pass));
        }
    }
    Ok(LeakReport::default())
}

fn file_length(path: &Path) -> Result<u64, JobError> {
    path.metadata()
        .map(|metadata| metadata.len())
        .map_err(JobError::io(path))
}

/// A value or key of a file, with its field.
struct FoundItem<'t> {
    /// The verdict of rules by path or column.
    verdict: PathRule,
    name: Name<'t>,
    /// A number that identifies the name.
    label: u32,
    kind: ItemKind,
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
    fn lookup(&mut self, (label, name): &(u32, String), rule: usize, check: &mut Check) -> usize {
        *self
            .known
            .entry((*label, rule))
            .or_insert_with(|| check.field_number(name, rule))
    }
}

/// Field numbers by label.
#[derive(Default)]
struct Names {
    known: std::collections::HashMap<u32, (String, Vec<usize>)>,
}

impl Names {
    fn lookup(&mut self, item: &FoundItem<'_>, check: &Check) -> (&str, &[usize]) {
        let entry = self.known.entry(item.label).or_insert_with(|| {
            let name = item.name();
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
    /// Calls `visit` for every key and every value of a file except nulls.
    fn read(
        &self,
        path: &Path,
        check: &mut Check,
        running_report: &RunningReport,
        mut visit: impl FnMut(&mut Check, FoundItem<'_>, &str),
    ) -> Result<(), JobError> {
        let plan = Arc::clone(check.plan());
        let name = path.display().to_string();
        let file = File::open(path).map_err(JobError::io(path))?;
        let mut cutter = ChunkReader::new(
            file,
            self.format.record_boundary(),
            self.limits,
            name.clone(),
        );
        let mut memory = Memory::new();
        let mut columns = None;
        while let Some(chunk) = cutter.next()? {
            if let FileFormat::Csv { delimiter } = self.format {
                let mut start = chunk.skipped;
                let columns = match &columns {
                    Some(columns) => columns,
                    None => {
                        let read =
                            Columns::read(&chunk.bytes, start, delimiter, &plan, running_report)
                                .map_err(|error| error.in_chunk(&name, &chunk))?;
                        let (read, end) = read.map_err(JobError::Plan)?;
                        start = end;
                        columns.insert(read)
                    }
                };
                let scanned =
                    columns.values(&chunk.bytes, start, &mut |at, name, verdict, text| {
                        let item = FoundItem {
                            verdict,
                            name: Name::Column(name),
                            label: at as u32,
                            kind: ItemKind::Leaf,
                        };
                        visit(check, item, text);
                    });
                scanned.map_err(|error| error.in_chunk(&name, &chunk))?;
            } else {
                let mut batch = Batch::new(self.limits);
                let mut visitor = ItemVisitor {
                    plan: &plan,
                    running_report,
                    check,
                    visit: &mut visit,
                };
                Scan::new(&chunk.bytes, &plan, running_report, &mut memory, &mut batch)
                    .and_then(|scan| {
                        scan.with_visitor(&mut visitor)
                            .scan_chunk(self.format, &chunk)
                    })
                    .map_err(|error| error.in_chunk(&name, &chunk))?;
            }
            self.progress.add(chunk.bytes.len() as u64, 0);
        }
        Ok(())
    }
}

/// Passes the keys and values of JSON documents to a callback.
struct ItemVisitor<'a, F> {
    plan: &'a Plan,
    running_report: &'a RunningReport,
    check: &'a mut Check,
    visit: &'a mut F,
}

impl<F: FnMut(&mut Check, FoundItem<'_>, &str)> Visitor for ItemVisitor<'_, F> {
    fn visit(&mut self, tree: &mut Tree, node: NodeId, kind: ItemKind, raw: &[u8]) {
        let verdict = tree.verdict(node, self.plan, self.running_report);
        let label = tree.name_label(node, self.plan, self.running_report);
        let item = FoundItem {
            verdict,
            name: Name::Node(tree, node),
            label,
            kind,
        };
        (self.visit)(self.check, item, &scalar_text(raw));
    }
}

/// Returns the text of a JSON scalar.
fn scalar_text(raw: &[u8]) -> Cow<'_, str> {
    match raw.first() {
        Some(b'"') => unescaped(&raw[1..raw.len() - 1]).unwrap_or(String::from_utf8_lossy(raw)),
        _ => String::from_utf8_lossy(raw),
    }
}
