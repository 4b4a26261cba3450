//! End to end: a whole engine on loopback over mutual TLS, called through `sealwire-client`. Wall time, both ends on the
//! same cores; what the server alone spends is in the `cpu` bench.

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use sealwire_benches::document::{APP, document};
use sealwire_benches::world::World;
use sealwire_client::{Client, Decrypt, Encrypt};

/// Callers that share connections without waiting for one another.
const PIPELINED: usize = 64;

fn main() {
    let mut criterion = sealwire_benches::criterion();
    let world = World::start(false);
    encrypt(&mut criterion, &world);
    decrypt(&mut criterion, &world);
    criterion.final_summary();
    world.stop();
}

fn encrypt(criterion: &mut Criterion, world: &World) {
    let client = world.client(2);
    let mut group = criterion.benchmark_group("server/encrypt");
    for fields in [1, 30, 100, 2_000, 60_000] {
        let payload = document(fields);
        group.throughput(Throughput::Elements(fields as u64));
        group.bench_function(BenchmarkId::new("loopback_c1", fields), |b| {
            b.iter(|| world.callers().block_on(client.encrypt(Encrypt::new(APP, &payload))).expect("encrypts"));
        });
    }
    pipelined(&mut group, world, &client);
}

/// One iteration is one call of each caller.
fn pipelined(group: &mut BenchmarkGroup<'_, WallTime>, world: &World, client: &Client) {
    let payload = document(1);
    group.throughput(Throughput::Elements(PIPELINED as u64));
    group.bench_function(BenchmarkId::new("loopback_c64", 1), |b| {
        b.iter(|| {
            world.callers().block_on(async {
                let mut calls = tokio::task::JoinSet::new();
                for _ in 0..PIPELINED {
                    let (client, payload) = (client.clone(), payload.clone());
                    calls.spawn(async move { client.encrypt(Encrypt::new(APP, &payload)).await.expect("encrypts") });
                }
                assert_eq!(calls.join_all().await.len(), PIPELINED);
            });
        });
    });
}

fn decrypt(criterion: &mut Criterion, world: &World) {
    let client = world.client(2);
    let mut group = criterion.benchmark_group("server/decrypt");
    for fields in [100, 2_000] {
        let payload = document(fields);
        let sealed = world.callers().block_on(client.encrypt(Encrypt::new(APP, &payload))).expect("encrypts").payload;
        group.throughput(Throughput::Elements(fields as u64));
        group.bench_function(BenchmarkId::new("loopback_c1", fields), |b| {
            b.iter(|| world.callers().block_on(client.decrypt(Decrypt::new(APP, &sealed))).expect("decrypts"));
        });
    }
}
