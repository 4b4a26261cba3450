//! Checks rules against a schema. Rules that would break the copy are rejected before anything is
//! written.

use std::collections::BTreeSet;

use sealwire_mask_rules::{Function, Target};

use super::catalog::{Catalog, ForeignKey, Table};
use crate::mask_job::error::{JobError, UNKNOWN_LISTED_MAX};
use crate::mask_job::plan::Plan;

/// Number of digits of most cards, and the minimum number of free digits with which `card` keeps
/// values unique.
const CARD_DIGITS: usize = 16;
const CARD_DIGITS_FREE_MIN: usize = 6;

const UNIQUE_FUNCTIONS: &str = "fpe, email, phone, card, iban, mac, hash, or date_shift(days=...) keep values apart; or keep the column";

/// Returns an error with all findings at once, so that an operator can fix them together.
pub(crate) fn check(catalog: &Catalog, plan: &Plan) -> Result<(), JobError> {
    Plan::without_paths(plan.rules(), "tables have columns")?;
    let mut findings = missing_columns(catalog, plan);
    find_unnamed(catalog, plan, &mut findings);
    for table in &catalog.tables {
        find_invalid_columns(table, plan, &mut findings);
        find_inherited(catalog, table, plan, &mut findings);
        find_uniques(table, plan, &mut findings);
        for key in &table.foreign_keys {
            find_foreign_key(catalog, table, key, plan, &mut findings);
        }
    }
    if findings.is_empty() {
        Ok(())
    } else {
        Err(JobError::Plan(findings.join("\n")))
    }
}

/// Returns an error if a rule matches no column.
pub(crate) fn reject_missing(catalog: &Catalog, plan: &Plan) -> Result<(), JobError> {
    let missing = missing_columns(catalog, plan);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(JobError::Plan(missing.join("\n")))
    }
}

fn rule_of(table: &Table, column: &str, plan: &Plan) -> Option<usize> {
    plan.column_rule(&[&table.schema, &table.name, column])
        .filter(|rule| !plan.keeps(*rule))
}

fn function_of<'p>(table: &Table, column: &str, plan: &'p Plan) -> Option<&'p Function> {
    rule_of(table, column, plan)
        .and_then(|rule| plan.rules().get(rule))
        .map(|rule| &rule.function)
}

/// Returns messages for rules that match no column. Each rule is checked alone, since an earlier
/// rule can apply to all of its columns.
fn missing_columns(catalog: &Catalog, plan: &Plan) -> Vec<String> {
    let missing = plan.rules().iter().enumerate().filter_map(|(at, rule)| match &rule.target {
        Target::Column(name) if !has_column(catalog, name) => Some(format!(
            "rule {} names column {name}, which the source does not have: write column, table.column or schema.table.column",
            at + 1
        )),
        _ => None,
    });
    missing.collect()
}

/// Returns true if a table has the column, which can be named with its table and schema.
fn has_column(catalog: &Catalog, name: &str) -> bool {
    catalog.tables.iter().any(|table| {
        table.columns.iter().any(|column| {
            let two = format!("{}.{}", table.name, column.name);
            name == column.name || name == two || name == format!("{}.{two}", table.schema)
        })
    })
}

fn find_unnamed(catalog: &Catalog, plan: &Plan, findings: &mut Vec<String>) {
    if !plan.rejects_unknown() {
        return;
    }
    let columns = catalog.tables.iter().flat_map(|table| {
        let unnamed = table.copied().filter(|column| {
            plan.column_rule(&[&table.schema, &table.name, &column.name])
                .is_none()
        });
        unnamed.map(|column| format!("{}.{}", table.title(), column.name))
    });
    let columns: Vec<String> = columns.collect();
    if columns.is_empty() {
        return;
    }
    let listed = columns[..columns.len().min(UNKNOWN_LISTED_MAX)].join(", ");
    let more = columns.len().saturating_sub(UNKNOWN_LISTED_MAX);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    findings.push(format!(
        "no rule names {listed}{more}; name each in a rule (mask = \"keep\" keeps it) or say unknown = \"keep\""
    ));
}

fn find_invalid_columns(table: &Table, plan: &Plan, findings: &mut Vec<String>) {
    for column in &table.columns {
        let Some(rule) = rule_of(table, &column.name, plan) else {
            continue;
        };
        let field = format!("{}.{}", table.title(), column.name);
        if column.is_generated {
            findings.push(format!(
                "{field} is computed from other columns: mask those columns, and remove the rule for this column"
            ));
        }
        if column.is_not_null && plan.name(rule) == "null" {
            findings.push(format!(
                "{field} is NOT NULL, and null would empty it: use redact or fixed(...)"
            ));
        }
    }
}

/// Finds columns that a table inherits from a table where they are masked, and that no rule names.
/// Rows of the inheriting table would keep their values, although a query of the parent shows them.
fn find_inherited(catalog: &Catalog, table: &Table, plan: &Plan, findings: &mut Vec<String>) {
    for parent in table
        .parents
        .iter()
        .filter_map(|at| catalog.tables.get(*at))
    {
        for column in &table.columns {
            let is_unnamed = plan
                .column_rule(&[&table.schema, &table.name, &column.name])
                .is_none();
            if is_unnamed && rule_of(parent, &column.name, plan).is_some() {
                findings.push(format!(
                    "{}.{name} is inherited from {}, where {name} is masked, and no rule names it: name it, too (mask = \"keep\" \
                     keeps it)",
                    table.title(),
                    parent.title(),
                    name = column.name
                ));
            }
        }
    }
}

fn find_uniques(table: &Table, plan: &Plan, findings: &mut Vec<String>) {
    let mut reported = BTreeSet::new();
    for unique in &table.uniques {
        for column in &unique.columns {
            let Some(function) = function_of(table, column, plan) else {
                continue;
            };
            if !keeps_apart(function) && reported.insert(column.clone()) {
                findings.push(format!(
                    "{}.{column} must stay unique ({}), and {function} may give two values the same mask: \
                     {UNIQUE_FUNCTIONS}",
                    table.title(),
                    unique.name
                ));
            }
        }
    }
}

/// Returns true if two values never get equal masks, or only with negligible probability.
/// Properties of single values, such as the length of a phone number, are not checked. For these,
/// the target's own constraint applies.
pub(crate) fn keeps_apart(function: &Function) -> bool {
    let text = function.to_string();
    match function.name() {
        "fpe" | "email" | "phone" | "iban" | "mac" | "keep" => true,
        "date_shift" => setting(&text, "days").is_some(),
        // At least 16 hexadecimal digits, which are 64 bits.
        "hash" => true,
        "card" => {
            let first = digits_setting(&text, "first").unwrap_or(0);
            let last = digits_setting(&text, "last").unwrap_or(4);
            let free = CARD_DIGITS - 1 - first - last;
            setting(&text, "luhn") != Some("invalid") && free >= CARD_DIGITS_FREE_MIN
        }
        _ => false,
    }
}

/// Returns the value of argument `name` in a function's text.
fn setting<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, arguments) = text.split_once('(')?;
    arguments
        .trim_end_matches(')')
        .split(',')
        .find_map(|argument| argument.trim().strip_prefix(name)?.strip_prefix('='))
}

fn digits_setting(text: &str, name: &str) -> Option<usize> {
    setting(text, name)?.parse().ok()
}

fn find_foreign_key(
    catalog: &Catalog,
    table: &Table,
    key: &ForeignKey,
    plan: &Plan,
    findings: &mut Vec<String>,
) {
    let (schema, name) = &key.to;
    let Some(to) = catalog
        .tables
        .iter()
        .find(|other| (&other.schema, &other.name) == (schema, name))
    else {
        return;
    };
    for (from_column, to_column) in key.columns.iter().zip(&key.to_columns) {
        let from = function_of(table, from_column, plan);
        let referenced = function_of(to, to_column, plan);
        if from == referenced && from.is_none_or(|function| function.subject().is_none()) {
            continue;
        }
        findings.push(format!(
            "{}.{from_column} refers to {}.{to_column} ({}), but the first is {} and the second {}: \
             give both the same function and domain, without a subject",
            table.title(),
            to.title(),
            key.name,
            treatment(from),
            treatment(referenced)
        ));
    }
}

/// Describes the treatment of a column.
fn treatment(function: Option<&Function>) -> String {
    function.map_or("kept".to_owned(), |function| {
        format!("masked by {function}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_keep_values_apart_or_not() {
        for (text, expected) in [
            ("fpe", true),
            ("email", true),
            ("phone(last=2)", true),
            ("card", true),
            ("iban", true),
            ("mac", true),
            ("postal_code", false),
            ("card(first=6)", false),
            ("card(luhn=invalid)", false),
            ("hash", true),
            ("hash(length=16)", true),
            ("date_shift(days=30)", true),
            ("date_shift(within=30)", false),
            ("pseudonym(list=cities)", false),
            ("redact", false),
            ("partial(first=1)", false),
            ("noise(percent=10)", false),
        ] {
            assert_eq!(keeps_apart(&text.parse().expect(text)), expected, "{text}");
        }
    }
}
