//! Encodes calls, for clients. Values at their default are left out, since that is the same call.
//!
//! Does not check limits: the server does, and its answer names the rule. Does not check payloads either unless asked,
//! with [`check_payload`].

use sealwire_msgpack::{Malformed, Reader, write};

use crate::answer::at_end;
use crate::map::Map;
use crate::method::{Method, Notice};
use crate::params::{
    Curve, Decrypt, DocumentCall, Encoding, Encrypt, Envelope, Format, Inspect, KeyScope, OnError, Rewrap, Unbound,
    Writing,
};

/// Appends an `encrypt` request. `call.payload` must be one MessagePack value.
pub fn encrypt(out: &mut Vec<u8>, msgid: u32, call: &Encrypt<'_>) {
    document(out, msgid, Method::Encrypt, call, Some(&call.writing));
}

/// Appends a `decrypt` request. `call.payload` must be one MessagePack value.
pub fn decrypt(out: &mut Vec<u8>, msgid: u32, call: &Decrypt<'_>) {
    document(out, msgid, Method::Decrypt, call, None);
}

/// Appends a `rewrap` request. `call.payload` must be one MessagePack value.
pub fn rewrap(out: &mut Vec<u8>, msgid: u32, call: &Rewrap<'_>) {
    document(out, msgid, Method::Rewrap, call, Some(&call.writing));
}

fn document<W>(
    out: &mut Vec<u8>,
    msgid: u32,
    method: Method,
    call: &DocumentCall<'_, W>,
    writing: Option<&Writing<'_>>,
) {
    begin(out, msgid, method);
    let mut map = Map::begin(out);
    map.text("app", call.app);
    map.select(call.select.as_deref());
    if let Some(writing) = writing {
        map.name("curve", writing.curve, Curve::name);
        map.name("key_scope", writing.key_scope, KeyScope::name);
        map.optional_text("format", writing.format.map(Format::name));
        map.optional_text("role", writing.role);
        map.name("encoding", writing.encoding, Encoding::name);
        map.name("unbound", writing.unbound, Unbound::name);
    }
    map.context(call.context);
    map.name("on_error", call.on_error, OnError::name);
    map.number("deadline_ms", call.deadline_ms.map(u64::from));
    map.number("min_generation", call.min_generation);
    map.payload(call.payload);
}

/// Appends an `inspect` request.
pub fn inspect(out: &mut Vec<u8>, msgid: u32, call: &Inspect<'_>) {
    begin(out, msgid, Method::Inspect);
    let mut map = Map::begin(out);
    map.key("envelope");
    match call.envelope {
        Envelope::Text(text) => write::str(map.out, text),
        Envelope::Binary(bytes) => write::bin(map.out, bytes),
    }
}

/// Appends an `info` request.
pub fn info(out: &mut Vec<u8>, msgid: u32) {
    begin(out, msgid, Method::Info);
    write::map_len(out, 0);
}

/// Appends a `health` request.
pub fn health(out: &mut Vec<u8>, msgid: u32) {
    begin(out, msgid, Method::Health);
    write::map_len(out, 0);
}

/// Whether `payload` is exactly one MessagePack value. A client must check before it sends: two values, or half a one,
/// would shift every later message of the connection.
///
/// # Errors
/// [`Malformed`] if it is not.
pub fn check_payload(payload: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(payload);
    reader.skip_value()?;
    at_end(&reader)
}

/// Appends a `cancel` notification for the call `msgid`.
pub fn cancel(out: &mut Vec<u8>, msgid: u32) {
    write::array_len(out, 3);
    write::uint(out, 2);
    write::str(out, Notice::Cancel.name());
    write::array_len(out, 1);
    write::uint(out, u64::from(msgid));
}

/// Appends a request up to its params map.
fn begin(out: &mut Vec<u8>, msgid: u32, method: Method) {
    write::array_len(out, 4);
    write::uint(out, 0);
    write::uint(out, u64::from(msgid));
    write::str(out, method.name());
    write::array_len(out, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_one_value() {
        for payload in [&[0x01][..], &[0x80], &[0x92, 0x01, 0xc0], b"\xa2ok"] {
            assert_eq!(check_payload(payload), Ok(()), "{payload:02x?}");
        }
        for payload in [&[][..], &[0x01, 0x01], &[0x92, 0x01], &[0xc1], b"\xa3ok"] {
            assert!(check_payload(payload).is_err(), "{payload:02x?}");
        }
    }
}
