//! Splits the text of a function into a name and arguments.

use super::FunctionError;
use crate::limits::{FUNCTION_BYTES_MAX, TEXT_BYTES_MAX};

/// The value of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    /// An integer.
    Int(i64),
    /// Bits of a finite float.
    Float(u64),
    /// `true` or `false`.
    Bool(bool),
    /// A bare word.
    Word(Box<str>),
    /// A quoted text.
    Text(Box<str>),
}

/// An argument and its position.
#[derive(Debug)]
pub(super) struct Argument<'t> {
    pub(super) at: usize,
    /// `None` for a positional argument.
    pub(super) name: Option<&'t str>,
    pub(super) value: Literal,
    pub(super) value_at: usize,
}

/// Splits a text into the name and its arguments.
pub(super) fn call(text: &str) -> Result<(&str, Vec<Argument<'_>>), FunctionError> {
    if text.len() > FUNCTION_BYTES_MAX {
        return Err(FunctionError::new(
            0,
            format!("a mask of more than {FUNCTION_BYTES_MAX} bytes"),
        ));
    }

    let mut scan = Scan { text, at: 0 };
    scan.skip_blanks();
    let name_at = scan.at;
    let name = scan.word();
    if name.is_empty() {
        return Err(FunctionError::new(
            name_at,
            "a mask begins with the name of a function, such as `redact`",
        ));
    }

    let mut arguments = Vec::new();
    scan.skip_blanks();
    if scan.eat('(') {
        scan.skip_blanks();
        while !scan.eat(')') {
            arguments.push(scan.argument()?);
            scan.skip_blanks();
            if !scan.eat(',') && !scan.rest().starts_with(')') {
                return Err(scan.expected("`,` or `)`"));
            }
            scan.skip_blanks();
        }
    }

    scan.skip_blanks();
    if scan.rest().is_empty() {
        Ok((name, arguments))
    } else {
        Err(scan.expected("`(` or the end"))
    }
}

struct Scan<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Scan<'t> {
    fn argument(&mut self) -> Result<Argument<'t>, FunctionError> {
        let at = self.at;
        let name = self.word();
        self.skip_blanks();
        if !name.is_empty() && self.eat('=') {
            self.skip_blanks();
            let value_at = self.at;
            let value = self.literal()?;
            return Ok(Argument {
                at,
                name: Some(name),
                value,
                value_at,
            });
        }

        self.at = at;
        Ok(Argument {
            at,
            name: None,
            value: self.literal()?,
            value_at: at,
        })
    }

    fn literal(&mut self) -> Result<Literal, FunctionError> {
        if self.eat('"') {
            return self.quoted().map(Literal::Text);
        }

        let at = self.at;
        let rest = self.rest();
        let len = rest
            .find([',', ')', '=', ' ', '\t', '\n', '\r', '"', '('])
            .unwrap_or(rest.len());
        let bare = &rest[..len];
        self.at += len;
        match bare {
            "" => Err(FunctionError::new(
                at,
                "a value is missing: a number, true, false, a word or a \"quoted string\"",
            )),
            "true" => Ok(Literal::Bool(true)),
            "false" => Ok(Literal::Bool(false)),
            _ if bare.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')) => {
                match (bare.parse::<i64>(), bare.parse::<f64>()) {
                    (Ok(int), _) => Ok(Literal::Int(int)),
                    (_, Ok(float)) if float.is_finite() => Ok(Literal::Float(float.to_bits())),
                    _ => Err(FunctionError::new(
                        at,
                        "neither a number nor a word; put a text in quotes",
                    )),
                }
            }
            _ if bare.chars().all(is_word_char) => Ok(Literal::Word(bare.into())),
            _ => Err(FunctionError::new(
                at,
                "a word has letters, digits and `_` only; put another text in quotes",
            )),
        }
    }

    /// Reads the rest of a quoted text, after the opening quote.
    fn quoted(&mut self) -> Result<Box<str>, FunctionError> {
        let start = self.at;
        let mut text = String::new();
        loop {
            let at = self.at;
            let Some(c) = self.rest().chars().next() else {
                return Err(FunctionError::new(
                    start,
                    "a string without its closing quote",
                ));
            };

            self.at += c.len_utf8();
            match c {
                '"' => return Ok(text.into()),
                '\\' => text.push(self.escape(at)?),
                c if c.is_control() => {
                    return Err(FunctionError::new(
                        at,
                        "a control character; write it as \\u{...}",
                    ));
                }
                c => text.push(c),
            }

            if text.len() > TEXT_BYTES_MAX {
                return Err(FunctionError::new(
                    start,
                    format!("a string of more than {TEXT_BYTES_MAX} bytes"),
                ));
            }
        }
    }

    /// Reads the rest of an escape, after the backslash at `at`.
    fn escape(&mut self, at: usize) -> Result<char, FunctionError> {
        let c = self.rest().chars().next().ok_or_else(|| escape_error(at))?;
        self.at += c.len_utf8();
        match c {
            '"' | '\\' => Ok(c),
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'u' => {
                let digits = self
                    .rest()
                    .strip_prefix('{')
                    .and_then(|rest| rest.split_once('}'))
                    .map(|(d, _)| d);
                let digits = digits.filter(|d| {
                    (1..=6).contains(&d.len()) && d.bytes().all(|b| b.is_ascii_hexdigit())
                });
                let digits = digits.ok_or_else(|| escape_error(at))?;
                self.at += digits.len() + 2;
                u32::from_str_radix(digits, 16)
                    .ok()
                    .and_then(char::from_u32)
                    .ok_or_else(|| escape_error(at))
            }
            _ => Err(escape_error(at)),
        }
    }

    fn word(&mut self) -> &'t str {
        let rest = self.rest();
        let word = &rest[..rest.find(|c| !is_word_char(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.rest().starts_with(wanted);
        self.at += if found { wanted.len_utf8() } else { 0 };
        found
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn expected(&self, what: &str) -> FunctionError {
        FunctionError::new(self.at, format!("expected {what}"))
    }
}

/// Returns true for characters of function names, argument names and bare words.
pub(super) fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn escape_error(at: usize) -> FunctionError {
    FunctionError::new(at, "an escape is one of \\\" \\\\ \\n \\r \\t \\u{1f600}")
}
