//! Manages the certificates in use: reloads them without dropping connections, and watches their
//! expiry.
//!
//! A single task reloads the files, at an operator's request or after they changed. Files can be
//! written piece by piece, so the task loads them only after they stayed unchanged for [`SETTLE`].
//! Files that fail to load change nothing. The log gives the reason once, and a metric counts the
//! failure. Files that load serve every later handshake, and the [`ConnectionRegistry`] of each
//! listener verifies the connected clients again.
//!
//! A client whose certificate or authority is revoked by new files can start no request after a
//! bounded delay. The delay is at most `tls.watch_s`, plus twice [`SETTLE`], plus two milliseconds
//! per certificate in use. After its certificate expires, a client can start requests for at most
//! one second.

mod connection_registry;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::tls::{self, CertificateInfo, ExpiryStage, Files, Loaded, TlsError, second};
pub(crate) use connection_registry::{ConnectionGuard, ConnectionRegistry};
use sealwire_settings::{Config, ControlListen, Tls};
use sealwire_telemetry::metrics::{CertificateLabel, Metrics, ReloadLabel};
use sealwire_telemetry::{Condition, Telemetry};

/// How long files must stay unchanged before they are loaded.
const SETTLE: Duration = Duration::from_millis(500);
/// Maximum number of further reads while files keep changing. Then loading fails.
const SETTLE_READS_MAX: u32 = 10;
/// Interval between checks for expired certificates.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of certificates and revocation lists that are logged by name when they are put in
/// service. A bundle can contain hundreds.
const LOGGED_MAX: usize = 16;
/// Number of queued reload requests of operators.
const QUEUED_RELOADS_MAX: usize = 4;

/// An operator's request to reload the files, possibly from new paths.
struct ReloadRequest {
    tls: Tls,
    control: Option<ControlListen>,
    done: oneshot::Sender<Result<(), TlsError>>,
}

/// Sends reload requests to the task that manages the certificates.
#[derive(Clone, Debug)]
pub(crate) struct Reload(mpsc::Sender<ReloadRequest>);

/// The certificates of an engine. [`Certificates::run`] is the task that manages them.
pub(crate) struct Certificates {
    tls: Tls,
    control: Option<ControlListen>,
    data_registry: Arc<ConnectionRegistry>,
    control_registry: Option<Arc<ConnectionRegistry>>,
    admin: Arc<Telemetry>,
    digest_in_service: [u8; 32],
    certificates: Vec<CertificateInfo>,
    /// Expiry stages that were logged, per certificate.
    logged_stages: HashMap<(CertificateLabel, [u8; 32]), ExpiryStage>,
    /// Digest of the files that failed to load, and the error.
    failed_files: Option<([u8; 32], String)>,
    reload_requests: mpsc::Receiver<ReloadRequest>,
}

impl Certificates {
    /// Loads the files of a configuration. Blocks while it reads them.
    ///
    /// # Errors
    ///
    /// The error of the files.
    pub(crate) fn load(
        config: &Config,
        admin: &Arc<Telemetry>,
    ) -> Result<(Self, Reload), TlsError> {
        let tls = config.tls.clone();
        let control = config.control.clone();
        let files = Files::read(&tls, control.as_ref());
        let Loaded {
            data,
            control: control_tls,
            certificates: infos,
        } = tls::load_from(&files, &tls, control.as_ref())?;
        let metrics = &admin.metrics;
        let identity = config.access.identity;
        let (reloads, reload_requests) = mpsc::channel(QUEUED_RELOADS_MAX);
        let mut certificates = Self {
            tls,
            control,
            data_registry: ConnectionRegistry::new(data, identity, Arc::clone(metrics)),
            control_registry: control_tls
                .map(|tls| ConnectionRegistry::new(tls, identity, Arc::clone(metrics))),
            admin: Arc::clone(admin),
            digest_in_service: files.digest(),
            certificates: Vec::new(),
            logged_stages: HashMap::new(),
            failed_files: None,
            reload_requests,
        };

        certificates.set_certificates(infos);
        Ok((certificates, Reload(reloads)))
    }

    /// Returns the connection registry of the data listener.
    pub(crate) fn data_registry(&self) -> Arc<ConnectionRegistry> {
        Arc::clone(&self.data_registry)
    }

    /// Returns the connection registry of the control listener, if it is configured.
    pub(crate) fn control_registry(&self) -> Option<Arc<ConnectionRegistry>> {
        self.control_registry.clone()
    }

    /// Manages the certificates until the future is dropped. Calls `reloaded` with `ok` after new
    /// files were put in service, and with `refused` after files failed to load.
    pub(crate) async fn run(mut self, reloaded: impl Fn(&'static str)) {
        let mut expiry_checks = interval(EXPIRY_CHECK_INTERVAL);
        expiry_checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_check = Instant::now();
        loop {
            let watch = Duration::from_secs(self.tls.watch_s);
            tokio::select! {
                _ = expiry_checks.tick() => self.check_expiry().await,
                () = sleep_until(last_check + watch), if !watch.is_zero() => {
                    if let Some(outcome) = self.check_files().await {
                        reloaded(outcome);
                    }
                    last_check = Instant::now();
                }
                Some(ReloadRequest { tls, control, done }) = self.reload_requests.recv() => {
                    let outcome = self.reload(tls, control).await;
                    reloaded(if outcome.is_ok() { "ok" } else { "refused" });
                    // The operator may have stopped waiting. The reload is complete in any case.
                    let _ = done.send(outcome);
                    last_check = Instant::now();
                }
            }
        }
    }

    /// Reads the files and loads them if they changed. Returns the outcome if they changed.
    async fn check_files(&mut self) -> Option<&'static str> {
        let files = read_files(&self.tls, self.control.as_ref()).await?;
        if files.digest() == self.digest_in_service {
            if self.failed_files.take().is_some() {
                tracing::info!("the certificate files are those in service again");
                self.metrics().accept_certificate_files();
            }
            return None;
        }

        // Files that failed to load can become valid without a change, when a certificate's
        // validity period starts.
        let is_known = self
            .failed_files
            .as_ref()
            .is_some_and(|(digest, _)| *digest == files.digest());
        let settled = if is_known {
            Ok(files)
        } else {
            read_settled_files(files, &self.tls, self.control.as_ref()).await
        };
        let loaded = match settled {
            Ok(files) => load_blocking(files, self.tls.clone(), self.control.clone()).await,
            Err(error) => ([0; 32], Err(error)),
        };

        match loaded {
            (digest, Ok(loaded)) => {
                self.put_in_service(digest, loaded).await;
                Some("ok")
            }
            (digest, Err(error)) => {
                let is_new = self.note_failure(digest, &error);
                if is_new {
                    let why = error.with_cause();
                    let again_s = self.tls.watch_s;
                    tracing::warn!(
                        why,
                        again_s,
                        "cannot load the changed certificate files; the earlier certificates stay in service; correct the files, which are read again every tls.watch_s seconds"
                    );
                }
                is_new.then_some("refused")
            }
        }
    }

    /// Loads the files of a configuration and puts them in service.
    async fn reload(&mut self, tls: Tls, control: Option<ControlListen>) -> Result<(), TlsError> {
        let files = read_files(&tls, control.as_ref())
            .await
            .ok_or(TlsError::Restless)?;
        let files = read_settled_files(files, &tls, control.as_ref()).await?;
        let (digest, loaded) = load_blocking(files, tls.clone(), control.clone()).await;

        match loaded {
            Ok(loaded) => {
                (self.tls, self.control) = (tls, control);
                self.put_in_service(digest, loaded).await;
                Ok(())
            }
            Err(error) => {
                if (&tls, &control) == (&self.tls, &self.control) {
                    // The caller of `reload` logs the error.
                    self.note_failure(digest, &error);
                }
                Err(error)
            }
        }
    }

    async fn put_in_service(&mut self, digest: [u8; 32], loaded: Loaded) {
        let Loaded {
            data,
            control,
            certificates: infos,
        } = loaded;
        self.data_registry.replace(data);

        if let (Some(registry), Some(tls)) = (&self.control_registry, control) {
            registry.replace(tls);
        }

        (self.digest_in_service, self.failed_files) = (digest, None);
        self.metrics().count_certificate_reload(ReloadLabel::Loaded);
        self.set_certificates(infos);
        for registry in [Some(&self.data_registry), self.control_registry.as_ref()]
            .into_iter()
            .flatten()
        {
            let result = registry.verify_all().await;
            if result.chains > 0 {
                tracing::info!(
                    certificates = result.chains,
                    failed = result.failed,
                    connections_closed = result.connections,
                    "verified the certificates of connected clients"
                );
            }
        }
    }

    /// Notes that files failed to load; the files in service stay. Returns true if this failure was
    /// not noted before: other files, or another error of the same files.
    fn note_failure(&mut self, digest: [u8; 32], error: &TlsError) -> bool {
        let failure = Some((digest, error.with_cause()));
        if self.failed_files == failure {
            return false;
        }
        self.failed_files = failure;
        self.metrics()
            .count_certificate_reload(ReloadLabel::Refused);
        true
    }

    /// Logs the certificates that are now in service and updates their expiry metrics.
    fn set_certificates(&mut self, certificates: Vec<CertificateInfo>) {
        for certificate in certificates.iter().take(LOGGED_MAX) {
            tracing::info!(
                key = certificate.key(),
                names = certificate.names,
                fingerprint = certificate.fingerprint(),
                not_after = certificate.expires_at.map(second),
                "in service"
            );
        }

        if certificates.len() > LOGGED_MAX {
            tracing::info!(more = certificates.len() - LOGGED_MAX, "in service");
        }

        for label in CertificateLabel::ALL {
            let expiry = certificates
                .iter()
                .filter(|certificate| certificate.label == label)
                .filter_map(|certificate| certificate.expires_at)
                .min();
            self.metrics()
                .set_certificate_expiry(label, expiry.map(OffsetDateTime::unix_timestamp));
        }

        self.logged_stages.retain(|key, _| {
            certificates
                .iter()
                .any(|info| (info.label, info.fingerprint) == *key)
        });
        self.certificates = certificates;
        self.log_expiry();
    }

    async fn check_expiry(&mut self) {
        self.log_expiry();
        for registry in [Some(&self.data_registry), self.control_registry.as_ref()]
            .into_iter()
            .flatten()
        {
            registry.verify_expired().await;
        }
    }

    /// Logs a warning for each certificate that is near its expiry, once per stage. Sets the
    /// readiness condition, which is true until the server's own certificate expires.
    fn log_expiry(&mut self) {
        let now = OffsetDateTime::now_utc();
        let mut is_server_valid = true;
        for certificate in &self.certificates {
            let stage = certificate.stage(now);
            is_server_valid &=
                certificate.label != CertificateLabel::Server || stage != ExpiryStage::Over;
            let logged_stage = self
                .logged_stages
                .entry((certificate.label, certificate.fingerprint))
                .or_insert(ExpiryStage::Good);
            if stage <= *logged_stage {
                continue;
            }
            *logged_stage = stage;
            let key = certificate.key();
            let names = &certificate.names;
            let fingerprint = certificate.fingerprint();
            let not_after = certificate.expires_at.map(second);
            match (stage, certificate.label) {
                (ExpiryStage::Over, CertificateLabel::Server) => tracing::error!(
                    key,
                    names,
                    fingerprint,
                    not_after,
                    "the server certificate has expired, so clients reject it; install a new certificate and its key; no restart is needed"
                ),
                (ExpiryStage::Over, _) => tracing::warn!(
                    key,
                    names,
                    fingerprint,
                    not_after,
                    "has expired and stays in force; install a new file"
                ),
                _ => tracing::warn!(
                    key,
                    names,
                    fingerprint,
                    not_after,
                    "expires soon; install a new file; no restart is needed"
                ),
            }
        }

        self.admin
            .readiness
            .set(Condition::Certificate, is_server_valid);
    }

    fn metrics(&self) -> &Metrics {
        &self.admin.metrics
    }
}

impl Reload {
    /// Reloads the files of a configuration. Returns after every connected client was verified
    /// against the new files.
    ///
    /// # Errors
    ///
    /// The error of the files. In this case nothing has changed.
    pub(crate) async fn reload(
        &self,
        tls: Tls,
        control: Option<ControlListen>,
    ) -> Result<(), TlsError> {
        let (done, result) = oneshot::channel();
        self.0
            .send(ReloadRequest { tls, control, done })
            .await
            .map_err(|_| shutting_down())?;
        result.await.map_err(|_| shutting_down())?
    }
}

fn shutting_down() -> TlsError {
    TlsError::Library("the engine shuts down".into())
}

/// Reads the files on a blocking thread. Returns `None` if the runtime shuts down.
async fn read_files(tls: &Tls, control: Option<&ControlListen>) -> Option<Files> {
    let tls = tls.clone();
    let control = control.cloned();
    tokio::task::spawn_blocking(move || Files::read(&tls, control.as_ref()))
        .await
        .ok()
}

/// Reads the files until two reads in a row find the same contents.
async fn read_settled_files(
    mut files: Files,
    tls: &Tls,
    control: Option<&ControlListen>,
) -> Result<Files, TlsError> {
    for _ in 0..SETTLE_READS_MAX {
        sleep(SETTLE).await;
        let next = read_files(tls, control).await.ok_or(TlsError::Restless)?;
        if next.digest() == files.digest() {
            return Ok(next);
        }
        files = next;
    }
    Err(TlsError::Restless)
}

/// Builds the TLS settings on a blocking thread, since a revocation list can be long.
async fn load_blocking(
    files: Files,
    tls: Tls,
    control: Option<ControlListen>,
) -> ([u8; 32], Result<Loaded, TlsError>) {
    let digest = files.digest();
    let loading =
        tokio::task::spawn_blocking(move || tls::load_from(&files, &tls, control.as_ref())).await;
    (digest, loading.unwrap_or(Err(TlsError::Restless)))
}

#[cfg(test)]
mod tests;
