//! Parses a function from its text.

use std::str::FromStr;

use super::arguments::{Arguments, TakenArguments, alternatives};
use super::scan::{self, Literal};
use super::{Alphabet, Function, FunctionError, FunctionKind, NumberBounds, Period};

/// All names, in the order of the documentation.
pub const NAMES: [&str; 17] = [
    "keep",
    "redact",
    "fixed",
    "null",
    "partial",
    "email",
    "phone",
    "card",
    "iban",
    "mac",
    "postal_code",
    "hash",
    "pseudonym",
    "fpe",
    "date_shift",
    "generalize",
    "noise",
];

/// Maximum number of days that a date is shifted.
const DAYS_MAX: i64 = 36_500;

impl FromStr for Function {
    type Err = FunctionError;

    fn from_str(text: &str) -> Result<Self, FunctionError> {
        let (name, arguments) = scan::call(text)?;
        let at = text.len() - text.trim_start().len();
        let Some(name) = NAMES.iter().find(|known| **known == name) else {
            let message = format!(
                "`{name}` is not a function: write one of {}",
                alternatives(&NAMES)
            );
            return Err(FunctionError::new(at, message));
        };

        let end = at + name.len();
        let mut arguments = Arguments::new(name, known(name), *name == "fixed", arguments, end)?;
        let kind = kind(name, &mut arguments)?;
        let mut function = Self {
            kind,
            domain: None,
            subject: None,
        };

        if function.is_keyed() {
            function.domain = arguments.text("domain")?;
            function.domain.take_if(|domain| **domain == **name);
        }

        if matches!(
            function.kind,
            FunctionKind::ShiftWithin { .. }
                | FunctionKind::NoisePercent { .. }
                | FunctionKind::NoiseBy { .. }
        ) {
            function.subject = arguments.text("subject")?;
        }

        arguments.finish()?;
        Ok(function)
    }
}

/// Returns the argument names of a function.
fn known(name: &str) -> &'static [&'static str] {
    match name {
        "redact" => &["with"],
        "fixed" => &["value"],
        "partial" => &["first", "last", "with"],
        "email" => &["keep", "domain"],
        "phone" => &["last", "domain"],
        "card" => &["first", "last", "luhn", "domain"],
        "iban" | "mac" | "postal_code" => &["domain"],
        "hash" => &["length", "domain"],
        "pseudonym" => &["list", "domain"],
        "fpe" => &["alphabet", "domain"],
        "date_shift" => &["days", "within", "subject", "domain"],
        "generalize" => &["step", "keep", "date"],
        "noise" => &["percent", "by", "min", "max", "subject", "domain"],
        _ => &[],
    }
}

fn kind(name: &str, arguments: &mut Arguments<'_>) -> Result<FunctionKind, FunctionError> {
    Ok(match name {
        "keep" => FunctionKind::Keep,
        "redact" => FunctionKind::Redact {
            with: arguments
                .take("with")
                .map(TakenArguments::any_text)
                .transpose()?,
        },
        "fixed" => FunctionKind::Fixed(fixed(arguments)?),
        "null" => FunctionKind::Null,
        "partial" => partial(arguments)?,
        "email" => FunctionKind::Email {
            keeps_domain: arguments.word("keep", &["none", "domain"])? == 1,
        },
        "phone" => FunctionKind::Phone {
            last: arguments.int("last", 0..=8, 0)?,
        },
        "card" => FunctionKind::Card {
            first: arguments.int("first", 0..=6, 0)?,
            last: arguments.int("last", 0..=4, 4)?,
            is_valid: arguments.word("luhn", &["valid", "invalid"])? == 0,
        },
        "iban" => FunctionKind::Iban,
        "mac" => FunctionKind::Mac,
        "postal_code" => FunctionKind::PostalCode,
        "hash" => FunctionKind::Hash {
            length: arguments.int("length", 16..=64, 32)?,
        },
        "pseudonym" => FunctionKind::Pseudonym {
            list: list(arguments)?,
        },
        "fpe" => FunctionKind::Fpe(alphabet(arguments)?),
        "date_shift" => date_shift(arguments)?,
        "generalize" => generalize(arguments)?,
        _ => noise(arguments)?,
    })
}

fn fixed(arguments: &mut Arguments<'_>) -> Result<Literal, FunctionError> {
    let value = arguments
        .positional()
        .or_else(|| arguments.take("value").map(|taken| taken.value));
    match value {
        Some(Literal::Word(word)) => Ok(Literal::Text(word)),
        Some(value) => Ok(value),
        None => Err(FunctionError::new(
            arguments.end,
            "`fixed` needs its value, as in fixed(\"n/a\")",
        )),
    }
}

fn partial(arguments: &mut Arguments<'_>) -> Result<FunctionKind, FunctionError> {
    let first = arguments.int("first", 0..=64, 0)?;
    let last = arguments.int("last", 0..=64, 0)?;
    let mut with = '*';
    if let Some(taken) = arguments.take("with") {
        let mut chars = match &taken.value {
            Literal::Text(text) | Literal::Word(text) => text.chars(),
            _ => "".chars(),
        };
        with = match (chars.next(), chars.next()) {
            (Some(one), None) if !one.is_control() => one,
            _ => return Err(taken.wrong("one character in quotes")),
        };
    }

    if first == 0 && last == 0 {
        let message =
            "`partial` needs `first`, `last` or both; to hide all characters write `redact`";
        return Err(FunctionError::new(arguments.end, message));
    }

    Ok(FunctionKind::Partial { first, last, with })
}

fn list(arguments: &mut Arguments<'_>) -> Result<Box<str>, FunctionError> {
    arguments.text("list")?.ok_or_else(|| {
        let lists = alternatives(&crate::lists::NAMES);
        let message =
            format!("`pseudonym` needs its list, as in pseudonym(list=first_names): {lists}, or one of your own");
        FunctionError::new(arguments.end, message)
    })
}

fn alphabet(arguments: &mut Arguments<'_>) -> Result<Alphabet, FunctionError> {
    let names = Alphabet::ALL.map(Alphabet::name);
    arguments
        .word("alphabet", &names)
        .map(|at| Alphabet::ALL[at])
}

fn date_shift(arguments: &mut Arguments<'_>) -> Result<FunctionKind, FunctionError> {
    match (arguments.take("days"), arguments.take("within")) {
        (Some(days), None) => match days.value {
            Literal::Int(0) => Err(days.wrong("not 0, which shifts nothing")),
            _ => Ok(FunctionKind::ShiftBy {
                days: days.int(-DAYS_MAX..=DAYS_MAX)?,
            }),
        },
        (None, Some(within)) => Ok(FunctionKind::ShiftWithin {
            days: within.int(1..=DAYS_MAX)?,
        }),
        _ => {
            let message = "`date_shift` needs either `days`, the same for every date, or `within`, by the key";
            Err(FunctionError::new(arguments.end, message))
        }
    }
}

fn generalize(arguments: &mut Arguments<'_>) -> Result<FunctionKind, FunctionError> {
    match (
        arguments.take("step"),
        arguments.take("keep"),
        arguments.take("date"),
    ) {
        (Some(step), None, None) => Ok(FunctionKind::Step {
            step: step.int(1..=i64::MAX)?,
        }),
        (None, Some(keep), None) => Ok(FunctionKind::Truncate {
            keep: keep.int(0..=64)?,
        }),
        (None, None, Some(date)) => Ok(FunctionKind::Coarsen(
            [Period::Month, Period::Year][date.word(&["month", "year"])?],
        )),
        _ => {
            let message = "`generalize` needs one of `step` (numbers), `keep` (characters) and `date` (month or year)";
            Err(FunctionError::new(arguments.end, message))
        }
    }
}

fn noise(arguments: &mut Arguments<'_>) -> Result<FunctionKind, FunctionError> {
    const IS: &str = "a number from 0.0001 to 100, with four digits behind the point at most";
    let bounds = bounds(arguments)?;
    match (arguments.take("percent"), arguments.take("by")) {
        (Some(percent), None) => {
            let given = match percent.value {
                Literal::Int(int) => int as f64,
                Literal::Float(bits) => f64::from_bits(bits),
                _ => return Err(percent.wrong(IS)),
            };
            // A percent is 10,000 millionths.
            let millionths = (given * 10_000.0).round();
            let is_exact = (millionths / 10_000.0 - given).abs() <= given.abs() * 1e-12;
            if !is_exact || !(1.0..=1_000_000.0).contains(&millionths) {
                return Err(percent.wrong(IS));
            }
            Ok(FunctionKind::NoisePercent {
                millionths: millionths as u32,
                bounds,
            })
        }
        (None, Some(by)) => Ok(FunctionKind::NoiseBy {
            by: by.int(1..=i64::MAX)?,
            bounds,
        }),
        _ => {
            let message = "`noise` needs either `percent`, of each number, or `by`, the same for every number";
            Err(FunctionError::new(arguments.end, message))
        }
    }
}

fn bounds(arguments: &mut Arguments<'_>) -> Result<NumberBounds, FunctionError> {
    let whole = i64::MIN..=i64::MAX;
    let min = arguments
        .take("min")
        .map(|min| min.int(whole.clone()))
        .transpose()?;
    let Some(taken) = arguments.take("max") else {
        return Ok(NumberBounds { min, max: None });
    };

    let max: i64 = taken.int(min.unwrap_or(i64::MIN)..=i64::MAX)?;
    Ok(NumberBounds {
        min,
        max: Some(max),
    })
}
