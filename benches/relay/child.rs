//! Child processes: this program runs itself again with [`SERVE`], a role and a file or an address.
//! The child prints its address on standard output and ends when its standard input does, so it
//! never outlives the run.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sealwire_benches::thread_cpu;

/// The hidden argument.
pub(crate) const SERVE: &str = "--serve";

/// Raises the limit of open files to its maximum, for this process and its children.
pub(crate) fn raise_file_limit() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?)
}

/// A running server in a process of its own.
#[derive(Debug)]
pub(crate) struct ServerChild {
    process: Child,
    /// Its address.
    pub(crate) address: SocketAddr,
}

impl ServerChild {
    /// Starts a server and waits until it prints its address.
    pub(crate) fn start(role: &str, argument: &str) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([SERVE, role, argument])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let output = process
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no output"))?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line
            .trim()
            .parse()
            .map_err(|_| io::Error::other(format!("the {role} did not start")))?;
        Ok(Self { process, address })
    }

    /// Returns the CPU time of all its threads that have not ended.
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        thread_cpu::of_process(self.process.id(), "")
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident(&self) -> io::Result<f64> {
        self.status("VmRSS:")
    }

    /// Returns the peak of the resident memory in bytes since [`Self::reset_peak`].
    pub(crate) fn peak(&self) -> io::Result<f64> {
        self.status("VmHWM:")
    }

    /// Sets the peak of the resident memory to its present value.
    pub(crate) fn reset_peak(&self) -> io::Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.process.id()), "5")
    }

    fn status(&self, name: &str) -> io::Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib: Option<f64> = line
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|kib| kib.parse().ok());
        kib.map(|kib| kib * 1_024.0)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "status"))
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        // Not only by the end of its input: a run that failed must not wait for a server that waits
        // for the run.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
