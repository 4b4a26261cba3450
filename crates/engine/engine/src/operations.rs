//! The data operations: one type per method, in one file each.
//!
//! [`decode`] decodes a message, once. To add an operation: write its file with an [`Operation`],
//! and add it to [`decode`].

mod decrypt;
mod detokenize;
mod encrypt;
mod immediate;
mod mask;
mod objects;
mod public_keys;
mod rewrap;
mod sealing;
mod subjects;
mod tokenize;
mod tokens;

use bytes::Bytes;
use sealwire_schedule::WorkSize;
use sealwire_wire::control::Control;
use sealwire_wire::shared::Own;
use sealwire_wire::{
    FrameLayout, InvalidRequest, KeyScope, Method, Methods, Preview, Request, Suite,
};

use crate::frame_text::Frame;
use crate::jobs::cost::OperationKind;
use crate::operation::{Operation, RequestOptions};

pub use decrypt::{OpenFields, OpenSpec, ShowFields, UnopenedFields};
pub use encrypt::SealFields;
pub use immediate::Immediate;
pub use mask::MaskFields;
pub(crate) use objects::ObjectSealer;
pub use rewrap::{OutsideSealers, RewrapFields};

/// A decoded message.
pub enum Decoded {
    /// A request that needs a permission and admission.
    Data(RequestOptions, Box<dyn Operation>),
    /// A request that costs no more than reading it.
    Immediate(Immediate),
}

/// Decodes a message whose extent the scan has found. The only place where data requests are
/// decoded.
///
/// # Errors
///
/// The message does not follow its method's table.
pub fn decode(frame: &Bytes, layout: &FrameLayout) -> Result<Decoded, InvalidRequest> {
    let request = Request::decode(frame, layout)?;
    let options = RequestOptions::new(frame, &request);
    let shared = Frame(frame);
    let operation: Box<dyn Operation> = match request {
        Request::Encrypt(request) => Box::new(encrypt::Encrypt::new(frame, &request)),
        Request::Decrypt(request) => Box::new(decrypt::Decrypt::new(frame, &request)),
        Request::Rewrap(request) => Box::new(rewrap::Rewrap::new(frame, &request)),
        Request::Mask(request) => Box::new(mask::MaskDocument::new(frame, &request)),
        Request::Tokenize(request) => Box::new(tokenize::Tokenize::new(frame, &request)),
        Request::Detokenize(request) => Box::new(detokenize::Detokenize::new(frame, &request)),
        Request::Tokens(request) => Box::new(request.operation.own(&shared)),
        Request::Objects(request) => Box::new(request.operation.own(&shared)),
        Request::Subjects(request) => Box::new(subjects::SubjectsJob::new(&shared, &request)),
        Request::Control(Control::PublicKeys(_)) => Box::new(public_keys::PublicKeys),
        Request::Inspect(request) => {
            return Ok(Decoded::Immediate(Immediate::inspect(frame, &request)));
        }
        Request::Info => return Ok(Decoded::Immediate(Immediate::Info)),
        Request::Health => return Ok(Decoded::Immediate(Immediate::Health)),
        // The scan knows no other control method on a data listener.
        Request::Control(_) => return Err(InvalidRequest::Malformed),
    };
    Ok(Decoded::Data(options, operation))
}

/// Returns true if the method needs an in-flight permit and admission. A request of another method
/// costs no more than reading its message.
pub fn needs_admission(method: Method) -> bool {
    let stored = Methods::TOKENS.contains(method) || Methods::OBJECTS.contains(method);
    method.takes_document() || stored || method == Method::AppsPublicKeys
}

/// Suite of estimates if neither the request nor its app is known to name a suite: the suite of new
/// apps.
const USUAL_SUITE: Suite = Suite::P256Psk;

/// Predicts the kind and work size of a request of which only the start has arrived. `bytes_min`:
/// the minimum length of the message.
pub fn preview(preview: &Preview, bytes_min: u64) -> (OperationKind, WorkSize) {
    let suite = preview.suite.unwrap_or(USUAL_SUITE);
    let scope = preview.key_scope.unwrap_or_default();
    let kind = OperationKind::of(preview.method, suite, scope);
    let work_size = match preview.whole {
        Some(whole) => kind.work_size(whole.leaves, whole.bytes),
        None => kind.work_size(0, bytes_min),
    };
    (kind, work_size)
}

/// Predicts the kind and work size of a long message of another method, which costs as much as
/// reading the message.
pub fn preview_of_other(bytes: u64) -> (OperationKind, WorkSize) {
    let kind = OperationKind::of(Method::Inspect, Suite::P256, KeyScope::default());
    (kind, kind.done(true, 0, 0, bytes))
}
