//! Opens and seals Evervault values on request, for checks against other implementations
//! (`proto/interop/evervault`).
//!
//! One JSON object per line in, one out; byte strings are hex. `private_key` is one scalar for both
//! curves. `{"op":"open","private_key":..,"legacy":..,"sealed":..}` gives
//! `{"type":..,"value":..,"role":..,..}`, `open_file` gives `{"content":..,"role":..}`, either
//! `{"refused":true}`;
//! `{"op":"seal","private_key":..,"curve":..,"plain":..,"role":..,"encrypted_at":..,"datatype":..,"text":..}`
//! and `{"op":"seal_file",..,"content":..,"pieces":..}` give `{"sealed":..}`.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use sealwire_crypto::evervault::{
    Datatype, FILE_HEADER_BYTES, FileHeader, FileOpener, FileSealer, Form, Legacy, Number,
    NumberText, OpenedValue as Opened, Opener, Role, Sealer,
};
use sealwire_crypto::{AppId, AppKeys, Curve, KeyPair, KeyScope, KeyState, KeyVersion};
use serde_json::{Value, json};

type Answer = Result<Value, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        writeln!(stdout, "{}", answer(&serde_json::from_str(&line?)?)?)?;
        stdout.flush()?;
    }
    Ok(())
}

fn answer(request: &Value) -> Answer {
    let scalar = unhex(text(request, "private_key")?)?
        .try_into()
        .map_err(|_| "private_key")?;
    let version = |curve| {
        Ok(KeyVersion::new(
            1,
            KeyState::Active,
            KeyPair::from_scalar(curve, &scalar)?,
        ))
    };
    let versions = Curve::ALL
        .map(version)
        .into_iter()
        .collect::<Result<_, Box<dyn Error>>>()?;
    let keys = Arc::new(AppKeys::new(AppId::new("interop")?, versions)?);
    match text(request, "op")? {
        "open" => open(request, &keys),
        "open_file" => open_file(request, &keys),
        "seal" => seal(request, &keys),
        "seal_file" => seal_file(request, &keys),
        _ => Err("op".into()),
    }
}

fn legacy(request: &Value) -> Legacy {
    if request["legacy"] == true {
        Legacy::Allowed
    } else {
        Legacy::Refused
    }
}

fn open(request: &Value, keys: &Arc<AppKeys>) -> Answer {
    let mut opener = Opener::new(keys, legacy(request));
    let Ok(opened) = opener.open(text(request, "sealed")?.as_bytes()) else {
        return Ok(json!({ "refused": true }));
    };
    let (kind, value) = match opened.value {
        Opened::Text(text) => ("text", text.to_owned()),
        Opened::Number(number @ Number::Float(_)) => {
            ("float", NumberText::new(number).as_str().to_owned())
        }
        Opened::Number(number) => ("integer", NumberText::new(number).as_str().to_owned()),
        Opened::Boolean(value) => ("boolean", value.to_string()),
    };
    let metadata = (opened.role, opened.origin, opened.encrypted_at);
    Ok(
        json!({ "type": kind, "value": value, "role": metadata.0, "origin": metadata.1, "encrypted_at": metadata.2 }),
    )
}

/// Opens a file whole and in pieces, which must agree.
fn open_file(request: &Value, keys: &Arc<AppKeys>) -> Answer {
    let file = unhex(text(request, "sealed")?)?;
    let mut opener = Opener::new(keys, legacy(request));
    let whole = opener.open_file(&file).ok();
    let whole = whole.map(|opened| json!({ "content": hex(opened.content), "role": opened.role }));
    if whole != open_in_pieces(request, keys, &file)? {
        return Err("whole and in pieces differ".into());
    }
    Ok(whole.unwrap_or(json!({ "refused": true })))
}

fn open_in_pieces(
    request: &Value,
    keys: &AppKeys,
    file: &[u8],
) -> Result<Option<Value>, Box<dyn Error>> {
    let (header, rest) = file
        .split_first_chunk::<FILE_HEADER_BYTES>()
        .ok_or("sealed")?;
    let Some(header) = FileHeader::read(header) else {
        return Ok(None);
    };
    for mut opener in FileOpener::candidates(keys, &header, legacy(request)).unwrap_or_default() {
        let mut content = Vec::new();
        if rest
            .chunks(1000)
            .all(|chunk| opener.update(chunk, &mut content).is_ok())
        {
            let role = opener.role().map(String::from);
            if opener.finish().is_ok() {
                return Ok(Some(json!({ "content": hex(&content), "role": role })));
            }
        }
    }
    Ok(None)
}

fn seal(request: &Value, keys: &AppKeys) -> Answer {
    let form = match request["plain"].as_bool() {
        Some(true) => Form::Plain,
        _ => Form::Metadata {
            role: request["role"].as_str().map(Role::new).transpose()?,
            encrypted_at: request["encrypted_at"]
                .as_u64()
                .ok_or("encrypted_at")?
                .try_into()?,
        },
    };
    let datatype = match text(request, "datatype")? {
        "number" => Datatype::Number,
        "boolean" => Datatype::Boolean,
        _ => Datatype::String,
    };
    let mut sealer = Sealer::new(newest(request, keys)?, KeyScope::Request, &form)?;
    let mut out = Vec::new();
    sealer.seal(datatype, text(request, "text")?, &mut out)?;
    Ok(json!({ "sealed": String::from_utf8(out)? }))
}

fn seal_file(request: &Value, keys: &AppKeys) -> Answer {
    let recipient = newest(request, keys)?;
    let mut content = unhex(text(request, "content")?)?;
    if request["pieces"] != true {
        let mut out = Vec::new();
        Sealer::new(recipient, KeyScope::Request, &Form::Plain)?.seal_file(&content, &mut out)?;
        return Ok(json!({ "sealed": hex(&out) }));
    }
    let (mut sealer, header) = FileSealer::new(&recipient)?;
    for chunk in content.chunks_mut(999) {
        sealer.update(chunk)?;
    }
    Ok(json!({ "sealed": hex(&[&header[..], &content, &sealer.finish()?].concat()) }))
}

fn newest(request: &Value, keys: &AppKeys) -> Result<Arc<KeyVersion>, Box<dyn Error>> {
    let curve = Curve::from_name(text(request, "curve")?).ok_or("curve")?;
    Ok(keys.newest(curve).ok_or("no key")?.clone())
}

fn text<'a>(request: &'a Value, key: &str) -> Result<&'a str, String> {
    request[key].as_str().ok_or(format!("{key} is missing"))
}

fn unhex(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let bytes = text
        .as_bytes()
        .chunks(2)
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?));
    bytes.collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
