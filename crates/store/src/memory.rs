//! In-memory stores for tests and benchmarks. They implement the contracts without delays or failures.
//!
//! The content does not survive the process, so no mode of the engine uses this store.

mod control;
mod tokens;

use std::sync::{Arc, Mutex};

use tokens::Maps;

/// Holds all content until it is dropped. A clone is another handle on the shared state, like that of another process.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    control: control::Handle,
    maps: Arc<Mutex<Maps>>,
}
