//! The connection registry of a listener: its current TLS settings, and the open connections by
//! client certificate chain.
//!
//! Connections with the same certificate chain share one entry, which holds the whole chain. Only
//! the certificates themselves can be verified against authorities and revocation lists that are
//! newer than the handshake. A chain is verified again when the authorities or lists change, and
//! when one of its certificates expires. If the verification fails, every connection of the chain
//! is closed.
//!
//! A verification checks the signature of the certificate and the signature of the revocation list,
//! and searches the list. This takes about 0.2 ms, and longer with a list of several megabytes,
//! since the list is hashed each time.
//!
//! A network thread verifies a chain only if the settings changed during the handshake. All other
//! verifications run on the blocking pool, in slices. After each slice the task pauses for four
//! times the slice's time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, ServerConfig};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::tls::ServerTls;
use sealwire_access::{Identity, Principal};
use sealwire_telemetry::metrics::{DisconnectLabel, Metrics};

/// Maximum time of a slice. The chain that is being verified at its end is still completed.
const SLICE: Duration = Duration::from_millis(2);
/// Length of the pause after a slice, as a multiple of the slice's time. The pause limits
/// verification to a fifth of one core.
const REST: u32 = 4;
/// Expiry of a chain if none of its certificates expires in the future.
const NEVER: i64 = i64::MAX;

/// TLS settings and open connections of one listener.
pub(crate) struct ConnectionRegistry {
    serving: RwLock<HandshakeSettings>,
    /// Chains with open connections, by digest. Chains that failed verification are removed.
    chains: Mutex<HashMap<[u8; 32], Arc<Chain>>>,
    /// Determines which names of a certificate identify a principal in the log.
    identity: Identity,
    metrics: Arc<Metrics>,
}

/// TLS settings with their version.
#[derive(Clone)]
struct HandshakeSettings {
    tls: ServerTls,
    /// Incremented by every change of the settings.
    number: u64,
}

/// TLS settings of one handshake.
pub(crate) struct HandshakeConfig {
    /// Configuration for `tokio_rustls::TlsAcceptor`.
    pub(crate) config: Arc<ServerConfig>,
    number: u64,
}

/// A client certificate chain with open connections. The client's own certificate comes first.
struct Chain {
    digest: [u8; 32],
    certificates: Vec<CertificateDer<'static>>,
    /// Earliest future expiry of a certificate of the chain, in seconds since 1970.
    ends: AtomicI64,
    /// Number of open connections. Changed only under the lock of the table.
    connections: AtomicU64,
    expelled: watch::Sender<Option<DisconnectLabel>>,
}

/// Registers an open connection until it is dropped.
pub(crate) struct Caller {
    gate: Arc<ConnectionRegistry>,
    chain: Arc<Chain>,
    expelled: watch::Receiver<Option<DisconnectLabel>>,
}

/// Result of verifying connected clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JudgedConnections {
    /// Number of verified chains.
    pub(crate) chains: u64,
    /// Number of chains that failed verification.
    pub(crate) refused: u64,
    /// Number of connections that are closed because their chain failed.
    pub(crate) connections: u64,
}

impl ConnectionRegistry {
    pub(crate) fn new(tls: ServerTls, identity: Identity, metrics: Arc<Metrics>) -> Arc<Self> {
        let serving = RwLock::new(HandshakeSettings { tls, number: 0 });
        Arc::new(Self {
            serving,
            chains: Mutex::default(),
            identity,
            metrics,
        })
    }

    /// Returns the TLS settings for the next handshake.
    pub(crate) fn entrance(&self) -> HandshakeConfig {
        let HandshakeSettings { tls, number } = self.serving();
        HandshakeConfig {
            config: tls.config,
            number,
        }
    }

    /// Uses `tls` for later handshakes. Does not verify the connected clients again.
    pub(crate) fn replace(&self, tls: ServerTls) {
        let mut serving = self.serving.write().unwrap_or_else(PoisonError::into_inner);
        *serving = HandshakeSettings {
            tls,
            number: serving.number + 1,
        };
    }

    /// Registers a connection with the certificates from its handshake.
    ///
    /// # Errors
    ///
    /// The reason why the current settings reject the certificates. Only possible if the settings
    /// changed during the handshake.
    pub(crate) fn enter(
        self: &Arc<Self>,
        certificates: &[CertificateDer<'_>],
        entrance: &HandshakeConfig,
    ) -> Result<Caller, DisconnectLabel> {
        let digest = digest(certificates);
        let caller = {
            let mut chains = self.chains();
            let chain = chains
                .entry(digest)
                .or_insert_with(|| Arc::new(Chain::new(digest, certificates)));
            chain.connections.fetch_add(1, Ordering::Relaxed);
            Caller {
                gate: Arc::clone(self),
                chain: Arc::clone(chain),
                expelled: chain.expelled.subscribe(),
            }
        };
        // The entry must be in the table first. Then a concurrent change either verifies it there,
        // or its new version is seen here.
        let serving = self.serving();
        if serving.number != entrance.number {
            caller.chain.judge(&*serving.tls.verifier)?;
        }
        Ok(caller)
    }

    /// Verifies the chains of all connected clients.
    pub(crate) async fn judge_all(self: &Arc<Self>) -> JudgedConnections {
        let all = self.chains().values().cloned().collect();
        self.judge(all).await
    }

    /// Verifies the chains in which a certificate has expired since the last verification.
    pub(crate) async fn judge_ended(self: &Arc<Self>) -> JudgedConnections {
        let now = now().as_secs() as i64;
        let ended = |chain: &&Arc<Chain>| chain.ends.load(Ordering::Relaxed) <= now;
        let ended: Vec<_> = self.chains().values().filter(ended).cloned().collect();
        self.judge(ended).await
    }

    async fn judge(self: &Arc<Self>, chains: Vec<Arc<Chain>>) -> JudgedConnections {
        let (chains, mut next, mut judged) = (Arc::new(chains), 0, JudgedConnections::default());
        while next < chains.len() {
            let (gate, slice) = (Arc::clone(self), Arc::clone(&chains));
            let done = tokio::task::spawn_blocking(move || gate.judge_slice(&slice[next..])).await;
            // The slice fails only if the runtime shuts down.
            let Ok((part, took)) = done else { break };
            next += part.chains as usize;
            judged.chains += part.chains;
            judged.refused += part.refused;
            judged.connections += part.connections;
            if next < chains.len() {
                sleep(took * REST).await;
            }
        }
        judged
    }

    /// Verifies at least one chain, and stops at the end of the slice.
    fn judge_slice(&self, chains: &[Arc<Chain>]) -> (JudgedConnections, Duration) {
        let (begun, serving, mut judged) =
            (Instant::now(), self.serving(), JudgedConnections::default());
        for chain in chains {
            judged.chains += 1;
            if let Err(why) = chain.judge(&*serving.tls.verifier) {
                judged.refused += 1;
                judged.connections += self.expel(chain, why);
            }
            if begun.elapsed() >= SLICE {
                break;
            }
        }
        (judged, begun.elapsed())
    }

    /// Closes every connection of a chain. Later handshakes with the same certificates are verified
    /// as usual.
    fn expel(&self, chain: &Arc<Chain>, why: DisconnectLabel) -> u64 {
        let connections = {
            let mut chains = self.chains();
            if chains
                .get(&chain.digest)
                .is_some_and(|known| Arc::ptr_eq(known, chain))
            {
                chains.remove(&chain.digest);
            }
            chain.connections.load(Ordering::Relaxed)
        };
        self.metrics.count_disconnects(why, connections);
        chain.expelled.send_replace(Some(why));
        let own = chain.certificates.first();
        let principal = own.and_then(|own| Principal::from_certificate(own, &self.identity).ok());
        let principal = principal.map_or_else(String::new, |principal| principal.to_string());
        tracing::warn!(
            principal,
            why = why.as_str(),
            connections,
            "a client certificate is not accepted any more"
        );
        connections
    }

    fn serving(&self) -> HandshakeSettings {
        self.serving
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn chains(&self) -> MutexGuard<'_, HashMap<[u8; 32], Arc<Chain>>> {
        // The table stays consistent after a panic, since each change of it is a single step.
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chain {
    fn new(digest: [u8; 32], certificates: &[CertificateDer<'_>]) -> Self {
        let certificates: Vec<_> = certificates
            .iter()
            .map(|der| der.clone().into_owned())
            .collect();
        let chain = Self {
            digest,
            certificates,
            ends: AtomicI64::new(NEVER),
            connections: AtomicU64::new(0),
            expelled: watch::channel(None).0,
        };
        chain.set_end(now());
        chain
    }

    /// Verifies the chain as a handshake at this moment would.
    fn judge(&self, verifier: &dyn ClientCertVerifier) -> Result<(), DisconnectLabel> {
        let Some((own, others)) = self.certificates.split_first() else {
            return Err(DisconnectLabel::Untrusted);
        };
        let now = now();
        match verifier.verify_client_cert(own, others, now) {
            Ok(_) => {
                // A certificate that the verification does not need may have expired.
                self.set_end(now);
                Ok(())
            }
            Err(rustls::Error::InvalidCertificate(error)) => Err(match error {
                CertificateError::Revoked => DisconnectLabel::Revoked,
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    DisconnectLabel::Expired
                }
                _ => DisconnectLabel::Untrusted,
            }),
            Err(_) => Err(DisconnectLabel::Untrusted),
        }
    }

    fn set_end(&self, now: UnixTime) {
        let ends = |der: &CertificateDer<'_>| {
            let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
            // A certificate is still valid in the second of `not_after`.
            Some(
                certificate
                    .validity()
                    .not_after
                    .timestamp()
                    .saturating_add(1),
            )
        };
        let later = self
            .certificates
            .iter()
            .filter_map(ends)
            .filter(|ends| *ends > now.as_secs() as i64)
            .min();
        self.ends.store(later.unwrap_or(NEVER), Ordering::Relaxed);
    }
}

impl Caller {
    /// Returns a receiver that holds a reason after the client's certificate is no longer accepted.
    pub(crate) fn expelled(&self) -> watch::Receiver<Option<DisconnectLabel>> {
        self.expelled.clone()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let Self { gate, chain, .. } = self;
        let mut chains = gate.chains();
        let last = chain.connections.fetch_sub(1, Ordering::Relaxed) == 1;
        if last
            && chains
                .get(&chain.digest)
                .is_some_and(|known| Arc::ptr_eq(known, chain))
        {
            chains.remove(&chain.digest);
        }
    }
}

fn now() -> UnixTime {
    UnixTime::now()
}

fn digest(certificates: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for certificate in certificates {
        hash.update((certificate.len() as u64).to_be_bytes());
        hash.update(certificate);
    }
    hash.finalize().into()
}
