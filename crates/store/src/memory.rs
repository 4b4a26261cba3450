//! Everything in memory, for tests and benches: the rules of the contracts without anything that could be slow or fail.
//!
//! Nothing survives the process, so no mode of the engine uses it.

mod control;
mod tokens;

use std::sync::{Arc, Mutex};

use tokens::Maps;

/// Holds all it is given until it is dropped. A clone is another handle on the same state, as another process would have
/// one.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    control: control::Handle,
    maps: Arc<Mutex<Maps>>,
}
