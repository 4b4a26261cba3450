//! Seals the fields of one request to an app's newest key.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;

use crate::envelope::{BASE64, BINARY_PREFIX, BODY_OVERHEAD, BODY_PREFIX_BYTES, TEXT_PREFIX, base64_chars};
use crate::schedule::Schedule;
use crate::{AppId, Datatype, Encoding, Error, KeyVersion};

/// How far one ephemeral key reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// One key for all fields of a request; field `i` has sequence number `i`. The default.
    Request,
    /// One key per field: about 60 us each. Whoever learns one ephemeral key reads one field, not a request's.
    Field,
}

/// Seals fields under one context. Holds an ephemeral key schedule, wiped on drop.
///
/// The ephemeral private key itself is gone once the schedule is derived, so a `Sealer` cannot open
/// anything another one made.
pub struct Sealer {
    app: AppId,
    recipient: Arc<KeyVersion>,
    scope: KeyScope,
    encoding: Encoding,
    /// Datatype, then the caller's context.
    aad: Vec<u8>,
    schedule: Schedule,
    /// The body while it is sealed and before it is encoded. Holds ciphertext between calls.
    body: Vec<u8>,
}

impl Sealer {
    /// Takes an ephemeral key's schedule: ready, or made now by one key generation and one Diffie-Hellman.
    ///
    /// `context` binds every field to its place; the same bytes must be given to open it.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source or the crypto library fails.
    pub fn new(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        scope: KeyScope,
        encoding: Encoding,
        context: &[u8],
    ) -> Result<Self, Error> {
        let schedule = Schedule::take(app, &recipient)?;
        Ok(Self::with_schedule(app, recipient, scope, encoding, context, schedule))
    }

    /// The same with a given ephemeral key, for vectors only: a second use of one key repeats nonces.
    #[cfg(test)]
    pub(crate) fn with_ephemeral(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        encoding: Encoding,
        context: &[u8],
        ephemeral: &crate::key::Ephemeral,
        sequence: u32,
    ) -> Result<Self, Error> {
        let mut schedule = Schedule::with_ephemeral(app, &recipient, ephemeral)?;
        schedule.next = Some(sequence);
        Ok(Self::with_schedule(app, recipient, KeyScope::Request, encoding, context, schedule))
    }

    fn with_schedule(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        scope: KeyScope,
        encoding: Encoding,
        context: &[u8],
        schedule: Schedule,
    ) -> Self {
        let aad = [&[Datatype::Value as u8], context].concat();
        Self { app: app.clone(), recipient, scope, encoding, aad, schedule, body: Vec::new() }
    }

    /// Bytes that [`Sealer::seal`] appends for a plaintext of this length.
    #[must_use]
    #[inline]
    pub fn sealed_bytes(&self, plaintext: usize) -> usize {
        self.encoding.sealed_bytes(plaintext)
    }

    /// How the envelopes are written.
    #[must_use]
    #[inline]
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Appends the envelope of one field to `out`: [`Sealer::sealed_bytes`] bytes.
    ///
    /// # Errors
    /// [`Error::Library`] when the crypto library fails; `out` is then as it was.
    #[inline]
    pub fn seal(&mut self, datatype: Datatype, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let sequence = self.take_sequence()?;
        self.aad[0] = datatype as u8;
        match self.encoding {
            Encoding::Text => self.seal_text(datatype, sequence, plaintext, out),
            Encoding::Binary => self.seal_binary(datatype, sequence, plaintext, out),
        }
    }

    /// The next unused number, under a new key where the scope or the end of the numbers asks for one.
    #[inline]
    fn take_sequence(&mut self) -> Result<u32, Error> {
        let used = self.schedule.next != Some(0);
        if self.schedule.next.is_none() || (used && self.scope == KeyScope::Field) {
            self.schedule = Schedule::take(&self.app, &self.recipient)?;
        }
        let sequence = self.schedule.next.ok_or(Error::Library)?;
        self.schedule.next = sequence.checked_add(1);
        Ok(sequence)
    }

    fn seal_text(
        &mut self,
        datatype: Datatype,
        sequence: u32,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.body.clear();
        self.body.reserve(BODY_OVERHEAD + plaintext.len());
        self.body.push(datatype as u8);
        self.body.extend_from_slice(&sequence.to_be_bytes());
        self.body.extend_from_slice(plaintext);
        self.schedule.context.seal(sequence, &self.aad, &mut self.body, BODY_PREFIX_BYTES)?;

        out.extend_from_slice(TEXT_PREFIX);
        out.extend_from_slice(&self.schedule.header_chars);
        let start = out.len();
        out.resize(start + base64_chars(self.body.len()), 0);
        BASE64.encode_slice(&self.body, &mut out[start..]).expect("the room is base64_chars long");
        Ok(())
    }

    fn seal_binary(
        &mut self,
        datatype: Datatype,
        sequence: u32,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let before = out.len();
        out.extend_from_slice(BINARY_PREFIX);
        out.extend_from_slice(&self.schedule.header.0);
        out.push(datatype as u8);
        out.extend_from_slice(&sequence.to_be_bytes());
        let start = out.len();
        out.extend_from_slice(plaintext);
        let sealed = self.schedule.context.seal(sequence, &self.aad, out, start);
        if sealed.is_err() {
            out.truncate(before);
        }
        sealed
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("app", &self.app).field("scope", &self.scope).finish_non_exhaustive()
    }
}
