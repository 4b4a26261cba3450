//! A store with its rows, and its coalescer and throttle.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealwire_store::{
    BatchLimits, Coalescer, Fingerprint, MapId, Row, ThrottleBounds, TokenId, TokenStore,
    WriteThrottle,
};
use sealwire_store_embedded::{EmbeddedStore, embedded::Options};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::{Database, Postgres};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::tokens::Window;
use crate::tokens::raw::Raw;

pub(crate) const MAP: MapId = MapId {
    app: 1,
    collection: 1,
};
/// A sealed row with a 16-byte value and a token.
const SEALED_BYTES: usize = 100;
/// Rows per write, and concurrent writes, when a store is filled.
const FILL_ROWS: u64 = 500;
const FILL_TASKS: u64 = 2;

pub(crate) struct Place {
    pub(crate) coalescer: Coalescer,
    pub(crate) throttle: WriteThrottle,
    store: Arc<dyn TokenStore>,
    raw: Raw,
    there: AtomicU64,
    next: AtomicU64,
    kept: Kept,
}

enum Kept {
    Postgres(Database<'static>),
    Embedded(
        Arc<EmbeddedStore>,
        #[expect(dead_code, reason = "its drop removes it")] TempDir,
    ),
}

/// Converts an error of another crate.
pub(crate) fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Place {
    pub(crate) async fn open(name: &str) -> io::Result<Self> {
        match name {
            "postgres" => {
                let server: &'static Postgres =
                    Box::leak(Box::new(Postgres::start(settings()).map_err(failed)?));
                let database = server.database().map_err(failed)?;
                let password = Some(server.password().to_owned());
                let options = PostgresOptions {
                    password,
                    ..PostgresOptions::new(database.socket_url())
                };
                let lanes = BatchLimits {
                    writers: options.writers,
                    readers: options.readers,
                };
                let connections = options.writers;
                let store = Arc::new(PostgresStore::connect(options).await.map_err(failed)?);
                let raw =
                    Raw::postgres(&database.socket_url(), server.password(), connections).await?;
                Ok(Self::over(store, lanes, raw, Kept::Postgres(database)))
            }
            "embedded" => {
                let folder = tempfile::tempdir()?;
                let store = Arc::new(
                    EmbeddedStore::open(folder.path(), &Options::default()).map_err(failed)?,
                );
                let raw = Raw::Store(Arc::clone(&store) as Arc<dyn TokenStore>);
                let lanes = BatchLimits {
                    writers: 1,
                    readers: 2,
                };
                Ok(Self::over(
                    Arc::clone(&store) as _,
                    lanes,
                    raw,
                    Kept::Embedded(store, folder),
                ))
            }
            other => Err(failed(format!(
                "there is no store {other}; --help tells more"
            ))),
        }
    }

    fn over(store: Arc<dyn TokenStore>, lanes: BatchLimits, raw: Raw, kept: Kept) -> Self {
        let coalescer = Coalescer::new(Arc::clone(&store), lanes, Arc::new(()));
        let throttle = WriteThrottle::new(ThrottleBounds::new(lanes));
        Self {
            coalescer,
            throttle,
            store,
            raw,
            there: AtomicU64::new(0),
            next: AtomicU64::new(0),
            kept,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.kept {
            Kept::Postgres(_) => "postgres",
            Kept::Embedded(..) => "embedded",
        }
    }

    /// Returns the number of rows that surely exist. Rows with lower numbers exist.
    pub(crate) fn there(&self) -> u64 {
        self.there.load(Ordering::Relaxed)
    }

    /// Writes rows until there are `rows`.
    pub(crate) async fn fill(&self, rows: u64) -> io::Result<()> {
        let from = self.next.load(Ordering::Relaxed);
        fill(&self.store, from..rows).await?;
        // Measured writes can have made more rows than requested. All of those exist.
        let there = rows.max(from);
        self.there.store(there, Ordering::Relaxed);
        self.next.store(there, Ordering::Relaxed);
        if let Kept::Postgres(database) = &self.kept {
            for sql in ["VACUUM ANALYZE sealwire.tokens", "CHECKPOINT"] {
                database.sql(sql).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Makes `count` unique rows.
    pub(crate) fn fresh(&self, count: u64, printed: bool) -> Vec<Row> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first..first + count)
            .map(|number| row(number, printed))
            .collect()
    }

    pub(crate) async fn raw_write(&self, printed: bool, window: Duration) -> io::Result<Window> {
        self.raw
            .write(|count| self.fresh(count, printed), window)
            .await
    }

    pub(crate) async fn raw_look_up(&self, window: Duration) -> io::Result<Window> {
        self.raw.look_up(self.there(), window).await
    }

    pub(crate) async fn close(&self) {
        self.coalescer.close().await;
        if let Kept::Embedded(store, _) = &self.kept {
            store.close().await;
        }
    }
}

/// Writes the rows with these numbers.
async fn fill(store: &Arc<dyn TokenStore>, numbers: Range<u64>) -> io::Result<()> {
    let (next, end) = (Arc::new(AtomicU64::new(numbers.start)), numbers.end);
    let mut tasks = JoinSet::new();
    for _ in 0..FILL_TASKS {
        let (store, next) = (Arc::clone(store), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let first = next.fetch_add(FILL_ROWS, Ordering::Relaxed);
                if first >= end {
                    return Ok(());
                }
                let page: Vec<_> = (first..end.min(first + FILL_ROWS))
                    .map(|n| (MAP, row(n, true)))
                    .collect();
                store.put(&page).await.map_err(failed)?;
            }
        });
    }
    tasks.join_all().await.into_iter().collect()
}

/// Returns settings that an operator would choose for a table of this size. Full durability of
/// commits is on.
fn settings() -> sealwire_testkit::Options {
    sealwire_testkit::Options::default()
        .set("shared_buffers", "512MB")
        .set("max_wal_size", "8GB")
}

pub(crate) fn id(number: u64) -> TokenId {
    TokenId(spread(number, 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// Spreads the numbers evenly over the keys, like keyed hashes. Odd factors keep them distinct.
fn spread(number: u64, factor: u128) -> [u8; 16] {
    u128::from(number).wrapping_mul(factor).to_be_bytes()
}

fn row(number: u64, printed: bool) -> Row {
    Row {
        id: id(number),
        fingerprint: printed
            .then(|| Fingerprint(spread(number, 0xc2b2_ae3d_27d4_eb4f_1656_67b1_9e37_79f9))),
        sealed: vec![0xa5; SEALED_BYTES].into(),
        tags: Vec::new(),
        expires: None,
        created: 1,
        archived: None,
        subject: None,
    }
}
