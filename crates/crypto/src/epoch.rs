//! How long one ephemeral key may serve in epoch scope.

use std::time::Duration;

use crate::Error;

/// How long one ephemeral key may serve in epoch scope: 1 ms to 15 s, counted from when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochLifetime(Duration);

impl EpochLifetime {
    /// Longest lifetime in milliseconds: whoever learns one key reads no more than that much traffic of one app.
    pub const MS_MAX: u32 = 15_000;

    /// A lifetime of `1..=`[`EpochLifetime::MS_MAX`] milliseconds.
    ///
    /// # Errors
    /// [`Error::InvalidEpoch`] for any other number.
    pub fn from_ms(ms: u32) -> Result<Self, Error> {
        if (1..=Self::MS_MAX).contains(&ms) {
            Ok(Self(Duration::from_millis(ms.into())))
        } else {
            Err(Error::InvalidEpoch)
        }
    }

    /// In milliseconds.
    #[must_use]
    pub fn as_ms(self) -> u32 {
        u32::try_from(self.0.as_millis()).unwrap_or(Self::MS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_one_millisecond_to_fifteen_seconds() {
        for (ms, valid) in [(0, false), (1, true), (15_000, true), (15_001, false), (u32::MAX, false)] {
            assert_eq!(
                EpochLifetime::from_ms(ms).map(EpochLifetime::as_ms),
                valid.then_some(ms).ok_or(Error::InvalidEpoch)
            );
        }
    }
}
