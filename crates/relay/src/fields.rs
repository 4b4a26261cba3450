//! Values outside of bodies: headers, query parameters and path segments, and the context bytes of rules.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use sealwire_relay_body::{Hole, Piece, Place};

use crate::engine::{Engine, Scope, joined};
use crate::error::{Failure, Reason};
use crate::route::{Context, Rule};
use crate::route_table::Segments;

/// Returns the context bytes of each rule, from the request's headers and path segments.
///
/// # Errors
/// A header that a rule takes its context from is absent or occurs twice.
pub fn contexts(rules: &[Rule], headers: &HeaderMap, segments: &Segments) -> Result<Vec<Box<[u8]>>, Failure> {
    let missing = || Failure::request(Reason::Invalid("the header of a context is absent or occurs twice"));
    let context = |rule: &Rule| match &rule.context {
        Context::None => Ok(Box::default()),
        Context::Literal(bytes) => Ok(bytes.clone()),
        Context::Segment(name) => Ok(segments.value(name).unwrap_or_default().into_owned().into_bytes().into()),
        Context::Header(name) => {
            let mut values = headers.get_all(name).iter();
            match (values.next(), values.next()) {
                (Some(value), None) => Ok(value.as_bytes().into()),
                _ => Err(missing()),
            }
        }
    };
    rules.iter().map(context).collect()
}

/// Replaces the values of headers that rules name.
///
/// # Errors
/// The failure of a value.
pub async fn edit_headers(engine: &Engine, scope: &Scope, headers: &mut HeaderMap) -> Result<bool, Failure> {
    let (mut names, mut holes) = (Vec::<HeaderName>::new(), Vec::new());
    for (at, rule) in scope.direction().rules.iter().enumerate() {
        let mut found = false;
        for name in rule.headers.iter().filter(|name| headers.contains_key(*name)) {
            if names.contains(name) {
                continue;
            }
            for value in headers.get_all(name) {
                let text =
                    value.to_str().map_err(|_| scope.failure(Reason::Invalid("a selected header is not ASCII")))?;
                names.push(name.clone());
                holes.push(Piece::Hole(Hole::of_text(at, text, Place::Header)));
                found = true;
            }
        }
        check_required(scope, rule, found, !rule.headers.is_empty())?;
    }
    if holes.is_empty() {
        return Ok(false);
    }
    names.iter().for_each(|name| drop(headers.remove(name)));
    for (name, text) in names.into_iter().zip(texts(engine, scope, holes).await?) {
        let value = HeaderValue::from_maybe_shared(text);
        let mut value = value.map_err(|_| scope.failure(Reason::Invalid("a value does not fit a header")))?;
        // Not in the table of a compressor, and not in a debug text.
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(true)
}

/// Returns path and query with the values of path segments and query parameters replaced; borrowed if no rule selects
/// one.
///
/// # Errors
/// The failure of a value.
pub async fn edit_target<'a>(
    engine: &Engine,
    scope: &Scope,
    segments: &Segments,
    path: &'a str,
    query: Option<&'a str>,
) -> Result<Cow<'a, str>, Failure> {
    let whole = || query.map_or(Cow::Borrowed(path), |query| Cow::Owned(format!("{path}?{query}")));
    let rules = &scope.direction().rules;
    if rules.iter().all(|rule| rule.query.is_empty() && rule.segments.is_empty()) {
        return Ok(whole());
    }
    let (mut pieces, mut found) = (Vec::new(), vec![false; rules.len()]);
    for (at, part) in path.split('/').enumerate() {
        if at > 0 {
            pieces.push(Piece::Literal(Bytes::from_static(b"/")));
        }
        let rule =
            segments.name_at(at).and_then(|name| position(rules, |rule| rule.segments.iter().any(|n| **n == *name)));
        pieces.push(piece(scope, part, rule, Place::Segment, &mut found)?);
    }
    for (at, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        pieces.push(Piece::Literal(Bytes::from_static(if at == 0 { b"?" } else { b"&" })));
        let (name, value) = pair.split_once('=').map_or((pair, None), |(name, value)| (name, Some(value)));
        pieces.push(Piece::Literal(Bytes::copy_from_slice(name.as_bytes())));
        let Some(value) = value else { continue };
        pieces.push(Piece::Literal(Bytes::from_static(b"=")));
        let decoded = decoded(name);
        let rule = position(rules, |rule| rule.query.iter().any(|name| **name == *decoded));
        pieces.push(piece(scope, value, rule, Place::Query, &mut found)?);
    }
    for (rule, found) in rules.iter().zip(&found) {
        check_required(scope, rule, *found, !rule.query.is_empty() || !rule.segments.is_empty())?;
    }
    if !found.contains(&true) {
        return Ok(whole());
    }
    let edited = joined(engine.replace(scope, pieces).await?);
    let edited =
        String::from_utf8(edited.into()).map_err(|_| scope.failure(Reason::Invalid("a value does not fit a path")))?;
    Ok(Cow::Owned(edited))
}

/// A part of the target: a hole if a rule selects it and it has a value.
fn piece(scope: &Scope, raw: &str, rule: Option<usize>, place: Place, found: &mut [bool]) -> Result<Piece, Failure> {
    let literal = || Piece::Literal(Bytes::copy_from_slice(raw.as_bytes()));
    let Some(rule) = rule.filter(|_| !raw.is_empty()) else { return Ok(literal()) };
    let raw_text = if matches!(place, Place::Query) { raw.replace('+', " ") } else { raw.to_owned() };
    let text = percent_decode_str(&raw_text).decode_utf8();
    let text = text.map_err(|_| scope.failure(Reason::Invalid("a selected part of the path or query is not UTF-8")))?;
    if let Some(found) = found.get_mut(rule) {
        *found = true;
    }
    Ok(Piece::Hole(Hole { source: Bytes::copy_from_slice(raw.as_bytes()), ..Hole::of_text(rule, &text, place) }))
}

fn decoded(name: &str) -> String {
    percent_decode_str(&name.replace('+', " ")).decode_utf8_lossy().into_owned()
}

fn position(rules: &[Rule], selects: impl Fn(&Rule) -> bool) -> Option<usize> {
    rules.iter().position(selects)
}

fn check_required(scope: &Scope, rule: &Rule, found: bool, is_for_these: bool) -> Result<(), Failure> {
    if rule.required && is_for_these && rule.body.is_none() && !found {
        return Err(scope.failure(Reason::Missing));
    }
    Ok(())
}

/// Replaces holes that stand alone. Returns one text per hole.
async fn texts(engine: &Engine, scope: &Scope, holes: Vec<Piece>) -> Result<Vec<Bytes>, Failure> {
    // A line feed occurs in no header, so it separates the values.
    let pieces = holes.into_iter().flat_map(|hole| [hole, Piece::Literal(Bytes::from_static(b"\n"))]).collect();
    let all = joined(engine.replace(scope, pieces).await?);
    let mut values = Vec::new();
    let mut begin = 0;
    for end in memchr::memchr_iter(b'\n', &all) {
        values.push(all.slice(begin..end));
        begin = end + 1;
    }
    Ok(values)
}
