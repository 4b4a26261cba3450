//! `proto/vectors/object.jsonl`: the records that every language's implementation reads.
//!
//! `SEALWIRE_BLESS=1 cargo test -p sealwire-records vectors` writes it anew; a format change shows
//! as a diff of that file.

use crate::token::{TokenKeyVersion, TokenSecret};
use sealwire_crypto::KeyState;
use serde::{Deserialize, Serialize};

use super::tests::{bytes, hex, values};
use super::*;

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../proto/vectors/object.jsonl"
);
/// The collection of subject keys.
const SUBJECTS: u32 = 0x7fff_ffff;

/// A line of the file. Byte strings are lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ObjectVector {
    name: String,
    app: u32,
    keys: Vec<VectorKey>,
    collection: u32,
    id: String,
    version: u64,
    created: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<VectorSubject>,
    record: String,
    /// Content of the opened record; absent if the record does not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opens_to: Option<OpensTo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VectorKey {
    number: u32,
    active: bool,
    secret: String,
}

/// A data subject, with its stored key: a row of the token format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VectorSubject {
    id: String,
    version: u64,
    key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OpensTo {
    creation: Option<String>,
    /// Number, value, and true if the value is stored in the clear.
    values: Vec<(u32, String, bool)>,
}

impl ObjectVector {
    fn binding(&self) -> ObjectBinding {
        let id = bytes(&self.id).try_into().unwrap();
        ObjectBinding {
            app: self.app,
            collection: self.collection,
            id,
            version: self.version,
            created: self.created,
        }
    }

    fn token_keys(&self) -> TokenKeys {
        let versions = self.keys.iter().map(VectorKey::to_version).collect();
        TokenKeys::new(self.app, versions).unwrap()
    }

    /// Opens the record.
    fn open_record(&self) -> Option<OpensTo> {
        let keys = self.token_keys();
        let record = bytes(&self.record);
        let subject = self.subject.as_ref().map(|subject| subject.open_key(&keys));
        let opened = open(&self.binding(), &record, subject.as_ref(), &keys).ok()?;
        if subject.is_none() {
            // A record without a subject is sealed again to the same bytes.
            let nonce = record[5..17].try_into().unwrap();
            let again = seal_with(
                nonce,
                &self.binding(),
                &opened.values,
                is_clear,
                opened.creation,
                None,
                &keys,
            );
            assert_eq!(again.unwrap(), record, "{}", self.name);
        }
        Some(OpensTo {
            creation: opened.creation.map(|hash| hex(&hash)),
            values: opened
                .values
                .iter()
                .map(|(number, value)| (number, hex(value), is_clear(number)))
                .collect(),
        })
    }
}

impl VectorKey {
    fn to_version(&self) -> TokenKeyVersion {
        TokenKeyVersion {
            number: self.number,
            state: if self.active {
                KeyState::Active
            } else {
                KeyState::Disabled
            },
            secret: TokenSecret::new(Zeroizing::new(bytes(&self.secret).try_into().unwrap())),
        }
    }
}

impl VectorSubject {
    fn open_key(&self, keys: &TokenKeys) -> SubjectKey {
        let id = bytes(&self.id).try_into().unwrap();
        SubjectKey::open(keys, SUBJECTS, id, self.version, &bytes(&self.key)).unwrap()
    }
}

fn is_clear(number: u32) -> bool {
    number >= 100
}

fn key(number: u32, active: bool) -> VectorKey {
    VectorKey {
        number,
        active,
        secret: hex(&[number as u8; 32]),
    }
}

/// Returns a vector of a record that opens.
fn sealed_record(
    name: &str,
    keys: &[VectorKey],
    all: &[(u32, &str)],
    creation: Option<[u8; 16]>,
    subject: Option<u64>,
) -> ObjectVector {
    let mut vector = ObjectVector {
        name: name.into(),
        app: 7,
        keys: keys.to_vec(),
        collection: 3,
        id: hex(&[9; 16]),
        version: 4,
        created: 1_700_000_000,
        subject: None,
        record: String::new(),
        opens_to: None,
    };
    let token_keys = vector.token_keys();
    let made = subject
        .map(|version| SubjectKey::generate(&token_keys, SUBJECTS, [0xab; 16], version).unwrap());
    let subject = made.as_ref().map(|(subject, _)| subject);
    vector.subject = made.as_ref().map(|(subject, stored)| VectorSubject {
        id: hex(subject.id()),
        version: subject.version(),
        key: hex(stored),
    });
    let nonce = std::array::from_fn(|at| (at + name.len()) as u8);
    let sealed = seal_with(
        nonce,
        &vector.binding(),
        &values(all),
        is_clear,
        creation,
        subject,
        &token_keys,
    );
    vector.record = hex(&sealed.unwrap());
    vector.opens_to = vector.open_record();
    assert!(vector.opens_to.is_some());
    vector
}

/// Returns a vector of a record that does not open any more.
fn altered_vector(
    from: &ObjectVector,
    how: &str,
    change: impl FnOnce(&mut ObjectVector),
) -> ObjectVector {
    let mut vector = ObjectVector {
        name: format!("{}, {how}", from.name),
        opens_to: None,
        ..from.clone()
    };
    change(&mut vector);
    vector
}

fn make_vectors() -> Vec<ObjectVector> {
    let one = [key(1, true)];
    let both = [key(1, true), key(2, true)];
    let jane = [(1, "jane@example.com"), (3, "Jane"), (100, "gold")];
    let good = [
        sealed_record("plain", &one, &jane, None, None),
        sealed_record(
            "created by a request with a key",
            &both,
            &jane,
            Some([8; 16]),
            None,
        ),
        sealed_record("no values", &one, &[], None, None),
        sealed_record(
            "clear values alone",
            &one,
            &[(100, "gold"), (101, "")],
            None,
            None,
        ),
        sealed_record("of a subject", &both, &jane, Some([8; 16]), Some(3)),
        sealed_record("of a subject, no values", &one, &[], None, Some(1)),
    ];
    let mut vectors = Vec::new();
    for from in good {
        let version_of_key = from.keys.len();
        vectors.extend([
            altered_vector(&from, "another app", |of| of.app = 8),
            altered_vector(&from, "another collection", |of| of.collection = 4),
            altered_vector(&from, "another id", |of| of.id = hex(&[10; 16])),
            altered_vector(&from, "another version", |of| of.version = 5),
            altered_vector(&from, "another creation", |of| of.created += 1),
            altered_vector(&from, "a disabled key", |of| {
                of.keys[version_of_key - 1].active = false
            }),
            altered_vector(&from, "another format", |of| {
                of.record.replace_range(..2, "01")
            }),
            altered_vector(&from, "its tag changed", |of| {
                let mut record = bytes(&of.record);
                *record.last_mut().unwrap() ^= 1;
                of.record = hex(&record);
            }),
            altered_vector(&from, "cut", |of| of.record.truncate(of.record.len() - 2)),
        ]);
        if from.subject.is_some() {
            vectors.push(altered_vector(&from, "without its subject", |of| {
                of.subject = None
            }));
            vectors.push(altered_vector(
                &from,
                "as a record without a subject",
                |of| {
                    of.subject = None;
                    of.record = format!("03{}{}", &of.record[2..10], &of.record[26..]);
                },
            ));
        }
        vectors.push(from);
    }
    // The stored key of a subject belongs to its app, so these would fail for another reason.
    vectors.retain(|of| of.subject.is_none() || of.app == 7);
    vectors.retain(|of| of.subject.is_none() || !of.name.ends_with("a disabled key"));
    vectors
}

#[test]
fn vectors_get_their_verdict() {
    if std::env::var_os("SEALWIRE_BLESS").is_some() {
        let lines = make_vectors()
            .iter()
            .map(|of| serde_json::to_string(of).unwrap() + "\n")
            .collect::<String>();
        std::fs::write(FILE, lines).unwrap();
    }
    let text = std::fs::read_to_string(FILE).unwrap();
    let read: Vec<ObjectVector> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for vector in &read {
        assert_eq!(vector.open_record(), vector.opens_to, "{}", vector.name);
    }
    let names: Vec<_> = read.iter().map(|vector| &vector.name).collect();
    let expected = make_vectors();
    let expected: Vec<_> = expected.iter().map(|vector| &vector.name).collect();
    assert_eq!(names, expected);
    assert!(
        read.iter()
            .filter(|vector| vector.opens_to.is_none())
            .count()
            > 40
    );
}
