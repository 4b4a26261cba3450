//! Seals one field in the format a call asks for: between the walk and the crypto, which knows no MessagePack.
//!
//! Takes a value in the words of the native envelope and appends one MessagePack value, or nothing when it refuses.

use sealwire_crypto::evervault::{self, FileError, Number, NumberText};
use sealwire_crypto::{Datatype, Encoding, Error, Sealer};
use sealwire_msgpack::{Reader as Tokens, Token, write};

use crate::faults::{FieldFault, Refusal};

/// Seals the fields of one call.
#[derive(Debug)]
pub enum Writer {
    /// Into native envelopes.
    Native(Box<Sealer>),
    /// Into Evervault strings, and binary into Evervault files.
    Evervault(Box<evervault::Sealer>),
}

impl Writer {
    /// Gives what is written next the data role of what was opened. `false`: its format has no place for it.
    #[inline]
    pub fn carry_role(&mut self, datatype: Datatype, role: Option<&str>) -> bool {
        match self {
            Self::Evervault(sealer) if datatype != Datatype::Binary => sealer.carry_role(role),
            // A role left from the value before would refuse a file.
            Self::Evervault(sealer) => sealer.carry_role(None) && role.is_none(),
            Self::Native(_) => role.is_none(),
        }
    }

    /// Appends a sealed field as a MessagePack value. `plaintext` is UTF-8 for a string and one MessagePack value for
    /// [`Datatype::Value`].
    ///
    /// # Errors
    ///
    /// A value that the format cannot hold is refused; `out` may then end in part of a value.
    #[inline]
    pub fn write(&mut self, datatype: Datatype, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), FieldFault> {
        match self {
            Self::Native(sealer) => {
                let bytes = sealer.sealed_bytes(plaintext.len());
                match sealer.encoding() {
                    Encoding::Text => write::str_header(out, bytes),
                    Encoding::Binary => write::bin_header(out, bytes),
                }
                sealer.seal(datatype, plaintext, out).map_err(|_| FieldFault::Library)
            }
            Self::Evervault(sealer) => write_evervault(sealer, datatype, plaintext, out),
        }
    }
}

fn write_evervault(
    sealer: &mut evervault::Sealer,
    datatype: Datatype,
    plaintext: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), FieldFault> {
    let number;
    let (datatype, text) = match datatype {
        Datatype::String => (evervault::Datatype::String, std::str::from_utf8(plaintext).map_err(|_| Refusal::NoForm)?),
        Datatype::Binary => {
            write::bin_header(out, sealer.sealed_file_bytes(plaintext.len()));
            return sealer.seal_file(plaintext, out).map_err(|error| match error {
                FileError::TooLong => Refusal::TooLong.into(),
                FileError::Role => Refusal::FileRole.into(),
                FileError::Ambiguous => Refusal::NoForm.into(),
                FileError::Library => FieldFault::Library,
            });
        }
        Datatype::Value => match Tokens::new(plaintext).token().map_err(|_| Refusal::NoForm)? {
            Token::Bool(value) => (evervault::Datatype::Boolean, if value { "true" } else { "false" }),
            token => {
                number = NumberText::new(number_of(token).ok_or(Refusal::NoForm)?);
                (evervault::Datatype::Number, number.as_str())
            }
        },
    };
    write::str_header(out, sealer.sealed_bytes(datatype, text.len()));
    sealer.seal(datatype, text, out).map_err(|error| match error {
        Error::TextTooLong => Refusal::TooLong.into(),
        _ => FieldFault::Library,
    })
}

/// Maps, arrays and extensions are no numbers.
fn number_of(token: Token<'_>) -> Option<Number> {
    match token {
        Token::Uint(number) => Some(Number::Unsigned(number)),
        Token::Int(number) => Some(u64::try_from(number).map_or(Number::Signed(number), Number::Unsigned)),
        Token::F32(number) => Some(Number::Float(number.into())),
        Token::F64(number) => Some(Number::Float(number)),
        _ => None,
    }
}
