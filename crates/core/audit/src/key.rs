//! The keys that authenticate the audit log. A line or a checkpoint verifies only if it was made
//! with these keys.

use std::fmt;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::digest::Digest;

/// Bytes of a MAC: HMAC-SHA-256 truncated to its first half, as RFC 2104 and RFC 4868 allow.
pub(crate) const MAC_BYTES: usize = 16;

/// Separate keys for lines, for checkpoints and for archive statements, so that a MAC of one kind
/// is never valid for another kind. Wiped on drop.
#[derive(Clone)]
pub struct AuditKey {
    line: Box<Hmac<Sha256>>,
    head: Box<Hmac<Sha256>>,
    archived: Box<Hmac<Sha256>>,
    id: [u8; 4],
}

/// Derives the MAC of a label.
fn derive_mac(root: &Zeroizing<[u8; 32]>, label: &[u8]) -> Box<Hmac<Sha256>> {
    let mut key = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(None, &root[..])
        .expand(label, &mut key[..])
        .expect("a sub-key is one hash long");
    Box::new(Hmac::new_from_slice(&key[..]).expect("HMAC takes a key of any length"))
}

impl AuditKey {
    /// Derives the keys from 32 bytes that serve no other purpose. Callers derive the 32 bytes from
    /// the key-encryption key under a separate label.
    #[must_use]
    pub fn new(root: &Zeroizing<[u8; 32]>) -> Self {
        let mut id = [0; 4];
        id.copy_from_slice(
            &derive_mac(root, b"sealwire/audit/1/id")
                .finalize()
                .into_bytes()[..4],
        );
        Self {
            line: derive_mac(root, b"sealwire/audit/1/line"),
            head: derive_mac(root, b"sealwire/audit/1/head"),
            archived: derive_mac(root, b"sealwire/audit/1/archived"),
            id,
        }
    }

    /// Returns the key id in the files, which distinguishes another key from a forgery. The id
    /// reveals nothing about the key.
    #[must_use]
    pub fn id(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn line_mac(&self, hash: &Digest) -> [u8; MAC_BYTES] {
        cut(&self.line, &hash.0)
    }

    pub(crate) fn head_mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        cut(&self.head, bytes)
    }

    pub(crate) fn archived_mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        cut(&self.archived, bytes)
    }
}

fn cut(key: &Hmac<Sha256>, bytes: &[u8]) -> [u8; MAC_BYTES] {
    let mut mac = key.clone();
    mac.update(bytes);
    let mut cut = [0; MAC_BYTES];
    cut.copy_from_slice(&mac.finalize().into_bytes()[..MAC_BYTES]);
    cut
}

/// Compares two MACs in constant time.
pub(crate) fn same(one: &[u8; MAC_BYTES], other: &[u8; MAC_BYTES]) -> bool {
    one.iter()
        .zip(other)
        .fold(0, |differ, (a, b)| differ | (a ^ b))
        == 0
}

impl fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditKey({})", self.id())
    }
}
