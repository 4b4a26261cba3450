//! Lists that come along: common words, put together for this crate, of no one person.

/// Names of the lists.
pub(crate) const NAMES: [&str; 1] = ["first_names"];

/// One list: entries on lines.
pub(crate) type Bundled = &'static [&'static str];

const FIRST_NAMES: Bundled = &["Anna", "José", "Łukasz", "Zoë"];

/// The entries of a list.
pub(crate) fn find(name: &str) -> Option<Bundled> {
    (name == "first_names").then_some(FIRST_NAMES)
}
