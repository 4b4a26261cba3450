//! The `capacity` command: calculates what many engines with many tokens can serve.

use std::path::PathBuf;

use super::Failure;
use super::run::OutArgs;
use crate::capacity::{self, DeploymentSpec, Mix};
use crate::fault::Fault;
use crate::results::{Figures, ScaleLoad};

/// Examples at the end of `--help`.
const EXAMPLES: &str = "\
Examples:
  Measure 1, 2 and 4 engines and calculate the rest:
    loadtest/run scale

  Calculate for other machines, with ten look-ups per new token:
    sealwire-load capacity target/loadtest/scale.json --engines 2,8,32 --tokens 100000000 --engine-cores 8 \\
      --database-cores 64 --mix detokenize=10,tokenize=1

MeasuredCosts are those of the measurement. Measure on a machine like those of the deployment, and compare what you get with the
result before you rely on it. `docs/several-engines.md` explains the model and what it leaves out.";

/// Arguments of `capacity`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct CapacityArgs {
    /// Results of `sealwire-load scale`
    file: PathBuf,
    /// Shares of the requests, such as `detokenize=10,tokenize=1`; each use of this option is
    /// calculated alone [default: `encrypt=1,decrypt=1` and `detokenize=10,tokenize=1`, as far as
    /// they were measured]
    #[arg(long, value_name = "LOAD=WEIGHT,...", value_parser = mix)]
    mix: Vec<Mix>,
    #[command(flatten)]
    deployment: DeploymentArgs,
    #[command(flatten)]
    out: OutArgs,
}

/// The deployment.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Deployment")]
struct DeploymentArgs {
    /// Numbers of engines
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16,32,64,100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    engines: Vec<u32>,
    /// Tokens in the table
    #[arg(long, value_name = "N", default_value_t = 1e9, value_parser = above_0)]
    tokens: f64,
    /// Cores of each engine
    #[arg(long, value_name = "N", default_value_t = 4.0, value_parser = above_0)]
    engine_cores: f64,
    /// Network of each engine, both directions together
    #[arg(long, value_name = "GBIT_PER_S", default_value_t = 10.0, value_parser = above_0)]
    engine_network: f64,
    /// The engines' `limits.connections_max`
    #[arg(long, value_name = "N", default_value_t = 1_024.0, value_parser = above_0)]
    engine_connections_max: f64,
    /// The engines' `limits.connections_per_principal_max`
    #[arg(long, value_name = "N", default_value_t = 256.0, value_parser = above_0)]
    principal_connections_max: f64,
    /// Cores of the database
    #[arg(long, value_name = "N", default_value_t = 32.0, value_parser = above_0)]
    database_cores: f64,
    /// Memory of the database for pages of tokens: `shared_buffers` and the system's cache, less
    /// other uses
    #[arg(long, value_name = "GIB", default_value_t = 192.0, value_parser = above_0)]
    database_cache: f64,
    /// Random reads per second of the database's disk
    #[arg(long, value_name = "N", default_value_t = 100_000.0, value_parser = above_0)]
    database_reads: f64,
    /// Random writes per second of the database's disk
    #[arg(long, value_name = "N", default_value_t = 50_000.0, value_parser = above_0)]
    database_writes: f64,
    /// Write-ahead log that the database's disk takes per second
    #[arg(long, value_name = "MIB", default_value_t = 500.0, value_parser = above_0)]
    database_log: f64,
    /// The database's `max_connections`
    #[arg(long, value_name = "N", default_value_t = 500.0, value_parser = above_0)]
    database_connections_max: f64,
    /// Maximum time between two checkpoints of the database, `checkpoint_timeout`
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, value_parser = above_0)]
    checkpoint: f64,
    /// The database's `max_wal_size`. At about half of it a checkpoint begins
    #[arg(long, value_name = "GIB", default_value_t = 64.0, value_parser = above_0)]
    max_wal_size: f64,
    /// Maximum items per batch. 1 is the worst case: measured batches are larger than those of a
    /// database that waits for nothing
    #[arg(long, value_name = "N", default_value_t = 1_000.0, value_parser = above_0)]
    batch_items_max: f64,
    /// Client processes, each connected to all engines
    #[arg(long, value_name = "N", default_value_t = 200.0, value_parser = above_0)]
    clients: f64,
    /// Names in the clients' certificates [default: one of each client]. Clients with one name
    /// share `limits.connections_per_principal_max`
    #[arg(long, value_name = "N", value_parser = above_0)]
    principals: Option<f64>,
    /// Connections of a client to each engine
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = above_0)]
    connections: f64,
    /// Percent of each resource that may be in use. Near 100 requests wait long
    #[arg(long, value_name = "PERCENT", default_value_t = 70.0, value_parser = percent)]
    busy: f64,
}

fn above_0(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0.0 && number <= 1e15 {
        Ok(number)
    } else {
        Err("must be above 0, and at most 1e15".to_owned())
    }
}

fn percent(text: &str) -> Result<f64, String> {
    above_0(text).and_then(|number| {
        if number <= 100.0 {
            Ok(number)
        } else {
            Err("must be at most 100".to_owned())
        }
    })
}

fn mix(text: &str) -> Result<Mix, String> {
    let part = |part: &str| {
        let (name, weight) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is not LOAD=WEIGHT"))?;
        let load = ScaleLoad::ALL.into_iter().find(|load| load.name() == name);
        let load = load
            .ok_or_else(|| format!("`{name}` is not encrypt, decrypt, tokenize or detokenize"))?;
        Ok((
            load,
            weight
                .parse()
                .map_err(|_| format!("`{weight}` is not a number"))?,
        ))
    };
    let weights = text
        .split(',')
        .map(part)
        .collect::<Result<Vec<_>, String>>()?;
    Mix::new(&weights).map_err(|error| error.to_string())
}

pub(super) fn run(args: &CapacityArgs) -> Result<(), Failure> {
    let Figures::Scale(scale) = Figures::read(&args.file)? else {
        return Err(Fault::Failed(format!(
            "{}: no results of `sealwire-load scale`",
            args.file.display()
        ))
        .into());
    };
    let has = |load: ScaleLoad| {
        let needs =
            |point: &crate::results::ScalePoint| !load.uses_database() || point.database.is_some();
        scale
            .points
            .iter()
            .any(|point| point.load == load && needs(point))
    };
    let defaults = [
        [(ScaleLoad::Encrypt, 1.0), (ScaleLoad::Decrypt, 1.0)],
        [(ScaleLoad::Detokenize, 10.0), (ScaleLoad::Tokenize, 1.0)],
    ];
    let mixes = if args.mix.is_empty() {
        let measured = defaults
            .iter()
            .filter(|mix| mix.iter().all(|(load, _)| has(*load)));
        measured
            .map(|mix| Mix::new(mix))
            .collect::<Result<Vec<_>, _>>()?
    } else {
        args.mix.clone()
    };
    let to = &args.deployment;
    let deployment = DeploymentSpec {
        engines: to.engines.clone(),
        tokens: to.tokens,
        engine_cores: to.engine_cores,
        engine_network_bits_per_s: to.engine_network * 1e9,
        engine_connections_max: to.engine_connections_max,
        principal_connections_max: to.principal_connections_max,
        database_cores: to.database_cores,
        database_cache_bytes: to.database_cache * f64::from(1 << 30),
        database_reads_per_s: to.database_reads,
        database_writes_per_s: to.database_writes,
        database_log_bytes_per_s: to.database_log * f64::from(1 << 20),
        database_connections_max: to.database_connections_max,
        checkpoint_s: to.checkpoint,
        wal_bytes_max: to.max_wal_size * f64::from(1 << 30),
        batch_items_max: to.batch_items_max,
        clients: to.clients,
        principals: to.principals.unwrap_or(to.clients),
        connections: to.connections,
        busy_max: to.busy / 100.0,
    };
    args.out.give(
        &capacity::calculate(&scale, &deployment, &mixes)?,
        capacity::text,
    )
}
