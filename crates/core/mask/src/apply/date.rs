//! `date_shift`, and `generalize` for dates. A text keeps its exact form: only the digits of the
//! date change. `generalize` also changes the digits of the time of day.
//!
//! ISO dates, RFC 3339 date-times, and timestamps as SQL writes them: `2024-02-29 10:00:00.5+00`,
//! `0044-03-15 BC`, `12024-01-01`, and `infinity`, which stays.

use sealwire_msgpack::write;

use super::Unfit;
use super::bytes::Canonical;
use crate::Value;
use crate::keys::KeyedHmac;
use sealwire_mask_rules::Period;
use sealwire_mask_rules::limits::SHORT_BYTES_MAX;

const NOT_A_DATE: Unfit =
    Unfit::Shape("a date: 2024-02-29, 2024-02-29T10:00:00Z or 2024-02-29 10:00:00+00");

/// Bytes of `-02-29`.
const MONTH_AND_DAY_BYTES: usize = 6;
/// Maximum number of digits of a year, as in SQL.
const YEAR_DIGITS_MAX: usize = 7;
/// The end of a date before the year 1, as SQL writes it.
const BEFORE_CHRIST: &[u8] = b" BC";
/// Dates of SQL that are later or earlier than all others. Masking keeps them.
const INFINITIES: [&str; 2] = ["infinity", "-infinity"];

/// A date of the Gregorian calendar.
#[derive(Clone, Copy)]
struct CivilDate {
    /// The year; 0 is 1 BC.
    year: i64,
    month: i64,
    day: i64,
}

impl CivilDate {
    /// Returns the number of days since 0000-03-01, the start of a cycle of 400 years.
    fn days(self) -> i64 {
        // Years begin in March, so that the day of a leap year is the last one.
        let year = self.year - i64::from(self.month <= 2);
        let month = (self.month + 9) % 12;
        year * 365 + year.div_euclid(4) - year.div_euclid(100)
            + year.div_euclid(400)
            + (153 * month + 2) / 5
            + self.day
            - 1
    }

    fn of_days(days: i64) -> Self {
        let cycle = days.div_euclid(146_097);
        let day = days.rem_euclid(146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        Self {
            year: cycle * 400 + year + i64::from(month <= 2),
            month,
            day,
        }
    }
}

/// The date of a text, and its position.
struct ParsedDate {
    date: CivilDate,
    year_digits: usize,
    /// Byte offset where the time of day ends.
    time_end: usize,
    is_before_christ: bool,
}

impl ParsedDate {
    /// Returns the byte offset where the date ends.
    fn date_end(&self) -> usize {
        self.year_digits + MONTH_AND_DAY_BYTES
    }

    /// Appends `text` as a string, with another date.
    ///
    /// # Errors
    /// [`Unfit::Range`] if the year has another number of digits, or is on the other side of the
    /// year 1.
    fn write_with(&self, text: &str, date: CivilDate, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let year = if self.is_before_christ {
            1 - date.year
        } else {
            date.year
        };
        let year_min = if self.year_digits > 4 {
            10_i64.pow(self.year_digits as u32 - 1)
        } else {
            1
        };
        if year < year_min || year >= 10_i64.pow(self.year_digits as u32) {
            return Err(Unfit::Range);
        }

        write::str_header(out, text.len());
        out.extend((0..self.year_digits).rev().map(|place| digit(year, place)));
        out.extend([
            b'-',
            digit(date.month, 1),
            digit(date.month, 0),
            b'-',
            digit(date.day, 1),
            digit(date.day, 0),
        ]);
        out.extend_from_slice(&text.as_bytes()[self.date_end()..]);
        Ok(())
    }
}

/// Returns the decimal digit of `number` at `place`, counted from the last digit.
fn digit(number: i64, place: usize) -> u8 {
    b'0' + (number / 10_i64.pow(place as u32) % 10) as u8
}

/// The number of days by which dates are shifted.
#[derive(Debug)]
pub(crate) enum Shift {
    /// A fixed number of days for all dates.
    By(i32),
    /// Between 1 and `days` in either direction, derived from the key. Equal for all dates of one
    /// subject, or without a subject for equal dates.
    Within {
        days: i32,
        keyed: KeyedHmac,
        has_subject: bool,
    },
}

impl Shift {
    pub(super) fn mask_value(
        &self,
        value: Value<'_>,
        subject: Option<Value<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        let text = text(value)?;
        if INFINITIES.contains(&text) {
            write::str(out, text);
            return Ok(());
        }
        let parsed = parse(text)?;
        let days = match self {
            Self::By(days) => *days,
            Self::Within {
                days,
                keyed,
                has_subject,
            } => {
                let hash = if *has_subject {
                    Canonical::of_subject(subject)?.hash(
                        keyed,
                        b"date_shift/subject",
                        &days.to_be_bytes(),
                    )
                } else {
                    let era = if parsed.is_before_christ {
                        BEFORE_CHRIST
                    } else {
                        b""
                    };
                    let mut date = [0; YEAR_DIGITS_MAX + MONTH_AND_DAY_BYTES + BEFORE_CHRIST.len()];
                    let end = parsed.date_end();
                    date[..end].copy_from_slice(&text.as_bytes()[..end]);
                    date[end..end + era.len()].copy_from_slice(era);
                    let date = &date[..end + era.len()];
                    keyed.hash(b"date_shift", &[&days.to_be_bytes(), date])
                };
                drawn(&hash, *days)
            }
        };
        parsed.write_with(
            text,
            CivilDate::of_days(parsed.date.days() + i64::from(days)),
            out,
        )
    }
}

/// Selects one of the 2 * `days` shifts that are not 0.
fn drawn(hash: &[u8; 32], days: i32) -> i32 {
    let number = hash[..8]
        .iter()
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let shift = (number % (2 * i64::from(days)) as u64) as i32 - days;
    if shift < 0 { shift } else { shift + 1 }
}

/// `generalize(date=...)`: returns the first day of the month or year, at midnight.
pub(super) fn coarsen(period: Period, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
    let text = text(value)?;
    if INFINITIES.contains(&text) {
        write::str(out, text);
        return Ok(());
    }
    let parsed = parse(text)?;
    let month = if period == Period::Year {
        1
    } else {
        parsed.date.month
    };
    parsed.write_with(
        text,
        CivilDate {
            month,
            day: 1,
            ..parsed.date
        },
        out,
    )?;
    let text_at = out.len() - text.len();
    let time = text_at + parsed.date_end()..text_at + parsed.time_end;
    out[time]
        .iter_mut()
        .filter(|byte| byte.is_ascii_digit())
        .for_each(|byte| *byte = b'0');
    Ok(())
}

fn text(value: Value<'_>) -> Result<&str, Unfit> {
    match value {
        Value::Str(text) if text.len() <= SHORT_BYTES_MAX => Ok(text),
        Value::Str(_) => Err(NOT_A_DATE),
        _ => Err(Unfit::Type),
    }
}

/// Parses the date of a text.
fn parse(text: &str) -> Result<ParsedDate, Unfit> {
    let bytes = text.as_bytes();
    let year_digits = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let is_padded = year_digits > 4 && bytes[0] == b'0';
    if !(4..=YEAR_DIGITS_MAX).contains(&year_digits) || is_padded {
        return Err(NOT_A_DATE);
    }
    let (year, rest) = bytes.split_at(year_digits);
    let (month_and_day, rest) = rest
        .split_at_checked(MONTH_AND_DAY_BYTES)
        .ok_or(NOT_A_DATE)?;
    let [b'-', m1, m2, b'-', d1, d2] = month_and_day else {
        return Err(NOT_A_DATE);
    };
    let time = rest.strip_suffix(BEFORE_CHRIST).unwrap_or(rest);
    let is_before_christ = time.len() < rest.len();

    let year = year
        .iter()
        .fold(0, |year, digit| year * 10 + i64::from(digit - b'0'));
    let month = number(&[*m1, *m2]).ok_or(NOT_A_DATE)?.into();
    let day = number(&[*d1, *d2]).ok_or(NOT_A_DATE)?.into();
    let date = CivilDate {
        year: if is_before_christ { 1 - year } else { year },
        month,
        day,
    };
    // A date that does not exist has the number of days of another one.
    let is_real = year > 0 && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_real || CivilDate::of_days(date.days()).day != day {
        return Err(NOT_A_DATE);
    }

    let time_bytes = time_of_day(time).ok_or(NOT_A_DATE)?;
    let zone = time[time_bytes..]
        .strip_prefix(b" ")
        .unwrap_or(&time[time_bytes..]);
    let is_right = if time_bytes == 0 {
        time.is_empty()
    } else {
        is_zone(zone)
    };
    let time_end = year_digits + MONTH_AND_DAY_BYTES + time_bytes;
    if is_right {
        Ok(ParsedDate {
            date,
            year_digits,
            time_end,
            is_before_christ,
        })
    } else {
        Err(NOT_A_DATE)
    }
}

/// Returns the number of bytes of `T10:00`, ` 10:00:00` or ` 10:00:00.123`; 0 for an empty slice.
fn time_of_day(rest: &[u8]) -> Option<usize> {
    let Some(separator) = rest.first() else {
        return Some(0);
    };
    if !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let minutes = hours_and_minutes(rest.get(1..6)?)?;
    let Some([b':', s1, s2, fraction @ ..]) = rest.get(6..) else {
        return Some(minutes + 1);
    };
    // Second 60 is a leap second.
    number(&[*s1, *s2]).filter(|second| *second <= 60)?;
    let Some((b'.', fraction)) = fraction.split_first() else {
        return Some(9);
    };
    let digits = fraction
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    (1..=12).contains(&digits).then_some(10 + digits)
}

/// Returns 5, the number of bytes of `10:00`, if the text is valid.
fn hours_and_minutes(text: &[u8]) -> Option<usize> {
    let [h1, h2, b':', m1, m2] = text else {
        return None;
    };
    let hours = number(&[*h1, *h2])?;
    let minutes = number(&[*m1, *m2])?;
    // Hour 24 is the end of a day.
    (hours <= 24 && minutes < 60).then_some(5)
}

/// Returns true for an empty slice, `Z`, `+01`, `+01:00`, `+0100` or `+01:00:00`.
fn is_zone(zone: &[u8]) -> bool {
    match zone {
        [] | [b'Z' | b'z'] => true,
        [b'+' | b'-', a, b] => is_below_60(*a, *b),
        [b'+' | b'-', a, b, c, d] | [b'+' | b'-', a, b, b':', c, d] => {
            is_below_60(*a, *b) && is_below_60(*c, *d)
        }
        [b'+' | b'-', a, b, b':', c, d, b':', e, f] => {
            is_below_60(*a, *b) && is_below_60(*c, *d) && is_below_60(*e, *f)
        }
        _ => false,
    }
}

/// Returns true if two digits are a number below 60.
fn is_below_60(tens: u8, ones: u8) -> bool {
    number(&[tens, ones]).is_some_and(|number| number < 60)
}

fn number(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0, |number, digit| {
        digit
            .is_ascii_digit()
            .then(|| number * 10 + u16::from(digit - b'0'))
    })
}
