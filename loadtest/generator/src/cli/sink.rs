//! The `sink` command: serves as a responder that does no work, until it is stopped.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use super::Failure;
use crate::certs;
use crate::null_server::NullServer;

/// Arguments of `sink`.
#[derive(Debug, clap::Args)]
pub(super) struct SinkArgs {
    /// Address of the listener; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7543")]
    listen: String,
    /// Folder with ca.pem, server.pem and server-key.pem, as created by `sealwire dev`. A folder
    /// that does not exist is created, with temporary certificates
    #[arg(long, value_name = "DIR", default_value = "sealwire-dev")]
    folder: PathBuf,
    /// Make one of this many responses wrong, to test that clients detect it; 0: none
    #[arg(long, value_name = "N", default_value_t = 0)]
    wrong_every: u32,
    /// Exit when standard input closes
    #[arg(long, hide = true)]
    until_input_ends: bool,
}

pub(super) fn run(args: &SinkArgs) -> Result<(), Failure> {
    certs::make(&args.folder).map_err(|error| format!("{}: {error}", args.folder.display()))?;
    let mut null = NullServer::new(&args.folder, args.wrong_every)?;
    let listener =
        TcpListener::bind(&args.listen).map_err(|error| format!("{}: {error}", args.listen))?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "a responder that does no work listens on {}",
        listener.local_addr()?
    )?;
    out.flush()?;
    let input = std::io::stdin();
    Ok(null.serve(&listener, args.until_input_ends.then(|| input.as_fd()))?)
}
