//! A container that a pass is inside of. The stack of frames is the only memory of nesting, and
//! yields the path in errors.

use sealwire_msgpack::Token;

use crate::select::States;

/// A container that has not ended yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The automaton states of the select paths at this container.
    pub(crate) states: States,
    /// Offset of the container's first byte in the input.
    pub(crate) start: usize,
    /// Offset of the key whose value is being processed. Maps only.
    pub(crate) key_start: usize,
    /// Number of values that have not started yet, including keys.
    pub(crate) remaining: u64,
    /// Number of values, or of pairs in a map.
    pub(crate) len: u32,
    pub(crate) is_map: bool,
    /// True if the container is one field, which is passed to the transform when the container
    /// ends.
    pub(crate) is_whole: bool,
}

impl Frame {
    /// Creates the frame of a container whose header `token`, an array or map, is at `start`.
    pub(crate) fn new(token: Token<'_>, start: usize, states: States, is_whole: bool) -> Self {
        let (len, is_map) = match token {
            Token::Map(len) => (len, true),
            Token::Array(len) => (len, false),
            _ => (0, false),
        };
        Self {
            states,
            start,
            key_start: start,
            remaining: token.children(),
            len,
            is_map,
            is_whole,
        }
    }

    /// Returns the index of the value being processed; `None` in a map.
    #[inline]
    pub(crate) fn index(&self) -> Option<u32> {
        let started = u64::from(self.len).saturating_sub(self.remaining);
        // The cast never truncates: an array has at most `len` values.
        (!self.is_map).then(|| started.saturating_sub(1) as u32)
    }

    /// Returns the token of the header.
    pub(crate) const fn token(&self) -> Token<'static> {
        if self.is_map {
            Token::Map(self.len)
        } else {
            Token::Array(self.len)
        }
    }
}
