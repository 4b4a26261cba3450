//! Finds listeners whose clients can have any envelope decrypted. Such a client sends the envelope
//! where `encrypt` lets envelopes pass, and reads its value where a response rule decrypts.
//!
//! An envelope without a context can be decrypted in every place. A client with an envelope of
//! `$.ssn` could send it as `$.card.number`. Only routes of one listener to one upstream are
//! compared, because the relay does not know how an upstream uses values of other clients. Two
//! names for the same scheme, host and port are one upstream.

use http::Uri;
use sealwire_relay_body::Format;

use super::compiler::Compiler;
use super::{ActionKind, Config, ContextConfig, RouteConfig, RuleConfig, UnneededKind};

/// Methods that store nothing.
const READING: [&str; 4] = ["GET", "HEAD", "OPTIONS", "TRACE"];

impl Compiler {
    /// Compares all routes with each other.
    pub(super) fn oracles(&mut self, config: &Config) {
        for reading in &config.route {
            let mut reveals: Vec<&RuleConfig> = reading
                .response
                .iter()
                .filter(|rule| reveals(rule))
                .collect();
            reveals.retain(|rule| !is_bound(config, reading, rule));
            let beside = config
                .route
                .iter()
                .filter(|route| route.listen == reading.listen);
            let beside = beside.filter(|route| has_one_upstream(config, route, reading));
            for route in beside.filter(|_| !reveals.is_empty()) {
                let opens = reveals
                    .iter()
                    .any(|rule| rule.action == ActionKind::Decrypt);
                // A response can repeat content of its own request, whatever the method.
                if opens && (writes(route) || route.name == reading.name) {
                    route
                        .request
                        .iter()
                        .enumerate()
                        .for_each(|(at, rule)| self.passing(reading, route, at, rule));
                }
                if writes(route) {
                    self.unguarded(reading, &reveals, route);
                }
            }
        }
        // Two routes that read can cause the same error for one route that writes.
        let mut told = std::collections::HashSet::new();
        self.errors
            .retain(|error| told.insert((error.place.clone(), error.message.clone())));
        let mut told = std::collections::HashSet::new();
        self.warnings.retain(|warning| told.insert(warning.clone()));
    }

    /// Reports a rule that lets envelopes pass without saying so.
    fn passing(
        &mut self,
        reading: &RouteConfig,
        route: &RouteConfig,
        at: usize,
        rule: &RuleConfig,
    ) {
        if rule.action != ActionKind::Encrypt {
            return;
        }
        let place = format!("route \"{}\", request rule {}", route.name, at + 1);
        let opened = format!(
            "route {} decrypts responses for the same clients",
            reading.name
        );
        match rule.unneeded {
            Some(UnneededKind::Deny | UnneededKind::Apply) => {}
            Some(UnneededKind::Pass) => self.warnings.push(format!(
                "{place}: clients can send envelopes of other places and have them opened, because unneeded = \"pass\", and {opened}"
            )),
            None => self.error(
                &format!("{place}.unneeded"),
                &format!(
                    "is missing: {opened}, who could send an envelope of another place here and read its value. Say unneeded = \"deny\", \
                     or give both rules a context that no other place has; unneeded = \"pass\" accepts the risk"
                ),
            ),
        }
    }

    /// Reports a revealed place without a rule where clients can write it. Each format that clients
    /// can write needs a rule.
    fn unguarded(&mut self, reading: &RouteConfig, reveals: &[&RuleConfig], route: &RouteConfig) {
        let rules: Vec<(&RuleConfig, Vec<Format>)> = route
            .request
            .iter()
            .filter(|rule| !rule.select.is_empty())
            .map(|rule| (rule, formats(rule)))
            .collect();
        // Without a rule for bodies, all formats pass. With such a rule, formats without a rule are
        // denied.
        let is_guarded_in = |path: &String, format: &Format| {
            let is_for = |(rule, formats): &&(&RuleConfig, Vec<Format>)| {
                rule.select.contains(path) && formats.iter().any(|other| other.is_like(format))
            };
            rules
                .iter()
                .find(is_for)
                .is_some_and(|(rule, _)| seals(rule))
        };
        let is_guarded = |path: &&String| {
            !rules.is_empty()
                && rules
                    .iter()
                    .flat_map(|(_, formats)| formats)
                    .all(|format| is_guarded_in(path, format))
        };
        let mut paths = reveals.iter().flat_map(|rule| &rule.select);
        if let Some(path) = paths.find(|path| !is_guarded(path)) {
            self.warnings.push(format!(
                "route \"{}\": clients can write envelopes to {path}, which no request rule seals here in each media type and route {} \
                 reveals; give it a rule with unneeded = \"deny\" for each of them, or a context there",
                route.name, reading.name
            ));
        }
    }
}

fn reveals(rule: &RuleConfig) -> bool {
    matches!(rule.action, ActionKind::Decrypt | ActionKind::Detokenize)
}

fn writes(route: &RouteConfig) -> bool {
    let is_writing = |method: &String| !READING.contains(&method.as_str());
    route.websocket_origins.is_some()
        || route.methods.is_empty()
        || route.methods.iter().any(is_writing)
}

/// Returns true if the rule replaces every envelope or token of a client. [`Compiler::passing`]
/// checks the exceptions of `encrypt`.
fn seals(rule: &RuleConfig) -> bool {
    matches!(
        rule.action,
        ActionKind::Encrypt | ActionKind::Tokenize | ActionKind::Mask
    )
}

/// Returns the formats of a rule for requests.
fn formats(rule: &RuleConfig) -> Vec<Format> {
    if rule.types.is_empty() {
        return vec![Format::Json];
    }
    let read =
        |name: &String| Format::from_content_type(&format!("{}; boundary=b", name.trim())).ok();
    rule.types.iter().filter_map(read).collect()
}

/// Returns true if both routes lead to the same server. On external-processing listeners, Envoy
/// chooses the server.
fn has_one_upstream(config: &Config, one: &RouteConfig, other: &RouteConfig) -> bool {
    let server = |route: &RouteConfig| {
        let uri = config
            .upstream
            .get(route.upstream.as_ref()?)?
            .url
            .parse::<Uri>()
            .ok()?;
        let scheme = uri.scheme_str()?.to_owned();
        let port = uri
            .port_u16()
            .unwrap_or(if scheme == "https" { 443 } else { 80 });
        Some((
            scheme,
            uri.host()?.trim_end_matches('.').to_ascii_lowercase(),
            port,
        ))
    };
    one.upstream == other.upstream
        || server(one).is_some_and(|server_of_one| server(other) == Some(server_of_one))
}

/// Returns true if both routes address the same place on one upstream: a collection, such as
/// `/cards`, or an item of it, such as `/cards/{id}`.
fn is_one_place(config: &Config, one: &RouteConfig, other: &RouteConfig) -> bool {
    let place = |route: &RouteConfig| {
        let prefix = route.strip_prefix.as_deref().unwrap_or_default();
        let path = route.path.strip_prefix(prefix).unwrap_or(&route.path);
        let is_variable = |part: &&str| part.starts_with('{') && !part.starts_with("{*");
        let parts = path.split('/').filter(|part| !part.is_empty());
        let mut parts: Vec<String> = parts
            .map(|part| {
                if is_variable(&part) {
                    "{}".to_owned()
                } else {
                    part.to_owned()
                }
            })
            .collect();
        while parts.last().is_some_and(|part| part == "{}") {
            parts.pop();
        }
        parts
    };
    has_one_upstream(config, one, other) && place(one) == place(other)
}

/// Returns true if the rule decrypts only envelopes of its own places. For that it needs a context
/// with which no rule seals values of other places. The same selector on a route to another
/// resource is another place.
fn is_bound(config: &Config, route: &RouteConfig, rule: &RuleConfig) -> bool {
    let Some(context) = &rule.context else {
        return false;
    };
    let seals_elsewhere = |(other_route, other): (&RouteConfig, &RuleConfig)| {
        let places = [
            (&other.select, &rule.select),
            (&other.headers, &rule.headers),
        ];
        let has_others = !is_one_place(config, other_route, route)
            || places
                .iter()
                .any(|(others, own)| others.iter().any(|place| !own.contains(place)))
            || !other.query.is_empty()
            || !other.segments.is_empty();
        other.action == ActionKind::Encrypt
            && other.app.as_ref().or(other_route.app.as_ref())
                == rule.app.as_ref().or(route.app.as_ref())
            && other
                .context
                .as_ref()
                .is_some_and(|other| is_same(other, context))
            && has_others
    };
    let rules = config.route.iter().flat_map(|route| {
        route
            .request
            .iter()
            .chain(&route.response)
            .map(move |rule| (route, rule))
    });
    !rules.into_iter().any(seals_elsewhere)
}

/// Returns true if both contexts can have the same bytes.
fn is_same(one: &ContextConfig, other: &ContextConfig) -> bool {
    match (one, other) {
        (ContextConfig::Literal(one), ContextConfig::Literal(other)) => one == other,
        // Clients control headers and can send the context of another rule.
        _ => true,
    }
}
