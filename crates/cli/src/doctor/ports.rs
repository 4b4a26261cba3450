//! Checks that the addresses can be bound, or finds the process that holds them.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use super::Report;
use super::engine::RunningEngine;
use sealwire_settings::Config;

const CHECK: &str = "ports";

pub(super) fn examine(report: &mut Report, config: &Config, engine: Option<&RunningEngine>) {
    if let Some(engine) = engine {
        running(report, config, engine);
    }
    let control = config.control.as_ref().map(|control| control.address);
    let addresses = [
        ("listen.address", config.listen.address),
        ("admin.address", Some(config.admin.address)),
        ("control.address", control),
    ];
    for (key, address) in addresses
        .into_iter()
        .filter_map(|(key, address)| Some((key, address?)))
    {
        listen(report, key, address, engine.is_some());
        if address.ip().is_unspecified() && key != "listen.address" {
            report.warn(
                CHECK,
                format!("{key} is every address of this machine"),
                "whoever reaches the machine reaches it too: health and metrics ask nobody for a certificate, and operators \
                 change keys at the other",
                "name an address that only operators reach, or see to that with a firewall",
            );
        }
    }
}

fn running(report: &mut Report, config: &Config, engine: &RunningEngine) {
    let (is_ready, said) = &engine.ready;
    let at = config.admin.address;
    if *is_ready {
        report.good(
            "engine",
            format!("one runs and is ready, says http://{at}/ready/store"),
        );
    } else {
        report.wrong(
            "engine",
            format!("one runs and is not ready: {said}"),
            "with only `store` or `control state` failing it encrypts and decrypts, but serves no tokens, objects or changes; else it serves nothing",
            "its log says why; docs/operators/incident-alerts.md has what to do about each condition",
        );
    }
    let ours = env!("CARGO_PKG_VERSION");
    if let Some(theirs) = engine.version.as_deref().filter(|theirs| *theirs != ours) {
        report.warn(
            "engine",
            format!("the one that runs is version {theirs}, and this program is {ours}"),
            "what is found here is true of this program",
            "restart the engine, or look with the program that it was started from",
        );
    }
}

fn listen(report: &mut Report, key: &str, address: SocketAddr, engine_runs: bool) {
    match TcpListener::bind(address) {
        Ok(_) => report.good(CHECK, format!("{key}: {address} is free")),
        Err(error) => match error.kind() {
            ErrorKind::AddrInUse if engine_runs => {
                report.good(CHECK, format!("{key}: {address} is taken, and an engine runs here"));
            }
            ErrorKind::AddrInUse => report.wrong(
                CHECK,
                format!("{key}: {address} is taken, and not by an engine that answers at admin.address"),
                "the engine cannot listen there",
                format!(
                    "find who has it with `ss -ltnp sport = :{}`, stop that, or choose another port",
                    address.port()
                ),
            ),
            ErrorKind::AddrNotAvailable => report.wrong(
                CHECK,
                format!("{key}: this machine has no address {}", address.ip()),
                "the engine cannot listen there",
                "name an address that `ip address` shows",
            ),
            ErrorKind::PermissionDenied => report.wrong(
                CHECK,
                format!("{key}: this user may not listen on port {}", address.port()),
                "the engine cannot listen there",
                "choose a port from 1024 on, or give the unit AmbientCapabilities=CAP_NET_BIND_SERVICE",
            ),
            _ => report.wrong(
                CHECK,
                format!("{key}: {address}: {error}"),
                "the engine cannot listen there",
                "mend what the system says",
            ),
        },
    }
}
