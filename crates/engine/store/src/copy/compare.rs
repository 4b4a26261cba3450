//! Reads both sides in order and reports the differences.

use std::collections::BTreeMap;

use super::kinds::{CopiedRow, Position, end_of};
use super::{CopyError, End, PAGE_ROWS, Progress, Side, at};
use crate::control::Snapshot;
use crate::{MapId, ObjectRow, Row};

/// Maximum number of differences that are named. Further differences are only counted.
const NAMED_MAX: usize = 10;

/// Kind of a difference of a row, object, fence or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Only the source has it.
    Missing,
    /// Only the target has it.
    Extra,
    /// The two sides have it with different content.
    Other,
}

/// Differences between a source and its copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Number of differing rows, objects, fences or records.
    pub count: u64,
    /// The first differences. A row or an object is named by app, collection and id. A fence is
    /// named by app and collection, a record by its key.
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
        if self.count == 0 {
            Ok(())
        } else {
            Err(CopyError::Differs(self))
        }
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
        if self.count > named {
            write!(f, ", and {} more", self.count - named)
        } else {
            Ok(())
        }
    }
}

/// Iterates over one side's rows in order, a page at a time.
struct Rows<'a, R: CopiedRow> {
    side: Side<'a>,
    end: End,
    page: std::vec::IntoIter<(MapId, R)>,
    after: Option<Position<R>>,
}

impl<'a, R: CopiedRow> Rows<'a, R> {
    fn new(side: Side<'a>, end: End) -> Self {
        Self {
            side,
            end,
            page: Vec::new().into_iter(),
            after: None,
        }
    }

    async fn next(&mut self) -> Result<Option<(MapId, R)>, CopyError> {
        if self.page.len() == 0 {
            let page = R::scan(self.side, self.after, PAGE_ROWS)
                .await
                .map_err(at(self.end))?;
            self.after = end_of(&page).or(self.after);
            self.page = page.into_iter();
        }
        Ok(self.page.next())
    }
}

/// Numbers of compared rows and objects.
pub(super) struct Compared {
    pub(super) rows: u64,
    pub(super) objects: u64,
}

/// Compares all rows, objects and fences of both sides.
pub(super) async fn contents(
    source: Side<'_>,
    target: Side<'_>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Compared, CopyError> {
    let mut differences = Differences::default();
    let rows = self::rows::<Row>(source, target, &mut differences, 0, progress).await?;
    let sum = self::rows::<ObjectRow>(source, target, &mut differences, rows, progress).await?;
    fences(source, target, &mut differences).await?;
    differences.none().map(|()| Compared {
        rows,
        objects: sum - rows,
    })
}

/// Returns the key of a row, if there is a row.
fn position_of<R: CopiedRow>(row: Option<&(MapId, R)>) -> Option<(MapId, R::Id)> {
    row.map(|(map, row)| (*map, row.id()))
}

/// Compares all rows of a kind. `count` is the number of rows of other kinds that were compared
/// before. Returns the sum.
async fn rows<R: CopiedRow>(
    source: Side<'_>,
    target: Side<'_>,
    differences: &mut Differences,
    mut count: u64,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<u64, CopyError> {
    let mut source = Rows::<R>::new(source, End::Source);
    let mut target = Rows::<R>::new(target, End::Target);
    let mut one = source.next().await?;
    let mut other = target.next().await?;
    loop {
        let how = match (position_of(one.as_ref()), position_of(other.as_ref())) {
            (None, None) => break,
            (Some(one), Some(other)) if one == other => How::Other,
            (Some(one), other) if other.is_none_or(|other| one < other) => How::Missing,
            _ => How::Extra,
        };

        match how {
            How::Other if one == other => {}
            How::Extra => differences.note(how, || named::<R>(position_of(other.as_ref()))),
            _ => differences.note(how, || named::<R>(position_of(one.as_ref()))),
        }

        if how != How::Extra {
            count += 1;
            if count.is_multiple_of(PAGE_ROWS as u64) {
                progress(Progress::Compared(count));
            }
            one = source.next().await?;
        }

        if how != How::Missing {
            other = target.next().await?;
        }
    }

    progress(Progress::Compared(count));
    Ok(count)
}

fn named<R: CopiedRow>(position: Option<Position<R>>) -> String {
    position.map_or_else(String::new, |(map, id)| {
        let id = u128::from_be_bytes(R::bytes(id));
        format!(
            "{} {id:032x} of collection {} of app {}",
            R::NAME,
            map.collection,
            map.app
        )
    })
}

async fn fences(
    source: Side<'_>,
    target: Side<'_>,
    differences: &mut Differences,
) -> Result<(), CopyError> {
    let source = source
        .objects
        .fences()
        .await
        .map_err(at(End::Source))?
        .into_iter()
        .collect();
    let target = target
        .objects
        .fences()
        .await
        .map_err(at(End::Target))?
        .into_iter()
        .collect();
    entries(&source, &target, differences, |map: &MapId| {
        format!("fence of collection {} of app {}", map.collection, map.app)
    });
    Ok(())
}

/// Compares the entries of two maps.
fn entries<K: Ord, V: PartialEq>(
    source: &BTreeMap<K, V>,
    target: &BTreeMap<K, V>,
    differences: &mut Differences,
    named: impl Fn(&K) -> String,
) {
    for (key, value) in source {
        match target.get(key) {
            Some(there) if there == value => {}
            Some(_) => differences.note(How::Other, || named(key)),
            None => differences.note(How::Missing, || named(key)),
        }
    }
    for key in target.keys().filter(|key| !source.contains_key(*key)) {
        differences.note(How::Extra, || named(key));
    }
}

/// Compares all records.
pub(super) fn states(source: &Snapshot, target: &Snapshot) -> Result<(), CopyError> {
    let mut differences = Differences::default();
    entries(&source.records, &target.records, &mut differences, |key| {
        format!("record {key:?}")
    });
    differences.none()
}
