//! Fairness between tenants: a greedy tenant, many small requests, many connections, weights, and
//! the two bounds on the remembered service.

use super::{Arrivals, Scenario, Scope, SimulationReport, Source, millis, mixed, seeds};

fn p99(report: &SimulationReport, size: usize) -> f64 {
    report.row(0, size).ms(0.99)
}

#[test]
fn greedy_tenant_gets_only_the_remaining_capacity() {
    for scope in [Scope::Field, Scope::Request] {
        let millis = if scope == Scope::Field {
            millis(25_000, 40_000)
        } else {
            millis(4_500, 6_000)
        };
        for seed in seeds(2) {
            let victims = mixed(0..3, 0, scope, 0.3);
            let alone = Scenario::new(victims.clone(), millis)
                .under_overload()
                .seed(seed)
                .run();
            let sources = [victims, mixed(9..10, 1, scope, 10.0)].concat();
            let scenario = Scenario::new(sources, millis).under_overload().seed(seed);
            let report = scenario.clone().run();
            report.show(&format!("E5 {scope:?} victims, seed {seed}"), 0);
            report.show(&format!("E5 {scope:?} hog, seed {seed}"), 1);
            for row in &report.rows[0] {
                assert!(
                    (row.late + row.rejected) * 1_000 <= row.offered,
                    "{} of {}",
                    row.rejected,
                    row.offered
                );
            }
            assert!(p99(&report, 0) <= 2.0 * p99(&alone, 0));
            let attainable = if scope == Scope::Field { 1.0 } else { 0.86 };
            assert!(
                report.goodput_all() >= 0.94 * attainable,
                "{}",
                report.goodput_all()
            );
            if seed > 1 {
                continue;
            }
            let mixed_up = scenario.with(|s| s.one_tenant = true).run();
            let rejected: u64 = mixed_up.rows[0].iter().map(|row| row.rejected).sum();
            assert!(
                rejected > 100,
                "to tell tenants apart is what protects them"
            );
        }
    }
}

#[test]
fn flood_of_small_requests_delays_other_tenants_little() {
    for (scope, millis) in [(Scope::Field, 40_000), (Scope::Request, 6_000)] {
        let victims = mixed(0..4, 0, scope, 0.2);
        let alone = Scenario::new(victims.clone(), millis).run();
        alone.show(&format!("E6 {scope:?} victims alone"), 0);
        let flood = Source::new(9, 1, scope, &[(30, 1.0)], Arrivals::Closed(200));
        let scenario = Scenario::new([victims, vec![flood]].concat(), millis);
        for seed in seeds(2) {
            let report = scenario.clone().seed(seed).run();
            report.show(&format!("E6 {scope:?} victims, seed {seed}"), 0);
            for (size, times) in [(0, 2.0), (1, 5.0), (2, 5.0)] {
                assert!(p99(&report, size) <= times * p99(&alone, size));
            }
        }
        let ungated = scenario
            .clone()
            .with(|s| s.tuning.surplus_max = u64::MAX)
            .run();
        ungated.show("   no gate", 0);
        assert!(p99(&ungated, 2) > 5.0 * p99(&alone, 2));
        let mixed_up = scenario.with(|s| s.one_tenant = true).run();
        mixed_up.show("   one tenant", 0);
        assert!(p99(&mixed_up, 0) > 10.0 * p99(&alone, 0));
    }
}

#[test]
fn shares_follow_weights_and_not_connections() {
    for (scope, mix) in [
        (Scope::Field, &[(30, 1.0)][..]),
        (Scope::Field, &[(2_000, 1.0)]),
        (Scope::Request, &[(30, 1.0)]),
    ] {
        for weight in [1, 3] {
            let mut many = Source::new(1, 0, scope, mix, Arrivals::Closed(500));
            let mut few = Source::new(2, 1, scope, mix, Arrivals::Closed(16));
            (many.connections, few.weight) = (500, weight);
            let report = Scenario::new(vec![many, few], millis(8_000, 20_000)).run();
            let share = report.goodput(1) / report.goodput(0);
            println!("E6 {scope:?} {mix:?}, weights 1 and {weight}: share {share:.3}");
            assert!((share / f64::from(weight) - 1.0).abs() <= 0.1, "{share}");
        }
    }
}

#[test]
fn credit_is_not_saved_up() {
    // Five seconds of large requests only, and then a flood of small ones on top.
    let batch = Source::new(9, 1, Scope::Field, &[(10_000, 1.0)], Arrivals::Closed(2));
    let mut flood = Source::new(9, 1, Scope::Field, &[(30, 1.0)], Arrivals::Closed(200));
    flood.active.0 = 5_000;
    let sources = [mixed(0..4, 0, Scope::Field, 0.6), vec![batch, flood]].concat();
    let scenario = Scenario::new(sources, 7_000).with(|s| s.warm_up_millis = 5_000);
    let report = scenario.clone().run();
    report.show("credit", 0);
    let hoarded = scenario.with(|s| s.tuning.credit_max = u64::MAX).run();
    hoarded.show("   no bound", 0);
    assert!(p99(&report, 0) <= 3.0 * 1.5 && p99(&hoarded, 0) > 10.0 * 1.5);
}

#[test]
fn work_on_idle_workers_is_not_held_against_a_tenant() {
    // Four workers. Two tenants use one each for ten seconds, a third the other two; then all want
    // all.
    let of = |tenant, group, outstanding| {
        Source::new(
            tenant,
            group,
            Scope::Field,
            &[(400, 1.0)],
            Arrivals::Closed(outstanding),
        )
    };
    let mut sources = vec![
        of(1, 1, 1),
        of(2, 1, 1),
        of(3, 0, 16),
        of(1, 1, 15),
        of(2, 1, 15),
    ];
    sources[3].active.0 = 10_000;
    sources[4].active.0 = 10_000;
    let scenario = Scenario::new(sources, 11_500).with(|s| {
        s.warm_up_millis = 10_000;
        s.options.workers = std::num::NonZeroU32::new(4).unwrap();
    });
    let report = scenario.clone().run();
    report.show("debt", 0);
    let indebted = scenario.with(|s| s.tuning.deficit_max = u64::MAX).run();
    indebted.show("   no bound", 0);
    assert!(
        report.goodput(0) >= 0.25 && indebted.goodput(0) < 0.15,
        "{} {}",
        report.goodput(0),
        indebted.goodput(0)
    );
}
