//! The values of one chunk for the engine, and the engine's masked values for the output text.

use std::ops::Range;

use sealwire_mask_rules::Column;
use sealwire_msgpack::{Token, TokenReader, write};

use crate::mask_job::engine::EngineError;
use crate::mask_job::limits::Limits;
use crate::mask_job::report::{Counts, Label};

/// A value that is to be masked.
#[derive(Clone, Debug)]
pub(crate) struct FoundValue {
    /// Position in the chunk, including quotes.
    pub(crate) span: Range<usize>,
    pub(crate) rule: usize,
    /// Path or column under which the value is counted.
    pub(crate) label: Label,
    pub(crate) form: Form,
}

/// The notation of a value. The masked value uses the same notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    /// A field of CSV.
    Csv {
        quoted: bool,
    },
    /// A field of COPY's text format.
    Copy {
        column: usize,
    },
}

/// The columns of one request to the engine.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) columns: Vec<Column>,
    values: usize,
    bytes: usize,
}

/// All values of a chunk that are to be masked, in the order of the text.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) parts: Vec<Part>,
    pub(crate) found: Vec<FoundValue>,
    /// Counts by label of values that were not masked.
    pub(crate) counts: Counts,
    pub(crate) records: u64,
    limits: Limits,
}

impl Batch {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            parts: Vec::new(),
            found: Vec::new(),
            counts: Counts::default(),
            records: 0,
            limits,
        }
    }

    /// Adds a value. `value` appends the value as one MessagePack scalar; `subject` is a
    /// MessagePack scalar too.
    pub(crate) fn push<E>(
        &mut self,
        found: FoundValue,
        subject: Option<&[u8]>,
        value: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let limits = self.limits;
        let is_full = |part: &Part| {
            part.values >= limits.batch_values_max || part.bytes >= limits.batch_bytes_max
        };
        if self.parts.last().is_none_or(is_full) {
            self.parts.push(Part::default());
        }
        let Some(part) = self.parts.last_mut() else {
            return Ok(());
        };
        let at = part
            .columns
            .iter()
            .position(|column| column.rule == found.rule)
            .unwrap_or_else(|| {
                part.columns.push(Column {
                    rule: found.rule,
                    ..Column::default()
                });
                part.columns.len() - 1
            });
        let column = &mut part.columns[at];
        let before = column.values.len();
        value(&mut column.values)?;
        column.count += 1;
        part.values += 1;
        part.bytes += column.values.len() - before;
        if let Some(subject) = subject {
            column
                .subjects
                .get_or_insert_default()
                .extend_from_slice(subject);
            part.bytes += subject.len();
        }
        self.found.push(found);
        Ok(())
    }
}

/// The masked values of all parts of a batch, by rule.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    rules: Vec<(usize, Vec<u8>)>,
}

impl Answers {
    /// Validates and adds the masked values of one part.
    pub(crate) fn take(
        &mut self,
        asked: &[(usize, usize)],
        answers: Vec<Vec<u8>>,
    ) -> Result<(), EngineError> {
        check_answers(asked, &answers)?;
        for (&(rule, _), answer) in asked.iter().zip(answers) {
            match self.rules.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, run)) => run.extend_from_slice(&answer),
                None => self.rules.push((rule, answer)),
            }
        }
        Ok(())
    }

    fn readers(&self) -> Vec<(usize, TokenReader<'_>)> {
        self.rules
            .iter()
            .map(|(rule, run)| (*rule, TokenReader::new(run)))
            .collect()
    }
}

/// Checks that an engine returned as many scalars for each column as were sent. `asked` contains
/// the rule and the number of values of each column.
pub(crate) fn check_answers(
    asked: &[(usize, usize)],
    answers: &[Vec<u8>],
) -> Result<(), EngineError> {
    let odd = || {
        EngineError::Failed(
            "the engine answered another number of values than were sent".to_owned(),
        )
    };
    if answers.len() != asked.len() {
        return Err(odd());
    }
    for (&(_, count), answer) in asked.iter().zip(answers) {
        let mut reader = TokenReader::new(answer);
        for _ in 0..count {
            match reader.token() {
                Ok(Token::Array(_) | Token::Map(_)) | Err(_) => return Err(odd()),
                Ok(_) => {}
            }
        }
        if !reader.is_at_end() {
            return Err(odd());
        }
    }
    Ok(())
}

/// Replaces the found values in `text` by the masked values; the rest is copied. `encode` appends
/// one masked value as text, or returns an error message.
pub(crate) fn splice(
    text: &[u8],
    found: &[FoundValue],
    answers: &Answers,
    counts: &mut Counts,
    mut encode: impl FnMut(&FoundValue, Token<'_>, &mut Vec<u8>) -> Result<(), String>,
) -> Result<Vec<u8>, (usize, String)> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 8);
    let mut readers = answers.readers();
    let mut copied_to = 0;
    for (at, value) in found.iter().enumerate() {
        out.extend_from_slice(&text[copied_to..value.span.start]);
        copied_to = value.span.end;
        let reader = readers.iter_mut().find(|(rule, _)| *rule == value.rule);
        let token = reader.and_then(|(_, reader)| reader.token().ok());
        let token = token.ok_or_else(|| (at, "the engine gave no answer".to_owned()))?;
        let start = out.len();
        encode(value, token, &mut out).map_err(|what| (at, what))?;
        let is_unchanged = out[start..] == text[value.span.clone()];
        counts.masked(value.label, is_unchanged);
    }
    out.extend_from_slice(&text[copied_to..]);
    Ok(out)
}

/// Appends a scalar as text without quoting. Returns `None` for types without a text form.
pub(crate) fn plain(token: Token<'_>, out: &mut Vec<u8>) -> Option<()> {
    use std::io::Write;
    // Writing to a Vec cannot fail.
    let _ = match token {
        Token::Uint(value) => write!(out, "{value}"),
        Token::Int(value) => write!(out, "{value}"),
        Token::Bool(value) => write!(out, "{value}"),
        Token::F64(value) if value.is_finite() => {
            sealwire_payload::json::write_float(value, out);
            Ok(())
        }
        Token::F32(value) if value.is_finite() => {
            sealwire_payload::json::write_float(value.into(), out);
            Ok(())
        }
        Token::Str(text) => {
            out.extend_from_slice(text);
            Ok(())
        }
        _ => return None,
    };
    Some(())
}

/// Returns nil, which stands for a missing subject.
pub(crate) fn absent() -> Vec<u8> {
    let mut out = Vec::new();
    write::nil(&mut out);
    out
}
