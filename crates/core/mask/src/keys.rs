//! Keys: an app's masking secret and the keys derived from it per domain. `proto/mask.md` gives the
//! exact bytes.

use std::fmt;

use aes::Aes256Enc;
use fpe::ff1::FF1;
use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

const DOMAIN_LABEL: &[u8] = b"sealwire/mask/domain/1";
const FF1_LABEL: &[u8] = b"sealwire/mask/ff1/1";

/// An app's masking secret: 32 bytes, derived from the app's token secret and wiped on drop. Not
/// `Clone`; `Debug` shows none of its bytes.
pub struct MaskSecret(Zeroizing<[u8; 32]>);

impl MaskSecret {
    /// Wraps derived bytes.
    #[must_use]
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        Self(bytes)
    }

    /// Derives the sub-key of a domain for one purpose.
    fn sub_key(&self, label: &[u8], domain: &str) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0; 32]);
        let info = [label, &length(domain.as_bytes()), domain.as_bytes()];
        Hkdf::<Sha256>::new(None, &self.0[..])
            .expand_multi_info(&info, &mut key[..])
            .expect("one hash long");
        key
    }

    /// Returns the keyed hash of a domain.
    pub(crate) fn keyed(&self, domain: &str) -> KeyedHmac {
        let key = self.sub_key(DOMAIN_LABEL, domain);
        KeyedHmac(Box::new(
            Hmac::new_from_slice(&key[..]).expect("HMAC takes a key of any length"),
        ))
    }

    /// Returns the format-preserving cipher of a domain over numerals below `radix`, which is 2 to
    /// 65536.
    pub(crate) fn ff1(&self, domain: &str, radix: u32) -> FF1<Aes256Enc> {
        FF1::new(&self.sub_key(FF1_LABEL, domain)[..], radix)
            .expect("a radix that the standard knows")
    }
}

impl fmt::Debug for MaskSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskSecret(32 bytes)")
    }
}

/// HMAC-SHA-256 under a domain's sub-key. The state is boxed, so that a move leaves no copy behind.
/// The state and its clones are wiped on drop.
pub(crate) struct KeyedHmac(Box<Hmac<Sha256>>);

impl KeyedHmac {
    /// Hashes a value for one purpose. Each part is prefixed with its length, so that different
    /// inputs never give the same bytes.
    pub(crate) fn hash(&self, purpose: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = Hmac::clone(&self.0);
        for part in [purpose].iter().chain(parts) {
            mac.update(&length(part));
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for KeyedHmac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyed")
    }
}

fn length(bytes: &[u8]) -> [u8; 8] {
    (bytes.len() as u64).to_be_bytes()
}
