//! Dates and points in time.
//!
//! Years are 0001 to 9999, also after conversion to UTC: databases and libraries disagree on all
//! others.

use std::fmt::Write as _;

use sealwire_msgpack::Token;
use time::{Date, Duration, Month, PrimitiveDateTime, Time};
use zeroize::Zeroizing;

use super::{Checked, stored, string_text};

const DATE: &str = "be a date of the Gregorian calendar like 2026-01-31";
const TIMESTAMP: &str =
    "be a time with an offset like 2026-01-31T12:00:00+01:00 or 2026-01-31T11:00:00.5Z";
/// Type of the MessagePack extension for timestamps.
const EXTENSION: i8 = -1;

/// Stores a date as given: there is one way to write it.
pub(super) fn check_date(text: &str) -> Checked {
    parse_date(text.as_bytes()).ok_or(DATE)?;
    Ok(stored(text))
}

/// Stores a point in time in UTC: `YYYY-MM-DDTHH:MM:SS[.fraction]Z`. Digits of the fraction are
/// kept.
pub(super) fn check_timestamp(token: Token<'_>) -> Checked {
    match token {
        Token::Ext(EXTENSION, bytes) => {
            from_extension(bytes).ok_or("be a MessagePack timestamp of the years 1 to 9999")
        }
        token => from_rfc3339(string_text(token, TIMESTAMP)?).ok_or(TIMESTAMP),
    }
}

/// Returns the number of a fixed count of digits.
fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    let is_digits = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| is_digits)?
        .parse()
        .ok()
}

fn parse_date(text: &[u8]) -> Option<Date> {
    let [y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1] = *text else {
        return None;
    };
    let year = number(&[y0, y1, y2, y3]).filter(|year| *year > 0)?;
    let month: u8 = number(&[m0, m1])?;
    Date::from_calendar_date(year, Month::try_from(month).ok()?, number(&[d0, d1])?).ok()
}

/// Parses the time of day without fraction.
fn parse_time(text: &[u8]) -> Option<Time> {
    let [h0, h1, b':', m0, m1, b':', s0, s1] = *text else {
        return None;
    };
    // A leap second cannot be compared with other times, so it is invalid.
    Time::from_hms(number(&[h0, h1])?, number(&[m0, m1])?, number(&[s0, s1])?).ok()
}

/// Parses an offset from UTC: `Z`, `+HH:MM` or `-HH:MM`.
fn parse_offset(text: &[u8]) -> Option<Duration> {
    let (sign, hours, minutes) = match *text {
        [b'Z' | b'z'] => return Some(Duration::ZERO),
        [sign @ (b'+' | b'-'), h0, h1, b':', m0, m1] => {
            (sign, number(&[h0, h1])?, number(&[m0, m1])?)
        }
        _ => return None,
    };
    let offset = Duration::hours(hours) + Duration::minutes(minutes);
    (hours < 24 && minutes < 60).then_some(if sign == b'-' { -offset } else { offset })
}

fn from_rfc3339(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let (date, rest) = text.as_bytes().split_at_checked(10)?;
    let (separator, rest) = rest.split_first()?;
    let (time, rest) = rest.split_at_checked(8)?;
    let local = PrimitiveDateTime::new(parse_date(date)?, parse_time(time)?);
    let (fraction, offset) = match rest.strip_prefix(b".") {
        Some(rest) => rest.split_at(rest.iter().take_while(|byte| byte.is_ascii_digit()).count()),
        None => (&[][..], rest),
    };
    let has_fraction = rest.first() == Some(&b'.');
    if !matches!(separator, b'T' | b't') || has_fraction != (1..=9).contains(&fraction.len()) {
        return None;
    }
    in_utc(
        local.checked_sub(parse_offset(offset)?)?,
        std::str::from_utf8(fraction).ok()?,
    )
}

/// Reads the 4, 8 or 12 bytes of a MessagePack timestamp.
fn from_extension(bytes: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (seconds, nanoseconds) = match *bytes {
        [a, b, c, d] => (u32::from_be_bytes([a, b, c, d]).into(), 0),
        [n0, n1, n2, n3, ref seconds @ ..] if seconds.len() == 8 => (
            i64::from_be_bytes(seconds.try_into().ok()?),
            u32::from_be_bytes([n0, n1, n2, n3]),
        ),
        _ => {
            let both = u64::from_be_bytes(bytes.try_into().ok()?);
            ((both & ((1 << 34) - 1)) as i64, (both >> 34) as u32)
        }
    };
    let at = time::OffsetDateTime::from_unix_timestamp(seconds).ok()?;
    let fraction = match nanoseconds {
        0 => Zeroizing::new(String::new()),
        1..1_000_000_000 => Zeroizing::new(format!("{nanoseconds:09}")),
        _ => return None,
    };
    in_utc(PrimitiveDateTime::new(at.date(), at.time()), &fraction)
}

/// Encodes a time in UTC with the digits of its fraction.
fn in_utc(at: PrimitiveDateTime, fraction: &str) -> Option<Zeroizing<Vec<u8>>> {
    if !(1..=9999).contains(&at.year()) {
        return None;
    }
    let mut out = Zeroizing::new(String::with_capacity(32));
    write!(
        out,
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    )
    .ok()?;
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out.push('Z');
    Some(stored(&out))
}
