//! The hash chain: each line holds a hash over the previous hash and the line's own bytes, and a
//! MAC of that hash.
//!
//! `{"seq":N` + body + `,"hash":"` 64 digits `","mac":"` 32 digits `"}` newline. The hash is
//! SHA-256 of the 32 bytes of the previous hash and of the line up to `,"hash"`. For the first
//! record, the previous hash is a hash of the chain's random name.

use std::str::FromStr;

use crate::digest::Digest;
use crate::json;
use crate::key::{AuditKey, MAC_BYTES};

/// Longest line that is read, in bytes including the newline. Lines written by this crate are much
/// shorter.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Highest record number: 16 digits, as in segment file names. Adding 1 never overflows.
pub(crate) const SEQ_MAX: u64 = 9_999_999_999_999_999;

const BEGIN: &[u8] = b"{\"seq\":";
const HASH: &[u8] = b",\"hash\":\"";
const MAC: &[u8] = b"\",\"mac\":\"";
const END: &[u8] = b"\"}";
/// Bytes after the body, without the newline.
const SEAL_BYTES: usize = HASH.len() + 64 + MAC.len() + 2 * MAC_BYTES + END.len();

/// The end of a chain: the number and hash of its last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) seq: u64,
    pub(crate) hash: Digest,
}

impl Link {
    /// Appends the next line to `out` and advances the link. `body` starts with the comma after the
    /// record number and ends before the hash.
    pub(crate) fn seal(&mut self, key: &AuditKey, body: &[u8], out: &mut Vec<u8>) {
        let begin = out.len();
        self.seq += 1;
        out.extend_from_slice(BEGIN);
        json::number(out, self.seq);
        out.extend_from_slice(body);
        self.hash = self.hash.with(&out[begin..]);
        out.extend_from_slice(HASH);
        json::hex(out, &self.hash.0);
        out.extend_from_slice(MAC);
        json::hex(out, &key.line_mac(&self.hash));
        out.extend_from_slice(END);
        out.push(b'\n');
    }
}

/// A record's number and hash, stored where an attacker with write access to the log cannot change
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The record number.
    pub seq: u64,
    /// The record's hash.
    pub hash: Digest,
}

impl FromStr for Anchor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "must be SEQ:HASH, as `sealwire audit checkpoint` prints it";
        let (seq, hash) = text.split_once(':').ok_or(wrong)?;
        Ok(Self {
            seq: seq.parse().map_err(|_| wrong)?,
            hash: hash.parse().map_err(|_| wrong)?,
        })
    }
}

/// The last record of an audit log or of its archived part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Random name of the chain.
    pub chain: [u8; 16],
    /// Id of the key that authenticates the checkpoint.
    pub key: String,
    /// Number of the record; 0 if the chain has no records.
    pub seq: u64,
    /// Hash of the record.
    pub hash: Digest,
    /// File name of the segment that holds the record.
    pub file: String,
}

impl Checkpoint {
    pub(crate) fn link(&self) -> Link {
        Link {
            seq: self.seq,
            hash: self.hash,
        }
    }
}

/// A parsed line whose content is not verified yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The record's number.
    pub seq: u64,
    /// The bytes that the hash covers.
    pub(crate) sealed: &'a [u8],
    /// The part of `sealed` after the record number, starting with a comma.
    pub(crate) body: &'a [u8],
    /// The hash that the line states.
    pub hash: Digest,
    pub(crate) mac: [u8; MAC_BYTES],
}

impl<'a> Line<'a> {
    /// Parses a line without its newline. Returns `None` if the line does not have the audit
    /// format.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let (sealed, seal) = line.split_at_checked(line.len().checked_sub(SEAL_BYTES)?)?;
        let seal = seal.strip_prefix(HASH)?;
        let (hash, seal) = seal.split_at(64);
        let seal = seal.strip_prefix(MAC)?;
        let (mac, end) = seal.split_at(2 * MAC_BYTES);
        if end != END {
            return None;
        }

        let rest = sealed.strip_prefix(BEGIN)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, body) = rest.split_at(digits);
        let plain =
            matches!(number, [b'1'..=b'9', ..]) && body.first().is_none_or(|byte| *byte == b',');
        let seq = std::str::from_utf8(number)
            .ok()
            .filter(|_| plain)?
            .parse()
            .ok()
            .filter(|seq| *seq <= SEQ_MAX)?;
        Some(Self {
            seq,
            sealed,
            body,
            hash: Digest(json::unhex(hash)?),
            mac: json::unhex(mac)?,
        })
    }

    /// Returns the event type that the line claims.
    #[must_use]
    pub fn event(&self) -> Option<&'a str> {
        // The time before the event has a fixed length.
        let rest = self
            .body
            .strip_prefix(b",\"time\":\"")?
            .get(24..)?
            .strip_prefix(b"\",\"event\":\"")?;
        let end = rest.iter().position(|byte| *byte == b'"')?;
        std::str::from_utf8(&rest[..end]).ok()
    }

    /// Returns the time that the line claims.
    #[must_use]
    pub fn time(&self) -> Option<&'a [u8]> {
        self.body.strip_prefix(b",\"time\":\"")?.get(..24)
    }
}
