//! Looks for listeners whose clients can have any envelope opened: they send it where `encrypt` lets envelopes pass, and
//! read its value where a response rule decrypts.
//!
//! An envelope that was sealed without a context opens in every place, so a client who finds one of `$.ssn` could send it
//! as `$.card.number`. Only routes of one listener to one upstream are compared: what an upstream does with values of
//! other clients is not known here.

use super::compiler::Compiler;
use super::{ActionKind, Config, ContextConfig, RouteConfig, RuleConfig, UnneededKind};

/// Methods that store nothing.
const READING: [&str; 4] = ["GET", "HEAD", "OPTIONS", "TRACE"];

impl Compiler {
    /// Compares all routes with each other.
    pub(super) fn oracles(&mut self, config: &Config) {
        for reading in &config.route {
            let mut reveals: Vec<&RuleConfig> = reading.response.iter().filter(|rule| reveals(rule)).collect();
            reveals.retain(|rule| !is_bound(config, reading, rule));
            let writing = config.route.iter().filter(|route| writes(route));
            let writing = writing.filter(|route| route.listen == reading.listen && route.upstream == reading.upstream);
            for route in writing.filter(|_| !reveals.is_empty()) {
                let opens = reveals.iter().any(|rule| rule.action == ActionKind::Decrypt);
                route
                    .request
                    .iter()
                    .enumerate()
                    .filter(|_| opens)
                    .for_each(|(at, rule)| self.passing(reading, route, at, rule));
                self.unguarded(reading, &reveals, route);
            }
        }
        // Two routes that read can have the same to say about one that writes.
        let mut told = std::collections::HashSet::new();
        self.errors.retain(|error| told.insert((error.place.clone(), error.message.clone())));
        let mut told = std::collections::HashSet::new();
        self.warnings.retain(|warning| told.insert(warning.clone()));
    }

    /// A rule that lets envelopes pass must say so.
    fn passing(&mut self, reading: &RouteConfig, route: &RouteConfig, at: usize, rule: &RuleConfig) {
        if rule.action != ActionKind::Encrypt {
            return;
        }
        let place = format!("route \"{}\", request rule {}", route.name, at + 1);
        let opened = format!("route {} decrypts responses for the same clients", reading.name);
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

    /// A place that is revealed needs a rule where clients can write it.
    fn unguarded(&mut self, reading: &RouteConfig, reveals: &[&RuleConfig], route: &RouteConfig) {
        let is_guarded = |path: &&String| route.request.iter().any(|rule| rule.select.contains(path));
        let mut paths = reveals.iter().flat_map(|rule| &rule.select);
        if let Some(path) = paths.find(|path| !is_guarded(path)) {
            self.warnings.push(format!(
                "route \"{}\": clients can write envelopes to {path}, which no request rule selects here and route {} reveals; give it a \
                 rule with unneeded = \"deny\", a context there, or methods = [\"GET\"] here",
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
    route.websocket_origins.is_some() || route.methods.is_empty() || route.methods.iter().any(is_writing)
}

/// Returns true if only envelopes of the rule's own places open for it: it has a context, and no rule seals values of
/// other places with that.
fn is_bound(config: &Config, route: &RouteConfig, rule: &RuleConfig) -> bool {
    let Some(context) = &rule.context else { return false };
    let seals_elsewhere = |(other_route, other): (&RouteConfig, &RuleConfig)| {
        let places = [(&other.select, &rule.select), (&other.headers, &rule.headers)];
        let has_others = places.iter().any(|(others, own)| others.iter().any(|place| !own.contains(place)))
            || !other.query.is_empty()
            || !other.segments.is_empty();
        other.action == ActionKind::Encrypt
            && other.app.as_ref().or(other_route.app.as_ref()) == rule.app.as_ref().or(route.app.as_ref())
            && other.context.as_ref().is_some_and(|other| is_same(other, context))
            && has_others
    };
    let rules = config
        .route
        .iter()
        .flat_map(|route| route.request.iter().chain(&route.response).map(move |rule| (route, rule)));
    !rules.into_iter().any(seals_elsewhere)
}

/// Returns true if both contexts can have the same bytes.
fn is_same(one: &ContextConfig, other: &ContextConfig) -> bool {
    match (one, other) {
        (ContextConfig::Literal(one), ContextConfig::Literal(other)) => one == other,
        // Headers are the client's, who can send what another rule takes from elsewhere.
        _ => true,
    }
}
