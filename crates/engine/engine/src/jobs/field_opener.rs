//! Opens one field of any format, between the walk and the cryptography, which knows no
//! MessagePack.
//!
//! A field that claims to be an envelope or an Evervault string or file opens or is rejected; it is
//! never treated as data. An Evervault value is returned in the types of the native envelope.

use std::fmt;
use std::sync::Arc;

use sealwire_crypto::evervault::{self, Legacy, Number, OpenedFile, OpenedValue};
use sealwire_crypto::{
    self as crypto, AgreementQueue, AppKeys, CannotOpen, Datatype, OpenKeyCache, Opener, Origin,
    looks_like_binary, looks_like_text,
};
use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_payload::{
    Budget, Containers, Field, Outcome, Path, Progress, Selection, Transform, Walk, WalkLimits,
};
use zeroize::Zeroizing;

use crate::jobs::cancel_token::CancelToken;
use crate::jobs::field_errors::FieldProblem;

/// An opened field.
#[derive(Clone, Copy)]
pub struct OpenedField<'a> {
    /// Type of the plaintext.
    pub datatype: Datatype,
    /// The parties that can have sealed the field. Only the engine has the private key that opens
    /// an Evervault value, but anybody with the public key can have sealed it.
    pub origin: Origin,
    /// The plaintext; valid UTF-8 when the datatype is a string.
    pub plaintext: &'a [u8],
    /// Datatype and text of an Evervault string.
    pub evervault_text: Option<(evervault::Datatype, &'a str)>,
    /// The data role that the writer of the field set. Only Evervault values can have a role.
    pub role: Option<&'a str>,
    /// True if the value has no data role, or the operator lists its role.
    role_is_open: bool,
}

impl OpenedField<'_> {
    /// Checks that the value can be returned without its role.
    ///
    /// # Errors
    ///
    /// [`FieldProblem::Role`].
    #[inline]
    pub fn check_without_role(&self) -> Result<(), FieldProblem> {
        if self.role_is_open {
            Ok(())
        } else {
            Err(FieldProblem::Role)
        }
    }
}

/// Opens fields with an app's keys.
pub struct FieldOpener {
    native: Opener,
    evervault: Evervault,
    /// Bounds a sealed container.
    depth_max: usize,
    /// Number of Diffie-Hellmans at which the slice pauses.
    pauses_at: usize,
}

impl FieldOpener {
    /// Creates an opener of native envelopes and Evervault values.
    pub fn new(native: Opener, evervault: Evervault, depth_max: usize) -> Self {
        Self {
            native,
            evervault,
            depth_max,
            pauses_at: usize::MAX,
        }
    }

    /// Sets the cancel token. A stopped request tries no further keys for a value.
    pub fn stop_with(&mut self, cancel: Arc<CancelToken>) {
        self.evervault.cancel = cancel;
    }

    /// Opens bare Evervault strings as text, regardless of their declared datatype. This is for
    /// values that are masked: the datatype is not authenticated, and a client that changes it must
    /// not see how the mask changes.
    pub fn ignore_unauthenticated_types(&mut self) {
        self.evervault.ignores_unauthenticated_types = true;
    }

    /// Returns the number of Diffie-Hellmans that the opener made so far.
    pub fn agreements(&self) -> usize {
        self.native.agreements() + self.evervault.agreements()
    }

    /// Returns the number of Diffie-Hellmans that other threads made for the opener so far.
    pub fn agreements_ahead(&self) -> usize {
        self.native.agreements_ahead()
    }

    /// Returns the queue of key agreements that other threads can make, if the fields so far needed
    /// more than one: the next ones then probably need more.
    pub fn share_agreements(&mut self) -> Option<Arc<AgreementQueue>> {
        (self.native.agreements() > 1).then(|| self.native.share_agreements())
    }

    /// Sets the number of further key agreements after which [`Self::pauses`] returns true.
    pub fn pause_after(&mut self, agreements: usize) {
        self.pauses_at = self.agreements().saturating_add(agreements);
    }

    /// Returns true when the slice has done enough.
    #[inline]
    pub fn pauses(&self) -> bool {
        self.agreements() >= self.pauses_at
    }

    /// Returns true if opening the fields of a document takes no Diffie-Hellman, because earlier
    /// requests opened all its envelopes. Takes their keys.
    pub fn has_keys_of(&mut self, document: &[u8]) -> bool {
        let mut tokens = TokenReader::new(document);
        while !tokens.is_at_end() {
            let has_key = match tokens.token() {
                Ok(Token::Str(text)) if looks_like_text(text) => {
                    self.native.has_schedule_of_text(text)
                }
                Ok(Token::Bin(bytes)) if looks_like_binary(bytes) => {
                    self.native.has_schedule_of_binary(bytes)
                }
                Ok(Token::Str(text)) => !evervault::looks_like(text),
                Ok(Token::Bin(bytes)) => !evervault::looks_like_file(bytes),
                Ok(_) => true,
                // The document is malformed, so the request fails.
                Err(_) => return true,
            };
            if !has_key {
                return false;
            }
        }
        true
    }

    /// Sets the context that the next fields must have been sealed with.
    pub fn set_context(&mut self, context: &[u8]) {
        self.native.set_context(context);
    }

    /// Returns true if a field claims to be an envelope, so that it opens or is rejected.
    #[inline]
    pub fn is_claimed(token: Token<'_>) -> bool {
        match token {
            Token::Str(text) => looks_like_text(text) || evervault::looks_like(text),
            Token::Bin(bytes) => looks_like_binary(bytes) || evervault::looks_like_file(bytes),
            _ => false,
        }
    }

    /// Opens a field. Returns `None` if it does not look like an envelope.
    ///
    /// # Errors
    ///
    /// [`FieldProblem::CannotOpen`], for every cause.
    #[inline]
    pub fn open(&mut self, token: Token<'_>) -> Result<Option<OpenedField<'_>>, FieldProblem> {
        let opened = match token {
            Token::Str(text) if looks_like_text(text) => self.native.open_text(text),
            Token::Bin(bytes) if looks_like_binary(bytes) => self.native.open_binary(bytes),
            Token::Str(text) if evervault::looks_like(text) => {
                return self.evervault.open(text).map(Some);
            }
            Token::Bin(bytes) if evervault::looks_like_file(bytes) => {
                return self.evervault.open_file(bytes).map(Some);
            }
            _ => return Ok(None),
        };

        let opened = opened?;
        // Anybody with the public key can seal any bytes, so the plaintext must be checked to be
        // one valid value before it goes into a response.
        if opened.datatype == Datatype::Value && !is_one_value(opened.plaintext, self.depth_max) {
            return Err(FieldProblem::CannotOpen);
        }

        let crypto::Opened {
            datatype,
            origin,
            plaintext,
        } = opened;
        Ok(Some(OpenedField {
            datatype,
            origin,
            plaintext,
            evervault_text: None,
            role: None,
            role_is_open: true,
        }))
    }
}

impl From<CannotOpen> for FieldProblem {
    fn from(_: CannotOpen) -> Self {
        Self::CannotOpen
    }
}

impl fmt::Debug for FieldOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FieldOpener")
            .field("native", &self.native)
            .finish_non_exhaustive()
    }
}

/// Opens Evervault values. The opener is made at the first value.
pub struct Evervault {
    keys: Arc<AppKeys>,
    rules: Arc<sealwire_settings::Evervault>,
    /// True if no value opens: the request names a context, and the format does not bind one.
    rejects_all: bool,
    /// True if values whose datatype is not authenticated are opened as text.
    ignores_unauthenticated_types: bool,
    /// Cache of key schedules that earlier requests opened, if enabled.
    key_cache: Option<Arc<OpenKeyCache>>,
    opener: Option<Box<evervault::Opener>>,
    /// Tells when to stop.
    cancel: Arc<CancelToken>,
    /// A number or boolean that opened, as MessagePack.
    value: Zeroizing<Vec<u8>>,
}

impl Evervault {
    /// Creates an opener with an app's keys, under the operator's rules.
    pub fn new(keys: Arc<AppKeys>, rules: Arc<sealwire_settings::Evervault>) -> Self {
        let cancel = Arc::default();
        let value = Zeroizing::new(Vec::new());
        Self {
            keys,
            rules,
            rejects_all: false,
            ignores_unauthenticated_types: false,
            key_cache: None,
            opener: None,
            cancel,
            value,
        }
    }

    /// Adds the cache of keys that other requests opened.
    #[must_use]
    pub fn with_key_cache(self, key_cache: Option<Arc<OpenKeyCache>>) -> Self {
        Self { key_cache, ..self }
    }

    /// Rejects every field if `rejects_all` is true.
    #[must_use]
    pub fn rejecting(self, rejects_all: bool) -> Self {
        Self {
            rejects_all,
            ..self
        }
    }

    fn open(&mut self, text: &[u8]) -> Result<OpenedField<'_>, FieldProblem> {
        self.make_opener()?;
        let Self {
            opener: Some(opener),
            rules,
            value,
            ..
        } = self
        else {
            return Err(FieldProblem::CannotOpen);
        };

        let opened = opener.open(text)?;
        value.clear();
        let (datatype, plaintext) = match opened.value {
            OpenedValue::Text(text) => (Datatype::String, text.as_bytes()),
            OpenedValue::Number(number) => {
                match number {
                    Number::Unsigned(number) => write::uint(value, number),
                    Number::Signed(number) => write::int(value, number),
                    Number::Float(number) => write::f64(value, number),
                }
                (Datatype::Value, &value[..])
            }
            OpenedValue::Boolean(boolean) => {
                write::bool(value, boolean);
                (Datatype::Value, &value[..])
            }
        };

        let evervault::Opened {
            role,
            datatype: declared,
            text,
            ..
        } = opened;
        let role_is_open = rules.opens(role);
        Ok(OpenedField {
            datatype,
            origin: Origin::Inside,
            plaintext,
            evervault_text: Some((declared, text)),
            role,
            role_is_open,
        })
    }

    fn open_file(&mut self, file: &[u8]) -> Result<OpenedField<'_>, FieldProblem> {
        self.make_opener()?;
        let Self {
            opener: Some(opener),
            rules,
            ..
        } = self
        else {
            return Err(FieldProblem::CannotOpen);
        };

        let OpenedFile { content, role } = opener.open_file(file)?;
        let datatype = Datatype::Binary;
        let role_is_open = rules.opens(role);
        Ok(OpenedField {
            datatype,
            origin: Origin::Inside,
            plaintext: content,
            evervault_text: None,
            role,
            role_is_open,
        })
    }

    #[inline]
    fn agreements(&self) -> usize {
        self.opener.as_ref().map_or(0, |opener| opener.agreements())
    }

    /// Makes the opener, at the first value.
    #[inline]
    fn make_opener(&mut self) -> Result<(), FieldProblem> {
        if self.rejects_all {
            return Err(FieldProblem::CannotOpen);
        }

        if self.opener.is_none() {
            let legacy = if self.rules.legacy {
                Legacy::Allowed
            } else {
                Legacy::Refused
            };
            let opener = evervault::Opener::new(&self.keys, legacy).keeping(self.key_cache.take());
            let cancel = Arc::clone(&self.cancel);
            let opener = opener.stopping(move || cancel.stop_reason().is_some());
            let opener = match self.ignores_unauthenticated_types {
                true => opener.ignoring_unauthenticated_types(),
                false => opener,
            };
            self.opener = Some(Box::new(opener));
        }
        Ok(())
    }
}

/// Exactly one MessagePack value of a kind that datatype 2 holds: no string, no binary, no nil.
fn is_one_value(bytes: &[u8], depth_max: usize) -> bool {
    let mut reader = TokenReader::new(bytes);
    match reader.token() {
        Ok(Token::Str(_) | Token::Bin(_) | Token::Nil) | Err(_) => false,
        Ok(Token::Array(_) | Token::Map(_)) => is_one_document(bytes, depth_max),
        Ok(_) => reader.is_at_end(),
    }
}

fn is_one_document(bytes: &[u8], depth_max: usize) -> bool {
    let nothing = Arc::new(Selection::parse([]).unwrap_or(Selection::everything()));
    let limits = WalkLimits {
        depth_max,
        out_bytes_max: 0,
    };
    let mut walk = Walk::new(nothing, Containers::Descend, limits).without_output();
    let walked = walk.advance(bytes, &mut Vec::new(), &mut KeepAll, Budget::UNLIMITED);
    walked
        == Ok(Progress::Done {
            consumed: bytes.len(),
        })
}

/// For a walk that only checks.
struct KeepAll;

impl Transform for KeepAll {
    type Error = std::convert::Infallible;

    fn field(&mut self, _: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, Self::Error> {
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, never: Self::Error) -> Result<(), Self::Error> {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use sealwire_crypto::{AppId, Curve, KeyPair, KeyScope, KeyState, KeyVersion};

    use super::*;

    #[test]
    fn many_agreements_end_a_slice_however_few_the_fields() {
        let version = |number| {
            KeyVersion::new(
                number,
                KeyState::Active,
                KeyPair::generate(Curve::P256).unwrap(),
            )
        };
        let mut sealer =
            evervault::Sealer::new(version(1).into(), KeyScope::Field, &evervault::Form::Plain)
                .unwrap();
        for (versions, pauses) in [(1, [3, 7, 11]), (3, [1, 3, 5]), (9, [0, 1, 2])] {
            let keys = AppKeys::new(
                AppId::new("shop").unwrap(),
                (1..=versions).map(version).collect(),
            )
            .unwrap();
            let keys = Arc::new(keys);
            let native = Opener::new(Arc::clone(&keys), b"");
            let mut reader = FieldOpener::new(native, Evervault::new(keys, Arc::default()), 4);
            reader.pause_after(4);
            let mut paused = Vec::new();
            for field in 0..12 {
                let mut string = Vec::new();
                sealer
                    .seal(evervault::Datatype::String, "x", &mut string)
                    .unwrap();
                assert!(
                    reader.open(Token::Str(&string)).is_err(),
                    "sealed to another key"
                );
                if reader.pauses() {
                    paused.push(field);
                    reader.pause_after(4);
                }
            }
            assert_eq!(paused[..3], pauses, "{versions} versions");
        }
    }

    #[test]
    fn a_sealed_value_is_one_sound_value_of_its_kind() {
        for (bytes, sound) in [
            (&[0xc3][..], true),
            (&[0x2a], true),
            (&[0x92, 1, 0xa1, b'x'], true),
            (&[0x81, 0xa1, b'k', 0xc0], true),
            (&[0x92, 1], false),
            (&[0x91, 1, 2], false),
            (&[0x91, 0xa1, 0xff], false),
            (&[0x91, 0x91, 0x91, 0x91, 0x91, 1], false),
            (&[0xc3, 0xc3], false),
            (&[0xa1, b'x'], false),
            (&[0xc4, 1, 0], false),
            (&[0xc0], false),
            (&[0xc1], false),
            (&[], false),
        ] {
            assert_eq!(is_one_value(bytes, 4), sound, "{bytes:02x?}");
        }
    }
}
