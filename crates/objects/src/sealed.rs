//! The values of an object at rest: one envelope, and readable values beside it (`proto/object.md`).
//!
//! ```text
//! sealed:     01 | clear length 4 | clear | envelope, binary
//!          or 02 | subject key version 8 | clear length 4 | clear | envelope, binary
//! clear:      values that are not encrypted
//! plaintext:  content, or with a subject: the content sealed under the subject's key
//! content:    creation flag 1 | [creation hash 16] | values
//! values:     ( number 4 | length 4 | value )*
//! context:    "sealwire/object/1" | app 4 | collection 4 | id 16 | version 8 | created 8
//!             | subject flag 1 | [subject hash 16] | SHA-256( clear ) 32
//! ```
//! Integers are big-endian, flags are 00 or 01, and numbers ascend within both parts and never stand in both. So an object
//! has one clear part and one plaintext.
//!
//! One envelope for all values costs one key agreement. Nobody can move a value to another property or object, or put back
//! the value of an older version. A store can still put back a whole older object with its version.
//!
//! The content of an object that names a data subject is sealed twice: under the subject's key, then in the envelope. It is
//! lost with either key.

use std::fmt;
use std::sync::Arc;

use sealwire_crypto::{
    AppId, AppKeys, CannotOpen, Datatype, EncapsulationPlace, Encoding, Envelope, Error, KeyId, KeyScope, KeyVersion,
    OpenedSchedules, Opener, Sealer, Suite,
};
use sealwire_token::{SUBJECT_SEAL_BYTES, SubjectKey};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::{VALUES_BYTES_MAX, Values};

/// First byte: the format of an object without a subject.
const FORMAT: u8 = 1;
/// First byte: the format of an object with a subject.
const FORMAT_OF_SUBJECT: u8 = 2;
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
}

impl ObjectBinding {
    /// Returns the context of the envelope. `subject`: keyed hash of the data subject.
    fn context(&self, subject: Option<&[u8; 16]>, clear: &[u8]) -> Vec<u8> {
        let mut context = Vec::with_capacity(CONTEXT_LABEL.len() + 4 + 4 + 16 + 8 + 8 + 17 + 32);
        context.extend_from_slice(CONTEXT_LABEL);
        context.extend_from_slice(&self.app.to_be_bytes());
        context.extend_from_slice(&self.collection.to_be_bytes());
        context.extend_from_slice(&self.id);
        context.extend_from_slice(&self.version.to_be_bytes());
        context.extend_from_slice(&self.created.to_be_bytes());
        write_optional(subject, &mut context);
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

/// Seals the values of an object for its binding, and for a data subject if it names one. Values of numbers for which `is_clear` returns true stay readable, but
/// cannot be changed without a trace.
///
/// # Errors
/// [`SealError::TooLong`], or [`SealError::Crypto`] as [`Sealer::new`].
pub fn seal(
    binding: &ObjectBinding,
    values: &Values,
    is_clear: impl Fn(u32) -> bool,
    creation: Option<[u8; 16]>,
    subject: Option<&SubjectKey>,
    app: &AppId,
    recipient: &Arc<KeyVersion>,
) -> Result<Vec<u8>, SealError> {
    if values.encoded_bytes() > VALUES_BYTES_MAX {
        return Err(SealError::TooLong);
    }
    let mut clear = Vec::new();
    values.encode(&is_clear, &mut clear);
    let mut content = Zeroizing::new(Vec::with_capacity(17 + SUBJECT_SEAL_BYTES + values.encoded_bytes()));
    write_optional(creation.as_ref(), &mut content);
    values.encode(|number| !is_clear(number), &mut content);

    let context = binding.context(subject.map(SubjectKey::id), &clear);
    if let Some(subject) = subject {
        subject.seal(&context, &mut content, 0)?;
    }
    let mut sealer = Sealer::new(app, Arc::clone(recipient), KeyScope::Request, Encoding::Binary, &context)?
        .placing(EncapsulationPlace::Inline);
    let mut out = Vec::with_capacity(1 + 8 + 4 + clear.len() + sealer.sealed_bytes(content.len()));
    match subject {
        None => out.push(FORMAT),
        Some(subject) => {
            out.push(FORMAT_OF_SUBJECT);
            out.extend_from_slice(&subject.version().to_be_bytes());
        }
    }
    out.extend_from_slice(&u32::try_from(clear.len()).map_err(|_| SealError::TooLong)?.to_be_bytes());
    out.extend_from_slice(&clear);
    sealer.seal(Datatype::Binary, &content, &mut out)?;
    Ok(out)
}

/// Opens the values of an object with the app's keys, and with the key of its data subject if it names one. `kept`: key
/// schedules that other requests opened.
///
/// # Errors
/// [`CannotOpen`], whatever the reason: another binding, another key, a disabled version, altered bytes.
pub fn open(
    binding: &ObjectBinding,
    sealed: &[u8],
    subject: Option<&SubjectKey>,
    keys: Arc<AppKeys>,
    kept: Option<Arc<OpenedSchedules>>,
) -> Result<OpenedObject, CannotOpen> {
    let Parts { subject_version, clear, envelope } = Parts::of(sealed).ok_or(CannotOpen)?;
    if subject.map(SubjectKey::version) != subject_version {
        return Err(CannotOpen);
    }
    let context = binding.context(subject.map(SubjectKey::id), clear);
    // Nobody outside has a reason to seal an object, so what a published key sealed does not open.
    let mut opener = Opener::new(keys, &context).inside_only(true).keeping(kept);
    let opened = opener.open_binary(envelope)?;
    if opened.datatype != Datatype::Binary {
        return Err(CannotOpen);
    }
    match subject {
        None => read_content(clear, opened.plaintext).ok_or(CannotOpen),
        Some(subject) => {
            let mut content = Zeroizing::new(opened.plaintext.to_vec());
            read_content(clear, subject.open_content(&context, &mut content)?).ok_or(CannotOpen)
        }
    }
}

/// Returns the key version that opens an object, without opening it. Returns `None` if the bytes are no sealed object.
#[must_use]
pub fn key_of(sealed: &[u8]) -> Option<(Suite, KeyId)> {
    Envelope::from_binary(Parts::of(sealed)?.envelope).map(|envelope| (envelope.suite, envelope.key_id))
}

/// Returns the version of the subject key that an object is sealed under. Returns `None` for an object without a subject, and
/// for bytes that are no sealed object.
#[must_use]
pub fn subject_version(sealed: &[u8]) -> Option<u64> {
    Parts::of(sealed)?.subject_version
}

/// The parts of a sealed object.
struct Parts<'a> {
    subject_version: Option<u64>,
    clear: &'a [u8],
    envelope: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(sealed: &'a [u8]) -> Option<Self> {
        let (subject_version, rest) = match sealed.split_first()? {
            (&FORMAT, rest) => (None, rest),
            (&FORMAT_OF_SUBJECT, rest) => {
                let (version, rest) = rest.split_first_chunk()?;
                (Some(u64::from_be_bytes(*version)), rest)
            }
            _ => return None,
        };
        let (length, rest) = rest.split_first_chunk()?;
        let (clear, envelope) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        Some(Self { subject_version, clear, envelope })
    }
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
