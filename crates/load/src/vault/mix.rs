//! The mix of a vault load: 45 look-ups to 5 known values and 5 new values.

use crate::load::Method;
use crate::random::Random;

/// The kind of an operation. Each operation is one request with one value or token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    /// Detokenizes the token of any row.
    LookUp,
    /// Tokenizes a value that has a token. The response must be that token.
    KnownValue,
    /// Tokenizes a value that has no token.
    NewValue,
}

impl OperationKind {
    /// All kinds, in the order of the figures.
    pub(crate) const ALL: [Self; 3] = [Self::LookUp, Self::KnownValue, Self::NewValue];

    /// Returns the number of operations of this kind among [`MixDeck::SIZE`].
    pub(crate) const fn share(self) -> usize {
        match self {
            Self::LookUp => 9,
            Self::KnownValue | Self::NewValue => 1,
        }
    }

    /// Returns the name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::LookUp => "look-up",
            Self::KnownValue => "known value",
            Self::NewValue => "new value",
        }
    }

    /// Returns the method of its requests.
    pub(crate) const fn method(self) -> Method {
        match self {
            Self::LookUp => Method::Detokenize,
            Self::KnownValue | Self::NewValue => Method::Tokenize,
        }
    }

    /// Returns the position in [`OperationKind::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// A shuffled deck with one card per operation, so that the shares hold exactly in every
/// [`MixDeck::SIZE`] operations.
#[derive(Clone, Debug)]
pub(crate) struct MixDeck {
    cards: [OperationKind; Self::SIZE],
    next: usize,
}

impl MixDeck {
    /// Number of operations after which the shares hold exactly.
    pub(crate) const SIZE: usize = 11;

    /// Creates a deck, which is shuffled before its first operation.
    pub(crate) fn new() -> Self {
        let mut cards = [OperationKind::LookUp; Self::SIZE];
        let mut kinds = OperationKind::ALL
            .into_iter()
            .flat_map(|kind| std::iter::repeat_n(kind, kind.share()));
        cards
            .iter_mut()
            .for_each(|card| *card = kinds.next().unwrap_or(OperationKind::LookUp));
        Self {
            cards,
            next: Self::SIZE,
        }
    }

    /// Returns the kind of the next operation.
    pub(crate) fn draw(&mut self, random: &mut Random) -> OperationKind {
        if self.next == Self::SIZE {
            self.next = 0;
            (1..Self::SIZE).for_each(|last| self.cards.swap(last, random.below(last + 1)));
        }
        self.next += 1;
        self.cards[self.next - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_45_to_5_to_5_in_every_deck() {
        let mut random = Random::new(1);
        let mut deck = MixDeck::new();
        let mut orders = Vec::new();
        for _ in 0..5_000 {
            let kinds: Vec<OperationKind> =
                (0..MixDeck::SIZE).map(|_| deck.draw(&mut random)).collect();
            let counts =
                OperationKind::ALL.map(|kind| kinds.iter().filter(|drawn| **drawn == kind).count());
            assert_eq!(counts, [9, 1, 1]);
            orders.push(kinds);
        }
        // Each position has each kind at some time.
        for position in 0..MixDeck::SIZE {
            for kind in OperationKind::ALL {
                let count = orders
                    .iter()
                    .filter(|order| order[position] == kind)
                    .count();
                let expected = 5_000 * kind.share() / MixDeck::SIZE;
                assert!(
                    count.abs_diff(expected) < 120,
                    "{kind:?} at {position}: {count} for {expected}"
                );
            }
        }
        let percent = OperationKind::ALL
            .map(|kind| (kind.share() as f64 * 100.0 / MixDeck::SIZE as f64).round());
        assert_eq!(percent, [82.0, 9.0, 9.0]);
        assert_eq!(OperationKind::ALL.map(OperationKind::index), [0, 1, 2]);
    }
}
