//! Predicts a message that is still arriving.
//!
//! Costs nothing while values go by: the counts that find the message's end also say how much of
//! the payload has been met. Of an array of 100 records whose 31st is half done, 30.5 % has; what
//! that took, divided by 0.305, is the estimate.

use super::{Open, PARAMS_DEPTH, Payload, Scanner};
use crate::call;
use crate::frame::{Estimate, MessageHeader, Preview};

impl Scanner {
    /// Previews the document request that is arriving; `None` for any other message, before its
    /// method has arrived, and after it is complete, rejected or discarded. `buffered` is the
    /// buffer of the last scan. Reads no more than the params before the payload, and of them no
    /// more than their rules allow.
    pub fn outlook(&self, buffered: &[u8]) -> Option<Preview> {
        match self.head {
            Some(MessageHeader::Request {
                method: Some(method),
                ..
            }) if method.takes_document() => Some(Preview {
                whole: self.estimate(),
                ..call::params_so_far(method, buffered)
            }),
            _ => None,
        }
    }

    fn estimate(&self) -> Option<Estimate> {
        let least = Estimate {
            bytes: self.bytes_at_least(),
            leaves: self.leaves_at_least(),
        };
        let (start, leaves_before) = match self.payload {
            Payload::Ahead | Payload::Next => return None,
            Payload::Begun {
                start,
                leaves_before,
            } => (start, leaves_before),
            Payload::Passed { .. } => return Some(least),
        };
        let part = self.part_of_payload();
        let scaled = |seen: u64| {
            // Before the first value is done there is nothing to go by. From a float the conversion
            // saturates.
            if part > 0.0 {
                (seen as f64 / part).round() as u64
            } else {
                0
            }
        };
        let behind = self
            .open
            .get(PARAMS_DEPTH - 1)
            .map_or(0, |params| params.left);
        let bytes = scaled(self.position - start)
            .saturating_add(start)
            .saturating_add(behind);
        let leaves = scaled(self.leaves - leaves_before)
            .saturating_add(leaves_before)
            .saturating_add(behind / 2);
        // The announced size is within the limits, or the message would have been rejected.
        Some(Estimate {
            bytes: bytes.min(self.limits.message_bytes_max).max(least.bytes),
            leaves: leaves.min(self.limits.elements_max).max(least.leaves),
        })
    }

    /// Fewest leaves the message can have: each value that is no key is one or holds one.
    fn leaves_at_least(&self) -> u64 {
        let ahead = |open: &Open| {
            if open.map {
                open.left.div_ceil(2)
            } else {
                open.left
            }
        };
        self.leaves + self.open.iter().map(ahead).sum::<u64>()
    }

    /// How much of the payload has been met, 0 to 1, as if all values of a container were alike. A
    /// pair counts once its value is done: with the key alone, `{"rows": [..]}` would be half done
    /// before its first row.
    fn part_of_payload(&self) -> f64 {
        let levels = self.open.get(PARAMS_DEPTH..).unwrap_or_default();
        if levels.is_empty() {
            return 1.0;
        }
        let (mut part, mut share) = (0.0, 1.0);
        for (level, open) in levels.iter().enumerate() {
            let unfinished = u64::from(level + 1 < levels.len());
            let values_of_one = if open.map { 2 } else { 1 };
            let done = (open.values - open.left - unfinished) / values_of_one;
            share /= (open.values / values_of_one) as f64;
            part += done as f64 * share;
        }
        part
    }
}

#[cfg(test)]
mod tests;
