//! Figures of the arms, the two promises, and the same as Markdown and JSON.

use std::fmt::Write as _;
use std::time::Duration;

use sealwire_benches::stats::Summary;
use serde_json::{Value, json};

use crate::fair::report::{digits, ms, percent};
use crate::founding::arms::{Arm, cores};
use crate::founding::window::{ArmResult, Plan, Request, STEPS};

/// Smallest ratio of the small client's p99 at the largest step to its p99 without batches that is
/// the incident.
pub(super) const INCIDENT_MIN: f64 = 20.0;
/// Largest share of the machine for other processes at which figures are trusted.
const FOREIGN_MAX: f64 = 0.05;

/// A whole run.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) plan: Plan,
    pub(super) results: Vec<ArmResult>,
    pub(super) took: Duration,
    pub(super) machine: String,
    pub(super) versions: String,
    pub(super) command: String,
}

/// Figures of an arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Latency of the small client without batches, in milliseconds.
    pub(super) alone: Summary,
    /// This ratio at the largest step.
    pub(super) largest: Summary,
    /// Share of the small client's requests at the largest step that were sealed within the
    /// timeout.
    pub(super) in_time: f64,
    /// Fields of batches that were sealed before their client gave up, per second of the largest
    /// step.
    pub(super) batch_fields_per_s: f64,
}

impl Figures {
    /// Returns the ratio of the p99 at the largest step to that without batches.
    pub(super) fn ratio(&self) -> f64 {
        self.largest.p99 / self.alone.p99
    }
}

/// One promise.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    pub(super) what: String,
    /// The ratio; `None` if the run did not include the arm.
    pub(super) ratio: Option<f64>,
    pub(super) holds: bool,
}

impl Promise {
    /// Returns the result in words.
    pub(super) fn verdict(&self) -> String {
        let holds = if self.holds { "holds" } else { "DOES NOT HOLD" };
        self.ratio
            .map_or("not measured: the run left the arm out".into(), |ratio| {
                format!("{}x: {holds}", digits(ratio))
            })
    }
}

/// Makes figures of requests, within a plan.
pub(super) fn figures(plan: &Plan, result: &ArmResult) -> Figures {
    let step = plan.step.as_secs_f64();
    let of_step = |nth: usize| {
        let due = nth as f64 * step..(nth + 1) as f64 * step;
        result
            .small
            .iter()
            .filter(move |request| due.contains(&request.due))
    };
    let latency = |nth| {
        Summary::of(
            of_step(nth)
                .filter(|one| has_latency(one))
                .map(|one| one.latency * 1e3)
                .collect(),
        )
    };
    let last = STEPS - 1;
    let in_time = of_step(last)
        .filter(|one| one.is_sealed() && one.latency <= plan.timeout.as_secs_f64())
        .count();
    let done = last as f64 * step..STEPS as f64 * step;
    let sealed = result
        .batch
        .iter()
        .filter(|one| one.is_sealed() && done.contains(&(one.due + one.latency)));
    Figures {
        alone: latency(0),
        largest: latency(last),
        in_time: in_time as f64 / of_step(last).count().max(1) as f64,
        batch_fields_per_s: sealed.map(|one| one.fields).sum::<usize>() as f64 / step,
    }
}

/// Returns true if the time of a request says how long its client waited. A rejection comes early.
pub(super) fn has_latency(request: &Request) -> bool {
    request.is_sealed() || request.outcome == "given up"
}

impl Report {
    /// Makes a report of this machine.
    pub(super) fn new(plan: Plan, results: Vec<ArmResult>, took: Duration) -> Self {
        let options: Vec<String> = std::env::args()
            .skip(1)
            .filter(|argument| argument != "--bench")
            .collect();
        let command = format!(
            "cargo bench -p sealwire-benches --bench engine -- {}",
            options.join(" ")
        );
        Self {
            plan,
            results,
            took,
            machine: machine(),
            versions: versions(),
            command,
        }
    }

    /// Returns the largest share of the machine that other processes took during a window.
    pub(super) fn foreign(&self) -> f64 {
        self.results
            .iter()
            .map(|result| result.foreign)
            .fold(0.0, f64::max)
    }

    /// Returns a warning if other processes disturbed the run.
    pub(super) fn warning(&self) -> Option<String> {
        let disturbed = self
            .results
            .iter()
            .filter(|result| result.foreign > FOREIGN_MAX)
            .count();
        let text = format!(
            "Other processes took more than {} of the machine in {disturbed} of {} windows, at most {}. Read large ratios only.",
            percent(FOREIGN_MAX),
            self.results.len(),
            percent(self.foreign())
        );
        (disturbed > 0).then_some(text)
    }

    /// Judges the two promises.
    pub(super) fn promises(&self) -> [Promise; 2] {
        let ratio = |arm: Arm| {
            let result = self.results.iter().find(|result| result.arm == arm)?;
            Some(figures(&self.plan, result).ratio())
        };
        let promise = |who: &str, arm: Arm, does: &str, holds: fn(f64) -> bool| {
            let ratio = ratio(arm);
            let what = format!("{who} ({}) {does}", arm.name());
            Promise {
                what,
                ratio,
                holds: ratio.is_some_and(holds),
            }
        };
        let shows = format!(
            "shows the incident: p99 of the small client at the largest step >= {INCIDENT_MIN}x"
        );
        let is_free = format!("is free of it: < {INCIDENT_MIN}x");
        [
            promise("The original design", Arm::incident(), &shows, |ratio| {
                ratio >= INCIDENT_MIN
            }),
            promise(
                "Today's default",
                Arm::default_of_today(),
                &is_free,
                |ratio| ratio < INCIDENT_MIN,
            ),
        ]
    }

    /// Formats the table and the promises.
    pub(super) fn markdown(&self) -> String {
        let mut out = format!(
            "Latency of a small client ({} fields, {} requests/s) in ms, without batches and beside {} batches of {} fields under way:\n\n\
             | arm | alone p50 / p99 / max | beside p50 / p99 / max | p99 ratio | small in time | batch fields/s | others |\n\
             | --- | --- | --- | --- | --- | --- | --- |\n",
            self.plan.small_fields,
            self.plan.small_per_s,
            self.plan.under_way(STEPS - 1),
            self.plan.batch_fields,
        );
        let times = |of: Summary| format!("{} / {} / {}", ms(of.p50), ms(of.p99), ms(of.max));
        for result in &self.results {
            let of = figures(&self.plan, result);
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {:.0} | {} |",
                result.arm.name(),
                times(of.alone),
                times(of.largest),
                digits(of.ratio()),
                percent(of.in_time),
                of.batch_fields_per_s,
                percent(result.foreign),
            );
        }
        let _ = writeln!(
            out,
            "\nIn time: sealed within {} ms. Batches count if they were sealed before their client gave up.\n",
            self.plan.timeout.as_millis()
        );
        for promise in self.promises() {
            let _ = writeln!(out, "* {}: {}", promise.what, promise.verdict());
        }
        self.warning()
            .map_or(out.clone(), |warning| format!("{out}* {warning}\n"))
    }

    /// Returns the results as data, with every request if `all`.
    pub(super) fn json(&self, all: bool) -> Value {
        let plan = &self.plan;
        let promises = self.promises().map(|promise| {
            json!({ "promise": promise.what, "ratio": promise.ratio, "holds": promise.ratio.map(|_| promise.holds) })
        });
        json!({
            "command": self.command,
            "machine": self.machine,
            "versions": self.versions,
            "seconds": self.took.as_secs_f64(),
            "plan": {
                "small_fields": plan.small_fields,
                "small_requests_per_s": plan.small_per_s,
                "batch_fields": plan.batch_fields,
                "batches_under_way": (0..STEPS).map(|step| plan.under_way(step)).collect::<Vec<_>>(),
                "batch_timeout_ms": plan.timeout.as_millis() as u64,
                "step_s": plan.step.as_secs_f64(),
            },
            "promises": promises,
            "request_columns": ["due_s", "latency_ms", "fields", "outcome"],
            "arms": self.results.iter().map(|result| self.arm_json(result, all)).collect::<Vec<_>>(),
        })
    }

    fn arm_json(&self, result: &ArmResult, all: bool) -> Value {
        let (arm, of) = (result.arm, figures(&self.plan, result));
        let summary = |of: Summary| json!({ "requests": of.count, "p50": of.p50, "p99": of.p99, "max": of.max });
        let mut value = json!({
            "name": arm.name(),
            "suite": arm.suite.name(),
            "key_scope": arm.key_scope.name(),
            "place": arm.place.name(),
            "threads": arm.threads,
            "cancels": arm.cancels,
            "small_ms_alone": summary(of.alone),
            "small_ms_largest_step": summary(of.largest),
            "p99_ratio": of.ratio(),
            "small_in_time": of.in_time,
            "batch_fields_per_s": of.batch_fields_per_s,
            "others": result.foreign,
        });
        if all {
            value["small"] = requests(&result.small);
            value["batch"] = requests(&result.batch);
        }
        value
    }
}

fn requests(of: &[Request]) -> Value {
    let rounded = |value: f64| (value * 1e6).round() / 1e6;
    of.iter()
        .map(|one| {
            json!([
                rounded(one.due),
                rounded(one.latency * 1e3),
                one.fields,
                one.outcome
            ])
        })
        .collect()
}

/// Returns the CPU's model and the number of cores.
fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    format!(
        "{}, {} cores",
        model.map_or(std::env::consts::ARCH, |(_, model)| model.trim()),
        cores()
    )
}

/// Returns the versions of this program and of the libraries behind the arms, from the lock file.
fn versions() -> String {
    let lock_file = include_str!("../../../Cargo.lock");
    let version = |name: &str| {
        let of_package = lock_file
            .split_once(&format!("\nname = \"{name}\"\nversion = \""))?
            .1;
        Some(format!("{name} {}", of_package.split('"').next()?))
    };
    let libraries = ["aws-lc-rs", "openssl", "secp256k1", "rustls", "tokio"];
    let libraries: Vec<String> = libraries.into_iter().filter_map(version).collect();
    format!(
        "sealwire {}, {}",
        env!("CARGO_PKG_VERSION"),
        libraries.join(", ")
    )
}
