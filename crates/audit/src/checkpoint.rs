//! The head: a sealed note of the last record, beside the segments. A tail that is cut off leaves a head that says more.
//!
//! It has a fixed length below a disk's sector and is written in place by one write, behind the records that it names: a process
//! that is killed leaves the old one or the new one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::chain::{Digest, Link};
use crate::key::AuditKey;
use crate::note::{self, NoteError};

/// Its name in the folder.
pub const HEAD_FILE: &str = "head.json";
/// Its length, with the newline.
const BYTES: usize = 384;

/// The last record of a trail, or of what was archived of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Names the chain; random.
    pub chain: [u8; 16],
    /// Names the key that it is sealed with.
    pub key: String,
    /// The record's number; 0 before the first.
    pub seq: u64,
    /// Its hash.
    pub hash: Digest,
    /// The segment that it is in.
    pub file: String,
}

impl Head {
    pub(crate) fn link(&self) -> Link {
        Link { seq: self.seq, hash: self.hash }
    }

    pub(crate) fn encode(&self, key: &AuditKey) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        self.encode_into(key, &mut out);
        out
    }

    fn encode_into(&self, key: &AuditKey, out: &mut Vec<u8>) {
        note::begin(out, self);
        let mac = key.head_mac(out);
        note::end(out, &mac);
        out.resize(BYTES - 1, b' ');
        out.push(b'\n');
    }

    /// Writes it in place, through a buffer that is kept.
    pub(crate) fn write(&self, file: &File, key: &AuditKey, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        self.encode_into(key, buffer);
        file.write_all_at(buffer, 0)
    }

    /// Reads the head of a folder; with the key, only if it is sealed with that.
    ///
    /// # Errors
    ///
    /// [`NoteError`]; without a key never that it is forged.
    pub fn read(folder: &Path, key: Option<&AuditKey>) -> Result<Self, NoteError> {
        Self::parse(&note::read(&folder.join(HEAD_FILE), BYTES)?, key)
    }

    fn parse(bytes: &[u8], key: Option<&AuditKey>) -> Result<Self, NoteError> {
        let (head, _) = note::parse(bytes, key, AuditKey::head_mac)?;
        // Only one encoding of a head is valid.
        if key.is_some_and(|key| head.encode(key) != bytes) {
            return Err(NoteError::Damaged);
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::chain::SEQ_MAX;
    use crate::files::Segment;

    #[test]
    fn it_is_read_as_it_was_written_and_no_byte_of_it_can_be_changed() {
        let key = AuditKey::new(&Zeroizing::new([1; 32]));
        let head = Head {
            chain: [9; 16],
            key: key.id(),
            seq: SEQ_MAX - 1,
            hash: Digest([0xab; 32]),
            file: Segment::from(SEQ_MAX).name,
        };
        let bytes = head.encode(&key);
        assert_eq!(bytes.len(), BYTES, "as long as its longest");
        assert_eq!(Head::parse(&bytes, Some(&key)).unwrap(), head);
        assert_eq!(Head::parse(&bytes, None).unwrap(), head);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Head::parse(&changed, Some(&key)).is_err(), "byte {at}");
        }
        let other = AuditKey::new(&Zeroizing::new([2; 32]));
        assert!(matches!(Head::parse(&bytes, Some(&other)), Err(NoteError::OtherKey(_))));
        let forged = Head { seq: 5, ..head }.encode(&other);
        assert!(matches!(Head::parse(&forged, Some(&key)), Err(NoteError::Forged)));
    }
}
