//! Jobs over objects of a moto server: the same bytes as for files, no visible object before
//! success, and errors with advice.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use sealwire_data::mask_job::{
    Column, ColumnsJob, Direction, DocumentEngine, Engine, EngineError, FileFormat, FileJob, Input,
    JobError, LeakLimits, LeakVerdict, Limits, Output, Progress, Report, S3Settings, S3Store,
    change_columns, mask_file, verify_files,
};
use sealwire_mask_rules::Rules;
use sealwire_msgpack::{TokenReader, write as msgpack};
use sealwire_testkit::{Certificates, Moto};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::common::{Local, rules, some_records};

const RULES: &str = "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"hash\"\n";
const SECRET: &str = "hunter2-secret-key";
const TOKEN: &str = "hunter2-session-token";

/// A table with a masked column and columns that stay, of `pad` bytes more in each row, which no
/// codec shortens.
fn table(rows: usize, pad: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = |_| {
        let mut text = String::with_capacity(pad);
        while text.len() < pad {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            text += &format!("{state:016x}");
        }
        text
    };
    let noise: StringArray = (0..rows).map(|row| Some(noise(row))).collect();
    let email: StringArray = (0..rows)
        .map(|row| (row % 7 > 0).then(|| format!("secret-{row}-address@mail.test")))
        .collect();
    let id: Int64Array = (0..rows as i64).map(Some).collect();
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(id)),
        ("email", Arc::new(email)),
        ("noise", Arc::new(noise)),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.map(|(name, column)| (name, column, true)),
    );
    let batch = batch.expect("a table");
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(rows / 4))
        .set_compression(Compression::UNCOMPRESSED)
        .set_bloom_filter_enabled(true)
        .set_dictionary_enabled(false)
        .build();
    let mut file = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).expect("writes");
    writer.close().expect("closes");
    file
}

/// A moto server with the bucket `lake`.
struct Lake {
    /// Dropped before the folder, in which its log is.
    moto: Moto,
    folder: TempDir,
    runtime: Runtime,
}

impl Lake {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let moto = Moto::start(folder.path(), None).expect("moto");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let lake = Self {
            moto,
            folder,
            runtime: runtime.expect("runtime"),
        };
        assert_eq!(lake.s3("PUT", "", b"").0, 200);
        lake
    }

    /// Sends a request about the bucket, independent of the code under test.
    fn s3(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let response = self
            .moto
            .request("s3", method, &format!("/lake{path}"), body)
            .expect("a response");
        (response.status, response.body)
    }

    fn put(&self, key: &str, body: &[u8]) {
        assert_eq!(self.s3("PUT", &format!("/{key}"), body).0, 200);
    }

    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (status, body) = self.s3("GET", &format!("/{key}"), b"");
        (status == 200).then_some(body)
    }

    /// Returns true if the bucket has an upload that is neither completed nor aborted.
    fn has_uploads(&self) -> bool {
        let (status, list) = self.s3("GET", "?uploads", b"");
        assert_eq!(status, 200);
        String::from_utf8(list)
            .expect("text")
            .contains("<UploadId>")
    }

    fn settings(&self) -> S3Settings {
        S3Settings {
            endpoint: Some(self.moto.url()),
            access_key_id: Some("AKIAEXAMPLE".into()),
            secret_access_key: Some(SECRET.into()),
            session_token: Some(TOKEN.into()),
            ..S3Settings::default()
        }
    }

    fn input(&self, name: &str) -> Input {
        Input::Object(
            S3Store::new(self.settings())
                .and_then(|store| store.object(name))
                .expect("an object"),
        )
    }

    fn output(&self, name: &str, replace: bool) -> Output {
        let object = S3Store::new(self.settings())
            .and_then(|store| store.object(name))
            .expect("an object");
        Output::Object { object, replace }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn mask<E: Engine>(
        &self,
        input: Input,
        output: Output,
        rules: &Arc<Rules>,
        engine: E,
    ) -> Result<Report, JobError> {
        let job = FileJob {
            input,
            output,
            format: FileFormat::Parquet,
            limits: Limits::default(),
            allow_unmatched: true,
        };
        self.runtime.block_on(mask_file(
            job,
            Arc::clone(rules),
            Arc::new(engine),
            Arc::default(),
        ))
    }
}

/// An engine of this process that runs a function before the first request.
struct First<F> {
    local: Arc<Local>,
    has_begun: AtomicBool,
    first: F,
}

impl<F: Fn() + Send + Sync + 'static> First<F> {
    fn new(local: Arc<Local>, first: F) -> Self {
        Self {
            local,
            has_begun: AtomicBool::new(false),
            first,
        }
    }
}

impl<F: Fn() + Send + Sync + 'static> Engine for First<F> {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            tokio::task::block_in_place(&self.first);
        }
        self.local.mask(columns).await
    }
}

fn plain(rules: &Rules) -> First<impl Fn() + Send + Sync + 'static> {
    First::new(Local::new(rules), || ())
}

#[test]
fn objects_are_masked_as_files_are() {
    let lake = Lake::new();
    let given = rules(RULES);
    // One part; and several windows and parts.
    for (rows, pad) in [(1_000, 16), (4_000, 11_000)] {
        let source = table(rows, pad);
        fs::write(lake.path("in.parquet"), &source).expect("writes");
        lake.put("in%20%C3%BC/a.parquet", &source);
        let file = Input::File(lake.path("in.parquet"));
        let object = lake.input("s3://lake/in ü/a.parquet");
        let local = Output::File {
            path: lake.path("out.parquet"),
            replace: true,
        };
        let first = "s3://lake/out/first.parquet";
        let second = "s3://lake/out/second.parquet";
        let report = lake
            .mask(file.clone(), local, &given, plain(&given))
            .expect("from file to file");
        let expected = fs::read(lake.path("out.parquet")).expect("the output");
        for (name, input, output) in [
            (
                "from object to object",
                object.clone(),
                lake.output(first, true),
            ),
            (
                "from file to object",
                file.clone(),
                lake.output(second, true),
            ),
            (
                "from object to file",
                object.clone(),
                Output::File {
                    path: lake.path("out.parquet"),
                    replace: true,
                },
            ),
        ] {
            let other = lake.mask(input, output, &given, plain(&given)).expect(name);
            assert_eq!(
                (other.bytes_out, &other.fields),
                (report.bytes_out, &report.fields),
                "{name}"
            );
        }
        assert!(
            lake.get("out/first.parquet")
                .is_some_and(|bytes| bytes == expected)
        );
        assert!(
            lake.get("out/second.parquet")
                .is_some_and(|bytes| bytes == expected)
        );
        assert!(fs::read(lake.path("out.parquet")).is_ok_and(|bytes| bytes == expected));
        assert!(!lake.has_uploads());

        let verify = |original: &Input, masked: &Input| {
            let limits = Limits::default();
            let leak = LeakLimits::default();
            verify_files(
                original,
                masked,
                FileFormat::Parquet,
                Arc::clone(&given),
                limits,
                leak,
                &Progress::default(),
            )
        };
        let clean = verify(&object, &lake.input(first)).expect("verifies");
        assert_eq!(clean.fields[0].verdict, LeakVerdict::Clean);
        let same = verify(&object, &file).expect("verifies");
        assert_ne!(same.fields[0].verdict, LeakVerdict::Clean);
    }
}

/// Reverses values, which stands for encryption.
struct Around;

impl DocumentEngine for Around {
    async fn convert(&self, payload: Vec<u8>) -> Result<bytes::Bytes, EngineError> {
        let mut values = TokenReader::new(&payload);
        let sealwire_msgpack::Token::Array(count) = values.token().expect("an array") else {
            panic!("no array")
        };
        let mut out = Vec::new();
        msgpack::array_len(&mut out, count);
        for _ in 0..count {
            let sealwire_msgpack::Token::Str(text) = values.token().expect("a value") else {
                panic!("no text")
            };
            let text: Vec<u8> = text.iter().rev().copied().collect();
            msgpack::str(&mut out, std::str::from_utf8(&text).expect("ASCII"));
        }
        Ok(out.into())
    }
}

#[test]
fn columns_of_objects_are_encrypted_and_decrypted() {
    let lake = Lake::new();
    let source = table(1_000, 16);
    lake.put("in.parquet", &source);
    fs::write(lake.path("in.parquet"), &source).expect("writes");
    let change = |input, output, direction| {
        let select = vec!["$.email".to_owned()];
        let job = ColumnsJob {
            input,
            output,
            select,
            types: Vec::new(),
            direction,
            limits: Limits::default(),
        };
        lake.runtime
            .block_on(change_columns(job, Arc::new(Around), Arc::default()))
            .expect("changes");
    };
    let local = |name: &str| Output::File {
        path: lake.path(name),
        replace: true,
    };
    change(
        Input::File(lake.path("in.parquet")),
        local("sealed.parquet"),
        Direction::Seal,
    );
    change(
        lake.input("s3://lake/in.parquet"),
        lake.output("s3://lake/sealed.parquet", true),
        Direction::Seal,
    );
    let sealed = fs::read(lake.path("sealed.parquet")).expect("reads");
    assert!(
        lake.get("sealed.parquet")
            .is_some_and(|bytes| bytes == sealed)
    );
    change(
        Input::File(lake.path("sealed.parquet")),
        local("opened.parquet"),
        Direction::Open,
    );
    change(
        lake.input("s3://lake/sealed.parquet"),
        lake.output("s3://lake/opened.parquet", true),
        Direction::Open,
    );
    let opened = fs::read(lake.path("opened.parquet")).expect("reads");
    assert!(
        lake.get("opened.parquet")
            .is_some_and(|bytes| bytes == opened)
    );
}

#[test]
fn a_failed_or_stopped_job_leaves_no_object_and_no_upload() {
    let lake = Lake::new();
    let given = rules(RULES);
    let large = table(4_000, 11_000);
    lake.put("in.parquet", &large);
    // The job fails before the first part, and after some parts.
    for after in [0, 2_500] {
        let output = lake.output("s3://lake/out.parquet", false);
        let engine = First::new(Local::failing(&given, after), || ());
        let error = lake
            .mask(lake.input("s3://lake/in.parquet"), output, &given, engine)
            .expect_err("fails");
        assert!(matches!(error, JobError::Engine(_)), "{error}");
        assert!(
            lake.get("out.parquet").is_none() && !lake.has_uploads(),
            "{after}"
        );
    }

    let progress = Arc::new(Progress::default());
    let job = FileJob {
        input: lake.input("s3://lake/in.parquet"),
        output: lake.output("s3://lake/out.parquet", false),
        format: FileFormat::Parquet,
        limits: Limits {
            workers: 1,
            batch_values_max: 10,
            ..Limits::default()
        },
        allow_unmatched: true,
    };
    let engine = Local::stalling(&given, &progress);
    lake.runtime.block_on(async {
        let job = mask_file(
            job.clone(),
            Arc::clone(&given),
            Arc::clone(&engine),
            Arc::clone(&progress),
        );
        let stop = async {
            some_records(&progress).await;
            progress.stop();
        };
        let (report, ()) = tokio::join!(job, stop);
        assert!(matches!(report, Err(JobError::Stopped)), "{report:?}");
    });
    assert!(lake.get("out.parquet").is_none() && !lake.has_uploads());

    // Drops the job.
    let progress = Arc::new(Progress::default());
    let engine = Local::stalling(&given, &progress);
    lake.runtime.block_on(async {
        tokio::select! {
            report = mask_file(job, Arc::clone(&given), Arc::clone(&engine), Arc::clone(&progress)) => panic!("{report:?}"),
            () = some_records(&progress) => {}
        }
    });
    // The threads that read and write end after the job.
    let Lake {
        folder: _folder,
        moto,
        runtime,
    } = lake;
    runtime.shutdown_timeout(std::time::Duration::from_secs(60));
    let uploads = moto
        .request("s3", "GET", "/lake?uploads", b"")
        .expect("a response")
        .body;
    assert!(
        !String::from_utf8(uploads)
            .expect("text")
            .contains("<UploadId>")
    );
    assert_eq!(
        moto.request("s3", "GET", "/lake/out.parquet", b"")
            .expect("a response")
            .status,
        404
    );
}

#[test]
fn an_object_is_replaced_only_on_request_and_is_never_the_input() {
    let lake = Arc::new(Lake::new());
    let given = rules(RULES);
    lake.put("in.parquet", &table(1_000, 16));
    lake.put("out.parquet", b"before");
    let input = || lake.input("s3://lake/in.parquet");
    let error = lake.mask(
        input(),
        lake.output("s3://lake/out.parquet", false),
        &given,
        plain(&given),
    );
    let error = error.expect_err("exists");
    assert!(matches!(error, JobError::Exists { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("s3://lake/out.parquet exists already"),
        "{error}"
    );
    assert_eq!(lake.get("out.parquet").expect("an object"), b"before");

    // Another writer creates the object while the job runs.
    let other = Arc::clone(&lake);
    let engine = First::new(Local::new(&given), move || {
        other.put("late.parquet", b"late")
    });
    let error = lake
        .mask(
            input(),
            lake.output("s3://lake/late.parquet", false),
            &given,
            engine,
        )
        .expect_err("exists");
    assert!(matches!(error, JobError::Exists { .. }), "{error}");
    assert_eq!(lake.get("late.parquet").expect("an object"), b"late");
    assert!(!lake.has_uploads());

    lake.mask(
        input(),
        lake.output("s3://lake/out.parquet", true),
        &given,
        plain(&given),
    )
    .expect("replaces");
    assert_ne!(lake.get("out.parquet").expect("an object"), b"before");
    let error = lake
        .mask(
            input(),
            lake.output("s3://lake/in.parquet", true),
            &given,
            plain(&given),
        )
        .expect_err("same");
    assert!(matches!(error, JobError::SameFile { .. }), "{error}");
    assert!(!lake.has_uploads());
}

#[test]
fn a_change_of_the_input_is_an_error() {
    let lake = Arc::new(Lake::new());
    let given = rules(RULES);
    let large = table(4_000, 11_000);
    lake.put("in.parquet", &large);
    for (what, then) in [
        (
            "the object changed while it was read",
            Some(table(4_000, 12_000)),
        ),
        ("does not exist", None),
    ] {
        lake.put("in.parquet", &large);
        let other = Arc::clone(&lake);
        let engine = First::new(Local::new(&given), move || match &then {
            Some(body) => other.put("in.parquet", body),
            None => assert_eq!(other.s3("DELETE", "/in.parquet", b"").0, 204),
        });
        let output = lake.output("s3://lake/out.parquet", false);
        let error = lake
            .mask(lake.input("s3://lake/in.parquet"), output, &given, engine)
            .expect_err(what);
        assert!(
            matches!(error, JobError::Store { .. }) && error.to_string().contains(what),
            "{error}"
        );
        assert!(lake.get("out.parquet").is_none() && !lake.has_uploads());
    }
}

#[test]
fn only_parquet_is_read_from_objects() {
    let lake = Lake::new();
    let given = rules(RULES);
    lake.put("in.ndjson", b"{}\n");
    lake.put("short.parquet", b"PAR1");
    let engine = || plain(&given);
    for (name, expected) in [
        ("s3://lake/short.parquet", "too short for a Parquet file"),
        ("s3://lake/none.parquet", "the object does not exist"),
        ("s3://none/in.parquet", "the bucket does not exist"),
    ] {
        let output = lake.output("s3://lake/out.parquet", false);
        let error = lake
            .mask(lake.input(name), output, &given, engine())
            .expect_err(name)
            .to_string();
        assert!(
            error.starts_with(name) && error.contains(expected),
            "{error}"
        );
    }
    let input = lake.input("s3://lake/in.ndjson");
    let output = lake.output("s3://lake/out.ndjson", false);
    fs::write(lake.path("in.ndjson"), "{}\n").expect("writes");
    for (input, output) in [
        (input, Output::Nowhere),
        (Input::File(lake.path("in.ndjson")), output),
    ] {
        let job = FileJob {
            input,
            output,
            format: FileFormat::Ndjson,
            limits: Limits::default(),
            allow_unmatched: true,
        };
        let failed = lake.runtime.block_on(mask_file(
            job,
            Arc::clone(&given),
            Arc::new(engine()),
            Arc::default(),
        ));
        let error = failed.expect_err("rejected").to_string();
        assert!(error.contains("only Parquet"), "{error}");
    }
    let output = lake.output("s3://none/out.parquet", false);
    fs::write(lake.path("in.parquet"), table(100, 16)).expect("writes");
    let error = lake
        .mask(
            Input::File(lake.path("in.parquet")),
            output,
            &given,
            engine(),
        )
        .expect_err("no bucket");
    assert!(
        error.to_string().contains("the bucket does not exist"),
        "{error}"
    );
}

/// Returns the text of the element.
fn element(xml: &[u8], name: &str) -> String {
    let xml = std::str::from_utf8(xml).expect("text");
    let (_, rest) = xml
        .split_once(&format!("<{name}>"))
        .unwrap_or_else(|| panic!("{name}: {xml}"));
    rest.split_once('<').expect("an end").0.to_owned()
}

#[test]
fn signatures_are_valid_and_wrong_credentials_say_so() {
    let lake = Lake::new();
    let given = rules(RULES);
    lake.put("in.parquet", &table(1_000, 16));
    let iam = |body: &str| {
        let response = lake.moto.request(
            "iam",
            "POST",
            "/",
            format!("{body}&Version=2010-05-08").as_bytes(),
        );
        let response = response.expect("a response");
        assert_eq!(
            response.status,
            200,
            "{}",
            String::from_utf8_lossy(&response.body)
        );
        response.body
    };
    iam("Action=CreateUser&UserName=masker");
    let key = iam("Action=CreateAccessKey&UserName=masker");
    let id = element(&key, "AccessKeyId");
    let secret = element(&key, "SecretAccessKey");
    // The policy denies all access below `closed/`.
    let policy = "%7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B%22Effect%22%3A%22Allow%22%2C%22Action%22%3A%22s3%3A%2A%22%2C\
        %22Resource%22%3A%22arn%3Aaws%3As3%3A%3A%3A%2A%22%7D%2C%7B%22Effect%22%3A%22Deny%22%2C%22Action%22%3A%22s3%3A%2A%22%2C\
        %22Resource%22%3A%22arn%3Aaws%3As3%3A%3A%3Alake%2Fclosed%2F%2A%22%7D%5D%7D";
    iam(&format!(
        "Action=PutUserPolicy&UserName=masker&PolicyName=all&PolicyDocument={policy}"
    ));
    // From now on moto checks each request.
    assert_eq!(
        lake.moto
            .request("s3", "POST", "/moto-api/reset-auth", b"0")
            .expect("a response")
            .status,
        200
    );
    let run = |id: &str, secret: &str, to: &str| {
        let settings = S3Settings {
            access_key_id: Some(id.to_owned()),
            secret_access_key: Some(secret.to_owned()),
            session_token: None,
            ..lake.settings()
        };
        let store = S3Store::new(settings).expect("a store");
        let object = |name: &str| store.object(name).expect("an object");
        let output = Output::Object {
            object: object(to),
            replace: false,
        };
        lake.mask(
            Input::Object(object("s3://lake/in.parquet")),
            output,
            &given,
            plain(&given),
        )
    };
    run(&id, &secret, "s3://lake/ä b+c/out.parquet").expect("signs");
    for (id, secret, to, expected) in [
        (
            "AKIANOBODYHASTHISKEY",
            &*secret,
            "s3://lake/x.parquet",
            "see AWS_ACCESS_KEY_ID",
        ),
        (
            &*id,
            SECRET,
            "s3://lake/x.parquet",
            "see AWS_SECRET_ACCESS_KEY",
        ),
        (
            &*id,
            &*secret,
            "s3://lake/closed/x.parquet",
            "the credentials need s3:PutObject",
        ),
    ] {
        let error = run(id, secret, to).expect_err(expected);
        let text = format!("{error} {error:?}");
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains(secret) && !text.contains(id), "{text}");
    }
}

#[test]
fn only_the_configured_authority_is_trusted() {
    let folder = tempfile::tempdir().expect("folder");
    let ours = folder.path().join("ours");
    let theirs = folder.path().join("theirs");
    fs::create_dir(&ours)
        .and_then(|()| fs::create_dir(&theirs))
        .expect("folders");
    let certificates = Certificates::make(&ours, "masker").expect("certificates");
    let others = Certificates::make(&theirs, "masker").expect("certificates");
    let moto = Moto::start(folder.path(), Some(&certificates)).expect("moto");
    let given = rules(RULES);
    let error = |ca: &std::path::Path| {
        let settings = S3Settings {
            endpoint: Some(moto.url()),
            access_key_id: Some("AKIAEXAMPLE".into()),
            secret_access_key: Some(SECRET.into()),
            ca: Some(ca.to_owned()),
            ..S3Settings::default()
        };
        let input = S3Store::new(settings)
            .and_then(|store| store.object("s3://lake/in.parquet"))
            .expect("an object");
        let input = Input::Object(input);
        let output = Output::Nowhere;
        let job = FileJob {
            input,
            output,
            format: FileFormat::Parquet,
            limits: Limits::default(),
            allow_unmatched: true,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        let failed = runtime.block_on(mask_file(
            job,
            Arc::clone(&given),
            Local::new(&given),
            Arc::default(),
        ));
        failed.expect_err("there is no bucket").to_string()
    };
    let text = error(&certificates.ca);
    assert!(text.contains("the bucket does not exist"), "{text}");
    let text = error(&others.ca);
    assert!(text.contains("TLS: ") && text.contains("--s3-ca"), "{text}");
}
