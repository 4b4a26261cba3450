//! `sealwire-payload`: the walk alone, and the walk with the engine's own transforms around the
//! crypto: all that a crypto thread does for a call.

use std::cell::LazyCell;
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use sealwire_benches::document::{FIELD_BYTES, app_keys, document};
use sealwire_benches::floor::{Aes, TAG_BYTES};
use sealwire_crypto::evervault;
use sealwire_crypto::{AppKeys, Curve, Encoding, KeyScope, Opener, Sealer};
use sealwire_engine::jobs::field_errors::FieldErrors;
use sealwire_engine::jobs::field_opener::{Evervault, FieldOpener};
use sealwire_engine::jobs::field_sealer::FieldSealer;
use sealwire_engine::jobs::masks::disclosure::Disclosure;
use sealwire_engine::operations::{OpenFields, SealFields, ShowFields, UnopenedFields};
use sealwire_msgpack::write;
use sealwire_payload::{
    Budget, Containers, Field, Outcome, Path, Progress, Selection, Transform, Walk, WalkLimits,
};
use sealwire_wire::OnError;

const FIELDS: [usize; 4] = [30, 100, 2_000, 60_000];
/// Fields per slice, as in the engine.
const FIELDS_PER_LOOK: usize = 32;
/// Largest growth of a field: envelope and header.
const GROWTH_BYTES: usize = 192;

pub(crate) fn benches(criterion: &mut Criterion) {
    let keys = app_keys();
    walk(criterion);
    encrypt(criterion, &keys);
    decrypt(criterion, &keys);
}

/// A transform that keeps every field.
struct Keep;

impl Transform for Keep {
    type Error = Infallible;

    #[inline]
    fn field(&mut self, _: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, Infallible> {
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, never: Infallible) -> Result<(), Infallible> {
        match never {}
    }
}

/// A transform that replaces every field by another of equal size.
struct Replace;

impl Transform for Replace {
    type Error = Infallible;

    #[inline]
    fn field(&mut self, _: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, Infallible> {
        write::bin(out, &[b'x'; FIELD_BYTES]);
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, _: &Path<'_>, never: Infallible) -> Result<(), Infallible> {
        match never {}
    }
}

fn run<T: Transform>(
    selection: &Arc<Selection>,
    containers: Containers,
    input: &[u8],
    out: &mut Vec<u8>,
    t: &mut T,
) {
    let limits = WalkLimits {
        out_bytes_max: usize::MAX,
        ..WalkLimits::default()
    };
    let mut walk = Walk::new(Arc::clone(selection), containers, limits);
    loop {
        match walk.advance(black_box(input), out, t, Budget::fields(FIELDS_PER_LOOK)) {
            Ok(Progress::More) => (),
            Ok(Progress::Done { consumed }) => return assert_eq!(consumed, input.len()),
            Err(_) => panic!("the document is sound and every field succeeds"),
        }
    }
}

/// Measures the walk. `Throughput` counts all of the document's fields, selected or not.
fn walk(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("payload/walk");
    let parse = |paths: &[&str]| Arc::new(Selection::parse(paths.iter().copied()).expect("parses"));
    let everything = Arc::new(Selection::everything());
    for fields in FIELDS {
        let input = document(fields);
        let mut out = Vec::with_capacity(input.len() + fields * GROWTH_BYTES);
        group.throughput(Throughput::Elements(fields as u64));
        group.bench_function(BenchmarkId::new("keep", fields), |b| {
            b.iter(|| {
                out.clear();
                run(&everything, Containers::Whole, &input, &mut out, &mut Keep);
            });
        });
        group.bench_function(BenchmarkId::new("replace", fields), |b| {
            b.iter(|| {
                out.clear();
                run(
                    &everything,
                    Containers::Whole,
                    &input,
                    &mut out,
                    &mut Replace,
                );
            });
        });
    }
    let fields = 2_000;
    let input = document(fields);
    let many: Vec<String> = (0..30).map(|n| format!("$.rows[*].column{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    group.throughput(Throughput::Elements(fields as u64));
    for (variant, paths) in [
        ("select_one_column", &["$.rows[*].number"][..]),
        (
            "select_three_columns",
            &[
                "$.rows[*].number",
                "$.rows[*].name",
                "$.rows[*]['email', 'phone']",
            ],
        ),
        ("select_anywhere", &["$..number"]),
        ("select_whole_rows", &["$.rows[*]"]),
        ("select_nothing_there", &["$.other.number"]),
        ("select_thirty_paths", &many),
    ] {
        let selection = parse(paths);
        let mut out = Vec::with_capacity(input.len() + fields * GROWTH_BYTES);
        group.bench_function(BenchmarkId::new(variant, fields), |b| {
            b.iter(|| {
                out.clear();
                run(
                    &selection,
                    Containers::Whole,
                    &input,
                    &mut out,
                    &mut Replace,
                );
            });
        });
    }
}

/// Formats that a request can write.
#[derive(Clone, Copy)]
enum EnvelopeForm {
    Native(Encoding),
    Evervault,
}

/// The measured formats, by the names of their rows.
const FORMS: [(&str, EnvelopeForm); 3] = [
    ("r1_text", EnvelopeForm::Native(Encoding::Text)),
    ("r1_binary", EnvelopeForm::Native(Encoding::Binary)),
    ("r1_evervault", EnvelopeForm::Evervault),
];

fn sealing(keys: &AppKeys, form: EnvelopeForm) -> SealFields {
    let newest = Arc::clone(keys.newest(Curve::P256).expect("there is a key"));
    let writer = match form {
        EnvelopeForm::Native(encoding) => {
            Sealer::new(keys.app(), newest, KeyScope::Request, encoding, b"")
                .map(|sealer| FieldSealer::Native(sealer.into()))
        }
        EnvelopeForm::Evervault => {
            let form = evervault::Form::Metadata {
                role: None,
                encrypted_at: 1_700_000_000,
            };
            evervault::Sealer::new(newest, KeyScope::Request, &form)
                .map(|sealer| FieldSealer::Evervault(sealer.into()))
        }
    };
    let field_errors = FieldErrors::new(OnError::Fail, 0, 0);
    SealFields {
        writer: writer.expect("makes a sealer"),
        contexts: None,
        cancel: Arc::default(),
        field_errors,
    }
}

/// Measures encryption. The rows of [`FORMS`] include making the request's key. `warm` has the key
/// already, so it shows the cost of the fields alone.
fn encrypt(criterion: &mut Criterion, keys: &AppKeys) {
    let everything = Arc::new(Selection::everything());
    let mut group = criterion.benchmark_group("payload/encrypt");
    for fields in FIELDS {
        let input = document(fields);
        let capacity = input.len() + fields * GROWTH_BYTES;
        group.throughput(Throughput::Elements(fields as u64));
        group.bench_function(BenchmarkId::new("floor_aes256gcm_seal", fields), |b| {
            let (mut aes, mut data) = (Aes::default(), [b'x'; FIELD_BYTES + TAG_BYTES]);
            b.iter(|| {
                for _ in 0..fields {
                    aes.seal(black_box(&mut data));
                }
            });
        });
        for (variant, form) in FORMS {
            group.bench_function(BenchmarkId::new(variant, fields), |b| {
                b.iter(|| {
                    let mut out = Vec::with_capacity(capacity);
                    let mut seal = sealing(keys, form);
                    run(&everything, Containers::Whole, &input, &mut out, &mut seal);
                    out
                });
            });
        }
        for (variant, form) in [
            ("warm_text", EnvelopeForm::Native(Encoding::Text)),
            ("warm_evervault", EnvelopeForm::Evervault),
        ] {
            group.bench_function(BenchmarkId::new(variant, fields), |b| {
                let mut out = Vec::with_capacity(capacity);
                let mut seal = sealing(keys, form);
                b.iter(|| {
                    out.clear();
                    run(&everything, Containers::Whole, &input, &mut out, &mut seal);
                });
            });
        }
    }
}

fn decrypt(criterion: &mut Criterion, keys: &Arc<AppKeys>) {
    let everything = Arc::new(Selection::everything());
    let mut group = criterion.benchmark_group("payload/decrypt");
    for fields in FIELDS {
        group.throughput(Throughput::Elements(fields as u64));
        for (variant, form) in FORMS {
            let input = document(fields);
            let sealed = LazyCell::new(|| {
                let mut sealed = Vec::new();
                run(
                    &everything,
                    Containers::Whole,
                    &input,
                    &mut sealed,
                    &mut sealing(keys, form),
                );
                sealed
            });
            group.bench_function(BenchmarkId::new(variant, fields), |b| {
                let sealed: &[u8] = &sealed;
                b.iter(|| {
                    let mut out = Vec::with_capacity(sealed.len());
                    let native = Opener::new(Arc::clone(keys), b"");
                    let evervault = Evervault::new(Arc::clone(keys), Arc::default());
                    let open = OpenFields {
                        opener: FieldOpener::new(native, evervault, 64).into(),
                        contexts: None,
                        cancel: Arc::default(),
                        field_errors: FieldErrors::new(OnError::Fail, 0, fields as u64),
                        unopened: UnopenedFields::default(),
                    };
                    let mut show = ShowFields {
                        open,
                        disclosure: Disclosure::clear(),
                    };
                    run(
                        &everything,
                        Containers::Descend,
                        sealed,
                        &mut out,
                        &mut show,
                    );
                    assert_eq!(out.len(), input.len());
                    out
                });
            });
        }
    }
}
