//! `sealwire-store`: writes and reads of token maps per store, compared with the underlying
//! database alone.
//!
//! Every write is synced before it returns, except in `memory`, which is the floor of the rules
//! alone. `postgres` is a throw-away server over its socket, one call at a time. `fjall` is the
//! embedded store's database: the same bytes in one synced batch, and looked up, on the caller's
//! thread. Sizes are rows of one call; a store holds a million before (`SEALWIRE_BENCH_ROWS`; a
//! smoke run: a thousand).

use std::cell::{Cell, LazyCell, OnceCell};
use std::path::Path;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _};
use sealwire_benches::is_smoke_run;
use sealwire_store::{Fingerprint, Group, MapId, MemoryStore, Row, TokenId, TokenStore, Written};
use sealwire_store_embedded::EmbeddedStore;
use sealwire_store_embedded::embedded::{Options, row};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::Postgres;
use tokio::runtime::{Builder, Runtime};

const MAP: MapId = MapId {
    app: 1,
    collection: 1,
};
const WRITES: [u64; 4] = [1, 10, 100, 500];
const READS: [u64; 2] = [1, 100];
const HITS_PERCENT: [u64; 3] = [0, 50, 100];
/// Rows of a deterministic write.
const DETERMINISTIC: u64 = 100;
/// A sealed row with a 16-byte value and a token.
const SEALED_BYTES: usize = 100;

pub(crate) fn benches(criterion: &mut Criterion) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("starts");
    let rows =
        std::env::var("SEALWIRE_BENCH_ROWS").map(|rows| rows.parse().expect("a number of rows"));
    let rows = if is_smoke_run() {
        1_000
    } else {
        rows.unwrap_or(1_000_000)
    };

    measure(criterion, &runtime, rows, "memory", MemoryStore::default);
    let folder = tempfile::tempdir().expect("makes one");
    let embedded = || EmbeddedStore::open(folder.path(), &Options::default()).expect("opens");
    if let Some(embedded) = measure(criterion, &runtime, rows, "embedded", embedded) {
        runtime.block_on(embedded.close());
    }
    let database = OnceCell::new();
    measure(criterion, &runtime, rows, "postgres", || {
        let server = Postgres::shared();
        let database = database.get_or_init(|| server.database().expect("starts"));
        let options = PostgresOptions::new(database.socket_url());
        let options = PostgresOptions {
            password: Some(server.password().to_owned()),
            ..options
        };
        runtime
            .block_on(PostgresStore::connect(options))
            .expect("connects")
    });
    raw(criterion, rows);
}

/// Makes unique rows.
#[derive(Default)]
struct Rows {
    next: Cell<u64>,
}

impl Rows {
    fn row(number: u64, has_fingerprint: bool) -> Row {
        // Spreads the keys evenly, like keyed hashes. Odd factors keep them distinct.
        let spread = |factor: u128| u128::from(number).wrapping_mul(factor).to_be_bytes();
        Row {
            id: TokenId(spread(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
            fingerprint: has_fingerprint
                .then(|| Fingerprint(spread(0xc2b2_ae3d_27d4_eb4f_1656_67b1_9e37_79f9))),
            sealed: vec![0xa5; SEALED_BYTES].into(),
            tags: Vec::new(),
            expires: None,
            created: 1,
            archived: None,
            subject: None,
        }
    }

    fn fresh(&self, count: u64, has_fingerprint: bool) -> Vec<Row> {
        let first = self.next.get();
        self.next.set(first + count);
        (first..first + count)
            .map(|number| Self::row(number, has_fingerprint))
            .collect()
    }

    /// Writes rows in pages until there are `count`.
    fn fill(&self, count: u64, write: impl Fn(Vec<Row>)) {
        while self.next.get() < count {
            write(self.fresh(1_000.min(count), true));
        }
    }
}

/// Makes one group per row, as in a group commit where each row is from another request.
fn groups(rows: Vec<Row>) -> Vec<Group> {
    rows.into_iter()
        .map(|row| Group {
            map: MAP,
            rows: vec![row],
        })
        .collect()
}

/// Benches a store. The first bench that passes the filter opens and fills it. Returns the store if
/// it was opened.
fn measure<S: TokenStore>(
    criterion: &mut Criterion,
    runtime: &Runtime,
    count: u64,
    name: &str,
    open: impl Fn() -> S,
) -> Option<S> {
    let (filled, rows) = (OnceCell::new(), Rows::default());
    let store_of = || {
        filled.get_or_init(|| {
            let store = open();
            rows.fill(count, |page| {
                let page: Vec<_> = page.into_iter().map(|row| (MAP, row)).collect();
                runtime.block_on(store.put(&page)).expect("writes");
            });
            store
        })
    };
    let write = |store: &S, groups| {
        let written = runtime.block_on(store.write(2, groups));
        assert!(
            written
                .iter()
                .all(|written| matches!(written, Ok(Written::Done(_))))
        );
    };
    let mut group = criterion.benchmark_group("store/write");
    for size in WRITES {
        group
            .throughput(Throughput::Elements(size))
            .bench_function(id(name, size), |b| {
                let store = store_of();
                b.iter_batched(
                    || groups(rows.fresh(size, false)),
                    |groups| write(store, groups),
                    BatchSize::SmallInput,
                );
            });
    }
    group.finish();

    let mut group = criterion.benchmark_group("store/get");
    for size in READS {
        group
            .throughput(Throughput::Elements(size))
            .bench_function(id(name, size), |b| {
                let (store, mut at) = (store_of(), 0);
                b.iter_batched(
                    || keys(&mut at, size, count),
                    |keys| {
                        let found = runtime.block_on(store.get(2, &keys)).expect("reads");
                        assert!(found.iter().all(Option::is_some));
                    },
                    BatchSize::SmallInput,
                );
            });
    }
    group.finish();

    let mut group = criterion.benchmark_group(format!("store/deterministic/{DETERMINISTIC}"));
    for percent in HITS_PERCENT {
        group
            .throughput(Throughput::Elements(DETERMINISTIC))
            .bench_function(id(name, format_args!("hits{percent}")), |b| {
                let (store, mut known) = (store_of(), 0);
                b.iter_batched(
                    || {
                        let mut made = rows.fresh(DETERMINISTIC, true);
                        for row in made
                            .iter_mut()
                            .take((DETERMINISTIC * percent / 100) as usize)
                        {
                            known = (known + 7_919) % count;
                            row.fingerprint = Rows::row(known, true).fingerprint;
                        }
                        groups(made)
                    },
                    |groups| write(store, groups),
                    BatchSize::SmallInput,
                );
            });
    }
    group.finish();
    filled.into_inner()
}

fn id(name: &str, size: impl std::fmt::Display) -> BenchmarkId {
    BenchmarkId::new(name, size)
}

/// Returns existing rows from all over the map.
fn keys(at: &mut u64, size: u64, count: u64) -> Vec<(MapId, TokenId)> {
    let mut key = || {
        *at = (*at + 7_919) % count;
        (MAP, Rows::row(*at, true).id)
    };
    (0..size).map(|_| key()).collect()
}

/// The embedded store's database, used directly.
struct Raw {
    database: fjall::Database,
    rows: Keyspace,
    fingerprints: Keyspace,
}

impl Raw {
    fn open(folder: &Path) -> Self {
        let options = Options::default();
        let database = fjall::Database::builder(folder)
            .cache_size(options.cache_bytes)
            .open()
            .expect("opens");
        let keyspace = |name| {
            let made =
                || KeyspaceCreateOptions::default().max_memtable_size(options.write_buffer_bytes);
            database.keyspace(name, made).expect("opens")
        };
        Self {
            rows: keyspace("rows"),
            fingerprints: keyspace("fingerprints"),
            database: database.clone(),
        }
    }

    fn key(last: &[u8; 16]) -> Vec<u8> {
        [
            &MAP.app.to_be_bytes()[..],
            &MAP.collection.to_be_bytes(),
            last,
        ]
        .concat()
    }

    fn write(&self, rows: &[Row]) {
        let mut batch = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for row in rows {
            batch.insert(&self.rows, Self::key(&row.id.0), row::encode(row));
            if let Some(fingerprint) = row.fingerprint {
                batch.insert(&self.fingerprints, Self::key(&fingerprint.0), row.id.0);
            }
        }
        batch.commit().expect("writes");
    }
}

fn raw(criterion: &mut Criterion, count: u64) {
    let folder = tempfile::tempdir().expect("makes one");
    let rows = Rows::default();
    let raw = LazyCell::new(|| {
        let raw = Raw::open(folder.path());
        rows.fill(count, |page| raw.write(&page));
        raw
    });
    let mut group = criterion.benchmark_group("store/write");
    for size in WRITES {
        group
            .throughput(Throughput::Elements(size))
            .bench_function(id("fjall", size), |b| {
                let raw = &*raw;
                b.iter_batched(
                    || rows.fresh(size, false),
                    |rows| raw.write(&rows),
                    BatchSize::SmallInput,
                );
            });
    }
    group.finish();
    let mut group = criterion.benchmark_group("store/get");
    for size in READS {
        group
            .throughput(Throughput::Elements(size))
            .bench_function(id("fjall", size), |b| {
                let (raw, mut at) = (&*raw, 0);
                b.iter_batched(
                    || keys(&mut at, size, count),
                    |keys| {
                        let at = raw.database.snapshot();
                        let is_there = |(_, id): &(MapId, TokenId)| {
                            at.get(&raw.rows, Raw::key(&id.0)).expect("reads").is_some()
                        };
                        assert!(keys.iter().all(is_there));
                    },
                    BatchSize::SmallInput,
                );
            });
    }
    group.finish();
}
