//! The first rows of a table, for discovery and the dry run.
//!
//! COPY of a table by its name calls output functions only, which superusers made. Every SELECT is planned, and the
//! planner evaluates index expressions and casts, so that functions of a table's owner would run as the reader.

use std::ops::ControlFlow;
use std::pin::pin;

use futures_util::StreamExt;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::{Table, quoted};
use super::connect::Endpoint;
use crate::error::JobError;
use crate::scan::copy;

/// Maximum number of bytes that are read of a table.
const BYTES_MAX: usize = 64 << 20;

/// Calls `show` with the column's index and the text, or `None` for null, of each value in the first rows of a table. The
/// reading ends after a row with a call that breaks. Returns `false` if the server's timeout ended the reading.
pub(crate) async fn first_rows(
    (client, of): (&Client, &Endpoint),
    table: &Table,
    columns: &[&str],
    show: &mut impl FnMut(usize, Option<&str>) -> ControlFlow<()>,
) -> Result<bool, JobError> {
    let failed = |error: tokio_postgres::Error| of.error(&error);
    let list = columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    let mut read = 0;
    for leaf in leaves(client, of, table).await? {
        client.batch_execute("SAVEPOINT sealwire_sample").await.map_err(failed)?;
        let sql = format!("COPY {leaf} ({list}) TO STDOUT");
        let mut is_full = false;
        let mut ended = Ok(());
        {
            let mut stream = pin!(client.copy_out(&sql).await.map_err(failed)?);
            let mut fields = Vec::new();
            while let Some(row) = stream.next().await {
                let row = match row {
                    Ok(row) => row,
                    Err(error) => {
                        ended = Err(error);
                        break;
                    }
                };
                // Rows that were under way when the request to cancel was sent.
                if is_full {
                    continue;
                }
                read += row.len();
                copy::row(&row, 0, &mut fields);
                let mut is_wanted = read < BYTES_MAX;
                for (at, span) in fields.iter().enumerate().take(columns.len()) {
                    let raw = &row[span.clone()];
                    let text = if copy::is_null(raw) { None } else { copy::unescaped(raw) };
                    is_wanted &= show(at, text.as_deref()).is_continue();
                }
                if !is_wanted {
                    is_full = true;
                    of.cancel(client).await?;
                }
            }
        }
        let is_cancelled = matches!(&ended, Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED));
        match ended {
            Err(error) if !is_cancelled => return Err(of.error(&error)),
            _ => {}
        }
        // A request to cancel that came after the end of the rows can end this statement instead.
        let mut back = client.batch_execute("ROLLBACK TO SAVEPOINT sealwire_sample").await;
        if matches!(&back, Err(error) if is_full && error.code() == Some(&SqlState::QUERY_CANCELED)) {
            back = client.batch_execute("ROLLBACK TO SAVEPOINT sealwire_sample").await;
        }
        back.map_err(failed)?;
        if is_full {
            return Ok(true);
        }
        if is_cancelled {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the tables that hold the rows, as SQL text. COPY of a partitioned table's name would give no
/// rows. A partition that is a foreign table is among them, so that COPY rejects it instead of leaving its rows out.
pub(crate) async fn leaves(client: &Client, of: &Endpoint, table: &Table) -> Result<Vec<String>, JobError> {
    if !table.is_partitioned {
        return Ok(vec![table.sql()]);
    }
    let sql = "WITH RECURSIVE tree AS (SELECT c.oid FROM pg_catalog.pg_class c \
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 \
            UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree ON i.inhparent = tree.oid) \
        SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'f') ORDER BY 1";
    let rows = client.query(sql, &[&table.schema, &table.name]).await.map_err(|error| of.error(&error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
