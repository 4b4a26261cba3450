//! TLS towards clients. Certificate, key and client authorities come from files, which can change
//! while the relay runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use sealwire_service::tls_files::{
    ContentDigest, PEM_BYTES_MAX, TlsFileError, authorities, certificates, private_key, provider,
};
use sealwire_service::trusted_file::{self, FileKind};
use zeroize::Zeroizing;

/// Files of a listener's TLS.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// PEM file of the certificate chain.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
    /// PEM file of the authorities of client certificates. If set, a client needs a certificate.
    pub client_ca: Option<PathBuf>,
}

/// A TLS configuration that is reloaded when its files change.
#[derive(Debug)]
pub struct ServerTls {
    files: ServerFiles,
    current: Mutex<(Arc<ServerConfig>, ContentDigest)>,
}

impl ServerTls {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    ///
    /// The first file that cannot be used.
    pub fn load(files: ServerFiles) -> Result<Self, TlsFileError> {
        let digest = files.content_digest();
        let config = files.new_config()?;
        Ok(Self {
            files,
            current: Mutex::new((config, digest)),
        })
    }

    /// Returns the configuration for the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(
            &self
                .current
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .0,
        )
    }

    /// Reads the files again if one has changed. Returns true if the configuration was replaced.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// A file that cannot be used. The old configuration stays, and the next call tries again.
    pub fn reload_if_changed(&self) -> Result<bool, TlsFileError> {
        // Compute the digest before the files are read, so that a later change has another digest.
        let digest = self.files.content_digest();
        if self
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            == digest
        {
            return Ok(false);
        }
        let config = self.files.new_config()?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = (config, digest);
        Ok(true)
    }
}

impl ServerFiles {
    fn content_digest(&self) -> ContentDigest {
        ContentDigest::of(
            [
                Some(&self.certificate),
                Some(&self.key),
                self.client_ca.as_ref(),
            ]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path),
        )
    }

    fn new_config(&self) -> Result<Arc<ServerConfig>, TlsFileError> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsFileError::rejected(&self.certificate, error))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    Arc::new(authorities(file)?),
                    provider,
                )
                .build()
                .map_err(|error| TlsFileError::rejected(file, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(certificates(&self.certificate)?, private_key(&self.key)?)
            .map_err(|error| TlsFileError::rejected(&self.certificate, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }
}

/// Returns the time at which the first certificate of a PEM file expires, in seconds since 1970.
/// Returns `None` if the file cannot be read.
pub(crate) fn first_expiry(file: &Path) -> Option<i64> {
    let certificates = certificates(file).ok()?;
    let ends = certificates.iter().map(|certificate| {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        Some(certificate.validity().not_after.timestamp())
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().min()
}

/// Reads a text file that only its owner and group can read, and only its owner can change.
pub(crate) fn read_secret(file: &Path) -> Result<Zeroizing<String>, TlsFileError> {
    let mut bytes = trusted_file::read(file, FileKind::Secret, PEM_BYTES_MAX)?;
    let text = String::from_utf8(std::mem::take(&mut *bytes)).map(Zeroizing::new);
    text.map_err(|_| TlsFileError::rejected(file, "is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::SystemTime;

    use sealwire_dev_ca::{Authority, Leaf, Name, Usage, Validity};

    fn issue(authority: &Authority, files: &ServerFiles) {
        let leaf = Leaf {
            common_name: "relay".into(),
            names: vec![Name::Dns("relay.example".into())],
            usage: Usage::Server,
            validity: Validity::days(1),
        };
        let issued = authority.issue(&leaf).unwrap();
        replace(&files.certificate, &issued.cert_pem);
        replace(&files.key, issued.key_pem.expose());
    }

    /// Puts a new file in place, as operators and Kubernetes do.
    fn replace(file: &Path, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let new = file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, file).unwrap();
    }

    fn setup() -> (tempfile::TempDir, Authority, ServerFiles) {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", Validity::days(2)).unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("ca.pem"), authority.cert_pem()).unwrap();
        let files = ServerFiles {
            certificate: path("c.pem"),
            key: path("k.pem"),
            client_ca: Some(path("ca.pem")),
        };
        issue(&authority, &files);
        (dir, authority, files)
    }

    #[test]
    fn changed_files_are_read_again() {
        let (_dir, authority, files) = setup();
        let tls = ServerTls::load(files.clone()).unwrap();
        let first = tls.config();
        assert_eq!(first.alpn_protocols, [b"h2".to_vec(), b"http/1.1".to_vec()]);
        assert!(!tls.reload_if_changed().unwrap());
        issue(&authority, &files);
        assert!(tls.reload_if_changed().unwrap());
        assert!(!Arc::ptr_eq(&first, &tls.config()));
        assert!(!tls.reload_if_changed().unwrap());
    }

    #[test]
    fn the_first_expiry_of_a_file_is_that_of_any_of_its_certificates() {
        let (dir, authority, files) = setup();
        let now = SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64;
        let of_authority = first_expiry(&dir.path().join("ca.pem")).unwrap();
        let of_leaf = first_expiry(&files.certificate).unwrap();
        assert!(now < of_leaf && of_leaf < of_authority && of_authority <= now + 2 * 86_400);
        let chain = format!(
            "{}{}",
            authority.cert_pem(),
            fs::read_to_string(&files.certificate).unwrap()
        );
        replace(&files.certificate, &chain);
        assert_eq!(first_expiry(&files.certificate), Some(of_leaf));
        replace(&files.certificate, "no PEM");
        assert_eq!(first_expiry(&files.certificate), None);
        assert_eq!(first_expiry(&dir.path().join("absent.pem")), None);
    }

    #[test]
    fn bad_files_keep_the_old_configuration() {
        let (_dir, authority, files) = setup();
        let tls = ServerTls::load(files.clone()).unwrap();
        let first = tls.config();
        for text in ["", "no PEM", authority.key_pem().expose()] {
            replace(&files.key, text);
            let error = tls.reload_if_changed().unwrap_err().to_string();
            assert!(
                error.contains("k.pem") || error.contains("c.pem"),
                "{error}"
            );
            assert!(!error.contains("PRIVATE KEY"), "{error}");
            assert!(Arc::ptr_eq(&first, &tls.config()));
        }
        fs::remove_file(&files.key).unwrap();
        assert!(tls.reload_if_changed().is_err());
        issue(&authority, &files);
        fs::set_permissions(
            &files.key,
            std::os::unix::fs::PermissionsExt::from_mode(0o644),
        )
        .unwrap();
        let error = tls.reload_if_changed().unwrap_err().to_string();
        assert!(
            error.contains("k.pem") && error.contains("other users can read"),
            "{error}"
        );
        assert!(Arc::ptr_eq(&first, &tls.config()));
        issue(&authority, &files);
        assert!(tls.reload_if_changed().unwrap());
    }
}
