//! The functions themselves: one value in, one MessagePack value out.

mod bytes;
mod hash;
mod text;

use sealwire_msgpack::write;

use crate::function::{Literal, Recipe};
use crate::keys::Keyed;
use crate::rules::Lists;
use crate::{Function, MaskSecret, Value};

/// Why a function has nothing for a value. Says nothing of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It does not take values of this type.
    #[error("the mask does not take values of this type")]
    Type,
    /// The value has not the shape that it masks.
    #[error("not {0}")]
    Shape(&'static str),
    /// The value is longer than it takes.
    #[error("longer than the {0} bytes that the mask takes")]
    TooLong(usize),
    /// Too few values look like this one for it to be hidden among them.
    #[error("too short: fewer than 1,000,000 values have its form")]
    SmallDomain,
    /// The result would be none of the kind.
    #[error("the masked value would be out of range")]
    Range,
    /// It hangs on a value beside this one, which is not there.
    #[error("the subject is not there: no string or integer under its key in the same map")]
    NoSubject,
    /// There is no rule of this place.
    #[error("no such rule")]
    NoRule,
}

/// A function with its key.
#[derive(Debug)]
pub(crate) enum Applied {
    Keep,
    Redact(Option<Box<str>>),
    Fixed(Literal),
    Null,
    Partial(text::Partial),
    Hash(hash::Hash),
    None,
}

impl Applied {
    /// `None`: there is no such list.
    pub(crate) fn new(function: &Function, lists: &Lists, secret: &MaskSecret) -> Option<Self> {
        let keyed = || secret.keyed(function.domain());
        let _ = lists;
        Some(match &function.recipe {
            Recipe::Keep => Self::Keep,
            Recipe::Redact { with } => Self::Redact(with.clone()),
            Recipe::Fixed(value) => Self::Fixed(value.clone()),
            Recipe::Null => Self::Null,
            Recipe::Partial { first, last, with } => Self::Partial(text::Partial::new(*first, *last, *with)),
            Recipe::Hash { length } => Self::Hash(hash::Hash::new(keyed(), *length)),
            _ => Self::None,
        })
    }

    /// For a value that is not nil.
    pub(crate) fn apply(&self, value: Value<'_>, subject: Option<Value<'_>>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let _ = subject;
        match self {
            Self::Keep => value.write(out),
            Self::Redact(with) => text::redact(with.as_deref(), value, out),
            Self::Fixed(value) => text::fixed(value, out),
            Self::Null => write::nil(out),
            Self::Partial(partial) => return partial.apply(value, out),
            Self::Hash(hash) => return hash.apply(value, out),
            Self::None => return Err(Unfit::Type),
        }
        Ok(())
    }
}
