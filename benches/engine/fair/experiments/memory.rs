//! `memory`: large requests with slow readers of their responses, under a small memory budget.
//! Another tenant must not be affected.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::Duration;

use sealwire_benches::stats::Verdict;
use sealwire_wire::KeyScope;
use serde_json::json;

use super::{finish, summary, warm_up, within};
use crate::child::{EngineChild, Setting};
use crate::fair::Bench;
use crate::fair::connection::{Frame, Pace};
use crate::fair::generator::{Drive, Generator, Load, Outcome, Sample};
use crate::fair::report::{self, Judged, Section, Table, digits, kept_up, percent};

/// The memory budget.
const MEMORY_MIB: f64 = 64.0;
/// Memory of a process beyond its budget: buffers of sockets and TLS, and free memory in the
/// allocator.
const BEYOND_MIB: f64 = 64.0;
/// Engine settings. The longest request and its response must fit into half of the budget.
const SETTINGS: [Setting; 5] = [
    ("schedule.order", "fair"),
    ("schedule.memory_mib", "64"),
    ("limits.message_bytes_max", "11534336"),
    ("limits.reply_bytes_max", "20971520"),
    ("limits.bytes_per_connection_max", "67108864"),
];
/// Fields of a document of 2 MB, whose response has 9 MB.
const LARGE_FIELDS: usize = 85_000;
const SMALL_FIELDS: usize = 30;
const LARGE_CONNECTIONS: usize = 16;
/// Large requests in flight on each connection.
const LARGE_CALLS: usize = 2;
/// Rate of the small requests: one per 20 ms.
const SMALL_PER_S: f64 = 50.0;
/// Read pace of a slow reader: 6 MB per second.
const PACE: Pace = Pace {
    bytes: 64 << 10,
    pause: 10_000_000,
};
/// Gate: least share of the other tenant's requests that are served within a second.
const SERVED_MIN: f64 = 0.99;
const WITHIN_MS: f64 = 1_000.0;
const LAG_OF_MS: f64 = 40.0;

/// Runs the experiment.
pub(crate) fn run(bench: &Bench) -> io::Result<Section> {
    let mut section =
        Section::new("memory: 2 MB documents and slow readers against a budget of 64 MiB");
    let engine = bench.engine("memory", &SETTINGS)?;
    let frames = vec![
        Frame::new(SMALL_FIELDS, KeyScope::Request, Some(WITHIN_MS as u32)),
        Frame::new(LARGE_FIELDS, KeyScope::Request, Some(20_000)),
    ];
    let mut generator = Generator::new(frames);
    let connections = [
        generator.connect(&engine, &bench.folder, "caller", 1)?,
        generator.connect(&engine, &bench.folder, "hog", LARGE_CONNECTIONS)?,
    ];
    warm_up(bench, &mut generator, &connections[0])?;
    let base_mib = engine.resident_mib()?;
    let [small, large] = add(&mut generator, &connections);
    bench.say("memory: readers stall, then read slowly");
    generator.begin_cost();
    let stall = Duration::from_millis(bench.length.pick(3_000, 2_000, 300));
    generator.pace(connections[1].clone(), Some((stall, PACE)));
    generator.start(large);
    generator.start(small);
    let window = generator.run(Duration::from_millis(
        bench.length.pick(10_000, 6_000, 1_200),
    ))?;
    generator.stop(small);
    generator.pace(connections[1].clone(), None);
    generator.stop(large);
    generator.settle(small)?;
    generator.settle(large)?;
    let samples = generator.take();
    let (judged, note) = kept_up(generator.cost(&samples), LAG_OF_MS, "memory");
    section.notes.push(note);
    section.raw = json!({ "small": small, "large": large, "samples": report::raw(&samples) });
    tell(&samples, [small, large], &window, &mut section, judged);
    gate_memory(&engine, base_mib, &mut section)?;
    finish(bench, engine, generator)?;
    Ok(section)
}

fn add(generator: &mut Generator, connections: &[Range<usize>; 2]) -> [usize; 2] {
    let drives = [Drive::Even(SMALL_PER_S), Drive::Closed(LARGE_CALLS)];
    let mut add = |at: usize| {
        generator.add(Load {
            calls: vec![(at, 1.0)],
            connections: connections[at].clone(),
            drive: drives[at],
        })
    };
    [add(0), add(1)]
}

fn tell(
    samples: &[Sample],
    [small, large]: [usize; 2],
    window: &Range<u64>,
    section: &mut Section,
    judged: Judged,
) {
    let mut table = Table::new(
        "Calls",
        &[
            "tenant",
            "p50 ms",
            "p99 ms",
            "max ms",
            "served",
            "what became of all",
        ],
    );
    for (name, load) in [("30 fields", small), ("85,000 fields, read slowly", large)] {
        let of = || within(samples, window).filter(|sample| sample.load == load);
        let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
        of().for_each(|sample| *outcomes.entry(format!("{:?}", sample.outcome)).or_default() += 1);
        let outcomes: Vec<String> = outcomes
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let cells = report::summary(summary(of().filter(|sample| sample.outcome == Outcome::Ok)));
        table.row([vec![name.to_owned()], cells, vec![outcomes.join(", ")]].concat());
    }
    section.tables.push(table);
    let calls = || within(samples, window).filter(|sample| sample.load == small);
    let served = calls().filter(|sample| sample.is_served(WITHIN_MS)).count() as f64
        / calls().count() as f64;
    section.gate(
        format!(
            "the other tenant: >= {} served within a second",
            percent(SERVED_MIN)
        ),
        percent(served),
        Verdict::of(served >= SERVED_MIN),
        judged,
    );
}

fn gate_memory(engine: &EngineChild, base_mib: f64, section: &mut Section) -> io::Result<()> {
    let (most, bound) = (
        engine.resident_max_mib()?,
        MEMORY_MIB + base_mib + BEYOND_MIB,
    );
    section.gate(
        format!(
            "RSS <= budget {MEMORY_MIB} + before {} + {BEYOND_MIB} MiB",
            digits(base_mib)
        ),
        format!("{} MiB of {}", digits(most), digits(bound)),
        Verdict::of(most <= bound),
        Judged::Always,
    );
    Ok(())
}
