//! Decodes answers, for clients. Ignores result keys it does not know, so that a server may add
//! some.

use sealwire_msgpack::{Malformed, Token, TokenReader};

use crate::error::{ErrorCode, RpcError};
use crate::method::Notification;

/// A whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The call it answers.
    pub msgid: u32,
    /// The result as one MessagePack value, or why there is none.
    pub outcome: Result<&'a [u8], RpcError>,
}

impl<'a> Reply<'a> {
    /// Decodes a whole response: exactly the bytes of a [`crate::FrameLayout`] whose head is one.
    ///
    /// # Errors
    /// [`Malformed`]: the peer does not speak this contract; close the connection.
    pub fn decode(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(message);
        if reader.array_len()? != 4 || reader.u64()? != 1 {
            return Err(Malformed::Expected {
                expected: "a response",
                found: "another message",
            });
        }
        let msgid = reader.u32()?;
        let outcome = if reader.take_nil() {
            Ok(reader.value()?)
        } else {
            let error = RpcError::decode(&mut reader)?;
            reader.skip_value()?;
            Err(error)
        };
        at_end(&reader)?;
        Ok(Self { msgid, outcome })
    }
}

/// The error in a whole `error` notification, which tells why the server closes the connection.
///
/// # Errors
/// [`Malformed`] if it is anything else.
pub fn decode_protocol_error(message: &[u8]) -> Result<RpcError, Malformed> {
    let mut reader = TokenReader::new(message);
    let head = (
        reader.array_len()?,
        reader.u64()?,
        reader.token()?,
        reader.array_len()?,
    );
    if head != (3, 2, Token::Str(Notification::Error.name().as_bytes()), 1) {
        return Err(Malformed::Expected {
            expected: "an error notification",
            found: "another message",
        });
    }
    let error = RpcError::decode(&mut reader)?;
    at_end(&reader)?;
    Ok(error)
}

/// One field that a call with `on_error: "report"` left as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Where it is, as a path from `$`; cut at 1,024 bytes.
    pub path: String,
    /// The error code.
    pub code: ErrorCode,
}

/// The result of `encrypt`, `decrypt` and `rewrap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// The document, one MessagePack value of the shape that was sent.
    pub payload: &'a [u8],
    /// The server's generation when it worked.
    pub generation: u64,
    /// The fields left as they came, with `on_error: "report"`. At most 1,000.
    pub errors: Vec<FieldError>,
    /// How many more there were.
    pub errors_omitted: u64,
    /// Positions of the paths of `select` that match nothing in the document.
    pub unmatched: Vec<u32>,
    /// Encapsulations that fields of the payload refer to. Without them they do not open again.
    pub encapsulations: Vec<String>,
}

impl<'a> Document<'a> {
    /// Decodes the `outcome` of a [`Reply`].
    ///
    /// # Errors
    /// [`Malformed`] if it lacks a payload or a generation, or a value has another type.
    pub fn decode(result: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let (mut payload, mut generation) = (None, None);
        let (mut errors, mut errors_omitted, mut unmatched) = (Vec::new(), 0, Vec::new());
        let mut encapsulations = Vec::new();
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "payload" => payload = Some(reader.value()?),
                "generation" => generation = Some(reader.u64()?),
                "errors" => {
                    for _ in 0..reader.array_len()? {
                        errors.push(field_error(&mut reader)?);
                    }
                }
                "errors_omitted" => errors_omitted = reader.u64()?,
                "unmatched" => {
                    for _ in 0..reader.array_len()? {
                        unmatched.push(reader.u32()?);
                    }
                }
                "encapsulations" => {
                    for _ in 0..reader.array_len()? {
                        encapsulations.push(reader.str_utf8()?.to_owned());
                    }
                }
                _ => reader.skip_value()?,
            }
        }
        at_end(&reader)?;
        let missing = Malformed::Expected {
            expected: "payload and generation",
            found: "a map without",
        };
        let (payload, generation) = (payload.ok_or(missing)?, generation.ok_or(missing)?);
        Ok(Self {
            payload,
            generation,
            errors,
            errors_omitted,
            unmatched,
            encapsulations,
        })
    }
}

fn field_error(reader: &mut TokenReader<'_>) -> Result<FieldError, Malformed> {
    let mut error = FieldError {
        path: String::new(),
        code: ErrorCode::Internal,
    };
    for _ in 0..reader.map_len()? {
        match reader.str_utf8()? {
            "path" => error.path = reader.str_utf8()?.to_owned(),
            "code" => {
                error.code = ErrorCode::from_name(reader.str_utf8()?).unwrap_or(ErrorCode::Internal)
            }
            _ => reader.skip_value()?,
        }
    }
    Ok(error)
}

pub(crate) fn at_end(reader: &TokenReader<'_>) -> Result<(), Malformed> {
    if reader.is_at_end() {
        Ok(())
    } else {
        Err(Malformed::Expected {
            expected: "the end",
            found: "more bytes",
        })
    }
}
