//! Writes of groups: one statement for many of them where nothing is in the way, one transaction where something is.
//!
//! The statement looks fingerprints up, inserts what has none, and commits, in one round trip; while all are new, it
//! inserts without looking ([`News`]). It writes all or nothing:
//! an id that is taken fails it, and an expired holder keeps it from inserting at all. Either way the transaction
//! follows, which reads what is there, has [`plan`] decide, and writes that. Whoever is killed midway has
//! written whole groups or none, because each group is in one statement or one transaction.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use tokio::time::Instant;

use super::Shared;
use super::bulk_import::{INSERT, insert};
use super::conflict_plan::{There, plan};
use super::rows::{self, Columns, Keys, columns, joined, seconds};
use super::session::Session;
use super::sqlstate::Fault;
use super::transaction_guard::Open;
use super::worker::{Call, Lane};
use crate::{Fingerprint, Group, MapId, Row, StoreError, TokenId, Written};

/// Rows of one statement, unless one group alone has more: a group is never divided.
const ROWS_MAX: usize = 512;

/// `$10`: now. Gives holders by their row's place, and in each line how many rows were written.
static MERGE: &str = concat!(
    "WITH input AS MATERIALIZED (
        SELECT * FROM unnest($1::int4[], $2::int4[], $3::bytea[], $4::bytea[], $5::bytea[], $6::text[], $7::int8[],
            $8::int8[], $9::int8[]) WITH ORDINALITY
            AS i(app, collection, id, fingerprint, sealed, tags, expires, created, archived, n)
    ), held AS MATERIALIZED (
        SELECT i.n, ",
    columns!(),
    " FROM input i JOIN sealwire.tokens t
            ON t.app = i.app AND t.collection = i.collection AND t.fingerprint = i.fingerprint
        WHERE t.fingerprint IS NOT NULL
    ), written AS (
        INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, tags, expires, created)
        SELECT i.app, i.collection, i.id, i.fingerprint, i.sealed, i.tags::text[], i.expires, i.created FROM input i
        WHERE i.n NOT IN (SELECT n FROM held) AND NOT EXISTS (SELECT 1 FROM held WHERE expires <= $10)
        ORDER BY i.n
        ON CONFLICT (app, collection, fingerprint) WHERE fingerprint IS NOT NULL DO NOTHING
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM written), h.* FROM (SELECT 1) AS one LEFT JOIN held h ON true"
);

/// As [`INSERT`]; rows that somebody else wrote meanwhile are missing from its count.
static INSERT_FREE: &str = concat!(insert!(), " ON CONFLICT DO NOTHING");

static HOLDERS: &str = concat!(
    "SELECT t.app, t.collection, ",
    columns!(),
    " FROM unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, fingerprint) JOIN sealwire.tokens t
        ON t.app = i.app AND t.collection = i.collection AND t.fingerprint = i.fingerprint
    WHERE t.fingerprint IS NOT NULL"
);

static IDS: &str = "SELECT t.app, t.collection, t.id, t.sealed
    FROM unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, id) JOIN sealwire.tokens t
        ON t.app = i.app AND t.collection = i.collection AND t.id = i.id";

static ARCHIVE: &str = "UPDATE sealwire.tokens t SET archived = $4, fingerprint = NULL
    FROM unnest($1::int4[], $2::int4[], $3::bytea[]) AS i(app, collection, fingerprint)
    WHERE t.app = i.app AND t.collection = i.collection AND t.fingerprint = i.fingerprint
        AND t.fingerprint IS NOT NULL AND t.expires <= $4";

/// [`crate::TokenStore::write`]. Dropped midway it costs a connection.
pub(super) async fn write(shared: &Shared, now: u64, groups: &[Group]) -> Vec<Result<Written, StoreError>> {
    let deadline = Instant::now() + shared.timeout;
    let mut answers: Vec<Option<Result<Written, StoreError>>> =
        groups.iter().map(|group| check(group).err().map(Err)).collect();
    let fit: Vec<usize> = (0..groups.len()).filter(|at| answers[*at].is_none()).collect();
    let mut batches = packed(groups, &fit);
    batches.reverse();
    match shared.writers.take(deadline).await {
        Err(error) => fit.iter().for_each(|at| answers[*at] = Some(Err(error.repeated()))),
        Ok(lane) => {
            let mut lost = false;
            while let Some(mut batch) = batches.pop() {
                let chosen: Vec<&Group> = batch.iter().map(|at| &groups[*at]).collect();
                match write_batch(&lane, &shared.news, deadline, now, &chosen, &mut lost).await {
                    Ok(written) => {
                        batch.iter().zip(written).for_each(|(at, written)| answers[*at] = Some(Ok(written)));
                    }
                    // One of them cannot be written: halve until it stands alone.
                    Err(StoreError::Damaged { .. }) if batch.len() > 1 => {
                        batches.push(batch.split_off(batch.len() / 2));
                        batches.push(batch);
                    }
                    Err(error) => batch.iter().for_each(|at| answers[*at] = Some(Err(error.repeated()))),
                }
            }
        }
    }
    let unanswered = || Err(StoreError::Unavailable("not written".into()));
    answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
}

fn check(group: &Group) -> Result<(), StoreError> {
    rows::numbers(group.map)?;
    group.rows.iter().try_for_each(Row::check_times)
}

/// Groups in their order, as many at once as rows fit one statement.
fn packed(groups: &[Group], fit: &[usize]) -> Vec<Vec<usize>> {
    let (mut batches, mut rows): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
    for at in fit {
        let more = groups[*at].rows.len();
        match batches.last_mut() {
            Some(batch) if rows + more <= ROWS_MAX => {
                batch.push(*at);
                rows += more;
            }
            _ => {
                batches.push(vec![*at]);
                rows = more;
            }
        }
    }
    batches
}

/// Writes groups by one statement, or else by transactions, in as many attempts as faults ask for. `lost`: of these rows
/// some may be there since an attempt without an answer, now or before.
async fn write_batch(
    lane: &Lane,
    news: &News,
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

async fn attempts(call: &mut Call<'_>, news: &News, now: u64, groups: &[&Group]) -> Result<Vec<Written>, StoreError> {
    let mut partly = false;
    loop {
        let session = call.session().await?;
        let trusting = news.expected();
        match call.bound(&session, merge(&session, now, groups, call.lost, trusting)).await {
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
            Err(Fault::Unique) if trusting => news.forget(),
            Err(Fault::Unique) => break,
            Err(fault) => call.again(session, fault).await.map_err(Fault::into_error)?,
        }
    }
    let mut answers: Vec<Option<Written>> = vec![None; groups.len()];
    while let Some(left) = left(&answers) {
        let chosen: Vec<&Group> = left.iter().map(|at| groups[*at]).collect();
        let written = transact(call, now, &chosen, partly).await?;
        left.iter().zip(written).for_each(|(at, written)| answers[*at] = written);
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Which have no answer yet, if any.
fn left(answers: &[Option<Written>]) -> Option<Vec<usize>> {
    let left: Vec<usize> = (0..answers.len()).filter(|at| answers[*at].is_none()).collect();
    (!left.is_empty()).then_some(left)
}

/// Writes in a row whose fingerprints were all new, which make the next one believed to be like them.
const NEW_IN_A_ROW: u32 = 16;

/// Whether fingerprints that are written are new ones, going by the writes before.
///
/// Then rows are inserted without a look at who holds their fingerprints, which saves half of the walks through indexes. One
/// that is held fails that statement as a whole, and the look is taken after all: at most one statement of
/// [`NEW_IN_A_ROW`] is in vain, and leaves its rows to be vacuumed.
#[derive(Debug, Default)]
pub(super) struct News(AtomicU32);

impl News {
    pub(super) fn expected(&self) -> bool {
        self.0.load(Relaxed) >= NEW_IN_A_ROW
    }

    /// What became of groups after a look. Those without fingerprints say nothing.
    fn saw(&self, groups: &[&Group], answers: &[Written]) {
        let known = |answer: &Written| matches!(answer, Written::Done(rows) if rows.iter().any(Option::is_some));
        if answers.iter().any(known) {
            self.forget();
        } else if groups.iter().flat_map(|group| &group.rows).any(|row| row.fingerprint.is_some()) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

/// What the statement came to.
enum Merged {
    Done(Vec<Written>),
    /// Something was in the way; rows may have been written nevertheless.
    Hindered {
        partly: bool,
    },
}

/// The rows of one statement, and which of them stands for each row of the groups.
struct Input<'a> {
    rows: Vec<(MapId, &'a Row)>,
    /// Per group and row: its place in `rows`, and whether it is that one itself.
    places: Vec<Vec<(usize, bool)>>,
}

impl<'a> Input<'a> {
    /// Each fingerprint once. `None` when groups meet in an id, or in a fingerprint whose row is expired from the start.
    fn of(now: u64, groups: &[&'a Group]) -> Option<Self> {
        let rows = groups.iter().map(|group| group.rows.len()).sum();
        let mut input = Self { rows: Vec::with_capacity(rows), places: Vec::with_capacity(groups.len()) };
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

    /// By map and fingerprint, so that writers of the same fingerprints wait for each other and do not deadlock.
    fn sorted(mut self) -> Self {
        let key = |(map, row): &(MapId, &Row)| (*map, row.fingerprint.is_none(), row.fingerprint, row.id);
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_unstable_by_key(|at| key(&self.rows[*at]));
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, from)| place[*from] = to);
        self.rows = order.iter().map(|at| self.rows[*at]).collect();
        self.places.iter_mut().flatten().for_each(|(at, _)| *at = place[*at]);
        self
    }

    /// What each group is told, given who holds the fingerprint of a row by its place. `again` as in [`plan`].
    fn answers(&self, held: &HashMap<usize, Row>, again: bool) -> Vec<Written> {
        let known = |(at, itself): &(usize, bool)| match held.get(at) {
            Some(holder) if again && *itself && holder.id == self.rows[*at].1.id => None,
            Some(holder) => Some(holder.clone()),
            None if *itself => None,
            None => Some(self.rows[*at].1.clone()),
        };
        self.places.iter().map(|places| Written::Done(places.iter().map(known).collect())).collect()
    }
}

/// Writes groups in one statement and one round trip, if nothing is in the way. `trusting`: without a look at who holds
/// their fingerprints.
async fn merge(session: &Session, now: u64, groups: &[&Group], again: bool, trusting: bool) -> Result<Merged, Fault> {
    let Some(input) = Input::of(now, groups) else { return Ok(Merged::Hindered { partly: false }) };
    if input.rows.is_empty() {
        return Ok(Merged::Done(input.answers(&HashMap::new(), again)));
    }
    let columns = Columns::of(input.rows.iter().copied()).map_err(refused)?;
    if trusting || input.rows.iter().all(|(_, row)| row.fingerprint.is_none()) {
        session.execute(INSERT, &columns.params()).await?;
        return Ok(Merged::Done(input.answers(&HashMap::new(), again)));
    }
    let at = seconds(now);
    let found = session.query(MERGE, &joined(&[&columns.params(), &[&at]])).await?;
    let mut held = HashMap::new();
    let mut written = 0;
    for row in &found {
        written = usize::try_from(rows::column::<i64>(row, 0)?).unwrap_or(0);
        if let Some(n) = rows::column::<Option<i64>>(row, 1)? {
            held.insert(usize::try_from(n).unwrap_or(0).saturating_sub(1), rows::read(row, 2)?);
        }
    }
    if held.values().all(|row| row.is_live(now)) && held.len() + written == columns.len() {
        return Ok(Merged::Done(input.answers(&held, again)));
    }
    Ok(Merged::Hindered { partly: written > 0 })
}

/// Writes groups in a transaction; no answer for those that must come after the others.
async fn transact(
    call: &mut Call<'_>,
    now: u64,
    groups: &[&Group],
    partly: bool,
) -> Result<Vec<Option<Written>>, StoreError> {
    loop {
        let session = call.session().await?;
        let open = Open::new(&session);
        let outcome = call.bound(&session, transaction(&session, now, groups, partly || call.lost)).await;
        open.end(call, &outcome).await;
        match outcome {
            Ok(answers) => return Ok(answers),
            Err(fault) => {
                call.again(session, fault).await.map_err(Fault::into_error)?;
            }
        }
    }
}

async fn transaction(
    session: &Session,
    now: u64,
    groups: &[&Group],
    again: bool,
) -> Result<Vec<Option<Written>>, Fault> {
    let (mut prints, mut ids) = (Keys::default(), Keys::default());
    for group in groups {
        for row in &group.rows {
            let pushed = row.fingerprint.as_ref().map_or(Ok(()), |print| prints.push(group.map, &print.0));
            pushed.and_then(|()| ids.push(group.map, &row.id.0)).map_err(refused)?;
        }
    }
    let (holder_params, id_params) = (prints.params(), ids.params());
    let ((), holders, taken) = tokio::try_join!(
        session.batch("BEGIN"),
        session.query(HOLDERS, &holder_params),
        session.query(IDS, &id_params)
    )?;
    let there = there(&holders, &taken)?;
    let plan = plan(now, groups, there, again);
    archive(session, now, &plan.archive).await?;
    if !plan.insert.is_empty() {
        let columns = Columns::of(plan.insert).map_err(refused)?;
        if session.execute(INSERT_FREE, &columns.params()).await? != columns.len() as u64 {
            return Err(overtaken());
        }
    }
    session.batch("COMMIT").await?;
    Ok(plan.answers)
}

/// What two look-ups found.
fn there(holders: &[tokio_postgres::Row], taken: &[tokio_postgres::Row]) -> Result<There, Fault> {
    let mut there = There::default();
    for row in holders {
        let (map, holder) = (rows::map(row, 0)?, rows::read(row, 2)?);
        if let Some(print) = holder.fingerprint {
            there.holders.insert((map, print), holder);
        }
    }
    for row in taken {
        let sealed = bytes::Bytes::copy_from_slice(rows::column(row, 3)?);
        there.ids.insert((rows::map(row, 0)?, TokenId(rows::key(row, 2)?)), sealed);
    }
    Ok(there)
}

/// Has expired holders give way.
async fn archive(session: &Session, now: u64, prints: &[(MapId, Fingerprint)]) -> Result<(), Fault> {
    if prints.is_empty() {
        return Ok(());
    }
    let mut keys = Keys::default();
    prints.iter().try_for_each(|(map, print)| keys.push(*map, &print.0)).map_err(refused)?;
    let at = seconds(now);
    let archived = session.execute(ARCHIVE, &joined(&[&keys.params(), &[&at]])).await?;
    if archived == keys.len() as u64 { Ok(()) } else { Err(overtaken()) }
}

/// What was there when it was looked up is not any more, or the reverse.
fn overtaken() -> Fault {
    Fault::Clash("other writers were faster".into())
}

fn refused(error: StoreError) -> Fault {
    Fault::Refused(error.to_string())
}
