//! The arguments of one function, taken one by one with type and range checks. Remaining arguments
//! are errors.

use std::ops::RangeInclusive;

use super::FunctionError;
use super::scan::{Argument, Literal};
use crate::limits::TEXT_BYTES_MAX;

/// Arguments that were not taken yet.
pub(super) struct Arguments<'t> {
    left: Vec<Argument<'t>>,
    /// Byte offset after the function's name.
    pub(super) end: usize,
}

/// An argument that was present.
pub(super) struct TakenArguments {
    name: &'static str,
    at: usize,
    pub(super) value: Literal,
}

impl<'t> Arguments<'t> {
    /// Checks the argument names of `function`, which accepts `known`. The first argument can lack
    /// a name if `is_positional`. `end` is the byte offset after the function's name.
    ///
    /// # Errors
    /// [`FunctionError`] for an unknown or repeated argument.
    pub(super) fn new(
        function: &str,
        known: &[&str],
        is_positional: bool,
        left: Vec<Argument<'t>>,
        end: usize,
    ) -> Result<Self, FunctionError> {
        let takes = match known {
            [] => format!("`{function}` takes no arguments"),
            known => format!("`{function}` takes {}", list(known)),
        };

        for (at, argument) in left.iter().enumerate() {
            let message = match argument.name {
                Some(name) if !known.contains(&name) => format!("`{name}` is unknown: {takes}"),
                Some(name) if left[..at].iter().any(|other| other.name == Some(name)) => {
                    format!("`{name}` is there twice")
                }
                None if at > 0 || !is_positional => {
                    format!("an argument has a name, as in name=value: {takes}")
                }
                _ => continue,
            };

            return Err(FunctionError::new(argument.at, message));
        }

        Ok(Self { left, end })
    }

    /// Takes the argument `name`, if present.
    pub(super) fn take(&mut self, name: &'static str) -> Option<TakenArguments> {
        let at = self
            .left
            .iter()
            .position(|argument| argument.name == Some(name))?;
        let argument = self.left.remove(at);
        Some(TakenArguments {
            name,
            at: argument.value_at,
            value: argument.value,
        })
    }

    /// Returns an error if an argument is left.
    pub(super) fn finish(self) -> Result<(), FunctionError> {
        self.left.first().map_or(Ok(()), |argument| {
            let name = argument.name.unwrap_or("value");
            Err(FunctionError::new(
                argument.at,
                format!("`{name}` does not go with the other arguments"),
            ))
        })
    }

    /// Takes the first argument without a name.
    pub(super) fn positional(&mut self) -> Option<Literal> {
        let at = self
            .left
            .iter()
            .position(|argument| argument.name.is_none())?;
        Some(self.left.remove(at).value)
    }

    /// Takes an integer within `range`; `default` if absent.
    pub(super) fn int<N: TryFrom<i64>>(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
        default: N,
    ) -> Result<N, FunctionError> {
        self.take(name)
            .map_or(Ok(default), |taken| taken.int(range))
    }

    /// Takes a non-empty text.
    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<Box<str>>, FunctionError> {
        self.take(name).map(TakenArguments::text).transpose()
    }

    /// Takes one of `words` and returns its index; 0 if absent.
    pub(super) fn word(
        &mut self,
        name: &'static str,
        words: &[&str],
    ) -> Result<usize, FunctionError> {
        self.take(name).map_or(Ok(0), |taken| taken.word(words))
    }
}

impl TakenArguments {
    pub(super) fn int<N: TryFrom<i64>>(
        self,
        range: RangeInclusive<i64>,
    ) -> Result<N, FunctionError> {
        let int = match self.value {
            Literal::Int(int) if range.contains(&int) => N::try_from(int).ok(),
            _ => None,
        };

        int.ok_or_else(|| {
            let message = format!(
                "`{}` is a whole number from {} to {}",
                self.name,
                range.start(),
                range.end()
            );
            FunctionError::new(self.at, message)
        })
    }

    pub(super) fn text(self) -> Result<Box<str>, FunctionError> {
        match self.value {
            Literal::Text(text) | Literal::Word(text)
                if (1..=TEXT_BYTES_MAX).contains(&text.len()) =>
            {
                Ok(text)
            }
            _ => {
                let message = format!("`{}` is a text of 1 to {TEXT_BYTES_MAX} bytes", self.name);
                Err(FunctionError::new(self.at, message))
            }
        }
    }

    /// Returns a text, which can be empty.
    pub(super) fn any_text(self) -> Result<Box<str>, FunctionError> {
        match self.value {
            Literal::Text(text) | Literal::Word(text) => Ok(text),
            _ => Err(self.wrong("a \"quoted string\"")),
        }
    }

    pub(super) fn word(self, words: &[&str]) -> Result<usize, FunctionError> {
        let found = match &self.value {
            Literal::Word(word) | Literal::Text(word) => words.iter().position(|w| **w == **word),
            _ => None,
        };
        found.ok_or_else(|| {
            FunctionError::new(
                self.at,
                format!("`{}` is {}", self.name, alternatives(words)),
            )
        })
    }

    pub(super) fn wrong(&self, is: &str) -> FunctionError {
        FunctionError::new(self.at, format!("`{}` is {is}", self.name))
    }
}

/// Joins names as `a`, `b` and `c`.
pub(super) fn list(names: &[&str]) -> String {
    join(names, "and")
}

/// Joins names as `a`, `b` or `c`.
pub(super) fn alternatives(names: &[&str]) -> String {
    join(names, "or")
}

fn join(names: &[&str], last: &str) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match &quoted[..] {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}
