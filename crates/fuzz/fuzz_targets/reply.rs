//! What a client reads: no reply panics it, and what decodes, encoded again, decodes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealwire_wire::control::{AppChanged, Apps, CollectionChanged, Collections, Instances, Records};
use sealwire_wire::{
    Counted, Document, ErrorFormat, FIELD_ERRORS_MAX, Found, Health, Info, Inspection, Reply, Tokens,
    decode_protocol_error, reply,
};

/// What decodes, encoded again, decodes to the same.
macro_rules! round {
    ($bytes:expr, $($result:ident),+) => {$(
        if let Ok(result) = $result::decode($bytes) {
            let mut out = Vec::new();
            result.encode(&mut out);
            assert_eq!($result::decode(&out), Ok(result));
        }
    )+};
}

fuzz_target!(|message: &[u8]| {
    if let Ok(error) = decode_protocol_error(message) {
        let mut out = Vec::new();
        reply::protocol_error(&mut out, &error);
        assert_eq!(decode_protocol_error(&out), Ok(error));
    }
    result(message);
    let Ok(decoded) = Reply::decode(message) else { return };
    match decoded.outcome {
        Ok(bytes) => result(bytes),
        Err(error) => {
            let mut out = Vec::new();
            reply::error(&mut out, decoded.msgid, &error, ErrorFormat::Map);
            assert_eq!(Reply::decode(&out), Ok(Reply { msgid: decoded.msgid, outcome: Err(error.clone()) }));
            out.clear();
            reply::error(&mut out, decoded.msgid, &error, ErrorFormat::Text);
            assert!(Reply::decode(&out).is_ok_and(|text| text.outcome.is_err()));
        }
    }
});

fn result(bytes: &[u8]) {
    if let Ok(document) = Document::decode(bytes) {
        assert!(bytes.as_ptr_range().contains(&document.payload.as_ptr()));
        // A peer may list more errors, or longer paths, than we would write.
        let ours = document.errors.len() <= FIELD_ERRORS_MAX
            && document.errors.iter().all(|error| error.path.len() <= sealwire_wire::FIELD_PATH_BYTES_MAX);
        if ours {
            let mut out = Vec::new();
            let begun = reply::Document::begin(&mut out, 7);
            out.extend_from_slice(document.payload);
            begun.finish(&mut out, document.generation, &document.errors, document.errors_omitted, &document.unmatched);
            let again = Reply::decode(&out).expect("ours").outcome.expect("a result");
            assert_eq!(Document::decode(again).as_ref(), Ok(&document));
        }
    }
    round!(bytes, Inspection, Info, Tokens, Found, Counted);
    round!(bytes, Apps, AppChanged, Collections, CollectionChanged, Records, Instances);
    if let Ok(health) = Health::decode(bytes) {
        let mut out = Vec::new();
        health.encode(&mut out);
        assert!(Health::decode(&out).is_ok());
    }
}
