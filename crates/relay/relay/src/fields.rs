//! Values outside of bodies: headers, query parameters and path segments. Also the context bytes of
//! rules.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use sealwire_relay_body::{Hole, Piece, Place, name, name_in_any_reading};

use crate::engine::{Engine, Scope, join_frames};
use crate::error::{Failure, Reason};
use crate::route::{Context, Direction, Rule};
use crate::route_table::Segments;

/// Error text for a query parameter with the name of a value that a rule selects elsewhere.
const ELSEWHERE: &str = "a query with the name of a value that a rule selects in the body: some frameworks join query and body";

/// Returns the context bytes of each rule, from the request's headers and path segments.
///
/// # Errors
/// A header with the context of a rule is absent or occurs twice.
pub fn contexts(
    rules: &[Rule],
    headers: &HeaderMap,
    segments: &Segments,
) -> Result<Vec<Box<[u8]>>, Failure> {
    rules
        .iter()
        .map(|rule| context_bytes(rule, headers, segments))
        .collect()
}

fn context_bytes(
    rule: &Rule,
    headers: &HeaderMap,
    segments: &Segments,
) -> Result<Box<[u8]>, Failure> {
    match &rule.context {
        Context::None => Ok(Box::default()),
        Context::Literal(bytes) => Ok(bytes.clone()),
        Context::Segment(name) => Ok(segments
            .value(name)
            .unwrap_or_default()
            .into_owned()
            .into_bytes()
            .into()),
        Context::Header(name) => {
            let mut values = headers.get_all(name).iter();
            match (values.next(), values.next()) {
                (Some(value), None) => Ok(value.as_bytes().into()),
                _ => Err(Failure::request(Reason::Invalid(
                    "the header of a context is absent or occurs twice",
                ))),
            }
        }
    }
}

/// Replaces the values of headers that rules name.
///
/// # Errors
/// The failure of a value, or a header name that some readers interpret as one in a rule.
pub async fn edit_headers(
    engine: &Engine,
    scope: &Scope,
    headers: &mut HeaderMap,
) -> Result<bool, Failure> {
    check_header_names(scope.direction(), headers).map_err(|reason| scope.failure(reason))?;

    let mut names = Vec::<HeaderName>::new();
    let mut holes = Vec::new();
    for (at, rule) in scope.direction().rules.iter().enumerate() {
        let mut found = false;
        for name in rule
            .headers
            .iter()
            .filter(|name| headers.contains_key(*name))
        {
            if names.contains(name) {
                continue;
            }
            for value in headers.get_all(name) {
                let text = value.to_str().map_err(|_| {
                    scope.failure(Reason::Invalid("a selected header is not ASCII"))
                })?;
                names.push(name.clone());
                holes.push(Piece::Hole(Hole::of_text(at, text, Place::Header)));
                found = true;
            }
        }
        if is_missing(rule, found, !rule.headers.is_empty()) {
            return Err(scope.failure(Reason::Missing));
        }
    }

    if holes.is_empty() {
        return Ok(false);
    }

    names.iter().for_each(|name| drop(headers.remove(name)));
    for (name, text) in names
        .into_iter()
        .zip(replace_single_values(engine, scope, holes).await?)
    {
        let value = HeaderValue::from_maybe_shared(text);
        let mut value =
            value.map_err(|_| scope.failure(Reason::Invalid("a value does not fit a header")))?;
        // Sensitive: the value must not enter a compression table or a debug text.
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(true)
}

/// Rejects headers that CGI-like gateways map to the same variable as a selected header, such as
/// `X_Card` and `X-Card`.
fn check_header_names(direction: &Direction, headers: &HeaderMap) -> Result<(), Reason> {
    if direction.sealed_headers.is_empty() {
        return Ok(());
    }
    for present in headers.keys() {
        // Gateways replace each character that cannot be in the name of a variable with one
        // character.
        let plain = present
            .as_str()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        if direction.sealed_headers.matches(&plain)
            && !direction
                .rules
                .iter()
                .any(|rule| rule.headers.contains(present))
        {
            return Err(Reason::Invalid(name::ALIAS));
        }
    }
    Ok(())
}

/// Returns path and query with replaced values of path segments and query parameters. Borrowed if
/// no rule selects any.
///
/// # Errors
/// The failure of a value, or a query that some readers interpret as one with a selected parameter.
pub async fn edit_target<'a>(
    engine: &Engine,
    scope: &Scope,
    segments: &Segments,
    path: &'a str,
    query: Option<&'a str>,
) -> Result<Cow<'a, str>, Failure> {
    let pieces = target_pieces(scope.direction(), segments, path, query)
        .map_err(|reason| scope.failure(reason))?;
    if pieces.iter().all(|piece| piece.hole().is_none()) {
        return Ok(query.map_or(Cow::Borrowed(path), |query| {
            Cow::Owned(format!("{path}?{query}"))
        }));
    }
    let edited = join_frames(engine.replace_values(scope, pieces).await?);
    let edited = String::from_utf8(edited.into())
        .map_err(|_| scope.failure(Reason::Invalid("a value does not fit a path")))?;
    Ok(Cow::Owned(edited))
}

/// Finds the values of path segments and query parameters. Returns no pieces if no rule is for
/// them.
///
/// # Errors
/// A part that is ambiguous, cannot be read, or is missing.
pub fn target_pieces(
    direction: &Direction,
    segments: &Segments,
    path: &str,
    query: Option<&str>,
) -> Result<Vec<Piece>, Reason> {
    let rules = &direction.rules;
    let is_read = rules.iter().any(|rule| !rule.query.is_empty());
    if !is_read {
        check_unread_query(direction, query.unwrap_or_default())?;
    }
    if !is_read && rules.iter().all(|rule| rule.segments.is_empty()) {
        return Ok(Vec::new());
    }

    let mut pieces = Vec::new();
    let mut found = vec![false; rules.len()];
    for (at, part) in path.split('/').enumerate() {
        if at > 0 {
            pieces.push(Piece::Literal(Bytes::from_static(b"/")));
        }
        let rule = segments.name_at(at).and_then(|name| {
            rules
                .iter()
                .position(|rule| rule.segments.iter().any(|n| **n == *name))
        });
        pieces.push(target_piece(part, rule, Place::Segment, &mut found)?);
    }

    // Some readers also split a query at `;`.
    if is_read && query.is_some_and(|query| query.contains(';')) {
        return Err(Reason::Ambiguous(
            "a query with a semicolon: escape it as %3B",
        ));
    }
    for (at, pair) in query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .enumerate()
    {
        pieces.push(Piece::Literal(Bytes::from_static(if at == 0 {
            b"?"
        } else {
            b"&"
        })));

        let (name, value) = pair
            .split_once('=')
            .map_or((pair, None), |(name, value)| (name, Some(value)));
        let rule = if is_read {
            rule_of_parameter(direction, name)?
        } else {
            None
        };
        pieces.push(Piece::Literal(Bytes::copy_from_slice(name.as_bytes())));
        let Some(value) = value else { continue };
        pieces.push(Piece::Literal(Bytes::from_static(b"=")));
        pieces.push(target_piece(value, rule, Place::Query, &mut found)?);
    }

    for (rule, found) in rules.iter().zip(&found) {
        if is_missing(
            rule,
            *found,
            !rule.query.is_empty() || !rule.segments.is_empty(),
        ) {
            return Err(Reason::Missing);
        }
    }
    Ok(pieces)
}

/// Checks a query in which no rule selects a parameter. Rejects the name of a value that a rule
/// seals elsewhere, because some frameworks join query and body. Every other query passes
/// unchanged.
fn check_unread_query(direction: &Direction, query: &str) -> Result<(), Reason> {
    for pair in query.split(['&', ';', '?']) {
        let raw = pair.split('=').next().unwrap_or_default();
        let sealing_rule =
            name_in_any_reading(raw.as_bytes(), |name| unaccepted_rule(direction, name));
        if sealing_rule.is_some() {
            return Err(Reason::Invalid(ELSEWHERE));
        }
    }
    Ok(())
}

/// Returns the first rule that seals a name, unless the route accepts the name in queries.
fn unaccepted_rule(direction: &Direction, name: &str) -> Option<usize> {
    let rules = direction.guard.rules_of(name);
    rules
        .first()
        .copied()
        .filter(|_| !is_accepted_in_query(direction, name))
}

fn is_accepted_in_query(direction: &Direction, name: &str) -> bool {
    direction
        .accepted_query
        .iter()
        .any(|accepted| **accepted == *name)
}

fn selects_parameter(rule: &Rule, name: &str) -> bool {
    rule.query.iter().any(|selected| **selected == *name)
}

/// Returns the rule that selects a query parameter by its encoded name.
fn rule_of_parameter(direction: &Direction, raw: &str) -> Result<Option<usize>, Reason> {
    let rules = &direction.rules;
    let name = decode_name(raw).ok_or(Reason::Ambiguous(
        "a query with a malformed name of a parameter",
    ))?;
    let rule = rules.iter().position(|rule| selects_parameter(rule, &name));
    let is_sealed = rules
        .iter()
        .any(|rule| selects_parameter(rule, &name) && !rule.action.reveals());
    if is_sealed || is_accepted_in_query(direction, &name) {
        return Ok(rule);
    }

    let sealed = direction.guard.rules_of(&name);
    if sealed.iter().any(|sealed| !rules[*sealed].query.is_empty()) {
        return Err(Reason::Invalid(name::ALIAS));
    }
    // If only a rule for bodies seals the name, a rule that names the parameter decides.
    if rule.is_none() && !sealed.is_empty() {
        return Err(Reason::Invalid(ELSEWHERE));
    }
    if rule.is_none() && direction.guard.is_unclear(&name) {
        return Err(Reason::Invalid(name::UNCLEAR));
    }
    Ok(rule)
}

/// Returns a part of the target: a hole if a rule selects it and it has a value.
fn target_piece(
    raw: &str,
    rule: Option<usize>,
    place: Place,
    found: &mut [bool],
) -> Result<Piece, Reason> {
    let Some(rule) = rule.filter(|_| !raw.is_empty()) else {
        return Ok(Piece::Literal(Bytes::copy_from_slice(raw.as_bytes())));
    };
    let raw_text = if matches!(place, Place::Query) {
        raw.replace('+', " ")
    } else {
        raw.to_owned()
    };
    let text = percent_decode_str(&raw_text).decode_utf8();
    let text =
        text.map_err(|_| Reason::Invalid("a selected part of the path or query is not UTF-8"))?;
    if let Some(found) = found.get_mut(rule) {
        *found = true;
    }
    Ok(Piece::Hole(Hole {
        source: Bytes::copy_from_slice(raw.as_bytes()),
        ..Hole::of_text(rule, &text, place)
    }))
}

/// Decodes the name of a parameter. Returns `None` if an escape is malformed, or if the result is
/// not UTF-8.
fn decode_name(name: &str) -> Option<String> {
    if !name.split('%').skip(1).all(starts_with_two_digits) {
        return None;
    }
    percent_decode_str(&name.replace('+', " "))
        .decode_utf8()
        .ok()
        .map(Cow::into_owned)
}

fn starts_with_two_digits(text: &str) -> bool {
    text.len() >= 2 && text.bytes().take(2).all(|byte| byte.is_ascii_hexdigit())
}

/// Returns true if a rule requires a value that was not found in its places.
const fn is_missing(rule: &Rule, found: bool, has_places: bool) -> bool {
    rule.required && has_places && rule.body.is_none() && !found
}

/// Replaces single holes. Returns one text per hole.
async fn replace_single_values(
    engine: &Engine,
    scope: &Scope,
    holes: Vec<Piece>,
) -> Result<Vec<Bytes>, Failure> {
    // A header cannot contain a line feed, so line feeds separate the values.
    let pieces = holes
        .into_iter()
        .flat_map(|hole| [hole, Piece::Literal(Bytes::from_static(b"\n"))])
        .collect();
    let all = join_frames(engine.replace_values(scope, pieces).await?);
    let mut values = Vec::new();
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', &all) {
        values.push(all.slice(start..end));
        start = end + 1;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_payload::Selection;

    use crate::route::{AcceptedNames, Action, Containers, Unneeded};

    fn rule(action: Action, headers: &[&'static str], query: &[&str]) -> Rule {
        Rule {
            action,
            app: "a".into(),
            context: Context::None,
            formats: Vec::new(),
            body: None,
            select: Vec::new(),
            headers: headers
                .iter()
                .map(|name| HeaderName::from_static(name))
                .collect(),
            query: query.iter().map(|name| (*name).into()).collect(),
            segments: Vec::new(),
            required: false,
            containers: Containers::default(),
            unneeded: Unneeded::default(),
        }
    }

    fn direction(rules: Vec<Rule>, accepted: AcceptedNames) -> Direction {
        Direction::new(rules, false, false, 0, accepted).unwrap()
    }

    /// Values that are selected in a query; `None` if the query is rejected.
    fn selected(rules: Vec<Rule>, query: &str) -> Option<Vec<String>> {
        selected_by(&direction(rules, AcceptedNames::default()), query)
    }

    fn selected_by(direction: &Direction, query: &str) -> Option<Vec<String>> {
        let pieces = target_pieces(direction, &Segments::default(), "/a", Some(query)).ok()?;
        let source: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| piece.source().to_vec())
            .collect();
        assert!(
            pieces.is_empty() || source == format!("/a?{query}").into_bytes(),
            "{query}"
        );
        Some(
            pieces
                .iter()
                .filter_map(Piece::hole)
                .filter_map(|hole| hole.text().map(str::to_owned))
                .collect(),
        )
    }

    #[test]
    fn parameters_that_some_readers_take_for_a_selected_one_are_rejected() {
        let rules = || vec![rule(Action::Encrypt, &[], &["ssn", "card[number]"])];
        for (query, expected) in [
            ("ssn=1", Some(vec!["1"])),
            ("a=1&ssn=x+%20y&s%73n=2", Some(vec!["x  y", "2"])),
            (
                "card[number]=1&card%5Bnumber%5D=2&card[expiry]=3",
                Some(vec!["1", "2"]),
            ),
            ("a=%zz&b=%ff&ssn&ssn=&x[]=1&y.z=2&session=3", Some(vec![])),
            ("a=1;ssn=2", None),
            ("a=1;b", None),
            ("SSN=1", None),
            ("ssn[]=1", None),
            ("ssn.x=1", None),
            ("%20ssn=1", None),
            ("+ssn=1", None),
            ("ssn%00x=1", None),
            ("a%00=1", None),
            ("?ssn=1", None),
            ("%C5%BFsn=1", None),
            ("%2573sn=1", None),
            ("%u0073sn=1", None),
            ("s%=1", None),
            ("%ffssn=1", None),
            ("card[number]x=1", None),
            ("card.number=1", None),
        ] {
            let expected = expected.map(|texts| texts.into_iter().map(str::to_owned).collect());
            assert_eq!(selected(rules(), query), expected, "{query}");
        }
        // Routes without rules for queries, and rules that reveal, leave other spellings alone.
        assert_eq!(
            selected(vec![rule(Action::Encrypt, &["x-card"], &[])], "a=1;SSN=%zz"),
            Some(vec![])
        );
        assert_eq!(
            selected(vec![rule(Action::Decrypt, &[], &["ssn"])], "SSN=1&ssn=2"),
            Some(vec!["2".to_owned()])
        );
    }

    #[test]
    fn parameters_with_the_name_of_a_sealed_value_of_the_body_are_rejected() {
        let in_body = |action: Action, path: &str| {
            let body = Selection::parse([path]).unwrap();
            Rule {
                body: Some(body.into()),
                ..rule(action, &[], &[])
            }
        };
        for (path, query, is_ok) in [
            ("$.ssn", "ssn=1", false),
            ("$.ssn", "a=1&SSN=1", false),
            ("$.ssn", "a=1;ssn=1", false),
            ("$.ssn", "?ssn=1", false),
            ("$.ssn", "s%73n=1", false),
            ("$.ssn", "ssn%00x=1", false),
            ("$.ssn", "ssn[]=1", false),
            ("$.ssn", "!ssn=1&_ssn=on", false),
            ("$.ssn", "ssn", false),
            ("$.ssn", "ssns=1&x=ssn&assn=1&a=%zz&%ff=1&b;c&%00=1", true),
            ("$.user.ssn", "user[ssn]=1", false),
            ("$.user.ssn", "user.ssn=1", false),
            ("$.user.ssn", "User.SSN=1", false),
            (
                "$.user.ssn",
                "user=1&ssn=2&userssn=3&user_ssn=4&user[id]=5",
                true,
            ),
            ("$.users[*].ssn", "users[0][ssn]=1", false),
            ("$.users[*].ssn", "users[][ssn]=1", false),
            ("$.users[0].ssn", "users[0].ssn=1", false),
            ("$.users[*].ssn", "users[0][id]=1&users=2", true),
            ("$..ssn", "ssn=1", false),
            ("$..ssn", "user[ssn]=1", false),
            ("$..ssn", "a.b.SSN=1", false),
            ("$..ssn", "user[id]=1&a.b=2", true),
            ("$.users[*].ssn", "users[x][ssn]=1", false),
            ("$.users.*.ssn", "users.x.ssn=1", false),
            ("$.users[*]", "users[]=1", false),
            ("$.users[1].ssn", "users[1][ssn]=1", false),
        ] {
            assert_eq!(
                selected(vec![in_body(Action::Encrypt, path)], query).is_some(),
                is_ok,
                "{path} {query}"
            );
            // A rule for another parameter, which makes the query one that is read.
            let rules = vec![
                in_body(Action::Encrypt, path),
                rule(Action::Encrypt, &[], &["other"]),
            ];
            let is_read_alike = !query.contains(['%', ';']);
            assert!(
                !is_read_alike || selected(rules, query).is_some() == is_ok,
                "{path} {query}"
            );
            assert!(
                selected(vec![in_body(Action::Decrypt, path)], query).is_some(),
                "{path} {query}"
            );
        }
        // A rule for the parameter decides on it, and the operator can accept it.
        let both = |action| {
            vec![
                in_body(Action::Encrypt, "$.ssn"),
                rule(action, &[], &["ssn"]),
            ]
        };
        assert_eq!(
            selected(both(Action::Encrypt), "ssn=1"),
            Some(vec!["1".into()])
        );
        assert_eq!(
            selected(both(Action::Decrypt), "ssn=1"),
            Some(vec!["1".into()])
        );
        assert_eq!(selected(both(Action::Decrypt), "SSN=1"), None);
        let revealed = vec![
            rule(Action::Encrypt, &[], &["ssn"]),
            rule(Action::Decrypt, &[], &["SSN"]),
        ];
        assert_eq!(selected(revealed, "SSN=1"), None);
        for others in [&[][..], &["other"]] {
            let accepted = AcceptedNames {
                names: vec!["_ssn".into()],
                query: vec!["ssn".into()],
            };
            let rules = vec![
                in_body(Action::Encrypt, "$.ssn"),
                rule(Action::Encrypt, &[], others),
            ];
            let accepting = direction(rules, accepted);
            for (query, is_ok) in [
                ("ssn=1&_ssn=2", true),
                ("Ssn=1", false),
                ("__ssn=1", false),
                ("ssn[]=1", false),
            ] {
                assert_eq!(selected_by(&accepting, query).is_some(), is_ok, "{query}");
            }
        }
    }

    #[test]
    fn headers_that_some_readers_take_for_a_selected_one_are_rejected() {
        for (action, name, is_ok) in [
            (Action::Encrypt, "x-card", true),
            (Action::Encrypt, "x-cards", true),
            (Action::Encrypt, "card", true),
            (Action::Encrypt, "x_card", false),
            (Action::Encrypt, "x.card", false),
            (Action::Encrypt, "x*card", false),
            (Action::Encrypt, "xcard", false),
            (Action::Decrypt, "x_card", true),
        ] {
            let rules = vec![
                rule(Action::Encrypt, &[], &["x"]),
                rule(action, &["x-card", "x-other"], &[]),
            ];
            let rules = direction(rules, AcceptedNames::default());
            let headers = HeaderMap::from_iter([(
                HeaderName::from_static(name),
                HeaderValue::from_static("v"),
            )]);
            assert_eq!(
                check_header_names(&rules, &headers).is_ok(),
                is_ok,
                "{name}"
            );
        }
    }
}
