//! `sealwire-access`: an authorization decision from the cache, compared with a decision that
//! queries PostgreSQL each time.
//!
//! `hit` is a look at the cache and the clock; `decide` is that and the decision; `without` reads
//! the principal's record from a throw-away server over its socket, one call at a time, and
//! decides. The ratio is printed at the end: how many hits there are in one round trip.

#![allow(clippy::print_stdout, reason = "it prints a ratio")]

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use criterion::{BenchmarkId, Criterion};
use sealwire_access::{
    AuthorizationRequest, Binding, Cache, CacheBounds, Grant, Grants, LoadError, Loader, Operation,
    Principal, Role, principal_key,
};
use sealwire_benches::is_smoke_run;
use sealwire_store::{ControlStore, Snapshot};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::{Database, Postgres};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

const BOUNDS: CacheBounds = CacheBounds {
    entries: 20_000,
    time: Duration::from_secs(86_400),
    negative_time: Duration::from_secs(86_400),
    stale: Duration::ZERO,
    loads: 16,
    waiting: 20_000,
    load_time: Duration::from_secs(30),
};

/// A principal's roles are one record; the grants of its role are in memory, as in an engine.
#[derive(Clone)]
struct Records {
    store: Arc<PostgresStore>,
    role: Arc<Role>,
}

impl Loader<Principal, Grants> for Records {
    async fn load(&self, principal: Principal) -> Result<Option<Grants>, LoadError> {
        let key = principal_key(&principal);
        let (_, record) = self.store.read(&key).await.map_err(LoadError::failed)?;
        let Some(record) = record else {
            return Ok(None);
        };
        let binding = Binding::from_record(&key, &record).map_err(LoadError::failed)?;
        let roles = binding
            .roles
            .iter()
            .filter(|role| *role == self.role.name());
        Ok(Some(Grants::of(roles.map(|_| Arc::clone(&self.role)))))
    }
}

fn name(number: usize) -> Principal {
    Principal::from_text(&format!(
        "spiffe://example.org/relays/eu-1/relay-{number:05}"
    ))
    .expect("a SPIFFE ID")
}

/// A store with a record of each principal, a cache that holds one of them, and a cache that holds
/// all.
struct Setting {
    one: Arc<Cache<Principal, Grants, Records>>,
    all: Arc<Cache<Principal, Grants, Records>>,
    records: Records,
    names: Vec<Principal>,
    /// Dropped after the store, which has connections to it.
    _database: Database<'static>,
    runtime: Runtime,
}

impl Setting {
    /// Starts PostgreSQL, writes the records and loads the caches.
    fn start(principals: usize) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("starts");
        let server = Postgres::shared();
        let database = server.database().expect("starts");
        let options = PostgresOptions::new(database.socket_url());
        let options = PostgresOptions {
            password: Some(server.password().to_owned()),
            ..options
        };
        let store = Arc::new(
            runtime
                .block_on(PostgresStore::connect(options))
                .expect("connects"),
        );

        let grant = Grant::from_text("encrypt,decrypt,tokenize,detokenize apps=shop,web,mobile")
            .expect("a grant");
        let role = Arc::new(Role::new("relay", vec![grant]).expect("a role"));
        let names: Vec<Principal> = (0..principals).map(name).collect();
        let bound = |principal: &Principal| Binding {
            principal: principal.clone(),
            roles: vec![role.name().clone()],
        };
        let records = names
            .iter()
            .map(|principal| (principal_key(principal), bound(principal).to_record()))
            .collect();
        runtime
            .block_on(store.replace(
                0,
                &Snapshot {
                    generation: 1,
                    records,
                },
            ))
            .expect("writes");
        let records = Records { store, role };

        let one = Arc::new(Cache::new(records.clone(), BOUNDS));
        let all = Arc::new(Cache::new(records.clone(), BOUNDS));
        runtime.block_on(async {
            one.get(&names[0]).await.expect("loads").expect("is bound");
            for name in &names {
                all.get(name).await.expect("loads").expect("is bound");
            }
        });
        Self {
            one,
            all,
            records,
            names,
            _database: database,
            runtime,
        }
    }

    fn decide(&self, at: usize) -> Operation {
        let grants = self
            .all
            .hit(&self.names[at], Instant::now())
            .expect("a hit")
            .expect("is bound");
        grants
            .decide(AuthorizationRequest::new(
                Operation::Encrypt,
                Some("shop"),
                None,
            ))
            .expect("is granted")
            .operation()
    }

    fn decide_without_cache(&self, at: usize) -> Operation {
        let load = self.records.load(self.names[at].clone());
        let grants = self
            .runtime
            .block_on(load)
            .expect("reads")
            .expect("is bound");
        grants
            .decide(AuthorizationRequest::new(
                Operation::Encrypt,
                Some("shop"),
                None,
            ))
            .expect("is granted")
            .operation()
    }
}

pub(crate) fn benches(criterion: &mut Criterion) {
    let principals = if is_smoke_run() { 100 } else { 10_000 };
    let setting = OnceCell::new();
    let setting_of = || setting.get_or_init(|| Setting::start(principals));
    // A stride that visits every name, so that no cache line is warm by chance.
    let next = |at: usize, of: usize| (at + 7_919) % of;

    let mut group = criterion.benchmark_group("access/hit");
    for of in [1, principals] {
        let mut at = 0;
        group.bench_function(BenchmarkId::from_parameter(of), |b| {
            let setting = setting_of();
            let cache = if of == 1 { &setting.one } else { &setting.all };
            b.iter(|| {
                at = next(at, of);
                cache
                    .hit(&setting.names[at], Instant::now())
                    .expect("a hit")
                    .expect("is bound")
            });
        });
    }
    group.finish();
    let mut at = 0;
    criterion.bench_function("access/decide/cached", |b| {
        let setting = setting_of();
        b.iter(|| {
            at = next(at, principals);
            setting.decide(at)
        });
    });
    criterion.bench_function("access/decide/without", |b| {
        let setting = setting_of();
        b.iter(|| {
            at = next(at, principals);
            setting.decide_without_cache(at)
        });
    });
    if let Some(setting) = setting.get() {
        ratio(principals, setting);
    }
}

/// Alternates decisions with and without the cache, and prints the ratio. A smoke run prints
/// nothing.
fn ratio(principals: usize, setting: &Setting) {
    let rounds = if is_smoke_run() { 10 } else { 2_000 };
    let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
    for round in 0..rounds {
        let at = |n: usize| (round * 7_919 + n * 104_729) % principals;
        let begun = Clock::now();
        for n in 0..100 {
            std::hint::black_box(setting.decide(at(n)));
        }
        with += begun.elapsed() / 100;
        let begun = Clock::now();
        std::hint::black_box(setting.decide_without_cache(at(0)));
        without += begun.elapsed();
    }
    if is_smoke_run() {
        return;
    }
    let (with, without) = (with / rounds as u32, without / rounds as u32);
    let ratio = without.as_secs_f64() / with.as_secs_f64();
    println!(
        "a decision: {with:?} from the cache, {without:?} with a look-up in PostgreSQL: 1 to {ratio:.0}"
    );
}
