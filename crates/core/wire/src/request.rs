//! Encodes requests, for clients. Omits values that equal their default, since the request then
//! means the same.
//!
//! The encoder does not check limits. The server checks them and names the broken rule in its
//! response. A client can check a payload with [`check_payload`].

use sealwire_msgpack::{Malformed, TokenReader, write};

use crate::method::{Method, Notification};
use crate::params::declare::{Parameters, Writer};
use crate::params::{
    Decrypt, Detokenize, Encrypt, Inspect, Mask, ObjectsRequest, Rewrap, SubjectsRequest, Tokenize,
    TokensRequest,
};
use crate::request_decoder::{Control, Request};
use crate::response_decoder::expect_end;

/// Declares a function per kind of request.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident($call:ident: $type:ty) = $method:expr;)+) => {
        $(
            $(#[$doc])*
            pub fn $name(out: &mut Vec<u8>, msgid: u32, $call: &$type) {
                request(out, msgid, $method, |writer| $call.write(writer));
            }
        )+
    };
}

requests! {
    /// Appends an `encrypt` request. `call.payload` must be one MessagePack value.
    encrypt(call: Encrypt<'_>) = Method::Encrypt;
    /// Appends a `decrypt` request. `call.payload` must be one MessagePack value.
    decrypt(call: Decrypt<'_>) = Method::Decrypt;
    /// Appends a `rewrap` request. `call.payload` must be one MessagePack value.
    rewrap(call: Rewrap<'_>) = Method::Rewrap;
    /// Appends a `tokenize` request. `call.payload` must be one MessagePack value.
    tokenize(call: Tokenize<'_>) = Method::Tokenize;
    /// Appends a `detokenize` request. `call.payload` must be one MessagePack value.
    detokenize(call: Detokenize<'_>) = Method::Detokenize;
    /// Appends a `mask` request. `call.payload` must be one MessagePack value.
    mask(call: Mask<'_>) = Method::Mask;
    /// Appends an `inspect` request.
    inspect(call: Inspect<'_>) = Method::Inspect;
    /// Appends a request of one of the methods on tokens without a document. A value must be one
    /// MessagePack value.
    tokens(call: TokensRequest<'_>) = call.operation.method();
    /// Appends a request of one of the methods on objects. A payload must be one MessagePack value.
    objects(call: ObjectsRequest<'_>) = call.operation.method();
    /// Appends a request of one of the methods on a data subject.
    subjects(call: SubjectsRequest<'_>) = call.operation.method();
    /// Appends a request of a control method.
    control(call: Control<'_>) = call.method();
}

/// Appends any request. A payload must be one MessagePack value.
pub fn call(out: &mut Vec<u8>, msgid: u32, call: &Request<'_>) {
    request(out, msgid, call.method(), |writer| call.write(writer));
}

/// Appends an `info` request.
pub fn info(out: &mut Vec<u8>, msgid: u32) {
    request(out, msgid, Method::Info, |_| ());
}

/// Appends a `health` request.
pub fn health(out: &mut Vec<u8>, msgid: u32) {
    request(out, msgid, Method::Health, |_| ());
}

/// Checks that `payload` is exactly one MessagePack value. A client must check a payload before it
/// sends it: two values, or half a value, would shift every later message of the connection.
///
/// # Errors
/// Returns [`Malformed`] if `payload` is anything else.
pub fn check_payload(payload: &[u8]) -> Result<(), Malformed> {
    let mut reader = TokenReader::new(payload);
    reader.skip_value()?;
    expect_end(&reader)
}

/// Appends a `cancel` notification for the request `msgid`.
pub fn cancel(out: &mut Vec<u8>, msgid: u32) {
    write::array_len(out, 3);
    write::uint(out, 2);
    write::str(out, Notification::Cancel.name());
    write::array_len(out, 1);
    write::uint(out, u64::from(msgid));
}

/// Appends the head of a request. The map of its parameters must follow.
pub fn start(out: &mut Vec<u8>, msgid: u32, method: Method) {
    write::array_len(out, 4);
    write::uint(out, 0);
    write::uint(out, u64::from(msgid));
    write::str(out, method.name());
    write::array_len(out, 1);
}

fn request(out: &mut Vec<u8>, msgid: u32, method: Method, write: impl Fn(&mut Writer<'_>)) {
    start(out, msgid, method);
    let mut writer = Writer::begin(out, method);
    write(&mut writer);
    if method.takes_document() {
        writer.start_document();
        write(&mut writer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_check_accepts_one_value() {
        for payload in [&[0x01][..], &[0x80], &[0x92, 0x01, 0xc0], b"\xa2ok"] {
            assert_eq!(check_payload(payload), Ok(()), "{payload:02x?}");
        }
        for payload in [&[][..], &[0x01, 0x01], &[0x92, 0x01], &[0xc1], b"\xa3ok"] {
            assert!(check_payload(payload).is_err(), "{payload:02x?}");
        }
    }
}
