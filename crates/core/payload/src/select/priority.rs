//! Selections that report which of their entries selected a field.
//!
//! Select paths are ordinary states, except that complete paths remain set beneath their value.
//! Keys that match at any depth would need too many states. For keys, the states instead hold one
//! number: the lowest rank among the keys above the value. A thousand keys therefore cost as much
//! as a few.

use super::{SelectError, Selection, States, lookup};

/// Set at every value of a ranked selection, so that leaves that no entry selects are fields too.
/// The highest bit of all paths.
const VISITED: States = 1 << 126;

/// Position of the key rank: one more than the lowest rank of the keys above the value; 0 without
/// any.
const KEY_RANK_AT: u32 = 110;
const KEY_RANK: States = 0xffff << KEY_RANK_AT;

/// Maximum number of ranks.
const RANKS_MAX: usize = 0xffff;

/// An entry of a ranked selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrioritizedEntry<'p> {
    /// A select path, including everything beneath it.
    Path(&'p str),
    /// The value under this key in any map, including everything beneath it: `$..['key']`, but
    /// without using steps.
    Key(&'p str),
}

/// The part of a ranked selection besides its states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranks {
    /// Rank of each path, in the order of the paths' states.
    paths: Vec<u32>,
    /// Maps a key to one more than its rank; sorted by key.
    keys: Vec<(Box<[u8]>, States)>,
}

impl Selection {
    /// Creates a selection in which every leaf of the document is a field with a rank. The rank is
    /// the position, from 0, of the first entry of `ranked` that selects the leaf or a container
    /// around it.
    ///
    /// # Errors
    /// As [`Selection::parse`]. Paths have at most 110 steps in total. Paths and keys together are
    /// limited to 65,535.
    pub fn ranked<'p>(
        ranked: impl IntoIterator<Item = PrioritizedEntry<'p>>,
    ) -> Result<Self, SelectError> {
        let mut texts = Vec::new();
        let mut ranks = Ranks {
            paths: Vec::new(),
            keys: Vec::new(),
        };
        for (rank, ranked) in ranked.into_iter().enumerate() {
            let (PrioritizedEntry::Path(text) | PrioritizedEntry::Key(text)) = ranked;
            if rank >= RANKS_MAX {
                return Err(SelectError::TooManySteps {
                    path: text.to_owned(),
                    steps_max: RANKS_MAX as u32,
                });
            }
            match ranked {
                PrioritizedEntry::Path(path) => {
                    texts.push(path);
                    ranks.paths.push(rank as u32);
                }
                PrioritizedEntry::Key(key) => {
                    ranks.keys.push((key.as_bytes().into(), rank as States + 1))
                }
            }
        }

        // Of equal keys, the first takes precedence.
        ranks.keys.sort_unstable();
        ranks.keys.dedup_by(|next, kept| next.0 == kept.0);
        let mut selection = Self::of(texts, KEY_RANK_AT)?;
        // A complete path also applies beneath its value, where an earlier path can still complete.
        selection.descend |= selection.accept | VISITED | KEY_RANK;
        selection.start |= VISITED;
        selection.accept |= VISITED;
        selection.ranks = Some(Box::new(ranks));
        Ok(selection)
    }

    /// Returns true if fields learn which path selected them.
    #[inline]
    pub(crate) const fn is_ranked(&self) -> bool {
        self.ranks.is_some()
    }

    /// Returns the rank of a leaf with these states; 0 for a selection without ranks.
    pub(crate) fn rank(&self, states: States) -> Option<u32> {
        self.ranks
            .as_ref()
            .map_or(Some(0), |ranks| self.lowest(ranks, states))
    }

    fn lowest(&self, ranks: &Ranks, states: States) -> Option<u32> {
        let complete = states & self.accept & !VISITED;
        let first = complete & complete.wrapping_neg();
        // Each path has one accepting bit, in path order.
        let before = (self.accept & first.wrapping_sub(1)).count_ones() as usize;
        let by_path = if complete == 0 {
            None
        } else {
            ranks.paths.get(before).copied()
        };
        let by_key = (((states & KEY_RANK) >> KEY_RANK_AT) as u32).checked_sub(1);
        match (by_path, by_key) {
            (Some(path), Some(key)) => Some(path.min(key)),
            (path, key) => path.or(key),
        }
    }
}

impl Ranks {
    /// Returns the `states` of a value under `key`, updated with the key's rank if it is lower than
    /// the ranks above.
    #[inline(never)] // Walks without ranks pay for no registers of it.
    pub(super) fn at_key(&self, states: States, key: &[u8]) -> States {
        let found = lookup(&self.keys, |other| other.as_ref().cmp(key));
        let before = (states & KEY_RANK) >> KEY_RANK_AT;
        if found == 0 || before != 0 && before <= found {
            return states;
        }
        states & !KEY_RANK | found << KEY_RANK_AT
    }
}
