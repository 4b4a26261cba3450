//! Seeds, and the vectors of `proto/` from which many seeds are created.

use sealwire_payload::WalkLimits;
use sealwire_payload::json::to_msgpack;
use serde_json::Value;

/// An input that is committed for a target.
#[derive(Clone, Debug)]
pub struct Seed {
    /// The file's name.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
    /// True if the generator creates different bytes each time. The committed file is then only
    /// replaced if it is missing.
    pub is_random: bool,
}

impl Seed {
    /// Creates a seed from settings and the bytes after them.
    pub(crate) fn new(name: impl Into<String>, settings: &[u8], rest: impl AsRef<[u8]>) -> Self {
        Self {
            name: name.into(),
            bytes: [settings, rest.as_ref()].concat(),
            is_random: false,
        }
    }
}

/// Numbers seeds that have no names.
pub(crate) fn numbered<T: AsRef<[u8]>>(
    name: &str,
    settings: &[u8],
    all: impl IntoIterator<Item = T>,
) -> Vec<Seed> {
    all.into_iter()
        .zip(1..)
        .map(|(bytes, at)| Seed::new(format!("{name}-{at:02}"), settings, bytes))
        .collect()
}

/// Encodes JSON as MessagePack.
pub(crate) fn packed(json: &str) -> Vec<u8> {
    to_msgpack(json.as_bytes(), WalkLimits::default())
        .unwrap_or_else(|error| panic!("{json}: {error:?}"))
}

/// Reads a file of vectors: one JSON object per line.
pub(crate) fn vectors(lines: &str) -> Vec<Value> {
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("a vector is JSON"))
        .collect()
}

/// Returns a text field of a vector.
pub(crate) fn text<'v>(vector: &'v Value, key: &str) -> &'v str {
    vector[key].as_str().unwrap_or_default()
}

/// Decodes hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits"))
        .collect()
}

/// Decodes 32 bytes of hexadecimal digits.
pub(crate) fn key(text: &str) -> [u8; 32] {
    unhex(text).try_into().expect("32 bytes")
}

/// Lists words of a dictionary.
pub(crate) fn words<T: AsRef<[u8]>>(all: impl IntoIterator<Item = T>) -> Vec<Vec<u8>> {
    all.into_iter().map(|word| word.as_ref().to_vec()).collect()
}

/// Lists strings as MessagePack writes them.
pub(crate) fn packed_words<'w>(all: impl IntoIterator<Item = &'w str>) -> Vec<Vec<u8>> {
    all.into_iter()
        .map(|word| packed(&Value::from(word).to_string()))
        .collect()
}
