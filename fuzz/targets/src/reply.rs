//! Replies as clients read them: decoding, encoding and decoding again gives the same reply.

use sealwire_data::mask_job::{Column, decode_response, place};
use sealwire_wire::control::{
    AppChanged, Apps, Checked, CollectionChanged, Collections, Instances, PrincipalChanged,
    Principals, Records, RoleChanged, Roles, RootState,
};
use sealwire_wire::{
    Counted, Document, ErrorCode, ErrorFormat, FIELD_ERRORS_MAX, Found, Health, Info, Inspection,
    Response, Tokens, TraceContext, decode_protocol_error, response,
};

use crate::Seed;
use crate::input::text;
use crate::seed::{packed, packed_words};

macro_rules! round {
    ($bytes:expr, $($result:ident),+ $(,)?) => {$(
        if let Ok(result) = $result::decode($bytes) {
            let mut out = Vec::new();
            result.encode(&mut out);
            assert_eq!($result::decode(&out), Ok(result));
        }
    )+};
}

/// Decodes a message as a reply and as the result of each method.
pub(crate) fn check_input(message: &[u8]) {
    if let Ok(error) = decode_protocol_error(message) {
        let mut out = Vec::new();
        response::protocol_error(&mut out, &error);
        assert_eq!(decode_protocol_error(&out), Ok(error));
    }
    check_result(message);
    let Ok(decoded) = Response::decode(message) else {
        return;
    };
    match decoded.outcome {
        Ok(bytes) => check_result(bytes),
        Err(error) => {
            let mut out = Vec::new();
            response::error(&mut out, decoded.msgid, &error, ErrorFormat::Map);
            assert_eq!(
                Response::decode(&out),
                Ok(Response {
                    msgid: decoded.msgid,
                    outcome: Err(error.clone())
                })
            );
            out.clear();
            response::error(&mut out, decoded.msgid, &error, ErrorFormat::Text);
            assert!(Response::decode(&out).is_ok_and(|text| text.outcome.is_err()));
        }
    }
}

fn check_result(bytes: &[u8]) {
    if let Ok(document) = Document::decode(bytes) {
        assert!(bytes.as_ptr_range().contains(&document.payload.as_ptr()));
        check_masked(document.payload);
        // Another engine may list more errors, or longer paths, than this code writes.
        let ours = document.errors.len() <= FIELD_ERRORS_MAX
            && document
                .errors
                .iter()
                .all(|error| error.path.len() <= sealwire_wire::FIELD_PATH_BYTES_MAX);
        for error in &document.errors {
            let _ = place(&error.path);
        }
        if ours {
            let mut out = Vec::new();
            let begun = response::Document::start(&mut out, 7);
            out.extend_from_slice(document.payload);
            let errors = (&document.errors[..], document.errors_omitted);
            begun.finish(
                &mut out,
                document.generation,
                errors,
                &document.unmatched,
                &document.encapsulations,
            );
            let again = Response::decode(&out)
                .expect("a written reply")
                .outcome
                .expect("a result");
            assert_eq!(Document::decode(again).as_ref(), Ok(&document));
        }
    }
    round!(bytes, Inspection, Info, Tokens, Found, Counted);
    round!(
        bytes,
        Apps,
        AppChanged,
        Collections,
        CollectionChanged,
        Records,
        Instances
    );
    round!(
        bytes,
        Roles,
        RoleChanged,
        Principals,
        PrincipalChanged,
        Checked,
        RootState
    );
    if let Ok(health) = Health::decode(bytes) {
        let mut out = Vec::new();
        health.encode(&mut out);
        assert!(Health::decode(&out).is_ok());
    }
    let parsed = TraceContext::parse(text(bytes));
    assert_eq!(parsed, TraceContext::parse(text(bytes)));
}

/// Decodes a document as the response to a masking job with two columns.
fn check_masked(document: &[u8]) {
    let columns = [(0, 2), (1, 1)].map(|(rule, count)| Column {
        rule,
        count,
        ..Column::default()
    });
    if let Ok(runs) = decode_response(document, &columns) {
        assert_eq!(runs.len(), 2);
        assert!(runs.iter().map(Vec::len).sum::<usize>() < document.len());
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let key = r#"{"id":"0123456789","suite":"p256","number":1,"state":"active","seals":true,"created_unix_s":1700000000}"#;
    let token_key = r#"{"number":1,"state":"active","created_unix_s":1700000000}"#;
    let app = format!(
        r#"{{"app":"shop","number":1,"state":"active","delete_unix_s":9,"settings":{{}},"format":"native","epoch_ms":60000,"keys":[{key}],"token_keys":[{token_key}]}}"#
    );
    let collection = r#"{"name":"people","number":1,"kind":"random","format":"card","keeps":[6,4],"scope":"context","expires_s":60,"created_unix_s":1700000000}"#;
    let token = r#"{"token":"tok_1","created_unix_s":1,"expires_unix_s":2,"archived_unix_s":3,"created":1,"expires":2,"archived":3,"tags":["a"],"datatype":"string"}"#;
    let instance = r#"{"id":"engine-1","version":"0.1.0","address":"[::1]:1","generation":4,"seen_unix_s":9,"age_ms":5,"ready":true}"#;
    let results = [
        ("document", r#"{"payload":[["a","b"],["c"]],"generation":3,"errors":[{"path":"$[0][1]","code":"cannot_open","message":"x"}],"errors_omitted":1,"unmatched":[0,2]}"#.to_owned()),
        ("document-plain", r#"{"payload":{"card":"sw1:AYK"},"generation":3}"#.to_owned()),
        ("document-subjects", r#"{"payload":[[{"s":1,"value":"a"},{"s":2,"value":"b"}],["c"]]}"#.to_owned()),
        ("inspection", r#"{"format":"native","version":1,"suite":"p256","key_id":"0123456789","datatype":"string","sequence":0,"encoding":"text","plaintext_bytes":16}"#.to_owned()),
        ("inspection-evervault", r#"{"format":"evervault","tag":"QkTC","suite":"p256","datatype":"number","encoding":"text","plaintext_bytes":16,"debug":true}"#.to_owned()),
        ("info", r#"{"version":"0.1.0","protocol":1,"instance":"e","generation":2,"methods":["info"],"limits":{"message_bytes_max":1},"principal":"cn:a","suites":["p256"],"uptime_ms":4}"#.to_owned()),
        ("health", r#"{"status":"ok"}"#.to_owned()),
        ("tokens", format!(r#"{{"tokens":[{token}],"next":"abc","generation":1}}"#)),
        ("found", r#"{"token":"tok_1","generation":1,"found":true,"tokens":["tok_1",null]}"#.to_owned()),
        ("counted", r#"{"count":4,"generation":1,"more":true}"#.to_owned()),
        ("apps", format!(r#"{{"generation":2,"apps":[{app}],"next":"x"}}"#)),
        ("app-changed", format!(r#"{{"generation":2,"app":{app},"key":"0123456789","token_key":2}}"#)),
        ("collections", format!(r#"{{"generation":2,"collections":[{collection}],"next":"x"}}"#)),
        ("collection-changed", format!(r#"{{"generation":2,"collection":{collection}}}"#)),
        ("instances", format!(r#"{{"generation":2,"instances":[{instance}]}}"#)),
        ("root-state", r#"{"generation":2,"sealed_unix_s":9,"slot":1,"roots":[{"id":"00","state":"active","created_unix_s":1,"slots":[{"number":1,"provider":"local","kind":"file","fields":{"path":"kek"},"created_unix_s":1,"verified_unix_s":1,"unwraps":false,"error":"x"}]}],"providers":[{"name":"local","kind":"file","fields":{}}]}"#.to_owned()),
        ("records", r#"{"generation":2,"records":[{"key":"app/shop","record":"{}"}],"next":"x"}"#.to_owned()),
        ("roles", r#"{"generation":2,"roles":[{"role":"a","name":"a","grants":["decrypt apps=*"],"principals":1}],"next":"x"}"#.to_owned()),
        ("role-changed", r#"{"generation":2,"role":{"role":"a","grants":["decrypt apps=*"]}}"#.to_owned()),
        ("principals", r#"{"generation":2,"principals":[{"principal":"cn:a","roles":["a"]}],"next":"x"}"#.to_owned()),
        ("principal-changed", r#"{"generation":2,"principal":{"principal":"cn:a","roles":["a"]}}"#.to_owned()),
        ("checked", r#"{"generation":2,"permitted":true,"allowed":true,"role":"a","roles":["a"],"grant":"x","mask":"hash","reason":"x","missing":"x"}"#.to_owned()),
    ];
    let mut seeds = Vec::new();
    for (name, result) in results {
        seeds.push(Seed::new(name, &[], packed(&result)));
        seeds.push(Seed::new(
            format!("{name}-reply"),
            &[],
            packed(&format!("[1,7,null,{result}]")),
        ));
    }
    for code in ErrorCode::ALL {
        let error = format!(
            r#"{{"code":"{}","message":"m","retry_after_ms":5,"details":{{"max":1,"reason":"backlog"}}}}"#,
            code.name()
        );
        seeds.push(Seed::new(
            format!("error-{}", code.name()),
            &[],
            packed(&format!("[1,7,{error},null]")),
        ));
    }
    seeds.push(Seed::new(
        "protocol-error",
        &[],
        packed(r#"[2,"error",[{"code":"invalid_request","message":"m"}]]"#),
    ));
    seeds.push(Seed::new(
        "trace",
        &[],
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ));
    seeds.extend(written_seeds());
    seeds
}

/// Encodes one result of each kind whose encoder is written by hand.
fn written_seeds() -> Vec<Seed> {
    let error =
        sealwire_wire::RpcError::overloaded(sealwire_wire::OverloadReason::Backlog, 5, Some(6));
    let mut reply_bytes = Vec::new();
    let mut notice = Vec::new();
    response::error(&mut reply_bytes, 7, &error, ErrorFormat::Map);
    response::protocol_error(&mut notice, &error);
    let mut counted = Vec::new();
    Health.encode(&mut counted);
    vec![
        Seed::new("written-error", &[], reply_bytes),
        Seed::new("written-protocol-error", &[], notice),
        Seed::new("written-health", &[], counted),
    ]
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let names = [
        "payload",
        "generation",
        "errors",
        "errors_omitted",
        "unmatched",
        "path",
        "code",
        "message",
        "details",
        "retry_after_ms",
        "format",
        "native",
        "evervault",
        "version",
        "suite",
        "p256",
        "xaes",
        "key_id",
        "datatype",
        "string",
        "sequence",
        "encoding",
        "text",
        "binary",
        "plaintext_bytes",
        "debug",
        "tokens",
        "token",
        "next",
        "count",
        "apps",
        "app",
        "keys",
        "token_keys",
        "number",
        "state",
        "active",
        "disabled",
        "collections",
        "collection",
        "kind",
        "keeps",
        "scope",
        "expires_s",
        "records",
        "key",
        "record",
        "instances",
        "roles",
        "role",
        "grants",
        "principals",
        "principal",
        "error",
        "cannot_open",
        "overloaded",
        "status",
        "ok",
    ];
    packed_words(names)
}
