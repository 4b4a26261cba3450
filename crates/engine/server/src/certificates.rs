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
pub(crate) use connection_registry::ConnectionRegistry;
use sealwire_settings::{Config, ControlListen, Tls};
use sealwire_telemetry::metrics::{CertificateLabel, Metrics, ReloadLabel};
use sealwire_telemetry::{Condition, Telemetry};

/// How long files must stay unchanged before they are loaded.
const SETTLE: Duration = Duration::from_millis(500);
/// Maximum number of further reads while files keep changing. Then loading fails.
const SETTLE_LOOKS_MAX: u32 = 10;
/// Interval between checks for expired certificates.
const END_PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of certificates and revocation lists that are logged by name when they are put in
/// service. A bundle can contain hundreds.
const LOGGED_MAX: usize = 16;
/// Number of queued reload requests of operators.
const ASKED_MAX: usize = 4;

/// An operator's request to reload the files, possibly from new paths.
struct ReloadRequest {
    tls: Tls,
    control: Option<ControlListen>,
    done: oneshot::Sender<Result<(), TlsError>>,
}

/// Sends reload requests to the task that manages the certificates.
#[derive(Clone, Debug)]
pub(crate) struct Reload(mpsc::Sender<ReloadRequest>);

/// The certificates of an engine. [`Certificates::keep`] is the task that manages them.
pub(crate) struct Certificates {
    tls: Tls,
    control: Option<ControlListen>,
    data_gate: Arc<ConnectionRegistry>,
    control_gate: Option<Arc<ConnectionRegistry>>,
    admin: Arc<Telemetry>,
    in_service: [u8; 32],
    held: Vec<CertificateInfo>,
    /// Expiry stages that were logged, per certificate.
    said: HashMap<(CertificateLabel, [u8; 32]), ExpiryStage>,
    /// Digest of the files that failed to load, and the error.
    refused: Option<([u8; 32], String)>,
    asked: mpsc::Receiver<ReloadRequest>,
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
        let (tls, control) = (config.tls.clone(), config.control.clone());
        let files = Files::look(&tls, control.as_ref());
        let Loaded {
            data,
            control: of_control,
            held,
        } = tls::load_from(&files, &tls, control.as_ref())?;
        let metrics = || Arc::clone(&admin.metrics);
        let identity = config.access.identity;
        let (ask, asked) = mpsc::channel(ASKED_MAX);
        let mut certificates = Self {
            tls,
            control,
            data_gate: ConnectionRegistry::new(data, identity, metrics()),
            control_gate: of_control.map(|tls| ConnectionRegistry::new(tls, identity, metrics())),
            admin: Arc::clone(admin),
            in_service: files.digest(),
            held: Vec::new(),
            said: HashMap::new(),
            refused: None,
            asked,
        };
        certificates.hold(held);
        Ok((certificates, Reload(ask)))
    }

    /// Returns the connection registry of the data listener.
    pub(crate) fn data_gate(&self) -> Arc<ConnectionRegistry> {
        Arc::clone(&self.data_gate)
    }

    /// Returns the connection registry of the control listener, if it is configured.
    pub(crate) fn control_gate(&self) -> Option<Arc<ConnectionRegistry>> {
        self.control_gate.clone()
    }

    /// Manages the certificates until the future is dropped. Calls `reloaded` with `ok` after new
    /// files were put in service, and with `refused` after files failed to load.
    pub(crate) async fn keep(mut self, reloaded: impl Fn(&'static str)) {
        let mut ends = interval(END_PERIOD);
        ends.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked = Instant::now();
        loop {
            let watch = Duration::from_secs(self.tls.watch_s);
            tokio::select! {
                _ = ends.tick() => self.look_at_ends().await,
                () = sleep_until(looked + watch), if !watch.is_zero() => {
                    if let Some(outcome) = self.look_at_files().await {
                        reloaded(outcome);
                    }
                    looked = Instant::now();
                }
                Some(ReloadRequest { tls, control, done }) = self.asked.recv() => {
                    let outcome = self.reload(tls, control).await;
                    reloaded(if outcome.is_ok() { "ok" } else { "refused" });
                    // The operator may have stopped waiting. The reload is complete in any case.
                    let _ = done.send(outcome);
                    looked = Instant::now();
                }
            }
        }
    }

    /// Reads the files and loads them if they changed. Returns the outcome if they changed.
    async fn look_at_files(&mut self) -> Option<&'static str> {
        let files = look(&self.tls, self.control.as_ref()).await?;
        if files.digest() == self.in_service {
            if self.refused.take().is_some() {
                tracing::info!("the certificate files are those in service again");
                self.metrics().certificate_files_back();
            }
            return None;
        }
        // Files that failed to load can become valid without a change, when a certificate's
        // validity period starts.
        let known = self
            .refused
            .as_ref()
            .is_some_and(|(digest, _)| *digest == files.digest());
        let settled = if known {
            Ok(files)
        } else {
            settle(files, &self.tls, self.control.as_ref()).await
        };
        let loaded = match settled {
            Ok(files) => load(files, self.tls.clone(), self.control.clone()).await,
            Err(error) => ([0; 32], Err(error)),
        };
        match loaded {
            (digest, Ok(loaded)) => {
                self.put_in_service(digest, loaded).await;
                Some("ok")
            }
            (digest, Err(error)) => {
                let is_news = self.refuse(digest, &error);
                if is_news {
                    let (why, again_s) = (error.with_cause(), self.tls.watch_s);
                    tracing::warn!(
                        why,
                        again_s,
                        "the certificate files do not load and those from before stay in service; once mended they are found"
                    );
                }
                is_news.then_some("refused")
            }
        }
    }

    /// Loads the files of a configuration and puts them in service.
    async fn reload(&mut self, tls: Tls, control: Option<ControlListen>) -> Result<(), TlsError> {
        let files = look(&tls, control.as_ref())
            .await
            .ok_or(TlsError::Restless)?;
        let files = settle(files, &tls, control.as_ref()).await?;
        let (digest, loaded) = load(files, tls.clone(), control.clone()).await;
        match loaded {
            Ok(loaded) => {
                (self.tls, self.control) = (tls, control);
                self.put_in_service(digest, loaded).await;
                Ok(())
            }
            Err(error) => {
                if (&tls, &control) == (&self.tls, &self.control) {
                    // The caller of `reload` logs the error.
                    self.refuse(digest, &error);
                }
                Err(error)
            }
        }
    }

    async fn put_in_service(&mut self, digest: [u8; 32], loaded: Loaded) {
        let Loaded {
            data,
            control,
            held,
        } = loaded;
        self.data_gate.replace(data);
        if let (Some(gate), Some(tls)) = (&self.control_gate, control) {
            gate.replace(tls);
        }
        (self.in_service, self.refused) = (digest, None);
        self.metrics().certificate_files(ReloadLabel::Loaded);
        self.hold(held);
        for gate in [Some(&self.data_gate), self.control_gate.as_ref()]
            .into_iter()
            .flatten()
        {
            let judged = gate.judge_all().await;
            if judged.chains > 0 {
                tracing::info!(
                    certificates = judged.chains,
                    refused = judged.refused,
                    connections_closed = judged.connections,
                    "connected callers judged"
                );
            }
        }
    }

    /// Notes that files failed to load; the files in service stay. Returns true if this failure was
    /// not noted before: other files, or another error of the same files.
    fn refuse(&mut self, digest: [u8; 32], error: &TlsError) -> bool {
        let refused = Some((digest, error.with_cause()));
        if self.refused == refused {
            return false;
        }
        self.refused = refused;
        self.metrics().certificate_files(ReloadLabel::Refused);
        true
    }

    /// Logs the certificates that are now in service and updates their expiry metrics.
    fn hold(&mut self, held: Vec<CertificateInfo>) {
        for one in held.iter().take(LOGGED_MAX) {
            tracing::info!(
                key = one.key(),
                names = one.names,
                fingerprint = one.fingerprint(),
                not_after = one.ends.map(second),
                "in service"
            );
        }
        if held.len() > LOGGED_MAX {
            tracing::info!(more = held.len() - LOGGED_MAX, "in service");
        }
        for of in CertificateLabel::ALL {
            let ends = held
                .iter()
                .filter(|held| held.of == of)
                .filter_map(|held| held.ends)
                .min();
            self.metrics()
                .set_certificate_expiry(of, ends.map(OffsetDateTime::unix_timestamp));
        }
        self.said
            .retain(|said, _| held.iter().any(|held| (held.of, held.fingerprint) == *said));
        self.held = held;
        self.say_ends();
    }

    async fn look_at_ends(&mut self) {
        self.say_ends();
        for gate in [Some(&self.data_gate), self.control_gate.as_ref()]
            .into_iter()
            .flatten()
        {
            gate.judge_ended().await;
        }
    }

    /// Logs a warning for each certificate that is near its expiry, once per stage. Sets the
    /// readiness condition, which is true until the server's own certificate expires.
    fn say_ends(&mut self) {
        let now = OffsetDateTime::now_utc();
        let mut own = true;
        for held in &self.held {
            let stage = held.stage(now);
            own &= held.of != CertificateLabel::Server || stage != ExpiryStage::Over;
            let said = self
                .said
                .entry((held.of, held.fingerprint))
                .or_insert(ExpiryStage::Good);
            if stage <= *said {
                continue;
            }
            *said = stage;
            let (key, names, fingerprint) = (held.key(), &held.names, held.fingerprint());
            let not_after = held.ends.map(second);
            match (stage, held.of) {
                (ExpiryStage::Over, CertificateLabel::Server) => tracing::error!(
                    key,
                    names,
                    fingerprint,
                    not_after,
                    "the server certificate is over: callers refuse it; put a new one and its key in their files"
                ),
                (ExpiryStage::Over, _) => tracing::warn!(
                    key,
                    names,
                    fingerprint,
                    not_after,
                    "is over and stays in force; put a new one in its file"
                ),
                _ => tracing::warn!(
                    key,
                    names,
                    fingerprint,
                    not_after,
                    "ends soon; put a new one in its file: no restart is needed"
                ),
            }
        }
        self.admin.readiness.set(Condition::Certificate, own);
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
    pub(crate) async fn ask(
        &self,
        tls: Tls,
        control: Option<ControlListen>,
    ) -> Result<(), TlsError> {
        let (done, answer) = oneshot::channel();
        let gone = |()| TlsError::Library("the engine shuts down".into());
        self.0
            .send(ReloadRequest { tls, control, done })
            .await
            .map_err(|_| gone(()))?;
        answer.await.map_err(|_| gone(()))?
    }
}

/// Reads the files on a blocking thread. Returns `None` if the runtime shuts down.
async fn look(tls: &Tls, control: Option<&ControlListen>) -> Option<Files> {
    let (tls, control) = (tls.clone(), control.cloned());
    tokio::task::spawn_blocking(move || Files::look(&tls, control.as_ref()))
        .await
        .ok()
}

/// Reads the files until two reads in a row find the same contents.
async fn settle(
    mut files: Files,
    tls: &Tls,
    control: Option<&ControlListen>,
) -> Result<Files, TlsError> {
    for _ in 0..SETTLE_LOOKS_MAX {
        sleep(SETTLE).await;
        let again = look(tls, control).await.ok_or(TlsError::Restless)?;
        if again.digest() == files.digest() {
            return Ok(again);
        }
        files = again;
    }
    Err(TlsError::Restless)
}

/// Builds the TLS settings on a blocking thread, since a revocation list can be long.
async fn load(
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
