//! Authenticated notes in the folder of the segments: small JSON objects whose last field is a MAC
//! of all preceding bytes.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;

use crate::chain::{Checkpoint, SEQ_MAX};
use crate::digest::Digest;
use crate::json;
use crate::key::{AuditKey, MAC_BYTES, same};

/// The reason why a note cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NoteError {
    /// The file does not exist.
    #[error("is missing")]
    Missing,
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The content is not a note.
    #[error("is damaged")]
    Damaged,
    /// The note is authenticated with another key.
    #[error("is sealed under key {0}, which is another")]
    OtherKey(String),
    /// The MAC does not match the key that the note names.
    #[error("is forged: its seal is not the key's")]
    Forged,
}

/// Computes the MAC of one kind of note.
pub(crate) type Seal = fn(&AuditKey, &[u8]) -> [u8; MAC_BYTES];

#[derive(Deserialize)]
struct Text {
    format: u64,
    chain: String,
    key: String,
    seq: u64,
    hash: String,
    file: String,
    #[serde(default)]
    findings: u64,
    mac: String,
}

/// Appends the first fields, which all notes share.
pub(crate) fn begin(out: &mut Vec<u8>, last: &Checkpoint) {
    out.extend_from_slice(b"{\"format\":1");
    json::key(out, "chain");
    out.push(b'"');
    json::hex(out, &last.chain);
    out.push(b'"');
    json::text(out, "key", &last.key);
    json::count(out, "seq", last.seq);
    json::key(out, "hash");
    out.push(b'"');
    json::hex(out, &last.hash.0);
    out.push(b'"');
    json::text(out, "file", &last.file);
}

/// Appends the MAC and the closing brace.
pub(crate) fn end(out: &mut Vec<u8>, mac: &[u8; MAC_BYTES]) {
    json::key(out, "mac");
    out.push(b'"');
    json::hex(out, mac);
    out.extend_from_slice(b"\"}");
}

/// Reads at most `bytes_max + 1` bytes of a file, so that the caller can detect a file that is too
/// long.
pub(crate) fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>, NoteError> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NoteError::Missing),
        opened => opened?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

/// Returns the record that a note names and the findings that it counts. With a key, fails unless
/// `seal` computes the note's MAC under that key. The caller must check the bytes after the MAC.
pub(crate) fn parse(
    bytes: &[u8],
    key: Option<&AuditKey>,
    seal: Seal,
) -> Result<(Checkpoint, u64), NoteError> {
    let text: Text = serde_json::from_slice(bytes).map_err(|_| NoteError::Damaged)?;
    let named = (|| {
        let chain = json::unhex(text.chain.as_bytes())?;
        let hash = json::unhex(text.hash.as_bytes())?;
        Some(Checkpoint {
            chain,
            key: text.key,
            seq: text.seq,
            hash: Digest(hash),
            file: text.file,
        })
    })();
    let named = named
        .filter(|named| text.format == 1 && named.seq < SEQ_MAX)
        .ok_or(NoteError::Damaged)?;
    let mac = json::unhex(text.mac.as_bytes()).ok_or(NoteError::Damaged)?;
    if let Some(key) = key {
        if named.key != key.id() {
            return Err(NoteError::OtherKey(named.key));
        }
        let sealed = bytes
            .windows(8)
            .position(|at| at == b",\"mac\":\"")
            .ok_or(NoteError::Damaged)?;
        if !same(&seal(key, &bytes[..sealed]), &mac) {
            return Err(NoteError::Forged);
        }
    }

    Ok((named, text.findings))
}
