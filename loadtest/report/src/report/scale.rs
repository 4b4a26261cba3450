//! Axes: the position of values, and the choice and format of labels.

use std::ops::RangeInclusive;

/// Maps the values of an axis to positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Linear.
    Linear { from: f64, to: f64 },
    /// Logarithmic; both ends are above zero.
    Log { from: f64, to: f64 },
    /// Quantiles from 0 to below 1, with equal space for each further nine: powers of ten of
    /// `1 / (1 - quantile)`.
    Tail { decades: f64 },
}

/// Range of a logarithmic axis. Values beyond it mean a wrong file and would make the axis endless.
pub(crate) const TIMES: RangeInclusive<f64> = 1e-6..=1e15;
/// Range of a linear axis.
const VALUES: RangeInclusive<f64> = 1e-9..=1e18;

/// Steps of a linear axis and values of a logarithmic axis, within a power of ten.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];
/// Maximum number of labels of a linear axis, without the first.
const TICKS_MAX: f64 = 5.0;
/// Maximum number of decades of a logarithmic axis for labels between powers of ten.
const DECADES_FINE: f64 = 2.4;

impl Scale {
    /// Creates a linear axis from zero to a round number at or above all values.
    pub(crate) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let most = values
            .filter(|value| VALUES.contains(value))
            .fold(0.0, f64::max);
        if most == 0.0 {
            return Self::Linear { from: 0.0, to: 1.0 };
        }
        let step = step(most);
        // Rounding errors must not add a step above a value that is a round number.
        Self::Linear {
            from: 0.0,
            to: (most / step - 1e-9).ceil() * step,
        }
    }

    /// Creates a linear axis from `from` to `to`, without rounding.
    pub(crate) fn between(from: f64, to: f64) -> Self {
        Self::Linear {
            from,
            to: if VALUES.contains(&(to - from)) {
                to
            } else {
                from + 1.0
            },
        }
    }

    /// Creates a logarithmic axis between round numbers around all values. Ignores values of zero
    /// and below.
    pub(crate) fn log(values: impl Iterator<Item = f64>) -> Self {
        let mut least = f64::MAX;
        let mut most = 0.0_f64;
        for value in values.filter(|value| TIMES.contains(value)) {
            least = least.min(value);
            most = most.max(value);
        }
        if most <= 0.0 {
            return Self::Log {
                from: 1.0,
                to: 10.0,
            };
        }
        let from = round_down(least);
        let to = round_up(most);
        if to > from {
            Self::Log { from, to }
        } else {
            Self::Log {
                from: from / 2.0,
                to: to * 2.0,
            }
        }
    }

    /// Creates an axis for the quantiles of `count` values.
    pub(crate) fn tail(count: f64) -> Self {
        Self::Tail {
            decades: (2.0 * count).max(10.0).log10(),
        }
    }

    /// Returns true if a tick is a power of ten on a logarithmic axis. If not all ticks fit, only
    /// these get labels.
    pub(crate) fn is_major(self, tick: f64) -> bool {
        let power = tick.log10();
        !matches!(self, Self::Log { .. }) || (power - power.round()).abs() < 1e-6
    }

    /// Returns the position from 0 to 1; `None` for a value outside the axis.
    pub(crate) fn place(self, value: f64) -> Option<f64> {
        let at = match self {
            Self::Linear { from, to } => (value - from) / (to - from),
            Self::Log { from, to } => (value / from).ln() / (to / from).ln(),
            Self::Tail { decades } => -(1.0 - value).log10() / decades,
        };
        // Values at an end count as within the axis, despite rounding.
        (-1e-6..=1.0 + 1e-6)
            .contains(&at)
            .then(|| at.clamp(0.0, 1.0))
    }

    /// Returns the labelled values of the axis, ascending.
    pub(crate) fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear { from, to } => {
                let step = step(to - from);
                let count = ((to - from) / step + 1e-9).floor() as u32;
                let first = (from / step - 1e-9).ceil() * step;
                let all = (0..=count).map(|at| first + f64::from(at) * step);
                all.filter(|value| *value <= to + step * 1e-9).collect()
            }
            Self::Log { from, to } => {
                let fine = (to / from).log10() <= DECADES_FINE;
                let powers = from.log10().floor() as i32..=to.log10().ceil() as i32;
                let all =
                    powers.flat_map(|power| STEPS.map(|step| (step, step * 10_f64.powi(power))));
                let range = from * 0.999_999..=to * 1.000_001;
                all.filter(|(step, value)| (fine || *step == 1.0) && range.contains(value))
                    .map(|(_, value)| value)
                    .collect()
            }
            Self::Tail { decades } => {
                let nines = (1..=decades.floor() as i32).map(|nines| 1.0 - 10_f64.powi(-nines));
                [0.0, 0.5].into_iter().chain(nines).collect()
            }
        }
    }
}

/// Returns a round step that divides a length into a few parts.
fn step(length: f64) -> f64 {
    let power = 10_f64.powf((length / TICKS_MAX).log10().floor());
    let steps = STEPS.into_iter().chain([10.0]).map(|step| step * power);
    steps
        .into_iter()
        .find(|step| length / step <= TICKS_MAX + 1e-9)
        .unwrap_or(power * 10.0)
}

fn round_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let fits = STEPS
        .into_iter()
        .rev()
        .map(|step| step * power)
        .find(|round| *round <= value * 1.000_001);
    fits.unwrap_or(power)
}

fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let fits = STEPS
        .into_iter()
        .map(|step| step * power)
        .find(|round| *round >= value * 0.999_999);
    fits.unwrap_or(power * 10.0)
}

/// Formats three digits, with a letter for thousands and more.
pub(crate) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        of if of < 999.5 => (value, ""),
        of if of < 999.5e3 => (value / 1e3, "k"),
        of if of < 999.5e6 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    if unit.is_empty() {
        digits(value)
    } else {
        format!("{} {unit}", digits(value))
    }
}

/// Formats a time in microseconds with a suitable unit.
pub(crate) fn time_us(us: f64) -> String {
    match us.abs() {
        0.0 => "0".into(),
        of if of < 0.9995 => format!("{} ns", digits(us * 1e3)),
        of if of < 999.5 => format!("{} µs", digits(us)),
        of if of < 999.5e3 => format!("{} ms", digits(us / 1e3)),
        _ => format!("{} s", digits(us / 1e6)),
    }
}

/// Formats three digits without trailing zeros.
pub(crate) fn digits(value: f64) -> String {
    let text = match value.abs() {
        of if of < 0.9995 => format!("{value:.3}"),
        of if of < 9.995 => format!("{value:.2}"),
        of if of < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Formats a quantile as a percentile.
pub(crate) fn percentile(quantile: f64) -> String {
    let text = format!("{:.6}", quantile * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats a share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", digits(share * 100.0))
}

/// Formats a whole number with commas between thousands.
pub(crate) fn whole(value: u64) -> String {
    let text = value.to_string();
    let mut out = String::with_capacity(text.len() + text.len() / 3);
    for (at, digit) in text.char_indices() {
        if at > 0 && (text.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_end_at_round_numbers() {
        for (most, to, ticks) in [
            (0.0, 1.0, vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
            (10.0, 10.0, vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
            (10.1, 15.0, vec![0.0, 5.0, 10.0, 15.0]),
            (0.31, 0.4, vec![0.0, 0.1, 0.2, 0.3, 0.4]),
            (4_100_000.0, 5e6, vec![0.0, 1e6, 2e6, 3e6, 4e6, 5e6]),
        ] {
            let scale = Scale::from_zero([most, f64::NAN].into_iter());
            assert!(
                matches!(scale, Scale::Linear { to: end, .. } if (end - to).abs() < 1e-9 * to),
                "{most}: {scale:?}"
            );
            let found = scale.ticks();
            assert_eq!(found.len(), ticks.len(), "{most}: {found:?}");
            assert!(
                found
                    .iter()
                    .zip(&ticks)
                    .all(|(a, b)| (a - b).abs() < 1e-6 * to),
                "{most}: {found:?}"
            );
        }
    }

    #[test]
    fn logarithmic_axes_hold_their_values() {
        for (values, from, to, ticks) in [
            (vec![120.0, 4_800.0], 100.0, 5_000.0, 6),
            (vec![3.0, 3.0], 2.0, 5.0, 2),
            (vec![1.0, 1e6], 1.0, 1e6, 7),
            (vec![5.0, 5.0], 2.5, 10.0, 2),
            (vec![0.0, -1.0], 1.0, 10.0, 4),
        ] {
            let scale = Scale::log(values.iter().copied());
            let Scale::Log {
                from: least,
                to: most,
            } = scale
            else {
                panic!("{scale:?}")
            };
            assert!(
                (least - from).abs() < 1e-9 * from && (most - to).abs() < 1e-9 * to,
                "{values:?}: {scale:?}"
            );
            assert_eq!(
                scale.ticks().len(),
                ticks,
                "{values:?}: {:?}",
                scale.ticks()
            );
            for value in values {
                assert_eq!(scale.place(value).is_some(), value > 0.0, "{value}");
            }
        }
    }

    #[test]
    fn percentiles_have_equal_room_per_nine() {
        let scale = Scale::tail(5_000.0);
        assert_eq!(scale, Scale::Tail { decades: 4.0 });
        for (quantile, at) in [
            (0.0, 0.0),
            (0.9, 0.25),
            (0.99, 0.5),
            (0.999, 0.75),
            (0.9999, 1.0),
        ] {
            assert!(
                (scale.place(quantile).unwrap() - at).abs() < 1e-6,
                "{quantile}"
            );
        }
        assert_eq!(scale.place(1.0), None);
        assert_eq!(
            scale
                .ticks()
                .into_iter()
                .map(percentile)
                .collect::<Vec<_>>()
                .join(" "),
            "0 % 50 % 90 % 99 % 99.9 % 99.99 %"
        );
    }

    #[test]
    fn numbers_are_written_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (999.4, "999"),
            (999.6, "1 k"),
            (12_345.0, "12.3 k"),
            (3.9e6, "3.9 M"),
        ] {
            assert_eq!(short(value), text);
        }
        for (value, text) in [
            (0.0, "0"),
            (0.259, "259 ns"),
            (9.999, "10 µs"),
            (1_500.0, "1.5 ms"),
            (2e6, "2 s"),
        ] {
            assert_eq!(time_us(value), text);
        }
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(whole(value), text);
        }
        assert_eq!(percent(0.0512), "5.12 %");
    }
}
