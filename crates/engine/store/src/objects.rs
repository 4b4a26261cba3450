//! Storage of object collections: objects by id, each with its sealed values, and the index terms
//! that find them.
//!
//! A store sees neither property names nor values. A term is a keyed hash, and the content of an
//! object is sealed. Times are seconds since 1970-01-01 UTC by the engine's clock. Expired objects
//! count as absent, as expired token rows do, and remain until they are archived and pruned.
//! Archived objects do not have terms.
//!
//! Note: an engine that was paused can resume with an old schema. A fence prevents damage: the
//! store rejects every operation on a map from an engine whose generation is below the map's fence.

mod apply;
mod query;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use apply::{ObjectChanges, apply_group, apply_put, apply_sweep, archived};
pub use query::{Matches, QUERY_CLAUSES_MAX, QUERY_STATEMENTS_MAX, matching};

use crate::tokens::check_time;
use crate::{Filter, Lifetime, MapId, Page, Reseal, StoreError, Sweep};

/// Maximum number of writes in an [`ObjectGroup`].
pub const GROUP_WRITES_MAX: usize = 500;

/// Number of the collection whose map holds the keys of an app's data subjects. Real collections
/// never get this number.
pub const SUBJECTS_COLLECTION: u32 = i32::MAX as u32;

/// Number of the collection whose map holds the unfinished erasures of an app. Real collections
/// never get this number.
pub const ERASURES_COLLECTION: u32 = SUBJECTS_COLLECTION - 1;

/// Maximum number of terms in a [`Clause`].
pub const CLAUSE_TERMS_MAX: usize = 64;

/// Id of an object; unique in its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub [u8; 16]);

/// A keyed hash of a data subject's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubjectId(pub [u8; 16]);

impl SubjectId {
    /// Returns the id of the row that holds the subject's key, in the map [`MapId::of_subjects`].
    #[must_use]
    pub fn row(self) -> ObjectId {
        ObjectId(self.0)
    }
}

impl MapId {
    /// Returns the map that holds the keys of an app's data subjects.
    ///
    /// A row of this map is never removed while its app exists, and its version only increases. A
    /// row of an odd version holds a sealed key. A row of an even version is empty: the subject was
    /// erased.
    #[must_use]
    pub fn of_subjects(app: u32) -> Self {
        Self {
            app,
            collection: SUBJECTS_COLLECTION,
        }
    }

    /// Returns the map that holds the unfinished erasures of an app: a row per subject whose
    /// objects must still be removed. The id of a row is that of the subject's key.
    #[must_use]
    pub fn of_erasures(app: u32) -> Self {
        Self {
            app,
            collection: ERASURES_COLLECTION,
        }
    }
}

/// A condition of an [`ObjectGroup`] on the key of a data subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectClaim {
    /// The stored key has this version, which is odd.
    Current {
        /// The subject.
        id: SubjectId,
        /// The version of its row.
        version: u64,
    },
    /// The group adds a key to a subject without a key. The new version is odd, and the stored
    /// version plus one.
    New(ObjectRow),
    /// The group replaces a key by an empty row. The new version is even, and the stored version
    /// plus one.
    Erased(ObjectRow),
}

impl SubjectClaim {
    /// Returns the id of the subject's row.
    #[must_use]
    pub fn row_id(&self) -> ObjectId {
        match self {
            Self::Current { id, .. } => id.row(),
            Self::New(row) | Self::Erased(row) => row.id,
        }
    }

    /// Returns the row that the claim writes, if it writes one.
    #[must_use]
    pub fn row(&self) -> Option<&ObjectRow> {
        match self {
            Self::Current { .. } => None,
            Self::New(row) | Self::Erased(row) => Some(row),
        }
    }
}

/// A keyed hash of a normalized value, or of a part of the value, under one index of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term {
    /// Number of the index. The schema of the collection assigns it and never reuses it.
    pub index: u32,
    /// The hash. A truncated hash is padded with zeros.
    pub hash: [u8; 16],
}

/// An object as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRow {
    /// Unique in its map.
    pub id: ObjectId,
    /// Number of the content, from 1. Each [`ObjectWrite::Replace`] increments it.
    pub version: u64,
    /// Creation time.
    pub created: u64,
    /// Time of the last change of the content.
    pub updated: u64,
    /// Time from which the object counts as absent. Times are at most
    /// [`SECONDS_MAX`](crate::SECONDS_MAX).
    pub expires: Option<u64>,
    /// Archiving time. An archived object counts as absent and has no terms.
    pub archived: Option<u64>,
    /// The data subject of the object, if known.
    pub subject: Option<SubjectId>,
    /// Id of the key version that sealed the content. Used to count the objects of each key
    /// version.
    pub key: [u8; 5],
    /// Cleartext labels, sorted, without duplicates and without U+0000.
    pub tags: Vec<String>,
    /// Terms that at most one object of the map can hold. Sorted, without duplicates.
    pub unique: Vec<Term>,
    /// Terms that several objects can hold. Sorted, without duplicates.
    pub terms: Vec<Term>,
    /// The sealed content.
    pub sealed: Bytes,
}

impl ObjectRow {
    /// Returns true if requests find the object at `now`.
    #[must_use]
    pub fn is_live(&self, now: u64) -> bool {
        self.archived.is_none() && self.expires.is_none_or(|expires| expires > now)
    }

    /// Returns the times that filters and sweeps look at.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        Lifetime {
            expires: self.expires,
            archived: self.archived,
        }
    }

    /// Estimates the bytes that the object takes in memory or on a connection.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let terms = self.unique.len() + self.terms.len();
        128 + self.sealed.len()
            + 24 * terms
            + self.tags.iter().map(|tag| 16 + tag.len()).sum::<usize>()
    }

    /// Rejects times beyond the range that stores support.
    ///
    /// # Errors
    /// [`StoreError::TimeOutOfRange`].
    pub fn check_times(&self) -> Result<(), StoreError> {
        let times = [
            Some(self.created),
            Some(self.updated),
            self.expires,
            self.archived,
        ];
        times.into_iter().flatten().try_for_each(check_time)
    }
}

/// A map, and the generation of the schema by which an engine uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapView {
    /// The map.
    pub map: MapId,
    /// Generation of the control state that the engine serves.
    pub generation: u64,
}

/// A write of an [`ObjectGroup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectWrite {
    /// Adds an object of version 1 that is not archived.
    Add(ObjectRow),
    /// Replaces the live object whose version plus one is the version of this row. Id and creation
    /// time must stay.
    Replace(ObjectRow),
    /// Removes a live object permanently.
    Delete {
        /// The object.
        id: ObjectId,
        /// The required version. `None`: any version.
        version: Option<u64>,
    },
    /// Sets the expiry time of a live object. The version does not change.
    Expire {
        /// The object.
        id: ObjectId,
        /// The time; `None` means never.
        expires: Option<u64>,
    },
    /// Removes an object in any state, if it still has this content. Otherwise the write changes
    /// nothing.
    Erase {
        /// The object.
        id: ObjectId,
        /// The sealed content.
        sealed: Bytes,
    },
}

impl ObjectWrite {
    /// Returns the id of the object.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        match self {
            Self::Add(row) | Self::Replace(row) => row.id,
            Self::Delete { id, .. } | Self::Expire { id, .. } | Self::Erase { id, .. } => *id,
        }
    }

    /// Returns the row to write, if any.
    #[must_use]
    pub fn row(&self) -> Option<&ObjectRow> {
        match self {
            Self::Add(row) | Self::Replace(row) => Some(row),
            Self::Delete { .. } | Self::Expire { .. } | Self::Erase { .. } => None,
        }
    }
}

/// The writes of a request. Either all writes are made or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectGroup {
    /// The map.
    pub view: MapView,
    /// At most [`GROUP_WRITES_MAX`] writes with distinct ids.
    pub writes: Vec<ObjectWrite>,
    /// At most [`GROUP_WRITES_MAX`] claims of distinct subjects, in the order of ids. Nothing is
    /// written unless all of them hold.
    pub subjects: Vec<SubjectClaim>,
}

impl ObjectGroup {
    /// Returns the row of each subject key and of each object that the group writes.
    pub fn rows(&self) -> impl Iterator<Item = &ObjectRow> {
        self.subjects
            .iter()
            .filter_map(SubjectClaim::row)
            .chain(self.writes.iter().filter_map(ObjectWrite::row))
    }

    /// Returns the maps that the group writes, each as the engine sees it.
    pub fn views(&self) -> impl Iterator<Item = MapView> {
        let subjects = MapView {
            map: MapId::of_subjects(self.view.map.app),
            ..self.view
        };
        std::iter::once(self.view).chain((!self.subjects.is_empty()).then_some(subjects))
    }

    /// Returns the number of writes and claims.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writes.len() + self.subjects.len()
    }

    /// Returns true if the group has neither writes nor claims.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Estimates the bytes that the group takes in memory or on a connection.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let compared = self.writes.iter().map(|write| match write {
            ObjectWrite::Erase { sealed, .. } => sealed.len(),
            _ => 0,
        });
        64 * self.len() + self.rows().map(ObjectRow::bytes).sum::<usize>() + compared.sum::<usize>()
    }
}

/// Result of an [`ObjectGroup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectsWritten {
    /// The group is durable.
    Done,
    /// Nothing was written. Contains the positions of the impossible writes, ascending, each with a
    /// reason.
    Conflicts(Vec<(usize, ObjectConflict)>),
    /// Nothing was written, because a [`SubjectClaim`] no longer holds.
    SubjectsChanged,
}

/// The reason why a write is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectConflict {
    /// An object in any state has the id.
    Exists,
    /// Another live object, or an earlier write of the group, holds a unique term.
    Unique {
        /// Number of the index.
        index: u32,
    },
    /// No live object has the id.
    Absent,
    /// The object has another version.
    Version {
        /// The version of the stored object.
        found: u64,
    },
}

/// Objects that hold at least one of some terms. A clause has 1 to [`CLAUSE_TERMS_MAX`] terms,
/// without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    /// True if objects can hold the terms as unique terms.
    pub unique: bool,
    /// True if objects can hold the terms as non-unique terms. For an index that was unique, both
    /// fields are true.
    pub shared: bool,
    /// The terms.
    pub terms: Vec<Term>,
}

/// Persistent object collections. Every method returns in bounded time, and every reported write is
/// durable. A `limit` must be at least 1. Methods that take a [`MapView`] fail with
/// [`StoreError::Fenced`] if its generation is below the fence of the map.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Writes groups, each completely or not at all, as [`apply_group`] specifies. Several groups
    /// can share one transaction. Results are in the order of `groups`, and the failure of one
    /// group does not fail the others. The result is as if the groups were written in sequence.
    async fn write_objects(
        &self,
        now: u64,
        groups: Vec<ObjectGroup>,
    ) -> Vec<Result<ObjectsWritten, StoreError>>;

    /// Returns live objects by id, in the order of `ids`; `None` for an absent object. Sees all
    /// objects that any instance wrote before the call.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Io`] or [`StoreError::Damaged`], as in every
    /// method of this trait.
    async fn get_objects(
        &self,
        now: u64,
        view: MapView,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<ObjectRow>>, StoreError>;

    /// Counts the objects of each clause, at most `cap` of each. An object that holds several terms
    /// of a clause can count several times. Expired objects count.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn count_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        cap: u32,
    ) -> Result<Vec<u32>, StoreError>;

    /// Returns the first `limit` ids of a clause that follow `after`, ascending and without
    /// duplicates. Expired objects are included.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn clause_ids(
        &self,
        view: MapView,
        clause: &Clause,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<ObjectId>, StoreError>;

    /// Returns, for each of `ids`, true if the object is in every clause. `ids` are at most 1,001.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn probe_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        ids: &[ObjectId],
    ) -> Result<Vec<bool>, StoreError>;

    /// Returns at most `limit` objects that follow `after` and match the filter: live and expired
    /// objects, or archived ones.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn list_objects(
        &self,
        view: MapView,
        filter: &Filter,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError>;

    /// Returns at most `limit` objects of a subject, in any state, that follow `after`, in the
    /// order of collections and ids. Large objects can make a page shorter. An empty page means the
    /// end.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`]; [`StoreError::Fenced`] if the fence of one of the maps
    /// is above `generation`.
    async fn subject_objects(
        &self,
        generation: u64,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError>;

    /// Changes the objects that are due for `sweep` among at most `limit` objects that follow
    /// `after`. With `dry_run`, only counts. Returns the number of objects. `next` is the value of
    /// `after` for the following call. A database compares its clock with `now` and sweeps by the
    /// earlier time.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn sweep_objects(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<ObjectId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64, ObjectId>, StoreError>;

    /// Counts objects in every state by [`ObjectRow::key`], among at most `limit` objects that
    /// follow `after`. `next` is the value of `after` for the following call. Large objects can
    /// make a page shorter.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn count_object_keys(
        &self,
        map: MapId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<[u8; 5], u64>, ObjectId>, StoreError>;

    /// Returns at most `limit` objects in every state that follow `after` and whose
    /// [`ObjectRow::key`] is not `key`. Large objects can make a page shorter.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn objects_of_other_keys(
        &self,
        view: MapView,
        key: [u8; 5],
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError>;

    /// Gives objects in any state a new sealed content, sealed under `key`. Changes an object only
    /// if its sealed content still equals the old one. Changes no other fields. `rows` are at most
    /// [`RESEAL_ROWS_MAX`](crate::RESEAL_ROWS_MAX), with distinct ids. Either all possible changes
    /// are made or none. Returns, for each of `rows`, true if the object has the new content. A
    /// database can return false for an object that an attempt without response has changed.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn reseal_objects(
        &self,
        view: MapView,
        key: [u8; 5],
        rows: &[Reseal<ObjectId>],
    ) -> Result<Vec<bool>, StoreError>;

    /// Returns the first map after `after` that has an object in any state.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn next_object_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError>;

    /// Returns at most `limit` objects of all maps that follow `after`, in the order of maps and
    /// ids. Used to copy and to verify stores. Large objects can make a page shorter. An empty page
    /// means the end.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn scan_objects(
        &self,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError>;

    /// Writes objects unchanged, including archived objects, and replaces objects with the same
    /// ids. Used to copy stores. Writes all objects or none, as [`apply_put`] specifies. If several
    /// objects have the same id, the last object wins.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`]; [`StoreError::TimeOutOfRange`]. [`StoreError::Damaged`]
    /// if another object already holds a unique term of these objects, or if an archived object has
    /// terms.
    async fn put_objects(&self, rows: &[(MapId, ObjectRow)]) -> Result<(), StoreError>;

    /// Raises the fence of a map to `generation`, unless it is higher. Operations that are in
    /// progress can still complete within their timeout.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn raise_fence(&self, map: MapId, generation: u64) -> Result<(), StoreError>;

    /// Returns the time after which no operation that passed a lower fence can still take effect,
    /// counted from the end of [`ObjectStore::raise_fence`].
    fn fence_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the fences of all maps that have one, in the order of maps.
    ///
    /// # Errors
    /// As for [`ObjectStore::get_objects`].
    async fn fences(&self) -> Result<Vec<(MapId, u64)>, StoreError>;
}

/// Rejects an operation of an engine whose generation is below `fence`.
///
/// # Errors
/// [`StoreError::Fenced`].
pub fn check_fence(view: MapView, fence: Option<u64>) -> Result<(), StoreError> {
    match fence {
        Some(needs) if view.generation < needs => Err(StoreError::Fenced { needs }),
        _ => Ok(()),
    }
}
