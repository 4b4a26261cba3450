//! What `dear` and `floods` share: the engine that is measured, which can be another build of the
//! program, and ratios.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::child::{EngineChild, Folder};

/// Longest wait for an engine, a response or a handshake, which turns a hang into an error.
pub(crate) const HANG: Duration = Duration::from_secs(60);
/// Limit for a ratio.
const RATIO_MAX: f64 = 1.5;

/// Returns the program that the value of `--program` names; `None` for the engine of this program.
pub(crate) fn named_program(value: &str) -> Option<PathBuf> {
    (value != "this").then(|| value.into())
}

/// Returns ratios as the cells of a table row; one above the limit is bold.
pub(crate) fn ratio_cells(ratios: Option<[f64; 3]>) -> String {
    let cell = |ratio: f64| {
        if ratio > RATIO_MAX {
            format!("**{ratio:.2}**")
        } else {
            format!("{ratio:.2}")
        }
    };
    ratios.map_or_else(|| " |  | ".into(), |ratios| ratios.map(cell).join(" | "))
}

/// The engine that is measured.
pub(crate) struct MeasuredEngine {
    /// The program's path, or `this`.
    pub(crate) name: String,
    /// Address for requests.
    pub(crate) address: SocketAddr,
    _own: Option<EngineChild>,
    other: Option<Child>,
}

impl MeasuredEngine {
    /// Starts the program, or without one the engine of this program, and waits until it listens.
    pub(crate) fn start(folder: &Folder, program: Option<&PathBuf>) -> io::Result<Self> {
        let Some(program) = program else {
            let own = EngineChild::start(folder, &[])?;
            return Ok(Self {
                name: "this".into(),
                address: own.address,
                _own: Some(own),
                other: None,
            });
        };
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let (address, admin) = (free()?, free()?);
        let config = folder.path().join("program.toml");
        let text = format!(
            "[listen]\naddress = \"{address}\"\n[admin]\naddress = \"{admin}\"\n[state]\nmode = \"stateless\"\n\
             [audit]\nfolder = \"\"\n"
        );
        fs::write(&config, text)?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let engine = Self {
            name: program.display().to_string(),
            address,
            _own: None,
            other: Some(command.spawn()?),
        };
        let end = Instant::now() + HANG;
        while TcpStream::connect(address).is_err() {
            if Instant::now() > end {
                return Err(io::Error::other(format!(
                    "{} does not listen",
                    program.display()
                )));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(engine)
    }
}

impl Drop for MeasuredEngine {
    fn drop(&mut self) {
        if let Some(mut child) = self.other.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
