//! Key sets of issuers (RFC 7517), and the algorithms of signatures.

use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters,
    RsaPublicKeyComponents, VerificationAlgorithm,
};
use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;
use serde_json::Value;

use super::strict_json::StrictObject;

/// Most keys of a set that are read.
const KEYS_MAX: usize = 100;
/// Longest key id, in bytes.
const KID_BYTES_MAX: usize = 256;
/// Shortest and longest modulus of RSA, in bits. The longer a modulus, the more a forged token costs.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=4_096;
/// Members of private keys. A key set is public.
const PRIVATE_MEMBERS: [&str; 7] = ["d", "p", "q", "dp", "dq", "qi", "oth"];

/// An algorithm of signatures. Algorithms with a shared secret (`HS256` and the like) do not exist
/// here: every holder of such a secret could issue tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// ECDSA with P-384 and SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
    /// RSA PKCS #1 v1.5 with SHA-256.
    Rs256,
    /// RSA PKCS #1 v1.5 with SHA-384.
    Rs384,
    /// RSA PKCS #1 v1.5 with SHA-512.
    Rs512,
    /// RSA-PSS with SHA-256.
    Ps256,
    /// RSA-PSS with SHA-384.
    Ps384,
    /// RSA-PSS with SHA-512.
    Ps512,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 9] = [
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
    ];

    /// Returns the name, as headers of tokens contain it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
        }
    }

    /// Returns the algorithm with exactly this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
    }

    /// Returns the parameters of an RSA algorithm.
    const fn rsa(self) -> Option<&'static RsaParameters> {
        match self {
            Self::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Some(&RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Some(&RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Some(&RSA_PSS_2048_8192_SHA512),
            Self::Es256 | Self::Es384 | Self::EdDsa => None,
        }
    }
}

/// The reason why a text is not a key set. The texts quote nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    /// Not the JSON of a key set.
    #[error(
        "is not a JSON Web Key Set: an object with the member keys, a list of objects in which no member occurs twice"
    )]
    Malformed,
    /// Too many keys.
    #[error("has more than {KEYS_MAX} keys")]
    TooMany,
    /// Two keys have the same id, so an id does not name a key.
    #[error("has two keys for signatures with the same kid; each needs its own")]
    DuplicateKid,
    /// A key has its private part.
    #[error(
        "contains a private key. Whoever could read it can issue tokens: replace that key at the issuer, and publish only its public part"
    )]
    PrivateKey,
}

/// The reason why a key of a set is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusable {
    /// For encryption, of another kind, malformed, or weak.
    Key,
    /// The whole set is not to be trusted.
    Set(JwksError),
}

/// The public key of an issuer, ready for each of its algorithms.
struct IssuerKey {
    kid: Option<String>,
    ready: Vec<(Algorithm, ParsedPublicKey)>,
}

/// The keys of an issuer that can verify tokens.
pub struct KeySet {
    keys: Vec<IssuerKey>,
    /// Number of keys in the text that are not used.
    skipped: usize,
}

/// The reason why a key set has no key for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoKey {
    UnknownKid,
    WrongAlgorithm,
    NoKid { fitting: usize },
}

#[derive(Deserialize)]
struct KeySetText {
    keys: Vec<StrictObject>,
}

impl KeySet {
    /// Reads a key set. Skips keys that are not for signatures, of an unknown kind, malformed, or of
    /// a size that is not accepted: RSA has 2,048 to 4,096 bits.
    ///
    /// # Errors
    ///
    /// [`JwksError`]. No key of such a set is used.
    pub fn parse(text: &[u8]) -> Result<Self, JwksError> {
        let KeySetText { keys: texts } =
            serde_json::from_slice(text).map_err(|_| JwksError::Malformed)?;
        if texts.len() > KEYS_MAX {
            return Err(JwksError::TooMany);
        }
        let mut keys: Vec<IssuerKey> = Vec::new();
        let mut skipped = 0;
        for text in &texts {
            match IssuerKey::parse(text) {
                Ok(key) if key.kid.is_some() && keys.iter().any(|other| other.kid == key.kid) => {
                    return Err(JwksError::DuplicateKid);
                }
                Ok(key) => keys.push(key),
                Err(Unusable::Key) => skipped += 1,
                Err(Unusable::Set(error)) => return Err(error),
            }
        }
        Ok(Self { keys, skipped })
    }

    /// Returns the number of keys that can verify tokens, and of those that are not used.
    pub fn counts(&self) -> (usize, usize) {
        (self.keys.len(), self.skipped)
    }

    /// Finds the key of a token: the key with its `kid`, or without one the only key that fits.
    pub(super) fn find(
        &self,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<&ParsedPublicKey, NoKey> {
        if let Some(kid) = kid {
            let key = self.keys.iter().find(|key| key.kid.as_deref() == Some(kid));
            return key
                .ok_or(NoKey::UnknownKid)?
                .for_algorithm(algorithm)
                .ok_or(NoKey::WrongAlgorithm);
        }
        let fitting: Vec<_> = self
            .keys
            .iter()
            .filter_map(|key| key.for_algorithm(algorithm))
            .collect();
        match fitting[..] {
            [key] => Ok(key),
            _ => Err(NoKey::NoKid {
                fitting: fitting.len(),
            }),
        }
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySet({} keys)", self.keys.len())
    }
}

impl IssuerKey {
    fn parse(StrictObject(members): &StrictObject) -> Result<Self, Unusable> {
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        let is_private = text("kty") != Some("oct")
            && PRIVATE_MEMBERS
                .iter()
                .any(|name| members.contains_key(*name));
        if is_private {
            return Err(Unusable::Set(JwksError::PrivateKey));
        }
        check_use(members.get("use"), members.get("key_ops"))?;
        let kid = match members.get("kid") {
            None => None,
            Some(Value::String(kid)) if (1..=KID_BYTES_MAX).contains(&kid.len()) => {
                Some(kid.clone())
            }
            Some(_) => return Err(Unusable::Key),
        };

        let mut ready = match (text("kty"), text("crv")) {
            (Some("EC"), Some("P-256")) => {
                let point = point(text("x"), text("y"), 32)?;
                vec![ready_key(
                    Algorithm::Es256,
                    &ECDSA_P256_SHA256_FIXED,
                    &point,
                )?]
            }
            (Some("EC"), Some("P-384")) => {
                let point = point(text("x"), text("y"), 48)?;
                vec![ready_key(
                    Algorithm::Es384,
                    &ECDSA_P384_SHA384_FIXED,
                    &point,
                )?]
            }
            (Some("OKP"), Some("Ed25519")) => {
                vec![ready_key(Algorithm::EdDsa, &ED25519, &bytes(text("x"))?)?]
            }
            (Some("RSA"), _) => rsa_keys(&bytes(text("n"))?, &bytes(text("e"))?)?,
            _ => return Err(Unusable::Key),
        };
        if let Some(algorithm) = members.get("alg") {
            // A key that states its algorithm is for that algorithm alone.
            ready.retain(|(ready, _)| algorithm.as_str() == Some(ready.name()));
        }
        if ready.is_empty() {
            return Err(Unusable::Key);
        }
        Ok(Self { kid, ready })
    }

    fn for_algorithm(&self, algorithm: Algorithm) -> Option<&ParsedPublicKey> {
        let ready = self.ready.iter().find(|(ready, _)| *ready == algorithm);
        ready.map(|(_, key)| key)
    }
}

/// Fails for a key that is not for signatures.
fn check_use(usage: Option<&Value>, operations: Option<&Value>) -> Result<(), Unusable> {
    if usage.is_some_and(|usage| usage != "sig") {
        return Err(Unusable::Key);
    }
    match operations {
        None => Ok(()),
        Some(Value::Array(operations)) if operations.iter().any(|name| name == "verify") => Ok(()),
        Some(_) => Err(Unusable::Key),
    }
}

fn bytes(text: Option<&str>) -> Result<Vec<u8>, Unusable> {
    text.and_then(|text| BASE64URL_NOPAD.decode(text.as_bytes()).ok())
        .ok_or(Unusable::Key)
}

/// Returns an uncompressed point (SEC 1, section 2.3.3).
fn point(x: Option<&str>, y: Option<&str>, len: usize) -> Result<Vec<u8>, Unusable> {
    let x = bytes(x)?;
    let y = bytes(y)?;
    if x.len() != len || y.len() != len {
        return Err(Unusable::Key);
    }
    Ok([&[4][..], &x, &y].concat())
}

fn ready_key(
    algorithm: Algorithm,
    verification: &'static dyn VerificationAlgorithm,
    key: &[u8],
) -> Result<(Algorithm, ParsedPublicKey), Unusable> {
    let key = ParsedPublicKey::new(verification, key).map_err(|_| Unusable::Key)?;
    Ok((algorithm, key))
}

fn rsa_keys(n: &[u8], e: &[u8]) -> Result<Vec<(Algorithm, ParsedPublicKey)>, Unusable> {
    let first = *n.first().ok_or(Unusable::Key)?;
    let bits = n.len() * 8 - first.leading_zeros() as usize;
    if first == 0 || !RSA_BITS.contains(&bits) {
        return Err(Unusable::Key);
    }
    let components = RsaPublicKeyComponents { n, e };
    let mut ready = Vec::new();
    for algorithm in Algorithm::ALL {
        if let Some(parameters) = algorithm.rsa() {
            let key = components.to_parsed_public_key(parameters);
            ready.push((algorithm, key.map_err(|_| Unusable::Key)?));
        }
    }
    Ok(ready)
}
