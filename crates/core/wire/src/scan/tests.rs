//! Tables for the scanner: complete messages, rejections and their time, and the linear cost of a
//! scan.

use sealwire_msgpack::write;

use super::*;
use crate::error::RpcError;
use crate::frame::{Disposition, FrameLayout, MessageHeader, Scan, ScanError};
use crate::method::{Method, Notification};

const SMALL: Limits = Limits {
    message_bytes_max: 1_000,
    depth_max: 6,
    elements_max: 100,
    discard_bytes_max: 5_000,
};

/// `[0, 7, "encrypt", [` and then `params`, one value.
fn call(params: &[u8]) -> Vec<u8> {
    [&[0x94, 0, 7, 0xa7][..], b"encrypt", &[0x91], params].concat()
}

const ENCRYPT_7: MessageHeader = MessageHeader::Request {
    msgid: 7,
    method: Some(Method::Encrypt),
};

fn check(bytes: &[u8], expect: Scan) {
    assert_eq!(
        Scanner::for_requests(SMALL).scan(bytes),
        expect,
        "{bytes:02x?}"
    );
}

fn check_rejected(
    bytes: &[u8],
    header: Option<MessageHeader>,
    error: ScanError,
    disposition: Disposition,
) {
    check(
        bytes,
        Scan::Rejected {
            header,
            error,
            disposition,
        },
    );
}

#[test]
fn scan_reads_headers_and_counts_values() {
    let message = |bytes: &[u8], header, elements, leaves| {
        check(
            bytes,
            Scan::Message(FrameLayout {
                bytes: bytes.len(),
                header,
                elements,
                leaves,
                payload: None,
            }),
        );
    };
    // An empty container is a leaf: if it is selected, it is sealed as one value.
    message(&call(&[0x80]), ENCRYPT_7, 6, 4);
    message(&call(&[0x93, 0x90, 0x80, 0x91, 0x90]), ENCRYPT_7, 10, 6);
    // {"a": [1, {"b": nil}], "c": "d"}: keys are elements but not leaves.
    let document = [
        0x82, 0xa1, b'a', 0x92, 1, 0x81, 0xa1, b'b', 0xc0, 0xa1, b'c', 0xa1, b'd',
    ];
    message(&call(&document), ENCRYPT_7, 14, 6);
    message(
        b"\x93\x02\xa6cancel\x91\x05",
        MessageHeader::Notification {
            notice: Some(Notification::Cancel),
        },
        5,
        3,
    );
    message(
        b"\x93\x02\xa6errors\x91\xa4text",
        MessageHeader::Notification {
            notice: Some(Notification::Errors),
        },
        5,
        3,
    );
    message(
        b"\x93\x02\xa3foo\x90",
        MessageHeader::Notification { notice: None },
        4,
        3,
    );
    message(
        b"\x94\x00\x07\xa3foo\x90",
        MessageHeader::Request {
            msgid: 7,
            method: None,
        },
        5,
        4,
    );
    let wide = [&b"\xdc\x00\x04\xd3\0\0\0\0\0\0\0\0\xd0\x07\xdb\0\0\0\x06health\x90"[..]].concat();
    message(
        &wide,
        MessageHeader::Request {
            msgid: 7,
            method: Some(Method::Health),
        },
        5,
        4,
    );
    let largest = b"\x94\x00\xce\xff\xff\xff\xff\xa4info\x90";
    message(
        largest,
        MessageHeader::Request {
            msgid: u32::MAX,
            method: Some(Method::Info),
        },
        5,
        4,
    );
}

#[test]
fn scan_finds_the_payload_among_the_params() {
    let found = |params: &[u8], payload: Option<&[u8]>| {
        let message = [b"\x94\x00\x07\xa7encrypt", params].concat();
        let Scan::Message(boundary) = Scanner::for_requests(SMALL).scan(&message) else {
            panic!("{params:02x?}")
        };
        assert_eq!(
            boundary.payload.map(|span| &message[span.start..span.end]),
            payload,
            "{params:02x?}"
        );
    };
    // Alone, last, first, between, of every shape.
    found(b"\x91\x81\xa7payload\xa2ok", Some(b"\xa2ok"));
    found(
        b"\x91\x82\xa3app\xa1a\xa7payload\xc4\x02ok",
        Some(b"\xc4\x02ok"),
    );
    found(
        b"\x91\x82\xa7payload\x92\x01\x90\xa3app\xa1a",
        Some(b"\x92\x01\x90"),
    );
    found(
        b"\x91\x83\x01\x02\xa7payload\x81\x01\x80\xa3app\xa1a",
        Some(b"\x81\x01\x80"),
    );
    found(b"\x91\x82\xa7payload\x80\xa3app\xa1a", Some(b"\x80"));
    found(b"\x91\x81\xdb\x00\x00\x00\x07payload\xc0", Some(b"\xc0"));
    // Behind another param with the key inside; the first of two.
    found(
        b"\x91\x82\xa1a\x81\xa7payload\x05\xa7payload\x06",
        Some(b"\x06"),
    );
    found(b"\x91\x82\xa7payload\x05\xa7payload\x06", Some(b"\x05"));
    found(b"\x91\x82\xa1a\xa7payload\xa7payload\x06", Some(b"\x06"));
    // No such key.
    found(b"\x91\x80", None);
    found(b"\x91\x81\xa1a\xa7payload", None);
    found(b"\x91\x81\xa1a\x81\xa7payload\x05", None);
    found(b"\x91\x82\xc4\x07payload\x05\xa7payloax\x06", None);
    found(b"\x91\x81\x91\xa7payload\x05", None);
    // Not one map in an array.
    found(b"\x90", None);
    found(b"\x81\xa7payload\x05", None);
    found(b"\x92\x81\xa7payload\x05\x80", None);
    found(b"\x91\x91\x81\xa7payload\x05", None);
    found(b"\x91\x92\xa7payload\x05", None);
    // Other methods have none.
    for other in [
        &b"\x94\x00\x07\xa7inspect\x91\x81\xa7payload\x05"[..],
        b"\x93\x02\xa7encrypt\x91\x81\xa7payload\x05",
    ] {
        let scan = Scanner::for_requests(SMALL).scan(other);
        assert!(
            matches!(scan, Scan::Message(FrameLayout { payload: None, .. })),
            "{scan:?}"
        );
    }
}

#[test]
fn messages_without_a_readable_header_close_the_connection() {
    for bytes in [
        &[0xc0][..],                                    // nil
        &[0x80],                                        // a map
        &[0x47],                                        // 'G' of an HTTP request
        &[0x16, 0x03, 0x01],                            // a TLS hello
        &[0x90],                                        // an empty array
        &[0x92],                                        // two
        &[0x95],                                        // five
        &[0xdd, 0xff, 0xff, 0xff, 0xff],                // four billion
        &[0x94, 1],                                     // a response
        &[0x94, 2],                                     // a notification of four
        &[0x93, 0],                                     // a request of three
        &[0x94, 3],                                     // no such type
        &[0x94, 0xff],                                  // -1
        &[0x94, 0xa1, b'0'],                            // a string for a type
        &[0x94, 0xdb, 0xff, 0xff, 0xff, 0xff],          // a string of 4 GiB for a type
        &[0x94, 0, 0xff],                               // msgid -1
        &[0x94, 0, 0xcf, 0, 0, 0, 1, 0, 0, 0, 0],       // msgid 2^32
        &[0x94, 0, 0xa1, b'7'],                         // msgid "7"
        &[0x94, 0, 0x91],                               // msgid [..]
        &[0x94, 0, 0xcb, 0x40, 0x1c, 0, 0, 0, 0, 0, 0], // msgid 7.0
    ] {
        check_rejected(bytes, None, ScanError::NotRpc, Disposition::Close);
    }
    for bytes in [&[0xc1][..], &[0x94, 0xc1], &[0x94, 0, 0xc1]] {
        check_rejected(bytes, None, ScanError::Reserved, Disposition::Close);
    }
    let unreadable = MessageHeader::Request {
        msgid: 7,
        method: None,
    };
    check_rejected(
        &[0x94, 0, 7, 0xc1],
        Some(unreadable),
        ScanError::Reserved,
        Disposition::Close,
    );
    check_rejected(
        &call(&[0x81, 0xa1, b'a', 0xc1]),
        Some(ENCRYPT_7),
        ScanError::Reserved,
        Disposition::Close,
    );
}

#[test]
fn limits_apply_to_announced_sizes() {
    let long = ScanError::TooLong { max: 1_000 };
    let many = ScanError::TooMany { max: 100 };
    let refused = |params: &[u8], error, disposition| {
        check_rejected(&call(params), Some(ENCRYPT_7), error, disposition)
    };
    refused(&[0xda, 0x03, 0xe8], long, Disposition::Skip); // str of 1,000
    refused(&[0xc5, 0x13, 0x88], long, Disposition::Close); // bin of 5,000: beyond what is dropped
    refused(&[0xdb, 0xff, 0xff, 0xff, 0xff], long, Disposition::Close); // str of 4 GiB
    refused(&[0xc9, 0xff, 0xff, 0xff, 0xff], long, Disposition::Close); // ext of 4 GiB
    refused(&[0xdc, 0x00, 0x65], many, Disposition::Skip); // array of 101
    refused(&[0xde, 0x00, 0x33], many, Disposition::Skip); // map of 51 pairs
    refused(&[0xdc, 0x04, 0x00], long, Disposition::Skip); // array of 1,024 cannot fit 1,000 bytes
    refused(&[0xdd, 0xff, 0xff, 0xff, 0xff], long, Disposition::Close); // array of four billion
    refused(&[0xdf, 0xff, 0xff, 0xff, 0xff], long, Disposition::Close); // map of four billion
    refused(&[0x91; 5], ScanError::TooDeep { max: 6 }, Disposition::Skip); // the fifth is at depth 7
    check_rejected(
        b"\x94\x00\x07\xdb\xff\xff\xff\xff",
        Some(MessageHeader::Request {
            msgid: 7,
            method: None,
        }),
        long,
        Disposition::Close,
    );
    // Exactly at each limit is fine.
    let filled = |header: &[u8], fill: usize| call(&[header, &vec![b'x'; fill]].concat());
    for message in [
        filled(&[0xda, 0x03, 0xd9], 985), // 1,000 bytes in all
        filled(&[0xdc, 0x00, 0x5e], 94),  // 100 elements in all
        call(&[0x91, 0x91, 0x91, 0x90]),  // depth 6
    ] {
        let scan = Scanner::for_requests(SMALL).scan(&message);
        assert!(
            matches!(scan, Scan::Message(b) if b.bytes == message.len()),
            "{scan:?}"
        );
    }
}

#[test]
fn default_limits_reject_well_known_attacks() {
    let first = |bytes: Vec<u8>| Scanner::for_requests(Limits::default()).scan(&bytes);
    let refused = |error, disposition| Scan::Rejected {
        header: Some(ENCRYPT_7),
        error,
        disposition,
    };
    let ten_million = first(call(&[0xdd, 0x00, 0x98, 0x96, 0x80]));
    assert_eq!(
        ten_million,
        refused(ScanError::TooMany { max: 4_000_000 }, Disposition::Skip)
    );
    let four_gib = first(call(&[0xdb, 0xff, 0xff, 0xff, 0xff]));
    assert_eq!(
        four_gib,
        refused(ScanError::TooLong { max: 64 << 20 }, Disposition::Close)
    );
    let deep = first(call(&[0x91; 10_000]));
    assert_eq!(
        deep,
        refused(ScanError::TooDeep { max: 64 }, Disposition::Skip)
    );
}

/// Feeds `stream` in pieces like a server and lists the results, without the number of discarded
/// bytes.
fn drive(scanner: &mut Scanner, stream: &[u8], piece: usize) -> (Vec<Scan>, usize) {
    let (mut buffer, mut out, mut held_max) = (Vec::new(), Vec::new(), 0);
    for bytes in stream.chunks(piece) {
        buffer.extend_from_slice(bytes);
        held_max = held_max.max(buffer.len());
        loop {
            match scanner.scan(&buffer) {
                Scan::Incomplete => break,
                Scan::Discard { bytes, ended } => {
                    assert!(bytes > 0);
                    buffer.drain(..bytes);
                    if ended {
                        out.push(Scan::Discard { bytes: 0, ended });
                    }
                }
                Scan::Message(boundary) => {
                    buffer.drain(..boundary.bytes);
                    out.push(Scan::Message(boundary));
                }
                refused @ Scan::Rejected { disposition, .. } => {
                    out.push(refused);
                    if disposition == Disposition::Close {
                        return (out, held_max);
                    }
                }
            }
        }
    }
    (out, held_max)
}

#[test]
fn connection_continues_after_a_rejection_without_its_bytes() {
    let refused = [
        call(&[&[0xda, 0x0f, 0xa0][..], &[b'x'; 4_000]].concat()),
        call(&[&[0xdc, 0x07, 0xd0][..], &[0xc0; 2_000]].concat()),
        call(&[&[0x91; 3_000][..], &[0xc0]].concat()),
        call(&[0x91, 0x91, 0x91, 0x91, 0x90]),
        b"\x94\x00\x07\x92\x01\xa1x\x90".to_vec(),
    ];
    let good = call(&[0x80]);
    for message in refused {
        for piece in [1, 2, 3, 7, 64, 10_000] {
            let mut scanner = Scanner::for_requests(SMALL);
            let (out, held) = drive(&mut scanner, &[&message[..], &good].concat(), piece);
            assert!(
                matches!(
                    out[..],
                    [
                        Scan::Rejected {
                            header: Some(MessageHeader::Request { msgid: 7, .. }),
                            disposition: Disposition::Skip,
                            ..
                        },
                        Scan::Discard { ended: true, .. },
                        Scan::Message(FrameLayout {
                            header: ENCRYPT_7,
                            ..
                        }),
                    ]
                ),
                "{out:?}"
            );
            assert!(scanner.is_idle());
            if piece <= 64 {
                assert!(held <= 32 + 64, "held {held} bytes at pieces of {piece}");
            }
        }
    }
}

#[test]
fn skip_ends_at_a_reserved_marker() {
    let deep = [0x91_u8; 5];
    let close = |tail: &[u8], error| {
        let mut scanner = Scanner::for_requests(SMALL);
        let (out, _) = drive(&mut scanner, &call(&[&deep[..], tail].concat()), 9);
        let last = Scan::Rejected {
            header: None,
            error,
            disposition: Disposition::Close,
        };
        assert_eq!(out.last(), Some(&last), "{out:?}");
        assert_eq!(scanner.scan(&[]), last, "it stays closed");
    };
    close(&[0xc1], ScanError::Reserved);
    close(&[0xc5, 0x13, 0x88], ScanError::EndTooFar { max: 5_000 });
    close(
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
        ScanError::EndTooFar { max: 5_000 },
    );
    close(&[0x91; 6_000], ScanError::EndTooFar { max: 5_000 });
}

#[test]
fn skip_rest_rejects_a_message_by_its_header() {
    let message = call(&[&[0xda, 0x03, 0xd9][..], &[b'x'; 985]].concat());
    let mut scanner = Scanner::for_requests(SMALL);
    assert_eq!(scanner.scan(&message[..10]), Scan::Incomplete);
    assert_eq!(scanner.header(), None, "the method's name is cut");
    assert_eq!(scanner.scan(&message[..11]), Scan::Incomplete);
    assert_eq!(scanner.header(), Some(ENCRYPT_7));
    assert_eq!(scanner.scan(&message[..15]), Scan::Incomplete);
    assert_eq!(scanner.bytes_at_least(), message.len() as u64);
    assert_eq!(scanner.skip_rest(), Disposition::Skip);
    assert_eq!(scanner.header(), None);
    assert_eq!(
        scanner.scan(&message[..15]),
        Scan::Discard {
            bytes: 15,
            ended: false
        }
    );
    assert_eq!(scanner.scan(&[]), Scan::Incomplete);
    let rest = message.len() - 15;
    assert_eq!(
        scanner.scan(&message[15..]),
        Scan::Discard {
            bytes: rest,
            ended: true
        }
    );
    assert!(scanner.is_idle());
    assert_eq!(
        scanner.skip_rest(),
        Disposition::Skip,
        "between messages there is nothing to give up"
    );
    assert!(scanner.is_idle());
}

#[test]
fn client_scanner_reads_responses_and_no_requests() {
    let scan = |bytes: &[u8]| Scanner::for_replies(SMALL).scan(bytes);
    let response = scan(&[0x94, 1, 9, 0xc0, 0x80]);
    let header = MessageHeader::Response { msgid: 9 };
    assert_eq!(
        response,
        Scan::Message(FrameLayout {
            bytes: 5,
            header,
            elements: 5,
            leaves: 4,
            payload: None
        })
    );
    let lost = Scan::Rejected {
        header: None,
        error: ScanError::NotRpc,
        disposition: Disposition::Close,
    };
    assert_eq!(scan(&call(&[0x80])), lost);
    assert!(matches!(
        scan(b"\x93\x02\xa5error\x91\x80"),
        Scan::Message(_)
    ));
}

#[test]
fn scan_reads_a_long_message_in_small_pieces_once() {
    // 64 MiB as one string: a few header reads in 65,536 pieces.
    let limits = Limits {
        message_bytes_max: 65 << 20,
        ..Limits::default()
    };
    let mut message = call(&[]);
    write::array_len(&mut message, 2);
    write::bin(&mut message, &vec![0; 64 << 20]);
    write::nil(&mut message);
    let mut scanner = Scanner::for_requests(limits);
    let mut end = 0;
    while end < message.len() {
        assert_eq!(scanner.scan(&message[..end]), Scan::Incomplete);
        end = (end + 1_024).min(message.len());
    }
    assert!(matches!(scanner.scan(&message), Scan::Message(_)));
    assert!(scanner.header_reads < 20, "{} looks", scanner.header_reads);

    // 2 million short strings, about 32 MiB: one header read each, and one more per piece that ends
    // inside a header.
    let mut message = call(&[]);
    write::array_len(&mut message, 2_000_000);
    for _ in 0..2_000_000 {
        write::str(&mut message, "fifteen letters");
    }
    let mut scanner = Scanner::for_requests(limits);
    let mut pieces = 0;
    for end in (0..message.len()).step_by(1_024) {
        assert_eq!(scanner.scan(&message[..end]), Scan::Incomplete);
        pieces += 1;
    }
    let Scan::Message(boundary) = scanner.scan(&message) else {
        panic!("incomplete")
    };
    assert!(
        scanner.header_reads <= boundary.elements + pieces + 1,
        "{} looks",
        scanner.header_reads
    );
}

#[test]
fn errors_name_their_limit_and_code() {
    let rpc = |error: ScanError| RpcError::from(error).to_string();
    assert_eq!(
        rpc(ScanError::TooLong { max: 9 }),
        "too_large: the message is longer than 9 bytes"
    );
    assert_eq!(
        rpc(ScanError::TooDeep { max: 9 }),
        "too_large: the message nests deeper than 9"
    );
    assert_eq!(
        rpc(ScanError::TooMany { max: 9 }),
        "too_large: the message has more than 9 values"
    );
    assert_eq!(
        rpc(ScanError::Reserved),
        "bad_request: reserved marker 0xc1"
    );
    assert_eq!(
        RpcError::from(ScanError::TooLong { max: 9 }).details,
        [
            crate::Detail::text("limit", "message_bytes_max"),
            crate::Detail::number("max", 9)
        ]
    );
}
