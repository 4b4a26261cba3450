//! A child process that outlives the owner of a server until the server is removed.
//!
//! The watchdog reads from a pipe to which nobody writes. The pipe ends when its owner closes it or
//! dies, even by SIGKILL. Then the watchdog stops every process that works in the server's folder,
//! and removes the folder. The watchdog runs as the server's user, who can see the working folders
//! of those processes. Root in a container sometimes cannot.

use std::io;
use std::path::Path;
use std::process::{Child, Stdio};

use super::user::User;

/// `$1` is the folder, with the server's files in `data`. The clean stop releases shared memory.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
read -r _
mine() {
    pids=
    for process in /proc/[0-9]*; do
        [ "$process/cwd" -ef "$1/data" ] && pids="$pids ${process#/proc/}"
    done
    [ -n "$pids" ]
}
mine "$1" && kill -CONT $pids
mine "$1" && kill -QUIT $pids
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    mine "$1" || break
    sleep 0.1
done
while mine "$1"; do
    kill -KILL $pids
    sleep 0.1
done
rm -rf -- "$1"
"#;

#[derive(Debug)]
pub(super) struct Watchdog(Child);

impl Watchdog {
    /// Starts a watchdog over a folder that the user owns.
    pub(super) fn start(user: User, folder: &Path) -> io::Result<Self> {
        let mut command = user.command(Path::new("/bin/sh"));
        command.args(["-c", SCRIPT, "watchdog"]).arg(folder);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// Makes the watchdog remove everything now, and waits until it has.
    pub(super) fn release(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
