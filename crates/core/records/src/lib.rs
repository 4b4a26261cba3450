//! The records that the engine stores for its clients: rows of tokens, and typed objects.
//!
//! This crate has keys, formats, schemas, index terms and sealed values, without I/O, clock, async
//! or logging.

pub mod objects;
pub mod token;
