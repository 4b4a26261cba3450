//! Seals one field in the format that a request names. This module lies between the walk and the
//! cryptography, which does not know MessagePack.
//!
//! The input is a value in the types of the native envelope; the output is one MessagePack value,
//! or an error.

use sealwire_crypto::evervault::{self, FileError, Number, NumberText};
use sealwire_crypto::{Datatype, Encoding, Error, Sealer};
use sealwire_msgpack::{Token, TokenReader, write};

use crate::jobs::field_errors::{FieldFailure, FieldProblem};
use crate::jobs::field_opener::OpenedField;

/// Seals the fields of one request.
#[derive(Debug)]
pub enum FieldSealer {
    /// Into native envelopes.
    Native(Box<Sealer>),
    /// Into Evervault strings, and binary into Evervault files.
    Evervault(Box<evervault::Sealer>),
}

impl FieldSealer {
    /// Gives the next sealed field the data role of an opened field. An open role is dropped only
    /// if the format cannot store a role.
    fn carry_role(&mut self, opened: &OpenedField<'_>) -> Result<(), FieldProblem> {
        if let Self::Evervault(sealer) = self {
            // A file cannot store a role, and a role left from the field before would make the seal
            // fail.
            let is_file = opened.datatype == Datatype::Binary;
            let carried = sealer.carry_role(if is_file { None } else { opened.role });
            if !carried && sealer.tag().has_metadata() {
                return Err(FieldProblem::Role);
            }
            if carried && !is_file {
                return Ok(());
            }
        }
        opened.check_without_role()
    }

    /// Seals an opened field again, with its data role, and appends it as a MessagePack value.
    /// Within the Evervault format the datatype and the text do not change: another text for the
    /// same value would have another length, which reveals something about a value whose role is
    /// not open.
    ///
    /// # Errors
    ///
    /// As [`FieldSealer::write`]; and [`FieldProblem::Role`] if the format cannot store the role
    /// and the role must not be dropped.
    #[inline]
    pub fn rewrite(
        &mut self,
        opened: &OpenedField<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), FieldFailure> {
        self.carry_role(opened)?;
        match (self, opened.evervault_text) {
            (Self::Evervault(sealer), Some((datatype, text))) => {
                write_string(sealer, datatype, text, out)
            }
            (sealer, _) => sealer.write(opened.datatype, opened.plaintext, out),
        }
    }

    /// Appends a sealed field as a MessagePack value. `plaintext` is UTF-8 for a string and one
    /// MessagePack value for [`Datatype::Value`]. The ciphertext can be missing until
    /// [`FieldSealer::complete`]; until then the caller must not move or change bytes of `out`.
    ///
    /// # Errors
    ///
    /// The format cannot store the value. `out` can then end in part of a value.
    #[inline]
    pub fn write(
        &mut self,
        datatype: Datatype,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), FieldFailure> {
        match self {
            Self::Native(sealer) => {
                let bytes = sealer.sealed_bytes(plaintext.len());
                match sealer.encoding() {
                    Encoding::Text => write::str_header(out, bytes),
                    Encoding::Binary => write::bin_header(out, bytes),
                }
                sealer
                    .seal_later(datatype, plaintext, out)
                    .map_err(|_| FieldFailure::Library)
            }
            Self::Evervault(sealer) => write_evervault(sealer, datatype, plaintext, out),
        }
    }

    /// Binds the next fields to another context. The Evervault format binds none, so a request with
    /// contexts cannot name it.
    pub fn set_context(&mut self, context: &[u8]) {
        match self {
            Self::Native(sealer) => sealer.set_context(context),
            Self::Evervault(_) => (),
        }
    }

    /// Takes the texts of the encapsulations to which the written fields refer.
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
) -> Result<(), FieldFailure> {
    // Declared here because the text below borrows it.
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
                    FileError::Library => FieldFailure::Library,
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
) -> Result<(), FieldFailure> {
    write::str_header(out, sealer.sealed_bytes(datatype, text.len()));
    sealer
        .seal(datatype, text, out)
        .map_err(|error| match error {
            Error::TextTooLong => FieldProblem::TooLong.into(),
            _ => FieldFailure::Library,
        })
}

/// Returns the number of a token; `None` for a token of another type.
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
