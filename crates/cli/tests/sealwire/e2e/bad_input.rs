//! Invalid bytes get the typed error and the fate of the connection that `proto/README.md`
//! promises.

use std::time::Duration;

use sealwire_wire::Encrypt;
use sealwire_wire::ErrorCode::{self, BadRequest, NotFound, TooLarge};
use tokio::time::sleep;

use crate::e2e::harness::{APP, Harness, fields, run};
use crate::e2e::raw::{Heard, health};

/// The msgid of every invalid request.
const MSGID: u32 = 7;

/// The expected response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedReply {
    /// An error response, after which the next request is served.
    Answered(ErrorCode),
    /// An error response, after which the connection is closed.
    AnsweredThenEnds(ErrorCode),
    /// An error notification without a request, after which the connection is closed.
    Ends(ErrorCode),
    /// No response; the next request is served.
    Ignored,
}
use ExpectedReply::{Answered, AnsweredThenEnds, Ends, Ignored};

fn request(method: &[u8], params: &[u8]) -> Vec<u8> {
    [b"\x94\x00\x07", method, params].concat()
}

fn encrypt(params: &[u8]) -> Vec<u8> {
    request(b"\xa7encrypt", &[b"\x91", params].concat())
}

/// Encodes an `encrypt` with a valid app and payload and one more key.
fn with(pair: &[u8]) -> Vec<u8> {
    encrypt(&[b"\x83\xa3app\xa4shop\xa7payload\x01", pair].concat())
}

/// Encodes an `encrypt` with that payload.
fn of(payload: &[u8]) -> Vec<u8> {
    encrypt(&[b"\x82\xa3app\xa4shop\xa7payload", payload].concat())
}

fn cases() -> Vec<(&'static str, Vec<u8>, ExpectedReply)> {
    let path = |bytes: usize| {
        [
            &b"\xa6select\x91\xda"[..],
            &(bytes as u16).to_be_bytes(),
            &vec![b'a'; bytes],
        ]
        .concat()
    };
    let no_map = |byte: u8| request(b"\xa7encrypt", &[byte]);
    vec![
        (
            "unknown method",
            request(b"\xa6cipher", b"\x91\x80"),
            Answered(NotFound),
        ),
        (
            "method of the other listener",
            request(b"\xa9apps.list", b"\x90"),
            Answered(NotFound),
        ),
        (
            "empty method",
            request(b"\xa0", b"\x90"),
            Answered(NotFound),
        ),
        (
            "method of 300 bytes",
            request(&[b"\xda\x01\x2c", &[b'x'; 300][..]].concat(), b"\x90"),
            Answered(NotFound),
        ),
        (
            "method not a string",
            request(b"\x05", b"\x91\x80"),
            Answered(BadRequest),
        ),
        (
            "method not UTF-8",
            request(b"\xa2\xff\xfe", b"\x91\x80"),
            Answered(NotFound),
        ),
        ("unknown key", with(b"\xa5speed\x01"), Answered(BadRequest)),
        ("key twice", with(b"\xa3app\xa4shop"), Answered(BadRequest)),
        (
            "payload twice",
            with(b"\xa7payload\x01"),
            Answered(BadRequest),
        ),
        ("key not a string", with(b"\x07\x01"), Answered(BadRequest)),
        (
            "key not UTF-8",
            with(b"\xa3ap\xff\x01"),
            Answered(BadRequest),
        ),
        (
            "app missing",
            encrypt(b"\x81\xa7payload\x01"),
            Answered(BadRequest),
        ),
        (
            "payload missing",
            encrypt(b"\x81\xa3app\xa4shop"),
            Answered(BadRequest),
        ),
        ("no params", encrypt(b"\x80"), Answered(BadRequest)),
        ("params not an array", no_map(0x80), Answered(BadRequest)),
        ("params empty", no_map(0x90), Answered(BadRequest)),
        (
            "params of two",
            request(b"\xa7encrypt", b"\x92\x80\x80"),
            Answered(BadRequest),
        ),
        ("params nil", no_map(0xc0), Answered(BadRequest)),
        (
            "health with params",
            request(b"\xa6health", b"\x91\x81\xa1a\x01"),
            Answered(BadRequest),
        ),
        (
            "app a number",
            encrypt(b"\x82\xa3app\x01\xa7payload\x01"),
            Answered(BadRequest),
        ),
        (
            "app binary",
            encrypt(b"\x82\xa3app\xc4\x04shop\xa7payload\x01"),
            Answered(BadRequest),
        ),
        (
            "app empty",
            encrypt(b"\x82\xa3app\xa0\xa7payload\x01"),
            Answered(BadRequest),
        ),
        (
            "app a path",
            encrypt(b"\x82\xa3app\xa9../../etc\xa7payload\x01"),
            Answered(BadRequest),
        ),
        (
            "app not UTF-8",
            encrypt(b"\x82\xa3app\xa2\xc3\x28\xa7payload\x01"),
            Answered(BadRequest),
        ),
        (
            "suite unknown",
            with(b"\xa5suite\xa2r9"),
            Answered(BadRequest),
        ),
        (
            "suite a boolean",
            with(b"\xa5suite\xc2"),
            Answered(BadRequest),
        ),
        (
            "contexts a number",
            with(b"\xa8contexts\x01"),
            Answered(BadRequest),
        ),
        (
            "contexts without a path",
            with(b"\xa8contexts\x80"),
            Answered(BadRequest),
        ),
        (
            "contexts for one item, of none",
            with(b"\xa8contexts\x91\xa1a"),
            Answered(BadRequest),
        ),
        (
            "context a number",
            with(b"\xa7context\x01"),
            Answered(BadRequest),
        ),
        (
            "select empty",
            with(b"\xa6select\x90"),
            Answered(BadRequest),
        ),
        (
            "select a string",
            with(b"\xa6select\xa1$"),
            Answered(BadRequest),
        ),
        (
            "select does not parse",
            with(b"\xa6select\x91\xa5$.a[x"),
            Answered(BadRequest),
        ),
        ("select too long", with(&path(1_025)), Answered(BadRequest)),
        (
            "select of 65",
            with(&[&b"\xa6select\xdc\x00\x41"[..], &b"\xa3$.a".repeat(65)].concat()),
            Answered(BadRequest),
        ),
        (
            "deadline 0",
            with(b"\xabdeadline_ms\x00"),
            Answered(BadRequest),
        ),
        (
            "deadline negative",
            with(b"\xabdeadline_ms\xff"),
            Answered(BadRequest),
        ),
        (
            "deadline a float",
            with(b"\xabdeadline_ms\xca\x00\x00\x00\x00"),
            Answered(BadRequest),
        ),
        (
            "payload not UTF-8",
            of(b"\x92\xa1a\xa2\xff\xfe"),
            Answered(BadRequest),
        ),
        (
            "deep in payload not UTF-8",
            of(b"\x91\x91\x81\xa1k\xd9\x02\xc3\x28"),
            Answered(BadRequest),
        ),
        (
            "depth 10,000",
            of(&[vec![0x91; 10_000], vec![0x01]].concat()),
            Answered(TooLarge),
        ),
        (
            "depth 10,000 of maps",
            of(&[b"\x81\x01".repeat(10_000), vec![0x01]].concat()),
            Answered(TooLarge),
        ),
        (
            "array of 10 million",
            of(&[b"\xdd\x00\x98\x96\x80".to_vec(), vec![0x01; 10_000_000]].concat()),
            Answered(TooLarge),
        ),
        (
            "65 MiB",
            of(&[b"\xc6\x04\x10\x00\x00".to_vec(), vec![0; 65 << 20]].concat()),
            Answered(TooLarge),
        ),
        (
            "string of 4 GiB",
            of(b"\xdb\xff\xff\xff\xff"),
            AnsweredThenEnds(TooLarge),
        ),
        (
            "binary of 4 GiB",
            of(b"\xc6\xff\xff\xff\xff"),
            AnsweredThenEnds(TooLarge),
        ),
        (
            "ext of 4 GiB",
            of(b"\xc9\xff\xff\xff\xff\x01"),
            AnsweredThenEnds(TooLarge),
        ),
        (
            "array of 4 billion",
            of(b"\xdd\xff\xff\xff\xff"),
            AnsweredThenEnds(TooLarge),
        ),
        (
            "map of 4 billion",
            of(b"\xdf\xff\xff\xff\xff"),
            AnsweredThenEnds(TooLarge),
        ),
        (
            "params of 4 billion",
            request(b"\xa7encrypt", b"\xdf\xff\xff\xff\xff"),
            AnsweredThenEnds(TooLarge),
        ),
        (
            "reserved marker in payload",
            of(b"\x92\x01\xc1"),
            AnsweredThenEnds(BadRequest),
        ),
        ("reserved marker first", vec![0xc1], Ends(BadRequest)),
        (
            "reserved marker as method",
            request(b"\xc1", b""),
            AnsweredThenEnds(BadRequest),
        ),
        ("a number", vec![0x05], Ends(BadRequest)),
        ("a map", vec![0x81, 1, 1], Ends(BadRequest)),
        ("a string", b"\xa5hello".to_vec(), Ends(BadRequest)),
        (
            "the end of an HTTP request",
            b"host: a\r\n\r\n".to_vec(),
            Ends(BadRequest),
        ),
        ("an empty array", vec![0x90], Ends(BadRequest)),
        (
            "an array of 5",
            vec![0x95, 0, 7, 0xa0, 0x90, 0],
            Ends(BadRequest),
        ),
        (
            "an array of 4 billion",
            vec![0xdd, 0xff, 0xff, 0xff, 0xff],
            Ends(BadRequest),
        ),
        (
            "message type 3",
            vec![0x94, 3, 7, 0xa0, 0x90],
            Ends(BadRequest),
        ),
        ("a response", vec![0x94, 1, 7, 0xc0, 0xc0], Ends(BadRequest)),
        (
            "msgid of 33 bits",
            b"\x94\x00\xcf\x00\x00\x00\x01\x00\x00\x00\x00\xa6health\x90".to_vec(),
            Ends(BadRequest),
        ),
        (
            "msgid negative",
            b"\x94\x00\xff\xa6health\x90".to_vec(),
            Ends(BadRequest),
        ),
        (
            "msgid a string",
            b"\x94\x00\xa17\xa6health\x90".to_vec(),
            Ends(BadRequest),
        ),
        (
            "msgid nil",
            b"\x94\x00\xc0\xa6health\x90".to_vec(),
            Ends(BadRequest),
        ),
        (
            "unknown notification",
            b"\x93\x02\xa5hello\x90".to_vec(),
            Ignored,
        ),
        (
            "cancel of no call",
            b"\x93\x02\xa6cancel\x91\x63".to_vec(),
            Ignored,
        ),
        (
            "cancel without msgid",
            b"\x93\x02\xa6cancel\x90".to_vec(),
            Ignored,
        ),
        (
            "cancel of a string",
            b"\x93\x02\xa6cancel\x91\xa17".to_vec(),
            Ignored,
        ),
        (
            "cancel beyond 32 bits",
            b"\x93\x02\xa6cancel\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00".to_vec(),
            Ignored,
        ),
    ]
}

#[test]
fn bad_bytes_get_the_answer_and_the_fate_of_the_contract() {
    run(async {
        let harness = Harness::start().await;
        let mut bystander = harness.raw().await;
        for (name, bytes, verdict) in cases() {
            let mut raw = harness.raw().await;
            raw.send(&[bytes, health(8)].concat()).await;
            match verdict {
                Answered(code) => {
                    // In any order, because the invalid request can be read on a crypto thread.
                    let mut heard = [raw.hear().await, raw.hear().await];
                    heard.sort_by_key(|heard| {
                        if let Heard::Response(msgid, _) = heard {
                            *msgid
                        } else {
                            u32::MAX
                        }
                    });
                    let [
                        Heard::Response(MSGID, Err(error)),
                        Heard::Response(8, Ok(_)),
                    ] = heard
                    else {
                        panic!("{name}: {heard:?}");
                    };
                    assert_eq!(error.code, code, "{name}");
                    raw.is_alive().await;
                }
                AnsweredThenEnds(code) => {
                    assert_eq!(raw.answer(MSGID).await.unwrap_err().code, code, "{name}");
                    raw.ends().await;
                }
                Ends(code) => assert_eq!(
                    raw.ends().await.map(|notice| notice.code),
                    Some(code),
                    "{name}"
                ),
                Ignored => {
                    raw.answer(8).await.unwrap();
                    raw.is_alive().await;
                }
            }
            bystander.is_alive().await;
        }
        harness.settles().await;
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 1.0)
            .await;
    });
}

#[test]
fn an_answer_names_what_is_wrong_and_no_value() {
    run(async {
        let harness = Harness::start().await;
        let mut raw = harness.raw().await;
        for (bytes, named) in [
            (with(b"\xa5speed\x01"), "speed"),
            (with(b"\xa3app\xa4shop"), "app"),
            (with(b"\xa5suite\xa6secret"), "suite"),
            (encrypt(b"\x81\xa3app\xa4shop"), "payload"),
            (with(b"\xabdeadline_ms\x00"), "deadline_ms"),
        ] {
            raw.send(&bytes).await;
            let message = raw.answer(MSGID).await.unwrap_err().message;
            assert!(
                message.contains(named) && !message.contains("secret"),
                "{message}"
            );
        }
    });
}

#[test]
fn requests_before_malformed_bytes_get_responses() {
    run(async {
        let harness = Harness::start().await;
        let mut raw = harness.raw().await;
        raw.send(&[health(1), health(2), b"garbage".to_vec()].concat())
            .await;
        let mut heard = [raw.hear().await, raw.hear().await, raw.hear().await];
        heard.sort_by_key(|heard| {
            if let Heard::Response(msgid, _) = heard {
                *msgid
            } else {
                u32::MAX
            }
        });
        assert!(
            matches!(
                &heard,
                [
                    Heard::Response(1, Ok(_)),
                    Heard::Response(2, Ok(_)),
                    Heard::Notice(_)
                ]
            ),
            "{heard:?}"
        );
        assert_eq!(raw.hear().await, Heard::End);
    });
}

#[test]
fn responses_reach_a_peer_that_continues_to_send() {
    run(async {
        let harness = Harness::start().await;
        let document = fields(60_000);
        for _ in 0..5 {
            let mut raw = harness.raw().await;
            raw.send(&crate::e2e::raw::encrypt(1, &Encrypt::new(APP, &document)))
                .await;
            raw.hear_part(1).await;
            // To close on these bytes unread would make the system reset the connection and drop
            // what waits to be sent. They are more than buffers hold, and so is the answer, which
            // is read after them.
            let _ = raw
                .try_send(&[vec![0xc1], vec![0x55; 16 << 20]].concat())
                .await;
            sleep(Duration::from_millis(50)).await;
            raw.answer(1).await.expect("the answer is lost");
            assert_eq!(
                raw.ends().await.expect("the notice is lost").code,
                BadRequest
            );
        }
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 0.0)
            .await;
    });
}

#[test]
fn a_stream_that_breaks_off_anywhere_harms_nobody() {
    run(async {
        let harness = Harness::start().await;
        let mut bystander = harness.raw().await;
        let whole = of(b"\x93\xa3abc\xc4\x02\x00\x01\xcb\x00\x00\x00\x00\x00\x00\x00\x00");
        for end in 0..whole.len() {
            let mut raw = harness.raw().await;
            raw.send(&whole[..end]).await;
            tokio::io::AsyncWriteExt::shutdown(&mut raw.stream)
                .await
                .unwrap();
            assert_eq!(raw.hear().await, Heard::End, "{end}");
        }
        bystander.is_alive().await;
        harness
            .metric_becomes("sealwire_connections_open", |open| open == 1.0)
            .await;
        harness.settles().await;
    });
}

#[test]
fn a_message_in_single_bytes_is_a_message() {
    run(async {
        let harness = Harness::start().await;
        let mut raw = harness.raw().await;
        for byte in of(b"\x93\xa3abc\xc4\x02\x00\x01\xc0") {
            raw.send(&[byte]).await;
        }
        raw.answer(MSGID).await.unwrap();
    });
}
