//! Objects and changes in files: one JSON object, an array of objects, or JSON lines.
//!
//! JSON lines are sent while they are read, so that a file can be larger than memory. Each item
//! keeps its place, because errors name the line.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use sealwire_msgpack::{TokenReader, write};
use sealwire_payload::json::JsonError;
use sealwire_payload::{WalkLimits, json};
use sealwire_wire::OBJECTS_MAX;

use crate::commands::Failure;

/// Bytes of items after which a request is sent. A request with a single item can be longer.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// The place of an item in its source. Lines are numbered from 1, elements from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemLocation {
    /// The whole file.
    Whole,
    /// An element of the file's array.
    Element(usize),
    /// A line.
    Line(usize),
    /// The name from an argument: an id, or a property of a clause.
    Name(String),
}

impl fmt::Display for ItemLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("$"),
            Self::Element(at) => write!(f, "$[{at}]"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl ItemLocation {
    /// Returns the place of a part of the item. `path` is the part's path in the item, such as
    /// `.email`, or empty.
    pub(super) fn part(&self, path: &str) -> String {
        match self {
            Self::Line(_) if !path.is_empty() => format!("{self}: ${path}"),
            _ => format!("{self}{path}"),
        }
    }
}

/// The items of one request, and their places.
pub(super) struct ItemBatch {
    /// The items as a MessagePack array.
    pub(super) payload: Vec<u8>,
    /// A place for each item.
    pub(super) places: Vec<ItemLocation>,
}

impl ItemBatch {
    /// Returns the text of a property of each item.
    ///
    /// # Errors
    /// The place of the first item without it.
    pub(super) fn texts(&self, property: &str) -> Result<Vec<String>, Failure> {
        let mut reader = TokenReader::new(&self.payload);
        reader.array_len()?;
        let texts = self.places.iter().map(|place| {
            let text = text_of(reader.value()?, property)?;
            text.ok_or_else(|| {
                Failure::from(format!(
                    "{place}: {property} must be a text, because --subject-from names it"
                ))
            })
        });
        texts.collect()
    }
}

/// Returns the text of a property of an object.
fn text_of(object: &[u8], property: &str) -> Result<Option<String>, Failure> {
    let mut reader = TokenReader::new(object);
    let Ok(pairs) = reader.map_len() else {
        return Ok(None);
    };
    for _ in 0..pairs {
        let name = reader.value()?;
        let value = reader.value()?;
        if TokenReader::new(name)
            .str_utf8()
            .is_ok_and(|name| name == property)
        {
            return Ok(TokenReader::new(value).str_utf8().ok().map(str::to_owned));
        }
    }
    Ok(None)
}

/// A MessagePack value and its place.
type Item = (ItemLocation, Vec<u8>);

/// Splits a source of items into requests.
pub(super) struct ItemBatches {
    items: Box<dyn Iterator<Item = Result<Item, Failure>>>,
    next: Option<Item>,
}

impl ItemBatches {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// The file cannot be read, or is neither JSON nor JSON lines.
    pub(super) fn open(file: &Path) -> Result<Self, Failure> {
        let reader: Box<dyn BufRead> = if file == Path::new("-") {
            Box::new(BufReader::new(std::io::stdin()))
        } else {
            Box::new(BufReader::new(
                File::open(file).map_err(|error| format!("{}: {error}", file.display()))?,
            ))
        };
        Self::from_reader(reader).map_err(|error| format!("{}: {error}", file.display()).into())
    }

    fn from_reader(mut reader: Box<dyn BufRead>) -> Result<Self, Failure> {
        let mut skipped = 0;
        let mut first = Vec::new();
        while reader.read_until(b'\n', &mut first)? > 0 && first.trim_ascii().is_empty() {
            first.clear();
            skipped += 1;
        }
        let is_array = first.trim_ascii_start().starts_with(b"[");
        // A syntax error in the first line can mean that the object continues in the next line.
        let error = match json::to_msgpack(first.trim_ascii_end(), document_limits()) {
            Err(error @ JsonError::Syntax(_)) if !first.is_empty() => Some(error),
            _ => None,
        };
        if is_array || error.is_some() {
            let mut text = vec![b'\n'; skipped];
            let start = first.len() + skipped;
            text.append(&mut first);
            reader.read_to_end(&mut text)?;
            let items = read_document(&text).map_err(|failure| match error {
                // Only JSON lines have a second line that starts with a brace.
                Some(error) if text[start..].trim_ascii_start().starts_with(b"{") => {
                    in_line(skipped + 1, &error)
                }
                _ => failure,
            })?;
            return Ok(Self {
                items: Box::new(items.into_iter().map(Ok)),
                next: None,
            });
        }
        Ok(Self {
            items: Box::new(Lines {
                first: Some(first),
                reader,
                line: skipped,
            }),
            next: None,
        })
    }

    fn next_item(&mut self) -> Option<Result<Item, Failure>> {
        self.next.take().map(Ok).or_else(|| self.items.next())
    }
}

impl Iterator for ItemBatches {
    type Item = Result<ItemBatch, Failure>;

    /// Returns the items of the next request. An invalid item fails its whole request.
    fn next(&mut self) -> Option<Self::Item> {
        let mut body = Vec::new();
        let mut places = Vec::new();
        while places.len() < OBJECTS_MAX {
            let (place, item) = match self.next_item() {
                None => break,
                Some(Ok(item)) => item,
                Some(Err(error)) => return Some(Err(error)),
            };
            if !places.is_empty() && body.len() + item.len() > BATCH_BYTES_MAX {
                self.next = Some((place, item));
                break;
            }
            body.extend_from_slice(&item);
            places.push(place);
        }
        let mut payload = Vec::with_capacity(body.len() + 5);
        write::array_len(
            &mut payload,
            u32::try_from(places.len()).unwrap_or(u32::MAX),
        );
        payload.append(&mut body);
        (!places.is_empty()).then_some(Ok(ItemBatch { payload, places }))
    }
}

fn document_limits() -> WalkLimits {
    WalkLimits {
        out_bytes_max: usize::MAX,
        ..WalkLimits::default()
    }
}

/// Reads a document: the elements of an array, or one value.
fn read_document(text: &[u8]) -> Result<Vec<Item>, Failure> {
    let value = json::to_msgpack(text, document_limits())?;
    let mut reader = TokenReader::new(&value);
    let Ok(count) = reader.array_len() else {
        return Ok(vec![(ItemLocation::Whole, value)]);
    };
    (0..count as usize)
        .map(|at| Ok((ItemLocation::Element(at), reader.value()?.to_vec())))
        .collect()
}

/// JSON lines. Empty lines are skipped.
struct Lines {
    first: Option<Vec<u8>>,
    reader: Box<dyn BufRead>,
    /// Lines read before.
    line: usize,
}

impl Iterator for Lines {
    type Item = Result<Item, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let text = match self.first.take() {
                Some(first) => first,
                None => {
                    let mut text = Vec::new();
                    match self.reader.read_until(b'\n', &mut text) {
                        Ok(_) => text,
                        Err(error) => return Some(Err(error.into())),
                    }
                }
            };
            if text.is_empty() {
                return None;
            }
            self.line += 1;
            if !text.trim_ascii().is_empty() {
                let place = ItemLocation::Line(self.line);
                let item = json::to_msgpack(text.trim_ascii_end(), document_limits());
                return Some(
                    item.map_err(|error| in_line(self.line, &error))
                        .map(|item| (place, item)),
                );
            }
        }
    }
}

/// Returns the error of an invalid line. The parser numbers lines from the start of its text, so
/// its line number is removed.
fn in_line(line: usize, error: &JsonError) -> Failure {
    let text = error.to_string();
    let text = text
        .strip_prefix("Parser error at line 1 ")
        .map_or(text.clone(), |rest| format!("at {rest}"));
    format!("line {line}: {text}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the places of all items and the number of batches, or the first error.
    fn read(text: &str) -> Result<(Vec<ItemLocation>, usize), String> {
        let batches = ItemBatches::from_reader(Box::new(std::io::Cursor::new(text.to_owned())))
            .map_err(|error| error.to_string())?;
        let batches: Result<Vec<ItemBatch>, Failure> = batches.collect();
        let batches = batches.map_err(|error| error.to_string())?;
        for batch in &batches {
            assert_eq!(
                TokenReader::new(&batch.payload).array_len().unwrap() as usize,
                batch.places.len()
            );
            assert_eq!(
                TokenReader::new(&batch.payload).value().unwrap().len(),
                batch.payload.len()
            );
        }
        let count = batches.len();
        Ok((
            batches.into_iter().flat_map(|batch| batch.places).collect(),
            count,
        ))
    }

    #[test]
    fn inputs_in_all_forms_are_read() {
        let lines = |lines: &[usize]| {
            lines
                .iter()
                .map(|line| ItemLocation::Line(*line))
                .collect::<Vec<_>>()
        };
        for (text, expected) in [
            ("", vec![]),
            ("\n\n", vec![]),
            ("[]", vec![]),
            ("{\n \"a\": 1\n}\n", vec![ItemLocation::Whole]),
            (
                "[{\"a\": 1},\n{}]",
                vec![ItemLocation::Element(0), ItemLocation::Element(1)],
            ),
            ("{\"a\": 1}", lines(&[1])),
            ("\n{\"a\": 1}\n\n  \n{}\r\n", lines(&[2, 5])),
            ("7\n8\n", lines(&[1, 2])),
        ] {
            let count = usize::from(!expected.is_empty());
            assert_eq!(read(text), Ok((expected, count)), "{text:?}");
        }
    }

    #[test]
    fn requests_are_bounded_by_count_and_bytes() {
        let many = "{\"a\":1}\n".repeat(1_200);
        let (places, batches) = read(&many).unwrap();
        assert_eq!(
            (places.len(), places[1_199].clone(), batches),
            (1_200, ItemLocation::Line(1_200), 3)
        );
        let long = format!("{{\"a\":\"{}\"}}\n", "x".repeat(5 << 20)).repeat(3);
        assert_eq!(read(&long).unwrap().1, 3);
        let array = format!("[{}]", ["{}"; 501].join(","));
        assert_eq!(read(&array).unwrap().1, 2);
    }

    #[test]
    fn a_property_names_the_subject_of_each_object() {
        let batch = |text: &str| {
            let mut batches =
                ItemBatches::from_reader(Box::new(std::io::Cursor::new(text.to_owned()))).unwrap();
            batches
                .next()
                .unwrap()
                .unwrap()
                .texts("email")
                .map_err(|error| error.to_string())
        };
        let lines = "{\"age\":1,\"email\":\"a@b\"}\n{\"email\":\"c@d\"}\n";
        assert_eq!(batch(lines), Ok(vec!["a@b".to_owned(), "c@d".to_owned()]));
        for wrong in [
            "{\"email\":\"a\"}\n{}",
            "{\"email\":\"a\"}\n{\"email\":1}",
            "{\"email\":\"a\"}\n[]",
        ] {
            let error = batch(wrong).unwrap_err();
            assert!(error.starts_with("line 2: email must be a text"), "{error}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        for (text, says) in [
            ("{}\n{\"a\":}\n", "line 2: at column"),
            (
                "{}\n\n{\"a\":1,\"a\":2}\n",
                "line 3: key at $.a occurs twice",
            ),
            ("{\"a\":1,\"a\":2}\n{}\n", "line 1: key at $.a occurs twice"),
            ("{\"a\":\n{}\n", "line 1: at column"),
            ("\n{\"a\":\n", "line 3"),
            ("[{}", "line 1"),
            ("{}\n{} {}\n", "line 2"),
            ("nothing", "line 1"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_part_is_named_by_its_place() {
        for (place, path, expected) in [
            (ItemLocation::Whole, ".email", "$.email"),
            (ItemLocation::Element(2), "", "$[2]"),
            (ItemLocation::Element(2), ".set.age", "$[2].set.age"),
            (ItemLocation::Line(7), ".email", "line 7: $.email"),
            (ItemLocation::Line(7), "", "line 7"),
            (ItemLocation::Name("x".to_owned()), "", "x"),
        ] {
            assert_eq!(place.part(path), expected);
        }
    }
}
