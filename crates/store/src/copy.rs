//! Copies everything of one store to another that is empty: control records as they are, and every row in any state.
//!
//! Until the copy is whole the target holds no records but a mark, so that no engine takes it for a store of its own.
//! Then both sides are read in order and every row is compared; only after that do the records replace the mark, under
//! a generation that is not below the source's. A copy that was cut short goes on where it was. No more than two pages
//! of rows are in memory.

use std::collections::BTreeMap;

use crate::control::{Commit, ControlStore, Snapshot, everything};
use crate::tokens::{MapId, Row, TokenId, TokenStore};
use crate::{LIVE_AGE_MAX, StoreError};

mod compare;
#[cfg(test)]
mod tests;

pub use compare::{Differences, How};

/// Rows that are read and written at once.
const PAGE_ROWS: usize = 1_000;
/// The record that stands in for all others while a copy is under way.
pub const MARK: &str = "copy";

/// Both halves of one store.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Its control state.
    pub control: &'a dyn ControlStore,
    /// Its token maps.
    pub tokens: &'a dyn TokenStore,
}

impl<'a> Side<'a> {
    /// Of a store that is both.
    pub fn of(store: &'a (impl ControlStore + TokenStore)) -> Self {
        Self { control: store, tokens: store }
    }
}

/// How far it is, in rows from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many are in the target.
    Copied(u64),
    /// So many of those were read back and compared.
    Compared(u64),
}

/// What was copied and found equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Control records.
    pub records: u64,
    /// Rows in any state.
    pub rows: u64,
    /// The target's generation after it.
    pub generation: u64,
    /// Whether it went on with a copy that was cut short.
    pub resumed: bool,
}

/// Which side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Target,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Target => "target",
        })
    }
}

/// Why there is no whole copy. Nothing of the source was changed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A side failed. Copying again goes on where it was.
    #[error("the {end}: {error}")]
    Store {
        /// Which.
        end: End,
        /// How.
        error: StoreError,
    },
    /// An engine runs on a side. Stop it; one that was killed is forgotten after 90 seconds.
    #[error(
        "the {end} is served by the engine at {address}; stop it first (one that was killed is forgotten after 90 s)"
    )]
    Served {
        /// Which.
        end: End,
        /// Where the engine takes calls.
        address: String,
    },
    /// The target has content. Choose another, or empty that one.
    #[error("the target is not empty: {what}; choose an empty one")]
    NotEmpty {
        /// What it has.
        what: String,
    },
    /// The target holds a part of a copy of another state. Empty it.
    #[error("the target holds a part of a copy of another store, or of this one as it was; choose an empty one")]
    OtherCopy,
    /// The source is such a part itself.
    #[error("the source is a copy that was never finished")]
    SourceUnfinished,
    /// A side was written meanwhile.
    #[error("the {0} was changed during the copy; stop whoever writes it and copy again")]
    Changed(End),
    /// What was read back is not what was read.
    #[error("the copy differs from its source: {0}")]
    Differs(Differences),
}

fn at(end: End) -> impl Fn(StoreError) -> CopyError {
    move |error| CopyError::Store { end, error }
}

/// Copies everything of `from` to `to` and verifies it. `progress` is called after every page. Safe to drop, and to
/// repeat, at any moment.
///
/// # Errors
/// [`CopyError`].
pub async fn copy(
    from: Side<'_>,
    to: Side<'_>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Copied, CopyError> {
    nobody_serves(from, End::Source).await?;
    nobody_serves(to, End::Target).await?;
    let state = everything(from.control).await.map_err(at(End::Source))?;
    if state.records.contains_key(MARK) {
        return Err(CopyError::SourceUnfinished);
    }
    let (base, resumed) = mark(&state, to).await?;
    copy_rows(from, to, resumed, progress).await?;
    let rows = compare::rows(from.tokens, to.tokens, progress).await?;
    // An engine that began meanwhile may have made tokens behind the rows that were compared.
    nobody_serves(from, End::Source).await?;
    nobody_serves(to, End::Target).await?;
    if everything(from.control).await.map_err(at(End::Source))? != state {
        return Err(CopyError::Changed(End::Source));
    }
    let Commit::Done(generation) = to.control.replace(base, &state).await.map_err(at(End::Target))? else {
        return Err(CopyError::Changed(End::Target));
    };
    let there = everything(to.control).await.map_err(at(End::Target))?;
    compare::states(&state, &there)?;
    Ok(Copied { records: state.records.len() as u64, rows, generation, resumed })
}

async fn nobody_serves(side: Side<'_>, end: End) -> Result<(), CopyError> {
    match side.control.instances(LIVE_AGE_MAX).await.map_err(at(end))?.into_iter().next() {
        Some(instance) => Err(CopyError::Served { end, address: instance.address }),
        None => Ok(()),
    }
}

/// Leaves the mark in an empty target, or finds it there. Gives the generation under it, and whether it was there.
async fn mark(state: &Snapshot, to: Side<'_>) -> Result<(u64, bool), CopyError> {
    let mark = fingerprint(state);
    let there = everything(to.control).await.map_err(at(End::Target))?;
    if let Some(found) = there.records.get(MARK) {
        return if *found == mark { Ok((there.generation, true)) } else { Err(CopyError::OtherCopy) };
    }
    if let Some(key) = there.records.keys().next() {
        let what = format!("it has {} control records, such as {key:?}", there.records.len());
        return Err(CopyError::NotEmpty { what });
    }
    if !to.tokens.scan(None, 1).await.map_err(at(End::Target))?.is_empty() {
        return Err(CopyError::NotEmpty { what: "it has rows of token maps".to_owned() });
    }
    let marked = Snapshot { generation: 0, records: BTreeMap::from([(MARK.to_owned(), mark)]) };
    match to.control.replace(there.generation, &marked).await.map_err(at(End::Target))? {
        Commit::Done(generation) => Ok((generation, false)),
        Commit::Moved => Err(CopyError::Changed(End::Target)),
    }
}

/// Tells one control state from another.
fn fingerprint(state: &Snapshot) -> Vec<u8> {
    let mut hash = xxhash_rust::xxh3::Xxh3Default::new();
    hash.update(&state.generation.to_be_bytes());
    for part in state.records.iter().flat_map(|(key, record)| [key.as_bytes(), record]) {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("{{\"format\":1,\"of\":\"{:032x}\"}}", hash.digest128()).into_bytes()
}

/// The place of a row in the order of maps and ids.
type Place = (MapId, TokenId);

fn end_of(page: &[(MapId, Row)]) -> Option<Place> {
    page.last().map(|(map, row)| (*map, row.id))
}

/// Puts every page into the target. What a copy before this one put there is read instead, while it is the same.
async fn copy_rows(
    from: Side<'_>,
    to: Side<'_>,
    resumed: bool,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), CopyError> {
    let (mut after, mut count, mut may_be_there) = (None, 0, resumed);
    loop {
        let page = from.tokens.scan(after, PAGE_ROWS).await.map_err(at(End::Source))?;
        let Some(last) = end_of(&page) else { return Ok(()) };
        if may_be_there {
            let there = to.tokens.scan(after, page.len()).await.map_err(at(End::Target))?;
            may_be_there = there == page;
        }
        if !may_be_there {
            to.tokens.put(&page).await.map_err(at(End::Target))?;
        }
        after = Some(last);
        count += page.len() as u64;
        progress(Progress::Copied(count));
    }
}
