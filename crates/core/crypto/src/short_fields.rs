//! Short fields of one request that are sealed together, which halves the time of each.
//!
//! [`ShortFields::put`] appends an envelope without its ciphertext, and [`ShortFields::complete`]
//! fills it in.

use std::array;

use crate::gcm_batch::{Aad, Message};
use base64::Engine as _;
use zeroize::Zeroize as _;

use crate::context::Context;
use crate::envelope::{BASE64, BODY_OVERHEAD, BODY_PREFIX_BYTES, base64_chars};
use crate::{Datatype, Encoding};

/// Longest plaintext that is sealed in a batch. Longer plaintexts are as fast alone.
pub(crate) const PLAINTEXT_BYTES_MAX: usize = 96;
/// Maximum number of fields of a batch. More fields gain less than 2 %.
const FIELDS_MAX: usize = 32;
const BODY_BYTES_MAX: usize = (BODY_OVERHEAD + PLAINTEXT_BYTES_MAX).next_multiple_of(3);

/// A batch of fields whose envelopes lack their bodies.
pub(crate) struct ShortFields {
    fields: Vec<ShortField>,
    /// The bodies, plaintext until the batch is sealed. Each starts at a multiple of 3 bytes, so
    /// that all are encoded as one text. Never grows beyond its first allocation, which would leave
    /// plaintext behind.
    bodies: Vec<u8>,
    /// The encoded bodies.
    chars: Vec<u8>,
    /// Additional data, each of one datatype under one context. Those after the first `aads_used`
    /// are memory for later ones.
    aads: Vec<Aad>,
    aads_used: usize,
    /// Position in `aads` of the additional data of each datatype under the present context.
    present_aads: [Option<usize>; Datatype::ALL.len()],
}

#[derive(Clone, Copy)]
struct ShortField {
    /// Offset of the body in the output.
    at: usize,
    /// Offset of the body in `bodies`.
    start: usize,
    plaintext_bytes: usize,
    /// Position of the additional data in `aads`.
    aad: usize,
    sequence: u32,
}

impl ShortFields {
    pub(crate) fn new() -> Self {
        Self {
            aads: Vec::new(),
            aads_used: 0,
            present_aads: [None; Datatype::ALL.len()],
            fields: Vec::with_capacity(FIELDS_MAX),
            bodies: Vec::with_capacity(FIELDS_MAX * BODY_BYTES_MAX),
            chars: Vec::with_capacity(FIELDS_MAX * BODY_BYTES_MAX / 3 * 4),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.fields.len() == FIELDS_MAX
    }

    /// Ends the use of additional data for further fields: the context of the sealer has changed.
    /// Fields of the batch keep theirs, so that a batch can have fields of several contexts.
    pub(crate) fn change_context(&mut self) {
        self.present_aads = [None; Datatype::ALL.len()];
    }

    /// Keeps the additional data of a datatype under the present context, and returns its position.
    fn add_aad(&mut self, datatype: Datatype, aad: &[u8]) -> usize {
        let at = self.aads_used;
        match self.aads.get_mut(at) {
            Some(kept) => kept.set(aad),
            None => self.aads.push(Aad::new(aad)),
        }
        self.aads_used += 1;
        self.present_aads[datatype as usize] = Some(at);
        at
    }

    /// Adds a field of at most [`PLAINTEXT_BYTES_MAX`] bytes, and appends zeros in place of its
    /// body to `out`, which has the rest of the envelope. `aad` must be the additional data of the
    /// datatype under the present context.
    #[inline]
    pub(crate) fn put(
        &mut self,
        (datatype, aad): (Datatype, &[u8]),
        sequence: u32,
        plaintext: &[u8],
        encoding: Encoding,
        out: &mut Vec<u8>,
    ) {
        let aad = match self.present_aads[datatype as usize] {
            Some(at) => at,
            None => self.add_aad(datatype, aad),
        };
        let start = self.bodies.len();
        let body_bytes = BODY_OVERHEAD + plaintext.len();
        self.bodies.push(datatype as u8);
        self.bodies.extend_from_slice(&sequence.to_be_bytes());
        self.bodies.extend_from_slice(plaintext);
        self.bodies
            .resize(start + body_bytes.next_multiple_of(3), 0);
        self.fields.push(ShortField {
            at: out.len(),
            start,
            plaintext_bytes: plaintext.len(),
            aad,
            sequence,
        });
        out.resize(out.len() + body_length(encoding, plaintext.len()), 0);
    }

    /// Seals all fields and writes their bodies to the places in `out` that [`Self::put`] left.
    pub(crate) fn complete(&mut self, context: &Context, encoding: Encoding, out: &mut [u8]) {
        let messages: [_; FIELDS_MAX] = array::from_fn(|at| {
            let field = self.fields.get(at).copied().unwrap_or(ShortField::NONE);
            Message {
                nonce: context.nonce(field.sequence),
                aad: &self.aads[field.aad],
                start: field.start + BODY_PREFIX_BYTES,
                length: field.plaintext_bytes,
            }
        });
        context
            .batch_key()
            .seal(&messages[..self.fields.len()], &mut self.bodies);
        if encoding == Encoding::Text {
            self.chars.resize(self.bodies.len() / 3 * 4, 0);
            BASE64
                .encode_slice(&self.bodies, &mut self.chars)
                .expect("4 characters encode 3 bytes");
        }
        for field in self.fields.drain(..) {
            let length = body_length(encoding, field.plaintext_bytes);
            let body = match encoding {
                Encoding::Text => &self.chars[field.start / 3 * 4..][..length],
                Encoding::Binary => &self.bodies[field.start..][..length],
            };
            out[field.at..][..length].copy_from_slice(body);
        }
        self.bodies.clear();
        // One context needs one of each datatype, which further fields can use.
        if self.aads_used > Datatype::ALL.len() {
            self.aads_used = 0;
            self.change_context();
        }
    }
}

impl Drop for ShortFields {
    fn drop(&mut self) {
        // If no field waits, the bodies are ciphertext.
        if !self.fields.is_empty() {
            self.bodies.zeroize();
        }
    }
}

impl ShortField {
    const NONE: Self = Self {
        at: 0,
        start: 0,
        plaintext_bytes: 0,
        aad: 0,
        sequence: 0,
    };
}

/// Returns the length of a body in an envelope.
#[inline]
fn body_length(encoding: Encoding, plaintext_bytes: usize) -> usize {
    match encoding {
        Encoding::Text => base64_chars(BODY_OVERHEAD + plaintext_bytes),
        Encoding::Binary => BODY_OVERHEAD + plaintext_bytes,
    }
}
