//! A moto server on loopback, which speaks the protocols of AWS. `.ci/setup` installs it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::child::HANG;
use crate::{Certificates, free_ports};

/// A moto server on a port of 127.0.0.1, stopped when this value is dropped.
#[derive(Debug)]
pub struct Moto {
    port: u16,
    tls: bool,
    log: PathBuf,
    child: Child,
}

/// A response of the server.
#[derive(Debug)]
pub struct MotoResponse {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

impl Moto {
    /// Starts a server that logs into `folder`, with TLS if certificates are given.
    ///
    /// # Errors
    /// If the program is missing or does not start.
    pub fn start(folder: &Path, certificates: Option<&Certificates>) -> io::Result<Self> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../../target/interop-venv/bin/moto_server");
        if !program.exists() {
            return Err(io::Error::other(format!(
                "{} is missing: run .ci/setup",
                program.display()
            )));
        }
        let [port] = free_ports();
        let log = folder.join("moto.log");
        let out = File::create(&log)?;
        let mut command = Command::new(program);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        if let Some(certificates) = certificates {
            command
                .arg("--ssl")
                .arg("--ssl-cert")
                .arg(&certificates.server)
                .arg("--ssl-key")
                .arg(&certificates.server_key);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()?;
        let mut moto = Self {
            port,
            tls: certificates.is_some(),
            log,
            child,
        };
        await_listener(&mut moto.child, port)?;
        Ok(moto)
    }

    /// Returns the URL of the server, without a path.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Sends a request of `service`, without TLS and without a valid signature, which moto does not
    /// check by default.
    ///
    /// # Errors
    /// If the response is not HTTP.
    pub fn request(
        &self,
        service: &str,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> io::Result<MotoResponse> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port))?;
        socket.set_read_timeout(Some(HANG))?;
        socket.set_write_timeout(Some(HANG))?;
        let kind = if service == "s3" {
            "application/octet-stream"
        } else {
            "application/x-www-form-urlencoded"
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/{service}/aws4_request, \
             SignedHeaders=host, Signature=0\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        socket.write_all(head.as_bytes())?;
        socket.write_all(body)?;
        let mut response = Vec::new();
        socket.read_to_end(&mut response)?;
        let odd = || io::Error::other("moto's response is not HTTP");
        let end = response
            .windows(4)
            .position(|bytes| bytes == b"\r\n\r\n")
            .ok_or_else(odd)?;
        let status = std::str::from_utf8(&response[..end])
            .ok()
            .and_then(|head| head.split(' ').nth(1)?.parse().ok());
        Ok(MotoResponse {
            status: status.ok_or_else(odd)?,
            body: response.split_off(end + 4),
        })
    }
}

/// Waits until `child` listens on a port of 127.0.0.1. If another process listens there, `child`
/// ends, which is an error.
fn await_listener(child: &mut Child, port: u16) -> io::Result<()> {
    let start = Instant::now();
    while !is_listener(child.id(), port)? {
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!(
                "moto ended with {status}: another server can have its port"
            )));
        }
        if start.elapsed() > HANG {
            return Err(io::Error::other("moto did not start"));
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Returns true if the process listens on a port of 127.0.0.1. A connection would not tell which
/// process accepts it.
fn is_listener(process: u32, port: u16) -> io::Result<bool> {
    const LISTENS: &str = "0A";
    let local = format!("0100007F:{port:04X}");
    let sockets = fs::read_to_string("/proc/net/tcp")?;
    let listener = sockets.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields.get(1) == Some(&&*local) && fields.get(3) == Some(&LISTENS))
            .then(|| fields.get(9).copied())?
    });
    let Some(inode) = listener else {
        return Ok(false);
    };
    let name = PathBuf::from(format!("socket:[{inode}]"));
    // The process can have ended.
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return Ok(false);
    };
    Ok(files
        .flatten()
        .any(|file| fs::read_link(file.path()).is_ok_and(|target| target == name)))
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = writeln!(
                io::stderr(),
                "{}",
                fs::read_to_string(&self.log).unwrap_or_default()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_of_another_process_is_not_the_childs() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        assert!(is_listener(std::process::id(), port).expect("reads"));
        let mut child = Command::new("sleep").arg("0.2").spawn().expect("a child");
        let error = await_listener(&mut child, port).expect_err("the child does not listen");
        assert!(
            error
                .to_string()
                .contains("another server can have its port"),
            "{error}"
        );
        drop(listener);
        assert!(!is_listener(std::process::id(), port).expect("reads"));
    }
}
