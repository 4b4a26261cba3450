//! The values of one object, by property number.
//!
//! Their encoding is canonical, because it is hashed and sealed: numbers ascend, and lengths are
//! exact.
//!
//! ```text
//! values: ( number 4 | length 4 | value )*        big-endian
//! ```

use std::collections::BTreeMap;
use std::fmt;

use zeroize::Zeroizing;

/// Most bytes of the encoding of all values of an object.
pub const VALUES_BYTES_MAX: usize = 256 << 10;
/// Bytes before each value: its number and its length.
const ENTRY_BYTES: usize = 8;

/// The values of one object: canonical MessagePack by property number. Wiped on drop; `Debug` shows
/// the count only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<u32, Zeroizing<Vec<u8>>>);

impl Values {
    /// Creates an object without values.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a property, as [`check`](crate::objects::check) returned it. Returns the value that
    /// it had.
    pub fn insert(
        &mut self,
        number: u32,
        canonical: Zeroizing<Vec<u8>>,
    ) -> Option<Zeroizing<Vec<u8>>> {
        self.0.insert(number, canonical)
    }

    /// Removes the value of a property and returns it.
    pub fn remove(&mut self, number: u32) -> Option<Zeroizing<Vec<u8>>> {
        self.0.remove(&number)
    }

    /// Returns the value of a property, or `None` if it is null.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&[u8]> {
        self.0.get(&number).map(|value| value.as_slice())
    }

    /// Returns the values with their numbers, which ascend.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.0
            .iter()
            .map(|(number, value)| (*number, value.as_slice()))
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true without values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes of the encoding. At most [`VALUES_BYTES_MAX`] can be sealed.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        self.0.values().map(|value| ENTRY_BYTES + value.len()).sum()
    }

    /// Appends the encoding of the values whose number is selected.
    pub(crate) fn encode(&self, is_selected: impl Fn(u32) -> bool, out: &mut Vec<u8>) {
        for (number, value) in self.iter().filter(|(number, _)| is_selected(*number)) {
            let length =
                u32::try_from(value.len()).expect("values are bounded before they are encoded");
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(value);
        }
    }

    /// Reads an encoding into these values. Returns `None` if it is not canonical, or has a number
    /// that is present already. Some values can have been added then.
    pub(crate) fn decode(&mut self, mut bytes: &[u8]) -> Option<()> {
        let mut last = None;
        while !bytes.is_empty() {
            let (number, rest) = bytes.split_first_chunk()?;
            let (length, rest) = rest.split_first_chunk()?;
            let number = u32::from_be_bytes(*number);
            let (value, rest) =
                rest.split_at_checked(u32::from_be_bytes(*length).try_into().ok()?)?;
            let is_next = last.is_none_or(|last| last < number);
            if !is_next
                || self
                    .insert(number, Zeroizing::new(value.to_vec()))
                    .is_some()
            {
                return None;
            }
            last = Some(number);
            bytes = rest;
        }
        Some(())
    }
}

impl FromIterator<(u32, Zeroizing<Vec<u8>>)> for Values {
    fn from_iter<T: IntoIterator<Item = (u32, Zeroizing<Vec<u8>>)>>(values: T) -> Self {
        Self(values.into_iter().collect())
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(values: &Values) -> Vec<u8> {
        let mut out = Vec::new();
        values.encode(|_| true, &mut out);
        out
    }

    fn decoded(bytes: &[u8]) -> Option<Values> {
        let mut values = Values::new();
        values.decode(bytes).map(|()| values)
    }

    #[test]
    fn only_the_canonical_encoding_is_read() {
        let one = [0, 0, 0, 1, 0, 0, 0, 2, 0xa1, b'x'];
        let two = [0, 0, 0, 2, 0, 0, 0, 1, 5];
        let cases: [(Vec<u8>, Option<usize>); 9] = [
            (vec![], Some(0)),
            (one.to_vec(), Some(1)),
            ([&one[..], &two].concat(), Some(2)),
            ([&two[..], &one].concat(), None),
            ([&one[..], &one].concat(), None),
            (one[..9].to_vec(), None),
            (one[..7].to_vec(), None),
            ([&one[..], &[0]].concat(), None),
            (vec![0, 0, 0, 1, 255, 255, 255, 255, 0], None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(
                decoded(&bytes).map(|values| values.len()),
                expected,
                "{bytes:x?}"
            );
        }
        let mut values = decoded(&one).unwrap();
        assert_eq!(
            values.decode(&one),
            None,
            "a number that is present already"
        );
        assert_eq!(format!("{values:?}"), "Values(1)");
    }

    proptest! {
        #[test]
        fn bytes_are_invalid_or_the_encoding_itself(bytes in proptest::collection::vec(0u8..4, 0..40)) {
            if let Some(values) = decoded(&bytes) {
                prop_assert_eq!(encoded(&values), bytes);
            }
        }

        #[test]
        fn values_come_back(entries: std::collections::BTreeMap<u32, Vec<u8>>) {
            let values: Values = entries.into_iter().map(|(number, value)| (number, Zeroizing::new(value))).collect();
            let bytes = encoded(&values);
            prop_assert_eq!(bytes.len(), values.encoded_bytes());
            prop_assert_eq!(decoded(&bytes), Some(values));
        }
    }
}
