//! `encrypt`, `decrypt`, `rewrap` and `seal`: read a JSON file and write a JSON file. Parquet files
//! have their own module.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Read as _, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use sealwire_client::public_keys::{self, EncapsulationPlace, SealOptions, Sealed};
use sealwire_client::{
    Decrypt, DetailValue, Document, Encapsulation, Encrypt, Error, ErrorCode, FieldError, Format,
    KeyScope, OnError, Outside, Reading, Rewrap, Suite, Unbound, Unmatched, Writing,
};
use sealwire_data::mask_job::{ValueType, check_output, named_type};
use sealwire_payload::{WalkLimits, json};
use sealwire_service::output::errln;

use super::connect::ConnectArgs;
use super::object_store::{ObjectStoreArgs, is_object};
use super::parquet::{self, ColumnOperation};
use super::public_keys::PublicKeysArgs;
use super::{Failure, dev_folder, encapsulations};

/// The files of a document command, and which fields it changes.
#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// JSON file, or for `encrypt` and `decrypt` a Parquet file (`.parquet`), which can be an
    /// object (s3://bucket/file.parquet); `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write here instead of standard output; appears only when complete
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only these fields, as JSONPath: `$.card.number`, `$.users[*].ssn`, `$..pan`; repeat for more
    #[arg(long, short, value_name = "PATH")]
    select: Vec<String>,
    /// Continue if a path of --select matches nothing, and list such paths; otherwise they are an
    /// error
    #[arg(long)]
    allow_unmatched: bool,
    /// Context to bind the fields to, such as `customers.card.17`; decryption needs the same
    /// context
    #[arg(long, default_value = "", hide_default_value = true)]
    context: String,
    /// Write one line instead of indented text
    #[arg(long)]
    compact: bool,
}

/// Arguments of every document command that an engine carries out.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    #[command(flatten)]
    pub(super) file: FileArgs,
    /// App whose keys to use
    #[arg(long, short, default_value = dev_folder::DEMO_APP)]
    pub(super) app: String,
    /// Reason, for the audit trail; a role may require it
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
}

/// Arguments of `encrypt`.
#[derive(Debug, clap::Args)]
pub(super) struct EncryptArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    object_store: ObjectStoreArgs,
    /// Cipher suite [default: the app's]
    #[arg(long, value_enum)]
    suite: Option<SuiteName>,
    /// Scope of one ephemeral key: the document, one field, or all requests of the app's current
    /// epoch, which `sealwire apps set APP --epoch-ms N` allows
    #[arg(long, value_enum, default_value = "request")]
    key_scope: ScopeName,
    /// Format of envelopes; evervault-bare has no metadata, so that nothing authenticates the type
    /// of a value
    #[arg(long, value_enum)]
    format: Option<FormatName>,
    /// Write the encapsulation of suite p256-mlkem768 once, as member $sw1 of the document, instead
    /// of in each field. The document must be an object. Without that member its fields do not open
    #[arg(long)]
    apart: bool,
    /// Data role that evervault strings carry: 1 to 20 of a-z 0-9 -
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
}

/// Arguments of `decrypt`.
#[derive(Debug, clap::Args)]
pub(super) struct DecryptArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    object_store: ObjectStoreArgs,
    /// Leave fields that do not open as they are and list them, instead of failing
    #[arg(long)]
    report: bool,
    /// Type of a decrypted Parquet column that does not note it any more, in the words of pyarrow:
    /// --type '$.amount=decimal128(10, 2)'; repeat for more
    #[arg(long = "type", value_name = "COLUMN=TYPE", value_parser = column_type)]
    types: Vec<(String, ValueType)>,
    /// Open only what an engine sealed: not what others sealed to a published key, and no Evervault
    /// value
    #[arg(long)]
    refuse_outside: bool,
}

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

/// A cipher suite, as arguments name it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum SuiteName {
    P256Psk,
    P256,
    Secp256k1,
    Xaes,
    #[value(name = "p256-mlkem768")]
    P256MlKem768,
    #[value(name = "secp256k1-psk")]
    Secp256k1Psk,
}

impl From<SuiteName> for Suite {
    fn from(name: SuiteName) -> Self {
        match name {
            SuiteName::P256 => Self::P256,
            SuiteName::Secp256k1 => Self::Secp256k1,
            SuiteName::Xaes => Self::Xaes,
            SuiteName::P256MlKem768 => Self::P256MlKem768,
            SuiteName::P256Psk => Self::P256Psk,
            SuiteName::Secp256k1Psk => Self::Secp256k1Psk,
        }
    }
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Native,
    Evervault,
    EvervaultBare,
}

impl From<FormatName> for Format {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Native => Self::Native,
            FormatName::Evervault => Self::Evervault,
            FormatName::EvervaultBare => Self::EvervaultBare,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScopeName {
    Request,
    Field,
    Epoch,
}

pub(super) fn encrypt(args: &EncryptArgs) -> Result<(), Failure> {
    let key_scope = match args.key_scope {
        ScopeName::Request => KeyScope::Request,
        ScopeName::Field => KeyScope::Field,
        ScopeName::Epoch => KeyScope::Epoch,
    };
    let common = &args.common;
    if common.file.is_parquet() {
        if args.apart {
            return Err(
                "--apart is for JSON: each value of a column holds its encapsulation".into(),
            );
        }
        let operation = ColumnOperation::Encrypt {
            suite: args.suite.map(Suite::from),
            key_scope,
            format: args.format.map(Format::from),
            role: args.role.clone(),
        };
        return parquet::run(common, &args.object_store, operation);
    }
    common.convert("encrypting", Opened::None, async |payload, _| {
        let call = Encrypt {
            select: common.select(),
            unmatched: common.unmatched(),
            context: common.context(),
            reason: common.reason.as_deref(),
            writing: Writing {
                suite: args.suite.map(Suite::from),
                key_scope,
                format: args.format.map(Format::from),
                role: args.role.as_deref(),
                encapsulation: placed(args.apart),
                ..Writing::default()
            },
            ..Encrypt::new(&common.app, payload)
        };
        Ok(common.connect.client().await?.encrypt(call).await?)
    })
}

pub(super) fn decrypt(args: &DecryptArgs) -> Result<(), Failure> {
    let common = &args.common;
    if common.file.is_parquet() {
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
        return parquet::run(
            common,
            &args.object_store,
            ColumnOperation::Decrypt {
                outside,
                types: args.types.clone(),
            },
        );
    }
    if !args.types.is_empty() {
        return Err("--type is for Parquet: values of JSON come back with their types".into());
    }
    let on_error = if args.report {
        OnError::Report
    } else {
        OnError::Fail
    };
    common.convert(
        "decrypting",
        Opened::Selected,
        async |payload, encapsulations| {
            let call = Decrypt {
                encapsulations: encapsulations.iter().map(String::as_str).collect(),
                select: common.select(),
                unmatched: common.unmatched(),
                context: common.context(),
                reason: common.reason.as_deref(),
                on_error,
                writing: Reading {
                    outside: if args.refuse_outside {
                        Outside::Refuse
                    } else {
                        Outside::Accept
                    },
                },
                ..Decrypt::new(&common.app, payload)
            };
            Ok(common.connect.client().await?.decrypt(call).await?)
        },
    )
}

pub(super) fn rewrap(args: &RewrapArgs) -> Result<(), Failure> {
    let common = &args.common;
    let on_error = if args.report {
        OnError::Report
    } else {
        OnError::Fail
    };
    common.convert(
        "rewrapping",
        Opened::Selected,
        async |payload, encapsulations| {
            let call = Rewrap {
                encapsulations: encapsulations.iter().map(String::as_str).collect(),
                select: common.select(),
                unmatched: common.unmatched(),
                context: common.context(),
                reason: common.reason.as_deref(),
                on_error,
                writing: Writing {
                    suite: args.suite.map(Suite::from),
                    format: args.format.map(Format::from),
                    unbound: if args.bind_unbound {
                        Unbound::Bind
                    } else {
                        Unbound::Refuse
                    },
                    outside: args.outside.into(),
                    encapsulation: placed(args.apart),
                    ..Writing::default()
                },
                ..Rewrap::new(&common.app, payload)
            };
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
    file.convert(
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
                return Err(file.no_match(file.path(*position).unwrap_or_default()));
            }
            let (payload, generation) = (document.into(), keys.generation());
            Ok(Document {
                payload,
                generation,
                errors: Vec::new(),
                errors_omitted: 0,
                unmatched,
                encapsulations,
            })
        },
    )
}

impl Common {
    pub(super) fn unmatched(&self) -> Unmatched {
        self.file.unmatched()
    }

    pub(super) fn select(&self) -> Option<Vec<&str>> {
        self.file.select()
    }

    pub(super) fn context(&self) -> &[u8] {
        self.file.context.as_bytes()
    }

    pub(super) fn convert(
        &self,
        doing: &str,
        opened: Opened,
        call: impl AsyncFnOnce(&[u8], &[String]) -> Result<Document, Failure>,
    ) -> Result<(), Failure> {
        let explained = |failure| self.file.explained(failure);
        let files = self.connect.files();
        self.file.convert(&files, doing, opened, |payload, given| {
            self.connect.run(call(payload, given)).map_err(explained)
        })
    }
}

/// Which envelopes a command opens, and so which encapsulations nobody needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// None.
    None,
    /// Those that are selected, if no field fails.
    Selected,
}

fn column_type(text: &str) -> Result<(String, ValueType), String> {
    let (column, name) = text.rsplit_once('=').ok_or("write COLUMN=TYPE")?;
    // A time zone is written with an equals sign, too.
    let (column, name) = match column.rsplit_once("=timestamp[") {
        Some((column, unit)) => (column, format!("timestamp[{unit}={name}")),
        None => (column, name.to_owned()),
    };
    Ok((
        column.to_owned(),
        named_type(&name).map_err(|error| error.to_string())?,
    ))
}

fn placed(apart: bool) -> Encapsulation {
    if apart {
        Encapsulation::Apart
    } else {
        Encapsulation::Inline
    }
}

impl FileArgs {
    fn is_parquet(&self) -> bool {
        parquet::is_parquet(&self.file)
    }

    /// Returns the input's path.
    pub(super) fn path_of_file(&self) -> &Path {
        &self.file
    }

    /// Returns the output of a Parquet file, if no option is given that is for JSON alone.
    pub(super) fn parquet_output(&self) -> Result<&Path, Failure> {
        if self.compact || self.allow_unmatched {
            return Err("--compact and --allow-unmatched are for JSON".into());
        }
        let output = self
            .output
            .as_deref()
            .filter(|output| *output != Path::new("-"));
        Ok(output.ok_or("a Parquet file is written to a file: name one with --output")?)
    }

    /// Fails for an unmatched path by default, because a misspelt path would leave its field in the
    /// clear.
    fn unmatched(&self) -> Unmatched {
        if self.select.is_empty() || self.allow_unmatched {
            Unmatched::Report
        } else {
            Unmatched::Fail
        }
    }

    pub(super) fn select(&self) -> Option<Vec<&str>> {
        (!self.select.is_empty()).then(|| self.select.iter().map(String::as_str).collect())
    }

    /// `files`: those that the command reads besides its input.
    pub(super) fn convert(
        &self,
        files: &[PathBuf],
        doing: &str,
        opened: Opened,
        call: impl FnOnce(&[u8], &[String]) -> Result<Document, Failure>,
    ) -> Result<(), Failure> {
        if let Some(object) = [Some(&self.file), self.output.as_ref()]
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
        if let Some(output) = &self.output {
            let inputs = files
                .iter()
                .chain([&self.file])
                .map(PathBuf::as_path)
                .collect::<Vec<_>>();
            check_output(output, true, &inputs)?;
        }
        let progress = DocumentProgress::new();
        progress.say("reading");
        let text = read(&self.file)?;
        let limits = WalkLimits {
            out_bytes_max: usize::MAX,
            ..WalkLimits::default()
        };
        let payload = json::to_msgpack(&text, limits)
            .map_err(|error| format!("{}: {error}", self.file.display()))?;
        progress.say(&format!("{doing} {:.1} MB", payload.len() as f64 / 1e6));
        let (payload, mut encapsulations) = encapsulations::take(&payload)?;
        let document = call(&payload, &encapsulations)?;
        progress.say("writing");
        let mut converted = Vec::new();
        if opened == Opened::Selected && self.select.is_empty() && document.errors.is_empty() {
            encapsulations.clear();
        }
        encapsulations.extend(document.encapsulations.iter().cloned());
        let whole = encapsulations::put(&document.payload, &encapsulations)?;
        json::from_msgpack(&whole, &mut converted, !self.compact, limits)?;
        converted.push(b'\n');
        progress.end();
        list(&document.errors, document.errors_omitted);
        for path in document
            .unmatched
            .iter()
            .filter_map(|position| self.path(*position))
        {
            errln!("{path} matches nothing");
        }
        write(self.output.as_deref(), &converted)
    }

    /// Adds a hint to an error, with the path that was given for it.
    fn explained(&self, failure: Failure) -> Failure {
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
                    .and_then(|position| self.path(position))
                    .unwrap_or_default();
                self.no_match(path)
            }
            _ => explained(failure),
        }
    }

    /// Returns the error for a path that matches nothing.
    fn no_match(&self, path: &str) -> Failure {
        let hint = "correct it, or go on without with --allow-unmatched";
        format!(
            "--select {path} matches nothing in {}: {hint}",
            self.file.display()
        )
        .into()
    }

    fn path(&self, position: u32) -> Option<&str> {
        self.select
            .get(usize::try_from(position).ok()?)
            .map(String::as_str)
    }
}

/// Adds a hint to an error.
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
    match (error.code, path) {
        (ErrorCode::CannotOpen, Some(path)) => {
            let hint = "another app or context, a disabled key, or altered; --report lists all such fields and opens the others";
            format!("{path} does not open: {hint}").into()
        }
        (ErrorCode::Forbidden, Some(path)) => format!(
            "{path}: {}; `evervault.open_roles` lists the roles that open",
            error.message
        )
        .into(),
        (ErrorCode::NotFound, _) => {
            format!("{error}; `sealwire apps list` shows which there are").into()
        }
        _ => failure,
    }
}

fn list(errors: &[FieldError], omitted: u64) {
    for error in errors {
        errln!("{}: {}", error.path, error.code);
    }
    if omitted > 0 {
        errln!("and {omitted} more");
    }
}

/// Maximum length of a document, which is read whole.
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

/// A spinner on a terminal. Prints nothing elsewhere.
pub(super) struct DocumentProgress(ProgressBar);

impl DocumentProgress {
    pub(super) fn new() -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    pub(super) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}
