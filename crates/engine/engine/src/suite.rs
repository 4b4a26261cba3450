//! Converts cipher suites between the wire and the crypto crate.

use sealwire_crypto::Suite;
use sealwire_wire as wire;

/// Returns the suite that a request names.
pub(crate) fn from_wire(suite: wire::Suite) -> Suite {
    match suite {
        wire::Suite::P256 => Suite::P256,
        wire::Suite::Secp256k1 => Suite::Secp256k1,
        wire::Suite::Xaes => Suite::Xaes,
        wire::Suite::P256MlKem768 => Suite::P256MlKem768,
        wire::Suite::P256Psk => Suite::P256Psk,
        wire::Suite::Secp256k1Psk => Suite::Secp256k1Psk,
    }
}

/// Returns the suite for a response.
pub(crate) fn to_wire(suite: Suite) -> wire::Suite {
    match suite {
        Suite::P256 => wire::Suite::P256,
        Suite::Secp256k1 => wire::Suite::Secp256k1,
        Suite::Xaes => wire::Suite::Xaes,
        Suite::P256MlKem768 => wire::Suite::P256MlKem768,
        Suite::P256Psk => wire::Suite::P256Psk,
        Suite::Secp256k1Psk => wire::Suite::Secp256k1Psk,
    }
}
