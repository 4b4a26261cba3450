//! The hash of the audit log's chain.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::json;

/// A SHA-256 hash, displayed in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Returns the hash that precedes the first record of a chain with this name.
    pub(crate) fn genesis(chain: &[u8; 16]) -> Self {
        Self(
            Sha256::new()
                .chain_update(b"sealwire/audit/1")
                .chain_update(chain)
                .finalize()
                .into(),
        )
    }

    /// Returns the next hash of the chain, over this hash and the sealed part of a line.
    pub(crate) fn with(&self, sealed: &[u8]) -> Self {
        Self(
            Sha256::new()
                .chain_update(self.0)
                .chain_update(sealed)
                .finalize()
                .into(),
        )
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::with_capacity(64);
        json::hex(&mut text, &self.0);
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        json::unhex(text.as_bytes())
            .map(Self)
            .ok_or("must be 64 hexadecimal digits")
    }
}
