//! Values, terms and sealed records of objects, and the rows of objects in the embedded store.

use std::sync::{Arc, LazyLock};

use sealwire_crypto::{AppId, AppKeys, KeyMaterial, KeyState, KeyVersion, Suite};
use sealwire_records::objects::{
    Index, ObjectBinding, ObjectKeys, Property, PropertyName, PropertyType, RecordFormat, Values,
    check, check_indexed, key_of, normalize, old, open, read_content, seal, subject_version,
};
use sealwire_records::token::{SubjectKey, TokenKeyVersion, TokenKeys, TokenSecret};
use sealwire_store::ObjectId;
use sealwire_store_embedded::embedded::object_row::{decode, encode};
use zeroize::Zeroizing;

use crate::input::edited;
use crate::seed::{key, packed, packed_words};
use crate::{Input, Seed};

const SECRET: &str = "f51e3dbf381c33a6ac247cee3e4dfeec96c5760374f24461c10def96b31f5fcb";
const COLLECTION: u32 = 3;
const BINDING: ObjectBinding = ObjectBinding {
    app: 7,
    collection: COLLECTION,
    id: [9; 16],
    version: 4,
    created: 17,
};

/// The app's keys, the key of a data subject, and valid records with a clear value. The current and
/// the old format each have a record without a subject and a record with a subject.
struct App {
    terms: ObjectKeys,
    keys: Arc<AppKeys>,
    token_keys: TokenKeys,
    subject: SubjectKey,
    values: Values,
    honest: [Vec<u8>; 2],
    old: [Vec<u8>; 2],
}

impl App {
    /// Opens a record of either format.
    fn opens(&self, record: &[u8], subject: Option<&SubjectKey>) -> Option<Values> {
        let opened = open(&BINDING, record, subject, &self.token_keys);
        let old = old::open(&BINDING, record, subject, Arc::clone(&self.keys));
        assert!(opened.is_err() || old.is_err(), "a record has one format");
        assert!(opened.is_err() || RecordFormat::of(record) == Some(RecordFormat::Authenticated));
        opened.or(old).ok().map(|opened| opened.values)
    }
}

static APP: LazyLock<App> = LazyLock::new(|| {
    let app = AppId::new("fuzz").expect("a name");
    let secret = Zeroizing::new(key(SECRET));
    let material = KeyMaterial::from_secret(&app, Suite::Xaes, secret.clone()).expect("a key");
    let keys = AppKeys::new(
        app.clone(),
        vec![KeyVersion::new(1, KeyState::Active, material)],
    )
    .expect("keys");
    let values: Values = [(1, "\"jane@example.com\""), (4, "\"gold\"")]
        .into_iter()
        .map(|(number, json)| (number, Zeroizing::new(packed(json))))
        .collect();
    let recipient = keys.newest(Suite::Xaes).expect("a version");
    let token_key = TokenKeyVersion {
        number: 1,
        state: KeyState::Active,
        secret: TokenSecret::new(secret.clone()),
    };
    let token_keys = TokenKeys::new(7, vec![token_key]).expect("keys");
    let (subject, _) = SubjectKey::generate(&token_keys, COLLECTION, [5; 16], 1).expect("a key");
    let honest = [None, Some(&subject)].map(|subject| {
        seal(
            &BINDING,
            &values,
            |number| number == 4,
            Some([8; 16]),
            subject,
            &token_keys,
        )
        .expect("a record")
    });
    let old = [None, Some(&subject)].map(|subject| {
        old::seal(
            &BINDING,
            &values,
            |number| number == 4,
            Some([8; 16]),
            subject,
            &app,
            recipient,
        )
        .expect("a record")
    });
    let terms = ObjectKeys::new(7, &secret);
    App {
        terms,
        keys: Arc::new(keys),
        token_keys,
        subject,
        values,
        honest,
        old,
    }
});

/// Checks a value, and opens a valid record with changes, and foreign bytes. Settings: type,
/// changes, and the length of the clear part.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let property_type = PropertyType::ALL[usize::from(input.byte()) % PropertyType::ALL.len()];
    let edits = input.edits();
    let clear = usize::from(input.byte());
    let bytes = input.0;

    check_value(property_type, bytes);
    let App {
        subject,
        values,
        honest,
        old,
        ..
    } = &*APP;
    for (honest, subject) in
        honest
            .iter()
            .chain(old)
            .zip([None, Some(subject), None, Some(subject)])
    {
        let record = edited(honest, &edits);
        let opened = APP.opens(&record, subject);
        assert_eq!(
            opened.is_some(),
            record == *honest,
            "only the honest record opens"
        );
        assert!(opened.is_some_and(|opened| opened == *values) || record != *honest);
        if bytes != honest {
            assert!(
                APP.opens(bytes, subject).is_none(),
                "a record from elsewhere opens"
            );
        }
    }
    let _ = (key_of(bytes), subject_version(bytes));
    if let Ok(row) = decode(ObjectId(BINDING.id), bytes) {
        assert_eq!(encode(&row), bytes, "a row has one form");
    }
    let (clear, plaintext) = bytes.split_at(clear.min(bytes.len()));
    if let Some(content) = read_content(clear, plaintext) {
        let flag = if content.creation.is_some() { 17 } else { 1 };
        assert_eq!(
            flag + content.values.encoded_bytes(),
            bytes.len(),
            "each byte belongs to a value"
        );
    }
}

/// Checks a value of a type, and computes its terms.
fn check_value(property_type: PropertyType, raw: &[u8]) {
    let _ = normalize(property_type, raw);
    let Ok(stored) = check(property_type, raw) else {
        return;
    };
    assert_eq!(
        check(property_type, &stored).as_ref(),
        Ok(&stored),
        "a stored value is stored again"
    );
    if !property_type.can_index() || check_indexed(property_type, &stored).is_err() {
        return;
    }
    let index = Index {
        number: 2,
        bits: None,
        prefixes: vec![1, 3],
        was_unique: false,
    };
    let exact = APP
        .terms
        .exact(COLLECTION, &index, &normalize(property_type, &stored));
    let property = Property {
        number: 1,
        name: PropertyName::new("value").expect("a name"),
        property_type,
        nullable: true,
        unique: false,
        index: Some(index),
        encrypted: true,
        description: String::new(),
    };
    let terms = APP.terms.terms_of(COLLECTION, &property, &stored);
    assert!(terms.first() == Some(&exact) && terms.len() <= 3);
}

/// Valid values by type, in the order of [`PropertyType::ALL`], as JSON.
const VALUES: [&str; 16] = [
    "\"text\"",
    "-17",
    "\"-012.50\"",
    "true",
    "\"2024-02-29\"",
    "\"2026-01-31T12:00:00.500+01:00\"",
    "{\"a\": [1, 2.5, null, {\"b\": \"c\"}]}",
    "\"AQI=\"",
    "\"Jörg.Doe+tag@MÜNCHEN.example\"",
    "\"+49 (151) 234/56.78\"",
    "\"4242 4242 4242 4242\"",
    "\"de89 3704 0044 0532 0130 00\"",
    "\"ab 12-34.56/c\"",
    "\" Straße \u{200b}ﬁ Ⅷ \"",
    "\"1 Main Street\\nSpringfield\"",
    "\"::ffff:192.0.2.1\"",
];

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = PropertyType::ALL
        .into_iter()
        .zip(VALUES)
        .enumerate()
        .map(|(at, (of, value))| Seed::new(format!("value-{of}"), &[at as u8, 0, 0], packed(value)))
        .collect();
    seeds.push(Seed::new(
        "timestamp-extension",
        &[5, 0, 0],
        [0xd7, 0xff, 0, 0, 0, 4, 0, 0, 0, 1],
    ));
    let one = [0, 0, 0, 1, 0, 0, 0, 1, 5];
    let two = [0, 0, 0, 2, 0, 0, 0, 1, 6];
    seeds.push(Seed::new(
        "content",
        &[0, 0, 9],
        [&one[..], &[0], &two].concat(),
    ));
    seeds.push(Seed::new(
        "content-created",
        &[0, 0, 0],
        [&[1], &[7; 16][..], &one, &two].concat(),
    ));
    let fixed = [&[0; 24][..], b"keyid"].concat();
    let term = [&[0, 0, 0, 1, 0, 0, 0, 2][..], &[8; 16]].concat();
    let all = [
        &[1, 63],
        &*fixed,
        &[0; 16],
        &[5; 16],
        &[0, 0, 0, 1, 0, 0, 0, 1, b'a'],
        &term,
        &term,
        &[1],
    ]
    .concat();
    seeds.push(Seed::new(
        "row",
        &[0, 0, 0],
        [&[1, 0], &*fixed, &[1]].concat(),
    ));
    seeds.push(Seed::new("row-of-all-parts", &[0, 0, 0], all));
    for at in 0..4 {
        seeds.push(Seed::new(
            format!("changed-{at}"),
            &[0, 1, 0, at * 20, 1, 0],
            [],
        ));
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    packed_words([
        "@example.com",
        "+49",
        "xn--",
        "T00:00:00Z",
        "2000-02-29",
        "0.00",
        "::ffff:",
        "\u{200b}",
        "ﬁ",
        "ß",
    ])
}
