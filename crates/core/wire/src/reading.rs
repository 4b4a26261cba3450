//! Reads a params map key by key, each value under its rule.

use std::ops::RangeInclusive;

use sealwire_msgpack::{Malformed, Token, TokenReader};

use crate::frame::Span;
use crate::invalid_request::InvalidRequest;
use crate::limits::{CONTEXT_RESERVED, NAME_BYTES_MAX};
use crate::method::{Method, Methods};
use crate::params::Param;
use crate::params::rule::{Accepts, Form};

/// A reader of the params map, with the set of keys that it has read.
pub(crate) struct Params<'a> {
    method: Method,
    message: &'a [u8],
    pub(crate) reader: TokenReader<'a>,
    left: u32,
    /// A bit per row of the method's table.
    seen: u32,
    /// The position of the payload, as found by the scan.
    payload: Option<Span>,
}

impl<'a> Params<'a> {
    pub(crate) fn open(
        method: Method,
        message: &'a [u8],
        mut reader: TokenReader<'a>,
        payload: Option<Span>,
    ) -> Result<Self, InvalidRequest> {
        let left = match reader
            .array_len()
            .map_err(|_| InvalidRequest::ParamsShape { method })?
        {
            1 => reader
                .map_len()
                .map_err(|_| InvalidRequest::ParamsShape { method })?,
            0 if method.params().is_empty() => 0,
            _ => return Err(InvalidRequest::ParamsShape { method }),
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

    /// Reads the next key that has a value and leaves the reader at the value. Returns `None` at the
    /// end of the map, and an error if a required key is missing there.
    ///
    /// In the data methods a nil means that an optional key is absent. Clients whose languages have
    /// no other way to omit a key can so send every key. The control methods reject such a nil,
    /// because an absent key can be wider there: without `key`, `apps.delete` deletes the whole app.
    pub(crate) fn next(&mut self) -> Result<Option<&'static Param>, InvalidRequest> {
        while let Some(param) = self.next_key()? {
            let is_absent = Methods::DATA.contains(self.method)
                && param.default.is_some()
                && !param.takes_nil()
                && self.reader.take_nil();
            if !is_absent {
                return Ok(Some(param));
            }
        }
        Ok(None)
    }

    /// Reads the next key and leaves the reader at its value, which can be nil.
    fn next_key(&mut self) -> Result<Option<&'static Param>, InvalidRequest> {
        let table = self.method.params();
        if self.left == 0 {
            return match self.missing_key() {
                Some(key) => Err(InvalidRequest::Missing { key }),
                None => Ok(None),
            };
        }
        self.left -= 1;
        let Token::Str(key) = self.reader.token()? else {
            return Err(InvalidRequest::KeyNotText {
                method: self.method,
            });
        };
        let Some(row) = table.iter().position(|param| param.name.as_bytes() == key) else {
            return Err(self.unknown_key(key));
        };
        let param = &table[row];
        if self.seen & (1 << row) != 0 {
            return Err(InvalidRequest::DuplicateKey { key: param.name });
        }
        self.seen |= 1 << row;
        Ok(Some(param))
    }

    /// Returns the first required key that the map does not have.
    fn missing_key(&self) -> Option<&'static str> {
        self.method
            .params()
            .iter()
            .enumerate()
            .find_map(|(row, param)| {
                let is_missing = param.default.is_none() && self.seen & (1 << row) == 0;
                is_missing.then_some(param.name)
            })
    }

    /// Skips a value that must not be an array or a map.
    pub(crate) fn skip_scalar(&mut self) -> Result<(), InvalidRequest> {
        if self.reader.token()?.children() == 0 {
            Ok(())
        } else {
            Err(InvalidRequest::Malformed)
        }
    }

    /// Checks that the map is empty, for methods without params.
    pub(crate) fn expect_empty(&mut self) -> Result<(), InvalidRequest> {
        self.next().map(|_| ())
    }

    /// Checks that the message ends with its params.
    pub(crate) fn expect_end(&self) -> Result<(), InvalidRequest> {
        if self.reader.is_at_end() {
            Ok(())
        } else {
            Err(InvalidRequest::Malformed)
        }
    }

    /// Returns the error for a key that the method does not have.
    pub(crate) fn unknown_key(&self, key: &[u8]) -> InvalidRequest {
        let unreadable = key.len() <= NAME_BYTES_MAX && std::str::from_utf8(key).is_err();
        if unreadable {
            InvalidRequest::NotUtf8 {
                place: "a parameter name",
            }
        } else {
            InvalidRequest::UnknownKey {
                method: self.method,
                key: sanitized_name(key),
            }
        }
    }

    /// Returns the error for an unknown key inside a value. The key must be sanitized already.
    pub(crate) fn unknown_nested_key(&self, key: String) -> InvalidRequest {
        InvalidRequest::UnknownKey {
            method: self.method,
            key,
        }
    }

    pub(crate) fn array_len(&mut self, param: &'static Param) -> Result<u32, InvalidRequest> {
        self.reader
            .array_len()
            .map_err(|malformed| value_error(param, malformed))
    }

    pub(crate) fn map_len(&mut self, param: &'static Param) -> Result<u32, InvalidRequest> {
        self.reader
            .map_len()
            .map_err(|malformed| value_error(param, malformed))
    }

    /// Returns the document and moves the reader to its end. The scan already found the end; a
    /// second pass would double the cost of a large request before its first slice.
    pub(crate) fn payload(&mut self) -> Result<&'a [u8], InvalidRequest> {
        let here = self
            .payload
            .filter(|span| span.start == self.reader.position())
            .ok_or(InvalidRequest::Malformed)?;
        self.reader = TokenReader::at(self.message, here.end);
        self.message
            .get(here.start..here.end)
            .ok_or(InvalidRequest::Malformed)
    }

    /// Reads a string. A string of more than `bytes_max` bytes is rejected unread, since the time
    /// of a UTF-8 check grows with its length.
    pub(crate) fn text(
        &mut self,
        param: &'static Param,
        bytes_max: usize,
    ) -> Result<&'a str, InvalidRequest> {
        if matches!(self.reader.peek()?, Token::Str(text) if text.len() > bytes_max) {
            return Err(broken_rule(param));
        }
        self.reader
            .str_utf8()
            .map_err(|malformed| value_error(param, malformed))
    }

    /// Reads a text and checks its rule.
    pub(crate) fn checked_text(
        &mut self,
        param: &'static Param,
    ) -> Result<&'a str, InvalidRequest> {
        let text = self.text(param, greatest_len(param))?;
        let is_long_enough = text.len() as u64 >= param.bounds.least;
        if is_long_enough && is_accepted(param.bounds.accepts, text) {
            Ok(text)
        } else {
            Err(broken_rule(param))
        }
    }

    /// Reads a name of a closed set.
    pub(crate) fn known_name<T>(
        &mut self,
        param: &'static Param,
        from_name: fn(&str) -> Option<T>,
    ) -> Result<T, InvalidRequest> {
        from_name(self.checked_text(param)?).ok_or(broken_rule(param))
    }

    /// Reads an array of 1 to `count_max` strings of 1 to `bytes_max` bytes.
    pub(crate) fn texts(
        &mut self,
        param: &'static Param,
        count_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<&'a str>, InvalidRequest> {
        let count = self.array_len(param)?;
        if count == 0 || count as usize > count_max {
            return Err(broken_rule(param));
        }
        let mut texts = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let text = self.text(param, bytes_max)?;
            if text.is_empty() {
                return Err(broken_rule(param));
            }
            texts.push(text);
        }
        Ok(texts)
    }

    /// Reads a list of texts and checks its rule. An empty list is invalid: a reader could take an
    /// empty `select` for "nothing" or for "everything".
    pub(crate) fn checked_texts(
        &mut self,
        param: &'static Param,
    ) -> Result<Vec<&'a str>, InvalidRequest> {
        let texts = self.texts(param, greatest_len(param), param.bounds.item_bytes_max)?;
        if texts
            .iter()
            .all(|text| is_accepted(param.bounds.accepts, text))
        {
            Ok(texts)
        } else {
            Err(broken_rule(param))
        }
    }

    /// Reads the length of a list and checks its rule. The caller then reads the values.
    pub(crate) fn list_len(&mut self, param: &'static Param) -> Result<usize, InvalidRequest> {
        let count = self.array_len(param)?;
        if in_bounds(param, u64::from(count)) {
            Ok(count as usize)
        } else {
            Err(broken_rule(param))
        }
    }

    /// Reads bytes in the form that their rule names.
    pub(crate) fn bytes_in_form(
        &mut self,
        param: &'static Param,
    ) -> Result<&'a [u8], InvalidRequest> {
        match param.bounds.form {
            Form::Bytes => self.bytes(param),
            Form::Value => self.value(param, greatest_len(param)),
            Form::Document => self.payload(),
            Form::Array => self.array_payload(param),
        }
    }

    /// Reads a string or binary and checks its rule.
    fn bytes(&mut self, param: &'static Param) -> Result<&'a [u8], InvalidRequest> {
        self.bytes_within(param, param.bounds.least..=param.bounds.most)
    }

    /// Reads a string or binary of a length within bounds, and checks which bytes its rule accepts.
    pub(crate) fn bytes_within(
        &mut self,
        param: &'static Param,
        lengths: RangeInclusive<u64>,
    ) -> Result<&'a [u8], InvalidRequest> {
        let bytes = match self.reader.peek()? {
            Token::Bin(_) => self.reader.bin()?,
            _ => {
                let bytes_max = usize::try_from(*lengths.end()).unwrap_or(usize::MAX);
                self.text(param, bytes_max)?.as_bytes()
            }
        };
        // A client must not name contexts of the engine, or the engine's own envelopes would open.
        let is_reserved = param.bounds.accepts == Accepts::Contexts
            && bytes.starts_with(CONTEXT_RESERVED.as_bytes());
        if !lengths.contains(&(bytes.len() as u64)) || is_reserved {
            Err(broken_rule(param))
        } else {
            Ok(bytes)
        }
    }

    /// Reads a payload that must be an array, whose values are read later.
    fn array_payload(&mut self, param: &'static Param) -> Result<&'a [u8], InvalidRequest> {
        let payload = self.payload()?;
        match TokenReader::new(payload).token() {
            Ok(Token::Array(count)) if in_bounds(param, u64::from(count)) => Ok(payload),
            Ok(Token::Array(_)) => Err(broken_rule(param)),
            _ => Err(wrong_type(param)),
        }
    }

    pub(crate) fn flag(&mut self, param: &'static Param) -> Result<bool, InvalidRequest> {
        match self.reader.token()? {
            Token::Bool(flag) => Ok(flag),
            _ => Err(wrong_type(param)),
        }
    }

    /// Reads a number within bounds. Any integer has the right type; an integer below 0 or beyond
    /// 64 bits breaks the rule.
    pub(crate) fn number_within(
        &mut self,
        param: &'static Param,
        bounds: RangeInclusive<u64>,
    ) -> Result<u64, InvalidRequest> {
        let number = match self.reader.token()? {
            Token::Uint(number) => Some(number),
            Token::Int(number) => u64::try_from(number).ok(),
            _ => return Err(wrong_type(param)),
        };
        number
            .filter(|number| bounds.contains(number))
            .ok_or(broken_rule(param))
    }

    /// Reads a number and checks its rule.
    pub(crate) fn number(&mut self, param: &'static Param) -> Result<u64, InvalidRequest> {
        self.number_within(param, param.bounds.least..=param.bounds.most)
    }

    /// Reads a number of a smaller type.
    pub(crate) fn small_number<T: TryFrom<u64>>(
        &mut self,
        param: &'static Param,
    ) -> Result<T, InvalidRequest> {
        T::try_from(self.number(param)?).map_err(|_| broken_rule(param))
    }

    /// Reads nil, or a number and checks its rule.
    pub(crate) fn number_or_nil(
        &mut self,
        param: &'static Param,
    ) -> Result<Option<u64>, InvalidRequest> {
        if self.reader.take_nil() {
            Ok(None)
        } else {
            self.number(param).map(Some)
        }
    }

    /// Reads a list of numbers, each 1 or more.
    pub(crate) fn numbers(&mut self, param: &'static Param) -> Result<Vec<u64>, InvalidRequest> {
        (0..self.list_len(param)?)
            .map(|_| self.number_within(param, 1..=u64::MAX))
            .collect()
    }

    /// Returns one value of at most `bytes_max` bytes. Reads no more than these bytes.
    pub(crate) fn value(
        &mut self,
        param: &'static Param,
        bytes_max: usize,
    ) -> Result<&'a [u8], InvalidRequest> {
        let start = self.reader.position();
        let end = self.message.len().min(start + bytes_max);
        match TokenReader::at(&self.message[..end], start).value() {
            Ok(value) => {
                self.reader = TokenReader::at(self.message, start + value.len());
                Ok(value)
            }
            Err(Malformed::Truncated) if end < self.message.len() => Err(broken_rule(param)),
            Err(_) => Err(InvalidRequest::Malformed),
        }
    }
}

fn value_error(param: &'static Param, malformed: Malformed) -> InvalidRequest {
    match malformed {
        Malformed::Expected { .. } => wrong_type(param),
        Malformed::NotUtf8 => InvalidRequest::NotUtf8 { place: param.name },
        Malformed::Truncated | Malformed::ReservedMarker => InvalidRequest::Malformed,
    }
}

fn wrong_type(param: &'static Param) -> InvalidRequest {
    InvalidRequest::WrongType {
        key: param.name,
        types: param.types,
    }
}

pub(crate) fn broken_rule(param: &'static Param) -> InvalidRequest {
    InvalidRequest::BreaksRule {
        key: param.name,
        rule: param.rule,
    }
}

/// Returns the greatest length or count that a rule allows.
fn greatest_len(param: &'static Param) -> usize {
    usize::try_from(param.bounds.most).unwrap_or(usize::MAX)
}

fn in_bounds(param: &'static Param, number: u64) -> bool {
    (param.bounds.least..=param.bounds.most).contains(&number)
}

fn is_accepted(accepts: Accepts, text: &str) -> bool {
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

/// Returns true if the text is a valid name of an app, a collection or a list.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_name_byte)
}

/// Returns a name from the peer that is safe to print and to log: at most [`NAME_BYTES_MAX`]
/// characters, with `?` for every other character.
pub(crate) fn sanitized_name(name: &[u8]) -> String {
    name.iter()
        .take(NAME_BYTES_MAX)
        .map(|byte| {
            if is_name_byte(*byte) {
                char::from(*byte)
            } else {
                '?'
            }
        })
        .collect()
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}
