//! The `subjects.*` methods: export and erasure of the objects and tokens of a data subject, in all
//! collections of an app.

use std::sync::Arc;

use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::{ExtraWork, OperationKind};
use crate::jobs::error::RequestFailure;
use crate::jobs::objects::Objects;
use crate::jobs::scheduler::AdmissionPermit;
use crate::jobs::tokens::batch::{run_each, run_each_sized};
use crate::jobs::tokens::now;
use crate::jobs::tokens::store_io::Tokens;
use sealwire_access::ValueVisibility;
use sealwire_crypto::Datatype;
use sealwire_msgpack::write;
use sealwire_records::token::RowBuffer;
use sealwire_store::{
    ERASURES_COLLECTION, MapId, MapView, ObjectGroup, ObjectId, ObjectRow, ObjectWrite,
    ObjectsWritten, Row, SCAN_BYTES, SubjectClaim, SubjectId, TokenId,
};
use sealwire_wire::shared::{Own, Source, SubjectsOperation};
use sealwire_wire::{
    Object, ResultCodec as _, SubjectErased, SubjectExport, SubjectFound, SubjectName,
    SubjectToken, SubjectsRequest,
};
use tokio::time::Instant;

use super::objects::{disclose_values, object_response};
use crate::apps::{Apps, CachedApp};
use crate::frame_text::{Frame, FrameText};
use crate::objects::{DisclosedProperty, ObjectCollection, id_text, parse_id};
use crate::operation::{
    MessageSize, Operation, Plan, PlanContext, StoreContext, StorePlan, StoreRun,
};
use crate::subjects::{
    ErasureStep, ReadableRow, StoredSubject, StoredSubjects, SubjectKeyCache, erased_row,
    erasure_step, unfinished, unfinished_version,
};

/// Default number of objects or tokens on a page.
const PAGE_DEFAULT: usize = 100;
/// Objects that one step of an erasure reads.
const OBJECTS_PER_STEP: usize = 500;
/// A `subjects.erase` starts no further step after it has removed this many objects and tokens.
/// Later requests or the sweep remove the rest.
const REMOVED_ENOUGH: u64 = 32_000;
/// Token rows that one step of an erasure reads. Rows under a newer key are read and not removed.
const TOKENS_PER_STEP: usize = 2_000;
/// Attempts to erase a key that other requests change at the same time.
const TRIES_MAX: u32 = 8;

/// A decoded `subjects.*` request, whose texts share the bytes of the message.
pub(super) struct SubjectsJob {
    subject: NamedSubject,
    operation: SubjectsOperation<FrameText>,
}

enum NamedSubject {
    Name(FrameText),
    Id(SubjectId),
}

/// The key that a request erases: one of at most this version, made at or before this time. `None`:
/// any.
#[derive(Clone, Copy)]
struct ErasedKey {
    version: Option<u64>,
    created: Option<u64>,
}

impl ErasedKey {
    fn covers(self, row: &ObjectRow) -> bool {
        self.version.is_none_or(|version| row.version <= version)
            && self.created.is_none_or(|created| row.created <= created)
    }
}

impl SubjectsJob {
    pub(super) fn new(frame: &Frame<'_>, request: &SubjectsRequest<'_>) -> Self {
        let subject = match request.target.subject {
            SubjectName::Name(name) => NamedSubject::Name(frame.text(name)),
            // The wire admits 32 hexadecimal digits only.
            SubjectName::Id(id) => NamedSubject::Id(SubjectId(
                u128::from_str_radix(id, 16)
                    .unwrap_or_default()
                    .to_be_bytes(),
            )),
        };
        let operation = request.operation.own(frame);
        Self { subject, operation }
    }
}

impl Operation for SubjectsJob {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        OperationKind::OPEN_OBJECTS
    }

    fn fields_max(&self, _: MessageSize) -> u64 {
        match self.operation {
            SubjectsOperation::Export { limit, .. } => {
                page_limit(limit) as u64 * sealwire_wire::PROPERTIES_MAX as u64
            }
            SubjectsOperation::Find | SubjectsOperation::Erase { .. } => 1,
        }
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let (generation, app) = context.app()?;
        let id = match self.subject {
            NamedSubject::Name(name) => {
                SubjectId(app.object_keys().subject_id(name.as_str().as_bytes()))
            }
            NamedSubject::Id(id) => id,
        };
        let task = match self.operation {
            SubjectsOperation::Find => SubjectTask::Find,
            SubjectsOperation::Export { after, limit } => {
                let after = after
                    .map(|after| parse_cursor(app.number, after.as_str()))
                    .transpose()?;
                let after = after.unwrap_or(ExportCursor::Object(None));
                let limit = page_limit(limit);
                SubjectTask::Export { after, limit }
            }
            SubjectsOperation::Erase { version, created } => {
                SubjectTask::Erase(ErasedKey { version, created })
            }
        };

        Ok(Plan::Store(Box::new(SubjectsPlan {
            generation,
            app,
            id,
            task,
        })))
    }
}

fn page_limit(limit: Option<u32>) -> usize {
    limit.map_or(PAGE_DEFAULT, |limit| limit as usize)
}

/// Position of an export, which has objects first, then tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExportCursor {
    /// After this object; `None`: from the first.
    Object(Option<(MapId, ObjectId)>),
    /// After this token; `None`: from the first.
    Token(Option<(MapId, TokenId)>),
}

/// Marks the cursor of a token.
const TOKEN_CURSOR: &str = "token.";

/// Parses the cursor of an export: the number of a collection, and the id of an object or token in
/// it.
fn parse_cursor(app: u32, text: &str) -> Result<ExportCursor, RequestFailure> {
    try_parse_cursor(app, text).ok_or(RequestFailure::Param {
        name: "after",
        rule: "must be the next of the page before",
    })
}

fn try_parse_cursor(app: u32, text: &str) -> Option<ExportCursor> {
    let of_token = text.strip_prefix(TOKEN_CURSOR);
    let (collection, id) = of_token.unwrap_or(text).split_once('.')?;
    let collection = collection
        .parse()
        .ok()
        .filter(|collection| *collection < ERASURES_COLLECTION)?;
    let map = MapId { app, collection };
    Some(match of_token {
        Some(_) => ExportCursor::Token(Some((map, super::tokens::parse_cursor(id).ok()?))),
        None => ExportCursor::Object(Some((map, parse_id(id)?))),
    })
}

/// Encodes a value of a token as one MessagePack value.
fn value_text(datatype: Datatype, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 5);
    match datatype {
        // The row was opened, so it is valid UTF-8.
        Datatype::String => write::str(&mut out, str::from_utf8(value).unwrap_or_default()),
        Datatype::Binary => write::bin(&mut out, value),
        Datatype::Value => out.extend_from_slice(value),
    }
    out
}

/// Returns the id by which requests and the audit log name a subject.
fn subject_text(id: SubjectId) -> String {
    format!("{:032x}", u128::from_be_bytes(id.0))
}

/// A request of one of these methods, resolved against the apps.
struct SubjectsPlan {
    generation: u64,
    app: Arc<CachedApp>,
    id: SubjectId,
    task: SubjectTask,
}

enum SubjectTask {
    Find,
    Export { after: ExportCursor, limit: usize },
    Erase(ErasedKey),
}

impl StorePlan for SubjectsPlan {
    fn response_bytes(&self) -> usize {
        // Rows and responses are reserved when they are read.
        4_096
    }

    fn run<'a>(self: Box<Self>, context: StoreContext<'a>) -> StoreRun<'a> {
        let Self {
            generation,
            app,
            id,
            task,
        } = *self;
        let StoreContext {
            tokens,
            objects,
            admission,
            cancel,
            deadline,
            reply_bytes_max,
            out,
        } = context;

        let mut run = SubjectsRun {
            generation,
            app,
            id,
            tokens,
            objects,
            admission,
            cancel,
            deadline,
        };

        Box::pin(async move {
            run.cancel.set_generation(generation);
            run.cancel.note_subjects([id.0]);
            match task {
                SubjectTask::Find => run.find().await?.encode(out),
                SubjectTask::Erase(key) => run.erase(key).await?.encode(out),
                SubjectTask::Export { after, limit } => run.export(after, limit).await?.encode(out),
            }
            if out.len() > reply_bytes_max {
                Err(RequestFailure::ResponseTooLarge { reply_bytes_max })
            } else {
                Ok(())
            }
        })
    }
}

/// Runs one request.
struct SubjectsRun<'a> {
    generation: u64,
    app: Arc<CachedApp>,
    id: SubjectId,
    tokens: &'a Tokens,
    objects: &'a Objects,
    admission: &'a mut AdmissionPermit,
    cancel: &'a Arc<CancelToken>,
    deadline: Instant,
}

impl SubjectsRun<'_> {
    /// Returns a map of the app, as requests to the store name it.
    fn view(&self, map: fn(u32) -> MapId) -> MapView {
        MapView {
            map: map(self.app.number),
            generation: self.generation,
        }
    }

    /// Returns the subject's row in a map.
    async fn row(&self, map: fn(u32) -> MapId) -> Result<Option<ObjectRow>, RequestFailure> {
        let view = self.view(map);
        let now = now();
        let ids = [self.id.row()];
        Ok(self
            .objects
            .read(view.map, move |store| async move {
                store.get_objects(now, view, &ids).await
            })
            .await?
            .pop()
            .flatten())
    }

    /// Takes a turn on the crypto threads, as every request does.
    async fn take_turn(&mut self) -> Result<(), RequestFailure> {
        run_each(
            self.admission,
            OperationKind::OPEN_OBJECTS,
            self.cancel,
            Vec::<()>::new(),
            |()| (),
        )
        .await
        .map(drop)
    }

    async fn find(&mut self) -> Result<SubjectFound, RequestFailure> {
        self.take_turn().await?;
        let row = self.row(MapId::of_subjects).await?;
        let version = row.as_ref().map_or(0, |row| row.version);
        let known = version % 2 == 1;
        // The row of an erased subject was changed last when it was erased.
        let erased = row.filter(|_| !known).map(|row| row.updated);
        self.cancel.set_field_counts(1, u64::from(!known));
        Ok(SubjectFound {
            id: subject_text(self.id),
            known,
            version,
            erased,
            generation: self.generation,
        })
    }

    async fn export(
        &mut self,
        after: ExportCursor,
        limit: usize,
    ) -> Result<SubjectExport, RequestFailure> {
        self.objects.resize(
            self.admission,
            self.admission.bytes().saturating_add(4 * SCAN_BYTES),
        )?;
        match after {
            ExportCursor::Object(after) => match self.export_objects(after, limit).await? {
                Some(page) => Ok(page),
                None => self.export_tokens(None, limit).await,
            },
            ExportCursor::Token(after) => self.export_tokens(after, limit).await,
        }
    }

    /// Returns a page of tokens with their values.
    async fn export_tokens(
        &mut self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<SubjectExport, RequestFailure> {
        let generation = self.generation;
        let app = self.app.number;
        let id = self.id;
        let page = self
            .tokens
            .sweep(app, move |store| async move {
                store.subject_rows(app, id, after, limit).await
            })
            .await?;
        // After the rows, so that none is returned once an erasure has its response.
        let key = self.row(MapId::of_subjects).await?.map(StoredSubject::new);
        let Some(first) = page.first().map(|(map, _)| *map) else {
            self.take_turn().await?;
            return Ok(SubjectExport {
                generation,
                ..SubjectExport::default()
            });
        };

        let rows: Vec<Row> = page
            .into_iter()
            .take_while(|(map, _)| *map == first)
            .map(|(_, row)| row)
            .collect();
        let next = rows.last().map(|row| {
            format!(
                "{TOKEN_CURSOR}{}.{}",
                first.collection,
                super::tokens::text(row.id)
            )
        });

        let rows: Vec<Row> = rows
            .into_iter()
            .filter(|row| {
                key.as_ref()
                    .is_some_and(|key| key.is_of(row.subject_version()))
            })
            .collect();

        // A collection without a name was deleted, and its tokens wait for the sweep.
        let Some((name, collection)) = self.app.token_collection_by_number(first.collection) else {
            return Ok(SubjectExport {
                next,
                generation,
                ..SubjectExport::default()
            });
        };

        let name = name.to_owned();
        let collection = Arc::clone(collection);
        let stored = key.map(|key| (id, Arc::new(key))).into_iter().collect();
        let mut keys_of = SubjectKeyCache::new(stored);
        let mut buffer = RowBuffer::default();
        let kind = OperationKind::OPEN_ROWS;
        let opened = run_each_sized(
            self.admission,
            kind,
            self.cancel,
            rows,
            |row| ExtraWork {
                fields: 1,
                bytes: row.bytes() as u64,
            },
            move |row| {
                let keys = &collection.keys;
                let unreadable = || super::tokens::text(row.id);
                let subject = keys_of.key(row.subject, keys).map_err(|_| unreadable())?;
                let opened = keys.open(
                    first.collection,
                    &row.id.0,
                    subject,
                    &row.sealed,
                    &mut buffer,
                );
                let opened = opened.map_err(|_| unreadable())?;
                Ok(SubjectToken {
                    token: opened.token().to_owned(),
                    value: opened
                        .value_in_any_context()
                        .map(|(datatype, value)| value_text(datatype, value)),
                    created: row.created,
                    expires: row.expires,
                    archived: row.archived,
                    tags: row.tags,
                })
            },
        )
        .await?;

        let mut tokens = Vec::with_capacity(opened.len());
        let mut unreadable = Vec::new();
        for token in opened {
            match token {
                Ok(token) => tokens.push(token),
                Err(id) => unreadable.push(id),
            }
        }

        self.cancel.set_field_counts(
            (tokens.len() + unreadable.len()) as u64,
            unreadable.len() as u64,
        );
        let objects = Vec::new();
        Ok(SubjectExport {
            collection: name,
            objects,
            tokens,
            unreadable,
            next,
            generation,
        })
    }

    /// Returns a page of objects. Returns `None` if none is left.
    async fn export_objects(
        &mut self,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Option<SubjectExport>, RequestFailure> {
        let generation = self.generation;
        let app = self.app.number;
        let id = self.id;
        let page = self
            .objects
            .sweep(self.view(MapId::of_subjects).map, move |store| async move {
                store
                    .subject_objects(generation, app, id, after, limit)
                    .await
            })
            .await?;

        // After the objects, so that none is returned once an erasure has its response.
        let key = self.row(MapId::of_subjects).await?.map(StoredSubject::new);
        let keys: StoredSubjects = key
            .map(|key| (self.id, Arc::new(key)))
            .into_iter()
            .collect();
        let Some(first) = page.first().map(|(map, _)| *map) else {
            return Ok(None);
        };
        let of_first: Vec<(MapId, ObjectRow)> = page
            .into_iter()
            .take_while(|(map, _)| *map == first)
            .collect();
        let next = of_first
            .last()
            .map(|(map, row)| format!("{}.{}", map.collection, id_text(row.id)));
        let rows: Vec<ReadableRow> = of_first
            .into_iter()
            .filter_map(|(_, row)| ReadableRow::of(row, &keys))
            .collect();
        // A collection without a name was deleted, and its objects wait for the sweep.
        let (collection, opened) = match self.app.object_collection_by_number(first.collection) {
            Some((name, collection)) => (
                name.to_owned(),
                self.opened(Arc::clone(collection), rows).await?,
            ),
            None => (String::new(), Vec::new()),
        };

        let mut objects = Vec::with_capacity(opened.len());
        let mut unreadable = Vec::new();
        for object in opened {
            match object {
                Ok(object) => objects.push(object),
                Err(id) => unreadable.push(id),
            }
        }

        self.cancel.set_field_counts(
            (objects.len() + unreadable.len()) as u64,
            unreadable.len() as u64,
        );
        Ok(Some(SubjectExport {
            collection,
            objects,
            tokens: Vec::new(),
            unreadable,
            next,
            generation,
        }))
    }

    /// Opens rows in any state, and returns all their values in the clear, or the id of an object
    /// that does not open.
    async fn opened(
        &mut self,
        collection: Arc<ObjectCollection>,
        rows: Vec<ReadableRow>,
    ) -> Result<Vec<Result<Object, String>>, RequestFailure> {
        let properties = collection.schema.properties.iter().map(|property| {
            let disclosure = self
                .app
                .role_masks()
                .disclosure(ValueVisibility::Clear, &collection.token_keys)?;
            let number = property.number;
            let name = property.name.as_str().to_owned();
            Ok::<_, RequestFailure>(DisclosedProperty {
                number,
                name,
                disclosure,
            })
        });

        let mut properties = properties.collect::<Result<Vec<_>, _>>()?;
        let kind = OperationKind::OPEN_OBJECTS;
        run_each_sized(
            self.admission,
            kind,
            self.cancel,
            rows,
            ReadableRow::work,
            move |row| {
                let opened = collection.open(&row).map_err(|_| id_text(row.row.id))?;
                Ok(object_response(
                    &row.row,
                    disclose_values(&collection, &opened, &mut properties),
                ))
            },
        )
        .await
    }

    async fn erase(&mut self, key: ErasedKey) -> Result<SubjectErased, RequestFailure> {
        self.take_turn().await?;
        let (version, erased) = self.erase_key(key).await?;
        self.objects.resize(
            self.admission,
            self.admission.bytes().saturating_add(2 * SCAN_BYTES),
        )?;
        let mut after = None;
        let mut objects = 0;
        let mut in_pass = 0;
        let mut done = false;
        let mut tokens = 0;
        let mut after_token = None;
        let mut is_last = false;

        while !is_last && tokens < REMOVED_ENOUGH {
            let subject = self.id;
            let of = self.app.number;
            let page = self
                .tokens
                .change(of, move |store| async move {
                    store
                        .erase_subject_rows(of, subject, version, after_token, TOKENS_PER_STEP)
                        .await
                })
                .await?;
            tokens += page.found;
            self.cancel.set_field_counts(tokens, 0);
            after_token = page.next;
            is_last = after_token.is_none();
        }

        while is_last && !done && tokens + objects < REMOVED_ENOUGH {
            let generation = self.generation;
            let subject = (self.app.number, self.id);
            let ErasureStep { groups, next } = self
                .objects
                .sweep(self.view(MapId::of_subjects).map, move |store| async move {
                    erasure_step(
                        &*store,
                        generation,
                        subject,
                        version,
                        after,
                        OBJECTS_PER_STEP,
                    )
                    .await
                })
                .await?;
            for group in groups {
                let count = group.writes.len() as u64;
                self.objects.write(group, self.deadline).await?;
                objects += count;
                in_pass += count;
                self.cancel.set_field_counts(tokens + objects, 0);
            }
            after = next;
            // A rewrap can have sealed an object again between the two steps of its removal.
            if after.is_none() && std::mem::take(&mut in_pass) == 0 {
                self.finish(version).await?;
                done = true;
            }
        }

        let id = subject_text(self.id);
        let version = version.saturating_sub(1);
        Ok(SubjectErased {
            id,
            erased,
            version,
            objects,
            tokens,
            done,
            generation: self.generation,
        })
    }

    /// Removes the subject's key. From then on no engine opens an object of the subject. Returns
    /// the version below which objects are to be removed, and whether a key was removed.
    async fn erase_key(&mut self, key: ErasedKey) -> Result<(u64, bool), RequestFailure> {
        for _ in 0..TRIES_MAX {
            let Some(row) = self.row(MapId::of_subjects).await? else {
                return Ok((0, false));
            };
            let has_key = row.version % 2 == 1;
            if !has_key || !key.covers(&row) {
                return Ok((
                    if has_key {
                        row.version - 1
                    } else {
                        row.version
                    },
                    false,
                ));
            }
            let now = now();
            let next = row.version + 1;
            let found = self.row(MapId::of_erasures).await?;
            // Noted first: the record of a request that is cut off from here on names the key, too.
            self.cancel.note_erasure(row.version, row.created);
            let mark = unfinished(self.id, next, now, found.as_ref());
            let claim = SubjectClaim::Erased(erased_row(&row, now));
            let group = ObjectGroup {
                view: self.view(MapId::of_erasures),
                writes: vec![mark],
                subjects: vec![claim],
            };
            if self.objects.write(group, self.deadline).await? == ObjectsWritten::Done {
                return Ok((next, true));
            }
        }

        Err(RequestFailure::Internal(
            "the key of a data subject changes too often",
        ))
    }

    /// Removes the mark of an unfinished erasure, unless it is of a later one.
    async fn finish(&self, version: u64) -> Result<(), RequestFailure> {
        let Some(mark) = self.row(MapId::of_erasures).await? else {
            return Ok(());
        };
        if unfinished_version(&mark) <= version {
            let writes = vec![ObjectWrite::Delete {
                id: mark.id,
                version: Some(mark.version),
            }];
            let group = ObjectGroup {
                view: self.view(MapId::of_erasures),
                writes,
                subjects: Vec::new(),
            };
            self.objects.write(group, self.deadline).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_collection_and_object() {
        let id = "0193185c-5000-7123-8000-000000000001";
        let map = MapId {
            app: 7,
            collection: 3,
        };
        let object = ExportCursor::Object(Some((map, parse_id(id).unwrap())));
        assert_eq!(parse_cursor(7, &format!("3.{id}")).unwrap(), object);
        let token = ExportCursor::Token(Some((map, TokenId([0xab; 16]))));
        assert_eq!(
            parse_cursor(7, &format!("token.3.{}", "ab".repeat(16))).unwrap(),
            token
        );
        for wrong in [
            "",
            ".",
            "3",
            "3.",
            &format!("-1.{id}"),
            &format!("x.{id}"),
            &format!("3.{id}0"),
            id,
            &format!("2147483647.{id}"),
            &format!("token.3.{id}"),
            "token.",
            "token.3.ab",
            &format!("3.{}", "ab".repeat(16)),
        ] {
            assert!(parse_cursor(7, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_id_has_32_digits() {
        assert_eq!(subject_text(SubjectId([0; 16])), "0".repeat(32));
        assert_eq!(subject_text(SubjectId([0xab; 16])), "ab".repeat(16));
    }
}
