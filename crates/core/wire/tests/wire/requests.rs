//! Helpers of several tests: scan and decode a message, and find its payload by reading every
//! value.

use sealwire_msgpack::{Token, TokenReader};

use sealwire_wire::*;

/// Scans and decodes the request at the start of the bytes.
pub(crate) fn decode(message: &[u8]) -> Result<Request<'_>, InvalidRequest> {
    match Scanner::for_requests(Limits::default()).scan(message) {
        Scan::Message(boundary) => Request::decode(&message[..boundary.bytes], &boundary),
        other => panic!("not a message: {other:?}"),
    }
}

/// Returns the position of the payload in a whole request, found by skipping every param.
pub(crate) fn payload_by_skipping(message: &[u8]) -> Option<Span> {
    let mut reader = TokenReader::new(message);
    let (4, 0) = (reader.array_len().ok()?, reader.u64().ok()?) else {
        return None;
    };
    reader.u32().ok()?;
    let Token::Str(method) = reader.token().ok()? else {
        return None;
    };
    if !Method::from_name(method)?.takes_document() || reader.array_len() != Ok(1) {
        return None;
    }
    for _ in 0..reader.map_len().ok()? {
        let key = reader.peek().ok()?;
        reader.skip_value().ok()?;
        let start = reader.position();
        reader.skip_value().ok()?;
        if key == Token::Str(b"payload") {
            return Some(Span {
                start,
                end: reader.position(),
            });
        }
    }
    None
}
