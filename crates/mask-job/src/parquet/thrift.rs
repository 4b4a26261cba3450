//! Finds out if a footer says that columns are encrypted.
//!
//! Without its feature for encryption, which needs a second cryptographic library, the `parquet` crate skips that field of
//! a footer in plain text. A copy of the file would then hold columns that nobody can read.

/// The field `encryption_algorithm` of the struct `FileMetaData`.
const ENCRYPTION_ALGORITHM: i16 = 8;

/// Nesting that a footer can have. Deeper ones are invalid.
const DEPTH_MAX: usize = 32;

/// Returns true if the footer has the field, `None` if it is no struct in Thrift's compact protocol.
pub(super) fn is_encrypted(footer: &[u8]) -> Option<bool> {
    let mut reader = Compact { bytes: footer };
    let mut is_encrypted = false;
    reader.fields(0, |field| is_encrypted |= field == ENCRYPTION_ALGORITHM)?;
    Some(is_encrypted)
}

struct Compact<'a> {
    bytes: &'a [u8],
}

impl Compact<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn skip(&mut self, count: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Reads a struct, and calls `seen` with the number of each field.
    fn fields(&mut self, depth: usize, mut seen: impl FnMut(i16)) -> Option<()> {
        let mut field = 0_i16;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Some(());
            }
            field = match header >> 4 {
                0 => {
                    let zigzag = self.varint()?;
                    i16::try_from((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)).ok()?
                }
                delta => field.checked_add(i16::from(delta))?,
            };
            seen(field);
            // The value of a boolean field is in its header.
            if !matches!(header & 0xf, 1 | 2) {
                self.value(header & 0xf, depth)?;
            }
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match kind {
            1..=3 => self.skip(1),
            4..=6 => self.varint().map(drop),
            7 => self.skip(8),
            8 => {
                let length = self.varint()?;
                self.skip(length)
            }
            9 | 10 => {
                let header = self.byte()?;
                let count = if header >> 4 == 0xf { self.varint()? } else { u64::from(header >> 4) };
                (0..count).try_for_each(|_| self.value(header & 0xf, depth + 1))
            }
            11 => {
                let count = self.varint()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.value(kinds >> 4, depth + 1)?;
                    self.value(kinds & 0xf, depth + 1)
                })
            }
            12 => self.fields(depth + 1, |_| ()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_found_among_others() {
        // i32 1, list of two structs (bool, binary), binary, and the field 8 as an empty struct in a union.
        let before = [0x15, 0x04, 0x19, 0x2c, 0x11, 0x18, 0x01, b'x', 0x00, 0x12, 0x00, 0x48, 0x02, b'a', b'b'];
        for (after, expected) in [
            (&[0x2c, 0x1c, 0x00, 0x00, 0x00][..], Some(true)),
            (&[0x0c, 0x10, 0x1c, 0x00, 0x00, 0x00], Some(true)),
            (&[0x3c, 0x1c, 0x00, 0x00, 0x00], Some(false)),
            (&[0x00], Some(false)),
            (&[], None),
            (&[0x28, 0xff, 0xff, 0xff, 0xff, 0x7f], None),
            (&[0x29, 0xf9, 0xff, 0xff, 0xff, 0x7f], None),
        ] {
            assert_eq!(is_encrypted(&[&before[..], after].concat()), expected, "{after:02x?}");
        }
        assert_eq!(is_encrypted(&[0x19, 0x19].repeat(99)), None, "nested without end");
    }
}
