//! The figures of several engines as text: one row per load, way and number of engines.

use std::fmt::Write as _;

use crate::results::{Routing, ScaleFigures, ScaleLoad, ScalePoint};
use crate::table::{columns, number, time};

/// Returns the median of some numbers; `None` if there is none.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let (half, count) = (numbers.len() / 2, numbers.len());
    if count % 2 == 1 {
        Some(numbers[half])
    } else {
        Some((numbers.get(half.wrapping_sub(1))? + numbers[half]) / 2.0)
    }
}

impl ScaleFigures {
    /// Returns the points of one kind, of all rounds.
    pub fn points(
        &self,
        load: ScaleLoad,
        way: Routing,
        engines: u32,
    ) -> impl Iterator<Item = &ScalePoint> {
        self.points
            .iter()
            .filter(move |point| (point.load, point.way, point.engines) == (load, way, engines))
    }

    /// Returns the median over the rounds of a figure of the points of one kind; `None` if none has
    /// it.
    pub fn median(
        &self,
        (load, way, engines): (ScaleLoad, Routing, u32),
        of: impl Fn(&ScalePoint) -> Option<f64>,
    ) -> Option<f64> {
        median(self.points(load, way, engines).filter_map(of).collect())
    }

    /// Returns the kinds of points, ascending.
    pub fn kinds(&self) -> Vec<(ScaleLoad, Routing, u32)> {
        let mut kinds: Vec<_> = self
            .points
            .iter()
            .map(|point| (point.load, point.way, point.engines))
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Returns the number of fields of a request.
    pub fn fields_of(&self, load: ScaleLoad) -> u32 {
        if load.uses_database() { 1 } else { self.fields }
    }
}

/// Formats one measurement as a line.
pub fn scale_progress(point: &ScalePoint) -> String {
    let ScalePoint {
        round,
        load,
        way,
        engines,
        ..
    } = point;
    let (rate, cpu) = (number(point.ok_per_s), number(point.engine_cpu_us));
    let errors = if point.errors > 0 {
        format!(", {} errors", point.errors)
    } else {
        String::new()
    };
    format!(
        "round {round}: {} of {engines} by {}: {rate} requests/s, {cpu} us of engine CPU each{errors}",
        load.name(),
        way.name()
    )
}

/// Formats medians over the rounds.
pub fn scale(scale: &ScaleFigures) -> String {
    let mut text = String::new();
    let shared = if scale.same_machine {
        "; engines and clients share them"
    } else {
        ""
    };
    let machine = &scale.machine;
    let _ = writeln!(
        text,
        "engine {}\n  {}, {} cores, {}{shared}\n  {} clients with {} requests in flight each and {} connections per endpoint; \
         documents of {} fields of {} bytes;\n  medians of {} rounds of {} s\n",
        scale.version,
        machine.cpu,
        machine.cores,
        machine.os,
        scale.clients,
        scale.in_flight,
        scale.connections,
        scale.fields,
        scale.field_bytes,
        scale
            .points
            .iter()
            .map(|point| point.round)
            .max()
            .unwrap_or(0),
        scale.duration_s,
    );
    let rows = scale.kinds().into_iter().map(|kind| {
        let (load, way, engines) = kind;
        let of = |of: fn(&ScalePoint) -> Option<f64>| scale.median(kind, of);
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let engine_us = of(|point| Some(point.engine_cpu_us));
        let least = |point: &ScalePoint| point.shares.iter().copied().reduce(f64::min);
        vec![
            load.name().to_owned(),
            way.name().to_owned(),
            engines.to_string(),
            cell(of(|point| Some(point.ok_per_s))),
            of(|point| Some(point.latency_us.p50)).map_or_else(|| "-".to_owned(), time),
            of(|point| Some(point.latency_us.p99)).map_or_else(|| "-".to_owned(), time),
            cell(engine_us),
            cell(engine_us.map(|us| 1e6 / us * f64::from(scale.fields_of(load)))),
            cell(of(|point| point.batch_items)),
            cell(of(|point| point.database?.cpu_us)),
            cell(of(|point| Some(point.database?.wal_bytes))),
            cell(of(|point| Some(point.client_cpu_us))),
            // Relative to an equal share.
            cell(scale.median(kind, |point| Some(least(point)? * f64::from(engines)))),
            scale
                .points(load, way, engines)
                .map(|point| point.errors)
                .sum::<u64>()
                .to_string(),
        ]
    });
    let head = [
        "load",
        "way",
        "engines",
        "requests/s",
        "p50",
        "p99",
        "engine us",
        "fields/core-s",
        "per batch",
        "database us",
        "log bytes",
        "client us",
        "least share",
        "errors",
    ];
    text += &columns(&head, &rows.collect::<Vec<_>>());
    text += "\n  engine, database and client us: CPU time per request. fields/core-s: fields per second of engine CPU.\n  \
             least share: requests of the engine with the fewest, over an equal share\n";
    let idle = &scale.idle;
    let _ = write!(
        text,
        "  without requests: {} us of CPU a second, {} MiB and {} database connections per engine",
        number(idle.engine_cpu_us_per_s),
        number(idle.engine_bytes / f64::from(1 << 20)),
        number(idle.database_connections),
    );
    if let Some(us) = idle.database_cpu_us_per_s {
        let _ = write!(
            text,
            "; {} us of database CPU a second per engine",
            number(us)
        );
    }
    text.push('\n');
    if let Some(table) = &scale.table {
        let rows = table.rows.max(1) as f64;
        let indexes: Vec<String> = table
            .random_index_bytes
            .iter()
            .map(|bytes| number(*bytes as f64 / rows))
            .collect();
        let _ = writeln!(
            text,
            "  table: {} tokens, {} bytes of rows and {} bytes of indexes each",
            number(rows),
            number(table.heap_bytes as f64 / rows),
            indexes.join(" and "),
        );
    }
    if let Some(checkpoint) = &scale.checkpoint {
        let _ = writeln!(
            text,
            "  right after a checkpoint: {} log bytes and {} whole pages for each of {} new tokens, with {} in the table",
            number(checkpoint.wal_bytes),
            number(checkpoint.full_pages),
            number(checkpoint.tokens as f64),
            number(checkpoint.rows as f64),
        );
    }
    for restart in &scale.restarts {
        let _ = writeln!(
            text,
            "  {}: one of {} engines killed, away for {} s; {} s later it has {} of an equal share; {} requests right, {} failed",
            restart.way.name(),
            restart.engines,
            number(restart.away_s),
            number(restart.settle_s),
            number(restart.share),
            number(restart.ok as f64),
            restart.errors,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Figures;

    #[test]
    fn medians_of_the_rounds_are_in_one_row() {
        for (numbers, expected) in [
            (vec![], None),
            (vec![3.0], Some(3.0)),
            (vec![4.0, 1.0], Some(2.5)),
            (vec![9.0, 1.0, 2.0], Some(2.0)),
        ] {
            assert_eq!(median(numbers.clone()), expected, "{numbers:?}");
        }
        let Ok(Figures::Scale(figures)) =
            Figures::parse(&crate::results::tests::scale().to_string())
        else {
            panic!()
        };
        let text = scale(&figures);
        let row = |begin: &str| {
            text.lines()
                .find(|line| line.trim_start().starts_with(begin))
                .unwrap()
                .to_owned()
        };
        let cells = |row: String| {
            row.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        // 30 fields in 44 us of CPU.
        let expected = [
            "encrypt",
            "endpoint list",
            "1",
            "500",
            "2.00 ms",
            "9.00 ms",
            "44.0",
            "681,818",
        ];
        assert_eq!(cells(row("encrypt"))[..8], expected);
        let balanced = text
            .lines()
            .filter(|line| line.contains("TCP balancer  "))
            .map(|line| cells(line.to_owned()));
        let [balanced] = &balanced.collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        assert_eq!(
            balanced[6..],
            [
                "55.0", "18,182", "4.00", "30.0", "460", "12.0", "0.900", "0"
            ]
        );
        let restarted = "TCP balancer: one of 2 engines killed, away for 0.500 s; 5.00 s later it has 0.120 of an equal share";
        for part in [
            restarted,
            "1,850 log bytes and 0.300 whole pages for each of 20,000 new tokens",
            "191 bytes of rows and 64.0 and 65.0 bytes",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let line = scale_progress(&figures.points[0]);
        assert_eq!(
            line,
            "round 1: encrypt of 1 by endpoint list: 500 requests/s, 40.0 us of engine CPU each"
        );
    }
}
