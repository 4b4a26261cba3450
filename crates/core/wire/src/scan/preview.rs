//! Predicts the size of a message that is still arriving.
//!
//! The scan does no extra work for this: the counters that find the end of the message also give
//! the part of the payload that has arrived. If half of the 31st of 100 records has arrived, this
//! part is 30.5 %. The estimate is the size of this part divided by 0.305.

use super::{OpenContainer, PARAMS_DEPTH, Payload, Scanner};
use crate::frame::{Estimate, MessageHeader, Preview};
use crate::request_decoder;

impl Scanner {
    /// Previews the document request that is arriving. Returns `None` for any other message, before
    /// the method has arrived, and after the message is complete, rejected or discarded. `buffered`
    /// must be the buffer of the last scan. Reads only the params before the payload, within the
    /// limits of their rules.
    pub fn preview(&self, buffered: &[u8]) -> Option<Preview> {
        match self.header {
            Some(MessageHeader::Request {
                method: Some(method),
                ..
            }) if method.takes_document() => Some(Preview {
                whole: self.estimate_size(),
                ..request_decoder::preview_request(method, buffered)
            }),
            _ => None,
        }
    }

    fn estimate_size(&self) -> Option<Estimate> {
        let least = Estimate {
            bytes: self.bytes_at_least(),
            leaves: self.leaves_at_least(),
        };
        let (start, leaves_before) = match self.payload {
            Payload::Ahead | Payload::Next => return None,
            Payload::Started {
                start,
                leaves_before,
            } => (start, leaves_before),
            Payload::Passed { .. } => return Some(least),
        };
        let part = self.part_of_payload();
        let values_behind = self
            .open
            .get(PARAMS_DEPTH - 1)
            .map_or(0, |params| params.left);
        let bytes = scale_to_whole(self.position - start, part)
            .saturating_add(start)
            .saturating_add(values_behind);
        let leaves = scale_to_whole(self.leaves - leaves_before, part)
            .saturating_add(leaves_before)
            .saturating_add(values_behind / 2);

        // The announced size is within the limits, or the message would have been rejected.
        Some(Estimate {
            bytes: bytes.min(self.limits.message_bytes_max).max(least.bytes),
            leaves: leaves.min(self.limits.elements_max).max(least.leaves),
        })
    }

    /// Returns the least number of leaves in the message: each value except a key is a leaf or
    /// contains one.
    fn leaves_at_least(&self) -> u64 {
        self.leaves
            + self
                .open
                .iter()
                .map(OpenContainer::values_left)
                .sum::<u64>()
    }

    /// Returns the part of the payload that has arrived, 0 to 1, as if all values of a container
    /// had the same size. A pair counts after its value has arrived. Otherwise `{"rows": [..]}`
    /// would count as half complete before its first row.
    fn part_of_payload(&self) -> f64 {
        let levels = self.open.get(PARAMS_DEPTH..).unwrap_or_default();
        if levels.is_empty() {
            return 1.0;
        }
        let mut part = 0.0;
        let mut share = 1.0;
        for (level, open) in levels.iter().enumerate() {
            let unfinished = u64::from(level + 1 < levels.len());
            let values_of_one = if open.is_map { 2 } else { 1 };
            let done = (open.values - open.left - unfinished) / values_of_one;
            share /= (open.values / values_of_one) as f64;
            part += done as f64 * share;
        }
        part
    }
}

impl OpenContainer {
    /// Returns the outstanding values without keys.
    fn values_left(&self) -> u64 {
        if self.is_map {
            self.left.div_ceil(2)
        } else {
            self.left
        }
    }
}

/// Scales a size that was measured in a part of the payload to the whole payload. Returns 0 before
/// the first value has arrived, since no measurement exists. The conversion from a float saturates.
fn scale_to_whole(measured: u64, part: f64) -> u64 {
    if part > 0.0 {
        (measured as f64 / part).round() as u64
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
