//! A binary heap from which any member can be removed, and which allocates only to grow.
//!
//! A B-tree could do this too. But members leave at its front and return at its end, so it allocates
//! and frees nodes all the time: once in four slices with twenty tenants.

use crate::arena::Id;

/// Positions of members, by slot. Heaps can share an index if no member is in two of them.
#[derive(Debug, Default)]
pub(crate) struct HeapIndex(Vec<u32>);

/// Members ordered by key, and by age if keys are equal.
#[derive(Debug, Default)]
pub(crate) struct IndexedHeap(Vec<(u64, Id)>);

impl IndexedHeap {
    pub(crate) fn first(&self) -> Option<(u64, Id)> {
        self.0.first().copied()
    }

    pub(crate) fn insert(&mut self, places: &mut HeapIndex, key: u64, id: Id) {
        if places.0.len() <= id.slot() {
            places.0.resize(id.slot() + 1, 0);
        }
        self.0.push((key, id));
        self.rise(places, self.0.len() - 1);
    }

    /// Removes a member.
    pub(crate) fn remove(&mut self, places: &mut HeapIndex, id: Id) {
        let at = places.0[id.slot()] as usize;
        let (_, removed) = self.0.swap_remove(at);
        debug_assert_eq!(removed, id, "places are those of this heap");
        if at < self.0.len() {
            let at = self.rise(places, at);
            self.sink(places, at);
        }
    }

    /// Moves a member towards the front while its parent is greater. Returns its new position.
    fn rise(&mut self, places: &mut HeapIndex, mut at: usize) -> usize {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.0[parent] <= self.0[at] {
                break;
            }
            self.0.swap(parent, at);
            self.note(places, at);
            at = parent;
        }
        self.note(places, at);
        at
    }

    /// Returns the smaller child of a member, if it has any.
    fn smaller_child(&self, at: usize) -> Option<usize> {
        [2 * at + 1, 2 * at + 2]
            .into_iter()
            .filter(|child| *child < self.0.len())
            .min_by_key(|child| self.0[*child])
    }

    fn sink(&mut self, places: &mut HeapIndex, mut at: usize) {
        while let Some(first) = self.smaller_child(at) {
            if self.0[at] <= self.0[first] {
                break;
            }
            self.0.swap(at, first);
            self.note(places, at);
            at = first;
        }
        self.note(places, at);
    }

    fn note(&self, places: &mut HeapIndex, at: usize) {
        places.0[self.0[at].1.slot()] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::arena::Arena;

    proptest! {
        /// Against a B-tree: two heaps that share places, members that come, go from anywhere, and
        /// change heaps.
        #[test]
        fn the_first_is_the_least(
            ops in prop::collection::vec((any::<bool>(), 0..2_usize, 0..20_u64, any::<usize>()), 1..200),
        ) {
            let (mut places, mut heaps) = (HeapIndex::default(), [IndexedHeap::default(), IndexedHeap::default()]);
            let mut sets = [const { BTreeSet::new() }; 2];
            let (mut arena, mut members) = (Arena::new(), Vec::new());
            for (come, heap, key, which) in ops {
                if come || members.is_empty() {
                    let id = arena.insert(());
                    members.push((heap, key, id));
                    heaps[heap].insert(&mut places, key, id);
                    sets[heap].insert((key, id));
                } else {
                    let (from, key, id) = members.swap_remove(which % members.len());
                    heaps[from].remove(&mut places, id);
                    sets[from].remove(&(key, id));
                    arena.remove(id);
                }
                for (heap, set) in heaps.iter().zip(&sets) {
                    prop_assert_eq!(heap.first(), set.first().copied());
                }
            }
        }
    }
}
