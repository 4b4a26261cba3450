//! Stops a job from outside.
//!
//! Most steps of a stopped job end at once ([`requested`](JobStop::requested)). The last check is
//! directly before the output appears. After it the job waits for the outcome: for a file until its
//! end, for an object store until the deadline ([`overdue`](JobStop::overdue)).

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::mask_job::error::JobError;

/// Longest time for which a stopped job still waits for a request to an object store that starts,
/// completes or finds the output. Together with [`DISCARD_TIME_MIN`], this is less than the 30 s after which Kubernetes
/// kills a process.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Minimum time for the request to discard the output, even if a completion used up the whole time
/// before.
const DISCARD_TIME_MIN: Duration = Duration::from_secs(5);

/// The stop signal of a job. Clones belong to the same job.
#[derive(Clone, Debug)]
pub(crate) struct JobStop {
    /// The time at which a stopped job stops waiting. `None` until the job is stopped.
    deadline: watch::Sender<Option<Instant>>,
    stop_timeout: Duration,
}

impl Default for JobStop {
    fn default() -> Self {
        Self::with_timeout(STOP_TIMEOUT)
    }
}

impl JobStop {
    pub(crate) fn with_timeout(stop_timeout: Duration) -> Self {
        Self {
            deadline: watch::Sender::default(),
            stop_timeout,
        }
    }

    pub(crate) fn request(&self) {
        self.deadline.send_if_modified(|deadline| {
            let is_first = deadline.is_none();
            deadline.get_or_insert_with(|| Instant::now() + self.stop_timeout);
            is_first
        });
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.deadline.borrow().is_some()
    }

    /// Returns an error if the job was stopped.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        if self.is_requested() {
            Err(JobError::Stopped)
        } else {
            Ok(())
        }
    }

    /// Waits until the job is stopped.
    pub(crate) async fn requested(&self) {
        self.requested_deadline().await;
    }

    /// Ends when the job is stopped and its deadline has passed; never for a job that is not
    /// stopped.
    pub(crate) async fn overdue(&self) {
        sleep_until(self.requested_deadline().await).await;
    }

    /// Ends like [`overdue`](Self::overdue), but not before [`DISCARD_TIME_MIN`] from now.
    pub(crate) async fn discard_overdue(&self) {
        let earliest = Instant::now() + DISCARD_TIME_MIN;
        sleep_until(self.requested_deadline().await.max(earliest)).await;
    }

    async fn requested_deadline(&self) -> Instant {
        let mut deadline = self.deadline.subscribe();
        loop {
            if let Some(deadline) = *deadline.borrow_and_update() {
                return deadline;
            }
            if deadline.changed().await.is_err() {
                // This sender exists until the future is dropped.
                std::future::pending::<()>().await;
            }
        }
    }
}
