//! Overload: the served work, its proportions and latency, and the rejected requests.

use std::time::Duration;

use super::{
    Arrivals, Contention, Scenario, Scope, SimulationReport, SizeMix, Source, US, mean, millis,
    mixed, seeds,
};

fn scenario(scope: Scope, load: f64, millis: u64) -> Scenario {
    Scenario::new(mixed(0..1, 0, scope, load), millis).under_overload()
}

/// The maximum goodput if every served request costs 10 us to read and 1 us per slice.
fn attainable(scope: Scope) -> f64 {
    match scope {
        Scope::Field => 0.98,
        Scope::Request | Scope::Ready => {
            mean(super::MIX, scope) / (mean(super::MIX, scope) + 11.0 * US as f64)
        }
    }
}

fn least(proportions: &[f64]) -> f64 {
    proportions.iter().copied().fold(f64::INFINITY, f64::min)
}

#[test]
fn overload_costs_no_throughput_and_hits_all_sizes_alike() {
    for (scope, load) in [
        (Scope::Field, 1.2),
        (Scope::Field, 2.0),
        (Scope::Field, 10.0),
        (Scope::Request, 2.0),
        (Scope::Request, 10.0),
    ] {
        for seed in seeds(3) {
            let millis = if scope == Scope::Field {
                millis(20_000, 30_000)
            } else {
                millis(5_000, 8_000)
            };
            let report = scenario(scope, load, millis).seed(seed).run();
            report.show(&format!("E4 {scope:?} x{load}, seed {seed}"), 0);
            assert!(
                report.goodput(0) >= 0.92 * attainable(scope),
                "{}",
                report.goodput(0)
            );
            assert!(
                least(&report.proportions(0)) >= 0.85,
                "{:?}",
                report.proportions(0)
            );
            assert_eq!(report.idle_while_waiting, 0);
            let small = report.row(0, 0);
            assert!(
                small.late == 0 && small.ms(0.99) <= 250.0 + 62.5,
                "the knob bounds what the small wait"
            );
            if scope == Scope::Field {
                assert!(small.ms(0.99) <= 5.0 * small.ms(0.5));
                assert!(
                    report.rows[0].iter().all(|row| row.modes() == 1),
                    "late are all a little, not some very"
                );
            }
        }
    }
}

#[test]
fn admission_without_one_of_its_parts_fails() {
    let scenario = scenario(Scope::Request, 10.0, millis(4_500, 8_000));
    let with = scenario.clone().run();
    let check = |name: &str, change: fn(&mut Scenario), fails: fn(&SimulationReport) -> bool| {
        let without = scenario.clone().with(change).run();
        without.show(&format!("E4 Request x10, {name}"), 0);
        assert!(!fails(&with) && fails(&without), "{name}");
    };
    let large_pay = |report: &SimulationReport| report.proportions(0)[2] < 0.9;
    let large_starve = |report: &SimulationReport| report.proportions(0)[2] < 0.5;
    let nothing_done = |report: &SimulationReport| report.goodput(0) < 0.1;
    check(
        "nothing rejected",
        |s| *s = s.clone().without_admission(),
        nothing_done,
    );
    check("no pause", |s| s.pause = false, nothing_done);
    check(
        "no thresholds",
        |s| s.options.wait_max = Duration::from_secs(1 << 30),
        large_pay,
    );
    check("no curve", |s| s.tuning.wait_min = 1.0, large_pay);
    check(
        "no proportion",
        |s| s.tuning.overload = f64::INFINITY,
        large_starve,
    );
    check("nothing made good", |s| s.tuning.catch_up = 0.0, large_pay);
    check(
        "no speed",
        |s| s.tuning.speed_window = f64::INFINITY,
        large_pay,
    );
}

#[test]
fn late_requests_are_rejected_before_they_start() {
    // The expiry of requests that wait for too long would hide the effect of the predictions.
    let scenario = scenario(Scope::Field, 1.2, 30_000).with(|s| s.expiry = false);
    let late = |report: &SimulationReport| report.rows[0].iter().map(|row| row.late).sum::<u64>();
    let with = scenario.clone().run();
    assert!(late(&with) <= 5 && with.proportions(0)[2] >= 0.85);
    for (name, change) in [
        (
            "no deadlines",
            (|s| s.deadlines = false) as fn(&mut Scenario),
        ),
        ("smaller requests ignored", |s| s.tuning.smaller_max = 0.0),
    ] {
        let without = scenario.clone().with(change).run();
        without.show(&format!("E4 Field x1.2, {name}"), 0);
        assert!(late(&without) >= 100 && without.goodput(0) < with.goodput(0));
        assert!(without.proportions(0)[2] < 0.7);
    }
}

#[test]
fn a_machine_three_times_slower_than_its_model_is_noticed() {
    let slow = scenario(Scope::Field, 2.0, 30_000).with(|s| s.slowness = 3);
    let late = |report: &SimulationReport| report.rows[0].iter().map(|row| row.late).sum::<u64>();
    let report = slow.clone().run();
    report.show("E4 Field x2, three times slower", 0);
    let unnoticed = slow.with(|s| s.tuning.speed_window = f64::INFINITY).run();
    unnoticed.show("   no speed", 0);
    assert!(
        least(&report.proportions(0)) >= 0.85,
        "what was learnt late does not starve the large for good"
    );
    assert!(
        late(&report) * 3 <= late(&unnoticed),
        "{} {}",
        late(&report),
        late(&unnoticed)
    );
}

#[test]
fn closed_loop_that_fits_is_delayed_and_not_rejected() {
    // 80 requests of 7.5 ms are 300 ms of two workers: more than may be admitted, less than may be
    // admitted and wait.
    let source = Source::new(0, 0, Scope::Field, &[(150, 1.0)], Arrivals::Closed(80));
    let scenario = Scenario::new(vec![source], 20_000);
    let report = scenario.clone().run();
    report.show("closed loop of 80", 0);
    assert_eq!(report.rejected_read(0), 0);
    assert!(report.goodput(0) >= 0.97);
    let steep = scenario.with(|s| s.tuning.wait_min = 1.0).run();
    steep.show("   no curve", 0);
    assert!(steep.rows[0][0].rejected * 2 > steep.rows[0][0].offered);
}

#[test]
fn a_moment_of_overload_is_not_followed_by_rejections() {
    // Bulk jobs with requests of several sizes, on a machine that stands still for most of a
    // second.
    const SIZES: SizeMix = &[(1_000, 0.25), (5_000, 0.25), (10_000, 0.25), (30_000, 0.25)];
    for outstanding in [8, 16] {
        for seed in seeds(3) {
            let source = Source::new(0, 0, Scope::Request, SIZES, Arrivals::Closed(outstanding));
            let scenario = Scenario::new(vec![source], millis(20_000, 60_000))
                .seed(seed)
                .with(|s| {
                    s.contention = Some(Contention {
                        from: 1_000,
                        to: 1_900,
                        runs: 5,
                        stands: 295,
                    });
                    s.warm_up_millis = 5_000;
                });
            let report = scenario.clone().run();
            report.show(
                &format!("closed loop of {outstanding} after a stall, seed {seed}"),
                0,
            );
            assert!(
                report.last.rejected.iter().sum::<u64>() > 0,
                "the machine was overloaded"
            );
            assert_eq!(report.rejected_read(0), 0);
            let lasting = scenario.with(|s| s.tuning.catch_up = 0.0).run();
            lasting.show("   what is behind does not count", 0);
            assert!(lasting.rejected_read(0) > 500);
        }
    }
}

#[test]
fn retries_after_the_retry_time_are_admitted() {
    // A burst that lasts longer than the retry time is still there when clients retry.
    for (scope, load, burst_ms, most, times) in [
        (Scope::Field, 10.0, 300, 0.4, 1.5),
        (Scope::Field, 2.0, 3_000, 0.7, 1.15),
        (Scope::Request, 10.0, 300, 0.45, 1.5),
    ] {
        for seed in seeds(3) {
            let mut sources = mixed(0..1, 0, scope, load);
            (sources[0].active, sources[0].timeout_ms) = ((0, burst_ms), Some(10_000));
            let scenario = Scenario::new(sources, 15_000).seed(seed).with(|s| {
                (s.retry, s.pause, s.warm_up_millis) = (true, false, 0);
            });
            let rejected = |report: &SimulationReport, of: fn(&super::ClassRow) -> u64| {
                report.rows[0].iter().map(of).sum::<u64>()
            };
            let again = |report: &SimulationReport| {
                let twice = rejected(report, |row| row.rejected_twice);
                twice as f64 / (rejected(report, |row| row.rejected_read) - twice) as f64
            };
            let told = scenario.clone().run();
            let alone = scenario.with(|s| s.tuning.returning = 0.0).run();
            println!(
                "retry {scope:?} x{load} for {burst_ms} ms, seed {seed}: {} rejected, {:.3} of them twice, {:.3} by the backlog alone",
                rejected(&told, |row| row.rejected_read),
                again(&told),
                again(&alone)
            );
            assert!(again(&told) <= most && again(&alone) >= times * again(&told));
        }
    }
}

#[test]
fn cancelled_requests_leave_no_state() {
    let mut sources = mixed(0..5, 0, Scope::Field, 3.0);
    for source in &mut sources {
        (source.timeout_ms, source.active, source.bytes) = (Some(30), (0, 5_000), 100_000);
    }
    let report = Scenario::new(sources, 10_000)
        .with(|s| (s.deadlines, s.warm_up_millis) = (false, 0))
        .run();
    assert!(
        report.rows[0].iter().map(|row| row.late).sum::<u64>() > 1_000,
        "many were cancelled"
    );
    let last = report.last;
    assert_eq!((last.requests, last.running, last.bytes), (0, 0, 0));
    assert_eq!(
        (last.waiting, last.ready, last.backlog),
        ([0; 8], [0; 8], [0; 8])
    );
}
