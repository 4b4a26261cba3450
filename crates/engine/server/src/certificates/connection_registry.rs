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
const NEVER_EXPIRES: i64 = i64::MAX;

/// TLS settings and open connections of one listener.
pub(crate) struct ConnectionRegistry {
    settings: RwLock<HandshakeSettings>,
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
    version: u64,
}

/// TLS settings of one handshake.
pub(crate) struct HandshakeConfig {
    /// Configuration for `tokio_rustls::TlsAcceptor`.
    pub(crate) config: Arc<ServerConfig>,
    /// Configuration for clients that may send no certificate. A certificate that a client sends must
    /// be valid.
    pub(crate) config_optional_certificate: Arc<ServerConfig>,
    version: u64,
}

/// A client certificate chain with open connections. The client's own certificate comes first.
struct Chain {
    digest: [u8; 32],
    certificates: Vec<CertificateDer<'static>>,
    /// Earliest future expiry of a certificate of the chain, in seconds since 1970.
    expires_unix_s: AtomicI64,
    /// Number of open connections. Changed only under the lock of the table.
    connections: AtomicU64,
    disconnected: watch::Sender<Option<DisconnectLabel>>,
}

/// Registers an open connection until it is dropped.
pub(crate) struct ConnectionGuard {
    registry: Arc<ConnectionRegistry>,
    chain: Arc<Chain>,
    disconnected: watch::Receiver<Option<DisconnectLabel>>,
}

/// Result of verifying connected clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VerificationResult {
    /// Number of verified chains.
    pub(crate) chains: u64,
    /// Number of chains that failed verification.
    pub(crate) failed: u64,
    /// Number of connections that are closed because their chain failed.
    pub(crate) connections: u64,
}

impl ConnectionRegistry {
    pub(crate) fn new(tls: ServerTls, identity: Identity, metrics: Arc<Metrics>) -> Arc<Self> {
        let settings = RwLock::new(HandshakeSettings { tls, version: 0 });
        Arc::new(Self {
            settings,
            chains: Mutex::default(),
            identity,
            metrics,
        })
    }

    /// Returns the TLS settings for the next handshake.
    pub(crate) fn handshake_config(&self) -> HandshakeConfig {
        let HandshakeSettings { tls, version } = self.settings();
        HandshakeConfig {
            config: tls.config,
            config_optional_certificate: tls.config_optional_certificate,
            version,
        }
    }

    /// Uses `tls` for later handshakes. Does not verify the connected clients again.
    pub(crate) fn replace(&self, tls: ServerTls) {
        let mut settings = self
            .settings
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *settings = HandshakeSettings {
            tls,
            version: settings.version + 1,
        };
    }

    /// Registers a connection with the certificates from its handshake.
    ///
    /// # Errors
    ///
    /// The reason why the current settings reject the certificates. Only possible if the settings
    /// changed during the handshake.
    pub(crate) fn register(
        self: &Arc<Self>,
        certificates: &[CertificateDer<'_>],
        handshake_config: &HandshakeConfig,
    ) -> Result<ConnectionGuard, DisconnectLabel> {
        let digest = digest(certificates);
        let guard = {
            let mut chains = self.chains();
            let chain = chains
                .entry(digest)
                .or_insert_with(|| Arc::new(Chain::new(digest, certificates)));
            chain.connections.fetch_add(1, Ordering::Relaxed);
            ConnectionGuard {
                registry: Arc::clone(self),
                chain: Arc::clone(chain),
                disconnected: chain.disconnected.subscribe(),
            }
        };

        // The entry must be in the table first. Then a concurrent change either verifies it there,
        // or its new version is seen here.
        let settings = self.settings();
        if settings.version != handshake_config.version {
            guard.chain.verify(&*settings.tls.verifier)?;
        }
        Ok(guard)
    }

    /// Verifies the chains of all connected clients.
    pub(crate) async fn verify_all(self: &Arc<Self>) -> VerificationResult {
        let all = self.chains().values().cloned().collect();
        self.verify_chains(all).await
    }

    /// Verifies the chains in which a certificate has expired since the last verification.
    pub(crate) async fn verify_expired(self: &Arc<Self>) -> VerificationResult {
        let now = now().as_secs() as i64;
        let expired: Vec<_> = self
            .chains()
            .values()
            .filter(|chain| chain.expires_unix_s.load(Ordering::Relaxed) <= now)
            .cloned()
            .collect();
        self.verify_chains(expired).await
    }

    async fn verify_chains(self: &Arc<Self>, chains: Vec<Arc<Chain>>) -> VerificationResult {
        let chains = Arc::new(chains);
        let mut next = 0;
        let mut result = VerificationResult::default();
        while next < chains.len() {
            let registry = Arc::clone(self);
            let slice = Arc::clone(&chains);
            let done =
                tokio::task::spawn_blocking(move || registry.verify_slice(&slice[next..])).await;
            // The slice fails only if the runtime shuts down.
            let Ok((slice_result, took)) = done else {
                break;
            };
            next += slice_result.chains as usize;
            result.chains += slice_result.chains;
            result.failed += slice_result.failed;
            result.connections += slice_result.connections;
            if next < chains.len() {
                sleep(took * REST).await;
            }
        }
        result
    }

    /// Verifies at least one chain, and stops at the end of the slice.
    fn verify_slice(&self, chains: &[Arc<Chain>]) -> (VerificationResult, Duration) {
        let started = Instant::now();
        let settings = self.settings();
        let mut result = VerificationResult::default();
        for chain in chains {
            result.chains += 1;
            if let Err(why) = chain.verify(&*settings.tls.verifier) {
                result.failed += 1;
                result.connections += self.disconnect(chain, why);
            }
            if started.elapsed() >= SLICE {
                break;
            }
        }
        (result, started.elapsed())
    }

    /// Closes every connection of a chain. Later handshakes with the same certificates are verified
    /// as usual.
    fn disconnect(&self, chain: &Arc<Chain>, why: DisconnectLabel) -> u64 {
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
        chain.disconnected.send_replace(Some(why));

        let principal = chain
            .certificates
            .first()
            .and_then(|der| Principal::from_certificate(der, &self.identity).ok());
        let principal = principal.map_or_else(String::new, |principal| principal.to_string());
        tracing::warn!(
            principal,
            why = why.as_str(),
            connections,
            "disconnected a client because its certificate is no longer accepted"
        );
        connections
    }

    fn settings(&self) -> HandshakeSettings {
        self.settings
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
            expires_unix_s: AtomicI64::new(NEVER_EXPIRES),
            connections: AtomicU64::new(0),
            disconnected: watch::channel(None).0,
        };
        chain.update_expiry(now());
        chain
    }

    /// Verifies the chain as a handshake at this moment would.
    fn verify(&self, verifier: &dyn ClientCertVerifier) -> Result<(), DisconnectLabel> {
        let Some((client_certificate, intermediates)) = self.certificates.split_first() else {
            return Err(DisconnectLabel::Untrusted);
        };
        let now = now();

        match verifier.verify_client_cert(client_certificate, intermediates, now) {
            Ok(_) => {
                // A certificate that the verification does not need may have expired.
                self.update_expiry(now);
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

    fn update_expiry(&self, now: UnixTime) {
        let next_expiry = self
            .certificates
            .iter()
            .filter_map(expiry_unix_s)
            .filter(|expires_unix_s| *expires_unix_s > now.as_secs() as i64)
            .min();
        self.expires_unix_s
            .store(next_expiry.unwrap_or(NEVER_EXPIRES), Ordering::Relaxed);
    }
}

impl ConnectionGuard {
    /// Returns a receiver that holds a reason after the client's certificate is no longer accepted.
    pub(crate) fn disconnected(&self) -> watch::Receiver<Option<DisconnectLabel>> {
        self.disconnected.clone()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let Self {
            registry, chain, ..
        } = self;
        let mut chains = registry.chains();
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

/// Returns the first second in which a certificate is no longer valid. The certificate is still
/// valid in the second of `not_after`.
fn expiry_unix_s(der: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let not_after = certificate.validity().not_after.timestamp();
    Some(not_after.saturating_add(1))
}

fn digest(certificates: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for certificate in certificates {
        hash.update((certificate.len() as u64).to_be_bytes());
        hash.update(certificate);
    }
    hash.finalize().into()
}
