//! Runs a load in one or several processes. Each process has its own connections and its share of
//! the requests. Their counts are added.
//!
//! A child reads its load from standard input, reports when it is ready, and starts on command, so
//! that all children measure the same window. A child exits when its standard input closes, because
//! no parent is left to read its results.

use std::io::{self, BufRead as _, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::generator;
use crate::load::{ArrivalRule, Load};
use crate::progress::Live;
use crate::session::Session;
use crate::worker_result::Part;

const READY: &str = "ready";

/// Input of a child process.
#[derive(Serialize, Deserialize)]
struct Task {
    load: Load,
    /// Print progress lines.
    live: bool,
}

/// Runs a load to its end. With `live`, the first process prints one line per second.
pub(crate) fn run(load: &Load, processes: u32, live: bool) -> Result<Part, Fault> {
    if processes <= 1 {
        return alone(load, Session::open(load)?, live);
    }
    // Lines of all children arrive on one channel in order of time: the failure of one child ends
    // the whole load.
    let (say, said) = channel();
    let mut children = (0..processes)
        .map(|number| {
            Process::start(
                &Task {
                    load: share(load, processes, number),
                    live: live && number == 0,
                },
                &say,
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    children.iter().try_for_each(|_| ready(&line(&said)?))?;
    for child in &mut children {
        writeln!(child.input)?;
    }
    let mut all = part(&line(&said)?)?;
    for _ in 1..processes {
        all.add(&part(&line(&said)?)?);
    }
    Ok(all)
}

/// Returns the next line from any child.
fn line(said: &Receiver<io::Result<String>>) -> Result<String, Fault> {
    Ok(said.recv().map_err(io::Error::other)??)
}

fn ready(line: &str) -> Result<(), Fault> {
    match line {
        READY => Ok(()),
        line => Err(part(line)
            .err()
            .unwrap_or_else(|| Fault::Failed("a process was not ready".to_owned()))),
    }
}

fn part(line: &str) -> Result<Part, Fault> {
    serde_json::from_str::<Result<Part, Fault>>(line).map_err(io::Error::from)?
}

fn alone(load: &Load, session: Session, live: bool) -> Result<Part, Fault> {
    let (live, printer) = if live {
        Some(Live::start()).unzip()
    } else {
        (None, None)
    };
    // The printing thread ends when the load drops its sender.
    let part = generator::run(load, session, live);
    printer.map(std::thread::JoinHandle::join);
    part
}

/// Returns the share of one of several processes.
fn share(load: &Load, processes: u32, number: u32) -> Load {
    let of = |all: u32| all / processes + u32::from(number < all % processes);
    let drive = match load.drive {
        ArrivalRule::Open { per_s, arrivals } => ArrivalRule::Open {
            per_s: per_s / f64::from(processes),
            arrivals,
        },
        ArrivalRule::Closed { callers } => ArrivalRule::Closed {
            callers: of(callers),
        },
    };
    Load {
        drive,
        connections: of(load.connections),
        seed: load.seed + (u64::from(number) << 32),
        ..load.clone()
    }
}

/// The parent's view of a child process.
struct Process {
    child: Child,
    input: ChildStdin,
}

impl Process {
    /// Starts a child, whose two lines go to `say`: a ready message, then its results or its fault.
    fn start(task: &Task, say: &Sender<io::Result<String>>) -> Result<Self, Fault> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("part")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Fault::Failed("a process without its pipes".to_owned()));
        };
        writeln!(
            input,
            "{}",
            serde_json::to_string(task).map_err(io::Error::from)?
        )?;
        let say = say.clone();
        thread::spawn(move || {
            let mut lines = BufReader::new(output).lines();
            for _ in 0..2 {
                let ended = || Err(io::Error::other("one of the processes ended early"));
                let line = lines.next().unwrap_or_else(ended);
                let is_last = line.is_err();
                if say.send(line).is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Self { child, input })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a child process. Writes its results or its fault to standard output.
pub(crate) fn child() -> Result<(), Fault> {
    let mut task = String::new();
    io::stdin().read_line(&mut task)?;
    let task: Task = serde_json::from_str(&task).map_err(io::Error::from)?;
    let begin = until_input_ends();
    let outcome = Session::open(&task.load).and_then(|session| {
        writeln!(io::stdout(), "{READY}")?;
        begin.recv().map_err(io::Error::other)?;
        alone(&task.load, session, task.live)
    });
    writeln!(
        io::stdout(),
        "{}",
        serde_json::to_string(&outcome).map_err(io::Error::from)?
    )?;
    Ok(())
}

/// Exits this process when standard input closes. Returns a receiver of the remaining lines.
#[expect(
    clippy::disallowed_methods,
    reason = "no call to drain, no key to wipe"
)]
fn until_input_ends() -> Receiver<String> {
    let (say, said) = channel();
    thread::spawn(move || {
        io::stdin()
            .lines()
            .map_while(Result::ok)
            .for_each(|line| drop(say.send(line)));
        std::process::exit(1)
    });
    said
}
