//! Stops a job from outside.
//!
//! A job checks for the stop directly before its output appears. From then on the job continues to
//! its end, since only its result shows whether the output exists.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::mask_job::error::JobError;

/// Longest time for which a stopped job waits for an object store to complete or to discard the
/// output. Together with [`DISCARD_TIME_MIN`], this is less than the 30 s after which Kubernetes
/// kills a process.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(20);
/// Minimum time for the request to discard the output, even if a completion used up the whole time
/// before.
const DISCARD_TIME_MIN: Duration = Duration::from_secs(5);

/// The stop signal of a job. Clones belong to the same job.
#[derive(Clone, Debug)]
pub(crate) struct JobStop {
    /// The time at which a stopped job stops waiting. `None` until the job is stopped.
    deadline: watch::Sender<Option<Instant>>,
    discard_timeout: Duration,
}

impl Default for JobStop {
    fn default() -> Self {
        Self::with_timeout(DISCARD_TIMEOUT)
    }
}

impl JobStop {
    pub(crate) fn with_timeout(discard_timeout: Duration) -> Self {
        Self {
            deadline: watch::Sender::default(),
            discard_timeout,
        }
    }

    pub(crate) fn request(&self) {
        self.deadline.send_if_modified(|deadline| {
            let is_first = deadline.is_none();
            deadline.get_or_insert_with(|| Instant::now() + self.discard_timeout);
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

    /// Waits for the deadline after which a stopped job no longer waits.
    pub(crate) async fn overdue(&self) {
        sleep_until(self.requested_deadline().await).await;
    }

    /// Waits for the deadline after which a stopped job no longer waits for its request to discard
    /// the output.
    pub(crate) async fn discard_overdue(&self) {
        let least = Instant::now() + DISCARD_TIME_MIN;
        sleep_until(self.requested_deadline().await.max(least)).await;
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
