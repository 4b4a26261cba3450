//! Copies a whole store to another, empty store: control records unchanged, every token row and
//! every object in any state, and the fences of maps.
//!
//! During the copy, a mark is the only control record of the target, so that engines do not use the
//! target as a store. Afterwards both sides are read in order, and every row, object and fence is
//! compared. Then the records replace the mark, under a generation that is not below the source's.
//! An interrupted copy can be resumed. At most two pages of rows or objects are in memory.

use std::collections::BTreeMap;

use crate::control::{Commit, ControlStore, Snapshot, everything};
use crate::{LIVE_AGE_MAX, MapId, ObjectRow, ObjectStore, Row, StoreError, TokenStore};

mod compare;
mod kinds;

use compare::Compared;
use kinds::{CopiedRow, Position, end_of};

pub use compare::{Differences, How};

/// Key of the record that authenticates the generation and the other records, if a store has such a
/// record. A copy of this record is only valid in the same generation.
pub const HEAD: &str = "head";

/// Rows or objects per read and write.
const PAGE_ROWS: usize = 1_000;
/// Key of the record that marks an unfinished copy. During the copy, the target has only this
/// record.
pub const MARK: &str = "copy";

/// Control state, token maps and object collections of one store.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Control state of the store.
    pub control: &'a dyn ControlStore,
    /// Token maps of the store.
    pub tokens: &'a dyn TokenStore,
    /// Object collections of the store.
    pub objects: &'a dyn ObjectStore,
}

impl<'a> Side<'a> {
    /// Wraps a store that implements all traits.
    pub fn of(store: &'a (impl ControlStore + TokenStore + ObjectStore)) -> Self {
        Self {
            control: store,
            tokens: store,
            objects: store,
        }
    }
}

/// Progress of a copy: the number of token rows and objects since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Number of rows and objects in the target.
    Copied(u64),
    /// Number of rows and objects that were read back and compared.
    Compared(u64),
}

/// Result of a verified copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Number of control records.
    pub records: u64,
    /// Number of token rows in any state.
    pub rows: u64,
    /// Number of objects in any state.
    pub objects: u64,
    /// Generation of the target after the copy.
    pub generation: u64,
    /// True if the copy resumed an interrupted one.
    pub resumed: bool,
}

/// Names a side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The store that is read.
    Source,
    /// The store that is written.
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

/// The reason why a copy is not complete. The source was not changed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A store failed. Repeat the copy to resume it.
    #[error("the {end}: {error}")]
    Store {
        /// The failed side.
        end: End,
        /// The error of the store.
        error: StoreError,
    },
    /// An engine serves one of the stores. Stop the engine. A killed engine is forgotten after 90
    /// seconds.
    #[error(
        "the {end} is served by the engine at {address}; stop it first (one that was killed is forgotten after 90 s)"
    )]
    Served {
        /// The served side.
        end: End,
        /// Listen address of the engine.
        address: String,
    },
    /// The target has content. Choose another store, or empty the target.
    #[error("the target is not empty: {what}; choose an empty one")]
    NotEmpty {
        /// Description of the content.
        what: String,
    },
    /// The target holds a partial copy of another state. Empty the target.
    #[error(
        "the target holds a part of a copy of another store, or of this one as it was; choose an empty one"
    )]
    OtherCopy,
    /// The target cannot get the source's generation, but the source's records are authenticated
    /// together with the generation.
    #[error(
        "the target is of generation {target} and cannot become generation {from}, which the source's records are \
         authenticated with; choose a new store, or change something in the source first"
    )]
    Generation {
        /// Generation of the source.
        from: u64,
        /// Generation of the target.
        target: u64,
    },
    /// The source is an unfinished copy.
    #[error("the source is a copy that was never finished")]
    SourceUnfinished,
    /// The named store was changed during the copy.
    #[error("the {0} was changed during the copy; stop whoever writes it and copy again")]
    Changed(End),
    /// The target's content differs from the source's content.
    #[error("the copy differs from its source: {0}")]
    Differs(Differences),
}

fn at(end: End) -> impl Fn(StoreError) -> CopyError {
    move |error| CopyError::Store { end, error }
}

/// Copies everything from `from` to `to` and verifies the copy. `progress` is called after every
/// page. The operation can be cancelled and repeated at any time.
///
/// # Errors
/// Any [`CopyError`].
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
    copy_fences(from, to).await?;
    let rows = copy_rows::<Row>(from, to, resumed, 0, progress).await?;
    copy_rows::<ObjectRow>(from, to, resumed, rows, progress).await?;
    let Compared { rows, objects } = compare::contents(from, to, progress).await?;
    // An engine that started during the copy can have created tokens or objects before the position
    // of the comparison.
    nobody_serves(from, End::Source).await?;
    nobody_serves(to, End::Target).await?;
    if everything(from.control).await.map_err(at(End::Source))? != state {
        return Err(CopyError::Changed(End::Source));
    }

    let Commit::Done(generation) = to
        .control
        .replace(base, &state)
        .await
        .map_err(at(End::Target))?
    else {
        return Err(CopyError::Changed(End::Target));
    };
    let there = everything(to.control).await.map_err(at(End::Target))?;
    compare::states(&state, &there)?;
    Ok(Copied {
        records: state.records.len() as u64,
        rows,
        objects,
        generation,
        resumed,
    })
}

async fn nobody_serves(side: Side<'_>, end: End) -> Result<(), CopyError> {
    match side
        .control
        .instances(LIVE_AGE_MAX)
        .await
        .map_err(at(end))?
        .into_iter()
        .next()
    {
        Some(instance) => Err(CopyError::Served {
            end,
            address: instance.address,
        }),
        None => Ok(()),
    }
}

/// Writes the mark to an empty target, or finds the mark there. Returns the target's generation,
/// and true if the mark existed.
async fn mark(state: &Snapshot, to: Side<'_>) -> Result<(u64, bool), CopyError> {
    let mark = fingerprint(state);
    let there = everything(to.control).await.map_err(at(End::Target))?;
    if let Some(found) = there.records.get(MARK) {
        return if *found == mark {
            Ok((there.generation, true))
        } else {
            Err(CopyError::OtherCopy)
        };
    }

    if let Some(key) = there.records.keys().next() {
        let what = format!(
            "it has {} control records, such as {key:?}",
            there.records.len()
        );
        return Err(CopyError::NotEmpty { what });
    }

    check_empty(to).await?;
    if there.generation + 1 >= state.generation && state.records.contains_key(HEAD) {
        return Err(CopyError::Generation {
            from: state.generation,
            target: there.generation,
        });
    }

    let marked = Snapshot {
        generation: 0,
        records: BTreeMap::from([(MARK.to_owned(), mark)]),
    };

    match to
        .control
        .replace(there.generation, &marked)
        .await
        .map_err(at(End::Target))?
    {
        Commit::Done(generation) => Ok((generation, false)),
        Commit::Moved => Err(CopyError::Changed(End::Target)),
    }
}

/// Returns a hash that identifies a control state.
fn fingerprint(state: &Snapshot) -> Vec<u8> {
    let mut hash = xxhash_rust::xxh3::Xxh3Default::new();
    hash.update(&state.generation.to_be_bytes());
    for part in state
        .records
        .iter()
        .flat_map(|(key, record)| [key.as_bytes(), record])
    {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("{{\"format\":1,\"of\":\"{:032x}\"}}", hash.digest128()).into_bytes()
}

/// Rejects a target that has rows, objects or fences.
async fn check_empty(to: Side<'_>) -> Result<(), CopyError> {
    let found = if !to
        .tokens
        .scan(None, 1)
        .await
        .map_err(at(End::Target))?
        .is_empty()
    {
        "rows of token maps"
    } else if !to
        .objects
        .scan_objects(None, 1)
        .await
        .map_err(at(End::Target))?
        .is_empty()
    {
        "objects of collections"
    } else if !to
        .objects
        .fences()
        .await
        .map_err(at(End::Target))?
        .is_empty()
    {
        "fences of collections"
    } else {
        return Ok(());
    };
    Err(CopyError::NotEmpty {
        what: format!("it has {found}"),
    })
}

/// Raises the fences of the target to the fences of the source.
async fn copy_fences(from: Side<'_>, to: Side<'_>) -> Result<(), CopyError> {
    for (map, generation) in from.objects.fences().await.map_err(at(End::Source))? {
        to.objects
            .raise_fence(map, generation)
            .await
            .map_err(at(End::Target))?;
    }
    Ok(())
}

/// Writes every page to the target. When resuming, equal rows that exist in the target are not
/// written again. `count` is the number of rows of other kinds that were copied before. Returns the
/// sum.
async fn copy_rows<R: CopiedRow>(
    from: Side<'_>,
    to: Side<'_>,
    resumed: bool,
    mut count: u64,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<u64, CopyError> {
    let mut after = None;
    let mut may_be_there = resumed;
    loop {
        let page = R::scan(from, after, PAGE_ROWS)
            .await
            .map_err(at(End::Source))?;
        let Some(last) = end_of(&page) else {
            return Ok(count);
        };
        may_be_there = may_be_there && holds(to, after, &page).await.map_err(at(End::Target))?;
        if !may_be_there {
            R::put(to, &page).await.map_err(at(End::Target))?;
        }
        after = Some(last);
        count += page.len() as u64;
        progress(Progress::Copied(count));
    }
}

/// Returns true if a side has exactly the rows of `page` after `after`, up to the last row of
/// `page`. The pages of two stores can end at different sizes.
async fn holds<R: CopiedRow>(
    side: Side<'_>,
    mut after: Option<Position<R>>,
    mut page: &[(MapId, R)],
) -> Result<bool, StoreError> {
    while !page.is_empty() {
        let there = R::scan(side, after, page.len()).await?;
        if there.is_empty() || !page.starts_with(&there) {
            return Ok(false);
        }
        after = end_of(&there);
        page = &page[there.len()..];
    }
    Ok(true)
}
