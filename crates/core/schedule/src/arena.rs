//! An arena whose slots are reused and whose ids are not.

/// Id of a request. Ids are never reused, so the id of a closed request matches no other. Older
/// requests have smaller ids. Safe to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    // First, so that ids are ordered by age.
    sequence: u64,
    slot: u32,
}

impl Id {
    /// Returns the slot of the entry. Slots are reused, so that tables indexed by slot stay small.
    pub(crate) fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Entries by slot. Memory grows to the largest number of simultaneous entries.
pub(crate) struct Arena<E> {
    slots: Vec<(u64, Option<E>)>,
    free: Vec<u32>,
    next_sequence: u64,
}

impl<E> Arena<E> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            next_sequence: 0,
        }
    }

    pub(crate) fn insert(&mut self, entry: E) -> Id {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = (sequence, Some(entry));
            slot
        } else {
            self.slots.push((sequence, Some(entry)));
            u32::try_from(self.slots.len() - 1).expect("memory ends long before 2^32 entries")
        };
        Id { slot, sequence }
    }

    pub(crate) fn get(&self, id: Id) -> Option<&E> {
        match self.slots.get(id.slot as usize) {
            Some((sequence, entry)) if *sequence == id.sequence => entry.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut E> {
        match self.slots.get_mut(id.slot as usize) {
            Some((sequence, entry)) if *sequence == id.sequence => entry.as_mut(),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<E> {
        let (_, entry) = self
            .slots
            .get_mut(id.slot as usize)
            .filter(|(sequence, _)| *sequence == id.sequence)?;
        let entry = entry.take()?;
        self.free.push(id.slot);
        Some(entry)
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &E)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, (sequence, entry))| {
                let id = Id {
                    sequence: *sequence,
                    slot: slot as u32,
                };
                entry.as_ref().map(|entry| (id, entry))
            })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl<E> std::ops::Index<Id> for Arena<E> {
    type Output = E;

    fn index(&self, id: Id) -> &E {
        self.get(id)
            .expect("whoever keeps an id lets go of it before the entry goes")
    }
}

impl<E> std::ops::IndexMut<Id> for Arena<E> {
    fn index_mut(&mut self, id: Id) -> &mut E {
        self.get_mut(id)
            .expect("whoever keeps an id lets go of it before the entry goes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_ids_are_not() {
        let mut arena = Arena::new();
        let first = arena.insert('a');
        assert_eq!(
            (arena.remove(first), arena.remove(first)),
            (Some('a'), None)
        );
        let second = arena.insert('b');
        assert_eq!(first.slot, second.slot);
        assert_eq!(
            (arena.get(first), arena.get(second), arena.len()),
            (None, Some(&'b'), 1)
        );
        assert!(
            arena.get_mut(first).is_none() && arena.remove(first).is_none(),
            "an id of a removed entry matches nothing"
        );
    }
}
