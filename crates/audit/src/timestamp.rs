//! Points in time as records hold them: UTC, RFC 3339, milliseconds, always 24 characters, so that text sorts as time
//! does.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, up to the end of the year 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

/// The last timestamp with a four-digit year.
const MAX: u64 = 253_402_300_799_999;

impl Timestamp {
    /// Returns the current time. A clock outside the valid range yields the nearest valid timestamp.
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
        let (days, ms) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (year, month, day) = civil(days);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |at: usize, digits: usize, mut number: u64| {
            for place in (at..at + digits).rev() {
                text[place] = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        put(0, 4, year);
        put(5, 2, month);
        put(8, 2, day);
        put(11, 2, ms / 3_600_000);
        put(14, 2, ms / 60_000 % 60);
        put(17, 2, ms / 1_000 % 60);
        put(20, 3, ms % 1_000);
        text
    }

    /// Parses the output of [`Self::text`] and accepts nothing else.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; 24] = text.try_into().ok()?;
        let number = |at: usize, digits: usize| {
            text[at..at + digits]
                .iter()
                .try_fold(0, |number: u64, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))
        };
        let days = days(number(0, 4)?, number(5, 2)?, number(8, 2)?)?;
        let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
        let ms = ((hour * 60 + minute) * 60 + second) * 1_000 + number(20, 3)?;
        let moment = Self(days * 86_400_000 + ms);
        // Out-of-range values and other punctuation do not survive the round trip.
        (moment.text() == *text).then_some(moment)
    }
}

/// Year, month and day of a day since 1970, in the Gregorian calendar: Howard Hinnant, "chrono-compatible low-level
/// date algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// The inverse, `days_from_civil`. `None` before 1970 and for an invalid month.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::OffsetDateTime;
    use time::format_description::well_known::Rfc3339;

    use super::*;

    proptest! {
        #[test]
        fn it_is_written_as_another_library_reads_it_and_read_again(ms in 0..=MAX) {
            let text = String::from_utf8(Timestamp(ms).text().to_vec()).unwrap();
            let other = OffsetDateTime::parse(&text, &Rfc3339).unwrap();
            prop_assert_eq!(other.unix_timestamp_nanos(), i128::from(ms) * 1_000_000);
            prop_assert_eq!(Timestamp::parse(text.as_bytes()), Some(Timestamp(ms)));
        }

        #[test]
        fn no_bytes_make_it_panic(text in proptest::collection::vec(any::<u8>(), 24)) {
            let _ = Timestamp::parse(&text);
        }
    }

    #[test]
    fn what_is_not_a_moment_is_refused() {
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
