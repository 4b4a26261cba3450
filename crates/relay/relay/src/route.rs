//! Routes: a route selects the upstream of a request and the rules for the request and its
//! response.
//!
//! [`crate::config`] compiles routes from text. This module reads no file and no socket.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use sealwire_payload::Selection;
use sealwire_relay_body::name::NameSet;
use sealwire_relay_body::{BodyRule, Format, Guard, Limits, RuleSet, Scanner, SealedValues};

use crate::error::Phase;
use crate::upstream::pool::Pool;
use crate::websocket::Sessions;

/// A route of a listener.
#[derive(Debug)]
pub struct Route {
    /// Unique name, for logs and metrics.
    pub name: Arc<str>,
    /// Path as configured. The log has it instead of the path of the request, which can contain
    /// values.
    pub path: Box<str>,
    /// Name in `Via`, by which the relay detects a request that has already passed it. Each process
    /// has another name.
    pub via: Box<str>,
    /// Destination of the requests. `None` on external-processing listeners, whose proxy knows the
    /// destination.
    pub upstream: Option<Pool>,
    /// Replacement for the matched prefix of the path, for upstreams that are mounted elsewhere.
    /// `None` keeps the path.
    pub strip_prefix: Option<Box<str>>,
    /// If true, bodies and headers pass unchanged, and no rule exists.
    pub pass: bool,
    /// Rules for requests.
    pub request: Direction,
    /// Rules for responses.
    pub response: Direction,
    /// If true, values pass in the clear when the engine does not respond and they cannot be
    /// encrypted, tokenized or masked. Never true for a route with a rule that decrypts or
    /// detokenizes.
    pub fail_open: bool,
    /// Time from the first byte of a request to the last byte of its response, unless the response
    /// streams.
    pub deadline: Duration,
    /// WebSockets that are permitted.
    pub websockets: Sessions,
}

/// The rules for one direction of a route.
#[derive(Debug, Default)]
pub struct Direction {
    /// The rules, in order of precedence: the first rule that selects a value applies to it.
    pub rules: Vec<Rule>,
    /// If true, a body is forwarded while it arrives. If false, it is forwarded after all its
    /// values were replaced.
    pub stream: bool,
    /// If true, a body passes unchanged if it is malformed, or has a type or coding that the relay
    /// cannot read.
    pub pass_unparsed: bool,
    /// Longest body in bytes that is held before it is forwarded. Streamed bodies have no such
    /// limit.
    pub body_bytes_max: usize,
    /// Names that are rejected where no rule seals their values.
    pub guard: Arc<Guard>,
    /// Query parameters that pass although a rule seals a value with their name elsewhere.
    pub accepted_query: Vec<Box<str>>,
    /// Headers whose values rules seal.
    pub sealed_headers: NameSet,
    /// Fields whose values rules for forms seal; `None` without such rules.
    form_names: Option<Arc<NameSet>>,
    /// The rules for bodies, if each of them is for every media type.
    shared: Option<Arc<RuleSet>>,
}

/// Names that a route accepts although they resemble names of sealed values.
#[derive(Clone, Debug, Default)]
pub struct AcceptedNames {
    /// Keys, fields, parts and query parameters, in exactly this spelling.
    pub names: Vec<Box<str>>,
    /// Query parameters whose names a rule seals elsewhere.
    pub query: Vec<Box<str>>,
}

impl Direction {
    /// Creates a direction. Returns `None` if a rule that seals has too many names.
    pub fn new(
        rules: Vec<Rule>,
        stream: bool,
        pass_unparsed: bool,
        body_bytes_max: usize,
        accepted: AcceptedNames,
    ) -> Option<Self> {
        let guard = Arc::new(Guard::new(
            &sealed_values(&rules, |_| true),
            &accepted.names,
        )?);

        let form_names = if rules.iter().any(Rule::is_for_forms) {
            let form_guard = Guard::new(
                &sealed_values(&rules, |rule| {
                    rule.is_for_forms() || rule.formats.is_empty()
                }),
                &[],
            )?;
            Some(Arc::new(form_guard.into_names()))
        } else {
            None
        };

        let mut sealed_headers = NameSet::new(false);
        for (at, rule) in rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| !rule.action.reveals())
        {
            rule.headers
                .iter()
                .for_each(|name| sealed_headers.insert(name.as_str(), at));
        }

        let is_for_all = rules.iter().all(|rule| rule.formats.is_empty());
        let shared = is_for_all.then(|| {
            let body_rules = rules.iter().map(|rule| rule.body_rule(true)).collect();
            Arc::new(RuleSet::new(body_rules, Arc::clone(&guard)))
        });
        let accepted_query = accepted.query;
        Some(Self {
            rules,
            stream,
            pass_unparsed,
            body_bytes_max,
            guard,
            accepted_query,
            sealed_headers,
            form_names,
            shared,
        })
    }

    /// Returns true if a rule produces plaintext.
    pub fn reveals(&self) -> bool {
        self.rules.iter().any(|rule| rule.action.reveals())
    }

    /// Returns the rules for bodies of a format, at the positions of all rules. Returns `None` if
    /// no rule is for the format.
    pub fn body_rules(&self, format: &Format) -> Option<Arc<RuleSet>> {
        if let Some(shared) = &self.shared {
            return Some(Arc::clone(shared));
        }
        if !self.rules.iter().any(|rule| rule.is_for_bodies_of(format)) {
            return None;
        }
        let body_rules = self
            .rules
            .iter()
            .map(|rule| rule.body_rule(rule.is_for_bodies_of(format)))
            .collect();
        Some(Arc::new(RuleSet::new(body_rules, Arc::clone(&self.guard))))
    }

    /// Creates a scanner for a body of a format, with the rules for that format.
    pub fn new_scanner(
        &self,
        format: Format,
        rules: Arc<RuleSet>,
        limits: Limits,
        phase: Phase,
    ) -> Scanner {
        // An upstream that reads forms may parse a body of another type as a form.
        let is_guarded = !format.is_flat() && phase == Phase::Request;
        let scanner = Scanner::new(format, rules, limits);
        match self.form_names.as_ref().filter(|_| is_guarded) {
            Some(names) => scanner.rejecting_forms(Arc::clone(names)),
            None => scanner,
        }
    }
}

/// Returns the values that are sealed by the rules that `is_wanted` selects.
fn sealed_values(rules: &[Rule], is_wanted: impl Fn(&Rule) -> bool) -> Vec<SealedValues<'_>> {
    let sealing = rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| !rule.action.reveals() && is_wanted(rule));
    sealing
        .map(|(at, rule)| SealedValues {
            rule: at,
            body: rule.body.as_deref(),
            query: &rule.query,
        })
        .collect()
}

impl Rule {
    fn is_for_forms(&self) -> bool {
        self.formats.contains(&Format::Form)
    }

    /// Returns true if the rule selects values in bodies of a format.
    fn is_for_bodies_of(&self, format: &Format) -> bool {
        self.body.is_some()
            && (self.formats.is_empty() || self.formats.iter().any(|other| other.is_like(format)))
    }

    /// Returns the rule for the body scanner. A rule that does not apply gets no selection.
    fn body_rule(&self, applies: bool) -> BodyRule {
        let selection = self.body.clone().filter(|_| applies);
        let containers = match self.containers {
            Containers::Deny => sealwire_relay_body::Containers::Deny,
            Containers::Whole => sealwire_relay_body::Containers::Whole,
            Containers::Leaves => sealwire_relay_body::Containers::Leaves,
        };
        let seals = !self.action.reveals();
        BodyRule {
            required: self.required && selection.is_some(),
            selection,
            containers,
            seals,
        }
    }

    /// Returns true if a message without a value in its body is rejected.
    pub const fn requires_body_value(&self) -> bool {
        self.required && self.body.is_some()
    }

    /// Returns the first path, header or parameter name of the rule, for messages.
    pub fn first_select(&self) -> Option<Box<str>> {
        self.select
            .first()
            .cloned()
            .or_else(|| self.headers.first().map(|name| name.as_str().into()))
            .or_else(|| self.query.first().or(self.segments.first()).cloned())
    }
}

/// A rule: the values that it selects, and the action on them.
#[derive(Debug)]
pub struct Rule {
    /// The action.
    pub action: Action,
    /// The app by its name in the engine.
    pub app: Arc<str>,
    /// Bytes that each value is bound to.
    pub context: Context,
    /// Formats of bodies that the rule is for; empty for every format. All JSON media types are one
    /// format, because the sender chooses the type.
    pub formats: Vec<Format>,
    /// Values in the body: paths as in the engine's `select`.
    pub body: Option<Arc<Selection>>,
    /// The texts of `body`, for messages.
    pub select: Vec<Box<str>>,
    /// Headers whose whole value is replaced.
    pub headers: Vec<HeaderName>,
    /// Query parameters whose value is replaced.
    pub query: Vec<Box<str>>,
    /// Path segments that are replaced: names in braces of the route's path.
    pub segments: Vec<Box<str>>,
    /// If true, a message without any selected value, or with a null there, is rejected.
    pub required: bool,
    /// Handling of selected arrays and objects.
    pub containers: Containers,
    /// Handling of values that need no action: an envelope before `encrypt`, or no envelope before
    /// `decrypt`.
    pub unneeded: Unneeded,
}

/// Replacement of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Replaces a value with an envelope.
    Encrypt,
    /// Replaces an envelope with its value.
    Decrypt,
    /// Stores a value and replaces it with a token of the collection.
    Tokenize {
        /// The collection.
        collection: Box<str>,
    },
    /// Replaces a token of the collection with its value.
    Detokenize {
        /// The collection.
        collection: Box<str>,
    },
    /// Replaces a value with a masked value of similar form.
    Mask {
        /// The masking function, such as `partial(last=4)`.
        function: Box<str>,
    },
}

impl Action {
    /// Name in the configuration, logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::Tokenize { .. } => "tokenize",
            Self::Detokenize { .. } => "detokenize",
            Self::Mask { .. } => "mask",
        }
    }

    /// Returns true if the action produces plaintext. A route with such a rule never fails open.
    pub const fn reveals(&self) -> bool {
        matches!(self, Self::Decrypt | Self::Detokenize { .. })
    }
}

/// Source of a rule's context bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Context {
    /// No context.
    #[default]
    None,
    /// The configured bytes.
    Literal(Box<[u8]>),
    /// The value of a request header, which must occur once.
    Header(HeaderName),
    /// A path segment: a name in braces of the route's path.
    Segment(Box<str>),
}

/// Handling of a selected array or object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Containers {
    /// The message is rejected.
    #[default]
    Deny,
    /// The container is one value.
    Whole,
    /// Each scalar beneath it is a value.
    Leaves,
}

/// Handling of a value that needs no action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unneeded {
    /// `encrypt` passes native envelopes. `decrypt` rejects a message whose value is not an
    /// envelope.
    #[default]
    Default,
    /// The value passes unchanged.
    Pass,
    /// The message is rejected.
    Deny,
    /// The action is applied as to any other value, so an envelope is encrypted again.
    Apply,
}
