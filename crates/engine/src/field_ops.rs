//! Operations on one field: seal, open, or both.
//!
//! Looks at the ticket before every field, so a stopped call ends within one.

use std::sync::Arc;

use sealwire_crypto::Datatype;
use sealwire_msgpack::Token;
use sealwire_payload::{Field, Outcome, Path, Transform};

use crate::cancel_token::CancelToken;
use crate::field_errors::{FieldErrors, FieldFault};
use crate::field_opener::{FieldOpener, Found};
use crate::field_sealer::FieldSealer;
use crate::masks::disclosure::Disclosure;

/// Seals every field.
#[derive(Debug)]
pub struct SealFields {
    /// Writes under the call's ephemeral key.
    pub writer: FieldSealer,
    /// Tells when to stop.
    pub ticket: Arc<CancelToken>,
    /// Fields that the format cannot hold.
    pub faults: FieldErrors,
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
        self.writer.write(datatype, plaintext, out)?;
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.faults.decide(path, fault)
    }
}

/// How fields that claim to be envelopes are opened.
#[derive(Debug)]
pub struct OpenFields {
    /// The app's keys and the key schedules met so far.
    pub reader: Box<FieldOpener>,
    /// Tells when to stop.
    pub ticket: Arc<CancelToken>,
    /// Fields that did not open.
    pub faults: FieldErrors,
}

impl OpenFields {
    /// Opens a field. Returns `None` if it does not look like an envelope.
    #[inline]
    fn open(&mut self, token: Token<'_>) -> Result<Option<Found<'_>>, FieldFault> {
        if let Some(reason) = self.ticket.stop_reason() {
            return Err(FieldFault::Stopped(reason));
        }
        // What is given up because the call was stopped did not fail to open.
        let ticket = &self.ticket;
        self.reader.open(token).map_err(|refusal| match ticket.stop_reason() {
            Some(reason) => FieldFault::Stopped(reason),
            None => refusal.into(),
        })
    }
}

/// Opens every field that claims to be an envelope and gives what its caller may see, and keeps the others.
#[derive(Debug)]
pub struct ShowFields {
    /// Opens values.
    pub open: OpenFields,
    /// Seals values.
    pub shown: Disclosure,
}

impl Transform for ShowFields {
    type Error = FieldFault;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        let Some(found) = self.open.open(field.token)? else { return Ok(Outcome::Keep) };
        found.without_role()?;
        self.shown.write(found.datatype, found.plaintext, out);
        Ok(Outcome::Replaced)
    }

    #[inline]
    fn pauses(&mut self) -> bool {
        self.open.reader.pauses()
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.open.faults.decide(path, fault)
    }
}

/// Opens every field that claims to be an envelope and seals it again, and keeps the others. The plaintext goes from
/// the opener's buffer, which is wiped, into the sealer's, which is encrypted in place.
#[derive(Debug)]
pub struct RewrapFields {
    /// Opens values.
    pub open: OpenFields,
    /// Seals values under the request's new ephemeral key.
    pub writer: FieldSealer,
}

impl Transform for RewrapFields {
    type Error = FieldFault;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        let Some(found) = self.open.open(field.token)? else { return Ok(Outcome::Keep) };
        self.writer.rewrite(&found, out)?;
        Ok(Outcome::Replaced)
    }

    #[inline]
    fn pauses(&mut self) -> bool {
        self.open.reader.pauses()
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.open.faults.decide(path, fault)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sealwire_crypto::{AppId, Curve, Encoding, KeyPair, KeyScope, KeyState, KeyVersion, Sealer};
    use sealwire_payload::{Budget, Containers, Limits, Selection, Walk, WalkError};
    use sealwire_wire::OnError;

    use super::*;
    use crate::cancel_token::StopReason;

    /// Stops its own request before the field that comes after so many.
    struct StopAfter {
        seal: SealFields,
        fields: usize,
    }

    impl Transform for StopAfter {
        type Error = FieldFault;

        fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
            if self.fields == 0 {
                self.seal.ticket.stop(StopReason::Cancel);
            }
            self.fields = self.fields.saturating_sub(1);
            self.seal.field(field, out)
        }

        fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
            self.seal.failed(path, fault)
        }
    }

    #[test]
    fn a_request_that_is_stopped_within_a_slice_ends_at_the_next_field() {
        for on_error in [OnError::Fail, OnError::Report] {
            let app = AppId::new("shop").unwrap();
            let scope = KeyScope::Request;
            let version = KeyVersion::new(1, KeyState::Active, KeyPair::generate(Curve::P256).unwrap());
            let sealer = Sealer::new(&app, Arc::new(version), scope, Encoding::Text, b"").unwrap();
            let (writer, ticket) = (FieldSealer::Native(sealer.into()), Arc::<CancelToken>::default());
            let seal = SealFields { writer, ticket, faults: FieldErrors::new(on_error, 10, 10) };
            let mut walk = Walk::new(Arc::new(Selection::everything()), Containers::Whole, Limits::default());
            let document = b"\x9a\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a";
            let mut out = Vec::new();
            let stopped = walk.advance(document, &mut out, &mut StopAfter { seal, fields: 3 }, Budget::UNLIMITED);
            assert!(
                matches!(stopped, Err(WalkError::Transform(FieldFault::Stopped(StopReason::Cancel)))),
                "{stopped:?}"
            );
            assert_eq!(String::from_utf8_lossy(&out).matches("sw1:").count(), 3);
        }
    }
}
