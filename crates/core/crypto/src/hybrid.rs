//! The KEM MLKEM768-P256 (draft-ietf-hpke-pq, KEM id 0x0050): ML-KEM-768 (FIPS 203) and a
//! Diffie-Hellman on P-256.
//!
//! An attacker must break both to learn the shared secret. A stored key is a seed of 32 bytes. The
//! seed is expanded at its first use, because that takes as long as sealing a thousand fields and
//! most keys of an engine are idle.

use std::fmt;
use std::sync::OnceLock;

use aws_lc_rs::digest::{Context as Digest, SHA3_256};
use aws_lc_rs::kem::{Ciphertext, DecapsulationKey, EncapsulationKey, ML_KEM_768};
use ml_kem::array::Array;
use ml_kem::{DecapsulationKey768, EncapsulationKey768, KeyExport as _};
use sha2::{Digest as _, Sha256};
use shake::{ExtendableOutput as _, Shake256, Update as _, XofReader as _};
use zeroize::{Zeroize as _, Zeroizing};

use crate::key::{Ephemeral, SharedX};
use crate::{Curve, Error, KeyId, KeyPair, PublicKey, Suite};

/// Bytes of an ML-KEM-768 ciphertext.
const CIPHERTEXT_BYTES: usize = 1_088;
/// Bytes of an ML-KEM-768 encapsulation key.
const ENCAPSULATION_KEY_BYTES: usize = 1_184;
const POINT_BYTES: usize = 65;
/// Bytes of `enc`: the ciphertext, then the ephemeral point, uncompressed.
pub(crate) const ENC_BYTES: usize = CIPHERTEXT_BYTES + POINT_BYTES;
/// Bytes of a public key: the encapsulation key, then the point, uncompressed.
pub const HYBRID_PUBLIC_KEY_BYTES: usize = ENCAPSULATION_KEY_BYTES + POINT_BYTES;

/// The HPKE KEM id.
pub(crate) const KEM_ID: u16 = 0x0050;
const LABEL: &[u8] = b"MLKEM768-P256";

/// A shared secret of the KEM.
pub(crate) type SharedSecret = Zeroizing<[u8; 32]>;

/// The 32 random bytes from which a key is expanded. Wiped on drop; `Debug` shows none of them.
pub struct HybridSeed(Zeroizing<[u8; 32]>);

impl HybridSeed {
    /// Generates a seed from the system's random source.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        aws_lc_rs::rand::fill(&mut bytes[..]).map_err(|_| Error::Library)?;
        Ok(Self(bytes))
    }

    /// Takes ownership of bytes from unwrapping a stored seed.
    #[must_use]
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        Self(bytes)
    }

    /// Exposes the bytes, for wrapping under the KEK.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for HybridSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HybridSeed(32 bytes)")
    }
}

/// A key of the KEM. Wiped on drop; `Debug` shows only its id.
pub struct HybridKey {
    seed: HybridSeed,
    id: KeyId,
    expanded: OnceLock<Box<Expanded>>,
}

struct Expanded {
    decapsulation: DecapsulationKey,
    pair: KeyPair,
    public: HybridPublicKey,
}

/// A public key of the KEM, whose ML-KEM part and point were checked.
pub struct HybridPublicKey {
    /// The form of the draft.
    bytes: Box<[u8; HYBRID_PUBLIC_KEY_BYTES]>,
    encapsulation: EncapsulationKey,
    point: PublicKey,
    id: KeyId,
}

impl HybridPublicKey {
    /// Parses a public key in the form of the draft: the encapsulation key of ML-KEM-768, then the
    /// uncompressed point.
    ///
    /// # Errors
    /// [`Error::InvalidPublicKey`] for another length, a coefficient that is not reduced (FIPS 203,
    /// section 7.2), or a point that is not on P-256.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let bytes = <[u8; HYBRID_PUBLIC_KEY_BYTES]>::try_from(bytes)
            .map_err(|_| Error::InvalidPublicKey)?;
        let (encapsulation, point) = bytes.split_at(ENCAPSULATION_KEY_BYTES);
        // AWS-LC checks the coefficients no earlier than it encapsulates.
        let encapsulation = Array::try_from(encapsulation).map_err(|_| Error::InvalidPublicKey)?;
        EncapsulationKey768::new(&encapsulation).map_err(|_| Error::InvalidPublicKey)?;
        let point = PublicKey::from_sec1(Curve::P256, point)?;
        Self::new(Box::new(bytes), point)
    }

    /// Makes a public key of checked parts.
    fn new(bytes: Box<[u8; HYBRID_PUBLIC_KEY_BYTES]>, point: PublicKey) -> Result<Self, Error> {
        let encapsulation = EncapsulationKey::new(&ML_KEM_768, &bytes[..ENCAPSULATION_KEY_BYTES]);
        let label = Sha256::new()
            .chain_update(b"sealwire/key-id/1")
            .chain_update([Suite::P256MlKem768.byte()]);
        let digest = label.chain_update(&bytes[..]).finalize();
        let id = KeyId::from_bytes(*digest.first_chunk().expect("a digest has 32 bytes"));
        Ok(Self {
            bytes,
            encapsulation: encapsulation.map_err(|_| Error::Library)?,
            point,
            id,
        })
    }

    /// Returns the key in the form of the draft.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; HYBRID_PUBLIC_KEY_BYTES] {
        &self.bytes
    }

    /// Returns the id that names this key in envelopes.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Returns the part that is on P-256.
    pub(crate) fn point(&self) -> &PublicKey {
        &self.point
    }

    /// Completes an encapsulation whose ephemeral key has made `shared` with
    /// [`HybridPublicKey::point`]. Returns the shared secret and `enc`.
    pub(crate) fn encapsulate(
        &self,
        ephemeral: &Ephemeral,
        shared: &SharedX,
    ) -> Result<(SharedSecret, Box<[u8; ENC_BYTES]>), Error> {
        let (ciphertext, secret) = self
            .encapsulation
            .encapsulate()
            .map_err(|_| Error::Library)?;
        let mut enc = Box::new([0; ENC_BYTES]);
        enc[..CIPHERTEXT_BYTES].copy_from_slice(ciphertext.as_ref());
        enc[CIPHERTEXT_BYTES..].copy_from_slice(ephemeral.public());
        Ok((
            combine(secret.as_ref(), shared, ephemeral.public(), &self.point),
            enc,
        ))
    }
}

impl fmt::Debug for HybridPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HybridPublicKey({})", self.id)
    }
}

impl HybridKey {
    /// Expands a seed.
    ///
    /// # Errors
    /// [`Error::Library`] when the crypto library fails.
    pub fn from_seed(seed: HybridSeed) -> Result<Self, Error> {
        let expanded = Box::new(Expanded::new(&seed)?);
        let id = expanded.public.id();
        Ok(Self {
            seed,
            id,
            expanded: OnceLock::from(expanded),
        })
    }

    /// Takes a stored seed whose key has this id. At the first use, the seed is expanded and the id
    /// checked.
    #[must_use]
    pub fn stored(seed: HybridSeed, id: KeyId) -> Self {
        Self {
            seed,
            id,
            expanded: OnceLock::new(),
        }
    }

    /// Returns the id that names this key in envelopes.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Returns the seed, for wrapping under the KEK.
    #[must_use]
    pub fn seed(&self) -> &HybridSeed {
        &self.seed
    }

    /// Returns the public key. Expands the seed at the first use.
    ///
    /// # Errors
    /// [`Error::Library`] when the crypto library fails; [`Error::InvalidPrivateKey`] if the key
    /// has another id.
    pub fn public(&self) -> Result<&HybridPublicKey, Error> {
        Ok(&self.expanded()?.public)
    }

    /// Makes an encapsulation of given randomness, for test vectors only.
    #[cfg(test)]
    pub(crate) fn encapsulate_with(
        &self,
        ephemeral: &Ephemeral,
        randomness: &[u8; 32],
    ) -> Result<(SharedSecret, Box<[u8; ENC_BYTES]>), Error> {
        let key = self.expanded()?;
        let bytes = Array::try_from(&key.public.as_bytes()[..ENCAPSULATION_KEY_BYTES]).unwrap();
        let encapsulation = EncapsulationKey768::new(&bytes).unwrap();
        let (ciphertext, secret) = encapsulation.encapsulate_deterministic(&(*randomness).into());
        let shared = ephemeral.agree(key.pair.public())?;
        let mut enc = Box::new([0; ENC_BYTES]);
        enc[..CIPHERTEXT_BYTES].copy_from_slice(&ciphertext);
        enc[CIPHERTEXT_BYTES..].copy_from_slice(ephemeral.public());
        Ok((
            combine(&secret, &shared, ephemeral.public(), key.pair.public()),
            enc,
        ))
    }

    /// Returns the shared secret of an encapsulation. An altered ciphertext gives another secret
    /// (FIPS 203, implicit rejection), in the same time.
    ///
    /// # Errors
    /// [`Error::InvalidPublicKey`] if the ephemeral point is not on the curve; [`Error::Library`].
    pub(crate) fn decapsulate(&self, enc: &[u8; ENC_BYTES]) -> Result<SharedSecret, Error> {
        let key = self.expanded()?;
        let (ciphertext, point) = enc.split_at(CIPHERTEXT_BYTES);
        let ephemeral = PublicKey::from_sec1(Curve::P256, point)?;
        let shared = key.pair.agree(&ephemeral)?;
        let secret = key
            .decapsulation
            .decapsulate(Ciphertext::from(ciphertext))
            .map_err(|_| Error::Library)?;
        Ok(combine(
            secret.as_ref(),
            &shared,
            ephemeral.uncompressed(),
            key.pair.public(),
        ))
    }

    fn expanded(&self) -> Result<&Expanded, Error> {
        if let Some(expanded) = self.expanded.get() {
            return Ok(expanded);
        }
        let expanded = Expanded::new(&self.seed)?;
        if expanded.public.id() != self.id {
            return Err(Error::InvalidPrivateKey);
        }
        Ok(self.expanded.get_or_init(|| Box::new(expanded)))
    }
}

impl Expanded {
    /// The draft's `expandDecapsulationKey`: SHAKE256 gives the seed of ML-KEM, then scalars until
    /// one is below the order.
    fn new(seed: &HybridSeed) -> Result<Self, Error> {
        let mut shake = Shake256::default();
        shake.update(seed.expose());
        let mut source = shake.finalize_xof();
        let mut seed = ml_kem::Seed::default();
        source.read(&mut seed);
        let key = DecapsulationKey768::from_seed(seed);
        seed.zeroize();
        #[expect(
            deprecated,
            reason = "the form that AWS-LC takes; it never leaves this function"
        )]
        let mut bytes = ml_kem::ExpandedKeyEncoding::to_expanded_bytes(&key);
        let decapsulation = DecapsulationKey::new(&ML_KEM_768, &bytes);
        bytes.zeroize();
        let mut scalar = Zeroizing::new([0; 32]);
        let pair = loop {
            source.read(&mut scalar[..]);
            match KeyPair::from_scalar(Curve::P256, &scalar) {
                Err(Error::InvalidPrivateKey) => (),
                pair => break pair?,
            }
        };
        let mut public = Box::new([0; HYBRID_PUBLIC_KEY_BYTES]);
        public[..ENCAPSULATION_KEY_BYTES].copy_from_slice(&key.encapsulation_key().to_bytes());
        public[ENCAPSULATION_KEY_BYTES..].copy_from_slice(pair.public().uncompressed());
        let public = HybridPublicKey::new(public, pair.public().clone())?;
        Ok(Self {
            decapsulation: decapsulation.map_err(|_| Error::Library)?,
            pair,
            public,
        })
    }
}

/// The draft's combiner: SHA3-256 of both secrets, the ephemeral point, the recipient's point and
/// the label. The ciphertext of ML-KEM need not be bound, since ML-KEM binds it.
fn combine(
    secret: &[u8],
    shared: &SharedX,
    ephemeral: &[u8; POINT_BYTES],
    recipient: &PublicKey,
) -> SharedSecret {
    let mut digest = Digest::new(&SHA3_256);
    for part in [
        secret,
        &shared.0[..],
        ephemeral,
        recipient.uncompressed(),
        LABEL,
    ] {
        digest.update(part);
    }
    let mut combined = Zeroizing::new([0; 32]);
    combined.copy_from_slice(digest.finish().as_ref());
    combined
}

impl fmt::Debug for HybridKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HybridKey({})", self.id)
    }
}
