//! Paths to the fields of documents, and maps, whose keys are data.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::sample::Sample;
use crate::values::{is_data_key, is_listed_name, is_value_like};

/// Number of keys from which an object is treated as a map of data.
const MAP_KEYS_MIN: usize = 100;
/// Number of keys from which an object whose keys are mostly names of persons is treated as a map.
const NAME_KEYS_MIN: usize = 3;

/// A step of a path. Elements of arrays and values of maps share one wildcard.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathPart {
    /// A key of an object, or the name of a column or struct member.
    Key(String),
    /// Any element or value.
    Any,
}

/// The fields after maps were recognized.
#[derive(Debug)]
pub struct MergedFields {
    /// Fields in the order of their first appearance.
    pub fields: Vec<(Vec<PathPart>, Sample)>,
    /// Paths of maps; true if keys have the form of personal data.
    pub maps: Vec<(Vec<PathPart>, bool)>,
}

/// Merges the fields of maps, whose keys are data.
#[must_use]
pub fn merge_maps(fields: Vec<(Vec<PathPart>, Sample)>) -> MergedFields {
    let (mut paths, samples): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let maps = hide_keys(&mut paths, is_map);
    let mut known: HashMap<Vec<PathPart>, usize> = HashMap::new();
    let mut fields: Vec<(Vec<PathPart>, Sample)> = Vec::new();
    for (parts, sample) in paths.into_iter().zip(samples) {
        match known.get(&parts) {
            Some(at) => fields[*at].1.merge(sample),
            None => {
                known.insert(parts.clone(), fields.len());
                fields.push((parts, sample));
            }
        }
    }
    MergedFields { fields, maps }
}

/// Returns `Some(true)` for a map whose keys have the form of personal data, and `Some(false)` for
/// another map.
fn is_map(_: &[PathPart], keys: &BTreeSet<String>) -> Option<bool> {
    let is_personal = are_personal(keys);
    let is_map =
        is_personal || keys.len() >= MAP_KEYS_MIN || keys.iter().any(|key| is_data_key(key));
    is_map.then_some(is_personal)
}

/// Replaces the keys of maps by wildcards, from the outermost objects inwards. `is_map` gets the
/// path and the keys of an object, and returns `Some(true)` for a map whose keys have the form of
/// personal data, and `Some(false)` for another map. Returns the paths of maps.
pub(crate) fn hide_keys(
    paths: &mut [Vec<PathPart>],
    is_map: impl Fn(&[PathPart], &BTreeSet<String>) -> Option<bool>,
) -> Vec<(Vec<PathPart>, bool)> {
    let mut maps = Vec::new();
    let depth = paths.iter().map(Vec::len).max().unwrap_or(0);
    for level in 0..depth {
        let mut keys: BTreeMap<Vec<PathPart>, BTreeSet<String>> = BTreeMap::new();
        for parts in &*paths {
            if let Some(PathPart::Key(key)) = parts.get(level) {
                keys.entry(parts[..level].to_vec())
                    .or_default()
                    .insert(key.clone());
            }
        }
        for (prefix, keys) in keys {
            let Some(is_personal) = is_map(&prefix, &keys) else {
                continue;
            };
            for parts in &mut *paths {
                if parts.len() > level && parts[..level] == prefix {
                    parts[level] = PathPart::Any;
                }
            }
            maps.push((prefix, is_personal));
        }
    }
    maps
}

/// Returns true if some keys have the form of personal data, or most are names of persons.
pub(crate) fn are_personal(keys: &BTreeSet<String>) -> bool {
    keys.iter().any(|key| is_value_like(key)) || are_names(keys)
}

/// Returns true if most of the keys are names of persons.
fn are_names(keys: &BTreeSet<String>) -> bool {
    keys.len() >= NAME_KEYS_MIN
        && keys.iter().filter(|key| is_listed_name(key)).count() * 2 >= keys.len()
}

/// Returns a path as rules write it, such as `$.people[*].email`.
#[must_use]
pub fn path_text(parts: &[PathPart]) -> String {
    let mut path = String::from("$");
    for part in parts {
        match part {
            PathPart::Key(key) => sealwire_payload::push_name(&mut path, key),
            PathPart::Any => path.push_str("[*]"),
        }
    }
    path
}

/// Returns the last key of a path, and the key before it.
#[must_use]
pub fn names_of(parts: &[PathPart]) -> (&str, &str) {
    let mut keys = parts.iter().rev().filter_map(|part| match part {
        PathPart::Key(key) => Some(key.as_str()),
        PathPart::Any => None,
    });
    (keys.next().unwrap_or(""), keys.next().unwrap_or(""))
}

/// Replaces the keys of maps by wildcards in paths such as `$.by['a@b.example'].n`, with the same
/// recognition of maps as discovery. Texts that are not paths stay unchanged.
#[must_use]
pub fn hide_map_keys(paths: &[String]) -> Vec<String> {
    let split: Vec<Vec<TextStep<'_>>> = paths
        .iter()
        .map(|path| split(path).unwrap_or_default())
        .collect();
    let mut parts: Vec<Vec<PathPart>> = split
        .iter()
        .map(|steps| steps.iter().map(|(part, _)| part.clone()).collect())
        .collect();
    hide_keys(&mut parts, is_map);

    let mut hidden = Vec::with_capacity(paths.len());
    for ((path, steps), parts) in paths.iter().zip(&split).zip(&parts) {
        let steps: String = steps
            .iter()
            .zip(parts)
            .map(|((old, text), new)| if old == new { *text } else { "[*]" })
            .collect();
        hidden.push(if steps.is_empty() {
            path.clone()
        } else {
            format!("${steps}")
        });
    }
    hidden
}

/// A step of a path with its text.
type TextStep<'t> = (PathPart, &'t str);

/// Splits a path in the notation of reports. Returns each step with its text, or `None` for other
/// texts.
fn split(path: &str) -> Option<Vec<TextStep<'_>>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let (part, length) = if let Some(name) = rest.strip_prefix('.') {
            let length = name.find(['.', '[']).unwrap_or(name.len());
            (PathPart::Key(name[..length].to_owned()), 1 + length)
        } else if let Some(quoted) = rest.strip_prefix("['") {
            let (key, length) = unquoted(quoted)?;
            (PathPart::Key(key), 2 + length)
        } else {
            (
                PathPart::Any,
                rest.starts_with('[').then(|| rest.find(']'))?? + 1,
            )
        };
        let (text, after) = rest.split_at_checked(length)?;
        steps.push((part, text));
        rest = after;
    }
    Some(steps)
}

/// Reads a quoted key up to its `']`. Returns the key, and the length including `']`.
fn unquoted(text: &str) -> Option<(String, usize)> {
    let mut key = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' => return text[at..].starts_with("']").then_some((key, at + 2)),
            // An escaped control character can be read as any character, since this does not affect
            // the decision.
            '\\' => key.push(chars.next()?.1),
            c => key.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_maps_are_hidden_in_paths() {
        let many: Vec<String> = (0..120)
            .map(|at| format!("$.wide.k{}", ["a", "b", "c"][at % 3].repeat(at / 3 + 1)))
            .collect();
        for (paths, expected) in [
            (
                &["$", "$.a.b", "$.a['b c'].d", "$.list[*].x", "$.list[0].y"][..],
                &["$", "$.a.b", "$.a['b c'].d", "$.list[*].x", "$.list[0].y"][..],
            ),
            (
                &["$.by['a@b.example'].n", "$.by.other.n", "$.x"],
                &["$.by[*].n", "$.by[*].n", "$.x"],
            ),
            (
                &["$.by['it\\'s a@b.example']", "$['a]b']"],
                &["$.by[*]", "$['a]b']"],
            ),
            (
                &["$.year['2023']", "$.year['2024'][*]"],
                &["$.year[*]", "$.year[*][*]"],
            ),
            (
                &["$.by.Anna", "$.by.Bob", "$.by.Emma"],
                &["$.by[*]", "$.by[*]", "$.by[*]"],
            ),
            // Columns and other texts stay.
            (
                &["people[*].email", "a@b.example", "$.a['b", "(other fields)"],
                &["people[*].email", "a@b.example", "$.a['b", "(other fields)"],
            ),
        ] {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            assert_eq!(hide_map_keys(&paths), expected, "{paths:?}");
        }
        assert!(hide_map_keys(&many).iter().all(|path| path == "$.wide[*]"));
    }
}
