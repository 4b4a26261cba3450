//! JSON text to MessagePack and back, for the command line.
//!
//! Nothing changes on the way, or the conversion is refused with the path of what would have changed: a number whose
//! decimal value no 64-bit type holds, a key that occurs twice, binary, an extension, a key that is not a string, a
//! float that is not a number. Key order is kept. Integers stay integers and floats stay floats: `1` and `1.0` are
//! different values here, as they are to whoever decrypts them.

mod number;
mod read;
mod write;

use std::ops::Range;

use json_event_parser::JsonSyntaxError;
use sealwire_msgpack::Malformed;
use thiserror::Error;

pub use read::to_msgpack;
pub use write::from_msgpack;

/// Why a conversion was refused.
#[derive(Debug, Error)]
pub enum JsonError {
    /// Not JSON; the message says where. A half of a surrogate pair is not JSON either, for no string can hold it.
    #[error("{0}")]
    Syntax(String),
    /// A number that would change: neither a 64-bit integer nor the exact text of a 64-bit float.
    #[error("number {text} at {path} does not fit a 64-bit integer or float without changing")]
    InexactNumber {
        /// Where, as a select path.
        path: String,
        /// The number as written, cut after 40 bytes.
        text: String,
    },
    /// A key that its object already has.
    #[error("key at {path} occurs twice")]
    DuplicateKey {
        /// Where, as a select path.
        path: String,
    },
    /// Nested deeper than the limit.
    #[error("nested deeper than {depth_max} at {path}")]
    TooDeep {
        /// The container that is too deep, as a select path.
        path: String,
        /// The limit.
        depth_max: usize,
    },
    /// The result is longer than the limit.
    #[error("result longer than {out_bytes_max} bytes")]
    OutTooLarge {
        /// The limit.
        out_bytes_max: usize,
    },
    /// The bytes are not MessagePack.
    #[error("{source} at byte {at}")]
    Malformed {
        /// Offset of the first byte of the value that is wrong.
        at: usize,
        /// What is wrong with it.
        source: Malformed,
    },
    /// Bytes follow the document.
    #[error("a second value begins at byte {at}")]
    Trailing {
        /// Offset of the first byte behind the document.
        at: usize,
    },
    /// A value that JSON cannot hold.
    #[error("{what} at {path} has no JSON form")]
    NotJson {
        /// Where, as a select path.
        path: String,
        /// The kind of value with its article.
        what: &'static str,
    },
    /// The reader or writer failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl From<JsonSyntaxError> for JsonError {
    fn from(error: JsonSyntaxError) -> Self {
        Self::Syntax(error.to_string())
    }
}

/// One key that stands twice among `keys`, which are ranges of `bytes` and are left in another order.
fn repeated(bytes: &[u8], keys: &mut [Range<usize>]) -> Option<Range<usize>> {
    // Sorting when an object ends needs no set per object, and no keys can be chosen to make it slow.
    keys.sort_unstable_by(|a, b| bytes[a.clone()].cmp(&bytes[b.clone()]));
    let pair = keys.windows(2).find(|pair| bytes[pair[0].clone()] == bytes[pair[1].clone()])?;
    Some(pair[0].clone())
}
