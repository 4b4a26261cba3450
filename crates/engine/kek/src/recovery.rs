//! Split custody: a root key sealed to a recovery public key, whose private key exists only as
//! shares.
//!
//! A provider of kind `shares` wraps with only the public key, so rotations need no holder. The
//! provider never unwraps: holders of shares join their shares to the [`RecoveryKey`], which
//! unwraps. `sealwire recovery create` creates a key and its shares.
//!
//! Text form of the public key: `swr1:` and 1,275 bytes in base64url without padding. The bytes are
//! version `01`, set (16), key id (5), public key of MLKEM768-P256 (1,249), and a checksum. The
//! checksum is the first 4 bytes of the SHA-256 of all preceding bytes. The checksum detects damage
//! but not forgery. Protect the file against writing as carefully as a key file against reading.
//!
//! A wrapped copy is version `01`, key id (5), and the root key sealed by HPKE to the public key,
//! bound to [`WrapSlot::aad`].

use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64URL_NOPAD;
use sealwire_crypto::{
    HYBRID_PUBLIC_KEY_BYTES, HybridKey, HybridPublicKey, HybridSeed, KeyId, RECOVERY_COPY_BYTES,
};

use crate::secret_file::{FileReader, read_public};
use crate::shares::{self, JoinError, Share, SplitError};
use crate::{Provider, ProviderError, ProviderKind, RootBytes, WrapSlot};

/// The reason why a slot of kind `shares` does not unwrap automatically.
pub const NEEDS_HOLDERS: &str = "needs the holders of shares: `sealwire root recover`";

/// Prefix of the text form of a public key.
const PREFIX: &str = "swr1:";
/// Version of both binary forms.
const VERSION: u8 = 1;
/// Bytes before the checksum of a public key.
const BODY_BYTES: usize = 1 + 16 + 5 + HYBRID_PUBLIC_KEY_BYTES;
const CHECKSUM_BYTES: usize = 4;
/// Bytes before the sealed root key in a wrapped copy.
const COPY_HEADER_BYTES: usize = 1 + 5;
/// Length of a wrapped copy in bytes.
const COPY_BYTES: usize = COPY_HEADER_BYTES + RECOVERY_COPY_BYTES;
const _: () = assert!(COPY_BYTES <= crate::WRAPPED_BYTES_MAX);

/// A key that opens copies of root keys of one store. Wiped on drop; `Debug` shows only its id.
pub struct RecoveryKey {
    set: [u8; 16],
    key: HybridKey,
}

/// The public part of a [`RecoveryKey`], which wraps root keys and is not secret.
pub struct RecoveryPublicKey {
    set: [u8; 16],
    key: HybridPublicKey,
}

/// The reason why a text is not a recovery public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// The text has another prefix or another length than a public key.
    #[error("must be `swr1:` and 1,700 characters of base64url")]
    Form,
    /// The checksum does not match: a character was altered.
    #[error("a character was altered: the checksum does not match")]
    Checksum,
    /// A later version of this program made the key.
    #[error("version {0} of the form is unknown")]
    Version(u8),
    /// The bytes are not a public key, or their key has another id.
    #[error("not a public key, or not the one of its id")]
    Key,
}

/// The reason why shares cannot be joined or a copy cannot be opened. Errors never contain a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The shares do not match each other, or there are too few.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The shares match each other, but join to another key than they name.
    #[error("the shares do not join to the key that they name: one of them is false")]
    OtherKey,
    /// The copy belongs to another recovery key.
    #[error("the copy is sealed to another recovery key")]
    OtherCopy,
    /// The copy does not open: it was altered, or moved from another slot.
    #[error("the copy does not open: it was altered, or moved from another slot")]
    DoesNotOpen,
    /// The random source or the library failed.
    #[error("the crypto library failed")]
    Library,
}

impl RecoveryKey {
    /// Generates a key for the store whose set of root keys is `set`.
    ///
    /// # Errors
    /// [`RecoveryError::Library`] when the random source fails.
    pub fn generate(set: [u8; 16]) -> Result<Self, RecoveryError> {
        let seed = HybridSeed::generate().map_err(|_| RecoveryError::Library)?;
        let key = HybridKey::from_seed(seed).map_err(|_| RecoveryError::Library)?;
        Ok(Self { set, key })
    }

    /// Joins shares and checks that the key has the id that the shares name.
    ///
    /// # Errors
    /// [`RecoveryError::Join`], [`RecoveryError::OtherKey`], [`RecoveryError::Library`].
    pub fn join(shares: &[Share]) -> Result<Self, RecoveryError> {
        let seed = shares::join(shares)?;
        let (set, id) = shares
            .first()
            .map_or(([0; 16], [0; 5]), |share| (*share.set(), *share.key()));
        let key =
            HybridKey::from_seed(HybridSeed::new(seed)).map_err(|_| RecoveryError::Library)?;
        if *key.id().as_bytes() == id {
            Ok(Self { set, key })
        } else {
            Err(RecoveryError::OtherKey)
        }
    }

    /// Splits the key into `total` shares, of which any `threshold` join to it.
    ///
    /// # Errors
    /// See [`SplitError`].
    pub fn split(&self, threshold: u8, total: u8) -> Result<Vec<Share>, SplitError> {
        shares::split(
            self.key.seed().expose(),
            self.set,
            *self.key.id().as_bytes(),
            threshold,
            total,
        )
    }

    /// Returns the id of the set of root keys.
    #[must_use]
    pub fn set(&self) -> &[u8; 16] {
        &self.set
    }

    /// Returns the key's id.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.key.id()
    }

    /// Returns the public key.
    ///
    /// # Errors
    /// [`RecoveryError::Library`] when the library fails.
    pub fn public(&self) -> Result<RecoveryPublicKey, RecoveryError> {
        let public = self.key.public().map_err(|_| RecoveryError::Library)?;
        let key =
            HybridPublicKey::from_bytes(public.as_bytes()).map_err(|_| RecoveryError::Library)?;
        Ok(RecoveryPublicKey { set: self.set, key })
    }

    /// Unwraps a copy. The caller must check the id of the root key.
    ///
    /// # Errors
    /// [`RecoveryError::OtherCopy`], [`RecoveryError::DoesNotOpen`].
    pub fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, RecoveryError> {
        let id = recovery_key_of(wrapped).ok_or(RecoveryError::DoesNotOpen)?;
        if id != self.key.id() || slot.set != self.set {
            return Err(RecoveryError::OtherCopy);
        }
        let opened = self
            .key
            .open_copy(&wrapped[COPY_HEADER_BYTES..], &slot.aad());
        opened.map(Box::new).map_err(|_| RecoveryError::DoesNotOpen)
    }
}

impl fmt::Debug for RecoveryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecoveryKey({})", self.key.id())
    }
}

impl RecoveryPublicKey {
    /// Returns the id of the set of root keys.
    #[must_use]
    pub fn set(&self) -> &[u8; 16] {
        &self.set
    }

    /// Returns the key's id.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.key.id()
    }

    /// Returns the text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        let body = [
            &[VERSION][..],
            &self.set,
            self.key.id().as_bytes(),
            self.key.as_bytes(),
        ]
        .concat();
        let sum = checksum(&body);
        PREFIX.to_owned() + &BASE64URL_NOPAD.encode(&[&body[..], &sum].concat())
    }

    /// Parses the text form, with optional white space around it.
    ///
    /// # Errors
    /// See [`PublicKeyError`].
    pub fn parse(text: &str) -> Result<Self, PublicKeyError> {
        let digits = text
            .trim()
            .strip_prefix(PREFIX)
            .ok_or(PublicKeyError::Form)?;
        let bytes = BASE64URL_NOPAD
            .decode(digits.as_bytes())
            .map_err(|_| PublicKeyError::Form)?;
        if bytes.len() != BODY_BYTES + CHECKSUM_BYTES {
            return Err(PublicKeyError::Form);
        }

        let (body, sum) = bytes.split_at(BODY_BYTES);
        if sum != checksum(body) {
            return Err(PublicKeyError::Checksum);
        }

        if body[0] != VERSION {
            return Err(PublicKeyError::Version(body[0]));
        }

        let mut set = [0; 16];
        let mut id = [0; 5];
        set.copy_from_slice(&body[1..17]);
        id.copy_from_slice(&body[17..22]);
        let key = HybridPublicKey::from_bytes(&body[22..]).map_err(|_| PublicKeyError::Key)?;
        if *key.id().as_bytes() == id {
            Ok(Self { set, key })
        } else {
            Err(PublicKeyError::Key)
        }
    }

    /// Wraps a root key for a slot.
    ///
    /// # Errors
    /// [`ProviderError::Settings`] for a slot of another store; [`ProviderError::Unavailable`] if
    /// the library fails.
    pub fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        if slot.set != self.set {
            let text = "the recovery public key was made for another store, or before a new `kek init`; \
                        `sealwire recovery create` makes one for this store";
            return Err(ProviderError::Settings(text.into()));
        }
        let sealed = self
            .key
            .seal_copy(root, &slot.aad())
            .map_err(|_| ProviderError::Unavailable("the crypto library failed".into()))?;
        Ok([&[VERSION][..], self.key.id().as_bytes(), &sealed].concat())
    }
}

impl fmt::Debug for RecoveryPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecoveryPublicKey({})", self.key.id())
    }
}

/// Returns the id of the recovery key to which a copy is sealed, or `None` if the bytes are not
/// such a copy.
#[must_use]
pub fn recovery_key_of(wrapped: &[u8]) -> Option<KeyId> {
    let id = wrapped
        .get(1..COPY_HEADER_BYTES)
        .and_then(|id| id.try_into().ok());
    let is_copy = wrapped.len() == COPY_BYTES && wrapped[0] == VERSION;
    if is_copy {
        id.map(KeyId::from_bytes)
    } else {
        None
    }
}

/// Returns the first 4 bytes of the SHA-256.
fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&digest(&SHA256, body).as_ref()[..CHECKSUM_BYTES]);
    sum
}

/// A recovery public key in a file. Wraps; cannot unwrap.
#[derive(Clone, Debug)]
pub struct SharesProvider {
    path: PathBuf,
    reader: FileReader,
}

impl SharesProvider {
    /// Creates a provider. Each call that wraps reads the file, as in
    /// [`FileProvider`](crate::FileProvider). A file that its group or other users can change is
    /// rejected.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            reader: FileReader::default(),
        }
    }
}

#[async_trait]
impl Provider for SharesProvider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Shares
    }

    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        let path = self.path.clone();
        let place = self.path.display().to_string();
        self.reader
            .run(&place, move || {
                let bytes = read_public(&path)?;
                let text = std::str::from_utf8(&bytes).map_err(|_| PublicKeyError::Form);
                text.and_then(RecoveryPublicKey::parse).map_err(|error| {
                    ProviderError::Settings(format!("{}: {error}", path.display()))
                })
            })
            .await?
            .wrap(root, slot)
    }

    /// Always fails, because a public key cannot unwrap.
    ///
    /// # Errors
    /// [`ProviderError::NeedsHolders`]; [`ProviderError::DoesNotUnwrap`] for bytes that no provider
    /// of this kind made.
    async fn unwrap(&self, wrapped: &[u8], _: &WrapSlot) -> Result<RootBytes, ProviderError> {
        match recovery_key_of(wrapped) {
            Some(_) => Err(ProviderError::NeedsHolders),
            None => Err(ProviderError::DoesNotUnwrap(
                "not a copy that is sealed to a recovery key".into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
