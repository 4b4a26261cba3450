//! A table of hashes with bounded size. A pass covers the range of hashes that fits; further passes
//! cover the rest.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Entries with hashes from `low` to `high`, both inclusive.
#[derive(Debug)]
pub(crate) struct TextWindow<V> {
    entries: HashMap<u64, V, BuildHasherDefault<IdentityHasher>>,
    entries_max: usize,
    low: u64,
    high: u64,
    is_over: bool,
}

impl<V> TextWindow<V> {
    pub(crate) fn new(entries_max: usize) -> Self {
        let entries_max = entries_max.max(1);
        Self {
            entries: HashMap::default(),
            entries_max,
            low: 0,
            high: u64::MAX,
            is_over: false,
        }
    }

    /// Returns the entry of a hash and inserts `new_entry` if it is missing. Returns `None` if
    /// another pass covers the hash.
    pub(crate) fn entry(&mut self, hash: u64, new_entry: V) -> Option<&mut V> {
        if !self.covers(hash) {
            return None;
        }
        while self.entries.len() >= self.entries_max && !self.entries.contains_key(&hash) {
            // A later pass counts the dropped half again from the start.
            self.high = self.low + (self.high - self.low) / 2;
            let high = self.high;
            self.entries.retain(|hash, _| *hash <= high);
            if !self.covers(hash) {
                return None;
            }
        }
        Some(self.entries.entry(hash).or_insert(new_entry))
    }

    pub(crate) fn find(&mut self, hash: u64) -> Option<&mut V> {
        self.entries.get_mut(&hash)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values()
    }

    /// Moves to the next range of hashes. Returns `false` if all hashes have been covered.
    pub(crate) fn advance(&mut self) -> bool {
        self.entries.clear();
        match self.high.checked_add(1) {
            Some(low) if !self.is_over => {
                let width = self.high - self.low;
                // The next range has the width that fitted in this pass, so that few hashes are
                // counted and then dropped.
                (self.low, self.high) = (low, low.saturating_add(width));
                true
            }
            _ => {
                self.is_over = true;
                false
            }
        }
    }

    fn covers(&self, hash: u64) -> bool {
        !self.is_over && (self.low..=self.high).contains(&hash)
    }
}

/// A hasher for keys that are already hashes.
#[derive(Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        // The map also uses the top bits, which are equal within a narrow range, so the bits are
        // mixed.
        self.0 = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_every_hash_exactly_once() {
        let hashes: Vec<u64> = (0..1_000_u64)
            .map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        for entries_max in [1, 7, 100, 999, 1_000, 5_000] {
            let mut window = TextWindow::new(entries_max);
            let mut counted = HashMap::new();
            let mut passes = 0;
            loop {
                for hash in hashes.iter().chain(&hashes) {
                    if let Some(entry) = window.entry(*hash, (*hash, 0)) {
                        entry.1 += 1;
                    }
                }
                assert!(window.entries.len() <= entries_max);
                for (hash, count) in window.values() {
                    assert_eq!(*count, 2);
                    assert_eq!(counted.insert(*hash, passes), None);
                }
                passes += 1;
                if !window.advance() {
                    break;
                }
            }
            assert_eq!(counted.len(), hashes.len(), "{entries_max}");
            assert!(entries_max < hashes.len() || passes == 1);
        }
    }
}
