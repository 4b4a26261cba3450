//! The methods on objects, and the properties in control methods.

use sealwire_msgpack::{Token, TokenReader};

use super::reading::{NAME_BYTES_MAX, Params, breaks, cleaned};
use crate::call_error::CallError;
use crate::limits::{
    CLAUSES_MAX, CURSOR_BYTES_MAX, DESCRIPTION_BYTES_MAX, EXPIRES_S_MAX, IDEMPOTENCY_KEY_BYTES_MAX,
    OBJECTS_MAX, PREFIXES_MAX, PROPERTIES_MAX, SUBJECT_BYTES_MAX, SWEEP_ROWS_MAX, TOKEN_BYTES_MAX,
    TRACEPARENT_BYTES_MAX,
};
use crate::method::Method;
use crate::params::{
    AddObjects, ObjectsCall, ObjectsOperation, Param, PropertyDisclosure, PropertySpec,
    SubjectName, SubjectTarget, SubjectsCall, SubjectsOperation, Sweep, TokenMap,
};

/// Digits of the id of a data subject.
const SUBJECT_ID_DIGITS: usize = 32;

/// The params of all methods on objects, as they are read.
#[derive(Default)]
struct ObjectsParams<'a> {
    map: TokenMap<'a>,
    payload: &'a [u8],
    ids: Vec<&'a str>,
    versions: Option<Vec<u64>>,
    tags: Vec<&'a str>,
    expires_s: Option<u64>,
    idempotency_key: Option<&'a [u8]>,
    subjects: Vec<&'a str>,
    disclosure: PropertyDisclosure<'a>,
    tag: Option<&'a str>,
    expired_before: Option<u64>,
    archived: bool,
    sweep: Sweep<'a>,
}

/// The call, or `None` if the method is not one of these.
pub(super) fn call<'a>(
    method: Method,
    params: &mut Params<'a>,
) -> Result<Option<ObjectsCall<'a>>, CallError> {
    let ask: fn(ObjectsParams<'a>) -> ObjectsOperation<'a> = match method {
        Method::ObjectsAdd => |said| {
            let ObjectsParams {
                payload: objects,
                tags,
                expires_s,
                idempotency_key,
                subjects,
                ..
            } = said;
            ObjectsOperation::Add(AddObjects {
                objects,
                tags,
                expires_s,
                idempotency_key,
                subjects,
            })
        },
        Method::ObjectsGet => |said| ObjectsOperation::Get {
            ids: said.ids,
            disclosure: said.disclosure,
        },
        Method::ObjectsUpdate => |said| ObjectsOperation::Update {
            changes: said.payload,
        },
        Method::ObjectsDelete => |said| ObjectsOperation::Delete {
            ids: said.ids,
            versions: said.versions,
        },
        Method::ObjectsQuery => |said| ObjectsOperation::Query {
            clauses: said.payload,
            disclosure: said.disclosure,
            after: said.sweep.after,
            limit: said.sweep.limit,
        },
        Method::ObjectsList => |said| ObjectsOperation::List {
            tag: said.tag,
            expired_before: said.expired_before,
            archived: said.archived,
            disclosure: said.disclosure,
            after: said.sweep.after,
            limit: said.sweep.limit,
        },
        Method::ObjectsExpire => |said| ObjectsOperation::Expire {
            ids: said.ids,
            expires_s: said.expires_s,
        },
        Method::ObjectsArchive => |said| ObjectsOperation::Archive(said.sweep),
        Method::ObjectsPrune => |said| ObjectsOperation::Prune(said.sweep),
        _ => return Ok(None),
    };
    let said = read(method, params)?;
    Ok(Some(ObjectsCall {
        map: said.map,
        ask: ask(said),
    }))
}

/// The params. The method's table has refused what is not its own.
fn read<'a>(method: Method, params: &mut Params<'a>) -> Result<ObjectsParams<'a>, CallError> {
    let is_page = matches!(method, Method::ObjectsQuery | Method::ObjectsList);
    let limit_max = if is_page { OBJECTS_MAX } else { SWEEP_ROWS_MAX };
    let mut said = ObjectsParams::default();
    while let Some(param) = params.next()? {
        match (param.name, method) {
            ("app", _) => said.map.app = params.app(param)?,
            ("collection", _) => said.map.collection = params.app(param)?,
            ("deadline_ms", _) => said.map.deadline_ms = Some(params.deadline(param)?),
            ("min_generation", _) => said.map.min_generation = Some(params.integer(param)?),
            ("reason", _) => said.map.reason = Some(params.reason(param)?),
            ("traceparent", _) => {
                said.map.traceparent = Some(params.text(param, TRACEPARENT_BYTES_MAX)?)
            }
            ("payload", Method::ObjectsQuery) => said.payload = items(param, params, CLAUSES_MAX)?,
            ("payload", _) => said.payload = items(param, params, OBJECTS_MAX)?,
            ("ids", _) => said.ids = params.texts(param, OBJECTS_MAX, TOKEN_BYTES_MAX)?,
            ("versions", _) => said.versions = Some(versions(param, params)?),
            ("tags", _) => said.tags = params.tags(param)?,
            ("expires_s", Method::ObjectsExpire) => {
                said.expires_s = params.or_nil(|params| params.within(param, 0..=EXPIRES_S_MAX))?;
            }
            ("expires_s", _) => said.expires_s = Some(params.within(param, 1..=EXPIRES_S_MAX)?),
            ("idempotency_key", _) => {
                let key = params.bytes(param, IDEMPOTENCY_KEY_BYTES_MAX)?;
                said.idempotency_key = Some(
                    Some(key)
                        .filter(|key| !key.is_empty())
                        .ok_or(breaks(param))?,
                );
            }
            ("subjects", _) => {
                said.subjects = params.texts(param, OBJECTS_MAX, SUBJECT_BYTES_MAX)?
            }
            ("properties", _) => {
                said.disclosure.properties =
                    Some(params.texts(param, PROPERTIES_MAX, NAME_BYTES_MAX)?);
            }
            ("masked", _) => said.disclosure.masked = params.flag(param)?,
            ("tag", _) => said.tag = Some(params.tag(param)?),
            ("expired_before", _) => said.expired_before = Some(params.integer(param)?),
            ("archived", _) => said.archived = params.flag(param)?,
            ("expired_s" | "archived_s", _) => said.sweep.older_s = Some(params.integer(param)?),
            ("dry_run", _) => said.sweep.dry_run = params.flag(param)?,
            ("after", _) => said.sweep.after = Some(params.text(param, CURSOR_BYTES_MAX)?),
            ("limit", _) => {
                said.sweep.limit = Some(params.within(param, 1..=limit_max as u64)? as u32)
            }
            (other, _) => return Err(params.unknown(other.as_bytes())),
        }
    }
    if said
        .versions
        .as_ref()
        .is_some_and(|versions| versions.len() != said.ids.len())
    {
        return Err(CallError::BreaksRule {
            key: "versions",
            rule: "as many as ids, each 1 or more",
        });
    }
    Ok(said)
}

/// The call on a data subject, or `None` if the method is not one of these.
pub(super) fn subject_call<'a>(
    method: Method,
    params: &mut Params<'a>,
) -> Result<Option<SubjectsCall<'a>>, CallError> {
    if !matches!(
        method,
        Method::SubjectsFind | Method::SubjectsExport | Method::SubjectsErase
    ) {
        return Ok(None);
    }
    let (mut map, mut name, mut by_id) = (TokenMap::default(), "", false);
    let (mut after, mut limit, mut version, mut created) = (None, None, None, None);
    while let Some(param) = params.next()? {
        match param.name {
            "app" => map.app = params.app(param)?,
            "subject" => name = params.subject(param)?,
            "by_id" => by_id = params.flag(param)?,
            "version" => version = Some(params.integer(param)?),
            "created" => created = Some(params.integer(param)?),
            "after" => after = Some(params.text(param, CURSOR_BYTES_MAX)?),
            "limit" => limit = Some(params.within(param, 1..=OBJECTS_MAX as u64)? as u32),
            "deadline_ms" => map.deadline_ms = Some(params.deadline(param)?),
            "min_generation" => map.min_generation = Some(params.integer(param)?),
            "reason" => map.reason = Some(params.reason(param)?),
            "traceparent" => map.traceparent = Some(params.text(param, TRACEPARENT_BYTES_MAX)?),
            other => return Err(params.unknown(other.as_bytes())),
        }
    }
    let is_id =
        name.len() == SUBJECT_ID_DIGITS && name.bytes().all(|digit| digit.is_ascii_hexdigit());
    let subject = match by_id {
        false => SubjectName::Name(name),
        true if is_id => SubjectName::Id(name),
        true => {
            return Err(CallError::BreaksRule {
                key: "subject",
                rule: "32 hexadecimal digits with by_id",
            });
        }
    };
    let ask = match method {
        Method::SubjectsFind => SubjectsOperation::Find,
        Method::SubjectsExport => SubjectsOperation::Export { after, limit },
        _ => SubjectsOperation::Erase { version, created },
    };
    let TokenMap {
        app,
        deadline_ms,
        min_generation,
        reason,
        traceparent,
        ..
    } = map;
    let target = SubjectTarget {
        app,
        subject,
        deadline_ms,
        min_generation,
        reason,
        traceparent,
    };
    Ok(Some(SubjectsCall { target, ask }))
}

/// A payload that is an array of 1 to `count_max` values, which are read later.
fn items<'a>(
    param: &'static Param,
    params: &mut Params<'a>,
    count_max: usize,
) -> Result<&'a [u8], CallError> {
    let payload = params.payload()?;
    match TokenReader::new(payload).token() {
        Ok(Token::Array(count)) if (1..=count_max).contains(&(count as usize)) => Ok(payload),
        Ok(Token::Array(_)) => Err(breaks(param)),
        _ => Err(CallError::WrongType {
            key: param.name,
            types: param.types,
        }),
    }
}

fn versions(param: &'static Param, params: &mut Params<'_>) -> Result<Vec<u64>, CallError> {
    let count = params.array_len(param)? as usize;
    if !(1..=OBJECTS_MAX).contains(&count) {
        return Err(breaks(param));
    }
    (0..count)
        .map(|_| params.within(param, 1..=u64::MAX))
        .collect()
}

/// Reads an array of properties.
pub(super) fn properties<'a>(
    param: &'static Param,
    params: &mut Params<'a>,
) -> Result<Vec<PropertySpec<'a>>, CallError> {
    let count = params.array_len(param)? as usize;
    if !(1..=PROPERTIES_MAX).contains(&count) {
        return Err(breaks(param));
    }
    (0..count)
        .map(|index| property(index, param, params))
        .collect()
}

fn property<'a>(
    index: usize,
    param: &'static Param,
    params: &mut Params<'a>,
) -> Result<PropertySpec<'a>, CallError> {
    let mut spec = PropertySpec::new("", "");
    let mut seen: Vec<&str> = Vec::new();
    for _ in 0..params.map_len(param)? {
        let key = params.text(param, NAME_BYTES_MAX)?;
        if seen.contains(&key) {
            return Err(CallError::DuplicateKey { key: param.name });
        }
        seen.push(key);
        match key {
            "name" => spec.name = params.text(param, NAME_BYTES_MAX)?,
            "type" => spec.property_type = params.text(param, NAME_BYTES_MAX)?,
            "nullable" => spec.nullable = params.flag(param)?,
            "unique" => spec.unique = params.flag(param)?,
            "index" => spec.index = params.flag(param)?,
            "bits" => {
                spec.bits = params
                    .or_nil(|params| params.within(param, 8..=16))?
                    .map(|bits| bits as u8)
            }
            "prefixes" => spec.prefixes = prefixes(param, params)?,
            "accept_leak" => spec.accept_leak = params.flag(param)?,
            "encrypted" => spec.encrypted = params.flag(param)?,
            "description" => spec.description = params.text(param, DESCRIPTION_BYTES_MAX)?,
            _ => {
                let key = cleaned(key.as_bytes());
                return Err(params.unknown_in(format!("{}[{index}].{key}", param.name)));
            }
        }
    }
    if spec.name.is_empty() || spec.property_type.is_empty() {
        return Err(breaks(param));
    }
    Ok(spec)
}

fn prefixes(param: &'static Param, params: &mut Params<'_>) -> Result<Vec<u8>, CallError> {
    let count = params.array_len(param)? as usize;
    if count > PREFIXES_MAX {
        return Err(breaks(param));
    }
    (0..count)
        .map(|_| params.within(param, 1..=16).map(|length| length as u8))
        .collect()
}
