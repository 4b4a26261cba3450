//! The leak check that compares a database with its masked counterpart.

use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use sealwire_mask_rules::Rules;
use tokio_postgres::Client;

use super::{Check, LeakLimits, LeakReport};
use crate::mask_job::error::JobError;
use crate::mask_job::plan::Plan;
use crate::mask_job::postgres::sample::leaf_tables;
use crate::mask_job::postgres::source::Snapshot;
use crate::mask_job::postgres::target::reject_privileged_reader;
use crate::mask_job::postgres::{Catalog, Database, Endpoint, KindScope, OURS, Table};
use crate::mask_job::report::Progress;
use crate::mask_job::scan::copy;

/// Checks the target for originals of the values that `rules` mask in the source. Each database is
/// read in a separate snapshot. Columns are matched by schema, table and name. The future can be
/// dropped safely.
///
/// # Errors
/// [`JobError`] if a database cannot be read, or if rules name paths or columns that the source
/// does not have.
pub async fn verify_databases(
    source: Database,
    target: Database,
    rules: Arc<Rules>,
    leak: LeakLimits,
    progress: &Progress,
) -> Result<LeakReport, JobError> {
    Plan::without_paths(&rules, "tables have columns")?;
    let mut check = Check::new(Arc::new(Plan::new(rules)), leak);
    let endpoints = tokio::task::spawn_blocking(move || {
        Ok::<_, JobError>((
            Endpoint::new(source, "source")?,
            Endpoint::new(target, "target")?,
        ))
    });
    let (source, target) = endpoints.await??;
    reject_privileged_reader(&source).await?;
    let read = Snapshot::open(&source).await?;
    let searched = Snapshot::open(&target).await?;
    let reader = &read.client;
    let other = &searched.client;
    let from = Catalog::read(reader, &source).await?;
    let to = Catalog::read(other, &target).await?;
    crate::mask_job::postgres::reject_missing(&from, check.plan())?;
    for (client, of) in [(reader, &source), (other, &target)] {
        of.reject_unknown_encoding(client).await?;
    }
    for row in other
        .query(&unsearched_relations(), &[])
        .await
        .map_err(|error| target.error(&error))?
    {
        check.skip_column(row.get(0), row.get(1));
    }
    let estimate: u64 = from
        .tables
        .iter()
        .chain(&to.tables)
        .map(|table| table.rows_estimated)
        .sum();
    for pass in 1.. {
        progress.set_totals(0, estimate * u64::from(pass));
        for table in &from.tables {
            add_originals(reader, &source, table, &mut check, progress).await?;
        }
        for table in &to.tables {
            check_table(other, &target, table, &mut check, progress).await?;
        }
        for (place, text) in schema_texts(other, &target).await? {
            check.check_definition(&place, &text);
        }
        if !check.end_pass() {
            read.check_unchanged(&source).await?;
            searched.check_unchanged(&target).await?;
            return Ok(check.into_report(pass));
        }
    }
    Ok(LeakReport::default())
}

/// Returns the SQL condition for relations whose rows are not searched, and why.
fn unsearched_relations() -> String {
    format!(
        "SELECT n.nspname || '.' || c.relname, CASE c.relkind WHEN 'm' THEN 'it is a materialized view, which derives from tables' \
             WHEN 'f' THEN 'it is a foreign table' ELSE 'it belongs to an extension' END \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE {OURS} AND (c.relkind IN ('m', 'f') OR c.relkind IN ('r', 'p') AND EXISTS (SELECT 1 FROM pg_catalog.pg_depend d \
             WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')) ORDER BY 1"
    )
}

/// Returns the texts of a schema that can hold values, with their places. Labels of enums are not
/// among them: a column of an enum has no other values.
async fn schema_texts(client: &Client, of: &Endpoint) -> Result<Vec<(String, String)>, JobError> {
    let rows = client
        .query(SCHEMA_TEXTS, &[])
        .await
        .map_err(|error| of.error(&error))?;
    Ok(rows
        .iter()
        .filter_map(|row| Some((row.get(0), row.get::<_, Option<String>>(1)?)))
        .collect())
}

/// Definitions and comments of all objects that are not part of the server itself.
const SCHEMA_TEXTS: &str = "\
    WITH texts AS ( \
        SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass AS class, oid, pg_catalog.pg_get_expr(adbin, adrelid) AS text \
            FROM pg_catalog.pg_attrdef \
        UNION ALL SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass, oid, pg_catalog.pg_get_constraintdef(oid) FROM pg_catalog.pg_constraint \
        UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, indexrelid, pg_catalog.pg_get_indexdef(indexrelid) FROM pg_catalog.pg_index \
        UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, oid, pg_catalog.pg_get_expr(relpartbound, oid) FROM pg_catalog.pg_class \
            WHERE relpartbound IS NOT NULL \
        UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, oid, pg_catalog.pg_get_viewdef(oid) FROM pg_catalog.pg_class \
            WHERE relkind IN ('v', 'm') \
        UNION ALL SELECT 'pg_catalog.pg_trigger'::pg_catalog.regclass, oid, pg_catalog.pg_get_triggerdef(oid) FROM pg_catalog.pg_trigger \
        UNION ALL SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass, oid, pg_catalog.concat_ws(' ', pg_catalog.pg_get_expr(polqual, polrelid), \
            pg_catalog.pg_get_expr(polwithcheck, polrelid)) FROM pg_catalog.pg_policy \
        UNION ALL SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, oid, pg_catalog.pg_get_functiondef(oid) FROM pg_catalog.pg_proc \
            WHERE prokind <> 'a' AND oid >= 16384 \
        UNION ALL SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, aggfnoid, agginitval FROM pg_catalog.pg_aggregate \
        UNION ALL SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass, oid, pg_catalog.pg_get_ruledef(oid) FROM pg_catalog.pg_rewrite \
            WHERE rulename <> '_RETURN' \
        UNION ALL SELECT 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, oid, pg_catalog.pg_get_statisticsobjdef(oid) \
            FROM pg_catalog.pg_statistic_ext \
        UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, ftrelid, ftoptions::text FROM pg_catalog.pg_foreign_table \
        UNION ALL SELECT 'pg_catalog.pg_foreign_server'::pg_catalog.regclass, oid, srvoptions::text FROM pg_catalog.pg_foreign_server \
        UNION ALL SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, oid, typdefault FROM pg_catalog.pg_type \
        UNION ALL SELECT classoid, objoid, description FROM pg_catalog.pg_description) \
    SELECT i.type || ' ' || i.identity, texts.text FROM texts \
    CROSS JOIN LATERAL pg_catalog.pg_identify_object(texts.class, texts.oid, 0) AS i \
    WHERE texts.oid >= 16384 AND i.identity IS NOT NULL ORDER BY 1";

/// The sensitivity of a source column under the rules.
enum Sensitive {
    Field(usize),
    /// A column without a rule. Kind rules decide for each value.
    ByKind,
    No,
}

async fn add_originals(
    client: &Client,
    source: &Endpoint,
    table: &Table,
    check: &mut Check,
    progress: &Progress,
) -> Result<(), JobError> {
    let plan = Arc::clone(check.plan());
    let mut columns = Vec::new();
    for column in &table.columns {
        let name = format!("{}.{}", table.title(), column.name);
        columns.push(
            match plan.column_rule(&[&table.schema, &table.name, &column.name]) {
                Some(rule) if plan.keeps(rule) => Sensitive::No,
                Some(rule) => Sensitive::Field(check.field_number(&name, rule)),
                None if plan.has_kinds() && column.kinds == KindScope::Values => Sensitive::ByKind,
                None => {
                    if plan.has_kinds() && column.kinds == KindScope::Unseen {
                        let type_text = &column.type_text;
                        check.skip_column(
                            &name,
                            &format!("rules by kind do not look into values of type {type_text}"),
                        );
                    }
                    Sensitive::No
                }
            },
        );
    }
    if columns.iter().all(|column| matches!(column, Sensitive::No)) {
        return Ok(());
    }
    each_value(client, source, table, progress, |at, text| {
        match columns[at] {
            Sensitive::No => {}
            Sensitive::Field(field) => check.add_original(field, text),
            Sensitive::ByKind => {
                if let Some(rule) = plan.kind_rule(text).filter(|rule| !plan.keeps(*rule)) {
                    let field = check.field_number(
                        &format!("{}.{}", table.title(), table.columns[at].name),
                        rule,
                    );
                    check.add_original(field, text);
                }
            }
        }
    })
    .await
}

async fn check_table(
    client: &Client,
    target: &Endpoint,
    table: &Table,
    check: &mut Check,
    progress: &Progress,
) -> Result<(), JobError> {
    let columns: Vec<(String, Vec<usize>)> = table
        .columns
        .iter()
        .map(|column| {
            let name = format!("{}.{}", table.title(), column.name);
            let fields = check.fields_named(&name);
            (name, fields)
        })
        .collect();
    for column in table.columns.iter().filter(|column| column.is_generated) {
        let name = format!("{}.{}", table.title(), column.name);
        check.skip_column(
            &name,
            "generated: the server computes it from columns that are searched",
        );
    }
    each_value(client, target, table, progress, |at, text| {
        let (name, fields) = &columns[at];
        check.check_value(name, fields, text);
    })
    .await
}

/// Calls `visit` for every value of a table except nulls, with the column's index and the text.
/// Generated columns are left out: COPY of a table does not return them, and any other statement
/// could run functions of the table's owner.
async fn each_value(
    client: &Client,
    of: &Endpoint,
    table: &Table,
    progress: &Progress,
    mut visit: impl FnMut(usize, &str),
) -> Result<(), JobError> {
    let stored: Vec<usize> = (0..table.columns.len())
        .filter(|at| !table.columns[*at].is_generated)
        .collect();
    if stored.is_empty() {
        return Ok(());
    }
    let mut fields = Vec::new();
    for leaf in leaf_tables(client, of, table).await? {
        let sql = format!("COPY {leaf} {} TO STDOUT", table.column_list());
        let mut stream = pin!(
            client
                .copy_out(&sql)
                .await
                .map_err(|error| of.error(&error))?
        );
        while let Some(row) = stream.next().await {
            let row = row.map_err(|error| of.error(&error))?;
            copy::split_row(&row, 0, &mut fields);
            for (at, span) in stored.iter().zip(&fields) {
                let raw = &row[span.clone()];
                if copy::is_null(raw) {
                    continue;
                }
                if let Some(text) = copy::decode_field(raw, table.columns[*at].class) {
                    visit(*at, &text);
                }
            }
            progress.add(row.len() as u64, 1);
        }
    }
    Ok(())
}
