//! Connection of a command to an engine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sealwire_client::{Client, ClientConfig, Endpoint, Error, Pem};

use super::{Failure, folder};
use sealwire_config::Config;

/// Address of the engine, and the client certificate to use.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct Connect {
    /// Folder made by `sealwire dev`; supplies each value below that is not given
    #[arg(long, value_name = "DIR", default_value = folder::DEFAULT)]
    folder: PathBuf,
    /// Address of the engine, for `apps`, `collections` and `instances` that of its control listener. Separate several
    /// with commas or repeat the option; one that responds is used
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    connect: Vec<String>,
    /// Name that the certificate of each engine must carry [default: the host of its address]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// CA certificate that must have issued the engine's certificate
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    timeout: u64,
}

impl Connect {
    /// Connects as a client, and sends one request to check the connection.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        self.trust_folder()?;
        let addresses = self.addresses(|config| config.listen.address, "--connect")?;
        let named = |error: Error| -> Failure { format!("{}: {}", addresses.join(", "), super::chain(&error)).into() };
        Client::connect(self.config(&addresses, folder::CLIENT)).await.map_err(named)
    }

    /// Connects to the control listener as an operator.
    pub(super) async fn operator(&self) -> Result<Client, Failure> {
        self.trust_folder()?;
        let listens = |config: &Config| config.control.as_ref().map(|control| control.address);
        let addresses = self.addresses(listens, "--connect, or change a file of apps with --file")?;
        Client::connect(self.config(&addresses, folder::OPERATOR)).await.map_err(|error| {
            let (at, why) = (addresses.join(", "), super::chain(&error));
            let what = "start it with `sealwire serve` or `sealwire dev`, name another with --connect";
            match error {
                Error::Rpc(_) => error.into(),
                Error::Connect(_) => format!("no engine answers at {at} ({why}): {what}").into(),
                _ => Failure::from(format!("{at}: {why}")),
            }
        })
    }

    /// Checks the folder's owner and mode, but only if a value comes from the folder.
    fn trust_folder(&self) -> Result<(), Failure> {
        let is_used = self.connect.is_empty() || [&self.ca, &self.cert, &self.key].iter().any(|given| given.is_none());
        if is_used { folder::refuse_foreign(&self.folder) } else { Ok(()) }
    }

    /// Makes a client configuration for these addresses, with the folder's certificate `name` unless one is given.
    fn config(&self, addresses: &[String], name: &str) -> ClientConfig {
        let endpoint = |address: &String| {
            let host = address.rsplit_once(':').map_or(&**address, |(host, _)| host).trim_matches(['[', ']']);
            Endpoint::new(address, self.server_name.as_deref().unwrap_or(host))
        };
        let file =
            |given: &Option<PathBuf>, name: &str| Pem::File(given.clone().unwrap_or_else(|| self.folder.join(name)));
        let (ca, cert) = (file(&self.ca, "ca.pem"), file(&self.cert, &format!("{name}.pem")));
        let mut config = ClientConfig::new("", "", ca, cert, file(&self.key, &format!("{name}-key.pem")));
        config.endpoints = addresses.iter().map(endpoint).collect();
        config.connections = 1;
        config.deadline = Duration::from_secs(self.timeout);
        config
    }

    /// Returns the addresses from the arguments, or else the address in the folder's configuration.
    fn addresses(
        &self,
        listens: impl FnOnce(&Config) -> Option<SocketAddr>,
        instead: &str,
    ) -> Result<Vec<String>, Failure> {
        if !self.connect.is_empty() {
            return Ok(self.connect.clone());
        }
        let folder = self.folder.display();
        let config = folder::config(&self.folder)?.ok_or_else(|| {
            format!("no engine known: {folder} has no {}; run `sealwire dev`, or give {instead}", folder::CONFIG)
        })?;
        let address = listens(&config).ok_or_else(|| {
            format!(
                "{folder}/{} has no control.address, where changes are made; set one, or give {instead}",
                folder::CONFIG
            )
        })?;
        Ok(vec![address.to_string()])
    }

    /// Runs a command's requests to completion.
    pub(super) fn run<T>(&self, calls: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(calls)
    }
}
