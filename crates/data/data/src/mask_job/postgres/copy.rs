//! The copy of one table: COPY from the source's snapshot, through the pipeline, COPY into the
//! target.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::{Semaphore, mpsc};
use tokio_postgres::{Client, CopyInSink, CopyOutStream, Error};

use super::catalog::Table;
use super::connect::{Endpoint, ONLY_TABLES, error_text};
use super::rows::Rows;
use super::sample::leaf_tables;
use super::target;
use crate::mask_job::chunker::Chunk;
use crate::mask_job::engine::Engine;
use crate::mask_job::error::JobError;
use crate::mask_job::limits::Limits;
use crate::mask_job::memory::ByteBudget;
use crate::mask_job::pipeline::{self, MaskedChunk, PipelineState, Sink};
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Progress, RunningReport};

/// Maximum bytes of one COPY into the target. The server reports a rejected row only at the end of
/// its COPY.
const COPY_BYTES: u64 = 32 << 20;

/// Data that all table copies share.
pub(crate) struct Run<E> {
    pub(crate) source: Endpoint,
    pub(crate) target: Endpoint,
    pub(crate) snapshot: String,
    pub(crate) engine: Arc<E>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) running_report: Arc<RunningReport>,
    pub(crate) limits: Limits,
    pub(crate) progress: Arc<Progress>,
    pub(crate) cpu: Arc<Semaphore>,
    /// Bounds the rows of all tables together.
    pub(crate) budget: ByteBudget,
}

/// A table that was copied.
pub(crate) struct CopiedTable {
    pub(crate) title: String,
    pub(crate) sql: String,
    pub(crate) is_partitioned: bool,
    /// Rows that the target confirmed.
    pub(crate) rows: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

/// Copies one table.
pub(crate) async fn copy_table<E: Engine>(
    run: Arc<Run<E>>,
    table: Table,
    rows: Rows,
) -> Result<CopiedTable, JobError> {
    // Closed when the copy ends early, so that the rest of the table is not read.
    let connection = run.source.connect_scoped().await?;
    let reader = &connection.client;
    begin_snapshot(reader, &run.source, &run.snapshot).await?;
    let writer = target::connect_writer(&run.target).await?;
    writer
        .batch_execute("BEGIN")
        .await
        .map_err(|error| run.target.error(&error))?;

    let columns = table.column_list();
    // COPY of a table's name returns no rows of inheriting tables, and calls no function of the
    // table's owner.
    let from: Vec<String> = leaf_tables(reader, &run.source, &table)
        .await?
        .iter()
        .map(|leaf| format!("COPY {leaf} {columns} TO STDOUT"))
        .collect();
    let into = format!("COPY {} {columns} FROM STDIN", table.sql());
    let shared = Arc::new(PipelineState {
        format: rows,
        engine: Arc::clone(&run.engine),
        plan: Arc::clone(&run.plan),
        running_report: Arc::clone(&run.running_report),
        limits: run.limits,
        progress: Arc::clone(&run.progress),
        cpu: Arc::clone(&run.cpu),
        memories: Mutex::default(),
    });
    let (chunks, source) = mpsc::channel(1);
    let reading = read_rows(reader, &run.source, from, (run.limits, &run.budget), chunks);
    let mut target = CopyTarget {
        client: &writer,
        endpoint: &run.target,
        table: &table,
        into,
        rows: 0,
        bytes: 0,
        sink: None,
        bytes_in: 0,
        bytes_out: 0,
    };
    let writing = async {
        pipeline::run(&shared, source, &mut target).await?;
        target.finish_copy().await
    };
    let (rows_read, ()) = tokio::try_join!(reading, writing)?;
    if rows_read != target.rows {
        return Err(JobError::Postgres {
            origin: "target",
            message: format!(
                "{}: {rows_read} rows were read, and {} arrived",
                table.title(),
                target.rows
            ),
        });
    }

    let copied = CopiedTable {
        title: table.title(),
        sql: table.sql(),
        is_partitioned: table.is_partitioned,
        rows: target.rows,
        bytes_in: target.bytes_in,
        bytes_out: target.bytes_out,
    };
    writer
        .batch_execute("COMMIT")
        .await
        .map_err(|error| run.target.error(&error))?;
    Ok(copied)
}

/// Starts a transaction that uses the shared snapshot.
pub(crate) async fn begin_snapshot(
    client: &Client,
    source: &Endpoint,
    snapshot: &str,
) -> Result<(), JobError> {
    client
        .batch_execute(ONLY_TABLES)
        .await
        .map_err(|error| source.error(&error))?;
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{}'; SET LOCAL lock_timeout = '{}'",
        snapshot.replace('\'', ""),
        super::source::LOCK_TIMEOUT
    );
    client
        .batch_execute(&sql)
        .await
        .map_err(|error| source.error(&error))
}

/// Returns the next row of consecutive COPYs.
async fn next_row(
    client: &Client,
    source: &Endpoint,
    statements: &mut std::vec::IntoIter<String>,
    stream: &mut Option<Pin<Box<CopyOutStream>>>,
) -> Result<Option<Bytes>, JobError> {
    loop {
        if let Some(rows) = stream
            && let Some(row) = rows.next().await
        {
            return row.map(Some).map_err(|error| source.error(&error));
        }
        let Some(sql) = statements.next() else {
            return Ok(None);
        };
        *stream = Some(Box::pin(
            client
                .copy_out(&sql)
                .await
                .map_err(|error| source.error(&error))?,
        ));
    }
}

/// Collects rows into chunks. Returns the number of rows that were read before the end or before
/// the receiver was closed.
async fn read_rows(
    client: &Client,
    source: &Endpoint,
    statements: Vec<String>,
    (limits, budget): (Limits, &ByteBudget),
    chunks: mpsc::Sender<Result<Chunk, JobError>>,
) -> Result<u64, JobError> {
    let mut statements = statements.into_iter();
    let mut stream = None;
    let mut buffer: Vec<u8> = Vec::with_capacity(limits.chunk_bytes);
    let mut row = 1;
    loop {
        let message = next_row(client, source, &mut statements, &mut stream).await?;
        let is_last = message.is_none();
        // Each message should be one row, but the code checks for the newline nevertheless.
        buffer.extend_from_slice(&message.unwrap_or_default());
        if buffer.len() > limits.record_bytes_max.max(limits.chunk_bytes * 2) {
            return Err(JobError::Plan(format!(
                "a row is longer than {} bytes",
                limits.record_bytes_max
            )));
        }
        if !is_last && (buffer.len() < limits.chunk_bytes || buffer.last() != Some(&b'\n')) {
            continue;
        }

        let bytes = std::mem::replace(&mut buffer, Vec::with_capacity(limits.chunk_bytes));
        let rows = memchr::memchr_iter(b'\n', &bytes).count() as u64;
        let permit = budget.reserve(bytes.len()).await;
        let chunk = Chunk {
            bytes,
            first_line: row,
            first_record: row - 1,
            is_first: row == 1,
            is_last,
            skipped: 0,
            is_array: false,
            permit,
        };
        row += rows;
        if chunks.send(Ok(chunk)).await.is_err() || is_last {
            return Ok(row - 1);
        }
    }
}

/// The writer to the target: consecutive COPYs in one transaction.
struct CopyTarget<'t> {
    client: &'t Client,
    endpoint: &'t Endpoint,
    table: &'t Table,
    into: String,
    /// Rows of the earlier COPYs.
    rows: u64,
    bytes: u64,
    sink: Option<(std::pin::Pin<Box<CopyInSink<Bytes>>>, u64)>,
    bytes_in: u64,
    bytes_out: u64,
}

impl Sink for CopyTarget<'_> {
    async fn take(&mut self, done: MaskedChunk) -> Result<(), JobError> {
        self.bytes_in += done.bytes_in;
        self.bytes_out += done.bytes.len() as u64;
        self.write(done.bytes, done.records).await?;
        drop(done.permit);
        Ok(())
    }
}

impl CopyTarget<'_> {
    async fn write(&mut self, bytes: Vec<u8>, records: u64) -> Result<(), JobError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (mut sink, rows) = match self.sink.take() {
            Some(open) => open,
            None => {
                let sink = self
                    .client
                    .copy_in(&self.into)
                    .await
                    .map_err(|error| self.error(&error))?;
                (Box::pin(sink), 0)
            }
        };
        self.bytes += bytes.len() as u64;
        sink.send(Bytes::from(bytes))
            .await
            .map_err(|error| self.error(&error))?;
        self.sink = Some((sink, rows + records));
        if self.bytes >= COPY_BYTES {
            self.finish_copy().await
        } else {
            Ok(())
        }
    }

    async fn finish_copy(&mut self) -> Result<(), JobError> {
        let Some((mut sink, rows)) = self.sink.take() else {
            return Ok(());
        };
        self.bytes = 0;
        let copied = sink
            .as_mut()
            .finish()
            .await
            .map_err(|error| self.error(&error))?;
        if copied != rows {
            return Err(JobError::Postgres {
                origin: "target",
                message: format!("{}: {copied} of {rows} rows arrived", self.table.title()),
            });
        }
        self.rows += rows;
        Ok(())
    }

    /// Converts an error and adds the row number. The server's text about the row is omitted, since
    /// it can contain values.
    fn error(&self, error: &Error) -> JobError {
        let Some((line, column)) = error
            .as_db_error()
            .and_then(|error| error.where_())
            .and_then(error_place)
        else {
            return self.endpoint.error(error);
        };
        let code = error.code().map_or("", |code| code.code());
        let what = if code.starts_with("22") {
            format!("the target takes no such value in this column (SQLSTATE {code})")
        } else {
            format!("the target: {}", error_text(error))
        };
        JobError::Row {
            table: self.table.title(),
            column,
            row: self.rows + line,
            what,
        }
    }
}

/// Parses line and column from `COPY orders, line 17, column total: "..."`.
fn error_place(context: &str) -> Option<(u64, String)> {
    let (_, rest) = context.split_once(", line ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    let rest = &rest[digits.len()..];
    let column = rest
        .strip_prefix(", column ")
        .and_then(|rest| rest.split(": ").next())
        .unwrap_or("(any)");
    Some((digits.parse().ok()?, column.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_without_values() {
        for (context, expected) in [
            (
                "COPY orders, line 17, column total: \"secret\"",
                Some((17, "total")),
            ),
            ("COPY orders, line 3: \"1\tsecret\"", Some((3, "(any)"))),
            ("COPY orders, line 4", Some((4, "(any)"))),
            (
                "COPY o, line 4, column x, null input",
                Some((4, "x, null input")),
            ),
            ("SQL function", None),
        ] {
            let expected = expected.map(|(line, column)| (line, column.to_owned()));
            assert_eq!(error_place(context), expected, "{context}");
        }
    }
}
