//! Tests of `sealwire rewrap database`: a real PostgreSQL over TLS, a real engine over mutual TLS,
//! and the built program.
//!
//! `SEALWIRE_KILL_ROUNDS` sets the number of kills. The default is 10, and 1,000 is the long form.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealwire_crypto::Envelope;
use sealwire_testkit::{Database, Postgres};
use serde_json::Value;

use super::{Dev, keys, ok, refused, sealwire, soon, spawn};

/// An engine, and the database of an application.
struct Shop {
    dev: Dev,
    database: Database<'static>,
}

impl Shop {
    fn start(schema: &str, rules: &str) -> Self {
        Self::with(Dev::start(), schema, rules)
    }

    fn with(dev: Dev, schema: &str, rules: &str) -> Self {
        let database = Postgres::shared().database().unwrap();
        database
            .sql(&format!("SET ROLE sealwire; {schema}"))
            .unwrap();
        dev.write("password", Postgres::shared().password());
        dev.write("rewrap.toml", rules);
        Self { dev, database }
    }

    fn arguments(&self, options: &[&str]) -> Vec<String> {
        let ca = Postgres::shared().certificates().ca.display().to_string();
        let url = self.database.tls_url();
        let database = [
            "rewrap",
            "database",
            "--database",
            &url,
            "--database-ca",
            &ca,
        ];
        let files = [
            "--database-password-file",
            "password",
            "--rules",
            "rewrap.toml",
        ];
        let all = [&database[..], &files, options].concat();
        self.dev
            .arguments(&all)
            .into_iter()
            .map(ToOwned::to_owned)
            .collect()
    }

    /// Runs the command. Returns its report, standard error and exit status.
    fn rewrap(&self, options: &[&str]) -> (Value, String, i32) {
        let arguments = self.arguments(&[&["--json", "--rate", "0"], options].concat());
        let output = sealwire(
            self.dev.path(),
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        let said = String::from_utf8(output.stderr).unwrap();
        let report =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {said}"));
        (report, said, output.status.code().unwrap())
    }

    /// Runs the command. Returns its report as text, and what it printed to standard error.
    fn text(&self, options: &[&str]) -> String {
        let arguments = self.arguments(&[&["--rate", "0"], options].concat());
        let output = sealwire(
            self.dev.path(),
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        [output.stderr, output.stdout].concat().try_into().unwrap()
    }

    fn refused(&self, rules: &str, says: &str) {
        self.dev.write("rewrap.toml", rules);
        let arguments = self.arguments(&[]);
        refused(
            self.dev.path(),
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
            1,
            says,
        );
    }

    /// Encrypts texts to the newest key.
    fn seal(&self, texts: &[String], options: &[&str]) -> Vec<String> {
        self.dev
            .write("plain.json", &serde_json::to_string(texts).unwrap());
        let sealed = self
            .dev
            .ok(&[&["encrypt", "plain.json", "--compact"], options].concat());
        serde_json::from_str(&sealed).unwrap()
    }

    /// Decrypts envelopes. All of them must open.
    fn open(&self, envelopes: &[String], options: &[&str]) -> Vec<String> {
        self.dev
            .write("sealed.json", &serde_json::to_string(envelopes).unwrap());
        serde_json::from_str(
            &self
                .dev
                .ok(&[&["decrypt", "sealed.json", "--compact"], options].concat()),
        )
        .unwrap()
    }

    /// Rotates the key. Returns the ids of the old and the new key once the engine encrypts to the
    /// new one.
    fn rotate(&self) -> (String, String) {
        let key = || key_of(&self.seal(&["x".to_owned()], &[])[0]);
        let old = key();
        let made = keys(
            &self
                .dev
                .operate(&["apps", "rotate", "demo", "--suite", "p256-psk", "--json"]),
        );
        soon(|| key() == made[0].0);
        (old, made[0].0.clone())
    }

    fn sql(&self, sql: &str) -> String {
        self.database
            .sql(sql)
            .unwrap_or_else(|error| panic!("{sql:.200}: {error}"))
    }

    /// Inserts rows, in several statements: an argument of a program has a limit.
    fn insert(&self, table: &str, rows: &[String]) {
        for rows in rows.chunks(100) {
            self.sql(&format!("INSERT INTO {table} VALUES {}", rows.join(", ")));
        }
    }

    /// Returns the rows of a query with two columns.
    fn pairs(&self, sql: &str) -> BTreeMap<String, String> {
        let rows = self.sql(sql);
        rows.lines()
            .map(|row| row.split_once('|').unwrap())
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .collect()
    }
}

fn key_of(envelope: &str) -> String {
    Envelope::from_text(envelope.as_bytes())
        .unwrap_or_else(|| panic!("no envelope: {envelope}"))
        .key_id
        .to_string()
}

/// Returns the hexadecimal digits of the binary envelope with the bytes of a text envelope.
fn to_binary(envelope: &str) -> String {
    let bytes = URL_SAFE_NO_PAD
        .decode(envelope.strip_prefix("sw1:").unwrap())
        .unwrap();
    [&[0x53, 0x57, 0x01][..], &bytes]
        .concat()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn to_text(hex: &str) -> String {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
    format!(
        "sw1:{}",
        URL_SAFE_NO_PAD.encode(bytes.strip_prefix(&[0x53, 0x57, 0x01]).unwrap())
    )
}

fn count(report: &Value, rule: usize, name: &str) -> u64 {
    report["rules"][rule][name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} is not in {report}"))
}

/// Returns the numbers of envelopes by key, with the report's word on whether the key is newest.
fn by_key(report: &Value, rule: usize) -> BTreeMap<String, (u64, Option<bool>)> {
    let keys = report["rules"][rule]["keys"].as_array().unwrap().iter();
    keys.map(|key| {
        (
            key["key_id"].as_str().unwrap().to_owned(),
            (key["values"].as_u64().unwrap(), key["newest"].as_bool()),
        )
    })
    .collect()
}

fn rule(table: &str, column: &str, more: &str) -> String {
    format!("[[rule]]\ntable = \"{table}\"\ncolumn = \"{column}\"\napp = \"demo\"\n{more}\n")
}

const CUSTOMERS: &str = "
    CREATE SCHEMA shop;
    CREATE TABLE shop.customers (id bigint PRIMARY KEY, ssn varchar(400), photo bytea, note text, updates int DEFAULT 0);
    CREATE FUNCTION shop.touch() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN NEW.updates := OLD.updates + 1; RETURN NEW; END';
    CREATE TRIGGER touch BEFORE UPDATE ON shop.customers FOR EACH ROW EXECUTE FUNCTION shop.touch();";

const ROWS: usize = 700;

/// Fills the table: one value in ten is null, and one is not encrypted. Returns the plaintexts.
fn fill_customers(shop: &Shop) -> Vec<String> {
    let texts: Vec<String> = (0..ROWS).map(|id| format!("secret {id}")).collect();
    let (texts_sealed, photos_sealed) = (
        shop.seal(&texts, &[]),
        shop.seal(&texts, &["--suite", "xaes"]),
    );
    let row = |id: usize| {
        let (ssn, photo) = match id % 10 {
            0 => ("NULL".to_owned(), "NULL".to_owned()),
            1 => (format!("'plain {id}'"), format!("'plain {id}'")),
            _ => (
                format!("'{}'", texts_sealed[id]),
                format!("'\\x{}'", to_binary(&photos_sealed[id])),
            ),
        };
        format!("({id}, {ssn}, {photo}, md5('{id}'))")
    };
    shop.insert("shop.customers", &(0..ROWS).map(row).collect::<Vec<_>>());
    texts
}

#[test]
fn envelopes_in_columns_move_to_the_newest_key() {
    let rules = rule("shop.customers", "ssn", "") + &rule("customers", "photo", "key = 'id'");
    let shop = Shop::start(CUSTOMERS, &rules);
    let texts = fill_customers(&shop);
    shop.dev.operate(&["apps", "create", "other"]);
    soon(|| {
        let arguments = shop
            .dev
            .arguments(&["encrypt", "plain.json", "--app", "other"]);
        sealwire(shop.dev.path(), &arguments).status.success()
    });
    let foreign = shop
        .seal(&["foreign".to_owned()], &["--app", "other"])
        .remove(0);
    shop.sql(&format!(
        "INSERT INTO shop.customers VALUES (9001, '{foreign}', NULL), (9002, 'sw1:broken', NULL)"
    ));
    let (old, new) = shop.rotate();
    let others = "SELECT md5(string_agg(concat_ws(' ', id, note, ssn IS NULL, photo IS NULL), '|' ORDER BY id)) \
                  FROM shop.customers";
    let (before, envelopes) = (shop.sql(others), (ROWS / 10 * 8) as u64);

    // A dry run tells which key is newest, and changes nothing.
    let all = "SELECT md5(string_agg(c::text, '|' ORDER BY id)) FROM shop.customers c";
    let untouched = shop.sql(all);
    let (report, said, status) = shop.rewrap(&["--dry-run"]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(by_key(&report, 0)[&old], (envelopes, Some(false)));
    assert_eq!(by_key(&report, 0)[&new], (0, Some(true)));
    assert_eq!(
        (count(&report, 0, "nulls"), count(&report, 0, "plain")),
        (70, 70)
    );
    assert_eq!(shop.sql(all), untouched);

    let printed = shop.text(&["--dry-run"]);
    assert!(
        printed.contains("shop.customers.ssn of app demo: 702 rows, 70 null, 70 not encrypted"),
        "{printed}"
    );
    assert!(
        printed.contains(&format!("key {old}         560  older")),
        "{printed}"
    );

    // Values that do not open are left and named by their row. Nothing of a value is printed.
    let (report, said, status) = shop.rewrap(&[]);
    assert!(
        status == 1 && said.contains("2 values were left and are not under the newest key"),
        "{said}"
    );
    assert!(
        said.contains("warning: shop.customers: each rewrapped value fires touch"),
        "{said}"
    );
    assert_eq!(
        (count(&report, 0, "rewrapped"), count(&report, 0, "passes")),
        (envelopes, 2),
        "{report}"
    );
    assert_eq!(by_key(&report, 0)[&new], (envelopes, Some(true)));
    assert!(!by_key(&report, 0).contains_key(&old), "{report}");
    let left = report["rules"][0]["left_values"].as_array().unwrap();
    for (key, reason) in [("9001", "cannot_open"), ("9002", "malformed")] {
        assert!(
            left.contains(&serde_json::json!({ "key": key, "reason": reason })),
            "{report}"
        );
    }
    let printed = format!("{report}{said}");
    assert!(
        !printed.contains("sw1:") && !printed.contains("secret") && !printed.contains("plain "),
        "{printed}"
    );
    let row = shop.sql("SELECT ssn FROM shop.customers WHERE id = 9001");
    assert_eq!(row, foreign, "a value that does not open is as before");

    // The suite of the photos was another: they moved to the app's suite.
    assert_eq!(
        (count(&report, 1, "rewrapped"), by_key(&report, 1)[&new]),
        (envelopes, (envelopes, Some(true)))
    );
    assert_eq!(
        shop.sql(others),
        before,
        "other columns and rows are as before"
    );
    assert_eq!(
        shop.sql("SELECT DISTINCT updates FROM shop.customers ORDER BY 1"),
        "0\n2",
        "one update per value"
    );
    shop.sql("DELETE FROM shop.customers WHERE id > 9000");

    // Another run finds nothing to do. Then the old key is not needed.
    let untouched = shop.sql(all);
    let (report, said, status) = shop.rewrap(&[]);
    assert_eq!(
        (
            status,
            count(&report, 0, "rewrapped"),
            count(&report, 0, "passes")
        ),
        (0, 0, 1),
        "{said}"
    );
    assert_eq!(shop.sql(all), untouched);
    shop.dev.operate(&["apps", "disable", "demo", &old]);
    let sealed = shop.pairs("SELECT id, ssn FROM shop.customers WHERE ssn LIKE 'sw1:%' ORDER BY 1");
    let opened = shop.open(&sealed.values().cloned().collect::<Vec<_>>(), &[]);
    let photos = shop.pairs(
        "SELECT id, encode(photo, 'hex') FROM shop.customers WHERE length(photo) > 20 ORDER BY 1",
    );
    let photos_opened = shop.open(
        &photos.values().map(|hex| to_text(hex)).collect::<Vec<_>>(),
        &[],
    );
    for (ids, opened) in [(&sealed, opened), (&photos, photos_opened)] {
        assert_eq!(ids.len() as u64, envelopes);
        for (id, opened) in ids.keys().zip(opened) {
            assert_eq!(opened, texts[id.parse::<usize>().unwrap()]);
        }
    }
    shop.dev.stop();
}

#[test]
fn contexts_and_keys_can_have_several_columns() {
    let schema = "CREATE TABLE notes (tenant text, id int, body text, label text, PRIMARY KEY (tenant, id)) \
        PARTITION BY LIST (tenant); CREATE TABLE notes_a PARTITION OF notes FOR VALUES IN ('a'); \
        CREATE TABLE notes_b PARTITION OF notes FOR VALUES IN ('b')";
    let shop = Shop::start(
        schema,
        &rule("notes", "body", "context = 'notes.{tenant}.{id}.{label}'"),
    );
    for (tenant, id) in [("a", 1), ("a", 2), ("b", 1), ("b", 2)] {
        let context = format!("notes.{tenant}.{id}.x");
        let sealed = shop
            .seal(&[format!("{tenant} {id}")], &["--context", &context])
            .remove(0);
        shop.sql(&format!(
            "INSERT INTO notes VALUES ('{tenant}', {id}, '{sealed}', 'x')"
        ));
    }
    let elsewhere = shop
        .seal(&["moved".to_owned()], &["--context", "notes.a.7.x"])
        .remove(0);
    shop.sql(&format!(
        "INSERT INTO notes VALUES ('a', 8, '{elsewhere}', 'x'), ('a', 9, '{elsewhere}', NULL)"
    ));
    let (_, new) = shop.rotate();
    let (report, said, status) = shop.rewrap(&[]);
    assert!(
        status == 1 && count(&report, 0, "rewrapped") == 4,
        "{report}{said}"
    );
    assert_eq!(
        report["rules"][0]["left"],
        serde_json::json!({ "cannot_open": 1, "no_context": 1 })
    );
    let left = report["rules"][0]["left_values"].as_array().unwrap();
    assert!(
        left.contains(&serde_json::json!({ "key": "a,8", "reason": "cannot_open" })),
        "{report}"
    );
    for (tenant, id) in [("a", 1), ("a", 2), ("b", 1), ("b", 2)] {
        let sealed = shop.sql(&format!(
            "SELECT body FROM notes WHERE (tenant, id) = ('{tenant}', {id})"
        ));
        assert_eq!(key_of(&sealed), new);
        let context = format!("notes.{tenant}.{id}.x");
        assert_eq!(
            shop.open(&[sealed], &["--context", &context]),
            [format!("{tenant} {id}")]
        );
    }
    shop.dev.stop();
}

#[test]
fn rules_that_do_not_fit_the_database_say_what_to_do() {
    let schema = "CREATE SCHEMA one; CREATE SCHEMA two; CREATE TABLE one.t (id int PRIMARY KEY, v text, j jsonb); \
        CREATE TABLE two.t (id int, v text); CREATE VIEW one.w AS SELECT * FROM one.t";
    let shop = Shop::start(schema, "");
    shop.sql(
        "CREATE TABLE one.foreign_owner (id int PRIMARY KEY, v text); GRANT SELECT ON one.foreign_owner TO sealwire",
    );
    for (rules, says) in [
        (rule("one.t", "j", ""), "rule 1: one.t.j has type jsonb"),
        (
            rule("t", "v", ""),
            "t is ambiguous: name one of one.t, two.t",
        ),
        (rule("two.t", "v", ""), "two.t has no primary key"),
        (
            rule("two.t", "v", "key = 'id'"),
            "no unique index of exactly id",
        ),
        (rule("one.w", "v", ""), "is a view"),
        (rule("three.t", "v", ""), "table three.t does not exist"),
        (
            rule("one.t", "w", ""),
            "one.t has no column w: it has id, v, j",
        ),
        (
            rule("one.t", "v", "context = '{w}'"),
            "one.t has no column w",
        ),
        (
            rule("one.t", "v", "") + &rule("one.t", "v", ""),
            "rule 2: names the column of rule 1",
        ),
        (
            rule("one.foreign_owner", "v", ""),
            "GRANT SELECT (v, id), UPDATE (v) ON one.foreign_owner",
        ),
        (
            rule("one.t", "v", "mask = 'x'"),
            "rewrap.toml: line 5, column 1: unknown field `mask`",
        ),
    ] {
        shop.refused(&rules, says);
    }
    shop.sql(
        "ALTER TABLE one.t ENABLE ROW LEVEL SECURITY; ALTER TABLE one.t FORCE ROW LEVEL SECURITY",
    );
    shop.refused(
        &rule("one.t", "v", ""),
        "one.t: database: query would be affected by row-level security policy",
    );
    // The privileges that the error names are enough.
    let sealed = shop.seal(&["value".to_owned()], &[]).remove(0);
    shop.sql(&format!(
        "INSERT INTO one.foreign_owner VALUES (1, '{sealed}')"
    ));
    shop.sql("REVOKE SELECT ON one.foreign_owner FROM sealwire");
    shop.sql("GRANT SELECT (v, id), UPDATE (v) ON one.foreign_owner TO sealwire");
    shop.dev
        .write("rewrap.toml", &rule("one.foreign_owner", "v", ""));
    shop.rotate();
    let (report, said, status) = shop.rewrap(&[]);
    assert!(status == 0 && count(&report, 0, "rewrapped") == 1, "{said}");
    let help = ok(shop.dev.path(), &["rewrap", "database", "--help"]);
    for word in [
        "[[rule]]",
        "sealwire rewrap database --database",
        "docs/rewrap.md",
        "--rate",
    ] {
        assert!(help.contains(word), "{word} is not in\n{help}");
    }
    refused(shop.dev.path(), &["rewrap"], 2, "Usage");
    refused(shop.dev.path(), &["rewrap", "database"], 2, "--rules");
    refused(
        shop.dev.path(),
        &["rewrap", "nothing.json"],
        1,
        "nothing.json: No such file",
    );
    shop.dev.stop();
}

/// Rounds of changes by the application to each row.
const CHANGES: usize = 6;
const CHURNED: usize = 200;

#[test]
fn a_change_by_the_application_is_never_overwritten() {
    let schema = "CREATE TABLE t (id int PRIMARY KEY, version int, v text); \
        CREATE TABLE next (id int, version int, v text, PRIMARY KEY (id, version)); \
        CREATE PROCEDURE churn() LANGUAGE plpgsql AS $$ DECLARE n record; BEGIN \
            FOR n IN SELECT * FROM next ORDER BY version, id % 7, id LOOP \
                UPDATE t SET v = n.v, version = n.version WHERE id = n.id; \
                PERFORM pg_sleep(0.001); COMMIT; \
            END LOOP; END $$";
    let shop = Shop::start(schema, &rule("t", "v", ""));
    // All of the application's values are under the old key, so that each change gives the job
    // work.
    let texts: Vec<String> = (0..=CHANGES)
        .flat_map(|version| (0..CHURNED).map(move |id| format!("{id} {version}")))
        .collect();
    let sealed = shop.seal(&texts, &["--key-scope", "field"]);
    let row = |at: usize| format!("({}, {}, '{}')", at % CHURNED, at / CHURNED, sealed[at]);
    shop.insert("t", &(0..CHURNED).map(row).collect::<Vec<_>>());
    shop.insert(
        "next",
        &(CHURNED..sealed.len()).map(row).collect::<Vec<_>>(),
    );
    let (_, new) = shop.rotate();
    let is_over = AtomicBool::new(false);
    let check = |version: Option<usize>| {
        let rows = shop.pairs("SELECT id || ' ' || version, v FROM t");
        let opened = shop.open(&rows.values().cloned().collect::<Vec<_>>(), &[]);
        assert_eq!(
            opened,
            rows.keys().cloned().collect::<Vec<_>>(),
            "an older value of a row came back"
        );
        assert_eq!(rows.len(), CHURNED);
        assert!(
            version
                .is_none_or(|version| rows.keys().all(|row| row.ends_with(&format!(" {version}"))))
        );
        rows
    };
    let (mut runs, mut contended, mut rewrapped) = (0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            shop.database.sql("CALL churn()").unwrap();
            is_over.store(true, Ordering::Release);
        });
        while !is_over.load(Ordering::Acquire) {
            let (report, ..) = shop.rewrap(&[]);
            runs += 1;
            contended += count(&report, 0, "contended");
            rewrapped += count(&report, 0, "rewrapped");
            check(None);
        }
    });
    let (report, said, status) = shop.rewrap(&[]);
    assert!(
        status == 0 && report["rules"][0]["complete"] == true,
        "{said}"
    );
    println!(
        "{runs} runs beside the application rewrapped {rewrapped}; {contended} had changed meanwhile"
    );
    assert!(
        check(Some(CHANGES))
            .values()
            .all(|value| key_of(value) == new)
    );
    shop.dev.stop();
}

/// A transaction of the application that stays open, in a `psql` of its own.
struct OpenTransaction {
    psql: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl OpenTransaction {
    fn begin(database: &Database<'_>, statement: &str) -> Self {
        let mut command = Postgres::shared().command("psql");
        command
            .args(["--no-psqlrc", "--dbname", database.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut psql = command.spawn().unwrap();
        let lines = BufReader::new(psql.stdout.take().unwrap()).lines();
        let mut transaction = Self { psql, lines };
        transaction.run(&format!("BEGIN; {statement};"), "UPDATE 1");
        transaction
    }

    fn commit(mut self) {
        self.run("COMMIT;", "COMMIT");
        drop(self.psql.stdin.take());
        assert!(self.psql.wait().unwrap().success());
    }

    /// Runs statements and waits for a line of the result.
    fn run(&mut self, statements: &str, result: &str) {
        writeln!(self.psql.stdin.as_mut().unwrap(), "{statements}").unwrap();
        let found = self
            .lines
            .by_ref()
            .map(|line| line.unwrap())
            .any(|line| line == result);
        assert!(found, "psql ended without {result}");
    }
}

#[test]
fn a_locked_row_is_done_once_its_transaction_ends() {
    let shop = Shop::start(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        &rule("t", "v", ""),
    );
    let mut sealed = shop.seal(
        &(0..=20).map(|id| format!("value {id}")).collect::<Vec<_>>(),
        &[],
    );
    let by_application = sealed.pop().unwrap();
    shop.insert(
        "t",
        &sealed
            .iter()
            .enumerate()
            .map(|(id, v)| format!("({id}, '{v}')"))
            .collect::<Vec<_>>(),
    );
    let (_, new) = shop.rotate();
    let transaction = OpenTransaction::begin(
        &shop.database,
        &format!("UPDATE t SET v = '{by_application}' WHERE id = 5"),
    );
    let arguments = shop.arguments(&["--json"]);
    let job = spawn(
        shop.dev.path(),
        &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    // The job does all other rows while the transaction is open.
    let values = || shop.pairs("SELECT id, v FROM t");
    soon(|| {
        values()
            .values()
            .filter(|value| key_of(value) == new)
            .count()
            == 19
    });
    transaction.commit();
    let output = job.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        count(&report, 0, "contended") > 0 && count(&report, 0, "rewrapped") == 20,
        "{report}"
    );
    let values = values();
    assert!(values.values().all(|value| key_of(value) == new));
    assert_eq!(
        shop.open(&[values["5"].clone()], &[]),
        ["value 20"],
        "the application's value"
    );
    shop.dev.stop();
}

#[test]
fn values_sealed_outside_move_to_the_newest_published_key() {
    let shop = Shop::start(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        &rule("t", "v", ""),
    );
    let publish = || {
        let made = keys(
            &shop
                .dev
                .operate(&["apps", "rotate", "demo", "--outside", "--json"]),
        );
        let signer = shop.dev.operate(&["apps", "public-keys", "demo"]);
        let signer = signer
            .lines()
            .find_map(|line| line.strip_prefix("signer"))
            .unwrap()
            .trim()
            .to_owned();
        let arguments = ["public-keys", "--signer", &signer, "--json"];
        soon(|| {
            let output = sealwire(shop.dev.path(), &shop.dev.arguments(&arguments));
            String::from_utf8(output.stdout)
                .unwrap()
                .contains(&made[0].0)
        });
        shop.dev.write("keys.json", &shop.dev.ok(&arguments));
        (made[0].0.clone(), signer)
    };
    let (published, signer) = publish();
    let inside = shop.seal(&["inside".to_owned()], &[]).remove(0);
    shop.dev.write("plain.json", "[\"outside\"]");
    let seal = [
        "seal",
        "plain.json",
        "--public-keys",
        "keys.json",
        "--signer",
        &signer,
        "--compact",
    ];
    let outside: Vec<String> = serde_json::from_str(&ok(shop.dev.path(), &seal)).unwrap();
    assert_eq!(key_of(&outside[0]), published);
    shop.sql(&format!(
        "INSERT INTO t VALUES (1, '{inside}'), (2, '{}'), (3, '{inside}')",
        outside[0]
    ));
    let (_, new) = shop.rotate();
    let (published, _) = publish();
    let (report, said, status) = shop.rewrap(&[]);
    assert!(
        status == 0 && count(&report, 0, "rewrapped") == 3,
        "{report}{said}"
    );
    let expected = [(new, (2, Some(true))), (published.clone(), (1, Some(true)))];
    assert_eq!(by_key(&report, 0), BTreeMap::from(expected));
    let moved = shop.sql("SELECT v FROM t WHERE id = 2");
    assert_eq!(key_of(&moved), published);
    assert!(
        shop.dev
            .ok(&["inspect", &moved, "--json"])
            .contains("\"outside\":true")
    );
    assert_eq!(shop.open(&[moved], &[]), ["outside"]);
    shop.dev.stop();
}

#[test]
fn a_job_waits_for_an_engine_that_restarts() {
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v text)";
    let shop = Shop::with(Dev::start_to_come_again(), schema, &rule("t", "v", ""));
    let texts: Vec<String> = (0..100).map(|id| format!("{id:03}")).collect();
    let sealed = shop.seal(&texts, &[]);
    shop.insert(
        "t",
        &sealed
            .iter()
            .enumerate()
            .map(|(id, v)| format!("({id}, '{v}')"))
            .collect::<Vec<_>>(),
    );
    let (_, new) = shop.rotate();
    // Ten values are a page, so that the engine ends between two pages.
    let arguments = shop.arguments(&["--json", "--rate", "10"]);
    let job = spawn(
        shop.dev.path(),
        &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let Shop { mut dev, database } = shop;
    let moved = || {
        database
            .sql("SELECT v FROM t")
            .unwrap()
            .lines()
            .filter(|value| key_of(value) == new)
            .count()
    };
    soon(|| moved() > 0);
    dev.kill();
    let shop = Shop {
        dev: dev.again(),
        database,
    };
    let output = job.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let values = shop.pairs("SELECT lpad(id::text, 3, '0'), v FROM t");
    assert!(values.values().all(|value| key_of(value) == new));
    assert_eq!(
        shop.open(&values.into_values().collect::<Vec<_>>(), &[]),
        texts
    );
    shop.dev.stop();
}

#[test]
fn a_killed_job_leaves_nothing_lost_or_half() {
    let rounds = std::env::var("SEALWIRE_KILL_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap());
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v text, note text, b bytea)";
    let shop = Shop::start(schema, &(rule("t", "v", "") + &rule("t", "b", "")));
    let texts: Vec<String> = (0..ROWS).map(|id| format!("{id:06}")).collect();
    let sealed = shop.seal(&texts, &["--key-scope", "field"]);
    let row = |id: usize| {
        format!(
            "({id}, '{0}', 'note {id}', '\\x{1}')",
            sealed[id],
            to_binary(&sealed[id])
        )
    };
    shop.insert("t", &(0..ROWS).map(row).collect::<Vec<_>>());
    let others = "SELECT count(*) || md5(string_agg(id || note, '|' ORDER BY id)) FROM t";
    let before = shop.sql(others);
    let keys_now = || -> BTreeMap<String, usize> {
        let (mut keys, mut all) = (BTreeMap::new(), Vec::new());
        for (id, values) in
            shop.pairs("SELECT lpad(id::text, 6, '0'), v || ' ' || encode(b, 'hex') FROM t")
        {
            let (text, binary) = values.split_once(' ').unwrap();
            all.extend([(id.clone(), text.to_owned()), (id, to_text(binary))]);
        }
        let (ids, envelopes): (Vec<String>, Vec<String>) = all.into_iter().unzip();
        assert_eq!(
            shop.open(&envelopes, &[]),
            ids,
            "a value was lost or is half"
        );
        envelopes
            .iter()
            .for_each(|envelope| *keys.entry(key_of(envelope)).or_default() += 1);
        keys
    };
    let (mut pause, mut in_the_middle) = (0x9e37_79b9_u64, 0);
    for round in 0..rounds {
        if round % 3 == 0 {
            shop.rotate();
        }
        let arguments = shop.arguments(&["--rate", "4000"]);
        let mut job: Child = spawn(
            shop.dev.path(),
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        // xorshift: a different moment each time, but the same sequence in every run.
        pause ^= pause << 13;
        pause ^= pause >> 7;
        pause ^= pause << 17;
        std::thread::sleep(Duration::from_millis(30 + pause % 400));
        job.kill().unwrap();
        job.wait().unwrap();
        in_the_middle += u32::from(keys_now().len() > 1);
    }
    println!("{rounds} kills, {in_the_middle} of them left some values under the old key");
    let (_, new) = shop.rotate();
    let (report, said, status) = shop.rewrap(&[]);
    assert!(status == 0 && count(&report, 0, "passes") > 1, "{said}");
    assert_eq!(keys_now(), BTreeMap::from([(new, 2 * ROWS)]));
    assert_eq!(
        shop.sql(others),
        before,
        "other columns and rows are as before"
    );
    shop.dev.stop();
}
