//! The vault load against an engine that works, loses a row, or goes away. `loadtest/smoke` runs it
//! against several engine processes on PostgreSQL, one of which is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Output, Stdio};

use sealwire_client::{Client, ClientConfig, Listing, Pem, TokenMap};
use sealwire_load::results::{Figures, Phase, Run, VaultFigures};

use crate::programs::{Callee, EngineProgram, Null, VAULT, said};

/// Options of a load on a small table. Lost responses on a busy machine are late, and no error.
const SMALL: &str = "--rows 3000 --warm-up 0.2 --drain 120 --json";

/// Starts a load whose `--connect` names the engine twice, as if there were two.
fn start(callee: &impl Callee, options: &str) -> Child {
    let twice = format!(
        "{options} --collection {VAULT} --connect {}",
        callee.address()
    );
    callee
        .command("vault", &twice)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn run(callee: &impl Callee, options: &str) -> Output {
    start(callee, options).wait_with_output().unwrap()
}

fn figures(stdout: &[u8]) -> (Run, VaultFigures) {
    let Ok(Figures::Run(run)) = Figures::parse(&String::from_utf8_lossy(stdout)) else {
        panic!("no run")
    };
    let vault = run.vault.clone().unwrap();
    (*run, vault)
}

/// Waits until the table is filled. Further output is available from the reader.
fn filled(load: &mut Child) -> BufReader<ChildStderr> {
    let mut said = BufReader::new(load.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("filled 3,000 of 3,000 rows") {
        line.clear();
        assert!(
            said.read_line(&mut line).unwrap() > 0,
            "the load ended before the table was filled"
        );
    }
    said
}

#[test]
fn every_response_is_right_and_every_row_is_looked_up() {
    let engine = EngineProgram::start();
    let output = run(&engine, &format!("{SMALL} --rate 110 --seconds 2"));
    assert!(output.status.success(), "{}", said(&output));
    let (run, vault) = figures(&output.stdout);
    let names: Vec<&str> = run
        .classes
        .iter()
        .map(|class| class.name.as_str())
        .collect();
    assert_eq!(names, ["look-up", "known value", "new value"]);
    let sent: Vec<u64> = run.classes.iter().map(|class| class.sent).collect();
    // Each deck of 11 operations has all kinds. The window can begin and end within a deck.
    assert!(
        sent.iter().sum::<u64>() > 50
            && sent[0].abs_diff(9 * sent[1]) <= 18
            && sent[1].abs_diff(sent[2]) <= 2,
        "{sent:?}"
    );
    for class in &run.classes {
        assert_eq!((class.ok, class.errors.len()), (class.sent, 0), "{class:?}");
        let moments = || class.over_time.iter().filter(|moment| moment.ok > 0);
        assert!(
            moments()
                .all(|moment| moment.mean_us.is_some() && moment.p95_us <= Some(moment.p99_us)),
            "{class:?}"
        );
    }
    assert_eq!(
        (
            vault.engines,
            vault.rows,
            vault.check.lost(),
            vault.check.wrong()
        ),
        (2, 3_000, 0, 0)
    );
    assert!(
        vault.rows_at_end >= 3_000 + run.classes[2].ok
            && vault.check.checked() == vault.rows_at_end
    );
    let [before] = &*vault.phases else {
        panic!("one phase without a kill: {:?}", vault.phases)
    };
    assert_eq!(
        (before.phase, before.kinds[0].ok),
        (Phase::Before, run.classes[0].ok)
    );
    assert!(
        vault.kill.is_none() && vault.errors.is_empty() && vault.retried.is_empty(),
        "{vault:?}"
    );
}

#[test]
fn a_lost_row_is_found_and_named() {
    let engine = EngineProgram::start();
    let mut load = start(&engine, &format!("{SMALL} --rate 11 --seconds 6"));
    let rest = filled(&mut load);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let lost = runtime.block_on(async {
        let [ca, cert, key] = ["ca", "client", "client-key"]
            .map(|name| Pem::File(engine.folder().join(format!("{name}.pem"))));
        let client = Client::connect(ClientConfig::new(
            engine.address(),
            "localhost",
            ca,
            cert,
            key,
        ))
        .await
        .unwrap();
        let map = TokenMap::new("demo", VAULT);
        let page = client
            .tokens_list(
                map,
                Listing {
                    limit: Some(1),
                    ..Listing::default()
                },
            )
            .await
            .unwrap();
        let token = page.tokens[0].as_ref().unwrap().token.clone();
        let map = TokenMap::new("demo", VAULT);
        client.tokens_delete(map, &[&token]).await.unwrap().count
    });
    assert_eq!(lost, 1);
    let said: Vec<String> = rest.lines().map_while(Result::ok).collect();
    let output = load.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{said:?}");
    let last = said.last().unwrap();
    assert!(
        last.contains("ROWS LOST: 1 of 3,0") || last.contains("ROWS LOST: 1 of 30"),
        "{last}"
    );
    assert!(
        last.contains("(phase fill), is not there through engine"),
        "{last}"
    );
    let (_, vault) = figures(&output.stdout);
    assert_eq!(
        (
            vault.check.lost(),
            vault.check.phases[0].lost,
            vault.check.examples.len()
        ),
        (1, 1, 1)
    );
}

#[test]
fn a_connection_that_ends_without_a_kill_is_an_error_and_loses_no_row() {
    let mut engine = EngineProgram::start();
    let mut load = start(&engine, &format!("{SMALL} --rate 110 --seconds 5"));
    let rest = filled(&mut load);
    let mut lines = rest.lines().map_while(Result::ok);
    lines.find(|line| line.contains(" ok/s ")).unwrap();
    engine.stop();
    engine.start_again();
    let said: Vec<String> = lines.collect();
    let output = load.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{said:?}");
    let last = said.last().unwrap();
    assert!(
        last.contains("errors: ") && last.contains("connection_lost"),
        "{last}"
    );
    let (run, vault) = figures(&output.stdout);
    // All operations were sent again, until they had a result.
    assert!(
        run.classes.iter().all(|class| class.ok == class.sent),
        "{:?}",
        run.classes
    );
    assert_eq!(
        (
            vault.check.lost(),
            vault.check.wrong(),
            vault.wrong_responses
        ),
        (0, 0, 0)
    );
}

#[test]
fn invalid_loads_are_rejected() {
    let null = Null::start(0);
    for (options, status, expect) in [
        ("--rows 0", 2, "--rows"),
        ("--rate 0", 1, "a rate is"),
        (
            "--seconds 5 --kill-after 5",
            1,
            "--kill-after must be before the end",
        ),
        (
            "--seconds 5 --kill-after=-1",
            1,
            "--kill-after must be before the end",
        ),
        (
            "--rate 1000000 --seconds 80000",
            1,
            "200,000,000 operations",
        ),
        // The process of this responder is no engine.
        (
            "--seconds 5 --kill-after 1",
            1,
            "no process `sealwire` on this machine listens on 127.0.0.1:",
        ),
        (
            "--connect 127.0.0.1:1",
            1,
            "no engine answers at 127.0.0.1:1",
        ),
    ] {
        let output = run(&null, options);
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
}
