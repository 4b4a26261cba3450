//! `pseudonym`: an entry of a list, selected by a keyed hash. A value always gets the same entry;
//! other values can get that entry too.

use super::Unfit;
use super::bytes::Canonical;
use crate::Value;
use crate::keys::KeyedHmac;
use sealwire_mask_rules::Entries;

#[derive(Debug)]
pub(crate) struct Pseudonym {
    keyed: KeyedHmac,
    /// The list's name is part of the hash, so an entry of one list reveals nothing about the entry
    /// of another.
    list: Box<str>,
    entries: Entries,
}

impl Pseudonym {
    pub(super) fn new(keyed: KeyedHmac, list: &str, entries: Entries) -> Self {
        Self {
            keyed,
            list: list.into(),
            entries,
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let hash = Canonical::of(value)?.hash(&self.keyed, b"pseudonym", self.list.as_bytes());
        let drawn = hash[..8]
            .iter()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        // A list is short compared with 2^64: the probabilities of two entries differ by at most
        // 2^-40.
        self.entries
            .write((drawn % self.entries.count() as u64) as usize, out);
        Ok(())
    }
}
