//! The unit names flags, paths and times that the program has, and the program tells a manager what
//! the unit says it will.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sealwire_settings::Config;
use sealwire_settings::Limits;

use crate::operations::guide::free_ports;
use crate::operations::{read, repository};

const UNIT: &str = "ops/systemd/sealwire.service";
const PROGRAM: &str = env!("CARGO_BIN_EXE_sealwire");

/// Returns every value of a key.
fn values(unit: &str, key: &str) -> Vec<String> {
    unit.lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        .map(str::to_owned)
        .collect()
}

fn value(unit: &str, key: &str) -> String {
    let [value] = &values(unit, key)[..] else {
        panic!("{key} is not there once")
    };
    value.clone()
}

/// Checks that the program accepts these arguments, which name a subcommand and its options.
pub(crate) fn takes(arguments: &[&str]) {
    let help = Command::new(PROGRAM)
        .args([arguments[0], "--help"])
        .output()
        .unwrap();
    assert!(
        help.status.success(),
        "there is no `sealwire {}`",
        arguments[0]
    );
    let help = String::from_utf8(help.stdout).unwrap();
    for option in arguments
        .iter()
        .filter(|argument| argument.starts_with("--"))
    {
        assert!(
            help.contains(option),
            "sealwire {} has no {option}",
            arguments[0]
        );
    }
}

#[test]
fn the_unit_names_what_the_program_has() {
    let unit = read(UNIT);
    let command = value(&unit, "ExecStart");
    let words: Vec<_> = command.split(' ').collect();
    assert_eq!(words[0], "/usr/bin/sealwire");
    takes(&words[1..]);
    assert_eq!(
        words.last().unwrap().rsplit_once('/').unwrap().0,
        format!("/etc/{}", value(&unit, "ConfigurationDirectory"))
    );
    assert_eq!(
        value(&unit, "WorkingDirectory"),
        format!("/var/lib/{}", value(&unit, "StateDirectory"))
    );
    let seconds = |key| value(&unit, key).parse::<u64>().unwrap();
    let limits = Limits::default();
    let traces = Config::defaults(Path::new("")).traces;
    let drain_ms = limits.drain_delay_ms
        + limits.drain_ms_max
        + 2 * limits.write_stall_ms_max
        + traces.timeout.as_millis() as u64;
    assert!(
        seconds("TimeoutStopSec") * 1_000 > drain_ms,
        "the unit kills an engine that drains as it may"
    );
    assert!(seconds("LimitNOFILE") >= limits.connections_max as u64 + 256);
    assert_eq!(
        (value(&unit, "Type"), seconds("LimitCORE")),
        ("notify".to_owned(), 0)
    );
    assert!(seconds("WatchdogSec") >= 10);
    // The signal that makes `serve` reload.
    assert_eq!(value(&unit, "ExecReload"), "/bin/kill -HUP $MAINPID");
}

#[test]
fn a_refused_configuration_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sealwire.toml");
    std::fs::write(&file, "[nothing]\n").unwrap();
    let refused = Command::new(PROGRAM)
        .args(["serve", "--config"])
        .arg(file)
        .output()
        .unwrap();
    let prevented = value(&read(UNIT), "RestartPreventExitStatus");
    assert_eq!(refused.status.code().unwrap().to_string(), prevented);
}

#[test]
fn systemd_takes_the_unit() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        return println!("no systemd here: the unit is not given to it");
    };
    assert!(version.status.success());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sealwire.service");
    std::fs::write(&file, read(UNIT).replace("/usr/bin/sealwire", PROGRAM)).unwrap();
    let verify = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verify.stderr).into_owned();
    assert!(
        verify.status.success() && !said.contains("sealwire.service"),
        "{said}"
    );
    // The exposure, from 0 to 10, in tenths.
    let security = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20"])
        .arg(repository(UNIT))
        .output();
    let security = security.unwrap();
    assert!(
        security.status.success(),
        "{}",
        String::from_utf8_lossy(&security.stdout)
    );
}

#[test]
fn a_manager_is_told_of_readiness_life_and_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    // Messages are lost while the socket's queue of ten is full. All are read at once, and signs of
    // life come slowly enough for a pause in that.
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut datagram = [0; 512];
        while let Ok(bytes) = manager.recv(&mut datagram) {
            if tell
                .send(String::from_utf8(datagram[..bytes].to_vec()).unwrap())
                .is_err()
            {
                return;
            }
        }
    });
    let any = "127.0.0.1:0";
    let made = Command::new(PROGRAM)
        .current_dir(folder.path())
        .args([
            "dev",
            "--demo-only",
            "--listen",
            any,
            "--admin",
            any,
            "--control",
            any,
            "--http",
            "127.0.0.1:0",
        ])
        .output()
        .unwrap();
    assert!(made.status.success());
    let mut engine = Command::new(PROGRAM)
        .current_dir(folder.path())
        .args(["serve", "--config", "sealwire-dev/sealwire.toml"])
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "600000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let patience = Duration::from_secs(300);
    let heard = || told.recv_timeout(patience).unwrap();
    assert!(heard().starts_with("READY=1\nSTATUS=takes calls on 127.0.0.1:"));
    assert_eq!([heard(), heard()], ["WATCHDOG=1", "WATCHDOG=1"]);
    // Only this process and root can read its memory.
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", engine.id())).unwrap();
    let cores = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .unwrap();
    assert_eq!(cores.split_whitespace().nth(4), Some("0"), "{cores}");
    let signal = |name: &str| {
        let sent = Command::new("kill")
            .args(["-s", name, &engine.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    };
    let news = || {
        let begun = Instant::now();
        loop {
            let said = heard();
            if said != "WATCHDOG=1" {
                return said;
            }
            assert!(begun.elapsed() < patience, "nothing but signs of life");
        }
    };
    signal("HUP");
    let begun = news();
    let at: u64 = begun
        .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
        .unwrap()
        .parse()
        .unwrap();
    assert!(at > 0);
    assert!(news().starts_with("READY=1\nSTATUS=takes calls on 127.0.0.1:"));
    signal("TERM");
    assert_eq!(news(), "STOPPING=1\nSTATUS=draining");
    assert!(engine.wait().unwrap().success());
}

/// Returns the response of the engine's health listener, without the header.
fn get(admin: &str, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect(format!("127.0.0.1:{admin}")).ok()?;
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut text = String::new();
    socket.read_to_string(&mut text).ok()?;
    Some(text.split_once("\r\n\r\n")?.1.to_owned())
}

/// Waits until a response is as expected. The timeout guards against hangs and says nothing about
/// speed.
fn until(admin: &str, path: &str, is_so: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    while !get(admin, path).is_some_and(|answer| is_so(&answer)) {
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "{path} stays {:?}",
            get(admin, path)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_second_signal_ends_a_drain() {
    let folder = tempfile::tempdir().unwrap();
    let [listen, admin, control] = free_ports();
    let [at, health, operators] =
        [&listen, &admin, &control].map(|port| format!("127.0.0.1:{port}"));
    let mut engine = Command::new(PROGRAM)
        .current_dir(folder.path())
        .args([
            "dev",
            "--listen",
            &at,
            "--admin",
            &health,
            "--control",
            &operators,
            "--http",
            "127.0.0.1:0",
        ])
        // The drain must last until the second signal arrives.
        .env("SEALWIRE_LIMITS_DRAIN_MS_MAX", "3600000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The demonstration's own requests are complete by then.
    let mut said = BufReader::new(engine.stdout.take().unwrap()).lines();
    assert!(
        said.any(|line| line.unwrap().starts_with("Serving until Ctrl-C")),
        "it ended"
    );
    // Half a minute of work on one core, because each field has an ephemeral key.
    let document = serde_json::to_vec(&vec!["x"; 400_000]).unwrap();
    std::fs::write(folder.path().join("long.json"), document).unwrap();
    let mut caller = Command::new(PROGRAM)
        .current_dir(folder.path())
        .args([
            "encrypt",
            "long.json",
            "--key-scope",
            "field",
            "--output",
            "sealed.json",
        ])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(&admin, "/metrics", |metrics| {
        metrics.contains("sealwire_requests_in_flight 1\n")
    });
    let signal = || {
        assert!(
            Command::new("kill")
                .arg(engine.id().to_string())
                .status()
                .unwrap()
                .success()
        )
    };
    signal();
    until(&admin, "/ready", |ready| ready == "draining\n");
    signal();
    let status = engine.wait().unwrap();
    let mut said = String::new();
    engine
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("stopped by a second signal"), "{said}");
    assert!(!caller.wait().unwrap().success());
}
