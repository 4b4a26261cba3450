//! The engine behind a job: batches of values to the RPC `mask`, and its answers back.

use std::sync::Arc;
use std::time::Duration;

use sealwire_client::{
    Client, DetailValue, Error, ErrorCode, Mask, MaskList, MaskRule, Masking, RpcError, RuleFields, UnknownFields,
};
use sealwire_mask::Rules;
use sealwire_mask_job::{Column, Engine, EngineError, answers, payload, place};
use tokio::time::{Instant, sleep};

use crate::cli::{Failure, chain};

/// Columns in one call: what paths take in all is bounded.
const COLUMNS_MAX: usize = 25;
/// How long a batch waits for an engine that is overloaded, drains or does not answer.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause where nobody says how long one should be.
const PAUSE: Duration = Duration::from_secs(1);

/// An engine over its client.
pub(super) struct Remote {
    client: Client,
    app: String,
    reason: Option<String>,
    rules: Arc<Rules>,
    /// Of each rule, its function as text.
    functions: Vec<String>,
}

impl Remote {
    pub(super) async fn connect(args: &super::Engine, rules: &Arc<Rules>) -> Result<Self, Failure> {
        Ok(Self {
            client: args.connect.client().await?,
            app: args.app.clone(),
            reason: args.reason.clone(),
            functions: rules.iter().map(|rule| rule.function.to_string()).collect(),
            rules: Arc::clone(rules),
        })
    }

    async fn call(&self, columns: &[Column]) -> Result<Vec<Vec<u8>>, EngineError> {
        let subject = |rule| self.rules.get(rule).and_then(|rule| rule.function.subject());
        let (payload, paths) = payload(columns, subject);
        let rule = |(column, path): (&Column, &'_ String)| (column.rule, path.clone());
        let named: Vec<(usize, String)> = columns.iter().zip(&paths).map(rule).collect();
        let rules = named
            .iter()
            .map(|(rule, path)| MaskRule { fields: RuleFields::Path(path), mask: &self.functions[*rule] })
            .collect();
        let wanted = |name: &str| {
            named.iter().any(|(rule, _)| self.rules.get(*rule).is_some_and(|rule| rule.function.list() == Some(name)))
        };
        let lists = self.rules.lists().filter(|(name, _)| wanted(name));
        let lists = lists.map(|(name, entries)| MaskList { name, entries: entries.collect() }).collect();
        // A subject beside a value is nobody's field, and stays.
        let writing = Masking { rules, unknown: UnknownFields::Keep, lists };
        let call = Mask { reason: self.reason.as_deref(), writing, ..Mask::new(&self.app, &payload) };
        let began = Instant::now();
        loop {
            let error = match self.client.mask(call.clone()).await {
                Ok(document) => return answers(&document.payload, columns),
                Err(error) => error,
            };
            match pause(&error).filter(|pause| began.elapsed() + *pause < PATIENCE) {
                Some(pause) => sleep(pause).await,
                None => return Err(failed(&error)),
            }
        }
    }
}

impl Engine for Remote {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        let mut all = Vec::with_capacity(columns.len());
        for (part, columns) in columns.chunks(COLUMNS_MAX).enumerate() {
            let behind = |error| match error {
                EngineError::Unfit { column, value, why } => {
                    EngineError::Unfit { column: part * COLUMNS_MAX + column, value, why }
                }
                failed @ EngineError::Failed(_) => failed,
            };
            all.extend(self.call(columns).await.map_err(behind)?);
        }
        Ok(all)
    }
}

/// How long to wait before the same may pass; `None`: it will not.
fn pause(error: &Error) -> Option<Duration> {
    match error {
        Error::Rpc(error) => match error.code {
            ErrorCode::Overloaded | ErrorCode::Unavailable => {
                Some(error.retry_after_ms.map_or(PAUSE, |ms| Duration::from_millis(ms.into())))
            }
            _ => None,
        },
        Error::Connect(_) | Error::Disconnected { .. } => Some(PAUSE),
        _ => None,
    }
}

fn failed(error: &Error) -> EngineError {
    let unfit = |error: &RpcError| {
        let path = error.details.iter().find(|detail| detail.key == "path")?;
        let DetailValue::Text(path) = &path.value else { return None };
        let (column, value) = place(path)?;
        Some(EngineError::Unfit { column, value, why: error.message.to_string() })
    };
    match error {
        Error::Rpc(error) if error.code == ErrorCode::BadRequest => {
            unfit(error).unwrap_or_else(|| EngineError::Failed(error.to_string()))
        }
        error => EngineError::Failed(chain(error)),
    }
}
