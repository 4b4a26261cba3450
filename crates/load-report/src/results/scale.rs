//! Results of loads that several engines share.

use serde::{Deserialize, Serialize};

use super::{Machine, Times};

/// Loads of 1, 2 and more engines with one state, each through the endpoint list of clients or
/// through a balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleFigures {
    /// [`super::SCALE`].
    pub schema: String,
    /// Name and version of the measuring tool.
    pub tool: String,
    /// Start time, RFC 3339 in UTC.
    pub started: String,
    /// Version of the engines.
    pub version: String,
    /// The machine of the clients.
    pub machine: Machine,
    /// True if the engines ran on the machine of the clients.
    pub same_machine: bool,
    /// Client processes that the load stands for: each has its own pool of connections.
    pub clients: u32,
    /// Requests that each client has in flight at all times.
    pub in_flight: u32,
    /// Connections of a client to each endpoint at most.
    pub connections: u32,
    /// Fields of a document. Requests for tokens have one value.
    pub fields: u32,
    /// Bytes of a field.
    pub field_bytes: u32,
    /// Length of each measurement window, in seconds.
    pub duration_s: f64,
    /// Use of engines and database without requests.
    pub idle: IdleUse,
    /// The table of tokens after the loads; `None` without a database.
    pub table: Option<TokenTable>,
    /// The log right after a checkpoint; `None` without a database.
    pub checkpoint: Option<CheckpointUse>,
    /// Kills of an engine under load, per way of the requests.
    pub restarts: Vec<RestartFigures>,
    /// One entry per round, load, way and number of engines, in the order of measurement.
    pub points: Vec<ScalePoint>,
}

/// Way of requests to engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Routing {
    /// Clients know every engine and choose one per request.
    Endpoints,
    /// Clients know the address of a TCP balancer, which chooses an engine per connection.
    Balancer,
}

impl Routing {
    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoint list",
            Self::Balancer => "TCP balancer",
        }
    }
}

/// Kind of the requests of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleLoad {
    /// Encrypts documents.
    Encrypt,
    /// Decrypts documents.
    Decrypt,
    /// Makes tokens of new values, one per request.
    Tokenize,
    /// Looks tokens up, one per request.
    Detokenize,
}

impl ScaleLoad {
    /// All loads. A look-up needs tokens that an earlier load made.
    pub const ALL: [Self; 4] = [
        Self::Encrypt,
        Self::Decrypt,
        Self::Tokenize,
        Self::Detokenize,
    ];

    /// Returns the name of its method.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
        }
    }

    /// Returns true if its requests use the database.
    pub const fn uses_database(self) -> bool {
        matches!(self, Self::Tokenize | Self::Detokenize)
    }
}

/// One measurement. Times are those of the clients, CPU times those of whole processes in the
/// measurement window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalePoint {
    /// Number of the round, from 1.
    pub round: u32,
    /// Kind of its requests.
    pub load: ScaleLoad,
    /// Way of its requests.
    pub way: Routing,
    /// Number of engines under load.
    pub engines: u32,
    /// Requests that succeeded, as the engines count them.
    pub ok: u64,
    /// Rate of `ok`.
    pub ok_per_s: f64,
    /// Requests without a result. A point with errors is no measurement of cost.
    pub errors: u64,
    /// Latency of requests with a result.
    pub latency_us: Times,
    /// Share of each engine in the requests, in the order of the engines.
    pub shares: Vec<f64>,
    /// CPU time of the engines under load per request, in microseconds.
    pub engine_cpu_us: f64,
    /// CPU time of the clients per request, in microseconds.
    pub client_cpu_us: f64,
    /// Bytes that engines received and sent per request, without TLS.
    pub bytes: f64,
    /// Rows or keys per batch of the token store; `None` without requests for tokens.
    pub batch_items: Option<f64>,
    /// Use of the database; `None` without a database or without requests for tokens.
    pub database: Option<DatabaseUse>,
}

impl ScalePoint {
    /// Returns Jain's index of the shares: 1 if all engines have the same, 1/n if one has all.
    pub fn fairness(&self) -> f64 {
        let (sum, squares) = self
            .shares
            .iter()
            .fold((0.0, 0.0), |(sum, squares), share| {
                (sum + share, squares + share * share)
            });
        if squares > 0.0 {
            sum * sum / (self.shares.len() as f64 * squares)
        } else {
            1.0
        }
    }
}

/// Use of the database in a measurement window, per request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatabaseUse {
    /// CPU time of all its processes, in microseconds; `None` if it is on another machine.
    pub cpu_us: Option<f64>,
    /// Bytes of write-ahead log.
    pub wal_bytes: f64,
    /// Pages that the log has as a whole, because they changed for the first time since a
    /// checkpoint.
    pub full_pages: f64,
}

/// Write-ahead log of new tokens right after a checkpoint, when the first change of each page is
/// logged as a whole page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointUse {
    /// New tokens since the checkpoint.
    pub tokens: u64,
    /// Bytes of write-ahead log per token.
    pub wal_bytes: f64,
    /// Pages per token that the log has as a whole.
    pub full_pages: f64,
    /// Rows of the table at the checkpoint.
    pub rows: u64,
}

/// Requests of clients that stayed connected, while an engine was killed and started again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestartFigures {
    /// Way of the requests.
    pub way: Routing,
    /// Number of engines, the killed one included.
    pub engines: u32,
    /// Time from the kill until the engine served metrics again, in seconds.
    pub away_s: f64,
    /// Time from then on until the share was measured, in seconds.
    pub settle_s: f64,
    /// Requests of the restarted engine in the measurement window, over an equal share.
    pub share: f64,
    /// Requests that got a result from the kill on.
    pub ok: u64,
    /// Requests that failed in spite of retries.
    pub errors: u64,
}

/// Use without requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdleUse {
    /// Number of engines.
    pub engines: u32,
    /// CPU time per engine and second, in microseconds.
    pub engine_cpu_us_per_s: f64,
    /// Resident memory of an engine, in bytes.
    pub engine_bytes: f64,
    /// Database connections of an engine, with the one that waits for notifications.
    pub database_connections: f64,
    /// CPU time of the database per engine and second, in microseconds; `None` if it is on another
    /// machine.
    pub database_cpu_us_per_s: Option<f64>,
}

/// Size of the table of tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenTable {
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the rows.
    pub heap_bytes: u64,
    /// Bytes of its indexes whose keys are random: each row has an entry in each.
    pub random_index_bytes: Vec<u64>,
    /// The server's `max_connections`.
    pub connections_max: u32,
}
