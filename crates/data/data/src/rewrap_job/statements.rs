//! The SQL statements of a walk. Keys are passed as text, so that keys can have any type.

use crate::mask_job::quoted;

use crate::rewrap_job::catalog::Target;
use crate::rewrap_job::engine::Encoding;

/// Returns the statement that reads a page in key order. The result has the key columns as text,
/// the value, and the columns of the context as text. If `is_first`, the statement has no condition
/// that the key follows the key in the parameters.
pub(crate) fn read_page(target: &Target, rows_max: u64, is_first: bool) -> String {
    // Qualified: ORDER BY would otherwise use the result's column, which is text and sorts
    // differently.
    let key = target
        .key
        .iter()
        .map(|column| qualified(&column.name))
        .collect::<Vec<_>>()
        .join(", ");
    let mut selected: Vec<String> = target
        .key
        .iter()
        .map(|column| as_text(&column.name))
        .collect();
    selected.push(match target.encoding {
        Encoding::Text => as_text(&target.column),
        Encoding::Binary => format!("{}::bytea", qualified(&target.column)),
    });
    selected.extend(target.context.columns().map(as_text));
    let mut sql = format!(
        "SELECT {} FROM {} AS t",
        selected.join(", "),
        target.source()
    );
    if !is_first {
        let after = target
            .key
            .iter()
            .enumerate()
            .map(|(at, column)| format!("${}::text::{}", at + 1, column.type_text));
        sql += &format!(
            " WHERE ({key}) > ({})",
            after.collect::<Vec<_>>().join(", ")
        );
    }
    sql + &format!(" ORDER BY {key} LIMIT {rows_max}")
}

/// Returns the statement that writes the new values of a page. The parameters are arrays: one per
/// key column, the values that were read, and the new values.
///
/// A row is written only if it still has the value that was read. A row that another transaction
/// has locked is skipped. So the statement neither waits for an application nor takes part in a
/// deadlock with it.
pub(crate) fn write_page(target: &Target) -> String {
    let keys = target.key.len();
    let array = match target.encoding {
        Encoding::Text => "text[]",
        Encoding::Binary => "bytea[]",
    };
    let column = quoted(&target.column);
    let current = match target.encoding {
        // A column's own collation can treat different texts as equal.
        Encoding::Text => format!("t.{column}::text COLLATE \"C\""),
        Encoding::Binary => format!("t.{column}::bytea"),
    };
    let names = (1..=keys)
        .map(|at| format!("k{at}"))
        .collect::<Vec<_>>()
        .join(", ");
    let parameters = (1..=keys)
        .map(|at| format!("${at}::text[]"))
        .collect::<Vec<_>>()
        .join(", ");
    let from = target.source();
    format!(
        "WITH v AS MATERIALIZED (SELECT * FROM unnest({parameters}, ${}::{array}, ${}::{array}) AS v ({names}, old, new)), \
         free AS MATERIALIZED (SELECT v.* FROM v JOIN {from} AS t ON {} AND {current} = v.old \
         FOR NO KEY UPDATE OF t SKIP LOCKED) \
         UPDATE {from} AS t SET {column} = free.new FROM free WHERE {} AND {current} = free.old",
        keys + 1,
        keys + 2,
        key_matches(target, "v"),
        key_matches(target, "free"),
    )
}

/// Returns the condition that a row of the table has the key of a row of `alias`.
fn key_matches(target: &Target, alias: &str) -> String {
    target
        .key
        .iter()
        .enumerate()
        .map(|(at, column)| {
            format!(
                "t.{} = {alias}.k{}::{}",
                quoted(&column.name),
                at + 1,
                column.type_text
            )
        })
        .collect::<Vec<_>>()
        .join(" AND ")
}

fn qualified(column: &str) -> String {
    format!("t.{}", quoted(column))
}

fn as_text(column: &str) -> String {
    format!("{}::text", qualified(column))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewrap_job::catalog::KeyColumn;
    use crate::rewrap_job::rules::Rules;

    fn target(encoding: Encoding) -> Target {
        let text = "[[rule]]\ntable = 's.t'\ncolumn = 'c'\napp = 'a'\ncontext = 'x.{z}'";
        let rules = Rules::from_toml(text).expect("rules");
        let context = rules.iter().next().expect("a rule").context.clone();
        let key = |name: &str, type_text: &str| KeyColumn {
            name: name.to_owned(),
            type_text: type_text.to_owned(),
        };
        Target {
            schema: "s".to_owned(),
            table: "t\"x".to_owned(),
            is_partitioned: false,
            rows_estimated: 0,
            column: "c".to_owned(),
            encoding,
            chars_max: None,
            key: vec![key("a", "integer"), key("b", "text")],
            app: "a".to_owned(),
            context,
        }
    }

    #[test]
    fn a_page_is_read_in_key_order() {
        assert_eq!(
            read_page(&target(Encoding::Text), 500, true),
            r#"SELECT t."a"::text, t."b"::text, t."c"::text, t."z"::text FROM ONLY "s"."t""x" AS t ORDER BY t."a", t."b" LIMIT 500"#
        );
        assert_eq!(
            read_page(
                &Target {
                    is_partitioned: true,
                    ..target(Encoding::Binary)
                },
                7,
                false
            ),
            r#"SELECT t."a"::text, t."b"::text, t."c"::bytea, t."z"::text FROM "s"."t""x" AS t WHERE (t."a", t."b") > ($1::text::integer, $2::text::text) ORDER BY t."a", t."b" LIMIT 7"#
        );
    }

    #[test]
    fn a_value_is_written_only_over_what_was_read() {
        let sql = write_page(&target(Encoding::Text));
        for part in [
            "unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS v (k1, k2, old, new)",
            r#"t."a" = free.k1::integer AND t."b" = free.k2::text AND t."c"::text COLLATE "C" = free.old"#,
            "FOR NO KEY UPDATE OF t SKIP LOCKED",
        ] {
            assert!(sql.contains(part), "{part} is not in {sql}");
        }
        assert!(write_page(&target(Encoding::Binary)).contains("$3::bytea[], $4::bytea[]"));
    }
}
