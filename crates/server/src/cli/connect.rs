//! How a command reaches an engine.

use std::path::PathBuf;
use std::time::Duration;

use sealwire_client::{Client, ClientConfig, Endpoint, Pem};

use super::{Failure, folder};

/// Where the engine is, and who we are to it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct Connect {
    /// Folder made by `sealwire dev`; gives every value below that is not given
    #[arg(long, value_name = "DIR", default_value = folder::DEFAULT)]
    folder: PathBuf,
    /// Engine to call; of several, with commas between them or the option repeated, one that answers is called
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    connect: Vec<String>,
    /// Name that the certificate of each engine must carry [default: the host of its address]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Authority that the engine's certificate must come from
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Our certificate
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    timeout: u64,
}

impl Connect {
    /// Connects, and calls once to know that it works.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        let addresses = match &*self.connect {
            [] => vec![self.folder_address()?],
            given => given.to_vec(),
        };
        let endpoint = |address: &String| {
            let host = address.rsplit_once(':').map_or(&**address, |(host, _)| host).trim_matches(['[', ']']);
            Endpoint::new(address, self.server_name.as_deref().unwrap_or(host))
        };
        let file =
            |given: &Option<PathBuf>, name: &str| Pem::File(given.clone().unwrap_or_else(|| self.folder.join(name)));
        let (ca, cert) = (file(&self.ca, "ca.pem"), file(&self.cert, "client.pem"));
        let mut config = ClientConfig::new("", "", ca, cert, file(&self.key, "client-key.pem"));
        config.endpoints = addresses.iter().map(endpoint).collect();
        config.connections = 1;
        config.deadline = Duration::from_secs(self.timeout);
        Client::connect(config)
            .await
            .map_err(|error| format!("{}: {}", addresses.join(", "), super::chain(&error)).into())
    }

    /// Where the engine of the folder listens.
    fn folder_address(&self) -> Result<String, Failure> {
        let found = folder::listen_address(&self.folder)?.ok_or_else(|| {
            let folder = self.folder.display();
            format!("no engine known: {folder} has no {}; run `sealwire dev`, or give --connect", folder::CONFIG)
        })?;
        Ok(found.to_string())
    }

    /// Runs a command's calls to their end.
    pub(super) fn run<T>(&self, calls: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(calls)
    }
}
