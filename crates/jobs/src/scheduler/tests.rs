//! Which thread runs a request.

use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, ThreadId};

use sealwire_config::Config;
use sealwire_schedule::{Coefficients, CostModel};

use super::*;

const KIND: OperationKind = OperationKind::HASH_TOKENS;
/// The budget of a network thread in these tests. A request of one field costs 6 us, and each field 1 us.
const BUDGET: Cost = Cost::from_nanos(30_000);

/// Work that says where each of its slices runs.
struct Probe {
    fields: u64,
    /// Needs no Diffie-Hellman.
    is_ready: bool,
    slices: u32,
    panics: bool,
    /// Holds its thread until something comes.
    holds: Option<mpsc::Receiver<()>>,
    ran_on: mpsc::Sender<ThreadId>,
}

impl Slices for Probe {
    fn kind(&self) -> OperationKind {
        KIND
    }

    fn work_size(&self) -> WorkSize {
        size(self.fields)
    }

    fn field_bytes(&self) -> u64 {
        0
    }

    fn has_begun(&self) -> bool {
        false
    }

    fn needs_no_agreement(&mut self) -> bool {
        self.is_ready
    }

    fn slice(&mut self, _: &SliceBudget) -> Slice {
        self.ran_on.send(thread::current().id()).unwrap();
        if let Some(release) = self.holds.take() {
            release.recv().unwrap();
        }
        assert!(!self.panics, "on purpose");
        self.slices -= 1;
        Slice { done: size(self.fields), more: self.slices > 0 }
    }

    fn deliver(self: Box<Self>) {}
}

fn size(fields: u64) -> WorkSize {
    WorkSize { requests: 1, key_agreements: 0, fields, bytes: 0 }
}

/// A scheduler of one crypto thread, whose costs do not depend on this machine.
fn scheduler() -> Scheduler {
    let each = Coefficients { request: 5_000.0, key_agreement: 50_000.0, field: 1_000.0, byte: 0.0 };
    let costs = Costs::new(|_| CostModel::new(each));
    Scheduler::start(NonZeroU32::MIN, &Config::defaults(Path::new("nowhere")).schedule, costs, Arc::new(|| false))
}

fn permit(scheduler: &Scheduler, fields: u64) -> AdmissionPermit {
    let principal = Principal::from_text("relay").unwrap();
    let since = Instant::now();
    let offer = AdmissionRequest {
        principal: &principal,
        kind: KIND,
        work_size: size(fields),
        bytes: 0,
        since,
        deadline: None,
        whole: true,
        has_waited: false,
    };
    scheduler.offer(&offer, &ConnectionMemory::new(1 << 20)).unwrap()
}

/// Runs work, inline if it may. Returns true if this thread ran its first slice.
fn run(permit: &mut AdmissionPermit, probe: Probe, ran_on: &mpsc::Receiver<ThreadId>) -> bool {
    if let Err(work) = permit.run_inline(Box::new(probe)) {
        permit.submit(work);
    }
    ran_on.recv().unwrap() == thread::current().id()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_network_thread_runs_what_is_small_and_ready_while_nothing_is_queued() {
    let (ran, ran_on) = mpsc::channel();
    let probe =
        |fields, is_ready| Probe { fields, is_ready, slices: 1, panics: false, holds: None, ran_on: ran.clone() };
    for (name, fields, is_ready, budget, inline) in [
        ("small", 1, true, BUDGET, true),
        ("needs a Diffie-Hellman", 1, false, BUDGET, false),
        ("as much as the budget", 25, true, BUDGET, true),
        ("more than the budget", 26, true, BUDGET, false),
        ("no budget", 1, true, Cost::default(), false),
    ] {
        // A new one each time, because slices correct the costs.
        let scheduler = scheduler();
        inline_budget::renew(budget);
        assert_eq!(run(&mut permit(&scheduler, fields), probe(fields, is_ready), &ran_on), inline, "{name}");
    }
    let scheduler = scheduler();
    inline_budget::renew(BUDGET);
    let mut permits = [(); 3].map(|()| permit(&scheduler, 10));
    let inline: Vec<bool> = permits.iter_mut().map(|permit| run(permit, probe(10, true), &ran_on)).collect();
    assert_eq!(inline, [true, true, false], "15 us each of 30");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_queued_goes_first() {
    let scheduler = scheduler();
    let (ran, ran_on) = mpsc::channel();
    let probe = || Probe { fields: 1, is_ready: true, slices: 1, panics: false, holds: None, ran_on: ran.clone() };
    let (release, holds) = mpsc::channel();
    let (mut running, mut queued, mut late) = (permit(&scheduler, 1), permit(&scheduler, 1), permit(&scheduler, 1));
    running.submit(Box::new(Probe { holds: Some(holds), ..probe() }));
    let crypto = ran_on.recv().unwrap();
    inline_budget::renew(BUDGET);
    // What runs is not queued.
    assert!(run(&mut permit(&scheduler, 1), probe(), &ran_on));
    queued.submit(Box::new(probe()));
    assert!(late.run_inline(Box::new(probe())).is_err_and(|work| {
        late.submit(work);
        true
    }));
    release.send(()).unwrap();
    assert_eq!([ran_on.recv().unwrap(), ran_on.recv().unwrap()], [crypto; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn work_that_is_not_done_continues_on_a_crypto_thread_and_a_panic_fails_only_its_own() {
    let scheduler = scheduler();
    let (ran, ran_on) = mpsc::channel();
    let probe = |slices, panics| Probe { fields: 1, is_ready: true, slices, panics, holds: None, ran_on: ran.clone() };
    let network = thread::current().id();
    for (slices, panics) in [(3, false), (1, true), (2, false)] {
        inline_budget::renew(BUDGET);
        let mut permit = permit(&scheduler, 1);
        assert!(run(&mut permit, probe(slices, panics), &ran_on));
        for _ in 1..slices {
            assert_ne!(ran_on.recv().unwrap(), network);
        }
        drop(permit);
    }
    while scheduler.gauges().calls > 0 {
        thread::yield_now();
    }
    assert_eq!(scheduler.gauges().running, 0);
}
