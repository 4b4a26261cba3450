//! Control state in PostgreSQL. Every change must update the row with the generation, which
//! serializes changes.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use super::PostgresStore;
use super::rows::read_column;
use super::session::Params;
use super::sqlstate::{SqlFault, damaged};
use sealwire_store::{Changes, Commit, ControlStore, Instance, Snapshot, StoreError, is_single};

/// Notification channel for control state changes.
pub(super) const CHANNEL: &str = "sealwire_control";

static GENERATION: &str = "SELECT generation FROM sealwire.control WHERE one";

static LOAD: &str = "SELECT c.generation, r.key, r.record
    FROM sealwire.control c LEFT JOIN sealwire.records r ON true WHERE c.one";

static READ: &str = "SELECT c.generation, r.record
    FROM sealwire.control c LEFT JOIN sealwire.records r ON r.key = $1 WHERE c.one";

static READ_SINGLE: &str = "SELECT c.generation, r.record
    FROM sealwire.control c LEFT JOIN sealwire.single_records r ON r.key = $1 WHERE c.one";

static SINGLES: &str = "SELECT c.generation, r.key, r.record FROM sealwire.control c
    LEFT JOIN (SELECT key, record FROM sealwire.single_records WHERE key > $1 ORDER BY key LIMIT $2) r ON true
    WHERE c.one";

/// A concurrent change waits for the row lock, and then finds that the generation has changed. A
/// key must not be both removed and written. `$2` and `$5`: keys to remove. `$3`, `$4` and `$6`,
/// `$7`: keys and records to write.
static CHANGE: &str = "WITH moved AS (
        UPDATE sealwire.control SET generation = generation + 1 WHERE one AND generation = $1 RETURNING generation
    ), removed AS (
        DELETE FROM sealwire.records WHERE key = ANY($2::text[]) AND EXISTS (SELECT 1 FROM moved)
    ), put AS (
        INSERT INTO sealwire.records (key, record)
        SELECT r.key, r.record FROM unnest($3::text[], $4::bytea[]) AS r(key, record), moved
        ON CONFLICT (key) DO UPDATE SET record = excluded.record
    ), removed_single AS (
        DELETE FROM sealwire.single_records WHERE key = ANY($5::bytea[]) AND EXISTS (SELECT 1 FROM moved)
    ), put_single AS (
        INSERT INTO sealwire.single_records (key, record)
        SELECT r.key, r.record FROM unnest($6::bytea[], $7::bytea[]) AS r(key, record), moved
        ON CONFLICT (key) DO UPDATE SET record = excluded.record
    )
    SELECT generation FROM moved";

/// Updates existing records in place, because one statement cannot delete and insert the same key.
static REPLACE: &str = "WITH moved AS (
        UPDATE sealwire.control SET generation = greatest($2, generation + 1) WHERE one AND generation = $1
        RETURNING generation
    ), removed AS (
        DELETE FROM sealwire.records WHERE NOT key = ANY($3::text[]) AND EXISTS (SELECT 1 FROM moved)
    ), put AS (
        INSERT INTO sealwire.records (key, record)
        SELECT r.key, r.record FROM unnest($3::text[], $4::bytea[]) AS r(key, record), moved
        ON CONFLICT (key) DO UPDATE SET record = excluded.record
    ), removed_single AS (
        DELETE FROM sealwire.single_records WHERE NOT key = ANY($5::bytea[]) AND EXISTS (SELECT 1 FROM moved)
    ), put_single AS (
        INSERT INTO sealwire.single_records (key, record)
        SELECT r.key, r.record FROM unnest($5::bytea[], $6::bytea[]) AS r(key, record), moved
        ON CONFLICT (key) DO UPDATE SET record = excluded.record
    )
    SELECT generation FROM moved";

static NOTIFY: &str = "SELECT pg_notify('sealwire_control', '')";

static BEAT: &str = "INSERT INTO sealwire.instances (id, address, version, generation, seen)
    VALUES ($1, $2, $3, $4, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET address = excluded.address, version = excluded.version,
        generation = excluded.generation, seen = excluded.seen";

static LEAVE: &str = "WITH released AS (DELETE FROM sealwire.leases WHERE holder = $1)
    DELETE FROM sealwire.instances WHERE id = $1";

/// `$3`: seconds. The holder extends the lease; another instance can acquire it after expiry.
static LEASE: &str = "INSERT INTO sealwire.leases AS l (name, holder, until)
    VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3::float8))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
        WHERE l.holder = excluded.holder OR l.until <= clock_timestamp()
    RETURNING true";

/// `$1`: seconds. Also removes instances that have not reported for a day.
static INSTANCES: &str = "WITH gone AS (
        DELETE FROM sealwire.instances
        WHERE seen < clock_timestamp() - make_interval(secs => greatest($1::float8, 86400))
    )
    SELECT id, address, version, generation, extract(epoch FROM clock_timestamp() - seen)::float8
    FROM sealwire.instances WHERE seen >= clock_timestamp() - make_interval(secs => $1::float8) ORDER BY id COLLATE \"C\"";

fn to_generation(generation: i64) -> Result<u64, StoreError> {
    generation
        .try_into()
        .map_err(|_| damaged("the generation is negative"))
}

fn read_instance(row: &tokio_postgres::Row) -> Result<Instance, SqlFault> {
    Ok(Instance {
        id: read_column(row, 0)?,
        address: read_column(row, 1)?,
        version: read_column(row, 2)?,
        generation: read_column::<i64>(row, 3)?.try_into().unwrap_or(0),
        age: Duration::try_from_secs_f64(read_column::<f64>(row, 4)?).unwrap_or_default(),
    })
}

impl PostgresStore {
    /// Runs a statement that returns the new generation if it changed the generation. Then notifies
    /// other engines with a separate statement. The change is valid without the notification,
    /// because engines also poll.
    async fn change_state(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Commit, StoreError> {
        let rows = self.query(&self.shared.control, false, sql, params).await?;
        let Some(row) = rows.first() else {
            return Ok(Commit::Moved);
        };
        let generation = to_generation(read_column(row, 0).map_err(SqlFault::into_error)?)?;
        if let Err(error) = self.query(&self.shared.control, true, NOTIFY, &[]).await {
            tracing::debug!(%error, "other engines were not notified of a change");
        }
        Ok(Commit::Done(generation))
    }
}

#[async_trait]
impl ControlStore for PostgresStore {
    async fn generation(&self) -> Result<u64, StoreError> {
        let rows = self
            .query(&self.shared.control, true, GENERATION, &[])
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| damaged("the generation is missing"))?;
        to_generation(read_column(row, 0).map_err(SqlFault::into_error)?)
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        let rows = self.query(&self.shared.control, true, LOAD, &[]).await?;
        let first = rows
            .first()
            .ok_or_else(|| damaged("the generation is missing"))?;
        let generation = to_generation(read_column(first, 0).map_err(SqlFault::into_error)?)?;
        let mut records = BTreeMap::new();
        for row in &rows {
            if let Some(key) =
                read_column::<Option<String>>(row, 1).map_err(SqlFault::into_error)?
            {
                records.insert(key, read_column(row, 2).map_err(SqlFault::into_error)?);
            }
        }

        Ok(Snapshot {
            generation,
            records,
        })
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        let rows = if is_single(key) {
            self.query(&self.shared.control, true, READ_SINGLE, &[&key.as_bytes()])
                .await?
        } else {
            self.query(&self.shared.control, true, READ, &[&key])
                .await?
        };

        let row = rows
            .first()
            .ok_or_else(|| damaged("the generation is missing"))?;
        let generation = to_generation(read_column(row, 0).map_err(SqlFault::into_error)?)?;
        Ok((
            generation,
            read_column(row, 1).map_err(SqlFault::into_error)?,
        ))
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        let after = after.unwrap_or_default().as_bytes();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self
            .query(&self.shared.control, true, SINGLES, &[&after, &limit])
            .await?;
        let first = rows
            .first()
            .ok_or_else(|| damaged("the generation is missing"))?;
        let generation = to_generation(read_column(first, 0).map_err(SqlFault::into_error)?)?;
        let mut records = BTreeMap::new();
        for row in &rows {
            if let Some(key) =
                read_column::<Option<Vec<u8>>>(row, 1).map_err(SqlFault::into_error)?
            {
                let key = String::from_utf8(key)
                    .map_err(|_| damaged("the key of a record is not text"))?;
                records.insert(key, read_column(row, 2).map_err(SqlFault::into_error)?);
            }
        }

        Ok(Snapshot {
            generation,
            records,
        })
    }

    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        // No generation exceeds `i64`, so this base cannot match.
        let Ok(base) = i64::try_from(base) else {
            return Ok(Commit::Moved);
        };

        let mut removed_keys = Vec::new();
        let mut keys = Vec::new();
        let mut records = Vec::new();
        let mut removed_single_keys = Vec::new();
        let mut single_keys = Vec::new();
        let mut single_records = Vec::new();
        for (key, record) in changes {
            match (is_single(key), record) {
                (false, None) => removed_keys.push(&**key),
                (true, None) => removed_single_keys.push(key.as_bytes()),
                (false, Some(record)) => {
                    keys.push(&**key);
                    records.push(&record[..]);
                }
                (true, Some(record)) => {
                    single_keys.push(key.as_bytes());
                    single_records.push(&record[..]);
                }
            }
        }

        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
            &base,
            &removed_keys,
            &keys,
            &records,
            &removed_single_keys,
            &single_keys,
            &single_records,
        ];
        self.change_state(CHANGE, &params).await
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        let Ok(base) = i64::try_from(base) else {
            return Ok(Commit::Moved);
        };

        let generation =
            i64::try_from(state.generation).map_err(|_| damaged("no generation left"))?;
        let mut keys = Vec::new();
        let mut records = Vec::new();
        let mut single_keys = Vec::new();
        let mut single_records = Vec::new();
        for (key, record) in &state.records {
            if is_single(key) {
                single_keys.push(key.as_bytes());
                single_records.push(&record[..]);
            } else {
                keys.push(&**key);
                records.push(&record[..]);
            }
        }

        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 6] = [
            &base,
            &generation,
            &keys,
            &records,
            &single_keys,
            &single_records,
        ];
        self.change_state(REPLACE, &params).await
    }

    async fn changed(&self) {
        // The sender lives as long as the store.
        if self
            .shared
            .control_changes
            .lock()
            .await
            .changed()
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        let generation = i64::try_from(instance.generation).unwrap_or(i64::MAX);
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [
            &instance.id,
            &instance.address,
            &instance.version,
            &generation,
        ];
        self.query(&self.shared.control, true, BEAT, &params)
            .await
            .map(drop)
    }

    async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.query(&self.shared.control, true, LEAVE, &[&id])
            .await
            .map(drop)
    }

    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        let seconds = time.as_secs_f64();
        let rows = self
            .query(
                &self.shared.control,
                true,
                LEASE,
                &[&name, &holder, &seconds],
            )
            .await?;
        Ok(!rows.is_empty())
    }

    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
        // A hundred years are effectively unlimited, and still a valid interval.
        let seconds = age_max.as_secs_f64().min(3.2e9);
        let rows = self
            .query(&self.shared.control, true, INSTANCES, &[&seconds])
            .await?;
        rows.iter()
            .map(|row| read_instance(row).map_err(SqlFault::into_error))
            .collect()
    }
}
