//! Checks that the addresses can be bound, or finds the process that holds them.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use super::Report;
use super::engine::RunningEngine;
use sealwire_settings::Config;

const CHECK: &str = "ports";

pub(super) fn check_ports(report: &mut Report, config: &Config, engine: Option<&RunningEngine>) {
    if let Some(engine) = engine {
        check_running_engine(report, config, engine);
    }
    let control = config.control.as_ref().map(|control| control.address);
    let addresses = [
        ("listen.address", config.listen.address),
        ("http.address", config.http.address),
        ("admin.address", Some(config.admin.address)),
        ("control.address", control),
    ];
    for (key, address) in addresses
        .into_iter()
        .filter_map(|(key, address)| Some((key, address?)))
    {
        check_port(report, key, address, engine.is_some());
        let is_for_clients = matches!(key, "listen.address" | "http.address");
        if address.ip().is_unspecified() && !is_for_clients {
            report.add_warning(
                CHECK,
                format!("{key} is every address of this machine"),
                "every host that reaches this machine reaches this listener: admin.address requires no certificate, and \
                 operators change keys through control.address",
                "name an address that only operators can reach, or restrict access with a firewall",
            );
        }
    }
}

fn check_running_engine(report: &mut Report, config: &Config, engine: &RunningEngine) {
    let (is_ready, reason) = &engine.ready;
    let at = config.admin.address;
    if *is_ready {
        report.add_good(
            "engine",
            format!("an engine runs and is ready (http://{at}/ready/store)"),
        );
    } else {
        report.add_problem(
            "engine",
            format!("an engine runs and is not ready: {reason}"),
            "if only `store` or `control state` fails, it encrypts and decrypts, but serves no tokens, objects or changes; otherwise it serves nothing",
            "read its log; docs/operators/incident-alerts.md has the remedy for each condition",
        );
    }
    let ours = env!("CARGO_PKG_VERSION");
    if let Some(theirs) = engine.version.as_deref().filter(|theirs| *theirs != ours) {
        report.add_warning(
            "engine",
            format!("the running engine has version {theirs}, and this program {ours}"),
            "these findings are for the version of this program",
            "restart the engine, or run the program from which the engine was started",
        );
    }
}

fn check_port(report: &mut Report, key: &str, address: SocketAddr, engine_runs: bool) {
    match TcpListener::bind(address) {
        Ok(_) => report.add_good(CHECK, format!("{key}: {address} is free")),
        Err(error) => match error.kind() {
            ErrorKind::AddrInUse if engine_runs => {
                report.add_good(CHECK, format!("{key}: {address} is in use, and an engine runs here"));
            }
            ErrorKind::AddrInUse => report.add_problem(
                CHECK,
                format!("{key}: {address} is in use, but no engine responds at admin.address"),
                "the engine cannot listen there",
                format!(
                    "find its process with `ss -ltnp sport = :{}` and stop it, or choose another port",
                    address.port()
                ),
            ),
            ErrorKind::AddrNotAvailable => report.add_problem(
                CHECK,
                format!("{key}: this machine has no address {}", address.ip()),
                "the engine cannot listen there",
                "name an address that `ip address` shows",
            ),
            ErrorKind::PermissionDenied => report.add_problem(
                CHECK,
                format!("{key}: this user may not listen on port {}", address.port()),
                "the engine cannot listen there",
                "choose a port from 1024 on, or give the unit AmbientCapabilities=CAP_NET_BIND_SERVICE",
            ),
            _ => report.add_problem(
                CHECK,
                format!("{key}: {address}: {error}"),
                "the engine cannot listen there",
                "correct the cause that the operating system reports",
            ),
        },
    }
}
