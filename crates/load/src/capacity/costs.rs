//! Costs of requests, from measurements with different numbers of engines.

use serde::Serialize;

use super::{Check, PAGE_BYTES, touched};
use crate::fault::Fault;
use crate::results::{ScaleFigures, ScaleLoad, ScalePoint, Way};

/// Cost of one kind of request in CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct LoadCost {
    pub(crate) load: ScaleLoad,
    /// Engine CPU time per request, in microseconds, and per batch of the token store.
    pub(crate) engine_us: (f64, f64),
    /// Database CPU time per request, in microseconds, and per batch.
    pub(crate) database_us: (f64, f64),
    /// Items per batch, over requests per second and engine; 0 without batches.
    pub(crate) batch_s: f64,
    /// Bytes between clients and engine per request.
    pub(crate) bytes: f64,
}

/// All measured costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Costs {
    pub(crate) loads: Vec<LoadCost>,
    pub(crate) idle_engine_us_per_s: f64,
    pub(crate) idle_database_us_per_s: f64,
    pub(crate) database_connections: f64,
    /// Bytes of rows per token.
    pub(crate) heap_bytes: f64,
    /// Bytes per token of each index with random keys.
    pub(crate) index_bytes: Vec<f64>,
    /// Bytes of write-ahead log per token, without whole pages.
    pub(crate) log_bytes: f64,
    /// Bytes of the log for a whole page.
    pub(crate) page_image_bytes: f64,
}

/// Medians of the measurements of one load with one number of engines.
struct Measured {
    engines: u32,
    engine_us: f64,
    database_us: Option<f64>,
    batch_items: Option<f64>,
    ok_per_s: f64,
    bytes: f64,
}

impl Costs {
    /// Returns the costs from measurements with at most so many engines.
    pub(super) fn of(scale: &ScaleFigures, engines_max: u32) -> Result<Self, Fault> {
        let loads: Vec<LoadCost> =
            ScaleLoad::ALL.into_iter().filter_map(|load| cost(load, &measured(scale, load, engines_max))).collect();
        if loads.is_empty() {
            return Err(Fault::Failed("the results have no measurement".to_owned()));
        }
        let per_row = |bytes: u64| scale.table.as_ref().map_or(0.0, |table| bytes as f64 / table.rows.max(1) as f64);
        let index_bytes: Vec<f64> =
            scale.table.iter().flat_map(|table| &table.random_index_bytes).map(|bytes| per_row(*bytes)).collect();
        let log = |point: &ScalePoint| point.database.map(|used| used.wal_bytes);
        let most =
            scale.kinds().into_iter().filter(|(load, way, _)| (*load, *way) == (ScaleLoad::Tokenize, Way::Endpoints));
        let log_bytes = most.max().and_then(|kind| scale.median(kind, log)).unwrap_or(0.0);
        Ok(Self {
            idle_engine_us_per_s: scale.idle.engine_cpu_us_per_s,
            idle_database_us_per_s: scale.idle.database_cpu_us_per_s.unwrap_or(0.0),
            database_connections: scale.idle.database_connections,
            heap_bytes: scale.table.as_ref().map_or(0.0, |table| per_row(table.heap_bytes)),
            page_image_bytes: page_image_bytes(scale, log_bytes, &index_bytes),
            loads,
            index_bytes,
            log_bytes,
        })
    }

    pub(super) fn load(&self, load: ScaleLoad) -> Option<&LoadCost> {
        self.loads.iter().find(|cost| cost.load == load)
    }

    /// Returns the items per batch at a rate of one kind of requests.
    pub(super) fn batch_items(&self, load: ScaleLoad, per_s: f64, engines: u32) -> f64 {
        self.load(load).map_or(1.0, |cost| (cost.batch_s * per_s / f64::from(engines)).max(1.0))
    }

    /// Returns engine CPU time per request, in microseconds.
    pub(super) fn engine_us(&self, load: ScaleLoad, per_s: f64, engines: u32) -> f64 {
        self.load(load).map_or(0.0, |cost| cost.engine_us.0 + cost.engine_us.1 / self.batch_items(load, per_s, engines))
    }

    /// Returns database CPU time per request, in microseconds.
    pub(super) fn database_us(&self, load: ScaleLoad, per_s: f64, engines: u32) -> f64 {
        self.load(load)
            .map_or(0.0, |cost| cost.database_us.0 + cost.database_us.1 / self.batch_items(load, per_s, engines))
    }

    pub(super) fn bytes(&self, load: ScaleLoad) -> f64 {
        self.load(load).map_or(0.0, |cost| cost.bytes)
    }
}

/// Predicts the measurement with the most engines from those with fewer.
pub(super) fn checks(scale: &ScaleFigures) -> Vec<Check> {
    let check = |load: ScaleLoad| {
        let all = measured(scale, load, u32::MAX);
        let last = all.last().filter(|_| all.len() > 2)?;
        let cost = cost(load, &measured(scale, load, last.engines - 1))?;
        let per_batch = last.batch_items.map_or(0.0, |items| 1.0 / items);
        let at = |(request, batch): (f64, f64)| request + batch * per_batch;
        Some(Check {
            load,
            engines: last.engines,
            engine_us: (at(cost.engine_us), last.engine_us),
            database_us: last.database_us.map(|measured| (at(cost.database_us), measured)),
        })
    };
    ScaleLoad::ALL.into_iter().filter_map(check).collect()
}

fn measured(scale: &ScaleFigures, load: ScaleLoad, engines_max: u32) -> Vec<Measured> {
    let kinds = scale.kinds().into_iter();
    let kinds = kinds.filter(|(of, way, engines)| (*of, *way) == (load, Way::Endpoints) && *engines <= engines_max);
    let medians = kinds.filter_map(|kind| {
        let of = |of: fn(&ScalePoint) -> Option<f64>| scale.median(kind, of);
        Some(Measured {
            engines: kind.2,
            engine_us: of(|point| Some(point.engine_cpu_us))?,
            database_us: of(|point| point.database?.cpu_us),
            batch_items: of(|point| point.batch_items),
            ok_per_s: of(|point| Some(point.ok_per_s))?,
            bytes: of(|point| Some(point.bytes))?,
        })
    });
    medians.collect()
}

fn cost(load: ScaleLoad, measured: &[Measured]) -> Option<LoadCost> {
    let count = measured.len() as f64;
    let mean = |of: fn(&Measured) -> f64| measured.iter().map(of).sum::<f64>() / count;
    if measured.is_empty() {
        return None;
    }
    // Without the database's CPU time a mix with this load has no answer.
    if load.uses_database() && measured.iter().any(|of| of.database_us.is_none() || of.batch_items.is_none()) {
        return None;
    }
    let fit = |of: fn(&Measured) -> f64| {
        fit(&measured.iter().map(|one| (one.batch_items.map_or(0.0, |items| 1.0 / items), of(one))).collect::<Vec<_>>())
    };
    Some(LoadCost {
        load,
        engine_us: fit(|one| one.engine_us),
        database_us: fit(|one| one.database_us.unwrap_or(0.0)),
        batch_s: mean(|one| one.batch_items.unwrap_or(0.0) * f64::from(one.engines) / one.ok_per_s),
        bytes: mean(|one| one.bytes),
    })
}

/// Fits `y = a + b x` by least squares, with `a` and `b` at least 0.
fn fit(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let (mean_x, mean_y) =
        (points.iter().map(|(x, _)| x).sum::<f64>() / count, points.iter().map(|(_, y)| y).sum::<f64>() / count);
    let (products, squares) = points.iter().fold((0.0, 0.0), |(products, squares), (x, y)| {
        (products + (x - mean_x) * (y - mean_y), squares + (x - mean_x).powi(2))
    });
    let slope = if squares > 0.0 { (products / squares).max(0.0) } else { 0.0 };
    let start = mean_y - slope * mean_x;
    if start >= 0.0 || mean_x == 0.0 { (start.max(0.0), slope) } else { (0.0, mean_y / mean_x) }
}

/// Returns the bytes of the log for a whole page, from the log right after a checkpoint; 0 if that was not measured.
fn page_image_bytes(scale: &ScaleFigures, log_bytes: f64, index_bytes: &[f64]) -> f64 {
    let Some(checkpoint) = &scale.checkpoint else { return 0.0 };
    let (made, rows) = (checkpoint.tokens as f64, checkpoint.rows as f64);
    let pages: f64 = index_bytes.iter().map(|bytes| touched(rows * bytes, made)).sum();
    // A page has a header, and what it does not use is left out.
    ((checkpoint.wal_bytes - log_bytes) * made / pages.max(1.0)).clamp(0.0, PAGE_BYTES)
}
