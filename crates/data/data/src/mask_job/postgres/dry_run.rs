//! A dry run before the copy: masks some values of each masked column and casts the masks in the
//! target. Masks that do not fit their column are detected before any row is copied.

use std::ops::ControlFlow;

use sealwire_mask_rules::Column;
use sealwire_msgpack::TokenReader;
use tokio_postgres::Client;

use super::catalog::Table;
use super::connect::Endpoint;
use super::rows::{RowColumn, Rows};
use super::sample::SampleReader;
use crate::mask_job::engine::{Engine, EngineError};
use crate::mask_job::error::JobError;
use crate::mask_job::plan::Plan;
use crate::mask_job::scan::copy;
use crate::mask_job::scan::tree::PathRule;

/// Maximum number of values per column in the dry run.
const SAMPLE: usize = 50;

/// Tests the masks of a few rows of a table. Returns an error if a mask does not fit its column.
pub(crate) async fn test_masks<E: Engine>(
    reader: &mut SampleReader<'_>,
    (writer, target): (&Client, &Endpoint),
    table: &Table,
    rows: &Rows,
    plan: &Plan,
    engine: &E,
) -> Result<(), JobError> {
    let columns: Vec<_> = rows
        .columns
        .iter()
        .map(|column| (column.name.as_str(), column.class))
        .collect();
    if !rows.columns.iter().any(RowColumn::is_masked) {
        return Ok(());
    }

    let mut sample = RowSample::new(rows, plan);
    let is_read = reader
        .first_rows(table, &columns, &mut |at, text| sample.add(at, text))
        .await?;
    if !is_read {
        let table = table.title();
        return Err(JobError::Plan(format!(
            "{table}: the server cancelled the dry run: run the job again"
        )));
    }

    for (column, sample) in rows.columns.iter().zip(sample.columns) {
        let PathRule::Mask(rule, _) = column.verdict else {
            continue;
        };
        if sample.is_empty() {
            continue;
        }
        let request = request_column(rows, plan, column, rule, &sample);
        let masked = engine
            .mask(vec![request])
            .await
            .map_err(|error| match error {
                EngineError::Unfit { why, .. } => unfit(rows, plan, column, rule, &why),
                EngineError::Failed(message) => JobError::Engine(message),
            })?;

        let mut texts = Vec::with_capacity(sample.len());
        let mut masks = TokenReader::new(masked.first().map_or(&[], Vec::as_slice));
        for _ in 0..sample.len() {
            let token = masks
                .token()
                .map_err(|_| JobError::Engine("returned too few masked values".to_owned()))?;
            let mut text = Vec::new();
            let is_text = copy::write_plain(token, column.class, &mut text)
                .map_err(|why| unfit(rows, plan, column, rule, &why))?;
            if is_text {
                texts.push(String::from_utf8_lossy(&text).into_owned());
            }
        }

        let sql = format!(
            "SELECT pg_catalog.count(v::{}) FROM pg_catalog.unnest($1::pg_catalog.text[]) AS v",
            column.type_text
        );
        if let Err(error) = writer.query_one(&sql, &[&texts]).await {
            // Class 22 is data errors, and class 23 is constraint errors of a domain. The server's
            // message can contain the mask.
            let code = error.as_db_error().map_or("", |error| error.code().code());
            if code.starts_with("22") || code.starts_with("23") {
                let why = format!("its masks are not values of that type (SQLSTATE {code})");
                return Err(unfit(rows, plan, column, rule, &why));
            }
            return Err(target.error(&error));
        }
    }
    Ok(())
}

/// Returns the error for a column whose function does not fit.
fn unfit(rows: &Rows, plan: &Plan, column: &RowColumn, rule: usize, why: &str) -> JobError {
    JobError::Plan(format!(
        "{}.{} ({}): {} does not fit: {why}; nothing was copied",
        rows.table,
        column.name,
        column.type_text,
        plan.function(rule)
    ))
}

/// Returns the sampled values of a column for the engine.
fn request_column(
    rows: &Rows,
    plan: &Plan,
    column: &RowColumn,
    rule: usize,
    sample: &[(String, Option<String>)],
) -> Column {
    let mut request = Column {
        rule,
        count: sample.len(),
        ..Column::default()
    };
    let subject = plan.subject(rule);
    let subject_column =
        subject.and_then(|name| rows.columns.iter().find(|other| other.name == name));
    let mut subjects = Vec::new();
    for (text, subject_text) in sample {
        copy::write_value(
            text,
            column.class,
            plan.keeps_decimals(rule),
            &mut request.values,
        );
        match (subject_text, subject_column) {
            (Some(text), Some(column)) => {
                copy::write_value(text, column.class, false, &mut subjects)
            }
            _ => sealwire_msgpack::write::nil(&mut subjects),
        }
    }
    request.subjects = subject.map(|_| subjects);
    request
}

/// Samples of the masked columns, from whole rows.
struct RowSample<'r> {
    rows: &'r Rows,
    plan: &'r Plan,
    /// The values of the current row, up to the last value that was added.
    row: Vec<Option<String>>,
    /// By column, its values, each with its subject.
    columns: Vec<Vec<(String, Option<String>)>>,
}

impl<'r> RowSample<'r> {
    fn new(rows: &'r Rows, plan: &'r Plan) -> Self {
        let count = rows.columns.len();
        Self {
            rows,
            plan,
            row: vec![None; count],
            columns: vec![Vec::new(); count],
        }
    }

    /// Adds the value of a column. Breaks after the row with which all samples are full.
    fn add(&mut self, at: usize, text: Option<&str>) -> ControlFlow<()> {
        self.row[at] = text.map(str::to_owned);
        if at + 1 < self.row.len() {
            return ControlFlow::Continue(());
        }

        let mut is_full = true;
        for at in 0..self.row.len() {
            if !self.rows.columns[at].is_masked() {
                continue;
            }
            if let Some(text) = &self.row[at]
                && self.columns[at].len() < SAMPLE
            {
                let subject = self.subject_of(at).and_then(|at| self.row[at].clone());
                self.columns[at].push((text.clone(), subject));
            }
            is_full &= self.columns[at].len() == SAMPLE;
        }
        if is_full {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Returns the column of a column's subject.
    fn subject_of(&self, at: usize) -> Option<usize> {
        let PathRule::Mask(rule, _) = self.rows.columns[at].verdict else {
            return None;
        };
        let name = self.plan.subject(rule)?;
        self.rows
            .columns
            .iter()
            .position(|column| column.name == name)
    }
}
