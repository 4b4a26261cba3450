//! Parameters of HTTP requests: whatever headers and a request object say, the engine gets one map
//! with the app of the path.

use http::{HeaderMap, HeaderName, HeaderValue};
use sealwire_http::encode_params;
use sealwire_msgpack::TokenReader;
use sealwire_wire::{Method, Methods};

use crate::seed::{packed, words as list};
use crate::{Input, Seed};

/// Encodes the parameters of a request. Settings: the method, and lines of headers up to a zero byte.
/// A request object in MessagePack follows, unless nothing does.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let methods: Vec<Method> = Methods::DATA.iter().collect();
    let method = methods[usize::from(input.byte()) % methods.len()];
    let mut headers = HeaderMap::new();
    for line in input.until(0).split(|byte| *byte == b'\n') {
        let colon = line.iter().position(|byte| *byte == b':');
        let Some((name, value)) = colon.map(|at| (&line[..at], &line[at + 1..])) else {
            continue;
        };
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    // The exchange checks that a body is one value before it reads the parameters.
    let object = Some(input.0)
        .filter(|bytes| !bytes.is_empty())
        .filter(|bytes| sealwire_wire::request::check_payload(bytes).is_ok());

    match encode_params(method, "demo", &headers, object) {
        Ok(map) => {
            let mut reader = TokenReader::new(&map);
            let len = reader.map_len().expect("a map");
            let mut apps = Vec::new();
            for _ in 0..len {
                let name = reader.str_utf8().expect("a name");
                let value = reader.value().expect("a value");
                if name == "app" {
                    apps.push(value);
                }
            }
            assert_eq!(reader.position(), map.len());
            assert_eq!(apps, [b"\xa4demo"]);
        }
        Err(sentence) => assert!(!sentence.is_empty()),
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let at = |method: Method| {
        let position = Methods::DATA.iter().position(|other| other == method);
        position.expect("a data method") as u8
    };
    let object = packed(r#"{"payload":{"a":1},"select":["$.a"],"suite":"xaes"}"#);
    let app = packed(r#"{"app":"other"}"#);
    [
        (
            "headers",
            Method::Encrypt,
            "sealwire-select: $.a, \"$['b,c']\"\nsealwire-deadline-ms: 500",
            &[][..],
        ),
        (
            "standard",
            Method::Tokenize,
            "traceparent: 00-x\nidempotency-key: a\nsealwire-collection: people",
            &[],
        ),
        (
            "contexts",
            Method::Decrypt,
            "sealwire-context-path: $.id\nsealwire-contexts: a, b",
            &[],
        ),
        ("unknown", Method::Encrypt, "sealwire-selct: $.a", &[]),
        ("app", Method::Encrypt, "sealwire-app: other", &[]),
        (
            "object",
            Method::Encrypt,
            "sealwire-key-scope: field",
            &object,
        ),
        ("object-app", Method::Decrypt, "", &app),
        ("cut", Method::Decrypt, "", &object[..9]),
    ]
    .map(|(name, method, headers, object)| {
        let settings = [&[at(method)], headers.as_bytes(), &[0]].concat();
        Seed::new(name, &settings, object)
    })
    .into()
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "sealwire-",
        "select: ",
        "context: ",
        "suite: ",
        "deadline-ms: ",
        "idempotency-key: ",
        "traceparent: ",
        "payload: ",
        "app: ",
        "\", \"",
        "\\\"",
    ])
}
