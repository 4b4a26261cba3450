//! The form of a `mask` request for columns of values: the document `[[v, v, ...], [v, ...]]`, with
//! one path per column.
//!
//! [`payload`] encodes a batch of columns, and [`answers`] decodes the response.

use sealwire_msgpack::{Malformed, Token, TokenReader, write};

/// The value's key in the two-entry map of a value and its subject.
pub const VALUE_KEY: &str = "value";

/// The values that one rule masks, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Index of the rule in the job's rules.
    pub rule: usize,
    /// Number of values.
    pub count: usize,
    /// The values as consecutive MessagePack scalars without nil.
    pub values: Vec<u8>,
    /// The subjects of the values, one per value, nil if missing. `None` if the rule's function has
    /// no subject.
    pub subjects: Option<Vec<u8>>,
}

/// Encodes the document of a request with these columns, and the path of each column's values. A
/// value with a subject becomes a map: `{SUBJECT: s, "value": v}`. `subject_key` returns the
/// subject's key for a rule.
pub fn payload<'r>(
    columns: &[Column],
    subject_key: impl Fn(usize) -> Option<&'r str>,
) -> (Vec<u8>, Vec<String>) {
    let bytes = columns.iter().map(|column| column.values.len() + 8).sum();
    let mut out = Vec::with_capacity(bytes);
    let mut paths = Vec::with_capacity(columns.len());
    write::array_len(&mut out, columns.len() as u32);
    for (at, column) in columns.iter().enumerate() {
        write::array_len(&mut out, column.count as u32);
        match (&column.subjects, subject_key(column.rule)) {
            (Some(subjects), Some(key)) => {
                // The value's key must differ from the subject's key, or the map would be
                // ambiguous.
                let own_key = value_key(key);
                let mut values = TokenReader::new(&column.values);
                let mut subjects = TokenReader::new(subjects);
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
    if subject == VALUE_KEY {
        "masked"
    } else {
        VALUE_KEY
    }
}

/// Decodes the masked values from the response document for these columns.
///
/// # Errors
/// [`Malformed`] if the response does not have the form of the request.
pub fn answers(document: &[u8], columns: &[Column]) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut reader = TokenReader::new(document);
    let mut all = Vec::with_capacity(columns.len());
    if reader.array_len()? as usize != columns.len() {
        return Err(Malformed::Truncated);
    }

    for column in columns {
        if reader.array_len()? as usize != column.count {
            return Err(Malformed::Truncated);
        }
        let mut out = Vec::with_capacity(column.values.len());
        for _ in 0..column.count {
            if let Token::Map(_) = reader.peek()? {
                reader.map_len()?;
                // Skips the subject's key, the subject, and the value's key.
                for _ in 0..3 {
                    reader.skip_value()?;
                }
            }
            out.extend_from_slice(reader.value()?);
        }

        all.push(out);
    }

    Ok(all)
}

/// Parses a path in an engine's error, such as `$[2][17]` or `$[2][17].value`. Returns the indexes
/// of column and value.
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
        Column {
            rule,
            count: values.len(),
            values: run(values),
            subjects: subjects.map(run),
        }
    }

    #[test]
    fn a_call_keeps_the_order_of_columns_and_values() {
        let columns = [
            column(3, &["a", "b"], None),
            column(1, &["c"], Some(&["s"])),
            column(0, &[], None),
        ];
        let (document, paths) = payload(&columns, |rule| (rule == 1).then_some("value"));
        assert_eq!(paths, ["$[0][*]", "$[1][*].masked", "$[2][*]"]);
        // An engine that masks nothing returns its input.
        let same: Vec<Vec<u8>> = columns.iter().map(|column| column.values.clone()).collect();
        assert_eq!(answers(&document, &columns), Ok(same));
    }

    #[test]
    fn an_answer_of_another_shape_is_refused() {
        let columns = [column(0, &["a", "b"], None)];
        let (document, _) = payload(&columns, |_| None);
        for wrong in [
            &document[..document.len() - 1],
            &[0x90],
            &[0x91, 0x91, 0x01],
            &[0xc0],
            &[],
        ] {
            assert!(answers(wrong, &columns).is_err(), "{wrong:02x?}");
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
