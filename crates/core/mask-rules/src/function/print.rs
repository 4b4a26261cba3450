//! Prints a function as text. Arguments with default values are omitted.

use std::fmt::{self, Display, Formatter};

use super::scan::{Literal, is_word_char};
use super::{Alphabet, Function, FunctionKind, Period};

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut call = FunctionText { f, arguments: 0 };
        call.f.write_str(self.name())?;
        match &self.kind {
            FunctionKind::Keep
            | FunctionKind::Null
            | FunctionKind::Iban
            | FunctionKind::Mac
            | FunctionKind::PostalCode => {}
            FunctionKind::Redact { with } => {
                call.optional("with", with.as_ref().map(|with| Quoted(with)))?
            }
            FunctionKind::Fixed(value) => call.argument("", value)?,
            FunctionKind::Partial { first, last, with } => {
                call.unless("first", *first, 0)?;
                call.unless("last", *last, 0)?;
                if *with != '*' {
                    call.argument("with", &Quoted(with.encode_utf8(&mut [0; 4])))?;
                }
            }
            FunctionKind::Email { keeps_domain } => {
                call.optional("keep", keeps_domain.then_some("domain"))?
            }
            FunctionKind::Phone { last } => call.unless("last", *last, 0)?,
            FunctionKind::Card {
                first,
                last,
                is_valid,
            } => {
                call.unless("first", *first, 0)?;
                call.unless("last", *last, 4)?;
                call.optional("luhn", (!is_valid).then_some("invalid"))?;
            }
            FunctionKind::Hash { length } => call.unless("length", *length, 32)?,
            FunctionKind::Pseudonym { list } => call.argument("list", &Plain(list))?,
            FunctionKind::Fpe(alphabet) => call.optional(
                "alphabet",
                (*alphabet != Alphabet::Digits).then(|| alphabet.name()),
            )?,
            FunctionKind::ShiftBy { days } => call.argument("days", days)?,
            FunctionKind::ShiftWithin { days } => call.argument("within", days)?,
            FunctionKind::Step { step } => call.argument("step", step)?,
            FunctionKind::Truncate { keep } => call.argument("keep", keep)?,
            FunctionKind::Coarsen(Period::Month) => call.argument("date", &"month")?,
            FunctionKind::Coarsen(Period::Year) => call.argument("date", &"year")?,
            FunctionKind::NoisePercent { millionths, bounds } => {
                call.argument("percent", &(f64::from(*millionths) / 10_000.0))?;
                call.optional("min", bounds.min)?;
                call.optional("max", bounds.max)?;
            }
            FunctionKind::NoiseBy { by, bounds } => {
                call.argument("by", by)?;
                call.optional("min", bounds.min)?;
                call.optional("max", bounds.max)?;
            }
        }

        call.optional("subject", self.subject.as_deref().map(Plain))?;
        call.optional("domain", self.domain.as_deref().map(Plain))?;
        if call.arguments > 0 {
            call.f.write_str(")")
        } else {
            Ok(())
        }
    }
}

struct FunctionText<'a, 'f> {
    f: &'a mut Formatter<'f>,
    arguments: usize,
}

impl FunctionText<'_, '_> {
    fn argument(&mut self, name: &str, value: &dyn Display) -> fmt::Result {
        self.f
            .write_str(if self.arguments == 0 { "(" } else { ", " })?;
        self.arguments += 1;
        if name.is_empty() {
            write!(self.f, "{value}")
        } else {
            write!(self.f, "{name}={value}")
        }
    }

    fn optional(&mut self, name: &str, value: Option<impl Display>) -> fmt::Result {
        value.map_or(Ok(()), |value| self.argument(name, &value))
    }

    fn unless(&mut self, name: &str, value: u16, default: u16) -> fmt::Result {
        self.optional(name, (value != default).then_some(value))
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(int) => write!(f, "{int}"),
            // `Debug` always prints a point or an exponent.
            Self::Float(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Word(text) | Self::Text(text) => Quoted(text).fmt(f),
        }
    }
}

/// A text in quotes.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }

        f.write_str("\"")
    }
}

/// A text that is printed bare if it then parses to the same text, and otherwise in quotes.
struct Plain<'a>(&'a str);

impl Display for Plain<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_word = self.0.chars().all(is_word_char)
            && self.0.starts_with(|c: char| !c.is_ascii_digit())
            && !matches!(self.0, "true" | "false");
        if is_word {
            f.write_str(self.0)
        } else {
            Quoted(self.0).fmt(f)
        }
    }
}
