//! Tests of `sealwire mask`: rules explained on samples, files masked by a real engine, and leaks
//! found.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::builder::{Int64Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, Date32Array, Int32Array, Int64Array, RecordBatch, StringArray, StructArray,
    Time64MicrosecondArray,
};
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::properties::WriterProperties;
use sealwire_testkit::{Moto, Postgres};
use serde_json::Value;

use super::{Dev, ok, sealwire, spawn};

const RULES: &str = r#"
unknown = "refuse"

[[rule]]
column = "email"
mask = "email"

[[rule]]
path = "$.card.number"
mask = "card(first=6, last=4)"

[[rule]]
column = "name"
mask = "pseudonym(list=heroes)"

[[rule]]
kind = "phone"
mask = "phone(last=2)"

[[rule]]
column = "id"
mask = "keep"

[[rule]]
column = "gone"
mask = "null"

[lists]
heroes = "heroes.txt"
"#;

fn orders(count: usize) -> String {
    let mut text = String::new();
    for n in 0..count {
        let (name, tail) = (
            ["Zoë", "Åsa", "Bob", "Eve"][n % 4],
            if n % 3 == 0 {
                "null"
            } else {
                "\"+49 30 5550123\""
            },
        );
        let email = n % 50;
        writeln!(
            text,
            r#"{{"id": {n}, "name": "{name}", "email": "user{email}@shop.example", "card": {{"number": "42424242424242{:02}"}}, "call": {tail}}}"#,
            n % 100
        )
        .unwrap();
    }
    text
}

/// Standard output, standard error and the exit status.
fn run(folder: &Path, arguments: &[&str]) -> (String, String, i32) {
    let output = sealwire(folder, arguments);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        text(output.stdout),
        text(output.stderr),
        output.status.code().unwrap(),
    )
}

/// Returns the words of the line whose first word is `field`.
fn row<'t>(table: &'t str, field: &str) -> Vec<&'t str> {
    let line = table
        .lines()
        .find(|line| line.split_whitespace().next() == Some(field));
    line.unwrap_or_else(|| panic!("{field} is not in\n{table}"))
        .split("  ")
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
        .collect()
}

#[test]
fn a_sample_is_explained_field_by_field_without_an_engine() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("rules.toml", RULES);
    write("heroes.txt", "Ajax\nHector\nParis\n");
    write("sample.ndjson", &orders(8));
    let check = ["mask", "check", "--rules", "rules.toml", "sample.ndjson"];
    // Card numbers that fail the Luhn check are accepted, because a rule names the field.
    let (table, said, status) = run(folder.path(), &check);
    assert_eq!(
        row(&table, "$.email"),
        ["$.email", "email", "rule 1, column email", "8", "0"],
        "{said}"
    );
    assert_eq!(
        row(&table, "$.name")[1..3],
        ["pseudonym(list=heroes)", "rule 3, column name"]
    );
    assert_eq!(row(&table, "$.id")[1..3], ["keep", "rule 5, column id"]);
    assert!(table.contains("rule 4, kind phone"), "{table}");
    assert!(
        table.contains("rule 6 names nothing here: column gone"),
        "{table}"
    );
    assert_eq!(status, 0, "{table}{said}");
    let (json, _, status) = run(folder.path(), &[&check[..], &["--json"]].concat());
    let explained: Value = serde_json::from_str(&json).unwrap();
    let email = explained["fields"]
        .as_array()
        .unwrap()
        .iter()
        .find(|field| field["field"] == "$.email")
        .unwrap();
    assert_eq!(
        (&email["becomes"], &email["rule"], &email["values"]),
        (&"masked".into(), &1.into(), &8.into())
    );
    assert_eq!((&explained["unused"], status), (&Value::from(vec![6]), 0));

    // Fields without a rule and values that a function rejects: a job would fail, and so does the
    // check.
    write(
        "sample.json",
        r#"[{"id": 1, "email": "no address", "born": "1990-01-01"}]"#,
    );
    let (table, said, status) = run(
        folder.path(),
        &["mask", "check", "--rules", "rules.toml", "sample.json"],
    );
    let born = table.lines().find(|line| line.contains("born")).unwrap();
    assert!(
        born.contains("refused") && born.contains("no rule names it"),
        "{table}"
    );
    assert!(
        table.contains("rule 1: email does not fit 1 value:"),
        "{table}"
    );
    assert!(
        status == 1 && said.contains("a job would fail: no rule names 1 field;"),
        "{said}"
    );
    assert!(
        !table.contains("1990") && !table.contains("no address"),
        "a value is shown: {table}"
    );
    let kept = RULES.replace("\"refuse\"", "\"keep\"");
    write("keeping.toml", &kept);
    let (table, said, status) = run(
        folder.path(),
        &["mask", "check", "--rules", "keeping.toml", "sample.json"],
    );
    assert!(
        status == 1 && said.contains("its function does not fit 1 value"),
        "{table}{said}"
    );

    write(
        "long.txt",
        &(0..3_000)
            .map(|n| format!("{n:0100}\n"))
            .collect::<String>(),
    );
    // Invalid rules: the error has file, line, column and a hint.
    for (from, to, says) in [
        (
            "\"card(first=6, last=4)\"",
            "\"card(first=six)\"",
            "rules-bad.toml: line 10, column",
        ),
        ("unknown = \"refuse\"", "", "unknown = \"keep\""),
        ("kind = \"phone\"", "kind = \"fax\"", "fax"),
        (
            "heroes = \"heroes.txt\"",
            "heroes = \"nowhere.txt\"",
            "nowhere.txt",
        ),
        ("list=heroes", "list=villains", "villains"),
        (
            "heroes.txt",
            "long.txt",
            "the rules use 300000 bytes of lists, and one call takes 262144",
        ),
    ] {
        write("rules-bad.toml", &RULES.replacen(from, to, 1));
        let (out, said, status) = run(
            folder.path(),
            &[
                "mask",
                "check",
                "--rules",
                "rules-bad.toml",
                "sample.ndjson",
            ],
        );
        assert!(
            status == 1 && said.contains(says) && out.is_empty(),
            "{to}: {said}"
        );
    }
    let (_, said, status) = run(
        folder.path(),
        &["mask", "check", "--rules", "rules.toml", "heroes.txt"],
    );
    assert!(status == 1 && said.contains("--format"), "{said}");
    let help = ok(folder.path(), &["mask", "--help"]);
    for word in [
        "Usage: sealwire mask <COMMAND>",
        "sealwire mask check --rules",
        "[[rule]]",
        "docs/masking.md",
        "mask database",
    ] {
        assert!(help.contains(word), "{word} is not in\n{help}");
    }
}

#[test]
fn files_are_masked_by_an_engine_alike_and_verified() {
    let dev = Dev::start();
    dev.write("rules.toml", RULES);
    dev.write("heroes.txt", "Ajax\nHector\nParis\n");
    dev.write("orders.ndjson", &orders(3_000));
    let read = |name: &str| std::fs::read_to_string(dev.path().join(name)).unwrap();
    let file = [
        "mask",
        "file",
        "orders.ndjson",
        "--allow-unmatched",
        "--rules",
        "rules.toml",
    ];
    let report = dev.ok(&[&file[..], &["--out", "masked.ndjson", "--verify"]].concat());
    assert!(row(&report, "$.email").contains(&"3000"), "{report}");
    assert!(
        report.contains("3000 records") && !report.contains("LEAK"),
        "{report}"
    );
    let (original, masked) = (read("orders.ndjson"), read("masked.ndjson"));
    assert_eq!(masked.lines().count(), 3_000);
    for leaked in ["shop.example", "Zoë", "Bob", "5550123"] {
        assert!(
            original.contains(leaked) && !masked.contains(leaked),
            "{leaked} is in the output"
        );
    }
    for (before, after) in original.lines().zip(masked.lines()) {
        let [before, after] =
            [before, after].map(|line| serde_json::from_str::<Value>(line).unwrap());
        assert_eq!(before["id"], after["id"]);
        assert!(
            ["Ajax", "Hector", "Paris"].contains(&after["name"].as_str().unwrap()),
            "{after}"
        );
        let [number, mask] = [&before, &after].map(|line| line["card"]["number"].as_str().unwrap());
        assert!(
            mask.starts_with("424242") && mask.ends_with(&number[12..]),
            "{mask}"
        );
        assert_eq!(before["call"].is_null(), after["call"].is_null());
    }
    // Another run and another format give equal masks.
    dev.ok(&[&file[..], &["--out", "again.ndjson"]].concat());
    assert_eq!(read("again.ndjson"), masked);
    let csv = original.lines().take(50).map(|line| {
        serde_json::from_str::<Value>(line).unwrap()["email"]
            .as_str()
            .unwrap()
            .to_owned()
    });
    dev.write(
        "users.csv",
        &format!(
            "email,note\r\n{}",
            csv.map(|email| format!("{email},\"a, b\"\r\n"))
                .collect::<String>()
        ),
    );
    dev.write(
        "csv.toml",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"email\"\n",
    );
    let json = dev.ok(&[
        "mask",
        "file",
        "users.csv",
        "--out",
        "users-masked.csv",
        "--rules",
        "csv.toml",
        "--json",
    ]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&report["records"], &report["fields"][0]["masked"]),
        (&50.into(), &50.into()),
        "{json}"
    );
    let first = serde_json::from_str::<Value>(masked.lines().next().unwrap()).unwrap();
    let second = read("users-masked.csv");
    assert_eq!(
        second.lines().nth(1).unwrap(),
        format!("{},\"a, b\"", first["email"].as_str().unwrap())
    );
    // With a pipe, the document is on standard output and the report on standard error.
    let piped = dev.arguments(&[&file[..], &["--out", "-"]].concat());
    let (document, said, status) = run(dev.path(), &piped);
    assert!(
        status == 0 && document == masked && said.contains("3000 records"),
        "{said}"
    );
    // Another app gives different masks.
    dev.operate(&["apps", "create", "other"]);
    dev.ok(&[
        "mask",
        "file",
        "users.csv",
        "--out",
        "other.csv",
        "--rules",
        "csv.toml",
        "--app",
        "other",
    ]);
    assert_ne!(read("other.csv"), read("users-masked.csv"));

    // The leak check works although the rules of the check name fewer fields.
    let verify = |masked: &str| {
        run(
            dev.path(),
            &[
                "mask",
                "verify",
                "file",
                "orders.ndjson",
                masked,
                "--rules",
                "rules.toml",
            ],
        )
    };
    let (table, said, status) = verify("masked.ndjson");
    assert_eq!(status, 0, "{table}{said}");
    let fewer = RULES.replacen("mask = \"email\"", "mask = \"keep\"", 1);
    dev.write("fewer.toml", &fewer);
    dev.ok(&[
        "mask",
        "file",
        "orders.ndjson",
        "--allow-unmatched",
        "--rules",
        "fewer.toml",
        "--out",
        "leaking.ndjson",
    ]);
    let (table, said, status) = verify("leaking.ndjson");
    assert!(
        status == 1 && said.contains("contains originals of"),
        "{table}{said}"
    );
    assert!(
        row(&table, "$.email").last().unwrap().contains("LEAK"),
        "{table}"
    );
    let again = dev.arguments(&[
        "mask",
        "file",
        "orders.ndjson",
        "--allow-unmatched",
        "--rules",
        "rules.toml",
        "--out",
        "masked.ndjson",
    ]);
    let (_, said, status) = run(dev.path(), &again);
    assert!(
        status == 1 && said.contains("masked.ndjson exists already"),
        "{said}"
    );
    dev.stop();
}

#[test]
fn a_job_outlives_an_engine_that_is_killed_and_comes_back() {
    let mut dev = Dev::start_to_come_again();
    dev.write("rules.toml", RULES);
    dev.write("heroes.txt", "Ajax\nHector\nParis\n");
    let orders = orders(20_000);
    dev.write("orders.ndjson", &orders);
    dev.ok(&[
        "mask",
        "file",
        "orders.ndjson",
        "--allow-unmatched",
        "--rules",
        "rules.toml",
        "--out",
        "expected.ndjson",
    ]);
    let piped = |out: &str, patience: &str| {
        let job = [
            "mask",
            "file",
            "-",
            "--format",
            "ndjson",
            "--allow-unmatched",
            "--rules",
            "rules.toml",
            "--out",
            out,
        ];
        let job = dev.arguments(&[&job[..], &["--retry-timeout", patience]].concat());
        let mut job = spawn(dev.path(), &job);
        (job.stdin.take().unwrap(), job)
    };
    let finished = |job: Child| {
        let output = job.wait_with_output().unwrap();
        (
            String::from_utf8(output.stderr).unwrap(),
            output.status.code(),
        )
    };
    // The engine stops during both jobs, when half of their input is still to come.
    let (half, rest) = orders.split_at(orders.len() / 2);
    let mut jobs = [piped("masked.ndjson", "300"), piped("never.ndjson", "1")];
    for (input, _) in &mut jobs {
        input.write_all(half.as_bytes()).unwrap();
    }
    dev.kill();
    let [(mut patient, outlives), (mut brief, gives_up)] = jobs;
    // This job can give up before it has read all input.
    let _ = brief.write_all(rest.as_bytes());
    drop(brief);
    let (said, status) = finished(gives_up);
    assert!(status == Some(1) && said.contains("engine: "), "{said}");
    assert!(!dev.path().join("never.ndjson").exists());
    let dev = dev.again();
    patient.write_all(rest.as_bytes()).unwrap();
    drop(patient);
    let (said, status) = finished(outlives);
    assert_eq!(status, Some(0), "{said}");
    let read = |name: &str| std::fs::read_to_string(dev.path().join(name)).unwrap();
    assert!(
        read("masked.ndjson") == read("expected.ndjson"),
        "what was masked before and after does not agree"
    );
    dev.stop();
}

#[test]
fn a_job_that_fails_says_where_and_leaves_nothing() {
    let dev = Dev::start();
    dev.write("rules.toml", RULES);
    dev.write("heroes.txt", "Ajax\nHector\n");
    for (lines, says) in [
        (
            r#"{"id": 1, "born": "1990-01-01"}"#,
            "in.ndjson, line 101: no rule names $.born",
        ),
        (
            r#"{"id": 1, "email": "no address"}"#,
            "in.ndjson, line 101, column 20: email does not fit",
        ),
        (r#"{"id": 1, "email": }"#, "in.ndjson, line 101, column"),
    ] {
        dev.write(
            "in.ndjson",
            &format!("{}{lines}\n{}", orders(100), orders(100)),
        );
        let before: Vec<_> = std::fs::read_dir(dev.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        let job = dev.arguments(&[
            "mask",
            "file",
            "in.ndjson",
            "--rules",
            "rules.toml",
            "--out",
            "out.ndjson",
        ]);
        let (out, said, status) = run(dev.path(), &job);
        assert!(
            status == 1 && said.contains(says) && out.is_empty(),
            "{says}: {said}"
        );
        assert!(
            !said.contains("1990") && !said.contains("no address"),
            "a value is shown: {said}"
        );
        let after: Vec<_> = std::fs::read_dir(dev.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(after.len(), before.len(), "{says}: {after:?}");
    }
    // Without the permission to mask, no input is read.
    dev.operate(&["roles", "set", "bare", "encrypt apps=*"]);
    let client = dev.operate(&["principals", "list"]);
    let relay = client
        .lines()
        .find(|line| !line.contains("administrator") && !line.starts_with("PRINCIPAL"))
        .unwrap();
    let mut words = relay.split_whitespace();
    let (principal, role) = (words.next().unwrap(), words.next().unwrap());
    dev.operate(&["principals", "grant", principal, "bare"]);
    dev.operate(&["principals", "revoke", principal, role]);
    dev.write("in.ndjson", &orders(3));
    dev.refused(
        &[
            "mask",
            "file",
            "in.ndjson",
            "--rules",
            "rules.toml",
            "--out",
            "out.ndjson",
        ],
        "no role of this principal grants mask",
    );
    assert!(!dev.path().join("out.ndjson").exists());
    dev.stop();
}

/// Returns a Parquet file of customers in several row groups.
fn customers(count: i64) -> Vec<u8> {
    let texts = |text: &dyn Fn(i64) -> String| -> ArrayRef {
        Arc::new(
            (0..count)
                .map(|at| (at % 10 > 0).then(|| text(at)))
                .collect::<StringArray>(),
        )
    };
    let batch = RecordBatch::try_from_iter([
        (
            "id",
            Arc::new((0..count).map(Some).collect::<Int64Array>()) as ArrayRef,
        ),
        ("email", texts(&|at| format!("ann{at}@shop.example"))),
        ("note", texts(&|at| format!("customer {at}"))),
    ]);
    let batch = batch.unwrap();
    let mut out = Vec::new();
    let groups = WriterProperties::builder()
        .set_max_row_group_row_count(Some(400))
        .build();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), Some(groups)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    out
}

fn columns(file: Vec<u8>) -> Vec<ArrayRef> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file))
        .unwrap()
        .with_batch_size(1 << 20);
    reader
        .build()
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .columns()
        .to_vec()
}

#[test]
fn parquet_files_are_masked_encrypted_and_decrypted() {
    let dev = Dev::start();
    let (source, rules) = (
        customers(1_000),
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"email\"\n",
    );
    std::fs::write(dev.path().join("in.parquet"), &source).unwrap();
    dev.write("rules.toml", rules);
    let read = |name: &str| std::fs::read(dev.path().join(name)).unwrap();

    let table = ok(
        dev.path(),
        &["mask", "check", "--rules", "rules.toml", "in.parquet"],
    );
    assert!(row(&table, "email").contains(&"900"), "{table}");
    let mask = [
        "mask",
        "file",
        "in.parquet",
        "--rules",
        "rules.toml",
        "--out",
        "masked.parquet",
    ];
    let json = dev.ok(&[&mask[..], &["--verify", "--json"]].concat());
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&report["records"], &report["leaks"]["fields"][0]["verdict"]),
        (&1_000.into(), &"clean".into()),
        "{json}"
    );
    let (before, after) = (columns(source.clone()), columns(read("masked.parquet")));
    assert_eq!((&before[0], &before[2]), (&after[0], &after[2]));
    let (emails, masks) = (before[1].as_string::<i32>(), after[1].as_string::<i32>());
    for at in 0..1_000 {
        assert_eq!(emails.is_null(at), masks.is_null(at));
        assert!(masks.is_null(at) || masks.value(at) != emails.value(at));
    }

    let encrypt = [
        "encrypt",
        "in.parquet",
        "--output",
        "sealed.parquet",
        "-s",
        "$.email",
        "-s",
        "$.id",
    ];
    dev.ok(&[&encrypt[..], &["--context", "customers"]].concat());
    let sealed = columns(read("sealed.parquet"));
    assert_eq!(&before[2], &sealed[2]);
    assert!(sealed[0].as_string::<i32>().value(7).len() > 40);
    assert!(
        !read("sealed.parquet")
            .windows(9)
            .any(|bytes| bytes == b"ann123@sh")
    );
    let decrypt = [
        "decrypt",
        "sealed.parquet",
        "--output",
        "opened.parquet",
        "-s",
        "$.email",
        "-s",
        "$.id",
    ];
    dev.ok(&[&decrypt[..], &["--context", "customers"]].concat());
    assert_eq!(columns(read("opened.parquet")), before);
    // Under another context nothing opens, and nothing is written.
    let other = [
        &decrypt[..3],
        &["other.parquet", "--context", "x", "-s", "$.id"],
    ]
    .concat();
    let (_, said, status) = run(dev.path(), &dev.arguments(&other));
    assert!(status == 1 && said.contains("column id, row "), "{said}");
    assert!(!dev.path().join("other.parquet").exists());
    for (arguments, expected) in [
        (&["encrypt", "in.parquet"][..], "name one with --output"),
        (
            &["encrypt", "in.parquet", "--output", "x.parquet", "--apart"],
            "--apart is for JSON",
        ),
        (
            &[
                "encrypt",
                "in.parquet",
                "--output",
                "x.parquet",
                "-s",
                "$.mail",
            ],
            "which does not exist",
        ),
        (
            &[
                "decrypt",
                "in.parquet",
                "--output",
                "x.parquet",
                "-s",
                "$.id",
            ],
            "envelopes are text or binary",
        ),
    ] {
        let (_, said, status) = run(dev.path(), &dev.arguments(arguments));
        assert!(status == 1 && said.contains(expected), "{said}");
    }
    dev.stop();
}

#[test]
fn a_stalled_pipe_does_not_keep_a_stopped_command() {
    let dev = Dev::start();
    dev.write(
        "rules.toml",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"email\"\n",
    );
    dev.write(
        "large.ndjson",
        &"{\"email\":\"anna@mail.test\"}\n".repeat(1 << 18),
    );
    assert!(
        Command::new("mkfifo")
            .arg(dev.path().join("pipe.ndjson"))
            .status()
            .unwrap()
            .success()
    );
    let start = |input: &str, output: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
        let arguments = [
            "mask",
            "file",
            input,
            "--out",
            output,
            "--rules",
            "rules.toml",
        ];
        command
            .current_dir(dev.path())
            .args(dev.arguments(&arguments));
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let stop = |child: &mut Child| {
        assert!(
            Command::new("kill")
                .arg(child.id().to_string())
                .status()
                .unwrap()
                .success()
        );
        let status = child.wait().unwrap();
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(
            status.code() == Some(1) && said.contains("sealwire: stopped"),
            "{status}: {said}"
        );
    };
    // The job runs once it has opened the pipe, from which nothing comes.
    let mut child = start("pipe.ndjson", "out.ndjson");
    let writer = std::fs::File::options()
        .write(true)
        .open(dev.path().join("pipe.ndjson"))
        .unwrap();
    stop(&mut child);
    assert!(!dev.path().join("out.ndjson").exists());
    drop(writer);
    // It runs once something comes out, of which nobody reads the rest.
    let mut child = start("large.ndjson", "-");
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    stop(&mut child);
    dev.stop();
}

#[test]
fn a_stalled_object_store_does_not_keep_a_stopped_command() {
    let dev = Dev::start();
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", store.local_addr().unwrap());
    std::fs::write(dev.path().join("in.parquet"), customers(10)).unwrap();
    dev.write(
        "rules.toml",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"email\"\n",
    );
    let (input, output) = ("s3://lake/in.parquet", "s3://lake/out.parquet");
    let start = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
        command
            .env_clear()
            .env("AWS_ENDPOINT_URL", &url)
            .env("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE");
        command
            .env("AWS_SECRET_ACCESS_KEY", "hunter2-secret")
            .current_dir(dev.path())
            .args(dev.arguments(arguments));
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let signal = |child: &Child| {
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .unwrap()
    };
    let mask = |input, output| {
        vec![
            "mask",
            "file",
            input,
            "--out",
            output,
            "--rules",
            "rules.toml",
        ]
    };
    for (arguments, is_again, expected) in [
        (
            vec!["encrypt", input, "--output", "out.parquet", "-s", "$.email"],
            false,
            "sealwire: stopped\n",
        ),
        (
            vec!["decrypt", input, "--output", "out.parquet", "-s", "$.email"],
            false,
            "sealwire: stopped\n",
        ),
        (mask(input, "out.parquet"), false, "sealwire: stopped\n"),
        (mask("in.parquet", output), false, "sealwire: stopped\n"),
        // The store begins an upload, which a first signal awaits.
        (
            vec!["encrypt", "in.parquet", "--output", output, "-s", "$.email"],
            true,
            "stopped by a second signal",
        ),
    ] {
        let mut child = start(&arguments);
        let (mut socket, _) = store.accept().unwrap();
        // From now on the job waits for a response.
        socket.read_exact(&mut [0]).unwrap();
        signal(&child);
        // Two signals can arrive as one.
        while is_again && child.try_wait().unwrap().is_none() {
            signal(&child);
            std::thread::sleep(Duration::from_millis(50));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && said.contains(expected),
            "{arguments:?}: {said}"
        );
        assert!(!dev.path().join("out.parquet").exists());
    }

    // It stalls when the verification reads the object again.
    let mut child = start(&[&mask(input, "out.parquet")[..], &["--verify"]].concat());
    let mut reader = BufReader::new(store.accept().unwrap().0);
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() > 2 {
        line.clear();
    }
    let source = std::fs::read(dev.path().join("in.parquet")).unwrap();
    let length = source.len();
    let range = format!(
        "Content-Range: bytes 0-{}/{length}\r\nETag: \"one\"",
        length - 1
    );
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\n{range}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    reader
        .get_mut()
        .write_all(&[head.as_bytes(), &source].concat())
        .unwrap();
    drop(reader);
    let (mut socket, _) = store.accept().unwrap();
    socket.read_exact(&mut [0]).unwrap();
    signal(&child);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(
        said.contains("the output is complete, but was not verified"),
        "{said}"
    );
    assert!(dev.path().join("out.parquet").exists());
    dev.stop();
}

#[test]
fn parquet_objects_are_masked_encrypted_and_decrypted() {
    let dev = Dev::start();
    let moto = Moto::start(dev.path(), None).unwrap();
    let s3 =
        |method: &str, path: &str, body: &[u8]| moto.request("s3", method, path, body).unwrap();
    let source = customers(1_000);
    assert_eq!(s3("PUT", "/lake", b"").status, 200);
    assert_eq!(s3("PUT", "/lake/in.parquet", &source).status, 200);
    std::fs::write(dev.path().join("in.parquet"), &source).unwrap();
    std::fs::write(dev.path().join("in.json"), "{}").unwrap();
    dev.write(
        "rules.toml",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"email\"\n",
    );
    let variables = [
        ("AWS_ENDPOINT_URL", moto.url()),
        ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "hunter2-secret".to_owned()),
    ];
    let run = |arguments: &[&str], variables: &[(&str, String)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
        let inherited = std::env::vars_os().map(|(name, _)| name);
        inherited
            .filter(|name| name.to_string_lossy().starts_with("AWS_"))
            .for_each(|name| {
                command.env_remove(name);
            });
        let output = command
            .current_dir(dev.path())
            .args(arguments)
            .envs(variables.iter().cloned())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert!(!text(output.stderr.clone()).contains("hunter2"));
        (
            text(output.stdout),
            text(output.stderr),
            output.status.code().unwrap(),
        )
    };
    let ok = |arguments: &[&str]| {
        let (out, said, status) = run(arguments, &variables);
        assert_eq!(status, 0, "{arguments:?}: {said}");
        out
    };
    let engine = |arguments: &[&str]| ok(&dev.arguments(arguments));
    let rules = ["--rules", "rules.toml"];

    let table = ok(&[&["mask", "check", "s3://lake/in.parquet"], &rules[..]].concat());
    assert!(row(&table, "email").contains(&"900"), "{table}");
    let found = ok(&["mask", "discover", "s3://lake/in.parquet"]);
    assert!(
        found.contains("path = \"$.email\"\nmask = \"email\""),
        "{found}"
    );
    assert_eq!(
        found,
        ok(&["mask", "discover", "in.parquet"]),
        "objects are sampled as files are"
    );
    engine(
        &[
            &["mask", "file", "in.parquet", "--out", "masked.parquet"],
            &rules[..],
        ]
        .concat(),
    );
    let mask = [
        "mask",
        "file",
        "s3://lake/in.parquet",
        "--out",
        "s3://lake/masked.parquet",
        "--rules",
        "rules.toml",
    ];
    let json = engine(&[&mask[..], &["--verify", "--json"]].concat());
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&report["records"], &report["leaks"]["fields"][0]["verdict"]),
        (&1_000.into(), &"clean".into())
    );
    let masked = std::fs::read(dev.path().join("masked.parquet")).unwrap();
    assert_eq!(s3("GET", "/lake/masked.parquet", b"").body, masked);
    ok(&[
        &[
            "mask",
            "verify",
            "file",
            "s3://lake/in.parquet",
            "masked.parquet",
        ],
        &rules[..],
    ]
    .concat());
    let (_, said, status) = run(
        &[
            &[
                "mask",
                "verify",
                "file",
                "in.parquet",
                "s3://lake/in.parquet",
            ],
            &rules[..],
        ]
        .concat(),
        &variables,
    );
    assert_ne!(status, 0, "{said}");

    let select = ["-s", "$.email", "--context", "customers"];
    engine(
        &[
            &[
                "encrypt",
                "s3://lake/in.parquet",
                "--output",
                "s3://lake/sealed.parquet",
            ],
            &select[..],
        ]
        .concat(),
    );
    engine(
        &[
            &[
                "decrypt",
                "s3://lake/sealed.parquet",
                "--output",
                "s3://lake/opened.parquet",
            ],
            &select[..],
        ]
        .concat(),
    );
    assert_eq!(
        columns(s3("GET", "/lake/opened.parquet", b"").body),
        columns(source)
    );
    for (arguments, expected) in [
        (&mask[..], "s3://lake/masked.parquet exists already"),
        (
            &["encrypt", "in.json", "--output", "s3://lake/x.json"],
            "only Parquet is read from and written to object stores",
        ),
        (
            &["encrypt", "s3://none/x.parquet", "--output", "x.parquet"],
            "the bucket does not exist",
        ),
    ] {
        let (_, said, status) = run(&dev.arguments(arguments), &variables);
        assert!(status == 1 && said.contains(expected), "{said}");
    }
    for (without, expected) in [
        ("AWS_ENDPOINT_URL", "set AWS_REGION, or AWS_ENDPOINT_URL"),
        (
            "AWS_SECRET_ACCESS_KEY",
            "no credentials for the object store: set AWS_SECRET_ACCESS_KEY",
        ),
    ] {
        let variables: Vec<_> = variables
            .iter()
            .filter(|(name, _)| *name != without)
            .cloned()
            .collect();
        let (_, said, status) = run(&dev.arguments(&mask), &variables);
        assert!(status == 1 && said.contains(expected), "{said}");
    }
    let uploads = String::from_utf8(s3("GET", "/lake?uploads", b"").body).unwrap();
    assert!(!uploads.contains("<UploadId>"), "{uploads}");
    drop(moto);
    dev.stop();
}

#[test]
fn discovered_rules_pass_the_check_and_show_no_value() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let at = |arguments: &[&str]| run(folder.path(), &[&["mask", "discover"], arguments].concat());
    write("orders.ndjson", &orders(60));
    let csv = (0..40).fold(
        "id;E-Mail;Kartennummer;Bemerkung\n".to_owned(),
        |text, n| {
            // One of the values does not fit the function of its column.
            let card = if n == 39 {
                "canary"
            } else {
                "4111 1111 1111 1111"
            };
            text + &format!("{n};canary{n}@mail.test;{card};x\n")
        },
    );
    write("kunden.csv", &csv);
    for (name, more, expected) in [
        (
            "orders.ndjson",
            &[][..],
            &[
                "path = \"$.email\"",
                "path = \"$.call\"",
                "path = \"$.card.number\"",
            ][..],
        ),
        (
            "kunden.csv",
            &["--delimiter", ";"][..],
            &["column = \"E-Mail\"", "column = \"Kartennummer\"", "#   id"][..],
        ),
    ] {
        let (out, said, status) = at(&[&[name, "--out", "rules.toml", "--replace"], more].concat());
        assert!(
            status == 0 && out.is_empty() && said.contains("to mask"),
            "{name}: {said}"
        );
        let rules = std::fs::read_to_string(folder.path().join("rules.toml")).unwrap();
        expected
            .iter()
            .for_each(|text| assert!(rules.contains(text), "{text} is not in {rules}"));
        let (again, _, _) = at(&[&[name], more].concat());
        assert_eq!(again, rules, "equal input and seed give equal rules");
        let check = [&["mask", "check", "--rules", "rules.toml", name], more].concat();
        let (table, failed, status) = run(folder.path(), &check);
        assert!(
            status == 0 && !table.contains("names nothing here"),
            "{table}{failed}"
        );
        let (json, _, _) = at(&[&[name, "--json"], more].concat());
        let found: Value = serde_json::from_str(&json).unwrap();
        let email = found["fields"]
            .as_array()
            .unwrap()
            .iter()
            .find(|field| field["category"] == "email")
            .unwrap();
        assert!(
            email["verdict"] == "sensitive" && email["confidence"].as_f64().unwrap() > 0.9,
            "{email}"
        );
        for text in [&rules, &json, &said] {
            assert!(
                !text.contains("canary")
                    && !text.contains("shop.example")
                    && !text.contains("4111"),
                "{text}"
            );
        }
    }
    // Nothing is replaced without --replace, and no other file is left.
    let before = std::fs::read_to_string(folder.path().join("rules.toml")).unwrap();
    let (_, said, status) = at(&["orders.ndjson", "--out", "rules.toml"]);
    assert!(status == 1 && said.contains("--replace"), "{said}");
    assert_eq!(
        std::fs::read_to_string(folder.path().join("rules.toml")).unwrap(),
        before
    );
    // A higher threshold leaves more to a person.
    let (strict, _, _) = at(&["orders.ndjson", "--min-confidence", "1"]);
    assert!(
        !strict.contains("\n[[rule]]") && strict.contains("# Uncertain"),
        "{strict}"
    );
    write("broken.json", r#"{"email": "canary@mail.test" "canary"}"#);
    write("headless.csv", "canary@mail.test,1\nb@mail.test,2\n");
    for (arguments, says) in [
        (&["broken.json"][..], "broken.json, line 1"),
        (
            &["headless.csv"][..],
            "the name of column 1 has the form of a value",
        ),
        (&["gone.json"][..], "gone.json"),
        (
            &["--database", "postgres://u:canary@localhost/x", "--plain"][..],
            "must not hold the password",
        ),
        (&["orders.ndjson", "--min-confidence", "2"][..], "0 to 1"),
        (&[][..], "name a file, or a database with --database"),
    ] {
        let (out, said, status) = at(arguments);
        assert!(
            status != 0 && said.contains(says) && out.is_empty(),
            "{says}: {said}"
        );
        assert!(
            arguments.iter().any(|word| word.contains("canary")) || !said.contains("canary"),
            "{said}"
        );
    }
    let (help, _, _) = at(&["--help"]);
    assert!(
        help.contains("sealwire mask discover orders.ndjson") && help.contains("by reference"),
        "{help}"
    );
    let mut files: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "broken.json",
            "headless.csv",
            "kunden.csv",
            "orders.ndjson",
            "rules.toml"
        ]
    );
}

/// Returns a Parquet file with columns of several types. The last row has values that no function
/// of its columns takes.
fn patients(count: i64) -> Vec<u8> {
    let texts = |text: &dyn Fn(i64) -> String| -> ArrayRef {
        Arc::new((0..count).map(|at| Some(text(at))).collect::<StringArray>())
    };
    let names: ArrayRef = texts(&|at| {
        format!(
            "canary{}",
            ["a", "b", "c"][at as usize % 3].repeat(at as usize % 40)
        )
    });
    let phones = texts(&|at| {
        if at + 1 == count {
            "canary".to_owned()
        } else {
            format!("+49 30 {:07}", at * 11)
        }
    });
    let members = vec![
        (
            Arc::new(Field::new("last_name", DataType::Utf8, true)),
            Arc::clone(&names),
        ),
        (Arc::new(Field::new("phone", DataType::Utf8, true)), phones),
    ];
    let mut mails = ListBuilder::new(StringBuilder::new());
    let mut notes = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for at in 0..count {
        mails.values().append_value(format!("canary{at}@mail.test"));
        mails.append(true);
        notes.keys().append_value(format!("canary{at}@mail.test"));
        notes.values().append_value(at);
        notes.append(true).unwrap();
    }
    // A telephone number of ten digits of which a mask can be too great for the type.
    let numbers: ArrayRef = Arc::new(
        (0..count)
            .map(|at| Some(2_147_000_000 - at as i32))
            .collect::<Int32Array>(),
    );
    let days = |last: i32| -> ArrayRef {
        let days = (0..count).map(|at| Some(if at + 1 == count { last } else { at as i32 * 6 }));
        Arc::new(days.collect::<Date32Array>())
    };
    let times: ArrayRef = Arc::new((0..count).map(Some).collect::<Time64MicrosecondArray>());
    let batch = RecordBatch::try_from_iter_with_nullable([
        (
            "patient",
            Arc::new(StructArray::from(members)) as ArrayRef,
            true,
        ),
        ("emails", Arc::new(mails.finish()), true),
        ("visits_by", Arc::new(notes.finish()), true),
        ("birth_date", days(0), true),
        ("mobile_number", numbers, true),
        ("date_of_birth", days(i32::MAX), false),
        ("password", times, true),
        (
            "quantity",
            Arc::new((0..count).map(Some).collect::<Int64Array>()),
            true,
        ),
    ]);
    let batch = batch.unwrap();
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    out
}

#[test]
fn rules_discovered_in_parquet_pass_the_check() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("patients.parquet"), patients(3_000)).unwrap();
    let discover = ["mask", "discover", "patients.parquet", "--sample", "100"];
    let (_, said, status) = run(
        folder.path(),
        &[&discover[..], &["--out", "rules.toml"]].concat(),
    );
    assert!(status == 0 && said.contains("to mask"), "{said}");
    let rules = std::fs::read_to_string(folder.path().join("rules.toml")).unwrap();
    let (table, failed, status) = run(
        folder.path(),
        &["mask", "check", "--rules", "rules.toml", "patients.parquet"],
    );
    assert!(
        status == 0 && !table.contains("names nothing here"),
        "{table}{failed}\n{rules}"
    );
    let (json, _, _) = run(folder.path(), &[&discover[..], &["--json"]].concat());
    let found: Value = serde_json::from_str(&json).unwrap();
    for (field, verdict, mask) in [
        (
            "$.patient.last_name",
            "sensitive",
            "pseudonym(list=last_names)".into(),
        ),
        // The last value is no telephone number, and not in the sample.
        ("$.patient.phone", "sensitive", "redact".into()),
        ("$.emails[*]", "sensitive", "email".into()),
        ("$.visits_by[*]", "harmless", Value::Null),
        ("$.birth_date", "sensitive", "date_shift(within=365)".into()),
        // The last day is in a year of seven digits.
        (
            "$.date_of_birth",
            "sensitive",
            "fixed(\"1970-01-01\")".into(),
        ),
        ("$.password", "uncertain", Value::Null),
        ("$.quantity", "harmless", Value::Null),
    ] {
        let fields = found["fields"].as_array().unwrap();
        let of_name = fields
            .iter()
            .find(|of| of["field"] == field)
            .unwrap_or_else(|| panic!("{field}: {json}"));
        assert_eq!(
            (&of_name["verdict"], &of_name["mask"]),
            (&verdict.into(), &mask),
            "{of_name}"
        );
    }
    assert!(
        rules.contains("keys of the map $.visits_by have the form of personal data"),
        "{rules}"
    );
    assert!(json.contains("cannot be masked"), "{json}");
    for text in [&rules, &json, &said] {
        assert!(
            !text.contains("canary") && !text.contains("mail.test"),
            "{text}"
        );
    }
    let (again, _, _) = run(folder.path(), &discover);
    assert_eq!(again, rules, "equal input and seed give equal rules");
    std::fs::write(folder.path().join("broken.parquet"), b"PAR1canary").unwrap();
    let (_, said, status) = run(folder.path(), &["mask", "discover", "broken.parquet"]);
    assert!(
        status == 1 && said.contains("broken.parquet") && !said.contains("canary"),
        "{said}"
    );
}

#[test]
fn the_check_shows_no_key_of_a_map() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "rules.toml",
        "unknown = \"keep\"\n[[rule]]\npath = \"$.by[*].email\"\nmask = \"email\"\n",
    );
    let document = |at: i32| {
        format!(
            "{{\"by\":{{\"canary{at}@mail.test\":{{\"email\":\"a@b.example\",\"n\":{at}}}}},\"total\":1}}\n"
        )
    };
    write("people.ndjson", &(0..5).map(document).collect::<String>());
    let check = ["mask", "check", "--rules", "rules.toml", "people.ndjson"];
    let table = ok(folder.path(), &check);
    assert!(
        row(&table, "$.by[*].email").contains(&"5") && row(&table, "$.by[*].n").contains(&"5"),
        "{table}"
    );
    assert!(row(&table, "$.total").contains(&"5"), "{table}");
    let json = ok(folder.path(), &[&check[..], &["--json"]].concat());
    assert!(
        !table.contains("canary") && !json.contains("canary"),
        "{table}{json}"
    );
}

#[test]
fn a_database_is_discovered_and_its_rules_are_taken() {
    let server = Postgres::shared();
    let (database, target) = (server.database().unwrap(), server.database().unwrap());
    let schema = "
        SET ROLE sealwire;
        CREATE TABLE customers (id int PRIMARY KEY, email text UNIQUE, phone text, quantity int);
        INSERT INTO customers SELECT n, 'canary' || n || '@mail.test', '+49 30 ' || 1000000 + n * 7, n % 5 FROM generate_series(1, 60) n;
        CREATE TABLE orders (id int PRIMARY KEY, customer text REFERENCES customers (email));
        INSERT INTO orders SELECT n, 'canary' || n || '@mail.test' FROM generate_series(1, 60) n;";
    database.sql(schema).unwrap();
    let dev = Dev::start();
    super::write_secret(&dev.path().join("password"), server.password());
    let ca = server.certificates().ca.display().to_string();
    let (from, to) = (database.tls_url(), target.tls_url());
    let source = [
        "--database",
        &from,
        "--ca",
        &ca,
        "--password-file",
        "password",
    ];
    let discover = |more: &[&str]| {
        run(
            dev.path(),
            &[&["mask", "discover"], &source[..], more].concat(),
        )
    };
    let (out, said, status) = discover(&["--out", "rules.toml"]);
    assert!(
        status == 0 && out.is_empty() && said.contains("6 fields: 3 to mask"),
        "{said}"
    );
    let rules = std::fs::read_to_string(dev.path().join("rules.toml")).unwrap();
    for column in [
        "public.customers.email",
        "public.customers.phone",
        "public.orders.customer",
    ] {
        assert!(
            rules.contains(&format!("\ncolumn = \"{column}\"")),
            "{column} is not in {rules}"
        );
    }
    let (json, _, _) = discover(&["--json"]);
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["fields"].as_array().unwrap().len(), 6, "{json}");
    for text in [&rules, &json, &said] {
        assert!(!text.contains("canary") && !text.contains("+49"), "{text}");
    }
    assert_eq!(
        discover(&[]).0,
        rules,
        "equal input and seed give equal rules"
    );
    let job = [
        "mask",
        "database",
        "--from",
        &from,
        "--from-ca",
        &ca,
        "--from-password-file",
        "password",
    ];
    let into = [
        "--to",
        &to,
        "--to-ca",
        &ca,
        "--to-password-file",
        "password",
        "--rules",
        "rules.toml",
        "--verify",
    ];
    dev.ok(&[&job[..], &into].concat());
    assert_eq!(
        target
            .sql("SELECT count(*) FROM orders JOIN customers ON customer = email")
            .unwrap()
            .trim(),
        "60"
    );
    // Errors name what is wrong, and no value.
    for (arguments, says) in [
        (
            &["mask", "discover", "--database", &from, "--ca", &ca][..],
            "password",
        ),
        (
            &["mask", "discover", "x.json", "--database", &from],
            "cannot be used with",
        ),
    ] {
        let (_, said, status) = run(dev.path(), arguments);
        assert!(
            status != 0 && said.contains(says) && !said.contains("canary"),
            "{said}"
        );
    }
    dev.stop();
}

#[test]
fn lists_are_files_beside_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("rules")).unwrap();
    std::fs::write(path("outside"), "one\ntwo\n").unwrap();
    std::fs::write(path("rules/inside"), "one\ntwo\n").unwrap();
    std::fs::write(path("sample.ndjson"), "{\"a\":\"x\"}\n").unwrap();
    let absolute = path("outside").display().to_string();
    for (list, expected) in [
        ("inside", ""),
        ("../outside", "lists are in the folder of the rules"),
        (&absolute, "lists are in the folder of the rules"),
        ("/dev/zero", "lists are in the folder of the rules"),
        ("zero", "zero is not a regular file"),
        ("none", "No such file"),
    ] {
        let link = path("rules/zero");
        let _ = std::os::unix::fs::symlink("/dev/zero", link);
        let rules = "unknown = \"keep\"\n[lists]\nown = \"LIST\"\n[[rule]]\ncolumn = \"a\"\nmask = \"pseudonym(list=own)\"\n";
        std::fs::write(path("rules/rules.toml"), rules.replace("LIST", list)).unwrap();
        let (_, said, status) = run(
            folder.path(),
            &[
                "mask",
                "check",
                "--rules",
                "rules/rules.toml",
                "sample.ndjson",
            ],
        );
        assert_eq!(status == 0, expected.is_empty(), "{list}: {said}");
        assert!(said.contains(expected), "{list}: {said}");
    }
}

#[test]
fn commands_do_not_overwrite_their_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let rules = "unknown = \"keep\"\n[lists]\nown = \"own\"\n[[rule]]\ncolumn = \"a\"\nmask = \"pseudonym(list=own)\"\n";
    let files = [
        ("a.json", "{\"a\": \"x\"}\n"),
        ("rules.toml", rules),
        ("own", "one\ntwo\n"),
        ("key.pem", "a key"),
        ("cert.pem", "a certificate"),
        ("ca.pem", "an authority"),
        ("a.parquet", "no table"),
    ];
    for (name, text) in files {
        std::fs::write(path(name), text).unwrap();
    }
    std::os::unix::fs::symlink("a.json", path("link")).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(path("pipe"))
            .status()
            .unwrap()
            .success()
    );
    let mask = [
        "mask",
        "file",
        "a.json",
        "--rules",
        "rules.toml",
        "--replace",
        "--out",
    ];
    let discover = ["mask", "discover", "a.json", "--replace", "--out"];
    let connection = ["--ca", "ca.pem", "--cert", "cert.pem", "--key", "key.pem"];
    let pems = &["ca.pem", "cert.pem", "key.pem"][..];
    let mask_over = [
        "mask",
        "file",
        "a.json",
        "--rules",
        "rules.toml",
        "--replace",
    ];
    let [
        mask_with_files,
        encrypt_with_files,
        decrypt_with_files,
        columns_with_files,
    ] = [
        &mask_over[..],
        &["encrypt", "a.json"],
        &["decrypt", "a.json"],
        &["encrypt", "a.parquet"],
    ]
    .map(|command| {
        [
            command,
            &connection,
            &[if command[0] == "mask" {
                "--out"
            } else {
                "--output"
            }],
        ]
        .concat()
    });
    let database = [
        "mask",
        "discover",
        "--database",
        "postgres://a@h/b",
        "--password-file",
        "key.pem",
        "--replace",
        "--out",
    ];
    for (command, outputs) in [
        (
            &mask[..],
            &["a.json", "link", "rules.toml", "own", "pipe"][..],
        ),
        (&mask_with_files, pems),
        (&encrypt_with_files, pems),
        (&decrypt_with_files, pems),
        (
            &columns_with_files,
            &["ca.pem", "cert.pem", "key.pem", "a.parquet"],
        ),
        (
            &["encrypt", "a.json", "--folder", ".", "--output"],
            &["ca.pem"],
        ),
        (
            &["encrypt", "a.parquet", "--s3-ca", "cert.pem", "--output"],
            &["cert.pem"],
        ),
        (&database, &["key.pem"]),
        (&discover, &["a.json", "link", "pipe"]),
        (
            &["encrypt", "a.json", "--output"],
            &["a.json", "link", "pipe"],
        ),
        (
            &["decrypt", "a.json", "--output"],
            &["a.json", "link", "pipe"],
        ),
        (
            &["rewrap", "a.json", "--output"],
            &["a.json", "link", "pipe"],
        ),
    ] {
        for output in outputs {
            let (_, said, status) = run(folder.path(), &[command, &[output]].concat());
            let expected = if *output == "pipe" {
                "is not a regular file"
            } else {
                "is an input of this command"
            };
            assert!(
                status != 0 && said.contains(expected),
                "{command:?} {output}: {said}"
            );
        }
    }
    for (name, text) in files {
        assert_eq!(std::fs::read_to_string(path(name)).unwrap(), text, "{name}");
    }
}

#[test]
fn types_of_decrypted_columns_are_named_in_the_words_of_pyarrow() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), "{}").unwrap();
    for (file, column_type, expected) in [
        ("a.json", "$.a=int64", "--type is for Parquet"),
        (
            "a.parquet",
            "$.a=int64",
            "the address of the engine is not known",
        ),
        (
            "a.parquet",
            "$.a=decimal128(10, 2)",
            "the address of the engine is not known",
        ),
        (
            "a.parquet",
            "$.a=timestamp[us, tz=Europe/Berlin]",
            "the address of the engine is not known",
        ),
        ("a.parquet", "$.a", "write COLUMN=TYPE"),
        ("a.parquet", "$.a=number", "type \"number\" is unknown"),
        ("a.parquet", "$.a=decimal128(99, 2)", "cannot be restored"),
    ] {
        let arguments = [
            "decrypt",
            file,
            "--output",
            "b.parquet",
            "--type",
            column_type,
        ];
        let (_, said, status) = run(folder.path(), &arguments);
        let is_accepted = expected == "the address of the engine is not known";
        assert!(
            status == (if is_accepted { 1 } else { 2 }) && said.contains(expected),
            "{column_type}: {status} {said}"
        );
    }
}

/// Finds `sealwire-data` beside the program or on PATH, and says what to do where it is missing.
#[test]
fn the_program_of_jobs_is_beside_sealwire_or_on_path() {
    let program = Path::new(env!("CARGO_BIN_EXE_sealwire"));
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("sealwire");
    std::fs::copy(program, &alone).unwrap();
    let beside = program.parent().unwrap();
    for (program, path, is_found) in [
        (program, Path::new("/nowhere"), true),
        (&alone, beside, true),
        (&alone, Path::new("/nowhere"), false),
    ] {
        let output = Command::new(program)
            .args(["mask", "--help"])
            .env("PATH", path)
            .output()
            .unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let expected = match is_found {
            true => "Usage: sealwire mask <COMMAND>",
            false => "cargo build --package sealwire-data",
        };
        assert!(printed.contains(expected), "{printed}");
        assert_eq!(output.status.success(), is_found, "{printed}");
    }

    let output = Command::new(&alone)
        .args(["mask", "file", "a.json", "--json"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), &error["code"]),
        (Some(1), &"failed".into())
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("needs the program sealwire-data")
    );
}

#[test]
fn help_of_mask_is_that_of_the_program_of_jobs() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["help", "mask"][..], "Usage: sealwire mask <COMMAND>"),
        (
            &["help", "mask", "file"],
            "Usage: sealwire mask file [OPTIONS]",
        ),
    ] {
        let help = ok(folder.path(), arguments);
        assert!(help.contains(expected), "{arguments:?}: {help}");
    }
}

#[test]
fn rules_without_a_rule_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), "{\"a\": \"x\"}\n").unwrap();
    for (rules, is_rejected) in [
        ("unknown = \"keep\"\n", true),
        ("unknown = \"keep\"\n[lists]\nown = [\"a\", \"b\"]\n", true),
        (
            "unknown = \"keep\"\n[[rule]]\ncolumn = \"a\"\nmask = \"redact\"\n",
            false,
        ),
    ] {
        std::fs::write(folder.path().join("rules.toml"), rules).unwrap();
        let (_, said, status) = run(
            folder.path(),
            &["mask", "check", "--rules", "rules.toml", "a.json"],
        );
        assert_eq!(status != 0, is_rejected, "{rules}: {said}");
        assert_eq!(
            said.contains("rules.toml has no [[rule]]"),
            is_rejected,
            "{rules}: {said}"
        );
    }
}
