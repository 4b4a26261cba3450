//! `sealwire-wire`: all computation of a network thread for a request, except TLS.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use sealwire_benches::document::{APP, document};
use sealwire_wire::{Encrypt, Limits, Request, Response, Scan, Scanner, request, response};

const FIELDS: [usize; 4] = [1, 30, 2_000, 60_000];
/// Bytes per read if a message arrives in pieces.
const PIECE_BYTES: usize = 1 << 10;

pub(crate) fn benches(criterion: &mut Criterion) {
    scan(criterion);
    calls(criterion);
    replies(criterion);
}

fn call(fields: usize) -> Vec<u8> {
    let payload = document(fields);
    let mut message = Vec::new();
    request::encrypt(&mut message, 7, &Encrypt::new(APP, &payload));
    message
}

fn scan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wire/scan");
    for fields in FIELDS {
        let message = call(fields);
        group.throughput(Throughput::Bytes(message.len() as u64));
        for (variant, piece) in [("whole", message.len()), ("1KiB_pieces", PIECE_BYTES)] {
            group.bench_function(BenchmarkId::new(variant, fields), |b| {
                let mut scanner = Scanner::for_requests(Limits::default());
                b.iter(|| {
                    let mut arrived = 0;
                    loop {
                        arrived = message.len().min(arrived + piece);
                        match scanner.scan(black_box(&message[..arrived])) {
                            Scan::Incomplete => (),
                            Scan::Message(boundary) => {
                                break assert_eq!(boundary.bytes, message.len());
                            }
                            other => panic!("a sound message: {other:?}"),
                        }
                    }
                });
            });
        }
    }
}

fn calls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wire/decode");
    for fields in FIELDS {
        let message = call(fields);
        group.throughput(Throughput::Bytes(message.len() as u64));
        group.bench_function(BenchmarkId::new("encrypt_call", fields), |b| {
            let Scan::Message(boundary) = Scanner::for_requests(Limits::default()).scan(&message)
            else {
                panic!("a sound message");
            };
            b.iter(|| {
                assert!(matches!(
                    Request::decode(black_box(&message), &boundary),
                    Ok(Request::Encrypt(_))
                ))
            });
        });
    }
}

/// Measures writing a response around its payload. The payload is copied here, while in the engine
/// the walk writes it in place.
fn replies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wire/reply");
    for fields in FIELDS {
        let payload = document(fields);
        let mut out = Vec::with_capacity(payload.len() + 256);
        group.throughput(Throughput::Bytes(payload.len() as u64));
        group.bench_function(BenchmarkId::new("encode", fields), |b| {
            b.iter(|| {
                out.clear();
                let document = response::Document::start(&mut out, 7);
                out.extend_from_slice(black_box(&payload));
                document.finish(&mut out, 1, (&[], 0), &[], &[]);
            });
        });
        group.bench_function(BenchmarkId::new("decode", fields), |b| {
            b.iter(|| {
                let reply = Response::decode(black_box(&out)).expect("decodes");
                sealwire_wire::Document::decode(reply.outcome.expect("a result"))
                    .expect("decodes")
                    .payload
                    .len()
            });
        });
    }
}
