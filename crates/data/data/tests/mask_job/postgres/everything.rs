//! A database with every built-in type and every kind of table, masked as a whole while other
//! sessions change it, and stopped at random times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sealwire_data::mask_job::{JobError, Progress, mask_database};
use sealwire_mask_rules::Rules;
use sealwire_testkit::Postgres;

use super::{Pair, block_on};
use crate::common::{Local, rules};

/// Number of jobs that are stopped, unless the environment sets another number.
const STOPS: u32 = 8;

/// The prefix of every value that is masked, by which a dump can be searched.
const ORIGINAL: &str = "orig-";

/// Two values of each built-in type. Types of newer servers have columns without values.
const VALUES: [(&str, &str, &str); 69] = [
    ("aclitem", "sealwire=r/sealwire", "sealwire=w*/sealwire"),
    ("bit", "1", "0"),
    ("bool", "t", "f"),
    ("box", "(1,1),(0,0)", "(2.5,2),(1,1)"),
    ("bpchar", "a  ", ""),
    ("bytea", "\\x00ff0a5c", "\\x"),
    ("char", "z", ""),
    ("cid", "1", "4294967295"),
    ("cidr", "10.0.0.0/8", "2001:db8::/32"),
    ("circle", "<(0,0),1>", "<(1.5,2),3>"),
    ("date", "infinity", "4713-01-01 BC"),
    (
        "datemultirange",
        "{[2020-01-01,2020-02-01),[2021-01-01,)}",
        "{}",
    ),
    ("daterange", "[2020-01-01,2020-02-01)", "empty"),
    ("float4", "NaN", "-1.1754944e-38"),
    ("float8", "-Infinity", "0.30000000000000004"),
    ("inet", "10.0.0.1/8", "::1"),
    ("int2", "-32768", "32767"),
    ("int2vector", "1 2 3", ""),
    ("int4", "-2147483648", "2147483647"),
    ("int4multirange", "{[1,5),[7,9)}", "{}"),
    ("int4range", "[1,5)", "(,)"),
    ("int8", "-9223372036854775808", "9223372036854775807"),
    ("int8multirange", "{[1,5)}", "{}"),
    ("int8range", "[1,9223372036854775807)", "empty"),
    (
        "interval",
        "1 year -2 days 03:04:05.000006",
        "-178000000 years",
    ),
    (
        "json",
        "{\"b\":1, \"a\" : 1.0, \"b\": \"\\u0041\\t\"}",
        "null",
    ),
    ("jsonb", "{\"a\": [1, 2.50, \"x\\ny\"]}", "\"\\\\\""),
    ("jsonpath", "$.a[*] ? (@ > 1)", "lax $"),
    ("line", "{1,2,3}", "{0,-1,0.5}"),
    ("lseg", "[(0,0),(1,1)]", "[(1,2),(3,4)]"),
    ("macaddr", "08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"),
    (
        "macaddr8",
        "08:00:2b:01:02:03:04:05",
        "00:00:00:00:00:00:00:00",
    ),
    ("money", "12.34", "-92233720368547758.08"),
    ("name", "a name", ""),
    ("numeric", "123456789012345678901234567890.000", "NaN"),
    ("nummultirange", "{[1.5,2.5]}", "{}"),
    ("numrange", "[1.10,2.20]", "empty"),
    ("oid", "0", "4294967295"),
    ("oidvector", "1 2", ""),
    ("path", "[(0,0),(1,1),(2,0)]", "((0,0),(1,1))"),
    ("pg_lsn", "16/B374D848", "0/0"),
    ("pg_snapshot", "10:20:10,14,15", "1:1:"),
    ("point", "(1.5,-2)", "(0,0)"),
    ("polygon", "((0,0),(1,1),(2,0))", "((0,0))"),
    ("refcursor", "a cursor", ""),
    ("regclass", "pg_class", "pg_type"),
    ("regcollation", "\"C\"", "\"POSIX\""),
    ("regconfig", "english", "simple"),
    ("regdictionary", "simple", "english_stem"),
    ("regnamespace", "pg_catalog", "public"),
    ("regoperator", "+(integer,integer)", "-(integer,integer)"),
    ("regproc", "now", "version"),
    ("regprocedure", "abs(integer)", "now()"),
    ("regrole", "sealwire", "pg_monitor"),
    ("regtype", "integer", "text[]"),
    ("text", "tab\tline\nback\\slash\rend", "\\."),
    ("tid", "(1,2)", "(0,0)"),
    ("time", "24:00:00", "00:00:00.000001"),
    ("timestamp", "-infinity", "294276-12-31 23:59:59.999999"),
    (
        "timestamptz",
        "2020-03-29 01:30:00+00",
        "4713-01-01 00:00:00+00 BC",
    ),
    ("timetz", "10:00:00+02", "23:59:59.999999-15:59:59"),
    ("tsquery", "'fat' & !'rat'", "'a':*"),
    ("tsvector", "'a':1A 'cat':2 'it''s':3", ""),
    ("tsrange", "[\"2020-01-01 00:00:00\",)", "empty"),
    (
        "uuid",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "00000000-0000-0000-0000-000000000000",
    ),
    ("varbit", "10101", ""),
    ("varchar", "", "E'\\x'"),
    ("xid8", "18446744073709551615", "0"),
    ("xml", "<a b=\"c\">&amp;</a>", ""),
];

/// Tables of every kind. `orig-` begins each value that a rule masks.
const TABLES: &str = "\
    CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE SCHEMA side; \
    CREATE TYPE mood AS ENUM ('calm', 'mad as hell'); CREATE TYPE pair AS (a int, b text); \
    CREATE DOMAIN code AS text CHECK (length(VALUE) < 40); CREATE DOMAIN short_code AS code CHECK (VALUE <> ''); \
    CREATE TABLE own_types (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email citext UNIQUE, m mood, ms mood[], p pair, \
        ps pair[], c code, cs short_code[], h hstore, made text GENERATED ALWAYS AS (upper(email::text)) STORED); \
    INSERT INTO own_types (email, m, ms, p, ps, c, cs, h) SELECT 'orig-' || n || '@mail.test', 'mad as hell'::mood, '{calm,NULL}'::mood[], \
        row(n, 'a \"quoted\", text')::pair, ARRAY[row(n, NULL)::pair], 'code ' || n, ARRAY['x', 'y']::short_code[], 'k=>v, \"a b\"=>NULL'::hstore \
        FROM generate_series(1, 40) AS n; \
    CREATE TABLE side.numbered (id bigint GENERATED BY DEFAULT AS IDENTITY (START 7 INCREMENT 3), email text, s serial); \
    INSERT INTO side.numbered (email) SELECT 'orig-' || n || '@mail.test' FROM generate_series(1, 500) AS n; \
    CREATE TABLE parts (id int, holder text, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at); \
    CREATE TABLE parts_old PARTITION OF parts FOR VALUES FROM (MINVALUE) TO ('2000-01-01'); \
    CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM ('2000-01-01') TO ('2020-01-01') PARTITION BY HASH (id); \
    CREATE TABLE parts_new_0 PARTITION OF parts_new FOR VALUES WITH (MODULUS 2, REMAINDER 0); \
    CREATE TABLE side.parts_new_1 PARTITION OF parts_new FOR VALUES WITH (MODULUS 2, REMAINDER 1); \
    CREATE TABLE parts_rest PARTITION OF parts DEFAULT; \
    INSERT INTO parts SELECT n, 'orig-' || n, date '1990-01-01' + n * 40 FROM generate_series(1, 400) AS n; \
    CREATE TABLE family (id int, holder text CHECK (holder IS NOT NULL)); \
    CREATE TABLE child (extra text) INHERITS (family); CREATE TABLE side.grandchild () INHERITS (child); \
    INSERT INTO family VALUES (1, 'orig-family'); INSERT INTO child VALUES (2, 'orig-child', 'kept'); \
    INSERT INTO side.grandchild VALUES (3, 'orig-grandchild', 'kept'); \
    CREATE TABLE refers (email citext REFERENCES own_types (email)); INSERT INTO refers SELECT email FROM own_types; \
    CREATE VIEW shown AS SELECT id, email FROM own_types; \
    CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM parts; \
    CREATE MATERIALIZED VIEW counted_twice AS SELECT n * 2 AS n FROM counted; \
    CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
    CREATE TRIGGER touch BEFORE INSERT ON parts FOR EACH ROW EXECUTE FUNCTION touch()";

const RULES: &str = "\
    unknown = \"keep\"\n\
    [[rule]]\ncolumn = \"email\"\nmask = \"email\"\n\
    [[rule]]\ncolumn = \"holder\"\nmask = \"hash\"\n";

/// Rows of all tables.
const ROWS: u64 = 40 + 500 + 400 + 3 + 40 + 3;

/// A database with all of these types and tables, and one table of another owner. The functions of
/// that owner detect a role that runs them.
fn everything() -> Pair<'static> {
    let pair = Pair::with(TABLES);
    let names = pair.source.sql(
        "SELECT t.typname FROM pg_type t WHERE t.typnamespace = 'pg_catalog'::regnamespace \
         AND t.typtype IN ('b', 'r', 'm') AND t.typcategory <> 'A' AND t.typname <> ALL (ARRAY['gtsvector', 'pg_node_tree', \
             'pg_ndistinct', 'pg_dependencies', 'pg_mcv_list', 'pg_brin_bloom_summary', 'pg_brin_minmax_multi_summary', \
             'unknown']) ORDER BY 1",
    );
    let mut columns = vec![
        "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY".to_owned(),
        "email text".to_owned(),
    ];
    let mut first = vec!["'orig-every@mail.test'".to_owned()];
    let mut second = vec!["NULL".to_owned()];
    let mut found = 0;
    for name in names.expect("types").lines() {
        columns.push(format!("c_{name} pg_catalog.\"{name}\""));
        columns.push(format!("a_{name} pg_catalog.\"{name}\"[]"));
        let known = VALUES.iter().find(|(known, ..)| *known == name);
        found += u32::from(known.is_some());
        for (row, value) in [
            (&mut first, known.map(|known| known.1)),
            (&mut second, known.map(|known| known.2)),
        ] {
            let literal = value.map(|value| format!("'{}'", value.replace('\'', "''")));
            let array = literal.as_ref().map(|literal| {
                format!("ARRAY[{literal}, NULL, {literal}]::pg_catalog.\"{name}\"[]")
            });
            row.push(literal.unwrap_or_else(|| "NULL".to_owned()));
            row.push(array.unwrap_or_else(|| "NULL".to_owned()));
        }
    }
    assert!(found > 60, "{found} types have values");
    let nulls = vec!["NULL"; first.len()].join(", ");
    pair.source
        .sql(&format!(
            "SET ROLE sealwire; CREATE TABLE every ({}); INSERT INTO every OVERRIDING USER VALUE VALUES (0, {}), (0, {}), (0, {nulls})",
            columns.join(", "),
            first.join(", "),
            second.join(", ")
        ))
        .expect("every type");
    pair
}

/// Until `is_done`, changes tables that jobs do not read, and rows of tables that they read.
fn disturb(pair: &Pair<'static>, is_done: &AtomicBool) {
    while !is_done.load(Ordering::Relaxed) {
        let sql = "SET lock_timeout = '50ms'; CREATE TABLE passing (a text); INSERT INTO passing VALUES ('x'); \
                   UPDATE parts SET holder = holder WHERE id = 7; DROP TABLE passing";
        pair.source.sql(sql).expect("changes that wait for nobody");
        for change in [
            "ALTER TABLE family ADD later int",
            "TRUNCATE side.numbered",
            "ALTER TABLE every RENAME email TO mail",
        ] {
            // Between two jobs this change would succeed, so it is rolled back.
            let _ = pair.source.sql(&format!(
                "SET lock_timeout = '50ms'; BEGIN; {change}; ROLLBACK"
            ));
        }
    }
}

/// Compares all values that no rule masks, row by row.
fn compare(pair: &Pair<'static>) {
    for (table, order) in [
        ("every", "id"),
        ("own_types", "id"),
        ("side.numbered", "id"),
        ("parts", "id"),
        ("family", "id"),
        ("child", "id"),
        ("shown", "id"),
        ("counted_twice", "n"),
    ] {
        let columns = format!(
            "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = '{table}'::regclass \
             AND attnum > 0 AND NOT attisdropped AND attname NOT IN ('email', 'holder', 'made')"
        );
        let columns = pair.source.sql(&columns).expect("columns");
        let is_table =
            format!("SELECT relkind IN ('r', 'p') FROM pg_class WHERE oid = '{table}'::regclass");
        let is_table = pair.source.sql(&is_table).expect("kind") == "t";
        let place = if is_table { "tableoid::regclass" } else { "1" };
        pair.same(&format!(
            "SELECT {place}, row({columns})::text FROM {table} ORDER BY {order}"
        ));
    }
    for sql in [
        "SELECT count(*), count(DISTINCT email) FROM own_types JOIN refers USING (email)",
        "SELECT count(*), count(DISTINCT holder) FROM parts",
        "SELECT string_agg(concat(attrelid::regclass, '.', attname, attidentity, attgenerated), ' ' ORDER BY attrelid::regclass::text, attnum) FROM pg_attribute a \
         JOIN pg_class c ON c.oid = attrelid WHERE c.relnamespace::regnamespace::text IN ('public', 'side') AND c.relkind IN ('r', 'p')",
        "SELECT string_agg(concat(schemaname, sequencename, last_value), ' ' ORDER BY schemaname, sequencename) FROM pg_sequences",
        "SELECT string_agg(extname, ' ' ORDER BY extname) FROM pg_extension",
    ] {
        pair.same(sql);
    }
    assert_eq!(
        pair.target
            .sql("SELECT count(*) FROM own_types WHERE made <> upper(email::text)")
            .expect("counts"),
        "0"
    );
}

/// Searches a dump of the target without any code of this project.
fn search_dump(pair: &Pair<'static>) {
    let dump = |database: &sealwire_testkit::Database<'_>| {
        let server = Postgres::shared();
        let output = server
            .command("pg_dump")
            .arg("--inserts")
            .arg(database.name())
            .output()
            .expect("pg_dump");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout)
            .expect("UTF-8")
            .to_lowercase()
    };
    assert!(dump(&pair.source).matches(ORIGINAL).count() > 900);
    let left: Vec<String> = dump(&pair.target)
        .lines()
        .filter(|line| line.contains(ORIGINAL))
        .map(str::to_owned)
        .collect();
    assert!(left.is_empty(), "{left:#?}");
}

fn mask(
    pair: &Pair<'static>,
    rules: &Arc<Rules>,
    stop: impl Future<Output = ()>,
) -> Result<u64, JobError> {
    let job = pair.job();
    let done = mask_database(
        job,
        Arc::clone(rules),
        Local::new(rules),
        Arc::new(Progress::default()),
        stop,
    );
    block_on(done).map(|report| report.records)
}

#[test]
fn types_and_tables_arrive_during_concurrent_changes() {
    let pair = everything();
    let rules = rules(RULES);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| disturb(&pair, &is_done));
        let masked = mask(&pair, &rules, std::future::pending());
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(masked.expect("masks"), ROWS);
    });
    compare(&pair);
    search_dump(&pair);
    assert!(pair.verify(rules, 1_000_000).passed);
}

#[test]
fn a_job_that_is_stopped_at_any_moment_leaves_nothing() {
    let stops =
        std::env::var("SEALWIRE_STOPS").map_or(STOPS, |stops| stops.parse().expect("a number"));
    let pair = everything();
    let rules = rules(RULES);
    let mut longest = Duration::from_secs(1);
    let mut stopped = 0;
    // The times are the same in every run, but the state of the job at a time is not.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    while stopped < stops {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let moment = longest.mul_f64((state >> 11) as f64 / (1_u64 << 53) as f64);
        let began = Instant::now();
        match mask(&pair, &rules, async { tokio::time::sleep(moment).await }) {
            Err(JobError::Stopped) => {
                stopped += 1;
                pair.is_empty();
                let extensions = pair
                    .target
                    .sql("SELECT string_agg(extname, ' ') FROM pg_extension")
                    .expect("reads");
                assert_eq!(extensions, "plpgsql", "after {moment:?}");
            }
            Ok(records) => {
                assert_eq!(records, ROWS);
                // Most of the next times are within the job's duration.
                longest = began.elapsed().mul_f64(0.9);
                compare(&pair);
                pair.target
                    .sql("DROP SCHEMA public, side CASCADE; CREATE SCHEMA public")
                    .expect("empties");
                pair.target
                    .sql("ALTER SCHEMA public OWNER TO pg_database_owner")
                    .expect("gives");
            }
            Err(other) => panic!("after {moment:?}: {other}"),
        }
    }
    println!("{stopped} jobs were stopped within {longest:?}");
    assert_eq!(
        mask(&pair, &rules, std::future::pending()).expect("masks"),
        ROWS
    );
    compare(&pair);
}
