//! XAES-256-GCM (C2SP.org/XAES-256-GCM) under a symmetric key of an app.
//!
//! An app's key is derived from a stored random secret and the app's name. A header has 20 random
//! bytes. The first 12 select the derived AES-256-GCM key of [section "Algorithm"], the other 8 and
//! the sequence number of a field are its nonce. All fields of a header therefore share one derived
//! key, and each of them is a ciphertext of XAES-256-GCM under the 24 bytes.
//!
//! [section "Algorithm"]: https://c2sp.org/XAES-256-GCM

use std::fmt;

use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::aead::{KEY_BYTES, NONCE_BYTES};
use crate::context::Context;
use crate::{AppId, Error, KeyId};

/// Random bytes of a header.
pub(crate) const RANDOM_BYTES: usize = 20;
/// Random bytes that select the derived key. The others are the start of each nonce.
const SELECTOR_BYTES: usize = 12;
/// Bytes of [`XaesKey::check`].
pub(crate) const CHECK_BYTES: usize = 16;

const BLOCK_BYTES: usize = 16;
/// The reduction polynomial of doubling in GF(2^128), `R_128` in NIST SP 800-38B, section 5.3.
const REDUCTION: u8 = 0x87;

/// HKDF labels; the app's name follows each.
const KEY_LABEL: &[u8] = b"sealwire/xaes/1";
const ID_LABEL: &[u8] = b"sealwire/xaes-id/1";
const CHECK_LABEL: &[u8] = b"sealwire/xaes-check/1";

/// The 32 random bytes from which an app's symmetric key is derived. Wiped on drop; `Debug` shows
/// none of them.
pub struct XaesSecret(Zeroizing<[u8; 32]>);

impl XaesSecret {
    /// Generates a secret from the system's random source.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        aws_lc_rs::rand::fill(&mut bytes[..]).map_err(|_| Error::Library)?;
        Ok(Self(bytes))
    }

    /// Takes ownership of bytes from unwrapping a stored secret.
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

impl fmt::Debug for XaesSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("XaesSecret(32 bytes)")
    }
}

/// A symmetric key of an app. Wiped on drop; `Debug` shows only its id.
pub struct XaesKey {
    /// AES-256 under the key.
    cipher: Box<EncryptingKey>,
    /// The subkey `K1` of CMAC under the key (NIST SP 800-38B, section 6.1).
    subkey: Zeroizing<[u8; BLOCK_BYTES]>,
    id: KeyId,
    check: [u8; CHECK_BYTES],
}

fn expand(prk: &Hkdf<Sha256>, label: &[u8], app: &AppId, out: &mut [u8]) -> Result<(), Error> {
    prk.expand_multi_info(&[label, app.as_str().as_bytes()], out)
        .map_err(|_| Error::Library)
}

impl XaesKey {
    /// Most headers that one process makes under a key. Two of `q` headers have equal random bytes
    /// with a probability of `q^2 / 2^161`: 2^-65 here, and 2^-45 if the key was in a thousand
    /// processes.
    pub const HEADERS_MAX: u64 = 1 << 48;

    /// Derives an app's key from its secret.
    ///
    /// # Errors
    /// [`Error::Library`] when the crypto library fails.
    pub fn derive(app: &AppId, secret: &XaesSecret) -> Result<Self, Error> {
        let prk = Hkdf::<Sha256>::from_prk(secret.expose()).map_err(|_| Error::Library)?;
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let mut id = [0; 5];
        let mut check = [0; CHECK_BYTES];
        expand(&prk, KEY_LABEL, app, &mut key[..])?;
        expand(&prk, ID_LABEL, app, &mut id)?;
        expand(&prk, CHECK_LABEL, app, &mut check)?;
        Self::of_key(&key, KeyId::from_bytes(id), check)
    }

    pub(crate) fn of_key(
        key: &[u8; KEY_BYTES],
        id: KeyId,
        check: [u8; CHECK_BYTES],
    ) -> Result<Self, Error> {
        let key = UnboundCipherKey::new(&AES_256, key).map_err(|_| Error::Library)?;
        let cipher = Box::new(EncryptingKey::ecb(key).map_err(|_| Error::Library)?);
        let mut subkey = Zeroizing::new([0; BLOCK_BYTES]);
        cipher
            .less_safe_encrypt(&mut subkey[..], EncryptionContext::None)
            .map_err(|_| Error::Library)?;
        double(&mut subkey);
        Ok(Self {
            cipher,
            subkey,
            id,
            check,
        })
    }

    /// Returns the id that names this key in envelopes: 5 bytes derived from the secret and the
    /// app's name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Returns 16 bytes that identify the secret and the app. They are public, and longer than the
    /// id, so that a stored secret can be compared with its stored check value.
    #[must_use]
    pub fn check(&self) -> &[u8; CHECK_BYTES] {
        &self.check
    }

    /// Derives the AES-256-GCM key of a header and the start of its nonces, to seal.
    pub(crate) fn sealing_context(&self, random: &[u8; RANDOM_BYTES]) -> Result<Context, Error> {
        let mut key = Box::new(Zeroizing::new([0; KEY_BYTES]));
        let nonce = self.derive_into(random, &mut key)?;
        Context::new(key, nonce)
    }

    /// Derives the AES-256-GCM key of a header and the start of its nonces, to open.
    pub(crate) fn opening_context(&self, random: &[u8; RANDOM_BYTES]) -> Result<Context, Error> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let nonce = self.derive_into(random, &mut key)?;
        Context::opening(&key, nonce)
    }

    /// Derives `Kx` into the zeros `key`: CMAC of two blocks, which differ in their counter.
    /// Returns the base nonce.
    fn derive_into(
        &self,
        random: &[u8; RANDOM_BYTES],
        key: &mut [u8; KEY_BYTES],
    ) -> Result<Zeroizing<[u8; NONCE_BYTES]>, Error> {
        let (selector, prefix) = random.split_at(SELECTOR_BYTES);
        for (block, counter) in key.chunks_exact_mut(BLOCK_BYTES).zip(1..) {
            block[1] = counter;
            block[2] = b'X';
            block[BLOCK_BYTES - SELECTOR_BYTES..].copy_from_slice(selector);
            block
                .iter_mut()
                .zip(self.subkey.iter())
                .for_each(|(byte, key)| *byte ^= key);
        }
        self.cipher
            .less_safe_encrypt(key, EncryptionContext::None)
            .map_err(|_| Error::Library)?;
        let mut nonce = Zeroizing::new([0; NONCE_BYTES]);
        nonce[..prefix.len()].copy_from_slice(prefix);
        Ok(nonce)
    }
}

impl fmt::Debug for XaesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XaesKey({})", self.id)
    }
}

/// Doubles an element of GF(2^128), in constant time.
fn double(block: &mut [u8; BLOCK_BYTES]) {
    let carries = u128::from_be_bytes(*block) >> 127 == 1;
    let mask = 0u8.wrapping_sub(u8::from(carries));
    let mut doubled = (u128::from_be_bytes(*block) << 1).to_be_bytes();
    doubled[BLOCK_BYTES - 1] ^= mask & REDUCTION;
    block.copy_from_slice(&doubled);
}
