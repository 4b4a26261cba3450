//! End to end: a whole engine on loopback over mutual TLS, with `sealwire-client`. Measures wall
//! time, with both ends on one set of cores. `engine -- cpu` measures the server's CPU time alone.

use std::cell::{LazyCell, OnceCell};

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use sealwire_benches::document::{APP, document};
use sealwire_benches::world::World;
use sealwire_client::{Client, Decrypt, Encrypt};

/// Clients that share connections without waiting for each other.
const PIPELINED: usize = 64;

/// The engine and one client with two connections. They live from the first bench that needs them
/// to the last.
#[derive(Default)]
struct Running(OnceCell<(World, Client)>);

impl Running {
    fn get(&self) -> (&World, &Client) {
        let (world, client) = self.0.get_or_init(|| {
            let world = World::start();
            let client = world.client(2);
            (world, client)
        });
        (world, client)
    }
}

pub(crate) fn benches(criterion: &mut Criterion) {
    let running = Running::default();
    encrypt(criterion, &running);
    decrypt(criterion, &running);
    if let Some((world, client)) = running.0.into_inner() {
        drop(client);
        world.stop();
    }
}

fn encrypt(criterion: &mut Criterion, running: &Running) {
    let mut group = criterion.benchmark_group("server/encrypt");
    for fields in [1, 30, 100, 2_000, 60_000] {
        let payload = document(fields);
        group.throughput(Throughput::Elements(fields as u64));
        group.bench_function(BenchmarkId::new("loopback_c1", fields), |b| {
            let (world, client) = running.get();
            b.iter(|| {
                world
                    .callers()
                    .block_on(client.encrypt(Encrypt::new(APP, &payload)))
                    .expect("encrypts")
            });
        });
    }
    pipelined(&mut group, running);
}

/// Measures one request per client and iteration.
fn pipelined(group: &mut BenchmarkGroup<'_, WallTime>, running: &Running) {
    let payload = document(1);
    group.throughput(Throughput::Elements(PIPELINED as u64));
    group.bench_function(BenchmarkId::new("loopback_c64", 1), |b| {
        let (world, client) = running.get();
        b.iter(|| {
            world.callers().block_on(async {
                let mut calls = tokio::task::JoinSet::new();
                for _ in 0..PIPELINED {
                    let (client, payload) = (client.clone(), payload.clone());
                    calls.spawn(async move {
                        client
                            .encrypt(Encrypt::new(APP, &payload))
                            .await
                            .expect("encrypts")
                    });
                }
                assert_eq!(calls.join_all().await.len(), PIPELINED);
            });
        });
    });
}

fn decrypt(criterion: &mut Criterion, running: &Running) {
    let mut group = criterion.benchmark_group("server/decrypt");
    for fields in [100, 2_000] {
        let payload = document(fields);
        let sealed = LazyCell::new(|| {
            let (world, client) = running.get();
            world
                .callers()
                .block_on(client.encrypt(Encrypt::new(APP, &payload)))
                .expect("encrypts")
                .payload
        });
        group.throughput(Throughput::Elements(fields as u64));
        group.bench_function(BenchmarkId::new("loopback_c1", fields), |b| {
            let ((world, client), sealed) = (running.get(), &*sealed);
            b.iter(|| {
                world
                    .callers()
                    .block_on(client.decrypt(Decrypt::new(APP, sealed)))
                    .expect("decrypts")
            });
        });
    }
}
