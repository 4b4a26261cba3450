//! Errors as text, for clients whose library decodes the error slot of a response as a string.

use sealwire_wire::{CommonParams, Decrypt, Encrypt, ErrorCode, RpcError};

use crate::e2e::control::{OPERATOR, listen};
use crate::e2e::harness::{APP, Harness, fields, run};
use crate::e2e::raw::{Raw, cancel, encrypt, health, heavy, heavy_within};

/// The notification that requests errors as text.
const ASK: &[u8] = b"\x93\x02\xa6errors\x91\xa4text";
/// The msgid of every invalid request.
const MSGID: u32 = 7;

/// Encodes a request under [`MSGID`].
fn request(method: &[u8], params: &[u8]) -> Vec<u8> {
    [b"\x94\x00\x07", method, params].concat()
}

fn at_generation(min_generation: u64) -> Vec<u8> {
    let payload = fields(1);
    encrypt(
        MSGID,
        &Encrypt {
            options: CommonParams {
                min_generation: Some(min_generation),
                ..CommonParams::default()
            },
            ..Encrypt::new(APP, &payload)
        },
    )
}

/// Makes an envelope that no key of the app opens.
fn sealed_elsewhere() -> Vec<u8> {
    let mut out = Vec::new();
    let bad = b"\x81\xa1a\xa8sw1:AAAA";
    sealwire_wire::request::decrypt(&mut out, MSGID, &Decrypt::new(APP, bad));
    out
}

/// Returns the text in the error slot. A decoder of error maps reads a bare string as `internal`.
async fn text(raw: &mut Raw, msgid: u32) -> String {
    let RpcError { code, message, .. } = raw.answer(msgid).await.unwrap_err();
    assert_eq!(code, ErrorCode::Internal, "not text: {message}");
    message.into_owned()
}

#[test]
fn failed_requests_of_all_kinds_get_a_text() {
    let deep = [
        b"\x94\x00\x07\xa7encrypt\x91\x82\xa3app\xa4shop\xa7payload".to_vec(),
        vec![0x91; 1_000],
        vec![1],
    ]
    .concat();
    let cases = [
        (
            "unknown method",
            request(b"\xa6cipher", b"\x91\x80"),
            "not_found: no method \"cipher\"",
        ),
        (
            "malformed params",
            request(b"\xa6health", b"\x91\x81\xa1a\x01"),
            "bad_request: health has no parameter \"a\"",
        ),
        (
            "refused while it arrives",
            deep,
            "too_large: the message nests deeper than 64\t{\"details\":{\"limit\":\"depth_max\",\"max\":64}}",
        ),
        (
            "refused before it begins",
            at_generation(1 << 40),
            "conflict: generation 1 is older than min_generation\t{\"retry_after_ms\":1000}",
        ),
        (
            "failed while it ran",
            sealed_elsewhere(),
            "cannot_open: cannot open\t{\"details\":{\"path\":\"$.a\"}}",
        ),
    ];
    run(async {
        let harness = Harness::start().await;
        let mut raw = harness.raw().await;
        raw.send(ASK).await;
        for (name, bytes, expect) in &cases {
            raw.send(bytes).await;
            assert_eq!(text(&mut raw, MSGID).await, *expect, "{name}");
            raw.is_alive().await;
        }
        // Without the notification the slot holds a map.
        let mut other = harness.raw().await;
        for (name, bytes, expect) in &cases {
            other.send(bytes).await;
            let error = other.answer(MSGID).await.unwrap_err();
            assert_eq!(Some(error.code.name()), expect.split(':').next(), "{name}");
        }
    });
}

#[test]
fn stopped_requests_are_answered_with_text() {
    run(async {
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let mut raw = harness.raw().await;
        raw.send(ASK).await;
        let _hold = harness.hold_crypto().await;
        raw.send(&[heavy(1, 10), cancel(1)].concat()).await;
        assert!(text(&mut raw, 1).await.starts_with("cancelled: "));
        // On a slow machine, the engine predicts that a request cannot meet its deadline and
        // rejects it.
        let mut deadline_ms = 1;
        loop {
            raw.send(&heavy_within(2, 10, Some(deadline_ms))).await;
            let error = text(&mut raw, 2).await;
            if error.starts_with("deadline_exceeded: ") {
                break;
            }
            assert!(
                error.starts_with("overloaded: ") && deadline_ms < 4_000,
                "{error}"
            );
            deadline_ms *= 2;
        }
        raw.is_alive().await;
    });
}

#[test]
fn a_notification_that_asks_for_another_format_is_ignored() {
    run(async {
        let harness = Harness::start().await;
        for frame in [
            &b"\x93\x02\xa6errors\x90"[..],
            b"\x93\x02\xa6errors\x91\xa3map",
            b"\x93\x02\xa6errors\x91\x01",
            b"\x93\x02\xa6errors\x92\xa4text\xa4text",
        ] {
            let mut raw = harness.raw().await;
            raw.send(&[frame, &request(b"\xa6cipher", b"\x91\x80"), &health(8)].concat())
                .await;
            assert_eq!(
                raw.answer(MSGID).await.unwrap_err().code,
                ErrorCode::NotFound,
                "{frame:02x?}"
            );
            raw.answer(8).await.unwrap();
        }
    });
}

#[test]
fn the_control_listener_answers_with_text_too() {
    run(async {
        let harness = Harness::with(|config| config.control = Some(listen(&[OPERATOR]))).await;
        for (name, bytes, code) in [
            (OPERATOR, request(b"\xa7encrypt", b"\x91\x80"), "not_found"),
            (
                OPERATOR,
                request(b"\xacapps.disable", b"\x91\x81\xa3app\xa6nobody"),
                "not_found",
            ),
            (
                OPERATOR,
                request(b"\xa9apps.list", b"\x91\x81\xa1a\x01"),
                "bad_request",
            ),
            ("relay", request(b"\xa9apps.list", b"\x90"), "forbidden"),
        ] {
            let identity = harness.another_caller(name);
            let address = harness.control_address();
            let mut raw = Raw::connect(address, harness.authority.cert_pem(), Some(&identity))
                .await
                .unwrap();
            raw.send(&[ASK, &bytes].concat()).await;
            let text = text(&mut raw, MSGID).await;
            assert!(text.starts_with(&format!("{code}: ")), "{text}");
        }
    });
}
