//! Subjects: values in the same map that the masking of a field depends on, such as `customer_id` for `born`.
//!
//! A walk visits one field at a time. On the first request for a map, the module searches the first
//! [`SUBJECT_BYTES_MAX`] bytes of the map for the key. The result is remembered, so there is one search per map and
//! rule, regardless of the number of fields.

use sealwire_payload::Path;

use crate::Value;
use crate::limits::SUBJECT_BYTES_MAX;

#[cfg(test)]
thread_local! {
    /// Number of maps that this thread has searched.
    pub(crate) static SEARCHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Search results by depth and rule. The fields of one map are visited together, apart from those of nested maps.
#[derive(Debug)]
pub(crate) struct Subjects {
    /// Number of rules that have a subject.
    askers: usize,
    found: Vec<Option<FoundSubject>>,
}

#[derive(Clone, Copy, Debug)]
struct FoundSubject {
    /// Offset of the map in the document.
    map: usize,
    /// Offset of the value, or `None` if the key is missing.
    value: Option<usize>,
}

impl Subjects {
    /// Creates an empty set of results for `askers` rules that have a subject.
    pub(crate) fn new(askers: usize) -> Self {
        Self { askers, found: Vec::new() }
    }

    /// Returns the value under `key` in the map of the field at `path`, for the rule with index `asker`. Returns `None`
    /// if the field is in no map, or if the key is missing or too far from the map's start. A container as value also
    /// gives `None`.
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
            FoundSubject { map: map.start(), value: map.find(key, SUBJECT_BYTES_MAX) }
        });
        self.found[slot] = Some(found);
        Value::read(map.bytes_from(found.value?))
    }
}
