//! The implementation of the functions: each takes one value and appends one MessagePack value.

mod bytes;
mod card;
mod date;
mod digits;
mod email;
mod ff1;
mod fpe;
mod hash;
mod iban;
mod mac;
mod number;
mod phone;
mod postal;
mod pseudonym;
mod text;

use sealwire_msgpack::write;

use crate::{Function, MaskSecret, Value};
use sealwire_mask_rules::Lists;
use sealwire_mask_rules::{FunctionKind, Literal, Period};

/// A reason why a function cannot mask a value. The error contains nothing of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The function does not accept this type.
    #[error("the mask does not take values of this type")]
    Type,
    /// The value does not have the required form.
    #[error("not {0}")]
    Shape(&'static str),
    /// The value exceeds the function's maximum length.
    #[error("longer than the {0} characters or bytes that the mask takes")]
    TooLong(usize),
    /// Fewer than 1,000,000 values have the form of this value, too few to hide it among them.
    #[error("too short: fewer than 1,000,000 values have its form")]
    SmallDomain,
    /// The result would be outside of the valid range.
    #[error("the masked value would be out of range")]
    Range,
    /// The type and form of the value hold no other number within the noise and its bounds.
    #[error("no other number of this type and form lies within the noise and its bounds")]
    NoOther,
    /// The masking depends on a subject in the same map, which is missing.
    #[error("the subject is not there: no string or integer under its key in the same map")]
    NoSubject,
    /// There is no rule at this index.
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
    Email(email::Email),
    Phone(phone::Phone),
    Card(card::Card),
    Iban(iban::Iban),
    Mac(mac::Mac),
    PostalCode(postal::PostalCode),
    Hash(hash::Hash),
    Pseudonym(pseudonym::Pseudonym),
    Fpe(fpe::Fpe),
    Shift(date::Shift),
    Step(u64),
    Truncate(u16),
    Coarsen(Period),
    Noise(number::Noise),
}

impl Applied {
    /// Derives the function's keys. Returns `None` if the list does not exist.
    pub(crate) fn new(function: &Function, lists: &Lists, secret: &MaskSecret) -> Option<Self> {
        let domain = function.domain();
        let keyed = || secret.keyed(domain);
        let has_subject = function.subject().is_some();
        let noise = |reach, bounds| {
            Self::Noise(number::Noise {
                keyed: keyed(),
                reach,
                bounds,
                has_subject,
            })
        };
        Some(match function.kind() {
            FunctionKind::Keep => Self::Keep,
            FunctionKind::Redact { with } => Self::Redact(with.clone()),
            FunctionKind::Fixed(value) => Self::Fixed(value.clone()),
            FunctionKind::Null => Self::Null,
            FunctionKind::Partial { first, last, with } => {
                Self::Partial(text::Partial::new(*first, *last, *with))
            }
            FunctionKind::Email { keeps_domain } => {
                Self::Email(email::Email::new(keyed(), *keeps_domain))
            }
            FunctionKind::Phone { last } => Self::Phone(phone::Phone::new(secret, domain, *last)),
            FunctionKind::Card {
                first,
                last,
                is_valid,
            } => Self::Card(card::Card::new(secret, domain, *first, *last, *is_valid)),
            FunctionKind::Iban => Self::Iban(iban::Iban::new(secret, domain)),
            FunctionKind::Mac => Self::Mac(mac::Mac::new(secret, domain)),
            FunctionKind::PostalCode => Self::PostalCode(postal::PostalCode::new(keyed())),
            FunctionKind::Hash { length } => Self::Hash(hash::Hash::new(keyed(), *length)),
            FunctionKind::Pseudonym { list } => {
                Self::Pseudonym(pseudonym::Pseudonym::new(keyed(), list, lists.find(list)?))
            }
            FunctionKind::Fpe(alphabet) => Self::Fpe(fpe::Fpe::new(secret, domain, *alphabet)),
            FunctionKind::ShiftBy { days } => Self::Shift(date::Shift::By(*days)),
            FunctionKind::ShiftWithin { days } => Self::Shift(date::Shift::Within {
                days: *days,
                keyed: keyed(),
                has_subject,
            }),
            FunctionKind::Step { step } => Self::Step(*step),
            FunctionKind::Truncate { keep } => Self::Truncate(*keep),
            FunctionKind::Coarsen(period) => Self::Coarsen(*period),
            FunctionKind::NoisePercent { millionths, bounds } => {
                noise(number::NoiseRange::Of(*millionths), *bounds)
            }
            FunctionKind::NoiseBy { by, bounds } => noise(number::NoiseRange::Fixed(*by), *bounds),
        })
    }

    /// Appends the masked value. `value` must not be nil.
    pub(crate) fn apply(
        &self,
        value: Value<'_>,
        subject: Option<Value<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), Unfit> {
        match self {
            Self::Keep => value.write(out),
            Self::Redact(with) => text::redact(with.as_deref(), value, out),
            Self::Fixed(value) => text::fixed(value, out),
            Self::Null => write::nil(out),
            Self::Partial(partial) => return partial.apply(value, out),
            Self::Email(email) => return email.apply(value, out),
            Self::Phone(phone) => return phone.apply(value, out),
            Self::Card(card) => return card.apply(value, out),
            Self::Iban(iban) => return iban.apply(value, out),
            Self::Mac(mac) => return mac.apply(value, out),
            Self::PostalCode(code) => return code.apply(value, out),
            Self::Hash(hash) => return hash.apply(value, out),
            Self::Pseudonym(pseudonym) => return pseudonym.apply(value, out),
            Self::Fpe(fpe) => return fpe.apply(value, out),
            Self::Shift(shift) => return shift.apply(value, subject, out),
            Self::Step(step) => return number::step(*step, value, out),
            Self::Truncate(keep) => return text::truncate(*keep, value, out),
            Self::Coarsen(period) => return date::coarsen(*period, value, out),
            Self::Noise(noise) => return noise.apply(value, subject, out),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
