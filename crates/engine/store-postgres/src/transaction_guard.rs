//! A guard for an open transaction. If the request panics or is cancelled midway, the connection is
//! abandoned, because a connection inside a transaction must not be reused.

use super::session::Session;
use super::sqlstate::SqlFault;
use super::worker::Query;

/// Abandons the connection on drop, unless the transaction was ended.
pub(super) struct TransactionGuard<'a>(Option<&'a Session>);

impl<'a> TransactionGuard<'a> {
    pub(super) fn new(session: &'a Session) -> Self {
        Self(Some(session))
    }

    /// Ends the transaction. A failed transaction is rolled back; a successful one has already
    /// committed.
    pub(super) async fn end<T>(mut self, query: &Query<'_>, outcome: &Result<T, SqlFault>) {
        if let (Err(_), Some(session)) = (outcome, self.0)
            && query
                .run_until_deadline(session, session.batch_execute("ROLLBACK"))
                .await
                .is_err()
        {
            return;
        }
        self.0 = None;
    }
}

impl Drop for TransactionGuard<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.0 {
            session.abandon();
        }
    }
}
