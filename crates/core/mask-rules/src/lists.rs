//! The built-in lists in `lists/`: common words, compiled for this crate. `full_names` combines two
//! lists.

use std::sync::LazyLock;

/// Names of the built-in lists.
pub(crate) const NAMES: [&str; 6] = [
    "first_names",
    "last_names",
    "full_names",
    "cities",
    "streets",
    "companies",
];

/// The lines of a list file, split on first use.
type Lines = LazyLock<Vec<&'static str>>;

/// A built-in list.
#[derive(Clone, Copy)]
pub enum Bundled {
    Words(&'static Lines),
    /// Every entry of the first list combined with every entry of the second, separated by a space.
    Pairs(&'static Lines, &'static Lines),
}

static FIRST_NAMES: Lines =
    LazyLock::new(|| include_str!("../lists/first_names.txt").lines().collect());
static LAST_NAMES: Lines =
    LazyLock::new(|| include_str!("../lists/last_names.txt").lines().collect());
static CITIES: Lines = LazyLock::new(|| include_str!("../lists/cities.txt").lines().collect());
static STREETS: Lines = LazyLock::new(|| include_str!("../lists/streets.txt").lines().collect());
static COMPANIES: Lines =
    LazyLock::new(|| include_str!("../lists/companies.txt").lines().collect());

/// Returns the list of that name.
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
    /// Returns the number of entries.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Words(words) => words.len(),
            Self::Pairs(first, last) => first.len() * last.len(),
        }
    }

    /// Returns entry `at` in two parts. The second part is empty or is to be separated by a space.
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

/// Returns the entries of a built-in list, for detectors. `full_names` and unknown names give no
/// entries.
pub fn builtin_entries(name: &str) -> impl Iterator<Item = &'static str> {
    let words = match find(name) {
        Some(Bundled::Words(words)) => words.as_slice(),
        Some(Bundled::Pairs(..)) | None => &[],
    };
    words.iter().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn lists_have_unique_entries() {
        for name in NAMES {
            let list = find(name).expect("a name of a list");
            assert!(list.len() >= 200, "{name}");
            let entries: HashSet<_> = (0..list.len()).map(|at| list.get(at)).collect();
            assert_eq!(entries.len(), list.len(), "{name}");
            for (first, second) in entries {
                assert_eq!((first.trim(), second.trim()), (first, second), "{name}");
                assert!(
                    !first.is_empty() && first.len() + second.len() <= 40,
                    "{name}: {first}"
                );
            }
        }
        assert!(find("first_name").is_none());
    }
}
