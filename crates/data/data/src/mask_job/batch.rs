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

impl Part {
    fn is_full(&self, limits: Limits) -> bool {
        self.values >= limits.batch_values_max || self.bytes >= limits.batch_bytes_max
    }
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
        if self.parts.last().is_none_or(|part| part.is_full(limits)) {
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
pub(crate) struct MaskedValues {
    rules: Vec<(usize, Vec<u8>)>,
}

impl MaskedValues {
    /// Validates and adds the masked values of one part.
    pub(crate) fn take(
        &mut self,
        sent: &[(usize, usize)],
        columns: Vec<Vec<u8>>,
    ) -> Result<(), EngineError> {
        check_masked(sent, &columns)?;
        for (&(rule, _), masked) in sent.iter().zip(columns) {
            match self.rules.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, run)) => run.extend_from_slice(&masked),
                None => self.rules.push((rule, masked)),
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

/// Checks that an engine returned as many scalars for each column as were sent. `sent` contains
/// the rule and the number of values of each column.
pub(crate) fn check_masked(
    sent: &[(usize, usize)],
    columns: &[Vec<u8>],
) -> Result<(), EngineError> {
    let is_complete = columns.len() == sent.len()
        && sent
            .iter()
            .zip(columns)
            .all(|((_, count), masked)| has_scalars(masked, *count));
    if is_complete {
        Ok(())
    } else {
        Err(EngineError::Failed(
            "the engine returned another number of values than were sent".to_owned(),
        ))
    }
}

/// Returns true if the bytes are exactly `count` MessagePack scalars.
fn has_scalars(bytes: &[u8], count: usize) -> bool {
    let mut reader = TokenReader::new(bytes);
    (0..count).all(|_| !matches!(reader.token(), Ok(Token::Array(_) | Token::Map(_)) | Err(_)))
        && reader.is_at_end()
}

/// Replaces the found values in `text` by the masked values; the rest is copied. `encode` appends
/// one masked value as text, or returns an error message.
pub(crate) fn splice(
    text: &[u8],
    found: &[FoundValue],
    masked: &MaskedValues,
    counts: &mut Counts,
    mut encode: impl FnMut(&FoundValue, Token<'_>, &mut Vec<u8>) -> Result<(), String>,
) -> Result<Vec<u8>, (usize, String)> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 8);
    let mut readers = masked.readers();
    let mut copied_to = 0;
    for (at, value) in found.iter().enumerate() {
        out.extend_from_slice(&text[copied_to..value.span.start]);
        copied_to = value.span.end;
        let reader = readers.iter_mut().find(|(rule, _)| *rule == value.rule);
        let token = reader.and_then(|(_, reader)| reader.token().ok());
        let token = token.ok_or_else(|| (at, "the engine returned no masked value".to_owned()))?;

        let start = out.len();
        encode(value, token, &mut out).map_err(|what| (at, what))?;
        let is_unchanged = out[start..] == text[value.span.clone()];
        counts.add_masked(value.label, is_unchanged);
    }
    out.extend_from_slice(&text[copied_to..]);
    Ok(out)
}

/// Appends a scalar as text without quoting. Returns `None` for types without a text form.
pub(crate) fn write_scalar(token: Token<'_>, out: &mut Vec<u8>) -> Option<()> {
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
pub(crate) fn missing_subject() -> Vec<u8> {
    let mut out = Vec::new();
    write::nil(&mut out);
    out
}
