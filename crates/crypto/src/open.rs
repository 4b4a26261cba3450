//! Opens the fields of one request with an app's keys.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use zeroize::Zeroizing;

use crate::aead::{TAG_BYTES, room};
use crate::context::Context;
use crate::envelope::{BASE64, BINARY_PREFIX, BODY_OVERHEAD, BODY_PREFIX_BYTES, Header, HeaderText};
use crate::open_key_cache::{HELD_MAX, Name, Schedule};
use crate::{AppKeys, CannotOpen, Datatype, Error, KeyMaterial, OpenedSchedules, PublicKey, Suite};

/// An opened field.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The type of the plaintext.
    pub datatype: Datatype,
    /// The plaintext; valid UTF-8 when the datatype is a string. Anyone who holds the app's public key can have written
    /// the plaintext. Trust it no more than the document that contained it.
    pub plaintext: &'a [u8],
}

/// Opens fields under one context. Fields of one ephemeral key share one Diffie-Hellman.
pub struct Opener {
    keys: Arc<AppKeys>,
    /// The additional data: the datatype, then the client's context.
    aad: Vec<u8>,
    /// The cache of schedules that earlier requests opened, if enabled.
    kept: Option<Arc<OpenedSchedules>>,
    schedules: Vec<Slot>,
    by_header: HashMap<Header, usize>,
    /// The last header and the index of its schedule. In a document made by one request, every header is the same.
    last: Option<LastHeader>,
    /// Number of Diffie-Hellmans made.
    agreements: usize,
    body: Zeroizing<Vec<u8>>,
}

struct LastHeader {
    header: Header,
    text: HeaderText,
    schedule: usize,
}

/// One key schedule of this request.
struct Slot {
    context: Arc<Context>,
    header: Header,
    /// True if the schedule is in [`Opener::kept`] or must not be added there.
    is_kept: bool,
}

impl Opener {
    /// Creates an opener with an app's keys. `context` must be the context that the fields were sealed with.
    #[must_use]
    pub fn new(keys: Arc<AppKeys>, context: &[u8]) -> Self {
        let aad = [&[Datatype::Value as u8], context].concat();
        Self {
            keys,
            aad,
            kept: None,
            schedules: Vec::new(),
            by_header: HashMap::new(),
            last: None,
            agreements: 0,
            body: Zeroizing::new(Vec::new()),
        }
    }

    /// Makes the opener use and extend the cache of schedules that other requests opened.
    #[must_use]
    pub fn keeping(self, kept: Option<Arc<OpenedSchedules>>) -> Self {
        Self { kept, ..self }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.schedules.len()
    }

    /// Returns the number of Diffie-Hellmans made so far, which dominate the cost of opening.
    pub fn agreements(&self) -> usize {
        self.agreements
    }

    /// Returns true if a text envelope opens, or fails to, without a Diffie-Hellman. Takes its schedule from the cache of
    /// other requests.
    pub fn has_schedule_of_text(&mut self, text: &[u8]) -> bool {
        Header::split_text(text).is_none_or(|(header, _)| self.has_schedule(header))
    }

    /// Does the same for a binary envelope.
    pub fn has_schedule_of_binary(&mut self, bytes: &[u8]) -> bool {
        let header = bytes.strip_prefix(BINARY_PREFIX).and_then(Header::split);
        header.is_none_or(|(header, _)| self.has_schedule(header))
    }

    fn has_schedule(&mut self, header: Header) -> bool {
        if header.suite() == Suite::Xaes || self.by_header.contains_key(&header) {
            return true;
        }
        if self.keys.reader(header.suite(), header.key_id()).is_none() {
            return true;
        }
        // A full table would be emptied, and with it what is there for other fields.
        match self.kept_schedule(header) {
            Some(slot) if self.schedules.len() < HELD_MAX => {
                self.hold(slot);
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
        let last = self.last.as_ref().and_then(|last| Some((last.schedule, text.strip_prefix(last.text.as_bytes())?)));
        let (schedule, body) = match last {
            Some(last) => last,
            None => {
                let (header, body) = Header::split_text(text).ok_or(CannotOpen)?;
                (self.schedule(header)?, body)
            }
        };
        room(&mut self.body, body.len());
        let bytes = BASE64.decode_slice(body, &mut self.body).map_err(|_| CannotOpen)?;
        self.open_body(schedule, bytes)
    }

    /// Opens a binary envelope.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    #[inline]
    pub fn open_binary(&mut self, bytes: &[u8]) -> Result<Opened<'_>, CannotOpen> {
        let (header, body) = bytes.strip_prefix(BINARY_PREFIX).and_then(Header::split).ok_or(CannotOpen)?;
        let schedule = match &self.last {
            Some(last) if last.header == header => last.schedule,
            _ => self.schedule(header)?,
        };
        room(&mut self.body, body.len());
        self.body[..body.len()].copy_from_slice(body);
        self.open_body(schedule, body.len())
    }

    #[inline]
    fn open_body(&mut self, schedule: usize, bytes: usize) -> Result<Opened<'_>, CannotOpen> {
        if bytes < BODY_OVERHEAD {
            return Err(CannotOpen);
        }
        let (prefix, sealed) = self.body[..bytes].split_at_mut(BODY_PREFIX_BYTES);
        let datatype = Datatype::from_byte(prefix[0]).ok_or(CannotOpen)?;
        let sequence = u32::from_be_bytes(*prefix.last_chunk().ok_or(CannotOpen)?);
        debug_assert!(sealed.len() >= TAG_BYTES);
        self.aad[0] = datatype as u8;
        let slot = &mut self.schedules[schedule];
        let plaintext = &*slot.context.open(sequence, &self.aad, sealed)?;
        if !slot.is_kept {
            slot.is_kept = true;
            if let Some(kept) = &self.kept {
                let schedule = Schedule::Envelope(Arc::clone(&slot.context));
                kept.keep(self.keys.app(), Name::Envelope(slot.header), schedule);
            }
        }
        if datatype == Datatype::String && std::str::from_utf8(plaintext).is_err() {
            return Err(CannotOpen);
        }
        Ok(Opened { datatype, plaintext })
    }

    /// Returns the index of a header's schedule. The schedule is derived at the header's first field.
    fn schedule(&mut self, header: Header) -> Result<usize, CannotOpen> {
        let schedule = match self.by_header.get(&header) {
            Some(schedule) => *schedule,
            None => self.derive(header)?,
        };
        self.last = Some(LastHeader { header, text: header.text(), schedule });
        Ok(schedule)
    }

    fn derive(&mut self, header: Header) -> Result<usize, CannotOpen> {
        let app = self.keys.app();
        // Looks up the key before the cache, because a disabled version must open nothing.
        let version = self.keys.reader(header.suite(), header.key_id()).ok_or(CannotOpen)?;
        let slot = match (&version.material, header.suite().curve()) {
            (KeyMaterial::Symmetric(key), _) => {
                // Another derivation costs no more than the cache of other requests.
                let context = key.context(header.random()).map_err(|_| CannotOpen)?;
                Slot { context: Arc::new(context), header, is_kept: true }
            }
            (KeyMaterial::Pair(pair), Some(curve)) => match self.kept_schedule(header) {
                Some(slot) => slot,
                None => {
                    self.agreements += 1;
                    let ephemeral = PublicKey::from_sec1(curve, header.ephemeral()).map_err(|_| CannotOpen)?;
                    let context =
                        version.with_context(app, curve, |context| Context::recipient(pair, &ephemeral, context));
                    Slot { context: Arc::new(context.map_err(|_: Error| CannotOpen)?), header, is_kept: false }
                }
            },
            (KeyMaterial::Pair(_), None) => return Err(CannotOpen),
        };
        if self.schedules.len() == HELD_MAX {
            self.schedules.clear();
            self.by_header.clear();
            self.last = None;
        }
        Ok(self.hold(slot))
    }

    /// Returns a schedule that an earlier request opened.
    fn kept_schedule(&self, header: Header) -> Option<Slot> {
        match self.kept.as_ref()?.get(self.keys.app(), Name::Envelope(header))? {
            Schedule::Envelope(context) => Some(Slot { context, header, is_kept: true }),
            _ => None,
        }
    }

    /// Holds a schedule for the rest of the request and returns its index.
    fn hold(&mut self, slot: Slot) -> usize {
        let schedule = self.schedules.len();
        self.by_header.insert(slot.header, schedule);
        self.schedules.push(slot);
        schedule
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("app", self.keys.app()).finish_non_exhaustive()
    }
}
