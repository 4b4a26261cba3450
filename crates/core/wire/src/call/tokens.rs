//! The methods on tokens without a document.

use super::reading::Params;
use crate::call_error::CallError;
use crate::limits::{
    CURSOR_BYTES_MAX, EXPIRES_S_MAX, SWEEP_ROWS_MAX, TOKEN_BYTES_MAX, TOKENS_MAX,
    TRACEPARENT_BYTES_MAX, VALUE_BYTES_MAX,
};
use crate::method::Method;
use crate::params::{Listing, Sweep, TokenMap, TokenSearch, TokensCall, TokensOperation};

/// The params of all token methods, as they are read.
#[derive(Default)]
struct TokensParams<'a> {
    map: TokenMap<'a>,
    tokens: Vec<&'a str>,
    search: TokenSearch<'a>,
    expires_s: Option<u64>,
    listing: Listing<'a>,
    sweep: Sweep<'a>,
}

/// The call, or `None` if the method is not one of these.
pub(super) fn call<'a>(
    method: Method,
    params: &mut Params<'a>,
) -> Result<Option<TokensCall<'a>>, CallError> {
    let ask: fn(TokensParams<'a>) -> TokensOperation<'a> = match method {
        Method::TokensGet => |said| TokensOperation::Get(said.tokens),
        Method::TokensFind => |said| TokensOperation::Find(said.search),
        Method::TokensList => |said| TokensOperation::List(said.listing),
        Method::TokensDelete => |said| TokensOperation::Delete(said.tokens),
        Method::TokensExpire => |said| TokensOperation::Expire {
            tokens: said.tokens,
            expires_s: said.expires_s,
        },
        Method::TokensArchive => |said| TokensOperation::Archive(said.sweep),
        Method::TokensPrune => |said| TokensOperation::Prune(said.sweep),
        _ => return Ok(None),
    };
    let said = read(method, params)?;
    Ok(Some(TokensCall {
        map: said.map,
        ask: ask(said),
    }))
}

/// The params. The method's table has refused what is not its own.
fn read<'a>(method: Method, params: &mut Params<'a>) -> Result<TokensParams<'a>, CallError> {
    let limit_max = if method == Method::TokensList {
        TOKENS_MAX
    } else {
        SWEEP_ROWS_MAX
    };
    let mut said = TokensParams::default();
    while let Some(param) = params.next()? {
        match param.name {
            "app" => said.map.app = params.app(param)?,
            "collection" => said.map.collection = params.app(param)?,
            "deadline_ms" => said.map.deadline_ms = Some(params.deadline(param)?),
            "min_generation" => said.map.min_generation = Some(params.integer(param)?),
            "reason" => said.map.reason = Some(params.reason(param)?),
            "traceparent" => {
                said.map.traceparent = Some(params.text(param, TRACEPARENT_BYTES_MAX)?)
            }
            "tokens" => said.tokens = params.texts(param, TOKENS_MAX, TOKEN_BYTES_MAX)?,
            "value" => said.search.value = params.value(param, VALUE_BYTES_MAX)?,
            "context" => said.search.context = params.context(param)?,
            "subject" => said.search.subject = Some(params.subject(param)?),
            "expires_s" => {
                said.expires_s = params.or_nil(|params| params.within(param, 0..=EXPIRES_S_MAX))?
            }
            "tag" => said.listing.tag = Some(params.tag(param)?),
            "expired_before" => said.listing.expired_before = Some(params.integer(param)?),
            "archived" => said.listing.archived = params.flag(param)?,
            "expired_s" | "archived_s" => said.sweep.older_s = Some(params.integer(param)?),
            "dry_run" => said.sweep.dry_run = params.flag(param)?,
            "after" => {
                let after = Some(params.text(param, CURSOR_BYTES_MAX)?);
                (said.listing.after, said.sweep.after) = (after, after);
            }
            "limit" => {
                let limit = Some(params.within(param, 1..=limit_max as u64)? as u32);
                (said.listing.limit, said.sweep.limit) = (limit, limit);
            }
            other => return Err(params.unknown(other.as_bytes())),
        }
    }
    Ok(said)
}
