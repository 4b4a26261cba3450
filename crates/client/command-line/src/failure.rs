//! The error of a command, as text or, with `--json`, as one JSON object on standard error.
//!
//! The object has `code`, `message` and `remedy`, which is null if the message needs no addition.
//! Codes of an engine are defined by the contract (`proto/README.md`), and the client's codes by
//! the Python package. `usage`, `config`, `io` and `failed` are codes of the program.

use std::error::Error;
use std::fmt;
use std::io;

use clap::ArgMatches;
use clap::error::ErrorKind;
use sealwire_client::{Error as RequestError, ErrorCode};
use sealwire_wire::RpcError;
use serde_json::{Value, json};

use crate::{Failure, chain};

/// The error of a request, in the words of a command.
#[derive(Debug)]
pub struct RequestFailure {
    text: String,
    error: RequestError,
}

impl RequestFailure {
    /// Creates a failure with this text.
    pub fn failure(text: String, error: RequestError) -> Failure {
        Box::new(Self { text, error })
    }
}

/// An invalid configuration, with the text of the error.
#[derive(Debug)]
pub struct InvalidConfig(pub Failure);

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for InvalidConfig {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Returns a failure with another text and the same code for programs.
pub fn reworded(failure: &(dyn Error + 'static), text: String) -> Failure {
    match request_error(failure) {
        Some(error) => RequestFailure::failure(text, error.clone()),
        None => text.into(),
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for RequestFailure {}

/// Returns true if the given command has the option `--json`.
pub fn wants_json(matches: &ArgMatches) -> bool {
    let mut command = matches;
    while let Some((_, inner)) = command.subcommand() {
        command = inner;
    }
    // Reading the option fails if the command does not define it.
    matches!(command.try_get_one::<bool>("json"), Ok(Some(true)))
}

/// Returns the text of a failure.
pub fn report(failure: &(dyn Error + 'static), as_json: bool) -> String {
    if !as_json {
        return format!("sealwire: {}", chain(failure));
    }
    let request = request_error(failure);
    let mut object = json!({
        "code": code_of(failure, request),
        "message": chain(failure),
        "remedy": remedy_for(failure, request),
    });
    if let Some(ms) = error_response(failure, request).and_then(|error| error.retry_after_ms) {
        object["retry_after_ms"] = ms.into();
    }
    json_line(&object)
}

/// Formats JSON so that standard error prints it unchanged. Characters that control a terminal
/// become JSON escapes.
fn json_line(object: &Value) -> String {
    let text = object.to_string();
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if sealwire_service::output::is_printable(c) {
            line.push(c);
        } else {
            let mut units = [0; 2];
            line.extend(
                c.encode_utf16(&mut units)
                    .iter()
                    .map(|unit| format!("\\u{unit:04x}")),
            );
        }
    }
    line
}

/// Returns the text of an error in the arguments.
pub fn report_usage(error: &clap::Error) -> String {
    // If a subcommand is missing, clap prints the whole help in place of an error.
    let message = if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        "a subcommand or an argument is missing".to_owned()
    } else {
        usage_message(&error.to_string())
    };
    json_line(
        &json!({ "code": "usage", "message": message, "remedy": "See --help of the command." }),
    )
}

/// Returns the text of a clap error on one line: everything before the usage, including lists of
/// arguments and similar names.
fn usage_message(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let message_lines = lines.take_while(|line| {
        !line.starts_with("Usage:") && !line.starts_with("For more information")
    });
    let joined = message_lines.collect::<Vec<_>>().join(" ");
    joined.trim_start_matches("error: ").to_owned()
}

fn request_error<'f>(failure: &'f (dyn Error + 'static)) -> Option<&'f RequestError> {
    let mut cause = Some(failure);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<RequestFailure>() {
            return Some(&found.error);
        }
        if let Some(found) = error.downcast_ref::<RequestError>() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// Returns the error response of an engine, or of a command that itself changes a store or a file.
fn error_response<'f>(
    failure: &'f (dyn Error + 'static),
    request: Option<&'f RequestError>,
) -> Option<&'f RpcError> {
    match request {
        Some(RequestError::Rpc(error)) => Some(error),
        _ => failure.downcast_ref(),
    }
}

fn code_of(failure: &(dyn Error + 'static), request: Option<&RequestError>) -> &'static str {
    if let Some(error) = error_response(failure, request) {
        return error.code.name();
    }
    match request {
        Some(RequestError::Rpc(error)) => error.code.name(),
        Some(RequestError::Deadline) => "deadline_exceeded",
        Some(RequestError::Disconnected { .. }) => "disconnected",
        Some(RequestError::Connect(_)) => "connect",
        Some(RequestError::Tls(_) | RequestError::Config(_)) => "config",
        Some(RequestError::RequestTooLong { .. } | RequestError::ReplyRefused(_)) => "too_large",
        Some(RequestError::Payload(_) | RequestError::Protocol(_) | RequestError::Value(_)) => {
            "protocol"
        }
        None if failure.is::<InvalidConfig>() => "config",
        None if failure.is::<io::Error>() => "io",
        None => "failed",
    }
}

fn remedy_for(
    failure: &(dyn Error + 'static),
    request: Option<&RequestError>,
) -> Option<&'static str> {
    match request {
        Some(RequestError::Rpc(error)) => match error.code {
            ErrorCode::Overloaded | ErrorCode::Unavailable => Some("Retry later."),
            ErrorCode::Conflict if error.retry_after_ms.is_some() => Some("Retry later."),
            ErrorCode::Forbidden => {
                Some("An administrator can grant a role: sealwire principals grant PRINCIPAL ROLE")
            }
            ErrorCode::Unauthenticated => Some("Install a valid client certificate and its key."),
            ErrorCode::NotFound => Some("Check the names, for example with `sealwire apps list`."),
            ErrorCode::TooLarge => Some("Send less at once, or raise the engine's limit."),
            ErrorCode::DeadlineExceeded => Some("Give the request more time with --timeout."),
            _ => None,
        },
        Some(RequestError::Deadline) => Some("Give the request more time with --timeout."),
        Some(RequestError::Connect(_)) => Some(
            "Start an engine with `sealwire serve` or `sealwire dev`, or give its address with --connect.",
        ),
        Some(RequestError::Disconnected { .. }) => {
            Some("Check whether the change was made before you repeat it.")
        }
        Some(_) => None,
        None if failure.is::<InvalidConfig>() => Some("Run `sealwire config check`."),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn usage_errors_under_json_say_all() {
        let command = || {
            clap::Command::new("sealwire")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(
                    clap::Command::new("find")
                        .arg(clap::arg!(--where <CLAUSE>).required(true))
                        .arg(
                            clap::arg!(--limit <ROWS>)
                                .required(true)
                                .value_parser(clap::value_parser!(u32)),
                        )
                        .arg(clap::arg!(--order <ORDER>).value_parser(["up", "down"])),
                )
        };
        for (arguments, parts) in [
            (
                &["find"][..],
                &[
                    "the following required arguments were not provided: ",
                    "--where <CLAUSE>",
                    "--limit <ROWS>",
                ][..],
            ),
            (
                &["find", "--where", "a", "--limit", "x"],
                &["invalid value 'x' for '--limit <ROWS>'", "invalid digit"],
            ),
            (
                &["find", "--where", "a", "--limit", "1", "--order", "dow"],
                &["[possible values: up, down]", "similar value", "'down'"],
            ),
            (
                &["find", "--wher", "a"],
                &[
                    "unexpected argument '--wher' found",
                    "similar argument exists: '--where'",
                ],
            ),
            (&["fin"], &["unrecognized subcommand 'fin'", "'find'"]),
            (&[], &["a subcommand or an argument is missing"]),
        ] {
            let error = command()
                .try_get_matches_from(["sealwire"].iter().chain(arguments))
                .unwrap_err();
            let text = report_usage(&error);
            assert!(!text.contains('\n'), "{text}");
            let object: Value = serde_json::from_str(&text).expect("an object");
            let message = object["message"].as_str().expect("a text");
            assert!(
                parts.iter().all(|part| message.contains(part)),
                "{arguments:?}: {message}"
            );
            assert!(
                !message.contains("Usage:")
                    && !message.contains("error:")
                    && !message.contains('\n'),
                "{message}"
            );
            assert_eq!(
                (&object["code"], object["remedy"].is_string()),
                (&"usage".into(), true)
            );
        }
    }

    #[test]
    fn errors_under_json_are_objects_with_code_message_and_remedy() {
        let rpc = |code| RequestError::Rpc(RpcError::new(code, "why"));
        let refused = || RequestError::Connect(Arc::new(io::ErrorKind::ConnectionRefused.into()));
        let late =
            RequestError::Rpc(RpcError::new(ErrorCode::Overloaded, "why").retry_after_ms(40));
        let cases: [(Failure, &str, &str, Value); 9] = [
            (
                rpc(ErrorCode::Forbidden).into(),
                "forbidden",
                "forbidden: why",
                Value::Null,
            ),
            (late.into(), "overloaded", "overloaded: why", 40.into()),
            (
                RequestFailure::failure("127.0.0.1:1: no engine".to_owned(), refused()),
                "connect",
                "no engine",
                Value::Null,
            ),
            (
                RequestError::Deadline.into(),
                "deadline_exceeded",
                "deadline exceeded",
                Value::Null,
            ),
            (
                io::Error::from(io::ErrorKind::NotFound).into(),
                "io",
                "not found",
                Value::Null,
            ),
            (
                "a \"quoted\"\nline".into(),
                "failed",
                "a \"quoted\"\nline",
                Value::Null,
            ),
            (
                RequestError::Config("no key".into()).into(),
                "config",
                "no key",
                Value::Null,
            ),
            (
                RpcError::new(ErrorCode::BadRequest, "a name").into(),
                "bad_request",
                "a name",
                Value::Null,
            ),
            (
                "a\u{202e}b\u{7f}\u{85}c".into(),
                "failed",
                "a\u{202e}b\u{7f}\u{85}c",
                Value::Null,
            ),
        ];
        for (failure, code, message, retry_after_ms) in cases {
            let text = report(&*failure, true);
            assert!(
                text.chars()
                    .all(|c| c != '\n' && sealwire_service::output::is_printable(c)),
                "{text}"
            );
            let object: Value = serde_json::from_str(&text).expect("an object");
            assert_eq!(object["code"], code);
            assert!(
                object["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(message)),
                "{text}"
            );
            assert!(object.get("remedy").is_some(), "{text}");
            assert_eq!(object["retry_after_ms"], retry_after_ms);
            assert!(report(&*failure, false).starts_with("sealwire: "));
        }
    }
}
