//! Seals and opens on request, for checks by implementations in other languages (`proto/interop`).
//!
//! One JSON object per line in, one out. Byte strings are hex, a text envelope is itself:
//! `{"op":"seal","curve":"r1","private_key":..,"app":..,"context":..,"encoding":"text","datatype":0,"plaintext":..}`
//! gives `{"envelope":..}`; `{"op":"open",..,"envelope":..}` gives `{"datatype":..,"plaintext":..}` or `{"refused":true}`.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use sealwire_crypto::{
    AppId, AppKeys, Curve, Datatype, Encoding, KeyPair, KeyScope, KeyState, KeyVersion, Opener, Sealer,
};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        writeln!(stdout, "{}", answer(&serde_json::from_str(&line?)?)?)?;
        stdout.flush()?;
    }
    Ok(())
}

fn answer(request: &Value) -> Result<Value, Box<dyn Error>> {
    let text = |key: &str| request[key].as_str().ok_or(format!("{key} is missing"));
    let curve = Curve::from_name(text("curve")?).ok_or("curve")?;
    let scalar = unhex(text("private_key")?)?.try_into().map_err(|_| "private_key")?;
    let version = KeyVersion::new(1, KeyState::Active, KeyPair::from_scalar(curve, &scalar)?);
    let keys = Arc::new(AppKeys::new(AppId::new(text("app")?)?, vec![version])?);
    let context = unhex(text("context")?)?;
    let encoding = if text("encoding")? == "text" { Encoding::Text } else { Encoding::Binary };
    if text("op")? == "seal" {
        let datatype = request["datatype"].as_u64().and_then(|byte| Datatype::from_byte(byte.try_into().ok()?));
        let newest = keys.newest(curve).ok_or("no key")?.clone();
        let mut sealer = Sealer::new(keys.app(), newest, KeyScope::Request, encoding, &context)?;
        let mut out = Vec::new();
        sealer.seal(datatype.ok_or("datatype")?, &unhex(text("plaintext")?)?, &mut out)?;
        let envelope = if encoding == Encoding::Text { String::from_utf8(out)? } else { hex(&out) };
        return Ok(json!({ "envelope": envelope }));
    }
    let mut opener = Opener::new(keys, &context);
    let opened = match encoding {
        Encoding::Text => opener.open_text(text("envelope")?.as_bytes()),
        Encoding::Binary => opener.open_binary(&unhex(text("envelope")?)?),
    };
    Ok(opened.map_or_else(
        |_| json!({ "refused": true }),
        |opened| json!({ "datatype": opened.datatype as u8, "plaintext": hex(opened.plaintext) }),
    ))
}

fn unhex(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let bytes = text.as_bytes().chunks(2).map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?));
    bytes.collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
