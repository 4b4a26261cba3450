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
    /// No other number of the value's type and form lies within the noise and its bounds.
    #[error("no other number of this type and form lies within the noise and its bounds")]
    NoOther,
    /// The masking depends on a subject in the same map, which is missing.
    #[error("the subject is not there: no string or integer under its key in the same map")]
    NoSubject,
    /// The index does not name a rule.
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
        let has_subject = function.subject().is_some();

        Some(match function.kind() {
            FunctionKind::Keep => Self::Keep,
            FunctionKind::Redact { with } => Self::Redact(with.clone()),
            FunctionKind::Fixed(value) => Self::Fixed(value.clone()),
            FunctionKind::Null => Self::Null,
            FunctionKind::Partial { first, last, with } => {
                Self::Partial(text::Partial::new(*first, *last, *with))
            }
            FunctionKind::Email { keeps_domain } => {
                Self::Email(email::Email::new(secret.keyed(domain), *keeps_domain))
            }
            FunctionKind::Phone { last } => Self::Phone(phone::Phone::new(secret, domain, *last)),
            FunctionKind::Card {
                first,
                last,
                is_valid,
            } => Self::Card(card::Card::new(secret, domain, *first, *last, *is_valid)),
            FunctionKind::Iban => Self::Iban(iban::Iban::new(secret, domain)),
            FunctionKind::Mac => Self::Mac(mac::Mac::new(secret, domain)),
            FunctionKind::PostalCode => {
                Self::PostalCode(postal::PostalCode::new(secret.keyed(domain)))
            }
            FunctionKind::Hash { length } => {
                Self::Hash(hash::Hash::new(secret.keyed(domain), *length))
            }
            FunctionKind::Pseudonym { list } => Self::Pseudonym(pseudonym::Pseudonym::new(
                secret.keyed(domain),
                list,
                lists.find(list)?,
            )),
            FunctionKind::Fpe(alphabet) => Self::Fpe(fpe::Fpe::new(secret, domain, *alphabet)),
            FunctionKind::ShiftBy { days } => Self::Shift(date::Shift::By(*days)),
            FunctionKind::ShiftWithin { days } => Self::Shift(date::Shift::Within {
                days: *days,
                keyed: secret.keyed(domain),
                has_subject,
            }),
            FunctionKind::Step { step } => Self::Step(*step),
            FunctionKind::Truncate { keep } => Self::Truncate(*keep),
            FunctionKind::Coarsen(period) => Self::Coarsen(*period),
            FunctionKind::NoisePercent { millionths, bounds } => Self::Noise(number::Noise {
                keyed: secret.keyed(domain),
                reach: number::NoiseRange::Of(*millionths),
                bounds: *bounds,
                has_subject,
            }),
            FunctionKind::NoiseBy { by, bounds } => Self::Noise(number::Noise {
                keyed: secret.keyed(domain),
                reach: number::NoiseRange::Fixed(*by),
                bounds: *bounds,
                has_subject,
            }),
        })
    }

    /// Appends the masked value. `value` must not be nil.
    pub(crate) fn mask_value(
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
            Self::Partial(partial) => return partial.mask_value(value, out),
            Self::Email(email) => return email.mask_value(value, out),
            Self::Phone(phone) => return phone.mask_value(value, out),
            Self::Card(card) => return card.mask_value(value, out),
            Self::Iban(iban) => return iban.mask_value(value, out),
            Self::Mac(mac) => return mac.mask_value(value, out),
            Self::PostalCode(code) => return code.mask_value(value, out),
            Self::Hash(hash) => return hash.mask_value(value, out),
            Self::Pseudonym(pseudonym) => return pseudonym.mask_value(value, out),
            Self::Fpe(fpe) => return fpe.mask_value(value, out),
            Self::Shift(shift) => return shift.mask_value(value, subject, out),
            Self::Step(step) => return number::step(*step, value, out),
            Self::Truncate(keep) => return text::truncate(*keep, value, out),
            Self::Coarsen(period) => return date::coarsen(*period, value, out),
            Self::Noise(noise) => return noise.mask_value(value, subject, out),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
