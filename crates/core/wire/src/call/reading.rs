//! Reads a params map key by key, each value under its rule.

use sealwire_msgpack::{Malformed, Token, TokenReader};

use crate::call_error::CallError;
use crate::frame::Span;
use crate::limits::{
    APP_BYTES_MAX, CONTEXT_BYTES_MAX, CONTEXT_RESERVED, DEADLINE_MS_MAX, ENCAPSULATION_BYTES_MAX,
    ENCAPSULATIONS_MAX, PRINCIPAL_BYTES_MAX, REASON_BYTES_MAX, ROLE_BYTES_MAX,
    SELECT_PATH_BYTES_MAX, SELECT_PATHS_MAX, SUBJECT_BYTES_MAX, TAG_BYTES_MAX, TAGS_MAX,
};
use crate::method::Method;
use crate::params::Param;

/// No name of ours is longer, and no more of a peer's is repeated.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// The params map while it is read, and which of its keys have been met.
pub(super) struct Params<'a> {
    method: Method,
    message: &'a [u8],
    pub(super) reader: TokenReader<'a>,
    left: u32,
    /// One bit per row of the method's table.
    seen: u32,
    /// Where the scan has found the payload.
    payload: Option<Span>,
}

impl<'a> Params<'a> {
    pub(super) fn open(
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
    pub(super) fn next(&mut self) -> Result<Option<&'static Param>, CallError> {
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
    pub(super) fn scalar(&mut self) -> Result<(), CallError> {
        if self.reader.token()?.children() == 0 {
            Ok(())
        } else {
            Err(CallError::Malformed)
        }
    }

    /// For methods without params: any key is one too many.
    pub(super) fn none(&mut self) -> Result<(), CallError> {
        self.next().map(|_| ())
    }

    /// The message ends with its params.
    pub(super) fn close(&self) -> Result<(), CallError> {
        if self.reader.is_at_end() {
            Ok(())
        } else {
            Err(CallError::Malformed)
        }
    }

    pub(super) fn unknown(&self, key: &[u8]) -> CallError {
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
    pub(super) fn unknown_in(&self, key: String) -> CallError {
        CallError::UnknownKey {
            method: self.method,
            key,
        }
    }

    pub(super) fn array_len(&mut self, param: &'static Param) -> Result<u32, CallError> {
        self.reader
            .array_len()
            .map_err(|malformed| wrong(param, malformed))
    }

    pub(super) fn map_len(&mut self, param: &'static Param) -> Result<u32, CallError> {
        self.reader
            .map_len()
            .map_err(|malformed| wrong(param, malformed))
    }

    /// The document, whose end the scan knows: passing over it again would double what a large call
    /// costs before its first slice.
    pub(super) fn payload(&mut self) -> Result<&'a [u8], CallError> {
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
    pub(super) fn text(
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

    /// Reads the name of a data subject.
    pub(super) fn subject(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let name = self.text(param, SUBJECT_BYTES_MAX)?;
        if name.is_empty() {
            Err(breaks(param))
        } else {
            Ok(name)
        }
    }

    pub(super) fn name<T>(
        &mut self,
        param: &'static Param,
        from_name: fn(&str) -> Option<T>,
    ) -> Result<T, CallError> {
        from_name(self.text(param, NAME_BYTES_MAX)?).ok_or(breaks(param))
    }

    pub(super) fn app(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let app = self.text(param, APP_BYTES_MAX)?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let valid = !app.is_empty() && app.bytes().all(allowed);
        if valid { Ok(app) } else { Err(breaks(param)) }
    }

    pub(super) fn role(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let role = self.text(param, ROLE_BYTES_MAX)?;
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = !role.is_empty() && role.bytes().all(allowed);
        if valid { Ok(role) } else { Err(breaks(param)) }
    }

    /// Reads a reason, which goes into records that people read.
    pub(super) fn reason(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let reason = self.text(param, REASON_BYTES_MAX)?;
        let valid = !reason.is_empty() && !reason.chars().any(char::is_control);
        if valid {
            Ok(reason)
        } else {
            Err(breaks(param))
        }
    }

    pub(super) fn principal(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let principal = self.text(param, PRINCIPAL_BYTES_MAX)?;
        if principal.is_empty() {
            Err(breaks(param))
        } else {
            Ok(principal)
        }
    }

    pub(super) fn paths(&mut self, param: &'static Param) -> Result<Vec<&'a str>, CallError> {
        // An empty list would read as "encrypt nothing" to some and "everything" to others.
        self.texts(param, SELECT_PATHS_MAX, SELECT_PATH_BYTES_MAX)
    }

    pub(super) fn encapsulations(
        &mut self,
        param: &'static Param,
    ) -> Result<Vec<&'a str>, CallError> {
        self.texts(param, ENCAPSULATIONS_MAX, ENCAPSULATION_BYTES_MAX)
    }

    pub(super) fn tags(&mut self, param: &'static Param) -> Result<Vec<&'a str>, CallError> {
        let tags = self.texts(param, TAGS_MAX, TAG_BYTES_MAX)?;
        if tags.iter().all(|tag| is_visible(tag)) {
            Ok(tags)
        } else {
            Err(breaks(param))
        }
    }

    pub(super) fn tag(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let tag = self.text(param, TAG_BYTES_MAX)?;
        if !tag.is_empty() && is_visible(tag) {
            Ok(tag)
        } else {
            Err(breaks(param))
        }
    }

    /// An array of 1 to `count_max` strings of 1 to `bytes_max` bytes.
    pub(super) fn texts(
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

    /// A context that a client may name. The engine's own are not among them: what it seals for
    /// itself would open.
    pub(super) fn context(&mut self, param: &'static Param) -> Result<&'a [u8], CallError> {
        let context = self.bytes(param, CONTEXT_BYTES_MAX)?;
        if context.starts_with(CONTEXT_RESERVED.as_bytes()) {
            Err(breaks(param))
        } else {
            Ok(context)
        }
    }

    /// A string or binary of at most `bytes_max` bytes.
    pub(super) fn bytes(
        &mut self,
        param: &'static Param,
        bytes_max: usize,
    ) -> Result<&'a [u8], CallError> {
        let bytes = match self.reader.peek()? {
            Token::Bin(_) => self.reader.bin()?,
            _ => self.text(param, bytes_max)?.as_bytes(),
        };
        if bytes.len() > bytes_max {
            Err(breaks(param))
        } else {
            Ok(bytes)
        }
    }

    pub(super) fn flag(&mut self, param: &'static Param) -> Result<bool, CallError> {
        match self.reader.token()? {
            Token::Bool(flag) => Ok(flag),
            _ => Err(CallError::WrongType {
                key: param.name,
                types: param.types,
            }),
        }
    }

    /// A number within bounds.
    pub(super) fn within(
        &mut self,
        param: &'static Param,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, CallError> {
        let number = self.integer(param)?;
        if bounds.contains(&number) {
            Ok(number)
        } else {
            Err(breaks(param))
        }
    }

    /// Nil, or what `read` reads.
    pub(super) fn or_nil<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, CallError>,
    ) -> Result<Option<T>, CallError> {
        if self.reader.take_nil() {
            Ok(None)
        } else {
            read(self).map(Some)
        }
    }

    /// One value of at most `bytes_max` bytes, passed over no further than that.
    pub(super) fn value(
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

    /// Any integer is of the right type; one below 0 or beyond 64 bits breaks the rule.
    pub(super) fn integer(&mut self, param: &'static Param) -> Result<u64, CallError> {
        match self.reader.token()? {
            Token::Uint(number) => Ok(number),
            Token::Int(number) => u64::try_from(number).map_err(|_| breaks(param)),
            _ => Err(CallError::WrongType {
                key: param.name,
                types: param.types,
            }),
        }
    }

    pub(super) fn deadline(&mut self, param: &'static Param) -> Result<u32, CallError> {
        self.within(param, 1..=u64::from(DEADLINE_MS_MAX))
            .map(|deadline| deadline as u32)
    }
}

fn wrong(param: &'static Param, malformed: Malformed) -> CallError {
    match malformed {
        Malformed::Expected { .. } => CallError::WrongType {
            key: param.name,
            types: param.types,
        },
        Malformed::NotUtf8 => CallError::NotUtf8 { place: param.name },
        Malformed::Truncated | Malformed::ReservedMarker => CallError::Malformed,
    }
}

pub(super) fn breaks(param: &'static Param) -> CallError {
    CallError::BreaksRule {
        key: param.name,
        rule: param.rule,
    }
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A peer's name made safe to print and to log: at most [`NAME_BYTES_MAX`] characters, anything
/// unusual as `?`.
pub(super) fn cleaned(name: &[u8]) -> String {
    let usual = |&byte: &u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte),
        _ => '?',
    };
    name.iter().take(NAME_BYTES_MAX).map(usual).collect()
}
