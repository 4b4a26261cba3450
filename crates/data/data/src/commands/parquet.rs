//! `encrypt` and `decrypt` of columns of a Parquet file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::mask_job::{
    ColumnsJob, Direction, DocumentEngine, EngineError, Limits, Progress, ValueType,
    change_columns, named_type,
};
use bytes::Bytes;
use sealwire_client::{
    Client, Decrypt, DetailValue, Encrypt, Error, ErrorCode, Format, KeyScope, Outside, Suite,
};
use tokio::time::{Instant, sleep};

use super::files;
use super::mask::{run_job, unless_stopped};
use sealwire_command_line::connect::retry_pause;
use sealwire_command_line::documents::{Common, DecryptArgs, DocumentProgress, EncryptArgs};
use sealwire_command_line::failure::InvalidArguments;
use sealwire_command_line::object_store::{ObjectStoreArgs, is_object};
use sealwire_command_line::program::StopSignals;
use sealwire_command_line::{Failure, chain};
use sealwire_service::output_file;

/// Longest wait of a batch for an engine that is overloaded, restarts or cannot be reached.
const RETRY_TIMEOUT: Duration = Duration::from_secs(300);

/// The operation on the values of columns.
enum ColumnOperation {
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

/// Encrypts columns of a file.
pub(super) fn encrypt(args: &EncryptArgs) -> Result<(), Failure> {
    let common = &args.common;
    reject_json(common)?;
    let key_scope = KeyScope::from(args.key_scope);
    if args.apart {
        return Err("--apart is for JSON: each value of a column holds its encapsulation".into());
    }
    let operation = ColumnOperation::Encrypt {
        suite: args.suite.map(Suite::from),
        key_scope,
        format: args.format.map(Format::from),
        role: args.role.clone(),
    };
    run(common, &args.object_store, operation)
}

/// Decrypts columns of a file.
pub(super) fn decrypt(args: &DecryptArgs) -> Result<(), Failure> {
    let common = &args.common;
    reject_json(common)?;
    let types = args
        .types
        .iter()
        .map(|text| {
            column_type(text).map_err(|why| InvalidArguments(format!("--type {text}: {why}")))
        })
        .collect::<Result<_, _>>()?;
    if args.report {
        let why = "a column has one type, and an envelope that does not open is text";
        let advice =
            "decrypt the other columns with --select, or read the column with `sealwire.arrow`";
        return Err(format!("--report is for JSON: {why}. {advice}").into());
    }
    let outside = if args.refuse_outside {
        Outside::Refuse
    } else {
        Outside::Accept
    };
    run(
        common,
        &args.object_store,
        ColumnOperation::Decrypt { outside, types },
    )
}

/// Returns an error for JSON: `sealwire` itself encrypts and decrypts JSON.
fn reject_json(common: &Common) -> Result<(), Failure> {
    if common.file.is_parquet() {
        return Ok(());
    }
    let file = common.file.path_of_file().display();
    Err(format!("{file}: the name of a Parquet file ends in .parquet; `sealwire` does JSON").into())
}

fn column_type(text: &str) -> Result<(String, ValueType), String> {
    let (column, name) = text.rsplit_once('=').ok_or("write COLUMN=TYPE")?;
    // The name of a type with a time zone contains an equals sign, too.
    let (column, name) = match column.rsplit_once("=timestamp[") {
        Some((column, unit)) => (column, format!("timestamp[{unit}={name}")),
        None => (column, name.to_owned()),
    };
    Ok((
        column.to_owned(),
        named_type(&name).map_err(|error| error.to_string())?,
    ))
}

/// Encrypts or decrypts columns of the file of a command.
fn run(
    common: &Common,
    store: &ObjectStoreArgs,
    operation: ColumnOperation,
) -> Result<(), Failure> {
    let output = common.parquet_output()?;
    let (direction, types) = match &operation {
        ColumnOperation::Encrypt { .. } => (Direction::Seal, Vec::new()),
        ColumnOperation::Decrypt { types, .. } => (Direction::Open, types.clone()),
    };
    let job = ColumnsJob {
        input: files::parse_input(store, common.file.path_of_file())?,
        output: files::parse_output(store, output, true)?,
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
        output_file::check(output, true, &inputs)?;
    }
    let has_object = is_object(common.file.path_of_file()) || is_object(output);
    let spinner = DocumentProgress::start();
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
    async fn send_request(&self, payload: &[u8]) -> Result<Bytes, Error> {
        let context = &self.context[..];
        let reason = self.reason.as_deref();
        let document = match &self.operation {
            ColumnOperation::Encrypt {
                suite,
                key_scope,
                format,
                role,
            } => {
                self.client
                    .encrypt(
                        Encrypt::new(&self.app, payload)
                            .context(context)
                            .reason(reason)
                            .suite(*suite)
                            .key_scope(*key_scope)
                            .format(*format)
                            .role(role.as_deref()),
                    )
                    .await?
            }
            ColumnOperation::Decrypt { outside, .. } => {
                self.client
                    .decrypt(
                        Decrypt::new(&self.app, payload)
                            .context(context)
                            .reason(reason)
                            .outside(*outside),
                    )
                    .await?
            }
        };
        Ok(document.payload)
    }
}

impl DocumentEngine for ColumnClient {
    async fn convert(&self, payload: Vec<u8>) -> Result<Bytes, EngineError> {
        let start = Instant::now();
        loop {
            let error = match self.send_request(&payload).await {
                Ok(payload) => return Ok(payload),
                Err(error) => error,
            };
            let pause =
                retry_pause(&error).filter(|pause| start.elapsed() + *pause < RETRY_TIMEOUT);
            sleep(pause.ok_or_else(|| engine_error(&error))?).await;
        }
    }
}

fn engine_error(error: &Error) -> EngineError {
    match error {
        Error::Rpc(rpc) => match value_index(rpc) {
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

/// Returns the index of the value that an engine's error names.
fn value_index(error: &sealwire_client::RpcError) -> Option<usize> {
    let path = error.details.iter().find(|detail| detail.key == "path")?;
    let DetailValue::Text(path) = &path.value else {
        return None;
    };
    path.strip_prefix("$[")?.strip_suffix(']')?.parse().ok()
}
