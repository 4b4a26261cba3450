//! Writes of groups: one statement for many groups in the normal case, and a transaction if there
//! are conflicts.
//!
//! The statement looks up fingerprints, inserts the rows whose fingerprints have no holder, and
//! commits, in one round trip. While recent fingerprints were all new, the statement omits the
//! lookup ([`NewRowPredictor`]). The statement writes everything or nothing: if an id is taken the
//! statement fails, and if a holder has expired nothing is inserted.
//!
//! In both cases a transaction follows, which reads the existing rows, calls [`plan_writes`] to decide,
//! and writes the result. A row that names a data subject is written under a lock on the subject's
//! key, after a check of the version that the row claims. Each group is in one statement or
//! transaction, so a process that dies midway has written only whole groups.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use tokio::time::Instant;

use super::Shared;
use super::batches::Batches;
use super::bulk_import::{INSERT, insert};
use super::citus;
use super::conflict_plan::{ExistingRows, plan_writes};
use super::rows::{self, Columns, Keys, columns, db_seconds, join_params};
use super::session::{Params, Session};
use super::sqlstate::SqlFault;
use super::transaction_guard::TransactionGuard;
use super::worker::{DedicatedConnection, Query};
use sealwire_store::{Fingerprint, Group, MapId, Row, StoreError, SubjectId, TokenId, Written};

/// A statement that writes rows. `$locked`: a further part of the statement. `$permitted`: a
/// condition; if false, nothing is written.
macro_rules! merge {
    ($locked:literal, $permitted:literal) => {
        concat!(
            "WITH input AS MATERIALIZED (
        SELECT * FROM unnest($1::int4[], $2::int4[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[], $7::int8[],
            $8::int8[], $9::int8[], $10::bytea[]) WITH ORDINALITY
            AS i(app, collection, id, fingerprint, sealed, tags, expires, created, archived, subject, n)
    )",
            $locked,
            ", held AS MATERIALIZED (
        SELECT i.n, ",
            columns!(),
            " FROM input i JOIN sealwire.tokens t
            ON t.app = i.app AND t.collection = i.collection AND t.fingerprint = i.fingerprint
        WHERE t.fingerprint IS NOT NULL
    ), written AS (
        INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, tags, expires, created, subject)
        SELECT i.app, i.collection, i.id, i.fingerprint, i.sealed, i.tags::text[], i.expires, i.created, i.subject
        FROM input i
        WHERE i.n NOT IN (SELECT n FROM held) AND NOT EXISTS (SELECT 1 FROM held WHERE expires <= $11) AND ",
            $permitted,
            "
        ORDER BY i.n
        ON CONFLICT (app, collection, fingerprint) WHERE fingerprint IS NOT NULL DO NOTHING
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM written), ",
            $permitted,
            ", h.* FROM (SELECT 1) AS one LEFT JOIN held h ON true"
        )
    };
}

/// `$11`: now. Returns existing holders with the position of the row that they conflict with. Every
/// result line starts with the number of written rows and with true.
pub(super) static MERGE: &str = merge!("", "true");

/// Like [`MERGE`]. `$12` to `$15`: rows of subject keys, and the version that each must have. If a
/// key has another version, the statement writes nothing, and every result line has false. The
/// locks prevent changes of the keys until the rows are committed.
pub(super) static MERGE_CLAIMED: &str = merge!(
    ", claimed AS MATERIALIZED (
        SELECT 1
        FROM unnest($12::int4[], $13::int4[], $14::bytea[], $15::int8[]) AS i(app, collection, id, version)
        JOIN sealwire.objects t ON t.app = i.app AND t.collection = i.collection AND t.id = i.id AND t.version = i.version
        ORDER BY t.app, t.collection, t.id FOR SHARE OF t
    )",
    "(SELECT count(*) FROM claimed) = cardinality($12::int4[])"
);

/// Locks the rows of subject keys, in key order. Prevents changes of these rows until the
/// transaction ends.
pub(super) static SUBJECT_KEYS: &str = "SELECT t.app, t.collection, t.id, t.version
    FROM unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, id)
    JOIN sealwire.objects t ON t.app = i.app AND t.collection = i.collection AND t.id = i.id
    ORDER BY t.app, t.collection, t.id FOR SHARE OF t";

/// Like [`INSERT`], but skips rows that were written concurrently. The returned count does not
/// include skipped rows.
static INSERT_FREE: &str = concat!(insert!(), " ON CONFLICT DO NOTHING");

pub(super) static HOLDERS: &str = concat!(
    "SELECT t.app, t.collection, ",
    columns!(),
    " FROM unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, fingerprint) JOIN sealwire.tokens t
        ON t.app = i.app AND t.collection = i.collection AND t.fingerprint = i.fingerprint
    WHERE t.fingerprint IS NOT NULL"
);

pub(super) static IDS: &str = "SELECT t.app, t.collection, t.id, t.sealed
    FROM unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, id) JOIN sealwire.tokens t
        ON t.app = i.app AND t.collection = i.collection AND t.id = i.id";

pub(super) static ARCHIVE: &str = "UPDATE sealwire.tokens t SET archived = $4, fingerprint = NULL
    FROM unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, fingerprint)
    WHERE t.app = i.app AND t.collection = i.collection AND t.fingerprint = i.fingerprint
        AND t.fingerprint IS NOT NULL AND t.expires <= $4";

/// Implements [`sealwire_store::TokenStore::write`]. Cancelling it midway costs a connection.
pub(super) async fn write_groups(
    shared: &Shared,
    now: u64,
    groups: &[Group],
) -> Vec<Result<Written, StoreError>> {
    let deadline = Instant::now() + shared.timeout;
    let invalid = groups.iter().map(|group| check_group(group).err());
    let mut batches = Batches::new(invalid, |at| (groups[at].rows.len(), 0));
    match shared.writers.lease(deadline).await {
        Err(error) => batches.fail(&error),
        Ok(connection) => {
            let mut lost = false;
            while let Some(batch) = batches.next() {
                let chosen: Vec<&Group> = batch.iter().map(|at| &groups[*at]).collect();
                let written = write_batch(
                    &connection,
                    &shared.new_row_predictor,
                    deadline,
                    now,
                    &chosen,
                    &mut lost,
                )
                .await;
                batches.record(
                    batch,
                    written.map(|written| written.into_iter().map(Ok).collect()),
                );
            }
        }
    }

    batches.into_results()
}

fn check_group(group: &Group) -> Result<(), StoreError> {
    rows::map_numbers(group.map)?;
    group.rows.iter().try_for_each(Row::check_times)
}

/// Writes groups by one statement, or by transactions if there are conflicts, with retries. `lost`
/// is true if an attempt had no response, so that some of the rows can already exist.
async fn write_batch(
    connection: &DedicatedConnection,
    new_row_predictor: &NewRowPredictor,
    deadline: Instant,
    now: u64,
    groups: &[&Group],
    lost: &mut bool,
) -> Result<Vec<Written>, StoreError> {
    let mut query = connection.start_query_by(deadline, true);
    query.lost = *lost;
    let written = write_with_retries(&mut query, new_row_predictor, now, groups).await;
    *lost = query.lost;
    written
}

async fn write_with_retries(
    query: &mut Query<'_>,
    new_row_predictor: &NewRowPredictor,
    now: u64,
    groups: &[&Group],
) -> Result<Vec<Written>, StoreError> {
    let mut partly_written = false;
    loop {
        let session = query.next_session().await?;
        let assumes_new = new_row_predictor.predicts_new_rows();
        match query
            .run_until_deadline(
                &session,
                merge_groups(&session, now, groups, query.lost, assumes_new),
            )
            .await
        {
            Ok(MergeResult::Done(results)) => {
                if !assumes_new {
                    new_row_predictor.record_write(groups, &results);
                }
                return Ok(results);
            }
            Ok(MergeResult::Conflict {
                partly_written: some,
            }) => {
                partly_written = some;
                break;
            }
            Err(SqlFault::Unique) if assumes_new => new_row_predictor.reset(),
            Err(SqlFault::Unique) => break,
            Err(fault) => query
                .prepare_retry(session, fault)
                .await
                .map_err(SqlFault::into_error)?,
        }
    }

    let mut results: Vec<Option<Written>> = vec![None; groups.len()];
    while let Some(left) = pending_groups(&results) {
        let chosen: Vec<&Group> = left.iter().map(|at| groups[*at]).collect();
        let written = write_with_transactions(query, now, &chosen, partly_written).await?;
        left.iter()
            .zip(written)
            .for_each(|(at, written)| results[*at] = written);
    }

    Ok(results.into_iter().flatten().collect())
}

/// Returns the groups without a result, if any.
fn pending_groups(results: &[Option<Written>]) -> Option<Vec<usize>> {
    let left: Vec<usize> = (0..results.len())
        .filter(|at| results[*at].is_none())
        .collect();
    (!left.is_empty()).then_some(left)
}

/// Number of consecutive writes with only new fingerprints. After them, the next write is expected
/// to have only new fingerprints.
const NEW_IN_A_ROW: u32 = 16;

/// Predicts from earlier writes whether fingerprints are new.
///
/// Predicted new rows are inserted without a lookup of fingerprint holders, which saves half of the
/// index searches. An existing fingerprint fails the whole statement, and a write with the lookup
/// follows. At most one statement in [`NEW_IN_A_ROW`] fails this way, and leaves dead rows for
/// vacuum.
#[derive(Debug, Default)]
pub(super) struct NewRowPredictor(AtomicU32);

impl NewRowPredictor {
    pub(super) fn predicts_new_rows(&self) -> bool {
        self.0.load(Relaxed) >= NEW_IN_A_ROW
    }

    /// Records the result of a write with the lookup. Groups without fingerprints do not count.
    fn record_write(&self, groups: &[&Group], results: &[Written]) {
        let found_rows = results.iter().any(|result| match result {
            Written::Done(rows) => rows.iter().any(Option::is_some),
            _ => false,
        });
        if found_rows {
            self.reset();
        } else if groups
            .iter()
            .flat_map(|group| &group.rows)
            .any(|row| row.fingerprint.is_some())
        {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Result of the single statement.
enum MergeResult {
    Done(Vec<Written>),
    /// The statement found a conflict. Some rows may have been written.
    Conflict {
        partly_written: bool,
    },
}

/// The rows of one statement, and the statement row that represents each row of the groups.
struct WriteInput<'a> {
    rows: Vec<(MapId, &'a Row)>,
    /// Per group and row: the position in `rows`, and true if that entry is the row itself rather
    /// than another row with its fingerprint.
    places: Vec<Vec<(usize, bool)>>,
}

impl<'a> WriteInput<'a> {
    /// Collects the rows with each fingerprint once. Returns `None` if groups share an id, or share
    /// the fingerprint of a row that is already expired.
    fn from_groups(now: u64, groups: &[&'a Group]) -> Option<Self> {
        let rows = groups.iter().map(|group| group.rows.len()).sum();
        let mut input = Self {
            rows: Vec::with_capacity(rows),
            places: Vec::with_capacity(groups.len()),
        };

        let mut prints: HashMap<(MapId, Fingerprint), usize> = HashMap::with_capacity(rows);
        let mut ids: HashSet<(MapId, TokenId)> = HashSet::with_capacity(rows);
        for group in groups {
            let mut places = Vec::with_capacity(group.rows.len());
            for row in &group.rows {
                let print = row.fingerprint.map(|print| (group.map, print));
                if let Some(first) = print.and_then(|print| prints.get(&print)) {
                    if !input.rows[*first].1.is_live(now) {
                        return None;
                    }
                    places.push((*first, false));
                    continue;
                }
                if !ids.insert((group.map, row.id)) {
                    return None;
                }
                places.push((input.rows.len(), true));
                prints.extend(print.map(|print| (print, input.rows.len())));
                input.rows.push((group.map, row));
            }

            input.places.push(places);
        }

        Some(input.sort())
    }

    /// Sorts by map and fingerprint, so that concurrent writers of the same fingerprints wait for
    /// each other and do not deadlock.
    fn sort(mut self) -> Self {
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_unstable_by_key(|at| {
            let (map, row) = self.rows[*at];
            (map, row.fingerprint.is_none(), row.fingerprint, row.id)
        });

        let mut place = vec![0; order.len()];
        order
            .iter()
            .enumerate()
            .for_each(|(to, from)| place[*from] = to);
        self.rows = order.iter().map(|at| self.rows[*at]).collect();
        self.places
            .iter_mut()
            .flatten()
            .for_each(|(at, _)| *at = place[*at]);
        self
    }

    /// Returns the result of each group. `held` has the existing holders by row position.
    /// `is_retry` is defined as in [`plan_writes`].
    fn group_results(&self, held: &HashMap<usize, Row>, is_retry: bool) -> Vec<Written> {
        self.places
            .iter()
            .map(|places| {
                let known = places
                    .iter()
                    .map(|(at, itself)| self.known_row(*at, *itself, held.get(at), is_retry));
                Written::Done(known.collect())
            })
            .collect()
    }

    /// Returns the row whose token the client gets, or `None` if its own row was written. `holder`
    /// is the existing holder for the row at position `at`, and `itself` is true if that row is the
    /// client's row.
    fn known_row(
        &self,
        at: usize,
        itself: bool,
        holder: Option<&Row>,
        is_retry: bool,
    ) -> Option<Row> {
        let row = self.rows[at].1;
        match holder {
            Some(holder) if is_retry && itself && holder.id == row.id => None,
            Some(holder) => Some(holder.clone()),
            None if itself => None,
            None => Some(row.clone()),
        }
    }
}

/// The versions that subject keys must have, by the row of the key.
type Claims = BTreeMap<(MapId, SubjectId), u64>;

/// Returns the claims of all rows. Returns `None` if a claim can never hold, or if two claims
/// contradict each other.
fn collect_claims(groups: &[&Group]) -> Option<Claims> {
    let mut claims = Claims::new();
    for group in groups {
        for (subject, version) in group.rows.iter().filter_map(Row::claim) {
            let claimed = claims
                .entry((MapId::of_subjects(group.map.app), subject))
                .or_insert(version);
            if *claimed != version || version % 2 == 0 {
                return None;
            }
        }
    }

    Some(claims)
}

/// Writes groups in one statement and one round trip, unless a conflict exists. `assumes_new` skips
/// the lookup of fingerprint holders.
async fn merge_groups(
    session: &Session,
    now: u64,
    groups: &[&Group],
    is_retry: bool,
    assumes_new: bool,
) -> Result<MergeResult, SqlFault> {
    let Some((input, claims)) = WriteInput::from_groups(now, groups).zip(collect_claims(groups))
    else {
        return Ok(MergeResult::Conflict {
            partly_written: false,
        });
    };
    if input.rows.is_empty() {
        return Ok(MergeResult::Done(
            input.group_results(&HashMap::new(), is_retry),
        ));
    }

    let columns = Columns::from_rows(input.rows.iter().copied()).map_err(invalid_fault)?;
    if claims.is_empty()
        && (assumes_new || input.rows.iter().all(|(_, row)| row.fingerprint.is_none()))
    {
        citus::insert_rows(session, INSERT, &columns.params(), columns.apps()).await?;
        return Ok(MergeResult::Done(
            input.group_results(&HashMap::new(), is_retry),
        ));
    }
    if session.is_distributed() {
        // On distributed tables only a transaction can lock subject keys.
        return match claims.is_empty() {
            true => merge_apart(session, now, &input, is_retry).await,
            false => Ok(MergeResult::Conflict {
                partly_written: false,
            }),
        };
    }

    let at = db_seconds(now);
    let now_param: Params<'_> = &[&at];
    let found = if claims.is_empty() {
        session
            .query(MERGE, &join_params(&[&columns.params(), now_param]))
            .await?
    } else {
        let mut keys = Keys::default();
        let mut versions = Vec::with_capacity(claims.len());
        for ((map, subject), version) in &claims {
            keys.push(*map, &subject.0).map_err(invalid_fault)?;
            versions.push(i64::try_from(*version).unwrap_or(i64::MAX));
        }
        let versions: Params<'_> = &[&versions];
        session
            .query(
                MERGE_CLAIMED,
                &join_params(&[&columns.params(), now_param, &keys.params(), versions]),
            )
            .await?
    };

    let mut held = HashMap::new();
    let mut written = 0;
    let mut permitted = true;
    for row in &found {
        written = usize::try_from(rows::read_column::<i64>(row, 0)?).unwrap_or(0);
        permitted = rows::read_column(row, 1)?;
        if let Some(n) = rows::read_column::<Option<i64>>(row, 2)? {
            held.insert(
                usize::try_from(n).unwrap_or(0).saturating_sub(1),
                rows::read_row(row, 3)?,
            );
        }
    }

    if permitted
        && held.values().all(|row| row.is_live(now))
        && held.len() + written == columns.len()
    {
        return Ok(MergeResult::Done(input.group_results(&held, is_retry)));
    }
    Ok(MergeResult::Conflict {
        partly_written: written > 0,
    })
}

/// Looks up holders and inserts the other rows by two statements. This avoids [`MERGE`], which
/// Citus runs in many steps with intermediate files. A row that is written between the two
/// statements makes the second one fail.
async fn merge_apart(
    session: &Session,
    now: u64,
    input: &WriteInput<'_>,
    is_retry: bool,
) -> Result<MergeResult, SqlFault> {
    let mut prints = Keys::default();
    let mut places = HashMap::new();
    for (at, (map, row)) in input.rows.iter().enumerate() {
        if let Some(print) = &row.fingerprint {
            prints.push(*map, &print.0).map_err(invalid_fault)?;
            places.insert((*map, *print), at);
        }
    }

    let mut held = HashMap::new();
    for line in &session.query(HOLDERS, &prints.params()).await? {
        let map = rows::read_map(line, 0)?;
        let holder = rows::read_row(line, 2)?;
        if !holder.is_live(now) {
            return Ok(MergeResult::Conflict {
                partly_written: false,
            });
        }

        let at = holder
            .fingerprint
            .and_then(|print| places.get(&(map, print)));
        held.insert(*at.ok_or_else(rows::row_fault)?, holder);
    }

    let free = input
        .rows
        .iter()
        .enumerate()
        .filter(|(at, _)| !held.contains_key(at))
        .map(|(_, row)| *row);
    let free: Vec<_> = free.collect();
    if !free.is_empty() {
        let columns = Columns::from_rows(free).map_err(invalid_fault)?;
        citus::insert_rows(session, INSERT, &columns.params(), columns.apps()).await?;
    }

    Ok(MergeResult::Done(input.group_results(&held, is_retry)))
}

/// Writes groups in a transaction. Returns no result for groups that must be written after the
/// other groups.
async fn write_with_transactions(
    query: &mut Query<'_>,
    now: u64,
    groups: &[&Group],
    partly_written: bool,
) -> Result<Vec<Option<Written>>, StoreError> {
    loop {
        let session = query.next_session().await?;
        let guard = TransactionGuard::new(&session);
        let outcome = query
            .run_until_deadline(
                &session,
                run_transaction(&session, now, groups, partly_written || query.lost),
            )
            .await;
        guard.end(query, &outcome).await;
        match outcome {
            Ok(results) => return Ok(results),
            Err(fault) => {
                query
                    .prepare_retry(session, fault)
                    .await
                    .map_err(SqlFault::into_error)?;
            }
        }
    }
}

async fn run_transaction(
    session: &Session,
    now: u64,
    groups: &[&Group],
    is_retry: bool,
) -> Result<Vec<Option<Written>>, SqlFault> {
    let mut prints = Keys::default();
    let mut ids = Keys::default();
    for group in groups {
        for row in &group.rows {
            let pushed = row
                .fingerprint
                .as_ref()
                .map_or(Ok(()), |print| prints.push(group.map, &print.0));
            pushed
                .and_then(|()| ids.push(group.map, &row.id.0))
                .map_err(invalid_fault)?;
        }
    }

    let claimed = groups.iter().flat_map(|group| {
        let map = MapId::of_subjects(group.map.app);
        group
            .rows
            .iter()
            .filter_map(move |row| Some((map, row.subject?)))
    });
    let claimed: BTreeSet<(MapId, SubjectId)> = claimed.collect();
    let mut subjects = Keys::default();
    claimed
        .iter()
        .try_for_each(|(map, subject)| subjects.push(*map, &subject.0))
        .map_err(invalid_fault)?;
    let subject_params = subjects.params();
    let holder_params = prints.params();
    let id_params = ids.params();
    let lock = async {
        if claimed.is_empty() {
            Ok(Vec::new())
        } else {
            session.query(SUBJECT_KEYS, &subject_params).await
        }
    };

    let ((), keys, holders, taken) = tokio::try_join!(
        biased;
        session.batch_execute("BEGIN"),
        lock,
        session.query(HOLDERS, &holder_params),
        session.query(IDS, &id_params)
    )?;
    let existing = read_existing_rows(&keys, &holders, &taken)?;
    let plan = plan_writes(now, groups, existing, is_retry);
    archive_holders(session, now, &plan.archive).await?;
    if !plan.insert.is_empty() {
        let columns = Columns::from_rows(plan.insert).map_err(invalid_fault)?;
        let count =
            citus::insert_rows(session, INSERT_FREE, &columns.params(), columns.apps()).await?;
        if count != columns.len() as u64 {
            return Err(conflict_fault());
        }
    }

    session.batch_execute("COMMIT").await?;
    Ok(plan.results)
}

/// Combines the results of three lookups.
fn read_existing_rows(
    keys: &[tokio_postgres::Row],
    holders: &[tokio_postgres::Row],
    taken: &[tokio_postgres::Row],
) -> Result<ExistingRows, SqlFault> {
    let mut existing = ExistingRows::default();
    for row in keys {
        let version = u64::try_from(rows::read_column::<i64>(row, 3)?).unwrap_or(0);
        existing.subjects.insert(
            (
                rows::read_map(row, 0)?.app,
                SubjectId(rows::read_key(row, 2)?),
            ),
            version,
        );
    }

    for row in holders {
        let map = rows::read_map(row, 0)?;
        let holder = rows::read_row(row, 2)?;
        if let Some(print) = holder.fingerprint {
            existing.holders.insert((map, print), holder);
        }
    }

    for row in taken {
        let sealed = bytes::Bytes::copy_from_slice(rows::read_column(row, 3)?);
        existing.ids.insert(
            (rows::read_map(row, 0)?, TokenId(rows::read_key(row, 2)?)),
            sealed,
        );
    }

    Ok(existing)
}

/// Archives expired holders of the fingerprints.
async fn archive_holders(
    session: &Session,
    now: u64,
    prints: &[(MapId, Fingerprint)],
) -> Result<(), SqlFault> {
    if prints.is_empty() {
        return Ok(());
    }

    let mut keys = Keys::default();
    prints
        .iter()
        .try_for_each(|(map, print)| keys.push(*map, &print.0))
        .map_err(invalid_fault)?;
    let at = db_seconds(now);
    let archived = session
        .execute(ARCHIVE, &join_params(&[&keys.params(), &[&at]]))
        .await?;
    if archived == keys.len() as u64 {
        Ok(())
    } else {
        Err(conflict_fault())
    }
}

/// Returns the fault for rows that concurrent writers changed after the lookup.
pub(super) fn conflict_fault() -> SqlFault {
    SqlFault::Conflict("other writers changed the same rows first".into())
}

pub(super) fn invalid_fault(error: StoreError) -> SqlFault {
    SqlFault::Invalid(error.to_string())
}
