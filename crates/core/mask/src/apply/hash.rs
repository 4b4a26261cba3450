//! `hash`: a keyed hash in hexadecimal.

use sealwire_msgpack::write;

use super::Unfit;
use super::bytes::Canonical;
use crate::Value;
use crate::keys::KeyedHmac;

#[derive(Debug)]
pub(crate) struct Hash {
    keyed: KeyedHmac,
    length: usize,
}

impl Hash {
    pub(super) fn new(keyed: KeyedHmac, length: u16) -> Self {
        Self {
            keyed,
            length: length.into(),
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let hash = Canonical::of(value)?.hash(&self.keyed, b"hash", &[]);
        write::str_header(out, self.length);
        let digits = hash.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        out.extend(
            digits
                .take(self.length)
                .map(|digit| HEX[usize::from(digit)]),
        );
        Ok(())
    }
}
