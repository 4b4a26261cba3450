//! The `objects.*` methods: objects of typed properties, written, read and found.
//!
//! | file | its one concern |
//! | --- | --- |
//! | `payload.rs` | values of a payload: validated, with the errors of each part |
//! | `seal.rs` | an object between its values and its row: sealed with its terms, and opened |
//! | `write.rs` | `add`, `update`, `delete`, `expire` |
//! | `read.rs` | `get`, `list`, and the objects of `query` |
//! | `query.rs` | the clauses of `query`, and its cursor |
//!
//! Values are validated, hashed, sealed and opened on the crypto threads, under the request's
//! admission. Requests to the store are between these steps.

mod payload;
mod query;
mod read;
mod seal;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use sealwire_access::Operation as AccessOperation;
use sealwire_wire::shared::{
    AddObjects, Listing, ObjectsOperation, PropertyDisclosure, Sweep as SweepStep,
};
use sealwire_wire::{ErrorCode, ItemError, ResultCodec as _};
use tokio::time::Instant;

use crate::apps::Apps;
use crate::frame_text::FrameText;
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::objects::Objects;
use crate::jobs::scheduler::AdmissionPermit;
use crate::jobs::tokens::tokenize::IdempotencyKey;
use crate::objects::{LocatedObjects, parse_id};
use crate::operation::{
    MessageSize, Operation, Plan, PlanContext, StoreContext, StorePlan, StoreRun,
};
use sealwire_store::{ObjectId, Sweep};

use query::Query;
use read::{ListSpec, ReadSpec};
pub(super) use read::{disclose_values, object_response};
pub(crate) use seal::ObjectSealer;
use write::WriteSpec;

/// Default number of objects on a page.
const PAGE_DEFAULT: u32 = 100;
/// Default number of objects that `objects.archive` and `objects.prune` examine.
const SWEEP_DEFAULT: u32 = 1_000;
/// Default time for which `objects.prune` keeps archived objects: 30 days, in seconds.
const ARCHIVED_S_DEFAULT: u64 = 30 * 86_400;
/// Properties that a request is charged for if it does not name them.
const UNNAMED_PROPERTIES: u64 = 64;

/// Returns the maximum number of properties of one object in the response.
fn properties_max(disclosure: &PropertyDisclosure<FrameText>) -> u64 {
    disclosure
        .properties
        .as_ref()
        .map_or(UNNAMED_PROPERTIES, |names| names.len() as u64)
}

/// A decoded `objects.*` request, whose texts and payload share the bytes of the message.
type Request = ObjectsOperation<FrameText, Bytes>;

impl Operation for Request {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        match self {
            Request::Add(_) | Request::Update { .. } => OperationKind::SEAL_OBJECTS,
            _ => OperationKind::OPEN_OBJECTS,
        }
    }

    /// Values that a query compares count as well as those that it returns, because searching is
    /// guessing.
    fn fields_max(&self, size: MessageSize) -> u64 {
        match self {
            Request::Add(_) | Request::Update { .. } => size.fields_max(),
            Request::Get { ids, disclosure } => ids.len() as u64 * properties_max(disclosure),
            Request::Query {
                disclosure, limit, ..
            } => size.fields_max() + page_limit(*limit) as u64 * properties_max(disclosure),
            Request::List {
                listing,
                disclosure,
            } => page_limit(listing.limit) as u64 * properties_max(disclosure),
            Request::Delete { ids, .. } | Request::Expire { ids, .. } => ids.len() as u64,
            Request::Archive(_) | Request::Prune(_) => 1,
        }
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let located = context.objects()?;
        let task = match *self {
            Request::Add(AddObjects {
                objects,
                tags,
                expires_s,
                idempotency_key,
                subjects,
            }) => {
                let mut tags: Vec<String> =
                    tags.iter().map(|tag| tag.as_str().to_owned()).collect();
                tags.sort_unstable();
                tags.dedup();
                let access = context.permit.properties().clone();
                let idempotency_key =
                    idempotency_key.map(|key| IdempotencyKey::new(context.principal, &key));
                ObjectsTask::Write(WriteSpec::Add {
                    objects,
                    tags,
                    expires_s,
                    idempotency_key,
                    subjects,
                    access,
                })
            }
            Request::Update { changes } => ObjectsTask::Write(WriteSpec::Update {
                changes,
                access: context.permit.properties().clone(),
            }),
            Request::Delete { ids, versions } => ObjectsTask::Write(WriteSpec::Delete {
                ids: parse_ids(&ids)?,
                versions,
            }),
            Request::Expire { ids, expires_s } => ObjectsTask::Write(WriteSpec::Expire {
                ids: parse_ids(&ids)?,
                expires_s,
            }),
            Request::Get { ids, disclosure } => {
                let ids = ids.iter().map(|id| parse_id(id.as_str())).collect();
                ObjectsTask::Get(ids, read_spec(context, &located, &disclosure)?)
            }
            Request::List {
                listing,
                disclosure,
            } => {
                let spec = ListSpec::new(&listing)?;
                ObjectsTask::List(spec, read_spec(context, &located, &disclosure)?)
            }
            Request::Query {
                clauses,
                disclosure,
                after,
                limit,
            } => {
                let reads = read_spec(context, &located, &disclosure)?;
                let access = context.permit.properties();
                let after = after.as_ref().map(FrameText::as_str);
                let limit = page_limit(limit);
                let query = Query::new(
                    &located.collection,
                    &clauses,
                    after,
                    limit,
                    access,
                    |name| {
                        context
                            .permit
                            .property_denied(AccessOperation::ObjectsQuery, name)
                            .into()
                    },
                )?;
                ObjectsTask::Query(query, reads)
            }
            Request::Archive(step) => ObjectsTask::Sweep(step, true),
            Request::Prune(step) => ObjectsTask::Sweep(step, false),
        };
        Ok(Plan::Store(Box::new(ObjectsPlan { located, task })))
    }
}

/// The most objects on a page.
fn page_limit(limit: Option<u32>) -> usize {
    limit.unwrap_or(PAGE_DEFAULT) as usize
}

/// Resolves the properties that a request reads.
fn read_spec(
    context: &PlanContext<'_>,
    located: &LocatedObjects,
    named: &PropertyDisclosure<FrameText>,
) -> Result<ReadSpec, RequestFailure> {
    let names: Option<Vec<&str>> = named
        .properties
        .as_ref()
        .map(|names| names.iter().map(FrameText::as_str).collect());
    let access = context.permit.properties();
    let masks = located.app.role_masks();
    let properties = located.collection.disclosed(
        names.as_deref(),
        named.masked,
        access,
        |name| {
            context
                .permit
                .property_denied(AccessOperation::ObjectsGet, name)
                .into()
        },
        masks,
    )?;
    Ok(ReadSpec { properties })
}

fn parse_ids(ids: &[FrameText]) -> Result<Vec<ObjectId>, RequestFailure> {
    let parsed: Vec<Option<ObjectId>> = ids.iter().map(|id| parse_id(id.as_str())).collect();
    let missing = parsed.iter().enumerate().filter(|(_, id)| id.is_none());
    let errors: Vec<ItemError> = missing.map(|(at, _)| no_object(at)).collect();
    if !errors.is_empty() {
        return Err(RequestFailure::Items { errors });
    }

    let ids: Vec<ObjectId> = parsed.into_iter().flatten().collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(RequestFailure::Param {
            name: "ids",
            rule: "must name each object once",
        });
    }
    Ok(ids)
}

fn no_object(position: usize) -> ItemError {
    ItemError {
        path: format!("$[{position}]"),
        code: ErrorCode::NotFound,
        message: "no such object".into(),
    }
}

/// A request of one of these methods, resolved against the apps.
struct ObjectsPlan {
    located: LocatedObjects,
    task: ObjectsTask,
}

enum ObjectsTask {
    Write(WriteSpec),
    Get(Vec<Option<ObjectId>>, ReadSpec),
    List(ListSpec, ReadSpec),
    Query(Query, ReadSpec),
    /// Archives if true, prunes otherwise.
    Sweep(SweepStep<FrameText>, bool),
}

impl StorePlan for ObjectsPlan {
    fn response_bytes(&self) -> usize {
        // Rows and responses are reserved when they are read.
        4_096
    }

    fn run<'a>(self: Box<Self>, context: StoreContext<'a>) -> StoreRun<'a> {
        let Self { located, task } = *self;
        let StoreContext {
            objects,
            admission,
            cancel,
            deadline,
            reply_bytes_max,
            out,
            ..
        } = context;

        let mut run = ObjectsRun {
            located,
            objects,
            admission,
            cancel,
            deadline,
            reply_bytes_max,
        };

        Box::pin(async move {
            run.cancel.set_generation(run.located.generation);
            match task {
                ObjectsTask::Write(spec) => run.write(spec, out).await,
                ObjectsTask::Get(ids, reads) => run.get(&ids, reads, out).await,
                ObjectsTask::List(list, reads) => run.list(&list, reads, out).await,
                ObjectsTask::Query(query, reads) => run.query(query, reads, out).await,
                ObjectsTask::Sweep(step, archives) => run.sweep(&step, archives, out).await,
            }
        })
    }
}

/// Runs one request.
struct ObjectsRun<'a> {
    located: LocatedObjects,
    objects: &'a Objects,
    admission: &'a mut AdmissionPermit,
    cancel: &'a Arc<CancelToken>,
    deadline: Instant,
    reply_bytes_max: usize,
}

impl ObjectsRun<'_> {
    /// Counts the objects of the request for its audit record, and those that are not there.
    fn count(&self, objects: usize, missing: usize) {
        self.cancel.set_field_counts(objects as u64, missing as u64);
    }

    async fn sweep(
        &mut self,
        step: &SweepStep<FrameText>,
        archives: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestFailure> {
        let after = step
            .after
            .as_ref()
            .map(|after| read::parse_cursor(after.as_str()))
            .transpose()?;
        let limit = step.limit.unwrap_or(SWEEP_DEFAULT) as usize;
        let now = crate::jobs::tokens::now();
        let older = step
            .older_s
            .unwrap_or(if archives { 0 } else { ARCHIVED_S_DEFAULT });
        // The bound is inclusive.
        let before = (now + 1).saturating_sub(older);
        let sweep = match archives {
            true => Sweep::Archive {
                expired_before: before,
            },
            false => Sweep::Prune {
                archived_before: before,
            },
        };

        let map = self.located.collection.map;
        let dry_run = step.dry_run;
        let page = self
            .objects
            .sweep(map, move |store| async move {
                store
                    .sweep_objects(now, map, sweep, after, limit, dry_run)
                    .await
            })
            .await?;

        let next = page.next.map(crate::objects::id_text);
        self.count(usize::try_from(page.found).unwrap_or(usize::MAX), 0);
        sealwire_wire::Counted {
            count: page.found,
            missing: Vec::new(),
            next,
            generation: self.located.generation,
        }
        .encode(out);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
