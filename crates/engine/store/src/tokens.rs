//! Storage of token maps: rows by a keyed hash of the token, each with its sealed value.
//!
//! A store sees neither tokens nor values: an id and a fingerprint are keyed hashes, and the row
//! content is sealed. Times are seconds since 1970-01-01 UTC by the engine's clock.
//! [`TokenStore::get`], [`TokenStore::find`] and [`TokenStore::write`] treat expired rows as
//! absent. Expired rows remain until they are archived and pruned. Until they are pruned, no other
//! row can get their ids.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Reseal, StoreError, SubjectId};

/// The latest time that a row can contain: the end of the year 9999. Every database and calendar
/// supports this time.
pub const SECONDS_MAX: u64 = 253_402_300_799;

/// Value bytes at which a page of [`TokenStore::scan`] ends, because a page is written in one
/// operation.
pub const SCAN_BYTES: usize = 4 << 20;

/// Names a collection of an app. Tokens are unique within a map. Numbers are never reused, and are
/// at most `i32::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MapId {
    /// The app's number.
    pub app: u32,
    /// The collection's number.
    pub collection: u32,
}

/// A keyed hash of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId(pub [u8; 16]);

/// A keyed hash of data that has at most one token: a value in its scope, or a field of an
/// idempotent request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 16]);

/// A row of a token map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// A keyed hash of the token; unique in its map.
    pub id: TokenId,
    /// Unique in its map. `None` if no lookup must find the token again. Archiving a row clears its
    /// fingerprint.
    pub fingerprint: Option<Fingerprint>,
    /// Token and value, sealed. A one-way collection seals only the token.
    pub sealed: Bytes,
    /// Cleartext labels for people and for [`TokenStore::list`]. Sorted, without duplicates and
    /// without U+0000.
    pub tags: Vec<String>,
    /// Time from which the row counts as absent. Times are at most [`SECONDS_MAX`].
    pub expires: Option<u64>,
    /// Creation time.
    pub created: u64,
    /// Archiving time. An archived row counts as absent, regardless of its expiry time.
    pub archived: Option<u64>,
    /// The data subject of the row, if known. [`Row::subject_version`] is then the version of the
    /// key that the content is sealed under.
    pub subject: Option<SubjectId>,
}

/// A row that a lookup found, and the sealed key of its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRow {
    /// The row.
    pub row: Row,
    /// Sealed key of the subject, as stored; `None` for a row without a subject.
    pub subject_key: Option<Bytes>,
}

impl Row {
    /// Returns true if the row is visible to token lookups at `now`.
    #[must_use]
    pub fn is_live(&self, now: u64) -> bool {
        self.archived.is_none() && self.expires.is_none_or(|expires| expires > now)
    }

    /// Returns true if [`TokenStore::archive`] archives the row.
    pub fn is_expired(&self, now: u64, expired_before: u64) -> bool {
        self.lifetime()
            .is_due(Sweep::Archive { expired_before }, now)
    }

    /// Returns true if [`TokenStore::prune`] removes the row.
    pub fn is_archived(&self, archived_before: u64) -> bool {
        self.lifetime().is_due(Sweep::Prune { archived_before }, 0)
    }

    fn lifetime(&self) -> Lifetime {
        Lifetime {
            expires: self.expires,
            archived: self.archived,
        }
    }

    /// Returns the number of the token key version that sealed the row: bytes 1 to 4 of the sealed
    /// content. Returns 0 if the content is shorter.
    #[must_use]
    pub fn key_number(&self) -> u32 {
        let number = self
            .sealed
            .get(1..5)
            .and_then(|bytes| bytes.try_into().ok());
        number.map_or(0, u32::from_be_bytes)
    }

    /// Returns the version of the subject's key that the content is sealed under: bytes 5 to 12,
    /// big endian. Only meaningful if [`Row::subject`] is set. Returns 0, which no key has, if the
    /// content is shorter.
    #[must_use]
    pub fn subject_version(&self) -> u64 {
        let version = self
            .sealed
            .get(5..13)
            .and_then(|bytes| bytes.try_into().ok());
        version.map_or(0, u64::from_be_bytes)
    }

    /// Returns the subject of the row and the version that its key must have.
    #[must_use]
    pub fn claim(&self) -> Option<(SubjectId, u64)> {
        self.subject
            .map(|subject| (subject, self.subject_version()))
    }

    /// Returns true for a row without a subject. Otherwise returns true if the subject's key exists
    /// and `stored` is its required version. Versions of existing keys are odd. A row without its
    /// key counts as absent and cannot be written.
    #[must_use]
    pub fn has_key(&self, stored: Option<u64>) -> bool {
        self.claim()
            .is_none_or(|(_, version)| version % 2 == 1 && stored == Some(version))
    }

    /// Estimates the bytes that the row takes in memory or on a connection.
    #[must_use]
    pub fn bytes(&self) -> usize {
        80 + self.sealed.len() + self.tags.iter().map(|tag| 16 + tag.len()).sum::<usize>()
    }

    /// Rejects times beyond the range that stores support.
    pub fn check_times(&self) -> Result<(), StoreError> {
        [Some(self.created), self.expires, self.archived]
            .into_iter()
            .flatten()
            .try_for_each(check_time)
    }
}

/// Returns a closure that decides, row by row, whether a page of [`TokenStore::scan`] has room for
/// the row.
pub fn fits_scan() -> impl FnMut(&Row) -> bool {
    let mut fits = fits_scan_bytes();
    move |row| fits(row.sealed.len())
}

/// Returns a closure that decides, by the size of each element in bytes, whether a page has room
/// for the element. The first element always fits.
pub fn fits_scan_bytes() -> impl FnMut(usize) -> bool {
    let mut sum = 0;
    move |bytes| {
        let fits = sum < SCAN_BYTES;
        sum += bytes;
        fits
    }
}

/// Rejects a time beyond the range that stores support.
pub fn check_time(seconds: u64) -> Result<(), StoreError> {
    if seconds <= SECONDS_MAX {
        Ok(())
    } else {
        Err(StoreError::TimeOutOfRange { seconds })
    }
}

/// The rows of a request. Either all rows are written or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Map of the rows.
    pub map: MapId,
    /// Rows that are not archived, with distinct ids and distinct fingerprints. At most 10,000
    /// rows.
    pub rows: Vec<Row>,
}

/// Result of writing a [`Group`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The group is durable. Per row, in order: `None` if the row was written, or the existing row
    /// with this fingerprint, whose token must be returned.
    Done(Vec<Option<Row>>),
    /// Nothing was written, because existing rows in any state have the ids of these rows. Holds
    /// row positions, ascending. Generate other tokens and try again.
    Taken(Vec<usize>),
    /// Nothing was written, because the key of a row's subject has another version than
    /// [`Row::claim`] says.
    SubjectsChanged,
}

/// Selects the rows that [`TokenStore::list`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only rows with this tag.
    pub tag: Option<String>,
    /// Only rows that expired before this time.
    pub expired_before: Option<u64>,
    /// If true, only archived rows; otherwise only rows that are not archived.
    pub archived: bool,
}

impl Filter {
    /// Returns true if a row matches the filter.
    #[must_use]
    pub fn lets_through(&self, row: &Row) -> bool {
        self.matches(row.lifetime(), &row.tags)
    }

    /// Returns true if a row or an object with this lifetime and these tags matches the filter.
    #[must_use]
    pub fn matches(&self, lifetime: Lifetime, tags: &[String]) -> bool {
        lifetime.archived.is_some() == self.archived
            && self.tag.as_ref().is_none_or(|tag| tags.contains(tag))
            && self
                .expired_before
                .is_none_or(|before| lifetime.expires.is_some_and(|expires| expires < before))
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
    /// Returns true if this sweep changes `row`.
    pub fn takes(self, now: u64, row: &Row) -> bool {
        row.lifetime().is_due(self, now)
    }
}

/// Expiry and archiving time of a row or an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Time from which it counts as absent.
    pub expires: Option<u64>,
    /// Archiving time.
    pub archived: Option<u64>,
}

impl Lifetime {
    /// Returns true if `sweep` changes a row or an object with this lifetime.
    #[must_use]
    pub fn is_due(self, sweep: Sweep, now: u64) -> bool {
        match sweep {
            Sweep::Archive { expired_before } => {
                self.archived.is_none()
                    && self
                        .expires
                        .is_some_and(|expires| expires < expired_before && expires <= now)
            }
            Sweep::Prune { archived_before } => self
                .archived
                .is_some_and(|archived| archived < archived_before),
            Sweep::Erase => true,
        }
    }
}

/// A bounded step of a walk through a map in the order of ids. `I` is the type of the ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, I = TokenId> {
    /// Results of this step.
    pub found: T,
    /// Value of `after` for the next step; `None` at the end. A step looks at a bounded number of
    /// rows, so an empty page is not always the last one.
    pub next: Option<I>,
}

/// Persistent token maps. Every method returns in bounded time, and every reported write is
/// durable. A `limit` must be at least 1. Query arguments accept any time. Times beyond
/// [`SECONDS_MAX`] are treated as [`SECONDS_MAX`].
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Writes groups, each completely or not at all. Several groups can share one transaction.
    ///
    /// A row is not written if a live row has its fingerprint; the live row is returned instead. If
    /// many requests write the same fingerprint concurrently, all get the same row. An expired row
    /// with the fingerprint is archived, and the new row is written.
    ///
    /// A row that names a subject is written only while the stored key of the subject, in
    /// [`MapId::of_subjects`], has the version of [`Row::claim`], which is odd. The key cannot be
    /// erased between this check and the end of the write.
    ///
    /// Results are in the order of `groups`, and the failure of one group does not fail the others.
    /// Groups of one call can share a fingerprint or an id: the result is as if they were written
    /// in sequence. A row with a time out of range gets [`StoreError::TimeOutOfRange`].
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>>;

    /// Returns live rows by id, in request order; `None` for an absent row. Sees all rows that any
    /// instance wrote before the call. A row counts as absent if the key of its subject has another
    /// version than [`Row::claim`] says.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Io`] or [`StoreError::Damaged`], as in every
    /// method of this trait.
    async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError>;

    /// Returns live rows by fingerprint, in request order, as [`TokenStore::get`] does.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError>;

    /// Removes rows immediately, in any state. Returns, per id, true if a row existed before the
    /// call.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError>;

    /// Sets the expiry time of live rows; `None` means never. Returns, per id, true if a live row
    /// existed.
    ///
    /// # Errors
    /// As for [`TokenStore::get`]; [`StoreError::TimeOutOfRange`].
    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        expires: Option<u64>,
    ) -> Result<Vec<bool>, StoreError>;

    /// Returns at most `limit` rows that follow `after` and match the filter: live and expired
    /// rows, or archived rows.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError>;

    /// Archives rows that expired before `expired_before` and not later than `now`, which frees
    /// their fingerprints. Looks at no more than `limit` rows that follow `after`. With `dry_run`,
    /// only counts. Returns the number of rows.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn archive(
        &self,
        now: u64,
        map: MapId,
        expired_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError>;

    /// Removes rows that were archived before `archived_before`. Looks at no more than `limit` rows
    /// that follow `after`. With `dry_run`, only counts. Returns the number of rows.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn prune(
        &self,
        map: MapId,
        archived_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError>;

    /// Changes at most `limit` rows of a map that are due for `sweep`. Returns the number of
    /// changed rows. `next` is the value of `after` for the following call, or `None` if no due row
    /// is left. A page can be empty and not the last. A database compares its clock with `now` and
    /// sweeps by the earlier time. Unlike [`TokenStore::archive`] and [`TokenStore::prune`], a
    /// store with an index of due rows reads no other rows.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError>;

    /// Counts rows in every state by [`Row::key_number`], among at most `limit` rows that follow
    /// `after`. `next` is the value of `after` for the following call. Large rows can make a page
    /// shorter.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn count_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError>;

    /// Returns at most `limit` rows in every state that follow `after` and whose
    /// [`Row::key_number`] is not `number`. Large rows can make a page shorter.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn rows_of_other_keys(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError>;

    /// Gives rows in any state a new sealed content. Changes a row only if its sealed content still
    /// equals the old one. Changes no other fields. `rows` are at most
    /// [`RESEAL_ROWS_MAX`](crate::RESEAL_ROWS_MAX), with distinct ids. Either all possible changes
    /// are made or none. Returns, for each of `rows`, true if the row has the new content. A
    /// database can return false for a row that an attempt without response has changed.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn reseal(&self, map: MapId, rows: &[Reseal<TokenId>]) -> Result<Vec<bool>, StoreError>;

    /// Returns at most `limit` rows of a subject in any state, of all maps of an app, that follow
    /// `after`, in the order of maps and ids. Large rows can make a page shorter. An empty page
    /// means the end.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError>;

    /// Removes the rows of a subject in any state whose [`Row::subject_version`] is below
    /// `version`, in all maps of an app. Looks at no more than `limit` rows that follow `after`.
    /// Returns the number of removed rows; `next` is the value of `after` for the following call.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn erase_subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError>;

    /// Returns the first map after `after` that has a row in any state.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError>;

    /// Returns at most `limit` rows of all maps that follow `after`, in the order of maps and ids.
    /// Used to copy and to verify stores. Large rows can make a page shorter. An empty page means
    /// the end.
    ///
    /// # Errors
    /// As for [`TokenStore::get`].
    async fn scan(
        &self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError>;

    /// Writes rows unchanged, including archived rows, and replaces rows with the same ids. Used to
    /// copy stores. Writes all rows or none.
    ///
    /// # Errors
    /// As for [`TokenStore::get`]; [`StoreError::TimeOutOfRange`]. [`StoreError::Damaged`] if
    /// another row already has a fingerprint of these rows.
    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError>;
}
