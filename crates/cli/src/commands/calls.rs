//! `inspect`, `health` and `info`: each sends one request, and prints the response as text or JSON.

use std::time::Instant;

use sealwire_client::{Envelope, Inspect};
use sealwire_service::output::outln;
use serde_json::{Map, Value, json};

use super::Failure;
use super::connect::ConnectArgs;

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
pub(super) struct InspectArgs {
    /// Envelope, as text: `sw1:...` or `ev:...`
    envelope: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `health` and `info`.
#[derive(Debug, clap::Args)]
pub(super) struct PlainArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) fn inspect(args: &InspectArgs) -> Result<(), Failure> {
    let envelope = Envelope::Text(args.envelope.trim());
    let response = args.connect.run(async {
        Ok(args
            .connect
            .client()
            .await?
            .inspect(Inspect { envelope })
            .await?)
    })?;
    let mut object = json!({
        "format": response.format.name(),
        "version": response.version,
        "tag": response.tag,
        "suite": response.suite.name(),
        "key_id": response.key_id,
        "outside": response.outside.then_some(true),
        "datatype": response.datatype.name(),
        "sequence": response.sequence,
        "encoding": response.encoding.name(),
        "plaintext_bytes": response.plaintext_bytes,
        "encapsulation": response.encapsulation.map(|encapsulation| encapsulation.name()),
        "debug": response.debug,
    });
    if let Some(members) = object.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    print_object(args.json, &object)
}

pub(super) fn health(args: &PlainArgs) -> Result<(), Failure> {
    let elapsed = args.connect.run(async {
        let client = args.connect.client().await?;
        let start = Instant::now();
        client.health().await?;
        Ok(start.elapsed())
    })?;
    let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    print_object(
        args.json,
        &json!({ "status": "ok", "round_trip_us": elapsed_us }),
    )
}

pub(super) fn info(args: &PlainArgs) -> Result<(), Failure> {
    let info = args
        .connect
        .run(async { Ok(args.connect.client().await?.info().await?) })?;
    let limits: Map<String, Value> = info
        .limits
        .into_iter()
        .map(|(name, limit)| (name, limit.into()))
        .collect();
    print_object(
        args.json,
        &json!({
            "name": info.name,
            "version": info.version,
            "protocol": info.protocol,
            "generation": info.generation,
            "methods": info.methods,
            "suites": info.suites,
            "formats": info.formats,
            "encodings": info.encodings,
            "key_scopes": info.key_scopes,
            "limits": limits,
        }),
    )
}

/// Prints an object as JSON, or as one line per key.
fn print_object(as_json: bool, object: &Value) -> Result<(), Failure> {
    if as_json {
        outln!("{object}");
        return Ok(());
    }
    for (key, value) in object.as_object().into_iter().flatten() {
        match value {
            Value::String(text) => outln!("{key:<18}{text}"),
            Value::Array(list) => {
                outln!(
                    "{key:<18}{}",
                    list.iter()
                        .filter_map(Value::as_str)
                        .collect::<Vec<_>>()
                        .join(" ")
                );
            }
            Value::Object(limits) => {
                for (name, limit) in limits {
                    outln!("{key}.{name:<30}{limit}");
                }
            }
            other => outln!("{key:<18}{other}"),
        }
    }
    Ok(())
}
