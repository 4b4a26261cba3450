//! MessagePack tokens: converts bytes to scalars and container headers and back, without a tree.
//!
//! Built for the request path: [`TokenReader`] borrows from the input, and [`mod@write`] appends to
//! a `Vec<u8>`. Neither allocates per value. The crate has no document type and uses neither
//! serde nor recursion. A [`Token`] is only the head of a value: after `Array(n)`, the n values follow as tokens of
//! their own. Nesting therefore costs nothing, and the caller must limit the depth.

mod canonical;
mod read;
pub mod write;

pub use canonical::canonical;
pub use read::{Malformed, Token, TokenReader};
