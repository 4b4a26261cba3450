//! The shop database and its rules.

use std::sync::Arc;

use sealwire_data::mask_job::Database;
use sealwire_mask_rules::Rules;
use sealwire_testkit::{Failure, Postgres};

/// The rules of the shop, which mask all personal data.
pub(crate) const RULES: &str = include_str!("shop.toml");

/// Number of rows per customer, in all tables together.
pub(crate) const ROWS_PER_CUSTOMER: u64 = 10;

/// Returns a job's options for a database of a temporary server.
pub(crate) fn reached(server: &Postgres, database: &sealwire_testkit::Database<'_>) -> Database {
    Database {
        url: database.socket_url(),
        password: Some(server.password().to_owned()),
        ..Database::default()
    }
}

/// Creates the shop. The owner is the role of the jobs.
pub(crate) fn fill(
    database: &sealwire_testkit::Database<'_>,
    customers: u64,
) -> Result<(), Failure> {
    let sql = include_str!("shop.sql").replace(":customers", &customers.to_string());
    database.sql(&format!("SET ROLE sealwire; {sql}")).map(drop)
}

/// Returns the rules except those that name a column.
pub(crate) fn rules_without(column: &str) -> Arc<Rules> {
    let text = RULES
        .split("[[rule]]")
        .filter(|rule| !rule.contains(&format!("\"{column}\"")))
        .collect::<Vec<_>>();
    assert!(text.len() < RULES.split("[[rule]]").count(), "{column}");
    super::rules(&text.join("[[rule]]"))
}
