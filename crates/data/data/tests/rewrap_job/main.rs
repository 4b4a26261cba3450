//! Tests of jobs on a real PostgreSQL with an engine in this process. At each request, the engine
//! can cause rare events: change rows between reading and writing, lag behind a rotation, or reject
//! a request as too large.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which lints only know in unit tests"
)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealwire_data::rewrap_job::{
    Database, Engine, EngineError, LeftReason, Progress, Report, RewrapJob, RewrapRequest,
    RewrapResponse, Rules,
};
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_testkit::Postgres;

const OLD: u8 = 1;
const NEW: u8 = 2;

/// Makes a binary envelope with the layout of suite `xaes`, which is not encrypted. `value` stands
/// for the plaintext.
fn envelope(key: u8, value: u32) -> Vec<u8> {
    let mut bytes = vec![0x53, 0x57, 0x01, 3];
    bytes.extend([key; 5]);
    bytes.extend([0; 21 + 5 + 16]);
    bytes.extend(value.to_be_bytes());
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An engine that replaces the key in envelopes.
struct Local<'t> {
    requests: AtomicUsize,
    /// Called at each request with its number, from 0. Returns the key to seal to.
    at_request: Box<dyn Fn(usize) -> u8 + Sync + 't>,
    /// Maximum number of values of a request.
    values_max: usize,
    /// Numbers of values of the requests that were carried out.
    carried_out: Mutex<Vec<usize>>,
}

impl<'t> Local<'t> {
    fn new(at_request: impl Fn(usize) -> u8 + Sync + 't) -> Self {
        Self {
            requests: AtomicUsize::new(0),
            at_request: Box::new(at_request),
            values_max: usize::MAX,
            carried_out: Mutex::default(),
        }
    }
}

impl Engine for Local<'_> {
    async fn rewrap(&self, request: RewrapRequest<'_>) -> Result<RewrapResponse, EngineError> {
        let key = (self.at_request)(self.requests.fetch_add(1, Ordering::Relaxed));
        let mut reader = TokenReader::new(request.payload);
        let count = reader.array_len().unwrap();
        if count as usize > self.values_max {
            return Err(EngineError::TooLarge);
        }
        let mut payload = Vec::new();
        write::array_len(&mut payload, count);
        for _ in 0..count {
            match reader.token().unwrap() {
                Token::Bin(bytes) => {
                    let mut bytes = bytes.to_vec();
                    bytes[4..9].fill(key);
                    write::bin(&mut payload, &bytes);
                }
                Token::Str(text) => {
                    let mut bytes = URL_SAFE_NO_PAD
                        .decode(text.strip_prefix(b"sw1:").unwrap())
                        .unwrap();
                    bytes[1..6].fill(key);
                    // Longer than before, as in a move to another suite.
                    bytes.extend([0; 3]);
                    write::str(
                        &mut payload,
                        &format!("sw1:{}", URL_SAFE_NO_PAD.encode(bytes)),
                    );
                }
                other => panic!("{other:?} was sent"),
            }
        }
        self.carried_out.lock().unwrap().push(count as usize);
        Ok(RewrapResponse {
            payload,
            errors: Vec::new(),
        })
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

/// A table `t (id int, v bytea)` with one envelope per row, whose value is the id.
struct Table(sealwire_testkit::Database<'static>);

impl Table {
    fn with_rows(rows: u32) -> Self {
        let database = Postgres::shared().database().unwrap();
        database
            .sql("SET ROLE sealwire; CREATE TABLE t (id int PRIMARY KEY, v bytea, s varchar(80))")
            .unwrap();
        let table = Self(database);
        for ids in (0..rows).collect::<Vec<_>>().chunks(500) {
            let row = |id: &u32| format!("({id}, '\\x{}')", hex(&envelope(OLD, *id)));
            table.sql(&format!(
                "INSERT INTO t VALUES {}",
                ids.iter().map(row).collect::<Vec<_>>().join(", ")
            ));
        }
        table
    }

    fn sql(&self, sql: &str) -> String {
        self.0.sql(sql).unwrap()
    }

    fn job(&self, column: &str) -> RewrapJob {
        let rules = format!("[[rule]]\ntable = 'public.t'\ncolumn = '{column}'\napp = 'a'");
        RewrapJob {
            database: Database {
                url: self.0.socket_url(),
                password: Some(Postgres::shared().password().to_owned()),
                ..Database::default()
            },
            rules: Rules::from_toml(&rules).unwrap(),
            rate: 0,
            dry_run: false,
        }
    }

    fn run(&self, column: &str, engine: &Local<'_>) -> Report {
        let job = self.job(column);
        block_on(async {
            job.prepare()
                .await
                .unwrap()
                .run(engine, &Progress::default())
                .await
                .unwrap()
        })
    }

    /// Checks the value of a row, and that it is under the newest key.
    #[track_caller]
    fn has(&self, id: i64, value: u32) {
        let found = self.sql(&format!("SELECT encode(v, 'hex') FROM t WHERE id = {id}"));
        assert_eq!(found, hex(&envelope(NEW, value)), "row {id}");
    }

    /// Returns the number of rows that are under the newest key.
    fn count_new(&self) -> String {
        self.sql(&format!(
            "SELECT count(*) FROM t WHERE substr(v, 5, 5) = '\\x{}'",
            hex(&[NEW; 5])
        ))
    }
}

#[test]
fn a_change_between_reading_and_writing_wins() {
    let table = Table::with_rows(10);
    let engine = Local::new(|request| {
        if request == 0 {
            table.sql(&format!(
                "UPDATE t SET v = '\\x{}' WHERE id = 3",
                hex(&envelope(OLD, 1_003))
            ));
            table.sql(&format!(
                "UPDATE t SET v = '\\x{}' WHERE id = 4",
                hex(&envelope(NEW, 1_004))
            ));
            table.sql("UPDATE t SET v = NULL WHERE id = 5; DELETE FROM t WHERE id = 6");
        }
        NEW
    });
    let report = table.run("v", &engine).rules.remove(0);
    assert_eq!(
        (report.rewrapped, report.contended, report.complete),
        (7, 4, true),
        "{report:?}"
    );
    table.has(3, 1_003);
    table.has(4, 1_004);
    table.has(2, 2);
    assert_eq!(table.sql("SELECT count(*), count(v) FROM t"), "9|8");
    assert_eq!(table.count_new(), "8");
}

#[test]
fn a_row_whose_key_changes_is_found_by_another_pass() {
    let table = Table::with_rows(1_200);
    // While the first page is rewrapped, a row of a later page moves to before it.
    let engine = Local::new(|request| {
        if request == 0 {
            table.sql("UPDATE t SET id = -1 WHERE id = 1100");
        }
        NEW
    });
    let report = table.run("v", &engine).rules.remove(0);
    assert_eq!(
        (
            report.rewrapped,
            report.rows,
            report.passes,
            report.complete
        ),
        (1_200, 1_200, 3, true),
        "{report:?}"
    );
    table.has(-1, 1_100);
    assert_eq!(table.count_new(), "1200");
}

#[test]
fn an_engine_that_lags_behind_a_rotation_is_asked_again() {
    let table = Table::with_rows(1_200);
    // The engine of the second request does not have the newest key yet.
    let engine = Local::new(|request| if request == 1 { OLD } else { NEW });
    let report = table.run("v", &engine).rules.remove(0);
    assert_eq!(
        (report.rewrapped, report.contended, report.complete),
        (1_200, 500, true),
        "{report:?}"
    );
    assert_eq!(table.count_new(), "1200");
}

#[test]
fn a_request_that_is_too_large_is_divided() {
    let table = Table::with_rows(100);
    let engine = Local {
        values_max: 30,
        ..Local::new(|_| NEW)
    };
    let report = table.run("v", &engine).rules.remove(0);
    assert_eq!(
        (report.rewrapped, report.complete),
        (100, true),
        "{report:?}"
    );
    assert_eq!(engine.carried_out.lock().unwrap()[..4], [25; 4]);
    for id in 0..100 {
        table.has(id.into(), id);
    }
    // A value that no request can contain is left unchanged, and the others are rewrapped.
    table.sql(&format!(
        "UPDATE t SET v = '\\x{}' WHERE id = 7",
        hex(&envelope(OLD, 7))
    ));
    let engine = Local {
        values_max: 0,
        ..Local::new(|_| NEW)
    };
    let report = table.run("v", &engine).rules.remove(0);
    assert_eq!(
        report.left.get(&LeftReason::TooLarge),
        Some(&100),
        "{report:?}"
    );
}

#[test]
fn an_envelope_that_does_not_fit_its_column_is_left() {
    let table = Table::with_rows(0);
    let text = format!("sw1:{}", URL_SAFE_NO_PAD.encode(&envelope(OLD, 1)[3..]));
    table.sql(&format!("INSERT INTO t VALUES (1, NULL, '{text}')"));
    let limit = text.len() + 3;
    table.sql(&format!("ALTER TABLE t ALTER s TYPE varchar({limit})"));
    let report = table.run("s", &Local::new(|_| NEW)).rules.remove(0);
    assert_eq!(
        (report.rewrapped, report.left.get(&LeftReason::TooLong)),
        (0, Some(&1)),
        "{report:?}"
    );
    assert_eq!(table.sql("SELECT s FROM t"), text);
    table.sql(&format!(
        "ALTER TABLE t ALTER s TYPE varchar({})",
        limit + 1
    ));
    let report = table.run("s", &Local::new(|_| NEW)).rules.remove(0);
    assert_eq!(
        (report.rewrapped, report.complete, report.left.len()),
        (1, true, 0),
        "{report:?}"
    );
}

#[test]
fn privileged_roles_are_rejected() {
    let table = Table::with_rows(3);
    let password = Postgres::shared().password();
    for (name, rights, why) in [
        ("rewrap_super", "SUPERUSER", Some("is a superuser")),
        (
            "rewrap_maker",
            "CREATEROLE",
            Some("may make roles or replicate"),
        ),
        (
            "rewrap_writer",
            "IN ROLE pg_write_all_data",
            Some("is a member of pg_write_all_data"),
        ),
        (
            "rewrap_disguised",
            "SUPERUSER; ALTER ROLE rewrap_disguised SET role = sealwire",
            Some("is a superuser"),
        ),
        ("rewrap_only", "BYPASSRLS", None),
    ] {
        table.sql(&format!(
            "CREATE ROLE {name} LOGIN PASSWORD '{password}' {rights}"
        ));
        table.sql(&format!("GRANT SELECT (id, v), UPDATE (v) ON t TO {name}"));
        let mut job = table.job("v");
        job.database.url = job
            .database
            .url
            .replace("user=sealwire", &format!("user={name}"));
        let prepared = block_on(job.prepare());
        match why {
            None => assert!(prepared.is_ok(), "{name}: {:?}", prepared.err()),
            Some(why) => {
                let error = prepared.err().unwrap().to_string();
                assert!(
                    error.starts_with(&format!("the database's role {name} {why}")),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn functions_of_owners_are_named_before_anything_is_written() {
    let table = Table::with_rows(3);
    table.sql(
        "SET ROLE sealwire; CREATE FUNCTION own(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'; \
         CREATE INDEX ON t ((own(id))); CREATE DOMAIN own_text AS text; ALTER TABLE t ADD n own_text",
    );
    let prepared = block_on(table.job("v").prepare()).unwrap();
    let expected = "public.t uses public.own(integer), public.own_text, which run with the rights of this role";
    assert!(
        prepared
            .warnings()
            .iter()
            .any(|warning| warning.starts_with(expected)),
        "{:?}",
        prepared.warnings()
    );
}
