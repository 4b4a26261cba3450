//! Requests that cost no more than reading them: `health`, `info` and `inspect`, which reads the
//! clear metadata of envelopes, Evervault strings and Evervault files.

use bytes::Bytes;
use sealwire_crypto::{self as crypto, evervault};
use sealwire_wire::shared::Source;
use sealwire_wire::{
    Encapsulation, Encoding, Envelope, Format, Health, Inspect, Inspection, ValueKind, response,
};

use crate::apps::Apps;
use crate::engine::Engine;
use crate::frame_text::{Frame, FrameText};
use crate::jobs::error::RequestFailure;
use crate::suite;

/// A request that is answered without a permission and admission. Never rejected for load.
pub enum Immediate {
    /// `health`.
    Health,
    /// `info`.
    Info,
    /// `inspect`, of an envelope as text.
    InspectText(FrameText),
    /// `inspect`, of a binary envelope.
    InspectBinary(Bytes),
}

impl Immediate {
    pub(super) fn inspect(frame: &Bytes, call: &Inspect<'_>) -> Self {
        match call.envelope {
            Envelope::Text(text) => Self::InspectText(Frame(frame).text(text)),
            Envelope::Binary(bytes) => Self::InspectBinary(Frame(frame).bytes(bytes)),
        }
    }

    /// Returns the response.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Payload`] for `inspect` of a value that is not an envelope; the audit log's
    /// error if nothing can be recorded.
    pub fn answer(&self, engine: &Engine, msgid: u32) -> Result<Vec<u8>, RequestFailure> {
        let mut out = Vec::with_capacity(512);
        response::start(&mut out, msgid);
        let envelope = match self {
            Self::Health => {
                Health.encode(&mut out);
                return Ok(out);
            }
            Self::Info => {
                engine.info().encode(&mut out);
                return Ok(out);
            }
            Self::InspectText(text) => Envelope::Text(text.as_str()),
            Self::InspectBinary(bytes) => Envelope::Binary(bytes),
        };
        engine.audit.ready()?;
        let inspection = inspect(envelope, &engine.apps);
        let inspection =
            inspection.ok_or_else(|| RequestFailure::Payload("not an envelope".into()))?;
        inspection.encode(&mut out);
        Ok(out)
    }
}

/// Returns the metadata of an envelope; `None` if the value has no known envelope format.
fn inspect(envelope: Envelope<'_>, apps: &Apps) -> Option<Inspection> {
    let of_native =
        |said: &crypto::Envelope| of_native(said, apps.is_outside(said.suite, said.key_id));
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

fn of_native(said: &crypto::Envelope, outside: bool) -> Inspection {
    Inspection {
        format: Format::Native,
        version: Some(1),
        tag: None,
        suite: suite::to_wire(said.suite),
        key_id: Some(said.key_id.to_string()),
        outside,
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
        encapsulation: said.encapsulation.map(|place| match place {
            crypto::EncapsulationPlace::Inline => Encapsulation::Inline,
            crypto::EncapsulationPlace::Apart => Encapsulation::Apart,
        }),
        debug: None,
    }
}

fn of_string(said: &evervault::Inspection) -> Inspection {
    Inspection {
        format: Format::Evervault,
        version: None,
        tag: Some(said.tag.text().to_owned()),
        suite: suite::to_wire(said.curve.into()),
        key_id: None,
        outside: false,
        datatype: match said.datatype {
            evervault::Datatype::String => ValueKind::String,
            evervault::Datatype::Number => ValueKind::Number,
            evervault::Datatype::Boolean => ValueKind::Boolean,
        },
        sequence: None,
        encoding: Encoding::Text,
        plaintext_bytes: said.payload_bytes as u64,
        encapsulation: None,
        debug: Some(said.is_debug),
    }
}

fn of_file(said: &evervault::FileInspection) -> Inspection {
    Inspection {
        format: Format::Evervault,
        version: Some(said.version as u32),
        tag: None,
        suite: suite::to_wire(said.version.curve().into()),
        key_id: None,
        outside: false,
        datatype: ValueKind::Binary,
        sequence: None,
        encoding: Encoding::Binary,
        plaintext_bytes: said.content_bytes as u64,
        encapsulation: None,
        debug: Some(said.is_debug),
    }
}
