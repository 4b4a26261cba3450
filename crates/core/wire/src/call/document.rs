//! The methods on a document: what all of them take, and what each takes besides.

use super::reading::{Params, breaks};
use crate::call_error::CallError;
use crate::limits::{EXPIRES_S_MAX, IDEMPOTENCY_KEY_BYTES_MAX, TRACEPARENT_BYTES_MAX};
use crate::params::{
    DocumentCall, Encapsulation, Encoding, Format, KeyScope, OnError, Outside, Param, Reading,
    Suite, TokenLookupScope, TokenizeOptions, Unbound, Unmatched, Writing,
};

/// The params of any method on a document. The method's table has refused what is not its own.
pub(super) fn document<'a, W: OwnParams<'a>>(
    params: &mut Params<'a>,
) -> Result<DocumentCall<'a, W>, CallError> {
    let mut call = DocumentCall::<W>::new("", &[]);
    while let Some(param) = params.next()? {
        match param.name {
            "app" => call.app = params.app(param)?,
            "payload" => call.payload = params.payload()?,
            "select" => call.select = Some(params.paths(param)?),
            "encapsulations" => call.encapsulations = params.encapsulations(param)?,
            "unmatched" => call.unmatched = params.name(param, Unmatched::from_name)?,
            "context" => call.context = params.context(param)?,
            "on_error" => call.on_error = params.name(param, OnError::from_name)?,
            "deadline_ms" => call.deadline_ms = Some(params.deadline(param)?),
            "min_generation" => call.min_generation = Some(params.integer(param)?),
            "reason" => call.reason = Some(params.reason(param)?),
            "traceparent" => call.traceparent = Some(params.text(param, TRACEPARENT_BYTES_MAX)?),
            _ => call.writing.read(param, params)?,
        }
    }
    Ok(call)
}

/// Params that a document method has besides the common ones.
pub(super) trait OwnParams<'a>: Default {
    /// Reads the value of `param`, which is a row of the method's table.
    fn read(&mut self, param: &'static Param, params: &mut Params<'a>) -> Result<(), CallError>;
}

impl<'a> OwnParams<'a> for Reading {
    fn read(&mut self, param: &'static Param, params: &mut Params<'a>) -> Result<(), CallError> {
        // Nothing is written, so nothing can be adopted.
        let of_reading =
            |name: &str| Outside::from_name(name).filter(|outside| *outside != Outside::Adopt);
        match param.name {
            "outside" => self.outside = params.name(param, of_reading)?,
            other => return Err(params.unknown(other.as_bytes())),
        }
        Ok(())
    }
}

impl<'a> OwnParams<'a> for Writing<'a> {
    fn read(&mut self, param: &'static Param, params: &mut Params<'a>) -> Result<(), CallError> {
        match param.name {
            "suite" => self.suite = Some(params.name(param, Suite::from_name)?),
            "key_scope" => self.key_scope = params.name(param, KeyScope::from_name)?,
            "format" => self.format = Some(params.name(param, Format::from_name)?),
            "role" => self.role = Some(params.role(param)?),
            "unbound" => self.unbound = params.name(param, Unbound::from_name)?,
            "outside" => self.outside = params.name(param, Outside::from_name)?,
            "encapsulation" => self.encapsulation = params.name(param, Encapsulation::from_name)?,
            "encoding" => self.encoding = params.name(param, Encoding::from_name)?,
            other => return Err(params.unknown(other.as_bytes())),
        }
        Ok(())
    }
}

impl<'a> OwnParams<'a> for TokenizeOptions<'a> {
    fn read(&mut self, param: &'static Param, params: &mut Params<'a>) -> Result<(), CallError> {
        match param.name {
            "collection" => self.collection = params.app(param)?,
            "tags" => self.tags = params.tags(param)?,
            "expires_s" => self.expires_s = Some(params.within(param, 1..=EXPIRES_S_MAX)?),
            "idempotency_key" => {
                let key = params.bytes(param, IDEMPOTENCY_KEY_BYTES_MAX)?;
                self.idempotency_key = Some(if key.is_empty() {
                    return Err(breaks(param));
                } else {
                    key
                });
            }
            "subject" => self.subject = Some(params.subject(param)?),
            other => return Err(params.unknown(other.as_bytes())),
        }
        Ok(())
    }
}

impl<'a> OwnParams<'a> for TokenLookupScope<'a> {
    fn read(&mut self, param: &'static Param, params: &mut Params<'a>) -> Result<(), CallError> {
        match param.name {
            "collection" => self.collection = params.app(param)?,
            other => return Err(params.unknown(other.as_bytes())),
        }
        Ok(())
    }
}
