//! The schema of the source: tables, columns, unique indexes, foreign keys, sequences.

use std::collections::HashMap;

use tokio_postgres::{Client, Row};

use super::connect::Endpoint;
use crate::mask_job::error::JobError;

/// SQL condition for user schemas, without schemas of the system, of TOAST tables and of temporary
/// objects.
pub(crate) const OURS: &str =
    "n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'";

/// SQL condition for objects that no extension owns.
const NO_EXTENSION: &str = "NOT EXISTS (SELECT 1 FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
     AND d.objid = c.oid AND d.deptype = 'e')";

#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) tables: Vec<Table>,
    pub(crate) sequences: Vec<Sequence>,
    /// Populated materialized views, each after the views that it reads.
    pub(crate) views: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) schema: String,
    pub(crate) name: String,
    /// True if the rows are in partitions, which are copied through this parent table.
    pub(crate) is_partitioned: bool,
    pub(crate) rows_estimated: u64,
    pub(crate) bytes: u64,
    pub(crate) columns: Vec<Column>,
    /// Indexes of the tables that this one inherits columns from.
    pub(crate) parents: Vec<usize>,
    pub(crate) uniques: Vec<Unique>,
    pub(crate) foreign_keys: Vec<ForeignKey>,
}

#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The type as SQL text.
    pub(crate) type_text: String,
    pub(crate) class: Class,
    pub(crate) kinds: KindScope,
    pub(crate) is_generated: bool,
    pub(crate) is_not_null: bool,
    pub(crate) number: i16,
}

/// The class of a type, which decides how values are converted for the engine and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A string, with its maximum number of characters if limited.
    Text(Option<usize>),
    /// A string of type `char(n)`. The server pads it with blanks, which do not belong to the
    /// value.
    PaddedText(Option<usize>),
    Integer,
    Decimal,
    Boolean,
    Json,
    /// Dates, times, UUIDs, enums and all other types, which are converted as text.
    Other,
}

/// The values of a type that kind rules can check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindScope {
    /// Kind rules check each value as a whole.
    Values,
    /// Kind rules check nothing, and the type has no values of a kind: booleans, dates, short
    /// numbers.
    NoneNeeded,
    /// Kind rules check nothing, although numbers or parts of the values can be of a kind: bigint,
    /// JSON, arrays, ranges, composite types.
    Unseen,
}

impl KindScope {
    /// Returns the scope of a type by its name and category in the server. Domains must be
    /// resolved.
    fn of_type(name: &str, category: &str) -> Self {
        match (category, name) {
            // Strings, enums and network addresses.
            ("S" | "E" | "I", _) => Self::Values,
            // Booleans, dates, durations, bit strings, points, and the server's own types.
            ("B" | "D" | "T" | "V" | "G" | "Z", _)
            | (_, "int2" | "float4" | "float8" | "uuid" | "macaddr" | "macaddr8") => {
                Self::NoneNeeded
            }
            _ => Self::Unseen,
        }
    }
}

/// A unique or exclusion index, including the index of a primary key or constraint.
#[derive(Clone, Debug)]
pub(crate) struct Unique {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct ForeignKey {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    /// Schema and table.
    pub(crate) to: (String, String),
    pub(crate) to_columns: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Quoted name with schema, for SQL.
    pub(crate) name: String,
    pub(crate) last_value: i64,
    pub(crate) is_called: bool,
}

impl Table {
    /// Returns the quoted name for SQL.
    pub(crate) fn sql(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }

    /// Returns the name for reports.
    pub(crate) fn title(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// Returns the names of columns by their numbers.
    fn column_names(&self, numbers: &[i16]) -> Vec<String> {
        numbers
            .iter()
            .filter_map(|number| self.columns.iter().find(|column| column.number == *number))
            .map(|column| column.name.clone())
            .collect()
    }

    /// Returns the columns to copy, which are all except generated columns.
    pub(crate) fn copied(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|column| !column.is_generated)
    }

    /// Returns the columns for COPY, in parentheses. For a table without columns to copy, returns
    /// no list, since each row is an empty line.
    pub(crate) fn column_list(&self) -> String {
        let names: Vec<String> = self.copied().map(|column| quoted(&column.name)).collect();
        if names.is_empty() {
            String::new()
        } else {
            format!("({})", names.join(", "))
        }
    }
}

/// Quotes an identifier.
#[must_use]
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Catalog {
    /// Reads the catalog through a connection that uses the job's snapshot.
    pub(crate) async fn read(client: &Client, source: &Endpoint) -> Result<Self, JobError> {
        let rows = query(
            client,
            source,
            &format!(
                "SELECT c.oid::bigint, n.nspname, c.relname, c.relkind = 'p', greatest(c.reltuples, 0)::bigint, \
             CASE WHEN c.relkind = 'p' THEN 0 ELSE pg_catalog.pg_table_size(c.oid) END \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND {OURS} AND {NO_EXTENSION} \
             ORDER BY n.nspname, c.relname"
            ),
        )
        .await?;
        let mut tables = Vec::new();
        let mut by_oid = HashMap::new();
        for row in &rows {
            by_oid.insert(row.get::<_, i64>(0), tables.len());
            tables.push(Table {
                schema: row.get(1),
                name: row.get(2),
                is_partitioned: row.get(3),
                rows_estimated: row.get::<_, i64>(4) as u64,
                bytes: row.get::<_, i64>(5) as u64,
                columns: Vec::new(),
                parents: Vec::new(),
                uniques: Vec::new(),
                foreign_keys: Vec::new(),
            });
        }
        Self::add_columns(&query(client, source, COLUMNS).await?, &by_oid, &mut tables);
        for row in &query(client, source, PARENTS).await? {
            if let (Some(at), Some(parent)) = (
                by_oid.get(&row.get::<_, i64>(0)),
                by_oid.get(&row.get::<_, i64>(1)),
            ) {
                tables[*at].parents.push(*parent);
            }
        }
        Self::add_uniques(&query(client, source, UNIQUES).await?, &by_oid, &mut tables);
        Self::add_foreign_keys(
            &query(client, source, FOREIGN_KEYS).await?,
            &by_oid,
            &mut tables,
        );
        let views = query(client, source, VIEWS).await?;
        let sequences = Self::read_sequences(client, source).await?;
        Ok(Self {
            tables,
            sequences,
            views: views.iter().map(|row| row.get(0)).collect(),
        })
    }

    fn add_columns(rows: &[Row], by_oid: &HashMap<i64, usize>, tables: &mut [Table]) {
        for row in rows {
            let Some(at) = by_oid.get(&row.get::<_, i64>(0)) else {
                continue;
            };
            let base: String = row.get(5);
            let modifier: i32 = row.get(6);
            let class = match base.as_str() {
                "text" | "citext" => Class::Text(None),
                // The modifier is the limit plus four bytes of header; -1 means unlimited.
                "varchar" => Class::Text(usize::try_from(modifier - 4).ok()),
                "bpchar" => Class::PaddedText(usize::try_from(modifier - 4).ok()),
                "int2" | "int4" | "int8" => Class::Integer,
                "numeric" | "float4" | "float8" => Class::Decimal,
                "bool" => Class::Boolean,
                "json" | "jsonb" => Class::Json,
                _ => Class::Other,
            };
            tables[*at].columns.push(Column {
                number: row.get(1),
                name: row.get(2),
                type_text: row.get(3),
                is_generated: row.get(4),
                is_not_null: row.get(7),
                kinds: KindScope::of_type(&base, &row.get::<_, String>(8)),
                class,
            });
        }
    }

    fn add_uniques(rows: &[Row], by_oid: &HashMap<i64, usize>, tables: &mut [Table]) {
        for row in rows {
            let Some(at) = by_oid.get(&row.get::<_, i64>(0)) else {
                continue;
            };
            tables[*at].uniques.push(Unique {
                name: row.get(1),
                columns: row.get(2),
            });
        }
    }

    fn add_foreign_keys(rows: &[Row], by_oid: &HashMap<i64, usize>, tables: &mut [Table]) {
        for row in rows {
            let (Some(at), Some(to)) = (
                by_oid.get(&row.get::<_, i64>(0)),
                by_oid.get(&row.get::<_, i64>(2)),
            ) else {
                continue;
            };
            let from_keys: Vec<i16> = row.get(3);
            let to_keys: Vec<i16> = row.get(4);
            let foreign_key = ForeignKey {
                name: row.get(1),
                columns: tables[*at].column_names(&from_keys),
                to: (tables[*to].schema.clone(), tables[*to].name.clone()),
                to_columns: tables[*to].column_names(&to_keys),
            };
            tables[*at].foreign_keys.push(foreign_key);
        }
    }

    async fn read_sequences(client: &Client, source: &Endpoint) -> Result<Vec<Sequence>, JobError> {
        let sql = format!(
            "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind = 'S' AND {OURS} AND {NO_EXTENSION} ORDER BY 1"
        );
        let mut sequences = Vec::new();
        for row in client
            .query(&sql, &[])
            .await
            .map_err(|error| source.error(&error))?
        {
            let name: String = row.get(0);
            let state = client
                .query_one(&format!("SELECT last_value, is_called FROM {name}"), &[])
                .await;
            let state = state.map_err(|error| source.error(&error))?;
            sequences.push(Sequence {
                name,
                last_value: state.get(0),
                is_called: state.get(1),
            });
        }
        Ok(sequences)
    }
}

async fn query(client: &Client, source: &Endpoint, sql: &str) -> Result<Vec<Row>, JobError> {
    client
        .query(sql, &[])
        .await
        .map_err(|error| source.error(&error))
}

/// Columns of all tables. A domain is resolved to its base type; the modifier of the domain gives
/// the limit.
const COLUMNS: &str = "\
    WITH RECURSIVE base AS ( \
        SELECT t.oid AS type, t.oid AS base, -1 AS modifier FROM pg_catalog.pg_type t \
        UNION ALL \
        SELECT b.type, t.typbasetype, t.typtypmod FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.base \
        WHERE t.typtype = 'd') \
    SELECT a.attrelid::bigint, a.attnum, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), \
        a.attgenerated <> '', t.typname::text, \
        CASE WHEN a.atttypmod >= 0 THEN a.atttypmod ELSE b.modifier END, a.attnotnull, t.typcategory::text \
    FROM pg_catalog.pg_attribute a JOIN base b ON b.type = a.atttypid \
    JOIN pg_catalog.pg_type t ON t.oid = b.base AND t.typtype <> 'd' \
    WHERE a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum";

const PARENTS: &str = "SELECT inhrelid::bigint, inhparent::bigint FROM pg_catalog.pg_inherits ORDER BY inhrelid, inhseqno";

/// Unique and exclusion indexes, including columns that an index's expressions or conditions use.
const UNIQUES: &str = "\
    SELECT i.indrelid::bigint, c.relname::text, ARRAY( \
        SELECT DISTINCT a.attname::text FROM pg_catalog.pg_attribute a \
        WHERE a.attrelid = i.indrelid AND a.attnum > 0 AND (a.attnum = ANY (i.indkey::int2[]) OR EXISTS ( \
            SELECT 1 FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
            AND d.objid = i.indexrelid AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum)) \
        ORDER BY 1) \
    FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid \
    WHERE (i.indisunique OR i.indisexclusion) ORDER BY 2";

const FOREIGN_KEYS: &str = "\
    SELECT conrelid::bigint, conname::text, confrelid::bigint, conkey, confkey FROM pg_catalog.pg_constraint \
    WHERE contype = 'f' AND conparentid = 0 ORDER BY 2";

/// Populated materialized views in the order in which they can be filled. A view can read through
/// any number of other views; the order is the depth of these reads.
const VIEWS: &str = "\
    WITH RECURSIVE reads AS ( \
        SELECT DISTINCT r.ev_class AS reader, d.refobjid AS read FROM pg_catalog.pg_depend d \
        JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid AND r.ev_class <> d.refobjid \
        WHERE d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass), \
    depths AS ( \
        SELECT c.oid, 0 AS depth FROM pg_catalog.pg_class c WHERE c.relkind = 'm' \
        UNION \
        SELECT reads.reader, depths.depth + 1 FROM depths JOIN reads ON reads.read = depths.oid) \
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN depths ON depths.oid = c.oid \
    WHERE c.relkind = 'm' AND c.relispopulated GROUP BY c.oid, n.nspname, c.relname ORDER BY pg_catalog.max(depths.depth), c.oid";
