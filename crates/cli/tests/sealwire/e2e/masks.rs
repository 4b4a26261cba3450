//! Tests of masks: the results of `mask`, and that a role with a mask never reveals a value.

use std::time::Duration;

use sealwire_apps::{CollectionKind, CollectionRules, Scope};
use sealwire_client::control::{CheckRequest, RoleOperation};
use sealwire_client::{
    Client, Decrypt, Detokenize, Document, Encoding, Encrypt, EnvelopeOptions, Error, ErrorCode,
    Format, Mask, MaskRule, OnError, Suite, Tokenize, UnknownFields,
};
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_payload::json;
use sealwire_wire::{Limits, Scan, Scanner, request};

use crate::e2e::access::{
    FULL, NOBODY, connect, enforcing, everything_on, grant_role, put_role_record, start,
};
use crate::e2e::audit::records;
use crate::e2e::documents::contains;
use crate::e2e::harness::{APP, Harness, doc, rpc_error, run};
use crate::e2e::raw::{Raw, cancel};

fn text(document: &[u8]) -> String {
    let mut out = Vec::new();
    json::from_msgpack(
        document,
        &mut out,
        false,
        sealwire_payload::WalkLimits::default(),
    )
    .unwrap();
    String::from_utf8(out).unwrap().trim_end().to_owned()
}

fn at<'a>(path: &'a str, mask: &'a str) -> MaskRule<'a> {
    MaskRule::path(path, mask)
}

async fn mask(
    client: &Client,
    app: &str,
    payload: &[u8],
    rules: Vec<MaskRule<'_>>,
) -> Result<Document, Error> {
    client.mask(Mask::new(app, payload, rules)).await
}

#[test]
fn mask_functions_repeat_per_app_and_differ_between_apps() {
    run(async {
        let harness = Harness::start().await;
        harness.serve_app("other").await;
        let client = harness.client().await;
        let lists = [("towns", vec!["Ulm", "Bonn", "Jena"])];
        // A value, a function, a check of the mask, and true if another app gives another mask.
        let starts = |start: &'static str| -> Box<dyn Fn(&str) -> bool> {
            Box::new(move |mask| mask.starts_with(start))
        };
        let is =
            |is: &'static str| -> Box<dyn Fn(&str) -> bool> { Box::new(move |mask| mask == is) };
        let differs = |from: &'static str| -> Box<dyn Fn(&str) -> bool> {
            Box::new(move |mask| mask != from)
        };
        for (value, function, holds, is_keyed) in [
            ("\"secret\"", "redact", is("\"[redacted]\""), false),
            ("\"secret\"", "redact(with=\"X\")", is("\"X\""), false),
            ("\"secret\"", "fixed(\"n/a\")", is("\"n/a\""), false),
            ("\"secret\"", "null", is("null"), false),
            (
                "\"4111111111111111\"",
                "partial(first=1, last=4)",
                is("\"4***********1111\""),
                false,
            ),
            (
                "\"ann@shop.example\"",
                "email",
                differs("\"ann@shop.example\""),
                true,
            ),
            (
                "\"+49 30 1234567\"",
                "phone(last=2)",
                differs("\"+49 30 1234567\""),
                true,
            ),
            (
                "\"4111111111111111\"",
                "card(first=6, last=4, luhn=valid)",
                starts("\"411111"),
                true,
            ),
            ("\"secret\"", "hash", differs("\"secret\""), true),
            (
                "\"Maria\"",
                "pseudonym(list=first_names)",
                starts("\""),
                true,
            ),
            (
                "\"12345678901\"",
                "fpe(alphabet=digits)",
                differs("\"12345678901\""),
                true,
            ),
            (
                "\"2026-11-22\"",
                "date_shift(days=30)",
                is("\"2026-12-22\""),
                false,
            ),
            (
                "\"2026-11-22\"",
                "date_shift(within=365)",
                starts("\"202"),
                true,
            ),
            ("1234", "generalize(step=10)", is("1230"), false),
            ("\"90210\"", "generalize(keep=3)", starts("\"902"), false),
            (
                "\"2026-11-22\"",
                "generalize(date=month)",
                starts("\"2026-11"),
                false,
            ),
            ("100000", "noise(percent=10)", starts(""), true),
            ("\"secret\"", "keep", is("\"secret\""), false),
        ] {
            let payload = doc(value);
            let masked = async |app| {
                let request = Mask::new(app, &payload, [at("$", function)]).lists(lists.clone());
                text(
                    &client
                        .mask(request)
                        .await
                        .unwrap_or_else(|e| panic!("{function}: {e}"))
                        .payload,
                )
            };
            let (one, again, other) = (masked(APP).await, masked(APP).await, masked("other").await);
            assert!(holds(&one), "{function} of {value}: {one}");
            assert_eq!(one, again, "{function}");
            if !is_keyed {
                assert_eq!(one, other, "{function}");
            }
        }
        // Many values, so that the masks of two apps do not agree by chance.
        let many = doc(&format!(
            "[{}]",
            (0..64)
                .map(|n| format!("\"+49 30 55{n:05}\""))
                .collect::<Vec<_>>()
                .join(",")
        ));
        for function in [
            "hash",
            "fpe(alphabet=digits)",
            "pseudonym(list=towns)",
            "pseudonym(list=cities)",
            "phone",
        ] {
            let masked = async |app, payload: &[u8]| {
                let request = Mask::new(app, payload, [at("$[*]", function)]).lists(lists.clone());
                text(&client.mask(request).await.unwrap().payload)
            };
            let digits = doc(&text(&many).replace(['+', ' '], ""));
            let payload = if function.starts_with("fpe") {
                &digits
            } else {
                &many
            };
            assert_ne!(
                masked(APP, payload).await,
                masked("other", payload).await,
                "{function}"
            );
        }
        harness.settles().await;
    });
}

#[test]
fn rules_name_paths_columns_and_kinds_and_the_rest_is_kept_or_refused() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let payload = doc(
            r#"{"id": 7, "email": "a@b.example", "card": {"number": "4111111111111111", "email": "c@d.example"},
            "note": "4111 1111 1111 1111", "born": "1990-01-01", "none": null}"#,
        );
        let rules = || {
            vec![
                at("$.card.number", "fixed(\"path\")"),
                MaskRule::column("email", "fixed(\"column\")"),
                MaskRule::kind("card", "fixed(\"kind\")"),
                at("$.id", "keep"),
            ]
        };
        let keep = Mask::new(APP, &payload, rules()).unknown(UnknownFields::Keep);
        let masked = client.mask(keep).await.unwrap();
        let expected = r#"{"id":7,"email":"column","card":{"number":"path","email":"column"},"note":"kind","born":"1990-01-01","none":null}"#;
        assert_eq!(text(&masked.payload), expected);
        assert!(masked.errors.is_empty() && masked.generation >= 1);
        // By default, a field without a rule is rejected.
        let refused = rpc_error(mask(&client, APP, &payload, rules()).await);
        assert_eq!(refused.code, ErrorCode::BadRequest);
        assert!(format!("{refused:?}").contains("$.born"), "{refused:?}");
        assert!(!format!("{refused:?}").contains("1990"), "{refused:?}");
        // With error reports, the field is redacted.
        let call = Mask::new(APP, &payload, rules()).on_error(OnError::Report);
        let reported = client.mask(call).await.unwrap();
        assert_eq!(
            text(&reported.payload),
            expected.replace("1990-01-01", "[redacted]")
        );
        let errors: Vec<_> = reported
            .errors
            .iter()
            .map(|error| (error.path.as_str(), error.code))
            .collect();
        assert_eq!(errors, [("$.born", ErrorCode::BadRequest)]);
        // A value that does not fit its function is redacted too.
        let unfit = vec![at("$", "date_shift(days=1)"), at("$.never", "null")];
        let payload = doc(r#"{"a": "2026-11-22", "b": "canary", "c": 5}"#);
        let call = Mask::new(APP, &payload, unfit.clone()).on_error(OnError::Report);
        let reported = client.mask(call).await.unwrap();
        assert_eq!(
            text(&reported.payload),
            r#"{"a":"2026-11-23","b":"[redacted]","c":0}"#
        );
        let paths: Vec<_> = reported
            .errors
            .iter()
            .map(|error| error.path.as_str())
            .collect();
        assert_eq!(paths, ["$.b", "$.c"]);
        let failed = rpc_error(mask(&client, APP, &payload, unfit).await);
        assert!(
            failed.code == ErrorCode::BadRequest && !format!("{failed:?}").contains("canary"),
            "{failed:?}"
        );
        assert!(
            harness
                .metric("sealwire_fields_masked_total{by=\"call\"}")
                .await
                >= 4.0
        );
        assert_eq!(
            harness
                .metric("sealwire_fields_masked_total{by=\"role\"}")
                .await,
            0.0
        );
    });
}

#[test]
fn rules_that_are_none_are_refused_by_place() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let payload = doc("[1]");
        let fine = || at("$[0]", "keep");
        let kind = |kind| MaskRule::kind(kind, "redact");
        for (rules, words) in [
            (vec![fine(), at("$[0]", "fly")], ["rule 2", "fly"]),
            (vec![at("$[0]", "partial(last=x)")], ["rule 1", "column"]),
            (vec![at("$[0]", "partial(last=4")], ["rule 1", "column"]),
            (
                vec![at("$[0]", "pseudonym(list=nowhere)")],
                ["rule 1", "nowhere"],
            ),
            (
                vec![fine(), fine(), at("$[", "null")],
                ["rule 3", "expected"],
            ),
            (vec![fine(), kind("passport")], ["rule 2", "passport"]),
        ] {
            let refused = rpc_error(mask(&client, APP, &payload, rules.clone()).await);
            assert_eq!(refused.code, ErrorCode::BadRequest, "{rules:?}");
            for word in words {
                assert!(
                    refused.message.contains(word),
                    "{rules:?}: {}",
                    refused.message
                );
            }
        }
        let request = Mask::new(APP, &payload, [fine()]).lists([("own", vec!["one"])]);
        let refused = rpc_error(client.mask(request).await);
        assert!(
            refused.code == ErrorCode::BadRequest && refused.message.contains("own"),
            "{}",
            refused.message
        );
        // Limits of the protocol, by their messages. The connection stays open.
        let many = vec![fine(); 257];
        let refused = rpc_error(mask(&client, APP, &payload, many).await);
        assert!(
            refused.message.contains("1 to 256 rules"),
            "{}",
            refused.message
        );
        let refused = rpc_error(mask(&client, "nobody", &payload, vec![fine()]).await);
        assert_eq!(refused.code, ErrorCode::NotFound);
        let late = Mask::new(APP, &payload, vec![fine()]).min_generation(1 << 40);
        assert_eq!(rpc_error(client.mask(late).await).code, ErrorCode::Conflict);
        assert_eq!(
            mask(&client, APP, &payload, vec![fine()])
                .await
                .unwrap()
                .payload,
            payload
        );
        harness.settles().await;
    });
}

#[test]
fn a_long_mask_is_sliced_and_stops_when_told_to() {
    run(async {
        // Both exceed one slice.
        const MANY: u32 = 70_000;
        const STOPPED: u32 = 70_000;
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let payload = crate::e2e::harness::fields(STOPPED);
        let mut message = Vec::new();
        let slow = sealwire_wire::Masking {
            rules: vec![sealwire_wire::MaskRule {
                fields: sealwire_wire::RuleFields::Path("$[*]"),
                mask: "fpe(alphabet=alphanumeric_lower)",
            }],
            ..Default::default()
        };
        request::mask(
            &mut message,
            1,
            &sealwire_wire::Mask {
                writing: slow,
                ..sealwire_wire::Mask::new(APP, &payload)
            },
        );
        let mut raw = harness.raw().await;
        let mut hold = harness.hold_crypto().await;
        raw.send(&message).await;
        harness
            .metric_becomes("sealwire_requests_in_flight", |calls| calls >= 1.0)
            .await;
        // The first slices prepare the rule.
        for _ in 0..8 {
            hold.run_one_slice().await;
        }
        raw.send(&cancel(1)).await;
        assert_eq!(raw.answer(1).await.unwrap_err().code, ErrorCode::Cancelled);
        drop(hold);
        harness.settles().await;
        let done = harness
            .metric("sealwire_fields_total{method=\"mask\"}")
            .await;
        assert!(
            (1.0..=f64::from(STOPPED / 2)).contains(&done),
            "{done} fields were masked"
        );
        let client = harness.client().await;
        let payload = crate::e2e::harness::fields(MANY);
        let writing = vec![at("$[*]", "hash")];
        let call = Mask::new(APP, &payload, writing.clone()).deadline(Duration::from_millis(1));
        match client.mask(call).await {
            Err(Error::Deadline) => (),
            late => {
                let code = rpc_error(late).code;
                assert!(
                    [ErrorCode::DeadlineExceeded, ErrorCode::Overloaded].contains(&code),
                    "{code}"
                );
            }
        }
        // The masks of the whole document, in several slices, begin with those of its part.
        let masked = client
            .mask(Mask::new(APP, &payload, writing.clone()))
            .await
            .unwrap();
        let few = crate::e2e::harness::fields(3);
        let part = client.mask(Mask::new(APP, &few, writing)).await.unwrap();
        assert_eq!(
            masked.payload[5..][..part.payload.len() - 1],
            part.payload[1..]
        );
        harness.settles().await;
    });
}

/// A value that no response to a masked principal may contain.
const CANARY: &str = "canary";
const NUMBER: u64 = 0x1122_3344_5566_7788;
const FLOAT: f64 = 1_234_567.890_123;

/// Makes a document with a canary in every type of value.
fn canaries(with_containers: bool) -> Vec<u8> {
    let mut out = Vec::new();
    write::map_len(&mut out, 6 + u32::from(with_containers));
    write::str(&mut out, "name");
    write::str(&mut out, "canary-alice-0001");
    write::str(&mut out, "mail");
    write::str(&mut out, "canary@canary.example");
    write::str(&mut out, "number");
    write::uint(&mut out, NUMBER);
    write::str(&mut out, "float");
    write::f64(&mut out, FLOAT);
    write::str(&mut out, "is");
    write::bool(&mut out, true);
    write::str(&mut out, "file");
    write::bin(&mut out, b"canary-file-0002");
    if with_containers {
        write::str(&mut out, "card");
        write::map_len(&mut out, 1);
        write::str(&mut out, "pan");
        write::array_len(&mut out, 2);
        write::str(&mut out, "canary-card-0003");
        write::uint(&mut out, NUMBER);
    }
    out
}

fn is_clean(bytes: &[u8]) -> bool {
    ![
        CANARY.as_bytes(),
        &NUMBER.to_be_bytes(),
        &FLOAT.to_be_bytes(),
    ]
    .iter()
    .any(|needle| contains(bytes, needle))
}

/// Sends one encoded message, and returns all bytes of the response.
async fn exchange(harness: &Harness, caller: &str, message: &[u8]) -> Vec<u8> {
    use tokio::io::AsyncReadExt as _;
    let identity = harness.another_caller(caller);
    let mut raw = Raw::connect(
        harness.address,
        harness.authority.cert_pem(),
        Some(&identity),
    )
    .await
    .unwrap();
    raw.send(message).await;
    let (mut heard, mut scanner) = (Vec::new(), Scanner::for_replies(Limits::default()));
    while !matches!(scanner.scan(&heard), Scan::Message(_)) {
        assert_ne!(raw.stream.read_buf(&mut heard).await.unwrap(), 0, "closed");
    }
    heard
}

const MASKS: [&str; 9] = [
    "redact",
    "partial(last=4)",
    "hash",
    "email",
    "fixed(\"n/a\")",
    "null",
    "generalize(step=1000)",
    "date_shift(days=3)",
    "fpe(alphabet=digits)",
];

#[test]
fn decrypted_values_pass_the_mask_of_a_role() {
    run(async {
        let harness = start().await;
        let (operator, relay) = (
            connect(&harness, harness.control_address(), FULL).await,
            connect(&harness, harness.address, FULL).await,
        );
        let writing = |format, encoding| EnvelopeOptions::new().format(format).encoding(encoding);
        let (whole, plain) = (canaries(true), canaries(false));
        let mut sealed = Vec::new();
        for (name, payload, select, writing) in [
            (
                "native text",
                &whole,
                None,
                writing(Format::Native, Encoding::Text),
            ),
            (
                "native binary",
                &whole,
                None,
                writing(Format::Native, Encoding::Binary),
            ),
            (
                "a container",
                &whole,
                Some(vec!["$.card", "$.name"]),
                writing(Format::Native, Encoding::Text),
            ),
            (
                "all as one",
                &whole,
                Some(vec!["$"]),
                writing(Format::Native, Encoding::Binary),
            ),
            (
                "evervault",
                &plain,
                None,
                writing(Format::Evervault, Encoding::Text),
            ),
            (
                "evervault bare",
                &plain,
                None,
                writing(Format::EvervaultBare, Encoding::Text),
            ),
        ] {
            let call = Encrypt::new(APP, payload)
                .set_select(select.clone())
                .envelope_options(writing);
            let document = relay.encrypt(call).await.unwrap().payload;
            // Fields that were not selected are the client's own and are checked apart.
            let document = match select {
                Some(paths) if paths.len() == 2 => {
                    relay
                        .mask(
                            Mask::new(
                                APP,
                                &document,
                                ["$.mail", "$.number", "$.float", "$.file"]
                                    .map(|path| at(path, "null")),
                            )
                            .unknown(UnknownFields::Keep),
                        )
                        .await
                        .unwrap()
                        .payload
                }
                _ => document,
            };
            assert!(is_clean(&document), "{name}");
            sealed.push((name, document));
        }
        grant_role(
            &operator,
            NOBODY,
            "support",
            &["decrypt apps=shop mask=redact"],
        )
        .await;
        for mask in MASKS {
            let grant = format!("decrypt apps=shop mask={mask}");
            set_role(&operator, "support", &[&grant]).await;
            for (name, document) in &sealed {
                for on_error in [OnError::Fail, OnError::Report] {
                    let mut bad = document.to_vec();
                    let mut documents = vec![document.to_vec()];
                    // An envelope that does not open, among others that do.
                    if let Some(at) = bad.windows(4).rposition(|window| window == b"sw1:") {
                        bad[at + 60] ^= 1;
                        documents.push(bad);
                    }
                    for document in documents {
                        let mut message = Vec::new();
                        request::decrypt(
                            &mut message,
                            1,
                            &Decrypt::new(APP, &document).on_error(on_error).into_wire(),
                        );
                        let clear = exchange(&harness, FULL, &message).await;
                        let answer = exchange(&harness, NOBODY, &message).await;
                        let how = format!("{name} under {mask}, {on_error:?}");
                        assert!(is_clean(&answer), "{how}: a value in {answer:02x?}");
                        let code = sealwire_wire::Response::decode(&answer)
                            .unwrap()
                            .outcome
                            .map(drop);
                        let expected = sealwire_wire::Response::decode(&clear)
                            .unwrap()
                            .outcome
                            .map(drop);
                        assert_eq!(code, expected, "{how}");
                    }
                }
            }
        }
        // The value is masked, instead of left sealed.
        set_role(
            &operator,
            "support",
            &["decrypt apps=shop mask=partial(last=4)"],
        )
        .await;
        let client = connect(&harness, harness.address, NOBODY).await;
        let shown = client
            .decrypt(Decrypt::new(APP, &sealed[0].1))
            .await
            .unwrap();
        assert_eq!(
            strings(&shown.payload)[..2],
            ["*************0001", "*****************mple"]
        );
        assert!(
            harness
                .metric("sealwire_fields_masked_total{by=\"role\"}")
                .await
                > 100.0
        );
        harness.settles().await;
    });
}

/// Tests that masks ignore the type of a bare Evervault string. The type is not authenticated, so
/// anybody can change it.
#[test]
fn the_datatype_of_a_bare_string_tells_nothing_behind_a_mask() {
    run(async {
        let harness = start().await;
        let (operator, relay) = (
            connect(&harness, harness.control_address(), FULL).await,
            connect(&harness, harness.address, FULL).await,
        );
        grant_role(
            &operator,
            NOBODY,
            "support",
            &["decrypt apps=shop mask=redact"],
        )
        .await;
        let client = connect(&harness, harness.address, NOBODY).await;
        let payload = doc(
            r#"{"a":"0","b":"1","c":"true","d":"12345","e":"1e400","f":"hello","g":12345,"h":-7.5,"i":true,"j":false}"#,
        );
        for suite in [Suite::P256, Suite::Secp256k1] {
            let writing = EnvelopeOptions::new()
                .suite(suite)
                .format(Format::EvervaultBare);
            let sealed = relay
                .encrypt(Encrypt::new(APP, &payload).envelope_options(writing))
                .await
                .unwrap();
            for mask in MASKS {
                set_role(
                    &operator,
                    "support",
                    &[&format!("decrypt apps=shop mask={mask}")],
                )
                .await;
                for bare in strings(&sealed.payload) {
                    let (head, rest) = bare.split_at("ev:Tk9D:".len());
                    let rest = ["number:", "boolean:"]
                        .iter()
                        .fold(rest, |rest, word| rest.trim_start_matches(word));
                    let mut answers = Vec::new();
                    for word in ["", "string:", "number:", "boolean:"] {
                        let document = doc(&format!("\"{head}{word}{rest}\""));
                        let call = Decrypt::new(APP, &document).on_error(OnError::Report);
                        let shown = client.decrypt(call).await.unwrap();
                        answers.push((text(&shown.payload), shown.errors));
                    }
                    answers.dedup();
                    assert!(
                        answers.len() == 1 && answers[0].1.is_empty(),
                        "{mask}: {answers:?}"
                    );
                }
            }
        }
        // A principal without a mask still gets typed values.
        let writing = EnvelopeOptions::new().format(Format::EvervaultBare);
        let sealed = relay
            .encrypt(Encrypt::new(APP, &payload).envelope_options(writing))
            .await
            .unwrap();
        assert_eq!(
            relay
                .decrypt(Decrypt::new(APP, &sealed.payload))
                .await
                .unwrap()
                .payload,
            payload
        );
    });
}

/// Returns the strings among a map's values, at any depth.
fn strings(document: &[u8]) -> Vec<String> {
    let (mut reader, mut found) = (TokenReader::new(document), Vec::new());
    let entries = reader.map_len().unwrap();
    for _ in 0..entries {
        reader.skip_value().unwrap();
        if let Token::Str(text) = reader.peek().unwrap() {
            found.push(String::from_utf8(text.to_vec()).unwrap());
        }
        reader.skip_value().unwrap();
    }
    found
}

async fn set_role(operator: &Client, role: &str, grants: &[&str]) {
    operator
        .change_role(role, RoleOperation::set(grants.to_vec()))
        .await
        .unwrap();
}

#[test]
fn detokenized_values_pass_the_mask_of_a_role() {
    run(async {
        let harness = start().await;
        let rules = |format| CollectionRules {
            kind: CollectionKind::Random,
            format,
            scope: Scope::Collection,
            expires_s: None,
            retention_s: None,
        };
        harness
            .create_collection(
                APP,
                "people",
                rules(sealwire_records::token::Format::Opaque),
            )
            .await;
        harness
            .create_collection(APP, "others", rules(sealwire_records::token::Format::Uuid))
            .await;
        let (operator, relay) = (
            connect(&harness, harness.control_address(), FULL).await,
            connect(&harness, harness.address, FULL).await,
        );
        let payload = canaries(true);
        let tokenize = async |select: Option<Vec<&'static str>>, collection| {
            relay
                .tokenize(Tokenize::new(APP, collection, &payload).set_select(select))
                .await
                .unwrap()
                .payload
        };
        let documents = [
            tokenize(None, "people").await,
            tokenize(Some(vec!["$"]), "people").await,
        ];
        grant_role(
            &operator,
            NOBODY,
            "support",
            &["detokenize apps=shop mask=redact"],
        )
        .await;
        for mask in MASKS {
            let grant = format!("detokenize apps=shop collections=people mask={mask}");
            set_role(&operator, "support", &[&grant]).await;
            for document in &documents {
                // Also with a token that does not exist.
                let missing = [&b"\x92"[..], document, b"\xb9tok_AAAAAAAAAAAAAAAAAAAAA"].concat();
                for (document, on_error) in [
                    (document.to_vec(), OnError::Fail),
                    (missing.clone(), OnError::Report),
                    (missing, OnError::Fail),
                ] {
                    let call = Detokenize::new(APP, "people", &document).on_error(on_error);
                    let mut message = Vec::new();
                    request::detokenize(&mut message, 1, &call.into_wire());
                    let answer = exchange(&harness, NOBODY, &message).await;
                    assert!(
                        is_clean(&answer),
                        "{mask} {on_error:?}: a value in {answer:02x?}"
                    );
                }
            }
        }
        let client = connect(&harness, harness.address, NOBODY).await;
        // Another collection and another app are not granted at all.
        let elsewhere = tokenize(None, "others").await;
        let refused = client
            .detokenize(Detokenize::new(APP, "others", &elsewhere))
            .await;
        assert_eq!(rpc_error(refused).code, ErrorCode::Forbidden);
        // A value that fits the function is masked. Containers and other values are redacted.
        set_role(
            &operator,
            "support",
            &["detokenize apps=shop mask=partial(last=4)"],
        )
        .await;
        let shown = client
            .detokenize(Detokenize::new(APP, "people", &documents[0]))
            .await
            .unwrap();
        assert_eq!(
            strings(&shown.payload)[..2],
            ["*************0001", "*****************mple"]
        );
        let shown = client
            .detokenize(Detokenize::new(APP, "people", &documents[1]))
            .await
            .unwrap();
        assert_eq!(shown.payload, b"\xaa[redacted]"[..]);
        harness.settles().await;
    });
}

#[test]
fn visible_values_of_a_role_change_with_its_response() {
    run(async {
        let harness = start().await;
        let (operator, relay) = (
            connect(&harness, harness.control_address(), FULL).await,
            connect(&harness, harness.address, FULL).await,
        );
        let payload = canaries(false);
        let sealed = relay
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .unwrap()
            .payload;
        let client = connect(&harness, harness.address, NOBODY).await;
        let masked = "decrypt apps=shop mask=redact";
        grant_role(&operator, NOBODY, "support", &[masked]).await;
        let sees = async |reason: Option<&'static str>| {
            let call = Decrypt::new(APP, &sealed).reason(reason);
            let payload = client.decrypt(call).await.unwrap().payload;
            assert_ne!(is_clean(&payload), payload == canaries(false));
            !is_clean(&payload)
        };
        for _ in 0..20 {
            assert!(!sees(None).await);
            // One grant without a mask is enough.
            set_role(&operator, "support", &[masked, "decrypt apps=shop"]).await;
            assert!(sees(None).await);
            set_role(&operator, "support", &[masked]).await;
            assert!(!sees(None).await);
        }
        // Such a grant can require a reason. Without a reason the mask applies.
        set_role(&operator, "support", &[masked, "decrypt apps=shop reason"]).await;
        assert!(!sees(None).await && sees(Some("ticket 7")).await);
        let check = CheckRequest::new(NOBODY, "decrypt").app(APP);
        assert_eq!(
            operator.check(check).await.unwrap().mask.as_deref(),
            Some("redact")
        );
        let checked = operator.check(check.reason("ticket 7")).await.unwrap();
        assert_eq!((checked.permitted, checked.mask), (true, None));
        // Another role of the principal counts as well, until it is revoked.
        grant_role(&operator, NOBODY, "breaker", &["decrypt apps=shop"]).await;
        assert!(sees(None).await);
        operator
            .change_principal(
                NOBODY,
                sealwire_client::control::PrincipalOperation::revoke("breaker"),
            )
            .await
            .unwrap();
        assert!(!sees(None).await);
        // On another app, nothing is granted, masked or not.
        everything_on(&**harness.control().await.store(), "elsewhere", "elsewhere").await;
        assert_eq!(
            rpc_error(client.decrypt(Decrypt::new("elsewhere", &sealed)).await).code,
            ErrorCode::Forbidden
        );
    });
}

#[test]
fn the_audit_log_says_who_saw_values_through_what() {
    run(async {
        let mut harness = Harness::prepared(
            |config| {
                enforcing(config);
                config.audit.folder = Some(config.state.folder.with_file_name("audit"));
            },
            async |control| everything_on(&**control.store(), FULL, "*").await,
        )
        .await;
        let (operator, relay) = (
            connect(&harness, harness.control_address(), FULL).await,
            connect(&harness, harness.address, FULL).await,
        );
        let grants = ["decrypt apps=shop mask=fixed(\"n/a\")", "mask apps=shop"];
        grant_role(&operator, NOBODY, "support", &grants).await;
        let sealed = relay
            .encrypt(Encrypt::new(APP, &canaries(false)))
            .await
            .unwrap()
            .payload;
        relay.decrypt(Decrypt::new(APP, &sealed)).await.unwrap();
        let client = connect(&harness, harness.address, NOBODY).await;
        client.decrypt(Decrypt::new(APP, &sealed)).await.unwrap();
        mask(&client, APP, &canaries(false), vec![at("$", "redact")])
            .await
            .unwrap();
        harness.take_server().shutdown().await;
        let folder = harness.config.audit.folder.as_ref().unwrap();
        let said: Vec<_> = records(folder)
            .into_iter()
            .filter(|record| {
                ["decrypt", "mask"].contains(&record.method.as_deref().unwrap_or_default())
            })
            .map(|call| {
                (
                    call.principal.unwrap(),
                    call.method.unwrap(),
                    call.fields,
                    call.mask,
                )
            })
            .collect();
        let expected = [
            (FULL, "decrypt", 6, None),
            (NOBODY, "decrypt", 6, Some("fixed(\"n/a\")".to_owned())),
            (NOBODY, "mask", 6, None),
        ];
        assert_eq!(
            said,
            expected.map(|(who, what, fields, mask)| (
                who.to_owned(),
                what.to_owned(),
                fields,
                mask
            ))
        );
        for file in std::fs::read_dir(folder).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            assert!(is_clean(&bytes), "a value is in the trail");
        }
    });
}

#[test]
fn a_mask_that_is_none_is_refused_when_the_role_is_set_and_shows_nothing_when_it_is_there() {
    run(async {
        let harness = start().await;
        let (operator, relay) = (
            connect(&harness, harness.control_address(), FULL).await,
            connect(&harness, harness.address, FULL).await,
        );
        for (grants, words) in [
            (
                vec!["decrypt apps=shop mask=partial(last=x)"],
                ["grant 1", "column"],
            ),
            (
                vec!["decrypt apps=shop", "decrypt apps=shop mask=fly"],
                ["grant 2", "fly"],
            ),
            (
                vec!["decrypt apps=shop mask=keep"],
                ["grant 1", "masks nothing"],
            ),
            (
                vec!["decrypt apps=shop mask=date_shift(within=30, subject=id)"],
                ["grant 1", "one by one"],
            ),
            (
                vec!["decrypt apps=shop mask=pseudonym(list=mine)"],
                ["grant 1", "mine"],
            ),
            (
                vec!["encrypt apps=shop mask=redact"],
                ["decrypt, detokenize and objects.get", "encrypt"],
            ),
            (
                vec!["decrypt apps=shop mask=partial(last=4"],
                ["mask", "function"],
            ),
        ] {
            let operation = RoleOperation::set(grants.clone());
            let refused = rpc_error(operator.change_role("support", operation).await);
            assert_eq!(refused.code, ErrorCode::BadRequest, "{grants:?}");
            for word in words {
                assert!(
                    refused.message.contains(word),
                    "{grants:?}: {}",
                    refused.message
                );
            }
        }
        // A listed grant can be set again.
        let grant = "decrypt,detokenize apps=shop mask=\"partial( last = 4 )\" reason";
        set_role(&operator, "support", &[grant]).await;
        let listed = operator.roles(Default::default()).await.unwrap().roles;
        let listed = &listed
            .iter()
            .find(|role| role.role == "support")
            .unwrap()
            .grants[0];
        assert_eq!(
            listed,
            "decrypt,detokenize apps=shop mask=partial(last=4) reason"
        );
        set_role(&operator, "support", &[listed]).await;
        // A record that was stored by other means, for example by a later version.
        let sealed = relay
            .encrypt(Encrypt::new(APP, &canaries(false)))
            .await
            .unwrap()
            .payload;
        grant_role(
            &operator,
            NOBODY,
            "late",
            &["decrypt apps=shop mask=redact"],
        )
        .await;
        put_role_record(&harness, "late", "decrypt apps=shop mask=hologram(last=4)").await;
        let client = connect(&harness, harness.address, NOBODY).await;
        let refused = rpc_error(client.decrypt(Decrypt::new(APP, &sealed)).await);
        assert_eq!(refused.code, ErrorCode::Forbidden);
        assert!(refused.message.contains("hologram"), "{}", refused.message);
    });
}
