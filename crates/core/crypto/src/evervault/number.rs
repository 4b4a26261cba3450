//! Converts number text to a typed value and back, without losing a digit.
//!
//! Each client writes numbers in its own way: `1`, `1.0`, `1e+21`, an integer of any size, or a
//! numeric string as typed. A text that no 64-bit value holds exactly is returned as text. A card
//! number of 20 digits or a `007` must not turn into another number. A float holds a text exactly
//! if the float prints as that text, so `0.1` is a float.

use std::fmt::{self, Write as _};

/// A number that was opened or will be sealed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A non-negative integer.
    Unsigned(u64),
    /// A negative integer.
    Signed(i64),
    /// Text with a point or an exponent, an integer beyond 64 bits that a float holds exactly,
    /// `-0`, NaN or an infinity. Never used for an integer within 64 bits.
    Float(f64),
}

/// Significant digits that distinguish any two floats. A longer text can only be exact by accident.
const DIGITS_MAX: usize = 17;

/// The result of parsing a number text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Parsed {
    Exact(Number),
    /// A number of some client that 64 bits cannot hold exactly. The caller must keep the text.
    Text,
    /// A text that no client writes.
    Refused,
}

pub(super) fn parse(text: &str) -> Parsed {
    match text {
        // The words of Python, Go and JSON for NaN and infinities. JSON's `null` does not say
        // which.
        "nan" | "NaN" => return Parsed::Exact(Number::Float(f64::NAN)),
        "inf" | "+Inf" => return Parsed::Exact(Number::Float(f64::INFINITY)),
        "-inf" | "-Inf" => return Parsed::Exact(Number::Float(f64::NEG_INFINITY)),
        "null" => return Parsed::Text,
        _ => {}
    }
    // PHP marks every numeric string as a number: white space, signs, leading zeros, bare points.
    if !text.bytes().all(|byte: u8| {
        byte.is_ascii_digit() || byte.is_ascii_whitespace() || b"+-.eE\x0b".contains(&byte)
    }) || !text.bytes().any(|byte| byte.is_ascii_digit())
    {
        return Parsed::Refused;
    }
    exact(text).map_or(Parsed::Text, Parsed::Exact)
}

fn exact(text: &str) -> Option<Number> {
    let decimal = Grammar::of(text)?;
    if decimal.is_whole() {
        if let Ok(value) = text.parse() {
            // `-0` parses as the signed integer 0. Here it falls through to a float and keeps its
            // sign.
            return Some(Number::Unsigned(value));
        }
        if text != "-0"
            && let Ok(value) = text.parse()
        {
            return Some(Number::Signed(value));
        }
        let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite())?;
        return prints_as(format_args!("{value:.0}"), text).then_some(Number::Float(value));
    }
    let value: f64 = text.parse().ok().filter(|value: &f64| value.is_finite())?;
    let digits = Digits::of(text)?;
    let precision = usize::from(digits.length).saturating_sub(1);
    // Accepts the shortest print, or the correctly rounded print of the same length: clients differ
    // in rare cases.
    let mut print = NumberText::default();
    write!(print, "{value:e}").ok()?;
    let mut same = Digits::of(print.as_str()) == Some(digits);
    if !same {
        print = NumberText::default();
        write!(print, "{value:.precision$e}").ok()?;
        same = Digits::of(print.as_str()) == Some(digits);
    }
    same.then_some(Number::Float(value))
}

/// The three parts of a number in JSON's grammar.
struct Grammar<'a> {
    fraction: Option<&'a str>,
    exponent: Option<&'a str>,
}

impl<'a> Grammar<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (text, None),
        };
        let mantissa = mantissa.strip_prefix('-').unwrap_or(mantissa);
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let unsigned =
            exponent.map(|exponent| exponent.strip_prefix(['+', '-']).unwrap_or(exponent));
        let valid = is_digits(whole)
            && (whole == "0" || !whole.starts_with('0'))
            && fraction.is_none_or(is_digits)
            && unsigned.is_none_or(is_digits);
        valid.then_some(Self { fraction, exponent })
    }

    fn is_whole(&self) -> bool {
        self.fraction.is_none() && self.exponent.is_none()
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A decimal value in normal form: `0.d1d2..` times ten to the exponent, without zeros at either
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digits {
    is_negative: bool,
    digits: [u8; DIGITS_MAX],
    length: u8,
    exponent: i64,
}

impl Digits {
    /// Returns `None` when there are more digits or a larger exponent than a float can represent.
    fn of(text: &str) -> Option<Self> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
            Some(mantissa) => (true, mantissa),
            None => (false, mantissa),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = whole.bytes().chain(fraction.bytes());
        let zeros = all.clone().take_while(|digit| *digit == b'0').count();
        let mut digits = Self {
            is_negative,
            digits: [0; DIGITS_MAX],
            length: 0,
            exponent: 0,
        };
        let mut last = 0;
        for (at, digit) in all.skip(zeros).enumerate() {
            if digit != b'0' {
                *digits.digits.get_mut(at)? = digit;
                last = at + 1;
            } else if let Some(place) = digits.digits.get_mut(at) {
                *place = b'0';
            }
        }
        // Trailing zeros are counted in the exponent only.
        digits.digits[last..].fill(0);
        digits.length = u8::try_from(last).ok()?;
        if last > 0 {
            let shift = i64::try_from(whole.len()).ok()? - i64::try_from(zeros).ok()?;
            digits.exponent = exponent.parse::<i64>().ok()?.checked_add(shift)?;
        }
        Some(digits)
    }
}

/// Returns true if `value` prints as `text`, without allocating.
fn prints_as(value: fmt::Arguments<'_>, text: &str) -> bool {
    struct Rest<'a>(&'a str);
    impl fmt::Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    rest.write_fmt(value).is_ok() && rest.0.is_empty()
}

/// The text of a number, stored inline.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberText {
    bytes: [u8; 32],
    length: usize,
}

impl NumberText {
    /// Formats a number. A float always has a point or an exponent, so that it parses as a float
    /// again; `nan`, `inf` and `-inf` are written as in Python.
    #[must_use]
    pub fn new(number: Number) -> Self {
        let mut text = Self::default();
        let written = match number {
            Number::Unsigned(value) => write!(text, "{value}"),
            Number::Signed(value) => write!(text, "{value}"),
            Number::Float(value) if value.is_nan() => text.write_str("nan"),
            Number::Float(value) => write!(text, "{value:?}"),
        };
        written.expect("no 64-bit number takes more than 32 characters");
        text
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).expect("digits, points, signs and letters")
    }
}

impl fmt::Write for NumberText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.bytes[self.length..]
            .get_mut(..part.len())
            .ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.length += part.len();
        Ok(())
    }
}
