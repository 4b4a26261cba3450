//! Reads the clear metadata of envelopes, Evervault strings and Evervault files.

use sealwire_crypto::{self as crypto, evervault};
use sealwire_wire::{self as wire, Encoding, Envelope, Format, Inspection, ValueKind};

/// `None`: it is none of them.
pub(crate) fn inspect(envelope: Envelope<'_>) -> Option<Inspection> {
    match envelope {
        Envelope::Text(text) => {
            let native = crypto::Envelope::from_text(text.as_bytes()).map(|said| of_native(&said));
            native.or_else(|| evervault::inspect(text.as_bytes()).map(|said| of_string(&said)))
        }
        Envelope::Binary(bytes) => {
            let native = crypto::Envelope::from_binary(bytes).map(|said| of_native(&said));
            native.or_else(|| evervault::inspect_file(bytes).map(|said| of_file(&said)))
        }
    }
}

fn curve(curve: crypto::Curve) -> wire::Curve {
    match curve {
        crypto::Curve::P256 => wire::Curve::R1,
        crypto::Curve::Secp256k1 => wire::Curve::K1,
    }
}

fn of_native(said: &crypto::Envelope) -> Inspection {
    Inspection {
        format: Format::Native,
        version: Some(1),
        tag: None,
        curve: curve(said.curve),
        key_id: Some(said.key_id.to_string()),
        datatype: match said.datatype {
            crypto::Datatype::String => ValueKind::String,
            crypto::Datatype::Binary => ValueKind::Binary,
            crypto::Datatype::Value => ValueKind::Value,
        },
        sequence: Some(said.sequence.into()),
        encoding: match said.encoding {
            crypto::Encoding::Text => Encoding::Text,
            crypto::Encoding::Binary => Encoding::Binary,
        },
        plaintext_bytes: said.plaintext_bytes as u64,
        debug: None,
    }
}

fn of_string(said: &evervault::Inspection) -> Inspection {
    Inspection {
        format: Format::Evervault,
        version: None,
        tag: Some(said.tag.text().to_owned()),
        curve: curve(said.curve),
        key_id: None,
        datatype: match said.datatype {
            evervault::Datatype::String => ValueKind::String,
            evervault::Datatype::Number => ValueKind::Number,
            evervault::Datatype::Boolean => ValueKind::Boolean,
        },
        sequence: None,
        encoding: Encoding::Text,
        plaintext_bytes: said.payload_bytes as u64,
        debug: Some(said.is_debug),
    }
}

fn of_file(said: &evervault::FileInspection) -> Inspection {
    Inspection {
        format: Format::Evervault,
        version: Some(said.version as u32),
        tag: None,
        curve: curve(said.version.curve()),
        key_id: None,
        datatype: ValueKind::Binary,
        sequence: None,
        encoding: Encoding::Binary,
        plaintext_bytes: said.content_bytes as u64,
        debug: Some(said.is_debug),
    }
}
