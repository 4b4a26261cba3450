//! Certificates in use: reloaded without a dropped connection, and watched for their expiry.
//!
//! One task reloads them, at an operator's request or when files have changed and then stayed
//! unchanged for [`SETTLE`], because files can be written piece by piece. Files that do not load
//! change nothing: the log says why once, and a metric shows it. Files that load serve every later
//! handshake, and the [`ConnectionRegistry`] of each listener rechecks the connected clients.
//!
//! No request of a client begins later than `tls.watch_s`, twice [`SETTLE`], and two milliseconds
//! per certificate in use after the files revoke its certificate or its authority; or more than a
//! second after its certificate expires.

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

/// How long files must hold still before they are loaded.
const SETTLE: Duration = Duration::from_millis(500);
/// Looks at files that do not hold still.
const SETTLE_LOOKS_MAX: u32 = 10;
/// How often ends are looked at.
const END_PERIOD: Duration = Duration::from_secs(1);
/// Certificates and lists that are logged by name when they come into service. A bundle may have
/// hundreds.
const LOGGED_MAX: usize = 16;
/// Operators that wait for a reload at once.
const ASKED_MAX: usize = 4;

/// An operator's word that the files, or where they are, have changed.
struct ReloadRequest {
    tls: Tls,
    control: Option<ControlListen>,
    done: oneshot::Sender<Result<(), TlsError>>,
}

/// Tells the task to look now.
#[derive(Clone, Debug)]
pub(crate) struct Reload(mpsc::Sender<ReloadRequest>);

/// The certificates of an engine, and the task that keeps them.
pub(crate) struct Certificates {
    tls: Tls,
    control: Option<ControlListen>,
    data_gate: Arc<ConnectionRegistry>,
    control_gate: Option<Arc<ConnectionRegistry>>,
    admin: Arc<Telemetry>,
    in_service: [u8; 32],
    held: Vec<CertificateInfo>,
    /// Expiry stages that were logged.
    said: HashMap<(CertificateLabel, [u8; 32]), ExpiryStage>,
    /// The files that did not load, and why.
    refused: Option<([u8; 32], String)>,
    asked: mpsc::Receiver<ReloadRequest>,
}

impl Certificates {
    /// Loads the files of a configuration. Blocks on them.
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

    /// The gate of the listener of documents and tokens.
    pub(crate) fn data_gate(&self) -> Arc<ConnectionRegistry> {
        Arc::clone(&self.data_gate)
    }

    /// The gate of the control listener, if there is one.
    pub(crate) fn control_gate(&self) -> Option<Arc<ConnectionRegistry>> {
        self.control_gate.clone()
    }

    /// Keeps them until dropped. `reloaded` hears `ok` or `refused` of files that were put in
    /// service or did not load.
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
                    // Whoever asked may have gone; it is done all the same.
                    let _ = done.send(outcome);
                    looked = Instant::now();
                }
            }
        }
    }

    /// One look, and what follows from it. Gives what became of other files than before.
    async fn look_at_files(&mut self) -> Option<&'static str> {
        let files = look(&self.tls, self.control.as_ref()).await?;
        if files.digest() == self.in_service {
            if self.refused.take().is_some() {
                tracing::info!("the certificate files are those in service again");
                self.metrics().certificate_files_back();
            }
            return None;
        }
        // Files that were refused may have become good by themselves: a certificate's time may have
        // come.
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

    /// Puts the files of a configuration in service.
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
                    // Whoever asked says why.
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

    /// Leaves what is in service there. Whether this is news: other files, or another fault of the
    /// same.
    fn refuse(&mut self, digest: [u8; 32], error: &TlsError) -> bool {
        let refused = Some((digest, error.with_cause()));
        if self.refused == refused {
            return false;
        }
        self.refused = refused;
        self.metrics().certificate_files(ReloadLabel::Refused);
        true
    }

    /// These are in service now.
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
                .certificate_ends(of, ends.map(OffsetDateTime::unix_timestamp));
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

    /// Says of each that comes near its end so, once at each stage; the engine is ready while its
    /// own certificate holds.
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
    /// Puts the files of a configuration in service, and returns when everybody who is connected is
    /// judged by them.
    ///
    /// # Errors
    ///
    /// The error of the files, in which case nothing has changed.
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

/// Looks at the files, off the network threads. `None`: the runtime ends.
async fn look(tls: &Tls, control: Option<&ControlListen>) -> Option<Files> {
    let (tls, control) = (tls.clone(), control.cloned());
    tokio::task::spawn_blocking(move || Files::look(&tls, control.as_ref()))
        .await
        .ok()
}

/// Looks until two looks in a row find the same.
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

/// Makes TLS of the files, off the network threads: a list may be long.
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
