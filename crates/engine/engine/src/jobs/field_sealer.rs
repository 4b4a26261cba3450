//! Seals one field in the format a call asks for: between the walk and the crypto, which knows no
//! MessagePack.
//!
//! Takes a value in the words of the native envelope and appends one MessagePack value, or nothing
//! when it refuses.

use sealwire_crypto::evervault::{self, FileError, Number, NumberText};
use sealwire_crypto::{Datatype, Encoding, Error, Sealer};
use sealwire_msgpack::{Token, TokenReader, write};

use crate::jobs::field_errors::{FieldFault, FieldProblem};
use crate::jobs::field_opener::OpenedField;

/// Seals the fields of one call.
#[derive(Debug)]
pub enum FieldSealer {
    /// Into native envelopes.
    Native(Box<Sealer>),
    /// Into Evervault strings, and binary into Evervault files.
    Evervault(Box<evervault::Sealer>),
}

impl FieldSealer {
    /// Gives what is written next the data role of what was opened. A role that is open is given up
    /// where the format has no place for any, and only there.
    fn carry_role(&mut self, found: &OpenedField<'_>) -> Result<(), FieldProblem> {
        if let Self::Evervault(sealer) = self {
            // A file has no place for a role, and one left from the value before would refuse it.
            let is_file = found.datatype == Datatype::Binary;
            let carried = sealer.carry_role(if is_file { None } else { found.role });
            if !carried && sealer.tag().has_metadata() {
                return Err(FieldProblem::Role);
            }
            if carried && !is_file {
                return Ok(());
            }
        }
        found.without_role()
    }

    /// Appends what was opened, sealed again, as a MessagePack value, with its data role. Inside
    /// the Evervault format datatype and text stay as they were: another way to say the value would
    /// have another length, and tell of it although its role is shut.
    ///
    /// # Errors
    ///
    /// As [`FieldSealer::write`]; and [`FieldProblem::Role`] when the role cannot go along and may
    /// not be left behind.
    #[inline]
    pub fn rewrite(
        &mut self,
        found: &OpenedField<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), FieldFault> {
        self.carry_role(found)?;
        match (self, found.said) {
            (Self::Evervault(sealer), Some((datatype, text))) => {
                write_string(sealer, datatype, text, out)
            }
            (writer, _) => writer.write(found.datatype, found.plaintext, out),
        }
    }

    /// Appends a sealed field as a MessagePack value. `plaintext` is UTF-8 for a string and one
    /// MessagePack value for [`Datatype::Value`]. Its ciphertext can be missing until
    /// [`FieldSealer::complete`]; until then the caller keeps all bytes of `out` where they are.
    ///
    /// # Errors
    ///
    /// A value that the format cannot hold is refused; `out` may then end in part of a value.
    #[inline]
    pub fn write(
        &mut self,
        datatype: Datatype,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), FieldFault> {
        match self {
            Self::Native(sealer) => {
                let bytes = sealer.sealed_bytes(plaintext.len());
                match sealer.encoding() {
                    Encoding::Text => write::str_header(out, bytes),
                    Encoding::Binary => write::bin_header(out, bytes),
                }
                sealer
                    .seal_later(datatype, plaintext, out)
                    .map_err(|_| FieldFault::Library)
            }
            Self::Evervault(sealer) => write_evervault(sealer, datatype, plaintext, out),
        }
    }

    /// Takes the texts of the encapsulations that what was written refers to.
    pub fn take_encapsulations(&mut self) -> Vec<String> {
        match self {
            Self::Native(sealer) => sealer.take_encapsulations(),
            Self::Evervault(_) => Vec::new(),
        }
    }

    /// Fills in every ciphertext that [`FieldSealer::write`] left out of `out`.
    pub fn complete(&mut self, out: &mut [u8]) {
        match self {
            Self::Native(sealer) => sealer.complete(out),
            Self::Evervault(_) => (),
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
        Datatype::String => (
            evervault::Datatype::String,
            std::str::from_utf8(plaintext).map_err(|_| FieldProblem::NoForm)?,
        ),
        Datatype::Binary => {
            write::bin_header(out, sealer.sealed_file_bytes(plaintext.len()));
            return sealer
                .seal_file(plaintext, out)
                .map_err(|error| match error {
                    FileError::TooLong => FieldProblem::TooLong.into(),
                    FileError::Role => FieldProblem::FileRole.into(),
                    FileError::Ambiguous => FieldProblem::NoForm.into(),
                    FileError::Library => FieldFault::Library,
                });
        }
        Datatype::Value => match TokenReader::new(plaintext)
            .token()
            .map_err(|_| FieldProblem::NoForm)?
        {
            Token::Bool(value) => (
                evervault::Datatype::Boolean,
                if value { "true" } else { "false" },
            ),
            token => {
                number = NumberText::new(number_of(token).ok_or(FieldProblem::NoForm)?);
                (evervault::Datatype::Number, number.as_str())
            }
        },
    };
    write_string(sealer, datatype, text, out)
}

fn write_string(
    sealer: &mut evervault::Sealer,
    datatype: evervault::Datatype,
    text: &str,
    out: &mut Vec<u8>,
) -> Result<(), FieldFault> {
    write::str_header(out, sealer.sealed_bytes(datatype, text.len()));
    sealer
        .seal(datatype, text, out)
        .map_err(|error| match error {
            Error::TextTooLong => FieldProblem::TooLong.into(),
            _ => FieldFault::Library,
        })
}

/// Maps, arrays and extensions are no numbers.
fn number_of(token: Token<'_>) -> Option<Number> {
    match token {
        Token::Uint(number) => Some(Number::Unsigned(number)),
        Token::Int(number) => {
            Some(u64::try_from(number).map_or(Number::Signed(number), Number::Unsigned))
        }
        Token::F32(number) => Some(Number::Float(number.into())),
        Token::F64(number) => Some(Number::Float(number)),
        _ => None,
    }
}
