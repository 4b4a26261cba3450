//! A discrete-event simulation of workers, clients and time around the production core.
//!
//! Costs are those of the crypto: 50 us for a key agreement and 0.2 us for a field. With a key per
//! field, the 0.2 us do not count. A slice costs its work and 1 us. In some scenarios, reading a
//! request costs a network thread 10 us, which a busy worker loses. All random numbers derive from
//! the scenario's seed.
//!
//! In some scenarios, the network thread runs small work itself, as the engine's does: a bounded
//! amount per wake-up, if nothing is queued. A busy worker loses that time, too.
//!
//! The environment variable `SEALWIRE_SOAK` runs the long form: more simulated time, and more
//! seeds.

mod dear;
mod fairness;
mod inline;
mod latency;
mod overload;
mod slowness;
mod stats;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

pub(crate) use stats::{ClassRow, SimulationReport};

use crate::arena::Id;
use crate::consensus::{Sample, TenantConsensus};
use crate::core::Core;
use crate::correction::Corrections;
use crate::cost::{Coefficients, CostModel, WorkSize};
use crate::request::{AdmissionDecision, Closed, Expiry, OfferedRequest};
use crate::tuning::{RunOrder, SchedulerOptions, Tuning};
use crate::units::{Cost, Time, nanos};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const PICK: u64 = US;
const KEY: u64 = 50 * US;

/// Milliseconds to simulate: the first number, or the second in the long form.
fn millis(short: u64, long: u64) -> u64 {
    if std::env::var_os("SEALWIRE_SOAK").is_some() {
        long
    } else {
        short
    }
}

/// Seeds to simulate: one, or `long` of them in the long form.
fn seeds(long: u64) -> std::ops::RangeInclusive<u64> {
    1..=millis(1, long)
}

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct SimulationRandom(pub(crate) u64);

impl SimulationRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0..1`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-(1.0 - self.unit()).ln() * mean) as u64
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }
}

/// Returns work of `work` ns in the units of the model.
fn counted(work: u64) -> WorkSize {
    WorkSize {
        bytes: work,
        ..WorkSize::default()
    }
}

/// Scope of an ephemeral key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Field,
    Request,
    /// A precomputed key per request.
    Ready,
}

impl Scope {
    pub(crate) fn work(self, fields: u64) -> u64 {
        match self {
            Self::Field => fields * KEY,
            Self::Request => KEY + fields * 200,
            Self::Ready => 5 * US + fields * 200,
        }
    }

    /// Returns the part of `left` that one slice of `budget` does: whole fields, at least one.
    fn slice(self, budget: u64, left: u64) -> u64 {
        match self {
            Self::Field => (budget / KEY).max(1).saturating_mul(KEY).min(left),
            Self::Request | Self::Ready => budget.max(200).min(left),
        }
    }
}

/// Sizes in fields, with their frequencies.
pub(crate) type SizeMix = &'static [(u64, f64)];

/// The small, medium and large requests of the experiments.
pub(crate) const MIX: SizeMix = &[(30, 0.80), (150, 0.18), (2_000, 0.02)];

/// Mean work of a mix, in ns.
pub(crate) fn mean(mix: SizeMix, scope: Scope) -> f64 {
    mix.iter()
        .map(|(fields, part)| scope.work(*fields) as f64 * part)
        .sum()
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// Open loop: mean number of random arrivals per second.
    Poisson(f64),
    /// Closed loop: number of outstanding requests.
    Closed(usize),
}

/// A tenant's stream of requests.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) tenant: u32,
    /// Reports are by group.
    pub(crate) group: usize,
    pub(crate) scope: Scope,
    pub(crate) mix: SizeMix,
    pub(crate) arrivals: Arrivals,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) connections: usize,
    pub(crate) weight: u32,
    pub(crate) bytes: u64,
    /// Factor by which the cost model underestimates the work.
    pub(crate) undercounted: u64,
    /// Time for which a request waits for something else after half of its work, in ms.
    pub(crate) away_ms: Option<u64>,
    /// Start and end of its activity, in ms.
    pub(crate) active: (u64, u64),
}

impl Source {
    pub(crate) fn new(
        tenant: u32,
        group: usize,
        scope: Scope,
        mix: SizeMix,
        arrivals: Arrivals,
    ) -> Self {
        let active = (0, u64::MAX / MS);
        let (timeout_ms, away_ms) = (None, None);
        let (connections, weight, bytes, undercounted) = (1, 1, 0, 1);
        Self {
            tenant,
            group,
            scope,
            mix,
            arrivals,
            timeout_ms,
            connections,
            weight,
            bytes,
            undercounted,
            away_ms,
            active,
        }
    }
}

/// Tenants that together cause `load` on two workers, in equal parts.
pub(crate) fn mixed(
    tenants: std::ops::Range<u32>,
    group: usize,
    scope: Scope,
    load: f64,
) -> Vec<Source> {
    let per_second = load * 2.0 * SECOND as f64 / mean(MIX, scope) / tenants.len() as f64;
    tenants
        .map(|tenant| Source::new(tenant, group, scope, MIX, Arrivals::Poisson(per_second)))
        .collect()
}

/// A simulated load, with replaced parts of the core.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) sources: Vec<Source>,
    pub(crate) millis: u64,
    /// Requests that arrive earlier are not reported.
    pub(crate) warm_up_millis: u64,
    pub(crate) seed: u64,
    pub(crate) options: SchedulerOptions,
    pub(crate) tuning: Tuning,
    /// All requests belong to one tenant.
    pub(crate) one_tenant: bool,
    /// The core knows the deadlines of the responses.
    pub(crate) deadlines: bool,
    /// A rejection stops all requests of its connection for at most a second. The engine stops less:
    /// it still starts requests of smaller classes and reads a little ahead.
    pub(crate) pause: bool,
    /// A rejected request is offered again, once, after the retry time.
    pub(crate) retry: bool,
    /// CPU time to read or reject a request.
    pub(crate) read: u64,
    /// Estimates are wrong by up to this factor either way.
    pub(crate) misjudged: f64,
    /// Factor by which all work takes longer than the core is told.
    pub(crate) slowness: u64,
    /// A slice ends by time. If not, it ends by the work that the model counts.
    pub(crate) slices_by_time: bool,
    /// Time beyond the model is charged to its tenant and corrects its estimates.
    pub(crate) corrects: bool,
    /// Start and end in ms of a period in which all work takes longer, and the factor.
    pub(crate) throttled: Option<(u64, u64, f64)>,
    /// Worker 0 stands still from a time for a while, in ms.
    pub(crate) stall: Option<(u64, u64)>,
    /// Time that workers lose to other processes.
    pub(crate) contention: Option<Contention>,
    /// Requests that have not started within twice their bound are expired.
    pub(crate) expiry: bool,
    /// Maximum work with a precomputed key that the network thread runs per wake-up, in ns; it then
    /// reads requests one by one. `None`: requests are read at once.
    pub(crate) inline: Option<u64>,
}

/// A period in which all workers run for a part of each cycle only, as if other processes competed
/// for their cores or for memory. All times are in ms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contention {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Time at full speed at the start of each cycle.
    pub(crate) runs: u64,
    /// Rest of a cycle, in which no worker advances.
    pub(crate) stands: u64,
}

impl Contention {
    /// Returns when a slice ends that starts `at` and takes `span` of a worker's time.
    fn end(self, mut at: u64, mut span: u64) -> u64 {
        let Self {
            from,
            to,
            runs,
            stands,
        } = self;
        let cycle = runs + stands;
        if at < from * MS {
            let before = span.min(from * MS - at);
            (at, span) = (at + before, span - before);
        }
        while span > 0 && at < to * MS {
            let into = (at - from * MS) % (cycle * MS);
            let advances = span.min((runs * MS).saturating_sub(into));
            (at, span) = (at + advances, span - advances);
            if span > 0 {
                at = (at - advances - into + cycle * MS).min(to * MS);
            }
        }
        at + span
    }
}

impl Scenario {
    pub(crate) fn new(sources: Vec<Source>, millis: u64) -> Self {
        Self {
            sources,
            millis,
            warm_up_millis: millis / 10,
            seed: 1,
            options: SchedulerOptions::new(NonZeroU32::new(2).unwrap()),
            tuning: Tuning::default(),
            one_tenant: false,
            deadlines: true,
            pause: true,
            retry: false,
            read: 0,
            misjudged: 1.0,
            slowness: 1,
            slices_by_time: true,
            corrects: true,
            throttled: None,
            stall: None,
            contention: None,
            expiry: true,
            inline: None,
        }
    }

    pub(crate) fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Sets up overload: 64 connections per source, clients that wait a second, and requests that
    /// cost time to read.
    pub(crate) fn under_overload(self) -> Self {
        self.with(|s| {
            s.read = 10 * US;
            s.warm_up_millis = 2_000;
            for source in &mut s.sources {
                (source.timeout_ms, source.connections) = (Some(1_000), 64);
            }
        })
    }

    /// Admits every request.
    pub(crate) fn without_admission(self) -> Self {
        self.with(|s| {
            s.options.wait_max = Duration::from_secs(1 << 30);
            s.tuning.overload = f64::INFINITY;
            s.deadlines = false;
        })
    }

    /// Runs whole requests in FIFO order over all tenants and rejects none: the engine before it had
    /// a scheduler.
    pub(crate) fn first_come_first_served(self) -> Self {
        self.with(|s| s.options.order = RunOrder::Arrival)
    }

    pub(crate) fn run(self) -> SimulationReport {
        Simulation::new(self).run()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulationEvent {
    Arrive { source: usize },
    Again { request: usize },
    SliceEnd { worker: usize },
    Back { request: usize },
    Timeout { request: usize },
    Expire { request: usize, id: Id },
    Read,
}

struct IssuedRequest {
    source: usize,
    size: usize,
    arrived: u64,
    connection: usize,
    work: u64,
    left: u64,
    /// Part of the work that follows a wait for something else.
    behind: u64,
    /// Cost that the core knows.
    told: Cost,
    id: Option<Id>,
    retried: bool,
    over: bool,
    /// Time of the offer that was not rejected.
    offered: u64,
    expires: u64,
    started: bool,
}

/// One network thread.
#[derive(Clone, Debug, Default)]
struct NetworkThread {
    /// Requests to read.
    unread: VecDeque<usize>,
    /// Time at which it has done all other work and sleeps.
    sleeps: u64,
    /// Work that it can still run before it sleeps.
    left: u64,
}

struct Simulation {
    scenario: Scenario,
    core: Core<u32, usize, usize>,
    corrections: Corrections<u32, 1>,
    model: CostModel,
    consensus: TenantConsensus<u32>,
    slices: u64,
    now: u64,
    end: u64,
    events: BinaryHeap<Reverse<(u64, u64, SimulationEvent)>>,
    scheduled: u64,
    random: SimulationRandom,
    requests: Vec<IssuedRequest>,
    /// Per worker: the request, its id, and the work in the slice. Behind them the network thread.
    workers: Vec<Option<(usize, Id, u64)>>,
    network: NetworkThread,
    /// By source and connection.
    paused_until: Vec<Vec<u64>>,
    stolen: u64,
    report: SimulationReport,
}

impl Simulation {
    fn new(scenario: Scenario) -> Self {
        let groups = scenario
            .sources
            .iter()
            .map(|source| source.group + 1)
            .max()
            .unwrap_or(0);
        let sizes = scenario
            .sources
            .iter()
            .map(|source| source.mix.len())
            .max()
            .unwrap_or(0);
        let workers = scenario.options.workers.get() as usize;
        let report = SimulationReport::new(
            groups,
            sizes,
            scenario.millis - scenario.warm_up_millis,
            workers,
        );
        Self {
            core: Core::with_tuning(scenario.options, &scenario.tuning),
            corrections: Corrections::new(16),
            model: CostModel::new(Coefficients {
                request: 0.0,
                key_agreement: 0.0,
                field: 0.0,
                byte: 1.0,
            }),
            consensus: TenantConsensus::new(),
            slices: 0,
            now: 0,
            end: scenario.millis * MS,
            events: BinaryHeap::new(),
            scheduled: 0,
            random: SimulationRandom(scenario.seed),
            requests: Vec::new(),
            workers: vec![None; workers + 1],
            network: NetworkThread::default(),
            paused_until: scenario
                .sources
                .iter()
                .map(|source| vec![0; source.connections])
                .collect(),
            stolen: 0,
            report,
            scenario,
        }
    }

    fn run(mut self) -> SimulationReport {
        for source in 0..self.scenario.sources.len() {
            let Source {
                arrivals, active, ..
            } = self.scenario.sources[source];
            match arrivals {
                Arrivals::Poisson(_) => {
                    self.after(active.0 * MS, SimulationEvent::Arrive { source })
                }
                Arrivals::Closed(outstanding) => {
                    for _ in 0..outstanding {
                        // Not all in one instant.
                        let at = active.0 * MS + self.random.below(10 * MS as usize) as u64;
                        self.after(at, SimulationEvent::Arrive { source });
                    }
                }
            }
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > self.end {
                break;
            }
            self.now = at;
            match event {
                SimulationEvent::Arrive { source } => self.arrive(source),
                SimulationEvent::Again { request } => self.offer(request),
                SimulationEvent::SliceEnd { worker } => self.slice_end(worker),
                SimulationEvent::Back { request } => self.back(request),
                SimulationEvent::Timeout { request } => self.timeout(request),
                SimulationEvent::Expire { request, id } => self.expire(request, id),
                SimulationEvent::Read => self.read(),
            }
            self.start_workers();
        }
        self.report.finish(self.core.gauges());
        self.report
    }

    fn after(&mut self, span: u64, event: SimulationEvent) {
        self.scheduled += 1;
        self.events.push(Reverse((
            self.now.saturating_add(span),
            self.scheduled,
            event,
        )));
    }

    fn arrive(&mut self, index: usize) {
        let source = &self.scenario.sources[index];
        if let Arrivals::Poisson(per_second) = source.arrivals {
            let next = self.random.exponential(SECOND as f64 / per_second);
            if self.now + next < source.active.1.saturating_mul(MS) {
                self.after(next, SimulationEvent::Arrive { source: index });
            }
        }
        let source = &self.scenario.sources[index];
        if self.now >= source.active.1.saturating_mul(MS) {
            return;
        }
        let mut at = self.random.unit();
        let mut size = 0;
        while at >= source.mix[size].1 && size + 1 < source.mix.len() {
            at -= source.mix[size].1;
            size += 1;
        }
        let work = source.scope.work(source.mix[size].0);
        let connection = self.random.below(source.connections);
        let behind = source.away_ms.map_or(0, |_| work / 2);
        self.requests.push(IssuedRequest {
            source: index,
            size,
            arrived: self.now,
            connection,
            work,
            left: work - behind,
            behind,
            told: Cost::default(),
            id: None,
            retried: false,
            over: false,
            offered: 0,
            expires: 0,
            started: false,
        });
        let request = self.requests.len() - 1;
        if let Some(timeout) = source.timeout_ms {
            self.after(timeout * MS, SimulationEvent::Timeout { request });
        }
        self.row(request, |row| {
            row.offered += 1;
            row.offered_work += work;
        });
        self.offer(request);
    }

    /// Sends a request. If its connection is paused, the request fails unread, whatever its class.
    fn offer(&mut self, request: usize) {
        let IssuedRequest {
            source: index,
            connection,
            ..
        } = self.requests[request];
        if self.scenario.pause && self.paused_until[index][connection] > self.now {
            return self.rejected(request, self.paused_until[index][connection] - self.now);
        }
        if let Some(inline) = self.scenario.inline
            && !self.network_thread_reads(request, inline)
        {
            return;
        }
        self.offer_read(request);
    }

    /// Reads a request and offers it to the core.
    fn offer_read(&mut self, request: usize) {
        let IssuedRequest {
            source: index,
            connection,
            arrived,
            work,
            ..
        } = self.requests[request];
        self.steal(self.scenario.read);
        let spread = self.scenario.misjudged.ln() * (2.0 * self.random.unit() - 1.0);
        let source = &self.scenario.sources[index];
        let deadline = match source.timeout_ms {
            Some(timeout) if self.scenario.deadlines => Time::from_nanos(arrived + timeout * MS),
            _ => Time::NEVER,
        };
        let has_waited =
            self.scenario.pause && std::mem::take(&mut self.paused_until[index][connection]) > 0;
        let factor = if self.scenario.corrects {
            self.corrections.factor(&source.tenant, 0)
        } else {
            1.0
        };
        let modelled = self.model.nanos(counted(work / source.undercounted));
        let told = Cost::from_nanos((modelled * factor * spread.exp()) as u64);
        self.requests[request].told = told;
        let offered = OfferedRequest {
            tenant: if self.scenario.one_tenant {
                &0
            } else {
                &source.tenant
            },
            weight: source.weight,
            cost: told,
            bytes: source.bytes,
            since: Time::from_nanos(self.now),
            deadline,
            has_body: true,
            has_waited,
        };
        (
            self.requests[request].offered,
            self.requests[request].started,
        ) = (self.now, false);
        match self
            .core
            .offer(Time::from_nanos(self.now), &offered, || request)
        {
            AdmissionDecision::Admitted { id, .. } => {
                self.requests[request].id = Some(id);
                self.row(request, |row| row.at_once += 1);
                let first = self.first(request);
                let is_queue_empty = self.core.gauges().ready.iter().all(|ready| *ready == 0);
                self.core.submit(id, first, request).expect("just admitted");
                if !is_queue_empty || !self.run_inline(request) {
                    self.expires(request, id);
                }
            }
            AdmissionDecision::Waiting { id, .. } => {
                self.requests[request].id = Some(id);
                self.expires(request, id);
            }
            AdmissionDecision::Rejected(rejection) => {
                assert!(
                    rejection.retry_after >= Duration::from_millis(5),
                    "no rejection without a time to come again"
                );
                let span = nanos(rejection.retry_after);
                self.paused_until[index][connection] = self.now + span.min(SECOND);
                self.row(request, |row| row.rejected_read += 1);
                self.rejected(request, span);
            }
        }
    }

    /// Takes time from a worker for the network thread, if no core is idle.
    fn steal(&mut self, span: u64) {
        let workers = self.workers.len() - 1;
        if self.workers[..workers].iter().all(Option::is_some) {
            self.stolen += span;
        }
    }

    /// Returns false if the network thread is busy. It then reads the request later.
    fn network_thread_reads(&mut self, request: usize, inline: u64) -> bool {
        let network = &mut self.network;
        if network.sleeps >= self.now {
            network.unread.push_back(request);
            if network.unread.len() == 1 {
                let busy = network.sleeps - self.now;
                self.after(busy, SimulationEvent::Read);
            }
            return false;
        }
        (network.left, network.sleeps) = (inline, self.now + self.scenario.read);
        true
    }

    /// Reads the next request on the network thread, if its earlier work is done.
    fn read(&mut self) {
        if self.network.sleeps > self.now {
            return self.after(self.network.sleeps - self.now, SimulationEvent::Read);
        }
        if let Some(request) = self.network.unread.pop_front() {
            self.network.sleeps = self.now + self.scenario.read;
            self.offer_read(request);
            self.after(self.network.sleeps - self.now, SimulationEvent::Read);
        }
    }

    /// Runs a request on the network thread if it is alone in the queue and permitted to.
    fn run_inline(&mut self, request: usize) -> bool {
        let IssuedRequest {
            source, left: work, ..
        } = self.requests[request];
        let is_light =
            self.scenario.sources[source].scope == Scope::Ready && work <= self.network.left;
        let Some(slice) = is_light
            .then(|| self.core.next_slice(Time::from_nanos(self.now)))
            .flatten()
        else {
            return false;
        };
        assert_eq!(slice.work, request, "nothing else was queued");
        self.requests[request].expires = self.now;
        self.starts(request);
        self.network.left -= work;
        self.network.sleeps += work;
        self.steal(work);
        self.row(request, |row| row.inline += 1);
        let thread = self.workers.len() - 1;
        assert!(
            self.workers[thread]
                .replace((request, slice.id, work))
                .is_none(),
            "one at a time"
        );
        self.after(
            self.network.sleeps - self.now,
            SimulationEvent::SliceEnd { worker: thread },
        );
        true
    }

    /// Sets the timer that ends the wait of a request.
    fn expires(&mut self, request: usize, id: Id) {
        let expires = self.core.expires_at(id).as_nanos();
        self.requests[request].expires = expires;
        if self.scenario.expiry && expires < u64::MAX {
            self.after(expires - self.now, SimulationEvent::Expire { request, id });
        }
    }

    fn expire(&mut self, request: usize, id: Id) {
        match self.core.expire_request(Time::from_nanos(self.now), id) {
            Expiry::Never => (),
            Expiry::Later(_) => unreachable!("no request is admitted for long and not submitted"),
            Expiry::Expired { rejection, .. } => {
                self.starts(request);
                self.row(request, |row| {
                    row.expired += 1;
                    row.rejected_read += 1;
                });
                self.submit_promoted();
                self.rejected(request, nanos(rejection.retry_after));
            }
        }
    }

    /// Records how long an admitted request has waited, once it waits no longer.
    fn starts(&mut self, request: usize) {
        if std::mem::replace(&mut self.requests[request].started, true) {
            return;
        }
        let IssuedRequest {
            offered, expires, ..
        } = self.requests[request];
        assert!(
            !self.scenario.expiry || self.now <= expires,
            "no request waits beyond twice its bound"
        );
        let waited = self.now - offered;
        self.row(request, |row| row.waited_max = row.waited_max.max(waited));
    }

    /// Returns the cost that the core knows, without the part that follows a wait.
    fn first(&self, request: usize) -> Cost {
        let IssuedRequest { told, behind, .. } = self.requests[request];
        Cost::from_nanos(told.as_nanos() - behind.min(told.as_nanos()))
    }

    fn rejected(&mut self, request: usize, span: u64) {
        if self.scenario.retry && !self.requests[request].retried {
            self.requests[request].retried = true;
            return self.after(span, SimulationEvent::Again { request });
        }
        let retried = self.requests[request].retried;
        self.row(request, |row| {
            row.rejected += 1;
            row.rejected_twice += u64::from(retried);
        });
        self.over(request, span);
    }

    /// Continues a closed loop.
    fn over(&mut self, request: usize, pause: u64) {
        let issued = &mut self.requests[request];
        issued.over = true;
        let source = issued.source;
        if let Arrivals::Closed(_) = self.scenario.sources[source].arrivals {
            self.after(pause, SimulationEvent::Arrive { source });
        }
    }

    fn timeout(&mut self, request: usize) {
        if self.requests[request].over {
            return;
        }
        self.starts(request);
        self.row(request, |row| row.late += 1);
        if let Some(id) = self.requests[request].id {
            self.core.close(Time::from_nanos(self.now), id);
            self.submit_promoted();
        }
        self.over(request, 0);
    }

    fn slice_end(&mut self, worker: usize) {
        let (request, id, work) = self.workers[worker].take().expect("a slice ends once");
        let issued = &mut self.requests[request];
        issued.left -= work;
        let done = issued.left == 0;
        let Source {
            tenant,
            undercounted,
            ..
        } = self.scenario.sources[issued.source];
        let Source { group, away_ms, .. } = self.scenario.sources[issued.source];
        let away = away_ms.filter(|_| done && issued.behind > 0);
        let spent = self.learn(tenant, group, counted(work / undercounted), work);
        let now = Time::from_nanos(self.now);
        let unwanted = self
            .core
            .finish_slice(now, id, spent, (!done).then_some(request));
        assert_eq!(
            unwanted.is_some(),
            !done && self.requests[request].over,
            "what is given back is what was closed"
        );
        if let Some(millis) = away {
            self.after(millis * MS, SimulationEvent::Back { request });
        } else if done && !self.requests[request].over {
            let closed = self.core.close(now, id);
            assert_eq!(
                closed,
                Some(Closed {
                    work: None,
                    left: Cost::default()
                }),
                "what is done has no work left"
            );
            let IssuedRequest {
                source,
                size,
                arrived,
                work,
                ..
            } = self.requests[request];
            let latency = self.now - arrived;
            self.row(request, |row| row.finish(latency));
            if self.now >= self.scenario.warm_up_millis * MS {
                self.report.rows[self.scenario.sources[source].group][size].done_work += work;
            }
            self.over(request, 0);
        }
        self.submit_promoted();
    }

    /// Learns the duration of a slice. Returns its charge.
    fn learn(&mut self, tenant: u32, group: usize, done: WorkSize, work: u64) -> Cost {
        let estimated = self.model.estimate(done);
        if !self.scenario.corrects {
            return estimated;
        }
        let took = Duration::from_nanos((work as f64 * self.throttle()) as u64);
        let excess = self.corrections.measured(&tenant, 0, estimated, took);
        self.slices += 1;
        // As the engine: one of eight.
        if self.slices.is_multiple_of(8) {
            let is_ordinary = self.corrections.is_ordinary(&tenant, 0);
            let sample = Sample {
                tenant: &tenant,
                done,
                took,
                is_ordinary,
            };
            self.consensus
                .learn(Time::from_nanos(self.now), &mut self.model, &sample);
        }
        if self.corrections.factor(&tenant, 0) > 1.2 {
            self.report.corrected_until[group] = self.now;
        }
        let drift = self
            .model
            .drift(counted(1))
            .expect("a byte costs something");
        let [least, most, _] = self.report.drift;
        self.report.drift = [least.min(drift), most.max(drift), drift];
        Cost::from_nanos(estimated.as_nanos() + excess.as_nanos())
    }

    /// Returns the factor by which work takes longer than usual now.
    fn throttle(&self) -> f64 {
        let is_in = |(from, to, _): &(u64, u64, f64)| (from * MS..to * MS).contains(&self.now);
        self.scenario
            .throttled
            .filter(is_in)
            .map_or(1.0, |(_, _, throttle)| throttle)
    }

    /// Ends the wait of a request.
    fn back(&mut self, request: usize) {
        let issued = &mut self.requests[request];
        issued.left = std::mem::take(&mut issued.behind);
        let (id, left, over) = (
            issued.id.expect("it ran"),
            Cost::from_nanos(issued.left),
            issued.over,
        );
        assert_eq!(
            self.core
                .resume(Time::from_nanos(self.now), id, left, request)
                .is_err(),
            over
        );
    }

    fn submit_promoted(&mut self) {
        while let Some((id, request)) = self.core.next_promoted() {
            assert_eq!(self.requests[request].id, Some(id));
            // A request can time out in the same instant; the core has then removed it.
            let first = self.first(request);
            assert_eq!(
                self.core.submit(id, first, request).is_err(),
                self.requests[request].over
            );
        }
    }

    fn start_workers(&mut self) {
        for worker in 0..self.workers.len() - 1 {
            if self.workers[worker].is_some() {
                continue;
            }
            let now = Time::from_nanos(self.now);
            let slice = self.core.next_slice(now).or_else(|| {
                self.submit_promoted();
                self.core.next_slice(now)
            });
            let Some(slice) = slice else {
                self.report.idle_while_waiting +=
                    u64::from(self.core.gauges().waiting.iter().any(|n| *n > 0));
                continue;
            };
            self.starts(slice.work);
            let issued = &self.requests[slice.work];
            let source = &self.scenario.sources[issued.source];
            let by_time = if self.scenario.slices_by_time {
                1
            } else {
                source.undercounted
            };
            let throttle = self.throttle();
            let budget = (slice.budget.as_nanos() as f64 / throttle) as u64;
            let work = source.scope.slice(budget * by_time, issued.left);
            self.workers[worker] = Some((slice.work, slice.id, work));
            let work_span = (work as f64 * throttle) as u64 * self.scenario.slowness;
            let mut span = PICK + work_span + std::mem::take(&mut self.stolen);
            if let Some((at, stall)) = self.scenario.stall
                && worker == 0
                && (at * MS..(at + stall) * MS).contains(&self.now)
            {
                span += (at + stall) * MS - self.now;
            }
            if let Some(contention) = self.scenario.contention {
                span = contention.end(self.now, span) - self.now;
            }
            self.after(span, SimulationEvent::SliceEnd { worker });
        }
        let backlog = self.core.gauges().backlog.iter().sum();
        self.report.backlog_max = self.report.backlog_max.max(backlog);
    }

    /// Changes the row of a request that counts.
    fn row(&mut self, request: usize, change: impl FnOnce(&mut ClassRow)) {
        let IssuedRequest {
            source,
            size,
            arrived,
            ..
        } = self.requests[request];
        if arrived >= self.scenario.warm_up_millis * MS {
            change(&mut self.report.rows[self.scenario.sources[source].group][size]);
        }
    }
}
