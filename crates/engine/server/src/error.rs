//! Errors of the start.

use std::io;
use std::net::SocketAddr;

use sealwire_audit::JournalError;
use sealwire_engine::jobs::error::CallFailure;
use sealwire_engine::kek::KekError;
use sealwire_store::StoreError;

use crate::tls::TlsError;

/// Why the engine did not start. Each names what to mend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The key-encryption key cannot be read.
    #[error(transparent)]
    Kek(#[from] KekError),
    /// The apps cannot be loaded.
    #[error("state: {0}")]
    Store(#[from] StoreError),
    /// The crypto library failed.
    #[error("cryptography does not work here: {0}")]
    Crypto(#[from] CallFailure),
    /// The audit trail cannot be kept.
    #[error("audit.folder: {0}")]
    Audit(#[from] JournalError),
    /// No thread for spans.
    #[error("the thread that sends traces cannot start: {0}")]
    Traces(#[source] io::Error),
    /// Certificates or keys.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address is taken, not ours, or below 1024.
    #[error("{key}: cannot listen on {address}: {source}")]
    Bind {
        /// The configuration key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}
