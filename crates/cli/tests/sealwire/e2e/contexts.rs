//! Tests of a context for each item of a document. One request must be the same as a request with
//! one `context` for each item.

use sealwire_apps::{CollectionKind, CollectionRules, Scope};
use sealwire_client::{
    Client, Decrypt, Detokenize, Document, Encrypt, EnvelopeOptions, Error, Rewrap, Tokenize,
};
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_payload::{WalkLimits, json};
use sealwire_records::token::Format;
use sealwire_wire::{Detail, Encoding, ErrorCode, KeyScope, OnError, Suite, Unbound};

use crate::e2e::harness::{APP, Harness, code, doc, rpc_error, run};

/// Returns the encoded items of an array.
fn items(document: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = TokenReader::new(document);
    (0..reader.array_len().unwrap())
        .map(|_| reader.value().unwrap().to_vec())
        .collect()
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, items.len() as u32);
    out.extend(items.concat());
    out
}

/// How a request gives contexts.
#[derive(Clone, Copy, Debug)]
enum Given {
    Path,
    Listed,
}

const GIVEN: [Given; 2] = [Given::Path, Given::Listed];

/// Adds the contexts of the rows to a request.
macro_rules! with_contexts {
    ($request:expr, $given:expr, $contexts:expr) => {
        match $given {
            Given::Path => $request.context_path("$.id"),
            Given::Listed => $request.contexts($contexts),
        }
    };
}

/// Rows of several fields, whose contexts have the lengths 1 to 4,096 and all types. The contexts of
/// two rows are equal.
fn rows() -> (Vec<u8>, Vec<String>) {
    let long = "c".repeat(4_096);
    let ids = [
        format!("\"{long}\""),
        "\"row 1\"".into(),
        "18446744073709551615".into(),
        "-9223372036854775808".into(),
        "0".into(),
        "\"0\"".into(),
        "\"zürich\"".into(),
    ];
    let texts: Vec<String> = (0..).zip(&ids).map(|(at, id)| row(at, id)).collect();
    let contexts = ids.map(|id| id.trim_matches('"').to_owned());
    (doc(&format!("[{}]", texts.join(","))), contexts.into())
}

/// Returns a row in JSON. Contexts come before and after the fields, and some rows have many short
/// fields.
fn row(at: usize, id: &str) -> String {
    let many: Vec<String> = (0..=at * 7).map(|at| format!("\"v{at}\"")).collect();
    let many = many.join(",");
    let fields = format!(r#""card": "4111 {at}", "n": {at}.5, "b": {{"x": [true, null, {many}]}}"#);
    if at.is_multiple_of(2) {
        format!("{{\"id\": {id}, {fields}}}")
    } else {
        format!("{{{fields}, \"id\": {id}}}")
    }
}

async fn open(client: &Client, payload: &[u8], context: &str) -> Result<Document, Error> {
    client
        .decrypt(Decrypt::new(APP, payload).context(context))
        .await
}

#[test]
fn rows_in_one_request_are_one_request_for_each_row() {
    run(async {
        let harness = Harness::start().await;
        harness.set_epoch(50).await;
        let client = harness.client().await;
        let (document, contexts) = rows();
        let plain = items(&document);
        for suite in Suite::ALL {
            for key_scope in KeyScope::ALL {
                if (*suite, *key_scope) == (Suite::Xaes, KeyScope::Epoch) {
                    continue;
                }
                for (encoding, given) in Encoding::ALL.iter().zip(GIVEN) {
                    let how = format!("{suite:?} {key_scope:?} {encoding:?} {given:?}");
                    let options = EnvelopeOptions::new()
                        .suite(*suite)
                        .key_scope(*key_scope)
                        .encoding(*encoding);
                    let select = ["$[*].card", "$[*].n", "$[*].b.x[*]"];
                    let request = Encrypt::new(APP, &document)
                        .select(select)
                        .envelope_options(options);
                    let request = with_contexts!(request, given, &contexts);
                    let sealed = client.encrypt(request).await.unwrap().payload;

                    // Each row opens by its own context and by no other.
                    let sealed_rows = items(&sealed);
                    for (at, (row, context)) in sealed_rows.iter().zip(&contexts).enumerate() {
                        assert_ne!(*row, plain[at], "{how}");
                        let opened = open(&client, row, context).await.unwrap();
                        assert_eq!(opened.payload, plain[at], "{how} row {at}");
                        for wrong in ["", "row 2", contexts[(at + 2) % contexts.len()].as_str()] {
                            let denied = open(&client, row, wrong).await;
                            assert_eq!(code(denied), ErrorCode::CannotOpen, "{how} row {at}");
                        }
                    }

                    // Rows that were sealed one by one open in one request.
                    let mut singles = Vec::new();
                    for (row, context) in plain.iter().zip(&contexts) {
                        let request = Encrypt::new(APP, row)
                            .select(["$.card", "$.n", "$.b.x[*]"])
                            .envelope_options(options)
                            .context(context);
                        singles.push(client.encrypt(request).await.unwrap().payload.to_vec());
                    }
                    for sealed in [&sealed[..], &array(&singles)] {
                        let request = with_contexts!(Decrypt::new(APP, sealed), given, &contexts);
                        let opened = client.decrypt(request).await.unwrap();
                        assert_eq!(items(&opened.payload), plain, "{how}");

                        let request = Rewrap::new(APP, sealed).suite(Suite::Xaes);
                        let request = with_contexts!(request, given, &contexts);
                        let moved = client.rewrap(request).await.unwrap().payload;
                        for (at, (row, context)) in items(&moved).iter().zip(&contexts).enumerate()
                        {
                            let opened = open(&client, row, context).await.unwrap();
                            assert_eq!(opened.payload, plain[at], "{how} moved row {at}");
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn other_rows_of_the_request_do_not_open_under_the_context_of_a_row() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = doc(r#"[{"id": "a", "v": "1"}, {"id": "b", "v": "2"}]"#);
        let request = Encrypt::new(APP, &document)
            .select(["$[*].v"])
            .context_path("$.id");
        let sealed = client.encrypt(request).await.unwrap().payload;
        let swapped: Vec<_> = items(&sealed).into_iter().rev().collect();
        let swapped = array(&swapped);
        let opened = client
            .decrypt(
                Decrypt::new(APP, &swapped)
                    .contexts(["a", "b"])
                    .on_error(OnError::Report),
            )
            .await
            .unwrap();
        assert_eq!(opened.payload, swapped);
        let errors: Vec<_> = opened
            .errors
            .iter()
            .map(|error| (&error.path[..], error.code))
            .collect();
        assert_eq!(
            errors,
            [
                ("$[0].v", ErrorCode::CannotOpen),
                ("$[1].v", ErrorCode::CannotOpen)
            ]
        );
    });
}

#[test]
fn without_select_everything_but_the_context_is_sealed() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        for (json, path) in [
            (
                r#"[{"id": 7, "a": {"id": 8, "b": "x"}}, {"a": 1, "id": "y"}]"#,
                "$.id",
            ),
            (
                r#"{"rows": [{"id": "z"}, 2], "meta": {"id": "m", "by": "n"}}"#,
                "$.meta.id",
            ),
            (r#"[["k", 1, 2], ["l", 3]]"#, "$[0]"),
        ] {
            let document = doc(json);
            let request = Encrypt::new(APP, &document).context_path(path);
            let sealed = client.encrypt(request).await.unwrap().payload;
            let mut text = Vec::new();
            json::from_msgpack(&sealed, &mut text, false, WalkLimits::default()).unwrap();
            let text = String::from_utf8(text).unwrap();
            let kept = match path {
                "$.id" => [r#""id":7"#, r#""id":"y""#],
                "$.meta.id" => [r#""id":"m""#, r#""id":"sw1:"#],
                _ => [r#"["k","sw1:"#, r#"["l","sw1:"#],
            };
            assert!(kept.iter().all(|part| text.contains(part)), "{text}");
            let open = Decrypt::new(APP, &sealed).context_path(path);
            assert_eq!(
                client.decrypt(open).await.unwrap().payload,
                document,
                "{json}"
            );
            let open = Decrypt::new(APP, &sealed);
            assert_eq!(code(client.decrypt(open).await), ErrorCode::CannotOpen);
        }
    });
}

#[test]
fn items_without_a_context_fail_by_the_rule_of_field_errors() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let long = format!(r#"{{"id": "{}", "v": 1}}"#, "c".repeat(4_097));
        let missing = "the item of this field has no value at the path of contexts";
        let wrong = "the value at the path of contexts is neither a string nor an integer";
        for (item, message) in [
            (r#"{"v": 1}"#, missing),
            (r#"{"id": null, "v": 1}"#, missing),
            (r#"{"ID": "a", "v": 1}"#, missing),
            (r#"{"id": 1.5, "v": 1}"#, wrong),
            (r#"{"id": true, "v": 1}"#, wrong),
            (r#"{"id": ["a"], "v": 1}"#, wrong),
            (r#"{"id": {"id": "a"}, "v": 1}"#, wrong),
            (
                r#"{"id": "", "v": 1}"#,
                "the value at the path of contexts is empty, so it would bind nothing",
            ),
            (
                &long,
                "the value at the path of contexts is longer than 4096 bytes",
            ),
            (
                r#"{"id": "sealwire/object/1", "v": 1}"#,
                "the value at the path of contexts begins with sealwire/, which is reserved for the engine; use another path",
            ),
        ] {
            let document = doc(&format!(
                r#"[{{"id": 1, "v": 2}}, {item}, {{"id": 3, "v": 4}}]"#
            ));
            let request = || {
                Encrypt::new(APP, &document)
                    .select(["$[*].v"])
                    .context_path("$.id")
            };
            let error = rpc_error(client.encrypt(request()).await);
            assert_eq!(
                (error.code, &error.message[..]),
                (ErrorCode::BadRequest, message),
                "{item:.40}"
            );
            assert!(error.details.contains(&Detail::text("path", "$[1].v")));

            let report = client
                .encrypt(request().on_error(OnError::Report))
                .await
                .unwrap();
            let errors: Vec<_> = report
                .errors
                .iter()
                .map(|error| (&error.path[..], error.code))
                .collect();
            assert_eq!(errors, [("$[1].v", ErrorCode::BadRequest)], "{item:.40}");
            let sealed = items(&report.payload);
            assert_eq!(sealed[1], items(&document)[1], "the item is unchanged");
            for (at, context) in [(0, "1"), (2, "3")] {
                let opened = open(&client, &sealed[at], context).await.unwrap();
                assert_eq!(opened.payload, items(&document)[at]);
            }
        }

        // A key that occurs twice, which JSON does not have.
        let twice = b"\x91\x83\xa2id\x01\xa2id\x02\xa1v\x03";
        let request = Encrypt::new(APP, twice)
            .select(["$[*].v"])
            .context_path("$.id");
        let error = rpc_error(client.encrypt(request).await);
        assert_eq!(
            error.message,
            "the item of this field has several values at the path of contexts, because a key occurs twice"
        );

        // An item without a selected field needs no context.
        let document = doc(r#"[{"id": 1, "v": 2}, {"w": 3}, 4, {}]"#);
        let request = Encrypt::new(APP, &document)
            .select(["$[*].v"])
            .context_path("$.id");
        let sealed = client.encrypt(request).await.unwrap();
        assert_eq!(items(&sealed.payload)[1..], items(&document)[1..]);
        // Nor does one that has no envelope.
        let sealed = sealed.payload.to_vec();
        let request = Decrypt::new(APP, &sealed).context_path("$.id");
        assert_eq!(client.decrypt(request).await.unwrap().payload, document);
    });
}

#[test]
fn fields_that_contain_their_context_are_field_errors() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let selected =
            "this field contains its own context, which must stay readable; select other fields";
        let whole =
            "this field is the whole array, whose items have a context each; select the items";
        for (json, select, path, at, message) in [
            (
                r#"[{"id": 1, "v": 2}]"#,
                "$[*].id",
                "$.id",
                "$[0].id",
                selected,
            ),
            (
                r#"[{"v": 2, "id": 1}]"#,
                "$[*].*",
                "$.id",
                "$[0].id",
                selected,
            ),
            (r#"[{"id": 1}]"#, "$[*]", "$.id", "$[0]", selected),
            (
                r#"[{"a": {"id": 1}}]"#,
                "$[0].a",
                "$.a.id",
                "$[0].a",
                selected,
            ),
            (r#"{"id": 1}"#, "$", "$.id", "$", selected),
            (r#"[{"id": 1}]"#, "$", "$.id", "$", whole),
        ] {
            let document = doc(json);
            let request = Encrypt::new(APP, &document)
                .select([select])
                .context_path(path);
            let error = rpc_error(client.encrypt(request).await);
            assert_eq!(
                (error.code, &error.message[..]),
                (ErrorCode::BadRequest, message),
                "{json} {select}"
            );
            assert!(error.details.contains(&Detail::text("path", at)), "{json}");
        }
        let document = doc("[1, 2]");
        let request = Encrypt::new(APP, &document)
            .select(["$"])
            .contexts(["a", "b"]);
        assert_eq!(rpc_error(client.encrypt(request).await).message, whole);
    });
}

#[test]
fn invalid_contexts_are_rejected_before_any_work() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let count =
            "contexts must have one context for each item of the payload, which must be an array";
        let document = doc(r#"[{"id": 1}, {"id": 2}]"#);
        for (contexts, payload) in [
            (&["a"][..], &document[..]),
            (&["a", "b", "c"], &document),
            (&[], &document),
            (&["a"], b"\x81\xa1a\x01"),
            (&["a"], b"\x01"),
        ] {
            let request = Encrypt::new(APP, payload).contexts(contexts.iter().copied());
            let error = rpc_error(client.encrypt(request).await);
            assert_eq!(
                (error.code, &error.message[..]),
                (ErrorCode::BadRequest, count),
                "{contexts:?}"
            );
        }
        let nothing = Encrypt::new(APP, b"\x90").contexts(Vec::<&str>::new());
        assert_eq!(client.encrypt(nothing).await.unwrap().payload, b"\x90"[..]);

        for (path, message) in [
            (
                "id",
                "contexts is invalid: select path `id` at byte 0: expected `$`",
            ),
            (
                "$",
                "contexts is invalid: select path `$` at byte 1: expected one key or one index, such as `.id` or `[0]`",
            ),
            (
                "$.a[*].id",
                "contexts is invalid: select path `$.a[*].id` at byte 3: expected one key or one index, such as `.id` or `[0]`",
            ),
            (
                "$..id",
                "contexts is invalid: select path `$..id` at byte 1: expected one key or one index, such as `.id` or `[0]`",
            ),
        ] {
            let request = Encrypt::new(APP, &document).context_path(path);
            let error = rpc_error(client.encrypt(request).await);
            assert_eq!(
                (error.code, &error.message[..]),
                (ErrorCode::BadRequest, message)
            );
        }
        let both = Encrypt::new(APP, &document)
            .context("row 7")
            .context_path("$.id");
        assert_eq!(
            rpc_error(client.encrypt(both).await).message,
            "contexts must be absent if context is given"
        );
    });
}

#[test]
fn formats_without_a_binding_reject_contexts() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = doc(r#"[{"id": "a", "v": "x"}, {"id": "b", "v": "y"}]"#);
        let seal = |format| {
            Encrypt::new(APP, &document)
                .select(["$[*].v"])
                .format(format)
        };
        let bound = seal(sealwire_wire::Format::Evervault).context_path("$.id");
        assert_eq!(
            rpc_error(client.encrypt(bound).await).message,
            "contexts must be absent: the Evervault format binds none"
        );

        let unbound = seal(sealwire_wire::Format::Evervault);
        let unbound = client.encrypt(unbound).await.unwrap().payload;
        let open = Decrypt::new(APP, &unbound).context_path("$.id");
        assert_eq!(code(client.decrypt(open).await), ErrorCode::CannotOpen);
        let refused = Rewrap::new(APP, &unbound).context_path("$.id");
        assert_eq!(code(client.rewrap(refused).await), ErrorCode::CannotOpen);
        let bind = Rewrap::new(APP, &unbound)
            .context_path("$.id")
            .unbound(Unbound::Bind);
        let moved = client.rewrap(bind).await.unwrap().payload;
        for (row, (context, plain)) in items(&moved)
            .iter()
            .zip(["a", "b"].into_iter().zip(items(&document)))
        {
            assert_eq!(open_payload(&client, row, context).await, plain);
        }
    });
}

async fn open_payload(client: &Client, row: &[u8], context: &str) -> Vec<u8> {
    open(client, row, context).await.unwrap().payload.to_vec()
}

#[test]
fn tokens_in_one_request_are_one_request_for_each_row() {
    run(async {
        let harness = Harness::start().await;
        for (name, kind, scope) in [
            ("bound", CollectionKind::Deterministic, Scope::Context),
            ("random", CollectionKind::Random, Scope::Collection),
            ("shared", CollectionKind::Deterministic, Scope::Collection),
        ] {
            let rules = CollectionRules {
                kind,
                format: Format::Opaque,
                scope,
                expires_s: None,
                retention_s: None,
            };
            harness.create_collection(APP, name, rules).await;
        }
        let client = harness.client().await;
        let document = doc(
            r#"[{"id": "a", "v": "x", "w": "x"}, {"id": 2, "v": "x"}, {"v": "y", "id": "c"}, {"id": "a", "v": "x"}]"#,
        );
        let contexts = ["a", "2", "c", "a"];
        let plain = items(&document);
        for collection in ["bound", "random"] {
            for given in GIVEN {
                let request =
                    Tokenize::new(APP, collection, &document).select(["$[*].v", "$[*].w"]);
                let request = with_contexts!(request, given, contexts);
                let made = client.tokenize(request).await.unwrap().payload;
                for (at, row) in items(&made).iter().enumerate() {
                    let request = Detokenize::new(APP, collection, row).context(contexts[at]);
                    let values = client.detokenize(request).await.unwrap().payload;
                    assert_eq!(values, plain[at], "{collection} {given:?} {at}");
                    for wrong in ["", "b"] {
                        let request = Detokenize::new(APP, collection, row).context(wrong);
                        let denied = client.detokenize(request).await;
                        assert_eq!(code(denied), ErrorCode::NotFound, "{collection} {at}");
                    }
                    if collection == "bound" {
                        let request = Tokenize::new(APP, collection, &plain[at])
                            .select(["$.v", "$.w"])
                            .context(contexts[at]);
                        let single = client.tokenize(request).await.unwrap().payload;
                        assert_eq!(single, *row, "equal values have equal tokens");
                    }
                }
                let request = Detokenize::new(APP, collection, &made);
                let request = with_contexts!(request, given, contexts);
                let values = client.detokenize(request).await.unwrap().payload;
                assert_eq!(values, document, "{collection} {given:?}");
            }
        }

        // In one collection, equal values under different contexts have different tokens.
        let request = Tokenize::new(APP, "bound", &document).context_path("$.id");
        let made = items(&client.tokenize(request).await.unwrap().payload);
        let token = |at: usize| {
            let mut reader = TokenReader::new(&made[at]);
            let mut token = None;
            for _ in 0..reader.map_len().unwrap() {
                let key = reader.str_utf8().unwrap();
                let value = reader.token().unwrap();
                match (key, value) {
                    ("v", Token::Str(text)) => token = Some(text.to_vec()),
                    ("id", value) => assert!(!format!("{value:?}").contains("tok_")),
                    _ => (),
                }
            }
            token.unwrap()
        };
        assert_eq!(token(0), token(3));
        assert!(token(0) != token(1) && token(1) != token(2));

        let request = Tokenize::new(APP, "shared", &document).context_path("$.id");
        let error = rpc_error(client.tokenize(request).await);
        assert!(
            error.message.starts_with("contexts must be absent"),
            "{}",
            error.message
        );

        // A token of another context is reported, and a row without a context.
        let broken = doc(r#"[{"v": "x"}, {"id": "a", "v": "y"}]"#);
        let request = Tokenize::new(APP, "bound", &broken)
            .select(["$[*].v"])
            .context_path("$.id")
            .on_error(OnError::Report);
        let made = client.tokenize(request).await.unwrap();
        assert_eq!(made.errors.len(), 1);
        assert_eq!(made.errors[0].path, "$[0].v");
        let request = Detokenize::new(APP, "bound", &made.payload)
            .contexts(["a", "b"])
            .on_error(OnError::Report);
        let values = client.detokenize(request).await.unwrap();
        assert_eq!(values.payload, made.payload);
        assert_eq!(values.errors[0].path, "$[1].v");
    });
}

#[test]
fn long_documents_find_contexts_in_slices() {
    run(async {
        // One crypto thread and short slices.
        let harness = Harness::with(|config| config.crypto.threads = 1).await;
        let client = harness.client().await;
        let mut document = Vec::new();
        write::array_len(&mut document, 300);
        let mut contexts = Vec::new();
        for row in 0..300_u32 {
            write::map_len(&mut document, 3);
            write::str(&mut document, "v");
            write::str(&mut document, &format!("value {row}"));
            write::str(&mut document, "rest");
            write::array_len(&mut document, 500);
            (0..500).for_each(|at| write::uint(&mut document, at));
            write::str(&mut document, "id");
            write::uint(&mut document, u64::from(row));
            contexts.push(row.to_string());
        }
        let request = Encrypt::new(APP, &document)
            .select(["$[*].v"])
            .context_path("$.id");
        let sealed = client.encrypt(request).await.unwrap().payload;
        let request = Decrypt::new(APP, &sealed).contexts(&contexts);
        assert_eq!(client.decrypt(request).await.unwrap().payload, document);
        let last = items(&sealed)[299].clone();
        assert_eq!(
            open_payload(&client, &last, "299").await,
            items(&document)[299]
        );

        // Malformed after the first contexts.
        let broken = b"\x92\x82\xa2id\x01\xa1v\x02\x82\xa2id\xa1\xff\xa1v\x02";
        let request = Encrypt::new(APP, broken)
            .select(["$[*].v"])
            .context_path("$.id");
        assert_eq!(code(client.encrypt(request).await), ErrorCode::BadRequest);
    });
}
