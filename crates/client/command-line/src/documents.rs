//! Arguments of commands on a document, which the programs for JSON and for Parquet share.

#![allow(
    missing_docs,
    reason = "a doc comment of an argument is a text that the programs print"
)]

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use sealwire_client::{Format, KeyScope, Suite, Unmatched};

use crate::connect::ConnectArgs;
use crate::object_store::ObjectStoreArgs;
use crate::{Failure, dev_folder};

/// The files of a document command, and which fields it changes.
#[derive(Debug, clap::Args)]
pub struct FileArgs {
    /// JSON file, or for `encrypt` and `decrypt` a Parquet file (`.parquet`), which can be an
    /// object (s3://bucket/file.parquet); `-` reads standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write here instead of standard output; appears only when complete
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Only these fields, as JSONPath: `$.card.number`, `$.users[*].ssn`, `$..pan`; repeat for more
    #[arg(long, short, value_name = "PATH")]
    pub select: Vec<String>,
    /// Continue if a path of --select matches nothing, and list such paths; otherwise they are an
    /// error
    #[arg(long)]
    pub allow_unmatched: bool,
    /// Context to bind the fields to, such as `customers.card.17`; decryption needs the same
    /// context
    #[arg(long, default_value = "", hide_default_value = true)]
    pub context: String,
    /// Write one line instead of indented text
    #[arg(long)]
    pub compact: bool,
}

/// Arguments of every document command that an engine carries out.
#[derive(Debug, clap::Args)]
pub struct Common {
    #[command(flatten)]
    pub file: FileArgs,
    /// App whose keys to use
    #[arg(long, short, default_value = dev_folder::DEMO_APP)]
    pub app: String,
    /// Path of each item's context in the item, such as `$.id`, instead of one --context. The items
    /// are those of an array; any other document is one item. Decryption needs the same path
    #[arg(long, value_name = "PATH", conflicts_with = "context")]
    pub context_path: Option<String>,
    /// Reason, for the audit log; a role may require it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Arguments of `encrypt`.
#[derive(Debug, clap::Args)]
pub struct EncryptArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub object_store: ObjectStoreArgs,
    /// Cipher suite [default: the app's]
    #[arg(long, value_enum)]
    pub suite: Option<SuiteName>,
    /// Scope of one ephemeral key: the document, one field, or all requests of the app's current
    /// epoch, which `sealwire apps set APP --epoch-ms N` allows
    #[arg(long, value_enum, default_value = "request")]
    pub key_scope: ScopeName,
    /// Format of envelopes; evervault-bare has no metadata, so that nothing authenticates the type
    /// of a value
    #[arg(long, value_enum)]
    pub format: Option<FormatName>,
    /// Write the encapsulation of suite p256-mlkem768 once, as member $sw1 of the document, instead
    /// of in each field. The document must be an object. Without that member its fields do not open
    #[arg(long)]
    pub apart: bool,
    /// Data role that evervault strings carry: 1 to 20 of a-z 0-9 -
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
}

/// Arguments of `decrypt`.
#[derive(Debug, clap::Args)]
pub struct DecryptArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub object_store: ObjectStoreArgs,
    /// Leave fields that do not open unchanged and list them, instead of failing
    #[arg(long)]
    pub report: bool,
    /// Type of a decrypted Parquet column that does not note it any more, in the words of pyarrow:
    /// --type '$.amount=decimal128(10, 2)'; repeat for more
    #[arg(long = "type", value_name = "COLUMN=TYPE")]
    pub types: Vec<String>,
    /// Open only values that an engine sealed. Values that others sealed to a published key, and
    /// Evervault values, are not opened
    #[arg(long)]
    pub refuse_outside: bool,
}

/// A cipher suite, as arguments name it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SuiteName {
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
pub enum FormatName {
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
pub enum ScopeName {
    Request,
    Field,
    Epoch,
}

impl From<ScopeName> for KeyScope {
    fn from(name: ScopeName) -> Self {
        match name {
            ScopeName::Request => Self::Request,
            ScopeName::Field => Self::Field,
            ScopeName::Epoch => Self::Epoch,
        }
    }
}

impl Common {
    /// Returns the effect of a path that matches nothing.
    pub fn unmatched(&self) -> Unmatched {
        self.file.unmatched()
    }

    /// Returns the selected paths, or `None` for all.
    pub fn select(&self) -> Option<Vec<&str>> {
        self.file.select()
    }

    /// Returns the context of the fields.
    pub fn context(&self) -> &[u8] {
        self.file.context.as_bytes()
    }

    /// Returns the path of each item's context, if each item has its own.
    pub fn context_path(&self) -> Option<&str> {
        self.context_path.as_deref()
    }

    /// Returns the output of a Parquet file. Fails if an option is given that is for JSON only.
    pub fn parquet_output(&self) -> Result<&Path, Failure> {
        if self.context_path.is_some() {
            return Err("--context-path is for JSON".into());
        }
        self.file.parquet_output()
    }
}

impl FileArgs {
    /// Returns true if the file's name is that of a Parquet file.
    pub fn is_parquet(&self) -> bool {
        self.file
            .extension()
            .and_then(OsStr::to_str)
            .is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))
    }

    /// Returns the input's path.
    pub fn path_of_file(&self) -> &Path {
        &self.file
    }

    /// Returns the output of a Parquet file. Fails if an option is given that is for JSON only.
    fn parquet_output(&self) -> Result<&Path, Failure> {
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
    pub fn unmatched(&self) -> Unmatched {
        if self.select.is_empty() || self.allow_unmatched {
            Unmatched::Report
        } else {
            Unmatched::Fail
        }
    }

    pub fn select(&self) -> Option<Vec<&str>> {
        (!self.select.is_empty()).then(|| self.select.iter().map(String::as_str).collect())
    }
}

/// A spinner on a terminal. Prints nothing elsewhere.
pub struct DocumentProgress(ProgressBar);

impl DocumentProgress {
    /// Shows the spinner.
    pub fn start() -> Self {
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

    pub fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}
