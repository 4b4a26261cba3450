//! The values of an object at rest: one sealed record, and readable values beside it
//! (`proto/object.md`).
//!
//! ```text
//! record:     03 | token key number 4 |                         nonce 12 | clear length 4 | clear | ciphertext | tag 16
//!          or 04 | token key number 4 | subject key version 8 | nonce 12 | clear length 4 | clear | ciphertext | tag 16
//! clear:      values that are not encrypted
//! plaintext:  content, or with a subject: the content sealed under the subject's key
//! content:    creation flag 1 | [creation hash 16] | values
//! values:     ( number 4 | length 4 | value )*
//! aad:        "sealwire/object/2" | format 1 | app 4 | collection 4 | id 16 | version 8 | created 8
//!             | subject flag 1 | [subject hash 16 | subject key version 8] | clear
//! ```
//! Integers are big-endian, flags are 00 or 01, and numbers ascend within both parts and never
//! stand in both. So an object has one clear part and one plaintext.
//!
//! Records are sealed with AES-256-GCM-SIV under a key that only engines have. Whoever can write
//! the store can therefore not make a record, move a value to another property or object, change or
//! remove the subject, or put back the values of an older version. A store can still put back a
//! whole older object with its version.
//!
//! The content of an object that names a data subject is sealed twice: under the subject's key,
//! then under the app's. Without either key, the content is lost.
//!
//! Records of the formats 01 and 02 ([`old`]) are older, and do not prove who sealed them.

pub mod old;

use std::fmt;

use crate::token::{SUBJECT_SEAL_BYTES, SubjectKey, TokenKeys};
use sealwire_crypto::aead::{NONCE_BYTES, TAG_BYTES};
use sealwire_crypto::{CannotOpen, Error};
use zeroize::Zeroizing;

use crate::objects::{VALUES_BYTES_MAX, Values};

/// First byte: the format of an object without a subject.
const FORMAT: u8 = 3;
/// First byte: the format of an object with a subject.
const FORMAT_OF_SUBJECT: u8 = 4;
const PLACE_LABEL: &[u8] = b"sealwire/object/2";
const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
/// Bytes before the clear part, with a subject: format, key number, subject version, nonce, length.
const HEADER_BYTES: usize = 1 + 4 + 8 + NONCE_BYTES + 4;

/// The format of a record, which determines who can have sealed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// 03 and 04: an engine, because only engines have the key.
    Authenticated,
    /// 02: the envelope does not prove who sealed it. The content in it is under the key of a data
    /// subject, which only engines have.
    OldOfSubject,
    /// 01: anyone who knew the app's public key, or who could name the envelope's context in a
    /// request of suite `xaes`.
    Old,
}

impl RecordFormat {
    /// Returns the format of a record by its first byte. Returns `None` for other bytes.
    #[must_use]
    pub fn of(sealed: &[u8]) -> Option<Self> {
        match *sealed.first()? {
            FORMAT | FORMAT_OF_SUBJECT => Some(Self::Authenticated),
            old::FORMAT_OF_SUBJECT => Some(Self::OldOfSubject),
            old::FORMAT => Some(Self::Old),
            _ => None,
        }
    }
}

/// The object and version that sealed values belong to. The values open under an equal binding
/// only.
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
    /// Returns the additional data of a record. `subject` is the keyed hash of the data subject,
    /// with the version of its key.
    fn place(&self, subject: Option<(&[u8; 16], u64)>, clear: &[u8]) -> Vec<u8> {
        let mut place = Vec::with_capacity(
            PLACE_LABEL.len() + 1 + 4 + 4 + 16 + 8 + 8 + 1 + 16 + 8 + clear.len(),
        );
        place.extend_from_slice(PLACE_LABEL);
        place.push(format_of(subject.is_some()));
        place.extend_from_slice(&self.app.to_be_bytes());
        place.extend_from_slice(&self.collection.to_be_bytes());
        place.extend_from_slice(&self.id);
        place.extend_from_slice(&self.version.to_be_bytes());
        place.extend_from_slice(&self.created.to_be_bytes());
        write_optional(subject.map(|(id, _)| id), &mut place);
        if let Some((_, version)) = subject {
            place.extend_from_slice(&version.to_be_bytes());
        }
        place.extend_from_slice(clear);
        place
    }
}

fn format_of(has_subject: bool) -> u8 {
    if has_subject {
        FORMAT_OF_SUBJECT
    } else {
        FORMAT
    }
}

/// An object cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The values are longer than [`VALUES_BYTES_MAX`] when encoded. The client must make them
    /// shorter.
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
        f.debug_struct("OpenedObject")
            .field("values", &self.values)
            .finish_non_exhaustive()
    }
}

/// Seals the values of an object for its binding, and for a data subject if it names one, under the
/// newest active version of the app's token key. Values of numbers for which `is_clear` returns
/// true stay readable, but cannot be changed without a trace.
///
/// # Errors
/// [`SealError::TooLong`]; [`SealError::Crypto`] with [`Error::NoTokenKey`] if the app has no
/// active token key, or [`Error::Library`].
pub fn seal(
    binding: &ObjectBinding,
    values: &Values,
    is_clear: impl Fn(u32) -> bool,
    creation: Option<[u8; 16]>,
    subject: Option<&SubjectKey>,
    keys: &TokenKeys,
) -> Result<Vec<u8>, SealError> {
    let mut nonce = [0; NONCE_BYTES];
    aws_lc_rs::rand::fill(&mut nonce).map_err(|_| Error::Library)?;
    seal_with(nonce, binding, values, is_clear, creation, subject, keys)
}

fn seal_with(
    nonce: [u8; NONCE_BYTES],
    binding: &ObjectBinding,
    values: &Values,
    is_clear: impl Fn(u32) -> bool,
    creation: Option<[u8; 16]>,
    subject: Option<&SubjectKey>,
    keys: &TokenKeys,
) -> Result<Vec<u8>, SealError> {
    if values.encoded_bytes() > VALUES_BYTES_MAX {
        return Err(SealError::TooLong);
    }
    let (number, key) = keys.object_sealing().ok_or(Error::NoTokenKey)?;
    let mut clear = Vec::new();
    values.encode(&is_clear, &mut clear);
    let place = binding.place(
        subject.map(|subject| (subject.id(), subject.version())),
        &clear,
    );

    // Allocates the full capacity at once: growing would leave an unwiped copy of the values.
    let content_bytes = 17 + values.encoded_bytes() + SUBJECT_SEAL_BYTES + TAG_BYTES;
    let mut out = Vec::with_capacity(HEADER_BYTES + clear.len() + content_bytes);
    out.push(format_of(subject.is_some()));
    out.extend_from_slice(&number.to_be_bytes());
    if let Some(subject) = subject {
        out.extend_from_slice(&subject.version().to_be_bytes());
    }
    out.extend_from_slice(&nonce);
    out.extend_from_slice(
        &u32::try_from(clear.len())
            .map_err(|_| SealError::TooLong)?
            .to_be_bytes(),
    );
    out.extend_from_slice(&clear);

    let from = out.len();
    write_optional(creation.as_ref(), &mut out);
    values.encode(|number| !is_clear(number), &mut out);
    if let Some(subject) = subject {
        subject.seal(&place, &mut out, from)?;
    }
    key.seal(nonce, &place, &mut out, from)?;
    Ok(out)
}

/// Opens the values of an object with the app's token keys, and with the key of its data subject if
/// it names one. Records of the older formats do not open.
///
/// # Errors
/// [`CannotOpen`], whatever the reason: another binding, another key, a disabled version, altered
/// bytes.
pub fn open(
    binding: &ObjectBinding,
    sealed: &[u8],
    subject: Option<&SubjectKey>,
    keys: &TokenKeys,
) -> Result<OpenedObject, CannotOpen> {
    let Parts {
        key_number,
        subject_version,
        nonce,
        clear,
        ciphertext,
    } = Parts::of(sealed).ok_or(CannotOpen)?;
    if subject.map(SubjectKey::version) != subject_version {
        return Err(CannotOpen);
    }
    let key = keys.object_opening(key_number).ok_or(CannotOpen)?;
    let place = binding.place(
        subject.map(|subject| (subject.id(), subject.version())),
        clear,
    );
    let mut content = Zeroizing::new(ciphertext.to_vec());
    let content = key.open(nonce, &place, &mut content)?;
    match subject {
        None => read_content(clear, content).ok_or(CannotOpen),
        Some(subject) => {
            read_content(clear, subject.open_content(&place, content)?).ok_or(CannotOpen)
        }
    }
}

/// Returns the id under which rows name a version of the token key. An id of 0 stands for no key.
#[must_use]
pub fn token_key_id(number: u32) -> [u8; 5] {
    let [a, b, c, d] = number.to_be_bytes();
    [0, a, b, c, d]
}

/// Returns the id under which the row of a record names the key version that opens it, without
/// opening the record: the id of an envelope's key, or [`token_key_id`]. Returns `None` if the
/// bytes are not a record.
#[must_use]
pub fn key_of(sealed: &[u8]) -> Option<[u8; 5]> {
    match Parts::of(sealed) {
        Some(parts) => Some(token_key_id(parts.key_number)),
        None => old::key_of(sealed).map(|id| *id.as_bytes()),
    }
}

/// Returns the version of the subject key that a record is sealed under. Returns `None` for an
/// object without a subject, and for bytes that are not a record.
#[must_use]
pub fn subject_version(sealed: &[u8]) -> Option<u64> {
    match Parts::of(sealed) {
        Some(parts) => parts.subject_version,
        None => old::subject_version(sealed),
    }
}

/// The parts of a record.
struct Parts<'a> {
    key_number: u32,
    subject_version: Option<u64>,
    nonce: [u8; NONCE_BYTES],
    clear: &'a [u8],
    ciphertext: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(sealed: &'a [u8]) -> Option<Self> {
        let (&format, rest) = sealed.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (subject_version, rest) = match format {
            FORMAT => (None, rest),
            FORMAT_OF_SUBJECT => {
                let (version, rest) = rest.split_first_chunk()?;
                (Some(u64::from_be_bytes(*version)), rest)
            }
            _ => return None,
        };
        let (nonce, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (clear, ciphertext) =
            rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        let key_number = u32::from_be_bytes(*number);
        (ciphertext.len() >= TAG_BYTES).then_some(Self {
            key_number,
            subject_version,
            nonce: *nonce,
            clear,
            ciphertext,
        })
    }
}

/// Reads the clear part and the opened plaintext of an object. Returns `None` unless both are
/// canonical.
///
/// [`open`] calls it with the opened content of a record. Public for fuzzing.
#[must_use]
#[doc(hidden)]
pub fn read_content(clear: &[u8], plaintext: &[u8]) -> Option<OpenedObject> {
    if clear.len() + plaintext.len() > 17 + VALUES_BYTES_MAX {
        return None;
    }
    let (creation, sealed) = match plaintext.split_first()? {
        (&ABSENT, rest) => (None, rest),
        (&PRESENT, rest) => rest
            .split_first_chunk()
            .map(|(hash, rest)| (Some(*hash), rest))?,
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
#[cfg(test)]
mod vectors;
