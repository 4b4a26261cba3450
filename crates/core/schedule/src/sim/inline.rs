//! Small work on the network thread: it delays no other request, and load disables it.

use super::{Arrivals, Scenario, Scope, SimulationReport, SizeMix, Source, US, mixed};

/// The engine's default.
const INLINE: u64 = 30 * US;
/// One field under a ready key: 5.2 us.
const ONE: SizeMix = &[(1, 1.0)];

/// The same with work on the network thread and without.
fn both(name: &str, scenario: &Scenario) -> [SimulationReport; 2] {
    let scenario = scenario.clone().with(|s| s.read = 10 * US);
    [INLINE, 0].map(|inline| {
        let report = scenario.clone().with(|s| s.inline = Some(inline)).run();
        for group in 0..report.rows.len() {
            report.show(
                &format!(
                    "{name}, {inline} ns inline, {:.2} of group {group}",
                    share(&report, group)
                ),
                group,
            );
        }
        report
    })
}

/// Requests of a group that the network thread ran, as a part of those that ended.
fn share(report: &SimulationReport, group: usize) -> f64 {
    report.row(group, 0).inline as f64 / report.row(group, 0).done() as f64
}

/// Requests of one field of one tenant.
fn small(tenant: u32, group: usize, arrivals: Arrivals) -> Source {
    Source::new(tenant, group, Scope::Ready, ONE, arrivals)
}

#[test]
fn load_disables_inline_work() {
    let [low, high, full] = [10_000.0, 60_000.0, 105_000.0].map(|per_second| {
        let [with, without] = both(
            &format!("{per_second}/s"),
            &Scenario::new(vec![small(0, 0, Arrivals::Poisson(per_second))], 2_000),
        );
        assert_eq!(share(&without, 0), 0.0);
        share(&with, 0)
    });
    // To read 100,000 requests/s is all that the network thread can do.
    assert!(
        low > 0.99 && high < 0.8 && full < 0.01,
        "{low} {high} {full}"
    );
}

#[test]
fn batches_of_others_lose_no_throughput() {
    let batch = |tenant| {
        Source::new(
            tenant,
            1,
            Scope::Request,
            &[(10_000, 1.0)],
            Arrivals::Closed(8),
        )
    };
    let sources = vec![small(0, 0, Arrivals::Closed(1)), batch(1), batch(2)];
    let [with, without] = both("beside batches", &Scenario::new(sources, 4_000));
    assert!(with.row(0, 0).ms(0.99) <= 1.05 * without.row(0, 0).ms(0.99));
    assert!(with.goodput(1) >= 0.99 * without.goodput(1));
    assert!(share(&with, 0) < 0.05, "something is queued nearly always");
}

#[test]
fn flood_of_small_requests_gains_nothing_inline() {
    let victims = mixed(0..4, 0, Scope::Request, 0.2);
    let flood = small(9, 1, Arrivals::Closed(200));
    let [with, without] = both(
        "flood",
        &Scenario::new([victims, vec![flood]].concat(), 2_000),
    );
    // Of the largest there are too few for a p99.
    for (size, quantile) in [(0, 0.99), (1, 0.99), (2, 0.5)] {
        let [with, without] = [&with, &without].map(|report| report.row(0, size).ms(quantile));
        assert!(with <= 1.1 * without, "size {size}: {with} {without}");
    }
    assert!(with.row(1, 0).done() as f64 <= 1.05 * without.row(1, 0).done() as f64);
}

#[test]
fn a_client_beside_another_waits_for_at_most_one_budget() {
    let sources = vec![
        small(0, 0, Arrivals::Poisson(5_000.0)),
        small(1, 1, Arrivals::Poisson(5_000.0)),
    ];
    let [with, without] = both("two clients", &Scenario::new(sources, 4_000));
    for group in [0, 1] {
        let later = with.row(group, 0).ms(0.99) - without.row(group, 0).ms(0.99);
        assert!(
            later <= INLINE as f64 / 1e6 && share(&with, group) > 0.9,
            "{later} ms"
        );
    }
}
