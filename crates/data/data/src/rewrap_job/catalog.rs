//! Finds the table, the column and the key of a rule in the database, and the side effects of
//! updates on the table.

use crate::mask_job::{Endpoint, JobError, quoted};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::rewrap_job::engine::Encoding;
use crate::rewrap_job::error::RewrapError;
use crate::rewrap_job::rules::{ContextTemplate, Rule};

/// The column of a rule, found in the database.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) schema: String,
    pub(crate) table: String,
    /// True if the rows are in partitions, which are read through this parent table.
    pub(crate) is_partitioned: bool,
    pub(crate) rows_estimated: u64,
    pub(crate) column: String,
    pub(crate) encoding: Encoding,
    /// Maximum number of characters of the column's type.
    pub(crate) chars_max: Option<usize>,
    /// The columns of a unique index, in its order.
    pub(crate) key: Vec<KeyColumn>,
    pub(crate) app: String,
    pub(crate) context: ContextTemplate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyColumn {
    pub(crate) name: String,
    /// The type as SQL text, without a limit of length.
    pub(crate) type_text: String,
}

impl Target {
    /// Returns the name for reports.
    pub(crate) fn title(&self) -> String {
        format!("{}.{}", self.schema, self.table)
    }

    /// Returns the table for SQL. Inheriting tables are not included, because the table's key does
    /// not cover them.
    pub(crate) fn source(&self) -> String {
        let only = if self.is_partitioned { "" } else { "ONLY " };
        format!("{only}{}.{}", quoted(&self.schema), quoted(&self.table))
    }
}

struct Column {
    name: String,
    type_text: String,
    /// Name of the type that a domain is based on.
    base: String,
    modifier: i32,
    is_not_null: bool,
    is_generated: bool,
    number: i16,
    /// Privileges of the job's role.
    can_select: bool,
    can_update: bool,
}

/// Reads catalogs for one rule.
pub(crate) struct Catalog<'c> {
    pub(crate) client: &'c Client,
    pub(crate) endpoint: &'c Endpoint,
}

/// Tables by name, with or without a schema.
const TABLES: &str = "\
    SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, \
        (SELECT coalesce(sum(greatest(p.reltuples, 0)), 0)::bigint FROM pg_class p WHERE p.oid = c.oid \
            OR p.oid IN (SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf)), \
        c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid), c.relhasrules \
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE (n.nspname || '.' || c.relname = $1 OR c.relname = $1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') \
        AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)' ORDER BY 2, 3";

const COLUMNS: &str = "\
    WITH RECURSIVE base AS ( \
        SELECT t.oid AS type, t.oid AS base, -1 AS modifier FROM pg_type t \
        UNION ALL \
        SELECT b.type, t.typbasetype, t.typtypmod FROM base b JOIN pg_type t ON t.oid = b.base WHERE t.typtype = 'd') \
    SELECT a.attname::text, format_type(a.atttypid, -1), t.typname::text, \
        CASE WHEN a.atttypmod >= 0 THEN a.atttypmod ELSE b.modifier END, a.attnotnull, a.attgenerated <> '', a.attnum, \
        has_column_privilege(a.attrelid, a.attnum, 'SELECT'), has_column_privilege(a.attrelid, a.attnum, 'UPDATE') \
    FROM pg_attribute a JOIN base b ON b.type = a.atttypid JOIN pg_type t ON t.oid = b.base AND t.typtype <> 'd' \
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped";

/// Unique indexes over columns of the table that cover all its rows; the primary key first.
const UNIQUES: &str = "\
    SELECT i.indisprimary, ARRAY( \
        SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place) \
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number \
        WHERE k.place <= i.indnkeyatts ORDER BY k.place) \
    FROM pg_index i WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL \
    ORDER BY i.indisprimary DESC, i.indexrelid";

const TRIGGERS: &str = "\
    SELECT t.tgname::text FROM pg_trigger t WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgenabled <> 'D' \
        AND t.tgtype & 16 <> 0 AND (t.tgattr::text = '' OR $2::int2 = ANY (t.tgattr::int2[])) ORDER BY 1";

const PUBLICATIONS: &str = "\
    SELECT DISTINCT p.pubname::text FROM pg_publication_tables p \
        JOIN pg_namespace n ON n.nspname = p.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename \
    WHERE c.oid = $1 OR c.oid IN (SELECT relid FROM pg_partition_tree($1::oid)) ORDER BY 1";

const SLOTS: &str = "\
    SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'logical' AND database = current_database() \
    ORDER BY 1";

const SUBSCRIBED: &str = "SELECT 'x' FROM pg_subscription_rel WHERE srrelid = $1 LIMIT 1";

/// Functions and types that belong to roles without superuser rights, and that run when the table
/// is read or updated: those of check constraints, defaults, indexes, statistics and column types.
const OWN_CODE: &str = "\
    SELECT DISTINCT found.name FROM ( \
        SELECT p.oid::regprocedure::text AS name, p.proowner AS owner FROM pg_depend d JOIN pg_proc p ON p.oid = d.refobjid \
        WHERE d.refclassid = 'pg_proc'::regclass AND (d.classid, d.objid) IN ( \
            SELECT 'pg_constraint'::regclass::oid, oid FROM pg_constraint WHERE conrelid = $1 \
            UNION ALL SELECT 'pg_attrdef'::regclass::oid, oid FROM pg_attrdef WHERE adrelid = $1 \
            UNION ALL SELECT 'pg_class'::regclass::oid, indexrelid FROM pg_index WHERE indrelid = $1 \
            UNION ALL SELECT 'pg_statistic_ext'::regclass::oid, oid FROM pg_statistic_ext WHERE stxrelid = $1) \
        UNION ALL \
        SELECT t.oid::regtype::text, t.typowner FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
        WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped) AS found \
    JOIN pg_roles r ON r.oid = found.owner AND NOT r.rolsuper ORDER BY 1";

impl Catalog<'_> {
    /// Finds the column of a rule. Adds the side effects of updates to `warnings`.
    pub(crate) async fn find_target(
        &self,
        number: usize,
        rule: &Rule,
        warnings: &mut Vec<String>,
    ) -> Result<Target, RewrapError> {
        let tables = self.query(TABLES, &[&rule.table]).await?;
        let table = one_table(&rule.table, &tables)
            .map_err(|what| RewrapError::Rule { rule: number, what })?;
        let oid: u32 = table.get(0);
        let columns: Vec<Column> = self
            .query(COLUMNS, &[&oid])
            .await?
            .iter()
            .map(Column::from_row)
            .collect();
        let uniques = self.query(UNIQUES, &[&oid]).await?;
        let uniques: Vec<(bool, Vec<String>)> =
            uniques.iter().map(|row| (row.get(0), row.get(1))).collect();

        let (target, column) = target_in(table, rule, &columns, &uniques)
            .map_err(|what| RewrapError::Rule { rule: number, what })?;
        self.add_warnings(table, &target.title(), column, warnings)
            .await?;
        Ok(target)
    }

    async fn add_warnings(
        &self,
        table: &Row,
        title: &str,
        column: &Column,
        warnings: &mut Vec<String>,
    ) -> Result<(), RewrapError> {
        let oid: u32 = table.get(0);
        let mut found = Vec::new();

        let triggers = self.names(TRIGGERS, &[&oid, &column.number]).await?;
        if !triggers.is_empty() {
            let triggers = triggers.join(", ");
            found.push(format!(
                "{title}: each rewrapped value fires {triggers}, which can change other columns or tables"
            ));
        }
        let own_code = self.names(OWN_CODE, &[&oid]).await?;
        if !own_code.is_empty() {
            let names = own_code.join(", ");
            found.push(format!(
                "{title} uses {names}, which run with the rights of this role, also in a dry run"
            ));
        }
        let publications = self.names(PUBLICATIONS, &[&oid]).await?;
        if !publications.is_empty() {
            let publications = publications.join(", ");
            found.push(format!(
                "{title} is published ({publications}): each rewrapped row is sent to all subscribers"
            ));
        }
        let slots = self.names(SLOTS, &[]).await?;
        if !slots.is_empty() {
            found.push(format!(
                "logical replication slots ({}): each rewrapped row is decoded",
                slots.join(", ")
            ));
        }
        if !self.names(SUBSCRIBED, &[&oid]).await?.is_empty() {
            found.push(format!(
                "{title} is filled by a subscription: rewrap the publisher, or its changes restore old values"
            ));
        }
        if table.get(5) {
            found.push(format!(
                "{title} has tables that inherit from it: their rows are not rewrapped without own rules"
            ));
        }
        if table.get(6) {
            found.push(format!(
                "{title} has rewrite rules, which can change or replace updates"
            ));
        }

        // Several rules can name one table.
        for warning in found {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        Ok(())
    }

    async fn names(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<String>, RewrapError> {
        Ok(self
            .query(sql, values)
            .await?
            .iter()
            .map(|row| row.get(0))
            .collect())
    }

    async fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, JobError> {
        self.client
            .query(sql, values)
            .await
            .map_err(|error| self.endpoint.error(&error))
    }
}

/// Finds the column of a rule in its table. The error says why the rule does not fit.
fn target_in<'c>(
    table: &Row,
    rule: &Rule,
    columns: &'c [Column],
    uniques: &[(bool, Vec<String>)],
) -> Result<(Target, &'c Column), String> {
    let schema: String = table.get(1);
    let name: String = table.get(2);
    let title = format!("{schema}.{name}");

    let column = find_column(columns, &rule.column, &title)?;
    let (encoding, chars_max) = column.encoding(&title)?;
    let key = key_columns(rule, columns, uniques, &title)?;
    for name in rule.context.columns() {
        find_column(columns, name, &title)?;
    }
    let read = key
        .iter()
        .map(|column| column.name.as_str())
        .chain(rule.context.columns());
    check_privileges(columns, column, read, &title)?;

    let target = Target {
        is_partitioned: table.get::<_, String>(3) == "p",
        rows_estimated: u64::try_from(table.get::<_, i64>(4)).unwrap_or(0),
        schema,
        table: name,
        column: rule.column.clone(),
        encoding,
        chars_max,
        key,
        app: rule.app.clone(),
        context: rule.context.clone(),
    };
    Ok((target, column))
}

fn one_table<'r>(name: &str, found: &'r [Row]) -> Result<&'r Row, String> {
    match found {
        [] => Err(format!(
            "table {name} does not exist, or the role cannot see it: check the spelling and upper case"
        )),
        [row] => match row.get::<_, String>(3).as_str() {
            "r" | "p" => Ok(row),
            _ => Err(format!(
                "{name} is a view or a foreign table: name the table that has the rows"
            )),
        },
        rows => {
            let names: Vec<String> = rows
                .iter()
                .map(|row| format!("{}.{}", row.get::<_, String>(1), row.get::<_, String>(2)))
                .collect();
            Err(format!(
                "{name} is ambiguous: name one of {}",
                names.join(", ")
            ))
        }
    }
}

fn find_column<'c>(columns: &'c [Column], name: &str, title: &str) -> Result<&'c Column, String> {
    let found = columns.iter().find(|column| column.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        format!("{title} has no column {name}: it has {}", names.join(", "))
    })
}

/// Returns the key columns for the walk: the columns that the rule names, or else the columns of
/// the primary key.
fn key_columns(
    rule: &Rule,
    columns: &[Column],
    uniques: &[(bool, Vec<String>)],
    title: &str,
) -> Result<Vec<KeyColumn>, String> {
    let index = uniques.iter().find(|(is_primary, names)| {
        if rule.key.is_empty() {
            *is_primary
        } else {
            names.len() == rule.key.len() && names.iter().all(|name| rule.key.contains(name))
        }
    });
    let Some((_, names)) = index else {
        return Err(if rule.key.is_empty() {
            format!(
                "{title} has no primary key: name the columns of a unique index, such as key = \"id\""
            )
        } else {
            format!(
                "{title} has no unique index of exactly {}: create one, or name another key",
                rule.key.join(", ")
            )
        });
    };

    let mut key = Vec::with_capacity(names.len());
    for name in names {
        let column = find_column(columns, name, title)?;
        if column.name == rule.column {
            return Err(format!(
                "{title}.{name} is a key column, which a job cannot change: name another key"
            ));
        }
        if !column.is_not_null {
            return Err(format!(
                "key column {name} of {title} can be null: ALTER TABLE .. SET NOT NULL, or another key"
            ));
        }
        key.push(KeyColumn {
            name: column.name.clone(),
            type_text: column.type_text.clone(),
        });
    }
    Ok(key)
}

/// Returns an error if the role lacks a privilege.
fn check_privileges<'n>(
    columns: &[Column],
    column: &Column,
    read: impl Iterator<Item = &'n str>,
    title: &str,
) -> Result<(), String> {
    let mut needed: Vec<&Column> = vec![column];
    needed.extend(read.filter_map(|name| columns.iter().find(|column| column.name == name)));
    if column.can_update && needed.iter().all(|column| column.can_select) {
        return Ok(());
    }
    let mut selected: Vec<&str> = needed.iter().map(|column| column.name.as_str()).collect();
    selected.dedup();
    Err(format!(
        "the role lacks a privilege: GRANT SELECT ({}), UPDATE ({}) ON {title} TO it",
        selected.join(", "),
        column.name
    ))
}

impl Column {
    fn from_row(row: &Row) -> Self {
        Self {
            name: row.get(0),
            type_text: row.get(1),
            base: row.get(2),
            modifier: row.get(3),
            is_not_null: row.get(4),
            is_generated: row.get(5),
            number: row.get(6),
            can_select: row.get(7),
            can_update: row.get(8),
        }
    }

    /// Returns the encoding of the column's envelopes, and its maximum number of characters.
    fn encoding(&self, title: &str) -> Result<(Encoding, Option<usize>), String> {
        let name = &self.name;
        if self.is_generated {
            return Err(format!(
                "{title}.{name} is computed from other columns: name those columns instead"
            ));
        }
        match self.base.as_str() {
            "text" => Ok((Encoding::Text, None)),
            // The modifier is the limit plus four bytes of header; -1 means unlimited.
            "varchar" => Ok((Encoding::Text, usize::try_from(self.modifier - 4).ok())),
            "bytea" => Ok((Encoding::Binary, None)),
            "json" | "jsonb" => Err(format!(
                "{title}.{name} has type {}: a job rewraps whole values of text, varchar and bytea; take documents through \
                 `sealwire rewrap FILE`",
                self.type_text
            )),
            _ => Err(format!(
                "{title}.{name} has type {}: envelopes are text, varchar or bytea",
                self.type_text
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewrap_job::rules::Rules;

    fn column(name: &str, base: &str, modifier: i32) -> Column {
        Column {
            name: name.to_owned(),
            type_text: base.to_owned(),
            base: base.to_owned(),
            modifier,
            is_not_null: name != "may_be_null",
            is_generated: name == "computed",
            number: 1,
            can_select: name != "hidden",
            can_update: name != "fixed",
        }
    }

    #[test]
    fn a_type_decides_the_encoding() {
        for (name, base, modifier, expected) in [
            ("c", "text", -1, Ok((Encoding::Text, None))),
            ("c", "varchar", -1, Ok((Encoding::Text, None))),
            ("c", "varchar", 204, Ok((Encoding::Text, Some(200)))),
            ("c", "bytea", -1, Ok((Encoding::Binary, None))),
            ("c", "jsonb", -1, Err("sealwire rewrap FILE")),
            ("c", "bpchar", 14, Err("text, varchar or bytea")),
            ("c", "int4", -1, Err("text, varchar or bytea")),
            ("computed", "text", -1, Err("computed from other columns")),
        ] {
            match (column(name, base, modifier).encoding("s.t"), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{base}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{base}: {error}"),
                (found, _) => panic!("{base}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_key_is_unique_and_never_null() {
        let columns =
            ["id", "tenant", "email", "may_be_null", "ssn"].map(|name| column(name, "text", -1));
        let unique = |is_primary: bool, names: &[&str]| {
            (
                is_primary,
                names.iter().map(|name| (*name).to_owned()).collect(),
            )
        };
        let all = [
            unique(true, &["tenant", "id"]),
            unique(false, &["email"]),
            unique(false, &["may_be_null"]),
        ];
        let own = [unique(true, &["ssn"])];
        for (named, uniques, expected) in [
            ("", &all[..], Ok("tenant id")),
            ("key = ['id', 'tenant']", &all[..], Ok("tenant id")),
            ("key = 'email'", &all[..], Ok("email")),
            ("key = 'id'", &all[..], Err("no unique index of exactly id")),
            ("key = 'may_be_null'", &all[..], Err("can be null")),
            ("", &all[1..], Err("no primary key")),
            ("", &own[..], Err("is a key column")),
        ] {
            let text = format!("[[rule]]\ntable = 't'\ncolumn = 'ssn'\napp = 'a'\n{named}");
            let rules = Rules::from_toml(&text).expect("rules");
            let found = key_columns(
                rules.iter().next().expect("a rule"),
                &columns,
                uniques,
                "s.t",
            );
            let names = found.map(|key| {
                key.into_iter()
                    .map(|column| column.name)
                    .collect::<Vec<_>>()
                    .join(" ")
            });
            match (names, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{named}"),
                (Err(error), Err(expected)) => {
                    assert!(error.contains(expected), "{named}: {error}")
                }
                (found, _) => panic!("{named}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_missing_privilege_is_named() {
        let columns = ["ssn", "fixed", "hidden", "id"].map(|name| column(name, "text", -1));
        let check = |at: usize, read: &[&str]| {
            check_privileges(&columns, &columns[at], read.iter().copied(), "s.t")
        };
        assert_eq!(check(0, &["id"]), Ok(()));
        let error = check(1, &["id"]).expect_err("no UPDATE");
        assert!(
            error.contains("GRANT SELECT (fixed, id), UPDATE (fixed) ON s.t"),
            "{error}"
        );
        assert!(check(0, &["hidden"]).is_err() && check(2, &["id"]).is_err());
    }
}
