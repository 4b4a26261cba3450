//! The database servers of a kill test: one, or a coordinator of Citus and three workers.

use sealwire_store_postgres::distribute;
use sealwire_testkit::{Citus, Database, Options, Postgres};
use tokio::runtime::Runtime;

use super::{MAP, options};

pub(super) enum Nodes {
    One(Postgres),
    Cluster(Citus),
}

impl Nodes {
    pub(super) fn start() -> Self {
        let citus =
            Citus::start(&Options::default(), 3).unwrap_or_else(|failure| panic!("{failure}"));
        let one =
            || Postgres::start(Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
        citus.map_or_else(|| Self::One(one()), Self::Cluster)
    }

    /// Returns the server that clients connect to.
    pub(super) fn server(&self) -> &Postgres {
        match self {
            Self::One(server) => server,
            Self::Cluster(citus) => citus.coordinator(),
        }
    }

    /// Makes a database, distributed if there is a cluster.
    pub(super) fn database(&self, runtime: &Runtime) -> Database<'_> {
        let Self::Cluster(citus) = self else {
            return self.server().database().expect("a database");
        };
        let database = citus.database().expect("a database");
        let options = options(
            database.socket_url(),
            citus.coordinator().password().to_owned(),
        );
        runtime
            .block_on(distribute(options, None, false))
            .unwrap_or_else(|error| panic!("{error}"));
        database
    }

    /// Returns the server to kill: the only one, or in turn the worker with the rows of the tests
    /// and the coordinator.
    pub(super) fn victim(&self, database: &Database<'_>, n: u64) -> &Postgres {
        let Self::Cluster(citus) = self else {
            return self.server();
        };
        if n % 2 == 1 {
            return citus.coordinator();
        }
        let app = MAP.app;
        let home = format!(
            "SELECT nodeport FROM citus_shards
            WHERE shardid = get_shard_id_for_distribution_column('sealwire.tokens', {app})"
        );
        let home = database.sql(&home).expect("it has a shard");
        citus
            .workers()
            .iter()
            .find(|worker| worker.port().to_string() == home)
            .expect("it is a worker")
    }
}
