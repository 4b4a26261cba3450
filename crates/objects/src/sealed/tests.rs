//! Every changed bit and every other binding fails, and malformed content is no panic.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use sealwire_crypto::{KeyMaterial, KeyState};
use sealwire_token::{NewToken, TokenKeyVersion, TokenKeys, TokenSecret};

use super::*;
use crate::value::tests::packed;

struct App {
    id: AppId,
    keys: Arc<AppKeys>,
}

impl App {
    fn new(suites: &[Suite]) -> Self {
        let id = AppId::new("shop").unwrap();
        let version = |suite: &Suite| {
            let key = KeyMaterial::from_secret(&id, *suite, Zeroizing::new([suite.byte(); 32])).unwrap();
            KeyVersion::new(1, KeyState::Active, key)
        };
        let keys = AppKeys::new(id.clone(), suites.iter().map(version).collect()).unwrap();
        Self { id, keys: Arc::new(keys) }
    }

    fn seal(&self, suite: Suite, binding: &ObjectBinding, values: &Values, creation: Option<[u8; 16]>) -> Vec<u8> {
        let recipient = self.keys.newest(suite).unwrap();
        seal(binding, values, |number| number >= 100, creation, None, &self.id, recipient).unwrap()
    }

    fn seal_for(&self, subject: &SubjectKey) -> Vec<u8> {
        let recipient = self.keys.newest(Suite::Xaes).unwrap();
        seal(&BINDING, &jane(), |number| number >= 100, Some([8; 16]), Some(subject), &self.id, recipient).unwrap()
    }

    fn open(&self, binding: &ObjectBinding, sealed: &[u8]) -> Result<OpenedObject, CannotOpen> {
        open(binding, sealed, None, Arc::clone(&self.keys), None)
    }

    fn open_for(&self, subject: &SubjectKey, sealed: &[u8]) -> Result<OpenedObject, CannotOpen> {
        open(&BINDING, sealed, Some(subject), Arc::clone(&self.keys), None)
    }
}

const BINDING: ObjectBinding = ObjectBinding { app: 7, collection: 3, id: [9; 16], version: 4, created: 1_700_000_000 };

fn values(all: &[(u32, &str)]) -> Values {
    all.iter().map(|(number, text)| (*number, Zeroizing::new(packed(text)))).collect()
}

fn jane() -> Values {
    values(&[(1, "jane@example.com"), (3, "Jane"), (100, "gold")])
}

/// A record that this code sealed once. A round trip alone would miss a changed format.
const SEALED: &str = "\
     010000000d0000006400000005a4676f6c64535701038a96ffae0208ae164b3c86c83376e81212aca0c6822177450a000100000000093bc4\
     c7d56bda86e7b98800588173eac137ab32ef031fe588b0a437d52fe35b8304147f87f95870373f18f27052578c36fbc6bf947014a6dfd2dd\
     0316f41ca79730dfe58b2e3a";

/// A stored key of the subject of [`CONTEXT`], of version 3, and a record of this subject.
const STORED_SUBJECT_KEY: &str = "\
     010000000206294a6edd9a9f1eebacac11a0ebcd51468ff3955ddb184e157daa3d8006255c0bfa3dc952adbb27078ad2220886c200b1f91b\
     ebf90657a865855e3b04a2777d9bcc5400f7add07737e83a3ecba45eac";
const SEALED_FOR_SUBJECT: &str = "\
     0200000000000000030000000d0000006400000005a4676f6c64535701038a96ffae0245051701e9afb929ddd090b18917321f1cbeb64700\
     0100000000c1a6d594f396f5ecb308678b6789db45d01abfa64c7dd2fb82d0d1363d0d855786ca015108bf5f3fad864e753d3abf2caf7757\
     4753a86e14177cdde42d12a23e6b305cc6c01aaad285a127526df6145826e5daae6b1b5782d4423807e4bdf8df4e02d7";

/// Contexts of [`BINDING`], with and without its subject: from Python's struct and hashlib.
const CONTEXT: &str = "\
     7365616c776972652f6f626a6563742f310000000700000003090909090909090909090909090909090000000000000004000000006553f1\
     000105050505050505050505050505050505be415dcb2e73963fb9fce93f0f64fa0349a0e0b57b5e8116bfe0a30a06b12230";
const CONTEXT_WITHOUT_SUBJECT: &str = "\
     7365616c776972652f6f626a6563742f310000000700000003090909090909090909090909090909090000000000000004000000006553f1\
     0000be415dcb2e73963fb9fce93f0f64fa0349a0e0b57b5e8116bfe0a30a06b12230";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn the_format_is_golden() {
    let (app, sealed) = (App::new(&[Suite::Xaes]), bytes(SEALED));
    let opened = app.open(&BINDING, &sealed).unwrap();
    assert_eq!((opened.values, opened.creation), (jane(), Some([8; 16])));
    let Parts { clear, .. } = Parts::of(&sealed).unwrap();
    assert_eq!(hex(clear), "0000006400000005a4676f6c64");
    assert_eq!(hex(&BINDING.context(Some(&[5; 16]), clear)), CONTEXT);
    assert_eq!(hex(&BINDING.context(None, clear)), CONTEXT_WITHOUT_SUBJECT);
    let subject = SubjectKey::open(&token_keys(7), COLLECTION, [5; 16], 3, &bytes(STORED_SUBJECT_KEY)).unwrap();
    let opened = app.open_for(&subject, &bytes(SEALED_FOR_SUBJECT)).unwrap();
    assert_eq!((opened.values, opened.creation), (jane(), Some([8; 16])));
}

#[test]
fn objects_open_under_every_suite() {
    let app = App::new(&Suite::ALL);
    for suite in Suite::ALL {
        for (all, creation) in [(jane(), Some([8; 16])), (values(&[(100, "a")]), None), (Values::new(), None)] {
            let sealed = app.seal(suite, &BINDING, &all, creation);
            let opened = app.open(&BINDING, &sealed).unwrap();
            assert_eq!((opened.values, opened.creation), (all, creation));
            assert_eq!(key_of(&sealed), Some((suite, app.keys.newest(suite).unwrap().id)));
        }
    }
}

#[test]
fn opened_schedules_are_kept() {
    let app = App::new(&[Suite::P256]);
    let kept = Arc::new(OpenedSchedules::new(NonZeroUsize::new(4).unwrap(), 4));
    let sealed = app.seal(Suite::P256, &BINDING, &jane(), None);
    for _ in 0..2 {
        assert_eq!(
            open(&BINDING, &sealed, None, Arc::clone(&app.keys), Some(Arc::clone(&kept))).unwrap().values,
            jane()
        );
    }
    assert_eq!(kept.len(), 1);
}

#[test]
fn clear_values_are_readable_and_no_others() {
    let sealed = App::new(&[Suite::Xaes]).seal(Suite::Xaes, &BINDING, &jane(), None);
    let has = |text: &str| sealed.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("gold") && !has("Jane") && !has("jane"));
}

#[test]
fn no_changed_bit_opens() {
    let app = App::new(&[Suite::Xaes]);
    let sealed = app.seal(Suite::Xaes, &BINDING, &jane(), Some([8; 16]));
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(app.open(&BINDING, &changed), Err(CannotOpen), "bit {bit}");
    }
    for length in 0..sealed.len() {
        assert_eq!(app.open(&BINDING, &sealed[..length]), Err(CannotOpen), "{length} bytes");
    }
    assert_eq!(app.open(&BINDING, &[&sealed[..], &[0]].concat()), Err(CannotOpen));
}

#[test]
fn no_other_binding_opens() {
    let app = App::new(&[Suite::Xaes]);
    let sealed = app.seal(Suite::Xaes, &BINDING, &jane(), None);
    let mut id = BINDING.id;
    id[15] ^= 1;
    let others = [
        ObjectBinding { app: 8, ..BINDING },
        ObjectBinding { collection: 4, ..BINDING },
        ObjectBinding { id, ..BINDING },
        ObjectBinding { version: 5, ..BINDING },
        ObjectBinding { created: BINDING.created + 1, ..BINDING },
    ];
    for other in others {
        assert_eq!(app.open(&other, &sealed), Err(CannotOpen), "{other:?}");
    }
    let foreign = App { id: AppId::new("other").unwrap(), ..App::new(&[Suite::P256]) };
    assert_eq!(foreign.open(&BINDING, &sealed), Err(CannotOpen));
}

#[test]
fn values_cannot_move() {
    let app = App::new(&[Suite::Xaes]);
    let joe = ObjectBinding { id: [10; 16], ..BINDING };
    let one = app.seal(Suite::Xaes, &BINDING, &jane(), None);
    let other = app.seal(Suite::Xaes, &joe, &values(&[(1, "joe@example.com"), (3, "Joe"), (100, "iron")]), None);
    let Parts { clear: one_clear, envelope: one_envelope, .. } = Parts::of(&one).unwrap();
    let Parts { clear: other_clear, envelope: other_envelope, .. } = Parts::of(&other).unwrap();
    let join =
        |clear: &[u8], envelope: &[u8]| [&[FORMAT][..], &(clear.len() as u32).to_be_bytes(), clear, envelope].concat();
    assert_eq!(join(one_clear, one_envelope), one);
    assert!(app.open(&BINDING, &join(other_clear, one_envelope)).is_err(), "another object's clear part");
    assert!(app.open(&BINDING, &join(one_clear, other_envelope)).is_err(), "another object's envelope");
    assert!(app.open(&BINDING, &join(&[], one_envelope)).is_err(), "no clear part");
    // The number of a clear value is not free either.
    let mut renumbered = one_clear.to_vec();
    renumbered[3] += 1;
    assert!(app.open(&BINDING, &join(&renumbered, one_envelope)).is_err(), "another property");
}

const COLLECTION: u32 = 9;

fn token_keys(app: u32) -> TokenKeys {
    let version = |number| TokenKeyVersion {
        number,
        state: KeyState::Active,
        secret: TokenSecret::new(Zeroizing::new([number as u8; 32])),
    };
    TokenKeys::new(app, vec![version(1), version(2)]).unwrap()
}

#[test]
fn an_object_of_a_subject_opens_with_both_keys_only() {
    let (app, keys) = (App::new(&[Suite::Xaes]), token_keys(7));
    let (subject, stored) = SubjectKey::generate(&keys, COLLECTION, [5; 16], 3).unwrap();
    let sealed = app.seal_for(&subject);
    assert_eq!((subject_version(&sealed), sealed[0]), (Some(3), 2));
    assert_eq!(key_of(&sealed), Some((Suite::Xaes, app.keys.newest(Suite::Xaes).unwrap().id)));
    let again = SubjectKey::open(&keys, COLLECTION, [5; 16], 3, &stored).unwrap();
    let opened = app.open_for(&again, &sealed).unwrap();
    assert_eq!((opened.values, opened.creation), (jane(), Some([8; 16])));

    assert_eq!(app.open(&BINDING, &sealed), Err(CannotOpen), "without the subject's key");
    let plain = app.seal(Suite::Xaes, &BINDING, &jane(), None);
    assert_eq!(app.open_for(&subject, &plain), Err(CannotOpen), "an object of nobody");
    for (id, version) in [([5; 16], 3), ([5; 16], 5), ([6; 16], 3)] {
        let (other, _) = SubjectKey::generate(&keys, COLLECTION, id, version).unwrap();
        assert_eq!(app.open_for(&other, &sealed), Err(CannotOpen), "{other:?}");
    }
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(app.open_for(&subject, &changed), Err(CannotOpen), "bit {bit}");
    }
    for length in 0..sealed.len() {
        assert_eq!(app.open_for(&subject, &sealed[..length]), Err(CannotOpen), "{length} bytes");
    }
}

#[test]
fn a_stored_subject_key_opens_in_its_place_only() {
    let keys = token_keys(7);
    let (_, stored) = SubjectKey::generate(&keys, COLLECTION, [5; 16], 3).unwrap();
    assert_eq!(stored[1..5], [0, 0, 0, 2], "the newest version of the token key");
    let opens = |keys: &TokenKeys, collection, id, version, stored: &[u8]| {
        SubjectKey::open(keys, collection, id, version, stored).is_ok()
    };
    assert!(opens(&keys, COLLECTION, [5; 16], 3, &stored));
    assert!(!opens(&token_keys(8), COLLECTION, [5; 16], 3, &stored), "another app");
    assert!(!opens(&keys, COLLECTION + 1, [5; 16], 3, &stored), "another collection");
    assert!(!opens(&keys, COLLECTION, [6; 16], 3, &stored), "another subject");
    assert!(!opens(&keys, COLLECTION, [5; 16], 5, &stored), "another version");
    assert!(!opens(&keys, COLLECTION, [5; 16], 3, &[]), "an erased key");
    // A row of a token map is no key.
    let new = NewToken {
        collection: COLLECTION,
        id: &[5; 16],
        context: &keys.context(b""),
        fingerprint: None,
        subject: None,
        token: "3",
        value: Some((Datatype::Binary, &[1; 32])),
    };
    assert!(!opens(&keys, COLLECTION, [5; 16], 3, &keys.seal(&new).unwrap()), "a token");
}

#[test]
fn debug_output_of_a_subject_key_shows_no_key() {
    let (subject, _) = SubjectKey::generate(&token_keys(7), COLLECTION, [5; 16], 3).unwrap();
    let expected = "SubjectKey { id: \"05050505050505050505050505050505\", version: 3, .. }";
    assert_eq!(format!("{subject:?}"), expected);
}

#[test]
fn a_published_key_seals_no_object() {
    let id = AppId::new("shop").unwrap();
    let key = KeyMaterial::from_secret(&id, Suite::P256, Zeroizing::new([1; 32])).unwrap();
    let version = KeyVersion::new(1, KeyState::Active, key).of_origin(sealwire_crypto::Origin::Outside);
    let keys = Arc::new(AppKeys::new(id.clone(), vec![version]).unwrap());
    let recipient = keys.newest_outside(Suite::P256).unwrap();
    let sealed = seal(&BINDING, &jane(), |_| false, None, None, &id, recipient).unwrap();
    assert_eq!(open(&BINDING, &sealed, None, Arc::clone(&keys), None), Err(CannotOpen));
}

#[test]
fn values_are_bounded() {
    let app = App::new(&[Suite::Xaes]);
    let sealed = |bytes: usize| {
        let values = Values::from_iter([(1, Zeroizing::new(vec![0; bytes]))]);
        seal(&BINDING, &values, |_| false, None, None, &app.id, app.keys.newest(Suite::Xaes).unwrap())
    };
    let most = sealed(VALUES_BYTES_MAX - 8).unwrap();
    assert!(app.open(&BINDING, &most).is_ok());
    assert_eq!(sealed(VALUES_BYTES_MAX - 7), Err(SealError::TooLong));
}

#[test]
fn only_canonical_content_is_read() {
    let one = [0, 0, 0, 1, 0, 0, 0, 1, 5];
    let two = [0, 0, 0, 2, 0, 0, 0, 1, 6];
    let cases: [(&[u8], Vec<u8>, Option<usize>); 9] = [
        (&[], vec![0], Some(0)),
        (&one, [&[0], &two[..]].concat(), Some(2)),
        (&two, [&[0], &one[..]].concat(), Some(2)),
        (&[], [&[1], &[7; 16][..], &one].concat(), Some(1)),
        (&one, [&[0], &one[..]].concat(), None),
        (&[], vec![], None),
        (&[], vec![2], None),
        (&[], vec![1; 16], None),
        (&[0], vec![0], None),
    ];
    for (clear, plaintext, expected) in cases {
        let read = read_content(clear, &plaintext).map(|content| content.values.len());
        assert_eq!(read, expected, "{clear:x?} {plaintext:x?}");
    }
}

#[test]
fn key_of_needs_an_envelope() {
    let sealed = App::new(&[Suite::Xaes]).seal(Suite::Xaes, &BINDING, &jane(), None);
    let mut other_format = sealed.clone();
    other_format[0] = 3;
    for bytes in [&[][..], &[1], &[1, 0, 0, 0, 0], &[1, 255, 255, 255, 255, 0], &other_format, &sealed[..20]] {
        assert_eq!(key_of(bytes), None, "{bytes:x?}");
    }
}

#[test]
fn debug_output_shows_no_value() {
    let opened = OpenedObject { values: jane(), creation: Some([8; 16]) };
    assert_eq!(format!("{opened:?}"), "OpenedObject { values: Values(3), .. }");
}

proptest! {
    #[test]
    fn malformed_content_is_no_panic(clear: Vec<u8>, plaintext in proptest::collection::vec(0u8..4, 0..60)) {
        if let Some(OpenedObject { values, creation }) = read_content(&clear, &plaintext) {
            let mut again = Vec::new();
            write_optional(creation.as_ref(), &mut again);
            let mut clear_values = Values::new();
            prop_assert!(clear_values.decode(&clear).is_some());
            values.encode(|number| clear_values.get(number).is_none(), &mut again);
            prop_assert_eq!(again, plaintext);
        }
    }

    #[test]
    fn other_bytes_do_not_open(bytes: Vec<u8>) {
        let app = App::new(&[Suite::Xaes]);
        let framed = [&[FORMAT, 0, 0, 0, 0][..], &bytes].concat();
        prop_assert_eq!(app.open(&BINDING, &bytes), Err(CannotOpen));
        prop_assert_eq!(app.open(&BINDING, &framed), Err(CannotOpen));
    }
}
