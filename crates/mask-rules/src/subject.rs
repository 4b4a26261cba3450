//! Looks up subjects. The subject of a field is another value in the same map on which the mask of the field depends,
//! such as the value of `customer_id` for the field `born`.
//!
//! A walk visits one field of a document at a time. The first lookup in a map searches the first
//! [`SUBJECT_BYTES_MAX`] bytes of the map for the key. The result is cached, so there is one search per map and rule,
//! regardless of the number of fields.

use sealwire_payload::Path;

use crate::Value;
use crate::limits::SUBJECT_BYTES_MAX;

/// A cache of search results: one for each depth of nesting and each rule. That is enough, because a walk visits the
/// fields of a map together, and the fields of nested maps in between have another depth.
#[derive(Debug)]
pub struct Subjects {
    /// Number of rules that have a subject.
    rules: usize,
    /// Number of maps that were searched.
    searches: usize,
    cache: Vec<Option<FoundSubject>>,
}

#[derive(Clone, Copy, Debug)]
struct FoundSubject {
    /// Offset of the map in the document.
    map_start: usize,
    /// Offset of the value in the document. `None`: the key is missing.
    value_start: Option<usize>,
}

impl Subjects {
    /// Creates an empty cache for `rules` rules that have a subject.
    #[must_use]
    pub fn new(rules: usize) -> Self {
        Self { rules, searches: 0, cache: Vec::new() }
    }

    /// Returns the number of maps that were searched.
    #[must_use]
    pub fn searches(&self) -> usize {
        self.searches
    }

    /// Returns the value under `key` in the map of the field at `path`, for one rule. `rule` is the rule's index
    /// among the rules that have a subject. Returns `None` if the field is in no map, if the key is missing or too far
    /// from the map's start, or if the value is a container.
    pub fn find<'a>(&mut self, path: &Path<'a>, rule: usize, key: &str) -> Option<Value<'a>> {
        let map = path.enclosing_map()?;
        let slot = map.depth() * self.rules + rule;
        if self.cache.len() <= slot {
            self.cache.resize(slot + 1, None);
        }
        let cached = self.cache[slot].filter(|found| found.map_start == map.start());
        let found = cached.unwrap_or_else(|| {
            self.searches += 1;
            FoundSubject { map_start: map.start(), value_start: map.find(key, SUBJECT_BYTES_MAX) }
        });
        self.cache[slot] = Some(found);
        Value::read(map.bytes_from(found.value_start?))
    }
}
