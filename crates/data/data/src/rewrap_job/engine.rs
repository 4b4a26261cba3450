//! The interface to the engine, which rewraps values and has the keys.

use std::collections::HashMap;
use std::future::Future;

use sealwire_msgpack::{Token, TokenReader, write};
use thiserror::Error;

/// The encoding of the envelopes of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Strings, in columns of type text and varchar.
    Text,
    /// Bytes, in columns of type bytea.
    Binary,
}

/// A request that rewraps the values of a page. The engine must report values that do not open,
/// instead of failing.
#[derive(Clone, Copy)]
pub struct RewrapRequest<'a> {
    /// The app whose keys open and seal.
    pub app: &'a str,
    /// The context that the values are bound to.
    pub context: &'a [u8],
    /// The encoding of the new envelopes.
    pub encoding: Encoding,
    /// The envelopes, as a MessagePack array.
    pub payload: &'a [u8],
}

/// The result of a [`RewrapRequest`].
#[derive(Clone, Debug, Default)]
pub struct RewrapResponse {
    /// The document, a MessagePack array with as many elements as the request's.
    pub payload: Vec<u8>,
    /// Path and error code of each value that the engine left unchanged.
    pub errors: Vec<(String, String)>,
}

/// A reason why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// The request or its response is too long. The job divides the request and repeats it.
    #[error("the request is too large")]
    TooLarge,
    /// The engine rejected the request or is unreachable.
    #[error("{0}")]
    Failed(String),
}

/// Rewraps values with the keys of an app.
pub trait Engine: Sync {
    /// Carries out a request. Jobs call this concurrently. The future can be dropped; its results
    /// are then discarded.
    fn rewrap(
        &self,
        request: RewrapRequest<'_>,
    ) -> impl Future<Output = Result<RewrapResponse, EngineError>> + Send;
}

/// Encodes envelopes as the payload of a request.
pub(crate) fn encode_payload<'v>(
    values: impl ExactSizeIterator<Item = &'v [u8]>,
    encoding: Encoding,
) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(
        &mut out,
        u32::try_from(values.len()).expect("a page is short"),
    );
    for value in values {
        match encoding {
            Encoding::Text => write::str(&mut out, &String::from_utf8_lossy(value)),
            Encoding::Binary => write::bin(&mut out, value),
        }
    }
    out
}

/// Decodes the values of a response: each one is an envelope or an error code.
///
/// # Errors
/// [`EngineError::Failed`] if the response does not have `count` values of this encoding.
pub(crate) fn decode_values(
    response: &RewrapResponse,
    count: usize,
    encoding: Encoding,
) -> Result<Vec<Result<Vec<u8>, String>>, EngineError> {
    parse_response(response, count, encoding).ok_or_else(|| {
        EngineError::Failed("the response does not have the structure of the request".to_owned())
    })
}

fn parse_response(
    response: &RewrapResponse,
    count: usize,
    encoding: Encoding,
) -> Option<Vec<Result<Vec<u8>, String>>> {
    let mut codes = HashMap::new();
    for (path, code) in &response.errors {
        let at = position(path).filter(|at| *at < count)?;
        codes.insert(at, code);
    }

    let mut reader = TokenReader::new(&response.payload);
    if reader.array_len().ok()? as usize != count {
        return None;
    }
    let mut all = Vec::with_capacity(count);
    for at in 0..count {
        let token = reader.token().ok()?;
        all.push(match (codes.get(&at), encoding, token) {
            (Some(code), _, Token::Str(_) | Token::Bin(_)) => Err((*code).clone()),
            (None, Encoding::Text, Token::Str(bytes))
            | (None, Encoding::Binary, Token::Bin(bytes)) => Ok(bytes.to_vec()),
            _ => return None,
        });
    }
    Some(all)
}

/// Parses the path of an element, such as `$[17]`.
fn position(path: &str) -> Option<usize> {
    path.strip_prefix("$[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(texts: &[&str]) -> Vec<u8> {
        encode_payload(texts.iter().map(|text| text.as_bytes()), Encoding::Text)
    }

    #[test]
    fn a_response_is_read_by_position() {
        let errors = vec![("$[1]".to_owned(), "cannot_open".to_owned())];
        let response = RewrapResponse {
            payload: array(&["a", "b", "c"]),
            errors,
        };
        let read = decode_values(&response, 3, Encoding::Text);
        assert_eq!(
            read,
            Ok(vec![
                Ok(b"a".to_vec()),
                Err("cannot_open".to_owned()),
                Ok(b"c".to_vec())
            ])
        );
        let bytes = encode_payload([&b"\x01"[..]].into_iter(), Encoding::Binary);
        let response = RewrapResponse {
            payload: bytes,
            errors: Vec::new(),
        };
        assert_eq!(
            decode_values(&response, 1, Encoding::Binary),
            Ok(vec![Ok(vec![1])])
        );
    }

    #[test]
    fn a_response_of_another_structure_is_an_error() {
        for (payload, errors, encoding) in [
            (array(&["a"]), vec![], Encoding::Text),
            (array(&["a", "b", "c"]), vec![], Encoding::Text),
            (array(&["a", "b"]), vec![], Encoding::Binary),
            (array(&["a", "b"])[..3].to_vec(), vec![], Encoding::Text),
            (vec![0x92, 1, 2], vec![], Encoding::Text),
            (vec![0xc0], vec![], Encoding::Text),
            (vec![], vec![], Encoding::Text),
            (
                array(&["a", "b"]),
                vec![("$[2]".to_owned(), "cannot_open".to_owned())],
                Encoding::Text,
            ),
            (
                array(&["a", "b"]),
                vec![("$.a".to_owned(), "cannot_open".to_owned())],
                Encoding::Text,
            ),
        ] {
            let response = RewrapResponse { payload, errors };
            assert!(
                matches!(
                    decode_values(&response, 2, encoding),
                    Err(EngineError::Failed(_))
                ),
                "{response:?}"
            );
        }
    }
}
