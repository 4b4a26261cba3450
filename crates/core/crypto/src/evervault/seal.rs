//! Seals strings and whole files to an app's key.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;

use super::derive::Derived;
use super::file::{
    FILE_BYTES_MAX, FILE_HEADER_BYTES, FileError, FileHeader, FileVersion, TRAILER_BYTES,
    check_front,
};
use super::metadata::{CARRIED_ROLE_BYTES_MAX, MetadataStamp, ORIGIN, Role};
use super::text::{
    Aad, BASE64, Datatype, IV_CHARS, POINT_BYTES, POINT_CHARS, PREFIX, SUFFIX, TEXT_BYTES_MAX, Tag,
    compressed,
};
use crate::aead::{NONCE_BYTES, TAG_BYTES};
use crate::envelope::base64_chars;
use crate::key::SharedX;
use crate::{Curve, Error, KeyScope, KeyVersion};

/// IVs drawn per call of the random source, so that most fields need no call.
const IVS: usize = 32;

/// The form of strings to write: each curve has two current tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// `QkTC` or `S0lS`: datatype, role, origin and time are authenticated. This form is
    /// recommended.
    Metadata {
        /// A role for a policy to check when the value is opened.
        role: Option<Role>,
        /// Unix seconds, visible to every client that opens the value.
        encrypted_at: u32,
    },
    /// `Tk9D` or `RFVC`: the shorter strings that the Node and Python clients write by default.
    /// Anyone can change their datatype.
    Plain,
}

impl Form {
    /// Returns the tag written on a curve.
    #[must_use]
    pub fn tag(&self, curve: Curve) -> Tag {
        match (self, curve) {
            (Self::Metadata { .. }, Curve::P256) => Tag::Qktc,
            (Self::Metadata { .. }, Curve::Secp256k1) => Tag::S0ls,
            (Self::Plain, Curve::P256) => Tag::Tk9d,
            (Self::Plain, Curve::Secp256k1) => Tag::Rfvc,
        }
    }
}

/// Seals the values of one request. Holds the AES keys of one ephemeral key, wiped on drop. The
/// ephemeral private key is dropped once the AES keys are derived.
pub struct Sealer {
    recipient: Arc<KeyVersion>,
    scope: KeyScope,
    tag: Tag,
    /// Origin and time in the metadata of every string; `None` without metadata.
    stamp: Option<MetadataStamp>,
    /// The role in every string; empty for no role. A real role is never empty.
    role: String,
    /// The metadata before every text, with its length. Empty without metadata.
    metadata: Vec<u8>,
    ephemeral: Ephemeral,
    ivs: Ivs,
    /// The payload during sealing, before it is encoded. Holds ciphertext between calls.
    body: Vec<u8>,
}

/// The public half of an ephemeral key, and the keys derived from its private half.
struct Ephemeral {
    compressed: [u8; POINT_BYTES],
    uncompressed: [u8; 65],
    chars: [u8; POINT_CHARS],
    derived: Derived,
    /// Number of values sealed. IVs are random, so one key may seal 2^32 values (NIST SP 800-38D,
    /// section 8.3).
    used: u32,
}

impl Ephemeral {
    fn new((uncompressed, x): ([u8; 65], SharedX)) -> Self {
        let compressed = compressed(&uncompressed);
        let mut chars = [0; POINT_CHARS];
        BASE64
            .encode_slice(compressed, &mut chars)
            .expect("33 bytes are 44 characters");
        Self {
            compressed,
            uncompressed,
            chars,
            derived: Derived::new(x),
            used: 0,
        }
    }
}

struct Ivs {
    bytes: [u8; NONCE_BYTES * IVS],
    used: usize,
    #[cfg(test)]
    fixed: Option<[u8; NONCE_BYTES]>,
}

impl Ivs {
    fn new() -> Self {
        Self {
            bytes: [0; NONCE_BYTES * IVS],
            used: IVS,
            #[cfg(test)]
            fixed: None,
        }
    }

    #[inline]
    fn next(&mut self) -> Result<[u8; NONCE_BYTES], Error> {
        #[cfg(test)]
        if let Some(fixed) = self.fixed {
            return Ok(fixed);
        }
        if self.used == IVS {
            aws_lc_rs::rand::fill(&mut self.bytes).map_err(|_| Error::Library)?;
            self.used = 0;
        }
        let iv = self.bytes[self.used * NONCE_BYTES..]
            .first_chunk()
            .expect("IVS of them");
        self.used += 1;
        Ok(*iv)
    }
}

impl Sealer {
    /// Makes an ephemeral key: one key generation and one Diffie-Hellman.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source or the crypto library fails.
    pub fn new(recipient: Arc<KeyVersion>, scope: KeyScope, form: &Form) -> Result<Self, Error> {
        let ephemeral = Ephemeral::new(recipient.agree_fresh()?);
        Self::with_ephemeral(recipient, scope, form, ephemeral, ORIGIN)
    }

    /// Creates a sealer from fixed random inputs, for test vectors only. A second use repeats the
    /// IV.
    #[cfg(test)]
    pub(super) fn fixed(
        recipient: Arc<KeyVersion>,
        form: &Form,
        ephemeral: &crate::KeyPair,
        iv: [u8; NONCE_BYTES],
        origin: u8,
    ) -> Result<Self, Error> {
        let x = ephemeral.agree(recipient.pair()?.public())?;
        let ephemeral = Ephemeral::new((*ephemeral.public().uncompressed(), x));
        let mut sealer =
            Self::with_ephemeral(recipient, KeyScope::Request, form, ephemeral, origin)?;
        sealer.ivs.fixed = Some(iv);
        Ok(sealer)
    }

    fn with_ephemeral(
        recipient: Arc<KeyVersion>,
        scope: KeyScope,
        form: &Form,
        ephemeral: Ephemeral,
        origin: u8,
    ) -> Result<Self, Error> {
        let tag = form.tag(recipient.pair()?.public().curve());
        let (stamp, role) = match form {
            Form::Metadata { role, encrypted_at } => (
                Some(MetadataStamp {
                    origin,
                    encrypted_at: *encrypted_at,
                }),
                role.as_ref().map_or("", Role::as_str).to_owned(),
            ),
            Form::Plain => (None, String::new()),
        };
        let ivs = Ivs::new();
        let body = Vec::new();
        let mut sealer = Self {
            recipient,
            scope,
            tag,
            stamp,
            role,
            metadata: Vec::new(),
            ephemeral,
            ivs,
            body,
        };
        sealer.write_metadata();
        Ok(sealer)
    }

    fn write_metadata(&mut self) {
        if let Some(stamp) = self.stamp {
            stamp.encode(
                (!self.role.is_empty()).then_some(&self.role),
                &mut self.metadata,
            );
        }
    }

    /// Sets the role of the following strings to the role of an opened string. [`Role`] can reject
    /// such a role, since other clients check less. Returns `false`, without a change, if this form
    /// has no role or the role is longer than any client's.
    #[must_use]
    #[inline]
    pub fn carry_role(&mut self, role: Option<&str>) -> bool {
        let wanted = role.unwrap_or_default();
        if wanted == self.role {
            // An empty role must not be lost, because a policy can name it.
            return role.is_none() || !wanted.is_empty();
        }
        if self.stamp.is_none()
            || wanted.len() > CARRIED_ROLE_BYTES_MAX
            || role.is_some_and(str::is_empty)
        {
            return false;
        }
        wanted.clone_into(&mut self.role);
        self.write_metadata();
        true
    }

    /// Returns the tag of the strings that this sealer writes.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Returns the number of bytes that [`Sealer::seal`] appends for a text of this length.
    #[must_use]
    #[inline]
    pub fn sealed_bytes(&self, datatype: Datatype, text: usize) -> usize {
        let sealed = base64_chars(self.metadata.len() + text + TAG_BYTES);
        let outer = PREFIX.len() + self.tag.text().len() + 1 + datatype.word().len() + SUFFIX.len();
        outer + IV_CHARS + 1 + POINT_CHARS + 1 + sealed
    }

    /// Returns the number of bytes that [`Sealer::seal_file`] appends for a content of this length.
    #[must_use]
    #[inline]
    pub fn sealed_file_bytes(&self, content: usize) -> usize {
        FILE_HEADER_BYTES + content + TRAILER_BYTES
    }

    /// Appends the string of one value to `out`: [`Sealer::sealed_bytes`] bytes. `text` is the
    /// string itself, a number's [`NumberText`](super::NumberText), or `true` or `false`.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] beyond [`TEXT_BYTES_MAX`], [`Error::Library`] when the crypto library
    /// fails; `out` is then unchanged.
    #[inline]
    pub fn seal(&mut self, datatype: Datatype, text: &str, out: &mut Vec<u8>) -> Result<(), Error> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Error::TextTooLong);
        }
        self.take_use()?;
        let iv = self.ivs.next()?;
        let app = self.recipient.pair()?.public();
        let Ephemeral {
            compressed,
            uncompressed,
            chars,
            derived,
            ..
        } = &mut self.ephemeral;
        self.body.clear();
        self.body
            .reserve(self.metadata.len() + text.len() + TAG_BYTES);
        self.body.extend_from_slice(&self.metadata);
        self.body.extend_from_slice(text.as_bytes());
        let aad = Aad::new(self.tag, datatype, compressed, app.compressed());
        derived
            .key(self.tag.kdf(), app.curve(), uncompressed)?
            .seal(iv, aad.as_slice(), &mut self.body, 0)?;

        out.extend_from_slice(PREFIX);
        out.extend_from_slice(self.tag.text().as_bytes());
        out.push(b':');
        out.extend_from_slice(datatype.word());
        append_base64(&iv, out);
        out.push(b':');
        out.extend_from_slice(chars);
        out.push(b':');
        append_base64(&self.body, out);
        out.extend_from_slice(SUFFIX);
        Ok(())
    }

    /// Appends a whole file to `out`: [`Sealer::sealed_file_bytes`] bytes.
    ///
    /// # Errors
    /// [`FileError::Role`] when the sealer writes a role, [`FileError::TooLong`],
    /// [`FileError::Ambiguous`], [`FileError::Library`]; `out` is then unchanged.
    pub fn seal_file(&mut self, content: &[u8], out: &mut Vec<u8>) -> Result<(), FileError> {
        if !self.role.is_empty() {
            return Err(FileError::Role);
        }
        if content.len() as u64 > FILE_BYTES_MAX {
            return Err(FileError::TooLong);
        }
        check_front(content)?;
        self.take_use()?;
        let iv = self.ivs.next()?;
        let Ephemeral {
            compressed,
            uncompressed,
            derived,
            ..
        } = &mut self.ephemeral;
        let app = self.recipient.pair()?.public();
        let version = FileVersion::of(app.curve());
        let key = derived.key(version.scheme().kdf, app.curve(), uncompressed)?;
        let before = out.len();
        out.reserve(FILE_HEADER_BYTES + content.len() + TRAILER_BYTES);
        out.extend_from_slice(&FileHeader::write(version, compressed, iv));
        out.extend_from_slice(content);
        if let Err(error) = key.seal(
            iv,
            version.aad(app.compressed()),
            out,
            before + FILE_HEADER_BYTES,
        ) {
            out.truncate(before);
            return Err(error.into());
        }
        let checksum = crc32fast::hash(&out[before..]);
        out.extend_from_slice(&checksum.to_le_bytes());
        Ok(())
    }

    /// Counts one use of the ephemeral key. Makes a new key first if the scope or the use count
    /// requires it.
    #[inline]
    fn take_use(&mut self) -> Result<(), Error> {
        let used = self.ephemeral.used;
        if used == u32::MAX || (used > 0 && self.scope == KeyScope::Field) {
            self.ephemeral = Ephemeral::new(self.recipient.agree_fresh()?);
        }
        self.ephemeral.used += 1;
        Ok(())
    }
}

#[inline]
fn append_base64(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + base64_chars(bytes.len()), 0);
    BASE64
        .encode_slice(bytes, &mut out[start..])
        .expect("the room is base64_chars long");
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("tag", &self.tag)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
