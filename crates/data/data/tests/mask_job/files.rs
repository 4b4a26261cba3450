//! File jobs: masked values, unchanged bytes, invalid input, and the state after a failed job.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use sealwire_data::mask_job::{
    FileFormat, FileJob, Input, JobError, LeakLimits, LeakVerdict, Limits, Output, Progress,
    Report, mask_file, verify_files,
};
use sealwire_mask_rules::Rules;
use sealwire_service::output_file::{self, OutputFileError};

use crate::common::{Local, rules, some_records};

const CSV: FileFormat = FileFormat::Csv { delimiter: b',' };

/// Returns limits with small chunks and batches, so that small inputs are split everywhere.
fn small(chunk_bytes: usize) -> Limits {
    Limits {
        chunk_bytes,
        batch_values_max: 2,
        batch_bytes_max: 64,
        record_bytes_max: 1 << 16,
        workers: 2,
        ..Limits::default()
    }
}

struct Run {
    folder: tempfile::TempDir,
    limits: Limits,
    replace: bool,
}

impl Run {
    fn new(limits: Limits) -> Self {
        Self {
            folder: tempfile::tempdir().expect("folder"),
            limits,
            replace: false,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn job(&self, input: &Path, output: &Path, format: FileFormat) -> FileJob {
        FileJob {
            input: Input::File(input.to_owned()),
            output: Output::File {
                path: output.to_owned(),
                replace: self.replace,
            },
            format,
            limits: self.limits,
            allow_unmatched: true,
        }
    }

    fn mask(
        &self,
        text: &[u8],
        rules: &Arc<Rules>,
        format: FileFormat,
    ) -> Result<(Vec<u8>, Report), JobError> {
        let input = self.path("in");
        let output = self.path("out");
        fs::write(&input, text).expect("writes");
        let report = self.run(&self.job(&input, &output, format), rules, Local::new(rules))?;
        let bytes = fs::read(&output).expect("the output");
        fs::remove_file(&output).expect("removes");
        Ok((bytes, report))
    }

    fn run(
        &self,
        job: &FileJob,
        rules: &Arc<Rules>,
        engine: Arc<Local>,
    ) -> Result<Report, JobError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .expect("runtime");
        runtime.block_on(mask_file(
            job.clone(),
            Arc::clone(rules),
            engine,
            Arc::new(Progress::default()),
        ))
    }

    /// Returns the file names in the folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("folder");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .into_string()
                    .expect("UTF-8")
            })
            .collect();
        names.sort();
        names
    }
}

fn masked(text: &str, rules_text: &str, format: FileFormat) -> String {
    let rules = rules(rules_text);
    let run = |chunk_bytes| {
        let (bytes, _) = Run::new(small(chunk_bytes))
            .mask(text.as_bytes(), &rules, format)
            .expect(text);
        String::from_utf8(bytes).expect("UTF-8")
    };
    let whole = run(1 << 16);
    for chunk_bytes in [1, 2, 7, 30] {
        assert_eq!(run(chunk_bytes), whole, "in chunks of {chunk_bytes}");
    }
    whole
}

fn refused(text: &[u8], rules_text: &str, format: FileFormat) -> String {
    let run = Run::new(small(16));
    let error = run
        .mask(text, &rules(rules_text), format)
        .expect_err("refused")
        .to_string();
    assert_eq!(run.names(), ["in"], "something is left after: {error}");
    error.replace(&run.path("in").display().to_string(), "FILE")
}

const SECRET: &str = "unknown = \"keep\"\n[[rule]]\ncolumn = \"secret\"\nmask = \"redact\"\n";

#[test]
fn ndjson_keeps_all_else_byte_for_byte() {
    for (text, expected) in [
        ("", ""),
        ("\n\n", "\n\n"),
        (r#"{"secret":"a"}"#, r#"{"secret":"[redacted]"}"#),
        (
            "{\"a\" :1.00 ,\"secret\":\t\"\\u00e4\\/\"}\r\n \r\n{}\n",
            "{\"a\" :1.00 ,\"secret\":\t\"[redacted]\"}\r\n \r\n{}\n",
        ),
        (
            "\u{feff}{\"secret\":\"x\"}\n",
            "\u{feff}{\"secret\":\"[redacted]\"}\n",
        ),
        (
            "{\"n\":123456789012345678901234567890.5e+400,\"secret\":null,\"s\":\"\\ud800 \\ud83d\\ude00 😀\"}\n",
            "{\"n\":123456789012345678901234567890.5e+400,\"secret\":null,\"s\":\"\\ud800 \\ud83d\\ude00 😀\"}\n",
        ),
        // Leaves at any depth below a key, and a key with an escape.
        (
            "{\"secret\":{\"a\":[\"x\",null,[\"y\"]]},\"\\u0073ecret\":\"z\"}\n[1,{\"b\":{\"secret\":\"w\"}}]\n\"s\"\n7",
            "{\"secret\":{\"a\":[\"[redacted]\",null,[\"[redacted]\"]]},\"\\u0073ecret\":\"[redacted]\"}\n[1,{\"b\":{\"secret\":\"[redacted]\"}}]\n\"s\"\n7",
        ),
        // A key that occurs twice: both values are masked.
        (
            "{\"secret\":\"a\",\"secret\":\"b\"}",
            "{\"secret\":\"[redacted]\",\"secret\":\"[redacted]\"}",
        ),
    ] {
        assert_eq!(masked(text, SECRET, FileFormat::Ndjson), expected);
    }
}

#[test]
fn json_documents_are_streamed_or_read_whole() {
    for (text, expected) in [
        ("[]", "[]"),
        (" [ ] \n", " [ ] \n"),
        ("{\"secret\":\n\"a\"}\n", "{\"secret\":\n\"[redacted]\"}\n"),
        (
            "[{\"secret\":\"a,]\"},\n {\"secret\":\"\\\"]\"} ,[],1.0e0\n]\n",
            "[{\"secret\":\"[redacted]\"},\n {\"secret\":\"[redacted]\"} ,[],1.0e0\n]\n",
        ),
    ] {
        assert_eq!(masked(text, SECRET, FileFormat::Json), expected);
    }
    let by_index = "unknown = \"keep\"\n[[rule]]\npath = \"$[2].a\"\nmask = \"redact\"\n[[rule]]\npath = \"$[*].b\"\nmask = \"redact\"\n";
    let text = r#"[{"a":"x"},{"a":"x","b":"y"},{"a":"x"},{"a":"x"}]"#;
    let expected = r#"[{"a":"x"},{"a":"x","b":"[redacted]"},{"a":"[redacted]"},{"a":"x"}]"#;
    assert_eq!(masked(text, by_index, FileFormat::Json), expected);
}

#[test]
fn csv_keeps_quotes_line_ends_and_other_columns() {
    for (text, expected) in [
        ("secret\n", "secret\n"),
        (
            "id,secret\r\n1,a\r\n2,\r\n\r\n3,\"\"\r\n",
            "id,secret\r\n1,[redacted]\r\n2,\r\n\r\n3,\"[redacted]\"\r\n",
        ),
        (
            "\u{feff}\"secret\",note\n\"a \"\"b\"\"\",\"x\ny, \"\"z\"\"\"\nc, d \n",
            "\u{feff}\"secret\",note\n\"[redacted]\",\"x\ny, \"\"z\"\"\"\n[redacted], d \n",
        ),
        (
            "note,secret,secret\nä😀,ß,b",
            "note,secret,secret\nä😀,[redacted],[redacted]",
        ),
    ] {
        assert_eq!(masked(text, SECRET, CSV), expected);
    }
    let quoting = SECRET.replace("\"redact\"", "'redact(with=\"a;b\")'");
    let text = "secret;n\nx;1,5\n";
    assert_eq!(
        masked(text, &quoting, FileFormat::Csv { delimiter: b';' }),
        "secret;n\n\"a;b\";1,5\n"
    );
}

#[test]
fn kinds_are_found_in_strings_that_no_rule_names() {
    let kinds = "unknown = \"keep\"\n[[rule]]\nkind = \"email\"\nmask = \"redact\"\n[[rule]]\ncolumn = \"id\"\nmask = \"keep\"\n";
    let text = "{\"id\":\"a@example.com\",\"b\":\"a@example.com\",\"c\":[\"x\",\"\\u0061@example.com\"]}\n";
    let expected = "{\"id\":\"a@example.com\",\"b\":\"[redacted]\",\"c\":[\"x\",\"[redacted]\"]}\n";
    assert_eq!(masked(text, kinds, FileFormat::Ndjson), expected);
    assert_eq!(
        masked("id,b\na@b.com,a@b.com\n", kinds, CSV),
        "id,b\na@b.com,[redacted]\n"
    );
}

#[test]
fn broken_records_are_named_by_line_and_column() {
    let ndjson = |text: &[u8], expected: &str| {
        let error = refused(text, SECRET, FileFormat::Ndjson);
        assert!(error.starts_with(&format!("FILE, {expected}")), "{error}");
    };
    ndjson(
        b"{}\n{\"a\":1,}\n{}\n",
        "line 2, column 8: a key in double quotes",
    );
    ndjson(
        "{}\n{\"ä\":\"😀\",x}\n".as_bytes(),
        "line 2, column 10: a key",
    );
    ndjson(
        b"{}\n{\"a\":\n1}\n",
        "line 2, column 6: JSON ends too early",
    );
    ndjson(
        b"{}\n\n{} {}\n",
        "line 3, column 4: more than one value on a line",
    );
    ndjson(b"{\"a\":01}", "line 1, column 6: a number");
    ndjson(b"{\"a\":tru}", "line 1, column 6: not JSON");
    ndjson(b"{\"a\":\"\\x\"}", "line 1, column 7: an escape");
    ndjson(b"{}\n{\"a\":\"\xff\"}\n", "line 2, column 7: not UTF-8");
    ndjson(b"{\"a\":\"x", "line 1, column 6: a string without end");
    ndjson(b"[1 2]", "line 1, column 4: `,` or `]`");
    ndjson(
        "[".repeat(200).as_bytes(),
        "line 1, column 129: nested deeper than 128",
    );
    ndjson(
        b"{\"secret\":123456789012345678901234567890}",
        "line 1, column 11: a number to mask",
    );
    ndjson(
        b"{\"secret\":\"\\ud800\"}",
        "line 1, column 11: half of a surrogate",
    );

    let json = |text: &[u8], expected: &str| {
        let error = refused(text, SECRET, FileFormat::Json);
        assert!(error.starts_with(&format!("FILE, {expected}")), "{error}");
    };
    json(b"[1,\n2,\n{\"a\" 1}]", "line 3, column 6: `:` expected");
    json(b"[1,\n2,]", "line 2, column 3: not JSON");
    json(b"[1,\n2", "line 2, column 2: `,` or `]`");
    json(b"[1]\n[2]", "line 2, column 1: more behind the document");
    json(b"", "line 1, column 1: JSON ends too early");
    // A form feed is not white space in JSON.
    json(b"\x0c[1]", "line 1, column 1: not JSON");
    json(b"[1]\x0c", "line 1, column 4: more behind the document");
    json(b"{\"a\":1}}", "line 1, column 8: more behind the document");

    let csv = |text: &[u8], expected: &str| {
        let error = refused(text, SECRET, CSV);
        assert!(error.starts_with(&format!("FILE, {expected}")), "{error}");
    };
    csv(
        b"id,secret\n1,a\n2\n",
        "line 3, column 1: 1 fields, and the header has 2",
    );
    csv(b"id,secret\n1,a,b\n", "line 2, column 1: 3 fields");
    csv(b"id,secret\n1,a\"b\n", "line 2, column 4: a quote inside");
    csv(
        b"id,secret\n1,\"a\"b\n",
        "line 2, column 6: text behind the closing quote",
    );
    csv(
        b"id,secret\n1,\"a\n",
        "line 2, column 3: a quote without end",
    );
    csv(
        b"id,secret\n1,a\r2,b\n",
        "line 2, column 4: a carriage return",
    );
    csv(b"id,secret\n1,\xff\n", "line 2, column 3: not UTF-8");
    csv(b"", "line 1, column 1: a header");
}

#[test]
fn errors_never_show_a_value() {
    let partial = SECRET.replace("redact", "partial(first=1, last=1)");
    let error = refused(
        b"{\"a\":1}\n{\"a\":2,\"secret\":4711}\n",
        &partial,
        FileFormat::Ndjson,
    );
    assert!(
        error.starts_with(
            "FILE, line 2, column 17: partial(first=1, last=1) does not fit $.secret: "
        ),
        "{error}"
    );
    assert!(!error.contains("4711"), "{error}");
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let refuse = SECRET.replace("keep", "refuse");
    let many: Vec<String> = (0..25).map(|at| format!("\"k{at}\":1")).collect();
    for (text, format, expected) in [
        (
            "{\"secret\":\"a\"}\n{\"secret\":\"a\",\"x y\":[{\"b\":1}]}\n".to_owned(),
            FileFormat::Ndjson,
            "FILE, line 2: no rule names $['x y'][*].b; ",
        ),
        (
            format!("{{{}}}\n", many.join(",")),
            FileFormat::Ndjson,
            "FILE, line 1: no rule names $.k0, $.k1, ",
        ),
        (
            "id,secret,b\n".to_owned(),
            CSV,
            "FILE, line 1: no rule names id, b; ",
        ),
    ] {
        let error = refused(text.as_bytes(), &refuse, format);
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(
            error.contains(" and more; "),
            text.contains("k24"),
            "{error}"
        );
        assert!(!error.contains("k20"), "{error}");
    }
    // Nulls and empty containers contain no value that could pass unmasked.
    let passes = "{\"secret\":\"a\",\"b\":null,\"c\":[],\"d\":{}}\n";
    assert_eq!(
        masked(passes, &refuse, FileFormat::Ndjson),
        passes.replace("\"a\"", "\"[redacted]\"")
    );
}

#[test]
fn rules_that_fit_no_csv_are_refused() {
    let path = "unknown = \"keep\"\n[[rule]]\npath = \"$.a\"\nmask = \"redact\"\n";
    assert!(refused(b"a\n1\n", path, CSV).contains("rule 1 names a path ($.a): CSV has columns"));
    assert!(
        refused(b"a,b\n1,2\n", SECRET, CSV)
            .contains("rule 1 names column secret, which does not exist: the columns are a, b")
    );
}

#[test]
fn errors_of_csv_name_the_option_that_helps() {
    let rules = "unknown = \"keep\"\n[[rule]]\nkind = \"card\"\nmask = \"redact\"\n";
    let semicolon = "say --delimiter ';'";
    for (text, rules, expected) in [
        (&b"id;name\n1;a,b\n"[..], rules, semicolon),
        // Without this error, kinds would match no value, and the values would stay unmasked.
        (b"id;mail\n1;ann@mail.test\n", rules, semicolon),
        (
            b"id;name\n1;a\n",
            "unknown = \"keep\"\n[[rule]]\ncolumn = \"id\"\nmask = \"redact\"\n",
            semicolon,
        ),
        (b"id\tname\n1\ta,b\n", rules, "say --delimiter $'\\t'"),
        (b"id|name\n1|a,b\n", rules, "say --delimiter '|'"),
        (
            b"sep=;\r\nid;name\n1;a\n",
            rules,
            "a line of Excel that states the separator: remove the line; if",
        ),
        (
            b"\xef\xbb\xbfsep=,\nid,name\n1,a\n",
            rules,
            "a line of Excel that states the separator: remove the line",
        ),
        (
            b"id,name\n1,J\xf6rg\n",
            rules,
            "not UTF-8: convert the file first, as with iconv",
        ),
        (
            b"\x1f\x8b\x08\0\0\0",
            rules,
            "it is compressed by gzip: decompress it first",
        ),
    ] {
        let error = refused(text, rules, CSV);
        assert!(error.contains(expected), "{error}");
    }
    assert!(!refused(b"id,name\n1\n", rules, CSV).contains("--delimiter"));
    assert_eq!(
        masked("\"a;b\"\n1\n", rules, CSV),
        "\"a;b\"\n1\n",
        "a column can be named so"
    );
    for (name, expected) in [
        ("a.csv.gz", Some(CSV)),
        ("a.gz", None),
        ("a.ndjson.gz", Some(FileFormat::Ndjson)),
    ] {
        assert_eq!(FileFormat::from_name(name), expected, "{name}");
    }
}

#[test]
fn the_output_is_whole_or_not_there() {
    let rules = rules(SECRET);
    let mut run = Run::new(small(64));
    let input = run.path("in");
    let output = run.path("out");
    let text = "{\"secret\":\"a\"}\n".repeat(1_000);
    fs::write(&input, &text).expect("writes");
    let job = run.job(&input, &output, FileFormat::Ndjson);

    let failed = run
        .run(&job, &rules, Local::failing(&rules, 700))
        .expect_err("the engine fails midway");
    assert_eq!(failed.to_string(), "engine: the engine is gone");
    assert_eq!(run.names(), ["in"]);
    run.run(&job, &rules, Local::new(&rules))
        .expect("a run again starts cleanly");
    assert_eq!(run.names(), ["in", "out"]);

    let there = run
        .run(&job, &rules, Local::new(&rules))
        .expect_err("is there");
    assert!(matches!(there, JobError::Exists { .. }), "{there}");
    fs::write(&output, "mine").expect("writes");
    run.replace = true;
    let job = run.job(&input, &output, FileFormat::Ndjson);
    run.run(&job, &rules, Local::failing(&rules, 700))
        .expect_err("fails midway");
    assert_eq!(fs::read_to_string(&output).expect("reads"), "mine");
    run.run(&job, &rules, Local::new(&rules)).expect("replaces");
    assert_eq!(
        fs::read_to_string(&output).expect("reads"),
        text.replace("\"a\"", "\"[redacted]\"")
    );
    assert_eq!(run.names(), ["in", "out"]);
}

#[test]
fn the_input_is_never_the_output() {
    let rules = rules(SECRET);
    let mut run = Run::new(small(64));
    run.replace = true;
    let input = run.path("in");
    fs::write(&input, "{}\n").expect("writes");
    fs::hard_link(&input, run.path("hard")).expect("links");
    std::os::unix::fs::symlink("in", run.path("soft")).expect("links");
    for name in ["in", "hard", "soft", "./in"] {
        let job = run.job(&input, &run.path(name), FileFormat::Ndjson);
        let error = run.run(&job, &rules, Local::new(&rules)).expect_err(name);
        assert!(
            matches!(error, JobError::SameFile { .. }),
            "{name}: {error}"
        );
    }
    assert_eq!(fs::read_to_string(&input).expect("reads"), "{}\n");
}

#[test]
fn an_output_replaces_regular_files_only() {
    let rules = rules(SECRET);
    let mut run = Run::new(small(64));
    run.replace = true;
    let input = run.path("in");
    fs::write(&input, "{}\n").expect("writes");
    let made = std::process::Command::new("mkfifo")
        .arg(run.path("pipe"))
        .status()
        .expect("starts");
    assert!(made.success());
    std::os::unix::fs::symlink("pipe", run.path("to_pipe")).expect("links");
    std::os::unix::fs::symlink("/dev/null", run.path("to_device")).expect("links");
    std::os::unix::net::UnixListener::bind(run.path("socket")).expect("binds");
    let before = run.names();
    for name in ["pipe", "to_pipe", "to_device", "socket"] {
        let error = run.run(
            &run.job(&input, &run.path(name), FileFormat::Ndjson),
            &rules,
            Local::new(&rules),
        );
        assert!(
            matches!(error, Err(JobError::NotRegular { .. })),
            "{name}: {error:?}"
        );
        assert!(
            !run.path(name).metadata().expect("is there").is_file(),
            "{name}"
        );
    }
    assert_eq!(run.names(), before);
    std::os::unix::fs::symlink("in", run.path("to_input")).expect("links");
    for (name, inputs, expected) in [
        ("in", &["in"][..], "is an input of this command"),
        ("to_input", &["none", "in"], "is an input of this command"),
        ("pipe", &["in"], "is not a regular file"),
        ("in", &["pipe"], ""),
        ("new", &["in"], ""),
    ] {
        let inputs: Vec<_> = inputs.iter().map(|name| run.path(name)).collect();
        let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
        let error = output_file::check(&run.path(name), true, &inputs)
            .err()
            .map_or(String::new(), |error| error.to_string());
        assert!(
            error.contains(expected) && error.is_empty() == expected.is_empty(),
            "{name}: {error}"
        );
    }
    assert!(matches!(
        output_file::check(&input, false, &[]),
        Err(OutputFileError::Exists(_))
    ));
}

#[test]
fn a_file_that_becomes_shorter_is_an_error() {
    let rules = rules(SECRET);
    let run = Run::new(small(64));
    let input = run.path("in");
    let output = run.path("out");
    fs::write(&input, "{\"secret\":\"a\"}\n".repeat(10_000)).expect("writes");
    let progress = Arc::new(Progress::default());
    let engine = Local::stalling(&rules, &progress);
    let job = run.job(&input, &output, FileFormat::Ndjson);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("runtime");
    let error = runtime.block_on(async {
        let masking = tokio::spawn(mask_file(
            job,
            Arc::clone(&rules),
            Arc::clone(&engine),
            Arc::clone(&progress),
        ));
        some_records(&progress).await;
        // Cuts the file at the end of a line, so that all bytes that the job reads are valid.
        fs::OpenOptions::new()
            .write(true)
            .open(&input)
            .and_then(|file| file.set_len(15 * 5_000))
            .expect("cuts");
        engine.resume();
        masking.await.expect("ends")
    });
    let error = error.expect_err("an error").to_string();
    assert!(
        error.contains("became shorter while it was read"),
        "{error}"
    );
    assert!(!output.exists());
}

#[test]
fn a_csv_file_of_one_column_keeps_its_records() {
    let rules = "unknown = \"keep\"\n[[rule]]\ncolumn = \"note\"\nmask = \"null\"\n";
    // A blank line is not a record.
    assert_eq!(
        masked("note\na\n\"b\"\r\n\nc", rules, CSV),
        "note\n\"\"\n\"\"\r\n\n\"\""
    );
    assert_eq!(
        masked("note,id\na,1\n\"b\",2\n", rules, CSV),
        "note,id\n,1\n,2\n"
    );
}

#[test]
fn rules_that_match_nothing_are_errors_unless_allowed() {
    for (text, target, expected) in [
        (r#"{"a":{"b":"x"}}"#, "path = \"$.a.b\"", ""),
        (r#"{"a":{"b":"x"}}"#, "column = \"b\"", ""),
        (r#"{"b":null}"#, "column = \"b\"", ""),
        ("", "column = \"b\"", ""),
        (r#"{"c":1}"#, "kind = \"card\"", ""),
        (
            r#"{"a":{"b":"x"}}"#,
            "path = \"$.b\"",
            "rule 1 (path $.b) matches nothing",
        ),
        (
            r#"{"a":{"b":"x"}}"#,
            "column = \"B\"",
            "rule 1 (column B) matches nothing",
        ),
    ] {
        let array = format!("[{text}]");
        // Rules by path begin at a record of NDJSON and at the document of JSON.
        let by_element = target.replace("$.", "$[*].");
        for (text, target, format) in [
            (text, target, FileFormat::Ndjson),
            (&array, by_element.as_str(), FileFormat::Json),
        ] {
            let run = Run::new(small(16));
            let input = run.path("in");
            let output = run.path("out");
            fs::write(&input, text).expect("writes");
            let rules = rules(&format!(
                "unknown = \"keep\"\n[[rule]]\n{target}\nmask = \"redact\"\n"
            ));
            let job = FileJob {
                allow_unmatched: false,
                ..run.job(&input, &output, format)
            };
            let error = run
                .run(&job, &rules, Local::new(&rules))
                .err()
                .map_or(String::new(), |error| error.to_string());
            let expected = expected.replace(
                "$.",
                if format == FileFormat::Json {
                    "$[*]."
                } else {
                    "$."
                },
            );
            assert_eq!(
                error.is_empty(),
                expected.is_empty(),
                "{text} {target}: {error}"
            );
            assert!(error.starts_with(&expected), "{text} {target}: {error}");
            assert_eq!(output.exists(), error.is_empty(), "{text} {target}");
            if !error.is_empty() {
                let job = FileJob {
                    allow_unmatched: true,
                    ..job
                };
                run.run(&job, &rules, Local::new(&rules))
                    .expect("it is allowed");
            }
        }
    }
}

#[test]
fn dropping_the_job_leaves_nothing() {
    let rules = rules(SECRET);
    let run = Run::new(small(64));
    let input = run.path("in");
    let output = run.path("out");
    fs::write(&input, "{\"secret\":\"a\"}\n".repeat(10_000)).expect("writes");
    let job = run.job(&input, &output, FileFormat::Ndjson);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("runtime");
    let progress = Arc::new(Progress::default());
    runtime.block_on(async {
        let job = mask_file(job, Arc::clone(&rules), Local::stalling(&rules, &progress), Arc::clone(&progress));
        tokio::select! { _ = job => panic!("the engine stalls"), () = some_records(&progress) => {} }
    });
    drop(runtime);
    assert_eq!(run.names(), ["in"]);
}

#[test]
fn the_report_counts_by_field() {
    let rules = rules(SECRET);
    let text = "{\"secret\":\"a\",\"b\":1}\n{\"secret\":null,\"b\":2}\n{\"c\":[{\"secret\":\"[redacted]\"}]}\n";
    let (_, report) = Run::new(small(1))
        .mask(text.as_bytes(), &rules, FileFormat::Ndjson)
        .expect("masks");
    assert_eq!((report.records, report.bytes_in), (3, text.len() as u64));
    let mut rows: Vec<_> = report
        .fields
        .iter()
        .map(|it| {
            (
                it.field.as_str(),
                it.function.as_deref(),
                it.masked,
                it.unchanged,
                it.kept,
                it.nulls,
            )
        })
        .collect();
    rows.sort_unstable();
    let expected = [
        ("$.b", None, 0, 0, 2, 0),
        ("$.c[*].secret", Some("redact"), 1, 1, 0, 0),
        ("$.secret", Some("redact"), 1, 0, 0, 1),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn reports_show_no_keys_of_maps() {
    let rules = rules("unknown = \"keep\"\n[[rule]]\ncolumn = \"secret\"\nmask = \"hash\"\n");
    let line = |at: usize| {
        format!(
            "{{\"by\":{{\"user{at}@mail.test\":{{\"secret\":\"original {at}\",\"n\":{at}}}}},\"copy\":{{\"user{at}@mail.test\":\"original {at}\"}}}}\n"
        )
    };
    let text: String = (0..40).map(line).collect();
    let run = Run::new(small(1));
    let (masked, report) = run
        .mask(text.as_bytes(), &rules, FileFormat::Ndjson)
        .expect("masks");
    let rows: Vec<_> = report
        .fields
        .iter()
        .map(|row| (row.field.as_str(), row.masked, row.kept))
        .collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(
        rows.contains(&("$.by[*].secret", 40, 0))
            && rows.contains(&("$.by[*].n", 0, 40))
            && rows.contains(&("$.copy[*]", 0, 40)),
        "{rows:?}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let original = folder.path().join("in.ndjson");
    let output = folder.path().join("out.ndjson");
    fs::write(&original, &text).expect("writes");
    fs::write(&output, &masked).expect("writes");
    let leak = verify_files(
        &Input::File(original),
        &Input::File(output),
        FileFormat::Ndjson,
        rules,
        small(1),
        LeakLimits::default(),
        &Progress::default(),
    );
    let leak = leak.expect("checks");
    let fields: Vec<_> = leak
        .fields
        .iter()
        .map(|field| (field.field.as_str(), field.values, field.found_elsewhere))
        .collect();
    assert_eq!(fields, [("$.by[*].secret", 40, 40)]);
    assert_eq!(leak.fields[0].elsewhere, ["$.copy[*]"]);
}

#[test]
fn the_leak_check_finds_a_rule_that_was_left_out() {
    let full = "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"hash\"\n[[rule]]\ncolumn = \"card\"\nmask = \"redact\"\n";
    let less = "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"hash\"\n";
    let note = |at: usize| {
        if at == 17 {
            "write to user17@example.com, please"
        } else {
            "nothing"
        }
    };
    let line = |at: usize| {
        format!(
            "{{\"email\":\"user{at}@example.com\",\"card\":\"{}\",\"note\":\"\"}}\n",
            4_000_000_000_000_000_u64 + at as u64
        )
    };
    let clean: String = (0..200).map(line).collect();
    let leaky: String = (0..200)
        .map(|at| line(at).replace("\"\"", &format!("\"{}\"", note(at))))
        .collect();
    let run = Run::new(small(1 << 10));
    let verify = |source: &str, by: &str, values_max| {
        let (bytes, _) = run
            .mask(source.as_bytes(), &rules(by), FileFormat::Ndjson)
            .expect("masks");
        fs::write(run.path("target"), bytes).expect("writes");
        let leak = LeakLimits { values_max };
        let source = run.path("in");
        let target = run.path("target");
        verify_files(
            &Input::File(source.clone()),
            &Input::File(target.clone()),
            FileFormat::Ndjson,
            rules(full),
            run.limits,
            leak,
            &Progress::default(),
        )
        .expect("checks")
    };
    for values_max in [30, 1_000_000] {
        let report = verify(&clean, full, values_max);
        assert!(report.passed, "{report:?}");
        assert_eq!(report.passes > 1, values_max == 30);
        assert_eq!(
            report
                .fields
                .iter()
                .map(|field| field.originals)
                .sum::<u64>(),
            400
        );

        let report = verify(&clean, less, values_max);
        assert!(!report.passed, "{report:?}");
        let card = report
            .fields
            .iter()
            .find(|field| field.field == "$.card")
            .expect("card");
        assert_eq!(
            (card.found_in_field, card.verdict),
            (200, LeakVerdict::Leak)
        );

        // An address in a text that no rule names.
        let report = verify(&leaky, full, values_max);
        let email = report
            .fields
            .iter()
            .find(|field| field.field == "$.email")
            .expect("email");
        assert_eq!(
            (email.found_elsewhere, email.elsewhere.as_slice()),
            (1, &["$.note".to_owned()][..])
        );
        assert!(!report.passed);
    }
}

/// Originals in places that no rule names: keys, elements, and texts that contain a document.
#[test]
fn the_leak_check_looks_into_keys_arrays_and_texts() {
    let by = "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"hash\"\n";
    let run = Run::new(small(1 << 10));
    for (other, place) in [
        (r#""g":{"anna@mail.test":{"n":1}}"#, Some("$.g")),
        (r#""anna@mail.test":true"#, Some("$")),
        (r#""g":{"owner=anna@mail.test":null}"#, Some("$.g")),
        (r#""g":["bob","anna@mail.test"]"#, Some("$.g[*]")),
        (r#""g":"{\"e\":\"anna@mail.test\"}""#, Some("$.g")),
        (r#""g":"id=7;e=anna@mail.test""#, Some("$.g")),
        (r#""g":{"anna":"mail.test"}"#, None),
    ] {
        let source = format!("{{\"email\":\"anna@mail.test\",{other}}}\n");
        let (bytes, _) = run
            .mask(source.as_bytes(), &rules(by), FileFormat::Ndjson)
            .expect("masks");
        fs::write(run.path("target"), bytes).expect("writes");
        let source = run.path("in");
        let target = run.path("target");
        let leak = LeakLimits::default();
        let report = verify_files(
            &Input::File(source.clone()),
            &Input::File(target.clone()),
            FileFormat::Ndjson,
            rules(by),
            run.limits,
            leak,
            &Progress::default(),
        )
        .expect("checks");
        let places: Vec<&str> = report.fields[0]
            .elsewhere
            .iter()
            .map(String::as_str)
            .collect();
        assert_eq!(report.passed, place.is_none(), "{other}: {report:?}");
        assert!(
            place.is_none_or(|place| places.contains(&place)),
            "{other}: {places:?}"
        );
    }
}

const EVERYTHING: &str = r#"
unknown = "keep"
[[rule]]
path = "$.a[1].b"
mask = "keep"
[[rule]]
path = "$.a[*]['b', 'c']"
mask = "hash"
[[rule]]
path = "$.d"
mask = "redact"
[[rule]]
column = "born"
mask = "date_shift(within=300, subject=id)"
[[rule]]
column = "e"
mask = "pseudonym(list=cities)"
[[rule]]
path = "$..f..g"
mask = "partial(first=1)"
[[rule]]
kind = "email"
mask = "email"
[[rule]]
column = "n"
mask = "noise(percent=20)"
"#;

#[test]
fn subjects_stand_beside_their_values_wherever_they_are() {
    let rules = rules(EVERYTHING);
    let engine = Local::new(&rules);
    let dates: Vec<String> = [
        r#"{"id":5,"born":"1950-01-11"}"#,
        r#"{"born":"1950-01-11","x":{"id":6},"id":5}"#,
        r#"{"id":5,"born":["1950-01-11",["1950-01-11",null]]}"#,
        r#"[{"x":{"id":7,"born":"1950-01-11"},"born":"1950-01-11","id":5},{"id":6,"born":"1950-01-11"}]"#,
        r#"{"id":5,"born":"1950-01-11"}"#,
    ]
    .iter()
    .map(|text| {
        let expected = engine.document(text).expect(text);
        let masked = masked(text, EVERYTHING, FileFormat::Ndjson);
        assert_eq!(masked.replace("i\\u0064", "id"), expected);
        expected
    })
    .collect();
    // Dates with equal subjects have equal shifts.
    let shifted = dates[0].rsplit("born").next().expect("born").to_owned();
    assert!(dates[4].ends_with(&shifted), "{dates:?}");
    for text in [
        r#"{"born":"1950-01-11"}"#,
        r#"{"id":5,"x":{"born":"1950-01-11"}}"#,
        r#"{"id":[5],"born":"1950-01-11"}"#,
    ] {
        assert!(engine.document(text).is_err());
        assert!(
            refused(text.as_bytes(), EVERYTHING, FileFormat::Ndjson)
                .contains("the subject is not there")
        );
    }
}

/// Generates documents without blanks and with few distinct keys, so that several rules apply to
/// one value.
fn document() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_u64..1_000_000).prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
        "[a-z]{1,3}@mail[.]test".prop_map(Value::from),
        "19[0-9]{2}-0[1-9]-1[0-9]".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |value| {
        let key = prop_oneof![
            "[a-g]",
            Just("id".to_owned()),
            Just("born".to_owned()),
            Just("n".to_owned())
        ];
        prop_oneof![
            proptest::collection::vec(value.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((key, value), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Generates a line as input and expected output. The line has values that stay and strings that
/// are masked.
fn line() -> impl Strategy<Value = (String, String)> {
    let blank = "[ \t]{0,2}";
    let string = "\"(\\\\[\"\\\\/bfnrt]|\\\\u00[0-7][0-9a-f]|\\\\ud83d\\\\ude00|[ a-z{}\\[\\],:äß😀]){0,9}\"";
    let number = "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?";
    let kept = prop_oneof![
        string,
        number,
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("[ ]".to_owned())
    ];
    let member = (blank, "[a-f]{1,3}", blank, kept, blank);
    let kept = proptest::collection::vec(member, 0..4).prop_map(|members| {
        members
            .iter()
            .map(|(a, key, b, value, c)| format!("{a}\"{key}\"{b}:{c}{value},"))
            .collect::<String>()
    });
    (kept.clone(), blank, string, blank, kept, "\r?").prop_map(
        |(before, a, secret, b, behind, end)| {
            let line = |value: &str| {
                format!("{{{before}\"secret\":{a}{value}{b},{behind}\"z\":[{{\"y\":0}}]}}{end}\n")
            };
            (line(&secret), line("\"[redacted]\""))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn file_masking_keeps_unmasked_bytes(
        lines in proptest::collection::vec(line(), 0..12),
        chunk_bytes in 1_usize..400,
    ) {
        let rules = rules(SECRET);
        let (text, expected): (String, String) = lines.into_iter().unzip();
        let (bytes, _) = Run::new(small(chunk_bytes)).mask(text.as_bytes(), &rules, FileFormat::Ndjson).expect("masks");
        prop_assert_eq!(String::from_utf8(bytes).expect("UTF-8"), expected.clone());

        let array = |text: &str| format!("[{}]", text.trim_end_matches(['\r', '\n']).replace('\n', ",\n"));
        let json = array(&text);
        let (bytes, _) = Run::new(small(chunk_bytes)).mask(json.as_bytes(), &rules, FileFormat::Json).expect("masks");
        prop_assert_eq!(String::from_utf8(bytes).expect("UTF-8"), array(&expected));
    }

    #[test]
    fn a_job_masks_as_a_call_does(documents in proptest::collection::vec(document(), 1..12), chunk_bytes in 1_usize..300) {
        let rules = rules(EVERYTHING);
        let engine = Local::new(&rules);
        // Documents that the engine rejects, because a function does not fit a value, are checked
        // separately.
        let mut text = String::new();
        let mut expected = String::new();
        for document in documents {
            let line = document.to_string();
            match engine.document(&line) {
                Ok(masked) => {
                    text.push_str(&format!("{line}\n"));
                    expected.push_str(&format!("{masked}\n"));
                }
                Err(_) => {
                    let alone = Run::new(small(chunk_bytes)).mask(line.as_bytes(), &rules, FileFormat::Ndjson);
                    prop_assert!(matches!(alone, Err(JobError::Unfit { .. })), "{} passes", line);
                }
            }
        }
        let (bytes, _) = Run::new(small(chunk_bytes)).mask(text.as_bytes(), &rules, FileFormat::Ndjson).expect("masks");
        prop_assert_eq!(String::from_utf8(bytes).expect("UTF-8"), expected);
    }

    #[test]
    fn any_bytes_pass_or_are_refused_and_never_panic(bytes in proptest::collection::vec(
        prop_oneof![Just(b'{'), Just(b'}'), Just(b'['), Just(b']'), Just(b'"'), Just(b','), Just(b':'), Just(b'\n'),
            Just(b'\\'), Just(b'1'), Just(b'a'), any::<u8>()], 0..60)) {
        let rules = rules("unknown = \"keep\"\n[[rule]]\nkind = \"email\"\nmask = \"redact\"\n");
        for format in [FileFormat::Ndjson, FileFormat::Json, CSV] {
            if let Ok((out, _)) = Run::new(small(8)).mask(&bytes, &rules, format) {
                prop_assert_eq!(out, bytes.clone());
            }
        }
    }
}
