//! The key of one header: the HPKE key schedule of an ephemeral key, or a key that [`Suite::Xaes`]
//! derives.

use crate::context::Context;
use crate::envelope::{Encapsulation, Header, HeaderText};
use crate::hybrid::{self, ENC_BYTES, SharedSecret};
use crate::key::{Ephemeral, SharedX};
use crate::xaes::RANDOM_BYTES;
use crate::{AppId, Error, HybridPublicKey, KeyMaterial, KeyVersion, Suite, XaesKey};

/// The key and nonces of the fields under one header, and the header. An ephemeral private key is
/// already dropped.
pub(crate) struct Schedule {
    pub(crate) context: Context,
    pub(crate) header: Header,
    pub(crate) header_text: HeaderText,
    /// The bytes after the header of [`Suite::P256MlKem768`].
    pub(crate) encapsulation: Option<Box<Encapsulation>>,
}

impl Schedule {
    /// Returns a schedule to seal one request or field under: a ready schedule if available, else a
    /// new one.
    pub(crate) fn take(app: &AppId, version: &KeyVersion) -> Result<Self, Error> {
        let uses = version.precomputed.count_use();
        if version.suite() == Suite::Xaes && uses >= XaesKey::HEADERS_MAX {
            return Err(Error::KeyUsedUp);
        }
        match version.precomputed.take_ready(app) {
            Some(schedule) => Ok(schedule),
            None => Self::make(app, version),
        }
    }

    /// Returns a schedule without a Diffie-Hellman, if that is possible.
    pub(crate) fn take_ready(app: &AppId, version: &KeyVersion) -> Option<Self> {
        if version.suite() == Suite::Xaes {
            return Self::take(app, version).ok();
        }
        let ready = version.precomputed.take_ready(app)?;
        version.precomputed.count_use();
        Some(ready)
    }

    /// Computes a fresh schedule. For a key pair that is one key generation and one Diffie-Hellman,
    /// by the table if there is one.
    pub(crate) fn make(app: &AppId, version: &KeyVersion) -> Result<Self, Error> {
        if let KeyMaterial::Symmetric(key) = &version.material {
            let mut random = [0; RANDOM_BYTES];
            aws_lc_rs::rand::fill(&mut random).map_err(|_| Error::Library)?;
            return Self::with_random(key, &random);
        }
        Self::with_ephemeral(
            app,
            version,
            &Ephemeral::generate(version.public()?.curve())?,
        )
    }

    /// Computes the schedule of a given ephemeral key. A second schedule of the same key would
    /// repeat nonces.
    pub(crate) fn with_ephemeral(
        app: &AppId,
        recipient: &KeyVersion,
        ephemeral: &Ephemeral,
    ) -> Result<Self, Error> {
        let shared = recipient.agree(ephemeral)?;
        match &recipient.material {
            KeyMaterial::Hybrid(key) => {
                Self::encapsulate(app, recipient, key.public()?, ephemeral, &shared)
            }
            KeyMaterial::PublicHybrid(key) => {
                Self::encapsulate(app, recipient, key, ephemeral, &shared)
            }
            _ => Self::derive(app, recipient, ephemeral.public(), &shared),
        }
    }

    /// Computes the schedule of given random bytes. A second schedule of the same bytes would
    /// repeat nonces.
    pub(crate) fn with_random(key: &XaesKey, random: &[u8; RANDOM_BYTES]) -> Result<Self, Error> {
        Ok(Self::new(
            key.sealing_context(random)?,
            Header::of_random(key.id(), random),
        ))
    }

    fn derive(
        app: &AppId,
        recipient: &KeyVersion,
        enc: &[u8; 65],
        shared: &SharedX,
    ) -> Result<Self, Error> {
        let public = recipient.public()?;
        let context = recipient.with_context(app, public.curve().kem_id(), |context| {
            Context::derive(public.curve(), shared, enc, public.uncompressed(), context)
        })?;
        Ok(Self::new(
            context,
            Header::of_ephemeral(recipient.suite(), recipient.id, enc),
        ))
    }

    fn encapsulate(
        app: &AppId,
        recipient: &KeyVersion,
        key: &HybridPublicKey,
        ephemeral: &Ephemeral,
        shared: &SharedX,
    ) -> Result<Self, Error> {
        let (secret, enc) = key.encapsulate(ephemeral, shared)?;
        Self::of_encapsulation(app, recipient, &secret, &enc)
    }

    /// Computes the schedule of a shared secret. A second schedule of the same secret would repeat
    /// nonces.
    pub(crate) fn of_encapsulation(
        app: &AppId,
        recipient: &KeyVersion,
        secret: &SharedSecret,
        enc: &[u8; ENC_BYTES],
    ) -> Result<Self, Error> {
        let context = recipient.with_context(app, hybrid::KEM_ID, |context| {
            Context::key_schedule(hybrid::KEM_ID, secret, context)
        })?;
        let schedule = Self::new(context, Header::of_encapsulation(recipient.id, enc));
        let encapsulation = Some(Box::new(Encapsulation::new(&schedule.header, enc)));
        Ok(Self {
            encapsulation,
            ..schedule
        })
    }

    fn new(context: Context, header: Header) -> Self {
        Self {
            context,
            header,
            header_text: header.text(),
            encapsulation: None,
        }
    }
}
