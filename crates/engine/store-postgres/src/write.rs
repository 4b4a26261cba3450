//! Writes of groups: one statement for many groups in the normal case, and a transaction if there
//! are conflicts.
//!
//! The statement looks up fingerprints, inserts the rows whose fingerprints have no holder, and
//! commits, in one round trip. While recent fingerprints were all new, the statement omits the
//! lookup ([`NewRowPredictor`]). The statement writes everything or nothing: if an id is taken the
//! statement fails, and if a holder has expired nothing is inserted.
//!
//! In both cases a transaction follows, which reads the existing rows, calls [`plan`] to decide,
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
use super::conflict_plan::{ExistingRows, plan};
use super::rows::{self, Columns, Keys, columns, joined, seconds};
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
pub(super) async fn write(
    shared: &Shared,
    now: u64,
    groups: &[Group],
) -> Vec<Result<Written, StoreError>> {
    let deadline = Instant::now() + shared.timeout;
    let invalid = groups.iter().map(|group| check(group).err());
    let mut batches = Batches::new(invalid, |at| (groups[at].rows.len(), 0));
    match shared.writers.take(deadline).await {
        Err(error) => batches.fail(&error),
        Ok(lane) => {
            let mut lost = false;
            while let Some(batch) = batches.next() {
                let chosen: Vec<&Group> = batch.iter().map(|at| &groups[*at]).collect();
                let written =
                    write_batch(&lane, &shared.news, deadline, now, &chosen, &mut lost).await;
                batches.record(
                    batch,
                    written.map(|written| written.into_iter().map(Ok).collect()),
                );
            }
        }
    }
    batches.into_results()
}

fn check(group: &Group) -> Result<(), StoreError> {
    rows::numbers(group.map)?;
    group.rows.iter().try_for_each(Row::check_times)
}

/// Writes groups by one statement, or by transactions if there are conflicts, with retries. `lost`
/// is true if an attempt had no response, so that some of the rows can already exist.
async fn write_batch(
    lane: &DedicatedConnection,
    news: &NewRowPredictor,
    deadline: Instant,
    now: u64,
    groups: &[&Group],
    lost: &mut bool,
) -> Result<Vec<Written>, StoreError> {
    let mut call = lane.call_by(deadline, true);
    call.lost = *lost;
    let written = attempts(&mut call, news, now, groups).await;
    *lost = call.lost;
    written
}

async fn attempts(
    call: &mut Query<'_>,
    news: &NewRowPredictor,
    now: u64,
    groups: &[&Group],
) -> Result<Vec<Written>, StoreError> {
    let mut partly = false;
    loop {
        let session = call.session().await?;
        let trusting = news.expected();
        match call
            .bound(&session, merge(&session, now, groups, call.lost, trusting))
            .await
        {
            Ok(Merged::Done(answers)) => {
                if !trusting {
                    news.saw(groups, &answers);
                }
                return Ok(answers);
            }
            Ok(Merged::Hindered { partly: some }) => {
                partly = some;
                break;
            }
            Err(SqlFault::Unique) if trusting => news.forget(),
            Err(SqlFault::Unique) => break,
            Err(fault) => call
                .again(session, fault)
                .await
                .map_err(SqlFault::into_error)?,
        }
    }
    let mut answers: Vec<Option<Written>> = vec![None; groups.len()];
    while let Some(left) = left(&answers) {
        let chosen: Vec<&Group> = left.iter().map(|at| groups[*at]).collect();
        let written = transact(call, now, &chosen, partly).await?;
        left.iter()
            .zip(written)
            .for_each(|(at, written)| answers[*at] = written);
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Returns the groups without a result, if any.
fn left(answers: &[Option<Written>]) -> Option<Vec<usize>> {
    let left: Vec<usize> = (0..answers.len())
        .filter(|at| answers[*at].is_none())
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
    pub(super) fn expected(&self) -> bool {
        self.0.load(Relaxed) >= NEW_IN_A_ROW
    }

    /// Records the result of a write with the lookup. Groups without fingerprints do not count.
    fn saw(&self, groups: &[&Group], answers: &[Written]) {
        let known = |answer: &Written| matches!(answer, Written::Done(rows) if rows.iter().any(Option::is_some));
        if answers.iter().any(known) {
            self.forget();
        } else if groups
            .iter()
            .flat_map(|group| &group.rows)
            .any(|row| row.fingerprint.is_some())
        {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Result of the single statement.
enum Merged {
    Done(Vec<Written>),
    /// The statement found a conflict. Some rows may have been written.
    Hindered {
        partly: bool,
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
    fn of(now: u64, groups: &[&'a Group]) -> Option<Self> {
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
        Some(input.sorted())
    }

    /// Sorts by map and fingerprint, so that concurrent writers of the same fingerprints wait for
    /// each other and do not deadlock.
    fn sorted(mut self) -> Self {
        let key =
            |(map, row): &(MapId, &Row)| (*map, row.fingerprint.is_none(), row.fingerprint, row.id);
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_unstable_by_key(|at| key(&self.rows[*at]));
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

    /// Returns the result of each group. `held` has the existing holders by row position. `again`
    /// is defined as in [`plan`].
    fn answers(&self, held: &HashMap<usize, Row>, again: bool) -> Vec<Written> {
        let known = |(at, itself): &(usize, bool)| match held.get(at) {
            Some(holder) if again && *itself && holder.id == self.rows[*at].1.id => None,
            Some(holder) => Some(holder.clone()),
            None if *itself => None,
            None => Some(self.rows[*at].1.clone()),
        };
        self.places
            .iter()
            .map(|places| Written::Done(places.iter().map(known).collect()))
            .collect()
    }
}

/// The versions that subject keys must have, by the row of the key.
type Claims = BTreeMap<(MapId, SubjectId), u64>;

/// Returns the claims of all rows. Returns `None` if a claim can never hold, or if two claims
/// contradict each other.
fn claims(groups: &[&Group]) -> Option<Claims> {
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

/// Writes groups in one statement and one round trip, unless a conflict exists. `trusting` skips
/// the lookup of fingerprint holders.
async fn merge(
    session: &Session,
    now: u64,
    groups: &[&Group],
    again: bool,
    trusting: bool,
) -> Result<Merged, SqlFault> {
    let Some((input, claims)) = WriteInput::of(now, groups).zip(claims(groups)) else {
        return Ok(Merged::Hindered { partly: false });
    };
    if input.rows.is_empty() {
        return Ok(Merged::Done(input.answers(&HashMap::new(), again)));
    }
    let columns = Columns::of(input.rows.iter().copied()).map_err(refused)?;
    if claims.is_empty()
        && (trusting || input.rows.iter().all(|(_, row)| row.fingerprint.is_none()))
    {
        citus::insert(session, INSERT, &columns.params(), columns.apps()).await?;
        return Ok(Merged::Done(input.answers(&HashMap::new(), again)));
    }
    if session.is_distributed() {
        // On distributed tables only a transaction can lock subject keys.
        return match claims.is_empty() {
            true => merge_apart(session, now, &input, again).await,
            false => Ok(Merged::Hindered { partly: false }),
        };
    }
    let at = seconds(now);
    let now_param: Params<'_> = &[&at];
    let found = if claims.is_empty() {
        session
            .query(MERGE, &joined(&[&columns.params(), now_param]))
            .await?
    } else {
        let (mut keys, mut versions) = (Keys::default(), Vec::with_capacity(claims.len()));
        for ((map, subject), version) in &claims {
            keys.push(*map, &subject.0).map_err(refused)?;
            versions.push(i64::try_from(*version).unwrap_or(i64::MAX));
        }
        let versions: Params<'_> = &[&versions];
        session
            .query(
                MERGE_CLAIMED,
                &joined(&[&columns.params(), now_param, &keys.params(), versions]),
            )
            .await?
    };
    let mut held = HashMap::new();
    let (mut written, mut permitted) = (0, true);
    for row in &found {
        written = usize::try_from(rows::column::<i64>(row, 0)?).unwrap_or(0);
        permitted = rows::column(row, 1)?;
        if let Some(n) = rows::column::<Option<i64>>(row, 2)? {
            held.insert(
                usize::try_from(n).unwrap_or(0).saturating_sub(1),
                rows::read(row, 3)?,
            );
        }
    }
    if permitted
        && held.values().all(|row| row.is_live(now))
        && held.len() + written == columns.len()
    {
        return Ok(Merged::Done(input.answers(&held, again)));
    }
    Ok(Merged::Hindered {
        partly: written > 0,
    })
}

/// Looks up holders and inserts the other rows by two statements. This avoids [`MERGE`], which
/// Citus runs in many steps with intermediate files. A row that is written between the two
/// statements makes the second one fail.
async fn merge_apart(
    session: &Session,
    now: u64,
    input: &WriteInput<'_>,
    again: bool,
) -> Result<Merged, SqlFault> {
    let (mut prints, mut places) = (Keys::default(), HashMap::new());
    for (at, (map, row)) in input.rows.iter().enumerate() {
        if let Some(print) = &row.fingerprint {
            prints.push(*map, &print.0).map_err(refused)?;
            places.insert((*map, *print), at);
        }
    }
    let mut held = HashMap::new();
    for line in &session.query(HOLDERS, &prints.params()).await? {
        let (map, holder) = (rows::map(line, 0)?, rows::read(line, 2)?);
        if !holder.is_live(now) {
            return Ok(Merged::Hindered { partly: false });
        }
        let at = holder
            .fingerprint
            .and_then(|print| places.get(&(map, print)));
        held.insert(*at.ok_or_else(rows::unfit)?, holder);
    }
    let free = input
        .rows
        .iter()
        .enumerate()
        .filter(|(at, _)| !held.contains_key(at))
        .map(|(_, row)| *row);
    let free: Vec<_> = free.collect();
    if !free.is_empty() {
        let columns = Columns::of(free).map_err(refused)?;
        citus::insert(session, INSERT, &columns.params(), columns.apps()).await?;
    }
    Ok(Merged::Done(input.answers(&held, again)))
}

/// Writes groups in a transaction. Returns no result for groups that must be written after the
/// other groups.
async fn transact(
    call: &mut Query<'_>,
    now: u64,
    groups: &[&Group],
    partly: bool,
) -> Result<Vec<Option<Written>>, StoreError> {
    loop {
        let session = call.session().await?;
        let open = TransactionGuard::new(&session);
        let outcome = call
            .bound(
                &session,
                transaction(&session, now, groups, partly || call.lost),
            )
            .await;
        open.end(call, &outcome).await;
        match outcome {
            Ok(answers) => return Ok(answers),
            Err(fault) => {
                call.again(session, fault)
                    .await
                    .map_err(SqlFault::into_error)?;
            }
        }
    }
}

async fn transaction(
    session: &Session,
    now: u64,
    groups: &[&Group],
    again: bool,
) -> Result<Vec<Option<Written>>, SqlFault> {
    let (mut prints, mut ids) = (Keys::default(), Keys::default());
    for group in groups {
        for row in &group.rows {
            let pushed = row
                .fingerprint
                .as_ref()
                .map_or(Ok(()), |print| prints.push(group.map, &print.0));
            pushed
                .and_then(|()| ids.push(group.map, &row.id.0))
                .map_err(refused)?;
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
        .map_err(refused)?;
    let (subject_params, holder_params, id_params) =
        (subjects.params(), prints.params(), ids.params());
    let lock = async {
        if claimed.is_empty() {
            Ok(Vec::new())
        } else {
            session.query(SUBJECT_KEYS, &subject_params).await
        }
    };
    let ((), keys, holders, taken) = tokio::try_join!(
        biased;
        session.batch("BEGIN"),
        lock,
        session.query(HOLDERS, &holder_params),
        session.query(IDS, &id_params)
    )?;
    let there = there(&keys, &holders, &taken)?;
    let plan = plan(now, groups, there, again);
    archive(session, now, &plan.archive).await?;
    if !plan.insert.is_empty() {
        let columns = Columns::of(plan.insert).map_err(refused)?;
        let count = citus::insert(session, INSERT_FREE, &columns.params(), columns.apps()).await?;
        if count != columns.len() as u64 {
            return Err(overtaken());
        }
    }
    session.batch("COMMIT").await?;
    Ok(plan.answers)
}

/// Combines the results of three lookups.
fn there(
    keys: &[tokio_postgres::Row],
    holders: &[tokio_postgres::Row],
    taken: &[tokio_postgres::Row],
) -> Result<ExistingRows, SqlFault> {
    let mut there = ExistingRows::default();
    for row in keys {
        let version = u64::try_from(rows::column::<i64>(row, 3)?).unwrap_or(0);
        there.subjects.insert(
            (rows::map(row, 0)?.app, SubjectId(rows::key(row, 2)?)),
            version,
        );
    }
    for row in holders {
        let (map, holder) = (rows::map(row, 0)?, rows::read(row, 2)?);
        if let Some(print) = holder.fingerprint {
            there.holders.insert((map, print), holder);
        }
    }
    for row in taken {
        let sealed = bytes::Bytes::copy_from_slice(rows::column(row, 3)?);
        there
            .ids
            .insert((rows::map(row, 0)?, TokenId(rows::key(row, 2)?)), sealed);
    }
    Ok(there)
}

/// Archives expired holders of the fingerprints.
async fn archive(
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
        .map_err(refused)?;
    let at = seconds(now);
    let archived = session
        .execute(ARCHIVE, &joined(&[&keys.params(), &[&at]]))
        .await?;
    if archived == keys.len() as u64 {
        Ok(())
    } else {
        Err(overtaken())
    }
}

/// Returns the fault for rows that concurrent writers changed after the lookup.
pub(super) fn overtaken() -> SqlFault {
    SqlFault::Clash("other writers were faster".into())
}

pub(super) fn refused(error: StoreError) -> SqlFault {
    SqlFault::Refused(error.to_string())
}
