//! Documents and the requests made from them. A request is encoded once; only its msgid is
//! rewritten for each send.

use sealwire_msgpack::{Malformed, Token, TokenReader, write};
use sealwire_wire as wire;
use sealwire_wire::{
    CommonParams, Decrypt, Detokenize, Encrypt, TokenLookupScope, Tokenize, TokenizeOptions,
    Writing, request,
};

use crate::load::{Method, Request, Scope, Suite};
use crate::random::Random;

/// A msgid of five bytes, so that any other 32-bit msgid fits in its place, after the array header,
/// the type and the marker.
pub(crate) const MSGID: u32 = 0x8000_0000;
const MSGID_AT: std::ops::Range<usize> = 3..7;
/// Values in a response besides its payload: the array, type, msgid and nil, the map, its two keys
/// and the generation.
const AROUND_PAYLOAD: u64 = 8;
/// The keys of a row, in order.
const COLUMNS: [&str; 10] = [
    "id", "number", "name", "street", "city", "postcode", "country", "email", "phone", "note",
];
/// Characters of the random fields.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .";

/// Builds `{"rows": [{"id": .., "number": .., ..}, ..]}` with `fields` strings of `field_bytes`
/// random characters each.
pub(crate) fn document(fields: u32, field_bytes: u32, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + fields as usize * (field_bytes as usize + 12));
    write::map_len(&mut out, 1);
    write::str(&mut out, "rows");
    write::array_len(&mut out, fields.div_ceil(COLUMNS.len() as u32));
    for row in (0..fields).step_by(COLUMNS.len()) {
        let columns = (fields - row).min(COLUMNS.len() as u32);
        write::map_len(&mut out, columns);
        for name in &COLUMNS[..columns as usize] {
            write::str(&mut out, name);
            write::str_header(&mut out, field_bytes as usize);
            out.extend((0..field_bytes).map(|_| LETTERS[random.below(LETTERS.len())]));
        }
    }
    out
}

/// Returns the number of values in a document, including the document itself; 0 if the document is
/// malformed.
fn values(document: &[u8]) -> u64 {
    let mut reader = TokenReader::new(document);
    let mut count = 0;
    while !reader.is_at_end() {
        if reader.token().is_err() {
            return 0;
        }
        count += 1;
    }
    count
}

/// An encoded request.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The plaintext document.
    pub(crate) plain: Vec<u8>,
    /// Number of values in a correct response.
    pub(crate) values: u64,
    bytes: Vec<u8>,
}

impl Frame {
    /// Encodes a request with `payload`, which is `plain` or its sealed form.
    pub(crate) fn new(
        app: &str,
        call: &Request,
        method: Method,
        plain: Vec<u8>,
        payload: &[u8],
    ) -> Self {
        let mut bytes = Vec::with_capacity(payload.len() + 256);
        encode(&mut bytes, MSGID, app, call, method, payload);
        Self {
            values: AROUND_PAYLOAD + values(payload),
            plain,
            bytes,
        }
    }

    /// Appends the request with the given msgid, which must be at least 65,536.
    pub(crate) fn append(&self, out: &mut Vec<u8>, msgid: u32) {
        let at = out.len();
        out.extend_from_slice(&self.bytes);
        out[at + MSGID_AT.start..at + MSGID_AT.end].copy_from_slice(&msgid.to_be_bytes());
    }

    /// Returns the length of the encoded request in bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }
}

/// Appends a request for the given method, with the options of `call`.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    msgid: u32,
    app: &str,
    call: &Request,
    method: Method,
    payload: &[u8],
) {
    let deadline_ms = call.deadline_ms;
    let collection = &*call.collection;
    match method {
        Method::Encrypt => {
            let suite = match call.suite {
                Suite::P256 => wire::Suite::P256,
                Suite::Secp256k1 => wire::Suite::Secp256k1,
                Suite::Xaes => wire::Suite::Xaes,
                Suite::P256Psk => wire::Suite::P256Psk,
            };
            let key_scope = match call.scope {
                Scope::Request => wire::KeyScope::Request,
                Scope::Field => wire::KeyScope::Field,
                Scope::Epoch => wire::KeyScope::Epoch,
            };
            let writing = Writing {
                suite: Some(suite),
                key_scope,
                ..Writing::default()
            };
            request::encrypt(
                out,
                msgid,
                &Encrypt {
                    options: CommonParams {
                        deadline_ms,
                        ..CommonParams::default()
                    },
                    writing,
                    ..Encrypt::new(app, payload)
                },
            );
        }
        Method::Decrypt => request::decrypt(
            out,
            msgid,
            &Decrypt {
                options: CommonParams {
                    deadline_ms,
                    ..CommonParams::default()
                },
                ..Decrypt::new(app, payload)
            },
        ),
        Method::Tokenize => {
            let writing = TokenizeOptions {
                collection,
                ..TokenizeOptions::default()
            };
            request::tokenize(
                out,
                msgid,
                &Tokenize {
                    options: CommonParams {
                        deadline_ms,
                        ..CommonParams::default()
                    },
                    writing,
                    ..Tokenize::new(app, payload)
                },
            );
        }
        Method::Detokenize => {
            let writing = TokenLookupScope { collection };
            request::detokenize(
                out,
                msgid,
                &Detokenize {
                    options: CommonParams {
                        deadline_ms,
                        ..CommonParams::default()
                    },
                    writing,
                    ..Detokenize::new(app, payload)
                },
            );
        }
    }
}

/// Returns true if `other` has the shape of `plain` from [`document`], with every field changed and
/// every key kept.
///
/// # Errors
/// Fails if one of them is not MessagePack.
pub(crate) fn every_field_changed(plain: &[u8], other: &[u8]) -> Result<bool, Malformed> {
    let mut plain = TokenReader::new(plain);
    let mut other = TokenReader::new(other);
    let mut is_field = false;
    while !plain.is_at_end() {
        let sent = plain.token()?;
        let came = other.token()?;
        let is_good = match sent {
            Token::Str(_) if is_field => {
                matches!(came, Token::Str(_) | Token::Bin(_)) && sent != came
            }
            _ => sent == came,
        };
        if !is_good {
            return Ok(false);
        }
        // Each field follows its key; the array after the first key starts with maps.
        is_field = matches!(sent, Token::Str(_)) && !is_field;
    }
    Ok(other.is_at_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_stayed_or_a_key_that_changed_is_seen() {
        let mut random = Random::new(1);
        let plain = document(25, 8, &mut random);
        let other = document(25, 8, &mut random);
        assert_eq!(every_field_changed(&plain, &other), Ok(true));
        assert_eq!(every_field_changed(&plain, &plain), Ok(false));
        let mut renamed = other.clone();
        renamed[2] ^= 1;
        assert_eq!(
            every_field_changed(&plain, &renamed),
            Ok(false),
            "the key of the rows"
        );
        let at = plain.len() - 8;
        let stayed = [&other[..at], &plain[at..]].concat();
        assert_eq!(every_field_changed(&plain, &stayed), Ok(false));
        let short = &other[..other.len() - 1];
        assert!(every_field_changed(&plain, short).is_err());
        assert_eq!(
            every_field_changed(&plain, &[&other[..], &[0xc0]].concat()),
            Ok(false)
        );
    }
}
