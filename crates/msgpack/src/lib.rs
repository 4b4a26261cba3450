//! MessagePack tokens: bytes to scalars and container headers and back, without a tree.
//!
//! Built for the request path: [`TokenReader`] borrows from the input and [`mod@write`] appends to a `Vec<u8>`; neither
//! allocates per value. It refuses to hold a document: no value type, no serde, no recursion anywhere.
//! A [`Token`] is only the head of a value: after `Array(n)` the n values follow as tokens of their own, so nesting
//! costs nothing and limiting the depth is the caller's business.

mod canonical;
mod read;
pub mod write;

pub use canonical::canonical;
pub use read::{Malformed, Token, TokenReader};
