//! The engine under load, and the client certificate.
//!
//! The defaults are the files that `sealwire dev` creates in its folder, so that loading a local
//! engine needs no arguments.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sealwire_client::{ClientConfig as EngineClientConfig, Pem};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use sealwire_service::tls_files::{self, TlsFileError};

/// Name of the configuration file in a `sealwire dev` folder.
const CONFIG: &str = "sealwire.toml";

/// Address of the engine and credentials of the client.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connect {
    /// Folder made by `sealwire dev`; gives every value below that is not given
    #[arg(long, value_name = "DIR", default_value = "sealwire-dev")]
    pub(crate) folder: PathBuf,
    /// Address of the engine
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) connect: Option<String>,
    /// Name that the engine's certificate must carry [default: the host of its address]
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// Certificate authority of the engine's certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

/// The engine under load. Holds file names, not keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Target {
    /// Host and port.
    pub(crate) address: String,
    /// Name in the engine's certificate.
    pub(crate) server_name: String,
    /// Kind of the engine's state store, if the folder's configuration names it.
    pub(crate) state: Option<String>,
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl Connect {
    /// Returns the target from the arguments, or from the configuration in the folder.
    ///
    /// # Errors
    ///
    /// [`Fault::Failed`] if neither gives an address.
    pub(crate) fn target(&self) -> Result<Target, Fault> {
        let (listens, state) = configured(&self.folder)?;
        let address = self.connect.clone().or(listens).ok_or_else(|| {
            let folder = self.folder.display();
            Fault::Failed(format!(
                "no engine known: {folder} has no {CONFIG}; run `sealwire dev` in another shell, or give --connect"
            ))
        })?;
        let host = address
            .rsplit_once(':')
            .map_or(&*address, |(host, _)| host)
            .trim_matches(['[', ']']);
        let server_name = self.server_name.clone().unwrap_or_else(|| host.to_owned());
        let file = |given: &Option<PathBuf>, name: &str| {
            given.clone().unwrap_or_else(|| self.folder.join(name))
        };
        Ok(Target {
            server_name,
            // The folder's configuration does not describe an engine at another address.
            state: if self.connect.is_none() { state } else { None },
            ca: file(&self.ca, "ca.pem"),
            cert: file(&self.cert, "client.pem"),
            key: file(&self.key, "client-key.pem"),
            address,
        })
    }
}

/// Returns the listen address and the state store of the engine, from the configuration in the
/// folder.
fn configured(folder: &Path) -> Result<(Option<String>, Option<String>), Fault> {
    let file = folder.join(CONFIG);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((None, None)),
        Err(error) => return Err(Fault::Failed(format!("{}: {error}", file.display()))),
    };
    // The parser's error quotes the text, which can contain a secret, so only the file is named.
    let config: toml::Table = text
        .parse()
        .map_err(|_| Fault::Failed(format!("{}: is not TOML", file.display())))?;
    let string = |section: &str, key: &str| {
        let value = config.get(section)?.as_table()?.get(key)?.as_str()?;
        Some(value.to_owned())
    };
    // `embedded` is the engine's default.
    let state = string("state", "mode").or_else(|| Some("embedded".to_owned()));
    Ok((string("listen", "address"), state))
}

impl Target {
    /// Returns a target with the certificates of a folder, under the file names of `sealwire dev`.
    pub(crate) fn of_folder(folder: &Path, address: &str) -> Self {
        Self {
            address: address.to_owned(),
            server_name: "localhost".to_owned(),
            state: None,
            ca: folder.join("ca.pem"),
            cert: folder.join("client.pem"),
            key: folder.join("client-key.pem"),
        }
    }

    /// Reads certificates and key. The configuration allows only TLS 1.3, verifies the engine's
    /// certificate and sends the client certificate.
    ///
    /// # Errors
    ///
    /// [`Fault::Failed`] with the unusable file.
    pub(crate) fn tls(&self) -> Result<(Arc<ClientConfig>, ServerName<'static>), Fault> {
        let name = ServerName::try_from(self.server_name.clone()).map_err(|_| {
            Fault::Failed(format!(
                "{:?} is neither a DNS name nor an IP address; give --server-name",
                self.server_name
            ))
        })?;
        let roots = tls_files::authorities(&self.ca)?;
        let cert = tls_files::certificates(&self.cert)?;
        let key = tls_files::private_key(&self.key)?;
        let unusable = |error| TlsFileError::rejected(&self.cert, error);
        let config = ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_root_certificates(roots)
        .with_client_auth_cert(cert, key)
        .map_err(unusable)?;
        Ok((Arc::new(config), name))
    }
    /// Returns the configuration of a client that reads the certificate files again when they
    /// change.
    pub(crate) fn client(&self) -> EngineClientConfig {
        let [ca, cert, key] = [&self.ca, &self.cert, &self.key].map(|file| Pem::File(file.clone()));
        EngineClientConfig::new(&self.address, &self.server_name, ca, cert, key)
    }
}
