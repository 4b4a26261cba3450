//! The engine of a job: sends envelopes to the RPC `rewrap`, and retries while the engine is
//! overloaded or restarts.

use std::time::Duration;

use crate::rewrap_job::{
    Encoding, Engine, EngineError, PAGE_ROWS_MAX, RewrapRequest, RewrapResponse,
};
use indicatif::ProgressBar;
use sealwire_client::{
    Client, Encoding as WireEncoding, Error, ErrorCode, Format, OnError, Pacer, RetryLimits,
    Rewrap, Suite,
};
use sealwire_service::output::errln;

use sealwire_command_line::chain;

/// A request that waits longer than this time is reported.
const NOTICE_AFTER: Duration = Duration::from_secs(2);

/// An engine that is reached over a client.
pub(super) struct Remote {
    pub(super) client: Client,
    pub(super) reason: Option<String>,
    /// The cipher suite to move to. `None` selects the app's suite.
    pub(super) suite: Option<Suite>,
    /// Longest time of a request, with its waits for an engine that is overloaded, drains or does
    /// not respond.
    pub(super) retry_timeout: Duration,
    pub(super) pacer: Pacer,
    /// The line above which waits are reported.
    pub(super) bar: ProgressBar,
}

impl Engine for Remote {
    async fn rewrap(&self, request: RewrapRequest<'_>) -> Result<RewrapResponse, EngineError> {
        let encoding = match request.encoding {
            Encoding::Text => WireEncoding::Text,
            Encoding::Binary => WireEncoding::Binary,
        };
        let call = Rewrap::new(request.app, request.payload)
            .context(request.context)
            .reason(self.reason.as_deref())
            .on_error(OnError::Report)
            .suite(self.suite)
            // A column keeps its format, regardless of the app's format for new values.
            .format(Format::Native)
            .encoding(encoding);
        let mut was_reported = false;
        let report_wait = |error: &Error, waited| {
            if waited > NOTICE_AFTER && !was_reported {
                was_reported = true;
                let seconds = self.retry_timeout.as_secs();
                let text = format!(
                    "no engine has taken a request yet; it is repeated for {seconds} s at most (--retry-timeout): {}",
                    chain(error)
                );
                self.bar.suspend(|| errln!("{text}"));
            }
        };
        let limits = RetryLimits::new(self.client.deadline(), self.retry_timeout);
        let send = |deadline| self.client.rewrap(call.clone().deadline(deadline));
        let rewrapped = self.pacer.run(limits, send, report_wait).await;
        let document = rewrapped.map_err(|error| engine_error(&error, request.app))?;
        if document.errors_omitted > 0 {
            return Err(EngineError::Failed(format!(
                "app {}: the engine left out {} errors of a request: set its limits.errors_reported_max to at least {PAGE_ROWS_MAX}",
                request.app, document.errors_omitted
            )));
        }
        let errors = document
            .errors
            .into_iter()
            .map(|error| (error.path, error.code.to_string()));
        Ok(RewrapResponse {
            payload: document.payload.to_vec(),
            errors: errors.collect(),
        })
    }
}

fn engine_error(error: &Error, app: &str) -> EngineError {
    match error {
        Error::Rpc(error) if error.code == ErrorCode::TooLarge => EngineError::TooLarge,
        Error::Rpc(error) if error.code == ErrorCode::NotFound => EngineError::Failed(format!(
            "app {app}: {error}; `sealwire apps list` shows the existing apps and their keys"
        )),
        error => EngineError::Failed(format!("app {app}: {}", chain(error))),
    }
}

#[cfg(test)]
mod tests {
    use sealwire_client::RpcError;

    use super::*;

    #[test]
    fn errors_name_the_app_and_the_remedy() {
        let rpc = |code| Error::Rpc(RpcError::new(code, "why"));
        assert_eq!(
            engine_error(&rpc(ErrorCode::TooLarge), "shop"),
            EngineError::TooLarge
        );
        for (code, expected) in [
            (ErrorCode::NotFound, "sealwire apps list"),
            (ErrorCode::Forbidden, "app shop"),
        ] {
            let EngineError::Failed(message) = engine_error(&rpc(code), "shop") else {
                panic!("{code}")
            };
            assert!(message.contains(expected), "{message}");
        }
    }
}
