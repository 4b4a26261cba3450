//! Options that name the credentials of a client, shared by the commands that load several engines.

use std::path::PathBuf;

use crate::fault::Fault;
use crate::target::{Connect, Target};

/// Files of the client, and the name of the engines.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct CredentialArgs {
    /// Folder made by `sealwire dev`; gives every file below that is not given
    #[arg(long, value_name = "DIR", default_value = "sealwire-dev")]
    folder: PathBuf,
    /// Name that the engines' certificates must carry [default: the host of each address]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Certificate authority of the engines' certificates
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl CredentialArgs {
    /// Returns the engine at an address, with these credentials.
    pub(super) fn target(&self, address: &str) -> Result<Target, Fault> {
        let connect = Connect {
            folder: self.folder.clone(),
            connect: Some(address.to_owned()),
            server_name: self.server_name.clone(),
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
        };
        connect.target()
    }
}
