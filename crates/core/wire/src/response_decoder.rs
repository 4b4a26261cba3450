//! Decodes responses, for clients. The decoders ignore unknown result keys, so that a newer server
//! can add keys.

use sealwire_msgpack::{Malformed, Token, TokenReader};

use crate::error::{ErrorCode, RpcError};
use crate::method::Notification;

/// A whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The msgid of the request.
    pub msgid: u32,
    /// The result as one MessagePack value, or the error.
    pub outcome: Result<&'a [u8], RpcError>,
}

impl<'a> Response<'a> {
    /// Decodes a whole response. `message` must be exactly the bytes of a [`crate::FrameLayout`]
    /// whose header is a response.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the peer does not follow this contract. Close the connection then.
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
        expect_end(&reader)?;
        Ok(Self { msgid, outcome })
    }
}

/// Returns the error in a whole `error` notification: the reason why the server closes the
/// connection.
///
/// # Errors
/// Returns [`Malformed`] for any other message.
pub fn decode_protocol_error(message: &[u8]) -> Result<RpcError, Malformed> {
    let mut reader = TokenReader::new(message);
    let header = (
        reader.array_len()?,
        reader.u64()?,
        reader.token()?,
        reader.array_len()?,
    );
    if header != (3, 2, Token::Str(Notification::Error.name().as_bytes()), 1) {
        return Err(Malformed::Expected {
            expected: "an error notification",
            found: "another message",
        });
    }
    let error = RpcError::decode(&mut reader)?;
    expect_end(&reader)?;
    Ok(error)
}

/// A field that a request with `on_error: "report"` did not change, because of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field from `$`, truncated to 1,024 bytes.
    pub path: String,
    /// The error code.
    pub code: ErrorCode,
}

/// The result of `encrypt`, `decrypt` and `rewrap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// The document, one MessagePack value of the same structure as in the request.
    pub payload: &'a [u8],
    /// The server's generation when it handled the request.
    pub generation: u64,
    /// The unchanged fields, with `on_error: "report"`. At most 1,000.
    pub errors: Vec<FieldError>,
    /// The number of unchanged fields beyond those in `errors`.
    pub errors_omitted: u64,
    /// Positions of the paths in `select` that match nothing in the document.
    pub unmatched: Vec<u32>,
    /// Encapsulations that fields of the payload refer to, and without which these fields do not open.
    pub encapsulations: Vec<String>,
}

impl<'a> Document<'a> {
    /// Decodes the `outcome` of a [`Response`].
    ///
    /// # Errors
    /// Returns [`Malformed`] if the payload or the generation is missing, or a value has another
    /// type.
    pub fn decode(result: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let mut payload = None;
        let mut generation = None;
        let mut errors = Vec::new();
        let mut errors_omitted = 0;
        let mut unmatched = Vec::new();
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
        expect_end(&reader)?;
        let missing = Malformed::Expected {
            expected: "payload and generation",
            found: "a map without",
        };
        Ok(Self {
            payload: payload.ok_or(missing)?,
            generation: generation.ok_or(missing)?,
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

pub(crate) fn expect_end(reader: &TokenReader<'_>) -> Result<(), Malformed> {
    if reader.is_at_end() {
        Ok(())
    } else {
        Err(Malformed::Expected {
            expected: "the end",
            found: "more bytes",
        })
    }
}
