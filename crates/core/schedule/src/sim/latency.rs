//! Small requests beside large ones: the founding story, the mix at three loads; what slices, classes
//! and the guard do.

use super::{Arrivals, MS, Scenario, Scope, SimulationReport, Source, millis, mixed, seeds};
use crate::units::Cost;

/// A client that sends 100 fields 20 times a second.
fn synthetic(tenant: u32, scope: Scope) -> Source {
    Source::new(tenant, 0, scope, &[(100, 1.0)], Arrivals::Poisson(20.0))
}

/// Two clients that each keep `outstanding` requests of 10,000 fields in flight.
fn batches(scope: Scope, outstanding: usize) -> Vec<Source> {
    let batch = |tenant| {
        Source::new(
            tenant,
            1,
            scope,
            &[(10_000, 1.0)],
            Arrivals::Closed(outstanding),
        )
    };
    vec![batch(1), batch(2)]
}

/// The p99 of the synthetic client divided by its p99 without the batches.
fn times_idle(beside: &SimulationReport, idle: &SimulationReport) -> f64 {
    beside.row(0, 0).ms(0.99) / idle.row(0, 0).ms(0.99)
}

#[test]
fn small_request_beside_two_batches_takes_at_most_twice_as_long() {
    for scope in [Scope::Field, Scope::Request] {
        let idle = Scenario::new(vec![synthetic(0, scope)], 60_000).run();
        idle.show(&format!("E1 {scope:?} alone"), 0);
        let millis = if scope == Scope::Field {
            millis(20_000, 40_000)
        } else {
            millis(12_000, 25_000)
        };
        for outstanding in [1, 8] {
            let batch = Scenario::new(batches(scope, outstanding), millis)
                .run()
                .goodput(1);
            for (tenant, seed) in [0, 1]
                .into_iter()
                .flat_map(|tenant| seeds(2).map(move |seed| (tenant, seed)))
            {
                let sources =
                    [vec![synthetic(tenant, scope)], batches(scope, outstanding)].concat();
                let scenario = Scenario::new(sources, millis).seed(seed);
                let beside = scenario.clone().run();
                beside.show(
                    &format!("E1 {scope:?} beside 2 x {outstanding}, tenant {tenant}, seed {seed}"),
                    0,
                );
                assert!(times_idle(&beside, &idle) <= 2.0);
                assert!(beside.row(0, 0).ms(0.5) <= 1.3 * idle.row(0, 0).ms(0.5));
                assert!(beside.row(0, 0).max_ms() <= 5.0 * idle.row(0, 0).ms(0.99));
                assert!(
                    beside.goodput_all() >= 0.97 * batch,
                    "{} of {batch}",
                    beside.goodput_all()
                );
                assert_eq!(
                    beside.rejected_read(1),
                    0,
                    "a batch that fits its deadline waits, it is not rejected"
                );
                assert!(
                    beside.backlog_max <= 5_000 * MS,
                    "and what waits is not read: {}",
                    beside.backlog_max
                );
                if (tenant, seed) == (0, 1) && (outstanding == 8 || scope == Scope::Field) {
                    // Each mechanism is switched off to show its effect.
                    let queue = scenario.clone().first_come_first_served().run();
                    queue.show("   without a scheduler", 0);
                    assert!(times_idle(&queue, &idle) >= 25.0 * outstanding.min(2) as f64);
                    if scope == Scope::Request {
                        let long = scenario
                            .clone()
                            .with(|s| s.options.slice = Cost::from_nanos(5 * MS))
                            .run();
                        long.show("   slices of 5 ms", 0);
                        assert!(times_idle(&long, &idle) > 4.0);
                        let whole = scenario.with(|s| s.tuning.slice_parts = 1).run();
                        whole.show("   whole slices of more", 0);
                        assert!(
                            times_idle(&whole, &idle) > 2.0
                                && beside.goodput_all() >= 0.985 * whole.goodput_all()
                        );
                    } else if outstanding == 8 {
                        assert!(scenario.without_admission().run().backlog_max > 7_000 * MS);
                    }
                }
            }
        }
    }
}

#[test]
fn in_a_mix_the_small_and_medium_are_hardly_delayed_and_the_large_pay_little() {
    for scope in [Scope::Field, Scope::Request] {
        for (load, tenants) in [
            (0.5, 1),
            (0.5, 20),
            (0.8, 1),
            (0.8, 20),
            (0.95, 1),
            (0.95, 20),
        ] {
            let millis = if scope == Scope::Field { 40_000 } else { 4_000 };
            let [small, medium, _] =
                [30, 150, 2_000].map(|fields| scope.work(fields) as f64 / MS as f64);
            for seed in seeds(2) {
                let scenario = Scenario::new(mixed(0..tenants, 0, scope, load), millis).seed(seed);
                let report = scenario.clone().run();
                report.show(
                    &format!("E2 {scope:?} load {load}, {tenants} tenants, seed {seed}"),
                    0,
                );
                assert_eq!((report.rejected_read(0), report.idle_while_waiting), (0, 0));
                let queue = scenario.clone().first_come_first_served().run();
                if seed == 1 {
                    queue.show("   without a scheduler", 0);
                }
                let p99 = |report: &SimulationReport, size| report.row(0, size).ms(0.99);
                if scope == Scope::Request {
                    // Nearly every request is one slice here, so there is less to gain.
                    assert!(load < 0.8 || p99(&report, 0) <= 0.75 * p99(&queue, 0));
                } else if load <= 0.8 {
                    assert!(p99(&report, 0) <= 3.0 * small && p99(&report, 1) <= 5.0 * medium);
                }
                if scope == Scope::Field && load >= 0.8 {
                    assert!(p99(&report, 0) <= p99(&queue, 0) / 50.0);
                    assert!(
                        load > 0.8 || p99(&report, 2) <= 3.0 * p99(&queue, 2),
                        "{}",
                        p99(&queue, 2)
                    );
                    if seed > 1 {
                        continue;
                    }
                    let flat = scenario
                        .with(|s| s.tuning.class_first = Cost::from_nanos(u64::MAX))
                        .run();
                    flat.show("   one class", 0);
                    assert!(
                        p99(&flat, 0) > 3.0 * small,
                        "one class of requests is not enough"
                    );
                }
            }
        }
    }
}

#[test]
fn large_request_ends_beside_small_requests_of_its_tenant() {
    for scope in [Scope::Field, Scope::Request] {
        let large = Source::new(0, 0, scope, &[(2_000, 1.0)], Arrivals::Closed(1));
        let loop_of_small = Source::new(0, 1, scope, &[(30, 1.0)], Arrivals::Closed(64));
        let scenario = Scenario::new(vec![large, loop_of_small], millis(8_000, 20_000));
        let report = scenario.clone().run();
        report.show(&format!("guard {scope:?}"), 0);
        // One turn in 16 of two workers is an eighth of the speed it has alone.
        assert!(report.row(0, 0).ms(0.99) <= 17.0 * scope.work(2_000) as f64 / MS as f64);
        let unguarded = scenario.with(|s| s.tuning.guard = 0).run();
        unguarded.show("   no guard", 0);
        assert!(unguarded.row(0, 0).done() <= report.row(0, 0).done() / 20);
    }
}

#[test]
fn estimates_may_be_wrong_by_a_factor_of_two() {
    let scenario = Scenario::new(mixed(0..20, 0, Scope::Field, 0.8), 60_000);
    let exact = scenario.clone().run();
    for (factor, times) in [(2.0, 1.3), (4.0, 2.5)] {
        let wrong = scenario.clone().with(|s| s.misjudged = factor).run();
        wrong.show(&format!("E2 Field load 0.8, estimates within x{factor}"), 0);
        assert!(wrong.row(0, 0).ms(0.99) <= times * exact.row(0, 0).ms(0.99));
    }
}

#[test]
fn a_worker_that_stands_still_delays_only_what_it_runs() {
    let report = Scenario::new(mixed(0..20, 0, Scope::Field, 0.5), 20_000)
        .with(|s| s.stall = Some((10_000, 50)))
        .run();
    report.show("stall of 50 ms", 0);
    assert_eq!(report.rejected_read(0), 0);
    assert!(report.row(0, 0).ms(0.99) <= 3.0 * 1.5);
}

#[test]
fn suspended_requests_delay_no_other() {
    // 4,000 requests of one tenant at any time, each a second away: a third of two workers, and 0.3 s
    // of work still to come, behind which a request of ordinary size would be rejected.
    let away = Source {
        away_ms: Some(1_000),
        ..Source::new(
            0,
            1,
            Scope::Request,
            &[(500, 1.0)],
            Arrivals::Poisson(4_000.0),
        )
    };
    let idle = Scenario::new(vec![synthetic(0, Scope::Request)], 20_000).run();
    let report = Scenario::new(vec![synthetic(0, Scope::Request), away], 20_000).run();
    report.show("beside 4,000 requests a second away", 0);
    assert!(times_idle(&report, &idle) <= 3.0);
    assert_eq!((report.rejected_read(0), report.rejected_read(1)), (0, 0));
    assert!(report.backlog_max <= 10 * MS, "{}", report.backlog_max);
    let each = report.row(1, 0).ms(0.99);
    assert!((1_000.0..=1_010.0).contains(&each), "{each} ms");
}
