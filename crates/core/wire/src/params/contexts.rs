//! The parameter `contexts`: a context for each item of a document.

use sealwire_msgpack::{Token, write};

use super::declare::Parameter;
use super::rule::{Form, Param};
use super::value::write_len;
use crate::invalid_request::InvalidRequest;
use crate::limits::{CONTEXT_BYTES_MAX, CONTEXTS_BYTES_MAX, NAME_BYTES_MAX, SELECT_PATH_BYTES_MAX};
use crate::reading::{Params, broken_rule, sanitized_name};

/// The key of the map form.
const PATH: &str = "path";

/// The contexts of the items of a document. The items are those of the payload if it is an array;
/// otherwise the payload is the one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contexts<'a> {
    /// The contexts of the items of an array, in order and as many: at most 10,000 of 1 to 4,096
    /// bytes, 262,144 bytes in all.
    Listed(Vec<&'a [u8]>),
    /// The path of each item's context in the item, by keys and indexes only: 1 to 1,024 bytes. The
    /// value there must be a string or an integer.
    Path(&'a str),
}

/// Contexts are read before the request is admitted, so the decoder checks every limit while it
/// reads them.
impl<'a> Parameter<'a> for Contexts<'a> {
    fn blank() -> Self {
        Self::Listed(Vec::new())
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        match params.reader.peek()? {
            Token::Map(_) => read_path(params, row).map(Self::Path),
            _ => {
                let count = params.list_len(row)?;
                let mut contexts = Vec::with_capacity(count);
                read_items(params, row, count, |context| contexts.push(context))?;
                Ok(Self::Listed(contexts))
            }
        }
    }

    fn write(&self, _: Form, out: &mut Vec<u8>) {
        match self {
            Self::Listed(contexts) => {
                write_len(out, contexts.len());
                contexts.iter().for_each(|context| write::bin(out, context));
            }
            Self::Path(path) => {
                write::map_len(out, 1);
                write::str(out, PATH);
                write::str(out, path);
            }
        }
    }
}

impl<'a> Contexts<'a> {
    /// Checks the value without keeping it.
    pub(crate) fn check(
        params: &mut Params<'a>,
        row: &'static Param,
    ) -> Result<(), InvalidRequest> {
        match params.reader.peek()? {
            Token::Map(_) => read_path(params, row).map(drop),
            _ => {
                let count = params.list_len(row)?;
                read_items(params, row, count, |_| ())
            }
        }
    }
}

/// Passes each context of a list to `keep`.
fn read_items<'a>(
    params: &mut Params<'a>,
    row: &'static Param,
    count: usize,
    mut keep: impl FnMut(&'a [u8]),
) -> Result<(), InvalidRequest> {
    let mut bytes_left = CONTEXTS_BYTES_MAX;
    for _ in 0..count {
        let context = params.bytes_within(row, 1..=CONTEXT_BYTES_MAX as u64)?;
        bytes_left = bytes_left
            .checked_sub(context.len())
            .ok_or(broken_rule(row))?;
        keep(context);
    }
    Ok(())
}

fn read_path<'a>(params: &mut Params<'a>, row: &'static Param) -> Result<&'a str, InvalidRequest> {
    let mut path = None;
    for _ in 0..params.map_len(row)? {
        let key = params.text(row, NAME_BYTES_MAX)?;
        if key != PATH {
            let key = sanitized_name(key.as_bytes());
            return Err(params.unknown_nested_key(format!("{}.{key}", row.name)));
        }
        let text = params.text(row, SELECT_PATH_BYTES_MAX)?;
        if text.is_empty() || path.replace(text).is_some() {
            return Err(broken_rule(row));
        }
    }
    path.ok_or(broken_rule(row))
}
