//! Token maps at rest: rows by a keyed hash of the token, each with its value sealed.
//!
//! A store sees neither tokens nor values: an id and a fingerprint are keyed hashes, and what they lead to is sealed with
//! the token inside. Times are seconds since 1970-01-01 UTC by the caller's clock. Rows that have expired are as good as
//! absent for [`TokenStore::get`], [`TokenStore::find`] and [`TokenStore::write`], and remain until they are archived
//! and pruned; until then no other row gets their id.

use async_trait::async_trait;
use bytes::Bytes;

use crate::StoreError;

/// The last second that a row may name: the end of the year 9999. It fits what databases hold and what calendars print.
pub const SECONDS_MAX: u64 = 253_402_300_799;

/// A page of [`TokenStore::scan`] ends with the row that brings its values to so many bytes: a page is written in one go.
pub(crate) const SCAN_BYTES: usize = 4 << 20;

/// A collection of an app: where a token is unique. Numbers are never used twice, and are at most `i32::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MapId {
    /// The app's number.
    pub app: u32,
    /// The collection's number.
    pub collection: u32,
}

/// Keyed hash of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId(pub [u8; 16]);

/// Keyed hash of what must have one token only: a value in its scope, or a field of a call that may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 16]);

/// A row of a token map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Keyed hash of the token; unique in its map.
    pub id: TokenId,
    /// Unique in its map; `None` for a token that nothing has to find again. Archived rows have lost theirs.
    pub fingerprint: Option<Fingerprint>,
    /// Token and value, sealed. Of what is one-way, the token alone.
    pub sealed: Bytes,
    /// For people and for [`TokenStore::list`]; in the clear. Sorted, without doubles, and without U+0000.
    pub tags: Vec<String>,
    /// From then on it is as good as absent. Times are at most [`SECONDS_MAX`].
    pub expires: Option<u64>,
    /// When it was made.
    pub created: u64,
    /// When it was archived; it is as good as absent, whatever the time.
    pub archived: Option<u64>,
}

impl Row {
    /// Whether it is there for who reads tokens at `now`.
    #[must_use]
    pub fn is_live(&self, now: u64) -> bool {
        self.archived.is_none() && self.expires.is_none_or(|expires| expires > now)
    }

    /// Whether [`TokenStore::archive`] takes it.
    pub(crate) fn is_expired(&self, now: u64, expired_before: u64) -> bool {
        self.archived.is_none() && self.expires.is_some_and(|expires| expires < expired_before && expires <= now)
    }

    /// Whether [`TokenStore::prune`] takes it.
    pub(crate) fn is_archived(&self, archived_before: u64) -> bool {
        self.archived.is_some_and(|archived| archived < archived_before)
    }

    /// About how much of memory and of a connection it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        64 + self.sealed.len() + self.tags.iter().map(|tag| 16 + tag.len()).sum::<usize>()
    }

    /// Refuses times that a store need not hold.
    pub(crate) fn check_times(&self) -> Result<(), StoreError> {
        [Some(self.created), self.expires, self.archived].into_iter().flatten().try_for_each(check_time)
    }
}

/// Tells of each row whether a page of [`TokenStore::scan`] has it still.
pub(crate) fn fits_scan() -> impl FnMut(&Row) -> bool {
    let mut bytes = 0;
    move |row| {
        let fits = bytes < SCAN_BYTES;
        bytes += row.sealed.len();
        fits
    }
}

/// Refuses a time that a store need not hold.
pub(crate) fn check_time(seconds: u64) -> Result<(), StoreError> {
    if seconds <= SECONDS_MAX { Ok(()) } else { Err(StoreError::TimeOutOfRange { seconds }) }
}

/// The rows of one call: all of them are written or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Their map.
    pub map: MapId,
    /// Not archived; ids differ from each other, and so do fingerprints. There may be 10,000 of them.
    pub rows: Vec<Row>,
}

/// What became of a [`Group`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Durable. Per row, in order: `None`, it was written; or the row that has its fingerprint already, whose token is the
    /// one to give.
    Done(Vec<Option<Row>>),
    /// Nothing was written: rows in any state have the ids of these, by position, rising. Make others and try again.
    Taken(Vec<usize>),
}

/// Which rows [`TokenStore::list`] gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those with this tag.
    pub tag: Option<String>,
    /// Only those that expired before this.
    pub expired_before: Option<u64>,
    /// Those that were archived, and no others.
    pub archived: bool,
}

impl Filter {
    pub(crate) fn lets_through(&self, row: &Row) -> bool {
        row.archived.is_some() == self.archived
            && self.tag.as_ref().is_none_or(|tag| row.tags.contains(tag))
            && self.expired_before.is_none_or(|before| row.expires.is_some_and(|expires| expires < before))
    }
}

/// A change that [`TokenStore::sweep`] makes to the rows of a map that are due for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Archives live rows that expired before this time and not later than now.
    Archive {
        /// Seconds since 1970-01-01 UTC.
        expired_before: u64,
    },
    /// Removes rows that were archived before this time.
    Prune {
        /// Seconds since 1970-01-01 UTC.
        archived_before: u64,
    },
    /// Removes rows in any state.
    Erase,
}

impl Sweep {
    /// Returns whether this sweep changes `row`.
    pub(crate) fn takes(self, now: u64, row: &Row) -> bool {
        match self {
            Self::Archive { expired_before } => row.is_expired(now, expired_before),
            Self::Prune { archived_before } => row.is_archived(archived_before),
            Self::Erase => true,
        }
    }
}

/// A part of a walk through a map in the order of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// What was found.
    pub found: T,
    /// Where to go on, behind where it began; `None` at the end. A page may be empty and not the last: what it looks
    /// at is bounded.
    pub next: Option<TokenId>,
}

/// Where token maps rest. Every method answers in bounded time, and what it says is written is durable. A `limit` is at
/// least 1. A time in a question may be any: what lies behind [`SECONDS_MAX`] is as good as that.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Writes groups, each whole or not at all; they may share one transaction. A row whose fingerprint has a live row is
    /// not written, and that row is given back; however many calls write one fingerprint at once, all get the same row.
    /// A row whose fingerprint has an expired one takes its place, and that one is archived. Answers in the order of
    /// `groups`, each on its own: one that fails does not fail the others. Groups of one call may meet in a fingerprint
    /// or an id: it ends as if they had come one after another. [`StoreError::TimeOutOfRange`] where a row has such a time.
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>>;

    /// Live rows by id, in the order asked; `None` where there is none. Sees what any instance wrote before the call.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Io`] or [`StoreError::Damaged`]; so in every method here.
    async fn get(&self, now: u64, keys: &[(MapId, TokenId)]) -> Result<Vec<Option<Row>>, StoreError>;

    /// Live rows by fingerprint, in the order asked.
    ///
    /// # Errors
    /// As above.
    async fn find(&self, now: u64, keys: &[(MapId, Fingerprint)]) -> Result<Vec<Option<Row>>, StoreError>;

    /// Removes rows at once, whatever their state. Per id, whether there was one before the call.
    ///
    /// # Errors
    /// As above.
    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError>;

    /// Sets when live rows expire; `None`: never. Per id, whether there was one.
    ///
    /// # Errors
    /// As above; [`StoreError::TimeOutOfRange`].
    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        expires: Option<u64>,
    ) -> Result<Vec<bool>, StoreError>;

    /// Rows behind `after` that the filter lets through, at most `limit`. Live and expired ones, or archived ones.
    ///
    /// # Errors
    /// As above.
    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError>;

    /// Archives rows that expired before `expired_before`, and not later than `now`, which frees their fingerprints;
    /// looks at no more than `limit` rows behind `after`. With `dry_run` only counts. Gives how many.
    ///
    /// # Errors
    /// As above.
    async fn archive(
        &self,
        now: u64,
        map: MapId,
        expired_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError>;

    /// Removes rows that were archived before `archived_before`, for good; looks at no more than `limit` rows behind
    /// `after`. With `dry_run` only counts. Gives how many.
    ///
    /// # Errors
    /// As above.
    async fn prune(
        &self,
        map: MapId,
        archived_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError>;

    /// Changes at most `limit` rows of a map that are due for `sweep`. Returns how many were changed, and in `next` the
    /// value of `after` for the following call; `None` when no row is left that was due. A page may be empty and not the
    /// last. A database compares its clock with `now` and sweeps by the one that is behind. Unlike [`TokenStore::archive`] and [`TokenStore::prune`], a store with an index of due rows reads no others.
    ///
    /// # Errors
    /// As above.
    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError>;

    /// Returns the first map behind `after` that has a row in any state.
    ///
    /// # Errors
    /// As above.
    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError>;

    /// Every row of every map behind `after`, at most `limit`, in the order of maps and ids: to copy and to verify.
    /// There may be fewer, as where they are large; there are none only at the end.
    ///
    /// # Errors
    /// As above.
    async fn scan(&self, after: Option<(MapId, TokenId)>, limit: usize) -> Result<Vec<(MapId, Row)>, StoreError>;

    /// Puts rows as they are, archived ones too, over what has their ids: to copy. All or none.
    ///
    /// # Errors
    /// As above; [`StoreError::TimeOutOfRange`]. [`StoreError::Damaged`] when another row has a fingerprint already.
    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError>;
}
