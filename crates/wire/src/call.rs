//! Decodes one complete message into a call, borrowing everything from it.
//!
//! Refuses whatever the method's table does not list: an unknown, missing or repeated key, a wrong type, a value
//! beyond its rule, text that is not UTF-8. Does not look into `payload`: the scan has found where it ends, wherever it
//! stands, and the payload walk reads it once. So a call costs the same to decode however long its payload is.
//! Messages name keys and rules; the only text of the peer's they repeat is the name of an unknown key or method, cut
//! and cleaned.

use sealwire_msgpack::{Malformed, Reader, Token};

use crate::call_error::CallError;
use crate::frame::{Boundary, Outlook, Span};
use crate::limits::{
    APP_BYTES_MAX, CONTEXT_BYTES_MAX, DEADLINE_MS_MAX, ROLE_BYTES_MAX, SELECT_PATH_BYTES_MAX, SELECT_PATHS_MAX,
};
use crate::method::{Method, Notice};
use crate::params::{
    Curve, Decrypt, DocumentCall, Encoding, Encrypt, Envelope, Format, Inspect, KeyScope, OnError, Param, Rewrap,
    Unbound, Writing,
};

/// No name of ours is longer, and no more of a peer's is repeated.
const NAME_BYTES_MAX: usize = 64;

/// A request that is valid as far as the wire can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// Replace leaves by envelopes.
    Encrypt(Encrypt<'a>),
    /// Open envelopes.
    Decrypt(Decrypt<'a>),
    /// Open envelopes and seal them again.
    Rewrap(Rewrap<'a>),
    /// Describe an envelope.
    Inspect(Inspect<'a>),
    /// Describe the server.
    Info,
    /// Answer.
    Health,
}

impl<'a> Call<'a> {
    /// Decodes a whole request: exactly the bytes of `boundary`, whose head is a request. Takes time that does not grow
    /// with the payload.
    ///
    /// # Errors
    /// [`CallError`]; answer it to the head's msgid. [`CallError::Malformed`] if the boundary is another message's.
    pub fn decode(message: &'a [u8], boundary: &Boundary) -> Result<Self, CallError> {
        if message.len() != boundary.bytes {
            return Err(CallError::Malformed);
        }
        let (name, reader) = name(message)?;
        let Some(method) = Method::from_name(name) else {
            return Err(CallError::UnknownMethod { method: cleaned(name) });
        };
        let mut params = Params::open(method, message, reader, boundary.payload)?;
        let call = match method {
            Method::Encrypt => Self::Encrypt(document(&mut params)?),
            Method::Decrypt => Self::Decrypt(document(&mut params)?.writing(())),
            Method::Rewrap => Self::Rewrap(document(&mut params)?),
            Method::Inspect => Self::Inspect(inspect(&mut params)?),
            Method::Info => params.none().map(|()| Self::Info)?,
            Method::Health => params.none().map(|()| Self::Health)?,
        };
        params.close()?;
        Ok(call)
    }

    /// Which method it calls.
    pub const fn method(&self) -> Method {
        match self {
            Self::Encrypt(_) => Method::Encrypt,
            Self::Decrypt(_) => Method::Decrypt,
            Self::Rewrap(_) => Method::Rewrap,
            Self::Inspect(_) => Method::Inspect,
            Self::Info => Method::Info,
            Self::Health => Method::Health,
        }
    }
}

/// A request's method, and what follows it.
fn name(message: &[u8]) -> Result<(&[u8], Reader<'_>), CallError> {
    let mut reader = Reader::new(message);
    if reader.array_len()? != 4 || reader.u64()? != 0 {
        return Err(CallError::Malformed);
    }
    reader.u32()?;
    match reader.token()? {
        Token::Str(name) => Ok((name, reader)),
        _ => Err(CallError::Malformed),
    }
}

/// What the beginning of a request on a document says of the work. Reads up to the payload, or to where the bytes end
/// or a param is not sound: then the decoder will refuse the call, and what is known till then has to do.
pub(crate) fn params_so_far(method: Method, message: &[u8]) -> Outlook {
    let mut outlook = Outlook { method, deadline_ms: None, curve: None, key_scope: None, format: None, whole: None };
    let _ = name(message)
        .and_then(|(_, reader)| Params::open(method, message, reader, None))
        .and_then(|mut params| params.tell(&mut outlook));
    outlook
}

/// The msgid that a whole `cancel` notification names.
///
/// # Errors
/// [`CallError::Malformed`]; a notification gets no answer, so ignore it.
pub fn decode_cancel(message: &[u8]) -> Result<u32, CallError> {
    let mut reader = Reader::new(message);
    let head = (reader.array_len()?, reader.u64()?, reader.token()?, reader.array_len()?);
    let name = Token::Str(Notice::Cancel.name().as_bytes());
    let msgid = reader.u32()?;
    if head == (3, 2, name, 1) && reader.is_at_end() { Ok(msgid) } else { Err(CallError::Malformed) }
}

/// The params of any method on a document. The method's table has refused what is not its own.
fn document<'a>(params: &mut Params<'a>) -> Result<DocumentCall<'a, Writing<'a>>, CallError> {
    let mut call = DocumentCall::<Writing<'a>>::new("", &[]);
    let writing = &mut call.writing;
    while let Some(param) = params.next()? {
        match param.name {
            "app" => call.app = params.app(param)?,
            "payload" => call.payload = params.payload()?,
            "select" => call.select = Some(params.paths(param)?),
            "curve" => writing.curve = params.name(param, Curve::from_name)?,
            "key_scope" => writing.key_scope = params.name(param, KeyScope::from_name)?,
            "format" => writing.format = Some(params.name(param, Format::from_name)?),
            "role" => writing.role = Some(params.role(param)?),
            "unbound" => writing.unbound = params.name(param, Unbound::from_name)?,
            "encoding" => writing.encoding = params.name(param, Encoding::from_name)?,
            "context" => call.context = params.context(param)?,
            "on_error" => call.on_error = params.name(param, OnError::from_name)?,
            "deadline_ms" => call.deadline_ms = Some(params.deadline(param)?),
            "min_generation" => call.min_generation = Some(params.integer(param)?),
            other => return Err(params.unknown(other.as_bytes())),
        }
    }
    Ok(call)
}

fn inspect<'a>(params: &mut Params<'a>) -> Result<Inspect<'a>, CallError> {
    let mut envelope = Envelope::Binary(&[]);
    while let Some(param) = params.next()? {
        envelope = match params.reader.peek()? {
            Token::Bin(_) => Envelope::Binary(params.reader.bin()?),
            _ => Envelope::Text(params.text(param, usize::MAX)?),
        };
    }
    Ok(Inspect { envelope })
}

/// The params map while it is read, and which of its keys have been met.
struct Params<'a> {
    method: Method,
    message: &'a [u8],
    reader: Reader<'a>,
    left: u32,
    /// One bit per row of the method's table.
    seen: u32,
    /// Where the scan has found the payload.
    payload: Option<Span>,
}

impl<'a> Params<'a> {
    fn open(
        method: Method,
        message: &'a [u8],
        mut reader: Reader<'a>,
        payload: Option<Span>,
    ) -> Result<Self, CallError> {
        let shape = |_| CallError::ParamsShape { method };
        let left = match reader.array_len().map_err(shape)? {
            1 => reader.map_len().map_err(shape)?,
            0 if method.params().is_empty() => 0,
            _ => return Err(CallError::ParamsShape { method }),
        };
        Ok(Self { method, message, reader, left, seen: 0, payload })
    }

    /// Reads the next key and leaves the reader at its value. `None` at the end of the map, once no key is missing.
    fn next(&mut self) -> Result<Option<&'static Param>, CallError> {
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
            return Err(CallError::KeyNotText { method: self.method });
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

    /// Notes what matters before the work, up to the payload. No key comes twice and none takes more than its rule
    /// allows, so this is bounded whatever the peer sends.
    fn tell(&mut self, outlook: &mut Outlook) -> Result<(), CallError> {
        while let Some(param) = self.next()? {
            match param.name {
                "payload" => break,
                "deadline_ms" => outlook.deadline_ms = Some(self.deadline(param)?),
                "curve" => outlook.curve = Some(self.name(param, Curve::from_name)?),
                "key_scope" => outlook.key_scope = Some(self.name(param, KeyScope::from_name)?),
                "format" => outlook.format = Some(self.name(param, Format::from_name)?),
                "select" => drop(self.paths(param)?),
                _ if self.reader.token()?.children() == 0 => (),
                _ => return Err(CallError::Malformed),
            }
        }
        Ok(())
    }

    /// For methods without params: any key is one too many.
    fn none(&mut self) -> Result<(), CallError> {
        self.next().map(|_| ())
    }

    /// The message ends with its params.
    fn close(&self) -> Result<(), CallError> {
        if self.reader.is_at_end() { Ok(()) } else { Err(CallError::Malformed) }
    }

    fn unknown(&self, key: &[u8]) -> CallError {
        let unreadable = key.len() <= NAME_BYTES_MAX && std::str::from_utf8(key).is_err();
        if unreadable {
            CallError::NotUtf8 { place: "a parameter name" }
        } else {
            CallError::UnknownKey { method: self.method, key: cleaned(key) }
        }
    }

    /// The document, whose end the scan knows: passing over it again would double what a large call costs before its
    /// first slice.
    fn payload(&mut self) -> Result<&'a [u8], CallError> {
        let here = self.payload.filter(|span| span.start == self.reader.position()).ok_or(CallError::Malformed)?;
        self.reader = Reader::at(self.message, here.end);
        self.message.get(here.start..here.end).ok_or(CallError::Malformed)
    }

    /// A string. One beyond `bytes_max` breaks the rule unread: to check it would take as long as it is.
    fn text(&mut self, param: &'static Param, bytes_max: usize) -> Result<&'a str, CallError> {
        if matches!(self.reader.peek()?, Token::Str(text) if text.len() > bytes_max) {
            return Err(breaks(param));
        }
        self.reader.str_utf8().map_err(|malformed| wrong(param, malformed))
    }

    fn name<T>(&mut self, param: &'static Param, from_name: fn(&str) -> Option<T>) -> Result<T, CallError> {
        from_name(self.text(param, NAME_BYTES_MAX)?).ok_or(breaks(param))
    }

    fn app(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let app = self.text(param, APP_BYTES_MAX)?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let valid = !app.is_empty() && app.bytes().all(allowed);
        if valid { Ok(app) } else { Err(breaks(param)) }
    }

    fn role(&mut self, param: &'static Param) -> Result<&'a str, CallError> {
        let role = self.text(param, ROLE_BYTES_MAX)?;
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = !role.is_empty() && role.bytes().all(allowed);
        if valid { Ok(role) } else { Err(breaks(param)) }
    }

    fn paths(&mut self, param: &'static Param) -> Result<Vec<&'a str>, CallError> {
        let count = self.reader.array_len().map_err(|malformed| wrong(param, malformed))?;
        // An empty list would read as "encrypt nothing" to some and "everything" to others.
        if count == 0 || count as usize > SELECT_PATHS_MAX {
            return Err(breaks(param));
        }
        let mut paths = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let path = self.text(param, SELECT_PATH_BYTES_MAX)?;
            if path.is_empty() {
                return Err(breaks(param));
            }
            paths.push(path);
        }
        Ok(paths)
    }

    fn context(&mut self, param: &'static Param) -> Result<&'a [u8], CallError> {
        let context = match self.reader.peek()? {
            Token::Bin(_) => self.reader.bin()?,
            _ => self.text(param, CONTEXT_BYTES_MAX)?.as_bytes(),
        };
        if context.len() > CONTEXT_BYTES_MAX { Err(breaks(param)) } else { Ok(context) }
    }

    /// Any integer is of the right type; one below 0 or beyond 64 bits breaks the rule.
    fn integer(&mut self, param: &'static Param) -> Result<u64, CallError> {
        match self.reader.token()? {
            Token::Uint(number) => Ok(number),
            Token::Int(number) => u64::try_from(number).map_err(|_| breaks(param)),
            _ => Err(CallError::WrongType { key: param.name, types: param.types }),
        }
    }

    fn deadline(&mut self, param: &'static Param) -> Result<u32, CallError> {
        let deadline = u32::try_from(self.integer(param)?).map_err(|_| breaks(param))?;
        if (1..=DEADLINE_MS_MAX).contains(&deadline) { Ok(deadline) } else { Err(breaks(param)) }
    }
}

fn wrong(param: &'static Param, malformed: Malformed) -> CallError {
    match malformed {
        Malformed::Expected { .. } => CallError::WrongType { key: param.name, types: param.types },
        Malformed::NotUtf8 => CallError::NotUtf8 { place: param.name },
        Malformed::Truncated | Malformed::ReservedMarker => CallError::Malformed,
    }
}

fn breaks(param: &'static Param) -> CallError {
    CallError::BreaksRule { key: param.name, rule: param.rule }
}

/// A peer's name made safe to print and to log: at most [`NAME_BYTES_MAX`] characters, anything unusual as `?`.
fn cleaned(name: &[u8]) -> String {
    let usual = |&byte: &u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte),
        _ => '?',
    };
    name.iter().take(NAME_BYTES_MAX).map(usual).collect()
}

#[cfg(test)]
mod tests;
