//! Checks a configuration and compiles it. Reports every error, not only the first.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use sealwire_service::settings::{Problem, Problems};

use super::{
    ClientsKind, Config, Limits, ListenConfig, ListenKind, ProtocolConfig, RouteConfig,
    TunnelProtocols, Unlisted, UpstreamConfig,
};
use crate::clients::is_principal;
use crate::egress::Destination;
use crate::route_table::RouteTable;
use crate::upstream::pool::Pool;
use crate::upstream::{Protocol, Upstream};

/// The error for a body limit that is larger than its share of the memory allows.
pub(super) const BODY_TOO_LONG: &str = "must be at most half of limits.connection_memory_bytes, which is a quarter of limits.memory_bytes unless set";

/// A checked configuration.
#[derive(Debug)]
pub struct Compiled {
    /// Listeners in the order of their names.
    pub listeners: Vec<CompiledListener>,
    /// Upstreams by name.
    pub upstreams: BTreeMap<String, Pool>,
    /// Notes that do not prevent a start.
    pub warnings: Vec<String>,
}

/// A listener with its routes.
#[derive(Debug)]
pub struct CompiledListener {
    /// Name.
    pub name: Arc<str>,
    /// Settings of the listener.
    pub config: ListenConfig,
    /// Routes of the listener.
    pub routes: RouteTable,
    /// Destinations whose tunnels pass untouched.
    pub tunnel: HashSet<Destination>,
}

/// Collects errors and warnings. [`super::routes`] has the methods for routes and rules.
pub(super) struct Compiler {
    pub(super) errors: Problems,
    pub(super) warnings: Vec<String>,
}

/// Checks and compiles a configuration. Reads no file.
///
/// # Errors
/// All errors of the configuration.
pub fn compile(config: &Config) -> Result<Compiled, Problems> {
    let mut compiler = Compiler {
        errors: Problems::default(),
        warnings: Vec::new(),
    };
    compiler.process(config);
    let window_bytes = config.limits.http2_window_bytes;
    let upstreams: BTreeMap<String, Pool> = config
        .upstream
        .iter()
        .filter_map(|(name, upstream)| {
            let compiled = compiler.upstream(name, upstream, window_bytes)?;
            Some((
                name.clone(),
                Pool::with_websockets(Arc::new(compiled), upstream.websockets_max),
            ))
        })
        .collect();
    let mut listeners: Vec<CompiledListener> = config
        .listen
        .iter()
        .map(|(name, listener)| compiler.listener(name, listener))
        .collect();
    let mut names = HashSet::new();
    for route in &config.route {
        let place = format!("route \"{}\"", route.name);
        if !names.insert(&route.name) {
            compiler.error(&place, "another route has this name");
        }
        let Some(listener) = listeners
            .iter_mut()
            .find(|listener| *listener.name == *route.listen)
        else {
            compiler.error(&place, "listen names a listener that does not exist; add a section [listen.NAME] or correct the name");
            continue;
        };
        let is_invalid = route.upstream.as_ref().is_some_and(|name| {
            config.upstream.contains_key(name) && !upstreams.contains_key(name)
        });
        if is_invalid {
            // The error of the upstream is already reported.
            continue;
        }
        let Some(upstream) = compiler.upstream_of(&place, route, listener, &upstreams) else {
            continue;
        };
        let methods = compiler.methods(&place, route);
        let compiled = Arc::new(compiler.route(&place, config, route, upstream));
        if let Err(error) = listener
            .routes
            .add_route(&route.host, &route.path, methods, compiled)
        {
            compiler.error(&place, &error.to_string());
        }
    }
    compiler.oracles(config);
    compiler.errors.locate(&config.lines);
    compiler.errors.into_result()?;
    Ok(Compiled {
        listeners,
        upstreams,
        warnings: compiler.warnings,
    })
}

impl Compiler {
    pub(super) fn error(&mut self, place: &str, message: &str) {
        self.errors.push(Problem::new(place, message));
    }

    pub(super) fn require(&mut self, holds: bool, place: &str, message: &str) {
        if !holds {
            self.error(place, message);
        }
    }

    /// Checks rules between keys of the process. The table of keys has the ranges of single keys.
    fn process(&mut self, config: &Config) {
        let limits = &config.limits;
        self.require(
            !config.listen.is_empty(),
            "listen",
            "is empty. Add at least one listener, such as [listen.public]",
        );
        self.require(
            !config.route.is_empty(),
            "route",
            "is empty. Add at least one [[route]]",
        );
        self.memory(limits);
        self.require(
            limits.requests_per_client_max() <= limits.requests_max as usize,
            "limits.requests_per_client_max",
            "must be at most limits.requests_max",
        );
        let windows =
            u64::from(limits.streams_per_connection) * u64::from(limits.http2_window_bytes);
        self.require(
            windows < 1 << 31,
            "limits.http2_window_bytes",
            "multiplied by limits.streams_per_connection must be below 2 GiB, the largest window of a connection",
        );
        let addresses: Vec<_> = config
            .listen
            .iter()
            .map(|(name, listener)| (name, listener.address))
            .collect();
        for (at, (name, address)) in addresses
            .iter()
            .enumerate()
            .filter(|(_, (_, address))| address.port() != 0)
        {
            let is_taken = *address == config.admin.address
                || addresses.iter().take(at).any(|(_, other)| other == address);
            self.require(
                !is_taken,
                &format!("listen.{name}"),
                "has the address of another listener or of admin.address. Each needs a separate port",
            );
        }
    }

    /// Checks that each share of the memory can hold the longest bodies.
    fn memory(&mut self, limits: &Limits) {
        let (client, connection) = (
            limits.client_memory_bytes(),
            limits.connection_memory_bytes(),
        );
        self.require(
            client <= limits.memory_bytes,
            "limits.client_memory_bytes",
            "must be at most limits.memory_bytes",
        );
        self.require(
            connection <= client,
            "limits.connection_memory_bytes",
            "must be at most limits.client_memory_bytes",
        );
        self.require(
            limits.body_bytes <= connection / 2,
            "limits.body_bytes",
            BODY_TOO_LONG,
        );
        // The body before its edit, after its edit and as received, and its decoder.
        self.require(
            limits.decoded_bytes <= connection / 4,
            "limits.decoded_bytes",
            "must be at most a quarter of limits.connection_memory_bytes, which is a quarter of limits.memory_bytes unless set",
        );
        self.require(
            limits.stream_window_bytes <= connection,
            "limits.stream_window_bytes",
            "must be at most limits.connection_memory_bytes, which is a quarter of limits.memory_bytes unless set",
        );
    }

    fn upstream(
        &mut self,
        name: &str,
        config: &UpstreamConfig,
        window_bytes: u32,
    ) -> Option<Upstream> {
        let place = format!("upstream.{name}");
        self.require(
            config.connections_per_client_max() <= config.connections_max,
            &format!("{place}.connections_per_client_max"),
            "must be at most connections_max",
        );
        let uri = config
            .url
            .parse::<Uri>()
            .ok()
            .filter(|uri| uri.query().is_none());
        let Some((scheme, authority)) = uri
            .as_ref()
            .and_then(|uri| Some((uri.scheme_str()?, uri.authority()?)))
        else {
            self.error(
                &place,
                "url must be http:// or https:// with a host and optionally a port, and without a query",
            );
            return None;
        };
        let is_tls = scheme == "https";
        self.require(
            is_tls || scheme == "http",
            &place,
            "url must begin with http:// or https://",
        );
        self.require(
            !authority.as_str().contains('@'),
            &place,
            "url must not contain a user or password",
        );
        self.require(!is_tls || config.roots.is_some(), &place, "roots is needed with https: a PEM file with the authorities to trust, such as /etc/ssl/certs/ca-certificates.crt");
        let identity = self.pair(
            &place,
            "certificate",
            config.certificate.as_ref(),
            "key",
            config.key.as_ref(),
        );
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_ascii_lowercase();
        let path = uri
            .as_ref()
            .map_or("", |uri| uri.path())
            .trim_end_matches('/');
        Some(Upstream {
            name: name.into(),
            is_tls,
            host: host.into(),
            port: authority
                .port_u16()
                .unwrap_or(if is_tls { 443 } else { 80 }),
            base_path: path.into(),
            roots: config.roots.clone(),
            identity,
            addresses: config.addresses.clone(),
            protocol: match config.protocol {
                ProtocolConfig::Auto => Protocol::Auto,
                ProtocolConfig::Http1 => Protocol::Http1,
                ProtocolConfig::Http2 => Protocol::Http2,
            },
            connections_max: config.connections_max,
            connections_per_client_max: config.connections_per_client_max(),
            window_bytes,
            connect_timeout: Duration::from_millis(config.connect_timeout_ms),
            first_byte_timeout: Duration::from_millis(config.first_byte_timeout_ms),
            body_idle_timeout: Duration::from_millis(config.body_idle_timeout_ms),
            idle_timeout: Duration::from_millis(config.idle_timeout_ms),
        })
    }

    /// Checks two files that must be set together.
    fn pair(
        &mut self,
        place: &str,
        one: &str,
        first: Option<&PathBuf>,
        other: &str,
        second: Option<&PathBuf>,
    ) -> Option<(PathBuf, PathBuf)> {
        self.require(
            first.is_some() == second.is_some(),
            place,
            &format!("sets only one of {one} and {other}. Set both, or neither"),
        );
        Some((first?.clone(), second?.clone()))
    }

    fn listener(&mut self, name: &str, config: &ListenConfig) -> CompiledListener {
        let place = format!("listen.{name}");
        self.pair(
            &place,
            "certificate",
            config.certificate.as_ref(),
            "key",
            config.key.as_ref(),
        );
        // Half of a pair is one error, and not also plaintext.
        let is_tls = config.certificate.is_some() || config.key.is_some();
        let is_local = config.address.ip().is_loopback();
        self.require(
            is_tls || is_local || config.plaintext,
            &place,
            "accepts plaintext from other machines. Set certificate and key, or plaintext = true",
        );
        self.clients(&place, config, is_tls);
        if config.clients == ClientsKind::Open && !is_local {
            self.warnings.push(format!(
                "{place}: every client that reaches the address is admitted"
            ));
            if config.trust_forwarded {
                self.warnings.push(format!(
                    "{place}: with trust_forwarded, every client that reaches the address can pass for another client and use its limits"
                ));
            }
        }
        self.require(
            config.kind != ListenKind::ExtProc || !config.trust_forwarded,
            &place,
            "trust_forwarded has no effect with kind = \"ext_proc\", which leaves forwarding headers to Envoy",
        );
        let tunnel = self.tunnel(&place, config);
        CompiledListener {
            name: name.into(),
            config: config.clone(),
            routes: RouteTable::default(),
            tunnel,
        }
    }

    /// Checks that each kind of authentication has its files, and no others.
    fn clients(&mut self, place: &str, config: &ListenConfig, is_tls: bool) {
        let clients = config.clients;
        self.require(
            clients != ClientsKind::Mtls || (is_tls && config.client_ca.is_some()),
            place,
            "cannot check certificates of clients (clients = \"mtls\") without certificate, key and client_ca. Set these, or clients = \"open\" to admit everybody",
        );
        self.require(
            clients == ClientsKind::Mtls
                || (config.client_ca.is_none() && config.principals.is_empty()),
            place,
            "client_ca and principals have no effect unless clients = \"mtls\"",
        );
        if let Some(at) = config
            .principals
            .iter()
            .position(|principal| !is_principal(principal))
        {
            let message =
                "must be a DNS name (also with dns: before it), a URI, or cn: and a common name";
            self.error(
                &format!("{place}.principals"),
                &format!("entry {} {message}", at + 1),
            );
        }
        self.require(
            (clients == ClientsKind::Bearer) == config.tokens.is_some(),
            place,
            "sets only one of clients = \"bearer\" and tokens. Set both, or neither",
        );
        let is_plaintext = !is_tls && !config.address.ip().is_loopback();
        if clients == ClientsKind::Bearer && is_plaintext {
            self.warnings
                .push(format!("{place}: tokens of clients arrive in plaintext"));
        }
    }

    /// Checks the keys of a CONNECT proxy. Returns the destinations whose tunnels pass untouched.
    fn tunnel(&mut self, place: &str, config: &ListenConfig) -> HashSet<Destination> {
        let is_forward = config.kind == ListenKind::Forward;
        let authority = self.pair(
            place,
            "authority_certificate",
            config.authority_certificate.as_ref(),
            "authority_key",
            config.authority_key.as_ref(),
        );
        self.require(
            is_forward == authority.is_some(),
            place,
            "sets kind = \"forward\" without authority_certificate and authority_key, or these without it",
        );
        let has_tunnels = !config.tunnel.is_empty()
            || !config.tunnel_addresses.is_empty()
            || config.unlisted == Unlisted::Tunnel;
        let is_any = config.tunnel_protocols == TunnelProtocols::Any;
        self.require(
            is_forward || !(has_tunnels || is_any),
            place,
            "tunnel, tunnel_addresses, tunnel_protocols and unlisted have no effect unless kind = \"forward\"",
        );
        if is_forward && config.unlisted == Unlisted::Tunnel {
            self.warnings.push(format!(
                "{place}: requests to hosts without a route pass unchanged"
            ));
        }
        if is_forward && has_tunnels && is_any {
            self.warnings.push(format!(
                "{place}: tunnels with other protocols than TLS can lead to other hosts"
            ));
        }
        let mut tunnel = HashSet::new();
        for text in &config.tunnel {
            match Destination::parse(text) {
                Some(destination) => drop(tunnel.insert(destination)),
                None => {
                    self.error(
                        &format!("{place}.tunnel"),
                        "each entry must be HOST:PORT with a name, not an address, as its host",
                    );
                }
            }
        }
        tunnel
    }

    /// Finds the upstream of a route. Returns `None` after an error, and `Some(None)` for a route
    /// that has no upstream.
    fn upstream_of<'p>(
        &mut self,
        place: &str,
        route: &RouteConfig,
        listener: &CompiledListener,
        upstreams: &'p BTreeMap<String, Pool>,
    ) -> Option<Option<&'p Pool>> {
        if listener.config.kind == ListenKind::ExtProc {
            self.ext_proc_route(place, route);
            return Some(None);
        }
        let Some(name) = &route.upstream else {
            self.error(place, "upstream is missing");
            return None;
        };
        let Some(pool) = upstreams.get(name) else {
            self.error(place, "upstream names an upstream that does not exist; add a section [upstream.NAME] or correct the name");
            return None;
        };
        self.forward_route(place, route, listener, pool.upstream());
        Some(Some(pool))
    }

    /// Rejects keys of a route that have no effect where Envoy forwards the request.
    fn ext_proc_route(&mut self, place: &str, route: &RouteConfig) {
        for (key, is_set) in [
            ("upstream", route.upstream.is_some()),
            ("strip_prefix", route.strip_prefix.is_some()),
            ("websocket_origins", route.websocket_origins.is_some()),
        ] {
            let message = "must not be set: on a listener with kind = \"ext_proc\" Envoy forwards the request";
            self.require(!is_set, &format!("{place}.{key}"), message);
        }
    }

    /// Checks the rules for routes of a CONNECT proxy.
    fn forward_route(
        &mut self,
        place: &str,
        route: &RouteConfig,
        listener: &CompiledListener,
        upstream: &Upstream,
    ) {
        if listener.config.kind == ListenKind::Forward {
            self.require(
                route.host.eq_ignore_ascii_case(&upstream.host),
                place,
                "host must be the host of the upstream, because the proxy intercepts requests to it",
            );
            self.require(
                upstream.is_tls,
                place,
                "the upstream must use https, because clients use TLS in the tunnel",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{compile, parse};

    const ENGINE: &str =
        "[engine]\nendpoints = ['e:7443']\nca = 'ca'\ncertificate = 'c'\nkey = 'k'\n";
    const LISTEN: &str = "[listen.public]\naddress = '127.0.0.1:8080'\nclients = 'open'\n";
    const REST: &str = "[upstream.shop]\nurl = 'http://shop.internal'\n[[route]]\nname = 'r'\nlisten = 'public'\npath = '/{*rest}'\n\
        upstream = 'shop'\npass = true\n";

    fn compiled(rest: &str) -> Result<Vec<String>, Vec<String>> {
        let config = parse(&format!("{ENGINE}{rest}"), [])
            .unwrap_or_else(|errors| panic!("{errors}\n{rest}"));
        let compiled = compile(&config).map(|compiled| compiled.warnings);
        compiled.map_err(|errors| {
            assert!(!errors.to_string().contains("s3cret"), "{errors}");
            errors
                .iter()
                .map(|error| format!("{}: {}", error.place, error.message))
                .collect()
        })
    }

    #[track_caller]
    fn is_rejected(rest: &str, expected: &str) {
        let errors = compiled(rest).unwrap_err();
        assert!(
            errors.iter().any(|error| error.starts_with(expected)),
            "{rest}\n{errors:?}"
        );
    }

    #[test]
    fn a_relay_listens_and_has_routes() {
        assert_eq!(compiled(&format!("{LISTEN}{REST}")), Ok(vec![]));
        is_rejected("", "listen: is empty. Add at least one listener");
        is_rejected("", "route: is empty. Add at least one [[route]]");
    }

    #[test]
    fn limits_fit_into_the_memory() {
        for (limits, expected) in [
            (
                "body_bytes = 134_217_729",
                "limits.body_bytes: must be at most half of limits.connection_memory_bytes",
            ),
            (
                "decoded_bytes = 67_108_865",
                "limits.decoded_bytes: must be at most a quarter of limits.connection_memory",
            ),
            (
                "memory_bytes = 65536",
                "limits.stream_window_bytes: must be at most limits.connection_memory_bytes",
            ),
            (
                "client_memory_bytes = 1_073_741_825",
                "limits.client_memory_bytes: must be at most limits.memory_bytes",
            ),
            (
                "connection_memory_bytes = 536_870_913",
                "limits.connection_memory_bytes: must be at most limits.client_",
            ),
            (
                "requests_per_client_max = 4_097",
                "limits.requests_per_client_max: must be at most limits.requests_max",
            ),
            (
                "streams_per_connection = 65536",
                "limits.http2_window_bytes: multiplied by limits.streams_per_connection must",
            ),
            (
                "http2_window_bytes = 16_777_216\nstreams_per_connection = 128",
                "limits.http2_window_bytes: multiplied by",
            ),
        ] {
            is_rejected(&format!("[limits]\n{limits}\n{LISTEN}{REST}"), expected);
        }
    }

    #[test]
    fn bodies_that_can_pass_as_they_came_need_memory_for_three() {
        for (keys, body_bytes, is_rejected) in [
            ("pass = true", 512_000, false),
            (
                "app = 'a'\n[[route.request]]\naction = 'encrypt'\nselect = ['$.a']",
                512_000,
                false,
            ),
            (
                "request_unparsed = 'pass'\napp = 'a'\n[[route.request]]\naction = 'encrypt'\nselect = ['$.a']",
                512_000,
                true,
            ),
            (
                "response_unparsed = 'pass'\napp = 'a'\n[[route.response]]\naction = 'encrypt'\nselect = ['$.a']",
                512_000,
                true,
            ),
            (
                "request_unparsed = 'pass'\napp = 'a'\n[[route.request]]\naction = 'encrypt'\nselect = ['$.a']",
                341_333,
                false,
            ),
            ("pass = true\nwebsocket_origins = ['*']", 204_801, true),
            ("pass = true\nwebsocket_origins = ['*']", 204_800, false),
        ] {
            let limits = "[limits]\nmemory_bytes = 4_096_000\nbody_bytes = 1\ndecoded_bytes = 1\nstream_window_bytes = 65_536\n";
            let route = REST.replace("pass = true", &format!("body_bytes = {body_bytes}\n{keys}"));
            let outcome = compiled(&format!("{limits}{LISTEN}{route}"));
            let is_told = outcome
                .as_ref()
                .is_err_and(|errors| errors.iter().any(|error| error.contains("body_bytes")));
            assert_eq!(
                (is_told, outcome.is_err()),
                (is_rejected, is_rejected),
                "{keys} {body_bytes}: {outcome:?}"
            );
        }
    }

    #[test]
    fn listeners_are_checked() {
        let forward = "kind = 'forward'\nauthority_certificate = 'a'\nauthority_key = 'b'";
        let tunnel = format!("{forward}\ntunnel = ['s3cret']");
        for (keys, expected) in [
            (
                "address = '0.0.0.0:1'\nclients = 'open'",
                "accepts plaintext from other machines",
            ),
            (
                "address = '127.0.0.1:8080'\nclients = 'open'",
                "has the address of another listener or of admin.address. Each needs a separate port",
            ),
            (
                "address = '127.0.0.1:8444'\nclients = 'open'",
                "has the address of another listener or of admin.address. Each needs a separate port",
            ),
            (
                "certificate = 's3cret'\nclients = 'open'",
                "sets only one of certificate and key",
            ),
            ("", "cannot check certificates of clients"),
            (
                "certificate = 'c'\nkey = 'k'",
                "cannot check certificates of clients",
            ),
            (
                "client_ca = 's3cret'",
                "cannot check certificates of clients",
            ),
            (
                "clients = 'open'\nclient_ca = 's3cret'",
                "client_ca and principals have no effect unless clients = \"mtls\"",
            ),
            (
                "clients = 'open'\nprincipals = ['s3cret']",
                "client_ca and principals have no effect unless clients = \"mtls\"",
            ),
            (
                "principals = ['dns:cn:s3cret']",
                "entry 1 must be a DNS name",
            ),
            (
                "principals = ['cn:a', 'DNS:s3cret']",
                "entry 2 must be a DNS name",
            ),
            (
                "principals = ['dns:spiffe://s3cret']",
                "entry 1 must be a DNS name",
            ),
            (
                "principals = ['dns:dns:s3cret']",
                "entry 1 must be a DNS name",
            ),
            ("principals = ['CN:s3cret']", "entry 1 must be a DNS name"),
            ("principals = ['cn:']", "entry 1 must be a DNS name"),
            ("principals = ['cn: s3cret']", "entry 1 must be a DNS name"),
            ("principals = ['']", "entry 1 must be a DNS name"),
            (
                "clients = 'bearer'",
                "sets only one of clients = \"bearer\" and tokens. Set both, or neither",
            ),
            (
                "clients = 'open'\ntokens = 's3cret'",
                "sets only one of clients = \"bearer\" and tokens. Set both, or neither",
            ),
            (
                "clients = 'open'\nkind = 'forward'",
                "sets kind = \"forward\" without authority_certificate",
            ),
            (
                "clients = 'open'\nauthority_key = 's3cret'",
                "sets only one of authority_certificate and authority_key",
            ),
            (
                "clients = 'open'\nkind = 'ext_proc'\ntrust_forwarded = true",
                "trust_forwarded has no effect",
            ),
            (
                "clients = 'open'\nkind = 'ext_proc'\ntunnel = ['a:1']",
                "tunnel, tunnel_addresses, tunnel_protocols and unlisted have no effect unless kind",
            ),
            (
                "clients = 'open'\ntunnel = ['a:1']",
                "tunnel, tunnel_addresses, tunnel_protocols and unlisted have no effect",
            ),
            (
                "clients = 'open'\nunlisted = 'tunnel'",
                "tunnel, tunnel_addresses, tunnel_protocols and unlisted have no effect",
            ),
            (
                "clients = 'open'\ntunnel_addresses = ['10.0.0.0/8']",
                "tunnel, tunnel_addresses, tunnel_protocols and unlisted have no effect",
            ),
            (
                "clients = 'open'\ntunnel_protocols = 'any'",
                "tunnel, tunnel_addresses, tunnel_protocols and unlisted have no effect",
            ),
            (tunnel.as_str(), "each entry must be HOST:PORT"),
        ] {
            let address = if keys.contains("address = ") {
                ""
            } else {
                "address = '127.0.0.1:0'\n"
            };
            let text = format!("{LISTEN}[listen.other]\n{address}{keys}\n{REST}");
            let errors = compiled(&text).unwrap_err();
            let is_told = |error: &String| error.starts_with("listen.") && error.contains(expected);
            assert!(errors.iter().any(is_told), "{keys}: {errors:?}");
        }
    }

    #[test]
    fn open_and_plaintext_listeners_are_told() {
        let listen = |keys: &str| {
            format!("[listen.public]\naddress = '0.0.0.0:1'\nplaintext = true\n{keys}\n{REST}")
        };
        for (keys, expected) in [
            (
                "clients = 'open'",
                vec!["listen.public: every client that reaches the address is admitted"],
            ),
            (
                "clients = 'bearer'\ntokens = 't'",
                vec!["listen.public: tokens of clients arrive in plaintext"],
            ),
            (
                "clients = 'open'\ntrust_forwarded = true",
                vec![
                    "listen.public: every client that reaches the address is admitted",
                    "listen.public: with trust_forwarded, every client that reaches the address can pass for another client and use its limits",
                ],
            ),
        ] {
            assert_eq!(compiled(&listen(keys)).unwrap(), expected);
        }
        let forward = "kind = 'forward'\nauthority_certificate = 'a'\nauthority_key = 'b'\nunlisted = 'tunnel'\n";
        let text = format!(
            "{LISTEN}[listen.egress]\naddress = '127.0.0.1:0'\nclients = 'open'\n{forward}{REST}"
        );
        assert_eq!(
            compiled(&text).unwrap(),
            ["listen.egress: requests to hosts without a route pass unchanged"]
        );
    }

    #[test]
    fn upstreams_are_checked() {
        for (keys, expected) in [
            (
                "url = 's3cret'",
                "url must be http:// or https:// with a host and optionally a port, and without a query",
            ),
            (
                "url = 'http://shop?s3cret'",
                "url must be http:// or https:// with a host and optionally a port, and without a query",
            ),
            (
                "url = 'ftp://s3cret'",
                "url must begin with http:// or https://",
            ),
            (
                "url = 'http://user:s3cret@shop'",
                "url must not contain a user or password",
            ),
            ("url = 'https://shop'", "roots is needed with https"),
            (
                "url = 'https://shop'\nroots = 'r'\ncertificate = 'c'",
                "sets only one of certificate and key",
            ),
        ] {
            let text = format!("{LISTEN}[upstream.other]\n{keys}\n{REST}");
            is_rejected(&text, &format!("upstream.other: {expected}"));
        }
    }

    #[test]
    fn upstreams_are_read_from_their_url() {
        for (url, expected) in [
            ("http://Shop.internal", ("shop.internal", 80, "", false)),
            ("https://shop:8443/", ("shop", 8_443, "", true)),
            ("https://[::1]/base/path/", ("::1", 443, "/base/path", true)),
        ] {
            let text =
                format!("{ENGINE}{LISTEN}{REST}[upstream.other]\nurl = '{url}'\nroots = 'r'\n");
            let compiled = compile(&parse(&text, []).unwrap()).unwrap();
            let upstream = compiled.upstreams["other"].upstream();
            assert_eq!(
                (
                    &*upstream.host,
                    upstream.port,
                    &*upstream.base_path,
                    upstream.is_tls
                ),
                expected
            );
        }
    }
}
