//! `encrypt`, `decrypt`, `rewrap` and `seal`: read a JSON file and write a JSON file. The program
//! `sealwire-data` does Parquet files.

use sealwire_client::{
    Decrypt, DetailValue, Detokenize, Document, Encapsulation, Encrypt, Error, ErrorCode,
    FieldError, Format, KeyScope, OnError, Outside, Rewrap, Suite, Tokenize, Unbound, Unmatched,
};
use std::fs::File;
use std::io::{BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use sealwire_client::public_keys::{self, EncapsulationPlace, SealOptions, Sealed};
use sealwire_command_line::documents::FormatName;
pub(super) use sealwire_command_line::documents::{
    Common, DecryptArgs, DocumentProgress, EncryptArgs, FileArgs, SuiteName,
};
use sealwire_command_line::failure::{InvalidArguments, reworded};
use sealwire_command_line::object_store::is_object;
use sealwire_payload::{WalkLimits, json};
use sealwire_service::output::errln;
use sealwire_service::output_file;

use super::public_keys::PublicKeysArgs;
use super::{Failure, data_program, encapsulations};

/// Arguments of `rewrap`.
#[derive(Debug, clap::Args)]
pub(super) struct RewrapArgs {
    #[command(flatten)]
    common: Common,
    /// Cipher suite to move to [default: the app's]
    #[arg(long, value_enum)]
    suite: Option<SuiteName>,
    /// Format of the new envelopes
    #[arg(long, value_enum)]
    format: Option<FormatName>,
    /// Write the encapsulation of suite p256-mlkem768 once, as member $sw1 of the document, instead
    /// of in each field
    #[arg(long)]
    apart: bool,
    /// With --context: also open Evervault values, which are bound to no context, and bind them to
    /// this one. For a one-time import: whoever can write the file can have put any value of the
    /// app there
    #[arg(long)]
    bind_unbound: bool,
    /// Treatment of values that others sealed to a published key: accept seals them to the newest
    /// published key, of the suite of --suite or else of their own, adopt like all other values,
    /// and refuse does not open them
    #[arg(long, value_enum, default_value = "accept")]
    outside: OutsideName,
    /// Leave fields that do not open as they are and list them, instead of failing
    #[arg(long)]
    report: bool,
}

/// Arguments of `seal`.
#[derive(Debug, clap::Args)]
pub(super) struct SealArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Suite of the published key to seal to: p256, or p256-mlkem768 [default: p256 if there is
    /// such a key]
    #[arg(long, value_enum)]
    suite: Option<PublishedSuiteName>,
    /// Write the encapsulation of suite p256-mlkem768 once, as member $sw1 of the document, instead
    /// of in each field. The document must be an object. Without that member its fields do not open
    #[arg(long)]
    apart: bool,
    #[command(flatten)]
    public_keys: PublicKeysArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PublishedSuiteName {
    P256,
    #[value(name = "p256-mlkem768")]
    P256MlKem768,
}

impl From<PublishedSuiteName> for public_keys::Suite {
    fn from(name: PublishedSuiteName) -> Self {
        match name {
            PublishedSuiteName::P256 => Self::P256,
            PublishedSuiteName::P256MlKem768 => Self::P256MlKem768,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutsideName {
    Accept,
    Refuse,
    Adopt,
}

impl From<OutsideName> for Outside {
    fn from(name: OutsideName) -> Self {
        match name {
            OutsideName::Accept => Self::Accept,
            OutsideName::Refuse => Self::Refuse,
            OutsideName::Adopt => Self::Adopt,
        }
    }
}

/// A request on a document that takes the options that all such commands have.
pub(super) trait DocumentRequest<'a>: Sized {
    /// Sets the selected paths, the treatment of paths without a match, the context and the reason.
    fn with_common_options(self, common: &'a Common) -> Self;
}

macro_rules! document_requests {
    ($($request:ident),*) => {$(
        impl<'a> DocumentRequest<'a> for $request<'a> {
            fn with_common_options(self, common: &'a Common) -> Self {
                self.set_select(common.select())
                    .unmatched(common.unmatched())
                    .context(common.context())
                    .context_path(common.context_path())
                    .reason(common.reason.as_deref())
            }
        }
    )*};
}
document_requests!(Encrypt, Decrypt, Rewrap, Tokenize, Detokenize);

pub(super) fn encrypt(args: &EncryptArgs) -> Result<(), Failure> {
    let key_scope = KeyScope::from(args.key_scope);
    let common = &args.common;
    if common.file.is_parquet() {
        return data_program::run();
    }
    convert(common, "encrypting", Opened::None, async |payload, _| {
        let call = Encrypt::new(&common.app, payload)
            .with_common_options(common)
            .suite(args.suite.map(Suite::from))
            .key_scope(key_scope)
            .format(args.format.map(Format::from))
            .role(args.role.as_deref())
            .encapsulation(placed(args.apart));
        Ok(common.connect.client().await?.encrypt(call).await?)
    })
}

/// Returns the treatment of fields that fail, with and without `--report`.
pub(super) fn on_error(report: bool) -> OnError {
    if report {
        OnError::Report
    } else {
        OnError::Fail
    }
}

pub(super) fn decrypt(args: &DecryptArgs) -> Result<(), Failure> {
    let common = &args.common;
    if common.file.is_parquet() {
        return data_program::run();
    }
    if !args.types.is_empty() {
        return Err(InvalidArguments(
            "--type is for Parquet: values of JSON come back with their types".to_owned(),
        )
        .into());
    }
    convert(
        common,
        "decrypting",
        Opened::Selected,
        async |payload, encapsulations| {
            let call = Decrypt::new(&common.app, payload)
                .encapsulations(encapsulations.iter().map(String::as_str))
                .with_common_options(common)
                .on_error(on_error(args.report))
                .outside(if args.refuse_outside {
                    Outside::Refuse
                } else {
                    Outside::Accept
                });
            Ok(common.connect.client().await?.decrypt(call).await?)
        },
    )
}

pub(super) fn rewrap(args: &RewrapArgs) -> Result<(), Failure> {
    let common = &args.common;
    convert(
        common,
        "rewrapping",
        Opened::Selected,
        async |payload, encapsulations| {
            let call = Rewrap::new(&common.app, payload)
                .encapsulations(encapsulations.iter().map(String::as_str))
                .with_common_options(common)
                .on_error(on_error(args.report))
                .suite(args.suite.map(Suite::from))
                .format(args.format.map(Format::from))
                .unbound(if args.bind_unbound {
                    Unbound::Bind
                } else {
                    Unbound::Refuse
                })
                .outside(args.outside.into())
                .encapsulation(placed(args.apart));
            Ok(common.connect.client().await?.rewrap(call).await?)
        },
    )
}

/// Seals without an engine.
pub(super) fn seal(args: &SealArgs) -> Result<(), Failure> {
    let SealArgs {
        file,
        suite,
        apart,
        public_keys,
    } = args;
    let keys = public_keys.load()?;
    convert_file(
        file,
        &public_keys.files(),
        "sealing",
        Opened::None,
        |payload, _| {
            let select = file.select();
            let options = SealOptions {
                select: select.as_deref(),
                context: file.context.as_bytes(),
                suite: suite.map(public_keys::Suite::from),
                encapsulation: if *apart {
                    EncapsulationPlace::Apart
                } else {
                    EncapsulationPlace::Inline
                },
                ..SealOptions::default()
            };
            let Sealed {
                document,
                encapsulations,
                unmatched,
            } = keys.seal(payload, &options)?;
            if let (Some(position), Unmatched::Fail) = (unmatched.first(), file.unmatched()) {
                return Err(no_match(file, path(file, *position).unwrap_or_default()).into());
            }
            Ok(Document {
                payload: document.into(),
                generation: keys.generation(),
                errors: Vec::new(),
                errors_omitted: 0,
                unmatched,
                encapsulations,
            })
        },
    )
}

/// Converts a file by a request to an engine.
pub(super) fn convert(
    common: &Common,
    doing: &str,
    opened: Opened,
    call: impl AsyncFnOnce(&[u8], &[String]) -> Result<Document, Failure>,
) -> Result<(), Failure> {
    let Common { file, connect, .. } = common;
    convert_file(file, &connect.files(), doing, opened, |payload, given| {
        connect
            .run(call(payload, given))
            .map_err(|failure| explained_of(file, failure))
    })
}

/// Tells which envelopes a command opens, and so which encapsulations become unnecessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// The command opens no envelopes.
    None,
    /// The command opens the selected envelopes, if no field fails.
    Selected,
}

fn placed(apart: bool) -> Encapsulation {
    if apart {
        Encapsulation::Apart
    } else {
        Encapsulation::Inline
    }
}

/// Converts a file. `files` are the files that the command reads besides its input.
fn convert_file(
    args: &FileArgs,
    files: &[PathBuf],
    doing: &str,
    opened: Opened,
    call: impl FnOnce(&[u8], &[String]) -> Result<Document, Failure>,
) -> Result<(), Failure> {
    if let Some(object) = [Some(&args.file), args.output.as_ref()]
        .into_iter()
        .flatten()
        .find(|file| is_object(file))
    {
        return Err(format!(
            "{}: only Parquet is read from and written to object stores",
            object.display()
        )
        .into());
    }
    if let Some(output) = &args.output {
        let inputs = files
            .iter()
            .chain([&args.file])
            .map(PathBuf::as_path)
            .collect::<Vec<_>>();
        output_file::check(output, true, &inputs)?;
    }
    let progress = DocumentProgress::start();
    progress.say("reading");
    let text = read(&args.file)?;
    let limits = WalkLimits {
        out_bytes_max: usize::MAX,
        ..WalkLimits::default()
    };
    let payload = json::to_msgpack(&text, limits)
        .map_err(|error| format!("{}: {error}", args.file.display()))?;
    progress.say(&format!("{doing} {:.1} MB", payload.len() as f64 / 1e6));
    let (payload, mut encapsulations) = encapsulations::take_encapsulations(&payload)?;
    let document = call(&payload, &encapsulations)?;
    progress.say("writing");
    let mut converted = Vec::new();
    if opened == Opened::Selected && args.select.is_empty() && document.errors.is_empty() {
        encapsulations.clear();
    }
    encapsulations.extend(document.encapsulations.iter().cloned());
    let whole = encapsulations::put_encapsulations(&document.payload, &encapsulations)?;
    json::from_msgpack(&whole, &mut converted, !args.compact, limits)?;
    converted.push(b'\n');
    progress.end();
    list(&document.errors, document.errors_omitted);
    for path in document
        .unmatched
        .iter()
        .filter_map(|position| path(args, *position))
    {
        errln!("{path} matches nothing");
    }
    write(args.output.as_deref(), &converted)
}

/// Adds a hint to an error that concerns a path argument.
fn explained_of(args: &FileArgs, failure: Failure) -> Failure {
    let Some(Error::Rpc(error)) = failure.downcast_ref::<Error>() else {
        return explained(failure);
    };
    let position = error
        .details
        .iter()
        .find(|detail| detail.key == "unmatched")
        .map(|detail| &detail.value);
    match position {
        Some(DetailValue::Number(position)) => {
            let path = u32::try_from(*position)
                .ok()
                .and_then(|position| path(args, position))
                .unwrap_or_default();
            reworded(&*failure, no_match(args, path))
        }
        _ => explained(failure),
    }
}

/// Returns the text of the error for a path that matches nothing.
fn no_match(args: &FileArgs, path: &str) -> String {
    let hint = "correct it, or add --allow-unmatched to ignore it";
    format!(
        "--select {path} matches nothing in {}: {hint}",
        args.file.display()
    )
}

/// Returns the path argument at a position.
fn path(args: &FileArgs, position: u32) -> Option<&str> {
    args.select
        .get(usize::try_from(position).ok()?)
        .map(String::as_str)
}

/// Adds a hint to the text of an error. Keeps its code for programs.
pub(super) fn explained(failure: Failure) -> Failure {
    let Some(Error::Rpc(error)) = failure.downcast_ref::<Error>() else {
        return failure;
    };
    let path = error
        .details
        .iter()
        .find(|detail| detail.key == "path")
        .map(|detail| match &detail.value {
            DetailValue::Text(path) => path.to_string(),
            DetailValue::Number(number) => number.to_string(),
            DetailValue::Errors(_) => String::new(),
        });
    let text = match (error.code, path) {
        (ErrorCode::CannotOpen, Some(path)) => {
            format!(
                "{path} does not open: it was sealed for another app or with another context, its key is disabled, or it was \
                 altered; --report lists all such fields and opens the others"
            )
        }
        (ErrorCode::Forbidden, Some(path)) => format!(
            "{path}: {}; `evervault.open_roles` lists the roles that open",
            error.message
        ),
        (ErrorCode::NotFound, _) if error.message.contains("has no collection") => {
            format!("{error}; `sealwire collections list APP` shows all collections")
        }
        (ErrorCode::NotFound, _) if error.message.starts_with("no app") => {
            format!("{error}; `sealwire apps list` shows all apps")
        }
        (ErrorCode::BadRequest, Some(path)) if !error.message.contains(&path) => {
            format!("{path}: {error}")
        }
        _ => return failure,
    };
    reworded(&*failure, text)
}

fn list(errors: &[FieldError], omitted: u64) {
    for error in errors {
        errln!("{}: {}", error.path, error.code);
    }
    if omitted > 0 {
        errln!("and {omitted} more");
    }
}

/// Maximum length of a document in bytes. A document is read completely into memory.
const DOCUMENT_BYTES_MAX: u64 = 1 << 30;

/// Reads a file; `-` is standard input.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(DOCUMENT_BYTES_MAX + 1)
            .read_to_end(&mut text)
    } else {
        File::open(file).and_then(|file| file.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut text))
    };
    read.map_err(|error| format!("{}: {error}", file.display()))?;
    if text.len() as u64 > DOCUMENT_BYTES_MAX {
        let what = "longer than 1 GiB, which no engine takes: divide the document, or use `mask` or Parquet for tables";
        return Err(format!("{}: {what}", file.display()).into());
    }
    Ok(text)
}

fn write(output: Option<&Path>, text: &[u8]) -> Result<(), Failure> {
    match output {
        Some(file) => Ok(sealwire_dev_ca::write(
            file,
            text,
            sealwire_dev_ca::Access::Owner,
            sealwire_dev_ca::Existing::Replace,
        )?),
        None => {
            let mut stdout = BufWriter::new(sealwire_service::output::Output);
            Ok(stdout.write_all(text).and_then(|()| stdout.flush())?)
        }
    }
}

#[cfg(test)]
mod tests {
    use sealwire_client::Detail;
    use sealwire_command_line::failure::report;
    use sealwire_wire::RpcError;

    use super::*;

    #[test]
    fn explained_errors_keep_their_code() {
        for (code, message, path, hint) in [
            (
                ErrorCode::CannotOpen,
                "cannot open",
                Some("$.a"),
                "--report",
            ),
            (ErrorCode::Forbidden, "denied", Some("$.a"), "open_roles"),
            (
                ErrorCode::NotFound,
                "app shop has no collection x",
                None,
                "collections list",
            ),
            (ErrorCode::NotFound, "no app shop", None, "apps list"),
            (ErrorCode::BadRequest, "must be text", Some("$.a"), "$.a: "),
            (ErrorCode::Conflict, "exists already", None, ""),
        ] {
            let mut error = RpcError::new(code, message);
            error
                .details
                .extend(path.map(|path| Detail::text("path", path)));
            let text = report(&*explained(Error::Rpc(error).into()), true);
            assert!(
                text.contains(&format!("\"code\":\"{}\"", code.name())) && text.contains(hint),
                "{text}"
            );
        }
    }
}
