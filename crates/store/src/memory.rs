//! Everything in memory, for tests and benches: the rules of the contracts without anything that could be slow or fail.
//!
//! Nothing survives the process, so no mode of the engine uses it.

mod tokens;

use std::sync::Mutex;

use tokens::Maps;

/// Holds all it is given until it is dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    maps: Mutex<Maps>,
}
