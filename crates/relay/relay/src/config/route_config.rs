//! Routes and rules in the form of the configuration file.

use serde::Deserialize;

/// A route.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Unique name.
    pub name: String,
    /// Name of its listener.
    pub listen: String,
    /// `api.example.com`, `*.example.com` or `*`.
    pub host: String,
    /// `/orders/{id}` or `/files/{*rest}`.
    pub path: String,
    /// Methods. Empty for all.
    pub methods: Vec<String>,
    /// Name of its upstream. Absent on external-processing listeners.
    pub upstream: Option<String>,
    /// Prefix of the path that is removed.
    pub strip_prefix: Option<String>,
    /// Passes requests and responses unchanged.
    pub pass: bool,
    /// Names that pass although they are other spellings of selected names.
    pub accepted_names: Vec<String>,
    /// Query parameters that pass although a rule seals a value with their name elsewhere.
    pub accepted_query: Vec<String>,
    /// App of the route's rules.
    pub app: Option<String>,
    /// Handling of values if the engine does not respond.
    pub fail: FailKind,
    /// Time for the exchange, in milliseconds.
    pub deadline_ms: u64,
    /// Longest body that is held, in bytes. Without it, `limits.body_bytes`.
    pub body_bytes: Option<usize>,
    /// Forwards request bodies while they arrive.
    pub request_stream: bool,
    /// Forwards response bodies while they arrive.
    pub response_stream: bool,
    /// Handling of request bodies that cannot be read.
    pub request_unparsed: UnparsedKind,
    /// Handling of response bodies that cannot be read.
    pub response_unparsed: UnparsedKind,
    /// Origins whose WebSockets are permitted. Without it, no WebSockets.
    pub websocket_origins: Option<Vec<String>>,
    /// Concurrent WebSockets.
    pub websockets_max: usize,
    /// Concurrent WebSockets of one client.
    pub websockets_per_client_max: usize,
    /// Rules for requests.
    #[serde(default)]
    pub request: Vec<RuleConfig>,
    /// Rules for responses.
    #[serde(default)]
    pub response: Vec<RuleConfig>,
}

/// Handling of values if the engine does not respond.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum FailKind {
    /// The request fails.
    Closed,
    /// Values pass in the clear.
    Open,
}

/// Handling of bodies that cannot be read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum UnparsedKind {
    /// The message is rejected.
    Deny,
    /// The body passes unchanged.
    Pass,
}

/// A rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// The action.
    pub action: ActionKind,
    /// Media types of bodies. Empty for every readable type.
    pub types: Vec<String>,
    /// Paths of values in the body.
    #[serde(default)]
    pub select: Vec<String>,
    /// Headers.
    pub headers: Vec<String>,
    /// Query parameters.
    pub query: Vec<String>,
    /// Path segments.
    pub segments: Vec<String>,
    /// App. Without it, the route's app.
    pub app: Option<String>,
    /// Collection of tokens.
    pub collection: Option<String>,
    /// Masking function.
    pub mask: Option<String>,
    /// Context bytes.
    pub context: Option<ContextConfig>,
    /// If true, a message without the value is rejected.
    pub required: bool,
    /// Handling of selected arrays and objects.
    pub containers: ContainersKind,
    /// Handling of values that need no action.
    pub unneeded: Option<UnneededKind>,
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are those of `route::Action`")]
pub enum ActionKind {
    Encrypt,
    Decrypt,
    Tokenize,
    Detokenize,
    Mask,
}

impl ActionKind {
    /// Returns the name in the configuration, which is also the name of the engine's method.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Mask => "mask",
        }
    }
}

/// Context of a rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum ContextConfig {
    /// The configured bytes.
    Literal(String),
    /// A header of the request.
    Header {
        /// Name of the header.
        header: String,
    },
    /// A path segment of the request.
    Segment {
        /// Name of the segment in the route's path.
        segment: String,
    },
}

/// Handling of selected arrays and objects.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are those of `route::Containers`")]
pub enum ContainersKind {
    Deny,
    Whole,
    Leaves,
}

/// Handling of values that need no action.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are those of `route::Unneeded`")]
pub enum UnneededKind {
    Pass,
    Deny,
    Apply,
}
