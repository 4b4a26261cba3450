//! Runs loads of rising rates until more load gives no more results, or late results: the knee.
//!
//! A rate is served well under three conditions. At least 95 % of the offered requests get a result
//! in time. The p99 latency of each kind is at most ten times that under the lightest load. The
//! generator was not the bottleneck. A rate that is not served well is tried once more. The knee
//! lies between the last good rate and the first bad rate, and is found by bisection. If the
//! generator was the limit, the sweep gives no knee, because it would not be the engine's.

use crate::fault::Fault;
use crate::load::{ArrivalRule, Load};
use crate::results::{Class, Knee, Run, SWEEP, Sweep};
use crate::table::{number, time};

/// Minimum share of the offered requests that must get a result.
const OK_SHARE_MIN: f64 = 0.95;
/// Maximum ratio of the p99 latency to that of the lightest load.
const P99_TIMES_MAX: f64 = 10.0;
/// A load lighter than the first is tried only if at least this many of its requests are due in the
/// measurement window.
const LIGHTER_CALLS_MIN: f64 = 20.0;
/// A p99 latency below this value is never considered bad, because system timers are equally
/// coarse.
const P99_FLOOR_US: f64 = 2_000.0;

/// Parameters of a sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// The first rate, in requests per second.
    pub(crate) from_per_s: f64,
    /// Factor from each rate to the next.
    pub(crate) factor: f64,
    /// Maximum number of rates tried before the knee.
    pub(crate) rates_max: u32,
    /// Number of rates tried around the knee.
    pub(crate) around: u32,
    /// True if the knee may be the generator's own.
    pub(crate) allow_bottleneck: bool,
}

/// The result, and the reason if it is incomplete.
#[derive(Debug)]
pub(crate) struct Swept {
    pub(crate) sweep: Sweep,
    /// [`Fault::Bottleneck`] if the generator was the limit, otherwise the fault of a load.
    pub(crate) short: Option<Fault>,
}

/// Performs a sweep. `measure` runs a load; `told` receives each run that is kept.
///
/// # Errors
/// The fault of `measure` before any rate was served well, or a wrong response at any time. Later
/// faults end the sweep and are reported with its result. [`Fault::Failed`] if the load is not an
/// open loop.
pub(crate) fn sweep(
    load: &Load,
    steps: Steps,
    mut measure: impl FnMut(&Load) -> Result<Run, Fault>,
    mut told: impl FnMut(&Run),
) -> Result<Swept, Fault> {
    let ArrivalRule::Open { arrivals, .. } = load.drive else {
        return Err(Fault::Failed("a sweep is of open loops".to_owned()));
    };
    let mut search = Search::new(steps);
    let mut next = Some(steps.from_per_s);
    while let Some(per_s) = next {
        let at = Load {
            drive: ArrivalRule::Open { per_s, arrivals },
            ..load.clone()
        };
        let mut tried = search.judge(measure(&at));
        if matches!(tried, Ok(Tried { bad: Some(_), .. })) {
            // The machine can cause a single bad result; a real limit shows again.
            tried = match search.judge(measure(&at)) {
                Ok(Tried { run: None, .. }) | Err(Fault::Unanswered(_) | Fault::Bottleneck(_)) => {
                    tried
                }
                again => again,
            };
        }
        match tried {
            Ok(tried) => {
                tried.run.iter().for_each(&mut told);
                next = search.take(per_s, tried);
                if search.good == 0.0 {
                    next = next.filter(|next| next * load.duration_s >= LIGHTER_CALLS_MIN);
                }
            }
            Err(fault) if search.good > 0.0 && !matches!(fault, Fault::Wrong(_)) => {
                return Ok(search.end(Some(fault)));
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(search.end(None))
}

/// The result of one rate.
struct Tried {
    /// `None` without results.
    run: Option<Run>,
    bad: Option<Bad>,
}

/// The reason why a rate was not served well.
struct Bad {
    why: String,
    /// True if the generator is the reason.
    is_own: bool,
}

/// The state of a sweep.
struct Search {
    steps: Steps,
    runs: Vec<Run>,
    /// For each class, the lowest p99 of the rates that were served well.
    lightest: Vec<f64>,
    good: f64,
    bad: Option<(f64, Bad)>,
    rising_left: u32,
    around_left: u32,
}

impl Search {
    fn new(steps: Steps) -> Self {
        // The first rate around the knee is the bad rate that revealed it.
        let rising_left = steps.rates_max;
        let around_left = steps.around + 1;
        Self {
            steps,
            runs: Vec::new(),
            lightest: Vec::new(),
            good: 0.0,
            bad: None,
            rising_left,
            around_left,
        }
    }

    /// Judges a load. A load without figures is an error, unless a lighter load was served well:
    /// then its rate was not served well.
    fn judge(&self, outcome: Result<Run, Fault>) -> Result<Tried, Fault> {
        match outcome {
            Ok(run) => Ok(Tried {
                bad: self.fault_of(&run),
                run: Some(run),
            }),
            Err(Fault::Unanswered(why)) if self.good > 0.0 => Ok(Tried {
                run: None,
                bad: Some(Bad {
                    why: format!("no call succeeded: {why}"),
                    is_own: false,
                }),
            }),
            Err(Fault::Bottleneck(why)) if self.good > 0.0 => Ok(Tried {
                run: None,
                bad: Some(Bad { why, is_own: true }),
            }),
            Err(fault) => Err(fault),
        }
    }

    /// Returns the reason why a rate was not served well, if there is one.
    fn fault_of(&self, run: &Run) -> Option<Bad> {
        if run.generator.was_bottleneck {
            let why = run
                .generator
                .why
                .clone()
                .unwrap_or_else(|| "it did not say why".to_owned());
            return Some(Bad { why, is_own: true });
        }
        let bad = |why: String| Some(Bad { why, is_own: false });
        let share = answered(run);
        if share < OK_SHARE_MIN {
            return bad(format!(
                "{:.0} % of the calls were answered in time",
                share * 100.0
            ));
        }
        let late = run.classes.iter().enumerate().find(|(at, class)| {
            let lightest = self.lightest.get(*at).copied().unwrap_or(f64::INFINITY);
            class.latency_us.p99 > (lightest * P99_TIMES_MAX).max(P99_FLOOR_US)
        });
        late.and_then(|(_, class)| {
            bad(format!(
                "1 of 100 calls of {} took {} or more",
                class.name,
                time(class.latency_us.p99)
            ))
        })
    }

    /// Records the result of a rate. Returns the rate to try next.
    fn take(&mut self, per_s: f64, tried: Tried) -> Option<f64> {
        match (tried.bad, &tried.run) {
            (Some(bad), _) => self.bad = Some((per_s, bad)),
            (None, run) => {
                run.iter().for_each(|run| self.lighten(run));
                self.good = self.good.max(per_s);
            }
        }
        self.runs.extend(tried.run);
        let left = if self.bad.is_some() && self.good > 0.0 {
            &mut self.around_left
        } else {
            &mut self.rising_left
        };
        *left = left.saturating_sub(1);
        (*left > 0).then(|| self.step(per_s))
    }

    fn lighten(&mut self, run: &Run) {
        self.lightest.resize(run.classes.len(), f64::INFINITY);
        for (lightest, class) in self
            .lightest
            .iter_mut()
            .zip(&run.classes)
            .filter(|(_, class)| class.ok > 0)
        {
            *lightest = lightest.min(class.latency_us.p99);
        }
    }

    fn step(&self, last: f64) -> f64 {
        match &self.bad {
            None => last * self.steps.factor,
            // The first rate was too high: lower rates are tried first.
            Some((bad, _)) if self.good == 0.0 => bad / self.steps.factor,
            Some((bad, _)) => (self.good * bad).sqrt(),
        }
    }

    fn end(mut self, fault: Option<Fault>) -> Swept {
        self.runs
            .sort_by(|a, b| a.totals.offered_per_s.total_cmp(&b.totals.offered_per_s));
        let own = self
            .bad
            .as_ref()
            .filter(|(_, bad)| bad.is_own && !self.steps.allow_bottleneck);
        let own = own.map(|(per_s, bad)| {
            let more = "--allow-bottleneck gives the generator's own knee, marked";
            Fault::Bottleneck(format!(
                "no knee of the engine; at {} calls/s {}; {more}",
                number(*per_s),
                bad.why
            ))
        });
        let short = fault.or(own);
        let found = self.bad.filter(|_| self.good > 0.0 && short.is_none());
        let best = self
            .runs
            .iter()
            .find(|run| run.totals.offered_per_s == self.good);
        let ok_per_s = best.map_or(0.0, |run| run.totals.ok_per_s);
        let knee = found.map(|(per_s, Bad { why, is_own })| {
            let by = if is_own {
                " the generator was the bottleneck:"
            } else {
                ""
            };
            Knee {
                offered_per_s: self.good,
                ok_per_s,
                why: format!("at {} calls/s{by} {why}", number(per_s)),
            }
        });
        Swept {
            sweep: Sweep {
                schema: SWEEP.to_owned(),
                runs: self.runs,
                knee,
            },
            short,
        }
    }
}

/// Returns the share of requests that were answered without a growing queue. Two numbers of results
/// are compared: results of the requests that were due in the window, and results that arrived in
/// the window. The smaller number is divided by the number of requests that were due in the window.
/// With random arrivals, that number differs from the planned one.
pub(crate) fn answered(run: &Run) -> f64 {
    let sum = |of: fn(&Class) -> u64| run.classes.iter().map(of).sum::<u64>() as f64;
    let due = sum(|class| class.sent).max(1.0);
    (run.totals.ok_per_s * run.conditions.duration_s).min(sum(|class| class.ok)) / due
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Figures;

    fn load() -> Load {
        let text = serde_json::json!({
            "target": {"address": "", "server_name": "", "state": null, "ca": "", "cert": "", "key": ""}, "app": "", "calls": [],
            "drive": {"open": {"per_s": 1.0, "arrivals": "even"}}, "connections": 1, "duration_s": 1.0, "warm_up_s": 0.0,
            "check": 0, "distinct": 1, "drain_s": 1.0, "ignore_retry": false, "seed": 1, "tick_us": null
        });
        serde_json::from_value(text).unwrap()
    }

    /// Simulates a run against an engine that serves up to 1,000 requests per second and queues
    /// beyond 700.
    fn served(load: &Load, bottleneck_from: f64) -> Run {
        let per_s = rate(load);
        let Ok(Figures::Run(mut run)) =
            Figures::parse(include_str!("../../report/src/results/run.json"))
        else {
            panic!()
        };
        run.totals.offered_per_s = per_s;
        run.totals.ok_per_s = per_s.min(1_000.0);
        (run.conditions.duration_s, run.classes[0].sent) = (10_000.0, (per_s * 10_000.0) as u64);
        run.classes[0].ok = (run.totals.ok_per_s * 10_000.0) as u64;
        run.classes[0].latency_us.p99 = if per_s > 700.0 { 50_000.0 } else { 1_000.0 };
        run.generator.was_bottleneck = per_s >= bottleneck_from;
        *run
    }

    fn rate(load: &Load) -> f64 {
        let ArrivalRule::Open { per_s, .. } = load.drive else {
            panic!()
        };
        per_s
    }

    const STEPS: Steps = Steps {
        from_per_s: 50.0,
        factor: 2.0,
        rates_max: 8,
        around: 4,
        allow_bottleneck: false,
    };

    /// Performs a sweep, and checks that the knee is in the expected range or absent.
    fn check(
        steps: Steps,
        measure: impl FnMut(&Load) -> Result<Run, Fault>,
        expect: Option<(std::ops::Range<f64>, &str)>,
    ) -> Swept {
        let mut count = 0;
        let found = sweep(&load(), steps, measure, |_| count += 1).unwrap();
        assert_eq!(found.sweep.runs.len(), count);
        assert!(
            found
                .sweep
                .runs
                .is_sorted_by(|a, b| a.totals.offered_per_s <= b.totals.offered_per_s)
        );
        match (&found.sweep.knee, expect) {
            (None, None) => (),
            (Some(knee), Some((range, why))) => {
                assert!(
                    range.contains(&knee.offered_per_s) && knee.ok_per_s == knee.offered_per_s,
                    "{knee:?}"
                );
                assert!(knee.why.contains(why), "{knee:?}");
                assert_eq!(found.short, None);
            }
            (knee, expect) => panic!("{knee:?} for {expect:?}"),
        }
        found
    }

    #[test]
    fn the_knee_is_found_from_below_and_from_above() {
        let good = |load: &Load| Ok(served(load, f64::INFINITY));
        let from = |from_per_s: f64| Steps {
            from_per_s,
            ..STEPS
        };
        check(
            STEPS,
            good,
            Some((650.0..700.1, "1 of 100 calls of 30 fields took 50.0 ms")),
        );
        check(from(10_000.0), good, Some((600.0..700.1, "calls/s")));
        // The knee is outside the tried rates, above or below.
        assert_eq!(check(from(1.0), good, None).short, None);
        assert_eq!(check(from(1e9), good, None).short, None);
    }

    #[test]
    fn lighter_loads_are_tried_while_they_have_calls_enough() {
        // Each takes one second.
        for (from_per_s, tried) in [
            (170.0, [21.25, 42.5, 85.0, 170.0].as_slice()),
            (39.0, &[39.0]),
        ] {
            let found = check(
                Steps {
                    from_per_s,
                    ..STEPS
                },
                |load| Ok(served(load, 0.0)),
                None,
            );
            assert_eq!(
                found
                    .sweep
                    .runs
                    .iter()
                    .map(|run| run.totals.offered_per_s)
                    .collect::<Vec<_>>(),
                tried
            );
        }
    }

    #[test]
    fn a_limit_of_the_generator_is_no_knee_unless_it_is_asked_for() {
        for (from_per_s, bottleneck_from) in [(50.0, 400.0), (1e6, 0.0)] {
            let steps = Steps {
                from_per_s,
                ..STEPS
            };
            let found = check(steps, |load| Ok(served(load, bottleneck_from)), None);
            assert!(
                matches!(found.short, Some(Fault::Bottleneck(_))),
                "{:?}",
                found.short
            );
            assert!(!found.sweep.runs.is_empty());
        }
        let allowed = Steps {
            allow_bottleneck: true,
            ..STEPS
        };
        check(
            allowed,
            |load| Ok(served(load, 400.0)),
            Some((350.0..400.0, "the generator was the bottleneck")),
        );
        // Failures at rates that the generator still sends on time are the engine's.
        check(
            STEPS,
            |load| Ok(served(load, 1_500.0)),
            Some((650.0..700.1, "1 of 100 calls")),
        );
    }

    #[test]
    fn classes_have_their_own_lightest_loads() {
        let mixed = |load: &Load| {
            let mut run = served(load, f64::INFINITY);
            (run.classes[0].sent, run.classes[0].ok) =
                (run.classes[0].sent / 2, run.classes[0].ok / 2);
            let heavy = run.classes[0].clone();
            run.classes.push(heavy);
            (run.classes[0].latency_us.p99, run.classes[1].latency_us.p99) = (
                if rate(load) > 300.0 {
                    20_000.0
                } else {
                    1_000.0
                },
                30_000.0,
            );
            Ok(run)
        };
        check(
            STEPS,
            mixed,
            Some((250.0..300.1, "1 of 100 calls of 30 fields took 20.0 ms")),
        );
    }

    #[test]
    fn answers_to_calls_before_the_time_that_counts_serve_nobody() {
        let queued = |load: &Load| {
            let mut run = served(load, f64::INFINITY);
            if rate(load) > 300.0 {
                run.classes[0].ok = run.classes[0].sent * 8 / 10;
            }
            Ok(run)
        };
        check(
            STEPS,
            queued,
            Some((250.0..300.1, "80 % of the calls were answered in time")),
        );
    }

    #[test]
    fn later_failures_keep_the_knee_that_was_found() {
        let failing = |fault: Fault| {
            move |load: &Load| {
                if rate(load) > 300.0 {
                    Err(fault.clone())
                } else {
                    Ok(served(load, f64::INFINITY))
                }
            }
        };
        let why = || "9 overloaded".to_owned();
        check(
            STEPS,
            failing(Fault::Unanswered(why())),
            Some((250.0..300.1, "no call succeeded: 9 overloaded")),
        );
        for fault in [
            Fault::Bottleneck(why()),
            Fault::Lost(why()),
            Fault::Failed(why()),
        ] {
            let found = check(STEPS, failing(fault.clone()), None);
            assert!(found.sweep.runs.len() >= 3);
            assert_eq!(found.short.unwrap().status(), fault.status());
        }
        let outcome = sweep(&load(), STEPS, failing(Fault::Wrong(why())), |_| ());
        assert!(matches!(outcome, Err(Fault::Wrong(_))));
        for fault in [Fault::Unanswered(why()), Fault::Lost(why())] {
            assert_eq!(
                sweep(&load(), STEPS, |_| Err(fault.clone()), |_| ()).unwrap_err(),
                fault
            );
        }
    }

    #[test]
    fn knee_needs_more_than_one_bad_run() {
        let steps = Steps {
            from_per_s: 10.0,
            rates_max: 4,
            ..STEPS
        };
        let mut times = 0;
        let disturbed = |load: &Load| {
            times += 1;
            Ok(served(load, if times == 2 { 0.0 } else { f64::INFINITY }))
        };
        let found = check(steps, disturbed, None);
        assert_eq!((found.sweep.runs.len(), found.short, times), (4, None, 5));
    }

    #[test]
    fn a_closed_loop_has_no_rate_to_raise() {
        let closed = Load {
            drive: ArrivalRule::Closed { callers: 1 },
            ..load()
        };
        assert!(sweep(&closed, STEPS, |load| Ok(served(load, 1e9)), |_| ()).is_err());
    }
}
