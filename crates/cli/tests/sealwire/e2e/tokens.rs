//! Tests of tokens over the wire: created, found, detokenized and deleted, by many clients at once,
//! also with a failing store.

mod balky;

use sealwire_client::{
    Client, CollectionTarget, Decrypt, Detokenize, Document, Encrypt, Listing, Sweep, TokenSearch,
    Tokenize,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sealwire_apps::{CollectionKind, CollectionRules, Scope, Target};
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_records::token::{CardEnds, Format};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::Postgres;
use sealwire_wire::{
    Detail, Document as Wired, ErrorCode, OnError, TokensOperation, TokensRequest, request,
};
use tokio::time::sleep;

use balky::Balky;

use crate::e2e::harness::{APP, Dice, Harness, code, doc, rpc_error, run, stateless};
use crate::e2e::raw::{Heard, Raw, cancel, health};

use CollectionKind::{Deterministic, OneWay, Random};

fn rules(kind: CollectionKind, format: Format) -> CollectionRules {
    CollectionRules {
        kind,
        format,
        scope: Scope::Collection,
        expires_s: None,
        retention_s: None,
    }
}

/// Starts an engine on each token store.
async fn bare() -> [Harness; 2] {
    let server = Postgres::shared();
    let database = server.database().unwrap();
    let options = PostgresOptions {
        password: Some(server.password().to_owned()),
        ca: Some(server.certificates().ca.clone()),
        ..PostgresOptions::new(database.tls_url())
    };
    let store = PostgresStore::connect(options).await.unwrap();
    let mut on_postgres = Harness::start().await;
    on_postgres.restart_with(|_| Arc::new(store)).await;
    [Harness::start().await, on_postgres]
}

/// Starts engines with a collection of each kind of opaque tokens, named after the kind.
async fn engines() -> [Harness; 2] {
    let harnesses = bare().await;
    for harness in &harnesses {
        create_collections(harness).await;
    }
    harnesses
}

async fn engine() -> Harness {
    let harness = Harness::start().await;
    create_collections(&harness).await;
    harness
}

async fn create_collections(harness: &Harness) {
    for kind in CollectionKind::ALL {
        harness
            .create_collection(APP, kind.name(), rules(kind, Format::Opaque))
            .await;
    }
}

/// Makes an array of strings, each of which differs with another `salt`.
fn values(count: u32, salt: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, count);
    (0..count).for_each(|at| write::str(&mut out, &format!("value {salt} {at}")));
    out
}

fn strings(document: &[u8]) -> Vec<String> {
    let mut reader = TokenReader::new(document);
    let text = |token| match token {
        Token::Str(text) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{other:?} is no string"),
    };
    (0..reader.array_len().unwrap())
        .map(|_| text(reader.token().unwrap()))
        .collect()
}

fn to_tokens<'a>(collection: &'a str, payload: &'a [u8]) -> Tokenize<'a> {
    Tokenize::new(APP, collection, payload)
}

fn to_values<'a>(collection: &'a str, payload: &'a [u8]) -> Detokenize<'a> {
    Detokenize::new(APP, collection, payload)
}

/// Returns the document with tokens in place of its leaves.
async fn tokenize(client: &Client, collection: &str, payload: &[u8]) -> Vec<u8> {
    client
        .tokenize(to_tokens(collection, payload))
        .await
        .unwrap()
        .payload
        .to_vec()
}

/// Counts the tokens of a collection.
async fn count(client: &Client, collection: &str) -> usize {
    let (mut count, mut after) = (0, None::<String>);
    loop {
        let listing = Listing::new().limit(1_000).after(after.as_deref());
        let page = client
            .tokens_list(CollectionTarget::new(APP, collection), listing)
            .await
            .unwrap();
        count += page.tokens.len();
        after = page.next;
        if after.is_none() {
            return count;
        }
    }
}

/// Returns every field error's path and code.
fn errors(document: &Document) -> Vec<(&str, ErrorCode)> {
    document
        .errors
        .iter()
        .map(|error| (&*error.path, error.code))
        .collect()
}

#[test]
fn values_come_back_exactly() {
    run(async {
        for harness in engines().await {
            let client = harness.client().await;
            let payload = doc(
                r#"{"text": "a", "empty": "", "numbers": [0, -1, 18446744073709551615, -9223372036854775808, 1.5, 1e300],
                "flags": [true, false], "nothing": null, "deep": {"a": [{"b": "é"}]}, "twice": ["a", "a"]}"#,
            );
            let mut binary = vec![0x92, 0xc4, 3, 1, 2, 3, 0xc7, 1, 5, 9];
            for (name, format) in [("uuids", Format::Uuid), ("emails", Format::Email)] {
                harness
                    .create_collection(APP, name, rules(Random, format))
                    .await;
            }
            for collection in ["random", "deterministic", "uuids", "emails"] {
                for payload in [&payload, &binary] {
                    let tokens = tokenize(&client, collection, payload).await;
                    assert_ne!(&tokens, payload);
                    let back = client
                        .detokenize(to_values(collection, &tokens))
                        .await
                        .unwrap();
                    assert_eq!(
                        (&back.payload[..], errors(&back)),
                        (&payload[..], vec![]),
                        "{collection}"
                    );
                }
            }
            // A selected container is tokenized as a whole.
            let select = Some(vec!["$.deep", "$.text"]);
            let whole = client
                .tokenize(to_tokens("random", &payload).set_select(select.clone()))
                .await
                .unwrap();
            let back = client
                .detokenize(to_values("random", &whole.payload).set_select(select))
                .await
                .unwrap();
            assert_eq!(back.payload, payload);
            // Values that are no tokens come back byte for byte, padded headers included.
            binary.splice(0..1, [0xdc, 0, 2]);
            assert_eq!(
                client
                    .detokenize(to_values("random", &binary))
                    .await
                    .unwrap()
                    .payload,
                binary
            );
            harness.settles().await;
            let made = harness
                .metric("sealwire_tokens_total{outcome=\"made\"}")
                .await;
            let found = harness
                .metric("sealwire_tokens_total{outcome=\"found\"}")
                .await;
            assert!(made > 40.0 && found > 40.0, "{made} {found}");
        }
    });
}

#[test]
fn formats_hold_what_they_say() {
    run(async {
        for harness in bare().await {
            let client = harness.client().await;
            let card = Format::Card(CardEnds::default());
            for (kind, name) in [(Random, "r"), (Deterministic, "d"), (OneWay, "o")] {
                harness
                    .create_collection(APP, &format!("cards-{name}"), rules(kind, card))
                    .await;
                harness
                    .create_collection(APP, &format!("digits-{name}"), rules(kind, Format::Digits))
                    .await;
                let cards = tokenize(
                    &client,
                    &format!("cards-{name}"),
                    &doc(r#"["4111111111111111"]"#),
                )
                .await;
                let token = strings(&cards).remove(0);
                assert!(
                    token.starts_with("411111")
                        && token.ends_with("1111")
                        && token != "4111111111111111",
                    "{token}"
                );
                let digits = tokenize(
                    &client,
                    &format!("digits-{name}"),
                    &doc(r#"["0123456789"]"#),
                )
                .await;
                assert!(
                    strings(&digits)[0].len() == 10
                        && strings(&digits)[0]
                            .bytes()
                            .all(|byte| byte.is_ascii_digit())
                );
            }
            let payload = doc(
                r#"{"ok": "4111111111111111", "short": "4111", "luhn": "4111111111111112", "number": 4}"#,
            );
            let call = to_tokens("cards-r", &payload).on_error(OnError::Report);
            let reported = client.tokenize(call).await.unwrap();
            let bad = ErrorCode::BadRequest;
            assert_eq!(
                errors(&reported),
                [("$.short", bad), ("$.luhn", bad), ("$.number", bad)]
            );
            let select = Some(vec!["$.ok"]);
            let back = client
                .detokenize(to_values("cards-r", &reported.payload).set_select(select))
                .await
                .unwrap();
            assert_eq!(back.payload, payload);
            // A failed request stores nothing.
            let before = count(&client, "cards-r").await;
            let failed = rpc_error(client.tokenize(to_tokens("cards-r", &payload)).await);
            assert_eq!(
                (failed.code, &failed.details[..]),
                (bad, &[Detail::text("path", "$.short")][..])
            );
            assert_eq!(count(&client, "cards-r").await, before);
        }
    });
}

#[test]
fn concurrent_requests_get_one_token_per_value() {
    run(async {
        for harness in engines().await {
            let harness = Arc::new(harness);
            let mut clients = Vec::new();
            for _ in 0..8 {
                clients.push(Arc::new(harness.client().await));
            }
            for round in 0..10 {
                let payload = Arc::new(values(20, round));
                let calls: Vec<_> = (0..64)
                    .map(|caller: usize| {
                        let (client, payload) =
                            (Arc::clone(&clients[caller % 8]), Arc::clone(&payload));
                        tokio::spawn(
                            async move { tokenize(&client, "deterministic", &payload).await },
                        )
                    })
                    .collect();
                let mut all = HashSet::new();
                for call in calls {
                    all.insert(call.await.unwrap());
                }
                assert_eq!(all.len(), 1, "every caller has the same tokens");
                let tokens = strings(all.iter().next().unwrap());
                assert_eq!(
                    tokens.iter().collect::<HashSet<_>>().len(),
                    20,
                    "and every value its own"
                );
            }
            assert_eq!(count(&clients[0], "deterministic").await, 200);
            harness.settles().await;
        }
    });
}

#[test]
fn a_repeated_call_gets_the_tokens_of_the_first() {
    run(async {
        for harness in engines().await {
            harness
                .create_collection(APP, "digits", rules(Random, Format::Digits))
                .await;
            let client = harness.client().await;
            let keyed = |key: &'static [u8], payload: &'static [u8]| {
                Tokenize::new(APP, "digits", payload).idempotency_key(key)
            };
            // The request fails, so nothing is stored under its idempotency key.
            let bad: &'static [u8] = doc(r#"["1234567890", "x"]"#).leak();
            let good: &'static [u8] = doc(r#"["1234567890", "1234567890"]"#).leak();
            assert_eq!(
                code(client.tokenize(keyed(b"k", bad)).await),
                ErrorCode::BadRequest
            );
            assert_eq!(count(&client, "digits").await, 0);
            let first = client.tokenize(keyed(b"k", good)).await.unwrap().payload;
            assert_ne!(
                strings(&first)[0],
                strings(&first)[1],
                "each field has its own"
            );
            for _ in 0..3 {
                assert_eq!(
                    client.tokenize(keyed(b"k", good)).await.unwrap().payload,
                    first
                );
            }
            assert_eq!(count(&client, "digits").await, 2);
            assert_ne!(
                client.tokenize(keyed(b"l", good)).await.unwrap().payload,
                first
            );
            assert_eq!(count(&client, "digits").await, 4);
        }
    });
}

#[test]
fn contexts_bind_values_and_scopes_tokens() {
    run(async {
        for harness in bare().await {
            for scope in Scope::ALL {
                let rules = CollectionRules {
                    scope,
                    ..rules(Deterministic, Format::Opaque)
                };
                harness.create_collection(APP, scope.name(), rules).await;
            }
            let client = harness.client().await;
            let payload = doc(r#"["a"]"#);
            let under = |scope: Scope, context: &'static [u8]| {
                to_tokens(scope.name(), &payload).context(context)
            };
            let one = client
                .tokenize(under(Scope::Context, b"row 1"))
                .await
                .unwrap()
                .payload;
            assert_ne!(
                one,
                client
                    .tokenize(under(Scope::Context, b"row 2"))
                    .await
                    .unwrap()
                    .payload
            );
            let look =
                |context: &'static [u8]| to_values(Scope::Context.name(), &one).context(context);
            assert_eq!(
                client.detokenize(look(b"row 1")).await.unwrap().payload,
                payload
            );
            for wrong in [&b""[..], b"row 2"] {
                assert_eq!(
                    code(client.detokenize(look(wrong)).await),
                    ErrorCode::NotFound
                );
            }
            let find = async |scope: Scope, value: &[u8], context: &[u8]| {
                client
                    .tokens_find(
                        CollectionTarget::new(APP, scope.name()),
                        TokenSearch::new(value).context(context),
                    )
                    .await
                    .unwrap()
                    .token
            };
            assert_eq!(
                find(Scope::Context, b"\xa1a", b"row 1").await,
                Some(strings(&one).remove(0))
            );
            assert_eq!(find(Scope::Context, b"\xa1a", b"row 3").await, None);
            assert_eq!(find(Scope::Context, b"\xa1b", b"row 1").await, None);
            // If all contexts share tokens, a context would bind nothing, so it is rejected.
            let refused = client.tokenize(under(Scope::Collection, b"row 1")).await;
            assert_eq!(code(refused), ErrorCode::BadRequest);
            let shared = client
                .tokenize(under(Scope::Collection, b""))
                .await
                .unwrap()
                .payload;
            for context in [&b""[..], b"row 1"] {
                let look = to_values(Scope::Collection.name(), &shared).context(context);
                assert_eq!(client.detokenize(look).await.unwrap().payload, payload);
                assert!(find(Scope::Collection, b"\xa1a", context).await.is_some());
            }
        }
    });
}

#[test]
fn tokens_are_looked_at_and_taken_out_of_use() {
    run(async {
        for harness in engines().await {
            let client = harness.client().await;
            let map = CollectionTarget::new(APP, "deterministic");
            let payload = values(300, 1);
            let tagged = client
                .tokenize(Tokenize::new(APP, "deterministic", &payload).tags(["b", "a", "b"]))
                .await
                .unwrap()
                .payload;
            let tokens = strings(&tagged);
            let other = strings(&tokenize(&client, "deterministic", &values(5, 2)).await);
            let unknown = format!("tok_{}", "0".repeat(22));
            let asked = [&tokens[0], &unknown, "no token at all", &other[0]];
            let got = client.tokens_get(map, &asked).await.unwrap();
            let is_there: Vec<_> = got.tokens.iter().map(Option::is_some).collect();
            assert_eq!(is_there, [true, false, false, true]);
            let token = got.tokens[0].clone().unwrap();
            assert_eq!(
                (token.token, token.tags, token.expires),
                (tokens[0].clone(), vec!["a".into(), "b".into()], None)
            );
            // Pages contain every token once, whatever their size.
            for limit in [7, 1_000] {
                let (mut seen, mut after) = (HashSet::new(), None::<String>);
                loop {
                    let listing = Listing::new().tag("a").limit(limit).after(after.as_deref());
                    let page = client.tokens_list(map, listing).await.unwrap();
                    assert!(page.tokens.len() <= limit as usize);
                    for token in page.tokens {
                        assert!(seen.insert(token.unwrap().token));
                    }
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                assert_eq!(seen, tokens.iter().cloned().collect());
            }
            // Expired tokens count as absent, and their values get new tokens.
            let some: Vec<&str> = tokens[..10].iter().map(String::as_str).collect();
            let expired = client
                .tokens_expire(map, &[&some[..], &[&unknown]].concat(), Duration::ZERO)
                .await
                .unwrap();
            assert_eq!((expired.count, expired.missing), (10, vec![10]));
            let few = doc(&format!(r#"["{}", "{}"]"#, tokens[0], tokens[10]));
            let reported =
                client.detokenize(to_values("deterministic", &few).on_error(OnError::Report));
            assert_eq!(
                errors(&reported.await.unwrap()),
                [("$[0]", ErrorCode::NotFound)]
            );
            assert_eq!(
                client
                    .tokens_find(map, TokenSearch::new(b"\xa9value 1 0").context(b""))
                    .await
                    .unwrap()
                    .token,
                None
            );
            let again = strings(&tokenize(&client, "deterministic", &payload).await);
            assert!(again[0] != tokens[0] && again[10] == tokens[10]);
            // All ten are archived: one when its value got another token and the others by a sweep,
            // or all ten at once.
            let archived = Listing::new().archived(true);
            assert_eq!(
                client
                    .tokens_list(map, archived)
                    .await
                    .unwrap()
                    .tokens
                    .len(),
                10
            );
            let kept = client
                .tokens_expire(map, &[again[0].as_str()], None)
                .await
                .unwrap();
            assert_eq!((kept.count, kept.missing), (1, vec![]));
            // A collection whose tokens are not requested again.
            let gone = strings(&tokenize(&client, "random", &values(50, 3)).await);
            let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
            let map = CollectionTarget::new(APP, "random");
            client
                .tokens_expire(map, &gone, Duration::ZERO)
                .await
                .unwrap();
            let sweep = async |sweep: Sweep<'_>, archives: bool| {
                let (mut total, mut after) = (0, None::<String>);
                loop {
                    let step = sweep.after(after.as_deref()).limit(20);
                    let counted = if archives {
                        client.tokens_archive(map, step).await.unwrap()
                    } else {
                        client.tokens_prune(map, step).await.unwrap()
                    };
                    total += counted.count;
                    after = counted.next;
                    if after.is_none() {
                        return total;
                    }
                }
            };
            let now = |dry_run| Sweep::new().older(Duration::from_secs(0)).dry_run(dry_run);
            let later = Sweep::new().older(Duration::from_secs(3_600));
            assert_eq!(
                (sweep(now(true), true).await, sweep(later, true).await),
                (50, 0)
            );
            assert_eq!(
                (sweep(now(false), true).await, sweep(now(false), true).await),
                (50, 0)
            );
            assert_eq!(
                (
                    sweep(Sweep::default(), false).await,
                    sweep(now(true), false).await
                ),
                (0, 50)
            );
            assert_eq!(
                (
                    sweep(now(false), false).await,
                    sweep(now(false), false).await
                ),
                (50, 0)
            );
            assert_eq!(count(&client, "random").await, 0);
            // Some tokens are deleted at once.
            let map = CollectionTarget::new(APP, "deterministic");
            let deleted = client
                .tokens_delete(map, &[&again[0], &unknown, &again[0], "no token"])
                .await
                .unwrap();
            assert_eq!((deleted.count, deleted.missing), (1, vec![1, 3]));
            assert!(client.tokens_get(map, &[&again[0]]).await.unwrap().tokens[0].is_none());
            harness.settles().await;
        }
    });
}

#[test]
fn named_resources_must_exist_and_belong_to_the_app() {
    run(async {
        for harness in engines().await {
            harness.create_app("other").await;
            harness
                .create_collection("other", "random", rules(Random, Format::Opaque))
                .await;
            let client = harness.client().await;
            let payload = doc(r#"["a"]"#);
            let tokens = tokenize(&client, "random", &payload).await;
            let one_way = tokenize(&client, "one_way", &payload).await;
            let not_found = ErrorCode::NotFound;
            assert_eq!(
                code(client.tokenize(to_tokens("none", &payload)).await),
                not_found
            );
            assert_eq!(
                code(client.detokenize(to_values("none", &tokens)).await),
                not_found
            );
            assert_eq!(
                code(client.detokenize(to_values("deterministic", &tokens)).await),
                not_found
            );
            let elsewhere = Detokenize::new("other", "random", &tokens);
            assert_eq!(code(client.detokenize(elsewhere).await), not_found);
            assert_eq!(
                code(
                    client
                        .tokenize(Tokenize::new("none", "random", &payload))
                        .await
                ),
                not_found
            );
            assert_eq!(
                code(client.detokenize(to_values("one_way", &one_way)).await),
                ErrorCode::Forbidden
            );
            let newer = to_tokens("random", &payload).min_generation(u64::MAX);
            assert_eq!(code(client.tokenize(newer).await), ErrorCode::Conflict);
            let map = CollectionTarget::new(APP, "random");
            assert_eq!(
                code(
                    client
                        .tokens_find(map, TokenSearch::new(b"\xa1a").context(b""))
                        .await
                ),
                ErrorCode::BadRequest
            );
            let listing = Listing::new().after("elsewhere");
            assert_eq!(
                code(client.tokens_list(map, listing).await),
                ErrorCode::BadRequest
            );
            assert_eq!(
                code(
                    client
                        .tokens_get(CollectionTarget::new(APP, "none"), &["a"])
                        .await
                ),
                not_found
            );
            harness
                .change(async |control, app| control.disable(app, Target::App).await.unwrap())
                .await;
            assert_eq!(
                code(client.tokenize(to_tokens("random", &payload)).await),
                ErrorCode::Forbidden
            );
            assert_eq!(
                code(client.detokenize(to_values("random", &tokens)).await),
                ErrorCode::Forbidden
            );
            assert_eq!(
                code(client.tokens_get(map, &["a"]).await),
                ErrorCode::Forbidden
            );
            assert_eq!(
                code(client.encrypt(Encrypt::new(APP, &payload)).await),
                ErrorCode::Forbidden
            );
            assert_eq!(
                code(client.decrypt(Decrypt::new(APP, &payload)).await),
                ErrorCode::Forbidden
            );
            harness.settles().await;
        }
    });
}

#[test]
fn a_call_has_ten_thousand_tokens_and_no_more() {
    run(async {
        for harness in engines().await {
            let client = harness.client().await;
            let payload = values(10_000, 1);
            for collection in ["random", "deterministic"] {
                let tokens = tokenize(&client, collection, &payload).await;
                let back = client
                    .detokenize(to_values(collection, &tokens))
                    .await
                    .unwrap();
                assert!(back.payload == payload, "{collection}");
            }
            let limit = |name: &'static str, max: u64| {
                [Detail::text("limit", name), Detail::number("max", max)]
            };
            let many = rpc_error(
                client
                    .tokenize(to_tokens("random", &values(10_001, 2)))
                    .await,
            );
            assert_eq!(
                (many.code, &many.details[..]),
                (
                    ErrorCode::TooLarge,
                    &limit("tokens_per_call_max", 10_000)[..]
                )
            );
            let mut long = vec![0x92];
            for bytes in [65_536, 65_537] {
                write::str(&mut long, &"x".repeat(bytes));
            }
            let call = to_tokens("random", &long).on_error(OnError::Report);
            let reported = client.tokenize(call).await.unwrap();
            assert_eq!(errors(&reported), [("$[1]", ErrorCode::TooLarge)]);
            assert!(
                client
                    .detokenize(to_values("random", &reported.payload))
                    .await
                    .unwrap()
                    .payload
                    == long
            );
            assert_eq!(count(&client, "deterministic").await, 10_000);
            // Few tokens can stand for long values, and a request can contain one token many times.
            let token = strings_of_first(&reported.payload);
            let mut again = Vec::new();
            write::array_len(&mut again, 5_000);
            (0..5_000).for_each(|_| write::str(&mut again, &token));
            let large = rpc_error(client.detokenize(to_values("random", &again)).await);
            assert!(
                matches!(large.code, ErrorCode::TooLarge | ErrorCode::Overloaded),
                "{large:?}"
            );
            harness.settles().await;
        }
    });
}

fn strings_of_first(document: &[u8]) -> String {
    let mut reader = TokenReader::new(document);
    reader.array_len().unwrap();
    reader.str_utf8().unwrap().to_owned()
}

#[test]
fn cancelled_requests_leave_nothing_in_flight() {
    run(async {
        for harness in engines().await {
            let mut raw = harness.raw().await;
            let mut dice = Dice::new(5);
            let mut answered = [0; 2];
            for msgid in 0..200_u32 {
                let payload = values(1 + dice.roll(300) as u32, msgid);
                let mut out = Vec::new();
                if dice.roll(3) == 0 {
                    let operation = TokensOperation::Get {
                        tokens: vec!["tok_0000000000000000000000"],
                    };
                    request::tokens(
                        &mut out,
                        msgid,
                        &TokensRequest {
                            map: sealwire_wire::TokenMap::new(APP, "random"),
                            operation,
                        },
                    );
                } else {
                    request::tokenize(
                        &mut out,
                        msgid,
                        &to_tokens("deterministic", &payload).into_wire(),
                    );
                }
                raw.send(&out).await;
                sleep(Duration::from_micros(dice.roll(4_000))).await;
                raw.send(&cancel(msgid)).await;
                match raw.hear().await {
                    Heard::Response(answer, Ok(_)) if answer == msgid => answered[0] += 1,
                    Heard::Response(answer, Err(error)) if answer == msgid => {
                        assert_eq!(error.code, ErrorCode::Cancelled);
                        answered[1] += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            println!(
                "{} were faster than their cancel, {} not",
                answered[0], answered[1]
            );
            harness.settles().await;
            raw.is_alive().await;
        }
    });
}

#[test]
fn past_its_deadline_a_call_is_answered_and_ends() {
    run(async {
        for harness in engines().await {
            let mut raw = harness.raw().await;
            let payload = values(10_000, 1);
            for msgid in 0..5 {
                let mut out = Vec::new();
                let call = to_tokens("random", &payload).deadline(Duration::from_millis(1));
                request::tokenize(&mut out, msgid, &call.into_wire());
                raw.send(&out).await;
                let error = raw.answer(msgid).await.unwrap_err();
                // Rejected because of its estimate, or stopped.
                assert!(
                    matches!(
                        error.code,
                        ErrorCode::DeadlineExceeded | ErrorCode::Overloaded
                    ),
                    "{error:?}"
                );
            }
            harness.settles().await;
            raw.is_alive().await;
        }
    });
}

#[test]
fn acknowledged_tokens_survive_a_restart() {
    run(async {
        let mut harness = engine().await;
        let mut raw: Raw = harness.raw().await;
        let mut sent = Vec::new();
        for msgid in 0..50 {
            let mut out = Vec::new();
            request::tokenize(
                &mut out,
                msgid,
                &to_tokens("random", &values(20, msgid)).into_wire(),
            );
            sent.extend(out);
        }
        raw.send(&[sent, health(1_000)].concat()).await;
        while !matches!(raw.hear().await, Heard::Response(1_000, _)) {}
        let stopping = tokio::spawn(harness.take_server().shutdown());
        let mut tokens = Vec::new();
        loop {
            match raw.hear().await {
                Heard::Response(msgid, Ok(result)) => {
                    tokens.push((msgid, Wired::decode(&result).unwrap().payload.to_vec()));
                }
                Heard::Response(_, Err(error)) => assert_eq!(error.code, ErrorCode::Unavailable),
                Heard::Notice(_) => (),
                Heard::End => break,
            }
        }
        stopping.await.unwrap();
        harness.restart().await;
        let client = harness.client().await;
        for (msgid, tokens) in &tokens {
            let back = client
                .detokenize(to_values("random", tokens))
                .await
                .unwrap();
            assert_eq!(back.payload, values(20, *msgid));
        }
        println!("{} of 50 were answered with tokens", tokens.len());
    });
}

#[test]
fn an_engine_without_a_token_store_has_no_methods_on_tokens() {
    run(async {
        let harness = Harness::with(stateless).await;
        let client = harness.client().await;
        let payload = doc(r#"["a"]"#);
        assert_eq!(
            code(client.tokenize(to_tokens("random", &payload)).await),
            ErrorCode::NotFound
        );
        assert_eq!(
            code(client.detokenize(to_values("random", &payload)).await),
            ErrorCode::NotFound
        );
        assert_eq!(
            code(
                client
                    .tokens_get(CollectionTarget::new(APP, "random"), &["a"])
                    .await
            ),
            ErrorCode::NotFound
        );
        let methods = client.info().await.unwrap().methods;
        assert!(
            methods.iter().all(|method| !method.contains("token")),
            "{methods:?}"
        );
        client.encrypt(Encrypt::new(APP, &payload)).await.unwrap();
    });
}

/// Starts an engine whose token store can be made to fail or to wait.
async fn balky() -> (Harness, Arc<Balky>) {
    let mut harness = engine().await;
    let mut balky = None;
    harness
        .restart_with(|store| balky.insert(Arc::new(Balky::over(store))).clone())
        .await;
    (harness, balky.unwrap())
}

#[test]
fn a_lost_store_is_unavailable_and_everything_else_goes_on() {
    run(async {
        let (harness, store) = balky().await;
        let client = harness.client().await;
        let payload = doc(r#"["a"]"#);
        let tokens = tokenize(&client, "deterministic", &payload).await;
        store.lose(true);
        let map = CollectionTarget::new(APP, "deterministic");
        let errors = [
            rpc_error(client.tokenize(to_tokens("deterministic", &payload)).await),
            rpc_error(client.detokenize(to_values("deterministic", &tokens)).await),
            rpc_error(client.tokens_get(map, &[&strings(&tokens)[0]]).await),
            rpc_error(
                client
                    .tokens_find(map, TokenSearch::new(b"\xa1a").context(b""))
                    .await,
            ),
            rpc_error(client.tokens_list(map, Listing::default()).await),
            rpc_error(client.tokens_delete(map, &[&strings(&tokens)[0]]).await),
            rpc_error(client.tokens_archive(map, Sweep::default()).await),
        ];
        for error in errors {
            assert_eq!(error.code, ErrorCode::Unavailable);
            assert!(
                error.retry_after_ms.is_some() && !error.message.contains("told"),
                "{error:?}"
            );
        }
        let sealed = client.encrypt(Encrypt::new(APP, &payload)).await.unwrap();
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &sealed.payload))
                .await
                .unwrap()
                .payload,
            payload
        );
        assert!(
            harness
                .metric("sealwire_store_failures_total{operation=\"write\"}")
                .await
                > 0.0
        );
        store.lose(false);
        assert_eq!(
            client
                .detokenize(to_values("deterministic", &tokens))
                .await
                .unwrap()
                .payload,
            payload
        );
        harness.settles().await;
    });
}

#[test]
fn a_store_that_hangs_holds_up_nobody_else_and_no_caller_past_its_deadline() {
    run(async {
        let (harness, store) = balky().await;
        let (client, mut raw) = (harness.client().await, harness.raw().await);
        store.hold(true);
        let tokenize_request = |msgid, payload: &[u8], deadline_ms: Option<u64>| {
            let mut out = Vec::new();
            request::tokenize(
                &mut out,
                msgid,
                &to_tokens("random", payload)
                    .deadline(deadline_ms.map(Duration::from_millis))
                    .into_wire(),
            );
            out
        };
        // The first request is in the store and stays there. The others wait for it.
        raw.send(&tokenize_request(1, &values(3, 1), None)).await;
        harness
            .metric_becomes("sealwire_store_uncommitted_rows", |rows| rows == 3.0)
            .await;
        store.holds(1).await;
        raw.send(
            &[
                tokenize_request(2, &values(5, 2), None),
                tokenize_request(3, &values(7, 3), Some(300)),
            ]
            .concat(),
        )
        .await;
        assert_eq!(
            raw.answer(3).await.unwrap_err().code,
            ErrorCode::DeadlineExceeded
        );
        raw.send(&cancel(2)).await;
        assert_eq!(raw.answer(2).await.unwrap_err().code, ErrorCode::Cancelled);
        for at in 0..50 {
            let sealed = client
                .encrypt(Encrypt::new(APP, &values(100, at)))
                .await
                .unwrap();
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &sealed.payload))
                    .await
                    .unwrap()
                    .payload,
                values(100, at)
            );
        }
        let waiting = harness.metric("sealwire_requests_in_flight").await;
        assert_eq!(waiting, 1.0, "only the one that is under way");
        raw.send(&cancel(1)).await;
        assert_eq!(raw.answer(1).await.unwrap_err().code, ErrorCode::Cancelled);
        // No memory is reserved for the requests, although the store has not responded yet.
        harness.settles().await;
        store.hold(false);
        harness
            .metric_becomes("sealwire_store_uncommitted_rows", |rows| rows == 0.0)
            .await;
        assert_eq!(
            count(&client, "random").await,
            3,
            "what was sent is written, what waited is not"
        );
        let stopped = harness
            .metric("sealwire_cancels_total{reason=\"cancel\"}")
            .await;
        assert_eq!(stopped, 2.0);
    });
}

#[test]
fn clients_that_leave_cause_little_concurrent_store_work() {
    run(async {
        let (harness, store) = balky().await;
        let (client, mut raw) = (harness.client().await, harness.raw().await);
        let tokens = strings(&tokenize(&client, "random", &values(6, 1)).await);
        store.hold(true);
        let asks = tokens
            .iter()
            .map(|token| TokensOperation::Delete {
                tokens: vec![token.as_str()],
            })
            .chain((0..8).map(|at| match at % 2 {
                0 => TokensOperation::List(Default::default()),
                _ => TokensOperation::Archive(Default::default()),
            }));
        for (msgid, operation) in (0..).zip(asks) {
            let mut out = Vec::new();
            request::tokens(
                &mut out,
                msgid,
                &TokensRequest {
                    map: sealwire_wire::TokenMap::new(APP, "random"),
                    operation,
                },
            );
            raw.send(&out).await;
            store.holds(msgid.saturating_sub(4).clamp(1, 5)).await;
            sleep(Duration::from_millis(20)).await;
            raw.send(&cancel(msgid)).await;
            assert_eq!(
                raw.answer(msgid).await.unwrap_err().code,
                ErrorCode::Cancelled
            );
        }
        sleep(Duration::from_millis(50)).await;
        assert_eq!(store.waits(), 5, "one changes, four walk");
        store.hold(false);
        while count(&client, "random").await == 6 {
            sleep(Duration::from_millis(5)).await;
        }
        // The request that was sent is done; the waiting one is not.
        assert_eq!(
            client
                .tokens_delete(CollectionTarget::new(APP, "random"), &[&tokens[5]])
                .await
                .unwrap()
                .count,
            1
        );
        assert_eq!(count(&client, "random").await, 4);
        harness.settles().await;
    });
}
