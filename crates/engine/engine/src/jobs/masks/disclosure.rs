//! Writes an opened value in the clear, or masks it for the principal's role.
//!
//! `decrypt` and `detokenize` write values to a response only through this module. If the role has
//! a mask, values to which the mask does not apply are redacted: containers, and values of another
//! type or form.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use sealwire_access::{MaskText, Permit, ValueVisibility};
use sealwire_crypto::Datatype;
use sealwire_mask::{Mask, Value, redact};
use sealwire_msgpack::{TokenReader, write};
use sealwire_payload::ExtraWork;
use sealwire_records::token::TokenKeys;

use super::{growth, mask_secret, parse_role_mask};
use crate::jobs::error::RequestFailure;

/// Maximum number of role masks that an app caches. Further masks are made per request.
const READY_MAX: usize = 64;

/// The form in which a request discloses values.
#[derive(Clone, Debug)]
pub struct Disclosure {
    mask: Option<Arc<Mask>>,
    masked: u64,
    work: ExtraWork,
}

impl Disclosure {
    /// Discloses values in the clear. Only calibration and benchmarks may create this without a
    /// permit.
    pub const fn clear() -> Self {
        Self {
            mask: None,
            masked: 0,
            work: ExtraWork {
                fields: 0,
                bytes: 0,
            },
        }
    }

    /// Appends an opened value, or its masked form, as one MessagePack value.
    /// `plaintext` is UTF-8 for a string and one MessagePack value for [`Datatype::Value`].
    #[inline]
    pub fn write(&mut self, datatype: Datatype, plaintext: &[u8], out: &mut Vec<u8>) {
        if self.mask.is_some() {
            return self.write_masked(datatype, plaintext, out);
        }
        match datatype {
            Datatype::String => {
                write::str_header(out, plaintext.len());
                out.extend_from_slice(plaintext);
            }
            Datatype::Binary => write::bin(out, plaintext),
            Datatype::Value => out.extend_from_slice(plaintext),
        }
    }

    fn write_masked(&mut self, datatype: Datatype, plaintext: &[u8], out: &mut Vec<u8>) {
        self.masked += 1;
        if let Some(mask) = &self.mask {
            let own = ExtraWork {
                fields: 1,
                bytes: 0,
            };
            self.work = self
                .work
                .plus(own)
                .plus(mask.function().work(plaintext.len()));
        }

        let value = match datatype {
            Datatype::String => std::str::from_utf8(plaintext).ok().map(Value::Str),
            Datatype::Binary => Some(Value::Bin(plaintext)),
            Datatype::Value => TokenReader::new(plaintext).token().ok().and_then(Value::of),
        };

        match (value, &self.mask) {
            (Some(value), Some(mask)) => mask.apply_or_redact(value, None, out),
            (value, _) => redact(value, out),
        }
    }

    /// Returns the number of values masked so far.
    pub fn masked(&self) -> u64 {
        self.masked
    }

    /// Returns the work of masking so far.
    pub fn work(&self) -> ExtraWork {
        self.work
    }

    /// Returns the role's mask.
    pub fn mask(&self) -> Option<&Arc<Mask>> {
        self.mask.as_ref()
    }

    /// Returns an upper bound of the bytes that masking adds to `fields` values of `bytes` bytes
    /// together.
    pub fn growth(&self, fields: usize, bytes: usize) -> usize {
        let Some(mask) = &self.mask else { return 0 };
        let text = mask.function().to_string();
        growth(std::iter::once(&*text), 0, fields, bytes)
    }
}

/// Masks of roles with one app's keys, of one generation.
#[derive(Default)]
pub struct RoleMasks(RwLock<HashMap<MaskText, Arc<Mask>>>);

impl RoleMasks {
    /// Returns the disclosure that the permit allows.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::RoleMask`] if this program does not know the role's mask.
    pub fn disclosure_for(
        &self,
        permit: &Permit<'_>,
        keys: &TokenKeys,
    ) -> Result<Disclosure, RequestFailure> {
        self.disclosure(permit.visibility(), keys)
    }

    /// Returns the disclosure for a visibility of values.
    ///
    /// # Errors
    ///
    /// As for [`RoleMasks::disclosure_for`].
    pub fn disclosure(
        &self,
        visibility: ValueVisibility<'_>,
        keys: &TokenKeys,
    ) -> Result<Disclosure, RequestFailure> {
        match visibility {
            ValueVisibility::Clear => Ok(Disclosure::clear()),
            ValueVisibility::Masked(text) => Ok(Disclosure {
                mask: Some(self.mask(text, keys)?),
                ..Disclosure::clear()
            }),
        }
    }

    fn mask(&self, text: &MaskText, keys: &TokenKeys) -> Result<Arc<Mask>, RequestFailure> {
        if let Some(mask) = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(text)
        {
            return Ok(Arc::clone(mask));
        }

        let function = parse_role_mask(text.as_str()).map_err(RequestFailure::RoleMask)?;
        let mask = Mask::new(&function, &mask_secret(keys)).map(Arc::new);
        let mask = mask
            .ok_or_else(|| RequestFailure::RoleMask("it names a list that is not there".into()))?;
        let mut ready = self.0.write().unwrap_or_else(PoisonError::into_inner);

        if ready.len() < READY_MAX {
            ready.insert(text.clone(), Arc::clone(&mask));
        }
        Ok(mask)
    }
}

impl std::fmt::Debug for RoleMasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RoleMasks").finish_non_exhaustive()
    }
}
