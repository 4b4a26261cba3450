//! Opens the fields of one request with an app's keys.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use zeroize::Zeroizing;

use crate::aead::{TAG_BYTES, room};
use crate::agreement_queue::AgreementQueue;
use crate::context::Context;
use crate::envelope::{
    BASE64, BINARY_PREFIX, BODY_OVERHEAD, BODY_PREFIX_BYTES, ENCAPSULATION_BYTES, Header,
    HeaderText, Parts,
};
use crate::hybrid::ENC_BYTES;
use crate::open_key_cache::HELD_MAX;
use crate::recipient::{HeldContext, Recipient};
use crate::{AppKeys, CannotOpen, Datatype, KeyMaterial, OpenKeyCache, Origin, Suite};

/// An opened field.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The type of the plaintext.
    pub datatype: Datatype,
    /// The party that can have sealed the field. For [`Origin::Inside`], anyone who has the key of
    /// the engine or can write to its state.
    pub origin: Origin,
    /// The plaintext; valid UTF-8 when the datatype is a string. Trust it no more than the document
    /// that contained it.
    pub plaintext: &'a [u8],
}

/// Opens fields under a context, which can change between fields. Fields of one ephemeral key share one Diffie-Hellman.
pub struct Opener {
    recipient: Recipient,
    /// The additional data: the datatype, then the client's context.
    aad: Vec<u8>,
    /// Contexts that other threads make, if they help.
    queue: Option<Arc<AgreementQueue>>,
    schedules: Vec<HeldContext>,
    by_header: HashMap<Header, usize>,
    /// The last header. In a document made by one request, every header is the same.
    last: Option<LastHeader>,
    /// The context of the last header of [`Suite::Xaes`]. Not stored in `schedules`, because a new
    /// derivation costs less than a lookup there.
    derived: Option<Context>,
    /// Number of Diffie-Hellmans made.
    agreements: usize,
    agreements_ahead: usize,
    body: Zeroizing<Vec<u8>>,
}

struct LastHeader {
    header: Header,
    text: HeaderText,
    place: ContextPlace,
}

/// The place of a header's context.
#[derive(Clone, Copy)]
enum ContextPlace {
    /// An index of [`Opener::schedules`].
    Held(usize),
    /// The context is [`Opener::derived`].
    Derived,
}

impl Opener {
    /// Creates an opener with an app's keys. `context` must be the context that the fields were
    /// sealed with.
    #[must_use]
    pub fn new(keys: Arc<AppKeys>, context: &[u8]) -> Self {
        let aad = [&[Datatype::Value as u8], context].concat();
        Self {
            recipient: Recipient::new(keys),
            aad,
            queue: None,
            schedules: Vec::new(),
            by_header: HashMap::new(),
            last: None,
            derived: None,
            agreements: 0,
            agreements_ahead: 0,
            body: Zeroizing::new(Vec::new()),
        }
    }

    /// Sets the context that the next fields must have been sealed with. Keys of earlier fields stay,
    /// since no context is an input of a key.
    pub fn set_context(&mut self, context: &[u8]) {
        self.aad.truncate(1);
        self.aad.extend_from_slice(context);
    }

    /// If `inside_only` is true, the opener rejects fields that were sealed outside.
    #[must_use]
    pub fn inside_only(self, inside_only: bool) -> Self {
        Self {
            recipient: self.recipient.inside_only(inside_only),
            ..self
        }
    }

    /// Makes the opener use and extend the cache of schedules that other requests opened.
    #[must_use]
    pub fn keeping(self, kept: Option<Arc<OpenKeyCache>>) -> Self {
        Self {
            recipient: self.recipient.with_cache(kept),
            ..self
        }
    }

    /// Takes the text of an encapsulation that fields can refer to. The encapsulation is
    /// decapsulated when a field refers to it.
    ///
    /// # Errors
    /// [`CannotOpen`] if the text is not an encapsulation.
    pub fn give(&mut self, encapsulation: &[u8]) -> Result<(), CannotOpen> {
        self.recipient.give(encapsulation)
    }

    /// Returns the queue through which other threads make the key agreements of fields that this
    /// opener has not reached yet.
    pub fn share_agreements(&mut self) -> Arc<AgreementQueue> {
        Arc::clone(self.queue.get_or_insert_with(|| {
            Arc::new(AgreementQueue::new(
                self.recipient.clone(),
                self.by_header.keys(),
            ))
        }))
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.schedules.len()
    }

    /// Returns the number of Diffie-Hellmans that this opener made so far, which dominate the cost
    /// of opening.
    pub fn agreements(&self) -> usize {
        self.agreements
    }

    /// Returns the number of Diffie-Hellmans that this opener found completed in its
    /// [queue](Self::share_agreements).
    pub fn agreements_ahead(&self) -> usize {
        self.agreements_ahead
    }

    /// Returns true if a text envelope opens, or fails to, without a Diffie-Hellman. Takes its
    /// schedule from the cache of other requests.
    pub fn has_schedule_of_text(&mut self, text: &[u8]) -> bool {
        Header::split_text(text).is_none_or(|parts| self.has_schedule(&parts))
    }

    /// Returns true if a binary envelope opens, or fails to, without a Diffie-Hellman. Takes its
    /// schedule from the cache of other requests.
    pub fn has_schedule_of_binary(&mut self, bytes: &[u8]) -> bool {
        let parts = bytes.strip_prefix(BINARY_PREFIX).and_then(Header::split);
        parts.is_none_or(|parts| self.has_schedule(&parts))
    }

    fn has_schedule(&mut self, parts: &Parts<'_>) -> bool {
        let header = parts.header;
        if self.recipient.lacks_encapsulation(parts) {
            return true;
        }
        if header.suite() == Suite::Xaes || self.by_header.contains_key(&header) {
            return true;
        }
        let Ok(version) = self.recipient.key_version(header) else {
            return true;
        };
        // If the table is full, adding to it would empty it and lose the contexts of other fields.
        match self.recipient.cached_context(header, version.origin) {
            Some(held) if self.schedules.len() < HELD_MAX => {
                self.hold(held);
                true
            }
            _ => false,
        }
    }

    /// Opens a text envelope.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    #[inline]
    pub fn open_text(&mut self, text: &[u8]) -> Result<Opened<'_>, CannotOpen> {
        let last = self
            .last
            .as_ref()
            .and_then(|last| Some((last.place, text.strip_prefix(last.text.as_bytes())?)));
        let (place, body) = match last {
            Some(last) => last,
            None => {
                let parts = Header::split_text(text).ok_or(CannotOpen)?;
                if self.recipient.lacks_encapsulation(&parts) {
                    return Err(CannotOpen);
                }
                let Parts {
                    header,
                    encapsulation,
                    body,
                } = parts;
                if encapsulation.is_empty() {
                    let text = HeaderText::new(&text[..text.len() - body.len()]);
                    (self.place(header, text)?, body)
                } else {
                    let mut bytes = [0; ENCAPSULATION_BYTES];
                    BASE64
                        .decode_slice(encapsulation, &mut bytes)
                        .map_err(|_| CannotOpen)?;
                    (self.place_of_encapsulation(header, &bytes)?, body)
                }
            }
        };
        room(&mut self.body, body.len());
        let bytes = BASE64
            .decode_slice(body, &mut self.body)
            .map_err(|_| CannotOpen)?;
        self.open_body(place, bytes)
    }

    /// Opens a binary envelope.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    #[inline]
    pub fn open_binary(&mut self, bytes: &[u8]) -> Result<Opened<'_>, CannotOpen> {
        let parts = bytes
            .strip_prefix(BINARY_PREFIX)
            .and_then(Header::split)
            .ok_or(CannotOpen)?;
        if self.recipient.lacks_encapsulation(&parts) {
            return Err(CannotOpen);
        }
        let Parts {
            header,
            encapsulation,
            body,
        } = parts;
        let place = match &self.last {
            _ if !encapsulation.is_empty() => self.place_of_encapsulation(header, encapsulation)?,
            Some(last) if last.header == header => last.place,
            _ => self.place(header, header.text())?,
        };
        room(&mut self.body, body.len());
        self.body[..body.len()].copy_from_slice(body);
        self.open_body(place, body.len())
    }

    #[inline]
    fn open_body(&mut self, place: ContextPlace, bytes: usize) -> Result<Opened<'_>, CannotOpen> {
        if bytes < BODY_OVERHEAD {
            return Err(CannotOpen);
        }
        let (prefix, sealed) = self.body[..bytes].split_at_mut(BODY_PREFIX_BYTES);
        let datatype = Datatype::from_byte(prefix[0]).ok_or(CannotOpen)?;
        let sequence = u32::from_be_bytes(*prefix.last_chunk().ok_or(CannotOpen)?);
        debug_assert!(sealed.len() >= TAG_BYTES);
        self.aad[0] = datatype as u8;
        let (plaintext, origin) = match place {
            ContextPlace::Derived => {
                let context = self.derived.as_ref().ok_or(CannotOpen)?;
                // Symmetric keys never leave the engine.
                (&*context.open(sequence, &self.aad, sealed)?, Origin::Inside)
            }
            ContextPlace::Held(schedule) => {
                let held = &mut self.schedules[schedule];
                let plaintext = &*held.context.open(sequence, &self.aad, sealed)?;
                self.recipient.add_to_cache(held);
                (plaintext, held.origin)
            }
        };
        if datatype == Datatype::String && std::str::from_utf8(plaintext).is_err() {
            return Err(CannotOpen);
        }
        Ok(Opened {
            datatype,
            origin,
            plaintext,
        })
    }

    /// Returns the place of a header's context, which is derived at the header's first field.
    fn place(&mut self, header: Header, text: HeaderText) -> Result<ContextPlace, CannotOpen> {
        let place = if header.suite() == Suite::Xaes {
            self.derive(header)?;
            ContextPlace::Derived
        } else {
            let held = self.by_header.get(&header).copied();
            ContextPlace::Held(held.map_or_else(|| self.agree(header, None), Ok)?)
        };
        self.last = Some(LastHeader {
            header,
            text,
            place,
        });
        Ok(place)
    }

    /// Returns the place of the context of a header that an encapsulation follows. The
    /// encapsulation must be the one that the header names, even if the context is cached, so that
    /// no altered byte opens.
    fn place_of_encapsulation(
        &mut self,
        header: Header,
        bytes: &[u8],
    ) -> Result<ContextPlace, CannotOpen> {
        let enc = header.checked_enc(bytes).ok_or(CannotOpen)?;
        let held = self.by_header.get(&header).copied();
        Ok(ContextPlace::Held(
            held.map_or_else(|| self.agree(header, Some(enc)), Ok)?,
        ))
    }

    /// Derives the context of a header of [`Suite::Xaes`].
    fn derive(&mut self, header: Header) -> Result<(), CannotOpen> {
        // Cleared first, so that after a failure `last` never refers to a missing context.
        self.last = None;
        let version = self.recipient.key_version(header)?;
        let KeyMaterial::Symmetric(key) = &version.material else {
            return Err(CannotOpen);
        };
        self.derived = Some(
            key.opening_context(header.random())
                .map_err(|_| CannotOpen)?,
        );
        Ok(())
    }

    /// Returns the index of the context of a header of another suite. Takes the context from a
    /// cache or the queue, or makes it by one Diffie-Hellman. `enc` is the encapsulation of
    /// [`Suite::P256MlKem768`].
    fn agree(
        &mut self,
        header: Header,
        enc: Option<&[u8; ENC_BYTES]>,
    ) -> Result<usize, CannotOpen> {
        // Looks up the key before the cache, because a disabled version must open nothing.
        let origin = self.recipient.key_version(header)?.origin;
        let kept = self.recipient.cached_context(header, origin);
        let held = if let Some(held) = kept {
            held
        } else if let Some(held) = self.queue.as_ref().and_then(|queue| queue.take(&header)) {
            self.agreements_ahead += 1;
            held
        } else {
            self.agreements += 1;
            self.recipient.agree(header, enc)?
        };
        if self.schedules.len() == HELD_MAX {
            self.schedules.clear();
            self.by_header.clear();
            self.last = None;
        }
        Ok(self.hold(held))
    }

    /// Holds a context for the rest of the request and returns its index.
    fn hold(&mut self, held: HeldContext) -> usize {
        let schedule = self.schedules.len();
        self.by_header.insert(held.header, schedule);
        self.schedules.push(held);
        schedule
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("app", self.recipient.app())
            .finish_non_exhaustive()
    }
}
