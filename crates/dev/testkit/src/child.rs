//! Runs a test of this executable in a child process, which reports to its parent by lines on a
//! pipe.
//!
//! The pipe is the child's standard input. Standard output has lines of the test harness, and
//! standard error shows panics of the child.

use std::env;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, PipeReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use rustix::process::Signal;

/// Time after which a test that hangs fails. Longer than a database server can take to start on the
/// slowest machine.
pub const HANG: Duration = Duration::from_secs(300);

/// Returns the number of times that a child is killed: `SEALWIRE_KILL_ROUNDS`, or `default`.
pub fn rounds(default: u64) -> u64 {
    env::var("SEALWIRE_KILL_ROUNDS").map_or(default, |rounds| {
        rounds.parse().expect("a number of rounds")
    })
}

/// Returns the command that runs `test`, a path such as `embedded_crashes::child_process`, in a
/// child process.
pub fn command(test: &str) -> Command {
    running(
        Command::new(env::current_exe().expect("the path of this executable")),
        test,
    )
}

/// Like [`command`], with `SIGXFSZ` ignored: a write beyond the limit on file sizes returns an
/// error.
pub fn command_without_sigxfsz(test: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    shell.arg(env::current_exe().expect("the path of this executable"));
    running(shell, test)
}

fn running(mut command: Command, test: &str) -> Command {
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .stdout(Stdio::null());
    command
}

/// Starts a child and returns it with the lines that it reports.
pub fn start(mut command: Command) -> (Child, Reports) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let child = command.stdin(writer).spawn().expect("the child starts");
    // Dropping the command closes the parent's copy of the writing end, so the lines end with the
    // child.
    (child, Reports(BufReader::new(reader)))
}

/// The complete lines that a child reports. A line that a kill cuts short ends them.
pub struct Reports(BufReader<PipeReader>);

impl Iterator for Reports {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the pipe is read");
        line.strip_suffix('\n').map(str::to_owned)
    }
}

/// Reports one or more lines to the parent. Panics if the parent is gone, so no child outlives its
/// test.
pub fn report(lines: &str) {
    static PIPE: LazyLock<Mutex<File>> = LazyLock::new(|| {
        let pipe = io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .expect("standard input is open");
        Mutex::new(pipe.into())
    });
    let lines = format!("{lines}\n");
    PIPE.lock()
        .expect("an earlier report succeeded")
        .write_all(lines.as_bytes())
        .expect("the parent reads");
}

/// Returns true if a child ended by `SIGKILL`, and not by a panic or by passing its test.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}
