//! A transaction that is open on a connection: whoever goes away midway, by a panic or because nobody waits any more, leaves
//! a connection that is given up, never one that is inside a transaction.

use super::session::Session;
use super::sqlstate::Fault;
use super::worker::Call;

/// Gives the connection up unless the transaction was ended.
pub(super) struct Open<'a>(Option<&'a Session>);

impl<'a> Open<'a> {
    pub(super) fn new(session: &'a Session) -> Self {
        Self(Some(session))
    }

    /// Rolls back what failed; what did not has committed.
    pub(super) async fn end<T>(mut self, call: &Call<'_>, outcome: &Result<T, Fault>) {
        if let (Err(_), Some(session)) = (outcome, self.0)
            && call.bound(session, session.batch("ROLLBACK")).await.is_err()
        {
            return;
        }
        self.0 = None;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.0 {
            session.condemn();
        }
    }
}
