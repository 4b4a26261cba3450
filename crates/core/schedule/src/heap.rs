//! A binary heap whose members can be taken out wherever they are, and which allocates only to
//! grow.
//!
//! A B-tree does as much, but as members leave at its front and come back at its end it makes and
//! frees nodes all the time: once in four slices with twenty tenants.

use crate::arena::Id;

/// Where members are, by slot. Heaps share one where nobody is a member of two.
#[derive(Debug, Default)]
pub(crate) struct HeapIndex(Vec<u32>);

/// Members by key, and by age where keys are equal.
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

    /// Takes out a member.
    pub(crate) fn remove(&mut self, places: &mut HeapIndex, id: Id) {
        let at = places.0[id.slot()] as usize;
        let (_, removed) = self.0.swap_remove(at);
        debug_assert_eq!(removed, id, "places are those of this heap");
        if at < self.0.len() {
            let at = self.rise(places, at);
            self.sink(places, at);
        }
    }

    /// Moves a member towards the front for as long as it goes before who is there. Returns where
    /// it is then.
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

    fn sink(&mut self, places: &mut HeapIndex, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let Some(first) = [left, right]
                .into_iter()
                .filter(|child| *child < self.0.len())
                .min_by_key(|c| self.0[*c])
            else {
                break;
            };
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
