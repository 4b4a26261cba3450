//! Lists that come along, in `lists/`: common words, put together for this crate. `full_names` pairs two of them.

use std::sync::LazyLock;

/// Names of the lists.
pub(crate) const NAMES: [&str; 6] = ["first_names", "last_names", "full_names", "cities", "streets", "companies"];

/// Entries on lines of a file, found once.
type Lines = LazyLock<Vec<&'static str>>;

/// One list.
#[derive(Clone, Copy)]
pub(crate) enum Bundled {
    Words(&'static Lines),
    /// Every entry of the first with every one of the second, a space between them.
    Pairs(&'static Lines, &'static Lines),
}

static FIRST_NAMES: Lines = LazyLock::new(|| include_str!("../lists/first_names.txt").lines().collect());
static LAST_NAMES: Lines = LazyLock::new(|| include_str!("../lists/last_names.txt").lines().collect());
static CITIES: Lines = LazyLock::new(|| include_str!("../lists/cities.txt").lines().collect());
static STREETS: Lines = LazyLock::new(|| include_str!("../lists/streets.txt").lines().collect());
static COMPANIES: Lines = LazyLock::new(|| include_str!("../lists/companies.txt").lines().collect());

/// The entries of a list.
pub(crate) fn find(name: &str) -> Option<Bundled> {
    Some(match name {
        "first_names" => Bundled::Words(&FIRST_NAMES),
        "last_names" => Bundled::Words(&LAST_NAMES),
        "full_names" => Bundled::Pairs(&FIRST_NAMES, &LAST_NAMES),
        "cities" => Bundled::Words(&CITIES),
        "streets" => Bundled::Words(&STREETS),
        "companies" => Bundled::Words(&COMPANIES),
        _ => return None,
    })
}

impl Bundled {
    /// How many entries there are.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Words(words) => words.len(),
            Self::Pairs(first, last) => first.len() * last.len(),
        }
    }

    /// Entry `at`, in two parts of which the second is empty or stands behind a space.
    pub(crate) fn get(self, at: usize) -> (&'static str, &'static str) {
        match self {
            Self::Words(words) => (words[at], ""),
            Self::Pairs(first, last) => (first[at / last.len()], last[at % last.len()]),
        }
    }
}

impl std::fmt::Debug for Bundled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} entries", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_list_has_entries_none_of_them_twice() {
        for name in NAMES {
            let list = find(name).expect("a name of a list");
            assert!(list.len() >= 200, "{name}");
            let entries: HashSet<_> = (0..list.len()).map(|at| list.get(at)).collect();
            assert_eq!(entries.len(), list.len(), "{name}");
            for (first, second) in entries {
                assert_eq!((first.trim(), second.trim()), (first, second), "{name}");
                assert!(!first.is_empty() && first.len() + second.len() <= 40, "{name}: {first}");
            }
        }
        assert!(find("first_name").is_none());
    }
}
