//! Classifies values of a column by their bytes. The classes are not authenticated.

use memchr::memmem;
use sealwire_crypto::{
    EncapsulationPlace, Envelope, KeyId, Suite, TEXT_PREFIX, looks_like_binary, looks_like_text,
};

use crate::rewrap_job::engine::Encoding;
use crate::rewrap_job::report::LeftReason;

/// A value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueClass {
    /// An envelope that the engine can try to open.
    Envelope {
        /// The key version that the envelope names.
        key: KeyId,
        suite: Suite,
    },
    /// Data that was never encrypted.
    Plain,
    /// A value that no job can rewrap.
    Left(LeftReason),
}

/// Classifies a value that is not null.
pub(crate) fn classify(value: &[u8], encoding: Encoding) -> ValueClass {
    let (is_own, is_other, parsed) = match encoding {
        Encoding::Text => (looks_like_text(value), false, Envelope::from_text(value)),
        Encoding::Binary => (
            looks_like_binary(value),
            looks_like_text(value),
            Envelope::from_binary(value),
        ),
    };
    match parsed {
        Some(envelope) if envelope.encapsulation == Some(EncapsulationPlace::Apart) => {
            ValueClass::Left(LeftReason::Apart)
        }
        Some(envelope) => ValueClass::Envelope {
            key: envelope.key_id,
            suite: envelope.suite,
        },
        None if is_own => ValueClass::Left(LeftReason::Malformed),
        None if is_other => ValueClass::Left(LeftReason::TextInBytes),
        None if is_evervault(value) => ValueClass::Left(LeftReason::Evervault),
        None if contains_envelope(value) => ValueClass::Left(LeftReason::Inside),
        None => ValueClass::Plain,
    }
}

/// Returns true if a value contains a text envelope or an Evervault string, such as a JSON document
/// in a text column. Does not search for binary envelopes inside other bytes, since their first
/// three bytes occur by chance.
fn contains_envelope(value: &[u8]) -> bool {
    let mut envelopes = memmem::find_iter(value, TEXT_PREFIX).map(|at| &value[at..]);
    envelopes.any(begins_with_envelope)
        || contains_evervault_string(value)
        || memmem::find(value, b"%EVENC").is_some()
}

fn begins_with_envelope(text: &[u8]) -> bool {
    // The body is base64url.
    let body = text[TEXT_PREFIX.len()..]
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        .count();
    Envelope::from_text(&text[..TEXT_PREFIX.len() + body]).is_some()
}

fn contains_evervault_string(value: &[u8]) -> bool {
    let mut rest = value;
    while let Some(at) = memmem::find(rest, b"ev:") {
        let length = rest[at..]
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || b":+/=-_".contains(byte))
            .count();
        let (string, after) = rest[at..].split_at(length);
        if string.ends_with(b":") && string.len() > b"ev:".len() && after.starts_with(b"$") {
            return true;
        }
        // Another start in the same run of characters would have the same end, so the run is
        // skipped.
        rest = after;
    }
    false
}

/// Returns true for Evervault strings and files, which do not name their key.
fn is_evervault(value: &[u8]) -> bool {
    value.starts_with(b"%EVENC") || value.starts_with(b"ev:") && value.ends_with(b":$")
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    /// Header and body of an envelope with the right lengths, and nothing that would open.
    fn envelope(suite: u8) -> Vec<u8> {
        let header = match suite {
            3 => 27,
            4 => 27,
            _ => 39,
        };
        let mut bytes = vec![0; header + 5 + 16 + 4];
        bytes[..6].copy_from_slice(&[suite, 1, 2, 3, 4, 5]);
        bytes
    }

    fn text(suite: u8) -> Vec<u8> {
        format!("sw1:{}", URL_SAFE_NO_PAD.encode(envelope(suite))).into_bytes()
    }

    fn binary(suite: u8) -> Vec<u8> {
        [&[0x53, 0x57, 0x01][..], &envelope(suite)].concat()
    }

    #[test]
    fn envelopes_name_their_key() {
        for suite in [1, 2, 3] {
            let expected = KeyId::from_bytes([1, 2, 3, 4, 5]);
            for (value, encoding) in [
                (text(suite), Encoding::Text),
                (binary(suite), Encoding::Binary),
            ] {
                let ValueClass::Envelope { key, suite: named } = classify(&value, encoding) else {
                    panic!("suite {suite} is no envelope")
                };
                assert_eq!((key, named.byte()), (expected, suite));
            }
        }
    }

    #[test]
    fn classify_gives_the_reason_for_values_without_envelopes() {
        use Encoding::{Binary, Text};
        use LeftReason::{Apart, Evervault, Inside, Malformed, TextInBytes};
        let document = |inner: &[u8]| [b"{\"ssn\":\"", inner, b"\"}"].concat();
        for (value, encoding, expected) in [
            (&b""[..], Text, ValueClass::Plain),
            (b"4242 4242", Text, ValueClass::Plain),
            (b"ev:no end", Text, ValueClass::Plain),
            (
                b"the prefix sw1: begins an envelope",
                Text,
                ValueClass::Plain,
            ),
            (&binary(1), Text, ValueClass::Plain),
            (b"\x00\x01", Binary, ValueClass::Plain),
            (b"ev:abc:def:$", Text, ValueClass::Left(Evervault)),
            (b"%EVENC...", Binary, ValueClass::Left(Evervault)),
            (b"sw1:", Text, ValueClass::Left(Malformed)),
            (b"sw1:short", Text, ValueClass::Left(Malformed)),
            (&text(1)[..60], Text, ValueClass::Left(Malformed)),
            (&text(9), Text, ValueClass::Left(Malformed)),
            (&binary(1)[..50], Binary, ValueClass::Left(Malformed)),
            (&text(1), Binary, ValueClass::Left(TextInBytes)),
            (&document(&text(1)), Text, ValueClass::Left(Inside)),
            (&document(&text(4)), Binary, ValueClass::Left(Inside)),
            (
                &[b" ", &text(3)[..]].concat(),
                Text,
                ValueClass::Left(Inside),
            ),
            (
                &[b"sw1:no sw1:", &text(3)[..]].concat(),
                Text,
                ValueClass::Left(Malformed),
            ),
            (&document(b"ev:abc:def:$"), Text, ValueClass::Left(Inside)),
            (b"a file: %EVENC...", Text, ValueClass::Left(Inside)),
            (&document(b"sw1:short"), Text, ValueClass::Plain),
            (&document(&text(9)), Text, ValueClass::Plain),
            (b"prev: 12 USD:$", Text, ValueClass::Plain),
            (b"ev:$ or ev:", Text, ValueClass::Plain),
            (&b"ev:".repeat(1 << 20), Text, ValueClass::Plain),
            (
                &[&b"ev:".repeat(1 << 20)[..], b"$"].concat(),
                Text,
                ValueClass::Left(Evervault),
            ),
            (
                &[&b"x ev:".repeat(1 << 18)[..], b"a:$"].concat(),
                Text,
                ValueClass::Left(Inside),
            ),
            (&text(4), Text, ValueClass::Left(Apart)),
            (&binary(4), Binary, ValueClass::Left(Apart)),
        ] {
            assert_eq!(classify(value, encoding), expected, "{value:02x?}");
        }
    }
}
