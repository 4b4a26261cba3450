//! Records of older engines still open, and nothing else does.

use proptest::prelude::*;
use sealwire_crypto::{KeyMaterial, KeyState, Suite};

use super::super::tests::{BINDING, COLLECTION, bytes, hex, jane, token_keys, values};
use super::*;
use crate::objects::RecordFormat;

struct App {
    id: AppId,
    keys: Arc<AppKeys>,
}

impl App {
    fn new(suites: &[Suite]) -> Self {
        let id = AppId::new("shop").unwrap();
        let version = |suite: &Suite| {
            let key =
                KeyMaterial::from_secret(&id, *suite, Zeroizing::new([suite.byte(); 32])).unwrap();
            KeyVersion::new(1, KeyState::Active, key)
        };
        let keys = AppKeys::new(id.clone(), suites.iter().map(version).collect()).unwrap();
        Self {
            id,
            keys: Arc::new(keys),
        }
    }

    fn seal(
        &self,
        suite: Suite,
        binding: &ObjectBinding,
        values: &Values,
        creation: Option<[u8; 16]>,
    ) -> Vec<u8> {
        let recipient = self.keys.newest(suite).unwrap();
        seal(
            binding,
            values,
            |number| number >= 100,
            creation,
            None,
            &self.id,
            recipient,
        )
        .unwrap()
    }

    fn seal_for(&self, subject: &SubjectKey) -> Vec<u8> {
        let recipient = self.keys.newest(Suite::Xaes).unwrap();
        seal(
            &BINDING,
            &jane(),
            |number| number >= 100,
            Some([8; 16]),
            Some(subject),
            &self.id,
            recipient,
        )
        .unwrap()
    }

    fn open(&self, binding: &ObjectBinding, sealed: &[u8]) -> Result<OpenedObject, CannotOpen> {
        open(binding, sealed, None, Arc::clone(&self.keys))
    }

    fn open_for(&self, subject: &SubjectKey, sealed: &[u8]) -> Result<OpenedObject, CannotOpen> {
        open(&BINDING, sealed, Some(subject), Arc::clone(&self.keys))
    }
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

#[test]
fn old_records_of_a_stored_form_open() {
    let (app, sealed) = (App::new(&[Suite::Xaes]), bytes(SEALED));
    let opened = app.open(&BINDING, &sealed).unwrap();
    assert_eq!((opened.values, opened.creation), (jane(), Some([8; 16])));
    let Parts { clear, .. } = Parts::of(&sealed).unwrap();
    assert_eq!(hex(clear), "0000006400000005a4676f6c64");
    assert_eq!(hex(&context(&BINDING, Some(&[5; 16]), clear)), CONTEXT);
    assert_eq!(
        hex(&context(&BINDING, None, clear)),
        CONTEXT_WITHOUT_SUBJECT
    );
    let subject = SubjectKey::open(
        &token_keys(7),
        COLLECTION,
        [5; 16],
        3,
        &bytes(STORED_SUBJECT_KEY),
    )
    .unwrap();
    let opened = app.open_for(&subject, &bytes(SEALED_FOR_SUBJECT)).unwrap();
    assert_eq!((opened.values, opened.creation), (jane(), Some([8; 16])));
}

#[test]
fn old_records_open_under_every_suite() {
    let app = App::new(&Suite::ALL);
    for suite in Suite::ALL {
        for (all, creation) in [
            (jane(), Some([8; 16])),
            (values(&[(100, "a")]), None),
            (Values::new(), None),
        ] {
            let sealed = app.seal(suite, &BINDING, &all, creation);
            let opened = app.open(&BINDING, &sealed).unwrap();
            assert_eq!((opened.values, opened.creation), (all, creation));
            assert_eq!(key_of(&sealed), Some(app.keys.newest(suite).unwrap().id));
            assert_eq!(RecordFormat::of(&sealed), Some(RecordFormat::Old));
        }
    }
}

#[test]
fn old_records_do_not_open_with_a_changed_bit() {
    let app = App::new(&[Suite::Xaes]);
    let sealed = app.seal(Suite::Xaes, &BINDING, &jane(), Some([8; 16]));
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(app.open(&BINDING, &changed), Err(CannotOpen), "bit {bit}");
    }
    for length in 0..sealed.len() {
        assert_eq!(
            app.open(&BINDING, &sealed[..length]),
            Err(CannotOpen),
            "{length} bytes"
        );
    }
    assert_eq!(
        app.open(&BINDING, &[&sealed[..], &[0]].concat()),
        Err(CannotOpen)
    );
}

#[test]
fn old_records_do_not_open_under_another_binding() {
    let app = App::new(&[Suite::Xaes]);
    let sealed = app.seal(Suite::Xaes, &BINDING, &jane(), None);
    let mut id = BINDING.id;
    id[15] ^= 1;
    let others = [
        ObjectBinding { app: 8, ..BINDING },
        ObjectBinding {
            collection: 4,
            ..BINDING
        },
        ObjectBinding { id, ..BINDING },
        ObjectBinding {
            version: 5,
            ..BINDING
        },
        ObjectBinding {
            created: BINDING.created + 1,
            ..BINDING
        },
    ];
    for other in others {
        assert_eq!(app.open(&other, &sealed), Err(CannotOpen), "{other:?}");
    }
    let foreign = App {
        id: AppId::new("other").unwrap(),
        ..App::new(&[Suite::P256])
    };
    assert_eq!(foreign.open(&BINDING, &sealed), Err(CannotOpen));
}

#[test]
fn old_records_of_a_subject_open_with_both_keys_only() {
    let (app, keys) = (App::new(&[Suite::Xaes]), token_keys(7));
    let (subject, stored) = SubjectKey::generate(&keys, COLLECTION, [5; 16], 3).unwrap();
    let sealed = app.seal_for(&subject);
    assert_eq!((subject_version(&sealed), sealed[0]), (Some(3), 2));
    assert_eq!(
        key_of(&sealed),
        Some(app.keys.newest(Suite::Xaes).unwrap().id)
    );
    assert_eq!(RecordFormat::of(&sealed), Some(RecordFormat::OldOfSubject));
    let again = SubjectKey::open(&keys, COLLECTION, [5; 16], 3, &stored).unwrap();
    let opened = app.open_for(&again, &sealed).unwrap();
    assert_eq!((opened.values, opened.creation), (jane(), Some([8; 16])));

    assert_eq!(
        app.open(&BINDING, &sealed),
        Err(CannotOpen),
        "without the subject's key"
    );
    let plain = app.seal(Suite::Xaes, &BINDING, &jane(), None);
    assert_eq!(
        app.open_for(&subject, &plain),
        Err(CannotOpen),
        "an object of nobody"
    );
    for (id, version) in [([5; 16], 3), ([5; 16], 5), ([6; 16], 3)] {
        let (other, _) = SubjectKey::generate(&keys, COLLECTION, id, version).unwrap();
        assert_eq!(app.open_for(&other, &sealed), Err(CannotOpen), "{other:?}");
    }
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            app.open_for(&subject, &changed),
            Err(CannotOpen),
            "bit {bit}"
        );
    }
    for length in 0..sealed.len() {
        assert_eq!(
            app.open_for(&subject, &sealed[..length]),
            Err(CannotOpen),
            "{length} bytes"
        );
    }
}

#[test]
fn old_records_of_a_published_key_do_not_open() {
    let id = AppId::new("shop").unwrap();
    let key = KeyMaterial::from_secret(&id, Suite::P256, Zeroizing::new([1; 32])).unwrap();
    let version =
        KeyVersion::new(1, KeyState::Active, key).of_origin(sealwire_crypto::Origin::Outside);
    let keys = Arc::new(AppKeys::new(id.clone(), vec![version]).unwrap());
    let recipient = keys.newest_outside(Suite::P256).unwrap();
    let sealed = seal(&BINDING, &jane(), |_| false, None, None, &id, recipient).unwrap();
    assert_eq!(
        open(&BINDING, &sealed, None, Arc::clone(&keys)),
        Err(CannotOpen)
    );
}

proptest! {
    #[test]
    fn old_records_of_other_bytes_do_not_open(bytes: Vec<u8>) {
        let app = App::new(&[Suite::Xaes]);
        let framed = [&[FORMAT, 0, 0, 0, 0][..], &bytes].concat();
        prop_assert_eq!(app.open(&BINDING, &bytes), Err(CannotOpen));
        prop_assert_eq!(app.open(&BINDING, &framed), Err(CannotOpen));
    }
}
