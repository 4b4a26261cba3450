//! TLS to the database: one configured authority, verification of the host name, and files that are
//! read for each connection.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::options::{PostgresOptions, bad, unreadable};
use sealwire_store::StoreError;

/// Creates a connector from the options. Without a configured authority no server is trusted.
/// Blocks on file reads.
pub(super) fn connector(options: &PostgresOptions) -> Result<MakeRustlsConnect, StoreError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &options.ca {
        for certificate in certificates("postgres.ca", path)? {
            roots
                .add(certificate)
                .map_err(|_| bad("postgres.ca", "holds what is no certificate"))?;
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder
        .map_err(|_| bad("postgres.tls", "has no protocol version"))?
        .with_root_certificates(roots);
    let config = match (&options.client_certificate, &options.client_key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates("postgres.client_certificate", certificate)?;
            let pem = read("postgres.client_key", key)?;
            let key = PrivateKeyDer::from_pem_slice(&pem);
            let key = key.map_err(|_| bad("postgres.client_key", "is no unencrypted PEM key"))?;
            let config = builder.with_client_auth_cert(chain, key);
            config.map_err(|_| {
                bad(
                    "postgres.client_key",
                    "does not belong to postgres.client_certificate",
                )
            })?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn certificates(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let pem = read(key, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|_| bad(key, "is no PEM file"))?;
    if found.is_empty() {
        Err(bad(key, "holds no PEM certificate"))
    } else {
        Ok(found)
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path).map_err(|source| unreadable(key, path, &source))
}
