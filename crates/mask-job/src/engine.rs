//! Who masks values: a job finds them and knows no key.
//!
//! [`payload`] and [`answers`] are the two halves of a call of the RPC `mask` with a batch of columns: the document
//! `[[v, v, ...], [v, ...]]` with one path per column, and what comes back.

use std::future::Future;

use sealwire_msgpack::{Token, TokenReader, write};
use thiserror::Error;

/// The key beside a subject in the map of two that stands for a value with its subject.
pub const VALUE_KEY: &str = "value";

/// Values that one rule masks, in the order they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Which rule of the job's rules.
    pub rule: usize,
    /// How many values.
    pub count: usize,
    /// That many MessagePack scalars, none of them nil, one after another.
    pub values: Vec<u8>,
    /// The values' subjects, as many, nil where there is none beside a value; `None` when the rule's function has none.
    pub subjects: Option<Vec<u8>>,
}

/// Why a batch was not masked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// The function does not fit one value.
    #[error("value {value} of column {column}: {why}")]
    Unfit {
        /// Index of the column in the batch.
        column: usize,
        /// Index of the value in it.
        value: usize,
        /// What the function takes instead; never the value.
        why: String,
    },
    /// The engine refused the call, or cannot be reached.
    #[error("{0}")]
    Failed(String),
}

/// Masks batches of values; an app's secret lives behind it.
pub trait Engine: Send + Sync + 'static {
    /// One MessagePack scalar for each value, in the same order: for each column a run of as many as it has values.
    /// Called for several batches at once. May be dropped midway: what was masked is then of no use to anybody.
    fn mask(&self, columns: Vec<Column>) -> impl Future<Output = Result<Vec<Vec<u8>>, EngineError>> + Send;
}

/// The document of a call with these columns, and for each column the path of its values in it. A value with a subject
/// stands in a map: `{SUBJECT: s, "value": v}`, with the key that `subject_key` gives for the column's rule.
pub fn payload<'r>(columns: &[Column], subject_key: impl Fn(usize) -> Option<&'r str>) -> (Vec<u8>, Vec<String>) {
    let bytes = columns.iter().map(|column| column.values.len() + 8).sum();
    let (mut out, mut paths) = (Vec::with_capacity(bytes), Vec::with_capacity(columns.len()));
    write::array_len(&mut out, columns.len() as u32);
    for (at, column) in columns.iter().enumerate() {
        write::array_len(&mut out, column.count as u32);
        match (&column.subjects, subject_key(column.rule)) {
            (Some(subjects), Some(key)) => {
                // A subject of the same name as the value's own key would make the map ambiguous.
                let own_key = value_key(key);
                let (mut values, mut subjects) = (TokenReader::new(&column.values), TokenReader::new(subjects));
                for _ in 0..column.count {
                    write::map_len(&mut out, 2);
                    write::str(&mut out, key);
                    out.extend_from_slice(subjects.value().unwrap_or(&[0xc0]));
                    write::str(&mut out, own_key);
                    out.extend_from_slice(values.value().unwrap_or(&[0xc0]));
                }
                paths.push(format!("$[{at}][*].{own_key}"));
            }
            _ => {
                out.extend_from_slice(&column.values);
                paths.push(format!("$[{at}][*]"));
            }
        }
    }
    (out, paths)
}

fn value_key(subject: &str) -> &'static str {
    if subject == VALUE_KEY { "masked" } else { VALUE_KEY }
}

/// The answers in the document that came back for these columns.
///
/// # Errors
/// [`EngineError::Failed`] when it has not the shape of what was sent.
pub fn answers(document: &[u8], columns: &[Column]) -> Result<Vec<Vec<u8>>, EngineError> {
    let odd = |_| EngineError::Failed("the engine's answer has not the shape of what was sent".to_owned());
    let mut reader = TokenReader::new(document);
    let mut all = Vec::with_capacity(columns.len());
    if reader.array_len().map_err(odd)? as usize != columns.len() {
        return Err(odd(sealwire_msgpack::Malformed::Truncated));
    }
    for column in columns {
        if reader.array_len().map_err(odd)? as usize != column.count {
            return Err(odd(sealwire_msgpack::Malformed::Truncated));
        }
        let mut out = Vec::with_capacity(column.values.len());
        for _ in 0..column.count {
            if let Token::Map(_) = reader.peek().map_err(odd)? {
                reader.map_len().map_err(odd)?;
                // The subject with its key, and the value's own key.
                for _ in 0..3 {
                    reader.skip_value().map_err(odd)?;
                }
            }
            out.extend_from_slice(reader.value().map_err(odd)?);
        }
        all.push(out);
    }
    Ok(all)
}

/// Which value of a batch a path such as `$[2][17]` or `$[2][17].value` of an engine's error names.
#[must_use]
pub fn place(path: &str) -> Option<(usize, usize)> {
    let (column, rest) = path.strip_prefix("$[")?.split_once("][")?;
    let (value, _) = rest.split_once(']')?;
    Some((column.parse().ok()?, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(rule: usize, values: &[&str], subjects: Option<&[&str]>) -> Column {
        let run = |texts: &[&str]| {
            let mut out = Vec::new();
            texts.iter().for_each(|text| write::str(&mut out, text));
            out
        };
        Column { rule, count: values.len(), values: run(values), subjects: subjects.map(run) }
    }

    #[test]
    fn a_call_keeps_the_order_of_columns_and_values() {
        let columns = [column(3, &["a", "b"], None), column(1, &["c"], Some(&["s"])), column(0, &[], None)];
        let (document, paths) = payload(&columns, |rule| (rule == 1).then_some("value"));
        assert_eq!(paths, ["$[0][*]", "$[1][*].masked", "$[2][*]"]);
        // An engine that masks nothing gives back what it got.
        let same: Vec<Vec<u8>> = columns.iter().map(|column| column.values.clone()).collect();
        assert_eq!(answers(&document, &columns), Ok(same));
    }

    #[test]
    fn an_answer_of_another_shape_is_refused() {
        let columns = [column(0, &["a", "b"], None)];
        let (document, _) = payload(&columns, |_| None);
        for wrong in [&document[..document.len() - 1], &[0x90], &[0x91, 0x91, 0x01], &[0xc0], &[]] {
            assert!(matches!(answers(wrong, &columns), Err(EngineError::Failed(_))), "{wrong:02x?}");
        }
    }

    #[test]
    fn places_are_read_from_paths() {
        for (path, expected) in [
            ("$[2][17]", Some((2, 17))),
            ("$[0][0].value", Some((0, 0))),
            ("$[1]", None),
            ("$.a[1][2]", None),
            ("$[x][2]", None),
        ] {
            assert_eq!(place(path), expected, "{path}");
        }
    }
}
