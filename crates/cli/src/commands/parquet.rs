//! `encrypt` and `decrypt` of columns of a Parquet file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sealwire_client::{
    Client, Decrypt, DetailValue, Encrypt, Error, ErrorCode, Format, KeyScope, Outside, Reading,
    Suite, Writing,
};
use sealwire_data::mask_job::{
    ColumnsJob, Direction, DocumentEngine, EngineError, Limits, Progress, ValueType,
    change_columns, check_output,
};
use tokio::time::{Instant, sleep};

use super::connect::retry_pause;
use super::documents::{Common, DocumentProgress};
use super::mask::{run_job, unless_stopped};
use super::object_store::{ObjectStoreArgs, is_object};
use super::serve::StopSignals;
use super::{Failure, chain};

/// Longest wait of a batch for an engine that is overloaded, restarts or cannot be reached.
const RETRY_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns true if the name of a file says that it is a Parquet file.
pub(super) fn is_parquet(file: &Path) -> bool {
    file.extension()
        .and_then(OsStr::to_str)
        .is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))
}

/// The operation on the values of columns.
pub(super) enum ColumnOperation {
    Encrypt {
        suite: Option<Suite>,
        key_scope: KeyScope,
        format: Option<Format>,
        role: Option<String>,
    },
    Decrypt {
        outside: Outside,
        types: Vec<(String, ValueType)>,
    },
}

/// Encrypts or decrypts columns of the file of a command.
pub(super) fn run(
    common: &Common,
    store: &ObjectStoreArgs,
    operation: ColumnOperation,
) -> Result<(), Failure> {
    let output = common.file.parquet_output()?;
    let (direction, types) = match &operation {
        ColumnOperation::Encrypt { .. } => (Direction::Seal, Vec::new()),
        ColumnOperation::Decrypt { types, .. } => (Direction::Open, types.clone()),
    };
    let job = ColumnsJob {
        input: store.input(common.file.path_of_file())?,
        output: store.output(output, true)?,
        select: common
            .select()
            .unwrap_or_default()
            .into_iter()
            .map(str::to_owned)
            .collect(),
        types,
        direction,
        limits: Limits::default(),
    };
    let files = common
        .connect
        .files()
        .into_iter()
        .chain(store.files())
        .collect::<Vec<_>>();
    if !is_object(output) {
        let inputs = files
            .iter()
            .map(PathBuf::as_path)
            .chain([common.file.path_of_file()])
            .collect::<Vec<_>>();
        check_output(output, true, &inputs)?;
    }
    let has_object = is_object(common.file.path_of_file()) || is_object(output);
    let spinner = DocumentProgress::new();
    spinner.say(if direction == Direction::Seal {
        "encrypting"
    } else {
        "decrypting"
    });
    run_job(async {
        let engine = ColumnClient {
            client: common.connect.client().await?,
            app: common.app.clone(),
            context: common.context().to_vec(),
            reason: common.reason.clone(),
            operation,
        };
        let progress = Arc::<Progress>::default();
        let mut signals = StopSignals::listen()?;
        unless_stopped(
            &mut signals,
            &progress,
            has_object,
            change_columns(job, Arc::new(engine), Arc::clone(&progress)),
        )
        .await
    })?;
    spinner.end();
    Ok(())
}

/// An engine that is reached over a client.
struct ColumnClient {
    client: Client,
    app: String,
    context: Vec<u8>,
    reason: Option<String>,
    operation: ColumnOperation,
}

impl ColumnClient {
    async fn call(&self, payload: &[u8]) -> Result<Bytes, Error> {
        let (context, reason) = (&self.context[..], self.reason.as_deref());
        let document = match &self.operation {
            ColumnOperation::Encrypt {
                suite,
                key_scope,
                format,
                role,
            } => {
                let writing = Writing {
                    suite: *suite,
                    key_scope: *key_scope,
                    format: *format,
                    role: role.as_deref(),
                    ..Writing::default()
                };
                self.client
                    .encrypt(Encrypt {
                        context,
                        reason,
                        writing,
                        ..Encrypt::new(&self.app, payload)
                    })
                    .await?
            }
            ColumnOperation::Decrypt { outside, .. } => {
                let writing = Reading { outside: *outside };
                self.client
                    .decrypt(Decrypt {
                        context,
                        reason,
                        writing,
                        ..Decrypt::new(&self.app, payload)
                    })
                    .await?
            }
        };
        Ok(document.payload)
    }
}

impl DocumentEngine for ColumnClient {
    async fn convert(&self, payload: Vec<u8>) -> Result<Bytes, EngineError> {
        let began = Instant::now();
        loop {
            let error = match self.call(&payload).await {
                Ok(payload) => return Ok(payload),
                Err(error) => error,
            };
            let pause =
                retry_pause(&error).filter(|pause| began.elapsed() + *pause < RETRY_TIMEOUT);
            sleep(pause.ok_or_else(|| failed(&error))?).await;
        }
    }
}

fn failed(error: &Error) -> EngineError {
    let value = |error: &sealwire_client::RpcError| -> Option<usize> {
        let path = error.details.iter().find(|detail| detail.key == "path")?;
        let DetailValue::Text(path) = &path.value else {
            return None;
        };
        path.strip_prefix("$[")?.strip_suffix(']')?.parse().ok()
    };
    match error {
        Error::Rpc(rpc) => match value(rpc) {
            Some(value) => {
                let hint = match rpc.code {
                    ErrorCode::CannotOpen => ": another app or context, a disabled key, or altered",
                    _ => "",
                };
                EngineError::Unfit {
                    column: 0,
                    value,
                    why: format!("{}{hint}", rpc.message),
                }
            }
            None => EngineError::Failed(error.to_string()),
        },
        error => EngineError::Failed(chain(error)),
    }
}
