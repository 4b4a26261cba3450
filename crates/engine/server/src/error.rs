//! Errors during the start.

use std::io;
use std::net::SocketAddr;

use sealwire_audit::JournalError;
use sealwire_engine::jobs::error::RequestFailure;
use sealwire_engine::kek::KekError;
use sealwire_service::bearer::IssuerError;
use sealwire_store::StoreError;

use crate::tls::TlsError;

/// The reason why the engine did not start. Each error names what to correct.
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
    Crypto(#[from] RequestFailure),
    /// The audit log cannot be written.
    #[error("audit.folder: {0}")]
    Audit(#[from] JournalError),
    /// The thread that exports spans cannot start.
    #[error("the thread that sends traces cannot start: {0}")]
    Traces(#[source] io::Error),
    /// Certificates or keys of TLS are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The keys of a token issuer cannot be read.
    #[error(transparent)]
    Issuer(#[from] IssuerError),
    /// The address is in use, not an address of this machine, or its port requires privileges.
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
