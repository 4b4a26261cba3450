//! A tenant whose requests cost far more than the model says, beside one with small requests: the
//! neighbour fares as beside an honest load of the same cost.

use super::{Arrivals, MS, Scenario, Scope, SimulationReport, SizeMix, Source};

/// Requests of 330 ms of which the model counts 1.3 ms, and of 1.3 ms of which it counts 5 us.
const LONG: SizeMix = &[(1_650_000, 1.0)];
const SHORT: SizeMix = &[(6_500, 1.0)];
const UNDERCOUNTED: u64 = 250;

/// The neighbour: 1,000 small requests a second, 6 % of two workers.
fn neighbour() -> Source {
    Source::new(
        1,
        0,
        Scope::Request,
        &[(30, 1.0)],
        Arrivals::Poisson(1_000.0),
    )
}

fn run(
    name: &str,
    mix: SizeMix,
    arrivals: Arrivals,
    change: impl FnOnce(&mut Scenario),
) -> SimulationReport {
    let dear = Source::new(9, 1, Scope::Request, mix, arrivals);
    let report = Scenario::new(vec![neighbour(), dear], 8_000)
        .under_overload()
        .with(change)
        .run();
    report.show(&format!("{name}, neighbour"), 0);
    report.show(&format!("{name}, dear"), 1);
    report
}

/// Part of the neighbour's requests that were done in time.
fn accepted(report: &SimulationReport) -> f64 {
    let row = report.row(0, 0);
    row.done() as f64 / row.offered as f64
}

#[test]
fn undercounted_requests_harm_no_more_than_an_honest_load() {
    for (name, mix, arrivals) in [
        ("a few long", LONG, Arrivals::Poisson(4.0)),
        ("a flood of long", LONG, Arrivals::Closed(8)),
        ("many short", SHORT, Arrivals::Poisson(1_000.0)),
        ("a flood of short", SHORT, Arrivals::Closed(64)),
    ] {
        let honest = run(&format!("{name}: honest"), mix, arrivals, |_| ());
        let undercounted = |s: &mut Scenario| s.sources[1].undercounted = UNDERCOUNTED;
        let dear = run(
            &format!("{name}: undercounted"),
            mix,
            arrivals,
            undercounted,
        );
        for quantile in [0.5, 0.99] {
            let (dear, honest) = (dear.row(0, 0).ms(quantile), honest.row(0, 0).ms(quantile));
            assert!(
                dear <= 1.5 * honest,
                "{name}, {quantile}: {dear} {honest} ms"
            );
        }
        assert!(
            1.5 * accepted(&dear) >= accepted(&honest) && accepted(&honest) > 0.9,
            "{name}"
        );
        assert!(dear.last.speed > 0.5, "{name}: {}", dear.last.speed);

        let unbounded = run(&format!("{name}: counted only"), mix, arrivals, |s| {
            undercounted(s);
            (s.slices_by_time, s.corrects) = (false, false);
        });
        let harm = (accepted(&honest) / accepted(&unbounded))
            .max(unbounded.row(0, 0).ms(0.99) / honest.row(0, 0).ms(0.99));
        assert!(
            harm > 2.0,
            "{name}: without both, the neighbour is harmed: {harm}"
        );
    }
}

#[test]
fn an_honest_tenant_is_corrected_by_nothing() {
    let run = |corrects| {
        run("honest", SHORT, Arrivals::Closed(8), |s| {
            s.corrects = corrects
        })
        .row(0, 0)
        .ms(0.99)
    };
    assert_eq!(run(true), run(false));
}

/// Honest tenants, 60 % of two workers, and perhaps one whose requests the model counts as a part
/// of what they cost.
fn beside_honest(undercounted: Option<u64>) -> Scenario {
    let mut sources = super::mixed(0..3, 0, Scope::Request, 0.6);
    if let Some(undercounted) = undercounted {
        let mut dear = Source::new(9, 1, Scope::Request, SHORT, Arrivals::Closed(8));
        dear.undercounted = undercounted;
        sources.push(dear);
    }
    Scenario::new(sources, 8_000)
}

#[test]
fn a_slowdown_of_the_machine_is_learned_and_one_tenant_is_not() {
    // It becomes four times slower, until it is as fast as before.
    for undercounted in [None, Some(UNDERCOUNTED)] {
        let slow = beside_honest(undercounted).with(|s| {
            s.throttled = Some((1_000, 5_000, 4.0));
            s.millis = 10_000;
        });
        let report = slow.run();
        let (name, [_, most, last]) = ("throttled", report.drift);
        report.show(name, 0);
        println!(
            "{name}: drift {:?}, corrected until {:?}",
            report.drift, report.corrected_until
        );
        assert!(most > 3.5 && (0.9..=1.1).contains(&last), "{most} {last}");
        // No honest tenant is corrected for longer than it takes to learn.
        assert!(
            report.corrected_until[0] < 3_000 * MS,
            "{}",
            report.corrected_until[0] / MS
        );
    }

    for undercounted in [2, 4, UNDERCOUNTED] {
        let report = beside_honest(Some(undercounted)).run();
        println!(
            "{undercounted}: drift {:?}, corrected until {:?}",
            report.drift, report.corrected_until
        );
        assert!(
            report
                .drift
                .iter()
                .all(|drift| (0.99..=1.01).contains(drift)),
            "{:?}",
            report.drift
        );
        assert_eq!(
            report.corrected_until[0], 0,
            "no honest tenant is corrected"
        );
    }
}
