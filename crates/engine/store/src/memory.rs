//! In-memory stores for tests and benchmarks, without delays or failures.
//!
//! The content is lost when the process ends, so no `state.mode` of the engine uses this store.

mod control;
mod objects;
mod tokens;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use objects::Collections;
use tokens::Maps;

use crate::{MapId, Page};

/// Maximum number of rows or objects that are examined for one page of a list.
const LOOK_MAX: usize = 1_024;

/// An in-memory store. Clones share the content, as several engines share a database.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    control: control::Handle,
    maps: Arc<Mutex<Maps>>,
    objects: Arc<Mutex<Collections>>,
}

/// Examines at most `look` rows of a map, starting at `from`, and returns the first `limit` rows
/// that `wanted` accepts. `next` is the id of the last examined row if the map has more rows.
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
