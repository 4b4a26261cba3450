//! Decodes one complete message into a call, borrowing everything from it.
//!
//! Its method is the one that the scan has found, so that a method that the listener does not serve
//! is none. Refuses whatever the method's table does not list: an unknown, missing or repeated key,
//! a wrong type, a value beyond its rule, text that is not UTF-8. Does not look into `payload`: the
//! scan has found where it ends, wherever it stands, and the payload walk reads it once. So a call
//! costs the same to decode however long its payload is. Messages name keys and rules; the only
//! text of the peer's they repeat is the name of an unknown key or method, cut and cleaned.

mod control;
mod document;
mod masking;
mod objects;
mod reading;
mod tokens;

use sealwire_msgpack::{Token, TokenReader};

use crate::call_error::CallError;
use crate::error::ErrorFormat;
use crate::frame::{FrameLayout, MessageHeader, Preview};
use crate::method::{Method, Notification};
use crate::params::{
    Control, Decrypt, Detokenize, Encrypt, Envelope, Format, Inspect, KeyScope, Mask, ObjectsCall,
    Rewrap, SubjectsCall, Suite, Tokenize, TokensCall,
};
use document::document;
use reading::{Params, cleaned};

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
    /// Replace leaves by tokens.
    Tokenize(Tokenize<'a>),
    /// Replace tokens by their values.
    Detokenize(Detokenize<'a>),
    /// Mask fields.
    Mask(Mask<'a>),
    /// Something about the tokens of a collection.
    Tokens(TokensCall<'a>),
    /// An operation on the objects of a collection.
    Objects(ObjectsCall<'a>),
    /// An operation on a data subject.
    Subjects(SubjectsCall<'a>),
    /// A control method.
    Control(Control<'a>),
    /// Describe the server.
    Info,
    /// Answer.
    Health,
}

impl<'a> Call<'a> {
    /// Decodes a whole request: exactly the bytes of `boundary`, whose head is a request. Takes
    /// time that does not grow with the payload.
    ///
    /// # Errors
    /// [`CallError`]; answer it to the head's msgid. [`CallError::Malformed`] if the boundary is
    /// another message's.
    pub fn decode(message: &'a [u8], boundary: &FrameLayout) -> Result<Self, CallError> {
        if message.len() != boundary.bytes {
            return Err(CallError::Malformed);
        }
        let MessageHeader::Request { method, .. } = boundary.head else {
            return Err(CallError::Malformed);
        };
        let (name, reader) = name(message)?;
        let Some(method) = method else {
            return Err(CallError::UnknownMethod {
                method: cleaned(name),
            });
        };
        if method.name().as_bytes() != name {
            return Err(CallError::Malformed);
        }
        let mut params = Params::open(method, message, reader, boundary.payload)?;
        let call = match method {
            Method::Encrypt => Self::Encrypt(document(&mut params)?),
            Method::Decrypt => Self::Decrypt(document(&mut params)?),
            Method::Rewrap => Self::Rewrap(document(&mut params)?),
            Method::Inspect => Self::Inspect(inspect(&mut params)?),
            Method::Tokenize => Self::Tokenize(document(&mut params)?),
            Method::Detokenize => Self::Detokenize(document(&mut params)?),
            Method::Mask => Self::Mask(document(&mut params)?),
            Method::Info => params.none().map(|()| Self::Info)?,
            Method::Health => params.none().map(|()| Self::Health)?,
            _ => match (
                tokens::call(method, &mut params)?,
                objects::call(method, &mut params)?,
            ) {
                (Some(call), _) => Self::Tokens(call),
                (None, Some(call)) => Self::Objects(call),
                (None, None) => match objects::subject_call(method, &mut params)? {
                    Some(call) => Self::Subjects(call),
                    None => Self::Control(control::call(method, &mut params)?),
                },
            },
        };
        params.close()?;
        Ok(call)
    }

    /// The caller's span, if it named one as a `traceparent`; whether that is valid is still to be
    /// seen.
    pub const fn traceparent(&self) -> Option<&'a str> {
        match self {
            Self::Encrypt(call) | Self::Rewrap(call) => call.traceparent,
            Self::Decrypt(call) => call.traceparent,
            Self::Tokenize(call) => call.traceparent,
            Self::Detokenize(call) => call.traceparent,
            Self::Mask(call) => call.traceparent,
            Self::Tokens(call) => call.map.traceparent,
            Self::Objects(call) => call.map.traceparent,
            Self::Subjects(call) => call.target.traceparent,
            Self::Inspect(_) | Self::Control(_) | Self::Info | Self::Health => None,
        }
    }

    /// Which method it calls.
    pub const fn method(&self) -> Method {
        match self {
            Self::Encrypt(_) => Method::Encrypt,
            Self::Decrypt(_) => Method::Decrypt,
            Self::Rewrap(_) => Method::Rewrap,
            Self::Inspect(_) => Method::Inspect,
            Self::Tokenize(_) => Method::Tokenize,
            Self::Detokenize(_) => Method::Detokenize,
            Self::Mask(_) => Method::Mask,
            Self::Tokens(call) => call.ask.method(),
            Self::Objects(call) => call.ask.method(),
            Self::Subjects(call) => call.ask.method(),
            Self::Control(call) => call.method(),
            Self::Info => Method::Info,
            Self::Health => Method::Health,
        }
    }
}

/// A request's method, and what follows it.
fn name(message: &[u8]) -> Result<(&[u8], TokenReader<'_>), CallError> {
    let mut reader = TokenReader::new(message);
    if reader.array_len()? != 4 || reader.u64()? != 0 {
        return Err(CallError::Malformed);
    }
    reader.u32()?;
    match reader.token()? {
        Token::Str(name) => Ok((name, reader)),
        _ => Err(CallError::Malformed),
    }
}

/// Previews the work of a document request from its beginning. Reads up to the payload, the end of
/// the bytes, or an invalid param. The decoder will reject the invalid request later; the preview
/// uses the params before it.
pub(crate) fn params_so_far(method: Method, message: &[u8]) -> Preview {
    let mut outlook = Preview {
        method,
        deadline_ms: None,
        suite: None,
        key_scope: None,
        format: None,
        whole: None,
    };
    let _ = name(message)
        .and_then(|(_, reader)| Params::open(method, message, reader, None))
        .and_then(|mut params| preview(&mut params, &mut outlook));
    outlook
}

/// Reads the params up to the payload. Each param occurs at most once and is bounded by its rule,
/// so the work is bounded for any input.
fn preview(params: &mut Params<'_>, outlook: &mut Preview) -> Result<(), CallError> {
    while let Some(param) = params.next()? {
        match param.name {
            "payload" => break,
            "deadline_ms" => outlook.deadline_ms = Some(params.deadline(param)?),
            "suite" => outlook.suite = Some(params.name(param, Suite::from_name)?),
            "key_scope" => outlook.key_scope = Some(params.name(param, KeyScope::from_name)?),
            "format" => outlook.format = Some(params.name(param, Format::from_name)?),
            "select" => drop(params.paths(param)?),
            "encapsulations" => drop(params.encapsulations(param)?),
            "tags" => drop(params.tags(param)?),
            "rules" => drop(masking::rules(param, params)?),
            "lists" => drop(masking::lists(param, params)?),
            _ => params.scalar()?,
        }
    }
    Ok(())
}

/// The msgid that a whole `cancel` notification names.
///
/// # Errors
/// [`CallError::Malformed`]; a notification gets no answer, so ignore it.
pub fn decode_cancel(message: &[u8]) -> Result<u32, CallError> {
    let mut reader = TokenReader::new(message);
    let head = (
        reader.array_len()?,
        reader.u64()?,
        reader.token()?,
        reader.array_len()?,
    );
    let name = Token::Str(Notification::Cancel.name().as_bytes());
    let msgid = reader.u32()?;
    if head == (3, 2, name, 1) && reader.is_at_end() {
        Ok(msgid)
    } else {
        Err(CallError::Malformed)
    }
}

/// The form of errors that a whole `errors` notification asks for.
///
/// # Errors
/// [`CallError::Malformed`], also for a form that does not exist; a notification gets no answer, so
/// ignore it.
pub fn decode_errors(message: &[u8]) -> Result<ErrorFormat, CallError> {
    let mut reader = TokenReader::new(message);
    let head = (
        reader.array_len()?,
        reader.u64()?,
        reader.token()?,
        reader.array_len()?,
    );
    let name = Token::Str(Notification::Errors.name().as_bytes());
    let format = reader.token()?;
    let is_text = format == Token::Str(ErrorFormat::Text.name().as_bytes());
    if head == (3, 2, name, 1) && is_text && reader.is_at_end() {
        Ok(ErrorFormat::Text)
    } else {
        Err(CallError::Malformed)
    }
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
