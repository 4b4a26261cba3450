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

fn scheduler() -> Scheduler {
    scheduler_of(1)
}

/// A scheduler of some crypto threads, whose costs do not depend on this machine.
fn scheduler_of(threads: u32) -> Scheduler {
    let threads = NonZeroU32::new(threads).unwrap();
    let each = Coefficients { request: 5_000.0, key_agreement: 50_000.0, field: 1_000.0, byte: 0.0 };
    let costs = Costs::new(|_| CostModel::new(each));
    Scheduler::start(threads, &Config::defaults(Path::new("nowhere")).schedule, costs, Arc::new(|| false))
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
    // A running slice is not queued.
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

/// Key agreements that helpers had made for each slice of assisted work.
const AGREEMENTS_AHEAD: u64 = 4;

/// Work of two slices that offers help for the second, which does not begin before something comes.
struct Assisted {
    help: Arc<Help>,
    slices: u32,
    holds: mpsc::Receiver<()>,
    events: mpsc::Sender<&'static str>,
}

impl Slices for Assisted {
    fn kind(&self) -> OperationKind {
        KIND
    }

    fn work_size(&self) -> WorkSize {
        size(1)
    }

    fn field_bytes(&self) -> u64 {
        0
    }

    fn has_begun(&self) -> bool {
        self.slices < 2
    }

    fn slice(&mut self, _: &SliceBudget) -> Slice {
        self.slices -= 1;
        if self.slices == 0 {
            self.holds.recv().unwrap();
        }
        Slice { done: size(1), more: self.slices > 0 }
    }

    fn help(&mut self) -> Option<Weak<dyn RequestHelp>> {
        let help: Weak<Help> = Arc::downgrade(&self.help);
        Some(help)
    }

    fn take_agreements_ahead(&mut self) -> u64 {
        AGREEMENTS_AHEAD
    }

    fn deliver(self: Box<Self>) {
        self.help.has_ended.store(true, Ordering::Relaxed);
        self.events.send("delivered").unwrap();
    }
}

/// Steps that each wait for their outcome: `None` panics.
struct Help {
    outcomes: Mutex<mpsc::Receiver<Option<HelpStep>>>,
    events: mpsc::Sender<&'static str>,
    has_ended: AtomicBool,
}

impl RequestHelp for Help {
    fn step(&self) -> HelpStep {
        if self.has_ended.load(Ordering::Relaxed) {
            return HelpStep::Nothing;
        }
        self.events.send("step").unwrap();
        let outcome = self.outcomes.lock().unwrap().recv().unwrap();
        outcome.expect("on purpose")
    }
}

/// Two crypto threads, of which one holds assisted work and the other is in the first step of its help.
struct Assistance {
    scheduler: Scheduler,
    _permit: AdmissionPermit,
    release: mpsc::Sender<()>,
    outcomes: mpsc::Sender<Option<HelpStep>>,
    events: mpsc::Receiver<&'static str>,
    sender: mpsc::Sender<&'static str>,
}

/// Fields of the assisted work: 1 us each, and 5 us for the request.
const FIELDS: u64 = 1_000;

impl Assistance {
    fn start() -> Self {
        let scheduler = scheduler_of(2);
        while scheduler.0.0.lock().idle < 2 {
            thread::yield_now();
        }
        let (sender, events) = mpsc::channel();
        let (outcomes, steps) = mpsc::channel();
        let (release, holds) = mpsc::channel();
        let help =
            Arc::new(Help { outcomes: Mutex::new(steps), events: sender.clone(), has_ended: AtomicBool::new(false) });
        let mut permit = permit(&scheduler, FIELDS);
        permit.submit(Box::new(Assisted { help, slices: 2, holds, events: sender.clone() }));
        assert_eq!(events.recv().unwrap(), "step");
        Self { scheduler, _permit: permit, release, outcomes, events, sender }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_idle_thread_helps_until_there_is_nothing_to_do() {
    let it = Assistance::start();
    for _ in 0..3 {
        it.outcomes.send(Some(HelpStep::Done)).unwrap();
        assert_eq!(it.events.recv().unwrap(), "step");
    }
    it.outcomes.send(Some(HelpStep::Nothing)).unwrap();
    while !it.scheduler.0.0.lock().help_offers.is_empty() {
        thread::yield_now();
    }
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_tenant_pays_for_agreements_that_helpers_made() {
    let it = Assistance::start();
    let left: u64 = it.scheduler.gauges().backlog.iter().sum();
    // The first slice did one field, and used four agreements of 50 us.
    assert_eq!(left, 5_000 + FIELDS * 1_000 - 6_000 - AGREEMENTS_AHEAD * 50_000);
    it.outcomes.send(Some(HelpStep::Nothing)).unwrap();
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn help_that_panics_ends_and_the_request_does_not() {
    let it = Assistance::start();
    it.outcomes.send(None).unwrap();
    while !it.scheduler.0.0.lock().help_offers.is_empty() {
        thread::yield_now();
    }
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_queued_slice_goes_before_help() {
    struct Queued(mpsc::Sender<&'static str>);
    impl Slices for Queued {
        fn kind(&self) -> OperationKind {
            KIND
        }
        fn work_size(&self) -> WorkSize {
            size(1)
        }
        fn field_bytes(&self) -> u64 {
            0
        }
        fn has_begun(&self) -> bool {
            false
        }
        fn slice(&mut self, _: &SliceBudget) -> Slice {
            self.0.send("slice").unwrap();
            Slice { done: size(1), more: false }
        }
        fn deliver(self: Box<Self>) {}
    }
    let it = Assistance::start();
    let mut queued = permit(&it.scheduler, 1);
    queued.submit(Box::new(Queued(it.sender.clone())));
    it.outcomes.send(Some(HelpStep::Done)).unwrap();
    assert_eq!([it.events.recv().unwrap(), it.events.recv().unwrap()], ["slice", "step"]);
    it.outcomes.send(Some(HelpStep::Nothing)).unwrap();
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn help_ends_with_its_request() {
    let it = Assistance::start();
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
    // The step under way is the last one.
    it.outcomes.send(Some(HelpStep::Done)).unwrap();
    while !it.scheduler.0.0.lock().help_offers.is_empty() {
        thread::yield_now();
    }
    assert!(it.events.try_recv().is_err());
}
