//! The job that masks one PostgreSQL database into another.
//!
//! The source is read in one snapshot, independent of concurrent changes. Keys, indexes,
//! constraints and triggers are created after the data. The target itself thus verifies that
//! references and unique values are intact. A failed job leaves the target empty again.

pub(crate) mod catalog;
mod check;
mod connect;
mod copy;
mod dry_run;
mod dump;
pub(crate) mod rows;
pub(crate) mod sample;
pub(crate) mod source;
pub(crate) mod target;

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use sealwire_mask_rules::Rules;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_postgres::Client;

pub use catalog::quoted;
pub(crate) use catalog::{Catalog, Class, Column, KindScope, OURS, Table};
pub(crate) use check::{check, keeps_apart, reject_missing};
pub use connect::{Database, Endpoint};
pub use target::reject_privileged_writer;

use crate::mask_job::engine::Engine;
use crate::mask_job::error::JobError;
use crate::mask_job::limits::Limits;
use crate::mask_job::memory::ByteBudget;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Progress, Report, RunningReport};
use copy::{CopiedTable, Run};
use dump::{Dump, DumpSection, Section};
use rows::Rows;
use sample::{NO_TIMEOUT, SampleReader};

/// A job that masks one database into another.
#[derive(Clone, Debug)]
pub struct DatabaseJob {
    /// The source, which is only read.
    pub source: Database,
    /// The target, which must be empty.
    pub target: Database,
    /// True if existing contents of the target are dropped first.
    pub replace: bool,
    /// Limits of the job.
    pub limits: Limits,
}

/// Copies and masks a database. If `stop` completes first, or an error occurs, everything created
/// in the target is dropped again. If the future is dropped instead, the created objects remain,
/// and the next job into that target drops them.
///
/// # Errors
/// [`JobError`], and [`JobError::Left`] if the target could not be emptied.
pub async fn mask_database<E: Engine>(
    job: DatabaseJob,
    rules: Arc<Rules>,
    engine: Arc<E>,
    progress: Arc<Progress>,
    stop: impl Future<Output = ()>,
) -> Result<Report, JobError> {
    let started_at = Instant::now();
    let DatabaseJob {
        source,
        target,
        replace,
        limits,
    } = job;
    let endpoints = tokio::task::spawn_blocking(move || {
        Ok::<_, JobError>((
            Endpoint::new(source, "source")?,
            Endpoint::new(target, "target")?,
        ))
    });
    let (source, target) = endpoints.await??;

    let writer = target.connect().await?;
    target::reject_same((&source.connect().await?, &source), (&writer, &target)).await?;
    target::reject_privileged(&writer, &target).await?;
    target::reject_privileged_reader(&source).await?;

    let opened = source::Snapshot::open(&source).await?;
    let reader = &opened.client;
    let snapshot = export_snapshot(reader, &source).await?;
    let catalog = Catalog::read(reader, &source).await?;
    let plan = Arc::new(Plan::new(rules));
    check(&catalog, &plan)?;
    target::reject_mark(reader, &source).await?;

    let dump = Dump::find(reader, &source).await?;
    let schema = Schema {
        pre_data: dump
            .dump_section(&source, &snapshot, Section::PreData)
            .await?,
        post_data: dump
            .dump_section(&source, &snapshot, Section::PostData)
            .await?,
    };
    // Progress counts rows, since the size on disk differs from the number of bytes that COPY
    // sends.
    progress.set_totals(
        0,
        catalog
            .tables
            .iter()
            .map(|table| table.rows_estimated)
            .sum(),
    );

    let extension_rows = extension_rows(reader, &source).await?;
    let not_judged = if plan.has_kinds() {
        not_judged(&catalog, &plan)
    } else {
        Vec::new()
    };

    target::prepare_target(&writer, &target, replace).await?;
    let run = Arc::new(Run {
        source,
        target,
        snapshot,
        engine,
        plan,
        running_report: Arc::new(RunningReport::default()),
        limits,
        progress,
        cpu: Arc::new(Semaphore::new(limits.workers.max(1))),
        budget: ByteBudget::new(limits.in_flight_bytes_max),
    });
    let outcome = tokio::select! {
        outcome = fill_target(&run, &opened, &catalog, &schema) => outcome,
        () = stop => Err(JobError::Stopped),
    };
    let (bytes_in, bytes_out) = match outcome {
        Ok(bytes) => bytes,
        Err(error) => return Err(empty_target(&run.target, error).await),
    };
    target::remove_mark(&writer, &run.target).await?;

    Ok(Report {
        records: run.progress.snapshot().records,
        bytes_in,
        bytes_out,
        elapsed_ms: started_at.elapsed().as_millis() as u64,
        peak_memory_bytes: crate::mask_job::report::peak_memory(),
        fields: run.running_report.rows(),
        not_judged,
        not_copied: [
            schema.pre_data.left_out,
            schema.post_data.left_out,
            extension_rows,
        ]
        .concat(),
    })
}

struct Schema {
    pre_data: DumpSection,
    post_data: DumpSection,
}

/// The results of the copied tables.
#[derive(Default)]
struct CopyTotals {
    tables: Vec<CopiedTable>,
    bytes_in: u64,
    bytes_out: u64,
}

/// Returns the tables of extensions whose rows `pg_dump` would copy.
async fn extension_rows(reader: &Client, source: &Endpoint) -> Result<Vec<String>, JobError> {
    let sql = "SELECT pg_catalog.format('rows of %I.%I, a table of extension %I', n.nspname, c.relname, e.extname) \
        FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_class c ON c.oid = ANY (e.extconfig) AND c.relkind IN ('r', 'p') \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace ORDER BY 1";
    let rows = reader
        .query(sql, &[])
        .await
        .map_err(|error| source.error(&error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns the columns that no rule names and that kind rules do not check, with their types.
fn not_judged(catalog: &Catalog, plan: &Plan) -> Vec<String> {
    let mut columns = Vec::new();
    for table in &catalog.tables {
        for column in table
            .copied()
            .filter(|column| column.kinds == KindScope::Unseen)
        {
            if plan
                .column_rule(&[&table.schema, &table.name, &column.name])
                .is_none()
            {
                columns.push(format!(
                    "{}.{} ({})",
                    table.title(),
                    column.name,
                    column.type_text
                ));
            }
        }
    }
    columns
}

/// Exports the snapshot that all readers share.
pub(crate) async fn export_snapshot(
    reader: &Client,
    source: &Endpoint,
) -> Result<String, JobError> {
    let row = reader
        .query_one("SELECT pg_catalog.pg_export_snapshot()", &[])
        .await;
    Ok(row.map_err(|error| source.error(&error))?.get(0))
}

/// Drops everything that the job created. Uses a separate connection, since the job's connection
/// can be inside a statement.
async fn empty_target(target: &Endpoint, error: JobError) -> JobError {
    let cleaned = async {
        let client = target.connect().await?;
        target::remove_contents(&client, target).await
    };
    match cleaned.await {
        Ok(()) => error,
        Err(left) => JobError::Left {
            error: Box::new(error),
            left: left.to_string(),
        },
    }
}

/// Creates and fills the schema. The target is marked as unfinished during this call.
async fn fill_target<E: Engine>(
    run: &Arc<Run<E>>,
    opened: &source::Snapshot,
    catalog: &Catalog,
    schema: &Schema,
) -> Result<(u64, u64), JobError> {
    let existing =
        target::extension_schemas(&target::connect_writer(&run.target).await?, &run.target).await?;
    execute_dump(&run.target, &schema.pre_data.without_schemas(&existing)).await?;

    let tables = plan_tables(run, catalog).await?;
    let copied = copy_tables(run, tables).await?;
    opened.check_unchanged(&run.source).await?;

    let writer = target::connect_writer(&run.target).await?;
    for table in &copied.tables {
        compare_rows(&writer, &run.target, table).await?;
    }
    for sequence in &catalog.sequences {
        let sql = "SELECT pg_catalog.setval($1::pg_catalog.text::pg_catalog.regclass, $2, $3)";
        let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
            &[&sequence.name, &sequence.last_value, &sequence.is_called];
        writer
            .query_one(sql, values)
            .await
            .map_err(|error| run.target.error(&error))?;
    }

    execute_dump(&run.target, &schema.post_data.sql).await?;
    for view in &catalog.views {
        writer
            .batch_execute(&format!("REFRESH MATERIALIZED VIEW {view}"))
            .await
            .map_err(|error| run.target.error(&error))?;
    }
    Ok((copied.bytes_in, copied.bytes_out))
}

/// Compares the rows that were read and sent with those that are in the target.
async fn compare_rows(
    writer: &Client,
    target: &Endpoint,
    table: &CopiedTable,
) -> Result<(), JobError> {
    // Rows of tables that inherit from this table are counted for those tables.
    let only = if table.is_partitioned { "" } else { "ONLY " };
    let sql = format!("SELECT pg_catalog.count(*) FROM {only}{}", table.sql);
    let row = writer
        .query_one(&sql, &[])
        .await
        .map_err(|error| target.error(&error))?;
    let arrived: i64 = row.get(0);
    if u64::try_from(arrived) == Ok(table.rows) {
        return Ok(());
    }
    Err(JobError::Postgres {
        origin: "target",
        message: format!(
            "{}: {} rows were read, and the target has {arrived}",
            table.title, table.rows
        ),
    })
}

/// Runs a dump's SQL in one transaction, on a connection that is closed afterwards.
async fn execute_dump(target: &Endpoint, sql: &str) -> Result<(), JobError> {
    let client = target::connect_writer(target).await?;
    client
        .batch_execute(sql)
        .await
        .map_err(|error| target.error(&error))
}

/// Prepares the copy of each table and tests the masks of a few rows.
async fn plan_tables<E: Engine>(
    run: &Arc<Run<E>>,
    catalog: &Catalog,
) -> Result<Vec<(Table, Rows)>, JobError> {
    let writer = target::connect_writer(&run.target).await?;
    let mut reader = SampleReader::new(&run.source, &run.snapshot, NO_TIMEOUT);
    let mut tables = Vec::with_capacity(catalog.tables.len());
    for table in &catalog.tables {
        let rows = Rows::new(table, &run.plan, &run.running_report)?;
        dry_run::test_masks(
            &mut reader,
            (&writer, &run.target),
            table,
            &rows,
            &run.plan,
            &*run.engine,
        )
        .await?;
        tables.push((table.clone(), rows));
    }
    // The largest tables come first, so that no long copy starts last.
    tables.sort_by_key(|(table, _)| std::cmp::Reverse(table.bytes));
    Ok(tables)
}

async fn copy_tables<E: Engine>(
    run: &Arc<Run<E>>,
    tables: Vec<(Table, Rows)>,
) -> Result<CopyTotals, JobError> {
    let mut running = JoinSet::new();
    let mut waiting = tables.into_iter();
    let mut copied = CopyTotals::default();
    loop {
        while running.len() < run.limits.tables.max(1)
            && let Some((table, rows)) = waiting.next()
        {
            running.spawn(copy::copy_table(Arc::clone(run), table, rows));
        }
        let Some(done) = running.join_next().await else {
            return Ok(copied);
        };
        let table = done??;
        copied.bytes_in += table.bytes_in;
        copied.bytes_out += table.bytes_out;
        copied.tables.push(table);
    }
}
