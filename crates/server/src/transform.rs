//! What happens to one field: sealed into an envelope, opened out of one, or both.
//!
//! Sits between the walk (which finds fields) and the crypto (which knows no MessagePack). Looks at the ticket
//! before every field, so a stopped call ends within one.

use std::sync::Arc;

use sealwire_crypto::{Datatype, Encoding, Opened, Opener, Sealer, looks_like_binary, looks_like_text};
use sealwire_msgpack::{Reader, Token, write};
use sealwire_payload::{Budget, Containers, Field, Limits, Outcome, Path, Selection, Transform, Walk};
use sealwire_wire::{ErrorCode, FieldError, OnError};

use crate::error::CallFailure;
use crate::ticket::{StopReason, Ticket};

/// Why one field was not replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldFault {
    /// It claims to be an envelope and does not open.
    #[error("cannot open")]
    CannotOpen,
    /// The same, as the end of the call; the walk has told where.
    #[error("cannot open")]
    CannotOpenAt(String),
    /// The crypto library failed.
    #[error("the crypto library failed")]
    Library,
    /// The call was stopped.
    #[error("stopped")]
    Stopped(StopReason),
}

impl From<FieldFault> for CallFailure {
    fn from(fault: FieldFault) -> Self {
        match fault {
            FieldFault::CannotOpen => Self::CannotOpen { path: String::new() },
            FieldFault::CannotOpenAt(path) => Self::CannotOpen { path },
            FieldFault::Library => Self::Internal("the crypto library failed"),
            FieldFault::Stopped(reason) => Self::Stopped(reason),
        }
    }
}

/// Field errors of one call, under `on_error`.
#[derive(Debug)]
pub struct Faults {
    on_error: OnError,
    listed_max: usize,
    /// Bytes that may still be listed.
    bytes_left: usize,
    /// The first ones.
    pub listed: Vec<FieldError>,
    /// How many more there were.
    pub omitted: u64,
}

impl Faults {
    /// Lists at most `listed_max`, and no more bytes than the reply has set aside for them: see [`Faults::bytes`].
    pub fn new(on_error: OnError, listed_max: usize, fields: u64) -> Self {
        Self { on_error, listed_max, bytes_left: Self::bytes(listed_max, fields), listed: Vec::new(), omitted: 0 }
    }

    /// Bytes of a reply that errors may take. A path repeats the keys above its field: listing every long one could
    /// make a reply a hundred times as large as its request.
    pub fn bytes(listed_max: usize, fields: u64) -> usize {
        usize::try_from(fields).unwrap_or(usize::MAX).min(listed_max).saturating_mul(ERROR_BYTES)
    }

    fn report(&mut self, path: &Path<'_>) {
        if self.listed.len() < self.listed_max {
            let path = bounded(path);
            if let Some(left) = self.bytes_left.checked_sub(ERROR_FRAME_BYTES + path.len()) {
                self.bytes_left = left;
                self.listed.push(FieldError { path, code: ErrorCode::CannotOpen });
                return;
            }
            // The first ones are listed, not the short ones; and no more paths are written to be thrown away.
            self.listed_max = self.listed.len();
        }
        self.omitted += 1;
    }

    fn decide(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        match (fault, self.on_error) {
            (FieldFault::CannotOpen, OnError::Report) => {
                self.report(path);
                Ok(())
            }
            (FieldFault::CannotOpen, OnError::Fail) => Err(FieldFault::CannotOpenAt(bounded(path))),
            (fault, _) => Err(fault),
        }
    }
}

/// Bytes set aside for each error in a reply: its two keys, its code and a path of usual length.
const ERROR_BYTES: usize = 128;
/// Of those, what is not the path.
const ERROR_FRAME_BYTES: usize = 32;

/// A path as text, cut where the wire cuts it, so that long keys over many bad fields stay small here too.
fn bounded(path: &Path<'_>) -> String {
    path.prefix(sealwire_wire::FIELD_PATH_BYTES_MAX)
}

/// Seals every field.
#[derive(Debug)]
pub struct SealFields {
    /// The call's ephemeral key.
    pub sealer: Sealer,
    /// Tells when to stop.
    pub ticket: Arc<Ticket>,
}

impl Transform for SealFields {
    type Error = FieldFault;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        if let Some(reason) = self.ticket.stop_reason() {
            return Err(FieldFault::Stopped(reason));
        }
        let (datatype, plaintext) = match field.token {
            Token::Str(text) => (Datatype::String, text),
            Token::Bin(bytes) => (Datatype::Binary, bytes),
            _ => (Datatype::Value, field.raw),
        };
        write_sealed(&mut self.sealer, datatype, plaintext, out)
    }

    fn failed(&mut self, _: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        Err(fault)
    }
}

/// Appends one field's envelope as a MessagePack value.
#[inline]
fn write_sealed(
    sealer: &mut Sealer,
    datatype: Datatype,
    plaintext: &[u8],
    out: &mut Vec<u8>,
) -> Result<Outcome, FieldFault> {
    let bytes = sealer.sealed_bytes(plaintext.len());
    match sealer.encoding() {
        Encoding::Text => write::str_header(out, bytes),
        Encoding::Binary => write::bin_header(out, bytes),
    }
    sealer.seal(datatype, plaintext, out).map_err(|_| FieldFault::Library)?;
    Ok(Outcome::Replaced)
}

/// Opens every field that claims to be an envelope, and keeps the others.
#[derive(Debug)]
pub struct OpenFields {
    /// The app's keys and the key schedules met so far.
    pub opener: Opener,
    /// Tells when to stop.
    pub ticket: Arc<Ticket>,
    /// Fields that did not open.
    pub faults: Faults,
    /// Bounds a sealed container.
    pub depth_max: usize,
}

impl OpenFields {
    /// What is in a field; `None` if it does not claim to be an envelope.
    #[inline]
    fn open(&mut self, token: Token<'_>) -> Result<Option<Opened<'_>>, FieldFault> {
        if let Some(reason) = self.ticket.stop_reason() {
            return Err(FieldFault::Stopped(reason));
        }
        let opened = match token {
            Token::Str(text) if looks_like_text(text) => self.opener.open_text(text),
            Token::Bin(bytes) if looks_like_binary(bytes) => self.opener.open_binary(bytes),
            _ => return Ok(None),
        };
        let opened = opened.map_err(|_| FieldFault::CannotOpen)?;
        // Whoever has the public key can have sealed anything: it must be one sound value to go into a reply.
        if opened.datatype == Datatype::Value && !is_one_value(opened.plaintext, self.depth_max) {
            return Err(FieldFault::CannotOpen);
        }
        Ok(Some(opened))
    }
}

impl Transform for OpenFields {
    type Error = FieldFault;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        let Some(opened) = self.open(field.token)? else { return Ok(Outcome::Keep) };
        match opened.datatype {
            Datatype::String => {
                write::str_header(out, opened.plaintext.len());
                out.extend_from_slice(opened.plaintext);
            }
            Datatype::Binary => write::bin(out, opened.plaintext),
            Datatype::Value => out.extend_from_slice(opened.plaintext),
        }
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.faults.decide(path, fault)
    }
}

/// Opens every field that claims to be an envelope and seals it again, and keeps the others. The plaintext goes from
/// the opener's buffer, which is wiped, into the sealer's, which is encrypted in place.
#[derive(Debug)]
pub struct RewrapFields {
    /// What reads.
    pub open: OpenFields,
    /// What writes: the call's new ephemeral key.
    pub sealer: Sealer,
}

impl Transform for RewrapFields {
    type Error = FieldFault;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        match self.open.open(field.token)? {
            Some(opened) => write_sealed(&mut self.sealer, opened.datatype, opened.plaintext, out),
            None => Ok(Outcome::Keep),
        }
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.open.faults.decide(path, fault)
    }
}

/// Exactly one MessagePack value of a kind that datatype 2 holds: no string, no binary, no nil.
fn is_one_value(bytes: &[u8], depth_max: usize) -> bool {
    let mut reader = Reader::new(bytes);
    match reader.token() {
        Ok(Token::Str(_) | Token::Bin(_) | Token::Nil) | Err(_) => false,
        Ok(Token::Array(_) | Token::Map(_)) => is_one_document(bytes, depth_max),
        Ok(_) => reader.is_at_end(),
    }
}

fn is_one_document(bytes: &[u8], depth_max: usize) -> bool {
    let nothing = Arc::new(Selection::parse([]).unwrap_or(Selection::everything()));
    let limits = Limits { depth_max, out_bytes_max: bytes.len() };
    let walked = Walk::new(nothing, Containers::Descend, limits).advance(
        bytes,
        &mut Vec::with_capacity(bytes.len()),
        &mut KeepAll,
        Budget::UNLIMITED,
    );
    walked == Ok(sealwire_payload::Progress::Done { consumed: bytes.len() })
}

/// For a walk that only checks.
struct KeepAll;

impl Transform for KeepAll {
    type Error = std::convert::Infallible;

    fn field(&mut self, _: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, Self::Error> {
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, never: Self::Error) -> Result<(), Self::Error> {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_value_is_one_sound_value_of_its_kind() {
        for (bytes, sound) in [
            (&[0xc3][..], true),
            (&[0x2a], true),
            (&[0x92, 1, 0xa1, b'x'], true),
            (&[0x81, 0xa1, b'k', 0xc0], true),
            (&[0x92, 1], false),
            (&[0x91, 1, 2], false),
            (&[0x91, 0xa1, 0xff], false),
            (&[0x91, 0x91, 0x91, 0x91, 0x91, 1], false),
            (&[0xc3, 0xc3], false),
            (&[0xa1, b'x'], false),
            (&[0xc4, 1, 0], false),
            (&[0xc0], false),
            (&[0xc1], false),
            (&[], false),
        ] {
            assert_eq!(is_one_value(bytes, 4), sound, "{bytes:02x?}");
        }
    }
}
