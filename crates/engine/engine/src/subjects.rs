//! Data subjects of objects and tokens: their stored keys, and the removal of their objects.
//!
//! The row of a subject's key is read with every read of the subject's objects or tokens, and never
//! cached. So an erasure takes effect on every engine as soon as the erasure is durable.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::{ExtraWork, OperationKind};
use crate::jobs::error::RequestFailure;
use crate::jobs::objects::Objects;
use crate::jobs::scheduler::AdmissionPermit;
use crate::jobs::tokens::batch::run_each;
use crate::jobs::tokens::now;
use bytes::Bytes;
use sealwire_crypto::CannotOpen;
use sealwire_records::objects::{subject_version, token_key_id};
use sealwire_records::token::{SubjectKey, TokenKeys};
use sealwire_store::{
    MapId, MapView, ObjectGroup, ObjectId, ObjectRow, ObjectStore, ObjectWrite, ObjectsWritten,
    SUBJECTS_COLLECTION, SubjectClaim, SubjectId,
};
use tokio::time::Instant;

/// Attempts to create a key that other requests change at the same time.
const TRIES_MAX: u32 = 8;

/// The stored key of a subject.
#[derive(Clone, Debug)]
pub(crate) struct StoredSubject {
    pub(crate) id: SubjectId,
    /// An odd version has a key. An even version marks an erasure.
    pub(crate) version: u64,
    sealed: Bytes,
}

impl StoredSubject {
    pub(crate) fn new(row: ObjectRow) -> Self {
        Self {
            id: SubjectId(row.id.0),
            version: row.version,
            sealed: row.sealed,
        }
    }

    /// Returns true if the subject has a key.
    pub(crate) fn has_key(&self) -> bool {
        self.version % 2 == 1
    }

    /// Returns true if the subject has a key of this version.
    pub(crate) fn is_of(&self, version: u64) -> bool {
        self.has_key() && self.version == version
    }

    /// Opens the key.
    ///
    /// # Errors
    /// [`CannotOpen`], whatever the reason.
    pub(crate) fn open(&self, keys: &TokenKeys) -> Result<SubjectKey, CannotOpen> {
        SubjectKey::open(
            keys,
            SUBJECTS_COLLECTION,
            self.id.0,
            self.version,
            &self.sealed,
        )
    }
}

/// A row, and the key of its subject if it names one.
#[derive(Clone, Debug)]
pub(crate) struct ReadableRow {
    pub(crate) row: ObjectRow,
    pub(crate) subject: Option<Arc<StoredSubject>>,
}

impl ReadableRow {
    /// Joins a row with the key of its subject. Returns `None` if the subject was erased after the
    /// row was written.
    pub(crate) fn of(row: ObjectRow, keys: &StoredSubjects) -> Option<Self> {
        let Some(id) = row.subject else {
            return Some(Self { row, subject: None });
        };
        let subject = keys.get(&id).filter(|subject| is_current(&row, subject))?;
        Some(Self {
            row,
            subject: Some(Arc::clone(subject)),
        })
    }

    /// Returns the work of opening the row, and of the index terms that it would have if it is
    /// sealed again.
    pub(crate) fn work(&self) -> ExtraWork {
        let terms = (self.row.terms.len() + self.row.unique.len()) as u64;
        ExtraWork {
            fields: 1 + terms / TERMS_PER_FIELD,
            bytes: self.row.bytes() as u64,
        }
    }
}

/// Index terms that take as long as opening one short row.
pub(crate) const TERMS_PER_FIELD: u64 = 2;

/// Stored subjects by id.
pub(crate) type StoredSubjects = HashMap<SubjectId, Arc<StoredSubject>>;

/// Stored subject keys. Each is opened once, when it is first needed.
pub(crate) struct SubjectKeyCache {
    stored: StoredSubjects,
    opened: HashMap<SubjectId, Result<SubjectKey, CannotOpen>>,
}

impl SubjectKeyCache {
    pub(crate) fn new(stored: StoredSubjects) -> Self {
        Self {
            stored,
            opened: HashMap::new(),
        }
    }

    /// Returns the key of a subject; `None` if a row names none.
    ///
    /// # Errors
    /// [`CannotOpen`] if the key is missing or does not open.
    pub(crate) fn key(
        &mut self,
        subject: Option<SubjectId>,
        keys: &TokenKeys,
    ) -> Result<Option<&SubjectKey>, CannotOpen> {
        let Some(id) = subject else { return Ok(None) };
        self.opened
            .entry(id)
            .or_insert_with(|| self.stored.get(&id).ok_or(CannotOpen)?.open(keys))
            .as_ref()
            .map(Some)
            .map_err(|_| CannotOpen)
    }
}

/// Reads the keys of subjects. `generation`: that of the control state that the engine serves.
///
/// # Errors
/// The store's error.
pub(crate) async fn stored_subjects(
    objects: &Objects,
    generation: u64,
    app: u32,
    ids: Vec<SubjectId>,
) -> Result<StoredSubjects, RequestFailure> {
    if ids.is_empty() {
        return Ok(StoredSubjects::new());
    }

    let view = MapView {
        map: MapId::of_subjects(app),
        generation,
    };
    let now = now();
    let ids: Vec<ObjectId> = ids.into_iter().map(SubjectId::row).collect();
    let rows = objects
        .read(view.map, move |store| async move {
            store.get_objects(now, view, &ids).await
        })
        .await?;
    let stored = rows.into_iter().flatten().map(StoredSubject::new);
    Ok(stored
        .map(|subject| (subject.id, Arc::new(subject)))
        .collect())
}

fn is_current(row: &ObjectRow, subject: &StoredSubject) -> bool {
    subject.has_key() && subject_version(&row.sealed) == Some(subject.version)
}

/// Returns the distinct subjects of rows, sorted.
pub(crate) fn subjects_of<'r>(rows: impl IntoIterator<Item = &'r ObjectRow>) -> Vec<SubjectId> {
    let mut ids: Vec<SubjectId> = rows.into_iter().filter_map(|row| row.subject).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Returns the claims that the keys of rows are current, sorted. Returns `None` if two rows of a
/// subject are under different keys, because the subject was erased between the reads of the two.
pub(crate) fn claims_of<'r>(
    rows: impl IntoIterator<Item = &'r ObjectRow>,
) -> Option<Vec<SubjectClaim>> {
    let mut versions: BTreeMap<SubjectId, u64> = BTreeMap::new();
    for row in rows {
        let Some((id, version)) = row.subject.zip(subject_version(&row.sealed)) else {
            continue;
        };
        if *versions.entry(id).or_insert(version) != version {
            return None;
        }
    }

    Some(
        versions
            .into_iter()
            .map(|(id, version)| SubjectClaim::Current { id, version })
            .collect(),
    )
}

/// A subject key that must be read or created before the walk over a document.
pub struct SubjectKeyLoad {
    pub(crate) generation: u64,
    pub(crate) id: SubjectId,
    pub(crate) keys: Arc<TokenKeys>,
    /// Receives the key.
    pub(crate) key: Arc<OnceLock<SubjectKey>>,
}

impl SubjectKeyLoad {
    /// Reads the key, or creates one for a subject without a key, before the walk begins.
    ///
    /// # Errors
    /// The store's error; [`RequestFailure::NoKey`]; [`RequestFailure::SubjectsChanged`].
    pub async fn load(
        self,
        objects: &Objects,
        admission: &mut AdmissionPermit,
        cancel: &Arc<CancelToken>,
        deadline: Instant,
    ) -> Result<(), RequestFailure> {
        let Self {
            generation,
            id,
            keys,
            key,
        } = self;
        cancel.note_subjects([id.0]);

        for _ in 0..TRIES_MAX {
            let stored = stored_subjects(objects, generation, keys.app(), vec![id])
                .await?
                .remove(&id);
            let app = keys.app();
            let keys = Arc::clone(&keys);
            let time = now();
            let claimed = run_each(
                admission,
                OperationKind::HASH_TOKENS,
                cancel,
                vec![()],
                move |()| claim(&keys, id, stored.as_deref(), time),
            )
            .await?
            .pop();
            let (claim, found) =
                claimed.ok_or(RequestFailure::Internal("one key was requested"))??;
            if matches!(claim, SubjectClaim::New(_)) {
                let view = MapView {
                    map: MapId::of_erasures(app),
                    generation,
                };
                let group = ObjectGroup {
                    view,
                    writes: Vec::new(),
                    subjects: vec![claim],
                };
                if objects.write(group, deadline).await? != ObjectsWritten::Done {
                    continue; // Another request was faster.
                }
            }
            return key
                .set(found)
                .map_err(|_| RequestFailure::Internal("a key is read once"));
        }
        Err(RequestFailure::SubjectsChanged)
    }
}

/// Opens the key of a subject, or creates one. Returns the key, and the claim that the store must
/// check or write.
///
/// # Errors
/// [`RequestFailure::NoKey`] if the app has no active token key, or the stored key does not open.
pub(crate) fn claim(
    keys: &TokenKeys,
    id: SubjectId,
    stored: Option<&StoredSubject>,
    time: u64,
) -> Result<(SubjectClaim, SubjectKey), RequestFailure> {
    if let Some(stored) = stored.filter(|stored| stored.has_key()) {
        // Under a disabled version of the token key, or altered.
        let key = stored.open(keys).map_err(|_| RequestFailure::NoKey)?;
        return Ok((
            SubjectClaim::Current {
                id,
                version: stored.version,
            },
            key,
        ));
    }

    let version = stored.map_or(0, |stored| stored.version) + 1;
    let generated = SubjectKey::generate(keys, SUBJECTS_COLLECTION, id.0, version);
    let (key, sealed) = generated.map_err(|_| RequestFailure::NoKey)?;
    Ok((SubjectClaim::New(key_row(id, version, time, sealed)), key))
}

/// Returns the row of a subject's key. `sealed` is empty for an erased subject.
pub(crate) fn key_row(id: SubjectId, version: u64, now: u64, sealed: Vec<u8>) -> ObjectRow {
    // As token rows do, the sealed key names the version of the token key in its bytes 1 to 4.
    let number = sealed
        .get(1..5)
        .and_then(|number| number.try_into().ok())
        .map_or(0, u32::from_be_bytes);
    let key = token_key_id(number);
    ObjectRow {
        id: id.row(),
        version,
        created: now,
        updated: now,
        expires: None,
        archived: None,
        subject: None,
        key,
        tags: Vec::new(),
        unique: Vec::new(),
        terms: Vec::new(),
        sealed: sealed.into(),
    }
}

/// Returns the row that replaces a subject's key.
pub(crate) fn erased_row(found: &ObjectRow, now: u64) -> ObjectRow {
    let row = key_row(
        SubjectId(found.id.0),
        found.version + 1,
        now.max(found.created),
        Vec::new(),
    );
    ObjectRow {
        created: found.created,
        ..row
    }
}

/// Returns the row that marks an erasure as unfinished, to add or in place of `found`. Objects
/// under keys of a lower version than `version` are to be removed.
pub(crate) fn unfinished(
    id: SubjectId,
    version: u64,
    now: u64,
    found: Option<&ObjectRow>,
) -> ObjectWrite {
    let row = ObjectRow {
        sealed: version.to_be_bytes().to_vec().into(),
        ..key_row(id, 1, now, Vec::new())
    };
    match found {
        None => ObjectWrite::Add(row),
        Some(found) => ObjectWrite::Replace(ObjectRow {
            version: found.version + 1,
            created: found.created,
            ..row
        }),
    }
}

/// Returns the version below which keys were erased, of a row of [`unfinished`].
pub(crate) fn unfinished_version(row: &ObjectRow) -> u64 {
    row.sealed.as_ref().try_into().map_or(0, u64::from_be_bytes)
}

/// A step of the removal of a subject's objects.
pub(crate) struct ErasureStep {
    /// Objects to remove, by map. An object that has changed in between is not removed.
    pub(crate) groups: Vec<ObjectGroup>,
    /// Cursor of the next page; `None` at the end.
    pub(crate) next: Option<(MapId, ObjectId)>,
}

/// Reads a page of at most `limit` objects of a subject, and returns the removal of those under
/// keys below `version`.
///
/// # Errors
/// Any error of the store.
pub(crate) async fn erasure_step(
    store: &dyn ObjectStore,
    generation: u64,
    (app, id): (u32, SubjectId),
    version: u64,
    after: Option<(MapId, ObjectId)>,
    limit: usize,
) -> Result<ErasureStep, sealwire_store::StoreError> {
    let page = store
        .subject_objects(generation, app, id, after, limit)
        .await?;
    let next = page.last().map(|(map, row)| (*map, row.id));
    let mut by_map: BTreeMap<MapId, Vec<ObjectWrite>> = BTreeMap::new();
    // An object of a later version belongs to a key that was created after the erasure.
    let erased = page
        .into_iter()
        .filter(|(_, row)| subject_version(&row.sealed).is_none_or(|of| of < version));

    for (map, row) in erased {
        by_map.entry(map).or_default().push(ObjectWrite::Erase {
            id: row.id,
            sealed: row.sealed,
        });
    }

    Ok(ErasureStep {
        groups: by_map
            .into_iter()
            .map(|(map, writes)| ObjectGroup {
                view: MapView { map, generation },
                writes,
                subjects: Vec::new(),
            })
            .collect(),
        next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SubjectId = SubjectId([3; 16]);

    fn row(id: u8, subject: Option<SubjectId>, sealed: &[u8]) -> ObjectRow {
        ObjectRow {
            id: ObjectId([id; 16]),
            subject,
            sealed: sealed.to_vec().into(),
            ..key_row(ID, 1, 1, Vec::new())
        }
    }

    /// Returns sealed bytes that name a version of a subject key.
    fn under(version: u64) -> Vec<u8> {
        [&[2][..], &version.to_be_bytes(), &[0; 4]].concat()
    }

    #[test]
    fn a_row_is_readable_under_the_current_key_of_its_subject_only() {
        let cases = [
            (None, vec![1, 0, 0, 0, 0], Some(1), true),
            (None, vec![1, 0, 0, 0, 0], None, true),
            (Some(ID), under(1), Some(1), true),
            (Some(ID), under(1), Some(2), false),
            (Some(ID), under(1), Some(3), false),
            (Some(ID), under(3), Some(3), true),
            (Some(ID), under(2), Some(2), false),
            (Some(ID), under(1), None, false),
            (Some(ID), vec![1, 0, 0, 0, 0], Some(1), false),
            (Some(ID), Vec::new(), Some(1), false),
        ];
        for (subject, sealed, version, expected) in cases {
            let keys = version
                .map(|version| {
                    let row = key_row(
                        ID,
                        version,
                        1,
                        if version % 2 == 1 {
                            vec![1]
                        } else {
                            Vec::new()
                        },
                    );
                    StoredSubjects::from([(ID, Arc::new(StoredSubject::new(row)))])
                })
                .unwrap_or_default();
            let readable = ReadableRow::of(row(1, subject, &sealed), &keys);
            assert_eq!(
                readable.is_some(),
                expected,
                "{subject:?} {sealed:?} {version:?}"
            );
        }
    }

    #[test]
    fn claims_are_sorted_and_distinct() {
        let other = SubjectId([1; 16]);
        let rows = [
            row(1, Some(ID), &under(3)),
            row(2, None, &[]),
            row(3, Some(other), &under(1)),
            row(4, Some(ID), &under(3)),
        ];
        let current = |id, version| SubjectClaim::Current { id, version };
        assert_eq!(
            claims_of(&rows).unwrap(),
            [current(other, 1), current(ID, 3)]
        );
        assert_eq!(subjects_of(&rows), [other, ID]);
        let mixed = [row(1, Some(ID), &under(3)), row(4, Some(ID), &under(1))];
        assert!(claims_of(&mixed).is_none(), "an erasure came between");
    }

    #[test]
    fn the_row_of_a_key_names_the_version_of_the_token_key() {
        assert_eq!(
            key_row(ID, 1, 1, vec![1, 0, 0, 1, 2, 9]).key,
            [0, 0, 0, 1, 2]
        );
        let erased = erased_row(
            &ObjectRow {
                created: 9,
                ..key_row(ID, 1, 1, vec![1, 0, 0, 0, 2])
            },
            5,
        );
        assert_eq!(
            (erased.version, erased.key, erased.sealed.len()),
            (2, [0; 5], 0)
        );
        assert_eq!((erased.created, erased.updated), (9, 9));
    }

    #[test]
    fn an_unfinished_erasure_keeps_its_version() {
        let ObjectWrite::Add(first) = unfinished(ID, 2, 7, None) else {
            panic!("the first one is added")
        };
        assert_eq!((first.version, unfinished_version(&first)), (1, 2));
        let ObjectWrite::Replace(next) = unfinished(ID, 4, 9, Some(&first)) else {
            panic!("a later one replaces")
        };
        assert_eq!(
            (next.version, next.created, unfinished_version(&next)),
            (2, 7, 4)
        );
        assert_eq!(unfinished_version(&row(1, None, b"of another form")), 0);
    }
}
