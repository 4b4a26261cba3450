//! Seals the fields of one request to an app's newest key, under ephemeral keys of its own or under the app's epoch.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;

use crate::envelope::{BASE64, BINARY_PREFIX, BODY_OVERHEAD, BODY_PREFIX_BYTES, TEXT_PREFIX, base64_chars};
use crate::epoch::Epoch;
use crate::schedule::Schedule;
use crate::{AppId, Clock, Datatype, Encoding, EpochLifetime, Error, KeyVersion};

/// How far an ephemeral key of one sealer reaches. One that many sealers share is [`Sealer::in_epoch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// One key for all fields of a request; field `i` has sequence number `i`. The default.
    Request,
    /// One key per field: about 60 us each. Whoever learns one ephemeral key reads one field, not a request's.
    Field,
}

/// Seals fields under one context. Holds an ephemeral key schedule, wiped on drop, or shares one.
///
/// The ephemeral private key itself is gone once the schedule is derived, so a `Sealer` cannot open
/// anything another one made.
pub struct Sealer {
    app: AppId,
    recipient: Arc<KeyVersion>,
    keys: Keys,
    encoding: Encoding,
    /// Datatype, then the caller's context.
    aad: Vec<u8>,
    /// The body while it is sealed and before it is encoded. Holds ciphertext between calls.
    body: Vec<u8>,
}

/// Where schedules and numbers under them come from.
enum Keys {
    Own {
        scope: KeyScope,
        schedule: Schedule,
        /// Next sequence number; `None` once all 2^32 are used.
        next: Option<u32>,
    },
    Shared {
        epoch: Arc<Epoch>,
        lifetime: EpochLifetime,
        clock: Clock,
    },
}

impl Keys {
    /// A schedule and a number that nothing else is sealed with: under a new key where the scope, the end of the
    /// numbers or the end of the epoch asks for one, and under the call's own once epochs are forbidden.
    #[inline]
    fn next(&mut self, app: &AppId, recipient: &KeyVersion) -> Result<(&Schedule, u32), Error> {
        if let Self::Shared { epoch, .. } = self
            && epoch.is_revoked()
        {
            *self = Self::Own { scope: KeyScope::Request, schedule: Schedule::take(app, recipient)?, next: Some(0) };
        }
        match self {
            Self::Own { scope, schedule, next } => {
                let used = *next != Some(0);
                if next.is_none() || (used && *scope == KeyScope::Field) {
                    *schedule = Schedule::take(app, recipient)?;
                    *next = Some(0);
                }
                let sequence = next.ok_or(Error::Library)?;
                *next = sequence.checked_add(1);
                Ok((schedule, sequence))
            }
            Self::Shared { epoch, lifetime, clock } => loop {
                let now = clock();
                if let Some(sequence) = epoch.take_number(*lifetime, now) {
                    return Ok((&epoch.schedule, sequence));
                }
                *epoch = recipient.epoch(app, *lifetime, now)?;
            },
        }
    }
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
        let keys = Keys::Own { scope, schedule: Schedule::take(app, &recipient)?, next: Some(0) };
        Ok(Self::with_keys(app, recipient, keys, encoding, context))
    }

    /// Seals under the key of the present epoch, which all such sealers of this key version share: made now if there is
    /// none or its `lifetime` is over, which `clock` is asked before every field. Whoever learns one epoch's key reads
    /// every field of that time, whatever its context or caller.
    ///
    /// # Errors
    /// As for [`Sealer::new`].
    pub fn in_epoch(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        lifetime: EpochLifetime,
        clock: Clock,
        encoding: Encoding,
        context: &[u8],
    ) -> Result<Self, Error> {
        let keys = Keys::Shared { epoch: recipient.epoch(app, lifetime, clock())?, lifetime, clock };
        Ok(Self::with_keys(app, recipient, keys, encoding, context))
    }

    /// [`Sealer::new`] with a given ephemeral key, for vectors only: a second use of one key repeats nonces.
    #[cfg(test)]
    pub(crate) fn with_ephemeral(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        encoding: Encoding,
        context: &[u8],
        ephemeral: &crate::key::Ephemeral,
        sequence: u32,
    ) -> Result<Self, Error> {
        let schedule = Schedule::with_ephemeral(app, &recipient, ephemeral)?;
        let keys = Keys::Own { scope: KeyScope::Request, schedule, next: Some(sequence) };
        Ok(Self::with_keys(app, recipient, keys, encoding, context))
    }

    fn with_keys(app: &AppId, recipient: Arc<KeyVersion>, keys: Keys, encoding: Encoding, context: &[u8]) -> Self {
        let aad = [&[Datatype::Value as u8], context].concat();
        Self { app: app.clone(), recipient, keys, encoding, aad, body: Vec::new() }
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
        let (schedule, sequence) = self.keys.next(&self.app, &self.recipient)?;
        self.aad[0] = datatype as u8;
        match self.encoding {
            Encoding::Text => schedule.seal_text(datatype, sequence, &self.aad, plaintext, &mut self.body, out),
            Encoding::Binary => schedule.seal_binary(datatype, sequence, &self.aad, plaintext, out),
        }
    }
}

impl Schedule {
    fn seal_text(
        &self,
        datatype: Datatype,
        sequence: u32,
        aad: &[u8],
        plaintext: &[u8],
        body: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        body.clear();
        body.reserve(BODY_OVERHEAD + plaintext.len());
        body.push(datatype as u8);
        body.extend_from_slice(&sequence.to_be_bytes());
        body.extend_from_slice(plaintext);
        self.context.seal(sequence, aad, body, BODY_PREFIX_BYTES)?;

        out.extend_from_slice(TEXT_PREFIX);
        out.extend_from_slice(&self.header_chars);
        let start = out.len();
        out.resize(start + base64_chars(body.len()), 0);
        BASE64.encode_slice(&*body, &mut out[start..]).expect("the room is base64_chars long");
        Ok(())
    }

    fn seal_binary(
        &self,
        datatype: Datatype,
        sequence: u32,
        aad: &[u8],
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let before = out.len();
        out.extend_from_slice(BINARY_PREFIX);
        out.extend_from_slice(&self.header.0);
        out.push(datatype as u8);
        out.extend_from_slice(&sequence.to_be_bytes());
        let start = out.len();
        out.extend_from_slice(plaintext);
        let sealed = self.context.seal(sequence, aad, out, start);
        if sealed.is_err() {
            out.truncate(before);
        }
        sealed
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("app", &self.app).finish_non_exhaustive()
    }
}
