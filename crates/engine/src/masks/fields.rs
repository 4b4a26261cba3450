//! One field of `mask`.
//!
//! A field that cannot be masked ends its call or, with `on_error` "report", is listed and redacted. It never stays as it
//! came: that would be the value.

use std::sync::Arc;

use sealwire_mask::{MaskingError, Masks, Value, redact};
use sealwire_payload::{Field, Outcome, Path, Transform};

use crate::cancel_token::CancelToken;
use crate::field_errors::{FieldErrors, FieldFault, Refusal};

/// Masks every field that a rule names, between the slices of a call.
#[derive(Debug)]
pub struct MaskFields {
    /// The rules with their keys.
    pub masks: Arc<Masks>,
    /// Tells when to stop.
    pub ticket: Arc<CancelToken>,
    /// Fields that could not be masked.
    pub faults: FieldErrors,
    /// Fields that were.
    pub masked: u64,
}

impl MaskFields {
    /// For one slice.
    pub fn in_slice(&mut self) -> MaskSlice<'_> {
        let Self { masks, ticket, faults, masked } = self;
        MaskSlice { masking: sealwire_mask::Masking::new(masks), ticket, faults, masked }
    }
}

/// Masks the fields of a slice.
#[derive(Debug)]
pub struct MaskSlice<'s> {
    masking: sealwire_mask::Masking<'s>,
    ticket: &'s CancelToken,
    faults: &'s mut FieldErrors,
    masked: &'s mut u64,
}

impl Transform for MaskSlice<'_> {
    type Error = FieldFault;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        if let Some(reason) = self.ticket.stop_reason() {
            return Err(FieldFault::Stopped(reason));
        }
        let before = out.len();
        match self.masking.mask(&field, out) {
            Ok(Outcome::Keep) => return Ok(Outcome::Keep),
            Ok(Outcome::Replaced) => (),
            Err(error) => {
                out.truncate(before);
                self.faults.decide(&field.path, refusal(error).into())?;
                redact(Value::of(field.token), out);
            }
        }
        *self.masked += 1;
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.faults.decide(path, fault)
    }
}

fn refusal(error: MaskingError) -> Refusal {
    Refusal::NotMasked(error)
}
