//! The checkpoint: an authenticated note that names the last record, stored in the folder of the
//! segments. If records are cut off at the end, the checkpoint names a record that no longer
//! exists.
//!
//! The checkpoint has a fixed length, smaller than a disk sector. A single write replaces the
//! checkpoint in place, after the records that it names were written. A process that is killed
//! leaves either the old or the new checkpoint.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::chain::Checkpoint;
use crate::key::AuditKey;
use crate::note::{self, NoteError};

/// File name of the checkpoint in the folder.
pub const CHECKPOINT_FILE: &str = "head.json";
/// Size of a checkpoint in bytes, with the newline.
const BYTES: usize = 384;

impl Checkpoint {
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

    /// Writes the checkpoint in place. `buffer` is reused between writes.
    pub(crate) fn write(
        &self,
        file: &File,
        key: &AuditKey,
        buffer: &mut Vec<u8>,
    ) -> io::Result<()> {
        buffer.clear();
        self.encode_into(key, buffer);
        file.write_all_at(buffer, 0)
    }

    /// Reads the checkpoint of a folder. With a key, accepts only a checkpoint that is
    /// authenticated with that key.
    ///
    /// # Errors
    ///
    /// [`NoteError`]. Without a key, forgeries are not detected.
    pub fn read(folder: &Path, key: Option<&AuditKey>) -> Result<Self, NoteError> {
        Self::parse(&note::read(&folder.join(CHECKPOINT_FILE), BYTES)?, key)
    }

    fn parse(bytes: &[u8], key: Option<&AuditKey>) -> Result<Self, NoteError> {
        let (head, _) = note::parse(bytes, key, AuditKey::head_mac)?;
        // The encoding of a checkpoint is canonical.
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
    use crate::digest::Digest;
    use crate::files::Segment;

    #[test]
    fn checkpoint_survives_encoding_and_rejects_changed_bytes() {
        let key = AuditKey::new(&Zeroizing::new([1; 32]));
        let head = Checkpoint {
            chain: [9; 16],
            key: key.id(),
            seq: SEQ_MAX - 1,
            hash: Digest([0xab; 32]),
            file: Segment::from(SEQ_MAX).name,
        };
        let bytes = head.encode(&key);
        assert_eq!(bytes.len(), BYTES, "as long as its longest");
        assert_eq!(Checkpoint::parse(&bytes, Some(&key)).unwrap(), head);
        assert_eq!(Checkpoint::parse(&bytes, None).unwrap(), head);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(
                Checkpoint::parse(&changed, Some(&key)).is_err(),
                "byte {at}"
            );
        }
        let other = AuditKey::new(&Zeroizing::new([2; 32]));
        assert!(matches!(
            Checkpoint::parse(&bytes, Some(&other)),
            Err(NoteError::OtherKey(_))
        ));
        let forged = Checkpoint { seq: 5, ..head }.encode(&other);
        assert!(matches!(
            Checkpoint::parse(&forged, Some(&key)),
            Err(NoteError::Forged)
        ));
    }
}
