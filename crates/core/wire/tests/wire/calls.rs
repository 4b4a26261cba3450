//! Tables for requests: each row has the params of one request and the expected result.

use crate::requests::{decode, payload_by_skipping};
use sealwire_wire::*;

/// `[0, 7, method, [params]]`.
fn message(method: &str, params: &[u8]) -> Vec<u8> {
    let mut message = vec![0x94, 0, 7];
    sealwire_msgpack::write::str(&mut message, method);
    message.push(0x91);
    message.extend_from_slice(params);
    message
}

/// A map of the pairs given as bytes.
fn map(pairs: &[&[u8]]) -> Vec<u8> {
    let mut map = vec![0x80 | u8::try_from(pairs.len()).unwrap()];
    pairs.iter().for_each(|pair| map.extend_from_slice(pair));
    map
}

/// Valid `app` and `payload` pairs, and one more.
fn with(pair: &[u8]) -> Vec<u8> {
    map(&[b"\xa3app\xa1a", b"\xa7payload\x01", pair])
}

fn check(method: &str, params: &[u8], expect: Result<(), &str>) {
    let message = message(method, params);
    let outcome = decode(&message)
        .map(|_| ())
        .map_err(|error| error.to_string());
    assert_eq!(
        outcome,
        expect.map_err(str::to_owned),
        "{method} {params:02x?}"
    );
}

/// Checks one more pair in each method that takes a document.
fn check_each(pair: &[u8], expect: Result<(), &str>) {
    for method in ["encrypt", "decrypt", "rewrap"] {
        check(method, &with(pair), expect);
    }
    for method in ["tokenize", "detokenize"] {
        let payload = b"\xa7payload\x01";
        check(
            method,
            &map(&[b"\xa3app\xa1a", payload, b"\xaacollection\xa1c", pair]),
            expect,
        );
    }
}

#[test]
fn absent_keys_mean_their_defaults() {
    let bytes = message(
        "encrypt",
        &map(&[b"\xa3app\xa1a", b"\xa7payload\x92\x01\xc0"]),
    );
    assert_eq!(
        decode(&bytes),
        Ok(Request::Encrypt(Encrypt::new("a", &[0x92, 0x01, 0xc0])))
    );
    let bytes = message("decrypt", &map(&[b"\xa7payload\xc0", b"\xa3app\xa1a"]));
    assert_eq!(
        decode(&bytes),
        Ok(Request::Decrypt(Decrypt::new("a", &[0xc0])))
    );
    let bytes = message("rewrap", &map(&[b"\xa7payload\xc0", b"\xa3app\xa1a"]));
    assert_eq!(
        decode(&bytes),
        Ok(Request::Rewrap(Rewrap::new("a", &[0xc0])))
    );
}

#[test]
fn decoder_reads_every_key() {
    let call = Encrypt {
        select: Some(vec!["$.a", "$..b"]),
        context: b"row 7",
        on_error: OnError::Report,
        options: CommonParams {
            deadline_ms: Some(3_600_000),
            min_generation: Some(u64::MAX),
            reason: Some("ticket 7: café"),
            traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        },
        writing: Writing {
            suite: Some(Suite::Secp256k1),
            key_scope: KeyScope::Field,
            format: Some(Format::Native),
            role: Some("card-number"),
            encoding: Encoding::Binary,
            ..Writing::default()
        },
        ..Encrypt::new("shop.eu_1-x", &[0x81, 0xa1, b'a', 0x01])
    };
    let mut bytes = Vec::new();
    request::encrypt(&mut bytes, 7, &call);
    assert_eq!(decode(&bytes), Ok(Request::Encrypt(call)));
    let call = Rewrap {
        select: Some(vec!["$.a", "$..b"]),
        context: b"row 7",
        on_error: OnError::Report,
        options: CommonParams {
            deadline_ms: Some(1),
            min_generation: Some(7),
            ..CommonParams::default()
        },
        writing: Writing {
            suite: Some(Suite::Secp256k1),
            encoding: Encoding::Binary,
            unbound: Unbound::Bind,
            ..Writing::default()
        },
        ..Rewrap::new("shop", &[0xc3])
    };
    let mut bytes = Vec::new();
    request::rewrap(&mut bytes, 7, &call);
    assert_eq!(decode(&bytes), Ok(Request::Rewrap(call)));
}

#[test]
fn decoder_checks_keys_and_shapes() {
    let shape = |method: &str| format!("params of {method} must be an array of one map");
    check(
        "encrypt",
        &map(&[b"\xa7payload\x01"]),
        Err("app is missing"),
    );
    check(
        "encrypt",
        &map(&[b"\xa3app\xa1a"]),
        Err("payload is missing"),
    );
    check("encrypt", &[0x80], Err("app is missing"));
    check("inspect", &[0x80], Err("envelope is missing"));
    check_each(b"\xa3app\xa1b", Err("app is given twice"));
    check_each(b"\xa7payload\x01", Err("payload is given twice"));
    check(
        "encrypt",
        &with(b"\xa6colour\x01"),
        Err("encrypt has no parameter \"colour\""),
    );
    check("encrypt", &with(b"\xa4role\xa1r"), Ok(()));
    check(
        "rewrap",
        &with(b"\xa4role\xa1r"),
        Err("rewrap has no parameter \"role\""),
    );
    check(
        "decrypt",
        &with(b"\xa5suite\xa4p256"),
        Err("decrypt has no parameter \"suite\""),
    );
    check("rewrap", &with(b"\xa5suite\xa4p256"), Ok(()));
    check("rewrap", &with(b"\xa9key_scope\xa5field"), Ok(()));
    check(
        "decrypt",
        &with(b"\xa9key_scope\xa5field"),
        Err("decrypt has no parameter \"key_scope\""),
    );
    check(
        "info",
        &map(&[b"\xa1a\x01"]),
        Err("info has no parameter \"a\""),
    );
    check(
        "encrypt",
        &with(b"\xa5\n\"<\xc3\xa9\x01"),
        Err("encrypt has no parameter \"?????\""),
    );
    let long = [&[0xd9, 200][..], &[b'k'; 200], &[1]].concat();
    check(
        "encrypt",
        &with(&long),
        Err(&format!("encrypt has no parameter \"{}\"", "k".repeat(64))),
    );
    let long = [&[0xd9, 200][..], &[0xff; 200], &[1]].concat();
    check(
        "encrypt",
        &with(&long),
        Err(&format!("encrypt has no parameter \"{}\"", "?".repeat(64))),
    );
    check(
        "encrypt",
        &with(b"\xa1\xff\x01"),
        Err("a parameter name is not UTF-8"),
    );
    check(
        "encrypt",
        &with(b"\x01\x01"),
        Err("a parameter name of encrypt is not a string"),
    );
    check(
        "encrypt",
        &with(b"\xc4\x03app\x01"),
        Err("a parameter name of encrypt is not a string"),
    );
    check("encrypt", &[0xc0], Err(&shape("encrypt")));
    check("health", &[0x90], Err(&shape("health")));
    for (params, expect) in [
        (&[0x90][..], Ok(Request::Health)),
        (&[0x91, 0x80], Ok(Request::Health)),
        (
            &[0x92, 0x80, 0x80],
            Err(InvalidRequest::ParamsShape {
                method: Method::Health,
            }),
        ),
        (
            &[0x80],
            Err(InvalidRequest::ParamsShape {
                method: Method::Health,
            }),
        ),
        (
            &[0xc0],
            Err(InvalidRequest::ParamsShape {
                method: Method::Health,
            }),
        ),
    ] {
        let message = [b"\x94\x00\x07\xa6health", params].concat();
        assert_eq!(decode(&message), expect);
    }
    let empty = decode(b"\x94\x00\x07\xa7encrypt\x90");
    assert_eq!(
        empty,
        Err(InvalidRequest::ParamsShape {
            method: Method::Encrypt
        }),
        "it has required keys"
    );
}

#[test]
fn decoder_checks_types_and_rules() {
    let app = |app: &[u8]| map(&[app, b"\xa7payload\x01"]);
    let rule = Err("app must be 1 to 64 bytes of A-Z a-z 0-9 . _ -");
    check("encrypt", &app(b"\xa3app\xa8Az09._-x"), Ok(()));
    check("encrypt", &app(b"\xa3app\xa0"), rule);
    check("encrypt", &app(b"\xa3app\xa3a b"), rule);
    check("encrypt", &app(b"\xa3app\xa3../"), rule);
    check(
        "encrypt",
        &app("\u{a3}".as_bytes()),
        Err("a parameter name of encrypt is not a string"),
    );
    check(
        "encrypt",
        &app(&[b"\xa3app\xd9\x40", &[b'x'; 64][..]].concat()),
        Ok(()),
    );
    check(
        "encrypt",
        &app(&[b"\xa3app\xd9\x41", &[b'x'; 65][..]].concat()),
        rule,
    );
    check(
        "encrypt",
        &app(&[b"\xa3app\xd9\x41", &[0xff; 65][..]].concat()),
        rule,
    );
    check(
        "encrypt",
        &app(b"\xa3app\x01"),
        Err("app must be of type string"),
    );
    check(
        "encrypt",
        &app(b"\xa3app\xc4\x01a"),
        Err("app must be of type string"),
    );
    check(
        "encrypt",
        &app(b"\xa3app\xc0"),
        Err("app must be of type string"),
    );
    check("encrypt", &app(b"\xa3app\xa1\xff"), Err("app is not UTF-8"));

    let rule = Err("select must be 1 to 64 paths of 1 to 1024 bytes");
    let paths = |count: u8, path: &[u8]| {
        [
            &b"\xa6select\xdc\x00"[..],
            &[count],
            &path.repeat(usize::from(count)),
        ]
        .concat()
    };
    check_each(&paths(1, b"\xa1$"), Ok(()));
    check_each(&paths(64, b"\xa1$"), Ok(()));
    check_each(&paths(65, b"\xa1$"), rule);
    check_each(&paths(0, b""), rule);
    check_each(&paths(1, b"\xa0"), rule);
    check_each(
        &paths(1, &[b"\xda\x04\x00", &[b'x'; 1_024][..]].concat()),
        Ok(()),
    );
    check_each(
        &paths(1, &[b"\xda\x04\x01", &[b'x'; 1_025][..]].concat()),
        rule,
    );
    check_each(
        &paths(1, b"\x01"),
        Err("select must be of type array of strings"),
    );
    check_each(
        b"\xa6select\xa1$",
        Err("select must be of type array of strings"),
    );
    check_each(
        b"\xa6select\xc2",
        Err("select must be of type array of strings"),
    );
    check_each(&paths(1, b"\xa1\xff"), Err("select is not UTF-8"));

    let context =
        |header: &[u8], bytes: usize| [&b"\xa7context"[..], header, &vec![b'c'; bytes]].concat();
    check_each(&context(b"\xa0", 0), Ok(()));
    check_each(&context(b"\xda\x10\x00", 4_096), Ok(()));
    check_each(&context(b"\xc5\x10\x00", 4_096), Ok(()));
    let rule = "context must be at most 4096 bytes, and must not begin with sealwire/";
    check_each(&context(b"\xc5\x10\x01", 4_097), Err(rule));
    check_each(
        &context(b"\x01", 0),
        Err("context must be of type string or binary"),
    );
    check_each(b"\xa7context\xa1\xff", Err("context is not UTF-8"));
    check_each(b"\xa7context\xc4\x01\xff", Ok(()));

    let rule = Err("deadline_ms must be 1 to 3600000");
    check_each(b"\xabdeadline_ms\x01", Ok(()));
    check_each(b"\xabdeadline_ms\xd1\x00\x01", Ok(()));
    check_each(b"\xabdeadline_ms\xce\x00\x36\xee\x80", Ok(()));
    check_each(b"\xabdeadline_ms\xce\x00\x36\xee\x81", rule);
    check_each(b"\xabdeadline_ms\xcf\x00\x00\x00\x01\x00\x00\x00\x01", rule);
    check_each(b"\xabdeadline_ms\x00", rule);
    check_each(b"\xabdeadline_ms\xff", rule);
    check_each(
        b"\xabdeadline_ms\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00",
        Err("deadline_ms must be of type integer"),
    );
    check_each(
        b"\xabdeadline_ms\xa11",
        Err("deadline_ms must be of type integer"),
    );
    check_each(
        b"\xaemin_generation\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        Ok(()),
    );
    check_each(
        b"\xaemin_generation\xff",
        Err("min_generation must be 0 or more"),
    );
    check_each(
        b"\xaemin_generation\xc2",
        Err("min_generation must be of type integer"),
    );

    check_each(b"\xa8on_error\xa6report", Ok(()));
    check_each(
        b"\xa8on_error\xa6Report",
        Err("on_error must be \"fail\" or \"report\""),
    );
    check_each(b"\xa8on_error\x01", Err("on_error must be of type string"));
    check("encrypt", &with(b"\xa5suite\xa9secp256k1"), Ok(()));
    check(
        "encrypt",
        &with(b"\xa5suite\xa4p521"),
        Err(
            "suite must be \"p256-psk\" or \"p256\" or \"secp256k1\" or \"xaes\" or \"p256-mlkem768\" or \"secp256k1-psk\"",
        ),
    );
    check("encrypt", &with(b"\xa9key_scope\xa5epoch"), Ok(()));
    let scopes = "key_scope must be \"request\" or \"field\" or \"epoch\"";
    check("encrypt", &with(b"\xa9key_scope\xa7forever"), Err(scopes));
    check("encrypt", &with(b"\xa6format\xa9evervault"), Ok(()));
    check("encrypt", &with(b"\xa6format\xaeevervault-bare"), Ok(()));
    let formats = "format must be \"native\" or \"evervault\" or \"evervault-bare\"";
    check("encrypt", &with(b"\xa6format\xa9Evervault"), Err(formats));
    let role = Err("role must be 1 to 20 bytes of a-z 0-9 -");
    check(
        "encrypt",
        &with(b"\xa4role\xb4abcdefghij-012345678"),
        Ok(()),
    );
    check("encrypt", &with(b"\xa4role\xb5abcdefghij-0123456789"), role);
    check("encrypt", &with(b"\xa4role\xa0"), role);
    check("encrypt", &with(b"\xa4role\xa2Ab"), role);
    check("encrypt", &with(b"\xa4role\xa3a_b"), role);
    check(
        "encrypt",
        &with(b"\xa4role\x01"),
        Err("role must be of type string"),
    );
    check(
        "encrypt",
        &with(b"\xa7unbound\xa4bind"),
        Err("encrypt has no parameter \"unbound\""),
    );
    check("rewrap", &with(b"\xa7unbound\xa4bind"), Ok(()));
    check(
        "rewrap",
        &with(b"\xa7unbound\xa3yes"),
        Err("unbound must be \"refuse\" or \"bind\""),
    );
    check(
        "encrypt",
        &with(b"\xa8encoding\xa3hex"),
        Err("encoding must be \"text\" or \"binary\""),
    );
    check("inspect", &map(&[b"\xa8envelope\xa1x"]), Ok(()));
    check("inspect", &map(&[b"\xa8envelope\xc4\x01x"]), Ok(()));
    check(
        "inspect",
        &map(&[b"\xa8envelope\x01"]),
        Err("envelope must be of type string or binary"),
    );
    check(
        "inspect",
        &map(&[b"\xa8envelope\xa1\xff"]),
        Err("envelope is not UTF-8"),
    );
}

/// Returns the required pairs of a method without `key`, and another pair.
fn with_required(method: Method, key: &str, pair: &[u8]) -> Vec<u8> {
    let value = |name| match name {
        "payload" if Methods::OBJECTS.contains(method) => &b"\x91\x80"[..],
        "payload" | "value" => b"\x01",
        "ids" => b"\x91\xa1i",
        "tokens" => b"\x91\xa1t",
        "grants" => b"\x91\xa1g",
        "rules" => b"\x91\x82\xa4path\xa1$\xa4mask\xa6redact",
        "expires_s" => b"\xc0",
        "kind" if method == Method::AppsRotate => b"\xa4p256",
        "kind" => b"\xa6random",
        "suite" => b"\xa4p256",
        "slot" => b"\x01",
        _ => b"\xa1a",
    };
    let required = method
        .params()
        .iter()
        .filter(|param| param.default.is_none() && param.name != key);
    let pairs = required.map(|param| {
        let mut pair = Vec::new();
        sealwire_msgpack::write::str(&mut pair, param.name);
        pair.extend_from_slice(value(param.name));
        pair
    });
    let mut pairs: Vec<Vec<u8>> = pairs.collect();
    pairs.extend((!pair.is_empty()).then(|| pair.to_vec()));
    map(&pairs.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

#[test]
fn methods_accept_required_keys_and_report_missing_ones() {
    for method in Method::ALL {
        check(method.name(), &with_required(method, "", b""), Ok(()));
        for param in method.params() {
            let mut nil = Vec::new();
            sealwire_msgpack::write::str(&mut nil, param.name);
            nil.push(0xc0);
            let may_be_nil = param.types.contains("nil") || param.types == "any value";
            let wrong = format!("{} must be of type {}", param.name, param.types);
            // In the data methods a nil means that an optional key is absent.
            let is_absent = Methods::DATA.contains(method) && param.default.is_some();
            let is_taken = may_be_nil || is_absent;
            let expect = if is_taken { Ok(()) } else { Err(&wrong[..]) };
            check(
                method.name(),
                &with_required(method, param.name, &nil),
                expect,
            );
            if param.default.is_none() {
                let missing = format!("{} is missing", param.name);
                check(
                    method.name(),
                    &with_required(method, param.name, b""),
                    Err(&missing),
                );
            }
        }
    }
}

#[test]
fn rules_of_the_methods_on_tokens() {
    let one = |method: Method, key: &str, value: &[u8], expect: Result<(), &str>| {
        let mut pair = Vec::new();
        sealwire_msgpack::write::str(&mut pair, key);
        pair.extend_from_slice(value);
        check(method.name(), &with_required(method, key, &pair), expect);
    };
    let name = Err("collection must be 1 to 64 bytes of A-Z a-z 0-9 . _ -");
    for method in Methods::TOKENS.iter() {
        one(method, "collection", b"\xa7people1", Ok(()));
        one(method, "collection", b"\xa0", name);
        one(method, "collection", b"\xa3a/b", name);
        one(method, "min_generation", b"\x07", Ok(()));
        let reason = Err("reason must be 1 to 256 bytes without control characters");
        one(method, "reason", b"\xa8ticket 7", Ok(()));
        one(method, "reason", b"\xa0", reason);
        one(method, "reason", b"\xa3a\nb", reason);
        one(method, "reason", b"\xa4a\xc2\x9bb", reason);
        one(
            method,
            "reason",
            &[&[0xda, 1, 0][..], &[b'x'; 256]].concat(),
            Ok(()),
        );
        one(
            method,
            "reason",
            &[&[0xda, 1, 1][..], &[b'x'; 257]].concat(),
            reason,
        );
        one(
            method,
            "reason",
            b"\xc4\x01x",
            Err("reason must be of type string"),
        );
        // An invalid trace context is ignored by the tracer and does not reject the request.
        one(method, "traceparent", b"\xa8whatever", Ok(()));
        one(method, "traceparent", b"\xa0", Ok(()));
        one(
            method,
            "traceparent",
            &[&[0xda, 1, 0][..], &[b'0'; 256]].concat(),
            Ok(()),
        );
        let long = Err("traceparent must be at most 256 bytes");
        one(
            method,
            "traceparent",
            &[&[0xda, 1, 1][..], &[b'0'; 257]].concat(),
            long,
        );
        one(
            method,
            "traceparent",
            b"\xa1\xff",
            Err("traceparent is not UTF-8"),
        );
        one(
            method,
            "traceparent",
            b"\xc4\x01x",
            Err("traceparent must be of type string"),
        );
        one(
            method,
            "deadline_ms",
            b"\x00",
            Err("deadline_ms must be 1 to 3600000"),
        );
    }
    let tags = Err("tags must be 1 to 16 tags of 1 to 64 bytes of visible ASCII");
    let many = |count: usize, text: &[u8]| {
        [
            &[0xdc, (count >> 8) as u8, count as u8],
            &text.repeat(count)[..],
        ]
        .concat()
    };
    one(Method::Tokenize, "tags", &many(16, b"\xa3a:b"), Ok(()));
    one(Method::Tokenize, "tags", &many(17, b"\xa1a"), tags);
    one(Method::Tokenize, "tags", &many(0, b""), tags);
    one(Method::Tokenize, "tags", b"\x91\xa0", tags);
    one(Method::Tokenize, "tags", b"\x91\xa1 ", tags);
    one(Method::Tokenize, "tags", b"\x91\xa1\0", tags);
    one(Method::Tokenize, "tags", b"\x91\xa2\xc3\xa9", tags);
    one(
        Method::Tokenize,
        "tags",
        &[&[0x91, 0xd9, 65][..], &[b'x'; 65]].concat(),
        tags,
    );
    one(
        Method::TokensList,
        "tag",
        b"\xa3a b",
        Err("tag must be 1 to 64 bytes of visible ASCII"),
    );
    let expiry = Err("expires_s must be 1 to 3155760000");
    one(Method::Tokenize, "expires_s", b"\x00", expiry);
    one(
        Method::Tokenize,
        "expires_s",
        b"\xce\xbc\x19\x13\x80",
        Ok(()),
    );
    one(
        Method::Tokenize,
        "expires_s",
        b"\xce\xbc\x19\x13\x81",
        expiry,
    );
    let expiry = Err("expires_s must be 0 to 3155760000, or nil");
    one(Method::TokensExpire, "expires_s", b"\x00", Ok(()));
    one(Method::TokensExpire, "expires_s", b"\xff", expiry);
    one(
        Method::TokensExpire,
        "expires_s",
        b"\xce\xbc\x19\x13\x81",
        expiry,
    );
    let key = Err("idempotency_key must be 1 to 64 bytes");
    one(Method::Tokenize, "idempotency_key", b"\xa1k", Ok(()));
    one(Method::Tokenize, "idempotency_key", b"\xc4\x01\xff", Ok(()));
    one(Method::Tokenize, "idempotency_key", b"\xc4\x00", key);
    one(
        Method::Tokenize,
        "idempotency_key",
        &[&[0xc4, 65][..], &[0; 65]].concat(),
        key,
    );
    let tokens = Err("tokens must be 1 to 1000 tokens of 1 to 1024 bytes");
    one(Method::TokensGet, "tokens", &many(1_000, b"\xa1t"), Ok(()));
    one(Method::TokensGet, "tokens", &many(1_001, b"\xa1t"), tokens);
    one(Method::TokensGet, "tokens", b"\x90", tokens);
    one(
        Method::TokensGet,
        "tokens",
        &[&[0x91, 0xda, 0x04, 0x01][..], &[b'x'; 1_025]].concat(),
        tokens,
    );
    let value = Err("value must be one MessagePack value of at most 65536 bytes");
    let bin = |bytes: u16| {
        [
            &[0xc5][..],
            &bytes.to_be_bytes(),
            &vec![0; usize::from(bytes)],
        ]
        .concat()
    };
    one(Method::TokensFind, "value", &bin(65_533), Ok(()));
    one(Method::TokensFind, "value", &bin(65_534), value);
    one(
        Method::TokensFind,
        "value",
        &[&[0xdd, 0, 0x0f, 0x42, 0x40][..], &vec![0; 1_000_000]].concat(),
        value,
    );
    one(Method::TokensList, "limit", b"\xcd\x03\xe8", Ok(()));
    one(
        Method::TokensList,
        "limit",
        b"\xcd\x03\xe9",
        Err("limit must be 1 to 1000"),
    );
    one(Method::TokensPrune, "limit", b"\xcd\x27\x10", Ok(()));
    one(
        Method::TokensPrune,
        "limit",
        b"\xcd\x27\x11",
        Err("limit must be 1 to 10000"),
    );
    one(
        Method::TokensPrune,
        "dry_run",
        b"\x01",
        Err("dry_run must be of type boolean"),
    );
    let after = [&[0xd9, 129][..], &[b'a'; 129]].concat();
    one(
        Method::TokensList,
        "after",
        &after,
        Err("after must be the next of an answer, at most 128 bytes"),
    );
}

/// One rule: texts by key.
fn rule(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    sealwire_msgpack::write::map_len(&mut out, pairs.len() as u32);
    pairs
        .iter()
        .flat_map(|(key, text)| [key, text])
        .for_each(|text| sealwire_msgpack::write::str(&mut out, text));
    out
}

#[test]
fn mask_rules_are_rejected_by_position() {
    let rules = |rules: &[Vec<u8>], expect: Result<(), &str>| {
        let mut pair = b"\xa5rules".to_vec();
        sealwire_msgpack::write::array_len(&mut pair, rules.len() as u32);
        rules.iter().for_each(|rule| pair.extend_from_slice(rule));
        check("mask", &with_required(Method::Mask, "rules", &pair), expect);
    };
    let good = || rule(&[("mask", "email(keep=domain)"), ("path", "$.email")]);
    let bounds = Err(
        "rules must be 1 to 256 rules, each a mask and one of path, column, kind, of 1 to 1024 bytes",
    );
    rules(&[good()], Ok(()));
    rules(
        &[
            good(),
            rule(&[("kind", "card"), ("mask", "card")]),
            rule(&[("column", "a.b"), ("mask", "null")]),
        ],
        Ok(()),
    );
    rules(&vec![good(); 256], Ok(()));
    rules(&vec![good(); 257], bounds);
    rules(&[], bounds);
    let long = "x".repeat(1_025);
    rules(
        &[rule(&[("mask", &long[1..]), ("path", &long[1..])])],
        Ok(()),
    );
    rules(&[rule(&[("mask", &long), ("path", "$")])], bounds);
    rules(&[rule(&[("mask", "null"), ("path", &long)])], bounds);
    rules(&[rule(&[("mask", ""), ("path", "$")])], bounds);
    let unknown = Err("mask has no parameter \"rules[1].colo?r\"");
    rules(
        &[good(), rule(&[("mask", "null"), ("colo\u{1b}r", "$")])],
        unknown,
    );
    rules(
        &[good(), rule(&[("mask", "null")])],
        Err("rules[1] lacks a path, column or kind"),
    );
    rules(&[rule(&[("path", "$")])], Err("rules[0] has no mask"));
    rules(&[rule(&[])], Err("rules[0] lacks a path, column or kind"));
    let twice = Err("rules[0] must name one of path, column and kind, once, and one mask");
    rules(
        &[rule(&[("mask", "null"), ("path", "$"), ("kind", "card")])],
        twice,
    );
    rules(
        &[rule(&[("mask", "null"), ("path", "$"), ("mask", "hash")])],
        twice,
    );
    rules(&[vec![0x07]], Err("rules must be of type array of maps"));
    rules(
        &[b"\x82\x01\x02\x03\x04".to_vec()],
        Err("rules must be of type array of maps"),
    );
    rules(
        &[b"\x82\xa4mask\xa1\xff\xa4path\xa1$".to_vec()],
        Err("rules is not UTF-8"),
    );
    check(
        "mask",
        &with_required(Method::Mask, "", b"\xa6select\x91\xa1$"),
        Err("mask has no parameter \"select\""),
    );
    check(
        "mask",
        &with_required(Method::Mask, "", b"\xa7context\xa1$"),
        Err("mask has no parameter \"context\""),
    );
    let unknown = Err("unknown must be \"refuse\" or \"keep\"");
    check(
        "mask",
        &with_required(Method::Mask, "", b"\xa7unknown\xa4drop"),
        unknown,
    );
}

#[test]
fn lists_of_mask_have_bounds() {
    let lists = |lists: &[(&str, Vec<&str>)], expect: Result<(), &str>| {
        let mut pair = b"\xa5lists".to_vec();
        sealwire_msgpack::write::map_len(&mut pair, lists.len() as u32);
        for (name, entries) in lists {
            sealwire_msgpack::write::str(&mut pair, name);
            sealwire_msgpack::write::array_len(&mut pair, entries.len() as u32);
            entries
                .iter()
                .for_each(|entry| sealwire_msgpack::write::str(&mut pair, entry));
        }
        check("mask", &with_required(Method::Mask, "", &pair), expect);
    };
    let bounds =
        Err("lists must be at most 16 lists of 10000 texts of 1 to 256 bytes, 262144 bytes in all");
    let long = "x".repeat(257);
    let names: Vec<String> = (0..17).map(|n| format!("n{n}")).collect();
    let of = |count: usize| {
        names[..count]
            .iter()
            .map(|name| (&name[..], vec!["x"]))
            .collect::<Vec<_>>()
    };
    lists(&of(16), Ok(()));
    lists(&of(17), bounds);
    lists(&[("a", vec!["x"; 6_000]), ("b", vec!["x"; 4_000])], Ok(()));
    lists(&[("a", vec!["x"; 6_000]), ("b", vec!["x"; 4_001])], bounds);
    lists(&[("a", vec![&long[1..]; 1_024])], Ok(()));
    lists(&[("a", vec![&long[1..]; 1_025])], bounds);
    lists(&[("a", vec![&long])], bounds);
    lists(&[("a", vec![""])], bounds);
    lists(&[("a", vec![])], bounds);
    lists(&[("a", vec!["x"]), ("a", vec!["y"])], bounds);
    lists(&[("a b", vec!["x"])], bounds);
    check(
        "mask",
        &with_required(Method::Mask, "", b"\xa5lists\x90"),
        Err("lists must be of type map of arrays of strings"),
    );
}

#[test]
fn rules_of_the_methods_on_objects() {
    let one = |method: Method, key: &str, value: &[u8], expect: Result<(), &str>| {
        let mut pair = Vec::new();
        sealwire_msgpack::write::str(&mut pair, key);
        pair.extend_from_slice(value);
        check(method.name(), &with_required(method, key, &pair), expect);
    };
    let many = |count: usize, item: &[u8]| {
        [
            &[0xdc, (count >> 8) as u8, count as u8],
            &item.repeat(count)[..],
        ]
        .concat()
    };
    let objects = Err("payload must be 1 to 500 maps of property names to values");
    one(Method::ObjectsAdd, "payload", &many(500, b"\x80"), Ok(()));
    one(Method::ObjectsAdd, "payload", &many(501, b"\x80"), objects);
    one(Method::ObjectsAdd, "payload", b"\x90", objects);
    one(
        Method::ObjectsAdd,
        "payload",
        b"\x80",
        Err("payload must be of type array of maps"),
    );
    let clauses = Err("payload must be 1 to 8 maps of property and one of eq, in, prefix");
    one(Method::ObjectsQuery, "payload", &many(8, b"\x80"), Ok(()));
    one(Method::ObjectsQuery, "payload", &many(9, b"\x80"), clauses);
    one(Method::ObjectsGet, "ids", &many(500, b"\xa1a"), Ok(()));
    one(
        Method::ObjectsGet,
        "ids",
        &many(501, b"\xa1a"),
        Err("ids must be 1 to 500 ids of objects"),
    );
    one(Method::ObjectsDelete, "versions", b"\x91\x01", Ok(()));
    one(
        Method::ObjectsDelete,
        "versions",
        b"\x91\x00",
        Err("versions must be as many as ids, each 1 or more"),
    );
    one(
        Method::ObjectsDelete,
        "versions",
        b"\x92\x01\x01",
        Err("versions must be as many as ids, each 1 or more"),
    );
    one(
        Method::ObjectsList,
        "limit",
        b"\xcd\x01\xf5",
        Err("limit must be 1 to 500"),
    );
    one(Method::ObjectsArchive, "limit", b"\xcd\x01\xf5", Ok(()));
    one(
        Method::ObjectsGet,
        "properties",
        b"\x90",
        Err("properties must be 1 to 64 names of properties"),
    );
    one(Method::ObjectsExpire, "expires_s", b"\xc0", Ok(()));
    let subjects = Err("subjects must be 1 name of 1 to 256 bytes, or as many as objects");
    one(Method::ObjectsAdd, "subjects", b"\x91\xa4anna", Ok(()));
    one(Method::ObjectsAdd, "subjects", b"\x91\xa0", subjects);
    one(
        Method::ObjectsAdd,
        "subjects",
        &many(501, b"\xa1a"),
        subjects,
    );
    let subject = |pairs: &[&[u8]], expect: Result<(), &str>| {
        let all: Vec<&[u8]> = [&b"\xa3app\xa1a"[..]]
            .into_iter()
            .chain(pairs.iter().copied())
            .collect();
        check("subjects.erase", &map(&all), expect);
    };
    let rule = Err("subject must be 1 to 256 bytes, with by_id 32 hexadecimal digits");
    let by_id: &[u8] = b"\xa5by_id\xc3";
    let id = |digit: u8| [&b"\xa7subject\xd9\x20"[..], &[digit; 32]].concat();
    subject(&[b"\xa7subject\xa4anna"], Ok(()));
    subject(
        &[
            b"\xa7subject\xa4anna",
            b"\xa7version\x07",
            b"\xa7created\x08",
        ],
        Ok(()),
    );
    subject(&[&id(b'a'), by_id], Ok(()));
    subject(&[by_id, &id(b'F')], Ok(()));
    subject(&[b"\xa7subject\xa0"], rule);
    subject(
        &[&id(b'g'), by_id],
        Err("subject must be 32 hexadecimal digits with by_id"),
    );
    subject(
        &[b"\xa7subject\xa4anna", by_id],
        Err("subject must be 32 hexadecimal digits with by_id"),
    );
    let alter = Method::CollectionsAlter;
    one(
        alter,
        "add",
        b"\x91\x82\xa4name\xa1a\xa4type\xa4name",
        Ok(()),
    );
    one(
        alter,
        "add",
        b"\x91\x81\xa4name\xa1a",
        Err("add must be 1 to 64 properties"),
    );
    one(
        alter,
        "add",
        b"\x91\x82\xa4name\xa1a\xa4name\xa1b",
        Err("add is given twice"),
    );
    let bits = b"\x91\x83\xa4name\xa1a\xa4type\xa4name\xa4bits\x07";
    one(alter, "add", bits, Err("add must be 1 to 64 properties"));
    one(
        alter,
        "drop",
        b"\x90",
        Err("drop must be 1 to 64 names of properties"),
    );
    let create = |pairs: &[&[u8]], expect: Result<(), &str>| {
        let with = |pair: &&[u8]| pair.to_vec();
        let all: Vec<Vec<u8>> = [&b"\xa3app\xa1a"[..], b"\xaacollection\xa1c"]
            .iter()
            .chain(pairs)
            .map(with)
            .collect();
        let params = map(&all.iter().map(Vec::as_slice).collect::<Vec<_>>());
        check("collections.create", &params, expect);
    };
    let (kind, properties) = (
        &b"\xa4kind\xa7objects"[..],
        &b"\xaaproperties\x91\x82\xa4name\xa1a\xa4type\xa4name"[..],
    );
    create(&[kind, properties], Ok(()));
    create(&[kind], Err("properties is missing"));
    let tokens_only = Err("format, scope, first, last must be absent: only tokens have them");
    create(&[kind, properties, b"\xa6format\xa4card"], tokens_only);
    create(&[kind, properties, b"\xa5first\x01"], tokens_only);
    create(
        &[b"\xa4kind\xa6random", properties],
        Err("properties must be absent: only kind \"objects\" has it"),
    );
    create(
        &[b"\xa4kind\xa6random", b"\xa5suite\xa4xaes"],
        Err("suite must be absent: only kind \"objects\" has it"),
    );
}

#[test]
fn nil_means_that_an_optional_key_of_a_data_method_is_absent() {
    for method in Methods::DATA.iter() {
        for param in method.params() {
            if param.default.is_none() || param.types.contains("nil") {
                continue;
            }
            let mut nil = Vec::new();
            sealwire_msgpack::write::str(&mut nil, param.name);
            nil.push(0xc0);
            let given = message(method.name(), &with_required(method, "", &nil));
            let absent = message(method.name(), &with_required(method, "", b""));
            assert_eq!(decode(&given), decode(&absent), "{method} {}", param.name);
        }
    }
    // A key is given twice also if one value is nil.
    let twice = map(&[
        b"\xa3app\xa1a",
        b"\xa7payload\x01",
        b"\xa6select\xc0",
        b"\xa6select\x91\xa1$",
    ]);
    check("encrypt", &twice, Err("select is given twice"));
}

#[test]
fn contexts_are_a_list_or_a_path() {
    const RULE: &str = "contexts must be a list of contexts, as many as items, at most 10000 of 1 to 4096 bytes, none beginning with sealwire/, 262144 bytes in all; or a map of path, 1 to 1024 bytes";
    let contexts = |value: &[u8]| [b"\xa8contexts", value].concat();
    let list = |count: u16, item: &[u8]| {
        let header = [&[0xdc][..], &count.to_be_bytes()].concat();
        contexts(&[header, item.repeat(usize::from(count))].concat())
    };
    let path = |bytes: usize| {
        let header = [0xda, (bytes >> 8) as u8, bytes as u8];
        contexts(&[&b"\x81\xa4path"[..], &header, &vec![b'x'; bytes]].concat())
    };
    let long = |bytes: usize| {
        let header = [0xc5, (bytes >> 8) as u8, bytes as u8];
        [&header[..], &vec![b'x'; bytes]].concat()
    };
    for (pair, expect) in [
        (contexts(b"\x90"), Ok(())),
        (contexts(b"\x92\xa1a\xc4\x01\xff"), Ok(())),
        (list(10_000, b"\xa1x"), Ok(())),
        (list(10_001, b"\xa1x"), Err(RULE)),
        (list(1, &long(4_096)), Ok(())),
        (list(1, &long(4_097)), Err(RULE)),
        (list(64, &long(4_096)), Ok(())),
        (list(65, &long(4_096)), Err(RULE)),
        (list(1, b"\xa0"), Err(RULE)),
        (list(1, b"\xa9sealwire/"), Err(RULE)),
        (list(1, b"\xc4\x09sealwire/"), Err(RULE)),
        (
            list(1, b"\x07"),
            Err("contexts must be of type array or map"),
        ),
        (
            list(1, b"\xc0"),
            Err("contexts must be of type array or map"),
        ),
        (
            contexts(b"\xa1a"),
            Err("contexts must be of type array or map"),
        ),
        (contexts(b"\x91\xa1\xff"), Err("contexts is not UTF-8")),
        (path(1), Ok(())),
        (path(1_024), Ok(())),
        (path(1_025), Err(RULE)),
        (path(0), Err(RULE)),
        (contexts(b"\x80"), Err(RULE)),
        (contexts(b"\x82\xa4path\xa1a\xa4path\xa1a"), Err(RULE)),
        (
            contexts(b"\x81\xa4path\x01"),
            Err("contexts must be of type array or map"),
        ),
    ] {
        check_each(&pair, expect);
    }
    check(
        "encrypt",
        &with(b"\xa8contexts\x81\xa5paths\xa1a"),
        Err("encrypt has no parameter \"contexts.paths\""),
    );
    let both = |context: &[u8]| {
        let pairs = [
            &b"\xa3app\xa1a"[..],
            b"\xa7payload\x01",
            b"\xa8contexts\x90",
            context,
        ];
        map(&pairs)
    };
    let error = Err("contexts must be absent if context is given");
    check("decrypt", &both(b"\xa7context\xa1a"), error);
    check("decrypt", &both(b"\xa7context\xa0"), Ok(()));
    check("decrypt", &both(b"\xa7context\xc0"), Ok(()));
    let mask = with_required(Method::Mask, "", b"\xa8contexts\x90");
    check("mask", &mask, Err("mask has no parameter \"contexts\""));
}

#[test]
fn contexts_of_the_engine_break_the_rule() {
    let rule = "context must be at most 4096 bytes, and must not begin with sealwire/";
    let methods = Method::ALL
        .into_iter()
        .filter(|method| method.params().iter().any(|param| param.name == "context"));
    let mut count = 0;
    for method in methods {
        for (context, is_accepted) in [
            (&b"sealwire/object/1"[..], false),
            (b"sealwire/object/subject/1", false),
            (b"sealwire/", false),
            (b"sealwire", true),
            (b"Sealwire/", true),
            (b"/sealwire/", true),
            (b"", true),
        ] {
            for header in [&[0xd9][..], &[0xc4]] {
                let pair = [&b"\xa7context"[..], header, &[context.len() as u8], context].concat();
                let params = with_required(method, "context", &pair);
                check(
                    method.name(),
                    &params,
                    if is_accepted { Ok(()) } else { Err(rule) },
                );
            }
        }
        count += 1;
    }
    assert_eq!(count, 6, "methods that take a context");
}

#[test]
fn rules_of_the_control_methods() {
    let one = |method: Method, key: &str, value: &[u8], expect: Result<(), &str>| {
        let mut pair = Vec::new();
        sealwire_msgpack::write::str(&mut pair, key);
        pair.extend_from_slice(value);
        check(method.name(), &with_required(method, key, &pair), expect);
    };
    one(Method::AppsRotate, "kind", b"\xa5token", Ok(()));
    one(
        Method::AppsRotate,
        "kind",
        b"\xa6random",
        Err(
            "kind must be \"p256-psk\" or \"p256\" or \"secp256k1\" or \"xaes\" or \"p256-mlkem768\" or \"secp256k1-psk\" or \"p256-outside\" or \"p256-mlkem768-outside\" or \"token\"",
        ),
    );
    one(Method::Rewrap, "outside", b"\xa5adopt", Ok(()));
    let outside = Err("outside must be \"accept\" or \"refuse\"");
    one(Method::Decrypt, "outside", b"\xa6refuse", Ok(()));
    one(Method::Decrypt, "outside", b"\xa5adopt", outside);
    one(Method::AppsSet, "format", b"\xa9evervault", Ok(()));
    let format = Err("format must be \"native\" or \"evervault\"");
    one(Method::AppsSet, "format", b"\xaeevervault-bare", format);
    one(
        Method::AppsSet,
        "epoch_ms",
        b"\xcd\x3a\x99",
        Err("epoch_ms must be 0 to 15000"),
    );
    one(Method::AppsDelete, "delay_s", b"\x00", Ok(()));
    one(
        Method::AppsDelete,
        "delay_s",
        b"\xff",
        Err("delay_s must be 0 to 31536000"),
    );
    one(
        Method::CollectionsCreate,
        "kind",
        b"\xa4p256",
        Err("kind must be \"random\" or \"deterministic\" or \"one_way\" or \"objects\""),
    );
    one(Method::CollectionsCreate, "format", b"\xa4card", Ok(()));
    one(
        Method::CollectionsCreate,
        "first",
        b"\x07",
        Err("first must be 0 to 6"),
    );
    one(
        Method::CollectionsCreate,
        "last",
        b"\x05",
        Err("last must be 0 to 4"),
    );
    one(
        Method::CollectionsCreate,
        "expires_s",
        b"\x00",
        Err("expires_s must be 1 to 3155760000"),
    );
    one(
        Method::CollectionsSet,
        "expires_s",
        b"\x00",
        Err("expires_s must be 1 to 3155760000, or nil"),
    );
    one(Method::CollectionsSet, "expires_s", b"\xc0", Ok(()));
    one(Method::CollectionsCreate, "retention_s", b"\x00", Ok(()));
    one(
        Method::CollectionsCreate,
        "retention_s",
        b"\xc0",
        Err("retention_s must be of type integer"),
    );
    one(Method::CollectionsSet, "retention_s", b"\xc0", Ok(()));
    let retention = Err("retention_s must be 0 to 3155760000, or nil");
    one(
        Method::CollectionsSet,
        "retention_s",
        b"\xce\xbc\x19\x13\x81",
        retention,
    );
    one(
        Method::KekRemove,
        "slot",
        b"\x00",
        Err("slot must be 1 to 4294967295"),
    );
    one(
        Method::KekRemove,
        "slot",
        b"\xcf\x00\x00\x00\x01\x00\x00\x00\x00",
        Err("slot must be 1 to 4294967295"),
    );
    let providers = Err("providers must be 1 to 8 names of 1 to 64 bytes");
    one(
        Method::RootInit,
        "providers",
        &[&[0x98][..], &b"\xa1p".repeat(8)].concat(),
        Ok(()),
    );
    one(
        Method::RootInit,
        "providers",
        &[&[0x99][..], &b"\xa1p".repeat(9)].concat(),
        providers,
    );
    one(Method::RootInit, "providers", b"\x90", providers);
    one(Method::RootRotate, "abandon", b"\xc3", Ok(()));
}

#[test]
fn private_key_is_not_printed() {
    let private_key = control::Secret("s3cr3t");
    let operation = control::AppOperation::Import {
        suite: Suite::Secp256k1,
        private_key,
        seals: true,
    };
    let call = control::Control::App(control::AppRequest {
        app: "shop",
        operation,
    });
    let mut bytes = Vec::new();
    request::control(&mut bytes, 7, &call);
    assert_eq!(decode(&bytes), Ok(Request::Control(call.clone())));
    assert!(
        format!("{call:?}").contains("Secret(6 bytes)") && !format!("{call:?}").contains("s3cr3t")
    );
}

#[test]
fn method_of_another_listener_is_unknown() {
    let named = |method: Method, served: Methods| {
        let bytes = message(method.name(), &with_required(method, "", b""));
        let Scan::Message(found) = Scanner::for_requests(Limits::default())
            .serving(served)
            .scan(&bytes)
        else {
            panic!("not a message")
        };
        Request::decode(&bytes, &found)
            .map(|call| call.method())
            .map_err(|error| error.to_string())
    };
    for method in Method::ALL {
        for served in [
            Methods::ALL,
            Methods::DATA,
            Methods::CONTROL,
            Methods::DATA.without(Methods::TOKENS),
        ] {
            let unknown = Err(format!("no method \"{method}\""));
            assert_eq!(
                named(method, served),
                if served.contains(method) {
                    Ok(method)
                } else {
                    unknown
                }
            );
        }
    }
}

#[test]
fn unknown_method_name_is_sanitized_and_truncated() {
    let named = |method: &str| {
        decode(&message(method, &[0x80]))
            .map(|_| ())
            .map_err(|error| RpcError::from(error).to_string())
    };
    assert_eq!(
        named("reveal"),
        Err("not_found: no method \"reveal\"".to_owned())
    );
    assert_eq!(
        named("Encrypt"),
        Err("not_found: no method \"Encrypt\"".to_owned())
    );
    assert_eq!(named(""), Err("not_found: no method \"\"".to_owned()));
    assert_eq!(
        named("a\u{1b}[2J"),
        Err("not_found: no method \"a??2J\"".to_owned())
    );
    assert_eq!(
        named(&"m".repeat(999)),
        Err(format!("not_found: no method \"{}\"", "m".repeat(64)))
    );
}

#[test]
fn errors_contain_no_values_of_the_request() {
    const SECRET: &[u8] = b"\xa8s3cr3t-v";
    for key in [
        "app",
        "select",
        "suite",
        "context",
        "on_error",
        "deadline_ms",
        "min_generation",
        "encoding",
        "format",
        "reason",
    ] {
        for value in [
            SECRET,
            b"\xa9s3cr3t-v\xff",
            b"\x91\xa8s3cr3t-v",
            b"\x81\xa8s3cr3t-v\x01",
        ] {
            let mut pair = Vec::new();
            sealwire_msgpack::write::str(&mut pair, key);
            pair.extend_from_slice(value);
            let bytes = message("encrypt", &map(&[&pair, b"\xa7payload\xa8s3cr3t-v"]));
            if let Err(error) = decode(&bytes) {
                assert!(!RpcError::from(error).message.contains("s3cr3t"), "{key}");
            }
        }
    }
}

#[test]
fn decoder_rejects_bytes_of_another_message() {
    let boundary = |message: &[u8]| FrameLayout {
        bytes: message.len(),
        header: MessageHeader::Request {
            msgid: 7,
            method: Some(Method::Encrypt),
        },
        elements: 0,
        leaves: 0,
        payload: payload_by_skipping(message),
    };
    let whole = message("encrypt", &with(b"\xa5suite\xa9secp256k1"));
    let promised = boundary(&whole);
    assert!(Request::decode(&whole, &promised).is_ok());
    for end in 0..whole.len() {
        assert!(
            Request::decode(&whole[..end], &promised).is_err(),
            "cut at {end}"
        );
    }
    assert_eq!(
        Request::decode(&[&whole[..], &[0xc0]].concat(), &promised),
        Err(InvalidRequest::Malformed),
        "one value too many"
    );
    let reserved = message("encrypt", &with(b"\xa5suite\xc1"));
    assert_eq!(
        Request::decode(&reserved, &boundary(&reserved)),
        Err(InvalidRequest::Malformed)
    );
    let payload = promised.payload.unwrap();
    for (start, end) in [
        (0, 1),
        (payload.end, payload.start),
        (payload.start, usize::MAX),
        (usize::MAX, usize::MAX),
    ] {
        let another = FrameLayout {
            payload: Some(Span { start, end }),
            ..promised
        };
        assert_eq!(
            Request::decode(&whole, &another),
            Err(InvalidRequest::Malformed),
            "{start}..{end}"
        );
    }
    assert_eq!(
        Request::decode(
            &whole,
            &FrameLayout {
                payload: None,
                ..promised
            }
        ),
        Err(InvalidRequest::Malformed)
    );
}

#[test]
fn payload_position_among_params_is_irrelevant() {
    let (app, payload, suite) = (
        b"\xa3app\xa1a",
        b"\xa7payload\x92\x01\x91\xa1x",
        b"\xa5suite\xa9secp256k1",
    );
    let places: [[&[u8]; 3]; 3] = [
        [payload, app, suite],
        [app, payload, suite],
        [app, suite, payload],
    ];
    let decoded = places.map(|params| message("encrypt", &map(&params)));
    let calls = decoded.each_ref().map(|bytes| decode(bytes));
    assert!(calls.iter().all(|call| *call == calls[0]));
    let Ok(Request::Encrypt(call)) = &calls[0] else {
        panic!("{:?}", calls[0])
    };
    assert_eq!(call.payload, b"\x92\x01\x91\xa1x");
}

#[test]
fn errors_notification_selects_the_format() {
    assert_eq!(
        decode_errors(b"\x93\x02\xa6errors\x91\xa4text"),
        Ok(ErrorFormat::Text)
    );
    assert_eq!(
        decode_errors(b"\xdc\x00\x03\xcc\x02\xd9\x06errors\xdc\x00\x01\xd9\x04text"),
        Ok(ErrorFormat::Text)
    );
    for bytes in [
        &b"\x93\x02\xa6errors\x90"[..],
        b"\x93\x02\xa6errors\x91\xa3map",
        b"\x93\x02\xa6errors\x91\xa4TEXT",
        b"\x93\x02\xa6errors\x91\xc4\x04text",
        b"\x93\x02\xa6errors\x91\xc0",
        b"\x93\x02\xa6errors\x92\xa4text\xa4text",
        b"\x93\x02\xa6errors\x91\xa4text\x01",
        b"\x93\x02\xa6cancel\x91\xa4text",
        b"\x93\x02\xa6errors\x91\xa4tex",
        b"",
    ] {
        assert_eq!(
            decode_errors(bytes),
            Err(InvalidRequest::Malformed),
            "{bytes:02x?}"
        );
    }
}

#[test]
fn cancel_notification_decodes_its_msgid() {
    let mut bytes = Vec::new();
    request::cancel(&mut bytes, u32::MAX);
    assert_eq!(decode_cancel(&bytes), Ok(u32::MAX));
    for bytes in [
        &b"\x93\x02\xa6cancel\x90"[..],
        b"\x93\x02\xa6cancel\x92\x01\x02",
        b"\x93\x02\xa6cancel\x91\xff",
        b"\x93\x02\xa6cancel\x91\xa11",
        b"\x93\x02\xa6cancel\x91\x81\xa5msgid\x01",
        b"\x93\x02\xa5error\x91\x01",
        b"\x93\x02\xa6cancel\x91\x01\x01",
        b"",
    ] {
        assert_eq!(
            decode_cancel(bytes),
            Err(InvalidRequest::Malformed),
            "{bytes:02x?}"
        );
    }
}
