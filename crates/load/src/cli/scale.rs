//! The `scale` command: loads 1, 2 and more engines with one state.

use std::path::PathBuf;
use std::time::Duration;

use super::Failure;
use super::credentials::CredentialArgs;
use super::run::OutArgs;
use crate::fault::Fault;
use crate::results::{ScaleLoad, ScalePoint};
use crate::scale::{self, DatabaseAccess, ScaleSettings};
use crate::table;
use sealwire_service::output::errln;

/// Examples at the end of `--help`.
const EXAMPLES: &str = "\
Examples:
  Start PostgreSQL, four engines and HAProxy, and load 1, 2 and 4 of the engines, all in one command:
    loadtest/run scale

  Load two engines that run already, one alone and both, without a balancer:
    sealwire-load scale --connect one:7443,two:7443 --admin one:7444,two:7444 --counts 1,2 --folder pki \\
      --server-name engine --loads encrypt,decrypt

`sealwire-load capacity` calculates from the results what 100 engines with 1,000,000,000 tokens need, and what is at its
limit first. The collection must give tokens of the format `opaque`.

Exit status 0 means: every response was right, and no request failed.";

/// Arguments of `scale`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct ScaleArgs {
    /// Numbers of engines to load. A number takes the first engines of --connect
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    counts: Vec<usize>,
    /// Loads, in this order: `encrypt` and `decrypt` of documents, `tokenize` of one new value per
    /// request, `detokenize` of one token that `tokenize` made
    #[arg(long, value_name = "LOAD", value_delimiter = ',', default_value = "encrypt,decrypt,tokenize,detokenize", value_parser = load)]
    loads: Vec<ScaleLoad>,
    /// Client processes that the load stands for, each with its own pool of connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Requests that each client has in flight at all times
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    in_flight: u32,
    /// Times that everything is measured. Tables show medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Length of each measurement window
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    seconds: f64,
    /// Length of the warm-up before each window
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5)]
    warm_up: f64,
    /// At the end, kill the process of the last engine (SIGKILL), and measure its share of the
    /// requests when it is back. It must be on this machine, and something else must start it again
    #[arg(long)]
    restart: bool,
    /// Fields of a document
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    fields: u32,
    /// Bytes of a field
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    field_bytes: u32,
    /// Tokens that are made before the loads
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000_000))]
    rows: u32,
    /// App whose keys seal the fields
    #[arg(long, value_name = "NAME", default_value = "demo")]
    app: String,
    /// Collection that stores the tokens
    #[arg(long, value_name = "NAME", default_value = "vault")]
    collection: String,
    /// Seed of the values, which must have no tokens yet [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    out: OutArgs,
    #[command(flatten)]
    engines: EngineArgs,
}

/// Addresses of engines, balancers and database, and the client's credentials.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
struct EngineArgs {
    /// Addresses of the engines, which share one state
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    connect: Vec<String>,
    /// Addresses of the engines' admin listeners, which serve metrics, in the same order
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    admin: Vec<String>,
    /// Addresses of TCP balancers, one for each number of --counts, in front of the first engines
    /// of --connect [default: only the endpoint list is measured]
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    balancers: Vec<String>,
    /// URL of the engines' PostgreSQL on this machine, for its CPU time and write-ahead log. The
    /// user must be allowed to make a checkpoint
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// File with the password of the database
    #[arg(long, value_name = "FILE")]
    database_password_file: Option<PathBuf>,
    /// Connections of a client to each endpoint
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    connections: u32,
    /// Age at which clients replace a connection, up to a quarter earlier
    #[arg(long, value_name = "SECONDS", default_value_t = 1_800, value_parser = clap::value_parser!(u64).range(10..=86_400))]
    connection_age: u64,
    #[command(flatten)]
    credentials: CredentialArgs,
}

fn load(text: &str) -> Result<ScaleLoad, String> {
    let named = ScaleLoad::ALL.into_iter().find(|load| load.name() == text);
    named.ok_or_else(|| "`encrypt`, `decrypt`, `tokenize` or `detokenize`".to_owned())
}

impl ScaleArgs {
    fn settings(&self) -> Result<ScaleSettings, Fault> {
        let engines = &self.engines;
        let target = |address: &String| engines.credentials.target(address);
        let seconds = |name: &str, seconds: f64| {
            let length = Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|length| *length <= Duration::from_secs(86_400));
            length.ok_or_else(|| Fault::Failed(format!("{name} takes 0 to 86,400 seconds")))
        };
        let settings = ScaleSettings {
            targets: engines
                .connect
                .iter()
                .map(target)
                .collect::<Result<_, _>>()?,
            admins: engines.admin.clone(),
            counts: self.counts.clone(),
            balancers: engines
                .balancers
                .iter()
                .map(target)
                .collect::<Result<_, _>>()?,
            database: engines.database.clone().map(|url| DatabaseAccess {
                url,
                password_file: engines.database_password_file.clone(),
            }),
            loads: self.loads.clone(),
            app: self.app.clone(),
            collection: self.collection.clone(),
            fields: self.fields,
            field_bytes: self.field_bytes,
            rows: self.rows,
            clients: self.clients,
            in_flight: self.in_flight,
            connections: engines.connections,
            connection_age: Duration::from_secs(engines.connection_age),
            rounds: self.rounds,
            duration: seconds("--seconds", self.seconds)?,
            warm_up: seconds("--warm-up", self.warm_up)?,
            restart: self.restart,
            seed: self.seed.unwrap_or_else(random_seed),
        };
        settings.check()?;
        Ok(settings)
    }
}

/// Returns a number that differs from run to run.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

pub(super) fn run(args: &ScaleArgs) -> Result<(), Failure> {
    let figures = scale::run(&args.settings()?, |point: &ScalePoint| {
        errln!("{}", table::scale_progress(point))
    })?;
    args.out.give(&figures, table::scale)?;
    scale::check_errors(&figures).map_err(Failure::from)
}
