//! The first rows of a table, for discovery and the dry run.
//!
//! COPY of a table by its name calls only output functions, which superusers created. Every SELECT
//! is planned, and the planner evaluates index expressions and casts. So functions of a table's
//! owner would run as the reader.

use std::ops::ControlFlow;
use std::pin::pin;

use futures_util::StreamExt;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::{Class, Table, quoted};
use super::connect::{Connection, Endpoint};
use super::copy::begin_snapshot;
use crate::mask_job::error::JobError;
use crate::mask_job::scan::copy;

/// Maximum number of bytes that are read from a table.
const BYTES_MAX: usize = 64 << 20;

/// The timeout of readers that wait as long as the server needs.
pub(crate) const NO_TIMEOUT: &str = "0";

/// Reads the first rows of tables in a shared snapshot.
///
/// COPY cannot be limited, so its connection is closed when enough was read. A cancel request is
/// not safe: the server does not remember its statement, and can cancel a later statement.
pub(crate) struct SampleReader<'e> {
    of: &'e Endpoint,
    snapshot: &'e str,
    /// Maximum time for the rows of one table, in the server's notation.
    timeout: &'static str,
    connection: Option<Connection>,
}

impl<'e> SampleReader<'e> {
    pub(crate) fn new(of: &'e Endpoint, snapshot: &'e str, timeout: &'static str) -> Self {
        Self {
            of,
            snapshot,
            timeout,
            connection: None,
        }
    }

    /// Calls `visit` for each value in the first rows of a table, with the column's index and the
    /// text (`None` for null). Reading stops after a row in which `visit` breaks. Returns `false` if
    /// the server's timeout ended the reading.
    pub(crate) async fn first_rows(
        &mut self,
        table: &Table,
        columns: &[(&str, Class)],
        visit: &mut impl FnMut(usize, Option<&str>) -> ControlFlow<()>,
    ) -> Result<bool, JobError> {
        let of = self.of;
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let client = &connection.client;
        let list = columns
            .iter()
            .map(|(name, _)| quoted(name))
            .collect::<Vec<_>>()
            .join(", ");
        let mut read = 0;
        let mut fields = Vec::new();
        for leaf in leaf_tables(client, of, table).await? {
            let rows = client
                .copy_out(&format!("COPY {leaf} ({list}) TO STDOUT"))
                .await;
            let mut rows = pin!(rows.map_err(|error| of.error(&error))?);
            while let Some(row) = rows.next().await {
                let row = match row {
                    Ok(row) => row,
                    Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
                        return Ok(false);
                    }
                    Err(error) => return Err(of.error(&error)),
                };
                read += row.len();
                copy::split_row(&row, 0, &mut fields);
                let mut is_wanted = read < BYTES_MAX;
                for (at, (span, (_, class))) in fields.iter().zip(columns).enumerate() {
                    let raw = &row[span.clone()];
                    let text = if copy::is_null(raw) {
                        None
                    } else {
                        copy::decode_field(raw, *class)
                    };
                    is_wanted &= visit(at, text.as_deref()).is_continue();
                }
                if !is_wanted {
                    return Ok(true);
                }
            }
        }
        self.connection = Some(connection);
        Ok(true)
    }

    async fn connect(&self) -> Result<Connection, JobError> {
        let connection = self.of.connect_scoped().await?;
        begin_snapshot(&connection.client, self.of, self.snapshot).await?;
        let limit = format!("SET LOCAL statement_timeout = '{}'", self.timeout);
        connection
            .client
            .batch_execute(&limit)
            .await
            .map_err(|error| self.of.error(&error))?;
        Ok(connection)
    }
}

/// Returns the tables that hold the rows, as SQL text. COPY of a partitioned table's name would
/// return no rows. Partitions that are foreign tables are included, so that COPY rejects them
/// instead of omitting their rows.
pub(crate) async fn leaf_tables(
    client: &Client,
    of: &Endpoint,
    table: &Table,
) -> Result<Vec<String>, JobError> {
    if !table.is_partitioned {
        return Ok(vec![table.sql()]);
    }
    let sql = "WITH RECURSIVE tree AS (SELECT c.oid FROM pg_catalog.pg_class c \
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 \
            UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid) \
        SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'f') ORDER BY 1";
    let rows = client
        .query(sql, &[&table.schema, &table.name])
        .await
        .map_err(|error| of.error(&error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
