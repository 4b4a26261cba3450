//! One container that a pass is inside of. A stack of them is the only memory of nesting, and the path in errors.

use sealwire_msgpack::Token;

use crate::select::States;

/// A container whose end is still to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Where each select path stands at this container.
    pub(crate) states: States,
    /// Offset of its first byte in the input.
    pub(crate) start: usize,
    /// Offset of the key whose value is being passed. Maps only.
    pub(crate) key_at: usize,
    /// Values still to be started; keys count too.
    pub(crate) remaining: u64,
    /// Count of values, or of pairs in a map.
    pub(crate) len: u32,
    pub(crate) is_map: bool,
    /// One field as a whole, to be handed over when it ends.
    pub(crate) is_whole: bool,
}

impl Frame {
    /// The container whose header `token`, an array or map, stands at `start`.
    pub(crate) fn new(token: Token<'_>, start: usize, states: States, is_whole: bool) -> Self {
        let (len, is_map) = match token {
            Token::Map(len) => (len, true),
            Token::Array(len) => (len, false),
            _ => (0, false),
        };
        Self { states, start, key_at: start, remaining: token.children(), len, is_map, is_whole }
    }

    /// Index of the value being passed; `None` in a map.
    #[inline]
    pub(crate) fn index(&self) -> Option<u32> {
        let started = u64::from(self.len).saturating_sub(self.remaining);
        // Never cut off: an array has at most `len` values.
        (!self.is_map).then(|| started.saturating_sub(1) as u32)
    }

    /// The header's token.
    pub(crate) const fn token(&self) -> Token<'static> {
        if self.is_map { Token::Map(self.len) } else { Token::Array(self.len) }
    }
}
