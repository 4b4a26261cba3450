//! The rows of one table in the pipeline.

use std::ops::Range;
use std::sync::Arc;

use sealwire_msgpack::Token;

use super::catalog::{Class, KindScope, Table};
use crate::mask_job::batch::{Batch, Form, FoundValue, missing_subject};
use crate::mask_job::chunker::Chunk;
use crate::mask_job::error::JobError;
use crate::mask_job::pipeline::Format;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Label, RunningReport};
use crate::mask_job::scan::copy;
use crate::mask_job::scan::tree::PathRule;

/// A table's columns in COPY's order, with the verdict for each.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) table: String,
    plan: Arc<Plan>,
    running_report: Arc<RunningReport>,
    pub(crate) columns: Vec<RowColumn>,
    /// True if columns without a rule are checked for kinds.
    by_kind: bool,
}

#[derive(Debug)]
pub(crate) struct RowColumn {
    pub(crate) name: String,
    pub(crate) type_text: String,
    pub(crate) class: Class,
    kinds: KindScope,
    pub(crate) verdict: PathRule,
    /// Index of the subject's column.
    subject: Option<usize>,
    kept: Label,
}

impl RowColumn {
    pub(crate) fn is_masked(&self) -> bool {
        matches!(self.verdict, PathRule::Mask(..))
    }
}

impl Rows {
    pub(crate) fn new(
        table: &Table,
        plan: &Arc<Plan>,
        running_report: &Arc<RunningReport>,
    ) -> Result<Self, JobError> {
        let mut columns = Vec::new();
        for column in table.copied() {
            let rule = plan.column_rule(&[&table.schema, &table.name, &column.name]);
            let field = format!("{}.{}", table.title(), column.name);
            let label = running_report.label(plan.field(field.clone(), rule, None));
            let verdict = match rule {
                None => PathRule::None,
                Some(rule) if plan.keeps(rule) => PathRule::Keep,
                Some(rule) => PathRule::Mask(rule, label),
            };
            let subject = match rule.and_then(|rule| plan.subject(rule)) {
                None => None,
                Some(subject) => {
                    let at = table.copied().position(|other| other.name == subject);
                    Some(at.ok_or_else(|| {
                        JobError::Plan(format!(
                            "{field} is masked by {}, and its table has no column {subject}",
                            rule.map_or("", |rule| plan.function(rule))
                        ))
                    })?)
                }
            };
            columns.push(RowColumn {
                name: column.name.clone(),
                type_text: column.type_text.clone(),
                class: column.class,
                kinds: column.kinds,
                verdict,
                subject,
                kept: label,
            });
        }
        let by_kind = plan.has_kinds();
        Ok(Self {
            table: table.title(),
            plan: Arc::clone(plan),
            running_report: Arc::clone(running_report),
            columns,
            by_kind,
        })
    }

    fn error(&self, chunk: &Chunk, at: usize, column: &str, what: String) -> JobError {
        let before =
            memchr::memchr_iter(b'\n', &chunk.bytes[..at.min(chunk.bytes.len())]).count() as u64;
        JobError::Row {
            table: self.table.clone(),
            column: column.to_owned(),
            row: chunk.first_line + before,
            what,
        }
    }

    fn not_utf8(&self, chunk: &Chunk, at: usize, column: &RowColumn) -> JobError {
        let what = "the value is not UTF-8".to_owned();
        self.error(chunk, at, &column.name, what)
    }

    fn add_field(
        &self,
        chunk: &Chunk,
        at: usize,
        fields: &[Range<usize>],
        batch: &mut Batch,
    ) -> Result<(), JobError> {
        let column = &self.columns[at];
        let span = &fields[at];
        let raw = &chunk.bytes[span.clone()];
        if copy::is_null(raw) {
            batch.counts.add_nulls(column.kept, 1);
            return Ok(());
        }
        let (rule, label) = match column.verdict {
            PathRule::Mask(rule, label) => (rule, label),
            PathRule::None if self.by_kind && column.kinds == KindScope::Values => {
                let text = copy::decode_field(raw, column.class)
                    .ok_or_else(|| self.not_utf8(chunk, span.start, column))?;
                match self.plan.kind_rule(&text) {
                    Some(rule) if !self.plan.keeps(rule) => {
                        let field = format!("{}.{}", self.table, column.name);
                        let kind = self.plan.kind_name(rule);
                        (
                            rule,
                            self.running_report
                                .label(self.plan.field(field, Some(rule), kind)),
                        )
                    }
                    _ => {
                        batch.counts.add_kept(column.kept, 1);
                        return Ok(());
                    }
                }
            }
            PathRule::None | PathRule::Keep => {
                batch.counts.add_kept(column.kept, 1);
                return Ok(());
            }
        };

        let text = copy::decode_field(raw, column.class)
            .ok_or_else(|| self.not_utf8(chunk, span.start, column))?;
        let subject = match column.subject {
            None => None,
            Some(at) => {
                let class = self.columns[at].class;
                let raw = &chunk.bytes[fields[at].clone()];
                let mut out = missing_subject();
                if !copy::is_null(raw) {
                    out.clear();
                    let text = copy::decode_field(raw, class)
                        .ok_or_else(|| self.not_utf8(chunk, span.start, column))?;
                    copy::write_value(&text, class, false, &mut out);
                }
                Some(out)
            }
        };
        let found = FoundValue {
            span: span.clone(),
            rule,
            label,
            form: Form::Copy { column: at },
        };
        batch.push(found, subject.as_deref(), |out| {
            copy::write_value(&text, column.class, self.plan.keeps_decimals(rule), out);
            Ok(())
        })
    }
}

impl Format for Rows {
    type Memory = ();

    fn memory(&self) {}

    fn scan(&self, chunk: &Chunk, (): &mut (), batch: &mut Batch) -> Result<(), JobError> {
        if self.columns.is_empty() {
            batch.records += memchr::memchr_iter(b'\n', &chunk.bytes).count() as u64;
            return Ok(());
        }
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut at = 0;
        while at < chunk.bytes.len() {
            let start = at;
            at = copy::split_row(&chunk.bytes, at, &mut fields);
            if fields.len() != self.columns.len() {
                return Err(self.error(
                    chunk,
                    start,
                    "(all)",
                    "the server sent another number of columns".to_owned(),
                ));
            }
            batch.records += 1;
            for column in 0..fields.len() {
                self.add_field(chunk, column, &fields, batch)?;
            }
        }
        Ok(())
    }

    fn encode(
        &self,
        found: &FoundValue,
        masked: Token<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let Form::Copy { column } = found.form else {
            return Err("is not a field of a row".to_owned());
        };
        copy::write_field(masked, self.columns[column].class, out)
    }

    fn unfit(&self, chunk: &Chunk, found: &FoundValue, why: String) -> JobError {
        let Form::Copy { column } = found.form else {
            return JobError::Engine(why);
        };
        let what = format!("{} does not fit: {why}", self.plan.function(found.rule));
        self.error(chunk, found.span.start, &self.columns[column].name, what)
    }
}
