//! What the engine stores for its clients: rows of tokens, and typed objects.
//!
//! Keys, formats, schemas, index terms and sealed values, without I/O, clock, async or logging.

pub mod objects;
pub mod token;
