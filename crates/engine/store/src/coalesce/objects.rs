//! Group commit for writes to any [`ObjectStore`], as [`Coalescer`](super::Coalescer) does for
//! token rows.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::batch_queue::{BatchQueue, BatchRules, LastBatch, Size, Sort};
use super::work::{Open, Waiter, Work};
use super::{
    BYTES_TOGETHER, BatchError, BatchLimits, Kind, Observer, ROWS_TOGETHER, Waiting, caught, gather,
};
use crate::{ObjectGroup, ObjectStore, ObjectsWritten, Permit};

/// Batches concurrent writes of objects. Clones share the queue.
#[derive(Clone)]
pub struct ObjectWriter {
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared {
    store: Arc<dyn ObjectStore>,
    observer: Arc<dyn Observer>,
    writes: BatchQueue<Write>,
}

type Write = Work<(ObjectGroup, Option<Permit>), ObjectsWritten>;

impl ObjectWriter {
    /// Creates a writer over `store`. Workers run on the current tokio runtime.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    #[must_use]
    pub fn new(
        store: Arc<dyn ObjectStore>,
        lanes: BatchLimits,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let rules = BatchRules::of_writers(lanes.writers);
        Self {
            shared: Arc::new(Shared {
                store,
                observer,
                writes: BatchQueue::new(rules),
            }),
            runtime: Handle::current(),
        }
    }

    /// Returns the store, for operations that are not batched.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.shared.store
    }

    /// Returns the amount of queued work.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let Size { items, bytes } = self.shared.writes.waiting();
        Waiting {
            rows: items,
            bytes,
            keys: 0,
        }
    }

    /// Writes one group as [`ObjectStore::write_objects`] does. Deadline, permit and cancellation
    /// are as in [`Coalescer::write`](super::Coalescer::write).
    ///
    /// # Errors
    /// Any [`BatchError`].
    pub async fn write(
        &self,
        now: u64,
        group: ObjectGroup,
        deadline: Option<Instant>,
        mut permit: Option<Permit>,
    ) -> Result<ObjectsWritten, BatchError> {
        let size = size(&group);
        // Converts bytes to rows, so that one weight covers both limits.
        let weight = size
            .items
            .max(size.bytes.div_ceil(BYTES_TOGETHER / ROWS_TOGETHER))
            .max(1);
        let sort = if weight <= ROWS_TOGETHER {
            Sort::First
        } else {
            Sort::Second
        };

        let app = group.view.map.app;
        permit.iter_mut().for_each(Permit::send);
        let (work, answer) = Work::new(now, (group, permit), deadline);
        let (place, start) = self.shared.writes.push(sort, app, weight, size, work)?;
        if start {
            self.runtime.spawn(lane(Arc::clone(&self.shared)));
        }

        Waiter {
            desk: &self.shared.writes,
            sort,
            place: Some(place),
            answer,
        }
        .answer(deadline)
        .await
    }

    /// Stops accepting requests. Returns when every queued request was sent and has its result.
    pub async fn close(&self) {
        self.shared.writes.close().await;
    }
}

/// Returns the number of writes in a group, and their bytes.
fn size(group: &ObjectGroup) -> Size {
    Size {
        items: group.len(),
        bytes: group.bytes(),
    }
}

async fn lane(shared: Arc<Shared>) {
    let mut last = LastBatch::default();
    gather(&shared.writes).await;
    while let Some((_, batch)) = shared.writes.next(&mut last) {
        caught(shared.write(batch)).await;
        shared.writes.complete_batch(&mut last);
        gather(&shared.writes).await;
    }
}

impl Shared {
    async fn write(&self, batch: Vec<Write>) {
        let Some(mut flight) = Open::begin(Kind::WriteObjects, batch) else {
            return;
        };

        let (groups, permits): (Vec<ObjectGroup>, Vec<Option<Permit>>) =
            flight.questions().into_iter().unzip();
        let sizes = groups.iter().map(size);
        (flight.items, flight.bytes) = sizes.fold((0, 0), |(items, bytes), of| {
            (items + of.items, bytes + of.bytes)
        });
        let answers = self.store.write_objects(flight.now, groups).await;
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        for (permit, _) in permits
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_ok())
        {
            permit.into_iter().for_each(Permit::answered);
        }
        self.observer
            .observe_batch(&flight.end(answers.into_iter(), failed));
    }
}
