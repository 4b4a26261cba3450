//! The background sweep of token maps and objects. A sweep archives expired rows and prunes
//! archived rows after their collection's retention time. A sweep also erases the rows of deleted
//! collections and apps, and the objects and tokens of data subjects whose erasure was interrupted.
//!
//! Engines that share a database share a lease, so one of them sweeps at a time. All changes are
//! safe to repeat, so an engine that loses its lease in the middle of a batch does no harm. A sweep
//! uses at most a tenth of the store's time and looks at no more rows per second than the
//! configuration allows.

use std::sync::Arc;
use std::time::Duration;

use sealwire_apps::{Control, MapState, MapStates};
use sealwire_store::{
    ControlStore as _, Filter, MapId, MapView, ObjectGroup, ObjectId, ObjectRow, ObjectStore,
    ObjectWrite, Page, StoreError, SubjectId, Sweep, TokenId, TokenStore,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::apps::jittered;
use crate::subjects::{erasure_step, unfinished_version};
use sealwire_telemetry::metrics::{SweepAction, SweepOutcome};

/// Name of the lease.
const LEASE: &str = "sweep";
/// Time after which another engine gets the lease of an engine that stopped.
const LEASE_TIME: Duration = Duration::from_secs(60);
/// Interval between checks of the lease and of the control state during a sweep.
const CHECK_PERIOD: Duration = Duration::from_secs(5);
/// Longest time between two audit records of one map.
const RECORD_PERIOD: Duration = Duration::from_secs(60);
/// Rows stay for this many seconds after they expired: the engines' clocks may differ.
const CLOCK_MARGIN_S: u64 = 60;
/// Most rows of one statement.
const BATCH_ROWS_MAX: usize = 1_000;
/// Marks of unfinished erasures on one page.
const MARKS_PER_PAGE: usize = 100;
/// Length of the pause after a statement, as a multiple of the statement's time.
const REST: u32 = 9;
/// Longest pause after a batch. The lease must not expire in the meantime.
const REST_MAX: Duration = Duration::from_secs(30);

/// Rows of one map to which the same change was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// The change.
    pub action: SweepAction,
    /// The map.
    pub map: MapId,
    /// App of the map, if the name is known.
    pub app: Option<String>,
    /// Collection of the map, if the name is known.
    pub collection: Option<String>,
    /// Number of rows.
    pub rows: u64,
}

/// Counts and records the work of sweeps.
pub trait SweepRecorder: Send + Sync {
    /// Returns true if [`SweepRecorder::record`] can record now.
    fn is_ready(&self) -> bool;
    /// Counts rows right after they were changed.
    fn count(&self, action: SweepAction, rows: u64);
    /// Records rows that were changed since the last record.
    fn record(&self, swept: &Swept);
    /// Counts a sweep.
    fn count_sweep(&self, outcome: SweepOutcome);
}

/// Sweeps the token maps and objects of one store.
pub struct Sweeper<L> {
    control: Control,
    rows: [SweptRows; 2],
    /// Identifies this run of the engine, which holds the lease.
    instance: String,
    options: sealwire_settings::SweepSettings,
    recorder: L,
    /// Seconds since 1970-01-01 UTC.
    clock: fn() -> u64,
    /// True once the engine drains.
    stop: watch::Receiver<bool>,
}

/// Rows of one kind.
#[derive(Clone)]
enum SweptRows {
    Tokens(Arc<dyn TokenStore>),
    Objects(Arc<dyn ObjectStore>),
}

/// The id of a row of either kind.
type RowId = [u8; 16];

impl SweptRows {
    /// Returns the first map after `after` that has rows of this kind.
    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        match self {
            Self::Tokens(store) => store.next_map(after).await,
            Self::Objects(store) => store.next_object_map(after).await,
        }
    }

    /// Changes the due rows of a page.
    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<RowId>,
        limit: usize,
    ) -> Result<Page<u64, RowId>, StoreError> {
        match self {
            Self::Tokens(store) => {
                let page = store
                    .sweep(now, map, sweep, after.map(TokenId), limit)
                    .await?;
                Ok(Page {
                    found: page.found,
                    next: page.next.map(|id| id.0),
                })
            }
            Self::Objects(store) => {
                let page = store
                    .sweep_objects(now, map, sweep, after.map(ObjectId), limit, false)
                    .await?;
                Ok(Page {
                    found: page.found,
                    next: page.next.map(|id| id.0),
                })
            }
        }
    }
}

/// The reason why a sweep ended early.
enum End {
    Outcome(SweepOutcome),
    Store(StoreError),
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl<L: SweepRecorder> Sweeper<L> {
    /// Creates a sweeper; [`Sweeper::run`] sweeps.
    pub fn new(
        control: Control,
        (tokens, objects): (Arc<dyn TokenStore>, Arc<dyn ObjectStore>),
        instance: String,
        options: sealwire_settings::SweepSettings,
        recorder: L,
        clock: fn() -> u64,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let rows = [SweptRows::Tokens(tokens), SweptRows::Objects(objects)];
        Self {
            control,
            rows,
            instance,
            options,
            recorder,
            clock,
            stop,
        }
    }

    /// Sweeps once per interval until the engine drains.
    pub async fn run(mut self) {
        let interval = Duration::from_secs(self.options.interval_s);
        if interval.is_zero() {
            return;
        }

        while self.pause(jittered(interval)).await.is_ok() {
            let outcome = match self.sweep().await {
                Ok(()) => SweepOutcome::Done,
                Err(End::Outcome(outcome)) => outcome,
                Err(End::Store(error)) => {
                    tracing::warn!(%error, "a sweep of tokens and objects failed; the next sweep continues it");
                    SweepOutcome::Failed
                }
            };
            self.recorder.count_sweep(outcome);
        }
    }

    /// Sleeps, unless the engine drains.
    async fn pause(&mut self, time: Duration) -> Result<(), End> {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => Err(End::Outcome(SweepOutcome::Stopped)),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }

    /// Sweeps every map that has rows.
    async fn sweep(&mut self) -> Result<(), End> {
        let mut states = MapStates::default();
        self.renew_lease(&mut states).await?;
        let mut checked = Instant::now();
        match self.sweep_erasures(&mut states, &mut checked).await {
            // The rest of the sweep does not wait for a subject whose rows cannot be removed.
            Err(End::Store(error)) => {
                tracing::warn!(%error, "cannot finish the erasure of a data subject; the next sweep continues it");
            }
            end => end?,
        }

        for rows in self.rows.clone() {
            let mut map = None;
            while let Some(next) = rows.next_map(map).await? {
                for action in SweepAction::ALL {
                    self.sweep_map(&rows, next, action, &mut states, &mut checked)
                        .await?;
                }
                map = Some(next);
            }
        }
        Ok(())
    }

    /// Finishes the erasures of subjects that a request started and did not finish.
    async fn sweep_erasures(
        &mut self,
        states: &mut MapStates,
        checked: &mut Instant,
    ) -> Result<(), End> {
        let [SweptRows::Tokens(tokens), SweptRows::Objects(store)] = self.rows.clone() else {
            return Ok(());
        };
        let mut map = None;

        while let Some(next) = store.next_object_map(map).await? {
            map = Some(next);
            if next != MapId::of_erasures(next.app) {
                continue;
            }
            let mut after = None;
            loop {
                let view = MapView {
                    map: next,
                    generation: states.generation(),
                };
                let page = store
                    .list_objects(view, &Filter::default(), after, MARKS_PER_PAGE)
                    .await?;
                for mark in page.found {
                    let mut rows = 0;
                    let stores = (&*tokens, &*store);
                    let end = self
                        .finish_erasure(stores, next, &mark, (states, checked), &mut rows)
                        .await;
                    self.record(SweepAction::Erased, next, &(None, None), &mut rows);
                    end?;
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Removes the tokens and objects of an erased subject, and then the mark. Adds their number to
    /// `rows`.
    async fn finish_erasure(
        &mut self,
        (tokens, store): (&dyn TokenStore, &dyn ObjectStore),
        map: MapId,
        mark: &ObjectRow,
        (states, checked): (&mut MapStates, &mut Instant),
        rows: &mut u64,
    ) -> Result<(), End> {
        let subject = (map.app, SubjectId(mark.id.0));
        let version = unfinished_version(mark);
        let mut after = None;
        loop {
            if checked.elapsed() >= CHECK_PERIOD {
                self.renew_lease(states).await?;
                *checked = Instant::now();
            }
            let started = Instant::now();
            let limit = self.page_rows();
            let page = tokens
                .erase_subject_rows(subject.0, subject.1, version, after, limit)
                .await?;
            self.recorder.count(SweepAction::Erased, page.found);
            *rows += page.found;
            after = page.next;
            let examined = if after.is_some() {
                limit as u64
            } else {
                page.found
            };
            self.pause(self.pause_after(examined, started.elapsed()))
                .await?;
            if after.is_none() {
                break;
            }
        }

        let mut after = None;
        let mut in_pass = 0;
        loop {
            if checked.elapsed() >= CHECK_PERIOD {
                self.renew_lease(states).await?;
                *checked = Instant::now();
            }
            let started = Instant::now();
            let step = erasure_step(
                store,
                states.generation(),
                subject,
                version,
                after,
                self.page_rows(),
            )
            .await?;
            let count = step
                .groups
                .iter()
                .map(|group| group.writes.len() as u64)
                .sum::<u64>();
            for result in store.write_objects((self.clock)(), step.groups).await {
                result?;
            }
            self.recorder.count(SweepAction::Erased, count);
            *rows += count;
            in_pass += count;
            self.pause(self.pause_after(count, started.elapsed()))
                .await?;
            after = step.next;
            // A rewrap can have sealed an object again between the two steps of its removal.
            if after.is_none() && std::mem::take(&mut in_pass) == 0 {
                break;
            }
        }

        let writes = vec![ObjectWrite::Delete {
            id: mark.id,
            version: Some(mark.version),
        }];
        let view = MapView {
            map,
            generation: states.generation(),
        };
        let group = ObjectGroup {
            view,
            writes,
            subjects: Vec::new(),
        };
        for result in store.write_objects((self.clock)(), vec![group]).await {
            // A conflict is another erasure of the subject, which the next sweep finishes.
            result?;
        }
        Ok(())
    }

    /// Returns the number of rows of one statement.
    fn page_rows(&self) -> usize {
        usize::try_from(self.options.rows_per_s / 5)
            .unwrap_or(usize::MAX)
            .clamp(1, BATCH_ROWS_MAX)
    }

    /// Returns the pause after a statement that examined `rows` rows and took this time.
    fn pause_after(&self, rows: u64, took: Duration) -> Duration {
        let pace = Duration::from_secs_f64(rows as f64 / self.options.rows_per_s as f64);
        pace.max(took * REST).min(REST_MAX)
    }

    /// Takes or extends the lease, and reads the states of maps if they changed.
    async fn renew_lease(&self, states: &mut MapStates) -> Result<(), End> {
        if !self.recorder.is_ready() {
            return Err(End::Outcome(SweepOutcome::Unrecorded));
        }

        if !self
            .control
            .store()
            .lease(LEASE, &self.instance, LEASE_TIME)
            .await?
        {
            return Err(End::Outcome(SweepOutcome::Elsewhere));
        }

        if self.control.generation().await? != states.generation() {
            *states = self.control.map_states().await?;
        }

        if let Some(seen) = self.control.store().rolled_back() {
            // An older state can permit the removal of rows that the newer state, seen before, keeps.
            return Err(StoreError::RolledBack {
                generation: states.generation(),
                seen,
            }
            .into());
        }
        Ok(())
    }

    async fn sweep_map(
        &mut self,
        of: &SweptRows,
        map: MapId,
        action: SweepAction,
        states: &mut MapStates,
        checked: &mut Instant,
    ) -> Result<(), End> {
        let mut after = None;
        let mut rows = 0;
        let mut recorded = Instant::now();
        let limit = self.page_rows();
        let mut names = (None, None);
        let end = loop {
            if checked.elapsed() >= CHECK_PERIOD {
                if let Err(end) = self.renew_lease(states).await {
                    break Err(end);
                }
                *checked = Instant::now();
            }
            let now = (self.clock)();
            let state = states.of(map);
            let Some(sweep) = due_sweep(&state, action, now) else {
                break Ok(());
            };
            names = names_of(&state);
            let started = Instant::now();
            let page = match of.sweep(now, map, sweep, after, limit).await {
                Ok(page) => page,
                Err(error) => break Err(error.into()),
            };
            self.recorder.count(action, page.found);
            rows += page.found;
            if recorded.elapsed() >= RECORD_PERIOD {
                self.record(action, map, &names, &mut rows);
                recorded = Instant::now();
            }
            // A store without an index examines all rows of a page to find the due rows.
            let examined = if page.next.is_some() {
                limit as u64
            } else {
                page.found
            };
            if let Err(end) = self
                .pause(self.pause_after(examined, started.elapsed()))
                .await
            {
                break Err(end);
            }
            after = page.next;
            if after.is_none() {
                break Ok(());
            }
        };

        self.record(action, map, &names, &mut rows);
        end
    }

    fn record(&self, action: SweepAction, map: MapId, (app, collection): &Names, rows: &mut u64) {
        let rows = std::mem::take(rows);
        if rows > 0 {
            let app = app.clone();
            let collection = collection.clone();
            tracing::info!(
                action = action.as_str(),
                app,
                collection,
                rows,
                "swept rows"
            );
            self.recorder.record(&Swept {
                action,
                map,
                app,
                collection,
                rows,
            });
        }
    }
}

/// Names of an app and a collection, if they are known.
type Names = (Option<String>, Option<String>);

fn names_of(state: &MapState) -> Names {
    match state {
        MapState::Live {
            app, collection, ..
        } => (Some(app.as_str().into()), Some(collection.as_str().into())),
        MapState::Deleted { app, collection } => (
            app.as_ref().map(|app| app.as_str().into()),
            collection.as_ref().map(|name| name.as_str().into()),
        ),
        MapState::Unknown => (None, None),
    }
}

/// Returns the change that `action` makes to a map in this state.
fn due_sweep(state: &MapState, action: SweepAction, now: u64) -> Option<Sweep> {
    match (state, action) {
        (MapState::Live { .. }, SweepAction::Archived) => Some(Sweep::Archive {
            expired_before: now.saturating_sub(CLOCK_MARGIN_S),
        }),
        (
            MapState::Live {
                retention_s: Some(retention_s),
                ..
            },
            SweepAction::Pruned,
        ) => Some(Sweep::Prune {
            archived_before: now.saturating_sub(*retention_s),
        }),
        (MapState::Deleted { .. }, SweepAction::Erased) => Some(Sweep::Erase),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
