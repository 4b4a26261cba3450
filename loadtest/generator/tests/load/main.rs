//! End-to-end tests of the program: loads over real sockets and TLS, and all expected failures.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which lints only know in unit tests"
)]

mod probe;
mod programs;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use sealwire_load::results::{Figures, Mode, Run};

use programs::{Callee, EngineProgram, Null, program, said};

/// Options of a short load.
const SHORT: &str = "--warm-up 0.1 --duration 0.6";

/// Asserts that every request of a class is counted once, and that some results were compared with
/// the documents sent.
fn adds_up(run: &Run) {
    for class in &run.classes {
        assert_eq!(
            class.sent,
            class.ok + class.errors.values().sum::<u64>(),
            "{class:?}"
        );
        assert_eq!(
            class
                .histogram_us
                .iter()
                .map(|(_, count)| count)
                .sum::<u64>(),
            class.ok
        );
        let times = class.latency_us;
        assert!(
            times.min <= times.p50 && times.p50 <= times.p99 && times.p99 <= times.max,
            "{times:?}"
        );
        assert!(
            class.ok == 0 || class.checked > 0,
            "nothing was compared: {class:?}"
        );
    }
    assert!(
        run.conditions.tls.starts_with("TLS1.3 TLS_") && run.conditions.same_machine,
        "{:?}",
        run.conditions
    );
    assert!(run.generator.us_per_call > 0.0 && run.totals.bytes_in_per_s > 0.0);
}

/// The figures of the first load of which `is_enough` holds, of loads that each last longer than
/// the one before: how much a machine does in a time is not what these tests are about.
fn until(callee: &impl Callee, options: &str, is_enough: impl Fn(&Run) -> bool) -> Run {
    let mut last = String::new();
    for duration in ["0.3", "2", "10", "60"] {
        let output = callee.run(&format!(
            "{options} --warm-up 0.1 --duration {duration} --json --allow-bottleneck"
        ));
        if !output.status.success() {
            last = said(&output);
            // On a machine that stands still for as long, no request may even be due.
            assert!(
                last.contains("no call succeeded") || last.contains("no call was due"),
                "{options}: {last}"
            );
            continue;
        }
        let Ok(Figures::Run(run)) = Figures::parse(&String::from_utf8(output.stdout).unwrap())
        else {
            panic!()
        };
        if is_enough(&run) {
            return *run;
        }
        last = format!("{run:?}");
    }
    panic!("{options}: {last}");
}

/// Starts a load of one hour and waits until it has run for a second. Further output is available
/// from the reader.
fn under_way(callee: &impl Callee, options: &str) -> (Child, BufReader<ChildStderr>) {
    let mut command: Command = callee.command(
        "run",
        &format!("{options} --warm-up 0 --duration 3600 --live"),
    );
    let mut load = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(load.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains(" ok/s "), "{line}");
    (load, said)
}

#[test]
fn loads_of_all_kinds_are_served_by_an_engine_and_compared() {
    let engine = EngineProgram::start();
    for (options, classes) in [
        ("--rate 100 --fields 3", 1),
        (
            "--rate 100 --fields 3 --suite secp256k1 --scope field --arrivals even",
            1,
        ),
        ("--rate 200 --mix founding --check all", 3),
        ("--rate 50 --method decrypt --distinct 3", 1),
        ("--rate 50 --method tokenize --fields 5", 1),
        ("--rate 50 --method detokenize --fields 5", 1),
        ("--callers 5 --connections 2 --fields 10", 1),
        ("--rate 100 --processes 2 --connections 3", 1),
    ] {
        let run = until(&engine, options, |run| {
            let is_compared = run
                .classes
                .iter()
                .all(|class| class.ok == 0 || class.checked > 0);
            // A busy machine can end a short load before the engine's CPU time was read twice.
            let is_measured = run.server_cpu.is_some();
            is_compared
                && is_measured
                && run.totals.bytes_in_per_s > 0.0
                && run.totals.fields_per_s > 0.0
        });
        adds_up(&run);
        assert_eq!(run.classes.len(), classes, "{options}");
        // The only codes that a machine busy with other tests may cause.
        let busy = [
            "overloaded",
            "paused",
            "deadline_exceeded",
            "unanswered",
            "unsent",
        ];
        let mut codes = run.classes.iter().flat_map(|class| class.errors.keys());
        assert!(
            codes.all(|code| busy.contains(&code.as_str())),
            "{options}: {:?}",
            run.classes
        );
        // A short load can use less CPU than the kernel's resolution of 10 ms.
        assert!(run.server_cpu.is_some() && run.totals.fields_per_s > 0.0);
        let is_open = options.contains("--rate");
        assert_eq!(
            (
                run.conditions.mode == Mode::Open,
                run.conditions.callers.is_none()
            ),
            (is_open, is_open)
        );
    }
}

#[test]
fn calls_that_are_cancelled_or_too_late_are_errors_by_their_code() {
    let engine = EngineProgram::start();
    for (options, code) in [
        ("--cancel-after-ms 1", "cancelled"),
        ("--deadline-ms 1", "deadline_exceeded"),
    ] {
        // A mix in which some requests succeed, because a load without any result gives no figures.
        let file = engine.folder().join("mix.json");
        let large = options
            .trim_start_matches("--")
            .replace('-', "_")
            .replace(' ', "\": ");
        let mix = format!(
            r#"[{{"weight": 1, "fields": 1}}, {{"weight": 1, "fields": 20000, "{large}}}]"#
        );
        std::fs::write(&file, mix).unwrap();
        let run = until(
            &engine,
            &format!("--rate 40 --mix {}", file.display()),
            |run| {
                [code, "overloaded"]
                    .iter()
                    .any(|code| run.classes[1].errors.contains_key(*code))
            },
        );
        assert_eq!(
            run.classes[1].sent,
            run.classes[1].ok + run.classes[1].errors.values().sum::<u64>()
        );
        assert_eq!(
            run.totals.errors,
            run.classes
                .iter()
                .flat_map(|class| class.errors.values())
                .sum::<u64>()
        );
    }
    let output = engine.run(&format!("--rate 50 --app nobody {SHORT}"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("no call succeeded") && said(&output).contains("not_found"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_wrong_answer_fails_the_load() {
    for method in ["encrypt", "decrypt", "tokenize"] {
        let null = Null::start(10);
        // The first wrong response ends the load.
        let output = null.run(&format!(
            "--rate 400 --method {method} --distinct 2 --check all --warm-up 0 --duration 600"
        ));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(3), "{method}: {said}");
        assert!(
            said.contains("WRONG ANSWER") && output.stdout.is_empty(),
            "{method}: {said}"
        );
    }
    // Without checks, wrong responses are not detected.
    let run = until(&Null::start(10), "--rate 400 --check none", |run| {
        run.classes[0].ok >= 10
    });
    assert_eq!(run.classes[0].checked, 0);
}

#[test]
fn an_engine_that_is_not_there_or_goes_fails_the_load() {
    let lost = |options: &str| {
        let mut null = Null::start(0);
        let (load, said_so_far) = under_way(&null, options);
        null.process.kill().unwrap();
        null.process.wait().unwrap();
        let rest: Vec<String> = said_so_far.lines().map_while(Result::ok).collect();
        let output = load.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{options}: {rest:?}");
        assert!(
            rest.join("\n").contains("the engine was lost: connection") && output.stdout.is_empty(),
            "{rest:?}"
        );

        let output = null.run(&format!("{options} {SHORT}"));
        assert_eq!(output.status.code(), Some(1), "{options}");
        assert!(
            said(&output).contains("no engine answers at 127.0.0.1"),
            "{}",
            said(&output)
        );
    };
    std::thread::scope(|scope| {
        for options in ["--rate 200", "--callers 4", "--rate 200 --processes 2"] {
            scope.spawn(move || lost(options));
        }
    });
}

#[test]
fn processes_of_a_load_end_with_it() {
    let null = Null::start(0);
    let (mut load, said) = under_way(&null, "--rate 200 --processes 3");
    load.kill().unwrap();
    load.wait().unwrap();
    // The child processes keep standard error open, for an hour if they continue.
    let (ended, is_ended) = channel();
    std::thread::spawn(move || ended.send(said.lines().count()));
    is_ended
        .recv_timeout(Duration::from_secs(120))
        .expect("a process goes on");
}

#[test]
fn a_rate_that_cannot_be_sent_gives_no_figures() {
    let null = Null::start(0);
    let impossible = "--rate 100000000 --fields 1 --warm-up 0 --duration 0.05 --drain 0";
    let output = null.run(impossible);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(
        said(&output).contains("lower ") && output.stdout.is_empty(),
        "{}",
        said(&output)
    );
    let run = null.figures(impossible);
    assert!(run.generator.was_bottleneck && run.generator.why.is_some());
    assert!(run.totals.sent_per_s < run.totals.offered_per_s / 2.0);
}

#[test]
fn sweep_and_prove_give_one_file_of_runs() {
    let null = Null::start(0);
    let file = null.folder().join("sweep.json");
    let output = null
        .command("sweep", "--from 200 --rates 2 --around 0 --fields 1 --warm-up 0 --duration 0.4 --allow-bottleneck")
        .arg("--output")
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let Figures::Sweep(sweep) = Figures::read(&file).unwrap() else {
        panic!("no sweep")
    };
    assert_eq!(sweep.runs.len(), 2);
    let shown = program().arg("show").arg(&file).output().unwrap();
    assert!(shown.status.success() && shown.stdout == output.stdout && !shown.stdout.is_empty());

    let prove = |options: &str| {
        program()
            .arg("self-test")
            .args(options.split_whitespace())
            .output()
            .unwrap()
    };
    let output = prove("--from 300 --target 1 --warm-up 0 --duration 0.1");
    // It depends on the machine whether any rate is sent on time.
    let end = match output.status.code() {
        Some(0) => "frames/s of 1 field sent on time",
        Some(5) => "no rate was sent on time and answered",
        _ => "another status",
    };
    assert!(
        said(&output).contains(end),
        "{:?} {}",
        output.status,
        said(&output)
    );
    let output = prove("--from 600 --target 1000000000 --warm-up 0 --duration 0.05");
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
}

#[test]
fn a_sweep_that_the_generator_ends_has_no_knee() {
    let null = Null::start(0);
    let options = "--from 100000000 --rates 1 --around 0 --fields 1 --warm-up 0 --duration 0.05 --drain 0 --json";
    for (allow, status) in [("", 5), ("--allow-bottleneck", 0)] {
        let output = null
            .command("sweep", &format!("{options} {allow}"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        assert_eq!(
            said(&output).contains("no knee of the engine"),
            status == 5,
            "{}",
            said(&output)
        );
        // Measured values are printed anyway, and marked.
        let Ok(Figures::Sweep(sweep)) = Figures::parse(&String::from_utf8(output.stdout).unwrap())
        else {
            panic!()
        };
        assert!(
            sweep.runs.len() == 1 && sweep.runs[0].generator.was_bottleneck && sweep.knee.is_none()
        );
    }
}

#[test]
fn scenarios_that_cannot_run_are_rejected_before_any_request() {
    let null = Null::start(0);
    let mix = |name: &str, text: &str| {
        let file = null.folder().join(name);
        std::fs::write(&file, text).unwrap();
        format!("--rate 1 --mix {}", file.display())
    };
    for (options, status, expect) in [
        (String::new(), 2, "--rate"),
        ("--rate 1 --callers 1".to_owned(), 2, "cannot be used with"),
        ("--rate 1 --check 0".to_owned(), 2, "`1/N`"),
        ("--rate 0".to_owned(), 1, "a rate is"),
        ("--rate nan".to_owned(), 1, "a rate is"),
        (
            "--callers 1 --processes 2".to_owned(),
            1,
            "--callers 1 is less than --processes 2",
        ),
        ("--rate 1 --fields 0".to_owned(), 1, "1 to 1500000 fields"),
        (
            "--rate 1 --connections 5000".to_owned(),
            1,
            "1,024 connections",
        ),
        ("--rate 1 --duration 0".to_owned(), 1, "a load lasts"),
        ("--rate 1 --mix nowhere.json".to_owned(), 1, "nowhere.json"),
        (mix("a.json", "[]"), 1, "1 to 64 kinds"),
        (mix("b.json", r#"[{"weight": -1}]"#), 1, "weight"),
        (
            mix("c.json", r#"[{"weight": 1, "feilds": 3}]"#),
            1,
            "feilds",
        ),
    ] {
        let output = null.run(&options);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{options}: {}",
            said(&output)
        );
        assert!(
            said(&output).contains(expect),
            "{options}: {}",
            said(&output)
        );
    }
    // With another CA, the handshake fails, and the error names the reason.
    let stranger = Null::start(0);
    let output = null
        .command("run", "--rate 1")
        .arg("--ca")
        .arg(stranger.folder().join("ca.pem"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("invalid peer certificate"),
        "{}",
        said(&output)
    );
    let output = program()
        .args(["run", "--rate", "1", "--folder", "/nonexistent"])
        .output()
        .unwrap();
    assert!(
        output.status.code() == Some(1) && said(&output).contains("sealwire dev"),
        "{}",
        said(&output)
    );
}

/// A responder prints its address first.
#[test]
fn output_that_nobody_reads_ends_the_load_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = program();
    command
        .args(["sink", "--listen", "127.0.0.1:0", "--folder"])
        .arg(folder.path().join("made"));
    let output = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(141) && said.is_empty(),
        "{:?}: {said}",
        output.status
    );
}
