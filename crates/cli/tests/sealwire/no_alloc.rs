//! Tests that sealing, opening and rewrapping allocate per document and never per field: 20 fields
//! cost as much as 2,000. A request without a trace allocates nothing for tracing.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use allocation_counter::measure;
use sealwire_crypto::evervault::{self, Form};
use sealwire_crypto::{
    AppId, AppKeys, Curve, Encoding, EpochLifetime, KeyPair, KeyScope, KeyState, KeyVersion,
    Opener, Sealer,
};
use sealwire_engine::jobs::field_errors::{FieldErrors, FieldFailure};
use sealwire_engine::jobs::field_opener::{Evervault, FieldOpener};
use sealwire_engine::jobs::field_sealer::FieldSealer;
use sealwire_engine::jobs::masks::disclosure::Disclosure;
use sealwire_engine::operations::{
    OpenFields, OutsideSealers, RewrapFields, SealFields, ShowFields, UnopenedFields,
};
use sealwire_msgpack::write;
use sealwire_payload::{Budget, Containers, Progress, Selection, Transform, Walk, WalkLimits};
use sealwire_service::spans::{Endpoint, Service, SpanMetrics, Traces};
use sealwire_settings::Config;
use sealwire_wire::OnError;

/// Makes an app with an old and a new key.
fn app() -> Arc<AppKeys> {
    let version = |number| {
        KeyVersion::new(
            number,
            KeyState::Active,
            KeyPair::generate(Curve::P256).unwrap(),
        )
    };
    Arc::new(AppKeys::new(AppId::new("shop").unwrap(), vec![version(1), version(2)]).unwrap())
}

fn version(keys: &AppKeys, number: u32) -> Arc<KeyVersion> {
    Arc::clone(
        keys.versions()
            .iter()
            .find(|version| version.number == number)
            .unwrap(),
    )
}

fn sealer(keys: &AppKeys, number: u32, encoding: Encoding) -> FieldSealer {
    let sealer = Sealer::new(
        keys.app(),
        version(keys, number),
        KeyScope::Request,
        encoding,
        b"ctx",
    )
    .unwrap();
    FieldSealer::Native(sealer.into())
}

fn evervault_sealer(keys: &AppKeys, number: u32) -> FieldSealer {
    let form = Form::Metadata {
        role: None,
        encrypted_at: 1_700_000_000,
    };
    let sealer = evervault::Sealer::new(version(keys, number), KeyScope::Request, &form).unwrap();
    FieldSealer::Evervault(sealer.into())
}

fn sealing(writer: FieldSealer) -> SealFields {
    SealFields {
        writer,
        contexts: None,
        cancel: Arc::default(),
        field_errors: FieldErrors::new(OnError::Fail, 10, 10),
    }
}

/// Makes a sealer that shares the key of the epoch.
fn sharing(keys: &AppKeys, encoding: Encoding) -> FieldSealer {
    let (newest, lifetime) = (
        keys.newest(Curve::P256).unwrap(),
        EpochLifetime::from_ms(EpochLifetime::MS_MAX).unwrap(),
    );
    let sealer = Sealer::in_epoch(
        keys.app(),
        Arc::clone(newest),
        lifetime,
        Instant::now,
        encoding,
        b"ctx",
    )
    .unwrap();
    FieldSealer::Native(sealer.into())
}

fn opening(keys: &Arc<AppKeys>) -> OpenFields {
    let native = Opener::new(Arc::clone(keys), b"ctx");
    let evervault = Evervault::new(Arc::clone(keys), Arc::default());
    OpenFields {
        opener: FieldOpener::new(native, evervault, 64).into(),
        contexts: None,
        cancel: Arc::default(),
        field_errors: FieldErrors::new(OnError::Fail, 10, 10),
        unopened: UnopenedFields::default(),
    }
}

fn showing(keys: &Arc<AppKeys>) -> ShowFields {
    ShowFields {
        open: opening(keys),
        disclosure: Disclosure::clear(),
    }
}

fn document(fields: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, fields);
    for field in 0..fields {
        match field % 3 {
            0 => write::str(&mut out, "4111111111111111"),
            1 => write::bin(&mut out, b"0123456789"),
            _ => write::uint(&mut out, u64::from(field)),
        }
    }
    out
}

/// Returns the transformed document, and the number of allocations.
fn walk(
    input: &[u8],
    containers: Containers,
    mut transform: impl Transform<Error = FieldFailure>,
) -> (Vec<u8>, u64) {
    let mut out = Vec::with_capacity(input.len() * 20);
    let everything = Arc::new(Selection::everything());
    let counted = measure(|| {
        let mut walk = Walk::new(everything, containers, WalkLimits::default());
        while walk.advance(input, &mut out, &mut transform, Budget::fields(100))
            == Ok(Progress::More)
        {}
    });
    (out, counted.count_total)
}

#[test]
fn twenty_fields_cost_as_many_allocations_as_two_thousand() {
    for (read, written) in [
        (Encoding::Text, Encoding::Binary),
        (Encoding::Binary, Encoding::Text),
    ] {
        let allocations = [20, 2_000].map(|fields| {
            // Of its own, because an epoch keeps what its first request allocated.
            let keys = app();
            let plain = document(fields);
            let seal = sealing(sealer(&keys, 1, read));
            let (sealed, own) = walk(&plain, Containers::Whole, seal);
            let (_, shared) = walk(&plain, Containers::Whole, sealing(sharing(&keys, read)));
            let rewrap = RewrapFields {
                open: opening(&keys),
                writer: sealer(&keys, 2, written),
                outside: OutsideSealers::default(),
                context_of_item: None,
            };
            let (moved, rewrapping) = walk(&sealed, Containers::Descend, rewrap);
            let (opened, open) = walk(&moved, Containers::Descend, showing(&keys));
            assert!(opened == plain && moved != sealed);
            [own, shared, rewrapping, open]
        });
        assert_eq!(allocations[0], allocations[1]);
    }
}

#[test]
fn nor_do_evervault_strings_cost_more_of_them() {
    let keys = app();
    let allocations = [20, 2_000].map(|fields| {
        let plain = document(fields);
        let (sealed, sealing) = walk(
            &plain,
            Containers::Whole,
            sealing(evervault_sealer(&keys, 1)),
        );
        let (opened, open) = walk(&sealed, Containers::Descend, showing(&keys));
        assert!(opened == plain && sealed != plain);
        [sealing, open]
    });
    assert_eq!(allocations[0], allocations[1]);
}

/// Counts the allocations of requests that are not traced. Times are printed, but not checked.
#[test]
fn a_call_that_is_not_traced_allocates_nothing_for_that() {
    let sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let mut config = Config::defaults(Path::new("")).traces;
    let service = || Service {
        name: "test",
        instance: String::new(),
    };
    let traces =
        |settings: &_| Traces::start(settings, service(), &SpanMetrics::default()).unwrap();
    let off = traces(&config);
    config.endpoint = Endpoint::parse("http://127.0.0.1:1/v1/traces");
    let on = traces(&config);
    config.sample_ppm = 1;
    let by_chance = traces(&config);
    for (name, traces, traceparent) in [
        ("off", &off, None),
        ("off", &off, Some(sampled)),
        ("on", &on, None),
        ("on", &on, Some(unsampled)),
        ("by chance", &by_chance, None),
    ] {
        // The first random number of a thread allocates its generator.
        let _ = traces.sample(traceparent);
        let (mut kept, begun) = (0, Instant::now());
        let count = measure(|| {
            kept = (0..100_000)
                .filter(|_| traces.sample(black_box(traceparent)).is_some())
                .count()
        });
        println!(
            "{name}, {traceparent:?}: {} ns",
            begun.elapsed().as_nanos() / 100_000
        );
        // One request in a million is sampled by chance.
        assert!(
            count.count_total == 0 && kept < 100,
            "{name}: {} allocations, {kept} kept",
            count.count_total
        );
    }
    assert!(on.sample(Some(sampled)).is_some());
}
