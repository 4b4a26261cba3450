//! Lookups of objects and of clauses. Each lookup is one statement, which also returns the fence of
//! the map.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::rows::{self, object_columns, to_db_generation};
use crate::PostgresStore;
use crate::rows::{db_seconds, join_params, map_numbers, read_column, read_key};
use crate::sqlstate::{SqlFault, damaged};
use sealwire_store::{Clause, MapId, MapView, ObjectId, ObjectRow, StoreError, check_fence};

/// Maximum objects of one lookup statement.
const IDS_MAX: usize = 1_000;

/// The fence of the map `$1`, `$2`: the first column of each statement here.
macro_rules! fence {
    () => {
        "(SELECT f.generation FROM sealwire.object_fences f WHERE f.app = $1 AND f.collection = $2)"
    };
}
pub(super) use fence;

pub(super) static GET: &str = concat!(
    "SELECT ",
    fence!(),
    ", g.* FROM (SELECT 1) AS one LEFT JOIN LATERAL (
        SELECT i.n, ",
    object_columns!(),
    " FROM unnest($3::bytea[]) WITH ORDINALITY AS i(id, n)
        JOIN sealwire.objects t ON t.app = $1 AND t.collection = $2 AND t.id = i.id
        WHERE t.archived IS NULL AND (t.expires IS NULL OR t.expires > $4)
    ) g ON true"
);

/// A table of terms, where a row of `i` holds a term.
macro_rules! holders {
    ($place:literal, $columns:literal, $table:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM ",
            $table,
            " t WHERE ",
            $place,
            " AND t.app = $1 AND t.collection = $2 AND t.index_number = i.index_number AND t.hash = i.hash"
        )
    };
}

/// `$3` to `$7`: per term the number of its clause, its places, index number and hash. `$8`: the
/// highest count.
pub(super) static COUNT: &str = concat!(
    "SELECT ",
    fence!(),
    ", c.* FROM (SELECT 1) AS one LEFT JOIN LATERAL (
        SELECT i.clause, least(sum(h.count), $8)::int8
        FROM unnest($3::int8[], $4::bool[], $5::bool[], $6::int8[], $7::bytea[])
            AS i(clause, is_unique, is_shared, index_number, hash)
        CROSS JOIN LATERAL (
            SELECT count(*) FROM (",
    holders!("i.is_unique", "1", "sealwire.object_unique"),
    " LIMIT $8) AS u
            UNION ALL SELECT count(*) FROM (",
    holders!("i.is_shared", "1", "sealwire.object_terms"),
    " LIMIT $8) AS s
        ) h GROUP BY i.clause
    ) c ON true"
);

/// `$3`: the id after which the page starts. `$4` to `$7`: places, index numbers and hashes. `$8`:
/// maximum number of ids.
pub(super) static IDS: &str = concat!(
    "SELECT ",
    fence!(),
    ", m.id FROM (SELECT 1) AS one LEFT JOIN LATERAL (
        SELECT DISTINCT h.id FROM unnest($6::int8[], $7::bytea[]) AS i(index_number, hash)
        CROSS JOIN LATERAL (
            (",
    holders!("$4::bool", "t.id", "sealwire.object_unique"),
    " AND t.id > $3 LIMIT 1)
            UNION ALL (",
    holders!("$5::bool", "t.id", "sealwire.object_terms"),
    " AND t.id > $3 ORDER BY t.id LIMIT $8)
        ) h ORDER BY h.id LIMIT $8
    ) m ON true ORDER BY m.id"
);

/// `$3` to `$7`: as for [`COUNT`]. `$8`: ids. Returns the positions of ids that match at least one
/// clause, and the number of matching clauses.
pub(super) static PROBE: &str = concat!(
    "SELECT ",
    fence!(),
    ", p.* FROM (SELECT 1) AS one LEFT JOIN LATERAL (
        SELECT o.n, count(DISTINCT i.clause) FROM unnest($8::bytea[]) WITH ORDINALITY AS o(id, n)
        CROSS JOIN unnest($3::int8[], $4::bool[], $5::bool[], $6::int8[], $7::bytea[])
            AS i(clause, is_unique, is_shared, index_number, hash)
        CROSS JOIN LATERAL (
            (",
    holders!("i.is_unique", "1", "sealwire.object_unique"),
    " AND t.id = o.id LIMIT 1)
            UNION ALL (",
    holders!("i.is_shared", "1", "sealwire.object_terms"),
    " AND t.id = o.id LIMIT 1)
        ) h GROUP BY o.n
    ) p ON true"
);

/// Terms of several clauses as parameters of `unnest`: clause, places, index number, hash.
#[derive(Default)]
struct ClauseColumns<'a> {
    clauses: Vec<i64>,
    unique: Vec<bool>,
    shared: Vec<bool>,
    indexes: Vec<i64>,
    hashes: Vec<&'a [u8]>,
}

impl<'a> ClauseColumns<'a> {
    fn from_clauses(clauses: &'a [Clause]) -> Self {
        let mut columns = Self::default();
        for (at, clause) in (0..).zip(clauses) {
            for term in &clause.terms {
                columns.clauses.push(at);
                columns.unique.push(clause.unique);
                columns.shared.push(clause.shared);
                columns.indexes.push(term.index.into());
                columns.hashes.push(&term.hash);
            }
        }
        columns
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 5] {
        [
            &self.clauses,
            &self.unique,
            &self.shared,
            &self.indexes,
            &self.hashes,
        ]
    }
}

impl PostgresStore {
    pub(super) async fn look_up_objects(
        &self,
        now: u64,
        view: MapView,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<ObjectRow>>, StoreError> {
        let mut found = vec![None; ids.len()];
        let now = db_seconds(now);
        let mut from = 0;
        loop {
            // Without ids, the statement still returns the fence.
            let chunk = &ids[from..ids.len().min(from + IDS_MAX)];
            let chunk: Vec<&[u8]> = chunk.iter().map(|id| id.0.as_slice()).collect();
            let lines = self.query_with_fence(view, GET, &[&chunk, &now]).await?;
            read_objects(&lines, from, &mut found).map_err(SqlFault::into_error)?;
            from += IDS_MAX;
            if from >= ids.len() {
                return Ok(found);
            }
        }
    }

    pub(super) async fn count_matches(
        &self,
        view: MapView,
        clauses: &[Clause],
        cap: u32,
    ) -> Result<Vec<u32>, StoreError> {
        let columns = ClauseColumns::from_clauses(clauses);
        let cap = i64::from(cap);
        let lines = self
            .query_with_fence(view, COUNT, &join_params(&[&columns.params(), &[&cap]]))
            .await?;
        read_counts(&lines, clauses.len()).map_err(SqlFault::into_error)
    }

    pub(super) async fn ids_of_clause(
        &self,
        view: MapView,
        clause: &Clause,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<ObjectId>, StoreError> {
        let columns = ClauseColumns::from_clauses(std::slice::from_ref(clause));
        let after = start_after(&after);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: [&(dyn ToSql + Sync); 6] = [
            &after,
            &clause.unique,
            &clause.shared,
            &columns.indexes,
            &columns.hashes,
            &limit,
        ];
        let lines = self.query_with_fence(view, IDS, &params).await?;
        let ids = lines
            .iter()
            .filter_map(|line| match read_column::<Option<&[u8]>>(line, 1) {
                Ok(None) => None,
                _ => Some(read_key(line, 1).map(ObjectId)),
            });
        ids.collect::<Result<_, _>>().map_err(SqlFault::into_error)
    }

    pub(super) async fn probe_matches(
        &self,
        view: MapView,
        clauses: &[Clause],
        ids: &[ObjectId],
    ) -> Result<Vec<bool>, StoreError> {
        let columns = ClauseColumns::from_clauses(clauses);
        let keys: Vec<&[u8]> = ids.iter().map(|id| id.0.as_slice()).collect();
        let lines = self
            .query_with_fence(view, PROBE, &join_params(&[&columns.params(), &[&keys]]))
            .await?;
        read_matches(&lines, clauses.len(), ids.len()).map_err(SqlFault::into_error)
    }

    /// Runs a statement whose first parameters are the map and whose first column is the fence of
    /// the map.
    async fn query_with_fence(
        &self,
        view: MapView,
        sql: &'static str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let (app, collection) = map_numbers(view.map)?;
        let lines = self
            .query(
                self.next_reader(),
                true,
                sql,
                &join_params(&[&[&app, &collection], params]),
            )
            .await?;
        check_line(view, lines.first())?;
        Ok(lines)
    }
}

/// Reads the lines of [`GET`] for the ids that start at index `from`.
fn read_objects(
    lines: &[Row],
    from: usize,
    found: &mut [Option<ObjectRow>],
) -> Result<(), SqlFault> {
    for line in lines {
        if let Some(n) = read_column::<Option<i64>>(line, 1)? {
            *element_at(found, from, n)? = Some(rows::read_object(line, 2)?);
        }
    }
    Ok(())
}

/// Reads the lines of [`COUNT`].
fn read_counts(lines: &[Row], clauses: usize) -> Result<Vec<u32>, SqlFault> {
    let mut counts = vec![0; clauses];
    for line in lines {
        if let Some(clause) = read_column::<Option<i64>>(line, 1)? {
            *element_at(&mut counts, 1, clause)? =
                read_column::<i64>(line, 2)?.try_into().unwrap_or(u32::MAX);
        }
    }
    Ok(counts)
}

/// Reads the lines of [`PROBE`]. Returns, per id, true if the id matches all clauses.
fn read_matches(lines: &[Row], clauses: usize, ids: usize) -> Result<Vec<bool>, SqlFault> {
    let mut matches = vec![clauses == 0; ids];
    for line in lines {
        if let Some(n) = read_column::<Option<i64>>(line, 1)? {
            *element_at(&mut matches, 0, n)? = read_column::<i64>(line, 2)? == clauses as i64;
        }
    }
    Ok(matches)
}

/// Checks the fence of a map, which is the first column of a line.
pub(super) fn check_line(view: MapView, line: Option<&Row>) -> Result<(), StoreError> {
    let line = line.ok_or_else(|| damaged("a statement returned no fence"))?;
    let fence = read_column::<Option<i64>>(line, 0).map_err(SqlFault::into_error)?;
    // Compares the numbers as the database stores them.
    let view = MapView {
        generation: to_db_generation(view.generation).unsigned_abs(),
        ..view
    };
    check_fence(view, fence.map(i64::unsigned_abs))
}

/// Returns the element to which the database gives number `n`, counted from 1 after the first
/// `from` elements.
fn element_at<T>(elements: &mut [T], from: usize, n: i64) -> Result<&mut T, SqlFault> {
    let at = usize::try_from(n)
        .ok()
        .and_then(|n| (from + n).checked_sub(1));
    at.and_then(|at| elements.get_mut(at))
        .ok_or_else(|| SqlFault::Invalid("a lookup returned an item that was not requested".into()))
}

/// Returns the id to start after. All ids sort after the empty id.
pub(super) fn start_after(after: &Option<ObjectId>) -> &[u8] {
    after.as_ref().map_or(&[], |id| &id.0)
}

/// Returns the map and the id to start a scan after.
pub(super) fn start_scan_after(
    after: &Option<(MapId, ObjectId)>,
) -> Result<((i32, i32), &[u8]), StoreError> {
    match after {
        Some((map, id)) => Ok((map_numbers(*map)?, &id.0)),
        None => Ok(((-1, -1), &[])),
    }
}
