//! A coordinator of Citus and its workers, each a [`Postgres`] on this machine.

use std::env;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::thread;

use super::binaries::Binaries;
use super::{Database, Failure, Options, Postgres};

/// Environment variable with the path of the `pg_config` of a server that has the extension.
pub const CITUS_VARIABLE: &str = "SEALWIRE_TEST_CITUS";

/// A coordinator and workers, removed when dropped.
#[derive(Debug)]
pub struct Citus {
    coordinator: Postgres,
    workers: Vec<Postgres>,
}

impl Citus {
    /// Starts a coordinator and workers. Returns `None`, and prints a message, if
    /// `SEALWIRE_TEST_CITUS` is not set.
    ///
    /// # Errors
    /// Any [`Failure`], with the server's output.
    pub fn start(options: &Options, workers: usize) -> Result<Option<Self>, Failure> {
        let Some(pg_config) = env::var_os(CITUS_VARIABLE) else {
            say_missing();
            return Ok(None);
        };
        let binaries = Binaries::of_citus(&PathBuf::from(pg_config))?;
        // Moving shards needs logical replication.
        let options = options.clone().set("wal_level", "logical");
        let start = || Postgres::start_from(binaries.clone(), options.clone());
        let coordinator = start()?;
        let workers = (0..workers).map(|_| start()).collect::<Result<_, _>>()?;
        Ok(Some(Self {
            coordinator,
            workers,
        }))
    }

    /// Returns a cluster with three workers that all tests of a program share, as
    /// [`Postgres::shared`] returns a server. `None` without Citus.
    ///
    /// # Panics
    /// If a server cannot be started.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: LazyLock<Option<Citus>> = LazyLock::new(|| {
            let options = Options::default().set("max_connections", "400");
            Citus::start(&options, 3).unwrap_or_else(|failure| panic!("{failure}"))
        });
        SHARED.as_ref()
    }

    /// Returns the server that clients connect to.
    #[must_use]
    pub fn coordinator(&self) -> &Postgres {
        &self.coordinator
    }

    /// Returns the servers with shards.
    #[must_use]
    pub fn workers(&self) -> &[Postgres] {
        &self.workers
    }

    /// Makes an empty database that the role `sealwire` owns on every node, with the extension. The
    /// coordinator knows the workers.
    ///
    /// # Errors
    /// [`Failure::Program`].
    pub fn database(&self) -> Result<Database<'_>, Failure> {
        let database = self.coordinator.database()?;
        let name = database.name();
        let add = |worker: &Postgres| {
            worker.sql(
                "postgres",
                &format!("CREATE DATABASE {name} OWNER {}", super::OWNER),
            )?;
            worker.sql(name, "CREATE EXTENSION citus").map(drop)
        };
        thread::scope(|scope| {
            let adding: Vec<_> = self
                .workers
                .iter()
                .map(|worker| scope.spawn(move || add(worker)))
                .collect();
            database.sql("CREATE EXTENSION citus")?;
            adding.into_iter().try_for_each(|added| {
                added
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        let host = |server: &Postgres| format!("('127.0.0.1', {})", server.port());
        database.sql(&format!(
            "SELECT citus_set_coordinator_host{}",
            host(&self.coordinator)
        ))?;
        for worker in &self.workers {
            database.sql(&format!("SELECT citus_add_node{}", host(worker)))?;
        }
        Ok(database)
    }
}

#[allow(clippy::print_stderr, reason = "shown with the output of a test")]
fn say_missing() {
    eprintln!("{CITUS_VARIABLE} is not set, so this test runs on one server without Citus");
}
