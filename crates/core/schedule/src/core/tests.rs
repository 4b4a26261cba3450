//! The core under random sequences of its operations, and tests of single rules.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::admission::Rejection;

type TestCore = Core<u32, u32, u32>;

const NS_PER_US: u64 = 1_000;

fn options(workers: u32) -> SchedulerOptions {
    SchedulerOptions {
        memory_bytes_max: 1_000,
        ..SchedulerOptions::new(NonZeroU32::new(workers).unwrap())
    }
}

fn request(tenant: &u32, micros: u64) -> OfferedRequest<'_, u32> {
    let (cost, since) = (micros_of_work(micros), Time::default());
    OfferedRequest {
        tenant,
        weight: 1,
        cost,
        bytes: 0,
        since,
        deadline: Time::NEVER,
        has_body: true,
        has_waited: false,
    }
}

fn micros_of_work(micros: u64) -> Cost {
    Cost::from_nanos(micros * NS_PER_US)
}

fn admitted(decision: AdmissionDecision) -> Id {
    match decision {
        AdmissionDecision::Admitted { id, .. } => id,
        other => panic!("not admitted: {other:?}"),
    }
}

#[derive(Clone, Debug)]
enum Op {
    AdmissionOffer {
        tenant: u32,
        weight: u32,
        micros: u64,
        bytes: u64,
        patience_ms: u64,
        has_body: bool,
    },
    Submit {
        of: usize,
        micros: u64,
    },
    Reckon {
        of: usize,
        micros: u64,
    },
    Pick,
    /// Ends a slice that did `part` percent of its budget; the request is done once it did `needs`
    /// percent of its cost.
    Done {
        of: usize,
        part: u64,
    },
    /// Resumes a request that was done.
    Resume {
        of: usize,
        micros: u64,
    },
    Close(usize),
    Resize {
        of: usize,
        bytes: u64,
    },
    Wait {
        micros: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let cost = || {
        prop_oneof![
            1..100_u64,
            100..2_000_u64,
            2_000..1_000_000_u64,
            Just(0),
            Just(u64::MAX / NS_PER_US)
        ]
    };
    let patience = prop_oneof![Just(u64::MAX / 2_000_000), 1..500_u64];
    let offer = (
        0..6_u32,
        1..4_u32,
        cost(),
        0..300_u64,
        patience,
        any::<bool>(),
    );
    let any = any::<usize>;
    prop_oneof![
        6 => offer.prop_map(|(tenant, weight, micros, bytes, patience_ms, has_body)| {
            Op::AdmissionOffer { tenant, weight, micros, bytes, patience_ms, has_body }
        }),
        6 => (any(), cost()).prop_map(|(of, micros)| Op::Submit { of, micros }),
        2 => (any(), cost()).prop_map(|(of, micros)| Op::Reckon { of, micros }),
        8 => Just(Op::Pick),
        8 => (any(), 0..300_u64).prop_map(|(of, part)| Op::Done { of, part }),
        2 => (any(), cost()).prop_map(|(of, micros)| Op::Resume { of, micros }),
        2 => any().prop_map(Op::Close),
        2 => (any(), 0..600_u64).prop_map(|(of, bytes)| Op::Resize { of, bytes }),
        2 => (0..50_000_u64).prop_map(|micros| Op::Wait { micros }),
    ]
}

/// State of the core's owner.
#[derive(Default)]
struct Owner {
    now: u64,
    tokens: u32,
    waiting: HashMap<u32, Id>,
    admitted: Vec<Id>,
    /// Work handed over and not running, by token.
    ready: HashMap<u32, Id>,
    running: Vec<Slice<u32>>,
    /// Work still to do, in ns; costs are estimates.
    left: HashMap<Id, u64>,
    done: Vec<Id>,
    closed: HashSet<Id>,
    has_body: HashSet<Id>,
}

impl Owner {
    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    fn has_nothing_to_do(&self) -> bool {
        self.waiting.is_empty()
            && self.admitted.is_empty()
            && self.ready.is_empty()
            && self.running.is_empty()
    }

    fn live(&self) -> Vec<Id> {
        let waiting = self
            .waiting
            .values()
            .chain(&self.admitted)
            .chain(self.ready.values())
            .chain(&self.done);
        let mut live: Vec<_> = waiting
            .copied()
            .chain(self.running.iter().map(|slice| slice.id))
            .collect();
        live.retain(|id| !self.closed.contains(id));
        live.sort_unstable();
        live
    }

    fn apply(&mut self, core: &mut TestCore, workers: u32, op: Op) {
        match op {
            Op::AdmissionOffer {
                tenant,
                weight,
                micros,
                bytes,
                patience_ms,
                has_body,
            } => {
                let deadline = self.time() + Duration::from_millis(patience_ms);
                let request = OfferedRequest {
                    weight,
                    bytes,
                    deadline,
                    has_body,
                    ..request(&tenant, micros)
                };
                self.tokens += 1;
                let token = self.tokens;
                match core.offer(self.time(), &request, || token) {
                    AdmissionDecision::Admitted { id, .. } => self.admitted.push(id),
                    AdmissionDecision::Waiting { id, .. } => {
                        assert!(self.waiting.insert(token, id).is_none())
                    }
                    AdmissionDecision::Rejected(rejection) => {
                        let reach = Duration::from_millis(5)..=Duration::from_mins(90);
                        assert!(reach.contains(&rejection.retry_after), "{rejection:?}");
                        return;
                    }
                }
                let id = *self
                    .admitted
                    .iter()
                    .chain(self.waiting.values())
                    .max()
                    .unwrap();
                if has_body {
                    self.has_body.insert(id);
                }
                // Estimates are off by up to two either way.
                self.left.insert(
                    id,
                    micros.min(1_000_000) * NS_PER_US * (50 + u64::from(self.tokens * 37 % 150))
                        / 100,
                );
            }
            Op::Submit { of, micros } if !self.admitted.is_empty() => {
                let id = self.admitted.swap_remove(of % self.admitted.len());
                self.tokens += 1;
                let closed = self.closed.contains(&id);
                assert_eq!(
                    core.submit(id, micros_of_work(micros), self.tokens)
                        .is_err(),
                    closed
                );
                if !closed {
                    self.ready.insert(self.tokens, id);
                }
                assert!(
                    core.submit(id, micros_of_work(micros), 0).is_err(),
                    "work is handed over once"
                );
            }
            Op::Pick if self.running.len() < workers as usize => match core.next_slice(self.time())
            {
                Some(slice) => {
                    assert_eq!(
                        self.ready.remove(&slice.work),
                        Some(slice.id),
                        "what runs was ready, once"
                    );
                    self.running.push(slice);
                }
                None => {
                    assert!(self.ready.is_empty(), "no worker idles beside work");
                    let no_need = self.waiting.is_empty() || self.in_motion() >= workers as usize;
                    assert_eq!(core.promoted.is_empty(), no_need, "nor beside who waits");
                }
            },
            Op::Done { of, part } if !self.running.is_empty() => {
                let slice = self.running.swap_remove(of % self.running.len());
                let left = self.left.get_mut(&slice.id).unwrap();
                let spent = (slice.budget.as_nanos() * part / 100).min(*left);
                *left -= spent;
                let unfinished = (*left > 0).then_some(slice.work);
                self.now += spent;
                let back =
                    core.finish_slice(self.time(), slice.id, Cost::from_nanos(spent), unfinished);
                let closed = self.closed.contains(&slice.id);
                assert_eq!(
                    back,
                    unfinished.filter(|_| closed),
                    "work that is closed comes back"
                );
                match unfinished {
                    _ if closed => assert!(core.close(self.time(), slice.id).is_none()),
                    Some(work) => assert!(self.ready.insert(work, slice.id).is_none()),
                    None => self.done.push(slice.id),
                }
                let again =
                    core.finish_slice(self.time(), slice.id, Cost::from_nanos(spent), Some(0));
                assert_eq!(again, Some(0), "a slice ends once");
            }
            Op::Reckon { of, micros } => {
                let live = self.live();
                if !live.is_empty() {
                    self.update_estimate(core, live[of % live.len()], micros);
                }
            }
            Op::Resume { of, micros } if !self.done.is_empty() => {
                let id = self.done.swap_remove(of % self.done.len());
                self.tokens += 1;
                core.resume(self.time(), id, micros_of_work(micros), self.tokens)
                    .expect("it is done and not closed");
                assert_eq!(
                    core.resume(self.time(), id, Cost::default(), 0),
                    Err(0),
                    "once"
                );
                self.ready.insert(self.tokens, id);
                self.left.insert(id, micros.min(1_000_000) * NS_PER_US);
            }
            Op::Close(of) => self.close(core, of),
            Op::Resize { of, bytes } => {
                let live = self.live();
                if !live.is_empty() {
                    let _ = core.resize_request(live[of % live.len()], bytes);
                }
            }
            Op::Wait { micros } => self.now += micros * NS_PER_US,
            Op::Submit { .. } | Op::Pick | Op::Done { .. } | Op::Resume { .. } => (),
        }
        while let Some((id, token)) = core.next_promoted() {
            assert_eq!(
                self.waiting.remove(&token),
                Some(id),
                "who waited is promoted once"
            );
            self.admitted.push(id);
        }
        let whole_waits = self.waiting.values().any(|id| self.has_body.contains(id));
        let enough = self.in_motion() >= workers as usize;
        assert!(
            !whole_waits || enough,
            "no worker idles while a request that could run waits"
        );
    }

    /// Returns the number of requests that occupy a worker now, or will at once.
    fn in_motion(&self) -> usize {
        let comes = |id: &&Id| self.has_body.contains(id) && !self.closed.contains(id);
        self.running.len() + self.ready.len() + self.admitted.iter().filter(comes).count()
    }

    fn update_estimate(&mut self, core: &mut TestCore, id: Id, micros: u64) {
        core.update_estimate(self.time(), id, micros_of_work(micros));
        self.has_body.insert(id);
    }

    fn close(&mut self, core: &mut TestCore, of: usize) {
        let live = self.live();
        if live.is_empty() {
            return;
        }
        let id = live[of % live.len()];
        let token = self
            .ready
            .iter()
            .find(|(_, ready)| **ready == id)
            .map(|(token, _)| *token);
        assert_eq!(
            core.close(self.time(), id).unwrap().work,
            token,
            "work that did not run comes back"
        );
        self.ready.retain(|_, ready| *ready != id);
        self.waiting.retain(|_, waiting| *waiting != id);
        self.done.retain(|done| *done != id);
        self.closed.insert(id);
        assert_eq!(core.close(self.time(), id), None, "a request ends once");
        assert_eq!(
            core.resume(self.time(), id, Cost::default(), 0),
            Err(0),
            "and does not start again"
        );
        let runs = self.running.iter().any(|slice| slice.id == id);
        assert_eq!(
            core.resize_request(id, 0),
            runs,
            "a request that is gone holds nothing"
        );
    }
}

/// Invariants that hold at any time.
fn check(core: &TestCore, memory_max: u64) {
    let gauges = core.gauges();
    let mut bytes = HashMap::<Id, u64>::new();
    let mut backlog = HashMap::<Id, u64>::new();
    let mut held = HashMap::<Id, u64>::new();
    let mut unfinished = HashMap::<Id, usize>::new();
    let mut coming = 0;
    for (_, entry) in core.entries.iter() {
        *bytes.entry(entry.tenant).or_default() += entry.bytes;
        let admitted = !matches!(entry.stage, RequestStage::Waiting(_));
        *if admitted { &mut backlog } else { &mut held }
            .entry(entry.tenant)
            .or_default() += entry.left.as_nanos();
        let active = matches!(
            entry.stage,
            RequestStage::Ready(_) | RequestStage::Running | RequestStage::Closing
        );
        *unfinished.entry(entry.tenant).or_default() += usize::from(active);
        assert_eq!(entry.class, Class::of(entry.left, core.class_first));
        coming += u32::from(entry.whole && matches!(entry.stage, RequestStage::Admitted));
    }
    assert_eq!(core.awaiting_submit, coming);
    assert_eq!(gauges.bytes, bytes.values().sum());
    assert!(gauges.bytes <= memory_max);
    assert_eq!(gauges.backlog.iter().sum::<u64>(), backlog.values().sum());
    let mut weights = 0;
    for (id, tenant) in core.tenants.iter() {
        assert_eq!(tenant.bytes, bytes.remove(&id).unwrap_or(0));
        assert_eq!(tenant.admission.backlog(), backlog.remove(&id).unwrap_or(0));
        assert_eq!(
            tenant.admission.waiting_work(),
            held.remove(&id).unwrap_or(0)
        );
        assert_eq!(tenant.unfinished, unfinished.remove(&id).unwrap_or(0));
        weights += if tenant.unfinished > 0 {
            u64::from(tenant.account.weight())
        } else {
            0
        };
        core.run_queue.check(&tenant.account);
    }
    assert_eq!(core.run_queue.weights(), weights);
    assert_eq!(core.by_key.len(), gauges.tenants);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// No request is lost or run twice. No worker idles while work is ready or a whole request
    /// waits. Sums are exact and memory is bounded. After any sequence, all admitted requests end
    /// and leave no state.
    #[test]
    fn random_operations_lose_and_repeat_no_request(
        workers in 1..4_u32,
        ops in prop::collection::vec(op(), 1..250),
    ) {
        let options = options(workers);
        let (mut core, mut owner) = (TestCore::new(options), Owner::default());
        for op in ops {
            owner.apply(&mut core, workers, op);
            check(&core, options.memory_bytes_max);
        }
        let index = || 0;
        let mut rest: Vec<_> = owner.waiting.values().copied().collect();
        rest.sort_unstable();
        for id in rest {
            owner.update_estimate(&mut core, id, 100);
            owner.apply(&mut core, workers, Op::Wait { micros: 0 });
        }
        for _ in 0..2_000 {
            owner.apply(&mut core, workers, Op::Submit { of: index(), micros: 100 });
            owner.apply(&mut core, workers, Op::Pick);
            owner.apply(&mut core, workers, Op::Done { of: index(), part: 10_000_000 });
            if owner.has_nothing_to_do() {
                break;
            }
        }
        prop_assert!(owner.has_nothing_to_do());
        while !owner.live().is_empty() {
            owner.close(&mut core, index());
        }
        check(&core, options.memory_bytes_max);
        let gauges = core.gauges();
        prop_assert_eq!((gauges.requests, gauges.bytes, gauges.running), (0, 0, 0));
        prop_assert_eq!((gauges.backlog, gauges.ready, gauges.waiting), ([0; 8], [0; 8], [0; 8]));
    }

    /// Tenants that always have requests of one size get work in proportion to their weights, within
    /// the bounds of surplus and deficit, from any moment on.
    #[test]
    fn tenants_with_work_get_their_shares(
        weights in prop::collection::vec(1..5_u32, 2..6),
        micros in 50..5_000_u64,
        spent in prop::collection::vec(10..150_u64, 1..20),
        slices in 100..5_000_usize,
    ) {
        let mut core = TestCore::new(SchedulerOptions { wait_max: Duration::from_secs(1_000), ..options(1) });
        let mut now = 0;
        let tenants: Vec<u32> = (0..weights.len() as u32).collect();
        let submit = |core: &mut TestCore, tenant: u32, now| {
            let request = OfferedRequest { weight: weights[tenant as usize], ..request(&tenants[tenant as usize], micros) };
            let id = admitted(core.offer(Time::from_nanos(now), &request, || 0));
            core.submit(id, micros_of_work(micros), tenant).unwrap();
        };
        for tenant in &tenants {
            (0..2).for_each(|_| submit(&mut core, *tenant, now));
        }
        let (mut got, mut left) = (vec![0; tenants.len()], HashMap::new());
        for slice in 0..slices {
            let picked = core.next_slice(Time::from_nanos(now)).unwrap();
            let left = left.entry(picked.id).or_insert(micros * NS_PER_US);
            let spent = (spent[slice % spent.len()] * NS_PER_US).min(*left);
            *left -= spent;
            now += spent;
            got[picked.work as usize] += spent / u64::from(weights[picked.work as usize]);
            let unfinished = (*left > 0).then_some(picked.work);
            core.finish_slice(Time::from_nanos(now), picked.id, Cost::from_nanos(spent), unfinished);
            if unfinished.is_none() {
                core.close(Time::from_nanos(now), picked.id);
                submit(&mut core, picked.work, now);
            }
            let apart = got.iter().max().unwrap() - got.iter().min().unwrap();
            prop_assert!(apart <= 60_000_000, "{apart} ns of service apart after {slice} slices");
        }
    }
}

#[test]
fn tenants_that_join_and_leave_a_thousand_times_a_second_are_forgotten() {
    let mut core = TestCore::new(options(2));
    let mut most = 0;
    for tenant in 0..100_000_u32 {
        let now = u64::from(tenant) * 1_000_000;
        let id = admitted(core.offer(Time::from_nanos(now), &request(&tenant, 1_500), || 0));
        core.submit(id, micros_of_work(1_500), tenant).unwrap();
        for _ in 0..15 {
            let slice = core.next_slice(Time::from_nanos(now)).unwrap();
            core.finish_slice(
                Time::from_nanos(now + 50_000),
                slice.id,
                slice.budget,
                Some(slice.work),
            );
        }
        core.close(Time::from_nanos(now + 900_000), id);
        most = most.max(core.gauges().tenants);
    }
    assert!(most <= 30, "{most} tenants remembered");
}

/// Two workers at 400 ms and 50 us of tenant 0, which has 400 ms more admitted and still arriving.
/// Returns what runs.
fn two_busy_workers(core: &mut TestCore) -> [Id; 2] {
    let now = Time::default();
    let [large, _, small] =
        [(400_000, true), (400_000, false), (50, true)].map(|(micros, has_body)| {
            admitted(core.offer(
                now,
                &OfferedRequest {
                    has_body,
                    ..request(&0, micros)
                },
                || 0,
            ))
        });
    for (id, micros) in [(large, 400_000), (small, 50)] {
        core.submit(id, micros_of_work(micros), 0).unwrap();
        assert!(core.next_slice(now).is_some());
    }
    [large, small]
}

/// Offers 110 ms of tenant 0 that are to wait.
fn waits(core: &mut TestCore, has_body: bool) -> Id {
    match core.offer(
        Time::default(),
        &OfferedRequest {
            has_body,
            ..request(&0, 110_000)
        },
        || 7,
    ) {
        AdmissionDecision::Waiting { id, .. } => id,
        other => panic!("not made to wait: {other:?}"),
    }
}

fn promoted(core: &mut TestCore) -> Vec<Id> {
    std::iter::from_fn(|| core.next_promoted())
        .map(|(id, _)| id)
        .collect()
}

#[test]
fn idle_worker_admits_waiting_requests() {
    let mut core = TestCore::new(options(2));
    let now = Time::default();
    let [_, small] = two_busy_workers(&mut core);
    let [first, second] = [true; 2].map(|has_body| waits(&mut core, has_body));
    core.finish_slice(now, small, Cost::from_nanos(50_000), None);
    assert_eq!(
        promoted(&mut core),
        [first],
        "one for the worker that is free"
    );
    assert!(core.next_slice(now).is_none());
    assert_eq!(promoted(&mut core), [], "which it waits for");
    core.close(now, first);
    assert_eq!(
        promoted(&mut core),
        [second],
        "but not for one that is gone"
    );
    assert!(core.submit(second, Cost::default(), 0).is_ok());
}

#[test]
fn slow_bodies_keep_no_worker_from_whole_requests() {
    let mut core = TestCore::new(options(2));
    let now = Time::default();
    let running = two_busy_workers(&mut core);
    let slow = [false; 3].map(|has_body| waits(&mut core, has_body));
    let has_body = waits(&mut core, true);
    core.finish_slice(now, running[1], Cost::from_nanos(50_000), None);
    assert_eq!(
        promoted(&mut core),
        [has_body],
        "before older ones that are not there yet"
    );
    // The other worker finds no work either. Only arriving bodies are left: one request is admitted,
    // so that it is read further.
    core.close(now, running[0]);
    core.finish_slice(now, running[0], Cost::from_nanos(50_000), None);
    core.submit(has_body, micros_of_work(110_000), 1).unwrap();
    assert_eq!(core.next_slice(now).unwrap().work, 1);
    assert!(core.next_slice(now).is_none());
    assert_eq!(promoted(&mut core), [slow[0]]);
    // A complete request need not wait for an incomplete one, nor for a sleeping worker.
    core.update_estimate(now, slow[2], micros_of_work(110_000));
    assert_eq!(promoted(&mut core), [slow[2]]);
    core.update_estimate(now, slow[1], micros_of_work(110_000));
    assert_eq!(promoted(&mut core), [], "both workers have one");
}

#[test]
fn request_starts_for_an_idle_worker_while_another_is_unsubmitted() {
    let mut core = TestCore::new(options(2));
    let first = admitted(core.offer(Time::default(), &request(&0, 400_000), || 0));
    core.submit(first, micros_of_work(400_000), 0).unwrap();
    admitted(core.offer(Time::default(), &request(&0, 110_000), || 0));
}

#[test]
fn request_without_cost_is_admitted_in_order() {
    let mut core = TestCore::new(options(1));
    let now = Time::default();
    let offer =
        |core: &mut TestCore, tenant, micros| core.offer(now, &request(&tenant, micros), || 0);
    let other = admitted(offer(&mut core, 1, 400_000));
    let running = admitted(offer(&mut core, 0, 200_000));
    core.submit(running, micros_of_work(200_000), 0).unwrap();
    assert_eq!(core.next_slice(now).unwrap().id, running);
    core.submit(other, micros_of_work(400_000), 0).unwrap();
    let AdmissionDecision::Waiting { id: waits, .. } = offer(&mut core, 0, 110_000) else {
        panic!("not made to wait")
    };
    core.update_estimate(now, waits, Cost::default());
    core.finish_slice(now, running, micros_of_work(200_000), None);
    assert_eq!(
        core.next_promoted(),
        Some((waits, 0)),
        "its tenant has nothing ahead of it"
    );
}

#[test]
fn smaller_requests_run_first_and_equal_ones_in_order() {
    let mut core = TestCore::new(options(1));
    for (token, micros) in [(0, 90_000), (1, 300), (2, 50), (3, 200), (4, 60)] {
        let id = admitted(core.offer(Time::default(), &request(&0, micros), || 0));
        core.submit(id, micros_of_work(micros), token).unwrap();
    }
    let order: Vec<_> = std::iter::from_fn(|| {
        let slice = core.next_slice(Time::default())?;
        core.finish_slice(Time::default(), slice.id, Cost::from_nanos(1), None);
        Some(slice.work)
    })
    .collect();
    assert_eq!(order, [2, 4, 1, 3, 0]);
}

#[test]
fn arrival_order_rejects_only_for_memory() {
    let mut core = TestCore::new(SchedulerOptions {
        order: RunOrder::Arrival,
        ..options(1)
    });
    let mut now = Time::default();
    for tenant in 0..60 {
        // Large and small, of sixty tenants, with deadlines that none can meet.
        let request = OfferedRequest {
            deadline: now,
            ..request(&tenant, if tenant % 2 == 0 { 1_000_000 } else { 10 })
        };
        let id = admitted(core.offer(now, &request, || 0));
        core.submit(id, request.cost, tenant).unwrap();
    }
    for tenant in 0..60 {
        let Slice { id, work, budget } = core.next_slice(now).unwrap();
        assert_eq!(work, tenant);
        assert!(
            budget > micros_of_work(1_000_000),
            "a request runs to its end"
        );
        now = now + Duration::from_secs(1);
        core.finish_slice(now, id, micros_of_work(1_000_000), None);
        core.close(now, id);
    }
    let mut offer = |tenant, bytes| {
        core.offer(
            now,
            &OfferedRequest {
                bytes,
                ..request(&tenant, 10)
            },
            || 0,
        )
    };
    admitted(offer(1, 900));
    assert!(matches!(
        offer(2, 101),
        AdmissionDecision::Rejected(Rejection {
            reason: RejectionReason::Memory,
            ..
        })
    ));
    admitted(offer(3, 99));
}

#[test]
fn closed_request_returns_its_remaining_work() {
    let mut core = TestCore::new(options(2));
    let now = Time::default();
    let [admitted, ready, runs, done] =
        [(); 4].map(|()| admitted(core.offer(now, &request(&0, 150_000), || 0)));
    for (id, token) in [(done, 1), (runs, 2)] {
        core.submit(id, micros_of_work(150_000), token).unwrap();
        assert_eq!(core.next_slice(now).unwrap().work, token);
    }
    core.submit(ready, micros_of_work(130_000), 3).unwrap();
    let AdmissionDecision::Waiting { id: waits, .. } = core.offer(now, &request(&0, 110_000), || 0)
    else {
        panic!("does not wait")
    };
    core.finish_slice(now, done, micros_of_work(150_000), None);
    for (name, id, work, left) in [
        ("waits", waits, None, 110_000),
        ("is being read", admitted, None, 150_000),
        ("is ready", ready, Some(3), 130_000),
        (
            "runs, and half a slice of it still will",
            runs,
            None,
            149_950,
        ),
        ("is done", done, None, 0),
    ] {
        assert_eq!(
            core.close(now, id),
            Some(Closed {
                work,
                left: micros_of_work(left)
            }),
            "{name}"
        );
        assert_eq!(core.close(now, id), None, "{name}, once");
    }
}

#[test]
fn suspended_request_delays_no_other() {
    let mut core = TestCore::new(options(1));
    let backlog = |core: &TestCore| core.gauges().backlog.iter().sum::<u64>() / NS_PER_US;
    let now = Time::default();
    let away = admitted(core.offer(
        now,
        &OfferedRequest {
            bytes: 300,
            ..request(&0, 600_000)
        },
        || 0,
    ));
    assert_eq!(
        core.resume(now, away, micros_of_work(1), 9),
        Err(9),
        "nothing of it is done yet"
    );
    core.submit(away, micros_of_work(200_000), 1).unwrap();
    let slice = core.next_slice(now).unwrap();
    assert_eq!(
        core.resume(now, away, micros_of_work(1), 9),
        Err(9),
        "it runs"
    );
    let now = Time::from_nanos(200_000 * NS_PER_US);
    core.finish_slice(now, away, micros_of_work(200_000), None);
    assert_eq!(
        (backlog(&core), core.gauges().requests, core.gauges().bytes),
        (0, 1, 300)
    );
    assert!(core.next_slice(now).is_none());
    // A request of another size is predicted as if it were alone, and goes first when both are ready.
    let AdmissionDecision::Admitted {
        id: other,
        predicted,
    } = core.offer(now, &request(&0, 100), || 0)
    else {
        panic!()
    };
    assert_eq!(predicted, Duration::from_micros(100));
    core.resume(now, away, micros_of_work(400_000), slice.work)
        .unwrap();
    core.submit(other, micros_of_work(100), 2).unwrap();
    assert_eq!(
        (backlog(&core), core.next_slice(now).unwrap().work),
        (400_100, 2)
    );
    core.finish_slice(now, other, micros_of_work(100), None);
    assert_eq!(core.next_slice(now).unwrap().work, 1);
    core.finish_slice(now, away, micros_of_work(400_000), None);
    assert_eq!(
        core.close(now, away),
        Some(Closed {
            work: None,
            left: Cost::default()
        })
    );
}

#[test]
fn request_beyond_its_estimate_is_no_longer_small() {
    let mut core = TestCore::new(options(1));
    let id = admitted(core.offer(Time::default(), &request(&0, 100), || 0));
    core.submit(id, micros_of_work(100), 0).unwrap();
    let mut classes = Vec::new();
    for _ in 0..64 {
        let slice = core.next_slice(Time::default()).unwrap();
        core.finish_slice(Time::default(), id, slice.budget, Some(slice.work));
        classes.push(
            core.gauges()
                .ready
                .iter()
                .position(|ready| *ready > 0)
                .unwrap(),
        );
    }
    assert_eq!(classes[0], 0);
    assert_eq!(
        classes.iter().max(),
        Some(&3),
        "what was twice misjudged had 6.4 ms"
    );
}

#[test]
fn decisions_predict_the_time_to_the_end() {
    let mut core = TestCore::new(options(2));
    let request = |micros, patience_ms| OfferedRequest {
        deadline: Time::default() + Duration::from_millis(patience_ms),
        ..request(&7, micros)
    };
    // Alone on one of two workers, which then both are busy; behind what both have; behind that and
    // what waits; and what is larger is not ahead, what is smaller is, with what it makes of the
    // rate.
    for (micros, patience_ms, decision) in [
        (400_000, 5_000, ("admitted", 400_000)),
        (400_000, 5_000, ("admitted", 200_000 + 400_000)),
        (400_000, 5_000, ("waits", 400_000 + 400_000)),
        (10, 5_000, ("admitted", 10)),
        (400_000, 900, ("rejected", 600_008 + 400_000)),
    ] {
        let (told, predicted, id) =
            match core.offer(Time::default(), &request(micros, patience_ms), || 0) {
                AdmissionDecision::Admitted { id, predicted } => ("admitted", predicted, Some(id)),
                AdmissionDecision::Waiting { predicted, .. } => ("waits", predicted, None),
                AdmissionDecision::Rejected(rejection) => ("rejected", rejection.predicted, None),
            };
        assert_eq!((told, predicted.as_micros()), decision, "{micros} us");
        if let Some(id) = id {
            core.submit(id, micros_of_work(micros), 0).unwrap();
            core.next_slice(Time::default()).unwrap();
        }
    }
}

#[test]
fn cost_can_be_corrected_until_submission() {
    let mut core = TestCore::new(options(1));
    let backlog = |core: &TestCore| core.gauges().backlog.iter().sum::<u64>() / NS_PER_US;
    let id = admitted(core.offer(Time::default(), &request(&0, 100), || 0));
    core.update_estimate(Time::default(), id, micros_of_work(400_000));
    assert_eq!(backlog(&core), 400_000);
    let predicted =
        |core: &mut TestCore| match core.offer(Time::default(), &request(&0, 500_000), || 0) {
            AdmissionDecision::Admitted { id, predicted }
            | AdmissionDecision::Waiting { id, predicted } => (id, predicted.as_millis()),
            AdmissionDecision::Rejected(rejection) => panic!("{rejection:?}"),
        };
    core.submit(id, micros_of_work(600_000), 0).unwrap();
    core.next_slice(Time::default()).unwrap();
    let (waits, behind) = predicted(&mut core);
    assert_eq!(
        (behind, core.gauges().waiting),
        (600 + 500, [0, 0, 0, 0, 0, 0, 0, 1])
    );
    core.update_estimate(Time::default(), waits, micros_of_work(100_000));
    assert_eq!(core.gauges().waiting, [0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(predicted(&mut core).1, 600 + 100 + 500);
    core.update_estimate(Time::default(), id, micros_of_work(1));
    assert_eq!(backlog(&core), 600_000, "what runs is left alone");
}

/// A core whose only worker is busy for another tenant.
fn busy(tuning: &Tuning) -> TestCore {
    let mut core = TestCore::with_tuning(options(1), tuning);
    let id = admitted(core.offer(Time::default(), &request(&1, 1), || 0));
    core.submit(id, micros_of_work(1), 0).unwrap();
    core.next_slice(Time::default()).unwrap();
    core
}

#[test]
fn proportion_rejects_no_request_while_a_worker_is_idle() {
    for (mut core, reason) in [
        (TestCore::new(options(1)), None),
        (busy(&Tuning::default()), Some(RejectionReason::Proportion)),
    ] {
        let mut rejected = |micros, deadline| match core.offer(
            Time::default(),
            &OfferedRequest {
                deadline,
                ..request(&7, micros)
            },
            || 0,
        ) {
            AdmissionDecision::Rejected(rejection) => Some(rejection.reason),
            AdmissionDecision::Admitted { .. } | AdmissionDecision::Waiting { .. } => None,
        };
        assert_eq!(rejected(2_000_000, Time::NEVER), None);
        assert_eq!(
            rejected(900_000, Time::from_nanos(1_000_000_000)),
            Some(RejectionReason::Deadline)
        );
        assert_eq!(rejected(100, Time::NEVER), reason);
    }
}

#[test]
fn infeasible_request_rejects_no_other() {
    let mut core = busy(&Tuning::default());
    let second = Time::default() + Duration::from_secs(1);
    let mut offer = |micros| {
        core.offer(
            Time::default(),
            &OfferedRequest {
                deadline: second,
                ..request(&7, micros)
            },
            || 0,
        )
    };
    let mut rejected = |micros| match offer(micros) {
        AdmissionDecision::Rejected(rejection) => Some(rejection),
        AdmissionDecision::Admitted { .. } | AdmissionDecision::Waiting { .. } => None,
    };
    assert!(
        (0..16).all(|_| rejected(10_000).is_none()),
        "160 ms of work: behind, and not too far"
    );
    let hour = rejected(3_600_000_000).unwrap();
    assert_eq!(hour.reason, RejectionReason::Deadline);
    assert_eq!(rejected(10_000), None);
    // Feasible requests count by their part in all.
    assert_eq!(
        rejected(990_000).map(|rejection| rejection.reason),
        Some(RejectionReason::Deadline)
    );
    assert_eq!(
        rejected(10_000).map(|rejection| rejection.reason),
        Some(RejectionReason::Proportion)
    );
}

#[test]
fn rejected_request_rejects_few_others() {
    let small_rejected = |tuning: &Tuning| {
        let mut core = busy(tuning);
        let mut rejected = |micros, deadline| {
            let request = OfferedRequest {
                deadline,
                ..request(&7, micros)
            };
            matches!(
                core.offer(Time::default(), &request, || 0),
                AdmissionDecision::Rejected(_)
            )
        };
        assert!(!rejected(2_000_000, Time::NEVER), "a batch");
        assert!(!rejected(10_000, Time::NEVER));
        assert!(
            rejected(10_000, Time::from_nanos(15_000_000)),
            "in time alone, not behind the other"
        );
        (0..50).filter(|_| rejected(100, Time::NEVER)).count()
    };
    assert_eq!(small_rejected(&Tuning::default()), 1);
    assert!(
        small_rejected(&Tuning {
            worst_max: f64::INFINITY,
            ..Tuning::default()
        }) >= 20
    );
}

#[test]
fn a_request_that_has_waited_is_rejected_less_for_proportion() {
    // Rejected after `before` requests of its size, in a state in which larger ones were rejected?
    let is_rejected = |before: usize, has_waited| {
        let mut core = busy(&Tuning::default());
        let mut offer = |micros, deadline, has_waited| {
            let request = OfferedRequest {
                deadline,
                has_waited,
                ..request(&7, micros)
            };
            matches!(
                core.offer(Time::default(), &request, || 0),
                AdmissionDecision::Rejected(_)
            )
        };
        assert!(!offer(2_000_000, Time::NEVER, false));
        for _ in 0..8 {
            offer(10_000, Time::from_nanos(15_000_000), false);
        }
        for _ in 0..before {
            offer(2_000, Time::NEVER, false);
        }
        offer(2_000, Time::NEVER, has_waited)
    };
    let outcomes: Vec<_> = (0..80)
        .map(|before| (is_rejected(before, false), is_rejected(before, true)))
        .collect();
    assert!(outcomes.contains(&(true, false)), "{outcomes:?}");
    assert!(
        outcomes.contains(&(true, true)),
        "where its size was rejected too little"
    );
    assert!(!outcomes.contains(&(false, true)));
}

#[test]
fn rejection_has_its_reason() {
    let second = Time::default() + Duration::from_secs(1);
    let mut core = TestCore::new(options(1));
    let small = |deadline, bytes| OfferedRequest {
        deadline,
        bytes,
        ..request(&7, 10_000)
    };
    let mut offer = |request: &OfferedRequest<'_, u32>| core.offer(Time::default(), request, || 0);
    let reason = |decision| match decision {
        AdmissionDecision::Rejected(rejection) => Some(rejection.reason),
        AdmissionDecision::Admitted { .. } | AdmissionDecision::Waiting { .. } => None,
    };
    assert_eq!(
        reason(offer(&small(Time::NEVER, 501))),
        Some(RejectionReason::Memory),
        "one tenant gets a half"
    );
    let soon = Time::from_nanos(9_000_000);
    assert_eq!(reason(offer(&small(soon, 0))), None, "alone it may try");
    assert_eq!(
        reason(offer(&small(soon, 0))),
        Some(RejectionReason::Deadline)
    );
    let verdicts: Vec<_> = (0..60).map(|_| reason(offer(&small(second, 0)))).collect();
    let first = verdicts
        .iter()
        .position(|decision| decision.is_some())
        .unwrap();
    assert!(
        (24..=35).contains(&first),
        "rejected from 250 ms of waiting work on: {first}"
    );
    assert_eq!(verdicts[first], Some(RejectionReason::Backlog));
    assert_eq!(
        core.gauges().rejected.iter().sum::<u64>(),
        2 + (60 - first as u64)
    );
}

#[test]
fn unstarted_request_expires_after_twice_its_bound() {
    let at = |millis| Time::default() + Duration::from_millis(millis);
    let mut core = TestCore::new(options(1));
    let offer = |core: &mut TestCore, tenant, micros| {
        let (AdmissionDecision::Admitted { id, .. } | AdmissionDecision::Waiting { id, .. }) =
            core.offer(at(0), &request(&tenant, micros), || 0)
        else {
            panic!("rejected")
        };
        (id, core.expires_at(id))
    };
    let (runs, _) = offer(&mut core, 0, 100);
    core.submit(runs, micros_of_work(100), 1).unwrap();
    assert_eq!(core.next_slice(at(0)).unwrap().id, runs);
    assert_eq!(
        core.expire_request(at(1_000), runs),
        Expiry::Never,
        "it has started"
    );
    // Ready, not there yet, and in the queue for admission, which no other tenant has.
    let (ready, at_latest) = offer(&mut core, 0, 1_000);
    core.submit(ready, micros_of_work(1_000), 2).unwrap();
    let (unsubmitted, _) = offer(&mut core, 0, 1_000);
    let (large, _) = offer(&mut core, 0, 200_000);
    let (waits, later) = offer(&mut core, 0, 200_000);
    assert_eq!(
        (at_latest, later > at(500)),
        (at(500), true),
        "a large request may wait for as long as was predicted"
    );
    assert_eq!(core.expire_request(at(499), ready), Expiry::Later(at(500)));
    let Expiry::Expired { rejection, work } = core.expire_request(at(500), ready) else {
        panic!("it waits on")
    };
    assert_eq!(
        (rejection.reason, work),
        (RejectionReason::Backlog, Some(2))
    );
    assert!(rejection.retry_after >= Duration::from_millis(5));
    assert_eq!(core.expire_request(at(500), ready), Expiry::Never, "once");
    assert_eq!(
        core.expire_request(at(500), unsubmitted),
        Expiry::Later(at(750)),
        "it waits for something else"
    );
    core.restart_wait(at(600), unsubmitted);
    assert!(core.expires_at(unsubmitted) >= at(600 + 500));
    assert!(matches!(
        core.expire_request(later, waits),
        Expiry::Expired { work: None, .. }
    ));
    assert_eq!(
        (core.gauges().rejected, core.gauges().expired),
        ([2, 0, 0, 0], 2)
    );
    for id in [runs, unsubmitted, large] {
        core.close(later, id);
    }
    core.finish_slice(later, runs, Cost::from_nanos(1), None);
    assert_eq!(
        (
            core.gauges().requests,
            core.gauges().backlog,
            core.gauges().waiting
        ),
        (0, [0; 8], [0; 8])
    );
}

#[test]
fn slow_machine_makes_no_request_larger() {
    let mut core = TestCore::new(options(1));
    let mut now = Time::default();
    let slow = admitted(core.offer(now, &request(&1, 1_000_000), || 0));
    core.submit(slow, micros_of_work(1_000_000), 0).unwrap();
    for _ in 0..1_000 {
        let slice = core.next_slice(now).unwrap();
        now = now + Duration::from_micros(800);
        core.finish_slice(now, slice.id, Cost::from_nanos(50_000), Some(slice.work));
    }
    core.next_slice(now).unwrap();
    // 5 ms of work take 160 ms of this tenant's half now; of such requests 250 ms may be ahead, not
    // four times 160.
    let rejected = (0..60).position(|_| {
        let request = OfferedRequest {
            since: now,
            ..request(&7, 5_000)
        };
        matches!(
            core.offer(now, &request, || 0),
            AdmissionDecision::Rejected(Rejection {
                reason: RejectionReason::Backlog,
                ..
            })
        )
    });
    assert!(rejected.is_some_and(|first| first <= 6), "{rejected:?}");
}
