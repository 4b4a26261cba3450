//! The prober against engines that work, fail, stop and come back.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, ChildStdout, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::programs::{Callee, EngineProgram, Null, program, said};

/// Maximum number of reports until an expected report.
const REPORTS_MAX: usize = 1_000;
/// A time limit that no busy test machine exceeds.
const PATIENT: &str = "--timeout-ms 60000";

/// One line of `probe --json`.
#[derive(Debug, Deserialize)]
struct Report {
    at: String,
    seconds: f64,
    probes: u64,
    ok: u64,
    failures: BTreeMap<String, u64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
    late_max_us: f64,
    last_failure: Option<String>,
}

impl Report {
    fn failed(&self, kind: &str) -> u64 {
        self.failures.get(kind).copied().unwrap_or(0)
    }

    /// Asserts that each probe has one outcome, and that times belong to successes.
    fn adds_up(&self) {
        assert_eq!(
            self.probes,
            self.ok + self.failures.values().sum::<u64>(),
            "{self:?}"
        );
        assert_eq!(
            self.last_failure.is_some(),
            !self.failures.is_empty(),
            "{self:?}"
        );
        let times = [self.p50_us, self.p99_us, self.max_us];
        assert!(
            times.iter().all(|time| time.is_some() == (self.ok > 0)),
            "{self:?}"
        );
        assert!(
            times.is_sorted() && self.seconds >= 0.0 && self.late_max_us >= 0.0,
            "{self:?}"
        );
        assert!(self.at.ends_with('Z'), "{self:?}");
    }
}

fn parse(line: &str) -> Report {
    let report: Report =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    report.adds_up();
    report
}

/// Runs a number of probes and returns their only report.
fn probe(callee: &impl Callee, options: &str) -> (Report, Output) {
    let output = callee
        .command("probe", &format!("{options} --report-s 3600 --json"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(
        text.lines().count(),
        1,
        "{options}: {text} {}",
        said(&output)
    );
    (parse(&text), output)
}

/// A prober that runs until it is told to stop.
struct RunningProber {
    process: Child,
    out: BufReader<ChildStdout>,
    err: BufReader<ChildStderr>,
    metrics: String,
    /// Number of probes and of failures in all reports so far.
    seen: (u64, u64),
}

impl RunningProber {
    fn start(callee: &impl Callee, options: &str) -> Self {
        let options = format!("{options} --rate 40 --report-s 0.2 --json --metrics 127.0.0.1:0");
        let mut command = callee.command("probe", &options);
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let mut err = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        let metrics = line
            .trim_end()
            .strip_prefix("metrics at http://")
            .unwrap()
            .strip_suffix("/metrics")
            .unwrap();
        Self {
            process,
            out,
            metrics: metrics.to_owned(),
            err,
            seen: (0, 0),
        }
    }

    fn report(&mut self) -> Option<Report> {
        let mut line = String::new();
        if self.out.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        let report = parse(&line);
        self.seen = (
            self.seen.0 + report.probes,
            self.seen.1 + report.probes - report.ok,
        );
        Some(report)
    }

    /// Reads reports until one of them is as expected.
    fn until(&mut self, is_expected: impl Fn(&Report) -> bool) {
        let mut last = None;
        for _ in 0..REPORTS_MAX {
            let report = self.report().expect("the prober goes on");
            if is_expected(&report) {
                return;
            }
            last = Some(report);
        }
        panic!("{last:?}");
    }

    fn is_well(report: &Report) -> bool {
        report.ok > 0 && report.failures.is_empty()
    }

    /// Returns the values of all series.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let mut socket = TcpStream::connect(&self.metrics).unwrap();
        socket
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: prober\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("openmetrics-text"),
            "{head}"
        );
        let series = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.rsplit_once(' ').unwrap());
        series
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect()
    }

    /// Stops the prober as a service manager does. Returns its exit status and the rest of its
    /// standard error.
    fn end(mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        while self.report().is_some() {}
        let mut rest = String::new();
        self.err.read_to_string(&mut rest).unwrap();
        let status = self.process.wait().unwrap().code();
        let (probes, failed) = self.seen;
        let expected = if failed > 0 {
            format!("sealwire-load: {failed} of {probes} probes failed\n")
        } else {
            String::new()
        };
        assert_eq!(rest, expected, "the reports hold every probe once");
        (status, rest)
    }
}

impl Drop for RunningProber {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn signal(process: &Child, signal: Signal) {
    kill_process(Pid::from_child(process), signal).unwrap();
}

#[test]
fn probes_of_an_engine_are_ok_or_fail_by_its_code() {
    let engine = EngineProgram::start();
    for (options, probes) in [("--count 1", 1), ("--rate 50 --count 20 --fields 25", 20)] {
        let (report, output) = probe(&engine, &format!("{options} {PATIENT}"));
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{options}: {report:?} {}",
            said(&output)
        );
        assert_eq!(
            (report.probes, report.ok),
            (probes, probes),
            "{options}: {report:?}"
        );
    }
    let (report, output) = probe(
        &engine,
        &format!("--rate 50 --count 3 --app nobody {PATIENT}"),
    );
    assert_eq!(
        (report.ok, report.failed("not_found")),
        (0, 3),
        "{report:?}"
    );
    assert_eq!(
        (output.status.code(), &*said(&output)),
        (Some(1), "sealwire-load: 3 of 3 probes failed\n")
    );

    let options = format!("--count 2 --rate 50 {PATIENT}");
    let output = engine.command("probe", &options).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("Z  2 probes, 0 failed; p50 ") && text.lines().count() == 1,
        "{text}"
    );
}

#[test]
fn a_value_that_comes_back_different_is_wrong() {
    // The second response is wrong, which is the response to `decrypt`.
    let (report, output) = probe(&Null::start(2), &format!("--count 1 {PATIENT}"));
    assert_eq!(
        (report.failed("wrong"), output.status.code()),
        (1, Some(1)),
        "{report:?}"
    );
}

#[test]
fn an_engine_that_stops_is_unreachable_until_it_is_back() {
    let mut engine = EngineProgram::start();
    let mut prober = RunningProber::start(&engine, "--timeout-ms 10000");
    let started = prober.scrape()["sealwire_probe_last_success_timestamp_seconds"];
    prober.until(RunningProber::is_well);

    engine.stop();
    // Probes go on during the outage, so there is no gap.
    for _ in 0..3 {
        prober.until(|report| {
            report.ok == 0 && report.failed("unreachable") == report.probes && report.probes > 1
        });
    }
    let lost = prober.scrape();
    engine.start_again();
    prober.until(RunningProber::is_well);

    let back = prober.scrape();
    let of = |series: &BTreeMap<String, f64>, outcome: &str| {
        series[&format!("sealwire_probe_total{{outcome=\"{outcome}\"}}")]
    };
    assert!(
        of(&lost, "unreachable") > 3.0 && of(&back, "unreachable") >= of(&lost, "unreachable"),
        "{back:?}"
    );
    assert!(
        of(&back, "ok") > of(&lost, "ok") && of(&lost, "ok") > 0.0,
        "{lost:?} {back:?}"
    );
    assert_eq!(of(&back, "wrong"), 0.0, "{back:?}");
    assert!(
        back["sealwire_probe_duration_seconds_count"] > 0.0,
        "{back:?}"
    );
    let last_success =
        |series: &BTreeMap<String, f64>| series["sealwire_probe_last_success_timestamp_seconds"];
    assert!(started < last_success(&lost) && last_success(&lost) < last_success(&back));

    assert_eq!(prober.end().0, Some(1));
}

#[test]
fn an_engine_that_does_not_respond_causes_timeouts_until_it_does() {
    let null = Null::start(0);
    let mut prober = RunningProber::start(&null, "--timeout-ms 500");
    prober.until(RunningProber::is_well);
    signal(&null.process, Signal::STOP);
    prober.until(|report| report.failed("timeout") > 0);
    signal(&null.process, Signal::CONT);
    prober.until(RunningProber::is_well);
    assert_eq!(prober.end().0, Some(1));
}

#[test]
fn a_prober_waits_for_its_engine_and_stops_without_failures() {
    let mut null = Null::start(0);
    let prober = RunningProber::start(&null, PATIENT);
    assert_eq!(prober.end(), (Some(0), String::new()));

    // An engine that is away at the start is a failure of each probe, not of the prober.
    null.process.kill().unwrap();
    null.process.wait().unwrap();
    let (report, output) = probe(&null, &format!("--rate 20 --count 5 {PATIENT}"));
    assert_eq!(
        (report.failed("unreachable"), output.status.code()),
        (5, Some(1)),
        "{report:?}"
    );
    assert!(
        report
            .last_failure
            .unwrap()
            .starts_with("encrypt: cannot connect: ")
    );
}

#[test]
fn a_prober_that_cannot_start_says_why() {
    let null = Null::start(0);
    let stranger = Null::start(0);
    for (options, status, expect) in [
        ("--rate 0", 2, "must be in 0.001..=1000"),
        ("--count 0", 2, "--count"),
        ("--timeout-ms 1", 2, "--timeout-ms"),
        ("--metrics nowhere", 2, "--metrics"),
        ("--cert nowhere.pem", 1, "nowhere.pem"),
        // An address that is no address of this machine.
        ("--metrics 192.0.2.1:9464", 1, "--metrics 192.0.2.1:9464: "),
    ] {
        let output = null
            .command("probe", &format!("{options} {PATIENT}"))
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(status),
            "{options}: {}",
            said(&output)
        );
        assert!(
            said(&output).contains(expect) && output.stdout.is_empty(),
            "{options}: {}",
            said(&output)
        );
    }
    let ca = stranger.folder().join("ca.pem");
    let (report, _) = probe(&null, &format!("--count 1 {PATIENT} --ca {}", ca.display()));
    assert!(
        report
            .last_failure
            .as_ref()
            .is_some_and(|why| why.contains("server's certificate")),
        "{report:?}"
    );
    let output = program()
        .args(["probe", "--folder", "/nonexistent"])
        .output()
        .unwrap();
    assert!(
        output.status.code() == Some(1) && said(&output).contains("sealwire dev"),
        "{}",
        said(&output)
    );
}
