//! An app's name, its key versions, and the selection of versions that seal and open.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::kek::nibble;
use crate::precomputed::Precomputed;
use crate::{
    Curve, Error, HybridKey, HybridPublicKey, HybridSeed, KeyPair, PskKey, PskSeed, PublicKey,
    Suite, SuiteSet, XaesKey, XaesSecret,
};

/// Names an app: 1 to 64 of `A-Z a-z 0-9 . _ -`. Safe to log. Cloning only increments a reference
/// count.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppId(Arc<str>);

impl AppId {
    /// Longest name in bytes.
    pub const BYTES_MAX: usize = 64;

    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::InvalidAppId`] for any other length or character.
    pub fn new(name: &str) -> Result<Self, Error> {
        // A store can use the name as a file name. A leading dot would make a hidden file, or `..`.
        let valid = (1..=Self::BYTES_MAX).contains(&name.len())
            && name
                .bytes()
                .all(|byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
            && !name.starts_with('.');
        if valid {
            Ok(Self(name.into()))
        } else {
            Err(Error::InvalidAppId)
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AppId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one key version in every envelope that the version sealed. The id of a key pair is the
/// first 5 bytes of SHA-256 over `"sealwire/key-id/1"`, the suite byte and the uncompressed public
/// key. Safe to log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; 5]);

impl KeyId {
    /// Computes the id of a public key of base mode.
    #[must_use]
    pub fn of(key: &PublicKey) -> Self {
        Self::of_suite(key.curve().into(), key)
    }

    /// Computes the id of a public key of a suite.
    pub(crate) fn of_suite(suite: Suite, key: &PublicKey) -> Self {
        let digest = Sha256::new()
            .chain_update(b"sealwire/key-id/1")
            .chain_update([suite.byte()])
            .chain_update(key.uncompressed())
            .finalize();
        let mut id = [0; 5];
        id.copy_from_slice(&digest[..5]);
        Self(id)
    }

    /// Wraps an id that was read from an envelope.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 5]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes that go into an envelope.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 5] {
        &self.0
    }
}

impl FromStr for KeyId {
    type Err = Error;

    /// Parses the text form that [`KeyId`] displays: 10 hexadecimal digits, of either case.
    fn from_str(text: &str) -> Result<Self, Error> {
        let digits: &[u8; 10] = text
            .as_bytes()
            .try_into()
            .map_err(|_| Error::InvalidKeyId)?;
        let mut id = [0; 5];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            let (high, low) = nibble(pair[0])
                .zip(nibble(pair[1]))
                .ok_or(Error::InvalidKeyId)?;
            *byte = high << 4 | low;
        }
        Ok(Self(id))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The state of a key version, which decides its permitted uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Opens envelopes. Also seals new envelopes while the version is the newest of its suite.
    Active,
    /// Opens and seals nothing.
    Disabled,
}

/// The party that seals to a key version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Engines only, which never publish the public key.
    #[default]
    Inside,
    /// Anyone who has the published public key.
    Outside,
}

/// The key of a key version.
#[derive(Debug)]
pub enum KeyMaterial {
    /// A key pair, for [`Suite::P256`], [`Suite::Secp256k1`] and the Evervault formats.
    Pair(KeyPair),
    /// A symmetric key, for [`Suite::Xaes`].
    Symmetric(XaesKey),
    /// A key of two KEMs, for [`Suite::P256MlKem768`].
    Hybrid(HybridKey),
    /// A key pair and a pre-shared key, for [`Suite::P256Psk`] and [`Suite::Secp256k1Psk`].
    Psk(PskKey),
    /// The public key of a key pair, for those who only seal.
    Public(PublicKey),
    /// The public key of a key of two KEMs, for those who only seal.
    PublicHybrid(HybridPublicKey),
}

impl KeyMaterial {
    /// Generates a key of a suite from the system's random source.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source or the library fails.
    pub fn generate(app: &AppId, suite: Suite) -> Result<Self, Error> {
        Ok(match suite {
            Suite::P256 => KeyPair::generate(Curve::P256)?.into(),
            Suite::Secp256k1 => KeyPair::generate(Curve::Secp256k1)?.into(),
            Suite::Xaes => XaesKey::derive(app, &XaesSecret::generate()?)?.into(),
            Suite::P256MlKem768 => HybridKey::from_seed(HybridSeed::generate()?)?.into(),
            Suite::P256Psk => PskKey::from_seed(Curve::P256, PskSeed::generate()?)?.into(),
            Suite::Secp256k1Psk => {
                PskKey::from_seed(Curve::Secp256k1, PskSeed::generate()?)?.into()
            }
        })
    }

    /// Makes the key of a suite from its 32 bytes: the scalar of a key pair, the secret of a
    /// symmetric key, or the seed of a hybrid key or of a key with a pre-shared key.
    ///
    /// # Errors
    /// [`Error::InvalidPrivateKey`] if the bytes are not a scalar; [`Error::Library`].
    pub fn from_secret(
        app: &AppId,
        suite: Suite,
        secret: Zeroizing<[u8; 32]>,
    ) -> Result<Self, Error> {
        Ok(match suite {
            Suite::P256 => KeyPair::from_scalar(Curve::P256, &secret)?.into(),
            Suite::Secp256k1 => KeyPair::from_scalar(Curve::Secp256k1, &secret)?.into(),
            Suite::Xaes => XaesKey::derive(app, &XaesSecret::new(secret))?.into(),
            Suite::P256MlKem768 => HybridKey::from_seed(HybridSeed::new(secret))?.into(),
            Suite::P256Psk => PskKey::from_seed(Curve::P256, PskSeed::new(secret))?.into(),
            Suite::Secp256k1Psk => {
                PskKey::from_seed(Curve::Secp256k1, PskSeed::new(secret))?.into()
            }
        })
    }
}

impl From<HybridKey> for KeyMaterial {
    fn from(key: HybridKey) -> Self {
        Self::Hybrid(key)
    }
}

impl From<PskKey> for KeyMaterial {
    fn from(key: PskKey) -> Self {
        Self::Psk(key)
    }
}

impl From<HybridPublicKey> for KeyMaterial {
    fn from(key: HybridPublicKey) -> Self {
        Self::PublicHybrid(key)
    }
}

impl From<PublicKey> for KeyMaterial {
    fn from(key: PublicKey) -> Self {
        Self::Public(key)
    }
}

impl From<KeyPair> for KeyMaterial {
    fn from(pair: KeyPair) -> Self {
        Self::Pair(pair)
    }
}

impl From<XaesKey> for KeyMaterial {
    fn from(key: XaesKey) -> Self {
        Self::Symmetric(key)
    }
}

/// A version of an app's key of one suite.
#[derive(Debug)]
pub struct KeyVersion {
    /// The id that names this version in envelopes.
    pub id: KeyId,
    /// Number of this version among the app's versions of this suite, from 1.
    pub number: u32,
    /// The state, which decides permitted uses.
    pub state: KeyState,
    /// True if this version can seal. A version that was imported only to open existing envelopes
    /// cannot.
    pub seals: bool,
    /// The party that seals to this version.
    pub origin: Origin,
    pub(crate) material: KeyMaterial,
    pub(crate) precomputed: Precomputed,
}

impl KeyVersion {
    /// Creates a version in the given state, with the id of its key.
    #[must_use]
    pub fn new(number: u32, state: KeyState, material: impl Into<KeyMaterial>) -> Self {
        let material = material.into();
        let id = match &material {
            KeyMaterial::Pair(pair) => KeyId::of(pair.public()),
            KeyMaterial::Symmetric(key) => key.id(),
            KeyMaterial::Hybrid(key) => key.id(),
            KeyMaterial::Psk(key) => key.id(),
            KeyMaterial::Public(key) => KeyId::of(key),
            KeyMaterial::PublicHybrid(key) => key.id(),
        };
        let seals = true;
        let origin = Origin::Inside;
        Self {
            id,
            number,
            state,
            seals,
            origin,
            material,
            precomputed: Precomputed::default(),
        }
    }

    /// Returns the suite of the envelopes that this version seals and opens.
    #[must_use]
    pub fn suite(&self) -> Suite {
        match &self.material {
            KeyMaterial::Pair(pair) => pair.public().curve().into(),
            KeyMaterial::Symmetric(_) => Suite::Xaes,
            KeyMaterial::Hybrid(_) | KeyMaterial::PublicHybrid(_) => Suite::P256MlKem768,
            KeyMaterial::Psk(key) => key.suite(),
            KeyMaterial::Public(key) => key.curve().into(),
        }
    }

    /// Returns the key pair, which is used in base mode and for Evervault values.
    ///
    /// # Errors
    /// [`Error::NoKeyPair`] if the version is not a plain key pair on a curve, or has no private
    /// key.
    pub fn pair(&self) -> Result<&KeyPair, Error> {
        match &self.material {
            KeyMaterial::Pair(pair) => Ok(pair),
            _ => Err(Error::NoKeyPair),
        }
    }

    /// Returns the public key; of [`Suite::P256MlKem768`], its part on P-256.
    ///
    /// # Errors
    /// [`Error::NoKeyPair`] if the version is a symmetric key; the errors of [`HybridKey::public`],
    /// also of a key with a pre-shared key.
    pub fn public(&self) -> Result<&PublicKey, Error> {
        match &self.material {
            KeyMaterial::Pair(pair) => Ok(pair.public()),
            KeyMaterial::Public(key) => Ok(key),
            KeyMaterial::Hybrid(key) => Ok(key.public()?.point()),
            KeyMaterial::Psk(key) => Ok(key.pair()?.public()),
            KeyMaterial::PublicHybrid(key) => Ok(key.point()),
            KeyMaterial::Symmetric(_) => Err(Error::NoKeyPair),
        }
    }

    /// Returns the whole public key of the suite, as HPKE serializes it: an uncompressed point, or
    /// the 1,249 bytes of [`Suite::P256MlKem768`]. Expands a stored hybrid key at its first use.
    ///
    /// # Errors
    /// The errors of [`KeyVersion::public`].
    pub fn public_bytes(&self) -> Result<&[u8], Error> {
        match &self.material {
            KeyMaterial::Hybrid(key) => Ok(key.public()?.as_bytes()),
            KeyMaterial::PublicHybrid(key) => Ok(key.as_bytes()),
            _ => Ok(self.public()?.uncompressed()),
        }
    }

    /// Returns this version with sealing allowed only if `seals`. The version can always open.
    #[must_use]
    pub fn sealing(self, seals: bool) -> Self {
        Self { seals, ..self }
    }

    /// Returns this version with the given origin.
    #[must_use]
    pub fn of_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }
}

/// All key versions of one app.
#[derive(Debug)]
pub struct AppKeys {
    app: AppId,
    versions: Vec<Arc<KeyVersion>>,
    /// The suites whose envelopes open.
    reads: SuiteSet,
}

impl AppKeys {
    /// Collects the versions of an app, given in any order.
    ///
    /// # Errors
    /// [`Error::KeyIdTaken`] when two versions share an id.
    pub fn new(app: AppId, versions: Vec<KeyVersion>) -> Result<Self, Error> {
        let mut ids: Vec<KeyId> = versions.iter().map(|version| version.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::KeyIdTaken);
        }
        Ok(Self {
            app,
            versions: versions.into_iter().map(Arc::new).collect(),
            reads: SuiteSet::ALL,
        })
    }

    /// Returns these keys with opening limited to the suites `reads`. Evervault values open only
    /// under key pairs of these suites, because the public key of such a pair seals in both
    /// formats.
    #[must_use]
    pub fn reading(self, reads: SuiteSet) -> Self {
        Self { reads, ..self }
    }

    /// Returns the app.
    #[must_use]
    pub fn app(&self) -> &AppId {
        &self.app
    }

    /// Returns every version, including disabled versions.
    #[must_use]
    pub fn versions(&self) -> &[Arc<KeyVersion>] {
        &self.versions
    }

    /// Returns true if both have the same versions in the same states and open the same suites.
    /// Precomputed material of one is then valid for the other.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.app == other.app
            && self.reads == other.reads
            && self.versions.len() == other.versions.len()
            && self
                .versions
                .iter()
                .zip(&other.versions)
                .all(|(one, other)| {
                    (one.id, one.number, one.state, one.seals, one.origin)
                        == (
                            other.id,
                            other.number,
                            other.state,
                            other.seals,
                            other.origin,
                        )
                })
    }

    /// Returns the version that engines seal under a suite: the newest active version that is
    /// allowed to seal. A curve means the suite of its key pairs.
    #[must_use]
    pub fn newest(&self, suite: impl Into<Suite>) -> Option<&Arc<KeyVersion>> {
        self.newest_of(suite.into(), Origin::Inside)
    }

    /// Returns the version under a suite whose public key is published. `None` if the app does not
    /// open the suite, because sealing to it would lose the data.
    #[must_use]
    pub fn newest_outside(&self, suite: Suite) -> Option<&Arc<KeyVersion>> {
        self.newest_of(suite, Origin::Outside)
            .filter(|_| self.reads.contains(suite))
    }

    fn newest_of(&self, suite: Suite, origin: Origin) -> Option<&Arc<KeyVersion>> {
        self.versions
            .iter()
            .filter(|version| version.state == KeyState::Active && version.seals)
            .filter(|version| version.origin == origin && version.suite() == suite)
            .max_by_key(|version| version.number)
    }

    /// Returns true if values of this suite may be opened.
    pub(crate) fn reads(&self, suite: Suite) -> bool {
        self.reads.contains(suite)
    }

    /// Returns the version that opens envelopes with this suite and id, if it is active and the
    /// suite may be opened.
    #[must_use]
    pub fn reader(&self, suite: impl Into<Suite>, id: KeyId) -> Option<&Arc<KeyVersion>> {
        let suite = suite.into();
        self.versions
            .iter()
            .find(|version: &&Arc<KeyVersion>| {
                version.id == id && version.state == KeyState::Active && version.suite() == suite
            })
            .filter(|_| self.reads.contains(suite))
    }
}
