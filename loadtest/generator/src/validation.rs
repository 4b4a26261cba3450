//! Converts measurements to results, and decides whether they are valid.

use crate::fault::Fault;
use crate::generator::interval_s;
use crate::histograms::{RequestCounts, Spread};
use crate::host;
use crate::load::{ArrivalRule, Load, Method, Request};
use crate::results::{
    Class, Conditions, EngineUsage, Generator, Mode, RUN, Run, ServerCpu, Totals,
};
use crate::worker_result::Part;

/// Maximum CPU use of a sending thread, as a share of one core. A busier thread cannot send on
/// time.
const BUSY_MAX: f64 = 0.95;
/// A p99 send delay up to this value is always accepted.
const LAG_P99_MAX_US: f64 = 1_000.0;
/// Above that value, the p99 send delay can be up to this share of the p99 latency of the fastest
/// class.
const LAG_SHARE_MAX: f64 = 0.1;
/// Maximum share of the window for which the thread of a closed loop can wait for a core. A closed
/// loop has no schedule that it could miss.
const QUEUED_MAX: f64 = 0.1;

/// Computes the results of a load.
///
/// # Errors
///
/// Fails if no request got a result. [`Fault::Bottleneck`] if the generator was the cause,
/// [`Fault::Failed`] if no request was due, otherwise [`Fault::Unanswered`].
pub(crate) fn figures(load: &Load, name: &str, processes: u32, part: &Part) -> Result<Run, Fault> {
    let ok: u64 = part.tallies.iter().map(|tally| tally.ok).sum();
    let why = bottleneck(load, part);
    if ok == 0 {
        return Err(why
            .filter(|_| part.unsent > 0)
            .map_or_else(|| nothing(part), Fault::Bottleneck));
    }
    let totals = totals(load, part);
    Ok(Run {
        schema: RUN.to_owned(),
        tool: concat!("sealwire-load ", env!("CARGO_PKG_VERSION")).to_owned(),
        name: name.to_owned(),
        started: part.started.clone(),
        conditions: conditions(load, processes, (&part.tls, &part.version)),
        classes: classes(load, part),
        totals,
        server_cpu: part.engine_cpu_s.map(|seconds| ServerCpu {
            us_per_field: seconds * 1e6
                / (totals.fields_per_s * load.duration_s + reopened(load, part)).max(1.0),
            cores: seconds / part.wall_s,
        }),
        generator: Generator {
            cpu_cores: part.cpu_s / part.wall_s,
            us_per_call: part.cpu_s * 1e6 / (totals.sent_per_s * load.duration_s).max(1.0),
            lag_p99_us: part.lag.quantile_us(0.99),
            lag_max_us: part.lag.max_us(),
            nice: part.nice,
            was_bottleneck: why.is_some(),
            why,
        },
    })
}

fn totals(load: &Load, part: &Part) -> Totals {
    let came = |of: fn(&RequestCounts) -> u64| part.tallies.iter().map(of).sum::<u64>();
    let came_ok = |tally: &RequestCounts| {
        tally
            .intervals
            .iter()
            .map(|interval| interval.ok)
            .sum::<u64>()
    };
    let fields: u64 = load
        .calls
        .iter()
        .zip(&part.tallies)
        .map(|(call, tally)| u64::from(call.fields) * came_ok(tally))
        .sum();
    let due = came(|tally| tally.sent);
    let not_sent = |tally: &RequestCounts| {
        ["unsent", "paused", "blocked"]
            .iter()
            .filter_map(|code| tally.errors.get(*code))
            .sum::<u64>()
    };
    let sent = due - part.tallies.iter().map(not_sent).sum::<u64>();
    let per_s = |count: u64| count as f64 / load.duration_s;
    let offered = match load.drive {
        ArrivalRule::Open { per_s, .. } => per_s,
        ArrivalRule::Closed { .. } => per_s(due),
    };
    Totals {
        offered_per_s: offered,
        sent_per_s: per_s(sent),
        ok_per_s: per_s(part.tallies.iter().map(came_ok).sum()),
        fields_per_s: per_s(fields),
        errors: came(|tally| tally.errors.values().sum()),
        bytes_out_per_s: part.bytes_out as f64 / part.wall_s,
        bytes_in_per_s: part.bytes_in as f64 / part.wall_s,
    }
}

/// Returns the number of fields that were opened again for comparison, because the engine did that
/// work as well.
fn reopened(load: &Load, part: &Part) -> f64 {
    let calls = load.calls.iter().zip(&part.tallies);
    let seals = calls.filter(|(call, _)| matches!(call.method, Method::Encrypt | Method::Tokenize));
    seals
        .map(|(call, tally)| f64::from(call.fields) * tally.checked as f64)
        .sum()
}

fn nothing(part: &Part) -> Fault {
    let mut codes: Vec<String> = Vec::new();
    for (code, count) in part.tallies.iter().flat_map(|tally| &tally.errors) {
        codes.push(format!("{count} {code}"));
    }
    let said = part
        .last_error
        .as_ref()
        .map_or_else(String::new, |error| format!(" ({error})"));
    match &*codes {
        [] => Fault::Failed(
            "no call was due in the time that counts: raise --rate or --duration".to_owned(),
        ),
        codes => Fault::Unanswered(format!("{}{said}", codes.join(", "))),
    }
}

/// Returns the conditions of a load.
pub(crate) fn conditions(load: &Load, processes: u32, (tls, version): (&str, &str)) -> Conditions {
    let machine = host::machine();
    let same_machine = host::is_here(&load.target.address);
    let (mode, offered_per_s, callers) = match load.drive {
        ArrivalRule::Open { per_s, .. } => (Mode::Open, Some(per_s), None),
        ArrivalRule::Closed { callers } => (Mode::Closed, None, Some(callers)),
    };
    Conditions {
        engine: EngineUsage {
            version: version.to_owned(),
            address: load.target.address.clone(),
            cores: same_machine.then_some(machine.cores),
            state: load.target.state.clone(),
            suites: Some(load.suites()),
            scope: Some(load.scopes()),
        },
        machine,
        tls: tls.to_owned(),
        same_machine,
        connections: load.connections,
        processes,
        mode,
        offered_per_s,
        callers,
        duration_s: load.duration_s,
        warm_up_s: load.warm_up_s,
    }
}

fn classes(load: &Load, part: &Part) -> Vec<Class> {
    let all: f64 = load.calls.iter().map(|call| call.weight).sum();
    let class = |(call, tally): (&Request, &RequestCounts)| {
        class(call, tally, call.weight / all, interval_s(load))
    };
    load.calls.iter().zip(&part.tallies).map(class).collect()
}

/// Returns the results of one kind of request. `weight` is its share of all requests.
pub(crate) fn class(call: &Request, tally: &RequestCounts, weight: f64, interval_s: f64) -> Class {
    Class {
        name: call.name.clone(),
        method: call.method.name().to_owned(),
        fields: call.fields,
        field_bytes: call.field_bytes,
        weight,
        sent: tally.sent,
        ok: tally.ok,
        errors: tally.errors.clone(),
        late: tally.late,
        checked: tally.checked,
        latency_us: tally.latency.times(),
        service_us: tally.service.times(),
        histogram_us: tally.latency.buckets_us(),
        over_time: tally.moments(interval_s, call.fields),
    }
}

/// Returns the evidence that the generator was the bottleneck, or `None`.
fn bottleneck(load: &Load, part: &Part) -> Option<String> {
    if part.unsent > 0 {
        return Some(format!(
            "{} calls were never sent, it was so far behind; lower --rate, or add --processes where there are cores left",
            part.unsent
        ));
    }
    if part.busiest > BUSY_MAX {
        return Some(format!(
            "its thread was busy for {:.0} % of the time; add --processes where there are cores left, or lower the load",
            part.busiest * 100.0
        ));
    }
    if matches!(load.drive, ArrivalRule::Closed { .. }) {
        return part.queued.filter(|share| *share > QUEUED_MAX).map(|share| {
            let share = share * 100.0;
            format!("its thread was ready and had no core for {share:.0} % of the time; run it on another machine")
        });
    }
    let p99s = load
        .calls
        .iter()
        .zip(&part.tallies)
        .filter(|(_, tally)| tally.ok > 0);
    let p99s = p99s.map(|(call, tally)| (tally.latency.quantile_us(0.99), &call.name));
    let (p99, name) = p99s.min_by(|(a, _), (b, _)| a.total_cmp(b))?;
    late(&part.lag, p99, name)
}

/// Returns the evidence that requests were sent too late, or `None`. `p99` is the p99 latency of
/// the fastest class, `name`.
pub(crate) fn late(lag: &Spread, p99: f64, name: &str) -> Option<String> {
    let lag = lag.quantile_us(0.99);
    (lag > LAG_P99_MAX_US && lag > p99 * LAG_SHARE_MAX).then(|| {
        format!(
            "1 of 100 calls was sent {lag:.0} us or more late, where p99 of {name} is {p99:.0} us; \
             run it on another machine, or lower the load"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(drive: ArrivalRule) -> Load {
        let text = serde_json::json!({
            "target": {"address": "192.0.2.1:1", "server_name": "x", "state": null, "ca": "", "cert": "", "key": ""},
            "app": "demo", "calls": [{
                "name": "one", "method": "encrypt", "fields": 30, "field_bytes": 16, "weight": 4, "suite": "secp256k1",
                "scope": "request", "collection": "people", "deadline_ms": null, "cancel_after_ms": null
            }],
            "drive": drive, "connections": 1, "duration_s": 2.0, "warm_up_s": 0.0, "check": 0, "distinct": 1,
            "drain_s": 1.0, "ignore_retry": false, "seed": 1, "tick_us": null
        });
        serde_json::from_value(text).unwrap()
    }

    fn part(change: impl FnOnce(&mut Part)) -> Part {
        let mut tally = RequestCounts::new(8);
        (tally.sent, tally.ok) = (100, 90);
        tally.errors = [("overloaded".to_owned(), 4), ("paused".to_owned(), 6)].into();
        tally.intervals[3].ok = 80;
        (0..90).for_each(|_| tally.latency.record(2_000_000));
        let mut part = Part {
            tallies: vec![tally],
            lag: Spread::fine(),
            bytes_out: 4_000,
            bytes_in: 8_000,
            cpu_s: 0.5,
            busiest: 0.25,
            queued: None,
            nice: Some(0),
            engine_cpu_s: Some(1.2),
            wall_s: 2.0,
            unsent: 0,
            last_error: Some("overloaded: busy".to_owned()),
            tls: String::new(),
            version: String::new(),
            started: String::new(),
        };
        change(&mut part);
        part
    }

    const OPEN: ArrivalRule = ArrivalRule::Open {
        per_s: 50.0,
        arrivals: crate::load::Arrivals::Even,
    };

    #[test]
    fn rates_are_of_what_came_in_the_time_that_counts() {
        let run = figures(&load(OPEN), "name", 1, &part(|_| ())).unwrap();
        let totals = run.totals;
        assert_eq!(
            (
                totals.offered_per_s,
                totals.sent_per_s,
                totals.ok_per_s,
                totals.errors
            ),
            (50.0, 47.0, 40.0, 10)
        );
        assert_eq!(
            (totals.fields_per_s, totals.bytes_in_per_s),
            (1_200.0, 4_000.0)
        );
        assert_eq!(
            run.server_cpu,
            Some(ServerCpu {
                us_per_field: 500.0,
                cores: 0.6
            })
        );
        // Results that are opened for a check are the engine's work too.
        let checked = figures(
            &load(OPEN),
            "name",
            1,
            &part(|part| part.tallies[0].checked = 40),
        )
        .unwrap();
        assert_eq!(
            checked.server_cpu.map(|cpu| cpu.us_per_field.round()),
            Some(333.0)
        );
        assert_eq!(
            (run.generator.cpu_cores, run.classes[0].weight),
            (0.25, 1.0)
        );
        assert!(!run.conditions.same_machine && !run.generator.was_bottleneck);
    }

    #[test]
    fn the_generator_knows_when_the_figures_are_its_own() {
        let closed = ArrivalRule::Closed { callers: 1 };
        let lag = |us: u64| move |part: &mut Part| part.lag.record(us * 1_000);
        let check = |drive: ArrivalRule, part: Part, expect: Option<&str>| {
            let run = figures(&load(drive), "name", 1, &part).unwrap();
            assert_eq!(run.generator.was_bottleneck, expect.is_some());
            let why = run.generator.why.unwrap_or_default();
            assert!(why.contains(expect.unwrap_or("")), "{why}");
        };
        check(OPEN, part(|_| ()), None);
        check(OPEN, part(|part| part.busiest = 0.96), Some("96 %"));
        check(closed, part(|part| part.busiest = 0.96), Some("96 %"));
        check(
            OPEN,
            part(|part| part.unsent = 7),
            Some("7 calls were never sent"),
        );
        check(OPEN, part(lag(900)), None);
        check(OPEN, part(lag(1_100)), Some("1 of 100 calls"));
        // If latencies are long anyway, the same send delay does not cause them.
        let slow = |part: &mut Part| {
            lag(1_100)(part);
            (0..90).for_each(|_| part.tallies[0].latency.record(20_000_000));
        };
        check(OPEN, part(slow), None);
        // Slow requests of another class do not excuse the send delay.
        let mut mix = load(OPEN);
        mix.calls.push(crate::load::Request {
            name: "slow".to_owned(),
            ..mix.calls[0].clone()
        });
        let mixed = part(|part| {
            part.tallies.push(part.tallies[0].clone());
            part.tallies[1].latency = Spread::fine();
            (0..900).for_each(|_| part.tallies[1].latency.record(90_000_000));
            lag(1_100)(part);
        });
        assert!(
            figures(&mix, "name", 1, &mixed)
                .unwrap()
                .generator
                .why
                .unwrap()
                .contains("where p99 of one is 200")
        );
        // A class without results has no latencies to compare with.
        let mute = part(|part| part.tallies.push(RequestCounts::new(8)));
        assert!(
            !figures(&mix, "name", 1, &mute)
                .unwrap()
                .generator
                .was_bottleneck
        );
        check(closed, part(lag(1_100)), None);
        check(closed, part(|part| part.queued = Some(0.09)), None);
        check(
            closed,
            part(|part| part.queued = Some(0.11)),
            Some("no core for 11 % of the time"),
        );
        check(OPEN, part(|part| part.queued = Some(0.11)), None);
    }

    #[test]
    fn figures_need_a_result() {
        let none = part(|part| part.tallies[0].ok = 0);
        let said = figures(&load(OPEN), "name", 1, &none)
            .unwrap_err()
            .to_string();
        assert_eq!(
            said,
            "no call succeeded: 4 overloaded, 6 paused (overloaded: busy)"
        );
        let quiet = part(|part| part.tallies[0] = RequestCounts::new(8));
        assert!(
            figures(&load(OPEN), "name", 1, &quiet)
                .unwrap_err()
                .to_string()
                .contains("no call was due")
        );
        let behind = part(|part| (part.tallies[0].ok, part.unsent) = (0, 9));
        assert!(matches!(
            figures(&load(OPEN), "name", 1, &behind),
            Err(Fault::Bottleneck(_))
        ));
    }
}
