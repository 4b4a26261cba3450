//! TLS to the database: one configured authority, verification of the host name, and files that are
//! read for each connection.

use sealwire_service::tls_files::{TlsFileError, client_config};
use sealwire_store::StoreError;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::options::{PostgresOptions, bad};

/// Creates a connector from the options. Without a configured authority no server is trusted.
/// Blocks on file reads.
pub(super) fn connector(options: &PostgresOptions) -> Result<MakeRustlsConnect, StoreError> {
    let identity = options
        .client_certificate
        .as_deref()
        .zip(options.client_key.as_deref());
    let config = client_config(options.ca.as_deref(), identity);
    Ok(MakeRustlsConnect::new(
        config.map_err(|error| bad_file(options, &error))?,
    ))
}

/// Names the setting of the file that cannot be used.
fn bad_file(options: &PostgresOptions, error: &TlsFileError) -> StoreError {
    let file = error.file();
    let key = if options.client_key.as_deref() == Some(file) {
        "postgres.client_key"
    } else if options.client_certificate.as_deref() == Some(file) {
        "postgres.client_certificate"
    } else {
        "postgres.ca"
    };
    bad(key, &error.to_string())
}
