//! Streaming of files that should not be completely in memory. Bytes in, bytes out: the caller does
//! the I/O.
//!
//! **Output of [`FileOpener`] is not authenticated until [`FileOpener::finish`] has returned
//! `Ok`.** Write the output to a private file, and rename that file only after success; on `Err`,
//! delete it. The format has one tag at its end, so the only alternative is to read the file twice.
//!
//! This module uses OpenSSL, because AWS-LC's safe interface has no streaming GCM.

use std::fmt;

use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;

use super::derive::Derived;
use super::file::{
    FILE_BYTES_MAX, FILE_HEADER_BYTES, FileError, FileHeader, FileVersion, TRAILER_BYTES,
    check_front,
};
use super::metadata::ContentPrefix;
use super::open::Legacy;
use super::ring::{active, attempt};
use super::text::compressed;
use crate::aead::{AeadKey, NONCE_BYTES, TAG_BYTES};
use crate::key::SharedX;
use crate::{AppKeys, CannotOpen, Error, KeyVersion, PublicKey};

/// Limit per call: OpenSSL counts bytes in a C int.
const CALL_BYTES_MAX: usize = 1 << 30;

/// Opens one file. A file does not name its key version, so [`FileOpener::candidates`] can return
/// several openers to try in order.
pub struct FileOpener {
    context: CipherCtx,
    checksum: crc32fast::Hasher,
    /// Set until the encrypted metadata of versions 4 and 5 has been read.
    metadata: Option<MetadataPart>,
    /// Set until the start of the content of versions 2 and 3 has been checked for metadata.
    front: Option<ContentPrefix>,
    legacy: Legacy,
    role: Option<Box<str>>,
    /// The last bytes seen, which are tag and checksum if no more bytes follow.
    held: Vec<u8>,
}

struct MetadataPart {
    header: FileHeader,
    key: AeadKey,
    aad: Box<[u8]>,
    /// The length field, then as many bytes of metadata.
    read: Vec<u8>,
}

impl FileOpener {
    /// Returns openers to try, likeliest first: one per active key version. On secp256k1 each
    /// version has a second opener for the other derivation, because real clients mix them. Feed
    /// the bytes after the header to the first opener; if it fails, start over with the next.
    ///
    /// # Errors
    /// [`CannotOpen`] when none can open the file.
    pub fn candidates(
        keys: &AppKeys,
        header: &FileHeader,
        legacy: Legacy,
    ) -> Result<Vec<Self>, CannotOpen> {
        header.check(legacy)?;
        let ephemeral = PublicKey::from_sec1(header.version.curve(), &header.ephemeral)
            .map_err(|_| CannotOpen)?;
        let versions = active(keys, header.version.curve());
        let turns = (0..).map_while(|turn| attempt(header.version.scheme(), versions.len(), turn));
        let openers = turns.map(|(version, kdf)| {
            let own = versions[version].pair().map_err(|_| CannotOpen)?;
            let derived = Derived::new(own.agree(&ephemeral).map_err(|_| CannotOpen)?);
            let key = derived.key_bytes(kdf, ephemeral.curve(), ephemeral.uncompressed());
            Self::new(
                header,
                &key,
                header.version.aad(own.public().compressed()),
                legacy,
            )
        });
        let openers = openers.collect::<Result<Vec<_>, _>>()?;
        if openers.is_empty() {
            Err(CannotOpen)
        } else {
            Ok(openers)
        }
    }

    fn new(
        header: &FileHeader,
        key: &[u8; 32],
        aad: &[u8],
        legacy: Legacy,
    ) -> Result<Self, CannotOpen> {
        let mut context = CipherCtx::new().map_err(|_| CannotOpen)?;
        context
            .decrypt_init(Some(Cipher::aes_256_gcm()), Some(key), Some(&header.iv))
            .map_err(|_| CannotOpen)?;
        bind(&mut context, aad).map_err(|_| CannotOpen)?;
        let metadata = match header.version.is_legacy() {
            false => None,
            true => Some(MetadataPart {
                header: header.clone(),
                key: AeadKey::new(key).map_err(|_| CannotOpen)?,
                aad: aad.into(),
                read: Vec::new(),
            }),
        };
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header.bytes);
        let front = metadata.is_none().then(ContentPrefix::default);
        Ok(Self {
            context,
            checksum,
            metadata,
            front,
            legacy,
            role: None,
            held: Vec::with_capacity(TRAILER_BYTES),
        })
    }

    /// Takes the next bytes of the file, of any length, and appends the decrypted bytes: **not
    /// authenticated yet**.
    ///
    /// # Errors
    /// [`CannotOpen`] when metadata does not open or is rejected. Wrong content is detected only by
    /// [`FileOpener::finish`].
    pub fn update(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), CannotOpen> {
        let chunk = match &mut self.metadata {
            None => chunk,
            Some(_) => self.take_metadata(chunk)?,
        };
        let release = (self.held.len() + chunk.len()).saturating_sub(TRAILER_BYTES);
        let start = out.len();
        let from_held = release.min(self.held.len());
        out.extend(self.held.drain(..from_held));
        let (now, later) = chunk.split_at(release - from_held);
        out.extend_from_slice(now);
        self.held.extend_from_slice(later);
        self.checksum.update(&out[start..]);
        for piece in out[start..].chunks_mut(CALL_BYTES_MAX) {
            let length = piece.len();
            self.context
                .cipher_update_inplace(piece, length)
                .map_err(|_| CannotOpen)?;
        }
        if let Some(front) = self.front.take_if(|front| front.take(&out[start..])) {
            self.role = super::file::unmarked_role(front.bytes(), self.legacy)?.map(Into::into);
        }
        Ok(())
    }

    /// Collects the metadata, opens it once it is complete, and returns the bytes after it.
    fn take_metadata<'a>(&mut self, chunk: &'a [u8]) -> Result<&'a [u8], CannotOpen> {
        let Some(part) = &mut self.metadata else {
            return Ok(chunk);
        };
        let missing = 2 + part.header.metadata_bytes - part.read.len();
        let (now, rest) = chunk.split_at(missing.min(chunk.len()));
        part.read.extend_from_slice(now);
        if now.len() < missing {
            return Ok(rest);
        }
        self.checksum.update(&part.read);
        let (length, sealed) = part.read.split_first_chunk_mut().ok_or(CannotOpen)?;
        part.header
            .check_metadata_length(*length)
            .ok_or(CannotOpen)?;
        part.key.open(part.header.iv, &part.aad, sealed)?;
        self.role = super::file::role(sealed)?.map(Into::into);
        self.metadata = None;
        Ok(rest)
    }

    /// Returns the data role. The role is complete only after the whole file was passed to
    /// [`FileOpener::update`].
    #[must_use]
    pub fn role(&self) -> Option<&str> {
        self.role.as_deref()
    }

    /// Checks that all returned output was authentic. On an error, delete the output.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    pub fn finish(mut self) -> Result<(), CannotOpen> {
        if self.metadata.is_some() {
            return Err(CannotOpen);
        }
        let (tag, checksum) = self
            .held
            .split_first_chunk::<TAG_BYTES>()
            .ok_or(CannotOpen)?;
        self.checksum.update(tag);
        if self.checksum.finalize().to_le_bytes() != *checksum {
            return Err(CannotOpen);
        }
        self.context.set_tag(tag).map_err(|_| CannotOpen)?;
        self.context.cipher_final(&mut []).map_err(|_| CannotOpen)?;
        Ok(())
    }
}

impl fmt::Debug for FileOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileOpener")
    }
}

/// Seals one file under its own ephemeral key.
pub struct FileSealer {
    context: CipherCtx,
    checksum: crc32fast::Hasher,
    content_bytes: u64,
    /// Set until the start of the content has been checked for metadata.
    front: Option<ContentPrefix>,
}

impl FileSealer {
    /// Creates a sealer to `recipient` and the file's header: version 3 on P-256, 2 on secp256k1.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source or the crypto library fails.
    pub fn new(recipient: &KeyVersion) -> Result<(Self, [u8; FILE_HEADER_BYTES]), Error> {
        let (ephemeral, x) = recipient.agree_fresh()?;
        let mut iv = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut iv).map_err(|_| Error::Library)?;
        Self::with_ephemeral(recipient, &ephemeral, x, iv)
    }

    pub(super) fn with_ephemeral(
        recipient: &KeyVersion,
        ephemeral: &[u8; 65],
        x: SharedX,
        iv: [u8; NONCE_BYTES],
    ) -> Result<(Self, [u8; FILE_HEADER_BYTES]), Error> {
        let app = recipient.pair()?.public();
        let version = FileVersion::of(app.curve());
        let key = Derived::new(x).key_bytes(version.scheme().kdf, app.curve(), ephemeral);
        let mut context = CipherCtx::new().map_err(|_| Error::Library)?;
        context
            .encrypt_init(Some(Cipher::aes_256_gcm()), Some(&key[..]), Some(&iv))
            .map_err(|_| Error::Library)?;
        bind(&mut context, version.aad(app.compressed()))?;
        let header = FileHeader::write(version, &compressed(ephemeral), iv);
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header);
        Ok((
            Self {
                context,
                checksum,
                content_bytes: 0,
                front: Some(ContentPrefix::default()),
            },
            header,
        ))
    }

    /// Encrypts the next bytes, of any length, in place.
    ///
    /// # Errors
    /// [`FileError::TooLong`] beyond [`FILE_BYTES_MAX`] in total, [`FileError::Ambiguous`],
    /// [`FileError::Library`]; the file is then unusable.
    pub fn update(&mut self, chunk: &mut [u8]) -> Result<(), FileError> {
        self.content_bytes = self.content_bytes.saturating_add(chunk.len() as u64);
        if self.content_bytes > FILE_BYTES_MAX {
            return Err(FileError::TooLong);
        }
        if let Some(front) = self.front.take_if(|front| front.take(chunk)) {
            check_front(front.bytes())?;
        }
        let length = chunk.len();
        self.context
            .cipher_update_inplace(chunk, length)
            .map_err(|_| FileError::Library)?;
        self.checksum.update(chunk);
        Ok(())
    }

    /// Returns the last bytes of the file.
    ///
    /// # Errors
    /// [`FileError::Library`] when the crypto library fails.
    pub fn finish(mut self) -> Result<[u8; 20], FileError> {
        self.context
            .cipher_final(&mut [])
            .map_err(|_| FileError::Library)?;
        let mut trailer = [0; TRAILER_BYTES];
        self.context
            .tag(&mut trailer[..TAG_BYTES])
            .map_err(|_| FileError::Library)?;
        self.checksum.update(&trailer[..TAG_BYTES]);
        trailer[TAG_BYTES..].copy_from_slice(&self.checksum.finalize().to_le_bytes());
        Ok(trailer)
    }
}

impl fmt::Debug for FileSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileSealer")
    }
}

fn bind(context: &mut CipherCtx, aad: &[u8]) -> Result<(), Error> {
    if !aad.is_empty() {
        context
            .cipher_update(aad, None)
            .map_err(|_| Error::Library)?;
    }
    Ok(())
}
