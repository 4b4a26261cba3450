//! `tokenize` and `detokenize`: read a JSON file and write a JSON file.

use std::time::Duration;

use sealwire_client::{Detokenize, Tokenize};

use super::Failure;
use super::documents::{Common, DocumentRequest as _, Opened, convert, on_error};

/// Arguments of `tokenize`.
#[derive(Debug, clap::Args)]
pub(super) struct TokenizeArgs {
    #[command(flatten)]
    common: Common,
    /// Collection that stores the values; `sealwire collections list APP` shows all
    #[arg(long, value_name = "NAME")]
    collection: String,
    /// Tag to store with each new token, in the clear, for `tokens list`; repeat for more
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Seconds after which new tokens expire [default: the collection's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=sealwire_wire::EXPIRES_S_MAX))]
    expires_s: Option<u64>,
    /// Person whom the document is about: an erasure of the person removes the tokens
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// Keep fields that do not fit the collection's format as they are and list them, instead of
    /// failing
    #[arg(long)]
    report: bool,
}

/// Arguments of `detokenize`.
#[derive(Debug, clap::Args)]
pub(super) struct DetokenizeArgs {
    #[command(flatten)]
    common: Common,
    /// Collection of the tokens
    #[arg(long, value_name = "NAME")]
    collection: String,
    /// Keep tokens that are not found as they are and list them, instead of failing
    #[arg(long)]
    report: bool,
}

pub(super) fn tokenize(args: &TokenizeArgs) -> Result<(), Failure> {
    let common = &args.common;
    convert(common, "tokenizing", Opened::None, async |payload, _| {
        let call = Tokenize::new(&common.app, &args.collection, payload)
            .with_common_options(common)
            .on_error(on_error(args.report))
            .tags(args.tag.iter().map(String::as_str))
            .expires_after(args.expires_s.map(Duration::from_secs))
            .subject(args.subject.as_deref());
        Ok(common.connect.client().await?.tokenize(call).await?)
    })
}

pub(super) fn detokenize(args: &DetokenizeArgs) -> Result<(), Failure> {
    let common = &args.common;
    convert(common, "detokenizing", Opened::None, async |payload, _| {
        let call = Detokenize::new(&common.app, &args.collection, payload)
            .with_common_options(common)
            .on_error(on_error(args.report));
        Ok(common.connect.client().await?.detokenize(call).await?)
    })
}
