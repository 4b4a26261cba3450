//! Rows of tokens: the row format of the embedded store, and the sealed part.

use std::sync::LazyLock;

use sealwire_crypto::{Datatype, KeyState};
use sealwire_records::token::{
    NewToken, RowBuffer, SubjectKey, TokenContext, TokenKeyVersion, TokenKeys, TokenSecret,
};
use sealwire_store::TokenId;
use sealwire_store_embedded::embedded::row::{decode, encode};
use zeroize::Zeroizing;

use crate::input::edited;
use crate::seed::{key, text, unhex, vectors, words as list};
use crate::{Input, Seed};

const COLLECTION: u32 = 3;
const TOKEN: &str = "tok_0123456789abcdefghijkl";
const VALUE: &[u8] = b"4242424242424242";
const VECTORS: &str = include_str!("../../../proto/vectors/token.jsonl");

/// Keys of the vectors, and a valid row of each layout and kind. The rows of the second half name a
/// subject.
struct RowKeys {
    keys: TokenKeys,
    id: [u8; 16],
    context: TokenContext,
    subject: SubjectKey,
    honest: Vec<Vec<u8>>,
}

static WORLD: LazyLock<RowKeys> = LazyLock::new(|| {
    let secret = "f51e3dbf381c33a6ac247cee3e4dfeec96c5760374f24461c10def96b31f5fcb";
    let version = |number, state| {
        let secret = TokenSecret::new(Zeroizing::new(
            key(secret).map(|byte| byte ^ (number as u8 - 1)),
        ));
        TokenKeyVersion {
            number,
            state,
            secret,
        }
    };
    let versions = vec![version(1, KeyState::Active), version(2, KeyState::Disabled)];
    let keys = TokenKeys::new(7, versions).expect("keys");
    let id = keys.id(COLLECTION, TOKEN);
    let context = keys.context(b"row 7");
    let (subject, _) = SubjectKey::generate(&keys, COLLECTION + 1, [5; 16], 1).expect("a key");
    let row = |subject, fingerprint, value| {
        let new = NewToken {
            collection: COLLECTION,
            id: &id,
            context: &context,
            fingerprint,
            subject,
            token: TOKEN,
            value,
        };
        keys.seal(&new).expect("a row")
    };
    let value = Some((Datatype::String, VALUE));
    let kinds = [
        (None, value),
        (None, None),
        (Some(&[9; 16]), value),
        (Some(&[9; 16]), None),
    ];
    let honest = [None, Some(&subject)].into_iter();
    let honest = honest
        .flat_map(|subject| kinds.map(|(fingerprint, value)| row(subject, fingerprint, value)))
        .collect();
    RowKeys {
        keys,
        id,
        context,
        subject,
        honest,
    }
});

/// Opens a valid row with changes, and foreign bytes. Settings: row, changes.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let RowKeys {
        keys,
        id,
        context,
        subject,
        honest,
    } = &*WORLD;
    let mut buffer = RowBuffer::default();
    let which = usize::from(input.byte()) % honest.len();
    let row = edited(&honest[which], &input.edits());
    let subject = (which >= honest.len() / 2).then_some(subject);
    match keys.open(COLLECTION, id, subject, &row, &mut buffer) {
        Ok(opened) => {
            assert_eq!(row, honest[which], "a changed row opens");
            assert_eq!(opened.token(), TOKEN);
            assert!(
                opened
                    .value(context)
                    .is_ok_and(|value| value.is_none() || value == Some((Datatype::String, VALUE)))
            );
            assert!(opened.value(&keys.context(b"row 8")).is_err());
        }
        Err(_) => assert_ne!(row, honest[which]),
    }
    assert!(
        keys.open(COLLECTION + 1, id, subject, &row, &mut buffer)
            .is_err()
    );
    let other = if subject.is_some() {
        None
    } else {
        Some(&WORLD.subject)
    };
    assert!(keys.open(COLLECTION, id, other, &row, &mut buffer).is_err());
    // A resealed row differs but has the same content.
    let resealed = keys
        .reseal(
            COLLECTION,
            id,
            subject.map(SubjectKey::id),
            &row,
            &mut buffer,
        )
        .expect("seals");
    assert_eq!(resealed.is_some(), row == honest[which]);
    if let Some(resealed) = resealed {
        assert_eq!(
            keys.open(COLLECTION, id, subject, &resealed, &mut buffer)
                .expect("opens")
                .token(),
            TOKEN
        );
    }

    let bytes = input.0;
    if let Ok(row) = decode(TokenId(*id), bytes) {
        assert_eq!(encode(&row), bytes, "a row has one form");
        check_open(&row.sealed, id);
    }
    check_open(bytes, id);
}

/// Opens bytes that this process did not seal: only rows of the vectors may open.
fn check_open(bytes: &[u8], id: &[u8; 16]) {
    static KNOWN: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| sealed_rows().collect());
    let mut buffer = RowBuffer::default();
    if WORLD
        .keys
        .open(COLLECTION, id, None, bytes, &mut buffer)
        .is_ok()
    {
        assert!(
            KNOWN.iter().any(|known| known == bytes),
            "a row from elsewhere opens"
        );
    }
}

fn sealed_rows() -> impl Iterator<Item = Vec<u8>> {
    vectors(VECTORS)
        .into_iter()
        .filter(|vector| vector["kind"] == "row")
        .map(|vector| unhex(text(&vector, "row")))
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = sealed_rows()
        .zip(1..)
        .map(|(row, at)| Seed::new(format!("vector-{at:02}"), &[0, 0], row))
        .collect();
    let rows = [
        vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 9, 5, 5],
        [
            vec![1, 15],
            vec![0; 8],
            vec![7; 16],
            vec![0; 16],
            vec![0, 0, 0, 2, 0, 0, 0, 1, b'a', 0, 0, 0, 2, 0xc3, 0xa9, 1],
        ]
        .concat(),
        vec![1, 16, 0],
        [vec![1, 16], vec![0; 8], vec![5; 16], vec![3, 0, 0, 0, 1]].concat(),
    ];
    for (at, row) in rows.into_iter().enumerate() {
        seeds.push(Seed::new(format!("embedded-{at}"), &[at as u8, 0], row));
    }
    for at in 0..8 {
        seeds.push(Seed::new(
            format!("changed-{at}"),
            &[at, 1, 0, at * 20, 1],
            [],
        ));
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        &[1u8, 0][..],
        &[1, 1],
        &[1, 2],
        &[1, 4],
        &[1, 8],
        &[1, 15],
        &[1, 16],
        &[0, 0, 0, 1],
        &[2, 0, 0, 0, 1],
        &[1, 0, 0, 0, 1],
        &[3, 0, 0, 0, 1],
        &[4, 0, 0, 0, 1],
    ])
}
