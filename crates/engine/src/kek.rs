//! Where the key-encryption key comes from.

use sealwire_crypto::Kek;
use zeroize::Zeroizing;

/// The key-encryption key cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("kek: {0}")]
pub struct KekError(pub(crate) String);

/// Reads the key-encryption key that a configuration names. The text is wiped; errors never repeat it.
///
/// # Errors
///
/// The file or the variable cannot be read, or does not hold a key.
pub fn read_kek(from: &sealwire_config::KekSource) -> Result<Kek, KekError> {
    let (place, text) = match from {
        sealwire_config::KekSource::File(path) => {
            (path.display().to_string(), std::fs::read_to_string(path).map_err(|e| e.to_string()))
        }
        sealwire_config::KekSource::Environment(name) => {
            (format!("environment variable {name}"), std::env::var(name).map_err(|_| "not set, or not text".to_owned()))
        }
    };
    let text = Zeroizing::new(text.map_err(|error| KekError(format!("{place}: {error}")))?);
    Kek::from_hex(&text).map_err(|error| KekError(format!("{place}: {error}")))
}
