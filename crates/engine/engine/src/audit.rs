//! The audit log of an engine. Requests wait for their records, within a time limit. The log, the
//! metrics and the readiness report the state of the trail.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sealwire_audit::{
    AuditKey, Event, FileEvent, JournalError, Observer, Options, Record, RecordLost, SUBJECTS_MAX,
    Trail, TrailOptions, WriteAck,
};

use crate::jobs::error::RequestFailure;
use crate::sweeper::Swept;
use sealwire_access::PrincipalKind;
use sealwire_telemetry::LogThrottle;
use sealwire_telemetry::{Condition, Telemetry};

/// How long a request waits for its record. A disk that hangs counts as a failed disk.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// Interval at which counts of rejected requests are recorded and the free space is read.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// How long a record waits for further records, if no request waits for it.
const GATHER: Duration = Duration::from_millis(2);

/// The audit log, if it is configured.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// True if the configuration names a trail.
    is_on: bool,
    /// Empty until the key of the trail is known, which is in the store. A running engine keeps it
    /// when the store is sealed.
    trail: Arc<OnceLock<Arc<Trail>>>,
}

impl Audit {
    /// Prepares the trail of a configuration, if it is configured. Nothing is recorded until
    /// [`Self::open`].
    pub fn new(config: &sealwire_settings::Audit) -> Self {
        Self {
            is_on: config.folder.is_some(),
            trail: Arc::default(),
        }
    }

    /// Opens the trail, if it is configured, and records the start. Must be called at most once.
    ///
    /// # Errors
    ///
    /// The folder cannot be used.
    pub fn open(
        &self,
        config: &sealwire_settings::Audit,
        key: AuditKey,
        instance: String,
        state: &Arc<Telemetry>,
    ) -> Result<(), JournalError> {
        let Some(folder) = config.folder.clone() else {
            return Ok(());
        };
        let options = TrailOptions {
            journal: Options {
                folder,
                segment_bytes: config.segment_mib << 20,
                segment_age: Duration::from_secs(config.segment_hours * 3_600),
                folder_bytes_max: Some(config.folder_mib_max << 20).filter(|bytes| *bytes > 0),
                sync: config.sync,
                instance,
            },
            on_failure: config.on_failure,
            queue_records: config.queue_records,
            queue_bytes: config.queue_mib << 20,
            reserve_bytes: config.reserve_mib << 20,
            gather: GATHER,
            version: env!("CARGO_PKG_VERSION"),
        };

        let observer = FileObserver {
            state: Arc::clone(state),
            failures: LogThrottle::default(),
        };
        let trail = Arc::new(Trail::open(options, key, Arc::new(observer))?);

        if !trail.found().is_sound() {
            tracing::error!(
                found = trail.found().name(),
                "the audit log is not in the state in which an engine leaves it; run `sealwire audit verify` to find the place"
            );
        }

        if trail.torn_bytes() > 0 {
            tracing::warn!(
                bytes = trail.torn_bytes(),
                "the last write to the audit log was incomplete; the incomplete bytes were moved to a separate file"
            );
        }

        let probe = Arc::clone(&trail);
        state.metrics.watch_audit(Box::new(move || probe.state()));
        let _ = self.trail.set(trail);
        Ok(())
    }

    /// Returns true if records are kept.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns true if records are written. False for an engine that started on a sealed store,
    /// until it is unsealed.
    pub fn is_open(&self) -> bool {
        !self.is_on || self.trail.get().is_some()
    }

    /// Waits until [`Self::is_open`] is true.
    pub async fn wait_until_open(&self) {
        while !self.is_open() {
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Checks that a request that starts now can be recorded, or that requests may run without a
    /// record.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Audit`].
    pub fn check_ready(&self) -> Result<(), RequestFailure> {
        match self.trail.get() {
            Some(trail) if trail.rejects() => Err(RequestFailure::Audit),
            None if self.is_on => Err(RequestFailure::Audit),
            _ => Ok(()),
        }
    }

    /// Takes the record of a request. The result tells when the response can be sent. Data subjects
    /// beyond those that one record holds are in further records of the request before it, without
    /// its counts.
    pub fn record(&self, record: &Record<'_>) -> Recording {
        let Some(trail) = self.trail.get() else {
            return Recording::none();
        };
        let (subjects, further_subjects) = record
            .subjects
            .split_at(record.subjects.len().min(SUBJECTS_MAX));
        for subjects in further_subjects.chunks(SUBJECTS_MAX) {
            drop(trail.record(&Record {
                subjects,
                change: &[],
                fields: 0,
                errors: 0,
                ..*record
            }));
        }

        Recording(Some(trail.record(&Record {
            subjects,
            ..*record
        })))
    }

    /// Takes the record of a request that was rejected or denied before any work. Most records of a
    /// flood are only counted.
    pub fn record_rejected(&self, record: &Record<'_>) -> Recording {
        Recording(self.trail.get().map(|trail| trail.record_rejection(record)))
    }

    /// Writes records of the counts at intervals, until the future is dropped.
    pub async fn flush_periodically(&self) {
        if !self.is_on {
            return;
        }
        loop {
            tokio::time::sleep(FLUSH_INTERVAL).await;
            let Some(trail) = self.trail.get() else {
                continue;
            };
            let trail = Arc::clone(trail);
            // Reading the free space of a slow disk can take long.
            let _ =
                tokio::task::spawn_blocking(move || trail.flush_summaries(Instant::now())).await;
        }
    }

    /// Records an event of the engine, without waiting for the disk.
    pub(crate) fn event(&self, event: &Event<'_>) {
        if let Some(trail) = self.trail.get() {
            drop(trail.event(event));
        }
    }

    /// Records that files or settings were loaded again.
    pub fn record_reload(&self, what: &str, outcome: &str) {
        if let Some(trail) = self.trail.get() {
            drop(trail.event(&Event::Reload { what, outcome }));
        }
    }

    /// Records rows that the sweeper changed.
    pub fn record_sweep(&self, swept: &Swept) {
        if let Some(trail) = self.trail.get() {
            drop(trail.event(&Event::Sweep {
                action: swept.action.as_str(),
                app: swept.app.as_deref(),
                collection: swept.collection.as_deref(),
                app_number: swept.map.app.into(),
                collection_number: swept.map.collection.into(),
                rows: swept.rows,
            }));
        }
    }

    /// Records the stop, and returns when all records are written. Blocks.
    pub fn close(&self) {
        if let Some(trail) = self.trail.get() {
            trail.close();
        }
    }
}

/// A record that may not be written yet.
#[must_use]
pub struct Recording(Option<WriteAck>);

impl Recording {
    /// Creates the recording of a request without a record.
    pub fn none() -> Self {
        Self(None)
    }

    /// Returns whether the response can be sent. `None` if the record is not written yet.
    pub fn outcome(&self) -> Option<Result<(), RequestFailure>> {
        match &self.0 {
            None => Some(Ok(())),
            Some(ack) => ack
                .now()
                .map(|outcome| outcome.map_err(|_| RequestFailure::Audit)),
        }
    }

    /// Returns true if no other task writes the record soon. [`Self::wait_until_durable`] must then follow at once,
    /// because records of other requests wait for the same write.
    pub fn is_writer(&self) -> bool {
        self.0.as_ref().is_some_and(WriteAck::is_writer)
    }

    /// Waits until the response can be sent. If this task must write and there are `others` in
    /// flight, it first lets these add their records. A separate task does the write, so that a
    /// principal's share of the network threads does not delay it: the records of all principals
    /// wait for the same write.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Audit`], without the request's result, if the record is lost or is not known
    /// to be written in time.
    pub async fn wait_until_durable(self, others: bool) -> Result<(), RequestFailure> {
        if let Some(outcome) = self.outcome() {
            return outcome;
        }
        let Some(ack) = self.0 else { return Ok(()) };

        let outcome = if others && ack.is_writer() {
            let write = tokio::spawn(async move {
                // This task continues after all other ready tasks, including tasks that have
                // received bytes in the meantime.
                tokio::task::yield_now().await;
                ack.await
            });
            tokio::time::timeout(WRITE_MAX, write)
                .await
                .map(|result| result.unwrap_or(Err(RecordLost)))
        } else {
            tokio::time::timeout(WRITE_MAX, ack).await
        };

        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(RequestFailure::Audit),
        }
    }
}

/// Returns the name of a principal's kind in records.
pub const fn kind_name(kind: PrincipalKind) -> &'static str {
    match kind {
        PrincipalKind::Spiffe => "spiffe",
        PrincipalKind::Dns => "dns",
        PrincipalKind::CommonName => "common_name",
    }
}

/// Reports events of the files in the log, the metrics and the readiness.
struct FileObserver {
    state: Arc<Telemetry>,
    failures: LogThrottle,
}

impl Observer for FileObserver {
    fn notice(&self, notice: &FileEvent<'_>) {
        let Telemetry {
            readiness, metrics, ..
        } = &*self.state;
        match notice {
            FileEvent::Wrote { records, took } => metrics.observe_audit_batch(*records, *took),
            FileEvent::Began { file, head } => {
                tracing::info!(
                    file,
                    head,
                    "started an audit segment; store its head on another machine"
                )
            }
            FileEvent::Failing { error, lost } => {
                readiness.set(Condition::Audit, false);
                if let Some(suppressed) = self.failures.record(Instant::now()) {
                    tracing::error!(%error, lost, suppressed, "the audit log cannot be written");
                }
            }
            FileEvent::Recovered { lost } => {
                readiness.set(Condition::Audit, true);
                tracing::warn!(lost, "the audit log is written again; the gap is recorded");
            }
            FileEvent::Stopped { head, lost: 0 } => {
                tracing::info!(
                    head,
                    "closed the audit log; store its head on another machine"
                )
            }
            FileEvent::Stopped { head, lost } => {
                tracing::error!(head, lost, "closed the audit log; some records are lost")
            }
        }
    }
}
