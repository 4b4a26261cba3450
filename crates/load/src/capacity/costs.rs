//! Costs of requests, from measurements with different numbers of engines.

use serde::Serialize;

use super::{PredictionCheck, touched};
use crate::fault::Fault;
use crate::results::{Routing, ScaleFigures, ScaleLoad, ScalePoint};

/// Maximum rows of a write batch and keys of a look-up batch in an engine
/// (`sealwire-store-postgres`).
const BATCH_ITEMS_MAX: [(ScaleLoad, f64); 2] = [
    (ScaleLoad::Tokenize, 512.0),
    (ScaleLoad::Detokenize, 1_000.0),
];

/// Cost of one kind of request in CPU time, without what is used anyway.
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
pub(crate) struct MeasuredCosts {
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
struct CostSample {
    engines: u32,
    engine_us: f64,
    database_us: Option<f64>,
    batch_items: Option<f64>,
    ok_per_s: f64,
    bytes: f64,
}

impl MeasuredCosts {
    /// Returns the costs from all measurements.
    ///
    /// # Errors
    /// Fails if there is no measurement, or one with errors.
    pub(super) fn of(scale: &ScaleFigures) -> Result<Self, Fault> {
        if let Some(point) = scale.points.iter().find(|point| point.errors > 0) {
            let (errors, load) = (point.errors, point.load.name());
            return Err(Fault::Failed(format!(
                "{errors} requests of `{load}` failed, so their costs are not known"
            )));
        }
        let loads: Vec<LoadCost> = ScaleLoad::ALL
            .into_iter()
            .filter_map(|load| cost(load, &measured(scale, load)))
            .collect();
        if loads.is_empty() {
            return Err(Fault::Failed("the results have no measurement".to_owned()));
        }
        let per_row = |bytes: u64| {
            scale
                .table
                .as_ref()
                .map_or(0.0, |table| bytes as f64 / table.rows.max(1) as f64)
        };
        let index_bytes: Vec<f64> = scale
            .table
            .iter()
            .flat_map(|table| &table.random_index_bytes)
            .map(|bytes| per_row(*bytes))
            .collect();
        // The index of fingerprints is empty where tokens have none.
        let index_bytes = index_bytes
            .into_iter()
            .filter(|bytes| *bytes >= 1.0)
            .collect();
        let (log_bytes, page_image_bytes) = log(scale)?;
        Ok(Self {
            idle_engine_us_per_s: scale.idle.engine_cpu_us_per_s,
            idle_database_us_per_s: scale.idle.database_cpu_us_per_s.unwrap_or(0.0),
            database_connections: scale.idle.database_connections,
            heap_bytes: scale
                .table
                .as_ref()
                .map_or(0.0, |table| per_row(table.heap_bytes)),
            loads,
            index_bytes,
            log_bytes,
            page_image_bytes,
        })
    }

    pub(super) fn load(&self, load: ScaleLoad) -> Option<&LoadCost> {
        self.loads.iter().find(|cost| cost.load == load)
    }

    /// Returns the items per batch at a rate of one kind of requests.
    pub(super) fn batch_items(&self, load: ScaleLoad, per_s: f64, engines: u32) -> f64 {
        self.load(load)
            .map_or(1.0, |cost| cost.batch_items(per_s / f64::from(engines)))
    }

    pub(super) fn bytes(&self, load: ScaleLoad) -> f64 {
        self.load(load).map_or(0.0, |cost| cost.bytes)
    }
}

impl LoadCost {
    /// Returns the items per batch at a rate per engine.
    fn batch_items(&self, per_s: f64) -> f64 {
        let most = BATCH_ITEMS_MAX
            .iter()
            .find(|(load, _)| *load == self.load)
            .map_or(1.0, |(_, most)| *most);
        (self.batch_s * per_s).clamp(1.0, most)
    }
}

/// Predicts the measurement with the most engines from those with fewer.
pub(super) fn checks(scale: &ScaleFigures) -> Vec<PredictionCheck> {
    let check = |load: ScaleLoad| {
        let all = measured(scale, load);
        let (last, fewer) = all.split_last().filter(|(_, fewer)| fewer.len() > 1)?;
        let cost = cost(load, fewer)?;
        let items = cost.batch_items(last.ok_per_s / f64::from(last.engines));
        let at = |(request, batch): (f64, f64)| request + batch / items;
        Some(PredictionCheck {
            load,
            engines: last.engines,
            engine_us: (at(cost.engine_us), last.engine_us),
            database_us: last
                .database_us
                .map(|measured| (at(cost.database_us), measured)),
            batch_items: last.batch_items.map(|measured| (items, measured)),
        })
    };
    ScaleLoad::ALL.into_iter().filter_map(check).collect()
}

/// Predicts the whole pages in the log per new token right after a checkpoint, and returns the
/// measured ones beside.
pub(super) fn full_pages(scale: &ScaleFigures, costs: &MeasuredCosts) -> Option<(f64, f64)> {
    let checkpoint = scale.checkpoint.as_ref()?;
    let (made, rows) = (checkpoint.tokens as f64, checkpoint.rows as f64);
    let pages: f64 = costs
        .index_bytes
        .iter()
        .map(|bytes| touched(rows * bytes, made))
        .sum();
    Some((pages / made, checkpoint.full_pages))
}

/// Returns the medians of the measurements of one load, by number of engines, less the use without
/// requests.
fn measured(scale: &ScaleFigures, load: ScaleLoad) -> Vec<CostSample> {
    let kinds = scale.kinds().into_iter();
    let kinds = kinds.filter(|(of, way, _)| (*of, *way) == (load, Routing::Endpoints));
    let engine_idle = scale.idle.engine_cpu_us_per_s;
    let database_idle = scale.idle.database_cpu_us_per_s.unwrap_or(0.0);
    let net = |point: &ScalePoint, us: f64, idle_us_per_s: f64, engines: u32| {
        (us - idle_us_per_s * f64::from(engines) / point.ok_per_s).max(0.0)
    };
    let medians = kinds.filter_map(|kind| {
        let of = |of: fn(&ScalePoint) -> Option<f64>| scale.median(kind, of);
        Some(CostSample {
            engines: kind.2,
            engine_us: scale.median(kind, |point| {
                Some(net(point, point.engine_cpu_us, engine_idle, point.engines))
            })?,
            // All engines are connected to the database, also those without load.
            database_us: scale.median(kind, |point| {
                Some(net(
                    point,
                    point.database?.cpu_us?,
                    database_idle,
                    scale.idle.engines,
                ))
            }),
            batch_items: of(|point| point.batch_items),
            ok_per_s: of(|point| Some(point.ok_per_s))?,
            bytes: of(|point| Some(point.bytes))?,
        })
    });
    medians.collect()
}

fn cost(load: ScaleLoad, measured: &[CostSample]) -> Option<LoadCost> {
    let count = measured.len() as f64;
    let mean = |of: fn(&CostSample) -> f64| measured.iter().map(of).sum::<f64>() / count;
    if measured.is_empty() {
        return None;
    }
    // Without the database's CPU time a mix with this load has no answer.
    if load.uses_database()
        && measured
            .iter()
            .any(|of| of.database_us.is_none() || of.batch_items.is_none())
    {
        return None;
    }
    let fit = |of: fn(&CostSample) -> f64| {
        fit(&measured
            .iter()
            .map(|one| (one.batch_items.map_or(0.0, |items| 1.0 / items), of(one)))
            .collect::<Vec<_>>())
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
    let (mean_x, mean_y) = (
        points.iter().map(|(x, _)| x).sum::<f64>() / count,
        points.iter().map(|(_, y)| y).sum::<f64>() / count,
    );
    let (products, squares) = points
        .iter()
        .fold((0.0, 0.0), |(products, squares), (x, y)| {
            (
                products + (x - mean_x) * (y - mean_y),
                squares + (x - mean_x).powi(2),
            )
        });
    let slope = if squares > 0.0 {
        (products / squares).max(0.0)
    } else {
        0.0
    };
    let start = mean_y - slope * mean_x;
    if start >= 0.0 || mean_x == 0.0 {
        (start.max(0.0), slope)
    } else {
        (0.0, mean_y / mean_x)
    }
}

/// Returns the bytes of the write-ahead log per token without whole pages, and per whole page. Both
/// follow from the log with few and with many whole pages: during the loads, and right after a
/// checkpoint.
///
/// # Errors
/// Fails if a page takes less than nothing.
fn log(scale: &ScaleFigures) -> Result<(f64, f64), Fault> {
    let kinds = scale
        .kinds()
        .into_iter()
        .filter(|(load, ..)| *load == ScaleLoad::Tokenize);
    let Some((checkpoint, kind)) = scale.checkpoint.as_ref().zip(kinds.max()) else {
        return Ok((0.0, 0.0));
    };
    let (Some(bytes), Some(pages)) = (
        scale.median(kind, |point| Some(point.database?.wal_bytes)),
        scale.median(kind, |point| Some(point.database?.full_pages)),
    ) else {
        return Ok((0.0, 0.0));
    };
    let image = (checkpoint.wal_bytes - bytes) / (checkpoint.full_pages - pages);
    let row = bytes - image * pages;
    if !(image > 0.0 && row > 0.0) {
        let why = "the log right after a checkpoint has no more whole pages than later: measure with longer --seconds";
        return Err(Fault::Failed(why.to_owned()));
    }
    Ok((row, image))
}
