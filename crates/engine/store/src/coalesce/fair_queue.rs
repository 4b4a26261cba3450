//! A queue that serves apps by deficit round-robin.
//!
//! In each round an app gets a quantum of weight, and keeps unused weight for its next round. An
//! app with a thousand queued requests therefore delays another app's single request by a quantum,
//! not by a thousand requests.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Key of a queued item, used to remove the item.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSlot {
    app: u32,
    number: u64,
}

#[derive(Debug)]
pub(super) struct Ring<T> {
    /// Queues of the apps in `turns`. Each app is in `turns` once. A queue can become empty through
    /// removals.
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
    /// Items with their weights, by arrival.
    waiting: BTreeMap<u64, (usize, T)>,
}

impl<T> Ring<T> {
    pub(super) fn new(quantum: usize) -> Self {
        Self {
            queues: HashMap::new(),
            turns: VecDeque::new(),
            quantum,
            numbers: 0,
            waiting: 0,
            weight: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns the total weight of all queued items.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn push(&mut self, app: u32, weight: usize, item: T) -> QueueSlot {
        let number = self.numbers;
        self.numbers += 1;
        self.waiting += 1;
        self.weight += weight;
        let queue = self.queues.entry(app).or_insert_with(|| {
            self.turns.push_back(app);
            Queue {
                credit: 0,
                waiting: BTreeMap::new(),
            }
        });
        queue.waiting.insert(number, (weight, item));
        QueueSlot { app, number }
    }

    /// Removes a cancelled item, if it is still queued.
    pub(super) fn remove(&mut self, place: QueueSlot) -> Option<T> {
        let (weight, item) = self
            .queues
            .get_mut(&place.app)?
            .waiting
            .remove(&place.number)?;
        self.waiting -= 1;
        self.weight -= weight;
        Some(item)
    }

    /// Takes the items of the next batch: up to `limit` of weight, but at least one item if the
    /// queue is not empty.
    pub(super) fn take(&mut self, limit: usize) -> Vec<T> {
        let mut taken = Vec::new();
        let mut weights = 0_usize;
        while let Some(app) = self.turns.pop_front() {
            let Some(queue) = self.queues.get_mut(&app) else {
                continue;
            };
            queue.credit = queue.credit.saturating_add(self.quantum);
            let before = taken.len();
            let mut full = false;
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
                // The app is first in the next batch, so that an item that does not fit is not
                // overtaken forever.
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
        type TenantWaits<'a> = &'a [(u32, &'a [usize])];
        type Batch<'a> = &'a [(u32, usize)];
        let cases: [(TenantWaits, usize, &[Batch]); 7] = [
            (&[], 8, &[&[]]),
            (&[(1, &[1, 1, 1])], 8, &[&[(1, 1), (1, 1), (1, 1)], &[]]),
            // An item that does not fit is in the next batch, ahead of later items.
            (&[(1, &[6, 6, 1])], 8, &[&[(1, 6)], &[(1, 6), (1, 1)], &[]]),
            // An item that exceeds the limit is alone in its batch.
            (
                &[(1, &[50, 1]), (2, &[1])],
                8,
                &[&[(2, 1)], &[(1, 50)], &[(1, 1)]],
            ),
            // With a quantum of two, the single item of app 2 is third.
            (
                &[(1, &[1; 9]), (2, &[1])],
                8,
                &[
                    &[
                        (1, 1),
                        (1, 1),
                        (2, 1),
                        (1, 1),
                        (1, 1),
                        (1, 1),
                        (1, 1),
                        (1, 1),
                    ],
                    &[(1, 1), (1, 1)],
                ],
            ),
            // The quantum counts weight, not items.
            (
                &[(1, &[2; 4]), (2, &[1; 4])],
                100,
                &[&[
                    (1, 2),
                    (2, 1),
                    (2, 1),
                    (1, 2),
                    (2, 1),
                    (2, 1),
                    (1, 2),
                    (1, 2),
                ]],
            ),
            (
                &[(1, &[3; 2]), (2, &[1; 5])],
                100,
                &[&[(2, 1), (2, 1), (1, 3), (2, 1), (2, 1), (1, 3), (2, 1)]],
            ),
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
        let places: Vec<QueueSlot> = (0..4).map(|n| ring.push(n % 2, 1, n)).collect();
        assert_eq!(ring.remove(places[0]), Some(0));
        assert_eq!(ring.remove(places[0]), None);
        assert_eq!(ring.remove(places[2]), Some(2));
        ring.push(0, 1, 9);
        assert_eq!(ring.take(8), [9, 1, 3]);
        assert_eq!(ring.remove(places[1]), None);
        assert!(ring.is_empty() && ring.take(8).is_empty());
    }
}
