//! Looks up the rule of a path by a walk over a document with a single leaf at that path. So the
//! grammar of select paths has only one implementation.

use std::sync::Arc;

use sealwire_msgpack::write;
use sealwire_payload::{
    Budget, Containers, Field, Outcome, Path, PrioritizedEntry, Selection, Transform, Walk,
    WalkLimits,
};

use crate::{Rules, Target};

/// A segment of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// A key of a map.
    Key(String),
    /// An index of an array.
    Index(u32),
}

impl Rules {
    /// Returns the path or column rule of a leaf at a path.
    #[must_use]
    pub fn rule_at(&self, path: &[PathStep]) -> Option<usize> {
        let rank = rank_at(self.selection(), &probe(path))?;
        self.ranked_rule(rank)
    }

    /// Returns the first path or column rule that matches none of the leaves at `paths`.
    #[must_use]
    pub fn unmet(&self, paths: &[Vec<PathStep>]) -> Option<usize> {
        let probes: Vec<_> = paths.iter().map(|path| probe(path)).collect();
        self.iter().position(|rule| {
            let entry = match &rule.target {
                Target::Path(path) => PrioritizedEntry::Path(path),
                Target::Column(name) => PrioritizedEntry::Key(name),
                Target::Kind(_) => return false,
            };

            // Cannot fail: the rules were parsed from the same entries.
            let Ok(selection) = Selection::ranked([entry]) else {
                return false;
            };
            let selection = Arc::new(selection);
            probes
                .iter()
                .all(|probe| rank_at(&selection, probe).is_none())
        })
    }
}

/// Returns the greatest array index in the brackets of a select path, outside of quotes.
#[must_use]
pub fn index_max(path: &str) -> Option<u32> {
    indexes(path).into_iter().max()
}

fn rank_at(selection: &Arc<Selection>, probe: &[u8]) -> Option<u32> {
    let mut judge = Judge { rank: None };
    let limits = WalkLimits {
        depth_max: usize::MAX,
        ..WalkLimits::default()
    };
    let mut walk = Walk::new(Arc::clone(selection), Containers::Descend, limits);
    // The probe is well formed, and the judge never fails.
    let _ = walk.advance(probe, &mut Vec::new(), &mut judge, Budget::UNLIMITED);
    judge.rank
}

struct Judge {
    rank: Option<u32>,
}

impl Transform for Judge {
    type Error = ();

    fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
        self.rank = field.rank();
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
        Ok(())
    }
}

/// Builds a document with a single leaf at `path`. Array elements before an index are nil, which a
/// walk skips. The leaf is a boolean, so no kind matches it.
fn probe(path: &[PathStep]) -> Vec<u8> {
    let mut out = Vec::new();
    for step in path {
        match step {
            PathStep::Key(key) => {
                write::map_len(&mut out, 1);
                write::str(&mut out, key);
            }
            PathStep::Index(index) => {
                write::array_len(&mut out, index.saturating_add(1));
                (0..*index).for_each(|_| write::nil(&mut out));
            }
        }
    }

    write::bool(&mut out, true);
    out
}

/// Returns the indexes in brackets of a select path, outside of quotes.
fn indexes(path: &str) -> Vec<u32> {
    let mut found = Vec::new();
    let mut quote = None;
    let mut digits = String::new();
    let mut in_bracket = false;
    let mut escaped = false;
    for c in path.chars() {
        if let Some(open) = quote {
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == open {
                quote = None;
            }
            continue;
        }

        match c {
            '[' => in_bracket = true,
            '\'' | '"' if in_bracket => quote = Some(c),
            _ if in_bracket && c.is_ascii_digit() => {
                digits.push(c);
                continue;
            }
            _ => {}
        }

        if let Ok(index) = std::mem::take(&mut digits).parse() {
            found.push(index);
        }
        if c == ']' {
            in_bracket = false;
        }
    }

    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_found_where_they_are_selectors() {
        for (path, expected) in [
            ("$.a", vec![]),
            ("$[3].b[12]", vec![3, 12]),
            ("$[0, 'x[7]', 5]", vec![0, 5]),
            (r#"$["1"]['\'[2]']"#, vec![]),
            ("$..[4]", vec![4]),
            ("$.a1[*]", vec![]),
        ] {
            assert_eq!(indexes(path), expected, "{path}");
        }
    }

    #[test]
    fn a_rule_that_names_no_leaf_is_found() {
        let rules = |path: &str| {
            let text = format!(
                "unknown = \"keep\"\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n[[rule]]\n{path}\nmask = \"redact\"\n"
            );
            Rules::from_toml(&text).expect("rules")
        };
        let key = |key: &str| PathStep::Key(key.to_owned());
        let paths = [
            vec![key("a"), key("b")],
            vec![key("tags"), PathStep::Index(0)],
        ];
        for (rule, unmet) in [
            ("path = \"$.a\"", None),
            ("path = \"$.a.b\"", None),
            ("path = \"$.*.b\"", None),
            ("path = \"$.tags[*]\"", None),
            ("column = \"b\"", None),
            ("path = \"$.a.c\"", Some(1)),
            ("path = \"$.b\"", Some(1)),
            ("column = \"c\"", Some(1)),
        ] {
            assert_eq!(rules(rule).unmet(&paths), unmet, "{rule}");
        }
    }
}
