//! Reads both sides in order and reports the differences.

use super::{CopyError, End, PAGE_ROWS, Progress, RowPlace, at, end_of};
use crate::control::Snapshot;
use crate::tokens::{MapId, Row, TokenStore};

/// Maximum number of differences that are named. Further differences are only counted.
const NAMED_MAX: usize = 10;

/// Kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Only the source has the row or record.
    Missing,
    /// Only the target has the row or record.
    Extra,
    /// Both sides have the row or record, with different content.
    Other,
}

/// Differences between a source and its copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Number of differing rows or records.
    pub count: u64,
    /// The first differences: a row is named by app, collection and id, a record by its key.
    pub first: Vec<(How, String)>,
}

impl Differences {
    fn note(&mut self, how: How, what: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push((how, what()));
        }
    }

    fn none(self) -> Result<(), CopyError> {
        if self.count == 0 { Ok(()) } else { Err(CopyError::Differs(self)) }
    }
}

impl std::fmt::Display for Differences {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "in {} places", self.count)?;
        for (index, (how, what)) in self.first.iter().enumerate() {
            let how = match how {
                How::Missing => "is missing",
                How::Extra => "is only there",
                How::Other => "is not the same",
            };
            write!(f, "{} {what} {how}", if index == 0 { ":" } else { "," })?;
        }
        let named = self.first.len() as u64;
        if self.count > named { write!(f, ", and {} more", self.count - named) } else { Ok(()) }
    }
}

/// Iterates over one side's rows in order, a page at a time.
struct Rows<'a> {
    store: &'a dyn TokenStore,
    end: End,
    page: std::vec::IntoIter<(MapId, Row)>,
    after: Option<RowPlace>,
}

impl<'a> Rows<'a> {
    fn new(store: &'a dyn TokenStore, end: End) -> Self {
        Self { store, end, page: Vec::new().into_iter(), after: None }
    }

    async fn next(&mut self) -> Result<Option<(MapId, Row)>, CopyError> {
        if self.page.len() == 0 {
            let page = self.store.scan(self.after, PAGE_ROWS).await.map_err(at(self.end))?;
            self.after = end_of(&page).or(self.after);
            self.page = page.into_iter();
        }
        Ok(self.page.next())
    }
}

/// Compares all rows of both sides. Returns the number of rows.
pub(super) async fn rows(
    source: &dyn TokenStore,
    target: &dyn TokenStore,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<u64, CopyError> {
    let (mut source, mut target) = (Rows::new(source, End::Source), Rows::new(target, End::Target));
    let (mut one, mut other) = (source.next().await?, target.next().await?);
    let (mut differences, mut count) = (Differences::default(), 0);
    loop {
        let place = |row: &Option<(MapId, Row)>| row.as_ref().map(|(map, row)| (*map, row.id));
        let how = match (place(&one), place(&other)) {
            (None, None) => break,
            (Some(one), Some(other)) if one == other => How::Other,
            (Some(one), other) if other.is_none_or(|other| one < other) => How::Missing,
            _ => How::Extra,
        };
        match how {
            How::Other if one == other => {}
            How::Extra => differences.note(how, || named(place(&other))),
            _ => differences.note(how, || named(place(&one))),
        }
        if how != How::Extra {
            count += 1;
            if count % PAGE_ROWS as u64 == 0 {
                progress(Progress::Compared(count));
            }
            one = source.next().await?;
        }
        if how != How::Missing {
            other = target.next().await?;
        }
    }
    progress(Progress::Compared(count));
    differences.none().map(|()| count)
}

fn named(place: Option<RowPlace>) -> String {
    place.map_or_else(String::new, |(map, id)| {
        format!("row {:032x} of collection {} of app {}", u128::from_be_bytes(id.0), map.collection, map.app)
    })
}

/// Compares all records.
pub(super) fn states(source: &Snapshot, target: &Snapshot) -> Result<(), CopyError> {
    let mut differences = Differences::default();
    for (key, record) in &source.records {
        match target.records.get(key) {
            Some(there) if there == record => {}
            Some(_) => differences.note(How::Other, || format!("record {key:?}")),
            None => differences.note(How::Missing, || format!("record {key:?}")),
        }
    }
    for key in target.records.keys().filter(|key| !source.records.contains_key(*key)) {
        differences.note(How::Extra, || format!("record {key:?}"));
    }
    differences.none()
}
