//! Lists for pseudonyms: built-in lists and custom lists.

use std::sync::Arc;

use sealwire_msgpack::write;

use crate::limits::{LIST_ENTRIES_MAX, LIST_ENTRY_BYTES_MAX, LISTS_MAX, TEXT_BYTES_MAX};
use crate::lists;

/// Custom lists by name. A custom list takes precedence over a built-in list of the same name.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    own: Vec<Own>,
}

#[derive(Clone, Debug)]
struct Own {
    name: Box<str>,
    entries: Arc<[Box<str>]>,
}

/// The entries of one list.
#[derive(Clone, Debug)]
pub enum Entries {
    /// The entries of a custom list.
    Own(Arc<[Box<str>]>),
    /// The entries of a built-in list.
    Bundled(lists::Bundled),
}

impl Lists {
    /// Adds a custom list. Returns a message if the list is invalid.
    pub(super) fn add(&mut self, name: &str, entries: Vec<String>) -> Result<(), String> {
        if self.own.len() == LISTS_MAX {
            return Err(format!("more than {LISTS_MAX} lists"));
        }

        if !(1..=TEXT_BYTES_MAX).contains(&name.len()) {
            return Err(format!("its name is not 1 to {TEXT_BYTES_MAX} bytes"));
        }

        if self.own.iter().any(|own| *own.name == *name) {
            return Err("is there twice".to_owned());
        }

        if !(2..=LIST_ENTRIES_MAX).contains(&entries.len()) {
            return Err(format!(
                "has {} entries; it needs 2 to {LIST_ENTRIES_MAX}",
                entries.len()
            ));
        }

        if let Some(at) = entries
            .iter()
            .position(|entry| !(1..=LIST_ENTRY_BYTES_MAX).contains(&entry.len()))
        {
            return Err(format!(
                "entry {} is not 1 to {LIST_ENTRY_BYTES_MAX} bytes",
                at + 1
            ));
        }
        self.own.push(Own {
            name: name.into(),
            entries: entries.into_iter().map(String::into_boxed_str).collect(),
        });
        Ok(())
    }

    /// Returns the entries of a list.
    pub fn find(&self, name: &str) -> Option<Entries> {
        let own = self.own.iter().find(|own| *own.name == *name);
        own.map(|own| Entries::Own(Arc::clone(&own.entries)))
            .or_else(|| lists::find(name).map(Entries::Bundled))
    }

    /// Returns the names and entries of the custom lists.
    pub(super) fn own(&self) -> impl Iterator<Item = (&str, impl ExactSizeIterator<Item = &str>)> {
        self.own
            .iter()
            .map(|own| (&*own.name, own.entries.iter().map(|entry| &**entry)))
    }

    /// Returns all names, for messages.
    pub(super) fn names(&self) -> String {
        let own = self.own.iter().map(|own| &*own.name);
        let all: Vec<String> = own
            .chain(lists::NAMES)
            .map(|name| format!("`{name}`"))
            .collect();
        all.join(", ")
    }
}

impl Entries {
    /// Returns the number of entries; never 0.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Own(entries) => entries.len(),
            Self::Bundled(entries) => entries.len(),
        }
    }

    /// Appends entry `at` as a MessagePack string. `at` must be below [`Entries::count`].
    pub fn write(&self, at: usize, out: &mut Vec<u8>) {
        match self {
            Self::Own(entries) => write::str(out, &entries[at]),
            Self::Bundled(entries) => match entries.get(at) {
                (entry, "") => write::str(out, entry),
                (first, second) => {
                    write::str_header(out, first.len() + 1 + second.len());
                    out.extend_from_slice(first.as_bytes());
                    out.push(b' ');
                    out.extend_from_slice(second.as_bytes());
                }
            },
        }
    }
}
