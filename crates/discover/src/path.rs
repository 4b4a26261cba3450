//! Paths to the fields of documents, and maps, whose keys are data.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::sample::Sample;
use crate::values::{is_data_key, is_listed_name, is_value_like};

/// Number of keys from which an object is a map of data.
const MAP_KEYS_MIN: usize = 100;
/// Number of keys from which an object whose keys are mostly names of persons is a map.
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
    let is_map = |_: &[PathPart], keys: &BTreeSet<String>| {
        let is_personal = are_personal(keys);
        let is_map = is_personal || keys.len() >= MAP_KEYS_MIN || keys.iter().any(|key| is_data_key(key));
        is_map.then_some(is_personal)
    };
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

/// Replaces the keys of maps by wildcards, from the outermost objects on. `is_map` gets the path of an object and its keys,
/// and returns true within `Some` if its keys have the form of personal data. Returns the paths of maps.
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
                keys.entry(parts[..level].to_vec()).or_default().insert(key.clone());
            }
        }
        for (prefix, keys) in keys {
            let Some(is_personal) = is_map(&prefix, &keys) else { continue };
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
    let are_names =
        || keys.len() >= NAME_KEYS_MIN && keys.iter().filter(|key| is_listed_name(key)).count() * 2 >= keys.len();
    keys.iter().any(|key| is_value_like(key)) || are_names()
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
