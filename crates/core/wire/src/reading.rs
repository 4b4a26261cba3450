//! Reads a params map key by key, each value under its rule.

use std::ops::RangeInclusive;

use sealwire_msgpack::{Malformed, Token, TokenReader};

use crate::call_error::CallError;
use crate::frame::Span;
use crate::limits::{CONTEXT_RESERVED, NAME_BYTES_MAX};
use crate::method::Method;
use crate::params::Param;
use crate::params::rule::{Accepts, Form};

/// The params map while it is read, and which of its keys have been met.
pub(crate) struct Params<'a> {
    method: Method,
    message: &'a [u8],
    pub(crate) reader: TokenReader<'a>,
    left: u32,
    /// One bit per row of the method's table.
    seen: u32,
    /// Where the scan has found the payload.
    payload: Option<Span>,
}

impl<'a> Params<'a> {
    pub(crate) fn open(
        method: Method,
        message: &'a [u8],
        mut reader: TokenReader<'a>,
        payload: Option<Span>,
    ) -> Result<Self, CallError> {
        let shape = |_| CallError::ParamsShape { method };
        let left = match reader.array_len().map_err(shape)? {
            1 => reader.map_len().map_err(shape)?,
            0 if method.params().is_empty() => 0,
            _ => return Err(CallError::ParamsShape { method }),
        };
        Ok(Self {
            method,
            message,
            reader,
            left,
            seen: 0,
            payload,
        })
    }

    /// Reads the next key and leaves the reader at its value. `None` at the end of the map, once no
    /// key is missing.
    pub(crate) fn next(&mut self) -> Result<Option<&'static Param>, CallError> {
        let table = self.method.params();
        if self.left == 0 {
            let absent = |(row, param): (usize, &Param)| {
                (param.default.is_none() && self.seen & (1 << row) == 0).then_some(param.name)
            };
            return match table.iter().enumerate().find_map(absent) {
                Some(key) => Err(CallError::Missing { key }),
                None => Ok(None),
            };
        }
        self.left -= 1;
        let Token::Str(key) = self.reader.token()? else {
            return Err(CallError::KeyNotText {
                method: self.method,
            });
        };
        let Some(row) = table.iter().position(|param| param.name.as_bytes() == key) else {
            return Err(self.unknown(key));
        };
        let param = &table[row];
        if self.seen & (1 << row) != 0 {
            return Err(CallError::DuplicateKey { key: param.name });
        }
        self.seen |= 1 << row;
        Ok(Some(param))
    }

    /// Skips a value that must not be an array or a map.
    pub(crate) fn scalar(&mut self) -> Result<(), CallError> {
        if self.reader.token()?.children() == 0 {
            Ok(())
        } else {
            Err(CallError::Malformed)
        }
    }

    /// For methods without params: any key is one too many.
    pub(crate) fn none(&mut self) -> Result<(), CallError> {
        self.next().map(|_| ())
    }

    /// The message ends with its params.
    pub(crate) fn close(&self) -> Result<(), CallError> {
        if self.reader.is_at_end() {
            Ok(())
        } else {
            Err(CallError::Malformed)
        }
    }

    pub(crate) fn unknown(&self, key: &[u8]) -> CallError {
        let unreadable = key.len() <= NAME_BYTES_MAX && std::str::from_utf8(key).is_err();
        if unreadable {
            CallError::NotUtf8 {
                place: "a parameter name",
            }
        } else {
            CallError::UnknownKey {
                method: self.method,
                key: cleaned(key),
            }
        }
    }

    /// Returns the error for an unknown key inside a value. The key was cleaned before.
    pub(crate) fn unknown_in(&self, key: String) -> CallError {
        CallError::UnknownKey {
            method: self.method,
            key,
        }
    }

    pub(crate) fn array_len(&mut self, param: &'static Param) -> Result<u32, CallError> {
        self.reader
            .array_len()
            .map_err(|malformed| wrong(param, malformed))
    }

    pub(crate) fn map_len(&mut self, param: &'static Param) -> Result<u32, CallError> {
        self.reader
            .map_len()
            .map_err(|malformed| wrong(param, malformed))
    }

    /// The document, whose end the scan knows: passing over it again would double what a large call
    /// costs before its first slice.
    pub(crate) fn payload(&mut self) -> Result<&'a [u8], CallError> {
        let here = self
            .payload
            .filter(|span| span.start == self.reader.position())
            .ok_or(CallError::Malformed)?;
        self.reader = TokenReader::at(self.message, here.end);
        self.message
            .get(here.start..here.end)
            .ok_or(CallError::Malformed)
    }

    /// A string. One beyond `bytes_max` breaks the rule unread: to check it would take as long as
    /// it is.
    pub(crate) fn text(
        &mut self,
        param: &'static Param,
        bytes_max: usize,
    ) -> Result<&'a str, CallError> {
        if matches!(self.reader.peek()?, Token::Str(text) if text.len() > bytes_max) {
            return Err(breaks(param));
        }
        self.reader
            .str_utf8()
            .map_err(|malformed| wrong(param, malformed))
    }

    /// A text under its rule.
    pub(crate) fn checked_text(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let text = self.text(param, most(param))?;
        let is_long_enough = text.len() as u64 >= param.bounds.least;
        if is_long_enough && accepts(param.bounds.accepts, text) {
            Ok(text)
        } else {
            Err(breaks(param))
        }
    }

    /// A name of a closed set.
    pub(crate) fn name<T>(
        &mut self,
        param: &'static Param,
        from_name: fn(&str) -> Option<T>,
    ) -> Result<T, CallError> {
        from_name(self.checked_text(param)?).ok_or(breaks(param))
    }

    /// An array of 1 to `count_max` strings of 1 to `bytes_max` bytes.
    pub(crate) fn texts(
        &mut self,
        param: &'static Param,
        count_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<&'a str>, CallError> {
        let count = self.array_len(param)?;
        if count == 0 || count as usize > count_max {
            return Err(breaks(param));
        }
        let mut texts = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let text = self.text(param, bytes_max)?;
            if text.is_empty() {
                return Err(breaks(param));
            }
            texts.push(text);
        }
        Ok(texts)
    }

    /// A list of texts under its rule. An empty list breaks it: empty `select` would read as
    /// "nothing" to some and "everything" to others.
    pub(crate) fn checked_texts(
        &mut self,
        param: &'static Param,
    ) -> Result<Vec<&'a str>, CallError> {
        let texts = self.texts(param, most(param), param.bounds.item_bytes_max)?;
        if texts.iter().all(|text| accepts(param.bounds.accepts, text)) {
            Ok(texts)
        } else {
            Err(breaks(param))
        }
    }

    /// The number of values of a list, which are still to be read.
    pub(crate) fn count(&mut self, param: &'static Param) -> Result<usize, CallError> {
        let count = self.array_len(param)?;
        if in_bounds(param, u64::from(count)) {
            Ok(count as usize)
        } else {
            Err(breaks(param))
        }
    }

    /// Bytes in the form of their rule.
    pub(crate) fn bytes_in_form(&mut self, param: &'static Param) -> Result<&'a [u8], CallError> {
        match param.bounds.form {
            Form::Bytes => self.bytes(param),
            Form::Value => self.value(param, most(param)),
            Form::Document => self.payload(),
            Form::Array => self.items(param),
        }
    }

    /// A string or binary under its rule.
    fn bytes(&mut self, param: &'static Param) -> Result<&'a [u8], CallError> {
        let bytes = match self.reader.peek()? {
            Token::Bin(_) => self.reader.bin()?,
            _ => self.text(param, most(param))?.as_bytes(),
        };
        // A client may not name contexts of the engine: what it seals for itself would open.
        let is_reserved = param.bounds.accepts == Accepts::Contexts
            && bytes.starts_with(CONTEXT_RESERVED.as_bytes());
        if !in_bounds(param, bytes.len() as u64) || is_reserved {
            Err(breaks(param))
        } else {
            Ok(bytes)
        }
    }

    /// A payload that is an array, whose values are read later.
    fn items(&mut self, param: &'static Param) -> Result<&'a [u8], CallError> {
        let payload = self.payload()?;
        match TokenReader::new(payload).token() {
            Ok(Token::Array(count)) if in_bounds(param, u64::from(count)) => Ok(payload),
            Ok(Token::Array(_)) => Err(breaks(param)),
            _ => Err(wrong_type(param)),
        }
    }

    pub(crate) fn flag(&mut self, param: &'static Param) -> Result<bool, CallError> {
        match self.reader.token()? {
            Token::Bool(flag) => Ok(flag),
            _ => Err(wrong_type(param)),
        }
    }

    /// A number within bounds. Any integer is of the right type; one below 0 or beyond 64 bits
    /// breaks the rule.
    pub(crate) fn within(
        &mut self,
        param: &'static Param,
        bounds: RangeInclusive<u64>,
    ) -> Result<u64, CallError> {
        let number = match self.reader.token()? {
            Token::Uint(number) => Some(number),
            Token::Int(number) => u64::try_from(number).ok(),
            _ => return Err(wrong_type(param)),
        };
        number
            .filter(|number| bounds.contains(number))
            .ok_or(breaks(param))
    }

    /// A number under its rule.
    pub(crate) fn number(&mut self, param: &'static Param) -> Result<u64, CallError> {
        self.within(param, param.bounds.least..=param.bounds.most)
    }

    /// A number of a smaller type.
    pub(crate) fn small_number<T: TryFrom<u64>>(
        &mut self,
        param: &'static Param,
    ) -> Result<T, CallError> {
        T::try_from(self.number(param)?).map_err(|_| breaks(param))
    }

    /// Nil, or a number under its rule.
    pub(crate) fn number_or_nil(
        &mut self,
        param: &'static Param,
    ) -> Result<Option<u64>, CallError> {
        if self.reader.take_nil() {
            Ok(None)
        } else {
            self.number(param).map(Some)
        }
    }

    /// A list of numbers from 1.
    pub(crate) fn numbers(&mut self, param: &'static Param) -> Result<Vec<u64>, CallError> {
        (0..self.count(param)?)
            .map(|_| self.within(param, 1..=u64::MAX))
            .collect()
    }

    /// One value of at most `bytes_max` bytes, passed over no further than that.
    pub(crate) fn value(
        &mut self,
        param: &'static Param,
        bytes_max: usize,
    ) -> Result<&'a [u8], CallError> {
        let start = self.reader.position();
        let end = self.message.len().min(start + bytes_max);
        match TokenReader::at(&self.message[..end], start).value() {
            Ok(value) => {
                self.reader = TokenReader::at(self.message, start + value.len());
                Ok(value)
            }
            Err(Malformed::Truncated) if end < self.message.len() => Err(breaks(param)),
            Err(_) => Err(CallError::Malformed),
        }
    }
}

fn wrong(param: &'static Param, malformed: Malformed) -> CallError {
    match malformed {
        Malformed::Expected { .. } => wrong_type(param),
        Malformed::NotUtf8 => CallError::NotUtf8 { place: param.name },
        Malformed::Truncated | Malformed::ReservedMarker => CallError::Malformed,
    }
}

fn wrong_type(param: &'static Param) -> CallError {
    CallError::WrongType {
        key: param.name,
        types: param.types,
    }
}

pub(crate) fn breaks(param: &'static Param) -> CallError {
    CallError::BreaksRule {
        key: param.name,
        rule: param.rule,
    }
}

/// The greatest length or count of a rule.
fn most(param: &'static Param) -> usize {
    usize::try_from(param.bounds.most).unwrap_or(usize::MAX)
}

fn in_bounds(param: &'static Param, number: u64) -> bool {
    (param.bounds.least..=param.bounds.most).contains(&number)
}

fn accepts(accepts: Accepts, text: &str) -> bool {
    match accepts {
        Accepts::Any | Accepts::Contexts => true,
        Accepts::Names => is_name(text),
        Accepts::Roles => text
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')),
        Accepts::Visible => text.bytes().all(|byte| byte.is_ascii_graphic()),
        Accepts::Printable => !text.chars().any(char::is_control),
        Accepts::Only(names) => names.contains(&text),
    }
}

/// Returns true if the text can name an app, a collection or a list.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

/// A peer's name made safe to print and to log: at most [`NAME_BYTES_MAX`] characters, anything
/// unusual as `?`.
pub(crate) fn cleaned(name: &[u8]) -> String {
    let usual = |&byte: &u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte),
        _ => '?',
    };
    name.iter().take(NAME_BYTES_MAX).map(usual).collect()
}
