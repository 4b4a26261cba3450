//! The `subjects.*` methods: what is stored about a data subject, in all collections of objects of an app.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_access::ValueVisibility;
use sealwire_jobs::cancel_token::CancelToken;
use sealwire_jobs::cost::OperationKind;
use sealwire_jobs::error::CallFailure;
use sealwire_jobs::objects::Objects;
use sealwire_jobs::scheduler::AdmissionPermit;
use sealwire_jobs::tokens::batch::{each, each_sized};
use sealwire_jobs::tokens::now;
use sealwire_store::{
    ERASURES_COLLECTION, MapId, MapView, ObjectGroup, ObjectId, ObjectRow, ObjectStore, ObjectWrite, ObjectsWritten,
    SCAN_BYTES, SubjectClaim, SubjectId,
};
use sealwire_wire::{Object, SubjectErased, SubjectFound, SubjectName, SubjectObjects, SubjectsOperation};
use tokio::time::Instant;

use super::objects::{disclosed, object};
use crate::apps::{Apps, CachedApp};
use crate::frame_text::FrameText;
use crate::objects::{DisclosedProperty, ObjectCollection, id_text, parse_id};
use crate::operation::{MessageSize, Operation, Plan, PlanContext, StoreContext, StorePlan, StoreRun};
use crate::subjects::{
    ReadableRow, RemovalStep, StoredSubject, StoredSubjects, erased_row, removal_step, unfinished, unfinished_version,
};

/// Objects on a page that names no limit.
const PAGE_DEFAULT: usize = 100;
/// Objects that one step of an erasure removes.
const REMOVED_PER_STEP: usize = 500;
/// Steps of one `subjects.erase`. The next request or the sweep removes the rest.
const STEPS_MAX: usize = 64;
/// Attempts to erase a key that other requests change at the same time.
const TRIES_MAX: u32 = 8;

/// A decoded request of one of these methods.
pub(super) struct SubjectsRequest {
    subject: NamedSubject,
    ask: Request,
}

enum NamedSubject {
    Name(FrameText),
    Id(SubjectId),
}

enum Request {
    Find,
    Export { after: Option<FrameText>, limit: usize },
    Erase(ErasedKey),
}

/// The key that a request erases: one of at most this version, made at or before this time. `None`: any.
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

impl SubjectsRequest {
    pub(super) fn new(frame: &Bytes, subject: SubjectName<'_>, ask: SubjectsOperation<'_>) -> Self {
        let subject = match subject {
            SubjectName::Name(name) => NamedSubject::Name(FrameText::new(frame, name)),
            // The wire admits 32 hexadecimal digits only.
            SubjectName::Id(id) => {
                NamedSubject::Id(SubjectId(u128::from_str_radix(id, 16).unwrap_or_default().to_be_bytes()))
            }
        };
        let ask = match ask {
            SubjectsOperation::Find => Request::Find,
            SubjectsOperation::Export { after, limit } => Request::Export {
                after: after.map(|after| FrameText::new(frame, after)),
                limit: limit.map_or(PAGE_DEFAULT, |limit| limit as usize),
            },
            SubjectsOperation::Erase { version, created } => Request::Erase(ErasedKey { version, created }),
        };
        Self { subject, ask }
    }
}

impl Operation for SubjectsRequest {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        OperationKind::OPEN_OBJECTS
    }

    fn fields_max(&self, _: MessageSize) -> u64 {
        match self.ask {
            Request::Export { limit, .. } => limit as u64 * sealwire_wire::PROPERTIES_MAX as u64,
            Request::Find | Request::Erase(_) => 1,
        }
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, CallFailure> {
        let (generation, app) = context.app()?;
        let id = match self.subject {
            NamedSubject::Name(name) => SubjectId(app.object_keys().subject_id(name.as_str().as_bytes())),
            NamedSubject::Id(id) => id,
        };
        let task = match self.ask {
            Request::Find => SubjectTask::Find,
            Request::Export { after, limit } => {
                let after = after.map(|after| cursor(app.number, after.as_str())).transpose()?;
                SubjectTask::Export { after, limit }
            }
            Request::Erase(key) => SubjectTask::Erase(key),
        };
        Ok(Plan::Store(Box::new(SubjectsPlan { generation, app, id, task })))
    }
}

/// Parses the cursor of an export: the number of a collection, and the id of an object in it.
fn cursor(app: u32, text: &str) -> Result<(MapId, ObjectId), CallFailure> {
    let parse = || {
        let (collection, id) = text.split_once('.')?;
        let collection = collection.parse().ok().filter(|collection| *collection < ERASURES_COLLECTION)?;
        Some((MapId { app, collection }, parse_id(id)?))
    };
    parse().ok_or(CallFailure::Param { name: "after", rule: "must be the next of the page before" })
}

/// Returns the id by which requests and the audit trail name a subject.
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
    Export { after: Option<(MapId, ObjectId)>, limit: usize },
    Erase(ErasedKey),
}

impl StorePlan for SubjectsPlan {
    fn response_bytes(&self) -> usize {
        // Rows and responses are reserved when they are read.
        4_096
    }

    fn run<'a>(self: Box<Self>, context: StoreContext<'a>) -> StoreRun<'a> {
        let Self { generation, app, id, task } = *self;
        let StoreContext { objects, admission, cancel, deadline, reply_bytes_max, out, .. } = context;
        let mut run = SubjectsRun { generation, app, id, objects, admission, cancel, deadline };
        Box::pin(async move {
            run.cancel.plan_under(generation);
            run.cancel.note_subjects([id.0]);
            match task {
                SubjectTask::Find => run.find().await?.encode(out),
                SubjectTask::Erase(key) => run.erase(key).await?.encode(out),
                SubjectTask::Export { after, limit } => run.export(after, limit).await?.encode(out),
            }
            if out.len() > reply_bytes_max { Err(CallFailure::ReplyTooLarge { reply_bytes_max }) } else { Ok(()) }
        })
    }
}

/// Runs one request.
struct SubjectsRun<'a> {
    generation: u64,
    app: Arc<CachedApp>,
    id: SubjectId,
    objects: &'a Objects,
    admission: &'a mut AdmissionPermit,
    cancel: &'a Arc<CancelToken>,
    deadline: Instant,
}

impl SubjectsRun<'_> {
    /// Returns a map of the app, as requests to the store name it.
    fn view(&self, map: fn(u32) -> MapId) -> MapView {
        MapView { map: map(self.app.number), generation: self.generation }
    }

    /// Returns the subject's row in a map.
    async fn row(&self, map: fn(u32) -> MapId) -> Result<Option<ObjectRow>, CallFailure> {
        let (view, now, ids) = (self.view(map), now(), [self.id.row()]);
        let ask = move |store: Arc<dyn ObjectStore>| async move { store.get_objects(now, view, &ids).await };
        Ok(self.objects.read(view.map, ask).await?.pop().flatten())
    }

    /// Takes a turn on the crypto threads, as every request does.
    async fn take_turn(&mut self) -> Result<(), CallFailure> {
        each(self.admission, OperationKind::OPEN_OBJECTS, self.cancel, Vec::<()>::new(), |()| ()).await.map(drop)
    }

    async fn find(&mut self) -> Result<SubjectFound, CallFailure> {
        self.take_turn().await?;
        let row = self.row(MapId::of_subjects).await?;
        let version = row.as_ref().map_or(0, |row| row.version);
        let known = version % 2 == 1;
        // The row of an erased subject was changed last when it was erased.
        let erased = row.filter(|_| !known).map(|row| row.updated);
        self.cancel.did(1, u64::from(!known));
        Ok(SubjectFound { id: subject_text(self.id), known, version, erased, generation: self.generation })
    }

    async fn export(&mut self, after: Option<(MapId, ObjectId)>, limit: usize) -> Result<SubjectObjects, CallFailure> {
        self.objects.resize(self.admission, self.admission.bytes().saturating_add(4 * SCAN_BYTES))?;
        let (generation, app, id) = (self.generation, self.app.number, self.id);
        let ask = move |store: Arc<dyn ObjectStore>| async move {
            store.subject_objects(generation, app, id, after, limit).await
        };
        let page = self.objects.sweep(self.view(MapId::of_subjects).map, ask).await?;
        // After the objects, so that none is returned once an erasure has its response.
        let key = self.row(MapId::of_subjects).await?.map(StoredSubject::new);
        let keys: StoredSubjects = key.map(|key| (self.id, Arc::new(key))).into_iter().collect();
        let Some(first) = page.first().map(|(map, _)| *map) else {
            self.take_turn().await?;
            return Ok(SubjectObjects { generation, ..SubjectObjects::default() });
        };
        let of_first: Vec<(MapId, ObjectRow)> = page.into_iter().take_while(|(map, _)| *map == first).collect();
        let next = of_first.last().map(|(map, row)| format!("{}.{}", map.collection, id_text(row.id)));
        let rows: Vec<ReadableRow> = of_first.into_iter().filter_map(|(_, row)| ReadableRow::of(row, &keys)).collect();
        // A collection without a name was deleted, and its objects wait for the sweep.
        let (collection, opened) = match self.app.objects_of_number(first.collection) {
            Some((name, collection)) => (name.to_owned(), self.opened(Arc::clone(collection), rows).await?),
            None => (String::new(), Vec::new()),
        };
        let (mut objects, mut unreadable) = (Vec::with_capacity(opened.len()), Vec::new());
        for object in opened {
            match object {
                Ok(object) => objects.push(object),
                Err(id) => unreadable.push(id),
            }
        }
        self.cancel.did((objects.len() + unreadable.len()) as u64, unreadable.len() as u64);
        Ok(SubjectObjects { collection, objects, unreadable, next, generation })
    }

    /// Opens rows in any state, and returns all their values in the clear, or the id of an object that does not open.
    async fn opened(
        &mut self,
        collection: Arc<ObjectCollection>,
        rows: Vec<ReadableRow>,
    ) -> Result<Vec<Result<Object, String>>, CallFailure> {
        let disclosed_property = |property: &sealwire_objects::Property| {
            let disclosure = self.app.role_masks().disclosure(ValueVisibility::Clear, &collection.token_keys)?;
            let (number, name) = (property.number, property.name.as_str().to_owned());
            Ok::<_, CallFailure>(DisclosedProperty { number, name, disclosure })
        };
        let properties = collection.schema.properties.iter().map(disclosed_property);
        let mut properties = properties.collect::<Result<Vec<_>, _>>()?;
        let step = move |row: ReadableRow| {
            let opened = collection.open(&row, None).map_err(|_| id_text(row.row.id))?;
            Ok(object(&row.row, disclosed(&collection, &opened, &mut properties)))
        };
        let kind = OperationKind::OPEN_OBJECTS;
        each_sized(self.admission, kind, self.cancel, rows, ReadableRow::bytes, step).await
    }

    async fn erase(&mut self, key: ErasedKey) -> Result<SubjectErased, CallFailure> {
        self.take_turn().await?;
        let (version, erased) = self.erase_key(key).await?;
        self.objects.resize(self.admission, self.admission.bytes().saturating_add(2 * SCAN_BYTES))?;
        let (mut after, mut objects, mut in_pass, mut done) = (None, 0, 0, false);
        for _ in 0..STEPS_MAX {
            let (generation, subject) = (self.generation, (self.app.number, self.id));
            let ask = move |store: Arc<dyn ObjectStore>| async move {
                removal_step(&*store, generation, subject, version, after, REMOVED_PER_STEP).await
            };
            let RemovalStep { groups, next } = self.objects.sweep(self.view(MapId::of_subjects).map, ask).await?;
            for group in groups {
                let count = group.writes.len() as u64;
                self.objects.write(group, self.deadline).await?;
                objects += count;
                in_pass += count;
                self.cancel.did(objects, 0);
            }
            after = next;
            // A rewrap can have sealed an object again between the two steps of its removal.
            if after.is_none() && std::mem::take(&mut in_pass) == 0 {
                self.finish(version).await?;
                done = true;
                break;
            }
        }
        let (id, version) = (subject_text(self.id), version.saturating_sub(1));
        Ok(SubjectErased { id, erased, version, objects, done, generation: self.generation })
    }

    /// Removes the subject's key. From then on no engine opens an object of the subject. Returns the version below which
    /// objects are to be removed, and whether a key was removed.
    async fn erase_key(&mut self, key: ErasedKey) -> Result<(u64, bool), CallFailure> {
        for _ in 0..TRIES_MAX {
            let Some(row) = self.row(MapId::of_subjects).await? else { return Ok((0, false)) };
            let has_key = row.version % 2 == 1;
            if !has_key || !key.covers(&row) {
                return Ok((if has_key { row.version - 1 } else { row.version }, false));
            }
            let (now, next) = (now(), row.version + 1);
            let found = self.row(MapId::of_erasures).await?;
            // Noted first: the record of a request that is cut off from here on names the key, too.
            self.cancel.note_erasure(row.version, row.created);
            let mark = unfinished(self.id, next, now, found.as_ref());
            let claim = SubjectClaim::Erased(erased_row(&row, now));
            let group = ObjectGroup { view: self.view(MapId::of_erasures), writes: vec![mark], subjects: vec![claim] };
            if self.objects.write(group, self.deadline).await? == ObjectsWritten::Done {
                return Ok((next, true));
            }
        }
        Err(CallFailure::Internal("the key of a data subject changes too often"))
    }

    /// Removes the mark of an unfinished erasure, unless it is of a later one.
    async fn finish(&self, version: u64) -> Result<(), CallFailure> {
        let Some(mark) = self.row(MapId::of_erasures).await? else { return Ok(()) };
        if unfinished_version(&mark) <= version {
            let writes = vec![ObjectWrite::Delete { id: mark.id, version: Some(mark.version) }];
            let group = ObjectGroup { view: self.view(MapId::of_erasures), writes, subjects: Vec::new() };
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
        let (map, object) = cursor(7, &format!("3.{id}")).unwrap();
        assert_eq!((map, id_text(object).as_str()), (MapId { app: 7, collection: 3 }, id));
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
        ] {
            assert!(cursor(7, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_id_has_32_digits() {
        assert_eq!(subject_text(SubjectId([0; 16])), "0".repeat(32));
        assert_eq!(subject_text(SubjectId([0xab; 16])), "ab".repeat(16));
    }
}
