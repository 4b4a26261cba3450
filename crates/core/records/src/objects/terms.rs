//! Index terms: keyed hashes of values, by which a store finds objects without seeing values.
//!
//! ```text
//! term: HMAC( kind 1 | app 4 | collection 4 | index 4 | normalization version 1 | length 8 | normalized )
//! ```
//! Kind 0 is of a whole value, kind n of its first n characters. An index with `bits` keeps the
//! first `bits` bits of a term and sets the others to zero, so several values share a term. A
//! reader that finds an object by a term must compare the opened value.

use crate::objects::keys::length;
use crate::objects::{Index, NORMALIZATION_VERSION, ObjectKeys, Property, normalize};

/// First byte of the input of a term of a whole value.
const KIND_EXACT: u8 = 0;

/// A term of an index. Holds no readable part of a value, but equal values have equal terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IndexTerm {
    /// The number of the index.
    pub index: u32,
    /// The keyed hash.
    pub hash: [u8; 16],
}

impl Index {
    /// Returns the longest indexed prefix length, in characters, that a normalized search text has.
    /// `None`: this index cannot find the text. The caller searches the term of that length, and
    /// compares the opened values with the whole text.
    #[must_use]
    pub fn prefix_length_for(&self, normalized: &[u8]) -> Option<u8> {
        let chars = std::str::from_utf8(normalized).ok()?.chars().count();
        self.prefixes
            .iter()
            .copied()
            .filter(|length| usize::from(*length) <= chars)
            .max()
    }
}

impl ObjectKeys {
    /// Returns the term of a whole value. `normalized` comes from [`normalize()`].
    #[must_use]
    pub fn exact(&self, collection: u32, index: &Index, normalized: &[u8]) -> IndexTerm {
        self.term(KIND_EXACT, collection, index, normalized)
    }

    /// Returns the term of the first characters of a value, which are Unicode scalar values.
    /// Returns `None` if the value has fewer, or is not text.
    #[must_use]
    pub fn prefix(
        &self,
        collection: u32,
        index: &Index,
        length_chars: u8,
        normalized: &[u8],
    ) -> Option<IndexTerm> {
        let text = std::str::from_utf8(normalized).ok()?;
        let last = usize::from(length_chars).checked_sub(1)?;
        let (start, char) = text.char_indices().nth(last)?;
        Some(self.term(
            length_chars,
            collection,
            index,
            &normalized[..start + char.len_utf8()],
        ))
    }

    /// Returns all terms of a stored value: of the whole value, then of its prefixes. Empty without
    /// an index.
    ///
    /// Only the first term of a unique property is unique. No term stands twice, though two terms
    /// of few bits can be equal.
    #[must_use]
    pub fn terms_of(
        &self,
        collection: u32,
        property: &Property,
        canonical: &[u8],
    ) -> Vec<IndexTerm> {
        let Some(index) = &property.index else {
            return Vec::new();
        };
        let normalized = normalize(property.property_type, canonical);
        let mut terms = Vec::with_capacity(1 + index.prefixes.len());
        terms.push(self.exact(collection, index, &normalized));
        for term in index
            .prefixes
            .iter()
            .filter_map(|chars| self.prefix(collection, index, *chars, &normalized))
        {
            if !terms.contains(&term) {
                terms.push(term);
            }
        }
        terms
    }

    fn term(&self, kind: u8, collection: u32, index: &Index, normalized: &[u8]) -> IndexTerm {
        let number = index.number.to_be_bytes();
        let length = length(normalized);
        let mut hash = self.hash(
            kind,
            collection,
            [&number, &[NORMALIZATION_VERSION], &length, normalized],
        );
        if let Some(bits) = index.bits {
            let kept = u128::MAX
                .checked_shl(128_u32.saturating_sub(bits.into()))
                .unwrap_or(0);
            hash = (u128::from_be_bytes(hash) & kept).to_be_bytes();
        }
        IndexTerm {
            index: index.number,
            hash,
        }
    }
}

#[cfg(test)]
mod tests;
