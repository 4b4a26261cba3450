//! The churn load against an engine that serves, rejects at its limits, or does not know the
//! client.

use std::process::Output;

use sealwire_load::results::{ChurnFigures, Figures, Run};

use crate::programs::{Callee, EngineProgram, Null, program, said};

/// A short load, whose clients wait longer than any busy machine needs.
const SHORT: &str =
    "--warm-up 0.1 --alone 1 --seconds 2 --timeout-ms 120000 --allow-bottleneck --json";

fn churn(callee: &impl Callee, options: &str) -> Output {
    callee
        .command("churn", &format!("{SHORT} {options}"))
        .output()
        .unwrap()
}

fn figures(output: &Output) -> (Run, ChurnFigures) {
    assert!(output.status.success(), "{}", said(output));
    let Ok(Figures::Run(run)) = Figures::parse(&String::from_utf8_lossy(&output.stdout)) else {
        panic!("no run")
    };
    let churn = run.churn.clone().unwrap();
    (*run, churn)
}

#[test]
fn every_connection_and_every_request_is_counted() {
    let engine = EngineProgram::start();
    let file = engine.folder().join("churn.json");
    let options = format!(
        "--rate 20 --calls-per-connection 3 --resume --arrivals even --output {}",
        file.display()
    );
    let output = churn(&engine, &options);
    let (run, churn) = figures(&output);
    assert!(
        churn.done > 0 && churn.rejected.is_empty() && churn.failed.is_empty(),
        "{churn:?}"
    );
    // The engine issues no session tickets.
    assert!(churn.resume && churn.resumed == 0);
    let class = |name: &str| run.classes.iter().find(|class| class.name == name).unwrap();
    let sent = ["handshake", "first request", "later request"].map(|name| class(name).sent);
    assert_eq!(sent, [churn.done, churn.done, 2 * churn.done]);
    for class in &run.classes {
        assert_eq!((class.ok, class.errors.len()), (class.sent, 0), "{class:?}");
    }
    // A machine that stands still for seconds opens fewer connections in time, and none twice.
    assert!(churn.done <= 40 && class("steady client, alone").sent > 0);
    assert_eq!(churn.seconds.len(), 3);
    assert!(churn.seconds.iter().map(|second| second.done).sum::<u64>() <= churn.done);
    let names: Vec<&str> = churn
        .latencies
        .iter()
        .map(|latency| latency.name.as_str())
        .collect();
    assert_eq!(
        names,
        run.classes
            .iter()
            .map(|class| class.name.as_str())
            .collect::<Vec<_>>()
    );
    assert!(
        churn
            .latencies
            .iter()
            .all(|times| times.p50_us <= times.p95_us && times.p95_us <= times.p99_us)
    );
    assert!(
        run.totals.bytes_in_per_s > 0.0 && run.conditions.tls.starts_with("TLS1.3 "),
        "{run:?}"
    );
    // The file is one for `show` and `report`, too.
    let shown = program().arg("show").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(
        text.contains("TLS session resumption offered, and the engine resumed none"),
        "{text}"
    );
    let page = engine.folder().join("report.html");
    let output = program()
        .arg("report")
        .arg(&file)
        .arg("--output")
        .arg(&page)
        .output()
        .unwrap();
    assert!(
        output.status.success() && page.exists(),
        "{}",
        said(&output)
    );
}

#[test]
fn a_delay_is_part_of_handshakes() {
    let engine = EngineProgram::start();
    let (run, churn) = figures(&churn(&engine, "--rate 10 --delay 20"));
    assert!(churn.done > 0 && run.conditions.delay.unwrap().ms == 20.0);
    // TCP's handshake and that of TLS take a round trip each, and so does a request.
    for (class, least_us) in [(&run.classes[0], 40_000.0), (&run.classes[1], 20_000.0)] {
        assert!(class.latency_us.min >= least_us * 0.999, "{class:?}");
    }
}

#[test]
fn a_limit_of_the_engine_rejects_by_its_name() {
    for name in ["connections_max", "connections_per_principal_max"] {
        // The steady client has the only connection.
        let engine = EngineProgram::start_with(|config| {
            config.limits.connections_per_principal_max = 1;
            config.limits.connections_max = if name == "connections_max" { 1 } else { 100 };
            config.limits.handshakes_max = 1;
        });
        let output = churn(&engine, "--rate 20");
        if output.status.success() {
            // On a busy machine, a connection that was due in the window can be opened after the
            // steady client's end.
            let (_, churn) = figures(&output);
            assert!(
                churn.rejected[name] > 0 && churn.rejected.len() == 1 && churn.failed.is_empty(),
                "{churn:?}"
            );
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let said = said(&output);
        let (_, reasons) = said
            .trim_end()
            .rsplit_once("no new connection was served: ")
            .unwrap_or_else(|| panic!("{said}"));
        let (count, only) = reasons.split_once(' ').unwrap();
        assert!(count.parse::<u64>().unwrap() > 0 && only == name, "{said}");
    }
}

#[test]
fn a_load_that_cannot_run_says_what_to_do() {
    let engine = EngineProgram::start();
    let stranger = Null::start(0);
    let file = |name: &str| stranger.folder().join(name).display().to_string();
    let other_client = format!(
        "--cert {} --key {}",
        file("client.pem"),
        file("client-key.pem")
    );
    for (options, status, expect) in [
        (
            &*other_client,
            1,
            "the engine rejected the client certificate: give one with --cert and --key that",
        ),
        (
            &*format!("--ca {}", file("ca.pem")),
            1,
            "give its authority with --ca and its name with --server-name",
        ),
        ("--app nobody", 1, "not_found"),
        ("--rate 0", 1, "--rate is 0.001 to"),
        ("--steady-rate 0", 1, "--steady-rate 0.001 to"),
        ("--calls-per-connection 0", 2, "--calls-per-connection"),
    ] {
        let output = churn(&engine, options);
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
    let mut gone = Null::start(0);
    gone.process.kill().unwrap();
    gone.process.wait().unwrap();
    let output = churn(&gone, "");
    assert!(
        output.status.code() == Some(1) && said(&output).contains("--connect"),
        "{}",
        said(&output)
    );
    // One byte of a sealed value is wrong.
    let output = churn(&Null::start(1), "");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
}
