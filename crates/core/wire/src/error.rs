//! Errors of failed requests: a code from a closed list, a sentence, and hints.
//!
//! A message can name a parameter, a limit or a method. A message never contains a value of a
//! payload, data of an app, or the reason why an envelope did not open. An unknown code decodes as
//! `internal`, so that an older client loses one request to a newer server and not its connection.

use std::borrow::Cow;
use std::fmt;

use sealwire_msgpack::{Malformed, Token, TokenReader, write};

/// The kind of a failure. The list is complete; `proto/README.md` says how to handle each code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum ErrorCode {
    /// The request is invalid: a bug in the client.
    BadRequest,
    /// The request exceeds a limit on size, depth or count.
    TooLarge,
    /// The connection has no principal.
    Unauthenticated,
    /// The principal has no permission for the request.
    Forbidden,
    /// The method, the app or another named resource does not exist.
    NotFound,
    /// The request conflicts with the current state, or the server has not reached its
    /// `min_generation`.
    Conflict,
    /// An envelope did not open. The reason is never reported.
    CannotOpen,
    /// The client cancelled the request.
    Cancelled,
    /// The deadline of the request passed.
    DeadlineExceeded,
    /// Too much work is queued. Retry after `retry_after_ms`.
    Overloaded,
    /// The server is draining, or a dependency is not available. Retry on another server.
    Unavailable,
    /// A bug in the server.
    Internal,
}

impl ErrorCode {
    /// Every code, in the order of the contract's table.
    pub const ALL: [Self; 12] = [
        Self::BadRequest,
        Self::TooLarge,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::Conflict,
        Self::CannotOpen,
        Self::Cancelled,
        Self::DeadlineExceeded,
        Self::Overloaded,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The code on the wire; also a good metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::TooLarge => "too_large",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::CannotOpen => "cannot_open",
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }

    /// Returns the code with exactly this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// Returns true if the same request can succeed later without a change. A `conflict` can do so
    /// only if it has `retry_after_ms`.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Conflict | Self::Overloaded | Self::Unavailable => true,
            Self::BadRequest
            | Self::TooLarge
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::NotFound
            | Self::CannotOpen
            | Self::Cancelled
            | Self::DeadlineExceeded
            | Self::Internal => false,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a request is `overloaded`. The list is complete. `proto/README.md` explains every
/// reason to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverloadReason {
    /// Too much work of the same client is queued before the request.
    Backlog,
    /// The request would miss its deadline.
    Deadline,
    /// The client sends more than its quota, and requests of this size have used their part of it.
    Proportion,
    /// No memory is left for the request.
    Memory,
    /// The token store has too many uncommitted rows.
    Storage,
    /// The hourly field quota of the client's role is used up.
    Hourly,
}

impl OverloadReason {
    /// Every reason, in the order of the contract's table.
    pub const ALL: [Self; 6] = [
        Self::Backlog,
        Self::Deadline,
        Self::Proportion,
        Self::Memory,
        Self::Storage,
        Self::Hourly,
    ];

    /// The reason on the wire; also a good metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Backlog => "backlog",
            Self::Deadline => "deadline",
            Self::Proportion => "proportion",
            Self::Memory => "memory",
            Self::Storage => "storage",
            Self::Hourly => "hourly",
        }
    }

    /// The sentence for people.
    const fn message(self) -> &'static str {
        match self {
            Self::Backlog => "too much work is waiting",
            Self::Deadline => "the call would not be done by its deadline",
            Self::Proportion => "too many calls of this size",
            Self::Memory => "no memory for the call",
            Self::Storage => "the token store is behind",
            Self::Hourly => "the fields of this hour are used up",
        }
    }
}

/// A machine-readable fact about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Detail {
    /// The name of the fact.
    pub key: Cow<'static, str>,
    /// The value of the fact.
    pub value: DetailValue,
}

/// The value of a [`Detail`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum DetailValue {
    /// A name.
    Text(Cow<'static, str>),
    /// A count, a size in bytes or a time in milliseconds.
    Number(u64),
    /// Errors of parts of the request.
    Errors(Vec<ItemError>),
}

/// An error of one part of a request that was rejected as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct ItemError {
    /// The path of the part in the payload.
    pub path: String,
    /// The kind of failure.
    pub code: ErrorCode,
    /// A sentence for people.
    pub message: Cow<'static, str>,
}

impl Detail {
    /// A detail that is a name.
    pub fn text(key: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        Self {
            key: Cow::Borrowed(key),
            value: DetailValue::Text(value.into()),
        }
    }

    /// A detail that lists errors of parts of the request.
    pub fn errors(errors: Vec<ItemError>) -> Self {
        Self {
            key: Cow::Borrowed("errors"),
            value: DetailValue::Errors(errors),
        }
    }

    /// A detail that is a number.
    pub const fn number(key: &'static str, value: u64) -> Self {
        Self {
            key: Cow::Borrowed(key),
            value: DetailValue::Number(value),
        }
    }
}

/// The form of errors in the responses of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorFormat {
    /// A map.
    #[default]
    Map,
    /// A string, for clients whose library decodes the error slot as a string.
    Text,
}

impl ErrorFormat {
    /// The name of the format on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Text => "text",
        }
    }
}

/// The `error` of a response: `{code, message, retry_after_ms?, details?}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct RpcError {
    /// The kind of failure.
    pub code: ErrorCode,
    /// A sentence for people. Programs use `code` and `details`.
    pub message: Cow<'static, str>,
    /// How long to wait before the next try, in milliseconds.
    pub retry_after_ms: Option<u32>,
    /// Machine-readable facts; omitted on the wire if empty.
    pub details: Vec<Detail>,
}

impl RpcError {
    /// Creates an error without hints.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            retry_after_ms: None,
            details: Vec::new(),
        }
    }

    /// Creates an `overloaded` error with the hints of the contract: the pause before a retry, the
    /// reason, and, if known, the predicted time of the request. Times are in milliseconds.
    #[cfg_attr(not(feature = "exhaustive"), doc(hidden))]
    pub fn overloaded(
        reason: OverloadReason,
        retry_after_ms: u32,
        predicted_ms: Option<u64>,
    ) -> Self {
        let mut error = Self::new(ErrorCode::Overloaded, reason.message())
            .retry_after_ms(retry_after_ms)
            .with(Detail::text("reason", reason.name()));
        error
            .details
            .extend(predicted_ms.map(|predicted| Detail::number("predicted_ms", predicted)));
        error
    }

    /// Creates a `forbidden` error with the name of the operation and the missing part of the
    /// permission.
    #[cfg_attr(not(feature = "exhaustive"), doc(hidden))]
    pub fn not_granted(message: String, operation: &'static str, missing: &'static str) -> Self {
        Self::new(ErrorCode::Forbidden, message)
            .with(Detail::text("operation", operation))
            .with(Detail::text("missing", missing))
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, detail: Detail) -> Self {
        self.details.push(detail);
        self
    }

    /// Sets the pause before the next attempt, in milliseconds.
    #[must_use]
    pub fn retry_after_ms(mut self, pause: u32) -> Self {
        self.retry_after_ms = Some(pause);
        self
    }

    /// Appends the error as one map.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let keys =
            2 + u32::from(self.retry_after_ms.is_some()) + u32::from(!self.details.is_empty());
        write::map_len(out, keys);
        write::str(out, "code");
        write::str(out, self.code.name());
        write::str(out, "message");
        write::str(out, &self.message);
        if let Some(pause) = self.retry_after_ms {
            write::str(out, "retry_after_ms");
            write::uint(out, u64::from(pause));
        }
        if !self.details.is_empty() {
            write::str(out, "details");
            // The code adds a few entries to each list, so the length fits.
            write::map_len(out, u32::try_from(self.details.len()).unwrap_or(u32::MAX));
            for detail in &self.details {
                write::str(out, &detail.key);
                match &detail.value {
                    DetailValue::Text(text) => write::str(out, text),
                    DetailValue::Number(number) => write::uint(out, *number),
                    DetailValue::Errors(errors) => {
                        write::array_len(out, u32::try_from(errors.len()).unwrap_or(u32::MAX));
                        errors.iter().for_each(|error| error.encode(out));
                    }
                }
            }
        }
    }

    /// Formats the error as `code: message`. If it has hints, a tab and a JSON object follow, which
    /// holds the other keys of the map. The text has no other tab and no other control character.
    pub(crate) fn to_text(&self) -> String {
        let message: String = self
            .message
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char })
            .collect();
        let mut text = format!("{}: {message}", self.code);
        if self.retry_after_ms.is_none() && self.details.is_empty() {
            return text;
        }
        text.push_str("\t{");
        if let Some(pause) = self.retry_after_ms {
            text.push_str(&format!("\"retry_after_ms\":{pause}"));
        }
        if !self.details.is_empty() {
            text.push_str(if self.retry_after_ms.is_some() {
                ",\"details\":{"
            } else {
                "\"details\":{"
            });
            for (index, detail) in self.details.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                push_json_string(&mut text, &detail.key);
                text.push(':');
                match &detail.value {
                    DetailValue::Text(value) => push_json_string(&mut text, value),
                    DetailValue::Number(number) => text.push_str(&number.to_string()),
                    DetailValue::Errors(errors) => push_json_errors(&mut text, errors),
                }
            }
            text.push('}');
        }
        text.push('}');
        text
    }

    /// Appends the error in the given format.
    pub(crate) fn encode_as(&self, out: &mut Vec<u8>, format: ErrorFormat) {
        match format {
            ErrorFormat::Map => self.encode(out),
            ErrorFormat::Text => write::str(out, &self.to_text()),
        }
    }

    /// Reads an error and ignores unknown keys. An error that is a plain string, as other
    /// MessagePack-RPC servers send, becomes `internal` with this message.
    /// Rejects a value that is neither a string nor a map with a `code` and a `message`.
    pub(crate) fn decode(reader: &mut TokenReader<'_>) -> Result<Self, Malformed> {
        if let Token::Str(_) = reader.peek()? {
            return Ok(Self::new(
                ErrorCode::Internal,
                reader.str_utf8()?.to_owned(),
            ));
        }
        let mut code = None;
        let mut message = None;
        let mut error = Self::new(ErrorCode::Internal, "");
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "code" => {
                    code = Some(
                        ErrorCode::from_name(reader.str_utf8()?).unwrap_or(ErrorCode::Internal),
                    )
                }
                "message" => message = Some(reader.str_utf8()?.to_owned()),
                "retry_after_ms" => error.retry_after_ms = Some(reader.u32()?),
                "details" => error.details = decode_details(reader)?,
                _ => reader.skip_value()?,
            }
        }
        let missing = Malformed::Expected {
            expected: "an error with code and message",
            found: "a map without",
        };
        error.code = code.ok_or(missing)?;
        error.message = message.ok_or(missing)?.into();
        Ok(error)
    }
}

impl ItemError {
    fn encode(&self, out: &mut Vec<u8>) {
        write::map_len(out, 3);
        for (key, value) in [
            ("path", &*self.path),
            ("code", self.code.name()),
            ("message", &self.message),
        ] {
            write::str(out, key);
            write::str(out, value);
        }
    }

    fn decode(reader: &mut TokenReader<'_>) -> Result<Self, Malformed> {
        let mut error = Self {
            path: String::new(),
            code: ErrorCode::Internal,
            message: Cow::Borrowed(""),
        };
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "path" => error.path = reader.str_utf8()?.to_owned(),
                "code" => {
                    error.code =
                        ErrorCode::from_name(reader.str_utf8()?).unwrap_or(ErrorCode::Internal)
                }
                "message" => error.message = reader.str_utf8()?.to_owned().into(),
                _ => reader.skip_value()?,
            }
        }
        Ok(error)
    }
}

fn push_json_errors(text: &mut String, errors: &[ItemError]) {
    text.push('[');
    for (index, error) in errors.iter().enumerate() {
        text.push_str(if index > 0 { ",{" } else { "{" });
        let pairs = [
            ("\"path\":", &*error.path),
            (",\"code\":", error.code.name()),
            (",\"message\":", &error.message),
        ];
        for (key, value) in pairs {
            text.push_str(key);
            push_json_string(text, value);
        }
        text.push('}');
    }
    text.push(']');
}

/// Appends a JSON string.
pub(crate) fn push_json_string(text: &mut String, value: &str) {
    text.push('"');
    for char in value.chars() {
        match char {
            '"' | '\\' => text.extend(['\\', char]),
            // Every control character has at most two hexadecimal digits.
            _ if char.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(char))),
            _ => text.push(char),
        }
    }
    text.push('"');
}

/// Reads details. Omits details whose values have other types.
fn decode_details(reader: &mut TokenReader<'_>) -> Result<Vec<Detail>, Malformed> {
    let mut details = Vec::new();
    for _ in 0..reader.map_len()? {
        let key: Cow<'static, str> = reader.str_utf8()?.to_owned().into();
        let value = match reader.peek()? {
            Token::Str(_) => DetailValue::Text(reader.str_utf8()?.to_owned().into()),
            Token::Uint(number) => {
                reader.skip_value()?;
                DetailValue::Number(number)
            }
            Token::Array(_) if key == "errors" => {
                let mut errors = Vec::new();
                for _ in 0..reader.array_len()? {
                    errors.push(ItemError::decode(reader)?);
                }
                DetailValue::Errors(errors)
            }
            _ => {
                reader.skip_value()?;
                continue;
            }
        };
        details.push(Detail { key, value });
    }
    Ok(details)
}
