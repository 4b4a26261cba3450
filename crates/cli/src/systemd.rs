//! Reports the state of the process to the service manager with sd_notify(3): datagrams to the
//! socket that `NOTIFY_SOCKET` names. systemd and compatible managers read them.
//!
//! Failures here never stop the engine. Without a manager nothing is sent, and a lost datagram is
//! only logged. Watchdog messages come from a network thread, so an engine whose network threads
//! are stuck is restarted.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::task::AbortHandle;

/// The service manager of this process, if it has one.
#[derive(Debug)]
pub(crate) struct Supervisor {
    manager: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// Returns the manager that the environment names.
    pub(crate) fn of_process() -> Self {
        let is_for_this_process =
            text_variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = text_variable("WATCHDOG_USEC")
            .filter(|_| is_for_this_process)
            .and_then(|micros| micros.parse().ok());
        Self::at_socket(
            variable("NOTIFY_SOCKET").as_deref(),
            watchdog.map(Duration::from_micros),
        )
    }

    /// Returns the manager at a socket: a path, or `@` and an abstract name. `watchdog` is the
    /// manager's longest wait for a watchdog message.
    pub(crate) fn at_socket(socket: Option<&OsStr>, watchdog: Option<Duration>) -> Self {
        let manager = socket.and_then(|name| match open_socket(name) {
            Ok((socket, address)) => socket
                .set_nonblocking(true)
                .ok()
                .map(|()| (socket, address)),
            Err(error) => {
                tracing::warn!(%error, "cannot open NOTIFY_SOCKET: the service manager gets no state of this process");
                None
            }
        });
        // Without a watchdog timeout, no watchdog messages are sent.
        Self {
            watchdog: watchdog.filter(|longest| manager.is_some() && !longest.is_zero()),
            manager,
        }
    }

    /// Reports that the engine accepts requests.
    pub(crate) fn report_ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", single_line(status)));
    }

    /// Reports that files are being reloaded. [`Supervisor::report_ready`] reports the end of the reload.
    pub(crate) fn report_reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// Reports that the engine drains.
    pub(crate) fn report_stopping(&self) {
        self.send("STOPPING=1\nSTATUS=draining");
    }

    /// Sends watchdog messages twice per watchdog timeout, until the returned value is dropped.
    /// Needs a runtime. Returns `None` if the manager has no watchdog.
    #[must_use]
    pub(crate) fn start_watchdog(&self) -> Option<WatchdogTask> {
        let period = self.watchdog? / 2;
        let (socket, address) = self.manager.as_ref()?;
        let socket = socket.try_clone().ok()?;
        let address = address.clone();
        let task = tokio::spawn(async move {
            loop {
                let _ = socket.send_to_addr(b"WATCHDOG=1", &address);
                tokio::time::sleep(period).await;
            }
        });
        Some(WatchdogTask(task.abort_handle()))
    }

    fn send(&self, what: &str) {
        let Some((socket, address)) = &self.manager else {
            return;
        };
        if let Err(error) = socket.send_to_addr(what.as_bytes(), address) {
            tracing::warn!(%error, "cannot write to NOTIFY_SOCKET: the service manager did not get the state of this process");
        }
    }
}

/// Sends watchdog messages until dropped.
#[derive(Debug)]
pub(crate) struct WatchdogTask(AbortHandle);

impl Drop for WatchdogTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns the value of an environment variable that is set and not empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn text_variable(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

fn open_socket(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    Ok((UnixDatagram::unbound()?, socket_address(name)?))
}

fn socket_address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt as _;
            SocketAddr::from_abstract_name(name)
        }
        #[cfg(not(target_os = "linux"))]
        Some(_) => Err(io::ErrorKind::Unsupported.into()),
        None => SocketAddr::from_pathname(name),
    }
}

/// Replaces line breaks, because a status has one line.
fn single_line(text: &str) -> String {
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(manager: &UnixDatagram) -> String {
        let mut datagram = [0; 512];
        let bytes = manager.recv(&mut datagram).unwrap();
        String::from_utf8(datagram[..bytes].to_vec()).unwrap()
    }

    fn manager(folder: &tempfile::TempDir) -> (UnixDatagram, std::path::PathBuf) {
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        (socket, path)
    }

    #[test]
    fn a_manager_hears_of_every_phase() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, path) = manager(&folder);
        let supervisor = Supervisor::at_socket(Some(path.as_os_str()), None);
        supervisor.report_ready("takes calls\non 127.0.0.1:1");
        assert_eq!(heard(&socket), "READY=1\nSTATUS=takes calls on 127.0.0.1:1");
        supervisor.report_reloading();
        let said = heard(&socket);
        let micros = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(micros.parse::<u64>().unwrap() > 0, "{said}");
        supervisor.report_stopping();
        assert_eq!(heard(&socket), "STOPPING=1\nSTATUS=draining");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_manager_may_listen_on_a_name_that_is_no_file() {
        use std::os::linux::net::SocketAddrExt as _;
        let name = format!("sealwire-test-{}", std::process::id());
        let socket =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Supervisor::at_socket(Some(OsStr::new(&format!("@{name}"))), None).report_stopping();
        assert_eq!(heard(&socket), "STOPPING=1\nSTATUS=draining");
    }

    #[tokio::test]
    async fn a_watchdog_hears_signs_of_life_until_they_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, path) = manager(&folder);
        let supervisor =
            Supervisor::at_socket(Some(path.as_os_str()), Some(Duration::from_millis(20)));
        let alive = supervisor.start_watchdog().unwrap();
        let socket = tokio::task::spawn_blocking(move || {
            for _ in 0..3 {
                assert_eq!(heard(&socket), "WATCHDOG=1");
            }
            socket
        });
        let socket = socket.await.unwrap();
        drop(alive);
        assert!(
            Supervisor::at_socket(Some(path.as_os_str()), None)
                .start_watchdog()
                .is_none(),
            "nobody waits"
        );
        drop(socket);
    }

    #[test]
    fn missing_manager_is_no_failure() {
        for socket in [
            None,
            Some("/nowhere/notify"),
            Some("@sealwire-nobody"),
            Some(&*"x".repeat(500)),
        ] {
            let supervisor =
                Supervisor::at_socket(socket.map(OsStr::new), Some(Duration::from_secs(1)));
            supervisor.report_ready("");
            supervisor.report_stopping();
        }
        assert!(
            Supervisor::at_socket(None, Some(Duration::from_secs(1)))
                .start_watchdog()
                .is_none()
        );
    }
}
