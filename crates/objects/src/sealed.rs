//! The values of an object at rest: one envelope, and readable values beside it (`proto/object.md`).
//!
//! ```text
//! sealed:     01 | clear length 4 | clear | envelope, binary
//! clear:      values that are not encrypted
//! plaintext:  creation flag 1 | [creation hash 16] | values
//! values:     ( number 4 | length 4 | value )*
//! context:    "sealwire/object/1" | app 4 | collection 4 | id 16 | version 8 | created 8
//!             | subject flag 1 | [subject hash 16] | SHA-256( clear ) 32
//! ```
//! Integers are big-endian, flags are 00 or 01, and numbers ascend within both parts and never stand in both. So an object
//! has one clear part and one plaintext.
//!
//! One envelope for all values costs one key agreement. Nobody can move a value to another property or object, or put back
//! the value of an older version. A store can still put back a whole older object with its version.

use std::fmt;
use std::sync::Arc;

use sealwire_crypto::{
    AppId, AppKeys, CannotOpen, Datatype, EncapsulationPlace, Encoding, Envelope, Error, KeyId, KeyScope, KeyVersion,
    OpenedSchedules, Opener, Sealer, Suite,
};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::{VALUES_BYTES_MAX, Values};

/// First byte: the format.
const FORMAT: u8 = 1;
/// Bytes before the clear part.
const HEADER_BYTES: usize = 5;
const CONTEXT_LABEL: &[u8] = b"sealwire/object/1";
const ABSENT: u8 = 0;
const PRESENT: u8 = 1;

/// The object and version that sealed values belong to. They open under the same binding only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectBinding {
    /// The app's number.
    pub app: u32,
    /// The collection's number.
    pub collection: u32,
    /// The object's id.
    pub id: [u8; 16],
    /// The object's version, which every update increments.
    pub version: u64,
    /// The time of creation, in the unit of the caller.
    pub created: u64,
    /// The keyed hash of the data subject, if the object has one.
    pub subject: Option<[u8; 16]>,
}

impl ObjectBinding {
    /// Returns the context of the envelope.
    fn context(&self, clear: &[u8]) -> Vec<u8> {
        let mut context = Vec::with_capacity(CONTEXT_LABEL.len() + 4 + 4 + 16 + 8 + 8 + 17 + 32);
        context.extend_from_slice(CONTEXT_LABEL);
        context.extend_from_slice(&self.app.to_be_bytes());
        context.extend_from_slice(&self.collection.to_be_bytes());
        context.extend_from_slice(&self.id);
        context.extend_from_slice(&self.version.to_be_bytes());
        context.extend_from_slice(&self.created.to_be_bytes());
        write_optional(self.subject.as_ref(), &mut context);
        context.extend_from_slice(&Sha256::digest(clear));
        context
    }
}

/// An object cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The values are longer than [`VALUES_BYTES_MAX`] when encoded. The client must make them shorter.
    #[error("an object has at most 256 KiB of values")]
    TooLong,
    /// The key or the crypto library failed.
    #[error(transparent)]
    Crypto(#[from] Error),
}

/// The content of an opened object. `Debug` shows the count of values only.
#[derive(Clone, PartialEq, Eq)]
pub struct OpenedObject {
    /// All values, sealed and clear ones.
    pub values: Values,
    /// The hash that the object was created with, if a request with an idempotency key created it.
    pub creation: Option<[u8; 16]>,
}

impl fmt::Debug for OpenedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedObject").field("values", &self.values).finish_non_exhaustive()
    }
}

/// Seals the values of an object for its binding. Values of numbers for which `is_clear` returns true stay readable, but
/// cannot be changed without a trace.
///
/// # Errors
/// [`SealError::TooLong`], or [`SealError::Crypto`] as [`Sealer::new`].
pub fn seal(
    binding: &ObjectBinding,
    values: &Values,
    is_clear: impl Fn(u32) -> bool,
    creation: Option<[u8; 16]>,
    app: &AppId,
    recipient: &Arc<KeyVersion>,
) -> Result<Vec<u8>, SealError> {
    if values.encoded_bytes() > VALUES_BYTES_MAX {
        return Err(SealError::TooLong);
    }
    let mut clear = Vec::new();
    values.encode(&is_clear, &mut clear);
    let mut plaintext = Zeroizing::new(Vec::with_capacity(17 + values.encoded_bytes()));
    write_optional(creation.as_ref(), &mut plaintext);
    values.encode(|number| !is_clear(number), &mut plaintext);

    let context = binding.context(&clear);
    let mut sealer = Sealer::new(app, Arc::clone(recipient), KeyScope::Request, Encoding::Binary, &context)?
        .placing(EncapsulationPlace::Inline);
    let mut out = Vec::with_capacity(HEADER_BYTES + clear.len() + sealer.sealed_bytes(plaintext.len()));
    out.push(FORMAT);
    out.extend_from_slice(&u32::try_from(clear.len()).map_err(|_| SealError::TooLong)?.to_be_bytes());
    out.extend_from_slice(&clear);
    sealer.seal(Datatype::Binary, &plaintext, &mut out)?;
    Ok(out)
}

/// Opens the values of an object with the app's keys. `kept`: key schedules that other requests opened.
///
/// # Errors
/// [`CannotOpen`], whatever the reason: another binding, another key, a disabled version, altered bytes.
pub fn open(
    binding: &ObjectBinding,
    sealed: &[u8],
    keys: Arc<AppKeys>,
    kept: Option<Arc<OpenedSchedules>>,
) -> Result<OpenedObject, CannotOpen> {
    let (clear, envelope) = split(sealed).ok_or(CannotOpen)?;
    // Nobody outside has a reason to seal an object, so what a published key sealed does not open.
    let mut opener = Opener::new(keys, &binding.context(clear)).inside_only(true).keeping(kept);
    let opened = opener.open_binary(envelope)?;
    if opened.datatype != Datatype::Binary {
        return Err(CannotOpen);
    }
    read_content(clear, opened.plaintext).ok_or(CannotOpen)
}

/// Returns the key version that opens an object, without opening it. Returns `None` if the bytes are no sealed object.
#[must_use]
pub fn key_of(sealed: &[u8]) -> Option<(Suite, KeyId)> {
    let (_, envelope) = split(sealed)?;
    Envelope::from_binary(envelope).map(|envelope| (envelope.suite, envelope.key_id))
}

/// Splits sealed bytes into the clear part and the envelope.
fn split(sealed: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[format, ref length @ ..], rest) = sealed.split_first_chunk::<HEADER_BYTES>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    rest.split_at_checked(length).filter(|_| format == FORMAT)
}

/// Reads the clear part and the opened plaintext of an object. Returns `None` unless both are canonical.
///
/// [`open`] uses it on what an authentic envelope held. Public for fuzzing.
#[must_use]
#[doc(hidden)]
pub fn read_content(clear: &[u8], plaintext: &[u8]) -> Option<OpenedObject> {
    if clear.len() + plaintext.len() > 17 + VALUES_BYTES_MAX {
        return None;
    }
    let (creation, sealed) = match plaintext.split_first()? {
        (&ABSENT, rest) => (None, rest),
        (&PRESENT, rest) => rest.split_first_chunk().map(|(hash, rest)| (Some(*hash), rest))?,
        _ => return None,
    };
    let mut values = Values::new();
    values.decode(sealed)?;
    values.decode(clear)?;
    Some(OpenedObject { values, creation })
}

/// Appends a flag, and the hash if it is present.
fn write_optional(hash: Option<&[u8; 16]>, out: &mut Vec<u8>) {
    match hash {
        None => out.push(ABSENT),
        Some(hash) => {
            out.push(PRESENT);
            out.extend_from_slice(hash);
        }
    }
}

#[cfg(test)]
mod tests;
