//! The audit trail as calls and operators meet it: opened with the engine, waited for with a limit,
//! and spoken of in log, metrics and readiness.

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

/// How long a call waits for its record. A disk that hangs is as good as none.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// Period of recording counts of rejected requests and of reading the free space.
const SETTLE: Duration = Duration::from_secs(1);
/// How long a record waits for others, where no call waits for it.
const GATHER: Duration = Duration::from_millis(2);

/// The trail, if there is one.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// True if the configuration names a trail.
    is_on: bool,
    /// Empty until the key of the trail is known, which is in the store. A running engine keeps it
    /// when the store is sealed.
    trail: Arc<OnceLock<Arc<Trail>>>,
}

impl Audit {
    /// Prepares the trail that a configuration names, if it names one. Nothing is recorded until
    /// [`Self::open`].
    pub fn new(config: &sealwire_settings::Audit) -> Self {
        Self {
            is_on: config.folder.is_some(),
            trail: Arc::default(),
        }
    }

    /// Opens the trail, if there is one, and records the start. Once.
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
        let watch = Watch {
            state: Arc::clone(state),
            failures: LogThrottle::default(),
        };
        let trail = Arc::new(Trail::open(options, key, Arc::new(watch))?);
        if !trail.found().is_sound() {
            tracing::error!(
                found = trail.found().name(),
                "the audit trail is not as it was left; `sealwire audit verify` says where"
            );
        }
        if trail.torn_bytes() > 0 {
            tracing::warn!(
                bytes = trail.torn_bytes(),
                "the end of the audit trail was torn and is set aside"
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

    /// Returns once [`Self::is_open`] is true.
    pub async fn opened(&self) {
        while !self.is_open() {
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Fails where a call that begins now could not be recorded, and calls are not to go on
    /// without.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Audit`].
    pub fn ready(&self) -> Result<(), RequestFailure> {
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
        let (subjects, more) = record
            .subjects
            .split_at(record.subjects.len().min(SUBJECTS_MAX));
        for subjects in more.chunks(SUBJECTS_MAX) {
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
    pub fn refused(&self, record: &Record<'_>) -> Recording {
        Recording(self.trail.get().map(|trail| trail.record_rejection(record)))
    }

    /// Writes records of the counts at intervals, until dropped.
    pub async fn settle(&self) {
        if !self.is_on {
            return;
        }
        loop {
            tokio::time::sleep(SETTLE).await;
            let Some(trail) = self.trail.get() else {
                continue;
            };
            let trail = Arc::clone(trail);
            // A disk may take its time to say how much room it has.
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

    /// Records that something was read again.
    pub fn reloaded(&self, what: &str, outcome: &str) {
        if let Some(trail) = self.trail.get() {
            drop(trail.event(&Event::Reload { what, outcome }));
        }
    }

    /// Records rows that the engine changed by itself.
    pub fn swept(&self, swept: &Swept) {
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

    /// Records the stop, and returns when everything is written. Waits for the disk.
    pub fn close(&self) {
        if let Some(trail) = self.trail.get() {
            trail.close();
        }
    }
}

/// A record on its way.
#[must_use]
pub struct Recording(Option<WriteAck>);

impl Recording {
    /// Nothing is recorded.
    pub fn none() -> Self {
        Self(None)
    }

    /// Returns whether the response can be sent. `None`: the record is not written yet.
    pub fn now(&self) -> Option<Result<(), RequestFailure>> {
        match &self.0 {
            None => Some(Ok(())),
            Some(written) => written
                .now()
                .map(|outcome| outcome.map_err(|_| RequestFailure::Audit)),
        }
    }

    /// Returns true if nobody else writes the record soon. [`Self::kept`] must then follow at once,
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
    pub async fn kept(self, others: bool) -> Result<(), RequestFailure> {
        if let Some(known) = self.now() {
            return known;
        }
        let Some(written) = self.0 else { return Ok(()) };
        let outcome = if others && written.is_writer() {
            let writes = tokio::spawn(async move {
                // This task continues after every other that is ready, and after those that have
                // got bytes meanwhile.
                tokio::task::yield_now().await;
                written.await
            });
            tokio::time::timeout(WRITE_MAX, writes)
                .await
                .map(|ended| ended.unwrap_or(Err(RecordLost)))
        } else {
            tokio::time::timeout(WRITE_MAX, written).await
        };
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(RequestFailure::Audit),
        }
    }
}

/// The name of a principal's kind in records.
pub const fn kind(kind: PrincipalKind) -> &'static str {
    match kind {
        PrincipalKind::Spiffe => "spiffe",
        PrincipalKind::Dns => "dns",
        PrincipalKind::CommonName => "common_name",
    }
}

/// Speaks of what happens to the files.
struct Watch {
    state: Arc<Telemetry>,
    failures: LogThrottle,
}

impl Observer for Watch {
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
                    "an audit segment begins; keep its head elsewhere"
                )
            }
            FileEvent::Failing { error, lost } => {
                readiness.set(Condition::Audit, false);
                if let Some(suppressed) = self.failures.record(Instant::now()) {
                    tracing::error!(%error, lost, suppressed, "the audit trail cannot be written");
                }
            }
            FileEvent::Recovered { lost } => {
                readiness.set(Condition::Audit, true);
                tracing::warn!(
                    lost,
                    "the audit trail is written again; the gap is recorded"
                );
            }
            FileEvent::Stopped { head, lost: 0 } => {
                tracing::info!(head, "the audit trail is closed; keep its head elsewhere")
            }
            FileEvent::Stopped { head, lost } => {
                tracing::error!(head, lost, "the audit trail is closed with records lost")
            }
        }
    }
}
