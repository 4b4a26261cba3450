//! Keys of HPKE in PSK mode: a key pair and a pre-shared key, both derived from one seed.
//!
//! A public key is enough to seal in base mode. In PSK mode the sealer also needs the pre-shared
//! key, which no engine publishes. So an envelope that opens was sealed by an engine. An attacker
//! who computes the private key from the public key still lacks the seed, and so the pre-shared
//! key.

use std::fmt;
use std::sync::OnceLock;

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::hpke::{Psk, derive_key_pair};
use crate::{Curve, Error, KeyId, KeyPair, Suite};

/// HKDF label of the input from which the key pair is derived; the suite byte follows.
const KEY_LABEL: &[u8] = b"sealwire/psk-key/1";
/// HKDF label of the pre-shared key; the suite byte follows.
const PSK_LABEL: &[u8] = b"sealwire/psk/1";
/// Prefix of the `psk_id`; the key id follows.
const PSK_ID_LABEL: &[u8] = b"sealwire/psk-id/1";

/// The 32 random bytes from which a key is derived. Wiped on drop; `Debug` shows none of them.
pub struct PskSeed(Zeroizing<[u8; 32]>);

impl PskSeed {
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

    /// HKDF-Expand with the seed as pseudorandom key. The label and the suite byte separate all
    /// outputs.
    fn expand(&self, label: &[u8], suite: Suite, out: &mut [u8; 32]) -> Result<(), Error> {
        let prk = Hkdf::<Sha256>::from_prk(&self.0[..]).map_err(|_| Error::Library)?;
        prk.expand_multi_info(&[label, &[suite.byte()]], out)
            .map_err(|_| Error::Library)
    }
}

impl fmt::Debug for PskSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PskSeed(32 bytes)")
    }
}

/// A key of HPKE in PSK mode. The key pair is derived at its first use, because most keys of an
/// engine are idle. Wiped on drop; `Debug` shows only its id.
pub struct PskKey {
    curve: Curve,
    seed: PskSeed,
    id: KeyId,
    pair: OnceLock<Box<KeyPair>>,
}

impl PskKey {
    /// Derives the key of a seed.
    ///
    /// # Errors
    /// [`Error::Library`] when the crypto library fails.
    pub fn from_seed(curve: Curve, seed: PskSeed) -> Result<Self, Error> {
        let pair = Box::new(derive_pair(curve, &seed)?);
        let id = KeyId::of_suite(Suite::psk_of(curve), pair.public());
        Ok(Self {
            curve,
            seed,
            id,
            pair: OnceLock::from(pair),
        })
    }

    /// Takes a stored seed whose key has this id. The key pair is derived, and the id checked, at
    /// the first use.
    #[must_use]
    pub fn stored(curve: Curve, seed: PskSeed, id: KeyId) -> Self {
        Self {
            curve,
            seed,
            id,
            pair: OnceLock::new(),
        }
    }

    /// Returns the id that names this key in envelopes.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Returns the seed, for wrapping under the KEK.
    #[must_use]
    pub fn seed(&self) -> &PskSeed {
        &self.seed
    }

    pub(crate) fn suite(&self) -> Suite {
        Suite::psk_of(self.curve)
    }

    /// Returns the key pair.
    ///
    /// # Errors
    /// [`Error::Library`] when the crypto library fails; [`Error::InvalidPrivateKey`] if the key
    /// has another id.
    pub(crate) fn pair(&self) -> Result<&KeyPair, Error> {
        if let Some(pair) = self.pair.get() {
            return Ok(pair);
        }
        let pair = Box::new(derive_pair(self.curve, &self.seed)?);
        if KeyId::of_suite(self.suite(), pair.public()) != self.id {
            return Err(Error::InvalidPrivateKey);
        }
        Ok(self.pair.get_or_init(|| pair))
    }

    /// Derives the pre-shared key and its `psk_id`.
    pub(crate) fn psk(&self) -> Psk {
        let mut key = Box::new(Zeroizing::new([0; 32]));
        self.seed
            .expand(PSK_LABEL, self.suite(), &mut key)
            .expect("the seed and the output are of one hash");
        Psk {
            key,
            id: [PSK_ID_LABEL, self.id.as_bytes()].concat(),
        }
    }
}

/// Derives the key pair of a seed: RFC 9180, section 7.1.3, from a separate HKDF output.
fn derive_pair(curve: Curve, seed: &PskSeed) -> Result<KeyPair, Error> {
    let mut ikm = Zeroizing::new([0; 32]);
    seed.expand(KEY_LABEL, Suite::psk_of(curve), &mut ikm)?;
    derive_key_pair(curve, &ikm[..])
}

impl fmt::Debug for PskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PskKey({})", self.id)
    }
}
