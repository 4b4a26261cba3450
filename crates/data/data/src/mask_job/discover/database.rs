//! Discovery in a PostgreSQL database.
//!
//! All data is read in one read-only snapshot with a statement timeout. Sampled values are masked
//! under a throw-away key. In the snapshot, these masks are cast to the column's type and tried
//! against the column's check constraints.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use sealwire_discover::{
    Category, ColumnPaths, DemandSource, Demands, DiscoverOptions, DiscoveredField, Discovery,
    FieldClass, FieldVerdict, Judgement, MergedFields, Sample, Trial, UNCERTAIN_MIN, ValueType,
    candidates, class_of as class_of_sample, is_of_persons, judge, names_of, path_text,
};
use sealwire_mask_rules::{Function, RuleText, Rules, Target, Unknown, Value};
use sealwire_msgpack::TokenReader;
use tokio_postgres::Client;

use super::file::Documents;
use crate::mask_job::error::JobError;
use crate::mask_job::plan::Plan;
use crate::mask_job::postgres::sample::SampleReader;
use crate::mask_job::postgres::source::Snapshot;
use crate::mask_job::postgres::target::reject_privileged_reader;
use crate::mask_job::postgres::{
    Catalog, Class as ColumnClass, Column, Database, Endpoint, Table, check, export_snapshot,
    keeps_apart, quoted,
};
use crate::mask_job::report::{Progress, RunningReport};
use crate::mask_job::scan::copy;
use crate::mask_job::scan::json::Memory;

/// Statement timeout of the transaction.
const TIMEOUT: &str = "60s";

/// A column with its sample.
struct ColumnSample<'c> {
    table: &'c Table,
    column: &'c Column,
    class: FieldClass,
    sample: Sample,
    judgement: Judgement,
    is_unique: bool,
    /// True if a cast to the column's type can call functions of the type's owner.
    is_own_type: bool,
    /// Check constraints that call no function of an owner.
    checks: Vec<String>,
}

/// Samples all tables of a database and proposes rules, which a job accepts. Only reads.
///
/// # Errors
/// [`JobError`], without values.
pub async fn discover_database(
    source: Database,
    options: DiscoverOptions,
    trial: Trial<'_>,
    progress: &Progress,
) -> Result<Discovery, JobError> {
    let endpoint = tokio::task::spawn_blocking(move || Endpoint::new(source, "source")).await??;
    reject_privileged_reader(&endpoint).await?;
    let opened = Snapshot::open(&endpoint).await?;
    let client = &opened.client;
    let limit = format!("SET LOCAL statement_timeout = '{TIMEOUT}'");
    client
        .batch_execute(&limit)
        .await
        .map_err(|error| endpoint.error(&error))?;
    let snapshot = export_snapshot(client, &endpoint).await?;
    let catalog = Catalog::read(client, &endpoint).await?;
    let checks = read_checks(client, &endpoint).await?;
    let own_types = read_own_types(client, &endpoint).await?;

    let mut reader = SampleReader::new(&endpoint, &snapshot, TIMEOUT);
    progress.set_totals(0, catalog.tables.len() as u64);
    let mut discovery = Discovery::default();
    let mut found = Vec::new();
    for (at, table) in catalog.tables.iter().enumerate() {
        let samples = match sample_table(&mut reader, table, options, at as u64).await? {
            Some(samples) => samples,
            None => {
                discovery.notes.push(format!(
                    "{} could not be read in time, so names alone decide",
                    table.title()
                ));
                table
                    .copied()
                    .map(|_| Sample::new(options.sample, options.seed))
                    .collect()
            }
        };
        for (column, sample) in table.copied().zip(samples) {
            let class = class_of(column);
            let judgement = match class {
                FieldClass::Json => judge_documents(column, &table.name, &sample, options),
                _ => judge(
                    &column.name,
                    &table.name,
                    &class,
                    &sample,
                    options.this_year,
                ),
            };
            let is_unique = table
                .uniques
                .iter()
                .any(|unique| unique.columns.contains(&column.name));

            let is_own_type = own_types.contains(&(table.title(), column.name.clone()));
            let mut tried = Vec::new();
            let mut is_tried = !is_own_type;
            for check in checks
                .iter()
                .filter(|check| check.table == table.title() && check.column == column.name)
            {
                if check.is_safe && !is_own_type {
                    tried.push(check.expression.clone());
                } else {
                    is_tried = false;
                }
            }
            if !is_tried {
                discovery.notes.push(format!(
                    "{}.{}: its type or check constraints need functions of their owner, and were not tried",
                    table.title(),
                    column.name
                ));
            }
            found.push(ColumnSample {
                table,
                column,
                class,
                sample,
                judgement,
                is_unique,
                is_own_type,
                checks: tried,
            });
        }
        progress.add(0, 1);
    }

    let groups = group_by_references(&catalog, &found);
    let mut functions: Vec<Option<Function>> = vec![None; found.len()];
    for group in &groups {
        // The most confident column of a group of references decides for the whole group.
        let Some(best) = group.iter().copied().max_by(|a, b| {
            found[*a]
                .judgement
                .confidence
                .total_cmp(&found[*b].judgement.confidence)
                .then(b.cmp(a))
        }) else {
            continue;
        };
        let judged = found[best].judgement.clone();
        if judged.confidence < UNCERTAIN_MIN.min(options.min_confidence) {
            continue;
        }
        let Some(category) = judged.category else {
            continue;
        };
        let function = group_function(client, &endpoint, category, group, &found, trial).await?;
        for at in group {
            functions[*at].clone_from(&function);
            if *at != best {
                let evidence = &mut found[*at].judgement.evidence;
                evidence.push("a foreign key joins it with a column of the same mask".to_owned());
                found[*at].judgement.category = Some(category);
                found[*at].judgement.confidence = judged.confidence;
            }
        }
    }

    let _ = client.batch_execute("ROLLBACK").await;
    for (found, function) in found.into_iter().zip(functions) {
        discovery
            .fields
            .push(decide_column(found, function, options));
    }
    check_rules(&catalog, &mut discovery)?;
    Ok(discovery)
}

fn decide_column(
    found: ColumnSample<'_>,
    function: Option<Function>,
    options: DiscoverOptions,
) -> DiscoveredField {
    let Judgement {
        category,
        confidence,
        mut evidence,
    } = found.judgement;
    let is_sensitive = confidence >= options.min_confidence;
    let verdict = match &function {
        _ if confidence < UNCERTAIN_MIN.min(options.min_confidence) => FieldVerdict::Harmless,
        Some(_) if is_sensitive => FieldVerdict::Sensitive,
        Some(_) => FieldVerdict::Uncertain,
        None => {
            evidence.push("no function fits the column".to_owned());
            FieldVerdict::Uncertain
        }
    };
    if found.is_unique && function.is_some() {
        evidence.push("unique, so a function that keeps values apart".to_owned());
    }
    let name = format!("{}.{}", found.table.title(), found.column.name);
    DiscoveredField {
        field: name.clone(),
        verdict,
        category,
        confidence,
        evidence,
        mask: function.map(|function| function.to_string()),
        values: found.sample.values().len(),
        target: Some(Target::Column(name)),
        fallback: None,
        columns: ColumnPaths::default(),
    }
}

/// Checks the proposed rules in the same way as a job.
fn check_rules(catalog: &Catalog, discovery: &mut Discovery) -> Result<(), JobError> {
    let rules: Vec<RuleText> = discovery
        .fields
        .iter()
        .filter(|field| field.verdict == FieldVerdict::Sensitive)
        .filter_map(|field| {
            Some(RuleText {
                target: field.target.clone()?,
                mask: field.mask.clone()?,
            })
        })
        .collect();
    let rules = Rules::new(Unknown::Keep, rules, Vec::new())
        .map_err(|error| JobError::Plan(error.to_string()))?;
    check(catalog, &Plan::new(Arc::new(rules)))
}

fn class_of(column: &Column) -> FieldClass {
    let type_text = column.type_text.as_str();
    match column.class {
        _ if type_text.ends_with("[]") => FieldClass::Array,
        ColumnClass::Text(characters_max) | ColumnClass::PaddedText(characters_max) => {
            FieldClass::Text { characters_max }
        }
        ColumnClass::Integer | ColumnClass::Decimal => FieldClass::Number,
        ColumnClass::Other if type_text == "money" => FieldClass::Number,
        ColumnClass::Boolean => FieldClass::Boolean,
        ColumnClass::Json => FieldClass::Json,
        ColumnClass::Other if type_text == "date" || type_text.starts_with("timestamp") => {
            FieldClass::Date
        }
        ColumnClass::Other if matches!(type_text, "inet" | "cidr") => FieldClass::Inet,
        ColumnClass::Other if type_text == "bytea" => FieldClass::Bytes,
        ColumnClass::Other => FieldClass::Other,
    }
}

/// Reads a bounded number of rows from the start. Returns `None` if the server's timeout ended the
/// statement.
async fn sample_table(
    reader: &mut SampleReader<'_>,
    table: &Table,
    options: DiscoverOptions,
    number: u64,
) -> Result<Option<Vec<Sample>>, JobError> {
    let columns: Vec<&Column> = table.copied().collect();
    let seed = options
        .seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(number << 16);
    let mut samples: Vec<Sample> = (0..columns.len())
        .map(|at| Sample::new(options.sample, seed.wrapping_add(at as u64)))
        .collect();
    // The content of binary values is not read.
    let read: Vec<usize> = (0..columns.len())
        .filter(|at| !matches!(class_of(columns[*at]), FieldClass::Bytes))
        .collect();
    if read.is_empty() {
        return Ok(Some(samples));
    }
    let read_columns: Vec<_> = read
        .iter()
        .map(|at| (columns[*at].name.as_str(), columns[*at].class))
        .collect();

    let mut rows = 0;
    let is_read = reader
        .first_rows(table, &read_columns, &mut |at, text| {
            if let Some(text) = text {
                samples[read[at]].add(ValueType::Text, text);
            }
            rows += usize::from(at + 1 == read.len());
            if rows < options.sample {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
        .await?;
    Ok(is_read.then_some(samples))
}

/// Judges a column of JSON by its fields. The most confident field decides.
fn judge_documents(
    column: &Column,
    table: &str,
    sample: &Sample,
    options: DiscoverOptions,
) -> Judgement {
    let harmless = Judgement {
        category: None,
        confidence: 0.0,
        evidence: Vec::new(),
    };
    let Ok(rules) = Rules::new(Unknown::Keep, Vec::new(), Vec::new()) else {
        return harmless;
    };
    let plan = Plan::new(Arc::new(rules));
    let running_report = RunningReport::default();
    let mut memory = Memory::new();
    let mut documents = Documents::new(options);
    sample.values().iter().for_each(|(_, text)| {
        documents.scan_document(text.as_bytes(), &mut memory, &plan, &running_report)
    });

    let MergedFields { fields, maps } = documents.merge().merged;
    let mut best = harmless;
    for (parts, sample) in &fields {
        let (name, parent) = names_of(parts);
        let (name, parent) = if name.is_empty() {
            (column.name.as_str(), table)
        } else {
            (name, parent)
        };
        let parent = if parent.is_empty() {
            if is_of_persons(&column.name) {
                &column.name
            } else {
                table
            }
        } else {
            parent
        };
        let judged = judge(
            name,
            parent,
            &class_of_sample(sample),
            sample,
            options.this_year,
        );
        if judged.category.is_some() && judged.confidence > best.confidence {
            let evidence = format!(
                "JSON field {}: {}",
                path_text(parts),
                judged.evidence.join("; ")
            );
            best = Judgement {
                category: Some(Category::FreeText),
                confidence: judged.confidence,
                evidence: vec![evidence],
            };
        }
    }

    if best.confidence < UNCERTAIN_MIN && sample.long() > 0 {
        let evidence = vec![format!(
            "{} documents were too long to be read",
            sample.long()
        )];
        best = Judgement {
            category: Some(Category::FreeText),
            confidence: 0.4,
            evidence,
        };
    }
    if let Some((prefix, _)) = maps.iter().find(|(_, is_personal)| *is_personal) {
        let evidence = format!(
            "keys of the JSON map {} have the form of personal data",
            path_text(prefix)
        );
        let confidence = best.confidence.max(0.9);
        best = Judgement {
            category: Some(Category::FreeText),
            confidence,
            evidence: vec![evidence],
        };
    }
    best
}

/// A check constraint of a single column.
struct ColumnCheck {
    table: String,
    column: String,
    expression: String,
    /// True if the constraint uses only immutable functions and types of the server.
    is_safe: bool,
}

/// Reads the check constraints of single columns. Objects of the server have no entries in
/// `pg_depend`. Functions that are not immutable, such as `query_to_xml`, can execute any SQL.
async fn read_checks(client: &Client, source: &Endpoint) -> Result<Vec<ColumnCheck>, JobError> {
    let sql = "SELECT n.nspname || '.' || c.relname, a.attname::text, pg_catalog.pg_get_expr(k.conbin, k.conrelid), \
            NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass \
                AND d.objid = k.oid AND NOT (d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = c.oid)) \
            AND NOT EXISTS (SELECT 1 FROM pg_catalog.regexp_matches(k.conbin::text, ':(?:op)?funcid ([0-9]+)', 'g') AS f \
                LEFT JOIN pg_catalog.pg_proc p ON p.oid = f[1]::oid WHERE p.provolatile IS DISTINCT FROM 'i') \
        FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.conkey[1] \
        WHERE k.contype = 'c' AND pg_catalog.array_length(k.conkey, 1) = 1 ORDER BY k.conname";
    let rows = client
        .query(sql, &[])
        .await
        .map_err(|error| source.error(&error))?;
    let checks = rows.iter().map(|row| ColumnCheck {
        table: row.get(0),
        column: row.get(1),
        expression: row.get(2),
        is_safe: row.get(3),
    });
    Ok(checks.collect())
}

/// Returns table and column of each column whose type is a domain or is owned by a role without
/// superuser rights. Casts to such types can call functions of their owners.
async fn read_own_types(
    client: &Client,
    source: &Endpoint,
) -> Result<HashSet<(String, String)>, JobError> {
    let sql = "SELECT n.nspname || '.' || c.relname, a.attname::text FROM pg_catalog.pg_attribute a \
        JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        JOIN pg_catalog.pg_type t ON t.oid = a.atttypid LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem \
        WHERE a.attnum > 0 AND NOT a.attisdropped AND EXISTS (SELECT 1 FROM pg_catalog.pg_roles r \
            WHERE r.oid IN (t.typowner, e.typowner) AND NOT r.rolsuper OR 'd' IN (t.typtype, e.typtype))";
    let rows = client
        .query(sql, &[])
        .await
        .map_err(|error| source.error(&error))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Groups columns that foreign keys join. A column without such a key forms a separate group.
fn group_by_references(catalog: &Catalog, found: &[ColumnSample<'_>]) -> Vec<Vec<usize>> {
    let at: HashMap<(String, &str), usize> = found
        .iter()
        .enumerate()
        .map(|(at, it)| ((it.table.title(), it.column.name.as_str()), at))
        .collect();
    let mut group: Vec<usize> = (0..found.len()).collect();
    for table in &catalog.tables {
        for key in &table.foreign_keys {
            let to = format!("{}.{}", key.to.0, key.to.1);
            for (from_column, to_column) in key.columns.iter().zip(&key.to_columns) {
                let from = at.get(&(table.title(), from_column.as_str()));
                let (Some(from), Some(to)) = (from, at.get(&(to.clone(), to_column.as_str())))
                else {
                    continue;
                };
                let old = group[*from];
                let new = group[*to];
                group
                    .iter_mut()
                    .filter(|group| **group == old)
                    .for_each(|group| *group = new);
            }
        }
    }
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); found.len()];
    group
        .iter()
        .enumerate()
        .for_each(|(at, group)| members[*group].push(at));
    members.retain(|members| !members.is_empty());
    members
}

/// Chooses the first function that fits all columns of a group.
async fn group_function(
    client: &Client,
    source: &Endpoint,
    category: Category,
    group: &[usize],
    found: &[ColumnSample<'_>],
    trial: Trial<'_>,
) -> Result<Option<Function>, JobError> {
    let is_joined = group.len() > 1;
    let is_unique = group.iter().any(|at| found[*at].is_unique);
    let is_nullable = group.iter().all(|at| !found[*at].column.is_not_null);
    // The shortest column limits the masks of all.
    let narrowest = group.iter().min_by_key(|at| match found[**at].class {
        FieldClass::Text { characters_max } => characters_max.unwrap_or(usize::MAX),
        _ => 0,
    });
    let Some(narrowest) = narrowest else {
        return Ok(None);
    };
    let name = found[*narrowest].column.name.as_str();
    let demands = Demands {
        name,
        class: &found[*narrowest].class,
        is_unique,
        is_nullable,
        source: DemandSource::Database,
    };
    'functions: for function in candidates(category, demands) {
        if is_unique && !keeps_apart(&function) || is_joined && !keeps_apart(&function) {
            continue;
        }
        for at in group {
            if !function_fits(client, source, &function, &found[*at], trial).await? {
                continue 'functions;
            }
        }
        return Ok(Some(function));
    }
    Ok(None)
}

/// Tries a function on a sample: masks, casts, and check constraints.
async fn function_fits(
    client: &Client,
    source: &Endpoint,
    function: &Function,
    found: &ColumnSample<'_>,
    trial: Trial<'_>,
) -> Result<bool, JobError> {
    let column = found.column;
    let decimals = matches!(function.name(), "noise" | "generalize");
    let mut masks = Vec::with_capacity(found.sample.values().len());
    let mut original = Vec::new();
    let mut out = Vec::new();

    // Binary values are not read, and constants do not depend on values.
    let placeholder = [(ValueType::Text, Box::from("x"))];
    let is_constant = matches!(function.name(), "redact" | "fixed" | "null");
    let values = match found.class {
        FieldClass::Bytes => &placeholder[..],
        _ if found.sample.values().is_empty() && is_constant => &placeholder[..],
        // Without values, nothing shows whether the type can hold the masks.
        _ if found.sample.values().is_empty() && column.class == ColumnClass::Other => {
            return Ok(false);
        }
        _ => found.sample.values(),
    };
    for (_, text) in values {
        original.clear();
        out.clear();
        copy::write_value(text, column.class, decimals, &mut original);
        let Some(value) = Value::read(&original) else {
            return Ok(false);
        };
        if !trial(function, value, &mut out) {
            return Ok(false);
        }
        let mut written = Vec::new();
        let Ok(token) = TokenReader::new(&out).token() else {
            return Ok(false);
        };
        match copy::write_plain(token, column.class, &mut written) {
            Ok(true) => masks.push(String::from_utf8_lossy(&written).into_owned()),
            Ok(false) if column.is_not_null => return Ok(false),
            Ok(false) => {}
            Err(_) => return Ok(false),
        }
    }
    // A cast would truncate a text that is too long, but COPY rejects such a text.
    if let FieldClass::Text {
        characters_max: Some(max),
    } = found.class
        && masks.iter().any(|mask| mask.chars().count() > max)
    {
        return Ok(false);
    }
    if found.is_own_type {
        return Ok(column.class != ColumnClass::Other);
    }
    let name = quoted(&column.name);
    let conditions: String = found
        .checks
        .iter()
        .fold(String::new(), |conditions, check| {
            format!("{conditions} AND ({check}) IS NOT FALSE")
        });
    let sql = format!(
        "SELECT pg_catalog.count(*) FROM (SELECT v::{} AS {name} FROM pg_catalog.unnest($1::pg_catalog.text[]) AS v) AS m \
         WHERE true{conditions}",
        column.type_text
    );
    client
        .batch_execute("SAVEPOINT sealwire_discover")
        .await
        .map_err(|error| source.error(&error))?;
    match client.query_one(&sql, &[&masks]).await {
        Ok(row) => Ok(row.get::<_, i64>(0) as usize == masks.len()),
        // An error of the server means that the mask does not fit. The server's message can contain
        // the mask.
        Err(error) if error.as_db_error().is_some() => {
            client
                .batch_execute("ROLLBACK TO SAVEPOINT sealwire_discover")
                .await
                .map_err(|error| source.error(&error))?;
            Ok(false)
        }
        Err(error) => Err(source.error(&error)),
    }
}
