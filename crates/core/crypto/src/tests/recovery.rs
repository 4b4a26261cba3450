//! Copies that are sealed to a recovery key: what opens, and that nothing else does.

use zeroize::Zeroizing;

use crate::recovery::RECOVERY_COPY_BYTES;
use crate::{CannotOpen, HybridKey, HybridSeed};

fn key(byte: u8) -> HybridKey {
    HybridKey::from_seed(HybridSeed::new([byte; 32].into())).unwrap()
}

#[test]
fn a_copy_opens_with_its_key_and_bytes_alone() {
    let (key, other) = (key(1), key(2));
    let secret = Zeroizing::new([7; 32]);
    let sealed = key.public().unwrap().seal_copy(&secret, b"slot 1").unwrap();
    assert_eq!(
        (sealed.len(), sealed.capacity()),
        (RECOVERY_COPY_BYTES, RECOVERY_COPY_BYTES)
    );
    assert_eq!(key.open_copy(&sealed, b"slot 1"), Ok(secret.clone()));
    assert_eq!(
        key.open_copy(&sealed, b"slot 2"),
        Err(CannotOpen),
        "another slot"
    );
    assert_eq!(key.open_copy(&sealed, b""), Err(CannotOpen), "no slot");
    assert_eq!(
        other.open_copy(&sealed, b"slot 1"),
        Err(CannotOpen),
        "another key"
    );
    // Ciphertext of ML-KEM, ephemeral point, ciphertext, tag.
    for at in [0, 1_087, 1_088, 1_089, 1_152, 1_153, 1_184, 1_185, 1_200] {
        let mut altered = sealed.clone();
        altered[at] ^= 1;
        assert_eq!(
            key.open_copy(&altered, b"slot 1"),
            Err(CannotOpen),
            "byte {at}"
        );
    }
    for cut in [0, 1, 1_153, 1_200] {
        assert_eq!(
            key.open_copy(&sealed[..cut], b"slot 1"),
            Err(CannotOpen),
            "{cut} bytes"
        );
    }
    assert_eq!(
        key.open_copy(&[&sealed[..], &[0]].concat(), b"slot 1"),
        Err(CannotOpen),
        "a byte more"
    );
    let again = key.public().unwrap().seal_copy(&secret, b"slot 1").unwrap();
    assert_ne!(again, sealed, "every copy has its own encapsulation");
}

/// Go's `crypto/hpke` sealed the copy: seed 01 (32 times), `info` "sealwire/recovery/1", `aad`
/// "slot 1", content 07 (32 times).
#[test]
fn a_copy_of_another_implementation_opens() {
    let sealed = super::unhex(include_str!("recovery-copy.hex").trim());
    assert_eq!(
        key(1).open_copy(&sealed, b"slot 1"),
        Ok(Zeroizing::new([7; 32]))
    );
}
