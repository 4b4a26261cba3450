//! Plans of the statements that look up rows. A plan is cached for as long as its session lasts, so
//! the first must be good for every size that the table will have.

use super::{options, shared};
use crate::session::PLANNER;
use crate::{PostgresStore, reseal, token_subjects, tokens, write};
use sealwire_testkit::Database;

/// Statements, and the column that their index condition must have besides app and collection.
const LOOKUPS: [(&str, &str, &str); 12] = [
    ("get", tokens::GET, "id"),
    ("get many", tokens::GET_MANY, "id"),
    ("delete", tokens::DELETE, "id"),
    ("expire", tokens::EXPIRE, "id"),
    ("reseal", reseal::RESEAL, "id"),
    ("ids of written rows", write::IDS, "id"),
    ("find", tokens::FIND, "fingerprint"),
    ("find many", tokens::FIND_MANY, "fingerprint"),
    ("merge", write::MERGE, "fingerprint"),
    ("merge with claims", write::MERGE_CLAIMED, "fingerprint"),
    ("holders", write::HOLDERS, "fingerprint"),
    ("archive", write::ARCHIVE, "fingerprint"),
];

fn plan(database: &Database, statement: &str) -> String {
    let parameters = (1..=15)
        .filter(|n| statement.contains(&format!("${n}")))
        .count();
    let nulls = vec!["NULL"; parameters].join(", ");
    database
        .sql(&format!(
            "{PLANNER}; PREPARE lookup AS {statement}; EXPLAIN EXECUTE lookup({nulls})"
        ))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lookups_use_the_whole_key_before_the_server_has_seen_any_rows() {
    let server = shared();
    let database = server.database().unwrap();
    let store = PostgresStore::connect(options(server, database.socket_url()))
        .await
        .unwrap();
    drop(store);
    // The server counts rows for the first time after a minute or so.
    database
        .sql("ALTER TABLE sealwire.tokens SET (autovacuum_enabled = false)")
        .unwrap();
    for rows in [0, 500, 20_000] {
        database
            .sql(&format!(
                "INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, created)
                 SELECT 7, 9, int4send(n), sha256(int4send(n)), '', 1
                 FROM generate_series((SELECT count(*)::int4 FROM sealwire.tokens) + 1, {rows}) AS n"
            ))
            .unwrap();
        for (name, statement, column) in LOOKUPS {
            let plan = plan(&database, statement);
            let conditions = plan
                .lines()
                .filter(|line| line.contains("Index Cond:") && line.contains("collection ="));
            let conditions: Vec<&str> = conditions.collect();
            assert!(!conditions.is_empty(), "{name}: {plan}");
            for condition in conditions {
                // A subject's key is found by its id.
                let is_whole =
                    condition.contains(&format!("({column} = ")) || condition.contains("(id = ");
                assert!(is_whole, "{name} among {rows} rows: {plan}");
            }
        }
        for statement in [token_subjects::ROWS, token_subjects::ERASE] {
            let plan = plan(&database, statement);
            assert!(plan.contains("tokens_subject"), "{rows} rows: {plan}");
            // Each row that is removed is found by its own key.
            let by_key = plan
                .lines()
                .any(|line| line.contains("Index Cond:") && line.contains("(id = "));
            assert_eq!(
                by_key,
                statement == token_subjects::ERASE,
                "{rows} rows: {plan}"
            );
        }
    }
}
