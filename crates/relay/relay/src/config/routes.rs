//! Compiles routes and their rules.

use std::time::Duration;

use http::{HeaderName, Method};
use sealwire_payload::{SelectError, Selection};
use sealwire_relay_body::Format;

use super::compiler::{BODY_TOO_LONG, Compiler};
use super::{
    ActionKind, Config, ContainersKind, ContextConfig, FailKind, RouteConfig, RuleConfig,
    UnneededKind, UnparsedKind,
};
use crate::route::{AcceptedNames, Action, Containers, Context, Direction, Route, Rule, Unneeded};
use crate::upstream::pool::Pool;
use crate::websocket::Sessions;

/// Headers that no rule can replace, because they carry framing, routing, the identity of the
/// exchange, or the type and coding of the body.
const FIXED_HEADERS: [&str; 20] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "x-request-id",
];

impl Compiler {
    pub(super) fn methods(&mut self, place: &str, route: &RouteConfig) -> Vec<Method> {
        let mut methods = Vec::new();
        for name in &route.methods {
            match Method::from_bytes(name.as_bytes()) {
                Ok(method)
                    if method != Method::CONNECT
                        && name.bytes().all(|byte| !byte.is_ascii_lowercase()) =>
                {
                    methods.push(method);
                }
                _ => self.error(
                    &format!("{place}.methods"),
                    "each entry must be a method in capital letters, such as GET, except CONNECT",
                ),
            }
        }
        methods
    }

    pub(super) fn route(
        &mut self,
        place: &str,
        config: &Config,
        route: &RouteConfig,
        upstream: Option<&Pool>,
    ) -> Route {
        let has_rules = !route.request.is_empty() || !route.response.is_empty();
        self.require(
            has_rules != route.pass,
            place,
            "a route needs either rules or pass = true. Add [[route.request]] or [[route.response]], or set pass = true",
        );
        let body_bytes_max = route.body_bytes.unwrap_or(config.limits.body_bytes);
        let connection = config.limits.connection_memory_bytes();
        let place_of_length = format!("{place}.body_bytes");
        self.require(
            body_bytes_max <= connection / 2,
            &place_of_length,
            BODY_TOO_LONG,
        );
        let passes =
            [route.request_unparsed, route.response_unparsed].contains(&UnparsedKind::Pass);
        self.require(
            !passes || body_bytes_max <= connection / 3,
            &place_of_length,
            "must be at most a third of limits.connection_memory_bytes with request_unparsed or response_unparsed \"pass\", because the relay keeps a second, unchanged copy of the body",
        );
        self.require(
            route.websocket_origins.is_none() || body_bytes_max <= connection / 5,
            &place_of_length,
            "must be at most a fifth of limits.connection_memory_bytes with websocket_origins: a message takes four times its length, and the other direction keeps the buffer of its longest one",
        );
        let request = self.rules(place, "request", route, &route.request);
        let response = self.rules(place, "response", route, &route.response);
        self.require(
            response
                .iter()
                .all(|rule| rule.query.is_empty() && rule.segments.is_empty()),
            place,
            "query and segments work only in request rules. Remove them from the response rules",
        );
        self.fail_open(place, config, route, &request, &response);
        self.strip_prefix(place, route);
        self.origins(place, route);
        self.require(
            route.websockets_per_client_max <= route.websockets_max,
            &format!("{place}.websockets_per_client_max"),
            "must be at most websockets_max",
        );
        let request = self.direction(
            place,
            route,
            request,
            route.request_stream,
            route.request_unparsed,
            body_bytes_max,
        );
        let response = self.direction(
            place,
            route,
            response,
            route.response_stream,
            route.response_unparsed,
            body_bytes_max,
        );
        self.accepted_names(place, route, &request, &response);
        Route {
            name: route.name.as_str().into(),
            path: route.path.as_str().into(),
            via: format!("sealwire-relay-{:016x}", rand::random::<u64>()).into(),
            upstream: upstream.cloned(),
            strip_prefix: route.strip_prefix.as_deref().map(Into::into),
            pass: route.pass,
            request,
            response,
            fail_open: route.fail == FailKind::Open,
            deadline: Duration::from_millis(route.deadline_ms),
            websockets: Sessions::new(
                route.websocket_origins.clone(),
                route.websockets_max,
                route.websockets_per_client_max,
            ),
        }
    }

    fn direction(
        &mut self,
        place: &str,
        route: &RouteConfig,
        rules: Vec<Rule>,
        stream: bool,
        unparsed: UnparsedKind,
        body_bytes_max: usize,
    ) -> Direction {
        let accepted = AcceptedNames {
            names: texts(&route.accepted_names),
            query: texts(&route.accepted_query),
        };
        let direction = Direction::new(
            rules,
            stream,
            unparsed == UnparsedKind::Pass,
            body_bytes_max,
            accepted,
        );
        self.require(
            direction.is_some(),
            place,
            "the rules select fields of more than 10,000 names. Select fewer",
        );
        direction.unwrap_or_default()
    }

    /// Checks that an accepted name is not selected by a rule, and would be rejected without the
    /// entry.
    fn accepted_names(
        &mut self,
        place: &str,
        route: &RouteConfig,
        request: &Direction,
        response: &Direction,
    ) {
        let directions = [request, response];
        for (at, name) in route.accepted_names.iter().enumerate() {
            let place = format!("{place}.accepted_names");
            let is_selected = directions
                .iter()
                .any(|direction| direction.guard.is_selected(name));
            let is_other = directions
                .iter()
                .any(|direction| direction.guard.is_other_spelling(name));
            self.require(
                !is_selected,
                &place,
                &format!("entry {} is selected by a rule", at + 1),
            );
            self.require(
                is_selected || is_other,
                &place,
                &format!(
                    "entry {} is not another spelling of a name that a rule seals",
                    at + 1
                ),
            );
        }
        for (at, name) in route.accepted_query.iter().enumerate() {
            let place = format!("{place}.accepted_query");
            let is_selected = request
                .rules
                .iter()
                .any(|rule| rule.query.iter().any(|other| **other == **name));
            let is_sealed = request.guard.matches(name);
            self.require(
                !is_selected,
                &place,
                &format!("entry {} is selected in the query", at + 1),
            );
            self.require(
                is_sealed,
                &place,
                &format!(
                    "entry {} is not the name of a value that a rule seals",
                    at + 1
                ),
            );
        }
    }

    fn fail_open(
        &mut self,
        place: &str,
        config: &Config,
        route: &RouteConfig,
        request: &[Rule],
        response: &[Rule],
    ) {
        if route.fail == FailKind::Open {
            let reveals = request
                .iter()
                .chain(response)
                .any(|rule| rule.action.reveals());
            self.require(
                !reveals,
                &format!("{place}.fail"),
                "fail = \"open\" is not possible with decrypt or detokenize",
            );
            self.warnings.push(format!(
                "{place}: values pass in the clear if the engine does not respond"
            ));
            // If the deadline of a request ends first, the relay cannot know whether the engine or
            // the client is slow. Such a request fails.
            if route.deadline_ms < config.engine.deadline_ms.into() {
                self.warnings.push(format!("{place}: fail = \"open\" has no effect on a slow engine, because deadline_ms is less than engine.deadline_ms"));
            }
        }
        for (direction, unparsed, rules) in [
            ("request", route.request_unparsed, request),
            ("response", route.response_unparsed, response),
        ] {
            if unparsed == UnparsedKind::Pass && !rules.is_empty() {
                self.warnings.push(format!(
                    "{place}: {direction} bodies that cannot be read pass unchanged"
                ));
            }
        }
    }

    fn strip_prefix(&mut self, place: &str, route: &RouteConfig) {
        let is_prefix = route.strip_prefix.as_deref().is_none_or(|prefix| {
            let is_plain =
                prefix.starts_with('/') && !prefix.ends_with('/') && !prefix.contains(['{', '}']);
            let rest = route.path.strip_prefix(prefix);
            is_plain && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        self.require(
            is_prefix,
            &format!("{place}.strip_prefix"),
            "must be the first segments of the path, without a final /",
        );
    }

    fn origins(&mut self, place: &str, route: &RouteConfig) {
        let is_origin = |origin: &String| {
            let host = origin.split_once("://").map(|(_, host)| host);
            origin == "*"
                || host.is_some_and(|host| {
                    !host.is_empty() && !host.contains(['/', '@', '*', '?', '#'])
                })
        };
        self.require(
            route.websocket_origins.iter().flatten().all(is_origin),
            &format!("{place}.websocket_origins"),
            "each entry must be an origin, such as \"https://www.example.com\", or \"*\"",
        );
    }

    fn rules(
        &mut self,
        route_place: &str,
        direction: &str,
        route: &RouteConfig,
        rules: &[RuleConfig],
    ) -> Vec<Rule> {
        let mut compiled: Vec<Rule> = Vec::new();
        for (at, config) in rules.iter().enumerate() {
            let place = format!("{route_place}, {direction} rule {}", at + 1);
            let Some(rule) = self.rule(&place, route, config, direction == "request") else {
                continue;
            };
            if compiled.iter().any(|earlier| covers(earlier, &rule)) {
                self.warnings.push(format!(
                    "{place}: an earlier rule selects all of its values"
                ));
            }
            compiled.push(rule);
        }
        compiled
    }

    fn rule(
        &mut self,
        place: &str,
        route: &RouteConfig,
        rule: &RuleConfig,
        is_request: bool,
    ) -> Option<Rule> {
        let is_empty = rule.select.is_empty()
            && rule.headers.is_empty()
            && rule.query.is_empty()
            && rule.segments.is_empty();
        self.require(
            !is_empty,
            place,
            "the rule selects nothing. Set select, headers, query or segments",
        );
        self.require(
            rule.types.is_empty() || !rule.select.is_empty(),
            &format!("{place}.types"),
            "has no effect without select",
        );
        let app = rule.app.as_ref().or(route.app.as_ref());
        self.require(
            app.is_some(),
            place,
            "app is not set. Set it in the rule or in the route",
        );
        let action = self.action(place, rule)?;
        let selection = self.selection(place, rule)?;
        let context = self.context(place, route, rule)?;
        let named = segments(&route.path);
        self.require(
            rule.segments
                .iter()
                .all(|name| named.contains(&name.as_str())),
            &format!("{place}.segments"),
            "each entry must be a name in braces of the route's path",
        );
        Some(Rule {
            action,
            app: app?.as_str().into(),
            context,
            formats: self.formats(place, rule, is_request),
            body: (!rule.select.is_empty()).then(|| selection.into()),
            select: texts(&rule.select),
            headers: rule
                .headers
                .iter()
                .filter_map(|name| self.header(&format!("{place}.headers"), name))
                .collect(),
            query: texts(&rule.query),
            segments: texts(&rule.segments),
            required: rule.required,
            containers: containers(rule.containers),
            unneeded: unneeded(rule.unneeded),
        })
    }

    fn selection(&mut self, place: &str, rule: &RuleConfig) -> Option<Selection> {
        let place = format!("{place}.select");
        let error = match Selection::parse(rule.select.iter().map(String::as_str)) {
            Ok(selection) => return Some(selection),
            Err(error) => error,
        };
        // The error gives the number of the entry, because errors never repeat a value.
        let number = |path: &str| {
            rule.select
                .iter()
                .position(|entry| entry == path)
                .map_or(0, |at| at + 1)
        };
        let message = match &error {
            SelectError::Syntax { path, at, expected } => {
                format!(
                    "entry {} is not a path: expected {expected} at byte {at}",
                    number(path)
                )
            }
            SelectError::TooManySteps { steps_max, .. } => {
                format!("the paths have more than {steps_max} steps in all")
            }
        };
        self.error(&place, &message);
        None
    }

    /// Returns the formats of a rule's media types. Without types, a rule for requests is for JSON,
    /// because clients choose the type of a request and some services ignore it.
    fn formats(&mut self, place: &str, rule: &RuleConfig, is_request: bool) -> Vec<Format> {
        if rule.types.is_empty() {
            return if is_request {
                vec![Format::Json]
            } else {
                Vec::new()
            };
        }
        let read = |name: &String| {
            // The boundary is a parameter of each message, so the configured type has no
            // parameters.
            let name = Some(name.trim()).filter(|name| !name.contains(';'))?;
            Format::from_content_type(&format!("{name}; boundary=b")).ok()
        };
        let formats: Vec<Format> = rule.types.iter().filter_map(read).collect();
        self.require(
            formats.len() == rule.types.len(),
            &format!("{place}.types"),
            "each entry must be a media type that the relay reads, such as \"application/json\", without parameters",
        );
        let is_nested = |path: &String| {
            let quoted =
                path.starts_with("$['") && path.ends_with("']") && path.matches('\'').count() == 2;
            !quoted && path.matches(['.', '[']).count() > 1
        };
        self.require(
            !formats.iter().any(Format::is_flat) || !rule.select.iter().any(is_nested),
            &format!("{place}.select"),
            "forms and multipart bodies have names without levels, such as $.card or $['card[number]']: put them into a separate rule",
        );
        formats
    }

    fn context(&mut self, place: &str, route: &RouteConfig, rule: &RuleConfig) -> Option<Context> {
        let place = format!("{place}.context");
        self.require(
            rule.action != ActionKind::Mask || rule.context.is_none(),
            &place,
            "has no effect with action = \"mask\". Remove it",
        );
        let is_reserved = |text: &String| text.starts_with(sealwire_wire::CONTEXT_RESERVED);
        let literal = rule.context.as_ref().and_then(|context| match context {
            ContextConfig::Literal(text) => Some(text),
            _ => None,
        });
        self.require(
            !literal.is_some_and(is_reserved),
            &place,
            "must not begin with sealwire/, which engines reject",
        );
        Some(match &rule.context {
            None => Context::None,
            Some(ContextConfig::Literal(text)) => Context::Literal(text.as_bytes().into()),
            Some(ContextConfig::Header { header }) => Context::Header(self.header(&place, header)?),
            Some(ContextConfig::Segment { segment }) => {
                let is_named = segments(&route.path).contains(&segment.as_str());
                self.require(
                    is_named,
                    &place,
                    "segment must be a name in braces of the route's path",
                );
                Context::Segment(segment.as_str().into())
            }
        })
    }

    fn action(&mut self, place: &str, rule: &RuleConfig) -> Option<Action> {
        let is_of_tokens = matches!(rule.action, ActionKind::Tokenize | ActionKind::Detokenize);
        self.require(
            is_of_tokens == rule.collection.is_some(),
            place,
            "collection must be set with the actions tokenize and detokenize, and only with these",
        );
        self.require(
            (rule.action == ActionKind::Mask) == rule.mask.is_some(),
            place,
            "action = \"mask\" needs mask = \"FUNCTION\", and other actions must not have it",
        );
        Some(match rule.action {
            ActionKind::Encrypt => Action::Encrypt,
            ActionKind::Decrypt => Action::Decrypt,
            ActionKind::Tokenize => Action::Tokenize {
                collection: rule.collection.as_deref()?.into(),
            },
            ActionKind::Detokenize => Action::Detokenize {
                collection: rule.collection.as_deref()?.into(),
            },
            ActionKind::Mask => Action::Mask {
                function: rule.mask.as_deref()?.into(),
            },
        })
    }

    fn header(&mut self, place: &str, name: &str) -> Option<HeaderName> {
        let header = HeaderName::from_bytes(name.as_bytes())
            .ok()
            .filter(|name| !FIXED_HEADERS.contains(&name.as_str()));
        self.require(
            header.is_some(),
            place,
            "each header must be a valid name, and not one that the relay itself sets",
        );
        header
    }
}

/// Returns true if `later` never applies: `earlier` is for the same messages and selects all of its
/// places.
fn covers(earlier: &Rule, later: &Rule) -> bool {
    let is_for = |format: &Format| earlier.formats.iter().any(|other| other.is_like(format));
    let has_types = earlier.formats.is_empty()
        || (!later.formats.is_empty() && later.formats.iter().all(is_for));
    (has_types || later.select.is_empty())
        && later
            .select
            .iter()
            .all(|path| earlier.select.contains(path))
        && later
            .headers
            .iter()
            .all(|name| earlier.headers.contains(name))
        && later.query.iter().all(|name| earlier.query.contains(name))
        && later
            .segments
            .iter()
            .all(|name| earlier.segments.contains(name))
}

const fn containers(kind: ContainersKind) -> Containers {
    match kind {
        ContainersKind::Deny => Containers::Deny,
        ContainersKind::Whole => Containers::Whole,
        ContainersKind::Leaves => Containers::Leaves,
    }
}

const fn unneeded(kind: Option<UnneededKind>) -> Unneeded {
    match kind {
        None => Unneeded::Default,
        Some(UnneededKind::Pass) => Unneeded::Pass,
        Some(UnneededKind::Deny) => Unneeded::Deny,
        Some(UnneededKind::Apply) => Unneeded::Apply,
    }
}

/// Returns the names of the segments of a path that can be replaced.
fn segments(path: &str) -> Vec<&str> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .filter(|name| !name.starts_with('*'))
        .collect()
}

fn texts(texts: &[String]) -> Vec<Box<str>> {
    texts.iter().map(|text| text.as_str().into()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{compile, parse};

    const PROCESS: &str = "[engine]\nendpoints = ['e:7443']\nca = 'ca'\ncertificate = 'c'\nkey = 'k'\n\
        [listen.public]\naddress = '127.0.0.1:0'\nclients = 'open'\n\
        [listen.egress]\naddress = '127.0.0.1:0'\nkind = 'forward'\nclients = 'open'\n\
        authority_certificate = 'a'\nauthority_key = 'b'\n\
        [listen.envoy]\naddress = '127.0.0.1:0'\nkind = 'ext_proc'\nclients = 'open'\n\
        [upstream.shop]\nurl = 'http://shop.internal'\n[upstream.api]\nurl = 'https://API.example/v1/'\nroots = 'r'\n";

    /// Errors of a configuration with these routes, without lines; or its warnings.
    fn compiled(routes: &str) -> Result<Vec<String>, Vec<String>> {
        let config = parse(&format!("{PROCESS}{routes}"), [])
            .unwrap_or_else(|errors| panic!("{errors}\n{routes}"));
        match compile(&config) {
            Ok(compiled) => Ok(compiled.warnings),
            Err(errors) => {
                assert!(errors.iter().all(|error| error.line.is_some()), "{errors}");
                assert!(!errors.to_string().contains("s3cret"), "{errors}");
                Err(errors
                    .iter()
                    .map(|error| format!("{}: {}", error.place, error.message))
                    .collect())
            }
        }
    }

    fn route(keys: &str) -> String {
        format!(
            "[[route]]\nname = 'r'\nlisten = 'public'\npath = '/orders/{{id}}'\nupstream = 'shop'\n{keys}\n"
        )
    }

    fn ruled(rule: &str) -> String {
        route(&format!("app = 'shop'\n[[route.request]]\n{rule}"))
    }

    #[track_caller]
    fn is_rejected(routes: &str, expected: &str) {
        let errors = compiled(routes).unwrap_err();
        assert!(
            errors.iter().any(|error| error.contains(expected)),
            "{routes}\n{errors:?}"
        );
    }

    #[test]
    fn a_complete_route_has_no_warning() {
        let rules = "app = 'shop'\nstrip_prefix = '/orders'\nmethods = ['GET', 'PURGE']\nwebsocket_origins = ['https://a.example:8443', '*']\n\
            [[route.request]]\naction = 'encrypt'\nunneeded = 'deny'\nselect = ['$.a']\nsegments = ['id']\nheaders = ['x-card']\nquery = ['card']\n\
            types = ['application/JSON', 'multipart/form-data', 'application/vnd.shop+json']\ncontext = { segment = 'id' }\n\
            [[route.response]]\naction = 'decrypt'\nselect = ['$.a']\nheaders = ['x-card']\ncontext = { header = 'x-tenant' }";
        assert_eq!(compiled(&route(rules)), Ok(vec![]));
    }

    #[test]
    fn routes_are_checked() {
        for (keys, expected) in [
            (
                "",
                "route \"r\": a route needs either rules or pass = true. Add [[route.request]] or [[route.response]], or set pass = true",
            ),
            (
                "pass = true\napp = 'a'\n[[route.request]]\naction = 'encrypt'\nselect = ['$.a']",
                "a route needs either rules or",
            ),
            (
                "pass = true\nbody_bytes = 1_000_000_000",
                "route \"r\".body_bytes: must be at most half",
            ),
            (
                "pass = true\nmethods = ['GET', 's3cret']",
                "route \"r\".methods: each entry must be a method",
            ),
            (
                "pass = true\nmethods = ['CONNECT']",
                "route \"r\".methods: each entry must be a method",
            ),
            (
                "pass = true\nmethods = ['']",
                "route \"r\".methods: each entry must be a method",
            ),
            (
                "pass = true\nstrip_prefix = 'orders'",
                "route \"r\".strip_prefix: must be the first segments",
            ),
            (
                "pass = true\nstrip_prefix = '/ord'",
                "route \"r\".strip_prefix: must be the first segments",
            ),
            (
                "pass = true\nstrip_prefix = '/orders/'",
                "route \"r\".strip_prefix: must be the first segments",
            ),
            (
                "pass = true\nstrip_prefix = '/orders/{id}'",
                "route \"r\".strip_prefix: must be the first segments",
            ),
            (
                "pass = true\nwebsocket_origins = ['s3cret']",
                "route \"r\".websocket_origins: each entry must be an origin",
            ),
            (
                "pass = true\nwebsocket_origins = ['https://a/']",
                "route \"r\".websocket_origins: each entry must be an origin",
            ),
            (
                "pass = true\nhost = 's3cret/'",
                "route \"r\": the host must be a name",
            ),
            (
                "pass = true\nhost = '*.'",
                "route \"r\": the host must be a name",
            ),
        ] {
            is_rejected(&route(keys), expected);
        }
        is_rejected(
            &route("pass = true").replace("upstream = 'shop'\n", ""),
            "route \"r\": upstream is missing",
        );
        for key in [
            "upstream = 'shop'",
            "strip_prefix = '/orders'",
            "websocket_origins = ['*']",
        ] {
            let external =
                route(&format!("pass = true\n{key}")).replacen("upstream = 'shop'\n", "", 1);
            let name = key.split(' ').next().unwrap();
            is_rejected(
                &external.replace("'public'", "'envoy'"),
                &format!("route \"r\".{name}: must not be set"),
            );
        }
        let external = route("pass = true")
            .replace("upstream = 'shop'\n", "")
            .replace("'public'", "'envoy'");
        assert_eq!(compiled(&external), Ok(vec![]));
        for (from, to, expected) in [
            (
                "'public'",
                "'s3cret'",
                "route \"r\": listen names a listener that does not exist",
            ),
            (
                "'shop'",
                "'s3cret'",
                "route \"r\": upstream names an upstream that does not exist; add a section [upstream.NAME] or correct the name",
            ),
            (
                "'/orders/{id}'",
                "'s3cret'",
                "route \"r\": the path must begin with `/`",
            ),
            (
                "'/orders/{id'",
                "'/{s3cret'",
                "route \"r\": the path must begin with `/`",
            ),
            (
                "'public'",
                "'egress'",
                "route \"r\": host must be the host of the upstream",
            ),
            (
                "'public'",
                "'egress'",
                "route \"r\": the upstream must use https",
            ),
        ] {
            let text = route("pass = true").replace(from, to).replace(
                "'/orders/{id}'",
                if from.contains("{id'") {
                    to
                } else {
                    "'/orders/{id}'"
                },
            );
            is_rejected(&text, expected);
        }
    }

    #[test]
    fn rules_are_checked() {
        let selected = |rest: &str| ruled(&format!("action = 'encrypt'\nselect = ['$.a']\n{rest}"));
        for (routes, expected) in [
            (
                ruled("action = 'encrypt'"),
                "rule 1: the rule selects nothing",
            ),
            (
                selected("").replace("app = 'shop'\n", ""),
                "rule 1: app is not set",
            ),
            (
                ruled("action = 'encrypt'\nselect = ['$.a', '$.s3cret[']"),
                "rule 1.select: entry 2 is not a path: expected",
            ),
            (
                ruled("action = 'encrypt'\nselect = ['s3cret']"),
                "rule 1.select: entry 1 is not a path: expected",
            ),
            (
                ruled("action = 'encrypt'\nheaders = ['x']\ntypes = ['application/json']"),
                "rule 1.types: has no effect without select",
            ),
            (
                selected("types = ['application/xml']"),
                "rule 1.types: each entry must be a media type that the relay reads",
            ),
            (
                selected("types = ['application/json; charset=utf-8']"),
                "rule 1.types: each entry must be a media type",
            ),
            (
                selected("types = ['s3cret']"),
                "rule 1.types: each entry must be a media type",
            ),
            (
                selected("segments = ['s3cret']"),
                "rule 1.segments: each entry must be a name in braces",
            ),
            (
                selected("context = { segment = 's3cret' }"),
                "rule 1.context: segment must be a name in braces",
            ),
            (
                selected("context = { header = 's3cret ' }"),
                "rule 1.context: each header must be a valid name",
            ),
            (
                selected("collection = 's3cret'"),
                "rule 1: collection must be set with the actions",
            ),
            (
                selected("mask = 's3cret'"),
                "rule 1: action = \"mask\" needs mask",
            ),
            (
                ruled("action = 'tokenize'\nselect = ['$.a']"),
                "rule 1: collection must be set with the actions",
            ),
            (
                ruled("action = 'detokenize'\nselect = ['$.a']"),
                "rule 1: collection must be set with the actions",
            ),
            (
                ruled("action = 'mask'\nselect = ['$.a']"),
                "rule 1: action = \"mask\" needs mask",
            ),
            (
                ruled("action = 'mask'\nmask = 'm'\nselect = ['$.a']\ncontext = 'x'"),
                "rule 1.context: has no effect with action = \"mask\"",
            ),
            (
                selected("context = 'sealwire/object/1'"),
                "rule 1.context: must not begin with sealwire/, which engines reject",
            ),
            (
                selected("[[route.response]]\naction = 'decrypt'\nquery = ['a']"),
                "route \"r\": query and segments work only in request rules",
            ),
            (
                route(
                    "app = 'a'\nfail = 'open'\n[[route.request]]\naction = 'decrypt'\nselect = ['$.a']",
                ),
                "route \"r\".fail: fail = \"open\" is not possible with decrypt or detokenize",
            ),
            (
                route(
                    "app = 'a'\nfail = 'open'\n[[route.response]]\naction = 'detokenize'\ncollection = 'c'\nselect = ['$.a']",
                ),
                "route \"r\".fail: fail = \"open\" is not possible with decrypt or detokenize",
            ),
        ] {
            is_rejected(&routes, expected);
        }
        for header in super::FIXED_HEADERS
            .into_iter()
            .chain(["s3cret ", "", "Content-Length"])
        {
            is_rejected(
                &ruled(&format!("action = 'encrypt'\nheaders = ['{header}']")),
                "rule 1.headers: each header must be a valid name, and not one that the relay itself sets",
            );
        }
    }

    /// A route that encrypts, and one that decrypts, with further keys of their rules.
    fn revealing(encrypts: &str, decrypts: &str) -> String {
        let first = ruled(&format!(
            "action = 'encrypt'\nselect = ['$.card']\n{encrypts}"
        ));
        let second = route(&format!(
            "methods = ['GET']\napp = 'shop'\n[[route.response]]\naction = 'decrypt'\nselect = ['$.card']\n{decrypts}"
        ));
        first.replace("app = ", "methods = ['POST']\napp = ") + &second.replace("'r'", "'get'")
    }

    #[test]
    fn a_listener_that_reveals_says_what_becomes_of_envelopes_of_clients() {
        const ERROR: &str = "route \"r\", request rule 1.unneeded: is missing: ";
        let ssn = |context: &str| {
            let rule = format!(
                "[[route.request]]\naction = 'encrypt'\nselect = ['$.ssn']\nunneeded = 'deny'\n{context}"
            );
            route(&format!("app = 'shop'\n{rule}"))
                .replace("'r'", "'ssn'")
                .replace("/orders", "/people")
        };
        let context = "context = 'card'";
        // The route distinguishes two places, although their values have the same path.
        let passports = format!(
            "[[route.request]]\naction = 'encrypt'\nselect = ['$.card']\nunneeded = 'deny'\n{context}"
        );
        let passports = route(&format!("app = 'shop'\n{passports}")).replace("'r'", "'passports'");
        // A second name for an upstream.
        let alias = "[upstream.alias]\nurl = 'http://SHOP.internal:80/v2'\n";
        let query = |unneeded: &str| {
            route(&format!(
                "methods = ['GET']\napp = 'shop'\n[[route.request]]\naction = 'encrypt'\nquery = ['q']\n{unneeded}\n\
                 [[route.response]]\naction = 'decrypt'\nselect = ['$.card']"
            ))
        };
        for (routes, is_accepted) in [
            (
                revealing("", "").replacen("'shop'\nmethods", "'alias'\nmethods", 1) + alias,
                false,
            ),
            (
                revealing("", "").replacen("'shop'\nmethods", "'api'\nmethods", 1),
                true,
            ),
            (query(""), false),
            (query("unneeded = 'deny'"), true),
            (
                revealing(context, context) + &passports.replace("/orders", "/passports"),
                false,
            ),
            (
                revealing(context, context) + &passports.replace("/{id}", ""),
                true,
            ),
            (revealing("", ""), false),
            (revealing("unneeded = 'deny'", ""), true),
            (revealing("unneeded = 'apply'", ""), true),
            // An envelope of any app passes.
            (
                revealing("", "").replacen("'shop'\n[[", "'other'\n[[", 1),
                false,
            ),
            // Envelopes without a context open.
            (revealing(context, ""), false),
            (revealing(context, context), true),
            (
                revealing(
                    "context = { segment = 'id' }",
                    "context = { segment = 'id' }",
                ),
                true,
            ),
            // Values of another place have the same context.
            (revealing(context, context) + &ssn(context), false),
            (revealing(context, context) + &ssn("context = 'ssn'"), true),
            // A token is a value before `encrypt`.
            (
                revealing("", "").replacen("'decrypt'", "'detokenize'\ncollection = 'c'", 1),
                true,
            ),
            (
                revealing("", "").replacen("'encrypt'", "'tokenize'\ncollection = 'c'", 1),
                true,
            ),
            (
                revealing("", "").replacen("'encrypt'", "'mask'\nmask = 'm'", 1),
                true,
            ),
            (ruled("action = 'encrypt'\nselect = ['$.card']"), true),
        ] {
            match compiled(&routes) {
                Ok(warnings) => {
                    assert!(is_accepted && warnings.is_empty(), "{routes}\n{warnings:?}")
                }
                Err(errors) => {
                    assert!(
                        !is_accepted && errors.iter().any(|error| error.starts_with(ERROR)),
                        "{routes}\n{errors:?}"
                    );
                }
            }
        }
        // The operator's word is taken, and repeated.
        let warnings = compiled(&revealing("unneeded = 'pass'", "")).unwrap();
        assert!(
            warnings[0].starts_with(
                "route \"r\", request rule 1: clients can send envelopes of other places"
            ),
            "{warnings:?}"
        );
    }

    #[test]
    fn places_that_clients_write_and_others_read_in_the_clear_are_told() {
        let pass = |keys: &str| {
            revealing("unneeded = 'deny'", "")
                + &route(&format!("pass = true\n{keys}"))
                    .replace("'r'", "'raw'")
                    .replace("/{id}", "")
        };
        let guarded = |rules: &str| {
            revealing("unneeded = 'deny'", "").replacen(
                "[[route.request]]\n",
                &format!("{rules}[[route.request]]\n"),
                1,
            )
        };
        let first = |action: &str, keys: &str| {
            format!("[[route.request]]\naction = '{action}'\nselect = ['$.card']\n{keys}\n")
        };
        let other_type = |select: &str| {
            guarded(&format!(
                "[[route.request]]\naction = 'mask'\nmask = 'm'\nselect = ['{select}']\ntypes = ['application/x-www-form-urlencoded']\n"
            ))
        };
        let both =
            route("app = 'shop'\n[[route.response]]\naction = 'decrypt'\nselect = ['$.card']");
        for (routes, expected) in [
            (pass("methods = ['GET', 'HEAD', 'OPTIONS']"), None),
            (pass("methods = ['GET', 'PATCH']"), Some("route \"raw\"")),
            (pass(""), Some("route \"raw\"")),
            (
                pass("methods = ['GET']\nwebsocket_origins = ['*']"),
                Some("route \"raw\""),
            ),
            (both.clone(), Some("route \"r\"")),
            // A rule guards in its formats, if it seals.
            (other_type("$.card"), None),
            (other_type("$.other"), Some("route \"r\"")),
            (
                guarded("").replace(
                    "unneeded = 'deny'",
                    "unneeded = 'deny'\ntypes = ['multipart/form-data']",
                ),
                None,
            ),
            (guarded(&first("decrypt", "")), Some("route \"r\"")),
            (
                guarded(&first("decrypt", "types = ['application/x-ndjson']")),
                Some("route \"r\""),
            ),
            (
                guarded(&first("detokenize", "collection = 'c'")),
                Some("route \"r\""),
            ),
            (both.replace("app = ", "methods = ['GET']\napp = "), None),
        ] {
            let mut warnings = compiled(&routes).unwrap_or_else(|errors| panic!("{errors:?}"));
            warnings
                .retain(|warning| !warning.contains("an earlier rule selects all of its values"));
            let expected: Vec<String> = expected
                .map(|place| format!("{place}: clients can write envelopes to $.card"))
                .into_iter()
                .collect();
            assert_eq!(warnings.len(), expected.len(), "{routes}\n{warnings:?}");
            assert!(
                warnings
                    .iter()
                    .zip(&expected)
                    .all(|(told, start)| told.starts_with(start)),
                "{warnings:?}"
            );
        }
    }

    #[test]
    fn accepted_names_are_other_spellings_of_sealed_ones() {
        const SELECTED: &str = "route \"r\".accepted_names: entry 1 is selected by a rule";
        const NO_SPELLING: &str = "route \"r\".accepted_names: entry 2 is not another spelling of a name that a rule seals";
        const IN_QUERY: &str = "route \"r\".accepted_query: entry 1 is selected in the query";
        const NO_NAME: &str =
            "route \"r\".accepted_query: entry 1 is not the name of a value that a rule seals";
        let rule = "action = 'encrypt'\nselect = ['$.user.id']\nquery = ['ssn']";
        for (keys, expected) in [
            (
                "accepted_names = ['_id', 'ID', 'User', 'user.id', '_ssn']",
                "",
            ),
            ("accepted_names = ['id']", SELECTED),
            ("accepted_names = ['user']", SELECTED),
            ("accepted_names = ['ssn']", SELECTED),
            ("accepted_names = ['_id', 'idx']", NO_SPELLING),
            ("accepted_names = ['_id', '']", NO_SPELLING),
            ("accepted_query = ['user[id]', 'user.id']", ""),
            ("accepted_query = ['id']", NO_NAME),
            ("accepted_query = ['ssn']", IN_QUERY),
            ("accepted_query = ['sort']", NO_NAME),
        ] {
            let text = ruled(rule).replace("app = ", &format!("{keys}\napp = "));
            match expected {
                "" => assert_eq!(compiled(&text), Ok(vec![]), "{keys}"),
                expected => is_rejected(&text, expected),
            }
        }
        // A rule that reveals seals no name.
        let revealing = ruled("action = 'decrypt'\nselect = ['$.id']");
        is_rejected(
            &revealing.replace("app = ", "accepted_names = ['x', '_id']\napp = "),
            NO_SPELLING,
        );
        // Each bracket has 20 names.
        let names: Vec<String> = (0..20).map(|at| format!("'n{at}'")).collect();
        let many = format!("$[{0}][{0}][{0}][{0}]", names.join(",")).replace('\'', "\\\"");
        is_rejected(
            &ruled(&format!("action = 'encrypt'\nselect = [\"{many}\"]")),
            "the rules select fields of more than 10,000 names. Select fewer",
        );
    }

    #[test]
    fn two_routes_for_one_request_are_rejected() {
        let other = |keys: &str| route("pass = true") + &route(keys).replace("'r'", "'other'");
        for (keys, expected) in [
            (
                "pass = true",
                "route \"other\": route r has this host, path and method",
            ),
            ("pass = true\nmethods = ['GET']", ""),
            ("pass = true\nhost = 'a.example'", ""),
        ] {
            match expected {
                "" => assert_eq!(compiled(&other(keys)), Ok(vec![]), "{keys}"),
                expected => is_rejected(&other(keys), expected),
            }
        }
        is_rejected(
            &(route("pass = true") + &route("pass = true")),
            "route \"r\": another route has this name",
        );
        let overlaps = route("pass = true")
            + &route("pass = true")
                .replace("'r'", "'o'")
                .replace("{id}", "{other}");
        is_rejected(
            &overlaps,
            "route \"o\": the path conflicts with that of another route",
        );
    }

    #[test]
    fn warnings_tell_what_passes_and_what_never_applies() {
        let second = |rule: &str| {
            ruled(&format!(
                "action = 'encrypt'\nselect = ['$.a', '$.b']\nheaders = ['x']\n[[route.request]]\naction = 'mask'\nmask = 'm'\n{rule}"
            ))
        };
        let unreachable = "route \"r\", request rule 2: an earlier rule selects all of its values";
        for (rule, is_unreachable) in [
            ("select = ['$.b']", true),
            ("select = ['$.b']\ntypes = ['application/json']", true),
            ("headers = ['X']", true),
            ("select = ['$.b']\nheaders = ['y']", false),
            ("select = ['$.c']", false),
            ("query = ['x']", false),
        ] {
            let expected = if is_unreachable {
                vec![unreachable.to_owned()]
            } else {
                vec![]
            };
            assert_eq!(compiled(&second(rule)), Ok(expected), "{rule}");
        }
        let narrow = second("select = ['$.b']")
            .replace("headers = ['x']", "types = ['application/x-ndjson']");
        assert_eq!(compiled(&narrow), Ok(vec![]));
        let open = ruled("action = 'encrypt'\nselect = ['$.a']");
        let open = open.replace("app = ", "fail = 'open'\nrequest_unparsed = 'pass'\napp = ");
        let warnings = compiled(&open).unwrap();
        assert!(
            warnings[0].contains("values pass in the clear"),
            "{warnings:?}"
        );
        assert!(
            warnings[1].contains("request bodies that cannot be read pass unchanged"),
            "{warnings:?}"
        );
        let hasty = compiled(&open.replace("fail = ", "deadline_ms = 1999\nfail = ")).unwrap();
        assert!(
            hasty[1].contains("has no effect on a slow engine"),
            "{hasty:?}"
        );
    }
}
