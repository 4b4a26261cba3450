//! The key-encryption key (KEK), which encrypts stored private keys and secrets.

use std::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::aead::{AeadKey, NONCE_BYTES};
use crate::{Error, HybridSeed, PskSeed, Scalar, SigningKey, StateKey, VerifyingKey, XaesSecret};

/// Bytes of a wrapped key: nonce 12, ciphertext 32, tag 16.
const WRAPPED_BYTES: usize = NONCE_BYTES + 32 + 16;

/// The HKDF label of the audit log's secret.
const AUDIT_LABEL: &[u8] = b"sealwire/kek/audit/1";

/// Prefix of the additional data of a token secret, so that a wrapped scalar never unwraps as a
/// token secret. No app name starts with `/`.
const SECRET_LABEL: &[u8] = b"/token-secret/1/";

/// The additional data of the signing key's seed, which begins with `/` like the label above, so
/// that no other key unwraps as a seed.
const SIGNING_LABEL: &[u8] = b"/signing-key/1/";

/// The additional data of the audit log's secret, which begins with `/` for the same reason.
const WRAPPED_AUDIT_LABEL: &[u8] = b"/audit-secret/1/";

/// Wraps private keys and secrets with AES-256-GCM under a random 96-bit nonce (NIST SP 800-38D,
/// section 8.2.2). A KEK may wrap 2^32 of them. The record's public fields are authenticated as
/// additional data, so a wrapped key cannot be moved to another app or version.
pub struct Kek {
    aead: AeadKey,
    audit: Zeroizing<[u8; 32]>,
    state: Option<StateKey>,
}

impl Kek {
    /// Creates a KEK from its 32 bytes.
    ///
    /// # Errors
    /// [`Error::Library`] when the library rejects the key.
    pub fn new(bytes: &Zeroizing<[u8; 32]>) -> Result<Self, Error> {
        let mut audit = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, &bytes[..])
            .expand(AUDIT_LABEL, &mut audit[..])
            .map_err(|_| Error::Library)?;
        Ok(Self {
            aead: AeadKey::new(bytes)?,
            audit,
            state: None,
        })
    }

    /// Creates the KEK of a root key, whose audit secret is not derived from it.
    pub(crate) fn of_root(
        bytes: &Zeroizing<[u8; 32]>,
        audit: Zeroizing<[u8; 32]>,
        state: StateKey,
    ) -> Result<Self, Error> {
        Ok(Self {
            aead: AeadKey::new(bytes)?,
            audit,
            state: Some(state),
        })
    }

    /// Returns the key that authenticates the control state. Only the KEK of a root key has one.
    #[must_use]
    pub fn state_key(&self) -> Option<&StateKey> {
        self.state.as_ref()
    }

    /// Returns the secret of the audit log. The secret of a KEK from [`Kek::new`] is derived from
    /// it by HKDF-SHA-256 under its own label. A KEK of a root key carries a secret that outlives
    /// the root key. The KEK cannot be computed from either secret.
    #[must_use]
    pub fn audit_secret(&self) -> &Zeroizing<[u8; 32]> {
        &self.audit
    }

    /// Parses a KEK from 64 hexadecimal digits, ignoring white space around them.
    ///
    /// # Errors
    /// [`Error::InvalidKek`] for anything else; the text is never repeated in the error.
    pub fn from_hex(text: &str) -> Result<Self, Error> {
        Self::new(&hex(text.trim().as_bytes()).ok_or(Error::InvalidKek)?)
    }

    /// Generates a fresh key as 64 hexadecimal digits, wiped on drop.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn generate_hex() -> Result<Zeroizing<String>, Error> {
        let mut bytes = Zeroizing::new([0u8; 32]);
        aws_lc_rs::rand::fill(&mut bytes[..]).map_err(|_| Error::Library)?;
        let mut text = Zeroizing::new(String::with_capacity(64));
        for byte in bytes.iter() {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(nibble), 16).expect("a nibble is below 16"));
            }
        }
        Ok(text)
    }

    /// Wraps a scalar. Unwrapping requires the same `bound`.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn wrap(&self, scalar: &Scalar, bound: &[u8]) -> Result<Vec<u8>, Error> {
        self.wrap_bytes(scalar.expose(), bound)
    }

    /// Unwraps a scalar that [`Kek::wrap`] wrapped.
    ///
    /// # Errors
    /// [`Error::Unwrap`] when the KEK, `bound` or any byte differs.
    pub fn unwrap(&self, wrapped: &[u8], bound: &[u8]) -> Result<Scalar, Error> {
        self.unwrap_bytes(wrapped, bound).map(Scalar::new)
    }

    /// Wraps the secret of a symmetric key. Unwrapping requires the same `bound`, which must name
    /// the suite, so that the result never unwraps as a scalar.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn wrap_xaes(&self, secret: &XaesSecret, bound: &[u8]) -> Result<Vec<u8>, Error> {
        self.wrap_bytes(secret.expose(), bound)
    }

    /// Unwraps a secret that [`Kek::wrap_xaes`] wrapped.
    ///
    /// # Errors
    /// [`Error::Unwrap`] when the KEK, `bound` or any byte differs.
    pub fn unwrap_xaes(&self, wrapped: &[u8], bound: &[u8]) -> Result<XaesSecret, Error> {
        self.unwrap_bytes(wrapped, bound).map(XaesSecret::new)
    }

    /// Wraps a token secret. Unwrapping requires the same `bound`. The result never unwraps as a
    /// scalar.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn wrap_secret(&self, secret: &[u8; 32], bound: &[u8]) -> Result<Vec<u8>, Error> {
        self.wrap_bytes(secret, &[SECRET_LABEL, bound].concat())
    }

    /// Unwraps a token secret that [`Kek::wrap_secret`] wrapped.
    ///
    /// # Errors
    /// [`Error::Unwrap`] when the KEK, `bound` or any byte differs.
    pub fn unwrap_secret(
        &self,
        wrapped: &[u8],
        bound: &[u8],
    ) -> Result<Zeroizing<[u8; 32]>, Error> {
        self.unwrap_bytes(wrapped, &[SECRET_LABEL, bound].concat())
    }

    /// Wraps the seed of a signing key. The result unwraps as nothing else.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn wrap_signing_key(&self, key: &SigningKey) -> Result<Vec<u8>, Error> {
        self.wrap_bytes(
            key.seed(),
            &[SIGNING_LABEL, key.verifying_key().as_bytes()].concat(),
        )
    }

    /// Unwraps a signing key that [`Kek::wrap_signing_key`] wrapped.
    ///
    /// # Errors
    /// [`Error::Unwrap`] when the KEK, `public` or any byte differs.
    pub fn unwrap_signing_key(
        &self,
        wrapped: &[u8],
        public: &VerifyingKey,
    ) -> Result<SigningKey, Error> {
        let seed = self.unwrap_bytes(wrapped, &[SIGNING_LABEL, public.as_bytes()].concat())?;
        SigningKey::from_seed(seed)
    }

    /// Wraps the audit log's secret that this KEK carries. The result unwraps as nothing else, and
    /// only with the same `bound`.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn wrap_audit_secret(&self, bound: &[u8]) -> Result<Vec<u8>, Error> {
        self.wrap_bytes(&self.audit, &[WRAPPED_AUDIT_LABEL, bound].concat())
    }

    /// Unwraps a secret that [`Kek::wrap_audit_secret`] wrapped.
    ///
    /// # Errors
    /// [`Error::Unwrap`] when the KEK, `bound` or any byte differs.
    pub fn unwrap_audit_secret(
        &self,
        wrapped: &[u8],
        bound: &[u8],
    ) -> Result<Zeroizing<[u8; 32]>, Error> {
        self.unwrap_bytes(wrapped, &[WRAPPED_AUDIT_LABEL, bound].concat())
    }

    /// Wraps the seed of a hybrid key. Unwrapping requires the same `bound`, which names the owner
    /// of the key.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn wrap_hybrid(&self, seed: &HybridSeed, bound: &[u8]) -> Result<Vec<u8>, Error> {
        self.wrap_bytes(seed.expose(), bound)
    }

    /// Unwraps a seed that [`Kek::wrap_hybrid`] wrapped.
    ///
    /// # Errors
    /// [`Error::Unwrap`] when the KEK, `bound` or any byte differs.
    pub fn unwrap_hybrid(&self, wrapped: &[u8], bound: &[u8]) -> Result<HybridSeed, Error> {
        self.unwrap_bytes(wrapped, bound).map(HybridSeed::new)
    }

    /// Wraps the seed of a key with a pre-shared key. Unwrapping requires the same `bound`, which
    /// must name the suite, so that the result never unwraps as another key.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn wrap_psk(&self, seed: &PskSeed, bound: &[u8]) -> Result<Vec<u8>, Error> {
        self.wrap_bytes(seed.expose(), bound)
    }

    /// Unwraps a seed that [`Kek::wrap_psk`] wrapped.
    ///
    /// # Errors
    /// [`Error::Unwrap`] when the KEK, `bound` or any byte differs.
    pub fn unwrap_psk(&self, wrapped: &[u8], bound: &[u8]) -> Result<PskSeed, Error> {
        self.unwrap_bytes(wrapped, bound).map(PskSeed::new)
    }

    fn wrap_bytes(&self, bytes: &[u8; 32], bound: &[u8]) -> Result<Vec<u8>, Error> {
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| Error::Library)?;
        // Allocates the full capacity at once: growing would leave an unwiped copy of the key.
        let mut wrapped = Vec::with_capacity(WRAPPED_BYTES);
        wrapped.extend_from_slice(&nonce);
        wrapped.extend_from_slice(bytes);
        self.aead.seal(nonce, bound, &mut wrapped, NONCE_BYTES)?;
        Ok(wrapped)
    }

    fn unwrap_bytes(&self, wrapped: &[u8], bound: &[u8]) -> Result<Zeroizing<[u8; 32]>, Error> {
        let wrapped: &[u8; WRAPPED_BYTES] = wrapped.try_into().map_err(|_| Error::Unwrap)?;
        let (nonce, sealed) = wrapped
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or(Error::Unwrap)?;
        let mut data = Zeroizing::new(sealed.to_vec());
        let plain = self
            .aead
            .open(*nonce, bound, &mut data)
            .map_err(|_| Error::Unwrap)?;
        let mut bytes = Zeroizing::new([0; 32]);
        bytes.copy_from_slice(plain);
        Ok(bytes)
    }
}

/// Returns the value of a hexadecimal digit, of either case.
pub(crate) fn nibble(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|nibble| u8::try_from(nibble).ok())
}

/// Decodes 64 hexadecimal digits to 32 bytes.
pub(crate) fn hex(digits: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let digits: &[u8; 64] = digits.try_into().ok()?;
    let mut bytes = Zeroizing::new([0; 32]);
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

impl fmt::Debug for Kek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kek")
    }
}
