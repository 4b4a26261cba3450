//! `noise`, and `generalize` for numbers: integers, floats, and plain decimal texts. The result has the type of the
//! input.
//!
//! All computation is decimal. 12.34 keeps two decimals and has the same mask as a float, a text or a NUMERIC. A float
//! that is not plain digits is masked in binary.

use sealwire_msgpack::write;

use super::Unfit;
use super::bytes::Canonical;
use crate::Value;
use crate::keys::KeyedHmac;

const NOT_A_NUMBER: Unfit = Unfit::Shape("a plain decimal number of at most 30 digits, without leading zeros");

/// Maximum number of digits.
const DIGITS_MAX: usize = 30;

/// A decimal number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decimal {
    is_negative: bool,
    /// The digits without the point; below 10^30.
    digits: u128,
    /// Number of decimals (digits after the point).
    scale: usize,
}

/// The type of the input, which the output must have.
#[derive(Clone, Copy)]
enum Form {
    Signed,
    Unsigned,
    Single,
    Float,
    Text,
}

impl Form {
    /// Returns an error if adding `step` to the float can give the same float. The mask would then not change the
    /// value.
    fn tells_apart(self, value: f64, step: u64) -> Result<(), Unfit> {
        let digits = if matches!(self, Self::Single) { f32::MANTISSA_DIGITS } else { f64::MANTISSA_DIGITS };
        if value.abs() < step as f64 * (1_u64 << (digits - 1)) as f64 { Ok(()) } else { Err(Unfit::Range) }
    }
}

/// A number to be masked.
enum Number {
    Decimal(Decimal, Form),
    /// A float that is not plain digits, or has too many of them.
    Binary(f64, Form),
}

impl Number {
    fn of(value: Value<'_>) -> Result<Self, Unfit> {
        let integer = |is_negative, digits: u64, form| {
            Self::Decimal(Decimal { is_negative, digits: digits.into(), scale: 0 }, form)
        };
        Ok(match value {
            Value::Int(value) => integer(value < 0, value.unsigned_abs(), Form::Signed),
            Value::Uint(value) => integer(false, value, Form::Unsigned),
            Value::Single(value) if value.is_finite() => {
                Self::float(zmij::Buffer::new().format_finite(value), value.into(), Form::Single)
            }
            Value::Float(value) if value.is_finite() => {
                Self::float(zmij::Buffer::new().format_finite(value), value, Form::Float)
            }
            Value::Single(_) | Value::Float(_) => return Err(Unfit::Shape("a finite number")),
            Value::Str(text) => Self::Decimal(Decimal::read(text).ok_or(NOT_A_NUMBER)?, Form::Text),
            Value::Nil | Value::Bool(_) | Value::Bin(_) | Value::Ext(..) => return Err(Unfit::Type),
        })
    }

    fn float(shortest: &str, value: f64, form: Form) -> Self {
        // A whole float must stay whole.
        let plain = Decimal::read(shortest.strip_suffix(".0").unwrap_or(shortest));
        plain.map_or(Self::Binary(value, form), |decimal| Self::Decimal(decimal, form))
    }
}

impl Decimal {
    fn read(text: &str) -> Option<Self> {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let is_plain = !whole.is_empty()
            && (whole == "0" || !whole.starts_with('0'))
            && text.contains('.') != fraction.is_empty()
            && whole.len() + fraction.len() <= DIGITS_MAX;
        // This check comes first, since `digits` holds only that many digits.
        if !is_plain {
            return None;
        }
        let digits = whole
            .bytes()
            .chain(fraction.bytes())
            .try_fold(0_u128, |digits, digit| digit.is_ascii_digit().then(|| digits * 10 + u128::from(digit - b'0')))?;
        Some(Self { is_negative, digits, scale: fraction.len() })
    }

    /// Returns the integer that represents 1 at this scale.
    fn unit(&self) -> u128 {
        10_u128.pow(self.scale as u32)
    }

    /// Writes the number into the buffer `text` and returns the text.
    fn print<'t>(&self, text: &'t mut [u8; 48]) -> &'t str {
        let (mut at, mut rest, mut left) = (text.len(), self.digits, self.scale + 1);
        while rest > 0 || left > 0 {
            if left == 1 && self.scale > 0 {
                at -= 1;
                text[at] = b'.';
            }
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            left = left.saturating_sub(1);
        }
        if self.is_negative {
            at -= 1;
            text[at] = b'-';
        }
        std::str::from_utf8(&text[at..]).unwrap_or_default()
    }

    /// Appends the number in the given form.
    fn write(&self, form: Form, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let mut text = [0; 48];
        let text = self.print(&mut text);
        match form {
            Form::Signed => write::int(out, text.parse().map_err(|_| Unfit::Range)?),
            Form::Unsigned => write::uint(out, text.parse().map_err(|_| Unfit::Range)?),
            Form::Single => write::f32(out, text.parse().map_err(|_| Unfit::Range)?),
            Form::Float => write::f64(out, text.parse().map_err(|_| Unfit::Range)?),
            Form::Text => write::str(out, text),
        }
        Ok(())
    }
}

/// Appends a float. Values out of range become the largest or smallest finite value.
fn write_binary(value: f64, form: Form, out: &mut Vec<u8>) {
    match form {
        Form::Single => write::f32(out, (value as f32).clamp(f32::MIN, f32::MAX)),
        _ => write::f64(out, value.clamp(f64::MIN, f64::MAX)),
    }
}

/// `generalize(step=...)`: rounds down to a multiple of `step`.
pub(super) fn step(step: u64, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
    match Number::of(value)? {
        Number::Decimal(mut decimal, form) => {
            let step = u128::from(step).checked_mul(decimal.unit()).ok_or(Unfit::Range)?;
            let over = decimal.digits % step;
            decimal.digits -= over;
            if decimal.is_negative && over > 0 {
                decimal.digits = decimal.digits.checked_add(step).ok_or(Unfit::Range)?;
            }
            decimal.is_negative &= decimal.digits > 0;
            if decimal.digits >= 10_u128.pow(DIGITS_MAX as u32 + 1) {
                return Err(Unfit::Range);
            }
            decimal.write(form, out)
        }
        Number::Binary(value, form) => {
            form.tells_apart(value, step)?;
            write_binary((value / step as f64).floor() * step as f64, form, out);
            Ok(())
        }
    }
}

/// The maximum distance of noise from the number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoiseRange {
    /// A share of the number, in millionths.
    Of(u32),
    /// A distance that is the same for every number.
    Fixed(u64),
}

/// `noise`: a nearby number, derived from the key.
#[derive(Debug)]
pub(crate) struct Noise {
    pub(super) keyed: KeyedHmac,
    pub(super) reach: NoiseRange,
    pub(super) has_subject: bool,
}

impl Noise {
    pub(super) fn apply(&self, value: Value<'_>, subject: Option<Value<'_>>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        match Number::of(value)? {
            Number::Decimal(decimal, form) => {
                let mut text = [0; 48];
                let drawn = self.draw(decimal.print(&mut text).as_bytes(), subject)?;
                let moved = self.moved(decimal, drawn)?;
                match (moved.write(form, out), form) {
                    // Values out of range become the largest or smallest integer.
                    (Err(Unfit::Range), Form::Signed) if decimal.is_negative => write::int(out, i64::MIN),
                    (Err(Unfit::Range), Form::Signed) => write::int(out, i64::MAX),
                    (Err(Unfit::Range), Form::Unsigned) => write::uint(out, u64::MAX),
                    (written, _) => return written,
                }
                Ok(())
            }
            Number::Binary(value, form) => {
                let drawn = self.draw(&value.to_bits().to_be_bytes(), subject)?;
                // A value from -1 to 1, with 53 bits.
                let share = (drawn >> 75) as f64 / (1_u64 << 52) as f64 - 1.0;
                let reach = match self.reach {
                    NoiseRange::Of(millionths) => value.abs() * (f64::from(millionths) / 1e6),
                    NoiseRange::Fixed(by) => {
                        form.tells_apart(value, by)?;
                        by as f64
                    }
                };
                write_binary(value + reach * share, form, out);
                Ok(())
            }
        }
    }

    fn draw(&self, number: &[u8], subject: Option<Value<'_>>) -> Result<u128, Unfit> {
        let reach = match self.reach {
            NoiseRange::Of(millionths) => [0, u64::from(millionths)],
            NoiseRange::Fixed(by) => [1, by],
        };
        let mut settings = [0; 9];
        settings[0] = reach[0] as u8;
        settings[1..].copy_from_slice(&reach[1].to_be_bytes());
        let hash = if self.has_subject {
            let subject = Canonical::of_subject(subject)?;
            self.keyed.hash(b"noise/subject", &[&settings, number, subject.bytes()])
        } else {
            self.keyed.hash(b"noise", &[&settings, number])
        };
        Ok(hash[..16].iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }

    /// Moves `decimal` by at most the reach. The sign does not change.
    fn moved(&self, decimal: Decimal, drawn: u128) -> Result<Decimal, Unfit> {
        let reach = match self.reach {
            // Cannot overflow: less than 10^30 times 10^6.
            NoiseRange::Of(millionths) => decimal.digits * u128::from(millionths) / 1_000_000,
            NoiseRange::Fixed(by) => u128::from(by).checked_mul(decimal.unit()).ok_or(Unfit::Range)?,
        };
        let span = reach.checked_mul(2).and_then(|twice| twice.checked_add(1)).ok_or(Unfit::Range)?;
        let digits = decimal.digits.checked_add(drawn % span).ok_or(Unfit::Range)?.saturating_sub(reach);
        if digits >= 10_u128.pow(DIGITS_MAX as u32 + 1) {
            return Err(Unfit::Range);
        }
        Ok(Decimal { digits, is_negative: decimal.is_negative && digits > 0, ..decimal })
    }
}
