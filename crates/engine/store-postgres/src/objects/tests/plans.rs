//! Plans of the statements that read objects and terms. They must read by whole keys, whatever the
//! statistics are.

use crate::PostgresStore;
use crate::objects::{FENCES, RAISE_FENCE, add, change, read, reseal, sweep, walk, write};
use crate::session::PLANNER;
use crate::tests::{options, shared};

/// An index, and a part that the conditions of its scans must have.
type IndexCondition = (&'static str, &'static str);

/// Statements and the conditions of their index scans.
const STATEMENTS: [(&str, &str, &[IndexCondition]); 29] = [
    ("get", read::GET, &[("objects_pkey", "(id = ")]),
    (
        "count",
        read::COUNT,
        &[
            ("object_unique_pkey", "(hash = "),
            ("object_terms_pkey", "(hash = "),
        ],
    ),
    (
        "ids",
        read::IDS,
        &[
            ("object_unique_pkey", "(hash = "),
            ("object_terms_pkey", "(id > "),
        ],
    ),
    (
        "probe",
        read::PROBE,
        &[
            ("object_unique_pkey", "(hash = "),
            ("object_terms_pkey", "(id = "),
        ],
    ),
    ("list", walk::LIST, &[("objects_pkey", "(id ")]),
    (
        "next map",
        walk::NEXT_MAP,
        &[("objects_pkey", "ROW(app, collection) > ")],
    ),
    (
        "scan",
        walk::SCAN,
        &[("objects_pkey", "ROW(app, collection, id) > ")],
    ),
    (
        "objects of a subject",
        walk::SUBJECT,
        &[
            ("objects_subject", "ROW(collection, id) > "),
            ("objects_subject", "(subject = "),
        ],
    ),
    ("lock", write::LOCK, &[("objects_pkey", "(id = ")]),
    (
        "holders",
        write::HOLDERS,
        &[
            ("object_unique_pkey", "(hash = "),
            ("objects_pkey", "(id = "),
        ],
    ),
    (
        "fences of maps",
        write::FENCES_OF,
        &[("object_fences_pkey", "(collection = ")],
    ),
    (
        "insert",
        add::INSERT,
        &[
            ("object_fences_pkey", "(collection = "),
            ("objects_pkey", "(id = "),
        ],
    ),
    ("change", change::CHANGE, &[("objects_pkey", "(id = ")]),
    ("replace", change::REPLACE, &[("objects_pkey", "(id = ")]),
    (
        "remove",
        change::REMOVE,
        &[
            ("objects_pkey", "(id = "),
            ("object_unique_pkey", "(hash = "),
            ("object_terms_pkey", "(id = "),
        ],
    ),
    (
        "due to expire",
        sweep::DUE_EXPIRED,
        &[("objects_expires", "(expires <= ")],
    ),
    (
        "due to be removed",
        sweep::DUE_OUTDATED,
        &[("objects_archived", "(archived < ")],
    ),
    ("walk", sweep::WALK_EXPIRED, &[("objects_pkey", "(id > ")]),
    (
        "walk of archived ones",
        sweep::WALK_OUTDATED,
        &[("objects_pkey", "(id > ")],
    ),
    (
        "walk of all",
        sweep::WALK_ANY,
        &[("objects_pkey", "(id > ")],
    ),
    (
        "lock of expired ones",
        sweep::LOCK_EXPIRED,
        &[("objects_pkey", "(id = ")],
    ),
    (
        "lock of archived ones",
        sweep::LOCK_OUTDATED,
        &[("objects_pkey", "(id = ")],
    ),
    (
        "lock of any",
        sweep::LOCK_ANY,
        &[("objects_pkey", "(id = ")],
    ),
    (
        "count of keys",
        reseal::COUNT_KEYS,
        &[("objects_pkey", "(id > ")],
    ),
    (
        "other keys",
        reseal::OTHER_KEYS,
        &[("objects_pkey", "(id ")],
    ),
    (
        "reseal",
        reseal::RESEAL,
        &[
            ("objects_pkey", "(id = "),
            ("object_fences_pkey", "(collection = "),
        ],
    ),
    ("raised fence", RAISE_FENCE, &[]),
    ("fences", FENCES, &[]),
    ("archive", sweep::ARCHIVE, &[("objects_pkey", "(id = ")]),
];

/// Adds objects up to a number. A third of them are expired, a third are archived. Half of them
/// share a term.
fn filling(rows: u32) -> String {
    format!(
        "INSERT INTO sealwire.objects (app, collection, id, version, created, updated, expires, archived, key, terms, sealed)
         SELECT 7, 9, int4send(n), 1, 1, 1, CASE WHEN n % 3 > 0 THEN n END, CASE WHEN n % 3 > 1 THEN n END, '', '', ''
         FROM generate_series((SELECT count(*)::int4 FROM sealwire.objects) + 1, {rows}) AS n;
         INSERT INTO sealwire.object_unique (app, collection, index_number, hash, id)
         SELECT 7, 9, 1, int4send(n), int4send(n)
         FROM generate_series((SELECT count(*)::int4 FROM sealwire.object_unique) + 1, {rows}) AS n;
         INSERT INTO sealwire.object_terms (app, collection, index_number, hash, id)
         SELECT 7, 9, 1, int4send(CASE WHEN n % 2 = 0 THEN n ELSE 0 END), int4send(n)
         FROM generate_series((SELECT count(*)::int4 FROM sealwire.object_terms) + 1, {rows}) AS n;"
    )
}

/// Returns the conditions of the scans of an index.
fn conditions<'a>(plan: &'a str, index: &str) -> Vec<&'a str> {
    let scan = format!(" using {index} on ");
    let lines = plan.lines().zip(plan.lines().skip(1));
    lines
        .filter(|(line, _)| line.contains(&scan))
        .map(|(_, condition)| condition)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_read_by_whole_keys() {
    let server = shared();
    let database = server.database().unwrap();
    drop(
        PostgresStore::connect(options(server, database.socket_url()))
            .await
            .unwrap(),
    );
    for table in ["objects", "object_unique", "object_terms", "object_fences"] {
        database
            .sql(&format!(
                "ALTER TABLE sealwire.{table} SET (autovacuum_enabled = false)"
            ))
            .unwrap();
    }
    // The last step has the statistics of real rows.
    for (rows, analyze) in [(0, false), (500, false), (20_000, false), (20_000, true)] {
        database.sql(&filling(rows)).unwrap();
        if analyze {
            database
                .sql("ANALYZE sealwire.objects, sealwire.object_unique, sealwire.object_terms")
                .unwrap();
        }
        for (name, sql, scans) in STATEMENTS {
            let parameters = (1..=30).filter(|n| sql.contains(&format!("${n}"))).count();
            let nulls = vec!["NULL"; parameters].join(", ");
            let execute = if parameters == 0 {
                "tried".to_owned()
            } else {
                format!("tried({nulls})")
            };
            let plan = format!("{PLANNER}; PREPARE tried AS {sql}; EXPLAIN EXECUTE {execute}");
            let plan = database.sql(&plan).unwrap();
            let case = format!("{name} among {rows} rows, analyzed: {analyze}: {plan}");
            assert!(
                !plan.contains("Seq Scan") && !plan.contains("Bitmap"),
                "{case}"
            );
            for (index, part) in scans {
                let found = conditions(&plan, index);
                assert!(
                    !found.is_empty() && found.iter().all(|condition| condition.contains(part)),
                    "{case}"
                );
            }
            // Terms supply ids in order. Only the merged ids are sorted, once for duplicates and
            // once as the result.
            assert!(
                sql != read::IDS || plan.matches("Sort Key").count() == 2,
                "{case}"
            );
        }
    }
}
