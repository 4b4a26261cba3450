//! Calculates from a measurement of a few engines what many engines with many tokens can serve, and
//! what is at its limit first.
//!
//! The model has measured costs and few assumptions:
//! * A request costs engines and database a part per request and a part per batch of the token
//!   store. Both parts are fitted to measurements with different sizes of batches.
//! * A batch has as many items as arrive at one engine while the batch before it is written. So its
//!   size is proportional to the rate per engine, at least 1 and at most what engines permit. The
//!   factor is measured.
//! * Keys of tokens are random. After a checkpoint each first change of an index page logs the page
//!   as a whole, and the page is written to its file until the next one. An index larger than
//!   memory costs reads, and further writes. Numbers of pages follow from the measured bytes per
//!   token.
//! * A checkpoint begins after a time, or when the log has grown to about half of `max_wal_size`.

mod costs;
mod text;

use serde::Serialize;

use crate::fault::Fault;
use crate::results::{ScaleFigures, ScaleLoad};

use costs::{LoadCost, MeasuredCosts};
pub(crate) use text::text;

/// Bytes of a page of PostgreSQL.
const PAGE_BYTES: f64 = 8_192.0;
/// Part of `max_wal_size` after which a checkpoint begins, with `checkpoint_completion_target` =
/// 0.9: 1 / (1 + 0.9).
const CHECKPOINT_PART: f64 = 1.0 / 1.9;
/// Connections that PostgreSQL keeps for superusers (`superuser_reserved_connections`).
const RESERVED_CONNECTIONS: f64 = 3.0;

/// Machines, limits and tokens of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DeploymentSpec {
    /// Numbers of engines to calculate.
    pub(crate) engines: Vec<u32>,
    pub(crate) tokens: f64,
    /// Cores of each engine.
    pub(crate) engine_cores: f64,
    /// Network of each engine, in bits per second and direction together.
    pub(crate) engine_network_bits_per_s: f64,
    /// The engines' `limits.connections_max`.
    pub(crate) engine_connections_max: f64,
    /// The engines' `limits.connections_per_principal_max`.
    pub(crate) principal_connections_max: f64,
    pub(crate) database_cores: f64,
    /// Memory that can hold pages of tokens: `shared_buffers` and the system's cache.
    pub(crate) database_cache_bytes: f64,
    /// Random reads of a page that the database's disk serves per second.
    pub(crate) database_reads_per_s: f64,
    /// Random writes of a page that the database's disk serves per second.
    pub(crate) database_writes_per_s: f64,
    /// Write-ahead log that the database's disk takes per second.
    pub(crate) database_log_bytes_per_s: f64,
    /// The database's `max_connections`.
    pub(crate) database_connections_max: f64,
    /// Maximum time between two checkpoints.
    pub(crate) checkpoint_s: f64,
    /// The database's `max_wal_size`.
    pub(crate) wal_bytes_max: f64,
    /// Maximum items of a batch, besides the engines' own limits.
    pub(crate) batch_items_max: f64,
    /// Client processes, each of which is connected to all engines.
    pub(crate) clients: f64,
    /// Names in the certificates of the clients, which each have an equal number of them.
    pub(crate) principals: f64,
    /// Connections of a client to each engine.
    pub(crate) connections: f64,
    /// Part of a resource that may be in use, so that waits stay short.
    pub(crate) busy_max: f64,
}

/// Shares of loads in the requests. The sum is 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Mix(Vec<(ScaleLoad, f64)>);

impl Mix {
    /// Creates a mix from weights.
    ///
    /// # Errors
    /// Fails if a weight is negative or all are 0.
    pub(crate) fn new(weights: &[(ScaleLoad, f64)]) -> Result<Self, Fault> {
        let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
        if weights
            .iter()
            .any(|(_, weight)| !weight.is_finite() || *weight < 0.0)
            || sum <= 0.0
        {
            return Err(Fault::Failed(
                "the weights of a mix are at least 0, and one is above".to_owned(),
            ));
        }
        Ok(Self(
            weights
                .iter()
                .map(|(load, weight)| (*load, weight / sum))
                .collect(),
        ))
    }

    fn share(&self, load: ScaleLoad) -> f64 {
        self.0
            .iter()
            .filter(|(of, _)| *of == load)
            .map(|(_, share)| share)
            .sum()
    }

    /// Returns the part of the requests that use the database.
    fn database_share(&self) -> f64 {
        self.0
            .iter()
            .filter(|(load, _)| load.uses_database())
            .map(|(_, share)| share)
            .sum()
    }
}

/// A resource whose limit bounds the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Resource {
    EngineCpu,
    EngineNetwork,
    DatabaseCpu,
    DatabaseLog,
    DatabaseReads,
    DatabaseWrites,
}

impl Resource {
    const ALL: [Self; 6] = [
        Self::EngineCpu,
        Self::EngineNetwork,
        Self::DatabaseCpu,
        Self::DatabaseLog,
        Self::DatabaseReads,
        Self::DatabaseWrites,
    ];
}

/// A limit on the number of engines or clients, which no rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "results show the names alone")]
pub(crate) enum ConnectionBound {
    /// Connections of all engines to the database, over its `max_connections`.
    DatabaseConnections,
    /// Connections of all clients to one engine, over its `limits.connections_max`.
    EngineConnections,
    /// Connections of all clients with one name to one engine, over its
    /// `limits.connections_per_principal_max`.
    PrincipalConnections,
}

/// Rate that a number of engines can serve, and the use of resources at that rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EngineCapacity {
    pub(crate) engines: u32,
    /// The greatest rate at which no resource is above its limit.
    pub(crate) requests_per_s: f64,
    /// The resource that is at its limit then.
    pub(crate) limit: Resource,
    /// Use of each resource at that rate, as part of its limit.
    pub(crate) use_of_limit: Vec<(Resource, f64)>,
    /// Items per batch of new tokens; `None` without new tokens.
    pub(crate) batch_items: Option<f64>,
    /// Bytes of write-ahead log per second.
    pub(crate) log_bytes_per_s: f64,
    /// Time between two checkpoints.
    pub(crate) checkpoint_s: f64,
    /// Bounds that this number of engines and clients exceeds: needed, and allowed.
    pub(crate) exceeded: Vec<(ConnectionBound, f64, f64)>,
}

/// A prediction from the measurements with fewer engines, beside the measurement with the most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct PredictionCheck {
    pub(crate) load: ScaleLoad,
    /// Engines of the measurement.
    pub(crate) engines: u32,
    /// CPU time of the engines per request, in microseconds: predicted and measured.
    pub(crate) engine_us: (f64, f64),
    /// CPU time of the database per request, in microseconds: predicted and measured.
    pub(crate) database_us: Option<(f64, f64)>,
    /// Items per batch, predicted and measured.
    pub(crate) batch_items: Option<(f64, f64)>,
}

/// The capacity of a deployment under one mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MixCapacity {
    pub(crate) mix: Mix,
    pub(crate) rows: Vec<EngineCapacity>,
}

/// The whole calculation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Calculation {
    pub(crate) deployment: DeploymentSpec,
    pub(crate) costs: MeasuredCosts,
    pub(crate) checks: Vec<PredictionCheck>,
    /// Whole pages in the log per new token right after a checkpoint: predicted and measured.
    pub(crate) full_pages: Option<(f64, f64)>,
    pub(crate) mixes: Vec<MixCapacity>,
}

/// Calculates the capacity for each mix.
///
/// # Errors
/// Fails if the measurement lacks what a mix needs.
pub(crate) fn calculate(
    scale: &ScaleFigures,
    deployment: &DeploymentSpec,
    mixes: &[Mix],
) -> Result<Calculation, Fault> {
    let costs = MeasuredCosts::of(scale)?;
    if mixes.is_empty() {
        return Err(Fault::Failed(
            "the results have no load of a default mix: give --mix".to_owned(),
        ));
    }
    for mix in mixes {
        for (load, _) in mix.0.iter().filter(|(_, share)| *share > 0.0) {
            if costs.load(*load).is_none() {
                let what = if load.uses_database() {
                    " with --database"
                } else {
                    ""
                };
                return Err(Fault::Failed(format!(
                    "the results have no `{}`: measure it{what}",
                    load.name()
                )));
            }
        }
    }
    let of_mix = |mix: &Mix| {
        let model = Model {
            costs: &costs,
            deployment,
            mix,
        };
        MixCapacity {
            mix: mix.clone(),
            rows: deployment
                .engines
                .iter()
                .map(|count| model.capacity(*count))
                .collect(),
        }
    };
    Ok(Calculation {
        deployment: deployment.clone(),
        mixes: mixes.iter().map(of_mix).collect(),
        checks: costs::checks(scale),
        full_pages: costs::full_pages(scale, &costs),
        costs,
    })
}

struct Model<'a> {
    costs: &'a MeasuredCosts,
    deployment: &'a DeploymentSpec,
    mix: &'a Mix,
}

impl Model<'_> {
    fn capacity(&self, engines: u32) -> EngineCapacity {
        let limits = Resource::ALL.map(|resource| (resource, self.rate_max(resource, engines)));
        let (limit, rate) =
            limits.into_iter().fold(
                limits[0],
                |least, next| if next.1 < least.1 { next } else { least },
            );
        EngineCapacity {
            engines,
            requests_per_s: rate,
            limit,
            use_of_limit: Resource::ALL
                .map(|resource| (resource, self.use_of_limit(resource, engines, rate)))
                .into(),
            batch_items: (self.mix.share(ScaleLoad::Tokenize) > 0.0)
                .then(|| self.batch_items(ScaleLoad::Tokenize, rate, engines)),
            log_bytes_per_s: self.log_bytes_per_s(rate),
            checkpoint_s: self.checkpoint_s(self.rate_of(ScaleLoad::Tokenize, rate)),
            exceeded: self.exceeded(engines),
        }
    }

    fn rate_of(&self, load: ScaleLoad, rate: f64) -> f64 {
        rate * self.mix.share(load)
    }

    /// Returns the items per batch of one kind of requests.
    fn batch_items(&self, load: ScaleLoad, rate: f64, engines: u32) -> f64 {
        let items = self
            .costs
            .batch_items(load, self.rate_of(load, rate), engines);
        items.min(self.deployment.batch_items_max).max(1.0)
    }

    /// Returns the greatest rate at which a resource is within its limit.
    fn rate_max(&self, resource: Resource, engines: u32) -> f64 {
        const RATE_MAX: f64 = 1e12;
        let (mut good, mut bad) = (0.0, RATE_MAX);
        if self.use_of_limit(resource, engines, RATE_MAX) <= 1.0 {
            return RATE_MAX;
        }
        // Use never falls with the rate. 80 halvings leave less than a request per second.
        for _ in 0..80 {
            let half = f64::midpoint(good, bad);
            if self.use_of_limit(resource, engines, half) <= 1.0 {
                good = half
            } else {
                bad = half
            }
        }
        good
    }

    /// Returns the use of a resource at a rate, as part of its limit.
    fn use_of_limit(&self, resource: Resource, engines: u32, rate: f64) -> f64 {
        let (to, count) = (self.deployment, f64::from(engines));
        let cpu_s = |of: fn(&LoadCost) -> (f64, f64)| -> f64 {
            let costs = self
                .mix
                .0
                .iter()
                .filter_map(|(load, share)| Some((self.costs.load(*load)?, share)));
            let us = costs.map(|(cost, share)| {
                let (request, batch) = of(cost);
                rate * share * (request + batch / self.batch_items(cost.load, rate, engines))
            });
            us.sum::<f64>() / 1e6
        };
        match resource {
            Resource::EngineCpu => {
                let idle = count * self.costs.idle_engine_us_per_s / 1e6;
                (cpu_s(|cost| cost.engine_us) + idle) / (count * to.engine_cores * to.busy_max)
            }
            Resource::EngineNetwork => {
                let bytes: f64 = self
                    .mix
                    .0
                    .iter()
                    .map(|(load, share)| rate * share * self.costs.bytes(*load))
                    .sum();
                bytes * 8.0 / (count * to.engine_network_bits_per_s * to.busy_max)
            }
            Resource::DatabaseCpu => {
                if self.mix.database_share() == 0.0 {
                    return 0.0;
                }
                let idle = count * self.costs.idle_database_us_per_s / 1e6;
                (cpu_s(|cost| cost.database_us) + idle) / (to.database_cores * to.busy_max)
            }
            Resource::DatabaseLog => {
                self.log_bytes_per_s(rate) / (to.database_log_bytes_per_s * to.busy_max)
            }
            Resource::DatabaseReads => {
                self.reads_per_s(rate) / (to.database_reads_per_s * to.busy_max)
            }
            Resource::DatabaseWrites => {
                self.writes_per_s(rate) / (to.database_writes_per_s * to.busy_max)
            }
        }
    }

    /// Returns the pages of indexes that change between two checkpoints, at so many new tokens per
    /// second.
    fn touched_pages(&self, made_per_s: f64, checkpoint_s: f64) -> f64 {
        let of_index =
            |bytes: &f64| touched(self.deployment.tokens * bytes, made_per_s * checkpoint_s);
        self.costs.index_bytes.iter().map(of_index).sum()
    }

    /// Returns the bytes of write-ahead log between two checkpoints.
    fn log_bytes(&self, made_per_s: f64, checkpoint_s: f64) -> f64 {
        made_per_s * checkpoint_s * self.costs.log_bytes
            + self.touched_pages(made_per_s, checkpoint_s) * self.costs.page_image_bytes
    }

    /// Returns the time between two checkpoints: the configured one, or less if the log grows too
    /// large before.
    fn checkpoint_s(&self, made_per_s: f64) -> f64 {
        let bytes_max = self.deployment.wal_bytes_max * CHECKPOINT_PART;
        let (mut short, mut long) = (0.0, self.deployment.checkpoint_s);
        if self.log_bytes(made_per_s, long) <= bytes_max {
            return long;
        }
        for _ in 0..60 {
            let half = f64::midpoint(short, long);
            if self.log_bytes(made_per_s, half) <= bytes_max {
                short = half
            } else {
                long = half
            }
        }
        long
    }

    /// Returns the bytes of write-ahead log per second.
    fn log_bytes_per_s(&self, rate: f64) -> f64 {
        let made_per_s = self.rate_of(ScaleLoad::Tokenize, rate);
        if made_per_s == 0.0 {
            return 0.0;
        }
        let checkpoint_s = self.checkpoint_s(made_per_s);
        self.log_bytes(made_per_s, checkpoint_s) / checkpoint_s
    }

    /// Returns the part of the pages of tokens that is not in the database's memory.
    fn missing(&self) -> f64 {
        let per_token = self.costs.heap_bytes + self.costs.index_bytes.iter().sum::<f64>();
        1.0 - (self.deployment.database_cache_bytes / (self.deployment.tokens * per_token).max(1.0))
            .min(1.0)
    }

    /// Returns the reads of pages that are not in the database's memory, per second.
    fn reads_per_s(&self, rate: f64) -> f64 {
        if self.mix.database_share() == 0.0 {
            return 0.0;
        }
        // A look-up reads a page of the index of tokens and one of the table. A new token changes a
        // page of each index; its row goes to the end of the table.
        let looked_up = 2.0 * self.rate_of(ScaleLoad::Detokenize, rate);
        let changed = self.costs.index_bytes.len() as f64 * self.rate_of(ScaleLoad::Tokenize, rate);
        self.missing() * (looked_up + changed)
    }

    /// Returns the writes of pages to data files, per second.
    fn writes_per_s(&self, rate: f64) -> f64 {
        let made_per_s = self.rate_of(ScaleLoad::Tokenize, rate);
        if made_per_s == 0.0 {
            return 0.0;
        }
        let checkpoint_s = self.checkpoint_s(made_per_s);
        // A page in memory is written once per checkpoint. A page that was read for its change is
        // evicted soon.
        let of_checkpoints = self.touched_pages(made_per_s, checkpoint_s) / checkpoint_s;
        let evicted = self.missing() * self.costs.index_bytes.len() as f64 * made_per_s;
        of_checkpoints.max(evicted) + made_per_s * self.costs.heap_bytes / PAGE_BYTES
    }

    fn exceeded(&self, engines: u32) -> Vec<(ConnectionBound, f64, f64)> {
        let to = self.deployment;
        let needed_by_engines = if self.mix.database_share() > 0.0 {
            f64::from(engines) * self.costs.database_connections
        } else {
            0.0
        };
        let bounds = [
            (
                ConnectionBound::DatabaseConnections,
                needed_by_engines,
                to.database_connections_max - RESERVED_CONNECTIONS,
            ),
            (
                ConnectionBound::EngineConnections,
                to.clients * to.connections,
                to.engine_connections_max,
            ),
            (
                ConnectionBound::PrincipalConnections,
                (to.clients / to.principals).ceil() * to.connections,
                to.principal_connections_max,
            ),
        ];
        bounds
            .into_iter()
            .filter(|(_, needed, allowed)| needed > allowed)
            .collect()
    }
}

/// Returns how many of an index's pages `changes` at random places change at least once.
fn touched(index_bytes: f64, changes: f64) -> f64 {
    let pages = (index_bytes / PAGE_BYTES).max(1.0);
    pages * (1.0 - (-changes / pages).exp())
}

#[cfg(test)]
mod tests;
