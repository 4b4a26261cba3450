//! Statements and batches for tables that Citus distributes by app.
//!
//! Citus sends a statement to one shard only if the statement names one app as a constant. A
//! statement with several apps goes to every shard, and Citus rejects such a statement if it locks
//! rows. So this module splits every request by app. Statements that join arrays of keys then name
//! the app of the first key as the app of all keys.
//!
//! `docs/citus.md` lists the statements that Citus rejects, and the alternatives that are used.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tokio_postgres::{Client, Error, SimpleQueryMessage};

use super::session::{Params, Session};
use super::sqlstate::SqlFault;
use sealwire_store::StoreError;

/// Tables that are distributed by app. All other tables stay on the coordinator. All shards of an
/// app are on the same node.
pub(super) const TABLES: [&str; 5] = [
    "tokens",
    "objects",
    "object_unique",
    "object_terms",
    "object_fences",
];

/// A table with a row per app, on the shard of the app. Citus inserts the rows of an array on one
/// shard only if their app is read from a table of that shard. Only a distributed database has this
/// table.
pub(super) const APPS: &str = "citus_apps";

/// The condition of a scan of all apps. On distributed tables a scan covers one app after the
/// other, because a page of all apps would read a page of every shard.
const SCAN_OF_ALL: &str = "(t.app, t.collection, t.id) > ($1, $2, $3)";

static ADD_APP: &str = "INSERT INTO sealwire.citus_apps (app) VALUES ($1) ON CONFLICT DO NOTHING";

/// Settings of a connection to a coordinator. Citus cannot plan most statements without the values
/// of their parameters.
pub(super) const PLANNER: &str = "SET plan_cache_mode = auto";

/// Databases without the extension reject this query, so it only runs if `EXTENSION` returns true.
static DISTRIBUTED: &str = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_dist_partition
    WHERE logicalrelid = to_regclass('sealwire.tokens') AND partmethod = 'h')";

static EXTENSION: &str = "SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL";

/// Returns true if the tables of this connection's database are distributed.
pub(super) async fn is_distributed(client: &Client) -> Result<bool, Error> {
    Ok(is_true(client, EXTENSION).await? && is_true(client, DISTRIBUTED).await?)
}

/// Runs a query that returns a boolean. An error about unknown names means that the database lacks
/// the extension, and returns false. Other errors, such as a timeout, are returned.
async fn is_true(client: &Client, sql: &str) -> Result<bool, Error> {
    match client.simple_query(sql).await {
        Ok(lines) => Ok(lines
            .iter()
            .any(|line| matches!(line, SimpleQueryMessage::Row(row) if row.get(0) == Some("t")))),
        Err(error)
            if error.code().is_some_and(|code| {
                code.code().starts_with("42") || code.code().starts_with("0A")
            }) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Returns the form of a statement that Citus sends to one shard. The keys in its parameters must
/// be of one app.
///
/// Citus rejects the cast of a text column to an array in an UPDATE, so a `MATERIALIZED` CTE makes
/// the cast first.
pub(super) fn single_app_sql(sql: &str) -> Cow<'_, str> {
    if sql.contains(SCAN_OF_ALL) {
        return Cow::Owned(sql.replace(
            SCAN_OF_ALL,
            "t.app = $1 AND (t.collection, t.id) > ($2, $3)",
        ));
    }

    let Some(app) = first_app(sql) else {
        return Cow::Borrowed(sql);
    };

    let sql = sql
        .replace(".app = i.app", &format!(".app = {app}"))
        .replace("AS NOT MATERIALIZED", "AS MATERIALIZED");
    if !sql.starts_with("INSERT INTO") {
        return Cow::Owned(sql);
    }

    let home = format!("FROM (SELECT app FROM sealwire.{APPS} WHERE app = {app}) AS h, unnest(");
    Cow::Owned(
        sql.replacen("SELECT i.app,", "SELECT h.app,", 1)
            .replacen("FROM unnest(", &home, 1),
    )
}

/// Inserts rows from array parameters, of which the first holds the apps. Returns the number of
/// inserted rows.
pub(super) async fn insert_rows(
    session: &Session,
    sql: &'static str,
    params: Params<'_>,
    apps: &[i32],
) -> Result<u64, SqlFault> {
    let count = session.execute(sql, params).await?;
    let Some(app) = apps
        .first()
        .filter(|_| count == 0 && session.is_distributed())
    else {
        return Ok(count);
    };
    // Adds the app first, because it can be new.
    session.execute(ADD_APP, &[app]).await?;
    match session.execute(sql, params).await? {
        0 if !sql.contains("ON CONFLICT") => Err(SqlFault::Invalid(
            "the shard of the app takes no rows".into(),
        )),
        count => Ok(count),
    }
}

/// Returns an expression for the app of the first key. A statement can have several arrays of apps,
/// and some can be empty.
fn first_app(sql: &str) -> Option<String> {
    let numbers = sql
        .split("unnest($")
        .skip(1)
        .filter_map(|rest| rest.split_once("::int4[]"));
    let numbers = numbers
        .map(|(number, _)| number)
        .filter(|number| number.bytes().all(|digit| digit.is_ascii_digit()));
    let apps: Vec<String> = numbers
        .map(|number| format!("(${number}::int4[])[1]"))
        .collect();
    match &apps[..] {
        [] => None,
        [app] => Some(app.clone()),
        _ => Some(format!("coalesce({})", apps.join(", "))),
    }
}

/// Items of one app, and their positions among all items.
pub(super) type Part<T> = (Vec<usize>, Vec<T>);

/// Splits items by app, or returns them as one part if the tables are not distributed.
pub(super) fn split_by_app<T>(
    is_distributed: bool,
    items: Vec<T>,
    app: impl Fn(&T) -> u32,
) -> Vec<Part<T>> {
    if !is_distributed {
        return vec![((0..items.len()).collect(), items)];
    }
    let mut parts: BTreeMap<u32, Part<T>> = BTreeMap::new();
    for (at, item) in items.into_iter().enumerate() {
        let part = parts.entry(app(&item)).or_default();
        part.0.push(at);
        part.1.push(item);
    }
    parts.into_values().collect()
}

/// Runs `run` on the items of each app concurrently, or once on all items if the tables are not
/// distributed. Each run is a task that continues if the caller is cancelled. Returns a result per
/// item; `failed` is the result of items whose run panicked.
pub(super) async fn run_by_app<
    T,
    R: Send + 'static,
    F: Future<Output = Vec<R>> + Send + 'static,
>(
    is_distributed: bool,
    items: Vec<T>,
    app: impl Fn(&T) -> u32,
    run: impl Fn(Vec<T>) -> F,
    failed: impl Fn() -> R,
) -> Vec<R> {
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let parts = split_by_app(is_distributed, items, app).into_iter();
    let tasks: Vec<_> = parts
        .map(|(at, items)| (at, tokio::spawn(run(items))))
        .collect();
    for (at, task) in tasks {
        let found = task.await.unwrap_or_default();
        at.into_iter()
            .zip(found)
            .for_each(|(at, result)| results[at] = Some(result));
    }

    results
        .into_iter()
        .map(|result| result.unwrap_or_else(&failed))
        .collect()
}

/// Spreads the result of a part over its items. The first item gets the original error, and the
/// other items get copies.
pub(super) fn results_per_item<R>(
    count: usize,
    result: Result<Vec<R>, StoreError>,
) -> Vec<Result<R, StoreError>> {
    match result {
        Ok(found) => found.into_iter().map(Ok).collect(),
        Err(error) => {
            let others: Vec<_> = (1..count).map(|_| Err(error.repeated())).collect();
            std::iter::once(Err(error))
                .chain(others)
                .take(count)
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_on_arrays_name_one_app() {
        let cases = [
            (
                "SELECT 1 FROM t WHERE t.app = $1",
                "SELECT 1 FROM t WHERE t.app = $1",
            ),
            (
                "FROM unnest($1::int4[], $2::int4[]) AS i JOIN t ON t.app = i.app AND t.collection = i.collection",
                "FROM unnest($1::int4[], $2::int4[]) AS i JOIN t ON t.app = ($1::int4[])[1] AND t.collection = i.collection",
            ),
            (
                "unnest($12::int4[]) WHERE u.app = i.app; unnest($4::int4[], $5::bytea[]) WHERE t.app = i.app",
                "unnest($12::int4[]) WHERE u.app = coalesce(($12::int4[])[1], ($4::int4[])[1]); \
                 unnest($4::int4[], $5::bytea[]) WHERE t.app = coalesce(($12::int4[])[1], ($4::int4[])[1])",
            ),
            (
                "FROM unnest($3::bytea[]) AS i(id) JOIN t ON t.app = $1",
                "FROM unnest($3::bytea[]) AS i(id) JOIN t ON t.app = $1",
            ),
            (
                "INSERT INTO t (app, n) SELECT i.app, i.n FROM unnest($1::int4[], $2::int8[]) AS i(app, n) ON CONFLICT DO NOTHING",
                "INSERT INTO t (app, n) SELECT h.app, i.n FROM (SELECT app FROM sealwire.citus_apps \
                 WHERE app = ($1::int4[])[1]) AS h, unnest($1::int4[], $2::int8[]) AS i(app, n) ON CONFLICT DO NOTHING",
            ),
            (
                "WHERE (t.app, t.collection, t.id) > ($1, $2, $3) ORDER BY t.app",
                "WHERE t.app = $1 AND (t.collection, t.id) > ($2, $3) ORDER BY t.app",
            ),
            (
                "WITH i AS NOT MATERIALIZED (unnest($1::int4[]))",
                "WITH i AS MATERIALIZED (unnest($1::int4[]))",
            ),
        ];
        for (plain, expected) in cases {
            assert_eq!(single_app_sql(plain), expected);
        }
    }

    #[tokio::test]
    async fn parts_have_one_app_each_and_results_keep_the_order_of_items() {
        for (is_distributed, expected) in [(false, 1), (true, 3)] {
            let items = vec![(5, 'a'), (2, 'b'), (5, 'c'), (9, 'd'), (2, 'e')];
            assert_eq!(
                split_by_app(is_distributed, items.clone(), |item| item.0).len(),
                expected
            );
            // The run of app 9 panics if it is separate.
            let run = move |items: Vec<(u32, char)>| async move {
                assert!(!is_distributed || items.iter().all(|item| item.0 == items[0].0));
                assert!(items[0].0 != 9, "on purpose");
                items.into_iter().map(|item| item.1).collect()
            };
            let found = run_by_app(is_distributed, items, |item| item.0, run, || '-').await;
            assert_eq!(
                found,
                if is_distributed {
                    ['a', 'b', 'c', '-', 'e']
                } else {
                    ['a', 'b', 'c', 'd', 'e']
                }
            );
        }
        assert!(split_by_app(true, Vec::<u32>::new(), |app| *app).is_empty());
        assert_eq!(split_by_app(false, Vec::<u32>::new(), |app| *app).len(), 1);
    }
}
