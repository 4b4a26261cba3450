//! Recognizes envelopes by their form (`proto/envelope.md`, `proto/evervault.md`), without any key.
//!
//! Only the key can decide whether an envelope can be decrypted. The key id is public in every
//! envelope, so it proves nothing, and no engine tells clients the key ids of an app. A route that
//! must let no value pass sets `unneeded = "deny"`.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Least bytes of a body: the datatype, the sequence number and the tag.
const BODY_BYTES_MIN: usize = 21;
/// Length of the header of the elliptic-curve suites, whose last part is a point.
const POINT_HEADER: usize = 39;
const POINT_AT: usize = 6;
/// Length of the header of the other suites.
const HEADER: usize = 27;
/// Length of an encapsulation of `p256-mlkem768`: an ML-KEM ciphertext, a point and two zeros.
const ENCAPSULATION: usize = 1_155;
const ENCAPSULATION_POINT_AT: usize = 1_088;

/// Returns true if a text has the form of an envelope of a Sealwire engine.
pub fn is_native(text: &str) -> bool {
    let Some(encoded) = text.strip_prefix("sw1:") else {
        return false;
    };
    let Ok(bytes) = URL_SAFE_NO_PAD.decode(encoded) else {
        return false;
    };
    let header = match (bytes.first(), bytes.get(HEADER - 1)) {
        (Some(1 | 2 | 5 | 6), _) if is_compressed(bytes.get(POINT_AT)) => POINT_HEADER,
        (Some(3), Some(0)) | (Some(4), Some(0)) => HEADER,
        (Some(4), Some(1)) => {
            let has_point = bytes.get(HEADER + ENCAPSULATION_POINT_AT) == Some(&4);
            let has_zeros = bytes.get(HEADER + ENCAPSULATION - 2..HEADER + ENCAPSULATION)
                == Some(&[0u8, 0][..]);
            if !has_point || !has_zeros {
                return false;
            }
            HEADER + ENCAPSULATION
        }
        _ => return false,
    };
    bytes.get(header..).is_some_and(|body| {
        body.len() >= BODY_BYTES_MIN && body.first().is_some_and(|datatype| *datatype <= 2)
    })
}

/// Returns true if a text has the form of an encrypted string of an Evervault client.
pub fn is_evervault(text: &str) -> bool {
    let Some(inner) = text
        .strip_prefix("ev:")
        .and_then(|rest| rest.strip_suffix(":$"))
    else {
        return false;
    };
    let parts: Vec<&str> = inner.split(':').collect();
    let [kind @ .., iv, point, ciphertext] = &parts[..] else {
        return false;
    };
    let kind = match kind {
        [
            "QkTC" | "S0lS" | "Tk9D" | "RFVC" | "TENZ" | "QlJV" | "T1JL",
            kind @ ..,
        ] => kind,
        kind => kind,
    };
    matches!(kind, [] | ["string" | "number" | "boolean"])
        && decode_part(iv).is_some_and(|iv| iv.len() == 12)
        && decode_part(point).is_some_and(|point| point.len() == 33 && is_compressed(point.first()))
        && decode_part(ciphertext).is_some_and(|ciphertext| ciphertext.len() >= 16)
}

/// Decodes a part of an Evervault string: base64 with or without padding.
fn decode_part(part: &str) -> Option<Vec<u8>> {
    STANDARD_NO_PAD.decode(part.trim_end_matches('=')).ok()
}

/// Returns true for the first byte of a compressed point (SEC 1, section 2.3.3).
const fn is_compressed(byte: Option<&u8>) -> bool {
    matches!(byte, Some(2 | 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        format!("sw1:{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// A header of a suite, and a body with this datatype and as many bytes.
    fn native(suite: u8, datatype: u8, body: usize) -> Vec<u8> {
        let mut bytes = vec![suite, 9, 9, 9, 9, 9];
        match suite {
            3 => bytes.extend_from_slice(&[&[7; 20][..], &[0]].concat()),
            4 => bytes.extend_from_slice(
                &[&[7; 20][..], &[1], &[7; 1_088], &[4], &[7; 64], &[0, 0]].concat(),
            ),
            _ => bytes.extend_from_slice(&[&[2][..], &[7; 32]].concat()),
        }
        bytes.push(datatype);
        bytes.resize(bytes.len() + body - 1, 0x42);
        bytes
    }

    #[test]
    fn a_native_envelope_has_a_header_and_a_body() {
        for suite in 1..=6 {
            for (datatype, body, expected) in [
                (0, 21, true),
                (2, 90, true),
                (3, 21, false),
                (0x42, 90, false),
                (0, 20, false),
            ] {
                assert_eq!(
                    is_native(&text(&native(suite, datatype, body))),
                    expected,
                    "{suite} {datatype} {body}"
                );
            }
        }
        let apart = [&native(4, 0, 21)[..26], &[0, 0], &[7; 20]].concat();
        assert!(is_native(&text(&apart)));

        // One change each.
        let changed = |suite: u8, at: usize, byte: u8| {
            let mut bytes = native(suite, 0, 40);
            bytes[at] = byte;
            text(&bytes)
        };
        let whole = text(&native(1, 0, 22));
        let cases = [
            changed(1, 0, 0),
            changed(1, 0, 7),
            changed(1, 0, 0x42),
            changed(1, 6, 4),
            changed(5, 6, 0x42),
            changed(3, 26, 1),
            changed(4, 26, 2),
            changed(4, 27 + 1_088, 2),
            changed(4, 27 + 1_154, 1),
            format!("sw1:{}", "42".repeat(40)),
            format!("sw1:{}", "4242424242424242".repeat(100)),
            "sw1:4242424242424242".to_owned(),
            "sw1:".to_owned(),
            "sw1".to_owned(),
            format!(" {whole}"),
            format!("{whole} "),
            format!("{whole}="),
            whole.replacen("sw1:", "SW1:", 1),
            whole.replacen("sw1:", "sw2:", 1),
            // Bits that no encoder sets.
            format!("{}{}", &whole[..whole.len() - 1], '_'),
        ];
        assert!(is_native(&whole));
        for text in cases {
            assert!(!is_native(&text), "{text}");
        }
    }

    #[test]
    fn an_evervault_string_has_a_nonce_a_point_and_a_ciphertext() {
        let encode = |bytes: &[u8]| STANDARD_NO_PAD.encode(bytes);
        let (iv, point, ciphertext) = (
            encode(&[7; 12]),
            encode(&[&[3][..], &[7; 32]].concat()),
            encode(&[7; 24]),
        );
        let (even, digits) = (encode(&[&[4][..], &[7; 32]].concat()), "4242424242424242");
        for (text, expected) in [
            (format!("ev:QkTC:{iv}:{point}:{ciphertext}:$"), true),
            (format!("ev:T1JL:number:{iv}:{point}:{ciphertext}:$"), true),
            (
                format!("ev:boolean:{iv}:{point}:{}=:$", encode(&[7; 17])),
                true,
            ),
            (format!("ev:{iv}:{point}:{ciphertext}:$"), true),
            (format!("ev:debug:QkTC:{iv}:{point}:{ciphertext}:$"), false),
            (format!("ev:XXXX:{iv}:{point}:{ciphertext}:$"), false),
            (format!("ev:number:QkTC:{iv}:{point}:{ciphertext}:$"), false),
            (format!("ev:QkTC:{digits}:{digits}:{digits}:$"), false),
            (format!("ev:QkTC:{iv}:{even}:{ciphertext}:$"), false),
            (format!("ev:QkTC:{iv}:{point}:{digits}:$"), false),
            (format!("ev:QkTC:{iv}:{point}:$"), false),
            (format!("ev:QkTC:{iv}:{point}:{ciphertext}"), false),
            (digits.repeat(8), false),
        ] {
            assert_eq!(is_evervault(&text), expected, "{text}");
        }
    }
}
