//! Records of the formats 01 and 02, which older engines wrote: the content in an envelope of one
//! of the app's suites.
//!
//! ```text
//! record:     01 | clear length 4 | clear | envelope, binary
//!          or 02 | subject key version 8 | clear length 4 | clear | envelope, binary
//! context:    "sealwire/object/1" | app 4 | collection 4 | id 16 | version 8 | created 8
//!             | subject flag 1 | [subject hash 16] | SHA-256( clear ) 32
//! ```
//! An envelope of a public-key suite can be sealed by everybody who knows the public key, which
//! rests in the clear. So a record 01 proves nothing about who sealed it. The content of a record
//! 02 is under the subject's key, with the context as additional data. Only engines have that key,
//! so the content is an engine's, whoever made the envelope around it.
//!
//! Collections read these records until an operator has migrated them. Nothing writes them.

use std::sync::Arc;

use crate::token::{SUBJECT_SEAL_BYTES, SubjectKey};
use sealwire_crypto::{
    AppId, AppKeys, CannotOpen, Datatype, EncapsulationPlace, Encoding, Envelope, KeyId, KeyScope,
    KeyVersion, Opener, Sealer,
};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{ObjectBinding, OpenedObject, SealError, read_content, write_optional};
use crate::objects::{VALUES_BYTES_MAX, Values};

/// First byte: the format of an object without a subject.
pub(super) const FORMAT: u8 = 1;
/// First byte: the format of an object with a subject.
pub(super) const FORMAT_OF_SUBJECT: u8 = 2;
const CONTEXT_LABEL: &[u8] = b"sealwire/object/1";

/// Returns the context of the envelope. `subject`: keyed hash of the data subject.
fn context(binding: &ObjectBinding, subject: Option<&[u8; 16]>, clear: &[u8]) -> Vec<u8> {
    let mut context = Vec::with_capacity(CONTEXT_LABEL.len() + 4 + 4 + 16 + 8 + 8 + 17 + 32);
    context.extend_from_slice(CONTEXT_LABEL);
    context.extend_from_slice(&binding.app.to_be_bytes());
    context.extend_from_slice(&binding.collection.to_be_bytes());
    context.extend_from_slice(&binding.id);
    context.extend_from_slice(&binding.version.to_be_bytes());
    context.extend_from_slice(&binding.created.to_be_bytes());
    write_optional(subject, &mut context);
    context.extend_from_slice(&Sha256::digest(clear));
    context
}

/// Seals as older engines did. For tests and benches: engines write [authenticated](super::seal)
/// records only.
///
/// # Errors
/// [`SealError::TooLong`], or [`SealError::Crypto`] as [`Sealer::new`].
#[doc(hidden)]
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
    let mut content = Zeroizing::new(Vec::with_capacity(
        17 + SUBJECT_SEAL_BYTES + values.encoded_bytes(),
    ));
    write_optional(creation.as_ref(), &mut content);
    values.encode(|number| !is_clear(number), &mut content);

    let context = context(binding, subject.map(SubjectKey::id), &clear);
    if let Some(subject) = subject {
        subject.seal(&context, &mut content, 0)?;
    }
    let mut sealer = Sealer::new(
        app,
        Arc::clone(recipient),
        KeyScope::Request,
        Encoding::Binary,
        &context,
    )?
    .placing(EncapsulationPlace::Inline);
    let mut out = Vec::with_capacity(1 + 8 + 4 + clear.len() + sealer.sealed_bytes(content.len()));
    match subject {
        None => out.push(FORMAT),
        Some(subject) => {
            out.push(FORMAT_OF_SUBJECT);
            out.extend_from_slice(&subject.version().to_be_bytes());
        }
    }
    out.extend_from_slice(
        &u32::try_from(clear.len())
            .map_err(|_| SealError::TooLong)?
            .to_be_bytes(),
    );
    out.extend_from_slice(&clear);
    sealer.seal(Datatype::Binary, &content, &mut out)?;
    Ok(out)
}

/// Opens the values of an object with the app's keys, and with the key of its data subject if it
/// names one. The caller decides whether to use an unauthenticated record.
///
/// # Errors
/// [`CannotOpen`], whatever the reason: another binding, another key, a disabled version, altered
/// bytes.
pub fn open(
    binding: &ObjectBinding,
    sealed: &[u8],
    subject: Option<&SubjectKey>,
    keys: Arc<AppKeys>,
) -> Result<OpenedObject, CannotOpen> {
    let Parts {
        subject_version,
        clear,
        envelope,
    } = Parts::of(sealed).ok_or(CannotOpen)?;
    if subject.map(SubjectKey::version) != subject_version {
        return Err(CannotOpen);
    }
    let context = context(binding, subject.map(SubjectKey::id), clear);
    // Only engines seal objects, so an object that was sealed with a published key does not open.
    let mut opener = Opener::new(keys, &context).inside_only(true);
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

/// Returns the key version that opens a record, without opening it. Returns `None` if the bytes are
/// not a record.
pub(super) fn key_of(sealed: &[u8]) -> Option<KeyId> {
    Envelope::from_binary(Parts::of(sealed)?.envelope).map(|envelope| envelope.key_id)
}

/// Returns the version of the subject key that an object is sealed under. Returns `None` for an
/// object without a subject, and for bytes that are not a sealed object.
pub(super) fn subject_version(sealed: &[u8]) -> Option<u64> {
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
        let (clear, envelope) =
            rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        Some(Self {
            subject_version,
            clear,
            envelope,
        })
    }
}

#[cfg(test)]
mod tests;
