//! Timestamps of records: UTC, RFC 3339, milliseconds, always 24 characters, so that texts sort by
//! time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::{Date, Month, UtcDateTime};

const EPOCH: Date = UtcDateTime::UNIX_EPOCH.date();

/// Milliseconds since 1970, up to the end of the year 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

/// The last timestamp with a four-digit year.
const MAX: u64 = 253_402_300_799_999;

impl Timestamp {
    /// Returns the current time. A clock outside the valid range yields the nearest valid
    /// timestamp.
    #[must_use]
    pub fn now() -> Self {
        Self::of(SystemTime::now())
    }

    /// Returns the timestamp of a given time.
    #[must_use]
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(MAX).min(MAX))
    }

    /// Returns the time elapsed since `earlier`, or zero if `earlier` is later than this timestamp.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Formats the timestamp as `2026-11-22T00:34:24.123Z`.
    #[must_use]
    pub fn text(self) -> [u8; 24] {
        let ms = self.0 % 86_400_000;
        let date = self.date();
        let mut text = *b"0000-00-00T00:00:00.000Z";
        put_digits(&mut text[0..4], u64::from(date.year().unsigned_abs()));
        put_digits(&mut text[5..7], u64::from(u8::from(date.month())));
        put_digits(&mut text[8..10], u64::from(date.day()));
        put_digits(&mut text[11..13], ms / 3_600_000);
        put_digits(&mut text[14..16], ms / 60_000 % 60);
        put_digits(&mut text[17..19], ms / 1_000 % 60);
        put_digits(&mut text[20..23], ms % 1_000);
        text
    }

    fn date(self) -> Date {
        EPOCH + time::Duration::milliseconds(self.0.cast_signed())
    }

    /// Parses the output of [`Self::text`] and rejects any other input.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; 24] = text.try_into().ok()?;
        let month = Month::try_from(u8::try_from(read_digits(&text[5..7])?).ok()?).ok()?;
        let date = Date::from_calendar_date(
            i32::try_from(read_digits(&text[0..4])?).ok()?,
            month,
            u8::try_from(read_digits(&text[8..10])?).ok()?,
        )
        .ok()?;
        let days = u64::try_from((date - EPOCH).whole_days()).ok()?;
        let hour = read_digits(&text[11..13])?;
        let minute = read_digits(&text[14..16])?;
        let second = read_digits(&text[17..19])?;
        let ms = ((hour * 60 + minute) * 60 + second) * 1_000 + read_digits(&text[20..23])?;
        let timestamp = Self(days * 86_400_000 + ms);
        // The round trip detects out-of-range values and other punctuation.
        (timestamp.text() == *text).then_some(timestamp)
    }
}

/// Fills `text` with the last decimal digits of a number.
fn put_digits(text: &mut [u8], mut number: u64) {
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Returns the number of a text of decimal digits.
fn read_digits(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0, |number: u64, digit| {
        digit
            .is_ascii_digit()
            .then(|| number * 10 + u64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::OffsetDateTime;
    use time::format_description::well_known::Rfc3339;

    use super::*;

    proptest! {
        #[test]
        fn timestamps_agree_with_another_library(ms in 0..=MAX) {
            let text = String::from_utf8(Timestamp(ms).text().to_vec()).unwrap();
            let other = OffsetDateTime::parse(&text, &Rfc3339).unwrap();
            prop_assert_eq!(other.unix_timestamp_nanos(), i128::from(ms) * 1_000_000);
            prop_assert_eq!(Timestamp::parse(text.as_bytes()), Some(Timestamp(ms)));
        }

        #[test]
        fn timestamp_parser_never_panics(text in proptest::collection::vec(any::<u8>(), 24)) {
            let _ = Timestamp::parse(&text);
        }
    }

    #[test]
    fn malformed_timestamps_are_rejected() {
        for wrong in [
            "",
            "2026-11-22",
            "2026-11-22T00:34:24Z",
            "2026-13-22T00:34:24.123Z",
            "2026-02-29T00:34:24.123Z",
            "2026-11-22T24:34:24.123Z",
            "2026-11-22T00:60:24.123Z",
            "2026-11-22 00:34:24.123Z",
            "1969-12-31T23:59:59.999Z",
            "2026-11-22T00:34:24.123+",
            "2026-00-22T00:34:24.123Z",
        ] {
            assert_eq!(Timestamp::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
