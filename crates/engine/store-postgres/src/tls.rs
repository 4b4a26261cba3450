//! TLS to the database, with one configured authority and verification of the host name. Files are
//! read for each connection.

use sealwire_service::tls_files::{TlsFileError, client_config};
use sealwire_store::StoreError;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::options::{PostgresOptions, invalid_setting};

/// Creates a connector from the options. Without a configured authority no server is trusted.
/// Blocks on file reads.
pub(super) fn build_connector(options: &PostgresOptions) -> Result<MakeRustlsConnect, StoreError> {
    let identity = options
        .client_certificate
        .as_deref()
        .zip(options.client_key.as_deref());
    let config = client_config(options.ca.as_deref(), identity);
    Ok(MakeRustlsConnect::new(
        config.map_err(|error| file_error(options, &error))?,
    ))
}

/// Converts an error of a file. The result names the setting of the file.
fn file_error(options: &PostgresOptions, error: &TlsFileError) -> StoreError {
    let file = error.file();
    let key = if options.client_key.as_deref() == Some(file) {
        "postgres.client_key"
    } else if options.client_certificate.as_deref() == Some(file) {
        "postgres.client_certificate"
    } else {
        "postgres.ca"
    };
    invalid_setting(key, &error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use sealwire_testkit::Certificates;

    use super::*;

    #[test]
    fn client_keys_are_secret_files() {
        let folder = tempfile::tempdir().unwrap();
        let made = Certificates::make(folder.path(), "certified").unwrap();
        let options = PostgresOptions {
            ca: Some(made.ca.clone()),
            client_certificate: Some(made.client.clone()),
            client_key: Some(made.client_key.clone()),
            ..PostgresOptions::new("postgres://certified@localhost/db")
        };
        let key = fs::read_to_string(&made.client_key).unwrap();
        let padded = format!("{key}{}", "\n".repeat(5 << 20));
        let cases = [
            (0o600, key.as_str(), ""),
            (0o644, key.as_str(), "other users can read"),
            (0o620, key.as_str(), "its group can change it"),
            (0o600, padded.as_str(), "at most"),
            (0o600, "no PEM", "private key"),
        ];
        for (mode, text, expected) in cases {
            fs::write(&made.client_key, text).unwrap();
            fs::set_permissions(&made.client_key, Permissions::from_mode(mode)).unwrap();
            let error = build_connector(&options)
                .err()
                .map_or_else(String::new, |error| error.to_string());
            assert_eq!(error.is_empty(), expected.is_empty(), "{mode:o}: {error}");
            assert!(error.contains(expected), "{mode:o}: {error}");
            assert!(!error.contains("BEGIN"), "{mode:o}: {error}");
        }
    }
}
