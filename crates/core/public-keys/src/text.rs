//! The signed text of an app's public keys.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_crypto::{
    AppId, AppKeys, HybridPublicKey, KeyId, KeyMaterial, KeyState, KeyVersion, PublicKey,
    SIGNATURE_BYTES, SigningKey, Suite, VerifyingKey,
};
use serde::{Deserialize, Serialize};

use crate::error::KeysError;

/// Validity of a text after it was signed.
pub const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Maximum length of a text in bytes. A text with a key of each suite has about 2,300 bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// Label of the signatures.
const LABEL: &str = "sealwire/keys/1";
const VERSION: u32 = 1;

/// HKDF-SHA256, the HPKE KDF of every published suite (RFC 9180, section 7).
const KDF: u16 = 0x0001;
/// AES-256-GCM, the HPKE AEAD of every published suite.
const AEAD: u16 = 0x0002;

/// A text with its signature, as `apps.public_keys` returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The text, as JSON. The signature covers every byte.
    pub keys: String,
    /// Ed25519 signature over the text.
    pub signature: [u8; SIGNATURE_BYTES],
    /// The key that signed.
    pub signer: VerifyingKey,
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    app: String,
    generation: u64,
    issued_unix_s: u64,
    expires_unix_s: u64,
    keys: Vec<KeyText>,
}

#[derive(Serialize, Deserialize)]
struct KeyText {
    suite: String,
    key_id: String,
    /// Base64.
    public_key: String,
    kem: u16,
    kdf: u16,
    aead: u16,
    /// The HPKE `info`, which is ASCII.
    info: String,
}

/// Returns the signed text of an app's newest published key of each suite, or `None` if the app has
/// none. Expands hybrid keys that were not used before.
#[must_use]
pub fn publish(
    keys: &AppKeys,
    signer: &SigningKey,
    generation: u64,
    now_unix_s: u64,
) -> Option<Signed> {
    let app = keys.app().as_str();
    let newest = Suite::PUBLISHED
        .into_iter()
        .filter_map(|suite| keys.newest_outside(suite));
    let keys: Vec<_> = newest
        .filter_map(|version| KeyText::of(app, version))
        .collect();
    if keys.is_empty() {
        return None;
    }
    let text = Text {
        version: VERSION,
        app: app.into(),
        generation,
        issued_unix_s: now_unix_s,
        expires_unix_s: now_unix_s.saturating_add(LIFETIME.as_secs()),
        keys,
    };
    let keys = serde_json::to_string(&text).ok()?;
    let signature = signer.sign(LABEL, keys.as_bytes());
    Some(Signed {
        keys,
        signature,
        signer: *signer.verifying_key(),
    })
}

impl KeyText {
    fn of(app: &str, version: &KeyVersion) -> Option<Self> {
        Some(Self {
            suite: version.suite().name().into(),
            key_id: version.id.to_string(),
            public_key: STANDARD.encode(version.public_bytes().ok()?),
            kem: version.suite().kem_id()?,
            kdf: KDF,
            aead: AEAD,
            info: format!("sealwire/1{app}"),
        })
    }
}

/// Properties that a client expects of the keys that it requested.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The signer, which the client received over a trusted path.
    pub signer: &'a VerifyingKey,
    /// The app.
    pub app: &'a str,
    /// The lowest accepted generation: the generation of the newest text that the client has seen,
    /// or 0.
    pub min_generation: u64,
    /// The time, in seconds since 1970-01-01 UTC.
    pub now_unix_s: u64,
}

/// The public keys of an app, checked.
#[derive(Clone, Debug)]
pub struct PublicKeys {
    pub(crate) app: AppId,
    generation: u64,
    expires_unix_s: u64,
    /// The keys in the order of [`Suite::PUBLISHED`]. At least one.
    versions: Vec<Arc<KeyVersion>>,
}

impl Signed {
    /// Takes the strings of a response, without checking the signature.
    ///
    /// # Errors
    /// [`KeysError::Malformed`].
    pub fn from_base64(keys: String, signature: &str, signer: &str) -> Result<Self, KeysError> {
        let signature = STANDARD
            .decode(signature)
            .ok()
            .and_then(|bytes| bytes.try_into().ok());
        let signature =
            signature.ok_or_else(|| malformed("the signature is not 64 bytes in base64"))?;
        Ok(Self {
            keys,
            signature,
            signer: signer_from_base64(signer)?,
        })
    }

    /// Returns the signature and the signer as strings of a response.
    #[must_use]
    pub fn to_base64(&self) -> (String, String) {
        (
            STANDARD.encode(self.signature),
            STANDARD.encode(self.signer.as_bytes()),
        )
    }

    /// Checks the signature with the expected signer, whatever signer the response names. Then
    /// checks the content of the text.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn verify(&self, expected: &Expected<'_>) -> Result<PublicKeys, KeysError> {
        // An unsigned text is never parsed.
        if self.keys.len() > TEXT_BYTES_MAX {
            return Err(malformed("it is too long"));
        }
        let verified = expected
            .signer
            .verify(LABEL, self.keys.as_bytes(), &self.signature);
        verified.map_err(|_| KeysError::Signature)?;
        let keys = PublicKeys::parse(&self.keys)?;
        if keys.app.as_str() != expected.app {
            return Err(KeysError::OtherApp(keys.app.as_str().into()));
        }
        if keys.generation < expected.min_generation {
            return Err(KeysError::Old {
                have: keys.generation,
                least: expected.min_generation,
            });
        }
        match expected.now_unix_s.checked_sub(keys.expires_unix_s) {
            Some(seconds) => Err(KeysError::Expired { seconds }),
            None => Ok(keys),
        }
    }
}

/// Parses a signer that the client received over a trusted path: 32 bytes in base64.
///
/// # Errors
/// [`KeysError::Malformed`].
pub fn signer_from_base64(text: &str) -> Result<VerifyingKey, KeysError> {
    let bytes = STANDARD
        .decode(text.trim())
        .ok()
        .and_then(|bytes| bytes.try_into().ok());
    bytes
        .map(VerifyingKey::from_bytes)
        .ok_or_else(|| malformed("the signer is not 32 bytes in base64"))
}

impl PublicKeys {
    /// Parses a text whose signature is checked.
    pub(crate) fn parse(text: &str) -> Result<Self, KeysError> {
        /// The member that every version of the text has.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_str(text).map_err(malformed)?;
        if version != VERSION {
            return Err(KeysError::Version(version));
        }
        let text: Text = serde_json::from_str(text).map_err(malformed)?;
        let app = AppId::new(&text.app).map_err(malformed)?;
        let mut versions = Vec::new();
        for suite in Suite::PUBLISHED {
            for key in text.keys.iter().filter(|key| key.suite == suite.name()) {
                versions.push(Arc::new(key.version(suite)?));
            }
        }
        if versions.is_empty() {
            return Err(KeysError::NoKey);
        }
        let Text {
            generation,
            expires_unix_s,
            ..
        } = text;
        Ok(Self {
            app,
            generation,
            expires_unix_s,
            versions,
        })
    }

    /// Returns the app.
    #[must_use]
    pub fn app(&self) -> &str {
        self.app.as_str()
    }

    /// Returns the generation of the text. Store it, and require at least this generation from then
    /// on.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns when the text expires, in seconds since 1970-01-01 UTC.
    #[must_use]
    pub fn expires_unix_s(&self) -> u64 {
        self.expires_unix_s
    }

    /// Returns the key of a suite to which documents are sealed; without a suite, the default key.
    /// `None` without a key of the suite.
    pub(crate) fn recipient(&self, suite: Option<Suite>) -> Option<&Arc<KeyVersion>> {
        self.versions
            .iter()
            .find(|version| suite.is_none_or(|suite| version.suite() == suite))
    }

    /// Returns the suite and id of each key, the default key first. The default suite is p256 if
    /// the app publishes a key of it.
    pub fn keys(&self) -> impl Iterator<Item = (Suite, KeyId)> {
        self.versions
            .iter()
            .map(|version| (version.suite(), version.id))
    }

    /// Returns the id of the default key.
    #[must_use]
    pub fn key_id(&self) -> KeyId {
        self.versions[0].id
    }
}

impl KeyText {
    fn version(&self, suite: Suite) -> Result<KeyVersion, KeysError> {
        let bytes = STANDARD.decode(&self.public_key).map_err(malformed)?;
        let key: KeyMaterial = match suite.curve() {
            Some(curve) => PublicKey::from_sec1(curve, &bytes)
                .map_err(malformed)?
                .into(),
            None => HybridPublicKey::from_bytes(&bytes)
                .map_err(malformed)?
                .into(),
        };
        let id: KeyId = self.key_id.parse().map_err(malformed)?;
        let version = KeyVersion::new(1, KeyState::Active, key);
        if version.id == id {
            Ok(version)
        } else {
            Err(KeysError::KeyId(id))
        }
    }
}

fn malformed(error: impl std::fmt::Display) -> KeysError {
    KeysError::Malformed(error.to_string())
}
