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
use crate::{AppKeys, CannotOpen, OpenedSchedules};

/// Whether the formats that the vendor has given up are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legacy {
    /// They do not open. The default to choose: whoever holds the app's public key can strip the role of some.
    Refused,
    /// They open: tags `QlJV`, `TENZ`, `T1JL`, untagged strings, files of versions 4 and 5, and files whose content
    /// begins with metadata.
    Allowed,
}

/// What a string held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Text; also the text of a number that no 64-bit value holds exactly.
    Text(&'a str),
    /// A number.
    Number(Number),
    /// A boolean.
    Boolean(bool),
}

/// A string that opened. Anyone who holds the app's public key can have written it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Opened<'a> {
    /// The value.
    pub value: Value<'a>,
    /// The datatype it was sealed as.
    pub datatype: Datatype,
    /// The text that was sealed, which says the value in its writer's way.
    pub text: &'a str,
    /// The data role its writer gave it, for a policy to judge.
    pub role: Option<&'a str>,
    /// Which client wrote it, by number.
    pub origin: Option<u64>,
    /// Unix seconds by the writer's clock. Advisory: one client writes it in the wrong byte order.
    pub encrypted_at: Option<u64>,
}

/// A file that opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedFile<'a> {
    /// The bytes, metadata that they begin with included.
    pub content: &'a [u8],
    /// The data role: that of versions 4 and 5, and that of metadata which the content of other versions begins with.
    pub role: Option<&'a str>,
}

/// Opens the values of one request. Values of one ephemeral key share its Diffie-Hellman.
pub struct Opener {
    legacy: Legacy,
    /// Values whose datatype nothing authenticates are text.
    ignores_unauthenticated_types: bool,
    ring: Ring,
    /// Ciphertext, then plaintext in its place. Wiped on drop.
    body: Zeroizing<Vec<u8>>,
}

impl Opener {
    /// An opener with an app's keys. Every active version reads.
    #[must_use]
    pub fn new(keys: &Arc<AppKeys>, legacy: Legacy) -> Self {
        let body = Zeroizing::new(Vec::new());
        Self { legacy, ignores_unauthenticated_types: false, ring: Ring::new(keys), body }
    }

    /// The same, which also uses and feeds the keys that other requests opened. The published clients use one ephemeral
    /// key for 15 seconds, so many requests share it.
    #[must_use]
    pub fn keeping(self, kept: Option<Arc<OpenedSchedules>>) -> Self {
        Self { ring: self.ring.keeping(kept), ..self }
    }

    /// The same, which gives a value up between two attempts once `stop` says so. It is not asked before the first.
    #[must_use]
    pub fn stopping(self, stop: impl Fn() -> bool + Send + 'static) -> Self {
        Self { ring: self.ring.stopping(stop), ..self }
    }

    /// The same, which opens strings as text if nothing authenticates their datatype. For readers who must not learn by
    /// changing the datatype what a value could be.
    #[must_use]
    pub fn ignoring_unauthenticated_types(self) -> Self {
        Self { ignores_unauthenticated_types: true, ..self }
    }

    /// Diffie-Hellmans so far: what takes the time. One value may take as many as its curve has active versions.
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
        // Each attempt goes over the whole text.
        if parts.sealed.len() > SEALED_CHARS_MAX
            || parts.is_debug
            || (tag.is_legacy() && self.legacy == Legacy::Refused)
        {
            return Err(CannotOpen);
        }
        let nonce = parts.nonce()?;
        let scheme = Scheme { kdf: tag.kdf(), is_mixed: tag.mixes_derivations() };
        let place = self.ring.place_of_chars(tag.curve(), parts.ephemeral)?;
        room(&mut self.body, parts.sealed.len());
        let mut turn = 0;
        let length = loop {
            let candidate = self.ring.candidate(place, scheme, turn)?;
            let aad = Aad::new(tag, datatype, candidate.ephemeral, candidate.app);
            // Decoded anew for each attempt: a failed one leaves nothing of the ciphertext.
            let bytes = parts.decode_sealed(&mut self.body)?;
            if let Ok(plaintext) = candidate.key.open(nonce, aad.as_slice(), &mut self.body[..bytes]) {
                break plaintext.len();
            }
            turn += 1;
        };
        self.ring.opened(place, scheme, turn);
        let is_ignored = self.ignores_unauthenticated_types && !tag.authenticates_datatype();
        let datatype = if is_ignored { Datatype::String } else { datatype };
        read(tag, datatype, &self.body[..length])
    }

    /// Opens a file that is in memory whole. [`FileOpener`](super::FileOpener) takes one in pieces.
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
            let metadata_opens = metadata.is_empty() || candidate.key.open(header.iv, aad, for_metadata).is_ok();
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

/// What an authenticated payload says.
#[inline]
fn read(tag: Tag, datatype: Datatype, payload: &[u8]) -> Result<Opened<'_>, CannotOpen> {
    let (metadata, text) = match tag.has_metadata() {
        true => Metadata::split(payload).ok_or(CannotOpen)?,
        false => (Metadata::default(), payload),
    };
    // Not only tidiness: a `TENZ` relabelled `Tk9D` to lose its role authenticates, and fails here, because its
    // metadata is never UTF-8.
    let text = std::str::from_utf8(text).map_err(|_| CannotOpen)?;
    let value = match datatype {
        Datatype::String => Value::Text(text),
        Datatype::Number => match parse(text) {
            Parsed::Exact(number) => Value::Number(number),
            Parsed::Text => Value::Text(text),
            Parsed::Refused => return Err(CannotOpen),
        },
        // The digits are from Python clients before 3.0.
        Datatype::Boolean => match text {
            "true" | "1" => Value::Boolean(true),
            "false" | "0" => Value::Boolean(false),
            _ => return Err(CannotOpen),
        },
    };
    let Metadata { role, origin, encrypted_at } = metadata;
    Ok(Opened { value, datatype, text, role, origin, encrypted_at })
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("app", self.ring.app()).field("legacy", &self.legacy).finish_non_exhaustive()
    }
}
