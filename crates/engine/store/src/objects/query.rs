//! Finds the objects that are in every clause of a query, with a bounded number of statements.
//!
//! The database does not plan the query. With two clauses, its plan can read all objects of the
//! more common term. Such a plan takes seconds for a million objects. Here the clause with the
//! fewest objects supplies ids, in ascending order, and the other clauses are only probed for these
//! ids.

use super::{Clause, MapView, ObjectId, ObjectStore};
use crate::{Page, StoreError};

/// Maximum number of clauses in a query.
pub const QUERY_CLAUSES_MAX: usize = 8;
/// Maximum number of statements for one page.
pub const QUERY_STATEMENTS_MAX: usize = 8;
/// Maximum count of the objects of a clause, and maximum number of ids that one statement returns.
const COUNT_CAP: u32 = 1_001;

/// A page of ids, and the work that it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matches {
    /// Ids in ascending order. A page can be empty and not the last.
    pub page: Page<Vec<ObjectId>, ObjectId>,
    /// Number of statements sent to the store.
    pub statements: usize,
}

/// Returns at most `limit` ids that follow `after` and are in every clause. There are 1 to
/// [`QUERY_CLAUSES_MAX`] clauses. Expired objects are included.
///
/// # Errors
/// Any error of the store.
pub async fn matching(
    store: &dyn ObjectStore,
    view: MapView,
    clauses: &[Clause],
    after: Option<ObjectId>,
    limit: usize,
) -> Result<Matches, StoreError> {
    let mut statements = 0;
    let mut rest: Vec<Clause> = clauses.to_vec();
    let driver = match rest.len() {
        0 => return Err(StoreError::Invalid("a query needs a clause".to_owned())),
        1 => rest.remove(0),
        _ => {
            statements += 1;
            let counts = store.count_clauses(view, clauses, COUNT_CAP).await?;
            let smallest = counts
                .iter()
                .enumerate()
                .min_by_key(|(_, count)| **count)
                .map_or(0, |(at, _)| at);
            rest.remove(smallest)
        }
    };

    let batch = if rest.is_empty() {
        limit
    } else {
        COUNT_CAP as usize
    };

    let mut found = Vec::new();
    let mut after = after;
    loop {
        statements += 1;
        let mut ids = store.clause_ids(view, &driver, after, batch).await?;
        let is_last = ids.len() < batch;
        after = ids.last().copied().or(after);
        if !rest.is_empty() && !ids.is_empty() {
            statements += 1;
            let mut matches = store.probe_clauses(view, &rest, &ids).await?.into_iter();
            ids.retain(|_| matches.next().unwrap_or(false));
        }

        let room = limit - found.len();
        let is_cut = ids.len() > room;
        ids.truncate(room);
        found.extend(ids);
        let next = if is_cut {
            found.last().copied()
        } else {
            after.filter(|_| !is_last)
        };

        if next.is_none() || found.len() == limit || statements + 2 > QUERY_STATEMENTS_MAX {
            return Ok(Matches {
                page: Page { found, next },
                statements,
            });
        }
    }
}
