//! Published vectors, our own vectors, and the contract of sealing and opening.

mod agreement_queue;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod assembly;
mod contract;
mod epochs;
mod hybrid;
mod outside;
mod psk;
mod recovery;
mod rfc9180;
mod root;
mod short_fields;
mod vectors;
mod wycheproof;
mod xaes;

use std::sync::Arc;

use crate::{AppId, AppKeys, KeyMaterial, KeyState, KeyVersion, Suite};

/// The suites with DHKEM: base mode and PSK mode on each curve.
const DHKEM: [Suite; 4] = [
    Suite::P256,
    Suite::Secp256k1,
    Suite::P256Psk,
    Suite::Secp256k1Psk,
];

/// An app with one active key version of each suite.
fn app(name: &str) -> Arc<AppKeys> {
    let app = AppId::new(name).unwrap();
    let versions = Suite::ALL.map(|suite| {
        KeyVersion::new(
            1,
            KeyState::Active,
            KeyMaterial::generate(&app, suite).unwrap(),
        )
    });
    Arc::new(AppKeys::new(app, versions.into()).unwrap())
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd hex");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
