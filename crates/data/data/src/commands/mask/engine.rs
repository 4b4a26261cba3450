//! The engine of a job: sends batches of values to the RPC `mask`, and reads its responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;

use crate::mask_job::{Column, Engine, EngineError, decode_response, payload, place};
use sealwire_client::{
    Client, CommonParams, DetailValue, Error, ErrorCode, Mask, MaskList, MaskRule, Masking, Pacer,
    RetryLimits, RpcError, RuleFields, UnknownFields,
};
use sealwire_mask::Rules;
use sealwire_service::output::errln;

use super::show::ProgressLine;
use sealwire_command_line::{Failure, chain};

/// Maximum number of columns in one request, because the total length of the paths is limited.
const COLUMNS_MAX: usize = 25;
/// A batch that waits longer than this time is reported.
const NOTICE: Duration = Duration::from_secs(2);

/// An engine that is reached over a client.
pub(super) struct Remote {
    client: Client,
    app: String,
    reason: Option<String>,
    rules: Arc<Rules>,
    /// The function of each rule, as text.
    functions: Vec<String>,
    /// Longest time of a request, with its waits for an engine that is overloaded, drains or does
    /// not respond.
    retry_timeout: Duration,
    pacer: Pacer,
    /// True if the wait was already reported.
    is_wait_reported: AtomicBool,
    bar: ProgressBar,
}

impl Remote {
    /// Connects to the engine. `bar` is the line above which waits are reported.
    pub(super) async fn connect(
        args: &super::EngineArgs,
        rules: &Arc<Rules>,
        bar: &ProgressLine,
    ) -> Result<Self, Failure> {
        Ok(Self {
            client: args.connect.client().await?,
            app: args.app.clone(),
            reason: args.reason.clone(),
            functions: rules.iter().map(|rule| rule.function.to_string()).collect(),
            rules: Arc::clone(rules),
            retry_timeout: Duration::from_secs(args.retry_timeout),
            pacer: Pacer::default(),
            is_wait_reported: AtomicBool::new(false),
            bar: bar.progress_bar(),
        })
    }

    async fn send_batch(&self, columns: &[Column]) -> Result<Vec<Vec<u8>>, EngineError> {
        let (payload, paths) = payload(columns, |rule| {
            self.rules
                .get(rule)
                .and_then(|rule| rule.function.subject())
        });
        let named: Vec<(usize, String)> = columns
            .iter()
            .zip(&paths)
            .map(|(column, path)| (column.rule, path.clone()))
            .collect();
        let rules = named
            .iter()
            .map(|(rule, path)| MaskRule {
                fields: RuleFields::Path(path),
                mask: &self.functions[*rule],
            })
            .collect();
        let lists = self
            .rules
            .lists()
            .filter(|(name, _)| named.iter().any(|(rule, _)| self.uses_list(*rule, name)))
            .map(|(name, entries)| MaskList {
                name,
                entries: entries.collect(),
            })
            .collect();
        // No rule matches the subject next to a value, so the engine keeps the subject.
        let writing = Masking {
            rules,
            unknown: UnknownFields::Keep,
            lists,
        };
        let call = Mask {
            options: CommonParams {
                reason: self.reason.as_deref(),
                ..CommonParams::default()
            },
            writing,
            ..Mask::new(&self.app, &payload)
        };
        let mut was_reported = false;
        let waits = |error: &Error, waited| {
            // Reports at most once per batch. If some batches wait while others pass, each retry
            // would otherwise print a line.
            if waited > NOTICE && !std::mem::replace(&mut was_reported, true) {
                let seconds = self.retry_timeout.as_secs();
                self.report_wait(true, || {
                    format!("waiting for the engine, each batch up to {seconds} s (--retry-timeout): {}", chain(error))
                });
            }
        };
        let limits = RetryLimits {
            deadline: self.client.deadline_of(None),
            retry_timeout: self.retry_timeout,
        };
        let send = |deadline_ms| {
            self.client.mask(Mask {
                options: call.options.with_deadline(deadline_ms),
                ..call.clone()
            })
        };
        let masked = self.pacer.run(limits, send, waits).await;
        let document = masked.map_err(|error| engine_error(&error))?;
        self.report_wait(false, || "the engine responds again".to_owned());
        decode_response(&document.payload, columns)
    }

    fn uses_list(&self, rule: usize, name: &str) -> bool {
        self.rules
            .get(rule)
            .is_some_and(|rule| rule.function.list() == Some(name))
    }

    /// Reports once that the job waits, and once that it continues.
    fn report_wait(&self, waits: bool, what: impl FnOnce() -> String) {
        // Most requests have nothing to report. A plain load avoids contention for the cache line.
        if self.is_wait_reported.load(Ordering::Relaxed) != waits
            && self.is_wait_reported.swap(waits, Ordering::Relaxed) != waits
        {
            self.bar.suspend(|| errln!("{}", what()));
        }
    }
}

impl Engine for Remote {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        let mut all = Vec::with_capacity(columns.len());
        for (part, columns) in columns.chunks(COLUMNS_MAX).enumerate() {
            let masked = self.send_batch(columns).await;
            all.extend(masked.map_err(|error| match error {
                EngineError::Unfit { column, value, why } => EngineError::Unfit {
                    column: part * COLUMNS_MAX + column,
                    value,
                    why,
                },
                failed @ EngineError::Failed(_) => failed,
            })?);
        }
        Ok(all)
    }
}

fn engine_error(error: &Error) -> EngineError {
    match error {
        Error::Rpc(error) if error.code == ErrorCode::BadRequest => {
            unfit_value(error).unwrap_or_else(|| EngineError::Failed(error.to_string()))
        }
        error => EngineError::Failed(chain(error)),
    }
}

/// Returns the error for a value that does not fit, or `None` if the engine's error concerns no single value.
fn unfit_value(error: &RpcError) -> Option<EngineError> {
    let path = error.details.iter().find(|detail| detail.key == "path")?;
    let DetailValue::Text(path) = &path.value else {
        return None;
    };
    let (column, value) = place(path)?;
    Some(EngineError::Unfit {
        column,
        value,
        why: error.message.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use sealwire_client::Detail;

    use super::*;

    #[test]
    fn engine_errors_with_a_path_become_unfit_values() {
        let bad = |path: Option<&'static str>| {
            let error = RpcError::new(ErrorCode::BadRequest, "email does not fit");
            Error::Rpc(path.map_or(error.clone(), |path| error.with(Detail::text("path", path))))
        };
        let unfit = |column, value| EngineError::Unfit {
            column,
            value,
            why: "email does not fit".to_owned(),
        };
        assert_eq!(engine_error(&bad(Some("$[2][17]"))), unfit(2, 17));
        assert_eq!(engine_error(&bad(Some("$[0][3].value"))), unfit(0, 3));
        for error in [
            bad(None),
            bad(Some("$.a")),
            Error::Rpc(RpcError::new(ErrorCode::Forbidden, "email does not fit")),
        ] {
            let found = engine_error(&error);
            assert!(
                matches!(&found, EngineError::Failed(why) if why.contains("email does not fit")),
                "{error}: {found}"
            );
        }
    }
}
