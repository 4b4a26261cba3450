//! Seals and opens on request, for checks by implementations in other languages (`proto/interop`).
//!
//! One JSON object per line in, one out. Byte strings are hex, a text envelope is itself:
//! `{"op":"seal","suite":"p256","key":..,"app":..,"context":..,"encoding":"text","datatype":0,"plaintext":..}`
//! gives `{"envelope":..}`, and with `"fields":[{"datatype":0,"plaintext":..},..]` instead
//! `{"envelopes":[..]}`, all of one request; `{"op":"open",..,"envelope":..}` gives
//! `{"datatype":..,"plaintext":..}` or `{"refused":true}`.
//! `{"op":"token.seal","app":7,"secrets":[..],"collection":3,"context":..,"token":..,"datatype":1,"value":.., "idempotency_key":..,"principal":..,"index":0,"fingerprint":null}`
//! gives `{"id":..,"row":..,"of_value":..,"of_call":..}`, the last two where there is a value;
//! `{"op":"token.open",..,"id":..,"row":..}` gives `{"token":..,"datatype":..,"value":..}` or
//! `{"refused":true}`.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use sealwire_crypto::{
    AppId, AppKeys, Datatype, Encoding, KeyMaterial, KeyScope, KeyState, KeyVersion, Opener,
    Sealer, Suite,
};
use sealwire_records::token::{NewToken, RowBuffer, TokenKeyVersion, TokenKeys, TokenSecret};
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
    if text("op")?.starts_with("token.") {
        return answer_token(request);
    }
    let suite = Suite::from_name(text("suite")?).ok_or("suite")?;
    let app = AppId::new(text("app")?)?;
    let key: [u8; 32] = unhex(text("key")?)?.try_into().map_err(|_| "key")?;
    let material = KeyMaterial::from_secret(&app, suite, key.into())?;
    let keys = Arc::new(AppKeys::new(
        app,
        vec![KeyVersion::new(1, KeyState::Active, material)],
    )?);
    let context = unhex(text("context")?)?;
    let encoding = if text("encoding")? == "text" {
        Encoding::Text
    } else {
        Encoding::Binary
    };
    if text("op")? == "seal" {
        let newest = keys.newest(suite).ok_or("no key")?.clone();
        let mut sealer = Sealer::new(keys.app(), newest, KeyScope::Request, encoding, &context)?;
        let mut seal = |field: &Value| -> Result<String, Box<dyn Error>> {
            let plaintext = unhex(field["plaintext"].as_str().ok_or("plaintext")?)?;
            let mut out = Vec::new();
            sealer.seal(datatype(field).ok_or("datatype")?, &plaintext, &mut out)?;
            Ok(if encoding == Encoding::Text {
                String::from_utf8(out)?
            } else {
                hex(&out)
            })
        };
        if let Some(fields) = request["fields"].as_array() {
            return Ok(
                json!({ "envelopes": fields.iter().map(seal).collect::<Result<Vec<_>, _>>()? }),
            );
        }
        return Ok(json!({ "envelope": seal(request)? }));
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

fn answer_token(request: &Value) -> Result<Value, Box<dyn Error>> {
    let text = |key: &str| request[key].as_str().ok_or(format!("{key} is missing"));
    let number = |key: &str| {
        request[key]
            .as_u64()
            .and_then(|n| n.try_into().ok())
            .ok_or(format!("{key} is missing"))
    };
    let mut versions = Vec::new();
    for (secret, number) in request["secrets"]
        .as_array()
        .ok_or("secrets")?
        .iter()
        .zip(1..)
    {
        let bytes: [u8; 32] = unhex(secret.as_str().ok_or("secret")?)?
            .try_into()
            .map_err(|_| "secret")?;
        versions.push(TokenKeyVersion {
            number,
            state: KeyState::Active,
            secret: TokenSecret::new(bytes.into()),
        });
    }
    let keys = TokenKeys::new(number("app")?, versions)?;
    let (collection, context): (u32, _) = (
        number("collection")?,
        keys.context(&unhex(text("context")?)?),
    );
    if text("op")? == "token.seal" {
        let (token, call) = (text("token")?, unhex(text("idempotency_key")?)?);
        let id = keys.id(collection, token);
        let own = request["fingerprint"].as_str().map(unhex).transpose()?;
        let own: Option<[u8; 16]> = own
            .map(TryInto::try_into)
            .transpose()
            .map_err(|_| "fingerprint")?;
        let seal = |value| {
            let (id, context, fingerprint) = (&id, &context, own.as_ref());
            keys.seal(&NewToken {
                collection,
                id,
                context,
                fingerprint,
                subject: None,
                token,
                value,
            })
        };
        let Some(datatype) = datatype(request) else {
            return Ok(json!({ "id": hex(&id), "row": hex(&seal(None)?) }));
        };
        let value = unhex(text("value")?)?;
        let row = seal(Some((datatype, &*value)))?;
        let of_value = keys.fingerprint_of_value(collection, &context, datatype, &value);
        let client = keys.principal(text("principal")?);
        let of_call = keys.fingerprint_of_request(
            collection,
            &context,
            &client,
            &call,
            number("index")?,
            datatype,
            &value,
        );
        return Ok(
            json!({ "id": hex(&id), "row": hex(&row), "of_value": hex(&of_value), "of_call": hex(&of_call) }),
        );
    }
    let (id, row) = (
        unhex(text("id")?)?.try_into().map_err(|_| "id")?,
        unhex(text("row")?)?,
    );
    let mut buffer = RowBuffer::default();
    let opened = keys.open(collection, &id, None, &row, &mut buffer);
    let told = opened.and_then(|opened| Ok((opened.token(), opened.value(&context)?)));
    Ok(told.map_or_else(
        |_| json!({ "refused": true }),
        |(token, value)| {
            let (datatype, value) = value
                .map(|(datatype, value)| (datatype as u8, hex(value)))
                .unzip();
            json!({ "token": token, "datatype": datatype, "value": value })
        },
    ))
}

fn datatype(request: &Value) -> Option<Datatype> {
    request["datatype"]
        .as_u64()
        .and_then(|byte| Datatype::from_byte(byte.try_into().ok()?))
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
