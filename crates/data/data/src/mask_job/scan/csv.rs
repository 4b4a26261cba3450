//! Scans CSV as in RFC 4180. The rules decide on fields by column; unmasked fields are only
//! skipped.
//!
//! Records end with LF or CRLF; a blank line is not a record. Quotes enclose a whole field, or are
//! doubled inside a quoted field. An empty unquoted field counts as null.

use std::borrow::Cow;
use std::ops::Range;

use sealwire_msgpack::{Token, write};

use super::json::Unknown;
use super::{ScanError, utf8};
use crate::mask_job::batch::{self, Batch, Form, FoundValue, missing_subject};
use crate::mask_job::limits::CSV_COLUMNS_MAX;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Label, RunningReport};
use crate::mask_job::scan::tree::PathRule;

/// The columns of a file with the verdict for each.
#[derive(Debug)]
pub(crate) struct Columns {
    delimiter: u8,
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    name: String,
    verdict: PathRule,
    /// Index of the subject's column.
    subject: Option<usize>,
    /// Label under which kept values are counted.
    kept: Label,
}

/// A field of a record. The span includes quotes.
#[derive(Clone, Debug)]
struct Field {
    span: Range<usize>,
    quoted: bool,
}

impl Columns {
    /// Reads the columns from the header. Also returns the offset after the header.
    pub(crate) fn read(
        text: &[u8],
        start: usize,
        delimiter: u8,
        plan: &Plan,
        running_report: &RunningReport,
    ) -> Result<Result<(Self, usize), String>, ScanError> {
        utf8(text)?;
        let mut fields = Vec::new();
        let end = read_record(text, start, delimiter, &mut fields)?;
        if let Some(scan_error) = separator_line(text, start, delimiter) {
            return Err(scan_error);
        }
        if fields.len() > CSV_COLUMNS_MAX {
            return Err(ScanError::new(
                start,
                format!("a header with more than {CSV_COLUMNS_MAX} columns"),
            ));
        }
        let names: Vec<String> = fields
            .iter()
            .map(|field| field_text(text, field).into_owned())
            .collect();
        let is_quoted = fields.iter().any(|field| field.quoted);
        if let Some(other) = delimiter_of(&names, delimiter).filter(|_| !is_quoted) {
            let hint = delimiter_hint(other);
            return Err(ScanError::new(
                start,
                format!("one column whose name has another delimiter: quote the name{hint}"),
            ));
        }
        if names.iter().all(String::is_empty) {
            return Err(ScanError::new(
                start,
                "a header with the columns' names expected",
            ));
        }
        Ok(Self::by_names(&names, delimiter, plan, running_report).map(|columns| (columns, end)))
    }

    fn by_names(
        names: &[String],
        delimiter: u8,
        plan: &Plan,
        running_report: &RunningReport,
    ) -> Result<Self, String> {
        let mut columns = Vec::with_capacity(names.len());
        for name in names {
            let rule = plan.column_rule(&[name]);
            let label = running_report.label(plan.field(name.clone(), rule, None));
            let verdict = match rule {
                None => PathRule::None,
                Some(rule) if plan.keeps(rule) => PathRule::Keep,
                Some(rule) => PathRule::Mask(rule, label),
            };
            let subject = match rule.and_then(|rule| plan.subject(rule)) {
                None => None,
                Some(subject) => Some(names.iter().position(|other| other == subject).ok_or_else(|| {
                    format!("the rule for column {name} has subject={subject}, but the file has no column {subject}")
                })?),
            };
            columns.push(Column {
                name: name.clone(),
                verdict,
                subject,
                kept: label,
            });
        }
        plan.check_columns_exist(names)?;
        Ok(Self { delimiter, columns })
    }

    /// Returns the names of the columns.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns the columns that no rule names. With kind rules the result is empty, since those
    /// rules can apply to any column.
    pub(crate) fn unknown(&self, plan: &Plan) -> Unknown {
        let mut unknown = Unknown::default();
        if plan.rejects_unknown() && !plan.has_kinds() {
            let unnamed = self
                .columns
                .iter()
                .filter(|column| column.verdict == PathRule::None);
            unnamed.for_each(|column| unknown.add(0, column.name.clone()));
        }
        unknown
    }

    /// Scans every record of a chunk.
    pub(crate) fn records(
        &self,
        text: &[u8],
        start: usize,
        plan: &Plan,
        running_report: &RunningReport,
        batch: &mut Batch,
    ) -> Result<Unknown, ScanError> {
        utf8(text)?;
        let mut unknown = Unknown::default();
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut at = start;
        while at < text.len() {
            let start = at;
            at = read_record(text, at, self.delimiter, &mut fields)?;
            if fields.len() == 1 && fields[0].span.is_empty() {
                continue;
            }
            if fields.len() != self.columns.len() {
                let what = format!(
                    "{} fields, and the header has {}",
                    fields.len(),
                    self.columns.len()
                );
                return Err(ScanError::new(start, what));
            }
            batch.records += 1;
            for (column, field) in self.columns.iter().zip(&fields) {
                self.add_field(
                    text,
                    column,
                    field,
                    &fields,
                    plan,
                    running_report,
                    batch,
                    &mut unknown,
                )?;
            }
        }
        Ok(unknown)
    }

    /// Calls `visit` for every value of a chunk except nulls: the column's index, name and verdict,
    /// and the value's text.
    pub(crate) fn values(
        &self,
        text: &[u8],
        start: usize,
        visit: &mut dyn FnMut(usize, &str, PathRule, &str),
    ) -> Result<(), ScanError> {
        utf8(text)?;
        let mut fields = Vec::with_capacity(self.columns.len());
        let mut at = start;
        while at < text.len() {
            at = read_record(text, at, self.delimiter, &mut fields)?;
            for ((index, column), field) in self.columns.iter().enumerate().zip(&fields) {
                if !field.span.is_empty() {
                    visit(
                        index,
                        &column.name,
                        column.verdict,
                        &field_text(text, field),
                    );
                }
            }
        }
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the state of one scan, borrowed apart"
    )]
    fn add_field(
        &self,
        text: &[u8],
        column: &Column,
        field: &Field,
        fields: &[Field],
        plan: &Plan,
        running_report: &RunningReport,
        batch: &mut Batch,
        unknown: &mut Unknown,
    ) -> Result<(), ScanError> {
        if field.span.is_empty() {
            batch.counts.add_nulls(column.kept, 1);
            return Ok(());
        }
        let (rule, label) = match column.verdict {
            PathRule::Mask(rule, label) => (rule, label),
            PathRule::None if plan.has_kinds() => match plan.kind_rule(&field_text(text, field)) {
                Some(rule) if plan.keeps(rule) => {
                    batch.counts.add_kept(column.kept, 1);
                    return Ok(());
                }
                Some(rule) => (
                    rule,
                    running_report.label(plan.field(
                        column.name.clone(),
                        Some(rule),
                        plan.kind_name(rule),
                    )),
                ),
                None if plan.rejects_unknown() => {
                    unknown.add(field.span.start, column.name.clone());
                    return Ok(());
                }
                None => {
                    batch.counts.add_kept(column.kept, 1);
                    return Ok(());
                }
            },
            PathRule::None | PathRule::Keep => {
                batch.counts.add_kept(column.kept, 1);
                return Ok(());
            }
        };
        let subject = column.subject.and_then(|at| fields.get(at)).map(|subject| {
            let mut out = missing_subject();
            if !subject.span.is_empty() {
                out.clear();
                write::str(&mut out, &field_text(text, subject));
            }
            out
        });
        let value = field_text(text, field);
        let found = FoundValue {
            span: field.span.clone(),
            rule,
            label,
            form: Form::Csv {
                quoted: field.quoted,
            },
        };
        batch.push(found, subject.as_deref(), |out| {
            write::str(out, &value);
            Ok(())
        })
    }
}

/// Returns the delimiter that a header seems to have, if it differs from `delimiter`.
fn delimiter_of(names: &[String], delimiter: u8) -> Option<char> {
    let [name] = names else { return None };
    [';', '\t', '|', ',']
        .into_iter()
        .find(|other| *other != char::from(delimiter) && name.contains(*other))
}

fn delimiter_hint(delimiter: char) -> String {
    let argument = if delimiter == '\t' {
        "$'\\t'".to_owned()
    } else {
        format!("'{delimiter}'")
    };
    format!("; if its fields are separated by this character, say --delimiter {argument}")
}

/// Returns an error if the text begins with Excel's line for the delimiter, such as `sep=;`.
fn separator_line(text: &[u8], start: usize, delimiter: u8) -> Option<ScanError> {
    let line = text.get(start..)?.split(|byte| *byte == b'\n').next()?;
    let stated = match line.strip_suffix(b"\r").unwrap_or(line) {
        [b's', b'e', b'p', b'=', stated] if stated.is_ascii() => char::from(*stated),
        _ => return None,
    };
    let hint = if stated == char::from(delimiter) {
        String::new()
    } else {
        delimiter_hint(stated)
    };
    Some(ScanError::new(
        start,
        format!("a line of Excel that states the separator: remove the line{hint}"),
    ))
}

/// Reads one record's fields. Returns the offset after the line end.
fn read_record(
    text: &[u8],
    mut at: usize,
    delimiter: u8,
    fields: &mut Vec<Field>,
) -> Result<usize, ScanError> {
    fields.clear();
    loop {
        let start = at;
        let quoted = text.get(at) == Some(&b'"');
        if quoted {
            at = behind_quotes(text, at)?;
        } else {
            at += text[at..]
                .iter()
                .position(|byte| *byte == delimiter || matches!(byte, b'\n' | b'\r' | b'"'))
                .unwrap_or(text.len() - at);
        }
        fields.push(Field {
            span: start..at,
            quoted,
        });
        match text.get(at) {
            None => return Ok(at),
            Some(byte) if *byte == delimiter => at += 1,
            Some(b'\n') => return Ok(at + 1),
            Some(b'\r') if text.get(at + 1) == Some(&b'\n') => return Ok(at + 2),
            Some(b'\r') => {
                return Err(ScanError::new(
                    at,
                    "a carriage return without a newline, outside of quotes",
                ));
            }
            Some(b'"') => {
                return Err(ScanError::new(
                    at,
                    "a quote inside a field that does not begin with one",
                ));
            }
            Some(_) => {
                return Err(ScanError::new(
                    at,
                    "text behind the closing quote of a field",
                ));
            }
        }
    }
}

fn behind_quotes(text: &[u8], at: usize) -> Result<usize, ScanError> {
    let mut position = at + 1;
    loop {
        let quote = memchr::memchr(b'"', &text[position..])
            .ok_or_else(|| ScanError::new(at, "a quote without end"))?;
        position += quote + 1;
        if text.get(position) != Some(&b'"') {
            return Ok(position);
        }
        position += 1;
    }
}

/// Returns the text of a field.
fn field_text<'t>(text: &'t [u8], field: &Field) -> Cow<'t, str> {
    let raw = std::str::from_utf8(&text[field.span.clone()]).unwrap_or_default();
    if !field.quoted {
        return Cow::Borrowed(raw);
    }
    let inside = &raw[1..raw.len() - 1];
    if inside.contains('"') {
        Cow::Owned(inside.replace("\"\"", "\""))
    } else {
        Cow::Borrowed(inside)
    }
}

/// Appends a masked value as a field. The field is quoted if the original field was, or if the
/// content requires quotes. A null becomes an empty field. If the field is alone in its record, the
/// null becomes an empty text, since a blank line would not be a record.
pub(crate) fn write_field(
    token: Token<'_>,
    (quoted, is_alone): (bool, bool),
    delimiter: u8,
    out: &mut Vec<u8>,
) -> Option<()> {
    if token == Token::Nil {
        out.extend_from_slice(if is_alone { b"\"\"" } else { b"" });
        return Some(());
    }
    let start = out.len();
    batch::write_scalar(token, out)?;
    let has_special = out[start..]
        .iter()
        .any(|byte| *byte == delimiter || matches!(byte, b'"' | b'\n' | b'\r'));
    // An empty unquoted field would mean null.
    if quoted || out.len() == start || has_special {
        let text = out.split_off(start);
        out.push(b'"');
        for byte in text {
            if byte == b'"' {
                out.push(b'"');
            }
            out.push(byte);
        }
        out.push(b'"');
    }
    Some(())
}
