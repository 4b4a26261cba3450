//! Tests of the throw-away server, and of its complete removal.

#![allow(clippy::unwrap_used)] // Helpers of tests, which clippy does not take for tests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sealwire_testkit::{Options, Postgres, Stop};

/// Returns true if files or processes of the server in that folder are left.
fn left(folder: &Path) -> bool {
    let name = folder.to_str().unwrap();
    let named = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(name)
    };
    folder.exists() || std::fs::read_dir("/proc").unwrap().flatten().any(named)
}

fn until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(120), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn committed_rows_outlive_every_stop() {
    let server = Postgres::start(Options::default()).unwrap();
    let database = server.database().unwrap();
    database.sql("CREATE TABLE kept(n int)").unwrap();
    for (n, stop) in [Stop::Fast, Stop::Immediate, Stop::Kill]
        .into_iter()
        .enumerate()
    {
        database
            .sql(&format!("INSERT INTO kept VALUES ({n})"))
            .unwrap();
        server.stop(stop);
        assert!(database.sql("SELECT 1").is_err(), "{stop:?}");
        server.restart().unwrap();
        assert_eq!(
            database.sql("SELECT count(*) FROM kept").unwrap(),
            (n + 1).to_string(),
            "{stop:?}"
        );
    }
    assert_eq!(database.sql("SHOW fsync").unwrap(), "on");
}

#[test]
fn settings_are_the_servers_and_databases_are_apart() {
    let server = Postgres::start(Options::default().set("max_connections", "17")).unwrap();
    let (one, other) = (server.database().unwrap(), server.database().unwrap());
    assert_eq!(one.sql("SHOW max_connections").unwrap(), "17");
    one.sql("CREATE TABLE here(n int)").unwrap();
    let error = other.sql("SELECT * FROM here").unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
}

#[test]
fn a_setting_that_does_not_exist_is_told_with_the_servers_words() {
    let error = Postgres::start(Options::default().set("no_such_setting", "1"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("no_such_setting"), "{error}");
}

#[test]
fn a_frozen_server_goes_on_where_it_was() {
    let server = Postgres::start(Options::default()).unwrap();
    let database = server.database().unwrap();
    server.freeze();
    let is_thawed = AtomicBool::new(false);
    thread::scope(|scope| {
        let answered = scope.spawn(|| {
            assert_eq!(database.sql("SELECT 1").unwrap(), "1");
            assert!(
                is_thawed.load(Ordering::SeqCst),
                "a frozen server has answered"
            );
        });
        // A server that was not frozen would respond within this time.
        thread::sleep(Duration::from_millis(300));
        is_thawed.store(true, Ordering::SeqCst);
        server.thaw();
        answered.join().unwrap();
    });
}

#[test]
fn a_standby_follows_and_takes_over() {
    let first = Postgres::start(Options::default()).unwrap();
    let database = first.database().unwrap();
    let second = first.standby().unwrap();
    database.sql("CREATE TABLE kept(n int)").unwrap();
    until("it follows", || {
        second
            .sql(database.name(), "SELECT count(*) FROM kept")
            .is_ok()
    });
    assert!(
        second
            .sql(database.name(), "INSERT INTO kept VALUES (1)")
            .is_err(),
        "it takes no writes"
    );
    first.stop(Stop::Kill);
    second.promote().unwrap();
    second
        .sql(database.name(), "INSERT INTO kept VALUES (1)")
        .unwrap();
}

#[test]
fn drop_of_a_cluster_leaves_nothing() {
    let server = Postgres::start(Options::default()).unwrap();
    let folder = server.folder().to_owned();
    assert!(left(&folder));
    drop(server);
    assert!(!left(&folder));
}

/// Starts the program, and reads the server's folder from its output once the server is up.
fn held() -> (Child, BufReader<ChildStdout>, PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throwaway-postgres"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let (mut folder, mut line) = (None, String::new());
    while line.trim_end() != "ready" {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended");
        folder = folder.or(line.trim_end().strip_prefix("folder ").map(PathBuf::from));
    }
    (child, said, folder.unwrap())
}

#[test]
fn kill_of_the_owner_leaves_no_cluster() {
    let (mut child, _said, folder) = held();
    assert!(left(&folder));
    child.kill().unwrap();
    child.wait().unwrap();
    until("all of it goes", || !left(&folder));
}

#[test]
fn end_of_the_owner_leaves_no_cluster() {
    let (mut child, _said, folder) = held();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(!left(&folder));
}
