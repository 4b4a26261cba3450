//! Workers that lose their time to other processes: admission follows, and no admitted request waits
//! for long.

use super::{Contention, MS, Scenario, Scope, SimulationReport, mixed, seeds};

/// Twice the bound of a request of ordinary size, in ns.
const TWICE_WAIT_MAX: u64 = 500 * MS;

/// Six busy loops beside two workers, a disk or a cgroup that freezes them for seconds, and memory
/// that is swapped in for most of the time.
const HOGS: Contention = Contention {
    from: 5_000,
    to: 25_000,
    runs: 4,
    stands: 28,
};
const FREEZE: Contention = Contention {
    from: 5_000,
    to: 8_000,
    runs: 0,
    stands: 3_000,
};
const PRESSURE: Contention = Contention {
    from: 5_000,
    to: 25_000,
    runs: 50,
    stands: 950,
};

/// Clients that wait for 30 s, the default, and do not pause after a rejection.
fn scenario(scope: Scope, load: f64, contention: Contention) -> Scenario {
    Scenario::new(mixed(0..2, 0, scope, load), 30_000).with(|s| {
        (s.contention, s.pause, s.read) = (Some(contention), false, 0);
        for source in &mut s.sources {
            source.timeout_ms = Some(30_000);
        }
    })
}

/// The longest waits of small and medium requests.
fn waited_max(report: &SimulationReport) -> u64 {
    report.rows[0][..2]
        .iter()
        .map(|row| row.waited_max)
        .max()
        .unwrap()
}

#[test]
fn admitted_requests_wait_at_most_twice_their_bound() {
    for (name, contention) in [("hogs", HOGS), ("freeze", FREEZE), ("pressure", PRESSURE)] {
        for (scope, load) in [
            (Scope::Field, 0.5),
            (Scope::Field, 0.9),
            (Scope::Request, 0.7),
        ] {
            for seed in seeds(3) {
                let report = scenario(scope, load, contention).seed(seed).run();
                report.show(&format!("{name} {scope:?} x{load}, seed {seed}"), 0);
                let waited: Vec<_> = report.rows[0]
                    .iter()
                    .map(|row| row.waited_max / MS)
                    .collect();
                let expired: Vec<_> = report.rows[0].iter().map(|row| row.expired).collect();
                println!("   waited at most {waited:?} ms, expired {expired:?}");
                assert!(waited_max(&report) <= TWICE_WAIT_MAX, "{name}");
                assert_eq!(report.idle_while_waiting, 0);
            }
        }
    }
}
