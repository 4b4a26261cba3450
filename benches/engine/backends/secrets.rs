//! Random secrets, in the form in which the engine sends them to a store: rows of sealed values, in
//! one group each.

use sealwire_benches::stats::Random;
use sealwire_store::{Group, MapId, Row, TokenId};

pub(crate) const MAP: MapId = MapId {
    app: 1,
    collection: 1,
};

/// Most values of a secret.
const VALUES_MAX: usize = 4;
/// Bytes of a value.
const BYTES: std::ops::RangeInclusive<usize> = 16..=256;
/// Bytes that sealing adds to a value, with its token.
const SEALING_BYTES: usize = 84;

/// Makes unique secrets.
pub(crate) struct Secrets {
    random: Random,
}

impl Secrets {
    pub(crate) fn new() -> Self {
        Self {
            random: Random::new(6),
        }
    }

    /// Makes `count` secrets.
    pub(crate) fn make(&mut self, count: usize) -> Vec<Group> {
        (0..count).map(|_| self.secret()).collect()
    }

    fn secret(&mut self) -> Group {
        let values = 1 + self.random.below(VALUES_MAX);
        Group {
            map: MAP,
            rows: (0..values).map(|_| self.row()).collect(),
        }
    }

    fn row(&mut self) -> Row {
        let bytes =
            BYTES.start() + self.random.below(BYTES.end() - BYTES.start() + 1) + SEALING_BYTES;
        let mut sealed = Vec::with_capacity(bytes + 8);
        while sealed.len() < bytes {
            sealed.extend_from_slice(&self.random.bits().to_le_bytes());
        }
        sealed.truncate(bytes);
        let id = u128::from(self.random.bits()) << 64 | u128::from(self.random.bits());
        Row {
            id: TokenId(id.to_be_bytes()),
            fingerprint: None,
            sealed: sealed.into(),
            tags: Vec::new(),
            expires: None,
            created: 1,
            archived: None,
            subject: None,
        }
    }
}
