//! Writes of groups: one statement for groups that only add objects, and a transaction otherwise.
//!
//! The statement writes everything or nothing. An id or a unique term that is taken makes the
//! statement fail. Nothing is written if a fence rejects a group or if a claim on a subject key
//! does not hold. A transaction then follows, which reads the fences, locks the named objects, and
//! reads the holders of unique terms. The transaction applies the groups in memory and writes the
//! net difference. If a concurrent transaction commits first, the whole transaction is repeated.
//!
//! If a connection breaks, the attempt may have taken effect. See [`ObjectOverlay::is_written`] for
//! how a retry recognizes its own writes.

use std::collections::BTreeSet;

use tokio::time::{Instant, sleep};
use tokio_postgres::types::ToSql;

use super::add::{Fences, NewObjects};
use super::change::{NetChange, check_numbers};
use super::overlay::{NeededKeys, ObjectOverlay, StoredObjects};
use super::rows::{self, TermColumns, object_columns};
use crate::batches::Batches;
use crate::rows::{Keys, map_numbers, read_column, read_key, read_map};
use crate::session::Session;
use crate::sqlstate::SqlFault;
use crate::transaction_guard::TransactionGuard;
use crate::worker::{DedicatedConnection, Query, reconnect_pause};
use crate::write::{conflict_fault, invalid_fault};
use crate::{Shared, citus};
use sealwire_store::{
    MapId, ObjectGroup, ObjectId, ObjectRow, ObjectsWritten, StoreError, apply_group, apply_put,
    check_fence,
};

/// Locks objects in the order of their keys, so that concurrent transactions wait for each other
/// and do not deadlock. Returns the sealed content only of objects for which `$4` is true, because
/// the content can be large and few writes need it.
pub(super) static LOCK: &str = concat!(
    "SELECT t.app, t.collection, ",
    object_columns!(head),
    ", CASE WHEN i.is_compared THEN t.sealed ELSE ''::bytea END
    FROM unnest($1::int4[], $2::int4[], $3::bytea[], $4::bool[]) AS i(app, collection, id, is_compared)
    JOIN sealwire.objects t ON t.app = i.app AND t.collection = i.collection AND t.id = i.id
    ORDER BY t.app, t.collection, t.id FOR UPDATE OF t"
);

/// Returns holders of unique terms, and their objects without the sealed content. A transaction
/// only archives them.
pub(super) static HOLDERS: &str = concat!(
    "SELECT u.app, u.collection, u.index_number, u.hash, u.id, ",
    object_columns!(bare),
    " FROM unnest($1::int4[], $2::int4[], $3::int8[], $4::bytea[]) AS i(app, collection, index_number, hash)
    JOIN sealwire.object_unique u ON u.app = i.app AND u.collection = i.collection
        AND u.index_number = i.index_number AND u.hash = i.hash
    LEFT JOIN sealwire.objects t ON t.app = u.app AND t.collection = u.collection AND t.id = u.id"
);

pub(super) static FENCES_OF: &str = "SELECT f.app, f.collection, f.generation
    FROM unnest($1::int4[], $2::int4[]) AS i(app, collection)
    JOIN sealwire.object_fences f ON f.app = i.app AND f.collection = i.collection";

type WriteResult = Result<ObjectsWritten, StoreError>;

/// Implements [`sealwire_store::ObjectStore::write_objects`]. Cancelling it midway costs a
/// connection.
pub(super) async fn write_groups(
    shared: &Shared,
    now: u64,
    groups: &[ObjectGroup],
) -> Vec<WriteResult> {
    let deadline = Instant::now() + shared.timeout;
    let invalid = groups.iter().map(|group| check_group(group).err());
    let mut batches = Batches::new(invalid, |at| (groups[at].len(), groups[at].bytes()));
    match shared.writers.lease(deadline).await {
        Err(error) => batches.fail(&error),
        Ok(connection) => {
            let mut lost = false;
            while let Some(batch) = batches.next() {
                let chosen: Vec<&ObjectGroup> = batch.iter().map(|at| &groups[*at]).collect();
                let written = write_batch(&connection, deadline, now, &chosen, &mut lost).await;
                batches.record(batch, written);
            }
        }
    }

    batches.into_results()
}

/// Implements [`sealwire_store::ObjectStore::put_objects`].
pub(super) async fn put_objects(
    shared: &Shared,
    given: &[(MapId, ObjectRow)],
) -> Result<(), StoreError> {
    given
        .iter()
        .try_for_each(|(map, row)| check_numbers(*map, Some(row)))?;
    let deadline = Instant::now() + shared.timeout;
    let connection = shared.writers.lease(deadline).await?;
    let mut query = connection.start_query_by(deadline, true);
    let written = write_in_transaction(&mut query, deadline, &Task::Put(given)).await?;
    written
        .into_iter()
        .try_for_each(|written| written.map(|_| ()))
}

fn check_group(group: &ObjectGroup) -> Result<(), StoreError> {
    check_numbers(group.view.map, None)?;
    group
        .rows()
        .try_for_each(|row| check_numbers(group.view.map, Some(row)))
}

/// Writes groups by one statement, or by a transaction, with retries. `lost` is true if an attempt
/// had no response, so that some of the groups may already be written.
async fn write_batch(
    connection: &DedicatedConnection,
    deadline: Instant,
    now: u64,
    groups: &[&ObjectGroup],
    lost: &mut bool,
) -> Result<Vec<WriteResult>, StoreError> {
    let mut query = connection.start_query_by(deadline, true);
    query.lost = *lost;
    let written = write_with_retries(&mut query, deadline, now, groups).await;
    *lost = query.lost;
    written
}

async fn write_with_retries(
    query: &mut Query<'_>,
    deadline: Instant,
    now: u64,
    groups: &[&ObjectGroup],
) -> Result<Vec<WriteResult>, StoreError> {
    while !query.lost
        && let Some(new) = NewObjects::from_groups(groups)
    {
        let session = query.next_session().await?;
        match insert_new(query, &session, new, deadline).await {
            Ok(true) => return Ok(groups.iter().map(|_| Ok(ObjectsWritten::Done)).collect()),
            Ok(false) | Err(SqlFault::Unique) => break,
            Err(fault) => query
                .prepare_retry(session, fault)
                .await
                .map_err(SqlFault::into_error)?,
        }
    }
    write_in_transaction(query, deadline, &Task::Groups(now, groups)).await
}

/// Writes new objects.
async fn insert_new(
    query: &Query<'_>,
    session: &Session,
    new: NewObjects<'_>,
    deadline: Instant,
) -> Result<bool, SqlFault> {
    let guard = session
        .is_distributed()
        .then(|| TransactionGuard::new(session));
    let inserted = query
        .run_until_deadline(session, new.insert_all(session, deadline))
        .await;
    if let Some(guard) = guard {
        guard.end(query, &inserted).await;
    }
    inserted
}

/// The changes of one transaction.
enum Task<'a> {
    /// `now`, and groups that are written in sequence.
    Groups(u64, &'a [&'a ObjectGroup]),
    /// Objects that are written unchanged.
    Put(&'a [(MapId, ObjectRow)]),
}

/// Makes changes in a transaction. Returns one result per group, or one result for objects that are
/// put.
async fn write_in_transaction(
    query: &mut Query<'_>,
    deadline: Instant,
    task: &Task<'_>,
) -> Result<Vec<WriteResult>, StoreError> {
    let mut races = 0;
    loop {
        let session = query.next_session().await?;
        let guard = TransactionGuard::new(&session);
        let outcome = query
            .run_until_deadline(
                &session,
                run_transaction(&session, task, deadline, query.lost),
            )
            .await;
        guard.end(query, &outcome).await;
        match outcome {
            Ok(results) => return Ok(results),
            // Another transaction took an id or a unique term after the read that found both free.
            Err(SqlFault::Unique) => {
                if Instant::now() >= deadline {
                    return Err(conflict_fault().into_error());
                }
                sleep(reconnect_pause(races) / 8).await;
                races += 1;
            }
            Err(fault) => query
                .prepare_retry(session, fault)
                .await
                .map_err(SqlFault::into_error)?,
        }
    }
}

async fn run_transaction(
    session: &Session,
    task: &Task<'_>,
    deadline: Instant,
    is_retry: bool,
) -> Result<Vec<WriteResult>, SqlFault> {
    let results = match task {
        Task::Groups(now, groups) => {
            let (stored, fences) = lock_objects(
                session,
                "BEGIN",
                &NeededKeys::of_groups(groups),
                groups,
                is_retry,
            )
            .await?;
            let mut overlay = ObjectOverlay::new(&stored);
            let results = apply_groups(&mut overlay, *now, groups, &fences, is_retry);
            NetChange::from_overlay(&overlay)
                .write_changes(session)
                .await?;
            results
        }
        Task::Put(rows) => match put_parts(session, rows).await? {
            Ok(()) => vec![Ok(ObjectsWritten::Done)],
            Err(error) => {
                session.batch_execute("ROLLBACK").await?;
                return Ok(vec![Err(error)]);
            }
        },
    };

    // A process that was paused must not commit based on fences that it read long before.
    if Instant::now() >= deadline {
        return Err(conflict_fault());
    }

    session.batch_execute("COMMIT").await?;
    Ok(results)
}

/// Starts a transaction and puts objects, app by app if Citus distributes the tables. The inner
/// error is an error of the objects.
async fn put_parts(
    session: &Session,
    rows: &[(MapId, ObjectRow)],
) -> Result<Result<(), StoreError>, SqlFault> {
    let mut begin = "BEGIN";
    for (_, rows) in
        citus::split_by_app(session.is_distributed(), rows.to_vec(), |(map, _)| map.app)
    {
        let (stored, _) =
            lock_objects(session, begin, &NeededKeys::of_rows(&rows), &[], true).await?;
        begin = "";
        let mut overlay = ObjectOverlay::new(&stored);
        if let Err(error) = apply_put(&mut overlay, &rows) {
            return Ok(Err(error));
        }
        overlay.keep_changes();
        NetChange::from_overlay(&overlay)
            .write_changes(session)
            .await?;
    }
    Ok(Ok(()))
}

/// Applies groups in sequence. `is_retry` is true if an earlier attempt may have written them.
fn apply_groups(
    overlay: &mut ObjectOverlay<'_>,
    now: u64,
    groups: &[&ObjectGroup],
    fences: &Fences,
    is_retry: bool,
) -> Vec<WriteResult> {
    groups
        .iter()
        .enumerate()
        .map(|(at, group): (usize, &&ObjectGroup)| {
            if is_retry && overlay.is_written(group, &groups[at + 1..]) {
                return Ok(ObjectsWritten::Done);
            }
            group
                .views()
                .try_for_each(|view| check_fence(view, fences.get(&view.map).copied()))?;
            let written = apply_group(overlay, now, group);
            if matches!(written, Ok(ObjectsWritten::Done)) {
                overlay.keep_changes()
            } else {
                overlay.discard_changes()
            }
            written
        })
        .collect()
}

/// Starts a transaction with the statement `begin`, reads fences, locks objects, and reads the
/// holders of unique terms. `is_compared` is true if the sealed content of all locked objects is
/// needed.
async fn lock_objects(
    session: &Session,
    begin: &str,
    needed: &NeededKeys,
    groups: &[&ObjectGroup],
    is_compared: bool,
) -> Result<(StoredObjects, Fences), SqlFault> {
    let mut keys = Keys::default();
    let mut stored = StoredObjects::default();
    needed
        .objects
        .iter()
        .try_for_each(|(map, id)| keys.push(*map, &id.0))
        .map_err(invalid_fault)?;
    let compared: Vec<bool> = needed
        .objects
        .iter()
        .map(|key| is_compared || needed.compared.contains(key))
        .collect();
    let [apps, collections, ids] = keys.params();
    let params: [&(dyn ToSql + Sync); 4] = [apps, collections, ids, &compared];
    let ((), fences, locked) = tokio::try_join!(biased; session.batch_execute(begin), read_fences(session, groups), session.query(LOCK, &params))?;
    for row in &locked {
        let map = read_map(row, 0)?;
        let object = rows::read_object(row, 2)?;
        // Every transaction that changes the terms of an object locks the object first.
        stored
            .holders
            .extend(object.unique.iter().map(|term| ((map, *term), object.id)));
        stored.objects.insert((map, object.id), object);
    }

    // Only a statement that starts after the locks were acquired sees the terms that concurrent
    // transactions wrote before.
    find_holders(session, needed, &mut stored).await?;
    Ok((stored, fences))
}

/// Reads the holders of needed unique terms that no locked object holds.
async fn find_holders(
    session: &Session,
    needed: &NeededKeys,
    stored: &mut StoredObjects,
) -> Result<(), SqlFault> {
    let any_id = ObjectId([0; 16]);
    let unknown = needed
        .unique
        .iter()
        .filter(|key| !stored.holders.contains_key(*key));
    let unknown: Vec<_> = unknown.map(|(map, term)| (*map, term, &any_id)).collect();
    if unknown.is_empty() {
        return Ok(());
    }

    let terms = TermColumns::from_unsorted(unknown).map_err(invalid_fault)?;
    for row in &session.query(HOLDERS, &terms.params()[..4]).await? {
        let map = read_map(row, 0)?;
        let id = ObjectId(read_key(row, 4)?);
        let is_named = needed.objects.contains(&(map, id));
        let is_there = read_column::<Option<&[u8]>>(row, 5)?.is_some();
        // Another transaction added the object after this transaction looked for objects to lock.
        if is_named && is_there && !stored.objects.contains_key(&(map, id)) {
            return Err(conflict_fault());
        }
        stored.holders.insert((map, rows::read_term(row, 2)?), id);
        if !is_named && is_there {
            stored.objects.insert((map, id), rows::read_object(row, 5)?);
        }
    }

    Ok(())
}

/// Returns the fences of the maps of groups.
async fn read_fences(session: &Session, groups: &[&ObjectGroup]) -> Result<Fences, SqlFault> {
    let maps: BTreeSet<MapId> = groups
        .iter()
        .flat_map(|group| group.views())
        .map(|view| view.map)
        .collect();
    if maps.is_empty() {
        return Ok(Fences::new());
    }

    let maps: Result<Vec<_>, _> = maps.into_iter().map(map_numbers).collect();
    let (apps, collections): (Vec<i32>, Vec<i32>) =
        maps.map_err(invalid_fault)?.into_iter().unzip();
    let found = session.query(FENCES_OF, &[&apps, &collections]).await?;
    found
        .iter()
        .map(|row| {
            Ok((
                read_map(row, 0)?,
                read_column::<i64>(row, 2)?.try_into().unwrap_or(0),
            ))
        })
        .collect()
}
