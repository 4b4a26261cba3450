//! The keys of an app's tokens: token ids, fingerprints and masks, and encryption of rows at rest.
//! Objects have their keys from the same secrets.
//!
//! Token keys are symmetric and separate from the key pairs of envelopes. Each version is a 32-byte
//! secret. HKDF-SHA256 derives one sub-key per purpose, once. `proto/token.md` specifies the exact
//! bytes.
//!
//! Important: ids, fingerprints and masks always use version 1, in any state. A row must be found
//! again after a rotation, and a value must keep its mask. Rotating and disabling affects only the
//! keys that seal and open rows.

mod format;
mod hash;
mod row;
mod subject;

use std::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

pub use format::{CardEnds, Format, Unfit};
pub use hash::{HASH_BYTES, KeyedHmac, TokenContext, TokenPrincipal};
pub use row::{NewToken, OpenedToken, RowBuffer};
pub use subject::{SUBJECT_SEAL_BYTES, SubjectKey};

use sealwire_crypto::aead::AeadKey;
use sealwire_crypto::{Error, KeyState};

const ID_LABEL: &[u8] = b"sealwire/token/id/1";
const FINGERPRINT_LABEL: &[u8] = b"sealwire/token/fingerprint/1";
const CONTEXT_LABEL: &[u8] = b"sealwire/token/context/1";
const SEAL_LABEL: &[u8] = b"sealwire/token/seal/1";
const MASK_LABEL: &[u8] = b"sealwire/mask/1";
const OBJECT_INDEX_LABEL: &[u8] = b"sealwire/object/index/1";
const OBJECT_SEAL_LABEL: &[u8] = b"sealwire/object/seal/1";
/// Label of a sub-key that never leaves the process. The sub-key allows comparing two secrets
/// without storing them.
const MARK_LABEL: &[u8] = b"sealwire/token/mark/1";

/// The secret of a token key version, 32 bytes, wiped on drop. No `Clone`; `Debug` shows none of
/// its bytes.
pub struct TokenSecret(Zeroizing<[u8; 32]>);

impl TokenSecret {
    /// Takes ownership of bytes from unwrapping a stored secret.
    #[must_use]
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        Self(bytes)
    }

    /// Generates a secret from the system's random source.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        aws_lc_rs::rand::fill(&mut bytes[..]).map_err(|_| Error::Library)?;
        Ok(Self(bytes))
    }

    /// Exposes the bytes. For wrapping under the KEK, and for test vectors only.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives the sub-key for one purpose.
    fn sub_key(&self, label: &[u8]) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, &self.0[..])
            .expand(label, &mut key[..])
            .expect("a sub-key is one hash long");
        key
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(32 bytes)")
    }
}

/// A version of an app's token key.
#[derive(Debug)]
pub struct TokenKeyVersion {
    /// Number of this version among the app's versions, from 1.
    pub number: u32,
    /// The state. Only an active version seals and opens rows.
    pub state: KeyState,
    /// The secret that sub-keys are derived from.
    pub secret: TokenSecret,
}

/// The derived token keys of one app. Wiped on drop; `Debug` shows numbers and states only.
pub struct TokenKeys {
    app: u32,
    id: KeyedHmac,
    fingerprint: KeyedHmac,
    context: KeyedHmac,
    mask: Zeroizing<[u8; 32]>,
    object_index: Zeroizing<[u8; 32]>,
    versions: Vec<Version>,
}

struct Version {
    number: u32,
    mark: Zeroizing<[u8; 32]>,
    /// The keys that seal; `None` if the version is disabled.
    keys: Option<SealKeys>,
}

/// The keys of a version that seal. Each kind of row has its own, so that no row of one kind opens
/// as one of the other.
struct SealKeys {
    tokens: AeadKey,
    objects: AeadKey,
}

impl TokenKeys {
    /// Derives the keys of an app from all its versions, given in any order. `app` is the app's
    /// number, which is never reused.
    ///
    /// # Errors
    /// [`Error::InvalidTokenKeys`] without version 1, or if a number is 0 or repeated;
    /// [`Error::Library`].
    pub fn new(app: u32, mut versions: Vec<TokenKeyVersion>) -> Result<Self, Error> {
        versions.sort_unstable_by_key(|version| version.number);
        let first = versions
            .first()
            .filter(|version| version.number == 1)
            .ok_or(Error::InvalidTokenKeys)?;
        if versions
            .windows(2)
            .any(|pair| pair[0].number == pair[1].number)
        {
            return Err(Error::InvalidTokenKeys);
        }

        let secret = &first.secret;
        Ok(Self {
            app,
            id: KeyedHmac::new(&secret.sub_key(ID_LABEL)),
            fingerprint: KeyedHmac::new(&secret.sub_key(FINGERPRINT_LABEL)),
            context: KeyedHmac::new(&secret.sub_key(CONTEXT_LABEL)),
            mask: secret.sub_key(MASK_LABEL),
            object_index: secret.sub_key(OBJECT_INDEX_LABEL),
            versions: versions
                .iter()
                .map(Version::new)
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns the secret that the app's masks are derived from.
    ///
    /// The secret is derived from version 1 in any state, so that masks stay the same for the life
    /// of the app. With the secret, one can neither find a token nor open a row.
    #[must_use]
    pub fn mask_secret(&self) -> Zeroizing<[u8; 32]> {
        self.mask.clone()
    }

    /// Returns the secret that index terms of the app's objects are derived from.
    ///
    /// The secret is derived from version 1 in any state, so that objects are found after a
    /// rotation. The secret cannot open any record.
    #[must_use]
    pub fn object_index_secret(&self) -> Zeroizing<[u8; 32]> {
        self.object_index.clone()
    }

    /// Returns the app's number.
    #[must_use]
    pub fn app(&self) -> u32 {
        self.app
    }

    /// Returns the newest active version, which seals rows, or `None` when all are disabled.
    #[must_use]
    pub fn newest(&self) -> Option<u32> {
        self.sealing().map(|(number, _)| number)
    }

    /// Returns true if both belong to one app and hold equal secrets in equal states, so that they
    /// are interchangeable.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.app == other.app
            && self.versions.len() == other.versions.len()
            && self
                .versions
                .iter()
                .zip(&other.versions)
                .all(|(own, other)| own.is_same(other))
    }

    /// Returns the key that seals records of objects, and its version: the newest active one.
    /// `None` when all are disabled.
    ///
    /// Only engines have the key, so a record that opens under it was sealed by an engine.
    #[must_use]
    pub fn object_sealing(&self) -> Option<(u32, &AeadKey)> {
        self.newest_keys()
            .map(|(number, keys)| (number, &keys.objects))
    }

    /// Returns the key of a version that opens records of objects. `None` if the version is
    /// disabled or unknown.
    #[must_use]
    pub fn object_opening(&self, number: u32) -> Option<&AeadKey> {
        self.keys_of(number).map(|keys| &keys.objects)
    }

    fn sealing(&self) -> Option<(u32, &AeadKey)> {
        self.newest_keys()
            .map(|(number, keys)| (number, &keys.tokens))
    }

    fn opening(&self, number: u32) -> Option<&AeadKey> {
        self.keys_of(number).map(|keys| &keys.tokens)
    }

    fn newest_keys(&self) -> Option<(u32, &SealKeys)> {
        self.versions
            .iter()
            .rev()
            .find_map(|version| Some((version.number, version.keys.as_ref()?)))
    }

    fn keys_of(&self, number: u32) -> Option<&SealKeys> {
        self.versions
            .iter()
            .find(|version| version.number == number)?
            .keys
            .as_ref()
    }
}

impl Version {
    fn new(version: &TokenKeyVersion) -> Result<Self, Error> {
        let secret = &version.secret;
        let keys = match version.state {
            KeyState::Active => Some(SealKeys {
                tokens: AeadKey::siv(&secret.sub_key(SEAL_LABEL))?,
                objects: AeadKey::siv(&secret.sub_key(OBJECT_SEAL_LABEL))?,
            }),
            KeyState::Disabled => None,
        };
        Ok(Self {
            number: version.number,
            mark: secret.sub_key(MARK_LABEL),
            keys,
        })
    }

    /// Returns true if both versions have equal numbers, states and secrets.
    fn is_same(&self, other: &Self) -> bool {
        // No client can influence either secret, so a comparison in variable time is safe.
        self.number == other.number
            && self.keys.is_some() == other.keys.is_some()
            && self.mark == other.mark
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.keys.is_some() {
            KeyState::Active
        } else {
            KeyState::Disabled
        };
        f.debug_struct("Version")
            .field("number", &self.number)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKeys")
            .field("app", &self.app)
            .field("versions", &self.versions)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
