//! Decodes and encodes the values of parameters, by the rules in the table of parameters.

use sealwire_msgpack::{Token, write};

use super::declare::{Parameter, TextValue};
use super::rule::{Form, Param};
use super::{Envelope, Secret, Suite};
use crate::invalid_request::InvalidRequest;
use crate::reading::{Params, broken_rule};

/// Implements [`Parameter`] for types. Each line has the type, its blank value, the method of
/// [`Params`] that reads it, and an expression that writes it.
macro_rules! values {
    ($($type:ty: $blank:expr, $read:ident, |$value:ident, $form:ident, $out:ident| $write:expr;)+) => {
        $(impl<'a> Parameter<'a> for $type {
            fn blank() -> Self {
                $blank
            }

            fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
                params.$read(row)
            }

            fn write(&self, $form: Form, $out: &mut Vec<u8>) {
                let $value = self;
                let _ = $form;
                $write
            }
        })+
    };
}

values! {
    bool: false, flag, |value, form, out| write::bool(out, *value);
    u8: 0, small_number, |value, form, out| write::uint(out, u64::from(*value));
    u32: 0, small_number, |value, form, out| write::uint(out, u64::from(*value));
    u64: 0, number, |value, form, out| write::uint(out, *value);
    Option<u64>: None, number_or_nil, |value, form, out| match value {
        Some(number) => write::uint(out, *number),
        None => write::nil(out),
    };
    Vec<u64>: Vec::new(), numbers, |value, form, out| write_all(out, value, |out, number| {
        write::uint(out, *number);
    });
    &'a [u8]: &[], bytes_in_form, |value, form, out| match form {
        Form::Bytes => write::bin(out, value),
        Form::Value | Form::Document | Form::Array => out.extend_from_slice(value),
    };
}

impl<'a> Parameter<'a> for &'a str {
    fn blank() -> Self {
        ""
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        params.checked_text(row)
    }

    fn write(&self, _: Form, out: &mut Vec<u8>) {
        write::str(out, self);
    }

    fn as_text(&self) -> Option<&'a str> {
        Some(self)
    }
}

impl<'a, T: TextValue<'a>> Parameter<'a> for Vec<T> {
    fn blank() -> Self {
        Self::new()
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        Ok(params
            .checked_texts(row)?
            .into_iter()
            .map(T::from)
            .collect())
    }

    fn write(&self, form: Form, out: &mut Vec<u8>) {
        write_len(out, self.len());
        for text in self {
            text.write(form, out);
        }
    }
}

impl<'a> Parameter<'a> for Secret<'a> {
    fn blank() -> Self {
        Self("")
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        params.checked_text(row).map(Self)
    }

    fn write(&self, form: Form, out: &mut Vec<u8>) {
        self.0.write(form, out);
    }
}

impl<'a> Parameter<'a> for Envelope<'a> {
    fn blank() -> Self {
        Self::Binary(&[])
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        Ok(match params.reader.peek()? {
            Token::Bin(_) => Self::Binary(params.reader.bin()?),
            _ => Self::Text(params.text(row, usize::MAX)?),
        })
    }

    fn write(&self, form: Form, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => text.write(form, out),
            Self::Binary(bytes) => bytes.write(form, out),
        }
    }
}

/// A list of suites, each at most once.
impl<'a> Parameter<'a> for Vec<Suite> {
    fn blank() -> Self {
        Self::new()
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        let mut suites = Self::new();
        for name in params.checked_texts(row)? {
            let suite = Suite::from_name(name).filter(|suite| !suites.contains(suite));
            suites.push(suite.ok_or(broken_rule(row))?);
        }
        Ok(suites)
    }

    fn write(&self, _: Form, out: &mut Vec<u8>) {
        write_all(out, self, |out, suite| write::str(out, suite.name()));
    }
}

/// Writes the length of a list. A length above 32 bits becomes `u32::MAX`, which every server
/// rejects as too long.
pub(super) fn write_len(out: &mut Vec<u8>, len: usize) {
    write::array_len(out, u32::try_from(len).unwrap_or(u32::MAX));
}

fn write_all<T>(out: &mut Vec<u8>, values: &[T], write: fn(&mut Vec<u8>, &T)) {
    write_len(out, values.len());
    for value in values {
        write(out, value);
    }
}
