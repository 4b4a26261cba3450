//! A dry run before the copy: masks some values of each masked column and casts the masks in the
//! target. Masks that do not fit their column are detected before any row is copied.

use std::ops::ControlFlow;

use sealwire_mask_rules::Column;
use sealwire_msgpack::TokenReader;
use tokio_postgres::Client;

use super::catalog::Table;
use super::connect::Endpoint;
use super::rows::Rows;
use super::sample::SampleReader;
use crate::mask_job::engine::{Engine, EngineError};
use crate::mask_job::error::JobError;
use crate::mask_job::plan::Plan;
use crate::mask_job::scan::copy;
use crate::mask_job::scan::tree::PathRule;

/// Maximum number of values per column in the dry run.
const SAMPLE: usize = 50;

pub(crate) async fn rehearse<E: Engine>(
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
    let masked = |at: usize| matches!(rows.columns[at].verdict, PathRule::Mask(..));
    // The values of each masked column, with their rows, so that subjects can be found.
    let mut samples: Vec<Vec<(String, Option<String>)>> = vec![Vec::new(); columns.len()];
    if !(0..columns.len()).any(masked) {
        return Ok(());
    }
    let subject_at = |at: usize| {
        let PathRule::Mask(rule, _) = rows.columns[at].verdict else {
            return None;
        };
        plan.subject(rule)
            .and_then(|name| columns.iter().position(|(other, _)| *other == name))
    };
    let mut row: Vec<Option<String>> = vec![None; columns.len()];
    let mut show = |at: usize, text: Option<&str>| {
        row[at] = text.map(str::to_owned);
        if at + 1 < row.len() {
            return ControlFlow::Continue(());
        }
        let mut is_full = true;
        for at in (0..row.len()).filter(|at| masked(*at)) {
            if let Some(text) = &row[at]
                && samples[at].len() < SAMPLE
            {
                samples[at].push((text.clone(), subject_at(at).and_then(|at| row[at].clone())));
            }
            is_full &= samples[at].len() == SAMPLE;
        }
        if is_full {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    if !reader.first_rows(table, &columns, &mut show).await? {
        let table = table.title();
        return Err(JobError::Plan(format!(
            "{table}: the server cancelled the dry run: run the job again"
        )));
    }
    for (column, sample) in rows.columns.iter().zip(samples) {
        let PathRule::Mask(rule, _) = column.verdict else {
            continue;
        };
        let field = format!("{}.{}", rows.table, column.name);
        let subject = plan.subject(rule);
        if sample.is_empty() {
            continue;
        }
        let mut asked = Column {
            rule,
            count: sample.len(),
            ..Column::default()
        };
        let mut subjects = Vec::new();
        let subject_class =
            subject.and_then(|name| rows.columns.iter().find(|other| other.name == name));
        for (text, beside_text) in &sample {
            copy::value(
                text,
                column.class,
                plan.keeps_decimals(rule),
                &mut asked.values,
            );
            match (beside_text, subject_class) {
                (Some(text), Some(beside)) => copy::value(text, beside.class, false, &mut subjects),
                _ => sealwire_msgpack::write::nil(&mut subjects),
            }
        }
        asked.subjects = subject.map(|_| subjects);
        let function = plan.function(rule);
        let unfit = |why: &str| {
            JobError::Plan(format!(
                "{field} ({}): {function} does not fit: {why}; nothing was copied",
                column.type_text
            ))
        };
        let answer = engine
            .mask(vec![asked])
            .await
            .map_err(|error| match error {
                EngineError::Unfit { why, .. } => unfit(&why),
                EngineError::Failed(said) => JobError::Engine(said),
            })?;
        let mut texts = Vec::with_capacity(sample.len());
        let mut answers = TokenReader::new(answer.first().map_or(&[], Vec::as_slice));
        for _ in 0..sample.len() {
            let token = answers
                .token()
                .map_err(|_| JobError::Engine("gave too few answers".to_owned()))?;
            let mut text = Vec::new();
            if copy::write_plain(token, column.class, &mut text).map_err(|why| unfit(&why))? {
                texts.push(String::from_utf8_lossy(&text).into_owned());
            }
        }
        let sql = format!(
            "SELECT pg_catalog.count(v::{}) FROM pg_catalog.unnest($1::pg_catalog.text[]) AS v",
            column.type_text
        );
        if let Err(error) = writer.query_one(&sql, &[&texts]).await {
            let Some(said) = error.as_db_error() else {
                return Err(target.error(&error));
            };
            // Class 22 is data errors, and class 23 is constraint errors of a domain. The server's
            // message can contain the mask.
            let code = said.code().code().to_owned();
            if code.starts_with("22") || code.starts_with("23") {
                return Err(unfit(&format!(
                    "its masks are no values of that type (SQLSTATE {code})"
                )));
            }
            return Err(target.error(&error));
        }
    }
    Ok(())
}
