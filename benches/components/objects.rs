//! `sealwire-records`: records sealed and opened in the present format, beside records of the
//! formats that older engines wrote under each suite. An object has four values of 64 bytes, as in
//! the bench of the engine.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use sealwire_crypto::{AppId, AppKeys, KeyMaterial, KeyState, KeyVersion, Suite};
use sealwire_msgpack::write;
use sealwire_records::objects::{ObjectBinding, Values, old, open, seal};
use sealwire_records::token::{SubjectKey, TokenKeyVersion, TokenKeys, TokenSecret};
use zeroize::Zeroizing;

const BINDING: ObjectBinding = ObjectBinding {
    app: 7,
    collection: 3,
    id: [9; 16],
    version: 1,
    created: 1_700_000_000,
};
const SUBJECTS: u32 = i32::MAX as u32;

pub(crate) fn benches(criterion: &mut Criterion) {
    let secret = TokenSecret::new(Zeroizing::new([1; 32]));
    let version = TokenKeyVersion {
        number: 1,
        state: KeyState::Active,
        secret,
    };
    let keys = TokenKeys::new(7, vec![version]).expect("one version");
    let (subject, _) = SubjectKey::generate(&keys, SUBJECTS, [5; 16], 1).expect("random bytes");
    let values: Values = (1..=4).map(|number| (number, value(number))).collect();
    let is_clear = |_| false;

    let mut group = criterion.benchmark_group("objects/record");
    group.throughput(Throughput::Elements(1));
    for (name, subject) in [
        ("authenticated", None),
        ("authenticated, of a subject", Some(&subject)),
    ] {
        let sealed = seal(&BINDING, &values, is_clear, None, subject, &keys).expect("a record");
        group.bench_function(BenchmarkId::new("seal", name), |bencher| {
            bencher.iter(|| seal(&BINDING, black_box(&values), is_clear, None, subject, &keys));
        });
        group.bench_function(BenchmarkId::new("open", name), |bencher| {
            bencher.iter(|| open(&BINDING, black_box(&sealed), subject, &keys));
        });
    }
    let app = AppId::new("shop").expect("a name");
    for suite in Suite::ALL {
        let key = KeyMaterial::generate(&app, suite).expect("random bytes");
        let keys = AppKeys::new(app.clone(), vec![KeyVersion::new(1, KeyState::Active, key)])
            .expect("one version");
        let (keys, name) = (Arc::new(keys), format!("old, {}", suite.name()));
        let recipient = keys.newest(suite).expect("a version");
        let sealed =
            old::seal(&BINDING, &values, is_clear, None, None, &app, recipient).expect("a record");
        group.bench_function(BenchmarkId::new("seal", &name), |bencher| {
            bencher.iter(|| {
                old::seal(
                    &BINDING,
                    black_box(&values),
                    is_clear,
                    None,
                    None,
                    &app,
                    recipient,
                )
            });
        });
        group.bench_function(BenchmarkId::new("open", &name), |bencher| {
            bencher.iter(|| old::open(&BINDING, black_box(&sealed), None, Arc::clone(&keys)));
        });
    }
    group.finish();
}

fn value(number: u32) -> Zeroizing<Vec<u8>> {
    let mut value = Vec::new();
    write::str(&mut value, &format!("{number:064}"));
    Zeroizing::new(value)
}
