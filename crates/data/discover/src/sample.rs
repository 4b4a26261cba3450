//! Bounded samples of the values of one field. Samples stay in memory and are never shown.

use std::fmt;

/// Maximum length of a value in a sample. Longer values are only counted.
pub const VALUE_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes of the values of one field.
const FIELD_BYTES_MAX: usize = 1 << 20;

/// The JSON type of a value, or `Text` where the source has only text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A text.
    Text,
    /// A number.
    Number,
    /// A boolean.
    Boolean,
}

/// A reservoir sample: each value of the field has the same chance to be in it. `Debug` shows no
/// value.
pub struct Sample {
    pub(crate) values: Vec<(ValueType, Box<str>)>,
    /// Number of values that were offered.
    pub(crate) seen: u64,
    /// Number of values that were too long.
    pub(crate) long: u64,
    bytes: usize,
    bytes_max: usize,
    size: usize,
    random: SampleRandom,
}

/// A generator of random numbers for sampling: xorshift64.
#[derive(Debug)]
pub struct SampleRandom(u64);

impl SampleRandom {
    /// Creates the generator from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Computes the next number, which is never 0.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

impl Sample {
    /// Creates an empty sample of at most `size` values.
    #[must_use]
    pub fn new(size: usize, seed: u64) -> Self {
        Self::bounded(size, seed, FIELD_BYTES_MAX)
    }

    /// Creates an empty sample of at most `size` values with at most `bytes_max` bytes, if that is
    /// less than 1 MiB.
    pub(crate) fn bounded(size: usize, seed: u64, bytes_max: usize) -> Self {
        let bytes_max = bytes_max.min(FIELD_BYTES_MAX);
        Self {
            values: Vec::new(),
            seen: 0,
            long: 0,
            bytes: 0,
            bytes_max,
            size,
            random: SampleRandom::new(seed),
        }
    }

    /// Offers a value to the sample.
    pub fn add(&mut self, r#type: ValueType, text: &str) {
        self.offer(text.len(), || (r#type, text.into()));
    }

    /// Offers a value of at most `bytes_max` bytes. The text of the value is only created if the
    /// sample takes the value.
    pub(crate) fn offer(
        &mut self,
        bytes_max: usize,
        value: impl FnOnce() -> (ValueType, Box<str>),
    ) {
        self.seen += 1;
        if bytes_max > VALUE_BYTES_MAX {
            self.long += 1;
            return;
        }
        if self.values.len() < self.size && self.bytes + bytes_max <= self.bytes_max {
            let value = value();
            self.bytes += value.1.len();
            self.values.push(value);
            return;
        }
        let at = (self.random.number() % self.seen) as usize;
        if let Some(slot) = self.values.get_mut(at)
            && self.bytes - slot.1.len() + bytes_max <= self.bytes_max
        {
            let value = value();
            self.bytes = self.bytes - slot.1.len() + value.1.len();
            *slot = value;
        }
    }

    /// Adds the values of another sample.
    pub fn merge(&mut self, other: Self) {
        let unseen = other.seen - other.values.len() as u64;
        other
            .values
            .iter()
            .for_each(|(r#type, text)| self.add(*r#type, text));
        self.seen += unseen;
        self.long += other.long;
    }

    /// Returns the sampled values.
    #[must_use]
    pub fn values(&self) -> &[(ValueType, Box<str>)] {
        &self.values
    }

    /// Returns the number of offered values that were too long.
    #[must_use]
    pub fn long(&self) -> u64 {
        self.long
    }

    /// Returns the texts that are not blank.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.values
            .iter()
            .map(|(_, text)| text.trim())
            .filter(|text| !text.is_empty())
    }

    /// Returns true if there are values and all have this type.
    pub(crate) fn is_all(&self, wanted: ValueType) -> bool {
        !self.values.is_empty() && self.values.iter().all(|(r#type, _)| *r#type == wanted)
    }
}
