//! `date_shift`, and `generalize` for dates. A text keeps its exact form: only the digits of the date change.
//! `generalize` also changes the digits of the time of day.
//!
//! ISO dates, RFC 3339 date-times, and timestamps as SQL writes them: `2024-02-29 10:00:00.5+00`.

use sealwire_msgpack::write;
use time::{Date, Duration, Month};

use super::Unfit;
use super::bytes::Canonical;
use crate::Value;
use crate::keys::KeyedHmac;
use sealwire_mask_rules::Period;
use sealwire_mask_rules::limits::SHORT_BYTES_MAX;

const NOT_A_DATE: Unfit = Unfit::Shape("a date: 2024-02-29, 2024-02-29T10:00:00Z or 2024-02-29 10:00:00+00");

/// Bytes of `2024-02-29`.
const DATE_BYTES: usize = 10;

/// The number of days by which dates are shifted.
#[derive(Debug)]
pub(crate) enum Shift {
    /// A fixed number of days for all dates.
    By(i32),
    /// Between 1 and `days` in either direction, derived from the key. Equal for all dates of one subject, or without a
    /// subject for equal dates.
    Within { days: i32, keyed: KeyedHmac, has_subject: bool },
}

impl Shift {
    pub(super) fn apply(&self, value: Value<'_>, subject: Option<Value<'_>>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let text = text(value)?;
        let (date, _) = parse(text)?;
        let days = match self {
            Self::By(days) => *days,
            Self::Within { days, keyed, has_subject } => {
                let hash = if *has_subject {
                    Canonical::of_subject(subject)?.hash(keyed, b"date_shift/subject", &days.to_be_bytes())
                } else {
                    keyed.hash(b"date_shift", &[&days.to_be_bytes(), &text.as_bytes()[..DATE_BYTES]])
                };
                drawn(&hash, *days)
            }
        };
        let shifted = date.checked_add(Duration::days(days.into())).filter(|date| (1..=9999).contains(&date.year()));
        write_with(text, shifted.ok_or(Unfit::Range)?, out);
        Ok(())
    }
}

/// Selects one of the 2 * `days` shifts that are not 0.
fn drawn(hash: &[u8; 32], days: i32) -> i32 {
    let number = hash[..8].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let shift = (number % (2 * i64::from(days)) as u64) as i32 - days;
    if shift < 0 { shift } else { shift + 1 }
}

/// `generalize(date=...)`: returns the first day of the month or year, at midnight.
pub(super) fn coarsen(period: Period, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
    let text = text(value)?;
    let (date, time_end) = parse(text)?;
    let month = if period == Period::Year { Month::January } else { date.month() };
    write_with(text, Date::from_calendar_date(date.year(), month, 1).map_err(|_| Unfit::Range)?, out);
    let time_at = out.len() - text.len() + DATE_BYTES;
    let time_end = out.len() - text.len() + time_end;
    out[time_at..time_end].iter_mut().filter(|byte| byte.is_ascii_digit()).for_each(|byte| *byte = b'0');
    Ok(())
}

fn text(value: Value<'_>) -> Result<&str, Unfit> {
    match value {
        Value::Str(text) if text.len() <= SHORT_BYTES_MAX => Ok(text),
        Value::Str(_) => Err(NOT_A_DATE),
        _ => Err(Unfit::Type),
    }
}

/// Appends `text` as a string, with its date replaced.
fn write_with(text: &str, date: Date, out: &mut Vec<u8>) {
    write::str_header(out, text.len());
    let digits = |number: u32, divisor: u32| b'0' + (number / divisor % 10) as u8;
    let (year, month, day) = (date.year().unsigned_abs(), u32::from(u8::from(date.month())), u32::from(date.day()));
    out.extend([1000, 100, 10, 1].map(|divisor| digits(year, divisor)));
    out.extend([b'-', digits(month, 10), digits(month, 1), b'-', digits(day, 10), digits(day, 1)]);
    out.extend_from_slice(&text.as_bytes()[DATE_BYTES..]);
}

/// Parses the date of a text. Also returns the byte offset where the time of day ends.
fn parse(text: &str) -> Result<(Date, usize), Unfit> {
    let bytes = text.as_bytes();
    let (date, rest) = bytes.split_at_checked(DATE_BYTES).ok_or(NOT_A_DATE)?;
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = date else { return Err(NOT_A_DATE) };
    let year = number(&[*y1, *y2, *y3, *y4]).filter(|year| *year > 0).ok_or(NOT_A_DATE)?;
    let month = number(&[*m1, *m2]).and_then(|month| Month::try_from(month as u8).ok()).ok_or(NOT_A_DATE)?;
    let day = number(&[*d1, *d2]).ok_or(NOT_A_DATE)?;
    let date = Date::from_calendar_date(i32::from(year), month, day as u8).map_err(|_| NOT_A_DATE)?;
    let time_bytes = time_of_day(rest).ok_or(NOT_A_DATE)?;
    let zone = rest[time_bytes..].strip_prefix(b" ").unwrap_or(&rest[time_bytes..]);
    let is_right = if time_bytes == 0 { rest.is_empty() } else { is_zone(zone) };
    if is_right { Ok((date, DATE_BYTES + time_bytes)) } else { Err(NOT_A_DATE) }
}

/// Returns the number of bytes of `T10:00`, ` 10:00:00` or ` 10:00:00.123`; 0 for an empty slice.
fn time_of_day(rest: &[u8]) -> Option<usize> {
    let Some(separator) = rest.first() else { return Some(0) };
    if !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let minutes = hours_and_minutes(rest.get(1..6)?)?;
    let Some([b':', s1, s2, fraction @ ..]) = rest.get(6..) else { return Some(minutes + 1) };
    // Second 60 is a leap second.
    number(&[*s1, *s2]).filter(|second| *second <= 60)?;
    let Some((b'.', fraction)) = fraction.split_first() else { return Some(9) };
    let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (1..=12).contains(&digits).then_some(10 + digits)
}

/// Returns 5, the number of bytes of `10:00`, if the text is valid.
fn hours_and_minutes(text: &[u8]) -> Option<usize> {
    let [h1, h2, b':', m1, m2] = text else { return None };
    let (hours, minutes) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
    // Hour 24 is the end of a day.
    (hours <= 24 && minutes < 60).then_some(5)
}

/// Returns true for an empty slice, `Z`, `+01`, `+01:00`, `+0100` or `+01:00:00`.
fn is_zone(zone: &[u8]) -> bool {
    let two = |a: &u8, b: &u8| number(&[*a, *b]).is_some_and(|number| number < 60);
    match zone {
        [] | [b'Z' | b'z'] => true,
        [b'+' | b'-', a, b] => two(a, b),
        [b'+' | b'-', a, b, c, d] | [b'+' | b'-', a, b, b':', c, d] => two(a, b) && two(c, d),
        [b'+' | b'-', a, b, b':', c, d, b':', e, f] => two(a, b) && two(c, d) && two(e, f),
        _ => false,
    }
}

fn number(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u16::from(digit - b'0')))
}
