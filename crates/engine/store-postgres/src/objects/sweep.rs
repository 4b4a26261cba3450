//! Sweeps of objects: archive expired objects, remove archived objects, or remove all objects.
//!
//! A sweep first selects due objects by an index of the times at which objects become due. A
//! transaction then locks the objects that are still due, and changes them together with their
//! terms. Terms that another transaction wrote in the meantime are only visible to statements after
//! the lock.

use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::change::{Removal, remove_objects};
use super::read::start_after;
use super::rows::decode_terms;
use crate::PostgresStore;
use crate::rows::{db_seconds, map_numbers, read_column, read_key, row_fault};
use crate::session::Session;
use crate::sqlstate::SqlFault;
use crate::transaction_guard::TransactionGuard;
use crate::write::conflict_fault;
use sealwire_store::{MapId, ObjectId, Page, StoreError, Sweep, Term};

/// Maximum objects of one page.
const PAGE_MAX: usize = 1_000;

/// If more objects are due, pages are read in the order of ids. Otherwise the due objects are
/// sorted by id for each page.
const DUE_MAX: i64 = 10_000;

/// Seconds by which the engine's clock, in `$6`, is ahead of the server's clock. Sweeps subtract
/// this difference, so that they do not remove objects early.
macro_rules! ahead {
    () => {
        "greatest($6::int8 - floor(extract(epoch FROM now()))::int8, 0)"
    };
}

/// Condition of an expired object. `$5`: time before which it expired.
macro_rules! expired {
    () => {
        concat!(
            "t.archived IS NULL AND t.expires < $5 - ",
            ahead!(),
            " AND t.expires <= $6 - ",
            ahead!()
        )
    };
}

/// Condition of an object whose archive period is over. `$5`: time before which it was archived.
macro_rules! outdated {
    () => {
        concat!("t.archived < $5 - ", ahead!())
    };
}

/// Condition that every object meets. The expression mentions the parameters, because every
/// parameter must have a type.
macro_rules! any {
    () => {
        "$5::int8 IS NOT NULL AND $6::int8 IS NOT NULL"
    };
}

/// Finds due objects after the id `$3`. Returns the number of due objects, at most `$7`, and their
/// first `$4` ids, each with true.
macro_rules! due {
    ($condition:expr, $time:literal) => {
        concat!(
            "WITH due AS MATERIALIZED (
                SELECT t.id FROM sealwire.objects t WHERE t.app = $1 AND t.collection = $2 AND ",
            $condition,
            " AND t.id > $3 ORDER BY ",
            $time,
            " LIMIT $7
            )
            SELECT (SELECT count(*) FROM due), d.id, true FROM (SELECT id FROM due ORDER BY id LIMIT $4) d ORDER BY d.id"
        )
    };
}

/// Walks through `$4` objects after the id `$3`. Returns each id with the value of the condition.
macro_rules! walk {
    ($condition:expr) => {
        concat!(
            "SELECT $7::int8, t.id, coalesce(",
            $condition,
            ", false) FROM sealwire.objects t WHERE t.app = $1 AND t.collection = $2 AND t.id > $3
            ORDER BY t.id LIMIT $4"
        )
    };
}

/// Locks the objects `$3`, in the order of their keys. Returns each id with the value of the
/// condition. The condition is not part of the search, because a plan could then read all due
/// objects.
macro_rules! lock {
    ($condition:expr) => {
        concat!(
            "SELECT t.id, t.terms, coalesce(",
            $condition,
            ", false) FROM unnest($3::bytea[]) AS i(id)
            JOIN sealwire.objects t ON t.app = $1 AND t.collection = $2 AND t.id = i.id
            WHERE $4::int8 IS NOT NULL ORDER BY t.id FOR UPDATE OF t"
        )
    };
}

pub(super) static DUE_EXPIRED: &str = due!(expired!(), "t.expires");
pub(super) static DUE_OUTDATED: &str = due!(outdated!(), "t.archived");
pub(super) static WALK_EXPIRED: &str = walk!(expired!());
pub(super) static WALK_OUTDATED: &str = walk!(outdated!());
pub(super) static WALK_ANY: &str = walk!(any!());
pub(super) static LOCK_EXPIRED: &str = lock!(expired!());
pub(super) static LOCK_OUTDATED: &str = lock!(outdated!());
pub(super) static LOCK_ANY: &str = lock!(any!());

/// Archives objects, which the transaction must have locked.
pub(super) static ARCHIVE: &str = concat!(
    "UPDATE sealwire.objects t SET archived = $6 - ",
    ahead!(),
    ", terms = '' FROM unnest($3::bytea[]) AS i(id)
    WHERE t.app = $1 AND t.collection = $2 AND t.id = i.id AND $4::int8 IS NOT NULL AND $5::int8 IS NOT NULL"
);

/// A sweep of one map, as parameters and statements.
#[derive(Clone, Copy)]
struct SweepPlan {
    app: i32,
    collection: i32,
    map: MapId,
    sweep: Sweep,
    /// Time before which objects became due, and the engine's time.
    times: [i64; 2],
}

/// A locked object that is due, and its terms.
struct DueObject {
    id: ObjectId,
    unique: Vec<Term>,
    terms: Vec<Term>,
}

impl SweepPlan {
    fn new(now: u64, map: MapId, sweep: Sweep) -> Result<Self, StoreError> {
        let (app, collection) = map_numbers(map)?;
        let before = match sweep {
            Sweep::Archive { expired_before } => expired_before,
            Sweep::Prune { archived_before } => archived_before,
            Sweep::Erase => 0,
        };

        Ok(Self {
            app,
            collection,
            map,
            sweep,
            times: [db_seconds(before), db_seconds(now)],
        })
    }

    /// Returns the statements that find due objects by time, walk through objects, and lock due
    /// objects.
    fn statements(&self) -> (Option<&'static str>, &'static str, &'static str) {
        match self.sweep {
            Sweep::Archive { .. } => (Some(DUE_EXPIRED), WALK_EXPIRED, LOCK_EXPIRED),
            Sweep::Prune { .. } => (Some(DUE_OUTDATED), WALK_OUTDATED, LOCK_OUTDATED),
            Sweep::Erase => (None, WALK_ANY, LOCK_ANY),
        }
    }

    /// Changes the objects of `ids` that are still due. Returns their number.
    async fn change_objects(&self, session: &Session, ids: &[ObjectId]) -> Result<u64, SqlFault> {
        let (_, _, lock) = self.statements();
        let ids: Vec<&[u8]> = ids.iter().map(|id| id.0.as_slice()).collect();
        let count = ids.len() as i64;
        let [before, now] = &self.times;
        let params: [&(dyn ToSql + Sync); 6] =
            [&self.app, &self.collection, &ids, &count, before, now];
        let ((), locked) =
            tokio::try_join!(biased; session.batch_execute("BEGIN"), session.query(lock, &params))?;
        let mut due: Vec<DueObject> = Vec::with_capacity(locked.len());
        for row in &locked {
            let (unique, terms) = decode_terms(read_column(row, 1)?).ok_or_else(row_fault)?;
            let object = DueObject {
                id: ObjectId(read_key(row, 0)?),
                unique,
                terms,
            };

            due.extend(read_column::<bool>(row, 2)?.then_some(object));
        }

        let archives = matches!(self.sweep, Sweep::Archive { .. });
        if archives && !due.is_empty() {
            let ids: Vec<&[u8]> = due.iter().map(|object| object.id.0.as_slice()).collect();
            let params: [&(dyn ToSql + Sync); 6] =
                [&self.app, &self.collection, &ids, &count, before, now];
            if session.execute(ARCHIVE, &params).await? != due.len() as u64 {
                return Err(conflict_fault());
            }
        }

        let mut removal = Removal::default();
        for DueObject { id, unique, terms } in &due {
            removal
                .unique
                .extend(unique.iter().map(|term| (self.map, term, id)));
            removal
                .terms
                .extend(terms.iter().map(|term| (self.map, term, id)));
            removal
                .objects
                .extend((!archives).then_some((self.map, id)));
        }

        remove_objects(session, removal).await?;
        session.batch_execute("COMMIT").await?;
        Ok(due.len() as u64)
    }
}

impl PostgresStore {
    pub(super) async fn sweep_page(
        &self,
        now: u64,
        (map, sweep): (MapId, Sweep),
        after: Option<ObjectId>,
        limit: usize,
        due_max: Option<i64>,
        dry_run: bool,
    ) -> Result<Page<u64, ObjectId>, StoreError> {
        self.run_with_permit(
            &self.shared.walks,
            move |store: Self, deadline| async move {
                let plan = SweepPlan::new(now, map, sweep)?;
                let limit = limit.clamp(1, PAGE_MAX);
                let Page { found, next } = store
                    .find_due(deadline, &plan, after, limit, due_max.unwrap_or(DUE_MAX))
                    .await?;
                let count = match found.len() {
                    count if dry_run || count == 0 => count as u64,
                    _ => store.change_due(deadline, &plan, &found).await?,
                };
                Ok(Page { found: count, next })
            },
        )
        .await
    }

    /// Returns the ids of due objects after `after`, ascending.
    async fn find_due(
        &self,
        deadline: Instant,
        plan: &SweepPlan,
        after: Option<ObjectId>,
        limit: usize,
        due_max: i64,
    ) -> Result<Page<Vec<ObjectId>, ObjectId>, StoreError> {
        let (by_time, walk, _) = plan.statements();
        // Requests one more object than the page holds, to find out whether the page is the last.
        let after = start_after(&after);
        let look = limit as i64 + 1;
        let most = due_max + 1;
        let [before, now] = &plan.times;
        let params: [&(dyn ToSql + Sync); 7] = [
            &plan.app,
            &plan.collection,
            &after,
            &look,
            before,
            now,
            &most,
        ];
        let mut lines = Vec::new();
        let mut is_walk = true;
        if let Some(sql) = by_time {
            lines = self
                .query_by(deadline, &self.shared.slow, true, sql, &params)
                .await?;
            let count = lines
                .first()
                .map_or(Ok(0), |line| read_column::<i64>(line, 0))
                .map_err(SqlFault::into_error)?;
            is_walk = count > due_max;
        }

        if is_walk {
            lines = self
                .query_by(deadline, &self.shared.slow, true, walk, &params)
                .await?;
        }

        let mut page = Page {
            found: Vec::new(),
            next: None,
        };

        for line in lines.iter().take(limit) {
            let (id, is_due) = read_due(line).map_err(SqlFault::into_error)?;
            page.found.extend(is_due.then_some(id));
            page.next = (lines.len() > limit).then_some(id);
        }

        Ok(page)
    }

    async fn change_due(
        &self,
        deadline: Instant,
        plan: &SweepPlan,
        ids: &[ObjectId],
    ) -> Result<u64, StoreError> {
        // The request is not repeated after a lost response, because the retry would count no
        // changes.
        let mut query = self.shared.slow.start_query_by(deadline, false);
        loop {
            let session = query.next_session().await?;
            let guard = TransactionGuard::new(&session);
            let outcome = query
                .run_until_deadline(&session, plan.change_objects(&session, ids))
                .await;
            guard.end(&query, &outcome).await;
            match outcome {
                Ok(count) => return Ok(count),
                Err(fault) => query
                    .prepare_retry(session, fault)
                    .await
                    .map_err(SqlFault::into_error)?,
            }
        }
    }
}

/// Reads an id, and whether its object is due, from a line of [`due!`] or [`walk!`].
fn read_due(line: &tokio_postgres::Row) -> Result<(ObjectId, bool), SqlFault> {
    Ok((ObjectId(read_key(line, 1)?), read_column::<bool>(line, 2)?))
}
