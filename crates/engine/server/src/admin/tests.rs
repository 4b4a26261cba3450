use std::io::{Read, Write};

use sealwire_telemetry::{Condition, Phase};

use super::*;

/// Checks status and body of a response.
fn check(routes: &EngineRoutes, path: &str, status: u16, body: &str) {
    let response = routes.get(path);
    let found = match &response {
        AdminResponse::Ok(text) | AdminResponse::Metrics(text) => (200, &**text),
        AdminResponse::Unavailable(text) => (503, &**text),
    };
    assert_eq!(found, (status, body), "{path}");
}

#[test]
fn readiness_follows_phase_and_conditions() {
    let routes = EngineRoutes(Arc::default());
    let readiness = &routes.0.readiness;
    check(&routes, "/live", 200, "live\n");
    check(&routes, "/ready", 503, "starting\n");
    readiness.enter(Phase::Ready);
    check(&routes, "/ready", 200, "ready\n");
    check(&routes, "/ready/store", 200, "ready\n");
    readiness.set(Condition::Store, false);
    check(&routes, "/ready", 200, "ready, but failing: store\n");
    check(&routes, "/ready/store", 503, "failing: store\n");
    readiness.set(Condition::Permissions, false);
    for path in ["/ready", "/ready/store"] {
        check(&routes, path, 503, "failing: store, permissions\n");
    }
    check(&routes, "/live", 200, "live\n");
    readiness.enter(Phase::Draining);
    check(&routes, "/ready", 503, "draining\n");
}

#[test]
fn metrics_are_served_as_openmetrics() {
    let state = Arc::new(Telemetry::default());
    state.metrics.connections.set(7);
    let server = start(SocketAddr::from(([127, 0, 0, 1], 0)), state).unwrap();
    let mut socket = std::net::TcpStream::connect(server.address()).unwrap();
    socket
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(
        text.contains(&format!("content-type: {media_type}\r\n")),
        "{text}"
    );
    assert!(
        text.contains("\nsealwire_connections_open 7\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
}

#[test]
fn address_in_use_is_reported() {
    let server = start(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::default()).unwrap();
    let error = start(server.address(), Arc::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("admin.address: cannot listen on 127.0.0.1:"),
        "{error}"
    );
}
