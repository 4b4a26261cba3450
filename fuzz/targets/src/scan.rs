//! Messages on a connection: the scanner finds the same messages regardless of cuts, and the
//! decoder stays within each message.

use sealwire_wire::{
    Disposition, FrameLayout, Limits, Method, Request, RpcError, Scan, ScanError, Scanner, Span,
    decode_cancel, decode_errors, request,
};

use crate::seed::{packed, packed_words};
use crate::{Input, Seed};

/// An event that a connection would act on.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Message {
        at: usize,
        found: FrameLayout,
    },
    Refused {
        at: usize,
        error: ScanError,
        disposition: Disposition,
    },
}

/// Limits that are small enough for short inputs to reach them.
const LIMITS: Limits = Limits {
    message_bytes_max: 256,
    depth_max: 8,
    elements_max: 64,
    discard_bytes_max: 512,
};

/// Scans a stream twice, as a whole and in pieces. Settings: flags, sizes of pieces.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let flags = input.byte();
    let pieces = input.list(Input::byte);
    let limits = if flags & 1 != 0 {
        LIMITS
    } else {
        Limits::default()
    };
    let replies = flags & 2 != 0;
    let whole = scan(input.0, &[], limits, replies);
    let cut = scan(input.0, &pieces, limits, replies);
    assert_eq!(messages(&whole), messages(&cut));
    assert_eq!(whole.len(), cut.len(), "{whole:?} {cut:?}");
}

/// Scans `stream` in pieces. `pieces` contains the maximum sizes of pieces and is repeated.
fn scan(stream: &[u8], pieces: &[u8], limits: Limits, replies: bool) -> Vec<Seen> {
    let mut scanner = if replies {
        Scanner::for_replies(limits)
    } else {
        Scanner::for_requests(limits)
    };
    let mut taken = 0;
    let mut arrived = 0;
    let mut seen = Vec::new();
    let mut pieces = pieces.iter().cycle();
    loop {
        match scanner.scan(&stream[taken..arrived]) {
            Scan::Incomplete if arrived == stream.len() => return seen,
            Scan::Incomplete => {
                if let Some(whole) = scanner
                    .preview(&stream[taken..arrived])
                    .and_then(|preview| preview.whole)
                {
                    assert!(
                        (scanner.bytes_at_least()..=limits.message_bytes_max)
                            .contains(&whole.bytes)
                    );
                    assert!((1..=limits.elements_max).contains(&whole.leaves));
                }
                let piece = pieces
                    .next()
                    .map_or(usize::MAX, |piece| 1 + usize::from(*piece));
                arrived = stream.len().min(arrived.saturating_add(piece));
            }
            Scan::Message(found) => {
                assert!(found.bytes > 0 && taken + found.bytes <= arrived);
                assert!(
                    found.bytes as u64 <= limits.message_bytes_max
                        && found.elements <= limits.elements_max
                );
                assert!(found.leaves <= found.elements);
                decode(&stream[taken..taken + found.bytes], &found);
                seen.push(Seen::Message { at: taken, found });
                taken += found.bytes;
            }
            Scan::Rejected {
                error, disposition, ..
            } => {
                assert!(!RpcError::from(error).message.is_empty());
                seen.push(Seen::Refused {
                    at: taken,
                    error,
                    disposition,
                });
                if disposition == Disposition::Close {
                    return seen;
                }
            }
            Scan::Discard { bytes, .. } => {
                assert!(bytes > 0 && taken + bytes <= arrived);
                taken += bytes;
            }
        }
    }
}

fn decode(message: &[u8], found: &FrameLayout) {
    let _ = decode_cancel(message);
    let _ = decode_errors(message);
    let call = match Request::decode(message, found) {
        Ok(call) => call,
        Err(error) => return assert!(!RpcError::from(error).message.is_empty()),
    };
    assert!(is_same(&encode_again(&call), &call));
    let payload = match call {
        Request::Encrypt(call) | Request::Rewrap(call) => call.payload,
        Request::Decrypt(call) => call.payload,
        Request::Tokenize(call) => call.payload,
        Request::Detokenize(call) => call.payload,
        _ => return,
    };
    let Some(Span { start, end }) = found.payload else {
        panic!("the scan found no payload")
    };
    assert!(std::ptr::eq(payload, &message[start..end]));
    assert_eq!(request::check_payload(payload), Ok(()));
}

/// Encodes a request as a client does.
fn encode_again(call: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request::call(&mut out, 7, call);
    out
}

fn is_same(message: &[u8], call: &Request<'_>) -> bool {
    let Scan::Message(found) = Scanner::for_requests(Limits::default()).scan(message) else {
        return false;
    };
    Request::decode(message, &found).as_ref() == Ok(call)
}

/// Returns the messages without the rejections. A message can be rejected for its length while it
/// arrives, before a later error in it is found. So the error depends on the cut.
fn messages(seen: &[Seen]) -> Vec<&Seen> {
    seen.iter()
        .filter(|seen| matches!(seen, Seen::Message { .. }))
        .collect()
}

/// Parameters of requests, one or more per method.
const REQUESTS: &[(&str, &str)] = &[
    (
        "encrypt",
        r#"{"app":"shop","payload":{"card":"4111111111111111","n":[1,-2,0.5,null,true]}}"#,
    ),
    (
        "encrypt",
        r#"{"app":"shop","suite":"xaes","key_scope":"message","encoding":"binary","context":"row 7","select":["$.card"],"unmatched":"report","on_error":"report","deadline_ms":500,"reason":"audit","payload":{"card":"4111"}}"#,
    ),
    (
        "encrypt",
        r#"{"payload":[1,[2,[3]]],"app":"shop","format":"evervault","role":"support"}"#,
    ),
    (
        "decrypt",
        r#"{"app":"shop","payload":"sw1:AYK","masks":[{"path":"$.card","mask":"partial(last=4)"}]}"#,
    ),
    (
        "rewrap",
        r#"{"app":"shop","unbound":"bind","context":"x","payload":["sw1:"]}"#,
    ),
    (
        "rewrap",
        r#"{"app":"shop","contexts":{"path":"$.id"},"suite":null,"payload":[{"id":7,"a":"sw1:"}]}"#,
    ),
    (
        "decrypt",
        r#"{"app":"shop","contexts":["row 7","row 8"],"payload":["sw1:","sw1:"]}"#,
    ),
    (
        "mask",
        r#"{"app":"shop","unknown":"keep","masks":[{"path":"$.card","mask":"card"}],"payload":{"card":"4111"}}"#,
    ),
    (
        "tokenize",
        r#"{"app":"shop","collection":"people","tags":["a","b"],"idempotency_key":"k1","payload":{"a":"x"}}"#,
    ),
    (
        "tokenize",
        r#"{"app":"shop","collection":"people","tokens":{"$.a":"people"},"payload":{"a":"x"}}"#,
    ),
    (
        "detokenize",
        r#"{"app":"shop","collection":"people","payload":["tok_0123456789abcdefghijkl"]}"#,
    ),
    ("inspect", r#"{"envelope":"sw1:AYK_g002A2QNyAK4zx40"}"#),
    ("info", "{}"),
    ("health", "{}"),
];

fn request(method: &str, params: &str) -> Vec<u8> {
    packed(&format!(r#"[0,7,"{method}",[{params}]]"#))
}

/// Fills every parameter of a method with a value of a valid type.
fn example_params(method: Method) -> String {
    let value = |name: &str, types: &str, rule: &str| {
        if let Some(first) = rule
            .strip_prefix('"')
            .and_then(|rule| rule.split('"').next())
        {
            return format!("\"{first}\"");
        }
        match name {
            "tokens" => r#"["tok_0123456789abcdefghijkl"]"#.to_owned(),
            "grants" => r#"["encrypt,decrypt apps=shop"]"#.to_owned(),
            "principal" => r#""dns:relay.internal""#.to_owned(),
            "operation" => r#""decrypt""#.to_owned(),
            "key" => r#""0123456789""#.to_owned(),
            _ if types.contains("array") => r#"["administrator"]"#.to_owned(),
            _ if types.contains("integer") => "60".to_owned(),
            _ if types.contains("bool") => "true".to_owned(),
            _ if types.contains("map") => "{}".to_owned(),
            _ => r#""shop""#.to_owned(),
        }
    };
    let params = method
        .params()
        .iter()
        .map(|param| (param.name, value(param.name, param.types, param.rule)));
    format!(
        "{{{}}}",
        params
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect::<Vec<_>>()
            .join(",")
    )
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (at, (method, params)) in REQUESTS.iter().enumerate() {
        seeds.push(Seed::new(
            format!("request-{at:02}-{method}"),
            &[0, 1, 40],
            request(method, params),
        ));
    }
    for method in Method::ALL {
        seeds.push(Seed::new(
            format!("filled-{method}"),
            &[0, 2, 3, 200],
            request(method.name(), &example_params(method)),
        ));
    }
    let replies = [
        packed(r#"[1,7,null,{"payload":[1]}]"#),
        packed(r#"[1,7,{"code":"busy"},null]"#),
    ]
    .concat();
    seeds.push(Seed::new("replies", &[2, 1, 3], replies));
    let cancel = packed(r#"[2,"cancel",[{"msgid":7}]]"#);
    let stream = [
        cancel,
        request("health", "{}"),
        request("encrypt", r#"{"payload":"x"}"#),
    ]
    .concat();
    seeds.push(Seed::new(
        "errors",
        &[0, 1, 0],
        packed(r#"[2,"errors",["text"]]"#),
    ));
    seeds.push(Seed::new("stream", &[0, 1, 0], &stream));
    seeds.push(Seed::new(
        "stream-small-limits",
        &[1, 1, 5],
        stream.repeat(6),
    ));
    seeds.push(Seed::new(
        "long-string",
        &[1, 1, 9],
        [
            b"\x94\x00\x07\xa4info\xdb\0\0\x01\x50".as_slice(),
            &[b'a'; 336],
        ]
        .concat(),
    ));
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let names = Method::ALL
        .into_iter()
        .flat_map(|method| method.params().iter().map(|param| param.name));
    let mut names: Vec<&str> = names
        .chain(Method::ALL.map(Method::name))
        .chain(["cancel", "errors", "msgid", "text"])
        .collect();
    names.sort_unstable();
    names.dedup();
    let values = [
        "p256",
        "xaes",
        "message",
        "binary",
        "report",
        "keep",
        "refuse",
        "evervault",
        "$.a",
        "$[*]",
        "tok_",
        "sw1:",
    ];
    packed_words(names.into_iter().chain(values))
}
