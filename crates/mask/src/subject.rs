//! The value beside a field that its masking hangs on: `customer_id` beside `born`.
//!
//! A walk meets fields one by one, so the map around one is searched for the key when it is first asked for, from its
//! first byte to [`SUBJECT_BYTES_MAX`] at most, and the find is remembered for the map: one search for each map and
//! rule, however many of its fields ask.

use sealwire_payload::Path;

use crate::Value;
use crate::limits::SUBJECT_BYTES_MAX;

#[cfg(test)]
thread_local! {
    /// Maps that this thread has searched.
    pub(crate) static SEARCHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// What was found, by depth and rule: the fields of one map are met together, but for those of maps inside it.
#[derive(Debug)]
pub(crate) struct Subjects {
    /// Rules that ask.
    askers: usize,
    found: Vec<Option<Found>>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    /// Offset of the map in the document.
    map: usize,
    /// Offset of the value; `None`: the key is not there.
    value: Option<usize>,
}

impl Subjects {
    /// For rules of which `askers` ask.
    pub(crate) fn new(askers: usize) -> Self {
        Self { askers, found: Vec::new() }
    }

    /// The value under `key` beside the field at `path`, as the `asker`th rule asks for it. `None` where there is none:
    /// the field is in no map, the key is not in it or too far from its start, or a container stands there.
    pub(crate) fn find<'a>(&mut self, path: &Path<'a>, asker: usize, key: &str) -> Option<Value<'a>> {
        let map = path.enclosing_map()?;
        let slot = map.depth() * self.askers + asker;
        if self.found.len() <= slot {
            self.found.resize(slot + 1, None);
        }
        let remembered = self.found[slot].filter(|found| found.map == map.start());
        let found = remembered.unwrap_or_else(|| {
            #[cfg(test)]
            SEARCHES.set(SEARCHES.get() + 1);
            Found { map: map.start(), value: map.find(key, SUBJECT_BYTES_MAX) }
        });
        self.found[slot] = Some(found);
        Value::read(map.bytes_from(found.value?))
    }
}
