//! Every changed bit and every other binding fails, and malformed content is no panic.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use sealwire_crypto::{KeyMaterial, KeyState};

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
        seal(binding, values, |number| number >= 100, creation, &self.id, recipient).unwrap()
    }

    fn open(&self, binding: &ObjectBinding, sealed: &[u8]) -> Result<OpenedObject, CannotOpen> {
        open(binding, sealed, Arc::clone(&self.keys), None)
    }
}

const BINDING: ObjectBinding =
    ObjectBinding { app: 7, collection: 3, id: [9; 16], version: 4, created: 1_700_000_000, subject: Some([5; 16]) };

fn values(all: &[(u32, &str)]) -> Values {
    all.iter().map(|(number, text)| (*number, Zeroizing::new(packed(text)))).collect()
}

fn jane() -> Values {
    values(&[(1, "jane@example.com"), (3, "Jane"), (100, "gold")])
}

/// A record that this code sealed once. A round trip alone would miss a changed format.
const SEALED: &str = "\
     010000000d0000006400000005a4676f6c64535701038a96ffae029df4e662c4abc05cb3d66e2a66fbacb620e2f61e000100000000587a83\
     7ca743c75c87fc3994009c3a1e35c3ecc4a90c182b3beb661a473d555207d7f1eddf479ab40b7ecb7a838fb2a5da02aa9251df51e94704b4\
     1a7d87dce7968e48018cf7d1";

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

#[test]
fn the_format_is_golden() {
    let bytes: Vec<u8> =
        (0..SEALED.len()).step_by(2).map(|at| u8::from_str_radix(&SEALED[at..at + 2], 16).unwrap()).collect();
    let opened = App::new(&[Suite::Xaes]).open(&BINDING, &bytes).unwrap();
    assert_eq!((opened.values, opened.creation), (jane(), Some([8; 16])));
    let (clear, _) = split(&bytes).unwrap();
    assert_eq!(hex(clear), "0000006400000005a4676f6c64");
    assert_eq!(hex(&BINDING.context(clear)), CONTEXT);
    assert_eq!(hex(&ObjectBinding { subject: None, ..BINDING }.context(clear)), CONTEXT_WITHOUT_SUBJECT);
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
        assert_eq!(open(&BINDING, &sealed, Arc::clone(&app.keys), Some(Arc::clone(&kept))).unwrap().values, jane());
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
        ObjectBinding { subject: Some([6; 16]), ..BINDING },
        ObjectBinding { subject: None, ..BINDING },
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
    let (one_clear, one_envelope) = split(&one).unwrap();
    let (other_clear, other_envelope) = split(&other).unwrap();
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

#[test]
fn a_published_key_seals_no_object() {
    let id = AppId::new("shop").unwrap();
    let key = KeyMaterial::from_secret(&id, Suite::P256, Zeroizing::new([1; 32])).unwrap();
    let version = KeyVersion::new(1, KeyState::Active, key).of_origin(sealwire_crypto::Origin::Outside);
    let keys = Arc::new(AppKeys::new(id.clone(), vec![version]).unwrap());
    let recipient = keys.newest_outside(Suite::P256).unwrap();
    let sealed = seal(&BINDING, &jane(), |_| false, None, &id, recipient).unwrap();
    assert_eq!(open(&BINDING, &sealed, Arc::clone(&keys), None), Err(CannotOpen));
}

#[test]
fn values_are_bounded() {
    let app = App::new(&[Suite::Xaes]);
    let sealed = |bytes: usize| {
        let values = Values::from_iter([(1, Zeroizing::new(vec![0; bytes]))]);
        seal(&BINDING, &values, |_| false, None, &app.id, app.keys.newest(Suite::Xaes).unwrap())
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
    other_format[0] = 2;
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
