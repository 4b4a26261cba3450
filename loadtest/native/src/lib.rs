//! Sealwire's wire contract for Node: encodes requests to frames, and decodes bytes to responses.
//!
//! All encoding is in `crates/core/wire`, which the engine and the Rust client use too. This module has
//! no socket and no key. A panic becomes an exception. `index.d.ts` declares this interface in
//! TypeScript.

mod document;
mod replies;

use napi::bindgen_prelude::{Buffer, Error, Result, Status};
use napi_derive::napi;
use sealwire_wire as wire;
use sealwire_wire::ResultCodec as _;
use wire::{Encoding, Format, KeyScope, Suite, TokenLookupScope, TokenizeOptions, Writing};

pub use document::Expected;
pub use replies::{Replies, Reply};

/// A request on a document: either `payload`, or `fields` and `field_bytes` of a generated
/// document.
#[napi(object)]
#[derive(Default)]
pub struct Request {
    /// The app.
    pub app: String,
    /// The document: a MessagePack value.
    pub payload: Option<Buffer>,
    /// Number of fields of a generated document.
    pub fields: Option<u32>,
    /// Bytes of each field.
    pub field_bytes: Option<u32>,
    /// Seed that selects a document of that size; 0 if not given.
    pub seed: Option<u32>,
    /// Paths of the fields to process.
    pub select: Option<Vec<String>>,
    /// The context of envelopes and tokens.
    pub context: Option<Buffer>,
    /// The request's deadline in milliseconds.
    pub deadline_ms: Option<u32>,
    /// For `encrypt`: "p256", "secp256k1", "xaes" or "p256-psk"; the app's if absent.
    pub suite: Option<String>,
    /// For `encrypt`: "request", "field" or "epoch".
    pub key_scope: Option<String>,
    /// For `encrypt`: "native", "evervault" or "evervault-bare".
    pub format: Option<String>,
    /// For `encrypt`: "text" or "binary".
    pub encoding: Option<String>,
    /// For `tokenize` and `detokenize`: the collection.
    pub collection: Option<String>,
    /// For `tokenize`: equal keys give equal tokens.
    pub idempotency_key: Option<Buffer>,
    /// For `tokenize`: seconds until the tokens expire.
    pub expires_s: Option<f64>,
}

/// Description of an engine.
#[napi(object)]
pub struct Info {
    /// The program's name.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// The version of the contract.
    pub protocol: u32,
    /// Methods that the engine serves.
    pub methods: Vec<String>,
    /// Key scopes that the engine offers.
    pub key_scopes: Vec<String>,
}

/// Encodes an `encrypt` request.
#[napi(catch_unwind)]
pub fn encrypt(msgid: u32, call: Request) -> Result<Buffer> {
    let writing = Writing {
        suite: named("suite", call.suite.as_deref(), Suite::from_name)?,
        key_scope: named("keyScope", call.key_scope.as_deref(), KeyScope::from_name)?
            .unwrap_or_default(),
        format: named("format", call.format.as_deref(), Format::from_name)?,
        encoding: named("encoding", call.encoding.as_deref(), Encoding::from_name)?
            .unwrap_or_default(),
        ..Writing::default()
    };
    frame(&call, writing, |out, call| {
        wire::request::encrypt(out, msgid, call)
    })
}

/// Encodes a `decrypt` request.
#[napi(catch_unwind)]
pub fn decrypt(msgid: u32, call: Request) -> Result<Buffer> {
    frame(&call, wire::Reading::default(), |out, call| {
        wire::request::decrypt(out, msgid, call)
    })
}

/// Encodes a `tokenize` request.
#[napi(catch_unwind)]
pub fn tokenize(msgid: u32, call: Request) -> Result<Buffer> {
    let minting = TokenizeOptions {
        collection: collection(&call)?,
        idempotency_key: call.idempotency_key.as_deref(),
        expires_s: call.expires_s.map(|seconds| seconds as u64),
        ..TokenizeOptions::default()
    };
    frame(&call, minting, |out, call| {
        wire::request::tokenize(out, msgid, call)
    })
}

/// Encodes a `detokenize` request.
#[napi(catch_unwind)]
pub fn detokenize(msgid: u32, call: Request) -> Result<Buffer> {
    let within = TokenLookupScope {
        collection: collection(&call)?,
    };
    frame(&call, within, |out, call| {
        wire::request::detokenize(out, msgid, call)
    })
}

/// Encodes a message that cancels the request `msgid`.
#[napi(catch_unwind)]
pub fn cancel(msgid: u32) -> Buffer {
    let mut out = Vec::with_capacity(16);
    wire::request::cancel(&mut out, msgid);
    out.into()
}

/// Encodes an `info` request.
#[napi(catch_unwind)]
pub fn info(msgid: u32) -> Buffer {
    let mut out = Vec::with_capacity(16);
    wire::request::info(&mut out, msgid);
    out.into()
}

/// Decodes the `result` of an `info` response.
#[napi(catch_unwind)]
pub fn read_info(result: Buffer) -> Result<Info> {
    let wire::Info {
        name,
        version,
        protocol,
        methods,
        key_scopes,
        ..
    } = wire::Info::decode(&result).map_err(|malformed| invalid(malformed.to_string()))?;
    Ok(Info {
        name,
        version,
        protocol,
        methods,
        key_scopes,
    })
}

/// Generates a document of `fields` fields of `field_bytes` bytes: one map of strings. Equal
/// arguments give equal bytes.
#[napi(catch_unwind)]
pub fn document(fields: u32, field_bytes: u32, seed: Option<u32>) -> Result<Buffer> {
    document::make(fields, field_bytes, seed.unwrap_or(0))
        .map(Buffer::from)
        .map_err(invalid)
}

/// Returns the mismatch of a response's payload as a sentence; `null` if it is as expected.
#[napi(catch_unwind)]
pub fn check(payload: Buffer, expected: Expected) -> Result<Option<String>> {
    document::check(&payload, &expected).map_err(invalid)
}

/// Panics, to test that a panic becomes an exception.
#[napi(catch_unwind)]
pub fn panic_for_test() {
    panic!("asked to");
}

fn invalid(why: String) -> Error {
    Error::new(Status::InvalidArg, why)
}

fn named<T>(key: &str, name: Option<&str>, from_name: fn(&str) -> Option<T>) -> Result<Option<T>> {
    let Some(name) = name else { return Ok(None) };
    match from_name(name) {
        None => Err(invalid(format!("{key}: {name} is not in the contract"))),
        known => Ok(known),
    }
}

fn collection(call: &Request) -> Result<&str> {
    call.collection
        .as_deref()
        .ok_or_else(|| invalid("collection is missing".into()))
}

/// Fills in the common parts of a document request, and calls `append` to encode it.
fn frame<W: Default>(
    call: &Request,
    writing: W,
    append: impl FnOnce(&mut Vec<u8>, &wire::DocumentParams<'_, W>),
) -> Result<Buffer> {
    let made;
    let payload: &[u8] = match (&call.payload, call.fields) {
        (Some(payload), None) => {
            // Two values, or half a value, would shift every later message of the connection.
            wire::request::check_payload(payload)
                .map_err(|malformed| invalid(format!("payload: {malformed}")))?;
            payload
        }
        (None, Some(fields)) => {
            made = document::make(
                fields,
                call.field_bytes.unwrap_or(16),
                call.seed.unwrap_or(0),
            )
            .map_err(invalid)?;
            &made
        }
        _ => return Err(invalid("a call has either payload or fields".into())),
    };
    let mut out = Vec::with_capacity(payload.len() + 256);
    let call = wire::DocumentParams {
        select: call
            .select
            .as_ref()
            .map(|paths| paths.iter().map(String::as_str).collect()),
        context: call.context.as_deref().unwrap_or_default(),
        options: wire::CommonParams {
            deadline_ms: call.deadline_ms,
            ..wire::CommonParams::default()
        },
        writing,
        ..wire::DocumentParams::new(&call.app, payload)
    };
    append(&mut out, &call);
    Ok(out.into())
}
