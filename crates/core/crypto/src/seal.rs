//! Seals the fields of one request to an app's newest key, under separate ephemeral keys or under
//! the app's epoch.

use std::fmt;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;

use crate::envelope::{
    BASE64, BINARY_PREFIX, BODY_OVERHEAD, BODY_PREFIX_BYTES, Header, base64_chars,
};
use crate::epoch::Epoch;
use crate::key_schedule::Schedule;
use crate::short_fields::{PLAINTEXT_BYTES_MAX, ShortFields};
use crate::{
    AppId, Clock, Datatype, EncapsulationPlace, Encoding, EpochLifetime, Error, KeyVersion, Suite,
};

/// The scope of an ephemeral key, or of the random bytes of [`Suite::Xaes`], within one sealer.
/// [`Sealer::in_epoch`] shares a key between sealers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope {
    /// A key for all fields of a request; field `i` has sequence number `i`. The default.
    Request,
    /// A key per field, which costs about 60 us each. A leaked ephemeral key then exposes one field
    /// instead of a whole request.
    Field,
}

/// Seals fields under a context, which can change between fields. Owns an ephemeral key schedule,
/// wiped on drop, or shares one.
///
/// The ephemeral private key is dropped once the schedule is derived, so a `Sealer` cannot open
/// fields of another sealer.
pub struct Sealer {
    app: AppId,
    recipient: Arc<KeyVersion>,
    keys: Keys,
    encoding: Encoding,
    aads: Aads,
    /// The body during sealing, before it is encoded. Holds ciphertext between calls.
    body: Vec<u8>,
    /// Number of fields sealed one by one.
    singles: usize,
    /// Fields to be sealed together, from the first on.
    short_fields: Option<Box<ShortFields>>,
    /// Place of the encapsulations of [`Suite::P256MlKem768`].
    place: EncapsulationPlace,
    /// The encapsulations that are apart, by the headers that name them.
    apart: Vec<(Header, String)>,
}

/// The additional data of every datatype: the datatype, then the client's context.
struct Aads {
    bytes: Vec<u8>,
    /// Length of the additional data of each datatype.
    length: usize,
}

impl Aads {
    fn new(context: &[u8]) -> Self {
        let mut aads = Self {
            bytes: Vec::with_capacity(Datatype::ALL.len() * (1 + context.len())),
            length: 0,
        };
        aads.set(context);
        aads
    }

    fn set(&mut self, context: &[u8]) {
        self.length = 1 + context.len();
        self.bytes.clear();
        for datatype in Datatype::ALL {
            self.bytes.push(datatype as u8);
            self.bytes.extend_from_slice(context);
        }
    }

    #[inline]
    fn of(&self, datatype: Datatype) -> &[u8] {
        &self.bytes[datatype as usize * self.length..][..self.length]
    }
}

/// Number of fields that a request seals one by one before it seals short fields together. A batch
/// needs the key in another form, which fewer fields would not pay back.
const SINGLES: usize = 8;
/// True if fields are ever sealed together.
static SEALS_BATCHES: LazyLock<bool> = LazyLock::new(crate::gcm_batch::is_accelerated);

/// The source of schedules and sequence numbers.
enum Keys {
    Own {
        scope: KeyScope,
        schedule: Schedule,
        /// The next sequence number; `None` once all 2^32 are used.
        next: Option<u32>,
    },
    Shared {
        epoch: Arc<Epoch>,
        lifetime: EpochLifetime,
        clock: Clock,
        /// Number of epochs that ended within the request.
        ended: usize,
    },
}

/// Number of epochs that one request can use. A longer request continues under a separate key,
/// which exposes no other request. So the number of its keys is bounded, and so is the number of
/// encapsulations in its response.
const EPOCHS_MAX: usize = 2;

/// Maximum number of encapsulations that [`Sealer::take_encapsulations`] returns for a sealer whose
/// scope is not [`KeyScope::Field`], of a request of less than 2^32 fields.
pub const SEALER_ENCAPSULATIONS_MAX: usize = EPOCHS_MAX + 1;

impl Keys {
    /// Returns an unused sequence number of the present schedule, if the next field can be sealed
    /// under it.
    #[inline]
    fn next_of_present(&mut self) -> Option<u32> {
        match self {
            Self::Own {
                scope: KeyScope::Request,
                next,
                ..
            } => {
                let sequence = (*next)?;
                *next = sequence.checked_add(1);
                Some(sequence)
            }
            Self::Own {
                scope: KeyScope::Field,
                ..
            } => None,
            Self::Shared {
                epoch,
                lifetime,
                clock,
                ..
            } if !epoch.is_revoked() => epoch.take_number(*lifetime, clock()),
            Self::Shared { .. } => None,
        }
    }

    fn present(&self) -> &Schedule {
        match self {
            Self::Own { schedule, .. } => schedule,
            Self::Shared { epoch, .. } => &epoch.schedule,
        }
    }

    /// Returns a schedule and an unused sequence number. Makes a new key if the scope requires it,
    /// the numbers are used up, or the epoch is over. Switches to the request's own key once epochs
    /// are forbidden, or [`EPOCHS_MAX`] of them are over.
    #[inline]
    fn next(&mut self, app: &AppId, recipient: &KeyVersion) -> Result<(&Schedule, u32), Error> {
        if let Self::Shared {
            epoch,
            lifetime,
            clock,
            ended,
        } = self
        {
            while !epoch.is_revoked() && *ended < EPOCHS_MAX {
                let now = clock();
                if let Some(sequence) = epoch.take_number(*lifetime, now) {
                    // Borrowed again, because the loop must not keep a borrow that is returned.
                    return Ok((self.present(), sequence));
                }
                *ended += 1;
                if *ended < EPOCHS_MAX {
                    *epoch = recipient.epoch(app, *lifetime, now)?;
                }
            }
            *self = Self::Own {
                scope: KeyScope::Request,
                schedule: Schedule::take(app, recipient)?,
                next: Some(0),
            };
        }
        match self {
            Self::Own {
                scope,
                schedule,
                next,
            } => {
                let used = *next != Some(0);
                if next.is_none() || (used && *scope == KeyScope::Field) {
                    *schedule = Schedule::take(app, recipient)?;
                    *next = Some(0);
                }
                let sequence = next.ok_or(Error::Library)?;
                *next = sequence.checked_add(1);
                Ok((schedule, sequence))
            }
            Self::Shared { .. } => Err(Error::Library),
        }
    }
}

impl Sealer {
    /// Creates a sealer with a ready schedule, or computes one. For a key pair that is one key
    /// generation and one Diffie-Hellman.
    ///
    /// `context` binds every field to its place. Opening requires the same bytes.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source or the crypto library fails; [`Error::KeyUsedUp`].
    pub fn new(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        scope: KeyScope,
        encoding: Encoding,
        context: &[u8],
    ) -> Result<Self, Error> {
        let keys = Keys::Own {
            scope,
            schedule: Schedule::take(app, &recipient)?,
            next: Some(0),
        };
        Ok(Self::with_keys(app, recipient, keys, encoding, context))
    }

    /// Creates the sealer of one request with a ready schedule, without a Diffie-Hellman. Returns
    /// `None` if none is ready.
    #[must_use]
    pub fn if_ready(
        app: &AppId,
        recipient: &Arc<KeyVersion>,
        encoding: Encoding,
        context: &[u8],
    ) -> Option<Self> {
        let schedule = Schedule::take_ready(app, recipient)?;
        let keys = Keys::Own {
            scope: KeyScope::Request,
            schedule,
            next: Some(0),
        };
        Some(Self::with_keys(
            app,
            Arc::clone(recipient),
            keys,
            encoding,
            context,
        ))
    }

    /// Creates a sealer under the key of the current epoch, which all such sealers of this key
    /// version share. Starts an epoch if no epoch exists or its `lifetime` is over. `clock` is read
    /// before every field. A leaked epoch key exposes every field of the epoch, whatever its
    /// context or client.
    ///
    /// # Errors
    /// The errors of [`Sealer::new`]; [`Error::NoKeyPair`] if the version is a symmetric key.
    pub fn in_epoch(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        lifetime: EpochLifetime,
        clock: Clock,
        encoding: Encoding,
        context: &[u8],
    ) -> Result<Self, Error> {
        let keys = Keys::Shared {
            epoch: recipient.epoch(app, lifetime, clock())?,
            lifetime,
            clock,
            ended: 0,
        };
        Ok(Self::with_keys(app, recipient, keys, encoding, context))
    }

    /// Creates a sealer under the key of the current epoch. Returns `None` if no epoch exists or it
    /// is over.
    #[must_use]
    pub fn if_in_epoch(
        app: &AppId,
        recipient: &Arc<KeyVersion>,
        lifetime: EpochLifetime,
        clock: Clock,
        encoding: Encoding,
        context: &[u8],
    ) -> Option<Self> {
        let keys = Keys::Shared {
            epoch: recipient.present_epoch(app, lifetime, clock())?,
            lifetime,
            clock,
            ended: 0,
        };
        Some(Self::with_keys(
            app,
            Arc::clone(recipient),
            keys,
            encoding,
            context,
        ))
    }

    /// Creates a sealer with a given ephemeral key, for test vectors only. A second use of one key
    /// repeats nonces.
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
        let keys = Keys::Own {
            scope: KeyScope::Request,
            schedule,
            next: Some(sequence),
        };
        Ok(Self::with_keys(app, recipient, keys, encoding, context))
    }

    /// Creates a sealer with given random bytes, for test vectors only. A second use of the same
    /// bytes repeats nonces.
    #[cfg(test)]
    pub(crate) fn with_random(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        encoding: Encoding,
        context: &[u8],
        random: &[u8; crate::xaes::RANDOM_BYTES],
        sequence: u32,
    ) -> Result<Self, Error> {
        let crate::KeyMaterial::Symmetric(key) = &recipient.material else {
            return Err(Error::Library);
        };
        let schedule = Schedule::with_random(key, random)?;
        let keys = Keys::Own {
            scope: KeyScope::Request,
            schedule,
            next: Some(sequence),
        };
        Ok(Self::with_keys(app, recipient, keys, encoding, context))
    }

    /// Creates a sealer with a given encapsulation, for test vectors only. A second use of the same
    /// one repeats nonces.
    #[cfg(test)]
    pub(crate) fn with_encapsulation(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        encoding: Encoding,
        context: &[u8],
        (ephemeral, randomness): (&crate::key::Ephemeral, &[u8; 32]),
        sequence: u32,
    ) -> Result<Self, Error> {
        let crate::KeyMaterial::Hybrid(key) = &recipient.material else {
            return Err(Error::Library);
        };
        let (secret, enc) = key.encapsulate_with(ephemeral, randomness)?;
        let schedule = Schedule::of_encapsulation(app, &recipient, &secret, &enc)?;
        let keys = Keys::Own {
            scope: KeyScope::Request,
            schedule,
            next: Some(sequence),
        };
        Ok(Self::with_keys(app, recipient, keys, encoding, context))
    }

    fn with_keys(
        app: &AppId,
        recipient: Arc<KeyVersion>,
        keys: Keys,
        encoding: Encoding,
        context: &[u8],
    ) -> Self {
        let app = app.clone();
        let aads = Aads::new(context);
        let place = EncapsulationPlace::Inline;
        let apart = Vec::new();
        Self {
            app,
            recipient,
            keys,
            encoding,
            aads,
            body: Vec::new(),
            singles: 0,
            short_fields: None,
            place,
            apart,
        }
    }

    /// Sets whether the sealer leaves encapsulations out of envelopes. Has no effect on suites
    /// without encapsulations.
    #[must_use]
    pub fn placing(self, place: EncapsulationPlace) -> Self {
        Self { place, ..self }
    }

    /// Binds the next fields to another context. Earlier fields keep theirs, including those that
    /// wait for [`Sealer::complete`].
    ///
    /// Fields of several contexts can share an ephemeral key. The context is additional data of
    /// each field's AES-256-GCM seal and no input of the key schedule, whose `info` binds the app
    /// and the key version. AES-GCM needs a nonce that never repeats under a key, and the nonce
    /// comes from the field's sequence number, which a context does not restart. So a field opens
    /// under its own context only, as if each context had its own key. [`Sealer::in_epoch`] shares
    /// keys between contexts in the same way.
    pub fn set_context(&mut self, context: &[u8]) {
        self.aads.set(context);
        if let Some(short_fields) = &mut self.short_fields {
            short_fields.change_context();
        }
    }

    /// Takes the texts of the encapsulations that the envelopes so far refer to. Clients need the
    /// texts to open the envelopes.
    pub fn take_encapsulations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.apart)
            .into_iter()
            .map(|(_, text)| text)
            .collect()
    }

    /// Records the encapsulation of the present schedule, if it is apart.
    #[inline]
    fn note_apart(&mut self) {
        // The first field of a schedule records the encapsulation for all later fields.
        let is_noted = matches!(
            self.keys,
            Keys::Own {
                next: Some(2..),
                ..
            }
        );
        if self.place == EncapsulationPlace::Inline || is_noted {
            return;
        }
        let schedule = self.keys.present();
        if let Some(encapsulation) = &schedule.encapsulation
            && self
                .apart
                .last()
                .is_none_or(|(header, _)| *header != schedule.header)
        {
            self.apart
                .push((schedule.header, encapsulation.to_text(&schedule.header)));
        }
    }

    /// Returns the number of bytes that [`Sealer::seal`] appends for a plaintext of this length.
    #[must_use]
    #[inline]
    pub fn sealed_bytes(&self, plaintext: usize) -> usize {
        match self.place {
            EncapsulationPlace::Inline => self
                .encoding
                .sealed_bytes(self.recipient.suite(), plaintext),
            EncapsulationPlace::Apart => self
                .encoding
                .sealed_bytes_apart(self.recipient.suite(), plaintext),
        }
    }

    /// Returns the suite of the envelopes.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.recipient.suite()
    }

    /// Returns the encoding of the envelopes.
    #[must_use]
    #[inline]
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Appends the envelope of one field to `out`: [`Sealer::sealed_bytes`] bytes. Requires that no
    /// field of [`Sealer::seal_later`] is incomplete.
    ///
    /// # Errors
    /// [`Error::Library`] when the crypto library fails; `out` is then unchanged.
    #[inline]
    pub fn seal(
        &mut self,
        datatype: Datatype,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        debug_assert!(
            self.short_fields
                .as_ref()
                .is_none_or(|fields| fields.is_empty()),
            "fields wait for `complete`"
        );
        let (schedule, sequence) = self.keys.next(&self.app, &self.recipient)?;
        let style = (self.encoding, self.place);
        schedule.seal(
            style,
            datatype,
            sequence,
            self.aads.of(datatype),
            plaintext,
            &mut self.body,
            out,
        )?;
        self.note_apart();
        Ok(())
    }

    /// Appends the envelope of one field to `out`, as [`Sealer::seal`], but can leave out its
    /// ciphertext until [`Sealer::complete`]. Until then the caller keeps all bytes of `out` where
    /// they are.
    ///
    /// # Errors
    /// [`Error::Library`] when the crypto library fails; `out` is then unchanged.
    #[inline]
    pub fn seal_later(
        &mut self,
        datatype: Datatype,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if self.singles < SINGLES || !*SEALS_BATCHES {
            self.singles += 1;
            return self.seal(datatype, plaintext, out);
        }
        let Some(sequence) = self.keys.next_of_present() else {
            // The fields that wait belong to the present schedule.
            self.complete(out);
            return self.seal(datatype, plaintext, out);
        };
        let Self {
            keys,
            aads,
            encoding,
            body,
            place,
            ..
        } = self;
        let schedule = keys.present();
        if plaintext.len() > PLAINTEXT_BYTES_MAX {
            return schedule.seal(
                (*encoding, *place),
                datatype,
                sequence,
                aads.of(datatype),
                plaintext,
                body,
                out,
            );
        }
        schedule.write_header((*encoding, *place), out);
        let short_fields = self
            .short_fields
            .get_or_insert_with(|| Box::new(ShortFields::new()));
        let aad = (datatype, aads.of(datatype));
        short_fields.put(aad, sequence, plaintext, *encoding, out);
        let is_full = short_fields.is_full();
        self.note_apart();
        if is_full {
            self.complete(out);
        }
        Ok(())
    }

    /// Fills in every ciphertext that [`Sealer::seal_later`] left out of `out`.
    pub fn complete(&mut self, out: &mut [u8]) {
        let Self {
            keys,
            encoding,
            short_fields,
            ..
        } = self;
        if let Some(short_fields) = short_fields.as_mut().filter(|fields| !fields.is_empty()) {
            short_fields.complete(&keys.present().context, *encoding, out);
        }
    }
}

impl Schedule {
    /// Appends an envelope. `body` is a reusable buffer.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them vary by field or belong to the sealer"
    )]
    fn seal(
        &self,
        (encoding, place): (Encoding, EncapsulationPlace),
        datatype: Datatype,
        sequence: u32,
        aad: &[u8],
        plaintext: &[u8],
        body: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match encoding {
            Encoding::Text => self.seal_text(place, datatype, sequence, aad, plaintext, body, out),
            Encoding::Binary => self.seal_binary(place, datatype, sequence, aad, plaintext, out),
        }
    }

    /// Appends the part of an envelope before its body.
    #[inline]
    fn write_header(&self, (encoding, place): (Encoding, EncapsulationPlace), out: &mut Vec<u8>) {
        if let (Some(encapsulation), EncapsulationPlace::Apart) = (&self.encapsulation, place) {
            match encoding {
                Encoding::Text => out.extend_from_slice(encapsulation.apart_text.as_bytes()),
                Encoding::Binary => {
                    out.extend_from_slice(BINARY_PREFIX);
                    out.extend_from_slice(&self.header.apart()[..self.header.as_bytes().len()]);
                }
            }
            return;
        }
        match encoding {
            Encoding::Text => out.extend_from_slice(self.header_text.as_bytes()),
            Encoding::Binary => {
                out.extend_from_slice(BINARY_PREFIX);
                out.extend_from_slice(self.header.as_bytes());
            }
        }
        if let Some(encapsulation) = &self.encapsulation {
            out.extend_from_slice(encapsulation.as_bytes(encoding));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn seal_text(
        &self,
        place: EncapsulationPlace,
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

        self.write_header((Encoding::Text, place), out);
        let start = out.len();
        out.resize(start + base64_chars(body.len()), 0);
        BASE64
            .encode_slice(&*body, &mut out[start..])
            .expect("the room is base64_chars long");
        Ok(())
    }

    fn seal_binary(
        &self,
        place: EncapsulationPlace,
        datatype: Datatype,
        sequence: u32,
        aad: &[u8],
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let before = out.len();
        self.write_header((Encoding::Binary, place), out);
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
        f.debug_struct("Sealer")
            .field("app", &self.app)
            .finish_non_exhaustive()
    }
}
