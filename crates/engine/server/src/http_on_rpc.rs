//! HTTP requests on listeners of MessagePack-RPC: recognizes them, and responds in HTTP.
//!
//! Somebody who tries the engine with `curl` gets a sentence that names the right listener. Without
//! this module the client would report bytes that it does not understand.

/// A listener of MessagePack-RPC.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listener {
    Data,
    Control,
}

/// First bytes of HTTP requests. No request of MessagePack-RPC starts with a letter.
const VERBS: [&[u8]; 10] = [
    b"GET ",
    b"POST ",
    b"PUT ",
    b"HEAD ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
    b"PRI ",
];

/// Returns true if the first bytes of a connection start an HTTP request. They can end within the
/// first word.
pub(crate) fn is_request(bytes: &[u8]) -> bool {
    let is_start = |verb: &&[u8]| bytes.starts_with(verb) || verb.starts_with(bytes);
    !bytes.is_empty() && VERBS.iter().any(is_start)
}

/// Returns the response to an HTTP request, after which the connection closes.
pub(crate) fn response(listener: Listener) -> Vec<u8> {
    let detail = match listener {
        Listener::Data => {
            "listen.address is the listener of MessagePack-RPC; send HTTP requests to the address in the setting http.address"
        }
        Listener::Control => {
            "control.address is the listener of operators, for MessagePack-RPC; send HTTP requests on data to the address in the setting http.address"
        }
    };
    let body = format!(
        r#"{{"type":"urn:sealwire:error:bad_request","title":"Bad Request","status":400,"detail":"{detail}","code":"bad_request"}}"#
    );
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_recognized_by_their_first_bytes() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], true),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true),
            (b"P", true),
            (b"POST", true),
            (b"", false),
            (b"POSTS / HTTP/1.1", false),
            (b"get / HTTP/1.1", false),
            (b"\x94\x00\x01\xa6health", false),
            (b"\x16\x03\x01", false),
        ] {
            assert_eq!(is_request(bytes), expected, "{bytes:?}");
        }
    }
}
