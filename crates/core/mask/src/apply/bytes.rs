//! The canonical bytes of a value, which keyed functions hash. An integer becomes its decimal
//! digits. 17 and "17" therefore have the same mask, whether they come from JSON, CSV or a table.

use super::Unfit;
use crate::Value;
use crate::keys::KeyedHmac;
use sealwire_mask_rules::limits::VALUE_BYTES_MAX;

/// The canonical bytes of a value, without allocation.
pub(super) struct Canonical<'a> {
    is_binary: bool,
    text: Text<'a>,
}

enum Text<'a> {
    Given(&'a [u8]),
    Made([u8; 20], usize),
}

impl<'a> Canonical<'a> {
    /// Converts a string, an integer or binary.
    pub(super) fn of(value: Value<'a>) -> Result<Self, Unfit> {
        match value {
            Value::Str(text) => Self::of_bytes(false, text.as_bytes()),
            Value::Bin(bytes) => Self::of_bytes(true, bytes),
            Value::Uint(value) => Ok(Self::of_integer(false, value)),
            Value::Int(value) => Ok(Self::of_integer(value < 0, value.unsigned_abs())),
            Value::Nil | Value::Bool(_) | Value::Single(_) | Value::Float(_) | Value::Ext(..) => {
                Err(Unfit::Type)
            }
        }
    }

    /// Converts the subject of a value.
    pub(super) fn of_subject(subject: Option<Value<'a>>) -> Result<Self, Unfit> {
        match subject {
            Some(subject @ (Value::Str(_) | Value::Int(_) | Value::Uint(_))) => Self::of(subject),
            _ => Err(Unfit::NoSubject),
        }
    }

    fn of_bytes(is_binary: bool, bytes: &'a [u8]) -> Result<Self, Unfit> {
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(Unfit::TooLong(VALUE_BYTES_MAX));
        }
        Ok(Self {
            is_binary,
            text: Text::Given(bytes),
        })
    }

    fn of_integer(is_negative: bool, mut rest: u64) -> Self {
        let mut digits = [0; 20];
        let mut at = 20;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if is_negative {
            at -= 1;
            digits[at] = b'-';
        }
        Self {
            is_binary: false,
            text: Text::Made(digits, at),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.text {
            Text::Given(bytes) => bytes,
            Text::Made(digits, at) => &digits[*at..],
        }
    }

    /// Hashes the bytes for one purpose. `settings` are the function's arguments that must change
    /// the hash.
    pub(super) fn hash(&self, keyed: &KeyedHmac, purpose: &[u8], settings: &[u8]) -> [u8; 32] {
        keyed.hash(
            purpose,
            &[settings, &[u8::from(self.is_binary)], self.bytes()],
        )
    }
}
