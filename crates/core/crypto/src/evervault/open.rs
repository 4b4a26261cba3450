//! Opens strings and whole files with an app's keys.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::file::{self, FileHeader, TRAILER_BYTES};
use super::metadata::Metadata;
use super::number::{Number, Parsed, parse};
use super::ring::{Ring, Scheme};
use super::text::{Aad, Datatype, Parts, SEALED_CHARS_MAX, Tag};
use crate::aead::{TAG_BYTES, room};
use crate::{AppKeys, CannotOpen, OpenKeyCache};

/// The policy for formats that the vendor has abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legacy {
    /// Legacy formats do not open. This is the recommended default: anyone who holds the app's
    /// public key can strip the role of some legacy values.
    Refused,
    /// Legacy formats open: tags `QlJV`, `TENZ`, `T1JL`, untagged strings, files of versions 4 and
    /// 5, and files whose content begins with metadata.
    Allowed,
}

/// The value of an opened string.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OpenedValue<'a> {
    /// Text, or the text of a number that no 64-bit value holds exactly.
    Text(&'a str),
    /// A number.
    Number(Number),
    /// A boolean.
    Boolean(bool),
}

/// An opened string. Anyone who holds the app's public key can have written it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Opened<'a> {
    /// The value.
    pub value: OpenedValue<'a>,
    /// The datatype that the value was sealed as.
    pub datatype: Datatype,
    /// The sealed text, which shows the value in the format of the client that sealed it.
    pub text: &'a str,
    /// The data role that the sealing client assigned, for a policy to check.
    pub role: Option<&'a str>,
    /// The number of the client that sealed the value.
    pub origin: Option<u64>,
    /// Unix seconds by the sealing client's clock. Advisory: one client writes this field in the
    /// wrong byte order.
    pub encrypted_at: Option<u64>,
}

/// An opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedFile<'a> {
    /// The content, including any metadata at its start.
    pub content: &'a [u8],
    /// The data role, from the metadata of versions 4 and 5 or from metadata at the start of the
    /// content of other versions.
    pub role: Option<&'a str>,
}

/// Opens the values of one request. Values of one ephemeral key share one Diffie-Hellman.
pub struct Opener {
    legacy: Legacy,
    /// If set, values with an unauthenticated datatype open as text.
    ignores_unauthenticated_types: bool,
    ring: Ring,
    /// Ciphertext, decrypted in place. Wiped on drop.
    body: Zeroizing<Vec<u8>>,
}

impl Opener {
    /// Creates an opener with an app's keys, which tries every active version.
    #[must_use]
    pub fn new(keys: &Arc<AppKeys>, legacy: Legacy) -> Self {
        let body = Zeroizing::new(Vec::new());
        Self {
            legacy,
            ignores_unauthenticated_types: false,
            ring: Ring::new(keys),
            body,
        }
    }

    /// Makes the opener use and extend the cache of keys that other requests opened. Many requests
    /// share an ephemeral key, because the published clients use each for 15 seconds.
    #[must_use]
    pub fn keeping(self, kept: Option<Arc<OpenKeyCache>>) -> Self {
        Self {
            ring: self.ring.keeping(kept),
            ..self
        }
    }

    /// Makes the opener abandon a value between two attempts once `stop` returns true. The first
    /// attempt of a value always runs.
    #[must_use]
    pub fn stopping(self, stop: impl Fn() -> bool + Send + 'static) -> Self {
        Self {
            ring: self.ring.stopping(stop),
            ..self
        }
    }

    /// Makes the opener return strings as text if their datatype is not authenticated. Otherwise a
    /// client could learn about a value by changing its datatype.
    #[must_use]
    pub fn ignoring_unauthenticated_types(self) -> Self {
        Self {
            ignores_unauthenticated_types: true,
            ..self
        }
    }

    /// Returns the number of Diffie-Hellmans so far, which dominate the cost. A value needs at most
    /// one per active version of its curve.
    #[must_use]
    #[inline]
    pub fn agreements(&self) -> usize {
        self.ring.agreements()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.ring.held()
    }

    /// Opens a string.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    #[inline]
    pub fn open(&mut self, text: &[u8]) -> Result<Opened<'_>, CannotOpen> {
        let parts = Parts::of(text).ok_or(CannotOpen)?;
        let Parts { tag, datatype, .. } = parts;
        // Limits the length, because each attempt processes the whole text.
        if parts.sealed.len() > SEALED_CHARS_MAX
            || parts.is_debug
            || (tag.is_legacy() && self.legacy == Legacy::Refused)
        {
            return Err(CannotOpen);
        }
        let nonce = parts.nonce()?;
        let scheme = Scheme {
            kdf: tag.kdf(),
            is_mixed: tag.mixes_derivations(),
        };
        let place = self.ring.place_of_chars(tag.curve(), parts.ephemeral)?;
        room(&mut self.body, parts.sealed.len());
        let mut turn = 0;
        let length = loop {
            let candidate = self.ring.candidate(place, scheme, turn)?;
            let aad = Aad::new(tag, datatype, candidate.ephemeral, candidate.app);
            // Decoded again for each attempt, because a failed attempt destroys the ciphertext.
            let bytes = parts.decode_sealed(&mut self.body)?;
            if let Ok(plaintext) =
                candidate
                    .key
                    .open(nonce, aad.as_slice(), &mut self.body[..bytes])
            {
                break plaintext.len();
            }
            turn += 1;
        };
        self.ring.opened(place, scheme, turn);
        let is_ignored = self.ignores_unauthenticated_types && !tag.authenticates_datatype();
        let datatype = if is_ignored {
            Datatype::String
        } else {
            datatype
        };
        read(tag, datatype, &self.body[..length])
    }

    /// Opens a file that is completely in memory. [`FileOpener`](super::FileOpener) takes a file in
    /// pieces.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    pub fn open_file(&mut self, file: &[u8]) -> Result<OpenedFile<'_>, CannotOpen> {
        let (header, rest) = FileHeader::split(file).ok_or(CannotOpen)?;
        header.check(self.legacy)?;
        let (sealed, checksum) = rest.split_last_chunk().ok_or(CannotOpen)?;
        if crc32fast::hash(&file[..file.len() - checksum.len()]).to_le_bytes() != *checksum {
            return Err(CannotOpen);
        }
        let (metadata, content) = header.split_metadata(sealed).ok_or(CannotOpen)?;
        if rest.len() < TRAILER_BYTES || content.len() < TAG_BYTES {
            return Err(CannotOpen);
        }
        let scheme = header.version.scheme();
        let place = self.ring.place(header.version.curve(), header.ephemeral)?;
        room(&mut self.body, metadata.len() + content.len());
        let (for_metadata, for_content) = self.body.split_at_mut(metadata.len());
        let mut turn = 0;
        let length = loop {
            let candidate = self.ring.candidate(place, scheme, turn)?;
            let aad = header.version.aad(candidate.app);
            for_metadata.copy_from_slice(metadata);
            let metadata_opens =
                metadata.is_empty() || candidate.key.open(header.iv, aad, for_metadata).is_ok();
            if metadata_opens {
                let body = &mut for_content[..content.len()];
                body.copy_from_slice(content);
                if let Ok(plaintext) = candidate.key.open(header.iv, aad, body) {
                    break plaintext.len();
                }
            }
            turn += 1;
        };
        self.ring.opened(place, scheme, turn);
        let (opened, rest) = self.body.split_at(metadata.len());
        let content = &rest[..length];
        let role = match header.version.is_legacy() {
            true => file::role(opened)?,
            false => file::unmarked_role(content, self.legacy)?,
        };
        Ok(OpenedFile { content, role })
    }
}

/// Interprets an authenticated payload.
#[inline]
fn read(tag: Tag, datatype: Datatype, payload: &[u8]) -> Result<Opened<'_>, CannotOpen> {
    let (metadata, text) = match tag.has_metadata() {
        true => Metadata::split(payload).ok_or(CannotOpen)?,
        false => (Metadata::default(), payload),
    };
    // Security relevant: a `TENZ` string relabelled `Tk9D` to drop its role authenticates. Such a
    // string fails here, because its metadata is never UTF-8.
    let text = std::str::from_utf8(text).map_err(|_| CannotOpen)?;
    let value = match datatype {
        Datatype::String => OpenedValue::Text(text),
        Datatype::Number => match parse(text) {
            Parsed::Exact(number) => OpenedValue::Number(number),
            Parsed::Text => OpenedValue::Text(text),
            Parsed::Refused => return Err(CannotOpen),
        },
        // Python clients before 3.0 write the digits.
        Datatype::Boolean => match text {
            "true" | "1" => OpenedValue::Boolean(true),
            "false" | "0" => OpenedValue::Boolean(false),
            _ => return Err(CannotOpen),
        },
    };
    let Metadata {
        role,
        origin,
        encrypted_at,
    } = metadata;
    Ok(Opened {
        value,
        datatype,
        text,
        role,
        origin,
        encrypted_at,
    })
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("app", self.ring.app())
            .field("legacy", &self.legacy)
            .finish_non_exhaustive()
    }
}
