//! Tables for estimates: a request, the part that has arrived, and the estimate of the whole
//! message.

use sealwire_msgpack::{TokenReader, write};

use super::*;
use crate::frame::Scan;
use crate::limits::Limits;
use crate::method::Method;
use crate::params::{Format, KeyScope, Suite};

/// `[0, 7, "encrypt", [{..}]]` of the pairs given as bytes.
fn call(pairs: &[&[u8]]) -> Vec<u8> {
    [
        &b"\x94\x00\x07\xa7encrypt\x91"[..],
        &[0x80 | pairs.len() as u8],
        &pairs.concat(),
    ]
    .concat()
}

fn payload(value: &[u8]) -> Vec<u8> {
    [&b"\xa7payload"[..], value].concat()
}

/// An array or a map of `count` equal entries.
fn of(header: fn(&mut Vec<u8>, u32), count: u32, entry: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    header(&mut value, count);
    value.extend(entry.repeat(count as usize));
    value
}

fn array(count: u32, entry: &[u8]) -> Vec<u8> {
    of(write::array_len, count, entry)
}

fn map(count: u32, entry: &[u8]) -> Vec<u8> {
    of(write::map_len, count, entry)
}

fn after(scanner: &mut Scanner, bytes: &[u8]) -> Option<Preview> {
    assert_eq!(scanner.scan(bytes), Scan::Incomplete);
    scanner.preview(bytes)
}

fn estimate(bytes: &[u8]) -> Option<Estimate> {
    after(&mut Scanner::for_requests(Limits::default()), bytes).and_then(|outlook| outlook.whole)
}

/// Returns the true measures of the request.
fn truth(message: &[u8]) -> Estimate {
    match Scanner::for_requests(Limits::default()).scan(message) {
        Scan::Message(whole) => Estimate {
            bytes: whole.bytes as u64,
            leaves: whole.leaves,
        },
        other => panic!("{other:?}"),
    }
}

/// Cuts a request on `document` after each length in `arrived`. Returns the greatest ratio between
/// the estimate and the true size, in bytes and in leaves, at the worst cut.
fn worst(document: &[u8], arrived: std::ops::Range<usize>) -> f64 {
    let message = call(&[b"\xa3app\xa1a", &payload(document)]);
    let (before, truth) = (message.len() - document.len(), truth(&message));
    let mut scanner = Scanner::for_requests(Limits::default());
    let ratios = arrived.map(|bytes| {
        let estimate = after(&mut scanner, &message[..before + bytes])
            .unwrap()
            .whole
            .unwrap();
        let off = |estimate: u64, truth: u64| {
            (estimate as f64 / truth as f64).max(truth as f64 / estimate as f64)
        };
        off(estimate.bytes, truth.bytes).max(off(estimate.leaves, truth.leaves))
    });
    ratios.fold(1.0, f64::max)
}

const TEXT: &[u8] = b"\xb0sixteen letters!";
const RECORD: &[u8] = b"\x83\xa4name\xb0sixteen letters!\xa3age\x07\xa4card\xb0sixteen letters!";

#[test]
fn estimate_of_equal_values_is_early_and_close() {
    // The document, the part that has arrived, and the allowed error of the estimate in this range.
    let nested = map(1, &[b"\xa4rows", &array(10_000, RECORD)[..]].concat());
    let cases: [(&str, Vec<u8>, std::ops::Range<usize>, f64); 9] = [
        ("flat array", array(10_000, TEXT), 1_000..3_000, 1.02),
        (
            "flat array, most of it",
            array(10_000, TEXT),
            160_000..169_000,
            1.001,
        ),
        (
            "map",
            map(5_000, &[b"\xa5field", TEXT].concat()),
            1_000..3_000,
            1.04,
        ),
        (
            "array of records",
            array(10_000, RECORD),
            2_000..4_000,
            1.04,
        ),
        (
            "10,000 x 1",
            array(10_000, &[b"\x81\xa4name", TEXT].concat()),
            2_000..4_000,
            1.04,
        ),
        ("below one key", nested, 2_000..4_000, 1.04),
        (
            "array of arrays",
            array(100, &array(100, TEXT)),
            2_000..20_000,
            1.02,
        ),
        ("the first of 10,000", array(10_000, TEXT), 4..20, 2.0),
        ("numbers", array(1_000_000, &[0xcd, 1, 0]), 500..600, 1.02),
    ];
    for (name, document, arrived, bound) in cases {
        let worst = worst(&document, arrived);
        assert!(worst <= bound, "{name}: off by {worst}");
    }
}

#[test]
fn estimate_counts_announced_values() {
    let string = |bytes: u32| {
        [
            &[0xdb],
            &bytes.to_be_bytes()[..],
            &vec![b'x'; bytes as usize],
        ]
        .concat()
    };
    let message = call(&[b"\xa3app\xa1a", &payload(&string(1 << 20))]);
    let header = message.len() - (1 << 20);
    assert_eq!(
        estimate(&message[..header - 1]),
        None,
        "a header that is cut says nothing"
    );
    for arrived in [header, header + 1, message.len() - 1] {
        assert_eq!(
            estimate(&message[..arrived]),
            Some(truth(&message)),
            "{arrived}"
        );
    }
    // A long first element: the estimate is too high until the second element has started.
    let uneven = [&b"\x92"[..], &string(100_000), b"\x01"].concat();
    let message = call(&[&payload(&uneven)]);
    let estimate = |arrived| estimate(&message[..arrived]).unwrap();
    assert_eq!(
        estimate(40),
        Estimate {
            bytes: 200_000 + 33,
            leaves: 5
        }
    );
    assert_eq!(
        truth(&message),
        Estimate {
            bytes: message.len() as u64,
            leaves: 5
        }
    );
}

#[test]
fn estimate_of_a_complete_payload_is_exact() {
    // The payload comes first and the app after it, so only the size after the payload can still
    // differ.
    let message = call(&[&payload(&array(1_000, TEXT)), b"\xa3app\xa3abc"]);
    let (truth, behind) = (truth(&message), b"\xa3app\xa3abc".len());
    let at = |bytes| estimate(&message[..bytes]).unwrap();
    assert_eq!(at(message.len() - 1), truth);
    let passed = at(message.len() - behind);
    assert_eq!(
        passed,
        Estimate {
            bytes: truth.bytes - behind as u64 + 2,
            leaves: truth.leaves
        },
        "2 bytes at the least"
    );
    // A container after the payload does not belong to it.
    let message = call(&[&payload(TEXT), b"\xa6select\x92\xa1$\xa1$", b"\xa3app\xa1a"]);
    let (whole, app) = (message.len() as u64, 6);
    for (cut, ahead) in [(7, 2), (9, 3)] {
        let arrived = estimate(&message[..message.len() - cut]).unwrap();
        assert_eq!(
            arrived.bytes,
            whole - app - (ahead - 2) * 2 + ahead,
            "{cut}"
        );
    }
}

#[test]
fn estimate_needs_values_of_the_payload() {
    let message = call(&[b"\xa3app\xa1a", &payload(&array(50, &array(4, &[1])))]);
    let key = message.len() - (3 + 50 * 5);
    for arrived in 0..=key {
        assert_eq!(estimate(&message[..arrived]), None, "{arrived}");
    }
    // A header gives only the least number of values, and so do nested headers.
    assert_eq!(
        estimate(&message[..key + 3]),
        Some(Estimate {
            bytes: key as u64 + 3 + 50,
            leaves: 4 + 50
        })
    );
    assert_eq!(
        estimate(&message[..key + 4]),
        Some(Estimate {
            bytes: key as u64 + 4 + 4 + 49,
            leaves: 4 + 53
        })
    );
    assert_eq!(
        estimate(&message[..key + 5]),
        Some(Estimate {
            bytes: key as u64 + 5 * 200,
            leaves: 4 + 200
        })
    );
    // Other messages, and a rejected message.
    for other in [
        &b"\x94\x00\x07\xa7inspect\x91\x81"[..],
        b"\x94\x00\x07\xa6reveal\x91\x81",
        b"\x93\x02\xa6cancel\x91",
        b"",
    ] {
        assert_eq!(
            after(&mut Scanner::for_requests(Limits::default()), other),
            None
        );
    }
    assert_eq!(
        after(
            &mut Scanner::for_replies(Limits::default()),
            b"\x94\x01\x07\xc0\x81\xa7payload\x92\x01"
        ),
        None
    );
    let mut scanner = Scanner::for_requests(Limits::default());
    assert!(after(&mut scanner, &message[..key + 5]).is_some());
    scanner.skip_rest();
    assert_eq!(scanner.preview(&message[..key + 5]), None);
    let mut scanner = Scanner::for_requests(Limits::default());
    assert!(matches!(scanner.scan(&message), Scan::Message(_)));
    assert_eq!(scanner.preview(&message), None);
}

#[test]
fn estimate_stays_within_the_limits() {
    let limits = Limits {
        message_bytes_max: 1_000,
        elements_max: 500,
        ..Limits::default()
    };
    // One value of 200 bytes and 299 that can be small: the estimate exceeds the limits and is
    // capped by them.
    let long = [&[0xc4, 200][..], &[0; 200]].concat();
    let message = call(&[&payload(&[&[0xdc, 1, 43][..], &long].concat())]);
    let outlook = after(&mut Scanner::for_requests(limits), &message).unwrap();
    assert_eq!(
        outlook.whole,
        Some(Estimate {
            bytes: 1_000,
            leaves: 302
        })
    );
    let deep = [&[0x92, 1].repeat(29)[..], &[0xdc, 1, 0]].concat();
    let message = call(&[&payload(&deep)]);
    let outlook = after(&mut Scanner::for_requests(limits), &message).unwrap();
    assert!(outlook.whole.unwrap().leaves <= 500, "{outlook:?}");
    // As deep and as wide as a scan allows: the part of the innermost value rounds to 0.
    let limits = Limits {
        message_bytes_max: u64::MAX,
        elements_max: u64::MAX,
        ..Limits::default()
    };
    let wide = [0xdf, 0xff, 0xff, 0xff, 0xff, 0x01].repeat(60);
    let message = call(&[&payload(&wide)]);
    let outlook = after(&mut Scanner::for_requests(limits), &message).unwrap();
    let least = 60 * u64::from(u32::MAX - 1);
    assert!(
        outlook
            .whole
            .is_some_and(|whole| whole.leaves >= least && whole.bytes >= least),
        "{outlook:?}"
    );
}

#[test]
fn preview_returns_params_as_they_arrive() {
    let told = |pairs: &[&[u8]], cut: usize| {
        let message = call(pairs);
        let seen = &message[..message.len() - cut];
        let outlook = after(&mut Scanner::for_requests(Limits::default()), seen).unwrap();
        (
            outlook.deadline_ms,
            outlook.suite,
            outlook.key_scope,
            outlook.format,
        )
    };
    let (suite, scope) = (
        &b"\xa5suite\xa9secp256k1"[..],
        &b"\xa9key_scope\xa5field"[..],
    );
    let (format, deadline) = (
        &b"\xa6format\xa9evervault"[..],
        &b"\xabdeadline_ms\xcd\x01\x00"[..],
    );
    let (app, body) = (&b"\xa3app\xa1a"[..], &b"\xa7payload\x92\x01\x01"[..]);
    let (secp256k1, field, evervault) = (
        Some(Suite::Secp256k1),
        Some(KeyScope::Field),
        Some(Format::Evervault),
    );
    assert_eq!(
        told(&[app, suite, scope, format, deadline, body], 1),
        (Some(256), secp256k1, field, evervault)
    );
    assert_eq!(
        told(&[deadline, app, scope, body, suite], 4),
        (Some(256), None, field, None),
        "one behind the payload"
    );
    assert_eq!(
        told(&[app, suite, deadline, body], body.len() + 1),
        (None, secp256k1, None, None),
        "one that is cut"
    );
    let passed: [&[u8]; 5] = [
        b"\xa6select\x92\xa1$\xa2$a",
        b"\xa7context\xc4\x01x",
        b"\xaemin_generation\x05",
        b"\xa4role\xa1r",
        // Nil counts as absent.
        b"\xa6format\xc0",
    ];
    for other in passed {
        assert_eq!(
            told(&[other, suite, body], 1),
            (None, secp256k1, None, None),
            "{other:02x?}"
        );
    }
    // The preview ends at a param that the decoder will reject.
    let odd: [&[u8]; 7] = [
        b"\xa5suite\xa9secp256k1",
        b"\xa6colour\x01",
        b"\x01\x01",
        b"\xa9key_scope\xa1x",
        b"\xa6select\x91\x91\x01",
        b"\xa7context\x91\x01",
        b"\xabdeadline_ms\x00",
    ];
    for odd in odd {
        assert_eq!(
            told(&[suite, odd, deadline, body], 1),
            (None, secp256k1, None, None),
            "{odd:02x?}"
        );
    }
}

#[test]
fn preview_covers_every_method_with_a_payload() {
    for method in Method::ALL {
        let mut message = b"\x94\x00\x07".to_vec();
        write::str(&mut message, method.name());
        let outlook = after(&mut Scanner::for_requests(Limits::default()), &message);
        assert_eq!(
            outlook.map(|outlook| outlook.method),
            method.takes_document().then_some(method)
        );
        assert_eq!(
            method.takes_document(),
            method.params().iter().any(|param| param.name == "payload")
        );
    }
}

#[test]
fn estimate_is_at_least_the_announced_size() {
    // Every cut of a small document: never below the part that was read, never above the limits.
    let document = b"\x83\xa1a\x93\x01\x80\x90\xa1b\x81\x01\x02\x92\x01\x02\xc4\x03abc";
    let message = call(&[&payload(document), b"\xa3app\xa1a"]);
    let truth = truth(&message);
    let mut reader = TokenReader::new(&message);
    assert!(reader.skip_value().is_ok() && reader.is_at_end());
    let mut scanner = Scanner::for_requests(Limits::default());
    for cut in 0..message.len() {
        let outlook = after(&mut scanner, &message[..cut]);
        assert!(
            scanner.bytes_at_least() <= truth.bytes && scanner.leaves_at_least() <= truth.leaves,
            "{cut}"
        );
        if let Some(whole) = outlook.and_then(|outlook| outlook.whole) {
            assert!(
                whole.bytes >= scanner.bytes_at_least()
                    && whole.leaves >= scanner.leaves_at_least(),
                "{cut}"
            );
        }
    }
    assert_eq!(
        scanner
            .preview(&message[..message.len() - 1])
            .unwrap()
            .whole,
        Some(truth)
    );
}
