//! In-memory stores for tests and benchmarks, without delays or failures.
//!
//! The content does not survive the process, so no mode of the engine uses this store.

mod control;
mod objects;
mod tokens;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use objects::Collections;
use tokens::Maps;

use crate::{MapId, Page};

/// Maximum number of rows or objects that one page of a list looks at.
const LOOK_MAX: usize = 1_024;

/// Holds all content until it is dropped. A clone is another handle on the shared state, like that
/// of another process.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    control: control::Handle,
    maps: Arc<Mutex<Maps>>,
    objects: Arc<Mutex<Collections>>,
}

/// Looks at up to `look` rows of a map, starting at `from`. Returns the first `limit` rows that
/// `wanted` accepts.
fn page<I: Copy + Ord, R: Clone>(
    rows: &BTreeMap<(MapId, I), R>,
    map: MapId,
    from: Bound<(MapId, I)>,
    (look, limit): (usize, usize),
    wanted: impl Fn(&R) -> bool,
) -> Page<Vec<R>, I> {
    let mut rows = rows
        .range((from, Bound::Unbounded))
        .take_while(|((at, _), _)| *at == map);
    let mut found = Vec::new();
    let mut last = None;
    for ((_, id), row) in rows.by_ref().take(look) {
        last = Some(*id);
        if wanted(row) {
            found.push(row.clone());
        }
        if found.len() >= limit {
            break;
        }
    }

    Page {
        found,
        next: rows.next().and(last),
    }
}

/// Counts equal values.
fn counted<K: Ord>(values: impl Iterator<Item = K>) -> BTreeMap<K, u64> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}
