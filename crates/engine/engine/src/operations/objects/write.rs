//! `objects.add`, `update`, `delete` and `expire`: all writes of a request, or none.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::jobs::cost::{ExtraWork, OperationKind};
use crate::jobs::error::RequestFailure;
use crate::jobs::tokens::batch::{run_each, run_each_sized};
use crate::jobs::tokens::now;
use crate::jobs::tokens::tokenize::IdempotencyKey;
use bytes::Bytes;
use sealwire_access::PropertyAccess;
use sealwire_msgpack::TokenReader;
use sealwire_records::objects::Values;
use sealwire_records::token::SubjectKey;
use sealwire_store::{
    ObjectConflict, ObjectGroup, ObjectId, ObjectRow, ObjectWrite, ObjectsWritten, SubjectClaim,
    SubjectId,
};
use sealwire_wire::{Counted, ErrorCode, ItemError, ObjectVersion, ObjectsChanged};

use super::payload::{
    ERRORS_MAX, ObjectChange, ValueReader, invalid_item, parse_change, property_path, split_items,
};
use super::seal::{KeptTerms, ObjectSealer, RowHead, SealError, assign, values_of};
use super::{ObjectsRun, no_object};
use crate::frame_text::FrameText;
use crate::objects::{id_text, new_id};
use crate::subjects::{ReadableRow, TERMS_PER_FIELD, claim, claims_of};

/// Attempts to update objects that other requests change at the same time.
const TRIES_MAX: u32 = 8;
/// Most index terms of one property: of its value and of prefixes of four lengths.
const PROPERTY_TERMS_MAX: u64 = 5;

/// The writes of a request.
pub(super) enum WriteSpec {
    Add {
        objects: Bytes,
        tags: Vec<String>,
        expires_s: Option<u64>,
        idempotency_key: Option<IdempotencyKey>,
        /// Names of data subjects: none, one of all objects, or one per object.
        subjects: Vec<FrameText>,
        access: PropertyAccess,
    },
    Update {
        changes: Bytes,
        access: PropertyAccess,
    },
    Delete {
        ids: Vec<ObjectId>,
        versions: Option<Vec<u64>>,
    },
    Expire {
        ids: Vec<ObjectId>,
        expires_s: Option<u64>,
    },
}

impl ObjectsRun<'_> {
    pub(super) async fn write(
        &mut self,
        spec: WriteSpec,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        match spec {
            WriteSpec::Add {
                objects,
                tags,
                expires_s,
                idempotency_key,
                subjects,
                access,
            } => {
                let time = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                let created = time.as_secs();
                let created_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                let details = encode_details(&tags, expires_s);
                let expires_s = expires_s.or(self.located.collection.schema.expires_s);
                let expires = expires_s.map(|seconds| created.saturating_add(seconds));
                let subjects = self.subject_ids(subjects).await?;
                let add = AddSpec {
                    tags,
                    details,
                    created,
                    created_ms,
                    expires,
                    idempotency_key,
                    subjects,
                    access,
                };
                self.add(&objects, add, out).await
            }
            WriteSpec::Update { changes, access } => self.update(&changes, access, out).await,
            WriteSpec::Delete { ids, versions } => {
                let writes = ids
                    .iter()
                    .enumerate()
                    .map(|(at, id)| ObjectWrite::Delete {
                        id: *id,
                        version: versions.as_ref().map(|versions| versions[at]),
                    })
                    .collect();
                self.write_counted(writes, out).await
            }
            WriteSpec::Expire { ids, expires_s } => {
                let expires = expires_s.map(|seconds| now().saturating_add(seconds));
                let writes = ids
                    .iter()
                    .map(|id| ObjectWrite::Expire { id: *id, expires })
                    .collect();
                self.write_counted(writes, out).await
            }
        }
    }

    /// Makes writes without values, and responds with their number.
    async fn write_counted(
        &mut self,
        writes: Vec<ObjectWrite>,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        // A request without values also waits for a crypto thread.
        run_each(
            self.admission,
            OperationKind::OPEN_OBJECTS,
            self.cancel,
            Vec::<()>::new(),
            |()| (),
        )
        .await?;
        let count = writes.len();

        match self.write_group(writes).await? {
            ObjectsWritten::Done => {
                self.count(count, 0);
                let generation = self.located.generation;
                Counted {
                    count: count as u64,
                    missing: Vec::new(),
                    next: None,
                    generation,
                }
                .encode(out);
                Ok(())
            }
            ObjectsWritten::Conflicts(conflicts) => Err(self.conflict_failure(&conflicts)),
            ObjectsWritten::SubjectsChanged => Err(RequestFailure::SubjectsChanged),
        }
    }

    /// Reserves memory for rows that the request keeps until they are written.
    fn reserve_rows<'r>(
        &mut self,
        rows: impl Iterator<Item = &'r ObjectRow>,
    ) -> Result<(), RequestFailure> {
        let bytes = rows.map(ObjectRow::bytes).sum::<usize>();
        self.objects
            .resize(self.admission, self.admission.bytes().saturating_add(bytes))
    }

    /// Writes a group without claims of subjects. The caller has reserved memory for its rows.
    async fn write_group(
        &mut self,
        writes: Vec<ObjectWrite>,
    ) -> Result<ObjectsWritten, RequestFailure> {
        self.write_claimed(writes, Vec::new()).await
    }

    /// Writes a group. The caller has reserved memory for its rows.
    async fn write_claimed(
        &mut self,
        writes: Vec<ObjectWrite>,
        subjects: Vec<SubjectClaim>,
    ) -> Result<ObjectsWritten, RequestFailure> {
        let group = ObjectGroup {
            view: self.located.view(),
            writes,
            subjects,
        };
        self.objects.write(group, self.deadline).await
    }

    async fn add(
        &mut self,
        objects: &Bytes,
        spec: AddSpec,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        let sealer = ObjectSealer::new(self.located.collection.clone())?;
        let objects: Vec<(usize, Bytes)> = split_items(objects)?.into_iter().enumerate().collect();
        self.count(objects.len(), 0);
        if spec.subjects.len() > 1 && spec.subjects.len() != objects.len() {
            return Err(RequestFailure::Param {
                name: "subjects",
                rule: "must be one name, or as many as objects",
            });
        }

        let spec = Arc::new(spec);
        let before = self.admission.bytes();
        for _ in 0..TRIES_MAX {
            let keys = self.claim_subjects(&spec.subjects).await?;
            let rows = self.added_rows(&sealer, &objects, &spec, &keys).await?;
            let added: Vec<AddedObject> = rows
                .iter()
                .map(|(row, creation)| (row.id, *creation))
                .collect();
            let writes = rows
                .into_iter()
                .map(|(row, _)| ObjectWrite::Add(row))
                .collect();
            let changed = match self.write_claimed(writes, keys.claims).await? {
                ObjectsWritten::Done => added.iter().map(|(id, _)| version_of(*id, 1)).collect(),
                ObjectsWritten::SubjectsChanged => {
                    self.objects.resize(self.admission, before)?;
                    continue;
                }
                ObjectsWritten::Conflicts(conflicts) => {
                    if spec.idempotency_key.is_none()
                        || !conflicts
                            .iter()
                            .any(|(_, conflict)| *conflict == ObjectConflict::Exists)
                    {
                        return Err(self.conflict_failure(&conflicts));
                    }
                    self.previously_added(&added).await?
                }
            };
            ObjectsChanged {
                objects: changed,
                generation: self.located.generation,
            }
            .encode(out);
            return Ok(());
        }
        Err(RequestFailure::SubjectsChanged)
    }

    /// Seals the objects of an `objects.add`.
    async fn added_rows(
        &mut self,
        sealer: &ObjectSealer,
        objects: &[(usize, Bytes)],
        spec: &Arc<AddSpec>,
        keys: &ClaimedSubjects,
    ) -> Result<Vec<(ObjectRow, Option<[u8; 16]>)>, RequestFailure> {
        let terms = sealer.terms_max();
        let sealer = sealer.clone();
        let spec = Arc::clone(spec);
        let keys = Arc::clone(&keys.keys);
        let mut bound = ErrorBound::default();
        let objects = objects.to_vec();
        let rows = run_each_sized(
            self.admission,
            OperationKind::SEAL_OBJECTS,
            self.cancel,
            objects,
            move |(_, object)| object_work(object, terms),
            move |(position, object)| bound.run(|| spec.row(&sealer, &keys, position, &object)),
        )
        .await?;

        let rows = collect_rows(rows)?;
        self.reserve_rows(rows.iter().map(|(row, _)| row))?;
        Ok(rows)
    }

    /// Returns the ids of subjects by name.
    async fn subject_ids(
        &mut self,
        names: Vec<FrameText>,
    ) -> Result<Vec<SubjectId>, RequestFailure> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let keys = Arc::clone(&self.located.collection.object_keys);
        run_each(
            self.admission,
            OperationKind::SEAL_OBJECTS,
            self.cancel,
            names,
            move |name| SubjectId(keys.subject_id(name.as_str().as_bytes())),
        )
        .await
    }

    /// Returns the keys of subjects. A subject without a key gets one, which is written with the
    /// objects.
    async fn claim_subjects(
        &mut self,
        ids: &[SubjectId],
    ) -> Result<ClaimedSubjects, RequestFailure> {
        let distinct: BTreeSet<SubjectId> = ids.iter().copied().collect();
        if distinct.is_empty() {
            return Ok(ClaimedSubjects::default());
        }

        self.cancel.note_subjects(distinct.iter().map(|id| id.0));
        let stored = self
            .read_subjects(distinct.iter().copied().collect())
            .await?;
        let keys = Arc::clone(&self.located.collection.token_keys);
        let time = now();
        let distinct = distinct.into_iter().collect();
        let claimed = run_each(
            self.admission,
            OperationKind::SEAL_OBJECTS,
            self.cancel,
            distinct,
            move |id| claim(&keys, id, stored.get(&id).map(|subject| &**subject), time),
        )
        .await?;

        let mut claims = Vec::with_capacity(claimed.len());
        let mut keys = HashMap::with_capacity(claimed.len());
        for subject in claimed {
            let (claim, key) = subject?;
            keys.insert(SubjectId(*key.id()), Arc::new(key));
            claims.push(claim);
        }

        Ok(ClaimedSubjects {
            keys: Arc::new(keys),
            claims,
        })
    }

    /// Returns the objects that an earlier request with the idempotency key added.
    async fn previously_added(
        &mut self,
        added: &[AddedObject],
    ) -> Result<Vec<ObjectVersion>, RequestFailure> {
        let ids: Vec<ObjectId> = added.iter().map(|(id, _)| *id).collect();
        let mut found = Vec::with_capacity(ids.len());
        let before = self.admission.bytes();
        let most = self.objects.reserve(self.admission, ids.len())?;

        for ids in ids.chunks(most) {
            let rows = self.read_rows(ids.to_vec()).await?;
            let collection = self.located.collection.clone();
            let opened = run_each_sized(
                self.admission,
                OperationKind::OPEN_OBJECTS,
                self.cancel,
                rows,
                |row| row.as_ref().map_or(ExtraWork::default(), ReadableRow::work),
                move |row| {
                    let row = row?;
                    Some((row.row.version, collection.open(&row).ok()?.creation))
                },
            )
            .await?;
            found.extend(opened);
        }

        self.objects.resize(self.admission, before)?;
        let errors: Vec<ItemError> = added
            .iter()
            .zip(&found)
            .enumerate()
            .filter(|(_, ((_, creation), found))| {
                !found.is_some_and(|(_, found)| found.is_some() && found == *creation)
            })
            .map(|(position, _)| ItemError {
                path: format!("$[{position}]"),
                code: ErrorCode::Conflict,
                message:
                    "the idempotency key belongs to other objects, or some of its objects are gone"
                        .into(),
            })
            .collect();

        if !errors.is_empty() {
            return Err(RequestFailure::Items { errors });
        }

        let versions = added
            .iter()
            .zip(found)
            .filter_map(|((id, _), found)| Some(version_of(*id, found?.0)));
        Ok(versions.collect())
    }

    async fn update(
        &mut self,
        changes: &Bytes,
        access: PropertyAccess,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        let sealer = ObjectSealer::new(self.located.collection.clone())?;
        let changes = split_items(changes)?;
        self.count(changes.len(), 0);
        let specs: Vec<Result<UpdateSpec, ItemError>> = changes
            .iter()
            .enumerate()
            .map(|(position, item)| {
                let ObjectChange {
                    id,
                    if_version,
                    set,
                } = parse_change(&format!("$[{position}]"), item)?;
                Ok(UpdateSpec {
                    position,
                    id,
                    if_version,
                    set: item.slice_ref(set),
                })
            })
            .collect();

        let errors: Vec<ItemError> = specs
            .iter()
            .filter_map(|spec| spec.as_ref().err().cloned())
            .collect();

        if !errors.is_empty() {
            return Err(RequestFailure::Items { errors });
        }

        let specs: Vec<UpdateSpec> = specs.into_iter().flatten().collect();
        check_distinct(&specs)?;
        let before = self.admission.bytes();
        for tries in 1.. {
            let rows = self.updated_rows(&sealer, &specs, &access).await?;
            let changed = rows
                .iter()
                .map(|row| version_of(row.id, row.version))
                .collect();
            let Some(claims) = claims_of(&rows) else {
                if tries >= TRIES_MAX {
                    return Err(RequestFailure::SubjectsChanged);
                }
                self.objects.resize(self.admission, before)?;
                continue;
            };
            self.cancel
                .note_subjects(claims.iter().map(|claim| claim.row_id().0));
            match self
                .write_claimed(rows.into_iter().map(ObjectWrite::Replace).collect(), claims)
                .await?
            {
                ObjectsWritten::Done => {
                    ObjectsChanged {
                        objects: changed,
                        generation: self.located.generation,
                    }
                    .encode(out);
                    return Ok(());
                }
                ObjectsWritten::Conflicts(conflicts) => {
                    if tries >= TRIES_MAX
                        || !conflicts.iter().any(|(at, conflict)| {
                            matches!(conflict, ObjectConflict::Version { .. })
                                && specs[*at].if_version.is_none()
                        })
                    {
                        return Err(self.conflict_failure(&conflicts));
                    }
                    self.objects.resize(self.admission, before)?;
                }
                ObjectsWritten::SubjectsChanged if tries >= TRIES_MAX => {
                    return Err(RequestFailure::SubjectsChanged);
                }
                ObjectsWritten::SubjectsChanged => self.objects.resize(self.admission, before)?,
            }
        }
        Err(RequestFailure::Internal("the last attempt returns"))
    }

    /// Returns the rows of objects with their changes.
    async fn updated_rows(
        &mut self,
        sealer: &ObjectSealer,
        specs: &[UpdateSpec],
        access: &PropertyAccess,
    ) -> Result<Vec<ObjectRow>, RequestFailure> {
        let mut updated = Vec::with_capacity(specs.len());
        let most = self.objects.reserve(self.admission, specs.len())?;
        let time = now();
        let terms = sealer.terms_max();

        for specs in specs.chunks(most) {
            let rows = self
                .read_rows(specs.iter().map(|spec| spec.id).collect())
                .await?;
            let jobs: Vec<(UpdateSpec, Option<ReadableRow>)> =
                specs.iter().cloned().zip(rows).collect();
            let sealer = sealer.clone();
            let access = access.clone();
            let mut bound = ErrorBound::default();
            let rows = run_each_sized(
                self.admission,
                OperationKind::SEAL_OBJECTS,
                self.cancel,
                jobs,
                move |(spec, row)| {
                    let row = row.as_ref().map_or(ExtraWork::default(), ReadableRow::work);
                    object_work(&spec.set, terms).plus(row)
                },
                move |(spec, row)| bound.run(|| spec.row(&sealer, &access, row, time)),
            )
            .await?;
            // Small changes can make many large rows, so each part is reserved before the next one
            // is read.
            self.reserve_rows(rows.iter().filter_map(|row| row.as_ref().ok()))?;
            updated.extend(rows);
        }
        collect_rows(updated)
    }

    fn conflict_failure(&self, conflicts: &[(usize, ObjectConflict)]) -> RequestFailure {
        let schema = &self.located.collection.schema;
        RequestFailure::Items {
            errors: conflicts
                .iter()
                .map(|(position, conflict)| {
                    let path = format!("$[{position}]");
                    match conflict {
                        ObjectConflict::Absent => no_object(*position),
                        ObjectConflict::Exists => conflict_at(path, "an object of this id exists"),
                        ObjectConflict::Version { found } => {
                            conflict_at(path, &format!("the object has version {found}"))
                        }
                        ObjectConflict::Unique { index } => {
                            let property = schema.properties.iter().find(|property| {
                                property
                                    .index
                                    .as_ref()
                                    .is_some_and(|of| of.number == *index)
                            });
                            let path = property.map_or(path.clone(), |property| {
                                property_path(&path, property.name.as_str())
                            });
                            conflict_at(path, "another object has this value")
                        }
                    }
                })
                .collect(),
        }
    }
}

fn conflict_at(path: String, message: &str) -> ItemError {
    ItemError {
        path,
        code: ErrorCode::Conflict,
        message: message.to_owned().into(),
    }
}

/// The keys of the subjects that a request names, and the claims with which the store checks that
/// they are current.
#[derive(Default)]
struct ClaimedSubjects {
    keys: Arc<HashMap<SubjectId, Arc<SubjectKey>>>,
    claims: Vec<SubjectClaim>,
}

/// An object that a request adds: its id, and with an idempotency key the hash of its values.
type AddedObject = (ObjectId, Option<[u8; 16]>);

/// The fields that all objects of an `objects.add` have in common.
struct AddSpec {
    tags: Vec<String>,
    /// Encodes tags and expiry for the creation hash.
    details: Vec<u8>,
    created: u64,
    created_ms: u64,
    expires: Option<u64>,
    idempotency_key: Option<IdempotencyKey>,
    /// Empty, one subject of all objects, or one subject per object.
    subjects: Vec<SubjectId>,
    access: PropertyAccess,
}

/// Encodes the settings of a request other than values. `expires_s` is the request's lifetime: the
/// collection's default can change before the request is repeated.
fn encode_details(tags: &[String], expires_s: Option<u64>) -> Vec<u8> {
    let mut details = tags.join("\0").into_bytes();
    if let Some(expires_s) = expires_s {
        // No tag has this byte.
        details.push(0xff);
        details.extend_from_slice(&expires_s.to_be_bytes());
    }
    details
}

/// Adds the subject of an object to the details of its request.
fn details_of<'a>(details: &'a [u8], subject: Option<&SubjectId>) -> Cow<'a, [u8]> {
    // No tag has the byte 254, and the id has a fixed length.
    subject.map_or(Cow::Borrowed(details), |id| {
        Cow::Owned([details, &[0xfe], &id.0].concat())
    })
}

impl AddSpec {
    /// Returns the row of an object, and with an idempotency key the hash of its values.
    fn row(
        &self,
        sealer: &ObjectSealer,
        keys: &HashMap<SubjectId, Arc<SubjectKey>>,
        position: usize,
        object: &[u8],
    ) -> Result<(ObjectRow, Option<[u8; 16]>), SealError> {
        let path = format!("$[{position}]");
        let reader = ValueReader {
            collection: &sealer.collection,
            access: &self.access,
        };
        let values = values_of(reader.read(&path, object).map_err(SealError::Invalid)?);
        let subject = self.subjects.get(position).or(self.subjects.first());
        let collection = sealer.collection.map.collection;
        let hashes = &sealer.collection.object_keys;
        let (id, creation) = match &self.idempotency_key {
            Some(IdempotencyKey { principal, key }) => {
                let id = hashes.id_of_request(collection, principal, key, position as u32);
                let details = details_of(&self.details, subject);
                (
                    ObjectId(id),
                    Some(hashes.creation_hash(collection, &id, &values, &details)),
                )
            }
            None => (new_id(self.created_ms, position), None),
        };

        let head = RowHead {
            id,
            version: 1,
            created: self.created,
            updated: self.created,
            expires: self.expires,
            tags: self.tags.clone(),
            creation,
            subject: subject.and_then(|id| keys.get(id).cloned()),
        };

        Ok((
            sealer.row(&path, head, &values, KeptTerms::default())?,
            creation,
        ))
    }
}

/// A change of one object. Cheap to copy: its values are a part of the message.
#[derive(Clone)]
struct UpdateSpec {
    position: usize,
    id: ObjectId,
    if_version: Option<u64>,
    set: Bytes,
}

impl UpdateSpec {
    fn row(
        &self,
        sealer: &ObjectSealer,
        access: &PropertyAccess,
        row: Option<ReadableRow>,
        time: u64,
    ) -> Result<ObjectRow, SealError> {
        let path = format!("$[{}]", self.position);
        let collection = &sealer.collection;
        let readable = row.ok_or_else(|| SealError::Invalid(vec![no_object(self.position)]))?;
        let subject = collection
            .subject_key(&readable)
            .map_err(|_| SealError::CannotOpen)?;
        let row = readable.row;

        if self
            .if_version
            .is_some_and(|version| version != row.version)
        {
            let message = format!("the object has version {}", row.version).into();
            return Err(SealError::Invalid(vec![ItemError {
                path,
                code: ErrorCode::Conflict,
                message,
            }]));
        }

        let opened = collection
            .open_with(&row, subject.as_deref())
            .map_err(|_| SealError::CannotOpen)?;
        let reader = ValueReader { collection, access };
        let assignments = reader
            .read(&format!("{path}.set"), &self.set)
            .map_err(SealError::Invalid)?;
        let mut values: Values = opened.values;
        assign(collection, &mut values, assignments);
        let kept = KeptTerms::of(collection, &row);
        let ObjectRow {
            id,
            version,
            created,
            expires,
            tags,
            ..
        } = row;

        let version = version + 1;
        let updated = time.max(created);
        let head = RowHead {
            id,
            version,
            created,
            updated,
            expires,
            tags,
            creation: opened.creation,
            subject,
        };
        sealer.row(&path, head, &values, kept)
    }
}

fn check_distinct(specs: &[UpdateSpec]) -> Result<(), RequestFailure> {
    let mut ids: Vec<(ObjectId, usize)> =
        specs.iter().map(|spec| (spec.id, spec.position)).collect();
    ids.sort_unstable();
    let twice = ids.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let errors: Vec<ItemError> = twice
        .map(|pair| {
            invalid_item(
                format!("$[{}]", pair[1].1),
                "the request names this object twice",
            )
        })
        .collect();

    if errors.is_empty() {
        Ok(())
    } else {
        Err(RequestFailure::Items { errors })
    }
}

/// Bounds the errors that the objects of a request have together.
#[derive(Default)]
struct ErrorBound {
    found: usize,
}

impl ErrorBound {
    /// Seals an object, unless the objects before it have as many errors as a response lists.
    fn run<T>(&mut self, seal: impl FnOnce() -> Result<T, SealError>) -> Result<T, SealError> {
        if self.found >= ERRORS_MAX {
            return Err(SealError::Invalid(Vec::new()));
        }
        let sealed = seal();
        if let Err(SealError::Invalid(errors)) = &sealed {
            self.found += errors.len();
        }
        sealed
    }
}

/// Returns the sealed rows, or the errors of all objects.
fn collect_rows<T>(rows: Vec<Result<T, SealError>>) -> Result<Vec<T>, RequestFailure> {
    let mut sealed = Vec::with_capacity(rows.len());
    let mut errors = Vec::new();
    for (position, row) in rows.into_iter().enumerate() {
        match row {
            Ok(row) => sealed.push(row),
            Err(SealError::Invalid(more)) => errors.extend(more),
            Err(SealError::CannotOpen) => errors.push(ItemError {
                path: format!("$[{position}]"),
                code: ErrorCode::CannotOpen,
                message: "cannot open".into(),
            }),
            Err(SealError::Library) => {
                return Err(RequestFailure::Internal("the crypto library failed"));
            }
        }
    }

    if errors.is_empty() {
        Ok(sealed)
    } else {
        Err(RequestFailure::Items { errors })
    }
}

fn version_of(id: ObjectId, version: u64) -> ObjectVersion {
    ObjectVersion {
        id: id_text(id),
        version,
    }
}

/// Returns the work of an unparsed object, of which each property is read, indexed and sealed.
/// `terms_max`: maximum number of index terms of an object in the collection.
pub(super) fn object_work(object: &[u8], terms_max: u64) -> ExtraWork {
    let properties = u64::from(TokenReader::new(object).map_len().unwrap_or(0));
    let terms = terms_max.min(properties.saturating_mul(PROPERTY_TERMS_MAX));
    ExtraWork {
        fields: 1 + properties + terms / TERMS_PER_FIELD,
        bytes: object.len() as u64,
    }
}
