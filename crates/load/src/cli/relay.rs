//! The `relay` command: delays the bytes between two programs, until standard input closes.

use std::io::{self, Write as _};

use super::Failure;
use crate::delay::{Relay, milliseconds};
use crate::results::Delay;
use sealwire_service::output::outln;

/// Examples at the end of `--help`.
const EXAMPLES: &str = "\
Example:
  Put a millisecond between an engine and PostgreSQL on loopback. The first line of output has the address for the engine:
    sealwire-load relay --connect 127.0.0.1:5432 --delay 1

`loadtest/run vault-mix --state-delay 1` does so for its engines.";

/// Arguments of `relay`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct RelayArgs {
    /// Address that connections are relayed to
    #[arg(long, value_name = "HOST:PORT")]
    connect: String,
    /// Delay of each round trip, half of it in each direction
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    delay: f64,
    /// Delay each round trip by a further random time from 0 to this
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = milliseconds)]
    jitter: f64,
}

pub(super) fn run(args: &RelayArgs) -> Result<(), Failure> {
    let relay = Relay::start(
        &args.connect,
        Delay {
            ms: args.delay,
            jitter_ms: args.jitter,
        },
    )?;
    outln!("{}", relay.address());
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
