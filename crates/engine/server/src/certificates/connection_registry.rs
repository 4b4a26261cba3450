//! A listener's gate: what it accepts connections under now, and whose certificates opened those
//! that live.
//!
//! Connections are kept by the chain that opened them, whole, once for all that share it: only the
//! certificates themselves can be judged by other authorities and lists than those of their
//! handshake. A chain is judged again when either changes and when one of its certificates ends;
//! refused, every connection that it opened is told to end.
//!
//! A judgement is a signature, another over the list that could revoke it, and a look into that:
//! some 0.2 ms, and longer with a list of megabytes, which is hashed each time. Network threads do
//! none but for a handshake that a change overtook: the others are made on the blocking pool, a
//! slice at a time, with rests four times as long.

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
use sealwire_telemetry::metrics::{ExpulsionLabel, Metrics};

/// How long chains are judged without a rest, but for the last one.
const SLICE: Duration = Duration::from_millis(2);
/// The rest after a slice, in times of what it took: a fifth of one core is the most that judging
/// takes.
const REST: u32 = 4;
/// When a chain ends that never does.
const NEVER: i64 = i64::MAX;

/// TLS settings and open connections of one listener.
pub(crate) struct ConnectionRegistry {
    serving: RwLock<HandshakeSettings>,
    /// By digest. Those that were refused are not in it any more.
    chains: Mutex<HashMap<[u8; 32], Arc<Chain>>>,
    /// Which names of a certificate count, for the log.
    identity: Identity,
    metrics: Arc<Metrics>,
}

/// Settings for handshakes.
#[derive(Clone)]
struct HandshakeSettings {
    tls: ServerTls,
    /// Grows with every change.
    number: u64,
}

/// Settings of one handshake.
pub(crate) struct HandshakeConfig {
    /// For `tokio_rustls::TlsAcceptor`.
    pub(crate) config: Arc<ServerConfig>,
    number: u64,
}

/// Certificates that opened connections, the callers' own first.
struct Chain {
    digest: [u8; 32],
    certificates: Vec<CertificateDer<'static>>,
    /// When the first of them ends that is not over, in seconds since 1970.
    ends: AtomicI64,
    /// Open connections. Changed under the lock of the table.
    connections: AtomicU64,
    expelled: watch::Sender<Option<ExpulsionLabel>>,
}

/// A live connection's entry, until dropped.
pub(crate) struct Caller {
    gate: Arc<ConnectionRegistry>,
    chain: Arc<Chain>,
    expelled: watch::Receiver<Option<ExpulsionLabel>>,
}

/// Result of judging connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JudgedConnections {
    /// Chains looked at.
    pub(crate) chains: u64,
    /// Chains refused.
    pub(crate) refused: u64,
    /// Connections that end for that.
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

    /// Returns the settings of the next handshake.
    pub(crate) fn entrance(&self) -> HandshakeConfig {
        let HandshakeSettings { tls, number } = self.serving();
        HandshakeConfig {
            config: tls.config,
            number,
        }
    }

    /// Uses `tls` for later handshakes. Does not recheck the connected clients.
    pub(crate) fn replace(&self, tls: ServerTls) {
        let mut serving = self.serving.write().unwrap_or_else(PoisonError::into_inner);
        *serving = HandshakeSettings {
            tls,
            number: serving.number + 1,
        };
    }

    /// Enters a connection by the certificates that its handshake showed.
    ///
    /// # Errors
    ///
    /// They would not be accepted any more: the handshake was made under what has been replaced
    /// since.
    pub(crate) fn enter(
        self: &Arc<Self>,
        certificates: &[CertificateDer<'_>],
        entrance: &HandshakeConfig,
    ) -> Result<Caller, ExpulsionLabel> {
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
        // After it is in the table, so that a change judges it there or is seen here.
        let serving = self.serving();
        if serving.number != entrance.number {
            caller.chain.judge(&*serving.tls.verifier)?;
        }
        Ok(caller)
    }

    /// Judges everybody who is connected.
    pub(crate) async fn judge_all(self: &Arc<Self>) -> JudgedConnections {
        let all = self.chains().values().cloned().collect();
        self.judge(all).await
    }

    /// Judges those of whose certificates one has ended since they were judged last.
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
            // It ends early only with the runtime.
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

    /// Judges one chain at least.
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

    /// Ends every connection that the chain has opened. A later handshake with it is another
    /// matter.
    fn expel(&self, chain: &Arc<Chain>, why: ExpulsionLabel) -> u64 {
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
        self.metrics.expelled(why, connections);
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
        // Whole after any panic: each change of it is one step.
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

    /// Judges it as a handshake now would.
    fn judge(&self, verifier: &dyn ClientCertVerifier) -> Result<(), ExpulsionLabel> {
        let Some((own, others)) = self.certificates.split_first() else {
            return Err(ExpulsionLabel::Untrusted);
        };
        let now = now();
        match verifier.verify_client_cert(own, others, now) {
            Ok(_) => {
                // One of the others may be over without being needed.
                self.set_end(now);
                Ok(())
            }
            Err(rustls::Error::InvalidCertificate(error)) => Err(match error {
                CertificateError::Revoked => ExpulsionLabel::Revoked,
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    ExpulsionLabel::Expired
                }
                _ => ExpulsionLabel::Untrusted,
            }),
            Err(_) => Err(ExpulsionLabel::Untrusted),
        }
    }

    fn set_end(&self, now: UnixTime) {
        let ends = |der: &CertificateDer<'_>| {
            let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
            // The last second in which it holds.
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
    /// Some once its certificate is not accepted any more.
    pub(crate) fn expelled(&self) -> watch::Receiver<Option<ExpulsionLabel>> {
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
