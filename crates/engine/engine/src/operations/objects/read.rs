//! `objects.get`, `objects.list`, and the objects that `objects.query` returns.

use std::sync::Arc;

use crate::jobs::cost::{ExtraWork, OperationKind};
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::FieldProblem;
use crate::jobs::tokens::batch::run_each_sized;
use crate::jobs::tokens::{now, value_of};
use sealwire_msgpack::TokenReader;
use sealwire_records::objects::OpenedObject;
use sealwire_store::{Filter, MapView, ObjectId, ObjectRow, SubjectId, matching};
use sealwire_wire::{Object, Objects};

use super::query::Query;
use super::{Listing, ObjectsRun, page_limit};
use crate::frame_text::FrameText;
use crate::objects::{DisclosedProperty, ObjectCollection, id_text, parse_id};
use crate::subjects::{ReadableRow, StoredSubjects, stored_subjects, subjects_of};

/// Requests to the store in one `objects.list` that brought fewer objects than were asked for.
const PAGES_MAX: usize = 16;
/// Bytes of an object's entry in a response besides its values.
const ENTRY_BYTES: usize = 512;

/// The properties that a response has.
#[derive(Clone)]
pub(super) struct ReadSpec {
    pub(super) properties: Vec<DisclosedProperty>,
}

/// Selects the objects of a list.
pub(super) struct ListSpec {
    filter: Filter,
    after: Option<ObjectId>,
    limit: usize,
}

impl ListSpec {
    pub(super) fn new(list: &Listing<FrameText>) -> Result<Self, RequestFailure> {
        let tag = list.tag.as_ref().map(|tag| tag.as_str().to_owned());
        let filter = Filter {
            tag,
            expired_before: list.expired_before,
            archived: list.archived,
        };
        let after = list
            .after
            .as_ref()
            .map(|after| parse_cursor(after.as_str()))
            .transpose()?;
        Ok(Self {
            filter,
            after,
            limit: page_limit(list.limit),
        })
    }
}

/// Parses the cursor of a walk in the order of ids, which is an id.
pub(super) fn parse_cursor(text: &str) -> Result<ObjectId, RequestFailure> {
    let rule = "must be the next of the page before";
    parse_id(text).ok_or(RequestFailure::Param {
        name: "after",
        rule,
    })
}

impl ObjectsRun<'_> {
    /// Returns live rows by id. Rows of erased subjects are absent. The caller has reserved memory
    /// for them.
    pub(super) async fn read_rows(
        &self,
        ids: Vec<ObjectId>,
    ) -> Result<Vec<Option<ReadableRow>>, RequestFailure> {
        let view = self.located.view();
        let now = now();
        let rows = self
            .objects
            .read(view.map, move |store| async move {
                store.get_objects(now, view, &ids).await
            })
            .await?;
        let subjects = self
            .read_subjects(subjects_of(rows.iter().flatten()))
            .await?;
        Ok(rows
            .into_iter()
            .map(|row| ReadableRow::of(row?, &subjects))
            .collect())
    }

    /// Reads the keys of subjects.
    pub(super) async fn read_subjects(
        &self,
        ids: Vec<SubjectId>,
    ) -> Result<StoredSubjects, RequestFailure> {
        let MapView { map, generation } = self.located.view();
        stored_subjects(self.objects, generation, map.app, ids).await
    }

    pub(super) async fn get(
        &mut self,
        ids: &[Option<ObjectId>],
        reads: ReadSpec,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        let mut objects = vec![None; ids.len()];
        let known: Vec<(usize, ObjectId)> = ids
            .iter()
            .enumerate()
            .filter_map(|(at, id)| Some((at, (*id)?)))
            .collect();
        let most = self.objects.reserve(self.admission, known.len())?;

        for some in known.chunks(most) {
            let rows = self
                .read_rows(some.iter().map(|(_, id)| *id).collect())
                .await?;
            let places: Vec<usize> = some
                .iter()
                .zip(&rows)
                .filter(|(_, row)| row.is_some())
                .map(|((at, _), _)| *at)
                .collect();
            let opened = self
                .open_rows(rows.into_iter().flatten().collect(), &reads, None)
                .await?;
            places
                .into_iter()
                .zip(opened)
                .for_each(|(at, object)| objects[at] = object);
        }

        let missing = objects.iter().filter(|object| object.is_none()).count();
        self.count(ids.len(), missing);
        self.respond(objects, None, out)
    }

    pub(super) async fn list(
        &mut self,
        list: &ListSpec,
        reads: ReadSpec,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        let view = self.located.view();
        let mut after = list.after;
        let mut objects = Vec::new();
        let mut short = 0;
        let room = self.objects.reserve(self.admission, list.limit)?;

        while short < PAGES_MAX {
            let filter = list.filter.clone();
            let most = (list.limit - objects.len()).min(room);
            let page = self
                .objects
                .sweep(view.map, move |store| async move {
                    store.list_objects(view, &filter, after, most).await
                })
                .await?;
            short += usize::from(page.found.len() < most);
            let subjects = self.read_subjects(subjects_of(&page.found)).await?;
            let rows = page
                .found
                .into_iter()
                .filter_map(|row| ReadableRow::of(row, &subjects))
                .collect();
            objects.extend(self.open_rows(rows, &reads, None).await?);
            after = page.next;
            if after.is_none() || objects.len() >= list.limit {
                break;
            }
        }

        self.count(objects.len(), 0);
        self.respond(objects, after.map(id_text), out)
    }

    pub(super) async fn query(
        &mut self,
        query: Query,
        reads: ReadSpec,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        let view = self.located.view();
        let clauses = query.clauses();
        let after = query.after;
        let limit = query.limit;
        let matches = self
            .objects
            .read(view.map, move |store| async move {
                matching(&*store, view, &clauses, after, limit).await
            })
            .await?;
        let next = matches
            .page
            .next
            .map(|id| query.cursor(&self.located.collection, id));
        let query = Arc::new(query);
        let mut objects = Vec::new();
        let room = self
            .objects
            .reserve(self.admission, matches.page.found.len())?;

        for ids in matches.page.found.chunks(room) {
            let rows = self.read_rows(ids.to_vec()).await?;
            let rows = rows.into_iter().flatten().collect();
            objects.extend(
                self.open_rows(rows, &reads, Some(&query))
                    .await?
                    .into_iter()
                    .filter(Option::is_some),
            );
        }

        self.count(objects.len(), 0);
        self.respond(objects, next, out)
    }

    /// Opens rows and writes the values that the response has. With a query, an object that does
    /// not match it is `None`.
    async fn open_rows(
        &mut self,
        rows: Vec<ReadableRow>,
        reads: &ReadSpec,
        query: Option<&Arc<Query>>,
    ) -> Result<Vec<Option<Object>>, RequestFailure> {
        let bytes: usize = rows
            .iter()
            .map(|row| row.row.sealed.len() + ENTRY_BYTES)
            .sum();
        let growth: usize = reads
            .properties
            .iter()
            .map(|of| of.disclosure.growth(rows.len(), bytes))
            .sum();
        // Twice: as objects, and in the response.
        let more = bytes.saturating_add(growth).saturating_mul(2);
        self.objects
            .resize(self.admission, self.admission.bytes().saturating_add(more))?;
        let subjects: Vec<(usize, SubjectId)> = rows
            .iter()
            .enumerate()
            .filter_map(|(at, row)| Some((at, row.row.subject?)))
            .collect();
        let collection = self.located.collection.clone();
        let mut reads = reads.clone();
        let query = query.cloned();
        let comparison = query.as_deref().map_or(ExtraWork::default(), Query::work);
        let time = now();
        let opened: Vec<Result<Option<Object>, String>> = run_each_sized(
            self.admission,
            OperationKind::OPEN_OBJECTS,
            self.cancel,
            rows,
            move |row| row.work().plus(comparison),
            move |row| open_object(&collection, &row, &mut reads, query.as_deref(), time),
        )
        .await?;

        // An audit record does not name the subjects of objects that a query compared and does not
        // return.
        let returned = subjects
            .into_iter()
            .filter(|(at, _)| matches!(opened[*at], Ok(Some(_))));
        self.cancel
            .note_subjects(returned.map(|(_, subject)| subject.0));
        opened
            .into_iter()
            .map(|object| {
                object.map_err(|path| RequestFailure::Field {
                    problem: FieldProblem::CannotOpen,
                    path,
                })
            })
            .collect()
    }

    fn respond(
        &self,
        objects: Vec<Option<Object>>,
        next: Option<String>,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        let generation = self.located.generation;
        Objects {
            objects,
            next,
            generation,
        }
        .encode(out);
        let reply_bytes_max = self.reply_bytes_max;
        if out.len() > reply_bytes_max {
            Err(RequestFailure::ReplyTooLarge { reply_bytes_max })
        } else {
            Ok(())
        }
    }
}

/// Opens a row and returns the object that a response has, or the id of an object that does not
/// open. `None`: the object does not match the query.
pub(super) fn open_object(
    collection: &ObjectCollection,
    readable: &ReadableRow,
    reads: &mut ReadSpec,
    query: Option<&Query>,
    time: u64,
) -> Result<Option<Object>, String> {
    let row = &readable.row;
    if !row.is_live(time) {
        // An object can expire after the read. The values of an expired object are not compared, so
        // the object does not match a query.
        return Ok(query.is_none().then(|| object_response(row, Vec::new())));
    }

    if reads.properties.is_empty() && query.is_none() {
        return Ok(Some(object_response(row, Vec::new())));
    }

    let opened = collection.open(readable).map_err(|_| id_text(row.id))?;
    if query.is_some_and(|query| !query.is_met(&opened.values)) {
        return Ok(None);
    }

    Ok(Some(object_response(
        row,
        disclose_values(collection, &opened, &mut reads.properties),
    )))
}

/// Writes the values that a response has. A property without a value is nil.
pub(in crate::operations) fn disclose_values(
    collection: &ObjectCollection,
    opened: &OpenedObject,
    properties: &mut [DisclosedProperty],
) -> Vec<(String, Vec<u8>)> {
    debug_assert!(properties.len() <= collection.schema.properties.len());
    properties
        .iter_mut()
        .map(|property| {
            let mut out = Vec::new();
            match opened
                .values
                .get(property.number)
                .and_then(|value| Some((value, TokenReader::new(value).token().ok()?)))
            {
                Some((value, token)) => {
                    let (datatype, plaintext) = value_of(token, value);
                    property.disclosure.write(datatype, plaintext, &mut out);
                }
                None => sealwire_msgpack::write::nil(&mut out),
            }
            (property.name.clone(), out)
        })
        .collect()
}

pub(in crate::operations) fn object_response(
    row: &ObjectRow,
    properties: Vec<(String, Vec<u8>)>,
) -> Object {
    let ObjectRow {
        id,
        version,
        created,
        updated,
        expires,
        archived,
        ..
    } = *row;

    Object {
        id: id_text(id),
        version,
        created,
        updated,
        expires,
        archived,
        tags: row.tags.clone(),
        properties,
    }
}
