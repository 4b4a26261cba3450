//! Checks a configuration and compiles it. Lists every error, not only the first.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, Uri};
use sealwire_payload::Selection;

use super::text::ConfigError;
use super::{
    ActionKind, ClientsKind, Config, ContainersKind, ContextConfig, FailKind, ListenConfig, ListenKind, ProtocolConfig,
    RouteConfig, RuleConfig, UnneededKind, UnparsedKind, UpstreamConfig,
};
use crate::egress::Destination;
use crate::route::{Action, Containers, Context, Direction, Route, Rule, Unneeded};
use crate::route_table::RouteTable;
use crate::upstream::pool::Pool;
use crate::upstream::{Protocol, Upstream};

/// Headers that no rule replaces: framing, routing, and the type and coding of the body.
const FIXED_HEADERS: [&str; 12] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-request-id",
    "traceparent",
];

/// A checked configuration.
#[derive(Debug)]
pub struct Compiled {
    /// Listeners in the order of their names.
    pub listeners: Vec<CompiledListener>,
    /// Upstreams by name.
    pub upstreams: BTreeMap<String, Pool>,
    /// Notes that stop nothing.
    pub warnings: Vec<String>,
}

/// A listener with its routes.
#[derive(Debug)]
pub struct CompiledListener {
    /// Name.
    pub name: Arc<str>,
    /// Its settings.
    pub config: ListenConfig,
    /// Its routes.
    pub routes: RouteTable,
    /// Destinations whose tunnels pass untouched.
    pub tunnel: HashSet<Destination>,
}

struct Compiler {
    errors: Vec<ConfigError>,
    warnings: Vec<String>,
}

/// Checks and compiles a configuration. Reads no file.
///
/// # Errors
/// Every error.
pub fn compile(config: &Config) -> Result<Compiled, Vec<ConfigError>> {
    let mut compiler = Compiler { errors: Vec::new(), warnings: Vec::new() };
    compiler.process(config);
    let upstreams: BTreeMap<String, Pool> = config
        .upstream
        .iter()
        .filter_map(|(name, upstream)| Some((name.clone(), Pool::new(Arc::new(compiler.upstream(name, upstream)?)))))
        .collect();
    let mut listeners: Vec<CompiledListener> =
        config.listen.iter().map(|(name, listener)| compiler.listener(name, listener)).collect();
    let mut names = HashSet::new();
    for route in &config.route {
        let place = format!("route \"{}\"", route.name);
        if !names.insert(&route.name) {
            compiler.error(&place, "another route has this name");
        }
        let Some(listener) = listeners.iter_mut().find(|listener| *listener.name == *route.listen) else {
            compiler.error(&place, "listen names no listener");
            continue;
        };
        let Some(upstream) = upstreams.get(&route.upstream) else {
            compiler.error(&place, "upstream names no upstream");
            continue;
        };
        compiler.forward_route(&place, route, listener, upstream.upstream());
        let methods = compiler.methods(&place, route);
        let compiled = Arc::new(compiler.route(&place, config, route, upstream));
        if let Err(error) = listener.routes.add(&route.host, &route.path, methods, compiled) {
            compiler.error(&place, &error.to_string());
        }
    }
    if compiler.errors.is_empty() {
        Ok(Compiled { listeners, upstreams, warnings: compiler.warnings })
    } else {
        Err(compiler.errors)
    }
}

impl Compiler {
    fn error(&mut self, place: &str, message: &str) {
        self.errors.push(ConfigError::new(place, message));
    }

    fn require(&mut self, holds: bool, place: &str, message: &str) {
        if !holds {
            self.error(place, message);
        }
    }

    fn process(&mut self, config: &Config) {
        let (engine, limits) = (&config.engine, &config.limits);
        self.require(!engine.endpoints.is_empty(), "engine.endpoints", "at least one host:port");
        self.require((1..=3_600_000).contains(&engine.deadline_ms), "engine.deadline_ms", "must be in 1..=3600000");
        self.require(!config.listen.is_empty(), "listen", "at least one listener, such as [listen.public]");
        self.require(!config.route.is_empty(), "route", "at least one [[route]]");
        self.require(
            (1..=1 << 20).contains(&limits.connections_max),
            "limits.connections_max",
            "must be in 1..=1048576",
        );
        self.require((1..=1 << 20).contains(&limits.requests_max), "limits.requests_max", "must be in 1..=1048576");
        self.require(
            (1..=1 << 40).contains(&limits.memory_bytes),
            "limits.memory_bytes",
            "must be in 1..=1099511627776",
        );
        self.require(
            (1..=limits.memory_bytes / 2).contains(&limits.body_bytes),
            "limits.body_bytes",
            "must be at least 1 and at most half of limits.memory_bytes",
        );
        self.require(
            (1..=limits.memory_bytes / 2).contains(&limits.decoded_bytes),
            "limits.decoded_bytes",
            "must be at least 1 and at most half of limits.memory_bytes",
        );
        self.require(
            (64 << 10..=limits.memory_bytes).contains(&limits.stream_window_bytes),
            "limits.stream_window_bytes",
            "must be at least 65536 and at most limits.memory_bytes",
        );
        self.require((1..=64 << 20).contains(&limits.value_bytes), "limits.value_bytes", "must be in 1..=67108864");
        self.require(
            (1_024..=1 << 20).contains(&limits.header_bytes),
            "limits.header_bytes",
            "must be in 1024..=1048576",
        );
        let times = [
            limits.header_timeout_ms,
            limits.body_idle_timeout_ms,
            limits.idle_timeout_ms,
            limits.websocket_idle_timeout_ms,
            limits.drain_ms,
        ];
        self.require(
            times.iter().all(|time| (1..=86_400_000).contains(time)),
            "limits",
            "every time must be in 1..=86400000 ms",
        );
    }

    fn upstream(&mut self, name: &str, config: &UpstreamConfig) -> Option<Upstream> {
        let place = format!("upstream.{name}");
        let uri = config.url.parse::<Uri>().ok().filter(|uri| uri.query().is_none());
        let Some((scheme, authority)) = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?))) else {
            self.error(&place, "url must be http:// or https:// with a host, and no query");
            return None;
        };
        let is_tls = scheme == "https";
        self.require(is_tls || scheme == "http", &place, "url must be http:// or https://");
        self.require(!authority.as_str().contains('@'), &place, "url must have no user");
        self.require(!is_tls || config.roots.is_some(), &place, "roots is needed with https: a PEM file with the authorities to trust, such as /etc/ssl/certs/ca-certificates.crt");
        let identity = self.pair(&place, "certificate", config.certificate.as_ref(), "key", config.key.as_ref());
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let path = uri.as_ref().map_or("", |uri| uri.path()).trim_end_matches('/');
        self.require(config.connections_max > 0, &place, "connections_max must be at least 1");
        Some(Upstream {
            name: name.into(),
            is_tls,
            host: host.into(),
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
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
            connect_timeout: Duration::from_millis(config.connect_timeout_ms),
            first_byte_timeout: Duration::from_millis(config.first_byte_timeout_ms),
            body_idle_timeout: Duration::from_millis(config.body_idle_timeout_ms),
            idle_timeout: Duration::from_millis(config.idle_timeout_ms),
        })
    }

    /// Two files that need each other.
    fn pair(
        &mut self,
        place: &str,
        one: &str,
        first: Option<&PathBuf>,
        other: &str,
        second: Option<&PathBuf>,
    ) -> Option<(PathBuf, PathBuf)> {
        self.require(first.is_some() == second.is_some(), place, &format!("{one} and {other} need each other"));
        Some((first?.clone(), second?.clone()))
    }

    fn listener(&mut self, name: &str, config: &ListenConfig) -> CompiledListener {
        let place = format!("listen.{name}");
        let is_tls =
            self.pair(&place, "certificate", config.certificate.as_ref(), "key", config.key.as_ref()).is_some();
        let is_local = config.address.ip().is_loopback();
        self.require(
            is_tls || is_local || config.plaintext,
            &place,
            "certificate and key are needed, or plaintext = true, because the address is not loopback",
        );
        let clients = config.clients;
        self.require(
            clients != ClientsKind::Mtls || (is_tls && config.client_ca.is_some()),
            &place,
            "clients = \"mtls\" needs certificate, key and client_ca; say clients = \"open\" to let everybody in",
        );
        self.require(
            clients == ClientsKind::Mtls || (config.client_ca.is_none() && config.principals.is_empty()),
            &place,
            "client_ca and principals are for clients = \"mtls\"",
        );
        self.require(
            (clients == ClientsKind::Bearer) == config.tokens.is_some(),
            &place,
            "clients = \"bearer\" and tokens need each other",
        );
        let is_forward = config.kind == ListenKind::Forward;
        let authority = self.pair(
            &place,
            "authority_certificate",
            config.authority_certificate.as_ref(),
            "authority_key",
            config.authority_key.as_ref(),
        );
        self.require(
            is_forward == authority.is_some(),
            &place,
            "kind = \"forward\" and authority_certificate with authority_key need each other",
        );
        self.require(is_forward || config.tunnel.is_empty(), &place, "tunnel is for kind = \"forward\"");
        let tunnel = config.tunnel.iter().filter_map(|text| {
            let destination = Destination::parse(text);
            self.require(destination.is_some(), &place, "an entry of tunnel is no host:port, or an IP address");
            destination
        });
        let tunnel = tunnel.collect();
        if clients == ClientsKind::Open && !is_local {
            self.warnings.push(format!("{place}: everybody who reaches the address is let in"));
        }
        CompiledListener { name: name.into(), config: config.clone(), routes: RouteTable::default(), tunnel }
    }

    /// Rules for routes of a CONNECT proxy.
    fn forward_route(&mut self, place: &str, route: &RouteConfig, listener: &CompiledListener, upstream: &Upstream) {
        if listener.config.kind == ListenKind::Forward {
            self.require(
                route.host == *upstream.host,
                place,
                "host must be the host of the upstream, which is intercepted",
            );
            self.require(upstream.is_tls, place, "the upstream must be https, because the tunnel was");
        }
    }

    fn methods(&mut self, place: &str, route: &RouteConfig) -> Vec<Method> {
        let mut methods = Vec::new();
        for name in &route.methods {
            match Method::from_bytes(name.as_bytes()) {
                Ok(method) if method != Method::CONNECT => methods.push(method),
                _ => self.error(place, "an entry of methods is no method"),
            }
        }
        methods
    }

    fn route(&mut self, place: &str, config: &Config, route: &RouteConfig, upstream: &Pool) -> Route {
        let has_rules = !route.request.is_empty() || !route.response.is_empty();
        self.require(has_rules != route.pass, place, "a route has rules, or pass = true");
        self.require((1..=86_400_000).contains(&route.deadline_ms), place, "deadline_ms must be in 1..=86400000");
        let body_bytes_max = route.body_bytes.unwrap_or(config.limits.body_bytes);
        self.require(
            (1..=config.limits.memory_bytes / 2).contains(&body_bytes_max),
            place,
            "body_bytes must be at least 1 and at most half of limits.memory_bytes",
        );
        let request = self.rules(place, "request", route, &route.request);
        let response = self.rules(place, "response", route, &route.response);
        let reveals = request.iter().chain(&response).any(|rule| rule.action.reveals());
        let fail_open = route.fail == FailKind::Open;
        self.require(!fail_open || !reveals, place, "fail = \"open\" is not possible with decrypt or detokenize");
        if fail_open {
            self.warnings.push(format!("{place}: values pass in the clear if the engine does not answer"));
        }
        let prefix = route.strip_prefix.as_deref();
        let is_prefix = prefix.is_none_or(|prefix| {
            prefix.starts_with('/') && !prefix.ends_with('/') && route.path.starts_with(prefix) && !prefix.contains('{')
        });
        self.require(is_prefix, place, "strip_prefix must begin the path, without a final /");
        self.require(
            response.iter().all(|rule| rule.query.is_empty() && rule.segments.is_empty()),
            place,
            "query and segments are for request rules",
        );
        let direction =
            |rules, stream, unparsed| Direction::new(rules, stream, unparsed == UnparsedKind::Pass, body_bytes_max);
        Route {
            name: route.name.as_str().into(),
            path: route.path.as_str().into(),
            upstream: upstream.clone(),
            strip_prefix: prefix.map(Into::into),
            pass: route.pass,
            request: direction(request, route.request_stream, route.request_unparsed),
            response: direction(response, route.response_stream, route.response_unparsed),
            fail_open,
            deadline: Duration::from_millis(route.deadline_ms),
            websocket_origins: route.websocket_origins.clone(),
        }
    }

    fn rules(&mut self, route_place: &str, direction: &str, route: &RouteConfig, rules: &[RuleConfig]) -> Vec<Rule> {
        let numbered = rules.iter().enumerate();
        numbered
            .filter_map(|(at, rule)| self.rule(&format!("{route_place}, {direction} rule {}", at + 1), route, rule))
            .collect()
    }

    fn rule(&mut self, place: &str, route: &RouteConfig, rule: &RuleConfig) -> Option<Rule> {
        let selects =
            !(rule.select.is_empty() && rule.headers.is_empty() && rule.query.is_empty() && rule.segments.is_empty());
        self.require(selects, place, "a rule needs select, headers, query or segments");
        let app = rule.app.as_ref().or(route.app.as_ref());
        self.require(app.is_some(), place, "app is missing, here and at the route");
        let action = self.action(place, rule)?;
        let body = match Selection::parse(rule.select.iter().map(String::as_str)) {
            Ok(selection) => (!rule.select.is_empty()).then(|| Arc::new(selection)),
            Err(error) => {
                self.error(place, &error.to_string());
                None
            }
        };
        let headers = rule.headers.iter().filter_map(|name| self.header(place, name)).collect();
        let known: Vec<&str> =
            route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        self.require(
            rule.segments.iter().all(|name| known.contains(&name.as_str())),
            place,
            "segments names no segment of the route's path",
        );
        let context = match &rule.context {
            None => Context::None,
            Some(ContextConfig::Literal(text)) => Context::Literal(text.as_bytes().into()),
            Some(ContextConfig::Header { header }) => Context::Header(self.header(place, header)?),
            Some(ContextConfig::Segment { segment }) => {
                self.require(known.contains(&segment.as_str()), place, "context names no segment of the route's path");
                Context::Segment(segment.as_str().into())
            }
        };
        self.require(rule.action != ActionKind::Mask || rule.context.is_none(), place, "mask takes no context");
        let types = rule.types.iter().map(|name| name.trim().to_ascii_lowercase().into()).collect();
        Some(Rule {
            action,
            app: app?.as_str().into(),
            context,
            types,
            body,
            select: rule.select.iter().map(|path| path.as_str().into()).collect(),
            headers,
            query: rule.query.iter().map(|name| name.as_str().into()).collect(),
            segments: rule.segments.iter().map(|name| name.as_str().into()).collect(),
            required: rule.required,
            containers: match rule.containers {
                ContainersKind::Deny => Containers::Deny,
                ContainersKind::Whole => Containers::Whole,
                ContainersKind::Leaves => Containers::Leaves,
            },
            unneeded: match rule.unneeded {
                None => Unneeded::Default,
                Some(UnneededKind::Pass) => Unneeded::Pass,
                Some(UnneededKind::Deny) => Unneeded::Deny,
                Some(UnneededKind::Apply) => Unneeded::Apply,
            },
        })
    }

    fn action(&mut self, place: &str, rule: &RuleConfig) -> Option<Action> {
        let is_of_tokens = matches!(rule.action, ActionKind::Tokenize | ActionKind::Detokenize);
        self.require(
            is_of_tokens == rule.collection.is_some(),
            place,
            "tokenize and detokenize need collection, and no other action has one",
        );
        self.require(
            (rule.action == ActionKind::Mask) == rule.mask.is_some(),
            place,
            "action = \"mask\" and mask = \"FUNCTION\" need each other",
        );
        Some(match rule.action {
            ActionKind::Encrypt => Action::Encrypt,
            ActionKind::Decrypt => Action::Decrypt,
            ActionKind::Tokenize => Action::Tokenize { collection: rule.collection.as_deref()?.into() },
            ActionKind::Detokenize => Action::Detokenize { collection: rule.collection.as_deref()?.into() },
            ActionKind::Mask => Action::Mask { function: rule.mask.as_deref()?.into() },
        })
    }

    fn header(&mut self, place: &str, name: &str) -> Option<HeaderName> {
        let header =
            HeaderName::from_bytes(name.as_bytes()).ok().filter(|name| !FIXED_HEADERS.contains(&name.as_str()));
        self.require(header.is_some(), place, "a header is no header name, or one that cannot be replaced");
        header
    }
}
