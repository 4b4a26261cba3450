//! Arguments that describe a connection to an engine, and the connection itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sealwire_client::{Client, ClientConfig, Endpoint, Error, ErrorCode, Pem};

use crate::dev_folder::{self, Address, Listener};
use crate::failure::RequestFailure;
use crate::{Failure, chain};

/// Pause before a retry if the engine does not name one.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Arguments for the address of the engine and the client certificate.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectArgs {
    /// Folder created by `sealwire dev`; supplies each value below that is not given
    #[arg(long, value_name = "DIR", default_value = dev_folder::DEFAULT_PATH)]
    folder: PathBuf,
    /// Address of the engine; for `apps`, `collections`, `instances`, `keys`, `kek` and `root`, the
    /// address of its control listener. Separate several addresses with commas or repeat the
    /// option; an address that responds is used
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    connect: Vec<String>,
    /// Name that the certificate of each engine must contain [default: the host of its address]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Certificate of the CA that issued the engine's certificate
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

impl ConnectArgs {
    /// Returns true if an option names an engine, its folder or a certificate.
    pub fn is_given(&self) -> bool {
        let files = [&self.ca, &self.cert, &self.key];
        !self.connect.is_empty()
            || files.iter().any(|given| given.is_some())
            || self.folder.as_os_str() != dev_folder::DEFAULT_PATH
    }

    /// Returns the files that a connection reads, of a client or an operator. Some of them can be
    /// missing.
    pub fn files(&self) -> Vec<PathBuf> {
        let given = [&self.ca, &self.cert, &self.key]
            .into_iter()
            .flatten()
            .cloned();
        let names = [dev_folder::CLIENT_CERT, dev_folder::OPERATOR_CERT].into_iter();
        let names = names.flat_map(|name| [format!("{name}.pem"), format!("{name}-key.pem")]);
        let of_folder = names
            .chain(["ca.pem".to_owned()])
            .map(|name| self.folder.join(name));
        given.chain(of_folder).collect()
    }

    /// Connects as a client, and sends one request to check the connection.
    pub async fn client(&self) -> Result<Client, Failure> {
        self.check_folder()?;
        let addresses = self.engine_addresses(Listener::Data, "--connect")?;
        Client::connect(self.config(&addresses, dev_folder::CLIENT_CERT))
            .await
            .map_err(|error| {
                RequestFailure::failure(
                    format!("{}: {}", addresses.join(", "), chain(&error)),
                    error,
                )
            })
    }

    /// Connects to the control listener as an operator.
    pub async fn operator(&self) -> Result<Client, Failure> {
        self.operator_with(|_| ()).await
    }

    /// Connects to the control listener as an operator, with a changed configuration of the client.
    pub async fn operator_with(
        &self,
        change: impl FnOnce(&mut ClientConfig),
    ) -> Result<Client, Failure> {
        self.check_folder()?;
        let addresses = self.engine_addresses(
            Listener::Control,
            "--connect, or change a file of apps with --file",
        )?;
        let mut config = self.config(&addresses, dev_folder::OPERATOR_CERT);
        change(&mut config);
        Client::connect(config).await.map_err(|error| {
            let addresses = addresses.join(", ");
            let cause = chain(&error);
            let advice = "start one with `sealwire serve` or `sealwire dev`, or give another address with --connect";
            let text = match error {
                Error::Rpc(_) => return error.into(),
                Error::Connect(_) => format!("no engine answers at {addresses} ({cause}): {advice}"),
                _ => format!("{addresses}: {cause}"),
            };
            RequestFailure::failure(text, error)
        })
    }

    /// Checks the folder's owner and mode, but only if a value comes from the folder.
    fn check_folder(&self) -> Result<(), Failure> {
        let is_folder_used = self.connect.is_empty()
            || [&self.ca, &self.cert, &self.key]
                .iter()
                .any(|given| given.is_none());
        if is_folder_used {
            dev_folder::reject_untrusted(&self.folder)
        } else {
            Ok(())
        }
    }

    /// Creates the client configuration for these addresses. Uses the certificate `cert_name` of
    /// the folder unless the arguments give a certificate.
    fn config(&self, addresses: &[String], cert_name: &str) -> ClientConfig {
        let mut config = ClientConfig::new(
            "",
            "",
            self.pem_file(self.ca.as_deref(), "ca.pem"),
            self.pem_file(self.cert.as_deref(), &format!("{cert_name}.pem")),
            self.pem_file(self.key.as_deref(), &format!("{cert_name}-key.pem")),
        );
        config.endpoints = addresses
            .iter()
            .map(|address| self.endpoint(address))
            .collect();
        config.connections = 1;
        config.deadline = Duration::from_secs(self.timeout);
        config
    }

    /// Returns the given file, or a file of the folder.
    fn pem_file(&self, given: Option<&Path>, default: &str) -> Pem {
        Pem::File(given.map_or_else(|| self.folder.join(default), Path::to_owned))
    }

    fn endpoint(&self, address: &str) -> Endpoint {
        let host = address
            .rsplit_once(':')
            .map_or(address, |(host, _)| host)
            .trim_matches(['[', ']']);
        Endpoint::new(address, self.server_name.as_deref().unwrap_or(host))
    }

    /// Returns the addresses from the arguments, or else the address of the folder's engine.
    /// `alternative` completes the error messages: "give ...".
    fn engine_addresses(
        &self,
        listener: Listener,
        alternative: &str,
    ) -> Result<Vec<String>, Failure> {
        if !self.connect.is_empty() {
            return Ok(self.connect.clone());
        }
        let folder = self.folder.display();
        let file = dev_folder::CONFIG_FILE;
        match dev_folder::listener_address(&self.folder, listener)? {
            Address::At(address) => Ok(vec![address]),
            Address::NoEngine => Err(format!(
                "the address of the engine is not known: {folder} has no {file}; run `sealwire dev`, or give {alternative}"
            )
            .into()),
            Address::NotServed => Err(format!(
                "{folder}/{file} has no {}.address, which changes need; set it, or give {alternative}",
                listener.table()
            )
            .into()),
        }
    }

    /// Runs the requests of a command on a new runtime.
    pub fn run<T>(&self, requests: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(requests)
    }
}

/// Returns the pause before a retry, or `None` if a retry cannot succeed.
pub fn retry_pause(error: &Error) -> Option<Duration> {
    match error {
        Error::Rpc(error) => match error.code {
            ErrorCode::Overloaded | ErrorCode::Unavailable => Some(
                error
                    .retry_after_ms
                    .map_or(RETRY_PAUSE, |ms| Duration::from_millis(ms.into())),
            ),
            _ => None,
        },
        Error::Connect(_) | Error::Disconnected { .. } => Some(RETRY_PAUSE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use sealwire_client::RpcError;

    use super::*;

    #[test]
    fn jobs_retry_temporary_errors_only() {
        let rpc = |code| Error::Rpc(RpcError::new(code, "why"));
        let soon = RpcError::new(ErrorCode::Overloaded, "why").retry_after_ms(20);
        for (error, expected) in [
            (Error::Rpc(soon), Some(Duration::from_millis(20))),
            (rpc(ErrorCode::Overloaded), Some(RETRY_PAUSE)),
            (rpc(ErrorCode::Unavailable), Some(RETRY_PAUSE)),
            (
                Error::Connect(Arc::new(io::ErrorKind::ConnectionRefused.into())),
                Some(RETRY_PAUSE),
            ),
            (
                Error::Disconnected {
                    why: "reset".into(),
                },
                Some(RETRY_PAUSE),
            ),
            (rpc(ErrorCode::BadRequest), None),
            (rpc(ErrorCode::Forbidden), None),
            (rpc(ErrorCode::Cancelled), None),
            (rpc(ErrorCode::Internal), None),
            (Error::Deadline, None),
            (Error::Config("none".into()), None),
        ] {
            assert_eq!(retry_pause(&error), expected, "{error}");
        }
    }
}
