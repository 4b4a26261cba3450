//! Log lines about failed requests.

use sealwire_access::Principal;
use sealwire_telemetry::LogThrottle;
use sealwire_wire::ErrorCode;

use crate::jobs::error::RequestFailure;

/// Throttles of the log lines about failed requests. A client can cause failures as fast as it can
/// send requests.
#[derive(Debug, Default)]
pub struct Failures {
    of_the_engine: LogThrottle,
    of_the_store: LogThrottle,
}

/// Logs a failed request. Defects of the engine are errors and an unavailable store is a warning,
/// both throttled; failures that the client caused are debug lines.
pub fn log_failure(
    failures: &Failures,
    principal: &Principal,
    msgid: u32,
    failure: &RequestFailure,
) {
    let now = std::time::Instant::now();
    match failure {
        RequestFailure::Internal(_) | RequestFailure::Store(_)
            if failure.code() == ErrorCode::Internal =>
        {
            match failures.of_the_engine.record(now) {
                Some(suppressed) => {
                    tracing::error!(%principal, msgid, %failure, suppressed, "call failed")
                }
                None => tracing::debug!(%principal, msgid, %failure, "call failed"),
            }
        }
        RequestFailure::Store(_) | RequestFailure::PermissionsUnknown(_) => {
            match failures.of_the_store.record(now) {
                Some(suppressed) => {
                    tracing::warn!(%principal, msgid, %failure, suppressed, "call failed")
                }
                None => tracing::debug!(%principal, msgid, %failure, "call failed"),
            }
        }
        _ => tracing::debug!(%principal, msgid, code = %failure.code(), "call failed"),
    }
}

#[cfg(test)]
mod tests {
    use sealwire_store::StoreError;

    use super::*;
    use crate::jobs::cancel_token::StopReason;

    #[test]
    fn store_failures_are_logged_but_not_for_all_requests() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false);
        let log = log
            .with_writer(std::sync::Mutex::new(file.reopen().unwrap()))
            .finish();
        let principal = Principal::from_text("relay").unwrap();
        let full = || RequestFailure::Store(StoreError::Unavailable("no space is left".into()));
        tracing::subscriber::with_default(log, || {
            let failures = Failures::default();
            for failure in [
                full(),
                RequestFailure::NoApp,
                full(),
                RequestFailure::Stopped(StopReason::Deadline),
                full(),
            ] {
                log_failure(&failures, &principal, 1, &failure);
            }
            (0..1_000).for_each(|_| {
                log_failure(
                    &failures,
                    &principal,
                    1,
                    &RequestFailure::Internal("a defect"),
                )
            });
        });
        let lines = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(
            (
                lines.lines().count(),
                lines.matches("no space is left").count()
            ),
            (2, 1),
            "{lines}"
        );
    }
}
