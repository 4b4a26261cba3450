//! TLS towards an upstream. The certificate is always verified. Authorities and identity come from
//! files that can change.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sealwire_service::tls_files::{ContentDigest, TlsFileError, client_config};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::{Stage, UpstreamError};
use super::{Protocol, Upstream};

/// Shortest time between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// TLS configuration of one upstream.
#[derive(Debug, Default)]
pub struct UpstreamTls(Mutex<Option<Loaded>>);

#[derive(Debug)]
struct Loaded {
    config: Arc<ClientConfig>,
    digest: ContentDigest,
    checked: Instant,
}

impl UpstreamTls {
    /// Returns the configuration, which is read again if a file has changed. Checks the files at
    /// most once per second, and blocks while it reads. If files become unusable, the error is
    /// logged and the old configuration stays.
    ///
    /// # Errors
    ///
    /// The files are unusable and were never loaded successfully.
    pub fn config(&self, upstream: &Upstream) -> Result<Arc<ClientConfig>, TlsFileError> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(loaded) = loaded
            .as_ref()
            .filter(|loaded| now - loaded.checked < CHECK_INTERVAL)
        {
            return Ok(Arc::clone(&loaded.config));
        }
        let digest = content_digest(upstream);
        match loaded.as_mut() {
            Some(loaded) => {
                loaded.checked = now;
                if loaded.digest != digest {
                    match load_config(upstream) {
                        Ok(config) => {
                            loaded.config = config;
                            loaded.digest = digest;
                        }
                        Err(error) => {
                            tracing::warn!(upstream = %upstream.name, %error, "cannot reload the TLS files; the old files stay in use")
                        }
                    }
                }
                Ok(Arc::clone(&loaded.config))
            }
            None => {
                let config = load_config(upstream)?;
                *loaded = Some(Loaded {
                    config: Arc::clone(&config),
                    digest,
                    checked: now,
                });
                Ok(config)
            }
        }
    }

    /// Performs the handshake over a connection.
    ///
    /// # Errors
    ///
    /// [`Stage::Files`] or [`Stage::Tls`].
    pub async fn connect(
        &self,
        upstream: &Upstream,
        tcp: TcpStream,
    ) -> Result<TlsStream<TcpStream>, UpstreamError> {
        let config = self
            .config(upstream)
            .map_err(|error| UpstreamError::before_sending(Stage::Files).with_cause(error))?;
        let name = ServerName::try_from(upstream.host.to_string())
            .map_err(|error| UpstreamError::before_sending(Stage::Tls).with_cause(error))?;
        let handshake = TlsConnector::from(config).connect(name, tcp).await;
        handshake.map_err(|error| UpstreamError::before_sending(Stage::Tls).with_cause(error))
    }
}

fn content_digest(upstream: &Upstream) -> ContentDigest {
    let identity = upstream.identity.as_ref();
    let files: [Option<&PathBuf>; 3] = [
        upstream.roots.as_ref(),
        identity.map(|(chain, _)| chain),
        identity.map(|(_, key)| key),
    ];
    ContentDigest::of(files.into_iter().flatten().map(PathBuf::as_path))
}

fn load_config(upstream: &Upstream) -> Result<Arc<ClientConfig>, TlsFileError> {
    // Without a file, no authority is trusted. The configuration requires a file.
    let identity = upstream.identity.as_ref();
    let identity = identity.map(|(chain, key)| (chain.as_path(), key.as_path()));
    let mut config = client_config(upstream.roots.as_deref(), identity)?;
    let h1 = b"http/1.1".to_vec();
    let h2 = b"h2".to_vec();
    config.alpn_protocols = match upstream.protocol {
        Protocol::Auto => vec![h2, h1],
        Protocol::Http1 => vec![h1],
        Protocol::Http2 => vec![h2],
    };
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_dev_ca::{Authority, Validity};

    #[tokio::test]
    async fn changed_roots_are_read_again_and_bad_ones_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let roots = dir.path().join("ca.pem");
        let mut upstream = super::super::pool::tests::upstream("localhost", 1, &[]);
        upstream.roots = Some(roots.clone());
        let tls = UpstreamTls::default();
        assert!(
            tls.config(&upstream)
                .unwrap_err()
                .to_string()
                .contains("ca.pem")
        );
        let write = |text: &str| {
            let new = dir.path().join("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, &roots).unwrap();
            if let Some(loaded) = tls.0.lock().unwrap().as_mut() {
                loaded.checked -= CHECK_INTERVAL;
            }
        };
        let authority = || Authority::create("test", Validity::days(2)).unwrap();
        write(authority().cert_pem());
        let first = tls.config(&upstream).unwrap();
        assert!(Arc::ptr_eq(&first, &tls.config(&upstream).unwrap()));
        write("no PEM");
        assert!(Arc::ptr_eq(&first, &tls.config(&upstream).unwrap()));
        write(authority().cert_pem());
        assert!(!Arc::ptr_eq(&first, &tls.config(&upstream).unwrap()));
    }
}
