//! The shop database, and its rules.

use std::sync::Arc;

use sealwire_mask::Rules;
use sealwire_mask_job::Database;
use sealwire_testkit::{Failure, Postgres};

/// Its rules: everything personal is masked.
pub(crate) const RULES: &str = include_str!("shop.toml");

/// Rows for each customer, in all tables together.
pub(crate) const ROWS_PER_CUSTOMER: u64 = 10;

/// A database of a throw-away server, as a job reaches it.
pub(crate) fn reached(server: &Postgres, database: &sealwire_testkit::Database<'_>) -> Database {
    Database { url: database.socket_url(), password: Some(server.password().to_owned()), ..Database::default() }
}

/// Makes the shop, owned by the role that jobs connect as.
pub(crate) fn fill(database: &sealwire_testkit::Database<'_>, customers: u64) -> Result<(), Failure> {
    let sql = include_str!("shop.sql").replace(":customers", &customers.to_string());
    database.sql(&format!("SET ROLE sealwire; {sql}")).map(drop)
}

/// The rules without those that name a column.
pub(crate) fn rules_without(column: &str) -> Arc<Rules> {
    let text = RULES.split("[[rule]]").filter(|rule| !rule.contains(&format!("\"{column}\""))).collect::<Vec<_>>();
    assert!(text.len() < RULES.split("[[rule]]").count(), "{column}");
    super::rules(&text.join("[[rule]]"))
}
