//! The measured stores with their coalescers and throttles, and the conditions of the measurement.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use sealwire_benches::stats::median;
use sealwire_store::{
    BatchLimits, Coalescer, MemoryStore, ThrottleBounds, TokenStore, WriteThrottle,
};
use sealwire_store_embedded::{EmbeddedStore, embedded::Options};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::{Database, Postgres};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A store with one level of durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreKind {
    /// Name for `--store`.
    pub(crate) name: &'static str,
    pub(crate) store: &'static str,
    pub(crate) durability: &'static str,
    pub(crate) loses: &'static str,
}

pub(crate) const KINDS: [StoreKind; 4] = [
    StoreKind {
        name: "memory",
        store: "memory",
        durability: "none",
        loses: "everything",
    },
    StoreKind {
        name: "embedded",
        store: "embedded",
        durability: "sync",
        loses: "nothing that was acknowledged",
    },
    StoreKind {
        name: "postgres",
        store: "postgres",
        durability: "sync",
        loses: "nothing that was acknowledged",
    },
    StoreKind {
        name: "postgres-async",
        store: "postgres",
        durability: "async",
        loses: "what was acknowledged in the last 0.6 s at most (three times wal_writer_delay), call by call; \
            the engine's store does not run so",
    },
];

/// The engine's numbers of workers for each store. The memory store, which the engine does not use
/// for tokens, gets those of the embedded store.
const LANES: BatchLimits = BatchLimits {
    writers: 1,
    readers: 2,
};

/// The store asks for commits that wait for the disk, whatever the server's default. A trigger
/// takes that back within each transaction, so that the store, its statements and its connections
/// are the same.
const ASYNCHRONOUS: &str = "
    CREATE FUNCTION sealwire.asynchronous() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM set_config('synchronous_commit', 'off', true); RETURN NULL; END $$;
    CREATE TRIGGER asynchronous BEFORE INSERT ON sealwire.tokens
        FOR EACH STATEMENT EXECUTE FUNCTION sealwire.asynchronous();";

/// Commit settings of inserting transactions.
const COMMITS: &str = "
    BEGIN;
    INSERT INTO sealwire.tokens SELECT * FROM sealwire.tokens WHERE false;
    SHOW synchronous_commit;
    ROLLBACK;";

/// Bytes and number of the writes that measure the disk's sync time.
const SYNC_BYTES: usize = 4_096;
const SYNCS: usize = 50;

/// A store with its coalescer and throttle.
pub(crate) struct StorePlace {
    pub(crate) kind: StoreKind,
    pub(crate) coalescer: Arc<Coalescer>,
    pub(crate) throttle: Arc<WriteThrottle>,
    kept: Kept,
}

enum Kept {
    Memory,
    Embedded(
        Arc<EmbeddedStore>,
        #[expect(dead_code, reason = "its drop removes it")] TempDir,
    ),
    Postgres(Database<'static>),
}

/// Converts an error of another crate.
pub(crate) fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl StorePlace {
    pub(crate) async fn open(kind: StoreKind) -> io::Result<Self> {
        match kind.store {
            "memory" => Ok(Self::over(
                kind,
                Arc::new(MemoryStore::default()),
                LANES,
                Kept::Memory,
            )),
            "embedded" => {
                let folder = tempfile::tempdir()?;
                let store = Arc::new(
                    EmbeddedStore::open(folder.path(), &Options::default()).map_err(failed)?,
                );
                Ok(Self::over(
                    kind,
                    Arc::clone(&store) as _,
                    LANES,
                    Kept::Embedded(store, folder),
                ))
            }
            _ => Self::postgres(kind).await,
        }
    }

    async fn postgres(kind: StoreKind) -> io::Result<Self> {
        // A separate server per kind, so that none has to sync the unsynced writes of another.
        let settings = sealwire_testkit::Options::default()
            .set("shared_buffers", "256MB")
            .set("max_wal_size", "4GB");
        let server: &'static Postgres =
            Box::leak(Box::new(Postgres::start(settings).map_err(failed)?));
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
        let store = Arc::new(PostgresStore::connect(options).await.map_err(failed)?);
        if kind.durability == "async" {
            database.sql(ASYNCHRONOUS).map_err(failed)?;
        }
        let (commits, asked) = (
            database.sql(COMMITS).map_err(failed)?,
            if kind.durability == "async" {
                "off"
            } else {
                "on"
            },
        );
        if commits.trim() != asked {
            return Err(failed(format!(
                "synchronous_commit is {commits} and should be {asked}"
            )));
        }
        Ok(Self::over(kind, store, lanes, Kept::Postgres(database)))
    }

    fn over(kind: StoreKind, store: Arc<dyn TokenStore>, lanes: BatchLimits, kept: Kept) -> Self {
        let coalescer = Arc::new(Coalescer::new(store, lanes, Arc::new(())));
        let throttle = Arc::new(WriteThrottle::new(ThrottleBounds::new(lanes)));
        Self {
            kind,
            coalescer,
            throttle,
            kept,
        }
    }

    /// Flushes pending writes to disk, so that the next measurement does not pay for them.
    pub(crate) fn settle(&self) -> io::Result<()> {
        match &self.kept {
            Kept::Postgres(database) => database.sql("CHECKPOINT").map(drop).map_err(failed),
            Kept::Memory | Kept::Embedded(..) => Ok(()),
        }
    }

    pub(crate) async fn close(&self) {
        self.coalescer.close().await;
        if let Kept::Embedded(store, _) = &self.kept {
            store.close().await;
        }
    }
}

/// Returns the machine, its disk, and the versions and worker counts of the stores.
pub(crate) fn conditions(places: &[StorePlace]) -> io::Result<Map<String, Value>> {
    let mut conditions = Map::new();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("", |(_, name)| name.trim());
    let system = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    conditions.insert(
        "machine".into(),
        json!(format!("{cpu}, {cores} cores, Linux {}", system.trim())),
    );
    let sync = format!("{:.0} us for 4 KiB appended and synced", sync_us()?);
    conditions.insert("disk".into(), sync.into());
    let server = places.iter().find_map(|place| match &place.kept {
        Kept::Postgres(database) => Some(database),
        Kept::Memory | Kept::Embedded(..) => None,
    });
    if let Some(database) = server {
        let version = database.sql("SHOW server_version").map_err(failed)?;
        let said = format!("{version}, thrown away afterwards, over its socket, fsync on");
        conditions.insert("PostgreSQL".into(), said.into());
    }
    Ok(conditions)
}

/// Measures the sync time of the disk with temporary files, as a median.
fn sync_us() -> io::Result<f64> {
    let folder = tempfile::tempdir()?;
    let mut file = File::create(folder.path().join("sync"))?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let since = Instant::now();
        file.write_all(&[0xa5; SYNC_BYTES])?;
        file.sync_data()?;
        times.push(since.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}
