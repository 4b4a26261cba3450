//! The calculation as text: costs, capacity per number of engines, and what to do at each limit.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Calculation, ConnectionBound, EngineCapacity, Mix, MixCapacity, Resource};
use crate::results::ScaleLoad;
use crate::table::{columns, number};

const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1_u64 << 20) as f64;

impl Resource {
    const fn name(self) -> &'static str {
        match self {
            Self::EngineCpu => "engine CPU",
            Self::EngineNetwork => "engine network",
            Self::DatabaseCpu => "database CPU",
            Self::DatabaseLog => "database log",
            Self::DatabaseReads => "database reads",
            Self::DatabaseWrites => "database writes",
        }
    }

    /// Returns what an operator can do when the resource is at its limit.
    const fn remedy(self) -> &'static str {
        match self {
            Self::EngineCpu => "add engines or cores; send more fields per request",
            Self::EngineNetwork => {
                "add engines; send only the fields that need it; suite `xaes` makes shorter envelopes"
            }
            Self::DatabaseCpu => {
                "send several values per request; add cores; spread apps over workers (docs/citus.md)"
            }
            Self::DatabaseLog => {
                "raise checkpoint_timeout and max_wal_size; set wal_compression; use random collections where equal values \
                 need not have equal tokens, which have one index less; spread apps over workers (docs/citus.md)"
            }
            Self::DatabaseReads => {
                "add memory for the indexes; spread apps over workers (docs/citus.md)"
            }
            Self::DatabaseWrites => {
                "raise checkpoint_timeout and max_wal_size: a page is written once per checkpoint; add memory; spread apps \
                 over workers (docs/citus.md)"
            }
        }
    }
}

impl ConnectionBound {
    const fn name(self) -> &'static str {
        match self {
            Self::DatabaseConnections => "database connections",
            Self::EngineConnections => "connections of an engine",
            Self::PrincipalConnections => "connections of one name to an engine",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::DatabaseConnections => {
                "raise max_connections of the database, which costs it memory; or lower postgres.writers and postgres.readers"
            }
            Self::EngineConnections => {
                "raise limits.connections_max; let a client keep one connection per engine; or give each client a part of \
                 the engines"
            }
            Self::PrincipalConnections => {
                "issue certificates with more names; or raise limits.connections_per_principal_max"
            }
        }
    }
}

/// Formats the calculation.
pub(crate) fn text(of: &Calculation) -> String {
    let mut text = costs(of);
    let to = &of.deployment;
    let per_token = of.costs.heap_bytes + of.costs.index_bytes.iter().sum::<f64>();
    let _ = writeln!(
        text,
        "\ncalculated for engines of {} cores and {} Gbit/s; a database of {} cores, {} GiB for pages of tokens, {} random reads\n\
         and {} writes a second, {} MiB/s of log, a checkpoint at least every {} s, max_wal_size {} GiB; {} tokens, which\n\
         take {} GiB; {} clients of {} names with {} connections to each engine; at most {} % of each in use",
        number(to.engine_cores),
        number(to.engine_network_bits_per_s / 1e9),
        number(to.database_cores),
        number(to.database_cache_bytes / GIB),
        number(to.database_reads_per_s),
        number(to.database_writes_per_s),
        number(to.database_log_bytes_per_s / MIB),
        number(to.checkpoint_s),
        number(to.wal_bytes_max / GIB),
        number(to.tokens),
        number(to.tokens * per_token / GIB),
        number(to.clients),
        number(to.principals),
        number(to.connections),
        number(to.busy_max * 100.0),
    );
    let (mut resources, mut bounds) = (BTreeSet::new(), BTreeSet::new());
    for mix in &of.mixes {
        let _ = write!(
            text,
            "\n{}\n{}",
            described(&mix.mix),
            rows(mix, to.busy_max)
        );
        resources.extend(mix.rows.iter().map(|row| row.limit));
        bounds.extend(
            mix.rows
                .iter()
                .flat_map(|row| row.exceeded.iter().map(|(bound, ..)| *bound)),
        );
    }
    text += "\nat a limit:\n";
    for resource in resources {
        let _ = writeln!(text, "  {}: {}", resource.name(), resource.remedy());
    }
    for bound in bounds {
        let _ = writeln!(text, "  {}: {}", bound.name(), bound.remedy());
    }
    text
}

fn costs(of: &Calculation) -> String {
    let mut text = String::from("measured costs\n");
    let pair = |(request, batch): (f64, f64)| [number(request), number(batch)];
    let loads = of.costs.loads.iter().map(|cost| {
        let mut row = vec![cost.load.name().to_owned()];
        row.extend(pair(cost.engine_us));
        row.extend(pair(cost.database_us));
        row.push(number(cost.bytes));
        row
    });
    let head = [
        "load",
        "engine us per request",
        "and batch",
        "database us per request",
        "and batch",
        "bytes",
    ];
    text += &columns(&head, &loads.collect::<Vec<_>>());
    let costs = &of.costs;
    if !costs.index_bytes.is_empty() {
        let indexes: Vec<String> = costs
            .index_bytes
            .iter()
            .map(|bytes| number(*bytes))
            .collect();
        let _ = writeln!(
            text,
            "  a token: {} bytes of rows, {} bytes of indexes, {} bytes of log; {} bytes of log for an index page that\n  \
             changes for the first time after a checkpoint",
            number(costs.heap_bytes),
            indexes.join(" and "),
            number(costs.log_bytes),
            number(costs.page_image_bytes),
        );
    }
    let compared = |(predicted, measured): (f64, f64), unit: &str| {
        let (by, predicted, measured) = (
            (predicted / measured - 1.0) * 100.0,
            number(predicted),
            number(measured),
        );
        format!("{predicted}{unit} predicted, {measured} measured ({by:+.0} %)")
    };
    for check in &of.checks {
        let (load, engines) = (check.load.name(), check.engines);
        let engine = compared(check.engine_us, " us");
        let _ = write!(
            text,
            "  check: {load} with {engines} engines, from fewer: engine {engine}"
        );
        if let Some(database) = check.database_us {
            let _ = write!(text, "; database {}", compared(database, " us"));
        }
        if let Some(items) = check.batch_items {
            let _ = write!(text, "; per batch {}", compared(items, ""));
        }
        text.push('\n');
    }
    if let Some(pages) = of.full_pages {
        let _ = writeln!(
            text,
            "  check: whole pages in the log per new token after a checkpoint: {}",
            compared(pages, "")
        );
    }
    text
}

/// Describes a mix.
fn described(mix: &Mix) -> String {
    let part =
        |(load, share): &(ScaleLoad, f64)| format!("{} % {}", number(share * 100.0), load.name());
    mix.0
        .iter()
        .filter(|(_, share)| *share > 0.0)
        .map(part)
        .collect::<Vec<_>>()
        .join(", ")
}

fn rows(mix: &MixCapacity, busy_max: f64) -> String {
    let percent = |row: &EngineCapacity, resource: Resource| {
        let part = row
            .use_of_limit
            .iter()
            .find(|(of, _)| *of == resource)
            .map_or(0.0, |(_, part)| *part);
        format!("{:.0} %", part * busy_max * 100.0)
    };
    let rows: Vec<Vec<String>> = mix
        .rows
        .iter()
        .map(|row| {
            let mut cells = vec![
                row.engines.to_string(),
                number(row.requests_per_s),
                row.limit.name().to_owned(),
            ];
            cells.extend(Resource::ALL.map(|resource| percent(row, resource)));
            cells.push(row.batch_items.map_or_else(|| "-".to_owned(), number));
            cells.push(number(row.log_bytes_per_s / MIB));
            cells.push(if row.log_bytes_per_s > 0.0 {
                number(row.checkpoint_s)
            } else {
                "-".to_owned()
            });
            let exceeded = row.exceeded.iter().map(|(bound, needed, allowed)| {
                format!(
                    "{}: {} of {}",
                    bound.name(),
                    number(*needed),
                    number(*allowed)
                )
            });
            cells.push(exceeded.collect::<Vec<_>>().join("; "));
            cells
        })
        .collect();
    let head = [
        "engines",
        "requests/s",
        "first at its limit",
        "engine CPU",
        "network",
        "database CPU",
        "log",
        "reads",
        "writes",
        "per batch",
        "log MiB/s",
        "checkpoint s",
        "too many",
    ];
    columns(&head, &rows)
}
