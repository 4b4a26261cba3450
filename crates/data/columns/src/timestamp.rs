//! Timestamps as MessagePack extensions.

use sealwire_msgpack::write;

/// Extension type of MessagePack timestamps.
const TIMESTAMP: i8 = -1;

/// Writes an instant in the shortest of the three forms of MessagePack timestamps.
pub fn append_timestamp(out: &mut Vec<u8>, seconds: i64, nanoseconds: u32) {
    match (u64::try_from(seconds), nanoseconds) {
        (Ok(seconds), 0) if seconds <= u64::from(u32::MAX) => {
            write::ext(out, TIMESTAMP, &(seconds as u32).to_be_bytes());
        }
        (Ok(seconds), _) if seconds < 1 << 34 => {
            write::ext(
                out,
                TIMESTAMP,
                &(u64::from(nanoseconds) << 34 | seconds).to_be_bytes(),
            );
        }
        _ => {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&nanoseconds.to_be_bytes());
            bytes[4..].copy_from_slice(&seconds.to_be_bytes());
            write::ext(out, TIMESTAMP, &bytes);
        }
    }
}

/// Reads a MessagePack timestamp: seconds since 1970 and nanoseconds. Returns `None` for another
/// extension.
#[must_use]
pub fn read_timestamp(code: i8, data: &[u8]) -> Option<(i64, u32)> {
    if code != TIMESTAMP {
        return None;
    }
    let (seconds, nanoseconds) = match data.len() {
        4 => (i64::from(u32::from_be_bytes(data.try_into().ok()?)), 0),
        8 => {
            let both = u64::from_be_bytes(data.try_into().ok()?);
            ((both & ((1 << 34) - 1)) as i64, (both >> 34) as u32)
        }
        12 => {
            let (nanoseconds, seconds) = data.split_at(4);
            (
                i64::from_be_bytes(seconds.try_into().ok()?),
                u32::from_be_bytes(nanoseconds.try_into().ok()?),
            )
        }
        _ => return None,
    };
    (nanoseconds < 1_000_000_000).then_some((seconds, nanoseconds))
}
