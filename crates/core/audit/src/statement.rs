//! The archive statement: an authenticated note that names the last record that was moved to an
//! archive folder.

use std::path::Path;

use crate::chain::{Anchor, Checkpoint, Link};
use crate::key::AuditKey;
use crate::note::{self, NoteError};

/// File name of the statement in the folder.
pub const ARCHIVED_FILE: &str = "archived.json";
/// Largest size of a statement in bytes.
const BYTES_MAX: usize = 1_024;

/// The archive statement, which says that every record up to `last` was moved to an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// The last moved record.
    pub(crate) last: Checkpoint,
    /// Number of findings in the moved segments, over all moves.
    pub findings: u64,
}

impl Archived {
    /// Returns the last moved record.
    #[must_use]
    pub fn last(&self) -> Anchor {
        Anchor {
            seq: self.last.seq,
            hash: self.last.hash,
        }
    }

    pub(crate) fn link(&self) -> Link {
        self.last.link()
    }

    pub(crate) fn encode(&self, key: &AuditKey) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        note::begin(&mut out, &self.last);
        crate::json::count(&mut out, "findings", self.findings);
        let mac = key.archived_mac(&out);
        note::end(&mut out, &mac);
        out.push(b'\n');
        out
    }

    /// Reads the statement of a folder. With a key, accepts only a statement that is authenticated
    /// with that key.
    ///
    /// # Errors
    ///
    /// [`NoteError`]. Without a key, forgeries are not detected.
    pub fn read(folder: &Path, key: Option<&AuditKey>) -> Result<Self, NoteError> {
        Self::parse(&note::read(&folder.join(ARCHIVED_FILE), BYTES_MAX)?, key)
    }

    fn parse(bytes: &[u8], key: Option<&AuditKey>) -> Result<Self, NoteError> {
        let (last, findings) = note::parse(bytes, key, AuditKey::archived_mac)?;
        let archived = Self { last, findings };
        if key.is_some_and(|key| archived.encode(key) != bytes) {
            return Err(NoteError::Damaged);
        }
        Ok(archived)
    }
}
