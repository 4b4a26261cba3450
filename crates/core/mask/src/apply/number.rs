//! `noise`, and `generalize` for numbers: integers, floats, and plain decimal texts. The result has
//! the type of the input.
//!
//! All computation is decimal. 12.34 keeps two decimals and has the same mask as a float, a text or
//! a NUMERIC. A float that is not plain digits is masked in binary. `noise` depends on the number
//! alone, not on its type or on trailing zeros.

use sealwire_msgpack::write;

use super::Unfit;
use super::bytes::Canonical;
use crate::Value;
use crate::keys::KeyedHmac;
use sealwire_mask_rules::NumberBounds;

const NOT_A_NUMBER: Unfit =
    Unfit::Shape("a plain decimal number of at most 30 digits, without leading zeros");

/// Maximum number of digits.
const DIGITS_MAX: usize = 30;
/// The largest digits of a result: 31 of them.
const RESULT_MAX: u128 = 10_u128.pow(DIGITS_MAX as u32 + 1) - 1;

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
    /// Returns an error if adding `step` to the float can give the same float. The mask would then
    /// not change the value.
    fn tells_apart(self, value: f64, step: u64) -> Result<(), Unfit> {
        let digits = if matches!(self, Self::Single) {
            f32::MANTISSA_DIGITS
        } else {
            f64::MANTISSA_DIGITS
        };
        if value.abs() < step as f64 * (1_u64 << (digits - 1)) as f64 {
            Ok(())
        } else {
            Err(Unfit::Range)
        }
    }

    /// Returns true if numbers of this form can have `scale` decimals. `decimals` is the number of
    /// decimals of the input.
    fn holds(self, scale: usize, decimals: usize) -> bool {
        match self {
            Self::Signed | Self::Unsigned => scale == 0,
            Self::Single | Self::Float => true,
            Self::Text => scale <= decimals,
        }
    }

    /// Returns the largest digits of `scale` decimals that the form holds beside the sign.
    /// `decimals` is the number of decimals of the input. Returns `None` if the form cannot hold
    /// `scale` decimals.
    fn digits_max(self, is_negative: bool, scale: usize, decimals: usize) -> Option<u128> {
        match self {
            Self::Signed => (scale == 0).then(|| i64::MAX as u128 + u128::from(is_negative)),
            Self::Unsigned => (scale == 0).then_some(u64::MAX.into()),
            Self::Single | Self::Float => Some(RESULT_MAX),
            Self::Text => decimals
                .checked_sub(scale)
                .map(|zeros| RESULT_MAX / 10_u128.pow(zeros as u32)),
        }
    }
}

/// The magnitude of a float of one of the two widths.
#[derive(Clone, Copy)]
enum Magnitude {
    Single(f32),
    Double(f64),
}

impl Magnitude {
    fn of(value: f64, form: Form) -> Self {
        if matches!(form, Form::Single) {
            Self::Single(value as f32)
        } else {
            Self::Double(value)
        }
    }

    /// Returns the float of this width that is nearest to a decimal text.
    fn parse(text: &str, form: Form) -> Option<Self> {
        if matches!(form, Form::Single) {
            text.parse().ok().map(Self::Single)
        } else {
            text.parse().ok().map(Self::Double)
        }
    }

    fn get(self) -> f64 {
        match self {
            Self::Single(value) => value.into(),
            Self::Double(value) => value,
        }
    }

    /// Returns the adjacent floats, the smaller first.
    fn neighbors(self) -> [Self; 2] {
        match self {
            Self::Single(value) => [
                Self::Single(value.next_down()),
                Self::Single(value.next_up()),
            ],
            Self::Double(value) => [
                Self::Double(value.next_down()),
                Self::Double(value.next_up()),
            ],
        }
    }

    /// Returns the shortest decimal that identifies the float, if it has at most [`DIGITS_MAX`]
    /// digits.
    fn decimal(self) -> Option<Decimal> {
        let mut text = zmij::Buffer::new();
        Decimal::of_float(match self {
            Self::Single(value) => text.format_finite(value),
            Self::Double(value) => text.format_finite(value),
        })
    }

    /// Returns this candidate if it fits, else an adjacent float of `given` that does. `drawn`
    /// orders the neighbors.
    fn or_neighbor(
        self,
        given: Self,
        drawn: u128,
        fits: impl Fn(Self) -> bool,
    ) -> Result<Self, Unfit> {
        let mut neighbors = given.neighbors();
        if drawn % 2 == 1 {
            neighbors.reverse();
        }
        std::iter::once(self)
            .chain(neighbors)
            .find(|candidate| {
                candidate.get() != given.get() && candidate.get() >= 0.0 && fits(*candidate)
            })
            .ok_or(Unfit::NoOther)
    }

    fn write(self, is_negative: bool, out: &mut Vec<u8>) {
        match self {
            Self::Single(value) => write::f32(out, if is_negative { -value } else { value }),
            Self::Double(value) => write::f64(out, if is_negative { -value } else { value }),
        }
    }
}

/// A number to be masked.
enum Number {
    Decimal(Decimal, Form),
    /// A float that is not plain digits, or has too many of them.
    Binary(f64, Form),
}

impl Number {
    fn integer(is_negative: bool, digits: u64, form: Form) -> Self {
        Self::Decimal(
            Decimal {
                is_negative,
                digits: digits.into(),
                scale: 0,
            },
            form,
        )
    }

    fn of(value: Value<'_>) -> Result<Self, Unfit> {
        Ok(match value {
            Value::Int(value) => Self::integer(value < 0, value.unsigned_abs(), Form::Signed),
            Value::Uint(value) => Self::integer(false, value, Form::Unsigned),
            Value::Single(value) if value.is_finite() => Self::float(
                zmij::Buffer::new().format_finite(value),
                value.into(),
                Form::Single,
            ),
            Value::Float(value) if value.is_finite() => {
                Self::float(zmij::Buffer::new().format_finite(value), value, Form::Float)
            }
            Value::Single(_) | Value::Float(_) => return Err(Unfit::Shape("a finite number")),
            Value::Str(text) => Self::Decimal(Decimal::read(text).ok_or(NOT_A_NUMBER)?, Form::Text),
            Value::Nil | Value::Bool(_) | Value::Bin(_) | Value::Ext(..) => {
                return Err(Unfit::Type);
            }
        })
    }

    fn float(shortest: &str, value: f64, form: Form) -> Self {
        // A whole float must stay whole.
        let plain = Decimal::read(shortest.strip_suffix(".0").unwrap_or(shortest));
        plain.map_or(Self::Binary(value, form), |decimal| {
            Self::Decimal(decimal, form)
        })
    }
}

impl Decimal {
    fn read(text: &str) -> Option<Self> {
        let (is_negative, text) = text
            .strip_prefix('-')
            .map_or((false, text), |rest| (true, rest));
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
            .try_fold(0_u128, |digits, digit| {
                digit
                    .is_ascii_digit()
                    .then(|| digits * 10 + u128::from(digit - b'0'))
            })?;
        Some(Self {
            is_negative,
            digits,
            scale: fraction.len(),
        })
    }

    /// Reads the shortest text of a float, which can have an exponent.
    fn of_float(text: &str) -> Option<Self> {
        let (text, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let exponent: i32 = exponent.parse().ok()?;
        let mut decimal = Self::read(text)?.normal();
        let fewer = usize::try_from(exponent.max(0)).ok()?.min(decimal.scale);
        decimal.scale -= fewer;
        let zeros = usize::try_from(exponent.max(0)).ok()? - fewer;
        decimal.scale += usize::try_from(exponent.min(0).unsigned_abs()).ok()?;
        if zeros > DIGITS_MAX || decimal.scale >= DIGITS_MAX {
            return None;
        }
        decimal.digits = decimal.digits.checked_mul(10_u128.pow(zeros as u32))?;
        (decimal.digits < 10_u128.pow(DIGITS_MAX as u32)).then_some(decimal)
    }

    /// Returns the number with the fewest decimals, and zero without a sign: the one form of all
    /// equal numbers.
    fn normal(mut self) -> Self {
        while self.scale > 0 && self.digits.is_multiple_of(10) {
            self.digits /= 10;
            self.scale -= 1;
        }
        self.is_negative &= self.digits > 0;
        self
    }

    /// Returns the same number with one more decimal. `None` if it has too many digits.
    fn finer(self) -> Option<Self> {
        let finer = Self {
            digits: self.digits * 10,
            scale: self.scale + 1,
            ..self
        };
        (finer.scale < DIGITS_MAX && finer.digits < 10_u128.pow(DIGITS_MAX as u32)).then_some(finer)
    }

    /// Returns the integer that represents 1 at this scale.
    fn unit(&self) -> u128 {
        10_u128.pow(self.scale as u32)
    }

    /// Writes the number into the buffer `text` and returns the text.
    fn print<'t>(&self, text: &'t mut [u8; 48]) -> &'t str {
        let mut at = text.len();
        let mut rest = self.digits;
        let mut left = self.scale + 1;
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
            let step = u128::from(step)
                .checked_mul(decimal.unit())
                .ok_or(Unfit::Range)?;
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

/// Magnitudes from which noise chooses, as digits of one scale.
#[derive(Clone, Copy)]
struct Window {
    low: u128,
    high: u128,
}

impl Window {
    fn contains(self, digits: u128) -> bool {
        (self.low..=self.high).contains(&digits)
    }

    /// Returns one of the magnitudes other than `given`, or `None` without another magnitude.
    fn choose(self, given: u128, drawn: u128) -> Option<u128> {
        let all = self.high.checked_sub(self.low)? + 1;
        let others = all - u128::from(self.contains(given));
        let chosen = self.low + drawn.checked_rem(others)?;
        Some(chosen + u128::from(self.contains(given) && chosen >= given))
    }
}

/// `noise`: a nearby number other than the number itself, derived from the key.
#[derive(Debug)]
pub(crate) struct Noise {
    pub(super) keyed: KeyedHmac,
    pub(super) reach: NoiseRange,
    pub(super) bounds: NumberBounds,
    pub(super) has_subject: bool,
}

impl Noise {
    pub(super) fn mask_value(
        &self,
        value: Value<'_>,
        subject: Option<Value<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        match Number::of(value)? {
            Number::Decimal(decimal, form) => self.apply_decimal(decimal, form, subject, out),
            Number::Binary(value, form) => match Magnitude::of(value.abs(), form).decimal() {
                Some(decimal) => {
                    let decimal = Decimal {
                        is_negative: value.is_sign_negative(),
                        ..decimal
                    };
                    self.apply_decimal(decimal, form, subject, out)
                }
                None => self.apply_binary(value, form, subject, out),
            },
        }
    }

    fn apply_decimal(
        &self,
        decimal: Decimal,
        form: Form,
        subject: Option<Value<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        // The draw depends on the number alone, so that equal numbers of all types have equal
        // masks.
        let mut given = decimal.normal();
        let mut text = [0; 48];
        let drawn = self.draw(given.print(&mut text).as_bytes(), subject)?;
        let (mut window, mut chosen) = loop {
            let window = self.window(&given, self.reach_of(&given));
            if let Some(chosen) = window.choose(given.digits, drawn) {
                break (window, chosen);
            }
            if let Some(finer) = given
                .finer()
                .filter(|finer| form.holds(finer.scale, decimal.scale))
            {
                given = finer;
                continue;
            }
            // No other number is within the reach, as of zero: the next one is taken instead.
            given = if matches!(form, Form::Text) {
                given
            } else {
                decimal.normal()
            };
            let window = self.window(&given, 1);
            let chosen = window.choose(given.digits, drawn).ok_or(Unfit::NoOther)?;
            break (window, chosen);
        };
        let digits_max = form
            .digits_max(given.is_negative, given.scale, decimal.scale)
            .ok_or(Unfit::NoOther)?;
        if chosen > digits_max {
            window.high = digits_max;
            chosen = window.choose(given.digits, drawn).ok_or(Unfit::NoOther)?;
        }
        let masked = Decimal {
            digits: chosen,
            is_negative: given.is_negative && chosen > 0,
            ..given
        };
        match form {
            Form::Single | Form::Float => {
                let masked = nearest_float(masked, given, window, form, drawn)?;
                masked.write(given.is_negative && masked.get() > 0.0, out);
                Ok(())
            }
            Form::Text => {
                let digits = chosen * 10_u128.pow((decimal.scale - given.scale) as u32);
                Decimal {
                    digits,
                    scale: decimal.scale,
                    ..masked
                }
                .write(form, out)
            }
            Form::Signed | Form::Unsigned => masked.write(form, out),
        }
    }

    fn apply_binary(
        &self,
        value: f64,
        form: Form,
        subject: Option<Value<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        let drawn = self.draw(&value.to_bits().to_be_bytes(), subject)?;
        // A value from 0 to below 1, with 53 bits.
        let share = (drawn >> 75) as f64 / (1_u64 << 53) as f64;
        let is_negative = value.is_sign_negative();
        let given = value.abs();
        let reach = match self.reach {
            NoiseRange::Of(millionths) => given * (f64::from(millionths) / 1e6),
            NoiseRange::Fixed(by) => by as f64,
        };
        let largest = if matches!(form, Form::Single) {
            f32::MAX.into()
        } else {
            f64::MAX
        };
        let mut low = (given - reach).max(0.0);
        let mut high = (given + reach).min(largest);
        let (least, most) = self.magnitudes(is_negative);
        low = least.map_or(low, |least| low.max(least as f64));
        high = most.map_or(high, |most| high.min(most as f64));
        let chosen = Magnitude::of(low + (high - low) * share, form).or_neighbor(
            Magnitude::of(given, form),
            drawn,
            |magnitude| (low..=high).contains(&magnitude.get()),
        )?;
        chosen.write(is_negative && chosen.get() > 0.0, out);
        Ok(())
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
            self.keyed
                .hash(b"noise/subject", &[&settings, number, subject.bytes()])
        } else {
            self.keyed.hash(b"noise", &[&settings, number])
        };
        Ok(hash[..16]
            .iter()
            .fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }

    /// Returns the smallest and the largest magnitude that the bounds allow on this side of zero.
    /// The largest is negative if they allow none.
    fn magnitudes(&self, is_negative: bool) -> (Option<i128>, Option<i128>) {
        let NumberBounds { min, max } = self.bounds;
        let min = min.map(i128::from);
        let max = max.map(i128::from);
        if is_negative {
            (max.map(|max| -max), min.map(|min| -min))
        } else {
            (min, max)
        }
    }

    /// Returns the maximum distance from the number, in its last digit.
    fn reach_of(&self, given: &Decimal) -> u128 {
        match self.reach {
            // Cannot overflow: less than 10^30 times 10^6.
            NoiseRange::Of(millionths) => given.digits * u128::from(millionths) / 1_000_000,
            NoiseRange::Fixed(by) => u128::from(by).saturating_mul(given.unit()).min(RESULT_MAX),
        }
    }

    /// Returns the magnitudes within a reach and the bounds, on the number's side of zero.
    fn window(&self, given: &Decimal, reach: u128) -> Window {
        let mut low = given.digits.saturating_sub(reach);
        let mut high = (given.digits + reach).min(RESULT_MAX);
        let (least, most) = self.magnitudes(given.is_negative);
        if let Some(least) = least {
            low = low.max(
                u128::try_from(least)
                    .unwrap_or(0)
                    .saturating_mul(given.unit()),
            );
        }
        match most.map(u128::try_from) {
            Some(Ok(most)) => high = high.min(most.saturating_mul(given.unit())),
            // An empty window.
            Some(Err(_)) => low = high + 1,
            None => {}
        }
        Window { low, high }
    }
}

/// Returns the float for `masked`. If rounding leads to the given number or out of the window,
/// returns the float next to the given number instead.
fn nearest_float(
    masked: Decimal,
    given: Decimal,
    window: Window,
    form: Form,
    drawn: u128,
) -> Result<Magnitude, Unfit> {
    let [masked, given_float, low, high] = [masked.digits, given.digits, window.low, window.high]
        .map(|digits| {
            let magnitude = Decimal {
                digits,
                is_negative: false,
                ..given
            };
            Magnitude::parse(magnitude.print(&mut [0; 48]), form)
        });
    let low = low.ok_or(Unfit::Range)?.get();
    let high = high.ok_or(Unfit::Range)?.get();
    let given_float = given_float.ok_or(Unfit::Range)?;
    masked
        .ok_or(Unfit::Range)?
        .or_neighbor(given_float, drawn, |magnitude| {
            // A float strictly between the rounded ends is between the ends. A float at a rounded
            // end can be outside.
            (low < magnitude.get() && magnitude.get() < high)
                || magnitude.decimal().is_some_and(|decimal| {
                    let zeros = given.scale.checked_sub(decimal.scale);
                    zeros
                        .and_then(|zeros| decimal.digits.checked_mul(10_u128.pow(zeros as u32)))
                        .is_some_and(|digits| window.contains(digits))
                })
        })
}
