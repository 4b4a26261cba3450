//! The head: a sealed note of the last record, beside the segments. A tail that is cut off leaves a head that says more.
//!
//! It has a fixed length below a disk's sector and is written in place by one write, behind the records that it names: a process
//! that is killed leaves the old one or the new one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde::Deserialize;

use crate::chain::{Digest, Link, SEQ_MAX};
use crate::json;
use crate::key::{AuditKey, same};

/// Its name in the folder.
pub const HEAD_FILE: &str = "head.json";
/// Its length, with the newline.
const BYTES: usize = 384;

/// The last record that was written, as the head says.
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

/// Why a head says nothing.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// It is not there.
    #[error("{HEAD_FILE} is missing")]
    Missing,
    /// It cannot be read.
    #[error("{HEAD_FILE}: {0}")]
    Io(#[from] io::Error),
    /// It is not what an engine writes.
    #[error("{HEAD_FILE} is damaged")]
    Damaged,
    /// It is sealed under another key.
    #[error("{HEAD_FILE} is sealed under key {0}, which is another")]
    OtherKey(String),
    /// It is not sealed with the key that it names.
    #[error("{HEAD_FILE} is forged: its seal is not the key's")]
    Forged,
}

#[derive(Deserialize)]
struct Text {
    format: u64,
    chain: String,
    key: String,
    seq: u64,
    hash: String,
    file: String,
    mac: String,
}

impl Head {
    pub(crate) fn link(&self) -> Link {
        Link { seq: self.seq, hash: self.hash }
    }

    fn encode(&self, key: &AuditKey) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        self.encode_into(key, &mut out);
        out
    }

    fn encode_into(&self, key: &AuditKey, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"format\":1");
        json::key(out, "chain");
        out.push(b'"');
        json::hex(out, &self.chain);
        out.push(b'"');
        json::text(out, "key", &self.key);
        json::count(out, "seq", self.seq);
        json::key(out, "hash");
        out.push(b'"');
        json::hex(out, &self.hash.0);
        out.push(b'"');
        json::text(out, "file", &self.file);
        let mac = key.head_mac(out);
        json::key(out, "mac");
        out.push(b'"');
        json::hex(out, &mac);
        out.extend_from_slice(b"\"}");
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
    /// [`HeadError`]; without a key never that it is forged.
    pub fn read(folder: &Path, key: Option<&AuditKey>) -> Result<Self, HeadError> {
        let mut bytes = Vec::new();
        match File::open(folder.join(HEAD_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(HeadError::Missing),
            opened => io::Read::read_to_end(&mut io::Read::take(opened?, BYTES as u64 + 1), &mut bytes)?,
        };
        Self::parse(&bytes, key)
    }

    fn parse(bytes: &[u8], key: Option<&AuditKey>) -> Result<Self, HeadError> {
        let text: Text = serde_json::from_slice(bytes).map_err(|_| HeadError::Damaged)?;
        let head = (|| {
            let (chain, hash) = (json::unhex(text.chain.as_bytes())?, json::unhex(text.hash.as_bytes())?);
            Some(Self { chain, key: text.key, seq: text.seq, hash: Digest(hash), file: text.file })
        })();
        let head = head.filter(|head| text.format == 1 && head.seq < SEQ_MAX).ok_or(HeadError::Damaged)?;
        let mac = json::unhex(text.mac.as_bytes()).ok_or(HeadError::Damaged)?;
        if let Some(key) = key {
            if head.key != key.id() {
                return Err(HeadError::OtherKey(head.key));
            }
            let sealed = bytes.windows(8).position(|at| at == b",\"mac\":\"").ok_or(HeadError::Damaged)?;
            if !same(&key.head_mac(&bytes[..sealed]), &mac) {
                return Err(HeadError::Forged);
            }
            // The same facts in other words would be sealed otherwise, but not twice in one file.
            if head.encode(key) != bytes {
                return Err(HeadError::Damaged);
            }
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
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
        assert!(matches!(Head::parse(&bytes, Some(&other)), Err(HeadError::OtherKey(_))));
        let forged = Head { seq: 5, ..head }.encode(&other);
        assert!(matches!(Head::parse(&forged, Some(&key)), Err(HeadError::Forged)));
    }
}
