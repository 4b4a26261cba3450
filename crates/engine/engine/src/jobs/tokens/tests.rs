//! Both directions walk by walk, over a store in memory: what the reply says, and what the store is
//! left with.

use std::collections::HashSet;

use sealwire_access::Principal;
use sealwire_crypto::KeyState;
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_payload::{
    Budget, Containers, Progress, Selection, Transform, Walk, WalkError, WalkLimits, json,
};
use sealwire_records::token::{CardEnds, Format, NewToken, TokenKeyVersion, TokenSecret};
use sealwire_store::{MemoryStore, Row, TokenStore as _, Written};
use sealwire_wire::{FieldError, OnError};

use super::detokenize::{DetokenizeFields, DetokenizeSpec};
use super::tokenize::{IdempotencyKey, TOKEN_BYTES, TokenizeFields, TokenizeSpec};
use super::*;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFailure, FieldProblem};
use crate::jobs::masks::disclosure::Disclosure;

const BOUNDS: Bounds = Bounds {
    fields_max: 100,
    value_bytes_max: 1_000,
};

fn collection(kind: CollectionKind, format: Format) -> Arc<Collection> {
    let version = TokenKeyVersion {
        number: 1,
        state: KeyState::Active,
        secret: TokenSecret::generate().unwrap(),
    };
    let keys = Arc::new(TokenKeys::new(7, vec![version]).unwrap());
    let map = MapId {
        app: 7,
        collection: 1,
    };
    Arc::new(Collection {
        keys,
        map,
        kind,
        format,
        per_context: false,
        expires_s: None,
    })
}

fn minting(collection: &Arc<Collection>) -> TokenizeSpec {
    TokenizeSpec {
        collection: Arc::clone(collection),
        context: Box::default(),
        tags: vec!["tag".into()],
        expires: None,
        created: 1_000,
        idempotency_key: None,
        subject: None,
        bounds: BOUNDS,
    }
}

fn doc(json: &str) -> Vec<u8> {
    json::to_msgpack(json.as_bytes(), WalkLimits::default()).unwrap()
}

/// One walk in steps of so many fields.
fn walk<T: Transform<Error = FieldFailure>>(
    containers: Containers,
    payload: &[u8],
    transform: &mut T,
    step: usize,
) -> Result<Vec<u8>, FieldFailure> {
    let mut walk = Walk::new(
        Arc::new(Selection::everything()),
        containers,
        WalkLimits::default(),
    );
    let mut out = Vec::new();
    loop {
        match walk.advance(payload, &mut out, transform, Budget::fields(step)) {
            Ok(Progress::More) => (),
            Ok(Progress::Done { .. }) => return Ok(out),
            Err(WalkError::Transform(fault)) => return Err(fault),
            Err(other) => panic!("{other}"),
        }
    }
}

/// One walk over the one element of an array, as a whole.
fn walk_whole(payload: &[u8], fields: &mut TokenizeFields) -> Vec<u8> {
    let select = Arc::new(Selection::parse(["$[0]"]).unwrap());
    let mut walk = Walk::new(select, Containers::Whole, WalkLimits::default());
    let mut out = Vec::new();
    while let Progress::More = walk
        .advance(payload, &mut out, fields, Budget::fields(1))
        .unwrap()
    {}
    out
}

/// Result of a request: the document, the field errors, and the number of walks.
type Ended = Result<(Vec<u8>, Vec<FieldError>, u32), RequestFailure>;

async fn tokenize(
    store: &MemoryStore,
    minting: TokenizeSpec,
    on_error: OnError,
    payload: &[u8],
) -> Ended {
    let field_errors = || FieldErrors::new(on_error, 10, 100);
    let mut fields = TokenizeFields::new(minting, Arc::default(), field_errors());
    for walks in 1.. {
        let out = walk(Containers::Whole, payload, &mut fields, walks as usize)?;
        if !fields.needs_store() {
            return Ok((out, fields.field_errors.listed, walks));
        }
        let written = store
            .write(1_000, vec![fields.group()])
            .await
            .pop()
            .unwrap()
            .unwrap();
        if !fields.apply_written(written)? {
            return Ok((out, fields.field_errors.listed, walks));
        }
        fields.restart(field_errors());
    }
    unreachable!("it ends")
}

async fn detokenize(
    store: &MemoryStore,
    looking: DetokenizeSpec,
    on_error: OnError,
    payload: &[u8],
) -> Ended {
    let field_errors = || FieldErrors::new(on_error, 10, 100);
    let mut fields = DetokenizeFields::new(looking, Arc::default(), field_errors());
    let out = walk(Containers::Descend, payload, &mut fields, 1)?;
    assert_eq!(out, payload, "nothing is known yet");
    if !fields.needs_store() {
        return Ok((out, fields.field_errors.listed, 1));
    }
    loop {
        let keys = fields.next_keys(2);
        if keys.is_empty() {
            break;
        }
        fields.add_rows(store.get(1_000, &keys).await.unwrap());
    }
    fields.restart(field_errors());
    let out = walk(Containers::Descend, payload, &mut fields, 1)?;
    Ok((out, fields.field_errors.listed, 2))
}

fn looking(collection: &Arc<Collection>) -> DetokenizeSpec {
    DetokenizeSpec {
        collection: Arc::clone(collection),
        context: Box::default(),
        bounds: BOUNDS,
        disclosure: Disclosure::clear(),
    }
}

fn strings(document: &[u8]) -> Vec<String> {
    let mut reader = TokenReader::new(document);
    (0..reader.array_len().unwrap())
        .map(|_| match reader.token().unwrap() {
            Token::Str(text) => String::from_utf8(text.to_vec()).unwrap(),
            other => panic!("{other:?} is no token"),
        })
        .collect()
}

async fn rows(store: &MemoryStore) -> Vec<Row> {
    store
        .scan(None, 1_000)
        .await
        .unwrap()
        .into_iter()
        .map(|(_, row)| row)
        .collect()
}

#[tokio::test]
async fn value_types_are_restored_exactly_by_reversible_collections() {
    let document = doc(
        r#"["text", "", 7, -7, 1.5, true, false, null, 18446744073709551615, {"a": {"b": ["x", 1e300]}}, "text"]"#,
    );
    let document = [&document[..1], &document[1..]].concat();
    for format in [Format::Opaque, Format::Uuid, Format::Email] {
        for kind in [CollectionKind::Random, CollectionKind::Deterministic] {
            let store = MemoryStore::default();
            let collection = collection(kind, format);
            let made = tokenize(&store, minting(&collection), OnError::Fail, &document)
                .await
                .unwrap();
            assert_ne!(made.0, document);
            let opened = detokenize(&store, looking(&collection), OnError::Fail, &made.0)
                .await
                .unwrap();
            assert_eq!(opened.0, document, "{format:?} {kind:?}");
            // Nil is no field; twelve leaves and one of them twice.
            assert_eq!(
                rows(&store).await.len(),
                if kind == CollectionKind::Random {
                    11
                } else {
                    10
                }
            );
            assert!(
                rows(&store)
                    .await
                    .iter()
                    .all(|row| row.tags == ["tag"] && row.created == 1_000)
            );
        }
    }
}

#[tokio::test]
async fn a_container_that_is_selected_becomes_one_token() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Random, Format::Opaque);
    let payload = doc(r#"{"a": {"b": [1, "x"]}, "c": 1}"#);
    let mut fields = TokenizeFields::new(
        minting(&collection),
        Arc::default(),
        FieldErrors::new(OnError::Fail, 1, 1),
    );
    let selection = Arc::new(Selection::parse(["$.a"]).unwrap());
    let mut walk = Walk::new(selection, Containers::Whole, WalkLimits::default());
    let mut out = Vec::new();
    walk.advance(&payload, &mut out, &mut fields, Budget::UNLIMITED)
        .unwrap();
    assert_eq!(walk.fields(), 1);
    assert_eq!(
        store
            .write(1_000, vec![fields.group()])
            .await
            .pop()
            .unwrap()
            .unwrap(),
        Written::Done(vec![None])
    );
    assert_eq!(
        detokenize(&store, looking(&collection), OnError::Fail, &out)
            .await
            .unwrap()
            .0,
        payload
    );
}

#[tokio::test]
async fn equal_values_of_a_deterministic_call_are_one_row() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Deterministic, Format::Opaque);
    let payload = doc(r#"["a", "b", "a", "a", "b"]"#);
    let (first, _, walks) = tokenize(&store, minting(&collection), OnError::Fail, &payload)
        .await
        .unwrap();
    let tokens = strings(&first);
    assert_eq!((rows(&store).await.len(), walks), (2, 1));
    assert!(
        tokens[0] == tokens[2]
            && tokens[2] == tokens[3]
            && tokens[1] == tokens[4]
            && tokens[0] != tokens[1]
    );
    let (again, _, walks) = tokenize(&store, minting(&collection), OnError::Fail, &payload)
        .await
        .unwrap();
    assert_eq!((again, walks, rows(&store).await.len()), (first, 2, 2));
    // Of another type it is another value.
    let (other, ..) = tokenize(
        &store,
        minting(&collection),
        OnError::Fail,
        &doc(r#"[1, "1"]"#),
    )
    .await
    .unwrap();
    assert_ne!(strings(&other)[0], strings(&other)[1]);
}

#[tokio::test]
async fn scope_says_whether_contexts_share_tokens_and_a_value_opens_under_its_own() {
    for per_context in [false, true] {
        let store = MemoryStore::default();
        let shared = collection(CollectionKind::Deterministic, Format::Opaque);
        let collection = Arc::new(Collection {
            per_context,
            ..Collection::clone(&shared)
        });
        let payload = doc(r#"["a"]"#);
        let under = |context: &[u8]| TokenizeSpec {
            context: context.into(),
            ..minting(&collection)
        };
        let (one, ..) = tokenize(&store, under(b"one"), OnError::Fail, &payload)
            .await
            .unwrap();
        let (two, ..) = tokenize(&store, under(b"two"), OnError::Fail, &payload)
            .await
            .unwrap();
        assert_eq!(one == two, !per_context);
        if !per_context {
            continue;
        }
        let look = |context: &[u8]| DetokenizeSpec {
            context: context.into(),
            ..looking(&collection)
        };
        assert_eq!(
            detokenize(&store, look(b"one"), OnError::Fail, &one)
                .await
                .unwrap()
                .0,
            payload
        );
        for wrong in [&b""[..], b"on", b"two"] {
            let refused = detokenize(&store, look(wrong), OnError::Fail, &one)
                .await
                .unwrap_err();
            assert!(
                matches!(refused, RequestFailure::Field { problem: FieldProblem::NoToken, ref path } if path == "$[0]")
            );
        }
    }
}

#[tokio::test]
async fn a_repeated_call_gets_its_tokens_again_and_a_changed_one_others() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Random, Format::Opaque);
    let of = |principal: &str, key: &[u8]| {
        let key = IdempotencyKey::new(&Principal::from_text(principal).unwrap(), key);
        TokenizeSpec {
            idempotency_key: Some(key),
            ..minting(&collection)
        }
    };
    let keyed = |key: &[u8]| of("relay", key);
    let payload = doc(r#"["a", "a", "b"]"#);
    let (first, ..) = tokenize(&store, keyed(b"k"), OnError::Fail, &payload)
        .await
        .unwrap();
    assert_eq!(
        strings(&first).iter().collect::<HashSet<_>>().len(),
        3,
        "each field has its own"
    );
    assert_eq!(
        tokenize(&store, keyed(b"k"), OnError::Fail, &payload)
            .await
            .unwrap()
            .0,
        first
    );
    let (changed, ..) = tokenize(
        &store,
        keyed(b"k"),
        OnError::Fail,
        &doc(r#"["a", "c", "b"]"#),
    )
    .await
    .unwrap();
    let same: Vec<_> = strings(&first)
        .iter()
        .zip(strings(&changed))
        .map(|(a, b)| *a == b)
        .collect();
    assert_eq!(same, [true, false, true]);
    assert_ne!(
        tokenize(&store, keyed(b"l"), OnError::Fail, &payload)
            .await
            .unwrap()
            .0,
        first
    );
    assert_ne!(
        tokenize(&store, minting(&collection), OnError::Fail, &payload)
            .await
            .unwrap()
            .0,
        first
    );
    // Another client that knows the key gets tokens of its own, so it can neither test guesses nor
    // take the key.
    for other in ["other", "cn:relay", "spiffe://org/relay"] {
        let (own, ..) = tokenize(&store, of(other, b"k"), OnError::Fail, &payload)
            .await
            .unwrap();
        let tokens = strings(&own);
        assert!(
            strings(&first).iter().all(|token| !tokens.contains(token)),
            "{other}"
        );
        assert_eq!(
            tokenize(&store, of(other, b"k"), OnError::Fail, &payload)
                .await
                .unwrap()
                .0,
            own,
            "{other}"
        );
    }
    assert_eq!(
        tokenize(&store, keyed(b"k"), OnError::Fail, &payload)
            .await
            .unwrap()
            .0,
        first
    );
}

#[tokio::test]
async fn tokens_of_one_way_collections_are_reused_and_have_no_value() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::OneWay, Format::Uuid);
    let payload = doc(r#"["a secret that is long enough to be seen"]"#);
    let (tokens, ..) = tokenize(&store, minting(&collection), OnError::Fail, &payload)
        .await
        .unwrap();
    assert_eq!(
        tokenize(&store, minting(&collection), OnError::Fail, &payload)
            .await
            .unwrap()
            .0,
        tokens
    );
    let new = NewToken {
        collection: 1,
        id: &[0; 16],
        context: &collection.keys.context(b""),
        fingerprint: Some(&[0; 16]),
        subject: None,
        token: &strings(&tokens)[0],
        value: None,
    };
    let short = collection.keys.seal(&new).unwrap();
    assert_eq!(
        rows(&store).await[0].sealed.len(),
        short.len(),
        "nothing of the value is kept"
    );
    let (same, errors, _) = detokenize(&store, looking(&collection), OnError::Report, &tokens)
        .await
        .unwrap();
    assert_eq!(
        (same, errors[0].code),
        (tokens, sealwire_wire::ErrorCode::Forbidden)
    );
}

#[tokio::test]
async fn values_that_a_format_cannot_hold_are_rejected_with_their_path() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Random, Format::Digits);
    let payload = doc(r#"["12345678", "x", 7, ["87654321", ""], true]"#);
    let failed = tokenize(&store, minting(&collection), OnError::Fail, &payload)
        .await
        .unwrap_err();
    assert!(
        matches!(failed, RequestFailure::Field { problem: FieldProblem::NotDigits, ref path } if path == "$[1]")
    );
    assert_eq!(
        rows(&store).await,
        [],
        "nothing is written for a call that fails"
    );
    let (out, errors, _) = tokenize(&store, minting(&collection), OnError::Report, &payload)
        .await
        .unwrap();
    let paths: Vec<_> = errors.iter().map(|error| &*error.path).collect();
    assert_eq!(paths, ["$[1]", "$[2]", "$[3][1]", "$[4]"]);
    assert_eq!(rows(&store).await.len(), 2);
    let opened = detokenize(&store, looking(&collection), OnError::Report, &out)
        .await
        .unwrap();
    assert_eq!(
        (opened.0, opened.1.len()),
        (payload, 0),
        "what is no digits is kept, and no token is missing"
    );
    let long = doc(&format!(r#"["{}"]"#, "1".repeat(1_001)));
    let failed = tokenize(&store, minting(&collection), OnError::Fail, &long)
        .await
        .unwrap_err();
    assert!(matches!(
        failed,
        RequestFailure::Field {
            problem: FieldProblem::ValueTooLong,
            ..
        }
    ));
}

#[tokio::test]
async fn field_errors_are_listed_in_document_order_regardless_of_the_number_of_walks() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Deterministic, Format::Digits);
    tokenize(
        &store,
        minting(&collection),
        OnError::Fail,
        &doc(r#"["123456"]"#),
    )
    .await
    .unwrap();
    let payload = doc(r#"["x", "123456", "y", "123456", "z"]"#);
    let (_, errors, walks) = tokenize(&store, minting(&collection), OnError::Report, &payload)
        .await
        .unwrap();
    let paths: Vec<_> = errors.iter().map(|error| &*error.path).collect();
    assert_eq!((paths, walks), (vec!["$[0]", "$[2]", "$[4]"], 2));
}

#[tokio::test]
async fn a_small_format_is_used_up_before_it_is_exhausted() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Deterministic, Format::Digits);
    // Ten tokens of one digit, none of which may be its own value.
    let values: Vec<_> = (0..10).map(|value| value.to_string()).collect();
    let mut given = HashSet::new();
    let mut exhausted = 0;
    for value in &values {
        match tokenize(
            &store,
            minting(&collection),
            OnError::Report,
            &doc(&format!(r#"["{value}"]"#)),
        )
        .await
        {
            Ok((out, ..)) => assert!(given.insert(strings(&out).remove(0)), "given twice"),
            Err(RequestFailure::Exhausted) => exhausted += 1,
            Err(other) => panic!("{other}"),
        }
    }
    // The last value may find only itself left.
    assert!(exhausted <= 1 && given.len() >= 9, "{given:?}");
    let failed = tokenize(
        &store,
        minting(&collection),
        OnError::Report,
        &doc(r#"["0", "1", "00"]"#),
    )
    .await;
    assert!(
        exhausted > 0 || failed.is_ok(),
        "those that are there are found"
    );
    let same_call = collection_of_its_own(&collection);
    let (all, ..) = tokenize(
        &store,
        minting(&same_call),
        OnError::Fail,
        &doc(r#"["0", "1", "2", "3", "4"]"#),
    )
    .await
    .unwrap();
    assert_eq!(
        strings(&all).iter().collect::<HashSet<_>>().len(),
        5,
        "no token twice in a call"
    );
}

fn collection_of_its_own(collection: &Arc<Collection>) -> Arc<Collection> {
    Arc::new(Collection {
        map: MapId {
            app: 7,
            collection: 2,
        },
        ..Collection::clone(collection)
    })
}

#[tokio::test]
async fn only_the_tokens_that_are_taken_are_made_again() {
    let collection = collection(CollectionKind::Random, Format::Opaque);
    let payload = doc(r#"["a", "b", "c"]"#);
    let mut fields = TokenizeFields::new(
        minting(&collection),
        Arc::default(),
        FieldErrors::new(OnError::Fail, 1, 3),
    );
    let mut last = strings(&walk(Containers::Whole, &payload, &mut fields, 1).unwrap());
    let ids = |fields: &TokenizeFields| {
        fields
            .group()
            .rows
            .iter()
            .map(|row| row.id)
            .collect::<Vec<_>>()
    };
    for _ in 1..16 {
        let before = ids(&fields);
        assert!(fields.apply_written(Written::Taken(vec![1])).unwrap());
        fields.restart(FieldErrors::new(OnError::Fail, 1, 3));
        let tokens = strings(&walk(Containers::Whole, &payload, &mut fields, 1).unwrap());
        let after = ids(&fields);
        let changed = |at: usize| (before[at] != after[at], last[at] != tokens[at]);
        assert_eq!(
            [changed(0), changed(1), changed(2)],
            [(false, false), (true, true), (false, false)]
        );
        last = tokens;
    }
    assert!(matches!(
        fields.apply_written(Written::Taken(vec![1])),
        Err(RequestFailure::Exhausted)
    ));
}

#[tokio::test]
async fn tokens_that_are_not_there_are_refused_and_other_strings_kept() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Random, Format::Opaque);
    let (made, ..) = tokenize(
        &store,
        minting(&collection),
        OnError::Fail,
        &doc(r#"["a", "b"]"#),
    )
    .await
    .unwrap();
    let tokens = strings(&made);
    let other = format!("tok_{}", "x".repeat(22));
    let payload = doc(&format!(
        r#"["{}", "{other}", "tok_short", 5, "{}", "{}"]"#,
        tokens[0], tokens[1], tokens[0]
    ));
    let failed = detokenize(&store, looking(&collection), OnError::Fail, &payload)
        .await
        .unwrap_err();
    assert!(
        matches!(failed, RequestFailure::Field { problem: FieldProblem::NoToken, ref path } if path == "$[1]")
    );
    let (out, errors, _) = detokenize(&store, looking(&collection), OnError::Report, &payload)
        .await
        .unwrap();
    assert_eq!(
        out,
        doc(&format!(r#"["a", "{other}", "tok_short", 5, "b", "a"]"#))
    );
    assert_eq!(errors.len(), 1);
    // In another collection none of them is a token.
    let elsewhere = collection_of_its_own(&collection);
    let (_, errors, _) = detokenize(&store, looking(&elsewhere), OnError::Report, &payload)
        .await
        .unwrap();
    assert_eq!(errors.len(), 4);
    // A row that was changed in the store does not open.
    let mut row = rows(&store).await.remove(0);
    let mut sealed = row.sealed.to_vec();
    *sealed.last_mut().unwrap() ^= 1;
    row.sealed = sealed.into();
    store.put(&[(collection.map, row)]).await.unwrap();
    let (_, errors, _) = detokenize(&store, looking(&collection), OnError::Report, &payload)
        .await
        .unwrap();
    assert!(
        errors
            .iter()
            .any(|error| error.code == sealwire_wire::ErrorCode::CannotOpen)
    );
}

/// Exchanges what two rows are found by, as who writes the database can.
async fn exchange(store: &MemoryStore, collection: &Collection) {
    let mut all = rows(store).await;
    let [one, other] = &mut all[..] else {
        panic!("two rows")
    };
    std::mem::swap(&mut one.fingerprint, &mut other.fingerprint);
    let ids: Vec<_> = all.iter().map(|row| row.id).collect();
    store.delete(collection.map, &ids).await.unwrap();
    for row in all {
        store.put(&[(collection.map, row)]).await.unwrap();
    }
}

#[tokio::test]
async fn a_row_that_is_of_another_value_is_never_given() {
    let payload = doc(r#"["a", "b"]"#);
    for (kind, idempotency_key) in [
        (CollectionKind::Deterministic, None),
        (CollectionKind::OneWay, None),
        (CollectionKind::Random, Some(b"key")),
    ] {
        let store = MemoryStore::default();
        let collection = collection(kind, Format::Opaque);
        let again = || TokenizeSpec {
            idempotency_key: idempotency_key.map(|key: &[u8; 3]| {
                IdempotencyKey::new(&Principal::from_text("relay").unwrap(), key)
            }),
            ..minting(&collection)
        };
        let (tokens, ..) = tokenize(&store, again(), OnError::Fail, &payload)
            .await
            .unwrap();
        assert_eq!(
            tokenize(&store, again(), OnError::Fail, &payload)
                .await
                .unwrap()
                .0,
            tokens
        );
        exchange(&store, &collection).await;
        let failed = tokenize(&store, again(), OnError::Fail, &payload)
            .await
            .unwrap_err();
        assert!(
            matches!(
                failed,
                RequestFailure::Field {
                    problem: FieldProblem::CannotOpen,
                    ..
                }
            ),
            "{kind:?}: {failed}"
        );
        let (out, errors, _) = tokenize(&store, again(), OnError::Report, &payload)
            .await
            .unwrap();
        let codes: Vec<_> = errors
            .iter()
            .map(|error| (&*error.path, error.code))
            .collect();
        let cannot_open = sealwire_wire::ErrorCode::CannotOpen;
        assert_eq!(
            (out, codes),
            (
                payload.clone(),
                vec![("$[0]", cannot_open), ("$[1]", cannot_open)]
            ),
            "{kind:?}"
        );
    }
}

#[tokio::test]
async fn a_row_under_another_context_is_never_given() {
    let store = MemoryStore::default();
    let shared = collection(CollectionKind::Deterministic, Format::Opaque);
    let collection = Arc::new(Collection {
        per_context: true,
        ..Collection::clone(&shared)
    });
    let payload = doc(r#"["a"]"#);
    let under = |context: &[u8]| TokenizeSpec {
        context: context.into(),
        ..minting(&collection)
    };
    for context in [b"one", b"two"] {
        tokenize(&store, under(context), OnError::Fail, &payload)
            .await
            .unwrap();
    }
    exchange(&store, &collection).await;
    for context in [b"one", b"two"] {
        let failed = tokenize(&store, under(context), OnError::Fail, &payload)
            .await
            .unwrap_err();
        assert!(
            matches!(
                failed,
                RequestFailure::Field {
                    problem: FieldProblem::CannotOpen,
                    ..
                }
            ),
            "{failed}"
        );
    }
}

#[tokio::test]
async fn equal_values_have_one_token_however_they_are_encoded() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Deterministic, Format::Opaque);
    let fives = [
        &[5][..],
        &[0xcc, 5],
        &[0xcd, 0, 5],
        &[0xd0, 5],
        &[0xd1, 0, 5],
        &[0xd3, 0, 0, 0, 0, 0, 0, 0, 5],
    ];
    let payload = [&[0x90 | fives.len() as u8][..], &fives.concat()].concat();
    let (tokens, ..) = tokenize(&store, minting(&collection), OnError::Fail, &payload)
        .await
        .unwrap();
    assert_eq!(strings(&tokens).iter().collect::<HashSet<_>>().len(), 1);
    // Each alone, too, finds what another left, and comes back as the first was written.
    for five in fives {
        let payload = [&[0x91][..], five].concat();
        let (token, ..) = tokenize(&store, minting(&collection), OnError::Fail, &payload)
            .await
            .unwrap();
        assert_eq!(strings(&token)[0], strings(&tokens)[0], "{five:x?}");
        assert_eq!(
            detokenize(&store, looking(&collection), OnError::Fail, &token)
                .await
                .unwrap()
                .0,
            [0x91, 5]
        );
    }
    let whole = [
        &[0x91, 0x81, 0xd9, 1, b'a', 0xcd, 0, 5][..],
        &[0x91, 0x81, 0xa1, b'a', 5],
    ];
    let mut given = HashSet::new();
    for payload in whole {
        let mut fields = TokenizeFields::new(
            minting(&collection),
            Arc::default(),
            FieldErrors::new(OnError::Fail, 10, 100),
        );
        let walked = walk_whole(payload, &mut fields);
        let written = store
            .write(1_000, vec![fields.group()])
            .await
            .pop()
            .unwrap()
            .unwrap();
        let again = fields.apply_written(written).unwrap();
        fields.restart(FieldErrors::new(OnError::Fail, 10, 100));
        given.insert(if again {
            walk_whole(payload, &mut fields)
        } else {
            walked
        });
    }
    assert_eq!(given.len(), 1);
}

#[tokio::test]
async fn where_all_contexts_share_tokens_nobody_makes_a_value_unreadable() {
    for kind in [CollectionKind::Deterministic, CollectionKind::Random] {
        let store = MemoryStore::default();
        let collection = collection(kind, Format::Opaque);
        let payload = doc(r#"["a"]"#);
        let first = TokenizeSpec {
            context: (*b"mine").into(),
            ..minting(&collection)
        };
        let (token, ..) = tokenize(&store, first, OnError::Fail, &payload)
            .await
            .unwrap();
        let opened = detokenize(&store, looking(&collection), OnError::Fail, &token).await;
        let mine = DetokenizeSpec {
            context: (*b"mine").into(),
            ..looking(&collection)
        };
        assert_eq!(
            detokenize(&store, mine, OnError::Fail, &token)
                .await
                .unwrap()
                .0,
            payload
        );
        match kind {
            // It is under the empty context, whatever its first caller said.
            CollectionKind::Deterministic => assert_eq!(opened.unwrap().0, payload),
            _ => assert!(matches!(
                opened,
                Err(RequestFailure::Field {
                    problem: FieldProblem::NoToken,
                    ..
                })
            )),
        }
    }
}

#[tokio::test]
async fn tokens_of_a_request_are_bounded() {
    let store = MemoryStore::default();
    let collection = collection(CollectionKind::Random, Format::Opaque);
    let of = |fields: usize| doc(&format!("[{}]", vec!["1"; fields].join(",")));
    let (most, ..) = tokenize(&store, minting(&collection), OnError::Fail, &of(100))
        .await
        .unwrap();
    let many = tokenize(&store, minting(&collection), OnError::Report, &of(101))
        .await
        .unwrap_err();
    assert!(matches!(many, RequestFailure::TooManyTokens { max: 100 }));
    detokenize(&store, looking(&collection), OnError::Fail, &most)
        .await
        .unwrap();
    let mut more = vec![0xdc, 0, 101];
    (0..101).for_each(|_| write::str(&mut more, &strings(&most)[0]));
    let many = detokenize(&store, looking(&collection), OnError::Report, &more)
        .await
        .unwrap_err();
    assert!(matches!(many, RequestFailure::TooManyTokens { max: 100 }));
}

#[test]
fn tokens_fit_their_reserved_bytes() {
    let card = "4111111111111111";
    let digits = "1".repeat(64);
    for (format, value) in [
        (Format::Opaque, ""),
        (Format::Uuid, ""),
        (Format::Email, ""),
        (Format::Card(CardEnds::default()), card),
        (Format::Digits, &*digits),
    ] {
        let mut token = String::new();
        let mut out = Vec::new();
        format
            .generate(Datatype::String, value.as_bytes(), &mut token)
            .unwrap();
        write::str(&mut out, &token);
        assert!(out.len() <= TOKEN_BYTES + value.len(), "{format:?}");
    }
}
