//! Sealing a document to public keys.

use std::sync::Arc;

use sealwire_crypto::{Datatype, EncapsulationPlace, Encoding, Error, KeyScope, Sealer, Suite};
use sealwire_msgpack::{Token, write};
use sealwire_payload::{
    Budget, Containers, Field, Outcome, Path, Progress, Selection, Transform, Walk, WalkLimits,
};

use crate::error::SealError;
use crate::text::PublicKeys;

/// Maximum length of a context in bytes, as engines accept it.
const CONTEXT_BYTES_MAX: usize = 4_096;
/// Prefix of contexts that belong to engines, which reject them in requests.
const CONTEXT_RESERVED: &[u8] = b"sealwire/";

/// Options of sealing a document.
#[derive(Clone, Copy, Debug)]
pub struct SealOptions<'a> {
    /// Paths of the fields, such as `$.card.number`; `None` for every leaf. A selected container is
    /// sealed as one value.
    pub select: Option<&'a [&'a str]>,
    /// Bytes to bind the fields to, at most 4,096. Only the same context opens them.
    pub context: &'a [u8],
    /// Text or binary envelopes.
    pub encoding: Encoding,
    /// The scope of one ephemeral key.
    pub key_scope: KeyScope,
    /// Suite of the key to seal to. `None`: p256 if the app publishes a key of it, else the suite
    /// that it publishes.
    pub suite: Option<Suite>,
    /// Place of the encapsulation of [`Suite::P256MlKem768`]. If apart, it is in
    /// [`Sealed::encapsulations`].
    pub encapsulation: EncapsulationPlace,
}

impl Default for SealOptions<'_> {
    fn default() -> Self {
        Self {
            select: None,
            context: &[],
            encoding: Encoding::Text,
            key_scope: KeyScope::Request,
            suite: None,
            encapsulation: EncapsulationPlace::Inline,
        }
    }
}

/// A sealed document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The document with sealed fields: a MessagePack value of the same shape.
    pub document: Vec<u8>,
    /// Texts of the encapsulations that the document refers to, without which it does not open.
    /// Empty unless they are apart.
    pub encapsulations: Vec<String>,
    /// Positions of those paths in `select` that match nothing.
    pub unmatched: Vec<u32>,
}

impl PublicKeys {
    /// Seals the fields of a document under a fresh ephemeral key that is dropped here, so that not
    /// even the caller can open them. The document is one MessagePack value.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn seal(&self, document: &[u8], options: &SealOptions<'_>) -> Result<Sealed, SealError> {
        let SealOptions {
            select,
            context,
            encoding,
            key_scope,
            suite,
            encapsulation,
        } = *options;
        if context.starts_with(CONTEXT_RESERVED) {
            return Err(SealError::ContextReserved);
        }
        if context.len() > CONTEXT_BYTES_MAX {
            return Err(SealError::Context {
                max: CONTEXT_BYTES_MAX,
            });
        }
        let selection = match select {
            None => Selection::everything(),
            Some(paths) => Selection::parse(paths.iter().copied())
                .map_err(|e| SealError::Path(e.to_string()))?,
        };
        let recipient = self.recipient(suite).ok_or(SealError::NoKey)?;
        if encapsulation == EncapsulationPlace::Apart {
            if recipient.suite() != Suite::P256MlKem768 {
                return Err(SealError::Apart("the key is not of suite p256-mlkem768"));
            }
            if key_scope == KeyScope::Field {
                return Err(SealError::Apart("each field has its own"));
            }
        }
        let sealer = Sealer::new(
            &self.app,
            Arc::clone(recipient),
            key_scope,
            encoding,
            context,
        )
        .map_err(failed)?;
        let mut fields = SealFields(sealer.placing(encapsulation));
        let limits = WalkLimits {
            out_bytes_max: usize::MAX,
            ..WalkLimits::default()
        };
        let mut walk = Walk::new(Arc::new(selection), Containers::Whole, limits);
        let mut out = Vec::new();
        let walked = walk.advance(document, &mut out, &mut fields, Budget::UNLIMITED);
        match walked {
            Ok(Progress::Done { consumed }) if consumed == document.len() => Ok(Sealed {
                document: out,
                encapsulations: fields.0.take_encapsulations(),
                unmatched: walk.unmatched(),
            }),
            Ok(_) => Err(SealError::Document(
                "not exactly one MessagePack value".into(),
            )),
            Err(sealwire_payload::WalkError::Transform(error)) => Err(failed(error)),
            Err(error) => Err(SealError::Document(error.to_string())),
        }
    }
}

fn failed(_: Error) -> SealError {
    SealError::Library
}

struct SealFields(Sealer);

impl Transform for SealFields {
    type Error = Error;

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, Error> {
        let (datatype, plaintext) = match field.token {
            Token::Str(text) => (Datatype::String, text),
            Token::Bin(bytes) => (Datatype::Binary, bytes),
            _ => (Datatype::Value, field.raw),
        };
        let bytes = self.0.sealed_bytes(plaintext.len());
        match self.0.encoding() {
            Encoding::Text => write::str_header(out, bytes),
            Encoding::Binary => write::bin_header(out, bytes),
        }
        self.0.seal_later(datatype, plaintext, out)?;
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, _: &Path<'_>, error: Error) -> Result<(), Error> {
        Err(error)
    }

    fn complete(&mut self, out: &mut [u8]) {
        self.0.complete(out);
    }
}
