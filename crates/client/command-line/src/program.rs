//! Steps that all programs share: arguments, signals, exit status.

use std::env;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use sealwire_service::output::{self, errln};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Failure, failure};

/// Exit status for invalid arguments, as the argument parser uses it.
const EXIT_USAGE: u8 = 2;
/// Exit status for an invalid configuration.
const EXIT_CONFIG: u8 = 64;

/// Returns the arguments of the process, and true if the command prints JSON.
///
/// # Errors
/// The exit status, if the arguments are invalid or ask for help. The error or the help is already
/// printed.
pub fn parse_arguments<A: CommandFactory + FromArgMatches>() -> Result<(A, bool), ExitCode> {
    let matches = A::command().try_get_matches();
    let parsed = matches.and_then(|matches| {
        Ok((
            A::from_arg_matches(&matches)?,
            failure::wants_json(&matches),
        ))
    });
    match parsed {
        Ok(parsed) => Ok(parsed),
        Err(error) if error.use_stderr() && env::args_os().any(|argument| argument == "--json") => {
            errln!("{}", failure::report_usage(&error));
            Err(ExitCode::from(EXIT_USAGE))
        }
        Err(error) => error.exit(),
    }
}

/// Prints the failure of a command, if there is one, and returns the exit status.
pub fn exit_status(done: Result<(), Failure>, as_json: bool) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if output::is_closed_output(&*failure) => {
            ExitCode::from(output::STATUS_CLOSED)
        }
        Err(failure) => {
            errln!("{}", failure::report(&*failure, as_json));
            if failure.is::<failure::InvalidConfig>() {
                ExitCode::from(EXIT_CONFIG)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Receives SIGTERM and SIGINT.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Registers the signals. Afterwards they do not end the process by themselves.
    ///
    /// # Errors
    /// A signal cannot be registered.
    pub fn listen() -> Result<Self, Failure> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for one of the signals.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }

    /// Waits for the end of a drain, or for a second signal.
    ///
    /// # Errors
    /// The second signal arrived before the end of the drain.
    pub async fn unless_again(&mut self, drained: impl Future<Output = ()>) -> Result<(), Failure> {
        tokio::select! {
            () = drained => Ok(()),
            () = self.next() => Err("stopped by a second signal: running requests are lost".into()),
        }
    }
}
