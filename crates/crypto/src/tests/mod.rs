//! Published vectors, our own vectors, and the contract of sealing and opening.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod assembly;
mod contract;
mod epochs;
mod rfc9180;
mod short_fields;
mod vectors;
mod wycheproof;

use std::sync::Arc;

use crate::{AppId, AppKeys, Curve, KeyPair, KeyState, KeyVersion};

/// An app with one active key version on each curve.
fn app(name: &str) -> Arc<AppKeys> {
    let versions = Curve::ALL.map(|curve| KeyVersion::new(1, KeyState::Active, KeyPair::generate(curve).unwrap()));
    Arc::new(AppKeys::new(AppId::new(name).unwrap(), versions.into()).unwrap())
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd hex");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
