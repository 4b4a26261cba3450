//! What waits, by app, and whose turn it is.
//!
//! Deficit round robin: an app's turn is worth a quantum of weight, and what it cannot spend it keeps for its next turn.
//! So an app with a thousand calls waiting delays the one call of another by a quantum, not by a thousand.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Where something waits, to take it out again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    app: u32,
    number: u64,
}

#[derive(Debug)]
pub(super) struct Ring<T> {
    /// Of the apps in `turns`, each once; one may have become empty meanwhile.
    queues: HashMap<u32, Queue<T>>,
    turns: VecDeque<u32>,
    quantum: usize,
    numbers: u64,
    waiting: usize,
    weight: usize,
}

#[derive(Debug)]
struct Queue<T> {
    credit: usize,
    /// By arrival, with their weights.
    waiting: BTreeMap<u64, (usize, T)>,
}

impl<T> Ring<T> {
    pub(super) fn new(quantum: usize) -> Self {
        Self { queues: HashMap::new(), turns: VecDeque::new(), quantum, numbers: 0, waiting: 0, weight: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Of all that waits.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn push(&mut self, app: u32, weight: usize, item: T) -> Place {
        let number = self.numbers;
        self.numbers += 1;
        self.waiting += 1;
        self.weight += weight;
        let queue = self.queues.entry(app).or_insert_with(|| {
            self.turns.push_back(app);
            Queue { credit: 0, waiting: BTreeMap::new() }
        });
        queue.waiting.insert(number, (weight, item));
        Place { app, number }
    }

    /// Takes something out that nobody waits for any more, if it is still there.
    pub(super) fn remove(&mut self, place: Place) -> Option<T> {
        let (weight, item) = self.queues.get_mut(&place.app)?.waiting.remove(&place.number)?;
        self.waiting -= 1;
        self.weight -= weight;
        Some(item)
    }

    /// Takes what goes together: up to `limit` of weight, but one at least if there is any.
    pub(super) fn take(&mut self, limit: usize) -> Vec<T> {
        let (mut taken, mut weights) = (Vec::new(), 0_usize);
        while let Some(app) = self.turns.pop_front() {
            let Some(queue) = self.queues.get_mut(&app) else { continue };
            queue.credit = queue.credit.saturating_add(self.quantum);
            let (before, mut full) = (taken.len(), false);
            while let Some(first) = queue.waiting.first_entry() {
                let weight = first.get().0;
                full = !taken.is_empty() && weights + weight > limit;
                if full || weight > queue.credit {
                    break;
                }
                queue.credit -= weight;
                weights += weight;
                taken.push(first.remove().1);
            }
            if queue.waiting.is_empty() {
                self.queues.remove(&app);
            } else if full && taken.len() == before {
                // Its turn comes first the next time, so that what does not fit is not overtaken for ever.
                queue.credit = queue.credit.saturating_sub(self.quantum);
                self.turns.push_front(app);
            } else {
                self.turns.push_back(app);
            }
            if full {
                break;
            }
        }
        self.waiting -= taken.len();
        self.weight -= weights;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(waiting: &[(u32, &[usize])], quantum: usize) -> Ring<(u32, usize)> {
        let mut ring = Ring::new(quantum);
        for (app, weights) in waiting {
            for weight in *weights {
                ring.push(*app, *weight, (*app, *weight));
            }
        }
        ring
    }

    #[test]
    fn turns_go_round_by_weight() {
        type Waits<'a> = &'a [(u32, &'a [usize])];
        type Batch<'a> = &'a [(u32, usize)];
        let cases: [(Waits, usize, &[Batch]); 7] = [
            (&[], 8, &[&[]]),
            (&[(1, &[1, 1, 1])], 8, &[&[(1, 1), (1, 1), (1, 1)], &[]]),
            // What does not fit goes next, before what came later.
            (&[(1, &[6, 6, 1])], 8, &[&[(1, 6)], &[(1, 6), (1, 1)], &[]]),
            // One that is larger than all goes alone.
            (&[(1, &[50, 1]), (2, &[1])], 8, &[&[(2, 1)], &[(1, 50)], &[(1, 1)]]),
            // Two to a turn: the single one is third.
            (
                &[(1, &[1; 9]), (2, &[1])],
                8,
                &[&[(1, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)], &[(1, 1), (1, 1)]],
            ),
            // By weight, not by number.
            (&[(1, &[2; 4]), (2, &[1; 4])], 100, &[&[(1, 2), (2, 1), (2, 1), (1, 2), (2, 1), (2, 1), (1, 2), (1, 2)]]),
            (&[(1, &[3; 2]), (2, &[1; 5])], 100, &[&[(2, 1), (2, 1), (1, 3), (2, 1), (2, 1), (1, 3), (2, 1)]]),
        ];
        for (waiting, limit, batches) in cases {
            let mut ring = ring(waiting, 2);
            for batch in batches {
                assert_eq!(ring.take(limit), *batch, "{waiting:?}");
            }
            assert!(ring.is_empty());
        }
    }

    #[test]
    fn without_bound_to_a_turn_apps_alternate() {
        let mut ring = ring(&[(1, &[50, 60]), (2, &[70, 80])], usize::MAX);
        for expected in [(1, 50), (2, 70), (1, 60), (2, 80)] {
            assert_eq!(ring.take(8), [expected]);
        }
    }

    #[test]
    fn what_is_taken_out_is_not_taken_and_costs_no_turn() {
        let mut ring = Ring::new(2);
        let places: Vec<Place> = (0..4).map(|n| ring.push(n % 2, 1, n)).collect();
        assert_eq!(ring.remove(places[0]), Some(0));
        assert_eq!(ring.remove(places[0]), None);
        assert_eq!(ring.remove(places[2]), Some(2));
        ring.push(0, 1, 9);
        assert_eq!(ring.take(8), [9, 1, 3]);
        assert_eq!(ring.remove(places[1]), None);
        assert!(ring.is_empty() && ring.take(8).is_empty());
    }
}
